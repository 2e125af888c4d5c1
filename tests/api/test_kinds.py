"""Every kind, written right and wrong: what `validate_object` says, and what defaulting and pruning leave."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.api.kinds import BY_NAME, default_object, prune_object, unknown_fields, validate_object
from admission.controller.resources import ours
from admission.names import KUEUE_GROUP, Names
from admission.quantity import parse_plain
from tests.api.rows import CQ, HELD, LQ, ROWS, WL, Row, edited


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    before = copy.deepcopy(row.new)
    said = validate_object(row.new, old=row.old)
    assert row.new == before, "the object was changed by looking at it"
    if row.says is None:
        assert said == []
    else:
        assert any(row.says in message for message in said), said
        assert all(message.count(": ") for message in said), "a message begins with the path"


def test_row_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_every_problem_is_named_at_once() -> None:
    wrong = edited(
        CQ,
        {
            "spec.stopPolicy": "No",
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota": -1,
            "spec.resourceGroups[0].flavors[1].name": "A100",
        },
    )
    paths = [message.split(": ")[0] for message in validate_object(wrong)]
    assert paths == [
        "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
        "spec.resourceGroups[0].flavors[1].name",
        "spec.stopPolicy",
    ]


def test_unknown_fields_are_pruned_or_refused_with_the_nearest_name() -> None:
    wrong = edited(CQ, {"spec.cohort": "lab", "spec.resourceGroups[0].flavors[0].resources[0].nominalquota": 1})
    assert validate_object(wrong) == []
    said = validate_object(wrong, strict=True)
    assert said == unknown_fields(wrong)
    assert 'unknown field "spec.cohort": did you mean cohortName?' in said
    assert any("did you mean nominalQuota?" in message for message in said)
    assert prune_object(wrong) == CQ
    # What is kept as it is: metadata, pod templates, claims.
    kept = edited(
        WL, {"metadata.labels": {"a": "b"}, "spec.podSets[0].template.spec.tolerations": [], "status.claim.x": 1}
    )
    assert unknown_fields(kept) == []
    assert prune_object(kept) == kept


def test_defaults() -> None:
    done = default_object(edited(CQ, {"spec.fairSharing": {}, "spec.preemption": None}))
    assert done["spec"]["fairSharing"] == {"weight": 1}
    assert done["spec"]["preemption"] == {"withinClusterQueue": "Never"}  # reclaimWithinCohort: the preset decides
    assert done["spec"]["flavorFungibility"] == {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}
    assert done["spec"]["stopPolicy"] == "None"
    assert done["spec"]["queueingStrategy"] == "BestEffortFIFO"
    assert "status" not in done
    assert default_object(done) == done
    bare = {k: v for k, v in CQ.items() if k != "spec"}
    assert default_object(bare)["spec"]["queueingStrategy"] == "BestEffortFIFO"
    workload = default_object(edited(WL, {"spec.podSets": [{"template": {}}]}))
    assert workload["spec"]["podSets"] == [{"template": {}, "name": "main", "count": 1}]
    assert workload["spec"]["active"] is True


def test_kueue_group() -> None:
    names = Names(KUEUE_GROUP)
    ours: dict[str, Any] = edited(WL, {"spec.priority": 1})
    ours["spec"]["priorityClassRef"] = {"group": KUEUE_GROUP, "kind": "WorkloadPriorityClass", "name": "u"}
    assert validate_object(ours, names) == ["apiVersion: 'muster.dev/v1beta1': write kueue.x-k8s.io/v1beta2"]
    theirs = edited(ours, {"apiVersion": "kueue.x-k8s.io/v1beta2"})
    assert validate_object(theirs, names) == []
    assert validate_object(edited(theirs, {"spec.priorityClassRef.group": "muster.dev"}), names) != []


@pytest.mark.parametrize(
    ("obj", "says"),
    [
        ({}, "kind: None is none of"),
        ({"kind": "Job"}, "kind: 'Job' is none of"),
        ({"kind": "Workload", "apiVersion": "muster.dev/v1"}, "write muster.dev/v1beta1"),
        ({**LQ, "metadata": None}, "metadata: write a mapping"),
    ],
)
def test_not_an_object_of_ours(obj: dict[str, Any], says: str) -> None:
    assert any(says in message for message in validate_object(obj))


@pytest.mark.parametrize("name", BY_NAME)
def test_the_controller_asks_for_a_kind_where_it_is_served(name: str) -> None:
    asked = ours(Names(), name)
    assert (asked.plural, asked.namespaced) == (BY_NAME[name].plural, BY_NAME[name].namespaced)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_PATHS = [
    "spec",
    "status",
    "metadata",
    "metadata.name",
    "spec.podSets",
    "spec.podSets[0]",
    "spec.podSets[0].count",
    "spec.podSets[0].topologyRequest",
    "spec.priorityClassRef",
    "status.conditions",
    "status.conditions[0]",
    "status.admission",
    "status.admission.podSetAssignments",
    "status.admission.podSetAssignments[0].flavors",
    "status.claim",
    "status.reclaimablePods",
]


@settings(deadline=None)
@given(st.sampled_from(_PATHS), _json)
def test_no_input_is_an_exception(path: str, value: Any) -> None:
    wrong = edited(HELD, {path: value})
    for new, old in ((wrong, None), (wrong, HELD), (HELD, wrong)):
        assert all(isinstance(message, str) for message in validate_object(new, old=old, strict=True))


@settings(deadline=None)
@given(st.from_regex(r"[+-]?[0-9]{0,4}(\.[0-9]{0,3})?([kMGTPEKi]|m|Ki|Mi|Gi|e[0-9]|E-?[0-9])?", fullmatch=True))
def test_an_accepted_amount_is_a_number_from_0_to_1ei(text: str) -> None:
    path = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
    if not validate_object(edited(CQ, {path: text})):
        assert 0 <= parse_plain(text) <= 2**60


def test_every_kind_has_rows() -> None:
    for kind in BY_NAME:
        rows = [row for row in ROWS if row.new["kind"] == kind]
        assert any(row.says is None for row in rows)
        assert any(row.says is not None for row in rows)
