"""Objects as users write them, right and wrong, with what must be said about the wrong ones.

Read by the fast tests (pydantic's answer) and by `e2e/test_schema.py` (what a real API server says to the same rows).
"""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
GONE = object()
"""As a value in an edit: take the field out."""


@dataclass(frozen=True)
class Row:
    """`new` is created, or, where `old` is given, written over it. `says` is part of the refusal; None means accepted.

    `server` is what the API server says in its own words, where a schema alone refuses. `status` writes go to the
    status subresource.
    """

    name: str
    new: Object
    says: str | None = None
    server: str | None = None
    old: Object | None = None
    status: bool = False


def edited(obj: Object, edits: dict[str, Any]) -> Object:
    """A copy with values put at paths such as `spec.resourceGroups[0].flavors[1].name`; `[+]` appends."""
    out = copy.deepcopy(obj)
    for path, value in edits.items():
        steps: list[str] = re.findall(r"[^.\[\]]+|\[[+\d]+\]", path)
        here: Any = out
        for step, following in itertools.pairwise(steps):
            key: Any = int(step[1:-1]) if step[0] == "[" else step
            if isinstance(here, dict):
                here = here.setdefault(key, [] if following[0] == "[" else {})
            else:
                here = here[key]
        last = steps[-1]
        if last == "[+]":
            here.append(value)
        elif value is GONE:
            del here[int(last[1:-1]) if last[0] == "[" else last]
        else:
            here[int(last[1:-1]) if last[0] == "[" else last] = copy.deepcopy(value)
    return out


def obj(kind: str, name: str, spec: Any = GONE, **more: Any) -> Object:
    out: Object = {"apiVersion": "muster.dev/v1beta1", "kind": kind, "metadata": {"name": name}, **more}
    if spec is not GONE:
        out["spec"] = spec
    if kind in ("LocalQueue", "Workload"):
        out["metadata"]["namespace"] = "default"
    return out


def quota(resource: str, nominal: Any, **more: Any) -> Object:
    return {"name": resource, "nominalQuota": nominal, **more}


CQ = obj(
    "ClusterQueue",
    "team-a",
    {
        "cohortName": "lab",
        "namespaceSelector": {},
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "nvidia.com/gpu"],
                "flavors": [
                    {"name": "h100", "resources": [quota("cpu", "64"), quota("nvidia.com/gpu", 8)]},
                    {"name": "a100", "resources": [quota("cpu", 32), quota("nvidia.com/gpu", "4")]},
                ],
            }
        ],
    },
)
COHORT = obj("Cohort", "lab", {"parentName": "company"})
LQ = obj("LocalQueue", "main", {"clusterQueue": "team-a"})
FLAVOR = obj("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}})
TOPOLOGY = obj("Topology", "dc", {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]})
CHECK = obj("AdmissionCheck", "budget", {"controllerName": "example.com/budget"})
CLASS = obj("WorkloadPriorityClass", "urgent", value=1000)
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]}}
WL = obj(
    "Workload",
    "job-train",
    {"queueName": "main", "podSets": [{"name": "main", "count": 4, "template": TEMPLATE}]},
)
NOW = "2026-11-20T08:30:00Z"


def condition(type_: str, status: str = "True") -> Object:
    return {"type": type_, "status": status, "reason": type_, "message": "", "lastTransitionTime": NOW}


ADMISSION = {
    "clusterQueue": "team-a",
    "podSetAssignments": [{"name": "main", "count": 4, "flavors": {"cpu": "h100"}, "resourceUsage": {"cpu": "4"}}],
}
HELD = edited(
    WL, {"status": {"conditions": [condition("QuotaReserved"), condition("Admitted")], "admission": ADMISSION}}
)

_Q0 = "spec.resourceGroups[0].flavors[0].resources[0]"
_AMOUNT = "write an amount from 0 to 1Ei"
_WEIGHT = "write a weight from 0 to 1000000"
_NAME = "is no object name"
_MATCH = "should match"


def refused(base: Object, rows: list[tuple[Any, ...]], status: bool = False) -> list[Row]:
    """Rows (name, edits, says[, server])."""
    return [
        Row(f"{base['kind']}: {r[0]}", edited(base, r[1]), r[2], r[3] if len(r) > 3 else None, status=status)
        for r in rows
    ]


def accepted(base: Object, rows: list[tuple[str, dict[str, Any]]], status: bool = False) -> list[Row]:
    return [Row(f"{base['kind']}: {name}", edited(base, edits), status=status) for name, edits in rows]


def updates(old: Object, rows: list[tuple[Any, ...]], status: bool = False) -> list[Row]:
    """Rows (name, edits, says or None[, server])."""
    return [
        Row(
            f"{old['kind']} update: {r[0]}",
            edited(old, r[1]),
            r[2],
            r[3] if len(r) > 3 else None,
            old=old,
            status=status,
        )
        for r in rows
    ]


