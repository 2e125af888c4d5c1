"""Which flavor for which resource of which pod set, and on which nodes: the scan. `assign` is the door.

*Quota first.* All pod sets of a topology group, and all resources of one resource group of the ClusterQueue, get the
same flavor. The flavors of a group are tried in the queue's order, except that those on which the gang got no nodes
before come last (`in_turn`). A flavor that the pods could never use (taints, node labels, topology) is skipped. In the
others each resource is graded by quota with a `Mode`: it fits, it fits once others are evicted (the *oracle* simulates
that), or it cannot fit. A flavor is as good as its worst resource. The scan stops at the first flavor that is good
enough by the queue's fungibility, or else keeps the best one; how far it came is the *cursor*, behind which the next
scan of this gang goes on.

*Then nodes.* With quota for all pod sets, the nodes are asked for all of them at once. If they have no room, that is as
bad as if quota were short: PREEMPT if an empty cluster would hold the gang, else NO_FIT. Where node capacity decides
for every flavor (`Rules.capacity_unless_elastic`) that answer is kept as a `Limit` on the flavors concerned, and
another round of the scan looks for better ones (`_Scan.run`). An assignment that does not fit says in `instead` without
which of its flavors another scan might do better; the caller decides whether to ask.

Two short cuts: with `later` nodes are not chosen where a sum of counts says that there are enough, and in a queue with
one flavor a pod set gets what that one gives (`_Scan._choose_alone`).

Nothing here changes the ledger. Amounts asked for are totals over the pods that are still to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

from msgspec import structs

from admission.engine.booking import is_device
from admission.engine.capacity import Placement, PlaceRequest
from admission.engine.counts import integer, on_purpose, refused_taint
from admission.engine.ledger import Ledger
from admission.engine.model import (
    Admission,
    CheckState,
    ClusterQueue,
    Detail,
    Domain,
    Flavor,
    FlavorResource,
    Fungibility,
    Misfit,
    PodSet,
    PodSetAssignment,
    PreemptionPolicy,
    Reason,
    Requirement,
    ResourceGroup,
    Rules,
    Shortfall,
    Topology,
    TopologyAssignment,
    TopologyRequest,
    Usage,
    Value,
    Why,
    Workload,
)
from admission.engine.quota import QuotaNode
from admission.names import HOSTNAME_LABEL
from admission.quantity import saturate

PODS = "pods"
"""The implicit resource that counts pods."""

Cursor = tuple[tuple[str, str, int], ...]
"""(pod set, resource, index of the flavor last tried; -1 when the last was the end of the list)."""

Pinned = Mapping[str, Mapping[str, str]]
"""Pod set -> resource -> flavor: an earlier answer, to which a scan is kept."""

Combination = tuple[str, frozenset[str]]
"""(pod set, the flavors that it got of groups in which it has a choice): together they name its nodes."""


class Mode(IntEnum):
    """How a flavor could be had; the larger the better."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """Eviction would be lawful, and nobody is found whose eviction would help."""
    PREEMPT = 2
    """By evicting from the gang's own queue (others too, maybe)."""
    RECLAIM = 3
    """By evicting from other queues only."""
    FIT = 4

    @property
    def preempts(self) -> bool:
        return Mode.NO_FIT < self < Mode.FIT


Oracle = Callable[[QuotaNode, FlavorResource, int], tuple[Mode, int]]
"""(queue, (flavor, resource), amount) -> (what eviction could do for it: NO_CANDIDATES, PREEMPT or RECLAIM; the
borrowing height after it). The borrowing height is how many levels up the cohort tree quota is borrowed; 0: none is."""


