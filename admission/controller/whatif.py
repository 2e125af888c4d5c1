"""Before a job is submitted: would it start now, and where; else why not? And before quota is changed: who would start,
and who be evicted?

The same engine that decides in the controller is asked, on a State that is built from what the API server holds now, by
one who may read it. The API server is asked first, by a dry run, whether it would take the job at all. Rules are those
of the controller's ConfigMap, where the asker may read it, or of the configuration file that is given; else of the
preset, and then what the controller leaves out or transforms counts otherwise here than there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

import msgspec
from msgspec import structs

from admission.api.reasons import advice_for
from admission.controller.answers import Place, plain
from admission.controller.ask import Ask
from admission.controller.change import as_applied, key_of, kinds_of
from admission.controller.decode import CLAIM_TEMPLATES, LISTED, STORED, priority_class_of
from admission.controller.decode import pod as pod_as_seen
from admission.controller.defaults import Defaults, named_in_vain
from admission.controller.resources import (
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUOTA,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    of_jobs,
)
from admission.controller.standing import owner_of, stop_policy_of
from admission.controller.standing import places as places_of
from admission.controller.world import PodView
from admission.engine.cycle import decide
from admission.engine.in_flight import written
from admission.engine.model import (
    Admit,
    Assumed,
    Claim,
    Decision,
    Detail,
    Evict,
    EvictReason,
    Gone,
    Key,
    LabelSelector,
    Node,
    PodUsage,
    Put,
    Reason,
    Rules,
    StopPolicy,
    Verdict,
    Workload,
    matches,
)
from admission.engine.model import Why as Cause
from admission.engine.project import sentence
from admission.engine.state import State
from admission.jobs import values, volumes
from admission.jobs.devices import Devices
from admission.jobs.hold import not_queued
from admission.jobs.kinds import (
    JOB,
    JOBSET,
    JobKind,
    JobView,
    claim_templates,
    claims_made,
    device_classes,
    kind_of,
    labels_of,
    name_of,
    namespace_of,
    obj,
    objects,
    text,
    texts,
    view,
)
from admission.jobs.neighbours import Neighbours, Stand, Who, stand_of, stands_of
from admission.jobs.requests import LIMITS, Limits
from admission.jobs.workload import as_made, build_workload, in_jobs_words
from admission.jobs.workload import called as as_called
from admission.kube.client import AlreadyExists, ApiError, Forbidden, Invalid, Kind, NotFound
from admission.names import Names

Json = dict[str, Any]
_STEPS = 10_000
_CYCLES = 100


class Foresight(Enum):
    STARTS = "starts"
    WAITS = "waits"
    REFUSED = "refused"
    """The API server would not take it, or Muster could not read it."""
    UNKNOWN = "unknown"
    """The asker may not see what it would take to know."""
    UNMANAGED = "unmanaged"
    """It names no queue: it starts at once, and kube-scheduler places it."""


@dataclass(frozen=True)
class Foreseen:
    namespace: str
    name: str
    kind: str
    answer: Foresight
    queue: str = ""
    cluster_queue: str = ""
    reason: str = ""
    detail: str = ""
    message: str = ""
    owner: str = ""
    """What its owner could do."""
    platform: str = ""
    position: int | None = None
    """Where it would stand in its ClusterQueue, from 1."""
    requests: tuple[tuple[str, int], ...] = ()
    where: tuple[Place, ...] = ()
    evicts: tuple[str, ...] = ()
    """Jobs that would be evicted for it."""
    checks: tuple[str, ...] = ()
    """Admission checks that it would wait for."""
    without: tuple[str, ...] = ()
    """Labels and annotations of ours that say nothing, in words: it would go on without them."""
    hidden: tuple[str, ...] = ()
    created: bool = False

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class Earlier:
    """A job that was foreseen before this one, and what the engine decided about it."""

    called: str
    gang: Workload
    admit: Admit | None = None

    @property
    def held(self) -> Workload:
        """The gang, with the room that it got."""
        return self.gang if self.admit is None else structs.replace(self.gang, admission=self.admit.admission)


@dataclass(frozen=True)
class Moved:
    """A job that quota would start or stop."""

    name: str
    """Kind NAMESPACE/NAME."""
    cluster_queue: str
    requests: tuple[tuple[str, int], ...]
    """(resource, amount) of all its pods."""


@dataclass(frozen=True)
class Outlook:
    """What becomes of the jobs that exist if quota is changed, and no job comes or ends meanwhile."""

    starts: tuple[Moved, ...] = ()
    evicts: tuple[Moved, ...] = ()
    waits: tuple[Moved, ...] = ()
    """Those that would start if nothing were changed."""
    spares: tuple[Moved, ...] = ()
    """Those that would be evicted if nothing were changed."""
    refused: tuple[str, ...] = ()
    """Objects that the API server would not take, and why."""
    known: bool = True
    """False: the asker may not see what it would take to know."""
    hidden: tuple[str, ...] = ()

    def as_json(self) -> Json:
        return dict(plain(self))


def job_kind(manifest: Json) -> JobKind:
    """Raises ValueError for another kind of object."""
    kind = kind_of(manifest)
    if kind is None:
        said = text(manifest.get("kind")) or "an object without kind"
        raise ValueError(f"{said} is no kind of job that Muster governs")
    return kind


@dataclass(frozen=True)
class Governed:
    """Which jobs are queued, by the controller's configuration."""

    namespaces: LabelSelector | None = None
    """None: of all."""
    default_queue: str = ""
    """LocalQueue of those without a label; "": they are left alone."""
    known: bool = True
    """False: it was not read, and this is what it says by default."""
    limits: Limits = LIMITS