_GROUP = {"coveredResources": ["memory"], "flavors": [{"name": "cpu-only", "resources": [quota("memory", "1Ti")]}]}


def _roots(*values: str) -> Object:
    return {"individual": {"roots": list(values)}}


def _slice(**edits: Any) -> Object:
    one = {"domainCount": 2, "valuesPerLevel": [_roots("a", "b")], "podCounts": {"universal": 2}, **edits}
    one = {key: value for key, value in one.items() if value is not GONE}
    return {
        "status.admission.podSetAssignments[0].topologyAssignment": {
            "levels": ["kubernetes.io/hostname"],
            "slices": [one],
        }
    }


ROWS: list[Row] = [
    # Right.
    Row("ClusterQueue", CQ),
    Row("Cohort", COHORT),
    Row("LocalQueue", LQ),
    Row("ResourceFlavor", FLAVOR),
    Row("Topology", TOPOLOGY),
    Row("AdmissionCheck", CHECK),
    Row("WorkloadPriorityClass", CLASS),
    Row("Workload", WL),
    Row("ClusterQueue with a namespace, as kustomize writes it", edited(CQ, {"metadata.namespace": "team-a"})),
    Row("ClusterQueue without a spec", obj("ClusterQueue", "empty")),
    Row("ResourceFlavor without a spec", obj("ResourceFlavor", "plain")),
    Row("Cohort without a spec", obj("Cohort", "root")),
    *accepted(
        CQ,
        [
            ("zero quota", {f"{_Q0}.nominalQuota": 0}),
            ("quota with a unit", {f"{_Q0}.nominalQuota": "500m"}),
            ("quota with an exponent", {f"{_Q0}.nominalQuota": "1e3"}),
            ("quota with a sign", {f"{_Q0}.nominalQuota": "+5"}),
            ("quota at the bound", {f"{_Q0}.nominalQuota": "1Ei"}),
            ("limits", {f"{_Q0}.borrowingLimit": "10", f"{_Q0}.lendingLimit": "64"}),
            ("a limit in another unit", {f"{_Q0}.lendingLimit": "64000m"}),
            ("null limit is none", {f"{_Q0}.borrowingLimit": None}),
            ("two groups", {"spec.resourceGroups[+]": _GROUP}),
            ("null stopPolicy is the default", {"spec.stopPolicy": None}),
            ("weight 0", {"spec.fairSharing": {"weight": 0}}),
            ("weight with a point", {"spec.fairSharing": {"weight": "0.5"}}),
            ("fairSharing without a weight", {"spec.fairSharing": {}}),
            (
                "borrowWithinCohort, reclaim left out",
                {"spec.preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}},
            ),
            (
                "preference",
                {
                    "spec.flavorFungibility": {
                        "whenCanBorrow": "TryNextFlavor",
                        "whenCanPreempt": "TryNextFlavor",
                        "preference": "PreemptionOverBorrowing",
                    }
                },
            ),
            (
                "a namespace selector",
                {
                    "spec.namespaceSelector": {
                        "matchLabels": {"team": "a"},
                        "matchExpressions": [
                            {"key": "env", "operator": "In", "values": ["prod"]},
                            {"key": "x", "operator": "Exists"},
                        ],
                    }
                },
            ),
        ],
    ),
    *accepted(
        COHORT,
        [
            (
                "lends more than it has itself",
                {
                    "spec.resourceGroups": [
                        {
                            "coveredResources": ["cpu"],
                            "flavors": [{"name": "f", "resources": [quota("cpu", 1, lendingLimit=5)]}],
                        }
                    ]
                },
            ),
        ],
    ),
    *accepted(
        FLAVOR,
        [
            ("elastic", {"spec.elastic": True}),
            ("placement, spread", {"spec.placement": "Spread"}),
            ("topology", {"spec.topologyName": "dc"}),
            (
                "taints and tolerations",
                {
                    "spec.nodeTaints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
                    "spec.tolerations": [
                        {"operator": "Exists"},
                        {
                            "key": "gpu",
                            "operator": "Equal",
                            "value": "yes",
                            "effect": "NoExecute",
                            "tolerationSeconds": 60,
                        },
                    ],
                },
            ),
        ],
    ),
    *accepted(
        TOPOLOGY, [("without hosts", {"spec.levels": [{"nodeLabel": "example.com/block"}, {"nodeLabel": "rack"}]})]
    ),
    *accepted(CHECK, [("parameters", {"spec.parameters": {"apiGroup": "example.com", "kind": "Budget", "name": "b"}})]),
    *accepted(
        WL,
        [
            (
                "a class of ours",
                {
                    "spec.priorityClassRef": {"group": "muster.dev", "kind": "WorkloadPriorityClass", "name": "u"},
                    "spec.priority": 5,
                },
            ),
            (
                "a class of Kubernetes",
                {
                    "spec.priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "u"},
                    "spec.priority": -5,
                },
            ),
            ("18 pod sets", {"spec.podSets": [{"name": f"p{i}", "count": 1, "template": TEMPLATE} for i in range(18)]}),
            ("name and count left out", {"spec.podSets": [{"template": TEMPLATE}]}),
            ("partial", {"spec.podSets[0].minCount": 2}),
            ("10^6 pods", {"spec.podSets[0].count": 1_000_000}),
            (
                "topology",
                {
                    "spec.podSets[0].topologyRequest": {
                        "required": "rack",
                        "podSetSliceRequiredTopology": "kubernetes.io/hostname",
                        "podSetSliceSize": 2,
                        "podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 2}],
                    }
                },
            ),
        ],
    ),
    # ClusterQueue, wrong.
    *refused(
        CQ,
        [
            ("negative quota", {f"{_Q0}.nominalQuota": -1}, _AMOUNT),
            ("negative quota as text", {f"{_Q0}.nominalQuota": "-8"}, _AMOUNT),
            ("absurd quota", {f"{_Q0}.nominalQuota": "1e30"}, _AMOUNT),
            ("absurd quota as number", {f"{_Q0}.nominalQuota": 2**62}, _AMOUNT),
            ("just above the bound", {f"{_Q0}.nominalQuota": "1152921504606846977"}, _AMOUNT),
            ("quota that is a word", {f"{_Q0}.nominalQuota": "lots"}, _AMOUNT),
            ("quota with a wrong unit", {f"{_Q0}.nominalQuota": "16GB"}, _AMOUNT),
            ("quota with a space", {f"{_Q0}.nominalQuota": "16 Gi"}, _AMOUNT),
            ("quota with a broken exponent", {f"{_Q0}.nominalQuota": "1e1.5"}, _AMOUNT),
            ("empty quota", {f"{_Q0}.nominalQuota": ""}, _AMOUNT),
            ("quota with a point, unquoted", {f"{_Q0}.nominalQuota": 1.5}, "in quotes", "must be of type"),
            ("quota that is true", {f"{_Q0}.nominalQuota": True}, "is no quantity", "must be of type"),
            ("quota of 50 digits", {f"{_Q0}.nominalQuota": "1" * 50}, _AMOUNT, "Too long"),
            ("no quota", {f"{_Q0}.nominalQuota": GONE}, "Required value"),
            ("null quota", {f"{_Q0}.nominalQuota": None}, "Required value"),
            ("negative borrowingLimit", {f"{_Q0}.borrowingLimit": -1}, _AMOUNT),
            ("absurd lendingLimit", {f"{_Q0}.lendingLimit": "999E"}, _AMOUNT),
            ("lends more than it has", {f"{_Q0}.lendingLimit": "65"}, "lendingLimit is more than nominalQuota"),
            ("lends more, in milli", {f"{_Q0}.lendingLimit": "64001m"}, "lendingLimit is more than nominalQuota"),
            ("limit without cohort", {"spec.cohortName": GONE, f"{_Q0}.borrowingLimit": 1}, "write cohortName"),
            ("lending without cohort", {"spec.cohortName": GONE, f"{_Q0}.lendingLimit": 1}, "write cohortName"),
            ("limit, null cohort", {"spec.cohortName": None, f"{_Q0}.lendingLimit": 1}, "write cohortName"),
            ("cohort that is no name", {"spec.cohortName": "The Lab"}, _NAME, _MATCH),
            ("empty cohort", {"spec.cohortName": ""}, _NAME, _MATCH),
            ("cohort of 254 letters", {"spec.cohortName": "a" * 254}, "too long", "Too long"),
            ("flavor twice", {"spec.resourceGroups[0].flavors[1].name": "h100"}, "Duplicate value"),
            (
                "resource twice in a flavor",
                {"spec.resourceGroups[0].flavors[0].resources[0].name": "nvidia.com/gpu"},
                "Duplicate value",
            ),
            (
                "flavor in two groups",
                {"spec.resourceGroups[+]": edited(_GROUP, {"flavors[0].name": "h100"})},
                "a flavor stands in two",
            ),
            (
                "resource in two groups",
                {
                    "spec.resourceGroups[+]": edited(
                        _GROUP, {"coveredResources": ["cpu"], "flavors[0].resources[0].name": "cpu"}
                    )
                },
                "a resource stands in two",
            ),
            (
                "resources in another order",
                {"spec.resourceGroups[0].coveredResources": ["nvidia.com/gpu", "cpu"]},
                "same order",
            ),
            ("a resource left out", {"spec.resourceGroups[0].flavors[1].resources[1]": GONE}, "same order"),
            ("a resource too many", {"spec.resourceGroups[0].coveredResources": ["cpu"]}, "same order"),
            ("a covered resource twice", {"spec.resourceGroups[0].coveredResources": ["cpu", "cpu"]}, "same order"),
            (
                "no covered resources",
                {"spec.resourceGroups[0].coveredResources": []},
                "empty",
                "should have at least 1 items",
            ),
            ("no flavors", {"spec.resourceGroups[0].flavors": []}, "empty", "should have at least 1 items"),
            ("flavors left out", {"spec.resourceGroups[0].flavors": GONE}, "Required value"),
            (
                "flavor without a name",
                {"spec.resourceGroups[0].flavors[0].name": GONE},
                "Required value",
                "Required value",
            ),
            ("flavor that is no name", {"spec.resourceGroups[0].flavors[0].name": "H100"}, _NAME, _MATCH),
            ("flavors as text", {"spec.resourceGroups[0].flavors": "h100"}, "write a list", "must be of type array"),
            (
                "17 groups",
                {
                    "spec.resourceGroups": [
                        {
                            "coveredResources": [f"r{i}"],
                            "flavors": [{"name": f"f{i}", "resources": [quota(f"r{i}", 1)]}],
                        }
                        for i in range(17)
                    ]
                },
                "too long",
                "Too many",
            ),
            (
                "600 pairs in a group",
                {
                    "spec.resourceGroups": [
                        {
                            "coveredResources": [f"r{i}" for i in range(20)],
                            "flavors": [
                                {"name": f"f{k}", "resources": [quota(f"r{i}", 1) for i in range(20)]}
                                for k in range(30)
                            ],
                        }
                    ]
                },
                "more than 512 pairs",
            ),
            (
                "300 flavors",
                {
                    "spec.resourceGroups": [
                        {
                            "coveredResources": [f"r{g}"],
                            "flavors": [{"name": f"f{g}-{i}", "resources": [quota(f"r{g}", 1)]} for i in range(60)],
                        }
                        for g in range(5)
                    ]
                },
                "more than 256 flavors",
            ),
            (
                "unknown strategy",
                {"spec.queueingStrategy": "FIFO"},
                "'StrictFIFO' or 'BestEffortFIFO'",
                "Unsupported value",
            ),
            ("unknown stopPolicy", {"spec.stopPolicy": "Stop"}, "Unsupported value"),
            ("unknown preemption", {"spec.preemption": {"withinClusterQueue": "Any"}}, "Unsupported value"),
            ("unknown reclaim", {"spec.preemption": {"reclaimWithinCohort": "Always"}}, "Unsupported value"),
            (
                "borrowing eviction without reclaim",
                {
                    "spec.preemption": {
                        "reclaimWithinCohort": "Never",
                        "borrowWithinCohort": {"policy": "LowerPriority"},
                    }
                },
                "needs reclaimWithinCohort",
            ),
            (
                "preference without both",
                {"spec.flavorFungibility": {"preference": "BorrowingOverPreemption"}},
                "preference chooses among flavors that were all tried",
            ),
            ("cohort with a line's end", {"spec.cohortName": "lab\n"}, "is no object name", _MATCH),
            ("quota with a line's end", {f"{_Q0}.nominalQuota": "8\n"}, _AMOUNT),
            ("negative weight", {"spec.fairSharing": {"weight": -1}}, _WEIGHT),
            ("negative weight as text", {"spec.fairSharing": {"weight": "-0.5"}}, _WEIGHT),
            ("tiny weight", {"spec.fairSharing": {"weight": "1n"}}, _WEIGHT),
            ("huge weight", {"spec.fairSharing": {"weight": "1G"}}, _WEIGHT),
            ("weight that is a word", {"spec.fairSharing": {"weight": "heavy"}}, _WEIGHT),
            ("weight unquoted", {"spec.fairSharing": {"weight": 0.5}}, "in quotes", "must be of type"),
            (
                "check twice",
                {"spec.admissionChecksStrategy": {"admissionChecks": [{"name": "a"}, {"name": "a"}]}},
                "Duplicate value",
            ),
            (
                "no checks",
                {"spec.admissionChecksStrategy": {"admissionChecks": []}},
                "empty",
                "should have at least 1 items",
            ),
            (
                "flavor of a check twice",
                {"spec.admissionChecksStrategy": {"admissionChecks": [{"name": "a", "onFlavors": ["x", "x"]}]}},
                "Duplicate value",
            ),
            (
                "selector In without values",
                {"spec.namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
                "In and NotIn need values",
            ),
            (
                "selector Exists with values",
                {"spec.namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
                "In and NotIn need values",
            ),
            (
                "selector operator",
                {"spec.namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
                "Unsupported value",
            ),
            ("spec as a list", {"spec": []}, "write a mapping", "must be of type object"),
            ("admission scope", {"spec.admissionScope": {"admissionMode": "Usage"}}, "Unsupported value"),
        ],
    ),
    Row(
        "ClusterQueue: no name", edited(CQ, {"metadata.name": GONE}), "write a name", "name or generateName is required"
    ),
    Row("ClusterQueue: name", edited(CQ, {"metadata.name": "Team_A"}), _NAME, "RFC 1123"),
    # Cohort, wrong.
    *refused(
        COHORT,
        [
            ("its own parent", {"spec.parentName": "lab"}, "parentName names the Cohort itself"),
            (
                "limits without a parent",
                {
                    "spec.parentName": GONE,
                    "spec.resourceGroups": [
                        {
                            "coveredResources": ["cpu"],
                            "flavors": [{"name": "f", "resources": [quota("cpu", 1, borrowingLimit=5)]}],
                        }
                    ],
                },
                "write parentName",
            ),
            (
                "flavor in two groups",
                {
                    "spec.resourceGroups": [
                        _GROUP,
                        edited(_GROUP, {"coveredResources": ["r"], "flavors[0].resources[0].name": "r"}),
                    ]
                },
                "a flavor stands in two",
            ),
            ("parent that is no name", {"spec.parentName": "a/b"}, _NAME, _MATCH),
            ("negative weight", {"spec.fairSharing": {"weight": "-1"}}, _WEIGHT),
        ],
    ),
    # LocalQueue, wrong.
    *refused(
        LQ,
        [
            ("no ClusterQueue", {"spec.clusterQueue": GONE}, "Required value"),
            ("null ClusterQueue", {"spec.clusterQueue": None}, "Required value"),
            ("empty ClusterQueue", {"spec.clusterQueue": ""}, _NAME, "should be at least 1 chars"),
            ("queue in another namespace", {"spec.clusterQueue": "other/team-a"}, _NAME, _MATCH),
            ("no spec", {"spec": GONE}, "Required value"),
            ("stopPolicy", {"spec.stopPolicy": "hold"}, "Unsupported value"),
            ("weight", {"spec.fairSharing": {"weight": "-1"}}, _WEIGHT),
        ],
    ),
    *updates(
        LQ,
        [
            ("another ClusterQueue", {"spec.clusterQueue": "team-b"}, "delete this LocalQueue and create it"),
            ("stopped", {"spec.stopPolicy": "HoldAndDrain"}, None),
        ],
    ),
    # ResourceFlavor, wrong.
    *refused(
        FLAVOR,
        [
            (
                "topology without labels",
                {"spec.nodeLabels": GONE, "spec.topologyName": "dc"},
                "topologyName needs nodeLabels",
            ),
            (
                "topology with empty labels",
                {"spec.nodeLabels": {}, "spec.topologyName": "dc"},
                "topologyName needs nodeLabels",
            ),
            ("elastic with topology", {"spec.elastic": True, "spec.topologyName": "dc"}, "drop one of the two"),
            ("elastic as text", {"spec.elastic": "yes"}, "write true or false", "must be of type boolean"),
            ("placement", {"spec.placement": "Pile"}, "Unsupported value"),
            ("label value", {"spec.nodeLabels": {"gpu": "h 100"}}, "is no label value", _MATCH),
            ("label value as a number", {"spec.nodeLabels": {"gpu": 100}}, "write text", "must be of type string"),
            ("9 labels", {"spec.nodeLabels": {f"l{i}": "x" for i in range(9)}}, "too long", "Too many"),
            ("taint effect", {"spec.nodeTaints": [{"key": "a", "effect": "Never"}]}, "Unsupported value"),
            ("taint without effect", {"spec.nodeTaints": [{"key": "a"}]}, "Required value"),
            (
                "9 taints",
                {"spec.nodeTaints": [{"key": f"a{i}", "effect": "NoSchedule"} for i in range(9)]},
                "too long",
                "Too many",
            ),
            ("toleration without key", {"spec.tolerations": [{"effect": "NoSchedule"}]}, "without a key"),
            (
                "toleration value",
                {"spec.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
                "takes no value",
            ),
            (
                "toleration seconds",
                {
                    "spec.tolerations": [
                        {"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}
                    ]
                },
                "needs effect: NoExecute",
            ),
            ("toleration operator", {"spec.tolerations": [{"key": "a", "operator": "In"}]}, "Unsupported value"),
        ],
    ),
    *updates(
        edited(FLAVOR, {"spec.topologyName": "dc"}),
        [
            ("labels under a topology", {"spec.nodeLabels.gpu": "a100"}, "a flavor with a topology keeps its nodes"),
            ("another topology", {"spec.topologyName": "dc2"}, "a flavor with a topology keeps its nodes"),
            ("topology dropped", {"spec.topologyName": GONE}, "a flavor with a topology keeps its nodes"),
            ("taints under a topology", {"spec.nodeTaints": [{"key": "a", "effect": "NoSchedule"}]}, "keeps its nodes"),
            ("placement under a topology", {"spec.placement": "Pack"}, None),
        ],
    ),
    *updates(
        FLAVOR,
        [("labels", {"spec.nodeLabels.gpu": "a100"}, None), ("topology added", {"spec.topologyName": "dc"}, None)],
    ),
    # Topology, wrong.
    *refused(
        TOPOLOGY,
        [
            ("no levels", {"spec.levels": []}, "empty", "should have at least 1 items"),
            (
                "level twice",
                {"spec.levels": [{"nodeLabel": "rack"}, {"nodeLabel": "rack"}]},
                "a nodeLabel stands twice",
            ),
            (
                "hosts above racks",
                {"spec.levels": [{"nodeLabel": "kubernetes.io/hostname"}, {"nodeLabel": "rack"}]},
                "can only be the last level",
            ),
            ("level that is no label", {"spec.levels[0].nodeLabel": "my rack"}, "is no label key", _MATCH),
            ("empty level", {"spec.levels[0].nodeLabel": ""}, "is no label key", _MATCH),
            ("17 levels", {"spec.levels": [{"nodeLabel": f"l{i}"} for i in range(17)]}, "too long", "Too many"),
            ("levels left out", {"spec.levels": GONE}, "Required value"),
        ],
    ),
    *updates(
        TOPOLOGY,
        [
            (
                "level inserted above hosts",
                {
                    "spec.levels": [
                        {"nodeLabel": "block"},
                        {"nodeLabel": "rack"},
                        {"nodeLabel": "kubernetes.io/hostname"},
                    ]
                },
                None,
            )
        ],
    ),
    *updates(
        edited(TOPOLOGY, {"spec.levels[1]": GONE}),
        [("levels changed", {"spec.levels[0].nodeLabel": "block"}, "levels can change only while")],
    ),
    # AdmissionCheck and WorkloadPriorityClass, wrong.
    *refused(
        CHECK,
        [
            ("no controller", {"spec.controllerName": GONE}, "Required value"),
            ("empty controller", {"spec.controllerName": ""}, "empty", "should be at least 1 chars"),
            ("parameters without a name", {"spec.parameters": {"apiGroup": "a.b", "kind": "K"}}, "Required value"),
            ("parameters kind", {"spec.parameters": {"apiGroup": "a.b", "kind": "a b", "name": "n"}}, "match"),
        ],
    ),
    *updates(CHECK, [("another controller", {"spec.controllerName": "x"}, "controllerName cannot change")]),
    *refused(
        CLASS,
        [
            ("no value", {"value": GONE}, "Required value"),
            ("value as text", {"value": "high"}, "write a whole number", "must be of type integer"),
            ("value out of range", {"value": 2**31}, "out of range for int32", "int32"),
            ("long description", {"description": "x" * 2049}, "too long", "Too long"),
        ],
    ),
    # Workload, wrong.
    *refused(
        WL,
        [
            ("no pod sets", {"spec.podSets": []}, "empty", "should have at least 1 items"),
            ("pod sets left out", {"spec.podSets": GONE}, "Required value"),
            (
                "19 pod sets",
                {"spec.podSets": [{"name": f"p{i}", "template": TEMPLATE} for i in range(19)]},
                "too long",
                "Too many",
            ),
            ("pod set twice", {"spec.podSets[+]": {"name": "main", "template": TEMPLATE}}, "Duplicate value"),
            ("pod set twice by default", {"spec.podSets[+]": {"template": TEMPLATE}}, "Duplicate value"),
            ("pod set name", {"spec.podSets[0].name": "Main"}, "is no pod set name", _MATCH),
            ("no template", {"spec.podSets[0].template": GONE}, "Required value"),
            ("template as text", {"spec.podSets[0].template": "pod"}, "write a mapping", "must be of type object"),
            ("negative count", {"spec.podSets[0].count": -1}, "too small", "should be greater than or equal to 0"),
            ("count as text", {"spec.podSets[0].count": "4"}, "write a whole number", "must be of type integer"),
            ("count out of range", {"spec.podSets[0].count": 2**31}, "out of range for int32", "int32"),
            ("minCount 0", {"spec.podSets[0].minCount": 0}, "too small", "should be greater than or equal to 1"),
            ("minCount above count", {"spec.podSets[0].minCount": 5}, "minCount is more than count"),
            (
                "two minCounts",
                {
                    "spec.podSets[0].minCount": 1,
                    "spec.podSets[+]": {"name": "b", "count": 2, "minCount": 1, "template": TEMPLATE},
                },
                "minCount stands in two pod sets",
            ),
            ("queue name", {"spec.queueName": "other/main"}, _NAME, _MATCH),
            (
                "class without priority",
                {"spec.priorityClassRef": {"group": "muster.dev", "kind": "WorkloadPriorityClass", "name": "u"}},
                "needs priority",
            ),
            (
                "class of another group",
                {
                    "spec.priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "u"},
                    "spec.priority": 1,
                },
                "write group: muster.dev with kind: WorkloadPriorityClass",
            ),
            (
                "group and kind crossed",
                {
                    "spec.priorityClassRef": {
                        "group": "scheduling.k8s.io",
                        "kind": "WorkloadPriorityClass",
                        "name": "u",
                    },
                    "spec.priority": 1,
                },
                "write group: muster.dev with kind: WorkloadPriorityClass",
            ),
            (
                "execution time 0",
                {"spec.maximumExecutionTimeSeconds": 0},
                "too small",
                "should be greater than or equal to 1",
            ),
            (
                "two topology requests",
                {"spec.podSets[0].topologyRequest": {"required": "rack", "preferred": "rack"}},
                "write one of required, preferred and unconstrained",
            ),
            (
                "slice without size",
                {"spec.podSets[0].topologyRequest": {"podSetSliceRequiredTopology": "rack"}},
                "podSetSliceRequiredTopology and podSetSliceSize go together",
            ),
            ("active as text", {"spec.active": "no"}, "write true or false", "must be of type boolean"),
        ],
    ),
    # Workload status.
    *updates(
        WL,
        [
            ("reserved", {"status": HELD["status"]}, None),
            (
                "as many checks as a ClusterQueue may have",
                {
                    "status.admissionChecks": [
                        {"name": f"c{i}", "state": "Pending", "lastTransitionTime": NOW, "message": ""}
                        for i in range(64)
                    ]
                },
                None,
            ),
            (
                "claim with more in it",
                {"status.claim": {"clusterQueue": "a", "until": NOW, "victims": ["u1"], "nodes": {"n": 1}}},
                None,
            ),
            (
                "what is remembered",
                {
                    "status.avoidNodes": [{"node": "n1", "until": NOW, "reason": "Unready"}],
                    "status.outOfStock": ["spot", "on-demand"],
                    "status.requeueState": {"count": 2, "requeueAt": NOW},
                    "status.schedulingStats": {
                        "evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 1}]
                    },
                },
                None,
            ),
            ("condition status", {"status.conditions": [condition("Admitted", "Yes")]}, "Unsupported value"),
            ("condition twice", {"status.conditions": [condition("A"), condition("A")]}, "Duplicate value"),
            (
                "condition without reason",
                {"status.conditions": [edited(condition("A"), {"reason": GONE})]},
                "Required value",
            ),
            (
                "condition time",
                {"status.conditions": [edited(condition("A"), {"lastTransitionTime": "today"})]},
                "is no time",
                "date-time",
            ),
            (
                "admission for other pod sets",
                {"status": edited(HELD, {"status.admission.podSetAssignments[0].name": "other"})["status"]},
                "one podSetAssignment for each",
            ),
            (
                "admission without pod sets",
                {"status": edited(HELD, {"status.admission.podSetAssignments": []})["status"]},
                "one podSetAssignment for each",
            ),
            (
                "usage that is a word",
                {"status": edited(HELD, {"status.admission.podSetAssignments[0].resourceUsage.cpu": "many"})["status"]},
                "is no quantity",
                _MATCH,
            ),
            ("a flavor that no object can be called", {"status.outOfStock": ["No"]}, "is no object name", _MATCH),
            ("node avoided twice", {"status.avoidNodes": [{"node": "n"}, {"node": "n"}]}, "Duplicate value"),
            (
                "check state",
                {"status.admissionChecks": [{"name": "a", "state": "Maybe", "lastTransitionTime": NOW, "message": ""}]},
                "Unsupported value",
            ),
            (
                "clusters named and chosen",
                {"status.clusterName": "a", "status.nominatedClusterNames": ["b"]},
                "drop nominatedClusterNames",
            ),
        ],
        status=True,
    ),
    *updates(
        HELD,
        [
            ("cleared", {"status.admission": GONE, "status.conditions": [condition("QuotaReserved", "False")]}, None),
            (
                "moved to another queue",
                {"status.admission.clusterQueue": "b"},
                "status.admission can be set and cleared",
            ),
            (
                "another flavor",
                {"status.admission.podSetAssignments[0].flavors.cpu": "a100"},
                "status.admission can be set and cleared",
            ),
            (
                "more usage",
                {"status.admission.podSetAssignments[0].resourceUsage.cpu": "5"},
                "status.admission can be set and cleared",
            ),
            ("domains", _slice(), None),
            ("domains, counted", _slice(podCounts={"individual": [1, 3]}), None),
            ("domains, one value", _slice(valuesPerLevel=[{"universal": "a"}]), None),
            (
                "domains, common parts of names",
                _slice(valuesPerLevel=[{"individual": {"prefix": "gpu-", "suffix": "-x", "roots": ["", "b"]}}]),
                None,
            ),
            (
                "too few pod counts",
                _slice(podCounts={"individual": [1]}),
                "podCounts.individual must have domainCount items",
            ),
            (
                "two pod counts",
                _slice(podCounts={"universal": 1, "individual": [1, 3]}),
                "write one of universal and individual",
            ),
            ("too few roots", _slice(valuesPerLevel=[_roots("a")]), "roots must have domainCount items"),
            (
                "roots and one value",
                _slice(valuesPerLevel=[{"universal": "c", **_roots("a", "b")}]),
                "write one of universal and individual",
            ),
            (
                "values for two levels",
                _slice(valuesPerLevel=[{"universal": "a"}, {"universal": "b"}]),
                "valuesPerLevel must have one item for each of levels",
            ),
        ],
        status=True,
    ),
    *updates(
        edited(HELD, {"status.reclaimablePods": [{"name": "main", "count": 2}]}),
        [
            ("more reclaimable", {"status.reclaimablePods[0].count": 3}, None),
            ("fewer reclaimable", {"status.reclaimablePods[0].count": 1}, "reclaimablePods can only grow"),
            ("none reclaimable", {"status.reclaimablePods": GONE}, "reclaimablePods can only grow"),
        ],
        status=True,
    ),
    *updates(
        edited(HELD, {"status.clusterName": "a"}),
        [
            ("another cluster", {"status.clusterName": "b"}, "clusterName can be cleared but not changed"),
            ("no cluster", {"status.clusterName": GONE}, None),
        ],
        status=True,
    ),
    *updates(
        HELD,
        [
            ("fewer pods while reserved", {"spec.podSets[0].count": 3}, None),
            ("more pods while reserved", {"spec.podSets[0].count": 5}, "podSets cannot change while quota is reserved"),
            (
                "minCount while reserved",
                {"spec.podSets[0].minCount": 1},
                "podSets cannot change while quota is reserved",
            ),
            (
                "another pod set while reserved",
                {"spec.podSets[+]": {"name": "b", "template": TEMPLATE}},
                "one podSetAssignment for each",
            ),
            (
                "another queue while reserved",
                {"spec.queueName": "other"},
                "queueName cannot change while quota is reserved",
            ),
            ("no queue while reserved", {"spec.queueName": GONE}, "queueName cannot change while quota is reserved"),
            (
                "a class while reserved",
                {
                    "spec.priorityClassRef": {"group": "muster.dev", "kind": "WorkloadPriorityClass", "name": "u"},
                    "spec.priority": 5,
                },
                "priorityClassRef cannot change while quota is reserved",
            ),
            ("execution time while admitted", {"spec.maximumExecutionTimeSeconds": 60}, "cannot change while admitted"),
            ("deactivated while reserved", {"spec.active": False}, None),
            ("priority while reserved", {"spec.priority": 7}, None),
        ],
    ),
    *updates(
        edited(
            HELD,
            {
                "spec.priorityClassRef": {"group": "muster.dev", "kind": "WorkloadPriorityClass", "name": "u"},
                "spec.priority": 5,
            },
        ),
        [
            ("another class of ours", {"spec.priorityClassRef.name": "v"}, None),
            (
                "a class of Kubernetes instead",
                {"spec.priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "u"}},
                "priorityClassRef cannot change",
            ),
        ],
    ),
    *updates(
        edited(
            HELD,
            {
                "spec.priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "u"},
                "spec.priority": 5,
            },
        ),
        [("another class of Kubernetes", {"spec.priorityClassRef.name": "v"}, "priorityClassRef cannot change")],
    ),
    *updates(
        WL,
        [
            ("more pods while it waits", {"spec.podSets[0].count": 9}, None),
            ("another queue while it waits", {"spec.queueName": "other"}, None),
        ],
    ),
    # Queue status, as the controller writes it.
    *updates(
        CQ,
        [
            (
                "status",
                {
                    "status": {
                        "conditions": [condition("Active")],
                        "pendingWorkloads": 3,
                        "reservingWorkloads": 2,
                        "admittedWorkloads": 2,
                        "flavorsReservation": [
                            {"name": "h100", "resources": [{"name": "cpu", "total": "4", "borrowed": "0"}]}
                        ],
                        "flavorsUsage": [{"name": "h100", "resources": [{"name": "cpu", "total": 4, "borrowed": 0}]}],
                        "fairSharing": {"weightedShare": 9223372036854775807},
                    }
                },
                None,
            ),
        ],
        status=True,
    ),
    *updates(
        COHORT,
        [
            (
                "status",
                {
                    "status": {
                        "conditions": [condition("Active", "False")],
                        "flavorsReservation": [{"name": "h100", "resources": [{"name": "cpu", "total": "4"}]}],
                        "fairSharing": {"weightedShare": 0},
                    }
                },
                None,
            )
        ],
        status=True,
    ),
    *updates(
        LQ,
        [
            (
                "status",
                {
                    "status": {
                        "pendingWorkloads": 1,
                        "fairSharing": {
                            "weightedShare": 0,
                            "admissionFairSharingStatus": {"consumedResources": {"cpu": "1500m"}, "lastUpdate": NOW},
                        },
                    }
                },
                None,
            )
        ],
        status=True,
    ),
]
