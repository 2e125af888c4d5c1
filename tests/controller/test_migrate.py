"""Kueue's quota as Muster's: what becomes of a field, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from admission.api.kinds import validate_object
from admission.controller.migrate import quota
from admission.names import KUEUE_GROUP, Names

NAMES = Names()
SPEC: dict[str, Any] = {
    "namespaceSelector": {},
    "resourceGroups": [
        {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]}
    ],
}
NEVER = {"reclaimWithinCohort": "Never"}


def theirs(kind: str, spec: dict[str, Any], version: str = "v1beta2", **meta: Any) -> dict[str, Any]:
    return {"apiVersion": f"{KUEUE_GROUP}/{version}", "kind": kind, "metadata": {"name": "x", **meta}, "spec": spec}


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a queue as it is": (
        theirs("ClusterQueue", {**SPEC, "cohortName": "c", "preemption": {"reclaimWithinCohort": "Any"}}),
        {**SPEC, "cohortName": "c", "preemption": {"reclaimWithinCohort": "Any"}},
    ),
    "what is not said means Never": (theirs("ClusterQueue", SPEC), {**SPEC, "preemption": NEVER}),
    "an older queue": (
        theirs("ClusterQueue", {**SPEC, "cohort": "c", "admissionChecks": ["ok"]}, "v1beta1"),
        {
            **SPEC,
            "cohortName": "c",
            "preemption": NEVER,
            "admissionChecksStrategy": {"admissionChecks": [{"name": "ok"}]},
        },
    ),
    "a flavor": (theirs("ResourceFlavor", {"nodeLabels": {"gpu": "h100"}}), {"nodeLabels": {"gpu": "h100"}}),
    "a LocalQueue": (theirs("LocalQueue", {"clusterQueue": "x"}, namespace="team"), {"clusterQueue": "x"}),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_object_is_translated(name):
    given, spec = ROWS[name]
    given["metadata"] |= {
        "resourceVersion": "7",
        "finalizers": [f"{KUEUE_GROUP}/resource-in-use"],
        "labels": {"team": "a", f"{KUEUE_GROUP}/managed": "true"},
    }
    (out,) = quota([given])
    assert (out["apiVersion"], out["kind"], out["spec"]) == (NAMES.api_version, given["kind"], spec)
    assert out["metadata"].get("labels") == {"team": "a"}
    assert not {"resourceVersion", "finalizers"} & set(out["metadata"])
    assert validate_object(out, NAMES, None) == []
    assert quota([out]) == [out], "what is Muster's already is left alone"


def test_what_muster_has_no_kind_for_is_left_alone():
    given = theirs("MultiKueueConfig", {"clusters": ["far"]})
    assert quota([given]) == [given]