async def foresee(
    ask: Ask,
    manifest: Json,
    namespace: str,
    rules: Rules,
    governed: Governed,
    earlier: list[Earlier],
) -> Foreseen:
    """What would become of a Job or JobSet if it were created now; nothing is created. `namespace` counts where the
    manifest names none. `earlier`: those that would be created before it; it is added to them. Raises ApiError when the
    cluster cannot be asked, ValueError for another kind of object."""
    kind = job_kind(manifest)
    where = namespace_of(manifest) or namespace
    seen = Foreseen(where, name_of(manifest), kind.kind, Foresight.UNKNOWN)
    try:
        made = await ask.client.create(of_jobs(kind).path(where), manifest, dry_run=True)
    except ApiError as error:
        return _refused(seen, error)
    made = {**made, "apiVersion": kind.api_version, "kind": kind.kind}
    meta = obj(made.get("metadata"))
    label = texts(meta.get("labels")).get(ask.names.queue_label, "")
    outside = await _outside(ask, where, governed)
    seen = replace(seen, name=text(meta.get("name")), queue=label or ("" if outside else governed.default_queue))
    if label and outside:
        said = not_queued(view(kind, made, ask.names), ask.names)
        return replace(seen, answer=Foresight.REFUSED, reason=Reason.MISCONFIGURED.value, message=said)
    seen = replace(seen, without=view(kind, made, ask.names, every=True).unknown_keys)
    if not seen.queue:
        said = f"it has no label {ask.names.queue_label}"
        suspended = obj(made.get("spec")).get("suspend") is True
        if suspended and not governed.known and obj(manifest.get("spec")).get("suspend") is not True:
            said += ", and is held all the same: in which LocalQueue it is to wait says the controller's configuration"
            return replace(seen, message=said)
        said += f": Muster leaves it alone, and it {'stays suspended' if suspended else 'starts at once'}"
        return replace(seen, answer=Foresight.UNMANAGED, message=said)
    if kind is JOBSET and (refused := await _jobs_refused(ask, made, where)):
        return replace(seen, answer=Foresight.REFUSED, reason="Invalid", message=refused)
    return await _decided(ask, kind, made, seen, rules, governed.limits, earlier)


