"""API objects as the engine's values, and the engine's values as they are stored in a Workload's status.

Every reader is total: `reader(obj, names) -> (value, problems)`. Whatever somebody wrote, there is a value that the
engine can hold; what had to be left out of it is in `problems`, in words. Only an object without a name has no value.
`pod_usage` alone answers None, for pods that hold no room.

What a decision remembers (admission, claim, nodes to avoid) is written and read here, side by side, so that
what is stored comes back as the same value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from msgspec.structs import replace

from admission.engine.model import (
    Admission,
    AdmissionCheck,
    AvoidedNode,
    Check,
    CheckRule,
    CheckState,
    ClaimRecord,
    ClusterQueue,
    Cohort,
    Domain,
    Flavor,
    FlavorQuotas,
    Fungibility,
    LocalQueue,
    Namespace,
    Node,
    Pairs,
    PodSet,
    PodSetAssignment,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Quota,
    ResourceGroup,
    StopPolicy,
    Strategy,
    Taint,
    Toleration,
    Topology,
    TopologyAssignment,
    Workload,
)
from admission.jobs.kinds import (
    MAIN,
    Json,
    condition_of,
    digits,
    items,
    labels_of,
    millis,
    obj,
    objects,
    text,
    texts,
    whole,
)
from admission.jobs.requests import (
    anti_affinity,
    exclusive_key,
    host_ports,
    label_selector,
    pod_requests,
    shape_of,
    toleration,
    topology_value,
)
from admission.names import (
    ADMITTED,
    BLOCKED_ON_GATES,
    EVICTED,
    FINISHED,
    HOSTNAME_LABEL,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_JOB_KEY_LABEL,
    JOBSET_NAME_LABEL,
    JOBSET_REPLICATED_JOB_LABEL,
    PREEMPTED,
    QUOTA_RESERVED,
    STARTED_BY_KUEUE,
    Names,
)
from admission.quantity import (
    INT64_MAX,
    QuantityError,
    format_resources,
    parse,
    parse_fraction,
    parse_plain,
)

E = TypeVar("E", Strategy, StopPolicy, PreemptionPolicy, CheckState)

_SHUT_DOWN = "node.kubernetes.io/out-of-service"
UNWELL_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
LOST_TAINTS = frozenset({*UNWELL_TAINTS, _SHUT_DOWN})
"""NoExecute taints that mean the node is gone, not that it is reserved for somebody."""


def rfc3339(ms: int) -> str:
    """Whole seconds, as the API server stores them."""
    return _rfc3339(ms // 1000)


@lru_cache(maxsize=1024)
def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------- small readers


def _meta(raw: Json) -> tuple[Json, str, str]:
    meta = obj(raw.get("metadata"))
    return meta, text(meta.get("namespace")), text(meta.get("name"))


def _enum(kind: type[E], raw: object, default: E, where: str, problems: list[str]) -> E:
    if raw is None or raw == "":
        return default
    try:
        return kind(raw)
    except ValueError:
        problems.append(f"{where}: {raw!r} is none of {', '.join(str(member.value) for member in kind)}")
        return default


def _amount(resource: str, raw: object, where: str, problems: list[str]) -> int | None:
    """An amount of at least 0, or None with a problem."""
    try:
        if not isinstance(raw, str | int | float):
            raise QuantityError(f"{raw!r} is no quantity")
        amount = parse(resource, raw)
    except QuantityError as error:
        problems.append(f"{where}: {error}")
        return None
    if amount < 0:
        problems.append(f"{where}: {raw} is negative")
        return 0
    return amount


def _amounts(raw: object, where: str, problems: list[str]) -> tuple[tuple[str, int], ...]:
    out = []
    for name, quantity in sorted(obj(raw).items()):
        amount = _amount(name, quantity, f"{where}.{name}", problems)
        if amount is not None:
            out.append((name, amount))
    return tuple(out)


def _weight(raw: Json, problems: list[str]) -> Fraction:
    value = obj(obj(raw.get("spec")).get("fairSharing")).get("weight")
    if value is None:
        return Fraction(1)
    try:
        weight = Fraction(parse_plain(value))
    except (QuantityError, ValueError, TypeError) as error:
        problems.append(f"fairSharing.weight: {error}")
        return Fraction(1)
    if weight < 0:
        problems.append("fairSharing.weight is negative: taken as 0")
        return Fraction(0)
    return weight


def _pairs(raw: object) -> Pairs:
    return tuple(sorted(texts(raw).items()))


def _taints(raw: object) -> tuple[Taint, ...]:
    return tuple(
        Taint(key=text(t.get("key")), value=text(t.get("value")), effect=text(t.get("effect"))) for t in objects(raw)
    )


def _tolerations(raw: object) -> tuple[Toleration, ...]:
    return tuple(toleration(t) for t in objects(raw))


# ---------------------------------------------------------------- queues


def _quota(resource: str, raw: Json, where: str, problems: list[str]) -> Quota:
    nominal = _amount(resource, raw.get("nominalQuota", 0), f"{where}.nominalQuota", problems) or 0
    limits: list[int | None] = []
    for field in ("borrowingLimit", "lendingLimit"):
        if raw.get(field) is None:
            limits.append(None)
        else:
            # A limit that cannot be read must not become no limit.
            limits.append(_amount(resource, raw[field], f"{where}.{field}", problems) or 0)
    return Quota(nominal=nominal, borrowing_limit=limits[0], lending_limit=limits[1])


def _groups(spec: Json, problems: list[str]) -> tuple[ResourceGroup, ...]:
    groups = []
    taken: set[str] = set()
    given: set[str] = set()
    for raw in objects(spec.get("resourceGroups")):
        covered = []
        for resource in items(raw.get("coveredResources")):
            if not isinstance(resource, str) or resource in taken:
                problems.append(f"resource {resource!r} stands in more than one place: the first counts")
                continue
            taken.add(resource)
            covered.append(resource)
        flavors = []
        for entry in objects(raw.get("flavors")):
            name = text(entry.get("name"))
            if name in given:
                problems.append(f"flavor {name!r} stands in more than one place: the first counts")
                continue
            given.add(name)
            quotas = {
                text(item.get("name")): _quota(
                    text(item.get("name")), item, f"{name}.{text(item.get('name'))}", problems
                )
                for item in objects(entry.get("resources"))
            }
            flavors.append(FlavorQuotas(name, tuple((r, quotas.get(r) or Quota(0)) for r in covered)))
        groups.append(ResourceGroup(covered=tuple(covered), flavors=tuple(flavors)))
    return tuple(groups)


def cluster_queue(raw: Json, names: Names) -> tuple[ClusterQueue, tuple[str, ...]]:
    del names
    meta, _, name = _meta(raw)
    spec = obj(raw.get("spec"))
    problems: list[str] = []
    fungibility, preemption = obj(spec.get("flavorFungibility")), obj(spec.get("preemption"))
    borrow = obj(preemption.get("borrowWithinCohort"))
    threshold = borrow.get("maxPriorityThreshold")
    reclaim = preemption.get("reclaimWithinCohort")
    value = ClusterQueue(
        name=name,
        cohort=text(spec.get("cohortName")),
        groups=_groups(spec, problems),
        strategy=_enum(Strategy, spec.get("queueingStrategy"), Strategy.BEST_EFFORT_FIFO, "queueingStrategy", problems),
        namespace_selector=label_selector(spec.get("namespaceSelector"), "namespaceSelector", problems),
        fungibility=Fungibility(
            # "Borrow" and "Preempt" are the older names.
            stop_when_borrowing=fungibility.get("whenCanBorrow") in (None, "MayStopSearch", "Borrow"),
            stop_when_preempting=fungibility.get("whenCanPreempt") in ("MayStopSearch", "Preempt"),
            preempt_over_borrow=fungibility.get("preference") == "PreemptionOverBorrowing",
        ),
        preemption=Preemption(
            within_cluster_queue=_enum(
                PreemptionPolicy,
                preemption.get("withinClusterQueue"),
                PreemptionPolicy.NEVER,
                "withinClusterQueue",
                problems,
            ),
            reclaim_within_cohort=None
            if not reclaim
            else _enum(PreemptionPolicy, reclaim, PreemptionPolicy.NEVER, "reclaimWithinCohort", problems),
            borrow_within_cohort=_enum(
                PreemptionPolicy, borrow.get("policy"), PreemptionPolicy.NEVER, "borrowWithinCohort", problems
            ),
            max_priority_threshold=threshold if isinstance(threshold, int) else None,
        ),
        checks=tuple(
            CheckRule(
                name=text(rule.get("name")),
                on_flavors=frozenset(flavor for flavor in items(rule.get("onFlavors")) if isinstance(flavor, str)),
            )
            for rule in objects(obj(spec.get("admissionChecksStrategy")).get("admissionChecks"))
        ),
        stop_policy=_enum(StopPolicy, spec.get("stopPolicy"), StopPolicy.NONE, "stopPolicy", problems),
        weight=_weight(raw, problems),
        usage_based_fairness=obj(spec.get("admissionScope")).get("admissionMode") == "UsageBasedAdmissionFairSharing",
        migrates_to=text(
            obj(obj(obj(spec.get("concurrentAdmissionPolicy")).get("migration")).get("constraints")).get(
                "lastAcceptableFlavorName"
            )
        ),
        generation=whole(meta.get("generation"), 0),
        created=millis(meta.get("creationTimestamp")),
        uid=text(meta.get("uid")),
        terminating=meta.get("deletionTimestamp") is not None,
    )
    return value, tuple(problems)


def cohort(raw: Json, names: Names) -> tuple[Cohort, tuple[str, ...]]:
    del names
    meta, _, name = _meta(raw)
    spec = obj(raw.get("spec"))
    problems: list[str] = []
    value = Cohort(
        name=name,
        parent=text(spec.get("parentName")),
        groups=_groups(spec, problems),
        weight=_weight(raw, problems),
        generation=whole(meta.get("generation"), 0),
    )
    return value, tuple(problems)


def local_queue(raw: Json, names: Names) -> tuple[LocalQueue, tuple[str, ...]]:
    del names
    meta, namespace, name = _meta(raw)
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    problems: list[str] = []
    used = obj(obj(status.get("fairSharing")).get("admissionFairSharingStatus"))
    consumed = []
    for resource, quantity in sorted(obj(used.get("consumedResources")).items()):
        try:
            consumed.append((resource, max(0.0, parse_fraction(resource, quantity))))
        except (QuantityError, OverflowError) as error:
            problems.append(f"consumedResources.{resource}: {error}")
    value = LocalQueue(
        namespace=namespace,
        name=name,
        cluster_queue=text(spec.get("clusterQueue")),
        stop_policy=_enum(StopPolicy, spec.get("stopPolicy"), StopPolicy.NONE, "stopPolicy", problems),
        weight=_weight(raw, problems),
        consumed=tuple(consumed),
        consumed_at=millis(used.get("lastUpdate")),
        uid=text(meta.get("uid")),
    )
    return value, tuple(problems)


def flavor(raw: Json, names: Names) -> tuple[Flavor, tuple[str, ...]]:
    del names
    spec = obj(raw.get("spec"))
    value = Flavor(
        name=_meta(raw)[2],
        node_labels=_pairs(spec.get("nodeLabels")),
        node_taints=_taints(spec.get("nodeTaints")),
        tolerations=_tolerations(spec.get("tolerations")),
        topology=text(spec.get("topologyName")),
        elastic=spec.get("elastic") is True,
        spread=spec.get("placement") == "Spread",
    )
    return value, ()


def topology(raw: Json, names: Names) -> tuple[Topology, tuple[str, ...]]:
    del names
    levels = tuple(text(level.get("nodeLabel")) for level in objects(obj(raw.get("spec")).get("levels")))
    problems = () if levels else ("a Topology needs at least one level",)
    return Topology(name=_meta(raw)[2], levels=levels), problems


def admission_check(raw: Json, names: Names) -> tuple[AdmissionCheck, tuple[str, ...]]:
    del names
    value = AdmissionCheck(
        name=_meta(raw)[2],
        controller=text(obj(raw.get("spec")).get("controllerName")),
        active="Active" in _conditions(obj(raw.get("status"))),
    )
    return value, ()


def namespace(raw: Json, names: Names) -> tuple[Namespace, tuple[str, ...]]:
    del names
    meta, _, name = _meta(raw)
    going = meta.get("deletionTimestamp") is not None
    return Namespace(name=name, labels=_pairs(meta.get("labels")), terminating=going), ()


# ---------------------------------------------------------------- nodes and pods


def node(raw: Json, names: Names) -> tuple[Node, tuple[str, ...]]:
    del names
    meta, _, name = _meta(raw)
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    problems: list[str] = []
    condition: Json = next((c for c in objects(status.get("conditions")) if c.get("type") == "Ready"), {})
    ready = condition.get("status") == "True"
    turned = millis(condition.get("lastTransitionTime")) or millis(meta.get("creationTimestamp"))
    since = [] if ready else [turned]
    since.extend(
        # Who says that it is shut down has its pods deleted at once: nobody waits whether it comes back.
        0 if taint.get("key") == _SHUT_DOWN else millis(taint.get("timeAdded"))
        for taint in objects(spec.get("taints"))
        if taint.get("effect") == "NoExecute" and taint.get("key") in LOST_TAINTS
    )
    value = Node(
        name=name,
        labels=_pairs(meta.get("labels")),
        taints=_taints(spec.get("taints")),
        allocatable=_amounts(status.get("allocatable"), "allocatable", problems),
        ready=ready,
        unschedulable=spec.get("unschedulable") is True,
        lost_since=min(since) if since else None,
        ready_since=turned if ready else 0,
    )
    own = dict(value.allocatable)
    has = texts(status.get("capacity")).items()
    away = (name for name, amount in has if "/" in name and not own.get(name) and _amount(name, amount, "", []))
    return replace(value, away=tuple(sorted(away))), tuple(problems)


def gang_of(labels: Mapping[str, str], names: Names) -> str:
    """uid of the Workload whose pod this is; "" for a pod of others. Nobody else may write the label that marks pods of
    gangs, and without it the others say nothing."""
    return labels.get(names.workload_uid_label, "") if names.managed_label in labels else ""


def is_ready(raw: Json) -> bool:
    """Is a pod ready? So is one whose kubelet says that it is not, for that alone that some of its containers have
    ended well: the others work, and may do so for days."""
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    said = condition_of(raw, "Ready")
    if said.get("status") == "True" or status.get("phase") != "Running" or said.get("reason") != "ContainersNotReady":
        return said.get("status") == "True"
    of_init = {text(one.get("name")): one for one in objects(status.get("initContainerStatuses"))}
    sidecars = [one for one in objects(spec.get("initContainers")) if one.get("restartPolicy") == "Always"]
    known = objects(status.get("containerStatuses"))
    return (
        len(known) == len(items(spec.get("containers")))
        and all(one.get("ready") is True or _ended_well(one) for one in known)
        and all(of_init.get(text(one.get("name")), {}).get("ready") is True for one in sidecars)
    )


def unready_since(raw: Json) -> int:
    """Since when a pod is not ready that is not. Its kubelet names when the first container ended, though that one
    ended well and another failed days later."""
    said = millis(condition_of(raw, "Ready").get("lastTransitionTime"))
    known = objects(obj(raw.get("status")).get("containerStatuses"))
    if not any(_ended_well(one) for one in known):
        return said
    ends = [_ended(one, state) for one in known for state in ("state", "lastState") if not one.get("ready")]
    return max([said, *(millis(end.get("finishedAt")) for end in ends if end.get("exitCode") != 0)])


def _ended_well(container: Json) -> bool:
    return _ended(container, "state").get("exitCode") == 0


def _ended(container: Json, state: str) -> Json:
    return obj(obj(container.get(state)).get("terminated"))


def pod_usage(raw: Json, names: Names) -> PodUsage | None:
    """The room that a pod holds on a node; None while it is unbound, and once it has ended.

    Somebody else's pod that kube-scheduler has nominated for a node, for it preempts others there, holds its room
    already: no pod of ours would be bound to it. (Ours are charged by their reservation.)
    """
    meta, where, name = _meta(raw)
    spec = obj(raw.get("spec"))
    status = obj(raw.get("status"))
    on = text(spec.get("nodeName"))
    labels = texts(meta.get("labels"))
    of_gang = gang_of(labels, names)
    if not on and not of_gang:
        on = text(status.get("nominatedNodeName"))
    if not on or status.get("phase") in ("Succeeded", "Failed"):
        return None
    try:
        requests = pod_requests(spec, status=status)
    except QuantityError:
        requests = {}
    exclusive = exclusive_key(labels, texts(meta.get("annotations")))
    return PodUsage(
        key=(where, name),
        uid=text(meta.get("uid")),
        node=on,
        requests=tuple(sorted((resource, amount) for resource, amount in requests.items() if amount)),
        workload_uid=of_gang,
        host_ports=host_ports(spec),
        of_jobset=JOBSET_JOB_KEY_LABEL in labels,
        exclusive_key=exclusive,
        child=_child(labels, where) if exclusive else None,
        apart=anti_affinity(spec, where, labels, exclusive),
    )


def _child(labels: Mapping[str, str], namespace: str) -> tuple[str, int] | None:
    index = digits(labels.get(JOBSET_JOB_INDEX_LABEL, ""))
    if index is None:
        return None
    return f"{namespace}/{labels.get(JOBSET_NAME_LABEL, '')}-{labels.get(JOBSET_REPLICATED_JOB_LABEL, '')}", index


# ---------------------------------------------------------------- what a gang got


def topology_assignment(raw: object) -> TopologyAssignment | None:
    """From Kueue's compressed form. What cannot be read holds no domains."""
    if not isinstance(raw, dict):
        return None
    domains: list[Domain] = []
    levels = tuple(level for level in items(raw.get("levels")) if isinstance(level, str))
    for part in objects(raw.get("slices")):
        count = min(whole(part.get("domainCount"), 0), 1_000_000)
        columns = [_column(obj(values), count) for values in objects(part.get("valuesPerLevel"))]
        counts = obj(part.get("podCounts"))
        pods: list[Any] = items(counts.get("individual"))
        if counts.get("universal") is not None:
            pods = [counts["universal"]] * count
        if len(columns) != len(levels) or any(len(column) != count for column in [*columns, pods]):
            continue
        domains.extend(
            Domain(values=values, count=whole(pod_count, 0))
            for values, pod_count in zip(zip(*columns, strict=True), pods, strict=True)
        )
    return TopologyAssignment(levels=levels, domains=tuple(domains))


