{{- define "spanreplay.migrate" -}}
container:
  args:
    - migrate
    - --wait={{ int .Values.migrate.waitSeconds }}
  env:
    {{- include "spanreplay.baseEnv" . | nindent 4 }}
    {{- include "spanreplay.storeEnv" . | nindent 4 }}
{{- end }}
