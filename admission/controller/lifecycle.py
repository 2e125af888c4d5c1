"""What happens next to one job: a pure, level-triggered table from what is seen to the one write that is due.

A job and its Workload pass through held -> queued -> reserved -> admitted -> running -> finished, and back from any of
them by eviction. Nothing here remembers how a state was reached: the same look at the API objects gives the same step,
so a crash between any two writes heals by looking again. The order of the writes is what keeps a gang whole:

  start   reserve and admit (Workload status), then unsuspend with pins (the job);
  evict   Evicted=True (Workload status, keeps the reservation), then suspend (the job), wait until the pods are gone,
          put the template back (the job), then release the reservation (Workload status).

A job's pods are *gone* when three things agree: its condition Suspended is True, its own status counts no active and no
terminating pod, and no live pod is owned by it. All three are needed, because each is written late by somebody else:

- A Job that is started and suspended again before its controller noticed the start still says Suspended=True from
  before, with no pods, and the controller makes the pods afterwards. So where a start was not noticed, Suspended=False
  is written in the controller's stead before the Job is suspended (`SayResumed`). The controller never writes a status
  over a newer one, so that the Suspended=True that comes next is about this stop.
- A JobSet has a controller of its own, which starts and stops its Jobs. A start is given time to be acknowledged before
  the JobSet is stopped (`Settings.acknowledge_ms`), and both are asked of each of its Jobs as well. One Job that runs
  is acknowledgement enough: with startupPolicy InOrder a JobSet says Suspended=False with its last Job only.
- A JobSet's controller may be stuck, for example because a Job of it is refused, and stop nothing. After that time its
  Jobs are stopped for it (`StopPods`).
- The Job controller may leave a Job alone and wake only when the Job is changed. After that time it is reminded of a
  stop that is due, or of pods that are (`RemindController`).

Pods on a node that has been gone for long are not waited for. A job that ran before it was held may have left pods
behind: it is started when these are gone, in the same sense and within the same time.

Decisions about who is admitted or evicted for whom are the engine's; what is decided here concerns one job alone:
timeouts, deactivation, stopped queues, admission checks, lost nodes, changes by its owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from admission.engine.model import Check, CheckState, Key, Reason, StopPolicy, Value, Workload
from admission.jobs.kinds import JOB, JOBSET, JobKey, JobView
from admission.kube.clock import NOT_SET, SetAhead

DEACTIVATED = Reason.DEACTIVATED.value
"""Reason of an eviction: the Workload is deactivated. In a condition the cause may follow: DeactivatedDueTo..."""
IN_PLACE = 8
"""Most nodes that are replaced under a running gang at once; beyond that it starts anew as a whole."""
CLOCKS_DIFFER_MS = 60_000
"""What was written by a clock that was ahead by more is not believed."""
STANDSTILL_MS = 3_600_000
"""So much longer a gang that has not run yet may take to become ready while no pods are made for anybody, and nothing
says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations in ms; None switches a rule off."""

    pods_ready_ms: int | None = 300_000
    """From the last pod's creation until all pods are ready."""
    recovery_ms: int | None = 300_000
    """From the moment at which a pod that had been ready is no longer."""
    unschedulable_ms: int = 30_000
    """A pinned pod that the scheduler cannot place for so long evicts its gang."""
    refused_ms: int = 60_000
    """A start, or pods, that the API server refuses for so long evict a gang that has not been whole yet."""
    acknowledge_ms: int = 330_000
    """Bound on waiting for a job's controller to acknowledge a start or a stop. A controller that is not waited for may
    make pods after the quota went to others. Longer than the five minutes for which the Job controller leaves a Job
    alone while it expects pods that it will not see."""
    backoff_base_ms: int = 60_000
    backoff_max_ms: int = 3_600_000
    backoff_limit: int | None = None
    give_back_ms: int = 5_000
    """Pods of a running gang that are done give their quota back at most this often, and never at once: most gangs
    are soon done whole."""
    as_kueue: bool = False
    """Act as Kueue does where others rely on it: a Workload that is deactivated while it waits gets Evicted=True, one
    that is activated again gets Requeued=True at once, and the time that it has run still counts towards its maximum.
    And a gang that was ready has `recovery_ms` to be ready again, however young its pods are."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the API server said last when it refused to create pods of one gang. Times in ms since the epoch."""

    looked_at: int
    said_at: int = 0
    said: str = ""
    """Empty where no refusal was found: whatever creates the pods is slow, or not there."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """A gang has more pods on nodes than it is charged for, counting those that are still terminating."""

    since: int
    """ms since the epoch; 0: there are so many more that nothing is waited for."""
    pods: int
    charged: int
    pod_set: str = ""
    """In which they are; "": in all of them together."""
    given_back: int = 0
    """Pods of it that were done, so that their quota went to others."""


@dataclass(frozen=True, slots=True)
class PodTally:
    """The pods of one job, as counted from the pods themselves."""

    live: int = 0
    """Neither Succeeded nor Failed, terminating ones included; less `lost`."""
    lost: int = 0
    """Terminating on nodes that are gone for good: nobody waits for them."""
    lost_until: int | None = None
    """When the next terminating pod counts as lost."""
    ready: int = 0
    """Of those that are due, ready or, though their job does not say so yet, Succeeded."""
    last_created_at: int = 0
    """Of those that are not terminating."""
    unready_since: int | None = None
    """Since when the first of those that are not ready is not."""
    unschedulable_since: int | None = None
    unschedulable_message: str = ""
    shut_out: str = ""
    """Why that pod cannot come to its node, where somebody has closed that to new pods."""
    refused_by: tuple[str, ...] = ()
    """Nodes to which kube-scheduler lets no pod of it come, though there is room."""
    unplaced: int = 0
    """Pods whose node kube-scheduler is to choose, and for which it finds none."""
    unplaced_since: int | None = None
    """Since when it has found none for the first of them."""
    unplaced_message: str = ""
    out_of_stock: tuple[str, ...] = ()
    """Elastic flavors on which they wait for it."""
    gated: tuple[Key, ...] = ()
    """(namespace, name) of pods that wait for their host behind our scheduling gate."""
    stranded: tuple[Key, ...] = ()
    """(namespace, name) of pods on nodes that are no longer in the reservation."""
    beyond: Beyond | None = None
    claims_more: str = ""
    """A pod of it that holds more devices by its claims than were counted, in words."""
    missing_since: int | None = None
    """Since when fewer pods are there than are due."""
    refusal: Refusal | None = None
    """What was found when it was last looked up who refuses those."""
    behind_since: int | None = None
    """Since when not all that are due are ready, after they were; as far as it was seen."""
    stray: tuple[Key, ...] = ()
    """(namespace, name) of running pods that a suspended job would not stop: the Job that made them is gone or being
    deleted (its controller then stops nothing), or has let go of them."""
    unled: tuple[JobKey, ...] = ()
    """Jobs that would go on making pods though their JobSet, which is gone or being deleted, is to stop."""
    strangers: int = 0
    """Pods that a Job of the gang owns, that are not done, and that its start did not make. They are in no other count,
    but in the Job's own: else one small pod that never ends would keep the quota of its whole gang."""


