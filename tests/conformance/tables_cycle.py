"""Tables of cycles, queues and victims: by `decide`, the State's lines, and `reclaim.targets`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from admission import quantity
from admission.engine import order, reclaim
from admission.engine.cycle import decide
from admission.engine.flavors import Assignment, FlavorChoice, Mode, PodSetChoice, requests
from admission.engine.line import Memo
from admission.engine.model import (
    Admission,
    Admit,
    Assumed,
    ClusterQueue,
    Detail,
    Evict,
    EvictReason,
    Forgotten,
    Gone,
    Key,
    LabelSelector,
    LocalQueue,
    Namespace,
    Plan,
    Put,
    Reason,
    Replace,
    Requirement,
    Rules,
    Standing,
    Verdict,
    Why,
    Workload,
)
from admission.engine.project import project
from admission.engine.state import State
from admission.engine.victims import Found, Preemptor
from admission.engine.victims import ordered as in_order
from admission.jobs import values
from tests.conformance import objects
from tests.conformance.registry import Json, differences, table

BUDGET = 10**6


def name_of(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def key_of(raw: Json) -> Key:
    meta = raw["metadata"]
    return (meta.get("namespace", ""), meta["name"])


def load(case: Json, rules: Rules) -> State:
    """All objects of a case, in a State."""
    inputs = case["inputs"]
    state = State(rules)
    queues = objects.cluster_queues(inputs.get("clusterQueues") or inputs.get("cqs"))
    for value in (
        *(Namespace(entry) for entry in inputs.get("namespaces") or () if isinstance(entry, str)),
        *objects.namespaces([entry for entry in inputs.get("namespaces") or () if not isinstance(entry, str)]),
        *objects.flavors(inputs.get("resourceFlavors")).values(),
        *objects.topologies(inputs.get("topologies")).values(),
        *_checks(inputs, queues),
        *objects.cohorts(inputs.get("cohorts")),
        *queues,
        *objects.local_queues(inputs.get("localQueues")),
        *objects.nodes(inputs.get("nodes")),
        *objects.pods(inputs.get("pods")),
        *objects.workloads(inputs.get("workloads")),
    ):
        state.apply(Put(value))
    return state


def _checks(inputs: Json, queues: Iterable[ClusterQueue]) -> list[Any]:
    """Admission checks; where a table has none as objects, those that its queues name are there and active."""
    given = objects.checks(inputs.get("admissionChecks"))
    names = {check.name for check in given}
    missing = {check.name for queue in queues for check in queue.checks} - names
    return given + [values.AdmissionCheck(name=name) for name in sorted(missing)]


# ---------------------------------------------------------------- what came of a cycle


def admission_json(admission: Admission) -> Json:
    """In the form of the API, as far as tables compare it."""
    raw = values.admission_object(admission)
    return canonical_admission(raw)


def canonical_admission(raw: Json) -> Json:
    pod_sets = []
    for entry in raw.get("podSetAssignments") or ():
        row: Json = {
            "name": entry["name"],
            "count": entry.get("count", 0),
            "flavors": entry.get("flavors") or {},
            "resourceUsage": {
                name: quantity.parse(name, amount) for name, amount in (entry.get("resourceUsage") or {}).items()
            },
        }
        if entry.get("topologyAssignment"):
            row["topologyAssignment"] = _domains(entry["topologyAssignment"])
        pod_sets.append(row)
    return {"clusterQueue": raw["clusterQueue"], "podSetAssignments": pod_sets}


def _domains(raw: Json) -> Json:
    value = values.topology_assignment(raw)
    domains = sorted((list(domain.values), domain.count) for domain in value.domains)
    return {"levels": list(value.levels), "domains": [[*found, count] for found, count in domains]}


def not_taken(state: State, key: Key) -> bool:
    """Does the queue take no gang of its namespace: in Kueue such a one stands in line, parked."""
    why = state.blocked(key)
    return why is not None and why.detail is Detail.NAMESPACE_NOT_SELECTED


class Outcome:
    """A Plan as the tables look at it."""

    def __init__(
        self,
        state: State,
        plan: Plan,
        rules: Rules,
        now: int,
        raw: Iterable[Json],
        stored: Mapping[Key, Json] | None = None,
    ) -> None:
        self.stored = stored or {}
        self.state, self.plan, self.rules, self.now = state, plan, rules, now
        self.raw = {key_of(entry): entry for entry in raw}
        self.admits = {d.key: d for d in plan.decisions if isinstance(d, Admit)}
        self.replaced = {d.key: d for d in plan.decisions if isinstance(d, Replace)}
        self.evicts = {d.key: d for d in plan.decisions if isinstance(d, Evict)}
        # Who stands aside is told of by a cycle of ours, and in Kueue mostly by other parts, which no table shows.
        self.verdicts = {
            verdict.key: verdict
            for verdict in plan.verdicts
            if state.blocked(verdict.key) is None or not_taken(state, verdict.key)
        }

    def assignments(self) -> Json:
        out = {
            name_of(key): admission_json(gang.admission)
            for key, gang in self.state.workloads.items()
            if gang.admission is not None
        }
        return out | self.new_assignments()

    def new_assignments(self) -> Json:
        return {name_of(key): admission_json(d.admission) for key, d in (*self.admits.items(), *self.replaced.items())}

    def left(self) -> tuple[Json, Json]:
        """(active, inadmissible): names of those who wait, per ClusterQueue."""
        active: dict[str, list[str]] = {}
        parked: dict[str, list[str]] = {}
        for name in self.state.queues:
            for key in self.state.pending(name):
                if key in self.admits:
                    continue
                verdict = self.verdicts.get(key)
                where = parked if verdict is not None and verdict.standing is Standing.PARKED else active
                where.setdefault(name, []).append(name_of(key))
        for key, gang in self.state.workloads.items():
            why = self.state.blocked(key)
            if not_taken(self.state, key):
                parked.setdefault(self.state.queue_of(gang), []).append(name_of(key))
            if why is not None and why.detail is Detail.CLUSTER_QUEUE_INACTIVE:
                active.setdefault(self.state.queue_of(gang), []).append(name_of(key))
        return ({k: sorted(v) for k, v in active.items()}, {k: sorted(v) for k, v in parked.items()})

    def preempted(self) -> Json:
        """A migration is an eviction, and no preemption."""
        migrates = EvictReason.FLAVOR_MIGRATION
        return {name_of(key): d.reason.value for key, d in self.evicts.items() if d.reason is not migrates}

    def shown(self, key: Key) -> list[Any]:
        """Projections of all that became of one workload."""
        gang = self.state.workloads[key]
        decision = self.admits.get(key) or self.evicts.get(key) or self.replaced.get(key)
        out = [] if decision is None else [project(gang, decision)]
        verdict = self.verdicts.get(key)
        if verdict is not None:
            out.append(project(gang, verdict))
        out += [project(gang, evict) for evict in self.evicts.values() if evict.preemptor == key]
        return out

    def events(self) -> list[Json]:
        out = []
        for key in self.state.workloads:
            for shown in self.shown(key):
                out += [
                    {"Key": {"Name": key[1], "Namespace": key[0]}, "EventType": kind, "Reason": reason}
                    for kind, reason, _ in shown.events
                ]
        return sort_events(out)

    def workload(self, key: Key) -> Json:
        """Admission, conditions (type, status, reason) and requests as they stand afterwards."""
        before = self.stored.get(key) or wanted_workload(self.raw.get(key, {}))
        gang = self.state.workloads.get(key)
        conditions = {kind: (value[0], value[1]) for kind, value in before["conditions"].items()}
        admission, asked = before["admission"], before["resourceRequests"]
        if gang is not None:
            for shown in self.shown(key):
                conditions.update({kind: (str(on), reason) for kind, on, reason, _ in shown.conditions})
                if shown.requests:
                    asked = {name: dict(amounts) for name, amounts in shown.requests}
            decision = self.admits.get(key) or self.replaced.get(key)
            if decision is not None:
                admission, asked = admission_json(decision.admission), {}
        return workload_json(admission, conditions, asked)


def workload_json(
    admission: Json | None, conditions: Mapping[str, tuple[str, str]], asked: Mapping[str, Mapping[str, int]]
) -> Json:
    return {
        "admission": admission,
        "conditions": {kind: list(value) for kind, value in conditions.items()},
        "resourceRequests": {name: dict(amounts) for name, amounts in asked.items()},
    }


def wanted_workload(raw: Json) -> Json:
    status = raw.get("status") or {}
    return workload_json(
        canonical_admission(status["admission"]) if status.get("admission") else None,
        {c["type"]: (c["status"], c.get("reason", "")) for c in status.get("conditions") or ()},
        {entry["name"]: objects.amounts(entry.get("resources")) for entry in status.get("resourceRequests") or ()},
    )


def sort_events(events: Iterable[Json]) -> list[Json]:
    rows = [{name: event[name] for name in ("Key", "EventType", "Reason")} for event in events]
    return sorted(rows, key=lambda row: (row["Key"]["Namespace"], row["Key"]["Name"], row["Reason"]))


def compare(case: Json, outcome: Outcome, keys: Iterable[str] | None = None) -> list[str]:
    """Everything of `expected` that is a result of ours."""
    expected = case["expected"]
    active, parked = outcome.left()
    out: list[str] = []
    for key in keys or sorted(expected):
        if key not in expected:
            continue
        want = expected[key]
        if key == "wantAssignments":
            want = {name: canonical_admission(raw) for name, raw in (want or {}).items()}
            out += differences(want, outcome.assignments(), key)
        elif key == "wantNewAssignments":
            want = {name: canonical_admission(raw) for name, raw in (want or {}).items()}
            got = outcome.new_assignments()
            for name in want:
                # What was there before and stands is listed too.
                held = outcome.state.workloads.get(tuple(name.split("/", 1)))  # type: ignore[arg-type]
                if name not in got and held is not None and held.admission is not None:
                    got[name] = admission_json(held.admission)
            out += differences(want, got, key)
        elif key == "newlyAdmitted":
            out += differences(sorted(want or ()), sorted(map(name_of, outcome.admits)), key)
        elif key == "preempted":
            out += differences(want or {}, outcome.preempted(), key)
        elif key == "wantLeft":
            out += differences({k: sorted(v) for k, v in (want or {}).items()}, active, key)
        elif key == "wantInadmissibleLeft":
            out += differences({k: sorted(v) for k, v in (want or {}).items()}, parked, key)
        elif key == "wantEvents":
            if want is not None:
                out += differences(sort_events(want), outcome.events(), key)
        elif key == "wantWorkloads":
            wanted = {name_of(key_of(raw)): wanted_workload(raw) for raw in want or ()}
            got = {name: outcome.workload(tuple(name.split("/", 1))) for name in wanted}  # type: ignore[arg-type]
            out += differences(wanted, got, key)
    return out


# ---------------------------------------------------------------- cycles


@table(
    "TestSchedule",
    "TestScheduleForFairSharing",
    "TestScheduleRecomputePreemptionTargets",
    "TestScheduleConcurrentAdmission",
    "TestScheduleForTAS",
    "TestScheduleForTASCohorts",
    "TestScheduleForTASPreemption",
)
def schedule(case: Json) -> list[str]:
    rules = objects.rules_of(case["config"])
    now = objects.milliseconds(case["config"]["now"])
    state = load(case, rules)
    plan = decide(state, now, BUDGET)
    if case["inputs"].get("admissionError"):
        plan = failed_writes(state, plan)
    return compare(case, Outcome(state, plan, rules, now, case["inputs"]["workloads"]))


def failed_writes(state: State, plan: Plan) -> Plan:
    """Every admission was assumed, its write failed, and it was forgotten."""
    admits = [decision for decision in plan.decisions if isinstance(decision, Admit)]
    for decision in admits:
        state.apply(Assumed(decision))
        state.apply(Forgotten(decision))
    lost = {decision.key for decision in admits}
    return replace(
        plan,
        decisions=tuple(decision for decision in plan.decisions if decision.key not in lost),
        verdicts=tuple(verdict for verdict in plan.verdicts if verdict.key not in lost),
    )


def apply(state: State, plan: Plan) -> None:
    """Every write of a plan is done, and seen."""
    for decision in plan.decisions:
        state.apply(Assumed(decision))


@table("TestLastSchedulingContext")
def last_scheduling_context(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    rules = objects.rules_of(case["config"])
    now = objects.milliseconds(case["config"]["now"])
    state = load(case, rules)
    plan = decide(state, now, BUDGET)
    out = compare(case, Outcome(state, plan, rules, now, inputs["workloads"]), ("preempted", "wantWorkloads"))
    apply(state, plan)
    for gone in inputs.get("deleteWorkloads") or ():
        state.apply(Gone(Workload, (gone["Namespace"], gone["Name"])))
    _flush(state)
    plan = decide(state, now, BUDGET)
    got = Outcome(state, plan, rules, now, inputs["workloads"]).assignments()
    want = {name: canonical_admission(raw) for name, raw in (expected["wantAdmissionsOnSecondSchedule"] or {}).items()}
    return out + differences(want, got, "wantAdmissionsOnSecondSchedule")


def _flush(state: State) -> int:
    """Who is parked is looked at again, as after any change of what they wait for; how many gangs."""
    woken = 0
    for name, line in state.lines.items():
        for bucket in list(line.parked):
            woken += len(line.buckets[bucket])
            state.memos.wake(name, bucket)
    return woken


@table("TestScheduleForPreserveFlavorScanProgress")
def preserve_flavor_scan_progress(case: Json) -> list[str]:
    config, inputs = case["config"], case["inputs"]
    rules = objects.rules_of(config)
    gate = {"FlavorFungibilityPreserveScanProgress"}
    rules = replace(rules, gates=rules.gates | gate if config["gateEnabled"] else rules.gates - gate)
    now = objects.milliseconds(config["now"])
    state = load(case, rules)
    (queue,) = objects.cluster_queues(inputs["clusterQueues"])
    for cycle in range(4):
        apply(state, decide(state, now, BUDGET))
        if not config.get("noChurn"):
            raw = json.loads(json.dumps(inputs["clusterQueues"][0]))
            raw["spec"]["resourceGroups"][0]["flavors"][1]["resources"][0]["nominalQuota"] = "54"[cycle % 2]
            (churned,) = objects.cluster_queues([raw])
            state.apply(Put(replace(churned, generation=queue.generation + cycle + 1)))
        _flush(state)
    gang = state.workloads["default", "pending"]
    got = "" if gang.admission is None else dict(gang.admission.pod_sets[0].flavors)["cpu"]
    return differences(case["expected"].get("wantPendingFlavor", ""), got)


@table("TestScheduleForAFS")
def usage_fairness(case: Json) -> list[str]:
    config, inputs = case["config"], case["inputs"]
    rules = objects.rules_of(config)
    if not (config.get("featureGates") or {}).get("AdmissionFairSharing", True):
        rules = replace(rules, usage_fairness=None)
    now = objects.milliseconds(config["now"])
    state = load(case, rules)
    for name, used in (inputs.get("initialUsage") or {}).items():
        for key, local in list(state.local_queues.items()):
            if key[1] == name:
                consumed = tuple((res, float(amount)) for res, amount in sorted(objects.amounts(used).items()))
                state.apply(Put(replace(local, consumed=consumed, consumed_at=now)))
    if inputs.get("deleteQueue"):
        for key in [key for key in state.local_queues if key[1] == inputs["deleteQueue"]]:
            state.apply(Gone(LocalQueue, key))
    stored: dict[Key, Json] = {}
    for _ in inputs["workloads"]:
        plan = decide(state, now, BUDGET)
        outcome = Outcome(state, plan, rules, now, inputs["workloads"], stored)
        stored = {key_of(raw): outcome.workload(key_of(raw)) for raw in inputs["workloads"]}
        apply(state, plan)
    wanted = {name_of(key_of(raw)): wanted_workload(raw) for raw in case["expected"]["wantWorkloads"]}
    return differences(wanted, {name_of(key): value for key, value in stored.items()}, "wantWorkloads")


# ---------------------------------------------------------------- one queue


def _queue(raw: Json) -> ClusterQueue:
    (queue,) = objects.cluster_queues([raw])
    return replace(queue, namespace_selector=queue.namespace_selector or LabelSelector())


@table("TestClusterQueueImpl")
def cluster_queue_contents(case: Json) -> list[str]:
    """Namespaces and the queue's selector stand outside the rows of this table."""
    inputs = case["inputs"]
    rules = objects.rules_of(case["config"])
    now = objects.milliseconds(case["config"]["now"])
    state = State(rules)
    selector = LabelSelector((Requirement("dep", "In", ("eng", "sales")),))
    state.apply(Put(ClusterQueue("cq", namespace_selector=selector)))
    for name, label in (("ns1", "eng"), ("ns2", "sales"), ("ns3", "marketing")):
        state.apply(Put(Namespace(name, (("dep", label),))))
        for queue in ("q1", "q2", "q3"):
            state.apply(Put(LocalQueue(name, queue, "cq")))
    state.advance(now)
    for raw in inputs.get("workloadsToAdd") or ():
        state.apply(Put(objects.read({"kind": "Workload", **raw})))

    def info(raw: Json) -> Workload:
        gang: Workload = objects.read({"kind": "Workload", **raw["Obj"]})
        return gang

    for raw in inputs.get("inadmissibleWorkloadsToRequeue") or ():
        gang = info(raw)
        there = gang.key in state.workloads
        state.apply(Put(gang))
        entry = None if there else state._in_line.get(gang.key)
        if entry is not None:
            verdict = Verdict(gang.key, Standing.PARKED, Why(Reason.WAITING_FOR_QUOTA))
            state.memos.park(entry[0], entry[1], Memo(verdict, on_nodes=True))
    for raw in inputs.get("admissibleWorkloadsToRequeue") or ():
        gang = info(raw)
        state.apply(Put(gang))
        if state.place_in("cq", gang.key) is not None:
            state.unpark(gang.key, doubt=False)
    for raw in inputs.get("workloadsToUpdate") or ():
        state.apply(Put(objects.read({"kind": "Workload", **raw})))
    for raw in inputs.get("workloadsToDelete") or ():
        state.apply(Gone(Workload, key_of(raw)))
    requeued = 0
    if inputs.get("queueInadmissibleWorkloads"):
        requeued = _flush(state)
    lines = state.lines.values()
    parked = {order.key_of(place) for line in lines for bucket in line.parked for place in line.buckets[bucket]}
    active = [name_of(key) for key in state.pending("cq") if key not in parked and state.position(key) is not None]
    got = {
        "wantActiveWorkloads": sorted(active),
        "wantPending": len(state.pending("cq")) + sum(not_taken(state, key) for key in state.workloads),
        "wantInadmissibleWorkloadsRequeued": requeued,
    }
    expected = case["expected"]
    return differences({**expected, "wantActiveWorkloads": sorted(expected.get("wantActiveWorkloads") or ())}, got)


