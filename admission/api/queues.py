"""Who may use how much: ClusterQueue, LocalQueue and Cohort."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from admission.api.schema import (
    ATOMIC,
    Amount,
    Conditions,
    Int32,
    Int64,
    LabelSelector,
    ListMap,
    ListSet,
    Model,
    ObjectName,
    Quantity,
    Resource,
    Rule,
    Text317,
    Time,
    Weight,
    opt,
    part,
    req,
)
from admission.quantity import parse_plain


class ResourceQuota(Model):
    """Quota of one resource in one flavor."""

    name: Annotated[Text317, Field(min_length=1)] = req("The resource: cpu, memory, nvidia.com/gpu, ...")
    nominal_quota: Amount = req("What belongs to this queue or cohort. 0 is a queue that lives on what it borrows.")
    borrowing_limit: Amount | None = opt("At most this much more may be borrowed. Left out: no limit.")
    lending_limit: Amount | None = opt("At most this much of nominalQuota may be lent. Left out: all of it.")


class QueueQuota(ResourceQuota):
    rules = (
        Rule(
            "!has(self.lendingLimit) || "
            "!quantity(string(self.lendingLimit)).isGreaterThan(quantity(string(self.nominalQuota)))",
            "lendingLimit is more than nominalQuota: a queue lends only what it has; write at most nominalQuota, "
            "or drop lendingLimit to lend all of it",
            holds=lambda q: q.lending_limit is None or parse_plain(q.lending_limit) <= parse_plain(q.nominal_quota),
        ),
    )


Q = TypeVar("Q", bound=ResourceQuota)


class FlavorQuotas(Model, Generic[Q]):
    name: Annotated[ObjectName, Field(min_length=1)] = req("Name of a ResourceFlavor.")
    resources: Annotated[list[Q], Field(min_length=1, max_length=64), ListMap(("name",))] = req(
        "One quota for each of coveredResources, in the same order."
    )


class ResourceGroup(Model, Generic[Q]):
    """Resources that always come from the same flavor, and the flavors they may come from, best first."""

    rules = (
        Rule(
            "self.flavors.all(f, f.resources.map(r, r.name) == self.coveredResources)",
            "every flavor must list the resources of coveredResources, all of them, once and in the same order",
            holds=lambda g: all([r.name for r in f.resources] == g.covered_resources for f in g.flavors),
        ),
        Rule(
            "size(self.flavors) * size(self.coveredResources) <= 512",
            "more than 512 pairs of flavor and resource: split the group",
            holds=lambda g: len(g.flavors) * len(g.covered_resources) <= 512,
        ),
    )
    covered_resources: Annotated[
        list[Annotated[Text317, Field(min_length=1)]], Field(min_length=1, max_length=64, json_schema_extra=ATOMIC)
    ] = req("The resources.")
    flavors: Annotated[list[FlavorQuotas[Q]], Field(min_length=1, max_length=64), ListMap(("name",))] = req(
        "The flavors, tried in this order."
    )


def _apart(groups: Iterable[Iterable[str]]) -> bool:
    """No name in two groups."""
    seen: set[str] = set()
    for group in groups:
        names = set(group)
        if names & seen:
            return False
        seen |= names
    return True


def _limits(spec: Any) -> bool:
    return any(
        r.borrowing_limit is not None or r.lending_limit is not None
        for g in spec.resource_groups or ()
        for f in g.flavors
        for r in f.resources
    )


_GROUP_RULES = (
    Rule(
        "!has(self.resourceGroups) || self.resourceGroups.all(a, size(a.coveredResources) == 0 || "
        "self.resourceGroups.exists_one(b, sets.intersects(a.coveredResources, b.coveredResources)))",
        "a resource stands in two resourceGroups; put it into one, so that each pod gets it from one flavor",
        holds=lambda s: _apart(g.covered_resources for g in s.resource_groups or ()),
    ),
    Rule(
        "!has(self.resourceGroups) || self.resourceGroups.all(a, size(a.flavors) == 0 || "
        "self.resourceGroups.exists_one(b, sets.intersects(a.flavors.map(f, f.name), b.flavors.map(f, f.name))))",
        "a flavor stands in two resourceGroups; put all resources that come from one flavor into one group",
        holds=lambda s: _apart([f.name for f in g.flavors] for g in s.resource_groups or ()),
    ),
    Rule(
        "!has(self.resourceGroups) || self.resourceGroups.map(g, size(g.flavors)).sum() <= 256 && "
        "self.resourceGroups.map(g, size(g.coveredResources)).sum() <= 256",
        "more than 256 flavors or 256 resources in all groups together",
        holds=lambda s: (
            sum(len(g.flavors) for g in s.resource_groups or ()) <= 256
            and sum(len(g.covered_resources) for g in s.resource_groups or ()) <= 256
        ),
    ),
)
_NO_LIMITS = (
    "!has(self.resourceGroups) || self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(r, "
    "!has(r.borrowingLimit) && !has(r.lendingLimit))))"
)


class FairSharing(Model):
    weight: Weight = Field(
        default=1, description="Share of what is free, relative to its siblings. 0 comes last, always."
    )


class FlavorFungibility(Model):
    rules = (
        Rule(
            "!has(self.preference) || self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor'",
            "preference chooses among flavors that were all tried: write TryNextFlavor for whenCanBorrow and "
            "whenCanPreempt, or drop preference",
            holds=lambda f: f.preference is None or f.when_can_borrow == f.when_can_preempt == "TryNextFlavor",
        ),
    )
    when_can_borrow: Literal["MayStopSearch", "TryNextFlavor"] = Field(
        default="MayStopSearch",
        description="When a gang fits a flavor only by borrowing: MayStopSearch takes it; TryNextFlavor first looks "
        "for a later flavor on which it need not borrow.",
    )
    when_can_preempt: Literal["MayStopSearch", "TryNextFlavor"] = Field(
        default="TryNextFlavor",
        description="When a gang fits a flavor only by evicting others: MayStopSearch evicts them; TryNextFlavor first "
        "looks for a later flavor on which it need not.",
    )
    preference: Literal["BorrowingOverPreemption", "PreemptionOverBorrowing"] | None = opt(
        "Which is better when every flavor was tried: to borrow, or to evict. Left out: BorrowingOverPreemption."
    )


class BorrowWithinCohort(Model):
    policy: Literal["Never", "LowerPriority"] = Field(
        default="Never", description="Whether to evict those of lower priority from other queues while borrowing."
    )
    max_priority_threshold: Int32 | None = opt("Only workloads of at most this priority may be evicted.")


class Preemption(Model):
    rules = (
        Rule(
            "!has(self.reclaimWithinCohort) || self.reclaimWithinCohort != 'Never' || !has(self.borrowWithinCohort) || "
            "self.borrowWithinCohort.policy == 'Never'",
            "borrowWithinCohort needs reclaimWithinCohort: LowerPriority or Any",
            holds=lambda p: (
                p.reclaim_within_cohort != "Never"
                or p.borrow_within_cohort is None
                or p.borrow_within_cohort.policy == "Never"
            ),
        ),
    )
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = Field(
        default="Never", description="Which workloads of this queue a waiting one may evict."
    )
    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] | None = opt(
        "Which borrowers in the cohort may be evicted to get nominal quota back. "
        "Left out: Any, or Never with the preset kueue."
    )
    borrow_within_cohort: BorrowWithinCohort | None = opt(
        "Eviction from other queues while borrowing. Counts with the preset kueue without fairSharing alone: else who "
        "borrows evicts by shares, and nobody by this."
    )


class CheckRule(Model):
    name: Annotated[ObjectName, Field(min_length=1)] = req("Name of an AdmissionCheck.")
    on_flavors: Annotated[list[ObjectName], Field(max_length=64), ListSet()] | None = opt(
        "Only for workloads that got one of these flavors. Empty: for all."
    )


class ChecksStrategy(Model):
    admission_checks: Annotated[list[CheckRule], Field(min_length=1, max_length=64), ListMap(("name",))] = req(
        "The checks that a workload must pass."
    )


class AdmissionScope(Model):
    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"] = req(
        "Whether LocalQueues of this queue take turns by what they used of late."
    )


class MigrationConstraints(Model):
    last_acceptable_flavor_name: ObjectName | None = opt("The worst flavor worth migrating to.")


class Migration(Model):
    mode: Literal["TryPreferredFlavors", "RetainFirstAdmission"] = req("Whether to move to a better flavor later.")
    constraints: MigrationConstraints | None = opt("Limits of migration.")


class ConcurrentAdmissionPolicy(Model):
    migration: Migration = req("Migration between flavors.")


class ClusterQueueSpec(Model):
    rules = (
        *_GROUP_RULES,
        Rule(
            f"has(self.cohortName) || {_NO_LIMITS}",
            "borrowingLimit and lendingLimit mean something only inside a cohort: write cohortName, or drop the limits",
            holds=lambda s: bool(s.cohort_name) or not _limits(s),
        ),
    )
    resource_groups: (
        Annotated[list[ResourceGroup[QueueQuota]], Field(max_length=16, json_schema_extra=ATOMIC)] | None
    ) = opt("What this queue has.")
    cohort_name: ObjectName | None = opt("The Cohort whose members lend to each other.")
    queueing_strategy: Literal["StrictFIFO", "BestEffortFIFO"] = Field(
        default="BestEffortFIFO",
        description="BestEffortFIFO lets those behind pass one that cannot go; StrictFIFO does not.",
    )
    namespace_selector: LabelSelector | None = opt(
        "Namespaces whose workloads may come here. Left out: none. An empty selector, {}: all."
    )
    flavor_fungibility: FlavorFungibility = part(
        "Whether a gang stops at the first flavor that it fits by borrowing or by evicting others, or tries the next.",
        FlavorFungibility,
    )
    preemption: Preemption = part("Who may be evicted for whom.", Preemption)
    admission_checks_strategy: ChecksStrategy | None = opt("Checks by others before admission.")
    stop_policy: Literal["None", "Hold", "HoldAndDrain"] = Field(
        default="None", description="Hold admits nothing more; HoldAndDrain also evicts what runs."
    )
    fair_sharing: FairSharing | None = opt("Weight among siblings.")
    admission_scope: AdmissionScope | None = opt("Fairness between LocalQueues.")
    concurrent_admission_policy: ConcurrentAdmissionPolicy | None = opt(
        "Kept for other programs; Muster does not act on it."
    )


class ResourceUsage(Model):
    name: Annotated[Text317, Field(min_length=1)] = req("Resource.")
    total: Quantity | None = opt("All that is used.")
    borrowed: Quantity | None = opt("How much of it is borrowed.")


class FlavorUsage(Model):
    name: ObjectName = req("Flavor.")
    resources: Annotated[list[ResourceUsage], Field(max_length=64), ListMap(("name",))] = req("Usage by resource.")


# A Cohort adds up the flavors of all queues below it.
Usage = Annotated[list[FlavorUsage], Field(max_length=1024), ListMap(("name",))]


class ConsumedStatus(Model):
    consumed_resources: Annotated[dict[str, Quantity], Field(max_length=256)] = req("Usage over time, decayed.")
    last_update: Time = req("When it was last added up.")


class FairSharingStatus(Model):
    weighted_share: Int64 = req(
        "Dominant share of what is borrowed, in thousandths, divided by the weight; 9223372036854775807 where "
        "that is 0."
    )
    admission_fair_sharing_status: ConsumedStatus | None = opt("Usage that decides whose turn it is.")


class QueueStatus(Model):
    """What the status of every kind of queue has."""

    conditions: Conditions | None = opt("Active: whether it admits, and if not, why.")
    pending_workloads: Int32 | None = opt("How many wait.")
    reserving_workloads: Int32 | None = opt("How many hold quota.")
    admitted_workloads: Int32 | None = opt("How many were let start.")
    flavors_reservation: Usage | None = opt("Quota held.")
    flavors_usage: Usage | None = opt("Quota held by admitted workloads.")
    fair_sharing: FairSharingStatus | None = opt("Where it stands among its siblings.")


class ClusterQueue(Resource):
    """Quota of a team, in flavors of resources, with the rules by which it lends, borrows and reclaims."""

    spec: ClusterQueueSpec = part("What is wanted.", ClusterQueueSpec)
    status: QueueStatus | None = opt("What is.")


class LocalQueueSpec(Model):
    rules = (
        Rule(
            "self.clusterQueue == oldSelf.clusterQueue",
            "clusterQueue cannot change: delete this LocalQueue and create it with the other; who waits goes along",
            keeps=lambda new, old: new.cluster_queue == old.cluster_queue,
        ),
    )
    cluster_queue: Annotated[ObjectName, Field(min_length=1)] = req("The ClusterQueue that jobs of this queue draw on.")
    stop_policy: Literal["None", "Hold", "HoldAndDrain"] = Field(
        default="None", description="Hold admits nothing more; HoldAndDrain also evicts what runs."
    )
    fair_sharing: FairSharing | None = opt(
        "Weight among LocalQueues of the same ClusterQueue, where its admissionScope has them take turns."
    )


class LocalQueue(Resource):
    """Where the jobs of one namespace wait."""

    spec: LocalQueueSpec = req("What is wanted.")
    status: QueueStatus | None = opt("What is.")


class CohortSpec(Model):
    rules = (
        *_GROUP_RULES,
        Rule(
            f"has(self.parentName) || {_NO_LIMITS}",
            "borrowingLimit and lendingLimit mean something only under a parent: write parentName, or drop the limits",
            holds=lambda s: bool(s.parent_name) or not _limits(s),
        ),
    )
    parent_name: ObjectName | None = opt("The Cohort above. Left out: this is a root.")
    resource_groups: (
        Annotated[list[ResourceGroup[ResourceQuota]], Field(max_length=16, json_schema_extra=ATOMIC)] | None
    ) = opt("A pool of its own, shared by all below it.")
    fair_sharing: FairSharing | None = opt("Weight among siblings.")


class Cohort(Resource):
    """Queues and cohorts that lend to each other."""

    rules = (
        Rule(
            "!has(self.spec) || !has(self.spec.parentName) || self.spec.parentName != self.metadata.name",
            "parentName names the Cohort itself: write the Cohort above it, or drop parentName for a root",
            holds=lambda c: not c.spec.parent_name or c.spec.parent_name != c.metadata.name,
        ),
    )
    spec: CohortSpec = part("What is wanted.", CohortSpec)
    status: QueueStatus | None = opt("What is.")