class WorkloadView(Value, frozen=True):
    """A Workload as the shell needs it beside the engine's value."""

    value: Workload
    resource_version: str
    spec_hash: str
    """Hash of the job's pod sets as they were when this spec was written."""
    counts: tuple[tuple[str, int], ...]
    requeue_count: int = 0
    deleting: bool = False
    paused: bool = False
    """spec.active is false because the owner paused the job."""
    kept_out: str = ""
    """Reason of a False condition Requeued: what it was kept out of the queue for."""
    max_execution_s: int | None = None
    owner: tuple[str, str] = ("", "")
    """(kind, name) of the job by the controller reference."""
    gated_by: str = ""
    priority_class: str = ""
    """The WorkloadPriorityClass that it names."""
    defaults: str = ""
    """Hash of what LimitRanges and RuntimeClasses added to the job's pod sets when this spec was written."""
    no_boost: str = ""
    """What stands for a boost of its priority, and is no number."""
    kept: bool = False
    """It carries our finalizer, as those that Kueue made do where we take its place."""


# ---------------------------------------------------------------- steps


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    pass


@dataclass(frozen=True, slots=True)
class UpdateWorkload:
    """Write the Workload's spec anew from the job (only while nothing is reserved)."""


@dataclass(frozen=True, slots=True)
class CompareWorkload:
    """See whether what is added to its pods now (`Defaults.mark_of`) makes another Workload, and write that."""


@dataclass(frozen=True, slots=True)
class Reprioritize:
    """The class of a gang that holds quota, or that no job stands behind, has another value now; or the job names
    another class."""


@dataclass(frozen=True, slots=True)
class ForgetTries:
    """A Workload that was activated again begins anew: no count of tries, no backoff, flavors in its queue's order, and
    its full maximum execution time (in Kueue mode what is left of that)."""


@dataclass(frozen=True, slots=True)
class WaitFromNow:
    """Its backoff was written while the API server's clock was ahead, and would last until then: it begins anew."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class Reactivate:
    """Write Requeued=True: it was activated again and is queued."""


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    why: str


@dataclass(frozen=True, slots=True)
class LetWorkloadGo:
    """Take our finalizer off a Workload that is being deleted and holds nothing."""


@dataclass(frozen=True, slots=True)
class TellUngoverned:
    """Tell the owner of a held job that nobody queues it: its label is empty, or its namespace is not governed."""


@dataclass(frozen=True, slots=True)
class MarkJob:
    """Note on a job without a queue that it stays suspended though nobody queues it; or take that off."""

    ungoverned: bool


@dataclass(frozen=True, slots=True)
class SuspendJob:
    why: str


@dataclass(frozen=True, slots=True)
class SayResumed:
    """Write Suspended=False to a Job whose controller has not noticed that it was started: see the module."""


@dataclass(frozen=True, slots=True)
class SayStarted:
    """Give a start time to a Job that came to its end while it was suspended. Its controller cleared that when it
    suspended the Job, and the API server refuses the conditions Complete and Failed without one: the Job would never
    be finished."""


@dataclass(frozen=True, slots=True)
class StartJob:
    pass


@dataclass(frozen=True, slots=True)
class StopPods:
    """Stop what no controller stops: suspend these Jobs, delete these pods."""

    jobs: tuple[JobKey, ...]
    pods: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class RemindController:
    """Have the Job controller look at these Jobs, of which it has done nothing for long. It leaves a Job alone for five
    minutes while it expects to see pods that it will not see (its watch was broken off while they came and went, or
    they were those of a Job of the same name before), and looks again when somebody changes the Job, and not sooner."""

    jobs: tuple[JobKey, ...]


@dataclass(frozen=True, slots=True)
class ClearStartTime:
    pass


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """Take back from the job what the start wrote into it."""


@dataclass(frozen=True, slots=True)
class RestoreChildren:
    """Take it out of these Jobs, too, which a JobSet has made: its controller adds to them and takes nothing back."""

    jobs: tuple[JobKey, ...]


@dataclass(frozen=True, slots=True)
class EvictWorkload:
    reason: str
    """Reason of the condition Evicted."""
    message: str
    backoff: bool = False
    counted: bool = True
    """Of one that backs off: a try that failed, so that the next wait is longer."""
    deactivate: bool = False
    paused: bool = False
    """Deactivated by the owner's pause, which ends when the owner ends it."""
    cause: str = ""
    """Why it is deactivated, or did not get ready: a word for programs."""
    nodes: tuple[str, ...] = ()
    """Nodes to blame."""
    out_of_stock: tuple[str, ...] = ()
    """Elastic flavors on which it got no nodes for some of its pods."""


_SWITCHED_OFF = EvictWorkload(DEACTIVATED, "The workload is deactivated")
"""By whom, and what for, no object says."""


@dataclass(frozen=True, slots=True)
class ReplaceNodes:
    """Ask the engine for other nodes for those that are lost, while the rest of the gang runs on; for none any more
    where they are back."""

    nodes: tuple[str, ...]
    guilty: tuple[str, ...]
    """Those of them to blame."""


@dataclass(frozen=True, slots=True)
class EvictPods:
    """Other nodes were found: take the pods off the lost ones, by the Eviction API, so that their Job makes them
    anew."""

    pods: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class ReleaseWorkload:
    """The pods are gone: give quota and nodes back."""


@dataclass(frozen=True, slots=True)
class AdmitWorkload:
    """All admission checks are ready: a reservation becomes an admission."""


@dataclass(frozen=True, slots=True)
class SyncChecks:
    """A reservation must pass other checks than its Workload lists: its queue has changed."""

    required: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Reset checks that refused a Workload that holds nothing (their answer came too late, mostly): they are asked
    again with its next reservation."""


@dataclass(frozen=True, slots=True)
class FinishWorkload:
    succeeded: bool
    message: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give back the quota of pods of a running gang that are done and will not run again, because others wait for it.
    pods: (pod set, number)."""

    pods: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Ungate:
    pods: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class LookForRefusal:
    """Read from Events why pods that should be there were refused. The one step that writes nothing."""

    at: int