async def _outside(ask: Ask, namespace: str, governed: Governed) -> bool:
    """Is it a namespace whose jobs are not queued? False where its labels may not be seen."""
    if governed.namespaces is None:
        return False
    try:
        found = await ask.client.get(NAMESPACES.path(None, namespace))
    except (Forbidden, NotFound):
        return False
    labels = labels_of(found)
    return not matches(governed.namespaces, {"kubernetes.io/metadata.name": namespace, **labels})


async def create(ask: Ask, manifest: Json, seen: Foreseen, earlier: list[Earlier]) -> Foreseen:
    """Create a job that was foreseen; what is answered has the name that it got. Raises ApiError."""
    try:
        made = await ask.client.create(of_jobs(job_kind(manifest)).path(seen.namespace), manifest)
    except ApiError as error:
        return _refused(seen, error)
    done = replace(seen, name=name_of(made), created=True)
    if earlier and earlier[-1].called == _called(seen):
        earlier[-1] = replace(earlier[-1], called=_called(done))
    return done


def _refused(seen: Foreseen, error: ApiError) -> Foreseen:
    """The answer for a job that the API server would not take. Raises the error if it says nothing of the object."""
    if not isinstance(error, AlreadyExists | Invalid | Forbidden | NotFound):
        raise error
    return replace(seen, answer=Foresight.REFUSED, reason=error.reason, message=error.message)


async def _jobs_refused(ask: Ask, made: Json, where: str) -> str:
    """Why the API server would take a JobSet and not its Jobs, which its controller makes later; "" where it takes them
    too, or that may not be asked. Of a JobSet hardly anything in the pod templates is looked at."""
    sets = objects(obj(made.get("spec")).get("replicatedJobs"))
    entries = {text(one.get("name")): obj(one.get("template")) for one in sets}
    for slot in JOBSET.slots(made):
        job = entries[slot.pod_set]
        name = f"{text(obj(made.get('metadata')).get('name'))}-{slot.pod_set}-0"
        one = {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "metadata": {**obj(job.get("metadata")), "name": name},
            "spec": {**obj(job.get("spec")), "template": as_made(slot), "suspend": True},
        }
        try:
            await ask.client.create(of_jobs(JOB).path(where), one, dry_run=True)
        except ApiError as error:
            if isinstance(error, Forbidden | NotFound):
                continue  # it is not the asker who makes them
            if not isinstance(error, AlreadyExists | Invalid):
                raise
            return f"JobSet's controller could not make Job {name}: {error.message}"
    return ""


def _called(seen: Foreseen) -> str:
    return f"{seen.kind} {seen.namespace}/{seen.name}"


