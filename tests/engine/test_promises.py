"""The promises R1 to R12 as properties: random trees, arrivals, ends, quota edits, node loss; then a freeze.

What holds for one decision is checked by `Town.check`; here, what must hold once the cluster came to rest. Ordinary
runs play 300 sequences, `THOROUGH=1` ten thousand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.filling import Filling
from admission.engine.flavors import Mode
from admission.engine.model import (
    MUSTER,
    Admit,
    ClusterQueue,
    Detail,
    Evict,
    EvictReason,
    Flavor,
    FlavorResource,
    Node,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Quota,
    Reason,
    Rules,
    Strategy,
    Workload,
)
from admission.engine.quota import QuotaNode
from admission.engine.trial import Trial
from tests.engine.town import BUDGET, INITIAL_TOO, SECOND, START, Town, below_common, cohort, gang, node, queue

EXAMPLES = 10_000 if os.environ.get("THOROUGH") else 300
MINUTE = 60 * SECOND
LEAVES = ("a", "b", "c", "d")
APART = "e"
"""A queue without a cohort: it shares nothing but nodes with the others."""

quotas = st.builds(
    Quota,
    st.integers(0, 6),
    st.none() | st.none() | st.integers(0, 6),
    st.none(),
)


@st.composite
def trees(draw: st.DrawFn) -> list[Any]:
    """One root with quota of its own, a cohort below it, and four queues; gpu and cpu in an elastic flavor, or on
    nodes."""
    solid = draw(st.booleans())
    flavor = Flavor("f", elastic=not solid)
    out: list[Any] = [flavor]
    out.append(cohort("root", "", [("f", {"gpu": draw(st.integers(0, 6)), "cpu": draw(st.integers(0, 6))})]))
    out.append(cohort("inner", "root", [("f", {"gpu": draw(st.integers(0, 3)), "cpu": 0})]))
    for name in LEAVES:
        parent = draw(st.sampled_from(("root", "inner")))
        within = draw(st.sampled_from((PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY)))
        out.append(
            queue(
                name,
                parent,
                [("f", {"gpu": draw(quotas), "cpu": draw(quotas)})],
                weight=draw(st.sampled_from((Fraction(1), Fraction(2), Fraction(1, 2)))),
                strategy=draw(st.sampled_from((Strategy.BEST_EFFORT_FIFO, Strategy.STRICT_FIFO))),
                preemption=Preemption(within_cluster_queue=within),
            )
        )
    out.append(queue(APART, "", [("f", {"gpu": draw(st.integers(0, 4)), "cpu": draw(st.integers(0, 4))})]))
    if solid:
        out += [node(f"n{i}", gpu=draw(st.integers(1, 4)), cpu=draw(st.integers(1, 6))) for i in range(4)]
    return out


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @initialize(
        values=trees(),
        twin=st.sampled_from((False, False, False, False, True)),
        budget=st.sampled_from((BUDGET, BUDGET, 1, 3)),
        rules=st.sampled_from((MUSTER, INITIAL_TOO)),
    )
    def start(self, values: list[Any], twin: bool, budget: int = BUDGET, rules: Rules = INITIAL_TOO) -> None:
        self.town = Town(*values, rules=rules)
        self.town.budget = budget
        self.town.twin = twin or EXAMPLES > 300
        self.solid = any(isinstance(value, Node) for value in values)

    @rule(
        where=st.sampled_from((*LEAVES, APART)),
        many=st.integers(1, 4),
        pods=st.integers(1, 3),
        asks=st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any),
        priority=st.sampled_from((0, 0, 0, 5)),
        backoff=st.sampled_from((0, 0, 0, 3)),
    )
    def arrive(self, where: str, many: int, pods: int, asks: tuple[int, int], priority: int, backoff: int) -> None:
        """`backoff`: minutes for which they are left alone, as after an eviction by a check or a timeout."""
        for _ in range(many):
            self.one(where, pods, asks, priority, self.town.now + backoff * MINUTE if backoff else 0)

    def one(self, where: str, pods: int, asks: tuple[int, int], priority: int, not_before: int) -> None:
        gpu, cpu = asks
        each = {name: amount for name, amount in (("gpu", gpu), ("cpu", cpu)) if amount}
        self.count += 1
        created = self.town.now - START
        value = gang(f"g{self.count:03}", where, pods, each=each, priority=priority, created=created)
        self.town.put(replace(value, requeue_at=not_before))

    @precondition(lambda self: self.town.gangs())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        value = data.draw(st.sampled_from(sorted(self.town.gangs(), key=lambda g: g.name)))
        self.town.remove(Workload, value.key)

    @rule(where=st.sampled_from(LEAVES), gpu=quotas, cpu=quotas)
    def edit(self, where: str, gpu: Quota, cpu: Quota) -> None:
        old = self.town.objects["ClusterQueue", where]
        assert isinstance(old, ClusterQueue)
        new = queue(where, old.cohort, [("f", {"gpu": gpu, "cpu": cpu})])
        self.town.put(replace(old, groups=new.groups, generation=old.generation + 1))

    @precondition(lambda self: self.solid)
    @rule(name=st.sampled_from(("n0", "n1", "n2", "n3")), ready=st.booleans())
    def turn(self, name: str, ready: bool) -> None:
        old = self.town.objects["Node", name]
        assert isinstance(old, Node)
        self.town.put(replace(old, ready=ready))

    @precondition(lambda self: self.solid)
    @rule(name=st.sampled_from(("n0", "n1", "n2", "n3")), gpu=st.integers(0, 2), cpu=st.integers(0, 3))
    def stray(self, name: str, gpu: int, cpu: int) -> None:
        """A pod of nobody's comes to a node, or takes another amount there, or goes."""
        if gpu or cpu:
            self.town.put(PodUsage(("x", name), f"uid-{name}", name, (("cpu", cpu), ("gpu", gpu))))
        else:
            self.town.remove(PodUsage, ("x", name))

    @rule(minutes=st.sampled_from((1, 4, 6, 11, 61)))
    def wait(self, minutes: int) -> None:
        self.town.now += minutes * MINUTE

    @rule(leave=st.booleans())
    def one_cycle(self, leave: bool = True) -> None:
        """Whoever was evicted takes its time, or is gone at once."""
        self.town.cycle()
        if leave:
            self.town.leave()

    @rule()
    def freeze(self) -> None:
        """No arrivals, no ends, no edits: few cycles, and rest (R7); then nothing is left to do (R1, R9, R10)."""
        town = self.town
        town.settle()
        self.at_rest()
        for _ in range(6):  # spared gangs and backoffs end; claims come to nothing
            town.now += 61 * MINUTE
            town.settle()
        self.at_rest()

    def teardown(self) -> None:
        if hasattr(self, "town"):
            self.freeze()

    # -- what must hold at rest

    def at_rest(self) -> None:
        town = self.town
        state = town.state
        # R12: who was told everything at once decides the same (nothing), for the same reasons.
        other = town.fresh()
        fresh = decide(other, town.now, BUDGET)
        if fresh.decisions and town.by_turns(fresh):
            return
        assert not [d for d in fresh.decisions if isinstance(d, Admit | Evict)], fresh.decisions
        assert fresh.decisions == decide(state, town.now, BUDGET).decisions
        for value in town.gangs():
            town.same_reason(value.key, other)
        with state.ledger.trial():
            run = Filling(state, town.now, BUDGET, state.ledger.nodes.effort.spent)
            # R10, R11: room may be kept for who cannot have it yet, but not for nobody.
            kept = [value for value in town.gangs() if value.claims is not None and not value.claims.victims]
            with state.ledger.trial():
                for value in kept:
                    state.ledger.unclaim(value.key)
                fit = [run.look(value, state.queues[value.queue], evict=False).mode is Mode.FIT for value in kept]
                assert not fit or not all(fit), kept
            for value in town.gangs():
                if value.admission is not None or value.claims is not None:
                    continue
                spec = state.queues[value.queue]
                line = list(state.lines[spec.name]) if spec.name in state.lines else []
                strict_behind = spec.strategy is Strategy.STRICT_FIFO and line and line[0][3] != value.uid
                if strict_behind or town.kept():
                    continue
                known = state.explain(value.key)
                if known is not None and known.why.detail is Detail.BACKOFF:
                    continue  # evicted minutes ago, and would be again
                # R10: what fits without eviction does not wait.
                assert run.look(value, spec, evict=False).mode is not Mode.FIT, value
                # R1: a gang within its queue's nominal quota does not wait, if it can be placed without the borrowers.
                node_of = state.ledger.tree.queue(spec.name)
                assert node_of is not None
                trial = run.look(value, spec)
                usage = {} if trial.assignment is None else trial.assignment.usage
                if usage and all(not node_of.exceeds(fr, n) for fr, n in usage.items()):
                    with state.ledger.trial():
                        self.without_borrowers(node_of, usage)
                        room = run.look(value, spec, evict=False).mode is Mode.FIT
                    if room:
                        victims = self.lawful_victims(
                            node_of, usage, lambda v=value, s=spec: run.look(v, s, evict=False)
                        )
                        assert not victims, ("R1", value, trial.why, victims)

    def without_borrowers(self, mine: QuotaNode, usage: Mapping[FlavorResource, int]) -> None:
        """Every gang of another queue goes that holds something asked for, as long as its queue, and each cohort below
        the common one, holds more than its quota of some of that."""
        state = self.town.state
        for other in mine.root.queues():
            for holder in state.holders(other.name):
                charge = state.ledger.charges[holder.key]
                uses = [fr for fr, _ in charge.usage if fr in usage]
                if other is not mine and all(at.borrowing(uses) for at in below_common(other, mine)):
                    state.ledger.release(holder.key)

    def lawful_victims(
        self, mine: QuotaNode, usage: Mapping[FlavorResource, int], look: Callable[[], Trial]
    ) -> tuple[str, ...]:
        """Up to four gangs that make room when they go, each lawful in the set: with all the others gone, its queue,
        and each cohort below the common one, holds more than its quota of something asked for, and held (R1, R2)."""
        ledger = self.town.state.ledger
        held = [
            holder.key
            for other in mine.root.queues()
            if other is not mine and all(at.borrowing(usage) for at in below_common(other, mine))
            for holder in self.town.state.holders(other.name)
            if any(fr in usage for fr, _ in ledger.charges[holder.key].usage)
        ]
        for many in range(1, 5):
            for victims in combinations(held, many):
                with ledger.trial():
                    gone = {key: ledger.release(key) for key in victims}
                    if look().mode is not Mode.FIT:
                        continue
                    lawful = True
                    for key in victims:
                        with ledger.trial():
                            ledger.charge(gone[key])
                            queue = ledger.tree.queue(ledger.charges[key].queue)
                            assert queue is not None
                            uses = [fr for fr, _ in gone[key].usage if fr in usage]
                            lawful = lawful and all(at.borrowing(uses) for at in below_common(queue, mine))
                    if lawful:
                        return tuple(name for _, name in victims)
        return ()

    @invariant()
    def books(self) -> None:
        if hasattr(self, "town"):
            assert self.town.state.drift() == []
            for name in ("n0", "n1", "n2", "n3"):
                held = self.town.state.ledger.nodes.occupants(name)
                spec = self.town.objects.get(("Node", name))
                if isinstance(spec, Node):
                    for resource, amount in spec.allocatable:
                        assert sum(amounts.get(resource, 0) for amounts in held.values()) <= 10**6 + amount

    @rule()
    def same_again(self) -> None:
        """R12: the same decisions from a State that was told everything at once, in another order."""
        town = self.town
        # What is remembered of those who were refused spares trials, and changes nothing.
        town.compare(decide(town.state, town.now, BUDGET))
        town.state.memos.forget()
        mine = decide(town.state, town.now, BUDGET)
        again = decide(town.state, town.now, BUDGET)
        other = decide(town.fresh(), town.now, BUDGET)
        assert mine.decisions == again.decisions
        assert mine.decisions == other.decisions, (mine.decisions, other.decisions)
        evicts = [d for d in mine.decisions if isinstance(d, Evict)]
        for evict in evicts:
            if evict.reason is EvictReason.IN_COHORT_FAIR_SHARING:
                victim = town.state.workloads[evict.key]
                # R6, R8: not in its first minutes, not more often than allowed.
                assert victim.admitted_at + town.rules.spare_first_ms <= town.now


