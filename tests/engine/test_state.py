"""The State: total and idempotent, the same whatever the order of events, and what is assumed until it is seen."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine import order
from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admission,
    Admit,
    AntiAffinity,
    Assumed,
    AvoidedNode,
    Cancel,
    Check,
    CheckState,
    Claim,
    ClaimRecord,
    ClusterQueue,
    Cohort,
    Decision,
    Detail,
    Evict,
    EvictReason,
    Exclusive,
    Flavor,
    Forgotten,
    Gone,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    Plan,
    PodSet,
    PodSetAssignment,
    PodShape,
    PodUsage,
    Put,
    Quota,
    Reason,
    Replace,
    Requirement,
    Rules,
    Standing,
    StopPolicy,
    Strategy,
    Topology,
    Why,
    Workload,
)
from admission.engine.quota import QuotaNode
from admission.engine.state import State
from tests.engine.town import BUDGET, SECOND, START, Town, cohort, elastic, gang, node, queue

F = "f"


def small(rules: Rules = MUSTER) -> Town:
    queues = (queue(name, "root", [(F, {"gpu": 4})]) for name in "ab")
    return Town(*elastic(F), *queues, rules=rules)


def admit(plan: Plan) -> Admit:
    (decision,) = [d for d in plan.decisions if isinstance(d, Admit)]
    return decision


@pytest.mark.parametrize(
    "between",
    [
        lambda town: None,
        lambda town: town.state.queue_numbers("a"),
        lambda town: town.state.apply(Put(node("new", gpu=8))),
        lambda town: town.state.apply(Put(queue("c", "root", [(F, {"gpu": 1})]))),
        lambda town: decide(town.state, town.now, BUDGET),
    ],
    ids=["nothing", "a question", "a node", "a queue", "another decision"],
)
def test_what_is_planned_is_charged_once_and_counts_nowhere_before(between: Callable[[Town], object]) -> None:
    town = small()
    town.put(gang("g", "a", 3))
    town.put(gang("h", "b", 2))
    state = town.state
    plan = decide(state, town.now, BUDGET)
    between(town)
    first, second = plan.decisions
    state.apply(Assumed(first))
    assert set(state.ledger.charges) == {first.key}
    assert state.drift() == []
    state.apply(Assumed(second))
    assert set(state.ledger.charges) == {first.key, second.key}
    assert state.drift() == []


def test_an_assumed_admission_counts_until_it_is_seen_or_forgotten() -> None:
    town = small()
    town.put(gang("g", "a", 3))
    state = town.state
    decision = admit(decide(state, town.now, BUDGET))
    assert state.queue_numbers("a").reserving == 0
    state.apply(Assumed(decision))
    assert state.queue_numbers("a").reserved == {(F, "gpu"): 3}
    assert not decide(state, town.now, BUDGET).decisions
    # An older version of the object that is seen meanwhile does not undo it ...
    state.apply(Put(replace(town.gang("g"), priority=3)))
    assert state.queue_numbers("a").reserving == 1
    assert state.workloads["ns", "g"].priority == 3
    # ... a failed write does, ...
    state.apply(Forgotten(decision))
    assert state.queue_numbers("a").reserving == 0
    assert admit(decide(state, town.now, BUDGET)) == decision
    # ... and once the object says so, nothing is assumed any more.
    state.apply(Assumed(decision))
    seen = replace(town.gang("g"), admission=decision.admission, admitted=True, reserved_at=town.now)
    state.apply(Put(seen))
    state.apply(Forgotten(decision))
    assert state.workloads["ns", "g"] == seen
    assert state.queue_numbers("a").admitted == 1
    assert state.drift() == []


class Uid(str):
    """Counts how often one is compared with another."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Uid.compared += 1
        return str.__eq__(self, other)


