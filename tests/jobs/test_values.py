from __future__ import annotations

import copy
import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.controller.defaults import Defaults
from admission.engine import order
from admission.engine.model import (
    Admission,
    AvoidedNode,
    ClaimRecord,
    Domain,
    PodSet,
    PodSetAssignment,
    PodShape,
    Quota,
    Requirement,
    StopPolicy,
    TopologyAssignment,
    UsageFairness,
    of_class_label,
)
from admission.jobs import values
from admission.jobs.devices import Asks, DeviceClass, Devices, Template
from admission.jobs.kinds import JOB, JOBSET, view
from admission.jobs.pins import start
from admission.jobs.requests import Limits
from admission.jobs.workload import build_workload, matches, workload_name
from admission.names import EQUAL_COMPLETIONS, HOSTNAME_LABEL, KUEUE_GROUP, MUSTER_GROUP, OF_DEVICE_CLASS, Names
from admission.quantity import INT64_MAX
from tests.jobs.test_kinds import job
from tests.jobs.test_pins import patched

NAMES = Names()
BY_CLASS = f"{OF_DEVICE_CLASS}gpu"
Json = dict[str, Any]
CASES = Path(os.environ.get("CASES") or Path(__file__).parents[3] / "shared" / "conformance" / "cases")

READERS = {
    "clusterQueues": values.cluster_queue,
    "cohorts": values.cohort,
    "localQueues": values.local_queue,
    "resourceFlavors": values.flavor,
    "topologies": values.topology,
    "admissionChecks": values.admission_check,
    "namespaces": values.namespace,
    "nodes": values.node,
    "workloads": values.workload,
}

hosts = st.lists(st.text("abc-.019", min_size=1, max_size=6), min_size=1, max_size=6)


@given(hosts, st.data())
def test_a_placement_is_stored_and_read_back(names: list[str], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=len(names), max_size=len(names)))
    domains = tuple(Domain((name,), count) for name, count in zip(names, counts, strict=True))
    value = TopologyAssignment((HOSTNAME_LABEL,), domains)
    stored = values.topology_assignment_object(value)
    assert values.topology_assignment(json.loads(json.dumps(stored))) == value
    for part in stored["slices"]:
        for column in part["valuesPerLevel"]:
            assert all(column.get("individual", {"roots": ["x"]})["roots"])


def test_of_nodes_only_the_name_is_stored() -> None:
    value = TopologyAssignment(("rack", HOSTNAME_LABEL), (Domain(("r1", "n-01"), 2), Domain(("r2", "n-02"), 2)))
    assert values.topology_assignment_object(value) == {
        "levels": [HOSTNAME_LABEL],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [{"individual": {"prefix": "n-0", "roots": ["1", "2"]}}],
                "podCounts": {"universal": 2},
            }
        ],
    }
    racks = TopologyAssignment(("block", "rack"), (Domain(("b", "r1"), 1), Domain(("b", "r2"), 3)))
    assert values.topology_assignment(values.topology_assignment_object(racks)) == racks


@pytest.mark.parametrize(
    "part",
    [
        {"valuesPerLevel": [{"universal": "r"}, {"individual": {"roots": ["c"]}}], "podCounts": {"universal": 1}},
        {"valuesPerLevel": [{"individual": {"roots": ["r"]}}, {"universal": "c"}], "podCounts": {"universal": 1}},
        {"valuesPerLevel": [{"universal": "r"}, {"universal": "c"}], "podCounts": {"individual": [1]}},
        {"valuesPerLevel": [{"universal": "r"}, {"universal": "c"}]},
        {"valuesPerLevel": [{"universal": "r"}], "podCounts": {"universal": 1}},
    ],
    ids=["fewer nodes", "fewer racks", "fewer counts", "no counts", "a level too few"],
)
def test_what_does_not_add_up_in_a_placement_is_passed_over(part: dict[str, Any]) -> None:
    good = {"domainCount": 1, "valuesPerLevel": [{"universal": "r"}, {"universal": "n"}], "podCounts": {"universal": 3}}
    stored = {"levels": ["rack", HOSTNAME_LABEL], "slices": [{"domainCount": 2, **part}, good]}
    assert values.topology_assignment(stored) == TopologyAssignment(("rack", HOSTNAME_LABEL), (Domain(("r", "n"), 3),))


