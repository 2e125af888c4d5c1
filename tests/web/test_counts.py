"""What is counted of a controller that decides about a sandbox: what happened, once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from admission.controller import actuate
from admission.controller.app import Controller
from admission.controller.lifecycle import EvictWorkload
from admission.engine.model import Detail, Evict, EvictReason, Standing
from admission.kube.client import Conflict, NotFound
from admission.web.metrics import Metrics
from tests.chart.runbooks import finds
from tests.web.running import GPU, NAMES, Running, controller, job, running
from tests.web.test_metrics import samples

Json = dict[str, Any]
JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
OURS = f"/apis/{NAMES.api_version}"
WORKLOADS = f"{OURS}/namespaces/team-a/workloads"
NOW = "2026-01-01T00:00:00Z"


def counted(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Values that are not 0, by the values of their labels in order of their names."""
    return {
        tuple(value for _, value in sorted(labels)): value
        for (sample, labels), value in samples(metrics.text()).items()
        if sample == name and value
    }


def counting(controller: Controller) -> Metrics:
    metrics = Metrics(controller.numbers)
    metrics.follow(controller.watchers)
    return metrics


@pytest.fixture
async def town() -> AsyncIterator[Running]:
    async with running() as one:
        yield one


async def its_workload(town: Running) -> Json:
    found = await town.until(lambda: [w for w in town.controller.world.workloads.values() if w.namespace == "team-a"])
    made: Json = await town.client.get(f"{WORKLOADS}/{found[0].name}")
    return made


def condition(raw: Json, kind: str) -> Json:
    found = [one for one in raw.get("status", {}).get("conditions") or () if one["type"] == kind]
    return dict(found[0]) if found else {}


async def kubelets(town: Running, *, down: str | None) -> None:
    for node in (await town.client.get("/api/v1/nodes"))["items"]:
        silent = {"metadata": {"annotations": {"node-down.stage.kwok.x-k8s.io": down}}}
        await town.client.merge_patch(f"/api/v1/nodes/{node['metadata']['name']}", silent)


async def when(town: Running, holds: Callable[[Json], Any]) -> Json:
    async with asyncio.timeout(300):
        while not holds(raw := await its_workload(town)):
            await asyncio.sleep(0.02)
    return raw


async def pods_run(town: Running) -> None:
    async with asyncio.timeout(300):
        while True:
            pods = (await town.client.get("/api/v1/namespaces/team-a/pods"))["items"]
            if {pod["status"].get("phase") for pod in pods} == {"Running"}:
                return
            await asyncio.sleep(0.02)


def admitted(raw: Json) -> bool:
    return condition(raw, "Admitted").get("status") == "True"


def of_train(lines: Iterable[MutableMapping[str, Any]], *events: str) -> list[MutableMapping[str, Any]]:
    """What the log tells of these events of the job."""
    found = [line for line in lines if line["event"] in events]
    of_it = {"kind": "Job", "namespace": "team-a", "name": "train", "queue": "team-a", "log_level": "info"}
    for line in found:
        assert of_it.items() <= line.items()
        assert line["decision"]
    return found


async def submit(town: Running, name: str = "train", **labels: str) -> None:
    made = job("team-a", name, 8, 1)
    made["metadata"]["labels"] |= labels
    await town.client.create(JOBS, made)


async def asks_a_check(town: Running) -> None:
    check = {"apiVersion": NAMES.api_version, "kind": "AdmissionCheck", "metadata": {"name": "budget"}}
    await town.client.create(f"{OURS}/admissionchecks", check | {"spec": {"controllerName": "x/y"}})
    active = {"type": "Active", "status": "True", "reason": "A", "lastTransitionTime": NOW}
    said = {"status": {"conditions": [active | {"message": ""}]}}
    await town.client.merge_patch(f"{OURS}/admissionchecks/budget/status", said)
    asked = {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}}
    await town.client.merge_patch(f"{OURS}/clusterqueues/team-a", {"spec": asked})


async def answers(town: Running, state: str) -> None:
    raw = await when(
        town,
        lambda raw: (
            "admission" in raw.get("status", {})
            and [c["state"] for c in raw["status"].get("admissionChecks") or ()] == ["Pending"]
        ),
    )
    entry = raw["status"]["admissionChecks"][0] | {"state": state, "message": "no money"}
    path = f"{WORKLOADS}/{raw['metadata']['name']}/status"
    await town.client.merge_patch(path, {"status": {"admissionChecks": [entry]}})