def test_the_books_of_many_equal_gangs_are_checked_part_by_part_and_none_is_looked_for_among_all() -> None:
    """Of 16,000 that took four seconds, for which nothing else had its turn, and of 100,000 more than two minutes."""
    town, many, parts = small(), 400, 8
    for i in range(many):
        town.put(replace(gang(f"g{i:03}", "a", 100), uid=Uid(f"u{i:03}")))
    state = town.state
    assert len(state.pending("a")) == many
    Uid.compared = 0
    assert [state.drift(part, parts) for part in range(parts)] == [[]] * parts
    assert Uid.compared <= 12 * many
    (bucket,) = state.lines["a"].buckets.values()
    lost = bucket.pop(many // 2)
    name = ("ns", f"g{many // 2:03}")
    assert order.key_of(lost) == name
    found = [line for part in range(parts) for line in state.drift(part, parts)]
    assert found == state.drift() == [f"{name} is lost from the line of a"]


def test_nothing_is_kept_of_gangs_that_are_gone() -> None:
    town = small()

    def play(gangs: int) -> dict[str, int]:
        for i in range(gangs):
            town.put(gang(f"g{i}", "ab"[i % 2], 1 + i % 7))
        for _ in range(6):
            for decision in decide(town.state, town.now, BUDGET).decisions:
                town.state.apply(Assumed(decision))
            town.now += SECOND
            for one in [one for one in town.state.workloads.values() if one.admission is not None][:2]:
                town.remove(Workload, one.key)
        for one in town.gangs():
            town.remove(Workload, one.key)
        town.now += 3600 * SECOND
        decide(town.state, town.now, BUDGET)
        held = {name: len(held) for name, held in vars(town.state).items() if isinstance(held, dict | set | list)}
        return held | {"_holders": 0}  # by queue, where somebody asked

    few = play(5)
    assert play(60) == few


def test_nothing_is_kept_of_quota_that_was_edited() -> None:
    town = Town(*elastic("f"))
    town.put(cohort("c", "", [("f", {"gpu": 4})]))
    for name in "ab":
        town.put(queue(name, "c", [("f", {"gpu": 2})]))
        for i in range(5):
            town.put(gang(f"{name}{i}", name, 1 + i, created=i))
    town.settle()

    def trees_after(edits: int) -> int:
        for i in range(edits):
            town.put(queue("a", "c", [("f", {"gpu": 2 + i % 2})]))
            town.settle()
            town.remove(Workload, ("ns", next(one.name for one in town.gangs() if one.admission is not None)))
            town.settle()
            town.put(gang(f"again{i}", "b", 1))
        gc.collect()
        return sum(isinstance(one, QuotaNode) for one in gc.get_objects())

    few = trees_after(2)
    assert trees_after(20) <= few


def test_an_evicted_gang_holds_its_quota_until_its_admission_goes() -> None:
    town = small()
    town.put(gang("g", "a", 3))
    town.cycle()
    evict = Evict(("ns", "g"), "uid-g", EvictReason.IN_COHORT_RECLAMATION, ("ns", "other"), "uid-o", "b")
    town.state.apply(Assumed(evict))
    assert town.state.leaving == {("ns", "g")}
    assert town.state.queue_numbers("a").reserved == {(F, "gpu"): 3}
    town.put(replace(town.gang("g"), admission=None, evicted="Preempted", admitted=False))
    assert town.state.leaving == set()
    assert town.state.queue_numbers("a").reserved == {}


def test_of_what_two_gave_away_the_latest_goes_and_no_more_than_must() -> None:
    """Four queues' worth of eight; each of the gangs was reserved by who did not know of all the others."""
    town = small()
    for at, (name, local) in enumerate([("first", "a"), ("second", "b"), ("third", "a"), ("fourth", "b")]):
        given = Admission(local, (PodSetAssignment("main", (("gpu", F),), (("gpu", 3),), 3),))
        town.put(replace(gang(name, local, 3), admission=given, reserved_at=START + at))
    first, second, third, fourth = (("ns", name) for name in ("first", "second", "third", "fourth"))
    fr = (F, "gpu")
    state = town.state
    assert state.overdrawn([first, second, third, fourth]) == [(fourth, fr, 4), (third, fr, 1)]
    assert state.overdrawn([second, first]) == [(second, fr, 4), (first, fr, 1)]
    assert state.overdrawn([fourth, ("ns", "none")]) == [(fourth, fr, 4)]
    state.apply(Put(replace(town.gang("first"), evicted="Preempted", evicted_at=START + 9)))
    assert state.overdrawn([first, second, third, fourth]) == [(fourth, fr, 1)], "who leaves counts as gone"
    assert state.drift() == []


def test_an_eviction_may_come_before_the_admission_is_seen() -> None:
    """A gang whose admission is written and not seen yet is evicted: it counts as leaving, and stays so when the
    admission shows; if the eviction's write fails it counts as admitted again."""
    town = small()
    town.put(gang("g", "a", 3))
    (admit,) = [d for d in decide(town.state, START, BUDGET).decisions if isinstance(d, Admit)]
    evict = Evict(("ns", "g"), "uid-g", EvictReason.IN_COHORT_RECLAMATION, ("ns", "other"), "uid-o", "b")
    pending = town.gang("g")
    seen = replace(pending, admission=admit.admission, reserved_at=START, admitted=True, admitted_at=START)
    state = town.state
    state.apply(Assumed(admit))
    state.apply(Assumed(evict))
    assert state.leaving == {("ns", "g")}
    assert state.queue_numbers("a").reserved == {(F, "gpu"): 3}
    state.apply(Forgotten(evict))
    assert state.leaving == set()
    assert state.queue_numbers("a").reserved == {(F, "gpu"): 3}
    state.apply(Assumed(evict))
    state.apply(Put(replace(pending, cursor=(("main", "gpu", 0),))))  # an older version of it comes late
    assert state.leaving == {("ns", "g")}
    state.apply(Put(seen))
    assert state.leaving == {("ns", "g")}
    state.apply(Put(replace(seen, evicted="Preempted", evicted_at=START + SECOND, evicted_for="uid-o")))
    assert state.leaving == {("ns", "g")}
    state.apply(Put(replace(pending, evicted="Preempted", evicted_at=START + SECOND)))
    assert (state.leaving, state.queue_numbers("a").reserved) == (set(), {})
    assert state.drift() == []


def test_a_claim_that_is_not_written_takes_nothing_from_the_admission_that_came_after_it() -> None:
    """The claim's write is under way for long; meanwhile its victims leave and the gang is admitted."""
    town = small()
    town.put(gang("g", "a", 3))
    (admit,) = [d for d in decide(town.state, START, BUDGET).decisions if isinstance(d, Admit)]
    claim = Claim(admit.key, admit.uid, ClaimRecord(admit.admission, ("uid-v",), START + 300 * SECOND))
    state = town.state
    state.apply(Assumed(claim))
    assert state.workloads["ns", "g"].claims == claim.record
    state.apply(Assumed(admit))
    state.apply(Forgotten(claim))
    assert state.queue_numbers("a").reserved == {(F, "gpu"): 3}
    assert not decide(state, START, BUDGET).decisions
    state.apply(Forgotten(admit))
    assert state.queue_numbers("a").reserved == {}
    assert state.workloads["ns", "g"].claims is None
    assert state.drift() == []


@pytest.mark.parametrize("later", [Evict, Claim, Cancel, Replace])
def test_what_is_decided_on_an_admission_that_is_not_seen_yet_falls_with_it(later: type) -> None:
    town = small()
    town.put(gang("g", "a", 3))
    (admit,) = [d for d in decide(town.state, START, BUDGET).decisions if isinstance(d, Admit)]
    made: dict[type, Decision] = {
        Evict: Evict(admit.key, admit.uid, EvictReason.IN_COHORT_RECLAMATION, ("ns", "other"), "uid-o", "b"),
        Claim: Claim(admit.key, admit.uid, ClaimRecord(admit.admission, (), START + SECOND)),
        Cancel: Cancel(admit.key, admit.uid, Why(Reason.ON_HOLD)),
        Replace: Replace(admit.key, admit.uid, admit.admission),
    }
    state = town.state
    before = state.workloads["ns", "g"]
    state.apply(Assumed(admit))
    admitted = state.workloads["ns", "g"]
    state.apply(Assumed(made[later]))
    assert bool(state.queue_numbers("a").reserved) == (later is not Cancel)
    state.apply(Forgotten(made[later]))
    assert state.workloads["ns", "g"] == admitted
    state.apply(Assumed(made[later]))
    state.apply(Forgotten(admit))
    assert state.workloads["ns", "g"] == before
    assert state.queue_numbers("a").reserved == {}
    assert state.drift() == []


def test_versions_between_may_never_be_seen() -> None:
    """Admitted, evicted and released, and only the last of it is seen: what was assumed is past."""
    town = small()
    town.put(gang("g", "a", 3))
    (admit,) = [d for d in decide(town.state, START, BUDGET).decisions if isinstance(d, Admit)]
    town.state.apply(Assumed(admit))
    town.state.apply(Put(replace(town.gang("g"), evicted="NodeFailures", evicted_at=START + SECOND)))
    assert town.state.queue_numbers("a").reserved == {}
    assert town.state.position(("ns", "g")) == 0


def test_whoever_stands_aside_is_told_why() -> None:
    town = small()
    gone = PodShape(unclear="its template is not there")
    rows = {
        "lost": (gang("lost", "nowhere"), Reason.MISCONFIGURED, Detail.QUEUE_MISSING),
        "orphan": (gang("orphan", "points-nowhere"), Reason.MISCONFIGURED, Detail.CLUSTER_QUEUE_MISSING),
        "held": (gang("held", "held"), Reason.ON_HOLD, Detail.NONE),
        "off": (gang("off", "a", active=False), Reason.DEACTIVATED, Detail.NONE),
        "gated": (gang("gated", "a", gated="owner"), Reason.GATED, Detail.NONE),
        "dry": (gang("dry", "a", unbound="its claim is not there"), Reason.GATED, Detail.VOLUME_PENDING),
        "slow": (gang("slow", "a", lingering="p on node n"), Reason.GATED, Detail.PODS_LINGER),
        "other": (gang("other", "a", unmanaged="RayJob ray"), Reason.MISCONFIGURED, Detail.NOT_MANAGED),
        "unclear": (
            replace(gang("unclear", "a"), pod_sets=(PodSet("main", 1, gone),)),
            Reason.GATED,
            Detail.CLAIMS_UNCLEAR,
        ),
        "later": (gang("later", "a", requeue_at=START + 60_000), Reason.SUSPENDED, Detail.BACKOFF),
        "lame": (gang("lame", "lame"), Reason.MISCONFIGURED, Detail.CLUSTER_QUEUE_INACTIVE),
    }
    town.put(
        LocalQueue("ns", "points-nowhere", "gone"),
        LocalQueue("ns", "held", "a", stop_policy=StopPolicy.HOLD),
        queue("lame", "", [("no-such-flavor", {"gpu": 1})]),
        *(row[0] for row in rows.values()),
    )
    plan = town.cycle()
    assert not [d for d in plan.decisions if isinstance(d, Admit)]
    why = {v.key[1]: (v.why.reason, v.why.detail, v.standing) for v in plan.verdicts}
    assert why == {name: (row[1], row[2], Standing.PARKED) for name, row in rows.items()}
    assert plan.next_at == START + 60_000
    # Each wakes by what it waits for, and nobody else.
    town.put(LocalQueue("ns", "nowhere", "a"), *elastic("no-such-flavor"))
    town.now = START + 60_000
    town.cycle()
    assert town.admitted() == ["lame", "later", "lost"]


@pytest.mark.parametrize("last", [StopPolicy.NONE, StopPolicy.HOLD])
def test_a_stop_that_nobody_decided_under_leaves_no_trace(last: StopPolicy) -> None:
    """Stopped and resumed, or the other way round, between two decisions; and a gang came in between."""
    town = small()
    meanwhile = StopPolicy.HOLD if last is StopPolicy.NONE else StopPolicy.NONE
    running = queue("a", "root", [(F, {"gpu": 4})])
    town.put(replace(running, stop_policy=last))
    town.cycle()
    town.put(replace(running, stop_policy=meanwhile))
    town.put(gang("g", "a", 1))
    town.put(replace(running, stop_policy=last))
    admits = [d for d in decide(town.state, town.now, BUDGET).decisions if isinstance(d, Admit)]
    assert len(admits) == (last is StopPolicy.NONE)
    verdict = town.state.explain(("ns", "g"))
    assert (verdict is not None and verdict.why.reason is Reason.ON_HOLD) == (last is StopPolicy.HOLD)


@pytest.mark.parametrize(("how", "evictions"), [("alone", 1), ("together", 0), ("alone, before their nodes", 0)])
def test_a_queue_that_goes_on_alone_borrows_of_those_that_are_still_stopped(how: str, evictions: int) -> None:
    """And gives it back as they go on. Not so where no node takes pods yet: then all are there when the first does."""
    n1 = node("n1", gpu=4)
    queues = [queue(name, "root", [(F, {"gpu": 2})], stop_policy=StopPolicy.HOLD) for name in ("a", "b")]
    town = Town(Flavor(F), cohort("root"), *queues, replace(n1, unschedulable="before" in how))
    town.put(*(gang(f"{name}{i}", name, 2) for name in ("a", "b") for i in range(2)))
    for one in queues:
        town.put(replace(one, stop_policy=StopPolicy.NONE))
        if how != "together":
            town.settle()
            town.now += 60_000
    town.put(n1)
    town.settle()
    assert [name[0] for name in town.admitted()] == ["a", "b"]
    assert town.evictions.total() == evictions


def test_a_queue_that_goes_to_another_cohort_takes_back_nothing_of_the_old_one() -> None:
    """Nodes that those who borrowed of it stand on are its own again when they end."""
    queues = [queue(name, "old", [(F, {"gpu": 2})]) for name in ("a", "b")]
    town = Town(Flavor(F), cohort("old"), cohort("new"), *queues, node("n1", gpu=4))
    town.put(gang("b0", "b", 2), gang("b1", "b", 2))
    town.settle()
    town.now += 600_000
    town.put(replace(queues[0], cohort="new"), gang("a0", "a", 2))
    town.settle()
    assert town.admitted() == ["b0", "b1"]
    assert not town.evictions
    town.remove(Workload, ("ns", "b0"))
    town.settle()
    assert town.admitted() == ["a0", "b1"]


def test_a_namespace_that_is_not_selected() -> None:
    from admission.engine.model import LabelSelector, Requirement

    town = small()
    selector = LabelSelector((Requirement("team", "In", ("x",)),))
    town.put(replace(queue("c", "", [(F, {"gpu": 4})]), namespace_selector=selector), gang("g", "c"))
    plan = town.cycle()
    assert [v.why.detail for v in plan.verdicts] == [Detail.NAMESPACE_NOT_SELECTED]
    town.put(Namespace("ns", (("team", "x"),)))
    town.cycle()
    assert town.admitted() == ["g"]


def test_nobody_of_a_namespace_that_is_being_deleted_gets_quota_or_stands_before_others() -> None:
    """In a strict queue, which one of it that could go nowhere would block."""
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 4})], strategy=Strategy.STRICT_FIFO))
    second = replace(gang("second", "a", 4, created=5), namespace="there")
    town.put(LocalQueue("there", "a", "a"), gang("first", "a", 4), second)
    town.put(Namespace("ns", terminating=True))
    plan = town.cycle()
    assert [d.key for d in plan.decisions] == [("there", "second")]
    verdict = town.state.explain(("ns", "first"))
    assert verdict is not None
    assert verdict.why.detail is Detail.NAMESPACE_TERMINATING
    # Another one of that name is not being deleted.
    town.remove(Namespace, "ns")
    town.put(replace(queue("a", "", [(F, {"gpu": 8})]), strategy=Strategy.STRICT_FIFO))
    assert [d.key for d in town.cycle().decisions] == [("ns", "first")]


