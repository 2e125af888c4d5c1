"""The linter: rows of manifests in which a comment `# <- rule` marks each line that must be found, and no other."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from admission.api.lint import CLUSTER, Document, Finding, Severity, lint, parse_path, read, show, write
from admission.engine.quota import Tree

API = "muster.dev/v1beta1"
SOUND = "namespaceSelector: {}"


def head(kind: str, name: str, *, namespace: str = "", mark: str = "", api: str = API) -> str:
    where = f"  namespace: {namespace}\n" if namespace else ""
    return f"---\napiVersion: {api}\nkind: {kind}\nmetadata:\n{where}  name: {name}{mark and ' # <- ' + mark}\nspec:\n"


def quotas(*given: tuple[str, dict[str, object]], resource: str = "gpu") -> str:
    out = f"  resourceGroups:\n  - coveredResources: [{resource}]\n    flavors:\n"
    for flavor, fields in given:
        out += f"    - name: {flavor}\n      resources:\n      - name: {resource}\n"
        out += "".join(f"        {key}: {value}\n" for key, value in fields.items())
    return out


def queue(name: str, *given: tuple[str, dict[str, object]], more: tuple[str, ...] = (SOUND,), mark: str = "") -> str:
    """A ClusterQueue and its LocalQueue."""
    body = head("ClusterQueue", name, mark=mark) + "".join(f"  {line}\n" for line in more)
    return body + (quotas(*given) if given else "") + local(name)


def local(name: str, to: str = "", *, namespace: str = "ml") -> str:
    return head("LocalQueue", name, namespace=namespace) + f"  clusterQueue: {to or name}\n"


def cohort(name: str, *given: tuple[str, dict[str, object]], more: tuple[str, ...] = (), mark: str = "") -> str:
    body = head("Cohort", name, mark=mark) + "".join(f"  {line}\n" for line in more)
    return body + (quotas(*given) if given else "" if more else "  {}\n")


TOLERATES_GPU = "tolerations: [{key: gpu, operator: Exists}]"


def flavor(name: str, *lines: str, mark: str = "") -> str:
    return head("ResourceFlavor", name, mark=mark) + ("".join(f"  {line}\n" for line in lines) or "  {}\n")


def node(name: str, gpus: int, *, label: str = "h100", taint: str = "") -> str:
    taints = f"  taints:\n  - {{key: {taint}, effect: NoSchedule}}\n" if taint else "  {}\n"
    return (
        f"---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  labels: {{gpu-type: {label}}}\n"
        f"spec:\n{taints}status:\n  allocatable: {{gpu: {gpus}}}\n"
    )


def nobodys(name: str, gpus: int) -> str:
    return node(name, gpus, label="h100} # <- node-without-flavor").replace("flavor}", "flavor")


def priority(name: str, value: str, policy: str) -> str:
    return (
        "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\n"
        f"metadata:\n  name: {name}\nvalue: {value}\npreemptionPolicy: {policy}\n"
    )


LAB = (SOUND, "cohortName: lab")
PAIR = queue("b", ("h100", {"nominalQuota": 8}), more=LAB)
GROUP = 'key: "gpu-type"'
GONE_AT = "2026-01-31T12:00:00Z"
SAID = f"type: Active, reason: a, message: b, lastTransitionTime: {GONE_AT}"

ROWS: dict[str, str] = {
    "a sound pair of queues": queue("a", ("h100", {"nominalQuota": 8, "borrowingLimit": 8}), more=LAB) + PAIR,
    "a namespace on what belongs to the cluster": head("ClusterQueue", "a", namespace="ml")
    + "".join(f"  {line}\n" for line in LAB)
    + quotas(("h100", {"nominalQuota": 8, "borrowingLimit": "9 # <- borrowing-limit-slack"}))
    + local("a")
    + PAIR,
    "quota of a cohort that no queue names": queue("a", ("h100", {"nominalQuota": 8}), more=LAB)
    + PAIR
    + cohort("lab", ("a100", {"nominalQuota": "4 # <- unreachable"})),
    "quota of a cohort that limits keep from all queues": queue(
        "a", ("h100", {"nominalQuota": 8, "borrowingLimit": 2}), more=LAB
    )
    + queue("b", ("h100", {"nominalQuota": 8, "borrowingLimit": 3}), more=LAB)
    + cohort("lab", ("h100", {"nominalQuota": "6 # <- unreachable"})),
    "quota that an inner cohort lends to nobody": queue(
        "a", ("h100", {"nominalQuota": 8}), more=(SOUND, "cohortName: inner")
    )
    + queue("c", ("h100", {"nominalQuota": 4}), more=(SOUND, "cohortName: inner"))
    + PAIR.replace("cohortName: lab", "cohortName: other")
    + cohort("other", more=("parentName: lab",))
    + cohort("inner", more=("parentName: lab",))
    + cohort("third", ("a100", {"nominalQuota": "8 # <- unreachable", "lendingLimit": 0}), more=("parentName: lab",)),
    "limits without a cohort": queue(
        "a",
        (
            "h100",
            {
                "nominalQuota": 8,
                "borrowingLimit": "4 # <- limit-without-cohort",
                "lendingLimit": "2 # <- limit-without-cohort",
            },
        ),
    ),
    "a borrowing limit with nothing to borrow": queue(
        "a", ("h100", {"nominalQuota": 8, "borrowingLimit": "4 # <- nothing-to-borrow"}), more=LAB
    )
    + queue("b", ("h100", {"nominalQuota": 0}), more=LAB),
    "a borrowing limit that never binds": queue(
        "a", ("h100", {"nominalQuota": 8, "borrowingLimit": "9 # <- borrowing-limit-slack"}), more=LAB
    )
    + PAIR,
    "a lending limit as large as the quota": queue(
        "a", ("h100", {"nominalQuota": 8, "lendingLimit": "8 # <- lending-limit-whole"}), more=LAB
    )
    + PAIR,
    "a lending limit above the quota": queue("a", ("h100", {"nominalQuota": 8, "lendingLimit": 9}), more=LAB).replace(
        "      - name: gpu", "      - name: gpu # <- schema"
    )
    + head("ClusterQueue", "b")
    + f"  {SOUND}\n"
    + quotas(("h100", {"nominalQuota": 1}))
    + local("b"),
    "a queue that can never admit": queue("a", ("h100", {"nominalQuota": "0 # <- never-fits"})),
    "a flavor that is always passed over": queue(
        "a", ("h100", {"nominalQuota": 8}), ("a100", {"nominalQuota": "0 # <- never-fits"})
    ),
    "borrowing that can never happen: alone": queue(
        "a", ("h100", {"nominalQuota": 8}), more=(SOUND, "cohortName: lba # <- borrowing-never")
    )
    + queue("b", ("h100", {"nominalQuota": 8}), more=LAB)
    + queue("c", ("h100", {"nominalQuota": 8}), more=LAB),
    "borrowing that can never happen: nothing in common": queue("a", ("a100", {"nominalQuota": 8}), more=LAB)
    + PAIR
    + cohort("lab", mark="borrowing-never"),
    "borrowing that can never happen: limits": queue(
        "a", ("h100", {"nominalQuota": 8, "borrowingLimit": 0, "lendingLimit": 2}), more=LAB
    )
    + queue("b", ("h100", {"nominalQuota": 8, "borrowingLimit": 0}), more=LAB)
    + cohort("lab", mark="borrowing-never"),
    "a cohort without queues": queue("a", ("h100", {"nominalQuota": 8})) + cohort("lab", mark="cohort-empty"),
    "a circle of cohorts": queue("a", ("h100", {"nominalQuota": 8}), more=LAB)
    + cohort("lab", more=("parentName: upper # <- cohort-cycle",))
    + cohort("upper", more=("parentName: lab # <- cohort-cycle",))
    + cohort("below", more=("parentName: lab",)),
    "a cohort that is its own parent": queue("a", ("h100", {"nominalQuota": 8}))
    + cohort("lab", more=("parentName: lab",))
    .replace("---", "---", 1)
    .replace(f"apiVersion: {API}\nkind: Cohort", f"apiVersion: {API} # <- schema\nkind: Cohort"),
    "weights of zero": queue(
        "a", ("h100", {"nominalQuota": 8}), more=(*LAB, "fairSharing:", "  weight: 0 # <- weight-zero")
    )
    + PAIR,
    "lending without reclaim": queue(
        "a",
        ("h100", {"nominalQuota": 8}),
        more=(*LAB, "preemption:", "  reclaimWithinCohort: Never # <- lends-without-reclaim"),
    )
    + PAIR,
    "no reclaim, and no quota to lend": queue(
        "a", ("h100", {"nominalQuota": 0}), more=(*LAB, "preemption:", "  reclaimWithinCohort: Never")
    )
    + PAIR,
    "no reclaim, and nobody who borrows": queue(
        "a", ("h100", {"nominalQuota": 8}), more=(*LAB, "preemption:", "  reclaimWithinCohort: Never")
    )
    + queue("b", ("h100", {"nominalQuota": 8, "borrowingLimit": 0}), more=LAB),
    "no reclaim, and nothing lent by the cohort above": queue(
        "a",
        ("h100", {"nominalQuota": 8}),
        more=(SOUND, "cohortName: inner", "preemption:", "  reclaimWithinCohort: Never"),
    )
    + cohort("inner", ("h100", {"nominalQuota": 4, "lendingLimit": 0}), more=("parentName: lab",))
    + PAIR,
    "no reclaim, and nothing lent": queue(
        "a",
        ("h100", {"nominalQuota": 8, "lendingLimit": 0}),
        more=(*LAB, "preemption:", "  reclaimWithinCohort: Never"),
    )
    + PAIR,
    "preemption rules that cannot matter": queue(
        "a",
        ("h100", {"nominalQuota": 8}),
        more=(
            SOUND,
            "preemption:",
            "  reclaimWithinCohort: Any # <- preemption-without-effect",
            "  borrowWithinCohort: # <- preemption-without-effect",
            "    policy: LowerPriority",
        ),
    ),
    "eviction while borrowing, which shares decide": queue(
        "a",
        ("h100", {"nominalQuota": 8}),
        more=(*LAB, "preemption:", "  borrowWithinCohort: # <- preemption-without-effect", "    policy: LowerPriority"),
    )
    + PAIR,
    "eviction while borrowing, which Kueue's rules know": (
        queue(
            "a",
            ("h100", {"nominalQuota": 8}),
            more=(*LAB, "preemption:", "  reclaimWithinCohort: Any", "  borrowWithinCohort: {policy: LowerPriority}"),
        )
        + PAIR
    ).replace(API, "kueue.x-k8s.io/v1beta2"),
    "a flavor that is not there": queue("a", ("h100 # <- flavor-missing", {"nominalQuota": 8}))
    + flavor("h10", mark="flavor-unused"),
    "a flavor without nodes": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h1000} # <- flavor-without-nodes")
    + nobodys("n1", 8)
    + node("of-cpus", 0),
    "an elastic flavor needs no nodes": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h1000}", "elastic: true")
    + nobodys("n1", 8),
    "nodes of an elastic flavor with a taint that it does not know": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}", "elastic: true").replace("spec:", "spec: # <- flavor-taint")
    + node("n1", 8, taint="gpu"),
    "nodes that are being made or removed": queue(
        "a", *((name, {"nominalQuota": 8}) for name in ("h100", "l4", "t4", "h200"))
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100}", "elastic: true")
    + flavor("h200", "nodeLabels: {gpu-type: h200}")
    + flavor("l4", "nodeLabels: {gpu-type: l4}", "elastic: true")
    + flavor("t4", "nodeLabels: {gpu-type: t4}", "elastic: true")
    + node("n1", 8, taint="ToBeDeletedByClusterAutoscaler")
    + node("n2", 8, taint="karpenter.sh/disrupted", label="h200")
    + node("n3", 8, taint="node.cilium.io/agent-not-ready", label="l4")
    + node("n4", 8, taint="startup-taint.cluster-autoscaler.kubernetes.io/x", label="t4"),
    "an elastic flavor whose pods may go to nodes of another": queue(
        "a", ("any", {"nominalQuota": 8}), ("h100", {"nominalQuota": 8})
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + flavor("any", "nodeLabels: {} # <- flavors-overlap", "elastic: true")
    + node("n1", 8),
    "an elastic flavor whose nodes another has as well": queue(
        "a", ("any", {"nominalQuota": 8}), ("h100", {"nominalQuota": 8})
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100} # <- flavors-overlap", "elastic: true")
    + flavor("any", "nodeLabels: {}")
    + node("n1", 8),
    "an elastic flavor whose nodes have a taint that the other does not know": queue(
        "a", ("any", {"nominalQuota": 16}), ("h100", {"nominalQuota": 8})
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100}", "elastic: true", "tolerations: [{key: gpu, operator: Exists}]")
    + flavor("any", "nodeLabels: {}")
    + node("n1", 8, taint="gpu")
    + node("n2", 8, label="none"),
    "a flavor whose tolerations tell of a taint that the other does not know, and no nodes": queue(
        "a", ("any", {"nominalQuota": 16}), ("h100", {"nominalQuota": 8})
    )
    + flavor("h100", "nodeLabels: {gpu: 'yes', gpu-type: h100}", "elastic: true", TOLERATES_GPU)
    + flavor("any", "nodeLabels: {gpu: 'yes'}"),
    "a flavor whose tolerations are of values of which the elastic one does not know, and no nodes": queue(
        "a", ("any", {"nominalQuota": 16}), ("h100", {"nominalQuota": 8})
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100}", TOLERATES_GPU)
    + flavor("any", "nodeLabels: {}", "elastic: true", "tolerations: [{key: gpu}]"),
    "a flavor whose tolerations the elastic one has as well, and no nodes": queue(
        "a", ("any", {"nominalQuota": 16}), ("h100", {"nominalQuota": 8})
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100}", TOLERATES_GPU)
    + flavor("any", "nodeLabels: {} # <- flavors-overlap", "elastic: true", TOLERATES_GPU),
    "nodes that Karpenter makes, of a flavor that counts on them": queue(
        "a", ("h100", {"nominalQuota": 8}), ("h200", {"nominalQuota": 8})
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100}").replace("spec:", "spec: # <- flavor-autoscaled")
    + flavor("h200", "nodeLabels: {gpu-type: h200}", "elastic: true")
    + node("n1", 8, label="h100, karpenter.sh/nodepool: a")
    + node("n2", 8, label="h200, karpenter.sh/nodepool: b"),
    "quota below what its nodes have": queue("a", ("h100", {"nominalQuota": "9 # <- quota-below-nodes"}))
    + queue("b", ("h100", {"nominalQuota": 4}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 8)
    + node("n2", 8),
    "quota of memory below what its nodes have": head("ClusterQueue", "a")
    + f"  {SOUND}\n"
    + quotas(("h100", {"nominalQuota": "1Gi"}), resource="memory")
    + local("a")
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 8).replace("{gpu: 8}", "{gpu: 8, memory: 2Gi}"),
    "quota of one queue above its nodes": queue("a", ("h100", {"nominalQuota": "9 # <- quota-above-nodes"}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 8),
    "quota of two queues above their nodes": queue("a", ("h100", {"nominalQuota": "6 # <- quota-above-nodes"}))
    + queue("b", ("h100", {"nominalQuota": 4}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 8),
    "quota of two queues above their nodes, of one as much as they have": queue(
        "a", ("h100", {"nominalQuota": "8 # <- quota-above-nodes"})
    )
    + queue("b", ("h100", {"nominalQuota": 2}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 8),
    "a resource that the nodes do not have": queue("a", ("h100", {"nominalQuota": "1 # <- quota-above-nodes"}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 0),
    "two flavors on the same nodes": queue("a", ("h100", {"nominalQuota": 4}), ("any", {"nominalQuota": 4}))
    + flavor("any", "nodeLabels: {}")
    + flavor("h100", "nodeLabels: {gpu-type: h100} # <- flavors-overlap")
    + node("n1", 8),
    "nodes with a taint that the flavor does not know": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}").replace("spec:", "spec: # <- flavor-taint")
    + node("n1", 8, taint="gpu"),
    "nodes with a taint that the flavor tolerates in another effect": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor(
        "h100", "nodeLabels: {gpu-type: h100}", "tolerations: [{key: gpu, operator: Exists, effect: NoExecute}]"
    ).replace("spec:", "spec: # <- flavor-taint")
    + node("n1", 8, taint="gpu"),
    "nodes with another taint than the flavor tolerates": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}", "tolerations: [{key: cpu, operator: Exists}]").replace(
        "spec:", "spec: # <- flavor-taint"
    )
    + node("n1", 8, taint="gpu"),
    "nodes with a taint that comes and goes with their condition": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 8, taint="node.kubernetes.io/memory-pressure"),
    "nodes of which one has a taint": queue("a", ("h100", {"nominalQuota": 16}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + node("n1", 8, taint="gpu")
    + node("n2", 8),
    "nodes with a taint that the flavor tolerates": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}", "tolerations: [{key: gpu, operator: Exists}]")
    + node("n1", 8, taint="gpu"),
    "a topology that is not there": queue("a", ("h100", {"nominalQuota": 8}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}", "topologyName: rack # <- topology-missing")
    + head("Topology", "racks")
    + "  levels:\n  - nodeLabel: example.com/rack # <- topology-level-without-nodes\n"
    + "  - nodeLabel: kubernetes.io/hostname\n"
    + node("n1", 8),
    "a queue that nobody points at": queue("a", ("h100", {"nominalQuota": 8}))
    + head("ClusterQueue", "b", mark="queue-unused")
    + f"  {SOUND}\n"
    + quotas(("h100", {"nominalQuota": 8})),
    "a LocalQueue that points nowhere": queue("a", ("h100", {"nominalQuota": 8}))
    + head("LocalQueue", "x", namespace="ml")
    + "  clusterQueue: aa # <- queue-missing\n",
    "a selector that is missing": queue("a", ("h100", {"nominalQuota": 8}), more=()).replace(
        "spec:", "spec: # <- selects-nothing", 1
    ),
    "a namespace that is not selected": head("ClusterQueue", "a")
    + "  namespaceSelector: {matchLabels: {team: a}}\n"
    + quotas(("h100", {"nominalQuota": 8}))
    + local("a")
    + head("LocalQueue", "other", namespace="web")
    + "  clusterQueue: a # <- namespace-not-selected\n"
    + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ml, labels: {team: a}}\n"
    + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: web, labels: {team: b}}\n",
    "a namespace that is selected by its name": head("ClusterQueue", "a")
    + "  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ml}}\n"
    + quotas(("h100", {"nominalQuota": 8}))
    + local("a")
    + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ml}\n",
    "the least memory that its author may have meant": head("ClusterQueue", "a")
    + f"  {SOUND}\n"
    + quotas(("h100", {"nominalQuota": "1Mi"}), resource="memory")
    + local("a"),
    "parts of what is counted whole": queue(
        "a",
        ("h100", {"nominalQuota": "1500m # <- not-whole", "borrowingLimit": '"2000m"', "lendingLimit": "0.5k"}),
        more=LAB,
    ).replace("lendingLimit: 0.5k", 'lendingLimit: "0.5" # <- not-whole')
    + queue("b", ("h100", {"nominalQuota": "1.5k"}), more=LAB),
    "a part of a thousandth of a CPU": queue("a", ("cpus", {"nominalQuota": "1500m"})).replace("gpu", "cpu")
    + queue("b", ("cpus", {"nominalQuota": "500u # <- not-whole"})).replace("gpu", "cpu")
    + queue("c", ("cpus", {"nominalQuota": "1Ei"})).replace("gpu", "cpu"),
    "memory without its unit": queue("a", ("any", {"nominalQuota": "1024 # <- unit-missing"})).replace("gpu", "memory")
    + queue("b", ("any", {"nominalQuota": "64Gi"})).replace("gpu", "memory")
    + queue("c", ("any", {"nominalQuota": "1024"})).replace("gpu", "example.com/chips"),
    "a queue without quota": queue("a", more=(SOUND,)).replace("spec:", "spec: # <- queue-without-quota", 1),
    "moves between flavors, which nobody makes": queue(
        "a",
        ("h100", {"nominalQuota": 8}),
        more=(
            SOUND,
            "concurrentAdmissionPolicy: # <- migration-without-effect",
            "  migration:",
            "    mode: TryPreferredFlavors",
        ),
    ),
    "checks that are not there": queue(
        "a",
        ("h100", {"nominalQuota": 8}),
        more=(
            SOUND,
            "admissionChecksStrategy:",
            "  admissionChecks:",
            "  - name: budget # <- check-missing",
            "  - name: known",
            "    onFlavors:",
            "    - h100",
            "    - a100 # <- check-without-effect",
        ),
    )
    + head("AdmissionCheck", "known")
    + "  controllerName: x\n",
    "a check of which its controller has said nothing": queue(
        "a",
        ("h100", {"nominalQuota": 8}),
        more=(
            SOUND,
            "admissionChecksStrategy:",
            "  admissionChecks:",
            "  - name: asked # <- check-inactive",
            "  - name: told",
            "  - name: a-file-says-nothing-of-that",
        ),
    )
    + "".join(
        head("AdmissionCheck", name) + f"  controllerName: example.com/{name}\n" + status
        for name, status in (
            ("asked", f"status: {{conditions: [{{{SAID}, status: 'False'}}]}}\n"),
            ("told", f"status: {{conditions: [{{{SAID}, status: 'True'}}]}}\n"),
            ("a-file-says-nothing-of-that", ""),
        )
    ),
    "a queue and a flavor that are being deleted": queue("a", ("h100", {"nominalQuota": 8}), more=(SOUND,)).replace(
        "  name: a\n", f"  name: a\n  deletionTimestamp: {GONE_AT} # <- queue-deleted\n", 1
    )
    + flavor("h100")
    + flavor("old").replace("  name: old\n", f"  name: old\n  deletionTimestamp: {GONE_AT}\n"),
    "a flavor and a queue that were renamed, and go with their last gangs": queue("a", ("h100", {"nominalQuota": 4}))
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + flavor("old", "nodeLabels: {gpu-type: old}").replace(
        "  name: old\n", f"  name: old\n  deletionTimestamp: {GONE_AT}\n"
    )
    + (head("ClusterQueue", "b") + f"  {SOUND}\n" + quotas(("h100", {"nominalQuota": 4}))).replace(
        "  name: b\n", f"  name: b\n  deletionTimestamp: {GONE_AT} # <- queue-deleted\n"
    )
    + node("n1", 8),
    "priorities above the gangs'": priority("muster-gang", "1000", "Never")
    + priority("vip", "1001 # <- priority-above-gangs", "PreemptLowerPriority")
    + priority("quiet", "1001", "Never")
    + priority("low", "1000", "PreemptLowerPriority")
    + priority("system-node-critical", "2000001000", "PreemptLowerPriority"),
    "gangs that preempt": priority("muster-gang", "1000", "PreemptLowerPriority # <- gang-preempts"),
    "names that stand twice": queue("a", ("h100", {"nominalQuota": 8}))
    + head("ClusterQueue", "a", mark="duplicate")
    + f"  {SOUND}\n"
    + quotas(("h100", {"nominalQuota": 8})),
    "fields that do not exist": queue("a", ("h100", {"nominalQuota": 8}), more=(SOUND, "cohort: lab # <- schema")),
    "values that cannot be": queue("a", ("h100", {"nominalQuota": "many # <- schema"})),
    "keys that stand twice": queue("a", ("h100", {"nominalQuota": 8}), more=(SOUND, SOUND + " # <- yaml")),
    "a template instead of YAML": "---\nkind: ClusterQueue\nmetadata:\n  name: {{ .Values.name }} # <- yaml\n",
    "text that is no YAML": "---\nkind: ClusterQueue\n  metadata: x # <- yaml\n",
    "an alias that contains itself": "--- &a # <- yaml\nkind: ClusterQueue\nspec: [*a]\n",
    "a List": "apiVersion: v1\nkind: List\nitems:\n"
    + textwrap.indent(
        head("ClusterQueue", "a").removeprefix("---\n")
        + f"  {SOUND}\n"
        + quotas(("h100", {"nominalQuota": "x # <- schema"})),
        "  ",
    ).replace("  apiVersion", "- apiVersion", 1),
    "other kinds are not ours": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\n---\njust text\n---\n[1]\n",
    "a group without its version, and one that is mistyped": "".join(
        f"---\napiVersion: {api} # <- schema\nkind: ClusterQueue\nmetadata: {{name: a}}\n"
        for api in ("muster.dev", "muster.io/v1beta1", "v1")
    ).replace("name: a", "name: b", 1),
    "kinds that are mistyped": f"---\napiVersion: {API}\nkind: ClusterQueues # <- schema\nmetadata: {{name: a}}\n"
    f"---\napiVersion: {API}\nkind: Quota # <- schema\nmetadata: {{name: a}}\n"
    "---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueu # <- schema\nmetadata: {name: a}\n",
    "kinds of others": "".join(
        f"---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: a}}\n"
        for api, kind in (
            ("kueue.x-k8s.io/v1beta2", "MultiKueueCluster"),
            ("scheduling.k8s.io/v1alpha1", "Workload"),
            ("config.muster.dev/v1beta1", "Configuration"),
        )
    ),
    "an object without its kind": f"---\napiVersion: {API} # <- yaml\nmetadata: {{name: a}}\nspec: {{}}\n",
    "values of a chart are no object": "---\nquota:\n  only: true\n",
    "flavors that have the same nodes, whatever nodes there are": queue(
        "a", *((name, {"nominalQuota": 8}) for name in ("a100", "all", "elastic", "h100", "h200"))
    )
    + flavor("h100", "nodeLabels: {gpu-type: h100}")
    + flavor("h200", "nodeLabels: {gpu-type: h200}")
    + flavor("elastic", "nodeLabels: {gpu-type: h200} # <- flavors-overlap", "elastic: true")
    + flavor("a100", "nodeLabels: {gpu-type: a100}")
    + flavor("all", "nodeLabels: {gpu-type: a100, rack: r1} # <- flavors-overlap"),
    "an elastic flavor and another, whatever nodes there are": queue(
        "a", *((name, {"nominalQuota": 8}) for name in ("any", "h100", "spot"))
    )
    + flavor("any", "nodeLabels: {gpu: any}")
    + flavor(
        "spot",
        "nodeLabels: {gpu: any, capacity: spot}",
        "elastic: true",
        "nodeTaints: [{key: spot, effect: NoSchedule}]",
    )
    + flavor("h100", "nodeLabels: {gpu: any, gpu-type: h100} # <- flavors-overlap", "elastic: true"),
    "flavors that have the same nodes and share no resource": head("ClusterQueue", "a")
    + f"  {SOUND}\n"
    + quotas(("all", {"nominalQuota": 8}), resource="cpu")
    + quotas(("h100", {"nominalQuota": 8})).replace("  resourceGroups:\n", "")
    + local("a")
    + flavor("all")
    + flavor("h100", "nodeLabels: {gpu-type: h100}"),
    "labels that kubectl takes for something else": flavor(
        "h100", "nodeLabels:", "  a: y # <- schema", "  b: 08 # <- schema", "  c: 12e4 # <- schema", "  d: '08'"
    ),
    "keys that are no text": queue("a", ("h100", {"nominalQuota": 8}), more=(SOUND, "on: 1 # <- schema")),
    "amounts as kubectl reads them": queue("a", ("h100", {"nominalQuota": "1e3"}), more=LAB)
    + queue("b", ("h100", {"nominalQuota": "64.0"}), more=LAB),
    "names that no label can hold": queue("a", ("h100", {"nominalQuota": 8}))
    + head("LocalQueue", "q" * 63, namespace="ml")
    + "  clusterQueue: a\n"
    + head("LocalQueue", "q" * 64, namespace="ml", mark="name-too-long")
    + "  clusterQueue: a\n"
    + head("WorkloadPriorityClass", "p" * 64, mark="name-too-long").replace("spec:", "value: 1"),
    "Kueue's group is judged by the same rules": (
        queue("a", ("h100", {"nominalQuota": 8, "borrowingLimit": "1 # <- limit-without-cohort"}))
    ).replace(API, "kueue.x-k8s.io/v1beta2"),
}
# These rows are about one file of many: their LocalQueues or flavors are somewhere else.
QUIET = {"cohort-empty", "queue-unused", "flavor-unused"}


def found(text: str) -> list[Finding]:
    documents, findings = read(text, "row.yaml")
    return [*findings, *lint(documents)]


def marked(text: str) -> set[tuple[int, str]]:
    return {
        (number, rule)
        for number, line in enumerate(text.splitlines(), 1)
        for rule in re.findall(r"# <- ([a-z-]+)", line)
    }


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    text = ROWS[name]
    wanted = marked(text)
    got = {(finding.line, finding.rule) for finding in found(text)}
    extra = {(line, rule) for line, rule in got - wanted if rule not in QUIET}
    assert wanted <= got, f"not found: {wanted - got}; found: {got}"
    assert not extra
    said = [(finding.line, finding.rule, finding.subject, finding.path) for finding in found(text)]
    assert len(set(said)) == len(said), "nothing is said twice"
    for finding in found(text):
        assert finding.message, finding
        assert finding.fix, finding
        assert finding.place() == f"row.yaml:{finding.line}"


def test_every_rule_has_a_row() -> None:
    source = Path("admission/api/lint.py").read_text(encoding="utf-8")
    severities = r'"([a-z-]+)",\s+Severity\.'
    assert set(re.findall(severities, source)) == {rule for text in ROWS.values() for _, rule in marked(text)}


def test_numbers_and_fixes() -> None:
    """What a finding says, for the ones with arithmetic."""

    def said(row: str, rule: str) -> tuple[str, str]:
        finding = next(finding for finding in found(ROWS[row]) if finding.rule == rule)
        return finding.message, finding.fix

    message, fix = said("quota of a cohort that limits keep from all queues", "unreachable")
    assert message == "1 of 22 gpu of flavor h100 can be used by nobody: the queues below lab take at most 21"
    assert "borrowingLimit of gpu in a, b" in fix
    message, fix = said("quota of two queues above their nodes", "quota-above-nodes")
    assert message == "a, b have together 10 gpu of flavor h100, and its one node has 8"
    assert "lower nominalQuota by 2" in fix
    message, fix = said("quota of two queues above their nodes, of one as much as they have", "quota-above-nodes")
    assert message == "a, b have together 10 gpu of flavor h100, and its one node has 8"
    assert "lower nominalQuota by 2" in fix
    message, _ = said("quota below what its nodes have", "quota-below-nodes")
    assert message == (
        "the nodes of flavor h100 have 16 gpu, and all quota of it is 13: 3 of them stand idle, whoever asks"
    )
    message, _ = said("a flavor without nodes", "node-without-flavor")
    assert message == "8 gpu of n1 belong to no ResourceFlavor: no gang gets them"
    message, fix = said("parts of what is counted whole", "not-whole")
    assert message == "nominalQuota 1500m counts as 2: a part is rounded up to whole gpu"
    assert fix.startswith("write 2, or what was meant")
    message, _ = said("a part of a thousandth of a CPU", "not-whole")
    assert message == "nominalQuota 500u counts as 1m: a part is rounded up to thousandths of a CPU"
    message, _ = said("memory without its unit", "unit-missing")
    assert message == "nominalQuota 1024 of memory is 1024 bytes, less than any pod asks for"
    message, _ = said("a flavor without nodes", "flavor-without-nodes")
    assert "gpu-type has the values h100" in message
    _, fix = said("borrowing that can never happen: alone", "borrowing-never")
    assert "did you mean cohort lab?" in fix
    _, fix = said("fields that do not exist", "schema")
    assert "cohortName" in fix
    message, _ = said("a circle of cohorts", "cohort-cycle")
    assert "lab -> upper -> lab" in message
    _, fix = said("a template instead of YAML", "yaml")
    assert "helm template" in fix
    message, _ = said("a check of which its controller has said nothing", "check-inactive")
    assert message == (
        "AdmissionCheck asked is not active: a admits nothing until example.com/asked sets its condition Active"
    )
    gone = found(ROWS["a queue and a flavor that are being deleted"])
    assert not {"flavor-unused", "queue-unused"} & {finding.rule for finding in gone}, "they are deleted already"
    many = "".join(
        queue(name, ("h100", {"nominalQuota": 1, "borrowingLimit": 0}), more=LAB) for name in "abcd"
    ) + cohort("lab", ("h100", {"nominalQuota": 4}))
    (fix,) = (finding.fix for finding in found(many) if finding.rule == "unreachable")
    assert "in a, b, c, d, or lower" in fix


def test_a_check_of_a_cluster_that_says_nothing_is_not_active() -> None:
    documents, _ = read(ROWS["a check of which its controller has said nothing"], "x")
    told = [finding.message for finding in lint([Document(one.obj) for one in documents], live=True)]
    assert sum("is not active" in message for message in told) == 2


def test_a_cluster_is_complete_and_a_file_is_not() -> None:
    """A queue that names flavor and checks of somewhere else: nothing in a file, missing in a cluster."""
    text = head("ClusterQueue", "a") + f"  {SOUND}\n" + quotas(("h100", {"nominalQuota": 8}))
    documents, _ = read(text, "a.yaml")
    assert {(f.rule, f.severity) for f in lint(documents)} == {("queue-unused", Severity.INFO)}
    live = [Document(document.obj) for document in documents]
    assert {(f.rule, f.severity) for f in lint(live, live=True)} == {
        ("queue-unused", Severity.WARNING),
        ("flavor-missing", Severity.ERROR),
    }
    assert {f.place() for f in lint(live, live=True)} == {CLUSTER}


def test_a_file_is_laid_over_the_cluster() -> None:
    base, _ = read(ROWS["a sound pair of queues"], "x")
    cluster = [Document(document.obj) for document in base]
    change, _ = read(queue("a", ("h100", {"nominalQuota": 0}), more=LAB).split("---\n")[1], "new.yaml")
    rules = {f.rule for f in lint([*cluster, *change])}
    assert "duplicate" not in rules
    assert not rules
    change, _ = read(queue("b", ("h100", {"nominalQuota": 0}), more=LAB).split("---\n")[1], "new.yaml")
    assert {f.rule for f in lint([*cluster, *change])} == {"nothing-to-borrow"}


PATHS = st.lists(st.one_of(st.from_regex(r"[a-zA-Z]{1,6}", fullmatch=True), st.integers(0, 9)), min_size=1).filter(
    lambda path: isinstance(path[0], str)
)


@given(PATHS)
def test_paths_are_read_as_they_are_shown(path: list[str | int]) -> None:
    assert parse_path(show(tuple(path))) == tuple(path)


AMOUNTS = st.integers(0, 12)
LIMITS = st.one_of(st.none(), AMOUNTS)


@st.composite
def fleets(draw: st.DrawFn) -> str:
    text = ""
    cohorts = ["top", "left", "right"]
    for name in cohorts:
        fields = (
            {"nominalQuota": draw(AMOUNTS), "borrowingLimit": draw(LIMITS)}
            if name != "top"
            else {"nominalQuota": draw(AMOUNTS)}
        )
        parent = ("parentName: top",) if name != "top" else ()
        text += cohort(name, ("f", {k: v for k, v in fields.items() if v is not None}), more=parent)
    for i in range(draw(st.integers(1, 4))):
        nominal = draw(AMOUNTS)
        lending = draw(LIMITS)
        fields = {
            "nominalQuota": nominal,
            "borrowingLimit": draw(LIMITS),
            "lendingLimit": lending if lending is not None and lending <= nominal else None,
        }
        text += queue(
            f"q{i}",
            ("f", {k: v for k, v in fields.items() if v is not None}),
            more=(SOUND, f"cohortName: {draw(st.sampled_from(cohorts))}"),
        )
    return text


@given(fleets())
def test_what_is_unreachable_is_what_no_filling_uses(text: str) -> None:
    """Fill every queue as far as the ledger's own arithmetic lets it, in several orders: what stays free at the best is
    what the findings say. A limit called without effect changes no queue's potential when it is dropped."""
    documents, problems = read(text, "x")
    assert not problems
    findings = lint(documents)
    lost = sum(int(f.message.split()[0]) for f in findings if f.rule == "unreachable")
    from admission.api.lint import _Fleet  # the tree as the linter builds it
    from admission.names import Names

    fleet = _Fleet(Names(), documents, (), False)
    fr = ("f", "gpu")
    total = sum(g.quota.nominal for g in fleet.given)
    best = 0
    names = [q.name for q in fleet.tree.queues()]
    for turn in range(len(names)):
        tree = _Fleet(Names(), documents, (), False).tree
        _fill(tree, names[turn:] + names[:turn])
        best = max(best, sum(q.usage.get(fr, 0) for q in tree.queues()))
    assert total - best >= lost
    if not lost and total > best:
        # Greedy filling may stop short of the best; a single queue's potential may not exceed what was filled.
        assert best >= max(q.potential(fr) for q in fleet.tree.queues())
    without = {(f.subject.split()[1], f.path.rsplit(".", 1)[1]) for f in findings if f.rule in SLACK}
    loose = [yaml.safe_load(part) for part in text.split("---\n") if part]
    for obj in loose:
        for group in obj["spec"].get("resourceGroups") or ():
            for limit in ("borrowingLimit", "lendingLimit"):
                if (obj["metadata"]["name"], limit) in without and obj["kind"] != "LocalQueue":
                    group["flavors"][0]["resources"][0].pop(limit, None)
    after = _Fleet(Names(), [Document(obj) for obj in loose], (), False).tree
    for name in names:
        one, other = fleet.tree.queue(name), after.queue(name)
        assert one is not None
        assert other is not None
        assert one.potential(fr) == other.potential(fr)


