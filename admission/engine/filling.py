"""Filling: Muster's own way through the queues, one gang at a time, until nobody is left who is worth a trial.

Under each root of the cohort forest a tournament of shares (`order.Tournament`) says which queue is next; between
roots, which compete for nodes alone, priority and age decide. The first gang of that queue has its turn (`_try_first`)
on the book as it is then, with all that this cycle has decided so far. It ends in one of four ways:

    admitted       it fits
    others leave   eviction would make room: they are evicted, and the room is claimed for it until they are gone (R5)
    room is kept   the first of a queue has been passed over for long: what becomes free is set aside for it (R11)
    parked         none of these: gangs like it are not tried before something changes that they depend on (`memos`)

Three questions come between the look at a gang and that end:

    would it fit beside what is set aside for those who were passed over?    `_beside_kept_room` (R11)
    is what stands in its way only claimed, and may it take that back?       `_take_back_claims` (R5)
    it was evicted before: would it come back only to be evicted again?      `_unless_evicted_again` (R7)

Before the tournament, gangs that lost nodes are given others, or claim them (`_replace_lost_nodes`,
`_claim_after_node_loss`), and queues that had no turn for long have one (`_serve_overdue_queues`). The promises R1 to
R12 are in docs/fairness.md.
"""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter

from msgspec.structs import replace

from admission.engine import flavors as scan
from admission.engine import order
from admission.engine.flavors import Assignment, Mode
from admission.engine.ledger import Charge, Held, charge_of, claim_of, first_to_end
from admission.engine.line import Memo, Used
from admission.engine.model import (
    CLAIM_VICTIMS,
    Admission,
    Claim,
    ClaimRecord,
    ClusterQueue,
    Decision,
    Detail,
    Evict,
    FlavorResource,
    Key,
    PreemptionPolicy,
    Reason,
    Replace,
    Standing,
    Usage,
    Verdict,
    Why,
    Workload,
)
from admission.engine.order import QueueKey, Rank, Tournament
from admission.engine.quota import QuotaNode
from admission.engine.shortage import NEW, Lack, quota_shorts
from admission.engine.state import State
from admission.engine.trial import EFFORT_PER_LOOK, NONE, Run, Trial
from admission.engine.victims import almost_common, may_always_reclaim
from admission.engine.walk import Walk
from admission.names import HOSTNAME_LABEL

MOST_RIVALS = 200
"""At most so many trials are made to find who would evict a gang that comes back. Without a bound a tree of 200 queues
took 1,500 of them, and one decision seven seconds."""
BEHIND = 8
"""At most so many gangs of a queue that would have their turns one after the other are followed, to see whether one of
them evicts the gang in question."""
DEEP = 2
"""How deep `_unless_evicted_again` asks: the gang that would evict may have been evicted itself, and so on."""
PATIENCE = 4
KEPT_AMONG = 8
"""So many who came last are asked first whether without them there are nodes to be kept, then so many times as many,
and of more than its square nearly: to so many parts of them."""
EFFORT_PER_GONE = 250
"""Of one of them, in each such question."""
KEPT_IN_VAIN = 6
"""In units of `Rules.passed_over_ms`: how long room is kept in one place before it is asked whether the gang would do
better elsewhere, where it waits only for gangs that came since that was asked last. Asked anew each time it is over."""
WALKS_PER_TRIAL = 16
"""What was decided waits to be written until the cycle ends. So a cycle that has decided something ends after
`PATIENCE` looks without a decision, and one more for so many queues that take part each: to have them all enter another
cycle costs about as much."""
TURN_WITHIN_MS, TURN_SOON_MS = 30_000, 1_000
"""A queue with a gang that is worth a trial has its turn before all others once it had none for so long; the shorter
time counts where a few dear trials of others used up the last cycle."""

_WHEN = itemgetter(0)


def _within_nominal(node: QuotaNode, usage: Usage) -> bool:
    """Is all of this within the quota of the subtree; no, where it is nothing."""
    return bool(usage) and node.holds(usage)


