"""Why pods of a gang that was started are not ready, and what keeps those of one that leaves, as the pods say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from admission.controller.answers import Unready
from admission.jobs.kinds import JOBSET, JobView, items, millis, name_of, obj, objects, text
from admission.jobs.values import is_ready
from admission.names import JOB_TRACKING_FINALIZER

Json = dict[str, Any]
NOT_CREATED = "NotCreated"
NOT_STARTED = "NotStarted"

_STARTS_LATER = "StartsLater"
_OTHER_SCHEDULER = "OtherScheduler"
_KUBE_SCHEDULER = "default-scheduler"

PODS_REFUSED = "FailedCreate"
JOBS_REFUSED = "JobCreationFailed"
"""Reasons of Events: what a Job's controller says of pods that it could not make, and JobSet's of Jobs."""
_LEADS_IN = ("(combined from similar events): ", "Error creating: ")

ON_PODS = {
    NOT_CREATED: "If the message says who refuses the pods (a ResourceQuota of the namespace, its PodSecurity level, "
    "a policy or webhook), create the job again with a pod template that is allowed, or have the rule "
    "changed. Else wait: the Job controller creates the pods, and the JobSet controller the Jobs.",
    _STARTS_LATER: "Nothing: they start when other Jobs of the JobSet are ready or done (startupPolicy, dependsOn).",
    **dict.fromkeys(
        ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        "Correct the image name, or give the pods a pull secret that may read the image.",
    ),
    **dict.fromkeys(
        ("CrashLoopBackOff", "Error", "Failed", "OOMKilled"),
        "See why the container ended: `kubectl logs POD --previous`.",
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        "See the message: a Secret, ConfigMap, volume or command that the container names is missing or wrong.",
    ),
    "NodeSilent": "Wait: if the node stays silent for half a minute while others are not, the gang is stopped whole "
    "and starts on other nodes.",
    "NotReady": "The containers run, but their readiness probe fails: see `kubectl logs POD`.",
    _OTHER_SCHEDULER: "Leave `schedulerName` out of the template: Muster has chosen the nodes, and kube-scheduler "
    "binds each pod to its own. Or see whether this scheduler runs.",
    "SchedulingGated": "A scheduling gate holds the pod: whoever put it into the pod template must remove it.",
    "Unschedulable": "Tell the platform team: these nodes were reserved for the gang, and kube-scheduler refuses them.",
}

NOT_AS_PLANNED = (
    " `muster nodes` shows what became of the nodes: they may have been relabelled to another flavor or none, tainted, "
    "or taken by pods of others. Or the pods request more than their template, because a policy adds to them."
)

NODES_TO_COME = (
    "Wait: no nodes were reserved for the gang. kube-scheduler chooses them, and its message says what is missing; an "
    "autoscaler may have to create them first."
)
"""The same for pods on an elastic flavor, for their owner ..."""

NODES_TO_MAKE = (
    " The Events of the pods (`kubectl describe pod POD`) say whether an autoscaler creates nodes for them, or why "
    "not: a pool at its maximum, for example, or no stock."
)
"""... and for the platform team."""

NOT_MADE = (
    " If the API server refuses the pods, the gang is evicted within a minute, unless all pods were ready before, or "
    "no gang gets any (the alert MusterPodsStandStill). Its quota goes to others until it is tried again, after a "
    "wait that grows if nothing has changed."
)
"""... and for the platform team where pods are not made."""

_ON_THE_WAY = ("ContainerCreating", "PodInitializing", "")


def _trouble(pod: Json) -> tuple[str, str] | None:
    """(reason, message) why a pod is not ready; None once it is, or has succeeded."""
    status = obj(pod.get("status"))
    phase = text(status.get("phase"))
    if phase == "Succeeded":
        return None
    found = {text(c.get("type")): c for c in objects(status.get("conditions"))}
    if phase != "Failed" and is_ready(pod):
        return None
    if obj(pod.get("metadata")).get("deletionTimestamp"):
        return "Terminating", "It is being deleted"
    scheduled = found.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return text(scheduled.get("reason")) or "Unschedulable", text(scheduled.get("message"))
    waiting: tuple[str, str] | None = None
    for container in [
        *objects(status.get("initContainerStatuses")),
        *objects(status.get("containerStatuses")),
    ]:
        state, last = obj(container.get("state")), obj(obj(container.get("lastState")).get("terminated"))
        wait, ended = obj(state.get("waiting")), obj(state.get("terminated"))
        if wait:
            said = text(wait.get("message"))
            if last:
                said = f"{said} (ended before: {text(last.get('reason'))}, exit code {last.get('exitCode')})".strip()
            told = (text(wait.get("reason")), said)
            if waiting is None or (waiting[0] in _ON_THE_WAY and told[0] not in _ON_THE_WAY):
                waiting = told
        elif ended and ended.get("exitCode"):
            return text(
                ended.get("reason")
            ) or "Error", f"Exit code {ended['exitCode']}. {text(ended.get('message'))}".strip()
    if waiting is not None and waiting[0]:
        return waiting
    if phase == "Failed":
        return text(status.get("reason")) or "Failed", text(status.get("message"))
    if phase == "Running":
        if found.get("Ready") and not text(found["Ready"].get("reason")):
            # A kubelet gives a reason; who marks the pods of a silent node gives none.
            return "NodeSilent", "Its node was not heard of when that was last looked at"
        return "NotReady", text(found.get("Ready", {}).get("message")) or "Its containers run, and are not ready"
    if text(obj(pod.get("spec")).get("nodeName")):
        return "ContainerCreating", "Its node has not started it yet"
    scheduler = text(obj(pod.get("spec")).get("schedulerName")) or _KUBE_SCHEDULER
    if scheduler != _KUBE_SCHEDULER:
        return _OTHER_SCHEDULER, f"The scheduler {scheduler}, which its template names, has not placed it"
    return "Pending", "kube-scheduler has not placed it yet"


def _phase(pod: Json) -> str:
    return text(obj(pod.get("status")).get("phase"))


def as_by_pods(job: JobView, pods: Sequence[Json]) -> JobView:
    """A job with as many pods ready as there are, and those that are done and that its status does not count yet."""
    done = max(0, sum(_phase(pod) == "Succeeded" for pod in pods) - job.succeeded)
    ready = sum(_phase(pod) != "Succeeded" and _trouble(pod) is None for pod in pods)
    return structs.replace(job, ready=ready + done)


def unready_of(pods: Sequence[Json], job: JobView, given: int) -> tuple[Unready, ...]:
    """Pods that are not ready, by reason; those that do not exist yet too. job: as by its pods; given: pods that the
    gang may have at a time."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for pod in sorted(pods, key=name_of):
        trouble = _trouble(pod)
        if trouble is not None:
            node = text(obj(pod.get("spec")).get("nodeName"))
            groups.setdefault(trouble[0], []).append((name_of(pod), node, trouble[1]))
    out = [
        Unready(
            reason,
            len(held),
            message=next((said for *_, said in held if said), ""),
            pods=tuple(name for name, *_ in held),
            nodes=tuple(dict.fromkeys(node for _, node, _ in held if node)),
        )
        for reason, held in groups.items()
    ]
    out.sort(key=lambda one: (one.reason in _ON_THE_WAY, -one.count, one.reason))
    there = job.ready + sum(_phase(pod) != "Failed" and _trouble(pod) is not None for pod in pods)
    missing = job.pods_expected - there
    if missing > 0 and job.suspended:
        out.append(Unready(NOT_STARTED, missing, "Their job is suspended still"))
    elif missing > 0:
        out.append(Unready(NOT_CREATED, missing, f"{missing} of {job.pods_expected} pods do not exist yet"))
    if job.kind == JOBSET.kind and (later := given - job.pods_expected - job.succeeded) > 0:
        out.append(Unready(_STARTS_LATER, later, "They start when others of the JobSet are ready or done"))
    return tuple(out)


