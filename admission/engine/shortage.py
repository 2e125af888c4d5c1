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

from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum, IntEnum
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from admission.engine.ledger import Held, Ledger, first_to_end
from admission.engine.model import (
    ClusterQueue,
    Detail,
    FlavorResource,
    Key,
    PreemptionPolicy,
    Rules,
    Shortfall,
    Usage,
    Value,
)
from admission.engine.nodes import PlaceRequest
from admission.engine.quota import AsIf, QuotaNode, Share, added_up
from admission.engine.victims import Holders, spared_until

Amounts = tuple[tuple[FlavorResource, int], ...]
NEW = 2**62
"""Times from here on stand for "just now": of something that was decided, and is on no object yet."""
NEVER = 2**63
_BY_QUOTA = (Detail.QUOTA_SHORT, Detail.COHORT_SHORT, Detail.BORROWING_LIMIT)


class Lack(Value, frozen=True):
    """What a gang of `queue` lacked at its last trial, in which it would have taken `usage`."""

    queue: str
    usage: Amounts
    frs: frozenset[FlavorResource]
    """The pairs in `usage`."""
    shorts: tuple[Shortfall, ...] = ()
    """Where quota was not enough; empty if only nodes are short."""
    never: bool = False
    """Nothing in its quota tree can change it: only the configuration, nodes, or pods of no gang."""
    evicts: bool = True
    """It may evict others. (It may not for a while after a claim in vain, and is tried again when it may.)"""
    first: bool = False
    """It was the first of its queue at that trial, which has settled from when on room is set aside for it."""
    claim: Key | None = None
    """Its own key, if it has a claim: then no further gangs are evicted for it."""
    victims: tuple[str, ...] = ()
    """uids of the gangs that leave for this claim and still held their room."""
    leave_for_it: tuple[str, ...] = ()
    """uids of gangs that are overdue in leaving for it, of a gang without a claim: no others are evicted for it before
    the last of them has left."""
    beside: bool = False
    """It was refused beside room that is set aside for others, and would not be without that."""
    blocked_by: tuple[Key, int] | None = None
    """(owner, end as of `Ledger.end_of`) of the claim that it was told is in its way."""
    placing: tuple[PlaceRequest, ...] = ()
    """What it asked of the nodes, where they alone are short ..."""
    avoid: frozenset[str] = frozenset()
    """... but for these."""

    @property
    def behind(self) -> bool:
        """Was it tried while it stood behind others? Then more may be due to it once it is the first of its queue."""
        return not (self.first or self.never or self.claim)

    @property
    def kept_from_it(self) -> bool:
        """May room that is set aside for others keep it from what it lacks, once that is there."""
        return bool(self.shorts) and not (
            self.never or self.first or self.beside or self.claim or self.victims or self.blocked_by
        )


class Asked(NamedTuple):
    """A question about a parked gang, which is tried again at `until` (ms) anyway."""

    queue: ClusterQueue
    lack: Lack
    until: int | None


class Leaving(Value, frozen=True):
    """What gangs that were evicted, and are not gone yet, hold in one tree: the usage of each queue."""

    held: tuple[tuple[QuotaNode, Amounts], ...] = ()
    certain: bool = True
    """Can waiting gangs count on all of it? Not where a gang that lost a node may take its own again."""

    def out(self) -> AsIf:
        """Inside, it is out of the tree."""
        return AsIf(self.held, -1)

    def back(self) -> AsIf:
        """Inside `out`: it is in the tree again."""
        return AsIf(self.held, 1)


_NOBODY = Leaving()
_KEPT = 256
"""At most so many answers about trees are kept."""


def quota_shorts(shortfalls: Collection[Shortfall]) -> tuple[Shortfall, ...]:
    """Those that are for lack of quota that others hold, so that it may become free."""
    return tuple(short for short in shortfalls if short.detail in _BY_QUOTA)


class Law(IntEnum):
    """The rule by which a gang might lawfully evict others, the stronger the larger."""

    NOTHING = 0
    SHARE = 1
    """Fair sharing: gangs that are not spared (R8)."""
    ENTITLED = 2


