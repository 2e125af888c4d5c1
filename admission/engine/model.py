"""The frozen values that the engine reads and the values that it answers with.

Everything here is keyword-built, immutable and hashable; amounts are ints in the units of `quantity` (milli-CPU, else
base units), times are int milliseconds since the epoch. Unions are closed: `Event` is all that can happen to a State,
`Decision` all that a Plan can ask for. `Reason` is the one enum from which conditions, events, metrics, the command
line and the web page say why a gang waits.

A gang is named by its Key (namespace, name) of its Workload; the uid is data, and ends every tie before the key does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import force_setattr

from admission import quantity

Key = tuple[str, str]
"""(namespace, name) of a Workload, LocalQueue or pod."""

FlavorResource = tuple[str, str]
"""(flavor, resource): the unit in which quota is given and used."""

Usage = Mapping[FlavorResource, int]

Pairs = tuple[tuple[str, str], ...]
"""Sorted (key, value) pairs: labels and selectors in hashable form."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """A record of named fields that is never changed, compared and hashed by them; `msgspec.structs.replace` makes
    another with some of them changed. (A frozen dataclass sets its fields one by one: some tens are made for each
    decision, and a Workload with another admission took it 40 microseconds, and takes this half a one.) A value knows
    nobody who knows it, so the collector of garbage need not walk through all of them."""


# ---------------------------------------------------------------- quota


class Quota(Value, frozen=True):
    """Quota of one (flavor, resource). A limit of None is no limit."""

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


class FlavorQuotas(Value, frozen=True):
    name: str
    quotas: tuple[tuple[str, Quota], ...]
    """(resource, Quota), in the order of the group's covered resources."""


class ResourceGroup(Value, frozen=True):
    covered: tuple[str, ...]
    flavors: tuple[FlavorQuotas, ...]
    """In the order in which they are tried."""


class Strategy(Enum):
    """How a ClusterQueue orders its gangs: does one that cannot go hold up those behind it (STRICT_FIFO) or not."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class StopPolicy(Enum):
    """Is a queue stopped: HOLD admits nothing more, HOLD_AND_DRAIN also evicts what is admitted."""

    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class PreemptionPolicy(Enum):
    """Which gangs may be evicted, by their priority and age against the gang that needs room."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    ANY = "Any"


class Preemption(Value, frozen=True):
    """`spec.preemption` of a ClusterQueue: which gangs may be evicted for its own, by whose they are."""

    within_cluster_queue: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim_within_cohort: PreemptionPolicy | None = None
    """None: not set, and `Rules.reclaim_default` holds."""
    borrow_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    max_priority_threshold: int | None = None


class Fungibility(Value, frozen=True):
    """May the scan of flavors stop at one that must borrow, or preempt; else the next is tried first."""

    stop_when_borrowing: bool = True
    stop_when_preempting: bool = False
    preempt_over_borrow: bool = False
    """Preference PreemptionOverBorrowing; else BorrowingOverPreemption."""


class Requirement(Value, frozen=True):
    """One match expression of a label selector or node selector. `operator` as Kubernetes spells it."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class LabelSelector(Value, frozen=True):
    """All requirements hold; the empty selector matches everything. (A missing one matches nothing: None.)"""

    requirements: tuple[Requirement, ...] = ()


Name = TypeVar("Name")
One = TypeVar("One")
Held = TypeVar("Held")


def discard(table: dict[Name, set[One]], name: Name, one: One) -> None:
    """Remove `one` from the set at `name`, and the set once it is empty, so that such tables do not grow."""
    held = table.get(name)
    if held is not None:
        held.discard(one)
        if not held:
            del table[name]


def drop(table: dict[Name, dict[One, Held]], name: Name, one: One) -> None:
    """As `discard`, for a table of dicts."""
    held = table.get(name)
    if held is not None:
        held.pop(one, None)
        if not held:
            del table[name]


def matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Does a label selector match these labels? A missing one (None) matches nothing."""
    if selector is None:
        return False
    for need in selector.requirements:
        value = labels.get(need.key)
        good = {
            "In": value is not None and value in need.values,
            "NotIn": value is None or value not in need.values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }.get(need.operator, False)
        if not good:
            return False
    return True


class AntiAffinity(Value, frozen=True):
    """One term of required anti-affinity: none of the pods that it selects is, or comes, where a pod with this term is.
    (A term of affinity has the same form: see `PodShape.near`.)"""

    key: str
    """The label of nodes whose values are the domains."""
    selector: LabelSelector
    namespaces: tuple[str, ...] = ()
    """Of the pods that it selects, sorted; () for all."""


