{{/* Labels of every object. */}}
{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels that select the controller's pods. */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: controller
{{- end }}

{{/* Refuses the values of an older chart, which lack what is new in this one, and those that null has taken away. */}}
{{- define "muster.complete" -}}
{{- /* Left without keys, it takes the default away. */}}
{{- if not .Values.config }}{{ $_ := set .Values "config" dict }}{{ end -}}
{{- range $path := .Files.Get "files/switches.json" | fromJsonArray -}}
{{- $at := $.Values -}}
{{- range splitList "." $path -}}
{{- if not (and (kindIs "map" $at) (hasKey $at .)) -}}
{{- fail (printf "the value %s is missing: null takes its default away, so leave it out; and --reuse-values keeps the defaults of the older chart: upgrade with --reset-then-reuse-values, or with --values and all that you set" $path) -}}
{{- end -}}
{{- $at = index $at . -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What holds jobs here: policy or webhook. */}}
{{- define "muster.hold" -}}
{{- if ne .Values.hold "auto" -}}
{{ .Values.hold }}
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
policy
{{- else -}}
webhook
{{- end }}
{{- end }}

{{/* "true" for {value: auto|true|false, api: group/version/Kind}. */}}
{{- define "muster.wanted" -}}
{{- if eq (toString .value) "auto" -}}
{{ .root.Capabilities.APIVersions.Has .api }}
{{- else -}}
{{ .value }}
{{- end }}
{{- end }}

{{- define "muster.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Port of an address "host:port"; "0" for none. */}}
{{- define "muster.port" -}}
{{ splitList ":" . | last }}
{{- end }}

{{- define "muster.metricsPort" -}}
{{ include "muster.port" (dig "metrics" "bindAddress" ":8080" .Values.config) }}
{{- end }}
{{- define "muster.healthPort" -}}
{{ include "muster.port" (dig "health" "bindAddress" ":8081" .Values.config) }}
{{- end }}
{{- define "muster.webPort" -}}
{{ include "muster.port" (dig "web" "bindAddress" ":8082" .Values.config) }}
{{- end }}
{{- define "muster.webhookPort" -}}
{{ dig "webhook" "port" 9443 .Values.config }}
{{- end }}

{{/* "true" where cert-manager makes the webhook's certificate. */}}
{{- define "muster.certManager" -}}
{{ and (eq (include "muster.hold" .) "webhook") (eq .Values.webhook.certificate "cert-manager") }}
{{- end }}

{{/* A duration as Go writes it, in milliseconds. */}}
{{- define "muster.milliseconds" -}}
{{- $units := dict "ns" 0.000001 "us" 0.001 "µs" 0.001 "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ns|us|µs|ms|s|m|h)" (toString .) -1 -}}
{{- $unit := regexFind "[a-zµ]+$" . -}}
{{- $sum = addf $sum (mulf (float64 (trimSuffix $unit .)) (get $units $unit)) -}}
{{- end -}}
{{ $sum }}
{{- end }}

{{/* What the program would refuse to start with, and no schema can say. */}}
{{- define "muster.checks" -}}
{{- $config := .Values.config -}}
{{- $lease := float64 (include "muster.milliseconds" (dig "leaderElection" "leaseDuration" "15s" $config)) -}}
{{- $renew := float64 (include "muster.milliseconds" (dig "leaderElection" "renewDeadline" "10s" $config)) -}}
{{- $retry := float64 (include "muster.milliseconds" (dig "leaderElection" "retryPeriod" "2s" $config)) -}}
{{- if not (and (gt $lease $renew) (gt $renew $retry)) -}}
{{- fail "config.leaderElection: write leaseDuration > renewDeadline > retryPeriod; left out they are 15s, 10s and 2s" -}}
{{- end -}}
{{- $again := dig "waitForPodsReady" "requeuingStrategy" dict $config -}}
{{- if gt (float64 (dig "backoffBaseSeconds" 60 $again)) (float64 (dig "backoffMaxSeconds" 3600 $again)) -}}
{{- fail "config.waitForPodsReady.requeuingStrategy: backoffMaxSeconds is less than backoffBaseSeconds; left out they are 3600 and 60" -}}
{{- end -}}
{{- $inputs := dict -}}
{{- range dig "resources" "transformations" list $config -}}
{{- if hasKey $inputs .input -}}
{{- fail (printf "config.resources.transformations: %s is transformed twice" .input) -}}
{{- end -}}
{{- $_ := set $inputs .input true -}}
{{- end -}}
{{- end }}

{{/* The configuration file. */}}
{{- define "muster.config" -}}
{{- include "muster.checks" . -}}
{{- $made := dict "apiVersion" "config.muster.dev/v1beta1" "kind" "Configuration" "apiGroup" .Values.apiGroup "hold" (include "muster.hold" .) -}}
{{- $_ := set $made "jobControllerUsers" .Values.identities.jobControllers -}}
{{- $_ := set $made "jobsetControllerUsers" .Values.identities.jobsetControllers -}}
{{- $more := list -}}
{{- if .Values.refuseBarePods }}{{ $more = append $more "muster-bare-pods" }}{{ end -}}
{{- if .Values.restrictPriorities }}{{ $more = append $more "muster-priorities" }}{{ end -}}
{{- with $more }}{{ $_ := set $made "requiredPolicies" . }}{{ end -}}
{{- if eq "true" (include "muster.certManager" .) -}}
{{- $_ := set $made "webhook" (dict "certificate" "files" "certDir" "/etc/muster-webhook") -}}
{{- end -}}
{{- toYaml (merge $made (deepCopy .Values.config)) }}
{{- end }}

{{/* Takes CEL rules out of a schema, in place. */}}
{{- define "muster.withoutRules" -}}
{{- if kindIs "map" . }}
{{- $_ := unset . "x-kubernetes-validations" }}
{{- range $key, $inner := . }}{{ include "muster.withoutRules" $inner }}{{ end }}
{{- else if kindIs "slice" . }}
{{- range $inner := . }}{{ include "muster.withoutRules" $inner }}{{ end }}
{{- end }}
{{- end }}

{{/* CEL: what a pod ("object" or "oldObject") asks for of `variables.refused`, for each container and for itself. */}}
{{- define "muster.askedFor" -}}
{{- $of := "" -}}
{{- range $field := list "limits" "requests" -}}
{{- $amounts := printf "a.resources.%s" $field -}}
{{- $one := printf "has(a.resources) && has(%s) && r in %s ? string(%s[r]) : ''" $amounts $amounts $amounts -}}
{{- $of = empty $of | ternary $one (printf "%s, %s" $of $one) -}}
{{- end -}}
({{ . }}.spec.containers + (has({{ . }}.spec.initContainers) ? {{ . }}.spec.initContainers : [])).map(a, variables.refused.map(r, [{{ $of }}])) + [{{ . }}.spec].map(a, variables.refused.map(r, [{{ $of }}]))
{{- end }}

{{/* An object from a generated file: our labels on it. {root, object} */}}
{{- define "muster.object" -}}
{{- $meta := .object.metadata -}}
{{- $_ := set $meta "labels" (merge (fromYaml (include "muster.labels" .root)) ($meta.labels | default dict)) -}}
{{- toYaml .object }}
{{- end }}

{{/* A generated file of the API group, its markers replaced. {root, part} */}}
{{- define "muster.generated" -}}
{{- $text := .root.Files.Get (printf "files/%s/%s.json" .root.Values.apiGroup .part) -}}
{{- $text = $text | replace "@NAMESPACE@" .root.Release.Namespace -}}
{{- $text = $text | replace "'@JOB_CONTROLLERS@'" (printf "'%s'" (join "', '" .root.Values.identities.jobControllers)) -}}
{{- $text = $text | replace "987654321" (.root.Values.config.maxTerminationGracePeriodSeconds | default 3600 | int | toString) -}}
{{- $text = $text | replace "987654322" (.root.Values.config.maxJobsPerJobSet | default 4096 | int | toString) -}}
{{- $text | replace "'@JOBSET_CONTROLLERS@'" (printf "'%s'" (join "', '" .root.Values.identities.jobsetControllers)) -}}
{{- end }}
