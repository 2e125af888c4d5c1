"""Claims of several gangs at once: what is free goes to the first of them, whoever has not left yet."""

from __future__ import annotations

from random import Random  # noqa: TID251  # seeded
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.api.workload import Claim as StoredClaim
from admission.engine.cycle import decide
from admission.engine.model import (
    CLAIM_VICTIMS,
    MUSTER,
    Admission,
    Claim,
    ClaimRecord,
    Detail,
    Domain,
    Evict,
    Flavor,
    Key,
    LocalQueue,
    Namespace,
    Node,
    PodSetAssignment,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    StopPolicy,
    Taint,
    Topology,
    TopologyAssignment,
    TopologyRequest,
    Workload,
)
from admission.jobs import values
from admission.names import HOSTNAME_LABEL
from tests.engine.town import BUDGET, SECOND, START, Town, cohort, elastic, gang, node, queue, taken

WHOLE = {"gpu": 2}


def a_town(queues: int, quota: int, nodes: int) -> Town:
    """Each queue has quota for so many whole nodes."""
    leaves = [queue(f"q{i}", "all", [("f", {"gpu": 2 * quota})]) for i in range(queues)]
    return Town(Flavor("f"), cohort("all", "", []), *leaves, *(node(f"n{i:02}", gpu=2) for i in range(nodes)))


def test_claims_that_count_on_one_that_does_not_leave_do_not_keep_each_other_from_what_is_free() -> None:
    """q1 borrows all of q0, and one of its gangs goes for each of two of q0. Then others of q1 end."""
    town = a_town(2, 4, 12)
    town.put(*(gang(f"b{i}", "q1", 2, each=WHOLE, created=i) for i in range(4)))
    town.settle()
    town.put(*(gang(f"a{i}", "q0", 2, each=WHOLE, created=10 + i) for i in range(2)))
    town.cycle()
    leaving = [one.name for one in town.gangs() if one.evicted]
    assert len(leaving) == 2
    assert all(town.gang(f"a{i}").claims is not None for i in range(2))
    town.remove(Workload, ("ns", next(name for name in ("b0", "b1", "b2", "b3") if name not in leaving)))
    town.cycle()
    assert town.admitted().count("a0") == 1, "all that it claims is free, though nobody has left for it"
    assert town.gang("a1").claims is not None
    town.leave()
    town.cycle()
    assert {"a0", "a1"} <= set(town.admitted())


def test_room_that_is_kept_for_one_whose_namespace_is_deleted_is_kept_no_more() -> None:
    town = a_town(2, 1, 2)
    town.put(*(gang(f"b{i}", "q1", 1, each=WHOLE, created=i) for i in range(2)))
    town.settle()
    town.put(LocalQueue("there", "q0", "q0"), replace(gang("a", "q0", 1, each=WHOLE, created=9), namespace="there"))
    town.cycle()
    assert [one.name for one in town.gangs() if one.claims is not None] == ["a"]
    town.leave()
    # By whichever of the two it is seen first.
    town.put(Namespace("there", terminating=True))
    town.put(*(one for one in town.gangs() if one.name == "a"))
    town.cycle()
    assert town.admitted() == ["b0", "b1"], "who was evicted for it has its place again"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("shared", [False, True])
def test_who_leaves_first_makes_room_at_once(order: tuple[int, ...], shared: bool) -> None:
    """Three gangs go for three others, and one of them leaves much later than the rest. On a node of their own each
    makes room for whom it left, on a shared one for whoever came first; nobody waits for all of them."""
    nodes = [node("n0", gpu=3)] if shared else [node(f"n{i}", gpu=1) for i in range(3)]
    town = Town(Flavor("f"), cohort("all", "", []), queue("mine", "all", [("f", {"gpu": 3})]), *nodes)
    town.put(queue("theirs", "all", [("f", {"gpu": 0})]))
    town.put(*(gang(f"b{i}", "theirs", created=i) for i in range(3)))
    town.settle()
    town.put(*(gang(f"a{i}", "mine", created=10 + i) for i in range(3)), gang("c", "theirs", created=5))
    town.cycle()
    assert [gang.claims is not None for gang in town.gangs() if gang.name.startswith("a")] == [True] * 3
    for left, i in enumerate(order, 1):
        town.now += SECOND
        town.put(replace(town.gang(f"b{i}"), admission=None, admitted=False, reserved_at=0, admitted_at=0))
        again = decide(town.fresh(), town.now, BUDGET)
        assert town.cycle().decisions == again.decisions
        there = range(left) if shared else sorted(order[:left])
        assert [name for name in town.admitted() if name[0] != "b"] == [f"a{i}" for i in there]


def test_a_claim_for_which_a_thousand_gangs_leave_can_be_stored() -> None:
    """The API server took none with more victims than its schema has room for, and they went for nothing."""
    many = CLAIM_VICTIMS + 76
    mine, theirs = queue("mine", "all", [("f", {"gpu": many})]), queue("theirs", "all", [("f", {"gpu": 0})])
    town = Town(*elastic("f"), cohort("all", "", []), mine, theirs)
    town.put(*(gang(f"b{i:04}", "theirs", created=i) for i in range(many)))
    while town.cycle().decisions:
        pass
    town.put(gang("a", "mine", many, created=many))
    decisions = decide(town.state, town.now, BUDGET).decisions
    assert sum(isinstance(decision, Evict) for decision in decisions) == many
    (record,) = (decision.record for decision in decisions if isinstance(decision, Claim))
    assert len(StoredClaim.model_validate(values.claim_object(record)).victims or ()) == CLAIM_VICTIMS


