{{- define "spanreplay.collector" -}}
container:
  args:
    - collect
    - --data-dir=/var/lib/spanreplay
    - --log-mib-max={{ int .Values.collector.log.maxMiB }}
    {{- with .Values.collector.retention }}
    {{- if .keepDays }}
    - --keep-days={{ int .keepDays }}
    {{- if not .keepFailures }}
    - --drop-failures
    {{- end }}
    {{- end }}
    {{- end }}
    {{- include "spanreplay.accessArgs" . | nindent 4 }}
  env:
    {{- include "spanreplay.baseEnv" . | nindent 4 }}
    {{- include "spanreplay.storeEnv" . | nindent 4 }}
    {{- include "spanreplay.tokenEnv" . | nindent 4 }}
    {{- include "spanreplay.phoenixEnv" . | nindent 4 }}
  ports:
    - name: otlp-grpc
      containerPort: 4317
    - name: otlp-http
      containerPort: 4318
  startupProbe:
    {{- include "spanreplay.httpProbe" (dict "root" . "path" "/healthz") | nindent 4 }}
    {{- include "common.startup" .Values.collector.startupSeconds | nindent 4 }}
  livenessProbe:
    {{- include "spanreplay.httpProbe" (dict "root" . "path" "/healthz") | nindent 4 }}
    periodSeconds: 20
    timeoutSeconds: 5
    failureThreshold: 6
  {{- /* The log alone: while ClickHouse is away, spans are still acknowledged and must find the way here */}}
  readinessProbe:
    {{- include "spanreplay.httpProbe" (dict "root" . "path" "/readyz/log") | nindent 4 }}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  volumeMounts:
    - name: log
      mountPath: /var/lib/spanreplay
    {{- include "spanreplay.accessMounts" . | nindent 4 }}
volumes:
  {{- include "spanreplay.accessVolumes" . | nindent 2 }}
{{- end }}