async def _decided(
    ask: Ask, kind: JobKind, made: Json, seen: Foreseen, rules: Rules, limits: Limits, earlier: list[Earlier]
) -> Foreseen:
    names = ask.names
    local = await ask.read_one(ask.local_queues, seen.queue, seen.namespace)
    if local is None and not ask.hidden:
        cause = Cause(Reason.MISCONFIGURED, Detail.QUEUE_MISSING, subject=seen.queue)
        return _waits(seen, cause)
    seen = replace(seen, cluster_queue=text(obj(obj(local).get("spec")).get("clusterQueue")))
    if stop_policy_of(local):
        return _waits(seen, Cause(Reason.ON_HOLD, subject=f"LocalQueue {seen.queue}"))

    cluster = await _read(ask, seen.namespace, rules)
    there = "; the queue is there" if local is not None else ""
    if hidden := await _claimed(ask, kind, made, seen.namespace, cluster.devices):
        said = f"you may not see {hidden}, which say what devices its pods ask for{there}"
        return replace(seen, answer=Foresight.UNKNOWN, message=said, hidden=ask.hidden)
    runtimes = cluster.found[RUNTIME_CLASSES.plural]
    job = view(kind, made, names)
    value, problems = build_workload(
        kind,
        made,
        names,
        queue=seen.queue,
        priority=_priority(job, cluster),
        limit_ranges=cluster.of(LIMIT_RANGES.plural),
        quotas=cluster.of(RESOURCE_QUOTAS.plural),
        runtime_classes=None if runtimes is None else {name_of(raw): raw for raw in runtimes},
        devices=cluster.devices,
        limits=limits,
    )
    classes = (cluster.found[plural] for plural in (_OUR_CLASSES, PRIORITY_CLASSES.plural))
    ours, of_pods = (None if found is None else {name_of(raw) for raw in found} for found in classes)
    vain = named_in_vain(job, ours, of_pods, await _accounts_lacking(ask, job))
    if problems := tuple(dict.fromkeys((*job.problems, *vain, *problems))):
        return replace(seen, answer=Foresight.REFUSED, reason=Reason.MISCONFIGURED.value, message="; ".join(problems))
    # Of two that are made in the same second the order is that of the uids.
    value["metadata"] |= {"uid": f"what-if-{len(earlier):06}", "creationTimestamp": values.rfc3339(ask.now)}
    gang, _ = values.workload(value, names)
    if gang.unclear:
        return _waits(seen, Cause(Reason.GATED, Detail.CLAIMS_UNCLEAR, subject=gang.unclear))
    stored = await _stored(ask, gang, cluster, earlier, made)
    if STORED[0][0].plural not in stored.unseen and (lacks := stored.storage.lacks(gang)):
        return _waits(seen, Cause(Reason.GATED, Detail.VOLUME_PENDING, subject=lacks))
    needed = [plural for plural in _NEEDED if cluster.found[plural] is None]
    if volumes.names_claims([gang]):
        needed += stored.unseen
    if needed:
        said = f"you may not see {', '.join(needed)} of the whole cluster, which decide about it{there}"
        return replace(seen, answer=Foresight.UNKNOWN, message=said, hidden=ask.hidden)
    gang = stored.storage.laid_on(gang)[0]
    scene = cluster.with_one_more(gang, rules, stored, earlier)
    told, admit = _run(scene.state, gang.key, seen, scene.called, ask)
    earlier.append(Earlier(_called(seen), gang, admit))
    return told


_FOLDED: Mapping[str, Callable[..., Any]] = {
    "clusterqueues": values.cluster_queue,
    "cohorts": values.cohort,
    "resourceflavors": values.flavor,
    "topologies": values.topology,
    "admissionchecks": values.admission_check,
    "localqueues": values.local_queue,
    "namespaces": values.namespace,
    "nodes": values.node,
}
"""What decides about a job besides gangs and pods."""
_OUR_CLASSES = "workloadpriorityclasses"
_NEEDED = ("clusterqueues", "resourceflavors", "localqueues", "namespaces", "nodes", "workloads", "pods")
"""Without these nothing can be said. (Of the others there may be none.)"""


