"""The lawful set of victims: who may be evicted for a gang, and which of them must be.

Everything is tried on the ledger and taken back. Candidates hold some (flavor, resource) that is *contested*: that the
gang could get only by eviction. Those of its own queue may go by the queue's own policy; those of other queues only
while their queue, and every cohort between it and the common one, holds more than its quota of something contested.

Three rules for the set:

*Classical* (shares do not count). Candidates over which the gang has a hierarchical advantage (a subtree around its
queue, and not around theirs, has quota for it), those it outranks, and its own queue's; with borrowing allowed or not,
in an order of attempts; removed one by one until the gang fits, then put back in reverse while it still fits.

*Fair* (shares count). The queue with the largest share, found from the root down, gives its next candidate, if the
gang's side would hold no more than the victim's side then has (final share), or, for what is left over, less than the
victim's side had (initial share). A queue within its nominal quota need not compare. Then as above.

*Lawful* (the promises). Candidates go in one order (lowest priority, newest, least lost work), each only if it is
lawful when its turn comes; the shortest prefix that makes room is kept; then each member that proves unnecessary is
spared; and every member must be lawful in the final set, on the same book that admission sees: reclaim needs the
victim's side to borrow some of what the victim holds (the other two: anything contested), fair sharing needs the share
test to hold and the victim's share to fall by its going. Who fails is ruled out, and the search starts again without.
Where this order finds no set, others are walked through, as far as that is little work. Gangs that are leaving already
cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cmp_to_key
from typing import NamedTuple

from admission.engine.flavors import Assignment, Mode, Oracle
from admission.engine.ledger import Charge, Emptied, Ledger
from admission.engine.model import (
    ClusterQueue,
    EvictReason,
    FlavorResource,
    Key,
    PreemptionPolicy,
    Rules,
    Strategies,
    Usage,
    Value,
    Workload,
)
from admission.engine.order import since
from admission.engine.quota import AsIf, QuotaNode, Share, Tree

Fits = Callable[[], bool]
Holders = Callable[[str], Sequence[Workload]]
LocalUsage = Callable[[Workload], float | None]
"""Usage of the gang's LocalQueue, where its ClusterQueue orders by it."""

Target = tuple[Key, EvictReason]
Amounts = tuple[tuple[FlavorResource, int], ...]

_WITHIN = "within the quota of their queue or cohort"
_NOT_ASKED = "of other queues, and reclaimWithinCohort is Never"
_NO_LARGER = "with no larger share, or spared"
_TOO_SOON = "spared by one that was evicted itself of late"
_NOT_TOGETHER = "within quota once the others are gone"
_STILL_SHORT = "whose going leaves nodes short"
_ROUNDS = 8
"""How often the lawful search may rule victims out and start again."""
_LOOKS = 64
"""How often it may ask whether there is room when those who would go first make none ..."""
_FEW = 16
"""... and among how many at least."""
_MANY = 32
"""More victims than these are taken off the book of nodes one by one: to lay all over it for each question costs the
square of their number."""


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


def targets(
    ledger: Ledger,
    gang: Workload,
    queue: str,
    assignment: Assignment,
    rules: Rules,
    *,
    now: int,
    holders: Holders,
    leaving: Collection[Key] = (),
    fits: Fits | None = None,
    local_usage: LocalUsage | None = None,
) -> Found:
    """Whom to evict so that `gang` gets what `assignment` wants in `queue`.

    holders: the gangs that hold quota of a ClusterQueue. leaving: those of all queues that were evicted already. fits:
    is there room now, on nodes too; asked with victims removed. None: quota alone decides, and the search moves nothing
    but quota.
    """
    return _search(
        ledger,
        gang,
        queue,
        assignment.usage,
        assignment.need_preemption(),
        rules,
        now=now,
        holders=holders,
        leaving=leaving,
        fits=fits,
        local_usage=local_usage,
    )