class CheckRule(Value, frozen=True):
    """An admission check that a queue asks for; empty `on_flavors` means for every gang."""

    name: str
    on_flavors: frozenset[str] = frozenset()


class ClusterQueue(Value, frozen=True):
    """A queue with quota. Fields not explained here are those of the kind."""

    name: str
    cohort: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    strategy: Strategy = Strategy.BEST_EFFORT_FIFO
    namespace_selector: LabelSelector | None = None
    fungibility: Fungibility = Fungibility()
    preemption: Preemption = Preemption()
    checks: tuple[CheckRule, ...] = ()
    stop_policy: StopPolicy = StopPolicy.NONE
    weight: Fraction = Fraction(1)
    usage_based_fairness: bool = False
    """admissionScope UsageBasedAdmissionFairSharing."""
    migrates_to: str = ""
    """Concurrent admission: the last flavor to which a running job is moved; "" for any."""
    generation: int = 0
    created: int = 0
    uid: str = ""
    terminating: bool = False

    @property
    def strict(self) -> bool:
        """Does the first gang hold up all behind it while it cannot go."""
        return self.strategy is Strategy.STRICT_FIFO

    @property
    def flavor_names(self) -> list[str]:
        """In the order in which it names them."""
        return [flavor.name for group in self.groups for flavor in group.flavors]


class Cohort(Value, frozen=True):
    """A node of the quota tree above ClusterQueues, with quota of its own or none."""

    name: str
    parent: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    weight: Fraction = Fraction(1)
    generation: int = 0


class LocalQueue(Value, frozen=True):
    """A namespace's way into a ClusterQueue."""

    namespace: str
    name: str
    cluster_queue: str
    stop_policy: StopPolicy = StopPolicy.NONE
    weight: Fraction = Fraction(1)
    consumed: tuple[tuple[str, float], ...] = ()
    """Decayed usage per resource, as last stored (admission fair sharing)."""
    consumed_at: int = 0
    uid: str = ""


class Taint(Value, frozen=True):
    """Of a node, as Kubernetes has it."""

    key: str
    value: str
    effect: str

    @property
    def text(self) -> str:
        """As in kubectl: key=value:effect, or key:effect."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Toleration(Value, frozen=True):
    """Of a pod, as Kubernetes has it."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None
    """For how long a NoExecute taint is tolerated; None: for good."""


class Flavor(Value, frozen=True):
    """A ResourceFlavor: nodes of one sort, by their labels, of which quota is given."""

    name: str
    node_labels: Pairs = ()
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str = ""
    elastic: bool = False
    """Nodes may not exist yet (autoscaled from zero): quota alone decides."""
    spread: bool = False
    """Place on the emptiest nodes instead of packing."""


class Topology(Value, frozen=True):
    """How nodes form domains of several levels (block, rack, host), by their labels."""

    name: str
    levels: tuple[str, ...]
    """Node label keys, widest domain first."""


class AdmissionCheck(Value, frozen=True):
    """A check that another controller answers for each reservation."""

    name: str
    controller: str = ""
    active: bool = True


class Namespace(Value, frozen=True):
    """What queues select jobs by."""

    name: str
    labels: Pairs = ()
    terminating: bool = False
    """It is being deleted: no pods can be created in it any more."""


# ---------------------------------------------------------------- nodes and pods

Claimed = tuple[tuple[str, str, int], ...]
"""(DeviceClass, resource that its devices count as, devices) that a pod asks for by ResourceClaims, sorted. With 0
devices: a class that it asks for by the class's own name, without claims."""


def of_class_label(name: str) -> str:
    """The label that the engine puts on nodes with devices of a DeviceClass. No label of Kubernetes has a space, so
    that it is nobody else's."""
    return f"device class {name}"


class Node(Value, frozen=True):
    """A node as placement sees it; times in ms since the epoch."""

    name: str
    labels: Pairs = ()
    taints: tuple[Taint, ...] = ()
    allocatable: tuple[tuple[str, int], ...] = ()
    """(resource, amount), sorted; the resource `pods` bounds the number of pods."""
    ready: bool = True
    unschedulable: bool = False
    """Cordoned."""
    lost_since: int | None = None
    """Since when the node is not ready, or has a NoExecute taint; 0 for one that is shut down, None while it is
    well."""
    ready_since: int = 0
    """Since when it is ready, if it is."""
    away: tuple[str, ...] = ()
    """Extended resources that it has and offers none of at present, sorted: mostly because their device plugin
    restarts, or all devices are broken."""


