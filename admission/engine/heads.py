"""Heads: Kueue's way through the queues, the first gangs of each queue in one cycle (`Rules.heads_per_queue`).

A cycle has two halves, as Kueue's has. All heads are *nominated*: each is looked at on the book as the cycle found it.
Then they are *processed* one after the other, in the classical order or in that of the shares, on the book as those
before them left it: a gang is admitted, or evicts others, or keeps its room from those behind it for this cycle. One
that no longer fits when its turn comes waits for the next cycle.

The trees of cohorts are looked at whole or not at all; those for which the budget had no room come first in the next
cycle. Where Kueue tries the head of a strict queue again in each cycle, here it may stay parked with a memo of the room
that it keeps from others (`Memo.keeps`), and takes part as long as that may matter to somebody (`_those_who_keep`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from admission.engine import order
from admission.engine.flavors import Mode
from admission.engine.ledger import Charge, charge_of
from admission.engine.line import Memo
from admission.engine.model import (
    ClusterQueue,
    Detail,
    Evict,
    EvictReason,
    FlavorResource,
    Key,
    Pairs,
    Reason,
    Replace,
    Standing,
    Verdict,
    Why,
    Workload,
)
from admission.engine.order import QueueKey, Rank, Tournament
from admission.engine.quota import QuotaNode
from admission.engine.trial import NONE, Run, Trial
from admission.engine.victims import Found, may_always_reclaim
from admission.engine.walk import Walk


@dataclass(frozen=True, slots=True)
class _Look:
    """What came of a look at the head of a strict queue, and at what: the gang, its queue, nodes that it avoids, and
    versions of its tree and of the nodes."""

    at: tuple[object, ...]
    trial: Trial


@dataclass(slots=True)
class _Entry:
    trial: Trial
    usage: Charge
    """What it would charge, or keep from others."""
    second: bool = False
    verdict: Verdict | None = None
    again: bool = False
    """It is looked at again in the next cycle, whether or not anything changes."""
    unasked: bool = False
    """It has no victims, and it was not asked yet where it would be placed on empty nodes: mostly quota refuses it
    anyway."""
    look: _Look | None = None
    """The look by which it was nominated, if it is the head of a strict queue."""
    only_keeps: bool = False
    """It only keeps its nodes from gangs of other trees in this cycle: its own tree was not looked at, where others may
    come before it."""


def _hosts(charge: Charge) -> set[str]:
    return set() if charge.admission is None else {host for host, _ in charge.booking.hosts}


class Heads(Run):
    """One decision by the heads of the queues: see the module."""

    def go(self) -> None:
        self.entries: list[_Entry] = []
        self.walks: dict[str, Walk] = {}
        self.farthest: dict[str, int] = {}
        """Label of a root -> the largest borrowing height of a head below it."""
        self.book = self.ledger.version, self.ledger.nodes.version
        self._second_pass()
        self.before = self.cost
        looked_at: set[str] = set()
        roots, self.state.heads_before = self._roots(), ""
        for label, names in roots:
            if self.cost - self.before >= self.budget and self.entries:
                self.more, self.state.heads_before = True, label
                break
            looked_at.add(label)
            for name in names:
                self._heads_of(name)
            self._those_who_keep(label)
        others = [label for label in self.state.memos.roots_of_keepers() if label not in looked_at]
        self.keepers_there = not others or self._take_nodes()
        """Do gangs take part that keep nodes from gangs of all trees?"""
        if self.keepers_there:
            for label in others:
                self._those_who_keep(label, nodes=True)
        self.preempted: set[Key] = set()
        self.kept: list[Key] = []
        """Gangs whose room is charged for the rest of this cycle, though they are not admitted in it."""
        self.kept_by_strict: list[Key] = []
        """Those of them that keep it in every cycle."""
        for entry in self._in_order():
            self._process(entry)
        if not self.more:
            self.more = bool(self.decisions) or any(entry.again for entry in self.entries)
            # A queue whose head was parked has another one to look at.
            self.more = self.more or bool(self.state.memos.ready()) or self.state.memos.late

    # -- nominating

    def _take_nodes(self) -> bool:
        """Does any head of this cycle take nodes, or keep them from others."""
        return any(entry.usage.admission is not None for entry in self.entries)

    def _roots(self) -> list[tuple[str, list[str]]]:
        """(label of a root, its queues with a gang that is worth a trial). It begins with the root at which the budget
        of the last cycle ended."""
        under: dict[str, list[str]] = {}
        for name in self.state.memos.ready():
            under.setdefault(self.node(name).root.label, []).append(name)
        labels = sorted(under)
        at = bisect_left(labels, self.state.heads_before)
        return [(label, under[label]) for label in (*labels[at:], *labels[:at])]

    def _heads_of(self, name: str) -> None:
        walk = self.walks[name] = Walk(self.state, name)
        first = walk.turn()
        for further in range(self.rules.heads_per_queue or 1):
            if further:
                walk.next()
                first = walk.peek()
            if first is None:
                return
            self._nominate(walk.queue, *first)

    def _those_who_keep(self, label: str, *, nodes: bool = False) -> None:
        """Nominate the parked heads of strict queues under this root that keep room in every cycle: Kueue never parks
        them. `nodes`: the root is not looked at in this cycle, and those count that keep nodes, which are common to all
        trees; also heads that are not parked, which then only keep their nodes."""
        awake = self.state.memos.keepers_awake(label) if nodes else ()
        for (name, bucket), memo in self.state.memos.keeping(label):
            place, first = self.state.lines[name].first(self.state.used(name))
            if first == bucket and memo.keeps is not None and (not nodes or memo.keeps.admission is not None):
                self.state.memos.wake(name, bucket)
                self._nominate(self.state.queues[name], place, bucket, memo.look)
        for name, bucket in awake:
            place, first = self.state.lines[name].first(self.state.used(name))
            if first == bucket:
                self._nominate(self.state.queues[name], place, bucket, only_keeps=True)

    def _nominate(
        self, queue: ClusterQueue, place: QueueKey, bucket: int, known: object = None, *, only_keeps: bool = False
    ) -> None:
        """Look at a gang, and let it take part unless nothing can be assigned. known: the last look at it, on any
        book."""
        gang = self.state.workloads[order.key_of(place)]
        look = self._looked(gang, queue, known) if queue.strict else None
        trial = self.look(gang, queue) if look is None else look.trial
        trial.place, trial.bucket = place, bucket
        if trial.assignment is None:
            self._requeue(_Entry(trial, self._charge(trial)), again=False)
            return
        by_nodes = trial.mode.preempts and self._by_nodes(trial)
        if by_nodes and trial.found.victims:
            self._nodes_after(trial)
        unasked = by_nodes and not trial.found.victims
        self.entries.append(_Entry(trial, self._charge(trial), unasked=unasked, look=look, only_keeps=only_keeps))
        root = trial.node.root.label
        self.farthest[root] = max(self.farthest.get(root, 0), trial.assignment.borrow)

    def _looked(self, gang: Workload, queue: ClusterQueue, known: object) -> _Look:
        """A look at the head of a strict queue: `known`, if that was on an equal book, or a new one. (With
        usage-decayed fairness a new one, because usage of LocalQueues is in no version of the book.)"""
        node, ledger = self.node(queue.name), self.ledger
        at = (gang, queue, node, self._avoided(gang), ledger.version_of(node.root), ledger.nodes.version)
        if isinstance(known, _Look) and known.at == at and self.rules.usage_fairness is None:
            found = known.trial.assignment
            if found is not None and found.mode.preempts:
                for choice in found.pod_sets:
                    choice.topology = None  # it was asked for as that cycle went on
                return known
        return _Look(at, self.look(gang, queue))

    def _go_on(self, entry: _Entry) -> _Entry | None:
        """After an admission: the next gang of the same queue takes part as well, if it fits and borrows less far up
        than some head that comes later. In Kueue it would wait a cycle; those heads would borrow what is left of its
        queue's own quota, and be evicted for it in the next cycle."""
        trial = entry.trial
        admitted = self.charged.get(trial.gang.key)
        farthest = self.farthest.get(trial.node.root.label, 0)
        if entry.second or admitted is None or trial.assignment is None or trial.assignment.borrow >= farthest:
            return None
        walk = self.walks.get(trial.queue.name)
        if walk is None or self.cost - self.before >= self.budget:
            return None
        walk.give(trial.gang, admitted[1])
        walk.next()
        first = walk.peek()
        if first is None:
            return None
        gang = self.state.workloads[order.key_of(first[0])]
        if gang.parent_uid:
            return None  # a variant: one of its job may have been admitted just now
        if any(pod_set.min_count is not None for pod_set in gang.pod_sets):
            return None  # its pods are reduced only where no victims are found, which is not asked here
        found = self.look(gang, trial.queue, evict=False)
        if found.mode is not Mode.FIT or found.assignment is None or found.assignment.borrow >= farthest:
            return None
        found.place, found.bucket = first
        another = _Entry(found, self._charge(found))
        if another.usage.admission is not None and not self.keepers_there:
            return None
        self.entries.append(another)
        return another

    def _second_pass(self) -> None:
        """Gangs with a reservation whose nodes must be chosen, or chosen anew."""
        for key in sorted(self.state.second):
            gang = self.state.workloads[key]
            queue = None if gang.admission is None else self.state.queues.get(gang.admission.cluster_queue)
            if queue is None or gang.evicted:
                continue
            self.steps += 1
            held = self.ledger.release(key)
            assignment = self.stand_again(gang, queue)
            self.ledger.charge(held)
            if not gang.lost_nodes and assignment.admission(queue.name) == gang.admission:
                continue  # nothing was left to be chosen
            trial = Trial(gang, queue, self.node(queue.name), assignment, Found(), self._why(assignment, NONE))
            self.entries.append(_Entry(trial, self._charge(trial), second=True))

    def _charge(self, trial: Trial) -> Charge:
        if trial.assignment is None or trial.mode is Mode.NO_FIT:
            return Charge(trial.gang.key, trial.gang.uid, trial.queue.name, ())
        return charge_of(trial.gang, trial.assignment.admission(trial.queue.name))

    def _by_nodes(self, trial: Trial) -> bool:
        assert trial.assignment is not None
        return any(
            flavor is not None and flavor.topology in self.state.topologies
            for choice in trial.assignment.pod_sets
            for got in choice.flavors.values()
            if (flavor := self.state.flavors.get(got.flavor)) is not None
        )

    def _nodes_after(self, trial: Trial) -> None:
        """Choose its nodes as if its victims were gone or, without victims, on empty nodes: it keeps these from
        others."""
        assert trial.assignment is not None
        charges = self.ledger.charges
        victims = [charges[key] for key, _ in trial.found.victims]
        with self.ledger.as_if_gone(victims) if victims else self.ledger.on_empty_nodes(trial.queue.name):
            there = self._again(trial)
        if there.mode is Mode.FIT:
            where = {choice.name: choice.topology for choice in there.pod_sets}
            for choice in trial.assignment.pod_sets:
                choice.topology = where.get(choice.name)

    def _ask(self, entry: _Entry) -> None:
        if entry.unasked:
            self._nodes_after(entry.trial)
            entry.usage, entry.unasked = self._charge(entry.trial), False

    # -- order

    def _in_order(self) -> Iterator[_Entry]:
        if not self.rules.fair_sharing:
            yield from self._one_by_one()
            return
        second = [entry for entry in self.entries if entry.second]
        yield from sorted(second, key=self._classical)
        waiting: dict[str, list[_Entry]] = {}
        for entry in self.entries:
            if not entry.second:
                waiting.setdefault(entry.trial.queue.name, []).append(entry)

        def ranked(node: QuotaNode) -> dict[str, Rank]:
            entry = waiting[node.name][0]
            return order.ranks(node, entry.trial.gang, dict(entry.usage.usage), self.rules)

        roots: dict[str, QuotaNode] = {}
        for name in waiting:
            root = self.node(name).root
            roots[root.label] = root
        # Between trees, which compete for nodes alone, priority and age decide.
        line: list[tuple[QueueKey, str, QuotaNode, Tournament]] = []

        def sends(tournament: Tournament, label: str) -> None:
            if (best := tournament.best()) is not None:
                gang = waiting[best.name][0].trial.gang
                heappush(line, (order.queue_key(gang, sticky=False), label, best, tournament))

        for label in sorted(roots):
            tournament = Tournament(roots[label], ranked)
            tournament.enter_all([self.node(name) for name in waiting if self.node(name).root is roots[label]])
            sends(tournament, label)
        while line:
            _, label, best, tournament = heappop(line)
            entry = waiting[best.name].pop(0)
            yield entry
            if not waiting[best.name] and (another := self._go_on(entry)) is not None:
                waiting[best.name].append(another)
            (tournament.enter if waiting[best.name] else tournament.leave)(best)
            sends(tournament, label)

    def _one_by_one(self) -> Iterator[_Entry]:
        """In the classical order, except that a gang which was evicted for another head comes after that one: else it
        would take its room back and be evicted again, without end. (Of two that were evicted for each other, the one
        that was evicted later.)"""
        waiting = {entry.trial.gang.uid: entry for entry in self.entries if not entry.second}
        given: set[Key] = set()
        line = [(self._classical(entry), entry) for entry in self.entries]
        heapify(line)
        while line:
            chain: list[_Entry] = []
            before: _Entry | None = heappop(line)[1]
            while before is not None and before.trial.gang.key not in given:
                gang = before.trial.gang
                given.add(gang.key)
                chain.append(before)
                before = waiting.get(gang.evicted_for) if gang.evicted else None
                if before is not None and before.trial.gang.evicted and before.trial.gang.evicted_at > gang.evicted_at:
                    before = None
            for entry in reversed(chain):
                yield entry
                if (another := self._go_on(entry)) is not None:
                    waiting[another.trial.gang.uid] = another
                    heappush(line, (self._classical(another), another))

    @staticmethod
    def _classical(entry: _Entry) -> tuple[bool, int, int, int, str, str, Key]:
        gang, assignment = entry.trial.gang, entry.trial.assignment
        borrow = 0 if assignment is None else assignment.borrow
        came = (order.stamp(gang), gang.arrival, gang.uid, gang.key)
        return (not entry.second, borrow, -gang.effective_priority, *came)

    # -- processing

    def _process(self, entry: _Entry) -> None:
        """The turn of one head, on the book as those before it left it."""
        trial = entry.trial
        gang = trial.gang
        if entry.second:
            self._stand(entry)
            return
        assert trial.assignment is not None
        at_once = not gang.cursor and not trial.assignment.pending_flavors
        """All of its flavors were looked at; else it keeps room in one flavor now, and in another in the next cycle."""
        fits = self._still_fits(entry)
        anew = False
        """It would fit without what others take or keep in this cycle: the next may say otherwise."""
        keeper, asked = None, None
        """The gang that keeps its room from it in every cycle; the trial for which that was asked."""
        if not fits and trial.mode is Mode.FIT:
            keeper, asked = self._kept_from(entry), trial
        if not fits and self._recompute(entry):
            anew, trial = trial.mode is Mode.FIT and keeper is None, entry.trial
            fits = self._still_fits(entry)
        if self._sibling(trial, lambda theirs, mine: theirs < mine) is not None:
            why = Why(Reason.PENDING_EVALUATION, Detail.VARIANT_ADMITTED)
            self._requeue(entry, again=True, why=why, scanned=False)
            return
        if trial.mode is Mode.NO_FIT:
            self._requeue(entry, again=anew)
            return
        if trial.mode.preempts:
            if not trial.found.victims:
                self._wait_without_victims(entry, keeper, again=anew, at_once=at_once)
                return
            if gang.preemption_gated:
                why = replace(trial.why, reason=Reason.GATED, detail=Detail.PREEMPTION_GATED)
                self._requeue(entry, again=False, why=why, scanned=False)
                return
        if self.preempted & {key for key, _ in trial.found.victims}:
            deferred = self._after_others(entry)
            if deferred is None:
                self._wait_a_cycle(entry)
                return
            trial, fits = entry.trial, True
            if deferred:
                self._until_they_left(entry)
                return
        if not fits:
            if keeper is None and trial is not asked:
                keeper = self._kept_from(entry)
            self._wait_a_cycle(entry, keeper)
            return
        if entry.only_keeps:
            self._keep(entry.usage)
            self._wait_a_cycle(entry)
            return
        self.preempted |= {key for key, _ in trial.found.victims}
        if trial.mode is Mode.FIT:
            worse = self._sibling(trial, lambda theirs, mine: theirs > mine)
            if worse is not None:
                self._migrate(entry, worse)
                return
            # Kueue counts gangs that are evicted in this cycle as gone already, and would admit this one beyond quota
            # until they are.
            if self.preempted and not self._fits_without(entry, self.kept):
                self._until_they_left(entry)
                return
            self.admit(trial)
            return
        self._keep(entry.usage)
        self.evict(trial)
        verdict = Verdict(
            gang.key,
            Standing.WAITING,
            replace(trial.why, reason=Reason.WAITING_FOR_PREEMPTED, detail=Detail.VICTIMS_LEAVING),
            self.asked(trial),
        )
        entry.verdict = verdict
        self.verdicts.append(verdict)

    def _wait_a_cycle(self, entry: _Entry, keeper: Key | None = None) -> None:
        """It waits for the next cycle; or, behind a `keeper`, until something changes."""
        why = replace(entry.trial.why, reason=Reason.WAITING_FOR_QUOTA, detail=Detail.NEXT_CYCLE)
        if keeper is not None:
            why = replace(why, detail=Detail.CLAIMED, subject="/".join(keeper))
        self._requeue(entry, again=keeper is None, why=why, scanned=False)

    def _wait_without_victims(self, entry: _Entry, keeper: Key | None, *, again: bool, at_once: bool) -> None:
        """It could go only by eviction, and no victims were found. Unless its queue may always reclaim, it keeps its
        room from those behind it; the head of a strict queue in every cycle, once all of its flavors were looked at
        (`at_once`)."""
        trial, keeps = entry.trial, None
        if not may_always_reclaim(trial.queue, self.rules):
            self._ask(entry)
            room = self._reserve(entry)
            self._keep(room)
            if trial.queue.strict and at_once:
                keeps = room
        why = replace(trial.why, reason=Reason.WAITING_FOR_QUOTA)
        if keeper is not None:
            why = replace(why, detail=Detail.CLAIMED, subject="/".join(keeper))
        self._requeue(entry, again=again, why=why, keeps=keeps)
        if keeps is not None and not entry.again:
            self.kept_by_strict.append(trial.gang.key)

    def _kept_from(self, entry: _Entry) -> Key | None:
        """The gang that keeps room in every cycle without which this one would fit now; None if there is none."""
        root, wanted = entry.trial.node.root, {fr for fr, _ in entry.usage.usage}
        kept = [(key, self.ledger.charges[key]) for key in self.kept_by_strict]
        keepers = [
            key
            for key, charge in kept
            if charge.admission is not None
            or (self.node(charge.queue).root is root and any(fr in wanted for fr, _ in charge.usage))
        ]
        if not keepers:
            return None
        hosts, charges = _hosts(entry.usage), self.ledger.charges
        named = min(keepers, key=lambda key: bool(hosts) and hosts.isdisjoint(_hosts(charges[key])))
        with self.ledger.trial():
            for key in keepers:
                self.ledger.release(key)
            return named if self._still_fits(entry) else None

    def _keep(self, charge: Charge) -> None:
        """Charge this for the rest of the cycle."""
        if charge.key not in self.ledger.charges:
            self.ledger.charge(charge)
            self.kept.append(charge.key)

    def _until_they_left(self, entry: _Entry) -> None:
        """It goes into room of gangs that are leaving: it keeps that for this cycle, and is looked at again in the
        next."""
        self._keep(entry.usage)
        why = replace(entry.trial.why, reason=Reason.WAITING_FOR_PREEMPTED, detail=Detail.VICTIMS_LEAVING)
        self._requeue(entry, again=True, why=why, scanned=False)

    def _fits_without(self, entry: _Entry, gone: Iterable[Key]) -> bool:
        """Is there quota, and are the chosen nodes free, with these gangs out of the book."""
        with self.ledger.trial():
            for key in gone:
                self.ledger.release(key)
            return entry.trial.node.fits(dict(entry.usage.usage)) and self._room_on_nodes(entry.trial)

    def _still_fits(self, entry: _Entry) -> bool:
        """Is there room once its victims, and those of the heads before it, are gone."""
        trial = entry.trial
        if trial.assignment is None or trial.mode is Mode.NO_FIT:
            return False
        gone = self._going_around(trial, (key for key, _ in trial.found.victims))
        if entry.unasked or all(choice.topology is None for choice in trial.assignment.pod_sets):
            with self.ledger.as_if_gone(self.ledger.charges[key] for key in gone) if gone else nullcontext():
                if not trial.node.fits(dict(entry.usage.usage)):
                    return False
            if not entry.unasked:
                return True
            self._ask(entry)
        return self._fits_without(entry, gone)

    def _going_around(self, trial: Trial, more: Iterable[Key] = ()) -> list[Key]:
        """Of the victims of this cycle, and these, the ones that hold quota in the tree of this gang, or nodes."""
        tree, root, charges = self.ledger.tree, trial.node.root, self.ledger.charges
        return [
            key
            for key in sorted({*self.preempted, *more})
            if (charge := charges.get(key)) is not None
            and (charge.admission is not None or ((node := tree.queue(charge.queue)) is not None and node.root is root))
        ]

    def _room_on_nodes(self, trial: Trial) -> bool:
        """Are exactly the nodes free that were chosen."""
        assert trial.assignment is not None
        if all(choice.topology is None for choice in trial.assignment.pod_sets):
            return True
        charge = replace(charge_of(trial.gang, trial.assignment.admission(trial.queue.name)), usage=())
        nodes, taken = self.ledger.nodes, charge.booking
        with self.ledger.trial():
            self.ledger.charge(charge)
            there = [(nodes.free(nodes.resolve(host)), amounts) for host, amounts in taken.hosts]
            there += [(self._free_in(pairs), amounts) for pairs, amounts in taken.domains]
            # Only of what it asks for: others may hold too much of other resources.
            return all(free and all(free.get(name, 0) >= 0 for name, _ in amounts) for free, amounts in there)

    def _free_in(self, domain: Pairs) -> dict[str, int]:
        """What is free in a domain wider than a node."""
        free: dict[str, int] = {}
        wanted = dict(domain)
        for node in self.ledger.nodes.nodes():
            labels = dict(node.labels)
            if all(labels.get(key) == value for key, value in wanted.items()):
                for name, amount in self.ledger.nodes.free(node.name).items():
                    free[name] = free.get(name, 0) + amount
        for name, amount in self.ledger.nodes.domain_charges().get(domain, {}).items():
            if name in free:
                free[name] -= amount
        return free

    def _recompute(self, entry: _Entry) -> bool:
        """Look again at a gang whose chosen nodes were taken by a head before it; False where that is not done."""
        trial = entry.trial
        if "TASRecomputeAssignmentWithinSchedulingCycle" not in self.rules.gates or trial.assignment is None:
            return False
        if (self.ledger.version, self.ledger.nodes.version) == self.book:
            return False  # nobody took anything yet
        if trial.mode is Mode.NO_FIT or all(choice.topology is None for choice in trial.assignment.pod_sets):
            return False
        with self.ledger.trial():
            for key in self._going_around(trial, (key for key, _ in trial.found.victims)):
                self.ledger.release(key)
            if not trial.node.fits(dict(entry.usage.usage)):
                return False
        self._renew(entry, self.look(replace(trial.gang, cursor=()), trial.queue, pinned=trial.assignment.flavors()))
        return True

    def _renew(self, entry: _Entry, trial: Trial) -> None:
        trial.place, trial.bucket = entry.trial.place, entry.trial.bucket
        if trial.mode.preempts and self._by_nodes(trial):
            self._nodes_after(trial)
        entry.trial, entry.usage, entry.unasked, entry.look = trial, self._charge(trial), False, None

    def _after_others(self, entry: _Entry) -> bool | None:
        """Its victims are evicted for a head before it: True if it fits once these are gone, False if it fits with
        other victims (the entry has them then), None if it does not."""
        if "RecomputeAssignmentUponPreemptionTargetsOverlap" not in self.rules.gates:
            return None
        with self.ledger.trial():
            for key in self._going_around(entry.trial):
                self.ledger.release(key)
            before = entry.trial
            pinned = None if before.assignment is None else before.assignment.flavors()
            trial = self.look(replace(before.gang, cursor=()), before.queue, pinned=pinned)
            if trial.mode is not Mode.FIT and not trial.found.victims:
                return None
            self._renew(entry, trial)
        return trial.mode is Mode.FIT

    def _flavor_rank(self, gang: Workload, queue: ClusterQueue) -> int | None:
        """Of a variant (concurrent admission): the index of its flavor in the queue's list."""
        allowed = gang.allowed_flavors or frozenset()
        return next((i for i, flavor in enumerate(queue.groups[0].flavors) if flavor.name in allowed), None)

    def _sibling(self, trial: Trial, wanted: Callable[[int, int], bool]) -> Workload | None:
        """An admitted variant of the same job for which `wanted` holds of (index of its flavor, index of this
        one's)."""
        gang, queue = trial.gang, trial.queue
        if "ConcurrentAdmission" not in self.rules.gates or not gang.parent_uid or not queue.groups:
            return None
        mine = self._flavor_rank(gang, queue)
        if mine is None:
            return None
        return next(
            (
                other
                for other in self.state.holders(queue.name)
                if other.parent_uid == gang.parent_uid
                and other.key != gang.key
                and other.admitted
                and (theirs := self._flavor_rank(other, queue)) is not None
                and wanted(theirs, mine)
            ),
            None,
        )

    def _migrate(self, entry: _Entry, worse: Workload) -> None:
        """There is room in a better flavor than that in which the job runs, as the variant `worse`: evict that
        first."""
        trial = entry.trial
        gang, queue = trial.gang, trial.queue
        self._keep(entry.usage)
        names = [flavor.name for flavor in queue.groups[0].flavors]
        mine = self._flavor_rank(gang, queue)
        last = names.index(queue.migrates_to) if queue.migrates_to in names else len(names)
        if mine is None or mine > last:
            why = Why(Reason.PENDING_EVALUATION, Detail.VARIANT_ADMITTED)
            self._requeue(entry, again=False, why=why)
            return
        if not worse.evicted and worse.key not in self.leaving:
            self.leaving.add(worse.key)
            migration = EvictReason.FLAVOR_MIGRATION
            self.decisions.append(Evict(worse.key, worse.uid, migration, gang.key, gang.uid, queue.name))
        why = Why(Reason.WAITING_FOR_PREEMPTED, Detail.VICTIMS_LEAVING, subject="another variant of the job")
        self._requeue(entry, again=True, why=why, scanned=False)

    def _reserve(self, entry: _Entry) -> Charge:
        """What a gang without victims keeps from others in this cycle: what it asks for, as far as its queue may have
        it."""
        assert entry.trial.assignment is not None
        node = entry.trial.node
        kept: list[tuple[FlavorResource, int]] = []
        for fr, amount in entry.usage.usage:
            quota = node.quotas.get(fr)
            most = (0 if quota is None else quota.nominal) - node.usage.get(fr, 0)
            if entry.trial.assignment.borrow > 0:
                limit = None if quota is None else quota.borrowing_limit
                most = amount if limit is None else most + limit
            # Never less than 0: a queue that has more already gives nothing back by it.
            kept.append((fr, max(0, min(amount, most))))
        return replace(entry.usage, usage=tuple(kept))

    def _stand(self, entry: _Entry) -> None:
        """The second look at a gang that holds its quota: give it its first nodes, or others for lost ones."""
        trial = entry.trial
        gang = trial.gang
        assert trial.assignment is not None
        assert gang.admission is not None
        held = self.ledger.release(gang.key)
        if trial.mode is Mode.FIT and self._again_second(trial):
            admission = trial.assignment.admission(trial.queue.name)
            self.ledger.charge(charge_of(gang, admission))
            self.decisions.append(Replace(gang.key, gang.uid, admission))
            return
        self.ledger.charge(held)
        fast = "TASFailedNodeReplacementFailFast" in self.rules.gates and gang.lost_nodes
        self.verdicts.append(Verdict(gang.key, Standing.PARKED if fast else Standing.ACTIVE, trial.why))

    def _again_second(self, trial: Trial) -> bool:
        trial.assignment = self.stand_again(trial.gang, trial.queue)
        return trial.mode is Mode.FIT

    # -- back into the queue

    def _requeue(
        self,
        entry: _Entry,
        *,
        again: bool,
        why: Why | None = None,
        scanned: bool = True,
        keeps: Charge | None = None,
    ) -> None:
        """It is not admitted in this cycle. `again`: it is looked at again in the next, whether or not anything
        changes; else it is parked. `scanned`: the next look goes on behind the flavors of this one. `keeps`: what it
        keeps from others in every cycle."""
        trial = entry.trial
        why = why or trial.why
        assignment = trial.assignment
        cursor = assignment.cursor if scanned and assignment is not None else ()
        pending = scanned and assignment is not None and assignment.pending_flavors
        generation = self.state.generation(trial.queue.name)
        goes_on = self.state.scanned(trial.gang.key, cursor if pending else (), generation, self.book)
        entry.again = again or goes_on
        # The head of a strict queue counts as active also when it is parked: Kueue tries it in every cycle.
        entry.verdict = Verdict(
            trial.gang.key,
            Standing.ACTIVE if entry.again or trial.queue.strict else Standing.PARKED,
            why,
            self.asked(trial),
            cursor,
            generation,
        )
        self.verdicts.append(entry.verdict)
        state = self.state
        if entry.again:
            return
        held = state.lines[trial.queue.name].buckets[trial.bucket]
        if len(held) > 1 and not state.told(trial.queue.name, trial.bucket, why):
            alike = (order.key_of(place) for place in held)
            self.verdicts.extend(replace(entry.verdict, key=key) for key in alike if key != trial.gang.key)
        until = min((avoided.until for avoided in trial.gang.avoid if avoided.until > self.now), default=None)
        on_nodes = self._waits_for_nodes(trial) or (why.detail is Detail.CLAIMED and self._by_nodes(trial))
        memo = Memo(entry.verdict, on_nodes, until, keeps=keeps, look=entry.look)
        state.memos.park(trial.queue.name, trial.bucket, memo)

    def _waits_for_nodes(self, trial: Trial) -> bool:
        """Might more room on nodes change the answer? With a choice of flavors or counts only the last answer is known,
        and the nodes may have refused the others: then yes, if any flavor has nodes that are chosen."""
        if trial.assignment is None:
            return False
        groups = trial.queue.groups
        if any(len(group.flavors) > 1 for group in groups) or any(p.min_count is not None for p in trial.gang.pod_sets):
            flavors = [self.state.flavors.get(flavor.name) for group in groups for flavor in group.flavors]
            return any(flavor is not None and flavor.topology for flavor in flavors)
        return self._by_nodes(trial) and self._on_nodes(trial)
