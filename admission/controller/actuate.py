"""From a step or a decision to the one write that carries it out.

Each write names what it was decided on (resourceVersion or uid), so that one decided on an old version fails instead of
being applied, also that of a former leader. The answer of a write is laid over the informer's copy at once: the next
look at the job sees what was just written.

Errors go to the caller: `Conflict` and `NotFound` mean "look again". A write without a clear answer (a timeout, a
broken connection) does not return before its outcome is known (`Actuator._once_settled`): until then what it would do
counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from hashlib import blake2s
from itertools import groupby
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from admission import quantity
from admission.controller import lifecycle
from admission.controller.conditions import Condition, condition, with_conditions
from admission.controller.decode import Recent
from admission.controller.defaults import named_in_vain
from admission.controller.lifecycle import DEACTIVATED, Settings, Step, backoff_ms
from admission.controller.resources import PODS, of_jobs, ours
from admission.controller.statuses import Statuses
from admission.controller.unready import JOBS_REFUSED, PODS_REFUSED, said_of
from admission.controller.world import PodView, WorkloadSeen, World
from admission.engine.model import (
    Admission,
    Admit,
    AvoidedNode,
    Claim,
    Decision,
    Domain,
    Evict,
    EvictReason,
    Flavor,
    Key,
    PodSet,
    PodSetAssignment,
    PodShape,
    Reason,
    Replace,
    Workload,
)
from admission.engine.project import Projection, bound, evicted_as, project
from admission.jobs import hold, pins, values
from admission.jobs.kinds import (
    JOB,
    JOBSET,
    KIND_OF,
    KINDS,
    JobKey,
    JobView,
    claim_templates,
    digits,
    millis,
    obj,
    objects,
    owners_form,
)
from admission.jobs.requests import LIMITS, Limits
from admission.jobs.values import rfc3339
from admission.jobs.workload import build_workload, workload_name
from admission.kube.client import (
    AlreadyExists,
    ApiError,
    Client,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unserved,
    for_what_it_is,
)
from admission.kube.events import EVENTS, EventRecorder
from admission.names import (
    ADMITTED,
    EVICTED,
    FINISHED,
    INVALID_JOB,
    JOB_COMPLETION_INDEX,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_REPLICAS_LABEL,
    PODS_READY,
    QUOTA_RESERVED,
    REQUEUED,
    UNKNOWN_KEY,
    Names,
)

log = structlog.get_logger("muster")

_TEST_FAILED = "the server rejected our request due to an error in our request"
"""All that the API server says when a `test` of a JSON patch fails."""

_ADMITTED: Condition = (ADMITTED, True, "Admitted", "The workload is admitted")

_LONGEST_REFUSAL = 700
"""Characters of a refusal that a condition and an Event quote; an Event's message has 1,024 bytes at most."""
_PAGES_OF_EVENTS = 20
"""At most so many pages of 500 Events are read for one gang that lacks pods."""
_MOST_RESOURCES = 64
"""Of one pod set in status.resourceRequests: the kind allows no more. (The pod template says them, too.)"""
_MOST_FLAVORS = 64
"""Entries of status.outOfStock; beyond that the oldest is dropped, and its flavor tried again."""

WRITTEN = (
    "podSets",
    "queueName",
    "priority",
    "priorityClassRef",
    "active",
    "maximumExecutionTimeSeconds",
)
"""Fields of a Workload's spec that follow from its job."""

AVOID_MS = 24 * 3_600_000
REFUSED_MS = 3_600_000
"""How long a job avoids a node to which kube-scheduler lets none of its pods come, for a reason that is not known and
may end. `AVOID_MS`: one with which it was lost twice."""
RAN_WELL_MS = 3_600_000
"""No earlier failed try counts for a gang that has run whole for so long, and for longer than the longest backoff."""


def _path_of(job: JobKey) -> str:
    return of_jobs(KIND_OF[job[0]]).path(job[1], job[2])


@dataclass(frozen=True, slots=True)
class Options:
    """What holds of the cluster that the controller runs in."""

    can_rank: bool
    """Pods are pinned by rank as they are created, by policies or the webhook."""
    limits: Limits = LIMITS
    """How large a queued job may be."""


@dataclass(frozen=True, slots=True)
class Became:
    """A write has set the condition Admitted, Evicted (for a reason of its own) or Finished of a gang."""

    gang: Key
    condition: str
    decision: str
    """The id of the write."""
    reason: str = ""
    cause: str = ""
    message: str = ""


