"""What one look may take: gangs whose nodes are long to find, and those for whom many must go."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine import filling, lawful, nodes, trial
from admission.engine.cycle import decide
from admission.engine.filling import TURN_SOON_MS, Filling
from admission.engine.ledger import Held
from admission.engine.model import (
    Admit,
    Cohort,
    Evict,
    Flavor,
    Misfit,
    PodSet,
    PodShape,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Workload,
)
from admission.engine.nodes import Placement, PlaceRequest
from admission.engine.quota import QuotaNode
from admission.engine.shortage import Shortages
from tests.engine.town import SECOND, START, Town, gang, node, queue

ONE = PodShape(requests=(("gpu", 1),))
MIXED = (
    (7, 20_000, 1, 1),
    (1, 1_700, 412, 6),
    (7, 3_000, 412, 6),
    (1, 1_700, 412, 0),
    (9, 31_000, 1, 0),
    (6, 20_000, 8, 6),
    (1, 3_000, 412, 1),
    (7, 500, 8, 1),
)
"""Pods, and what each asks for: all together nearly fill twenty nodes of 33 cores, and do not fit."""


def mixed(name: str, local: str, times: int = 1, more: int = 0) -> Workload:
    """`more`: alike but for that, so that nobody's answer serves another."""
    sets = tuple(
        PodSet(
            f"set-{i}", pods * times, PodShape(requests=(("cpu", cpu), ("gpu", gpus), ("memory", 100 * memory + more)))
        )
        for i, (pods, cpu, memory, gpus) in enumerate(MIXED)
    )
    return Workload("ns", name, uid=f"uid-{name}", queue=local, pod_sets=sets, created=START)