def _column(raw: Json, count: int) -> list[str]:
    if raw.get("universal") is not None:
        return [text(raw["universal"])] * count
    individual = obj(raw.get("individual"))
    prefix, suffix = text(individual.get("prefix")), text(individual.get("suffix"))
    return [prefix + text(root) + suffix for root in items(individual.get("roots"))]


def topology_assignment_object(value: TopologyAssignment) -> Json:
    """Kueue's compressed form, in rank order. Of domains that are nodes only the node's name is stored."""
    levels = value.levels
    columns: list[list[str]] = [[domain.values[i] for domain in value.domains] for i in range(len(levels))]
    if levels and levels[-1] == HOSTNAME_LABEL:
        levels, columns = levels[-1:], columns[-1:]
    counts = [domain.count for domain in value.domains]
    if not counts:
        return {"levels": list(levels), "slices": []}
    part = {
        "domainCount": len(counts),
        "valuesPerLevel": [_column_object(column) for column in columns],
        "podCounts": {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts},
    }
    return {"levels": list(levels), "slices": [part]}


def _common(column: Sequence[str]) -> str:
    """What all begin with, short enough to leave something of each."""
    low, high = min(column), max(column)
    bound = min(len(value) for value in column) - 1
    end = 0
    while end < bound and low[end] == high[end]:
        end += 1
    return low[:end]


