"""What happens next to one job, as rows: what is seen, and the one step that is due."""

from __future__ import annotations

from dataclasses import replace as replace_in
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.controller import lifecycle as life
from admission.controller.lifecycle import Beyond, PodTally, Settings, Sight, WorkloadView, backoff_ms, next_step
from admission.engine.model import Admission, Check, CheckState, PodSetAssignment, StopPolicy, Workload
from admission.jobs.kinds import JobView
from admission.kube.clock import SetAhead

NOW = 1_000_000
ADMISSION = Admission(
    cluster_queue="team-a",
    pod_sets=(PodSetAssignment(name="main", flavors=(("gpu", "h100"),), usage=(("gpu", 8),), count=2),),
)
SETTINGS = Settings(pods_ready_ms=60_000, unschedulable_ms=10_000, acknowledge_ms=5_000)


def job(**said: Any) -> JobView:
    said.setdefault("labelled", bool(said.get("queue", "q")))
    base = JobView(
        kind="Job",
        namespace="ns",
        name="train",
        uid="j1",
        resource_version="7",
        queue="q",
        suspended=True,
        suspended_condition=True,
        counts=(("main", 2),),
        spec_hash="h1",
        pods_expected=2,
        pods_at_once=2,
    )
    return replace(base, **said)


def workload(
    *,
    spec_hash: str = "h1",
    counts: Any = (("main", 2),),
    paused: bool = False,
    limit: int | None = None,
    deleting: bool = False,
    seen: dict[str, Any] | None = None,
    **said: Any,
) -> WorkloadView:
    value = replace(Workload(namespace="ns", name="job-train", uid="w1", queue="q", job_uid="j1"), **said)
    return WorkloadView(
        value=value,
        resource_version="9",
        spec_hash=spec_hash,
        counts=counts,
        paused=paused,
        max_execution_s=limit,
        deleting=deleting,
        **(seen or {}),
    )


YEAR = 365 * 86_400_000
OVER, TOO_LONG = "Ran for its maximum of 10 s", "MaximumExecutionTimeExceeded"
RESERVED: dict[str, Any] = {"admission": ADMISSION, "reserved_at": NOW - 100}
ADMITTED: dict[str, Any] = {**RESERVED, "admitted": True, "admitted_at": NOW - 100}
LEAVING: dict[str, Any] = {**ADMITTED, "evicted": "Preempted", "evicted_at": NOW - 1000}
PENDING, READY, RETRY, REJECTED = (Check("c", state, "said") for state in CheckState)
RUNNING: dict[str, Any] = {"suspended": False, "suspended_condition": False, "started": True}
ENDING: dict[str, Any] = {**RUNNING, "ending": "Failed", "message": "too late", "terminating": 1}
ENDED_WHILE_HELD: dict[str, Any] = {**ENDING, "suspended": True, "terminating": 0}
SURVIVES: dict[str, Any] = {"survives": True, "gates": True}
STOPPED: dict[str, Any] = {"suspended": True, "suspended_condition": True, "started": True}
CHILDREN = (("Job", "ns", "set-a-0"),)
JOB_KEY = ("Job", "ns", "j")
STARTS_IN_ORDER: dict[str, Any] = {**RUNNING, "kind": "JobSet", "suspended_condition": True}
STUCK: dict[str, Any] = {"kind": "JobSet", "suspended_condition": False, "active": 1}
LATE: dict[str, Any] = {"live": 2, "ready": 1, "last_created_at": NOW - 59_000}
UNPLACED: dict[str, Any] = {"unplaced": 1, "unplaced_message": "0/3 nodes", "out_of_stock": ("spot",)}
LEAVING_FOR_LONG: dict[str, Any] = {**LEAVING, "evicted_at": NOW - 5_000}

