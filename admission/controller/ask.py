"""Questions that people ask of a cluster, answered from the API alone: why a job waits, who has what, who sits where.

Nothing here is the controller's: it runs with the rights of whoever asks, reads what they may read, and puts into
`hidden` what they may not. What is read is turned into the engine's own values, so that a number shown here is worked
out by the same code that decides: quota by the cohort tree, room by the book of nodes. Usage is what the queues' status
says; it may be some seconds old. Places, reasons and what is lacking are the controller's own of now, as the visibility
API tells them, where it is served and the asker may ask it; else they are counted and read from the objects.

What is read here is made into the `answers` by `standing`, `unready`, `quotas` and `occupancy`.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from admission.api.reasons import advice_for, reason_of
from admission.controller.answers import (
    Amounts,
    Happening,
    Jobs,
    Nodes,
    QueueRow,
    Queues,
    Room,
    Standing,
    State,
    Sum,
    Sums,
    Unready,
    Why,
)
from admission.controller.line import Lines, Told
from admission.controller.quotas import Forest, local_row
from admission.controller.resources import (
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    of_jobs,
    ours,
)
from admission.controller.standing import (
    NOTHING_RESERVED,
    advice_on,
    as_stopped,
    as_told,
    by_itself,
    by_objects,
    conditions_of,
    current,
    owner_of,
    so_far,
    standing_of,
)
from admission.controller.unready import (
    JOBS_REFUSED,
    NOT_CREATED,
    NOT_STARTED,
    PODS_REFUSED,
    as_by_pods,
    said_of,
    staying,
    told_why,
    unready_of,
)
from admission.engine.booking import is_device
from admission.engine.flavors import PODS as PODS_QUOTA
from admission.engine.ledger import charge_of
from admission.engine.model import MUSTER, Check, CheckState, Detail, Key, Reason, Rules, Workload
from admission.jobs import values
from admission.jobs.hold import not_queued
from admission.jobs.kinds import (
    JOB,
    JOBSET,
    KIND_OF,
    JobKind,
    JobView,
    condition_of,
    labels_of,
    millis,
    name_of,
    namespace_of,
    obj,
    text,
    view,
    whole,
)
from admission.jobs.kinds import KINDS as JOB_KINDS
from admission.jobs.workload import build_workload
from admission.kube.client import ApiError, Client, Forbidden, Kind, NotFound
from admission.kube.events import EVENTS
from admission.kube.lease import LEASES
from admission.names import (
    INVALID_JOB,
    JOBS_HELD,
    JOBSET_NAME_LABEL,
    KUEUE_GROUP,
    MUSTER_GROUP,
    REFUSED,
    STEP_FAILED,
    Names,
)

if TYPE_CHECKING:
    from admission.api.lint import Document
    from admission.jobs.devices import Devices, Listed

Json = dict[str, Any]
_decode = msgspec.json.Decoder(type=dict[str, Any]).decode

STALE_MS = 30_000
"""A lease that was not renewed for so long beyond its duration has no holder: clocks may differ by less."""


class NotThere(Exception):  # noqa: N818  # an answer, not a fault
    """What was asked about does not exist; the message says what was looked for."""


class NotSeen(NotThere):
    """The asker may not see whether it exists."""


def _by_worth(resources: Iterable[str]) -> list[str]:
    """Devices first."""
    return sorted(resources, key=lambda name: (not is_device(name), name))


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


@dataclass(frozen=True)
class _JobsSeen:
    """Jobs as the objects say they stand."""

    gangs: Sequence[tuple[Workload, Standing, dict[str, str]]]
    """With the labels of their jobs."""
    alone: Sequence[JobView]
    """Without a Workload."""


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

    def kind(self, kind: str) -> Kind:
        """One of our kinds."""
        return ours(self.names, kind)

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
        return {namespace_of(lease): not self.led_by_nobody(lease) for lease in found}

    async def called(self, kind: str, namespace: str) -> list[tuple[str, str]]:
        """(name, a word about it) of all "jobs" (JobSets among them), "localqueues" of a namespace, or of all
        "clusterqueues", "cohorts" or "namespaces": for completion by a shell."""
        kinds = {
            "jobs": [of_jobs(one) for one in JOB_KINDS],
            "localqueues": [self.local_queues],
            "clusterqueues": [self.kind("ClusterQueue")],
            "cohorts": [self.kind("Cohort")],
            "namespaces": [NAMESPACES],
        }[kind]
        lists = await asyncio.gather(*(self.read(one, namespace if one.namespaced else None) for one in kinds))
        return [
            (name_of(raw), one.kind if kind == "jobs" else "")
            for one, found in zip(kinds, lists, strict=True)
            for raw in found or ()
            if kind != "jobs" or self.names.queue_label in labels_of(raw)
        ]

    # ------------------------------------------------------------ one job

    async def why(self, wanted: str, namespace: str) -> Why:
        """Why a job stands where it stands. `wanted`: name, or kind/name. Raises NotThere."""
        kind, raw = await self.job(wanted, namespace)
        job = view(kind, raw, self.names)
        workloads, events = await asyncio.gather(self.workloads_of(job), self._events(namespace, {job.uid}, {job.name}))
        workload = current(workloads)
        if workload is None:
            return await self._without_workload(kind, raw, job, events)
        uid = text(obj(workload.get("metadata")).get("uid"))
        name = name_of(workload)
        value, _problems = values.workload(workload, self.names)
        standing = standing_of(workload, value, job, self.names, self.now)
        queue_path = self.read_one(self.local_queues, value.queue, namespace) if value.queue else _nothing()
        lines = Lines(self.client, self.names)
        told, of_workload, queue, leaderless = await asyncio.gather(
            self._in_line(standing, lines),
            self._events(namespace, {uid}, {name}),
            queue_path,
            self.leaderless(),
        )
        standing = as_told(standing, told)
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
            left = max(0, standing.pods - sum(count for _, count in value.reclaimable))
            part = value.pod_sets[0].min_count if len(value.pod_sets) == 1 else None
            fewest = left if part is None else min(part, left)
            room = () if forest is None else forest.room_for(target, standing.requests, left, fewest)
            if not live:
                standing = await self._outlived(standing)
                standing = as_stopped(standing, queue, None if forest is None else forest.queues.get(target))
        unready: tuple[Unready, ...] = ()
        if value.admitted and not value.finished:
            # The uid alone may stand on a pod of anybody's.
            wanted = f"{self.names.managed_label},{self.names.workload_uid_label}={uid}"
            pods = await self.read(PODS, namespace, label_selector=wanted)
            if pods is not None and standing.state is State.LEAVING:
                unready = staying(pods, self.now)
            elif pods is not None:
                job, given = as_by_pods(job, pods), standing.given or standing.pods
                unready = unready_of(pods, job, given)
                if any(one.reason == NOT_STARTED for one in unready):
                    said = _last_said(events, REFUSED, STEP_FAILED)
                    unready = tuple(told_why(one, said, NOT_STARTED) for one in unready)
                elif any(one.reason == NOT_CREATED for one in unready):
                    of_jobs = _last_said(await self._of_children(kind, job) or events, PODS_REFUSED)
                    unready = tuple(told_why(one, of_jobs or _last_said(events, JOBS_REFUSED)) for one in unready)
                standing = replace(standing, ready=job.ready_of(given))
                if pods:  # a status comes after its pods
                    standing = replace(standing, state=State.RUNNING if job.runs else State.STARTING)
        pods_seen, off = not self._unseen("pods"), not value.active
        advice = advice_on(standing, job, self.names, unready, pods_seen=pods_seen, off=off)
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
            so_far=so_far(workload, raw),
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
        if found is None or found[1] not in KIND_OF:  # of others' kinds nothing is known here
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

    async def _who_answers(self, checks: Iterable[Check]) -> str:
        """Whose controllers answer those checks that are not ready; "" where that may not be seen."""
        open_ = {check.name for check in checks if check.state is not CheckState.READY}
        hidden = dict(self._hidden)
        found = await self.read(self.kind("AdmissionCheck"))
        self._hidden = hidden  # it was not asked for
        whose = [
            f"{name_of(raw)} is for {text(obj(raw.get('spec')).get('controllerName'))} to answer"
            for raw in sorted(found or (), key=name_of)
            if name_of(raw) in open_
        ]
        return f" {'; '.join(whose)}." if whose else ""

    async def _of_children(self, kind: JobKind, job: JobView) -> list[Json]:
        """Events about the Jobs of a JobSet; nothing of other kinds."""
        if kind is not JOBSET:
            return []
        made = await self.read(of_jobs(JOB), job.namespace, label_selector=f"{JOBSET_NAME_LABEL}={job.name}")
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
        return by_objects(values.workload(peer, self.names)[0] for peer in peers or () if _queue(peer) == queue).get(
            key
        )

    def _unseen(self, plural: str) -> bool:
        return any(hidden.startswith(plural) for hidden in self._hidden)

    async def _refused_here(self, kind: JobKind, raw: Json, job: JobView) -> str:
        """Why a job cannot be queued, by what its namespace says now: an Event that told it is kept for an hour."""
        found = await asyncio.gather(*(self.read(one, job.namespace) for one in (LIMIT_RANGES, RESOURCE_QUOTAS)))
        limit_ranges, quotas = (sorted(one or (), key=name_of) for one in found)
        return "; ".join(build_workload(kind, raw, self.names, limit_ranges=limit_ranges, quotas=quotas)[1])

    async def _without_workload(self, kind: JobKind, raw: Json, job: JobView, events: Sequence[Json]) -> Why:
        refused = _last_said(events, INVALID_JOB)
        if (state := by_itself(job)) is State.UNMANAGED and job.suspended and refused:
            state = State.HELD  # without a label, where all jobs are
        standing = Standing(
            namespace=job.namespace,
            name=job.name,
            kind=job.kind,
            state=state,
            queue=job.queue,
            message=NOTHING_RESERVED if state is State.RELEASED else job.message,
            since=job.created_ms,
            created=job.created_ms,
            pods=sum(count for _, count in job.counts),
        )
        means = owner = platform = leaderless = ""
        if standing.state is State.HELD:
            leaderless = await self.leaderless()
        if standing.state is State.UNMANAGED:
            means = f"It has no label {self.names.queue_label}, so Muster leaves it alone."
            if unread := view(kind, raw, self.names, every=True).unknown_keys:
                means += f" It goes on without: {'; '.join(unread)}."
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
            wrong = "; ".join(job.problems) or refused or await self._refused_here(kind, raw, job)
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
        elif (advice := advice_on(standing, job, self.names)) is not None:
            means, owner, platform = advice.means, advice.owner, advice.platform
        made = {"metadata": {"creationTimestamp": values.rfc3339(job.created_ms)}}
        return Why(
            standing,
            means,
            owner,
            platform,
            history=_history(made, {}, events),
            hidden=self.hidden,
            leaderless=leaderless,
        )

    async def job(self, wanted: str, namespace: str) -> tuple[JobKind, Json]:
        """The job that is called so: NAME, or KIND/NAME. Raises NotThere."""
        said, _, name = wanted.rpartition("/")
        if not name:
            raise NotThere(f"{wanted!r} names no job: write NAME, job/NAME or jobset/NAME")
        if is_called(said, ("workload", "workloads"), self.workloads):
            whole = f"`kubectl describe workloads.{self.names.group} {name} -n {namespace}`"
            raise NotThere(f"{wanted} has no job to ask about: `muster jobs` says how it stands, and {whole} the rest")
        kinds = [kind for kind in JOB_KINDS if not said or is_called(said, _called(kind), of_jobs(kind))]
        if not kinds and any(said.lower().split(".")[0] in _called(kind) for kind in JOB_KINDS):
            rest = f"`kubectl describe {said} {name} -n {namespace}`"
            raise NotThere(
                f"{wanted} is of another group or version than the jobs that Muster starts: `muster jobs` says how it "
                f"stands, if it is queued, and {rest} the rest"
            )
        if not kinds:
            known = ", ".join(kind.kind.lower() for kind in JOB_KINDS)
            meant = "" if "." in said else f"; a namespace is named by -n {said}"
            raise NotThere(f"{said!r} is no kind of job that Muster governs: use one of {known}{meant}")
        for kind in kinds:
            raw = await self.read_one(of_jobs(kind), name, namespace)
            if raw is not None:
                return kind, typed(raw, of_jobs(kind))
        if self._hidden:
            raise NotSeen(f"you may not see {', '.join(self._hidden)}")
        tried = " or ".join(kind.kind for kind in kinds)
        raise NotThere(f"there is no {tried} {name!r} in namespace {namespace!r}")

    @property
    def workloads(self) -> Kind:
        return self.kind("Workload")

    @property
    def local_queues(self) -> Kind:
        return self.kind("LocalQueue")

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

    async def _forest(self) -> Forest | None:
        """None when ClusterQueues may not be seen."""
        queues, cohorts = await asyncio.gather(
            self.read(self.kind("ClusterQueue")),
            self.read(self.kind("Cohort")),
        )
        return None if queues is None else Forest(queues, cohorts or (), self.names)

    async def queues(self, namespace: str | None, wanted: Sequence[str] = ()) -> Queues:
        """The cohort tree with its queues, and the LocalQueues of a namespace (None: of all). `wanted`: of these alone,
        NAME or KIND/NAME, with all that is below them. Raises NotThere."""
        forest, locals_, leaderless = await asyncio.gather(
            self._forest(), self.read(self.local_queues, namespace), self.leaderless()
        )
        below: dict[str, list[QueueRow]] = {}
        for raw in sorted(locals_ or (), key=lambda raw: (namespace_of(raw), name_of(raw))):
            target = text(obj(raw.get("spec")).get("clusterQueue"))
            below.setdefault(target, []).append(local_row(raw, target))
        rows = [] if forest is None else forest.rows(below)
        for left in below.values():
            rows.extend(left)
        if wanted:
            rows = self._named(rows, wanted, namespace)
        proofs = [condition_of(raw, JOBS_HELD) for raw in forest.queues.values()] if forest is not None else []
        failed = next((text(proof.get("message")) for proof in proofs if proof.get("status") == "False"), "")
        return Queues(tuple(rows), self.hidden, leaderless, f"Jobs are not held: {failed}." if failed else "")

    def _named(self, rows: Sequence[QueueRow], wanted: Sequence[str], namespace: str | None) -> list[QueueRow]:
        """Of rows in the order of their tree those that are called so, each with what is below it, and no row twice."""
        kept: dict[int, None] = {}
        for said in wanted:
            kind, _, name = said.rpartition("/")
            kinds = [one for one in QUEUE_KINDS if not kind or is_called(kind, QUEUE_KINDS[one], self.kind(one))]
            if not kinds:
                raise NotThere(f"{kind!r} is no kind of queue: use one of {', '.join(QUEUE_KINDS).lower()}")
            found = [at for at, row in enumerate(rows) if row.name == name and row.kind in kinds]
            if not found and self._hidden:
                raise NotSeen(f"you may not see {', '.join(self._hidden)}")
            if not found:
                where = f" in namespace {namespace!r}" if namespace and "LocalQueue" in kinds else ""
                raise NotThere(f"there is no {' or '.join(kinds)} {name!r}{where}")
            for at in found:
                deep = rows[at].depth
                below = next((i for i in range(at + 1, len(rows)) if rows[i].depth <= deep), len(rows))
                kept.update(dict.fromkeys(range(at, below)))
        return [rows[at] for at in sorted(kept)]

    # ------------------------------------------------------------ jobs

    async def jobs(self, namespace: str | None, cluster_queue: str = "") -> Jobs:
        """All jobs of a namespace (None: of all) that name a queue or are held, waiting ones first; those of one
        ClusterQueue, where it is named. Raises NotThere when there is none of that name."""
        seen, leaderless = await asyncio.gather(self._jobs_seen(namespace, cluster_queue), self.leaderless())
        gangs = [gang for gang, _, _ in seen.gangs]
        lines = Lines(self.client, self.names)
        places = by_objects(gangs) | await self._all_in_line(gangs, namespace, lines)
        rows = [as_told(standing, places.get(gang.key)) for gang, standing, _ in seen.gangs]
        rows.extend(
            Standing(
                namespace=job.namespace,
                name=job.name,
                kind=job.kind,
                state=by_itself(job),
                queue=job.queue,
                created=job.created_ms,
                since=job.created_ms,
                pods=sum(count for _, count in job.counts),
            )
            for job in seen.alone
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

    async def sums(self, namespace: str | None, by: str, cluster_queue: str = "") -> Sums:
        """What the jobs of a namespace (None: of all) hold and ask for together, who holds most first; those of one
        ClusterQueue, where it is named. by: `namespace`, `queue`, or a label of the jobs. Raises as `jobs`."""
        seen, leaderless = await asyncio.gather(self._jobs_seen(namespace, cluster_queue), self.leaderless())
        count: dict[str, tuple[int, int]] = {}
        amounts: dict[str, dict[str, Amounts]] = {}
        charged = {
            gang.key: [(name, amount) for (_, name), amount in charge_of(gang).usage]
            for gang, *_ in seen.gangs
            if gang.admission is not None and not gang.finished
        }
        of_pods = {
            (gang.namespace, gang.queue) for gang, *_ in seen.gangs if PODS_QUOTA in dict(charged.get(gang.key, ()))
        }
        for gang, standing, labels in seen.gangs:
            holds = gang.key in charged
            if not holds and standing.state is not State.WAITING:
                continue
            of_job = {"namespace": gang.namespace, "queue": f"{gang.namespace}/{gang.queue}"}
            who = of_job[by] if by in of_job else labels.get(by, "")
            holding, waiting = count.get(who, (0, 0))
            count[who] = holding + holds, waiting + (not holds)
            idle = standing.state in (State.RESERVED, State.STARTING, State.LEAVING)
            held = charged[gang.key] if holds else [*standing.requests]
            if not holds and (gang.namespace, gang.queue) in of_pods:  # a request names none: it goes without saying
                held.append((PODS_QUOTA, standing.pods))
            mine = amounts.setdefault(who, {})
            for name, amount in held:
                so_far = mine.get(name, Amounts(name))
                mine[name] = replace(
                    so_far,
                    held=so_far.held + amount * holds,
                    idle=so_far.idle + amount * (holds and idle),
                    asked=so_far.asked + amount * (not holds),
                )
        rows = [Sum(who, *count[who], tuple(amounts[who][name] for name in _by_worth(amounts[who]))) for who in count]
        rows.sort(key=lambda row: (*(-one.held for one in row.amounts[:1]), row.who))
        return Sums(by, tuple(rows), self.hidden, leaderless)

    async def _jobs_seen(self, namespace: str | None, cluster_queue: str) -> _JobsSeen:
        """The jobs of a namespace (None: of all) with their Workloads. Raises as `jobs`."""
        selected = [(kind, key) for kind in JOB_KINDS for key in (self.names.queue_label, self.names.ungoverned_label)]
        workloads, *lists = await asyncio.gather(
            self.read(self.workloads, namespace),
            *(self.read(of_jobs(kind), namespace, label_selector=key) for kind, key in selected),
        )
        jobs: dict[str, JobView] = {}
        labels: dict[str, dict[str, str]] = {}

        def take(kind: JobKind, raw: Json) -> None:
            job = view(kind, raw, self.names)
            jobs[job.uid], labels[job.uid] = job, labels_of(raw)

        for (kind, _), found in zip(selected, lists, strict=True):
            for raw in found or ():
                take(kind, raw)
        read = [(raw, values.workload(raw, self.names)[0]) for raw in workloads or ()]
        # Where all jobs of a namespace are queued, some have no label to be listed by.
        left = {gang.job_uid: (owner_of(raw)[0], gang.namespace) for raw, gang in read if gang.job_uid not in jobs}
        seen = {kind.kind for (kind, _), found in zip(selected, lists, strict=True) if found is not None}
        for kind in JOB_KINDS:
            homes = {home for of_kind, home in left.values() if of_kind == kind.kind} if kind.kind in seen else ()
            where = namespace or (min(homes) if len(homes) == 1 else None)
            for raw in (await self.read(of_jobs(kind), where) or ()) if homes else ():
                if text(obj(raw.get("metadata")).get("uid")) in left:
                    take(kind, raw)
        gangs = [
            (
                gang,
                standing_of(raw, gang, jobs.get(gang.job_uid), self.names, self.now),
                labels.get(gang.job_uid, {}),
            )
            for raw, gang in read
        ]
        told = {gang.job_uid for gang, *_ in gangs}
        alone = [
            job for job in jobs.values() if job.uid not in told and (job.queue or job.kept_back) and not job.of_jobset
        ]
        if cluster_queue:
            targets = await self._targets(namespace)

            def at(gang: Workload) -> str | None:
                return gang.admission.cluster_queue if gang.admission else targets.get((gang.namespace, gang.queue))

            gangs = [one for one in gangs if at(one[0]) == cluster_queue]
            alone = [job for job in alone if targets.get((job.namespace, job.queue)) == cluster_queue]
            if not gangs and not alone and cluster_queue not in targets.values():
                await self._known(cluster_queue, namespace)
        return _JobsSeen(gangs, alone)

    async def _known(self, cluster_queue: str, namespace: str | None) -> None:
        """Raises NotThere unless there is a ClusterQueue of this name."""
        kind = self.kind("ClusterQueue")
        hidden = dict(self._hidden)
        if await self.read_one(kind, cluster_queue) is not None:
            return
        if self._hidden == hidden:
            raise NotThere(f"there is no ClusterQueue {cluster_queue!r}")
        where = f" in namespace {namespace!r}" if namespace else ""
        raise NotSeen(f"no LocalQueue{where} points to a ClusterQueue {cluster_queue!r}, and you may not see those")

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
            targets = {target for queue, target in (await self._targets(None)).items() if queue in queues}
            found = await asyncio.gather(*(lines.of_cluster_queue(name) for name in sorted(targets - {""})))
        return {key: told for line in found for key, told in (line or {}).items()}

    async def _targets(self, namespace: str | None) -> dict[Key, str]:
        """LocalQueue of a namespace (None: of all) -> the ClusterQueue that it points to."""
        return {
            (namespace_of(raw), name_of(raw)): text(obj(raw.get("spec")).get("clusterQueue"))
            for raw in await self.read(self.local_queues, namespace) or ()
        }

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
            self.read(self.kind("ResourceFlavor")),
            self.read(self.kind("Topology")),
        )
        if raw_nodes is None:
            raise NotSeen("you may not see the nodes of this cluster (list nodes)")
        from admission.controller.occupancy import Occupancy

        devices = await self.devices(None)
        there = Occupancy(raw_nodes, raw_topologies or (), raw_workloads or (), raw_pods or (), self.names, devices)
        flavors = [values.flavor(raw, self.names)[0] for raw in raw_flavors or ()]
        return Nodes(there.rows(flavors), there.largest(flavors, per_pod), there.resources, self.hidden)

    async def devices(self, queues: Iterable[Json] | None, rules: Rules = MUSTER) -> Devices:
        """Those that drivers list, where a class counts them. `queues`: the ClusterQueues; None: they are read, if it
        depends on them."""
        from admission.controller.decode import LISTED
        from admission.jobs.devices import CLASS, DeviceClass, Devices, of_classes

        hidden = dict(self._hidden)
        listed: list[Listed] = []
        quotas: set[str] = set()
        for kind, convert in LISTED:
            found = await self.read(kind)
            listed += [convert(raw, self.names)[0] for raw in found or ()]
            if kind.kind == CLASS:
                self._hidden = hidden  # it matters only where there are some
                if queues is None and any(isinstance(one, DeviceClass) and not one.resource for one in listed):
                    queues = await self.read(self.kind("ClusterQueue"))
                quotas.update(*(of_classes(values.cluster_queue(raw, self.names)[0]) for raw in queues or ()))
                if not Devices(listed, rules, quotas).counting:
                    break
        return Devices(listed, rules, quotas)

    # ------------------------------------------------------------ lint

    async def documents(self) -> list[Document]:
        """All that the linter looks at, as the cluster holds it."""
        from admission.api.lint import CLUSTER, Document

        of_quota = ("ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor", "Topology", "AdmissionCheck")
        kinds = [*map(self.kind, of_quota), NODES, NAMESPACES, PRIORITY_CLASSES]
        lists = await asyncio.gather(*(self.read(kind) for kind in kinds))
        queues, *_ = lists
        devices = await self.devices(queues or ())
        return [
            Document(self._with_devices(raw, devices) if raw["kind"] == NODES.kind else raw, CLUSTER)
            for found in lists
            for raw in found or ()
        ]

    def _with_devices(self, raw: Json, devices: Devices) -> Json:
        """A node, as if its kubelet counted what drivers list."""
        node = values.node(raw, self.names)[0]
        listed = set(devices.laid_on(node).allocatable) - set(node.allocatable)
        status = obj(raw.get("status"))
        there = obj(status.get("allocatable")) | {resource: str(amount) for resource, amount in listed}
        return {**raw, "status": {**status, "allocatable": there}} if listed else raw


# ---------------------------------------------------------------- reading objects


QUEUE_KINDS = {
    "Cohort": ("cohort", "cohorts"),
    "ClusterQueue": ("clusterqueue", "clusterqueues", "cq", "mcq"),
    "LocalQueue": ("localqueue", "localqueues", "lq", "mlq"),
}
"""What a row of queues may be, and how that is named."""


def is_called(said: str, words: Collection[str], kind: Kind) -> bool:
    """Does that name a kind that is called one of these words? As for kubectl: WORD, WORD.GROUP, WORD.VERSION.GROUP."""
    word, _, of = said.lower().partition(".")
    return word in words and of in ("", kind.group, f"{kind.version}.{kind.group}")


def _called(kind: JobKind) -> tuple[str, ...]:
    return (kind.kind.lower(), kind.plural)


def typed(raw: Json, kind: Kind) -> Json:
    """Items of a list say neither kind nor version."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **raw}


