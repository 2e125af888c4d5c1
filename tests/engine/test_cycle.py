"""Cycles of the preset muster: known vectors and counterexamples, each as a row."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    AdmissionCheck,
    Admit,
    Check,
    CheckRule,
    CheckState,
    Claim,
    Detail,
    Evict,
    Flavor,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    PodShape,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Quota,
    Reason,
    Replace,
    ResourceGroup,
    Rules,
    Standing,
    Strategy,
    Taint,
    Toleration,
    Topology,
    TopologyRequest,
    Workload,
)
from admission.engine.project import sentence
from tests.engine.town import BUDGET, INITIAL_TOO, SECOND, START, Town, cohort, elastic, gang, node, queue

F, HOST = "f", "kubernetes.io/hostname"
HOUR = 3600 * SECOND
TAKES_NOTHING_BACK = Preemption(reclaim_within_cohort=PreemptionPolicy.NEVER)


def shares(town: Town) -> dict[str, int]:
    """Gangs that run, by queue."""
    out: dict[str, int] = {}
    for value in town.gangs():
        if value.admission is not None:
            out[value.admission.cluster_queue] = out.get(value.admission.cluster_queue, 0) + 1
    return out


def order(town: Town) -> str:
    return "".join(d.admission.cluster_queue.upper() for d in town.log if isinstance(d, Admit))


@pytest.mark.parametrize(
    ("total", "demands", "weights", "expected", "sequence"),
    [
        pytest.param((9, 18), {"a": (1, 4), "b": (3, 1)}, {}, {"a": 3, "b": 2}, "ABABA", id="V1"),
        pytest.param((9, 18), {"a": (1, 4), "b": (3, 1)}, {"a": 2}, {"a": 4, "b": 1}, "ABAAA", id="V2"),
        pytest.param((9, 18), {"a": (1, 4), "b": (3, 1)}, {"b": 2}, {"a": 3, "b": 2}, None, id="V3"),
        pytest.param((6, 100), {"a": (1, 1), "b": (1, 2), "c": (2, 1)}, {}, {"a": 2, "b": 2, "c": 1}, None, id="V6"),
    ],
)
def test_flat_vectors(
    total: tuple[int, int],
    demands: dict[str, tuple[int, int]],
    weights: dict[str, int],
    expected: dict[str, int],
    sequence: str | None,
) -> None:
    town = Town(*elastic(F), cohort("root", "", [(F, {"cpu": total[0], "memory": total[1]})]))
    for name in demands:
        town.put(queue(name, "root", [(F, {"cpu": 0, "memory": 0})], weight=Fraction(weights.get(name, 1))))
    for name, (cpu, memory) in demands.items():
        for i in range(12):
            town.put(gang(f"{name}{i:02}", name, created=i, each={"cpu": cpu, "memory": memory}))
    town.cycle()
    assert shares(town) == expected
    if sequence is not None:
        assert order(town) == sequence


def test_vector_v7() -> None:
    town = Town(*elastic(F), cohort("root", "", [(F, {"gpu": 64, "cpu": 512, "memory": 4096})]))
    demands = {"a": (8, 64, 512), "b": (1, 32, 64), "c": (0, 16, 128)}
    for name, (gpu, cpu, memory) in demands.items():
        town.put(queue(name, "root", [(F, {"gpu": 0, "cpu": 0, "memory": 0})]))
        for i in range(20):
            each = {"gpu": gpu, "cpu": cpu, "memory": memory}
            town.put(gang(f"{name}{i:02}", name, created=i, each={k: v for k, v in each.items() if v}))
    town.cycle()
    assert shares(town) == {"a": 3, "b": 5, "c": 10}
    # Equal shares before: the one that is smaller with the gang added goes first, so c and b before a.
    assert order(town) == "CBACCBCCBACCBCCBAC"


@pytest.mark.parametrize(
    ("total", "leaves", "expected"),
    [
        pytest.param(
            10,
            {"n1": ("root", (1, 1)), "n21": ("n2", (1, 0)), "n22": ("n2", (0, 1))},
            {"n1": 5, "n21": 5, "n22": 5},
            id="H1",
        ),
        pytest.param(
            30,
            {
                "n1": ("root", (1, 0)),
                "n2": ("root", (1, 0)),
                "n31": ("n3", (1, 0)),
                "n32": ("n3", (0, 1)),
                "n4": ("root", (0, 1)),
            },
            {"n1": 10, "n2": 10, "n31": 10, "n32": 15, "n4": 15},
            id="H3",
        ),
    ],
)
def test_hierarchical_vectors(
    total: int, leaves: dict[str, tuple[str, tuple[int, int]]], expected: dict[str, int]
) -> None:
    town = Town(*elastic(F), cohort("root", "", [(F, {"cpu": total, "memory": total})]))
    for name, (parent, demand) in leaves.items():
        if parent != "root":
            town.put(cohort(parent, "root"))
        town.put(queue(name, parent, [(F, {"cpu": 0, "memory": 0})]))
        each = {res: amount for res, amount in zip(("cpu", "memory"), demand, strict=True) if amount}
        for i in range(total + 5):
            town.put(gang(f"{name}-{i:02}", name, created=i, each=each))
    town.cycle()
    assert shares(town) == expected


def test_h2_a_child_is_not_starved_by_its_sibling() -> None:
    """n1 and n2/n22 compete for memory; n2/n21 has all the cpu. Ends of n22's gangs must not all go to n1."""
    town = Town(*elastic(F), cohort("root", "", [(F, {"cpu": 10, "memory": 10})]), cohort("n2", "root"))
    for name, parent, res in (("n1", "root", "memory"), ("n21", "n2", "cpu"), ("n22", "n2", "memory")):
        town.put(queue(name, parent, [(F, {"cpu": 0, "memory": 0})]))
        for i in range(40):
            town.put(gang(f"{name}-{i:02}", name, created=i, each={res: 1}))
    town.settle()
    for _ in range(12):
        running = [g for g in town.gangs() if g.admission is not None and g.admission.cluster_queue == "n22"]
        town.remove(Workload, running[0].key)
        town.settle()
    assert shares(town) == {"n1": 5, "n21": 10, "n22": 5}


