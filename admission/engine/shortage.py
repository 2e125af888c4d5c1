"""What a refused gang lacks, and whether it still does: so that one change costs trials only where it could matter.

A trial of a gang that cannot go ends with what it lacked: quota at some node of the tree, room on nodes, claims of
others in between, and nobody whom it might lawfully evict. `Shortages.still` asks just that of the book as it is now.
Yes means that another trial would refuse the gang again, for the same reason; no means that a trial has to tell. It
costs a few look-ups, where a trial costs a search for victims.

It is known of gangs that have one flavor for each resource, and under the promises, where nobody is evicted but by the
law of fair shares (`reclaim`): somebody must borrow, all the way up to what both have in common, and the gang must be
entitled to what it asks for, or its side's share with the gang must be below that of the other side.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from admission.engine.ledger import Held, Ledger
from admission.engine.model import (
    ClusterQueue,
    Detail,
    FlavorResource,
    Key,
    PreemptionPolicy,
    Rules,
    Shortfall,
)
from admission.engine.quota import QuotaNode, Share, Tree
from admission.engine.reclaim import Holders, spared_until

Amounts = tuple[tuple[FlavorResource, int], ...]
NEW = 2**62
"""From here on a time is that of something that was decided, and not seen yet."""
NEVER = 2**63
_BY_QUOTA = (Detail.QUOTA_SHORT, Detail.COHORT_SHORT, Detail.BORROWING_LIMIT)


@dataclass(frozen=True, slots=True)
class Lack:
    """Of one gang of `queue`, which would take `usage`."""

    queue: str
    usage: Amounts
    shorts: tuple[Shortfall, ...] = ()
    """Where quota ends; none if only nodes are short."""
    never: bool = False
    """Nothing in the tree changes it: only the configuration, nodes, or pods that are not ours."""
    first: bool = False
    """It was the first of its queue, and knows when it may claim room for being passed over."""
    claim: Key | None = None
    """It has a claim itself, and evicts nobody more."""
    victims: tuple[str, ...] = ()
    """uids of those who leave for this claim, and still held their room."""
    beside: bool = False
    """It was refused with the room taken that is kept for those who were passed over, and not without."""
    blocked_by: tuple[Key, int] | None = None
    """(owner, end) of the claim of another that it was told of."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A parked gang to be looked at: `until` it is tried again anyway."""

    queue: ClusterQueue
    lack: Lack
    until: int | None


def quota_shorts(shortfalls: Collection[Shortfall]) -> tuple[Shortfall, ...]:
    """Those of quota that others hold."""
    return tuple(short for short in shortfalls if short.detail in _BY_QUOTA)


class Law(IntEnum):
    """By what a gang might take from others."""

    NOTHING = 0
    SHARE = 1
    """Fair sharing, from who is not spared."""
    ENTITLED = 2


class _View(Enum):
    """Of what is set aside: none of it is in the tree, what is free now, or all."""

    BOOK = 0
    FREE = 1
    ALL = 2


class _Borrowers:
    """One tree, as it was at one version: who holds what others may lawfully want back."""

    def __init__(
        self, ledger: Ledger, root: QuotaNode, frs: frozenset[FlavorResource], held: list[Held], rules: Rules
    ) -> None:
        self.frs = frs
        self.resources = frozenset(fr[1] for fr in frs) if rules.contested_share else None
        self.best: dict[QuotaNode, list[tuple[Share, QuotaNode]]] = {}
        """Cohort -> the two children with the largest shares below which somebody borrows all the way up."""
        self.limits: dict[QuotaNode, dict[Law, list[Amounts]]] = {}
        """Queue -> amounts for which the law gave no more than this: nor does it for more of them."""
        claims = [
            (node, claim.charge.usage) for claim in held if (node := ledger.tree.queue(claim.charge.queue)) is not None
        ]
        # What is only claimed makes nobody a borrower.
        for node, usage in claims:
            for fr, amount in usage:
                node.move(fr, -amount)
        self._chain(root)
        for node, usage in claims:
            for fr, amount in usage:
                node.move(fr, amount)
        self.claimed = any(node.borrowing(fr for fr, _ in usage) for node, usage in claims)
        """Is anything only claimed that is borrowed."""

    def _chain(self, node: QuotaNode) -> bool:
        if node.is_queue:
            return node.borrowing(self.frs)
        held = [(child.share(None, self.resources), child) for child in node.children if self._chain(child)]
        held.sort(key=lambda entry: entry[0], reverse=True)
        self.best[node] = held[:2]
        return bool(held) and node.borrowing(self.frs)

    def law(self, queue: QuotaNode, usage: Amounts) -> Law:
        """What the law might give to a gang of this queue that would take `usage`; never less than it does."""
        known = self.limits.setdefault(queue, {})
        for law in (Law.NOTHING, Law.SHARE):
            for less in known.get(law, ()):
                if len(less) == len(usage) and all(
                    fr == other and amount >= least for (fr, amount), (other, least) in zip(usage, less, strict=True)
                ):
                    return law
        law = self._law(queue, dict(usage))
        known.setdefault(law, []).append(usage)
        return law

    def _law(self, queue: QuotaNode, usage: dict[FlavorResource, int]) -> Law:
        if all(not queue.exceeds(fr, amount) for fr, amount in usage.items()) and (
            self.claimed or any(self.best.values())
        ):
            return Law.ENTITLED
        law = Law.NOTHING
        rest = usage
        for node, share in Tree.shares_with(queue, usage, self.resources):
            assert node.parent is not None
            other = next((held for held, child in self.best.get(node.parent, ()) if child is not node), None)
            if other is not None:
                if all(not node.exceeds(fr, rest.get(fr, 0)) for fr in usage):
                    return Law.ENTITLED
                if share < other:
                    law = Law.SHARE
            rest = node.risen(rest)
        return law


