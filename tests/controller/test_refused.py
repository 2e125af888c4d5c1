"""A gang that was started and whose pods the API server refuses: it is told so, and gives back what it holds."""

from __future__ import annotations

import pytest
from aiohttp import web

from admission.controller.lifecycle import Next, next_step
from admission.jobs.kinds import JOBSET
from admission.jobs.values import rfc3339
from tests.controller.lab import (
    ADMITTED_,
    NOW,
    RESERVED,
    T0,
    Json,
    World,
    admission,
    cluster_queue,
    job,
    local_queue,
    own,
    workload,
)
from tests.controller.test_follows import entry
from tests.controller.test_keep import NODE, running, until
from tests.controller.test_out_of_stock import evicted, write_status

QUOTA = 'pods "train-0" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4'
STARTED: Json = {"active": 0, "ready": 0, "startTime": rfc3339(T0)}


async def a_gang(world: World, kind: str) -> Json:
    """A Job, or a JobSet of one, that was admitted a quarter of an hour ago and has no pods. The Job, as stored."""
    for one in (own("ResourceFlavor", "h100"), cluster_queue("team-a", 64), local_queue("main", "team-a"), NODE):
        await world.put(one)
    made = job("train", "main", status=STARTED)
    stands: Json
    if kind == JOBSET.kind:
        inner = {key: value for key, value in made["spec"].items() if key != "suspend"}
        parent = await world.put({
            "apiVersion": JOBSET.api_version, "kind": kind, "metadata": {**made["metadata"], "name": "set"},
            "spec": {"replicatedJobs": [{"name": "main", "replicas": 1, "template": {"spec": inner}}]},
        })  # fmt: skip
        owner = {"apiVersion": JOBSET.api_version, "kind": kind, "name": "set", "uid": parent["metadata"]["uid"]}
        made["metadata"] |= {"labels": {"jobset.sigs.k8s.io/jobset-name": "set"}}
        made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        made = await world.put(made)
        stands = workload({**parent, "spec": made["spec"]}, {}, queue="main")
        stands["metadata"]["ownerReferences"][0] |= {"apiVersion": JOBSET.api_version, "kind": kind}
    else:
        made = await world.put(made)
        stands = workload(made, {}, queue="main")
    held = {"conditions": [RESERVED, ADMITTED_], "admission": admission(NODE["metadata"]["name"])}
    await write_status(world, await world.put(stands), held)
    return made if kind == "Job" else parent | {"child": made}


async def said_of(world: World, about: Json, reason: str, *messages: str) -> None:
    of = {"kind": about["kind"], "namespace": "ml", "name": about["metadata"]["name"], "uid": about["metadata"]["uid"]}
    for number, said in enumerate(messages):
        at = rfc3339(NOW - 60_000 + number * 1000)
        meta = {"name": f"{reason.lower()}-{number}", "namespace": "ml"}
        event = {"involvedObject": of, "reason": reason, "message": said, "type": "Warning", "lastTimestamp": at}
        await world.put({"apiVersion": "v1", "kind": "Event", "metadata": meta, **event})


@pytest.mark.parametrize(
    ("kind", "speaks", "reason", "said", "told"),
    [
        ("Job", "Job", "FailedCreate", f"Error creating: {QUOTA}", QUOTA),
        ("Job", "Job", "FailedCreate", f"(combined from similar events): Error creating: {QUOTA}", QUOTA),
        ("JobSet", "child", "FailedCreate", f"Error creating: {QUOTA}", QUOTA),
        ("JobSet", "JobSet", "JobCreationFailed", "jobs.batch is forbidden", "jobs.batch is forbidden"),
    ],
)
async def test_who_is_refused_its_pods_is_told_and_leaves(
    world: World, kind: str, speaks: str, reason: str, said: str, told: str
) -> None:
    made = await a_gang(world, kind)
    await said_of(world, made.get(speaks, made), reason, "an older one", said)
    async with running(world):
        left = entry(await until(lambda: evicted(world)), "Evicted")
    wanted = f"Only 0 of its 2 pods are there, and the API server refuses more: {told}"
    assert (left["reason"], left["message"]) == ("PodsReadyTimeout", wanted)


@pytest.mark.parametrize("what", ["another's", "something else", "it may not be read"])
async def test_who_is_not_known_to_be_refused_has_its_time(world: World, what: str) -> None:
    made = await a_gang(world, "Job")
    if what == "another's":
        made = {"kind": "Job", "metadata": {"name": "train", "uid": "of one that had this name before"}}
    await said_of(world, made, "FailedMount" if what == "something else" else "FailedCreate", QUOTA)
    world.denied = {"GET events"} if what == "it may not be read" else set()
    async with running(world) as controller:

        async def looked() -> bool:
            return controller.world.sight(("Job", "ml", "train"), NOW).pods.refusal is not None

        await until(looked)
        due = next_step(controller.world.sight(("Job", "ml", "train"), NOW), controller.settings, NOW)
    assert due == Next(None, NOW + 300_000)
    assert await evicted(world) is None


async def test_of_events_without_end_some_are_read(world: World) -> None:
    """Anybody who makes jobs may make Events of them, and each gang that lacks pods has them read."""
    made = await a_gang(world, "Job")
    about = {"kind": "Job", "namespace": "ml", "name": "train", "uid": made["metadata"]["uid"]}
    at = {"lastTimestamp": rfc3339(NOW - 60_000)}
    page = [{"metadata": {"name": f"e-{n}"}, "involvedObject": about, "message": QUOTA, **at} for n in range(500)]
    asked = []

    def endless(request: web.Request) -> web.Response | None:
        if request.method != "GET" or not request.path.endswith("/events"):
            return None
        asked.append(request.path)
        more = {"continue": "more"} if len(asked) < 200 else {}
        return web.json_response({"metadata": {"resourceVersion": "1", **more}, "items": page})

    world.sandbox.faults.append(endless)
    async with running(world):
        left = entry(await until(lambda: evicted(world)), "Evicted")
    assert left["message"].endswith(QUOTA), "what was read counts"
    assert len(asked) <= 20
