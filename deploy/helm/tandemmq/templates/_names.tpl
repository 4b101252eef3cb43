{{- define "tandemmq.labels" -}}
app.kubernetes.io/name: tandemmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
