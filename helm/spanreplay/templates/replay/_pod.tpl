{{- define "spanreplay.replay" -}}
container:
  args:
    - serve
    {{- include "spanreplay.accessArgs" . | nindent 4 }}
    {{- if and (ne .Values.phoenix.mode "disabled") .Values.phoenix.publicUrl }}
    - --phoenix-public-url={{ .Values.phoenix.publicUrl }}
    {{- end }}
  env:
    {{- include "spanreplay.baseEnv" . | nindent 4 }}
    {{- include "spanreplay.storeEnv" . | nindent 4 }}
    {{- include "spanreplay.tokenEnv" . | nindent 4 }}
    {{- include "spanreplay.phoenixEnv" . | nindent 4 }}
  ports:
    - name: grpc
      containerPort: 4319
  startupProbe:
    {{- include "spanreplay.grpcProbe" . | nindent 4 }}
    {{- include "common.startup" .Values.replay.startupSeconds | nindent 4 }}
  livenessProbe:
    {{- include "spanreplay.grpcProbe" . | nindent 4 }}
    periodSeconds: 20
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    {{- include "spanreplay.grpcProbe" . | nindent 4 }}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  volumeMounts:
    {{- include "spanreplay.accessMounts" . | nindent 4 }}
volumes:
  {{- include "spanreplay.accessVolumes" . | nindent 2 }}
{{- end }}