ADMISSION = Admission(
    "team-a",
    (
        PodSetAssignment(
            "main",
            (("cpu", "default"), ("nvidia.com/gpu", "h100")),
            (("cpu", 1500), ("memory", 2**30), ("nvidia.com/gpu", 16)),
            2,
            TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 2),)),
        ),
    ),
)


def test_what_a_decision_remembers_comes_back() -> None:
    assert values.admission_value(values.admission_object(ADMISSION)) == (ADMISSION, [])
    claim = ClaimRecord(ADMISSION, ("u1", "u2"), 1_767_225_600_000)
    assert values.claim_value(values.claim_object(claim)) == claim
    avoid = (AvoidedNode("n1", 1_767_225_600_000, "killed it twice"),)
    status = {
        "conditions": [
            {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {
                "type": "Evicted",
                "status": "True",
                "reason": "Preempted",
                "lastTransitionTime": "2026-01-01T00:00:01Z",
            },
            {
                "type": "Preempted",
                "status": "True",
                "message": "Preempted to accommodate a workload (UID: abc, JobUID: d)",
            },
        ],
        "admission": values.admission_object(ADMISSION),
        "claim": values.claim_object(claim),
        "avoidNodes": values.avoid_object(avoid),
        "outOfStock": ["spot", "reserved", "spot"],
        "requeueState": {"requeueAt": "2026-01-01T00:00:02Z"},
        "fairEvictions": ["2026-01-01T00:00:03Z", "2026-01-01T00:00:04Z"],
        "unhealthyNodes": [{"name": "n2"}],
        "reclaimablePods": [{"name": "main", "count": 1}],
        "accumulatedPastExecutionTimeSeconds": 5,
    }
    raw = {"metadata": {"namespace": "a", "name": "w", "uid": "u"}, "spec": {"podSets": []}, "status": status}
    seen, problems = values.workload(raw, NAMES)
    assert problems == ()
    assert (seen.admission, seen.claims) == (ADMISSION, claim)
    assert (seen.avoid, seen.evicted, seen.evicted_for) == (avoid, "Preempted", "abc")
    assert seen.out_of_stock == ("spot", "reserved")
    assert (seen.reserved_at, seen.evicted_at, seen.requeue_at) == (
        1_767_225_600_000,
        1_767_225_601_000,
        1_767_225_602_000,
    )
    assert (seen.fair_evictions, seen.lost_nodes) == ((1_767_225_603_000, 1_767_225_604_000), ("n2",))
    assert (seen.reclaimable, seen.run_ms) == ((("main", 1),), 5000)
    assert not seen.admitted
    del status["admission"]
    assert values.workload(raw, NAMES)[0].lost_nodes == (), "what it lost was of the reservation that it has no more"


@pytest.mark.parametrize(
    ("queued", "evicted", "stands"),
    [
        ("", "", 0),
        ("junk", "", 0),
        ("1970-01-01T00:00:05Z", "", 5),
        ("1970-01-01T00:00:02Z", "", 2),  # by a Workload that was lost
        ("", "PodsReadyTimeout", 7),
        ("1970-01-01T00:00:05Z", "PodsReadyTimeout", 7),
        ("1970-01-01T00:00:09Z", "PodsReadyTimeout", 9),
        # Whoever lost a node stands first, but not with what it came to ask for since.
        ("", "NodeFailures", -1),
        ("1970-01-01T00:00:05Z", "NodeFailures", -1),
        ("1970-01-01T00:00:09Z", "NodeFailures", 9),
    ],
)
def test_since_when_a_gang_waits(queued: str, evicted: str, stands: int) -> None:
    """Seconds; made at 3, evicted at 7; -1: first of all, 0: by its creation."""
    at = {"lastTransitionTime": "1970-01-01T00:00:07Z"}
    conditions = [{"type": "Evicted", "status": "True", "reason": evicted, **at}] if evicted else []
    notes = {NAMES.queued_since_annotation: queued} if queued else {}
    meta = {"namespace": "a", "name": "w", "creationTimestamp": "1970-01-01T00:00:03Z", "annotations": notes}
    gang, _ = values.workload({"metadata": meta, "status": {"conditions": conditions}}, NAMES)
    assert order.stamp(gang) == (0 if stands == -1 else (stands or 3) * 1000)


@pytest.mark.parametrize(
    ("said", "boost"),
    [
        ("50", 50),
        ("-50", -50),
        ("2147483647", 2147483647),
        ("-2147483648", -2147483648),
        ("2147483648", 0),
        ("-2147483649", 0),
        ("+5", 5),
        ("1.5", 0),
        ("1_000", 0),
        (" 5", 0),
        ("9" * 5000, 0),
        ("\u0665", 0),
        ("", 0),
    ],
)
def test_a_boost_is_a_number_of_32_bits_or_none(said: str, boost: int) -> None:
    made = {"metadata": {"annotations": {NAMES.priority_boost_annotation: said}}}
    assert values.workload(made, NAMES)[0].priority_boost == boost


def test_a_bad_queue_is_a_queue_with_problems() -> None:
    raw = {
        "metadata": {"name": "q"},
        "spec": {
            "stopPolicy": "Halt",
            "fairSharing": {"weight": "-1"},
            "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "cpu", 3],
                    "flavors": [
                        {"name": "a", "resources": [{"name": "cpu", "nominalQuota": "x", "borrowingLimit": "y"}]},
                        {"name": "a", "resources": []},
                    ],
                }
            ],
        },
    }
    seen, problems = values.cluster_queue(raw, NAMES)
    assert (seen.stop_policy, seen.weight, seen.namespace_selector) == (StopPolicy.NONE, Fraction(0), None)
    assert seen.groups[0].covered == ("cpu",)
    # A limit that cannot be read is not "no limit".
    assert seen.groups[0].flavors[0].quotas == (("cpu", Quota(0, 0, None)),)
    assert len(problems) == 8


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("1e400", INT64_MAX),
        ("1e999999", INT64_MAX),
        ("1e-400", Fraction(1, 10**9)),
        ("1e-999999", Fraction(1, 10**9)),
        ("9223372036854775806.5", Fraction(2**64 - 3, 2)),
        ("0.000000001", Fraction(1, 10**9)),
    ],
)
def test_what_belongs_to_no_resource_is_counted_as_far_as_kubernetes_counts(said: str, kept: Fraction) -> None:
    """Kinds without their rules, and Kueue's, take more: it is compared with everybody's whenever something moves."""
    used = {"fairSharing": {"admissionFairSharingStatus": {"consumedResources": {"cpu": said}}}}
    raw = {"metadata": {"name": "q"}, "spec": {"fairSharing": {"weight": said}}, "status": used}
    local, _ = values.local_queue(raw, NAMES)
    assert local.weight == values.cluster_queue(raw, NAMES)[0].weight == kept
    assert dict(local.consumed) == {"cpu": pytest.approx(float(kept) * 1000)}
    assert order.usage_value(UsageFairness(1000, 1000), local, {}) > 0