def staying(pods: Sequence[Json], now: int) -> tuple[Unready, ...]:
    """Pods of a gang that is to leave which are still there, by how far they are."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for pod in sorted(pods, key=name_of):
        meta, phase = obj(pod.get("metadata")), text(obj(pod.get("status")).get("phase"))
        if phase in ("Succeeded", "Failed"):
            continue
        ends = text(meta.get("deletionTimestamp"))
        held = ", ".join(sorted({text(one) for one in items(meta.get("finalizers"))} - {JOB_TRACKING_FINALIZER}))
        if not ends:
            told = (phase or "Pending", "Not asked to end yet")
        elif millis(ends) > now:
            told = ("Terminating", f"Its grace period ends at {ends}")
        else:
            why = f"the finalizer {held} keeps it, or its node does not answer" if held else "its node does not answer"
            told = ("Terminating", f"Its grace period ended at {ends}: {why}")
        groups.setdefault(told, []).append((name_of(pod), text(obj(pod.get("spec")).get("nodeName"))))
    return tuple(
        Unready(
            reason,
            len(some),
            message=message,
            pods=tuple(name for name, _ in some),
            nodes=tuple(dict.fromkeys(node for _, node in some if node)),
        )
        for (reason, message), some in groups.items()
    )


def said_of(event: Json) -> tuple[int, str]:
    """When (ms) an Event happened last, and what it says, without what leads in to that."""
    series = obj(event.get("series"))
    at = millis(event.get("lastTimestamp")) or millis(series.get("lastObservedTime")) or millis(event.get("eventTime"))
    at = at or millis(event.get("firstTimestamp")) or millis(obj(event.get("metadata")).get("creationTimestamp"))
    said = text(event.get("message"))
    for words in _LEADS_IN:
        said = said.removeprefix(words)
    return at, said


def told_why(one: Unready, refused: str, reason: str = NOT_CREATED) -> Unready:
    """With what was said last of pods that are not there for this reason."""
    return replace(one, message=f"{one.message}: {refused}") if one.reason == reason and refused else one
