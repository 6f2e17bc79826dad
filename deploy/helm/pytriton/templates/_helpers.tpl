{{- define "pytriton.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pytriton.image" -}}
{{- $tag := .Values.image.tag -}}
{{- /* A whole number in a file of values is a float here, which would be written as 2.02e+07. */ -}}
{{- if kindIs "float64" $tag }}{{ $tag = int64 $tag }}{{ end -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion $tag }}
{{- end -}}

{{- define "pytriton.instanceLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pytriton.labels" -}}
{{ include "pytriton.instanceLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "pytriton.serverLabels" -}}
{{ include "pytriton.instanceLabels" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "pytriton.isScaled" -}}
{{- if .Values.autoscaling.kind -}}
{{- if gt (int .Values.autoscaling.minReplicas) 1 }}true{{ end -}}
{{- else if gt (int .Values.replicas) 1 -}}
true
{{- end -}}
{{- end -}}

{{- define "pytriton.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "pytriton.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end -}}

{{- define "pytriton.modelVolume" -}}
- name: models
  persistentVolumeClaim:
    claimName: {{ .Values.models.claim }}
    readOnly: true
{{- end -}}

{{- define "pytriton.modelMount" -}}
- name: models
  mountPath: /models
  readOnly: true
{{- end -}}

{{- define "pytriton.rayName" -}}
{{ include "pytriton.fullname" . }}-ray
{{- end -}}

{{- define "pytriton.rayAddress" -}}
{{- default (printf "%s-head-svc:6379" (include "pytriton.rayName" .)) .Values.ray.address -}}
{{- end -}}

{{- /* What the server and its node tell Ray's cluster. KubeRay gives its own pods the same. */ -}}
{{- define "pytriton.rayEnvironment" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
- name: RAY_AUTH_MODE
  value: {{ .Values.ray.auth.mode }}
{{- if eq .Values.ray.auth.mode "token" }}
- name: RAY_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ default (include "pytriton.rayName" .) .Values.ray.auth.secretName }}
      key: auth_token
{{- end }}
{{- end -}}

{{- /* Ray's agent answers on the pod's address. These are given, as KubeRay's own need wget. */ -}}
{{- define "pytriton.rayProbes" -}}
startupProbe:
  httpGet:
    path: /api/local_raylet_healthz
    port: 52365
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 90
livenessProbe:
  httpGet:
    path: /api/local_raylet_healthz
    port: 52365
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}