@table("TestFsAdmission")
def first_by_usage(case: Json) -> list[str]:
    inputs = case["inputs"]
    rules = replace(objects.rules_of(case["config"]), usage_fairness=objects.usage_fairness(inputs["afsConfig"]))
    now = objects.milliseconds(case["config"]["now"])
    state = State(rules)
    queue = _queue(inputs["cq"])
    state.apply(Put(queue))
    used = inputs.get("initConsumedResources") or {}
    for local in objects.local_queues(inputs["lqs"]):
        consumed = objects.amounts(used.get(f"{local.namespace}/{local.name}"))
        amounts = tuple((res, float(amount)) for res, amount in sorted(consumed.items()))
        state.apply(Put(replace(local, cluster_queue=queue.name, consumed=amounts, consumed_at=now)))
    state.apply(Put(Namespace("default")))
    for gang in objects.workloads(inputs["wls"]):
        state.apply(Put(gang))
    plan = decide(state, now, BUDGET)
    (first,) = plan.verdicts[:1]
    return differences(case["expected"]["wantWl"]["metadata"]["name"], first.key[1])


# ---------------------------------------------------------------- victims


def _mode(raw: Json) -> Mode:
    return {"Fit": Mode.FIT, "Preempt": Mode.PREEMPT}.get(raw.get("Mode", "NoFit"), Mode.NO_FIT)


