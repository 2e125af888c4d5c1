"""Questions put to a cluster: a sandbox without actors, in which each row writes what the controller would have
written, asked with the rights that the row grants."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from admission.api.lint import lint as judged
from admission.api.lint import read
from admission.api.reasons import DETAILS, EVICTED, REASONS, advice_for, detail_of, reason_of, reference
from admission.cli import cli
from admission.controller import tell
from admission.controller.answers import State
from admission.controller.ask import NotSeen, NotThere, names_of
from admission.controller.change import again
from admission.controller.standing import so_far
from admission.controller.unready import staying
from admission.engine.model import Detail, EvictReason, Misfit, Reason, Shortfall, Why
from admission.engine.project import evicted_as, sentence
from admission.jobs.values import rfc3339
from admission.kube.client import Client
from admission.names import JOB_TRACKING_FINALIZER, Names
from admission.sandbox.http import Sandbox
from tests.controller.lab import (
    ADMITTED_,
    GPU,
    NAMES,
    NOW,
    RESERVED,
    SHORT,
    STARTED,
    T0,
    World,
    admission,
    cluster_queue,
    condition,
    fleet,
    job,
    jobs_of,
    lab,
    local_queue,
    own,
    run,
    template,
    waiting,
    with_workload,
    workload,
)

# ---------------------------------------------------------------- why

WAITING: dict[str, tuple[Why, str]] = {
    "quota is lent to others": (
        Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (SHORT,)),
        "16 nvidia.com/gpu of flavor h100",
    ),
    "nodes are short": (
        Why(
            Reason.PLACEMENT_FAILED,
            Detail.NODES_SHORT,
            misfits=(Misfit("main", "h100", 2, 1, nodes=4, excluded=((("cordoned"), 1),), fits_when_empty=True),),
        ),
        "1 of 2 pod(s)",
    ),
    "behind the head of a strict queue": (
        Why(Reason.WAITING_FOR_QUOTA, Detail.BEHIND_HEAD, subject="ml/big"),
        "ml/big",
    ),
    "the queue is stopped": (Why(Reason.ON_HOLD, subject="ClusterQueue team-a"), "stopped"),
}


@pytest.mark.parametrize("name", WAITING)
async def test_why_a_job_waits(world: World, name: str) -> None:
    why, phrase = WAITING[name]
    await lab(world)
    made = await world.put(job("train"))
    await world.put(workload(made, waiting(why)))
    answer = await world.ask().why("train", "ml")
    seen = answer.standing
    assert (seen.state, seen.reason, seen.detail) == (State.WAITING, why.reason.value, why.detail.value)
    assert phrase in seen.message
    assert (seen.position, seen.waiting, seen.cluster_queue) == (1, 1, "team-a")
    assert seen.requests == ((GPU, 16),)
    wanted = advice_for(why.reason, why.detail)
    assert wanted is not None
    assert answer.owner == wanted.owner
    assert answer.platform == wanted.platform or "muster resume clusterqueue/team-a" in answer.platform
    # 8 of its own are free; the 8 that team-b borrowed are exactly what is missing.
    (room,) = answer.room
    assert (room.nominal, room.used, room.free, room.most, room.asked) == (16, 8, 0, 32, 16)
    assert room.limited_by == "lab"
    assert not answer.hidden


@pytest.mark.parametrize("detail", [Detail.NODES_SHORT, Detail.NEVER_FITS_NODES, Detail.NO_NODES])
async def test_who_waits_for_nodes_that_an_autoscaler_is_to_bring_is_told_that_none_come(
    world: World, detail: Detail
) -> None:
    """No pod of it is there while it waits, and an autoscaler knows of pods alone."""
    await lab(world)
    few = Misfit("main", "h100", 2, 1, detail, nodes=4, sound=4, fits_when_empty=detail is Detail.NODES_SHORT)
    await with_workload(world, job("train"), waiting(Why(Reason.PLACEMENT_FAILED, detail, misfits=(few,))))
    answer = await world.ask().why("train", "ml")
    assert answer.standing.detail == detail.value
    assert "elastic: true" in answer.platform


async def test_quota_of_pods_is_among_what_is_short(world: World) -> None:
    await lab(world)
    tight = cluster_queue("team-c", 32, cohort="")
    (group,) = tight["spec"]["resourceGroups"]
    group["coveredResources"].append("pods")
    group["flavors"][0]["resources"].append({"name": "pods", "nominalQuota": 3})
    tight["status"]["flavorsReservation"][0]["resources"].append({"name": "pods", "total": "2"})
    await world.put(tight)
    await world.put(local_queue("team-c", "team-c"))
    made = await world.put(job("train", "team-c"))
    status = waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.QUOTA_SHORT, subject="pods"))
    status["resourceRequests"] = [{"name": "main", "resources": {GPU: "16"}}]
    await world.put(workload(made, status, queue="team-c"))
    room = {one.resource: (one.asked, one.free) for one in (await world.ask().why("train", "ml")).room}
    assert room == {GPU: (16, 32), "pods": (2, 1)}


@pytest.mark.parametrize(
    ("fewest", "least", "verdict"),
    [
        (None, 40, "can never fit: ends at "),
        (5, 40, "can never fit: ends at "),
        (2, 16, "fits with fewer pods alone: ends at "),
    ],
)
async def test_who_may_start_with_less_can_have_what_all_of_it_never_could(
    world: World, tmp_path: Path, fewest: int | None, least: int, verdict: str
) -> None:
    await lab(world)
    made = await world.put(job("train", pods=5))
    held = workload(made, waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (SHORT,))))
    if fewest is not None:
        held["spec"]["podSets"][0]["minCount"] = fewest
    await world.put(held)
    (room,) = (await world.ask().why("train", "ml")).room
    assert (room.asked, room.least, room.most) == (40, least, 32)
    assert verdict in (await run(world, tmp_path, "why", "train", "-n", "ml", code=1)).stdout


async def test_what_a_queue_can_never_have_ends_where_its_most_does(world: World, tmp_path: Path) -> None:
    """What it holds takes of what its borrowing limit leaves it now, but more of that would not help."""
    await lab(world)
    of_cohort = cluster_queue("", 4)["spec"]["resourceGroups"]
    await world.put(own("Cohort", "root", {"resourceGroups": of_cohort}))
    await world.put(cluster_queue("team-c", 8, 8, cohort="root", borrowingLimit=10))
    await world.put(local_queue("team-c", "team-c"))
    made = await world.put(job("train", "team-c"))
    never = replace(SHORT, detail=Detail.NEVER_FITS_QUOTA, nominal=8, used=8, available=4, limited_by="root")
    status = waiting(Why(Reason.EXCEEDS_MAX_QUOTA, Detail.NEVER_FITS_QUOTA, (never,)))
    await world.put(workload(made, status, queue="team-c"))
    (room,) = (await world.ask().why("train", "ml")).room
    assert (room.asked, room.most, room.limited_by) == (16, 12, "root")
    assert "can never fit: ends at root" in (await run(world, tmp_path, "why", "train", "-n", "ml", code=1)).stdout


def paused(made: dict[str, Any]) -> dict[str, Any]:
    made["metadata"]["labels"][NAMES.pause_label] = "true"
    return made


async def deleted(world: World, made: dict[str, Any]) -> None:
    """While it ran; its pods keep it."""
    made["metadata"]["finalizers"] = ["foregroundDeletion"]
    await with_workload(world, made, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")})
    await world.client.delete("/apis/batch/v1/namespaces/ml/jobs/train")


def labelled(key: str, of_pods: bool = False) -> dict[str, Any]:
    """A Job without a queue, and with another label. Without any of its own it would be given those of its pods."""
    made = job("train", queue="")
    made["spec"]["suspend"] = False
    made["metadata"]["labels"] = {"app": "train"}
    of = made["spec"]["template"] if of_pods else made
    of["metadata"] = {**of.get("metadata", {}), "labels": {key: "main"}}
    return made


def released(*conditions: dict[str, Any]) -> dict[str, Any]:
    made = job("train", status={"conditions": list(conditions)})
    made["spec"]["suspend"] = False
    return made


ROWS: dict[str, tuple[Callable[[World], Any], State, str, str]] = {
    "without a queue": (jobs_of("train", queue=""), State.UNMANAGED, "", "no label muster.dev/queue-name"),
    "with a queue for its pods": (
        lambda world: world.put(labelled("muster.dev/queue-name", of_pods=True)),
        State.UNMANAGED,
        "",
        "It goes on without: label muster.dev/queue-name of pods, which is read of the job only.",
    ),
    "with a queue by a name that is not known": (
        lambda world: world.put(labelled("muster.dev/queue")),
        State.UNMANAGED,
        "",
        "muster.dev/queue, which is not known (did you mean muster.dev/queue-name?)",
    ),
    "without a Workload yet": (jobs_of("train"), State.HELD, "", "has no Workload yet"),
    "with a queue that is not there": (
        jobs_of("train", queue="nowhere"),
        State.HELD,
        Detail.QUEUE_MISSING.value,
        "LocalQueue nowhere does not exist",
    ),
    "waiting for its first look": (
        lambda world: with_workload(world, job("train"), {}),
        State.WAITING,
        Detail.NEXT_CYCLE.value,
        "next cycle",
    ),
    "waiting out a backoff": (
        lambda world: with_workload(
            world, job("train"), {"requeueState": {"count": 2, "requeueAt": rfc3339(NOW + 60_000)}}
        ),
        State.WAITING,
        Detail.BACKOFF.value,
        rfc3339(NOW + 60_000),
    ),
    "waiting out a backoff, and for what it left": (
        lambda world: with_workload(
            world,
            job("train"),
            {
                "requeueState": {"count": 2, "requeueAt": rfc3339(NOW + 60_000)},
                "conditions": [condition("Evicted", True, "PodsReadyTimeout", "The API server refuses more: quota")],
            },
        ),
        State.WAITING,
        Detail.BACKOFF.value,
        "before it is tried again. It was evicted last: The API server refuses more: quota",
    ),
    "deactivated": (
        lambda world: with_workload(world, job("train"), {}, active=False),
        State.WAITING,
        "",
        "switched off",
    ),
    "paused": (
        lambda world: with_workload(world, paused(job("train")), {}, active=False),
        State.PAUSED,
        "Paused",
        "is paused by its owner",
    ),
    "released": (
        lambda world: with_workload(world, released(), {}),
        State.RELEASED,
        "",
        "runs without Muster",
    ),
    "released, without a Workload": (
        lambda world: world.put(released()),
        State.RELEASED,
        "",
        "runs without Muster",
    ),
    "released, and done": (
        lambda world: with_workload(world, released(condition("Complete", True, "", "Reached its end")), {}),
        State.FINISHED,
        "",
        "Reached its end",
    ),
    "reserved, with a check pending": (
        lambda world: with_workload(
            world,
            job("train"),
            {
                "conditions": [RESERVED],
                "admission": admission("n1", "n2"),
                "admissionChecks": [
                    {"name": "budget", "state": "Pending", "message": "asks", "lastTransitionTime": rfc3339(T0)}
                ],
            },
        ),
        State.RESERVED,
        "",
        "budget",
    ),
    "starting": (
        lambda world: with_workload(
            world,
            job("train", status={**STARTED, "ready": 1}),
            {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")},
        ),
        State.STARTING,
        "",
        "is admitted; its pods are starting",
    ),
    "running": (
        lambda world: with_workload(
            world,
            job("train", status=STARTED),
            {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")},
        ),
        State.RUNNING,
        "",
        "n1, n2",
    ),
    "leaving": (
        lambda world: with_workload(
            world,
            job("train", status=STARTED),
            {
                "conditions": [RESERVED, ADMITTED_, condition("Evicted", True, "Preempted", "for ml/other")],
                "admission": admission("n1", "n2"),
            },
        ),
        State.LEAVING,
        "",
        "for ml/other",
    ),
    "deleted, with pods": (
        lambda world: deleted(world, job("train", status=STARTED)),
        State.LEAVING,
        "",
        "was deleted; its pods are leaving",
    ),
    "at its end, with pods": (
        lambda world: with_workload(
            world,
            job("train", status={**STARTED, "conditions": [condition("FailureTarget", True, "Deadline", "late")]}),
            {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")},
        ),
        State.LEAVING,
        "",
        "Job ml/train has failed; its pods are leaving",
    ),
    "at its end, after it was evicted": (
        lambda world: with_workload(
            world,
            job("train", status={**STARTED, "conditions": [condition("SuccessCriteriaMet", True, "Rule", "enough")]}),
            {
                "conditions": [RESERVED, ADMITTED_, condition("Evicted", True, "Preempted", "for ml/other")],
                "admission": admission("n1", "n2"),
            },
        ),
        State.LEAVING,
        "",
        "Job ml/train has ended; its pods are leaving",
    ),
    "finished": (
        lambda world: with_workload(
            world, job("train"), {"conditions": [condition("Finished", True, "Succeeded", "Job finished")]}
        ),
        State.FINISHED,
        "",
        "Job finished",
    ),
    "failed": (
        lambda world: with_workload(
            world, job("train"), {"conditions": [condition("Finished", True, "Failed", "Out of tries")]}
        ),
        State.FINISHED,
        "",
        "Job ml/train has failed, ",
    ),
    "leaving, with no pod left": (
        lambda world: with_workload(
            world,
            job("train", status={**STARTED, "ready": 0, "active": 0}),
            {
                "conditions": [RESERVED, ADMITTED_, condition("Evicted", True, "Preempted", "for ml/other")],
                "admission": admission("n1", "n2"),
            },
        ),
        State.LEAVING,
        "",
        "The pods are gone.",
    ),
}
GOES_ON = {State.UNMANAGED, State.STARTING, State.RUNNING, State.RELEASED, State.FINISHED}


@pytest.mark.parametrize("name", ROWS)
async def test_every_state_in_words(world: World, tmp_path: Path, name: str) -> None:
    fill, state, detail, phrase = ROWS[name]
    await lab(world)
    await fill(world)
    answer = await world.ask().why("job/train", "ml")
    assert answer.standing.state is state
    assert answer.standing.detail == detail
    code = 0 if state in GOES_ON or name.startswith("at its end") else 1
    text = (await run(world, tmp_path, "why", "train", "-n", "ml", code=code)).stdout
    assert phrase in text
    data = json.loads((await run(world, tmp_path, "why", "train", "-n", "ml", "-o", "json", code=code)).stdout)
    assert data["standing"]["state"] == state.value


# ---------------------------------------------------------------- what keeps it, seen from its pods and labels


def pod(name: str, *, node: str = "n1", **status: Any) -> dict[str, Any]:
    out: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {**template(8)["spec"], **({"nodeName": node} if node else {})},
    }
    if status:
        out["status"] = status
    return out


def container(**state: Any) -> dict[str, Any]:
    return {"name": "main", "ready": False, "restartCount": 0, "image": "x", "imageID": "", "state": state}


def ended_before(code: int) -> dict[str, Any]:
    return {
        **container(waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s"}),
        "lastState": {"terminated": {"reason": "Error", "exitCode": code}},
    }


UNREADY: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no image": (
        {
            "phase": "Pending",
            "containerStatuses": [container(waiting={"reason": "ImagePullBackOff", "message": "no such image x:1"})],
        },
        "ImagePullBackOff",
        "no such image x:1",
        "image name",
    ),
    "it crashes": (
        {"phase": "Running", "containerStatuses": [ended_before(3)]},
        "CrashLoopBackOff",
        "exit code 3",
        "kubectl logs POD --previous",
    ),
    "an init container": (
        {
            "phase": "Pending",
            "initContainerStatuses": [
                container(waiting={"reason": "CreateContainerConfigError", "message": "no secret"})
            ],
            "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
        },
        "CreateContainerConfigError",
        "no secret",
        "Secret",
    ),
    "an init container is done": (
        {
            "phase": "Running",
            "initContainerStatuses": [container(terminated={"reason": "Completed", "exitCode": 0})],
            "containerStatuses": [ended_before(3)],
        },
        "CrashLoopBackOff",
        "exit code 3",
        "kubectl logs POD --previous",
    ),
    "one container is on its way, and another is not": (
        {
            "phase": "Pending",
            "containerStatuses": [
                container(waiting={"reason": "ContainerCreating"}),
                container(waiting={"reason": "ErrImagePull", "message": "no such image x:1"}),
            ],
        },
        "ErrImagePull",
        "no such image x:1",
        "image name",
    ),
    "kube-scheduler refuses it": (
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
            ],
        },
        "Unschedulable",
        "0/4 nodes",
        "platform team",
    ),
    "a gate of its own": (
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "non-empty gates"}
            ],
        },
        "SchedulingGated",
        "non-empty gates",
        "must remove it",
    ),
    "its node is silent": (
        {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
        "NodeSilent",
        "was not heard of",
        "starts on other nodes",
    ),
    "its probe says no": (
        {"phase": "Running", "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]},
        "NotReady",
        "are not ready",
        "readiness probe",
    ),
    "its node is slow": ({"phase": "Pending"}, "ContainerCreating", "has not started it yet", "kubectl describe pod"),
}


STAYING: dict[str, tuple[dict[str, Any], str, str]] = {
    "not asked yet": ({}, "Running", "Not asked to end yet"),
    "in its grace period": ({"deletionTimestamp": "2999-01-01T00:00:00Z"}, "Terminating", "ends at 2999-01-01"),
    "over it": (
        {"deletionTimestamp": "2020-01-01T00:00:00Z"},
        "Terminating",
        "ended at 2020-01-01T00:00:00Z: its node",
    ),
    "kept": (
        {"deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["a.b/c", JOB_TRACKING_FINALIZER]},
        "Terminating",
        "the finalizer a.b/c keeps it, or",
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_which_pods_of_a_gang_that_leaves_are_still_there(name: str) -> None:
    meta, reason, message = STAYING[name]
    done, stays = pod("train-0", phase="Succeeded"), pod("train-1", phase="Running")
    stays["metadata"] |= meta
    (told,) = staying([stays, done], NOW)
    assert (told.reason, told.count, told.pods, told.nodes) == (reason, 1, ("train-1",), ("n1",))
    assert message in told.message


async def test_why_a_gang_is_still_leaving(world: World, tmp_path: Path) -> None:
    await lab(world)
    made = await world.put(job("train", pods=2, status={**STARTED, "active": 1, "ready": 1}))
    evicted = condition("Evicted", True, "NodeFailures", "Lost node n1")
    status = {"conditions": [RESERVED, ADMITTED_, evicted], "admission": admission("n1", pods=2)}
    uid = (await world.put(workload(made, status)))["metadata"]["uid"]
    one = pod("train-1", phase="Running")
    one["metadata"]["labels"] = {NAMES.managed_label: "true", NAMES.workload_uid_label: uid}
    await world.put(one)
    bare = pod("of-somebody", phase="Running")
    bare["metadata"]["labels"] = {NAMES.workload_uid_label: uid}  # which anybody may write
    await world.put(bare)
    answer = await world.ask().why("train", "ml")
    assert (answer.standing.state, [told.pods for told in answer.unready]) == (State.LEAVING, [("train-1",)])
    text = (await run(world, tmp_path, "why", "train", "-n", "ml", code=1)).stdout
    assert re.search(r"Pods that are still there\s+PODS.*\s+1 +Running +train-1 on n1", text)
    assert "nodeLossGracePeriod" in text


@pytest.mark.parametrize("of_jobset", [False, True])
async def test_why_says_who_refuses_the_pods_of_a_started_gang(world: World, of_jobset: bool) -> None:
    await lab(world)
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=3)}
    by = job("train", pods=3, status={**STARTED, "active": 0, "ready": 0})
    if of_jobset:
        inner = {key: value for key, value in by["spec"].items() if key != "suspend"}
        replicated = [{"name": "w", "replicas": 1, "template": {"spec": inner}}]
        meta = {**by["metadata"], "name": "set"}
        made = await world.put({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta,
            "spec": {"replicatedJobs": replicated},
        })  # fmt: skip
        by["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "set"}
        child = await world.put(by)
        stands = workload({**made, "spec": made["spec"]["replicatedJobs"][0]["template"]["spec"]}, started)
        stands["metadata"]["ownerReferences"][0] |= {"apiVersion": made["apiVersion"], "kind": "JobSet"}
    else:
        made = child = await world.put(by)
        stands = workload(made, started)
    await world.put(stands)
    refused = [f'pods "train-{rank}" is forbidden: exceeded quota: team' for rank in (1, 0)]
    for at, said in enumerate(("older", *refused)):
        about = {"kind": "Job", "namespace": "ml", "name": "train", "uid": child["metadata"]["uid"]}
        meta = {"metadata": {"name": f"e{at}", "namespace": "ml"}, "involvedObject": about, "type": "Warning"}
        await world.put({"apiVersion": "v1", "kind": "Event", **meta, "reason": "FailedCreate", "message": said})
    answer = await world.ask().why(made["metadata"]["name"], "ml")
    (missing,) = answer.unready
    assert (missing.reason, missing.count) == ("NotCreated", 3)
    assert missing.message == '3 of 3 pods do not exist yet: pods "train-0" is forbidden: exceeded quota: team'
    assert "ResourceQuota" in answer.owner
    if not of_jobset:
        tries = [(one.message, one.count) for one in answer.history if one.reason == "FailedCreate"]
        assert sorted(tries) == [("older", 1), ('pods "train-0" is forbidden: exceeded quota: team', 2)]


async def test_why_says_that_an_admitted_gang_is_not_started_and_what_refuses_it(world: World, tmp_path: Path) -> None:
    """Nobody makes pods of a job that is suspended still: neither quotas nor templates are in the way."""
    await lab(world)
    made = await world.put(job("train", pods=3))
    await world.put(workload(made, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=3)}))
    about = {"kind": "Job", "namespace": "ml", "name": "train", "uid": made["metadata"]["uid"]}
    said = 'The API server refused a change: jobs.batch "train" is forbidden: cannot patch resource "jobs"'
    meta = {"metadata": {"name": "e", "namespace": "ml"}, "involvedObject": about, "type": "Warning"}
    await world.put({"apiVersion": "v1", "kind": "Event", **meta, "reason": "Refused", "message": said})
    answer = await world.ask().why("train", "ml")
    assert answer.standing.state is State.STARTING
    assert [(one.reason, one.count) for one in answer.unready] == [("NotStarted", 3)]
    assert answer.unready[0].message == f"Their job is suspended still: {said}"
    assert "helm upgrade" in answer.platform
    assert "ResourceQuota" not in answer.owner


@pytest.mark.parametrize(
    ("given_up", "pause", "pods", "owner"),
    [
        (False, False, 2, "Nothing: the job is requeued by itself."),
        (True, False, 2, "is not requeued by itself"),
        (True, True, 2, "when its label muster.dev/pause is removed"),
        (False, False, 0, "when its parallelism is more than 0"),
    ],
)
async def test_who_leaves_is_told_whether_it_comes_back(
    world: World, given_up: bool, pause: bool, pods: int, owner: str
) -> None:
    await lab(world)
    made = job("train", pods=2, status={**STARTED, "active": 2})
    made["spec"]["parallelism"] = pods
    evicted = condition("Evicted", True, "PodsReadyTimeout", "given up after 2 tries")
    status = {"conditions": [RESERVED, ADMITTED_, evicted], "admission": admission("n1", pods=2)}
    await with_workload(world, paused(made) if pause else made, status, active=not given_up)
    answer = await world.ask().why("train", "ml")
    assert answer.standing.state is State.LEAVING
    assert owner in answer.owner


async def test_who_waits_for_a_check_is_told_whose_it_is(world: World) -> None:
    await lab(world)
    for name in ("budget", "other"):
        await world.put(own("AdmissionCheck", name, {"controllerName": f"example.com/{name}"}))
    asked = [{"name": "budget", "state": "Pending", "message": "", "lastTransitionTime": rfc3339(NOW)}]
    status = {"conditions": [RESERVED], "admission": admission("n1"), "admissionChecks": asked}
    await with_workload(world, job("train"), status)
    answer = await world.ask().why("train", "ml")
    assert answer.standing.state is State.RESERVED
    assert answer.platform.endswith("answer the checks. budget is for example.com/budget to answer.")
    world.denied = {"admissionchecks"}
    answer = await world.ask().why("train", "ml")
    assert (answer.platform.endswith("answer the checks."), answer.hidden) == (True, ())


@pytest.mark.parametrize(("given", "ready", "unready"), [(3, 3, []), (3, 2, ["NotCreated"]), (8, 3, ["NotCreated"])])
async def test_why_says_with_how_much_a_job_runs_that_may_start_with_less(
    world: World, tmp_path: Path, given: int, ready: int, unready: list[str]
) -> None:
    await lab(world)
    elastic = job("train", pods=8, status={**STARTED, "active": ready, "ready": ready, "succeeded": 2})
    elastic["spec"] |= {"parallelism": given, "completions": 20, "completionMode": "NonIndexed"}
    made = await world.put(elastic)
    room = admission("n1")
    room["podSetAssignments"][0]["count"] = given
    waiting = workload(made, {"conditions": [RESERVED, ADMITTED_], "admission": room})
    waiting["spec"]["podSets"][0] |= {"count": 8, "minCount": 2}
    uid = (await world.put(waiting))["metadata"]["uid"]
    for at in range(ready + 2):
        one = pod(f"train-{at}", **(READY if at < ready else DONE))
        one["metadata"]["labels"] = {NAMES.managed_label: "true", NAMES.workload_uid_label: uid}
        await world.put(one)
    answer = await world.ask().why("train", "ml")
    seen = answer.standing
    assert (seen.ready, seen.given, seen.pods, [one.reason for one in answer.unready]) == (ready, given, 8, unready)
    text = (await run(world, tmp_path, "why", "train", "-n", "ml")).stdout
    assert f"({ready} of {given} pods ready)" in text
    assert ("room for 3 of 8 pods at a time, for it may start with less" in text) is (given < 8)
    assert f" {ready}/{given} " in (await run(world, tmp_path, "jobs", "-n", "ml", "-o", "wide")).stdout


async def test_a_job_that_grows_is_told_of_by_the_workload_by_which_it_runs(world: World) -> None:
    """Kueue makes another one beside it."""
    await lab(world)
    made = await world.put(job("train", status=STARTED))
    await world.put(workload(made, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1")}))
    more = workload(made, waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (SHORT,))))
    more["metadata"]["name"] = "more"
    world.sandbox.clock = lambda: T0 + 1000
    await world.put(more)
    seen = (await world.ask().why("train", "ml")).standing
    assert (seen.workload, seen.state) == ("job-train", State.RUNNING)
    assert (await again(world.ask(), "train", "ml")).step == "restart"


READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
DONE, WAITS, BROKEN = {"phase": "Succeeded"}, {"phase": "Pending"}, {"phase": "Failed"}
PART = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
    "containerStatuses": [container(terminated={"reason": "Completed", "exitCode": 0})],
}
AT_A_TIME: dict[str, tuple[dict[str, Any], list[dict[str, Any]], int, list[tuple[str, int]]]] = {
    "all of a sweep": ({"succeeded": 40, "ready": 2}, [READY, READY, *[DONE] * 40], 2, []),
    "one of a sweep": ({"succeeded": 40, "ready": 1}, [READY, WAITS, *[DONE] * 40], 1, [("ContainerCreating", 1)]),
    "one, and one is to be made": ({"succeeded": 40, "ready": 1}, [READY, *[DONE] * 40], 1, [("NotCreated", 1)]),
    "one, and one with a container that is done": ({"succeeded": 40, "ready": 1}, [READY, PART, *[DONE] * 40], 2, []),
    "one, and one is done since": ({"succeeded": 40, "ready": 1}, [READY, *[DONE] * 41], 2, []),
    "the last of a sweep": ({"succeeded": 99, "ready": 1}, [READY, *[DONE] * 99], 2, []),
    "one, and one failed": ({"failed": 1, "ready": 1}, [READY, BROKEN], 1, [("Failed", 1), ("NotCreated", 1)]),
}


@pytest.mark.parametrize("name", AT_A_TIME)
async def test_how_many_pods_of_those_that_run_at_a_time_are_ready(world: World, name: str) -> None:
    status, pods, ready, unready = AT_A_TIME[name]
    await lab(world)
    sweep = job("train", status={**STARTED, **status})
    sweep["spec"] |= {"completions": 100, "completionMode": "NonIndexed"}
    made = await world.put(sweep)
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1")}
    uid = (await world.put(workload(made, started)))["metadata"]["uid"]
    for at, said in enumerate(pods):
        one = pod(f"train-{at}", **said)
        one["metadata"]["labels"] = {NAMES.managed_label: "true", NAMES.workload_uid_label: uid}
        await world.put(one)
    answer = await world.ask().why("train", "ml")
    assert (answer.standing.ready, answer.standing.pods) == (ready, 2)
    assert [(one.reason, one.count) for one in answer.unready] == unready
    (row,) = (await world.ask().jobs("ml")).rows
    assert row.ready is not None
    assert row.ready <= row.pods


SO_FAR: dict[str, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], str]] = {
    "nothing": ({}, {}, [], ""),
    "a pod failed": ({"backoffLimit": 6}, {"failed": 1}, [], "1 pod failed (backoffLimit 6)"),
    "indexes failed": (
        {"backoffLimit": 9, "backoffLimitPerIndex": 2},
        {"failed": 3},
        [],
        "3 pods failed (backoffLimit 9, backoffLimitPerIndex 2)",
    ),
    "evicted": (
        {},
        {},
        [
            {"reason": "Preempted", "underlyingCause": "InClusterQueue", "count": 1},
            {"reason": "Preempted", "underlyingCause": "InCohortReclamation", "count": 2},
            {"reason": "NodeFailures", "underlyingCause": "", "count": 1},
        ],
        "evicted 4 times (NodeFailures 1, Preempted 3)",
    ),
    "all begins anew": (
        {"failurePolicy": {"maxRestarts": 5}},
        {"restarts": 7, "restartsCountTowardsMax": 4},
        [{"reason": "PodsReadyTimeout", "underlyingCause": "", "count": 1}],
        "evicted once (PodsReadyTimeout 1); begun anew 7 times by its failurePolicy (4 of maxRestarts 5)",
    ),
}


@pytest.mark.parametrize("name", SO_FAR)
def test_what_went_wrong_so_far_is_counted(name: str) -> None:
    spec, status, evictions, told = SO_FAR[name]
    gang = {"status": {"schedulingStats": {"evictions": evictions}}}
    assert so_far(gang, {"spec": spec, "status": status}) == told


async def test_a_gang_runs_when_its_pods_do_whatever_its_status_says_yet(world: World, tmp_path: Path) -> None:
    await lab(world)
    made = await world.put(job("train", pods=1, status={**STARTED, "active": 1, "ready": 0, "failed": 2}))
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=1)}
    uid = (await world.put(workload(made, started)))["metadata"]["uid"]
    one = pod("train-0", **READY)
    one["metadata"]["labels"] = {NAMES.managed_label: "true", NAMES.workload_uid_label: uid}
    await world.put(one)
    shown = (await run(world, tmp_path, "why", "train", "-n", "ml")).stdout
    assert "train runs" in shown
    assert "(1 of 1 pods ready)" in shown
    assert re.search("so far +2 pods failed", shown)


async def test_why_says_which_pods_of_a_jobset_start_later_and_what_refuses_its_jobs(world: World) -> None:
    await lab(world)
    by = job("train", pods=1, status={})
    inner = {key: value for key, value in by["spec"].items() if key != "suspend"}
    sets = [{"name": name, "replicas": n, "template": {"spec": inner}} for name, n in (("prep", 1), ("train", 3))]
    sets[1]["dependsOn"] = [{"name": "prep", "status": "Complete"}]
    spec = {"replicatedJobs": sets}
    made = await world.put({**by, "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": spec})
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=4)}
    stands = workload({**made, "spec": {**inner, "parallelism": 4}}, started)
    stands["metadata"]["ownerReferences"][0] |= {"apiVersion": made["apiVersion"], "kind": "JobSet"}
    await world.put(stands)
    about = {"kind": "JobSet", "namespace": "ml", "name": "train", "uid": made["metadata"]["uid"]}
    said = {"reason": "JobCreationFailed", "type": "Warning", "message": 'Job "train-prep-0" is invalid'}
    meta = {"metadata": {"name": "e", "namespace": "ml"}, "involvedObject": about}
    await world.put({"apiVersion": "v1", "kind": "Event", **meta, **said})
    missing, later = (await world.ask().why("train", "ml")).unready
    assert (missing.reason, missing.count) == ("NotCreated", 1)
    assert missing.message == '1 of 1 pods do not exist yet: Job "train-prep-0" is invalid'
    assert (later.reason, later.count) == ("StartsLater", 3)


async def test_whoever_is_not_looked_at_is_told_where_it_is_said_why(world: World) -> None:
    """A controller that may not write says so in its log alone: the reason of the gang is what it cannot write."""
    await lab(world)
    await with_workload(world, job("train"), {})
    answer = await world.ask().why("train", "ml")
    assert answer.standing.detail == Detail.NEXT_CYCLE.value
    for line in ("write failed", "reason not written"):
        assert f"`{line}`" in answer.platform


@pytest.mark.parametrize("name", UNREADY)
async def test_why_a_started_gang_is_not_ready(world: World, tmp_path: Path, name: str) -> None:
    status, reason, message, advice = UNREADY[name]
    await lab(world)
    made = await world.put(job("train", pods=3, status={**STARTED, "active": 2, "ready": 1}))
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=3)}
    uid = (await world.put(workload(made, started)))["metadata"]["uid"]
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for one in (pod("train-0", **ready), pod("train-1", **status), pod("stranger", **status)):
        if one["metadata"]["name"] != "stranger":
            one["metadata"]["labels"] = {NAMES.managed_label: "true", NAMES.workload_uid_label: uid}
        await world.put(one)
    answer = await world.ask().why("train", "ml")
    assert (answer.standing.state, answer.standing.ready, answer.standing.pods) == (State.STARTING, 1, 3)
    bad, missing = answer.unready
    assert (bad.reason, bad.count, bad.pods, bad.nodes) == (reason, 1, ("train-1",), ("n1",))
    assert message in bad.message
    assert (missing.reason, missing.count) == ("NotCreated", 1)
    assert missing.message == "1 of 3 pods do not exist yet"
    assert advice in answer.owner
    assert ("relabelled" in answer.platform) is (reason == "Unschedulable")
    text = (await run(world, tmp_path, "why", "train", "-n", "ml")).stdout
    assert re.search(rf"1 +{reason} +train-1 on n1", text)
    world.denied = {"pods"}
    assert (await world.ask().why("train", "ml")).hidden == ("pods in namespace ml",)


@pytest.mark.parametrize(
    ("scheduler", "reason", "said"),
    [
        ("default-scheduler", "Pending", "kube-scheduler has not"),
        ("volcano", "OtherScheduler", "The scheduler volcano,"),
    ],
)
async def test_why_says_whose_scheduler_has_not_placed_a_pod(
    world: World, scheduler: str, reason: str, said: str
) -> None:
    await lab(world)
    made = await world.put(job("train", pods=1, status={**STARTED, "active": 1, "ready": 0}))
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=1)}
    uid = (await world.put(workload(made, started)))["metadata"]["uid"]
    one = pod("train-0", node="", phase="Pending")
    one["metadata"]["labels"] = {NAMES.managed_label: "true", NAMES.workload_uid_label: uid}
    one["spec"]["schedulerName"] = scheduler
    await world.put(one)
    answer = await world.ask().why("train", "ml")
    (told,) = answer.unready
    assert told.reason == reason
    assert said in told.message
    assert ("Leave `schedulerName` out" in answer.owner) is (reason == "OtherScheduler")


@pytest.mark.parametrize("name", ["kube-scheduler refuses it", "no image"])
async def test_why_a_gang_that_nodes_are_made_for_is_not_ready(world: World, name: str) -> None:
    await lab(world)
    made = await world.put(job("train", pods=1, status={**STARTED, "active": 1, "ready": 0}))
    given = admission("n1", pods=1)
    del given["podSetAssignments"][0]["topologyAssignment"]
    uid = (await world.put(workload(made, {"conditions": [RESERVED, ADMITTED_], "admission": given})))["metadata"][
        "uid"
    ]
    one = pod("train-0", **UNREADY[name][0])
    one["metadata"]["labels"] = {NAMES.managed_label: "true", NAMES.workload_uid_label: uid}
    await world.put(one)
    answer = await world.ask().why("train", "ml")
    _, reason, message, advice = UNREADY[name]
    assert [(bad.reason, bad.message) for bad in answer.unready] == [(reason, message)]
    to_come = reason == "Unschedulable"
    assert answer.owner.startswith("Wait: no nodes were reserved for the gang") is to_come
    assert (advice in answer.owner) is not to_come
    assert ("autoscaler" in answer.platform) is to_come
    assert "muster nodes" not in answer.platform


STOPPED = [condition("Evicted", True, "Deactivated", "Ran for its maximum of 60 s")]
HOLDS: dict[str, tuple[bool, bool, bool, str, str, str]] = {
    "the label": (True, False, False, "Deactivated", "label muster.dev/pause: true", "muster.dev/pause-"),
    "the label and what it wrote": (True, True, False, "Deactivated", "label muster.dev/pause", "muster.dev/pause-"),
    "label, switch and stopped queue": (True, True, True, "Deactivated", "label muster.dev/pause", "muster.dev/pause-"),
    "the switch": (False, True, False, "Deactivated", "Ran for its maximum", "muster requeue job/train -n ml"),
    "the switch and a stopped queue": (False, True, True, "Deactivated", "Ran for", "muster requeue job/train"),
    "a stopped queue": (False, False, True, "OnHold", "is stopped (Hold)", "muster resume localqueue/held -n ml"),
}


@pytest.mark.parametrize("name", HOLDS)
async def test_what_holds_a_job_back_and_who_lifts_it(world: World, tmp_path: Path, name: str) -> None:
    label, inactive, stopped, reason, message, advice = HOLDS[name]
    await lab(world)
    await world.put(own("LocalQueue", "held", {"clusterQueue": "team-a", "stopPolicy": "Hold"}, namespace="ml"))
    queue = "held" if stopped else "team-a"
    made = job("train", queue=queue)
    status = (
        {"conditions": STOPPED} if inactive else waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.QUOTA_SHORT, (SHORT,)))
    )
    await with_workload(world, paused(made) if label else made, status, active=not inactive, queue=queue)
    answer = await world.ask().why("train", "ml")
    state = State.PAUSED if label else State.WAITING
    assert (answer.standing.state, answer.standing.reason) == (state, reason)
    assert message in answer.standing.message
    assert advice in answer.owner + answer.platform
    assert ("spec.active" in answer.owner + answer.platform) is False


KEPT = Why(Reason.PLACEMENT_FAILED, Detail.CLAIMED, subject="Job web/big")
INACTIVE = [condition("Active", False, "FlavorNotFound", "references missing ResourceFlavor(s): h200")]
CIRCLE = [condition("Active", False, "CohortCycle", "Cohort lab is part of a cycle; remove the loop of parents")]
ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}
OVERTAKEN: dict[str, tuple[str, dict[str, Any] | None, str, str]] = {
    "its queue is not active": ("inactive", {}, "Misconfigured", "ClusterQueue q: references missing"),
    "its queue is being deleted": (
        "deleted",
        {},
        "Misconfigured",
        "ClusterQueue q: it is being deleted, and goes when no gang holds quota of it any more (now: 3)",
    ),
    "its cohorts are a circle": ("circle", {}, "Misconfigured", "ClusterQueue q: Cohort lab is part of a cycle"),
    "nothing": ("", {}, "TopologyPlacementFailed", "kept for Job web/big until"),
    "whoever room is kept for has ended": ("", ENDED, "PendingEvaluation", "Job web/big, for which the room it needs"),
    "and was deleted": ("", None, "PendingEvaluation", "was kept, has ended"),
    "and may not be seen": ("hidden", None, "TopologyPlacementFailed", "kept for Job web/big until"),
    "and is of a kind of others": ("AppWrapper", None, "TopologyPlacementFailed", "kept for AppWrapper web/big until"),
}


@pytest.mark.parametrize("name", OVERTAKEN)
async def test_what_contradicts_a_stored_sentence_comes_first(world: World, name: str) -> None:
    how, of_holder, reason, message = OVERTAKEN[name]
    await lab(world)
    said = {"inactive": INACTIVE, "circle": CIRCLE}.get(how, [])
    queue = own("ClusterQueue", "q", {"namespaceSelector": {}}, status={"conditions": said, "reservingWorkloads": 3})
    queue["metadata"]["finalizers"] = ["example.com/kept"]
    await world.put(queue)
    await world.put(own("LocalQueue", "q", {"clusterQueue": "q"}, namespace="ml"))
    if how == "deleted":
        await world.client.delete("/apis/muster.dev/v1beta1/clusterqueues/q")
    if of_holder is not None:
        holder = job("big", status=of_holder)
        holder["metadata"]["namespace"] = "web"
        await world.put(holder)
    kept = replace(KEPT, subject=f"{how} web/big") if how == "AppWrapper" else KEPT
    await with_workload(world, job("train", queue="q"), waiting(kept), queue="q")
    world.denied = {"big"} if how == "hidden" else set()
    answer = await world.ask().why("train", "ml")
    assert (answer.standing.state, answer.standing.reason) == (State.WAITING, reason)
    assert message in answer.standing.message
    assert (answer.standing.detail == Detail.COHORT_CYCLE.value) is (how == "circle")
    assert ("parentName" in answer.platform) is (how == "circle")
    assert not answer.hidden


@pytest.mark.parametrize("queue", ["team-a", "No_Queue"])
async def test_a_job_that_cannot_be_queued_says_why(world: World, tmp_path: Path, queue: str) -> None:
    """The controller made no Workload, and has told of it by an Event; the last one counts, before a queue that is not
    there."""
    await lab(world)
    made = await world.put(job("train", queue=queue))
    about = {"kind": "Job", "namespace": "ml", "name": "train", "uid": made["metadata"]["uid"]}
    for i, message in enumerate(("WorkloadPriorityClass 'a' does not exist", "WorkloadPriorityClass 'b' does not")):
        event = {"reason": "InvalidJob", "type": "Warning", "message": message, "involvedObject": about}
        meta = {"metadata": {"name": f"train.{i}", "namespace": "ml"}}
        await world.put({"apiVersion": "v1", "kind": "Event", **meta, **event})
    answer = await world.ask().why("train", "ml")
    assert answer.standing.state is State.HELD
    assert (answer.standing.reason, answer.standing.detail) == ("Misconfigured", Detail.INVALID.value)
    assert answer.standing.message == message
    assert "within a second" not in answer.means
    text = (await run(world, tmp_path, "why", "train", "-n", "ml", code=1)).stdout
    assert re.search(r"because +WorkloadPriorityClass 'b' does not", text)


async def test_a_job_that_its_namespace_refuses_is_told_when_its_events_are_gone(world: World, tmp_path: Path) -> None:
    await lab(world)
    meta, spec = {"name": "few", "namespace": "ml"}, {"hard": {f"requests.{GPU}": "12"}}
    await world.put({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec})
    await world.put(job("train"))
    text = (await run(world, tmp_path, "why", "train", "-n", "ml", code=1)).stdout
    assert re.search(rf"because +ResourceQuota 'few' allows 12 requests.{GPU} in the namespace", text)
    assert "within a second" not in text


def leads(renewed: int, holder: str = "replica") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": rfc3339(renewed)}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "muster-controller", "namespace": "muster-system"},
        "spec": spec,
    }


LEADERS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "nobody": (None, "there is no Lease muster-system/muster-controller"),
    "given up": (leads(NOW, ""), "was given up"),
    "long ago": (leads(NOW - 60_000), "was last renewed"),
    "a moment ago": (leads(NOW - 5_000), ""),
}


@pytest.mark.parametrize("name", LEADERS)
async def test_who_leads(world: World, name: str) -> None:
    lease, said = LEADERS[name]
    await lab(world)
    await with_workload(world, job("train"), {})
    if lease is not None:
        await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "muster-system"}})
        await world.put(lease)
    for answer in (await world.ask().why("train", "ml"), await world.ask().queues("ml"), await world.ask().jobs("ml")):
        assert (said in answer.leaderless) if said else not answer.leaderless
    world.denied = {"leases"}
    assert not (await world.ask().jobs("ml")).leaderless


async def test_why_with_the_rights_of_a_tenant(world: World, tmp_path: Path) -> None:
    """No ClusterQueues, Cohorts or Events: the reason is there all the same, and what is hidden is said."""
    await lab(world)
    await with_workload(world, job("train"), waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (SHORT,))))
    world.denied = {"clusterqueues", "cohorts", "events"}
    answer = await world.ask().why("train", "ml")
    assert answer.standing.detail == Detail.COHORT_SHORT.value
    assert answer.standing.cluster_queue == "team-a"
    assert answer.room == ()
    assert answer.hidden == ("clusterqueues", "cohorts", "events in namespace ml")
    text = (await run(world, tmp_path, "why", "train", "-n", "ml", code=1)).stdout
    assert "You may not see: clusterqueues, cohorts, events in namespace ml." in text


async def test_history_in_order(world: World) -> None:
    await lab(world)
    made = await world.put(job("train"))
    stored = await world.put(
        workload(
            made,
            {"conditions": [condition("Evicted", True, "PodsReadyTimeout", "1 of 2 pods were ready", T0 + 30_000)]},
        )
    )
    about = {"kind": "Job", "namespace": "ml", "name": "train"}
    for name, uid, reason, at, count in (
        ("e1", made["metadata"]["uid"], "Pending", T0 + 10_000, 3),
        ("e2", made["metadata"]["uid"], "QuotaReserved", T0 + 20_000, 1),
        ("e3", "an earlier job of this name", "Admitted", T0 + 1_000, 1),
    ):
        await world.put(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": "ml"},
                "involvedObject": {**about, "uid": uid},
                "reason": reason,
                "message": f"{reason} it is",
                "type": "Normal",
                "count": count,
                "firstTimestamp": rfc3339(at - 5_000),
                "lastTimestamp": rfc3339(at),
            }
        )
    answer = await world.ask().why("train", "ml")
    assert [(event.reason, event.count) for event in answer.history] == [
        ("Created", 1),
        ("Pending", 3),
        ("QuotaReserved", 1),
        ("PodsReadyTimeout", 1),
    ]
    assert stored["metadata"]["name"] == answer.standing.workload


async def test_what_is_not_there(world: World, tmp_path: Path) -> None:
    with pytest.raises(NotThere, match="no Job or JobSet 'train'"):
        await world.ask().why("train", "ml")
    with pytest.raises(NotThere, match=r"no kind of job .*a namespace is named by -n deployment$"):
        await world.ask().why("deployment/train", "ml")
    with pytest.raises(
        NotThere, match=r"'deployment.apps' is no kind of job that Muster governs: use one of job, jobset$"
    ):
        await world.ask().why("deployment.apps/train", "ml")
    result = await run(world, tmp_path, "why", "train", "-n", "ml", code=3)
    assert "there is no Job or JobSet" in result.stderr
    result = await run(world, tmp_path, "why", "train", "-o", "xml", code=2)
    assert "is not one of 'text'" in result.stderr
    world.denied = {"jobs", "jobsets"}
    with pytest.raises(NotThere, match="you may not see Job ml/train"):
        await world.ask().why("train", "ml")
    (tmp_path / "kubeconfig").write_text("{}", encoding="utf-8")
    result = await run(world, tmp_path, "why", "train", code=4)
    assert "kubeconfig" in result.stderr


async def test_the_group_that_is_served(world: World) -> None:
    assert await names_of(world.client) == Names()
    assert await names_of(world.client, "kueue.x-k8s.io") == Names("kueue.x-k8s.io")
    async with Sandbox(with_actors=False) as bare, Client.plain(bare.url) as client:
        with pytest.raises(NotThere, match="CRDs"):
            await names_of(client)


# ---------------------------------------------------------------- queues, jobs, nodes


async def test_the_tree_of_queues(world: World, tmp_path: Path) -> None:
    await lab(world)
    answer = await world.ask().queues("ml")
    shape = [(row.depth, row.kind, row.name) for row in answer.rows]
    assert shape == [
        (0, "Cohort", "lab"),
        (1, "ClusterQueue", "team-a"),
        (2, "LocalQueue", "team-a"),
        (1, "ClusterQueue", "team-b"),
    ]
    numbers = {
        row.name: [(room.nominal, room.used, room.borrowed, room.lent, room.free) for room in row.room]
        for row in answer.rows
        if row.kind != "LocalQueue"
    }
    assert numbers == {
        "lab": [(32, 32, 0, 0, 0)],
        "team-a": [(16, 8, 0, 8, 0)],
        "team-b": [(16, 24, 8, 0, 0)],
    }
    assert {row.name: row.share for row in answer.rows if row.kind == "ClusterQueue"} == {"team-a": 0, "team-b": 250}
    text = (await run(world, tmp_path, "queues", "-A")).stdout
    assert re.search(r"team-a +h100 +nvidia.com/gpu +8 +16 +#{10}-{10}\|", text)
    assert re.search(r"team-b +h100 +nvidia.com/gpu +24 +16 +#+\|\++", text)
    assert "> web/team-b" in text
    named = (await run(world, tmp_path, "queues", "-n", "ml", "-o", "name")).stdout.split()
    assert named == ["cohort/lab", "clusterqueue/team-a", "localqueue/team-a", "clusterqueue/team-b"]
    assert "SHARE" in (await run(world, tmp_path, "queues", "-o", "wide")).stdout
    data = yaml.safe_load((await run(world, tmp_path, "queues", "-n", "ml", "-o", "yaml")).stdout)
    assert data["rows"][1]["room"][0]["lent"] == 8


@pytest.mark.parametrize("held", [True, False])
async def test_queues_say_that_jobs_are_not_held(world: World, tmp_path: Path, held: bool) -> None:
    await lab(world)
    told = "a labelled Job was not held (policy)"
    proof = condition("JobsHeld", held, "HeldByPolicy" if held else "NotHeldByPolicy", told)
    made = cluster_queue("proven", 8, 0)
    await world.put({**made, "status": {**made.get("status", {}), "conditions": [proof]}})
    world.denied = {"leases"}  # else that nobody leads is all that is said
    for arguments in (("queues",), ("top",)):
        said = (await run(world, tmp_path, *arguments)).stdout
        assert ("Jobs are not held: a labelled Job was not held" in said) is not held, said
    answer = await world.ask().queues("ml")
    assert answer.unheld == ("" if held else f"Jobs are not held: {told}.")
    world.denied = {"clusterqueues"}
    assert not (await world.ask().queues("ml")).unheld


async def test_the_tree_counts_what_is_held_of_a_flavor_that_its_queue_names_no_more(world: World) -> None:
    await lab(world)
    renamed = (await world.client.get("/apis/muster.dev/v1beta1/clusterqueues/team-b"))["spec"]["resourceGroups"]
    renamed[0]["flavors"][0]["name"] = "hopper"
    await world.client.merge_patch(
        "/apis/muster.dev/v1beta1/clusterqueues/team-b", {"spec": {"resourceGroups": renamed}}
    )
    rows = {row.name: row for row in (await world.ask().queues("ml")).rows if row.kind != "LocalQueue"}
    assert [(room.flavor, room.nominal, room.used, room.borrowed) for room in rows["team-b"].room] == [
        ("hopper", 16, 0, 0),
        ("h100", 0, 24, 24),
    ]
    assert {room.flavor: room.used for room in rows["lab"].room} == {"h100": 32, "hopper": 0}


async def test_a_cohort_shows_what_all_its_members_have_and_hold(world: World, tmp_path: Path) -> None:
    """What a lending limit keeps to its owner too: as the metrics and the status of the Cohort count it."""
    await lab(world)
    kept = (await world.client.get("/apis/muster.dev/v1beta1/clusterqueues/team-a"))["spec"]["resourceGroups"]
    kept[0]["flavors"][0]["resources"][0]["lendingLimit"] = "4"
    await world.client.merge_patch("/apis/muster.dev/v1beta1/clusterqueues/team-a", {"spec": {"resourceGroups": kept}})
    rows = {row.name: row for row in (await world.ask().queues("ml")).rows if row.kind == "Cohort"}
    assert [(room.nominal, room.used, room.borrowed) for room in rows["lab"].room] == [(32, 32, 0)]
    assert (rows["lab"].pending, rows["lab"].admitted) == (2, 4)
    shown = (await run(world, tmp_path, "queues")).stdout
    assert re.search(r"lab +h100 +nvidia.com/gpu +32 +32 +#{20}\| +2 +4 *\n", shown)


async def test_who_borrows_with_weight_0_has_an_infinite_share(world: World, tmp_path: Path) -> None:
    """The number that stands for it in a status, 9223372036854775807, is none that people read."""
    await lab(world)
    path = "/apis/muster.dev/v1beta1/clusterqueues/team-b"
    await world.client.merge_patch(path, {"spec": {"fairSharing": {"weight": "0"}}})
    shown = (await run(world, tmp_path, "queues", "team-b", "-o", "wide")).stdout
    assert re.search(r"team-b +h100 .* infinite *\n", shown), shown


NAMED: dict[str, tuple[list[str], list[str]]] = {
    "a name": (["team-b"], ["clusterqueue/team-b"]),
    "a queue and its local queue": (["team-a"], ["clusterqueue/team-a", "localqueue/team-a"]),
    "several, in the order of the tree": (
        ["team-b", "clusterqueue/team-a"],
        ["clusterqueue/team-a", "localqueue/team-a", "clusterqueue/team-b"],
    ),
    "one kind": (["lq/team-a"], ["localqueue/team-a"]),
    "as kubectl names it": ([f"lq.{NAMES.version}.{NAMES.group}/team-a"], ["localqueue/team-a"]),
    "a cohort and one of its own": (
        ["cohort/lab", "team-a"],
        ["cohort/lab", "clusterqueue/team-a", "localqueue/team-a", "clusterqueue/team-b"],
    ),
    "in all namespaces": (["team-b", "-A"], ["clusterqueue/team-b", "localqueue/team-b"]),
}


@pytest.mark.parametrize(("asked", "shown"), NAMED.values(), ids=NAMED)
async def test_queues_that_are_named(world: World, tmp_path: Path, asked: list[str], shown: list[str]) -> None:
    await lab(world)
    where = [] if "-A" in asked else ["-n", "ml"]
    assert (await run(world, tmp_path, "queues", *asked, *where, "-o", "name")).stdout.split() == shown


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("nobody", "there is no Cohort or ClusterQueue or LocalQueue 'nobody' in namespace 'ml'"),
        ("cohort/team-a", "there is no Cohort 'team-a'\n"),
        ("lq/team-b", "there is no LocalQueue 'team-b' in namespace 'ml'"),
        ("job/train", "'job' is no kind of queue: use one of cohort, clusterqueue, localqueue"),
        ("clusterqueue.x.example/team-a", "'clusterqueue.x.example' is no kind of queue"),
    ],
)
async def test_a_queue_that_is_not_there_is_named(world: World, tmp_path: Path, asked: str, told: str) -> None:
    await lab(world)
    assert told in (await run(world, tmp_path, "queues", "team-a", asked, "-n", "ml", code=3)).stderr


async def test_queues_and_jobs_of_a_tenant(world: World, tmp_path: Path) -> None:
    await lab(world)
    world.denied = {"clusterqueues", "cohorts", "localqueues*"}
    answer = await world.ask().queues("ml")
    assert [(row.kind, row.namespace, row.name) for row in answer.rows] == [("LocalQueue", "ml", "team-a")]
    assert answer.hidden == ("clusterqueues", "cohorts")
    on_screen = (await run(world, tmp_path, "top", "-n", "ml")).stdout
    assert "> ml/team-a" in on_screen, "a team's own queues, where it sees no others"
    assert "> ml/team-a" in (await run(world, tmp_path, "queues", "team-a", "-n", "ml")).stdout
    hidden = await run(world, tmp_path, "queues", "team-b", "-n", "ml", code=4)
    assert "you may not see clusterqueues, cohorts" in hidden.stderr
    world.denied |= {"workloads*", "jobs*", "jobsets*"}
    everywhere = await run(world, tmp_path, "jobs", "-A")
    assert "You may not see: jobs of all namespaces, jobsets of all namespaces, workloads of all" in everywhere.stdout
    assert "with -n" in everywhere.stdout


async def test_whose_job_was_deleted_without_its_pods_is_told_apart(world: World, tmp_path: Path) -> None:
    """The collector of garbage takes the owner off its Workload."""
    await lab(world)
    runs = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")}
    await with_workload(world, job("train", status=STARTED), runs)
    path = f"/apis/{NAMES.api_version}/namespaces/ml/workloads"
    (left,) = [one for one in (await world.client.get(path))["items"] if one["metadata"].get("ownerReferences")]
    name = left["metadata"]["name"]
    await world.client.merge_patch(f"{path}/{name}", {"metadata": {"ownerReferences": None}})
    await world.client.delete("/apis/batch/v1/namespaces/ml/jobs/train", propagation="Background")
    (row,) = (await world.ask().jobs("ml")).rows
    assert (row.state, row.reason) == (State.LEAVING, "Orphaned")
    assert re.search(
        rf"workload/{name} .* leaving .* Orphaned", (await run(world, tmp_path, "jobs", "-n", "ml")).stdout
    )
    with pytest.raises(NotThere, match=f"kubectl describe workloads.muster.dev {name} -n ml"):
        await world.ask().why(f"workload/{name}", "ml")


async def test_a_job_of_another_group_is_no_job_of_that_name(world: World, tmp_path: Path) -> None:
    """The page, the log and conditions call it so, too."""
    await lab(world)
    made = workload(job("train") | {"metadata": {"name": "train", "namespace": "ml", "uid": "u-1"}}, {})
    made["metadata"]["ownerReferences"][0]["apiVersion"] = "batch.volcano.sh/v1alpha1"
    made["metadata"]["name"] = "other-train"
    await world.put(made)
    named = (await run(world, tmp_path, "jobs", "-n", "ml", "-o", "name")).stdout.split()
    assert named == ["job.batch.volcano.sh/train"]
    runs = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")}
    await with_workload(world, job("train", status=STARTED), runs)
    for command in (["why"], ["requeue", "--yes"]):
        told = (await run(world, tmp_path, *command, *named, "-n", "ml", code=3)).stderr
        assert "job.batch.volcano.sh/train is of another group" in told
        assert "kubectl describe job.batch.volcano.sh train -n ml" in told
    stored = await world.client.get("/apis/batch/v1/namespaces/ml/jobs/train")
    assert NAMES.pause_label not in stored["metadata"]["labels"]


@pytest.mark.parametrize(
    ("called", "known"),
    [
        ("job.batch", True),
        ("Jobs.v1.batch", True),
        ("jobs.v2.batch", False),
        ("job.v1.batch.volcano.sh", False),
        ("job.jobset.x-k8s.io", False),
    ],
)
async def test_a_job_is_called_as_kubectl_calls_it(world: World, called: str, known: bool) -> None:
    await lab(world)
    await world.put(job("train"))
    if known:
        assert (await world.ask().why(f"{called}/train", "ml")).standing.name == "train"
    else:
        with pytest.raises(NotThere):
            await world.ask().why(f"{called}/train", "ml")


async def test_jobs_in_their_order(world: World, tmp_path: Path) -> None:
    await lab(world)
    why = waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (SHORT,)))
    await with_workload(world, job("low"), why)
    await with_workload(world, job("high"), why, priority=10)
    await with_workload(
        world,
        job("runs", status=STARTED),
        {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")},
    )
    fresh = job("fresh")
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "u-1", "controller": True}
    fresh["metadata"]["ownerReferences"] = [cron]  # a job as any other, unlike those of a JobSet
    await world.put(fresh)
    await world.put(job("foreign", queue=""))
    answer = await world.ask().jobs("ml")
    assert [(row.name, row.state, row.position, row.waiting) for row in answer.rows] == [
        ("high", State.WAITING, 1, 2),
        ("low", State.WAITING, 2, 2),
        ("fresh", State.HELD, None, None),
        ("runs", State.RUNNING, None, None),
    ]
    text = (await run(world, tmp_path, "jobs", "-n", "ml")).stdout
    assert re.search(r"job/high +team-a +waiting +1/2 .* CohortShort", text)
    assert re.search(r"job/runs +team-a +running .* n1, n2", text)
    assert "2/2" in (await run(world, tmp_path, "jobs", "-A", "-o", "wide")).stdout
    named = (await run(world, tmp_path, "jobs", "-n", "ml", "-o", "name")).stdout.split()
    assert named[0] == "job/high"
    of_queue = (await run(world, tmp_path, "jobs", "-A", "--cluster-queue", "team-a")).stdout
    assert all(name in of_queue for name in ("job/high", "job/fresh", "job/runs"))
    assert not (await world.ask().jobs(None, "team-b")).rows
    await world.put(own("ClusterQueue", "unused", {}))
    for asked in (lambda name: world.ask().jobs(None, name), lambda name: world.ask().sums("ml", "queue", name)):
        assert not (await asked("unused")).rows, "nobody's LocalQueue points there, and it is there"
        with pytest.raises(NotThere, match="there is no ClusterQueue 'team-z'"):
            await asked("team-z")
    world.denied = {"clusterqueues", "localqueues*"}
    assert (await world.ask().sums("ml", "queue", "team-a")).rows, "of one's own namespace the LocalQueues may be seen"
    with pytest.raises(NotSeen, match="no LocalQueue in namespace 'ml' points to a ClusterQueue 'team-z', and you may"):
        await world.ask().jobs("ml", "team-z")
    world.denied = set()
    empty = (await run(world, tmp_path, "jobs", "-n", "web")).stdout
    assert "No jobs that name a queue in namespace web: -A shows those of all namespaces." in empty
    world.denied = {"jobs"}
    hidden = {row.name: row.state for row in (await world.ask().jobs("ml")).rows}
    assert hidden == {"high": State.WAITING, "low": State.WAITING, "runs": State.STARTING}, "by their Workloads alone"


async def test_the_map_of_nodes(world: World, tmp_path: Path) -> None:
    """One gang reserved on n1 whose pods are not there yet, a stranger's pod on n2, n3 cordoned, n4 free."""
    await lab(world)
    await fleet(world)
    made = job("runs", pods=1, status=STARTED)
    await with_workload(world, made, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=1)})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": "web"},
        "spec": {**template(3)["spec"], "nodeName": "n2"},
    }
    await world.put(pod)
    answer = await world.ask().nodes()
    assert {row.name: dict(row.free)[GPU] for row in answer.rows} == {"n1": 0, "n2": 5, "n3": 8, "n4": 8}
    gangs = {row.name: [(who, dict(held)) for who, held in row.gangs if held] for row in answer.rows}
    assert gangs["n1"] == [("ml/runs", {GPU: 8})]
    assert gangs["n2"] == [("others", {GPU: 3})]
    assert {(size.flavor, size.per_pod, size.pods) for size in answer.largest} == {
        ("h100", ((GPU, 1),), 13),
        ("h100", ((GPU, 8),), 1),
    }
    text = (await run(world, tmp_path, "nodes", "--per-pod", f"{GPU}=4")).stdout
    assert re.search(r"n1 +h100 +nvidia.com/gpu +0 +8 +#{8} +ml/runs 8", text)
    assert "n3 (cordoned)" in text
    assert re.search(r"h100 +3 +4 nvidia.com/gpu each", text)
    await run(world, tmp_path, "nodes", "--per-pod", "many", code=2)
    world.denied = {"nodes"}
    await run(world, tmp_path, "nodes", code=4)


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> dict[str, Any]:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