async def pauses(town: Running) -> None:
    await submit(town)
    await when(town, admitted)
    await town.client.merge_patch(f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: "true"}}})


async def runs_out(town: Running) -> None:
    await submit(town, **{NAMES.max_exec_time_label: "1"})


async def is_refused(town: Running) -> None:
    await asks_a_check(town)
    await submit(town)
    await answers(town, "Rejected")


async def is_switched_off(town: Running) -> None:
    await submit(town)
    raw = await when(town, admitted)
    await town.client.merge_patch(f"{WORKLOADS}/{raw['metadata']['name']}", {"spec": {"active": False}})


EVICTED: dict[str, tuple[Callable[[Running], Awaitable[None]], str, str]] = {
    "its owner pauses it": (pauses, "", "The job is paused by its owner"),
    "its time is over": (runs_out, "MaximumExecutionTimeExceeded", "Ran for its maximum of 1 s"),
    "a check refuses it": (is_refused, "AdmissionCheck", "Check budget refused: no money"),
    "somebody switches it off": (is_switched_off, "", "The workload is deactivated"),
}


@pytest.mark.parametrize("case", EVICTED)
async def test_who_must_not_go_on_is_evicted_once_and_the_condition_keeps_saying_why(town: Running, case: str) -> None:
    happens, cause, why = EVICTED[case]
    metrics = counting(town.controller)
    with capture_logs() as lines:
        await happens(town)
        raw = await when(
            town,
            lambda raw: (
                "admission" not in raw.get("status", {})
                and condition(raw, "QuotaReserved").get("reason") == "Deactivated"
            ),
        )
    (line,) = of_train(lines, "evicted")
    assert (line["reason"], line["cause"], line["message"]) == ("Deactivated", cause, why)
    assert raw["spec"]["active"] is False
    told = condition(raw, "Evicted")
    reason = f"DeactivatedDueTo{cause}" if cause else "Deactivated"
    assert (told["status"], told["reason"], told["message"]) == ("True", reason, why)
    assert [condition(raw, "Requeued")[field] for field in ("reason", "message")] == [reason, why]
    news: dict[str, str] = {}
    async with asyncio.timeout(300):
        while not {"Deactivated", f"EvictedDueTo{reason}"} <= set(news):
            found = (await town.client.get("/api/v1/namespaces/team-a/events"))["items"]
            news = {one["reason"]: one["message"] for one in found}
    assert news[f"EvictedDueTo{reason}"] == why
    assert "Requeued" not in news, "it does not wait: it is switched off"
    assert counted(metrics, "muster_evicted_workloads_total") == {(cause, "team-a", "Deactivated"): 1}
    counts = [{"reason": "Deactivated", "underlyingCause": cause, "count": 1}]
    assert raw["status"]["schedulingStats"]["evictions"] == counts


async def test_what_another_controller_said_of_pods_that_are_gone_is_taken_away(town: Running) -> None:
    await submit(town)
    raw = await when(town, admitted)
    path = f"{WORKLOADS}/{raw['metadata']['name']}"
    said = {"type": "PodsReady", "status": "True", "reason": "Started", "message": "", "lastTransitionTime": NOW}
    body = {field: raw[field] for field in ("apiVersion", "kind")} | {"metadata": {"name": raw["metadata"]["name"]}}
    body["status"] = {"conditions": [said]}
    await town.client.apply(f"{path}/status", body, manager="kueue-job-controller-PodsReady")
    with capture_logs() as lines:
        await town.client.merge_patch(path, {"spec": {"active": False}})
        raw = await when(town, lambda raw: "admission" not in raw["status"] and condition(raw, "Evicted"))
    assert not condition(raw, "PodsReady")
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_who_is_paused_is_told_of_the_label_and_is_not_queued_by_another_way(town: Running) -> None:
    """The same sentence in the condition, the Event and on the page; and who sets the Workload active all the same has
    nothing admitted only to be evicted."""
    metrics = counting(town.controller)
    await submit(town, **{NAMES.pause_label: "true"})
    why = f"Its owner paused it (label {NAMES.pause_label}: true); take the label off the job to queue it again"
    raw = await when(town, lambda raw: condition(raw, "QuotaReserved").get("reason") == "Deactivated")
    assert condition(raw, "QuotaReserved")["message"] == why
    (shown,) = (await town.get("/api/jobs"))["items"]
    assert (shown["message"], shown["detail"]) == (why, "Paused")
    assert "label" in shown["owner"]

    async def news() -> list[str]:
        found = (await town.client.get("/api/v1/namespaces/team-a/events"))["items"]
        return [one["message"] for one in found if one["reason"] == "Deactivated"]

    async with asyncio.timeout(300):
        while not (told := await news()):
            await asyncio.sleep(0.02)
    assert told == [why]
    await town.client.merge_patch(f"{WORKLOADS}/{raw['metadata']['name']}", {"spec": {"active": True}})
    await submit(town, "other")  # it is admitted by a later decision
    await town.until(lambda: town.running() == {"other"} and town.controller.jobs.idle)
    assert counted(metrics, "muster_admitted_workloads_total") == {("team-a",): 1}
    await town.client.merge_patch(f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: None}}})
    await town.until(lambda: town.running() == {"other", "train"})
    assert not counted(metrics, "muster_evicted_workloads_total")