class PodUsage(Value, frozen=True):
    """A pod that holds room on a node: bound, and not yet Succeeded or Failed.

    A pod of a live reservation that names its nodes is paid for by the reservation; every other pod, and one whose
    Workload is gone, is charged to its node here.
    """

    key: Key
    uid: str
    node: str
    requests: tuple[tuple[str, int], ...]
    workload_uid: str = ""
    host_ports: tuple[str, ...] = ()
    of_jobset: bool = False
    exclusive_key: str = ""
    """Label of the domain that its child job has to itself (`Exclusive.key`); "" if none."""
    child: tuple[str, int] | None = None
    """The child job of such a pod: ("namespace/JobSet-replicated job", index). JobSet's affinities know child jobs by
    these names, so that pods of a deleted JobSet are taken for pods of the next one of its name."""
    apart: tuple[AntiAffinity, ...] = ()
    """Its required anti-affinity to pods of any gang, or of none; without what `exclusive_key` says already."""


# ---------------------------------------------------------------- gangs


class TopologyRequest(Value, frozen=True):
    """Where the pods of a pod set are to be, by levels of a topology; "" and () for what is not asked."""

    required: str = ""
    preferred: str = ""
    unconstrained: bool = False
    slice_required: str = ""
    slice_size: int = 0
    slices: tuple[tuple[str, int], ...] = ()
    """Several layers of slices, (level, size), widest first."""
    group: str = ""
    """Pod sets of one group share flavor and domain (leader and workers)."""

    @property
    def explicit(self) -> bool:
        """Does it ask for a level, or for any placement by topology, and not only to be beside its group?"""
        return bool(self.required or self.preferred or self.unconstrained or self.slice_required or self.slices)

    @property
    def widest_slice(self) -> int:
        """Pods of the widest slice that is asked for; 1 without slices."""
        # A Workload may ask for slices by both fields.
        return max(1, self.slice_size if self.slice_required else 1, *(size for _, size in self.slices[:1]))


class Exclusive(Value, frozen=True):
    """JobSet's exclusive placement: all pods of a child job on nodes with one value of a label, each child job another
    value, and no other JobSet's pods on nodes with it."""

    key: str
    """Label of nodes whose values are the domains."""
    pods: int
    """Pods of each child job; their ranks follow each other."""
    values: str = ""
    """Nodes were labelled beforehand: child job i gets the domain whose value is this and then i. "": any domain."""