AILING: dict[str, tuple[dict[str, Any], str]] = {
    "a taint": (
        {"spec": {"taints": [taint("maintenance"), taint("slow", "PreferNoSchedule")]}},
        "n (taint maintenance)",
    ),
    "one that its flavor names": (
        {"spec": {"taints": [taint("pool", value="gpu"), taint("spot", "NoExecute")]}},
        "n tainted nvidia",
    ),
    "one that it does not": ({"spec": {"taints": [taint("pool", value="cpu")]}}, "n (taint pool)"),
    "what a cordon adds": (
        {"spec": {"unschedulable": True, "taints": [taint("node.kubernetes.io/unschedulable")]}},
        "n (cordoned)",
    ),
    "what a silent kubelet adds": (
        {
            "spec": {"taints": [taint("node.kubernetes.io/unreachable", "NoExecute"), taint("mine")]},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        },
        "n (not ready, taint mine)",
    ),
    "a full disk": (
        {"spec": {"taints": [taint("node.kubernetes.io/disk-pressure")]}},
        "n (taint node.kubernetes.io/disk-",
    ),
    "broken devices": ({"status": {"capacity": {GPU: "8", "cpu": "96"}}}, "n (3 nvidia.com/gpu not allocatable)"),
    "all of them broken": (
        {"status": {"capacity": {GPU: "8"}, "allocatable": {GPU: "0", "cpu": "64", "pods": "110"}}},
        "n (8 nvidia.com/gpu not allocatable)",
    ),
}