# ---------------------------------------------------------------- eviction


def _two(nominal: tuple[int, int], total: int = 0, rules: Rules = MUSTER, **more: object) -> Town:
    town = Town(*elastic(F), cohort("root", "", [(F, {"gpu": total})]), rules=rules)
    for name, amount in zip("ab", nominal, strict=True):
        town.put(queue(name, "root", [(F, {"gpu": amount})], **more))
    return town


def _held_by_a(gangs: int, gpus: int, rules: Rules = MUSTER) -> Town:
    """All that the two may borrow is held by gangs of the first."""
    town = _two((0, 0), gangs * gpus, rules)
    for i in range(gangs):
        town.put(gang(f"a{i}", "a", gpus, created=i))
    town.settle()
    return town


def test_k4_gives_back_half() -> None:
    town = _held_by_a(4, 3)
    town.now += HOUR
    for i in range(4):
        town.put(gang(f"b{i}", "b", 3, created=10 + i))
    assert town.settle() == 2
    assert shares(town) == {"a": 2, "b": 2}


def test_k5_initial_share_once_and_no_way_back() -> None:
    town = _held_by_a(3, 4, INITIAL_TOO)
    town.now += HOUR
    town.put(gang("b", "b", 6, created=10))
    assert town.settle() == 2
    assert shares(town) == {"a": 1, "b": 1}
    town.now += HOUR
    assert town.settle() == 0


def test_k5_by_the_final_share_alone_room_is_kept_and_nobody_goes() -> None:
    """The second of `a` would leave it with less than `b` then has. What comes after ten minutes stands behind."""
    town = _held_by_a(3, 4)
    town.now += HOUR
    town.put(gang("b", "b", 6, created=town.now - START))
    assert town.settle() == 0
    town.now += HOUR
    town.put(*(gang(f"a{i}", "a", 4, created=town.now - START) for i in (3, 4)))
    for name, left in ("a2", {"a": 2}), ("a1", {"a": 1, "b": 1}):
        town.remove(Workload, ("ns", name))
        assert town.settle() == 0
        assert shares(town) == left


@pytest.mark.parametrize(("of_a", "first"), [(2, "a"), (8, "b")])
def test_who_has_used_least_of_its_own_borrows_first(of_a: int, first: str) -> None:
    """With its gang `a` would borrow more than `b` with its own; and there is room for one of the two."""
    town = _two((8, 8))
    town.put(gang("a0", "a", of_a), gang("b0", "b", 8))
    town.settle()
    town.put(gang("a1", "a", 10, created=1), gang("b1", "b", 2, created=2))
    town.put(cohort("root", "", [(F, {"gpu": 4 + of_a - 2})]))
    assert town.settle() == 0
    assert town.pending() == ["b1" if first == "a" else "a1"]


def test_k6_nothing_is_evicted_in_vain() -> None:
    town = _held_by_a(3, 4)
    town.now += 9 * 60 * SECOND
    town.put(gang("b", "b", 8, created=town.now))
    assert town.settle() == 0
    assert town.pending() == ["b"]


def test_k7_reclaim() -> None:
    town = Town(*elastic(F))
    for name in "abc":
        town.put(queue(name, "root", [(F, {"gpu": 4})]))
    for i in range(6):
        town.put(gang(f"a{i}", "a", 2, created=i))
    town.settle()
    town.put(gang("b0", "b", 4, created=10))
    assert town.settle() == 2
    town.put(gang("c0", "c", 4, created=11))
    assert town.settle() == 2
    town.put(gang("b1", "b", 4, created=town.now))
    assert town.settle() == 0
    assert "b1" in town.pending()


def test_young_gangs_are_spared_by_fair_sharing_but_not_by_reclaim() -> None:
    town = _two((0, 0), 12)
    for i in range(4):
        town.put(gang(f"a{i}", "a", 3, created=i))
    town.settle()
    town.put(gang("b0", "b", 3, created=10))
    assert town.settle() == 0
    plan = decide(town.state, town.now, BUDGET)
    assert plan.next_at is not None
    town.now = plan.next_at
    assert town.settle() == 1
    reclaims = _two((4, 4))
    reclaims.put(gang("a0", "a", 4), gang("a1", "a", 4, created=1))
    reclaims.settle()
    reclaims.put(gang("b0", "b", 4, created=5))
    assert reclaims.settle() == 1
    assert "b0" in reclaims.admitted()


