"""Questions that people ask of a cluster, answered from the API alone: why a job waits, who has what, who sits where.

Nothing here is the controller's: it runs with the rights of whoever asks, reads what they may read, and puts into
`hidden` what they may not. What is read is turned into the engine's own values, so that a number shown here is worked
out by the same code that decides: quota by the cohort tree, room by the book of nodes. Usage is what the queues' status
says; it may be some seconds old. Places, reasons and what is lacking are the controller's own of now, as the visibility
API tells them, where it is served and the asker may ask it; else they are counted and read from the objects.

Answers are frozen values with `as_json`; how they look on a terminal is `tell`'s concern.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from admission import quantity
from admission.api.reasons import REASONS, Advice, advice_for, detail_of, reason_of
from admission.controller.line import Lack, Lines, Told
from admission.engine import model
from admission.engine.model import (
    Admission,
    Detail,
    Flavor,
    FlavorResource,
    Key,
    Reason,
    TopologyAssignment,
    Workload,
)
from admission.engine.project import sentence
from admission.engine.quota import QuotaNode, Tree
from admission.jobs import values
from admission.jobs.hold import not_queued
from admission.jobs.kinds import JOB, JOBSET, JobKind, JobView, items, millis, obj, objects, text, texts, view, whole
from admission.jobs.kinds import KINDS as JOB_KINDS
from admission.kube.client import ApiError, Client, Forbidden, Kind, NotFound
from admission.names import (
    ACTIVE,
    ADMITTED,
    EVICTED,
    FINISHED,
    INVALID_JOB,
    JOB_TRACKING_FINALIZER,
    JOBS_HELD,
    JOBSET_GROUP,
    JOBSET_NAME_LABEL,
    KUEUE_GROUP,
    MUSTER_GROUP,
    QUOTA_RESERVED,
    REFUSED,
    STEP_FAILED,
    Names,
)

if TYPE_CHECKING:
    from admission.api.lint import Document
    from admission.engine.capacity import Capacity

Json = dict[str, Any]
_decode = msgspec.json.Decoder(type=dict[str, Any]).decode

NODES = Kind("", "v1", "nodes", "Node", False)
PODS = Kind("", "v1", "pods", "Pod")
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", False)
EVENTS = Kind("", "v1", "events", "Event")
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
STALE_MS = 30_000
"""A lease that was not renewed for so long beyond its duration has no holder: clocks may differ by less."""


class NotThere(Exception):  # noqa: N818  # an answer, not a fault
    """What was asked about does not exist; the message says what was looked for."""


class NotSeen(NotThere):
    """The asker may not see whether it exists."""


class State(Enum):
    """How a job stands, in one word."""

    UNMANAGED = "unmanaged"
    """Names no queue: Muster does not govern it."""
    HELD = "held"
    """Held, and not in the queue yet: it has no Workload."""
    WAITING = "waiting"
    PAUSED = "paused"
    """Its owner keeps it out of the queue, by the label."""
    RESERVED = "reserved"
    """Has its quota, and waits for admission checks."""
    STARTING = "starting"
    """Admitted, and not all pods are ready."""
    RUNNING = "running"
    LEAVING = "leaving"
    """Evicted: its pods are terminating."""
    RELEASED = "released"
    """Not suspended, and nothing is reserved for it: it runs without Muster."""
    FINISHED = "finished"


_NOTHING_RESERVED = "Not suspended, and nothing is reserved for it"


def plain(value: Any) -> Any:
    """A frozen answer as JSON: camelCase, enums by value, nothing that is empty taken out."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(f.name): plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


# ---------------------------------------------------------------- answers


@dataclass(frozen=True)
class Room:
    """Quota of one (flavor, resource) of a queue, as it is now. Amounts in the units of `quantity`."""

    flavor: str
    resource: str
    nominal: int = 0
    used: int = 0
    borrowed: int = 0
    lent: int = 0
    """Of its own quota, what others hold."""
    free: int = 0
    """What it could still take now, borrowing included."""
    most: int = 0
    """What it could hold with nobody else there."""
    asked: int = 0
    """By the job that is asked about."""
    limited_by: str = ""
    """The queue or cohort at which `asked` ends; "" when it fits."""


@dataclass(frozen=True)
class Happening:
    at: int
    """ms since the epoch."""
    reason: str
    message: str
    warning: bool = False
    count: int = 1