def _column_object(column: Sequence[str]) -> Json:
    if len(set(column)) == 1:
        return {"universal": column[0]}
    prefix = _common(column)
    rest = [value[len(prefix) :] for value in column]
    suffix = _common([value[::-1] for value in rest])[::-1]
    out: Json = {}
    if prefix:
        out["prefix"] = prefix
    if suffix:
        out["suffix"] = suffix
    out["roots"] = [value[: len(value) - len(suffix)] for value in rest]
    return {"individual": out}


def admission_value(raw: object) -> tuple[Admission | None, list[str]]:
    """status.admission as the engine has it."""
    if not isinstance(raw, dict):
        return None, []
    problems: list[str] = []
    pod_sets = []
    for entry in objects(raw.get("podSetAssignments")):
        name = text(entry.get("name")) or MAIN
        pod_sets.append(
            PodSetAssignment(
                name=name,
                flavors=_pairs(entry.get("flavors")),
                usage=_amounts(entry.get("resourceUsage"), f"admission.{name}", problems),
                count=whole(entry.get("count"), 0),
                topology=topology_assignment(entry.get("topologyAssignment")),
            )
        )
    return Admission(cluster_queue=text(raw.get("clusterQueue")), pod_sets=tuple(pod_sets)), problems


def admission_object(value: Admission) -> Json:
    """An Admission as status.admission stores it."""
    assignments = []
    for pod_set in value.pod_sets:
        entry: Json = {"name": pod_set.name, "count": pod_set.count}
        if pod_set.flavors:
            entry["flavors"] = dict(pod_set.flavors)
        if pod_set.usage:
            entry["resourceUsage"] = format_resources(dict(pod_set.usage))
        if pod_set.topology is not None:
            entry["topologyAssignment"] = topology_assignment_object(pod_set.topology)
        assignments.append(entry)
    return {"clusterQueue": value.cluster_queue, "podSetAssignments": assignments}