@pytest.mark.parametrize(
    ("ago", "safe"),
    [((10,), 0), ((50, 10), 10), ((59, 58), 1), ((55, 50, 10), 10), ((60, 10), 0), ((120, 90), 0)],
)
def test_who_was_sent_twice_within_an_hour_is_spared_until_it_is_over(ago: tuple[int, ...], safe: int) -> None:
    """Minutes ago of each eviction for fairness; minutes for which nobody is sent again."""
    town = _two((0, 0), 12)
    for i in range(4):
        town.put(gang(f"a{i}", "a", 3, created=i))
    town.settle()
    town.now = now = town.now + 3 * HOUR
    for i in range(4):
        town.put(replace(town.gang(f"a{i}"), fair_evictions=tuple(now - minutes * 60 * SECOND for minutes in ago)))
    town.put(gang("b0", "b", 3, created=now - START))
    for early, gone in ((1, 0), (0, 1))[not safe :]:
        plan = decide(town.state, now + safe * 60 * SECOND - early, BUDGET)
        assert sum(isinstance(one, Evict) for one in plan.decisions) == gone
        assert gone or (plan.next_at and plan.next_at <= now + safe * 60 * SECOND)


def test_who_was_evicted_of_late_does_not_keep_others_like_it_from_their_share() -> None:
    town = _two((0, 0), 4)
    for i in range(4):
        town.put(gang(f"a{i}", "a", created=i))
    town.settle()
    town.now += HOUR
    town.put(gang("b0", "b", created=10, evicted="Preempted", evicted_at=town.now - 60 * SECOND))
    assert town.settle() == 0
    town.put(gang("b1", "b", created=20))
    assert town.settle() == 1
    assert "b1" in town.admitted()
    town.now += 300 * SECOND
    assert town.settle() == 1
    assert "b0" in town.admitted()


# ---------------------------------------------------------------- counterexamples


def test_x1_the_reclaimer_gets_the_room() -> None:
    town = Town(*elastic(F))
    town.put(queue("a", "root", [(F, {"gpu": 150})]), queue("b", "root", [(F, {"gpu": 150})]))
    town.put(queue("be", "root", [(F, {"gpu": 0})]))
    town.put(gang("a1", "a", 250), gang("be1", "be", 50, created=1))
    town.settle()
    town.now += HOUR
    town.put(gang("a2", "a", 50, created=2))
    town.settle()
    assert town.evictions.total() <= 1


def test_x2_no_flapping_between_unequal_gangs() -> None:
    town = _two((0, 0), 8)
    for i in range(4):
        town.put(gang(f"p{i}", "a", 2, created=i))
    town.settle()
    town.now += HOUR
    town.put(gang("q0", "b", 4, created=10))
    assert town.settle() == 2
    town.now += HOUR
    town.put(gang("q1", "b", 3, created=11))
    town.settle()
    for _ in range(5):
        town.now += HOUR
        assert town.settle() == 0


def test_x3_the_law_holds_for_the_final_set() -> None:
    """Were its own gang of low priority gone, the queue's share would let it evict others; but then that one can stay,
    and the share is what it was. So its own goes, nobody else, and nobody evicts anybody back."""
    lower = Preemption(within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY)
    town = _two((0, 0), 12, preemption=lower)
    town.put(gang("a0", "a", 4), gang("b0", "b", 4, created=1), gang("b1", "b", 4, created=2))
    town.settle()
    town.now += HOUR
    town.put(gang("new", "a", 4, priority=5, created=3))
    town.settle()
    assert town.evictions == {("ns", "a0"): 1}
    assert town.admitted() == ["b0", "b1", "new"]
    for _ in range(5):
        town.now += HOUR
        assert town.settle() == 0