@pytest.mark.parametrize("name", AILING)
async def test_the_map_says_what_ails_a_node(world: World, tmp_path: Path, name: str) -> None:
    await lab(world)
    spec = {
        "nodeLabels": {"pool": "gpu"},
        "nodeTaints": [taint("pool", value="gpu")],
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }
    await world.put(own("ResourceFlavor", "tainted", spec))
    more, said = AILING[name]
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"pool": "gpu"}},
        "spec": more.get("spec", {}),
        "status": {
            "allocatable": {GPU: "5", "cpu": "64", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
            **more.get("status", {}),
        },
    }
    await world.put(node)
    assert said in " ".join((await run(world, tmp_path, "nodes")).stdout.split())


# ---------------------------------------------------------------- lint


async def test_lint_of_a_cluster(world: World, tmp_path: Path) -> None:
    await lab(world)
    await fleet(world)
    await world.put(own("LocalQueue", "lost", {"clusterQueue": "team-c"}, namespace="ml"))
    found = json.loads((await run(world, tmp_path, "lint", "--cluster", "-o", "json", code=1)).stdout)
    assert {(finding["rule"], finding["object"]) for finding in found} == {("queue-missing", "LocalQueue ml/lost")}
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "c.yaml").write_text(yaml.safe_dump(own("ClusterQueue", "team-c", {"namespaceSelector": {}})))
    text = (await run(world, tmp_path, "lint", str(extra), "--cluster", code=1)).stdout
    assert "queue-missing" not in text
    assert f"{extra / 'c.yaml'}:" in text
    assert "queue-without-quota" in text