@given(st.integers(0, 2**32))
def test_whoever_finds_what_it_claims_starts(seed: int) -> None:
    """Gangs of some pods take back their quota on nodes that many share, from gangs that leave one by one, in any
    order: as soon as all that one claims is free but for what was claimed later, it starts."""
    dice = Random(seed)
    nodes = dice.randint(1, 6)
    mine = queue("mine", "all", [("f", {"gpu": 4 * nodes})])
    town = Town(Flavor("f"), cohort("all", "", []), mine, queue("theirs", "all", [("f", {"gpu": 0})]))
    town.put(*(node(f"n{i}", gpu=4) for i in range(nodes)))

    def some(name: str, queue: str) -> None:
        for i in range(dice.randint(1, 4 * nodes)):
            pods, each = dice.randint(1, 3), {"gpu": dice.randint(1, 3)}
            town.put(gang(f"{name}{i:02}", queue, pods, each=each, created=town.now - START + i))

    some("b", "theirs")
    town.settle()
    some("a", "mine")
    served: set[Key] = set()

    def cycles() -> None:
        while decisions := town.cycle().decisions:
            for decision in decisions:
                assert not isinstance(decision, Evict) or decision.preemptor not in served, "he lost what he claimed"
            served.update(decision.preemptor for decision in decisions if isinstance(decision, Evict))

    cycles()
    while going := [one for one in town.gangs() if one.evicted and one.admission is not None]:
        town.now += SECOND
        town.put(replace(dice.choice(going), admission=None, admitted=False, reserved_at=0, admitted_at=0))
        cycles()
        ledger = town.state.ledger
        in_order = sorted(ledger.claims, key=lambda key: (ledger.claims[key].until, key))
        for key in in_order:
            claim = ledger.claims[key]
            yields = town.yields(key, claim)
            quota = sum(amount for held in ledger.charges.values() for _, amount in held.usage)
            quota += sum(taken(other.charge)["f", "gpu"] for other in ledger.claims.values())
            quota -= sum(yields[other, ("f", "gpu")] for other in in_order)
            free = {host: ledger.nodes.free(host)["gpu"] for host, _ in claim.charge.booking.hosts}
            there = all(
                left + sum(yields[other, (host, "gpu")] for other in in_order) >= 0 for host, left in free.items()
            )
            assert quota > 4 * nodes or not there, key
    town.settle()
    assert not [one.name for one in town.gangs() if one.name.startswith("a") and one.claims is not None]


@given(st.integers(0, 2**32))
def test_what_is_free_goes_to_the_claims_in_their_order(seed: int) -> None:
    """Nodes fail and come back, gangs are lost with them, end, leave late, or never. At rest nobody is hidden, and no
    claim waits for room that is free beside the claims before it."""
    dice = Random(seed)
    nodes, town = dice.randint(6, 16), a_town(queues := dice.randint(2, 4), dice.randint(3, 7), 0)
    town.put(*(node(f"n{i:02}", gpu=2) for i in range(nodes)))
    town.budget = dice.choice((BUDGET, BUDGET, 20, 5))
    come = iter(range(1000))

    def arrive(most: int, name: str) -> None:
        for _ in range(dice.randint(0, most)):
            i = next(come)
            asks = dice.randint(1, 4)
            town.put(gang(f"{name}{i:03}", f"q{dice.randrange(queues)}", asks, each=WHOLE, created=town.now - START))

    def held(evicted: bool) -> list[Workload]:
        """But for those that never leave."""
        there = [one for one in town.gangs() if one.admission is not None and bool(one.evicted) == evicted]
        return [one for one in there if not evicted or not one.name.startswith("stays")]

    def some(of: list[Workload]) -> list[Workload]:
        return dice.sample(of, dice.randint(0, len(of)))

    arrive(20, "goes")
    town.cycle()
    arrive(20, "stays")
    for _ in range(dice.randint(1, 12)):
        match dice.randrange(6):
            case 0:
                arrive(4, dice.choice(("goes", "stays")))
            case 1:
                for one in some(held(evicted=False)):
                    town.put(replace(one, evicted="NodeFailures", evicted_at=town.now, queue_stamp=0))
            case 2:
                for one in some(held(evicted=True)):
                    town.put(replace(one, admission=None, admitted=False, reserved_at=0, admitted_at=0))
            case 3:
                for one in some(held(evicted=dice.random() < 0.5)):
                    town.remove(Workload, one.key)
            case 4:
                for i in dice.sample(range(nodes), dice.randint(0, nodes)):
                    town.put(replace(node(f"n{i:02}", gpu=2), ready=dice.random() < 0.7))
            case 5:
                town.now += dice.choice((1, 30, 200)) * SECOND
        town.cycle()
    for _ in range(200):
        plan = town.cycle()
        if not plan.decisions and not plan.more:
            break
        town.now += SECOND
    else:
        raise AssertionError("no rest")
    again = decide(town.fresh(), town.now, BUDGET)
    assert not again.decisions or town.by_turns(again), again.decisions
    waits = waits_for_what_is_free(town)
    assert waits is None, waits


def waits_for_what_is_free(town: Town) -> Key | None:
    ledger = town.state.ledger
    root = ledger.tree.cohort("all")
    assert root is not None
    free = root.subtree["f", "gpu"] - sum(amount for held in ledger.charges.values() for _, amount in held.usage)
    for key, held in sorted(ledger.claims.items(), key=lambda item: (item[1].until, item[0])):
        wanted = sum(amount for _, amount in held.charge.usage)
        with ledger.suspended(key):
            whole = sum(ledger.nodes.free(one.name)["gpu"] == 2 for one in ledger.nodes.nodes() if one.ready)
        if 0 < wanted <= free and town.state.workloads[key].pod_sets[0].count <= whole:
            return key
        free -= wanted
    return None