class Actuator:
    """Writes for one cluster. `learn(kind, object)` lays an answer over the informers' copies; `became` is told what
    became of gangs."""

    def __init__(
        self,
        client: Client,
        world: World,
        names: Names,
        settings: Settings,
        events: EventRecorder,
        recent: Recent,
        statuses: Statuses,
        *,
        learn: Callable[[str, dict[str, Any] | bytes], None],
        became: Callable[[Became], None],
        now: Callable[[], int],
        options: Options,
    ) -> None:
        self._client = client
        self._world = world
        self._names = names
        self._settings = settings
        self._events = events
        self._recent = recent
        self._statuses = statuses
        self._learn = learn
        self._became = became
        self._now = now
        self.options = options
        self._workloads = ours(names, "Workload")
        self._strict = not names.as_kueue
        """Have the API server refuse fields of a Workload that its kind does not know, as an older one may not: part of
        what a gang asks for would be lost. Not for Kueue's kind, whose pod templates lack fields that pods may have."""

        self._reserved: set[str] = set()
        """uids of Workloads that this controller has reserved since it leads, and not started yet."""

    def leads(self) -> None:
        """It begins to lead: reservations that are known were written by others, and news of them may be late."""
        self._reserved.clear()

    def gone(self, uid: str) -> None:
        """The Workload with this uid was deleted."""
        self._reserved.discard(uid)

    # ------------------------------------------------------------ decisions of the engine

    async def carry_out(self, decision: Decision, based_on: Workload | None = None) -> str:
        """Write what the engine decided. based_on: the gang as it was decided on. Returns the id of the decision, ""
        where nothing was left to be written. Raises ApiError (Conflict: the Workload has changed since)."""
        if isinstance(decision, Evict) and self._world.ghost_leaves(decision.key, decision.preemptor_uid):
            return ""
        seen = self._world.workloads.get(decision.key)
        if seen is None or (seen.uid and seen.uid != decision.uid):
            raise NotFound(404, "NotFound", "the workload is gone")
        value = seen.view.value
        if value.finished:
            raise NotFound(404, "NotFound", "the gang has finished")
        if isinstance(decision, Evict | Replace) and value.admission is None:
            raise NotFound(404, "NotFound", "the workload has no reservation that could be taken back, or changed")
        if isinstance(decision, Evict) and value.evicted:
            return ""  # it leaves already, for a reason of its own that was written meanwhile
        if based_on is not None and isinstance(decision, Admit | Claim) and value.pod_sets != based_on.pod_sets:
            raise Conflict(409, "Conflict", "the gang asks for something else than was decided on")
        if based_on is not None and isinstance(decision, Replace) and value.lost_nodes != based_on.lost_nodes:
            raise Conflict(409, "Conflict", "the gang has lost other nodes than was decided on")
        if _reservation(value) != (None if based_on is None else _reservation(based_on)) and (
            based_on is not None or isinstance(decision, Admit)
        ):
            raise Conflict(409, "Conflict", "the gang holds another reservation than was decided on")
        now = self._now()
        shown = project(seen.view.value, decision)
        status = with_conditions(seen.status, self._as_kind_has_them(seen, shown.conditions), now, seen.generation)
        match decision:
            case Admit():
                status["admission"] = values.admission_object(decision.admission)
                again = condition(status, REQUEUED)
                if again is not None and again.get("status") == "False":
                    why, said = _queued_again(str(again.get("reason", "")))
                    status = with_conditions(status, [(REQUEUED, True, why, said)], now, seen.generation)
                status.pop("claim", None)
                status.pop("resourceRequests", None)
                status.pop("unhealthyNodes", None)  # of the reservation before
                if state := status.pop("requeueState", None):
                    # It is over; what counts is how often.
                    status |= {"requeueState": {"count": state["count"]}} if state.get("count") else {}
                listed = status.pop("admissionChecks", None) or []
                entries = _entries(listed, decision.checks, now)
                if entries:
                    status["admissionChecks"] = entries
                if any(check not in entries for check in listed):
                    seen = await self._write_checks(seen, [check for check in listed if check in entries])
            case Evict():
                if not self._tries(seen):
                    status.pop("requeueState", None)
                _count_eviction(status, *evicted_as(decision.reason))
                _keep_turns(status, _turns(status, ran=self._world.ran_whole(seen)))
                if decision.reason is EvictReason.IN_COHORT_FAIR_SHARING:
                    # What promises R6 and R8 count; older ones than the window are dropped by age there.
                    status["fairEvictions"] = [*(status.get("fairEvictions") or ()), rfc3339(now)][-16:]
            case Claim():
                status["claim"] = values.claim_object(decision.record)
            case Replace():
                status["admission"] = values.admission_object(decision.admission)
                status.pop("unhealthyNodes", None)
            case _:
                status.pop("admission", None)
        made = await self._apply_status(seen, status)
        if isinstance(decision, Admit) and seen.view.value.job_uid:
            self._reserved.add(seen.uid)
        if any(one[:2] == (ADMITTED, True) for one in shown.conditions):
            self._became(Became(seen.key, ADMITTED, made))
        self._tell(seen, shown.events)
        return made

    async def explain(self, seen: WorkloadSeen, shown: Projection, *, found: bool = False) -> str:
        """Write why a Workload waits, if its conditions do not say so yet; the id of the write, "" if none was due.
        found: its conditions are from before this controller led, and other numbers alone are no reason to write."""
        now = self._now()
        status = with_conditions(seen.status, self._as_kind_has_them(seen, shown.conditions), now, seen.generation)
        if shown.requests and all(len(amounts) <= _MOST_RESOURCES for _, amounts in shown.requests):
            status["resourceRequests"] = [
                {"name": name, "resources": quantity.format_resources(dict(amounts))}
                for name, amounts in shown.requests
            ]
        if _conditions(status) == _conditions(seen.status):
            return ""
        if found and _conditions(status, bound) == _conditions(seen.status, bound):
            return ""
        made = await self._apply_status(seen, status)
        self._tell(seen, shown.events)
        return made

    def _as_kind_has_them(self, seen: WorkloadSeen, conditions: Sequence[Condition]) -> Sequence[Condition]:
        """These conditions as the kind has them: Kueue sets Admitted=False only on what was admitted before."""
        if not self._names.as_kueue or condition(seen.status, ADMITTED) is not None:
            return conditions
        return [one for one in conditions if one[:2] != (ADMITTED, False)]

    # ------------------------------------------------------------ steps of one job

    async def take(self, key: JobKey, step: Step) -> None:
        """Carry out one step of `lifecycle`. Raises ApiError."""
        job = self._world.jobs.get(key)
        seen = self._world.workload_of(key)
        match step:
            case lifecycle.CreateWorkload():
                await self._create(key, _known(job))
            case lifecycle.UpdateWorkload():
                await self._update(key, _known(job), _known(seen))
            case lifecycle.CompareWorkload():
                await self._compare(key, _known(job), _known(seen))
            case lifecycle.Reprioritize():
                value, _, name = self._world.defaults.priority(_known(job))
                await self._reprioritize(_known(seen), value, name)
            case lifecycle.DeleteWorkload():
                self._world.gives_up_place(_known(seen).uid)
                await self.delete_workload(_known(seen))
            case lifecycle.TellUngoverned():
                self.record(key, _known(job), "Warning", INVALID_JOB, hold.not_queued(_known(job), self._names))
            case lifecycle.MarkJob(ungoverned):
                await self._mark(key, _known(job), ungoverned=ungoverned)
            case lifecycle.SuspendJob(why):
                raw = await self._raw(key, _known(job))
                await self._surely_not_reserved(key, _known(job), seen)
                await self._patch_job(key, pins.suspend(raw, self._names))
                self.record(key, _known(job), "Normal", "Stopped", f"Suspended: {why}")
            case lifecycle.SayResumed():
                raw = await self._raw(key, _known(job))
                await self._patch_job(key, pins.say_resumed(raw, rfc3339(self._now())), "status")
            case lifecycle.SayStarted():
                raw = await self._raw(key, _known(job))
                await self._patch_job(key, pins.say_started(raw, rfc3339(self._now())), "status")
            case lifecycle.StopPods():
                await self.stop_pods(step)
                if job is not None:
                    what = "pods are" if step.pods else "Jobs are"
                    why = "it is being deleted" if job.deleting else "its controller does not stop them"
                    self.record(key, job, "Normal", "Stopped", f"Its {what} stopped one by one: {why}")
            case lifecycle.StartJob():
                await self._start(key, _known(job), _known(seen))
            case lifecycle.RemindController(jobs):
                for at in jobs:
                    await self._remind(at)
                view = _known(job)
                owed = "stopped" if view.suspended else "given the pods that are due"
                more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
                what = f"For {self._settings.acknowledge_ms // 1000} s Job {jobs[0][2]}{more} should have been {owed}"
                self.record(key, view, "Warning", "Reminded", f"{what}: the Job controller was made to look again")
            case lifecycle.ClearStartTime():
                raw = await self._raw(key, _known(job))
                await self._patch_job(key, pins.clear_start_time(KIND_OF[key[0]], raw), "status")
            case lifecycle.RestoreJob():
                raw = await self._raw(key, _known(job))
                ops = pins.restore(raw, self._names)
                if ops is None and _known(job).started_by_another:
                    ops = pins.restore_as(KIND_OF[key[0]], raw, await self._pod_sets_before(seen), self._names)
                await self._patch_job(key, ops)
            case lifecycle.RestoreChildren(children):
                await self._restore_children(await self._raw(key, _known(job)), _known(seen), children)
            case lifecycle.EvictWorkload():
                await self._evict_as_it_is(key, _known(job), _known(seen), step)
            case lifecycle.ReplaceNodes(nodes, guilty):
                await self._replace_nodes(_known(seen), nodes, guilty)
            case lifecycle.EvictPods(wanted):
                await self._evict_pods(key, _known(job), wanted)
            case lifecycle.FinishWorkload(succeeded, message):
                reason = "Succeeded" if succeeded else "Failed"
                text = message or f"Job {reason.lower()}"
                told = ("Normal", "FinishedWorkload", f"{reason}: {text}")
                made = await self._set_conditions(_known(seen), [(FINISHED, True, reason, text)], told)
                self._became(Became(_known(seen).key, FINISHED, made, reason, message=text))
            case lifecycle.GiveBack(pods):
                await self._give_back(_known(seen), pods)
            case lifecycle.Ungate(pods):
                await self._ungate(_known(seen), pods)
            case lifecycle.LookForRefusal(at):
                self._world.refusal_found(key, await self._refusal(key, at))
            case _:
                await self.take_bare(_known(seen), step)

    async def take_bare(self, seen: WorkloadSeen, step: Step) -> None:
        """Carry out one step of a Workload alone, whether or not a job stands behind it. Raises ApiError."""
        match step:
            case lifecycle.AdmitWorkload():
                told = ("Normal", "Admitted", "All admission checks are ready")
                self._became(Became(seen.key, ADMITTED, await self._set_conditions(seen, [_ADMITTED], told)))
            case lifecycle.SyncChecks(required):
                await self._sync_checks(seen, required)
            case lifecycle.AskAgain():
                await self._ask_again(seen)
            case lifecycle.EvictWorkload():
                await self._evict(seen, step)
            case lifecycle.ReleaseWorkload():
                await self._release(seen)
            case lifecycle.ForgetTries():
                await self._forget_tries(seen)
            case lifecycle.WaitFromNow(wait_ms):
                await self._merge_status(seen, {"requeueState": {"requeueAt": rfc3339(self._now() + wait_ms)}})
            case lifecycle.Reactivate():
                await self._reactivate(seen)
            case lifecycle.Reprioritize():
                name = seen.view.priority_class
                await self._reprioritize(seen, self._world.defaults.workload_priorities[name], name)
            case lifecycle.LetWorkloadGo():
                await self.let_go(seen)
            case _:
                raise AssertionError(f"{step} needs a job")

    async def delete_workload(self, seen: WorkloadSeen) -> None:
        """Delete a Workload that stands for nothing, if the garbage collector has not done so. Raises ApiError
        (Conflict: it has changed since it was looked at, and may hold quota by now)."""
        path = self._workloads.path(seen.namespace, seen.name)
        with suppress(NotFound):
            await self._client.delete(
                path, uid=seen.uid, resource_version=seen.resource_version, propagation="Background"
            )

    async def let_go(self, seen: WorkloadSeen) -> None:
        """Take our finalizer off a Workload that is being deleted. Raises ApiError (Conflict: as `delete_workload`)."""
        path = self._workloads.path(seen.namespace, seen.name)
        try:
            raw = await self._client.get(path)
            meta = raw["metadata"]
            if meta["uid"] != seen.uid or "deletionTimestamp" not in meta:
                return
            if meta["resourceVersion"] != seen.resource_version:
                self._learn("Workload", raw)
                raise Conflict(409, "Conflict", "the workload is another than was looked at")
            rest = [one for one in meta.get("finalizers") or () if one != self._names.finalizer]
            patch = {"uid": seen.uid, "resourceVersion": meta["resourceVersion"], "finalizers": rest or None}
            await self._client.merge_patch(path, {"metadata": patch})
        except NotFound:
            return

    async def stop_pods(self, step: lifecycle.StopPods) -> None:
        """Suspend Jobs that no controller would stop, and delete pods that no Job would. Raises ApiError."""
        for at in step.jobs:
            await self._patch_job(at, pins.suspend(await self._live(at), self._names))
        for namespace, name in step.pods:
            path = PODS.path(namespace, name)
            try:
                raw = await self._client.get(path)
                meta = raw["metadata"]
                if meta.get("deletionTimestamp") or not hold.is_managed(raw, self._names):
                    continue
                if await self._led(raw):
                    # Its Job was not known yet, and will stop the pod itself; a deleted pod would count as a failure.
                    raise Conflict(409, "Conflict", "the pod has a Job after all")
                await self._client.delete(path, uid=meta["uid"])
            except NotFound:
                continue

    async def _remind(self, at: JobKey) -> None:
        with suppress(NotFound):
            await self._patch_job(at, pins.remind(await self._live(at), rfc3339(self._now())), "status")

    async def _live(self, at: JobKey) -> dict[str, Any]:
        """Read a known Job from the API server. Raises NotFound, and Conflict where it is another one of that name."""
        known = _known(self._world.jobs.get(at))
        raw = await self._client.get(_path_of(at))
        if raw["metadata"]["uid"] != known.uid:
            raise Conflict(409, "Conflict", "the job is another one of the same name")
        return raw

    async def _led(self, pod: dict[str, Any]) -> bool:
        """Has this pod a Job that would stop it? Read from the API server, because a copy may lag."""
        owner = next((ref for ref in pod["metadata"].get("ownerReferences") or () if ref.get("controller")), None)
        if owner is None or owner.get("kind") != JOB.kind:
            return False
        try:
            raw = await self._client.get(of_jobs(JOB).path(pod["metadata"]["namespace"], owner["name"]))
        except NotFound:
            return False
        return raw["metadata"]["uid"] == owner["uid"] and not raw["metadata"].get("deletionTimestamp")

    async def job_is_gone(self, seen: WorkloadSeen) -> bool:
        """Is the job gone that a Workload stands for? Read from the API server: that a copy lacks it proves nothing."""
        kind, name = seen.view.owner
        uid = seen.view.value.job_uid
        if kind and kind not in KIND_OF:
            return False
        try:
            if kind:
                raw = await self._client.get(of_jobs(KIND_OF[kind]).path(seen.namespace, name))
                return bool(raw["metadata"]["uid"] != uid)
        except NotFound:
            return True
        # A job that was deleted with its dependents orphaned is not named in their ownerReferences any more.
        for job_kind in KINDS:
            pages = self._client.list_pages(of_jobs(job_kind).path(seen.namespace), bare=True)
            async with aclosing(pages):
                with suppress(NotFound):  # nobody installed it
                    async for page in pages:
                        if any(msgspec.json.decode(raw)["metadata"]["uid"] == uid for raw in page.items):
                            return False
        return True

    async def unseen_pods(self, seen: WorkloadSeen) -> bool:
        """Do pods of a started gang run that the copy does not know? Read from the API server. A JobSet may be over
        while its pods still end. Raises ApiError."""
        pages = self._client.list_pages(
            PODS.path(seen.namespace),
            label_selector=f"{self._names.workload_uid_label}={seen.uid}",
            field_selector="status.phase!=Succeeded,status.phase!=Failed",
            bare=True,
        )
        async with aclosing(pages):
            async for page in pages:
                for raw in page.items:
                    meta = msgspec.json.decode(raw)["metadata"]
                    if not self._world.has_pod((seen.namespace, meta["name"]), meta["uid"]):
                        return True
        return False

    # ------------------------------------------------------------ inside

    async def _refusal(self, key: JobKey, at: int) -> lifecycle.Refusal:
        """What the Events of a job and its children last said of pods or Jobs that were refused; an empty Refusal where
        they cannot be read. at: now, in ms."""
        makers = self._world.makers_of(key)
        about = [f"reason={PODS_REFUSED},involvedObject.uid={uid}" for uid in makers]
        if key[0] == JOBSET.kind:  # which may have thousands of Jobs
            about = [f"reason={PODS_REFUSED},involvedObject.kind={JOB.kind}"]
            about.append(f"reason={JOBS_REFUSED},involvedObject.kind={JOBSET.kind}")
        last = (0, "")  # bounded, and not all are read: whoever may create jobs may create many Events of them
        try:
            for selector in about:
                pages = self._client.list_pages(EVENTS.path(key[1]), field_selector=selector, attempts=1)
                async with aclosing(pages):
                    read = 0
                    async for page in pages:
                        events = map(msgspec.json.decode, page.items)
                        said = (said_of(one) for one in events if one["involvedObject"].get("uid") in makers)
                        last = max([last, *said])
                        read += 1
                        if read == _PAGES_OF_EVENTS:
                            break
        except (ApiError, OSError, TimeoutError) as error:
            log.debug("refusals not read", kind=key[0], namespace=key[1], name=key[2], error=str(error))
        return lifecycle.Refusal(at, last[0], last[1][:_LONGEST_REFUSAL])

    async def _mark(self, key: JobKey, job: JobView, *, ungoverned: bool) -> None:
        labels = {self._names.ungoverned_label: "true" if ungoverned else None}
        patch = {"metadata": {"uid": job.uid, "resourceVersion": job.resource_version, "labels": labels}}
        path = _path_of(key)
        answer = await self._client.merge_patch(path, patch, field_manager=self._names.job_manager)
        self._learn(key[0], answer)

    async def _note_held(self, key: JobKey, job: JobView) -> None:
        """Mark a job that cannot be queued and names no queue: it has no Workload, and nothing else says that it is
        held."""
        if job.suspended and not job.labelled and not job.ungoverned:
            await self._mark(key, job, ungoverned=True)

    def tell_unknown_keys(self, key: JobKey, job: JobView) -> None:
        if job.unknown_keys:
            self.record(key, job, "Warning", UNKNOWN_KEY, f"It goes on without: {'; '.join(job.unknown_keys)}")

    def tell_no_boost(self, seen: WorkloadSeen) -> None:
        wrong = f"whose value {seen.view.no_boost[:20]!r} is no whole number from {-(2**31)} to {2**31 - 1}"
        text = f"It goes on without: annotation {self._names.priority_boost_annotation} of its Workload, {wrong}"
        self._tell(seen, (("Warning", UNKNOWN_KEY, text),))

    async def _asked_for(self, key: JobKey, job: JobView) -> dict[str, Any] | None:
        """The Workload for what the job asks for now; None where that cannot be queued, which its owner is told."""
        raw = await self._raw(key, job)
        value, kind, name = self._world.defaults.priority(job)
        obj, problems = build_workload(
            KIND_OF[key[0]],
            raw,
            self._names,
            priority=value,
            priority_ref=(kind, name) if name else None,
            arrival=job.arrival,
            queue=self._world.queue_of(job),
            limit_ranges=self._world.defaults.limits_of(job.namespace),
            quotas=self._world.defaults.quotas_of(job.namespace),
            runtime_classes=self._world.defaults.runtime_classes,
            devices=self._world.devices,
            limits=self.options.limits,
        )
        defaults = self._world.defaults
        lacking = defaults.accounts_lacking(job)
        vain = named_in_vain(job, defaults.workload_priorities, defaults.pod_priorities, lacking)
        if problems := tuple(dict.fromkeys((*job.problems, *vain, *problems))):
            self.record(key, job, "Warning", INVALID_JOB, "; ".join(problems))
            return None
        return obj

    async def _create(self, key: JobKey, job: JobView) -> None:
        obj = await self._asked_for(key, job)
        if obj is None:
            await self._note_held(key, job)
            return
        if job.generation > 1:  # else it was never changed
            await self._unselect(key, job, None)
        before = self._world.place_of(job.uid)
        if before is not None and not self._names.as_kueue and self._queued_since(before, obj) is None:
            obj["metadata"]["annotations"][self._names.queued_since_annotation] = rfc3339(before.view.value.created)
        path = self._workloads.path(job.namespace)
        try:
            made = await self._client.create(path, obj, strict=self._strict)
        except Invalid:
            await self._note_held(key, job)
            raise
        except NotFound as error:
            # Another look at the job would find no more.
            raise Unserved(error.status, error.reason, error.message, error.body) from error
        except AlreadyExists:
            made = await self._client.get(self._workloads.path(job.namespace, obj["metadata"]["name"]))
            if made["metadata"].get("labels", {}).get(self._names.job_uid_label) != job.uid:
                raise
        self._learn("Workload", made)
        self.tell_unknown_keys(key, job)
        self.record(key, job, "Normal", "CreatedWorkload", f"Waits in queue {self._world.queue_of(job)}")

    async def _compare(self, key: JobKey, job: JobView, seen: WorkloadSeen) -> None:
        obj = await self._asked_for(key, job)
        if obj is not None and self._pod_sets(obj) == seen.view.value.pod_sets:
            self._world.says_the_same(seen, job)
            return
        if obj is None and self._world.defaults.accounts_lacking(job):
            self._world.gives_up_place(seen.uid)
        await self._update_to(obj, seen)

    def _pod_sets(self, obj: dict[str, Any]) -> tuple[PodSet, ...]:
        return values.workload(obj, self._names)[0].pod_sets

    async def _update(self, key: JobKey, job: JobView, seen: WorkloadSeen) -> None:
        obj = await self._asked_for(key, job)
        if obj is None:
            self._world.gives_up_place(seen.uid)
        elif given_up := _selected_by(seen.view.value.pod_sets) - _selected_by(self._pod_sets(obj)):
            await self._unselect(key, job, given_up)
        await self._update_to(obj, seen)

    async def _unselect(self, key: JobKey, job: JobView, given_up: set[tuple[str, str]] | None) -> None:
        """Take node selectors that a JobSet no longer has out of its Jobs. These are created while it is held, and its
        controller only adds to them later: their pods would still select nodes by what the owner removed. given_up: as
        of `pins.unselect`."""
        if job.kind == JOBSET.kind and (children := self._world.made_early(job)):
            parent = owners_form(await self._raw(key, job), self._names)
            await self._patch_children(children, lambda child: pins.unselect(child, parent, given_up))

    async def _update_to(self, obj: dict[str, Any] | None, seen: WorkloadSeen) -> None:
        if obj is None:
            # Its owner was told why it cannot be queued. What it asked for before must not be admitted.
            await self.delete_workload(seen)
            return
        if not seen.view.value.active and not seen.view.paused:
            # It was deactivated by somebody: a change of the job does not activate it.
            obj["spec"]["active"] = False
        # Annotations that others set on it stay: priority boost, allowed flavors, preemption gates.
        said, spec = obj["metadata"].get("annotations", {}), obj["spec"]
        names = self._names
        ours = (names.spec_hash_annotation, names.defaults_annotation, names.pause_label, names.gated_by_annotation)
        notes = {key: said.get(key) for key in ours}
        if (since := self._queued_since(seen, obj)) is not None:
            notes[names.queued_since_annotation] = rfc3339(since)
        patch = {
            "metadata": {
                "uid": seen.uid,
                "resourceVersion": seen.resource_version,
                "annotations": notes,
            },
            "spec": {key: spec.get(key) for key in WRITTEN},
        }
        path = self._workloads.path(seen.namespace, seen.name)
        self._learn("Workload", await self._client.merge_patch(path, patch, strict=self._strict))

    def _queued_since(self, seen: WorkloadSeen, obj: dict[str, Any]) -> int | None:
        """From when on (ms) a gang counts as waiting that comes into a queue with this spec; None: as before.

        Its age starts anew with another queue, and when it asks for more or for something else: else an owner could let
        a job grow old outside, or with a request that never fits, and then come before all others with anything. Fewer
        of the same pods keep their age. A gang that was paused while it held room loses only the time since then."""
        if self._names.as_kueue:
            return None
        before, now = seen.view, self._now()
        was, after = before.value, values.workload(obj, self._names)[0]
        if (was.gated and not after.gated) or was.queue != after.queue:
            return now
        # Only what its owner changed: not what LimitRanges add, nor that pods are done. A ResourceClaimTemplate that
        # its pods name, and that was created since, counts as the owner's doing.
        named = {name for one in obj["spec"]["podSets"] for name in claim_templates(one["template"])}
        by_claims = self._world.devices.newest(seen.namespace, named) > was.created
        if by_claims or obj["metadata"]["annotations"][self._names.spec_hash_annotation] != before.spec_hash:
            asked = {one.name: one for one in was.pod_sets}
            for one in after.pod_sets:
                old = asked.get(one.name)
                if old is None or one.count > old.count or replace(one, count=old.count) != old:
                    return now
        if not before.paused or after.paused_by:
            return None
        reserved = condition(seen.status, QUOTA_RESERVED)
        if reserved is None or not was.evicted.startswith(DEACTIVATED):
            return now
        holds_still = was.admission is not None
        return was.created if holds_still else was.created + now - millis(reserved.get("lastTransitionTime"))

    async def _reprioritize(self, seen: WorkloadSeen, value: int, name: str) -> None:
        patch = {
            "metadata": {"uid": seen.uid, "resourceVersion": seen.resource_version},
            "spec": {"priority": value, "priorityClassRef": {"name": name}},
        }
        path = self._workloads.path(seen.namespace, seen.name)
        self._learn("Workload", await self._client.merge_patch(path, patch))

    async def _forget_tries(self, seen: WorkloadSeen) -> None:
        forgotten: dict[str, Any] = {"requeueState": None}
        if not self._names.as_kueue:
            forgotten |= {"accumulatedPastExecutionTimeSeconds": None, "outOfStock": None}
        await self._merge_status(seen, forgotten)

    async def _reactivate(self, seen: WorkloadSeen) -> None:
        why, said = _queued_again(seen.view.kept_out)
        await self._set_conditions(seen, [(REQUEUED, True, why, said)], ("Normal", "Requeued", said))

    async def _start(self, key: JobKey, job: JobView, seen: WorkloadSeen) -> None:
        raw = await self._raw(key, job)
        value = seen.view.value
        assert value.admission is not None
        if seen.uid not in self._reserved:
            await self._surely_known(key, seen.name, seen)  # another leader wrote it, and may have taken it back since
        if not self._world.same_defaults(job, seen):
            wanted = await self._asked_for(key, job)
            if wanted is None or _shapes(self._pod_sets(wanted)) != _shapes(value.pod_sets):
                because = "What is added to its pods was changed after its reservation; it is reserved anew"
                await self._evict_as_it_is(key, job, seen, lifecycle.EvictWorkload("OutOfSync", because))
                return
        flavors = self._flavors(value.admission.pod_sets)
        started = pins.start(
            KIND_OF[key[0]],
            raw,
            seen.uid,
            value.admission,
            flavors,
            self._names,
            can_rank=self.options.can_rank,
            checks=value.checks,
            tainted=self._world.tainted_flavors(flavors.values()),
        )
        if started.problems:
            # The job asks for something else than was reserved.
            differs = lifecycle.EvictWorkload("OutOfSync", "; ".join(started.problems))
            await self._evict_as_it_is(key, job, seen, differs)
            return
        if started.refused:
            # Only people can solve this: deactivate it, as if the check had refused the job.
            because = (
                f"Cannot start: {started.refused}; change one of them, then set spec.active of the Workload to true"
            )
            refused = lifecycle.EvictWorkload(DEACTIVATED, because, deactivate=True, cause="AdmissionCheck")
            await self._evict_as_it_is(key, job, seen, refused)
            return
        try:
            await self._patch_job(key, started.patch)
        except (Invalid, Forbidden) as error:
            if for_what_it_is(error):
                now = self._now()
                self._world.start_refused(key, now, error.message[:_LONGEST_REFUSAL])
                due = lifecycle.next_step(self._world.sight(key, now), self._settings, now).step
                if isinstance(due, lifecycle.EvictWorkload):  # at once: the next look may be a minute away
                    await self._evict(seen, due)
                    return
            raise
        self._world.started(key, self._now())
        self._reserved.discard(seen.uid)
        self.record(key, job, "Normal", "Started", f"Admitted by ClusterQueue {value.admission.cluster_queue}")

    async def _pod_sets_before(self, seen: WorkloadSeen | None) -> Sequence[dict[str, Any]]:
        """The pod sets of a job as they were before another controller (Kueue) started it, from its Workload; none
        where that is gone."""
        if seen is None:
            return ()
        made = await self._client.get(self._workloads.path(seen.namespace, seen.name))
        return objects(obj(made.get("spec")).get("podSets"))

    async def _surely_not_reserved(self, key: JobKey, job: JobView, seen: WorkloadSeen | None) -> None:
        """Make sure that a job that is to be suspended holds no reservation. One that was started does, or did a moment
        ago, perhaps by another leader; that none is known here proves nothing. Raises Conflict."""
        if not job.started or (seen is not None and seen.view.value.admission is not None):
            return
        with suppress(NotFound):
            await self._surely_known(key, workload_name(KIND_OF[key[0]], job.name, job.uid), seen)

    async def _surely_known(self, key: JobKey, name: str, seen: WorkloadSeen | None) -> None:
        """Read a job's Workload from the API server. Raises NotFound, and Conflict if it is not as it is known here."""
        self._learn("Workload", await self._client.get(self._workloads.path(key[1], name)))
        if self._world.workload_of(key) != seen:
            raise Conflict(409, "Conflict", "the workload is another than the one that is known")

    async def _evict_as_it_is(
        self, key: JobKey, job: JobView, seen: WorkloadSeen, step: lifecycle.EvictWorkload
    ) -> None:
        """Evict a gang, after a look at its job in the API server. The write is conditional on the Workload alone, and
        the copy of the job may be older: another leader may have stopped it for this reason already and started it
        again. Raises Conflict if no eviction is due by what is read."""
        raw = await self._client.get(_path_of(key))
        if raw["metadata"]["resourceVersion"] != job.resource_version:
            self._learn(key[0], raw)
            now = self._now()
            due = lifecycle.next_step(self._world.sight(key, now), self._settings, now).step
            if not isinstance(due, lifecycle.EvictWorkload):
                raise Conflict(409, "Conflict", "the job has changed since it was looked at")
            step = due
        await self._evict(seen, step)

    async def _restore_children(self, jobset: dict[str, Any], seen: WorkloadSeen, children: tuple[JobKey, ...]) -> None:
        parent = owners_form(jobset, self._names)
        checks = seen.view.value.checks
        await self._patch_children(children, lambda c: pins.restore_child(c, parent, self._names, checks=checks))

    async def _patch_children(
        self, children: tuple[JobKey, ...], wanted: Callable[[dict[str, Any]], list[dict[str, Any]] | None]
    ) -> None:
        async def patch(at: JobKey) -> None:
            try:
                raw = await self._live(at)
                if clear := pins.clear_start_time(JOB, raw):  # which 1.35 and older would refuse the change for
                    await self._patch_job(at, clear, "status")
                    raw = await self._live(at)
                await self._patch_job(at, wanted(raw))
            except NotFound:
                return

        await _all_of(map(patch, children))

    async def _write_checks(
        self, seen: WorkloadSeen, entries: list[dict[str, Any]], conditions: list[dict[str, Any]] | None = None
    ) -> WorkloadSeen:
        """Have the status of a Workload list exactly these checks; returns the Workload as it is then."""
        said: dict[str, Any] = {"admissionChecks": entries or None}
        if conditions is not None:
            said["conditions"] = conditions
        version = await self._merge_status(seen, said)
        return replace(seen, resource_version=version)

    async def _merge_status(self, seen: WorkloadSeen, said: dict[str, Any]) -> str:
        """Merge these fields into a Workload's status (None removes one); returns its resourceVersion then. Not by
        server-side apply, which would leave those parts of a list entry that others own, like a check's controller."""
        patch = {"metadata": {"uid": seen.uid, "resourceVersion": seen.resource_version}, "status": said}
        answer = await self._client.merge_patch(self._workloads.path(seen.namespace, seen.name, "status"), patch)
        self._learn("Workload", answer)
        return str(answer["metadata"]["resourceVersion"])

    async def _sync_checks(self, seen: WorkloadSeen, required: tuple[str, ...]) -> None:
        now = self._now()
        entries = _entries(seen.status.get("admissionChecks") or (), required, now)
        waits = f"Waiting for admission checks: {', '.join(required)}"
        changes: list[Condition] = [(ADMITTED, False, "UnsatisfiedAdmissionChecks", waits)] if required else []
        status = with_conditions(seen.status, self._as_kind_has_them(seen, changes), now, seen.generation)
        await self._write_checks(seen, entries, status["conditions"])

    async def _ask_again(self, seen: WorkloadSeen) -> None:
        now = self._now()
        status = with_conditions(seen.status, (), now, seen.generation)
        checks = status["admissionChecks"]
        if any(check["state"] == "Retry" for check in checks):
            until = max(seen.view.value.requeue_at, now + 999 + max(map(_pause_ms, checks)))
            status["requeueState"] = {**(status.get("requeueState") or {}), "requeueAt": rfc3339(until)}
        status["admissionChecks"] = [
            _asked_again(check, now, _ASKED_LATER) if check["state"] in ("Retry", "Rejected") else check
            for check in checks
        ]
        await self._apply_status(seen, status)

    def _flavors(self, assignments: tuple[PodSetAssignment, ...]) -> dict[str, Flavor]:
        wanted = {flavor for one in assignments for _, flavor in one.flavors}
        return {name: flavor for name in sorted(wanted) if (flavor := self._world.state.flavor(name)) is not None}

    async def _evict(self, seen: WorkloadSeen, step: lifecycle.EvictWorkload) -> None:
        tries = self._tries(seen)
        limit = self._settings.backoff_limit if step.backoff and step.counted else None
        if limit is not None and tries >= limit:
            given_up = f"{step.message}; given up after {tries} tries"
            cause = "RequeuingLimitExceeded"
            step = lifecycle.EvictWorkload(DEACTIVATED, given_up, deactivate=True, cause=cause)
        if step.deactivate:
            seen = await self._deactivate(seen, step)
        if seen.view.value.admission is None:
            # It waits, and holds nothing. One that was deactivated just now is evicted with the next look at it.
            if not step.deactivate:
                await self._evict_waiting(seen, step)
            return
        now = self._now()
        told = _evicted_for(step)
        turns = _turns(seen.status, step.out_of_stock, ran=self._world.ran_whole(seen))
        message = f"{step.message}{self._next_flavors(seen.view.value, step.out_of_stock, turns)}"
        status = with_conditions(seen.status, [(EVICTED, True, told, message)], now, seen.generation)
        _keep_turns(status, turns)
        _count_eviction(status, step.reason, step.cause)
        if step.nodes:
            lost = step.reason == "NodeFailures"
            status["avoidNodes"] = values.avoid_object(blamed(seen.view.value.avoid, step.nodes, now, lost=lost))
        if step.backoff:
            count = tries + step.counted
            wait = backoff_ms(count if step.counted else 1, self._settings, seen.uid)
            status["requeueState"] = {**({"count": count} if count else {}), "requeueAt": rfc3339(now + 999 + wait)}
        elif not tries:
            status.pop("requeueState", None)
        if step.reason == "AdmissionCheck":
            # The checks say when to ask again, and the try does not count against the gang.
            pause = max(map(_pause_ms, status.get("admissionChecks") or ()), default=0)
            again = {"requeueAt": rfc3339(now + 999 + pause)}
            status["requeueState"] = {**(status.get("requeueState") or {}), **again}
        made = await self._apply_status(seen, status)
        self._became(Became(seen.key, EVICTED, made, step.reason, step.cause, message))
        self._tell(seen, (("Warning" if step.backoff else "Normal", f"EvictedDueTo{told}", message),))

    def _tries(self, seen: WorkloadSeen) -> int:
        """How often a gang failed to get ready, as it counts for its backoff. Who has run whole for long since begins
        anew: it would else wait longest for the one pod that it lost in weeks."""
        ran_ms = self._world.ran_whole_ms(seen, self._now())
        ran_well = ran_ms >= max(RAN_WELL_MS, self._settings.backoff_max_ms)
        return 0 if ran_well and not self._settings.as_kueue else seen.view.requeue_count

    def _next_flavors(self, gang: Workload, new: Sequence[str], turns: Sequence[str]) -> str:
        """A sentence on which flavor is tried next for a gang that got no nodes on `new`; "" if there are none."""
        admission = gang.admission
        if not new or admission is None:
            return ""
        again = replace(gang, out_of_stock=tuple(turns))
        had = [part.name for part in admission.pod_sets if any(flavor in new for _, flavor in part.flavors)]
        said = ""
        for turn in self._world.state.turns(again, admission.cluster_queue, had):
            if turn and not set(new).isdisjoint(turn):
                said += (
                    f". Flavor {turn[0]} is tried first next time"
                    if len(turn) > 1
                    else f". Its queue has no flavor but {turn[0]} that it may use, which is tried again"
                )
        return said

    async def _evict_waiting(self, seen: WorkloadSeen, step: lifecycle.EvictWorkload) -> None:
        """Set Evicted on a Workload that holds nothing, as Kueue does, and forget its tries. The same write says why it
        waits."""
        now = self._now()
        changes: list[Condition] = [(EVICTED, True, _evicted_for(step), step.message)]
        verdict = self._world.state.explain(seen.key)
        if verdict is not None and verdict.why.reason is Reason.DEACTIVATED:
            changes += self._as_kind_has_them(seen, project(seen.view.value, verdict).conditions)
        status = with_conditions(seen.status, changes, now, seen.generation)
        _count_eviction(status, step.reason, step.cause)
        status.pop("requeueState", None)
        status.pop("outOfStock", None)
        if checks := status.get("admissionChecks"):
            status["admissionChecks"] = [
                _asked_again(check, now) if check["state"] != "Pending" else check for check in checks
            ]
        await self._apply_status(seen, status)

    async def _deactivate(self, seen: WorkloadSeen, step: lifecycle.EvictWorkload) -> WorkloadSeen:
        """Set spec.active of a Workload to false; returns the Workload as it is then. The condition Evicted is a second
        write, right after, and the only place that keeps the reason: if the controller ends in between, the next one
        says what the objects still tell (`lifecycle`)."""
        if not seen.view.value.active:
            return seen
        meta: dict[str, Any] = {"resourceVersion": seen.resource_version}
        if step.paused:
            meta["annotations"] = {self._names.pause_label: "true"}
        path = self._workloads.path(seen.namespace, seen.name)
        over = asyncio.get_running_loop().time() + self._client.write_timeout
        try:
            answer = await self._client.merge_patch(path, {"metadata": meta, "spec": {"active": False}})
        except ApiError as error:
            if not error.ambiguous:
                raise
            answer = msgspec.json.decode(await self._once_settled(path, seen.resource_version, over))
            if answer["spec"].get("active") is not False:
                self._learn("Workload", answer)
                raise
        self._learn("Workload", answer)
        self._tell(seen, (("Warning", step.reason, step.message),))
        made = answer["metadata"]
        return replace(seen, resource_version=made["resourceVersion"], generation=made.get("generation", 0))

    async def _replace_nodes(self, seen: WorkloadSeen, nodes: tuple[str, ...], guilty: tuple[str, ...]) -> None:
        now, lost = self._now(), [{"name": node} for node in sorted(nodes)]
        status = with_conditions(seen.status, (), now, seen.generation)
        told = {str(one.get("name")) for one in status.get("unhealthyNodes") or ()}
        if told.issuperset(nodes):
            await self._merge_status(seen, {"unhealthyNodes": lost or None})
            back = ", ".join(sorted(told.difference(nodes)))
            self._tell(seen, (("Normal", "NodesBack", f"Keeps its nodes that are back: {back}"),))
            return
        status["unhealthyNodes"] = lost
        new = [node for node in guilty if node not in told]
        status["avoidNodes"] = values.avoid_object(blamed(seen.view.value.avoid, new, now))
        await self._apply_status(seen, status)
        self._tell(seen, (("Warning", "NodesLost", f"Asks for other nodes for {', '.join(sorted(nodes))}"),))

    async def _evict_pods(self, key: JobKey, job: JobView, wanted: tuple[tuple[str, str], ...]) -> None:
        """Evict these pods from lost nodes. A disruption budget may refuse some; these are tried again later."""
        pods = {(pod.namespace, pod.name): pod for pod in self._world.pods_of((job.namespace, job.uid))}
        await _all_of(self._evict_pod(key, job, pods[at]) for at in wanted if at in pods)

    async def _evict_pod(self, key: JobKey, job: JobView, pod: PodView) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": pod.resource_version}},
        }
        with suppress(NotFound):
            await self._client.create(PODS.path(pod.namespace, pod.name, "eviction"), body)
            self.record(key, job, "Normal", "PodReplaced", f"Pod {pod.name} leaves the lost node {pod.node}")

    async def _release(self, seen: WorkloadSeen) -> None:
        self._reserved.discard(seen.uid)
        now = self._now()
        if condition(seen.status, PODS_READY) is not None:
            await self._drop_ready(seen)
            return  # and look again
        evicted = condition(seen.status, EVICTED) or {}
        reason = str(evicted.get("reason", "Pending"))
        message = str(evicted.get("message", ""))
        said = f"Released after eviction: {message}"
        if not seen.view.value.evicted:
            reason, message, said = DEACTIVATED, "", "Released: its job is gone, and no pod of it is left"
        changes: list[Condition] = [
            (QUOTA_RESERVED, False, "Pending", said),
            (ADMITTED, False, "NoReservation", "The workload has no reservation"),
            (REQUEUED, reason in ("Preempted", "NodeFailures", "OutOfSync"), reason, message),
        ]
        status = with_conditions(seen.status, self._as_kind_has_them(seen, changes), now, seen.generation)
        status.pop("admission", None)
        # Counted anew from the job when it is reserved again.
        status.pop("reclaimablePods", None)
        if checks := status.get("admissionChecks"):
            status["admissionChecks"] = [_asked_again(check, now) for check in checks]
        value = seen.view.value
        deactivated = reason.startswith(DEACTIVATED)
        if deactivated:
            status.pop("requeueState", None)
            status.pop("outOfStock", None)
        if deactivated and not self._names.as_kueue:
            # If its owner activates it again it has its full maximum execution time.
            status.pop("accumulatedPastExecutionTimeSeconds", None)
        elif value.admitted:
            then = self._world.set_ahead().now
            ran = value.run_ms + max(0, then(value.evicted_at) - then(value.admitted_at))
            status["accumulatedPastExecutionTimeSeconds"] = ran // 1000
        await self._apply_status(seen, status)
        if not seen.view.deleting and not deactivated:
            self._tell(seen, (("Normal", "Requeued", f"Waits again after eviction ({reason})"),))

    async def _drop_ready(self, seen: WorkloadSeen) -> None:
        """Remove the condition PodsReady, which Kueue wrote about pods that are gone, and Muster never sets."""
        kept = [one for one in seen.status["conditions"] if one["type"] != PODS_READY]
        await self._merge_status(seen, {"conditions": kept})

    async def _give_back(self, seen: WorkloadSeen, pods: tuple[tuple[str, int], ...]) -> None:
        status = with_conditions(seen.status, (), self._now(), seen.generation)
        status["reclaimablePods"] = [{"name": name, "count": count} for name, count in pods]
        status["admission"] = values.admission_object(self._without_done(seen, dict(pods)))
        await self._apply_status(seen, status)

    def _without_done(self, seen: WorkloadSeen, gone: Mapping[str, int]) -> Admission:
        """The admission without the nodes of pods that are done, as far as the other pods tell which these are. gone:
        pod set -> pods that are done."""
        admission: Admission = _known(seen.view.value.admission)
        left: dict[str, Counter[str]] = {}
        for pod in self._world.pods_of((seen.namespace, seen.uid)):
            if not pod.done:
                left.setdefault(pod.pod_set, Counter())[pod.node] += 1
        slices = {one.name: one.widest_slice for one in seen.view.value.pod_sets}
        return replace(
            admission,
            pod_sets=tuple(
                _on_nodes(
                    one, left.get(one.name, Counter()), one.count - gone.get(one.name, 0), slices.get(one.name, 1)
                )
                for one in admission.pod_sets
            ),
        )

    async def _ungate(self, seen: WorkloadSeen, pods: tuple[tuple[str, str], ...]) -> None:
        admission = seen.view.value.admission
        assert admission is not None
        waiting = set(pods)
        alive = [pod for pod in self._world.pods_of((seen.namespace, seen.uid)) if not pod.done]
        wanted: list[tuple[PodView, str | dict[str, str]]] = []
        for assignment in admission.pod_sets:
            mine = [pod for pod in alive if pod.pod_set == assignment.name]
            gated = [pod for pod in mine if pod.gated and not pod.terminating and (pod.namespace, pod.name) in waiting]
            gated.sort(key=_rank)
            taken = [pod.node or pod.pinned for pod in mine if not pod.gated]
            ranks = [_rank_of(pod, assignment.count) for pod in gated]
            places = pins.places_of(assignment)
            where: list[str | dict[str, str] | None] = list(
                _in_order(places, ranks, len(taken)) if places else pins.hosts_for(assignment, taken, ranks)
            )
            wanted += [(pod, place) for pod, place in zip(gated, where, strict=True) if place is not None]
        there: dict[str, dict[str, Any]] = {}
        await _all_of(self._look_at_gated(pod, there) for pod, _ in wanted)
        await _all_of(self._place(pod, there[pod.uid], place) for pod, place in wanted if pod.uid in there)

    async def _look_at_gated(self, pod: PodView, there: dict[str, dict[str, Any]]) -> None:
        """Read one gated pod from the API server into `there`, by its uid; one that is gone needs no place. Raises
        Conflict where the pod has a place already: places were then given out without knowing of it."""
        with suppress(NotFound):
            raw = await self._client.get(PODS.path(pod.namespace, pod.name))
            if raw["metadata"]["uid"] != pod.uid:
                return
            if not pins.gate_off(raw, self._names):
                self._learn("Pod", raw)
                raise Conflict(409, "Conflict", "a pod was let go to its place since it was looked at")
            there[pod.uid] = raw

    async def _place(self, pod: PodView, raw: dict[str, Any], place: str | Mapping[str, str]) -> None:
        """Write the place of one gated pod into it, and remove our gate."""
        ops = pins.ungate(raw, place, self._names)
        with suppress(NotFound):
            path = PODS.path(pod.namespace, pod.name)
            self._learn("Pod", await self._client.json_patch(path, ops, field_manager=self._names.job_manager))

    async def _set_conditions(self, seen: WorkloadSeen, changes: list[Condition], event: tuple[str, str, str]) -> str:
        now = self._now()
        made = await self._apply_status(seen, with_conditions(seen.status, changes, now, seen.generation))
        self._tell(seen, (event,))
        return made

    async def _apply_status(self, seen: WorkloadSeen, status: dict[str, Any]) -> str:
        made = decision_id(seen.uid, seen.resource_version)
        status = {**status, "decision": made}
        metadata = {
            "name": seen.name,
            "namespace": seen.namespace,
            "uid": seen.uid,
            "resourceVersion": seen.resource_version,
        }
        over = asyncio.get_running_loop().time() + self._client.write_timeout
        try:
            answer = await self._statuses.write(self._workloads, metadata, status)
        except ApiError as error:
            if not error.ambiguous:
                raise
            found = await self._once_settled(
                self._workloads.path(seen.namespace, seen.name), seen.resource_version, over
            )
            self._learn("Workload", found)
            now, wanted = msgspec.json.decode(found, type=_Written), self._statuses.stored("Workload", status)
            if now.metadata.resource_version == seen.resource_version or not _says(now.status, wanted):
                raise
            answer = found
        self._learn("Workload", answer)
        return made

    async def _once_settled(self, path: str, before: str, over: float) -> bytes:
        """Read an object until the outcome of a write without a clear answer is certain: its version is not `before`
        ("": not known) any more, or `over` is past (by the loop's clock), after which the server cannot apply the
        write. Returns the object as JSON.

        Until then the decision counts as written: room that was given to others might turn out to be taken. Raises
        NotFound."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            try:
                found = await self._client.raw("GET", path)
                version = msgspec.json.decode(found, type=_Written).metadata.resource_version
                if before not in ("", version) or asked >= over:
                    return found
            except NotFound:
                raise
            except (ApiError, msgspec.DecodeError) as error:
                log.debug("outcome of a write not known yet", path=path, error=str(error))
            await asyncio.sleep(1.0 if asked >= over else min(1.0, max(0.05, over - loop.time())))

    async def _patch_job(self, key: JobKey, ops: list[dict[str, Any]] | None, subresource: str = "") -> None:
        if not ops:
            return
        path = _path_of(key)
        over = asyncio.get_running_loop().time() + self._client.write_timeout
        try:
            at = f"{path}/{subresource}" if subresource else path
            patched = await self._client.json_patch(at, ops, field_manager=self._names.job_manager)
        except Invalid as error:
            if _TEST_FAILED not in str(error):
                raise
            raise Conflict(409, "Conflict", "the job has changed since it was looked at") from error
        except ApiError as error:
            if error.ambiguous:
                # A start that is applied late would start a gang that was released meanwhile: nothing else is done with
                # the job before the outcome is certain.
                before = next((op["value"] for op in ops if op["path"] == "/metadata/resourceVersion"), "")
                self._learn(key[0], await self._once_settled(path, before, over))
            raise
        self._learn(key[0], patched)

    async def _raw(self, key: JobKey, job: JobView) -> dict[str, Any]:
        """The job as JSON, in the version that was looked at. Raises Conflict if it has changed since."""
        raw = self._recent.get(job.uid, job.resource_version)
        if raw is not None:
            return raw
        raw = await self._client.get(_path_of(key))
        if raw["metadata"]["uid"] != job.uid:
            raise Conflict(409, "Conflict", "the job is another one of the same name")
        if raw["metadata"]["resourceVersion"] != job.resource_version:
            self._learn(key[0], raw)
            raise Conflict(409, "Conflict", "the job has changed since it was looked at")
        return raw

    def _tell(self, seen: WorkloadSeen, events: tuple[tuple[str, str, str], ...]) -> None:
        """Events (type, reason, message) of the job that a Workload stands for, if there is one."""
        key = self._world.job_of(seen)
        job = self._world.jobs.get(key) if key is not None else None
        if key is None or job is None:
            return
        made = decision_id(seen.uid, seen.resource_version)
        for kind, reason, message in events:
            self.record(key, job, kind, reason, message, made)

    def record(self, key: JobKey, job: JobView, kind: str, reason: str, message: str, decision: str = "") -> None:
        """Record an Event of a job. kind: "Normal" or "Warning". decision: the id of what it comes from; "": the one
        that the Workload's status names."""
        if key[1] in self._world.state.terminating:
            return  # no Event can be made there
        about = {
            "apiVersion": KIND_OF[key[0]].api_version,
            "kind": key[0],
            "namespace": key[1],
            "name": key[2],
            "uid": job.uid,
            "resourceVersion": job.resource_version,
        }
        made = decision or self.decision_of(key)
        notes = {self._names.decision_annotation: made} if made else {}
        self._events.record(about, kind, reason, message, notes)

    def decision_of(self, key: JobKey) -> str:
        """The id of the decision in the status of a job's Workload; "" if there is none."""
        seen = self._world.workload_of(key)
        return str(seen.status.get("decision", "")) if seen is not None else ""


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str