async def test_lint_of_a_cluster_counts_on_no_nodes_for_what_its_configuration_makes(
    world: World, tmp_path: Path
) -> None:
    await lab(world)
    await fleet(world)
    credits_ = {"name": "example.com/credits", "nominalQuota": 100}
    group = {"coveredResources": ["example.com/credits"], "flavors": [{"name": "h100", "resources": [credits_]}]}
    await world.put(own("ClusterQueue", "team-c", {"namespaceSelector": {}, "resourceGroups": [group]}))
    await world.put(local_queue("team-c", "team-c"))
    assert "quota-above-nodes" in (await run(world, tmp_path, "lint", "--cluster", code=1)).stdout
    transformed = {"input": GPU, "strategy": "Retain", "outputs": {"example.com/credits": "3"}}
    config = yaml.safe_dump({"resources": {"transformations": [transformed]}})
    meta = {"name": "muster-controller", "namespace": "muster-system"}
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "muster-system"}})
    await world.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.yaml": config}})
    assert "quota-above-nodes" not in (await run(world, tmp_path, "lint", "--cluster")).stdout


async def test_lint_without_rights(world: World, tmp_path: Path) -> None:
    await lab(world)
    world.denied = {"nodes"}
    result = await run(world, tmp_path, "lint", "--cluster")
    assert "you may not see nodes: what they hold was not judged" in result.stderr
    world.denied = {
        *("nodes", "namespaces", "priorityclasses", "clusterqueues", "cohorts", "localqueues"),
        *("resourceflavors", "topologies", "admissionchecks"),
    }
    await run(world, tmp_path, "lint", "--cluster", code=4)


