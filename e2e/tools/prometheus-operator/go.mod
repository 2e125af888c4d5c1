// The kinds of prometheus-operator, for the test that offers it what the chart renders. Nothing of it is linked or shipped.
module muster.dev/e2e/tools/prometheus-operator

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.76.0
