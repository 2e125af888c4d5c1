"""Who may be evicted, and what has been found: what the three searches (`classical`, `fair`, `lawful`) share.

Candidates hold some (flavor, resource) that is *contested*: that the gang could get only by eviction. Everything is
tried on the ledger; who asked takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key

from admission.engine.ledger import Charge, Ledger
from admission.engine.model import (
    ClusterQueue,
    EvictReason,
    FlavorResource,
    Key,
    PreemptionPolicy,
    Rules,
    Value,
    Workload,
)
from admission.engine.order import since
from admission.engine.quota import QuotaNode

Fits = Callable[[], bool]
Holders = Callable[[str], Sequence[Workload]]
LocalUsage = Callable[[Workload], float | None]
"""Usage of the gang's LocalQueue, where its ClusterQueue orders by it."""

Target = tuple[Key, EvictReason]


class Found(Value, frozen=True):
    """Who must go; none when no lawful set makes room."""

    victims: tuple[Target, ...] = ()
    enough: bool = False
    """The victims (perhaps none but those who leave already) make room."""
    candidates: int = 0
    """Gangs that were looked at."""
    unlawful: tuple[tuple[str, int], ...] = ()
    """(why not, how many) of those that might not go."""
    until: int | None = None
    """When time alone may make more of them lawful."""
    by_nodes: bool = False
    """Quota could be freed, and the nodes stood in the way."""


def ordered(
    victims: Iterable[Workload],
    queue: str,
    now: int,
    queue_of: Mapping[Key, str],
    local_usage: LocalUsage | None = None,
) -> list[Workload]:
    """Candidates as the classical and the fair search go through them, for a gang of `queue`: already evicted, then
    other queues', [of one queue: more used by its LocalQueue], lower priority, newer reservation, uid, name."""

    def alike(one: Workload) -> tuple[bool, bool, int, int, str, Key]:
        age = -(one.reserved_at or now)
        return (not one.evicted, queue_of[one.key] == queue, one.effective_priority, age, one.uid, one.key)

    if local_usage is None:
        return sorted(victims, key=alike)

    def compare(one: Workload, other: Workload) -> int:
        mine = (not one.evicted, queue_of[one.key] == queue)
        theirs = (not other.evicted, queue_of[other.key] == queue)
        if mine != theirs:
            return -1 if mine < theirs else 1
        if queue_of[one.key] == queue_of[other.key] and one.queue != other.queue:
            used, used_too = local_usage(one), local_usage(other)
            if used is not None and used_too is not None and used != used_too:
                return -1 if used > used_too else 1
        a = (one.effective_priority, -(one.reserved_at or now), one.uid, one.key)
        b = (other.effective_priority, -(other.reserved_at or now), other.uid, other.key)
        return -1 if a < b else int(a > b)

    return sorted(victims, key=cmp_to_key(compare))


def may_always_reclaim(queue: ClusterQueue, rules: Rules) -> bool:
    """Does a queue get back its nominal quota from whoever has it."""
    return (queue.preemption.reclaim_within_cohort or rules.reclaim_default) is PreemptionPolicy.ANY


def spared_until(victim: Workload, rules: Rules, now: int) -> int | None:
    """Until when a gang is safe from fair sharing; None if it is not."""
    since = victim.admitted_at or victim.reserved_at
    if victim.admitted and since + rules.spare_first_ms > now:
        return since + rules.spare_first_ms
    recent = sorted(at for at in victim.fair_evictions if at + rules.spare_window_ms > now)
    if len(recent) >= rules.spare_after:
        return recent[-rules.spare_after] + rules.spare_window_ms
    return None


def back_until(gang: Workload, rules: Rules, now: int) -> int | None:
    """Until when a gang that was evicted for another evicts nobody for its share; None if it may. (Whom it sends might
    send others, and one of those it.)"""
    if gang.evicted == "Preempted" and gang.evicted_at + rules.stays_back_ms > now:
        return gang.evicted_at + rules.stays_back_ms
    return None