def test_positions_and_pending() -> None:
    town = small()
    town.put(gang("old", "a", 9), gang("new", "a", 9, created=5), gang("urgent", "a", 7, priority=1, created=9))
    assert [key[1] for key in town.state.pending("a")] == ["urgent", "old", "new"]
    assert town.state.position(("ns", "new")) == 2
    assert town.state.position(("ns", "nobody")) is None


@pytest.mark.parametrize(
    ("change", "muster", "kueue"),
    [
        ({"active": False}, 2, 1),
        ({"gated": "acme.dev/budget"}, 2, 1),
        ({"unbound": "claim"}, 2, 2),
        ({"requeue_at": START + SECOND}, 2, 2),
        ({}, 2, 2),
    ],
)
@pytest.mark.parametrize("stopped", [False, True])
def test_who_is_pending(change: dict[str, object], muster: int, kueue: int, stopped: bool) -> None:
    """Kueue's status leaves out who may not stand in line; a ClusterQueue that is stopped keeps its line."""
    for rules, expected in ((MUSTER, muster), (KUEUE, 0 if stopped else kueue)):
        town = small(rules)
        town.put(gang("one", "a"), replace(gang("other", "a"), **change), gang("of-b", "b"))
        if stopped:
            town.put(replace(town.state.local_queues["ns", "a"], stop_policy=StopPolicy.HOLD))
        numbers = (town.state.queue_numbers("a").pending, town.state.local_queue_numbers(("ns", "a")).pending)
        assert numbers == (expected, expected)
        assert town.state.waiting("a") == 2
        town.put(gang("other", "a"))
        assert town.state.queue_numbers("a").pending == (0 if stopped and rules is KUEUE else 2)


