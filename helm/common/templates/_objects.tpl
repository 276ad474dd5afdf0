{{/* A disruption budget; only where there is more than one pod, or it would block every node's drain. */}}
{{- define "common.pdb" -}}
{{- $v := .values -}}
{{- $many := or (gt (int $v.replicas) 1) (and $v.autoscaling $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) 1)) -}}
{{- if and $v.podDisruptionBudget.enabled $many -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "common.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ $v.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "common.selectorLabels" . | nindent 6 }}
{{- end -}}
{{- end }}

{{- define "common.hpa" -}}
{{- $a := .values.autoscaling -}}
{{- if $a.enabled -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "common.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {{ .kind }}
    name: {{ include "common.name" . }}
  minReplicas: {{ $a.minReplicas }}
  maxReplicas: {{ $a.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $a.targetCPUUtilizationPercentage }}
  behavior:
    scaleDown:
      # Slowly: what a removed pod had not delivered waits on its volume for the next one
      stabilizationWindowSeconds: 600
      policies:
        - type: Pods
          value: 1
          periodSeconds: 120
{{- end -}}
{{- end }}

{{/* Egress to the cluster's name servers. */}}
{{- define "common.dnsEgress" -}}
- to:
    {{- toYaml .Values.networkPolicy.dns.to | nindent 4 }}
  ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
{{- end }}

{{/* A peer: the pods of one of our components. */}}
{{- define "common.peer" -}}
- podSelector:
    matchLabels:
      {{- include "common.selectorLabels" . | nindent 6 }}
{{- end }}
