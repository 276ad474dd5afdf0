{{- define "spanreplay.clickhouse" -}}
checksums:
  checksum/config: {{ include "spanreplay.clickhouseConfig" . | sha256sum }}
container:
  # Past the image's entrypoint, which writes below /etc: the file system is read-only
  command: [/usr/bin/clickhouse-server]
  args: [--config-file=/etc/clickhouse-server/config.xml]
  env:
    - name: CLICKHOUSE_PASSWORD
      valueFrom:
        secretKeyRef:
          name: {{ include "spanreplay.clickhouseSecret" . }}
          key: {{ .Values.clickhouse.auth.key }}
  ports:
    - name: http
      containerPort: 8123
  startupProbe:
    httpGet:
      path: /ping
      port: http
    {{- include "common.startup" .Values.clickhouse.startupSeconds | nindent 4 }}
  livenessProbe:
    httpGet:
      path: /ping
      port: http
    periodSeconds: 20
    timeoutSeconds: 10
    failureThreshold: 6
  readinessProbe:
    httpGet:
      path: /ping
      port: http
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: 3
  volumeMounts:
    - name: data
      mountPath: /var/lib/clickhouse
    - name: logs
      mountPath: /var/log/clickhouse-server
    - name: config
      mountPath: /etc/clickhouse-server/config.d/spanreplay.xml
      subPath: server.xml
      readOnly: true
    - name: config
      mountPath: /etc/clickhouse-server/users.d/spanreplay.xml
      subPath: users.xml
      readOnly: true
volumes:
  - name: logs
    emptyDir:
      sizeLimit: 256Mi
  - name: config
    configMap:
      name: {{ include "common.name" (dict "root" . "component" "clickhouse") }}
{{- end }}

{{- define "spanreplay.clickhouseConfig" -}}
server.xml: |
  <clickhouse>
    <listen_host>0.0.0.0</listen_host>
    <logger>
      <level>warning</level>
      <console>1</console>
      <log remove="remove"/>
      <errorlog remove="remove"/>
    </logger>
    <tcp_port remove="remove"/>
    <mysql_port remove="remove"/>
    <postgresql_port remove="remove"/>
    <interserver_http_port remove="remove"/>
  </clickhouse>
users.xml: |
  <clickhouse>
    <users>
      {{- if ne .Values.clickhouse.auth.username "default" }}
      <default remove="remove"/>
      {{- end }}
      <{{ .Values.clickhouse.auth.username }} {{- if eq .Values.clickhouse.auth.username "default" }} replace="replace"{{ end }}>
        <password from_env="CLICKHOUSE_PASSWORD"/>
        <networks><ip>::/0</ip></networks>
        <profile>default</profile>
        <quota>default</quota>
      </{{ .Values.clickhouse.auth.username }}>
    </users>
  </clickhouse>
{{- end }}
