"""What people change in a cluster by command: with their own rights, and by dry run where they ask for one.

Nothing here is the controller's. What it takes to stop a queue, to queue a job again, to carry quota from one cluster
to another or to give everything back before Muster is taken off is a few writes to objects that people may write
themselves; the answers say what was, or would be, written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from admission.controller.answers import State, plain
from admission.controller.ask import QUEUE_KINDS, Ask, NotSeen, NotThere, is_called, typed
from admission.controller.resources import NAMESPACES, PODS, QUOTA, of_jobs
from admission.controller.standing import current, stop_policy_of
from admission.engine.model import Detail
from admission.jobs import pins
from admission.jobs.kinds import (
    DELETED,
    ENDED,
    KIND_OF,
    JobKind,
    JobView,
    items,
    labels_of,
    name_of,
    namespace_of,
    obj,
    text,
    view,
)
from admission.jobs.kinds import KINDS as JOB_KINDS
from admission.kube.client import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Kind,
    NotFound,
    Unavailable,
    Undeclared,
)
from admission.kube.lease import LEASES
from admission.names import KUEUE_GROUP

T = TypeVar("T")
Json = dict[str, Any]
_UNHEARD = "nobody knows whether it was written"
MANAGER = "muster-cli"
TOGETHER = 16
"""Writes under way at once."""
LEAVES_S = 600.0
"""So long a pause may last by which a job is queued again."""


class Did(Enum):
    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Change:
    """One object, and what was, or would be, done to it."""

    subject: str
    """kind/name, as kubectl writes it."""
    did: Did
    namespace: str = ""
    message: str = ""
    lines: tuple[str, ...] = ()
    """What differs: "path: before -> after"."""


@dataclass(frozen=True)
class Changes:
    rows: tuple[Change, ...]
    dry_run: bool = False
    hidden: tuple[str, ...] = ()
    leaderless: str = ""
    """What is wrong with who leads, where that matters."""

    @property
    def refused(self) -> bool:
        return any(row.did is Did.REFUSED for row in self.rows)

    @property
    def broke_off(self) -> bool:
        """Did nobody answer any more while it was written."""
        return any(row.message.startswith(_UNHEARD) for row in self.rows)

    def as_json(self) -> Json:
        return dict(plain(self))


async def together(write: Callable[..., Awaitable[T]], given: Iterable[tuple[Any, ...]]) -> list[T]:
    """What comes of `write(*one)` of each, `TOGETHER` at once, in their order."""
    places = asyncio.Semaphore(TOGETHER)

    async def placed(one: tuple[Any, ...]) -> T:
        async with places:
            return await write(*one)

    return await asyncio.gather(*map(placed, given))


# ---------------------------------------------------------------- queues


def queue_named(ask: Ask, said: str) -> tuple[Kind, str]:
    """A ClusterQueue by its name, or clusterqueue/NAME, localqueue/NAME, and their short forms. Raises NotThere."""
    called, slash, name = said.rpartition("/")
    if not name:
        raise NotThere(f"{said!r} names no queue: write NAME or clusterqueue/NAME, or localqueue/NAME")
    for kind in ("ClusterQueue", "LocalQueue"):
        if not slash or is_called(called, QUEUE_KINDS[kind], ask.kind(kind)):
            return ask.kind(kind), name
    raise NotThere(f"{called!r} is no kind of queue: write NAME or clusterqueue/NAME, or localqueue/NAME")


async def admitted_in(ask: Ask, said: str, namespace: str) -> int:
    """How many gangs a queue's status says that run in it. Raises NotThere."""
    _, _, raw = await _queue(ask, said, namespace)
    found = obj(raw.get("status")).get("admittedWorkloads")
    return found if isinstance(found, int) else 0


async def _queue(ask: Ask, said: str, namespace: str) -> tuple[Kind, str, Json]:
    """The kind, name and object of a queue. Raises NotThere."""
    kind, name = queue_named(ask, said)
    try:
        return kind, name, await ask.client.get(kind.path(namespace, name))
    except NotFound:
        where = f" in namespace {namespace!r}" if kind.namespaced else ""
        raise NotThere(f"there is no {kind.kind} {name!r}{where}") from None