def _given(
    gang: Workload, queue: ClusterQueue, rules: Rules, flavor_of: Mapping[str, Mapping[str, Json]]
) -> Assignment:
    """An assignment that the case dictates: pod set -> resource -> {Name, Mode}."""
    choices = []
    usage: dict[tuple[str, str], int] = {}
    for asked in requests(gang, queue, rules):
        given = flavor_of.get(asked.pod_set.name, {})
        choice = PodSetChoice(
            asked,
            {
                resource: FlavorChoice(raw["Name"], _mode(raw), raw.get("borrow", 0), 0)
                for resource, raw in given.items()
            },
        )
        choices.append(choice)
        for resource, amount in asked.total:
            if resource in given:
                fr = (given[resource]["Name"], resource)
                usage[fr] = usage.get(fr, 0) + amount
    return Assignment(tuple(choices), Mode.PREEMPT, usage, 0)


def _victims(case: Json) -> tuple[State, Found, Rules, int, Workload, str]:
    inputs = case["inputs"]
    rules = objects.rules_of(case["config"])
    now = objects.milliseconds(case["config"]["now"])
    state = load({"inputs": {**inputs, "workloads": inputs["admitted"]}}, rules)
    (gang,) = objects.workloads([inputs["incoming"]])
    queue = state.queues[inputs["targetCQ"]]
    if "assignment" in inputs:
        flavor_of = {row["Name"]: row.get("Flavors") or {} for row in inputs["assignment"]["PodSets"]}
    else:
        flavor = inputs.get("assignmentFlavor") or "default"
        flavor_of = {
            pod_set.name: {name: {"Name": flavor, "Mode": "Preempt"} for name, _ in pod_set.shape.requests}
            for pod_set in gang.pod_sets
        }
    assignment = _given(gang, queue, rules, flavor_of)
    by = Preemptor(state.ledger, gang, queue.name, rules, now, state.holders, state.leaving)
    found = reclaim.targets(by, assignment)
    return state, found, rules, now, gang, queue.name