async def test_what_is_found_out_at_the_start_is_an_eviction_too(
    town: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, tries = actuate.pins.start, []

    def changed_meanwhile(*args: Any, **options: Any) -> Any:
        tries.append(1)
        made = start(*args, **options)
        return dataclasses.replace(made, problems=("asks for other pods now",)) if len(tries) == 1 else made

    monkeypatch.setattr(actuate.pins, "start", changed_meanwhile)
    metrics = counting(town.controller)
    await submit(town)
    await town.until(lambda: len(tries) == 2 and town.controller.jobs.idle)
    assert counted(metrics, "muster_evicted_workloads_total") == {("", "team-a", "OutOfSync"): 1}


async def test_a_workload_that_nobody_made_a_job_for_is_counted_too(town: Running) -> None:
    metrics = counting(town.controller)
    template = job("team-a", "x", 8, 1)["spec"]["template"] | {"metadata": {}}
    spec = {"queueName": "main", "podSets": [{"name": "main", "count": 1, "template": template}]}
    bare = {"apiVersion": NAMES.api_version, "kind": "Workload", "metadata": {"name": "bare", "namespace": "team-a"}}
    await town.client.create(WORKLOADS, bare | {"spec": spec})
    await when(town, admitted)
    await town.client.merge_patch(f"{OURS}/clusterqueues/team-a", {"spec": {"stopPolicy": "HoldAndDrain"}})
    await when(town, lambda raw: condition(raw, "Evicted").get("status") == "True")
    await town.until(lambda: town.controller.jobs.idle)
    assert counted(metrics, "muster_evicted_workloads_total") == {("", "team-a", "ClusterQueueStopped"): 1}
    lost = [dict(labels) for name, labels in samples(metrics.text()) if name == "muster_evicted_seconds_total"]
    stopped = {"cluster_queue": "team-a", "reason": "ClusterQueueStopped", "flavor": "h100", "resource": GPU}
    assert stopped in lost


async def test_a_reservation_whose_checks_are_open_is_no_admission(town: Running) -> None:
    metrics = counting(town.controller)
    await asks_a_check(town)
    with capture_logs() as lines:
        await reserved_twice_and_admitted(town, metrics)
    lives = [line["event"] for line in of_train(lines, "reserved", "evicted", "admitted")]
    assert lives == ["reserved", "evicted"] * 2 + ["reserved", "admitted"]
    assert [line["checks"] for line in of_train(lines, "reserved")] == [["budget"]] * 3


async def reserved_twice_and_admitted(town: Running, metrics: Metrics) -> None:
    await submit(town)
    for times in (1, 2):
        await answers(town, "Retry")
        await when(town, lambda raw: "admission" not in raw["status"])
        assert counted(metrics, "muster_evicted_workloads_total") == {("", "team-a", "AdmissionCheck"): times}
        for name in ("admitted_workloads_total", "admission_wait_seconds_count"):
            assert not counted(metrics, f"muster_{name}"), name
    await when(town, lambda raw: "admission" in raw["status"])
    now, town.controller.now = town.controller.now, lambda: now() + 3_600_000
    assert 3_600 <= counted(metrics, "muster_oldest_reserved_seconds")[("team-a",)] < 3_700
    town.controller.now = now
    await answers(town, "Ready")
    await when(town, admitted)
    await town.until(lambda: town.controller.jobs.idle)
    for name in ("admitted_workloads_total", "admission_wait_seconds_count"):
        assert counted(metrics, f"muster_{name}") == {("team-a",): 1}, name
    assert not counted(metrics, "muster_oldest_reserved_seconds")


IDLE_FOR = "muster_cluster_queue_idle_seconds_total"


def idles(metrics: Metrics) -> set[str]:
    """How gangs stand that hold devices now and do not run whole: what grows from one look to the next."""
    before, after = counted(metrics, IDLE_FOR), counted(metrics, IDLE_FOR)
    return {labels[-1] for labels, value in after.items() if value > before.get(labels, 0)}


async def test_what_is_held_and_not_at_work_is_counted_by_how_the_gang_stands(town: Running) -> None:
    """A check is open; then the pods start; one is ready no more, and is again; then the gang leaves."""
    metrics = counting(town.controller)
    await asks_a_check(town)
    await town.submit("team-a", "train", pods=2)
    await town.until(lambda: idles(metrics) == {"reserved"})
    assert not counted(metrics, "muster_cluster_queue_used_seconds_total")
    await answers(town, "Ready")
    await town.until(lambda: town.running() == {"train"} and not idles(metrics))
    pod = (await town.client.get("/api/v1/namespaces/team-a/pods"))["items"][0]
    path = f"/api/v1/namespaces/team-a/pods/{pod['metadata']['name']}/status"
    for ready, stands in (("False", {"recovering"}), ("True", set())):
        others = [one for one in pod["status"]["conditions"] if one["type"] != "Ready"]
        turned = {"type": "Ready", "status": ready, "lastTransitionTime": NOW}
        await town.client.merge_patch(path, {"status": {"conditions": [*others, turned]}})
        await town.until(lambda stands=stands: idles(metrics) == stands)
    await town.client.merge_patch(f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: "true"}}})
    await when(town, lambda raw: "admission" not in raw["status"])
    assert not idles(metrics)
    stood = {labels[-1] for labels in counted(metrics, IDLE_FOR)}
    assert stood == {"reserved", "starting", "recovering", "leaving"}
    used = "muster_cluster_queue_used_seconds_total", "muster_local_queue_used_seconds_total"
    of_queue, of_local = (counted(metrics, name) for name in used)
    assert of_local == {("team-a", "h100", "main", "team-a", GPU): of_queue["team-a", "h100", GPU]}