class PodShape(Value, frozen=True, eq=False):
    """What of a pod template decides where its pods may go. Equal shapes are interchangeable."""

    requests: tuple[tuple[str, int], ...] = ()
    """Per pod, sorted, as Kubernetes counts: init and sidecar containers, overhead, pod level, limits as requests."""
    node_selector: Pairs = ()
    affinity: tuple[tuple[Requirement, ...], ...] | None = None
    """Required node affinity: any of the terms, all requirements of it; a key `metadata.name` is the node's name, and
    one of `of_class_label` says that it has such devices. None: no affinity. An empty tuple matches no node, as in
    Kubernetes."""
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[str, ...] = ()
    """As "80", or "53/UDP"."""
    one_per_domain: tuple[str, ...] = ()
    """Topology keys in which at most one pod of this shape may stand (anti-affinity of a gang against itself)."""
    same_domain: tuple[str, ...] = ()
    """Topology keys in which all pods must share one value (affinity of a gang to itself)."""
    of_jobset: bool = False
    """They are pods of a JobSet, and keep off domains that a child job of another JobSet has to itself."""
    exclusive: Exclusive | None = None
    refused: str = ""
    """A constraint in the template that Muster cannot honour, in words; such a gang is never admitted on real nodes."""
    uncounted: str = ""
    """What its pods take that cannot be counted, in words (part of `refused`): such a gang is not admitted at all, not
    even on elastic flavors."""
    claimed: Claimed = ()
    """Devices by ResourceClaims; they are part of `requests`, too."""
    unclear: str = ""
    """Why it is not known how many devices its claims ask for, in words."""
    apart: tuple[AntiAffinity, ...] = ()
    """Its required anti-affinity, as it keeps pods of others away (`one_per_domain` is what it means for its own)."""
    namespace: str = ""
    labels: Pairs = ()
    """Labels of its pods, by which anti-affinity of others may keep them away. Shapes that differ in labels alone are
    equal, because mostly no pod selects by them; where some do, `Capacity.repelled` tells such shapes apart."""
    near: tuple[AntiAffinity, ...] = ()
    """Its required affinity, as it binds its pods to pods of others: those that all of these terms select. Where such
    pods are is added to `affinity` from outside the engine (`jobs.neighbours`)."""
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that its pods name, sorted. The nodes that their volumes allow are added to `affinity`
    from outside the engine (`jobs.volumes`)."""
    preferences: tuple[tuple[int, tuple[Requirement, ...]], ...] = ()
    """Preferred node affinity: (weight, requirements). Scored only under the gate TASRespectNodeAffinityPreferred."""

    def _compared(self) -> tuple[object, ...]:
        """All but namespace, labels, near and claims."""
        return (
            self.requests,
            self.node_selector,
            self.affinity,
            self.tolerations,
            self.host_ports,
            self.one_per_domain,
            self.same_domain,
            self.of_jobset,
            self.exclusive,
            self.refused,
            self.uncounted,
            self.claimed,
            self.unclear,
            self.apart,
            self.preferences,
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, PodShape) and self._compared() == other._compared())

    def __hash__(self) -> int:
        return hash(self._compared())


class PodSet(Value, frozen=True):
    """`count` interchangeable pods of a gang."""

    name: str
    count: int
    shape: PodShape = PodShape()
    min_count: int | None = None
    """Partial admission: so few may do. None: all of them are needed."""
    topology: TopologyRequest | None = None

    @property
    def widest_slice(self) -> int:
        """As of its topology request; 1 without one."""
        return 1 if self.topology is None else self.topology.widest_slice


class Domain(Value, frozen=True):
    """`count` pods in the domain that `values` name, one value per level; the lowest may be a node name."""

    values: tuple[str, ...]
    count: int


class TopologyAssignment(Value, frozen=True):
    """Domains in rank order: the first pods of the pod set go to the first domain."""

    levels: tuple[str, ...]
    domains: tuple[Domain, ...]


class PodSetAssignment(Value, frozen=True):
    """What a pod set was given."""

    name: str
    flavors: tuple[tuple[str, str], ...]
    """(resource, flavor), sorted."""
    usage: tuple[tuple[str, int], ...]
    """(resource, amount) of all `count` pods together, sorted."""
    count: int
    topology: TopologyAssignment | None = None


class Admission(Value, frozen=True):
    """A reservation: quota of a ClusterQueue and, where nodes are chosen, the nodes."""

    cluster_queue: str
    pod_sets: tuple[PodSetAssignment, ...]

    @property
    def pods(self) -> int:
        """How many pods it has room for at a time."""
        return sum(pod_set.count for pod_set in self.pod_sets)

    def flavors_of(self, part: PodSetAssignment) -> tuple[str, ...]:
        """Names of the flavors on whose nodes the pods of a pod set are: its own. A pod set that asks for nothing that
        quota counts, and has nodes all the same, is on those of the first pod set that has flavors."""
        named = next((p.flavors for p in (part, *self.pod_sets) if p.flavors), ()) if part.topology else part.flavors
        return tuple(sorted({flavor for _, flavor in named}))


class CheckState(Enum):
    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


class Check(Value, frozen=True):
    """The answer of an admission check to a Workload's reservation, and what it adds to the pods (by pod set)."""

    name: str
    state: CheckState
    message: str = ""
    node_selectors: tuple[tuple[str, Pairs], ...] = ()
    """(pod set, selector) that a Ready check adds."""
    tolerations: tuple[tuple[str, tuple[Toleration, ...]], ...] = ()
    labels: tuple[tuple[str, Pairs], ...] = ()
    annotations: tuple[tuple[str, Pairs], ...] = ()

    @property
    def said_no(self) -> bool:
        """Did it refuse, for now or for good? Nothing is admitted while that stands."""
        return self.state in (CheckState.RETRY, CheckState.REJECTED)


class AvoidedNode(Value, frozen=True):
    """A node that a gang does not use until then (ms since the epoch)."""

    node: str
    until: int
    reason: str