@pytest.mark.parametrize(
    ("quota", "theirs", "last", "priorities", "lost"),
    [
        ((4, 4), [3, 3], 4, (0, 0), "a1"),  # a0 is within the quota of its queue
        ((0, 8), [1, 1], 3, (0, 0), "a1"),  # both borrow: the newest
        ((0, 8), [1, 1], 3, (0, 5), "a0"),  # the lowest priority
    ],
)
def test_who_takes_back_what_is_claimed_ends_the_last_claims_beyond_quota(
    quota: tuple[int, int], theirs: list[int], last: int, priorities: tuple[int, int], lost: str
) -> None:
    """c holds everything, and gangs of it leave for two of a. Then one of b comes, within its quota."""
    town = Town(*elastic("f"), cohort("all"))
    for name, nominal in zip("abc", (quota[0], 4, quota[1]), strict=True):
        town.put(queue(name, "all", [("f", {"gpu": nominal})]))
    town.put(*(gang(f"c{i:02}", "c", created=i) for i in range(12)))
    town.settle()
    town.now += 600 * SECOND
    for i, (gpus, priority) in enumerate(zip(theirs, priorities, strict=True)):
        town.put(gang(f"a{i}", "a", gpus, created=20 + i, priority=priority))
    town.cycle()
    assert [town.gang(f"a{i}").claims is not None for i in range(2)] == [True, True]
    town.put(gang("b", "b", last, created=30))
    town.cycle()
    ended = [d.key[1] for d in town.log if isinstance(d, Claim) and d.record.until <= town.now]
    assert ended == [lost]


@pytest.mark.parametrize("on_nodes", [False, True])
@pytest.mark.parametrize("free", [0, 2])
def test_nobody_goes_for_what_is_kept_for_one_who_was_passed_over(on_nodes: bool, free: int) -> None:
    """c borrows, and room is kept for a gang of 7 of b, which would borrow as well. Then one of a comes, within its
    quota, and finds what is free kept: it has evicted what it needs, and not what the other lacks."""
    there = (Flavor("f"), *(node(f"n{i:02}", gpu=1) for i in range(12))) if on_nodes else elastic("f")
    town = Town(*there, cohort("all"), *(queue(name, "all", [("f", {"gpu": 4})]) for name in "abc"))
    town.put(*(gang(f"c{i:02}", "c", created=i) for i in range(12 - free)))
    town.settle()
    town.put(gang("big", "b", 7, created=20))
    for _ in range(12):
        town.now += 60 * SECOND
        town.cycle()
    assert town.gang("big").claims is not None, "it has been passed over"
    town.put(gang("small", "a", created=town.now - START))
    town.cycle()
    assert len(town.evictions) == 1
    town.leave()
    town.cycle()
    assert town.gang("small").admitted
    assert town.gang("big").claims is not None


def test_who_lacks_a_node_beside_those_who_leave_goes_when_there_is_one() -> None:
    """a's gang leaves for one of b, and leaves quota enough for another, but no whole node. Nobody who is left may be
    evicted for that; then a gang of another tree goes."""
    town = Town(
        Flavor("f"),
        queue("a", "all", [("f", {"gpu": 4})]),
        queue("b", "all", [("f", {"gpu": 6})]),
        queue("c", "", [("f", {"gpu": 1})]),
        *(node(name, gpu=4) for name in ("n1", "n2")),
    )
    town.put(gang("lent", "a", 7), gang("other", "c", created=1))
    town.settle()
    town.put(gang("b0", "b", 4, created=10), gang("b1", "b", created=20, each={"gpu": 4}))
    town.cycle()
    assert town.gang("lent").evicted
    assert town.cycle().decisions == town.cycle().decisions == ()
    assert town.gang("b1").claims is None
    town.remove(Workload, ("ns", "other"))
    town.cycle()
    assert town.gang("b1").claims is not None


def test_who_was_told_of_a_claim_is_told_what_is_in_the_way_when_it_has_ended() -> None:
    """Of another tree, whose gang has the room for itself then: who leaves for it gives quota, and a node that is of no
    use for who waits."""
    town = Town(Flavor("f"), queue("mine", "", [("f", {"gpu": 2})]), node("n0", gpu=2), node("n1", gpu=1))
    town.put(queue("theirs", "", [("f", {"gpu": 2})], preemption=Preemption(PreemptionPolicy.LOWER_PRIORITY)))
    town.put(gang("low", "theirs"))
    town.settle()
    town.put(gang("high", "theirs", each=WHOLE, priority=5, created=1))
    town.cycle()
    town.put(gang("g", "mine", each=WHOLE, created=2))
    town.cycle()
    told = town.state.explain(("ns", "g"))
    assert told is not None
    assert (told.why.detail, told.why.subject) == (Detail.CLAIMED, "ns/high")
    town.leave()
    town.settle()
    assert town.admitted() == ["high"]
    told = town.state.explain(("ns", "g"))
    assert told is not None
    assert told.why.detail is Detail.NODES_SHORT