ROWS: dict[str, tuple[Sight, Any]] = {
    "a held job gets a Workload": (Sight(job(), None, queue="q"), life.CreateWorkload()),
    "but not where nothing can be created any more": (Sight(job(), None, queue="q", terminating=True), None),
    "nor does what was reserved there stay so": (
        Sight(job(), workload(**RESERVED), queue="q", terminating=True),
        life.EvictWorkload("Deactivated", "Its namespace is being deleted: no pods can be made there any more"),
    ),
    "nor is it started": (
        Sight(job(), workload(**ADMITTED), queue="q", terminating=True),
        life.EvictWorkload("Deactivated", "Its namespace is being deleted: no pods can be made there any more"),
    ),
    "what ran there keeps its quota while pods of it live": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=1), queue="q", terminating=True),
        None,
    ),
    "and gives it back some time after the last": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(missing_since=NOW - SETTINGS.give_back_ms),
            queue="q",
            terminating=True,
        ),
        life.EvictWorkload("Deactivated", "Its namespace is being deleted: no pods can be made there any more"),
    ),
    "for its job may go before that": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(missing_since=NOW - 1), queue="q", terminating=True),
        None,
    ),
    "a job that slipped past is suspended first": (
        Sight(job(suspended=False), None, queue="q"),
        life.SuspendJob("not admitted"),
    ),
    "what a lost start left is taken back before a Workload is made": (
        Sight(job(**STOPPED), None, queue="q"),
        life.RestoreJob(),
    ),
    "nor is one made while pods hold what the last one gave them": (
        Sight(job(kind="JobSet"), None, PodTally(live=1), queue="q", haunted=True),
        None,
    ),
    "then it is, whatever its Jobs still say of a start": (
        Sight(job(kind="JobSet"), None, queue="q", marked=CHILDREN),
        life.CreateWorkload(),
    ),
    "nor do they keep it from being looked at": (
        Sight(job(kind="JobSet"), None, queue="q", haunted=True, marked=CHILDREN),
        None,
    ),
    "and those that nobody stops are stopped": (
        Sight(job(kind="JobSet"), None, PodTally(live=1, stray=(("ns", "p"),)), queue="q", haunted=True),
        life.StopPods((), (("ns", "p"),)),
    ),
    "a waiting job waits": (Sight(job(), workload(), queue="q"), None),
    "a waiting job that runs is suspended": (
        Sight(job(suspended=False), workload(), queue="q"),
        life.SuspendJob("not admitted"),
    ),
    "a held job edited by its owner is asked for anew": (
        Sight(job(spec_hash="h2"), workload(), queue="q"),
        life.UpdateWorkload(),
    ),
    "a held job of whose pods something else is asked by defaults now": (
        Sight(job(), workload(), queue="q", same_defaults=False),
        life.CompareWorkload(),
    ),
    "what runs keeps what its pods have when defaults change": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2), queue="q", same_defaults=False),
        None,
    ),
    "a held job moved to another queue": (Sight(job(), workload(), queue="other"), life.UpdateWorkload()),
    "an indexed job half done asks for what is left": (
        Sight(job(counts=(("main", 1),)), workload(), queue="q"),
        life.UpdateWorkload(),
    ),
    "a class that changed its value": (Sight(job(), workload(), queue="q", priority=5), life.UpdateWorkload()),
    "a held job that was paused": (Sight(job(paused=True), workload(), queue="q"), life.UpdateWorkload()),
    "a held job whose gate was taken away": (
        Sight(job(), workload(seen={"gated_by": "a/b"}), queue="q"),
        life.UpdateWorkload(),
    ),
    "a held job that was gated": (Sight(job(gated_by="a/b"), workload(), queue="q"), life.UpdateWorkload()),
    "a held job with another limit": (
        Sight(job(max_execution_s=9999), workload(limit=60), queue="q"),
        life.UpdateWorkload(),
    ),
    "who is deactivated begins anew": (
        Sight(job(), workload(active=False, seen={"requeue_count": 2}), queue="q"),
        life.ForgetTries(),
    ),
    "and waits for no check": (Sight(job(), workload(active=False, requeue_at=NOW + 1), queue="q"), life.ForgetTries()),
    "and what it has run counts no more": (
        Sight(job(max_execution_s=10), workload(active=False, limit=10, run_ms=10_000), queue="q"),
        life.ForgetTries(),
    ),
    "who waits and is deactivated": (Sight(job(), workload(active=False), queue="q"), None),
    "a backoff that was written while the clock was far ahead": (
        Sight(
            job(), workload(evicted="PodsReadyTimeout", evicted_at=NOW + YEAR, requeue_at=NOW + YEAR + 90), queue="q"
        ),
        life.WaitFromNow(90),
    ),
    "which was no longer than the longest": (
        Sight(job(), workload(evicted="PodsReadyTimeout", evicted_at=NOW + YEAR, requeue_at=NOW + 2 * YEAR), queue="q"),
        life.WaitFromNow(Settings().backoff_max_ms),
    ),
    "and lasts as long as the longest at most": (
        Sight(
            job(), workload(evicted="PodsReadyTimeout", evicted_at=NOW + YEAR, requeue_at=NOW + 3_600_000), queue="q"
        ),
        None,
    ),
    "a pause that a check asks for": (
        Sight(job(), workload(evicted="AdmissionCheck", evicted_at=NOW - 9, requeue_at=NOW + YEAR), queue="q"),
        None,
    ),
    "active again, it waits": (Sight(job(), workload(seen={"kept_out": "Deactivated"}), queue="q"), None),
    "active again, with no time left": (
        Sight(job(max_execution_s=10), workload(limit=10, run_ms=10_000), queue="q"),
        life.EvictWorkload("Deactivated", OVER, deactivate=True, cause=TOO_LONG),
    ),
    "active again, with some time left": (
        Sight(job(max_execution_s=10), workload(limit=10, run_ms=9_999), queue="q"),
        None,
    ),
    "a class that changed its value while the gang runs": (
        Sight(
            job(**RUNNING, priority_class="high"),
            workload(**ADMITTED, seen={"priority_class": "low"}),
            PodTally(live=2, ready=2),
            queue="q",
            priority=5,
        ),
        life.Reprioritize(),
    ),
    "a gang that was admitted by the class of its pods keeps it": (
        Sight(job(**RUNNING, priority_class="high"), workload(**ADMITTED), PodTally(live=2, ready=2), "q", priority=5),
        None,
    ),
    "reserved, then moved to another queue": (
        Sight(job(), workload(**ADMITTED), queue="other"),
        life.EvictWorkload("OutOfSync", "The job was moved to queue other after its reservation"),
    ),
    "deleted, finished, and kept by our finalizer": (
        Sight(job(finished="Succeeded"), workload(deleting=True, finished=True, seen={"kept": True}), queue="q"),
        life.LetWorkloadGo(),
    ),
    "deleted while it waits, and kept by our finalizer": (
        Sight(job(), workload(deleting=True, seen={"kept": True}), queue="q"),
        life.LetWorkloadGo(),
    ),
    "kept by our finalizer, and by what it holds": (
        Sight(
            job(**RUNNING),
            workload(deleting=True, **ADMITTED, seen={"kept": True}),
            PodTally(live=2, ready=2),
            queue="q",
        ),
        life.EvictWorkload("Deactivated", "Its Workload was deleted"),
    ),
    "a pod that is gone has time to come back": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": 1}),
            PodTally(live=1, ready=1, last_created_at=1, missing_since=NOW - 299_999),
            queue="q",
        ),
        None,
    ),
    "and no longer": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": 1}),
            PodTally(live=1, ready=1, last_created_at=1, missing_since=NOW - 300_000),
            queue="q",
        ),
        life.EvictWorkload(
            "PodsReadyTimeout",
            "Only 1 of 2 pods are ready, and they had 300 s after one was missing or not ready",
            backoff=True,
            cause="WaitForRecovery",
        ),
    ),
    "reserved, checks pending": (
        Sight(job(), workload(**RESERVED, checks=(Check(name="c", state=CheckState.PENDING),)), queue="q"),
        None,
    ),
    "reserved, checks ready": (
        Sight(job(), workload(**RESERVED, checks=(Check(name="c", state=CheckState.READY),)), queue="q"),
        life.AdmitWorkload(),
    ),
    "admitted and held: start": (Sight(job(), workload(**ADMITTED), queue="q"), life.StartJob()),
    "admitted and held, with pods from before it was held: they go first": (
        Sight(job(), workload(**ADMITTED), PodTally(live=1), queue="q"),
        None,
    ),
    "the same, and they do not go for long: start": (
        Sight(job(), workload(**{**ADMITTED, "admitted_at": NOW - 5_000}), PodTally(live=1), queue="q"),
        life.StartJob(),
    ),
    "admitted and held, a Job of the JobSet goes on from before: its controller stops it": (
        Sight(job(**STUCK), workload(**ADMITTED), queue="q", going=CHILDREN),
        None,
    ),
    "the same, and its controller is stuck: it is stopped": (
        Sight(job(**STUCK), workload(**{**ADMITTED, "admitted_at": NOW - 5_000}), queue="q", going=CHILDREN),
        life.StopPods(CHILDREN, ()),
    ),
    "what it asked for is not known of one that another controller started: it goes on": (
        Sight(
            job(**{**RUNNING, "started": False}, spec_hash="h2", started_by_another=True),
            workload(**ADMITTED),
            PodTally(live=2, ready=2),
            queue="q",
        ),
        None,
    ),
    "admitted, but changed since": (
        Sight(job(spec_hash="h2"), workload(**ADMITTED), queue="q"),
        life.EvictWorkload("OutOfSync", "The job was changed after its reservation; it is reserved anew"),
    ),
    "its owner asks for no pods any more": (
        Sight(job(**{**RUNNING, "spec_hash": "h2", "pods_at_once": 0}), workload(**ADMITTED), queue="q"),
        life.EvictWorkload("Deactivated", "Its owner set parallelism to 0: it asks for no pods any more"),
    ),
    "running": (Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2), queue="q"), None),
    "running by a Workload that does not say what its job was": (
        Sight(job(**RUNNING), workload(**ADMITTED, spec_hash=""), PodTally(live=2, ready=2), queue="q"),
        None,
    ),
    "running, suspended by somebody else": (
        Sight(job(**STOPPED), workload(**ADMITTED), queue="q"),
        life.EvictWorkload("OutOfSync", "The job was suspended by somebody else while it ran"),
    ),
    "pods behind a gate": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=1, gated=(("ns", "p"),)), queue="q"),
        life.Ungate((("ns", "p"),)),
    ),
    "it survives the loss of a pod: other nodes are asked for": (
        Sight(job(**RUNNING, **SURVIVES), workload(**ADMITTED), PodTally(live=2), queue="q", lost_nodes=("n1", "n2")),
        life.ReplaceNodes(("n1", "n2"), ("n1", "n2")),
    ),
    "it would survive, and somebody wants its pods off a node: nobody is to blame": (
        Sight(
            job(**RUNNING, **SURVIVES),
            workload(**ADMITTED),
            queue="q",
            lost_nodes=("n1", "n2"),
            tainted=(("n2", "repair=:NoExecute"),),
        ),
        life.ReplaceNodes(("n1", "n2"), ("n1",)),
    ),
    "they were asked for": (
        Sight(
            job(**RUNNING, **SURVIVES),
            workload(**ADMITTED, lost_nodes=("n1",)),
            PodTally(live=2),
            queue="q",
            lost_nodes=("n1",),
        ),
        None,
    ),
    "one of them is back, and is kept": (
        Sight(
            job(**RUNNING, **SURVIVES),
            workload(**ADMITTED, lost_nodes=("n1", "n2")),
            PodTally(live=2),
            queue="q",
            lost_nodes=("n2",),
        ),
        life.ReplaceNodes(("n2",), ("n2",)),
    ),
    "its start is refused: it may yet be let": (
        Sight(job(), workload(**ADMITTED), queue="q", start_refused=(NOW - SETTINGS.refused_ms + 1, NOW, "no")),
        life.StartJob(),
    ),
    "it was, and nobody was asked since the minute is over": (
        Sight(job(), workload(**ADMITTED), queue="q", start_refused=(NOW - SETTINGS.refused_ms, NOW - 1, "no")),
        life.StartJob(),
    ),
    "for a minute: others may have its room": (
        Sight(job(), workload(**ADMITTED), queue="q", start_refused=(NOW - SETTINGS.refused_ms, NOW, "no")),
        life.EvictWorkload(
            "PodsReadyTimeout",
            f"The API server has refused its start for {SETTINGS.refused_ms // 1000} s: no",
            backoff=True,
            cause="WaitForStart",
        ),
    ),
    "all are, of one that would not survive another loss": (
        Sight(job(**RUNNING, gates=True), workload(**ADMITTED, lost_nodes=("n1",)), PodTally(live=2), queue="q"),
        life.ReplaceNodes((), ()),
    ),
    "other nodes were found: the pods leave the lost ones before new ones are let go": (
        Sight(
            job(**RUNNING, **SURVIVES),
            workload(**ADMITTED),
            PodTally(live=2, stranded=(("ns", "p0"),), gated=(("ns", "p1"),)),
            queue="q",
        ),
        life.EvictPods((("ns", "p0"),)),
    ),
    "it would survive, but more is lost than is replaced in place": (
        Sight(
            job(**RUNNING, **SURVIVES),
            workload(**ADMITTED),
            PodTally(live=2),
            queue="q",
            lost_nodes=tuple(f"n{i}" for i in range(9)),
        ),
        life.EvictWorkload("NodeFailures", "Lost nodes n0, n1, n2 and 6 more", nodes=tuple(f"n{i}" for i in range(9))),
    ),
    "it says so, and its pods were pinned by a list": (
        Sight(job(**RUNNING, survives=True), workload(**ADMITTED), PodTally(live=2), queue="q", lost_nodes=("n1",)),
        life.EvictWorkload("NodeFailures", "Lost node n1", nodes=("n1",)),
    ),
    "evicted: suspend first": (
        Sight(job(**RUNNING), workload(**LEAVING), PodTally(live=2), queue="q"),
        life.SuspendJob("evicted"),
    ),
    "evicted before its start was acknowledged: what was said of the stop before counts no more": (
        Sight(job(**{**RUNNING, "suspended_condition": True}), workload(**LEAVING), queue="q"),
        life.SayResumed(),
    ),
    "evicted before the start of a JobSet was acknowledged: wait for that": (
        Sight(job(**{**RUNNING, "kind": "JobSet", "suspended_condition": True}), workload(**LEAVING), queue="q"),
        None,
    ),
    "evicted, and that start is never acknowledged: suspend after a bound": (
        Sight(
            job(**{**RUNNING, "kind": "JobSet", "suspended_condition": True}),
            workload(**{**LEAVING, "evicted_at": NOW - 5_000}),
            queue="q",
        ),
        life.SuspendJob("evicted"),
    ),
    "evicted before a Job of the JobSet was seen to be started: wait for that": (
        Sight(job(**RUNNING), workload(**LEAVING), queue="q", unheard=1),
        None,
    ),
    "evicted and suspended, a Job of the JobSet not seen to be stopped": (
        Sight(job(**STOPPED), workload(**LEAVING), queue="q", unheard=1),
        None,
    ),
    "evicted and suspended, pods still there": (
        Sight(job(**STOPPED), workload(**LEAVING), PodTally(live=1), queue="q"),
        None,
    ),
    "evicted and suspended, the job counts pods that we do not see": (
        Sight(job(**STOPPED, terminating=1), workload(**LEAVING), queue="q"),
        None,
    ),
    "evicted and suspended, what terminates is on a node that is gone for good": (
        Sight(job(**STOPPED, terminating=1), workload(**LEAVING), PodTally(lost=1), queue="q"),
        life.RestoreJob(),
    ),
    "evicted and suspended, one of two that terminate is on a node that is gone": (
        Sight(job(**STOPPED, terminating=2), workload(**LEAVING), PodTally(live=1, lost=1), queue="q"),
        None,
    ),
    "evicted and suspended, what the job counts may be pods that its start did not make": (
        Sight(job(**STOPPED, active=1, terminating=2), workload(**LEAVING), PodTally(strangers=1), queue="q"),
        life.RestoreJob(),
    ),
    "evicted and suspended, a pod of its own beside one that its start did not make": (
        Sight(job(**STOPPED, terminating=2), workload(**LEAVING), PodTally(live=1, strangers=1), queue="q"),
        None,
    ),
    "evicted and suspended, not yet seen by its controller": (
        Sight(job(**{**STOPPED, "suspended_condition": False}), workload(**LEAVING), queue="q"),
        None,
    ),
    "evicted, of a JobSet that starts its Jobs in order the first goes on: suspend": (
        Sight(job(**STARTS_IN_ORDER), workload(**LEAVING), PodTally(live=1), queue="q", going=CHILDREN),
        life.SuspendJob("evicted"),
    ),
    "the same, and the start of that is not acknowledged: wait for that": (
        Sight(job(**STARTS_IN_ORDER), workload(**LEAVING), queue="q", going=CHILDREN, unheard=1),
        None,
    ),
    "evicted and suspended, a Job of the JobSet goes on: its controller stops it": (
        Sight(job(**STUCK), workload(**LEAVING), PodTally(live=1), queue="q", going=CHILDREN, unheard=1),
        None,
    ),
    "evicted and suspended, a Job of the JobSet goes on for long: its controller is stuck": (
        Sight(job(**STUCK), workload(**LEAVING_FOR_LONG), PodTally(live=1), queue="q", going=CHILDREN, unheard=1),
        life.StopPods(CHILDREN, ()),
    ),
    "evicted and suspended, the JobSet's controller says nothing": (
        Sight(job(**STUCK), workload(**LEAVING), queue="q"),
        None,
    ),
    "evicted and suspended, the JobSet's controller says nothing for long, and none of its Jobs goes on": (
        Sight(job(**STUCK), workload(**LEAVING_FOR_LONG), queue="q"),
        life.ReleaseWorkload(),
    ),
    "the same, and a pod is still there": (
        Sight(job(**STUCK), workload(**LEAVING_FOR_LONG), PodTally(live=1), queue="q"),
        None,
    ),
    "the same, and a Job of it was not seen to be stopped": (
        Sight(job(**STUCK), workload(**LEAVING_FOR_LONG), queue="q", unheard=1),
        None,
    ),
    "evicted and suspended, the Job controller says nothing for long: it is reminded": (
        Sight(job(**{**STUCK, "kind": "Job"}), workload(**LEAVING_FOR_LONG), queue="q", idle=((JOB_KEY, NOW - 5_000),)),
        life.RemindController((JOB_KEY,)),
    ),
    "the same, and it was reminded a moment ago": (
        Sight(job(**{**STUCK, "kind": "Job"}), workload(**LEAVING_FOR_LONG), queue="q", idle=((JOB_KEY, NOW - 4_999),)),
        None,
    ),
    "what a lost start left is not stopped for long: its controller is reminded": (
        Sight(job(**{**STOPPED, "active": 1}), None, PodTally(live=1), queue="q", idle=((JOB_KEY, NOW - 5_000),)),
        life.RemindController((JOB_KEY,)),
    ),
    "it runs, and pods that are due are not made for long: their controller is reminded": (
        Sight(
            job(**RUNNING, kind="JobSet"),
            workload(**ADMITTED),
            queue="q",
            idle=((CHILDREN[0], NOW - 6_000), (("Job", "ns", "set-b-0"), NOW - 4_999)),
        ),
        life.RemindController(CHILDREN),
    ),
    "evicted, pods gone: the template goes back": (
        Sight(job(**STOPPED), workload(**LEAVING), queue="q"),
        life.RestoreJob(),
    ),
    "evicted, pods gone, and another controller had started it: the template goes back all the same": (
        Sight(job(started_by_another=True), workload(**LEAVING), queue="q"),
        life.RestoreJob(),
    ),
    "evicted, pods gone: Jobs of the JobSet go back, too": (
        Sight(job(), workload(**LEAVING), queue="q", marked=(("Job", "ns", "set-a-0"),)),
        life.RestoreChildren((("Job", "ns", "set-a-0"),)),
    ),
    "evicted, pods gone: its Jobs go back before the JobSet, whose owner may start them then": (
        Sight(job(**STOPPED), workload(**LEAVING), queue="q", marked=(("Job", "ns", "set-a-0"),)),
        life.RestoreChildren((("Job", "ns", "set-a-0"),)),
    ),
    "evicted, pods gone, and another controller had started it: what the JobSet says of its Jobs is put right first": (
        Sight(job(started_by_another=True), workload(**LEAVING), queue="q", marked=(("Job", "ns", "set-a-0"),)),
        life.RestoreJob(),
    ),
    "evicted, pods gone, template frozen by a start time": (
        Sight(job(**STOPPED, start_time_set=True, template_frozen=True), workload(**LEAVING), queue="q"),
        life.ClearStartTime(),
    ),
    "admitted, and frozen by the start time of when it ran unheld": (
        Sight(job(start_time_set=True, template_frozen=True), workload(**ADMITTED), queue="q"),
        life.ClearStartTime(),
    ),
    "evicted, all is back: release": (Sight(job(), workload(**LEAVING), queue="q"), life.ReleaseWorkload()),
    "finished": (
        Sight(job(**RUNNING, finished="Succeeded", message="done"), workload(**ADMITTED), queue="q"),
        life.FinishWorkload(True, "done"),
    ),
    "finished, but pods are still there": (
        Sight(job(**RUNNING, finished="Failed"), workload(**ADMITTED), PodTally(live=1), queue="q"),
        None,
    ),
    "at its end, and pods still end: not ready in time is no word for them": (
        Sight(
            job(**ENDING),
            workload(**ADMITTED),
            PodTally(live=1, ready=0, last_created_at=NOW - 60_000, missing_since=NOW - 60_000),
            queue="q",
        ),
        None,
    ),
    "nor does it leave for a node that it lost": (
        Sight(job(**ENDING), workload(**ADMITTED), PodTally(live=1), queue="q", lost_nodes=("n1",)),
        None,
    ),
    "evicted at its end: it is never said to be suspended": (
        Sight(job(**{**ENDING, "suspended": True}), workload(**LEAVING), PodTally(live=1), queue="q"),
        None,
    ),
    "at its end, and what is left is on a node that is gone": (
        Sight(job(**ENDING), workload(**ADMITTED), PodTally(lost=1), queue="q"),
        life.FinishWorkload(False, "too late"),
    ),
    "at its end, with no pod left: it is finished in a moment, and keeps its reservation until then": (
        Sight(job(**{**ENDING, "terminating": 0, "active": 0}), workload(**ADMITTED), queue="q"),
        None,
    ),
    "the same where it was evicted": (
        Sight(job(**{**ENDING, "suspended": True}), workload(**LEAVING), PodTally(lost=1), queue="q"),
        life.FinishWorkload(False, "too late"),
    ),
    "stopped as its last pod ended: it has no startTime any more, and is never finished": (
        Sight(
            job(**{**ENDED_WHILE_HELD, "ending": "Succeeded"}),
            workload(**LEAVING),
            queue="q",
        ),
        life.FinishWorkload(True, "too late"),
    ),
    "which nobody would say of it then: it is given one": (
        Sight(job(**ENDED_WHILE_HELD), workload(finished=True), queue="q"),
        life.SayStarted(),
    ),
    "so it is before it was ever queued": (Sight(job(**ENDED_WHILE_HELD), None, queue="q"), life.SayStarted()),
    "and a Job of a JobSet": (
        Sight(job(**ENDED_WHILE_HELD), None, governed=False, within=True),
        life.SayStarted(),
    ),
    "one that nobody here has stopped is let be": (Sight(job(**ENDED_WHILE_HELD), None, governed=False), None),
    "and one that has one will be called finished": (
        Sight(job(**ENDED_WHILE_HELD, start_time_set=True), workload(finished=True), queue="q"),
        None,
    ),
    "at its end by its own count, before its pods are seen": (
        Sight(job(**ENDING), workload(**ADMITTED), queue="q"),
        None,
    ),
    "at its end, and a pod that its Job counts was not seen": (
        Sight(job(**{**ENDING, "active": 1}), workload(**ADMITTED), PodTally(lost=1), queue="q"),
        None,
    ),
    "at its end, what has ended is given back": (
        Sight(job(**ENDING, left=(("main", 1),)), workload(**ADMITTED), PodTally(live=1), queue="q", spare_since=0),
        life.GiveBack((("main", 1),)),
    ),
    "at its end and said so": (Sight(job(**ENDING), workload(finished=True), queue="q"), None),
    "at its end, and never admitted": (Sight(job(**ENDING), None, PodTally(live=1), queue="q"), None),
    "at its end and being deleted": (
        Sight(job(**ENDING, deleting=True), workload(**LEAVING), PodTally(live=1, stray=(("ns", "p"),)), queue="q"),
        life.StopPods((), (("ns", "p"),)),
    ),
    "finished and said so": (Sight(job(finished="Failed"), workload(finished=True), queue="q"), None),
    "a job that is being deleted and runs": (
        Sight(job(**RUNNING, deleting=True), workload(**ADMITTED), PodTally(live=2, stray=(("ns", "p"),)), queue="q"),
        None,
    ),
    "a job that is being deleted, and somebody needs its room": (
        Sight(
            job(**RUNNING, deleting=True),
            workload(**ADMITTED, evicted="Preempted"),
            PodTally(live=2, stray=(("ns", "p"),)),
            queue="q",
        ),
        life.StopPods((), (("ns", "p"),)),
    ),
    "a job that is being deleted, and its pods are gone": (
        Sight(job(**RUNNING, deleting=True), workload(**ADMITTED), queue="q"),
        life.DeleteWorkload("the job it stands for is being deleted, and no pod of it is left"),
    ),
    "a waiting job that is being deleted takes no room any more": (
        Sight(job(deleting=True), workload(), queue="q"),
        life.DeleteWorkload("the job it stands for is being deleted, and no pod of it is left"),
    ),
    "a JobSet that is being deleted, and whose Jobs are about to make pods": (
        Sight(
            job(**RUNNING, deleting=True),
            workload(**ADMITTED),
            PodTally(unled=(("Job", "ns", "set-a-0"),)),
            queue="q",
        ),
        life.StopPods((("Job", "ns", "set-a-0"),), ()),
    ),
    "a pod that was taken from its Job is stopped too": (
        Sight(
            job(started=True),
            workload(**ADMITTED, evicted="Preempted"),
            PodTally(live=1, stray=(("ns", "p"),)),
            queue="q",
        ),
        life.StopPods((), (("ns", "p"),)),
    ),
    "more pods than were admitted": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=3, beyond=Beyond(NOW - 10_000, 3, 2)), queue="q"),
        life.EvictWorkload(
            "OutOfSync",
            "3 pods of it run or are still ending, and 2 were admitted: they were deleted and made anew beside those "
            "that end, or were taken from their Job",
        ),
    ),
    "more pods of a pod set than are charged": (
        Sight(
            job(**RUNNING), workload(**ADMITTED), PodTally(beyond=Beyond(NOW - 10_000, 8, 0, "workers", 8)), queue="q"
        ),
        life.EvictWorkload(
            "OutOfSync",
            "8 pods of its pod set workers run or are still ending, and 0 are charged: 8 were done, and their quota "
            "was given back; they were made anew",
        ),
    ),
    "more pods than were admitted, a moment long": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=3, beyond=Beyond(NOW - 9_999, 3, 2)), queue="q"),
        None,
    ),
    "its Workload is deleted and kept: it is stopped": (
        Sight(job(**RUNNING), workload(**ADMITTED, deleting=True), PodTally(live=2), queue="q"),
        life.EvictWorkload("Deactivated", "Its Workload was deleted"),
    ),
    "its Workload is deleted, and its pods run": (
        Sight(job(**STOPPED), workload(**LEAVING, deleting=True), PodTally(live=1), queue="q"),
        None,
    ),
    "its Workload is deleted, and all is back: release": (
        Sight(job(), workload(**LEAVING, deleting=True), queue="q"),
        life.ReleaseWorkload(),
    ),
    "its Workload is deleted and holds nothing: another is made when it is gone": (
        Sight(job(spec_hash="h2"), workload(deleting=True), queue="q"),
        None,
    ),
    "its Workload is deleted, and somebody starts it": (
        Sight(job(suspended=False), workload(deleting=True), queue="q"),
        life.SuspendJob("not admitted"),
    ),
    "its Workload is deleted, and it finishes": (
        Sight(job(**RUNNING, finished="Succeeded", message="done"), workload(**ADMITTED, deleting=True), queue="q"),
        life.FinishWorkload(True, "done"),
    ),
    "both are being deleted, and a pod is left": (
        Sight(job(**RUNNING, deleting=True), workload(**ADMITTED, deleting=True), PodTally(live=1), queue="q"),
        None,
    ),
    "both are being deleted, and no pod is left": (
        Sight(job(**RUNNING, deleting=True), workload(**ADMITTED, deleting=True), queue="q"),
        life.ReleaseWorkload(),
    ),
    "both are being deleted, and nothing is held": (
        Sight(job(deleting=True), workload(deleting=True), queue="q"),
        None,
    ),
    "a label taken off a job whose Workload is deleted": (
        Sight(job(queue="", ungoverned=True), workload(deleting=True), governed=False),
        None,
    ),
    "a deleted job": (Sight(None, workload()), life.DeleteWorkload("the job it stood for is gone")),
    "deactivated": (
        Sight(job(**RUNNING), workload(**ADMITTED, active=False), queue="q"),
        life.EvictWorkload("Deactivated", "The workload is deactivated"),
    ),
    "paused while it runs": (
        Sight(job(**RUNNING, paused=True), workload(**ADMITTED), queue="q"),
        life.EvictWorkload("Deactivated", "The job is paused by its owner", deactivate=True, paused=True),
    ),
    "its queue is drained": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            queue="q",
            stop_policy=StopPolicy.HOLD_AND_DRAIN,
            stopped_by="ClusterQueue",
        ),
        life.EvictWorkload("ClusterQueueStopped", "The ClusterQueue is stopped"),
    ),
    "its queue is held: running work goes on": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(live=2, ready=2),
            queue="q",
            stop_policy=StopPolicy.HOLD,
            stopped_by="LocalQueue",
        ),
        None,
    ),
    "its queue is held: a reservation is taken back": (
        Sight(job(), workload(**RESERVED), queue="q", stop_policy=StopPolicy.HOLD, stopped_by="LocalQueue"),
        life.EvictWorkload("LocalQueueStopped", "The LocalQueue is stopped"),
    ),
    "its queue is being deleted: a reservation is taken back": (
        Sight(job(), workload(**RESERVED, checks=(PENDING,)), queue="q", queue_goes=True, required=("c",)),
        life.EvictWorkload("ClusterQueueStopped", "The ClusterQueue is being deleted"),
    ),
    "its queue is being deleted: running work goes on": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2), queue="q", queue_goes=True),
        None,
    ),
    "reserved, then its queue asks another check": (
        Sight(job(), workload(**RESERVED, checks=(READY,)), queue="q", required=("c", "d")),
        life.SyncChecks(("c", "d")),
    ),
    "reserved, then its queue asks no check any more": (
        Sight(job(), workload(**RESERVED, checks=(PENDING,)), queue="q", required=()),
        life.SyncChecks(()),
    ),
    "reserved, and nothing is asked": (
        Sight(job(), workload(**RESERVED), queue="q", required=()),
        life.AdmitWorkload(),
    ),
    "reserved, what is asked is ready": (
        Sight(
            job(), workload(**RESERVED, checks=(READY, Check("d", CheckState.READY))), queue="q", required=("d", "c")
        ),
        life.AdmitWorkload(),
    ),
    "reserved, nothing is listed, and its queue is gone": (Sight(job(), workload(**RESERVED), queue="q"), None),
    "a check refuses that is not asked any more": (
        Sight(job(), workload(**RESERVED, checks=(REJECTED,)), queue="q", required=()),
        life.SyncChecks(()),
    ),
    "a check that was asked for another flavor refuses a running gang": (
        Sight(job(**RUNNING), workload(**ADMITTED, checks=(REJECTED,)), PodTally(live=2, ready=2), "q", required=()),
        None,
    ),
    "a check that was asked for another flavor puts off a running gang": (
        Sight(job(**RUNNING), workload(**ADMITTED, checks=(RETRY,)), PodTally(live=2, ready=2), "q", required=()),
        None,
    ),
    "the queue of a running gang asks another check": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2), "q", required=("c",)),
        None,
    ),
    "one check puts it off, another refuses it": (
        Sight(job(), workload(**RESERVED, checks=(RETRY, replace(REJECTED, name="d"))), queue="q"),
        life.EvictWorkload("Deactivated", "Check d refused: said", deactivate=True, cause="AdmissionCheck"),
    ),
    "waiting, a late answer puts it off": (
        Sight(job(), workload(checks=(RETRY,)), queue="q", required=("c",)),
        life.AskAgain(),
    ),
    "waiting, a late answer refuses it": (
        Sight(job(), workload(checks=(RETRY, replace(REJECTED, name="d"))), queue="q", required=("c", "d")),
        life.EvictWorkload("Deactivated", "Check d refused: said", deactivate=True, cause="AdmissionCheck"),
    ),
    "waiting, refused by a late answer": (
        Sight(job(), workload(checks=(REJECTED,), active=False), queue="q", required=("c",)),
        life.AskAgain(),
    ),
    "waiting, a check refuses that nobody asks any more": (
        Sight(job(), workload(checks=(REJECTED,)), queue="q", required=()),
        life.AskAgain(),
    ),
    "waiting, and ready ahead of time": (Sight(job(), workload(checks=(READY,)), queue="q", required=("c",)), None),
    "waiting and deleted, a late answer puts it off": (
        Sight(job(), workload(checks=(RETRY,), deleting=True), queue="q", required=("c",)),
        None,
    ),
    "a check refuses": (
        Sight(
            job(),
            workload(**RESERVED, checks=(Check(name="c", state=CheckState.REJECTED, message="no"),)),
            queue="q",
        ),
        life.EvictWorkload("Deactivated", "Check c refused: no", deactivate=True, cause="AdmissionCheck"),
    ),
    "a check asks to try again": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED, checks=(Check(name="c", state=CheckState.RETRY, message="later"),)),
            queue="q",
        ),
        life.EvictWorkload("AdmissionCheck", "Check c asks to try again: later"),
    ),
    "deactivated, and by whom": (
        Sight(
            job(),
            workload(**RESERVED, active=False, checks=(Check(name="c", state=CheckState.REJECTED, message="no"),)),
            queue="q",
        ),
        life.EvictWorkload("Deactivated", "Check c refused: no", cause="AdmissionCheck"),
    ),
    "deactivated, and its time is over": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 10_000}, limit=10, active=False),
            queue="q",
        ),
        life.EvictWorkload("Deactivated", OVER, cause=TOO_LONG),
    ),
    "deactivated, a check asks to try again": (
        Sight(job(), workload(**RESERVED, active=False, checks=(RETRY,)), queue="q"),
        life.EvictWorkload("Deactivated", "The workload is deactivated"),
    ),
    "deactivated by a pause": (
        Sight(job(**RUNNING), workload(**ADMITTED, active=False, paused=True), queue="q"),
        life.EvictWorkload("Deactivated", "The job is paused by its owner"),
    ),
    "pods that are done give their quota back": (
        Sight(
            job(**RUNNING, left=(("main", 1),)),
            workload(**ADMITTED),
            PodTally(live=1, ready=2),
            queue="q",
            spare_since=NOW - 5_000,
        ),
        life.GiveBack((("main", 1),)),
    ),
    "but not at once": (
        Sight(
            job(**RUNNING, left=(("main", 1),)),
            workload(**ADMITTED),
            PodTally(live=1, ready=2),
            queue="q",
            spare_since=NOW - 4_999,
        ),
        None,
    ),
    "nodes lost": (
        Sight(job(**RUNNING), workload(**ADMITTED), queue="q", lost_nodes=("n1", "n2", "n3", "n4")),
        life.EvictWorkload("NodeFailures", "Lost nodes n1, n2, n3 and 1 more", nodes=("n1", "n2", "n3", "n4")),
    ),
    "somebody wants its pods off a node: nobody is to blame": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            queue="q",
            lost_nodes=("n1", "n2", "n3"),
            tainted=(("n2", "repair:NoExecute"), ("n3", "repair:NoExecute")),
        ),
        life.EvictWorkload(
            "NodeFailures",
            "Lost node n1; The taint repair:NoExecute takes its pods off nodes n2, n3",
            nodes=("n1",),
        ),
    ),
    "devices of a node that is there are gone": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            queue="q",
            lost_nodes=("n1", "n2", "n3", "n4"),
            tainted=(("n4", "repair:NoExecute"),),
            short=(("n2", "4 of 8 nvidia.com/gpu"), ("n3", "4 of 8 nvidia.com/gpu"), ("n4", "0 of 8 nvidia.com/gpu")),
        ),
        life.EvictWorkload(
            "NodeFailures",
            "Lost node n1; Only 4 of 8 nvidia.com/gpu that are held there are left on nodes n2, n3; "
            "The taint repair:NoExecute takes its pods off node n4",
            nodes=("n1", "n2", "n3"),
        ),
    ),
    "nor is a node that kube-scheduler chose": (
        Sight(job(**RUNNING), workload(**ADMITTED), queue="q", lost_nodes=("n1", "n2"), unnamed=("n2",)),
        life.EvictWorkload("NodeFailures", "Lost nodes n1, n2", nodes=("n1",)),
    ),
    "ran for its maximum": (
        Sight(job(**RUNNING), workload(**{**ADMITTED, "admitted_at": NOW - 10_000}, limit=10), queue="q"),
        life.EvictWorkload("Deactivated", OVER, deactivate=True, cause=TOO_LONG),
    ),
    "a pinned pod that cannot be scheduled": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(
                live=2, unschedulable_since=NOW - 10_000, unschedulable_message="0/3 nodes", refused_by=("n1", "n2")
            ),
            queue="q",
        ),
        life.EvictWorkload(
            "PodsReadyTimeout",
            "A pinned pod could not be scheduled for 10 s: 0/3 nodes",
            backoff=True,
            cause="WaitForStart",
            nodes=("n1", "n2"),
        ),
    ),
    "one whose node was drained: no try of its own": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(
                live=2,
                unschedulable_since=NOW - 10_000,
                unschedulable_message="0/3 nodes",
                shut_out="node n1 is cordoned",
            ),
            queue="q",
        ),
        life.EvictWorkload("NodeFailures", "A pod could not come to its node for 10 s: node n1 is cordoned"),
    ),
    "pods not ready in time, counted from the last one made": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(live=2, ready=1, last_created_at=NOW - 60_000),
            queue="q",
        ),
        life.EvictWorkload(
            "PodsReadyTimeout",
            "Only 1 of 2 pods are ready, and they had 60 s from the last one's creation",
            backoff=True,
            cause="WaitForStart",
        ),
    ),
    "or from when nodes were heard of again": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(live=2, ready=1, last_created_at=NOW - 90_000),
            queue="q",
            heard_since=NOW - 60_000,
        ),
        life.EvictWorkload(
            "PodsReadyTimeout",
            "Only 1 of 2 pods are ready, and they had 60 s from when nodes were heard of again",
            backoff=True,
            cause="WaitForStart",
        ),
    ),
    "and what kube-scheduler says of those whose nodes it is to choose": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(**{**LATE, "last_created_at": NOW - 60_000}, **UNPLACED),
            queue="q",
        ),
        life.EvictWorkload(
            "PodsReadyTimeout",
            "Only 1 of 2 pods are ready, and they had 60 s from the last one's creation; kube-scheduler finds no node "
            "for 1 of them: 0/3 nodes",
            backoff=True,
            cause="WaitForStart",
            out_of_stock=("spot",),
        ),
    ),
    "for whom that one does not wait anew when others give up and are made again": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(**{**LATE, "last_created_at": NOW - 1_000}, **UNPLACED, unplaced_since=NOW - 60_000),
            queue="q",
        ),
        life.EvictWorkload(
            "PodsReadyTimeout",
            "Only 1 of 2 pods are ready, and they had 60 s from when no node was found for the first of them; "
            "kube-scheduler finds no node for 1 of them: 0/3 nodes",
            backoff=True,
            cause="WaitForStart",
            out_of_stock=("spot",),
        ),
    ),
    "nor is it sent back sooner": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(**{**LATE, "last_created_at": NOW - 1_000}, **UNPLACED, unplaced_since=NOW - 59_000),
            queue="q",
        ),
        None,
    ),
    "nor for what it was without while enough of it ran": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(
                **{**LATE, "last_created_at": NOW - 1_000},
                **UNPLACED,
                unplaced_since=NOW - 90_000,
                behind_since=NOW - 2_000,
            ),
            queue="q",
        ),
        None,
    ),
    "nor for what it was without before it was admitted": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 50_000}),
            PodTally(**{**LATE, "last_created_at": NOW - 1_000}, **UNPLACED, unplaced_since=NOW - 60_000),
            queue="q",
        ),
        None,
    ),
    "of a job that goes on with others as many are done as it has at a time": (
        Sight(
            job(**RUNNING, succeeded=1),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(live=2, ready=1, last_created_at=NOW - 60_000),
            queue="q",
        ),
        None,
    ),
    "a pod that stopped being ready has its own time to recover": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 100_000}),
            PodTally(live=2, ready=1, last_created_at=NOW - 90_000, unready_since=NOW - 1_000),
            queue="q",
        ),
        None,
    ),
    "a waiting job that nobody queues any more is noted": (
        Sight(job(queue=""), workload(), governed=False),
        life.MarkJob(True),
    ),
    "and its Workload goes": (
        Sight(job(queue="", ungoverned=True), workload(), governed=False),
        life.DeleteWorkload("the job names no queue, and none is given to it"),
    ),
    "and it is told": (Sight(job(queue="", ungoverned=True), None, governed=False), life.TellUngoverned()),
    "until it is started": (
        Sight(job(queue="", ungoverned=True, suspended=False), None, governed=False),
        life.MarkJob(False),
    ),
    "or queued again": (Sight(job(queue="", ungoverned=True), None, queue="main"), life.CreateWorkload()),
    "with a Workload or a label it needs no note": (
        Sight(job(queue="", ungoverned=True), workload(), queue="q"),
        life.MarkJob(False),
    ),
    "a label says that it is held": (
        Sight(job(queue="q", labelled=True, ungoverned=True), None, queue="q"),
        life.MarkJob(False),
    ),
    "a job that its owner suspended is nobody's": (Sight(job(queue=""), None, governed=False), None),
    "a job held by its label alone is told": (
        Sight(job(queue="", labelled=True), None, governed=False),
        life.TellUngoverned(),
    ),
    "one that cannot be queued as it is written gets no room": (
        Sight(job(problems=("wrong",)), workload(), queue="q"),
        life.UpdateWorkload(),
    ),
    "a label taken off a running job": (
        Sight(job(**RUNNING, queue=""), workload(**ADMITTED), governed=False),
        life.EvictWorkload("Deactivated", "The job names no queue, and none is given to it"),
    ),
    "its namespace is not governed any more, while it runs": (
        Sight(job(**RUNNING), workload(**ADMITTED), queue="q", governed=False, outside=True),
        life.EvictWorkload("Deactivated", "The namespace is not governed any more"),
    ),
    "its namespace is not governed, and its label holds it": (
        Sight(job(queue="q"), None, queue="q", governed=False, outside=True),
        life.TellUngoverned(),
    ),
    "its namespace is not governed, and it runs": (
        Sight(job(queue="q", suspended=False), None, queue="q", governed=False, outside=True),
        None,
    ),
    "its namespace is not governed, it has no label and its owner suspended it": (
        Sight(job(queue=""), None, governed=False, outside=True),
        None,
    ),
    "a start that was lost is taken back from one that waits again": (
        Sight(job(**STOPPED), workload(), queue="q"),
        life.RestoreJob(),
    ),
    "but not before its controller has said that it stopped": (
        Sight(job(**{**STOPPED, "suspended_condition": False}), workload(), queue="q"),
        None,
    ),
    "nor where its Workload is gone": (
        Sight(job(**{**STOPPED, "suspended_condition": False}), None, queue="q"),
        None,
    ),
    "a JobSet of which that is true, and its controller takes its time": (
        Sight(job(**{**STOPPED, **STUCK}), workload(), queue="q", going=CHILDREN),
        None,
    ),
    "it goes on though its Workload has finished": (
        Sight(job(**RUNNING), workload(**ADMITTED, finished=True), queue="q"),
        None,
    ),
    "its Workload is deleted, and other defaults hold: no other is asked for": (
        Sight(job(), workload(deleting=True), queue="q", same_defaults=False),
        None,
    ),
    "a gang with a class whose value is what it was": (
        Sight(
            job(**RUNNING, priority_class="high"),
            workload(**ADMITTED, priority=5, seen={"priority_class": "high"}),
            PodTally(live=2, ready=2),
            queue="q",
            priority=5,
        ),
        None,
    ),
    "reserved, and it runs: it is suspended": (
        Sight(job(**RUNNING), workload(**RESERVED), queue="q"),
        life.SuspendJob("not admitted"),
    ),
    "running, and its label names another queue now": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2), queue="other"),
        None,
    ),
    "what is kept by our finalizer is let go when it is deleted, and not before": (
        Sight(job(), workload(seen={"kept": True}), queue="q"),
        None,
    ),
    "deleted, finished with what it held, and kept by our finalizer": (
        Sight(None, workload(**ADMITTED, finished=True, deleting=True, seen={"kept": True})),
        life.LetWorkloadGo(),
    ),
    "it would not survive the loss of a pod, whose pods ask for their hosts one by one": (
        Sight(job(**RUNNING, gates=True), workload(**ADMITTED), queue="q", lost_nodes=("n1",)),
        life.EvictWorkload("NodeFailures", "Lost node n1", nodes=("n1",)),
    ),
    "it would, and was suspended for a loss": (
        Sight(job(**SURVIVES), workload(**ADMITTED), queue="q", lost_nodes=("n1",)),
        life.EvictWorkload("NodeFailures", "Lost node n1", nodes=("n1",)),
    ),
    "it would, and loses as many nodes as are replaced in place": (
        Sight(
            job(**RUNNING, **SURVIVES),
            workload(**ADMITTED),
            PodTally(live=2, ready=2),
            queue="q",
            lost_nodes=tuple(f"n{i}" for i in range(life.IN_PLACE)),
        ),
        life.ReplaceNodes(*(tuple(f"n{i}" for i in range(life.IN_PLACE)),) * 2),
    ),
    "evicted before it was admitted, and its controller has said nothing yet: nothing runs": (
        Sight(job(suspended_condition=False), workload(**{**LEAVING, "admitted": False}), queue="q"),
        life.ReleaseWorkload(),
    ),
    "the same of a JobSet, whose Jobs said nothing either": (
        Sight(
            job(kind="JobSet", suspended_condition=False),
            workload(**{**LEAVING, "admitted": False}),
            queue="q",
            unheard=2,
        ),
        life.ReleaseWorkload(),
    ),
    "evicted, pods gone, template frozen, and no start time is set": (
        Sight(job(**STOPPED, template_frozen=True), workload(**LEAVING), queue="q"),
        life.RestoreJob(),
    ),
    "evicted, pods gone, and a start time freezes nothing": (
        Sight(job(**STOPPED, start_time_set=True), workload(**LEAVING), queue="q"),
        life.RestoreJob(),
    ),
    "at its end and said so, and what is left is on a node that is gone": (
        Sight(job(**ENDING), workload(**ADMITTED, finished=True), PodTally(lost=1), queue="q"),
        None,
    ),
    "at its end, one pod is on a node that is gone, and another lives": (
        Sight(job(**ENDING), workload(**ADMITTED), PodTally(lost=1, live=1), queue="q"),
        None,
    ),
    "at its end, one of two that terminate is on a node that is gone": (
        Sight(job(**{**ENDING, "terminating": 2}), workload(**ADMITTED), PodTally(lost=1), queue="q"),
        None,
    ),
    "a job that is being deleted, and its Workload had finished": (
        Sight(job(deleting=True), workload(**ADMITTED, finished=True), queue="q"),
        None,
    ),
    "a job that is being deleted, and never had a Workload": (Sight(job(deleting=True), None, queue="q"), None),
    "a job that is queued no more is evicted once": (
        Sight(job(**{**RUNNING, "queue": ""}), workload(**LEAVING), governed=False),
        life.SuspendJob("evicted"),
    ),
    "a job that is queued no more, and its Workload had finished": (
        Sight(job(queue=""), workload(**ADMITTED, finished=True), governed=False),
        life.DeleteWorkload("the job names no queue, and none is given to it"),
    ),
    "a job that is queued no more, and runs, is not held": (
        Sight(job(suspended=False, queue=""), workload(), governed=False),
        life.DeleteWorkload("the job names no queue, and none is given to it"),
    ),
    "nor is one that a label holds noted": (
        Sight(job(labelled=True), workload(), governed=False, outside=True),
        life.DeleteWorkload("the namespace is not governed any more"),
    ),
    "what is noted, and has a label by now, is so no more": (
        Sight(job(ungoverned=True), None, governed=False, outside=True),
        life.MarkJob(False),
    ),
    "a Job of a JobSet is its JobSet's, whatever its label says": (
        Sight(job(owner=("jobset.x-k8s.io/v1alpha2", "JobSet", "s1")), None, queue="q", governed=False),
        None,
    ),
    "pods of it that are there keep the quota of a namespace that is being deleted": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(live=1, missing_since=NOW - SETTINGS.give_back_ms),
            queue="q",
            terminating=True,
        ),
        None,
    ),
    "a pod asks for more by its claims than was admitted": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2, claims_more="more"), queue="q"),
        life.EvictWorkload("OutOfSync", "more", backoff=True),
    ),
    "its room was given away twice": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2), queue="q", given_twice="8 gpu"),
        life.EvictWorkload("OutOfSync", "8 gpu"),
    ),
    "deactivated while its owner pauses it": (
        Sight(job(**RUNNING, paused=True), workload(**ADMITTED, active=False), queue="q"),
        life.EvictWorkload("Deactivated", "The job is paused by its owner"),
    ),
    "not ready in time, while all nodes are silent at once": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": 0, "reserved_at": 0}),
            PodTally(live=2, ready=1),
            queue="q",
            heard_since=None,
        ),
        None,
    ),
    "not ready in time, and others lack pods that nobody makes": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": 0, "reserved_at": 0}),
            PodTally(live=2, ready=1),
            queue="q",
            made_since=None,
        ),
        life.EvictWorkload(
            "PodsReadyTimeout",
            "Only 1 of 2 pods are ready, and they had 60 s from the last one's creation",
            backoff=True,
            cause="WaitForStart",
        ),
    ),
    "it was whole, and while pods are made for nobody it lacks one": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": 0, "reserved_at": 0}),
            PodTally(live=1, ready=1, missing_since=1, behind_since=1),
            queue="q",
            made_since=None,
        ),
        None,
    ),
    "a job that was never ours": (Sight(job(suspended=False, queue=""), None, governed=False), None),
}