Step = (
    CreateWorkload
    | UpdateWorkload
    | CompareWorkload
    | Reprioritize
    | ForgetTries
    | WaitFromNow
    | Reactivate
    | DeleteWorkload
    | LetWorkloadGo
    | TellUngoverned
    | MarkJob
    | SuspendJob
    | SayResumed
    | SayStarted
    | StartJob
    | StopPods
    | RemindController
    | ClearStartTime
    | RestoreJob
    | RestoreChildren
    | EvictWorkload
    | ReplaceNodes
    | EvictPods
    | ReleaseWorkload
    | AdmitWorkload
    | SyncChecks
    | AskAgain
    | FinishWorkload
    | GiveBack
    | Ungate
    | LookForRefusal
)


@dataclass(frozen=True, slots=True)
class Sight:
    """All that is known of one job at one moment: what `next_step` decides on. Times are in ms since the epoch."""

    job: JobView | None
    workload: WorkloadView | None
    pods: PodTally = field(default_factory=PodTally)
    queue: str = ""
    governed: bool = True
    terminating: bool = False
    """Its namespace is being deleted: nothing can be created there any more."""
    within: bool = False
    """It is a Job of a JobSet that is governed."""
    outside: bool = False
    """It is not governed because its namespace is not. A queue label holds it suspended all the same."""
    stop_policy: StopPolicy = StopPolicy.NONE
    """Of the ClusterQueue; the LocalQueue's where that is stricter."""
    stopped_by: str = ""
    """"ClusterQueue" or "LocalQueue"."""
    queue_goes: bool = False
    """Its ClusterQueue is being deleted, which takes until nothing is reserved in it."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes of the gang that are lost, have lost the devices that it holds there, or are `tainted`."""
    tainted: tuple[tuple[str, str], ...] = ()
    """(node, taint) of those `lost_nodes` that are well, and whose taint NoExecute takes the pods off them."""
    short: tuple[tuple[str, str], ...] = ()
    """(node, how many of how many) of those `lost_nodes` that are well, without all the devices that are held there."""
    unnamed: tuple[str, ...] = ()
    """Those `lost_nodes` that its reservation does not name: kube-scheduler chose them."""
    lost_at: int | None = None
    """When the next node of the gang counts as lost, if it is not well before."""
    heard_since: int | None = 0
    """Since when not all nodes of the cluster are silent at once; None while they are (see `silence`)."""
    made_since: int | None = 0
    """When the last time ended for which pods were made for nobody (see `standstill`); None of a gang that lacks pods
    while that lasts."""
    placed_since: int | None = 0
    """The same of pods that come to their nodes."""
    priority: int = 0
    abandoned: bool = False
    """A Job with our marker in its template that belongs to no JobSet and no Workload any more."""
    spare_since: int | None = None
    """Since when pods of it hold quota that they will not use again, with somebody waiting."""
    haunted: bool = False
    """Its Workload was deleted, and pods that it had admitted still hold what they were given."""
    marked: tuple[JobKey, ...] = ()
    """Jobs of a JobSet that are to stop and whose templates still say what the start wrote into it."""
    going: tuple[JobKey, ...] = ()
    """Jobs of a JobSet that are not suspended."""
    unheard: int = 0
    """Number of Jobs of a JobSet whose last start, or whose stop if they are to stop, the Job controller has not
    acknowledged."""
    idle: tuple[tuple[JobKey, int], ...] = ()
    """Jobs (of a JobSet: its Jobs) that are to stop and have not, or that are to have more pods than they have, and
    since when that is seen, or the Job controller was last reminded of it."""
    required: tuple[str, ...] | None = None
    """Admission checks that the queue asks of the reservation as it is now; of a gang without one, all that it may ask.
    None: those that the Workload lists, for the queue is gone."""
    given_twice: str = ""
    """What of its reservation another leader had given away at the same time; "": nothing."""
    same_defaults: bool = True
    """What is added to its pods (`Defaults.mark_of`) is what was when the Workload was written."""
    start_refused: tuple[int, int, str] | None = None
    """Since when the API server refuses the write that starts it, when it did so last, and what it said; None: it does
    not, or it refuses those of all."""
    set_ahead: SetAhead = NOT_SET


@dataclass(frozen=True, slots=True)
class Next:
    step: Step | None = None
    at: int | None = None
    """When to look again though nothing changes; ms since the epoch."""


NOTHING = Next()


def earliest(*times: int | None) -> int | None:
    """The earliest of these times that are not None; None if all are."""
    return min((at for at in times if at is not None), default=None)


def next_step(seen: Sight, settings: Settings, now: int) -> Next:
    """The one write that is due for a job, or when to look again.

    >>> next_step(Sight(job=None, workload=None), Settings(), 0)
    Next(step=None, at=None)
    """
    job, workload = seen.job, seen.workload
    if workload is not None and _may_vanish(workload):
        return Next(LetWorkloadGo())
    if job is None:
        if workload is None or workload.deleting:
            return NOTHING
        return Next(DeleteWorkload("the job it stood for is gone"))
    if job.finished is not None:
        if workload is None or workload.value.finished:
            return NOTHING
        if seen.pods.live:
            return Next(None, seen.pods.lost_until)  # a pod's end is a change, and wakes us
        return Next(FinishWorkload(job.finished == "Succeeded", job.message))
    if job.deleting:
        return _leaving(seen)
    if job.ending is not None:
        return _ending(seen, job.ending, settings, now)
    if not seen.governed:
        return _ungoverned(seen, settings, now)
    if job.ungoverned and (job.labelled or workload is not None):
        return Next(MarkJob(False))
    if workload is None:
        if not job.suspended:
            return Next(SuspendJob("not admitted"))
        if job.started or seen.haunted:
            return _take_back(seen, settings, now, then=None)
        return NOTHING if seen.terminating else Next(CreateWorkload())
    value = workload.value
    if value.finished:
        return NOTHING
    if value.admission is None:
        if not job.suspended:
            return Next(SuspendJob("not admitted"))
        if job.started:
            return _take_back(seen, settings, now, then=None)
        if not workload.deleting and _differs(seen):
            return Next(UpdateWorkload())
        if not workload.deleting and not seen.same_defaults:
            return Next(CompareWorkload())
        return Next(_while_it_waits(workload, settings, seen.required, now))
    if value.evicted:
        return _take_back(seen, settings, now, then=ReleaseWorkload())
    looks_at = _looks_for_refusal_at(seen, settings)
    if looks_at is not None and now >= looks_at:
        return Next(LookForRefusal(now))  # first, so that whoever is evicted for having no pods is told why it has none
    own = _own_eviction(seen, settings, now)
    if own is not None:
        return Next(own)
    if value.priority != seen.priority and job.priority_class and workload.priority_class:
        return Next(Reprioritize())
    if not value.admitted:
        if not job.suspended:
            return Next(SuspendJob("not admitted"))
        return Next(_on_checks(value, seen.required))
    if job.suspended:
        return _start(seen, settings, now)
    if set(seen.lost_nodes) != set(value.lost_nodes):
        return Next(ReplaceNodes(seen.lost_nodes, _guilty(seen)))
    if _in_place(seen) and seen.pods.stranded:
        return Next(EvictPods(seen.pods.stranded))
    if seen.pods.gated:
        return Next(Ungate(seen.pods.gated))
    spare_at = _spare_at(seen, settings)
    if spare_at is not None and now >= spare_at:
        return Next(GiveBack(spare(job, value)))
    return _or_remind(seen, settings, now, _deadline(seen, settings))


