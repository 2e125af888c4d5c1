"""Rules of the preset kueue that are seldom met, each by `decide` and what `project` makes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from admission.engine import reclaim
from admission.engine.cycle import decide
from admission.engine.flavors import Assignment, FlavorChoice, Mode, PodSetChoice, requests
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admit,
    Assumed,
    AvoidedNode,
    Check,
    CheckState,
    Detail,
    Evict,
    EvictReason,
    Flavor,
    Fungibility,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Quota,
    Reason,
    Requirement,
    Rules,
    Standing,
    StopPolicy,
    Strategy,
    Topology,
    TopologyRequest,
    UsageFairness,
    Verdict,
    Workload,
)
from admission.engine.project import Projection, project
from admission.engine.victims import Preemptor, ordered
from admission.names import HOSTNAME_LABEL
from tests.engine.town import BUDGET, START, Town, cohort, elastic, gang, node, queue

F = "f"
LOWER = PreemptionPolicy.LOWER_PRIORITY


def shown(town: Town, name: str) -> tuple[Projection, Verdict | None]:
    """What one cycle makes of a gang."""
    plan = decide(town.state, START, BUDGET)
    value = town.state.workloads["ns", name]
    verdict = next((v for v in plan.verdicts if v.key == value.key), None)
    what = next((d for d in plan.decisions if d.key == value.key), None) or verdict
    assert what is not None
    return project(value, what), verdict


def conditions(projection: Projection) -> dict[str, tuple[bool, str]]:
    return {kind: (on, reason) for kind, on, reason, _ in projection.conditions}


@pytest.mark.parametrize(
    ("room", "lower", "expected"),
    [
        pytest.param(
            2,
            True,
            {"QuotaReserved": (False, "AdmissionGated"), "BlockedOnPreemptionGates": (True, "PreemptionGated")},
            id="would evict",
        ),
        pytest.param(2, False, {"QuotaReserved": (False, "WaitingForQuota")}, id="nobody to evict"),
        pytest.param(4, True, {"QuotaReserved": (True, "QuotaReserved"), "Admitted": (True, "Admitted")}, id="fits"),
    ],
)
def test_a_closed_preemption_gate_holds_back_only_who_would_evict(
    room: int, lower: bool, expected: dict[str, tuple[bool, str]]
) -> None:
    town = Town(*elastic(F), rules=KUEUE)
    town.put(queue("a", "", [(F, {"gpu": room})], preemption=Preemption(within_cluster_queue=LOWER)))
    town.put(gang("old", "a", 2))
    town.cycle()
    town.put(gang("new", "a", 2, priority=1 if lower else 0, created=1, preemption_gated=True))
    got, _ = shown(town, "new")
    assert expected.items() <= conditions(got).items()
    assert ("BlockedOnPreemptionGates" in conditions(got)) == ("BlockedOnPreemptionGates" in expected)


USED = {"more": 5.0, "less": 1.0, "as much": 5.0}
PAIRS: dict[str, tuple[tuple[str, str, dict[str, int | str]], tuple[str, str, dict[str, int | str]], bool | None]] = {
    # ClusterQueue, LocalQueue and fields of who goes first, and of who goes then; with usage only, without, or both
    "who leaves already": (("own", "less", {"priority": 9, "evicted": "Preempted"}), ("b", "more", {}), None),
    "who is of another queue": (("b", "less", {"priority": 9}), ("own", "more", {}), None),
    "whose LocalQueue used more": (("b", "more", {"priority": 9}), ("b", "less", {}), True),
    "whose priority is lower, by nobody's usage": (("b", "less", {}), ("b", "more", {"priority": 9}), False),
    "of two queues: lower priority": (("b", "less", {}), ("c", "more", {"priority": 9}), None),
    "of equal usage: lower priority": (("b", "more", {}), ("b", "as much", {"priority": 9}), None),
    "of one LocalQueue: lower priority": (("b", "more", {}), ("b", "more", {"priority": 9}), None),
    "of unknown usage: lower priority": (("b", "unknown", {}), ("b", "more", {"priority": 9}), None),
    "the newer one": (("b", "more", {"reserved_at": 9}), ("b", "more", {"reserved_at": 5}), None),
    "what is being reserved now": (("b", "more", {}), ("b", "more", {"reserved_at": 5}), None),
    "the uid": (("b", "more", {}), ("b", "more", {}), None),
}


@pytest.mark.parametrize("row", PAIRS)
def test_the_order_of_victims(row: str) -> None:
    *pair, by_usage = PAIRS[row]
    first, second = (gang(name, local, **said) for name, (_, local, said) in zip("xy", pair, strict=True))
    queue_of = {first.key: pair[0][0], second.key: pair[1][0]}
    for usage in (lambda one: USED.get(one.queue), None):
        for given in ([first, second], [second, first]):
            if by_usage in (None, usage is not None):
                assert ordered(given, "own", START, queue_of, usage) == [first, second]


@pytest.mark.parametrize("rules", [MUSTER, KUEUE, replace(KUEUE, fair_sharing=True)], ids=["muster", "kueue", "fair"])
def test_nobody_is_evicted_whom_nobody_would_stop(rules: Rules) -> None:
    """What Kueue's own controller has started, and is not there to stop."""
    town = Town(*elastic(F), rules=rules)
    town.put(queue("a", "", [(F, {"gpu": 2})], preemption=Preemption(within_cluster_queue=LOWER)))
    town.put(gang("theirs", "a", 1), gang("ours", "a", 1, created=1))
    town.settle()
    town.put(replace(town.gang("theirs"), unmanaged="RayJob ray"))
    town.put(gang("large", "a", 2, priority=9, created=2))
    town.settle()
    assert town.admitted() == ["ours", "theirs"]
    town.put(gang("small", "a", 1, priority=9, created=3))
    town.settle()
    assert town.admitted() == ["small", "theirs"]


def test_when_the_gate_opens_the_condition_goes() -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 2})]), rules=KUEUE)
    town.put(gang("new", "a", 2, blocked_on_gates=True))
    got, _ = shown(town, "new")
    assert conditions(got)["BlockedOnPreemptionGates"] == (False, "QuotaReserved")


@pytest.mark.parametrize("last", ["", "middle", "worst"])
def test_a_variant_in_a_better_flavor_takes_the_place_of_the_worse(last: str) -> None:
    rules = replace(KUEUE, gates=KUEUE.gates | {"ConcurrentAdmission"})
    town = Town(*elastic("best", "middle", "worst"), rules=rules)
    town.put(replace(queue("a", "", [(name, {"gpu": 2}) for name in ("best", "middle", "worst")]), migrates_to=last))
    town.put(gang("slow", "a", 2, allowed_flavors=frozenset({"worst"}), parent_uid="job"))
    town.cycle()
    town.put(gang("fast", "a", 2, created=1, allowed_flavors=frozenset({"middle"}), parent_uid="job"))
    plan = decide(town.state, START, BUDGET)
    assert [(d.key[1], d.reason) for d in plan.decisions if isinstance(d, Evict)] == [
        ("slow", EvictReason.FLAVOR_MIGRATION)
    ]
    told = project(town.state.workloads["ns", "slow"], plan.decisions[0])
    assert conditions(told) == {"Evicted": (True, "FlavorMigration")}
    got = next(v for v in plan.verdicts if v.key[1] == "fast")
    assert (got.standing, got.why.detail) == (Standing.ACTIVE, Detail.VICTIMS_LEAVING)
    town.cycle()
    town.leave()
    town.cycle()
    assert "fast" in town.admitted()