async def stop_policy(ask: Ask, said: Sequence[str], namespace: str, policy: str, *, dry_run: bool) -> Changes:
    """Set the stop policy of these queues: None, Hold or HoldAndDrain. They are written together: one that goes on
    while others are stopped borrows what is theirs. Raises NotThere, before any is written, and, of one alone,
    ApiError."""
    found = [await _queue(ask, one, namespace) for one in dict.fromkeys(said)]

    async def one(kind: Kind, name: str, raw: Json) -> Change:
        subject, where = f"{kind.kind.lower()}/{name}", namespace if kind.namespaced else ""
        before = stop_policy_of(raw) or "None"
        if before == policy:
            return Change(subject, Did.UNCHANGED, where, f"stopPolicy is {policy} already")
        patch, path = {"spec": {"stopPolicy": policy}}, kind.path(namespace, name)
        try:
            await ask.client.merge_patch(path, patch, dry_run=dry_run, field_manager=MANAGER)
        except ApiError as error:
            if len(found) == 1:
                raise
            why = unheard(error) if isinstance(error, Unavailable) else error.message
            return Change(subject, Did.REFUSED, where, why)
        return Change(subject, Did.CHANGED, where, lines=(f"spec.stopPolicy: {before} -> {policy}",))

    return Changes(tuple(await together(one, found)), dry_run)


# ---------------------------------------------------------------- one job, queued again


@dataclass(frozen=True)
class Again:
    """What it takes to queue a job again."""

    view: JobView
    workload: Json | None
    state: State
    step: str
    """unpause, activate, hurry, restart, or "" when it is in the queue or past it."""
    message: str


async def again(ask: Ask, wanted: str, namespace: str) -> Again:
    """What keeps a job out of the queue, or, of one that runs, that it would have to leave. Raises NotThere."""
    kind, raw = await ask.job(wanted, namespace)
    job = view(kind, raw, ask.names)
    workload = current(await ask.workloads_of(job))
    standing = (await ask.why(wanted, namespace)).standing

    def found(step: str, message: str) -> Again:
        return Again(job, workload, standing.state, step, message)

    if standing.state is State.UNMANAGED:
        return found("", f"it names no queue (label {ask.names.queue_label})")
    if standing.state is State.FINISHED:
        return found("", "it has finished: create it anew")
    if standing.state is State.LEAVING and standing.reason in ENDED:
        return found("", "it has ended, and its pods are leaving: create it anew")
    if job.paused:
        return found("unpause", f"its owner paused it: the label {ask.names.pause_label} is taken off")
    if standing.state is State.RELEASED:
        return found("", "it runs without Muster: nothing is reserved for it")
    if workload is None:
        return found("", "it has no Workload yet: the controller makes one when it next looks")
    if standing.detail == Detail.WORKLOAD_DELETED.value:
        return found("", standing.message)
    if obj(workload.get("spec")).get("active") is False:
        return found("activate", "its Workload was switched off: spec.active is set to true")
    if standing.state in (State.STARTING, State.RUNNING, State.RESERVED):
        return found("restart", f"it is {standing.state.value}: it is stopped, and goes back into the queue")
    if standing.reason == DELETED:
        return found("", "it was deleted, and its pods are leaving: create it anew")
    if standing.state is State.LEAVING:
        return found("", "it was evicted and its pods are leaving; it is queued again by itself")
    if standing.detail == "Backoff":
        return found("hurry", "it waits out a backoff: the wait ends now")
    return found("", f"it is in the queue: {standing.message}")