def claim_object(value: ClaimRecord) -> Json:
    """status.claim: whom room was freed for, so that a restart does not forget."""
    return {
        "clusterQueue": value.admission.cluster_queue,
        "until": rfc3339(value.until),
        "victims": list(value.victims),
        "admission": admission_object(value.admission),
    }


def claim_value(raw: object) -> ClaimRecord | None:
    if not isinstance(raw, dict):
        return None
    admission, _ = admission_value(raw.get("admission"))
    if admission is None:
        return None
    victims = tuple(victim for victim in items(raw.get("victims")) if isinstance(victim, str))
    return ClaimRecord(admission=admission, victims=victims, until=millis(raw.get("until")))


def avoid_object(value: Sequence[AvoidedNode]) -> list[Json]:
    """status.avoidNodes. Without a time: for good, which somebody else wrote."""
    return [
        {"node": one.node, "reason": one.reason} | ({"until": rfc3339(one.until)} if one.until < INT64_MAX else {})
        for one in value
    ]


# ---------------------------------------------------------------- Workload


def _conditions(status: Json) -> dict[str, Json]:
    """The conditions that are True, by type; of two of a type the first."""
    true: dict[str, Json] = {}
    for entry in objects(status.get("conditions")):
        if entry.get("status") == "True":
            true.setdefault(text(entry.get("type")), entry)
    return true


