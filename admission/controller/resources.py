"""Where the API server serves the kinds that are read and written here."""

from __future__ import annotations

from admission.jobs.kinds import JobKind
from admission.kube.client import Kind
from admission.names import Names

API_SERVICES = Kind("apiregistration.k8s.io", "v1", "apiservices", "APIService", False)
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", False)
NODES = Kind("", "v1", "nodes", "Node", False)
PODS = Kind("", "v1", "pods", "Pod")
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount")
LIMIT_RANGES = Kind("", "v1", "limitranges", "LimitRange")
RESOURCE_QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")
RUNTIME_CLASSES = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)

QUOTA = (
    "Topology",
    "ResourceFlavor",
    "AdmissionCheck",
    "WorkloadPriorityClass",
    "Cohort",
    "ClusterQueue",
    "LocalQueue",
)
"""Our kinds of quota, in the order in which their objects can be created."""
_PLURALS = {"Topology": "topologies", "WorkloadPriorityClass": "workloadpriorityclasses"}
_NAMESPACED = ("LocalQueue", "Workload")


def ours(names: Names, kind: str) -> Kind:
    """One of QUOTA, or Workload."""
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    return Kind(names.group, names.version, plural, kind, kind in _NAMESPACED)


def of_jobs(kind: JobKind) -> Kind:
    return Kind(kind.group, kind.version, kind.plural, kind.kind)