@dataclass(frozen=True)
class Place:
    """Where a pod set is, or will be."""

    pod_set: str
    count: int
    flavors: tuple[str, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    """(node, pods)."""


@dataclass(frozen=True)
class Unready:
    """Pods of a started gang that are not ready for the same reason; of one that leaves, that are still there."""

    reason: str
    count: int
    message: str = ""
    pods: tuple[str, ...] = ()
    """Their names."""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standing:
    """One job: how it stands and why."""

    namespace: str
    name: str
    kind: str
    state: State
    queue: str = ""
    cluster_queue: str = ""
    workload: str = ""
    reason: str = ""
    detail: str = ""
    message: str = ""
    since: int = 0
    """When it came into this state; ms since the epoch."""
    created: int = 0
    priority: int = 0
    pods: int = 0
    ready: int | None = None
    position: int | None = None
    """From 1, among the waiting jobs of its LocalQueue: as the controller goes through them, else (`live` of the answer
    is false) by priority and age."""
    waiting: int | None = None
    """How many wait in its LocalQueue."""
    requests: tuple[tuple[str, int], ...] = ()
    """(resource, amount) of all pods."""
    where: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Why:
    """The full answer about one job."""

    standing: Standing
    means: str = ""
    owner: str = ""
    """What its owner can do."""
    platform: str = ""
    """What the platform team can do."""
    room: tuple[Room, ...] = ()
    """Quota of its queue, for what it asks."""
    lacks: tuple[Lack, ...] = ()
    """The numbers behind the reason, as the controller has them now."""
    checks: tuple[tuple[str, str, str], ...] = ()
    """(admission check, state, message)."""
    unready: tuple[Unready, ...] = ()
    """Of a gang that was started: pods that are not ready, the most frequent reason first."""
    history: tuple[Happening, ...] = ()
    hidden: tuple[str, ...] = ()
    """What the asker may not see."""
    leaderless: str = ""
    """What is wrong with who leads; "" when a controller does, or when that may not be seen."""
    live: bool = False
    """Place, reason and numbers are those of the controller that decides, of now."""
    silent: str = ""
    """The visibility API is served and does not answer, in a sentence."""

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class QueueRow:
    """A Cohort, ClusterQueue or LocalQueue, at its depth in the tree."""

    kind: str
    name: str
    namespace: str = ""
    depth: int = 0
    parent: str = ""
    room: tuple[Room, ...] = ()
    pending: int = 0
    admitted: int = 0
    share: int | None = None
    """Weighted share in thousandths; None where there is none."""
    active: bool = True
    why_not: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class Queues:
    rows: tuple[QueueRow, ...]
    hidden: tuple[str, ...] = ()
    leaderless: str = ""
    unheld: str = ""
    """What of the hold is gone, as the ClusterQueues say it; "" when jobs are held, or when that may not be seen."""

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class Jobs:
    rows: tuple[Standing, ...]
    hidden: tuple[str, ...] = ()
    leaderless: str = ""
    namespace: str = ""
    """Whose jobs these are; "" for those of all."""
    live: bool = False
    """Places and reasons are those of the controller that decides, of now."""
    silent: str = ""
    """The visibility API is served and does not answer, in a sentence."""

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class NodeRow:
    name: str
    ready: bool
    cordoned: bool
    flavors: tuple[str, ...]
    capacity: tuple[tuple[str, int], ...]
    free: tuple[tuple[str, int], ...]
    """The same resources as `capacity`; below 0 where a node is over-committed."""
    gangs: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    """(job or Workload, what it holds here); "others" for pods that are not Muster's."""
    taints: tuple[str, ...] = ()
    """Keys of the taints that keep gangs off, for none of its flavors speaks of them."""
    lost: tuple[tuple[str, int], ...] = ()
    """Devices that its kubelet counts and does not hand out, as it does with broken ones."""


@dataclass(frozen=True)
class Largest:
    """The largest gang of equal pods that fits on a flavor's nodes now, quota aside."""

    flavor: str
    per_pod: tuple[tuple[str, int], ...]
    pods: int


@dataclass(frozen=True)
class Nodes:
    rows: tuple[NodeRow, ...]
    largest: tuple[Largest, ...] = ()
    resources: tuple[str, ...] = ()
    """What is counted: devices where there are any, else cpu and memory."""
    hidden: tuple[str, ...] = ()

    def as_json(self) -> Json:
        return dict(plain(self))


# ---------------------------------------------------------------- asking


async def names_of(client: Client, group: str | None = None) -> Names:
    """The names in use: the group given, else the one that the cluster serves, Muster's own first.

    Raises NotThere when it serves neither.
    """
    if group:
        return Names(group)
    for known in (MUSTER_GROUP, KUEUE_GROUP):
        names = Names(known)
        try:
            await client.get(f"/apis/{names.group}/{names.version}")
        except NotFound:
            continue
        return names
    raise NotThere("this cluster serves no API of Muster: are its CRDs installed?")


class Ask:
    """One person's look at one cluster. `now` in ms since the epoch."""

    def __init__(self, client: Client, names: Names, now: int, *, home: str = "muster-system") -> None:
        """`home`: the namespace of the controller's Lease."""
        self.client = client
        self.names = names
        self.now = now
        self.home = home
        self._hidden: dict[str, None] = {}

    @property
    def hidden(self) -> tuple[str, ...]:
        """What was asked for and may not be seen, sorted."""
        return tuple(sorted(self._hidden))

    def kind(self, plural: str, kind: str, *, namespaced: bool) -> Kind:
        return Kind(self.names.group, self.names.version, plural, kind, namespaced)

    async def read_one(self, kind: Kind, name: str, namespace: str | None = None) -> Json | None:
        """The object; None when it is not there, and when it may not be seen (then it is noted)."""
        try:
            return await self.client.get(kind.path(namespace, name))
        except NotFound:
            return None
        except Forbidden:
            where = f"{namespace}/{name}" if namespace else name
            self._hidden[f"{kind.kind} {where}"] = None
            return None

    async def read(self, kind: Kind, namespace: str | None = None, **selectors: str) -> list[Json] | None:
        """All of a kind, in a namespace or everywhere; None when they may not be seen or are not served."""
        found: list[Json] = []
        try:
            async for page in self.client.list_pages(kind.path(namespace), **selectors):  # type: ignore[arg-type]
                found.extend(typed(_decode(item), kind) for item in page.items)
        except NotFound:
            return None
        except Forbidden:
            where = f" in namespace {namespace}" if namespace else " of all namespaces" if kind.namespaced else ""
            self._hidden[f"{kind.plural}{where}"] = None
            return None
        return found

    async def leaderless(self) -> str:
        """What is wrong with who leads; "" when a controller does, or when the Lease may not be seen."""
        where = f"{self.home}/{self.names.lease_name}"
        then = "nothing is admitted or started until one does, and what is shown may be old"
        try:
            lease = await self.client.get(LEASES.path(self.home, self.names.lease_name))
        except NotFound:
            return f"No controller leads: there is no Lease {where} (--controller-namespace, if elsewhere); {then}."
        except Forbidden:
            return ""
        wrong = self.led_by_nobody(lease)
        return f"No controller leads: Lease {where} {wrong}; {then}." if wrong else ""

    def led_by_nobody(self, lease: Json) -> str:
        """What says so; "" when the holder of a Lease is there."""
        spec = obj(lease.get("spec"))
        renewed = millis(spec.get("renewTime"))
        if not text(spec.get("holderIdentity")):
            return "was given up"
        late = self.now - renewed - whole(spec.get("leaseDurationSeconds"), 15) * 1000
        return f"was last renewed {values.rfc3339(renewed)}" if renewed and late > STALE_MS else ""

    async def holds(self, home: str) -> tuple[str, int] | None:
        """(who holds the Lease of this namespace, for how many seconds it counts if nobody renews it); None where that
        may not be seen."""
        try:
            spec = obj((await self.client.get(LEASES.path(home, self.names.lease_name))).get("spec"))
        except (NotFound, Forbidden):
            return None
        ends = millis(spec.get("renewTime")) + whole(spec.get("leaseDurationSeconds"), 15) * 1000 + STALE_MS
        return text(spec.get("holderIdentity")), max(1, (ends - self.now) // 1000 + 1)

    async def served(self, kind: Kind) -> bool:
        """Does this cluster serve the group? Who has no right to a kind is refused it even where it does not exist."""
        try:
            await self.client.get(f"/apis/{kind.group}/{kind.version}")
        except NotFound:
            return False
        except Forbidden:
            return True
        return True

    async def leases(self) -> dict[str, bool] | None:
        """By namespace of a controller's Lease: does one lead? None where they may not be listed in all."""
        try:
            pages = self.client.list_pages(LEASES.path(), field_selector=f"metadata.name={self.names.lease_name}")
            found = [_decode(item) async for page in pages for item in page.items]
        except Forbidden:
            return None
        return {_namespace(lease): not self.led_by_nobody(lease) for lease in found}

    async def called(self, kind: str, namespace: str) -> list[tuple[str, str]]:
        """(name, a word about it) of all "jobs" (JobSets among them), "localqueues" of a namespace, or of all
        "clusterqueues", "cohorts" or "namespaces": for completion by a shell."""
        kinds = {
            "jobs": [resource_of(one) for one in JOB_KINDS],
            "localqueues": [self.local_queues],
            "clusterqueues": [self.kind("clusterqueues", "ClusterQueue", namespaced=False)],
            "cohorts": [self.kind("cohorts", "Cohort", namespaced=False)],
            "namespaces": [NAMESPACES],
        }[kind]
        lists = await asyncio.gather(*(self.read(one, namespace if one.namespaced else None) for one in kinds))
        return [
            (_name(raw), one.kind if kind == "jobs" else "")
            for one, found in zip(kinds, lists, strict=True)
            for raw in found or ()
            if kind != "jobs" or self.names.queue_label in texts(obj(raw.get("metadata")).get("labels"))
        ]

    # ------------------------------------------------------------ one job

    async def why(self, wanted: str, namespace: str) -> Why:
        """Why a job stands where it stands. `wanted`: name, or kind/name. Raises NotThere."""
        kind, raw = await self.job(wanted, namespace)
        job = view(kind, raw, self.names)
        workloads, events = await asyncio.gather(self.workloads_of(job), self._events(namespace, {job.uid}, {job.name}))
        workload = newest(workloads)
        if workload is None:
            return await self._without_workload(job, events)
        uid = text(obj(workload.get("metadata")).get("uid"))
        name = text(obj(workload.get("metadata")).get("name"))
        value, _problems = values.workload(workload, self.names)
        standing = _standing(workload, value, job, self.names, self.now)
        queue_path = self.read_one(self.local_queues, value.queue, namespace) if value.queue else _nothing()
        lines = Lines(self.client, self.names)
        told, of_workload, queue, leaderless = await asyncio.gather(
            self._in_line(standing, lines),
            self._events(namespace, {uid}, {name}),
            queue_path,
            self.leaderless(),
        )
        standing = _as_told(standing, told)
        live = told is not None and told.live
        target = (
            value.admission.cluster_queue
            if value.admission is not None
            else text(obj(obj(queue).get("spec")).get("clusterQueue"))
        )
        standing = replace(standing, cluster_queue=target)
        room: tuple[Room, ...] = ()
        if standing.state is State.WAITING:
            forest = await self._forest() if target else None
            room = _room_for(forest, target, standing)
            if not live:
                standing = await self._outlived(standing)
                standing = _stopped(standing, queue, None if forest is None else forest[1].get(target))
        unready: tuple[Unready, ...] = ()
        if value.admitted and not value.finished:
            wanted = f"{self.names.workload_uid_label}={uid}"
            pods = await self.read(PODS, namespace, label_selector=wanted)
            if pods is not None and standing.state is State.LEAVING:
                unready = _staying(pods, self.now)
            elif pods is not None:
                job = _as_by_pods(job, pods)
                unready = _unready(pods, job, standing.pods)
                if any(one.reason == _NOT_STARTED for one in unready):
                    said = _last_said(events, REFUSED, STEP_FAILED)
                    unready = tuple(_told_why(one, said, _NOT_STARTED) for one in unready)
                elif any(one.reason == _NOT_CREATED for one in unready):
                    of_jobs = _last_said(await self._of_children(kind, job) or events, "FailedCreate")
                    unready = tuple(_told_why(one, of_jobs or _last_said(events, _JOBS_REFUSED)) for one in unready)
                standing = replace(standing, ready=job.ready_of(standing.pods))
        advice = self._advice(standing, job, unready, off=not value.active)
        if advice is not None and standing.state is State.RESERVED:
            advice = replace(advice, platform=advice.platform + await self._who_answers(value.checks))
        return Why(
            standing=standing,
            means=advice.means if advice is not None else "",
            owner=advice.owner if advice is not None else "",
            platform=advice.platform if advice is not None else "",
            room=room,
            lacks=told.numbers if told is not None else (),
            checks=tuple((check.name, check.state.value, check.message) for check in value.checks),
            unready=unready if standing.state in (State.STARTING, State.RUNNING, State.LEAVING) else (),
            history=_history(raw, workload, [*events, *of_workload]),
            hidden=self.hidden,
            leaderless=leaderless,
            live=live,
            silent=lines.silent,
        )

    async def _outlived(self, standing: Standing) -> Standing:
        """What is stored may say that room is kept for somebody who has ended since."""
        found = _KEPT_FOR.match(standing.message) if standing.detail == Detail.CLAIMED.value else None
        if found is None:
            return standing
        kind, namespace, name = found.groups()
        hidden = dict(self._hidden)
        try:
            of_kind, raw = await self.job(f"{kind}/{name}", namespace)
            ended = view(of_kind, raw, self.names).finished is not None
        except NotSeen:
            ended = False
        except NotThere:
            ended = True
        finally:
            self._hidden = hidden  # it was not asked for
        if not ended:
            return standing
        message = f"{kind} {namespace}/{name}, for which the room it needs was kept, has ended; it is looked at again"
        reason, detail = Reason.PENDING_EVALUATION.value, Detail.NEXT_CYCLE.value
        return replace(standing, reason=reason, detail=detail, message=message)

    async def _who_answers(self, checks: Iterable[model.Check]) -> str:
        """Whose controllers answer those checks that are not ready; "" where that may not be seen."""
        open_ = {check.name for check in checks if check.state is not model.CheckState.READY}
        hidden = dict(self._hidden)
        found = await self.read(self.kind("admissionchecks", "AdmissionCheck", namespaced=False))
        self._hidden = hidden  # it was not asked for
        whose = [
            f"{_name(raw)} is for {text(obj(raw.get('spec')).get('controllerName'))} to answer"
            for raw in sorted(found or (), key=_name)
            if _name(raw) in open_
        ]
        return f" {'; '.join(whose)}." if whose else ""

    async def _of_children(self, kind: JobKind, job: JobView) -> list[Json]:
        """Events about the Jobs of a JobSet; nothing of other kinds."""
        if kind is not JOBSET:
            return []
        made = await self.read(resource_of(JOB), job.namespace, label_selector=f"{JOBSET_NAME_LABEL}={job.name}")
        uids = {text(obj(raw.get("metadata")).get("uid")) for raw in made or ()}
        found = await self.read(EVENTS, job.namespace) if uids else ()
        return [event for event in found or () if text(obj(event.get("involvedObject")).get("uid")) in uids]

    async def _in_line(self, standing: Standing, lines: Lines) -> Told | None:
        """Where a job that waits stands in its LocalQueue."""
        if standing.state is not State.WAITING:
            return None
        key, queue = (standing.namespace, standing.workload), standing.queue
        if queue and await lines.served():
            told = await lines.of_local_queue(key[0], queue, until=key)
            if told is not None and key in told:
                return told[key]
        peers = await self.read(self.workloads, key[0])
        return _by_objects(values.workload(peer, self.names)[0] for peer in peers or () if _queue(peer) == queue).get(
            key
        )

    def _advice(
        self, standing: Standing, job: JobView, unready: Sequence[Unready], *, off: bool = False
    ) -> Advice | None:
        """off: its Workload is not active."""
        reason, where = reason_of(standing.reason), f"{job.kind.lower()} {job.name} -n {job.namespace}"
        if standing.state is State.RESERVED:
            return Advice(
                "Its quota is reserved; it starts when all admission checks are Ready.",
                "Wait, and see the messages of the checks.",
                "See the controllers that answer the checks.",
            )
        if standing.state is State.STARTING and unready and unready[0].reason == _NOT_STARTED:
            return Advice(
                "It was admitted, and the controller has not started it yet, which it does within a second or so.",
                "Wait. If it lasts, tell the platform team what stands beside.",
                "If it lasts: see that a controller leads, and `write failed` in its log. A right that its ClusterRole "
                "lacks comes back when the chart is installed again (helm upgrade).",
            )
        if standing.state is State.STARTING and unready:
            return Advice(
                "It was admitted and started; it counts as running when all its pods are ready.",
                _ON_PODS.get(unready[0].reason, "See the pods: `kubectl describe pod NAME` tells their events."),
                "If they do not get ready in time, the gang is evicted and tried again later."
                + (_NOT_AS_PLANNED if unready[0].reason == "Unschedulable" else ""),
            )
        again = "Nothing: it is queued again by itself."
        if job.paused:
            again = f"Nothing; it is queued again when its label {self.names.pause_label} is taken off."
        elif off:
            again = "It was given up, and is not queued again by itself: the sentence says why."
        if standing.state is State.LEAVING and not unready and not self._unseen("pods"):
            return Advice(
                "Its pods are gone. Its quota and its nodes go to others when the controller of its kind says that it "
                "is suspended.",
                again,
                "If it lasts: see the Events of the job, and whether that controller runs. A JobSet is waited for no "
                "longer than six minutes.",
            )
        if standing.state is State.LEAVING:
            return Advice(
                "Its quota and its nodes go to others when the last of its pods is gone.",
                again,
                "If it lasts: look at the nodes of these pods. On a node that stays lost they count no more after "
                "nodeLossGracePeriod (two minutes, unless configured otherwise).",
            )
        if standing.state is State.RELEASED:
            return Advice(
                "It runs without Muster: it was released when Muster was uninstalled, or got past the hold. "
                "A controller that leads stops it and queues it within seconds.",
                "Nothing.",
                "If Muster is installed: see that a controller leads.",
            )
        if standing.state is State.PAUSED:
            return Advice(
                "Its owner paused it: while the label stands it is neither queued nor started, whatever else changes.",
                f"Take the label off: `kubectl label {where} {self.names.pause_label}-`.",
            )
        if standing.state is not State.WAITING:
            return None
        if reason is Reason.DEACTIVATED and standing.detail != Detail.WORKLOAD_DELETED.value:
            return Advice(
                "Its Workload is switched off (spec.active is false): it ran for its maximum time, a check refused it, "
                "it was tried too often, or somebody switched it off. The history says which.",
                "Mend what the history tells of and create the job anew, or ask the platform team to queue it again.",
                f"Queue it again: `muster requeue {job.kind.lower()}/{job.name} -n {job.namespace}`.",
            )
        if reason is Reason.ON_HOLD:
            kind, _, queue = standing.message.partition(" is stopped")[0].rpartition(" ")
            option = f" -n {job.namespace}" if kind.endswith("LocalQueue") else ""
            name = f"{kind.split()[-1].lower()}/{queue}" if kind else "QUEUE"
            return replace(REASONS[Reason.ON_HOLD], platform=f"Let the queue go on: `muster resume {name}{option}`.")
        return advice_for(reason, Detail(standing.detail))

    def _unseen(self, plural: str) -> bool:
        return any(hidden.startswith(plural) for hidden in self._hidden)

    async def _without_workload(self, job: JobView, events: Sequence[Json]) -> Why:
        refused = _refused(events)
        if (state := _by_itself(job)) is State.UNMANAGED and job.suspended and refused:
            state = State.HELD  # without a label, where all jobs are
        standing = Standing(
            namespace=job.namespace,
            name=job.name,
            kind=job.kind,
            state=state,
            queue=job.queue,
            message=_NOTHING_RESERVED if state is State.RELEASED else job.message,
            since=job.created_ms,
            created=job.created_ms,
            pods=sum(count for _, count in job.counts),
        )
        means = owner = platform = leaderless = ""
        if standing.state is State.HELD:
            leaderless = await self.leaderless()
        if standing.state is State.UNMANAGED:
            means = f"It has no label {self.names.queue_label}, so Muster leaves it alone."
            owner = f"To queue it, create it with the label {self.names.queue_label}: NAME-OF-A-LOCALQUEUE."
        elif standing.state is State.HELD:
            unseen = self._unseen("workloads")
            means = (
                "It is held; you may not see whether it has a Workload."
                if unseen
                else "It is held and has no Workload yet. The controller makes one within a second or so."
            )
            if leaderless and not unseen:
                means = "It is held and has no Workload yet: the controller, which makes one, does not lead."
            wrong = "; ".join(job.problems) or refused
            if not job.queue and job.kept_back:
                wrong = wrong or not_queued(job, self.names)
            failed = _last_said(events, REFUSED, STEP_FAILED)
            queue = await self.read_one(self.local_queues, job.queue, job.namespace) if job.queue and not wrong else {}
            if wrong:
                standing = replace(
                    standing, reason=Reason.MISCONFIGURED.value, detail=Detail.INVALID.value, message=wrong
                )
                means = "It is held, and cannot be queued as it is written."
            elif queue is None and not any("LocalQueue" in hidden for hidden in self._hidden):
                standing = replace(
                    standing,
                    reason=Reason.MISCONFIGURED.value,
                    detail=Detail.QUEUE_MISSING.value,
                    message=f"LocalQueue {job.queue} does not exist in this namespace; create it, or correct the label",
                )
            elif failed:
                standing = replace(standing, message=failed)
                means = "It is held, and the controller failed to make its Workload."
            advice = advice_for(reason_of(standing.reason), Detail(standing.detail))
            owner = advice.owner if advice else ""
            platform = (
                advice.platform
                if advice
                else "If it lasts: see whether the controller runs and leads, and what its log says of this job."
            )
        elif (advice := self._advice(standing, job, ())) is not None:
            means, owner, platform = advice.means, advice.owner, advice.platform
        raw = {"metadata": {"creationTimestamp": values.rfc3339(job.created_ms)}}
        return Why(
            standing,
            means,
            owner,
            platform,
            history=_history(raw, {}, events),
            hidden=self.hidden,
            leaderless=leaderless,
        )

    async def job(self, wanted: str, namespace: str) -> tuple[JobKind, Json]:
        """The job that is called so: NAME, or KIND/NAME. Raises NotThere."""
        said, _, name = wanted.rpartition("/")
        if not name:
            raise NotThere(f"{wanted!r} names no job: write NAME, job/NAME or jobset/NAME")
        kinds = [kind for kind in JOB_KINDS if not said or said.lower().split(".")[0] in _called(kind)]
        if not kinds:
            known = ", ".join(kind.name.lower() for kind in JOB_KINDS)
            raise NotThere(
                f"{said!r} is no kind of job that Muster governs: use one of {known}; a namespace is named by -n {said}"
            )
        for kind in kinds:
            raw = await self.read_one(resource_of(kind), name, namespace)
            if raw is not None:
                return kind, typed(raw, resource_of(kind))
        if self._hidden:
            raise NotSeen(f"you may not see {', '.join(self._hidden)}")
        tried = " or ".join(kind.name for kind in kinds)
        raise NotThere(f"there is no {tried} {name!r} in namespace {namespace!r}")

    @property
    def workloads(self) -> Kind:
        return self.kind("workloads", "Workload", namespaced=True)

    @property
    def local_queues(self) -> Kind:
        return self.kind("localqueues", "LocalQueue", namespaced=True)

    async def workloads_of(self, job: JobView) -> list[Json]:
        found = await self.read(self.workloads, job.namespace, label_selector=f"{self.names.job_uid_label}={job.uid}")
        return found or []

    async def _events(self, namespace: str, uids: set[str], names: set[str]) -> list[Json]:
        """Events about these objects, by uid; not every server can select them, so names and uids are compared here."""
        found: list[Json] = []
        for name in sorted(names):
            try:
                part = await self.read(EVENTS, namespace, field_selector=f"involvedObject.name={name}")
            except ApiError as error:
                if error.status != 400:
                    raise
                part = await self.read(EVENTS, namespace)
            found.extend(part or ())
        return [event for event in found if text(obj(event.get("involvedObject")).get("uid")) in uids]

    # ------------------------------------------------------------ quota

    async def _forest(self) -> tuple[Tree, dict[str, Json], dict[str, Json]] | None:
        """The cohort tree with what its queues hold now; None when ClusterQueues may not be seen."""
        queues, cohorts = await asyncio.gather(
            self.read(self.kind("clusterqueues", "ClusterQueue", namespaced=False)),
            self.read(self.kind("cohorts", "Cohort", namespaced=False)),
        )
        if queues is None:
            return None
        tree = Tree.build(
            (values.cluster_queue(raw, self.names)[0] for raw in queues),
            (values.cohort(raw, self.names)[0] for raw in cohorts or ()),
        )
        for raw in queues:
            node = tree.queue(_name(raw))
            if node is not None:
                tree.add(node, _held(raw))
        return tree, {_name(raw): raw for raw in queues}, {_name(raw): raw for raw in cohorts or ()}

    async def queues(self, namespace: str | None) -> Queues:
        """The cohort tree with its queues, and the LocalQueues of a namespace (None: of all)."""
        forest, locals_, leaderless = await asyncio.gather(
            self._forest(), self.read(self.local_queues, namespace), self.leaderless()
        )
        rows: list[QueueRow] = []
        below: dict[str, list[QueueRow]] = {}
        for raw in sorted(locals_ or (), key=lambda raw: (_namespace(raw), _name(raw))):
            target = text(obj(raw.get("spec")).get("clusterQueue"))
            below.setdefault(target, []).append(_local_row(raw, target))
        if forest is not None:
            tree, queues, cohorts = forest
            for root in tree.roots():
                self._rows(root, 0, queues, cohorts, below, rows)
        for left in below.values():
            rows.extend(left)
        proofs = [_condition(raw, JOBS_HELD) for raw in forest[1].values()] if forest is not None else []
        failed = next((text(proof.get("message")) for proof in proofs if proof.get("status") == "False"), "")
        return Queues(tuple(rows), self.hidden, leaderless, f"Jobs are not held: {failed}." if failed else "")

    def _rows(
        self,
        node: QuotaNode,
        depth: int,
        queues: dict[str, Json],
        cohorts: dict[str, Json],
        below: dict[str, list[QueueRow]],
        rows: list[QueueRow],
    ) -> None:
        raw = (queues if node.is_queue else cohorts).get(node.name, {})
        status, active, why_not = _active(raw)
        pairs: dict[FlavorResource, None] = dict.fromkeys(node.quotas)
        if not node.is_queue:
            pairs.update(dict.fromkeys(sorted(node.subtree)))
        # Gangs go on with a flavor that their queue names no more.
        pairs.update(dict.fromkeys(sorted(fr for fr, held in node.usage.items() if held)))
        share = None
        if node.parent is not None:
            share = node.share().value_status()
        rows.append(
            QueueRow(
                kind="ClusterQueue" if node.is_queue else "Cohort",
                name=node.name,
                depth=depth,
                parent=node.parent.name if node.parent is not None else "",
                room=tuple(_room(node, fr) for fr in pairs),
                pending=whole(status.get("pendingWorkloads"), 0),
                admitted=whole(status.get("admittedWorkloads"), 0),
                share=share,
                active=active and not node.in_cycle,
                why_not=why_not or ("its cohorts name each other in a circle" if node.in_cycle else ""),
                stopped=obj(raw.get("spec")).get("stopPolicy") not in (None, "", "None"),
            )
        )
        for child in node.children:
            self._rows(child, depth + 1, queues, cohorts, below, rows)
        if node.is_queue:
            rows.extend(replace(row, depth=depth + 1) for row in below.pop(node.name, ()))

    # ------------------------------------------------------------ jobs

    async def jobs(self, namespace: str | None) -> Jobs:
        """All jobs of a namespace (None: of all) that name a queue or are held, waiting ones first."""
        selected = [(kind, key) for kind in JOB_KINDS for key in (self.names.queue_label, self.names.ungoverned_label)]
        leaderless, (workloads, *lists) = await asyncio.gather(
            self.leaderless(),
            asyncio.gather(
                self.read(self.workloads, namespace),
                *(self.read(resource_of(kind), namespace, label_selector=key) for kind, key in selected),
            ),
        )
        jobs = {
            seen.uid: seen
            for (kind, _), found in zip(selected, lists, strict=True)
            for seen in (view(kind, raw, self.names) for raw in found or ())
        }
        rows: list[Standing] = []
        told: set[str] = set()
        gangs = [values.workload(raw, self.names)[0] for raw in workloads or ()]
        lines = Lines(self.client, self.names)
        places = _by_objects(gangs) | await self._all_in_line(gangs, namespace, lines)
        for raw, gang in zip(workloads or (), gangs, strict=True):
            told.add(gang.job_uid)
            standing = _standing(raw, gang, jobs.get(gang.job_uid), self.names, self.now)
            rows.append(_as_told(standing, places.get(gang.key)))
        rows.extend(
            Standing(
                namespace=job.namespace,
                name=job.name,
                kind=job.kind,
                state=_by_itself(job),
                queue=job.queue,
                created=job.created_ms,
                since=job.created_ms,
                pods=sum(count for _, count in job.counts),
            )
            for job in jobs.values()
            if job.uid not in told and (job.queue or job.kept_back) and not _of_jobset(job)
        )
        order = [State.WAITING, State.HELD, State.PAUSED, State.RESERVED, State.LEAVING, State.STARTING]
        order += [State.RUNNING, State.RELEASED]
        rows.sort(
            key=lambda row: (
                order.index(row.state) if row.state in order else len(order),
                row.namespace,
                row.queue,
                row.position or 0,
                row.created,
                row.name,
            )
        )
        waiting = [places.get((row.namespace, row.workload)) for row in rows if row.state is State.WAITING]
        return Jobs(
            tuple(rows),
            self.hidden,
            leaderless,
            namespace or "",
            live=bool(waiting) and all(told is not None and told.live for told in waiting),
            silent=lines.silent,
        )

    async def _all_in_line(self, gangs: Iterable[Workload], namespace: str | None, lines: Lines) -> dict[Key, Told]:
        """Of those that wait, what the visibility API tells: by LocalQueue in one namespace, else by ClusterQueue."""
        queues = {
            (gang.namespace, gang.queue)
            for gang in gangs
            if gang.admission is None and not gang.finished and gang.queue
        }
        if not queues or not await lines.served():
            return {}
        if namespace is not None:
            found = await asyncio.gather(*(lines.of_local_queue(*queue) for queue in sorted(queues)))
        else:
            locals_ = await self.read(self.local_queues)
            targets = {
                text(obj(raw.get("spec")).get("clusterQueue"))
                for raw in locals_ or ()
                if (_namespace(raw), _name(raw)) in queues
            }
            found = await asyncio.gather(*(lines.of_cluster_queue(name) for name in sorted(targets - {""})))
        return {key: told for line in found for key, told in (line or {}).items()}

    # ------------------------------------------------------------ nodes

    async def nodes(self, per_pod: dict[str, int] | None = None) -> Nodes:
        """Who sits where, what is free, and the largest gang that fits now on each flavor.

        `per_pod`: what each pod of that gang takes; None: one device, and a whole node's devices. Raises NotThere when
        nodes may not be seen.
        """
        raw_nodes, raw_pods, raw_workloads, raw_flavors, raw_topologies = await asyncio.gather(
            self.read(NODES),
            self.read(PODS),
            self.read(self.workloads),
            self.read(self.kind("resourceflavors", "ResourceFlavor", namespaced=False)),
            self.read(self.kind("topologies", "Topology", namespaced=False)),
        )
        if raw_nodes is None:
            raise NotSeen("you may not see the nodes of this cluster (list nodes)")
        from admission.engine.capacity import Capacity, takes
        from admission.engine.counts import keeps_off

        book = Capacity()
        lost: dict[str, tuple[tuple[str, int], ...]] = {}
        for raw in raw_nodes:
            node = values.node(raw, self.names)[0]
            book.put_node(node)
            lost[node.name] = _lost(raw, node)
        for raw in raw_topologies or ():
            book.put_topology(values.topology(raw, self.names)[0])
        owners: dict[str, str] = {}
        for raw in raw_workloads or ():
            value, _ = values.workload(raw, self.names)
            owners[value.uid] = f"{value.namespace}/{_owner(raw)[1] or value.name}"
            if value.admission is not None and not value.finished:
                shapes = {pod_set.name: takes(pod_set.shape) for pod_set in value.pod_sets}
                book.charge(value.key, value.uid, value.admission, shapes)
        for raw in raw_pods or ():
            usage = values.pod_usage(raw, self.names)
            if usage is not None:
                book.put_pod(usage)
        flavors = [values.flavor(raw, self.names)[0] for raw in raw_flavors or ()]
        resources = _counted(book)
        rows = [
            NodeRow(
                name=node.name,
                ready=node.ready,
                cordoned=node.unschedulable,
                flavors=tuple(f.name for f in flavors if set(f.node_labels) <= set(node.labels)),
                capacity=tuple((r, amount) for r, amount in node.allocatable if r in resources),
                free=tuple((r, amount) for r, amount in sorted(book.free(node.name).items()) if r in resources),
                gangs=tuple(
                    (
                        owners.get(uid, uid) if uid else "others",
                        tuple((r, amount) for r, amount in held.items() if r in resources and amount),
                    )
                    for uid, held in sorted(
                        book.occupants(node.name).items(), key=lambda one: (not one[0], owners.get(one[0], one[0]))
                    )
                ),
                taints=keeps_off(node, flavors),
                lost=lost[node.name],
            )
            for node in book.nodes()
        ]
        return Nodes(tuple(rows), _largest(book, flavors, resources, per_pod), resources, self.hidden)

    # ------------------------------------------------------------ lint

    async def documents(self) -> list[Document]:
        """All that the linter looks at, as the cluster holds it."""
        from admission.api.lint import CLUSTER, Document

        kinds = [
            *(
                self.kind(plural, kind, namespaced=kind == "LocalQueue")
                for plural, kind in (
                    ("clusterqueues", "ClusterQueue"),
                    ("cohorts", "Cohort"),
                    ("localqueues", "LocalQueue"),
                    ("resourceflavors", "ResourceFlavor"),
                    ("topologies", "Topology"),
                    ("admissionchecks", "AdmissionCheck"),
                )
            ),
            NODES,
            NAMESPACES,
            PRIORITY_CLASSES,
        ]
        lists = await asyncio.gather(*(self.read(kind) for kind in kinds))
        return [Document(raw, CLUSTER) for found in lists for raw in found or ()]


# ---------------------------------------------------------------- reading objects


def _lost(raw: Json, node: model.Node) -> tuple[tuple[str, int], ...]:
    """Devices of its capacity that it does not hand out."""
    there = dict(node.allocatable)
    out: dict[str, int] = {}
    for resource, amount in texts(obj(raw.get("status")).get("capacity")).items():
        if "/" in resource:
            with suppress(quantity.QuantityError):
                out[resource] = quantity.parse(resource, amount) - there.get(resource, 0)
    return tuple(sorted((resource, amount) for resource, amount in out.items() if amount > 0))


def resource_of(kind: JobKind) -> Kind:
    return Kind(kind.group, kind.version, kind.plural, kind.name)


def _of_jobset(job: JobView) -> bool:
    return job.owner is not None and job.owner[0].startswith(f"{JOBSET_GROUP}/")


def _called(kind: JobKind) -> tuple[str, ...]:
    return (kind.name.lower(), kind.plural)


def typed(raw: Json, kind: Kind) -> Json:
    """Items of a list say neither kind nor version."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **raw}


def _name(raw: Json) -> str:
    return text(obj(raw.get("metadata")).get("name"))


def _namespace(raw: Json) -> str:
    return text(obj(raw.get("metadata")).get("namespace"))


def _queue(raw: Json) -> str:
    return text(obj(raw.get("spec")).get("queueName"))


def _owner(raw: Json) -> tuple[str, str]:
    """(kind, name) of the controller of an object."""
    for ref in objects(obj(raw.get("metadata")).get("ownerReferences")):
        if ref.get("controller") is True:
            return text(ref.get("kind")), text(ref.get("name"))
    return "", ""


def newest(workloads: Iterable[Json]) -> Json | None:
    """The Workload that counts, should there be several: one that is not finished, the youngest."""

    def rank(raw: Json) -> tuple[bool, int, str]:
        done = any(c.get("type") == FINISHED and c.get("status") == "True" for c in _conditions(raw))
        return (not done, millis(obj(raw.get("metadata")).get("creationTimestamp")), _name(raw))

    return max(workloads, key=rank, default=None)


def _conditions(raw: Json) -> list[Json]:
    return objects(obj(raw.get("status")).get("conditions"))


def _condition(raw: Json, kind: str) -> Json:
    return next((c for c in _conditions(raw) if c.get("type") == kind), {})


def _by_itself(job: JobView) -> State:
    """How a job stands that has no Workload."""
    if job.finished:
        return State.FINISHED
    if not job.queue and not job.kept_back:
        return State.UNMANAGED
    return State.HELD if job.suspended else State.RELEASED


def _standing(raw: Json, value: Workload, job: JobView | None, names: Names, now: int) -> Standing:
    """How a job stands, from its Workload, and from the job where it may be seen."""
    kind, name = _owner(raw)
    reserved, admitted = _condition(raw, QUOTA_RESERVED), _condition(raw, ADMITTED)
    evicted, finished = _condition(raw, EVICTED), _condition(raw, FINISHED)
    created = job.created_ms if job is not None else value.created
    pods = sum(pod_set.count for pod_set in value.pod_sets)
    reason = message = detail = ""
    if value.finished:
        state, shown = State.FINISHED, finished
    elif value.admission is None and job is not None and job.finished:
        # It ran without Muster to its end, or the controller has not seen that yet.
        state, shown = State.FINISHED, {"reason": job.finished, "message": job.message}
    elif value.admission is not None and value.evicted:
        state, shown = State.LEAVING, evicted
    elif value.admitted:
        ready = job is not None and not job.suspended and job.ready >= job.pods_expected
        state, shown = (State.RUNNING if ready else State.STARTING), admitted
    elif value.admission is not None:
        state, shown = State.RESERVED, reserved
    elif job is not None and not job.suspended:
        state, shown = State.RELEASED, {"message": _NOTHING_RESERVED}
    elif job is not None and job.paused:
        state, shown = State.PAUSED, evicted
    else:
        state, shown = State.WAITING, reserved
    reason, message = text(shown.get("reason")), text(shown.get("message"))
    since = millis(shown.get("lastTransitionTime")) or created
    if state is State.PAUSED:
        reason, detail = Reason.DEACTIVATED.value, Detail.PAUSED.value
        message = sentence(model.Why(Reason.DEACTIVATED, Detail.PAUSED, subject=names.pause_label))
    if state is State.WAITING:
        since = max(millis(evicted.get("lastTransitionTime")), created) if value.evicted else created
        if value.kept_by:
            reason, detail = Reason.DEACTIVATED.value, Detail.WORKLOAD_DELETED.value
            message = sentence(model.Why(Reason.DEACTIVATED, Detail.WORKLOAD_DELETED, subject=value.kept_by))
        elif value.paused_by:
            reason, detail = Reason.DEACTIVATED.value, Detail.PAUSED.value
            message = sentence(model.Why(Reason.DEACTIVATED, Detail.PAUSED, subject=value.paused_by))
        elif not value.active:
            reason, message = Reason.DEACTIVATED.value, "Its Workload is switched off (spec.active is false)"
            if text(evicted.get("reason")).startswith(Reason.DEACTIVATED.value):
                message += f": {text(evicted.get('message'))}"
        elif value.requeue_at > now:
            reason, detail = Reason.SUSPENDED.value, Detail.BACKOFF.value
            message = f"Waits until {values.rfc3339(value.requeue_at)} before it is tried again"
        elif reason_of(reason) is None:
            # Nothing was said yet, or only that it has no reservation any more.
            reason, detail = Reason.PENDING_EVALUATION.value, Detail.NEXT_CYCLE.value
            message = message or "Is looked at in the next cycle"
        detail = detail or detail_of(reason_of(reason), message).value
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
        ready=job.ready_of(pods) if job is not None and value.admitted else None,
        requests=_requests(raw, value),
        where=_where(value),
    )


def _stopped(standing: Standing, local: Json | None, cluster: Json | None) -> Standing:
    """A queue that is stopped, being deleted or not active is why it waits, whatever the condition said before; not
    where something nearer holds it back."""
    if standing.reason == Reason.DEACTIVATED.value or standing.detail == Detail.BACKOFF.value:
        return standing
    for kind, raw in (("LocalQueue", local), ("ClusterQueue", cluster)):
        policy = text(obj(obj(raw).get("spec")).get("stopPolicy"))
        if policy not in ("", "None"):
            message = f"{kind} {_name(obj(raw))} is stopped ({policy}); it waits until the stop policy is lifted"
            return replace(standing, reason=Reason.ON_HOLD.value, detail="", message=message)
    if cluster is None or standing.reason == Reason.GATED.value:
        return standing
    detail, active = Detail.CLUSTER_QUEUE_INACTIVE, _condition(cluster, ACTIVE)
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
    why = model.Why(Reason.MISCONFIGURED, detail, subject=f"{_name(cluster)}: {wrong}")
    return replace(standing, reason=why.reason.value, detail=why.detail.value, message=sentence(why))


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
    if not counted:
        for pod_set in value.pod_sets:
            quantity.add(total, dict(pod_set.shape.requests), pod_set.count)
    return tuple(sorted(total.items()))


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


def _by_objects(gangs: Iterable[Workload]) -> dict[Key, Told]:
    """Those that wait, in their LocalQueues, by priority and age."""
    lines: dict[Key, list[tuple[int, int, str, Key]]] = {}
    for gang in gangs:
        if gang.admission is None and gang.active and not gang.finished:
            stamp = gang.queue_stamp if gang.queue_stamp is not None else gang.created
            lines.setdefault((gang.namespace, gang.queue), []).append((-gang.priority, stamp, gang.uid, gang.key))
    return {key: Told(i, len(line)) for line in lines.values() for i, (*_, key) in enumerate(sorted(line), 1)}


def _as_told(standing: Standing, told: Told | None) -> Standing:
    """With its place; and with the reason of now, unless the objects say that somebody has switched it off, and who."""
    if told is None or standing.state is not State.WAITING:
        return standing
    standing = replace(standing, position=told.position, waiting=told.waiting)
    if not told.live or not told.reason or standing.reason == Reason.DEACTIVATED.value:
        return standing
    return replace(standing, reason=told.reason, detail=told.detail, message=told.message)


_KEPT_FOR = re.compile(r"The room it needs is kept for (\w+) ([^/\s]+)/(\S+) until ")
_NOT_CREATED = "NotCreated"
_NOT_STARTED = "NotStarted"
_STARTS_LATER = "StartsLater"
_JOBS_REFUSED = "JobCreationFailed"
"""What JobSet's controller says of Jobs that it could not make."""
_ON_PODS = {
    _NOT_CREATED: "Their Job's controller makes them, and JobSet's the Jobs. What refuses them (a ResourceQuota, "
    "PodSecurity, something in the template) stands beside.",
    _STARTS_LATER: "Nothing: they start when others of the JobSet are ready or done (its startupPolicy, dependsOn).",
    **dict.fromkeys(
        ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        "Correct the image name, or give the pods a pull secret that may read it.",
    ),
    **dict.fromkeys(
        ("CrashLoopBackOff", "Error", "Failed", "OOMKilled"), "See why it ended: `kubectl logs POD --previous`."
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        "See the message: a Secret, ConfigMap, volume or command that the container names is not there or wrong.",
    ),
    "NodeSilent": "Wait: if its node stays silent for half a minute, and not all nodes are, the gang is stopped whole "
    "and starts on others.",
    "NotReady": "Its containers run and their readiness probe says no: see `kubectl logs POD`.",
    "SchedulingGated": "A scheduling gate keeps it from its node: who put it into the pod template must take it off.",
    "Unschedulable": "Tell the platform team: these nodes were set aside for it, and kube-scheduler refuses them.",
}
_NOT_AS_PLANNED = (
    " `muster nodes` shows what became of its nodes: relabelled, so that they are of another flavor or none, tainted, "
    "or taken by pods of others."
)
_ON_THE_WAY = ("ContainerCreating", "PodInitializing", "")


def _trouble(pod: Json) -> tuple[str, str] | None:
    """(reason, message) why a pod is not ready; None once it is, or has succeeded."""
    status = obj(pod.get("status"))
    phase = text(status.get("phase"))
    if phase == "Succeeded":
        return None
    found = {text(c.get("type")): c for c in objects(status.get("conditions"))}
    if phase != "Failed" and found.get("Ready", {}).get("status") == "True":
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
    return "Pending", "kube-scheduler has not placed it yet"


def _phase(pod: Json) -> str:
    return text(obj(pod.get("status")).get("phase"))


def _as_by_pods(job: JobView, pods: Sequence[Json]) -> JobView:
    """A job with as many pods ready as there are, and those that are done and that its status does not count yet."""
    done = max(0, sum(_phase(pod) == "Succeeded" for pod in pods) - job.succeeded)
    ready = sum(_phase(pod) != "Succeeded" and _trouble(pod) is None for pod in pods)
    return structs.replace(job, ready=ready + done)


def _unready(pods: Sequence[Json], job: JobView, given: int) -> tuple[Unready, ...]:
    """Pods that are not ready, by reason; those that do not exist yet too. job: as by its pods; given: pods that the
    gang may have at a time."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for pod in sorted(pods, key=_name):
        trouble = _trouble(pod)
        if trouble is not None:
            node = text(obj(pod.get("spec")).get("nodeName"))
            groups.setdefault(trouble[0], []).append((_name(pod), node, trouble[1]))
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
        out.append(Unready(_NOT_STARTED, missing, "Their job is suspended still"))
    elif missing > 0:
        out.append(Unready(_NOT_CREATED, missing, f"{missing} of {job.pods_expected} pods do not exist yet"))
    if job.kind == JOBSET.kind and (later := given - job.pods_expected - job.succeeded) > 0:
        out.append(Unready(_STARTS_LATER, later, "They start when others of the JobSet are ready or done"))
    return tuple(out)


def _staying(pods: Sequence[Json], now: int) -> tuple[Unready, ...]:
    """Pods of a gang that is to leave which are still there, by how far they are."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for pod in sorted(pods, key=_name):
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
        groups.setdefault(told, []).append((_name(pod), text(obj(pod.get("spec")).get("nodeName"))))
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


async def _nothing() -> None:
    return None


def _history(job: Json, workload: Json, events: Iterable[Json]) -> tuple[Happening, ...]:
    """What happened, oldest first: the job's creation, events, and conditions that no event tells of."""
    out = [Happening(millis(obj(job.get("metadata")).get("creationTimestamp")), "Created", "The job was created")]
    seen: set[tuple[str, str]] = set()
    # Times are whole seconds; within one, the order in which the server stored them.
    for event in sorted(events, key=_stored):
        at = millis(event.get("lastTimestamp")) or millis(event.get("eventTime"))
        at = at or millis(event.get("firstTimestamp")) or millis(obj(event.get("metadata")).get("creationTimestamp"))
        series = obj(event.get("series"))
        count = max(whole(event.get("count"), 1), whole(series.get("count"), 1), 1)
        reason, message = text(event.get("reason")), text(event.get("message") or event.get("note"))
        if (reason, message) in seen and count == 1:
            continue
        seen.add((reason, message))
        out.append(Happening(at, reason, message, event.get("type") == "Warning", count))
    told = {happening.reason for happening in out} | {happening.message for happening in out}
    for condition in _conditions(workload):
        reason, message = text(condition.get("reason")), text(condition.get("message"))
        if condition.get("status") != "True" or reason in told or message in told:
            continue
        out.append(Happening(millis(condition.get("lastTransitionTime")), reason, message))
    return tuple(sorted(out, key=lambda happening: happening.at))


def _refused(events: Iterable[Json]) -> str:
    """What the controller said last of a job that it makes no Workload for."""
    return _last_said(events, INVALID_JOB)


def _last_said(events: Iterable[Json], *reasons: str) -> str:
    said = [event for event in events if text(event.get("reason")) in reasons]
    return text(max(said, key=_stored).get("message")) if said else ""


def _told_why(one: Unready, refused: str, reason: str = _NOT_CREATED) -> Unready:
    """With what was said last of pods that are not there for this reason."""
    return replace(one, message=f"{one.message}: {refused}") if one.reason == reason and refused else one


def _stored(raw: Json) -> tuple[int, str]:
    version = text(obj(raw.get("metadata")).get("resourceVersion"))
    return (int(version) if version.isdecimal() else 0, _name(raw))


def _held(raw: Json) -> dict[FlavorResource, int]:
    """What a queue's status says that it holds."""
    out: dict[FlavorResource, int] = {}
    status = obj(raw.get("status"))
    for flavor in objects(status.get("flavorsReservation")):
        for resource in objects(flavor.get("resources")):
            try:
                amount = quantity.parse(text(resource.get("name")), resource.get("total") or "0")
            except quantity.QuantityError:
                continue
            if amount > 0:
                out[text(flavor.get("name")), text(resource.get("name"))] = amount
    return out


def _room_for(forest: tuple[Tree, Any, Any] | None, queue: str, standing: Standing) -> tuple[Room, ...]:
    """Quota of a ClusterQueue for what a job asks; nothing where the tree may not be seen."""
    node = forest[0].queue(queue) if forest is not None else None
    if node is None:
        return ()
    asked = dict(standing.requests)
    return tuple(_room(node, fr, asked[fr[1]]) for fr in node.quotas if fr[1] in asked)


def _room(node: QuotaNode, fr: FlavorResource, asked: int = 0) -> Room:
    own = node.subtree.get(fr, 0)
    used = node.usage.get(fr, 0)
    ends = node.limit_of(fr, asked) if asked else ()
    return Room(
        flavor=fr[0],
        resource=fr[1],
        nominal=own,
        used=used,
        borrowed=node.borrowed(fr),
        lent=node.lent(fr),
        free=node.available(fr),
        most=node.potential(fr),
        asked=asked,
        limited_by=ends[0].name if ends else "",
    )


def _active(raw: Json) -> tuple[Json, bool, str]:
    """(status, active, why not)."""
    condition = _condition(raw, "Active")
    active = condition.get("status") != "False"
    return obj(raw.get("status")), active, "" if active else text(condition.get("message"))


def _local_row(raw: Json, target: str) -> QueueRow:
    status, active, why_not = _active(raw)
    return QueueRow(
        kind="LocalQueue",
        name=_name(raw),
        namespace=_namespace(raw),
        parent=target,
        room=tuple(Room(flavor, resource, used=amount) for (flavor, resource), amount in _held(raw).items()),
        pending=whole(status.get("pendingWorkloads"), 0),
        admitted=whole(status.get("admittedWorkloads"), 0),
        active=active,
        why_not=why_not,
        stopped=obj(raw.get("spec")).get("stopPolicy") not in (None, "", "None"),
    )


def _counted(book: Capacity) -> tuple[str, ...]:
    """Devices (resources with a domain, as nvidia.com/gpu) where there are any; else cpu and memory."""
    names = {name for node in book.nodes() for name, amount in node.allocatable if amount}
    devices = sorted(name for name in names if "/" in name)
    return tuple(devices) or tuple(name for name in ("cpu", "memory") if name in names)


def _largest(
    book: Capacity, flavors: Sequence[Flavor], resources: Sequence[str], per_pod: dict[str, int] | None
) -> tuple[Largest, ...]:
    out: list[Largest] = []
    for flavor in flavors or [Flavor("")]:
        nodes = [node for node in book.nodes() if set(flavor.node_labels) <= set(node.labels)]
        sizes: list[dict[str, int]] = [per_pod] if per_pod is not None else []
        if per_pod is None:
            for resource in resources:
                whole_node = max((dict(node.allocatable).get(resource, 0) for node in nodes), default=0)
                one = 1 if "/" in resource else 1000 if resource == "cpu" else 2**30
                sizes.extend({resource: amount} for amount in sorted({one, whole_node}) if 0 < amount <= whole_node)
        out.extend(Largest(flavor.name, tuple(sorted(size.items())), _fitting(book, flavor, size)) for size in sizes)
    return tuple(out)


def _fitting(book: Capacity, flavor: Flavor, per_pod: dict[str, int]) -> int:
    """How many pods of this size the flavor's nodes take at once: the engine's own answer, by bisection."""
    from admission.engine.capacity import PlaceRequest, place, takes
    from admission.engine.model import MUSTER, Misfit, PodSet, PodShape

    def fits(count: int) -> bool:
        shape = PodShape(requests=tuple(sorted(per_pod.items())))
        request = PlaceRequest(PodSet("gang", count, shape), count, takes(shape), (flavor,))
        return not isinstance(place(book, [request], rules=MUSTER), Misfit)

    low, high = 0, 1
    if flavor.elastic:
        # Nodes that may yet come are not counted here: the question is what fits now.
        flavor = structs.replace(flavor, elastic=False)
    while high < 2**20 and fits(high):
        low, high = high, high * 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