def _checks(status: Json, problems: list[str]) -> tuple[Check, ...]:
    checks = []
    for entry in objects(status.get("admissionChecks")):
        updates = objects(entry.get("podSetUpdates"))

        def pairs(field: str, updates: Sequence[Json] = updates) -> tuple[tuple[str, Pairs], ...]:
            return tuple((text(u.get("name")), _pairs(u.get(field))) for u in updates if u.get(field))

        checks.append(
            Check(
                name=text(entry.get("name")),
                state=_enum(CheckState, entry.get("state"), CheckState.PENDING, "admissionChecks.state", problems),
                message=text(entry.get("message")),
                node_selectors=pairs("nodeSelector"),
                tolerations=tuple(
                    (text(u.get("name")), _tolerations(u.get("tolerations"))) for u in updates if u.get("tolerations")
                ),
                labels=pairs("labels"),
                annotations=pairs("annotations"),
            )
        )
    return tuple(checks)


_WHOLE = re.compile("[+-]?[0-9]{1,64}")


def boost_of(said: str) -> int | None:
    """The 32-bit number that an annotation says; None where that is none."""
    if _WHOLE.fullmatch(said) is None:
        return None
    boost = int(said)
    return boost if -(2**31) <= boost < 2**31 else None


def _preemptor(entry: Json | None) -> str:
    """uid of the gang for which this one was evicted, from the condition Preempted, which says so in words."""
    message = text(entry.get("message")) if entry is not None else ""
    _, found, rest = message.partition("UID: ")
    return rest.split(",")[0].split(")")[0].strip() if found else ""