def test_what_is_wrong_in_the_same_way_is_said_once() -> None:
    resource = [{"name": name, "nominalQuota": 8, "borrowingLimit": 1} for name in ("cpu", "memory", GPU)]
    groups = [{"coveredResources": ["cpu", "memory", GPU], "flavors": [{"name": "h100", "resources": resource}]}]
    text = yaml.safe_dump(own("ClusterQueue", "alone", {"namespaceSelector": {}, "resourceGroups": groups}))
    documents, _ = read(text, "a.yaml")
    found = [finding for finding in judged(documents) if finding.rule == "limit-without-cohort"]
    console = tell.console(width=200)
    with console.capture() as said:
        console.print(tell.findings(found))
    assert len(found) == 3
    assert said.get().count("there is nobody to borrow from") == 1
    assert f"the same at line {found[1].line}, line {found[2].line}" in said.get()


async def test_lint_codes(world: World, tmp_path: Path) -> None:
    await run(world, tmp_path, "lint", code=2)
    await run(world, tmp_path, "lint", str(tmp_path / "nowhere.yaml"), code=2)
    (tmp_path / "fine.yaml").write_text("kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n")
    assert "Nothing found" in (await run(world, tmp_path, "lint", str(tmp_path / "fine.yaml"))).stdout


# ---------------------------------------------------------------- reasons