@pytest.mark.parametrize("nested", [False, True])
def test_x6_shares_that_an_admission_does_not_raise_make_no_loop(nested: bool) -> None:
    """Gangs of cpu alone, in queues that are dominated by gpus, flat and in cohorts of their own: evictions come to an
    end, at even shares of the cpu, and the gpus are left alone."""
    town = Town(*elastic(F), cohort("root", "", [(F, {"gpu": 12, "cpu": 12})]))
    for name, gpus in (("a", 8), ("b", 4), ("c", 0)):
        parent = "root"
        if nested:
            parent = f"of-{name}"
            town.put(cohort(parent, "root"))
        town.put(queue(name, parent, [(F, {"gpu": 0, "cpu": 0})]))
        town.put(*(gang(f"{name}-gpu-{i}", name, 4, created=i) for i in range(gpus // 4)))
    town.settle()
    town.put(*(gang(f"b-{i}", "b", created=10 + i, each={"cpu": 2}) for i in range(8)))
    town.settle()
    town.now += HOUR
    for name in "ac":
        town.put(*(gang(f"{name}-{i}", name, created=30 + i, each={"cpu": 2}) for i in range(8)))
    town.settle()
    for _ in range(5):
        town.now += HOUR
        town.settle()
    assert town.evictions.total() <= 6
    running = [name for name in town.admitted() if "gpu" not in name]
    assert {name: sum(1 for one in running if one[0] == name) for name in "abc"} == {"a": 2, "b": 2, "c": 2}
    assert len([name for name in town.admitted() if "gpu" in name]) == 3
    for _ in range(5):
        town.now += HOUR
        assert town.settle() == 0


def test_the_newest_is_not_taken_where_only_another_would_do() -> None:
    """The newest borrower may go, but makes too little room; with it gone the other one might not. Alone it may."""
    town = Town(*elastic(F), cohort("root", "", [(F, {"cpu": 2, "gpu": 2})]), rules=INITIAL_TOO)
    town.put(queue("a", "root", [(F, {"cpu": 1, "gpu": 4})], weight=Fraction(1, 2)))
    town.put(queue("b", "root", [(F, {"cpu": 2, "gpu": 0})]), queue("c", "root", [(F, {"cpu": 2, "gpu": 2})]))
    town.put(gang("old", "c", 3, each={"gpu": 1, "cpu": 1}), gang("a1", "a", each={"gpu": 4, "cpu": 1}, created=1))
    town.settle()
    town.now += 60 * SECOND
    town.put(gang("newest", "c", each={"gpu": 1, "cpu": 1}, created=2))
    town.settle()
    town.now += HOUR
    town.put(gang("wants", "b", 2, each={"gpu": 1, "cpu": 1}, created=3))
    town.settle()
    assert town.evictions == {("ns", "old"): 1}
    assert "wants" in town.admitted()


def test_x4_and_x5_indivisible_gangs_come_to_rest() -> None:
    town = _two((5, 5), 1)
    for i in range(5):
        town.put(gang(f"a{i}", "a", 2, created=i), gang(f"b{i}", "b", 2, created=i))
    for _ in range(6):
        town.settle()
        town.now += HOUR
    assert town.evictions.total() == 0
    other = _two((3, 5))
    other.put(gang("q1", "a", 4), gang("q2a", "b", 1, created=1))
    other.settle()
    other.put(gang("q2b", "b", 4, created=2))
    other.settle()
    assert "q2b" in other.admitted()
    for _ in range(4):
        other.now += HOUR
        assert other.settle() == 0


def test_nobody_comes_back_only_to_be_evicted_again() -> None:
    """A borrower that was evicted for one queue fits into what is left, and another queue could take it back from
    there: that one goes first, and the borrower is evicted once."""
    lower = Preemption(within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY)
    half = Fraction(1, 2)
    town = Town(
        Flavor(F),
        cohort("root", "", [(F, {"gpu": 2, "cpu": 0})]),
        cohort("inner", "root", [(F, {"gpu": 1, "cpu": 0})]),
        queue("a", "inner", [(F, {"gpu": 5, "cpu": Quota(6, 2)})], weight=half, preemption=lower),
        queue("b", "inner", [(F, {"gpu": 4, "cpu": Quota(3, 4)})], weight=Fraction(2), preemption=lower),
        queue("c", "inner", [(F, {"gpu": 1, "cpu": 1})], weight=half, strategy=Strategy.STRICT_FIFO),
        queue("d", "root", [(F, {"gpu": Quota(0, 0), "cpu": 1})], preemption=lower),
        node("n0", cpu=4, gpu=2),
        node("n1", cpu=4, gpu=2),
        node("n2", cpu=4, gpu=3),
        node("n3", cpu=5, gpu=4),
        gang("first", "a", each={"cpu": 4}),
        rules=INITIAL_TOO,
    )
    town.settle()
    town.put(gang("a1", "a", each={"cpu": 3}), gang("c1", "c", 3))
    town.put(*(gang(f"d{i}", "d", 2, each={"cpu": 1}, priority=5) for i in (1, 2)))
    town.settle()
    town.remove(Workload, ("ns", "first"))
    town.put(gang("c2", "c", 2, each={"cpu": 3, "gpu": 3}, created=town.now - START))
    town.settle()
    town.now += HOUR
    town.settle()
    late = town.now - START
    town.put(*(gang(f"a{i}", "a", each={"cpu": 2, "gpu": 3}, priority=5, created=late) for i in (2, 3)))
    town.put(gang("b1", "b", 2, each={"cpu": 3, "gpu": 1}, created=late))
    town.settle()
    assert town.evictions == {("ns", name): 1 for name in ("a1", "c1", "d1", "d2")}
    assert town.admitted() == ["a2", "a3", "b1"]


def test_x7_a_queue_without_the_dominant_resource_advances() -> None:
    town = Town(*elastic(F), cohort("root", "", [(F, {"gpu": 10, "cpu": 100})]))
    for name in "ab":
        town.put(queue(name, "root", [(F, {"gpu": 0, "cpu": 0})]))
    for i in range(20):
        town.put(gang(f"a{i:02}", "a", created=i, each={"cpu": 10}))
        town.put(gang(f"b{i:02}", "b", created=i, each={"cpu": 10}))
    town.put(gang("ag", "a", created=-1, each={"gpu": 5}), gang("bg", "b", created=-1, each={"gpu": 5}))
    town.cycle()
    assert shares(town) == {"a": 6, "b": 6}


# ---------------------------------------------------------------- queues


def test_a_strict_queue_waits_behind_its_head_and_says_so() -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 4})], strategy=Strategy.STRICT_FIFO))
    town.put(gang("big", "a", 5, priority=1), gang("small", "a", 1, created=1))
    plan = town.cycle()
    assert town.admitted() == []
    why = {verdict.key[1]: verdict.why for verdict in plan.verdicts}
    assert why["big"].reason is Reason.EXCEEDS_MAX_QUOTA
    assert why["small"].detail is Detail.BEHIND_HEAD
    assert why["small"].subject == "ns/big"
    town.remove(Workload, ("ns", "big"))
    town.cycle()
    assert town.admitted() == ["small"]


def test_who_is_first_of_a_strict_queue_no_more_is_told_so() -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 4})], strategy=Strategy.STRICT_FIFO))
    town.put(gang("big", "a", 5))
    (told,) = town.cycle().verdicts
    assert told.why.reason is Reason.EXCEEDS_MAX_QUOTA
    town.put(gang("bigger", "a", 6, priority=1))
    why = {verdict.key[1]: verdict.why for verdict in town.cycle().verdicts}
    assert (why["big"].detail, why["big"].subject) == (Detail.BEHIND_HEAD, "ns/bigger")