async def requeue(ask: Ask, what: Again, *, dry_run: bool, told: Callable[[str], None]) -> Changes:
    """Do it. A job that runs is paused, and the pause is lifted once its room is free; so is one in a backoff whose
    Workload the asker may not write. Raises ApiError, and NotThere when that takes more than ten minutes (the job is
    queued again all the same)."""
    job, names = what.view, ask.names
    path = of_jobs(KIND_OF[job.kind]).path(job.namespace, job.name)
    subject = f"{job.kind.lower()}/{job.name}"

    async def pause(value: str | None) -> None:
        patch = {"metadata": {"uid": job.uid, "labels": {names.pause_label: value}}}
        await ask.client.merge_patch(path, patch, dry_run=dry_run, field_manager=MANAGER)

    async def by_pause(until: str, over: Callable[[Json], bool]) -> None:
        if dry_run:
            await pause("true")
            return
        label = f"label {names.pause_label}"
        pausing = asyncio.ensure_future(pause("true"))
        try:
            # Not cut off in the middle: a pause that is still under way could come after it was taken back.
            await asyncio.shield(pausing)
            told(f"{subject} is paused ({label}) until {until}; waiting for that")
            await _until(ask, job, over, until)
        finally:
            try:
                await asyncio.wait({pausing})
                failed = pausing.exception()
                if not (isinstance(failed, ApiError) and 400 <= failed.status < 500):  # refused: it never stood
                    await pause(None)
            except (ApiError, asyncio.CancelledError):  # cancelled again: whoever asked does not wait for it
                lifts = f"muster requeue {subject} -n {job.namespace}"
                told(f"{subject} may still be paused ({label}): `{lifts}` lifts it")
                raise

    if not what.step:
        return Changes((Change(subject, Did.UNCHANGED, job.namespace, what.message),), dry_run)
    meta = obj((what.workload or {}).get("metadata"))
    of_workload = ask.workloads.path(job.namespace, text(meta.get("name")) or "none")
    exactly = {"metadata": {"resourceVersion": meta.get("resourceVersion")}}
    if what.step == "unpause":
        await pause(None)
    elif what.step in ("activate", "hurry"):
        path_, patch = of_workload, {**exactly, "spec": {"active": True}}
        if what.step == "hurry":
            path_, patch = f"{of_workload}/status", {**exactly, "status": {"requeueState": {"requeueAt": None}}}
        try:
            await ask.client.merge_patch(path_, patch, dry_run=dry_run, field_manager=MANAGER)
        except Forbidden:
            # Who runs the queues may not write Workloads, and may delete one: the controller makes it anew.
            try:
                await ask.client.delete(of_workload, uid=text(meta.get("uid")), dry_run=dry_run)
            except Forbidden:
                if what.step != "hurry":
                    raise
                # Who owns the job may do neither. After a pause it waits no more.
                await by_pause("the controller has ended its wait", _waits_no_more)
    else:
        await by_pause("its pods have left", _holds_nothing)
    return Changes((Change(subject, Did.CHANGED, job.namespace, what.message),), dry_run)


def _holds_nothing(status: Json) -> bool:
    return "admission" not in status


def _waits_no_more(status: Json) -> bool:
    return not obj(status.get("requeueState")).get("requeueAt")


async def _until(ask: Ask, job: JobView, over: Callable[[Json], bool], what: str) -> None:
    """Until that is so of its Workload's status, or it has none. Raises NotThere where `what` takes too long."""
    try:
        async with asyncio.timeout(LEAVES_S):
            while (workload := current(await ask.workloads_of(job))) is not None:
                if over(obj(workload.get("status"))):
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise NotThere(f"{what}: that took more than {LEAVES_S:.0f} s, of {job.name}") from None


# ---------------------------------------------------------------- quota as files


async def export(ask: Ask, namespace: str | None) -> tuple[list[Json], tuple[str, ...]]:
    """(all quota objects as one would write them, what may not be seen), in an order in which they can be applied.
    `namespace`: whose LocalQueues; None: those of all."""
    kinds = list(map(ask.kind, QUOTA))
    lists = await asyncio.gather(*(ask.read(kind, namespace if kind.namespaced else None) for kind in kinds))
    out = [as_written(raw) for found in lists for raw in sorted(found or (), key=key_of)]
    return out, ask.hidden


