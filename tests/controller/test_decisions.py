"""A decision is written for what it was made for, and can be followed by its id: from the log to the Events of the job
and to its Workload's status."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from admission.commands.options import configure_logs
from admission.controller import app
from admission.controller.actuate import Actuator, decision_id
from admission.controller.defaults import named_in_vain
from admission.engine.cycle import decide
from admission.engine.filling import Filling
from admission.engine.model import (
    MUSTER,
    Admission,
    Admit,
    Cancel,
    Claim,
    ClaimRecord,
    Decision,
    Evict,
    EvictReason,
    Key,
    PodSetAssignment,
    Reason,
    Replace,
    Why,
    Workload,
)
from admission.engine.project import sentence
from admission.engine.trial import Trial
from admission.jobs.kinds import JOBSET, view
from admission.jobs.values import rfc3339
from admission.kube.client import Client, Conflict, NotFound
from tests.controller.lab import GPU, NAMES, NOW, T0, World, cluster_queue, job, local_queue, own, workload
from tests.controller.test_keep import NODE, begun, events, running, told, until
from tests.controller.test_leaks import Town


async def test_from_the_log_to_the_event_to_the_condition(world: World) -> None:
    for one in (own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16)):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    await world.put(job("train", "main"))

    async def workload() -> dict[str, Any]:
        items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
        return items[0] if items else {}

    async def said(reason: str) -> list[str]:
        """Decisions that Events of the job name, by their reason."""
        found = [event for event in await events(world, reason) if event["involvedObject"]["kind"] == "Job"]
        return [event["metadata"].get("annotations", {}).get(NAMES.decision_annotation, "") for event in found]

    def logged(event: str) -> list[str]:
        about = [line for line in lines if line["event"] == event]
        assert all(
            (line["kind"], line["namespace"], line["name"], line["queue"]) == ("Job", "ml", "train", "team-a")
            for line in about
        )
        return [line["decision"] for line in about]

    with capture_logs() as lines:
        async with running(world):

            async def waits() -> dict[str, Any]:
                found = await workload()
                return found if found.get("status", {}).get("decision") and logged("waits") else {}

            waiting = await until(waits)
            (line,) = [line for line in lines if line["event"] == "waits"]
            why = line["decision"]
            assert (line["log_level"], line["reason"]) == ("info", "TopologyPlacementFailed")
            assert waiting["status"]["decision"] == why
            (condition,) = [c for c in waiting["status"]["conditions"] if c["type"] == "QuotaReserved"]
            assert condition["reason"] == line["reason"]
            assert await until(lambda: said(line["reason"])) == [why]
            waiting = await workload()  # on a busy machine more was written of it since

            await world.put(NODE)

            async def started() -> list[str]:
                return await said("Started")

            begun = await until(started)
            (admitted,) = logged("admitted")
            assert admitted != why
            assert begun == [admitted]
            assert admitted in await said("QuotaReserved")
            assert (await workload())["status"]["decision"] == admitted
            assert admitted == decision_id(waiting["metadata"]["uid"], waiting["metadata"]["resourceVersion"])


@pytest.mark.parametrize(
    ("why", "reason", "cause"),
    [
        (EvictReason.IN_COHORT_RECLAMATION, "Preempted", "InCohortReclamation"),
        (EvictReason.FLAVOR_MIGRATION, "FlavorMigration", ""),
    ],
)
async def test_an_eviction_counts_as_what_its_condition_says(
    world: World, why: EvictReason, reason: str, cause: str
) -> None:
    for one in (NODE, own("ResourceFlavor", "h100"), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    await world.put(job("train", "main"))
    async with running(world) as controller:

        async def status() -> dict[str, Any]:
            items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
            return dict(items[0].get("status", {})) if items else {}

        async def admitted() -> bool:
            return "admission" in await status()

        await until(admitted)
        (seen,) = controller.world.workloads.values()
        await controller.actuator.carry_out(Evict(seen.key, seen.uid, why, ("ml", "other"), "u", "team-a"))
        after = await status()
        assert after["schedulingStats"]["evictions"] == [{"reason": reason, "underlyingCause": cause, "count": 1}]
        assert [one["reason"] for one in after["conditions"] if one["type"] == "Evicted"] == [reason]


@pytest.mark.parametrize("meanwhile", ["nothing", "less quota"])
async def test_a_new_leader_does_not_tell_anew_what_has_been_told(world: World, meanwhile: str) -> None:
    """Who waits was told with the numbers of its last look: others are true by now, and no news."""
    for one in (NODE, NODE | {"metadata": {**NODE["metadata"], "name": "m"}}, own("ResourceFlavor", "h100", {})):
        await world.put(one)
    for team in ("team-a", "team-b"):
        await world.put(cluster_queue(team, 16))
        await world.put(local_queue(team, team))

    async def told() -> dict[str, tuple[str, str, str]]:
        """Job -> (reason, message, version) of who was told why it waits, or runs."""
        items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
        return {
            raw["metadata"]["ownerReferences"][0]["name"]: (
                condition["reason"],
                condition["message"],
                raw["metadata"]["resourceVersion"],
            )
            for raw in items
            for condition in raw.get("status", {}).get("conditions") or ()
            if condition["type"] == "QuotaReserved"
        }

    async with running(world, at=T0):
        for name, queue, pods in (("runs", "team-a", 2), ("waits", "team-a", 3), ("after", "team-b", 1)):
            await world.put(job(name, queue, pods=pods))

            async def known(name: str = name) -> bool:
                return name in await told()

            await until(known)
    before = await told()
    assert "cohort lab has 16 free" in before["waits"][1]
    if meanwhile == "less quota":
        queue = f"/apis/{NAMES.api_version}/clusterqueues/team-a"
        flavor = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": 8}]}
        await world.client.merge_patch(
            queue, {"spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}]}}
        )
    async with running(world, at=T0) as controller:
        statuses = ("PATCH", "workloads", "status", 200)
        written = controller.client.counts[statuses]

        async def looked() -> bool:
            return bool(controller.verdicts) and not controller._found

        await until(looked)
        (verdict,) = controller.verdicts.values()
        assert sentence(verdict.why) != before["waits"][1]
        after = await told()
        if meanwhile == "nothing":
            assert controller.client.counts[statuses] == written
            assert after == before
        else:
            assert after["waits"][1] == sentence(verdict.why)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_is_for_programs_or_for_people(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        configure_logs(form, "info")
        log = structlog.get_logger("muster")
        log.info("admitted", name="train", queue="team-a", decision="4fe04a68")
        log.debug("unseen")
    finally:
        structlog.reset_defaults()
    (line,) = capsys.readouterr().err.splitlines()
    if form == "json":
        said = json.loads(line)
        assert said.pop("timestamp")
        assert said == {
            "event": "admitted",
            "level": "info",
            "name": "train",
            "queue": "team-a",
            "decision": "4fe04a68",
        }
    else:
        assert all(word in line for word in ("admitted", "decision=4fe04a68", "queue=team-a"))
        assert "{" not in line


def test_what_a_library_tells_is_one_line_as_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the HTTP server, with where it was raised."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        configure_logs("json", "info")
        configure_logs("json", "info")  # twice tells nothing twice
        try:
            raise ValueError("no such thing")
        except ValueError:
            logging.getLogger("aiohttp.server").exception("Error handling %s", "request")
        logging.getLogger("aiohttp.access").info("unseen")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.reset_defaults()
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["logger"]) == ("Error handling request", "error", "aiohttp.server")
    assert said["exception"].endswith("ValueError: no such thing")


async def test_room_that_was_decided_for_what_the_gang_no_longer_asks_is_not_reserved(world: World) -> None:
    """Its owner edited the job between the decision and the write, and the copy of its Workload is newer than both."""
    for one in (own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16)):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    made = await world.put(job("train", "main", pods=1, gpus=1))

    # No reason is written in between: that would be a conflict of another kind.
    async with running(world, explain_after_s=3600.0) as controller:

        async def asked() -> Any:
            found = list(controller.world.workloads.values())
            return found[0] if found else None

        before = await until(asked)
        grown = [{"op": "replace", "path": "/spec/template/spec/containers/0/resources/requests", "value": {GPU: "2"}}]
        grown += [{**grown[0], "path": grown[0]["path"].replace("requests", "limits")}]
        await world.client.json_patch(f"/apis/batch/v1/namespaces/ml/jobs/{made['metadata']['name']}", grown)

        async def edited() -> Any:
            found = await asked()
            return found if found.view.value.pod_sets != before.view.value.pod_sets else None

        now = await until(edited)
        assert now.uid == before.uid
        given = PodSetAssignment("main", ((GPU, "h100"),), ((GPU, 1),), 1)
        decision = Admit(now.key, now.uid, Admission("team-a", (given,)))
        with pytest.raises(Conflict, match="something else than was decided on"):
            await controller.actuator.carry_out(decision, before.view.value)
        stored = await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads/{now.name}")
        assert "admission" not in stored.get("status", {})
        right = replace(decision, admission=Admission("team-a", (replace(given, usage=((GPU, 2),)),)))
        await controller.actuator.carry_out(right, now.view.value)
        stored = await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads/{now.name}")
        assert stored["status"]["admission"]["podSetAssignments"][0]["resourceUsage"] == {GPU: "2"}


_OTHER = Admission("team-a", (PodSetAssignment("main", ((GPU, "a100"),), ((GPU, 1),), 1),))


@pytest.mark.parametrize(
    ("decides", "held_before"),
    [
        (lambda at: Admit(*at, _OTHER), {"admission": None}),
        (lambda at: Claim(*at, ClaimRecord(_OTHER, (), NOW + 60_000)), {"admission": None}),
        (lambda at: Replace(*at, _OTHER), {"admission": _OTHER}),
        (lambda at: Cancel(*at, Why(Reason.ON_HOLD)), {"admission": _OTHER}),
        (lambda at: Evict(*at, EvictReason.IN_COHORT_RECLAMATION, ("ml", "x"), "u"), {"admission": _OTHER}),
        # Evicted, and given the same anew.
        (lambda at: Evict(*at, EvictReason.IN_COHORT_RECLAMATION, ("ml", "x"), "u"), {"reserved_at": T0 - 60_000}),
    ],
    ids=["Admit", "Claim", "Replace", "Cancel", "Evict", "Evict of the one before"],
)
async def test_what_another_leader_reserved_meanwhile_is_not_written_over(
    world: World, decides: Callable[[tuple[Key, str]], Decision], held_before: dict[str, Any]
) -> None:
    """Two lead for some seconds; the copy of the Workload is newer than the decision, and says so."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    await world.put(job("train", "main", pods=1, gpus=1))
    async with running(world) as controller:

        async def reserved() -> Any:
            found = list(controller.world.workloads.values())
            return found[0] if found and found[0].view.value.admission is not None else None

        seen = await until(reserved)
        decision = decides((seen.key, seen.uid))
        with pytest.raises(Conflict, match="holds another reservation"):
            await controller.actuator.carry_out(decision, replace(seen.view.value, **held_before))
        stored = await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads/{seen.name}")
        assert stored["status"]["admission"]["podSetAssignments"][0]["flavors"] == {GPU: "h100"}