def pod_sets(entries: Sequence[Json], names: Names, namespace: str) -> tuple[tuple[PodSet, ...], tuple[str, ...]]:
    """spec.podSets as the engine has them. Their templates say all: of a Workload that somebody else made nothing is
    added that they leave to LimitRanges and RuntimeClasses."""
    problems: list[str] = []
    out = []
    for entry in entries:
        count = whole(entry.get("count"), 1)
        shape = shape_of(
            obj(entry.get("template")),
            names,
            siblings=[labels_of(other.get("template")) for other in entries if other is not entry],
            namespace=namespace,
            many=count > 1,
            child_pods=_child_pods(obj(entry.get("topologyRequest")), count),
        )
        if shape.refused and not count:
            shape = replace(shape, refused="")  # there are no pods of which that could be asked
        if shape.refused:
            problems.append(f"pod set {text(entry.get('name')) or MAIN}: {shape.refused}")
        least = entry.get("minCount")
        out.append(
            PodSet(
                name=text(entry.get("name")) or MAIN,
                count=count,
                shape=shape,
                min_count=whole(least, count) if isinstance(least, int) else None,
                topology=topology_value(entry.get("topologyRequest")),
            )
        )
    return tuple(out), tuple(problems)


def _child_pods(asked: Json, count: int) -> int:
    """Pods of each child job, where all have an index; else 0."""
    children = whole(asked.get("subGroupCount"), 0)
    return count // children if children and text(asked.get("podIndexLabel")) and not count % children else 0