def _queue(raw: Json) -> str:
    return text(obj(raw.get("spec")).get("queueName"))


_KEPT_FOR = re.compile(r"The room it needs is kept for (\w+) ([^/\s]+)/(\S+) until ")


_ANY_POD = re.compile(r'^pods "[^"]*"')


async def _nothing() -> None:
    return None


def _history(job: Json, workload: Json, events: Iterable[Json]) -> tuple[Happening, ...]:
    """What happened, oldest first: the job's creation, events, and conditions that no event tells of."""
    out = [Happening(millis(obj(job.get("metadata")).get("creationTimestamp")), "Created", "The job was created")]
    seen: set[tuple[str, str]] = set()
    refused: dict[str, Happening] = {}
    tries: Counter[str] = Counter()
    # Times are whole seconds; within one, the order in which the server stored them.
    for event in sorted(events, key=_stored):
        at, message = said_of(event)
        series = obj(event.get("series"))
        count = max(whole(event.get("count"), 1), whole(series.get("count"), 1), 1)
        reason = text(event.get("reason"))
        if reason == PODS_REFUSED:  # of each try, as of another pod
            refused[_ANY_POD.sub("", message)] = Happening(at, reason, message, warning=True, count=count)
            tries[_ANY_POD.sub("", message)] += count
            continue
        if (reason, message) in seen and count == 1:
            continue
        seen.add((reason, message))
        out.append(Happening(at, reason, message, event.get("type") == "Warning", count))
    out += [replace(one, count=tries[said]) for said, one in refused.items()]
    told = {happening.reason for happening in out} | {happening.message for happening in out}
    for condition in conditions_of(workload):
        reason, message = text(condition.get("reason")), text(condition.get("message"))
        if condition.get("status") != "True" or reason in told or message in told:
            continue
        out.append(Happening(millis(condition.get("lastTransitionTime")), reason, message))
    return tuple(sorted(out, key=lambda happening: happening.at))


def _last_said(events: Iterable[Json], *reasons: str) -> str:
    """By Events with one of these reasons; "" where there is none."""
    said = [event for event in events if text(event.get("reason")) in reasons]
    return said_of(max(said, key=_stored))[1] if said else ""


def _stored(raw: Json) -> tuple[int, str]:
    version = text(obj(raw.get("metadata")).get("resourceVersion"))
    return (int(version) if version.isdecimal() else 0, name_of(raw))
