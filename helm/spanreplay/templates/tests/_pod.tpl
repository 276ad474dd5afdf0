{{- define "spanreplay.test" -}}
{{- $scheme := ternary "https" "http" (not (empty .Values.tls.existingSecret)) -}}
container:
  command: [python, -m, spanreplay_service.smoke]
  env:
    {{- include "spanreplay.baseEnv" . | nindent 4 }}
    - name: OTEL_EXPORTER_OTLP_ENDPOINT
      value: {{ $scheme }}://{{ include "common.name" (dict "root" . "component" "collector") }}:4318
    - name: SPANREPLAY_ENDPOINT
      value: {{ ternary "https://" "" (eq $scheme "https") }}{{ include "common.name" (dict "root" . "component" "replay") }}:4319
    {{- include "spanreplay.tokenEnv" . | nindent 4 }}
    {{- if eq $scheme "https" }}
    {{- range list "SSL_CERT_FILE" "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" }}
    - name: {{ . }}
      value: /etc/spanreplay/ca/ca.crt
    {{- end }}
    {{- end }}
  {{- if eq $scheme "https" }}
  volumeMounts:
    - name: ca
      mountPath: /etc/spanreplay/ca
      readOnly: true
  {{- end }}
{{- if eq $scheme "https" }}
volumes:
  - name: ca
    secret:
      secretName: {{ .Values.tls.existingSecret }}
      items:
        - key: ca.crt
          path: ca.crt
{{- end }}
{{- end }}
