// The kinds of cert-manager, for the test that offers it what the chart renders. Nothing of it is linked or shipped.
module muster.dev/e2e/tools/cert-manager

go 1.24.0

require github.com/cert-manager/cert-manager v1.19.1
