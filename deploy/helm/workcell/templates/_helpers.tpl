{{- define "workcell.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}
{{- define "workcell.labels" -}}
app.kubernetes.io/name: workcell-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "workcell.workerLabels" -}}
app.kubernetes.io/name: workcell-worker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "workcell.account" -}}{{ .Values.serviceAccount.name | default (include "workcell.name" .) }}{{- end }}
{{- define "workcell.sandboxes" -}}{{ .Values.sandboxes.namespace | default .Release.Namespace }}{{- end }}
{{- define "workcell.config" -}}
{{- if .Values.sandboxes.claims }}{{ fail "sandboxes.claims is no longer supported: use pool to keep sandboxes ready" }}{{ end -}}
{{- $kubernetes := dict "namespace" (include "workcell.sandboxes" .) -}}
{{- with .Values.guestImage }}{{ $_ := set $kubernetes "guest_image" . }}{{ end -}}
{{- with .Values.sandboxes.storageClass }}{{ $_ := set $kubernetes "storage_class" . }}{{ end -}}
{{- with .Values.sandboxes.networkPolicy }}{{ $_ := set $kubernetes "network_policy" . }}{{ end -}}
{{- $config := dict "backend" "kubernetes" "kubernetes" $kubernetes -}}
{{- with .Values.pool }}{{ $_ := set $config "pool" . }}{{ end -}}
{{- if .Values.telemetry.endpoint }}{{ $_ := set $config "telemetry" .Values.telemetry }}{{ end -}}
{{ mergeOverwrite $config (deepCopy .Values.config) | toYaml }}
{{- end }}
{{/* The spec of a pod of the server or of a worker: args, grace and resources are theirs, serves is the server's. */}}
{{- define "workcell.pod" -}}
serviceAccountName: {{ include "workcell.account" . }}
enableServiceLinks: false # WORKCELL_... of a service would be taken for settings
terminationGracePeriodSeconds: {{ .grace }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: workcell
    image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: {{- toYaml .args | nindent 6 }}
    env:
      - {name: WORKCELL_CONFIG, value: /etc/workcell/workcell.yaml}
      {{- if .serves }}
      - name: WORKCELL_MCP_TOKEN
        valueFrom: {secretKeyRef: {name: {{ .Values.token.secret }}, key: {{ .Values.token.key }}}}
      {{- end }}
      {{- with .Values.database.secret }}
      - name: WORKCELL_STATE
        valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.database.key }}}}
      {{- end }}
      {{- with .Values.extraEnv }}{{ toYaml . | nindent 6 }}{{ end }}
    {{- if .serves }}
    ports: [{name: http, containerPort: 8765}]
    readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 5}
    livenessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 20, timeoutSeconds: 5}
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources: {{- toYaml .resources | nindent 6 }}
    volumeMounts:
      - {name: config, mountPath: /etc/workcell}
      - {name: home, mountPath: /var/lib/workcell}
      - {name: tmp, mountPath: /tmp}
volumes:
  - {name: config, configMap: {name: {{ include "workcell.name" . }}}}
  - {name: home, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