class Workload(Value, frozen=True):
    """A gang as it stands: what its owner asks for, and what was decided so far (all of it read from the API)."""

    namespace: str
    name: str
    uid: str = ""
    queue: str = ""
    pod_sets: tuple[PodSet, ...] = ()
    priority: int = 0
    created: int = 0
    """Since when it counts as waiting; later than its object's creation where it was paused or changed, for example."""
    arrival: str = ""
    """Orders gangs of the same second, which is how precisely objects are created: compared as text, "" first."""
    active: bool = True
    kept_by: str = ""
    """Finalizers that keep it after it was deleted; it is not active then."""
    paused_by: str = ""
    """The label by which its owner pauses it; it is not active then."""
    finished: bool = False

    admission: Admission | None = None
    reserved_at: int = 0
    admitted: bool = False
    admitted_at: int = 0
    checks: tuple[Check, ...] = ()
    evicted: str = ""
    """Reason of the condition Evicted=True; "" when it is not evicted. While it still has an admission it is
    leaving."""
    evicted_at: int = 0
    evicted_for: str = ""
    """uid of the gang it was evicted for."""
    requeue_at: int = 0
    """It is not tried before this time (backoff); ms since the epoch."""
    queue_stamp: int | None = None
    """Time by which it is ordered, where that is not `created`: an eviction by a timeout or a check puts it to the
    back."""
    reclaimable: tuple[tuple[str, int], ...] = ()
    """(pod set, pods that will not run again)."""
    allowed_flavors: frozenset[str] | None = None
    gated: str = ""
    """The admission gate of its owner that keeps it out of line; "" if there is none."""
    unbound: str = ""
    """The volumes that its pods name and that are missing or not bound, in words; "" if none is."""
    lingering: str = ""
    """Pods of its last start that are still ending and keep its job from making new ones, in words; "" if there are
    none."""
    unmanaged: str = ""
    """The kind of its job, if that is not managed here: it is given nothing, and is not evicted for others."""
    preemption_gated: bool = False
    """A preemption gate is closed: no gang is evicted for it yet."""
    blocked_on_gates: bool = False
    """Its condition BlockedOnPreemptionGates is True: it could go only by eviction."""
    cursor: tuple[tuple[str, str, int], ...] = ()
    """(pod set, resource, index of the flavor last tried): where the flavor scan goes on."""
    cursor_generation: int = 0
    avoid: tuple[AvoidedNode, ...] = ()
    out_of_stock: tuple[str, ...] = ()
    """Elastic flavors on which it was started and got no nodes, oldest first. They are tried last, in this order."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes of its admission that are to be replaced in place."""
    fair_evictions: tuple[int, ...] = ()
    """Times of its evictions by fair sharing (promises R6, R8)."""
    run_ms: int = 0
    """Time it has run in earlier admissions."""
    claims: ClaimRecord | None = None
    parent_uid: str = ""
    """Concurrent admission: uid of the Workload whose variant this is."""
    job_uid: str = ""
    priority_boost: int = 0
    """Added to its priority by somebody other than its owner (annotation priority-boost)."""
    key: Key = ("", "")
    """(namespace, name); set from these, whatever is passed."""

    def __post_init__(self) -> None:
        force_setattr(self, "key", (self.namespace, self.name))

    @property
    def effective_priority(self) -> int:
        """The priority that counts, for order and for eviction; `priority` is what the spec says."""
        return self.priority + self.priority_boost

    @property
    def requests(self) -> tuple[tuple[str, int], ...]:
        """(resource, amount) of all its pods together, by name."""
        total: dict[str, int] = {}
        for pod_set in self.pod_sets:
            quantity.add(total, dict(pod_set.shape.requests), pod_set.count)
        return tuple(sorted(total.items()))

    @property
    def off(self) -> Why | None:
        """Why it is not active; None while it is."""
        if self.active:
            return None
        if self.kept_by:
            return Why(Reason.DEACTIVATED, Detail.WORKLOAD_DELETED, subject=self.kept_by)
        return Why(Reason.DEACTIVATED, Detail.PAUSED if self.paused_by else Detail.NONE, subject=self.paused_by)

    @property
    def unclear(self) -> str:
        """Why it is not known what its pods ask for by claims, in words; "" when it is."""
        return next((one.shape.unclear for one in self.pod_sets if one.shape.unclear), "")


CLAIM_VICTIMS = 1024
"""At most so many victims are stored with a claim, because the size of an object is limited."""


class ClaimRecord(Value, frozen=True):
    """A claim as it is stored on the Workload that owns it: after a restart it is known for whom room was freed."""

    admission: Admission
    victims: tuple[str, ...]
    """uids of the gangs that leave for it, at most `CLAIM_VICTIMS`; none where room was set aside."""
    until: int


# ---------------------------------------------------------------- rules


class UsageFairness(Value, frozen=True):
    """Usage-decayed fairness between LocalQueues. Durations in ms; a half-life of 0 forgets at once."""

    half_life_ms: int
    sampling_ms: int = 300_000
    weights: tuple[tuple[str, float], ...] = ()
    """(resource, weight); a resource that is not named weighs 1."""