class Shortages:
    """Asks the book; remembers what it found about a tree as long as nothing in it changes."""

    def __init__(self, ledger: Ledger, rules: Rules, holders: Holders) -> None:
        self._ledger = ledger
        self._rules = rules
        self._holders = holders
        self._spared_in: dict[str, tuple[object, int]] = {}
        self._known: dict[tuple[QuotaNode, _View], tuple[int, list[Held], dict[frozenset[FlavorResource], _Borrowers]]]
        self._known = {}

    def still(self, root: QuotaNode, asked: Sequence[Asked], now: int, leaving: Collection[QuotaNode]) -> list[bool]:
        """Would a trial refuse each of these again, and for the same reason; all of them are of one tree.

        Some of them were refused beside the room that is set aside, some without. `leaving`: the roots
        under which gangs are on their way out: of other trees, they leave room on nodes alone.
        """
        claims = list(self._ledger.claims_under(root).values())
        aside = list(self._ledger.aside_under(root).values())
        out = [
            one.lack.never
            or (one.lack.beside and not claims)
            or self._one(root, one, claims, claims, _View.BOOK, now, leaving)
            for one in asked
        ]
        mine = [i for i, one in enumerate(asked) if one.lack.beside and out[i]]
        if not mine:
            return out
        # Beside what is set aside a gang is looked at twice: with all of it taken, and with what of it is free now.
        free: list[Held] = []
        for held in aside:
            free.append(Held(self._ledger.as_far_as_free(held.charge), held.until))
            self._move(free[-1:], 1)
        for i in mine:
            out[i] = self._one(root, asked[i], [*claims, *aside], [*claims, *free], _View.FREE, now, leaving)
        self._move(free, -1)
        self._move(aside, 1)
        every = [*claims, *aside]
        for i in mine:
            out[i] = out[i] and self._one(root, asked[i], every, every, _View.ALL, now, leaving)
        self._move(aside, -1)
        return out

    def _move(self, claims: list[Held], sign: int) -> None:
        for held in claims:
            node = self._ledger.tree.queue(held.charge.queue)
            if node is not None:
                for fr, amount in held.charge.usage:
                    node.move(fr, sign * amount)

    def _one(
        self,
        root: QuotaNode,
        asked: Asked,
        claims: list[Held],
        entered: list[Held],
        view: _View,
        now: int,
        leaving: Collection[QuotaNode],
    ) -> bool:
        """`claims` as they are noted, and as they are `entered` in the tree now."""
        lack = asked.lack
        node = self._ledger.tree.queue(lack.queue)
        if node is None:
            return False
        if lack.claim is not None:
            own = [held for held in claims if held.charge.key == lack.claim]
            self._move(own, -1)
            short = bool(own and lack.shorts) and self._short(node, lack)
            self._move(own, 1)
            return short
        if root in leaving or (leaving and not lack.shorts):
            return False
        if view is (_View.ALL if lack.beside else _View.BOOK):
            if not self._short(node, lack):
                return False
            if lack.blocked_by is not None and all((held.charge.key, held.until) != lack.blocked_by for held in claims):
                return False
        queue = asked.queue
        if (queue.preemption.reclaim_within_cohort or self._rules.reclaim_default) is PreemptionPolicy.NEVER:
            return not claims
        law = self._borrowers(root, lack.usage, claims, entered, view).law(node, lack.usage)
        if law is Law.SHARE:
            spared = min((self._spared(leaf.name, now) for leaf in root.queues() if leaf is not node), default=0)
            return spared > now and (spared >= NEW or (asked.until is not None and asked.until <= spared))
        return law is Law.NOTHING

    def _spared(self, queue: str, now: int) -> int:
        """Until when everybody in a queue is spared; 0 if somebody is not."""
        held = self._holders(queue)
        known = self._spared_in.get(queue)
        if known is None or known[0] is not held or known[1] <= now:
            until = min((spared_until(gang, self._rules, now) or 0 for gang in held), default=NEVER)
            known = self._spared_in[queue] = (held, until)
        return known[1]

    @staticmethod
    def _short(node: QuotaNode, lack: Lack) -> bool:
        """Does each of its requests end where it ended; if none did, is there still quota for all of it."""
        for short in lack.shorts:
            ends = node.limit_of((short.flavor, short.resource), short.requested)
            if not ends or ends[0].name != short.limited_by:
                return False
            end = ends[0]
            detail = (
                Detail.BORROWING_LIMIT
                if end.parent is not None
                else Detail.QUOTA_SHORT
                if end is node
                else Detail.COHORT_SHORT
            )
            if detail is not short.detail:
                return False
        return bool(lack.shorts) or node.fits(dict(lack.usage))

    def _borrowers(
        self, root: QuotaNode, usage: Amounts, claims: list[Held], entered: list[Held], view: _View
    ) -> _Borrowers:
        version = self._ledger.version_of(root)
        known = self._known.get((root, view))
        if (
            known is None
            or known[0] != version
            or len(known[1]) != len(claims)
            or any(one is not other for one, other in zip(known[1], claims, strict=True))
        ):
            known = self._known[root, view] = (version, claims, {})
        frs = frozenset(fr for fr, _ in usage)
        found = known[2].get(frs)
        if found is None:
            found = known[2][frs] = _Borrowers(self._ledger, root, frs, entered, self._rules)
        return found
