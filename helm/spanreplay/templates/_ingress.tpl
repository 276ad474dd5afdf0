{{- define "spanreplay.ingress" -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  {{- include "common.metadata" (merge (dict "annotations" .ingress.annotations) .) | nindent 2 }}
spec:
  {{- with .ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with .ingress.tlsSecret }}
  tls:
    - hosts: [{{ $.ingress.host | quote }}]
      secretName: {{ . }}
  {{- end }}
  rules:
    - host: {{ .ingress.host | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {{ include "common.name" . }}
                port:
                  name: {{ .port }}
{{- end }}

{{- define "spanreplay.route" -}}
apiVersion: gateway.networking.k8s.io/v1
kind: {{ .kind }}
metadata:
  {{- include "common.metadata" . | nindent 2 }}
spec:
  parentRefs:
    {{- toYaml .root.Values.gateway.parentRefs | nindent 4 }}
  hostnames: [{{ .host | quote }}]
  rules:
    - backendRefs:
        - name: {{ include "common.name" (dict "root" .root "component" .component) }}
          port: {{ .port }}
{{- end }}