async def test_who_begins_to_lead_and_who_ends_says_so_while_it_does_not(town: Running) -> None:
    """So that what is held from one to the other is counted by one."""
    other = controller(town.client)
    turns: list[bool] = []
    other.watchers.turn.append(lambda: turns.append(other.leading))
    watching = asyncio.create_task(other.watch())
    leading = asyncio.create_task(other.lead())
    await town.until(lambda: other.leading)
    assert turns == [False]
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert turns == [False, False]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_who_leaves_already_is_not_evicted_again(town: Running) -> None:
    """The decision was made while its eviction for another reason was being written."""
    controller, key = town.controller, ("Job", "team-a", "train")
    await submit(town)
    await when(town, admitted)
    await town.until(lambda: town.running() == {"train"} and controller.jobs.idle)
    (seen,) = [one for one in controller.world.workloads.values() if one.namespace == "team-a"]
    metrics = counting(controller)
    late = Evict(seen.key, seen.uid, EvictReason.IN_COHORT_RECLAMATION, ("team-b", "other"), "u", "team-b")
    with capture_logs() as lines:
        async with asyncio.timeout(300):
            while True:
                try:
                    await controller.actuator.take(
                        key, EvictWorkload("ClusterQueueStopped", "The ClusterQueue is stopped")
                    )
                except Conflict:  # its pods became ready since the job was looked at
                    await asyncio.sleep(0.02)
                else:
                    break
        await controller._carry_out(key, late, None)
        raw = await when(town, lambda raw: condition(raw, "Requeued"))
    assert not condition(raw, "Preempted")
    assert counted(metrics, "muster_evicted_workloads_total") == {("", "team-a", "ClusterQueueStopped"): 1}
    counts = [{"reason": "ClusterQueueStopped", "underlyingCause": "", "count": 1}]
    assert raw["status"]["schedulingStats"]["evictions"] == counts
    assert [line["reason"] for line in of_train(lines, "evicted")] == ["ClusterQueueStopped"]