@dataclass(frozen=True)
class _Cluster:
    """The objects on which decisions about jobs depend, as they are now."""

    names: Names
    found: Mapping[str, list[Json] | None]
    """Plural of a kind -> its objects; None where the asker may not see them."""
    devices: Devices

    def of(self, plural: str) -> list[Json]:
        return self.found[plural] or []

    @cached_property
    def gangs(self) -> list[tuple[Workload, str]]:
        """The gangs, with their jobs."""
        return [(values.workload(raw, self.names)[0], _job_of(raw)) for raw in self.of("workloads")]

    @cached_property
    def pods(self) -> list[PodView]:
        """As the controller reads them."""
        return [pod_as_seen(self.names, msgspec.Raw(msgspec.json.encode(raw))) for raw in self.of("pods")]

    def before(self, earlier: Sequence[Earlier]) -> list[Earlier]:
        """Those among them that are not there: one that was created may have its Workload by now."""
        listed = {job for _, job in self.gangs}
        return [one for one in earlier if one.called not in listed]

    def claims_used(self, earlier: Sequence[Earlier]) -> Iterator[tuple[volumes.User, Collection[str]]]:
        """Who uses PersistentVolumeClaims: pods, gangs, and the jobs that were foreseen before."""
        for gang in (*(gang for gang, _ in self.gangs), *(one.held for one in self.before(earlier))):
            yield volumes.use_of(gang)
        for pod in self.pods:
            yield ("Pod", pod.namespace, pod.name), pod.claims if pod.node and not pod.done else ()

    def with_one_more(self, gang: Workload | None, rules: Rules, stored: _Stored, earlier: list[Earlier]) -> _Scene:
        """The State of the controller once this gang waits (None: without one more), and those foreseen before have
        what they got."""
        state = State(rules)
        for plural, convert in _FOLDED.items():
            for raw in self.of(plural):
                value = convert(raw, self.names)[0]
                state.apply(Put(self.devices.laid_on(value) if isinstance(value, Node) else value))
        standing: dict[Who, tuple[Stand, ...]] = {("gang", *other.key): stands_of(other) for other, _ in self.gangs}
        before = self.before(earlier)
        for one in before:
            standing["gang", *one.gang.key] = stands_of(one.held)
        holding = {other.uid for other, _ in self.gangs if other.admission is not None and not other.finished}
        running: list[PodUsage] = []
        for pod in self.pods:
            if pod.usage is not None:
                running.append(pod.usage)
                reserved = bool(pod.pinned) and pod.workload_uid in holding
                standing["pod", *pod.usage.key] = stand_of(pod.usage, pod.labels, reserved=reserved)
        for usage in (*running, *self.devices.held(running)):
            state.apply(Put(usage))
        labelled = {name_of(raw): labels_of(raw) for raw in self.of("nodes")}
        neighbours = Neighbours(standing.items, lambda node: labelled.get(node, {}))
        called: dict[Key, str] = {}
        for other, job in self.gangs:
            state.apply(Put(neighbours.laid_on(stored.laid_on(other))))
            called[other.key] = job
        for one in before:
            state.apply(Put(neighbours.laid_on(one.gang)))
            called[one.gang.key] = one.called
            if one.admit is not None:
                state.apply(Assumed(one.admit))
        if gang is not None:
            state.apply(Put(neighbours.laid_on(gang)))
        return _Scene(state, called, {other.key: other for other, _ in self.gangs}, neighbours, stored)

    def changed(self, objects_: Sequence[Json], kinds: Mapping[str, Kind]) -> _Cluster:
        """The same with these objects in place of those of the same names."""
        found = dict(self.found)
        for one in objects_:
            plural = kinds[text(one.get("kind"))].plural
            found[plural] = [*(raw for raw in found[plural] or () if key_of(raw) != key_of(one)), one]
        return replace(self, found=found)


async def _read(ask: Ask, namespace: str | None, rules: Rules) -> _Cluster:
    """Read what it takes for a job of this namespace; None: of any."""
    kinds = (
        *map(ask.kind, QUOTA),
        ask.workloads,
        NAMESPACES,
        NODES,
        PODS,
        LIMIT_RANGES,
        RESOURCE_QUOTAS,
        RUNTIME_CLASSES,
        PRIORITY_CLASSES,
    )
    here = (LIMIT_RANGES, RESOURCE_QUOTAS)
    lists = await asyncio.gather(*(ask.read(one, namespace if one in here else None) for one in kinds))
    found = {one.plural: found for one, found in zip(kinds, lists, strict=True)}
    return _Cluster(ask.names, found, await ask.devices(found["clusterqueues"] or (), rules))


@dataclass(frozen=True)
class _Stored:
    """What is known of where volumes are."""

    storage: volumes.Storage
    unseen: tuple[str, ...] = ()
    """Of the kinds that it takes to know, those that the asker may not see."""
    everywhere: bool = True
    """Claims of all namespaces are known, not only of the job's own."""
    namespace: str = ""

    def laid_on(self, gang: Workload) -> Workload:
        """Another gang, as far as is known what its volumes allow."""
        known = not self.unseen and (self.everywhere or gang.namespace == self.namespace)
        return self.storage.laid_on(gang)[0] if known and not gang.finished else gang


