"""A look at one gang: flavors, nodes, and whom it might evict; and what is decided of it.

A `Trial` is what comes of a look. `Run` is one decision under way, and what the two ways through the queues (`filling`,
`heads`) have in common: it looks at gangs on the real book (`look`), and notes what is decided (`admit`, `evict`), so
that the next look sees it. Who is next is up to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from admission.engine import flavors as scan
from admission.engine import order, reclaim
from admission.engine.flavors import Assignment, Mode
from admission.engine.ledger import Charge, Ledger, charge_of
from admission.engine.model import (
    Admission,
    Admit,
    CheckState,
    ClusterQueue,
    Decision,
    Detail,
    Evict,
    FlavorResource,
    Key,
    Misfit,
    Reason,
    Rules,
    Standing,
    Verdict,
    Why,
    Workload,
)
from admission.engine.order import QueueKey
from admission.engine.quota import QuotaNode
from admission.engine.state import State
from admission.engine.victims import Found, Preemptor

EFFORT_PER_TRIAL = 20_000
"""What a common trial costs, in the unit of `nodes.Effort`."""
COMMON_CANDIDATES, EFFORT_PER_CANDIDATE = 500, 400
"""So many candidates for eviction are part of a common trial; and what each further one costs."""
EFFORT_PER_LOOK = 100_000_000
"""The bound on one look: one to three seconds. Without it a gang of several pod sets could ask so much of the nodes
that a decision outlasts the leader's lease."""
MOST_FLAVORS = 16
"""At most so many combinations of flavors are tried for one size of a gang."""
NONE = Found()
"""No victims were looked for."""


