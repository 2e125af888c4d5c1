"""One decision: who is admitted, who must go for whom, and why the others wait.

`decide` opens a mark on the ledger, tries on the real book, and rolls back: what it wants is the Plan, and only the
events that follow make it true. (Charges of admissions stay in the book meanwhile, unseen: they are as good as taken
back, and need not be entered twice.) What it finds out about gangs that cannot go it leaves with the State as memos.

Two ways to go through the queues, by `Rules.heads_per_queue`:

*Filling* (None): a tournament under every root picks the next queue, its first gang is tried on the book as it is now,
and admitted, or given room by eviction, or set aside; then the tournament goes on with what changed, until nobody is
left worth a trial or the budget of trials ends. Between roots, which compete only for nodes, priority and age decide.

*Heads* (a number): that many gangs of each queue are looked at against the book as it was found, put in order, and
dealt with in that order; a gang that no longer fits when its turn comes waits for the next cycle. Trees are looked at
whole; those for which the budget had no room have the next cycle first.
"""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from admission.engine import flavors as scan
from admission.engine import order, reclaim
from admission.engine.flavors import Assignment, Mode
from admission.engine.ledger import Charge, Ledger, charge_of, claim_of
from admission.engine.model import (
    Admission,
    Admit,
    CheckState,
    Claim,
    ClaimRecord,
    ClusterQueue,
    Decision,
    Detail,
    Evict,
    EvictReason,
    FlavorResource,
    Key,
    Misfit,
    Pairs,
    Plan,
    PreemptionPolicy,
    Reason,
    Replace,
    Rules,
    Standing,
    Strategy,
    Usage,
    Verdict,
    Why,
    Workload,
)
from admission.engine.order import QueueKey, Rank, Tournament
from admission.engine.quota import QuotaNode
from admission.engine.shortage import Lack, quota_shorts
from admission.engine.state import Memo, State, Used
from admission.names import HOSTNAME_LABEL

UNTOLD_PER_CYCLE = 10_000
PATIENCE = 4
WALKS_PER_TRIAL = 16
"""What is decided is not kept waiting for more trials without a decision than these, and as many as it costs to have
all queues enter another cycle."""
TURN_WITHIN_MS = 30_000
"""Who is worth a trial has one before all others when it had none for so long."""
_NONE = reclaim.Found()