def test_a_cohort_cycle_stops_its_members_only() -> None:
    town = small()
    town.put(cohort("x", "y"), cohort("y", "x"), queue("c", "x", [(F, {"gpu": 4})]), gang("g", "c"), gang("h", "a"))
    town.cycle()
    assert town.admitted() == ["h"]
    assert town.state.queue_active("c")[1] == "CohortCycle"
    assert town.state.cohort_active("x")[0] is False
    town.put(cohort("y"))
    town.cycle()
    assert town.admitted() == ["g", "h"]


def test_a_queue_that_is_stopped_while_its_cohorts_are_a_loop_says_so() -> None:
    town = small()
    inside = queue("c", "x", [(F, {"gpu": 4})])
    town.put(cohort("x", "y"), cohort("y", "x"), inside, gang("g", "c"))
    for stop, reason in ((StopPolicy.HOLD, Reason.ON_HOLD), (StopPolicy.NONE, Reason.MISCONFIGURED)):
        town.put(replace(inside, stop_policy=stop))
        assert [verdict.why.reason for verdict in town.cycle().verdicts] == [reason]


VALUES = [
    *elastic("f", "g"),
    Flavor("f", node_labels=(("a", "b"),)),
    cohort("root", "", [(F, {"gpu": 2})]),
    cohort("root", "inner"),
    cohort("inner", "root"),
    queue("a", "root", [(F, {"gpu": 4})]),
    queue("a", "inner", [("g", {"gpu": 1})], stop_policy=StopPolicy.HOLD),
    queue("a", "inner", [("g", {"gpu": 1})]),
    queue("b", "", [(F, {"gpu": 1})]),
    LocalQueue("ns", "a", "a"),
    LocalQueue("ns", "a", "b", stop_policy=StopPolicy.HOLD),
    LocalQueue("ns", "b", "b"),
    Namespace("ns", (("x", "y"),)),
    Namespace("ns", terminating=True),
    Topology("t", ("rack",)),
    node("n", gpu=4),
    PodUsage(("ns", "p"), "p", "n", (("gpu", 1),)),
    PodUsage(("ns", "p"), "p", "n", (("gpu", 1),), workload_uid="uid-w"),
    gang("w", "a", 2),
    gang("w", "b", 1),
    gang("w", "a", 2, finished=True),
    gang("v", "a", 1, priority=5),
    gang("v", "a", 1, active=False),
    gang("v", "a", 0),
]
GONE = [
    Gone(kind, key)
    for kind, key in (
        (ClusterQueue, "a"),
        (ClusterQueue, "nobody"),
        (Cohort, "root"),
        (Flavor, "f"),
        (LocalQueue, ("ns", "a")),
        (Namespace, "ns"),
        (Node, "n"),
        (PodUsage, ("ns", "p")),
        (Topology, "t"),
        (Workload, ("ns", "w")),
        (Workload, ("ns", "nobody")),
    )
]
NEVER = [Cancel(("ns", name), "", Why(Reason.SUSPENDED)) for name in ("w", "nobody")]
EVENTS = [*(Put(value) for value in VALUES), *GONE, *(Forgotten(decision) for decision in NEVER)]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(EVENTS), st.just("decide")), max_size=40))
def test_any_event_at_any_time(events: list[object]) -> None:
    """Never an exception, never drift, and the same decisions and reasons as from the objects that are left."""
    state = State(MUSTER)
    assert not state.latest()  # who came last is kept in order from now on
    left: dict[object, object] = {}
    for event in events:
        if event == "decide":
            for decision in decide(state, START, BUDGET).decisions:
                state.apply(Assumed(decision))  # type: ignore[arg-type]
                state.apply(Forgotten(decision))
            continue
        state.apply(event)  # type: ignore[arg-type]
        state.apply(event)  # type: ignore[arg-type]
        if isinstance(event, Put):
            value = event.value
            name = getattr(value, "key", None) or (getattr(value, "namespace", ""), getattr(value, "name", ""))
            left[type(value), name] = value
        elif isinstance(event, Gone):
            name = event.key if isinstance(event.key, tuple) else ("", event.key)
            left.pop((event.kind, name), None)
    assert state.drift() == []
    other = State(MUSTER)
    for value in reversed(list(left.values())):
        other.apply(Put(value))  # type: ignore[arg-type]
    assert state.latest() == other.latest()
    state.memos.forget()
    assert decide(state, START, BUDGET).decisions == decide(other, START, BUDGET).decisions
    assert {key: state.blocked(key) for key in state.workloads} == {key: other.blocked(key) for key in other.workloads}