def as_written(raw: Json) -> Json:
    """An object without what the API server and controllers wrote into it."""
    meta = obj(raw.get("metadata"))
    kept: Json = {name: meta[name] for name in ("name", "namespace", "labels", "annotations") if meta.get(name)}
    notes = {k: v for k, v in obj(kept.pop("annotations", {})).items() if not k.startswith("kubectl.kubernetes.io/")}
    if notes:
        kept["annotations"] = notes
    out: Json = {"apiVersion": raw.get("apiVersion"), "kind": raw.get("kind"), "metadata": kept}
    return out | {name: value for name, value in raw.items() if name not in (*out, "status")}


def key_of(raw: Json) -> tuple[str, str]:
    """(namespace, name) of an object."""
    return namespace_of(raw), name_of(raw)


def kinds_of(ask: Ask) -> dict[str, Kind]:
    """Namespaces and the kinds of quota, by name, in the order in which their objects can be created."""
    return {kind.kind: kind for kind in (NAMESPACES, *map(ask.kind, QUOTA))}


async def put(ask: Ask, given: Sequence[Json], namespace: str, *, dry_run: bool, new: str = "") -> Changes:
    """Apply quota objects (and Namespaces) server-side, each in the order in which it can be, those of the kind `new`
    last. An object whose fields somebody else manages is refused with their name, never taken from them; one of the
    kind `new`, if it is there already. Raises ApiError when nobody answers a dry run; of what is written it is told
    how far it came."""
    kinds = kinds_of(ask)
    order = list(kinds)
    rows: list[Change] = []
    coming = _namespaces_of(given)
    known = [one for one in given if text(one.get("kind")) in kinds and _group(one) in ("", ask.names.group)]
    rows.extend(_left_out(one, ask.names.group) for one in given if one not in known)
    # Whoever repeats what broke off finds none of the kind `new` there.
    in_order = sorted(known, key=lambda one: (one["kind"] == new, order.index(one["kind"]), key_of(one)))
    away: ApiError | None = None
    for one in in_order:
        if away is not None:
            rows.append(Change(_subject(one), Did.REFUSED, key_of(one)[0], not_tried(away)))
            continue
        try:
            row = await _put(ask, kinds[one["kind"]], one, namespace, coming, dry_run=dry_run, new=one["kind"] == new)
        except ApiError as error:
            if dry_run:
                raise
            away, row = error, Change(_subject(one), Did.REFUSED, key_of(one)[0], unheard(error))
        rows.append(row)
    return Changes(tuple(rows), dry_run, ask.hidden)


def _left_out(one: Json, group: str) -> Change:
    """What is for others; what nobody knows is a mistake."""
    ours = group != KUEUE_GROUP  # Kueue has more kinds than these
    if ours and _group(one) == group and one.get("kind") not in (*QUOTA, "Workload"):
        return Change(
            _subject(one), Did.REFUSED, message=f"there is no such kind in {group}: one of {', '.join(QUOTA)}"
        )
    return Change(_subject(one), Did.SKIPPED, message=f"not a quota object of {group}")


def unheard(error: ApiError) -> str:
    """Of what was to be written, and got no answer that says whether it is."""
    return f"{_UNHEARD}: {error.message or error.reason}"


def not_tried(error: ApiError) -> str:
    """Of what was to be written after that."""
    why = "not tried, for nobody answers" if isinstance(error, Unavailable) else "not tried"
    return f"{why}: {error.message or error.reason}"


async def create(ask: Ask, given: Sequence[Json], new: str, *, dry_run: bool) -> Changes:
    """Create quota objects, all or none. What is there already is left as it is: of the kind `new` it is refused, of
    others if it is not the same. Raises ApiError when nobody answers its dry run."""
    tried = await put(ask, given, "", dry_run=True, new=new)
    rows = tuple(
        replace(row, did=Did.REFUSED, message="exists already, and is not the same") if row.did is Did.CHANGED else row
        for row in tried.rows
    )
    if dry_run or any(row.did is Did.REFUSED for row in rows):
        return replace(tried, rows=rows)
    return await put(ask, given, "", dry_run=False, new=new)


