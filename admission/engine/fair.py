"""The fair search for victims: shares count.

The queue with the largest share, found from the root down, gives its next candidate, if the gang's side would hold no
more than the victim's side then has (final share), or, for what is left over, less than the victim's side had (initial
share). A queue within its nominal quota need not compare. Who was removed is put back in reverse while the gang still
fits.
"""

from __future__ import annotations

from admission.engine.ledger import Charge
from admission.engine.model import EvictReason, PreemptionPolicy, Strategies, Workload
from admission.engine.quota import QuotaNode, Share
from admission.engine.victims import Found, Search, almost_common


class Fair(Search):
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

    def __init__(self, search: Fair, victims: list[Workload]) -> None:
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