@pytest.mark.parametrize("name", ROWS)
def test_next_step(name: str) -> None:
    seen, wanted = ROWS[name]
    due = next_step(seen, SETTINGS, NOW)
    assert due.step == wanted
    # The API server's clock was set ahead meanwhile, and all that is seen is from before.
    by = 10_000_000
    later = next_step(replace_in(seen, set_ahead=SetAhead(NOW, by)), SETTINGS, NOW + by)
    assert later.step == wanted, "and nothing has lasted longer"


IN_KUEUE_MODE: dict[str, tuple[WorkloadView, Any]] = {
    "it waits": (workload(), None),
    "switched off": (workload(active=False), life.EvictWorkload("Deactivated", "The workload is deactivated")),
    "paused by its owner": (
        workload(active=False, paused=True),
        life.EvictWorkload("Deactivated", "The job is paused by its owner"),
    ),
    "switched off by a check, whose answer is still there": (
        workload(active=False, checks=(REJECTED,)),
        life.EvictWorkload("Deactivated", "Check c refused: said", cause="AdmissionCheck"),
    ),
    "switched off, for it has no time left": (
        workload(active=False, limit=10, run_ms=10_000),
        life.EvictWorkload("Deactivated", OVER, cause=TOO_LONG),
    ),
    "it was evicted before": (workload(active=False, evicted="Preempted", evicted_at=NOW - 1), None),
    "and its tries are forgotten": (
        workload(active=False, evicted="PodsReadyTimeout", evicted_at=NOW - 1, requeue_at=NOW + 1),
        life.ForgetTries(),
    ),
    "what it has run counts on": (
        workload(active=False, evicted="Deactivated", evicted_at=NOW - 1, limit=10, run_ms=10_000),
        None,
    ),
    "switched off, and deleted": (workload(active=False, deleting=True), None),
    "active again": (workload(evicted="Deactivated", seen={"kept_out": "Deactivated"}), life.Reactivate()),
    "active again after a check": (workload(seen={"kept_out": "DeactivatedDueToAdmissionCheck"}), life.Reactivate()),
    "not yet": (workload(active=False, evicted="Deactivated", seen={"kept_out": "Deactivated"}), None),
    "kept out for another reason": (workload(evicted="x", seen={"kept_out": "ClusterQueueStopped"}), None),
}


