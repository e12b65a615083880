{{- define "tailrace.cluster" -}}
{{- $name := .Values.cluster.name | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $name) -}}
{{- fail (printf "%q cannot be the name of a cluster, since Services are named after it: set cluster.name to one that begins with a small letter and has small letters, digits and dashes" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "tailrace.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "tailrace.labels" -}}
app.kubernetes.io/name: tailrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tailrace.etcdName" -}}{{ include "tailrace.cluster" . }}-etcd{{- end -}}
{{- define "tailrace.operatorName" -}}{{ include "tailrace.cluster" . }}-operator{{- end -}}

{{- define "tailrace.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- if .Values.externalEtcd.endpoints -}}
{{- fail "externalEtcd.endpoints names an etcd, and etcd.enabled is true: set etcd.enabled=false to use yours, or leave the endpoints empty" -}}
{{- end -}}
{{- $name := include "tailrace.etcdName" . -}}
{{- $ns := .Release.Namespace -}}
{{- range $i := until (int .Values.etcd.replicas) }}
- {{ printf "%s-%d.%s.%s.svc:2379" $name $i $name $ns }}
{{- end -}}
{{- else -}}
{{- required "externalEtcd.endpoints is empty and etcd.enabled is false: which etcd?" (.Values.externalEtcd.endpoints | first) | empty | ternary "" "" -}}
{{- range .Values.externalEtcd.endpoints }}
- {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tailrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tailrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tailrace.resourceName" -}}
{{- if not (regexMatch "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$" .name) -}}
{{- fail (printf "%s.%s: the name of a resource has small letters, digits, dashes and dots%s" .under .name .hint) -}}
{{- end -}}
{{- .name -}}
{{- end -}}