def a_town(*gangs: Workload, mine: int = 10**6) -> Town:
    quota = {"cpu": 10**9, "gpu": 10**6, "memory": 10**9}
    small = {name: amount * mine // 10**6 for name, amount in quota.items()}
    return Town(
        Flavor("gpu"),
        Cohort("all"),
        queue("theirs", "all", [("gpu", quota)]),
        queue("mine", "all", [("gpu", small)]),
        *(node(f"n{i:02}", cpu=33_000, gpu=16, memory=100 * 1_024) for i in range(20)),
        *gangs,
    )


def test_a_decision_ends_when_a_few_dear_gangs_have_used_it_up() -> None:
    town = a_town(*(mixed(f"theirs-{i}", "theirs", more=i) for i in range(4)))
    effort, plans = town.state.ledger.nodes.effort, []
    while not plans or plans[-1].more:
        before = effort.spent
        plans.append(decide(town.state, town.now, 100))
        spent = effort.spent - before
        assert spent <= 100 * trial.EFFORT_PER_TRIAL + trial.EFFORT_PER_LOOK
        assert plans[-1].steps >= spent // trial.EFFORT_PER_TRIAL
    assert len(plans) > 2, "they are not dear: the test shows nothing"
    assert {verdict.key[1] for plan in plans for verdict in plan.verdicts} == {f"theirs-{i}" for i in range(4)}
    assert not any(plan.decisions for plan in plans)


def test_others_have_their_turn_within_a_moment() -> None:
    town = a_town(*(mixed(f"theirs-{i}", "theirs", more=i) for i in range(6)), gang("mine", "mine", created=5 * SECOND))
    town.now = START + 10 * SECOND
    plans = []
    while not (plans and plans[-1].decisions):
        plans.append(decide(town.state, town.now, 100))
        town.now += TURN_SOON_MS // 2
    assert [decision.key[1] for decision in plans[-1].decisions] == ["mine"]
    assert len(plans) <= 4
    assert len([v for plan in plans for v in plan.verdicts if v.key[1] != "mine"]) < 6, "it came after them all"


HARD = tuple(
    PodSet(f"set-{i}", pods, PodShape(requests=(("cpu", cpu), ("gpu", gpus))))
    for i, (pods, cpu, gpus) in enumerate(((2, 4, 2), (8, 3, 3), (1, 1, 5), (1, 2, 5)))
)
"""Six nodes of 8 cpu and 8 gpu hold it; whoever places one pod set after the other does not find how."""


def test_what_was_not_searched_for_is_not_taken_for_an_answer() -> None:
    town = Town(Flavor("gpu"), *(node(f"n{i}", cpu=8, gpu=8) for i in range(6)))
    requests = [PlaceRequest(part, part.count, part.shape.requests, (Flavor("gpu"),)) for part in HARD]
    ledger, effort = town.state.ledger, town.state.ledger.nodes.effort
    with effort.within(0):
        assert isinstance(ledger.places(requests), Misfit)
        assert not ledger.no_room(requests, (), beside=False), "nobody knows"
    assert effort.given_up
    assert isinstance(ledger.places(requests), Placement)


@pytest.mark.parametrize("enough", [False, True])
def test_nobody_is_evicted_by_a_search_that_was_given_up(monkeypatch: pytest.MonkeyPatch, enough: bool) -> None:
    """Who borrows all nodes goes for a mixed gang that is entitled to them: not more of them than must."""
    if not enough:
        monkeypatch.setattr(trial, "EFFORT_PER_LOOK", 1_000)
    town = Town(
        Flavor("gpu"),
        Cohort("all"),
        queue("theirs", "all", [("gpu", {"cpu": 0, "gpu": 0})]),
        queue("mine", "all", [("gpu", {"cpu": 64, "gpu": 64})]),
        *(node(f"n{i}", cpu=8, gpu=8) for i in range(8)),
        *(gang(f"theirs-{i}", "theirs", each={"cpu": 8, "gpu": 8}) for i in range(8)),
    )
    town.settle()
    assert len(town.admitted()) == 8
    town.put(Workload("ns", "mine", uid="uid-mine", queue="mine", pod_sets=HARD, created=START + SECOND))
    plan = town.cycle()
    evicted = [decision for decision in plan.decisions if isinstance(decision, Evict)]
    assert len(evicted) == (6 if enough else 0)
    assert not any(isinstance(decision, Admit) for decision in plan.decisions)


def borrowed(many: int, claims: int) -> Town:
    """All of these nodes are borrowed by gangs of one gpu, and whoever is entitled to so many whole ones comes."""
    town = Town(
        Flavor("gpu"),
        Cohort("all"),
        queue("theirs", "all", [("gpu", {"gpu": 0})]),
        queue("mine", "all", [("gpu", {"gpu": 8 * many})]),
        *(node(f"n{i:03}", gpu=8) for i in range(many)),
        *(gang(f"theirs-{i}", "theirs", created=i) for i in range(8 * many)),  # by uid, those of one node are apart
    )
    town.settle()
    town.put(gang("mine", "mine", claims, each={"gpu": 8}, created=SECOND))
    return town


def test_what_it_takes_to_spare_some_of_many_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many borrowers took sixteen times as long: a minute for a thousand nodes."""
    calls = 0
    give = nodes._give

    def counted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        give(*arguments)

    monkeypatch.setattr(nodes, "_give", counted)
    took = []
    for size in (8, 32):
        town = borrowed(size, size // 2)
        calls = 0
        plan = town.cycle()
        assert sum(isinstance(decision, Evict) for decision in plan.decisions) == 4 * size
        took.append(calls)
    assert took[1] <= 6 * took[0]


def test_what_one_place_takes_does_not_grow_with_those_who_need_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who might go were taken out of the tree first, and put back one by one."""
    moved = 0
    move = QuotaNode.move_all

    def counted(node: QuotaNode, *arguments: Any) -> None:
        nonlocal moved
        moved += 1
        move(node, *arguments)

    monkeypatch.setattr(QuotaNode, "move_all", counted)
    took = []
    for size in (8, 32):
        town = borrowed(size, 1)
        town.remove(Workload, ("ns", "mine"))
        town.put(gang("mine", "mine", created=SECOND))
        moved = 0
        assert sum(isinstance(decision, Evict) for decision in decide(town.state, town.now, 100).decisions) == 1
        took.append(moved)
    assert took[0] == took[1] > 0


def test_searches_among_many_candidates_count_as_many_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand borrowers, and hundreds who come to take one place back each: a decision of seconds."""
    monkeypatch.setattr(trial, "COMMON_CANDIDATES", 100)
    town = borrowed(32, 1)
    town.remove(Workload, ("ns", "mine"))
    town.put(*(gang(f"mine-{i}", "mine", created=SECOND + i) for i in range(50)))
    plan = decide(town.state, town.now, 20)
    evicted = sum(isinstance(decision, Evict) for decision in plan.decisions)
    assert 3 <= evicted <= 6, "each looks at 256 borrowers"
    assert plan.more
    assert plan.steps >= 20


def test_who_claims_room_is_asked_in_one_go_with_others_who_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many who took their quota back wait for those who leave. With each who comes they are asked again whether they
    wait, and each was asked with a look at each other."""
    moved = 0
    move = Shortages._move

    def counted(shortages: Shortages, claims: list[Held], sign: int) -> None:
        nonlocal moved
        moved += len(claims)
        move(shortages, claims, sign)

    monkeypatch.setattr(Shortages, "_move", counted)
    took = []
    for size in (12, 48):
        town = borrowed(size // 4, 1)
        town.remove(Workload, ("ns", "mine"))
        town.put(
            *(
                replace(gang(f"mine-{i:02}", "mine", created=SECOND + i), pod_sets=(PodSet(f"set-{i}", 1, ONE),))
                for i in range(size)
            )
        )
        moved, town.budget = 0, 2
        while any(isinstance(decision, Evict) for decision in town.cycle().decisions):
            pass
        assert len(town.state.ledger.claims) == size
        took.append(moved)
    assert 0 < took[1] <= 24 * took[0]


@given(
    free=st.lists(st.integers(2, 8), min_size=1, max_size=5),
    holders=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()), max_size=10),
    asks=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=2),
)
def test_how_victims_are_taken_off_the_book_makes_no_difference(
    free: list[int], holders: list[tuple[int, int, bool]], asks: list[tuple[int, int]]
) -> None:
    plans = []
    for many in (0, 10**9):
        town = Town(
            Flavor("gpu"),
            Cohort("all"),
            queue("theirs", "all", [("gpu", {"gpu": 2})]),
            queue("mine", "all", [("gpu", {"gpu": sum(free)})]),
            *(node(f"n{i}", gpu=gpus) for i, gpus in enumerate(free)),
            *(gang(f"theirs-{i}", "theirs", pods, each={"gpu": gpus}) for i, (pods, gpus, _) in enumerate(holders)),
        )
        town.settle()
        for i, (_, gpus, runs) in enumerate(holders):
            held = town.gang(f"theirs-{i}").admission
            if runs and held is not None and held.pod_sets[0].topology is not None:
                # One of its pods runs there, and takes more than it was booked with.
                where = held.pod_sets[0].topology.domains[0].values[-1]
                takes = (("gpu", gpus + 1),)
                town.put(PodUsage(("ns", f"pod-{i}"), f"pod-{i}", where, takes, workload_uid=f"uid-theirs-{i}"))
        sets = tuple(
            PodSet(f"set-{i}", pods, PodShape(requests=(("gpu", gpus),))) for i, (pods, gpus) in enumerate(asks)
        )
        town.put(Workload("ns", "mine", uid="uid-mine", queue="mine", pod_sets=sets, created=START + SECOND))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lawful, "_MANY", many)
            version = town.state.ledger.nodes.version
            plan = decide(town.state, town.now, 1_000)
        assert town.state.ledger.drift() == []
        assert plan.decisions or town.state.ledger.nodes.version == version
        plans.append(plan)
    assert plans[0] == plans[1]