def test_room_is_not_kept_for_one_that_could_have_it_no_more() -> None:
    """It was passed over; then the quota of its queue is cut, and another comes that has enough."""
    town = Town(Flavor("f"), node("n", gpu=8), *(queue(name, "", [("f", {"gpu": 8})]) for name in ("cut", "other")))
    town.put(gang("runs", "other", each={"gpu": 4}))
    town.settle()
    town.put(gang("big", "cut", each={"gpu": 8}, created=1))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.cycle()
    assert town.gang("big").claims is not None
    town.put(queue("cut", "", [("f", {"gpu": 4})]))
    town.cycle()
    told = town.state.explain(("ns", "big"))
    assert told is not None
    assert told.why.detail is Detail.NEVER_FITS_QUOTA
    town.remove(Workload, ("ns", "runs"))
    town.put(gang("y", "other", each={"gpu": 8}, created=town.now - START))
    for _ in range(6):
        town.now += 60 * SECOND
        plan = town.cycle()
        assert plan.next_at is None or plan.next_at > town.now, "it is looked at again and again until it has run out"
    assert town.admitted() == ["y"]


@pytest.mark.parametrize("victims", [False, True])
@pytest.mark.parametrize("of", ["ClusterQueue", "LocalQueue"])
def test_room_is_not_kept_for_one_whose_queue_is_stopped(of: str, victims: bool) -> None:
    """For him who borrowed it, or another who would. It is again when the queue goes on."""
    town = Town(*elastic("f"), cohort("all"), *(queue(name, "all", [("f", {"gpu": 4})]) for name in "ab"))
    town.put(queue("c", "all", [("f", {"gpu": 0})]), gang("runs", "c" if victims else "b", 8 if victims else 4))
    town.settle()
    town.put(gang("big", "a", 4 if victims else 8, created=1))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.cycle()
    town.leave()
    assert [key[1] for key in town.kept()] == ["big"]
    a = town.state.queues["a"]
    stopped, goes_on = (
        (replace(a, stop_policy=how) if of == "ClusterQueue" else LocalQueue("ns", "a", "a", stop_policy=how))
        for how in (StopPolicy.HOLD, StopPolicy.NONE)
    )
    town.put(stopped)
    town.cycle()
    assert not town.kept()
    town.put(goes_on)
    town.cycle()
    assert [key[1] for key in town.kept()] == ["big"]
    town.put(stopped, gang("other", "c", 4, created=town.now - START))
    town.cycle()
    assert len(town.admitted()) == (1 if victims else 2)


@pytest.mark.parametrize("how", ["it is deleted", "it is switched off"])
def test_who_is_not_told_of_a_claim_comes_back_when_its_quota_is_free_again(how: str) -> None:
    """The second of its queue: the first is told, and is too large for what is free then."""
    town = Town(*elastic("f"), cohort("all"), *(queue(name, "all", [("f", {"gpu": 4})]) for name in "ab"))
    town.put(queue("c", "all", [("f", {"gpu": 0})]), gang("runs", "b", 4))
    town.settle()
    town.put(gang("big", "a", 8, created=1))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.settle()
    assert [key[1] for key in town.kept()] == ["big"]
    late = town.now - START
    town.put(gang("first", "c", 5, created=late), gang("second", "c", 3, created=late + 1))
    town.settle()
    assert town.admitted() == ["runs"]
    if how == "it is deleted":
        town.remove(Workload, ("ns", "big"))
    else:
        town.put(replace(town.gang("big"), active=False))
    town.settle()
    assert town.admitted() == ["runs", "second"]


def two_pools(on_nodes: bool) -> Town:
    """Two gangs of four stand in each pool of eight, and one of eight was passed over: the first is kept for it."""
    pools = ("one", "two")
    town = Town(*(Flavor(one, node_labels=(("pool", one),), elastic=not on_nodes) for one in pools))
    for name in pools if on_nodes else ():
        made = node(name, gpu=8)
        town.put(replace(made, labels=(*made.labels, ("pool", name))))
    town.put(queue("q", "", [(name, {"gpu": 8}) for name in pools]))
    town.put(*(gang(f"s{i}", "q", each={"gpu": 4}, created=i) for i in range(4)))
    town.settle()
    town.put(gang("big", "q", each={"gpu": 8}, created=10))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.cycle()
    assert kept_in(town) == "one"
    return town


def kept_in(town: Town) -> str:
    record = town.gang("big").claims
    return flavor_of(None if record is None else record.admission)


def stand_in(town: Town, flavor: str) -> list[str]:
    return [name for name in town.admitted() if flavor_of(town.gang(name).admission) == flavor]


def hours_in(town: Town, minutes: int, pool: str = "") -> None:
    """In this pool small gangs come and go, of a few minutes each: the next comes before one goes."""
    for _ in range(0, minutes * 60, 100):
        town.now += 100 * SECOND
        there = stand_in(town, pool)
        short = [name for name in there if name.startswith("t")]
        if short and (len(there) == 2 or kept_in(town) == pool):
            town.remove(Workload, ("ns", short[0]))
        if pool:
            town.put(gang(f"t{town.now}", "q", each={"gpu": 4}, created=town.now - START))
        town.cycle()


@pytest.mark.parametrize("on_nodes", [True, False])
def test_room_that_is_kept_in_vain_goes_back_where_others_came_later_still(on_nodes: bool) -> None:
    """Who had it elsewhere came later than that one had been passed over, and runs for days."""
    town = two_pools(on_nodes)
    for name in stand_in(town, "two"):
        town.now += SECOND
        town.remove(Workload, ("ns", name))
        town.put(gang(f"x{name}", "q", each={"gpu": 4}, created=town.now - START))
        town.cycle()
    long, there = stand_in(town, "one"), stand_in(town, "two")
    hours_in(town, 66)
    assert kept_in(town) == "two"
    for name in long:
        town.remove(Workload, ("ns", name))
        hours_in(town, 5, "one")
    hours_in(town, 60, "one")
    assert town.admitted() == sorted(["big", *there])