def test_a_child_job_that_waits_for_a_domain_is_tried_when_the_last_of_another_jobset_leaves_it() -> None:
    """The node that was left holds none of its pods; the others of its rack do."""
    racks = [("x0", "x", 4), ("x1", "x", 8), ("y0", "y", 8)]
    of = [replace(node(name, gpu=gpus), labels=(("name", name), ("rack", rack))) for name, rack, gpus in racks]
    town = Town(Flavor("f"), queue("a", flavors=[("f", {"gpu": 100})]), *of)

    def child(name: str, gpus: int, on: str = "", alone: bool = True) -> Workload:
        made = gang(name, "a", each={"gpu": gpus})
        only = (("name", on),) if on else ()
        shape = replace(made.pod_sets[0].shape, node_selector=only, of_jobset=True)
        shape = replace(shape, exclusive=Exclusive("rack", 1) if alone else None)
        return replace(made, pod_sets=(PodSet("main", 1, shape),))

    town.put(child("small", 4, "x0", alone=False), child("other", 8, "y0"))
    town.settle()
    town.put(child("big", 8))
    town.settle()
    assert town.admitted() == ["other", "small"]
    town.put(replace(town.gang("small"), finished=True))
    town.settle()
    assert "big" in town.admitted()
    town.put(child("plain", 4, "x0", alone=False))
    town.settle()
    assert "plain" in town.pending()
    town.put(replace(town.gang("big"), finished=True))
    town.settle()
    assert "plain" in town.admitted()