def _or_remind(seen: Sight, settings: Settings, now: int, at: int | None) -> Next:
    """Look again at `at`, or remind the Job controller of what it has been due to do for `acknowledge_ms`. Sooner would
    be in vain, for it may leave a Job alone for nearly that long; one that is merely slow is not slowed by it."""
    due = {job: seen.set_ahead.now(since) + settings.acknowledge_ms for job, since in seen.idle}
    idle = tuple(job for job, then in due.items() if now >= then)
    if idle:
        return Next(RemindController(idle))
    return Next(None, earliest(at, *due.values()))


def _start(seen: Sight, settings: Settings, now: int) -> Next:
    """Start an admitted job, once pods are gone that it made before it was held (before Muster was installed, say). Its
    controller may not have seen yet that it was to stop, and would adopt these pods: they have no places, and do not
    count as the gang's, which would then be evicted for having too few that are ready."""
    job, workload, pods = seen.job, seen.workload, seen.pods
    assert job is not None
    assert workload is not None
    until = seen.set_ahead.now(workload.value.admitted_at) + settings.acknowledge_ms
    if (seen.going or pods.live) and now < until:
        return Next(None, earliest(until, pods.lost_until))
    if seen.going:
        return Next(StopPods(seen.going, ()))
    return Next(ClearStartTime() if _is_frozen(job) else StartJob())


def bare_step(
    workload: WorkloadView,
    stop: StopPolicy,
    stopped_by: str,
    settings: Settings,
    now: int,
    required: tuple[str, ...] | None = None,
    given_twice: str = "",
    class_value: int | None = None,
    set_ahead: SetAhead = NOT_SET,
    *,
    queue_goes: bool = False,
) -> Next:
    """As `next_step`, for a Workload without a job of a kind that Muster knows. Its author starts what it stands for at
    Admitted, stops it at Evicted, and removes status.admission when nothing of it runs any more. class_value: value of
    the WorkloadPriorityClass that it names; None where it names none that exists."""
    value = workload.value
    if _may_vanish(workload):
        return Next(LetWorkloadGo())
    promoted = class_value is not None and class_value != value.priority and not workload.deleting
    if value.admission is None and not value.finished:
        step = _while_it_waits(workload, settings, required, now)
        return Next(Reprioritize() if step is None and promoted else step)
    if value.finished or (workload.deleting and not workload.kept):
        return NOTHING
    if value.evicted:
        return NOTHING if value.admitted else Next(ReleaseWorkload())
    leaves = _told_to_leave(workload, stop, stopped_by, required, now, queue_goes=queue_goes)
    leaves = leaves or ran_out(workload, now, set_ahead)
    if leaves is None and given_twice:
        leaves = EvictWorkload("OutOfSync", given_twice)
    if leaves is not None:
        return Next(leaves)
    if promoted:
        return Next(Reprioritize())
    if not value.admitted:
        return Next(_on_checks(value, required))
    return Next(None, _runs_out_at(workload, set_ahead))


def _may_vanish(workload: WorkloadView) -> bool:
    """Is it being deleted, and our finalizer all that is in the way? One that another controller manages is let go even
    while it holds quota, for nobody would tell us when it has stopped."""
    value = workload.value
    return workload.deleting and workload.kept and (value.finished or value.admission is None or bool(value.unmanaged))


def _while_it_waits(
    workload: WorkloadView, settings: Settings, required: tuple[str, ...] | None, now: int
) -> Step | None:
    """What is due for a Workload that holds nothing and has not finished."""
    value = workload.value
    if workload.deleting:
        return None
    if settings.as_kueue and not value.active and not value.evicted:
        return _told_to_leave(workload, StopPolicy.NONE, "", required, now)
    if any(check.said_no for check in value.checks):
        said = _said_no(value, required) if value.active else None
        return said if said is not None and said.deactivate else AskAgain()
    if not value.active:
        tried = workload.requeue_count > 0 or value.requeue_at > 0
        return ForgetTries() if tried or (value.run_ms > 0 and not settings.as_kueue) else None
    if settings.as_kueue and workload.kept_out.startswith(DEACTIVATED):
        return Reactivate()
    most = settings.backoff_max_ms
    longest = now + most + CLOCKS_DIFFER_MS
    if value.evicted_at > now + CLOCKS_DIFFER_MS and value.requeue_at > max(value.evicted_at, longest):
        return WaitFromNow(min(value.requeue_at - value.evicted_at, most))
    # Else it would be admitted, perhaps for others' room, and switched off again before it has started.
    return ran_out(workload, now)


def _on_checks(value: Workload, required: tuple[str, ...] | None) -> Step | None:
    """What is due for a reservation, by its checks."""
    if required is not None and {check.name for check in value.checks} != set(required):
        return SyncChecks(required)
    asked = bool(value.checks) or required is not None
    return AdmitWorkload() if asked and all(check.state is CheckState.READY for check in value.checks) else None


def _ending(seen: Sight, end: str, settings: Settings, now: int) -> Next:
    """A Job that has succeeded or failed (`end`), and whose controller waits for its last pods before it says so. The
    controller makes no more pods, stops the rest by itself, and never reports the Job as suspended, so that there is
    nothing to evict. What pods held that are gone is given back; all of it once only pods on lost nodes are left."""
    job, workload, pods = seen.job, seen.workload, seen.pods
    assert job is not None
    if workload is None or workload.value.finished:
        held = (seen.governed or seen.within) and job.suspended
        return Next(SayStarted()) if held and not job.start_time_set else NOTHING
    # Suspended before its last pod ended it has no startTime, and nobody may call it finished before it is given one.
    if (pods.lost or job.suspended) and not (pods.live or job.active or job.terminating > pods.lost):
        return Next(FinishWorkload(end == "Succeeded", job.message))
    spare_at = _spare_at(seen, settings)
    if spare_at is not None and now >= spare_at:
        return Next(GiveBack(spare(job, workload.value)))
    return Next(None, earliest(spare_at, pods.lost_until))