def test_no_job_moves_below_the_last_acceptable_flavor() -> None:
    rules = replace(KUEUE, gates=KUEUE.gates | {"ConcurrentAdmission"})
    town = Town(*elastic("best", "middle", "worst"), rules=rules)
    town.put(replace(queue("a", "", [(name, {"gpu": 2}) for name in ("best", "middle", "worst")]), migrates_to="best"))
    town.put(gang("slow", "a", 2, allowed_flavors=frozenset({"worst"}), parent_uid="job"))
    town.cycle()
    town.put(gang("fast", "a", 2, created=1, allowed_flavors=frozenset({"middle"}), parent_uid="job"))
    plan = decide(town.state, START, BUDGET)
    assert not plan.decisions
    got = next(v for v in plan.verdicts if v.key[1] == "fast")
    assert got.why.detail is Detail.VARIANT_ADMITTED


def test_a_cohort_over_its_quota_gives_nobody_an_advantage() -> None:
    """What a queue keeps for itself covers the gang's cpu; its cohort holds more cpu than its quota all the same, so
    there is no hierarchical advantage by the gpu alone, and priority decides."""
    town = Town(*elastic(F), rules=KUEUE)
    town.put(cohort("root"), cohort("inner", "root"))
    within = Preemption(reclaim_within_cohort=PreemptionPolicy.ANY)
    town.put(
        queue("a", "inner", [(F, {"cpu": Quota(4, lending_limit=0), "gpu": 0})], preemption=within),
        queue("b", "inner", [(F, {"cpu": 0, "gpu": 4})]),
        queue("c", "root", [(F, {"cpu": 8, "gpu": 0})]),
        queue("d", "root", [(F, {"cpu": 0, "gpu": 0})]),
    )
    town.put(gang("c1", "b", each={"cpu": 2}, created=0))
    town.cycle()
    assert town.admitted() == ["c1"]
    town.put(gang("d1", "d", each={"gpu": 4}, created=1))
    town.cycle()
    assert town.admitted() == ["c1", "d1"]
    new = gang("new", "a", each={"cpu": 1, "gpu": 4}, created=2)
    town.put(new)
    (asked,) = requests(new, town.state.queues["a"], KUEUE)
    choice = PodSetChoice(asked, {"cpu": FlavorChoice(F, Mode.FIT, 0, -1), "gpu": FlavorChoice(F, Mode.PREEMPT, 1, -1)})
    wanted = Assignment((choice,), Mode.PREEMPT, {(F, "cpu"): 1, (F, "gpu"): 4}, 1)
    found = reclaim.targets(Preemptor(town.state.ledger, new, "a", KUEUE, START, town.state.holders), wanted)
    assert found.victims == ()


def test_what_is_admitted_is_told_once() -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 2})]), rules=KUEUE)
    town.put(gang("new", "a", 2))
    plan = decide(town.state, START, BUDGET)
    assert [type(d) for d in plan.decisions] == [Admit]


def test_who_looks_again_in_a_cycle_keeps_to_the_flavors_of_the_first_look() -> None:
    """Two gangs would evict the same one in the first flavor. The second looks again beside the first, and does not
    switch to the other flavor, where there is room, before the next cycle."""
    town = Town(*elastic("first", "second"), cohort("root"), rules=KUEUE)
    policy = Preemption(reclaim_within_cohort=LOWER)
    stops = Fungibility(stop_when_preempting=True)
    flavors: list[tuple[str, dict[str, int | Quota]]] = [("first", {"gpu": 2}), ("second", {"gpu": 2})]
    town.put(queue("old", "root", [("first", {"gpu": 0})]))
    town.put(*(queue(name, "root", flavors, preemption=policy, fungibility=stops) for name in ("a", "b")))
    town.put(gang("safe", "old", 2, priority=9), gang("held", "old", 2))
    town.settle()
    assert town.admitted() == ["held", "safe"]
    town.put(gang("one", "a", 2, priority=1, created=1), gang("two", "b", 2, priority=1, created=2))
    plan = decide(town.state, START, BUDGET)
    assert [(d.key[1], d.preemptor[1]) for d in plan.decisions if isinstance(d, Evict)] == [("held", "one")]
    two = next(v for v in plan.verdicts if v.key[1] == "two")
    assert (two.standing, two.why.detail) == (Standing.ACTIVE, Detail.NEXT_CYCLE)
    assert not [d for d in plan.decisions if isinstance(d, Admit)]


def test_a_tree_that_a_cycle_had_no_budget_for_has_the_next_one_first() -> None:
    """However much there is to look at in the trees before it, and in whole trees: who is first of two queues of one
    cohort goes first, whatever the budget."""
    town = Town(*elastic(F), rules=KUEUE)
    for name, tree, quota in (("a", "", 9), ("b", "", 9), ("x", "shared", 0), ("y", "shared", 0), ("z", "shared", 1)):
        town.put(queue(name, tree, [(F, {"gpu": quota})]))
    town.put(gang("low", "x", 1), gang("high", "y", 1, priority=1))
    order: list[str] = []
    for number in range(8):
        town.put(gang(f"a{number}", "a", 1), gang(f"b{number}", "b", 1))
        plan = decide(town.state, START, 1)
        for decision in plan.decisions:
            assert isinstance(decision, Admit)
            order.append(decision.key[1])
            town.state.apply(Assumed(decision))
    assert set(order[:3]) == {"a0", "b0", "high"}
    assert "low" not in order, "the one before it borrows all there is"