_STAMP = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("spec", "conditions", "lost"),
    [
        ({}, [("Ready", "True")], None),
        ({}, [("Ready", "Unknown")], 1_767_225_600_000),
        ({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}, [("Ready", "True")], 0),
        (
            {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "timeAdded": _STAMP}]},
            [("Ready", "Unknown")],
            0,
        ),
        ({"taints": [{"key": "team", "effect": "NoExecute"}]}, [("Ready", "True")], None),
    ],
)
def test_a_lost_node(spec: Json, conditions: list[tuple[str, str]], lost: int | None) -> None:
    raw = {
        "metadata": {"name": "n"},
        "spec": spec,
        "status": {"conditions": [{"type": t, "status": s, "lastTransitionTime": _STAMP} for t, s in conditions]},
    }
    node = values.node(raw, NAMES)[0]
    assert (node.lost_since, node.ready_since) == (lost, 1_767_225_600_000 if ("Ready", "True") in conditions else 0)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "away"),
    [
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "0"}, ("nvidia.com/gpu",)),
        ({"x.io/nic": "1", "nvidia.com/gpu": "8"}, {}, ("nvidia.com/gpu", "x.io/nic")),
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "7"}, ()),
        ({"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0"}, ()),
        ({"cpu": "8", "hugepages-2Mi": "1Gi"}, {"hugepages-2Mi": "0"}, ()),
        ({"nvidia.com/gpu": "many"}, {}, ()),
    ],
)
def test_devices_that_a_node_has_and_hands_out_none_of(
    capacity: Json, allocatable: Json, away: tuple[str, ...]
) -> None:
    raw = {"metadata": {"name": "n"}, "status": {"capacity": capacity, "allocatable": allocatable}}
    assert values.node(raw, NAMES)[0].away == away