class Transformation(Value, frozen=True):
    """How an amount of one resource of a pod counts as amounts of others."""

    input: str
    outputs: tuple[tuple[str, Fraction], ...] = ()
    """(resource, factor): units of the output (cores, bytes, devices) per unit of the input."""
    retain: bool = True
    """The input itself still counts. Without it and without outputs, the input is dropped."""
    multiply_by: str = ""
    """A resource of the same pod whose amount multiplies the outputs."""


class Strategies(Enum):
    """When a fair-sharing eviction is lawful (Kueue's names)."""

    FINAL = "LessThanOrEqualToFinalShare"
    INITIAL = "LessThanInitialShare"


class Rules(Value, frozen=True):
    """All that is decided differently between Muster and Kueue, in one value (two presets below)."""

    fair_sharing: bool = True
    """Siblings compared by weighted share; else by borrowing level, priority and age (Kueue's classical order)."""
    fill_progressively: bool = True
    """Next among siblings: lowest share before the gang, then with it added. Else only with it added."""
    contested_share: bool = True
    """An inner node's share counts the resources that the contested gang asks for. Else the plain sum."""
    heads_per_queue: int | None = None
    """Gangs of a queue that one cycle considers; None: as many as fit."""
    capacity_unless_elastic: bool = True
    """Node capacity decides for every flavor not marked elastic. Else only for flavors with a topology."""
    reclaim_default: PreemptionPolicy = PreemptionPolicy.ANY
    pack_against_fragmentation: bool = True
    count_kept_out: bool = True
    """Gangs that are switched off, gated, or in a LocalQueue that is stopped count as pending."""
    promises: bool = True
    """R3 on the final victim set, R5 (freed room is claimed), R7 (no thrash) bind eviction."""
    strategies: tuple[Strategies, ...] = (Strategies.FINAL,)
    """Which share tests let a gang that borrows evict another. INITIAL lets small gangs evict large ones, which lose
    their work: it is an option only (R3)."""
    usage_fairness: UsageFairness | None = None
    ignore_undeclared: bool = False
    """Resources that a queue does not cover are not counted, instead of refusing the gang."""
    spare_first_ms: int = 300_000
    """R8: a gang is spared from fair-share eviction for so long after its admission ..."""
    spare_after: int = 2
    """... and after so many such evictions ..."""
    spare_window_ms: int = 3_600_000
    """... within this time."""
    stays_back_ms: int = 300_000
    """R7: for so long after its eviction a gang may not evict for its share, and does not go where it would be evicted
    again."""
    passed_over_ms: int = 600_000
    """R11: once the first gang of a queue has waited so long, room is set aside for it as it becomes free."""
    claim_ms: int = 300_000
    """R5: how long freed room is kept for the gang it was freed for."""
    evict_stamp: bool = True
    """A gang evicted because its pods were not ready queues at its eviction's time (else at its creation's)."""
    gates: frozenset[str] = frozenset(
        {
            "PartialAdmission",
            "FlavorFungibilityPreserveScanProgress",
            "FairSharingPreemptWithinNominal",
            "FairSharingPrioritizeNonBorrowing",
            "SchedulingEquivalenceHashing",
            "TASProfileMixed",
            "TASFailedNodeReplacementFailFast",
            "TASMultiLayerTopology",
            "TASRecomputeAssignmentWithinSchedulingCycle",
            "RecomputeAssignmentUponPreemptionTargetsOverlap",
        }
    )
    """Behaviours that Kueue guards by a feature gate and that users of its configuration may switch."""
    excluded_prefixes: tuple[str, ...] = ()
    """Resources whose name starts so are not counted."""
    excluded_classes: frozenset[str] = frozenset()
    """DeviceClasses of which claims are not counted."""
    transformations: tuple[Transformation, ...] = ()


MUSTER = Rules()
KUEUE = Rules(
    fair_sharing=False,
    fill_progressively=False,
    contested_share=False,
    heads_per_queue=1,
    capacity_unless_elastic=False,
    reclaim_default=PreemptionPolicy.NEVER,
    pack_against_fragmentation=False,
    count_kept_out=False,
    promises=False,
    strategies=(Strategies.FINAL, Strategies.INITIAL),
)


# ---------------------------------------------------------------- events