class Filling(Run):
    """One decision by the tournament of shares. `go` makes it, until nobody is worth a trial or the budget ends."""

    def __init__(self, state: State, now: int, budget: int, began: int) -> None:
        super().__init__(state, now, budget, began)
        self.walks: dict[str, Walk] = {}
        """The queues in which somebody is, or was, worth a trial."""
        self.tournaments: dict[str, Tournament] = {}
        """By the label of their root."""
        self.roots: list[tuple[Rank, str]] = []
        """A heap of (priority and age of the gang that won under a root, the root's label)."""
        self.served: set[Key] = set()
        """Gangs that were dealt with before their turn."""
        self.admitted: dict[str, list[QueueKey]] = {}
        """Queue -> places in its line of those whom this cycle admitted."""
        self.turned: set[Key] = set()
        """Those who had their turn, and would not have fitted if nothing were kept for others."""
        self.seen: set[Key] = set()
        """Those for whom room is set aside and who had their turn, or were woken for it."""
        self._looked: tuple[tuple[Key, int], Trial] | None = None
        """Who let others have their turn first, at which version of the book, and what came of looking at it."""
        self.shortened: set[str] = set()
        """Queues whose first gang was admitted in the turn that is on."""
        self.out_of_the_way: set[str] = set()
        """Queues in which a gang that can never go was parked in this turn: those behind it count as first now."""
        self.taken_back: dict[Key, tuple[Held, bool]] = {}
        """Claims that the gang whose turn it is takes back, and whether they were only set aside. They end if it goes,
        or another in its place, and are put back if it is kept away after all (`_unless_evicted_again`)."""
        self.passed = 0
        """Turns that needed no trial: a look at the book said that the gang would be refused again."""
        self.reached: set[str] = set()
        """Queues that had a turn in this cycle."""
        self.leave_for: dict[str, list[Workload]] = {}
        """uid of a gang -> gangs that were evicted for it and still hold their room."""
        self._usable: dict[int | Key, list[tuple[scan.PodSetRequest, list[tuple[str, ...]]]]] = {}
        for victim in [state.workloads[key] for key in sorted(state.leaving)]:
            self.leave_for.setdefault(victim.evicted_for, []).append(victim)

    def go(self) -> None:
        self._fill()
        # Tournaments refer to this run, which refers to them: freed here, they need no garbage collection, which stops
        # everything else while it runs.
        self.tournaments.clear()

    def _fill(self) -> None:
        self._replace_lost_nodes()
        self._claim_after_node_loss()
        self.budget = max(self.budget, self.cost + 1)
        state = self.state
        for key, turned in state.asked_before():
            self.seen.add(key)
            if turned:
                self.turned.add(key)
        self._enter_all()
        self._serve_overdue_queues()
        self.roots.clear()
        for label in sorted(self.tournaments):
            self._enter_root(label)
        fruitful, patience = self._looks_so_far(), PATIENCE + len(self.walks) // WALKS_PER_TRIAL
        while self.roots:
            if self.cost >= self.budget or (self.decisions and self._looks_so_far() > fruitful + patience):
                self._stop_early()
                return
            _, label = heapq.heappop(self.roots)
            best = self.tournaments[label].best()
            assert best is not None
            if self._give_turn(best):
                fruitful = self._looks_so_far()
            self._enter_root(label)
        state.asked, state.unreached = set(), {}

    def _enter_all(self) -> None:
        """Every queue with a gang that is worth a trial enters the tournament under its root."""
        entering: dict[str, list[QuotaNode]] = {}
        for name in self.state.memos.ready():
            if self._start_walk(name):
                node = self.node(name)
                entering.setdefault(node.root.label, []).append(node)
        for label in sorted(entering):
            self._tournament(entering[label][0]).enter_all(entering[label])

    def _stop_early(self) -> None:
        """The budget or the patience is used up: note what the next cycle needs to go on from here."""
        state, self.more = self.state, True
        state.asked = set() if self.decisions else self.seen  # nobody asks them again first
        waits = [name for name, walk in self.walks.items() if name not in self.reached and walk.peek()]
        state.unreached = {name: state.unreached.get(name, self.now) for name in waits}
        state.dear = self.cost > 2 * self.steps

    def _looks_so_far(self) -> int:
        """Trials, and turns in which a look at the book was enough."""
        return self.steps + self.passed

    def _serve_overdue_queues(self) -> None:
        """Give a turn to queues that had none for long, each until something is decided in it, for half of the budget.

        Where changes come faster than cycles end, the queues that rank first are worth a trial again in every cycle,
        and would use it up each time."""
        within = TURN_SOON_MS if self.state.dear else TURN_WITHIN_MS
        since = {name: at for name, at in self.state.unreached.items() if self.now >= at + within}
        for name in sorted(since.keys() & self.walks.keys(), key=lambda name: (since[name], name)):
            while self.walks[name].peek() is not None:
                if self.cost > self.budget // 2:
                    return
                if self._give_turn(self.node(name)):
                    break

    def _give_turn(self, node: QuotaNode) -> bool:
        """Give the queue its turn, and enter its next gang into the tournament. True if anything was decided."""
        self.at = node.root.label
        tournament = self.tournaments[self.at]
        self.reached.add(node.name)
        decided = len(self.decisions)
        self._try_first(node)
        for name in sorted(self.shortened):
            self._wake_new_first(name)
        self.shortened.clear()
        if node.name in self.out_of_the_way and self.walks[node.name].peek() is None:
            self.out_of_the_way.discard(node.name)
            self._wake_new_first(node.name, behind=True)
        if self.walks[node.name].peek() is None:
            tournament.leave(node)
        else:
            tournament.enter(node)
        if len(self.decisions) == decided:
            return False
        self._wake(self.at, self.decisions[decided:])
        return True

    def _start_walk(self, name: str) -> bool:
        """Walk through this queue from now on; False where no gang of it is worth a trial."""
        walk = Walk(self.state, name)
        if walk.peek() is None:
            return False
        self.walks[name] = walk
        return True

    def _tournament(self, node: QuotaNode) -> Tournament:
        label = node.root.label
        if label not in self.tournaments:
            self.tournaments[label] = Tournament(node.root, self._ranks)
        return self.tournaments[label]

    def _wake(self, label: str, decided: list[Decision]) -> None:
        """After these decisions in one tree: an eviction, or the end of a claim, makes room (on nodes, in any tree), so
        gangs that were passed by for lack of it have a turn in this cycle after all. (A gang that could go because
        another was admitted would have to evict that one: it waits for the next cycle.)"""
        if any(isinstance(d, Evict) or (isinstance(d, Claim) and d.record.until <= self.now) for d in decided):
            self._take_part_again(self.state.memos.no_longer_short(label))

    def _wake_new_first(self, name: str, *, behind: bool = False) -> None:
        """A queue has a new first gang; if that is parked it may have a turn after all. Room that is kept for others
        binds the first of a queue less than those behind it. `behind`: it became first because the one before it can
        never go, so that room may be due to it as well."""
        if not self.state.lines[name].parked:
            return
        first = self.state.first_but(name, set(self.admitted.get(name, ())))
        lack = None if first is None or first[1] is None else first[1].lack
        if first is not None and lack is not None and (lack.behind if behind else lack.beside):
            self._take_part_again([self.state.unpark(first[0], doubt=False)])

    def _take_part_again(self, them: Iterable[tuple[str, int]]) -> None:
        """These (queue, bucket), which were parked, take part in the tournaments again."""
        entering: dict[str, dict[str, QuotaNode]] = {}
        for name, bucket in them:
            node = self.node(name)
            walk = self.walks.get(name)
            if walk is None:
                enters = self._start_walk(name)
            else:
                enters = not walk.strict and walk.add(bucket) and walk.peek() is not None
            around = entering.setdefault(node.root.label, {})
            if enters:
                around[name] = node
        waiting = {label for _, label in self.roots}
        for label in sorted(entering):
            if nodes := list(entering[label].values()):
                self._tournament(nodes[0]).enter_all(nodes)
            if label != self.at and label in self.tournaments and label not in waiting:
                self._enter_root(label)

    def _enter_root(self, label: str) -> None:
        """Enter the gang that wins under this root among the winners of all roots."""
        winner = self.tournaments[label].best()
        if winner is None:
            return
        first = self.walks[winner.name].peek()
        assert first is not None
        heapq.heappush(self.roots, (first[0][1:], label))

    def _ranks(self, node: QuotaNode) -> dict[str, Rank]:
        walk = self.walks[node.name]
        first = walk.peek()
        assert first is not None
        gang = self.state.workloads[order.key_of(first[0])]
        usage = self.demand(gang, walk.queue).first
        return self.state.standings.ranks(node, first[0], gang, usage, self.rules)

    def _try_first(self, node: QuotaNode) -> None:
        """The first gang of this queue has its turn: see the module for how it can end."""
        walk = self.walks[node.name]
        first = walk.turn()
        assert first is not None
        place, bucket = first
        gang = self.state.workloads[order.key_of(place)]
        if gang.key in self.served:
            walk.next() if gang.key in self.ledger.charges else walk.leave_waiting()
            return
        if self._is_refused_again(walk, gang, bucket) or self._is_kept_out_again(walk, gang, bucket):
            return
        claims, looked = gang.key in self.ledger.claims, (gang.key, self.ledger.version)
        trial = self._look_in_turn(gang, walk.queue)
        if not self._able(trial):
            self.turned.add(gang.key)
        self.seen.add(gang.key)
        if not claims and trial.assignment is not None:
            beside = self._beside_kept_room(trial) if self.ledger.aside else self._take_back_claims(trial)
            if beside is None:
                self._restore_claims()
                self._looked = looked, trial
                return  # others have their turn first
            trial = beside
        self.place(trial)
        claims = claims or gang.key in self.ledger.aside
        decided = len(self.decisions)
        if self._able(trial) and gang.evicted == "Preempted" and not claims and self.rules.promises:
            trial = self._unless_evicted_again(trial)
        if trial.mode is Mode.FIT:
            self.admit(trial)
            self.ledger.give_up(gang.key)
            self._end_taken_claims(decided)
            walk.next()
            return
        if trial.found.enough and not gang.preemption_gated and self._claim_room(trial):
            self.ledger.give_up(gang.key)
            self._end_taken_claims(decided)
            walk.leave_waiting()
            return
        if len(self.decisions) > decided:
            self._end_taken_claims(decided)
        self._restore_claims()
        if claims:
            self._wait_for_claim(walk, bucket, trial)
            return
        if trial.found.enough and gang.preemption_gated:
            trial.why = replace(trial.why, reason=Reason.GATED, detail=Detail.PREEMPTION_GATED)
        if trial.assignment is not None and self._keep_room_if_passed_over(walk, trial):
            walk.leave_waiting()
            return
        self._park(walk, bucket, trial, self._refused(trial))

    def _is_refused_again(self, walk: Walk, gang: Workload, bucket: int) -> bool:
        """Would it still be refused as it was, by a look at the book alone: then its turn is over."""
        gone = self.admitted.get(walk.queue.name, ())
        known = None if walk.taken.get(bucket) else self.state.memos.pass_again(walk.queue.name, bucket, gone)
        if known is None:
            return False
        self.seen.add(gang.key)
        if known.turned:
            self.turned.add(gang.key)
        self.passed += 1
        walk.skip()
        return True

    def _look_in_turn(self, gang: Workload, queue: ClusterQueue) -> Trial:
        """What comes of looking at a gang that has its turn. One that has a claim evicts nobody anew, and gets more
        than it claimed only where there is room beside other claims."""
        if self._looked is not None and self._looked[0] == (gang.key, self.ledger.version):
            return self._looked[1]
        claims = gang.key in self.ledger.claims
        with self.ledger.yielding(gang.key), self.ledger.suspended(gang.key):
            # What other claims yield to a claim is free in this look alone: who has a claim gets nodes at once.
            trial = self.look(gang, queue, evict=not claims and self._may_evict(gang), later=not claims)
        if claims and trial.mode is Mode.FIT and not self._as_claimed(trial):
            trial = self._no_more_than_claimed(trial)
        return trial

    def _as_claimed(self, trial: Trial) -> bool:
        """Does it take no more quota than it claims."""
        assert trial.assignment is not None
        claimed = dict(self.ledger.claims[trial.gang.key].charge.usage)
        return all(amount <= claimed.get(fr, 0) for fr, amount in trial.assignment.usage.items() if fr in claimed)

    def _no_more_than_claimed(self, trial: Trial) -> Trial:
        """A gang that found more than it claimed (it was reduced, or has grown since) found it in room that other
        claims yield to it. It gets all of that only if there is room beside those claims; else what it claimed."""
        gang, queue = trial.gang, trial.queue
        with self.ledger.suspended(gang.key):
            larger = self.look(gang, queue, evict=False)
        if larger.mode is Mode.FIT and larger.assignment is not None and not self._as_claimed(larger):
            return larger
        assert gang.claims is not None
        claimed = gang.claims.admission.pod_sets
        counts = {part.name: part.count for part in claimed}
        for part in self.asks(gang, queue):
            least = min(part.pod_set.min_count or part.count, part.count)
            if not least <= counts.get(part.pod_set.name, 0) <= part.count:
                return larger
        asked = scan.requests(gang, queue, self.rules, counts)
        with self.ledger.yielding(gang.key), self.ledger.suspended(gang.key):
            flavors = {part.name: dict(part.flavors) for part in claimed}
            assignment = self.pinned(gang, queue, asked, flavors, self._avoided(gang))
        return Trial(gang, queue, trial.node, assignment, NONE, self._why(assignment, NONE))

    # -- room that is kept for those who were passed over

    def _is_first(self, gang: Workload) -> bool:
        """Is it the first of its queue, apart from gangs that were admitted in this cycle."""
        name = self.state.queue_of(gang)
        return self.state.is_first(gang.key, self.admitted.get(name, ()), self._used(name))

    def _used(self, queue: str) -> Used:
        """What its line is ordered by before all else, with what this cycle admitted; None where it is not."""
        walk = self.walks.get(queue)
        return None if walk is None else walk.used

    def _kept_around(self, node: QuotaNode) -> list[tuple[int, Key]]:
        """(since when it was passed over, gang) of all for whom room is kept in this tree, or on nodes; sorted."""
        on_nodes = self.state.kept_on_nodes()
        of_quota = self._quota_kept_under(node)
        if not of_quota:
            return on_nodes
        around = on_nodes.copy()
        for key in of_quota:
            insort(around, (self.state.kept_since(key), key))
        return around

    def _quota_kept_under(self, node: QuotaNode) -> list[Key]:
        """Gangs of this tree for whom quota is kept, and no nodes."""
        return [key for key, held in self.ledger.aside_under(node.root).items() if held.charge.admission is None]

    def _beside_kept_room(self, trial: Trial) -> Trial | None:
        """The same gang beside the room that is kept for gangs that were passed over; None when some of those must
        have their turn first, because it is not known yet whether they could use their room.

        A gang that was not passed over itself is bound by all of it. Among those that were, the tournament decides,
        but none goes before another that had been passed over already when it came.
        """
        gang = trial.gang
        able = self._able(trial)
        around = self._kept_around(trial.node)
        if len(around) == (gang.key in self.ledger.aside) or not (able or self._claims_around(trial)):
            return self._take_back_claims(trial)
        but, untried = self._not_bound_by(gang, trial.node, around)
        if not untried and all(key in but for _, key in around):
            return self._take_back_claims(trial)
        with self.ledger.beside(but, trial.node.root):
            beside = self.look(gang, trial.queue, evict=self._may_evict(gang), later=True) if able else trial
            if not self._able(beside) and untried and self._by_quota_alone(beside):
                # Of other trees nothing but nodes is kept, and they do not matter.
                mine = self.ledger.aside_under(trial.node.root)
                untried.intersection_update(mine)
            self.place(beside)
        by_nodes = True
        if not untried and beside.mode is not Mode.FIT:
            if able:
                freed = self._look_with_eviction(trial, but)
                if freed is not None and self._comes_by_eviction(freed):
                    return freed
                by_nodes = freed is not None and self._on_nodes(freed)
            with self.ledger.beside(but, trial.node.root):
                beside = self._take_back_claims(beside)
                self.place(beside)
        good = self._able(beside) if not untried else beside.mode is Mode.FIT
        beside.beside = able and not good
        if beside.beside:
            beside.why = self._why_but_for_kept_room(beside.why, next(key for _, key in around if key not in but))
        if good or not (able or untried):
            return beside
        if untried:
            mine = self.ledger.aside_under(trial.node.root)
            own = untried.intersection(mine)
            if len(own) < len(untried) and self._is_kept_out_by_own_tree(trial, but):
                untried = own
        if untried:
            self._ask_again(untried)
            return None
        freed = self._look_with_eviction(trial, but, nodes=False) if by_nodes else None
        return freed if freed is not None and self._comes_by_eviction(freed) else beside

    def _not_bound_by(
        self, gang: Workload, node: QuotaNode, around: list[tuple[int, Key]]
    ) -> tuple[set[Key], set[Key]]:
        """Of the gangs for whom room is kept `around` this one: those whose room does not bind it (itself among them),
        and those of whom that is not known before they have had their turn."""
        but = {gang.key}
        at = self.state.passed_over_at(gang)
        untried: set[Key] = set()
        if not (self.rules.promises and self.now >= at and self._is_first(gang)):
            return but, untried
        came = at - self.rules.passed_over_ms
        # A gang that came after this one had been passed over goes behind it.
        later = at + self.rules.passed_over_ms
        before = bisect_left(around, (came,))
        if before > len(around) // 2:
            equals = {key for _, key in around[before:]}
        else:
            equals = {*self.state.kept_keys, *self._quota_kept_under(node)}
            equals.difference_update(key for _, key in around[:before])
        untried = equals.intersection(self.state.turned).difference(self.seen)
        equals.difference_update(untried)
        if turned := equals.intersection(self.turned):
            turned.discard(gang.key)
            equals.difference_update([key for key in turned if self.state.kept_since(key) <= later])
        but.update(equals)
        return but, untried

    def _kept_from(self, trial: Trial) -> Lack | None:
        """See `Memo.kept_from`."""
        assignment, gang, queue = trial.assignment, trial.gang, trial.queue
        by_quota = trial.beside and assignment is not None and bool(quota_shorts(trial.why.shortfalls))
        if not by_quota or gang.key not in self.ledger.aside or not self._simple(gang, queue) or gang.lost_nodes:
            return None
        assert assignment is not None
        return replace(self._wanted(trial, assignment), placing=assignment.placing)

    def _is_kept_out_again(self, walk: Walk, gang: Workload, bucket: int) -> bool:
        """A gang with room of its own was refused because room that is kept for others left too little quota. True,
        and its turn is over, where the book alone says that this is so still, or those others must be asked first."""
        memo = None if walk.taken.get(bucket) else self.state.memos.kept_from(walk.queue.name, bucket)
        if memo is None or gang.key not in self.ledger.aside or not self._may_evict(gang):
            return False
        lack, node = memo.kept_from, self.node(walk.queue.name)
        assert lack is not None
        usage = dict(lack.usage)
        if not node.fits(usage) or not self.ledger.holds(lack.placing, owner=gang.key, avoid=lack.avoid):
            return False
        may_take, queue, root = self.state.memos.may_take, walk.queue.name, node.root
        but, untried = self._not_bound_by(gang, node, self._kept_around(node))
        with self.ledger.beside(but, root):
            if node.fits(usage) or may_take(queue, usage, back=True):
                return False
        untried.intersection_update(self.ledger.aside_under(root))
        if untried:
            self._ask_again(untried)
            return True
        with self.ledger.beside(but, root, free=True):
            if may_take(queue, usage):
                return False
        self.seen.add(gang.key)
        self.passed += 1
        self.state.memos.kept_again(queue, bucket, memo)
        walk.skip()
        return True

    def _look_with_eviction(self, trial: Trial, but: set[Key], *, nodes: bool = True) -> Trial | None:
        """What comes of evicting others; None where the gang may evict nobody. Those for whom room is kept wait for
        what becomes free, and nobody is evicted for them: what eviction frees is not theirs. So only the quota that is
        free now is kept from this gang, and (with `nodes`) the nodes."""
        gang = trial.gang
        if not self._may_evict(gang):
            return None
        with self.ledger.beside(but, trial.node.root, free=True, nodes=nodes):
            usage = {} if trial.assignment is None else trial.assignment.usage
            if self._simple(gang, trial.queue) and not self.state.memos.may_take(trial.queue.name, usage):
                return None
            return self.look(gang, trial.queue)

    @staticmethod
    def _comes_by_eviction(trial: Trial) -> bool:
        return trial.found.enough and trial.mode is not Mode.FIT

    @staticmethod
    def _why_but_for_kept_room(why: Why, first: Key) -> Why:
        """This reason, told of a gang that the nodes would hold if nothing were kept for others, of whom `first` has
        been passed over longest. So empty nodes would hold it as well, whatever the look beside kept room says."""
        if not why.misfits:
            return why
        short = Detail.NODES_SHORT
        misfits = tuple(replace(one, detail=short, fits_when_empty=True, sound=0) for one in why.misfits)
        detail = short if why.detail in (Detail.NEVER_FITS_NODES, Detail.NODES_TAKEN) else why.detail
        return replace(why, detail=detail, misfits=misfits, subject=why.subject or "/".join(first))

    def _is_kept_out_by_own_tree(self, trial: Trial, but: set[Key]) -> bool:
        """Would the room that is kept in its own tree be enough to keep a gang out, without what is kept on nodes for
        gangs of other trees? False where it might take back what is claimed in its tree."""
        gang, root = trial.gang, trial.node.root
        if self.ledger.claims_under(root):
            return False
        mine = self.ledger.aside_under(root)
        others = set(self.ledger.aside).difference(mine)
        with self.ledger.beside(but | others, root):
            return not self._able(self.look(gang, trial.queue, evict=self._may_evict(gang), later=True))

    def _by_quota_alone(self, trial: Trial) -> bool:
        """Was it refused for quota, whatever the nodes say."""
        if trial.assignment is None or not self._simple(trial.gang, trial.queue) or self._on_nodes(trial):
            return False
        return bool(quota_shorts(trial.why.shortfalls)) and not self.state.memos.may_take(
            trial.queue.name, trial.assignment.usage, back=True
        )

    def _ask_again(self, keys: Collection[Key]) -> None:
        """Have these parked gangs take their turn in this cycle after all."""
        self.seen.update(keys)
        self._take_part_again([self.state.unpark(key) for key in sorted(keys)])

    def admit(self, trial: Trial) -> None:
        super().admit(trial)
        name, _, place = self.state.stands(trial.gang.key)
        self.admitted.setdefault(name, []).append(place)
        self.shortened.add(name)
        if (walk := self.walks.get(name)) is not None:
            walk.give(trial.gang, self.charged[trial.gang.key][1])

    def _holding(self, gang: Workload, admission: Admission) -> Workload:
        """The gang as it will be once this admission is written."""
        now = self.now
        return replace(gang, admission=admission, evicted="", admitted=True, admitted_at=now, reserved_at=now)

    # -- nobody comes back only to be evicted again

    def _unless_evicted_again(self, trial: Trial, after: frozenset[Key] = frozenset()) -> Trial:
        """Keep a gang that was evicted, and fits again or would by eviction, from coming back only to be evicted again.

        A gang that could lawfully evict it once it is back goes first, if it can go now; one that was evicted too is
        asked the same question before (but not about the gangs in `after`, which wait for its answer). Where that gang
        can go only because this one comes back (whose share or priority makes an eviction lawful), or stands behind the
        first of a strict queue, this one stays away for `Rules.stays_back_ms` after its eviction.

        Returns the trial as it stands then: one that cannot go, with the time when it may, if the gang stays away.
        """
        gang = trial.gang
        while self._able(trial):
            evictor = self._evictor(trial)
            if evictor is None:
                return trial
            before = self.look(evictor.gang, evictor.queue)
            again = evictor.gang.evicted == "Preempted" and evictor.gang.key not in after and len(after) < DEEP
            if before.mode is Mode.FIT and again:
                before = self._unless_evicted_again(before, after | {gang.key})
                # Others may have gone before the evictor, and taken what was free for this gang.
                trial = self.look(gang, trial.queue)
                if not self._able(trial):
                    return trial
            if before.mode is Mode.FIT and not evictor.behind:
                self.admit(before)
            elif evictor.behind or not before.found.enough or not self._claim_room(before):
                until = gang.evicted_at + self.rules.stays_back_ms
                if self.now >= until:
                    return trial
                assert trial.assignment is not None
                why = Why(Reason.WAITING_FOR_QUOTA, Detail.BACKOFF, until=until)
                return dataclasses.replace(
                    trial, assignment=None, why=why, found=replace(trial.found, victims=(), enough=False, until=until)
                )
            self.served.add(before.gang.key)
            self.seen.add(before.gang.key)
            self.verdicts = [
                verdict
                for at, verdict in enumerate(self.verdicts)
                if verdict.key != before.gang.key or at == len(self.verdicts) - 1
            ]
            trial = self.look(gang, trial.queue)
        return trial

    def _stays_away(self, trial: Trial) -> bool:
        """Would `_unless_evicted_again` keep it away? Then no claim shall end for it."""
        gang = trial.gang
        if gang.evicted != "Preempted" or self.now >= gang.evicted_at + self.rules.stays_back_ms:
            return False
        evictor = self._evictor(trial)
        return evictor is not None and (evictor.behind or not self._able(self.look(evictor.gang, evictor.queue)))

    def _evictor(self, trial: Trial) -> Trial | None:
        """The look at the first waiting gang of its tree that could evict this one if it were admitted; None if there
        is none among the first by priority and age (`MOST_RIVALS` trials)."""
        assert trial.assignment is not None
        gang, node, ledger = trial.gang, trial.node, self.ledger
        there = trial.assignment if trial.mode is Mode.FIT else self._once_they_left(trial)
        admission = there.admission(trial.queue.name)
        with ledger.trial():
            for key, _ in trial.found.victims:
                ledger.release(key)
            ledger.charge(charge_of(gang, admission))
            rivals = self._rivals(gang, node)
            # In the next cycle those may be evicted too whom this one admits.
            newly = [(one, what) for one, what, _ in self.charged.values()]
            self.as_if = tuple(self._holding(one, what) for one, what in (*newly, (gang, admission)))
            try:
                most = self.steps + MOST_RIVALS
                for rival, queue in rivals:
                    if self.steps >= most:
                        break
                    found = self.look(rival, queue, later=True)
                    # One of its own queue with higher priority that finds other room now may evict it once that is
                    # taken.
                    outranks = queue is trial.queue and rival.effective_priority > gang.effective_priority
                    evicts = outranks and (
                        found.mode is Mode.FIT or (trial.found.victims and found.mode is not Mode.NO_FIT)
                    )
                    if evicts or self._evicts(found, gang):
                        found.behind = queue.strict and not self._is_first(rival)
                        return found
                    if self._is_evicted_by_following(found, gang):
                        found.behind = queue.strict
                        return found
            finally:
                self.as_if = ()
        return None

    @staticmethod
    def _evicts(trial: Trial, gang: Workload) -> bool:
        """Would this gang be among the victims of that trial."""
        return trial.found.enough and any(key == gang.key for key, _ in trial.found.victims)

    def _is_evicted_by_following(self, trial: Trial, gang: Workload) -> bool:
        """Suppose the gang of this trial goes, and those behind it have their turns one after the other: will one of
        the next `BEHIND` evict `gang`."""
        ledger, queue, name = self.ledger, trial.queue, trial.queue.name
        with ledger.trial():
            for _ in range(BEHIND):
                self.place(trial)
                there = trial.assignment if trial.mode is Mode.FIT else None
                if there is None and trial.found.enough:
                    there = self._once_they_left(trial)
                if there is None or there.mode is not Mode.FIT:
                    return False
                for key, _ in trial.found.victims:
                    ledger.release(key)
                ledger.charge(charge_of(trial.gang, there.admission(name)))
                following = self._following(trial)
                if following is None:
                    return False
                if self._simple(following, queue):
                    usage = self.demand(following, queue).first
                    if not trial.node.fits(usage) and not self.state.memos.may_take(name, usage):
                        return False
                trial = self.look(following, queue, later=True)
                if self._evicts(trial, gang):
                    return True
        return False

    def _following(self, trial: Trial) -> Workload | None:
        """The next gang without room of the same queue, once this one has gone: in a strict queue its first, in another
        the next of the same bucket."""
        if trial.queue.strict:
            rest: Iterable[QueueKey] = self._firsts(trial.queue.name, trial.queue)
        else:
            rest = self.state.behind(trial.gang.key)
        place = next(self._without_room(rest), None)
        return None if place is None else self.state.workloads[order.key_of(place)]

    def _without_room(self, places: Iterable[QueueKey]) -> Iterator[QueueKey]:
        """Of these, who neither holds nor claims room."""
        claims, charges = self.ledger.claims, self.ledger.charges
        return (place for place in places if (key := order.key_of(place)) not in claims and key not in charges)

    def _rivals(self, gang: Workload, node: QuotaNode) -> list[tuple[Workload, ClusterQueue]]:
        """Waiting gangs of its tree that might evict this one, which is charged at `node`, by priority and age: all for
        whom a cheap bound (`_outranks`) does not rule it out."""
        state, ledger = self.state, self.ledger
        # A queue within nominal quota loses nothing to other queues; in its own a gang may be evicted for one that
        # comes before it. (What it borrows may be that of other gangs of its queue: it may be evicted for its nodes.)
        borrowing, held = node.borrowing(node.usage), ledger.charges[gang.key].pairs
        rivals: list[tuple[QueueKey, Workload, ClusterQueue]] = []
        for other in node.root.queues():
            queue = state.queues[other.name]
            within = queue.preemption.within_cluster_queue is not PreemptionPolicy.NEVER
            if other.name not in state.lines or not (within if other is node else borrowing):
                continue
            firsts = self._firsts(other.name, queue)
            # Also who has had its turn, and room is kept for it since.
            kept = (state.place_in(other.name, key) for key in ledger.aside_under(node.root))
            for place in (*firsts, *(place for place in kept if place is not None and place not in firsts)):
                rival = state.workloads[order.key_of(place)]
                out = rival.key in self.served or rival.key in ledger.claims or rival.key == gang.key
                if out or rival.preemption_gated:
                    continue
                if self._may_evict(rival) and self._outranks(rival, queue, other, node, held):
                    rivals.append((place, rival, queue))
        return [(rival, queue) for _, rival, queue in sorted(rivals, key=lambda entry: entry[0][1:])]

    def _firsts(self, name: str, queue: ClusterQueue) -> list[QueueKey]:
        """The gangs of a queue that may have a turn in this cycle or the next: the first without room of each bucket;
        of a strict queue the first alone."""
        line = self.state.lines[name]
        if queue.strict:
            return list(islice(self._without_room(line), 1))
        taken = self.walks[name].taken if name in self.walks else {}
        rest = (islice(places, taken.get(bucket, 0), None) for bucket, places in line.buckets.items())
        return [first for places in rest if (first := next(self._without_room(places), None)) is not None]

    def _outranks(
        self,
        rival: Workload,
        queue: ClusterQueue,
        mine: QuotaNode,
        theirs: QuotaNode,
        held: Collection[FlavorResource],
    ) -> bool:
        """Might the law let `rival`, of the queue at `mine`, evict a gang at `theirs` that holds these? Cheap, and
        never False by mistake."""
        if mine is theirs:
            return True
        first = self.demand(rival, queue).first
        if not first:
            return False
        side, other = almost_common(mine, theirs)
        if not side.is_queue or queue.preemption.within_cluster_queue is not PreemptionPolicy.NEVER:
            return True  # who leaves on its own side may make it lawful
        resources = frozenset(fr[1] for fr in first) if self.rules.contested_share else None
        share, wanted = other.share(None, resources), [first]
        if any(len(group.flavors) > 1 for group in queue.groups):
            wanted = self._smallest_usages(rival, queue, held)
        return any(mine.holds(usage) or mine.share(usage, resources) < share for usage in wanted)

    def _smallest_usages(self, rival: Workload, queue: ClusterQueue, held: Collection[FlavorResource]) -> list[Usage]:
        """For each (flavor, resource) that is `held` and that the gang might ask for: the least of it that one of its
        pod sets could use, with as few pods as it may have. One usage each."""
        out: list[Usage] = []
        for flavor, resource in sorted(held):
            asked = (
                dict(part.each).get(resource, 0) * min(part.count, part.pod_set.min_count or part.count)
                for part, open_to in self._usable_flavors(rival, queue)
                for group, turn in zip(queue.groups, open_to, strict=True)
                if resource in group.covered and flavor in turn
            )
            least = min((amount for amount in asked if amount), default=0)
            if least:
                out.append({(flavor, resource): least})
        return out

    def _usable_flavors(
        self, gang: Workload, queue: ClusterQueue
    ) -> list[tuple[scan.PodSetRequest, list[tuple[str, ...]]]]:
        """(request of a pod set, per resource group of the queue the flavors that it may use), for each pod set. Worked
        out once a cycle for a bucket."""
        at = self.state.bucket(gang)
        known = self._usable.get(at)
        if known is None:
            turns = self.state.turns
            known = [(part, turns(gang, queue.name, [part.pod_set.name])) for part in self.asks(gang, queue)]
            self._usable[at] = known
        return known

    # -- room for those who wait for it

    def _may_evict(self, gang: Workload) -> bool:
        """May others be evicted for it? Not for as long again after a claim that came to nothing. Nor while victims of
        its are overdue: it cannot go without their room, and further victims would leave, come back and leave again."""
        return self._may_claim(gang) and not self._overdue_victims(gang)

    def _overdue_victims(self, gang: Workload) -> tuple[str, ...]:
        """uids of its victims that have been leaving for longer than a claim lasts. (Before that it may evict more: a
        controller may have ended after it had written some of the evictions.) Victims from before it was evicted itself
        do not count."""
        since, longer = gang.evicted_at if gang.evicted else 0, self.now - self.rules.claim_ms
        return tuple(one.uid for one in self.leave_for.get(gang.uid, ()) if since <= one.evicted_at <= longer)

    def _may_claim(self, gang: Workload) -> bool:
        """May room be claimed for it? Not for as long again after a claim with victims that came to nothing."""
        record = gang.claims
        return record is None or not record.victims or self.now >= record.until + self.rules.claim_ms

    def _claim(self, trial: Trial, admission: Admission, victims: tuple[str, ...]) -> None:
        """Claim this room for a gang that evicts `victims` (uids); set it aside where there are none."""
        gang = trial.gang
        until = -(-(self.now + self.rules.claim_ms) // 1000) * 1000  # stored in whole seconds
        self.decisions.append(Claim(gang.key, gang.uid, ClaimRecord(admission, victims, until)))
        charge = claim_of(gang, admission)
        if victims:
            self.ledger.claim(charge, until, victims)
        else:
            self.ledger.set_aside(charge, until)

    def _once_they_left(self, trial: Trial) -> Assignment:
        """Its assignment once its victims, and those who leave already, are gone."""
        leave = {key for key, _ in trial.found.victims} | self.going(trial.gang, trial.queue)
        charges = self.ledger.charges
        with self.ledger.as_if_gone(charges[key] for key in sorted(leave) if key in charges):
            return self._again(trial)

    def _claim_room(self, trial: Trial) -> bool:
        """Evict its victims and claim their room. False, and nothing is done, where the room would not be enough."""
        gang = trial.gang
        there = self._once_they_left(trial)
        if there.mode is not Mode.FIT:
            return False
        self.evict(trial)
        leave = [key for key, _ in trial.found.victims] or sorted(self.going(gang, trial.queue))
        uids = sorted(self.state.workloads[key].uid for key in leave if key in self.state.workloads)
        self._claim(trial, there.admission(trial.queue.name), tuple(uids[:CLAIM_VICTIMS]))
        why = replace(
            trial.why,
            reason=Reason.WAITING_FOR_PREEMPTED,
            detail=Detail.VICTIMS_LEAVING,
            subject=f"{len(leave)} evicted workload(s)",
        )
        self.verdicts.append(Verdict(gang.key, Standing.WAITING, why, self.asked(trial)))
        return True

    def _wait_for_claim(self, walk: Walk, bucket: int, trial: Trial) -> None:
        """Park a gang that has a claim and whose room is not free yet; renew the claim, if it is one of those that
        are."""
        gang = trial.gang
        record = gang.claims
        held = self.ledger.aside.get(gang.key)
        if held is None or record is None:
            held = self.ledger.claims[gang.key]
            until = held.until
        else:
            # Nobody was evicted for this one: the claim lasts until it is admitted, or is not what the gang would get.
            if held.until - self.now <= self.rules.claim_ms // 2 and self._still_applies(trial, record.admission):
                self._claim(trial, self._renewed(trial, record.admission), ())
                held = self.ledger.aside[gang.key]
            until = held.until - self.rules.claim_ms // 2
            if until <= self.now:
                until = held.until  # not renewed: nothing comes of another look before it has run out
        leaving = () if record is None else tuple(uid for uid in record.victims if self.state.is_leaving(uid))
        if leaving:
            why = replace(
                trial.why,
                reason=Reason.WAITING_FOR_PREEMPTED,
                detail=Detail.VICTIMS_LEAVING,
                subject=f"{len(leaving)} evicted workload(s)",
            )
        elif trial.mode is Mode.NO_FIT:
            why = trial.why  # the claim only runs out
        else:
            why = replace(trial.why, detail=Detail.CLAIMED, subject="it", until=self.ledger.end_of(held))
        verdict = Verdict(gang.key, Standing.WAITING, why, self.asked(trial))
        self.verdicts.append(verdict)
        lack = self._lack(trial)
        if lack is not None and gang.key in self.ledger.claims:
            lack = replace(lack, claim=gang.key, victims=leaving)
        elif lack is not None:
            # Who was refused beside what is set aside for others has a turn whenever something changed: it matters who
            # asks before whom.
            lack = None if trial.beside else replace(lack, first=True)
        turned, never = gang.key in self.turned, self._never_goes(trial)
        memo = Memo(verdict, self._on_nodes(trial), until, lack, turned, self._kept_from(trial), never)
        self.state.memos.park(walk.queue.name, bucket, memo)
        walk.skip()

    def _still_applies(self, trial: Trial, claimed: Admission) -> bool:
        """Could this still be its admission? Its LocalQueue may name another ClusterQueue since it was claimed, that
        may have less quota or other flavors, or the gang be smaller. (Where no node at all is ready the fault is in the
        network, and the claim is kept.)"""
        never = trial.mode is Mode.NO_FIT and not trial.beside
        if never and any(node.ready for node in self.ledger.nodes.nodes()):
            return False
        flavors = {flavor.name for group in trial.queue.groups for flavor in group.flavors}
        counts = {pod_set.name: pod_set.count for pod_set in trial.gang.pod_sets}
        return claimed.cluster_queue == trial.queue.name and all(
            part.count <= counts.get(part.name, 0) and all(flavor in flavors for _, flavor in part.flavors)
            for part in claimed.pod_sets
        )

    def _renewed(self, trial: Trial, claimed: Admission) -> Admission:
        """What it claims from now on: the same, with other nodes for those that it cannot use any more (cordoned, or
        gone), for which it would wait for ever. Every `KEPT_IN_VAIN` periods it is also asked whether elsewhere, where
        gangs come and go, it would have room sooner than where it waits for gangs that run for days."""
        gang, queue = trial.gang, trial.queue
        counts = {part.name: part.count for part in claimed.pod_sets}
        flavors = {part.name: dict(part.flavors) for part in claimed.pod_sets}
        asked = scan.requests(gang, queue, self.rules, counts)
        period, first = max(1, KEPT_IN_VAIN * self.rules.passed_over_ms), self.state.passed_over_at(gang)
        many, ago = divmod(self.now - first, period)
        if many and ago < self.rules.claim_ms:
            later = self._came_later(trial, first + (many - 1) * period)
            with self.ledger.beside({gang.key}, trial.node.root), self.ledger.as_if_gone(later):
                where: Assignment | None = self.pinned(gang, queue, asked, flavors, self._avoided(gang), claimed)
                if where is not None and where.mode is not Mode.FIT:
                    where = self.look(gang, queue, evict=False).assignment
            if where is not None and where.mode is Mode.FIT:
                moved = where.admission(queue.name)
                if self._room_now(trial, moved) >= self._room_now(trial, claimed):
                    return moved
        if all(part.topology is None for part in claimed.pod_sets):
            return claimed
        with self.ledger.beside({gang.key}, trial.node.root), self.ledger.without_gangs(queue.name):
            there = self.pinned(gang, queue, asked, flavors, self._avoided(gang), claimed)
        return there.admission(queue.name) if there.mode is Mode.FIT else claimed

    def _room_now(self, trial: Trial, admission: Admission) -> int:
        """How much of this admission has quota, and room on its nodes, in the book as it is now. In thousandths of a
        pod, because half the devices of a pod may be free."""
        nodes, quota, hosts, out = self.ledger.nodes, Counter[FlavorResource](), dict[str, dict[str, int]](), 0
        asks = {part.pod_set.name: part for part in self.asks(trial.gang, trial.queue)}
        for part in (part for part in admission.pod_sets if part.name in asks):
            flavors, asked = dict(part.flavors), asks[part.name]
            each = {(flavors[resource], resource): amount for resource, amount in asked.each if resource in flavors}
            left = {fr: trial.node.available(fr) - quota[fr] for fr in each}
            share = min([1000 * part.count, *(1000 * left[fr] // amount for fr, amount in each.items() if amount)])
            if part.topology is not None and part.topology.levels[-1] == HOSTNAME_LABEL:
                there = 0
                for domain in part.topology.domains:
                    host = nodes.resolve(domain.values[-1])
                    free = hosts.setdefault(host, nodes.free(host))
                    requests = [(name, amount) for name, amount in asked.pod_set.shape.requests if amount]
                    most = [1000 * free.get(name, 0) // amount for name, amount in requests]
                    fits = max(0, min([1000 * domain.count, *most]))
                    for name, amount in requests:
                        free[name] = free.get(name, 0) - fits * amount // 1000
                    there += fits
                share = min(share, there)
            share = max(0, share)
            quota.update({fr: share * amount // 1000 for fr, amount in each.items()})
            out += share
        return out

    def _came_later(self, trial: Trial, since: int) -> list[Charge]:
        """Charges of the gangs that leave, or were admitted after this time (ms). Had its room been kept where they
        stand, this gang would have gone before them; but not before those within their quota, who would take it
        back."""
        tree, mine = self.ledger.tree, trial.node
        out = []
        for charge in self._coming_line().after(since):
            node = tree.queue(charge.queue)
            if node is None or node is mine or node.root is not mine.root or node.borrowing(charge.pairs):
                out.append(charge)
        return out

    def _coming_line(self) -> _ComingLine:
        return _ComingLine(self.state.latest(), self.charged, self.ledger.charges)

    def _lack(self, trial: Trial) -> Lack | None:
        """What it lacks, in a form by which a look at the book can tell later whether it still does; None where only a
        trial can."""
        assignment, queue, gang = trial.assignment, trial.queue, trial.gang
        if assignment is None or not self._simple(gang, queue):
            return None
        wanted, why = self._wanted(trial, assignment), trial.why
        if assignment.mode is Mode.NO_FIT:
            # What eviction could do was not asked; without it, only what the tree does not change says no for good.
            never = assignment.reason is not Reason.WAITING_FOR_QUOTA
            return replace(wanted, never=True) if never else None
        blocked = None
        if why.detail is Detail.CLAIMED and why.subject != "it":
            namespace, _, name = why.subject.partition("/")
            blocked = ((namespace, name), why.until)
        shorts = quota_shorts(why.shortfalls)
        by_nodes = not shorts and any(choice.misfits for choice in assignment.pod_sets)
        return replace(
            wanted,
            shorts=shorts,
            evicts=self._may_evict(gang),
            leave_for_it=self._overdue_victims(gang),
            first=trial.first,
            beside=trial.beside,
            blocked_by=blocked,
            placing=assignment.placing if by_nodes and not gang.lost_nodes else (),
        )

    def _wanted(self, trial: Trial, assignment: Assignment) -> Lack:
        """A Lack that says only what the gang would take, and which nodes it avoids."""
        usage = tuple(sorted((fr, amount) for fr, amount in assignment.usage.items() if amount))
        frs = frozenset([fr for fr, _ in usage])
        return Lack(trial.queue.name, usage, frs, avoid=self._avoided(trial.gang))

    def _simple(self, gang: Workload, queue: ClusterQueue) -> bool:
        """Is there nothing to choose for this gang (one flavor a group, no reduced counts), and nobody to evict but by
        the law of shares: then a look at the book answers much of what else takes a trial."""
        return (
            self.rules.promises
            and all(len(group.flavors) == 1 for group in queue.groups)
            and all(pod_set.min_count is None for pod_set in gang.pod_sets)
            and queue.preemption.within_cluster_queue is PreemptionPolicy.NEVER
        )

    @staticmethod
    def _able(trial: Trial) -> bool:
        """Does it fit, now or once its victims are gone."""
        return trial.mode is Mode.FIT or trial.found.enough

    def _claims_around(self, trial: Trial) -> list[Key]:
        """Owners of claims that may be in its way, those whose claims end last first."""
        ledger, root = self.ledger, trial.node.root
        around = ledger.claims if self._on_nodes(trial) else ledger.claims_under(root)
        return [
            key
            for key, held in reversed(first_to_end(around).items())
            if key != trial.gang.key
            and (node := ledger.tree.queue(held.charge.queue)) is not None
            and (node.root is root or held.charge.admission is not None)
        ]

    def _take_back_claims(self, trial: Trial) -> Trial:
        """A gang that does not fit may take back what others only claim.

        It may where it could evict the owner as soon as that had what it claims: it is within nominal quota, of its
        queue or of the cohort on its side, and the claim is beyond that of its queue. The fewest claims that make room
        end. Any other gang waits, and the first of its queue is told for whom.

        What is taken back is out of the book now, and noted in `taken_back` until it is known whether the gang goes.
        """
        if trial.assignment is None or self._able(trial):
            return trial
        claims = self._claims_around(trial)
        if not claims:
            return trial
        borrowed = self._claims_it_may_end(trial, claims)
        better = self._look_without_claims(trial, borrowed) if borrowed else None
        if better is not None:
            return self._end_fewest_claims(trial, better, borrowed)
        if not self._is_first_without_room(trial.gang):
            return trial
        if not self._on_nodes(trial) and not self._has_quota_without(claims, trial):
            return trial
        first = self.ledger.claims[claims[-1]]
        if self._fits_without(claims, trial):
            name = "/".join(first.charge.key)
            trial.why = replace(trial.why, detail=Detail.CLAIMED, subject=name, until=self.ledger.end_of(first))
        return trial

    def _claims_it_may_end(self, trial: Trial, claims: list[Key]) -> list[Key]:
        """Those of these claims that a gang may take back, the ones to spare first in front."""
        assert trial.assignment is not None
        name, usage = trial.queue.name, trial.assignment.usage
        if self._simple(trial.gang, trial.queue) and not self.state.memos.may_take(name, usage, back=True):
            return []
        entitled = _within_nominal(trial.node, usage)
        borrowed = self._borrowed_claims(claims, trial.node.root)
        return [key for key in borrowed if entitled or self._entitled_against(trial, key)]

    def _look_without_claims(self, trial: Trial, claims: list[Key]) -> Trial | None:
        """What comes of another look if these claims end; None where the gang would not go then, or would go in other
        flavors, for which it may not end them."""
        assert trial.assignment is not None
        with self.ledger.without_claims(claims):
            better = self.look(trial.gang, trial.queue, evict=self._may_evict(trial.gang))
            comes = self._able(better) and not self._stays_away(better)
        if comes and better.assignment is not None and better.assignment.usage != trial.assignment.usage:
            within = _within_nominal(trial.node, better.assignment.usage)
            comes = within or all(self._entitled_against(better, key) for key in claims)
        return better if comes else None

    def _end_fewest_claims(self, trial: Trial, better: Trial, claims: list[Key]) -> Trial:
        """Take back as few of these claims as it takes, and what comes of a look beside the others. `better`: what came
        of one without any of them. Each claim is put back in turn, and stays if the gang can go beside it."""
        ledger = self.ledger
        mark = ledger.mark()
        kept = {key: ledger.claims[key] for key in claims}
        for key in claims:
            ledger.unclaim(key)
        known = True
        """Is `better` what a look at the book as it is now would say."""
        for key in claims:
            held = kept[key]
            ledger.claim(held.charge, held.until, held.victims)
            if self._fits_now(trial):
                known = False
                continue
            again = self.look(trial.gang, trial.queue, evict=self._may_evict(trial.gang))
            # Others left for a claim with victims: it stays. For one that is only set aside nobody more is evicted.
            if self._able(again) and (held.victims or set(again.found.victims) <= set(better.found.victims)):
                better, known = again, True
                continue
            ledger.unclaim(key)
            self.taken_back[key] = held, key in ledger.aside
        if not known:
            self.steps -= 1  # it was counted when it was found to fit
            better = self.look(trial.gang, trial.queue, evict=self._may_evict(trial.gang))
        ledger.keep(mark)
        return better

    def _fits_now(self, trial: Trial) -> bool:
        """Would another look find that it fits? Counted as a trial if so. False where only a look can tell."""
        gang, assignment = trial.gang, trial.assignment
        assert assignment is not None
        if not assignment.mode.preempts or not self._simple(gang, trial.queue):
            return False
        fits = trial.node.fits(assignment.usage) and self._on_free_nodes(gang, assignment, self._avoided(gang))
        self.steps += fits
        return fits

    def _fits_without(self, claims: list[Key], trial: Trial) -> bool:
        """Would it fit if nothing of this were claimed."""
        gang, assignment, ledger = trial.gang, trial.assignment, self.ledger
        assert assignment is not None
        if not assignment.mode.preempts or not self._simple(gang, trial.queue):
            with ledger.without_claims(claims):
                return self.look(gang, trial.queue, evict=False, later=True).mode is Mode.FIT
        self.steps += 1
        if not self._has_quota_without(claims, trial):
            return False
        avoid = self._avoided(gang)
        # What there is room for beside these claims, there is without them.
        if ledger.room(assignment.placing, owner=gang.key, avoid=avoid):
            return True
        with ledger.unclaimed_on_nodes(claims):
            return self._on_free_nodes(gang, assignment, avoid)

    def _is_first_without_room(self, gang: Workload) -> bool:
        """Is it the first of its queue, apart from gangs that were admitted in this cycle or have room kept for
        them."""
        queue, root = self.state.queue_of(gang), self.node(self.state.queue_of(gang)).root
        keep = {*self.ledger.claims_under(root), *self.ledger.aside_under(root)}
        before = [at for key in keep if (at := self.state.place_in(queue, key)) is not None]
        before += self.admitted.get(queue, ())
        return self.state.is_first(gang.key, before, self._used(queue))

    def _has_quota_without(self, claims: list[Key], trial: Trial) -> bool:
        """Would there be enough quota for it without these claims."""
        assert trial.assignment is not None
        tree, mine, usage = self.ledger.tree, trial.node, trial.assignment.usage
        charges = [self.ledger.claims[key].charge for key in claims]
        held = [
            (node, charge.usage)
            for charge in charges
            if (node := tree.queue(charge.queue)) is not None and node.root is mine.root
        ]
        free = mine.available_without(usage, held)
        return all(free[fr] >= amount for fr, amount in usage.items())

    def _borrowed_claims(self, claims: list[Key], root: QuotaNode) -> list[Key]:
        """Of these claims under this root, those beyond the nominal quota of their queue, in the order in which they
        are served: higher priority first, then the oldest. In that order a queue's claims count as within its quota,
        until that is used up."""
        ledger, workloads = self.ledger, self.state.workloads
        used_beside: dict[str, dict[FlavorResource, int]] = {}
        suspects: list[tuple[Key, Held, QuotaNode]] = []
        for key in claims:
            held = ledger.claims[key]
            queue, usage = held.charge.queue, held.charge.usage
            node = ledger.tree.queue(queue)
            if node is not None and node.root is root and node.borrowing(fr for fr, _ in usage):
                suspects.append((key, held, node))
                used = used_beside.setdefault(queue, dict(node.usage))
                for fr, amount in usage:
                    used[fr] -= amount
        suspects.sort(key=lambda one: (-workloads[one[0]].effective_priority, one[1].until, one[0]))
        beyond = []
        for key, held, node in suspects:
            used = used_beside[held.charge.queue]
            if any(used[fr] + amount > node.subtree.get(fr, 0) for fr, amount in held.charge.usage):
                beyond.append(key)
                continue
            for fr, amount in held.charge.usage:
                used[fr] += amount
        return beyond

    def _entitled_against(self, trial: Trial, key: Key) -> bool:
        """The gang is beyond the quota of its queue: is it within that of the cohort on its side, so that it could
        evict the owner of this claim, whatever the two priorities are."""
        assert trial.assignment is not None
        node, usage = trial.node, trial.assignment.usage
        theirs = self.ledger.tree.queue(self.ledger.claims[key].charge.queue)
        if not usage or theirs is None or theirs is node or not may_always_reclaim(trial.queue, self.rules):
            return False
        mine, _ = almost_common(node, theirs)
        rest: Usage = usage
        below, around = node.path(), mine.path()
        for at in below[: -len(around)]:
            rest = at.risen(rest)
        return all(not mine.exceeds(fr, rest.get(fr, 0)) for fr in usage) and all(
            at.borrowing(usage) for at in theirs.path() if at not in around
        )

    def _restore_claims(self) -> None:
        """Put claims that were taken back into the book again: the gang that needed them ended does not go."""
        for held, aside in self.taken_back.values():
            if aside:
                self.ledger.set_aside(held.charge, held.until)
            else:
                self.ledger.claim(held.charge, held.until, held.victims)
        self.taken_back.clear()

    def _end_taken_claims(self, before: int) -> None:
        """Decide that the claims that were taken back end. `before`: index in `decisions` at which the gang's turn
        began; the ends come in front of what was decided since."""
        taken = self.decisions[before:]
        del self.decisions[before:]
        for key in self.taken_back:
            self._end_claim(key)
        self.taken_back.clear()
        self.decisions += taken

    def _end_claim(self, key: Key) -> None:
        """Decide that the claim of this gang ends now."""
        before = next((d for d in self.decisions if isinstance(d, Claim) and d.key == key), None)
        if before is not None:
            self.decisions.remove(before)
            record = before.record
        else:
            stored = self.state.workloads[key].claims
            if stored is None:
                return
            record = stored
        gang = self.state.workloads[key]
        until = self.now // 1000 * 1000  # it is over, and stored in whole seconds
        self.decisions.append(Claim(key, gang.uid, replace(record, until=until)))

    def _keep_room_if_passed_over(self, walk: Walk, trial: Trial) -> bool:
        """Set room aside for the first of a queue that has waited too long: as it becomes free it is the gang's own.
        Nobody is evicted for it. False where that is not due, or there would be no room even if all others left."""
        gang, rules = trial.gang, self.rules
        if not rules.promises or trial.mode is Mode.NO_FIT or gang.preemption_gated:
            return False
        if not self._is_first(gang):
            return False
        trial.first = True
        if not self._may_claim(gang):
            return False  # one of its own came to nothing: the record of that keeps it from the next
        at = self.state.passed_over_at(gang)
        if self.now < at:
            until = trial.found.until
            trial.found = replace(trial.found, until=at if until is None else min(at, until))
            return False
        trial.due = True
        assert trial.assignment is not None
        with self.ledger.beside({gang.key}, trial.node.root), self.ledger.without_gangs(walk.queue.name):
            there = self._again(trial) if trial.node.fits(trial.assignment.usage) else None
            chooses = any(len(group.flavors) > 1 for group in walk.queue.groups)
            chooses = chooses or any(pod_set.min_count is not None for pod_set in gang.pod_sets)
            if chooses and (there is None or there.mode is not Mode.FIT):
                there = self.look(gang, walk.queue, evict=False).assignment  # in others, or with fewer pods
        if there is None or there.mode is not Mode.FIT:
            trial.found = replace(trial.found, by_nodes=True)  # beside what is kept for others, they may be short
            return False
        there = self._free_soonest(trial, there)
        self._claim(trial, there.admission(trial.queue.name), ())
        why = replace(trial.why, detail=Detail.CLAIMED, subject="it", until=0)
        self.verdicts.append(Verdict(gang.key, Standing.WAITING, why, self.asked(trial)))
        return True

    def _free_soonest(self, trial: Trial, there: Assignment) -> Assignment:
        """The same on nodes where only those are in its way who came last: of those who have run for longest the rest
        mostly takes longest. (Empty nodes are alike, and on the first of them somebody may stand for days.)"""
        gang, queue, ledger, avoid = trial.gang, trial.queue, self.ledger, self._avoided(trial.gang)
        effort = ledger.nodes.effort
        if not there.placing or self._stood(gang) is not None:
            return there

        def fits(gone: Sequence[Charge]) -> bool:
            effort.spend(EFFORT_PER_GONE * len(gone))
            with ledger.gone_from_nodes(gone):
                return self._on_free_nodes(gang, there, avoid)

        with ledger.beside({gang.key}, trial.node.root), effort.within(EFFORT_PER_LOOK):
            if fits(()):
                return there  # nobody on nodes is in its way, but those who have its quota
            line = self._coming_line()
            low, high, reach = 0, len(line), KEPT_AMONG
            while (middle := line.between(low, max(low + 1, min(reach, (low + high) // 2)), high)) is not None:
                # Mostly it takes few, and each of them makes a question longer; of many it is enough to know nearly.
                if fits(line.first(middle)):
                    high, reach = middle, len(line)
                else:
                    low, reach = middle, reach * KEPT_AMONG
                if high > KEPT_AMONG**2 and high - low <= high // KEPT_AMONG:
                    break
            if high == len(line):
                return there
            with ledger.without_gangs(queue.name, line.first(high)):
                asked = scan.requests(gang, queue, self.rules, {one.name: one.request.count for one in there.pod_sets})
                sooner = self.pinned(gang, queue, asked, there.flavors(), avoid)
        return sooner if sooner.mode is Mode.FIT else there

    @staticmethod
    def _never_goes(trial: Trial) -> bool:
        """Would it not go even in an empty cluster, or is it behind a gate for which no room is kept? Then those behind
        it need not wait for it, unless the queue is strict. (Room that is kept for others counts as taken on empty
        nodes, too: so not after a look beside that.)"""
        if trial.assignment is None or trial.beside or trial.queue.strict:
            return False
        return trial.mode is Mode.NO_FIT or trial.gang.preemption_gated

    def _refused(self, trial: Trial) -> Verdict:
        return Verdict(trial.gang.key, Standing.PARKED, trial.why, self.asked(trial))

    def _park(self, walk: Walk, bucket: int, trial: Trial, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        held = walk.line.buckets[bucket]
        if len(held) > 1 and not self.state.told(walk.queue.name, bucket, verdict.why):
            taken = walk.taken.get(bucket, 0)
            self.verdicts.extend(replace(verdict, key=order.key_of(place)) for place in held[taken + 1 :])
        avoid = [avoided.until for avoided in trial.gang.avoid if avoided.until > self.now]
        times = [*avoid, *([trial.found.until] if trial.found.until is not None else [])]
        if trial.gang.claims is not None and not self._may_claim(trial.gang):
            times.append(trial.gang.claims.until + self.rules.claim_ms)
        # The first of a queue may be due for a claim, for which others stand in the way than for a trial.
        lack = self._lack(trial) if not trial.due else None
        turned = trial.gang.key in self.turned
        memo = Memo(
            verdict, self._on_nodes(trial), min(times, default=None), lack, turned, never=self._never_goes(trial)
        )
        self.state.memos.park(walk.queue.name, bucket, memo)
        if memo.never:
            self.out_of_the_way.add(walk.queue.name)
        walk.skip()

    # -- who lost nodes

    def _in_rotation(self, what: str, keys: Iterable[Key]) -> Iterator[tuple[Workload, Admission, ClusterQueue]]:
        """(gang, what it holds, its queue) of those of these gangs that hold quota, in turns over several cycles.

        They take half of a cycle's budget at most, for when a zone fails they are many, and others have turns too; the
        next cycle goes on behind the last. `what` names the rotation. A gang for which nothing was decided comes again
        only once something changed in its tree or on nodes."""
        state = self.state
        known = sorted(keys)
        at = bisect_right(known, state.hit_upto.get(what, ("", "")))
        for key in (*known[at:], *known[:at]):
            gang = state.workloads[key]
            held = gang.admission
            queue = None if held is None else state.queues.get(held.cluster_queue)
            if held is None or queue is None:
                continue
            book = (
                gang,
                self._avoided(gang),
                self.ledger.nodes.version,
                self.ledger.version_of(self.node(queue.name).root),
            )
            if state.no_luck.get(key) == book:
                continue
            if self.cost > self.budget // 2:
                self.more = True
                return
            state.hit_upto[what] = key
            self.steps += 1
            decided = len(self.decisions)
            yield gang, held, queue
            if len(self.decisions) == decided:
                state.no_luck[key] = book

    def _replace_lost_nodes(self) -> None:
        """Give gangs that run on without their lost nodes others in place of these."""
        workloads = self.state.workloads
        hit = [key for key in self.state.second if workloads[key].lost_nodes and not workloads[key].evicted]
        for gang, _, queue in self._in_rotation("second", hit):
            with self.ledger.trial():
                self.ledger.release(gang.key)
                assignment = self.stand_again(gang, queue)
            if assignment.mode is Mode.FIT:
                admission = assignment.admission(queue.name)
                self.ledger.release(gang.key)
                self.ledger.charge(charge_of(gang, admission))
                self.decisions.append(Replace(gang.key, gang.uid, admission))

    def _claim_after_node_loss(self) -> None:
        """A gang that is on its way out because it lost nodes claims what is left of them, and others in their place,
        so that it finds them when its last pod is gone."""
        if not self.rules.promises:
            return
        claims = {key: self.state.workloads[key].claims for key in self.hit}
        lasts = self.now + self.rules.claim_ms // 2
        hit = [key for key, claim in claims.items() if claim is None or claim.until <= lasts]
        for gang, held, queue in self._in_rotation("leaving", hit):
            waits = replace(gang, admission=None, admitted=False, claims=ClaimRecord(held, (), 0), cursor=())
            pinned = {part.name: dict(part.flavors) for part in held.pod_sets}
            avoid = self._avoided(gang)
            with self.ledger.trial(), self.ledger.suspended(gang.key):
                self.ledger.release(gang.key)
                assignment = self.pinned(waits, queue, scan.requests(waits, queue, self.rules), pinned, avoid)
                if assignment.mode is not Mode.FIT and any(one.min_count is not None for one in gang.pod_sets):
                    done = dict(gang.reclaimable)
                    had = {part.name: max(0, part.count - done.get(part.name, 0)) for part in held.pod_sets}
                    asked = scan.requests(waits, queue, self.rules, had)
                    assignment = self.pinned(waits, queue, asked, pinned, avoid)
            if assignment.mode is not Mode.FIT:
                continue
            admission = assignment.admission(queue.name)
            until = -(-(self.now + self.rules.claim_ms) // 1000) * 1000
            self.decisions.append(Claim(gang.key, gang.uid, ClaimRecord(admission, (), until)))
            self.ledger.claim(claim_of(gang, admission), until)


class _ComingLine:
    """Those who hold quota, who came last first; those that this plan admits came last of all. Its parts are first
    `many` of them, where who came at one moment is not told apart: they are in the way together."""

    def __init__(
        self, held: Sequence[tuple[int, Key]], admitted: Collection[Key], charges: Mapping[Key, Charge]
    ) -> None:
        self._held = held
        self._admitted = [key for key in admitted if key in charges]
        self._charges = charges
        self._new = self._place(bisect_right, -NEW)

    def __len__(self) -> int:
        return len(self._admitted) + len(self._held)

    def after(self, since: int) -> list[Charge]:
        """Those who came after this time (ms)."""
        return self._charges_of(self._place(bisect_left, -since))

    def first(self, many: int) -> list[Charge]:
        """Those among the first that have nodes."""
        return [charge for charge in self._charges_of(many) if charge.admission is not None]

    def between(self, low: int, many: int, high: int) -> int | None:
        """A number of the first between two others at which one may part them, near `many`; None: there is none."""
        if high - low < 2:
            return None
        if many <= self._new:
            begin, end = 0, self._new
        else:
            when = self._held[many - len(self._admitted) - 1][0]
            begin, end = self._place(bisect_left, when), self._place(bisect_right, when)
        return next((at for at in (end, begin) if low < at < high), None)

    def _place(self, find: Callable[..., int], when: int) -> int:
        return len(self._admitted) + find(self._held, when, key=_WHEN)

    def _charges_of(self, many: int) -> list[Charge]:
        keys = [*self._admitted, *(key for _, key in self._held[: max(0, many - len(self._admitted))])]
        return [charge for key in keys if (charge := self._charges.get(key)) is not None]