def almost_common(one: QuotaNode, other: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """The nodes of the two paths just below the lowest node that both have. Of one tree, and not the same node."""
    path, other_path = one.path(), other.path()
    i, j = len(path) - 1, len(other_path) - 1
    while i > 0 and j > 0 and path[i - 1] is other_path[j - 1]:
        i, j = i - 1, j - 1
    return path[i - 1] if i else path[0], other_path[j - 1] if j else other_path[0]


@dataclass(frozen=True, slots=True)
class Preemptor:
    """For whom others might go, and what is known of them."""

    ledger: Ledger
    gang: Workload
    queue: str
    rules: Rules
    now: int
    holders: Holders
    """The gangs that hold quota of a ClusterQueue."""
    leaving: Collection[Key] = ()
    """Those of all queues that were evicted already."""
    local_usage: LocalUsage | None = None


class Search:
    def __init__(
        self,
        by: Preemptor,
        node: QuotaNode,
        spec: ClusterQueue,
        usage: dict[FlavorResource, int],
        contested: frozenset[FlavorResource],
        fits: Fits | None,
    ) -> None:
        self.ledger = by.ledger
        self.gang = by.gang
        self.node = node
        self.usage = usage
        self.contested = contested
        self.rules = by.rules
        self.now = by.now
        self.holders = by.holders
        self.leaving = by.leaving
        self.fits_on_nodes = fits
        self.local_usage = by.local_usage
        self.within_policy = spec.preemption.within_cluster_queue
        self.reclaim_policy = spec.preemption.reclaim_within_cohort or self.rules.reclaim_default
        self.borrow_policy = spec.preemption.borrow_within_cohort
        self.threshold = spec.preemption.max_priority_threshold
        self.queue_of: dict[Key, QuotaNode] = {}
        self.gone: set[Key] = set()
        """Gangs that leave already, and are no candidates."""
        self.looked_at = 0
        self.unlawful: dict[str, int] = {}
        self.by_nodes = False
        self.out: dict[Key, Charge] = {}
        """Taken out of the quota tree alone."""

    def run(self) -> Found:
        raise NotImplementedError

    # -- candidates

    def allowed(self, victim: Workload, policy: PreemptionPolicy) -> bool:
        """By priority and age."""
        if policy is PreemptionPolicy.ANY:
            return True
        if policy is PreemptionPolicy.NEVER:
            return False
        if victim.effective_priority < self.gang.effective_priority:
            return True
        return (
            policy is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY
            and victim.effective_priority == self.gang.effective_priority
            and since(self.gang) < since(victim)
        )

    def of_queue(self, node: QuotaNode, policy: PreemptionPolicy) -> list[Workload]:
        """Gangs of a queue that hold something contested and that the policy lets go."""
        out = []
        charges, contested, gone, whoever = (
            self.ledger.charges,
            self.contested,
            self.gone,
            policy is PreemptionPolicy.ANY,
        )
        for victim in self.holders(node.name):
            key = victim.key
            charge = charges.get(key)
            if charge is None or key == self.gang.key or key in gone or charge.pairs.isdisjoint(contested):
                continue
            self.looked_at += 1
            if victim.unmanaged:
                self.refuse("that nobody here stops")
                continue
            if not whoever and not self.allowed(victim, policy):
                self.refuse("of too high a priority" if policy is not PreemptionPolicy.NEVER else "protected by policy")
                continue
            self.queue_of[key] = node
            out.append(victim)
        return out

    def refuse(self, why: str) -> None:
        self.unlawful[why] = self.unlawful.get(why, 0) + 1

    def order(self, victims: Iterable[Workload]) -> list[Workload]:
        return ordered(
            victims,
            self.node.name,
            self.now,
            {key: node.name for key, node in self.queue_of.items()},
            self.local_usage,
        )

    # -- the book

    def exceeds(self, node: QuotaNode) -> bool:
        """Does this subtree hold more than its quota of anything contested."""
        return node.borrowing(self.contested)

    def fits(self, allow_borrowing: bool = True) -> bool:
        """Is there room for the gang now. Its own usage must not be charged."""
        return self.quota(allow_borrowing) and (self.fits_on_nodes is None or self.fits_on_nodes())

    def quota(self, allow_borrowing: bool = True) -> bool:
        node = self.node
        if not allow_borrowing and not node.holds(self.usage):
            return False
        return node.fits(self.usage)

    def take(self, key: Key) -> Charge:
        """Without this gang; where quota alone decides, nothing else is moved."""
        if self.fits_on_nodes is not None:
            return self.ledger.release(key)
        charge = self.out[key] = self.ledger.charges[key]
        self.queue_of[key].move_all(charge.usage, -1)
        return charge

    def give(self, charge: Charge) -> None:
        """With it again."""
        if self.fits_on_nodes is not None:
            self.ledger.charge(charge)
        else:
            self.queue_of[charge.key].move_all(self.out.pop(charge.key).usage, 1)

    def give_all(self) -> None:
        """With everybody again who was taken out of quota alone."""
        for charge in list(self.out.values()):
            self.give(charge)

    def put_back(self, taken: Sequence[tuple[Charge, EvictReason]], allow_borrowing: bool = True) -> list[Target]:
        """Of those removed, in this order, who must stay away: the others are put back, last first. The last one is
        not tried, for without it there was no room."""
        needed = [taken[-1]]
        for entry in reversed(taken[:-1]):
            self.give(entry[0])
            if not self.fits(allow_borrowing):
                self.take(entry[0].key)
                needed.append(entry)
        return [(charge.key, reason) for charge, reason in reversed(needed)]

    def found(self, victims: Sequence[Target] | None, until: int | None = None) -> Found:
        return Found(
            victims=tuple(victims or ()),
            enough=victims is not None,
            candidates=self.looked_at,
            unlawful=tuple(sorted(self.unlawful.items())),
            until=until,
            by_nodes=self.by_nodes,
        )