def _leaving(seen: Sight) -> Next:
    """A job that is being deleted and kept by a finalizer of somebody else. It is given no room any more, and gives
    back what it has when its pods are gone. If it is evicted before that, they are stopped one by one: the Job
    controller neither makes nor stops pods of a Job that is being deleted."""
    workload, pods = seen.workload, seen.pods
    if workload is None or workload.value.finished:
        return NOTHING
    stop = _stop_strays(pods)
    if stop is not None and (workload.value.evicted or not pods.live):
        return Next(stop)
    if pods.live:
        return Next(None, pods.lost_until)
    return _gone(workload, "the job it stands for is being deleted, and no pod of it is left")


def _gone(workload: WorkloadView, why: str) -> Next:
    """Nothing runs of what a Workload stood for: delete it. One that is deleted already, and kept by a finalizer of
    somebody else, has its reservation taken back."""
    if not workload.deleting:
        return Next(DeleteWorkload(why))
    if _may_vanish(workload):
        return Next(LetWorkloadGo())
    held = workload.value.admission is not None and not workload.value.finished
    return Next(ReleaseWorkload()) if held else NOTHING


def _stop_strays(pods: PodTally) -> StopPods | None:
    return StopPods(pods.unled, pods.stray) if pods.unled or pods.stray else None


def beside_step(workload: WorkloadView) -> Next:
    """As `next_step`, for a Workload whose job has another one that counts. For an elastic job that grows Kueue makes
    one more Workload, which stands for both."""
    return _gone(workload, "another Workload counts for its job")


def next_orphan_step(workload: WorkloadView, pods: PodTally) -> Next:
    """As `next_step`, for a Workload whose job is gone. (Before the Workload is deleted a live read must confirm
    that.)"""
    stop = _stop_strays(pods)
    if stop is not None and workload.value.evicted:
        return Next(stop)
    if pods.live or pods.unled:
        return Next(None, pods.lost_until)
    return _gone(workload, "the job it stood for is gone")


def spare(job: JobView, value: Workload) -> tuple[tuple[str, int], ...]:
    """(pod set, pods that will not run again) where that is more than the Workload says yet; else nothing."""
    if value.admission is None or not value.admitted or value.evicted or value.finished or job.suspended:
        return ()
    # Of what it was admitted with: a gang that is admitted again, with some of it done, was given less.
    given = {one.name: one.count for one in value.admission.pod_sets}
    told = dict(value.reclaimable)
    all_told = {name: max(told.get(name, 0), given[name] - left) for name, left in job.left if name in given}
    return tuple(sorted({**told, **all_told}.items())) if any(n > told.get(p, 0) for p, n in all_told.items()) else ()


def _spare_at(seen: Sight, settings: Settings) -> int | None:
    """When what its pods will not use again is given back."""
    since = seen.spare_since
    return None if since is None else seen.set_ahead.now(since) + settings.give_back_ms


def _ungoverned(seen: Sight, settings: Settings, now: int) -> Next:
    """A job that Muster does not govern any more: its label was removed, its namespace is not governed any more, or
    jobs without a label are not. Its reservation is taken back. It stays suspended, because many that were let go at
    once would all start beside the jobs that wait; a label notes on it that nobody queues it, so that people find
    it."""
    job, workload = seen.job, seen.workload
    assert job is not None
    if workload is None:
        if seen.abandoned and not job.suspended:
            return Next(SuspendJob("the gang it was started with is gone"))
        if job.ungoverned and (job.labelled or not job.suspended):
            return Next(MarkJob(False))
        held = job.ungoverned or (job.labelled and (seen.outside or not job.queue))
        return Next(TellUngoverned()) if held and job.suspended else NOTHING
    why = "namespace is not governed any more" if seen.outside else "job names no queue, and none is given to it"
    value = workload.value
    if value.admission is None or value.finished:
        if job.suspended and not job.labelled and not job.ungoverned and not value.finished:
            return Next(MarkJob(True))
        return NOTHING if workload.deleting else Next(DeleteWorkload(f"the {why}"))
    if value.evicted:
        return _take_back(seen, settings, now, then=ReleaseWorkload())
    return Next(EvictWorkload(DEACTIVATED, f"The {why}"))


def _take_back(seen: Sight, settings: Settings, now: int, *, then: Step | None) -> Next:
    """Stop the job, wait until its pods are gone (see the module), put its template back; then take the step `then`."""
    job, workload, pods = seen.job, seen.workload, seen.pods
    assert job is not None
    evicted_at = workload.value.evicted_at if workload is not None else 0
    until = seen.set_ahead.now(evicted_at) + settings.acknowledge_ms
    if not job.suspended:
        # Is the start not acknowledged yet (see the theory above)?
        if job.kind == JOB.kind and job.suspended_condition:
            return Next(SayResumed())
        if ((job.suspended_condition and not seen.going) or seen.unheard) and now < until:
            return Next(None, until)
        return Next(SuspendJob("evicted"))
    may_have_run = job.started or (workload is not None and workload.value.admitted)
    stop = _stop_strays(pods)
    if stop is not None:
        return Next(stop)
    # The job's own counts, in case not all of its pods are seen yet. Strangers are in them, too.
    active, terminating = (0, 0) if pods.strangers else (job.active, job.terminating - pods.lost)
    bounded = job.kind == JOBSET.kind and workload is not None and bool(workload.value.evicted)
    if bounded and now >= until:
        if seen.going:
            return Next(StopPods(seen.going, ()))
        acknowledged = True
    else:
        acknowledged = not active and (job.suspended_condition or not may_have_run)
    if pods.live or terminating > 0 or (may_have_run and seen.unheard) or not acknowledged:
        return _or_remind(seen, settings, now, earliest(pods.lost_until, until if bounded and now < until else None))
    children = RestoreChildren(seen.marked) if seen.marked and then is not None else None
    if children is not None and job.started:
        return Next(children)  # first, for with its own note a JobSet is let go, and may start them
    if job.started or job.started_by_another:
        if _is_frozen(job):
            return Next(ClearStartTime())
        return Next(RestoreJob())
    return Next(children or then)


