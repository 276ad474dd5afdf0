{{/*
Names. Objects of two releases never collide, however long their names are: what is too long is cut and
ends with a hash of the whole. A Service's name begins with a letter and has no dot, which release names may:
what is changed for that ends with a hash, too. 40 characters leave room for "-clickhouse", an ordinal and the hash that
Kubernetes adds to the labels of a StatefulSet's pods (63 at most).
*/}}
{{- define "common.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- end -}}
{{- $legal := $name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $legal }}{{ $legal = printf "r%s" $legal }}{{ end -}}
{{- if ne $legal $name }}{{ $legal = printf "%s-%s" $legal ($name | sha256sum | trunc 6) }}{{ end -}}
{{- include "common.shorten" (dict "name" $legal "max" 40) -}}
{{- end }}

{{- define "common.shorten" -}}
{{- if gt (len .name) (int .max) -}}
{{- printf "%s-%s" (.name | trunc (int (sub .max 7)) | trimSuffix "-") (.name | sha256sum | trunc 6) -}}
{{- else -}}
{{- .name -}}
{{- end -}}
{{- end }}

{{- define "common.name" -}}
{{- printf "%s-%s" (include "common.fullname" .root) .component -}}
{{- end }}

{{/* Selectors are for ever: nothing in them may change with a version or with a user's values. */}}
{{- define "common.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end }}

{{- define "common.labels" -}}
{{- with .root.Values.global.labels }}
{{- toYaml . }}
{{ end -}}
{{- include "common.selectorLabels" . }}
app.kubernetes.io/part-of: spanreplay
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "common.metadata" -}}
name: {{ .name | default (include "common.name" .) }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "common.labels" . | nindent 2 }}
  {{- with .extraLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with mergeOverwrite (dict) (.root.Values.global.annotations | default dict) (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* registry/repository:tag@digest; the tag defaults to the chart's appVersion where the image is ours. */}}
{{- define "common.image" -}}
{{- $image := .image -}}
{{- $registry := .root.Values.global.imageRegistry | default $image.registry -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- if eq $tag "latest" }}{{ fail (printf "%s.tag: latest is refused, since it names another image tomorrow: name a release" .where) }}{{ end -}}
{{- if $registry }}{{ $registry }}/{{ end }}{{ $image.repository }}:{{ $tag }}{{ with $image.digest }}@{{ . }}{{ end -}}
{{- end }}
