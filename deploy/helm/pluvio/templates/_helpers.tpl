{{- define "pluvio.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}{{ $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- end }}

{{- define "pluvio.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pluvio.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "pluvio.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pluvio.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "pluvio.redisSecret" -}}
{{ default (printf "%s-redis" (include "pluvio.fullname" .)) .Values.redis.auth.existingSecret }}
{{- end }}

{{/* Where the coordinators are, each by the name of its pod. */}}
{{- define "pluvio.coordinators" -}}
{{- $name := printf "%s-coordinator" (include "pluvio.fullname" .) -}}
{{- $all := list -}}
{{- range $i := until (int .Values.coordinator.replicas) -}}
{{- $all = append $all (printf "%s-%d.%s.%s.svc:7700" $name $i $name $.Release.Namespace) -}}
{{- end -}}
{{ join "," $all }}
{{- end }}

{{/* Options of all processes, as items of a list. */}}
{{- define "pluvio.commonArgs" -}}
- --listen=$(POD_IP):7700
- --admin=0.0.0.0:7701
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The environment of all processes. Commands that are run inside a pod find the cluster by it. */}}
{{- define "pluvio.env" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: PLUVIO_COORDINATOR, value: {{ include "pluvio.coordinators" . | quote }}}
{{- if .Values.tls.existingSecret }}
- {name: PLUVIO_TLS_CERT, value: /etc/pluvio/tls/tls.crt}
- {name: PLUVIO_TLS_KEY, value: /etc/pluvio/tls/tls.key}
- {name: PLUVIO_TLS_CA, value: /etc/pluvio/tls/ca.crt}
- {name: PLUVIO_TLS_NAME, value: {{ .Values.tls.name | quote }}}
- {name: PLUVIO_TLS_AUTH_CLIENTS, value: {{ .Values.tls.authClients | quote }}}
{{- end }}
{{- end }}

{{- define "pluvio.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pluvio.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The three probes. A server that waits for others is alive and not ready. */}}
{{- define "pluvio.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (not (empty .Values.tls.existingSecret)) -}}
startupProbe:
  httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "pluvio.check" -}}
{{- if and (gt (int .Values.coordinator.replicas) 1) (empty .Values.coordinator.metadata) }}
{{- fail "coordinator.replicas > 1 needs coordinator.metadata: a directory has one coordinator" }}
{{- end }}
{{- if ne (empty .Values.coordinator.metadataUser) (empty .Values.coordinator.metadataSecret) }}
{{- fail "coordinator.metadataUser and coordinator.metadataSecret belong together" }}
{{- end }}
{{- if and .Values.coordinator.metadataUser (empty .Values.coordinator.metadata) }}
{{- fail "coordinator.metadataUser is for coordinator.metadata in etcd or ZooKeeper" }}
{{- end }}
{{- if gt (int .Values.server.minReplicas) (int .Values.server.writeReplicas) }}
{{- fail "server.minReplicas is more than server.writeReplicas" }}
{{- end }}
{{- end }}
