{{/* resourceGroups of a quota: consecutive flavors with the same resources are one group. */}}
{{- define "muster.resourceGroups" -}}
{{- $groups := list -}}
{{- $of := dict -}}
{{- range $entry := . -}}
{{- $covered := keys $entry.resources | sortAlpha -}}
{{- $key := join "," $covered -}}
{{- $resources := list -}}
{{- range $name := $covered -}}
{{- $amount := index $entry.resources $name -}}
{{- if not (kindIs "map" $amount) }}{{ $amount = dict "nominal" $amount }}{{ end -}}
{{- $made := dict "name" $name "nominalQuota" (include "muster.amount" $amount.nominal) -}}
{{- if hasKey $amount "borrow" }}{{ $_ := set $made "borrowingLimit" (include "muster.amount" $amount.borrow) }}{{ end -}}
{{- if hasKey $amount "lend" }}{{ $_ := set $made "lendingLimit" (include "muster.amount" $amount.lend) }}{{ end -}}
{{- $resources = append $resources $made -}}
{{- end -}}
{{- $flavor := dict "name" $entry.flavor "resources" $resources -}}
{{- if hasKey $of $key -}}
{{- $group := get $of $key -}}
{{- $_ := set $group "flavors" (append $group.flavors $flavor) -}}
{{- else -}}
{{- $group := dict "coveredResources" $covered "flavors" (list $flavor) -}}
{{- $_ := set $of $key $group -}}
{{- $groups = append $groups $group -}}
{{- end -}}
{{- end -}}
{{ toYaml $groups }}
{{- end }}

{{/* A quantity as text; Helm reads numbers as floats. */}}
{{- define "muster.amount" -}}
{{- if kindIs "float64" . -}}
{{- if eq (float64 (int64 .)) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{ . }}
{{- end }}
{{- end }}

{{/* Spec of a ClusterQueue or Cohort: {entry, parent (key), selector}. */}}
{{- define "muster.quotaSpec" -}}
{{- $spec := dict -}}
{{- with .selector }}{{ $_ := set $spec "namespaceSelector" . }}{{ end -}}
{{- with index .entry (eq .parent "cohortName" | ternary "cohort" "parent") }}{{ $_ := set $spec $.parent . }}{{ end -}}
{{- if hasKey .entry "weight" }}{{ $_ := set $spec "fairSharing" (dict "weight" (include "muster.amount" .entry.weight)) }}{{ end -}}
{{- with .entry.quota }}{{ $_ := set $spec "resourceGroups" (include "muster.resourceGroups" . | fromYamlArray) }}{{ end -}}
{{ toYaml (mergeOverwrite $spec (deepCopy (.entry.spec | default dict))) }}
{{- end }}

{{/* One object of quota: {root, kind, name, namespace, spec} */}}
{{- define "muster.quotaObject" -}}
{{- $meta := dict "name" .name "labels" (fromYaml (include "muster.labels" .root)) -}}
{{- with .namespace }}{{ $_ := set $meta "namespace" . }}{{ end -}}
{{- /* For Argo CD: after the kinds, which it may not know yet when it looks. */}}
{{- $_ := set $meta "annotations" (dict "argocd.argoproj.io/sync-wave" "1" "argocd.argoproj.io/sync-options" "SkipDryRunOnMissingResource=true") -}}
{{- $version := eq .root.Values.apiGroup "kueue.x-k8s.io" | ternary "v1beta2" "v1beta1" -}}
---
{{ toYaml (merge (dict "apiVersion" (printf "%s/%s" .root.Values.apiGroup $version) "kind" .kind "metadata" $meta) .body) }}
{{- end }}
