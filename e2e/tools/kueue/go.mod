// Kueue's CRDs, and its benchmark's runner, for the tests of Kueue mode. Nothing of it is linked or shipped.
module muster.dev/e2e/tools/kueue

go 1.26.0

require sigs.k8s.io/kueue v0.19.0