class _View(Enum):
    """How much of what is set aside is entered in the tree: nothing, of the quota what is free now, or all."""

    BOOK = 0
    FREE = 1
    ALL = 2


class _Borrowing:
    """Which queues borrow in one tree, at one version of it, by what gangs hold. Claims and room that is set aside do
    not count: they make no queue a borrower."""

    def __init__(
        self, ledger: Ledger, root: QuotaNode, frs: frozenset[FlavorResource], held: list[Held], rules: Rules
    ) -> None:
        """held: claims that are entered in the tree, and must not count."""
        self.frs = frs
        self.resources = frozenset(fr[1] for fr in frs) if rules.contested_share else None
        self.best: dict[QuotaNode, list[tuple[Share, QuotaNode]]] = {}
        """Cohort -> the two children with the largest shares below which somebody borrows all the way up."""
        total = ledger.usage_by_queue(claim.charge for claim in held)
        with AsIf(((node, usage.items()) for node, usage in total.items()), -1):
            self._chain(root)
            self.loose = [
                (leaf, tuple((fr, used) for fr in sorted(frs) if (used := leaf.usage.get(fr, 0))))
                for leaf in root.queues()
                if leaf.borrowing(frs)
            ]
            """All that borrowers hold."""
        self.anybody = any(self.best.values())
        """Does anybody borrow all the way up."""

    def _chain(self, node: QuotaNode) -> bool:
        if node.is_queue:
            return node.borrowing(self.frs)
        held = [(child.share(None, self.resources), child) for child in node.children if self._chain(child)]
        held.sort(key=lambda entry: entry[0], reverse=True)
        self.best[node] = held[:2]
        return bool(held) and node.borrowing(self.frs)


class _Borrowers:
    """What others may lawfully take back in one tree, at one version of it."""

    def __init__(self, ledger: Ledger, borrowing: _Borrowing, held: list[Held], *, gone: Leaving) -> None:
        """held: claims, of which an entitled gang takes back what is borrowed. gone: out of the tree."""
        self.frs, self.resources, self.best = borrowing.frs, borrowing.resources, borrowing.best
        self.anybody = borrowing.anybody
        self.laws: dict[tuple[QuotaNode, Amounts], Law] = {}
        self.most: dict[QuotaNode, dict[FlavorResource, int]] = {}
        self.limits: dict[QuotaNode, list[tuple[Amounts, Law]]] = {}
        """Queue -> amounts for which the law gave no more than this: nor does it for more of them."""
        borrowed: list[tuple[QuotaNode, Amounts]] = []
        if held:
            with gone.back():
                for claim in held:
                    charge = claim.charge
                    node = ledger.tree.queue(charge.queue)
                    if node is not None and node.borrowing(charge.pairs):
                        borrowed.append((node, charge.usage))
        self.claimed = bool(borrowed)
        """Is anything only claimed that is borrowed."""
        self.loose = [*borrowing.loose, *borrowed]
        """What could go at the most: all that borrowers hold, and what is only claimed, and borrowed."""
        self.total = added_up(self.loose)

    def law(self, queue: QuotaNode, usage: Amounts) -> Law:
        """The rule by which a gang of this queue that asks for `usage` might evict others. An upper bound: what it
        rules out is ruled out for sure."""
        at = (queue, usage)
        law = self.laws.get(at)
        if law is None:
            law = self.laws[at] = self._bound(queue, usage) if self.loose else Law.NOTHING
        return law

    def _most(self, queue: QuotaNode) -> dict[FlavorResource, int]:
        """The quota that a gang of this queue would find if all gangs that could be evicted were gone."""
        most = self.most.get(queue)
        if most is None:
            alike = queue.root if queue.sees_all() else queue
            most = self.most.get(alike)
            if most is None:
                most = self.most[alike] = queue.available_without(self.frs, self.loose, self.total)
            self.most[queue] = most
        return most

    def _bound(self, queue: QuotaNode, usage: Amounts) -> Law:
        most = self._most(queue)
        for fr, amount in usage:
            if most[fr] < amount:
                return Law.NOTHING
        known = self.limits.get(queue)
        if known is None:
            known = self.limits[queue] = []
        for less, law in known:
            if _no_less(usage, less):
                return law
        law = self._law(queue, dict(usage))
        if law is not Law.ENTITLED:
            insort(known, (usage, law), key=itemgetter(1))
        return law

    def _law(self, queue: QuotaNode, usage: dict[FlavorResource, int]) -> Law:
        if (self.claimed or self.anybody) and queue.holds(usage):
            return Law.ENTITLED
        law = Law.NOTHING
        node, rest = queue, usage
        while (above := node.parent) is not None:
            other = None
            for held, child in self.best.get(above, ()):
                if child is not node:
                    other = held
                    break
            wanted_back = node is not queue and (other is not None or self.claimed)
            if wanted_back and all(not node.exceeds(fr, rest.get(fr, 0)) for fr in usage):
                return Law.ENTITLED
            if other is not None and law is Law.NOTHING and node.share(rest, self.resources) < other:
                law = Law.SHARE
            if above.parent is None:
                break
            node, rest = above, node.risen(rest)
        return law


