{{- define "slackwater.labels" -}}
app.kubernetes.io/name: slackwater
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "slackwater.selector" -}}
app.kubernetes.io/name: slackwater
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "slackwater.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "slackwater.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "slackwater.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* Keys are read only from files that nobody else can read, and files of a secret are readable by the pod's group: they
are copied into memory first, `key` as own.key. After a change of the secret, restart the pods. */}}
{{- define "slackwater.copyKeys" -}}
- name: keys
  image: {{ include "slackwater.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command:
    - sh
    - -ec
    - |
      umask 077
      key="{{ .key }}"
      if ! test -r "/secret/$key"; then
        echo "the secret has no $key: every process has a key of its own" >&2
        exit 1
      fi
      cat "/secret/$key" > /keys/own.key
      for file in {{ join " " .files }}; do cat "/secret/$file" > "/keys/$file"; done
  env:
    - name: POD_NAME
      valueFrom:
        fieldRef: { fieldPath: metadata.name }
    - name: NODE_NAME
      valueFrom:
        fieldRef: { fieldPath: spec.nodeName }
  securityContext: {{- include "slackwater.containerSecurity" .root | nindent 4 }}
  resources:
    requests: { cpu: 10m, memory: 16Mi }
    limits: { memory: 64Mi }
  volumeMounts:
    - { name: secret, mountPath: /secret, readOnly: true }
    - { name: keys, mountPath: /keys }
{{- end }}

{{- define "slackwater.keyVolumes" -}}
- name: secret
  secret: { secretName: {{ .secret | quote }}, defaultMode: 0440 }
- name: keys
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
{{- end }}

{{- define "slackwater.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
