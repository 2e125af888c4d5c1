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
    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class StopPolicy(Enum):
    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class PreemptionPolicy(Enum):
    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    ANY = "Any"


class Preemption(Value, frozen=True):
    within_cluster_queue: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim_within_cohort: PreemptionPolicy | None = None
    """None: not said; `Rules.reclaim_default` holds."""
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
    """Of a table of sets, which has none that is empty: who is gone leaves nothing behind."""
    held = table.get(name)
    if held is not None:
        held.discard(one)
        if not held:
            del table[name]


def drop(table: dict[Name, dict[One, Held]], name: Name, one: One) -> None:
    """The same of a table of dicts."""
    held = table.get(name)
    if held is not None:
        held.pop(one, None)
        if not held:
            del table[name]


def matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Does a label selector select; a missing one selects nothing."""
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
    """What a pod asks of all others (required anti-affinity): none that it selects stands in its domain of a label, and
    none comes there."""

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
        """Who is not first waits behind who is."""
        return self.strategy is Strategy.STRICT_FIFO

    @property
    def flavor_names(self) -> list[str]:
        """In the order in which it names them."""
        return [flavor.name for group in self.groups for flavor in group.flavors]


class Cohort(Value, frozen=True):
    name: str
    parent: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    weight: Fraction = Fraction(1)
    generation: int = 0


class LocalQueue(Value, frozen=True):
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
    key: str
    value: str
    effect: str

    @property
    def text(self) -> str:
        """As people write it."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Toleration(Value, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None
    """How long a taint NoExecute is borne; None: for good."""


class Flavor(Value, frozen=True):
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
    name: str
    levels: tuple[str, ...]
    """Node label keys, widest domain first."""


class AdmissionCheck(Value, frozen=True):
    name: str
    controller: str = ""
    active: bool = True


class Namespace(Value, frozen=True):
    name: str
    labels: Pairs = ()
    terminating: bool = False
    """It is being deleted: no pod can be made there any more."""


# ---------------------------------------------------------------- nodes and pods

Claimed = tuple[tuple[str, str, int], ...]
"""(DeviceClass, resource by which it is counted, devices) that a pod asks for by claims, sorted; 0 devices of a class
that it asks for by that one's own name alone, as which it is counted, too."""


def of_class_label(name: str) -> str:
    """What stands among the labels of a node that has devices of a DeviceClass to give. No label of Kubernetes has a
    space."""
    return f"device class {name}"


class Node(Value, frozen=True):
    name: str
    labels: Pairs = ()
    taints: tuple[Taint, ...] = ()
    allocatable: tuple[tuple[str, int], ...] = ()
    """(resource, amount), sorted; the resource `pods` bounds the number of pods."""
    ready: bool = True
    unschedulable: bool = False
    """Cordoned."""
    lost_since: int | None = None
    """Since when the node is not ready, or tainted NoExecute; 0 for one that is shut down, None while it is well."""
    ready_since: int = 0
    """Since when it is ready, if it is."""
    away: tuple[str, ...] = ()
    """Devices that it has and hands out none of now, sorted: mostly their plugin is being restarted, or all of them
    are broken."""


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
    """As in its shape: of a child job that has its domain of this label to itself."""
    child: tuple[str, int] | None = None
    """Of such a pod: which child job it is of ("namespace/JobSet-replicated job", index). JobSet's affinities know
    child jobs by these names: pods of a JobSet that was deleted are taken for those of the next one of its name."""
    apart: tuple[AntiAffinity, ...] = ()
    """What it asks of all others, whoever they are; without what `exclusive_key` says already."""


# ---------------------------------------------------------------- gangs


class TopologyRequest(Value, frozen=True):
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
        """Does it ask for a place, and not for the company of its group alone."""
        return bool(self.required or self.preferred or self.unconstrained or self.slice_required or self.slices)

    @property
    def widest_slice(self) -> int:
        """Pods of it, 1 at least: where it asks for no slices, or of no size."""
        # A Workload may ask in both ways.
        return max(1, self.slice_size if self.slice_required else 1, *(size for _, size in self.slices[:1]))


