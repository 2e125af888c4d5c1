"""The lawful search for victims, which keeps the promises.

Candidates stand in one order: lowest priority, newest, least lost work. The search

1. takes them off the book in this order, each only if its eviction is lawful when its turn comes, until there is room;
2. puts those back that prove unnecessary;
3. checks that each of the rest is lawful in the final set, on the same book that admission sees. One that is not is
   ruled out, and the search begins again without it;
4. walks through other sets, within a bound, where this order finds none (`_in_any_order`).

An eviction is lawful if the victim's side borrows some of what the victim holds (by the other two searches: anything
contested), and the gang is entitled to what it asks for, or else the share test holds and the victim's share falls by
its eviction. Gangs that are leaving already cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from admission.engine.ledger import Charge, Emptied
from admission.engine.model import EvictReason, FlavorResource, Key, PreemptionPolicy, Strategies, Workload
from admission.engine.quota import AsIf, QuotaNode, Share, Tree
from admission.engine.victims import Found, Search, Target, almost_common, back_until, spared_until

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
"""In step 4: how many sets may be asked whether they make room ..."""
_FEW = 16
"""... and among how many candidates all sets are walked through, if that bound allows."""
_MANY = 32
"""More victims than these are taken off the book of nodes one by one, because a question as if all of them were gone
adds all of them up, and the search asks many."""


class _Side(NamedTuple):
    """Where the paths of the gang's queue and another one to the root part."""

    mine: QuotaNode
    theirs: QuotaNode
    """The last nodes of the two paths below the node that both have in common: the two sides."""
    between: tuple[QuotaNode, ...]
    """From the other queue up to `theirs`."""


class _Around(NamedTuple):
    """What the queues around the gang's hold of what it asks for."""

    borrowers: dict[QuotaNode, Share]
    """Queues that borrow something contested, as do all cohorts above up to the common one -> the share of that
    side."""
    holding: list[tuple[QuotaNode, Amounts]]
    """Of these queues: what they hold of what is asked for."""
    within: list[QuotaNode]
    """The other queues."""


class _Who(NamedTuple):
    """What was found about one queue that borrows: which gangs held quota, how many were asked about, and which of them
    hold something that may be reclaimed."""

    holders: Sequence[Workload]
    asked: int
    candidates: list[Workload]


class _Claims:
    """The claims in the queues of a tree, and the tree without them."""

    def __init__(self, held: dict[QuotaNode, Amounts]) -> None:
        self.held = held
        self.without = AsIf(held.items(), -1)


class _Seen:
    """What searches for gangs of one queue found out about its tree, without what gangs hold that leave: kept for the
    next one."""

    def __init__(self, node: QuotaNode, claims: _Claims) -> None:
        if node in claims.held:
            claims = _Claims({at: usage for at, usage in claims.held.items() if at is not node})
        self.claims = claims.held
        """What is claimed in other queues."""
        self.unclaimed = claims.without
        self.sides: dict[QuotaNode, _Side] = {}
        self.around: dict[tuple[frozenset[FlavorResource], tuple[FlavorResource, ...]], _Around] = {}
        self.who: dict[tuple[QuotaNode, frozenset[FlavorResource]], _Who] = {}