OF_A_GANG = {NAMES.managed_label: "true", NAMES.workload_uid_label: "w"}


def test_a_pod_holds_room_while_it_is_bound_and_has_not_ended() -> None:
    raw: Json = {
        "metadata": {"name": "p", "namespace": "a", "uid": "u", "labels": OF_A_GANG},
        "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}, "ports": [{"hostPort": 80}]}]},
        "status": {"phase": "Pending"},
    }
    assert values.pod_usage(raw, NAMES) is None
    raw["spec"]["nodeName"] = "n"
    seen = values.pod_usage(raw, NAMES)
    assert seen is not None
    assert (seen.requests, seen.workload_uid, seen.host_ports) == ((("cpu", 1000),), "w", ("80",))
    raw["status"]["phase"] = "Succeeded"
    assert values.pod_usage(raw, NAMES) is None


@pytest.mark.parametrize(("labels", "node"), [({}, "n"), (OF_A_GANG, None), ({NAMES.workload_uid_label: "w"}, "n")])
def test_somebody_elses_pod_holds_room_where_the_scheduler_nominated_it(labels: Json, node: str | None) -> None:
    raw: Json = {
        "metadata": {"name": "p", "namespace": "a", "uid": "u", "labels": labels},
        "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Pending", "nominatedNodeName": "n"},
    }
    seen = values.pod_usage(raw, NAMES)
    assert (None if seen is None else seen.node) == node


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["1", "True", "QuotaReserved"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    "resourceGroups",
    "coveredResources",
    "flavors",
    "name",
    "resources",
    "nominalQuota",
    "borrowingLimit",
    "namespaceSelector",
    "preemption",
    "podSets",
    "template",
    "count",
    "topologyRequest",
    "priority",
    "conditions",
    "type",
    "status",
    "admission",
    "podSetAssignments",
    "topologyAssignment",
    "slices",
    "levels",
    "valuesPerLevel",
    "podCounts",
    "domainCount",
    "universal",
    "individual",
    "roots",
    "requeueState",
    "claim",
    "avoidNodes",
    "outOfStock",
    "taints",
    "allocatable",
    "nodeLabels",
    "weight",
    "fairSharing",
    "metadata",
    "labels",
    "annotations",
    "spec",
]
OBJECTS = st.recursive(
    JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=120, deadline=None)
@given(OBJECTS, OBJECTS, OBJECTS)
def test_every_object_has_a_value(meta: Any, spec: Any, status: Any) -> None:
    raw = {"metadata": meta, "spec": spec, "status": status}
    for reader in READERS.values():
        value, problems = reader(raw, NAMES)
        hash(value)
        assert all(isinstance(problem, str) for problem in problems)
    values.pod_usage(raw, NAMES)
    values.admission_value(status)