SLACK = {"nothing-to-borrow", "borrowing-limit-slack", "lending-limit-whole"}


def _fill(tree: Tree, order: list[str]) -> None:
    fr = ("f", "gpu")
    for name in order:
        node = tree.queue(name)
        assert node is not None
        tree.add(node, {fr: node.available(fr)})


@pytest.mark.parametrize(
    "text",
    [
        *("y", "N", "08", "12e4", "1e-3", ".5", "yes", "010", "0o14", "0x1F", "1_0", "08_15", "1:30", "null", "~", ""),
        *("0X1F", "0B11", "-0O14"),
    ],
)
def test_text_that_kubectl_would_read_as_something_else_is_written_in_quotes(text: str) -> None:
    made = {"kind": "ResourceFlavor", "spec": {"nodeLabels": {"rack": text, "gpu": "h100"}}}
    assert f"rack: '{text}'\n" in write([made])
    assert "gpu: h100\n" in write([made])
    documents, problems = read(write([made, {"kind": "List", "items": [made]}]), "x")
    assert not problems
    assert [one.obj for one in documents] == [made, made]


@pytest.mark.parametrize(
    ("plain", "read_as"),
    [
        ("12:30:00", "12:30:00"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("2026-01-31", "2026-01-31"),
        ("0o14", 12),
        ("010", 8),
        ("08", 8),
        ("08_15", 815),
        ("1_000", 1000),
        ("+1", 1),
        ("-0x1F", -31),
        ("0X1F", 31),
        ("0b11", 3),
        ("-0B1_1", -3),
        ("0O14", 12),
        ("00", 0),
        (".5", 0.5),
        ("64.", 64),
        ("1_0e3", 10000),
        ("1e400", "1e400"),
        ("1.2.3", "1.2.3"),
        ("on", True),
    ],
)
def test_what_has_no_quotes_is_read_as_kubectl_reads_it(plain: str, read_as: object) -> None:
    documents, problems = read(f"kind: Job\nspec: [{plain}]\n", "x")
    assert not problems
    assert [repr(one.obj["spec"]) for one in documents] == [repr([read_as])]


@pytest.mark.parametrize("said", ["bool x", "int x", "int ''", "float ''", "timestamp x", "timestamp 2026-01-31"])
@pytest.mark.parametrize("line", ["spec: {}", "spec: [1, {{a: {}}}]", "{}: 1", "{{{}: 1}}: 2"])
def test_a_value_that_is_not_what_its_tag_says_is_told(said: str, line: str) -> None:
    documents, (told,) = read(f"kind: Job\n{line.format('!!' + said)}\n", "x")
    assert not documents
    assert (told.rule, told.line) == ("yaml", 2)
    assert said.partition(" ")[0] in told.message or "key" in told.message


@pytest.mark.parametrize("value", ["!!binary aGVsbG8=", "!!set {a}", "!!omap [a: 1]", "!!pairs [a: 1]", "!mine 1"])
def test_a_value_that_json_does_not_know_is_told(value: str) -> None:
    documents, (told,) = read(f"kind: Job\nspec: {value}\n", "x")
    assert (documents, told.rule, told.line) == ([], "yaml", 2)


@given(st.text(max_size=200))
def test_any_text_gets_an_answer(text: str) -> None:
    documents, _ = read(text, "x")
    lint(documents)


def test_nesting_without_end_gets_an_answer() -> None:
    _, findings = read("[" * 5000, "x")
    assert [finding.rule for finding in findings] == ["yaml"]