@pytest.mark.parametrize(
    "more",
    [
        {"priority": 1},
        {"priority_boost": 1},
        {"allowed_flavors": frozenset({"f"})},
        {"out_of_stock": ("f",)},
        {"reclaimable": (("main", 1),)},
        {"avoid": (AvoidedNode("n", START + 10**9, "OutOfcpu"),)},
        {"preemption_gated": True},
        {"checks": (Check("c", CheckState.PENDING),)},
        {"parent_uid": "jobset"},
        {"cursor": (("main", "gpu", 1),)},
        {"evicted": "Preempted", "evicted_at": START},
    ],
    ids=" ".join,
)
def test_what_is_found_of_one_gang_says_nothing_of_one_that_differs(more: dict[str, Any]) -> None:
    town = Town(Flavor("f"), queue("a", flavors=[("f", {"gpu": 8})]))
    town.put(gang("one", "a"), gang("alike", "a", created=1), replace(gang("other", "a", created=2), **more))
    town.state.advance(town.now)
    one, alike, other = (town.state.bucket(town.gang(name)) for name in ("one", "alike", "other"))
    assert one == alike != other


def test_gangs_that_are_alike_but_for_their_labels_part_when_somebody_keeps_one_of_them_away() -> None:
    """And it is tried again when he leaves, though the node that he leaves holds none of its pods."""
    racks = [("x0", "x", 0), ("x1", "x", 8), ("y0", "y", 8)]
    of = [replace(node(name, gpu=gpus), labels=(("name", name), ("rack", rack))) for name, rack, gpus in racks]
    town = Town(Flavor("f"), queue("a", flavors=[("f", {"gpu": 100})]), *of)

    def labelled(name: str, created: int, on: str, **labels: str) -> Workload:
        made = gang(name, "a", each={"gpu": 8}, created=created)
        only = (("name", on),) if on else ()
        shape = replace(made.pod_sets[0].shape, node_selector=only, namespace="ns", labels=tuple(labels.items()))
        return replace(made, pod_sets=(PodSet("main", 1, shape),))

    town.put(labelled("other", 0, "y0"))
    town.settle()
    town.put(labelled("quiet", 2, "x1"), labelled("loud", 1, "x1", app="llm"), labelled("too", 3, "x1", app="llm"))
    town.state.advance(town.now)
    loud, quiet = (town.state.bucket(town.gang(name)) for name in ("loud", "quiet"))
    assert loud == quiet, "nobody asks for labels"
    asked = AntiAffinity("rack", LabelSelector((Requirement("app", "In", ("llm",)),)), ("ns",))
    town.state.apply(Put(PodUsage(("x", "p"), "p", "x0", (), apart=(asked,))))
    assert decide(town.state, town.now, BUDGET).decisions == decide(town.state, town.now, BUDGET).decisions
    assert town.state.bucket(town.gang("loud")) == town.state.bucket(town.gang("too")) != quiet
    town.settle()
    assert town.admitted() == ["other", "quiet"]
    town.put(replace(town.gang("quiet"), finished=True))
    town.settle()
    told = town.state.explain(("ns", "loud"))
    assert told is not None
    assert ("anti-affinity of other pods", 1) in told.why.misfits[0].excluded
    town.state.apply(Gone(PodUsage, ("x", "p")))
    town.settle()
    assert "loud" in town.admitted()