def test_who_is_first_of_a_strict_queue_again_is_told_what_it_lacks() -> None:
    """It could go nowhere before somebody came who went first, and that one starts now."""
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 4})], strategy=Strategy.STRICT_FIFO))
    town.put(gang("runs", "a", 4))
    town.settle()
    town.put(gang("big", "a", 5))
    town.settle()
    town.put(gang("next", "a", 3, priority=1))
    why = {verdict.key[1]: verdict.why for verdict in town.cycle().verdicts}
    assert (why["big"].detail, why["big"].subject) == (Detail.BEHIND_HEAD, "ns/next")
    town.remove(Workload, ("ns", "runs"))
    told = [verdict.why for _ in range(3) for verdict in town.cycle().verdicts if verdict.key[1] == "big"]
    assert town.admitted() == ["next"]
    assert [why.reason for why in told][-1:] == [Reason.EXCEEDS_MAX_QUOTA]


def test_whose_queue_becomes_strict_is_told_who_is_first() -> None:
    served = queue("a", "", [(F, {"gpu": 4})])
    town = Town(*elastic(F), served)
    town.put(gang("big", "a", 5, priority=1), gang("large", "a", 6))
    why = {verdict.key[1]: verdict.why for verdict in town.cycle().verdicts}
    assert why["large"].reason is Reason.EXCEEDS_MAX_QUOTA
    town.put(replace(served, strategy=Strategy.STRICT_FIFO))
    why = {verdict.key[1]: verdict.why for verdict in town.cycle().verdicts}
    assert (why["large"].detail, why["large"].subject) == (Detail.BEHIND_HEAD, "ns/big")


def test_a_best_effort_queue_goes_on_behind_it() -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 4})]))
    town.put(gang("big", "a", 5, priority=1), gang("small", "a", 1, created=1))
    town.cycle()
    assert town.admitted() == ["small"]


def test_a_scan_of_flavors_that_comes_back_to_where_it_was_ends() -> None:
    """Two pod sets that fit no flavors together: each goes on where it stopped, and one is at the end of the list
    whenever the other is at its beginning."""
    town = Town(*elastic("a", "b"), queue("q", "", [("a", {"gpu": 16}), ("b", {"gpu": 2})]))
    town.put(gang("old", "q", 2, allowed_flavors=frozenset({"b"})))
    town.settle()
    lead = PodSet("lead", 1, PodShape(requests=(("gpu", 2),)))
    work = PodSet("work", 2, PodShape(requests=(("gpu", 8),)))
    town.put(replace(gang("new", "q", created=1), pod_sets=(lead, work)))
    plan = town.cycle()
    assert plan.steps <= 4
    assert town.admitted() == ["old"]
    town.remove(Workload, ("ns", "old"))
    town.settle()
    assert town.admitted() == ["new"]


def test_preemption_inside_a_queue_by_its_policy() -> None:
    for policy, expected in ((PreemptionPolicy.LOWER_PRIORITY, ["new"]), (PreemptionPolicy.NEVER, ["old"])):
        town = Town(*elastic(F))
        town.put(queue("a", "", [(F, {"gpu": 4})], preemption=Preemption(within_cluster_queue=policy)))
        town.put(gang("old", "a", 4))
        town.settle()
        town.put(gang("new", "a", 4, priority=10, created=5))
        town.settle()
        assert town.admitted() == expected


def test_freed_room_is_kept_for_whom_it_was_freed() -> None:
    """While the victim leaves, nobody else takes what becomes free, and the claim survives a restart."""
    town = _two((4, 4))
    town.put(gang("a0", "a", 2), gang("a1", "a", 6, created=1))
    town.settle()
    town.put(gang("b0", "b", 4, created=2))
    plan = town.cycle()
    assert [type(d) for d in plan.decisions] == [Evict, Claim]
    assert any(v.standing is Standing.WAITING and v.key[1] == "b0" for v in plan.verdicts)
    town.put(gang("a2", "a", 3, created=0, priority=100))
    town.cycle()
    town.leave()
    again = decide(town.fresh(), town.now, BUDGET)
    here = decide(town.state, town.now, BUDGET)
    assert again.decisions == here.decisions
    assert [d.key[1] for d in here.decisions if isinstance(d, Admit)][:1] == ["b0"]


def test_a_claim_that_came_to_nothing_ends() -> None:
    town = _two((4, 4))
    town.put(gang("a0", "a", 8))
    town.settle()
    town.put(gang("b0", "b", 4, created=2))
    town.cycle()
    assert town.kept()
    town.now += MUSTER.claim_ms + 5 * SECOND
    town.cycle()
    assert not town.kept()


@pytest.mark.parametrize(
    ("there", "before"),
    [
        pytest.param([queue("a", "", [(F, {"gpu": 8})])], 0, id="of its own quota"),
        pytest.param([queue("a", "", [(F, {"gpu": 8})])], 9, id="behind one that could never go"),
        pytest.param(
            [
                cohort("all", "", [(F, {"gpu": 8})]),
                queue("a", "all", [(F, {"gpu": 0})], preemption=TAKES_NOTHING_BACK),
            ],
            0,
            id="that borrows, and may take nothing back",
        ),
    ],
)
def test_the_first_of_a_queue_that_was_passed_over_gets_room_as_it_becomes_free(
    there: list[object], before: int
) -> None:
    town = Town(*elastic(F), *there)
    for i in range(8):
        town.put(gang(f"s{i}", "a", 1, created=i))
    town.settle()
    town.put(gang("big", "a", 8, created=town.now, priority=1))
    if before:
        town.put(gang("never", "a", before, created=town.now, priority=2))
    town.settle()
    town.now += MUSTER.passed_over_ms + SECOND
    town.cycle()
    assert [key[1] for key in town.kept()] == ["big"]
    for i in range(8):
        town.remove(Workload, ("ns", f"s{i}"))
        town.put(gang(f"t{i}", "a", 1, created=town.now))
        town.now += MUSTER.claim_ms // 3
        town.cycle()
    assert "big" in town.admitted()
    assert town.evictions.total() == 0


