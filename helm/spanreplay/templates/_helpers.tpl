{{/* Names of secrets: the user's, else the chart's own. */}}
{{- define "spanreplay.authSecret" -}}
{{- .Values.auth.existingSecret | default (include "common.name" (dict "root" . "component" "auth")) -}}
{{- end }}
{{- define "spanreplay.clickhouseSecret" -}}
{{- .Values.clickhouse.auth.existingSecret | default (include "common.name" (dict "root" . "component" "clickhouse")) -}}
{{- end }}
{{- define "spanreplay.phoenixSecret" -}}
{{- .Values.phoenix.auth.existingSecret | default (include "common.name" (dict "root" . "component" "phoenix")) -}}
{{- end }}

{{/* Name of ClickHouse's objects; of an operator's resource shorter, since what the operator makes goes on behind it. */}}
{{- define "spanreplay.clickhouseName" -}}
{{- $max := ternary 36 63 (eq .Values.clickhouse.mode "operator") -}}
{{- include "common.shorten" (dict "name" (include "common.name" (dict "root" . "component" "clickhouse")) "max" $max) -}}
{{- end }}

{{- define "spanreplay.clickhouseHost" -}}
{{- $name := include "spanreplay.clickhouseName" . -}}
{{- if eq .Values.clickhouse.mode "external" -}}
{{ .Values.clickhouse.external.host }}
{{- else if eq .Values.clickhouse.mode "demo" -}}
{{ $name }}
{{- else if eq .Values.clickhouse.operator.kind "official" -}}
{{ $name }}-clickhouse-headless
{{- else -}}
clickhouse-{{ $name }}
{{- end -}}
{{- end }}

{{- define "spanreplay.clickhousePort" -}}
{{- ternary .Values.clickhouse.external.port 8123 (eq .Values.clickhouse.mode "external") -}}
{{- end }}

{{- define "spanreplay.clickhouseUser" -}}
{{- /* The official operator sets the password of the user `default` only */ -}}
{{- $official := and (eq .Values.clickhouse.mode "operator") (eq .Values.clickhouse.operator.kind "official") -}}
{{- ternary "default" .Values.clickhouse.auth.username $official -}}
{{- end }}

{{- define "spanreplay.storeEnv" -}}
{{- $secure := and (eq .Values.clickhouse.mode "external") .Values.clickhouse.external.secure -}}
- name: SPANREPLAY_STORE
  value: {{ printf "%s://%s:%s/%s" (ternary "https" "http" $secure) (include "spanreplay.clickhouseHost" .) (include "spanreplay.clickhousePort" .) .Values.clickhouse.database | quote }}
- name: SPANREPLAY_STORE_USER
  value: {{ include "spanreplay.clickhouseUser" . | quote }}
- name: SPANREPLAY_STORE_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "spanreplay.clickhouseSecret" . }}
      key: {{ .Values.clickhouse.auth.key }}
{{- end }}

{{- define "spanreplay.baseEnv" -}}
- name: HOME
  value: /tmp
- name: SPANREPLAY_DIR
  value: /tmp/spanreplay
{{- end }}

{{- define "spanreplay.tokenEnv" -}}
- name: SPANREPLAY_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "spanreplay.authSecret" . }}
      key: {{ .Values.auth.key }}
{{- end }}

{{/* Where collectors and replay service find Phoenix; empty without one. */}}
{{- define "spanreplay.phoenixUrl" -}}
{{- if eq .Values.phoenix.mode "bundled" -}}
http://{{ include "common.name" (dict "root" . "component" "phoenix") }}:6006
{{- else if eq .Values.phoenix.mode "external" -}}
{{ .Values.phoenix.external.url }}
{{- end -}}
{{- end }}