class Exclusive(Value, frozen=True):
    """JobSet's exclusive placement: all pods of a child job on nodes with one value of a label, each child job another
    value, and no other JobSet's pods on nodes with it."""

    key: str
    """Label of nodes whose values are the domains."""
    pods: int
    """Of each child job, neighbours in rank."""
    values: str = ""
    """Not empty: child job i has the value that begins so and ends in i; nodes were labelled for it beforehand."""


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
    """They stand on no node of a domain that a child job of another JobSet has to itself."""
    exclusive: Exclusive | None = None
    refused: str = ""
    """A constraint in the template that Muster cannot honour, in words; such a gang is never admitted on real nodes."""
    uncounted: str = ""
    """What its pods take that no quota can say, in words (part of `refused`): admitted nowhere, also not where nodes
    are not looked at."""
    claimed: Claimed = ()
    """They are in `requests`, too."""
    unclear: str = ""
    """Why it is not known how many that are, in words."""
    apart: tuple[AntiAffinity, ...] = ()
    """The same as `one_per_domain`, as it binds pods of others."""
    namespace: str = ""
    labels: Pairs = ()
    """Of its pods, those that the template names: whom others' anti-affinity keeps away. Shapes that differ in these
    alone are equal, for mostly nobody asks; who does ask looks at both (`Capacity.repelled`)."""
    near: tuple[AntiAffinity, ...] = ()
    """The same of `same_domain`, as it binds its pods to those of others: pods that all of these select. What others
    leave it of nodes is laid into `affinity` by who knows it."""
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that its pods name, sorted. What they allow is laid into `affinity` by who knows it."""
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
    name: str
    count: int
    shape: PodShape = PodShape()
    min_count: int | None = None
    topology: TopologyRequest | None = None

    @property
    def widest_slice(self) -> int:
        """As of what it asks."""
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
    name: str
    flavors: tuple[tuple[str, str], ...]
    """(resource, flavor), sorted."""
    usage: tuple[tuple[str, int], ...]
    """(resource, amount) of all `count` pods together, sorted."""
    count: int
    topology: TopologyAssignment | None = None


class Admission(Value, frozen=True):
    cluster_queue: str
    pod_sets: tuple[PodSetAssignment, ...]

    @property
    def pods(self) -> int:
        """For how many at a time it has room."""
        return sum(pod_set.count for pod_set in self.pod_sets)

    def flavors_of(self, part: PodSetAssignment) -> tuple[str, ...]:
        """On whose nodes the pods of a pod set stand, by name: its own flavors; where it asks for nothing that quota
        counts and nodes were chosen for it, those of the first pod set that has some."""
        named = next((p.flavors for p in (part, *self.pod_sets) if p.flavors), ()) if part.topology else part.flavors
        return tuple(sorted({flavor for _, flavor in named}))


class CheckState(Enum):
    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


class Check(Value, frozen=True):
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
        """For now, or for good: nobody is admitted while such an answer stands."""
        return self.state in (CheckState.RETRY, CheckState.REJECTED)


class AvoidedNode(Value, frozen=True):
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
    """Since when it waits as it is: it came later than its object where it was paused, say."""
    arrival: str = ""
    """Orders those of the same moment, for objects are created in whole seconds: compared as text, "" first."""
    active: bool = True
    kept_by: str = ""
    """The finalizers that keep it though somebody deleted it; it is not active then."""
    paused_by: str = ""
    """The label by which its owner pauses it; it is not active then."""
    finished: bool = False

    admission: Admission | None = None
    reserved_at: int = 0
    admitted: bool = False
    admitted_at: int = 0
    checks: tuple[Check, ...] = ()
    evicted: str = ""
    """Reason of a True Evicted condition; "" when not evicted. With an admission still there: on its way out."""
    evicted_at: int = 0
    evicted_for: str = ""
    """uid of the gang it was evicted for."""
    requeue_at: int = 0
    """Not before (backoff)."""
    queue_stamp: int | None = None
    """Age in the queue, where it is not the creation (an eviction by timeout or check puts a gang to the back)."""
    reclaimable: tuple[tuple[str, int], ...] = ()
    """(pod set, pods that will not run again)."""
    allowed_flavors: frozenset[str] | None = None
    gated: str = ""
    """Why the queue must not consider it (admission gate of its owner); "" when it may."""
    unbound: str = ""
    """What it waits for of its volumes, in words; "" when nothing is missing that its pods name."""
    lingering: str = ""
    """Pods of its last start that still end, where its Job makes none beside them; "" when it is not held up."""
    unmanaged: str = ""
    """What it stands for, where nobody here starts or stops that: it is given nothing, and evicted for nobody."""
    preemption_gated: bool = False
    """It may evict nobody yet."""
    blocked_on_gates: bool = False
    """Its condition says that it would have to."""
    cursor: tuple[tuple[str, str, int], ...] = ()
    """(pod set, resource, index of the flavor last tried): where the flavor scan goes on."""
    cursor_generation: int = 0
    avoid: tuple[AvoidedNode, ...] = ()
    out_of_stock: tuple[str, ...] = ()
    """Elastic flavors on which it was started and got no nodes, the one where that is longest ago first. The scan comes
    to them last, in this order."""
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
    """What somebody else than its owner adds to its priority (annotation priority-boost)."""
    key: Key = ("", "")
    """(namespace, name), whatever is given."""

    def __post_init__(self) -> None:
        force_setattr(self, "key", (self.namespace, self.name))

    @property
    def effective_priority(self) -> int:
        """By which it is ordered, and by which it may evict or be evicted; `priority` is what the spec says."""
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
"""So many are stored with a claim: an object of the API server has an end."""


class ClaimRecord(Value, frozen=True):
    """A Claim as stored on the Workload that owns it, so that a restart does not lose whom room was freed for."""

    admission: Admission
    victims: tuple[str, ...]
    """uids of the gangs that leave for it, of `CLAIM_VICTIMS` at most."""
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
    """Which share test lets one that borrows evict another. INITIAL lets small gangs send large ones, whose work is
    lost: an option (R3)."""
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
    """R7: who was evicted evicts nobody for its share for so long, and leaves room alone from which it would be evicted
    again."""
    passed_over_ms: int = 600_000
    """R11: a head passed over for so long gets a claim on room as it becomes free."""
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
    """An object is no more. `kind` is the class of the value; `key` its name, or (namespace, name)."""

    kind: type
    key: str | Key


class Assumed(Value, frozen=True):
    """A decision's write went out: from now on its effect counts, until the object itself says so or `Forgotten`."""

    decision: Decision