Cluster.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    # The ordinary run plays the same sequences each time; the thorough one looks for new ones.
    derandomize=EXAMPLES == 300,
    suppress_health_check=list(HealthCheck),
)
TestPromises = Cluster.TestCase


# ---------------------------------------------------------------- sequences that once went wrong

Arrival = tuple[str, int, int, tuple[int, int], int, int]
"""Queue, gangs, pods of each, (gpu, cpu) of a pod, priority, minutes for which they are left alone."""
CROWD: tuple[Arrival, ...] = (
    ("a", 2, 3, (2, 2), 0, 3),
    ("c", 4, 1, (3, 3), 5, 0),
    ("d", 2, 2, (3, 3), 0, 0),
    ("a", 4, 1, (3, 1), 5, 0),
    ("b", 3, 2, (0, 2), 0, 0),
    ("a", 1, 3, (1, 2), 0, 0),
    ("b", 4, 3, (3, 3), 0, 0),
    ("a", 4, 3, (1, 3), 0, 0),
    ("d", 3, 1, (1, 0), 0, 0),
    ("b", 4, 3, (1, 2), 0, 0),
    ("a", 4, 3, (2, 1), 0, 0),
    ("a", 2, 1, (1, 3), 0, 0),
    ("d", 3, 1, (2, 1), 0, 0),
    ("a", 2, 2, (1, 3), 0, 0),
    ("a", 1, 3, (2, 2), 5, 0),
    ("c", 3, 2, (1, 0), 0, 0),
    ("c", 1, 1, (1, 2), 5, 0),
    ("b", 1, 3, (2, 0), 5, 0),
    ("a", 1, 2, (2, 2), 5, 0),
    ("b", 2, 3, (1, 2), 0, 0),
    ("a", 1, 1, (2, 0), 0, 0),
    ("d", 3, 2, (0, 3), 0, 3),
    ("a", 3, 2, (2, 1), 0, 3),
    ("a", 4, 1, (2, 2), 0, 0),
    ("d", 3, 3, (1, 2), 5, 0),
    ("d", 4, 3, (2, 0), 0, 0),
    ("a", 1, 2, (1, 2), 5, 0),
)