_SHORT = {
    "pod_set": "main",
    "flavor": "h100",
    "resource": GPU,
    "requested": 16,
    "nominal": 16,
    "used": 8,
    "borrowable": 16,
    "limited_by": "lab",
}


def said_of(detail: Detail) -> tuple[Reason, str]:
    """A reason and the sentence that stand for a detail."""
    under = DETAILS[detail].under
    reason = under[0]
    if detail in (
        Detail.NODES_SHORT,
        Detail.NO_NODES,
        Detail.NEVER_FITS_NODES,
        Detail.NODES_TAKEN,
        Detail.NODES_UNUSABLE,
    ):
        return reason, sentence(Why(reason, detail, misfits=(Misfit("main", "h100", 4, 2, detail),)))
    if detail is Detail.CONSTRAINT_REFUSED:
        misfit = Misfit("main", "h100", 4, 0, detail, message="the template spreads over hosts")
        return reason, sentence(Why(reason, detail, misfits=(misfit,)))
    if reason in (Reason.NO_MATCHING_FLAVOR, Reason.EXCEEDS_MAX_QUOTA) or detail in (
        Detail.QUOTA_SHORT,
        Detail.BORROWING_LIMIT,
        Detail.COHORT_SHORT,
    ):
        return reason, sentence(Why(reason, detail, (Shortfall(detail=detail, **_SHORT),)))
    if detail is Detail.CHECKS_PENDING:
        return reason, sentence(Why(reason, detail))
    subject = {
        Detail.COHORT_CYCLE: "team-a: Cohort lab is part of a cycle; remove the loop of parents",
        Detail.CLUSTER_QUEUE_INACTIVE: "team-a: references missing ResourceFlavor(s): h100",
        Detail.INVALID: "pod set main: a negative amount",
        Detail.VOLUME_PENDING: "PersistentVolumeClaim data does not exist in namespace ml; its pods name it",
    }.get(detail, "team-a")
    return reason, sentence(Why(reason, detail, subject=subject, until=NOW))