def test_without_wait_for_pods_ready_only_pods_that_cannot_be_placed_send_a_gang_back() -> None:
    """`waitForPodsReady.enable: false`, and podsUnschedulableTimeout."""
    off = replace_in(SETTINGS, pods_ready_ms=None, recovery_ms=None)
    seen, evicted = ROWS["a pinned pod that cannot be scheduled"]
    assert next_step(seen, off, NOW).step == evicted
    unready, later = replace_in(seen, pods=PodTally(live=2, last_created_at=NOW)), NOW + 3_600_000
    assert next_step(unready, SETTINGS, later).step is not None
    assert next_step(unready, off, later).step is None


@pytest.mark.parametrize("name", IN_KUEUE_MODE)
def test_what_is_due_for_who_waits_in_kueue_mode(name: str) -> None:
    """The same with a job and without."""
    seen, wanted = IN_KUEUE_MODE[name]
    settings = replace_in(SETTINGS, as_kueue=True)
    owner = job(paused=seen.paused, max_execution_s=seen.max_execution_s)
    assert next_step(Sight(owner, seen, queue="q", required=("c",)), settings, NOW).step == wanted
    assert life.bare_step(seen, StopPolicy.NONE, "", settings, NOW, ("c",)).step == wanted


@pytest.mark.parametrize(
    ("recovery", "tally", "at", "cause"),
    [
        pytest.param(30_000, {}, NOW + 1_000, "WaitForStart", id="it never was ready"),
        pytest.param(30_000, {"behind_since": NOW - 20_000}, NOW + 10_000, "WaitForRecovery", id="it was"),
        pytest.param(900_000, {"behind_since": NOW - 20_000}, NOW + 880_000, "WaitForRecovery", id="and has long"),
        pytest.param(None, {"behind_since": NOW - 20_000}, None, "", id="and for ever"),
        pytest.param(None, {"last_created_at": NOW - 90_000, "unready_since": NOW - 1_000}, None, "", id="so pods say"),
        pytest.param(None, {}, NOW + 1_000, "WaitForStart", id="not so the start"),
    ],
)
def test_in_kueue_mode_who_was_ready_has_the_time_to_recover_alone(
    recovery: int | None, tally: dict[str, int], at: int | None, cause: str
) -> None:
    """However young the pod is that takes over."""
    settings = replace_in(SETTINGS, as_kueue=True, recovery_ms=recovery)
    value = workload(**{**ADMITTED, "admitted_at": NOW - 100_000})
    seen = Sight(job(**RUNNING), value, PodTally(**{**LATE, **tally}), queue="q")
    assert next_step(seen, settings, NOW) == life.Next(None, at)
    if at is not None:
        due = next_step(seen, settings, at).step
        assert isinstance(due, life.EvictWorkload)
        assert (due.reason, due.cause, due.backoff) == ("PodsReadyTimeout", cause, True)