@pytest.mark.parametrize("fair", [False, True])
def test_nobody_is_admitted_into_room_of_those_who_have_yet_to_leave(fair: bool) -> None:
    """One leaves who holds more than the gang asks for that it goes for; what is over is not free before it is gone."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    for name, nominal in (("v", 0), ("a", 16), ("b", 4), ("c", 4)):
        reclaims = Preemption(reclaim_within_cohort=PreemptionPolicy.ANY)
        town.put(queue(name, "all", [(F, {"gpu": nominal})], preemption=reclaims))
    town.put(gang("v0", "v", 20))
    town.settle()
    town.put(gang("a0", "a", 10, created=1), gang("b0", "b", 4, created=2), gang("c0", "c", 4, created=3))
    first = decide(town.state, START, BUDGET).decisions
    assert [(type(d), d.key[1]) for d in first] == [(Evict, "v0"), (Admit, "b0")]
    town.settle()
    assert town.admitted() == ["a0", "b0", "c0"]


def test_what_equal_gangs_wait_for_is_told_of_each_once() -> None:
    """Only who is looked at again is told of again, for its numbers may be others."""
    town = Town(*elastic(F), rules=KUEUE)
    town.put(queue("a", "all", [(F, {"gpu": 4})]), queue("b", "all", [(F, {"gpu": 4})]))
    town.put(gang("held", "a", 4), gang("other", "b", 4))
    town.settle()
    town.put(*(gang(f"more{i}", "a", 8, created=i) for i in range(5)))
    assert sorted(v.key[1] for v in decide(town.state, START, BUDGET).verdicts) == [f"more{i}" for i in range(5)]
    town.remove(Workload, ("ns", "other"))
    (again,) = decide(town.state, START, BUDGET).verdicts
    assert again.key[1] == "more0"
    behind = town.state.refused_since(("ns", "more3"))
    assert behind is not None, "who asks why it waits is answered with those numbers, too"
    assert (behind.key[1], behind.why) == ("more3", again.why)
    assert town.state.refused_since(again.key) is None, "and who was looked at as it was told"


@pytest.mark.parametrize("fair", [False, True])
def test_a_scan_that_stopped_goes_on_behind_where_it_stopped(fair: bool) -> None:
    """Quota of the first flavor fits, its nodes do not: the next cycle looks at the second, and if that is full too,
    nobody looks at the gang before something changes."""
    town = Town(
        Topology("net", (HOSTNAME_LABEL,)),
        *(Flavor(name, node_labels=(("pool", name),), topology="net") for name in ("first", "second")),
        *(replace(node(name, gpu=4), labels=(*node(name).labels, ("pool", name))) for name in ("first", "second")),
        queue("a", flavors=[("first", {"gpu": 8}), ("second", {"gpu": 8})]),
        rules=replace(KUEUE, fair_sharing=fair),
    )
    for number, expected in enumerate((["g0"], ["g0", "g1"], ["g0", "g1"])):
        town.put(gang(f"g{number}", "a", each={"gpu": 3}))
        town.settle()
        assert town.admitted() == expected
    assert [part.flavors for part in town.gang("g1").admission.pod_sets] == [(("gpu", "second"),)]  # type: ignore[union-attr]
    town.put(replace(town.gang("g2"), priority=1))  # whatever its object says anew
    town.settle()
    town.remove(Workload, ("ns", "g0"))
    town.settle()
    assert town.admitted() == ["g1", "g2"]


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
def test_a_gang_that_a_strict_queue_does_not_take_holds_nobody_back(rules: Rules) -> None:
    """Nor is it tried before its namespace, or what the queue takes, is another."""
    takes = LabelSelector((Requirement("team", "In", ("a",)),))
    strict = replace(queue("a", flavors=[(F, {"gpu": 4})], strategy=Strategy.STRICT_FIFO), namespace_selector=takes)
    town = Town(*elastic(F), strict, LocalQueue("other", "a", "a"), Namespace("ns", (("team", "a"),)), rules=rules)
    town.put(Namespace("other", ()), replace(gang("stray", "a"), namespace="other"))
    town.settle()
    town.put(gang("mine", "a", created=5))
    town.settle()
    assert town.admitted() == ["mine"]
    verdict = town.state.explain(("other", "stray"))
    assert verdict is not None
    assert (verdict.why.detail, verdict.requests) == (Detail.NAMESPACE_NOT_SELECTED, (("main", (("gpu", 1),)),))
    assert town.cycle().steps == 0
    town.put(replace(strict, namespace_selector=LabelSelector()))
    town.settle()
    assert town.admitted() == ["mine", "stray"]


@pytest.mark.parametrize("fair", [False, True])
def test_the_head_of_a_strict_queue_is_tried_when_something_changed(fair: bool) -> None:
    town = Town(
        *elastic(F),
        queue("a", flavors=[(F, {"gpu": 4})], strategy=Strategy.STRICT_FIFO),
        rules=replace(KUEUE, fair_sharing=fair),
    )
    town.put(gang("g0", "a", each={"gpu": 3}), gang("g1", "a", each={"gpu": 3}, created=1), gang("g2", "a", created=2))
    town.settle()
    assert (town.admitted(), town.cycle().steps) == (["g0"], 0)
    head, behind = (town.state.explain(("ns", name)) for name in ("g1", "g2"))
    assert head is not None
    assert (head.standing, head.why.detail) == (Standing.ACTIVE, Detail.QUOTA_SHORT)
    assert behind is not None
    assert behind.why.detail is Detail.BEHIND_HEAD
    town.remove(Workload, ("ns", "g0"))
    town.settle()
    assert town.admitted() == ["g1", "g2"]


def test_a_scan_during_which_something_changed_is_made_once_more() -> None:
    """What the first flavor lacked is there by the time that the second is looked at."""
    town = Town(
        Topology("net", (HOSTNAME_LABEL,)),
        *(Flavor(name, node_labels=(("pool", name),), topology="net") for name in ("first", "second")),
        *(replace(node(name, gpu=4), labels=(*node(name).labels, ("pool", name))) for name in ("first", "second")),
        queue("a", flavors=[("first", {"gpu": 8}), ("second", {"gpu": 8})]),
        rules=KUEUE,
    )
    for number in range(2):
        town.put(gang(f"g{number}", "a", each={"gpu": 3}))
        town.settle()
    town.put(gang("g2", "a", each={"gpu": 3}))
    assert decide(town.state, town.now, BUDGET).more
    town.remove(Workload, ("ns", "g0"))
    town.settle()
    assert town.admitted() == ["g1", "g2"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize(
    ("strategy", "own", "run"),
    [
        pytest.param(Strategy.BEST_EFFORT_FIFO, 8, ["new", "old0"], id="asleep"),
        pytest.param(Strategy.BEST_EFFORT_FIFO, 0, ["new", "old0"], id="asleep, though of higher priority"),
        pytest.param(Strategy.STRICT_FIFO, 0, ["new", "other"], id="the head of a strict queue never sleeps"),
        pytest.param(Strategy.STRICT_FIFO, 8, ["old0", "old1"], id="and keeps what is its queue's"),
    ],
)
def test_who_has_evicted_somebody_has_the_room_before_those_who_were_asleep(
    fair: bool, strategy: Strategy, own: int, run: list[str]
) -> None:
    """Though by order they would be first: they borrow nothing, or have the higher priority. Else he would evict
    another one."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", "all", [(F, {"gpu": 8})], preemption=Preemption(within_cluster_queue=LOWER)))
    town.put(queue("b", "all", [(F, {"gpu": own})], strategy=strategy), queue("c", "all", [(F, {"gpu": 8 - own})]))
    for number in range(2):
        town.put(gang(f"old{number}", "a", 8, created=number, priority=1 - number))
        town.settle()
    town.put(gang("other", "b", 8, created=2, priority=0 if own else 3))
    town.settle()
    town.put(gang("new", "a", 8, created=3, priority=2))
    town.settle()
    assert town.admitted() == run


