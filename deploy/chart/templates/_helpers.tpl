{{/* SPDX-License-Identifier: Apache-2.0 OR MIT */}}
{{- define "portolan.labels" -}}
app.kubernetes.io/name: portolan
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Two releases, one that serves and one that drains, may stand side by side. */}}
{{- define "portolan.name" -}}
{{ get (dict "drain-labelled" "portolan-drain") .Values.mode | default "portolan" }}
{{- end }}

{{- define "portolan.image" -}}
{{- with .Values.image.digest }}
{{- printf "%s@%s" $.Values.image.repository . }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "portolan.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "portolan.name" .) }}
{{- end }}

{{/* Labels and annotations of an object for monitoring: the chart's own and those of its values. Called with the root and the values. */}}
{{- define "portolan.described" -}}
labels:
  {{- include "portolan.labels" .root | nindent 2 }}
  {{- with .values.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "portolan.settings" -}}
{{- $settings := .Values.settings }}
{{- if .Values.gatewayAPI }}
{{- $settings = mergeOverwrite (deepCopy $settings) (dict "portolan" (dict "gatewayAPI" true)) }}
{{- end -}}
{{- if .Values.gatewayServices }}
{{- $settings = mergeOverwrite (deepCopy $settings) (dict "portolan" (dict "gatewayServices" true)) }}
{{- end -}}
{{- if .Values.clientAddress.enabled }}
{{- $agents := printf "%s/%s-agents" .Release.Namespace (include "portolan.name" .) }}
{{- $own := dict "clientAddressKeys" "/etc/portolan-keys/keys" "agentsService" $agents }}
{{- $settings = mergeOverwrite (deepCopy $settings) (dict "portolan" $own) }}
{{- end -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
{{ toYaml $settings }}
{{ end }}

{{- define "portolan.securityContext" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [BPF, NET_ADMIN, PERFMON]
seccompProfile: {type: RuntimeDefault}
appArmorProfile: {type: Unconfined}
seLinuxOptions: {type: spc_t}
{{- end }}

{{/* Of containers that need nothing of the node. */}}
{{- define "portolan.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The port of an address such as 0.0.0.0:10256 or [::]:10256; called with the address and the port of one without. */}}
{{- define "portolan.port" -}}
{{ regexFind "^(\\[.*\\]|[^:]*):[0-9]+$" (first .) | splitList ":" | last | default (last .) }}
{{- end }}

{{/* The IP address of an address such as 127.0.0.1:10247 or [::1]:10247. */}}
{{- define "portolan.host" -}}
{{ regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" }}
{{- end }}