@dataclass(frozen=True)
class _Scene:
    """A State, and what lays on gangs what volumes and others leave them, as room is given and given back."""

    state: State
    called: dict[Key, str]
    """Jobs by their gangs."""
    gangs: dict[Key, Workload]
    """Those that are there, with nothing laid on them."""
    neighbours: Neighbours
    stored: _Stored

    def put(self, gang: Workload) -> None:
        """A gang counts as this from now on: it got room, for example, or gave it back."""
        self.gangs[gang.key] = gang
        self._lay(self._touched(("gang", *gang.key), stands_of(gang), *volumes.use_of(gang)) | {gang.key})

    def gone(self, pod: PodView) -> None:
        key = (pod.namespace, pod.name)
        self.state.apply(Gone(PodUsage, key))
        self._lay(self._touched(("pod", *key), (), ("Pod", *key), ()))

    def _touched(self, who: Who, there: tuple[Stand, ...], user: volumes.User, claims: Collection[str]) -> set[Key]:
        touched = self.neighbours.stands(who, there)
        if sources := self.stored.storage.uses(user, claims):
            touched |= {key for key, gang in self.gangs.items() if volumes.names_any(gang, sources)}
        return touched

    def _lay(self, touched: set[Key]) -> None:
        for key in sorted(touched):
            self.state.apply(Put(self.neighbours.laid_on(self.stored.laid_on(self.gangs[key]))))


async def _accounts_lacking(ask: Ask, job: JobView) -> list[str]:
    """ServiceAccounts that its pods name, and of which the asker sees that they are not there."""
    return [
        name
        for name in job.service_accounts
        if await ask.read_one(SERVICE_ACCOUNTS, name, job.namespace) is None
        and f"{SERVICE_ACCOUNTS.kind} {job.namespace}/{name}" not in ask.hidden
    ]


async def _claimed(ask: Ask, kind: JobKind, made: Json, namespace: str, devices: Devices) -> str:
    """Read the ResourceClaimTemplates that a job names; "", or what the asker may not see of what says what devices its
    pods ask for."""
    (classes, _), *_ = LISTED
    templates, convert = CLAIM_TEMPLATES
    named = sorted({name for slot in kind.slots(made) for name in claim_templates(slot.template)})
    by_class = any(device_classes(slot.template) for slot in kind.slots(made))
    if (named or by_class) and await ask.read(classes) is None:
        return classes.plural
    for name in named:
        raw = await ask.read_one(templates, name, namespace)
        if raw is not None:
            devices.change(None, convert(raw, ask.names)[0])
        elif f"{templates.kind} {namespace}/{name}" in ask.hidden:
            return f"{templates.kind} {name}"
    return ""


async def _stored(ask: Ask, gang: Workload, cluster: _Cluster, earlier: Sequence[Earlier], made: Json) -> _Stored:
    """What a job and those beside it need, the claims that would be made for it among it, and who uses which."""
    stored = await _stored_of(ask, [gang, *(other for other, _ in cluster.gangs)], gang.namespace)
    for who, claims in cluster.claims_used(earlier):
        stored.storage.uses(who, claims)
    for name, template in claims_made(made).values():
        if (gang.namespace, name) not in stored.storage.claims:
            meta = {**obj(template.get("metadata")), "name": name, "namespace": gang.namespace}
            stored.storage.change(None, volumes.claim({**template, "metadata": meta}, ask.names)[0])
    return stored


async def _stored_of(ask: Ask, gangs: Collection[Workload], namespace: str = "") -> _Stored:
    """Claims, volumes and storage classes, as far as these gangs need them and the asker may see them; not who uses
    claims. namespace: claims of this one do, where those of all may not be seen."""
    storage, unseen, everywhere = volumes.Storage(), list[str](), True
    elsewhere = volumes.names_claims([one for one in gangs if one.namespace != namespace])
    for kind, convert in STORED if volumes.names_claims(gangs) else ():
        found = await ask.read(kind) if elsewhere or not kind.namespaced else None
        if found is None and kind.namespaced and namespace:
            everywhere = not elsewhere
            found = await ask.read(kind, namespace)
        if found is None:
            unseen.append(kind.plural)
        for raw in found or ():
            storage.change(None, convert(raw, ask.names)[0])
    return _Stored(storage, tuple(unseen), everywhere, namespace)