@pytest.mark.parametrize("without", ["", "TASRecomputeAssignmentWithinSchedulingCycle"])
def test_who_lacks_what_another_keeps_for_one_cycle_is_looked_at_in_the_next(without: str) -> None:
    """The first finds nobody to evict, and keeps the node from others in this cycle; one of them fits beside what
    runs there."""
    rules = replace(KUEUE, gates=KUEUE.gates - {without})
    town = Town(Topology("t", (HOSTNAME_LABEL,)), Flavor(F, topology="t"), node("n", gpu=4), rules=rules)
    town.put(*(queue(name, "", [(F, {"gpu": 8})]) for name in ("a", "b", "c")))
    town.put(gang("runs", "c", each={"gpu": 3}))
    town.settle()
    town.put(gang("wide", "a", each={"gpu": 2}, created=1), gang("fits", "b", created=2))
    town.settle()
    assert town.admitted() == ["fits", "runs"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("inner", ["", "half"], ids=["queue", "cohort"])
def test_nobody_borrows_what_the_next_of_a_queue_takes_back(fair: bool, inner: str) -> None:
    """One gang of a queue ends, for several smaller ones of it or of its cohort: they go before those who borrow, who
    would be evicted for them one cycle later."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    reclaims = Preemption(reclaim_within_cohort=PreemptionPolicy.ANY)
    town.put(cohort("half", "all"))
    town.put(queue("a", inner or "all", [(F, {"gpu": 0 if inner else 8})], preemption=reclaims))
    town.put(queue("aa", inner or "all", [(F, {"gpu": 8 if inner else 0})], preemption=reclaims))
    town.put(queue("b", "all", [(F, {"gpu": 8})], preemption=reclaims))
    town.put(gang("theirs", "b", 8), gang("old", "a", 8))
    town.settle()
    town.put(*(gang(f"{name}{number}", name, 2, created=1 + number) for name in "ab" for number in range(5)))
    town.settle()
    town.remove(Workload, ("ns", "old"))
    sent = []
    while (plan := town.cycle()).decisions:
        sent += [decision.key[1] for decision in plan.decisions if isinstance(decision, Evict)]
    assert (sent, town.admitted()) == ([], ["a0", "a1", "a2", "a3", "theirs"])


@pytest.mark.parametrize("fair", [False, True])
def test_who_found_no_flavors_for_all_of_its_pod_sets_makes_room_for_those_behind(fair: bool) -> None:
    """One finds room in the first flavor, and none is left for the others; then the other way round, and so on."""
    town = Town(*elastic("first", "second"), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", flavors=[("first", {"gpu": 4}), ("second", {"gpu": 4})]))
    town.put(gang("runs", "a", 3), gang("too", "a", 3, created=1))
    town.settle()
    one = gang("two", "a", created=2)
    pods = one.pod_sets[0]
    town.put(replace(one, pod_sets=tuple(replace(pods, name=name) for name in ("x", "y", "z"))))
    town.put(gang("small", "a", created=3))
    town.settle()
    assert town.admitted() == ["runs", "small", "too"]
    assert decide(town.state, town.now, BUDGET).steps == 0
    town.remove(Workload, ("ns", "runs"))
    town.settle()
    assert town.admitted() == ["small", "too", "two"]


@pytest.mark.parametrize("fair", [False, True])
def test_quota_cut_below_what_a_queue_holds_makes_no_room_for_others(fair: bool) -> None:
    """Its head finds nobody to evict, and keeps for this cycle what its queue may have: nothing, for that has more
    already."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", "all", [(F, {"gpu": Quota(8, borrowing_limit=0)})]))
    town.put(queue("b", "all", [(F, {"gpu": 10})]), queue("c", "all", [(F, {"gpu": 0})]))
    town.put(gang("a0", "a", 8))
    town.settle()
    town.put(queue("a", "all", [(F, {"gpu": Quota(2, borrowing_limit=0)})], generation=1))
    town.put(gang("a1", "a", created=1), gang("b1", "b", 4, created=2), gang("c1", "c", 4, created=3))
    town.settle()
    assert town.admitted() == ["a0", "b1"]


@pytest.mark.parametrize(
    ("strategy", "first"), [(Strategy.STRICT_FIFO, "high"), (Strategy.BEST_EFFORT_FIFO, "mid")], ids=["strict", "best"]
)
@pytest.mark.parametrize("changed", [False, True])
def test_what_was_freed_in_a_strict_queue_goes_by_its_order(strategy: Strategy, first: str, changed: bool) -> None:
    """In a best-effort queue it is his for whom others were evicted."""
    town = Town(*elastic(F), rules=KUEUE)
    other = next(one for one in Strategy if one is not strategy)
    a = queue("a", flavors=[(F, {"gpu": 8})], strategy=strategy, preemption=Preemption(within_cluster_queue=LOWER))
    town.put(replace(a, strategy=other) if changed else a, gang("low", "a", 8))
    town.settle()
    town.put(gang("mid", "a", 8, created=1, priority=1))
    town.cycle()
    town.put(a, gang("high", "a", 8, created=2, priority=2))
    town.leave()
    town.cycle()
    assert town.admitted() == [first]


@pytest.mark.parametrize("rules", [MUSTER, KUEUE, replace(KUEUE, fair_sharing=True)], ids=["muster", "kueue", "fair"])
def test_who_runs_in_a_queue_that_is_stopped_runs_to_its_end(rules: Rules) -> None:
    """He could not come back. (The guarantee of nominal quota is a promise that Kueue does not make.)"""
    town = Town(*elastic(F), rules=rules)
    town.put(queue("a", "all", [(F, {"gpu": 8})], preemption=Preemption(reclaim_within_cohort=PreemptionPolicy.ANY)))
    b, c = (queue(name, "all", [(F, {"gpu": 0})]) for name in "bc")
    town.put(b, c, gang("b0", "b", 4), gang("c0", "c", 4))
    town.settle()
    town.put(replace(b, stop_policy=StopPolicy.HOLD), gang("a0", "a", 4, created=1), gang("a1", "a", 4, created=2))
    town.settle()
    assert town.admitted() == (["a0", "a1"] if rules is MUSTER else ["a0", "b0"])


@pytest.mark.parametrize("fair", [False, True])
def test_who_asks_for_none_of_something_takes_back_what_is_its_queues(fair: bool) -> None:
    """Its queue borrows of that; no pods of the other pod set are wanted now."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", "all", [(F, {"gpu": 4, "cpu": 0})], preemption=Preemption(reclaim_within_cohort=LOWER)))
    town.put(queue("b", "all", [(F, {"gpu": 0, "cpu": 4})]))
    town.put(gang("a0", "a", each={"cpu": 2}), gang("b0", "b", 4))
    town.settle()
    one = gang("a1", "a", 4, priority=1, created=1)
    idle = replace(gang("idle", "a", 0, each={"cpu": 1}).pod_sets[0], name="idle")
    town.put(replace(one, pod_sets=(*one.pod_sets, idle)))
    town.settle()
    assert town.admitted() == ["a0", "a1"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("each_for_the_other", [False, True])
def test_who_was_evicted_does_not_take_back_the_room_that_he_gave(fair: bool, each_for_the_other: bool) -> None:
    """Though by order he would be first: when he has left, the first flavor has room for all of the gang, so that it
    borrows as he does, and he has the higher priority. And though that one was evicted for him before."""
    town = Town(*elastic("first", "second"), rules=replace(KUEUE, fair_sharing=fair))
    policy = Preemption(reclaim_within_cohort=PreemptionPolicy.ANY)
    town.put(queue("a", "all", [("first", {"gpu": 2}), ("second", {"gpu": 2})], preemption=policy))
    town.put(queue("b", "all", [("first", {"gpu": 0})]), queue("c", "all", [("first", {"gpu": 2})]))
    town.put(gang("old", "b", 4, priority=0 if each_for_the_other else 9, created=2))
    town.settle()
    one = gang("new", "a", 2, created=1)
    one = replace(one, pod_sets=(*one.pod_sets, replace(one.pod_sets[0], name="two")))
    if each_for_the_other:
        one = replace(one, evicted="Preempted", evicted_for="uid-old", evicted_at=START)
    town.put(one)
    assert town.settle() == 1
    assert town.admitted() == ["new"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize(
    ("strategy", "run"),
    [(Strategy.STRICT_FIFO, ["a0"]), (Strategy.BEST_EFFORT_FIFO, ["a0", "b1"])],
    ids=["strict", "best"],
)
@pytest.mark.parametrize("goes", ["a0", "a1"])
def test_the_head_of_a_strict_queue_keeps_what_is_its_queues(
    fair: bool, strategy: Strategy, run: list[str], goes: str
) -> None:
    """As long as it waits, and not in its first cycle alone: whoever borrowed it would not be sent for it."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", "all", [(F, {"gpu": 8})], strategy=strategy), queue("b", "all", [(F, {"gpu": 0})]))
    town.put(queue("c", "all", [(F, {"gpu": 1})]))
    town.put(gang("a0", "a", 4))
    town.settle()
    town.put(gang("a1", "a", 8, created=1))
    town.settle()
    town.put(gang("b1", "b", 4, created=2), gang("b2", "b", 4, created=2))
    town.settle()
    assert town.admitted() == run
    town.put(gang("c1", "c", created=3))
    town.settle()
    assert town.admitted() == [*run, "c1"]
    assert decide(town.state, town.now, BUDGET).steps == 0
    if strategy is Strategy.STRICT_FIFO:
        verdict = town.state.explain(("ns", "b1"))
        assert verdict is not None
        assert (verdict.standing, verdict.why.detail, verdict.why.subject) == (
            Standing.PARKED,
            Detail.CLAIMED,
            "ns/a1",
        )
        town.remove(Workload, ("ns", goes))
        town.settle()
        assert town.admitted() == (["a1", "c1"] if goes == "a0" else ["a0", "b1", "c1"])