@pytest.mark.parametrize(
    ("queues", "total", "pods", "leave", "after"),
    [
        (2, 12, 1, 3, (6, 6)),
        (2, 12, 2, 2, (3, 3)),
        (5, 12, 1, 3, (2, 3, 3, 2, 2)),
        (5, 20, 1, 4, (4, 4, 4, 4, 4)),
        (8, 16, 1, 2, (2,) * 8),
    ],
)
def test_room_kept_for_many_is_given_by_share_and_never_to_nobody(
    queues: int, total: int, pods: int, leave: int, after: tuple[int, ...]
) -> None:
    """The first of every queue has been passed over, so room is kept for all of them; several gangs of one queue leave
    at once. What is kept for one must not be in the way of the others whose turn comes first."""
    town = Town(*elastic(F), cohort("root", "", [(F, {"gpu": total})]))
    names = [f"q{i}" for i in range(queues)]
    town.put(*(queue(name, "root", [(F, {"gpu": 0})]) for name in names))
    for i in range(10):
        town.put(*(gang(f"{name}-{i}", name, pods, created=10 * i + at) for at, name in enumerate(names)))
    town.settle()
    town.now += 2 * MUSTER.passed_over_ms
    town.settle()
    assert {value.queue for value in town.gangs() if value.claims is not None} == set(names)
    for value in [value for value in town.gangs() if value.queue == "q0" and value.admission is not None][:leave]:
        town.remove(Workload, value.key)
    assert town.settle() == 0
    assert tuple(shares(town)[name] for name in names) == after


def test_two_that_were_passed_over_do_not_wait_for_each_other() -> None:
    """The one whose queue has the smaller share comes first, and yields to the one that had waited long when it came;
    that one must not yield to it in turn."""
    town = Town(*elastic(F), cohort("root"))
    town.put(queue("more", "root", [(F, {"cpu": 6})]), queue("x", "root", [(F, {"cpu": 6})]))
    town.put(queue("less", "root", [(F, {"cpu": 0})], weight=Fraction(2)))
    town.put(gang("held", "more", each={"cpu": 6}))
    town.put(*(gang(f"x{i}", "x", each={"cpu": 2}, created=i) for i in range(3)))
    town.settle()
    for name, where in (("old", "more"), ("young", "less")):
        town.put(gang(name, where, each={"cpu": 4}, created=town.now - START))
        town.now += 2 * MUSTER.passed_over_ms
        town.settle()
    assert town.pending() == ["old", "young"]
    town.remove(Workload, ("ns", "x0"))
    town.remove(Workload, ("ns", "x1"))
    town.cycle()
    assert "old" in town.admitted()


def test_who_was_passed_over_still_takes_what_becomes_his_by_right() -> None:
    town = _two((0, 12), 0)
    for i in range(6):
        town.put(gang(f"b{i}", "b", 2, created=i))
    town.settle()
    town.put(gang("a0", "a", 4, created=7))
    town.now += 2 * MUSTER.passed_over_ms
    town.settle()
    assert [key[1] for key in town.kept()] == ["a0"]
    town.put(queue("a", "root", [(F, {"gpu": 4})]), queue("b", "root", [(F, {"gpu": 8})]))
    assert town.settle() == 2
    assert "a0" in town.admitted()


@pytest.mark.parametrize(
    "never",
    [[], [("never", 9)], [("gated", 8)]],
    ids=["nobody before", "behind one that could never go", "behind one for which no room is kept"],
)
def test_who_becomes_the_first_of_a_queue_may_have_been_passed_over_already(never: list[tuple[str, int]]) -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 8})]))
    town.put(gang("runs", "a", 4))
    town.settle()
    rows = [*never, ("wide", 7), ("big", 8)]
    waiting = [gang(name, "a", pods, created=i * SECOND) for i, (name, pods) in enumerate(rows, 1)]
    town.put(*(replace(one, preemption_gated=one.name == "gated") for one in waiting))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.settle()
    assert [key[1] for key in town.kept()] == ["wide"]
    town.remove(Workload, ("ns", "wide"))
    town.settle()
    assert [key[1] for key in town.kept()] == ["big"]


def test_who_asks_for_none_of_something_is_entitled_to_the_rest() -> None:
    """Its queue borrows GPUs; it wants the CPUs back that are its queue's, and says that it needs no GPU."""
    own: dict[str, int | Quota] = {"cpu": 4, "gpu": 4}
    town = Town(*elastic(F), cohort("all"), *(queue(name, "all", [(F, own)]) for name in "ab"))
    town.put(gang("gpus", "a", each={"gpu": 6}), *(gang(f"cpus{i}", "b", each={"cpu": 4}) for i in range(2)))
    town.settle()
    town.put(gang("back", "a", each={"cpu": 4, "gpu": 0}, created=1))
    assert town.settle() == 1
    assert "back" in town.admitted()


