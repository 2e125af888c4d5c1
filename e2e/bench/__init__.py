"""The load of Kueue's scheduling benchmark, written anew, on a real etcd and kube-apiserver.

`python -m e2e.bench` plays a size (`load`) twice, each time on a new control plane: once with a controller that admits
everything at once with one write each (`floor`: what API server, etcd and the load itself take on this machine), once
with Muster in Kueue mode. `play` makes the objects, plays the run times, and counts.
"""