def test_in_kueue_mode_nobody_has_less_time_for_that_no_node_was_heard_of() -> None:
    settings = replace_in(SETTINGS, as_kueue=True, recovery_ms=60_000)
    tally = PodTally(**{**LATE, "behind_since": NOW - 70_000})
    value = workload(**{**ADMITTED, "admitted_at": NOW - 100_000})
    seen = Sight(job(**RUNNING), value, tally, queue="q", heard_since=NOW - 1_000)
    assert next_step(seen, settings, NOW) == life.Next(None, NOW + 59_000)


@pytest.mark.parametrize(
    ("as_kueue", "pods_ready_ms", "refused_for", "leaves"),
    [
        (False, 300_000, 60_000, True),
        (False, 30_000, 30_000, True),
        (False, None, 3_600_000, False),
        (True, 300_000, 60_000, False),
        (True, 300_000, 300_000, True),
    ],
)
def test_how_long_a_start_may_be_refused(
    as_kueue: bool, pods_ready_ms: int | None, refused_for: int, leaves: bool
) -> None:
    settings = Settings(pods_ready_ms=pods_ready_ms, as_kueue=as_kueue)
    seen = Sight(job(), workload(**ADMITTED), queue="q", start_refused=(NOW - refused_for, NOW, "no"))
    step = next_step(seen, settings, NOW).step
    assert isinstance(step, life.EvictWorkload if leaves else life.StartJob)


