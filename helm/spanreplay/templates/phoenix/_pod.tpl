{{- define "spanreplay.phoenix" -}}
{{- $public := urlParse .Values.phoenix.publicUrl -}}
container:
  env:
    {{- $plain := dict
      "HOME" "/tmp"
      "PHOENIX_HOST" "0.0.0.0"
      "PHOENIX_PORT" "6006"
      "PHOENIX_GRPC_PORT" "14317"
      "PHOENIX_WORKING_DIR" "/var/lib/phoenix"
      "PHOENIX_ENABLE_AUTH" "true"
      "PHOENIX_DEFAULT_RETENTION_POLICY_DAYS" (toString .Values.phoenix.retentionDays)
      "PHOENIX_MAX_SPANS_QUEUE_SIZE" (toString .Values.phoenix.maxSpansQueueSize)
      "PHOENIX_MIGRATE_INDEX_CONCURRENTLY" "true"
      "PHOENIX_LOG_MIGRATIONS" "false"
      "PHOENIX_TELEMETRY_ENABLED" "false"
      "PHOENIX_ALLOW_EXTERNAL_RESOURCES" "false"
      "PHOENIX_DISABLE_AGENT_ASSISTANT" "true"
      "PHOENIX_AGENTS_DISABLE_BASH" "true"
      "PHOENIX_AGENTS_DISABLE_WEB_ACCESS" "true"
      "PHOENIX_ENABLE_MCP_SERVER" "false"
      "PHOENIX_ALLOWED_SANDBOX_PROVIDERS" "NONE"
      "PHOENIX_ALLOWED_PROVIDERS" "NONE"
      "PHOENIX_OAUTH2_DYNAMIC_CLIENT_REGISTRATION" "disabled" }}
    {{- if .Values.phoenix.publicUrl }}
    {{- $_ := set $plain "PHOENIX_ROOT_URL" .Values.phoenix.publicUrl }}
    {{- $_ := set $plain "PHOENIX_CSRF_TRUSTED_ORIGINS" (printf "%s://%s" $public.scheme $public.host) }}
    {{- $_ := set $plain "PHOENIX_USE_SECURE_COOKIES" (ternary "true" "false" (eq $public.scheme "https")) }}
    {{- with trimSuffix "/" $public.path }}{{ $_ := set $plain "PHOENIX_HOST_ROOT_PATH" . }}{{ end }}
    {{- end }}
    {{- range $name, $value := $plain }}
    - name: {{ $name }}
      value: {{ $value | quote }}
    {{- end }}
    {{- range $name, $key := dict "PHOENIX_SECRET" "secret" "PHOENIX_ADMIN_SECRET" "admin-secret" "PHOENIX_DEFAULT_ADMIN_INITIAL_PASSWORD" "admin-password" }}
    - name: {{ $name }}
      valueFrom:
        secretKeyRef:
          name: {{ include "spanreplay.phoenixSecret" $ }}
          key: {{ $key }}
    {{- end }}
    {{- if eq .Values.phoenix.storage.type "postgres" }}
    - name: PHOENIX_SQL_DATABASE_URL
      valueFrom:
        secretKeyRef:
          name: {{ .Values.phoenix.storage.dsnSecret }}
          key: {{ .Values.phoenix.storage.dsnKey }}
    {{- end }}
  ports:
    - name: http
      containerPort: 6006
  startupProbe:
    httpGet:
      path: /healthz
      port: http
    {{- include "common.startup" .Values.phoenix.startupSeconds | nindent 4 }}
  livenessProbe:
    httpGet:
      path: /healthz
      port: http
    periodSeconds: 20
    timeoutSeconds: 10
    failureThreshold: 6
  readinessProbe:
    httpGet:
      path: /readyz
      port: http
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  volumeMounts:
    - name: data
      mountPath: /var/lib/phoenix
volumes:
  - name: data
    {{- if eq .Values.phoenix.storage.type "sqlite" }}
    persistentVolumeClaim:
      claimName: {{ include "common.name" (dict "root" . "component" "phoenix") }}
    {{- else }}
    emptyDir:
      sizeLimit: 1Gi
    {{- end }}
{{- end }}
