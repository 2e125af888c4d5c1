"""What waits and runs: Workload, one per job, and the WorkloadPriorityClass that ranks it.

A Workload's spec says what the job asks for; its status says what it got and all that a decision must remember: the
controller keeps nothing that is not written here. While it holds quota, what was asked and what was given stay as they
are; the update rules at the bottom see to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from admission.api.schema import (
    ATOMIC,
    GROUP,
    Conditions,
    Count,
    Int32,
    LabelValue,
    ListMap,
    Model,
    ObjectName,
    OpenModel,
    PodSetName,
    Positive,
    Quantity,
    Resource,
    Rule,
    Text32k,
    Text63,
    Text256,
    Text317,
    Text1024,
    Time,
    Toleration,
    names_of,
    opt,
    req,
)
from admission.names import ADMITTED, QUOTA_RESERVED

POD_SETS = 18
"""At most so many pod sets in a Workload, as in Kueue."""

SCHEDULING_GROUP = "scheduling.k8s.io"


class TopologyConstraint(Model):
    topology: Annotated[Text63, Field(min_length=1)] = req("Level, as a node label.")
    size: Positive = req("Pods in each slice.")


class TopologyRequest(Model):
    """How close together the pods of a pod set must be."""

    rules = (
        Rule(
            "(has(self.required) ? 1 : 0) + (has(self.preferred) ? 1 : 0) + "
            "(has(self.unconstrained) && self.unconstrained ? 1 : 0) <= 1",
            "write one of required, preferred and unconstrained",
            holds=lambda t: (t.required is not None) + (t.preferred is not None) + bool(t.unconstrained) <= 1,
        ),
        Rule(
            "has(self.podSetSliceRequiredTopology) == has(self.podSetSliceSize)",
            "podSetSliceRequiredTopology and podSetSliceSize go together: write both or neither",
            holds=lambda t: (t.pod_set_slice_required_topology is None) == (t.pod_set_slice_size is None),
        ),
    )
    required: Text63 | None = opt("All pods in one domain of this level.")
    preferred: Text63 | None = opt("All pods in one domain of this level if that can be, else the next wider one.")
    unconstrained: bool | None = opt("Anywhere in the topology.")
    pod_index_label: Text317 | None = opt("Label with the index of a pod.")
    sub_group_index_label: Text317 | None = opt("Label with the index of a replicated job.")
    sub_group_count: Int32 | None = opt("Replicated jobs in this pod set.")
    pod_set_group_name: Text256 | None = opt("Pod sets of one group get the same flavor and domain.")
    pod_set_slice_required_topology: Text63 | None = opt("Each slice in one domain of this level.")
    pod_set_slice_size: Positive | None = opt("Pods in each slice.")
    pod_set_slice_required_topology_constraints: (
        Annotated[
            list[TopologyConstraint],
            Field(max_length=3, json_schema_extra=ATOMIC),
        ]
        | None
    ) = opt("Slices within slices.", alias="podsetSliceRequiredTopologyConstraints")


class PodSet(Model):
    """Pods that are all alike."""

    rules = (
        Rule(
            "!has(self.minCount) || self.minCount <= self.count",
            "minCount is more than count: write at most count, or drop minCount to run with all pods or not at all",
            holds=lambda p: p.min_count is None or p.min_count <= p.count,
        ),
    )
    name: PodSetName = Field(default="main", description="Name.")
    template: dict[str, Any] = req("Pod template.")
    count: Count = Field(default=1, description="Pods.")
    min_count: Positive | None = opt("With so many it may start; left out, only with all.")
    topology_request: TopologyRequest | None = opt("How close together.")


class PriorityClassRef(Model):
    rules = (
        Rule(
            f"self.group == '{SCHEDULING_GROUP}' ? self.kind == 'PriorityClass' : "
            f"self.group == '{GROUP}' && self.kind == 'WorkloadPriorityClass'",
            f"write group: {GROUP} with kind: WorkloadPriorityClass, "
            f"or group: {SCHEDULING_GROUP} with kind: PriorityClass",
        ),
    )
    group: ObjectName = req("API group of the class.")
    kind: Literal["WorkloadPriorityClass", "PriorityClass"] = req("Its kind.")
    name: Annotated[ObjectName, Field(min_length=1)] = req("Its name.")

    @model_validator(mode="after")
    def _group_has_kind(self, info: ValidationInfo) -> PriorityClassRef:
        group = names_of(info).group
        if {SCHEDULING_GROUP: "PriorityClass", group: "WorkloadPriorityClass"}.get(self.group) != self.kind:
            message = self.rules[0].message.replace(GROUP, group)
            raise PydanticCustomError("rule", "{message}", {"message": message})
        return self


class PreemptionGate(Model):
    name: Annotated[Text317, Field(min_length=1)] = req("Who must open it.")


class WorkloadSpec(Model):
    rules = (
        Rule(
            "size(self.podSets.filter(p, has(p.minCount))) <= 1",
            "minCount stands in two pod sets: only one may start with fewer pods",
            holds=lambda s: sum(p.min_count is not None for p in s.pod_sets) <= 1,
        ),
        Rule(
            "!has(self.priorityClassRef) || has(self.priority)",
            "priorityClassRef needs priority: write the value of the class there",
            holds=lambda s: s.priority_class_ref is None or s.priority is not None,
        ),
    )
    pod_sets: Annotated[list[PodSet], Field(min_length=1, max_length=POD_SETS), ListMap(("name",))] = req(
        "The pods of the job; they start together."
    )
    queue_name: ObjectName | None = opt("LocalQueue in the same namespace.")
    priority_class_ref: PriorityClassRef | None = opt("Class that priority was taken from.")
    priority: Int32 | None = opt("The higher goes first.")
    active: bool = Field(default=True, description="False takes it out of the queue, and stops it if it runs.")
    maximum_execution_time_seconds: Positive | None = opt("Stopped and deactivated after so long.")
    preemption_gates: Annotated[list[PreemptionGate], Field(max_length=8), ListMap(("name",))] | None = opt(
        "While one is closed, nobody is evicted for this workload."
    )


# Where the pods go.


class IndividualValues(Model):
    prefix: Text256 | None = opt("What all values begin with.")
    suffix: Text256 | None = opt("What all values end with.")
    roots: Annotated[list[Text256], Field(min_length=1, max_length=100_000, json_schema_extra=ATOMIC)] = req(
        "The values, one per domain, without prefix and suffix."
    )


class LevelValues(Model):
    rules = (
        Rule(
            "has(self.universal) != has(self.individual)",
            "write one of universal and individual",
            holds=lambda v: (v.universal is None) != (v.individual is None),
        ),
    )
    universal: Text256 | None = opt("The one value of all domains.")
    individual: IndividualValues | None = opt("A value for each domain.")


class PodCounts(Model):
    rules = (
        Rule(
            "has(self.universal) != has(self.individual)",
            "write one of universal and individual",
            holds=lambda c: (c.universal is None) != (c.individual is None),
        ),
    )
    universal: Int32 | None = opt("Pods in every domain.")
    individual: Annotated[list[Int32], Field(min_length=1, max_length=100_000, json_schema_extra=ATOMIC)] | None = opt(
        "Pods in each domain."
    )


class Slice(Model):
    rules = (
        Rule(
            "!has(self.podCounts.individual) || size(self.podCounts.individual) == self.domainCount",
            "podCounts.individual must have domainCount items",
            holds=lambda s: s.pod_counts.individual is None or len(s.pod_counts.individual) == s.domain_count,
        ),
        Rule(
            "self.valuesPerLevel.all(v, !has(v.individual) || size(v.individual.roots) == self.domainCount)",
            "roots must have domainCount items",
            holds=lambda s: all(
                v.individual is None or len(v.individual.roots) == s.domain_count for v in s.values_per_level
            ),
        ),
    )
    domain_count: Positive = req("Domains in this slice.")
    values_per_level: Annotated[list[LevelValues], Field(min_length=1, max_length=16, json_schema_extra=ATOMIC)] = req(
        "Label values of the domains, for each of levels."
    )
    pod_counts: PodCounts = req("Pods in the domains.")


class TopologyAssignment(Model):
    rules = (
        Rule(
            "self.slices.all(s, size(s.valuesPerLevel) == size(self.levels))",
            "valuesPerLevel must have one item for each of levels",
            holds=lambda t: all(len(s.values_per_level) == len(t.levels) for s in t.slices),
        ),
    )
    levels: Annotated[list[Text317], Field(min_length=1, max_length=16, json_schema_extra=ATOMIC)] = req(
        "Node labels that name a domain."
    )
    slices: Annotated[list[Slice], Field(max_length=1000, json_schema_extra=ATOMIC)] = req("The domains.")


class PodSetAssignment(Model):
    name: PodSetName = Field(default="main", description="Pod set.")
    flavors: Annotated[dict[str, ObjectName], Field(max_length=64)] | None = opt("Flavor of each resource.")
    resource_usage: Annotated[dict[str, Quantity], Field(max_length=64)] | None = opt("What all its pods ask for.")
    count: Count | None = opt("Pods admitted.")
    topology_assignment: TopologyAssignment | None = opt("Domains chosen.")
    delayed_topology_request: Literal["Pending", "Ready"] | None = opt("Domains are chosen after the checks.")


class Admission(Model):
    cluster_queue: Annotated[ObjectName, Field(min_length=1)] = req("Whose quota.")
    pod_set_assignments: Annotated[list[PodSetAssignment], Field(max_length=POD_SETS), ListMap(("name",))] = req(
        "What each pod set got."
    )


# What is remembered.


class RequeueState(Model):
    count: Count | None = opt("How often it was queued again.")
    requeue_at: Time | None = opt("Not before.")


class ReclaimablePod(Model):
    name: PodSetName = req("Pod set.")
    count: Count = req("Pods that need nothing any more.")


class PodSetUpdate(Model):
    name: PodSetName = req("Pod set.")
    labels: Annotated[dict[str, str], Field(max_length=64)] | None = opt("Labels to add.")
    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = opt("Annotations to add.")
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = opt("Node labels to select.")
    tolerations: Annotated[list[Toleration], Field(max_length=8, json_schema_extra=ATOMIC)] | None = opt(
        "Tolerations to add."
    )


class CheckState(Model):
    name: Annotated[Text317, Field(min_length=1)] = req("AdmissionCheck.")
    state: Literal["Pending", "Ready", "Retry", "Rejected"] = req("Its answer.")
    last_transition_time: Time = req("When the answer last changed.")
    message: Text32k = req("What people read.")
    requeue_after_seconds: Count | None = opt("With Retry: not before.")
    retry_count: Count | None = opt("How often it said Retry.")
    pod_set_updates: Annotated[list[PodSetUpdate], Field(max_length=POD_SETS, json_schema_extra=ATOMIC)] | None = opt(
        "What to add to the pods."
    )


class PodSetRequest(Model):
    name: PodSetName = req("Pod set.")
    resources: Annotated[dict[str, Quantity], Field(max_length=64)] | None = opt("What all its pods ask for.")


class EvictionCount(Model):
    reason: Text317 = req("Reason.")
    underlying_cause: Text317 = req("Finer reason, or empty.")
    count: Count = req("How often.")


class SchedulingStats(Model):
    evictions: Annotated[list[EvictionCount], Field(max_length=256), ListMap(("reason", "underlyingCause"))] | None = (
        opt("Evictions by reason.")
    )


class UnhealthyNode(Model):
    name: Annotated[str, Field(max_length=253)] = req("Node.")


class GateState(Model):
    name: Annotated[Text317, Field(min_length=1)] = req("Gate.")
    position: Literal["Open", "Closed"] = req("Open or Closed.")
    last_transition_time: Time | None = opt("When it last changed.")


class Claim(OpenModel):
    """Room that is kept for this workload while those it evicted leave."""

    cluster_queue: ObjectName | None = opt("Whose quota.")
    until: Time | None = opt("The claim ends then.")
    victims: Annotated[list[Text317], Field(max_length=1024, json_schema_extra=ATOMIC)] | None = opt(
        "Uids of the workloads that were evicted for it."
    )


class AvoidedNode(Model):
    node: Annotated[str, Field(min_length=1, max_length=253)] = req("Node.")
    until: Time | None = opt("Avoided so long; in the past where that was once.")
    reason: Text1024 | None = opt("Why.")


class WorkloadStatus(Model):
    rules = (
        Rule(
            "!has(self.clusterName) || !has(self.nominatedClusterNames) || size(self.nominatedClusterNames) == 0",
            "clusterName is set: drop nominatedClusterNames",
            holds=lambda s: s.cluster_name is None or not s.nominated_cluster_names,
        ),
        Rule(
            "!has(oldSelf.clusterName) || !has(self.clusterName) || self.clusterName == oldSelf.clusterName",
            "clusterName can be cleared but not changed",
            keeps=lambda new, old: None in (new.cluster_name, old.cluster_name) or new.cluster_name == old.cluster_name,
        ),
    )
    conditions: Conditions | None = opt(
        "QuotaReserved, Admitted, PodsReady, Evicted, Preempted, Requeued, Finished, ..."
    )
    admission: Admission | None = opt("What it got. Set as a whole and cleared as a whole.")
    requeue_state: RequeueState | None = opt("Backoff.")
    reclaimable_pods: Annotated[list[ReclaimablePod], Field(max_length=POD_SETS), ListMap(("name",))] | None = opt(
        "Pods that are done."
    )
    admission_checks: Annotated[list[CheckState], Field(max_length=64), ListMap(("name",))] | None = opt("Answers.")
    resource_requests: Annotated[list[PodSetRequest], Field(max_length=POD_SETS), ListMap(("name",))] | None = opt(
        "What it would take, while it waits."
    )
    accumulated_past_execution_time_seconds: Int32 | None = opt("Time admitted before the last eviction.")
    scheduling_stats: SchedulingStats | None = opt("How it fared.")
    nominated_cluster_names: Annotated[list[Text256], Field(max_length=20, json_schema_extra=ATOMIC)] | None = opt(
        "Clusters proposed."
    )
    cluster_name: Text256 | None = opt("Cluster chosen.")
    unhealthy_nodes: Annotated[list[UnhealthyNode], Field(max_length=8), ListMap(("name",))] | None = opt(
        "Its nodes that failed."
    )
    preemption_gates: Annotated[list[GateState], Field(max_length=8), ListMap(("name",))] | None = opt(
        "State of the gates."
    )
    claim: Claim | None = opt("Room kept for it.")
    avoid_nodes: Annotated[list[AvoidedNode], Field(max_length=256), ListMap(("node",))] | None = opt(
        "Nodes with which it was lost, or to which kube-scheduler let none of its pods come though they have room: "
        "where that was twice within a day it stays away from them until then."
    )
    out_of_stock: Annotated[list[ObjectName], Field(max_length=64, json_schema_extra=ATOMIC)] | None = opt(
        "Elastic flavors on which it was started and got no nodes, the one where that is longest ago first. They are "
        "tried after the others, in this order."
    )
    fair_evictions: Annotated[list[Time], Field(max_length=16, json_schema_extra=ATOMIC)] | None = opt(
        "When it was evicted by fair sharing, the last times."
    )
    decision: Annotated[str, Field(max_length=64)] | None = opt(
        "Id of the decision that changed this status last, as the controller's log and the job's Events name it."
    )


def _true(workload: Workload, condition: str) -> bool:
    status = workload.status
    return status is not None and any(c.type == condition and c.status == "True" for c in status.conditions or ())


def _cel_true(who: str, condition: str) -> str:
    return (
        f"(has({who}.status) && has({who}.status.conditions) && "
        f"{who}.status.conditions.exists(c, c.type == '{condition}' && c.status == 'True'))"
    )


def _while(condition: str, cel: str, message: str, keeps: Callable[[Any, Any], bool]) -> Rule:
    """`keeps` matters only while `condition` is true before and after."""
    return Rule(
        f"!{_cel_true('oldSelf', condition)} || !{_cel_true('self', condition)} || ({cel})",
        message,
        keeps=lambda new, old: not _true(old, condition) or not _true(new, condition) or keeps(new, old),
    )


def _assigned(workload: Workload) -> list[PodSetAssignment]:
    admission = workload.status.admission if workload.status is not None else None
    return admission.pod_set_assignments if admission is not None else []


def _covers_pod_sets(workload: Workload) -> bool:
    if workload.status is None or workload.status.admission is None or not _true(workload, QUOTA_RESERVED):
        return True
    return sorted(a.name for a in _assigned(workload)) == sorted(p.name for p in workload.spec.pod_sets)


def _pod_sets_kept(new: Workload, old: Workload) -> bool:
    had = {p.name: p for p in old.spec.pod_sets}
    return len(new.spec.pod_sets) == len(had) and all(
        p.name in had and p.count <= had[p.name].count and p.min_count == had[p.name].min_count
        for p in new.spec.pod_sets
    )


def _class_kept(new: Workload, old: Workload) -> bool:
    was, is_ = old.spec.priority_class_ref, new.spec.priority_class_ref
    if was is None or is_ is None:
        return was is is_
    return (was.group, was.kind) == (is_.group, is_.kind) and (was.group != SCHEDULING_GROUP or was.name == is_.name)


def _admission_kept(new: Workload, old: Workload) -> bool:
    was = old.status.admission if old.status is not None else None
    is_ = new.status.admission if new.status is not None else None
    if was is None or is_ is None:
        return True
    return was.cluster_queue == is_.cluster_queue and (
        {a.name: (a.flavors, a.resource_usage) for a in _assigned(old)}
        == {a.name: (a.flavors, a.resource_usage) for a in _assigned(new)}
    )


def _reclaimable_grows(new: Workload, old: Workload) -> bool:
    now = {r.name: r.count for r in (new.status.reclaimable_pods or () if new.status is not None else ())}
    before = (old.status.reclaimable_pods or ()) if old.status is not None else ()
    return all(now.get(r.name, -1) >= r.count for r in before)


def _same(field: str, who: str = "") -> str:
    """CEL: the optional field is as it was."""
    new, old = f"self.{who}{field}", f"oldSelf.{who}{field}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


class Workload(Resource):
    """A job's place in the queue, and what it was given."""

    rules = (
        Rule(
            f"!{_cel_true('self', QUOTA_RESERVED)} || !has(self.status.admission) || "
            "size(self.status.admission.podSetAssignments) == size(self.spec.podSets) && "
            "self.status.admission.podSetAssignments.all(a, self.spec.podSets.exists(p, p.name == a.name))",
            "status.admission must have one podSetAssignment for each of spec.podSets",
            holds=_covers_pod_sets,
        ),
        _while(
            QUOTA_RESERVED,
            "size(self.spec.podSets) == size(oldSelf.spec.podSets) && "
            "self.spec.podSets.all(p, oldSelf.spec.podSets.exists(o, "
            "o.name == p.name && p.count <= o.count && has(p.minCount) == has(o.minCount) && "
            "(!has(p.minCount) || p.minCount == o.minCount)))",
            "podSets cannot change while quota is reserved, but for a count that shrinks: suspend the job first",
            _pod_sets_kept,
        ),
        _while(
            QUOTA_RESERVED,
            _same("queueName", "spec."),
            "queueName cannot change while quota is reserved: suspend the job first",
            lambda new, old: new.spec.queue_name == old.spec.queue_name,
        ),
        _while(
            QUOTA_RESERVED,
            "has(self.spec.priorityClassRef) == has(oldSelf.spec.priorityClassRef) && "
            "(!has(self.spec.priorityClassRef) || "
            "self.spec.priorityClassRef.group == oldSelf.spec.priorityClassRef.group && "
            "self.spec.priorityClassRef.kind == oldSelf.spec.priorityClassRef.kind && "
            f"(self.spec.priorityClassRef.group != '{SCHEDULING_GROUP}' || "
            "self.spec.priorityClassRef.name == oldSelf.spec.priorityClassRef.name))",
            "priorityClassRef cannot change while quota is reserved, but for the name of a WorkloadPriorityClass",
            _class_kept,
        ),
        _while(
            ADMITTED,
            _same("maximumExecutionTimeSeconds", "spec."),
            "maximumExecutionTimeSeconds cannot change while admitted: suspend the job first",
            lambda new, old: new.spec.maximum_execution_time_seconds == old.spec.maximum_execution_time_seconds,
        ),
        _while(
            QUOTA_RESERVED,
            "!has(oldSelf.status.reclaimablePods) || oldSelf.status.reclaimablePods.all(o, "
            "has(self.status.reclaimablePods) && "
            "self.status.reclaimablePods.exists(r, r.name == o.name && r.count >= o.count))",
            "reclaimablePods can only grow while quota is reserved",
            _reclaimable_grows,
        ),
        Rule(
            "!has(oldSelf.status) || !has(oldSelf.status.admission) || "
            "!has(self.status) || !has(self.status.admission) || "
            "self.status.admission.clusterQueue == oldSelf.status.admission.clusterQueue && "
            "size(self.status.admission.podSetAssignments) == size(oldSelf.status.admission.podSetAssignments) && "
            "self.status.admission.podSetAssignments.all(a, oldSelf.status.admission.podSetAssignments.exists(o, "
            "o.name == a.name && has(o.flavors) == has(a.flavors) && (!has(a.flavors) || a.flavors == o.flavors) && "
            "has(o.resourceUsage) == has(a.resourceUsage) && "
            "(!has(a.resourceUsage) || a.resourceUsage == o.resourceUsage)))",
            "status.admission can be set and cleared but not changed, but for where its pods go",
            keeps=_admission_kept,
        ),
    )
    spec: WorkloadSpec = req("What is wanted.")
    status: WorkloadStatus | None = opt("What is.")


class WorkloadPriorityClass(Resource):
    """A priority for workloads that says nothing about pods."""

    value: Int32 = req("The higher goes first.")
    description: Annotated[str, Field(max_length=2048)] | None = opt("When to use it.")