QUOTA = 'pods "train-1" is forbidden: exceeded quota: team'
LEAVES_FOR_IT = life.EvictWorkload(
    "PodsReadyTimeout",
    f"Only 1 of its 2 pods are there, and the API server refuses more: {QUOTA}",
    backoff=True,
    cause="WaitForStart",
)
START = NOW - 90_000
LACKS_ONE: dict[str, Any] = {"live": 1, "ready": 1, "last_created_at": START, "missing_since": START + 1_000}
FOUND = life.Refusal(NOW - 30_000, NOW - 31_000, QUOTA)
NOTHING_FOUND = life.Refusal(NOW - 30_000)
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], life.Next]] = {
    "it is looked up": ({}, {}, life.Next(life.LookForRefusal(NOW))),
    "not before a minute": ({"last_created_at": NOW - 59_999}, {}, life.Next(None, NOW + 1)),
    "nor where all are there": ({"live": 2, "missing_since": None}, {}, life.Next(None, START + 1_800_000)),
    "who is refused leaves": ({"refusal": FOUND}, {}, life.Next(LEAVES_FOR_IT)),
    "not where it was one that is there since": (
        {"refusal": life.Refusal(NOW - 30_000, START - 1, QUOTA)},
        {},
        life.Next(None, NOW + 30_000),
    ),
    "nor where more were made since it was looked up": (
        {"refusal": FOUND, "last_created_at": NOW - 20_000, "missing_since": NOW - 20_000},
        {},
        life.Next(None, NOW + 40_000),
    ),
    "with nothing found, again after as long": ({"refusal": NOTHING_FOUND}, {}, life.Next(None, NOW + 30_000)),
    "and then again": (
        {"refusal": NOTHING_FOUND, "last_created_at": NOW - 60_000},
        {},
        life.Next(life.LookForRefusal(NOW)),
    ),
    "who was whole has its time to recover": (
        {"refusal": FOUND, "behind_since": NOW - 80_000},
        {},
        life.Next(None, START + 1_800_000),
    ),
    "and who may have been, before this controller led": (
        {"refusal": FOUND, "missing_since": START + 60_000},
        {},
        life.Next(None, START + 1_800_000),
    ),
    "who has none that is ready has nothing to lose": (
        {"refusal": FOUND, "missing_since": START + 60_000, "ready": 0},
        {},
        life.Next(LEAVES_FOR_IT),
    ),
    "nobody is evicted for pods that are not ready": ({"refusal": FOUND}, {"pods_ready_ms": None}, life.NOTHING),
    "in Kueue mode as in Kueue": ({"refusal": FOUND}, {"as_kueue": True}, life.Next(None, START + 1_800_000)),
    "who has little time is told as well": (
        {"last_created_at": NOW - 5_000},
        {"pods_ready_ms": 5_000},
        life.Next(life.LookForRefusal(NOW)),
    ),
}