def _anybody(node: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
    """The oracle where there is no choice of flavors: it need not tell them apart, and the search for victims
    decides."""
    return Mode.PREEMPT, node.borrowing_height(fr, amount)[0]


@dataclass(slots=True)
class Trial:
    """What came of a look at one gang: it fits (`mode`), or its victims make room (`found.enough`), or neither, and
    why."""

    gang: Workload
    queue: ClusterQueue
    node: QuotaNode
    assignment: Assignment | None
    found: Found
    why: Why
    place: QueueKey = (0, 0, 0, "", "", "", "")
    bucket: int = -1
    beside: bool = False
    """It was refused beside the room that is kept for others, and would not be without that."""
    first: bool = False
    """It was the first of its queue ..."""
    due: bool = False
    """... and has been passed over for long."""
    behind: bool = False
    """It stands behind the first of a strict queue."""

    @property
    def mode(self) -> Mode:
        return Mode.NO_FIT if self.assignment is None else self.assignment.mode


class Run:
    """One decision under way: see the module."""

    def __init__(self, state: State, now: int, budget: int, began: int) -> None:
        """budget: trials that it may take. began: `Effort.spent` of the nodes as the decision began."""
        self.state = state
        self.rules: Rules = state.rules
        self.ledger: Ledger = state.ledger
        self.now = now
        self.budget = max(1, budget)
        self.steps = 0
        self._began = began
        self.more = False
        self.decisions: list[Decision] = []
        self.verdicts: list[Verdict] = []
        self.leaving: set[Key] = set()
        """Evicted by this plan."""
        self.charged: dict[Key, tuple[Workload, Admission, Charge]] = {}
        """Admitted by this plan."""
        self.hit = [key for key in sorted(state.leaving) if state.workloads[key].evicted == "NodeFailures"]
        """Gangs that leave because they lost a node."""
        self.as_if: tuple[Workload, ...] = ()
        """For a question only: gangs that do not hold quota yet, as if they did."""
        self._demands: dict[int | Key, scan.Demand] = {}

    def go(self) -> None:
        raise NotImplementedError

    @property
    def cost(self) -> int:
        """What was spent of the budget, in trials: dear ones count as several."""
        return self.steps + (self.ledger.nodes.effort.spent - self._began) // EFFORT_PER_TRIAL

    # ------------------------------------------------------------ looking

    def demand(self, gang: Workload, queue: ClusterQueue) -> scan.Demand:
        """What the whole gang asks of the queue; worked out once a cycle for a bucket."""
        at = self.state.bucket(gang)
        known = self._demands.get(at)
        if known is None:
            known = self._demands[at] = self.state.demand(gang, queue)
        return known

    def asks(self, gang: Workload, queue: ClusterQueue) -> tuple[scan.PodSetRequest, ...]:
        return self.demand(gang, queue).requests

    def asked(self, trial: Trial) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
        """What the whole gang asks for, as a Verdict says it."""
        return self.demand(trial.gang, trial.queue).told

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
        with self.ledger.nodes.effort.within(EFFORT_PER_LOOK):
            return self._look(gang, queue, evict, pinned, later)

    def _look(self, gang: Workload, queue: ClusterQueue, evict: bool, pinned: scan.Pinned | None, later: bool) -> Trial:
        node = self.node(queue.name)
        if any(check.said_no for check in gang.checks):
            why = Why(Reason.PENDING_EVALUATION, Detail.CHECKS_PENDING)
            return Trial(gang, queue, node, None, NONE, why)
        self.steps += 1
        self.state.trying = gang.key
        keeps = "FlavorFungibilityPreserveScanProgress" in self.rules.gates
        cursor = gang.cursor if keeps or gang.cursor_generation >= self.state.generation(queue.name) else ()
        refused: list[Trial] = []
        smaller: list[Trial] = []

        def attempt(counts: Mapping[str, int] | None, into: list[Trial]) -> Trial | None:
            """The first trial that can go, with the flavors that the scan gives or, one after the other, without some
            of those (`Assignment.instead`); None if none can, and all trials are in `into`."""
            left: deque[frozenset[scan.Combination]] = deque([frozenset()])
            seen = set(left)
            said: dict[scan.Combination, scan.Limit] = {}
            for _ in range(MOST_FLAVORS):
                if not left:
                    break
                without = left.popleft()
                self.steps += counts is not None or bool(without)
                trial = self._try(gang, queue, node, cursor, counts, evict, pinned, later, without, said)
                if trial.mode is Mode.FIT or trial.found.enough:
                    return trial
                into.append(trial)
                # Kueue's scan goes on a cycle later, where it stopped.
                if self.rules.heads_per_queue is not None or trial.assignment is None:
                    break
                said.update(trial.assignment.said)
                others = [without | {one} for one in trial.assignment.instead]
                left.extend(other for other in others if other not in seen)
                seen.update(others)
            return None

        trial = attempt(None, refused)
        if trial is not None:
            return trial
        if "PartialAdmission" in self.rules.gates:
            reduced = scan.reduce_counts(gang.pod_sets, lambda counts: attempt(counts, smaller))
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
        """Might more room on nodes change this answer."""
        assignment = trial.assignment
        return trial.found.by_nodes or (
            assignment is not None and (assignment.turned_away or any(choice.misfits for choice in assignment.pod_sets))
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
        without: Collection[scan.Combination],
        said: Mapping[scan.Combination, scan.Limit],
    ) -> Trial:
        asked = self.asks(gang, queue) if counts is None else scan.requests(gang, queue, self.rules, counts)
        avoid = self._avoided(gang)
        known: dict[tuple[FlavorResource, int], Found] = {}
        assignment = scan.assign(
            self.ledger,
            queue,
            asked,
            cursor,
            scan.nobody
            if not evict
            else _anybody
            if self.rules.promises and all(len(group.flavors) == 1 for group in queue.groups)
            else reclaim.oracle(self._preemptor(gang, queue), known),
            workload=gang,
            flavors=self.state.flavors,
            rules=self.rules,
            topologies=self.state.topologies,
            avoid=avoid,
            delay=self._delay(gang, queue),
            pinned=pinned,
            stood=self._stood(gang),
            later=later,
            without=without,
            said=said,
        )
        if not evict or not assignment.mode.preempts:
            return Trial(gang, queue, node, assignment, NONE, self._why(assignment, NONE))
        found = None
        if len(assignment.usage) == 1 and not self.rules.promises:
            # The oracle has searched for victims for just this amount already. If it found none, none make room on
            # nodes either; if it found some, they are the same where no nodes are chosen.
            ((fr, amount),) = assignment.usage.items()
            found = known.get((fr, amount)) if assignment.need_preemption() == {fr} else None
            if found is not None and found.enough and assignment.placing:
                found = None
        if found is None:
            given_up = self.ledger.nodes.effort.given_up
            found = self.victims(gang, queue, assignment, avoid)
            if found.enough and self.ledger.nodes.effort.given_up > given_up:
                # Some counts were given up, so that it might need fewer victims: evict none on a guess.
                found = replace(found, victims=(), enough=False)
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

    def _preemptor(self, gang: Workload, queue: ClusterQueue) -> Preemptor:
        return Preemptor(
            self.ledger,
            gang,
            queue.name,
            self.rules,
            self.now,
            self.holders,
            self.going(gang, queue),
            self._local_usage(),
        )

    def going(self, gang: Workload, queue: ClusterQueue) -> set[Key]:
        """Gangs that are leaving and whose room this gang may count on. Not the room of one that claims it for itself,
        or that lost a node and comes before this gang in the same queue as soon as its pods are gone."""
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
        """Gangs that hold quota of a queue and might be evicted. By Kueue's rules none of an inactive queue, to which
        they could not come back: they run to their end."""
        if not self.rules.promises and not self.state.takes_part(queue):
            return ()
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
        """By Kueue's rules: tells of a flavor whether its nodes are chosen later, when an admission check that
        provisions them is ready. None where that holds for no flavor."""
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
    ) -> Found:
        """The victims that would make room for this assignment, or why there are none."""
        node = self.node(queue.name)

        def room() -> bool:
            return node.fits(assignment.usage) and self._on_free_nodes(gang, assignment, avoid)

        fits = room if self.rules.promises or assignment.placing else None
        with self.ledger.suspended(gang.key):
            found = reclaim.targets(self._preemptor(gang, queue), assignment, fits)
        self.ledger.nodes.effort.spend(EFFORT_PER_CANDIDATE * max(0, found.candidates - COMMON_CANDIDATES))
        return found

    def _on_free_nodes(self, gang: Workload, assignment: Assignment, avoid: frozenset[str]) -> bool:
        """Do the nodes have room for this assignment, as the book is now."""
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
        stood: Admission | None = None,
    ) -> Assignment:
        """The same flavors, on the book as it is now, with nobody to evict; where it `stood`, as far as it can."""
        return scan.assign(
            self.ledger,
            queue,
            asked,
            (),
            scan.nobody,
            workload=gang,
            flavors=self.state.flavors,
            rules=self.rules,
            topologies=self.state.topologies,
            avoid=avoid,
            pinned=pinned,
            stood=stood or self._stood(gang),
        )

    @staticmethod
    def _stood(gang: Workload) -> Admission | None:
        """Where a gang that was evicted for lost nodes stood: it claims room on those that are left."""
        return gang.claims.admission if gang.evicted == "NodeFailures" and gang.claims is not None else None

    def stand_again(self, gang: Workload, queue: ClusterQueue) -> Assignment:
        """Nodes for a gang that holds its quota already; its charge must be out of the book. (Its nodes are put back
        for the question: they are what it keeps.)"""
        assert gang.admission is not None
        counts = {pod_set.name: pod_set.count for pod_set in gang.admission.pod_sets}
        with self.ledger.trial():
            self.ledger.charge(replace(charge_of(gang), usage=()))
            assignment = scan.assign(
                self.ledger,
                queue,
                scan.requests(gang, queue, self.rules, counts),
                (),
                scan.nobody,
                workload=gang,
                flavors=self.state.flavors,
                rules=self.rules,
                topologies=self.state.topologies,
                avoid=frozenset(gang.lost_nodes)
                | {avoided.node for avoided in gang.avoid if avoided.until > self.now and self.rules.promises},
            )
        # If nodes are not chosen any more (the flavor became elastic) the assignment would keep the lost ones.
        resolve = self.ledger.nodes.resolve
        if any(resolve(domain.values[-1]) in gang.lost_nodes for domain in assignment.domains):
            assignment.mode = Mode.NO_FIT
        return assignment

    @staticmethod
    def _why(assignment: Assignment, found: Found) -> Why:
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
        """Decide that it is admitted, and charge it."""
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
                # Not since its creation, if it ran and was evicted.
                waited_ms=max(0, self.now - max(order.since(gang), gang.requeue_at, gang.evicted_at)),
            )
        )
        self.verdicts.append(Verdict(gang.key, Standing.ADMITTED, Why(Reason.QUOTA_RESERVED)))

    def evict(self, trial: Trial) -> int:
        """Decide that its victims are evicted, except those that are leaving already; how many are new."""
        new = 0
        for key, reason in trial.found.victims:
            victim = self.state.workloads[key]
            if victim.evicted or key in self.leaving:
                continue
            self.leaving.add(key)
            self.state.memos.leaves(self.ledger.charges[key], victim)
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