def test_a_cycle_in_which_many_go_on_ends_by_its_budget() -> None:
    town = Town(*elastic(F), rules=KUEUE)
    town.put(queue("a", "all", [(F, {"gpu": 100})]), queue("b", "all", [(F, {"gpu": 0})]))
    town.put(*(gang(f"a{number:02}", "a", created=number) for number in range(60)), gang("b0", "b"))
    plan = decide(town.state, START, 20)
    assert plan.more
    assert 20 <= plan.steps <= 24
    town.settle()
    assert len(town.admitted()) == 61


def test_room_that_a_strict_queue_keeps_is_told_of_the_gang_that_keeps_it() -> None:
    """Not of one in another tree."""
    town = Town(*elastic(F), rules=KUEUE)
    for tree in "xy":
        town.put(queue(f"{tree}a", tree, [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO))
        town.put(queue(f"{tree}b", tree, [(F, {"gpu": 0})]))
        town.put(gang(f"{tree}a0", f"{tree}a", 4))
    town.settle()
    for tree in "xy":
        town.put(gang(f"{tree}a1", f"{tree}a", 8, created=1))
    town.settle()
    for tree in "xy":
        town.put(gang(f"{tree}b1", f"{tree}b", 4, created=2))
    town.settle()
    told = {name: town.state.explain(("ns", name)) for name in ("xb1", "yb1")}
    assert {name: verdict and verdict.why.subject for name, verdict in told.items()} == {
        "xb1": "ns/xa1",
        "yb1": "ns/ya1",
    }


def behind_a_strict_head(fair: bool, *objects: Node | PodUsage, rack: bool = False) -> Town:
    """It wants two whole nodes (of one `rack`), of which another queue has a part of the first."""
    levels = ("rack", HOSTNAME_LABEL) if rack else (HOSTNAME_LABEL,)
    town = Town(Topology("t", levels), Flavor(F, topology="t"), *objects, rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", "all", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO), queue("b", "all", [(F, {"gpu": 16})]))
    town.put(gang("runs", "b", each={"gpu": 3}))
    town.settle()
    wide = gang("wide", "a", 2, each={"gpu": 4}, created=1)
    near = replace(wide.pod_sets[0], topology=TopologyRequest(required="rack"))
    town.put(replace(wide, pod_sets=(near,)) if rack else wide)
    town.settle()
    return town


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize(
    ("then", "run"),
    [("wide goes", ["runs", "small"]), ("runs goes", ["wide"]), ("a node comes", ["runs", "small"])],
)
def test_who_would_stand_on_nodes_that_the_head_of_a_strict_queue_keeps_waits(
    fair: bool, then: str, run: list[str]
) -> None:
    """And nobody looks at it again and again."""
    town = behind_a_strict_head(fair, node("n1", gpu=4), node("n2", gpu=4))
    town.put(gang("small", "b", each={"gpu": 2}, created=2))
    town.settle()
    assert town.admitted() == ["runs"]
    told = town.state.explain(("ns", "small"))
    assert told is not None
    assert (told.standing, told.why.detail, told.why.subject) == (Standing.PARKED, Detail.CLAIMED, "ns/wide")
    if then == "a node comes":
        town.put(node("n3", gpu=2))
    else:
        town.remove(Workload, ("ns", then.split(maxsplit=1)[0]))
    town.settle()
    assert town.admitted() == run


@pytest.mark.parametrize("fair", [False, True])
def test_who_keeps_other_nodes_now_leaves_those_that_it_kept(fair: bool) -> None:
    """Pods of nobody's left one, on which no pod of the other gang would find room."""
    sizes = {"n1": ("y", 5), "n2": ("y", 6), "n3": ("x", 4), "n4": ("x", 4)}
    nodes = [
        replace(one, labels=(*one.labels, ("rack", rack)))
        for name, (rack, gpus) in sizes.items()
        for one in [node(name, gpu=gpus)]
    ]
    pods = [PodUsage(("x", f"pod-{name}"), f"pod-{name}", name, (("gpu", 4),)) for name in ("n3", "n4")]
    town = behind_a_strict_head(fair, *nodes, *pods, rack=True)
    town.remove(PodUsage, ("x", "pod-n4"))
    town.settle()
    town.put(gang("more", "b", each={"gpu": 3}, created=2))
    town.settle()
    town.put(gang("large", "b", each={"gpu": 6}, created=3))
    town.settle()
    assert town.admitted() == ["more", "runs"]
    town.remove(PodUsage, ("x", "pod-n3"))
    town.settle()
    assert town.admitted() == ["large", "more", "runs"]


@pytest.mark.parametrize("fair", [False, True])
def test_the_head_of_a_strict_queue_keeps_nodes_from_other_trees(fair: bool) -> None:
    """Two do from each other's."""
    town = behind_a_strict_head(fair, node("n1", gpu=4), node("n2", gpu=4))
    town.put(
        queue("c", "other", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO), queue("d", "other", [(F, {"gpu": 4})])
    )
    town.put(gang("small", "d", each={"gpu": 2}, created=2), gang("too", "c", 2, each={"gpu": 4}, created=3))
    town.put(gang("third", "b", created=4))
    town.settle()
    assert town.admitted() == ["runs"]
    told = town.state.explain(("ns", "small"))
    assert told is not None
    assert (told.standing, told.why.detail) == (Standing.PARKED, Detail.CLAIMED)
    town.remove(Workload, ("ns", "wide"))
    town.settle()
    assert {"runs", "small"} <= set(town.admitted())


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("budget", [BUDGET, 1])
@pytest.mark.parametrize(("goes", "run"), [("runs", ["wide"]), ("tiny", ["runs"])])
def test_what_the_head_of_a_strict_queue_keeps_is_its_own_also_where_its_tree_is_looked_at_last(
    goes: str, run: list[str], budget: int, fair: bool
) -> None:
    """Something changed there, and others come in trees that are looked at before."""
    town = behind_a_strict_head(fair, node("n1", gpu=4), node("n2", gpu=4))
    town.put(*(queue(name, f"a-{name}", [(F, {"gpu": 4})]) for name in "xyz"))
    if goes == "tiny":
        town.put(gang("tiny", "b"))
    town.settle()
    town.remove(Workload, ("ns", goes))
    town.put(*(gang(f"small-{name}", name, each={"gpu": 2}, created=2) for name in "xyz"))
    town.budget = budget
    town.settle()
    assert town.admitted() == run


@pytest.mark.parametrize("fair", [False, True])
def test_of_trees_behind_the_budget_only_those_who_keep_nodes_are_looked_at(fair: bool) -> None:
    """Each has a strict queue whose head keeps some, and many more; all are worth a trial when a node is free."""
    town = Town(
        Topology("t", (HOSTNAME_LABEL,)), Flavor(F, topology="t"), *(node(f"n{i}", gpu=4) for i in range(2)),
        rules=replace(KUEUE, fair_sharing=fair),
    )  # fmt: skip
    town.put(queue("other", "other", [(F, {"gpu": 8})]), *(gang(f"run{i}", "other", each={"gpu": 4}) for i in range(2)))
    town.settle()
    trees, queues = 20, 10
    for tree in range(trees):
        strict = queue(f"s{tree:02}", f"tree{tree:02}", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO)
        town.put(strict, gang(f"wide{tree:02}", strict.name, 2, each={"gpu": 4}, created=tree + 1))
        for i in range(queues):
            name = f"q{tree:02}-{i}"
            town.put(queue(name, strict.cohort, [(F, {"gpu": 4})]), gang(name, name, each={"gpu": 2}, created=100 + i))
    town.settle()
    town.budget = queues
    town.remove(Workload, ("ns", "run0"))
    plan = decide(town.state, town.now, town.budget)
    assert plan.more
    assert plan.steps <= 2 * (1 + queues + trees), "each of them once, and again where another took its nodes"
    town.remove(Workload, ("ns", "run1"))
    town.settle(200)
    assert town.admitted() == ["wide00"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("first", ["a", "b"])
def test_of_two_trees_whose_gang_has_waited_longer_has_the_nodes(first: str, fair: bool) -> None:
    rules = replace(KUEUE, fair_sharing=fair)
    town = Town(Topology("t", (HOSTNAME_LABEL,)), Flavor(F, topology="t"), node("n", gpu=4), rules=rules)
    town.put(*(queue(name, f"tree-{name}", [(F, {"gpu": 8})]) for name in "abc"), gang("runs", "c", each={"gpu": 4}))
    town.settle()
    town.put(*(gang(name, name, each={"gpu": 4}, created=1 + (name != first)) for name in "ab"))
    town.settle()
    town.remove(Workload, ("ns", "runs"))
    town.settle()
    assert town.admitted() == [first]


@pytest.mark.parametrize("fair", [False, True])
def test_who_keeps_nodes_of_one_flavor_and_then_of_another_keeps_none_for_good(fair: bool) -> None:
    """It stops at each: what it keeps in this cycle is free in the next."""
    pools = {"n1": "first", "n2": "first", "n3": "second", "n4": "second"}
    town = Town(
        Topology("t", (HOSTNAME_LABEL,)),
        *(Flavor(name, node_labels=(("pool", name),), topology="t") for name in ("first", "second")),
        *(replace(one, labels=(*one.labels, ("pool", pools[one.name]))) for one in [node(n, gpu=4) for n in pools]),
        rules=replace(KUEUE, fair_sharing=fair),
    )
    both: list[tuple[str, dict[str, int | Quota]]] = [("first", {"gpu": 16}), ("second", {"gpu": 16})]
    stops = Fungibility(stop_when_preempting=True)
    town.put(queue("a", "all", both, strategy=Strategy.STRICT_FIFO, fungibility=stops))
    town.put(queue("b", "all", both[1:]), queue("c", "", both))
    town.put(*(gang(f"c{at}", "c", each={"gpu": 3}, allowed_flavors=frozenset({at})) for at in ("first", "second")))
    town.settle()
    town.put(gang("wide", "a", 2, each={"gpu": 4}, created=1))
    town.put(gang("tiny", "b", created=2), gang("small", "b", each={"gpu": 2}, created=3))
    town.settle()
    assert town.admitted() == ["cfirst", "csecond", "small", "tiny"]


@pytest.mark.parametrize("fair", [False, True])
def test_heads_of_strict_queues_that_keep_room_are_looked_at_again_when_their_tree_changed(fair: bool) -> None:
    """An arrival changes nothing of what they lack."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("b", "all", [(F, {"gpu": Quota(0)})]))
    for name in "stuvw":
        town.put(queue(name, "all", [(F, {"gpu": Quota(8, 0)})], strategy=Strategy.STRICT_FIFO))
        town.put(gang(f"{name}0", name, 4))
    town.settle()
    town.put(*(gang(f"{name}1", name, 8, created=1) for name in "stuvw"))
    town.settle()
    steps = []
    for pods in (5, 6, 7):
        town.put(gang(f"b{pods}", "b", pods, created=2))
        steps.append(town.cycle().steps)
    assert steps == [1, 1, 1]
    assert town.admitted() == [f"{name}0" for name in "stuvw"]
    town.remove(Workload, ("ns", "s0"))
    town.settle()
    assert "s1" in town.admitted()
    town.remove(Workload, ("ns", "t1"))
    town.remove(Workload, ("ns", "u1"))
    town.settle()
    assert town.admitted() == ["b5", "s1", *(f"{name}0" for name in "tuvw")]


def test_who_avoids_a_node_comes_back_when_that_is_over() -> None:
    town = Town(Topology("t", (HOSTNAME_LABEL,)), Flavor(F, topology="t"), node("n", gpu=4), rules=KUEUE)
    town.put(queue("a", "", [(F, {"gpu": 8})]))
    town.put(replace(gang("g", "a"), avoid=(AvoidedNode("n", town.now + 5_000, "NodeFailures"),)))
    town.settle()
    assert town.admitted() == []
    at = town.state.next_alarm()
    assert at is not None
    town.now = at
    town.settle()
    assert town.admitted() == ["g"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("strategy", list(Strategy))
def test_who_takes_back_what_is_its_queues_from_whoever_has_it_keeps_nothing(fair: bool, strategy: Strategy) -> None:
    """It may evict nobody of its own queue. Others borrow what is free, and would be sent for it."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    reclaims = Preemption(reclaim_within_cohort=PreemptionPolicy.ANY)
    town.put(queue("a", "all", [(F, {"gpu": 8})], strategy=strategy, preemption=reclaims))
    town.put(queue("b", "all", [(F, {"gpu": 0})]), gang("a0", "a", 4))
    town.settle()
    town.put(gang("a1", "a", 8, created=1), gang("b1", "b", 4, created=2))
    town.settle()
    assert town.admitted() == ["a0", "b1"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("never", [True, False])
def test_who_is_no_more_the_head_of_a_strict_queue_keeps_nothing(never: bool, fair: bool) -> None:
    """Who is takes it, or could never go and keeps nothing either."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", "all", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO), queue("b", "all", [(F, {"gpu": 0})]))
    town.put(gang("a0", "a", 4))
    town.settle()
    town.put(gang("a1", "a", 8, created=1))
    town.settle()
    town.put(gang("b1", "b", 4, created=2))
    town.settle()
    assert town.admitted() == ["a0"]
    town.put(gang("a2", "a", 100 if never else 2, created=3, priority=1), gang("b2", "b", 4, created=4))
    town.settle()
    assert town.admitted() == ["a0", "b1" if never else "a2"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("flavor", ["f", "g"])
@pytest.mark.parametrize("goes", ["wide", "runs"])
def test_the_head_of_a_strict_queue_keeps_its_nodes(fair: bool, flavor: str, goes: str) -> None:
    """Those of a flavor that others have by another one, too."""
    flavors = [Flavor(name, topology="t") for name in "fg"]
    rules = replace(KUEUE, fair_sharing=fair)
    town = Town(Topology("t", (HOSTNAME_LABEL,)), *flavors, node("n", gpu=4), rules=rules)
    town.put(queue("a", "all", [("f", {"gpu": 8})], strategy=Strategy.STRICT_FIFO))
    town.put(queue("b", "all", [(flavor, {"gpu": 8})]), queue("c", "all", [("f", {"gpu": 8})]))
    town.put(gang("runs", "c", each={"gpu": 3}))
    town.settle()
    town.put(gang("wide", "a", each={"gpu": 4}, created=1), gang("fits", "b", created=2))
    town.settle()
    assert town.admitted() == ["runs"]
    assert decide(town.state, town.now, BUDGET).steps == 0
    verdict = town.state.explain(("ns", "fits"))
    assert verdict is not None
    assert (verdict.standing, verdict.why.detail, verdict.why.subject) == (Standing.PARKED, Detail.CLAIMED, "ns/wide")
    town.remove(Workload, ("ns", goes))
    town.settle()
    assert town.admitted() == (["fits", "runs"] if goes == "wide" else ["wide"])


def test_room_that_a_strict_queue_keeps_in_one_flavor_is_told_to_those_who_want_it_in_that() -> None:
    town = Town(*elastic("f", "g"), rules=KUEUE)
    for name, flavor in (("a", "f"), ("d", "g")):
        town.put(queue(name, "all", [(flavor, {"gpu": 8})], strategy=Strategy.STRICT_FIFO), gang(f"{name}0", name, 4))
    town.put(queue("b", "all", [("g", {"gpu": 0})]))
    town.settle()
    town.put(gang("a1", "a", 8, created=1), gang("d1", "d", 8, created=2))
    town.settle()
    town.put(gang("b1", "b", 4, created=3))
    town.settle()
    verdict = town.state.explain(("ns", "b1"))
    assert verdict is not None
    assert (verdict.why.detail, verdict.why.subject) == (Detail.CLAIMED, "ns/d1")


def test_who_lacks_more_than_a_strict_queue_keeps_is_told_what_that_is() -> None:
    """Another took in the same cycle what was free."""
    town = Town(*elastic(F), rules=KUEUE)
    town.put(queue("a", "all", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO))
    town.put(queue("b", "all", [(F, {"gpu": 0})]), queue("c", "all", [(F, {"gpu": 4})]))
    town.put(gang("b0", "b", 8))
    town.settle()
    town.put(gang("a1", "a", 8, created=1))
    town.settle()
    town.put(gang("c1", "c", 4, created=2, priority=1), gang("b1", "b", 4, created=3))
    town.settle()
    assert town.admitted() == ["b0", "c1"]
    verdict = town.state.explain(("ns", "b1"))
    assert verdict is not None
    assert (verdict.why.reason, verdict.why.detail) == (Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT)


@pytest.mark.parametrize("level", ["rack", HOSTNAME_LABEL])
def test_of_two_heads_one_gets_the_nodes_that_both_chose(level: str) -> None:
    there = node("n", gpu=4)
    town = Town(Topology("t", (level,)), Flavor(F, topology="t"), rules=KUEUE)
    town.put(replace(there, labels=(*there.labels, ("rack", "r"))))
    town.put(*(queue(name, "", [(F, {"gpu": 8})]) for name in "ab"))
    town.put(gang("a1", "a", each={"gpu": 3}), gang("b1", "b", each={"gpu": 3}, created=1))
    town.settle()
    assert town.admitted() == ["a1"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("next_one", ["borrows", "lacks"])
def test_who_would_go_only_in_the_next_cycle_keeps_nothing_from_this_one(next_one: str, fair: bool) -> None:
    """The next of a queue of which one was admitted: it would borrow as another does that comes after it in age, or
    what is its queue's is lent out."""
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    town.put(queue("a", "all", [(F, {"gpu": 4 if next_one == "borrows" else 8})], strategy=Strategy.STRICT_FIFO))
    town.put(queue("b", "all", [(F, {"gpu": 0})]), queue("c", "all", [(F, {"gpu": 4})]))
    if next_one == "lacks":
        town.put(gang("b0", "b", 5))
        town.settle()
    town.put(gang("a1", "a", 4), gang("a2", "a", 4, created=1))
    town.put(gang("b1", "b", 4 if next_one == "borrows" else 3, created=2))
    town.settle()
    assert [name for name in town.admitted() if name != "b0"] == ["a1", "b1"]


@pytest.mark.parametrize("fair", [False, True])
def test_the_next_of_a_queue_is_not_made_smaller_where_it_could_take_back_what_it_lacks(fair: bool) -> None:
    town = Town(*elastic(F), rules=replace(KUEUE, fair_sharing=fair))
    reclaims = Preemption(reclaim_within_cohort=PreemptionPolicy.ANY)
    town.put(queue("a", "all", [(F, {"gpu": 8})], preemption=reclaims), queue("b", "all", [(F, {"gpu": 0})]))
    town.put(gang("b0", "b", 4))
    town.settle()
    two = gang("a2", "a", 6, created=1)
    town.put(gang("a1", "a", 2), replace(two, pod_sets=(replace(two.pod_sets[0], min_count=2),)))
    town.put(gang("b1", "b", 2, created=2))
    town.settle()
    admission = town.gang("a2").admission
    assert admission is not None
    assert (town.admitted(), admission.pods) == (["a1", "a2"], 6)


def test_local_queues_take_turns_where_the_next_of_a_queue_goes_in_the_cycle_of_the_first() -> None:
    rules = replace(KUEUE, usage_fairness=UsageFairness(half_life_ms=3_600_000))
    town = Town(*elastic(F), rules=rules)
    town.put(queue("a", "all", [(F, {"gpu": 4})], usage_based_fairness=True), queue("b", "all", [(F, {"gpu": 0})]))
    for name in "xy":
        town.put(LocalQueue("ns", name, "a", consumed_at=START - 1))
        town.put(*(gang(f"{name}{number}", name, 2, created=number + (name == "y") * 10) for number in range(2)))
    town.put(gang("b1", "b", 2, created=20))
    town.settle()
    assert town.admitted() == ["x0", "y0"]


@pytest.mark.parametrize("limit", [None, 2])
def test_the_head_of_a_strict_queue_keeps_what_it_would_borrow(limit: int | None) -> None:
    town = Town(*elastic(F), rules=KUEUE)
    policy = Preemption(reclaim_within_cohort=LOWER, borrow_within_cohort=LOWER)
    quotas: dict[str, int | Quota] = {"gpu": Quota(4, borrowing_limit=limit)}
    town.put(queue("a", "all", [(F, quotas)], strategy=Strategy.STRICT_FIFO, preemption=policy))
    town.put(queue("b", "all", [(F, {"gpu": 0})]), queue("c", "all", [(F, {"gpu": 8})]))
    town.put(gang("c0", "c", 7))
    town.settle()
    town.put(gang("a1", "a", 6, created=1), gang("b1", "b", 1, created=2))
    town.settle()
    assert town.admitted() == ["c0"]


@pytest.mark.parametrize("smaller", [False, True])
def test_nodes_that_are_free_again_help_who_was_refused_by_quota_last(smaller: bool) -> None:
    """In the second flavor, or with all of its pods."""
    flavors = [Flavor(name, (("pool", name),), topology="t") for name in "fg"]
    town = Town(Topology("t", (HOSTNAME_LABEL,)), *flavors, rules=KUEUE)
    for name in "fg":
        made = node(name, gpu=4)
        town.put(replace(made, labels=(*made.labels, ("pool", name))))
    quotas: dict[str, int | Quota] = {"gpu": 4}
    town.put(queue("a", "all", [("f", quotas)] if smaller else [("f", quotas), ("g", quotas)]))
    town.put(queue("b", "all", [("f" if smaller else "g", {"gpu": 0})]))
    town.put(gang("b0", "b", 2))
    town.settle()
    town.put(PodUsage(("x", "pod"), "pod", "f", (("gpu", 4),)))
    mine = gang("mine", "a", 4 if smaller else 3)
    town.put(replace(mine, pod_sets=(replace(mine.pod_sets[0], min_count=2 if smaller else None),)))
    town.settle()
    assert town.admitted() == ["b0"]
    town.remove(PodUsage, ("x", "pod"))
    town.settle()
    assert town.admitted() == ["b0", "mine"]


def taking_turns(used_by_y: float) -> Town:
    """In a strict queue two LocalQueues do, by use. One of x has half of it; another queue could borrow the rest."""
    rules = replace(KUEUE, usage_fairness=UsageFairness(half_life_ms=3_600_000))
    town = Town(*elastic(F), rules=rules)
    town.put(queue("a", "all", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO, usage_based_fairness=True))
    town.put(queue("b", "all", [(F, {"gpu": 0})]))
    for name, used in (("x", 8.0), ("y", used_by_y)):
        town.put(LocalQueue("ns", name, "a", consumed=(("gpu", used),), consumed_at=START))
    town.put(gang("x0", "x", 4))
    town.settle()
    return town


@pytest.mark.parametrize("never", [True, False])
def test_who_is_no_more_the_head_of_a_strict_queue_by_use_keeps_nothing(never: bool) -> None:
    """One of a LocalQueue that has used less stands before it now."""
    town = taking_turns(2.0)
    town.put(gang("x1", "x", 8, created=1), gang("b1", "b", 4, created=2))
    town.settle()
    assert town.admitted() == ["x0"]
    town.put(gang("y1", "y", 100 if never else 2, created=3), gang("b2", "b", 4, created=4))
    town.settle()
    assert town.admitted() == (["b1", "x0"] if never else ["x0", "y1"])


@pytest.mark.parametrize("strategy", list(Strategy))
def test_who_lacks_quota_keeps_nodes_too(strategy: Strategy) -> None:
    """What is its queue's is lent out. In the cycle of its turn others, by another flavor, are not put on the nodes
    where it would stand if they were empty; the head of a strict queue has a turn in each."""
    flavors = [Flavor(name, topology="t") for name in (F, "g")]
    town = Town(Topology("t", (HOSTNAME_LABEL,)), *flavors, node("n", gpu=8), rules=KUEUE)
    town.put(queue("a", "all", [(F, {"gpu": 4})], strategy=strategy), queue("b", "all", [(F, {"gpu": 0})]))
    town.put(queue("c", "all", [("g", {"gpu": 4})]))
    town.put(gang("b0", "b", each={"gpu": 4}), gang("c0", "c"))
    town.settle()
    town.put(gang("a1", "a", each={"gpu": 4}, created=1), gang("c1", "c", created=2))
    town.settle()
    assert town.admitted() == ["b0", "c0", *(["c1"] if strategy is Strategy.BEST_EFFORT_FIFO else [])]


@pytest.mark.parametrize(("rules", "admitted"), [(MUSTER, True), (KUEUE, False)], ids=["muster", "kueue"])
def test_by_kueues_rules_a_check_is_waited_for_that_the_queue_asks_for_no_more(rules: Rules, admitted: bool) -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 2})]), rules=rules)
    town.put(gang("new", "a", checks=(Check("old", CheckState.PENDING),)))
    (decision,) = town.cycle().decisions
    assert isinstance(decision, Admit)
    assert (decision.checks, decision.admitted) == ((), admitted)