def test_of_very_many_who_might_send_one_that_comes_back_some_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 kinds of gang that wait, each of which outranks it and fits nowhere: a decision of seven seconds."""
    monkeypatch.setattr(filling, "MOST_RIVALS", 4)
    asked = 0
    look = Filling.look

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += bool(options.get("later"))
        return look(*arguments, **options)

    monkeypatch.setattr(Filling, "look", counted)
    took = []
    for many in (2, 20):
        lower = Preemption(within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY)
        town = Town(Flavor("gpu"), queue("mine", "all", [("gpu", {"gpu": 4})], preemption=lower), node("n", gpu=4))
        town.put(
            *(gang(f"first-{i}", "mine", priority=10, created=i, each={"gpu": 5 + i}) for i in range(many)),
            gang("back", "mine", created=many, evicted="Preempted", evicted_at=START),
        )
        asked = 0
        plan = town.cycle()
        assert [decision.key[1] for decision in plan.decisions] == ["back"]
        took.append(asked)
    assert took == [2 + 2 + 1, 20 + 4 + 1], "each in its own turn, some for the one that comes back, and that one"


def test_what_is_shown_of_queues_costs_as_much_for_each_whatever_their_number() -> None:
    """A scrape of a thousand queues of one cohort took 19 seconds, in which no lease could be renewed."""
    calls = []
    for many in (10, 80):
        town = Town(Flavor("gpu", elastic=True), *(queue(f"q{i}", "all", [("gpu", {"gpu": 4})]) for i in range(many)))
        state, count = town.state, 0

        def called(_frame: FrameType, _event: str, _what: object) -> None:
            nonlocal count
            count += 1

        tree = state.ledger.tree
        sys.setprofile(called)
        try:
            state.cohort_numbers("all")
            tree.lent()
            for name in state.queues:
                state.queue_numbers(name)
        finally:
            sys.setprofile(None)
        calls.append(count / many)
    assert calls[1] < 2 * calls[0]
