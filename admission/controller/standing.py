"""How one job stands, and why: from its Workload, the job where it may be seen, and what is told of its line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from admission import quantity
from admission.api.reasons import REASONS, Advice, advice_for, detail_of, reason_of
from admission.controller.answers import Place, Standing, State, Unready
from admission.controller.line import Told
from admission.controller.unready import (
    NODES_TO_COME,
    NODES_TO_MAKE,
    NOT_AS_PLANNED,
    NOT_CREATED,
    NOT_MADE,
    NOT_STARTED,
    ON_PODS,
)
from admission.engine import model
from admission.engine.model import Admission, Detail, Key, Reason, TopologyAssignment, Workload
from admission.engine.order import QueueKey, key_of, queue_key
from admission.engine.project import sentence
from admission.jobs import values
from admission.jobs.kinds import (
    DELETED,
    ENDED,
    JOB,
    JobView,
    condition,
    condition_of,
    leaving,
    millis,
    name_of,
    obj,
    objects,
    owner_in,
    runs,
    text,
    texts,
    whole,
)
from admission.jobs.workload import switched_off
from admission.names import ACTIVE, ADMITTED, EVICTED, FINISHED, QUOTA_RESERVED, Names

Json = dict[str, Any]
_EVICTED_LAST = ". It was evicted last: "
NOTHING_RESERVED = "Not suspended, and nothing is reserved for it"


def current(workloads: Iterable[Json]) -> Json | None:
    """The Workload that counts, should there be several, one that is not finished: by which its job runs (Kueue makes
    another beside it where that grows), else one that holds quota, else the youngest."""

    def rank(raw: Json) -> tuple[bool, bool, bool, int, str]:
        return (
            condition(raw, FINISHED) is None,
            condition(raw, ADMITTED) is not None and condition(raw, EVICTED) is None,
            isinstance(obj(raw.get("status")).get("admission"), dict),
            millis(obj(raw.get("metadata")).get("creationTimestamp")),
            name_of(raw),
        )

    return max(workloads, key=rank, default=None)


def conditions_of(raw: Json) -> list[Json]:
    return objects(obj(raw.get("status")).get("conditions"))


def owner_of(raw: Json) -> tuple[str, str]:
    """(kind, name) of the controller of an object, as `owner_in` has it."""
    return owner_in(objects(obj(raw.get("metadata")).get("ownerReferences")))


def stop_policy_of(queue: Json | None) -> str:
    """Of a ClusterQueue or LocalQueue; "" where it is not stopped."""
    said = text(obj(obj(queue).get("spec")).get("stopPolicy"))
    return "" if said == "None" else said


def by_itself(job: JobView) -> State:
    """How a job stands that has no Workload."""
    if job.finished:
        return State.FINISHED
    if not job.queue and not job.kept_back:
        return State.UNMANAGED
    return State.HELD if job.suspended else State.RELEASED


def standing_of(raw: Json, value: Workload, job: JobView | None, names: Names, now: int) -> Standing:
    """How a job stands, from its Workload, and from the job where it may be seen. now: ms since the epoch."""
    kind, name = owner_of(raw)
    evicted = condition_of(raw, EVICTED)
    created = job.created_ms if job is not None else value.created
    pods = sum(pod_set.count for pod_set in value.pod_sets)
    given = pods if value.admission is None else value.admission.pods
    state, shown = _state_of(raw, value, job)
    reason, message, detail = text(shown.get("reason")), text(shown.get("message")), ""
    since = millis(shown.get("lastTransitionTime")) or (value.evicted_at if state is State.LEAVING else created)
    if state is State.PAUSED:
        reason, detail = Reason.DEACTIVATED.value, Detail.PAUSED.value
        message = sentence(model.Why(Reason.DEACTIVATED, Detail.PAUSED, subject=names.pause_label))
    if state is State.WAITING:
        since = max(millis(evicted.get("lastTransitionTime")), created) if value.evicted else created
        reason, detail, message = _why_it_waits(value, evicted, reason, message, now)
    return Standing(
        namespace=value.namespace,
        name=name or value.name,
        kind=kind or "Workload",
        state=state,
        queue=value.queue,
        cluster_queue=value.admission.cluster_queue if value.admission is not None else "",
        workload=value.name,
        reason=reason,
        detail=detail,
        message=message,
        since=since,
        created=created,
        priority=value.priority,
        pods=pods,
        given=given if value.admission is not None else None,
        ready=job.ready_of(given) if job is not None and value.admitted else None,
        requests=_requests(raw, value),
        where=_where(value),
    )


def _state_of(raw: Json, value: Workload, job: JobView | None) -> tuple[State, Json]:
    """(the state of a job by its Workload, the condition by which it is in it: reason, message, and since when)."""
    evicted = text(condition_of(raw, EVICTED).get("message"))
    deleted = "deletionTimestamp" in obj(raw.get("metadata"))
    if value.finished:
        return State.FINISHED, condition_of(raw, FINISHED)
    if value.admission is None and job is not None and job.finished:
        # It ran without Muster to its end, or the controller has not seen that yet.
        return State.FINISHED, {"reason": job.finished, "message": job.message}
    leaves = leaving(value, job, deleted=deleted, orphaned=not owner_of(raw)[0], evicted=evicted)
    if leaves is not None:
        return State.LEAVING, dict(zip(("reason", "message"), leaves, strict=True))
    if value.admitted:
        return (State.RUNNING if runs(value, job) else State.STARTING), condition_of(raw, ADMITTED)
    if value.admission is not None:
        return State.RESERVED, condition_of(raw, QUOTA_RESERVED)
    if job is not None and not job.suspended:
        return State.RELEASED, {"message": NOTHING_RESERVED}
    if job is not None and job.paused:
        return State.PAUSED, condition_of(raw, EVICTED)
    return State.WAITING, condition_of(raw, QUOTA_RESERVED)


def _why_it_waits(value: Workload, evicted: Json, reason: str, message: str, now: int) -> tuple[str, str, str]:
    """(reason, detail, message) of a job that waits. reason, message: as its condition QuotaReserved says it."""
    off, detail = value.off, ""
    if off is not None and off.detail is not Detail.NONE:
        return off.reason.value, off.detail.value, sentence(off)
    if off is not None:
        reason, message = Reason.DEACTIVATED.value, switched_off(evicted)
    elif value.requeue_at > now:
        reason, detail = Reason.SUSPENDED.value, Detail.BACKOFF.value
        message = f"Waits until {values.rfc3339(value.requeue_at)} before it is tried again{_left_for(evicted)}"
    elif reason_of(reason) is None:
        # Nothing was said yet, or only that it has no reservation any more.
        reason, detail = Reason.PENDING_EVALUATION.value, Detail.NEXT_CYCLE.value
        message = message or "Is looked at in the next cycle"
    return reason, detail or detail_of(reason_of(reason), message).value, message


def _left_for(evicted: Json) -> str:
    said = text(evicted.get("message"))
    return f"{_EVICTED_LAST}{said}" if said and evicted.get("status") == "True" else ""


def so_far(workload: Json, job: Json) -> str:
    """How often a gang was evicted, and how often it failed of itself: events of it are kept for an hour only."""
    spec, status = obj(job.get("spec")), obj(job.get("status"))
    out = []
    evictions: dict[str, int] = {}
    for entry in objects(obj(obj(workload.get("status")).get("schedulingStats")).get("evictions")):
        reason = text(entry.get("reason"))
        evictions[reason] = evictions.get(reason, 0) + whole(entry.get("count"), 0)
    if evictions:
        by = ", ".join(f"{reason} {count}" for reason, count in sorted(evictions.items()))
        out.append(f"evicted {_times(sum(evictions.values()))} ({by})")
    if restarts := whole(status.get("restarts"), 0):
        used = whole(status.get("restartsCountTowardsMax"), 0)
        most = whole(obj(spec.get("failurePolicy")).get("maxRestarts"), 0)
        out.append(f"begun anew {_times(restarts)} by its failurePolicy ({used} of maxRestarts {most})")
    if failed := whole(status.get("failed"), 0):
        limits = [f"{key} {spec[key]}" for key in ("backoffLimit", "backoffLimitPerIndex") if spec.get(key) is not None]
        of = f" ({', '.join(limits)})" if limits else ""
        out.append(f"{failed} pod{'' if failed == 1 else 's'} failed{of}")
    return "; ".join(out)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _requests(raw: Json, value: Workload) -> tuple[tuple[str, int], ...]:
    """What the gang asks for in all: as the controller counted it, else as its pod templates say."""
    total: dict[str, int] = {}
    counted = objects(obj(raw.get("status")).get("resourceRequests"))
    for entry in counted:
        for name, amount in texts(entry.get("resources")).items():
            try:
                quantity.add(total, {name: quantity.parse(name, amount)})
            except quantity.QuantityError:
                continue
    return tuple(sorted(total.items())) if counted else value.requests


def _where(value: Workload) -> tuple[Place, ...]:
    return () if value.admission is None else places(value.admission)


def places(admission: Admission) -> tuple[Place, ...]:
    """Where the pods of an admission go."""
    return tuple(
        Place(
            pod_set.name,
            pod_set.count,
            tuple(sorted({flavor for _, flavor in pod_set.flavors})),
            _nodes_of(pod_set.topology),
        )
        for pod_set in admission.pod_sets
    )


def _nodes_of(assignment: TopologyAssignment | None) -> tuple[tuple[str, int], ...]:
    """(node or lowest domain, pods), in rank order."""
    if assignment is None:
        return ()
    return tuple(("/".join(domain.values[-1:]), domain.count) for domain in assignment.domains)


def as_stopped(standing: Standing, local: Json | None, cluster: Json | None) -> Standing:
    """A queue that is stopped, being deleted or not active is why it waits, whatever the condition said before; not
    where something nearer holds it back."""
    if standing.reason == Reason.DEACTIVATED.value or standing.detail == Detail.BACKOFF.value:
        return standing
    for kind, raw in (("LocalQueue", local), ("ClusterQueue", cluster)):
        if policy := stop_policy_of(raw):
            message = f"{kind} {name_of(obj(raw))} is stopped ({policy}); it waits until the stop policy is lifted"
            return replace(standing, reason=Reason.ON_HOLD.value, detail="", message=message)
    if cluster is None or standing.reason == Reason.GATED.value:
        return standing
    detail, active = Detail.CLUSTER_QUEUE_INACTIVE, condition_of(cluster, ACTIVE)
    if obj(cluster.get("metadata")).get("deletionTimestamp"):
        held = whole(obj(cluster.get("status")).get("reservingWorkloads"), 0)
        until = f", and goes when no gang holds quota of it any more (now: {held})" if held else ""
        wrong = f"it is being deleted{until}"
    elif active.get("status") == "False":
        wrong = text(active.get("message"))
        if active.get("reason") == Detail.COHORT_CYCLE.value:
            detail = Detail.COHORT_CYCLE
    else:
        return standing
    why = model.Why(Reason.MISCONFIGURED, detail, subject=f"{name_of(cluster)}: {wrong}")
    return replace(standing, reason=why.reason.value, detail=why.detail.value, message=sentence(why))


def as_told(standing: Standing, told: Told | None) -> Standing:
    """With its place; and with the reason of now, unless the objects say that somebody has switched it off, and who."""
    if told is None or standing.state is not State.WAITING:
        return standing
    standing = replace(standing, position=told.position, waiting=told.waiting)
    if not told.live or not told.reason or standing.reason == Reason.DEACTIVATED.value:
        return standing
    _, last, left_for = standing.message.partition(_EVICTED_LAST)
    again = last + left_for if told.detail == Detail.BACKOFF.value else ""
    return replace(standing, reason=told.reason, detail=told.detail, message=told.message + again)


def by_objects(gangs: Iterable[Workload]) -> dict[Key, Told]:
    """Those that wait, in their LocalQueues, by priority and age."""
    lines: dict[Key, list[QueueKey]] = {}
    for gang in gangs:
        if gang.admission is None and gang.active and not gang.finished:
            lines.setdefault((gang.namespace, gang.queue), []).append(queue_key(gang, sticky=False))
    return {key_of(place): Told(i, len(line)) for line in lines.values() for i, place in enumerate(sorted(line), 1)}


def advice_on(
    standing: Standing,
    job: JobView,
    names: Names,
    unready: Sequence[Unready] = (),
    *,
    pods_seen: bool = True,
    off: bool = False,
) -> Advice | None:
    """What it means that a job stands so, and what can be done; None where that goes without saying. `unready`: of a
    gang that was started; `pods_seen`: the asker may see all of those; `off`: its Workload is not active."""
    reason, where = reason_of(standing.reason), f"{job.kind.lower()} {job.name} -n {job.namespace}"
    if standing.state is State.RESERVED:
        return Advice(
            "Quota and nodes are reserved; the gang starts when all admission checks are Ready.",
            "Wait, and see the messages of the checks.",
            "See the controllers that answer the checks.",
        )
    if standing.state is State.STARTING and unready and unready[0].reason == NOT_STARTED:
        return Advice(
            "The gang was admitted, and the controller has not started it yet. It should within a second or so.",
            "Wait. If this lasts, tell the platform team what is said beside the pods.",
            "If this lasts, see whether a controller leads, and look for `write failed` in its log. `helm upgrade` of "
            "the chart gives back a right that was taken from its ClusterRole.",
        )
    if standing.state is State.STARTING and unready:
        owner = ON_PODS.get(unready[0].reason, "See the Events of the pods: `kubectl describe pod NAME`.")
        more = NOT_AS_PLANNED if unready[0].reason == "Unschedulable" else ""
        if unready[0].reason == NOT_CREATED:
            more = NOT_MADE
        elif more and not any(place.nodes for place in standing.where):
            owner, more = NODES_TO_COME, NODES_TO_MAKE
        return Advice(
            "The gang was admitted and started. It counts as running when all its pods are ready.",
            owner,
            f"If they do not get ready in time, the gang is evicted and tried again later.{more}",
        )
    again = "Nothing: the job is requeued by itself."
    if standing.reason in (DELETED, *ENDED):
        again = "Nothing."
    elif job.paused:
        again = f"Nothing: the job is requeued when its label {names.pause_label} is removed."
    elif job.kind == JOB.kind and not job.pods_at_once:
        again = "Nothing: the job is queued again when its parallelism is more than 0."
    elif off:
        again = "The job is not requeued by itself: the message says why."
    if standing.state is State.LEAVING and not unready and pods_seen:
        return Advice(
            "The pods are gone. Quota and nodes are released when the controller of the job's kind says that it is "
            "suspended.",
            again,
            "If this lasts, see the Events of the job, and whether that controller runs. The Job controller may "
            "ignore a Job for five minutes, while it expects to see pods that it has missed; Muster reminds it after "
            "six. For a JobSet, Muster stops waiting after six minutes.",
        )
    if standing.state is State.LEAVING:
        return Advice(
            "Quota and nodes are released when the last pod is gone.",
            again,
            "If this lasts, look at the nodes of these pods. On a node that stays lost they stop counting after "
            "nodeLossGracePeriod (two minutes, unless configured otherwise).",
        )
    if standing.state is State.RELEASED:
        return Advice(
            "The job runs without Muster: it was released when Muster was uninstalled, or got past the hold. A "
            "controller that leads stops and queues it within seconds.",
            "Nothing.",
            "If Muster is installed, see whether a controller leads.",
        )
    if standing.state is State.PAUSED:
        return Advice(
            "The owner paused the job. While it has the label, it is neither queued nor started, whatever else "
            "changes.",
            f"Remove the label: `kubectl label {where} {names.pause_label}-`.",
        )
    if standing.state is not State.WAITING:
        return None
    if reason is Reason.DEACTIVATED and standing.detail != Detail.WORKLOAD_DELETED.value:
        return Advice(
            "The Workload is not active (spec.active is false): the job ran for its maximum time, was rejected by a "
            "check, was tried too often, or somebody made it inactive. The history says which.",
            "Fix what the history names and create the job again, or ask the platform team to requeue it.",
            f"Requeue it: `muster requeue {job.kind.lower()}/{job.name} -n {job.namespace}`.",
        )
    if reason is Reason.ON_HOLD:
        kind, _, queue = standing.message.partition(" is stopped")[0].rpartition(" ")
        option = f" -n {job.namespace}" if kind.endswith("LocalQueue") else ""
        name = f"{kind.split()[-1].lower()}/{queue}" if kind else "QUEUE"
        return replace(REASONS[Reason.ON_HOLD], platform=f"Resume the queue: `muster resume {name}{option}`.")
    return advice_for(reason, Detail(standing.detail))