@pytest.mark.parametrize("detail", [detail for detail in Detail if detail is not Detail.NONE])
def test_the_detail_is_read_back_from_its_sentence(detail: Detail) -> None:
    reason, message = said_of(detail)
    assert detail_of(reason, message) is detail, message


@pytest.mark.parametrize("reason", DETAILS[Detail.CLAIMED].under)
@pytest.mark.parametrize("subject", ["it", "team-a/first"])
@pytest.mark.parametrize("until", [NOW, 0])
def test_room_is_kept_for_another_or_for_itself(reason: Reason, subject: str, until: int) -> None:
    said = sentence(Why(reason, Detail.CLAIMED, subject=subject, until=until))
    assert detail_of(reason, said) is Detail.CLAIMED, said


def test_the_table_of_reasons_is_total() -> None:
    assert set(REASONS) == set(Reason)
    assert set(DETAILS) == set(Detail)
    assert all(reason_of(reason.value) is reason for reason in Reason)
    assert reason_of("SomebodyElses") is None
    text = reference()
    for entry in (*Reason, *Detail, *EvictReason):
        assert entry.value in text
    for target in re.findall(r"\]\(#([a-z]+)\)", text):
        assert re.search(rf"^### {target}$", text, re.MULTILINE | re.IGNORECASE), target


