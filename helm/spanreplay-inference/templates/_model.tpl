{{/* A model with the defaults under what it says itself. */}}
{{- define "inference.model" -}}
{{- mergeOverwrite (deepCopy .root.Values.defaults) .model | toYaml -}}
{{- end }}

{{/* The name that requests give the model: of transformers' server its path and commit, of the others the key in `models`. */}}
{{- define "inference.served" -}}
{{- if ne .m.engine "transformers" -}}
{{ .name }}
{{- else if regexMatch "^[0-9a-f]{40}$" .m.revision -}}
{{ .m.model }}@{{ .m.revision }}
{{- else -}}
{{ .m.model }}
{{- end -}}
{{- end }}

{{/* "yes" if the model is computed with our kernels, so that its responses carry the line. */}}
{{- define "inference.line" -}}
{{- if or (eq .m.engine "transformers") .m.kernels.plugin }}yes{{ end -}}
{{- end }}

{{/* OpenAI's system_fingerprint of a determinism line: its plan, and a hash of all of it, as the package computes it. */}}
{{- define "inference.fingerprint" -}}
{{- $plan := regexFind "(^|; )plan=[0-9a-f]+" . | trimPrefix "; " | trimPrefix "plan=" -}}
{{- join "-" (compact (list "fp" $plan (sha256sum . | trunc 16))) -}}
{{- end }}

{{/* The completion that a probe asks for, with the header that it must carry. */}}
{{- define "inference.probe" -}}
command:
  - python3
  - -m
  - spanreplay_kernels.probe
  - {{ .verb }}
  - --url=http://127.0.0.1:8000
  - {{ printf "--model=%s" (include "inference.served" .) | quote }}
{{- if include "inference.line" . }}
  - --header
  {{- with .m.kernels.expectedLine }}
  - {{ printf "--expect=%s" . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
What the bits of an answer depend on, hashed: images, command, environment, GPUs. A pod carries it as a label, and a
Service asks pods of its own hash: an update one by one never serves two kinds of answers. No selector of a
Deployment holds it: that one is for ever.
*/}}
{{- define "inference.answers" -}}
{{- $container := (fromYaml (include "inference.pod" .)).container -}}
{{- $images := list (include "common.image" (dict "root" .root "image" (get .root.Values.images .m.engine) "where" (printf "images.%s" .m.engine))) -}}
{{- if eq .m.kernels.from "initContainer" }}{{ $images = append $images (include "common.image" (dict "root" .root "image" .root.Values.images.kernels "where" "images.kernels")) }}{{ end -}}
{{- list $images $container.command $container.args $container.env .m.extraArgs .m.extraEnv .m.extraEnvFrom .m.gpuProduct .m.gpuResource | toJson | sha256sum | trunc 16 -}}
{{- end }}

{{- define "inference.pod" -}}
{{- $m := .m }}
{{- $commit := regexMatch "^[0-9a-f]{40}$" $m.revision }}
checksums:
  spanreplay.dev/model: {{ $m.model | quote }}
  spanreplay.dev/revision: {{ $m.revision | quote }}
  spanreplay.dev/engine: {{ $m.engine | quote }}
  spanreplay.dev/dtype: {{ $m.dtype | quote }}
  spanreplay.dev/tensor-parallel: {{ max 1 (int $m.gpus) | quote }}