class Forgotten(Value, frozen=True):
    """The write of an assumed decision failed: it never happened, nor what was decided on the same gang because of it.
    What was decided in its place meanwhile stays."""

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
    """Numbers behind a no of quota: one (pod set, flavor, resource)."""

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
    """What it could borrow at most beyond its nominal quota with nobody else there."""
    limited_by: str = ""
    """The ClusterQueue or Cohort at which the request ends."""
    allowed: int | None = None
    """With BORROWING_LIMIT: what that limit would let this queue take now. The cohort may have less than that."""
    candidates: int = 0
    """Gangs that a preemption looked at."""
    unlawful: tuple[tuple[str, int], ...] = ()
    """(why not, how many) of those that might not be evicted."""
    covers: tuple[str, ...] = ()
    """The resources of its group, for which one flavor is chosen: any of its flavors would do."""


class Misfit(Value, frozen=True):
    """Numbers behind a no of the nodes: how many pods they could hold, and what excluded the other nodes."""

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
    """Name of what the detail speaks of: the missing queue, the head in front, the gang that holds the claim, the
    flavor that is tried first after a backoff."""
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
    """Take a whole gang off its room, for another gang. `reason` as the condition Preempted says it."""

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
    """Trials made, of the budget given; a dear one counts as many."""
    more: bool
    """The budget ended first: call again."""
    next_at: int | None = None
    """When time alone may change the answer (backoff, claim, decay); ms since the epoch."""