async def _put(
    ask: Ask, kind: Kind, one: Json, namespace: str, coming: set[str], *, dry_run: bool, new: bool
) -> Change:
    if not key_of(one)[1]:
        return Change(_subject(one), Did.REFUSED, message="it has no metadata.name")
    where, path, wanted = _sent(kind, one, namespace)
    try:
        before: Json | None = typed(await ask.client.get(path), kind)
    except NotFound:
        before = None
    if new and before is not None:
        said = f"exists already: `muster export` and `muster import` change a {kind.kind}"
        return Change(_subject(one), Did.REFUSED, where, said)
    try:
        after = await ask.client.apply(path, wanted, manager=MANAGER, force=False, dry_run=dry_run)
    except NotFound as error:
        if dry_run and where in coming:
            return Change(_subject(one), Did.CREATED, where, "after its namespace")
        return Change(_subject(one), Did.REFUSED, where, error.message)
    except Conflict as error:
        return Change(_subject(one), Did.REFUSED, where, f"somebody else manages fields of it: {error.message}")
    except ApiError as error:
        return Change(_subject(one), Did.REFUSED, where, refusal(error))
    if before is None:
        return Change(_subject(one), Did.CREATED, where)
    lines = tuple(differences(as_written(before), as_written(typed(after, kind))))
    return Change(_subject(one), Did.CHANGED if lines else Did.UNCHANGED, where, lines=lines)


def _sent(kind: Kind, one: Json, namespace: str) -> tuple[str, str, Json]:
    """(namespace, path, what is applied there) of an object; `namespace` counts where it names none."""
    said, name = key_of(one)
    where = (said or namespace) if kind.namespaced else ""
    wanted = as_written({**one, "apiVersion": kind.api_version, "kind": kind.kind})
    if where:
        wanted["metadata"]["namespace"] = where
    return where, kind.path(where, name), wanted


async def as_applied(ask: Ask, given: Sequence[Json], namespace: str) -> tuple[list[Json], list[str]]:
    """(quota objects as the API server would store them, if they took the place of what is there; what it refuses, and
    why). Nothing is written, and who manages which fields does not matter. Raises ApiError when nobody answers."""
    kinds = kinds_of(ask)
    coming = _namespaces_of(given)
    stored: list[Json] = []
    refused: list[str] = []
    for one in given:
        kind = kinds.get(text(one.get("kind")))
        if kind is None or _group(one) not in ("", ask.names.group) or not key_of(one)[1]:
            refused.append(f"{_subject(one)}: not a quota object of {ask.names.group}")
            continue
        where, path, wanted = _sent(kind, one, namespace)
        try:
            found = await ask.client.apply(path, wanted, manager=MANAGER, force=True, dry_run=True)
        except NotFound as error:
            if where not in coming:  # else nobody has a job there yet
                refused.append(f"{_subject(one)}: {error.message}")
        except ApiError as error:
            refused.append(f"{_subject(one)}: {refusal(error)}")
        else:
            stored.append(typed(found, kind))
    return stored, refused


def _namespaces_of(given: Sequence[Json]) -> set[str]:
    """Those that these objects make."""
    return {key_of(one)[1] for one in given if one.get("kind") == NAMESPACES.kind}


def refusal(error: ApiError) -> str:
    """Why the API server does not let an object be written so. Raises the error that says nothing of the object."""
    if "failed calling webhook" in error.message:
        return f"a webhook that is asked first does not answer: {error.message}"
    if isinstance(error, Undeclared):
        return f"there is no such field here: {', '.join('.'.join(field) for field in error.fields)}"
    if not isinstance(error, Invalid | Forbidden | Conflict):
        raise error
    return error.message


def _group(one: Json) -> str:
    group, slash, _ = text(one.get("apiVersion")).partition("/")
    return group if slash else ""


def _subject(one: Json) -> str:
    return f"{text(one.get('kind')).lower() or 'object'}/{key_of(one)[1]}"


