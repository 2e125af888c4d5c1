"""What was decided and could not be written counts no more; what may have been written counts until that is known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from admission.controller.actuate import Options
from admission.controller.app import Controller
from admission.controller.lifecycle import Settings
from admission.controller.world import ORPHAN
from admission.engine.model import KUEUE, Admission, Admit, Assumed, Decision, Evict, EvictReason, Put, Workload
from admission.jobs.kinds import JobKey
from admission.kube.client import Client, Unavailable
from admission.names import KUEUE_GROUP, Names
from tests.controller.lab import NAMES, World, cluster_queue, job, local_queue, own
from tests.controller.test_keep import NODE, running, until

GANG = Workload(namespace="team", name="w", uid="u", queue="main")
JOB: JobKey = (ORPHAN, "team", "w")
ADMIT = Admit(key=GANG.key, uid="u", admission=Admission(cluster_queue="q", pod_sets=()))
EVICT = Evict(key=GANG.key, uid="u", reason=EvictReason.IN_CLUSTER_QUEUE, preemptor=("team", "x"), preemptor_uid="x")


@pytest.mark.parametrize(
    ("decided", "failed", "holds"),
    [([ADMIT], ADMIT, False), ([ADMIT, EVICT], ADMIT, False), ([ADMIT, EVICT], EVICT, True)],
    ids=["admission", "admission, and its eviction is under way", "eviction of what was just admitted"],
)
async def test_what_could_not_be_written_holds_nothing(decided: list[Decision], failed: Decision, holds: bool) -> None:
    """An eviction is decided while the admission before it is being written; if that fails, there is nothing to evict,
    and the gang stands in line again rather than to hold room for ever."""
    controller = Controller(
        Client.plain("http://127.0.0.1:1"),
        names=Names(KUEUE_GROUP),
        rules=KUEUE,
        settings=Settings(),
        options=Options(can_rank=False),
        workloads_only=True,
    )
    state = controller.state
    state.apply(Put(GANG))
    for decision in decided:
        state.apply(Assumed(decision))
    if failed is ADMIT and EVICT in decided:
        controller._decisions[JOB] = EVICT
    controller._forget(JOB, failed)
    gang = state.workload(GANG.key)
    assert gang is not None
    assert (gang.admission is not None) == holds
    assert not gang.evicted
    assert not controller._decisions


@pytest.mark.parametrize("applied", [True, False], ids=["the server was slow", "the server never saw it"])
async def test_who_may_have_been_admitted_keeps_its_room(
    world: World, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """The connection breaks while an admission is under way: nobody else gets its room before it is known whether the
    server did it after all, and if it did not, the room is given away again."""
    for one in (own("ResourceFlavor", "h100"), cluster_queue("team-a", 16), NODE):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    broke, reserved = asyncio.Event(), []
    late: list[asyncio.Task[bytes]] = []
    send = world.client.apply_raw

    async def apply_raw(path: str, body: dict[str, Any], **options: Any) -> bytes:
        if not body.get("status", {}).get("admission"):
            return await send(path, body, **options)
        reserved.append(body["metadata"]["name"])
        if broke.is_set():
            return await send(path, body, **options)

        async def slow() -> bytes:
            await asyncio.sleep(0.5)
            return await send(path, body, **options)

        if applied:
            late.append(asyncio.ensure_future(slow()))
        broke.set()
        raise Unavailable(0, "NoAnswer", "the connection broke")

    monkeypatch.setattr(world.client, "apply_raw", apply_raw)
    monkeypatch.setattr(world.client, "write_timeout", 2.0)
    async with running(world):
        await world.put(job("one", "main"))
        await broke.wait()
        await world.put(job("two", "main"))

        async def stand() -> set[str]:
            """What the Workloads say of their quota, once all of them say something."""
            items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
            said = [cond["status"] for each in items for cond in each.get("status", {}).get("conditions", ())
                    if cond["type"] == "QuotaReserved"]  # fmt: skip
            return set(said) if len(said) == 2 and "True" in said else set()

        assert await until(stand) == {"True", "False"}
        if applied:
            assert len(reserved) == 1, "nobody else was given the room meanwhile"
    await asyncio.gather(*late)