@table("TestPreemption", "TestHierarchicalPreemptions", "TestFairPreemptions")
def victims(case: Json) -> list[str]:
    state, found, rules, now, gang, queue = _victims(case)
    expected = case["expected"]
    got = {name_of(key): reason.value for key, reason in found.victims}
    out: list[str] = []
    if isinstance(expected.get("wantPreempted"), list):
        want = dict(entry.rsplit(":", 1) for entry in expected["wantPreempted"])
        return differences(want, got, "wantPreempted")
    observed = (case.get("observed") or {}).get("targets")
    if observed is not None:
        out += differences(observed, got, "targets")
    new = [(key, reason) for key, reason in found.victims if not state.workloads[key].evicted]
    if "preempted" in expected:
        named = {name_of(key).lstrip("/") if not key[0] else name_of(key): r.value for key, r in new}
        want = {name.lstrip("/"): reason for name, reason in (expected["preempted"] or {}).items()}
        out += differences(want, named, "preempted")
    if "wantWorkloads" in expected:
        evicts = tuple(Evict(key, state.workloads[key].uid, reason, gang.key, gang.uid, queue) for key, reason in new)
        plan = Plan(evicts, (), 1, False)
        outcome = Outcome(state, plan, rules, now, case["inputs"]["admitted"])
        wanted = {name_of(key_of(raw)): wanted_workload(raw) for raw in expected["wantWorkloads"] or ()}
        have = {name: outcome.workload(tuple(name.split("/", 1))) for name in wanted}  # type: ignore[arg-type]
        out += differences(wanted, have, "wantWorkloads")
    return out


@table("TestCandidatesOrdering")
def candidates_ordering(case: Json) -> list[str]:
    inputs = case["inputs"]
    now = objects.milliseconds(case["config"]["now"])
    gangs, queue_of, usage = [], {}, {}
    for raw in inputs["candidates"]:
        (gang,) = objects.workloads([{"kind": "Workload", **raw["Obj"]}])
        gangs.append(gang)
        queue_of[gang.key] = raw.get("ClusterQueue", "")
        usage[gang.key] = raw.get("LocalQueueFSUsage")
    fair = (case["config"].get("featureGates") or {}).get("AdmissionFairSharing")
    ordered = in_order(
        gangs, inputs["preemptorClusterQueue"], now, queue_of, (lambda gang: usage[gang.key]) if fair else None
    )
    return differences(case["expected"]["wantCandidates"], [gang.name for gang in ordered])