def _nobody(node: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
    """The oracle of a gang that may evict nobody."""
    return Mode.NO_CANDIDATES, node.borrowing_height(fr, amount)[0]


def _anybody(node: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
    """The oracle where there is no choice of flavors: the search for victims itself will tell."""
    return Mode.PREEMPT, node.borrowing_height(fr, amount)[0]


def _within_nominal(node: QuotaNode, usage: Usage) -> bool:
    """Is there something asked for, and all of it within the quota of this subtree."""
    return bool(usage) and node.holds(usage)


def decide(state: State, now: int, step_budget: int) -> Plan:
    """What to do at `now` (ms since the epoch), with at most `step_budget` trials (at least one is made).

    Leaves the state as it found it, but for memos. `more`: call again at once, when the decisions are assumed.
    """
    state.trying = None
    state.advance(now)
    ledger = state.ledger
    run: _Filling | _Heads
    if state.rules.heads_per_queue is None:
        run = _Filling(state, now, step_budget)
    else:
        run = _Heads(state, now, step_budget)
    mark = ledger.mark()
    charged: list[Charge] = []
    try:
        run.go()
        verdicts = list(run.verdicts)
        told = {verdict.key for verdict in verdicts}
        verdicts.extend(verdict for verdict in state.untold(UNTOLD_PER_CYCLE) if verdict.key not in told)
        state.planned(run.decisions, run.charged)
        charged.extend(charge for _, _, charge in run.charged.values())
    finally:
        ledger.leave(mark, charged)
    return Plan(
        decisions=tuple(run.decisions),
        verdicts=tuple(verdicts),
        steps=run.steps,
        more=run.more,
        next_at=state.next_alarm(),
    )


@dataclass(slots=True)
class Trial:
    """What came of looking at one gang."""

    gang: Workload
    queue: ClusterQueue
    node: QuotaNode
    assignment: Assignment | None
    found: reclaim.Found
    why: Why
    place: QueueKey = (0, 0, 0, "", "", "")
    bucket: int = -1
    beside: bool = False
    """Refused with the room taken that is kept for others, and not without."""
    first: bool = False
    """It was the first of its queue ..."""
    due: bool = False
    """... and has been passed over for long."""
    behind: bool = False
    """It stands behind the first of a strict queue."""

    @property
    def mode(self) -> Mode:
        return Mode.NO_FIT if self.assignment is None else self.assignment.mode


class _Run:
    """What both ways share: looking at a gang, and writing down what is decided."""

    def __init__(self, state: State, now: int, budget: int) -> None:
        self.state = state
        self.rules: Rules = state.rules
        self.ledger: Ledger = state.ledger
        self.now = now
        self.budget = max(1, budget)
        self.steps = 0
        self.more = False
        self.decisions: list[Decision] = []
        self.verdicts: list[Verdict] = []
        self.leaving: set[Key] = set()
        """Evicted by this plan."""
        self.charged: dict[Key, tuple[Workload, Admission, Charge]] = {}
        """Admitted by this plan."""
        self.hit = [key for key in sorted(state.leaving) if state.workloads[key].evicted == "NodeFailures"]
        """Of those who leave, who lost a node."""
        self.as_if: tuple[Workload, ...] = ()
        """For a question only: gangs that do not hold quota yet, as if they did."""
        self._demands: dict[int | Key, scan.Demand] = {}

    def go(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ looking

    def demand(self, gang: Workload, queue: ClusterQueue) -> scan.Demand:
        """What the whole gang asks of the queue; looked up once a cycle for all that are alike."""
        at = self.state.bucket(gang)
        known = self._demands.get(at)
        if known is None:
            known = self._demands[at] = self.state.demand(gang, queue)
        return known

    def asks(self, gang: Workload, queue: ClusterQueue) -> tuple[scan.PodSetRequest, ...]:
        return self.demand(gang, queue).requests

    def asked(self, trial: Trial) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
        """What the whole gang asks for, per pod set, as a Verdict says it; the number of pods goes without saying."""
        return tuple(
            (asked.pod_set.name, tuple((name, amount) for name, amount in asked.total if name != scan.PODS))
            for asked in self.asks(trial.gang, trial.queue)
        )

    def node(self, queue: str) -> QuotaNode:
        node = self.ledger.tree.queue(queue)
        assert node is not None, queue
        return node

    def look(
        self,
        gang: Workload,
        queue: ClusterQueue,
        *,
        evict: bool = True,
        pinned: scan.Pinned | None = None,
        later: bool = False,
    ) -> Trial:
        """Flavors, nodes and, where needed (and if it may `evict`), victims for one gang, against the book as it is.
        `pinned`: in no other flavors than these. `later`: nodes are chosen when `place` asks for them, on an equal
        book."""
        node = self.node(queue.name)
        if not self.state.selected(gang, queue):
            why = Why(Reason.MISCONFIGURED, Detail.NAMESPACE_NOT_SELECTED, subject=queue.name)
            return Trial(gang, queue, node, None, reclaim.Found(), why)
        if any(check.said_no for check in gang.checks):
            why = Why(Reason.PENDING_EVALUATION, Detail.CHECKS_PENDING)
            return Trial(gang, queue, node, None, _NONE, why)
        self.steps += 1
        self.state.trying = gang.key
        keeps = "FlavorFungibilityPreserveScanProgress" in self.rules.gates
        cursor = gang.cursor if keeps or gang.cursor_generation >= self.state.generation(queue.name) else ()
        refused: list[Trial] = []
        smaller: list[Trial] = []
        seen = {cursor}
        while True:
            trial = self._try(gang, queue, node, cursor, None, evict, pinned, later)
            if trial.mode is Mode.FIT or trial.found.enough:
                return trial
            refused.append(trial)
            # Here a scan that stopped at a flavor where nobody could be evicted goes on at once, not a cycle later.
            assignment = trial.assignment
            if self.rules.heads_per_queue is not None or assignment is None or not assignment.pending_flavors:
                break
            # Of several pod sets each goes on where it stopped, so that all may come back to where they were.
            if assignment.cursor in seen:
                break
            cursor = assignment.cursor
            seen.add(cursor)
            self.steps += 1
        if "PartialAdmission" in self.rules.gates:

            def attempt(counts: Mapping[str, int]) -> Trial | None:
                self.steps += 1
                scanned = () if self.rules.heads_per_queue is None else cursor
                trial = self._try(gang, queue, node, scanned, counts, evict, pinned, later)
                if trial.mode is Mode.FIT or trial.found.enough:
                    return trial
                smaller.append(trial)
                return None

            reduced = scan.reduce(gang.pod_sets, attempt)
            if reduced is not None:
                return reduced
        return self._of_refused(refused, smaller) if self.rules.promises else refused[0]

    @classmethod
    def _of_refused(cls, whole: list[Trial], smaller: list[Trial]) -> Trial:
        """What to remember of a gang that was refused in every flavor and size: the first answer for the whole gang
        that may change, or else that for the smallest; time and nodes count that may change any of them."""
        told = next((one for one in (*whole, *reversed(smaller)) if one.mode is not Mode.NO_FIT), whole[0])
        refused = [*whole, *smaller]
        if len(refused) > 1:
            until = min((trial.found.until for trial in refused if trial.found.until is not None), default=None)
            told.found = replace(told.found, until=until, by_nodes=any(cls._on_nodes(trial) for trial in refused))
        return told

    @staticmethod
    def _on_nodes(trial: Trial) -> bool:
        """May room on nodes change it."""
        return trial.found.by_nodes or (
            trial.assignment is not None and any(choice.misfits for choice in trial.assignment.pod_sets)
        )

    def _try(
        self,
        gang: Workload,
        queue: ClusterQueue,
        node: QuotaNode,
        cursor: scan.Cursor,
        counts: Mapping[str, int] | None,
        evict: bool,
        pinned: scan.Pinned | None,
        later: bool,
    ) -> Trial:
        asked = self.asks(gang, queue) if counts is None else scan.requests(gang, queue, self.rules, counts)
        avoid = self._avoided(gang)
        known: dict[tuple[FlavorResource, int], reclaim.Found] = {}
        assignment = scan.assign(
            self.ledger,
            queue,
            asked,
            cursor,
            _nobody
            if not evict
            else _anybody
            if self.rules.promises and all(len(group.flavors) == 1 for group in queue.groups)
            else reclaim.oracle(
                self.ledger,
                gang,
                queue.name,
                self.rules,
                now=self.now,
                holders=self.holders,
                leaving=self.going(gang, queue),
                local_usage=self._local_usage(),
                asked=known,
            ),
            workload=gang,
            flavors=self.state.flavors,
            rules=self.rules,
            topologies=self.state.topologies,
            avoid=avoid,
            delay=self._delay(gang, queue),
            pinned=pinned,
            stood=self._stood(gang),
            later=later,
        )
        if not evict or not assignment.mode.preempts:
            return Trial(gang, queue, node, assignment, _NONE, self._why(assignment, _NONE))
        found = None
        if len(assignment.usage) == 1 and not self.rules.promises:
            # The search was made for just this. What quota alone refuses, quota and nodes refuse; where no nodes are
            # chosen, it finds the same.
            ((fr, amount),) = assignment.usage.items()
            found = known.get((fr, amount)) if assignment.need_preemption() == {fr} else None
            if found is not None and found.enough and assignment.placing:
                found = None
        if found is None:
            found = self.victims(gang, queue, assignment, avoid)
        if self.rules.promises and known and not found.enough:
            # In a flavor that was not chosen, time may make lawful what is not yet.
            times = [one.until for one in (found, *known.values()) if one.until is not None]
            found = replace(found, until=min(times, default=None))
        return Trial(gang, queue, node, assignment, found, self._why(assignment, found))

    def place(self, trial: Trial) -> None:
        """Its nodes, if it fits and they were left to `later`."""
        assignment, gang = trial.assignment, trial.gang
        if assignment is not None and assignment.unplaced:
            answer = scan.nodes_for(self.ledger, gang, assignment.placing, self._avoided(gang))
            assert not isinstance(answer, Misfit), answer
            assignment.stand(answer)

    def _avoided(self, gang: Workload) -> frozenset[str]:
        return frozenset(avoided.node for avoided in gang.avoid if avoided.until > self.now)

    def going(self, gang: Workload, queue: ClusterQueue) -> set[Key]:
        """Who has been evicted, still holds its room, and leaves it to this gang. One that lost a node stands before
        it in the same queue once its pods are gone, and needs the room itself; or it claims it."""
        going = (self.leaving | self.state.leaving).difference(self.ledger.claims)
        return going.difference([key for key in self.hit if self._comes_back_before(key, gang, queue)])

    def _comes_back_before(self, key: Key, gang: Workload, queue: ClusterQueue) -> bool:
        other = self.state.workloads.get(key)
        return (
            self.rules.promises
            and other is not None
            and other.evicted == "NodeFailures"
            and gang.evicted != "NodeFailures"
            and self.state.queue_of(other) == queue.name
            and other.effective_priority >= gang.effective_priority
        )

    def holders(self, queue: str) -> tuple[Workload, ...]:
        held = self.state.holders(queue)
        if not self.as_if:
            return held
        return (*held, *(one for one in self.as_if if one.admission and one.admission.cluster_queue == queue))

    def _local_usage(self) -> Callable[[Workload], float | None] | None:
        return None if self.rules.usage_fairness is None else self.local_usage

    def local_usage(self, gang: Workload) -> float | None:
        queue = self.state.queues.get(self.state.queue_of(gang))
        if self.rules.usage_fairness is None or queue is None or not queue.usage_based_fairness:
            return None
        return self.state.local_usage((gang.namespace, gang.queue))

    def _delay(self, gang: Workload, queue: ClusterQueue) -> Callable[[str], bool] | None:
        """Of which flavors are the nodes chosen only when a provisioning check made them."""
        if self.rules.capacity_unless_elastic:
            return None
        ready = {check.name for check in gang.checks if check.state is CheckState.READY}
        making = [
            rule
            for rule in queue.checks
            if rule.name not in ready
            and (check := self.state.checks.get(rule.name)) is not None
            and check.controller.endswith("/provisioning-request")
        ]
        if not making:
            return None
        return lambda flavor: any(not rule.on_flavors or flavor in rule.on_flavors for rule in making)

    def victims(
        self,
        gang: Workload,
        queue: ClusterQueue,
        assignment: Assignment,
        avoid: frozenset[str],
    ) -> reclaim.Found:
        """Who would have to go for this assignment."""
        node = self.node(queue.name)

        def room() -> bool:
            return node.fits(assignment.usage) and self._on_free_nodes(gang, assignment, avoid)

        fits = room if self.rules.promises or assignment.placing else None
        with self.ledger.suspended(gang.key):
            return reclaim.targets(
                self.ledger,
                gang,
                queue.name,
                assignment,
                self.rules,
                now=self.now,
                holders=self.holders,
                leaving=self.going(gang, queue),
                fits=fits,
                local_usage=self._local_usage(),
            )

    def _on_free_nodes(self, gang: Workload, assignment: Assignment, avoid: frozenset[str]) -> bool:
        """Do the nodes hold a gang in the flavors that it got."""
        stood = self._stood(gang)
        if not assignment.placing:
            return True
        if stood is None and not gang.lost_nodes:
            return self.ledger.holds(assignment.placing, owner=gang.key, avoid=avoid)
        return not isinstance(scan.nodes_for(self.ledger, gang, assignment.placing, avoid, stood), Misfit)

    def pinned(
        self,
        gang: Workload,
        queue: ClusterQueue,
        asked: tuple[scan.PodSetRequest, ...],
        pinned: scan.Pinned,
        avoid: frozenset[str],
    ) -> Assignment:
        """The same flavors, on the book as it is now, with nobody to evict."""
        return scan.assign(
            self.ledger,
            queue,
            asked,
            (),
            _nobody,
            workload=gang,
            flavors=self.state.flavors,
            rules=self.rules,
            topologies=self.state.topologies,
            avoid=avoid,
            pinned=pinned,
            stood=self._stood(gang),
        )

    @staticmethod
    def _stood(gang: Workload) -> Admission | None:
        """Where a gang stood that lost nodes: on what is left of them it claims room."""
        return gang.claims.admission if gang.evicted == "NodeFailures" and gang.claims is not None else None

    def stand_again(self, gang: Workload, queue: ClusterQueue) -> Assignment:
        """Nodes for a gang that holds its quota already; its charge must be out of the book. (Its nodes are put back
        for the question: they are what it keeps.)"""
        assert gang.admission is not None
        counts = {pod_set.name: pod_set.count for pod_set in gang.admission.pod_sets}
        with self.ledger.trial():
            self.ledger.charge(replace(charge_of(gang), usage=()))
            return scan.assign(
                self.ledger,
                queue,
                scan.requests(gang, queue, self.rules, counts),
                (),
                _nobody,
                workload=gang,
                flavors=self.state.flavors,
                rules=self.rules,
                topologies=self.state.topologies,
                avoid=frozenset(gang.lost_nodes)
                | {avoided.node for avoided in gang.avoid if avoided.until > self.now and self.rules.promises},
            )

    @staticmethod
    def _why(assignment: Assignment, found: reclaim.Found) -> Why:
        if assignment.mode is Mode.FIT:
            return Why(Reason.QUOTA_RESERVED)
        why = assignment.why()
        if not (found.candidates or found.unlawful):
            return why
        shorts = tuple(replace(short, candidates=found.candidates, unlawful=found.unlawful) for short in why.shortfalls)
        return replace(why, shortfalls=shorts)

    def _again(self, trial: Trial) -> Assignment:
        """The same flavors and counts on the book as it is now."""
        assert trial.assignment is not None
        counts = {choice.name: choice.request.count for choice in trial.assignment.pod_sets}
        pinned = trial.assignment.flavors()
        asked = scan.requests(trial.gang, trial.queue, self.rules, counts)
        avoid = self._avoided(trial.gang)
        return self.pinned(trial.gang, trial.queue, asked, pinned, avoid)

    # ------------------------------------------------------------ deciding

    def admit(self, trial: Trial) -> None:
        """Charge it, and write the decision down."""
        assert trial.assignment is not None
        gang = trial.gang
        admission = trial.assignment.admission(trial.queue.name)
        checks = required_checks(trial.queue, admission)
        self.ledger.unclaim(gang.key)
        charge = charge_of(gang, admission)
        self.ledger.charge(charge)
        self.charged[gang.key] = (gang, admission, charge)
        ready = {check.name for check in gang.checks if check.state is CheckState.READY}
        # Kueue waits for every check that stands on the Workload, whether the queue still asks for it or not.
        stale = not self.rules.promises and any(check.state is not CheckState.READY for check in gang.checks)
        self.decisions.append(
            Admit(
                key=gang.key,
                uid=gang.uid,
                admission=admission,
                checks=checks,
                admitted=ready.issuperset(checks) and not stale,
                waited_ms=max(0, self.now - max(order.since(gang), gang.requeue_at)),
            )
        )
        self.verdicts.append(Verdict(gang.key, Standing.ADMITTED, Why(Reason.QUOTA_RESERVED)))

    def evict(self, trial: Trial) -> int:
        """Write down who must go for it; how many are new."""
        new = 0
        for key, reason in trial.found.victims:
            victim = self.state.workloads[key]
            if victim.evicted or key in self.leaving:
                continue
            self.leaving.add(key)
            self.state.leaves(key)
            new += 1
            self.decisions.append(
                Evict(
                    key=key,
                    uid=victim.uid,
                    reason=reason,
                    preemptor=trial.gang.key,
                    preemptor_uid=trial.gang.uid,
                    preemptor_queue=trial.queue.name,
                )
            )
        return new


def required_checks(queue: ClusterQueue, admission: Admission) -> tuple[str, ...]:
    """The checks that a reservation must pass: those for every gang, and those for a flavor it got."""
    got = {flavor for pod_set in admission.pod_sets for _, flavor in pod_set.flavors}
    return tuple(check.name for check in queue.checks if not check.on_flavors or check.on_flavors & got)


# ---------------------------------------------------------------- filling


class _Walk:
    """The gangs of one queue that are worth a trial, in order. The line itself is not touched."""

    def __init__(self, state: State, name: str) -> None:
        self.state = state
        self.queue = state.queues[name]
        self.line = line = state.lines[name]
        self.strict = self.queue.strategy is Strategy.STRICT_FIFO
        self.taken: dict[int, int] = {}
        """Bucket -> gangs of it that were dealt with in this cycle."""
        self.fair = fair = state.rules.usage_fairness is not None and self.queue.usage_based_fairness
        self._heap: list[tuple[float, QueueKey, int]] | None = None
        self._given: dict[Key, list[Admission]] = {}
        """LocalQueue -> what this cycle gave it."""
        self._used: dict[Key, float] = {}
        self._stale = False
        if self.strict or fair:
            buckets = [(held[0], bucket) for bucket, held in self.line.buckets.items()] if self.strict else line.live()
            self._heap = [(self._usage(place) if fair else 0.0, place, bucket) for place, bucket in buckets]
            heapq.heapify(self._heap)

    def turn(self) -> tuple[QueueKey, int] | None:
        """The first has its turn: from now on the walk goes by a copy of the line. (In most cycles most queues only
        show who is first.)"""
        if self._heap is None:
            self._heap = [(0.0, place, bucket) for place, bucket in self.line.live()]
        return self.peek()

    @property
    def used(self) -> Used:
        return self._usage if self.fair else None

    def _usage(self, place: QueueKey) -> float:
        gang = self.state.workloads[order.key_of(place)]
        local = gang.namespace, gang.queue
        if (given := self._given.get(local)) is None:
            return self.state.local_usage(local)
        if local not in self._used:
            self._used[local] = self.state.local_usage(local, given)
        return self._used[local]

    def give(self, gang: Workload, admission: Admission) -> None:
        """This cycle admits it, and that counts for whose turn is next, however many are dealt with at once."""
        if self.fair:
            local = gang.namespace, gang.queue
            self._given.setdefault(local, []).append(admission)
            self._used.pop(local, None)
            self._stale = True

    def peek(self) -> tuple[QueueKey, int] | None:
        if self._heap is None:
            return self.line.top()
        if not self._heap:
            return None
        _, place, bucket = self._heap[0]
        if self.strict and bucket in self.line.parked:
            return None
        return place, bucket

    def next(self) -> None:
        """The gang was dealt with: on to the next."""
        assert self._heap
        usage, _, bucket = self._heap[0]
        taken = self.taken[bucket] = self.taken.get(bucket, 0) + 1
        held = self.line.buckets[bucket]
        if taken < len(held):
            heapq.heapreplace(self._heap, (usage, held[taken], bucket))
        else:
            heapq.heappop(self._heap)
        if self._stale:
            self._heap = [(self._usage(place), place, known) for _, place, known in self._heap]
            heapq.heapify(self._heap)
            self._stale = False

    def add(self, bucket: int) -> bool:
        """A bucket that was parked is worth a trial after all; those of it that were dealt with are not. False where
        it takes part already."""
        if self._heap is None:
            return True  # the line shows it
        if any(known == bucket for _, _, known in self._heap):
            return False
        held, taken = self.line.buckets[bucket], self.taken.get(bucket, 0)
        if taken < len(held):
            usage = self._usage(held[taken]) if self.fair else 0.0
            heapq.heappush(self._heap, (usage, held[taken], bucket))
        return True

    def skip(self) -> None:
        """The gang cannot go, nor can those like it."""
        assert self._heap
        if self.strict:
            self._heap.clear()
        else:
            heapq.heappop(self._heap)

    def leave_out(self) -> None:
        """This gang is not looked at any more, strict or not."""
        assert self._heap
        heapq.heappop(self._heap)


class _Filling(_Run):
    def go(self) -> None:
        self._replacements()
        self._claims_of_the_hit()
        self.budget = max(self.budget, self.steps + 1)
        state = self.state
        self.walks: dict[str, _Walk] = {}
        self.tournaments: dict[str, Tournament] = {}
        self.roots: list[tuple[Rank, str]] = []
        self.served: set[Key] = set()
        """Gangs that were dealt with before their turn."""
        self.admitted: dict[str, list[QueueKey]] = {}
        """Queue -> places in its line of those whom this cycle admitted."""
        self.turned: set[Key] = set()
        """Those who had their turn, and would not have fitted if nothing were kept for others."""
        self.seen: set[Key] = set()
        """Those for whom room is set aside and who had their turn, or were woken for it."""
        for key, turned in state.asked_before():
            self.seen.add(key)
            if turned:
                self.turned.add(key)
        self._looked: tuple[tuple[Key, int], Trial] | None = None
        """Who let others have their turn first, at which version of the book, and what came of looking at it."""
        self.shortened: set[str] = set()
        """Queues whose first gang was admitted in the turn that is on."""
        entering: dict[str, list[QuotaNode]] = {}
        for name in state.ready():
            if self._walks(name):
                node = self.node(name)
                entering.setdefault(order.label(node.root), []).append(node)
        for label in sorted(entering):
            self._tournament(entering[label][0]).enter_all(entering[label])
        self.reached: set[str] = set()
        """Queues that had a turn in this cycle."""
        self._long_without_turn()
        self.roots.clear()
        for label in sorted(self.tournaments):
            self._root(label)
        fruitful, patience = self.steps, PATIENCE + len(self.walks) // WALKS_PER_TRIAL
        while self.roots:
            if self.steps >= self.budget or (self.decisions and self.steps > fruitful + patience):
                self.more = True
                # The next cycle goes on: nobody asks them again first.
                state.asked = set() if self.decisions else self.seen
                waits = [name for name, walk in self.walks.items() if name not in self.reached and walk.peek()]
                state.unreached = {name: state.unreached.get(name, self.now) for name in waits}
                return
            _, label = heapq.heappop(self.roots)
            best = self.tournaments[label].best()
            assert best is not None
            if self._has_turn(best):
                fruitful = self.steps
            self._root(label)
        state.asked, state.unreached = set(), {}

    def _long_without_turn(self) -> None:
        """Where changes come faster than decisions end, those who rank first are worth a trial again and again: half of
        a cycle is for queues that had no turn for long, each until something is decided in it."""
        since = {name: at for name, at in self.state.unreached.items() if self.now >= at + TURN_WITHIN_MS}
        for name in sorted(since.keys() & self.walks.keys(), key=lambda name: (since[name], name)):
            while self.walks[name].peek() is not None:
                if self.steps > self.budget // 2:
                    return
                if self._has_turn(self.node(name)):
                    break

    def _has_turn(self, node: QuotaNode) -> bool:
        """The queue has its turn, and its next gang enters the tournament; was anything decided."""
        self.at = order.label(node.root)
        tournament = self.tournaments[self.at]
        self.reached.add(node.name)
        decided = len(self.decisions)
        self._turn(node)
        for name in sorted(self.shortened):
            self._moved_up(name)
        self.shortened.clear()
        if self.walks[node.name].peek() is None:
            tournament.leave(node)
        else:
            tournament.enter(node)
        if len(self.decisions) == decided:
            return False
        self._wake(self.at, self.decisions[decided:])
        return True

    def _walks(self, name: str) -> bool:
        """The queue takes part, if somebody in it is worth a trial."""
        walk = _Walk(self.state, name)
        if walk.peek() is None:
            return False
        self.walks[name] = walk
        return True

    def _tournament(self, node: QuotaNode) -> Tournament:
        label = order.label(node.root)
        if label not in self.tournaments:
            self.tournaments[label] = Tournament(node.root, self._ranks)
        return self.tournaments[label]

    def _wake(self, label: str, decided: list[Decision]) -> None:
        """After these decisions in one tree: whoever is evicted or loses a claim makes room, on nodes in any tree, and
        who was passed by and may go now has a turn after all. (Who may go because somebody was admitted has to take it
        from that one: not before the next cycle.)"""
        if any(isinstance(d, Evict) or (isinstance(d, Claim) and d.record.until <= self.now) for d in decided):
            self._back(self.state.no_longer_short(label))

    def _moved_up(self, name: str) -> None:
        """Who is first of a queue now may have been passed over for long: what is kept for others binds it no more as
        it did."""
        if not self.state.lines[name].parked:
            return
        first = self.state.first_but(name, set(self.admitted[name]))
        if first is not None and (memo := first[1]) is not None and memo.lack is not None and memo.lack.beside:
            self._back([self.state.unpark(first[0], doubt=False)])

    def _back(self, them: Iterable[tuple[str, int]]) -> None:
        """(queue, bucket) of those who were not to be tried: they take part again."""
        entering: dict[str, dict[str, QuotaNode]] = {}
        for name, bucket in them:
            node = self.node(name)
            walk = self.walks.get(name)
            if walk is None:
                enters = self._walks(name)
            else:
                enters = not walk.strict and walk.add(bucket) and walk.peek() is not None
            around = entering.setdefault(order.label(node.root), {})
            if enters:
                around[name] = node
        waiting = {label for _, label in self.roots}
        for label in sorted(entering):
            if nodes := list(entering[label].values()):
                self._tournament(nodes[0]).enter_all(nodes)
            if label != self.at and label in self.tournaments and label not in waiting:
                self._root(label)

    def _root(self, label: str) -> None:
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

    def _turn(self, node: QuotaNode) -> None:
        """The first gang of this queue has its turn."""
        walk = self.walks[node.name]
        first = walk.turn()
        assert first is not None
        place, bucket = first
        gang = self.state.workloads[order.key_of(place)]
        if gang.key in self.served:
            walk.next() if not walk.strict or gang.key in self.ledger.charges else walk.skip()
            return
        gone = self.admitted.get(node.name, ())
        known = None if walk.taken.get(bucket) else self.state.pass_again(node.name, bucket, gone)
        if known is not None:
            self.seen.add(gang.key)
            if known.turned:
                self.turned.add(gang.key)
            walk.skip()
            return
        claims = gang.key in self.ledger.claims
        looked = gang.key, self.ledger.version
        if self._looked is not None and self._looked[0] == looked:
            trial = self._looked[1]
        else:
            with self.ledger.suspended(gang.key):
                trial = self.look(gang, walk.queue, evict=not claims and self._may_evict(gang), later=True)
        if not self._able(trial):
            self.turned.add(gang.key)
        self.seen.add(gang.key)
        if not claims and trial.assignment is not None:
            beside = self._beside_kept(trial) if self.ledger.aside else self._or_over_claims(trial)
            if beside is None:
                self._looked = looked, trial
                return  # others have their turn first
            trial = beside
        self.place(trial)
        claims = claims or gang.key in self.ledger.aside
        if self._able(trial) and gang.evicted == "Preempted" and not claims and self.rules.promises:
            trial = self._come_back(trial)
        if trial.mode is Mode.FIT:
            self.admit(trial)
            self.ledger.give_up(gang.key)
            walk.next()
            return
        if trial.found.enough and not gang.preemption_gated and self._claim_room(trial):
            self.ledger.give_up(gang.key)
            walk.next() if not walk.strict else walk.skip()
            return
        if claims:
            self._wait(walk, bucket, trial)
            return
        if trial.found.enough and gang.preemption_gated:
            trial.why = replace(trial.why, reason=Reason.GATED, detail=Detail.PREEMPTION_GATED)
        if trial.assignment is not None and self._passed_over(walk, trial):
            walk.next() if not walk.strict else walk.skip()
            return
        self._park(walk, bucket, trial, self._refused(trial))

    # -- room that is kept for those who were passed over

    def _is_first(self, gang: Workload) -> bool:
        """Does nobody stand before it in its queue but who was admitted in this cycle."""
        name = self.state.queue_of(gang)
        return self.state.is_first(gang.key, self.admitted.get(name, ()), self._used(name))

    def _used(self, queue: str) -> Used:
        """By what its line is ordered, with what this cycle gave."""
        walk = self.walks.get(queue)
        return None if walk is None else walk.used

    def _kept_around(self, node: QuotaNode) -> list[tuple[int, Key]]:
        """What is kept for anybody in this tree, or on nodes: since when, and for whom, in this order."""
        on_nodes = self.state.kept_on_nodes()
        of_quota = self._of_quota(node)
        if not of_quota:
            return on_nodes
        around = on_nodes.copy()
        for key in of_quota:
            insort(around, (self.state.kept_since(key), key))
        return around

    def _of_quota(self, node: QuotaNode) -> list[Key]:
        """For whom quota alone is kept in this tree."""
        return [key for key, held in self.ledger.aside_under(node.root).items() if held.charge.admission is None]

    def _beside_kept(self, trial: Trial) -> Trial | None:
        """The same gang with the room taken that is kept for others; None when some of them must be asked first.

        All of it binds whoever has not been passed over himself. Among those who have, the tournament decides, but
        nobody goes before one who had been passed over when he came.
        """
        gang = trial.gang
        able = self._able(trial)
        around = self._kept_around(trial.node)
        if len(around) == (gang.key in self.ledger.aside) or not (able or self._claims_around(trial)):
            return self._or_over_claims(trial)
        but = {gang.key}
        at = self.state.passed_over_at(gang)
        first = self.rules.promises and self.now >= at and self._is_first(gang)
        untried: set[Key] = set()
        if first:
            came = at - self.rules.passed_over_ms
            # Who came when this one had been passed over goes behind it.
            later = at + self.rules.passed_over_ms
            before = bisect_left(around, (came,))
            if before > len(around) // 2:
                equals = {key for _, key in around[before:]}
            else:
                equals = {*self.state.kept_keys, *self._of_quota(trial.node)}
                equals.difference_update(key for _, key in around[:before])
            untried = equals.intersection(self.state.turned).difference(self.seen)
            equals.difference_update(untried)
            if turned := equals.intersection(self.turned):
                turned.discard(gang.key)
                equals.difference_update([key for key in turned if self.state.kept_since(key) <= later])
            but.update(equals)
            if len(equals) == len(around) and not untried:
                return self._or_over_claims(trial)
        with self.ledger.beside(but, trial.node.root):
            beside = self.look(gang, trial.queue, evict=self._may_evict(gang), later=True) if able else trial
            if not self._able(beside) and untried and self._by_quota_alone(beside):
                # Of other trees nothing but nodes is kept, and they do not matter.
                mine = self.ledger.aside_under(trial.node.root)
                untried.intersection_update(mine)
            if self._able(beside) or not untried:
                beside = self._or_over_claims(beside)
            self.place(beside)
        good = self._able(beside)
        beside.beside = able and not good
        if beside.beside:
            beside.why = self._but_for(beside.why, next(key for _, key in around if key not in but))
        if good or not (able or untried):
            return beside
        if untried:
            mine = self.ledger.aside_under(trial.node.root)
            own = untried.intersection(mine)
            if len(own) < len(untried) and self._kept_out(trial, but):
                untried = own
        if untried:
            self._ask_again(untried)
            return None
        if not self._may_evict(gang):
            return beside
        # What others must give up for it was never free: only the room that is free now is kept from it.
        with self.ledger.beside(but, trial.node.root, free=True):
            usage = {} if trial.assignment is None else trial.assignment.usage
            if self._simple(gang, trial.queue) and not self.state.may_take(trial.queue.name, usage):
                return beside
            freed = self.look(gang, trial.queue)
        return freed if freed.found.victims else beside

    @staticmethod
    def _but_for(why: Why, first: Key) -> Why:
        """The nodes would hold it but for what is kept for others, of whom `first` has been passed over longest: then
        empty ones would, too."""
        if not why.misfits:
            return why
        short = Detail.NODES_SHORT
        misfits = tuple(replace(one, detail=short, fits_when_empty=True, sound=0) for one in why.misfits)
        detail = short if why.detail is Detail.NEVER_FITS_NODES else why.detail
        return replace(why, detail=detail, misfits=misfits, subject=why.subject or "/".join(first))

    def _kept_out(self, trial: Trial, but: set[Key]) -> bool:
        """Would what is kept in its own tree alone keep a gang out, whatever is kept on nodes for others. No where it
        might take back what is claimed in its tree."""
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
        return bool(quota_shorts(trial.why.shortfalls)) and not self.state.may_take(
            trial.queue.name, trial.assignment.usage, back=True
        )

    def _ask_again(self, keys: Collection[Key]) -> None:
        """They have their turn in this cycle after all."""
        self.seen.update(keys)
        self._back([self.state.unpark(key) for key in sorted(keys)])

    def admit(self, trial: Trial) -> None:
        super().admit(trial)
        name, _, place = self.state.stands(trial.gang.key)
        self.admitted.setdefault(name, []).append(place)
        self.shortened.add(name)
        if (walk := self.walks.get(name)) is not None:
            walk.give(trial.gang, self.charged[trial.gang.key][1])

    def _holding(self, gang: Workload, admission: Admission) -> Workload:
        """A gang as it will be when its admission is written."""
        now = self.now
        return replace(gang, admission=admission, evicted="", admitted=True, admitted_at=now, reserved_at=now)

    # -- nobody comes back only to be evicted again

    def _come_back(self, trial: Trial) -> Trial:
        """A gang that was evicted fits again, or would if it evicted others. Whoever could lawfully evict it, once it
        is back, goes before it; where that one can go only because of it (its share makes an eviction lawful, or its
        priority), or stands behind the first of a strict queue, it stays away for a while."""
        gang = trial.gang
        while self._able(trial):
            evictor = self._evictor(trial)
            if evictor is None:
                return trial
            before = self.look(evictor.gang, evictor.queue)
            if before.mode is Mode.FIT and not evictor.behind:
                self.admit(before)
            elif evictor.behind or not before.found.enough or not self._claim_room(before):
                until = gang.evicted_at + self.rules.spare_first_ms
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
        """Would `_come_back` keep it away: then nobody shall give anything up for it."""
        gang = trial.gang
        if gang.evicted != "Preempted" or self.now >= gang.evicted_at + self.rules.spare_first_ms:
            return False
        evictor = self._evictor(trial)
        return evictor is not None and (evictor.behind or not self._able(self.look(evictor.gang, evictor.queue)))

    def _evictor(self, trial: Trial) -> Trial | None:
        """The first of those who wait in its tree that could evict this gang if it were admitted."""
        assert trial.assignment is not None
        gang, node, ledger, state = trial.gang, trial.node, self.ledger, self.state
        there = trial.assignment if trial.mode is Mode.FIT else self._once_they_left(trial)
        admission = there.admission(trial.queue.name)
        with ledger.trial():
            for key, _ in trial.found.victims:
                ledger.release(key)
            ledger.charge(charge_of(gang, admission))
            # What is within nominal quota nobody else takes, but those before it in its own queue. (Who wants back what
            # it does not hold, and others of its queue do, may take it for the room on nodes.)
            borrowing = node.borrowing(node.usage)
            rivals: list[tuple[QueueKey, Workload, ClusterQueue]] = []
            for other in node.root.queues():
                line = state.lines.get(other.name)
                queue = state.queues[other.name]
                if line is None or not (
                    borrowing
                    if other is not node
                    else queue.preemption.within_cluster_queue is not PreemptionPolicy.NEVER
                ):
                    continue
                firsts = self._firsts(other.name, queue)
                # Also who has had its turn, and room is kept for it since.
                kept = (state.place_in(other.name, key) for key in ledger.aside_under(node.root))
                firsts = [*firsts, *(place for place in kept if place is not None and place not in firsts)]
                for place in firsts:
                    rival = state.workloads[order.key_of(place)]
                    if (
                        rival.key in self.served
                        or rival.key in ledger.claims
                        or rival.preemption_gated
                        or rival.key == gang.key
                    ):
                        continue
                    if self._may_evict(rival) and self._outranks(rival, queue, other, node):
                        rivals.append((place, rival, queue))
            # In the next cycle those may be evicted too whom this one admits.
            newly = [(one, what) for one, what, _ in self.charged.values()]
            self.as_if = tuple(self._holding(one, what) for one, what in (*newly, (gang, admission)))
            try:
                for _, rival, queue in sorted(rivals, key=lambda entry: entry[0][1:]):
                    found = self.look(rival, queue, later=True)
                    # Who outranks it in its own queue, and has other room now, may send it when others took that.
                    over = queue is trial.queue and rival.effective_priority > gang.effective_priority
                    sends = over and (found.mode is Mode.FIT or (trial.found.victims and found.mode is not Mode.NO_FIT))
                    if sends or (found.found.enough and any(key == gang.key for key, _ in found.found.victims)):
                        found.behind = queue.strategy is Strategy.STRICT_FIFO and not self._is_first(rival)
                        return found
            finally:
                self.as_if = ()
        return None

    def _firsts(self, name: str, queue: ClusterQueue) -> list[QueueKey]:
        """Who of a queue may be looked at in this cycle or in the next: the first of every bucket; of all that have
        no room yet where it is strict."""
        line, ledger = self.state.lines[name], self.ledger
        if queue.strategy is Strategy.STRICT_FIFO:
            rest = (
                place
                for place in line
                if (key := order.key_of(place)) not in ledger.claims and key not in ledger.charges
            )
            return list(islice(rest, 1))
        taken = self.walks[name].taken if name in self.walks else {}
        return [places[at] for bucket, places in line.buckets.items() if (at := taken.get(bucket, 0)) < len(places)]

    def _outranks(self, rival: Workload, queue: ClusterQueue, mine: QuotaNode, theirs: QuotaNode) -> bool:
        """Could the law let it evict somebody of their side: a bound that costs little."""
        if mine is theirs:
            return True
        usage = self.demand(rival, queue).first
        if not usage:
            return False
        side, other = reclaim.almost_common(mine, theirs)
        if not side.is_queue or queue.preemption.within_cluster_queue is not PreemptionPolicy.NEVER:
            return True  # who leaves on its own side may make it lawful
        resources = frozenset(fr[1] for fr in usage) if self.rules.contested_share else None
        entitled = mine.holds(usage)
        return entitled or mine.share(usage, resources) < other.share(None, resources)

    # -- room for those who wait for it

    def _may_evict(self, gang: Workload) -> bool:
        """After a claim that came to nothing, it evicts nobody for as long again."""
        record = gang.claims
        return record is None or not record.victims or self.now >= record.until + self.rules.claim_ms

    def _claim(self, trial: Trial, admission: Admission, victims: tuple[str, ...]) -> None:
        """Keep this room for it."""
        gang = trial.gang
        until = -(-(self.now + self.rules.claim_ms) // 1000) * 1000  # stored in whole seconds
        self.decisions.append(Claim(gang.key, gang.uid, ClaimRecord(admission, victims, until)))
        charge = claim_of(gang, admission)
        if victims:
            self.ledger.claim(charge, until)
        else:
            self.ledger.set_aside(charge, until)

    def _once_they_left(self, trial: Trial) -> Assignment:
        """Where it would stand when its victims are gone, and who leaves already."""
        leave = {key for key, _ in trial.found.victims} | self.going(trial.gang, trial.queue)
        charges = self.ledger.charges
        with self.ledger.as_if_gone(charges[key] for key in sorted(leave) if key in charges):
            return self._again(trial)

    def _claim_room(self, trial: Trial) -> bool:
        """Evict for it, and keep what becomes free."""
        gang = trial.gang
        there = self._once_they_left(trial)
        if there.mode is not Mode.FIT:
            return False
        self.evict(trial)
        leave = [key for key, _ in trial.found.victims] or sorted(self.going(gang, trial.queue))
        uids = tuple(sorted(self.state.workloads[key].uid for key in leave if key in self.state.workloads))
        self._claim(trial, there.admission(trial.queue.name), uids)
        why = replace(
            trial.why,
            reason=Reason.WAITING_FOR_PREEMPTED,
            detail=Detail.VICTIMS_LEAVING,
            subject=f"{len(leave)} evicted workload(s)",
        )
        self.verdicts.append(Verdict(gang.key, Standing.WAITING, why, self.asked(trial)))
        return True

    def _wait(self, walk: _Walk, bucket: int, trial: Trial) -> None:
        """It has a claim, and the room is not free yet."""
        gang = trial.gang
        record = gang.claims
        held = self.ledger.aside.get(gang.key)
        if held is None or record is None:
            held = self.ledger.claims[gang.key]
            until = held.until
        else:
            # Nobody was evicted for this one: the claim lasts until it is admitted, or is not what the gang would get.
            if held.until - self.now <= self.rules.claim_ms // 2 and self._would_take(trial, record.admission):
                self._claim(trial, record.admission, ())
                held = self.ledger.aside[gang.key]
            until = held.until - self.rules.claim_ms // 2
        leaving = () if record is None else tuple(uid for uid in record.victims if self.state.is_leaving(uid))
        if leaving:
            why = replace(
                trial.why,
                reason=Reason.WAITING_FOR_PREEMPTED,
                detail=Detail.VICTIMS_LEAVING,
                subject=f"{len(leaving)} evicted workload(s)",
            )
        else:
            why = replace(trial.why, detail=Detail.CLAIMED, subject="it", until=held.until)
        verdict = Verdict(gang.key, Standing.WAITING, why, self.asked(trial))
        self.verdicts.append(verdict)
        lack = self._lack(trial)
        if lack is not None and gang.key in self.ledger.claims:
            lack = replace(lack, claim=gang.key, victims=leaving)
        elif lack is not None:
            # Who was refused beside what is set aside for others has a turn whenever something changed: it matters who
            # asks before whom.
            lack = None if trial.beside else replace(lack, first=True)
        memo = Memo(verdict, self._on_nodes(trial), until, lack, gang.key in self.turned)
        self.state.park(walk.queue.name, bucket, memo)
        walk.skip()

    @staticmethod
    def _would_take(trial: Trial, claimed: Admission) -> bool:
        """Could this still be its admission: its LocalQueue may lead elsewhere now, its queue have other flavors, or
        the gang be smaller."""
        flavors = {flavor.name for group in trial.queue.groups for flavor in group.flavors}
        counts = {pod_set.name: pod_set.count for pod_set in trial.gang.pod_sets}
        return claimed.cluster_queue == trial.queue.name and all(
            part.count <= counts.get(part.name, 0) and all(flavor in flavors for _, flavor in part.flavors)
            for part in claimed.pod_sets
        )

    def _lack(self, trial: Trial) -> Lack | None:
        """What it lacks, where a look at the book can tell later whether it still does."""
        assignment, queue, gang = trial.assignment, trial.queue, trial.gang
        if assignment is None or not self._simple(gang, queue):
            return None
        usage = tuple(sorted((fr, amount) for fr, amount in assignment.usage.items() if amount))
        frs = frozenset([fr for fr, _ in usage])
        why = trial.why
        if assignment.mode is Mode.NO_FIT:
            # What eviction could do was not asked; without it, only what the tree does not change says no for good.
            never = assignment.reason is not Reason.WAITING_FOR_QUOTA
            return Lack(queue.name, usage, frs, never=True) if never else None
        blocked = None
        if why.detail is Detail.CLAIMED and why.subject != "it":
            namespace, _, name = why.subject.partition("/")
            blocked = ((namespace, name), why.until)
        shorts = quota_shorts(why.shortfalls)
        by_nodes = not shorts and any(choice.misfits for choice in assignment.pod_sets)
        return Lack(
            queue.name,
            usage,
            frs,
            shorts,
            evicts=self._may_evict(gang),
            first=trial.first,
            beside=trial.beside,
            blocked_by=blocked,
            placing=assignment.placing if by_nodes and not gang.lost_nodes else (),
            avoid=self._avoided(gang),
        )

    def _simple(self, gang: Workload, queue: ClusterQueue) -> bool:
        """Are there no flavors or counts to choose from, and nobody to evict but by the law of shares."""
        return (
            self.rules.promises
            and all(len(group.flavors) == 1 for group in queue.groups)
            and all(pod_set.min_count is None for pod_set in gang.pod_sets)
            and queue.preemption.within_cluster_queue is PreemptionPolicy.NEVER
        )

    @staticmethod
    def _able(trial: Trial) -> bool:
        """Does it fit, perhaps once others are gone."""
        return trial.mode is Mode.FIT or trial.found.enough

    def _claims_around(self, trial: Trial) -> list[Key]:
        """What others claim that may be in its way, the last to end first."""
        ledger, root = self.ledger, trial.node.root
        around = ledger.claims if self._on_nodes(trial) else ledger.claims_under(root)
        return [
            key
            for key, held in sorted(around.items(), key=lambda item: (item[1].until, item[0]), reverse=True)
            if key != trial.gang.key
            and (node := ledger.tree.queue(held.charge.queue)) is not None
            and (node.root is root or held.charge.admission is not None)
        ]

    def _or_over_claims(self, trial: Trial) -> Trial:
        return trial if trial.assignment is None or self._able(trial) else self._over_claims(trial)

    def _over_claims(self, trial: Trial) -> Trial:
        """What others claim is in its way? A gang within nominal quota, of its queue or of the cohort on its side,
        takes back what is only claimed, and borrowed: it might evict them as soon as they have it. Any other waits, and
        the first of its queue is told for whom."""
        ledger = self.ledger
        root = trial.node.root
        assert trial.assignment is not None
        by_nodes = self._on_nodes(trial)
        claims = self._claims_around(trial)
        if not claims:
            return trial
        usage = trial.assignment.usage
        entitled = _within_nominal(trial.node, usage)
        borrowed = [
            key for key in claims if self._borrowed(key, root) and (entitled or self._entitled_against(trial, key))
        ]
        if (
            borrowed
            and self._simple(trial.gang, trial.queue)
            and not self.state.may_take(trial.queue.name, usage, back=True)
        ):
            borrowed = []
        if borrowed:
            with ledger.without_claims(borrowed):
                better = self.look(trial.gang, trial.queue, evict=self._may_evict(trial.gang))
                comes = self._able(better) and not self._stays_away(better)
            if comes and better.assignment is not None and better.assignment.usage != usage:
                # It is entitled to what it lacked, and would come elsewhere: to that, too?
                within = _within_nominal(trial.node, better.assignment.usage)
                comes = within or all(self._entitled_against(better, key) for key in borrowed)
            if comes:
                mark = ledger.mark()
                kept = {key: ledger.claims[key] for key in borrowed}
                for key in borrowed:
                    ledger.unclaim(key)
                known = True
                for key in borrowed:
                    held = kept[key]
                    ledger.claim(held.charge, held.until)
                    if self._fits_now(trial):
                        known = False
                        continue
                    again = self.look(trial.gang, trial.queue, evict=self._may_evict(trial.gang))
                    if self._able(again):
                        better, known = again, True
                        continue
                    ledger.unclaim(key)
                    self._drop(key)
                if not known:
                    self.steps -= 1  # it was counted when it was found to fit
                    better = self.look(trial.gang, trial.queue, evict=self._may_evict(trial.gang))
                ledger.keep(mark)
                return better
        if not self._is_told(trial.gang):
            return trial
        if not by_nodes and not self._quota_beyond(claims, trial):
            return trial
        first = ledger.claims[claims[-1]]
        if self._fits_without(claims, trial):
            name = "/".join(first.charge.key)
            trial.why = replace(trial.why, detail=Detail.CLAIMED, subject=name, until=first.until)
        return trial

    def _fits_now(self, trial: Trial) -> bool:
        """Would another look find that it fits; no where only a look can tell."""
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
        if not self._quota_beyond(claims, trial):
            return False
        avoid = self._avoided(gang)
        # What there is room for beside these claims, there is without them.
        if ledger.room(assignment.placing, owner=gang.key, avoid=avoid):
            return True
        with ledger.without_claims(claims):
            return self._on_free_nodes(gang, assignment, avoid)

    def _is_told(self, gang: Workload) -> bool:
        """Does nobody stand before it in its queue but who was admitted in this cycle, or has room kept for it."""
        queue, root = self.state.queue_of(gang), self.node(self.state.queue_of(gang)).root
        keep = {*self.ledger.claims_under(root), *self.ledger.aside_under(root)}
        before = [at for key in keep if (at := self.state.place_in(queue, key)) is not None]
        before += self.admitted.get(queue, ())
        return self.state.is_first(gang.key, before, self._used(queue))

    def _quota_beyond(self, claims: list[Key], trial: Trial) -> bool:
        """Would there be quota without these claims."""
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

    def _borrowed(self, key: Key, root: QuotaNode) -> bool:
        held = self.ledger.claims[key]
        node = self.ledger.tree.queue(held.charge.queue)
        if node is None or node.root is not root:
            return False
        return node.borrowing(fr for fr, _ in held.charge.usage)

    def _entitled_against(self, trial: Trial, key: Key) -> bool:
        """Might a gang that is beyond the quota of its queue, and within that of the cohort on its side, evict the
        owner of this claim, whoever that is."""
        assert trial.assignment is not None
        node, usage = trial.node, trial.assignment.usage
        theirs = self.ledger.tree.queue(self.ledger.claims[key].charge.queue)
        if not usage or theirs is None or theirs is node or not reclaim.may_always_reclaim(trial.queue, self.rules):
            return False
        mine, _ = reclaim.almost_common(node, theirs)
        rest: Usage = usage
        below, around = node.path(), mine.path()
        for at in below[: -len(around)]:
            rest = at.risen(rest)
        return all(not mine.exceeds(fr, rest.get(fr, 0)) for fr in usage) and all(
            at.borrowing(usage) for at in theirs.path() if at not in around
        )

    def _drop(self, key: Key) -> None:
        """Its claim ends now."""
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
        self.decisions.append(Claim(key, gang.uid, replace(record, until=self.now)))

    def _passed_over(self, walk: _Walk, trial: Trial) -> bool:
        """The first of its queue has waited too long: room becomes its own as it becomes free. Nobody is evicted."""
        gang, rules = trial.gang, self.rules
        if not rules.promises or trial.mode is Mode.NO_FIT or gang.preemption_gated:
            return False
        if not self._is_first(gang):
            return False
        trial.first = True
        if not self._may_evict(gang):
            return False  # a claim of its own came to nothing: the record of that keeps it from the next
        at = self.state.passed_over_at(gang)
        if self.now < at:
            until = trial.found.until
            trial.found = replace(trial.found, until=at if until is None else min(at, until))
            return False
        trial.due = True
        assert trial.assignment is not None
        with self.ledger.beside({gang.key}, trial.node.root), self.ledger.without_gangs(walk.queue.name):
            there = self._again(trial) if trial.node.fits(trial.assignment.usage) else None
            if (there is None or there.mode is not Mode.FIT) and any(p.min_count is not None for p in gang.pod_sets):
                there = self.look(gang, walk.queue, evict=False).assignment  # with fewer pods
        if there is None or there.mode is not Mode.FIT:
            return False
        self._claim(trial, there.admission(trial.queue.name), ())
        why = replace(trial.why, detail=Detail.CLAIMED, subject="it", until=self.now + rules.claim_ms)
        self.verdicts.append(Verdict(gang.key, Standing.WAITING, why, self.asked(trial)))
        return True

    def _refused(self, trial: Trial) -> Verdict:
        return Verdict(trial.gang.key, Standing.PARKED, trial.why, self.asked(trial))

    def _park(self, walk: _Walk, bucket: int, trial: Trial, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        held = walk.line.buckets[bucket]
        if len(held) > 1 and not self.state.told(bucket, verdict.why):
            taken = walk.taken.get(bucket, 0)
            self.verdicts.extend(replace(verdict, key=order.key_of(place)) for place in held[taken + 1 :])
        avoid = [avoided.until for avoided in trial.gang.avoid if avoided.until > self.now]
        times = [*avoid, *([trial.found.until] if trial.found.until is not None else [])]
        if trial.gang.claims is not None and not self._may_evict(trial.gang):
            times.append(trial.gang.claims.until + self.rules.claim_ms)
        # The first of a queue may be due for a claim, for which others stand in the way than for a trial.
        lack = self._lack(trial) if not trial.due else None
        turned = trial.gang.key in self.turned
        memo = Memo(verdict, self._on_nodes(trial), min(times, default=None), lack, turned)
        self.state.park(walk.queue.name, bucket, memo)
        bad_namespace = verdict.why.detail is Detail.NAMESPACE_NOT_SELECTED
        if walk.strict and bad_namespace:
            walk.leave_out()
        else:
            walk.skip()

    # -- who lost nodes

    def _in_turn(self, what: str, keys: Iterable[Key]) -> Iterator[tuple[Workload, Admission, ClusterQueue]]:
        """Those of them who hold quota of a queue, in half of a cycle: where a zone fails, they are many, and others
        have turns too. The next cycle goes on behind the last; who had no luck is asked again when anything in its
        tree or on nodes changed."""
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
            if self.steps > self.budget // 2:
                self.more = True
                return
            state.hit_upto[what] = key
            self.steps += 1
            decided = len(self.decisions)
            yield gang, held, queue
            if len(self.decisions) == decided:
                state.no_luck[key] = book

    def _replacements(self) -> None:
        """Other nodes for those that were lost."""
        workloads = self.state.workloads
        hit = [key for key in self.state.second if workloads[key].lost_nodes and not workloads[key].evicted]
        for gang, _, queue in self._in_turn("second", hit):
            with self.ledger.trial():
                self.ledger.release(gang.key)
                assignment = self.stand_again(gang, queue)
            if assignment.mode is Mode.FIT:
                admission = assignment.admission(queue.name)
                self.ledger.release(gang.key)
                self.ledger.charge(charge_of(gang, admission))
                self.decisions.append(Replace(gang.key, gang.uid, admission))

    def _claims_of_the_hit(self) -> None:
        """A gang that is on its way out because it lost nodes claims what is left of them, and others in their place,
        so that it finds them when its last pod is gone."""
        if not self.rules.promises:
            return
        claims = {key: self.state.workloads[key].claims for key in self.hit}
        lasts = self.now + self.rules.claim_ms // 2
        hit = [key for key, claim in claims.items() if claim is None or claim.until <= lasts]
        for gang, held, queue in self._in_turn("leaving", hit):
            waits = replace(gang, admission=None, admitted=False, claims=ClaimRecord(held, (), 0), cursor=())
            pinned = {part.name: dict(part.flavors) for part in held.pod_sets}
            avoid = self._avoided(gang)
            with self.ledger.trial(), self.ledger.suspended(gang.key):
                self.ledger.release(gang.key)
                asked = scan.requests(waits, queue, self.rules)
                assignment = self.pinned(waits, queue, asked, pinned, avoid)
            if assignment.mode is not Mode.FIT:
                continue
            admission = assignment.admission(queue.name)
            until = -(-(self.now + self.rules.claim_ms) // 1000) * 1000
            self.decisions.append(Claim(gang.key, gang.uid, ClaimRecord(admission, (), until)))
            self.ledger.claim(claim_of(gang, admission), until)


# ---------------------------------------------------------------- heads


@dataclass(slots=True)
class _Entry:
    trial: Trial
    usage: Charge
    """What it would charge, or keep from others."""
    second: bool = False
    verdict: Verdict | None = None
    unasked: bool = False
    """Nobody is to go for it, and where it would stand on empty nodes was not asked yet: mostly its quota refuses it,
    whatever the nodes say."""


class _Heads(_Run):
    """One gang of each queue (or so many), against the book as it was found; then in order."""

    def go(self) -> None:
        self.entries: list[_Entry] = []
        self._second_pass()
        before = self.steps
        for label, names in self._roots():
            if self.steps - before >= self.budget and self.entries:
                self.more = True
                self.state.heads_before = label
                break
            for name in names:
                self._heads_of(name)
        else:
            self.state.heads_before = ""
        self.preempted: set[Key] = set()
        self.kept: list[Key] = []
        """For whom room is taken for the rest of this cycle; they are not admitted in it."""
        for entry in self._in_order():
            self._process(entry)
        if not self.more:
            self.more = bool(self.decisions) or any(
                entry.verdict is not None and entry.verdict.standing is Standing.ACTIVE for entry in self.entries
            )
            # A queue whose head was parked has another one to look at.
            self.more = self.more or bool(self.state.ready())

    # -- nominating

    def _roots(self) -> list[tuple[str, list[str]]]:
        """The queues under each root in which somebody is worth a trial. A root is looked at whole or not at all, so
        that nobody is passed by of those whom the order would put first; where the last cycle had no budget left, this
        one goes on."""
        under: dict[str, list[str]] = {}
        for name in self.state.ready():
            under.setdefault(order.label(self.node(name).root), []).append(name)
        labels = sorted(under)
        at = bisect_left(labels, self.state.heads_before)
        return [(label, under[label]) for label in (*labels[at:], *labels[:at])]

    def _heads_of(self, name: str) -> None:
        walk = _Walk(self.state, name)
        for _ in range(self.rules.heads_per_queue or 1):
            first = walk.turn()
            if first is None:
                return
            self._nominate(walk.queue, *first)
            walk.next()

    def _nominate(self, queue: ClusterQueue, place: QueueKey, bucket: int) -> None:
        gang = self.state.workloads[order.key_of(place)]
        trial = self.look(gang, queue)
        trial.place, trial.bucket = place, bucket
        if trial.assignment is None:
            strict = queue.strategy is Strategy.STRICT_FIFO
            keep = strict and trial.why.detail is not Detail.NAMESPACE_NOT_SELECTED
            self._requeue(_Entry(trial, self._charge(trial)), active=keep)
            return
        by_nodes = trial.mode.preempts and self._by_nodes(trial)
        if by_nodes and trial.found.victims:
            self._nodes_after(trial)
        self.entries.append(_Entry(trial, self._charge(trial), unasked=by_nodes and not trial.found.victims))

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
            trial = Trial(gang, queue, self.node(queue.name), assignment, reclaim.Found(), self._why(assignment, _NONE))
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
        """Where it would stand once its victims are gone, or, without any, on empty nodes: to be kept from others."""
        assert trial.assignment is not None
        charges = self.ledger.charges
        victims = [charges[key] for key, _ in trial.found.victims]
        with self.ledger.as_if_gone(victims) if victims else self.ledger.on_empty_nodes():
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
            yield from sorted(self.entries, key=self._classical)
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
            roots[order.label(root)] = root
        for label in sorted(roots):
            tournament = Tournament(roots[label], ranked)
            mine = [name for name in waiting if self.node(name).root is roots[label]]
            for name in mine:
                tournament.enter(self.node(name))
            while (best := tournament.best()) is not None:
                yield waiting[best.name].pop(0)
                if waiting[best.name]:
                    tournament.enter(best)
                else:
                    tournament.leave(best)

    @staticmethod
    def _classical(entry: _Entry) -> tuple[bool, int, int, int, str, Key]:
        gang, assignment = entry.trial.gang, entry.trial.assignment
        borrow = 0 if assignment is None else assignment.borrow
        return (not entry.second, borrow, -gang.effective_priority, order.stamp(gang), gang.uid, gang.key)

    # -- processing

    def _process(self, entry: _Entry) -> None:
        trial = entry.trial
        gang = trial.gang
        if entry.second:
            self._stand(entry)
            return
        fits = self._still_fits(entry)
        if not fits and self._recompute(entry):
            trial = entry.trial
            fits = self._still_fits(entry)
        if self._sibling(trial, lambda theirs, mine: theirs < mine) is not None:
            why = Why(Reason.PENDING_EVALUATION, Detail.VARIANT_ADMITTED)
            self._requeue(entry, active=True, why=why, scanned=False)
            return
        if trial.mode is Mode.NO_FIT:
            self._requeue(entry, active=False)
            return
        if trial.mode.preempts:
            if not trial.found.victims:
                if not reclaim.may_always_reclaim(trial.queue, self.rules):
                    self._ask(entry)
                    self._keep(self._reserve(entry))
                self._requeue(entry, active=False, reason=Reason.WAITING_FOR_QUOTA)
                return
            if gang.preemption_gated:
                why = replace(trial.why, reason=Reason.GATED, detail=Detail.PREEMPTION_GATED)
                self._requeue(entry, active=False, why=why, scanned=False)
                return
        if self.preempted & {key for key, _ in trial.found.victims}:
            deferred = self._after_others(entry)
            if deferred is None:
                why = replace(trial.why, reason=Reason.WAITING_FOR_QUOTA, detail=Detail.NEXT_CYCLE)
                self._requeue(entry, active=True, why=why, scanned=False)
                return
            trial, fits = entry.trial, True
            if deferred:
                self._until_they_left(entry)
                return
        if not fits:
            why = replace(trial.why, reason=Reason.WAITING_FOR_QUOTA, detail=Detail.NEXT_CYCLE)
            self._requeue(entry, active=True, why=why, scanned=False)
            return
        self.preempted |= {key for key, _ in trial.found.victims}
        if trial.mode is Mode.FIT:
            worse = self._sibling(trial, lambda theirs, mine: theirs > mine)
            if worse is not None:
                self._migrate(entry, worse)
                return
            # Kueue counts those who were to go in this cycle as gone, and admits beyond quota until they are, if their
            # going frees more than they go for.
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

    def _keep(self, charge: Charge) -> None:
        """Taken for the rest of this cycle."""
        if charge.key not in self.ledger.charges:
            self.ledger.charge(charge)
            self.kept.append(charge.key)

    def _until_they_left(self, entry: _Entry) -> None:
        """Its room is that of gangs that leave: kept for this cycle, and looked at again in the next."""
        self._keep(entry.usage)
        why = replace(entry.trial.why, reason=Reason.WAITING_FOR_PREEMPTED, detail=Detail.VICTIMS_LEAVING)
        self._requeue(entry, active=True, why=why, scanned=False)

    def _fits_without(self, entry: _Entry, gone: Iterable[Key]) -> bool:
        """Is there quota, and are the nodes free that were chosen, with these out of the book."""
        with self.ledger.trial():
            for key in gone:
                self.ledger.release(key)
            return entry.trial.node.fits(dict(entry.usage.usage)) and self._room_on_nodes(entry.trial)

    def _still_fits(self, entry: _Entry) -> bool:
        """Is there room, with everybody gone who was to go for it or for somebody before it."""
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
        """Of those who go for somebody in this cycle, and these, who holds something in the tree of this gang, or
        nodes."""
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
        admission = trial.assignment.admission(trial.queue.name)
        nodes = self.ledger.nodes
        with self.ledger.trial():
            self.ledger.charge(replace(charge_of(trial.gang, admission), usage=()))
            for pod_set in admission.pod_sets:
                if pod_set.topology is None:
                    continue
                levels = pod_set.topology.levels
                for domain in pod_set.topology.domains:
                    if levels[-1] == HOSTNAME_LABEL:
                        free = nodes.free(nodes.resolve(domain.values[-1]))
                    else:
                        free = self._free_in(tuple(zip(levels, domain.values, strict=True)))
                    if not free or min(free.values()) < 0:
                        return False
        return True

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
        """Look again, on the book as it is now, where another took the nodes that were chosen."""
        trial = entry.trial
        if "TASRecomputeAssignmentWithinSchedulingCycle" not in self.rules.gates or trial.assignment is None:
            return False
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
        entry.trial, entry.usage, entry.unasked = trial, self._charge(trial), False

    def _after_others(self, entry: _Entry) -> bool | None:
        """Its victims go for somebody before it: does it fit once they are gone (True), or with other victims (False;
        the entry has them then), or not (None)."""
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
        """Of a variant: where the queue lists the flavor that it is for."""
        allowed = gang.allowed_flavors or frozenset()
        return next((i for i, flavor in enumerate(queue.groups[0].flavors) if flavor.name in allowed), None)

    def _sibling(self, trial: Trial, wanted: Callable[[int, int], bool]) -> Workload | None:
        """Concurrent admission: an admitted variant of the same job whose flavor stands so (`theirs`, `mine`)."""
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
        """There is room in a better flavor than the one that its job runs in: that variant goes first."""
        trial = entry.trial
        gang, queue = trial.gang, trial.queue
        self._keep(entry.usage)
        names = [flavor.name for flavor in queue.groups[0].flavors]
        mine = self._flavor_rank(gang, queue)
        last = names.index(queue.migrates_to) if queue.migrates_to in names else len(names)
        if mine is None or mine > last:
            why = Why(Reason.PENDING_EVALUATION, Detail.VARIANT_ADMITTED)
            self._requeue(entry, active=False, why=why)
            return
        if not worse.evicted and worse.key not in self.leaving:
            self.leaving.add(worse.key)
            migration = EvictReason.FLAVOR_MIGRATION
            self.decisions.append(Evict(worse.key, worse.uid, migration, gang.key, gang.uid, queue.name))
        why = Why(Reason.WAITING_FOR_PREEMPTED, Detail.VICTIMS_LEAVING, subject="another variant of the job")
        self._requeue(entry, active=True, why=why, scanned=False)

    def _reserve(self, entry: _Entry) -> Charge:
        """What a gang keeps from others for this cycle that would have to evict and finds nobody: no more than its
        queue may have."""
        assert entry.trial.assignment is not None
        node = entry.trial.node
        kept: list[tuple[FlavorResource, int]] = []
        for fr, amount in entry.usage.usage:
            quota = node.quotas.get(fr)
            used = node.usage.get(fr, 0)
            nominal = 0 if quota is None else quota.nominal
            if entry.trial.assignment.borrow > 0:
                limit = None if quota is None else quota.borrowing_limit
                kept.append((fr, amount if limit is None else min(amount, nominal + limit - used)))
            else:
                kept.append((fr, max(0, min(amount, nominal - used))))
        return replace(entry.usage, usage=tuple(kept))

    def _stand(self, entry: _Entry) -> None:
        """The second look at a gang that holds its quota: other nodes, or the first ones."""
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
        active: bool,
        reason: Reason | None = None,
        why: Why | None = None,
        scanned: bool = True,
    ) -> None:
        """`scanned`: the next look goes on behind the flavors of this one."""
        trial = entry.trial
        why = why or (trial.why if reason is None else replace(trial.why, reason=reason))
        assignment = trial.assignment
        strict = trial.queue.strategy is Strategy.STRICT_FIFO and why.detail is not Detail.NAMESPACE_NOT_SELECTED
        cursor = assignment.cursor if scanned and assignment is not None else ()
        pending = scanned and assignment is not None and assignment.pending_flavors
        active = active or strict or pending
        entry.verdict = Verdict(
            trial.gang.key,
            Standing.ACTIVE if active else Standing.PARKED,
            why,
            self.asked(trial),
            cursor,
            self.state.generation(trial.queue.name),
        )
        self.verdicts.append(entry.verdict)
        if active:
            return
        state = self.state
        held = state.lines[trial.queue.name].buckets[trial.bucket]
        if len(held) > 1 and not state.told(trial.bucket, why):
            alike = (order.key_of(place) for place in held)
            self.verdicts.extend(replace(entry.verdict, key=key) for key in alike if key != trial.gang.key)
        on_nodes = assignment is not None and self._by_nodes(trial)
        state.park(trial.queue.name, trial.bucket, Memo(entry.verdict, on_nodes))