@pytest.mark.parametrize(
    "decides",
    [
        lambda at: Admit(*at, _OTHER),
        lambda at: Claim(*at, ClaimRecord(_OTHER, (), NOW + 60_000)),
        lambda at: Cancel(*at, Why(Reason.ON_HOLD)),
    ],
    ids=["Admit", "Claim", "Cancel"],
)
async def test_who_has_finished_between_the_decision_and_its_write_is_given_nothing(
    world: World, decides: Callable[[tuple[Key, str]], Decision]
) -> None:
    """A job of no completions is complete while it waits; it would be told admitted, and hold room, until it is found
    finished anew."""
    for one in (own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    made = await world.put(job("train", "main", pods=1, gpus=1))
    async with running(world, explain_after_s=3600.0) as controller:

        async def found() -> Any:
            return next(iter(controller.world.workloads.values()), None)

        before = await until(found)
        over = [{"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "all are done"}]
        path = f"/apis/batch/v1/namespaces/ml/jobs/{made['metadata']['name']}"
        await world.client.merge_patch(f"{path}/status", {"status": {"conditions": over}})

        async def finished() -> Any:
            seen = await found()
            return seen if seen.view.value.finished else None

        now = await until(finished)
        with pytest.raises(NotFound, match="has finished"):
            await controller.actuator.carry_out(decides((now.key, now.uid)), before.view.value)
        stored = await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads/{now.name}")
        assert stored["metadata"]["resourceVersion"] == now.resource_version


async def test_who_is_to_leave_while_his_admission_is_being_written_leaves_by_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever evicts him waits for five minutes for him, and evicts nobody for as long again."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), cluster_queue("team-b", 0)):
        await world.put(one)
    for name in ("team-a", "team-b"):
        await world.put(local_queue(name, name))
    written, may_go_on = asyncio.Event(), asyncio.Event()
    with capture_logs() as lines:
        async with running(world) as controller:
            carry_out = controller.actuator.carry_out

            async def slowly(decision: Decision, *arguments: Any) -> str:
                if isinstance(decision, Admit) and not written.is_set():
                    written.set()
                    await may_go_on.wait()
                return await carry_out(decision, *arguments)

            monkeypatch.setattr(controller.actuator, "carry_out", slowly)
            await world.put(job("borrows", "team-b", pods=1))
            async with asyncio.timeout(300):
                await written.wait()
            ((key, _),) = controller.state.workloads.items()
            await world.put(job("owner", "team-a", pods=2))

            async def is_to_leave() -> bool:
                return bool(controller.state.workloads[key].evicted)

            await until(is_to_leave)
            may_go_on.set()

            async def left() -> list[str]:
                at = f"/apis/{NAMES.api_version}/namespaces/{key[0]}/workloads/{key[1]}"
                said = (await world.client.get(at)).get("status", {}).get("conditions", ())
                late = ["too late" for line in lines if line["event"] == "looked at too old a version"]
                return late or [one["reason"] for one in said if one["type"] == "Evicted"]

            assert await until(left) == ["Preempted"]


async def test_an_eviction_whose_write_fails_is_written_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever evicts waits for that alone."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), cluster_queue("team-b", 0)):
        await world.put(one)
    for name in ("team-a", "team-b"):
        await world.put(local_queue(name, name))
    tried: list[str] = []
    written: list[str] = []
    async with running(world) as controller:
        carry_out = controller.actuator.carry_out

        async def fails_at_first(decision: Decision, *arguments: Any) -> str:
            tried.append(type(decision).__name__)
            if isinstance(decision, Evict) and tried.count("Evict") <= 2:
                raise Conflict(409, "Conflict", "the object has been modified")
            result = await carry_out(decision, *arguments)
            written.append(type(decision).__name__)
            return result

        monkeypatch.setattr(controller.actuator, "carry_out", fails_at_first)
        await world.put(job("borrows", "team-b", pods=1))
        await until(lambda: begun(world, "borrows"))
        ((_, seen),) = controller.world.workloads.items()
        await world.put(job("owner", "team-a", pods=2))

        async def evicted() -> bool:
            held = controller.world.workloads[seen.key].view.value
            return bool(held.evicted)

        await until(evicted)
    assert tried.count("Evict") >= 3
    assert written.count("Claim") == written.count("Evict") == 1


@pytest.mark.parametrize(
    ("first_out", "room"),
    [(0, False), (1, False), (0, True)],
    ids=["nobody had been evicted", "one of them had", "nobody has to go any more"],
)
async def test_a_leader_that_ends_between_a_claim_and_its_evictions_leaves_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, first_out: int, room: bool
) -> None:
    """That others are to leave for it, and do not know it, only the claim says: whoever had it would wait for five
    minutes for them, and evict nobody for as long again."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), cluster_queue("team-b", 0)):
        await world.put(one)
    for name in ("team-a", "team-b"):
        await world.put(local_queue(name, name))
    workloads = f"/apis/{NAMES.api_version}/namespaces/ml/workloads"

    async def status() -> dict[str, Any]:
        """Job -> what is stored of its Workload."""
        items = (await world.client.get(workloads))["items"]
        return {one["metadata"]["ownerReferences"][0]["name"]: one.get("status", {}) for one in items}

    async def evicted() -> list[str]:
        found = await status()
        return sorted(
            name
            for name, one in found.items()
            if any((said["type"], said["status"]) == ("Evicted", "True") for said in one.get("conditions", ()))
        )

    async def both_run() -> bool:
        found = await status()
        return all("admission" in found.get(name, {}) for name in ("b-1", "b-2"))

    async def claims() -> bool:
        found = await status()
        return "claim" in found.get("owner", {}) and len(await evicted()) == first_out

    async with running(world) as first:
        carry_out = first.actuator.carry_out
        evictions = 0

        async def ends_there(decision: Decision, *arguments: Any) -> str:
            nonlocal evictions
            evictions += isinstance(decision, Evict)
            if isinstance(decision, Evict) and evictions > first_out:
                await asyncio.sleep(3600)
            return await carry_out(decision, *arguments)

        monkeypatch.setattr(first.actuator, "carry_out", ends_there)
        for name in ("b-1", "b-2"):
            await world.put(job(name, "team-b", pods=1))
        await until(both_run)
        await world.put(job("owner", "team-a", pods=2))
        await until(claims)
    if room:
        other = {"name": "m", "labels": {"gpu": "h100", "kubernetes.io/hostname": "m"}}
        await world.put({**NODE, "metadata": other})
        queue = cluster_queue("team-a", 32)
        await world.client.merge_patch(f"/apis/{NAMES.api_version}/clusterqueues/team-a", {"spec": queue["spec"]})

    async with running(world, at=NOW + 20_000) as second:

        async def admitted() -> bool:
            return "admission" in (await status())["owner"]

        if room:
            await until(admitted)
            assert await evicted() == []
            return

        async def all_out() -> bool:
            return await evicted() == ["b-1", "b-2"]

        await until(all_out)

        async def kept_until() -> str:
            claim = (await status())["owner"]["claim"]
            return str(claim["until"]) if claim["victims"] else ""

        assert await until(kept_until) == rfc3339(NOW + 20_000 + 300_000)
        assert not second.state.drift(0, 1)


async def test_nobody_is_evicted_for_a_job_that_went_while_nobody_led(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Workload stays where the job was deleted without what it owns, or until the garbage collector comes to it. It
    is looked up before it is deleted, and the API server is slow to say."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), cluster_queue("team-b", 0)):
        await world.put(one)
    for name in ("team-a", "team-b"):
        await world.put(local_queue(name, name))
    workloads = f"/apis/{NAMES.api_version}/namespaces/ml/workloads"

    async def names() -> list[str]:
        return [one["metadata"]["name"] for one in (await world.client.get(workloads))["items"]]

    async with running(world) as first:
        await world.put(job("borrows", "team-b", pods=1))
        await until(lambda: begun(world, "borrows"))
        ((_, seen),) = first.world.workloads.items()
    gone = job("gone", "team-a", pods=2)
    gone["metadata"]["uid"] = "u-gone"
    await world.put(workload(gone, {}, queue="team-a"))
    job_is_gone = Actuator.job_is_gone

    async def slowly(actuator: Actuator, about: Any) -> bool:
        await asyncio.sleep(1)
        return await job_is_gone(actuator, about)

    monkeypatch.setattr(Actuator, "job_is_gone", slowly)
    async with running(world):

        async def deleted() -> bool:
            return await names() == [seen.name]

        await until(deleted)
    said = (await world.client.get(f"{workloads}/{seen.name}"))["status"]
    assert not [one for one in said["conditions"] if one["type"] == "Evicted"]


async def test_a_new_leader_whose_watch_hangs_gives_nothing_that_the_last_one_gave(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one reserved quota and ended before it started the job: of the job nothing can be seen."""
    queue = cluster_queue("team-a", 8)
    queue["spec"]["stopPolicy"] = "Hold"
    for one in (NODE, own("ResourceFlavor", "h100", {}), queue, local_queue("main", "team-a")):
        await world.put(one)
    high = {"apiVersion": NAMES.api_version, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 9}
    await world.client.create(f"/apis/{NAMES.api_version}/workloadpriorityclasses", high)

    async def admitted() -> list[str]:
        """Jobs that hold quota, by the API server."""
        items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
        return sorted(
            one["metadata"]["ownerReferences"][0]["name"] for one in items if one.get("status", {}).get("admission")
        )

    async def hangs(*_: object) -> None:
        await asyncio.sleep(3600)

    async with running(world, leads=False) as second:
        copy = second.informers["Workload"]
        async with running(world) as first:
            monkeypatch.setattr(first.actuator, "_start", hangs)
            await world.put(job("one", "main", pods=1))

            async def seen() -> bool:
                return bool(copy.store)

            await until(seen)
            monkeypatch.setattr(copy, "_take", lambda line: "")
            path = f"/apis/{NAMES.api_version}/clusterqueues/team-a"
            await world.client.merge_patch(path, {"spec": {"stopPolicy": "None"}})
            assert await until(admitted) == ["one"]
        two = job("two", "main", pods=1)
        two["metadata"]["labels"][NAMES.priority_class_label] = "high"
        await world.put(two)
        monkeypatch.setattr(copy, "_heard_at", float("-inf"))
        leading = asyncio.ensure_future(second.lead())

        async def decided_on() -> Any:
            return [key for key in second.verdicts if "two" in key[1]] or await admitted() != ["one"]

        await until(decided_on)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
    assert await admitted() == ["one"]


async def test_a_decision_that_fails_ends_nothing_and_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def fails_twice(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise KeyError("a defect")
        return decide(*arguments)

    monkeypatch.setattr(app, "decide", fails_twice)
    for one in (own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16), NODE):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    await world.put(job("train", "main", pods=1))

    counted: list[int] = []
    with capture_logs() as lines:
        async with running(world) as controller:
            controller.watchers.undecided.append(lambda: counted.append(1))
            assert await until(lambda: begun(world))
    assert len(counted) == 2
    told = [(line["log_level"], line["again_in_s"]) for line in lines if line["event"] == "decision failed"]
    assert told == [("error", 1.0), ("error", 2.0)]


@pytest.mark.parametrize("where", ["decision", "step"])
async def test_who_runs_out_of_memory_ends_and_puts_it_down_to_no_gang(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was half done in the books would stay so."""

    def fails(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(app, {"decision": "decide", "step": "next_step"}[where], fails)
    for one in (own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16), NODE):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    await world.put(job("train", "main", pods=1))
    with capture_logs() as lines:
        async with running(world, leads=False) as controller:
            with pytest.RaisesGroup(MemoryError, flatten_subgroups=True):
                async with asyncio.timeout(300):
                    await controller.lead()
    assert not [line for line in lines if line["log_level"] == "error"]
    assert not controller.leading


async def test_a_gang_that_no_decision_can_be_made_on_sits_out_and_others_do_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Filling.look

    def fails(run: Filling, gang: Workload, *arguments: Any, **more: Any) -> Trial:
        trial = looked(run, gang, *arguments, **more)
        if gang.pod_sets[0].count == 2:
            raise KeyError("a defect")
        return trial

    monkeypatch.setattr(Filling, "look", fails)
    for one in (own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16), NODE):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    for name, pods in (("bad", 2), ("alike", 2), ("good", 1)):
        await world.put(job(name, "main", pods=pods))

    with capture_logs() as lines:
        async with running(world) as controller:
            assert await until(lambda: begun(world, "good"))
            held = {value.name: value.requeue_at for value in controller.state.workloads.values()}
    told = [line["about"] for line in lines if line["event"] == "decision failed"]
    assert len(told) == 1, "not once for each of those that ask for the same"
    assert sorted(at > NOW for at in held.values()) == [False, True, True]


@pytest.mark.parametrize("ends", ["somebody was faster", "it leads no more"])
async def test_a_reason_whose_write_came_to_nothing_is_written_later(
    world: World, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16)):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    writing = asyncio.Event()

    async def told() -> list[str]:
        items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
        return [entry["reason"] for one in items for entry in one.get("status", {}).get("conditions", ())]

    async with running(world, leads=False) as controller:
        explain = controller.actuator.explain

        async def comes_to_nothing_once(*arguments: Any, **more: Any) -> str:
            if writing.is_set():
                return await explain(*arguments, **more)
            writing.set()
            if ends == "it leads no more":
                await asyncio.sleep(3600)
            raise Conflict(409, "Conflict", "the object has been modified")

        monkeypatch.setattr(controller.actuator, "explain", comes_to_nothing_once)
        leader = asyncio.ensure_future(controller.lead())
        await world.put(job("train", "main"))
        await asyncio.wait_for(writing.wait(), 300)
        if ends == "it leads no more":
            leader.cancel()
            await asyncio.wait([leader])
            leader = asyncio.ensure_future(controller.lead())
        assert "TopologyPlacementFailed" in await until(told)
        leader.cancel()
        await asyncio.wait([leader])


async def test_a_job_waits_for_the_priority_class_that_it_names(world: World) -> None:
    await world.put(own("ResourceFlavor", "h100"))
    await world.put(cluster_queue("team-a", 16))
    await world.put(local_queue("main", "team-a"))

    async def put_class(name: str, value: int) -> None:
        body = {**own("WorkloadPriorityClass", name), "value": value}
        body.pop("spec")
        await world.client.create(f"/apis/{NAMES.api_version}/workloadpriorityclasses", body)

    await put_class("low", 1)
    made = job("train", "main")
    made["metadata"]["labels"][NAMES.priority_class_label] = "high"
    async with running(world) as controller:
        await world.put(made)
        assert await until(lambda: told(world)) == ["WorkloadPriorityClass 'high' does not exist; there are: low"]
        assert not controller.world.workloads
        await put_class("high", 7)

        async def queued() -> Any:
            return [seen.view.value.priority for seen in controller.world.workloads.values()]

        assert await until(queued) == [7]
        await world.client.delete(f"/apis/{NAMES.api_version}/workloadpriorityclasses/high")

        async def forgotten() -> bool:
            return "high" not in controller.world.defaults.workload_priorities

        await until(forgotten)
        assert await queued() == [7]


async def test_a_job_waits_for_the_priority_class_that_its_pods_name(world: World) -> None:
    await world.put(own("ResourceFlavor", "h100"))
    await world.put(cluster_queue("team-a", 16))
    await world.put(local_queue("main", "team-a"))
    made = job("train", "main")
    made["spec"]["template"]["spec"]["priorityClassName"] = "night"
    async with running(world) as controller:
        await world.put(made)
        (said,) = await until(lambda: told(world))
        assert said.startswith("PriorityClass 'night' (priorityClassName of its pods) does not exist")
        assert not controller.world.workloads
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "night"},
            "value": 7,
        }
        await world.client.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)

        async def queued() -> Any:
            return [seen.view.value.priority for seen in controller.world.workloads.values()]

        assert await until(queued) == [7]


def test_the_priority_classes_of_all_pod_sets_are_looked_for() -> None:
    def part(name: str, of_pods: str, replicas: int = 1) -> dict[str, Any]:
        template = {"spec": {"priorityClassName": of_pods, "containers": [{"name": "c"}]}}
        return {"name": name, "replicas": replicas, "template": {"spec": {"template": template}}}

    parts = [part("driver", "day"), part("workers", "night"), part("none", "never", 0)]
    seen = view(JOBSET, {"metadata": {"name": "s"}, "spec": {"replicatedJobs": parts}}, NAMES)
    (said,) = named_in_vain(seen, (), ("day",), ())
    assert said.startswith("PriorityClass 'night' (priorityClassName of its pods) does not exist")
    assert named_in_vain(seen, (), ("day", "night"), ()) == named_in_vain(seen, (), None, ()) == ()


async def test_who_is_admitted_is_not_behind_all_who_have_just_come_to_its_namespace(world: World) -> None:
    """A tenant submits hundreds of jobs: his first start while Workloads are made for the last."""
    for one in (own("ResourceFlavor", "h100"), cluster_queue("team-a", 16), NODE):
        await world.put(one)
    await world.put(local_queue("main", "team-a"))
    many, steps = 400, list[str]()
    async with running(world) as controller:
        controller.watchers.step.append(lambda key, step: steps.append(type(step).__name__))
        controller.watchers.decision.append(lambda *told: steps.append("decision"))

        async def leads() -> bool:
            return controller.leading

        await until(leads)
        url = world.sandbox.url
        async with Client.plain(url, token="admin-token", write_timeout=300) as tenant:  # the last waits for all others
            submits = World(world.sandbox, tenant)
            await asyncio.gather(*(submits.put(job(f"train-{i}", "main", pods=1)) for i in range(many)))

        async def all_made() -> bool:
            return steps.count("CreateWorkload") == many and "decision" in steps

        await until(all_made)
    made = steps[: steps.index("decision")].count("CreateWorkload")
    assert made < many // 2, "nobody was admitted before Workloads were made for most"


async def test_who_was_there_first_when_a_leader_begins_is_first_in_line() -> None:
    """Of many jobs that are held, those whose Workloads are made first are decided on first."""
    town, looked_at = Town(MUSTER, leads=False), list[str]()

    async def take(key: app.JobKey, step: object) -> None:
        looked_at.append(key[2])

    for name, seconds in (("a", 2), ("b", 3), ("c", 1)):  # a list is in the order of names
        made = job(name, "main")
        made["metadata"]["creationTimestamp"] = rfc3339(T0 + seconds * 1000)
        town.put(made)
    actuator: Any = town.controller.actuator
    actuator.take = take
    for informer in town.controller.informers.values():
        informer.synced.set()
    leading = asyncio.ensure_future(town.controller.lead())

    async def all_seen() -> bool:
        return len(looked_at) >= 3

    await until(all_seen)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert looked_at[:3] == ["c", "a", "b"]