_RARE = frozenset(
    {"admissionChecks", "requeueState", "reclaimablePods", "preemptionGates", "avoidNodes",
     "outOfStock", "unhealthyNodes", "fairEvictions", "claim"}
)  # fmt: skip


def _said_rarely(spec: Json, status: Json, problems: list[str]) -> dict[str, Any]:
    """Fields of a Workload that most have nothing for."""
    gates = {text(g.get("name")): g for g in objects(status.get("preemptionGates"))}
    return {
        "checks": _checks(status, problems),
        "requeue_at": millis(obj(status.get("requeueState")).get("requeueAt")),
        "reclaimable": tuple(
            sorted((text(e.get("name")), whole(e.get("count"), 0)) for e in objects(status.get("reclaimablePods")))
        ),
        "preemption_gated": any(
            obj(gates.get(text(gate.get("name")))).get("position") != "Open"
            for gate in objects(spec.get("preemptionGates"))
        ),
        "avoid": tuple(
            AvoidedNode(
                node=text(e.get("node")), until=millis(e.get("until")) or INT64_MAX, reason=text(e.get("reason"))
            )
            for e in objects(status.get("avoidNodes"))
        ),
        "out_of_stock": tuple(dict.fromkeys(text(name) for name in items(status.get("outOfStock")) if text(name))),
        # Of its reservation: who holds none has lost none.
        "lost_nodes": tuple(text(e.get("name")) for e in objects(status.get("unhealthyNodes")))
        if status.get("admission")
        else (),
        "fair_evictions": tuple(millis(stamp) for stamp in items(status.get("fairEvictions")) if millis(stamp)),
        "claims": claim_value(status.get("claim")),
    }


_LONGEST_GATE = 256
"""Characters of what holds a gang back that are told: an annotation of its job, which may have 64 KiB."""


