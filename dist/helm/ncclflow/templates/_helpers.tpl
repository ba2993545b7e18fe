{{- define "ncclflow.selector" -}}
app.kubernetes.io/name: ncclflow
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ncclflow.labels" -}}
{{ include "ncclflow.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