@pytest.mark.parametrize("ends", ["deleted", "finished"])
async def test_the_log_says_what_became_of_a_gang_that_ran(town: Running, ends: str) -> None:
    with capture_logs() as lines:
        await submit(town)
        await when(town, admitted)
        await town.until(lambda: town.running() == {"train"})
        if ends == "deleted":
            await town.delete("team-a", "train")
        else:
            await town.client.merge_patch(f"{JOBS}/train", {"spec": {"activeDeadlineSeconds": 1}})
        await town.until(lambda: of_train(lines, ends))
        await town.until(lambda: town.controller.jobs.idle)
    said = of_train(lines, "admitted", "evicted", "finished", "deleted")
    assert [line["event"] for line in said] == ["admitted", ends]
    if ends == "finished":
        assert said[-1]["reason"] == "Failed"
        assert said[-1]["message"]


async def test_who_was_preempted_waits_since_then(town: Running) -> None:
    """On the page and in the metric; the days that it ran are not waited."""
    clock = town.cluster.clock
    town.cluster.clock = lambda: clock() - 3 * 86_400_000
    await town.submit("team-a", "old", pods=3)
    await town.until(lambda: town.running() == {"old"})
    town.cluster.clock = clock
    preempts = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await town.client.merge_patch(f"{OURS}/clusterqueues/team-a", {"spec": preempts})
    await town.submit("team-a", "new", pods=3, priority="urgent")
    await town.until(lambda: town.running() == {"new"} and town.settled("old")())
    metrics = counting(town.controller)
    waits = counted(metrics, "muster_oldest_pending_seconds")
    answer = await town.get("/api/jobs")
    (shown,) = [one for one in answer["items"] if one["name"] == "old"]
    assert shown["since"] > shown["created"]
    assert 0 < waits[("team-a",)] <= (answer["now"] - shown["since"]) / 1000