@pytest.mark.parametrize(
    ("heard_since", "wanted"),
    [
        (START, life.Next(LEAVES_FOR_IT)),
        (NOW - 20_000, life.Next(None, NOW + 40_000)),
        (None, life.Next(LEAVES_FOR_IT)),  # the API server makes pods for silent nodes, too
    ],
)
def test_what_refused_pods_as_the_api_server_came_back_is_not_what_refuses_them(
    heard_since: int | None, wanted: life.Next
) -> None:
    """Webhooks of others come later."""
    settings = Settings(pods_ready_ms=1_800_000, recovery_ms=None)
    tally = PodTally(**{**LACKS_ONE, "ready": 0, "missing_since": NOW - 20_000, "refusal": FOUND})
    value = workload(**{**ADMITTED, "admitted_at": START})
    assert next_step(Sight(job(**RUNNING), value, tally, queue="q", heard_since=heard_since), settings, NOW) == wanted


def test_who_may_have_been_whole_before_the_api_server_was_away_has_its_time_to_recover() -> None:
    """A gang has run for ten hours; who leads as the API server is back sees it first, and it lacks a pod."""
    long_ago, back = NOW - 36_000_000, NOW - 70_000
    tally = PodTally(**{**LACKS_ONE, "last_created_at": long_ago, "missing_since": back, "refusal": FOUND})
    seen = Sight(job(**RUNNING), workload(**{**ADMITTED, "admitted_at": long_ago}), tally, queue="q", heard_since=back)
    settings = Settings(pods_ready_ms=1_800_000, recovery_ms=None)
    assert next_step(seen, settings, NOW) == life.Next(None, back + 1_800_000)
    nothing_to_lose = replace_in(seen, pods=replace_in(tally, ready=0))
    assert next_step(nothing_to_lose, settings, NOW) == life.Next(LEAVES_FOR_IT)


@pytest.mark.parametrize("name", REFUSED)
def test_who_lacks_pods_that_the_api_server_refuses(name: str) -> None:
    tally, said, wanted = REFUSED[name]
    settings = replace_in(Settings(pods_ready_ms=1_800_000, recovery_ms=None), **said)
    seen = Sight(
        job(**RUNNING), workload(**{**ADMITTED, "admitted_at": START}), PodTally(**{**LACKS_ONE, **tally}), queue="q"
    )
    assert next_step(seen, settings, NOW) == wanted
    by = 10_000_000
    later = replace_in(seen, set_ahead=SetAhead(NOW, by))
    step = life.LookForRefusal(NOW + by) if isinstance(wanted.step, life.LookForRefusal) else wanted.step
    assert next_step(later, settings, NOW + by) == life.Next(step, None if wanted.at is None else wanted.at + by)


@pytest.mark.parametrize(
    ("tries", "ready", "limit", "reason"),
    [
        (3, 1, 3, "PodsReadyTimeout"),
        (2, 1, 3, "Deactivated"),
        (3, 2, 3, "Deactivated"),
        (3, 1, None, "Deactivated"),
    ],
)
def test_who_is_given_up_is_told_so_by_whoever_comes_to_say_it(
    tries: int, ready: int, limit: int | None, reason: str
) -> None:
    """It is switched off by one write, and told why by the next: between them a leader may end, or lose a race."""
    late = PodTally(live=2, ready=ready, last_created_at=NOW - 60_000)
    gang = workload(**{**ADMITTED, "admitted_at": NOW - 100_000}, active=False, seen={"requeue_count": tries})
    step = next_step(Sight(job(**RUNNING), gang, late, queue="q"), replace_in(SETTINGS, backoff_limit=limit), NOW).step
    assert isinstance(step, life.EvictWorkload)
    assert (step.reason, step.backoff) == (reason, reason != "Deactivated")


@pytest.mark.parametrize(("as_kueue", "out"), [(False, ("spot",)), (True, ())])
def test_a_flavor_is_out_of_stock_for_who_loses_its_nodes_too_but_kueue_has_no_word_for_it(
    as_kueue: bool, out: tuple[str, ...]
) -> None:
    value = workload(**{**ADMITTED, "admitted_at": NOW - 100_000})
    behind = {"behind_since": NOW - 70_000, "missing_since": NOW - 70_000}
    tally = PodTally(**{**LATE, **behind, "last_created_at": NOW - 90_000}, **UNPLACED)
    settings = replace_in(SETTINGS, as_kueue=as_kueue, recovery_ms=60_000)
    due = next_step(Sight(job(**RUNNING), value, tally, queue="q"), settings, NOW).step
    assert isinstance(due, life.EvictWorkload)
    assert (due.reason, due.cause, due.out_of_stock) == ("PodsReadyTimeout", "WaitForRecovery", out)


@pytest.mark.parametrize(
    ("left", "told", "wanted"),
    [
        ((("main", 1),), (), (("main", 1),)),
        ((("main", 0),), (), (("main", 2),)),
        ((("main", 2),), (), ()),  # admitted again with less: all of it runs
        ((("main", 3),), (), ()),
        ((("main", 1),), (("main", 1),), ()),  # already told
        ((("main", 1),), (("main", 2),), ()),  # never less than was told
        ((("other", 1),), (), ()),
        ((), (), ()),
        # What another pod set, or this one, gave before stays given.
        ((("main", 1),), (("other", 1),), (("main", 1), ("other", 1))),
    ],
)
def test_what_a_running_gang_may_give_back(left: Any, told: Any, wanted: Any) -> None:
    value = workload(**ADMITTED, reclaimable=told).value
    assert life.spare(job(**RUNNING, left=left), value) == wanted
    assert life.spare(job(**STOPPED, left=left), value) == ()
    assert life.spare(job(**RUNNING, left=left), replace(value, evicted="Preempted")) == ()


def test_what_a_pod_set_gave_back_it_has_given_when_another_gives() -> None:
    (part,) = ADMISSION.pod_sets
    given = replace(ADMISSION, pod_sets=(part, replace(part, name="more")))
    value = workload(**{**ADMITTED, "admission": given}, reclaimable=(("main", 2),)).value
    assert life.spare(job(**RUNNING, left=(("main", 1), ("more", 1))), value) == (("main", 2), ("more", 1))


def test_it_looks_again_when_time_alone_can_change_the_answer() -> None:
    seen = Sight(
        job(**RUNNING),
        workload(**{**ADMITTED, "admitted_at": NOW - 60_000}, limit=600),
        PodTally(live=2, ready=1, last_created_at=NOW - 59_000),
        queue="q",
    )
    due = next_step(seen, SETTINGS, NOW)
    assert due.step is None
    assert due.at == NOW + 1_000
    assert next_step(seen, SETTINGS, due.at).step is not None


ON_A_LOST_NODE = {"live": 1, "lost_until": NOW + 900}
LATER: dict[str, tuple[Sight, int | None]] = {
    "finished, and a pod of it still ends on a node that is lost": (
        Sight(job(**RUNNING, finished="Failed"), workload(**ADMITTED), PodTally(**ON_A_LOST_NODE), queue="q"),
        NOW + 900,
    ),
    "at its end, and one does": (
        Sight(job(**ENDING), workload(**ADMITTED), PodTally(**ON_A_LOST_NODE), queue="q"),
        NOW + 900,
    ),
    "at its end, and what is done is given back before that": (
        Sight(
            job(**ENDING, left=(("main", 1),)),
            workload(**ADMITTED),
            PodTally(**ON_A_LOST_NODE),
            queue="q",
            spare_since=NOW - SETTINGS.give_back_ms + 500,
        ),
        NOW + 500,
    ),
    "being deleted, and one does": (
        Sight(job(**RUNNING, deleting=True), workload(**ADMITTED), PodTally(**ON_A_LOST_NODE), queue="q"),
        NOW + 900,
    ),
    "evicted, and one does": (
        Sight(job(**STOPPED), workload(**LEAVING), PodTally(**ON_A_LOST_NODE), queue="q"),
        NOW + 900,
    ),
    "admitted, and one does of before it was held": (
        Sight(job(), workload(**ADMITTED), PodTally(**ON_A_LOST_NODE), queue="q"),
        NOW + 900,
    ),
    "admitted, and one is there of before it was held": (
        Sight(job(), workload(**ADMITTED), PodTally(live=1, lost_until=NOW + 9_000), queue="q"),
        NOW - 100 + SETTINGS.acknowledge_ms,
    ),
    "it runs with more pods than were admitted": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(live=3, ready=2, beyond=Beyond(NOW - 9_000, 3, 2)),
            queue="q",
        ),
        NOW + 1_000,
    ),
    "it runs, a pod of it finds no room on its node": (
        Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2, unschedulable_since=NOW - 9_000), "q"),
        NOW + 1_000,
    ),
    "it runs, one finds none, and nodes are heard of again": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(live=2, ready=2, unschedulable_since=NOW - 90_000),
            "q",
            heard_since=NOW - 1_000,
        ),
        NOW + 9_000,
    ),
    "it runs, one finds none, and none of the nodes is heard of": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(live=2, ready=2, unschedulable_since=NOW - 90_000),
            "q",
            heard_since=None,
        ),
        None,
    ),
    "it starts, and nodes are heard of again": (
        Sight(
            job(**RUNNING),
            workload(**{**ADMITTED, "admitted_at": NOW - 600_000}),
            PodTally(live=2, last_created_at=NOW - 600_000),
            queue="q",
            heard_since=NOW - 1_000,
        ),
        NOW + 59_000,
    ),
    "it runs, and has a maximum": (
        Sight(
            job(**RUNNING, max_execution_s=10),
            workload(**ADMITTED, limit=10, run_ms=2_000),
            PodTally(live=2, ready=2),
            queue="q",
        ),
        NOW - 100 + 8_000,
    ),
    "it ran, and its namespace is being deleted": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(ready=2, missing_since=NOW - 1_000),
            queue="q",
            terminating=True,
        ),
        NOW - 1_000 + SETTINGS.give_back_ms,
    ),
    "it runs, and some of it is done": (
        Sight(
            job(**RUNNING, left=(("main", 1),)),
            workload(**ADMITTED),
            PodTally(live=1, ready=2),
            queue="q",
            spare_since=NOW - 1_000,
        ),
        NOW - 1_000 + SETTINGS.give_back_ms,
    ),
    "it runs, and its controller may have to be reminded": (
        Sight(
            job(**RUNNING),
            workload(**ADMITTED),
            PodTally(live=2, ready=2),
            queue="q",
            idle=((JOB_KEY, NOW - 1_000), (("Job", "ns", "k"), NOW - 2_000)),
        ),
        NOW - 2_000 + SETTINGS.acknowledge_ms,
    ),
    "it runs": (Sight(job(**RUNNING), workload(**ADMITTED), PodTally(live=2, ready=2), queue="q"), None),
}


