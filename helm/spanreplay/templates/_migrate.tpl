{{- define "spanreplay.migrate" -}}
container:
  args:
    - migrate
    - --wait={{ int .Values.migrate.waitSeconds }}
    {{- if and (eq .Values.clickhouse.mode "external") .Values.clickhouse.external.cluster }}
    - --cluster={{ .Values.clickhouse.external.cluster }}
    {{- end }}
  env:
    {{- include "spanreplay.baseEnv" . | nindent 4 }}
    {{- include "spanreplay.storeEnv" . | nindent 4 }}
{{- end }}