@pytest.mark.parametrize("on_nodes", [True, False])
def test_room_that_is_kept_and_half_free_is_kept_on(on_nodes: bool) -> None:
    """Elsewhere others came later, and nothing is free."""
    town = two_pools(on_nodes)
    first, last = stand_in(town, "one")
    town.remove(Workload, ("ns", first))
    for name in stand_in(town, "two"):
        town.remove(Workload, ("ns", name))
        town.put(gang(f"t{name}", "q", each={"gpu": 4}, created=town.now - START))
        town.now += SECOND
        town.cycle()
    assert len(stand_in(town, "two")) == 2
    for _ in range(10):
        hours_in(town, 10)
        assert kept_in(town) == "one"
    town.remove(Workload, ("ns", last))
    town.cycle()
    assert "big" in town.admitted()


@pytest.mark.parametrize("on_nodes", [True, False])
def test_room_that_is_kept_in_vain_is_kept_where_only_those_have_it_who_came_later(on_nodes: bool) -> None:
    """Two run for hours where it is kept; elsewhere small ones come and go."""
    town = two_pools(on_nodes)
    long, short = stand_in(town, "one"), stand_in(town, "two")
    for i in range(60):
        town.now += 100 * SECOND
        town.remove(Workload, ("ns", short.pop(0)))
        town.put(gang(f"t{i}", "q", each={"gpu": 4}, created=town.now - START))
        town.cycle()
        short += [f"t{i}"] if f"t{i}" in town.admitted() else []
        if "big" in town.admitted():
            break
    assert town.admitted() == sorted(["big", *long])


@pytest.mark.parametrize("lent", [False, True])
def test_room_that_is_kept_in_vain_stays_where_it_is_unless_others_there_would_wait_for_it(lent: bool) -> None:
    """What runs in the other flavor has been there as long; or it comes and goes, of a queue that lends it."""
    town = Town(*elastic("one", "two"), cohort("all"))
    town.put(queue("q", "all", [("one", {"gpu": 8}), ("two", {"gpu": 0 if lent else 8})]))
    town.put(queue("lends", "all", [("two", {"gpu": 8 if lent else 0})]))
    town.put(gang("long", "q", 8), gang("t", "lends", 8, created=1) if lent else gang("too", "q", 8, created=1))
    town.settle()
    town.put(gang("big", "q", 8, created=10))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    for i in range(60):
        town.cycle()
        assert flavor_of(record.admission if (record := town.gang("big").claims) else None) == "one"
        town.now += 100 * SECOND
        if lent:
            town.remove(Workload, ("ns", f"t{i - 1}" if i else "t"))
            town.put(gang(f"t{i}", "lends", 8, created=town.now - START))


def test_who_waits_for_one_that_leaves_slowly_sends_nobody_else_meanwhile() -> None:
    """Of two that leave for a one takes most of an hour. What the other left is kept for five minutes; who has it then
    went for a as well, came back, and went again."""
    town = Town(*elastic("f"), cohort("all"), queue("a", "all", [("f", {"gpu": 8})]))
    town.put(*(queue(name, "all", [("f", {"gpu": 0})]) for name in "bc"))
    town.put(gang("quick", "b", 4), gang("slow", "b", 4, created=1))
    town.settle()
    town.now += MUSTER.spare_first_ms
    town.put(
        *(gang(name, where, pods, created=town.now - START) for name, where, pods in (("a", "a", 8), ("c", "c", 4)))
    )
    for seconds in range(0, 3600, 20):
        town.cycle()
        if seconds < 3000:
            held = town.gang("slow")
            town.leave()
            town.put(held)
        else:
            town.leave()
        town.now += 20 * SECOND
    assert town.admitted() == ["a"]
    assert {name: count for (_, name), count in town.evictions.items()} == {"quick": 1, "slow": 1, "c": 1}