def _said_in_meta(meta: Json, names: Names) -> dict[str, Any]:
    """The same of what annotations and owners say."""
    annotations = texts(meta.get("annotations"))
    allowed = annotations.get(names.allowed_flavors_annotation)
    gated = annotations.get(names.gated_by_annotation, "")
    owners = objects(meta.get("ownerReferences"))
    parent = next((ref for ref in owners if ref.get("kind") == "Workload"), {})
    return {
        "allowed_flavors": None if allowed is None else frozenset(f.strip() for f in allowed.split(",") if f.strip()),
        "gated": f"held back by {gated[:_LONGEST_GATE]}" if gated else "",
        "parent_uid": text(parent.get("uid")),
        "priority_boost": boost_of(annotations.get(names.priority_boost_annotation, "")) or 0,
        "unmanaged": _started_by_kueue(owners) if names.as_kueue else "",
    }


def _started_by_kueue(owners: Sequence[Json]) -> str:
    """What a Workload stands for that Kueue's own controller alone starts: kind and name; "" for anything else. A group
    of pods owns its Workload together, and none of them controls it."""
    for ref in owners:
        group, _, _ = text(ref.get("apiVersion")).rpartition("/")
        if f"{group}/{text(ref.get('kind'))}" in STARTED_BY_KUEUE:
            return f"{text(ref.get('kind'))} {text(ref.get('name'))}"
    return ""


def workload(
    raw: Json,
    names: Names,
    *,
    read: tuple[tuple[PodSet, ...], tuple[str, ...]] | None = None,
) -> tuple[Workload, tuple[str, ...]]:
    """A Workload as the engine has it. read: its pod sets, as `pod_sets` gave them for an equal spec."""
    meta, where, name = _meta(raw)
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    labels = texts(meta.get("labels"))
    if read is None:
        read = pod_sets(objects(spec.get("podSets")), names, where)
    problems = list(read[1])
    admission, wrong = admission_value(status.get("admission"))
    problems.extend(wrong)
    true = _conditions(status)
    reserved, admitted, evicted = true.get(QUOTA_RESERVED), true.get(ADMITTED), true.get(EVICTED)
    why = text(evicted.get("reason")) if evicted is not None else ""
    evicted_at = millis(evicted.get("lastTransitionTime")) if evicted is not None else 0
    notes = texts(meta.get("annotations"))
    queued = millis(notes.get(names.queued_since_annotation))
    priority = spec.get("priority")
    paused = notes.get(names.pause_label) == "true"
    said = _said_in_meta(meta, names) if meta.keys() & {"annotations", "ownerReferences"} else {}
    value = Workload(
        namespace=where,
        name=name,
        uid=text(meta.get("uid")),
        queue=text(spec.get("queueName")),
        pod_sets=read[0],
        priority=priority if isinstance(priority, int) else 0,
        created=queued or millis(meta.get("creationTimestamp")),
        arrival=notes.get(names.arrival_annotation, ""),
        # While the label stands on its job, nobody who sets it active has it queued: it would be evicted at once.
        active=spec.get("active") is not False and not meta.get("deletionTimestamp") and not paused,
        paused_by=names.pause_label if paused else "",
        kept_by=", ".join(sorted(map(text, items(meta.get("finalizers"))))[:3])
        if meta.get("deletionTimestamp")
        else "",
        finished=FINISHED in true,
        admission=admission if reserved is not None else None,
        reserved_at=millis(reserved.get("lastTransitionTime")) if reserved is not None else 0,
        admitted=admitted is not None and reserved is not None,
        admitted_at=millis(admitted.get("lastTransitionTime")) if admitted is not None else 0,
        evicted=(why or "Unknown") if evicted is not None else "",
        evicted_at=evicted_at,
        evicted_for=_preemptor(true.get(PREEMPTED)),
        # Whoever lost a node through no fault of its own goes before all of its priority.
        queue_stamp=max(evicted_at, queued)
        if why in ("PodsReadyTimeout", "AdmissionCheck")
        else 0
        if why == "NodeFailures" and queued <= evicted_at
        else None,
        blocked_on_gates=BLOCKED_ON_GATES in true,
        run_ms=whole(status.get("accumulatedPastExecutionTimeSeconds"), 0) * 1000,
        # What is none of our jobs is not looked for among them.
        job_uid="" if said.get("unmanaged") else labels.get(names.job_uid_label, ""),
        **said,
        **(_said_rarely(spec, status, problems) if not _RARE.isdisjoint((*spec, *status)) else {}),
    )
    return value, tuple(problems)