container:
  name: engine
  {{- if eq $m.engine "vllm" }}
  command: [vllm, serve]
  args:
    - {{ $m.model | quote }}
    {{- if $commit }}
    - {{ printf "--revision=%s" $m.revision | quote }}
    - {{ printf "--tokenizer-revision=%s" $m.revision | quote }}
    {{- end }}
    - {{ printf "--served-model-name=%s" .name | quote }}
    - --host=0.0.0.0
    - --port=8000
    - --seed=0
    - --dtype={{ $m.dtype }}
    - --tensor-parallel-size={{ int $m.gpus }}
    {{- with int $m.maxModelLen }}
    - --max-model-len={{ . }}
    {{- end }}
    {{- if $m.kernels.plugin }}
    - --attention-backend=CUSTOM
    - --middleware=spanreplay_kernels.engines.vllm.header
    {{- with $m.kernels.expectedLine }}
    - --fingerprint-mode=custom
    - --fingerprint-value={{ include "inference.fingerprint" . }}
    {{- end }}
    {{- else if $m.attentionBackend }}
    - --attention-backend={{ $m.attentionBackend }}
    {{- end }}
  {{- else if eq $m.engine "sglang" }}
  command: [python3, -m, sglang.launch_server]
  args:
    - {{ printf "--model-path=%s" $m.model | quote }}
    {{- if $commit }}
    - {{ printf "--revision=%s" $m.revision | quote }}
    {{- end }}
    - {{ printf "--served-model-name=%s" .name | quote }}
    - --host=0.0.0.0
    - --port=8000
    - --random-seed=0
    - --enable-deterministic-inference
    - --attention-backend={{ ternary "spanreplay" ($m.attentionBackend | default "triton") $m.kernels.plugin }}
    - --dtype={{ $m.dtype }}
    - --tp-size={{ int $m.gpus }}
    {{- with int $m.maxModelLen }}
    - --context-length={{ . }}
    {{- end }}
  {{- else }}
  command: [python3, -m, spanreplay_kernels, serve]
  args:
    - {{ $m.model | quote }}
    {{- if $commit }}
    - {{ printf "--revision=%s" $m.revision | quote }}
    {{- end }}
    - --host=0.0.0.0
    - --port=8000
    - --dtype={{ $m.dtype }}
    - --device={{ ternary "cuda:0" "cpu" (gt (int $m.gpus) 0) }}
  {{- end }}
  env:
    {{- $env := dict
      "HOME" "/cache/home" "USER" "spanreplay" "HF_HOME" "/cache/huggingface" "XDG_CACHE_HOME" "/cache/xdg"
      "TRITON_CACHE_DIR" "/cache/triton" "TORCHINDUCTOR_CACHE_DIR" "/cache/inductor" "PYTHONUNBUFFERED" "1"
      "HF_HUB_DISABLE_TELEMETRY" "1" "DO_NOT_TRACK" "1" }}
    {{- if not $m.huggingFace.download }}{{ $_ := set $env "HF_HUB_OFFLINE" "1" }}{{ end }}
    {{- if eq $m.kernels.from "initContainer" }}{{ $_ := set $env "PYTHONPATH" "/opt/spanreplay-kernels" }}{{ end }}
    {{- if eq $m.engine "vllm" }}
    {{- $_ := set $env "VLLM_BATCH_INVARIANT" "1" }}
    {{- $_ := set $env "VLLM_CACHE_ROOT" "/cache/vllm" }}
    {{- $_ := set $env "VLLM_NO_USAGE_STATS" "1" }}
    {{- if $m.kernels.plugin }}{{ $_ := set $env "VLLM_PLUGINS" "spanreplay" }}{{ end }}
    {{- else if eq $m.engine "sglang" }}
    {{- if $m.kernels.plugin }}{{ $_ := set $env "SGLANG_PLUGINS" "spanreplay" }}{{ end }}
    {{- end }}
    {{- range $key, $value := $env }}
    - name: {{ $key }}
      value: {{ $value | quote }}
    {{- end }}
    {{- with $m.huggingFace.existingSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: {{ $m.huggingFace.key }}
    {{- end }}
  ports:
    - name: http
      containerPort: 8000
  startupProbe:
    exec:
      {{- include "inference.probe" (merge (dict "verb" "warm-up") .) | nindent 6 }}
        - --tokens={{ join "," $m.startup.warmUpTokens }}
    periodSeconds: 10
    timeoutSeconds: 300
    failureThreshold: {{ div (add (int $m.startup.maxSeconds) 9) 10 }}
  readinessProbe:
    exec:
      {{- include "inference.probe" (merge (dict "verb" "ready") .) | nindent 6 }}
    periodSeconds: 30
    timeoutSeconds: 30
    failureThreshold: 3
  livenessProbe:
    tcpSocket:
      port: http
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 10
  volumeMounts:
    - name: cache
      mountPath: /cache
    - name: shm
      mountPath: /dev/shm
    {{- if eq $m.kernels.from "initContainer" }}
    - name: kernels
      mountPath: /opt/spanreplay-kernels
      readOnly: true
    {{- end }}
{{- if eq $m.kernels.from "initContainer" }}
initContainers:
  - name: kernels
    image: {{ include "common.image" (dict "root" .root "image" .root.Values.images.kernels "where" "images.kernels") }}
    imagePullPolicy: {{ .root.Values.images.kernels.pullPolicy }}
    resources:
      requests: {cpu: 50m, memory: 32Mi}
      limits: {memory: 64Mi}
    volumeMounts:
      - name: kernels
        mountPath: /opt/spanreplay-kernels
{{- end }}
volumes:
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ $m.shmSize }}
  {{- if eq $m.kernels.from "initContainer" }}
  - name: kernels
    emptyDir:
      sizeLimit: 256Mi
  {{- end }}
  - name: cache
    {{- if eq $m.cache.type "emptyDir" }}
    emptyDir:
      sizeLimit: {{ $m.cache.size }}
    {{- else }}
    persistentVolumeClaim:
      claimName: {{ ternary (include "common.name" .) $m.cache.existingClaim (eq $m.cache.type "pvc") }}
    {{- end }}
{{- end }}