def come(machine: Cluster, *arrivals: Arrival) -> None:
    for where, many, pods, asks, priority, backoff in arrivals:
        machine.arrive(where=where, many=many, pods=pods, asks=asks, priority=priority, backoff=backoff)


LOWER = Preemption(within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY)


@pytest.mark.parametrize(
    ("gpus_of_c", "preemption_of_c", "first"),
    [
        pytest.param(
            Quota(4),
            LOWER,
            (("a", 4, 3, (0, 1), 0, 0), ("a", 4, 3, (0, 2), 0, 0)),
            id="comes back by an eviction, only to be evicted within its queue",
        ),
        pytest.param(
            Quota(4, 4),
            Preemption(),
            (("d", 4, 3, (3, 2), 0, 3), ("c", 4, 3, (1, 2), 0, 0)),
            id="the queue that evicts has nobody left to send, and others are woken",
        ),
    ],
)
def test_sequences_that_once_went_wrong(
    gpus_of_c: Quota, preemption_of_c: Preemption, first: tuple[Arrival, ...]
) -> None:
    machine = Cluster()
    values = [
        Flavor("f", elastic=True),
        cohort("root", "", [("f", {"gpu": 5, "cpu": 3})]),
        cohort("inner", "root", [("f", {"gpu": 2, "cpu": 0})]),
        queue("a", "root", [("f", {"gpu": 3, "cpu": Quota(3, 0)})], weight=Fraction(2)),
        queue("b", "root", [("f", {"gpu": 1, "cpu": 0})], strategy=Strategy.STRICT_FIFO),
        queue(
            "c",
            "inner",
            [("f", {"gpu": gpus_of_c, "cpu": Quota(6, 0)})],
            weight=Fraction(1, 2),
            preemption=preemption_of_c,
        ),
        queue("d", "inner", [("f", {"gpu": 0, "cpu": 4})], strategy=Strategy.STRICT_FIFO, weight=Fraction(1, 2)),
    ]
    machine.start(values=values, twin=True)
    come(machine, *first, *CROWD)
    machine.freeze()


LATER: tuple[Arrival, ...] = (
    ("a", 4, 3, (0, 3), 0, 3),
    ("c", 3, 2, (2, 2), 0, 0),
    ("d", 4, 1, (1, 2), 0, 0),
    ("c", 3, 1, (2, 2), 5, 0),
    ("b", 3, 3, (0, 2), 0, 0),
    ("a", 4, 1, (2, 2), 0, 0),
    ("d", 1, 2, (0, 3), 0, 0),
    ("c", 1, 3, (0, 1), 0, 0),
    ("c", 3, 1, (0, 1), 0, 0),
    ("d", 3, 3, (0, 1), 5, 3),
    ("a", 1, 1, (0, 2), 5, 0),
    ("a", 1, 2, (2, 3), 5, 0),
)
LARGE: tuple[Arrival, ...] = (("c", 3, 3, (3, 2), 0, 0), ("c", 4, 2, (3, 1), 5, 0), ("c", 1, 3, (0, 1), 0, 0))


@pytest.mark.parametrize(
    ("strategy_of_c", "cpus_of_d", "first"),
    [
        pytest.param(
            Strategy.BEST_EFFORT_FIFO, Quota(4, 3), LARGE, id="whose kept room binds whom is a matter of turns"
        ),
        pytest.param(Strategy.STRICT_FIFO, Quota(4), LARGE, id="who stays away for a while evicts nobody meanwhile"),
        pytest.param(
            Strategy.STRICT_FIFO,
            Quota(4, 3),
            (("c", 4, 2, (3, 1), 5, 0), ("a", 1, 1, (2, 0), 0, 0)),
            id="comes back, and is evicted together with one that was admitted when it did",
        ),
    ],
)
def test_sequences_that_went_wrong_an_hour_later(
    strategy_of_c: Strategy, cpus_of_d: Quota, first: tuple[Arrival, ...]
) -> None:
    machine = Cluster()
    nodes = {"n0": (2, 1), "n1": (4, 5), "n2": (2, 2), "n3": (3, 6)}
    none = {"gpu": 0, "cpu": 0}
    values = [
        Flavor("f"),
        cohort("root", "", [("f", {"gpu": 0, "cpu": 6})]),
        cohort("inner", "root", [("f", none)]),
        queue("a", "inner", [("f", {"gpu": 6, "cpu": 1})], strategy=Strategy.STRICT_FIFO, weight=Fraction(2)),
        queue("b", "root", [("f", none)]),
        queue("c", "inner", [("f", {"gpu": 2, "cpu": 3})], strategy=strategy_of_c),
        queue("d", "inner", [("f", {"gpu": 1, "cpu": cpus_of_d})], preemption=LOWER),
        *(node(name, gpu=gpu, cpu=cpu) for name, (gpu, cpu) in nodes.items()),
    ]
    machine.start(values=values, twin=True)
    come(machine, *first, *LATER)
    machine.teardown()