class _Written(msgspec.Struct):
    metadata: _Version
    status: dict[str, Any] = {}


_DECIDED = ("admission", "claim", "unhealthyNodes", "decision")
"""Fields of a status; each decision changes at least one of them."""


def _says(status: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Is in a status what was to be written to it: by it the outcome of a write is known."""

    def said(of: dict[str, Any]) -> set[tuple[str, str, str]]:
        return {(each["type"], each["status"], each.get("reason", "")) for each in of.get("conditions") or ()}

    return said(wanted) <= said(status) and all(status.get(key) == wanted.get(key) for key in _DECIDED)


def decision_id(uid: str, resource_version: str) -> str:
    """Names a decision about a Workload in logs, Events and status.decision: eight hex digits, the same wherever they
    are made, from the version that was decided on. Its write is conditional on that version, so only one can succeed.
    """
    return blake2s(f"{uid}/{resource_version}".encode(), digest_size=4).hexdigest()


def _rank(pod: PodView) -> tuple[int, int, str]:
    labels = dict(pod.labels)
    job, index = digits(labels.get(JOBSET_JOB_INDEX_LABEL, "")), digits(labels.get(JOB_COMPLETION_INDEX, ""))
    return job or 0, index or 0, pod.name


def _in_order(
    places: Sequence[dict[str, str]], ranks: Sequence[int | None], before: int
) -> list[dict[str, str] | None]:
    """For pods of these ranks (None: it has none) their domains, where these are wider than a node: by rank, or else
    the next ones after the `before` pods that have places already."""
    rest = iter(range(before, before + len(ranks)))
    at = [next(rest) if rank is None or rank >= len(places) else rank for rank in ranks]
    return [places[i % len(places)] for i in at]


def _rank_of(pod: PodView, pods: int) -> int | None:
    """The rank of a pod in its pod set of so many pods; None if its labels do not say."""
    labels = dict(pod.labels)
    replicas = digits(labels.get(JOBSET_REPLICAS_LABEL, ""))
    return pins.rank_of(labels, pods // replicas if replicas else 0)


def _reservation(gang: Workload) -> tuple[Admission, int] | None:
    """What a gang holds, and since when: after an eviction it may have been given the same again."""
    return None if gang.admission is None else (gang.admission, gang.reserved_at)


async def _all_of(writes: Iterable[Awaitable[None]]) -> None:
    """Wait for each of them, whatever becomes of the others. Raises what the first that failed did."""
    done = await asyncio.gather(*writes, return_exceptions=True)
    failed = next((error for error in done if error is not None), None)
    if failed is not None:
        raise failed


Known = TypeVar("Known")


def _known(value: Known | None) -> Known:
    """What was known when the step was decided on. Raises NotFound if it is gone since."""
    if value is None:
        raise NotFound(404, "NotFound", "gone since it was looked at")
    return value


def _selected_by(pod_sets: Iterable[PodSet]) -> set[tuple[str, str]]:
    """(pod set, node label) for each label by which pods select nodes."""
    return {(one.name, label) for one in pod_sets for label, _ in one.shape.node_selector}


def _shapes(pod_sets: tuple[PodSet, ...]) -> list[tuple[str, PodShape]]:
    """(pod set, what each of its pods asks for). Not the counts: fewer may run than were admitted."""
    return [(one.name, one.shape) for one in pod_sets]


def _conditions(
    status: dict[str, Any], said: Callable[[str], str] = lambda text: text
) -> list[tuple[str, str, str, str]]:
    """(type, status, reason, message) of each condition, sorted. said: reduces a message to what is to be compared."""
    return sorted(
        (one["type"], one["status"], one.get("reason", ""), said(one.get("message", "")))
        for one in status.get("conditions") or ()
    )


def _evicted_for(step: lifecycle.EvictWorkload) -> str:
    """The reason of the condition Evicted. Of a deactivation it includes the cause."""
    return f"{DEACTIVATED}DueTo{step.cause}" if step.reason == DEACTIVATED and step.cause else step.reason


def _queued_again(reason: str) -> tuple[str, str]:
    """(reason, message) of Requeued=True, by the reason that it was kept out of the queue for."""
    if reason.startswith(DEACTIVATED):
        return "Reactivated", "The workload was made active again"
    if reason.endswith("Stopped"):
        kind = reason.removesuffix("Stopped")
        return f"{kind}Restarted", f"The {kind} admits again"
    return "BackoffFinished", "The wait after its eviction is over"


def _on_nodes(assignment: PodSetAssignment, left: Counter[str], count: int, slices: int) -> PodSetAssignment:
    """The assignment reduced to the nodes of the `count` pods that are left (`left`: node -> pods); unchanged where it
    is not known where all of these are. slices: pods of a slice, which keeps its place until its last pod is done; by
    rank it is known which pods are in it."""
    held = assignment.topology
    if held is None or left.total() != count or count >= assignment.count:
        return assignment
    if slices > 1:
        places = [one.values for one in held.domains for _ in range(one.count)]
        if not left.keys() <= {place[-1] for place in places}:
            return assignment
        parts = [places[first : first + slices] for first in range(0, len(places), slices)]
        kept = [place for part in parts if any(left[place[-1]] for place in part) for place in part]
        domains = tuple(Domain(place, len(list(same))) for place, same in groupby(kept))
        return replace(assignment, topology=replace(held, domains=domains))
    domains = tuple(replace(one, count=min(one.count, left[one.values[-1]])) for one in held.domains)
    if sum(one.count for one in domains) != count:
        return assignment
    return replace(assignment, topology=replace(held, domains=tuple(one for one in domains if one.count)))


def blamed(held: Sequence[AvoidedNode], nodes: Sequence[str], now: int, *, lost: bool = True) -> list[AvoidedNode]:
    """The nodes that a job avoids, after it lost these. The first time is only noted, by an entry that ends at once;
    the second time within a day the job avoids the node for a day. Not `lost`: kube-scheduler let no pod of it come
    there, and the second time the job avoids the node for an hour."""
    known = {entry.node: entry for entry in held if entry.until > now - AVOID_MS}
    until, why = now + AVOID_MS, "This job was lost with it twice"
    if not lost:
        until, why = now + REFUSED_MS, "kube-scheduler let no pod of this job come there, twice, though it has room"
    for node in nodes:
        before = known.get(node)
        if before is None:
            known[node] = AvoidedNode(node, now, "")
        elif before.until < until:
            known[node] = AvoidedNode(node, until, why)
    return sorted(known.values(), key=lambda entry: (-entry.until, entry.node))[:64]


def _turns(status: Mapping[str, Any], new: Sequence[str] = (), *, ran: bool) -> list[str]:
    """The flavors that had no nodes for a gang that is evicted now, the latest last. `ran`: all of its pods were ready
    since it was admitted, so that flavors from before do not count any more."""
    held = [] if ran else [name for name in status.get("outOfStock") or () if name not in new]
    return [*held, *new][-_MOST_FLAVORS:]


def _keep_turns(status: dict[str, Any], turns: list[str]) -> None:
    status.pop("outOfStock", None)
    if turns:
        status["outOfStock"] = turns


def _pause_ms(check: dict[str, Any]) -> int:
    """How long (ms) to wait before a check is asked again: as it says, or a second, doubled with each Retry up to a
    minute. 0 for one that does not ask for a retry."""
    if check.get("state") != "Retry":
        return 0
    said = check.get("requeueAfterSeconds")
    return int(said) * 1000 if said is not None else min(60_000, 1000 << min(int(check.get("retryCount") or 0), 6))


def _entries(held: Iterable[dict[str, Any]], names: Sequence[str], now: int) -> list[dict[str, Any]]:
    """Status entries of the checks of these names: those that are held, and new ones for the rest."""
    there = {check["name"]: check for check in held}
    new = {"state": "Pending", "lastTransitionTime": rfc3339(now), "message": ""}
    return [there.get(name) or {"name": name, **new} for name in names]


_ASKED_AGAIN = "Asked again after eviction."
_ASKED_LATER = "Asked again with the next reservation."
_CHECK_MESSAGE = 32_768
"""Characters that the kind Workload takes: a check may have used all of them."""


def _asked_again(check: dict[str, Any], now: int, why: str = _ASKED_AGAIN) -> dict[str, Any]:
    """The entry of a check that is asked again. It has all fields, so that none that the check's controller owns is
    left as it was."""
    state, message = check.get("state", ""), str(check.get("message", ""))
    if not message.startswith((_ASKED_AGAIN, _ASKED_LATER)):  # else it has not answered since: what it said stays
        message = (f"{why} Before: {state}" + (f", {message}" if message else ""))[:_CHECK_MESSAGE]
    return {
        "name": check["name"],
        "state": "Pending",
        "message": message,
        "lastTransitionTime": rfc3339(now),
        "retryCount": int(check.get("retryCount") or 0) + (state == "Retry"),
        "podSetUpdates": [],
    }


def _count_eviction(status: dict[str, Any], reason: str, cause: str) -> None:
    """Add one to the count of evictions by this reason; once per eviction, for the write is conditional."""
    stats = dict(status.get("schedulingStats") or {})
    evictions = [dict(one) for one in stats.get("evictions") or ()]
    for one in evictions:
        if one.get("reason") == reason and one.get("underlyingCause", "") == cause:
            one["count"] = int(one.get("count", 0)) + 1
            break
    else:
        evictions.append({"reason": reason, "underlyingCause": cause, "count": 1})
    stats["evictions"] = evictions
    status["schedulingStats"] = stats