class Lawful(Search):
    """See the module. The law is about quota, and is tried on the tree alone, with the gang's usage charged; nodes are
    asked last."""

    def run(self) -> Found:
        ledger, root = self.ledger, self.node.root
        self.going: list[Charge] = []
        """Charges of the gangs that leave already. Their quota is out of the tree during the search."""
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
        with self.ledger.gone_from_nodes(self.going) if self.going else nullcontext():
            there_is = self.fits_on_nodes()
        self.nodes_short |= not there_is
        return there_is

    def found(self, victims: Sequence[Target] | None, until: int | None = None) -> Found:
        self.by_nodes |= self.nodes_short
        return super().found(victims, until)

    def _run(self) -> Found:
        self.until: int | None = None
        self.back = back_until(self.gang, self.rules, self.now)
        self.nodes_short = False
        """With some set there was quota, and no room on nodes."""
        self.by_order = False
        """Some candidates were not lawful when their turn came, and without them there was not enough quota: another
        order may find a set."""
        self.ruled_out = 0
        """How many candidates were not lawful in a set that made room."""
        self.barred: set[QuotaNode] = set()
        """Queues of which no gang may be evicted as the tree is now."""
        self.resources = frozenset(fr[1] for fr in self.usage) if self.rules.contested_share else None
        self.claims: list[tuple[QuotaNode, Amounts, QuotaNode]] = []
        """(queue, its claims, the node at which its path meets that of the gang) of the candidates' sides."""
        self.claims_out: QuotaNode | None = None
        """The side of the gang for which the claims of other sides are out of the tree now; None: none are."""
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
        """Would there be quota if all of this were gone? A cheap bound."""
        if not any(amounts for _, amounts in holding):
            return False
        left = self.node.available_without(self.usage, holding)
        return all(left[fr] >= amount for fr, amount in self.usage.items())

    def _side(self, queue: QuotaNode) -> _Side:
        side = self.seen.sides.get(queue)
        if side is None:
            if queue.parent is self.node.parent:
                side = self.seen.sides[queue] = _Side(self.node, queue, (queue,))
                return side
            mine, theirs = almost_common(self.node, queue)
            path = queue.path()
            side = self.seen.sides[queue] = _Side(mine, theirs, path[: path.index(theirs) + 1])
        return side

    def _take_claims_out(self, mine: QuotaNode | None) -> None:
        """Take the claims out of the tree of all sides that meet the gang's above `mine`; None: put all back. What the
        victim's side only claims must not make it a borrower."""
        if mine is self.claims_out:
            return
        for node, usage, at in self.claims:
            if at is self.claims_out:
                node.move_all(usage, 1)
            elif at is mine:
                node.move_all(usage, -1)
        self.claims_out = mine

    def _safe(self, shares: Mapping[QuotaNode, Share]) -> set[QuotaNode]:
        """Those of these queues of which no gang may be evicted, whatever else is: the gang is not entitled there, and
        the share of their side (given) is not larger than that of its own side. Evictions could only lower their share,
        and not that of its own side, on which there are no candidates."""
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
        """The share of the gang's side with its usage charged; None if it is entitled to what it asks for there."""
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
        """Does each of these nodes (a queue, and the cohorts above it below the common one) hold more than its quota of
        any of these pairs?"""
        for node in nodes:  # noqa: SIM110  (asked for every candidate)
            if not node.borrowing(frs):
                return False
        return True

    def _who_borrow(self, queues: list[QuotaNode]) -> list[Workload]:
        """Gangs, of queues that borrow, that hold some of what their queue borrows. So each eviction gives back
        something that was borrowed, no gang goes for what others of its queue hold, and evictions come to an end."""
        if not queues:
            return []
        out: list[Workload] = []
        same = self.reclaim_policy is PreemptionPolicy.ANY and self.gang.key not in self.ledger.charges
        """Are the candidates the same whichever gang asks?"""
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
        """Is the gang, its usage charged, within the nominal quota of its queue, or of the cohort on its side?"""
        return not (self.node.borrowing(self.usage) and mine.borrowing(self.usage))

    def _lawful(self, victim: Workload) -> EvictReason | None:
        """The reason for which this victim may be evicted; None if it may not. The victim is still charged, and the
        gang's usage is. Leaves claims out of the tree."""
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
            self.barred.add(queue)  # further evictions only lower the share of their side
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
        self.looks = 0
        """At sets."""
        self.taken_out: dict[Key, Workload] = {}
        """Whose quota is taken out of the tree by hand now."""
        found = self._first_set(victims)
        self._have(())
        return found

    def _have(self, gone: Sequence[Workload]) -> None:
        """Just these are out of the tree."""
        wanted = {victim.key for victim in gone}
        for victim in [one for key, one in self.taken_out.items() if key not in wanted]:
            self._move(victim, 1)
            del self.taken_out[victim.key]
        for victim in gone:
            if victim.key not in self.taken_out:
                self._move(victim, -1)
                self.taken_out[victim.key] = victim

    def _is_room(self, gone: Sequence[Workload]) -> bool:
        self.looks += 1
        self._have(gone)
        with self.ledger.gone_from_nodes(self.ledger.charges[victim.key] for victim in gone):
            return self.fits()

    def _first_set(self, victims: list[Workload]) -> list[Target] | None:
        enough = 0
        """So many who go first leave quota."""
        while not self.node.fits(self.usage):
            if enough == min(len(victims), _LOOKS):
                return None  # more are never walked through
            self._move(victims[enough], -1)
            self.taken_out[victims[enough].key] = victims[enough]
            enough += 1
        if not self._is_room(victims):
            return None
        low, high = 1, len(victims)
        while low < high:
            middle = (low + high) // 2
            self.looks += middle < enough
            if middle >= enough and self._is_room(victims[:middle]):
                high = middle
            else:
                low = middle + 1
        for many in sorted({high, min(len(victims), _FEW)}):
            found = self._walk(victims[:many], []) if high <= many <= _LOOKS else None
            if found is not None:
                return found
        return None

    def _walk(self, rest: list[Workload], must: list[Workload]) -> list[Target] | None:
        """A set of those who `must` go, and some of the `rest`."""
        if not rest:
            self._have(must)
            targets = [(victim.key, reason) for victim, reason in self._reasons(must) if reason is not None]
            spared = any(self._is_room([one for one in must if one is not victim]) for victim in must)
            return targets if len(targets) == len(must) and not spared else None
        *rest, last = rest
        if self._is_room([*rest, *must]):
            found = self._walk(rest, must)
            if found is not None:
                return found
        must = [last, *must]
        own = [victim for victim in rest if self.queue_of[victim.key] is self.node]
        if self.looks >= _LOOKS:
            return None
        self._have([*must, *own])
        if any(reason is None for _, reason in self._reasons(must)):
            return None
        return self._walk(rest, must)

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