def test_nobody_gives_up_a_claim_for_one_that_stays_away() -> None:
    """One that was evicted would fit where others claim room, and stays away, for it would be evicted again: those two
    gave up their claims for it in turns, and claimed anew, with each decision."""
    machine = Cluster()
    nodes = {"n0": (3, 5), "n1": (2, 1), "n2": (2, 1), "n3": (1, 5)}
    none = {"gpu": 0, "cpu": 0}
    values = [
        Flavor("f"),
        cohort("root", "", [("f", none)]),
        cohort("inner", "root", [("f", {"gpu": 2, "cpu": 0})]),
        queue("a", "inner", [("f", none)], weight=Fraction(2)),
        queue("b", "inner", [("f", {"gpu": 0, "cpu": 6})], strategy=Strategy.STRICT_FIFO),
        queue("c", "root", [("f", {"gpu": 5, "cpu": 0})]),
        queue("d", "inner", [("f", {"gpu": 0, "cpu": 4})], preemption=LOWER),
        *(node(name, gpu=gpu, cpu=cpu) for name, (gpu, cpu) in nodes.items()),
    ]
    machine.start(values=values, twin=True)
    come(machine, ("d", 1, 2, (1, 1), 1, 0), ("a", 2, 1, (1, 1), 0, 0), ("b", 2, 1, (0, 1), 0, 1))
    come(machine, ("d", 3, 1, (0, 1), 0, 0), ("b", 3, 1, (0, 1), 0, 0), ("c", 2, 1, (0, 1), 0, 0))
    come(machine, ("b", 1, 2, (1, 1), 0, 0))
    machine.town.settle()
    machine.wait(minutes=61)
    machine.town.settle()


def test_who_is_first_after_an_admission_is_due_for_a_claim_though_it_lacks_what_it_lacked() -> None:
    """Two of four run; a third claims the node of one of them, and finds room on others. Then the fourth claims it."""
    machine = Cluster()
    nodes = {"n0": (1, 1), "n1": (2, 2), "n2": (2, 4), "n3": (1, 1)}
    values = [
        Flavor("f"),
        cohort("root", "", [("f", {"gpu": 0, "cpu": 12})]),
        *(queue(name, "root", [("f", {"gpu": 0, "cpu": 0})]) for name in LEAVES),
        *(node(name, gpu=gpu, cpu=cpu) for name, (gpu, cpu) in nodes.items()),
    ]
    machine.start(values=values, twin=True)
    machine.turn(name="n3", ready=False)
    come(machine, ("c", 4, 3, (0, 1), 5, 3))
    machine.freeze()
    assert machine.town.admitted() == ["g001", "g002"]
    machine.town.remove(Workload, machine.town.gang("g002").key)
    machine.freeze()
    assert machine.town.admitted() == ["g001", "g003"]
    assert machine.town.gang("g004").claims is not None


def test_who_claimed_room_in_a_decision_has_no_second_turn_with_those_like_it() -> None:
    """The first of two equal gangs of b claims room, the second is refused beside what is kept, and then a third of b
    is admitted: who is the first of b now may be due for more, and is one of the two."""
    machine = Cluster()
    nodes = {"n0": (2, 2), "n1": (3, 6), "n2": (4, 2), "n3": (4, 5)}
    values = [
        Flavor("f"),
        cohort("root", "", [("f", {"gpu": 6, "cpu": 1})]),
        cohort("inner", "root", [("f", {"gpu": 3, "cpu": 1})]),
        queue("a", "inner", [("f", {"gpu": 2, "cpu": 2})], strategy=Strategy.STRICT_FIFO, weight=Fraction(2)),
        queue("b", "inner", [("f", {"gpu": Quota(6, 1), "cpu": 2})], weight=Fraction(2)),
        queue("c", "inner", [("f", {"gpu": 3, "cpu": Quota(1, 2)})], strategy=Strategy.STRICT_FIFO, weight=Fraction(2)),
        queue("d", "root", [("f", {"gpu": 3, "cpu": 6})], preemption=LOWER),
        *(node(name, gpu=gpu, cpu=cpu) for name, (gpu, cpu) in nodes.items()),
    ]
    machine.start(values=values, twin=True)
    come(machine, ("c", 1, 1, (0, 1), 0, 3), ("d", 1, 1, (2, 1), 5, 3), ("b", 2, 1, (0, 1), 0, 3))
    come(machine, ("b", 1, 2, (1, 3), 5, 0), ("d", 1, 3, (0, 3), 0, 0))
    machine.wait(minutes=61)
    come(machine, ("b", 1, 1, (1, 0), 0, 0))
    machine.one_cycle()
    assert [name for name in ("g003", "g004") if machine.town.gang(name).claims is not None] == ["g003"]
    machine.freeze()


def test_who_was_told_for_whom_room_is_kept_keeps_that_though_another_comes_before() -> None:
    """The second gang of d waits for room that is kept for the first; then one of higher priority comes."""
    machine = Cluster()
    values = [
        Flavor("f", elastic=True),
        cohort("root", "", [("f", {"gpu": 0, "cpu": 3})]),
        cohort("inner", "root", [("f", {"gpu": 1, "cpu": 0})]),
        queue("a", "root", [("f", {"gpu": 5, "cpu": 4})], weight=Fraction(2)),
        queue("b", "inner", [("f", {"gpu": Quota(6, 2), "cpu": Quota(6, 0)})], weight=Fraction(1, 2)),
        queue("c", "root", [("f", {"gpu": Quota(3, 6), "cpu": Quota(6, 1)})]),
        queue("d", "root", [("f", {"gpu": 1, "cpu": Quota(4, 5)})], weight=Fraction(2), preemption=LOWER),
    ]
    machine.start(values=values, twin=True)
    come(machine, ("d", 1, 3, (3, 0), 0, 0), ("b", 1, 2, (3, 2), 0, 0), ("c", 1, 1, (2, 0), 0, 3))
    machine.freeze()
    come(machine, ("d", 1, 1, (2, 0), 0, 0), ("c", 1, 1, (0, 3), 0, 0))
    machine.freeze()
    come(machine, ("d", 1, 1, (2, 2), 5, 0))
    machine.one_cycle()
    told = machine.town.state.explain(machine.town.gang("g004").key)
    assert told is not None
    assert (told.why.detail, told.why.subject) == (Detail.CLAIMED, "ns/g001")