@pytest.mark.parametrize("rules", [MUSTER, KUEUE])
def test_what_one_is_refused_who_tries_the_flavors_in_another_order_may_have(rules: Rules) -> None:
    """The small pod sets take what they come to first, and leave room for the large one or not."""
    town = Town(*elastic("x", "y"), queue("a", "", [("x", {"gpu": 3}), ("y", {"gpu": 1})]), rules=rules)

    def of_three(name: str, created: int, **more: object) -> Workload:
        made = gang(name, "a", created=created, **more)
        sets = (replace(made.pod_sets[0], name=f"s{i}", count=count) for i, count in enumerate((1, 1, 2)))
        return replace(made, pod_sets=tuple(sets))

    town.put(of_three("first", 0))
    town.settle()
    if rules is MUSTER:
        assert town.admitted() == ["first"], "what leaves no room is tried otherwise"
        return
    assert town.admitted() == []
    town.put(of_three("alike", 1), of_three("other", 2, out_of_stock=("x",)))
    town.settle()
    assert town.admitted() == ["other"]
    given = town.gang("other").admission
    assert given is not None
    assert [part.flavors for part in given.pod_sets] == [(("gpu", flavor),) for flavor in "yxx"]


def test_a_scan_that_stopped_half_way_begins_anew_when_the_flavors_are_in_another_order() -> None:
    town = Town(*elastic("x", "y"), queue("a", "", [("x", {"gpu": 1}), ("y", {"gpu": 1})]), rules=KUEUE)
    town.put(gang("g", "a"))
    town.state.advance(town.now)
    town.state.scanned(("ns", "g"), (("main", "gpu", 0),), 0, (0, 0))
    assert town.state.workloads["ns", "g"].cursor
    town.state.apply(Put(replace(town.gang("g"), preemption_gated=True)))
    assert town.state.workloads["ns", "g"].cursor, "what else changes, the flavors before it were tried"
    town.state.apply(Put(replace(town.gang("g"), out_of_stock=("x",))))
    assert not town.state.workloads["ns", "g"].cursor


@pytest.mark.parametrize(
    ("others_left", "itself_left", "first"),
    [(300, 0, "mine"), (300, 200, "mine"), (100, 200, "urgent"), (0, 0, "urgent")],
    ids=["room is being freed for it", "for it, after it was evicted", "for it, before it was evicted", "for nobody"],
)
def test_room_that_was_freed_for_a_gang_puts_it_first_until_it_has_had_it(
    others_left: int, itself_left: int, first: str
) -> None:
    """Who was made room for, ran, and was evicted itself stands where its priority puts it, though those who left for
    it then still wait."""
    gone = {"evicted": "Preempted", "evicted_for": "uid-mine", "evicted_at": others_left} if others_left else {}
    mine = {"evicted": "Preempted", "evicted_at": itself_left} if itself_left else {}
    town = Town(
        *elastic("f"),
        queue("q", "", [("f", {"gpu": 1})]),
        gang("left", "q", **gone),
        gang("mine", "q", **mine),
        gang("urgent", "q", priority=5),
    )
    town.state.advance(town.now)
    assert town.state.position(("ns", first)) == 0


