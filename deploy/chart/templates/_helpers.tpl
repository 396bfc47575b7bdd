{{/* SPDX-License-Identifier: Apache-2.0 OR MIT */}}
{{- define "portolan.labels" -}}
app.kubernetes.io/name: portolan
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Two releases, one that serves and one that drains or counts, may stand side by side. */}}
{{- define "portolan.name" -}}
{{ get (dict "drain-labelled" "portolan-drain" "shadow" "portolan-shadow") .Values.mode | default "portolan" }}
{{- end }}

{{- define "portolan.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "portolan.settings" -}}
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
{{ toYaml .Values.settings }}
{{ end }}

{{/* The name ends in a digest of the content, so other settings replace the pods. As kustomize makes it, which leaves the name out. */}}
{{- define "portolan.configMap" -}}
{{- $content := dict "kind" "ConfigMap" "name" "" "data" (dict "config.conf" (include "portolan.settings" .)) -}}
{{- $digest := $content | toJson | sha256sum | trunc 10 -}}
portolan-{{ $digest | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" }}
{{- end }}

{{- define "portolan.securityContext" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [BPF, NET_ADMIN, PERFMON, SYS_PTRACE]
seccompProfile: {type: RuntimeDefault}
appArmorProfile: {type: Unconfined}
seLinuxOptions: {type: spc_t}
{{- end }}