def test_every_word_for_an_eviction_is_explained() -> None:
    """Those that the code names; a queue that stops has its kind in front."""
    sources = "".join(Path(f"admission/controller/{name}.py").read_text() for name in ("lifecycle", "actuate"))
    words = set(re.findall(r'EvictWorkload\(\s*"(\w+)"', sources)) | {"ClusterQueueStopped", "LocalQueueStopped"}
    causes = set(re.findall(r'DEACTIVATED, [^)]*cause="(\w+)"|cause = "(\w+)"', sources))
    words |= {f"DeactivatedDueTo{one or other}" for one, other in causes} | {"Deactivated"}
    words |= {evicted_as(reason)[0] for reason in EvictReason if evicted_as(reason)[1]}
    assert set(EVICTED) == words
    assert not set(EVICTED) & ({reason.value for reason in Reason} - {"Deactivated"} | {one.value for one in Detail})
    for word in words:
        told = CliRunner().invoke(cli, ["explain-reasons", word.lower()])
        assert (told.exit_code, told.stdout.partition(":")[0]) == (0, word)


def test_the_reference_is_the_code_s() -> None:
    assert Path("docs/reasons.md").read_text(encoding="utf-8") == reference()
    runner = CliRunner()
    assert runner.invoke(cli, ["explain-reasons", "--markdown"]).stdout == reference()
    one = runner.invoke(cli, ["explain-reasons", "cohortshort"])
    assert one.stdout.startswith("CohortShort: ")
    wrong = runner.invoke(cli, ["explain-reasons", "CohortShrt"])
    assert wrong.exit_code == 3
    assert "did you mean CohortShort?" in wrong.stderr


AGES = {0: "0s", 119: "119s", 120: "2m", 7199: "119m", 7200: "2h0m", 12_000: "3h20m", 100_000: "27h", 200_000: "2d"}


@pytest.mark.parametrize("seconds", AGES)
def test_ages(seconds: int) -> None:
    assert tell.age(0, seconds * 1000) == AGES[seconds]
    assert tell.age(5000, 0) == "0s"