def differences(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """ "path: before -> after" for all that differs.

    >>> list(differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}], "c": 4}))
    ['a[1].b: 2 -> 3', 'c: - -> 4']
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{at}.{key}" if at else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{at}[{i}]")
    elif before != after:
        yield f"{at}: {'-' if before is None else before} -> {'-' if after is None else after}"


# ---------------------------------------------------------------- everything given back


async def leaderless(ask: Ask, *, sure: bool) -> tuple[str, str]:
    """(why nothing can be given back yet, what is wrong with who leads). `sure`: the controller's namespace was named,
    not guessed; else its Lease is looked for everywhere. Raises ApiError."""
    found = await ask.leases()
    leads = next((home for home, led in (found or {}).items() if led), None)
    if leads is None and found and ask.home not in found:
        ask.home = next(iter(found))
    home = leads or ask.home
    wrong = await ask.leaderless() if leads is None else ""
    if not wrong:
        down = f"kubectl -n {home} scale deployment muster-controller --replicas=0"
        first = f"it would hold them again. First: {down}"
        if (held := await ask.holds(home)) is None:
            return f"a controller leads, or you may not see whether: {first}", ""
        who, seconds = held
        gone = (
            f"If it has been removed, ask again in {seconds} s: so long its Lease {home}/{ask.names.lease_name} counts"
            f". Where none was, whoever may edit there wrote it: kubectl -n {home} delete lease {ask.names.lease_name}"
        )
        return f"a controller leads ({who}): {first}. {gone}", ""
    if found is None and not sure and await ask.read_one(LEASES, ask.names.lease_name, home) is None:
        return (
            f"no Lease {home}/{ask.names.lease_name}, and you may not look for it in all namespaces: a controller may "
            "lead elsewhere. Name the namespace it was installed in with --controller-namespace"
        ), wrong
    return "", wrong


async def held_back(ask: Ask, namespace: str | None) -> list[tuple[JobKind, Json]]:
    """Every job that Muster governs, holds or has started and that has not finished, as far as `ask.hidden` says: one
    without a label by its Workload, or by the mark that it was held. Raises ApiError."""
    out: list[tuple[JobKind, Json]] = []
    found = await ask.read(ask.workloads, namespace) if await ask.served(ask.workloads) else ()
    waiting = {labels_of(raw).get(ask.names.job_uid_label) for raw in found or ()}
    for kind in JOB_KINDS:
        resource = of_jobs(kind)
        for raw in (await ask.read(resource, namespace) or ()) if await ask.served(resource) else ():
            job = view(kind, raw, ask.names)
            ours = job.labelled or job.started or job.kept_back or (job.suspended and job.uid in waiting)
            if ours and job.finished is None and not job.of_jobset and not job.deleting:
                out.append((kind, raw))
    return out


async def give_back(ask: Ask, kind: JobKind, raw: Json, *, unlabel: bool, dry_run: bool) -> Change:
    """Let one job go: what a start wrote into a stopped one is taken back, and it is unsuspended; one that runs is left
    running, and its pods that wait behind a gate of Muster's are let go.

    The hold lets through who may admit and writes under the name of the controller's concern: both are meant here."""
    job, names = view(kind, raw, ask.names), ask.names
    resource = of_jobs(kind)
    path = resource.path(job.namespace, job.name)
    change = Change(f"{job.kind.lower()}/{job.name}", Did.CHANGED, job.namespace)
    off = {names.queue_label: None} if unlabel and job.labelled else {}
    try:
        if not job.suspended:
            gated = await _ungate(ask, job, dry_run=dry_run)
            if off:
                await ask.client.merge_patch(
                    path, {"metadata": {"labels": off}}, dry_run=dry_run, field_manager=names.job_manager
                )
            said = f"runs on; {gated} pod(s) let go that waited for their host" if gated else "runs on"
            if pins.is_gated(obj(obj(raw.get("spec")).get("template")), names):  # it cannot be changed while it runs
                said += f"; but pods that it makes later wait behind the gate {names.topology_gate} for ever: drain "
                said += "its queue while the controller is there (muster stop QUEUE --drain), or suspend it and run "
                said += "this again when its pods have ended"
                return replace(change, did=Did.REFUSED, message=said)
            return replace(change, did=Did.CHANGED if gated or off else Did.UNCHANGED, message=said)
        if job.paused:
            return replace(change, did=Did.SKIPPED, message=f"its owner paused it (label {names.pause_label})")
        if job.started and (undo := pins.restore(raw, names)) is not None:
            clear = pins.clear_start_time(kind, raw) if job.template_frozen else None
            if clear:
                await ask.client.json_patch(path + "/status", clear, dry_run=dry_run, field_manager=names.job_manager)
            if not (clear and dry_run):  # 1.35 and older refuse it before that is cleared, which was only tried
                raw = await ask.client.json_patch(path, undo, dry_run=dry_run, field_manager=names.job_manager)
        patch: Json = {"metadata": {"uid": job.uid}, "spec": {"suspend": False}}
        if job.ungoverned:
            off |= {names.ungoverned_label: None}
        if off:
            patch["metadata"]["labels"] = off
        after = await ask.client.merge_patch(path, patch, dry_run=dry_run, field_manager=names.job_manager)
    except (AlreadyExists, NotFound):
        return replace(change, did=Did.SKIPPED, message="it is gone")
    except NotSeen as error:
        return replace(change, did=Did.REFUSED, message=str(error))
    except ApiError as error:
        said = error.message or error.reason
        if "failed calling webhook" in said:
            said = "the webhook that holds it does not answer; remove the release (helm uninstall), or its webhook "
            said += "configurations, first"
        return replace(change, did=Did.REFUSED, message=said)
    if obj(after.get("spec")).get("suspend") is True:
        said = f"the API server holds it: you lack the right admit on workloads.{names.group}, or remove the hold first"
        return replace(change, did=Did.REFUSED, message=said)
    return replace(change, message="restored and unsuspended" if job.started else "unsuspended")


async def _ungate(ask: Ask, job: JobView, *, dry_run: bool) -> int:
    """Take our scheduling gate off the pods of a gang; how many had it. Raises NotSeen."""
    if not job.started_for:
        return 0
    wanted = f"{ask.names.workload_uid_label}={job.started_for}"
    done = 0
    pods = await ask.read(PODS, job.namespace, label_selector=wanted)
    if pods is None:
        raise NotSeen(f"runs on; you may not see whether its pods wait behind the gate {ask.names.topology_gate}")
    for pod in pods:
        if off := pins.gate_off(pod, ask.names):
            path = PODS.path(*key_of(pod))
            await ask.client.json_patch(path, off, dry_run=dry_run, field_manager=ask.names.job_manager)
            done += 1
    return done


async def kept(ask: Ask) -> list[tuple[Kind, Json]]:
    """The quota objects with the controller's finalizer, as far as `ask.hidden` says. Raises ApiError."""
    return [
        (kind, raw)
        for kind in map(ask.kind, QUOTA)
        for raw in await ask.read(kind) or ()
        if ask.names.finalizer in items(obj(raw.get("metadata")).get("finalizers"))
    ]


async def unkeep(ask: Ask, given: Sequence[tuple[Kind, Json]], *, dry_run: bool) -> tuple[Change, ...]:
    """Take the finalizer of the controller off these objects, which nobody else would do once it is gone."""
    rows: list[Change] = []
    for kind, raw in given:
        meta = obj(raw.get("metadata"))
        rest = [one for one in items(meta.get("finalizers")) if one != ask.names.finalizer]
        patch = {"metadata": {"resourceVersion": meta.get("resourceVersion"), "finalizers": rest or None}}
        change = Change(_subject(raw), Did.CHANGED, message="may be deleted (finalizer taken off)")
        try:
            await ask.client.merge_patch(kind.path(*key_of(raw)), patch, dry_run=dry_run, field_manager=MANAGER)
        except ApiError as error:
            change = replace(change, did=Did.REFUSED, message=error.message or error.reason)
        rows.append(change)
    return tuple(rows)


async def release_all(
    ask: Ask,
    jobs: Sequence[tuple[JobKind, Json]],
    *,
    unlabel: bool,
    dry_run: bool,
    step: Callable[[], None],
) -> Changes:
    """Let all of these jobs go, some at a time; `step` is called after each."""

    async def one(kind: JobKind, raw: Json) -> Change:
        try:
            return await give_back(ask, kind, raw, unlabel=unlabel, dry_run=dry_run)
        finally:
            step()

    return Changes(tuple(await together(one, jobs)), dry_run, ask.hidden)