class Put(Value, frozen=True):
    """An object was seen: new, or in a newer version. Applying the same value again changes nothing."""

    value: (
        ClusterQueue | Cohort | LocalQueue | Flavor | Topology | AdmissionCheck | Namespace | Node | PodUsage | Workload
    )


class Gone(Value, frozen=True):
    """An object was deleted. `kind` is the class of the value; `key` its name, or (namespace, name)."""

    kind: type
    key: str | Key


class Assumed(Value, frozen=True):
    """A decision is about to be written: it counts from now on, until the object shows it or it is `Forgotten`."""

    decision: Decision


class Forgotten(Value, frozen=True):
    """The write of an assumed decision failed: it no longer counts, nor does what was decided about the same gang
    because of it. What was decided in its place meanwhile stays."""

    decision: Decision


Event = Put | Gone | Assumed | Forgotten


# ---------------------------------------------------------------- reasons


class Reason(Enum):
    """Why a gang stands where it stands. The value is the reason of its QuotaReserved condition (Kueue's words)."""

    QUOTA_RESERVED = "QuotaReserved"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    PLACEMENT_FAILED = "TopologyPlacementFailed"
    WAITING_FOR_PREEMPTED = "WaitingForPreemptedWorkloads"
    MISCONFIGURED = "Misconfigured"
    SUSPENDED = "Suspended"
    PENDING_EVALUATION = "PendingEvaluation"
    GATED = "AdmissionGated"
    ON_HOLD = "OnHold"
    DEACTIVATED = "Deactivated"


class Detail(Enum):
    """What exactly stands behind a Reason; closed, so that the command line can say what would have to change."""

    NONE = ""
    QUEUE_MISSING = "LocalQueueDoesNotExist"
    CLUSTER_QUEUE_MISSING = "ClusterQueueDoesNotExist"
    CLUSTER_QUEUE_INACTIVE = "ClusterQueueIsInactive"
    NAMESPACE_NOT_SELECTED = "NamespaceNotSelected"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    RESOURCE_NOT_COVERED = "ResourceNotCovered"
    FLAVOR_TAINT = "UntoleratedTaint"
    FLAVOR_AFFINITY = "FlavorDoesNotMatchSelector"
    FLAVOR_MISSING = "FlavorNotFound"
    NEVER_FITS_QUOTA = "NeverFitsQuota"
    QUOTA_SHORT = "QuotaShort"
    BORROWING_LIMIT = "BorrowingLimit"
    COHORT_SHORT = "CohortShort"
    NODES_SHORT = "NodesShort"
    NO_NODES = "NoNodesOfFlavor"
    NODES_UNUSABLE = "NodesUnusable"
    NODES_TAKEN = "NodesTakenByOthers"
    NEVER_FITS_NODES = "NeverFitsNodes"
    CONSTRAINT_REFUSED = "ConstraintNotSupported"
    CLAIMED = "RoomClaimedForOther"
    BEHIND_HEAD = "BehindStrictHead"
    BACKOFF = "Backoff"
    VICTIMS_LEAVING = "VictimsLeaving"
    NEXT_CYCLE = "NextCycle"
    CHECKS_PENDING = "AdmissionChecksPending"
    INVALID = "InvalidSpec"
    PREEMPTION_GATED = "PreemptionGated"
    COHORT_CYCLE = "CohortCycle"
    FLAVOR_TOPOLOGY = "FlavorDoesNotMatchTopology"
    FLAVOR_NOT_ALLOWED = "FlavorNotAllowed"
    VARIANT_ADMITTED = "MoreFavorableVariantAdmitted"
    WORKLOAD_DELETED = "WorkloadDeleted"
    VOLUME_PENDING = "WaitingForVolume"
    CLAIMS_UNCLEAR = "ClaimsNotCounted"
    PODS_LINGER = "PodsStillEnding"
    NOT_MANAGED = "KindNotManaged"
    PAUSED = "Paused"


class Shortfall(Value, frozen=True):
    """Why quota is not enough, in numbers: for one (pod set, flavor, resource)."""

    pod_set: str
    flavor: str
    resource: str
    detail: Detail
    requested: int = 0
    nominal: int = 0
    used: int = 0
    available: int = 0
    """What this queue could still take now, borrowing included."""
    borrowable: int = 0
    """What it could borrow at most beyond its nominal quota in an empty cluster."""
    limited_by: str = ""
    """The ClusterQueue or Cohort whose quota or limit is not enough; for some details other words."""
    allowed: int | None = None
    """With BORROWING_LIMIT: what that limit would let this queue take now. The cohort may have less than that."""
    candidates: int = 0
    """Gangs that were considered for eviction."""
    unlawful: tuple[tuple[str, int], ...] = ()
    """(why not, how many) of those that may not be evicted."""
    covers: tuple[str, ...] = ()
    """The resources of its resource group, which get one flavor together."""