def test_what_a_borrower_only_claims_is_taken_back_within_the_quota_of_a_cohort() -> None:
    """A gang of d that was evicted claims what becomes free, beside the first of b. The next of b goes beyond what b
    owns, within what inner does: it would evict that gang as soon as it is back."""
    machine = Cluster()
    values = [
        Flavor("f", elastic=True),
        cohort("root", "", [("f", {"gpu": 1, "cpu": 6})]),
        cohort("inner", "root", [("f", {"gpu": 2, "cpu": 0})]),
        queue("a", "inner", [("f", {"gpu": 3, "cpu": 5})], strategy=Strategy.STRICT_FIFO, weight=Fraction(2)),
        queue("b", "inner", [("f", {"gpu": 2, "cpu": 3})], strategy=Strategy.STRICT_FIFO, weight=Fraction(1, 2)),
        queue("c", "inner", [("f", {"gpu": 4, "cpu": 5})]),
        queue("d", "root", [("f", {"gpu": 6, "cpu": 5})], weight=Fraction(1, 2)),
    ]
    machine.start(values=values, twin=True)
    come(machine, ("c", 2, 1, (1, 2), 0, 0), ("a", 1, 3, (2, 2), 0, 0), ("c", 3, 3, (1, 0), 5, 0))
    come(machine, ("d", 4, 1, (2, 1), 0, 0))
    machine.one_cycle()
    machine.edit(where="d", gpu=Quota(2), cpu=Quota(6, 0))
    come(machine, ("b", 3, 1, (1, 0), 0, 0))
    machine.freeze()


def test_what_is_taken_back_of_a_claim_is_no_way_around_room_that_is_kept() -> None:
    """In one decision the first of c claims room on nodes, borrowed, and the first of a, passed over, gets room set
    aside. The next of a, which has just come, may take back what c claims, and not what is set aside for the first."""
    machine = Cluster()
    values = [
        Flavor("f"),
        cohort("root", "", [("f", {"gpu": 5, "cpu": 2})]),
        cohort("inner", "root", [("f", {"gpu": 1, "cpu": 0})]),
        queue("a", "inner", [("f", {"gpu": 4, "cpu": 2})], weight=Fraction(1, 2), preemption=LOWER),
        queue("b", "inner", [("f", {"gpu": 0, "cpu": 5})], strategy=Strategy.STRICT_FIFO),
        queue("c", "root", [("f", {"gpu": 2, "cpu": 1})], preemption=LOWER),
        queue(
            "d",
            "inner",
            [("f", {"gpu": 2, "cpu": 4})],
            strategy=Strategy.STRICT_FIFO,
            weight=Fraction(2),
            preemption=LOWER,
        ),
        *(node(f"n{i}", cpu=cpu, gpu=gpu) for i, (cpu, gpu) in enumerate([(2, 4), (2, 3), (3, 3), (2, 4)])),
    ]
    machine.start(values=values, twin=False)
    come(machine, ("c", 1, 1, (2, 1), 0, 0), ("d", 1, 3, (2, 1), 0, 0), ("a", 2, 3, (2, 1), 5, 3))
    machine.edit(where="a", gpu=Quota(0), cpu=Quota(3))
    machine.edit(where="c", gpu=Quota(3), cpu=Quota(3, 3))
    machine.freeze()
    come(machine, ("c", 1, 3, (2, 1), 0, 0), ("a", 1, 3, (0, 1), 0, 0))
    machine.edit(where="d", gpu=Quota(3), cpu=Quota(0))
    machine.town.remove(Workload, ("ns", "g001"))
    machine.edit(where="b", gpu=Quota(3, 2), cpu=Quota(6))
    machine.edit(where="a", gpu=Quota(2), cpu=Quota(5))
    come(machine, ("c", 1, 2, (2, 2), 0, 0))
    machine.freeze()


def test_who_goes_first_by_order_may_make_no_room_on_nodes_and_others_do() -> None:
    """Three of c may go for the second gang of a. The newest stand on two nodes; the older ones on one make room."""
    machine = Cluster()
    none = {"gpu": 0, "cpu": 0}
    nodes = {"n0": (2, 1), "n1": (4, 1), "n2": (2, 6), "n3": (1, 6)}
    values = [
        Flavor("f"),
        cohort("root", "", [("f", none)]),
        queue("a", "root", [("f", {"gpu": 0, "cpu": 6})]),
        queue("b", "root", [("f", none)]),
        queue("c", "root", [("f", {"gpu": Quota(5, 4), "cpu": Quota(5, 3)})]),
        queue("d", "root", [("f", {"gpu": 3, "cpu": 2})]),
        *(node(name, gpu=gpu, cpu=cpu) for name, (gpu, cpu) in nodes.items()),
    ]
    machine.start(values=values, twin=True)
    machine.turn(name="n1", ready=False)
    come(machine, ("c", 1, 2, (2, 2), 0, 0), ("c", 1, 2, (0, 2), 0, 0), ("d", 1, 3, (2, 1), 5, 0))
    machine.one_cycle()
    machine.wait(minutes=4)
    come(machine, ("c", 4, 1, (0, 1), 0, 0))
    machine.one_cycle()
    come(machine, ("a", 2, 1, (0, 3), 5, 0))
    machine.teardown()
    assert all(one.admission is not None for one in machine.town.gangs() if one.queue == "a")


def test_who_was_evicted_for_a_claim_and_is_back_is_not_waited_for() -> None:
    """What it waited for was taken by an edit of quota, and its victim came back in the same decision."""
    machine = Cluster()
    values = [
        Flavor("f", elastic=True),
        cohort("root", "", [("f", {"gpu": 0, "cpu": 5})]),
        cohort("inner", "root", [("f", {"gpu": 1, "cpu": 0})]),
        queue("a", "root", [("f", {"gpu": 6, "cpu": 0})]),
        queue("b", "inner", [("f", {"gpu": 0, "cpu": 2})]),
        queue("c", "root", [("f", {"gpu": 0, "cpu": 0})]),
        queue("d", "inner", [("f", {"gpu": 0, "cpu": 1})]),
    ]
    machine.start(values=values, twin=True)
    come(machine, ("d", 2, 2, (0, 2), 0, 0))
    machine.freeze()
    come(machine, ("b", 1, 2, (3, 1), 0, 0))
    machine.one_cycle()
    machine.edit(where="a", gpu=Quota(1, 2), cpu=Quota(6))
    machine.teardown()