def test_of_times_at_which_to_look_again_those_are_kept_that_count() -> None:
    """A gang that is refused in each cycle until somebody may be evicted has another such time each time."""
    town = small()
    town.put(gang("large", "a", 16))
    town.cycle()
    state = town.state
    name, bucket, _ = state._in_line["ns", "large"]
    memo = state.lines[name].parked[bucket]
    for i in range(1000):
        state.memos.park(name, bucket, replace(memo, until=START + i))
    assert len(state.memos._alarms) <= 64
    assert state.next_alarm() == START + 999


@pytest.mark.parametrize(
    ("vision", "speech", "borrowed"),
    [
        (24, 16, {}),  # each has its own, and no more: 8 of vision's are in nobody's sight
        (8, 24, {"speech": 8}),  # of what vision lends
        (0, 40, {"speech": 24, "research": 8}),  # all that vision lends, and what ops lends
        (28, 20, {"vision": 4, "speech": 4, "research": 8}),
    ],
)
def test_what_a_cohort_borrows_is_beyond_what_its_members_have_and_share(
    vision: int, speech: int, borrowed: dict[str, int]
) -> None:
    """A member that may lend a part only keeps the rest to itself: to hold that is not to borrow."""
    town = Town(*elastic("f"), cohort("org"), cohort("research", "org"))
    town.put(queue("vision", "research", [("f", {"gpu": Quota(24, None, 16)})]))
    town.put(queue("speech", "research", [("f", {"gpu": 16})]), queue("ops", "org", [("f", {"gpu": 8})]))
    town.put(*(gang(name, name, pods) for name, pods in (("vision", vision), ("speech", speech)) if pods))
    town.settle()
    state = town.state
    told = {name: state.queue_numbers(name) for name in ("vision", "speech", "ops")}
    told |= {name: state.cohort_numbers(name) for name in ("research", "org")}
    gpus = ("f", "gpu")
    for amounts in ("borrowed", "borrowed_used"):
        found = {name: getattr(numbers, amounts).get(gpus, 0) for name, numbers in told.items()}
        assert {name: amount for name, amount in found.items() if amount} == borrowed
    # Own and used are of all below, whatever of it is shared: the one is to be read beside the other.
    for name, own in (("research", 40), ("org", 48)):
        node = state.ledger.tree.cohort(name)
        assert node is not None
        assert node.nominal_of_all()[gpus] == told[name].nominal[gpus] == own
        assert node.held_by_all().get(gpus, 0) == told[name].reserved.get(gpus, 0) == vision + speech


def test_numbers_tell_what_is_held_of_a_flavor_that_the_queue_names_no_more() -> None:
    town = Town(*elastic("old"), *elastic("new"), cohort("c"), queue("a", "c", [("old", {"gpu": 4})]))
    town.put(gang("g", "a", 3))
    town.settle()
    town.put(queue("a", "c", [("new", {"gpu": 4})]))
    wanted = (("new", "gpu"), ("old", "gpu"))
    state = town.state
    for numbers in (state.queue_numbers("a"), state.local_queue_numbers(("ns", "a")), state.cohort_numbers("c")):
        assert (numbers.order, numbers.reserved) == (wanted, {("old", "gpu"): 3})


@pytest.mark.parametrize("fails", [False, True])
def test_who_ends_while_something_is_decided_of_it_holds_nothing(fails: bool) -> None:
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 1})]))
    town.put(gang("ends", "a"), gang("next", "a", created=1))
    (decision,) = decide(town.state, town.now, BUDGET).decisions
    events: list[Put | Assumed | Forgotten] = [Put(replace(town.gang("ends"), finished=True)), Assumed(decision)]
    if fails:
        events = [events[1], events[0], Forgotten(decision)]
    for event in events:
        town.state.apply(event)
    assert ("ns", "ends") not in town.state.workloads
    assert [one.key[1] for one in decide(town.state, town.now, BUDGET).decisions] == ["next"]


def test_what_was_decided_of_one_counts_not_for_another_of_its_name() -> None:
    """It was deleted meanwhile, and made anew."""
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 1})]), gang("new", "a"))
    (decision,) = decide(town.state, town.now, BUDGET).decisions
    town.put(replace(town.gang("new"), uid="another"))
    town.state.apply(Assumed(decision))
    assert town.state.workloads["ns", "new"].admission is None
    assert town.state.drift() == []