# ---------------------------------------------------------------- Workloads of jobs


def test_a_workload_says_what_its_job_says() -> None:
    raw = job(parallelism=2, completions=2)
    raw["metadata"]["labels"] |= {NAMES.pause_label: "true", NAMES.max_exec_time_label: "60"}
    raw["metadata"]["annotations"] = {NAMES.min_parallelism_annotation: "1", NAMES.gated_by_annotation: "x"}
    runtime = {"gvisor": {"overhead": {"podFixed": {"cpu": "1"}}}}
    raw["spec"]["template"]["spec"]["runtimeClassName"] = "gvisor"
    made, problems = build_workload(
        JOB, raw, NAMES, priority=5, priority_ref=("PriorityClass", "high"), runtime_classes=runtime
    )
    assert problems == ()
    spec, meta = made["spec"], made["metadata"]
    assert (spec["queueName"], spec["priority"], spec["active"], spec["maximumExecutionTimeSeconds"]) == (
        "q",
        5,
        False,
        60,
    )
    assert spec["priorityClassRef"]["group"] == "scheduling.k8s.io"
    (pod_set,) = spec["podSets"]
    assert (pod_set["name"], pod_set["count"], pod_set["minCount"]) == ("main", 2, 1)
    assert pod_set["template"]["spec"]["overhead"] == {"cpu": "1"}
    assert meta["labels"] == {NAMES.job_uid_label: "u"}
    assert meta["ownerReferences"][0] | {"uid": "u", "controller": True} == meta["ownerReferences"][0]
    assert matches(made, JOB, raw, NAMES)
    assert values.workload(made, NAMES)[0].gated == "held back by x"
    # It is told of each job on the page, of which an answer has a thousand.
    made["metadata"]["annotations"][NAMES.gated_by_annotation] = "é" * (30 << 10)
    assert len(values.workload(made, NAMES)[0].gated) < 300
    for change in ({"parallelism": 3}, {"completions": 5}):
        assert not matches(made, JOB, {**raw, "spec": {**raw["spec"], **change}}, NAMES)