def test_what_is_short_beside_kept_room_may_be_short_without_it_too() -> None:
    """One was refused for the quota that is kept for others; then nodes ran out, whatever is kept."""
    machine = Cluster()
    none = {"gpu": 0, "cpu": 0}
    nodes = {"n0": (3, 2), "n1": (2, 4), "n2": (4, 4), "n3": (4, 6)}
    values = [
        Flavor("f"),
        cohort("root", "", [("f", {"gpu": 0, "cpu": 5})]),
        cohort("inner", "root", [("f", none)]),
        queue("a", "inner", [("f", {"gpu": 6, "cpu": 6})]),
        queue("b", "root", [("f", none)]),
        queue("c", "inner", [("f", {"gpu": 0, "cpu": 2})]),
        queue("d", "root", [("f", {"gpu": 5, "cpu": 4})], weight=Fraction(1, 2)),
        *(node(name, gpu=gpu, cpu=cpu) for name, (gpu, cpu) in nodes.items()),
    ]
    machine.start(values=values, twin=True)

    def ended(name: str) -> None:
        machine.town.remove(Workload, ("ns", name))

    machine.arrive(where="a", many=1, pods=3, asks=(0, 1), priority=0, backoff=0)  # g001
    machine.arrive(where="a", many=2, pods=2, asks=(1, 2), priority=0, backoff=0)  # g002, g003
    machine.arrive(where="c", many=2, pods=2, asks=(1, 3), priority=0, backoff=0)  # g004, g005
    machine.one_cycle()
    machine.freeze()
    ended("g002")
    machine.wait(minutes=67)
    ended("g003")
    machine.arrive(where="d", many=4, pods=3, asks=(0, 3), priority=5, backoff=0)  # g006 to g009
    machine.freeze()
    ended("g005")
    machine.arrive(where="a", many=3, pods=2, asks=(2, 2), priority=5, backoff=0)  # g010 to g012
    machine.wait(minutes=12)
    machine.arrive(where="a", many=4, pods=1, asks=(1, 3), priority=0, backoff=0)  # g013 to g016
    machine.arrive(where="d", many=1, pods=4, asks=(1, 0), priority=5, backoff=3)
    machine.one_cycle()
    machine.freeze()
    other = machine.town.fresh()
    decide(other, machine.town.now, BUDGET)
    said = [state.explain(("ns", "g013")) for state in (machine.town.state, other)]
    assert [verdict and verdict.why.reason for verdict in said] == [Reason.WAITING_FOR_QUOTA, Reason.PLACEMENT_FAILED]