@pytest.mark.parametrize("name", LATER)
def test_when_it_is_looked_at_again_though_nothing_changes(name: str) -> None:
    seen, at = LATER[name]
    assert next_step(seen, SETTINGS, NOW) == life.Next(None, at)


@pytest.mark.parametrize("unled", [(), (CHILDREN[0],)])
def test_a_workload_whose_job_is_gone_is_looked_at_again_when_its_last_pod_counts_as_lost(unled: Any) -> None:
    due = life.next_orphan_step(workload(**ADMITTED), PodTally(**ON_A_LOST_NODE, unled=unled))
    assert due == life.Next(None, NOW + 900)


def test_a_jobset_whose_controller_says_nothing_is_looked_at_when_it_is_waited_for_no_longer() -> None:
    seen = Sight(job(**STUCK), workload(**LEAVING), PodTally(lost_until=NOW + 9_000), queue="q")
    due = next_step(seen, SETTINGS, NOW)
    assert due == life.Next(None, NOW + 4_000)
    assert next_step(seen, SETTINGS, NOW + 4_000).step == life.ReleaseWorkload()


@given(st.integers(1, 200), st.integers(0, 10_000), st.integers(0, 100_000), st.uuids())
def test_backoff_grows_to_its_bound(count: int, base: int, most: int, uid: UUID) -> None:
    settings = Settings(backoff_base_ms=base, backoff_max_ms=most)
    whole = backoff_ms(count, Settings(backoff_base_ms=base, backoff_max_ms=most, as_kueue=True), str(uid))
    assert backoff_ms(count, settings, str(uid)) <= backoff_ms(count + 1, settings, str(uid)) <= most
    assert whole == min(base * 2 ** (count - 1), most)
    assert whole * 7 / 8 <= backoff_ms(count, settings, str(uid)) <= whole * 9 / 8


def test_gangs_that_were_evicted_together_come_back_one_by_one() -> None:
    """On an elastic flavor each got some of the nodes that all need, and who is there first gets all of them."""
    uids = [f"27e2e6a4-9d1b-4b0c-8c5d-{n:012}" for n in range(4)]
    assert len({backoff_ms(1, Settings(), uid) // 1000 for uid in uids}) == 4


def test_nothing_is_released_while_a_pod_may_run() -> None:
    """Invariant I5 on the table itself, whether its Workload is there or is deleted and kept."""
    came = set()
    flags, few = (False, True), range(3)
    for kind, suspended, condition, started, deleting, evicted in product(("Job", "JobSet"), *[flags] * 5):
        value = workload(**(LEAVING if evicted else ADMITTED), deleting=deleting)
        for live, active, terminating, unheard in product(few, few, few, range(2)):
            one = job(
                kind=kind,
                suspended=suspended,
                suspended_condition=condition,
                started=started,
                active=active,
                terminating=terminating,
            )
            step = next_step(Sight(one, value, PodTally(live=live), queue="q", unheard=unheard), SETTINGS, NOW).step
            if isinstance(step, life.ReleaseWorkload | life.RestoreJob):
                assert suspended
                assert (live, active, terminating, unheard) == (0, 0, 0, 0)
            if isinstance(step, life.ReleaseWorkload):
                assert not started, "the template goes back before the reservation does"
            came.add((type(step), kind))
    assert came >= set(product((life.ReleaseWorkload, life.RestoreJob), ("Job", "JobSet")))


ORPHANED: dict[str, tuple[WorkloadView, PodTally, Any]] = {
    "no pod is left": (workload(**ADMITTED), PodTally(), life.DeleteWorkload("the job it stood for is gone")),
    "a pod is left": (workload(**ADMITTED), PodTally(live=1, stray=(("ns", "p"),)), None),
    "a pod is left, and somebody needs its room": (
        workload(**LEAVING),
        PodTally(live=1, stray=(("ns", "p"),)),
        life.StopPods((), (("ns", "p"),)),
    ),
    "a Job of it would make pods": (workload(**ADMITTED), PodTally(unled=(("Job", "ns", "j"),)), None),
    "deleted and kept, a pod is left": (workload(**ADMITTED, deleting=True), PodTally(live=1), None),
    "deleted and kept, no pod is left": (workload(**ADMITTED, deleting=True), PodTally(), life.ReleaseWorkload()),
    "deleted and kept, nothing is held": (workload(deleting=True), PodTally(), None),
    "deleted, and kept by our finalizer": (
        workload(deleting=True, seen={"kept": True}),
        PodTally(),
        life.LetWorkloadGo(),
    ),
    "deleted and kept, it had finished": (workload(**ADMITTED, finished=True, deleting=True), PodTally(), None),
}


@pytest.mark.parametrize("name", ORPHANED)
def test_what_is_due_for_a_workload_whose_job_is_gone(name: str) -> None:
    seen, pods, step = ORPHANED[name]
    assert life.next_orphan_step(seen, pods).step == step


BARE: dict[str, tuple[WorkloadView, StopPolicy, Any]] = {
    "it waits": (workload(), StopPolicy.HOLD, None),
    "admitted, it is its owner's": (workload(**ADMITTED), StopPolicy.NONE, None),
    "reserved, until its checks are ready": (
        workload(**RESERVED, checks=(PENDING,)),
        StopPolicy.NONE,
        None,
    ),
    "then it is admitted": (workload(**RESERVED, checks=(READY,)), StopPolicy.NONE, life.AdmitWorkload()),
    "evicted, its owner says when it has stopped": (workload(**LEAVING), StopPolicy.NONE, None),
    "evicted before it was admitted, nothing runs": (
        workload(**RESERVED, evicted="Preempted", evicted_at=NOW),
        StopPolicy.NONE,
        life.ReleaseWorkload(),
    ),
    "switched off": (
        workload(**ADMITTED, active=False),
        StopPolicy.NONE,
        life.EvictWorkload("Deactivated", "The workload is deactivated"),
    ),
    "its queue is drained": (
        workload(**ADMITTED),
        StopPolicy.HOLD_AND_DRAIN,
        life.EvictWorkload("ClusterQueueStopped", "The ClusterQueue is stopped"),
    ),
    "its time is over": (
        workload(**{**ADMITTED, "admitted_at": NOW - 60_000}, limit=60),
        StopPolicy.NONE,
        life.EvictWorkload("Deactivated", "Ran for its maximum of 60 s", deactivate=True, cause=TOO_LONG),
    ),
    "finished": (workload(**ADMITTED, finished=True), StopPolicy.HOLD_AND_DRAIN, None),
    "being deleted": (workload(**ADMITTED, deleting=True), StopPolicy.HOLD_AND_DRAIN, None),
    "being deleted, and kept by our finalizer": (
        workload(**ADMITTED, deleting=True, seen={"kept": True}),
        StopPolicy.NONE,
        life.EvictWorkload("Deactivated", "Its Workload was deleted"),
    ),
    "being deleted, and nobody here stops it": (
        workload(**ADMITTED, deleting=True, unmanaged="Pod p", seen={"kept": True}),
        StopPolicy.NONE,
        life.LetWorkloadGo(),
    ),
    "and then it is let go": (workload(deleting=True, seen={"kept": True}), StopPolicy.NONE, life.LetWorkloadGo()),
}


@pytest.mark.parametrize("name", BARE)
def test_what_is_due_for_a_workload_without_a_job(name):
    seen, stop, step = BARE[name]
    assert life.bare_step(seen, stop, "ClusterQueue", SETTINGS, NOW).step == step


BARE_ASKED: dict[str, tuple[WorkloadView, tuple[str, ...], Any]] = {
    "another check is asked": (workload(**RESERVED, checks=(READY,)), ("c", "d"), life.SyncChecks(("c", "d"))),
    "none is asked any more": (workload(**RESERVED, checks=(PENDING,)), (), life.SyncChecks(())),
    "nor one listed": (workload(**RESERVED), (), life.AdmitWorkload()),
    "another flavor's check refuses it": (workload(**ADMITTED, checks=(REJECTED,)), (), None),
    "it waits, and is put off": (workload(checks=(RETRY,)), ("c",), life.AskAgain()),
    "it waits, and is refused": (
        workload(checks=(REJECTED,)),
        ("c",),
        life.EvictWorkload("Deactivated", "Check c refused: said", deactivate=True, cause="AdmissionCheck"),
    ),
    "it has finished, and is put off": (workload(checks=(RETRY,), finished=True), ("c",), None),
}


@pytest.mark.parametrize("name", BARE_ASKED)
def test_what_is_due_for_a_workload_without_a_job_by_the_checks_of_its_queue(name: str) -> None:
    seen, required, step = BARE_ASKED[name]
    assert life.bare_step(seen, StopPolicy.NONE, "", SETTINGS, NOW, required).step == step


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        pytest.param(workload(), life.Reprioritize(), id="it waits"),
        pytest.param(workload(**RESERVED, checks=(PENDING,)), life.Reprioritize(), id="it is reserved"),
        pytest.param(workload(**ADMITTED), life.Reprioritize(), id="it runs"),
        pytest.param(workload(**LEAVING), None, id="it leaves"),
        pytest.param(workload(**ADMITTED, finished=True), None, id="it has finished"),
        pytest.param(workload(deleting=True), None, id="it is being deleted"),
        pytest.param(workload(checks=(RETRY,)), life.AskAgain(), id="something else is due first"),
    ],
)
def test_a_workload_without_a_job_follows_its_priority_class(seen: WorkloadView, step: Any) -> None:
    def due(value: int | None) -> Any:
        return life.bare_step(seen, StopPolicy.NONE, "", SETTINGS, NOW, class_value=value).step

    assert due(seen.value.priority + 1) == step
    assert due(seen.value.priority) == due(None) == (None if step == life.Reprioritize() else step)


def test_a_workload_without_a_job_is_looked_at_again_when_its_time_is_over():
    seen = workload(**ADMITTED, limit=60, run_ms=10_000)
    at = life.bare_step(seen, StopPolicy.NONE, "", SETTINGS, NOW).at
    assert at is not None
    assert life.bare_step(seen, StopPolicy.NONE, "", SETTINGS, at - 1).step is None
    assert isinstance(life.bare_step(seen, StopPolicy.NONE, "", SETTINGS, at).step, life.EvictWorkload)


def test_of_a_workload_without_a_job_nothing_lasts_longer_for_a_clock_that_was_set_ahead() -> None:
    by = 10_000_000
    due = life.bare_step(
        workload(**ADMITTED, limit=60), StopPolicy.NONE, "", SETTINGS, NOW + by, set_ahead=SetAhead(NOW, by)
    )
    assert due == life.Next(None, NOW - 100 + by + 60_000)


def test_a_workload_without_a_job_gives_back_what_was_given_twice() -> None:
    due = life.bare_step(workload(**ADMITTED), StopPolicy.NONE, "", SETTINGS, NOW, given_twice="4 gpu")
    assert due.step == life.EvictWorkload("OutOfSync", "4 gpu")