ADDED: dict[str, Json] = {
    "by a LimitRange": {"containers": [{"name": "c"}, {"name": "d", "resources": {"requests": {"cpu": "2"}}}]},
    "by a LimitRange, to all containers": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
    "by a RuntimeClass": {"containers": [{"name": "c"}], "runtimeClassName": "heavy", "tolerations": [{"key": "t"}]},
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_to_pods_stands_beside_what_kueue_compares(name: str) -> None:
    """Kueue stops a running job whose containers or tolerations are not those of its Workload."""
    kueue = Names(KUEUE_GROUP)
    usual = {"cpu": "1", "memory": "1Gi"}
    limits = {"spec": {"limits": [{"type": "Container", "default": usual, "defaultRequest": usual}]}}
    scheduling = {"nodeSelector": {"pool": "heavy"}, "tolerations": [{"key": "heavy", "operator": "Exists"}]}
    heavy = {"overhead": {"podFixed": {"cpu": "1"}}, "scheduling": scheduling}
    raw = job(parallelism=2, completions=2)
    template = raw["spec"]["template"] = {"spec": ADDED[name]}

    def made(names: Names) -> Json:
        return build_workload(JOB, raw, names, limit_ranges=[limits], runtime_classes={"heavy": heavy})[0]

    def read(names: Names) -> tuple[PodSet, ...]:
        return values.workload(made(names), names)[0].pod_sets

    plain = read(kueue)
    assert made(kueue)["spec"]["podSets"][0]["template"]["spec"] == ADDED[name]
    assert plain == read(NAMES), "and counts as it does in Workloads of Muster's kind"
    assert dict(plain[0].shape.requests)["memory"] > 0
    template["metadata"] = {"annotations": {kueue.added_annotation: '{"containers":[{}]}'}}
    assert read(kueue) == plain, "whatever its owner writes there"


@pytest.mark.parametrize("said", ["", "[]", "no", '{"containers":1,"overhead":[]}', '{"containers":[1,{}]}'])
def test_what_somebody_writes_as_added_to_pods_breaks_nothing(said: str) -> None:
    kueue = Names(KUEUE_GROUP)
    notes = {"annotations": {kueue.added_annotation: said}}
    entry = {"name": "main", "count": 1, "template": {"metadata": notes, "spec": {"containers": [{"name": "c"}]}}}
    (read,) = values.workload({"metadata": {"name": "w"}, "spec": {"podSets": [entry]}}, kueue)[0].pod_sets
    assert read.shape.requests == (), read


def test_what_its_pods_ask_for_by_claims_stands_in_the_workload() -> None:
    """Whatever its owner writes there."""
    raw = job(parallelism=2, completions=2)
    template = raw["spec"]["template"]
    template["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
    template["metadata"] = {"annotations": {NAMES.claimed_devices_annotation: "[]"}}
    before = copy.deepcopy(raw)
    gpu = DeviceClass("gpu.example.com", "example.com/gpu")
    where = raw["metadata"]["namespace"]
    two, three = (Devices([gpu, Template(where, "two", Asks((("gpu.example.com", count),)))]) for count in (2, 3))

    def shape(devices: Devices | None) -> PodShape:
        made, problems = build_workload(JOB, raw, NAMES, devices=devices)
        assert problems == ()
        assert raw == before
        if devices is not None:
            said = made["metadata"]["annotations"][NAMES.defaults_annotation]
            assert said == Defaults(devices).mark_of(view(JOB, raw, NAMES))
        return values.workload(made, NAMES)[0].pod_sets[0].shape

    own = dict(shape(None).requests)
    assert dict(shape(two).requests) == {**own, "example.com/gpu": 2}
    assert dict(shape(three).requests) == {**own, "example.com/gpu": 3}
    assert shape(two).affinity == ((Requirement(of_class_label("gpu.example.com"), "Exists"),),)
    assert shape(two).refused == ""
    assert shape(two).claimed == (("gpu.example.com", "example.com/gpu", 2),)
    assert shape(Devices([gpu])).unclear == "ResourceClaimTemplate 'two' does not exist"
    made, _ = build_workload(JOB, raw, NAMES, devices=Devices([gpu]))
    assert values.workload(made, NAMES)[0].unclear == "ResourceClaimTemplate 'two' does not exist"


@pytest.mark.parametrize(
    ("resources", "claims", "of_class", "counted"),
    [
        ({"limits": {BY_CLASS: "2"}}, [], DeviceClass("gpu", "example.com/gpu"), {"example.com/gpu": 2}),
        ({"limits": {BY_CLASS: "2"}}, [], DeviceClass("gpu"), {BY_CLASS: 2}),
        (
            {"requests": {BY_CLASS: "2", "example.com/gpu": "1"}},
            ["three"],
            DeviceClass("gpu", "example.com/gpu"),
            {"example.com/gpu": 6},
        ),
        ({"requests": {BY_CLASS: "2"}}, ["three"], DeviceClass("gpu"), {BY_CLASS: 5}),
        ({"requests": {BY_CLASS: "0"}}, [], DeviceClass("gpu", "example.com/gpu"), None),
        ({"requests": {BY_CLASS: "2"}}, [], None, "DeviceClass 'gpu' does not exist"),
    ],
)
def test_what_its_pods_ask_for_by_the_name_of_a_class(
    resources: dict[str, Any], claims: list[str], of_class: DeviceClass | None, counted: dict[str, int] | str | None
) -> None:
    """Whatever its owner writes as counted."""
    raw = job(parallelism=2, completions=2)
    template = raw["spec"]["template"]
    template["spec"]["containers"] = [{"name": "c", "resources": resources}]
    template["spec"]["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": name} for name in claims]
    template["metadata"] = {"annotations": {NAMES.claimed_devices_annotation: '[["gpu","example.com/none",0]]'}}
    three = Template(raw["metadata"]["namespace"], "three", Asks((("gpu", 3),)))
    devices = Devices([three, *([of_class] if of_class is not None else [])])
    made, problems = build_workload(JOB, raw, NAMES, devices=devices)
    assert problems == ()
    said = made["metadata"]["annotations"][NAMES.defaults_annotation]
    assert said == Defaults(devices).mark_of(view(JOB, raw, NAMES))
    value, _ = values.workload(made, NAMES)
    shape = value.pod_sets[0].shape
    assert value.unclear == (counted if isinstance(counted, str) else "")
    if isinstance(counted, dict):
        assert dict(shape.requests) == counted
        assert shape.affinity == ((Requirement(of_class_label("gpu"), "Exists"),),)
    elif counted is None:
        assert (dict(shape.requests), shape.affinity) == ({BY_CLASS: 0}, None)
    # Of one that was written before classes counted nothing is taken for another.
    if not claims:
        del made["spec"]["podSets"][0]["template"]["metadata"]["annotations"]
        plain = values.workload(made, NAMES)[0].pod_sets[0].shape
        assert (set(dict(plain.requests)), plain.uncounted) == ({BY_CLASS}, "")


def test_a_running_job_is_still_what_was_reserved() -> None:
    raw = job(parallelism=2, completions=2, suspend=True, completionMode="Indexed")
    raw["metadata"]["resourceVersion"] = "1"
    made, _ = build_workload(JOB, raw, NAMES)
    admission = Admission(
        "q", (PodSetAssignment("main", (), (), 2, TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n",), 2),))),)
    )
    running = patched(raw, start(JOB, raw, "w", admission, {}, NAMES, can_rank=True).patch)
    running["status"] = {"completedIndexes": "0", "succeeded": 1}
    assert not matches(made, JOB, running, NAMES)
    made["status"] = {"admission": values.admission_object(admission)}
    assert matches(made, JOB, running, NAMES)
    again, _ = build_workload(JOB, running, NAMES)
    assert again["metadata"]["annotations"] == made["metadata"]["annotations"]
    assert NAMES.group not in json.dumps(again["spec"])


def test_names_are_short_and_follow_from_the_uid() -> None:
    for name in ("a", "x" * 63, "y" * 300, "a." * 40):
        made = workload_name(JOB, name, "u1")
        assert len(made) <= 63
        assert made != workload_name(JOB, name, "u2")
        assert made == workload_name(JOB, name, "u1")


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not here")
def test_the_cases_are_read_without_loss() -> None:
    names = Names(KUEUE_GROUP)
    admissions = 0
    for file in sorted(CASES.glob("*.json")):
        for case in json.loads(file.read_text())["cases"]:
            for key, reader in {**READERS, "admitted": values.workload}.items():
                for raw in case["inputs"].get(key) or ():
                    if not isinstance(raw, dict):
                        continue
                    value, _ = reader(raw, names)
                    stored = raw.get("status", {}).get("admission")
                    if getattr(value, "admission", None) is not None and "delayedTopologyRequest" not in json.dumps(
                        stored
                    ):
                        admissions += 1
                        assert values.admission_object(value.admission) == stored
    assert admissions > 200


@pytest.mark.parametrize(
    ("said", "kib"),
    [
        ("x" * 1_048_000, None),
        ("x" * 1_048_576, 1025),
        ("é" * 520_000, None),
        ("é" * 530_000, 1036),
        ("<>&" * 50_000, None),
        ("<>&" * 60_000, 1055),
        ("\u0001" * 180_000, 1055),
    ],
    ids=lambda said: f"{said[:3]!r} {len(said)}" if isinstance(said, str) else None,
)
def test_templates_that_leave_no_room_for_a_decision_are_said_and_not_tried(said: str, kib: int | None) -> None:
    """As the store would count them: JSON, in which what is special in HTML is escaped."""
    raw = job()
    raw["spec"]["template"]["spec"]["containers"][0]["args"] = [said]
    _, problems = build_workload(JOB, raw, NAMES)
    assert [f"come to {kib} KiB of JSON" in problem for problem in problems] == ([] if kib is None else [True])


@pytest.mark.parametrize(
    ("queue", "can_be"),
    [("main", True), ("a.b-1", True), ("MAIN", False), ("a_b", False), ("a..b", False), ("a.-b", False)],
)
def test_a_label_that_no_local_queue_can_be_called_is_said_and_not_tried(queue: str, can_be: bool) -> None:
    """A label value may be more than a name of an object; CRDs refuse a Workload with such a queue."""
    _, problems = build_workload(JOB, job(labels={NAMES.queue_label: queue}), NAMES)
    assert [repr(queue) in problem for problem in problems] == ([] if can_be else [True])


@pytest.mark.parametrize(("replicas", "pods"), [(1, None), (2, 2**31), (2**31 - 1, 2**30 * (2**31 - 1))])
def test_more_pods_than_a_workload_can_count_are_said_and_not_tried(replicas: int, pods: int | None) -> None:
    """Of the Jobs of a JobSet each may have as many as the kind allows."""
    raw = job(parallelism=2**30, completions=2**30)
    inner = {key: value for key, value in raw["spec"].items() if key != "suspend"}
    entry = {"name": "workers", "replicas": replicas, "template": {"spec": inner}}
    made = {**raw, "apiVersion": JOBSET.api_version, "kind": "JobSet", "spec": {"replicatedJobs": [entry]}}
    _, problems = build_workload(JOBSET, made, NAMES, limits=Limits(child_jobs=2**31))
    wanted = [f"pod set workers: {pods} pods are more than a Workload can have of one (2147483647)"] if pods else []
    assert [one for one in problems if "pods are more" in one] == wanted


@pytest.mark.parametrize("group", [MUSTER_GROUP, KUEUE_GROUP])
def test_a_job_with_a_workload_that_another_makes_is_not_charged_for_both(group: str) -> None:
    names = Names(group)
    for form in ("labels", "annotations"):
        made = job()
        made["metadata"][form] = {names.prebuilt_label: "mine"}
        _, problems = build_workload(JOB, made, names)
        assert ["'mine' would be charged beside" in problem for problem in problems] == [True]


@pytest.mark.parametrize(
    ("spec", "status", "fewest"),
    [
        ({"parallelism": 4, "completions": 4}, {}, 3),
        ({"parallelism": 4, "completions": 4}, {"succeeded": 2}, 2),
        ({"parallelism": 4, "completions": 9}, {"succeeded": 2}, 3),
        ({"parallelism": 4, "completions": 2}, {}, 2),
    ],
)
def test_of_a_job_that_is_partly_done_no_more_pods_must_start_than_are_left(
    spec: dict[str, Any], status: dict[str, Any], fewest: int
) -> None:
    raw = job(**spec)
    raw["status"], raw["metadata"]["annotations"] = status, {NAMES.min_parallelism_annotation: "3"}
    made, problems = build_workload(JOB, raw, NAMES)
    assert (made["spec"]["podSets"][0].get("minCount"), problems) == (fewest, ())


@pytest.mark.parametrize(("follows", "fewest"), [("true", None), ("T", None), ("false", 1), ("", 1), ("x", 1)])
def test_a_job_whose_completions_follow_its_parallelism_runs_whole(follows: str, fewest: int | None) -> None:
    """With fewer pods and as many completions, its ranks would run one after the other."""
    raw = job(parallelism=2, completions=2)
    raw["metadata"]["annotations"] = {NAMES.min_parallelism_annotation: "1", EQUAL_COMPLETIONS: follows}
    made, problems = build_workload(JOB, raw, NAMES)
    assert (made["spec"]["podSets"][0].get("minCount"), problems) == (fewest, ())
    told = view(JOB, raw, NAMES).unknown_keys
    assert [EQUAL_COMPLETIONS in one for one in told] == ([] if fewest else [True])