{{- define "spanreplay.phoenixEnv" -}}
{{- if eq .Values.phoenix.mode "bundled" -}}
- name: PHOENIX_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "spanreplay.phoenixSecret" . }}
      key: admin-secret
{{- else if and (eq .Values.phoenix.mode "external") .Values.phoenix.external.existingSecret -}}
- name: PHOENIX_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.phoenix.external.existingSecret }}
      key: {{ .Values.phoenix.external.key }}
{{- end -}}
{{- end }}

{{/* Arguments of both servers: where they listen, whom they answer. */}}
{{- define "spanreplay.accessArgs" -}}
- --host=0.0.0.0
{{- with include "spanreplay.phoenixUrl" . }}
- --phoenix-url={{ . }}
{{- end }}
{{- if .Values.tls.existingSecret }}
- --tls-cert=/etc/spanreplay/tls/tls.crt
- --tls-key=/etc/spanreplay/tls/tls.key
{{- if .Values.tls.clientCa }}
- --tls-client-ca=/etc/spanreplay/tls/ca.crt
{{- end }}
{{- else }}
- --allow-plaintext
{{- end }}
{{- if .Values.auth.tokensSecret }}
- --tokens=/etc/spanreplay/tokens/tokens.json
{{- end }}
{{- end }}

{{- define "spanreplay.accessMounts" -}}
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/spanreplay/tls
  readOnly: true
{{- end }}
{{- if .Values.auth.tokensSecret }}
- name: tokens
  mountPath: /etc/spanreplay/tokens
  readOnly: true
{{- end }}
{{- end }}

{{- define "spanreplay.accessVolumes" -}}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- with .Values.auth.tokensSecret }}
- name: tokens
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: {{ $.Values.auth.tokensKey }}
        path: tokens.json
{{- end }}
{{- end }}

{{/* How the collector is asked: with a client CA nobody without a certificate gets an answer, so the port must do. */}}
{{- define "spanreplay.httpProbe" -}}
{{- if .root.Values.tls.clientCa -}}
tcpSocket:
  port: otlp-http
{{- else -}}
httpGet:
  path: {{ .path }}
  port: otlp-http
  {{- if .root.Values.tls.existingSecret }}
  scheme: HTTPS
  {{- end }}
{{- end -}}
{{- end }}

{{/* The kubelet speaks gRPC without TLS only. */}}
{{- define "spanreplay.grpcProbe" -}}
{{- if .Values.tls.existingSecret -}}
tcpSocket:
  port: grpc
{{- else -}}
grpc:
  port: 4319
{{- end -}}
{{- end }}

{{- define "spanreplay.storageClass" -}}
{{- with .Values.global.storageClass }}
storageClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Egress to ClickHouse and Phoenix, from whoever uses them. */}}
{{- define "spanreplay.clickhouseEgress" -}}
- ports:
    - protocol: TCP
      port: {{ include "spanreplay.clickhousePort" . }}
  {{- if eq .Values.clickhouse.mode "demo" }}
  to:
    {{- include "common.peer" (dict "root" . "component" "clickhouse") | nindent 4 }}
  {{- else if .Values.networkPolicy.clickhouse }}
  to:
    {{- toYaml .Values.networkPolicy.clickhouse | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "spanreplay.phoenixEgress" -}}
{{- if eq .Values.phoenix.mode "bundled" }}
- ports:
    - protocol: TCP
      port: 6006
  to:
    {{- include "common.peer" (dict "root" . "component" "phoenix") | nindent 4 }}
{{- else if eq .Values.phoenix.mode "external" }}
{{- $url := urlParse .Values.phoenix.external.url }}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) }}
- ports:
    - protocol: TCP
      port: {{ $port | default (ternary 443 80 (eq $url.scheme "https")) }}
  {{- with .Values.networkPolicy.phoenix }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* "yes" where there is a pod of `helm test`: it has no client certificate. */}}
{{- define "spanreplay.hasTest" -}}
{{- if and .Values.collector.enabled .Values.replay.enabled (not .Values.tls.clientCa) }}yes{{ end -}}
{{- end }}