def _is_frozen(job: JobView) -> bool:
    """Is its template immutable although it is suspended? Kubernetes 1.35 and older refuse changes while a start time
    is set, which nobody clears."""
    return job.start_time_set and job.suspended_condition and job.template_frozen


def _in_place(seen: Sight) -> bool:
    """Are the pods of this gang replaced one by one when they lose their nodes, instead of evicting it? So where the
    job survives the loss of a pod, and each pod gets its host through a scheduling gate."""
    job, workload = seen.job, seen.workload
    return (
        job is not None
        and workload is not None
        and job.survives
        and job.gates
        and not job.suspended
        and workload.value.admitted
        and len(seen.lost_nodes) <= IN_PLACE
    )


def _own_eviction(seen: Sight, settings: Settings, now: int) -> EvictWorkload | None:
    """The eviction that is due for a gang that holds quota, for a reason of its own (not for another gang); or None."""
    job, workload = seen.job, seen.workload
    assert job is not None
    assert workload is not None
    told = _told_to_leave(
        workload,
        seen.stop_policy,
        seen.stopped_by,
        seen.required,
        now,
        paused=job.paused,
        queue_goes=seen.queue_goes,
    )
    if told is None:
        return _unfit(seen, settings, now)
    most = settings.backoff_limit
    if told == _SWITCHED_OFF and most is not None and workload.requeue_count >= most:
        # A gang that is given up is deactivated first, and the controller may have ended before it wrote why.
        last = _unfit(seen, settings, now)
        return last if last is not None and last.backoff and last.counted else told
    return told


def _unfit(seen: Sight, settings: Settings, now: int) -> EvictWorkload | None:
    """As `_own_eviction`, where nobody has told the gang to leave: by what is seen of its job, nodes and pods. The
    order is that of the rules: the first that holds gives the reason."""
    job, workload, pods = seen.job, seen.workload, seen.pods
    assert job is not None
    assert workload is not None
    value = workload.value
    if seen.given_twice:
        return EvictWorkload("OutOfSync", seen.given_twice)
    emptied = _emptied(seen, settings)
    if emptied is not None and now >= emptied:
        return EvictWorkload(DEACTIVATED, "Its namespace is being deleted: no pods can be made there any more")
    if seen.lost_nodes and not _in_place(seen):
        # Whoever leaves the choice to kube-scheduler can avoid none.
        blamed = tuple(node for node in _guilty(seen) if node not in seen.unnamed)
        return EvictWorkload("NodeFailures", _loss(seen), nodes=blamed)
    # Of one that another controller started it is not known what its owner wrote.
    if workload.spec_hash and workload.spec_hash != job.spec_hash and not job.started_by_another:
        if job.kind == JOB.kind and not job.pods_at_once:
            return EvictWorkload(DEACTIVATED, "Its owner set parallelism to 0: it asks for no pods any more")
        return EvictWorkload("OutOfSync", "The job was changed after its reservation; it is reserved anew")
    if job.suspended and not job.started and seen.queue and value.queue != seen.queue:
        return EvictWorkload("OutOfSync", f"The job was moved to queue {seen.queue} after its reservation")
    if not value.admitted:
        return None
    if job.suspended:
        if job.started:
            return EvictWorkload("OutOfSync", "The job was suspended by somebody else while it ran")
        return _cannot_start(seen, settings)
    over = ran_out(workload, now, seen.set_ahead)
    if over is not None:
        return over
    unschedulable = _unschedulable(seen, settings)
    if unschedulable is not None and now >= unschedulable:
        if pods.shut_out:
            # Drained, mostly: neither a try that failed, nor a node that did.
            why = f"A pod could not come to its node for {settings.unschedulable_ms // 1000} s: {pods.shut_out}"
            return EvictWorkload("NodeFailures", why)
        return EvictWorkload(
            "PodsReadyTimeout",
            f"A pinned pod could not be scheduled for {settings.unschedulable_ms // 1000} s: "
            f"{pods.unschedulable_message}",
            backoff=True,
            cause="WaitForStart",
            nodes=pods.refused_by,
        )
    excess = _excess(seen, settings)
    if excess is not None and now >= excess:
        return EvictWorkload("OutOfSync", _said_of_excess(pods.beyond))
    if pods.claims_more:
        return EvictWorkload("OutOfSync", pods.claims_more, backoff=True)
    refused = _refused(seen, settings)
    if refused:
        return EvictWorkload(
            "PodsReadyTimeout",
            f"Only {pods.live} of its {job.pods_expected} pods are there, and the API server refuses more: {refused}",
            backoff=True,
            cause="WaitForStart",
        )
    deadline = _ready_deadline(seen, settings)
    if deadline.at is not None and now >= deadline.at:
        for_nobody = _for_nobody(seen, settings)
        return EvictWorkload(
            "PodsReadyTimeout",
            f"Only {pods.ready} of {job.pods_expected} pods are ready, and they had {deadline.had}{_unplaced(pods)}"
            + (f"; pods are {for_nobody} for nobody, and this counts as no try" if for_nobody else ""),
            backoff=True,
            counted=not for_nobody,
            cause=deadline.phase,
            out_of_stock=() if settings.as_kueue else pods.out_of_stock,
        )
    return None


def _cannot_start(seen: Sight, settings: Settings) -> EvictWorkload | None:
    """An eviction where the API server refuses the start, for example by a policy of somebody, for so long that others
    should have the room. Only if it was still refused after that time: without a try since then (the API server was
    away, or the next try is not due) it may be let start by now."""
    if seen.start_refused is None or settings.pods_ready_ms is None:
        return None
    since, last, said = seen.start_refused
    wait = settings.pods_ready_ms if settings.as_kueue else min(settings.refused_ms, settings.pods_ready_ms)
    if seen.set_ahead.now(last) < seen.set_ahead.now(since) + wait:
        return None
    why = f"The API server has refused its start for {wait // 1000} s: {said}"
    return EvictWorkload("PodsReadyTimeout", why, backoff=True, cause="WaitForStart")