def _no_less(usage: Amounts, less: Amounts) -> bool:
    """Has `usage` the same pairs as `less`, and of each at least as much."""
    if len(usage) != len(less):
        return False
    for (fr, amount), (other, least) in zip(usage, less, strict=True):  # noqa: SIM110  (asked for every trial)
        if fr != other or amount < least:
            return False
    return True


class _Views(NamedTuple):
    """What is set aside in one tree, at one version of it."""

    version: int
    free: list[Held]
    """Of the quota of each as much as is free once those before it have theirs."""
    free_taken: AsIf
    all_taken: AsIf


_ByAsked = dict[frozenset[FlavorResource], _Borrowers]


class Shortages:
    """Answers `still` and `may_take` from the book; keeps what it finds about a tree until something in that
    changes."""

    def __init__(self, ledger: Ledger, rules: Rules, holders: Holders) -> None:
        self._ledger = ledger
        self._rules = rules
        self._holders = holders
        self._spared_in: dict[str, tuple[object, int]] = {}
        self._least: list[tuple[int, str]] | None = None
        """(until when everybody in it is spared, queue) of the two soonest, of the tree that is asked about."""
        self._known: dict[
            tuple[QuotaNode, _View],
            tuple[int, _ByAsked, Leaving | None],
        ] = {}
        self._taking: dict[tuple[QuotaNode, int, bool, frozenset[FlavorResource]], tuple[Leaving, _Borrowers]] = {}
        """(root, its version, are claims taken back, what is asked for) -> who borrows then."""
        self._views: dict[QuotaNode, _Views] = {}
        self._borrows: dict[QuotaNode, tuple[int, Leaving, dict[frozenset[FlavorResource], _Borrowing]]] = {}

    def forget(self) -> None:
        """The configuration changed: drop what is known of the trees before."""
        self._known.clear()
        self._taking.clear()
        self._views.clear()
        self._borrows.clear()
        self._spared_in.clear()

    def still(
        self, root: QuotaNode, asked: Sequence[Asked], now: int, leaving: Mapping[QuotaNode, Leaving]
    ) -> list[bool]:
        """For each of these, all of one tree: would a trial refuse it again for sure, and for the same reason?

        Some were refused beside room that is set aside, some without that. `leaving` by root: gangs of other trees
        leave room on nodes only.
        """
        self._least = None
        claims = list(self._ledger.claims_under(root).values())
        out = [one.lack.never or (one.lack.beside and not claims) for one in asked]
        self._ask(root, asked, [i for i, known in enumerate(out) if not known], out, claims, _View.BOOK, now, leaving)
        mine = [i for i, one in enumerate(asked) if one.lack.beside and out[i]]
        if not mine:
            return out
        # Beside what is set aside a gang is looked at twice: with what of it is free now, and with all of it taken.
        views = self._beside(root)
        with views.free_taken:
            self._ask(root, asked, mine, out, [*claims, *views.free], _View.FREE, now, leaving)
        mine = [i for i in mine if out[i]]
        if mine:
            aside = self._ledger.aside_under(root).values()
            with views.all_taken:
                self._ask(root, asked, mine, out, [*claims, *aside], _View.ALL, now, leaving)
        return out

    def _beside(self, root: QuotaNode) -> _Views:
        version = self._ledger.version_of(root)
        views = self._views.get(root)
        if views is None or views.version != version:
            aside = tuple(self._ledger.aside_under(root).values())
            free, whole = (self._ledger.together(root, aside, free=free) for free in (True, False))
            views = self._views[root] = _Views(version, list(free.held.values()), free.as_if, whole.as_if)
        return views

    def may_take(
        self, node: QuotaNode, usage: Amounts, leaving: Mapping[QuotaNode, Leaving], *, back: bool = False
    ) -> bool:
        """Might a gang of this queue that asks for `usage` lawfully evict others, or (`back`) take back claims, by the
        book as it is now? False only if it may not for sure."""
        gone = leaving.get(node.root, _NOBODY)
        if not gone.certain:
            return True
        frs = frozenset(fr for fr, _ in usage)
        at = (node.root, self._ledger.version_of(node.root), back, frs)
        known = self._taking.get(at)
        if known is not None and known[0] is gone and (law := known[1].laws.get((node, usage))) is not None:
            return law is not Law.NOTHING
        claims = list(self._ledger.claims_under(node.root).values())
        with gone.out():
            if known is None or known[0] is not gone:
                borrowing = self._borrowing(node.root, frs, claims, gone)
                found = _Borrowers(self._ledger, borrowing, claims if back else [], gone=gone)
                if len(self._taking) >= _KEPT:
                    self._taking.clear()
                known = self._taking[at] = (gone, found)
            law = known[1].law(node, usage)
        return law is not Law.NOTHING

    def _move(self, claims: list[Held], sign: int) -> None:
        for held in claims:
            node = self._ledger.tree.queue(held.charge.queue)
            if node is not None:
                node.move_all(held.charge.usage, sign)

    def _ask(
        self,
        root: QuotaNode,
        asked: Sequence[Asked],
        which: list[int],
        out: list[bool],
        claims: list[Held],
        view: _View,
        now: int,
        leaving: Mapping[QuotaNode, Leaving],
    ) -> None:
        """Answer those at the indices `which`, into `out`, in one view of the tree, with these `claims` entered."""
        gone = leaving.get(root)
        claimers: dict[Key, tuple[int, QuotaNode]] = {}
        rest: list[tuple[int, QuotaNode, bool]] = []
        for i in which:
            lack = asked[i].lack
            node = self._ledger.tree.queue(lack.queue)
            decides = view is (_View.ALL if lack.beside else _View.BOOK)
            out[i] = False
            if node is None:
                continue
            if lack.claim is not None:
                claimers[lack.claim] = i, node
            elif (leaving and not lack.shorts) or (gone is not None and not gone.certain):
                continue
            elif not decides or (
                self._short(node, lack)
                and (
                    lack.blocked_by is None
                    or any((held.charge.key, self._ledger.end_of(held)) == lack.blocked_by for held in claims)
                )
            ):
                rest.append((i, node, decides))
        if claimers:
            self._ask_claimers(root, asked, claimers, out)
        if not rest:
            return
        # As in the search for victims, those who leave already are gone.
        with nullcontext() if gone is None else gone.out():
            seen = self._seen_from(root, view, gone)
            for i, node, decides in rest:
                lack = asked[i].lack
                if gone is None or not decides or not lack.evicts or not node.fits(dict(lack.usage)):
                    out[i] = self._nobody_helps(root, node, asked[i], claims, seen, now, view, gone or _NOBODY)

    def _ask_claimers(
        self, root: QuotaNode, asked: Sequence[Asked], claimers: Mapping[Key, tuple[int, QuotaNode]], out: list[bool]
    ) -> None:
        """Answer gangs that have claims (key -> index in `asked`, queue). For each its own claim is free, and so is
        what other claims yield to it (`Ledger.yielding`). So first all that counts twice is taken out of the tree, and
        then one claim after the other, the last to end first."""
        held, doubly = self._ledger.claims_under(root), self._ledger.doubly(root)
        out_of_it = [_of_it(held[key], twice.usage) for key, twice in doubly.items()]
        self._move(out_of_it, -1)
        for key, whole in reversed(first_to_end(held).items()):
            claim = whole
            if key in doubly:
                twice = doubly[key].usage
                claim = _of_it(whole, {fr: amount - twice.get(fr, 0) for fr, amount in whole.charge.usage})
            self._move([claim], -1)
            out_of_it.append(claim)
            if key in claimers:
                i, node = claimers[key]
                lack = asked[i].lack
                out[i] = bool(lack.shorts) and self._short(node, lack)
        self._move(out_of_it, 1)

    def _nobody_helps(
        self,
        root: QuotaNode,
        node: QuotaNode,
        asked: Asked,
        claims: list[Held],
        seen: _ByAsked,
        now: int,
        view: _View,
        gone: Leaving,
    ) -> bool:
        """Is there for sure no gang that it might lawfully evict."""
        lack, queue = asked.lack, asked.queue
        if (queue.preemption.reclaim_within_cohort or self._rules.reclaim_default) is PreemptionPolicy.NEVER:
            return not claims
        borrowers = seen.get(lack.frs)
        if borrowers is None:
            # Of what is free now, nothing is taken back from whoever keeps it: only who is evicted helps.
            back = [] if view is _View.FREE else claims
            borrowing = self._borrowing(root, lack.frs, claims, gone)
            borrowers = seen[lack.frs] = _Borrowers(self._ledger, borrowing, back, gone=gone)
        if not lack.evicts:
            # Who is entitled takes back what is only claimed, and borrowed; nothing else is left to it.
            return not (borrowers.claimed and borrowers.law(node, lack.usage) is Law.ENTITLED)
        law = borrowers.law(node, lack.usage)
        if law is Law.SHARE:
            spared = self._others_spared(root, node, now)
            return spared > now and (spared >= NEW or (asked.until is not None and asked.until <= spared))
        return law is Law.NOTHING

    def _borrowing(
        self, root: QuotaNode, frs: frozenset[FlavorResource], held: list[Held], gone: Leaving
    ) -> _Borrowing:
        """`_Borrowing` of a tree that `gone` are out of; kept until something in it changes."""
        version = self._ledger.version_of(root)
        known = self._borrows.get(root)
        if known is None or known[0] != version or known[1] is not gone:
            known = self._borrows[root] = (version, gone, {})
        found = known[2].get(frs)
        if found is None:
            found = known[2][frs] = _Borrowing(self._ledger, root, frs, held, self._rules)
        return found

    def _others_spared(self, root: QuotaNode, node: QuotaNode, now: int) -> int:
        """Until when (ms) all gangs outside this queue are spared from eviction by share; 0 if one is not."""
        least = self._least
        if least is None:
            least = self._least = sorted((self._spared(leaf.name, now), leaf.name) for leaf in root.queues())[:2]
        for until, name in least:
            if name != node.name:
                return until
        return 0

    def _spared(self, queue: str, now: int) -> int:
        """The same of all gangs in one queue."""
        held = self._holders(queue)
        known = self._spared_in.get(queue)
        if known is None or known[0] is not held or known[1] <= now:
            until = min((spared_until(gang, self._rules, now) or 0 for gang in held), default=NEVER)
            known = self._spared_in[queue] = (held, until)
        return known[1]

    @staticmethod
    def _short(node: QuotaNode, lack: Lack) -> bool:
        """Is quota still short, at the same nodes of the tree, for each pair of which it was; and if it was for none,
        is there still quota for all of it?"""
        for short in lack.shorts:
            end = node.end_of((short.flavor, short.resource), short.requested)
            if end is None or end.name != short.limited_by:
                return False
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

    def _seen_from(self, root: QuotaNode, view: _View, gone: Leaving | None) -> _ByAsked:
        """What is known of the tree in this view, by what is asked for; kept until something in it changes."""
        version = self._ledger.version_of(root)
        known = self._known.get((root, view))
        if known is None or known[0] != version or known[2] is not gone:
            known = self._known[root, view] = (version, {}, gone)
        return known[1]


def _of_it(held: Held, usage: Usage) -> Held:
    """A claim reduced to this much quota."""
    return replace(held, charge=replace(held.charge, usage=tuple(usage.items()), admission=None))