def oracle(
    ledger: Ledger,
    gang: Workload,
    queue: str,
    rules: Rules,
    *,
    now: int,
    holders: Holders,
    leaving: Collection[Key] = (),
    local_usage: LocalUsage | None = None,
    asked: dict[tuple[FlavorResource, int], Found] | None = None,
) -> Oracle:
    """What eviction could do for one (flavor, resource), by the same search; quota alone decides. asked: where to note
    what was found, by (flavor, resource) and amount."""

    def ask(node: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
        found = _search(
            ledger,
            gang,
            queue,
            {fr: amount},
            frozenset((fr,)),
            rules,
            now=now,
            holders=holders,
            leaving=leaving,
            local_usage=local_usage,
        )
        if asked is not None:
            asked[fr, amount] = found
        if not found.enough:
            return Mode.NO_CANDIDATES, node.borrowing_height(fr, amount)[0]
        keys = dict.fromkeys([*(key for key, _ in found.victims), *(sorted(leaving) if rules.promises else ())])
        own = any(ledger.charges[key].queue == queue for key, _ in found.victims)
        with ledger.as_if_gone(ledger.charges[key] for key in keys if key in ledger.charges):
            return Mode.PREEMPT if own else Mode.RECLAIM, node.borrowing_height(fr, amount)[0]

    return ask


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


def _search(
    ledger: Ledger,
    gang: Workload,
    queue: str,
    usage: Usage,
    contested: frozenset[FlavorResource],
    rules: Rules,
    *,
    now: int,
    holders: Holders,
    leaving: Collection[Key] = (),
    fits: Fits | None = None,
    local_usage: LocalUsage | None = None,
) -> Found:
    node = ledger.tree.queue(queue)
    if node is None or not isinstance(node.spec, ClusterQueue):
        return Found()
    kind = _Lawful if rules.promises else _Fair if rules.fair_sharing else _Classical
    search = kind(
        ledger, gang, node, node.spec, dict(usage), contested, rules, now, holders, leaving, fits, local_usage
    )
    mark = ledger.mark()
    try:
        return search.run()
    finally:
        ledger.rollback(mark)


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
    if gang.evicted == "Preempted" and gang.evicted_at + rules.spare_first_ms > now:
        return gang.evicted_at + rules.spare_first_ms
    return None


def almost_common(one: QuotaNode, other: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """The nodes of the two paths just below the lowest node that both have. Of one tree, and not the same node."""
    path, other_path = one.path(), other.path()
    i, j = len(path) - 1, len(other_path) - 1
    while i > 0 and j > 0 and path[i - 1] is other_path[j - 1]:
        i, j = i - 1, j - 1
    return path[i - 1] if i else path[0], other_path[j - 1] if j else other_path[0]


# ---------------------------------------------------------------- what all three share


class _Search:
    def __init__(
        self,
        ledger: Ledger,
        gang: Workload,
        node: QuotaNode,
        spec: ClusterQueue,
        usage: dict[FlavorResource, int],
        contested: frozenset[FlavorResource],
        rules: Rules,
        now: int,
        holders: Holders,
        leaving: Collection[Key],
        fits: Fits | None,
        local_usage: LocalUsage | None,
    ) -> None:
        self.ledger = ledger
        self.gang = gang
        self.node = node
        self.usage = usage
        self.contested = contested
        self.rules = rules
        self.now = now
        self.holders = holders
        self.leaving = leaving
        self.fits_on_nodes = fits
        self.local_usage = local_usage
        self.within_policy = spec.preemption.within_cluster_queue
        self.reclaim_policy = spec.preemption.reclaim_within_cohort or rules.reclaim_default
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


# ---------------------------------------------------------------- classical


class _Candidate(Value, frozen=True):
    victim: Workload
    common: QuotaNode | None
    """The lowest node above both queues; None in the gang's own queue."""
    reason: EvictReason
    without_borrowing: bool
    """May go only if the gang's queue does not borrow in the end."""


class _Classical(_Search):
    def run(self) -> Found:
        own = [
            _Candidate(victim, None, EvictReason.IN_CLUSTER_QUEUE, False)
            for victim in (
                self.of_queue(self.node, self.within_policy) if self.within_policy is not PreemptionPolicy.NEVER else ()
            )
        ]
        by_advantage, by_priority = self._others()
        forbidden = self.borrow_policy is PreemptionPolicy.NEVER
        if not (by_advantage or by_priority) or (forbidden and not self._under_nominal()):
            attempts: tuple[bool, ...] = (True,)
        elif forbidden and not by_advantage:
            attempts = (False, True)
        else:
            attempts = (True, False)
        candidates = [*by_advantage, *by_priority, *own]
        attempts = tuple(borrowing for borrowing in attempts if self._helps(candidates, borrowing))
        if not attempts:
            return self.found(None)
        lists = [self._sorted(one) for one in (by_advantage, by_priority, own)]
        every = [c for one in lists for c in one if c.victim.evicted]
        every += [c for one in lists for c in one if not c.victim.evicted]
        for borrowing in attempts:
            with self.ledger.trial():
                victims = self._attempt(every, borrowing)
                self.give_all()
                if victims is not None:
                    return self.found(victims)
        return self.found(None)

    def _sorted(self, candidates: list[_Candidate]) -> list[_Candidate]:
        by_key = {candidate.victim.key: candidate for candidate in candidates}
        return [by_key[victim.key] for victim in self.order(c.victim for c in candidates)]

    def _under_nominal(self) -> bool:
        """Strictly, in everything contested."""
        node = self.node
        return all(node.usage.get(fr, 0) < node.subtree.get(fr, 0) for fr in self.contested)

    def _others(self) -> tuple[list[_Candidate], list[_Candidate]]:
        by_advantage: list[_Candidate] = []
        by_priority: list[_Candidate] = []
        if self.node.parent is None or self.reclaim_policy is PreemptionPolicy.NEVER:
            return by_advantage, by_priority
        rest = dict(self.usage)

        def holds(node: QuotaNode) -> bool:
            fit = node.holds(rest)
            for fr, amount in rest.items():
                rest[fr] = max(0, amount - node.local_available(fr))
            return fit

        advantage = holds(self.node)
        below = self.node
        for common in self.node.path()[1:]:
            for node in self._borrowers(common, below):
                for victim in self.of_queue(node, self.reclaim_policy):
                    if advantage:
                        by_advantage.append(_Candidate(victim, common, EvictReason.IN_COHORT_RECLAMATION, False))
                    elif self._outranked(victim):
                        reason = EvictReason.IN_COHORT_RECLAIM_WHILE_BORROWING
                        by_priority.append(_Candidate(victim, common, reason, False))
                    else:
                        by_priority.append(_Candidate(victim, common, EvictReason.IN_COHORT_RECLAMATION, True))
            advantage = holds(common) or advantage
            below = common
        return by_advantage, by_priority

    def _borrowers(self, common: QuotaNode, skip: QuotaNode) -> Iterator[QuotaNode]:
        """Queues below `common` that borrow something contested, as does every cohort on the way to them."""
        for child in common.children:
            if child is skip or not self.exceeds(child):
                continue
            if child.is_queue:
                yield child
            else:
                yield from self._borrowers(child, skip)

    def _outranked(self, victim: Workload) -> bool:
        """May it go although the gang's queue borrows."""
        if self.borrow_policy is PreemptionPolicy.NEVER or victim.effective_priority >= self.gang.effective_priority:
            return False
        return self.threshold is None or victim.effective_priority <= self.threshold

    def _helps(self, candidates: list[_Candidate], borrowing: bool) -> bool:
        """Would there be quota if all were gone that may go."""
        charges = self.ledger.charges
        gone = [charges[c.victim.key] for c in candidates if not (borrowing and c.without_borrowing)]
        for charge in gone:
            self.queue_of[charge.key].move_all(charge.usage, -1)
        enough = self.quota(borrowing)
        for charge in gone:
            self.queue_of[charge.key].move_all(charge.usage, 1)
        return enough

    def _attempt(self, candidates: list[_Candidate], borrowing: bool) -> list[Target] | None:
        taken: list[tuple[Charge, EvictReason]] = []
        for candidate in candidates:
            if not self._valid(candidate, borrowing):
                continue
            taken.append((self.take(candidate.victim.key), candidate.reason))
            if self.fits(borrowing):
                return self.put_back(taken, borrowing)
        return None

    def _valid(self, candidate: _Candidate, borrowing: bool) -> bool:
        if candidate.common is None:
            return True
        if borrowing and candidate.without_borrowing:
            return False
        for node in self.queue_of[candidate.victim.key].path():
            if node is candidate.common:
                return True
            if not self.exceeds(node):
                return False
        return True


# ---------------------------------------------------------------- fair


class _Fair(_Search):
    def run(self) -> Found:
        victims = []
        if self.within_policy is not PreemptionPolicy.NEVER:
            victims += self.of_queue(self.node, self.within_policy)
        if self.node.parent is not None and self.reclaim_policy is not PreemptionPolicy.NEVER:
            for node in self.node.root.queues():
                if node is not self.node and self.exceeds(node):
                    victims += self.of_queue(node, self.reclaim_policy)
        if not victims:
            return self.found(None)
        self.taken: list[tuple[Charge, EvictReason]] = []
        self.own_taken = False
        self._come(1)
        ordered = self.order(victims)
        done, rest = self._first(ordered, self.rules.strategies[0])
        if not done and self.own_taken and "FairSharingReevaluatePreemptionCandidates" in self.rules.gates:
            done, rest = self._first(rest, self.rules.strategies[0])
        if not done and len(self.rules.strategies) > 1:
            done = self._second(rest)
        self._come(-1)
        found = self.found(self.put_back(self.taken) if done else None)
        self.give_all()
        return found

    def _come(self, sign: int) -> None:
        """The gang holds what it asks for, or no more: for the shares."""
        self.node.move_all(self.usage.items(), sign)

    def _take(self, victim: Workload, reason: EvictReason) -> bool:
        """Remove it; True when there is room then."""
        self.taken.append((self.take(victim.key), reason))
        self._come(-1)
        room = self.fits()
        self._come(1)
        return room

    def _first(self, victims: list[Workload], strategy: Strategies) -> tuple[bool, list[Workload]]:
        field = _Field(self, victims)
        left: list[Workload] = []
        node = self.node
        within = "FairSharingPreemptWithinNominal" in self.rules.gates and all(
            node.usage.get(fr, 0) <= node.subtree.get(fr, 0) for fr in self.contested
        )
        while (queue := field.next()) is not None:
            waiting = field.victims[queue.name]
            if queue is node:
                self.own_taken = True
                if self._take(waiting.pop(0), EvictReason.IN_CLUSTER_QUEUE):
                    return True, left
                continue
            if within:
                if self._take(waiting.pop(0), EvictReason.IN_COHORT_RECLAMATION):
                    return True, left
                continue
            mine, theirs = almost_common(node, queue)
            share, before = mine.share(), theirs.share()
            while waiting:
                victim = waiting.pop(0)
                usage = self.ledger.charges[victim.key].usage
                queue.move_all(usage, -1)
                after = theirs.share()
                queue.move_all(usage, 1)
                if share <= after if strategy is Strategies.FINAL else share < before:
                    if self._take(victim, EvictReason.IN_COHORT_FAIR_SHARING):
                        return True, left
                    break  # another queue may have the larger share now
                left.append(victim)
        return False, left

    def _second(self, victims: list[Workload]) -> bool:
        field = _Field(self, victims)
        while (queue := field.next()) is not None:
            victim = field.victims[queue.name].pop(0)
            mine, theirs = almost_common(self.node, queue) if queue is not self.node else (queue, queue)
            if mine.share() < theirs.share() and self._take(victim, EvictReason.IN_COHORT_FAIR_SHARING):
                return True
            field.drop(queue)
        return False


class _Field:
    """Whose turn it is to give a victim: from the root down, the child with the largest share."""

    def __init__(self, search: _Fair, victims: list[Workload]) -> None:
        self.node = search.node
        self.ancestors = set(search.node.path()[1:])
        self.victims: dict[str, list[Workload]] = {}
        for victim in victims:
            self.victims.setdefault(search.queue_of[victim.key].name, []).append(victim)
        self.rank = {victim.key: i for i, victim in enumerate(victims)}
        self.pruned: set[QuotaNode] = set()

    def drop(self, queue: QuotaNode) -> None:
        self.pruned.add(queue)

    def next(self) -> QuotaNode | None:
        if self.node.parent is None:
            return self.node if self.victims.get(self.node.name) and self.node not in self.pruned else None
        root = self.node.root
        while root not in self.pruned:
            found = self._descend(root)
            if found is not None:
                return found
        return None

    def _descend(self, cohort: QuotaNode) -> QuotaNode | None:
        """None when something was pruned on the way: to be asked again."""
        queue: QuotaNode | None = None
        below: QuotaNode | None = None
        queue_share = below_share = None
        for child in cohort.children:
            if child in self.pruned:
                continue
            share = child.share()
            if child.is_queue:
                if (not share.borrowing and child is not self.node) or not self.victims.get(child.name):
                    self.pruned.add(child)
                elif queue is None or queue_share is None or self._before(share, child, queue_share, queue):
                    queue, queue_share = child, share
            elif not share.borrowing and child not in self.ancestors:
                self.pruned.add(child)
            elif below_share is None or share >= below_share:
                below, below_share = child, share
        if queue is None and below is None:
            self.pruned.add(cohort)
            return None
        if below is not None and (queue_share is None or (below_share is not None and below_share >= queue_share)):
            return self._descend(below)
        return queue

    def _before(self, share: Share, queue: QuotaNode, other_share: Share, other: QuotaNode) -> bool:
        """Larger share first; of equal ones, the one whose next victim stands first in the order of victims."""
        if share != other_share:
            return share > other_share
        return self.rank[self.victims[queue.name][0].key] < self.rank[self.victims[other.name][0].key]


# ---------------------------------------------------------------- lawful


class _Side(NamedTuple):
    """How a queue and the gang's stand to each other."""

    mine: QuotaNode
    theirs: QuotaNode
    """The nodes of the two paths just below what both have in common."""
    between: tuple[QuotaNode, ...]
    """From the queue up to `theirs`."""


class _Around(NamedTuple):
    """Who holds what, in the queues around one."""

    borrowers: dict[QuotaNode, Share]
    """Who borrows something contested, all the way up; and the share of that side."""
    holding: list[tuple[QuotaNode, Amounts]]
    """What they hold of what is asked for."""
    within: list[QuotaNode]
    """The others."""


class _Who(NamedTuple):
    """Of one queue that borrows: `holders` held something, `candidates` of them what may be taken back."""

    holders: Sequence[Workload]
    asked: int
    candidates: list[Workload]


class _Claims:
    """What is claimed in the queues of a tree, and the tree without it."""

    def __init__(self, held: dict[QuotaNode, Amounts]) -> None:
        self.held = held
        self.without = AsIf(held.items(), -1)


class _Seen:
    """A tree as it is seen from one queue, without those who leave: what searches found out, for the next of them."""

    def __init__(self, node: QuotaNode, claims: _Claims) -> None:
        if node in claims.held:
            claims = _Claims({at: usage for at, usage in claims.held.items() if at is not node})
        self.claims = claims.held
        """What is claimed in other queues."""
        self.unclaimed = claims.without
        self.sides: dict[QuotaNode, _Side] = {}
        self.around: dict[tuple[frozenset[FlavorResource], tuple[FlavorResource, ...]], _Around] = {}
        self.who: dict[tuple[QuotaNode, frozenset[FlavorResource]], _Who] = {}


class _Lawful(_Search):
    """The law is about quota: it is tried on the tree alone, with the gang's usage charged. Nodes are asked last."""

    def run(self) -> Found:
        ledger, root = self.ledger, self.node.root
        self.going: list[Charge] = []
        """Of those who leave already. Their quota in this tree is out of it during the search."""
        for key in sorted(self.leaving):
            charge = ledger.charges.get(key)
            if charge is None or key == self.gang.key:
                continue
            at = ledger.tree.queue(charge.queue)
            if at is not None and at.root is root:
                self.gone.add(charge.key)
            elif charge.admission is None:
                continue  # of other trees only the nodes matter
            self.going.append(charge)
        if not self.gone:
            return self._run()
        with ledger.remembered(root, frozenset(self.gone), self._without_gone):
            return self._run()

    def _without_gone(self) -> AsIf:
        held = self.ledger.usage_by_queue(charge for charge in self.going if charge.key in self.gone)
        return AsIf(((node, usage.items()) for node, usage in held.items()), -1)

    def fits(self, allow_borrowing: bool = True) -> bool:
        if not self.node.fits(self.usage):
            return False
        if self.fits_on_nodes is None:
            return True
        if not self.going:
            return self.fits_on_nodes()
        with self.ledger.gone_from_nodes(self.going):
            return self.fits_on_nodes()

    def _run(self) -> Found:
        self.until: int | None = None
        self.back = back_until(self.gang, self.rules, self.now)
        self.by_order = False
        """Some were not lawful when their turn came, and without them there was no quota."""
        self.ruled_out = 0
        """Candidates that were not lawful in the set with which there was room."""
        self.barred: set[QuotaNode] = set()
        """Queues of which nobody may go as long as nobody else does."""
        self.resources = frozenset(fr[1] for fr in self.usage) if self.rules.contested_share else None
        self.claims: list[tuple[QuotaNode, Amounts, QuotaNode]] = []
        """What is claimed on the sides of those who may have to go; and where they meet the gang's."""
        self.claims_out: QuotaNode | None = None
        """The claims on other sides than this of the gang are out of the tree now."""
        if self.going and self.fits():
            return self.found((), self.until)
        ledger, gone = self.ledger, frozenset(self.gone)
        self.seen = ledger.remembered(
            self.node.root,
            (self.node, gone),
            lambda: _Seen(self.node, ledger.remembered(self.node.root, (_Claims, gone), self._claims)),
        )
        own = [] if self.within_policy is PreemptionPolicy.NEVER else self.of_queue(self.node, self.within_policy)
        around = self._around()
        why = _NOT_ASKED if self.reclaim_policy is PreemptionPolicy.NEVER else _WITHIN
        for node in around.within:
            held = len(self.holders(node.name))
            self.looked_at += held
            if held:
                self.unlawful[why] = self.unlawful.get(why, 0) + held
        borrowers, holding = list(around.borrowers), list(around.holding)
        if own:
            holding.append((self.node, self._held(self.node)))
        elif safe := self._safe(around.borrowers):
            for node in safe:
                held = len(self.holders(node.name))
                self.looked_at += held
                self.unlawful[_NO_LARGER] = self.unlawful.get(_NO_LARGER, 0) + held
            borrowers = [node for node in borrowers if node not in safe]
            holding = [entry for entry in holding if entry[0] not in safe]
        if not self._room_without(holding):
            self.looked_at += sum(len(self.holders(node.name)) for node in borrowers)
            return self.found(None)
        looked_at = {self._side(queue).theirs for queue in borrowers}
        self.claims = [
            (node, usage, side.mine)
            for node, usage in self.seen.claims.items()
            if (side := self._side(node)).theirs in looked_at
        ]
        own, others = self._sorted(own), self._sorted(self._who_borrow(borrowers))
        for victims in [others, [*own, *others]] if own else [others]:
            if not victims:
                continue
            found = self._without_unlawful(victims)
            if found is None and (self.by_nodes or self.by_order):
                found = self._in_any_order(victims)
            if found is not None:
                return self.found(found, self.until)
        for why, most in (_NOT_TOGETHER, self.ruled_out), (_STILL_SHORT, self.looked_at if self.by_nodes else 0):
            many = min(most, self.looked_at - sum(self.unlawful.values()))
            if many > 0:
                self.unlawful[why] = many
        return self.found(None, self.until)

    def _claims(self) -> _Claims:
        claims = self.ledger.claims_under(self.node.root).values()
        held = self.ledger.usage_by_queue(claim.charge for claim in claims)
        return _Claims({node: tuple(usage.items()) for node, usage in held.items()})

    def _around(self) -> _Around:
        if self.reclaim_policy is PreemptionPolicy.NEVER:
            return _Around({}, [], [node for node in self.node.root.queues() if node is not self.node])
        at = (self.contested, tuple(self.usage))
        known = self.seen.around.get(at)
        if known is None:
            known = self.seen.around[at] = _Around({}, [], [])
            with self.seen.unclaimed:
                for node in self.node.root.queues():
                    if node is self.node:
                        continue
                    side = self._side(node)
                    if self._borrow(side.between, self.contested):
                        known.borrowers[node] = side.theirs.share(None, self.resources)
                        known.holding.append((node, self._held(node)))
                    else:
                        known.within.append(node)
        return known

    def _held(self, node: QuotaNode) -> Amounts:
        """What a queue holds of what the gang asks for."""
        return tuple((fr, used) for fr in self.usage if (used := node.usage.get(fr, 0)))

    def _room_without(self, holding: list[tuple[QuotaNode, Amounts]]) -> bool:
        """Would there be quota if all of this were gone: a bound that costs little."""
        if not any(amounts for _, amounts in holding):
            return False
        left = self.node.available_without(self.usage, holding)
        return all(left[fr] >= amount for fr, amount in self.usage.items())

    def _side(self, queue: QuotaNode) -> _Side:
        side = self.seen.sides.get(queue)
        if side is None:
            mine, theirs = almost_common(self.node, queue)
            path = queue.path()
            side = self.seen.sides[queue] = _Side(mine, theirs, path[: path.index(theirs) + 1])
        return side

    def _take_claims_out(self, mine: QuotaNode | None) -> None:
        """What the victim's side only claims it does not hold: it makes nobody there a borrower. All sides that meet
        the gang's above this node of it are without their claims from now on; none of them, where it is None."""
        if mine is self.claims_out:
            return
        for node, usage, at in self.claims:
            if at is self.claims_out:
                node.move_all(usage, 1)
            elif at is mine:
                node.move_all(usage, -1)
        self.claims_out = mine

    def _safe(self, shares: Mapping[QuotaNode, Share]) -> set[QuotaNode]:
        """Of these queues nobody may go, whoever else goes: the gang is entitled to nothing there, and their side's
        share (given) is not the larger one. (It could only fall; that of the gang's side cannot, for nobody there is
        among the candidates.)"""
        out: set[QuotaNode] = set()
        above = {node for queue in shares for node in queue.path()}
        ours: dict[QuotaNode, Share | None] = {}
        for queue, theirs in shares.items():
            mine = self._side(queue).mine
            if mine in above:
                continue
            if mine not in ours:
                ours[mine] = self._share_unless_entitled(mine)
            share = ours[mine]
            if share is not None and not share < theirs:
                out.add(queue)
        return out

    def _share_unless_entitled(self, mine: QuotaNode) -> Share | None:
        """The share of the gang's side with its usage charged; None if it is entitled to it there."""
        for node, rest in Tree.rising(self.node, self.usage):
            if node is self.node or node is mine:
                if not any(node.exceeds(fr, rest.get(fr, 0)) for fr in self.usage):
                    return None
                if node is mine:
                    return node.share(rest, self.resources)
        return None

    def _sorted(self, victims: Iterable[Workload]) -> list[Workload]:
        """Lowest priority, then newest, then least lost work, then uid and name."""
        return sorted(
            victims,
            key=lambda v: (v.effective_priority, -(v.admitted_at or v.reserved_at), v.run_ms, v.uid, v.key),
        )

    # -- the tree, moved by hand; whoever moves it moves it back

    def _move(self, victim: Workload, sign: int) -> None:
        self.queue_of[victim.key].move_all(self.ledger.charges[victim.key].usage, sign)

    def _enter(self, sign: int) -> None:
        self.node.move_all(self.usage.items(), sign)

    # -- the law

    @staticmethod
    def _borrow(nodes: Iterable[QuotaNode], frs: Collection[FlavorResource]) -> bool:
        """Does each of these, a queue and every cohort between it and the common one, hold more than its quota of any
        of these."""
        for node in nodes:  # noqa: SIM110  (asked for every candidate)
            if not node.borrowing(frs):
                return False
        return True

    def _who_borrow(self, queues: list[QuotaNode]) -> list[Workload]:
        """Gangs of queues that borrow that hold some of what their queue borrows: who goes gives something of that
        back, and nobody goes for what others of its queue hold too much of. (So each eviction leaves less beyond quota,
        and they come to an end.)"""
        if not queues:
            return []
        out: list[Workload] = []
        same = self.reclaim_policy is PreemptionPolicy.ANY and self.gang.key not in self.ledger.charges
        """Who the gang is makes no difference."""
        with self.seen.unclaimed:
            for queue in queues:
                at = (queue, self.contested)
                known = self.seen.who.get(at) if same else None
                if known is None or known.holders != self.holders(queue.name):
                    before = self.looked_at
                    candidates = self.of_queue(queue, self.reclaim_policy)
                    holds = (self.ledger.charges[victim.key].pairs & self.contested for victim in candidates)
                    between = self._side(queue).between
                    borrow = [v for v, frs in zip(candidates, holds, strict=True) if self._borrow(between, frs)]
                    for _ in range(len(candidates) - len(borrow)):
                        self.refuse(_WITHIN)
                    if same:
                        self.seen.who[at] = _Who(self.holders(queue.name), self.looked_at - before, borrow)
                else:
                    borrow = known.candidates
                    self.looked_at += known.asked
                    self.queue_of.update((victim.key, queue) for victim in borrow)
                    if known.asked > len(borrow):
                        self.unlawful[_WITHIN] = self.unlawful.get(_WITHIN, 0) + known.asked - len(borrow)
                out += borrow
        return out

    def _entitled(self, mine: QuotaNode) -> bool:
        """Is the gang within the nominal quota of its queue, or of the cohort on its side; its usage is charged."""
        return not (self.node.borrowing(self.usage) and mine.borrowing(self.usage))

    def _lawful(self, victim: Workload) -> EvictReason | None:
        """Why it may go, if it may; it is still there, and the gang's usage is charged. Leaves claims out of the
        tree."""
        queue = self.queue_of[victim.key]
        if queue is self.node:
            return EvictReason.IN_CLUSTER_QUEUE
        mine, theirs, between = self._side(queue)
        self._take_claims_out(mine)
        charge = self.ledger.charges[victim.key]
        if not self._borrow(between, charge.pairs & self.contested):
            if not self._borrow(between, self.contested):
                self.barred.add(queue)
            return None
        if self._entitled(mine):
            return EvictReason.IN_COHORT_RECLAMATION
        before = theirs.share(None, self.resources)
        share = mine.share(None, self.resources)
        if not share < before:
            self.barred.add(queue)  # whoever goes, their share only falls
            return None
        spared = self.back or spared_until(victim, self.rules, self.now)
        if spared is not None:
            if spared < 2**62:
                self.until = spared if self.until is None else min(self.until, spared)
            return None
        after = Tree.share_without(queue, theirs, charge.usage, self.resources)
        if not after < before:
            return None
        for strategy in self.rules.strategies:
            if share <= after if strategy is Strategies.FINAL else share < before:
                return EvictReason.IN_COHORT_FAIR_SHARING
        return None

    # -- the search

    def _without_unlawful(self, victims: list[Workload]) -> list[Target] | None:
        ruled_out: set[Key] = set()
        for _ in range(_ROUNDS):
            chosen = self._minimal([victim for victim in victims if victim.key not in ruled_out])
            if chosen is None:
                return None
            for victim in chosen:
                self._move(victim, -1)
            reasons = self._reasons(chosen)
            for victim in chosen:
                self._move(victim, 1)
            bad = {victim.key for victim, reason in reasons if reason is None}
            if not bad:
                return [(victim.key, reason) for victim, reason in reasons if reason is not None]
            self.by_order = True
            ruled_out |= bad
            self.ruled_out = len(ruled_out)
        return None

    def _reasons(self, chosen: Sequence[Workload]) -> list[tuple[Workload, EvictReason | None]]:
        """Why each of the chosen may go, if it may, once the others are gone and the gang is there; their quota is out
        of the tree."""
        self._enter(1)
        reasons = []
        for victim in chosen:
            self._move(victim, 1)
            reasons.append((victim, self._lawful(victim)))
            self._move(victim, -1)
        self._take_claims_out(None)
        self._enter(-1)
        return reasons

    def _in_any_order(self, victims: list[Workload]) -> list[Target] | None:
        """Those who go first by order make no room, or not lawfully: another set, if one is found.

        A walk over all sets, those first that spare the last in order: without whom there is still room stays, whoever
        must go must be lawful beside those who must go already, and those of its own queue who may; and in the end
        nobody goes without whom there is room. A gang that is entitled to what it wants misses none (what is lawful
        stays lawful when fewer go) of so few as `_FEW`, unless that takes more than `_LOOKS` looks.
        """
        looks = 0
        out: dict[Key, Workload] = {}
        """Whose quota is taken out of the tree by hand now."""

        def have(gone: Sequence[Workload]) -> None:
            wanted = {victim.key for victim in gone}
            for victim in [one for key, one in out.items() if key not in wanted]:
                self._move(victim, 1)
                del out[victim.key]
            for victim in gone:
                if victim.key not in out:
                    self._move(victim, -1)
                    out[victim.key] = victim

        def room(gone: Sequence[Workload]) -> bool:
            nonlocal looks
            looks += 1
            have(gone)
            with self.ledger.gone_from_nodes(self.ledger.charges[victim.key] for victim in gone):
                return self.fits()

        def walk(rest: list[Workload], must: list[Workload]) -> list[Target] | None:
            if not rest:
                have(must)
                targets = [(victim.key, reason) for victim, reason in self._reasons(must) if reason is not None]
                spared = any(room([one for one in must if one is not victim]) for victim in must)
                return targets if len(targets) == len(must) and not spared else None
            *rest, last = rest
            if room([*rest, *must]):
                found = walk(rest, must)
                if found is not None:
                    return found
            must = [last, *must]
            own = [victim for victim in rest if self.queue_of[victim.key] is self.node]
            if looks >= _LOOKS:
                return None
            have([*must, *own])
            if any(reason is None for _, reason in self._reasons(must)):
                return None
            return walk(rest, must)

        def search() -> list[Target] | None:
            nonlocal looks
            enough = 0
            """So many who go first leave quota."""
            while not self.node.fits(self.usage):
                if enough == min(len(victims), _LOOKS):
                    return None  # more are never walked through
                self._move(victims[enough], -1)
                out[victims[enough].key] = victims[enough]
                enough += 1
            if not room(victims):
                return None
            low, high = 1, len(victims)
            while low < high:
                middle = (low + high) // 2
                looks += middle < enough
                if middle >= enough and room(victims[:middle]):
                    high = middle
                else:
                    low = middle + 1
            for many in sorted({high, min(len(victims), _FEW)}):
                found = walk(victims[:many], []) if high <= many <= _LOOKS else None
                if found is not None:
                    return found
            return None

        found = search()
        have(())
        return found

    def _minimal(self, victims: list[Workload]) -> list[Workload] | None:
        """An irreducible set that makes room; each was lawful when its turn came. The book stays as it was.

        So many are taken as leave quota; more only where nodes are still in the way then.
        """
        short = self._short()
        taken: list[Workload] = []
        rest = victims
        refused: list[Workload] = []
        low = 0
        """So many of those taken leave quota; 0 as long as that is not known."""
        self._enter(1)
        while rest:
            refused = []
            self.barred.clear()
            for victim in rest:
                if self.queue_of[victim.key] in self.barred or self._lawful(victim) is None:
                    refused.append(victim)
                    continue
                self._move(victim, -1)
                taken.append(victim)
                self.barred.clear()
                if not low and self._leaves_quota(victim, short):
                    low = len(taken)
                    self._put_back(taken)
                    chosen = self._spare(taken, low)
                    if chosen is not None:
                        return chosen
                    for one in taken:
                        self._move(one, -1)
                    self._enter(1)
            # Who leaves on the gang's own side lowers its share: some may be lawful now that were not.
            rest = refused if len(refused) < len(rest) else []
        self._put_back(taken)
        if low:
            return self._spare(taken, low + 1) if low < len(taken) else None
        alone = self._alone(victims) if len(taken) < len(victims) and taken else None
        if alone is not None:
            return [alone]
        if refused:
            self.by_order |= bool(taken)
            why = _NO_LARGER if self.back is None else _TOO_SOON
            self.unlawful[why] = self.unlawful.get(why, 0) + len(refused)
        return None

    def _short(self) -> dict[FlavorResource, int]:
        """What quota lacks for the gang, and so the least that all who go must hold together: nobody leaves more than
        he holds."""
        return {fr: lacks for fr, amount in self.usage.items() if (lacks := amount - self.node.available(fr)) > 0}

    def _leaves_quota(self, victim: Workload, short: dict[FlavorResource, int]) -> bool:
        """Is there quota for the gang, now that this one went too; its usage is charged. Counts down what is short."""
        for fr, used in self.ledger.charges[victim.key].usage:
            if fr in short:
                short[fr] -= used
        if any(lacks > 0 for lacks in short.values()):
            return False
        self._take_claims_out(None)
        self._enter(-1)
        fits = self.node.fits(self.usage)
        self._enter(1)
        return fits

    def _put_back(self, taken: list[Workload]) -> None:
        """The tree as it was before the gang entered and these were taken."""
        self._take_claims_out(None)
        self._enter(-1)
        for victim in taken:
            self._move(victim, 1)

    def _alone(self, victims: list[Workload]) -> Workload | None:
        """The first whose going alone makes room, and is lawful: who went before it in order may have lowered the share
        of its side by so much that it might not follow."""
        short = self._short()
        for victim in victims:
            held = dict(self.ledger.charges[victim.key].usage)
            if any(held.get(fr, 0) < lacks for fr, lacks in short.items()):
                continue  # nobody leaves more than he holds
            self._move(victim, -1)
            room = self.node.fits(self.usage)
            self._move(victim, 1)
            if not room:
                continue
            self._enter(1)
            lawful = self._lawful(victim) is not None
            self._take_claims_out(None)
            self._enter(-1)
            if not lawful:
                continue
            self._move(victim, -1)
            with self.ledger.gone_from_nodes((self.ledger.charges[victim.key],)):
                room = self.fits()
            self._move(victim, 1)
            if room:
                return victim
        return None

    def _spare(self, taken: list[Workload], low: int) -> list[Workload] | None:
        """Of those taken, with `low` at least: who must go for quota and nodes both; None where nodes want more."""
        if len(taken) <= _MANY or self.fits_on_nodes is None:
            return self._spare_beside(taken, low, None)
        with self.ledger.emptied() as emptied:
            return self._spare_beside(taken, low, emptied)

    def _spare_beside(self, taken: list[Workload], low: int, emptied: Emptied | None) -> list[Workload] | None:
        gone = 0
        kept: list[Workload] = []
        """Of those beyond `gone`, who must go."""
        charges = self.ledger.charges

        def back(victim: Workload) -> None:
            self._move(victim, 1)
            if emptied is not None:
                emptied.comes_back(charges[victim.key])

        def away(victim: Workload) -> None:
            self._move(victim, -1)
            if emptied is not None:
                emptied.leaves(charges[victim.key])

        def have(wanted: int) -> bool:
            nonlocal gone
            for victim in taken[wanted:gone]:
                back(victim)
            for victim in taken[gone:wanted]:
                away(victim)
            gone = wanted
            if not self.node.fits(self.usage):
                return False
            if emptied is not None:
                return self.fits()
            with self.ledger.gone_from_nodes(charges[one.key] for one in (*taken[:gone], *kept)):
                return self.fits()

        high = len(taken)
        if not have(low):
            self.by_nodes = True
            if low == high or not have(high):
                have(0)
                return None
            low += 1
            while low < high:
                middle = (low + high) // 2
                if have(middle):
                    high = middle
                else:
                    low = middle + 1
            if not have(high):
                have(0)
                return None
        for victim in reversed(taken[:gone]):
            if not have(gone - 1):
                away(victim)
                kept.append(victim)
        for victim in kept:
            back(victim)
        kept.reverse()
        return kept