def _run(state: State, key: Key, seen: Foreseen, called: dict[Key, str], ask: Ask) -> tuple[Foreseen, Admit | None]:
    """Let the engine decide until it has decided about this gang, or refused it."""
    verdict: Verdict | None = None
    evicts: list[str] = []
    gang = state.workloads[key]
    seen = replace(seen, requests=gang.requests, hidden=ask.hidden)
    for _ in range(_CYCLES):
        plan = decide(state, ask.now, _STEPS)
        evicts += [
            called.get(one.key, "/".join(one.key))
            for one in plan.decisions
            if isinstance(one, Evict) and one.preemptor == key
        ]
        for one in plan.decisions:
            if isinstance(one, Admit) and one.key == key:
                given, asked = one.admission.pods, sum(pod_set.count for pod_set in gang.pod_sets)
                said = [] if one.admitted else ["it gets its quota, and waits for admission checks"]
                said += [f"it may start with less: {given} of {asked} pods at a time"] if given < asked else []
                found = replace(
                    seen,
                    answer=Foresight.STARTS if one.admitted else Foresight.WAITS,
                    where=places_of(one.admission),
                    checks=() if one.admitted else one.checks,
                    message="; ".join(said),
                )
                return found, one
            if isinstance(one, Claim) and one.key == key:
                seen = replace(seen, where=places_of(one.record.admission))
        verdict = next((one for one in plan.verdicts if one.key == key), verdict)
        if not plan.more or any(isinstance(one, Claim) and one.key == key for one in plan.decisions):
            break
        for one in plan.decisions:
            state.apply(Assumed(one))
    verdict = verdict or state.explain(key)
    cause = verdict.why if verdict is not None else Cause(Reason.PENDING_EVALUATION, Detail.NEXT_CYCLE)
    cause = in_jobs_words(cause, lambda other: called.get(other, ""))
    place = state.position(key)
    seen = replace(seen, evicts=tuple(dict.fromkeys(evicts)), position=None if place is None else place + 1)
    return _waits(seen, cause), None


# ---------------------------------------------------------------- quota


async def outlook(ask: Ask, given: Sequence[Json], namespace: str, rules: Rules) -> Outlook:
    """What would become of the jobs if quota were as these objects say; nothing is written. Evictions that time alone
    would bring are not among it. Raises ApiError when the cluster cannot be asked."""
    stored_as, refused = await as_applied(ask, given, namespace)
    if refused:
        return Outlook(refused=tuple(refused), hidden=ask.hidden)
    cluster = await _read(ask, None, rules)
    gangs = [gang for gang, _ in cluster.gangs]
    stored = await _stored_of(ask, gangs)
    if any(cluster.found[plural] is None for plural in _NEEDED) or stored.unseen:
        return Outlook(known=False, hidden=ask.hidden)

    def at_rest(one: _Cluster) -> tuple[_Scene, _Rest]:
        for who, claims in one.claims_used([]):  # as they are: other gangs have them at the other's rest
            stored.storage.uses(who, claims)
        scene = one.with_one_more(None, rules, stored, [])
        return scene, _to_rest(scene, one, ask)

    _, before = at_rest(cluster)
    scene, after = at_rest(cluster.changed(stored_as, kinds_of(ask)))
    called, queues = scene.called, {gang.key: scene.state.queue_of(gang) for gang in gangs}

    def moved(keys: set[Key]) -> tuple[Moved, ...]:
        found = [gang for gang in gangs if gang.key in keys]
        rows = [Moved(called[gang.key], queues[gang.key], gang.requests) for gang in found]
        return tuple(sorted(rows, key=lambda row: (row.cluster_queue, row.name)))

    return Outlook(
        starts=moved(after.started - before.started),
        evicts=moved(after.evicted - before.evicted),
        waits=moved(before.started - after.started),
        spares=moved(before.evicted - after.evicted),
        hidden=ask.hidden,
    )