@pytest.mark.parametrize("written", ["without victims", "not at all"])
def test_whose_evictions_were_left_half_made_evicts_the_rest_at_once(written: str) -> None:
    """Of two that were to leave for a one does, slowly; its claim has been ended, or was never stored."""
    town = Town(*elastic("f"), cohort("all"), *(queue(a, "all", [("f", {"gpu": 8 * (a == "a")})]) for a in "ab"))
    town.put(gang("b0", "b", 4), gang("b1", "b", 4, created=1))
    town.settle()
    town.now += MUSTER.spare_first_ms
    town.put(gang("a", "a", 8, created=town.now - START))
    decisions = decide(town.fresh(), town.now, BUDGET).decisions
    first = next(decision for decision in decisions if isinstance(decision, Evict))
    (claim,) = (decision for decision in decisions if isinstance(decision, Claim))
    town.put(town.written(town.gang(first.key[1]), first))
    if written == "without victims":
        ended = replace(claim.record, victims=(), until=town.now // SECOND * SECOND)
        town.put(replace(town.gang("a"), claims=ended))
    town.now += SECOND
    town.cycle()
    assert all(town.gang(f"b{i}").evicted for i in range(2))
    assert [key[1] for key in town.kept()] == ["a"]


def test_who_was_evicted_itself_does_not_wait_for_one_that_leaves_for_it_since_before() -> None:
    town = Town(*elastic("f"), cohort("all"), *(queue(name, "all", [("f", {"gpu": 4})]) for name in "ab"))
    town.put(gang("slow", "b", 4), gang("b1", "b", 4, created=1))
    town.settle()
    town.now += 4 * MUSTER.claim_ms
    left = {"evicted": "Preempted", "evicted_for": "uid-a"}
    town.put(replace(town.gang("slow"), evicted_at=town.now - 3 * MUSTER.claim_ms, **left))
    town.put(queue("b", "all", [("f", {"gpu": 0})]), queue("a", "all", [("f", {"gpu": 8})]))
    town.put(gang("a", "a", 8, created=2, evicted="Preempted", evicted_at=town.now - 2 * MUSTER.claim_ms))
    town.cycle()
    assert town.gang("b1").evicted
    assert [key[1] for key in town.kept()] == ["a"]


def test_one_that_may_be_smaller_takes_no_more_of_what_others_claimed_than_it_claims_itself() -> None:
    """Of a's own quota both have four: one borrower leaves for both. All that is free then would do for six of the
    first."""
    town = Town(*elastic("f"), cohort("all", "", [("f", {"gpu": 4})]))
    town.put(queue("a", "all", [("f", {"gpu": 4})]), queue("b", "all", [("f", {"gpu": 0})]), gang("lent", "b", 8))
    town.settle()
    for i in range(2):
        made = gang(f"a{i}", "a", 6, created=1 + i)
        town.put(replace(made, pod_sets=(replace(made.pod_sets[0], min_count=4),)))
    town.cycle()
    assert [town.gang(f"a{i}").claims is not None for i in range(2)] == [True, True]
    town.settle()
    assert town.admitted() == ["a0", "a1"]


@pytest.mark.parametrize(("pods", "least", "of"), [(6, None, 4), (6, 5, 4), (6, 5, 6)])
def test_one_that_has_grown_since_it_claimed_does_not_start_with_fewer_pods_than_it_may_have(
    pods: int, least: int | None, of: int
) -> None:
    """All that is free would do, but for what the other claims."""
    town = Town(*elastic("f"), cohort("all", "", [("f", {"gpu": 4})]))
    town.put(queue("a", "all", [("f", {"gpu": 4})]), queue("b", "all", [("f", {"gpu": 0})]), gang("lent", "b", 8))
    town.settle()
    for i in range(2):
        made = gang(f"a{i}", "a", 4 if i else of, created=1 + i)
        town.put(replace(made, pod_sets=(replace(made.pod_sets[0], min_count=None if of == 4 else 4),)))
    town.cycle()
    assert [town.gang(f"a{i}").claims is not None for i in range(2)] == [True, True]
    town.put(replace(town.gang("a0"), pod_sets=(replace(town.gang("a0").pod_sets[0], count=pods, min_count=least),)))
    town.settle()
    assert town.admitted() == ["a1"]


def test_room_stays_kept_while_no_node_at_all_is_ready() -> None:
    """It is the network; when that is back, another comes that goes before it."""
    there = node("n", gpu=8)
    town = Town(Flavor("f"), there, *(queue(name, "", [("f", {"gpu": 8})]) for name in ("q", "other")))
    town.put(gang("runs", "other", each={"gpu": 4}))
    town.settle()
    town.put(gang("big", "q", each={"gpu": 8}, created=1))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.cycle()
    town.put(replace(there, ready=False))
    for _ in range(10):
        town.now += 60 * SECOND
        town.cycle()
    town.put(there, gang("late", "other", each={"gpu": 4}, created=town.now - START, priority=1))
    town.settle()
    assert town.admitted() == ["runs"]
    assert [key[1] for key in town.kept()] == ["big"]


@pytest.mark.parametrize(
    "how",
    [
        {"unschedulable": True},
        {"labels": (("kubernetes.io/hostname", "n1"),)},
        {"taints": (Taint("k", "", "NoSchedule"),)},
        None,
    ],
    ids=["cordoned", "of another flavor", "tainted", "gone"],
)
def test_room_that_is_kept_on_a_node_of_no_use_is_kept_on_another(how: dict[str, Any] | None) -> None:
    """Small gangs come as others end, on the node that is left."""
    town = Town(Flavor("f", node_labels=(("pool", "p"),)), queue("q", "", [("f", {"gpu": 64})]))
    for made in (node("n1", gpu=8), node("n2", gpu=8)):
        town.put(replace(made, labels=(*made.labels, ("pool", "p"))))
    town.put(*(gang(f"s{i}", "q", each={"gpu": 4}, created=i) for i in range(4)))
    town.settle()
    town.put(gang("big", "q", each={"gpu": 8}, created=10))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.cycle()
    assert hosts(town.gang("big").claims) == ["n1"]
    if how is None:
        town.remove(Node, "n1")
    else:
        town.put(replace(cast(Node, town.objects["Node", "n1"]), **how))
    there = [one.name for one in town.gangs() if hosts(one) == ["n2"]]
    for i in range(6):
        town.now += 100 * SECOND
        town.remove(Workload, ("ns", there.pop(0)))
        town.put(gang(f"t{i}", "q", each={"gpu": 4}, created=town.now - START))
        town.cycle()
        if "big" in town.admitted():
            break
        there += [f"t{i}"] if f"t{i}" in town.admitted() else []
    assert hosts(town.gang("big")) == ["n2"]


def runs_on(host: str, name: str, came: int, gpus: int) -> Workload:
    """A gang of one pod in queue q, admitted onto this node so many seconds after the start."""
    at = TopologyAssignment((HOSTNAME_LABEL,), (Domain((host,), 1),))
    part = PodSetAssignment("main", (("gpu", "f"),), (("gpu", gpus),), 1, at)
    since = START + came * SECOND
    held = replace(gang(name, "q", each={"gpu": gpus}, created=came), admission=Admission("q", (part,)))
    return replace(held, admitted=True, reserved_at=since, admitted_at=since)


@pytest.mark.parametrize("pods", [1, 2])
@pytest.mark.parametrize("rack", [False, True])
def test_nodes_are_kept_where_those_are_in_the_way_alone_who_came_last(rack: bool, pods: int) -> None:
    """On each node somebody runs since yesterday, but on the last two; small gangs came everywhere since then."""
    town = Town(Flavor("f", topology="net" if rack else ""), queue("q", "", [("f", {"gpu": 64})]))
    town.put(Topology("net", ("rack", HOSTNAME_LABEL)))
    names = [f"n{i}" for i in range(8)]
    for i, name in enumerate(names):
        made = node(name, gpu=8)
        town.put(replace(made, labels=(*made.labels, ("rack", f"r{i // 2}"))))
    stand = [(f"old{i}", f"n{i}", 0, 1) for i in range(6)]
    stand += [(f"new{i}", f"n{i}", 24 * 3600 + 60 * (i % 2), 2) for i in range(8)]
    stand += [(f"last{i}", f"n{i}", 24 * 3600 + 600, 4 if i > 5 else 5) for i in range(8)]
    town.put(*(runs_on(host, name, came, each) for name, host, came, each in stand))
    town.now += 25 * 3600 * SECOND
    asks = TopologyRequest(required="rack") if rack else None
    big = gang("big", "q", pods, each={"gpu": 8}, created=town.now - START)
    town.put(replace(big, pod_sets=(replace(big.pod_sets[0], topology=asks),)))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.cycle()
    assert hosts(town.gang("big").claims) == names[-pods:]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=2, max_size=8), st.integers(1, 3))