def test_nodes_decide_too_and_the_reason_says_so() -> None:
    town = Town(Flavor(F), queue("a", "", [(F, {"gpu": 100})]), node("n1", gpu=4), node("n2", gpu=4))
    town.put(gang("whole", "a", 2, each={"gpu": 4}), gang("more", "a", 1, each={"gpu": 4}, created=1))
    plan = town.cycle()
    assert town.admitted() == ["whole"]
    why = next(v.why for v in plan.verdicts if v.key[1] == "more")
    assert why.reason is Reason.PLACEMENT_FAILED
    town.put(node("n3", gpu=4))
    town.cycle()
    assert town.admitted() == ["more", "whole"]


def test_a_budget_goes_on_where_it_ended() -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 3})]))
    for i in range(30):
        town.put(gang(f"big{i:02}", "a", 10 + i, created=i, priority=1))
    town.put(gang("small", "a", 1, created=99))
    calls = 0
    while True:
        plan = decide(town.state, town.now, 5)
        assert plan.steps <= 6
        calls += 1
        if not plan.more:
            break
        assert calls < 20
    assert [d.key[1] for d in plan.decisions] == ["small"]


@pytest.mark.parametrize("tree", ["a", "z"])
def test_no_queue_waits_for_ever_for_a_turn(tree: str) -> None:
    """With each decision comes a gang that has its turn first, is refused, and takes all trials that there are."""
    town = Town(
        *elastic(F),
        *(cohort(name, "", [(F, {"gpu": 1})]) for name in sorted({"a", tree})),
        queue("first", "a", [(F, {"gpu": 3})]),
        queue("last", tree, [(F, {"gpu": 0})]),
        gang("small", "last", 1, created=0),
    )
    decided: list[str] = []
    for i in range(60):
        town.now += SECOND
        town.put(gang(f"big{i:02}", "first", 10 + i, created=i, priority=1))
        plan = decide(town.state, town.now, 1)
        assert plan.more == (not decided), i
        decided += [decision.key[1] for decision in plan.decisions]
        if decided:
            break
    assert decided == ["small"]


def test_equal_gangs_are_tried_once() -> None:
    town = Town(*elastic(F), queue("a", "", [(F, {"gpu": 3})]))
    for i in range(500):
        town.put(gang(f"g{i:03}", "a", 2, created=i))
    plan = town.cycle()
    assert plan.steps == 2
    assert len(plan.verdicts) == 500
    town.put(gang("late", "a", 2, created=town.now))
    plan = town.cycle()
    assert plan.steps <= 1
    assert [v.key[1] for v in plan.verdicts if v.key[1] == "late"]


TOKENS = Flavor("tokens", node_labels=(("licence", "yes"),), elastic=True)


@pytest.mark.parametrize(
    ("flavor", "labels", "taint"),
    [
        (TOKENS, {"licence": "yes"}, ()),
        (
            replace(TOKENS, node_labels=(), tolerations=(Toleration("licence", "Exists"),)),
            {},
            (Taint("licence", "", "NoSchedule"),),
        ),
    ],
)
def test_what_an_elastic_flavor_writes_into_pods_counts_where_another_flavor_chooses_nodes(
    flavor: Flavor, labels: dict[str, str], taint: tuple[Taint, ...]
) -> None:
    groups = (
        ResourceGroup(("gpu",), (FlavorQuotas(F, (("gpu", Quota(100)),)),)),
        ResourceGroup(("cpu",), (FlavorQuotas("tokens", (("cpu", Quota(100_000)),)),)),
    )
    there = replace(node("b", cpu=8000, gpu=8), taints=taint)
    there = replace(there, labels=tuple(sorted({**dict(there.labels), **labels}.items())))
    other = [] if taint else [node("a", cpu=8000, gpu=8)]
    town = Town(Flavor(F), flavor, *other, there, replace(queue("q"), groups=groups))
    town.put(gang("g", "q", 2, each={"gpu": 1, "cpu": 1000}))
    town.cycle()
    (decision,) = town.log
    assert isinstance(decision, Admit)
    assert decision.admission.pod_sets[0].topology is not None
    assert [domain.values[-1] for domain in decision.admission.pod_sets[0].topology.domains] == ["b"]


def test_what_a_ready_check_adds_to_the_pods_counts_when_their_nodes_are_chosen() -> None:
    """As the second pass of Kueue does for nodes that a check had made."""
    nodes = [node("a", cpu=8000), replace(node("b", cpu=8000), labels=((HOST, "b"), ("pool", "made")))]
    town = Town(
        Flavor(F, topology="t"),
        Topology("t", (HOST,)),
        AdmissionCheck("made", "kueue.x-k8s.io/provisioning-request", True),
        queue("q", "", [(F, {"cpu": 100_000})], checks=(CheckRule("made", frozenset()),)),
        *nodes,
        rules=KUEUE,
    )
    asks = gang("g", "q", 2, each={"cpu": 1000})
    town.put(replace(asks, pod_sets=(replace(asks.pod_sets[0], topology=TopologyRequest(required=HOST)),)))
    town.cycle()
    (given,) = town.gangs()
    assert given.admission is not None
    assert given.admission.pod_sets[0].topology is None
    ready = Check("made", CheckState.READY, node_selectors=(("main", (("pool", "made"),)),))
    town.put(replace(given, checks=(ready,)))
    plan = decide(town.state, town.now, BUDGET)
    (decision,) = plan.decisions
    assert isinstance(decision, Replace)
    assert decision.admission.pod_sets[0].topology is not None
    assert [domain.values for domain in decision.admission.pod_sets[0].topology.domains] == [("b",)]


