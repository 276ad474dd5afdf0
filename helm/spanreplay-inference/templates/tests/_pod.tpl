{{- define "inference.test" -}}
container:
  name: test
  command: [python, -m, spanreplay_kernels.probe]
  args:
    - invariance
    - --url=http://{{ include "common.name" (dict "root" .root "component" .name) }}:8000
    - {{ printf "--model=%s" (include "inference.served" .) | quote }}
    - --prompts={{ int .root.Values.test.prompts }}
    {{- if include "inference.line" . }}
    - --header
    {{- with .m.kernels.expectedLine }}
    - {{ printf "--expect=%s" . | quote }}
    {{- end }}
    {{- end }}
  env:
    - name: HOME
      value: /tmp
{{- end }}