def test_of_the_nodes_that_are_kept_the_last_is_free_as_soon_as_can_be(came: list[list[int]], pods: int) -> None:
    """Per node, when those came who run there, many of them at one moment: whoever came first on it leaves last."""
    town = Town(Flavor("f"), queue("q", "", [("f", {"gpu": 8 * len(came)})]))
    names = [f"n{i}" for i in range(len(came))]
    town.put(*(node(name, gpu=8) for name in names))
    for i, times in enumerate(came):
        for j, at in enumerate(times):
            town.put(runs_on(names[i], f"g{i}-{j}", at, 2))
    assert [key for _, key in town.state.latest()] == sorted(
        (key for key, one in town.state.workloads.items()),
        key=lambda key: (-town.state.workloads[key].admitted_at, key),
    )
    pods = min(pods, len(came))
    town.put(gang("big", "q", pods, each={"gpu": 8}, created=10))
    town.now += MUSTER.passed_over_ms + 15 * SECOND
    town.cycle()
    first = {name: min(times) for name, times in zip(names, came, strict=True)}
    kept = hosts(town.gang("big").claims)
    assert len(kept) == pods
    assert min(first[name] for name in kept) == sorted(first.values())[-pods]


def test_nodes_are_kept_where_nobody_holds_quota_and_a_pod_of_a_gang_that_is_gone_still_stands() -> None:
    town = Town(Flavor("f"), queue("q", "", [("f", {"gpu": 8})]), node("n0", gpu=8))
    town.put(PodUsage(("ns", "stuck"), "u", "n0", (("gpu", 8),), workload_uid="gone"))
    town.put(gang("big", "q", each={"gpu": 8}))
    town.cycle()
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.cycle()
    assert hosts(town.gang("big").claims) == ["n0"]