def test_a_gang_of_many_pod_sets_of_many_pods_is_answered() -> None:
    """How many ways there are to spread them is beyond 64 bits; none is looked for."""
    shape = PodShape(requests=(("gpu", 8),))
    many = replace(gang("g", "q", 1), pod_sets=tuple(PodSet(f"p{i:02}", 13, shape) for i in range(18)))
    town = Town(Flavor(F), queue("q", "", [(F, {"gpu": 10_000})]), *(node(f"n{i:03}", gpu=8) for i in range(100)))
    town.put(many)
    town.put(gang("after", "q", 1, each={"gpu": 8}))
    town.cycle()
    assert [decision.key[1] for decision in town.log] == ["after"]


@pytest.mark.parametrize("waited_s", [0, 660])
def test_who_is_entitled_to_one_flavor_takes_no_claim_on_another(waited_s: int) -> None:
    """Else two gangs send each other away for ever: the one takes back what is claimed, in a flavor that it borrows."""
    flavors = [Flavor(name, node_labels=(("fl", name),)) for name in "fg"]
    there = [replace(one := node(f"n{name}", cpu=3), labels=(*one.labels, ("fl", name))) for name in "fg"]
    quotas = {"a": ("inner", 0, 3), "c": ("inner", 0, 0), "d": ("root", 3, 0), "e": ("root", 3, 0)}
    queues = [queue(n, up, [("f", {"cpu": f}), ("g", {"cpu": g})]) for n, (up, f, g) in quotas.items()]
    town = Town(*flavors, *there, cohort("root"), cohort("inner", "root"), *queues)
    for name in ("e1", "d1"):
        town.put(gang(name, name[0], each={"cpu": 3}))
        town.cycle()
    town.now += 20 * 60 * SECOND
    town.put(gang("c1", "c", each={"cpu": 3}, created=town.now - START - waited_s * SECOND))
    for _ in range(60):
        town.cycle()
        town.leave()
        town.now += 2 * SECOND
    assert town.evictions == {("ns", "d1"): 1}
    assert town.admitted() == ["c1", "e1"]


def test_room_is_not_kept_for_who_could_not_have_it_any_more() -> None:
    queues = [queue(name, "", [(F, {"gpu": 6})]) for name in "az"]
    town = Town(*elastic(F), *queues, LocalQueue("ns", "team", "a"))
    for name, local, gpus in (("full", "z", 6), ("s0", "a", 3), ("s1", "a", 3)):
        town.put(gang(name, local, gpus))
        town.cycle()
    town.put(gang("big", "team", 6, created=town.now - START))
    town.now += HOUR
    for _ in range(3):
        town.now += 60 * SECOND
        town.cycle()
    assert town.gang("big").claims is not None
    town.put(LocalQueue("ns", "team", "z"))  # which is full
    for name in ("s0", "s1"):
        town.remove(Workload, ("ns", name))
    town.put(gang("late", "a", 3, created=town.now - START))
    for _ in range(8):  # before it has been passed over itself
        town.now += 60 * SECOND
        town.cycle()
    assert "late" in town.admitted()


@pytest.mark.parametrize("rules", [MUSTER, KUEUE])
def test_who_waits_behind_its_like_is_told_anew_when_what_it_was_told_of_is_there_no_more(rules: Rules) -> None:
    """Its cohort and flavor, say; not when numbers alone move, or other queues change."""
    town = Town(*elastic(F, "g"), cohort("old"), cohort("new"), rules=rules)
    lends = queue("b", "old", [(F, {"gpu": 8})])
    town.put(queue("a", "old", [(F, {"gpu": 4})]), lends, queue("c", "new", [(F, {"gpu": 8}), ("g", {"gpu": 8})]))
    town.put(gang("held", "a", 4), gang("lent", "b", 5), gang("short", "b", 1))
    town.put(gang("other", "c", 8), gang("more", "c", 5), gang("less", "c", 1))
    town.settle()
    town.put(*(gang(f"waits{i}", "a", 8, created=1 + i) for i in range(3)))
    everybody = {f"waits{i}" for i in range(3)}

    def told() -> dict[str, str]:
        return {v.key[1]: sentence(v.why) for v in decide(town.state, town.now, BUDGET).verdicts}

    def of_all(words: str) -> bool:
        said = told()
        return said.keys() == everybody and all(words in one for one in said.values())

    assert of_all("cohort old")
    town.remove(Workload, ("ns", "short"))
    town.put(queue("c", "new", [(F, {"gpu": 9}), ("g", {"gpu": 8})]))
    assert told().keys() == {"waits0"}
    town.put(queue("a", "new", [(F, {"gpu": 4})]))
    assert of_all("cohort new")
    town.put(cohort("new", "top"), cohort("top"))
    assert told().keys() == everybody
    town.put(queue("a", "new", [("g", {"gpu": 4})]))
    assert of_all("flavor g")
    town.remove(Workload, ("ns", "less"))
    assert told().keys() <= {"waits0"}


@pytest.mark.parametrize("levels", [("rack", HOST), ("rack",)])
def test_what_a_node_has_too_little_of_keeps_nobody_off_it_who_asks_for_none(levels: tuple[str, ...]) -> None:
    """As where a device plugin is away: the devices that pods hold are not allocatable any more."""
    there = replace(node("n", cpu=8, gpu=0), labels=((HOST, "n"), ("rack", "r")))
    town = Town(Topology("t", levels), Flavor(F, topology="t"), queue("a", "", [(F, {"cpu": 8})]), there, rules=KUEUE)
    town.put(PodUsage(("x", "p"), "p", "n", (("gpu", 1),)), gang("g", "a", 2, each={"cpu": 1}))
    town.cycle()
    assert town.admitted() == ["g"]