def _told_to_leave(
    workload: WorkloadView,
    stop: StopPolicy,
    stopped_by: str,
    required: tuple[str, ...] | None,
    now: int,
    *,
    paused: bool = False,
    queue_goes: bool = False,
) -> EvictWorkload | None:
    """An eviction that somebody asked for: its owner, a queue's stop policy or deletion, or an admission check."""
    value = workload.value
    if workload.deleting:
        return EvictWorkload(DEACTIVATED, "Its Workload was deleted")
    pauses = EvictWorkload(DEACTIVATED, "The job is paused by its owner", deactivate=True, paused=True)
    if not value.active:
        known = pauses if paused or workload.paused else _said_no(value, required) or ran_out(workload, now)
        if known is None or not known.deactivate:
            return _SWITCHED_OFF
        return EvictWorkload(DEACTIVATED, known.message, cause=known.cause)
    if paused:
        return pauses
    if stop is StopPolicy.HOLD_AND_DRAIN or (stop is StopPolicy.HOLD and not value.admitted):
        return EvictWorkload(f"{stopped_by}Stopped", f"The {stopped_by} is stopped")
    if queue_goes and not value.admitted:
        return EvictWorkload("ClusterQueueStopped", "The ClusterQueue is being deleted")
    return _said_no(value, required)


def _asked(value: Workload, required: tuple[str, ...] | None) -> list[Check]:
    """The checks whose answers count: others may have been asked by another queue, or for another flavor."""
    return [check for check in value.checks if required is None or check.name in required]


def _said_no(value: Workload, required: tuple[str, ...] | None) -> EvictWorkload | None:
    asked = _asked(value, required)
    for check in asked:
        if check.state is CheckState.REJECTED:
            why = f"Check {check.name} refused: {check.message}"
            return EvictWorkload(DEACTIVATED, why, deactivate=True, cause="AdmissionCheck")
    for check in asked:
        if check.state is CheckState.RETRY:
            return EvictWorkload("AdmissionCheck", f"Check {check.name} asks to try again: {check.message}")
    return None


def ran_out(workload: WorkloadView, now: int, set_ahead: SetAhead = NOT_SET) -> EvictWorkload | None:
    """An eviction for good, where it has run for its maximum execution time, earlier admissions included; else None."""
    value, limit = workload.value, workload.max_execution_s
    ran = value.run_ms + (now - set_ahead.now(value.admitted_at) if value.admitted else 0)
    if limit is None or ran < limit * 1000:
        return None
    why = f"Ran for its maximum of {limit} s"
    return EvictWorkload(DEACTIVATED, why, deactivate=True, cause="MaximumExecutionTimeExceeded")


def _runs_out_at(workload: WorkloadView, set_ahead: SetAhead) -> int | None:
    """When an admitted gang has run for its maximum; None where it has none."""
    value, limit = workload.value, workload.max_execution_s
    return None if limit is None else set_ahead.now(value.admitted_at) + limit * 1000 - value.run_ms


def _emptied(seen: Sight, settings: Settings) -> int | None:
    """When a gang must leave that can have no pods any more because its namespace is being deleted. Its job is deleted
    only after the last pod of the namespace, which may be somebody else's and take long. Most go, or fail, sooner."""
    job, pods = seen.job, seen.pods
    if not seen.terminating or pods.live:
        return None
    if job is not None and job.suspended:
        return 0
    return None if pods.missing_since is None else seen.set_ahead.now(pods.missing_since) + settings.give_back_ms


def _unschedulable(seen: Sight, settings: Settings) -> int | None:
    """When a gang must leave because kube-scheduler cannot place a pinned pod; None while all can be placed, or no node
    is heard of."""
    since = seen.pods.unschedulable_since
    if since is None or seen.heard_since is None:
        return None
    then = seen.set_ahead.now
    return max(then(since), then(seen.heard_since)) + settings.unschedulable_ms


def _excess(seen: Sight, settings: Settings) -> int | None:
    """When a gang must leave because it has more pods than were admitted; None while it has not. For a moment pods may
    stand beside those that they replace; for longer they use what is charged to nobody."""
    beyond = seen.pods.beyond
    return None if beyond is None else seen.set_ahead.now(beyond.since) + settings.unschedulable_ms


def _said_of_excess(beyond: Beyond | None) -> str:
    if beyond is None:
        return ""
    of = f"its pod set {beyond.pod_set}" if beyond.pod_set else "it"
    there = f"{beyond.pods} pods of {of} run or are still ending, and {beyond.charged}"
    if beyond.given_back:
        done = f"{beyond.given_back} were done, and their quota was given back"
        return f"{there} are charged: {done}; they were made anew"
    why = "they were deleted and made anew beside those that end, or were taken from their Job"
    return f"{there} were admitted: {why}"


def _without_pods_since(seen: Sight, settings: Settings) -> int | None:
    """Since when no pod was created for a gang that lacks some and has never had all of its pods ready. None where it
    lacks none, or may have been complete: its work since then is not thrown away for one pod that is refused for a
    minute."""
    workload, pods = seen.workload, seen.pods
    running = workload is not None and workload.value.admitted and seen.job is not None and not seen.job.suspended
    if not running or pods.missing_since is None or pods.behind_since is not None:
        return None
    if settings.pods_ready_ms is None or settings.as_kueue:
        return None
    assert workload is not None
    then = seen.set_ahead.now
    since = max(then(pods.last_created_at), then(workload.value.admitted_at), then(seen.made_since or 0))
    seen_from_the_start = then(pods.missing_since) < since + settings.refused_ms
    if not seen_from_the_start and pods.ready:
        return None
    return max(since, then(seen.heard_since or 0))  # what was refused as it came back may not be refused now


def _looks_for_refusal_at(seen: Sight, settings: Settings) -> int | None:
    """When to look up what refuses the pods that a gang lacks: less and less often, while nothing is found."""
    since, found = _without_pods_since(seen, settings), seen.pods.refusal
    if since is None or settings.pods_ready_ms is None:
        return None
    looked_at = 0 if found is None else seen.set_ahead.now(found.looked_at)
    return since + max(min(settings.refused_ms, settings.pods_ready_ms), 2 * (looked_at - since))


def _refused(seen: Sight, settings: Settings) -> str:
    """What the API server said when it refused the pods that a gang lacks. "" where nothing is known, pods were created
    since, or those of all gangs are refused."""
    since, found = _without_pods_since(seen, settings), seen.pods.refusal
    if since is None or found is None or seen.set_ahead.now(found.looked_at) < since or seen.made_since is None:
        return ""
    then = seen.set_ahead.now
    return found.said if then(found.said_at) >= max(then(seen.pods.last_created_at), then(seen.made_since)) else ""


@dataclass(frozen=True, slots=True)
class _Deadline:
    """When all pods of a gang must be ready."""

    at: int | None = None
    """ms since the epoch; None: there is no such time now."""
    had: str = ""
    """How long the pods have until then, in words."""
    phase: str = ""
    """WaitForStart, or WaitForRecovery where all pods were ready before: the cause of the eviction."""


_NO_DEADLINE = _Deadline()


