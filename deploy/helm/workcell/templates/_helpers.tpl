{{- define "workcell.name" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) }}{{ fail "the release's name must start with a letter and have only letters, digits, and hyphens: it names a Service" }}{{ end -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{/* The labels that select pods. A new version does not change them. */}}
{{- define "workcell.selector" -}}
app.kubernetes.io/name: workcell-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "workcell.workerSelector" -}}
app.kubernetes.io/name: workcell-worker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "workcell.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: workcell
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- define "workcell.labels" -}}
{{ include "workcell.selector" . }}
{{ include "workcell.commonLabels" . }}
{{- end }}
{{- define "workcell.workerLabels" -}}
{{ include "workcell.workerSelector" . }}
{{ include "workcell.commonLabels" . }}
{{- end }}
{{- define "workcell.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "workcell.name" .) }}
{{- else }}{{ required "serviceAccount.create=false needs serviceAccount.name" .Values.serviceAccount.name }}{{ end }}
{{- end }}
{{/* The name of an object outside namespaces. The hash keeps two releases apart: a-b in c, and b in c-a. */}}
{{- define "workcell.cluster" -}}
{{- $name := include "workcell.name" . -}}
{{ printf "%s-%s" .Release.Namespace $name | trunc 54 | trimSuffix "-" }}-{{ printf "%s/%s" .Release.Namespace $name | sha256sum | trunc 8 }}
{{- end }}
{{- define "workcell.sandboxes" -}}{{ .Values.sandboxes.namespace | default .Release.Namespace }}{{- end }}
{{- define "workcell.config" -}}
{{- $kubernetes := dict "namespace" (include "workcell.sandboxes" .) -}}
{{- with .Values.guestImage }}{{ $_ := set $kubernetes "guest_image" . }}{{ end -}}
{{- with .Values.sandboxes.storageClass }}{{ $_ := set $kubernetes "storage_class" . }}{{ end -}}
{{- with .Values.sandboxes.networkPolicy }}{{ $_ := set $kubernetes "network_policy" . }}{{ end -}}
{{- with .Values.sandboxes.nodeSelector }}{{ $_ := set $kubernetes "node_selector" . }}{{ end -}}
{{- with .Values.sandboxes.tolerations }}{{ $_ := set $kubernetes "tolerations" . }}{{ end -}}
{{- with .Values.sandboxes.priorityClassName }}{{ $_ := set $kubernetes "priority_class" . }}{{ end -}}
{{- with .Values.sandboxes.labels }}{{ $_ := set $kubernetes "labels" . }}{{ end -}}
{{- with .Values.sandboxes.annotations }}{{ $_ := set $kubernetes "annotations" . }}{{ end -}}
{{- $secrets := list -}}
{{- range .Values.sandboxes.imagePullSecrets }}{{ $secrets = append $secrets .name }}{{ end -}}
{{- with $secrets }}{{ $_ := set $kubernetes "image_pull_secrets" . }}{{ end -}}
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
      {{- if and .serves .Values.token.secret }}
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
    startupProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 2, failureThreshold: 30}
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
      {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 6 }}{{ end }}
volumes:
  - {name: config, configMap: {name: {{ include "workcell.name" . }}}}
  - {name: home, emptyDir: {sizeLimit: {{ .Values.storage.home }}}}
  - {name: tmp, emptyDir: {sizeLimit: {{ .Values.storage.tmp }}}}
  {{- with .Values.extraVolumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
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
{{/* The metadata of these pods. */}}
{{- define "workcell.podMeta" -}}
labels:
  {{- include .selector . | nindent 2 }}
  {{- with .Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  checksum/config: {{ include "workcell.config" . | sha256sum }}
  {{- with .Values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{/* Nodes are drained one pod at a time. A budget for a single pod would block the drain. */}}
{{- define "workcell.budget" -}}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include .labels . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow # pods that never get ready do not block the drain
  selector:
    matchLabels: {{- include .selector . | nindent 6 }}
{{- end }}
{{- end }}
