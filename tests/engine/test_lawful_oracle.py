"""Eviction against the letter of the promises: every set of victims, tried one by one, on arithmetic of its own.

Small clusters (up to six gangs, three levels) are played to rest by the engine. The oracle knows nothing of ledgers,
tournaments or searches: it sums what gangs ask for, and asks of each set of running gangs whether all of it may go for
a gang that waits (R2, R3), whether that makes room (R4), and whether one of them could be spared.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine.model import (
    MUSTER,
    Claim,
    Evict,
    EvictReason,
    Preemption,
    PreemptionPolicy,
    Quota,
    Rules,
    Strategies,
    Workload,
)
from tests.engine.town import INITIAL_TOO, SECOND, Town, cohort, elastic, gang, queue

HOUR = 3600 * SECOND
RESOURCES = ("gpu", "cpu")
Amounts = dict[str, int]


@dataclass
class Tree:
    """name -> parent, nominal, weight; the limit on borrowing is on gpus."""

    parent: dict[str, str]
    nominal: dict[str, Amounts]
    weight: dict[str, Fraction]
    limit: dict[str, int | None]
    within: dict[str, bool]
    rules: Rules

    def path(self, name: str) -> list[str]:
        out = [name]
        while self.parent[out[-1]]:
            out.append(self.parent[out[-1]])
        return out

    def below(self, name: str) -> Iterator[str]:
        yield name
        for other, parent in self.parent.items():
            if parent == name:
                yield from self.below(other)

    def quota(self, name: str, resource: str) -> int:
        return sum(self.nominal[one][resource] for one in self.below(name))

    def used(self, name: str, resource: str, gangs: Iterable[Workload]) -> int:
        inside = set(self.below(name))
        return sum(asks(one)[resource] for one in gangs if one.queue in inside)

    def share(self, name: str, gangs: Collection[Workload], resources: Iterable[str]) -> Fraction:
        """What is held beyond quota, over all that the root could lend, the largest, over the weight."""
        best = Fraction(0)
        for resource in resources:
            lend = self.quota(self.path(name)[-1], resource)
            over = self.used(name, resource, gangs) - self.quota(name, resource)
            if over > 0 and lend > 0:
                best = max(best, Fraction(over, lend))
        return best / self.weight[name]

    def contested(self, gangs: Collection[Workload], new: Workload) -> list[str]:
        """Of what the gang asks for, that of which there is too little beside these."""
        both = [*gangs, new]
        out = []
        for resource, amount in asks(new).items():
            limit = self.limit[new.queue] if resource == "gpu" else None
            if amount and (
                self.used("root", resource, both) > self.quota("root", resource)
                or (
                    limit is not None and self.used(new.queue, resource, both) > self.quota(new.queue, resource) + limit
                )
            ):
                out.append(resource)
        return out

    def fits(self, gangs: Collection[Workload], new: Workload) -> bool:
        return not self.contested(gangs, new)

    def borrows(self, name: str, gangs: Collection[Workload], resources: Iterable[str]) -> bool:
        return any(self.used(name, res, gangs) > self.quota(name, res) for res in resources)

    def may_go(
        self, victim: Workload, new: Workload, rest: list[Workload], kept: Iterable[Workload], contested: list[str]
    ) -> bool:
        """R2 and R3 for one victim, when `rest` stays and `new` comes. What is `kept` for its own side counts there."""
        resources = [res for res, amount in asks(new).items() if amount]
        held = [res for res in contested if asks(victim)[res]]
        if not held:
            return False
        if victim.queue == new.queue:
            return self.within[new.queue] and victim.priority < new.priority
        mine, theirs = self.path(new.queue), self.path(victim.queue)
        common = next(name for name in mine if name in theirs)
        side, other = mine[mine.index(common) - 1], theirs[theirs.index(common) - 1]
        there = [*rest, victim]
        if not all(self.borrows(name, there, held) for name in theirs[: theirs.index(common)]):
            return False
        after = [*there, new, *(one for one in kept if side in self.path(one.queue))]
        if any(not self.borrows(name, after, resources) for name in (new.queue, side)):
            return True  # within the nominal quota of its queue, or of its side
        share, before = self.share(side, after, resources), self.share(other, after, resources)
        final = self.share(other, [*rest, new], resources)
        return final < before and (share <= final or (Strategies.INITIAL in self.rules.strategies and share < before))

    def lawful(
        self,
        victims: tuple[Workload, ...],
        new: Workload,
        running: list[Workload],
        kept: Collection[Workload],
        contested: list[str],
    ) -> bool:
        """Every member may go, once the others are gone; and then there is room, beside what is `kept` for others."""
        rest = [one for one in running if one not in victims]
        return self.fits([*rest, *kept], new) and all(
            self.may_go(victim, new, rest, kept, contested) for victim in victims
        )

    def spares(
        self, victims: tuple[Workload, ...], new: Workload, running: list[Workload], kept: Collection[Workload]
    ) -> list[str] | None:
        """R4: fewer of them, if there is room when only those go; whether that were lawful does not matter."""
        for size in range(len(victims)):
            for fewer in combinations(victims, size):
                if self.fits([*(one for one in running if one not in fewer), *kept], new):
                    return [one.name for one in fewer]
        return None


def asks(value: Workload) -> Amounts:
    (pod_set,) = value.pod_sets
    each = dict(pod_set.shape.requests)
    return {res: each.get(res, 0) * pod_set.count for res in RESOURCES}


LEAVES = ("a", "b", "c")
amounts = st.fixed_dictionaries({"gpu": st.integers(0, 4), "cpu": st.integers(0, 4)})


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    parent = {"root": "", "inner": "root"}
    parent |= {name: draw(st.sampled_from(("root", "inner"))) for name in LEAVES}
    return Tree(
        parent=parent,
        nominal={name: draw(amounts) for name in parent},
        weight={name: draw(st.sampled_from((Fraction(1), Fraction(2), Fraction(1, 2)))) for name in parent},
        limit={name: draw(st.sampled_from((None, None, None, 0, 2))) for name in LEAVES},
        within={name: draw(st.booleans()) for name in LEAVES},
        rules=draw(st.sampled_from((MUSTER, INITIAL_TOO))),
    )


GANGS = st.lists(
    st.tuples(
        st.sampled_from(LEAVES),
        st.sampled_from((1, 1, 2, 3)),
        st.sampled_from(({"gpu": 1}, {"gpu": 2}, {"cpu": 1}, {"gpu": 1, "cpu": 1}, {"gpu": 2, "cpu": 1})),
        st.sampled_from((0, 0, 5)),
    ),
    min_size=2,
    max_size=6,
)


def town_of(tree: Tree) -> Town:
    town = Town(*elastic("f"), rules=tree.rules)
    for name in ("root", "inner"):
        quota: dict[str, int | Quota] = {**tree.nominal[name]}
        town.put(replace(cohort(name, tree.parent[name], [("f", quota)]), weight=tree.weight[name]))
    for name in LEAVES:
        policy = PreemptionPolicy.LOWER_PRIORITY if tree.within[name] else PreemptionPolicy.NEVER
        own = tree.nominal[name]
        town.put(
            queue(
                name,
                tree.parent[name],
                [("f", {"gpu": Quota(own["gpu"], tree.limit[name]), "cpu": own["cpu"]})],
                weight=tree.weight[name],
                preemption=Preemption(within_cluster_queue=policy),
            )
        )
    return town


def running(town: Town) -> list[Workload]:
    return [one for one in town.gangs() if one.admission is not None and not one.evicted]


def rested(town: Town) -> bool:
    """Nobody is young, nobody was evicted of late, no claim came to nothing a moment ago; no where it does not come to
    that: gangs that ask for different resources stand differently to each other in each, and may take turns, once the
    time is over for which who was evicted is spared."""
    for _ in range(4):
        town.settle()
        town.now += HOUR + SECOND
    return not town.settle()


EXAMPLES = 5000 if os.environ.get("THOROUGH") else 60


# The ordinary run plays the same clusters each time; the thorough one looks for new ones.
@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES == 60)
@given(trees(), GANGS)
def test_at_rest_no_lawful_eviction_is_left(tree: Tree, asked: list[tuple[str, int, Amounts, int]]) -> None:
    town = town_of(tree)
    for at, (where, pods, each, priority) in enumerate(asked):
        town.put(gang(f"g{at}", where, pods, each=each, priority=priority, created=town.now % 10**9 + at))
        town.settle()
        town.now += HOUR
    assume(rested(town))
    there = running(town)
    waiting = [one for one in town.gangs() if one.admission is None]
    for new in waiting:
        kept = [one for one in waiting if one is not new and one.claims is not None]
        contested = tree.contested([*there, *kept], new)
        for size in range(len(there) + 1):
            for victims in combinations(there, size):
                lawful = tree.lawful(victims, new, there, kept, contested)
                lawful = lawful and tree.spares(victims, new, there, kept) is None
                assert not lawful, (new.name, [one.name for one in victims])


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES == 60)
@given(trees(), GANGS)
def test_every_eviction_is_lawful_and_nobody_could_be_spared(
    tree: Tree, asked: list[tuple[str, int, Amounts, int]]
) -> None:
    town = town_of(tree)
    for at, (where, pods, each, priority) in enumerate(asked):
        town.put(gang(f"g{at}", where, pods, each=each, priority=priority, created=at))
        for _ in range(12):
            before = running(town)
            kept = [one for one in town.gangs() if one.admission is None and one.claims is not None]
            plan = town.cycle()
            kept += [
                one for one in town.gangs() if any(isinstance(d, Claim) and d.key == one.key for d in plan.decisions)
            ]
            evicts = [decision for decision in plan.decisions if isinstance(decision, Evict)]
            preemptors = {evict.preemptor for evict in evicts}
            if len(preemptors) == 1 and not [d for d in plan.decisions if type(d).__name__ == "Admit"]:
                (key,) = preemptors
                new = next(one for one in town.gangs() if one.key == key)
                gone = tuple(one for one in before if one.key in {evict.key for evict in evicts})
                others = [one for one in before if not one.evicted]
                if not town.state.leaving - {one.key for one in gone}:
                    check(tree, evicts, gone, new, others, [one for one in kept if one.key != key])
            town.leave()
            town.now += SECOND
        town.now += HOUR


def check(
    tree: Tree,
    evicts: list[Evict],
    gone: tuple[Workload, ...],
    new: Workload,
    others: list[Workload],
    kept: list[Workload],
) -> None:
    contested = tree.contested([*others, *kept], new)
    assert tree.lawful(gone, new, others, (), contested), (new.name, [one.name for one in gone])
    assert tree.spares(gone, new, others, kept) is None, new.name
    reasons = {evict.key: evict.reason for evict in evicts}
    for one in gone:
        assert (reasons[one.key] is EvictReason.IN_CLUSTER_QUEUE) == (one.queue == new.queue)