Step = Arrival | tuple[str, Quota, Quota] | tuple[str, int] | str | int
"""Gangs come; an edit of (queue, gpu, cpu); trials that a decision may take; a gang ends, or a cycle, or to rest;
minutes go by."""


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        pytest.param(
            (
                Flavor("f", elastic=False),
                cohort("root", "", [("f", {"gpu": 4, "cpu": 4})]),
                cohort("inner", "root", [("f", {"gpu": 3, "cpu": 0})]),
                queue("a", "root", [("f", {"gpu": Quota(3), "cpu": Quota(0)})], preemption=LOWER),
                queue("b", "root", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("c", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0, 6)})]),
                queue("d", "root", [("f", {"gpu": Quota(4), "cpu": Quota(0)})]),
                *(node(f"n{i}", gpu=gpu, cpu=cpu) for i, (gpu, cpu) in enumerate([(3, 3), (3, 5), (3, 5), (1, 1)])),
            ),
            (
                ("a", 4, 1, (1, 0), 5, 0),
                ("b", 1, 1, (1, 0), 0, 0),
                ("c", 1, 1, (1, 0), 0, 0),
                ("d", 2, 1, (1, 1), 0, 0),
                ("c", 1, 1, (1, 0), 0, 0),
                ("d", 3, 1, (1, 0), 0, 0),
                "cycle",
                11,
                ("d", 1, 1, (0, 1), 0, 0),
                ("a", 1, 1, (1, 1), 0, 0),
                "settle",
            ),
            id="one that outranks it takes the nodes that it freed for itself",
        ),
        pytest.param(
            (
                Flavor("f", elastic=True),
                cohort("root", "", [("f", {"gpu": 6, "cpu": 6})]),
                cohort("inner", "root", [("f", {"gpu": 3, "cpu": 0})]),
                queue(
                    "a", "root", [("f", {"gpu": Quota(2), "cpu": Quota(0, 4)})], weight=Fraction(2), preemption=LOWER
                ),
                queue("b", "inner", [("f", {"gpu": Quota(1), "cpu": Quota(0, 4)})]),
                queue("c", "root", [("f", {"gpu": Quota(1), "cpu": Quota(0)})], weight=Fraction(2)),
                queue("d", "inner", [("f", {"gpu": Quota(1), "cpu": Quota(0, 3)})], weight=Fraction(1, 2)),
            ),
            (
                ("d", 2, 1, (1, 0), 0, 0),
                ("a", 4, 1, (1, 0), 5, 0),
                ("d", 1, 1, (1, 0), 0, 0),
                ("a", 1, 1, (2, 0), 0, 0),
                ("c", 2, 1, (2, 0), 0, 0),
                ("b", 2, 1, (2, 0), 0, 0),
                "g004",
                "rest",
            ),
            id="comes back by its share, and another of its queue that went for it too",
        ),
        pytest.param(
            (
                Flavor("f", elastic=False),
                cohort("root", "", [("f", {"gpu": 4, "cpu": 6})]),
                cohort("inner", "root", [("f", {"gpu": 1, "cpu": 0})]),
                queue("a", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("b", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("c", "root", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("d", "root", [("f", {"gpu": Quota(0), "cpu": Quota(0)})], strategy=Strategy.STRICT_FIFO),
                *(node(f"n{i}", gpu=gpu, cpu=cpu) for i, (gpu, cpu) in enumerate([(2, 2), (1, 6), (2, 1), (1, 1)])),
            ),
            (
                ("d", 1, 1, (1, 0), 0, 0),
                ("a", 2, 2, (1, 0), 0, 0),
                ("d", Quota(6), Quota(6)),
                "cycle",
                ("d", 4, 1, (1, 1), 0, 0),
                ("a", Quota(2), Quota(0)),
                ("a", 1, 1, (0, 1), 0, 0),
                "settle",
            ),
            id="by the next of a strict queue, behind one that claims room",
        ),
        pytest.param(
            (
                Flavor("f", elastic=True),
                cohort("root", "", [("f", {"gpu": 12, "cpu": 0})]),
                cohort("inner", "root", [("f", {"gpu": 0, "cpu": 3})]),
                cohort("deep", "inner", [("f", {"gpu": 2, "cpu": 0})]),
                queue("a", "deep", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("b", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("c", "deep", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("d", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(3)})], preemption=LOWER),
            ),
            (
                ("d", 3, 1, (3, 1), 1, 0),
                ("d", 1, 1, (0, 1), 0, 0),
                ("a", 1, 2, (0, 1), 1, 0),
                ("c", 1, 1, (0, 1), 0, 0),
                ("b", 1, 2, (0, 1), 0, 0),
                "rest",
            ),
            id="by one that outranks it, which lets it take back what it may not itself",
        ),
        pytest.param(
            (
                Flavor("f", elastic=True),
                cohort("root", "", [("f", {"gpu": 4, "cpu": 2})]),
                cohort("inner", "root", [("f", {"gpu": 3, "cpu": 0})]),
                queue("a", "root", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("b", "root", [("f", {"gpu": Quota(0, 5), "cpu": Quota(0, 1)})]),
                queue("c", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0)})], preemption=LOWER),
                queue("d", "root", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
            ),
            (
                ("c", Quota(0), Quota(4)),
                ("c", 2, 1, (0, 1), 0, 0),
                ("a", 1, 3, (0, 1), 0, 0),
                ("d", 1, 2, (0, 1), 0, 0),
                61,
                "cycle",
                ("c", 2, 2, (0, 1), 5, 0),
                "rest",
            ),
            id="by one that outranks it, after others took the room that it had found",
        ),
        pytest.param(
            (
                Flavor("f", elastic=False),
                cohort("root", "", [("f", {"gpu": 4, "cpu": 6})]),
                cohort("inner", "root", [("f", {"gpu": 1, "cpu": 0})]),
                queue("a", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0)})], weight=Fraction(1, 2)),
                queue("b", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                queue("c", "root", [("f", {"gpu": Quota(6), "cpu": Quota(0)})]),
                queue("d", "root", [("f", {"gpu": Quota(0), "cpu": Quota(0)})]),
                *(node(f"n{i}", gpu=gpu, cpu=cpu) for i, (gpu, cpu) in enumerate([(2, 2), (1, 6), (2, 1), (1, 1)])),
            ),
            (
                ("c", 2, 3, (0, 1), 0, 0),
                ("d", 1, 2, (1, 0), 0, 0),
                ("a", 1, 3, (1, 0), 0, 0),
                ("d", Quota(6), Quota(6)),
                "cycle",
                ("d", 3, 1, (1, 1), 0, 0),
                ("a", Quota(2), Quota(0)),
                11,
                ("a", 1, 1, (0, 1), 0, 0),
                ("c", 1, 1, (1, 0), 0, 0),
                ("b", 1, 1, (1, 0), 5, 0),
                "settle",
            ),
            id="by one for whom room is kept",
        ),
        pytest.param(
            (
                Flavor("f", elastic=True),
                cohort("root", "", [("f", {"gpu": 0, "cpu": 1})]),
                cohort("inner", "root", [("f", {"gpu": 0, "cpu": 0})]),
                queue("a", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(0, 6)})], preemption=LOWER),
                queue("b", "inner", [("f", {"gpu": Quota(0), "cpu": Quota(3)})]),
                queue("c", "root", [("f", {"gpu": Quota(2), "cpu": Quota(5)})]),
                queue("d", "root", [("f", {"gpu": Quota(0), "cpu": Quota(3)})], strategy=Strategy.STRICT_FIFO),
            ),
            (
                ("a", 2, 3, (1, 2), 0, 0),
                ("b", 4, 3, (0, 2), 0, 0),
                "rest",
                61,
                "rest",
                ("d", Quota(4), Quota(6)),
                ("b", Quota(3), Quota(0)),
                ("a", 3, 2, (1, 2), 0, 0),
                ("a", 1, 1, (0, 1), 5, 0),
                "rest",
                61,
                "rest",
                ("a", Quota(0), Quota(0)),
                ("d", 1, 3, (3, 3), 0, 0),
                ("d", 1, 1, (1, 0), 0, 0),
                ("d", 4, 1, (0, 1), 5, 0),
                ("b", Quota(6, 5), Quota(2)),
                "settle",
            ),
            id="by the third of a strict queue, whose turn comes when two others have started",
        ),
        pytest.param(
            (
                Flavor("f", elastic=True),
                cohort("root", "", [("f", {"gpu": 2, "cpu": 0})]),
                cohort("inner", "root", [("f", {"gpu": 0, "cpu": 0})]),
                queue("a", "inner", [("f", {"gpu": 3, "cpu": 0})]),
                queue("b", "root", [("f", {"gpu": Quota(3, 6), "cpu": 6})], preemption=LOWER),
                queue("c", "inner", [("f", {"gpu": 0, "cpu": 5})]),
            ),
            (
                ("trials", 3),
                ("b", 2, 2, (0, 1), 0, 0),
                "settle",
                ("b", 4, 2, (1, 1), 5, 0),
                "settle",
                61,
                "settle",
                ("a", 1, 2, (3, 0), 0, 0),
                "settle",
                61,
                "settle",
                ("a", 3, 1, (1, 1), 0, 0),
                ("a", 1, 2, (2, 1), 0, 0),
                "g005",
                ("b", 1, 3, (1, 0), 5, 0),
            ),
            id="by another that came back, or by the next of those who are alike",
        ),
        pytest.param(
            (
                Flavor("f", elastic=True),
                cohort("root", "", [("f", {"gpu": 2, "cpu": 0})]),
                cohort("inner", "root", [("f", {"gpu": 0, "cpu": 0})]),
                queue(
                    "a",
                    "inner",
                    [("f", {"gpu": 3, "cpu": 0})],
                    weight=Fraction(1, 2),
                    strategy=Strategy.STRICT_FIFO,
                ),
                queue("b", "root", [("f", {"gpu": Quota(3, 6), "cpu": 6})], weight=Fraction(2), preemption=LOWER),
                queue("c", "inner", [("f", {"gpu": 0, "cpu": 5})], weight=Fraction(1, 2)),
            ),
            (
                ("trials", 3),
                ("b", 2, 2, (1, 2), 0, 0),
                "cycle",
                ("b", 4, 2, (1, 1), 5, 0),
                61,
                "cycle",
                "settle",
                61,
                "settle",
                ("c", 1, 2, (3, 2), 0, 0),
                61,
                "cycle",
                "settle",
                ("a", 3, 1, (1, 1), 0, 0),
                ("a", 1, 2, (2, 1), 0, 0),
                "g005",
                ("b", 1, 3, (1, 0), 5, 0),
            ),
            id="by another that came back and took what it was to have",
        ),
    ],
)
def test_who_came_back_is_not_evicted_again_before_all_is_at_rest(
    values: tuple[Any, ...], steps: tuple[Step, ...]
) -> None:
    machine = Cluster()
    machine.start(values=[*values], twin=False)
    town = machine.town
    for step in steps:
        if isinstance(step, int):
            town.now += step * MINUTE
        elif step == "cycle":
            machine.one_cycle()
        elif step in ("settle", "rest"):
            town.settle()
        elif isinstance(step, str):
            town.remove(Workload, ("ns", step))
        elif len(step) == 2:
            town.budget = step[1]
        elif len(step) == 3:
            machine.edit(*step)
        else:
            machine.arrive(*step)
    town.now += 61 * MINUTE
    town.settle()