@pytest.mark.parametrize("fair", [False, True])
def test_two_strict_heads_that_lack_each_others_nodes_are_admitted_on_nodes_or_not_at_all(fair: bool) -> None:
    """The second fitted when it was nominated; what came of that says nothing in the next cycle."""
    town = behind_a_strict_head(fair, node("n1", gpu=4), node("n2", gpu=4))
    town.put(
        queue("c", "other", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO), queue("d", "other", [(F, {"gpu": 4})])
    )
    town.put(gang("too", "c", each={"gpu": 4}, created=2))
    town.settle()
    town.put(gang("tiny", "d", created=3))
    town.settle()
    for name in town.admitted():
        admission = town.gang(name).admission
        assert admission is not None
        assert all(pod_set.topology is not None for pod_set in admission.pod_sets), name


@pytest.mark.parametrize("fair", [False, True])
def test_nobody_waits_for_a_strict_head_that_goes_elsewhere_in_the_next_cycle(fair: bool) -> None:
    nodes = (node("n1", gpu=6), node("m2", gpu=5))
    rules = replace(KUEUE, fair_sharing=fair)
    town = Town(Topology("t", (HOSTNAME_LABEL,)), Flavor(F, topology="t"), *nodes, rules=rules)
    town.put(queue("c", "a", [(F, {"gpu": 6})]), queue("r", "a", [(F, {"gpu": 0})]))
    town.put(queue("k", "b", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO), queue("b", "c", [(F, {"gpu": 8})]))
    town.put(gang("runs", "r", each={"gpu": 2}))
    town.settle()
    town.put(gang("keeps", "c", each={"gpu": 6}, created=1), gang("head", "k", each={"gpu": 5}, created=2))
    town.put(gang("fits", "b", each={"gpu": 2}, created=3))
    town.settle()
    assert town.admitted() == ["fits", "head", "runs"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_the_next_of_a_queue_takes_no_nodes_that_the_head_of_another_trees_strict_queue_keeps(
    alone: bool, fair: bool
) -> None:
    rules = replace(KUEUE, fair_sharing=fair)
    town = Town(Topology("t", (HOSTNAME_LABEL,)), Flavor(F, topology="t"), *elastic("e"), rules=rules)
    town.put(node("n1", gpu=4), node("n2", gpu=4), queue("r", "rr", [(F, {"gpu": 8})]))
    town.put(queue("z", "a0", [(F, {"gpu": 8})], strategy=Strategy.STRICT_FIFO), gang("runs", "r", each={"gpu": 3}))
    for name, licences, gpus in (("b", 4, 4), ("c", 0, 0), ("d", 2, 0)):
        groups = (
            *queue(name, "aa", [("e", {"lic": licences})]).groups,
            *queue(name, "aa", [(F, {"gpu": gpus})]).groups,
        )
        town.put(replace(queue(name, "aa", []), groups=groups))
    town.settle()
    town.put(gang("wide", "z", 2, each={"gpu": 4}, created=1))
    town.settle()
    second = gang("g2", "b", each={"gpu": 2}, created=3)
    near = replace(second.pod_sets[0], topology=TopologyRequest(required=HOSTNAME_LABEL))
    if not alone:
        town.put(gang("g1", "b", each={"lic": 2}, created=2), gang("brw", "c", each={"lic": 2}, created=4))
    town.put(replace(second, pod_sets=(near,)))
    town.settle()
    assert "g2" not in town.admitted()


def test_who_comes_first_by_use_alone_keeps_what_it_keeps_and_no_more() -> None:
    town = taking_turns(20.0)
    town.put(gang("x1", "x", 8, created=1), gang("y1", "y", 100, created=2), gang("b1", "b", 4, created=3))
    town.settle()
    assert town.admitted() == ["x0"]
    town.put(LocalQueue("ns", "y", "a", consumed=(("gpu", 0.5),), consumed_at=START))
    town.settle()
    assert town.admitted() == ["b1", "x0"]


def test_of_two_who_keep_nodes_the_one_is_told_that_keeps_those_that_are_lacking() -> None:
    town = Town(Topology("t", (HOSTNAME_LABEL,)), rules=KUEUE)
    for name in "fg":
        town.put(Flavor(name, (("pool", name),), topology="t"))
        for number in range(2):
            made = node(f"{name}{number}", gpu=4)
            town.put(replace(made, labels=(*made.labels, ("pool", name))))
        town.put(queue(f"w{name}", "all", [(name, {"gpu": 8})], strategy=Strategy.STRICT_FIFO))
        town.put(queue(f"r{name}", "all", [(name, {"gpu": 16})]), gang(f"r{name}", f"r{name}", each={"gpu": 3}))
    town.settle()
    town.put(*(gang(f"w{name}", f"w{name}", 2, each={"gpu": 4}, created=1) for name in "fg"))
    town.settle()
    town.put(gang("small", "rg", each={"gpu": 2}, created=2))
    town.settle()
    told = town.state.explain(("ns", "small"))
    assert told is not None
    assert (told.why.detail, told.why.subject) == (Detail.CLAIMED, "ns/wg")