class Misfit(Value, frozen=True):
    """Why the nodes have no room, in numbers: how many pods they could hold, and what excludes the other nodes."""

    pod_set: str
    flavor: str
    pods: int
    placeable: int
    detail: Detail = Detail.NODES_SHORT
    nodes: int = 0
    """Nodes that were looked at."""
    excluded: tuple[tuple[str, int], ...] = ()
    """(why, nodes): "taint nvidia.com/gpu", "not ready", "nvidia.com/gpu" (too little free), ..."""
    level: str = ""
    """The topology level at which the gang had to stay together."""
    fits_when_empty: bool = False
    sound: int = 0
    """Pods that the nodes would hold if no gang were on them, and none cordoned, not ready or tainted; counted only
    where it would not fit if merely no gang were. With NODES_TAKEN no pod of others is on them, either."""
    beyond: tuple[tuple[str, int, int], ...] = ()
    """(resource, asked for each pod, most that one node could give if no gang were there) where that is too little."""
    message: str = ""
    beside: bool = False
    """They would hold the pods of this pod set alone, and `placeable` of them beside the others of the gang."""


class Why(Value, frozen=True):
    """One reason with its numbers; the same value feeds condition, event, metric, command line and web page."""

    reason: Reason
    detail: Detail = Detail.NONE
    shortfalls: tuple[Shortfall, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    subject: str = ""
    """What the detail is about, by name: the missing queue, the gang in front, the owner of the claim, the flavor that
    is tried first after a backoff."""
    until: int = 0
    """When the detail is a time (backoff, claim); 0 for a claim that holds until its gang starts."""


# ---------------------------------------------------------------- plan


class Standing(Enum):
    """Where an examined gang stands after a cycle."""

    ADMITTED = "admitted"
    """Quota reserved in this cycle (and admitted, unless checks are pending)."""
    ACTIVE = "active"
    """Stays in the queue and is looked at in the next cycle."""
    PARKED = "parked"
    """Not looked at again before something changes that it waits for."""
    WAITING = "waiting-for-victims"


class Verdict(Value, frozen=True):
    """What a cycle found out about one gang."""

    key: Key
    standing: Standing
    why: Why
    requests: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    """(pod set, total requests): what the gang was examined for."""
    cursor: tuple[tuple[str, str, int], ...] = ()
    cursor_generation: int = 0


class EvictReason(Enum):
    """Kueue's reasons of the condition Preempted (but the last)."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    FLAVOR_MIGRATION = "FlavorMigration"
    """Concurrent admission: another variant of the same job has room in a better flavor. (A reason of Evicted.)"""


class Admit(Value, frozen=True):
    """Reserve quota and nodes for the whole gang; admitted at once when no check is pending."""

    key: Key
    uid: str
    admission: Admission
    checks: tuple[str, ...] = ()
    """Names of the checks that must be Ready first."""
    admitted: bool = True
    waited_ms: int = 0


class Evict(Value, frozen=True):
    """Evict a whole gang, for another gang. `reason`: as in the condition Preempted."""

    key: Key
    uid: str
    reason: EvictReason
    preemptor: Key
    preemptor_uid: str
    preemptor_queue: str = ""


class Claim(Value, frozen=True):
    """Room kept for a gang until it is admitted or `until` comes: quota and nodes of `admission`."""

    key: Key
    uid: str
    record: ClaimRecord


class Cancel(Value, frozen=True):
    """Take back a reservation that must not stand (queue held, check rejected); not admitted, so nothing runs."""

    key: Key
    uid: str
    why: Why


class Replace(Value, frozen=True):
    """Give an admitted gang other nodes for lost ones: its admission with the new assignment."""

    key: Key
    uid: str
    admission: Admission


Decision = Admit | Evict | Claim | Cancel | Replace


class Plan(Value, frozen=True):
    """What a cycle wants. `decisions` in the order in which they were made; one Verdict per examined gang."""

    decisions: tuple[Decision, ...]
    verdicts: tuple[Verdict, ...]
    steps: int
    """What was spent of the budget, in trials; a dear one counts as several."""
    more: bool
    """The budget was used up before all gangs were looked at: decide again."""
    next_at: int | None = None
    """When time alone may change the answer (backoff, claim, decay); ms since the epoch."""
