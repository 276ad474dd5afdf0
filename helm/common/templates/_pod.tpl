{{/*
The pod template of a workload, restricted: no root, no writable root file system, no capability, no token.
Takes: root, component, values (the component's block of values.yaml), uid, and spec, the YAML of
{container: {...}, volumes: [...], initContainers: [...], checksums: {...}}. What the user adds comes last and wins.
*/}}
{{- define "common.pod" -}}
{{- $values := .values -}}
{{- $spec := fromYaml .spec -}}
{{- with $spec.Error }}{{ fail (printf "%s: %s" $.component .) }}{{ end -}}
{{- $openshift := eq .root.Values.global.podSecurity "openshift" -}}
metadata:
  labels:
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "common.labels" . | nindent 4 }}
  {{- with mergeOverwrite (dict) ($spec.checksums | default dict) ($values.podAnnotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "common.fullname" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .root.Values.global.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    {{- if not $openshift }}
    runAsUser: {{ .uid }}
    runAsGroup: {{ .uid }}
    fsGroup: {{ .uid }}
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
    seccompProfile:
      type: RuntimeDefault
  {{- with $values.terminationGracePeriodSeconds }}
  terminationGracePeriodSeconds: {{ . }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if hasKey $values "topologySpreadConstraints" }}
  topologySpreadConstraints:
    {{- if $values.topologySpreadConstraints }}
    {{- toYaml $values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "common.selectorLabels" $ | nindent 10 }}
    {{- end }}
    {{- end }}
  {{- end }}
  {{- with concat ($spec.initContainers | default list) ($values.initContainers | default list) }}
  initContainers:
    {{- range . }}
    - {{- mergeOverwrite (fromYaml (include "common.hardened" $)) . | toYaml | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - {{- include "common.container" (dict "ctx" . "container" $spec.container) | nindent 6 }}
    {{- with $values.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: {{ $values.tmpSize | default "256Mi" }}
    {{- with concat ($spec.volumes | default list) ($values.extraVolumes | default list) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "common.hardened" -}}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "common.container" -}}
{{- $values := .ctx.values -}}
{{- $container := .container -}}
{{- $defaults := dict "name" .ctx.component "image" (include "common.image" (dict "root" .ctx.root "image" $values.image "where" ($values.imageKey | default (printf "%s.image" .ctx.component)))) "imagePullPolicy" $values.image.pullPolicy "resources" $values.resources -}}
{{- $_ := set $container "args" (concat ($container.args | default list) ($values.extraArgs | default list)) -}}
{{- $_ := set $container "env" (concat ($container.env | default list) ($values.extraEnv | default list)) -}}
{{- with $values.extraEnvFrom }}{{ $_ := set $container "envFrom" . }}{{ end -}}
{{- with $values.lifecycle }}{{ $_ := set $container "lifecycle" . }}{{ end -}}
{{- $mounts := concat (list (dict "name" "tmp" "mountPath" "/tmp")) ($container.volumeMounts | default list) ($values.extraVolumeMounts | default list) -}}
{{- $_ := set $container "volumeMounts" $mounts -}}
{{- range list "args" "env" }}{{ if not (get $container .) }}{{ $_ := unset $container . }}{{ end }}{{ end -}}
{{- mergeOverwrite (fromYaml (include "common.hardened" $)) $defaults $container | toYaml -}}
{{- end }}

{{/* A startup probe with a budget in seconds; liveness and readiness begin when it has passed. */}}
{{- define "common.startup" -}}
periodSeconds: 5
timeoutSeconds: 5
failureThreshold: {{ max 1 (div (add (int .) 4) 5) }}
{{- end }}