def _ready_deadline(seen: Sight, settings: Settings) -> _Deadline:
    job, workload, pods = seen.job, seen.workload, seen.pods
    assert job is not None
    assert workload is not None
    if settings.pods_ready_ms is None or seen.heard_since is None:
        return _NO_DEADLINE
    then = seen.set_ahead.now
    # A job that makes one pod after the other runs once as many are ready, or done, as it makes at once.
    if pods.ready >= job.pods_expected or pods.ready + job.succeeded >= job.pods_at_once:
        return _NO_DEADLINE
    if settings.as_kueue and pods.behind_since is not None:
        if settings.recovery_ms is None:
            return _NO_DEADLINE
        had = f"{settings.recovery_ms // 1000} s after one was missing or not ready"
        at = then(max(pods.behind_since, seen.heard_since)) + settings.recovery_ms
        return _Deadline(at, had, "WaitForRecovery")
    made_since, placed_since = _made_and_placed_since(seen, settings)
    unsaid = made_since is None and (pods.refusal is None or not pods.refusal.said)
    if pods.behind_since is not None and (unsaid or placed_since is None):
        return _NO_DEADLINE
    time = settings.pods_ready_ms + (STANDSTILL_MS if unsaid else 0)
    # Where the pods of all gangs are refused, and it is known why, a gang has its full time and no more: others may
    # wait for its quota. The same where no pods are placed, by kube-scheduler or by another scheduler that they name.
    made_since = max(then(made_since or 0), then(placed_since or 0))
    created, had = pods.last_created_at, f"{time // 1000} s from the last one's creation"
    if not settings.as_kueue and pods.unplaced_since is not None:
        # Those beside it, which wait for it in vain, may fail and be made again, for as long as their Job allows.
        short_since = max(pods.unplaced_since, pods.behind_since or 0)
        if short_since < created:
            created, had = short_since, f"{time // 1000} s from when no node was found for the first of them"
    begins = max(then(created), then(workload.value.admitted_at))
    heard_since = then(seen.heard_since)
    until = max(begins, made_since, heard_since) + time
    if heard_since > max(begins, made_since):
        had = f"{time // 1000} s from when nodes were heard of again"
    elif made_since > begins:
        had = f"{time // 1000} s from when pods were made, and placed, for others again"
    since = max(then(pods.unready_since or 0), then(pods.missing_since or 0))
    since = max(since, heard_since, made_since) if since else 0
    if settings.recovery_ms is not None and since and since + settings.recovery_ms > until:
        had = f"{settings.recovery_ms // 1000} s after one was missing or not ready"
        return _Deadline(since + settings.recovery_ms, had, "WaitForRecovery")
    if settings.recovery_ms is None and since > until:
        return _NO_DEADLINE
    return _Deadline(until, had, "WaitForStart")


def _made_and_placed_since(seen: Sight, settings: Settings) -> tuple[int | None, int | None]:
    """(made_since, placed_since) of `Sight`; 0 (always) for what does not matter to this gang, or in Kueue mode."""
    if settings.as_kueue:
        return 0, 0
    return seen.made_since if seen.pods.missing_since is not None else 0, seen.placed_since


def _for_nobody(seen: Sight, settings: Settings) -> str:
    """The verb for what is done for no gang's pods at present: "made", "placed", or ""."""
    made_since, placed_since = _made_and_placed_since(seen, settings)
    return "made" if made_since is None else "placed" if placed_since is None else ""


def _unplaced(pods: PodTally) -> str:
    if not pods.unplaced:
        return ""
    return f"; kube-scheduler finds no node for {pods.unplaced} of them: {pods.unplaced_message}"


def _deadline(seen: Sight, settings: Settings) -> int | None:
    """When a rule of `_own_eviction` could first hold with nothing else changing."""
    workload = seen.workload
    assert workload is not None
    return earliest(
        _ready_deadline(seen, settings).at,
        _excess(seen, settings),
        _emptied(seen, settings),
        _runs_out_at(workload, seen.set_ahead),
        _unschedulable(seen, settings),
        seen.lost_at,
        _spare_at(seen, settings),
        _looks_for_refusal_at(seen, settings),
    )


def _differs(seen: Sight) -> bool:
    """Does the job now ask for something else than its Workload, which has no reservation, says?"""
    job, workload = seen.job, seen.workload
    assert job is not None
    assert workload is not None
    value = workload.value
    return (
        workload.spec_hash != job.spec_hash
        or workload.counts != job.counts
        or job.fewest != next((one.min_count for one in value.pod_sets), None)
        or value.queue != seen.queue
        or value.priority != seen.priority
        or workload.paused != job.paused
        or workload.gated_by != job.gated_by
        or workload.max_execution_s != job.max_execution_s
        or bool(job.problems)
    )


def _guilty(seen: Sight) -> tuple[str, ...]:
    """The lost nodes that are to blame for the loss: not those that somebody has tainted."""
    tainted = {node for node, _ in seen.tainted}
    return tuple(node for node in seen.lost_nodes if node not in tainted)


def _loss(seen: Sight) -> str:
    guilty, short = _guilty(seen), dict(seen.short)
    gone = tuple(node for node in guilty if node not in short)
    said = [f"Lost {_some(gone)}"] if gone else []
    by_number = _by((node, left) for node, left in seen.short if node in guilty)
    said += [f"Only {left} that are held there are left on {_some(nodes)}" for left, nodes in by_number.items()]
    said += [f"The taint {taint} takes its pods off {_some(nodes)}" for taint, nodes in _by(seen.tainted).items()]
    return "; ".join(said[:3])


def _by(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """(node, what is said of it) as what is said -> the nodes, in the order given."""
    out: dict[str, tuple[str, ...]] = {}
    for node, what in pairs:
        out[what] = (*out.get(what, ()), node)
    return out


def _some(names: tuple[str, ...]) -> str:
    """At most three names, and how many more: messages stay short."""
    shown = ", ".join(names[:3])
    return f"node{'s' if len(names) > 1 else ''} {shown}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def backoff_ms(count: int, settings: Settings, uid: str) -> int:
    """The wait of a gang before its `count`-th requeue (from 1): the base, doubled each time, up to the maximum. Each
    gang waits its own share of an eighth longer, or at the maximum shorter: those that came to share too few nodes, and
    so were evicted at the same moment, would else be back at the same moment, and share them again."""
    most = settings.backoff_max_ms
    doubled = min(settings.backoff_base_ms * 2 ** min(count - 1, 32), most)
    if settings.as_kueue:
        return int(doubled)
    share = crc32(uid.encode()) & 0xFF
    return int(min(doubled + doubled * share // 2048, most - most * share // 2048))
