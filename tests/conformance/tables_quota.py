"""Tables of quota, shares and flavor assignment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission.controller import queue_status as status
from admission.engine import flavors as scan
from admission.engine.flavors import Assignment, Mode
from admission.engine.ledger import Ledger
from admission.engine.model import Admission, ClusterQueue, FlavorResource, Fungibility, PodSetAssignment, Put, Workload
from admission.engine.quota import QuotaNode
from admission.engine.state import State
from admission.quantity import INT64_MAX, saturate
from tests.conformance import objects
from tests.conformance.registry import Json, differences, table

# ---------------------------------------------------------------- the ledger


@table("TestAvailable")
def available(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    queues = objects.cluster_queues(inputs["clusterQueues"])
    book = objects.ledger(objects.rules_of(case["config"]), queues, objects.cohorts(inputs.get("cohorts")))

    def amounts(of: str) -> dict[str, dict[str, Any]]:
        out: dict[str, dict[str, Any]] = {}
        for queue in queues:
            node = _node(book, queue.name)
            ask = node.potential if of == "potential" else node.available
            out[queue.name] = {f"{f}/{r}": _bounded(ask((f, r))) for f, r in node.quotas}
        return out

    got = {"wantPotentiallyAvailable": amounts("potential")}
    for name, used in (inputs.get("usage") or {}).items():
        book.tree.add(_node(book, name), objects.usage(used))
    got["wantAvailable"] = amounts("available")
    return differences(expected, got)


def _node(book: Ledger, name: str) -> QuotaNode:
    node = book.tree.queue(name)
    assert node is not None, name
    return node


def _bounded(amount: int) -> int | str:
    return "unlimited" if saturate(amount) == INT64_MAX else saturate(amount)


@table("TestDominantResourceShare")
def dominant_resource_share(case: Json) -> list[str]:
    inputs = case["inputs"]
    queues = [
        *objects.cluster_queues(inputs["clusterQueue"]),
        *objects.cluster_queues(inputs.get("lendingClusterQueue")),
    ]
    book = objects.ledger(
        objects.rules_of(case["config"]),
        queues,
        objects.cohorts(inputs.get("cohorts")),
        {queues[0].name: objects.usage(inputs.get("usage"))},
    )
    extra = objects.usage(inputs.get("flvResQ"))

    def row(node: QuotaNode) -> Json:
        share = node.share(extra)
        return {
            "Name": node.name,
            "NodeType": not node.is_queue,
            "DrValue": share.value_status(),
            "DrName": share.dominant,
            "Borrowing": share.borrowing,
        }

    got = [row(node) for node in (*book.tree.queues(), *book.tree.cohorts())]
    want = [{"DrName": "", **entry} for entry in case["expected"]["want"]]
    by_name = lambda rows: {f"{entry['NodeType']}/{entry['Name']}": entry for entry in rows}  # noqa: E731
    return differences(by_name(want), by_name(got))


def _quota(name: str, cohort: str, **nominal: str) -> Json:
    resources = {"cpu": "cpu", "gpu": "example.com/gpu"}
    return {
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "cohortName": cohort,
            "resourceGroups": [
                {
                    "coveredResources": [resources[key] for key in nominal],
                    "flavors": [
                        {
                            "name": "default",
                            "resources": [
                                {"name": resources[key], "nominalQuota": value} for key, value in nominal.items()
                            ],
                        }
                    ],
                }
            ],
        },
    }


@table("TestIsBorrowingOn")
def is_borrowing_on(case: Json) -> list[str]:
    # The fixture stands outside the rows of this table: the queue asked about, and one that lends.
    raw = [_quota("cq", "cohort", cpu="2", gpu="5"), _quota("lending-cq", "cohort", cpu="8", gpu="5")]
    book = objects.ledger(
        objects.rules_of(case["config"]),
        objects.cluster_queues(raw),
        used={"cq": objects.usage(case["inputs"].get("usage"))},
    )
    share = _node(book, "cq").share()
    asked = [fr for fr, amount in objects.usage(case["inputs"].get("requestedFRs")).items() if amount > 0]
    got = {"wantBorrowing": share.borrowing, "wantBorrowingOnRequested": share.borrows_any(asked)}
    return differences(case["expected"], got)


def _wanted_usage(raw: list[Json] | None) -> list[Json]:
    return [
        {
            "name": flavor["name"],
            "resources": [
                {
                    key: value if key == "name" else objects.amounts({row["name"]: value})[row["name"]]
                    for key, value in row.items()
                }
                for row in flavor["resources"]
            ],
        }
        for flavor in raw or ()
    ]


def _state(case: Json, *values: Any) -> State:
    state = State(objects.rules_of(case["config"]))
    for value in values:
        state.apply(Put(value))
    return state


@table("TestClusterQueueUsage")
def cluster_queue_usage(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    (queue,) = objects.cluster_queues(inputs["clusterQueue"])
    numbers = _state(case, queue, *objects.workloads(inputs.get("workloads"))).queue_numbers(queue.name)
    got = {
        "wantReservedResources": _wanted_usage(status.flavors(numbers, reserved=True)),
        "wantUsedResources": _wanted_usage(status.flavors(numbers, reserved=False)),
        "wantReservingWorkloads": numbers.reserving,
        "wantAdmittedWorkloads": numbers.admitted,
    }
    want = {"wantReservingWorkloads": 0, "wantAdmittedWorkloads": 0, **expected}
    for key in ("wantReservedResources", "wantUsedResources"):
        want[key] = _wanted_usage(expected.get(key))
    return differences(want, got)


@table("TestLocalQueueUsage")
def local_queue_usage(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    (queue,) = objects.cluster_queues(inputs["cq"])
    (local,) = objects.local_queues(inputs["localQueue"])
    # What is waiting is given by name; that it waits comes of its not holding quota.
    gangs = objects.workloads(inputs.get("wls"))
    state = _state(case, queue, local, *gangs)
    numbers = state.local_queue_numbers((local.namespace, local.name))
    got = {
        "wantUsage": _wanted_usage(status.flavors(numbers, reserved=True, borrowed=False)),
        "inAdmissibleWl": sorted(gang.name for gang in gangs if gang.admission is None),
    }
    want = {
        "wantUsage": _wanted_usage(expected["wantUsage"]),
        "inAdmissibleWl": sorted(expected.get("inAdmissibleWl") or ()),
    }
    return differences(want, got)


# ---------------------------------------------------------------- flavors

_MODES = {"NoCandidates": Mode.NO_CANDIDATES, "Preempt": Mode.PREEMPT, "Reclaim": Mode.RECLAIM}
_MODE_NAME = dict.fromkeys(Mode, "Preempt") | {Mode.NO_FIT: "NoFit", Mode.FIT: "Fit"}
_POSSIBILITY = {mode: name for name, mode in _MODES.items()}


def oracle_of(raw: Mapping[str, Json] | None) -> scan.Oracle:
    """The stub that a case names; where it says nothing, eviction is possible without borrowing."""
    said = {objects.pair(key): entry for key, entry in (raw or {}).items()}

    def oracle(_node: QuotaNode, fr: FlavorResource, _amount: int) -> tuple[Mode, int]:
        entry = said.get(fr)
        if entry is None:
            return Mode.PREEMPT, 0
        return _MODES[entry["preemptionPossiblity"]], entry["borrowingAfterSimulation"]

    return oracle


def assignment_json(assignment: Assignment) -> Json:
    """An assignment in the form of the cases; reasons only by whether there are any."""
    pod_sets = []
    for choice in assignment.pod_sets:
        attempts = []
        for attempt in choice.attempts:
            row: Json = {
                "Borrow": attempt.borrow,
                "Flavor": attempt.flavor,
                "Mode": _MODE_NAME[attempt.mode],
                "Reasons": bool(attempt.shortfalls),
            }
            if attempt.mode in _POSSIBILITY:
                row["PreemptionPossibility"] = _POSSIBILITY[attempt.mode]
            if attempt.reason is not None:
                row["NoFitReason"] = attempt.reason.value
            attempts.append(row)
        pod_sets.append(
            {
                "Name": choice.name,
                "Count": choice.request.count,
                "Requests": dict(choice.request.total),
                "Flavors": {
                    resource: {
                        "Name": got.flavor,
                        "Mode": _MODE_NAME[got.mode],
                        "TriedFlavorIdx": got.tried,
                        "borrow": got.borrow,
                    }
                    for resource, got in choice.flavors.items()
                },
                "FlavorAssignmentAttempts": attempts,
                "Status": bool(choice.shortfalls or choice.misfits or choice.error),
            }
        )
    return {
        "Borrowing": assignment.borrow,
        "NoFitReason": assignment.reason.value if assignment.reason is not None else "",
        "PodSets": pod_sets,
        "Assigned": objects.usage_json(assignment.usage),
    }


def wanted_assignment(raw: Json, *, heights: bool) -> Json:
    pod_sets = []
    for pod_set in raw.get("PodSets") or ():
        flavors = {}
        for resource, got in (pod_set.get("Flavors") or {}).items():
            flavors[resource] = {"Mode": "NoFit", **got}
            if not heights:
                flavors[resource].pop("borrow", None)
        pod_sets.append(
            {
                "Name": pod_set["Name"],
                "Count": pod_set.get("Count", 0),
                "Requests": objects.amounts(pod_set.get("Requests")),
                "Flavors": flavors,
                "FlavorAssignmentAttempts": [
                    {"Mode": "NoFit", **attempt, "Reasons": bool(attempt.get("Reasons"))}
                    for attempt in pod_set.get("FlavorAssignmentAttempts") or ()
                ],
                "Status": bool((pod_set.get("Status") or {}).get("reasons")),
            }
        )
    return {
        "Borrowing": raw.get("Borrowing", 0),
        "NoFitReason": raw.get("NoFitReason", ""),
        "PodSets": pod_sets,
        "Assigned": ((raw.get("Usage") or {}).get("Quota") or {}).get("Assigned") or {},
    }


def _replaced(raw: Json | None) -> Admission | None:
    """The admission of an earlier slice of the same job."""
    if raw is None:
        return None
    return Admission(
        cluster_queue="",
        pod_sets=tuple(
            PodSetAssignment(
                name=entry["Name"],
                flavors=tuple(sorted((entry.get("Flavors") or {}).items())),
                usage=tuple(sorted((row["name"], row["value"]) for row in entry.get("Requests") or ())),
                count=entry.get("Count", 0),
            )
            for entry in raw["TotalRequests"]
        ),
    )


def _assign(
    case: Json, queues: list[ClusterQueue], used: Mapping[str, Mapping[FlavorResource, int]], gang: Workload
) -> Assignment:
    inputs = case["inputs"]
    rules = objects.rules_of(case["config"])
    book = objects.ledger(rules, queues, objects.cohorts(inputs.get("cohorts")), used)
    topologies = objects.topologies(inputs.get("topologies"))
    for topology in topologies.values():
        book.nodes.put_topology(topology)
    for node in objects.nodes(inputs.get("nodes")):
        book.nodes.put_node(node)
    queue = queues[0]
    return scan.assign(
        book,
        queue,
        scan.requests(gang, queue, rules),
        (),
        oracle_of(inputs.get("simulationResult")),
        workload=gang,
        flavors=objects.flavors(inputs.get("resourceFlavors") or _DEFAULT_FLAVORS),
        rules=rules,
        topologies=topologies,
        replaces=_replaced(inputs.get("preemptWorkloadSlice")),
    )


_DEFAULT_FLAVORS = [{"kind": "ResourceFlavor", "metadata": {"name": "flavor"}, "spec": {}}]


@table("TestAssignFlavors", "TestDeletedFlavors")
def assign_flavors(case: Json) -> list[str]:
    case = objects.without_topology(case)
    inputs, expected = case["inputs"], case["expected"]
    queues = [
        *objects.cluster_queues(inputs["clusterQueue"]),
        *objects.cluster_queues(inputs.get("secondaryClusterQueue")),
    ]
    used = {queues[0].name: objects.usage(inputs.get("clusterQueueUsage"))}
    if len(queues) > 1:
        used[queues[1].name] = objects.usage(inputs.get("secondaryClusterQueueUsage"))
    reclaimable = tuple((row["name"], row["count"]) for row in inputs.get("wlReclaimablePods") or ())
    assignment = _assign(case, queues, used, objects.gang(inputs["wlPods"], reclaimable=reclaimable))
    got = assignment_json(assignment)
    mode = _MODE_NAME[assignment.mode]
    out = differences(expected.get("wantRepMode", "NoFit"), mode, "wantRepMode")
    observed = (case.get("observed") or {}).get("assignment")
    if observed is not None:
        return out + differences(wanted_assignment(observed, heights=True), got)
    for pod_set in got["PodSets"]:
        for flavor in pod_set["Flavors"].values():
            del flavor["borrow"]  # the table does not look at it
    return out + differences(wanted_assignment(expected["wantAssignment"], heights=False), got)


@table("TestAssignFlavorsWithAllowedFlavors")
def allowed_flavors(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    queues = objects.cluster_queues(inputs["clusterQueue"])
    # The pod set stands outside the rows of this table.
    pod_set = {
        "name": "main",
        "count": 1,
        "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "2"}}}]}},
    }
    gang = objects.gang([pod_set], allowed_flavors=frozenset(inputs.get("allowedFlavors") or ()))
    assignment = _assign(case, queues, {}, gang)
    chosen = assignment.pod_sets[0].flavors.get("cpu")
    got = {
        "wantFlavor": chosen.flavor if chosen is not None else "",
        "wantRepMode": _MODE_NAME[assignment.mode],
    }
    return differences({"wantFlavor": "", "wantRepMode": "NoFit", **expected}, got)


@table("TestAssignFlavors_LeaderWorkerSetTASFlavor")
def leader_worker_topology(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    queues = objects.cluster_queues(inputs["clusterQueue"])
    assignment = _assign(case, queues, {}, objects.gang(inputs["wlPods"]))
    by_name = {row["Name"]: row for row in assignment_json(assignment)["PodSets"]}
    got = {
        "wantPodSetErrors": sorted(choice.name for choice in assignment.pod_sets if choice.error),
        "wantPodSetFlavors": {name: row["Flavors"] for name, row in by_name.items()},
    }
    return differences(
        {
            "wantPodSetErrors": sorted(expected.get("wantPodSetErrors") or ()),
            "wantPodSetFlavors": expected["wantPodSetFlavors"],
        },
        got,
    )


@table("TestIsNoFitDueToCapacityAndLimits")
def no_fit_reason(case: Json) -> list[str]:
    case = objects.without_topology(case)
    inputs, expected = case["inputs"], case["expected"]
    queues = [
        *objects.cluster_queues(inputs.get("cq") or inputs["defaultClusterQueue"]),
        *objects.cluster_queues(inputs.get("siblingCQs")),
    ]
    used = {name: objects.usage(of) for name, of in (inputs.get("siblingCQUsage") or {}).items()}
    used[queues[0].name] = objects.usage(inputs.get("cqUsage"))
    assignment = _assign(case, queues, used, objects.gang([inputs["podSet"]]))
    attempts = assignment.pod_sets[0].attempts if assignment.pod_sets else ()
    got = {
        "wantNoFitReason": assignment.reason.value if assignment.reason is not None else "",
        # The table looks at the flavors that a row names, and at no others.
        "wantFlavorAttempts": {
            a.flavor: a.reason.value if a.reason is not None else ""
            for a in attempts
            if a.flavor in expected.get("wantFlavorAttempts", {})
        },
    }
    return differences({"wantNoFitReason": "", "wantFlavorAttempts": {}, **expected}, got)


@table("TestReclaimBeforePriorityPreemption")
def reclaim_before_priority(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    queues = [*objects.cluster_queues(inputs["clusterQueue"]), *objects.cluster_queues(inputs["otherClusterQueue"])]
    used = {
        queues[0].name: objects.usage(inputs.get("testClusterQueueUsage")),
        queues[1].name: objects.usage(inputs.get("otherClusterQueueUsage")),
    }
    assignment = _assign(case, queues, used, objects.gang([inputs["workloadRequests"]["PodSet"]]))
    got = {
        "wantMode": _MODE_NAME[assignment.mode],
        "wantAssigment": {res: got.flavor for res, got in assignment.pod_sets[0].flavors.items()},
    }
    return differences({"wantMode": "NoFit", "wantAssigment": {}, **expected}, got)


@table("TestIsPreferred")
def is_preferred(case: Json) -> list[str]:
    inputs = case["inputs"]
    config = inputs["config"]
    fungibility = Fungibility(
        stop_when_borrowing=config.get("whenCanBorrow") != "TryNextFlavor",
        stop_when_preempting=config.get("whenCanPreempt") == "MayStopSearch",
        preempt_over_borrow=config.get("preference") == "PreemptionOverBorrowing",
    )

    def grade(raw: Json) -> tuple[Mode, int]:
        return Mode(raw.get("preemptionMode", 0)), raw.get("borrowingLevel", 0)

    got = scan.is_preferred(grade(inputs["a"]), grade(inputs["b"]), fungibility)
    return differences(case["expected"], {"wantPreferred": got})
