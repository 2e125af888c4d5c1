"""The classical search for victims: shares do not count.

Candidates over which the gang has a hierarchical advantage (a subtree around its queue, and not around theirs, has
quota for it), those it outranks, and its own queue's; with borrowing allowed or not, in an order of attempts; removed
one by one until the gang fits, then put back in reverse while it still fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from admission.engine.ledger import Charge
from admission.engine.model import EvictReason, PreemptionPolicy, Value, Workload
from admission.engine.quota import AsIf, QuotaNode
from admission.engine.victims import Found, Search, Target


class _Candidate(Value, frozen=True):
    victim: Workload
    common: QuotaNode | None
    """The lowest node above both queues; None in the gang's own queue."""
    reason: EvictReason
    without_borrowing: bool
    """May go only if the gang's queue does not borrow in the end."""


class Classical(Search):
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
        gone = self.ledger.usage_by_queue(
            charges[c.victim.key] for c in candidates if not (borrowing and c.without_borrowing)
        )
        with AsIf(((node, held.items()) for node, held in gone.items()), -1):
            return self.quota(borrowing)

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