def test_among_those_passed_over_the_first_turn_may_hang_on_one_that_never_fits() -> None:
    """Room is kept for the gangs of a and of d; that of a cannot have it yet. Where the gang of b, which never fits,
    is tried too, d has its turn first, and is admitted; else a has, and what is kept for it binds d."""
    machine = Cluster()
    values = [
        Flavor("f", elastic=True),
        cohort("root", "", [("f", {"gpu": 1, "cpu": 5})]),
        cohort("inner", "root", [("f", {"gpu": 2, "cpu": 0})]),
        queue("a", "inner", [("f", {"gpu": Quota(1, 3), "cpu": 0})]),
        queue("b", "inner", [("f", {"gpu": Quota(0, 1), "cpu": Quota(0, 0)})]),
        queue("c", "root", [("f", {"gpu": 2, "cpu": 5})]),
        queue("d", "root", [("f", {"gpu": 3, "cpu": 0})]),
    ]
    machine.start(values=values, twin=True)
    come(machine, ("a", 1, 2, (1, 0), 0, 0), ("d", 2, 3, (1, 0), 0, 1), ("b", 1, 3, (2, 0), 0, 0))
    come(machine, ("a", 1, 1, (3, 0), 5, 0))
    machine.teardown()
    waits = [machine.town.gang(name) for name in ("g001", "g003")]
    assert all(one.admission is None and one.claims is not None for one in waits)
    assert [d.key[1] for d in decide(machine.town.fresh(), machine.town.now, BUDGET).decisions] == ["g003"]


def test_decisions_that_end_before_anything_is_decided_go_on_where_they_ended() -> None:
    """Whoever was passed over lets others have their turn first that were, too. With one trial in each decision they
    had it again and again, and nobody else ever."""
    quota = [("f", {"gpu": 0})]
    town = Town(
        Flavor("f", elastic=True),
        cohort("root", "", [("f", {"gpu": 2})]),
        cohort("inner", "root", [("f", {"gpu": 3})]),
        *(queue(name, "inner", quota) for name in ("a", "b", "d")),
        gang("b-0", "b", 1, each={"gpu": 2}, created=0),
        gang("a-0", "a", 1, each={"gpu": 3}, created=1),
        *(gang(f"d-{n}", "d", 1, each={"gpu": 1}, created=2 + n) for n in range(2)),
    )
    town.budget = 1
    town.now += 61 * MINUTE
    town.settle()
    assert town.admitted() == ["b-0", "d-0"]
    assert decide(town.fresh(), town.now, BUDGET).decisions == ()


def test_only_who_holds_some_of_what_its_queue_borrows_goes() -> None:
    """A queue borrows a CPU, and its GPUs are its own, of which there are fewer than quota. Another queue wants a GPU
    and a CPU of its own: the one goes that holds the CPU, though it is the oldest, and after that nobody. (If any might
    go whose queue borrows anything, those of GPUs alone would go and come back in turns, and nothing would come to
    rest.)"""
    town = Town(
        Flavor("f"),
        cohort("root"),
        queue("b", "root", [("f", {"gpu": 4, "cpu": 0})]),
        queue("c", "root", [("f", {"gpu": 4, "cpu": 4})]),
        node("n0", gpu=4, cpu=4),
        gang("both", "b", 1, each={"gpu": 1, "cpu": 1}),
    )
    town.settle()
    town.put(*(gang(f"gpu-{n}", "b", 1, each={"gpu": 1}, created=SECOND) for n in range(3)))
    town.settle()
    assert len(town.admitted()) == 4
    town.put(*(gang(f"mine-{n}", "c", 1, each={"gpu": 1, "cpu": 1}, created=2 * SECOND + n) for n in range(2)))
    assert town.settle() == 1
    assert town.admitted() == ["gpu-0", "gpu-1", "gpu-2", "mine-0"]
    verdict = town.state.explain(("ns", "mine-1"))
    assert verdict is not None
    assert verdict.why.detail is Detail.NODES_SHORT


def test_who_holds_what_its_queue_does_not_borrow_is_not_evicted_for_what_it_does() -> None:
    """A queue borrows GPUs and no CPU. A gang of another queue wants its own GPU back, on a node of which CPUs are
    taken: the one that holds these would be within the quota of its queue once the GPU is given back."""
    town = Town(
        Flavor("f"),
        cohort("root"),
        queue("b", "root", [("f", {"gpu": 4, "cpu": Quota(6, 0)})]),
        queue("c", "root", [("f", {"gpu": 3, "cpu": 3})]),
        node("n0", gpu=4, cpu=1),
        node("n3", gpu=2, cpu=6),
        *(gang(f"cpu-{n}", "b", 3, each={"cpu": 1}) for n in range(2)),
        *(gang(f"gpu-{n}", "b", 1, each={"gpu": 2}) for n in range(3)),
    )
    town.settle()
    assert len(town.admitted()) == 5
    town.put(gang("mine", "c", 2, each={"gpu": 1, "cpu": 1}, created=SECOND))
    assert town.settle() == 0
    assert town.pending() == ["mine"]
    verdict = town.state.explain(("ns", "mine"))
    assert verdict is not None
    assert dict(verdict.why.shortfalls[0].unlawful) == {
        "within the quota of their queue or cohort": 2,
        "whose going leaves nodes short": 3,
    }
