{{/*
A generated value that survives upgrades: what the cluster holds wins. `lookup` is empty under `helm template`
and in GitOps tools that render without a cluster: name an existing secret there.
*/}}
{{- define "common.keptValue" -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace .name | default dict -}}
{{- $kept := get ($found.data | default dict) .key -}}
{{- $kept | default (randAlphaNum 40 | printf "a1%s" | b64enc) -}}
{{- end }}

{{/*
Whether an object that outlives its part is in the cluster, as this release's. It stays in the release then: Helm
can't roll back to a revision that holds a kept object which a later one left out.
*/}}
{{- define "common.stays" -}}
{{- $found := lookup "v1" .kind .root.Release.Namespace .name | default dict -}}
{{- $metadata := $found.metadata | default dict -}}
{{- if eq (get ($metadata.annotations | default dict) "meta.helm.sh/release-name") .root.Release.Name }}true{{ end -}}
{{- end }}