def nobody(node: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
    """The oracle of a gang that may evict nobody."""
    return Mode.NO_CANDIDATES, node.borrowing_height(fr, amount)[0]


# ---------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class PodSetRequest:
    """A pod set as it is asked for now: `count` pods still to run, `total` for all of them, `each` for one."""

    pod_set: PodSet
    count: int
    total: tuple[tuple[str, int], ...]
    each: tuple[tuple[str, int], ...]
    placing: dict[object, PlaceRequest] = field(default_factory=dict, compare=False, repr=False)
    """Cache: what is asked of the nodes for it, by the flavors that it got."""


def _transform(each: Mapping[str, int], rules: Rules) -> dict[str, int]:
    """What quota counts of one pod's requests: without excluded prefixes, and with transformations applied."""
    kept = {name: amount for name, amount in each.items() if not name.startswith(rules.excluded_prefixes)}
    if not rules.transformations:
        return kept
    by_input = {t.input: t for t in rules.transformations}
    out: dict[str, Fraction] = {}
    for name, amount in kept.items():
        transformation = by_input.get(name)
        if transformation is None:
            out[name] = out.get(name, Fraction(0)) + amount
            continue
        value = Fraction(amount, 1000 if name == "cpu" else 1)
        for target, factor in transformation.outputs:
            product = value * factor
            if transformation.multiply_by in kept:
                other = transformation.multiply_by
                product *= Fraction(kept[other], 1000 if other == "cpu" else 1)
            if target == "cpu":
                product *= 1000
            out[target] = out.get(target, Fraction(0)) + product
        if transformation.retain:
            out[name] = out.get(name, Fraction(0)) + amount
    return {name: max(0, -(-value.numerator // value.denominator)) for name, value in out.items()}


def requests(
    workload: Workload, queue: ClusterQueue, rules: Rules, counts: Mapping[str, int] | None = None
) -> tuple[PodSetRequest, ...]:
    """What each pod set of a gang asks of a queue, in order. Reclaimable pods are not asked for again; `counts`
    overrides how many pods (partial admission). The resource `pods` is added where the queue covers it."""
    reclaimable = dict(workload.reclaimable)
    covers_pods = any(PODS in group.covered for group in queue.groups)
    out = []
    for pod_set in workload.pod_sets:
        count = max(0, pod_set.count - reclaimable.get(pod_set.name, 0))
        if counts is not None and pod_set.name in counts:
            count = counts[pod_set.name]
        each = _transform(dict(pod_set.shape.requests), rules)
        total = {name: saturate(amount * count) for name, amount in each.items()}
        if covers_pods:
            total[PODS] = count
            each[PODS] = 1
        out.append(PodSetRequest(pod_set, count, tuple(sorted(total.items())), tuple(sorted(each.items()))))
    return tuple(out)


class Demand(Value, frozen=True):
    """What a whole gang asks of a queue."""

    requests: tuple[PodSetRequest, ...]
    first: Mapping[FlavorResource, int]
    """What all pod sets would take in the flavors that are tried first: for the order of gangs, not for the book."""

    @property
    def told(self) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
        """(pod set, its requests) as in `Verdict`, without the resource `pods`."""
        return tuple(
            (asked.pod_set.name, tuple((name, amount) for name, amount in asked.total if name != PODS))
            for asked in self.requests
        )


def in_turn(queue: ClusterQueue, out_of_stock: Sequence[str]) -> ClusterQueue:
    """The queue as a gang sees it that got no nodes on these flavors, oldest first: they come last in each group, in
    this order. So flavors take turns."""
    if not out_of_stock:
        return queue
    last = {name: i for i, name in enumerate(out_of_stock, 1)}
    groups = [
        structs.replace(group, flavors=tuple(sorted(group.flavors, key=lambda flavor: last.get(flavor.name, 0))))
        for group in queue.groups
    ]
    return structs.replace(queue, groups=tuple(groups))


def demand(workload: Workload, queue: ClusterQueue, rules: Rules) -> Demand:
    asked = requests(workload, queue, rules)
    queue = in_turn(queue, workload.out_of_stock)
    flavor = {resource: group.flavors[0].name for group in queue.groups if group.flavors for resource in group.covered}
    first: dict[FlavorResource, int] = {}
    for request in asked:
        for resource, amount in request.total:
            if amount and resource in flavor:
                fr = flavor[resource], resource
                first[fr] = first.get(fr, 0) + amount
    return Demand(asked, first)


# ---------------------------------------------------------------- answers


@dataclass(slots=True)
class FlavorChoice:
    """The flavor that one resource of a pod set got."""

    flavor: str
    mode: Mode
    borrow: int
    """Borrowing height."""
    tried: int
    """Index of the flavor at which the scan stopped, for the cursor; -1 where that was the last."""


@dataclass(slots=True)
class Attempt:
    """What came of one flavor for one pod set: the worst over its resources."""

    flavor: str
    mode: Mode
    borrow: int = 0
    reason: Reason | None = None
    """Why NO_FIT; None for the other modes."""
    shortfalls: tuple[Shortfall, ...] = ()


@dataclass(slots=True)
class PodSetChoice:
    """What one pod set got."""

    request: PodSetRequest
    flavors: dict[str, FlavorChoice] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    error: str = ""
    """Why no nodes can be asked for it, whatever is free."""
    topology: TopologyAssignment | None = None

    @property
    def name(self) -> str:
        return self.request.pod_set.name

    @property
    def mode(self) -> Mode:
        if self.error:
            return Mode.NO_FIT
        if not self.shortfalls and not self.misfits:
            return Mode.FIT
        return min((choice.mode for choice in self.flavors.values()), default=Mode.NO_FIT)

    def _set_mode(self, mode: Mode) -> None:
        self.flavors = {
            name: FlavorChoice(choice.flavor, mode, choice.borrow, choice.tried)
            for name, choice in self.flavors.items()
        }


@dataclass(slots=True)
class Assignment:
    """Flavors (and nodes) for a whole gang. `mode` is FIT, NO_FIT, or one of the three that need eviction."""

    pod_sets: tuple[PodSetChoice, ...]
    mode: Mode
    usage: dict[FlavorResource, int]
    """What it would charge (net of what it replaces)."""
    borrow: int
    """Largest borrowing height."""
    reason: Reason | None = None
    """Why NO_FIT."""
    placing: tuple[PlaceRequest, ...] = ()
    """What was asked of the nodes."""
    unplaced: bool = False
    """It fits, and its nodes are not chosen yet."""
    turned_away: bool = False
    """Nodes were short for flavors that it would have got: room there may change the answer."""
    instead: tuple[Combination, ...] = ()
    """Unless it fits: combinations without any one of which another scan might find something better."""
    said: dict[Combination, Limit] = field(default_factory=dict)
    """What the nodes said of its flavors, as far as that holds whatever else the gang gets."""

    def stand(self, where: Placement) -> None:
        """These are its nodes."""
        self.unplaced = False
        for choice in self.pod_sets:
            placed = where.get(choice.name)
            if placed is not None:
                choice.topology = placed

    @property
    def domains(self) -> list[Domain]:
        """Where its pods would stand, as far as that is chosen."""
        chosen = (choice.topology for choice in self.pod_sets)
        return [domain for topology in chosen if topology is not None for domain in topology.domains]

    @property
    def cursor(self) -> Cursor:
        return tuple(
            (choice.name, resource, choice.flavors[resource].tried)
            for choice in self.pod_sets
            for resource in sorted(choice.flavors)
        )

    @property
    def pending_flavors(self) -> bool:
        """The scan stopped before the end of some list: there is more to try in a later cycle."""
        return any(index != -1 for _, _, index in self.cursor)

    def flavors(self) -> Pinned:
        """Pod set -> resource -> flavor."""
        return {choice.name: {name: got.flavor for name, got in choice.flavors.items()} for choice in self.pod_sets}

    def need_preemption(self) -> frozenset[FlavorResource]:
        """The (flavor, resource) pairs that only eviction could make room in."""
        return frozenset(
            (flavor.flavor, resource)
            for choice in self.pod_sets
            for resource, flavor in choice.flavors.items()
            if flavor.mode.preempts and (flavor.flavor, resource) in self.usage
        )

    def admission(self, queue: str) -> Admission:
        """The reservation that this assignment makes."""
        return Admission(
            cluster_queue=queue,
            pod_sets=tuple(
                PodSetAssignment(
                    name=choice.name,
                    flavors=tuple(sorted((name, got.flavor) for name, got in choice.flavors.items())),
                    usage=tuple((name, amount) for name, amount in choice.request.total if name in choice.flavors),
                    count=choice.request.count,
                    topology=choice.topology,
                )
                for choice in self.pod_sets
            ),
        )

    def why(self) -> Why:
        """One reason with its numbers, for an assignment that does not fit now."""
        shortfalls = tuple(short for choice in self.pod_sets for short in choice.shortfalls)
        misfits = tuple(misfit for choice in self.pod_sets for misfit in choice.misfits)
        if self.mode is Mode.NO_FIT:
            reason = self.reason or Reason.PLACEMENT_FAILED
        elif misfits and not any(_REASON_OF.get(short.detail) is Reason.WAITING_FOR_QUOTA for short in shortfalls):
            # Quota is short only in flavors that it cannot have anyway: it waits for nodes of the one that it may have.
            reason = Reason.PLACEMENT_FAILED
            misfits = tuple(sorted(misfits, key=lambda misfit: not misfit.fits_when_empty))
        else:
            reason = Reason.WAITING_FOR_QUOTA
        if reason is Reason.PLACEMENT_FAILED and misfits:
            return Why(reason, misfits[0].detail, shortfalls, misfits)
        fitting = [short for short in shortfalls if _REASON_OF.get(short.detail) is reason] or list(shortfalls)
        if not fitting:
            return Why(reason, Detail.NONE, shortfalls, misfits)
        # A shortfall of the last of several pod sets includes what those before it take: the sentence tells that one.
        of = (fitting[0].flavor, fitting[0].resource)
        told = max((one for one in fitting if (one.flavor, one.resource) == of), key=lambda short: short.requested)
        return Why(reason, told.detail, shortfalls, misfits)


_SEVERITY = {
    None: 0,
    Reason.PLACEMENT_FAILED: 1,
    Reason.WAITING_FOR_QUOTA: 2,
    Reason.EXCEEDS_MAX_QUOTA: 3,
    Reason.NO_MATCHING_FLAVOR: 4,
}
_REASON_OF = {
    Detail.RESOURCE_NOT_COVERED: Reason.NO_MATCHING_FLAVOR,
    Detail.FLAVOR_MISSING: Reason.NO_MATCHING_FLAVOR,
    Detail.FLAVOR_TAINT: Reason.NO_MATCHING_FLAVOR,
    Detail.FLAVOR_AFFINITY: Reason.NO_MATCHING_FLAVOR,
    Detail.FLAVOR_TOPOLOGY: Reason.NO_MATCHING_FLAVOR,
    Detail.FLAVOR_NOT_ALLOWED: Reason.NO_MATCHING_FLAVOR,
    Detail.NEVER_FITS_QUOTA: Reason.EXCEEDS_MAX_QUOTA,
    Detail.QUOTA_SHORT: Reason.WAITING_FOR_QUOTA,
    Detail.BORROWING_LIMIT: Reason.WAITING_FOR_QUOTA,
    Detail.COHORT_SHORT: Reason.WAITING_FOR_QUOTA,
}


def _worse(one: Reason | None, other: Reason | None) -> Reason | None:
    """The more severe of two reasons; None is the mildest."""
    return one if _SEVERITY[one] >= _SEVERITY[other] else other


# ---------------------------------------------------------------- may the pods use the flavor


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Does a match expression hold for labels, as Kubernetes means it."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            have = integer(value or "")
            bound = integer(requirement.values[0]) if requirement.values else None
            if have is None or bound is None:
                return False
            return have > bound if requirement.operator == "Gt" else have < bound


_NO_LEVELS = (
    "it must be within a level of a topology, which comes with a flavor, and gets none, for it asks for nothing "
    "that quota counts: ask for something that the ClusterQueue has quota for, or leave the annotation out"
)


_NOT_CHOSEN = "nodes of an elastic flavor are not chosen, so that no level of a topology could be kept"


def _must_stand(topology: TopologyRequest | None) -> bool:
    """Does a pod set ask for a placement that it cannot start without."""
    return topology is not None and bool(
        topology.required or topology.slice_required or topology.slices or topology.group
    )


def is_preferred(one: tuple[Mode, int], other: tuple[Mode, int], fungibility: Fungibility) -> bool:
    """Is a flavor of (mode, borrowing height) `one` better than one of `other`."""
    (mode, height), (other_mode, other_height) = one, other
    if mode is Mode.NO_FIT or other_mode is Mode.NO_FIT:
        return mode is not Mode.NO_FIT
    # Without victims the gang cannot go now, however little it would borrow: worse than every flavor in which it could.
    if (mode is Mode.NO_CANDIDATES) != (other_mode is Mode.NO_CANDIDATES):
        return other_mode is Mode.NO_CANDIDATES
    if fungibility.preempt_over_borrow:
        return (-height, mode) > (-other_height, other_mode)
    return (mode, -height) > (other_mode, -other_height)


def _try_next(mode: Mode, height: int, fungibility: Fungibility) -> bool:
    """Does the scan go on to the next flavor after one of this mode and borrowing height."""
    if mode in (Mode.NO_FIT, Mode.NO_CANDIDATES):
        return True
    if mode.preempts and not fungibility.stop_when_preempting:
        return True
    return height > 0 and not fungibility.stop_when_borrowing


_WORST = (Mode.NO_FIT, 2**31)
_COMBINATIONS = 64
"""At most so many combinations of flavors, one of each resource group, are asked of the nodes for a pod set."""


# ---------------------------------------------------------------- the scan


@dataclass(slots=True)
class Limit:
    """What the nodes said of a combination of flavors in an earlier round of the scan: it is no better than this."""

    mode: Mode
    misfits: tuple[Misfit, ...]


@dataclass(kw_only=True, eq=False)
class _Scan:
    """One scan: what `assign` is given, by the same names, and what the rounds of it have found out so far."""

    ledger: Ledger
    queue: ClusterQueue
    """With its flavors in the order in which this gang tries them (`in_turn`)."""
    node: QuotaNode
    workload: Workload
    flavors: Mapping[str, Flavor]
    rules: Rules
    topologies: Mapping[str, Topology]
    cursor: Cursor = ()
    oracle: Oracle = nobody
    avoid: Collection[str] = ()
    pinned: Pinned | None = None
    replaces: Admission | None = None
    delay: Callable[[str], bool] | None = None
    place: bool = False
    stood: Admission | None = None
    later: bool = False
    without: Collection[Combination] = ()
    said: Mapping[Combination, Limit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        queue, rules, replaces = self.queue, self.rules, self.replaces
        self.next_index = {(name, resource): index + 1 for name, resource, index in self.cursor}
        self.replaced = {} if replaces is None else {pod_set.name: pod_set for pod_set in replaces.pod_sets}
        self.is_replacement = replaces is not None
        self.group_of: dict[str, ResourceGroup] = {}
        for group in queue.groups:
            for resource in group.covered:
                self.group_of.setdefault(resource, group)
        reclaim = queue.preemption.reclaim_within_cohort or rules.reclaim_default
        self.preempt_while_borrowing = queue.preemption.borrow_within_cohort is not PreemptionPolicy.NEVER or (
            rules.fair_sharing and reclaim is not PreemptionPolicy.NEVER
        )
        ruled_out = {one: Limit(Mode.NO_FIT, ()) for one in self.without}
        self.limits: dict[Combination, Limit] = {**self.said, **ruled_out}
        self.answers: dict[Combination, Limit] = {}
        """Of the limits, what the nodes themselves said in this scan."""
        self.crowded: dict[Combination, None] = {}
        """What pod sets had got, on whose nodes one of them found no room beside another."""
        self.foretold: dict[tuple[FlavorResource, int], tuple[Mode, int]] = {}
        """What the oracle said: it is asked once for each amount."""
        self.usage: dict[FlavorResource, int] = {}
        """What the pod sets that this round has chosen flavors for would take."""

    @cached_property
    def topology_only(self) -> bool:
        every = {flavor.name for group in self.queue.groups for flavor in group.flavors}
        return bool(every) and all(self._has_topology(name) for name in every)

    def _has_topology(self, flavor: str) -> bool:
        found = self.flavors.get(flavor)
        return found is not None and found.topology in self.topologies

    # -------------------------------------------------------- quota

    def run(self, pod_sets: Sequence[PodSetRequest]) -> Assignment:
        """The best assignment: rounds are repeated as long as the nodes put new limits on flavors."""
        again = True
        while again:
            assignment, again = self._round(pod_sets)
        if assignment.instead and assignment.mode in (Mode.PREEMPT, Mode.RECLAIM):
            assignment = self._without_victims(pod_sets, assignment)
        assignment.turned_away = any(limit.misfits for limit in self.limits.values())
        if len(_together(pod_sets)) == 1:
            assignment.said = self.answers
        return assignment

    def _without_victims(self, pod_sets: Sequence[PodSetRequest], assignment: Assignment) -> Assignment:
        """Others would have to be evicted for one pod set. Try instead to have another pod set of the gang, which fits,
        take other flavors and leave it what it needs. Not where the queue would rather evict than look further."""
        fungibility, fitting = self.queue.fungibility, {one.name for one in assignment.pod_sets if one.mode is Mode.FIT}
        if fungibility.stop_when_preempting:
            return assignment
        kept = self.limits, self.foretold, self.oracle
        self.foretold, self.oracle = {}, nobody
        for at in assignment.instead:
            if at[0] not in fitting:
                continue
            self.limits, again = {**kept[0], at: Limit(Mode.NO_FIT, ())}, True
            while again:
                other, again = self._round(pod_sets)
            better = is_preferred((other.mode, other.borrow), (assignment.mode, assignment.borrow), fungibility)
            if other.mode is Mode.FIT and better:
                assignment = other
                break
        self.limits, self.foretold, self.oracle = kept
        return assignment

    @cached_property
    def only(self) -> ResourceGroup | None:
        """The queue's only resource group where that has one flavor, and nothing else bears on what the gang gets; None
        where there is a choice."""
        queue, workload = self.queue, self.workload
        if len(queue.groups) != 1 or len(queue.groups[0].flavors) != 1 or self.next_index:
            return None
        if self.pinned is not None or self.is_replacement or self.delay is not None or workload.admission is not None:
            return None
        allowed = workload.allowed_flavors
        return queue.groups[0] if allowed is None or queue.groups[0].flavors[0].name in allowed else None

    def _round(self, pod_sets: Sequence[PodSetRequest]) -> tuple[Assignment, bool]:
        """(assignment by quota and nodes under the limits that are known; True if the nodes put a new limit on what it
        chose, so that another round may choose better)."""
        self.usage = {}
        chosen: list[PodSetChoice] = []
        for members in _together(pod_sets):
            alone = self._choose_alone(members[0], self.only) if len(members) == 1 and self.only is not None else None
            choices = self._choose(members) if alone is None else [alone]
            if any(choice.request.total and not choice.flavors and choice.mode is Mode.NO_FIT for choice in choices):
                never = None if len(chosen) + len(choices) == len(pod_sets) else self._never_together(pod_sets)
                chosen.extend(self._with_the_others(choices, pod_sets) if never is None else [never])
                break
            chosen.extend(choices)
        if len(chosen) > 1:
            # In the order of the pod sets; those behind a failure were not looked at.
            by_name = {choice.name: choice for choice in chosen}
            chosen = [by_name[asked.pod_set.name] for asked in pod_sets if asked.pod_set.name in by_name]
        assignment = Assignment(
            pod_sets=tuple(chosen),
            mode=min([choice.mode for choice in chosen], default=Mode.NO_FIT),
            usage=self.usage,
            borrow=max([got.borrow for choice in chosen for got in choice.flavors.values()], default=0),
        )
        hopeless = {choice.name for choice in chosen if choice.mode in (Mode.NO_FIT, Mode.NO_CANDIDATES)}
        if assignment.mode is not Mode.NO_FIT and self.place and self._ask_nodes(assignment):
            return assignment, True
        if assignment.mode is Mode.NO_FIT:
            assignment.reason = self._no_fit_reason(assignment)
        choice_of_flavors = any(len(group.flavors) > 1 for group in self.queue.groups)
        asked_for = self.pinned is None and self.rules.heads_per_queue is None
        if assignment.mode is not Mode.FIT and asked_for and choice_of_flavors:
            assignment.instead = self._instead(assignment, hopeless, alone=len(pod_sets) == 1)
        return assignment, False

    def _instead(self, assignment: Assignment, hopeless: Collection[str], *, alone: bool) -> tuple[Combination, ...]:
        """`Assignment.instead` of this one. Each pod set got what is best for it alone, which may be what another
        lacks; and among flavors that need eviction, it got the first, though in another the search may find victims.
        `hopeless`: pod sets for which quota is short in all of their flavors. `alone`: the gang has no other pod
        set."""
        short = [choice for choice in assignment.pod_sets if choice.mode is not Mode.FIT]
        wanted: set[str] = set()
        for choice in short:
            if choice.name in hopeless:
                might = None if alone else self._alone(choice, assignment)
                if might is None:
                    return ()
                wanted |= might
            else:
                wanted.update(attempt.flavor for attempt in choice.attempts)
        evicts = assignment.mode in (Mode.PREEMPT, Mode.RECLAIM)
        out: list[Combination] = []
        for choice in assignment.pod_sets:
            if choice.mode is not Mode.FIT:
                other = choice.mode is not Mode.NO_FIT and choice.name not in hopeless
            else:
                other = any(got.flavor in wanted or (evicts and got.borrow) for got in choice.flavors.values())
            if other and (together := self._of_several(choice.flavors)):
                out.append((choice.name, together))
        return tuple(dict.fromkeys((*out, *self.crowded)))

    def _alone(self, choice: PodSetChoice, assignment: Assignment) -> set[str] | None:
        """The flavors that quota, or eviction, might give a pod set if the rest of its gang asked for nothing; None if
        for some of its resources there are none."""
        members = [one.request for one in self._sharing(choice, assignment)]
        asked = _added_up(member.total for member in members)
        uncovered = [res for res, amount in asked.items() if amount and res not in self.group_of]
        if uncovered and not self.rules.ignore_undeclared:
            return None
        out: set[str] = set()
        for group in self.queue.groups:
            wanted = [(res, amount) for res, amount in sorted(asked.items()) if res in group.covered]
            open_to = self.open_to(members, group) if wanted else ()
            good = [
                name for name in open_to if self._grade_flavor(members, name, wanted, {})[1][0] > Mode.NO_CANDIDATES
            ]
            if wanted and not good:
                return None
            out.update(good)
        return out

    def _never_together(self, pod_sets: Sequence[PodSetRequest]) -> PodSetChoice | None:
        """The pod set with which the gang asks, in all, for more than the one flavor of a resource could ever give;
        None where there is none, or where pod sets have a choice of flavors. Without this the gang would be told only
        what a pod set in front of that one lacks, and wait for something that would not help it."""
        if self.is_replacement or self.workload.admission is not None:
            return None
        in_all, so_far = self._asked_in_all(pod_sets), Counter[FlavorResource]()
        for asked in pod_sets:
            never: list[Shortfall] = []
            for resource, amount in asked.total:
                fr = self._sole(resource)
                if fr is None:
                    continue
                so_far[fr] += amount
                if so_far[fr] > self.node.potential(fr):
                    never.append(self._shortfall(asked.pod_set.name, fr, in_all[fr], Detail.NEVER_FITS_QUOTA))
            if never:
                of = {short.flavor: [s for s in never if s.flavor == short.flavor] for short in never}
                attempts = [Attempt(f, Mode.NO_FIT, 0, Reason.EXCEEDS_MAX_QUOTA, tuple(of[f])) for f in sorted(of)]
                return PodSetChoice(asked, {}, tuple(attempts), tuple(never))
        return None

    def _with_the_others(self, choices: list[PodSetChoice], pod_sets: Sequence[PodSetRequest]) -> list[PodSetChoice]:
        """These choices, which quota refuses and with which the scan ends, with the shortfalls told for the whole gang:
        whoever raised quota by what these pod sets lack would next meet what those behind them ask of the same
        flavor."""
        if len(choices) == len(pod_sets) or self.is_replacement or self.workload.admission is not None:
            return choices
        in_all = self._asked_in_all(pod_sets)
        for choice in choices:
            choice.shortfalls = tuple(
                self._shortfall(short.pod_set, fr, in_all[fr], None)
                if _REASON_OF.get(short.detail) is Reason.WAITING_FOR_QUOTA
                and (fr := self._sole(short.resource)) is not None
                else short
                for short in choice.shortfalls
            )
        return choices

    def _sole(self, resource: str) -> FlavorResource | None:
        """The only (flavor, resource) of this resource in the queue; None where there are several, or none."""
        group = self.group_of.get(resource)
        return (group.flavors[0].name, resource) if group is not None and len(group.flavors) == 1 else None

    def _asked_in_all(self, pod_sets: Sequence[PodSetRequest]) -> Counter[FlavorResource]:
        """What all pod sets together ask for, of resources that come in one flavor only."""
        out = Counter[FlavorResource]()
        for asked in pod_sets:
            out.update({fr: amount for resource, amount in asked.total if (fr := self._sole(resource)) is not None})
        return out

    def _choose_alone(self, asked: PodSetRequest, group: ResourceGroup) -> PodSetChoice | None:
        """As `_choose`, for a pod set in no topology group and a queue with one flavor; None where the pod set asks for
        nothing, or for something that the queue does not cover: `_choose` decides then."""
        if not asked.count:
            return None
        covered = group.covered
        wanted = asked.total
        if not all(resource in covered for resource, _ in wanted):
            if not self.rules.ignore_undeclared and any(amount and res not in covered for res, amount in wanted):
                return None
            wanted = tuple(entry for entry in wanted if entry[0] in covered)
        if not wanted:
            return None
        flavor, members = group.flavors[0].name, [asked]
        barred = self._bars(flavor, members, group)
        if barred is not None:
            attempt = Attempt(flavor, Mode.NO_FIT, 0, Reason.NO_MATCHING_FLAVOR, (barred,))
            return PodSetChoice(asked, {}, (attempt,), (barred,))
        flavors, grade, attempt = self._grade_flavor(members, flavor, wanted, self.usage)
        if grade[0] is Mode.NO_FIT:
            return PodSetChoice(asked, {}, (attempt,), attempt.shortfalls)
        for resource, amount in wanted:
            self._use((flavor, resource), amount)
        return PodSetChoice(asked, flavors, (attempt,), attempt.shortfalls)

    def _choose(self, members: list[PodSetRequest]) -> list[PodSetChoice]:
        """Flavors for the pod sets of one topology group."""
        asked = _added_up(member.total for member in members)
        idle = not any(member.count for member in members)
        probe = _added_up(member.each for member in members) if idle else {}
        got, standing = self._held_by(members)
        attempts: dict[str, Attempt] = {}
        shortfalls: tuple[Shortfall, ...] = ()
        misfits: tuple[Misfit, ...] = ()
        refused: set[str] = set()
        """Resources that it cannot have; the others are looked at only to say all that is short."""
        for resource, amount in sorted(asked.items()):
            group = self.group_of.get(resource)
            if group is None and (amount == 0 or self.rules.ignore_undeclared):
                continue
            if resource in got or resource in refused:
                continue
            if group is None:
                refused.add(resource)
                shortfalls += (
                    Shortfall(
                        members[0].pod_set.name,
                        "",
                        resource,
                        Detail.RESOURCE_NOT_COVERED,
                        requested=amount,
                        covers=(resource,),
                    ),
                )
                continue
            beside = self._of_several(got)
            found, short, seen = self._scan_group(members, asked, probe, resource, group, beside)
            if probe and found is None:
                # One pod would never fit. The pod set has no pods at present, so that is no reason to refuse the gang.
                found, short, seen = self._scan_group(members, asked, {}, resource, group, beside)
            if found is None or any(choice.mode is not Mode.FIT for choice in found.values()):
                limits = self._limits(members, group, beside)
                if limits and self._go_back(members, beside, found, limits):
                    return self._choose(members)
                misfits = tuple(dict.fromkeys((*misfits, *(misfit for limit in limits for misfit in limit.misfits))))
            shortfalls += short
            if not refused:
                _merge(attempts, seen, resource, group)
            if found is None:
                refused.update(group.covered)
            else:
                got.update(found)
        if refused:
            got = {}
        ordered = tuple(attempts[name] for name in sorted(attempts))
        choices = [
            PodSetChoice(
                request=member,
                flavors=self._of_member(member, got),
                attempts=ordered,
                shortfalls=shortfalls,
                misfits=misfits,
                topology=standing.get(member.pod_set.name),
            )
            for member in members
        ]
        for choice in choices:
            old = self.replaced.get(choice.name)
            before = dict(old.usage) if old is not None else {}
            total = dict(choice.request.total)
            for resource, taken in choice.flavors.items():
                self._use((taken.flavor, resource), total.get(resource, 0) - before.get(resource, 0))
        return choices

    def _use(self, fr: FlavorResource, amount: int) -> None:
        """Add to what this round takes. A request of 0 leaves no entry, except by Kueue's rules."""
        if amount or not self.rules.promises:
            self.usage[fr] = self.usage.get(fr, 0) + amount

    def _held_by(
        self, members: list[PodSetRequest]
    ) -> tuple[dict[str, FlavorChoice], dict[str, TopologyAssignment | None]]:
        """(resource -> flavor, pod set -> topology assignment) that these pod sets hold already: a gang with a
        reservation keeps its flavors, and its nodes. Empty for a gang without one."""
        got: dict[str, FlavorChoice] = {}
        standing: dict[str, TopologyAssignment | None] = {}
        if self.workload.admission is not None:
            names = {member.pod_set.name for member in members}
            for had in self.workload.admission.pod_sets:
                if had.name in names:
                    got.update((res, FlavorChoice(flavor, Mode.FIT, 0, -1)) for res, flavor in had.flavors)
                    standing[had.name] = had.topology
        return got, standing

    def _of_member(self, member: PodSetRequest, got: Mapping[str, FlavorChoice]) -> dict[str, FlavorChoice]:
        """What one pod set gets of what its topology group got: resource -> flavor."""
        if mine := {name for name, _ in member.total}:
            return {resource: choice for resource, choice in got.items() if resource in mine}
        if member.pod_set.topology is not None and member.pod_set.topology.group:
            # It asks for nothing that quota counts, and still needs the nodes of its group.
            return {resource: choice for resource, choice in got.items() if self._has_topology(choice.flavor)}
        return {}

    def _scan_group(
        self,
        members: list[PodSetRequest],
        asked: Mapping[str, int],
        probe: Mapping[str, int],
        resource: str,
        group: ResourceGroup,
        beside: frozenset[str],
    ) -> tuple[dict[str, FlavorChoice] | None, tuple[Shortfall, ...], list[Attempt]]:
        """Scan one resource group: (flavor per resource, None if there is none; shortfalls, none if it fits; attempts).

        `asked`: amounts by resource over all members; `probe`: those of one pod each, where the members have no pods
        at present; `resource`: the one whose cursor counts; `beside`: flavors chosen of the groups before this one, as
        far as there was a choice."""
        fungibility = self.queue.fungibility
        wanted = {name: amount for name, amount in sorted(asked.items()) if name in group.covered}
        probed = {name: amount for name, amount in probe.items() if name in group.covered}
        name = members[0].pod_set.name
        best: dict[str, FlavorChoice] | None = None
        best_grade = _WORST
        all_fit = False
        last = -1
        said: list[Shortfall] = []
        attempts: list[Attempt] = []
        for index in range(self.next_index.get((name, resource), 0), len(group.flavors)):
            last = index
            flavor = group.flavors[index].name
            if self._skipped(flavor, members, resource):
                said.append(Shortfall(name, flavor, resource, Detail.FLAVOR_NOT_ALLOWED, covers=group.covered))
                continue
            barred = self._bars(flavor, members, group)
            if barred is not None:
                said.append(barred)
                attempts.append(Attempt(flavor, Mode.NO_FIT, 0, Reason.NO_MATCHING_FLAVOR, (barred,)))
                continue
            too_big = tuple(
                self._shortfall(name, (flavor, res), amount, Detail.NEVER_FITS_QUOTA)
                for res, amount in sorted(probed.items())
                if self.node.potential((flavor, res)) < amount
            )
            if too_big:
                said.extend(too_big)
                attempts.append(Attempt(flavor, Mode.NO_FIT, 0, Reason.EXCEEDS_MAX_QUOTA, too_big))
                continue
            limit = self._limit(members, group, flavor, beside)
            if limit is not None and limit.mode is Mode.NO_FIT and not limit.misfits:
                said.append(Shortfall(name, flavor, resource, Detail.FLAVOR_NOT_ALLOWED, covers=group.covered))
                continue  # another answer is looked for
            choices, grade, attempt = self._grade_flavor(members, flavor, wanted.items(), self.usage)
            if limit is not None and limit.mode < grade[0]:
                grade = (limit.mode, grade[1])
                choices = {res: replace(choice, mode=limit.mode) for res, choice in choices.items()}
                refused = Reason.PLACEMENT_FAILED if limit.mode is Mode.NO_FIT else None
                attempt = replace(attempt, mode=limit.mode, reason=refused)
            said.extend(attempt.shortfalls)
            attempts.append(attempt)
            fits = all(choice.mode is Mode.FIT for choice in choices.values())
            if not _try_next(*grade, fungibility):
                best, best_grade, all_fit = choices, grade, fits
                break
            if is_preferred(grade, best_grade, fungibility):
                best, best_grade, all_fit = choices, grade, fits
        if best is None:
            return None, tuple(said), attempts
        tried = -1 if last == len(group.flavors) - 1 else last
        if tried != -1:
            best = {res: replace(choice, tried=tried) for res, choice in best.items()}
        return best, () if all_fit else tuple(said), attempts

    def _grade_flavor(
        self,
        members: list[PodSetRequest],
        flavor: str,
        wanted: Iterable[tuple[str, int]],
        taken: Usage,
    ) -> tuple[dict[str, FlavorChoice], tuple[Mode, int], Attempt]:
        """(choice per resource, (mode, borrowing height) of its worst resource, the attempt) for one flavor and these
        resources, beside what the rest of the gang has `taken`."""
        fungibility = self.queue.fungibility
        grade: tuple[Mode, int] = (Mode.FIT, 0)
        height = 0
        reason: Reason | None = None
        shorts: list[Shortfall] = []
        choices: dict[str, FlavorChoice] = {}
        for resource, amount in wanted:
            mode, borrow, short, blocked = self._grade_resource(members, (flavor, resource), amount, taken)
            choices[resource] = FlavorChoice(flavor, mode, borrow, -1)
            if short is not None:
                shorts.append(short)
                reason = _worse(reason, blocked)
            elif not borrow:
                continue  # nothing is better
            height = max(height, borrow)
            if blocked is Reason.NO_MATCHING_FLAVOR:
                grade = _WORST
            elif is_preferred(grade, (mode, borrow), fungibility):
                grade = (mode, borrow)
        return choices, grade, Attempt(flavor, grade[0], height, reason, tuple(shorts))

    def _grade_resource(
        self, members: list[PodSetRequest], fr: FlavorResource, amount: int, taken: Usage
    ) -> tuple[Mode, int, Shortfall | None, Reason | None]:
        """(mode, borrowing height, shortfall unless it fits, reason if NO_FIT) of one resource in one flavor."""
        name = members[0].pod_set.name
        if self.is_replacement:
            for member in members:
                old = self.replaced.get(member.pod_set.name)
                if old is None or dict(old.flavors).get(fr[1]) != fr[0]:
                    short = Shortfall(name, fr[0], fr[1], Detail.FLAVOR_NOT_ALLOWED, requested=amount)
                    return Mode.NO_FIT, 0, short, Reason.NO_MATCHING_FLAVOR
                amount -= dict(old.usage).get(fr[1], 0)
        node = self.node
        total = taken.get(fr, 0) + amount
        if total > node.potential(fr):
            return Mode.NO_FIT, 0, self._shortfall(name, fr, total, Detail.NEVER_FITS_QUOTA), Reason.EXCEEDS_MAX_QUOTA
        borrow, below_root = node.borrowing_height(fr, total)
        if total <= node.available(fr):
            return Mode.FIT, borrow, None, None
        short = self._shortfall(name, fr, total, None)
        nominal = node.quotas[fr].nominal if fr in node.quotas else 0
        # By Kueue's rules a policy that allows no eviction makes this NO_FIT. Under the promises the gang waits: what
        # it may not reclaim becomes free one day.
        if total <= nominal or below_root or self.preempt_while_borrowing or self.rules.promises:
            known = self.foretold.get((fr, total))
            if known is None:
                known = self.foretold[fr, total] = self.oracle(node, fr, total)
            return known[0], known[1], short, None
        return Mode.NO_FIT, borrow, short, Reason.WAITING_FOR_QUOTA

    def _shortfall(self, name: str, fr: FlavorResource, total: int, detail: Detail | None) -> Shortfall:
        """The numbers behind a no of quota to `total` of this. detail None: the limit that is in the way says which."""
        node = self.node
        quota = node.quotas.get(fr)
        nominal = 0 if quota is None else quota.nominal
        never = detail is Detail.NEVER_FITS_QUOTA
        end = node.potential_end(fr) if never else node.end_of(fr, total) or node
        if detail is None:
            if end.parent is not None:
                detail = Detail.BORROWING_LIMIT
            else:
                detail = Detail.QUOTA_SHORT if end is node else Detail.COHORT_SHORT
        return Shortfall(
            pod_set=name,
            flavor=fr[0],
            resource=fr[1],
            detail=detail,
            requested=total,
            nominal=nominal,
            used=node.usage.get(fr, 0),
            available=node.available(fr),
            borrowable=max(0, node.potential(fr) - nominal),
            limited_by=end.name,
            allowed=node.allowed_by(end, fr) if detail is Detail.BORROWING_LIMIT else None,
            covers=self.group_of[fr[1]].covered,
        )

    # -------------------------------------------------------- may it be used

    def _skipped(self, flavor: str, members: list[PodSetRequest], resource: str) -> bool:
        """Is the scan kept from this flavor: by `pinned`, or by the flavors that the workload is allowed."""
        if self.pinned is not None and not any(
            self.pinned.get(member.pod_set.name, {}).get(resource) == flavor for member in members
        ):
            return True
        allowed = self.workload.allowed_flavors
        return allowed is not None and flavor not in allowed

    def open_to(self, members: list[PodSetRequest], group: ResourceGroup) -> tuple[str, ...]:
        """The flavors of a group that pods of these sets could use."""
        return tuple(
            flavor.name
            for flavor in group.flavors
            if not self._skipped(flavor.name, members, "") and self._bars(flavor.name, members, group) is None
        )

    def _bars(self, name: str, members: list[PodSetRequest], group: ResourceGroup) -> Shortfall | None:
        """Why pods of these sets could never use the flavor, whatever is free."""
        flavor = self.flavors.get(name)
        if flavor is None:
            return Shortfall(members[0].pod_set.name, name, "", Detail.FLAVOR_MISSING, covers=group.covered)
        labels = dict(flavor.node_labels)
        covers = group.covered
        for member in members:
            pod_set = member.pod_set
            why = self._topology_bars(member, flavor, group)
            if why:
                return Shortfall(pod_set.name, name, "", Detail.FLAVOR_TOPOLOGY, limited_by=why, covers=covers)
            shape = pod_set.shape
            tolerations = on_purpose((flavor,), (*shape.tolerations, *flavor.tolerations))
            taint = refused_taint(flavor.node_taints, tolerations)
            if taint is not None:
                return Shortfall(pod_set.name, name, "", Detail.FLAVOR_TAINT, limited_by=taint.text, covers=covers)
            # Only this flavor's own label keys say anything about it; what a pod asks of other keys, nodes decide.
            for key, value in shape.node_selector:
                if key in labels and labels[key] != value:
                    said = f"{key}={value}; its nodes have {labels[key]}"
                    return Shortfall(pod_set.name, name, "", Detail.FLAVOR_AFFINITY, limited_by=said, covers=covers)
            terms = [[need for need in term if need.key in labels] for term in shape.affinity or ()]
            if terms and not any(all(holds(need, labels) for need in term) for term in terms):
                key = terms[0][0].key
                said = f"{key}; its nodes have {labels[key]}"
                return Shortfall(pod_set.name, name, "", Detail.FLAVOR_AFFINITY, limited_by=said, covers=covers)
        return None

    def _topology_bars(self, asked: PodSetRequest, flavor: Flavor, group: ResourceGroup) -> str:
        """Why the flavor cannot give a pod set the placement that it asks for, in words; "": it can."""
        pod_set, request = asked.pod_set, asked.pod_set.topology
        by_nodes = self.rules.capacity_unless_elastic
        if request is None or not request.explicit:
            # Kueue keeps flavors with a topology for pod sets that ask for one, unless all of the queue's have one.
            if flavor.topology and not by_nodes and not self.topology_only:
                return "flavor is for placement by topology only"
            return ""
        levels = {
            level
            for level in (request.required, request.preferred, request.slice_required, *(s[0] for s in request.slices))
            if level
        }
        if by_nodes and flavor.elastic:
            bound = request.required or request.slice_required or request.slices
            if pod_set.count == 1 and levels == {HOSTNAME_LABEL}:
                return ""  # one pod stands on one node
            return _NOT_CHOSEN if bound and self._brings_nodes(asked, group) else ""
        if by_nodes:
            levels.discard(HOSTNAME_LABEL)
            if not levels:
                return ""
        if not flavor.topology:
            if not any(resource in group.covered for resource, _ in pod_set.shape.requests):
                return ""  # it only gives quota for what no node has
            return "flavor has no topology" + (f", and so no level {min(levels)}" if levels else "")
        topology = self.topologies.get(flavor.topology)
        if topology is None:
            return f"topology {flavor.topology} not found"
        missing = sorted(levels - set(topology.levels))
        if not missing:
            return ""
        return f"topology {flavor.topology} has no level {missing[0]} (it has {', '.join(topology.levels)})"

    def _brings_nodes(self, asked: PodSetRequest, group: ResourceGroup) -> bool:
        """Is it a flavor of this group by which the pods get their nodes: no flavor of another group has nodes that are
        chosen here."""
        said = [name for name, amount in asked.pod_set.shape.requests if amount and name in self.group_of]
        # What quota counts as something else alone has its nodes by that.
        said = said or [name for name, amount in asked.each if amount and name in self.group_of]
        groups = [self.group_of[name] for name in [name for name in said if is_device(name)] or said]
        others = {flavor.name for one in groups if one is not group for flavor in one.flavors}
        solid = any(name in self.flavors and not self.flavors[name].elastic for name in others)
        return any(one is group for one in groups) and not solid

    # -------------------------------------------------------- nodes

    def _of_several(self, got: Mapping[str, FlavorChoice]) -> frozenset[str]:
        """Those of these flavors that belong to groups with more than one flavor."""
        groups = ((self.group_of.get(resource), choice.flavor) for resource, choice in got.items())
        return frozenset(flavor for group, flavor in groups if group is not None and len(group.flavors) > 1)

    def _limit(
        self, members: list[PodSetRequest], group: ResourceGroup, flavor: str, beside: frozenset[str]
    ) -> Limit | None:
        """The strictest limit that is known for the members with this flavor of the group, beside flavors of others."""
        together = beside | {flavor} if len(group.flavors) > 1 else beside
        found = [limit for m in members if (limit := self.limits.get((m.pod_set.name, together))) is not None]
        return min(found, key=lambda limit: limit.mode) if found else None

    def _limits(self, members: list[PodSetRequest], group: ResourceGroup, beside: frozenset[str]) -> list[Limit]:
        """The limits that are known for the flavors of the group, beside flavors of others."""
        found = (self._limit(members, group, flavor.name, beside) for flavor in group.flavors)
        return [limit for limit in found if limit is not None]

    def _go_back(
        self,
        members: list[PodSetRequest],
        beside: frozenset[str],
        found: Mapping[str, FlavorChoice] | None,
        limits: Sequence[Limit],
    ) -> bool:
        """Should other flavors be tried in place of those `beside`? With them the nodes limit each flavor of this
        group, and nothing better was `found`. If so that is noted as a limit on those `beside`, unless it is no
        news."""
        mode = min((choice.mode for choice in (found or {}).values()), default=Mode.NO_FIT)
        at = (members[0].pod_set.name, beside)
        known = self.limits.get(at)
        if not beside or (known is not None and known.mode <= mode):
            return False
        if sum(one[0] == at[0] and one not in self.said for one in self.limits) >= _COMBINATIONS:
            return False
        self.limits[at] = Limit(mode, tuple(dict.fromkeys(misfit for limit in limits for misfit in limit.misfits)))
        return True

    def _place_request(self, choice: PodSetChoice, assignment: Assignment) -> PlaceRequest | None:
        """What to ask of the nodes for a pod set; None if nothing (sets `error` where it can never be asked)."""
        if self.only is not None and self.rules.capacity_unless_elastic and not self.workload.checks:
            # Looked up, for equal gangs ask alike.
            flavor = self.only.flavors[0].name
            known = choice.request.placing.get(((flavor,), ()))
            if known is not None and known.flavors[0] is self.flavors.get(flavor):
                return known
        pod_set = choice.request.pod_set
        if choice.request.count == 0:
            return None
        count = choice.request.count
        if choice.topology is not None:
            lost = set(self.workload.lost_nodes)
            near = self._sharing(choice, assignment) if self.rules.pack_against_fragmentation else [choice]
            there = [domain for one in near if one.topology is not None for domain in one.topology.domains]
            if not any(domain.values and domain.values[-1] in lost for domain in there):
                return None  # it stands
            # Pods that are done may have given their nodes back.
            count = sum(domain.count for domain in choice.topology.domains)
        chosen = {got.flavor for got in choice.flavors.values()}
        elastic: list[Flavor] = []
        if self.rules.capacity_unless_elastic:
            if not chosen:
                chosen = {got.flavor for got in self._goes_with(choice, assignment).flavors.values()}
            solid = [f for name in sorted(chosen) if (f := self.flavors.get(name)) is not None and not f.elastic]
            if not solid:
                return None
            solid.sort(key=lambda flavor: (not flavor.topology, flavor.name))
            elastic = [f for name in sorted(chosen) if (f := self.flavors.get(name)) is not None and f.elastic]
            if elastic:
                made = {flavor.name for flavor in elastic}
                devices = {name: got.flavor in made for name, got in choice.flavors.items() if is_device(name)}
                # What else they count as (by a transformation) is on no node.
                asked = devices.keys() & dict(pod_set.shape.requests).keys() or devices.keys()
                if devices and all(devices[name] for name in asked):
                    return None  # the nodes that bring them are made when they are needed
        else:
            if not ((pod_set.topology is not None and pod_set.topology.explicit) or self.topology_only):
                return None
            if not any(self._has_topology(flavor.name) for group in self.queue.groups for flavor in group.flavors):
                choice.error = "placement by topology is asked for, and no flavor of the queue has a topology"
                return None
            with_topology = sorted(name for name in chosen if self._has_topology(name))
            if len(with_topology) != 1:
                choice.error = (
                    f"more than one flavor with a topology assigned: {', '.join(with_topology)}"
                    if with_topology
                    else "no flavor with a topology assigned"
                )
                return None
            solid = [self.flavors[with_topology[0]]]
        if self.delay is not None and any(self.delay(flavor.name) for flavor in solid):
            return None
        also = self._added(pod_set.name)
        if elastic:
            also = (*elastic, *also)
        at = (tuple(flavor.name for flavor in solid), also)
        known = choice.request.placing.get(at)
        if known is None or any(one is not other for one, other in zip(known.flavors, solid, strict=True)):
            per_pod = dict(pod_set.shape.requests) | {PODS: 1}
            known = choice.request.placing[at] = PlaceRequest(
                pod_set, count, tuple(sorted(per_pod.items())), tuple(solid), also
            )
        return known

    def _added(self, pod_set: str) -> tuple[Flavor, ...]:
        """What ready admission checks add to the pods of a pod set (node labels, tolerations), as flavors."""
        out = []
        for check in self.workload.checks:
            labels, tolerations = dict(check.node_selectors).get(pod_set, ()), dict(check.tolerations).get(pod_set, ())
            if check.state is CheckState.READY and (labels or tolerations):
                out.append(Flavor("", node_labels=labels, tolerations=tolerations))
        return tuple(out)

    def _ask_nodes(self, assignment: Assignment) -> bool:
        """Ask the nodes for the whole gang, and put their answer into the assignment. True, and the assignment is void,
        if their answer is a new limit under which another round may find something better."""
        bare = not any(choice.flavors for choice in assignment.pod_sets)
        for choice in assignment.pod_sets if self.rules.pack_against_fragmentation else ():
            pods, pod_set = choice.request.count, choice.request.pod_set
            # What no book has, no room would do for, on elastic flavors either.
            refused = pod_set.shape.uncounted or (_NO_LEVELS if bare and _must_stand(pod_set.topology) else "")
            if pods and refused:
                choice.misfits = (Misfit(choice.name, "", pods, 0, detail=Detail.CONSTRAINT_REFUSED, message=refused),)
                choice._set_mode(Mode.NO_FIT)
                assignment.mode = Mode.NO_FIT
                return False
        asked = [
            request
            for choice in assignment.pod_sets
            if (request := self._place_request(choice, assignment)) is not None
        ]
        if any(choice.error for choice in assignment.pod_sets):
            assignment.mode = Mode.NO_FIT
            return False
        if not asked:
            return False
        assignment.placing = tuple(asked)
        by_name = {choice.name: choice for choice in assignment.pod_sets}
        if assignment.mode is Mode.FIT:
            if self.later and self.stood is None and not self.workload.lost_nodes:
                assignment.unplaced = bool(self.ledger.room(asked, owner=self.workload.key, avoid=self.avoid))
                if assignment.unplaced:
                    return False
            answer = nodes_for(self.ledger, self.workload, assignment.placing, self.avoid, self.stood)
            if not isinstance(answer, Misfit):
                assignment.stand(answer)
                return False
            if self._note_limit(assignment, answer, asked, Mode.PREEMPT):
                return True
            choice = by_name.get(answer.pod_set) or assignment.pod_sets[0]
            choice.misfits = (*choice.misfits, answer)
            choice._set_mode(Mode.PREEMPT)
            assignment.mode = Mode.PREEMPT
        if assignment.mode.preempts and not self.workload.lost_nodes:
            answer = Placement()
            if not self.ledger.room(asked, owner=self.workload.key, avoid=self.avoid, empty=True):
                answer = self.ledger.places(asked, owner=self.workload.key, avoid=self.avoid, empty=True)
            if isinstance(answer, Misfit):
                if self._note_limit(assignment, answer, asked, Mode.NO_FIT):
                    return True
                choice = by_name.get(answer.pod_set) or assignment.pod_sets[0]
                flavor = answer.flavor or next((r.flavors[0].name for r in asked if r.pod_set.name == choice.name), "")
                choice.attempts = tuple(
                    replace(attempt, mode=Mode.NO_FIT, reason=Reason.PLACEMENT_FAILED)
                    if attempt.flavor == flavor
                    else attempt
                    for attempt in choice.attempts
                )
                choice.misfits = (*(misfit for misfit in choice.misfits if misfit != answer), answer)
                choice._set_mode(Mode.NO_FIT)
                assignment.mode = Mode.NO_FIT
            else:
                # Quota may suffice where room is scattered: eviction may be needed in any of these.
                for request in asked:
                    by_name[request.pod_set.name]._set_mode(Mode.PREEMPT)
        return False

    def _note_limit(self, assignment: Assignment, answer: Misfit, asked: list[PlaceRequest], mode: Mode) -> bool:
        """Note that with these flavors the nodes allow no better than `mode`. True if that is news and other flavors
        could be tried."""
        if not self.rules.capacity_unless_elastic or self.workload.lost_nodes or self.pinned is not None:
            return False
        failed = next((request for request in asked if request.pod_set.name == answer.pod_set), asked[0])
        short = next(choice for choice in assignment.pod_sets if choice.name == failed.pod_set.name)
        same = self._sharing(self._goes_with(short, assignment), assignment)
        together = frozenset[str]().union(*(self._of_several(choice.flavors) for choice in same))
        news = False
        for choice in same if together else ():
            known = self.limits.get((choice.name, together))
            if known is None or mode < known.mode:
                self.limits[choice.name, together] = self.answers[choice.name, together] = Limit(mode, (answer,))
                news = True
                # With some of these the best was what is not so good any more.
                for at in [at for at in self.limits if at[0] == choice.name and at[1] < together]:
                    del self.limits[at]
        near = [(one.name, self._of_several(one.flavors)) for one in assignment.pod_sets]
        near = [at for at in near if news and not together.isdisjoint(at[1])]
        if len(near) > len(same):
            self.crowded.update(dict.fromkeys(near))
        return news

    @staticmethod
    def _goes_with(choice: PodSetChoice, assignment: Assignment) -> PodSetChoice:
        """The choice by whose flavors a pod set gets its nodes: its own, or that of the first pod set that has flavors
        where it asks for nothing that quota counts."""
        return choice if choice.flavors else next((one for one in assignment.pod_sets if one.flavors), choice)

    @staticmethod
    def _sharing(choice: PodSetChoice, assignment: Assignment) -> list[PodSetChoice]:
        """The choices of a pod set and of the others of its topology group."""
        topology = choice.request.pod_set.topology
        if topology is None or not topology.group:
            return [choice]
        return [
            other
            for other in assignment.pod_sets
            if (asked := other.request.pod_set.topology) is not None and asked.group == topology.group
        ]

    def _no_fit_reason(self, assignment: Assignment) -> Reason | None:
        """Why an assignment is NO_FIT. Of alternatives (flavors of one group) the mildest reason counts, of what is
        needed together (groups, pod sets) the most severe."""
        overall: Reason | None = None
        for choice in assignment.pod_sets:
            if choice.mode is not Mode.NO_FIT:
                continue
            if choice.error:
                overall = _worse(overall, Reason.NO_MATCHING_FLAVOR)
                continue
            if not choice.attempts:
                # What asks for nothing that quota counts needs no flavor: there nodes alone said no.
                nodes_alone = choice.misfits and not choice.shortfalls
                overall = _worse(overall, Reason.PLACEMENT_FAILED if nodes_alone else Reason.NO_MATCHING_FLAVOR)
                continue
            if any(not short.flavor for short in choice.shortfalls):
                overall = _worse(overall, Reason.NO_MATCHING_FLAVOR)  # a resource that the queue does not cover
            mildest: dict[int, Reason | None] = {}
            for at, attempt in enumerate(choice.attempts):
                if attempt.mode is not Mode.NO_FIT:
                    continue
                groups = [
                    i
                    for i, group in enumerate(self.queue.groups)
                    if any(flavor.name == attempt.flavor for flavor in group.flavors)
                ] or [-1 - at]
                for index in groups:
                    known = mildest.get(index, Reason.NO_MATCHING_FLAVOR)
                    if _SEVERITY[attempt.reason] <= _SEVERITY[known]:
                        mildest[index] = attempt.reason
            for reason in mildest.values():
                overall = _worse(overall, reason)
        return overall


def _together(pod_sets: Sequence[PodSetRequest]) -> list[list[PodSetRequest]]:
    """Pod sets of one topology group together, the others alone, in the order in which they come first."""
    grouped: dict[str | int, list[PodSetRequest]] = {}
    for index, asked in enumerate(pod_sets):
        topology = asked.pod_set.topology
        grouped.setdefault(topology.group if topology is not None and topology.group else index, []).append(asked)
    return list(grouped.values())


def _added_up(amounts: Iterable[tuple[tuple[str, int], ...]]) -> dict[str, int]:
    """The sum by resource."""
    out: dict[str, int] = {}
    for some in amounts:
        for resource, amount in some:
            out[resource] = out.get(resource, 0) + amount
    return out


def _merge(into: dict[str, Attempt], seen: list[Attempt], resource: str, group: ResourceGroup) -> None:
    """Fold the attempts of one resource group into those of the pod set: the worst of each flavor."""
    for attempt in seen:
        known = into.get(attempt.flavor)
        if known is None:
            into[attempt.flavor] = attempt
            continue
        into[attempt.flavor] = Attempt(
            flavor=attempt.flavor,
            mode=min(known.mode, attempt.mode),
            borrow=max(known.borrow, attempt.borrow),
            reason=_worse(known.reason, attempt.reason),
            shortfalls=(*known.shortfalls, *attempt.shortfalls),
        )
    if seen:
        present = {attempt.flavor for attempt in seen}
        for flavor in group.flavors:
            known = into.get(flavor.name)
            if known is not None and flavor.name not in present:
                lacking = Shortfall("", flavor.name, resource, Detail.RESOURCE_NOT_COVERED)
                into[flavor.name] = replace(
                    known,
                    mode=Mode.NO_FIT,
                    reason=Reason.NO_MATCHING_FLAVOR,
                    shortfalls=(*known.shortfalls, lacking),
                )


def assign(
    ledger: Ledger,
    queue: ClusterQueue,
    pod_sets: Sequence[PodSetRequest],
    cursor: Cursor,
    oracle: Oracle,
    *,
    workload: Workload,
    flavors: Mapping[str, Flavor],
    rules: Rules,
    topologies: Mapping[str, Topology] | None = None,
    avoid: Collection[str] = (),
    pinned: Pinned | None = None,
    replaces: Admission | None = None,
    delay: Callable[[str], bool] | None = None,
    place: bool = True,
    stood: Admission | None = None,
    later: bool = False,
    without: Collection[Combination] = (),
    said: Mapping[Combination, Limit] | None = None,
) -> Assignment:
    """Flavors and nodes for a gang in a queue that is in the ledger's tree.

    `pod_sets` from `requests`. `cursor` where the last scan stopped, () to start at the first flavors (whoever calls
    drops a cursor that is older than the queue's configuration). `oracle` is asked once per (flavor, resource, amount).
    `avoid` names nodes not to use. `pinned` keeps the scan to the flavors of an earlier answer (pod set -> resource ->
    flavor). `replaces` is an admission of an earlier slice of the same job: same flavors, and only the difference is
    asked for. `delay` says of a flavor that its nodes are chosen later. `place=False` leaves nodes out. `stood` is
    where the gang stood before it lost nodes: on what is left of them it stands again, if the rest finds room beside.
    `later`: nodes need not be chosen yet where it is sure that there are enough (`Assignment.unplaced`). `without`:
    what no pod set shall get (see `Assignment.instead`). `said`: what nodes said of flavors on this book, of the same
    pods (see `Assignment.said`).

    A workload that has an admission keeps its flavors, and its nodes unless some of them are in `lost_nodes`; its own
    charge must not be in the ledger then. A queue that the tree does not have, or that is in a cycle, fits nothing.
    """
    node = ledger.tree.queue(queue.name)
    if node is None or node.in_cycle:
        return Assignment((), Mode.NO_FIT, {}, 0, Reason.MISCONFIGURED)
    with ledger.suspended(workload.key):
        return _Scan(
            ledger=ledger,
            queue=in_turn(queue, workload.out_of_stock),
            node=node,
            cursor=cursor,
            oracle=oracle,
            workload=workload,
            flavors=flavors,
            rules=rules,
            topologies=topologies or {},
            avoid=avoid,
            pinned=pinned,
            replaces=replaces,
            delay=delay,
            place=place,
            stood=stood,
            later=later,
            without=without,
            said=said or {},
        ).run(pod_sets)


def turns(
    ledger: Ledger,
    queue: ClusterQueue,
    workload: Workload,
    among: Collection[str],
    flavors: Mapping[str, Flavor],
    rules: Rules,
    topologies: Mapping[str, Topology],
) -> list[tuple[str, ...]]:
    """Of each group of a queue: the flavors that these pod sets of a gang (`among`, by name) could all use if they were
    free, in the order in which they are tried. None of a queue that the ledger's tree does not have."""
    node = ledger.tree.queue(queue.name)
    if node is None:
        return []
    scan = _Scan(
        ledger=ledger,
        queue=in_turn(queue, workload.out_of_stock),
        node=node,
        workload=workload,
        flavors=flavors,
        rules=rules,
        topologies=topologies,
    )
    members = [asked for asked in requests(workload, queue, rules) if asked.pod_set.name in among]
    return [scan.open_to(members, group) for group in scan.queue.groups]


def nodes_for(
    ledger: Ledger,
    workload: Workload,
    asked: Sequence[PlaceRequest],
    avoid: Collection[str],
    stood: Admission | None = None,
) -> Placement | Misfit:
    """Nodes for what a gang asks of them (`Assignment.placing`), as the book is now: where it stood, if it does, or
    where it holds nodes that it has not lost; else anywhere."""
    if stood is not None:
        answer = ledger.places(asked, owner=workload.key, avoid=avoid, previous=stood, again=True, own=workload.uid)
        if not isinstance(answer, Misfit):
            return answer
    lost = workload.lost_nodes
    previous = workload.admission if lost else None
    own = workload.uid if previous is None else ""
    return ledger.places(asked, owner=workload.key, avoid=avoid, previous=previous, lost=lost, own=own)


Found = TypeVar("Found")


def reduce_counts(pod_sets: Sequence[PodSet], attempt: Callable[[Mapping[str, int]], Found | None]) -> Found | None:
    """Partial admission: the answer of `attempt` for the largest counts for which it has one, found by bisection
    between `count` and `min_count`; None if there is none, or nothing may be reduced. Of a pod set that asks for slices
    only counts that are whole slices count."""
    deltas = {p.name: p.count - p.min_count for p in pod_sets if p.min_count is not None and p.min_count < p.count}
    whole = sum(deltas.values())

    def counts(step: int) -> dict[str, int]:
        return {p.name: p.count - deltas.get(p.name, 0) * step // whole for p in pod_sets}

    steps: Sequence[int] = range(whole + 1) if whole else ()
    if len(deltas) == 1:
        # Each step leaves out one pod; no Workload of Muster's has two pod sets of which some may be left out.
        (reduced,) = (p for p in pod_sets if p.name in deltas)
        steps = range(reduced.count % reduced.widest_slice, whole + 1, reduced.widest_slice)
    found: Found | None = None
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        answer = attempt(counts(steps[middle]))
        if answer is None:
            low = middle + 1
        else:
            found, high = answer, middle
    return found