async def test_whose_nodes_pods_of_others_hold_is_passed_by_nobody(town: Running) -> None:
    """No quota helps, and nobody else gets these nodes."""
    metrics = counting(town.controller)
    for node in (await town.client.get("/api/v1/nodes"))["items"]:
        name = node["metadata"]["name"]
        container = {"name": "c", "image": "c", "resources": {"requests": {GPU: "1"}, "limits": {GPU: "1"}}}
        spec = {"nodeName": name, "containers": [container]}
        meta = {"name": f"of-{name}", "namespace": "kube-system"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await town.client.create("/api/v1/namespaces/kube-system/pods", body)
    await town.submit("team-a", "waits", gpus=8)
    await town.until(town.settled("waits"))
    whys = [verdict.why.detail for _, verdict, _ in town.controller.numbers.waiting()]
    assert whys == [Detail.NODES_TAKEN]
    assert counted(metrics, "muster_pending_workloads")["team-a", "TopologyPlacementFailed"] == 1
    assert not counted(metrics, "muster_oldest_pending_seconds")


async def test_who_could_never_have_so_much_starves_nobody_is_told(town: Running) -> None:
    """It waits for ever, whoever passes it by; who waits for what others hold does not."""
    metrics = counting(town.controller)
    await town.submit("team-a", "wide", gpus=16)
    await town.until(town.settled("wide"))
    assert counted(metrics, "muster_pending_workloads")["team-a", "TopologyPlacementFailed"] == 1
    assert not counted(metrics, "muster_oldest_pending_seconds")
    demands = job("team-a", "demands", 8, 2)
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    demands["spec"]["template"]["spec"]["topologySpreadConstraints"] = [spread]
    await town.client.create(JOBS, demands)
    await town.until(town.settled("demands"))
    assert Detail.CONSTRAINT_REFUSED in [verdict.why.detail for _, verdict, _ in town.controller.numbers.waiting()]
    assert not counted(metrics, "muster_oldest_pending_seconds")
    await town.submit("team-a", "runs", pods=3)
    await town.until(lambda: town.running() == {"runs"})
    await town.submit("team-a", "waits")
    await town.until(town.settled("waits"))
    assert set(counted(metrics, "muster_oldest_pending_seconds")) == {("team-a",)}


async def test_who_was_evicted_and_whose_pods_do_not_end_is_shown_since_then(town: Running) -> None:
    """It counts as admitted until they have, though nothing of it runs."""
    metrics = counting(town.controller)
    await submit(town)
    await when(town, admitted)
    await town.until(lambda: town.running() == {"train"} and town.controller.jobs.idle)
    assert not counted(metrics, "muster_oldest_leaving_seconds")
    raw = await its_workload(town)
    await pods_run(town)  # one that no node has yet is gone at once
    await kubelets(town, down="true")
    await town.client.merge_patch(f"{WORKLOADS}/{raw['metadata']['name']}", {"spec": {"active": False}})
    await when(town, lambda raw: condition(raw, "Evicted"))
    now, town.controller.now = town.controller.now, lambda: now() + 3_600_000
    (leaving,) = counted(metrics, "muster_oldest_leaving_seconds").values()
    assert 3_600 <= leaving < 3_700

    def overdue() -> float:
        return counted(metrics, "muster_oldest_overdue_seconds").get(("team-a",), 0.0)

    await town.until(lambda: 3_500 < overdue() < leaving - 20)  # its pods were told to end, and have 30 s
    town.controller.now = now
    await kubelets(town, down=None)
    await when(town, lambda raw: "admission" not in raw["status"])
    assert not counted(metrics, "muster_oldest_leaving_seconds")


async def test_a_queue_that_admits_nothing_is_shown_with_the_reason(town: Running) -> None:
    metrics = counting(town.controller)

    def shown() -> dict[tuple[str, ...], float]:
        return counted(metrics, "muster_cluster_queue_inactive")

    assert not shown()
    path = f"{OURS}/clusterqueues/team-a"
    for change, reason in (
        ({"admissionChecksStrategy": {"admissionChecks": [{"name": "budgte"}]}}, "AdmissionCheckNotFound"),
        ({"stopPolicy": "Hold"}, "Stopped"),
    ):
        await town.client.merge_patch(path, {"spec": change})
        await town.until(lambda reason=reason: shown() == {("team-a", reason): 1})
    await town.client.merge_patch(path, {"spec": {"admissionChecksStrategy": None, "stopPolicy": None}})
    await town.until(lambda: not shown())


async def test_series_begin_at_nothing_and_end_with_their_queue(town: Running) -> None:
    metrics = counting(town.controller)

    def of(queue: str) -> dict[str, float]:
        found = samples(metrics.text()).items()
        return {name: value for (name, labels), value in found if ("cluster_queue", queue) in labels}

    begun = ("admitted_workloads_total", "admission_wait_seconds_count", "evicted_workloads_total")
    assert {f"muster_{name}": 0.0 for name in begun}.items() <= of("team-b").items()
    await town.submit("team-b", "beta")
    await town.until(lambda: town.running() == {"beta"} and town.controller.jobs.idle)
    assert of("team-b")["muster_admitted_workloads_total"] == 1
    used = [of("team-b")["muster_cluster_queue_used_seconds_total"] for _ in range(2)]
    assert 0 < used[0] < used[1]
    await town.delete("team-b", "beta")
    await town.until(lambda: not town.workloads())
    await town.client.delete(f"{OURS}/namespaces/team-b/localqueues/main")
    await town.client.delete(f"{OURS}/clusterqueues/team-b")
    await town.until(lambda: "team-b" not in town.controller.numbers.cluster_queues())
    assert not of("team-b")
    assert of("team-a")


class Faulty:
    """An API server that answers some requests with an error, so many times."""

    def __init__(self, method: str, part: str, code: int, reason: str, times: int = 1_000_000, cause: str = "") -> None:
        self.asked, self.times = (method, part), times
        self.left = 0
        causes = [{"reason": cause}] if cause else []
        self.body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
        self.body |= {"message": "no", "details": {"causes": causes}}

    def __call__(self, request: web.Request) -> web.Response | None:
        if self.left <= 0 or request.method != self.asked[0] or self.asked[1] not in request.path:
            return None
        self.left -= 1
        return web.json_response(self.body, status=int(str(self.body["code"])))


FAILS: dict[str, tuple[Faulty, str]] = {
    "the start of a job, time after time": (Faulty("PATCH", "/jobs/", 409, "Conflict"), "Conflict"),
    "statuses of ClusterQueues": (Faulty("PATCH", "/clusterqueues/", 422, "Invalid"), "Invalid"),
    "statuses of LocalQueues": (Faulty("PATCH", "/localqueues/", 403, "Forbidden"), "Forbidden"),
    "Events": (Faulty("POST", "/events", 403, "Forbidden"), "Forbidden"),
    "why a gang waits": (Faulty("PATCH", "/workloads/", 403, "Forbidden"), "Forbidden"),
}


@pytest.mark.parametrize("case", FAILS)
async def test_writes_that_fail_are_counted_whatever_they_are_of(case: str) -> None:
    fault, error = FAILS[case]
    async with running(fault) as town:
        metrics = counting(town.controller)
        if case == "why a gang waits":
            await town.submit("team-a", "large", pods=4)
            await town.until(town.settled("large"))
        fault.left = fault.times
        await submit(town)
        await town.until(lambda: counted(metrics, "muster_write_failures_total").get((error,)))
        fault.left = 0
        assert set(counted(metrics, "muster_write_failures_total")) == {(error,)}


async def test_reasons_that_are_refused_time_after_time_are_logged_once() -> None:
    fault = Faulty("PATCH", "/workloads/", 403, "Forbidden")
    async with running(fault) as town:
        fault.left = fault.times
        with capture_logs() as logs:
            for i in range(3):
                await town.submit("team-a", f"large-{i}", pods=4)
            await town.until(lambda: fault.times - fault.left > 5)
            fault.left = 0
            await town.until(lambda: {"waits"} <= {line["event"] for line in logs})
        told = [line for line in logs if line["event"] == "reason not written"]
        assert {(line["kind"], line["name"], line["queue"]) for line in told} <= {
            ("Job", f"large-{i}", "team-a") for i in range(3)
        }
        assert finds("MusterWritesFail", told[0]["event"])
        levels = [line["log_level"] for line in told]
        assert levels[0] == "warning"
        assert set(levels[1:]) == {"debug"}


async def test_whose_admission_is_being_written_does_not_wait_for_a_reason() -> None:
    fault = Faulty("PATCH", "/workloads/", 403, "Forbidden")
    async with running(fault) as town:
        metrics = counting(town.controller)
        fault.left = fault.times
        await submit(town)
        verdicts = town.controller.verdicts
        await town.until(lambda: any(one.standing is Standing.ADMITTED for one in verdicts.values()))
        assert not counted(metrics, "muster_pending_workloads")
        assert counted(metrics, "muster_workloads") == {("team-a", "admitted"): 1}
        fault.left = 0


async def test_a_race_that_is_lost_once_is_no_failure() -> None:
    fault = Faulty("PATCH", "/jobs/", 409, "Conflict", times=2)
    async with running(fault) as town:
        metrics = counting(town.controller)
        fault.left = fault.times
        await submit(town)
        await town.until(lambda: town.running() == {"train"} and not fault.left and town.controller.jobs.idle)
        assert not counted(metrics, "muster_write_failures_total")


def refused(town: Running) -> int:
    return sum(count for (*_, code), count in town.client.counts.items() if code == 403)


async def test_nothing_is_made_in_a_namespace_that_is_being_deleted(town: Running) -> None:
    metrics = counting(town.controller)
    await submit(town)
    raw = await when(town, admitted)
    await town.client.merge_patch("/api/v1/namespaces/team-a", {"metadata": {"finalizers": ["example.com/slow"]}})
    await town.client.delete("/api/v1/namespaces/team-a")
    world = town.controller.world
    await town.until(lambda: world.sight(("Job", "team-a", "train"), 0).terminating)
    assert not world.sight(("Job", "team-b", "train"), 0).terminating
    with contextlib.suppress(NotFound):  # whoever empties the namespace may have been quicker
        await town.client.delete(f"{WORKLOADS}/{raw['metadata']['name']}")
    await town.until(lambda: not town.workloads() and town.controller.jobs.idle)
    await town.submit("team-b", "beta")
    await town.until(lambda: town.running() == {"beta"} and town.controller.jobs.idle)
    assert not refused(town)
    assert not counted(metrics, "muster_write_failures_total")


async def test_that_a_namespace_is_being_deleted_may_be_learned_from_an_answer() -> None:
    fault = Faulty("POST", "/workloads", 403, "Forbidden", cause="NamespaceTerminating")
    async with running(fault) as town:
        metrics = counting(town.controller)
        fault.left = fault.times
        await submit(town)
        await town.until(lambda: fault.left < fault.times)
        fault.left = 0
        await town.until(lambda: town.controller.jobs.idle)
        assert not refused(town)
        assert not counted(metrics, "muster_write_failures_total")