@dataclass(frozen=True)
class _Rest:
    """What was decided until nothing more was."""

    started: set[Key]
    """Gangs that hold quota at the end, and did not at first."""
    evicted: set[Key]


def _to_rest(scene: _Scene, cluster: _Cluster, ask: Ask) -> _Rest:
    """Let the engine decide until nothing more is decided; a gang that is evicted is gone a second later."""
    state, gangs = scene.state, scene.gangs
    pods: dict[str, list[PodView]] = {}
    for pod in cluster.pods:
        if pod.usage is not None:
            pods.setdefault(pod.workload_uid, []).append(pod)
    held = {gang.key for gang in gangs.values() if gang.admission is not None and not gang.evicted}
    evicted: set[Key] = set()
    now = ask.now

    for gang in _drained(state, gangs):
        evicted.add(gang.key)
        scene.put(structs.replace(gang, evicted="ClusterQueueStopped", evicted_at=now))
    for _ in range(_CYCLES):
        plan = decide(state, now, _STEPS)
        for one in plan.decisions:
            state.apply(Assumed(one))
        for one in plan.decisions:
            scene.put(_written(gangs[one.key], one, now))
            if isinstance(one, Evict):
                evicted.add(one.key)
        leaving = [gang for gang in gangs.values() if gang.evicted and gang.admission is not None]
        for gang in leaving:
            for pod in pods.pop(gang.uid, ()):
                scene.gone(pod)
            scene.put(structs.replace(gang, admission=None, admitted=False, reserved_at=0, admitted_at=0))
        if not plan.decisions and not plan.more and not leaving:
            break
        now += 1000
    runs = {gang.key for gang in gangs.values() if gang.admission is not None and not gang.evicted}
    return _Rest(runs - held - evicted, evicted)


def _drained(state: State, gangs: Mapping[Key, Workload]) -> list[Workload]:
    """Gangs whose queue is stopped and drained, or stopped while they wait for admission checks."""
    out = []
    for gang in gangs.values():
        if gang.admission is not None and not gang.finished and not gang.evicted:
            queues = (
                state.cluster_queue(gang.admission.cluster_queue),
                state.local_queue((gang.namespace, gang.queue)),
            )
            policies = {queue.stop_policy for queue in queues if queue is not None}
            if StopPolicy.HOLD_AND_DRAIN in policies or (StopPolicy.HOLD in policies and not gang.admitted):
                out.append(gang)
    return out


def _written(gang: Workload, decision: Decision, now: int) -> Workload:
    """The gang as it is once a decision about it is written; an eviction counts among those it has had."""
    after = written(gang, decision, now)
    if isinstance(decision, Evict) and decision.reason is EvictReason.IN_COHORT_FAIR_SHARING:
        return structs.replace(after, fair_evictions=(*gang.fair_evictions, now))
    return after


def _waits(seen: Foreseen, cause: Cause) -> Foreseen:
    advice = advice_for(cause.reason, cause.detail)
    return replace(
        seen,
        answer=Foresight.WAITS,
        reason=cause.reason.value,
        detail=cause.detail.value,
        message=sentence(cause),
        owner=advice.owner if advice is not None else "",
        platform=advice.platform if advice is not None else "",
    )


def _job_of(raw: Json) -> str:
    """The name by which people know a Workload: that of its job."""
    return as_called(key_of(raw), owner_of(raw))


def _priority(job: JobView, cluster: _Cluster) -> int:
    """As the controller counts it."""
    defaults = Defaults(cluster.devices)
    for plural, is_ours in ((_OUR_CLASSES, True), (PRIORITY_CLASSES.plural, False)):
        for raw in cluster.of(plural):
            defaults.priority_seen(priority_class_of(raw), ours=is_ours)
    return defaults.priority(job)[0]