def test_the_effort_of_looking_who_came_last_counts() -> None:
    """It grows with those who are in the way: a decision that keeps room for many ends the sooner."""
    spent = []
    for many in (10, 40):
        town = Town(Flavor("f"), queue("q", "", [("f", {"gpu": 2 * many})]))
        for i in range(many):
            town.put(node(f"n{i:02}", gpu=2), gang(f"g{i:02}", "q", each={"gpu": 1}, created=i))
            town.settle()
            town.now += SECOND
        for i in range(many):
            town.put(gang(f"h{i:02}", "q", each={"gpu": 1}, created=many + i))
        town.settle()
        town.put(gang("big", "q", many // 2, each={"gpu": 2}, created=3 * many))
        town.settle()
        town.now += MUSTER.passed_over_ms + 5 * SECOND + 3 * many * SECOND
        before = town.state.ledger.nodes.effort.spent
        town.cycle()
        assert town.gang("big").claims
        spent.append(town.state.ledger.nodes.effort.spent - before)
    assert spent[1] >= 2 * spent[0] > 0


def test_who_finds_no_nodes_to_be_kept_beside_those_of_others_is_asked_again_when_one_comes() -> None:
    """It lacks quota now; the node that is kept for another it would need."""
    town = Town(Flavor("f"), *(queue(name, "", [("f", {"gpu": 8})]) for name in ("q", "other")))
    town.put(node("n1", gpu=4), node("n2", gpu=4))
    town.put(*(gang(f"s{i}", name, each={"gpu": 1}) for i, name in enumerate(("q", "other"))))
    town.settle()
    town.put(gang("kept", "other", each={"gpu": 4}, pods=2, created=1))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.settle()
    town.put(gang("late", "q", each={"gpu": 4}, pods=2, created=town.now - START))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.settle()
    assert [key[1] for key in town.kept()] == ["kept"]
    town.put(node("n3", gpu=4), node("n4", gpu=4))
    town.settle()
    assert {key[1] for key in town.kept()} == {"kept", "late"}


def test_who_is_kept_off_the_nodes_by_another_is_still_the_first_of_its_queue() -> None:
    """What is kept in another tree leaves it no nodes at all. One behind it that has been passed over has no quota kept
    from it: it goes first when the nodes are there."""
    town = Town(Flavor("f"), node("n3", gpu=2), queue("q", "", [("f", {"gpu": 5})]))
    town.put(queue("other", "", [("f", {"gpu": 64})]), gang("small", "other"))
    town.settle()
    town.put(node("n1", gpu=8), node("n2", gpu=8), gang("runs", "other", each={"gpu": 4}))
    town.settle()
    town.put(gang("wide", "other", each={"gpu": 8}, pods=2, created=1))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.settle()
    town.put(gang("first", "q", each={"gpu": 4}, created=town.now - START, priority=1))
    town.put(gang("behind", "q", each={"gpu": 2}, created=2))
    town.now += 5 * SECOND
    town.settle()
    assert [key[1] for key in town.kept()] == ["wide"]
    town.remove(Workload, ("ns", "wide"))
    town.settle()
    assert "first" in town.admitted()


def test_room_stays_kept_for_one_whose_other_nodes_are_kept_for_another() -> None:
    """Its node is cordoned for a while, and what it could have besides is kept in another tree."""
    there = node("n3", gpu=5)
    town = Town(Flavor("f"), there, *(queue(name, "", [("f", {"gpu": 64})]) for name in ("q", "other", "third")))
    town.put(gang("small", "other", each={"gpu": 2}))
    town.settle()
    town.put(node("n1", gpu=8), node("n2", gpu=8), gang("runs", "other", each={"gpu": 4}))
    town.settle()
    town.put(gang("wide", "other", each={"gpu": 8}, pods=2, created=1))
    town.now += MUSTER.passed_over_ms + 5 * SECOND
    town.settle()
    town.put(gang("mine", "q", each={"gpu": 4}, created=2))
    town.now += 5 * SECOND
    town.settle()
    assert {key[1] for key in town.kept()} == {"mine", "wide"}
    town.put(replace(there, unschedulable=True))
    for _ in range(6):
        town.now += 60 * SECOND
        town.cycle()
    town.put(there, gang("late", "third", each={"gpu": 3}, created=town.now - START, priority=1))
    town.settle()
    assert "late" not in town.admitted()
    assert {key[1] for key in town.kept()} == {"mine", "wide"}


def test_behind_one_that_can_never_go_from_now_on_room_is_kept() -> None:
    """A pod of nobody's takes of the only node what the first needs of it; the one behind is as well off as before."""
    town = Town(Flavor("f"), node("n", gpu=8), queue("q", "", [("f", {"gpu": 64})]))
    town.put(gang("runs", "q", each={"gpu": 6}))
    town.settle()
    town.now += MUSTER.passed_over_ms + 60 * SECOND
    town.put(gang("whole", "q", each={"gpu": 8}, created=town.now - START, priority=1))
    town.put(gang("behind", "q", each={"gpu": 3}, created=2))
    town.settle()
    assert not town.kept()
    town.twin = True
    town.put(PodUsage(("x", "p"), "p", "n", (("gpu", 1),)))
    town.settle()
    assert [key[1] for key in town.kept()] == ["behind"]


def flavor_of(admission: Admission | None) -> str:
    return "" if admission is None else dict(admission.pod_sets[0].flavors)["gpu"]


def hosts(of: Workload | ClaimRecord | None) -> list[str]:
    admission = None if of is None else of.admission
    where = None if admission is None else admission.pod_sets[0].topology
    return [] if where is None else [domain.values[-1] for domain in where.domains]


def in_slices(name: str, local: str, pods: int, size: int, **more: Any) -> Workload:
    value = gang(name, local, pods, **more)
    (asked,) = value.pod_sets
    slices = TopologyRequest(slice_required=HOSTNAME_LABEL, slice_size=size)
    return replace(value, pod_sets=(replace(asked, topology=slices),))


@pytest.mark.parametrize("passed_over", [False, True], ids=["claimed", "set aside"])
def test_who_takes_what_a_short_slice_leaves_keeps_nobody_back(passed_over: bool) -> None:
    """Seven pods in slices of four need seven places, and so many are kept for them."""
    leaves = [queue(name, "root", [("f", {"gpu": quota})]) for name, quota in (("a", 8), ("b", 0), ("c", 1))]
    net = Topology("net", (HOSTNAME_LABEL,))
    town = Town(net, Flavor("f", topology="net"), cohort("root", "", []), *leaves, node("n0", gpu=4), node("n1", gpu=4))
    first = in_slices("first", "a" if passed_over else "b", 4, 4)
    town.put(first)
    town.settle()
    town.put(in_slices("big", "a", 7, 4, created=10))
    town.cycle()
    if passed_over:
        town.now += MUSTER.passed_over_ms + 5 * SECOND
        town.cycle()
    assert town.kept() == {("ns", "big")}
    town.put(gang("small", "c", 1, created=town.now - START))
    town.cycle()
    if passed_over:
        town.remove(Workload, first.key)
    town.settle()
    assert "big" in town.admitted()
    assert max(town.evictions.values(), default=0) <= 1
