"""Long random days of a whole controller: see `storm`. At rest, everything must be in its place.

STORMS=N plays the first N instead of the few that are always played, in which each of the `upheavals` happens.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random  # noqa: TID251  # seeded, and not of the engine
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from admission.engine.model import Admit, Evict
from admission.kube.client import ApiError
from admission.names import KUEUE_GROUP, MUSTER_GROUP, Names
from admission.sandbox.actors import FAIL, NODE_DOWN, RUN_TIME, Jobs
from e2e import invariants
from tests.controller import upheavals
from tests.controller.lab import API, GPU, NAMES, Json, local_queue, own
from tests.controller.storm import Replica, Town, Weather, Wire, due, in_group, played

SEEDS: dict[str, Sequence[int]] = {"muster": (0, 61, 72, 276), "kueue": (1, 14), "workloads": (1,)}
"""By whose rules. `workloads`: by Kueue's, and there are no jobs, but Workloads that tools make."""
if "STORMS" in os.environ:
    SEEDS = dict.fromkeys(SEEDS, range(int(os.environ["STORMS"])))
KINDS = ("Job", "JobSet", "Workload", "Pod", "Node", "ClusterQueue", "LocalQueue", "ResourceFlavor", "Cohort")
RACK = "rack"
OURS = f"/apis/{API}"
MADE = ("POST", "/workloads")


def node(i: int) -> Json:
    name = f"n{i}"
    capacity = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}
    labels = {"gpu": "h100" if i < 5 else "a100", "kubernetes.io/hostname": name, RACK: f"r{i % 3}"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def queue(name: str, chance: random.Random) -> Json:
    def quota() -> Json:
        out: Json = {"name": GPU, "nominalQuota": chance.choice([4, 8, 16, 24])}
        if chance.random() < 0.3:
            out["borrowingLimit"] = chance.choice([0, 8, 16])
        if chance.random() < 0.2:
            out["lendingLimit"] = chance.choice([0, 4])
        return out

    spec: Json = {
        "namespaceSelector": {},
        "queueingStrategy": chance.choice(["BestEffortFIFO", "BestEffortFIFO", "StrictFIFO"]),
        "preemption": {
            "reclaimWithinCohort": chance.choice(["Never", "Any", "LowerPriority"]),
            "withinClusterQueue": chance.choice(["Never", "LowerPriority"]),
        },
        "stopPolicy": chance.choice(["None"] * 6 + ["Hold", "HoldAndDrain"]),
        "cohortName": chance.choice(["lab", "lab", "lab", "other"]),
        "resourceGroups": [
            {
                "coveredResources": [GPU],
                "flavors": [
                    {"name": one, "resources": [quota()]} for one in chance.choice([["h100"], ["h100", "a100"]])
                ],
            }
        ],
    }
    return own("ClusterQueue", name, spec)


def template(chance: random.Random) -> Json:
    runs = chance.choice(["20s", "90s", "400s", "48h", "48h"])
    notes = {RUN_TIME: runs}
    if chance.random() < 0.15:
        notes[FAIL] = "true"
    if chance.random() < 0.2:
        notes[f"{NAMES.group}/podset-{chance.choice(['required', 'preferred'])}-topology"] = RACK
    gpus = str(chance.choice([1, 2, 4, 8]))
    container = {"name": "m", "image": "x", "resources": {"requests": {GPU: gpus}, "limits": {GPU: gpus}}}
    return {"metadata": {"annotations": notes}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def a_job(name: str, chance: random.Random) -> Json:
    labels = {NAMES.queue_label: chance.choice(["a", "b", "c"])}
    notes: Json = {}
    if chance.random() < 0.3:
        labels[NAMES.priority_class_label] = chance.choice(["low", "high"])
    if chance.random() < 0.1:
        labels[NAMES.max_exec_time_label] = "300"
    meta = {"name": name, "namespace": "ml", "labels": labels, "annotations": notes}

    def batch() -> Json:
        pods = chance.choice([1, 2, 2, 3, 4])
        out: Json = {
            "parallelism": pods,
            "completions": pods * chance.choice([1, 1, 2]),
            "template": template(chance),
            "completionMode": chance.choice(["Indexed", "Indexed", "NonIndexed"]),
            "backoffLimit": chance.choice([0, 1, 2]),
        }
        if chance.random() < 0.3:
            out["podReplacementPolicy"] = chance.choice(["Failed", "TerminatingOrFailed"])
        if chance.random() < 0.3:
            rule = {
                "action": chance.choice(["Ignore", "FailJob", "Count"]),
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            }
            out["podFailurePolicy"] = {"rules": [rule]}
            out.pop("podReplacementPolicy", None)
        if out["completionMode"] == "Indexed" and chance.random() < 0.15:
            del out["backoffLimit"]
            out["backoffLimitPerIndex"] = 1
        return out

    if chance.random() < 0.7:
        spec = batch()
        if chance.random() < 0.2:
            notes[NAMES.min_parallelism_annotation] = "1"
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
    parts = [{"name": f"p{i}", "replicas": chance.choice([1, 2]), "template": {"spec": batch()}} for i in range(2)]
    spec = {"replicatedJobs": parts, "failurePolicy": {"maxRestarts": chance.choice([0, 2])}}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}


PATHS = {"Job": "/apis/batch/v1/namespaces/ml/jobs", "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets"}


class Storm:
    def __init__(self, seed: int, *, workloads_only: bool = False) -> None:
        self.workloads_only = workloads_only
        self.chance = random.Random(seed)
        self.town = Town()
        self.weather = [Weather(random.Random(seed * 3 + i)) for i in range(3)]
        self.user = Wire(self.town, Weather(random.Random(seed)), "alice")
        self.made = 0
        self.story: list[str] = []
        self.replicas: list[Replica] = []
        self.manners: Json = {}
        self.upheavals = upheavals.of(self, seed, *["tools"] * workloads_only)

    def objects(self, group: str, plural: str) -> list[Json]:
        return list(self.town.store.objects(group, plural))

    async def begin(self) -> None:
        user = self.user
        await user.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        for name, value in (("low", -5), ("high", 100)):
            body = {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
            await user.create(f"{OURS}/workloadpriorityclasses", body)
        levels = {"levels": [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]}
        await user.create(f"{OURS}/topologies", own("Topology", "racks", levels))
        for name in ("h100", "a100"):
            spec = {"nodeLabels": {"gpu": name}, "topologyName": "racks"}
            await user.create(f"{OURS}/resourceflavors", own("ResourceFlavor", name, spec))
        await user.create(f"{OURS}/cohorts", own("Cohort", "lab"))
        for name in "abc":
            await user.create(f"{OURS}/clusterqueues", queue(name, self.chance))
            await user.create(f"{OURS}/namespaces/ml/localqueues", local_queue(name, name))
        for i in range(8):
            await user.create("/api/v1/nodes", node(i))
        for one in self.upheavals:
            with suppress(ApiError):
                await one.begin()
        self.replicas = [self.replica(self.weather[i]) for i in range(2)]
        self.replicas[0].lead()

    async def opens(self) -> None:
        """Queue a takes whoever comes."""
        spec = queue("a", random.Random(1))["spec"] | {"stopPolicy": "None"}
        await self.user.merge_patch(f"{OURS}/clusterqueues/a", {"spec": spec})

    async def end(self) -> None:
        for one in self.replicas:
            await one.end()
        await self.town.end()

    def replica(self, weather: Weather) -> Replica:
        return Replica(self.town, weather, workloads_only=self.workloads_only, manners=self.manners)

    # -- what happens

    async def submits(self) -> None:
        if self.workloads_only:
            (tools,) = [one for one in self.upheavals if isinstance(one, upheavals.Tools)]
            await tools.workload_comes()
            return
        self.made += 1
        body = a_job(f"j{self.made}", self.chance)
        for one in self.upheavals:
            one.makes(body)
        await self.user.create(PATHS[body["kind"]], body)

    def some_job(self) -> str | None:
        here = [
            (k, o)
            for k, p in (("Job", ("batch", "jobs")), ("JobSet", ("jobset.x-k8s.io", "jobsets")))
            for o in self.objects(*p)
            if not o["metadata"].get("ownerReferences")
        ]
        if not here:
            return None
        kind, found = self.chance.choice(here)
        return f"{PATHS[kind]}/{found['metadata']['name']}"

    async def job_changes(self) -> None:
        path = self.some_job()
        if path is None:
            return
        pause = {"metadata": {"labels": {NAMES.pause_label: self.chance.choice(["true", None, None])}}}
        moved = {"metadata": {"labels": {NAMES.queue_label: self.chance.choice(["a", "b", "c"])}}}
        ranked = {"metadata": {"labels": {NAMES.priority_class_label: self.chance.choice(["low", "high"])}}}
        gate = {
            "metadata": {"annotations": {NAMES.gated_by_annotation: self.chance.choice(["example.com/x", None, None])}}
        }
        sized = {"spec": {"parallelism": self.chance.choice([1, 2, 3])}}
        held = {"spec": {"suspend": True}}
        await self.user.merge_patch(path, self.chance.choice([pause, pause, moved, ranked, gate, sized, held]))

    async def job_goes(self) -> None:
        path = self.some_job()
        if path is not None:
            await self.user.delete(path, propagation=self.chance.choice(["Background", "Foreground", "Orphan"]))

    async def workload_changes(self) -> None:
        here = self.objects(NAMES.group, "workloads")
        if here:
            path = f"{OURS}/namespaces/ml/workloads/{self.chance.choice(here)['metadata']['name']}"
            if self.chance.random() < 0.4:
                await self.user.delete(path)
            else:
                await self.user.merge_patch(path, {"spec": {"active": self.chance.random() < 0.6}})

    async def queue_changes(self) -> None:
        name = self.chance.choice("abc")
        await self.user.merge_patch(f"{OURS}/clusterqueues/{name}", {"spec": queue(name, self.chance)["spec"]})

    async def local_queue_goes(self) -> None:
        name = self.chance.choice("abc")
        path = f"{OURS}/namespaces/ml/localqueues"
        try:
            await self.user.delete(f"{path}/{name}")
        except ApiError:
            await self.user.create(path, local_queue(name, self.chance.choice("abc")))

    async def node_changes(self) -> None:
        name = f"n{self.chance.randrange(8)}"
        down = {"metadata": {"annotations": {NODE_DOWN: self.chance.choice(["true", None, None])}}}
        cordoned = {"spec": {"unschedulable": self.chance.choice([True, None])}}
        effect = self.chance.choice(["NoSchedule", "NoExecute"])
        tainted = {"spec": {"taints": self.chance.choice([None, [{"key": "x", "effect": effect}]])}}
        try:
            if self.chance.random() < 0.1:
                await self.user.delete(f"/api/v1/nodes/{name}")
            else:
                await self.user.merge_patch(f"/api/v1/nodes/{name}", self.chance.choice([down, cordoned, tainted]))
        except ApiError:
            await self.user.create("/api/v1/nodes", node(int(name[1:])))

    async def pod_goes(self) -> None:
        here = [one for one in self.objects("", "pods") if one.get("status", {}).get("phase") in ("Running", "Pending")]
        if not here:
            return
        pod = self.chance.choice(here)
        path = f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}"
        how = self.chance.choice(["evict", "delete", "pressure", "fail"])
        if how == "evict":
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod["metadata"]["name"], "namespace": "ml"},
            }
            await self.user.create(f"{path}/eviction", body)
        elif how == "delete":
            await self.user.delete(path)
        else:
            said = (
                [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
                if how == "pressure"
                else []
            )
            status = {"phase": "Failed", "reason": "Evicted" if said else "Error"}
            pod = await self.user.get(path)
            pod["status"] = {**pod["status"], **status, "conditions": [*pod["status"].get("conditions", []), *said]}
            await self.user.put(f"{path}/status", pod)

    async def leader_changes(self) -> None:
        if self.town.two_lead:
            return
        first, second = self.replicas
        if self.chance.random() < 0.5:
            await first.resign()
            self.replicas = [second, first]
        else:
            await first.die()
            self.replicas = [second, self.replica(self.chance.choice(self.weather))]
        self.replicas[0].lead()

    async def weather_changes(self) -> None:
        for one in self.weather:
            one.bad = self.chance.choice([0.0, 0.05, 0.3])
            one.lag = {kind: self.chance.choice([0, 0, 0.5, 5.0]) for kind in KINDS}

    async def rages(self, steps: int) -> None:
        kinds = (
            [self.submits] * 8
            + [self.job_changes] * 4
            + [self.job_goes] * 2
            + [self.workload_changes, self.queue_changes]
        )
        kinds += [
            self.local_queue_goes,
            self.node_changes,
            self.node_changes,
            self.pod_goes,
            self.pod_goes,
            self.leader_changes,
        ]
        kinds += [self.weather_changes]
        # Each of them happens about as often, however many there are.
        kinds += [action for one in self.upheavals for action in one.actions()]
        for _ in range(steps):
            what = self.chance.choice(kinds)
            self.story.append(f"{self.town.loop.time():.2f} {what.__name__}")
            try:
                await what()
            except ApiError as refused:
                self.story[-1] += f": {refused}"
            await asyncio.sleep(self.chance.choice([0.0, 0.01, 0.05, 0.3, 2.0, 20.0, 120.0]))

    async def calms(self) -> None:
        for upheaval in self.upheavals:
            await upheaval.calms()
        for one in self.weather:
            one.bad, one.lag, one.ahead_ms = 0.0, {}, 0
        for i in range(8):
            with suppress(ApiError):
                await self.user.create("/api/v1/nodes", node(i))
            change = {"metadata": {"annotations": {NODE_DOWN: None}}, "spec": {"unschedulable": None, "taints": None}}
            await self.user.merge_patch(f"/api/v1/nodes/n{i}", change)
        await asyncio.sleep(2 * 3600)
        await self.orphans_go()
        await asyncio.sleep(3600)

    async def orphans_go(self) -> None:
        """Who deletes the Workload of pods that no job stops any more deletes them, too, as the docs say."""
        there = {one["metadata"]["uid"] for one in self.objects(NAMES.group, "workloads")}
        for pod in self.objects("", "pods"):
            meta = pod["metadata"]
            if meta.get("labels", {}).get(NAMES.workload_uid_label, "") not in {"", *there}:
                await self.user.delete(f"/api/v1/namespaces/ml/pods/{meta['name']}")

    # -- what must hold

    async def wrong(self) -> list[str]:
        leader, since = self.replicas[0].controller, self.replicas[0].since
        away = self.town.longest_away
        notice = 30.0 + (away + 30.0 if away else 0.0)  # who is refused a watch asks again after 30 s at most
        judged = {
            "group": NAMES.group,
            "settle": 30.0,
            "notice": notice,
            "watching": since,
            "rivalries": self.town.rivalries,
        }
        found = list(map(str, invariants.check(self.town.entries, **judged)))
        found += [f"drift: {one}" for one in leader.state.drift()]
        before = len(self.town.entries)
        writes = len(self.town.requests)
        await asyncio.sleep(600)
        # A claim is renewed for as long as the room is waited for, each half of its time.
        quiet = self.town.entries[before:]
        noise = [one for one in quiet if "claim" not in one.object.get("status", {})]
        renewed = Counter(one.name for one in quiet if "claim" in one.object.get("status", {}))
        found += [f"not quiet: {name} is written {n} times" for name, n in renewed.items() if n > 600 // 150]
        found += [f"not quiet: {one.kind} {one.name} {one.type}" for one in noise]
        patched = [one for one in list(self.town.requests)[writes:] if "/workloads/" not in one[1]]
        found += [f"not quiet: {one}" for one in patched]
        fresh = self.replica(Weather(random.Random(0)))
        await asyncio.sleep(5)
        now = self.town.clock()
        for who, controller in (("leader", leader), ("fresh", fresh.controller)):
            found += [f"due, says {who}: {one}" for one in due(controller, now)]
        plan = fresh.controller.decide_once()
        while plan.more and not plan.decisions:
            plan = fresh.controller.decide_once()
        found += [
            f"a fresh leader would {type(one).__name__} {one.key}"
            for one in plan.decisions
            if isinstance(one, Admit | Evict)
        ]
        for key, verdict in fresh.controller.verdicts.items():
            seen = fresh.controller.world.workloads[key]
            stored = self.town.store.find(NAMES.group, "workloads", *key)
            told = [c for c in stored["status"].get("conditions", ()) if c["type"] == "QuotaReserved"] if stored else []
            ours = leader.verdicts.get(key)
            if ours is None or ours.why.reason != verdict.why.reason:
                found.append(f"{key}: leader thinks {ours and ours.why}, fresh {verdict.why}")
            if not told or told[0]["reason"] != verdict.why.reason.value:
                found.append(f"{key}: told {told and told[0]}, fresh {verdict.why}; {seen.view.value.requeue_at - now}")
        await fresh.end()
        return found


async def storm(seed: int, steps: int, *, workloads_only: bool = False) -> list[str]:
    made = Storm(seed, workloads_only=workloads_only)
    await made.begin()
    await made.rages(steps)
    await made.calms()
    found = await made.wrong()
    await made.end()
    return found


@pytest.mark.skipif(bool({"STORMS", "UPHEAVALS"} & os.environ.keys()), reason="others were asked for")
def test_each_upheaval_happens_in_a_storm_that_is_always_played() -> None:
    calm: Any = SimpleNamespace(chance=random.Random(1), user=None)
    played = {type(one) for seeds in SEEDS.values() for seed in seeds for one in upheavals.of(calm, seed)}
    assert played == set(upheavals.UPHEAVALS.values())


@pytest.mark.parametrize(("rules", "seed"), [(rules, seed) for rules in SEEDS for seed in SEEDS[rules]])
def test_after_a_storm_everything_is_in_its_place(rules: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    group = MUSTER_GROUP if rules == "muster" else KUEUE_GROUP
    in_group(monkeypatch, Names(group), upheavals, sys.modules[__name__])
    found: list[Any] = []

    async def main() -> None:
        steps = int(os.environ.get("STEPS", "60"))
        found.extend(await storm(seed, steps, workloads_only=rules == "workloads"))

    played(monkeypatch, seed, main)
    assert not found, "\n".join(map(str, found[:30]))


def test_a_workload_is_not_made_again_and_again_for_a_job_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news of its end is late, and each Workload is deleted at once, for its owner is no more."""
    made: list[str] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        for name in "abc":
            await scene.user.merge_patch(f"{OURS}/clusterqueues/{name}", {"spec": {"stopPolicy": "Hold"}})
        await scene.submits()
        await asyncio.sleep(10)
        scene.weather[0].lag = {"Job": 1000.0, "JobSet": 1000.0}
        before = len(scene.town.requests)
        path = scene.some_job()
        assert path is not None
        await scene.user.delete(path, propagation="Background")
        await asyncio.sleep(10)
        made.extend(path for verb, path in list(scene.town.requests)[before:] if (verb, path[-10:]) == MADE)
        await scene.end()

    played(monkeypatch, 0, main)
    assert 2 <= len(made) <= 11


def lasting(name: str, gpus: int, **labels: str) -> Json:
    """A job of one pod that runs for long, in queue a."""
    limits = {GPU: str(gpus)}
    container = {"name": "m", "image": "x", "resources": {"requests": limits, "limits": limits}}
    pods = {"metadata": {"annotations": {RUN_TIME: "48h"}}, "spec": {"restartPolicy": "Never"}}
    pods["spec"]["containers"] = [container]
    meta = {"name": name, "namespace": "ml", "labels": {NAMES.queue_label: "a", **labels}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": pods}}


def test_a_new_leader_starts_nothing_by_a_reservation_that_was_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows of jobs at once, and of Workloads late."""
    found: list[str] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        await scene.user.create(PATHS["Job"], lasting("runs", 1))
        await asyncio.sleep(5)
        scene.weather[1].lag = {"Workload": 1e6}
        (workload,) = scene.objects(NAMES.group, "workloads")
        assert workload["status"].get("admission")
        path = f"{OURS}/namespaces/ml/workloads/{workload['metadata']['name']}"
        await scene.user.merge_patch(path, {"spec": {"active": False}})
        await asyncio.sleep(5)
        (workload,) = scene.objects(NAMES.group, "workloads")
        assert not workload["status"].get("admission")
        await scene.replicas[0].resign()
        scene.replicas[1].lead()
        await asyncio.sleep(5)
        found.extend(map(str, invariants.check(scene.town.entries, at_end=False)))
        await scene.end()

    played(monkeypatch, 0, main)
    assert found == []


def test_a_jobset_is_not_over_while_pods_run_of_which_nothing_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its Jobs fails at once, the pods of the other take their grace to end, and news of pods is late."""
    found: list[str] = []
    ended: list[Json] = []

    def part(name: str, **notes: str) -> Json:
        limits = {GPU: "1"}
        container = {"name": "m", "image": "x", "resources": {"requests": limits, "limits": limits}}
        pods = {"metadata": {"annotations": notes}, "spec": {"restartPolicy": "Never", "containers": [container]}}
        return {"name": name, "replicas": 1, "template": {"spec": {"backoffLimit": 0, "template": pods}}}

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        scene.weather[0].lag = {"Pod": 30.0}
        parts = [part("runs", **{RUN_TIME: "48h"}), part("fails", **{RUN_TIME: "2s", FAIL: "true"})]
        meta = {"name": "both", "namespace": "ml", "labels": {NAMES.queue_label: "a"}}
        body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
        spec = {"replicatedJobs": parts, "failurePolicy": {"maxRestarts": 0}}
        await scene.user.create(PATHS["JobSet"], {**body, "spec": spec})
        await asyncio.sleep(120)
        found.extend(map(str, invariants.check(scene.town.entries, at_end=False)))
        (workload,) = scene.objects(NAMES.group, "workloads")
        ended.extend(one for one in workload["status"]["conditions"] if one["type"] == "Finished")
        await scene.end()

    played(monkeypatch, 0, main)
    assert found == []
    assert [one["reason"] for one in ended] == ["Failed"]


def two_pods(kind: str) -> Json:
    """A job `j` of two pods that run for long, in queue a."""
    made = lasting("j", 1)
    made["spec"] |= {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    if kind == "JobSet":
        made["apiVersion"], made["kind"] = "jobset.x-k8s.io/v1alpha2", kind
        made["spec"] = {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": made["spec"]}}]}
    return made


def test_a_gang_in_slices_of_which_a_pod_is_done_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of its four pods are left, in slices of two."""
    running: list[int] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        made = two_pods("Job")
        made["spec"] |= {"parallelism": 4, "completions": 4}
        slices = {NAMES.slice_required_topology_annotation: RACK, NAMES.slice_size_annotation: "2"}
        made["spec"]["template"]["metadata"]["annotations"] |= slices
        await scene.user.create(PATHS["Job"], made)
        await asyncio.sleep(10)
        pod = scene.objects("", "pods")[0]
        ended = {"status": {**pod["status"], "phase": "Succeeded"}}
        await scene.user.merge_patch(f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}/status", ended)
        await asyncio.sleep(10)
        for said in ("true", None):
            pause = {"metadata": {"labels": {NAMES.pause_label: said}}}
            await scene.user.merge_patch(f"{PATHS['Job']}/j", pause)
            await asyncio.sleep(60)
            running.append(sum(pod["status"]["phase"] == "Running" for pod in scene.objects("", "pods")))
        await scene.end()

    played(monkeypatch, 0, main)
    assert running == [0, 3]


NO_CLASS = {"labels": {NAMES.queue_label: "a", f"{NAMES.group}/priority-class": "no-such"}}
MENDED = {"labels": {NAMES.queue_label: "a", f"{NAMES.group}/priority-class": None}}


@pytest.mark.parametrize("leads", ["one", "another since", "nobody before"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([({"gpu": "h100"}, {})], id="queued all the time"),
        pytest.param([({"gpu": "h100"}, MENDED)], id="refused before"),
        pytest.param([({"gpu": "h100"}, NO_CLASS), ({"gpu": "h100"}, MENDED)], id="refused with what it gave up"),
    ],
)
def test_a_held_jobset_goes_where_its_owner_has_it_go_at_last(
    changes: list[tuple[Json, Json]], leads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Jobs are made while it is held, and its controller adds to them what the JobSet says when it starts."""
    running: list[int] = []
    refused = changes[0][1] == MENDED

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        made = two_pods("JobSet")
        made["metadata"] |= NO_CLASS if refused else {}
        (part,) = made["spec"]["replicatedJobs"]
        part["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such", "gpu": "h100"}
        first, second = scene.replicas
        if leads == "nobody before":
            await first.resign()
        await scene.user.create(PATHS["JobSet"], made)
        await asyncio.sleep(10)
        assert len(scene.objects(NAMES.group, "workloads")) == (not refused and leads != "nobody before")
        (held,) = scene.objects("jobset.x-k8s.io", "jobsets")
        (child,) = scene.objects("batch", "jobs")
        assert held["spec"]["suspend"] is child["spec"]["suspend"] is True
        parts = copy.deepcopy(held["spec"]["replicatedJobs"])
        for selector, metadata in changes:
            if leads == "another since" and metadata == changes[-1][1]:
                await first.resign()
                second.lead()
            parts[0]["template"]["spec"]["template"]["spec"]["nodeSelector"] = selector
            change = {"metadata": metadata, "spec": {"replicatedJobs": parts}}
            await scene.user.merge_patch(f"{PATHS['JobSet']}/j", change)
            await asyncio.sleep(30)
        if leads == "nobody before":
            second.lead()
            await asyncio.sleep(30)
        (child,) = scene.objects("batch", "jobs")
        assert child["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
        running.append(sum(pod["status"]["phase"] == "Running" for pod in scene.objects("", "pods")))
        await scene.end()

    played(monkeypatch, 0, main)
    assert running == [2]


@pytest.mark.parametrize("leads", ["one", "another since"])
def test_what_a_webhook_had_the_jobs_of_a_jobset_select_stays(leads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner takes a label out, and that alone goes."""
    left: list[Json] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        made = two_pods("JobSet")
        (part,) = made["spec"]["replicatedJobs"]
        part["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such", "gpu": "h100"}
        await scene.user.create(PATHS["JobSet"], made)
        await asyncio.sleep(10)
        (child,) = scene.objects("batch", "jobs")
        by_webhook = {"spec": {"template": {"spec": {"nodeSelector": {"rack": "none"}}}}}
        await scene.user.merge_patch(f"{PATHS['Job']}/{child['metadata']['name']}", by_webhook)
        if leads == "another since":
            first, second = scene.replicas
            await first.resign()
            second.lead()
        (held,) = scene.objects("jobset.x-k8s.io", "jobsets")
        parts = copy.deepcopy(held["spec"]["replicatedJobs"])
        parts[0]["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "h100"}
        await scene.user.merge_patch(f"{PATHS['JobSet']}/j", {"spec": {"replicatedJobs": parts}})
        await asyncio.sleep(30)
        (child,) = scene.objects("batch", "jobs")
        left.append(child["spec"]["template"]["spec"]["nodeSelector"])
        await scene.end()

    played(monkeypatch, 0, main)
    assert left == [{"gpu": "h100", "rack": "none"}]


@pytest.mark.parametrize(
    ("kind", "since", "paused"),
    [
        ("Job", "start", False),
        ("Job", "start", True),
        ("Job", "stop", True),
        ("JobSet", "start", False),
        ("JobSet", "stop", True),
    ],
)
def test_a_job_that_its_controller_leaves_alone_runs_when_that_is_over(
    kind: str, since: str, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Job controller does with one of which it expects to see pods that it does not see: for five minutes, and
    then until somebody changes the Job. Its user pauses it, and lets it run again."""
    found: list[str] = []
    running: list[int] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        leader = scene.replicas[0].controller
        leader.settings = replace(leader.settings, pods_ready_ms=1_800_000, recovery_ms=1_800_000)  # as users have it
        (jobs,) = [actor for actor in scene.town.cluster.actors if isinstance(actor, Jobs)]
        look, until = jobs.sync, 0
        monkeypatch.setattr(jobs, "sync", lambda where, now: look(where, now) if now >= until else [])
        if since == "start":
            until = scene.town.clock() + 300_000
        await scene.user.create(PATHS[kind], two_pods(kind))
        await asyncio.sleep(5)
        if since == "stop":
            until = scene.town.clock() + 300_000
        for said in ("true", None) if paused else ():
            pause = {"metadata": {"labels": {NAMES.pause_label: said}}}
            await scene.user.merge_patch(f"{PATHS[kind]}/j", pause)
            await asyncio.sleep(2)
        await asyncio.sleep(720)
        here = scene.objects("", "pods")
        running.append(sum(pod["status"]["phase"] == "Running" for pod in here))
        (workload,) = scene.objects(NAMES.group, "workloads")
        found.extend(one["type"] for one in workload["status"]["conditions"] if one["status"] == "True")
        found.extend(map(str, invariants.check(scene.town.entries, at_end=False)))
        await scene.end()

    played(monkeypatch, 0, main)
    assert running == [2]
    assert sorted(found) == ["Admitted", "QuotaReserved", *["Requeued"] * paused]


def jobs_wait_until(scene: Storm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When (one number) the Job controller comes to Jobs that were changed before."""
    (jobs,) = [actor for actor in scene.town.cluster.actors if isinstance(actor, Jobs)]
    look, until = jobs.sync, [0]

    def late(where: tuple[str, str], now: int) -> Any:
        if now < until[0]:
            jobs.later(where, until[0])
        return look(where, now) if now >= until[0] else []

    monkeypatch.setattr(jobs, "sync", late)
    return until


async def another_leads(scene: Storm) -> invariants.Judge:
    """For two minutes; judged after that."""
    first, second = scene.replicas
    await first.resign()
    second.lead()
    await asyncio.sleep(120)
    return invariants.replay(scene.town.entries, at_end=False)


def test_a_gang_that_is_evicted_before_its_start_was_noticed_gets_no_pods_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Job controller has much to do, and comes to a Job a minute after it was changed."""
    found: list[str] = []
    started: list[int] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        pause: Json = {"metadata": {"labels": {NAMES.pause_label: "true"}}}
        go_on: Json = {"metadata": {"labels": {NAMES.pause_label: None}}}
        job = two_pods("Job")
        job["metadata"]["labels"] |= pause["metadata"]["labels"]
        await scene.user.create(PATHS["Job"], job)
        await asyncio.sleep(5)
        jobs_wait_until(scene, monkeypatch)[0] = scene.town.clock() + 60_000
        for said in (go_on, pause):
            await scene.user.merge_patch(f"{PATHS['Job']}/j", said)
            await asyncio.sleep(5)
        (made,) = scene.objects("batch", "jobs")
        started.append(sum(one.kind == "Job" and not one.object["spec"]["suspend"] for one in scene.town.entries))
        assert made["spec"]["suspend"], "it was started, and is to stop again"
        await asyncio.sleep(120)
        (workload,) = scene.objects(NAMES.group, "workloads")
        found.extend(one.name for one in scene.town.entries if one.kind == "Pod")
        found.extend(["not released"] * ("admission" in workload["status"]))
        found.extend(map(str, invariants.check(scene.town.entries, at_end=False)))
        await scene.end()

    played(monkeypatch, 0, main)
    assert started[0] > 0
    assert found == []


def test_a_new_leader_stops_nothing_of_which_it_knows_the_start_before_the_reservation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts: list[int] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        monkeypatch.setattr(scene.weather[1], "delay", lambda kind: 30.0 if kind == "Workload" else 0.01)
        await scene.user.create(PATHS["Job"], lasting("runs", 1))
        await asyncio.sleep(2)
        judge = await another_leads(scene)
        assert judge.violations == []
        starts.append(judge.figures.starts)
        await scene.end()

    played(monkeypatch, 0, main)
    assert starts == [1]


def test_a_new_leader_evicts_nobody_for_what_its_job_said_before_the_reservation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner paused it, and let it run again; of that the new leader hears late, and of the rest at once."""
    found: list[object] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        await scene.user.create(PATHS["Job"], lasting("runs", 1))
        await asyncio.sleep(10)
        monkeypatch.setattr(scene.weather[1], "delay", lambda kind: 30.0 if kind == "Job" else 0.01)
        for said in ("true", None):
            pause = {"metadata": {"labels": {NAMES.pause_label: said}}}
            await scene.user.merge_patch(f"{PATHS['Job']}/runs", pause)
            await asyncio.sleep(5)
        judge = await another_leads(scene)
        (workload,) = scene.objects(NAMES.group, "workloads")
        found.extend([judge.violations, judge.figures.starts, workload["spec"]["active"]])
        await scene.end()

    played(monkeypatch, 0, main)
    assert found == [[], 2, True]


def test_a_new_leader_evicts_nobody_for_what_is_added_to_pods_since_its_job_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the start, and of its pods, it hears late, and of the reservation and the LimitRange at once."""
    found: list[object] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.user.merge_patch(f"{OURS}/clusterqueues/a", {"spec": {"stopPolicy": "Hold"}})
        await scene.user.create(PATHS["Job"], lasting("runs", 1))
        await asyncio.sleep(10)
        monkeypatch.setattr(scene.weather[1], "delay", lambda kind: 30.0 if kind in ("Job", "Pod") else 0.01)
        await scene.opens()
        await asyncio.sleep(5)
        limits = [{"type": "Container", "defaultRequest": {"cpu": "1"}}]
        usual = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "usual"}, "spec": {"limits": limits}}
        await scene.user.create("/api/v1/namespaces/ml/limitranges", usual)
        await asyncio.sleep(1)
        before = scene.replicas[1].controller.world.jobs["Job", "ml", "runs"].suspended
        judge = await another_leads(scene)
        found.extend([before, judge.violations, judge.figures.starts])
        await scene.end()

    played(monkeypatch, 0, main)
    assert found == [True, [], 1]


def test_who_leads_again_counts_no_time_for_which_another_led(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of a gang fails as its leader changes, and again an hour after, as the first leads once more. Its Job makes
    another in half a minute each time."""
    found: list[object] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        until = jobs_wait_until(scene, monkeypatch)
        made = two_pods("Job")
        made["spec"]["backoffLimit"] = 9
        await scene.user.create(PATHS["Job"], made)
        await asyncio.sleep(600)
        first, second = scene.replicas
        for leads, comes in ((first, second), (second, first)):
            until[0] = scene.town.clock() + 30_000
            pod = next(one for one in scene.objects("", "pods") if one["status"]["phase"] == "Running")
            ended = {"status": {**pod["status"], "phase": "Failed"}}
            await scene.user.merge_patch(f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}/status", ended)
            await asyncio.sleep(5)
            await leads.resign()
            comes.lead()
            await asyncio.sleep(3600)
        judge = invariants.replay(scene.town.entries, at_end=False)
        running = sum(pod["status"]["phase"] == "Running" for pod in scene.objects("", "pods"))
        found.extend([judge.violations, judge.figures.starts, running])
        await scene.end()

    played(monkeypatch, 0, main)
    assert found == [[], 1, 2]


@pytest.mark.parametrize(("went", "often"), [(False, 1), (True, 2)])
def test_a_new_leader_tells_a_node_that_went_from_one_of_which_it_has_not_heard(
    went: bool, often: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the one a gang runs on; from the other it is stopped, and started again elsewhere."""
    starts: list[int] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        await scene.opens()
        first, second = scene.replicas
        for one in scene.objects("", "nodes"):
            await scene.user.merge_patch(f"/api/v1/nodes/{one['metadata']['name']}", {"spec": {"unschedulable": True}})
        await asyncio.sleep(1)
        monkeypatch.setattr(second.client.weather, "delay", lambda kind: 30.0 if kind == "Node" else 0.01)
        await scene.user.create("/api/v1/nodes", node(0) | {"metadata": {**node(0)["metadata"], "name": "new"}})
        await scene.user.create(PATHS["Job"], lasting("runs", 1))
        await asyncio.sleep(5)
        (pod,) = scene.objects("", "pods")
        assert pod["spec"]["nodeName"] == "new"
        if went:
            await first.end()
            await second.end()
            await scene.user.delete("/api/v1/nodes/new")
            await scene.user.merge_patch("/api/v1/nodes/n0", {"spec": {"unschedulable": None}})
            second = scene.replica(Weather(random.Random(0)))
            scene.replicas[:] = [second]
        else:
            await first.resign()
        second.lead()
        await asyncio.sleep(60)
        starts.append(invariants.replay(scene.town.entries, at_end=False).figures.starts)
        await scene.end()

    played(monkeypatch, 0, main)
    assert starts == [often]


@pytest.mark.parametrize("group", [MUSTER_GROUP, KUEUE_GROUP])
def test_what_two_leaders_gave_away_twice_goes_back(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first knows nothing of the more urgent job, and neither knows what the other reserves."""
    in_group(monkeypatch, Names(group), upheavals, sys.modules[__name__])
    found: list[str] = []
    holders: list[list[str]] = []

    def held(scene: Storm) -> list[str]:
        there = scene.objects(NAMES.group, "workloads")
        return [one["metadata"]["ownerReferences"][0]["name"] for one in there if one["status"].get("admission")]

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        flavors = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": 4}]}]
        spec: Json = {"resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}], "cohortName": None}
        await scene.user.merge_patch(f"{OURS}/clusterqueues/a", {"spec": {**spec, "stopPolicy": "Hold"}})
        first, second = scene.replicas
        await scene.user.create(PATHS["Job"], lasting("early", 4))
        await asyncio.sleep(10)
        second.lead()
        began = scene.town.loop.time()
        for one, late in ((first, ("Job", "Workload")), (second, ("Workload",))):
            monkeypatch.setattr(one.client.weather, "delay", lambda kind, late=late: 20.0 if kind in late else 0.01)
        await scene.user.create(PATHS["Job"], lasting("urgent", 4, **{NAMES.priority_class_label: "high"}))
        await asyncio.sleep(1)
        await scene.user.merge_patch(f"{OURS}/clusterqueues/a", {"spec": {"stopPolicy": "None"}})
        await asyncio.sleep(5)
        await first.lose()
        scene.town.rivalries.append((began, scene.town.loop.time()))
        scene.replicas.reverse()
        holders.append(held(scene))
        await asyncio.sleep(200)
        holders.append(held(scene))
        judged = {"group": group, "notice": 30.0, "rivalries": scene.town.rivalries}
        found.extend(map(str, invariants.check(scene.town.entries, **judged)))
        await scene.end()

    played(monkeypatch, 0, main)
    assert found == []
    assert [len(one) for one in holders] == [2, 1]


def test_who_was_carried_over_with_what_he_has_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is more than there is; a leader beside this one has decided nothing."""
    found: list[Json] = []

    async def main() -> None:
        scene = Storm(0)
        await scene.begin()
        flavors = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": 4}]}]
        spec: Json = {"resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}], "cohortName": None}
        await scene.user.merge_patch(f"{OURS}/clusterqueues/a", {"spec": {**spec, "stopPolicy": "None"}})
        pods = lasting("as", 8)["spec"]["template"]
        asked = {"queueName": "a", "podSets": [{"name": "main", "count": 1, "template": pods}]}
        path = f"{OURS}/namespaces/ml/workloads"
        made = await scene.user.create(path, own("Workload", "carried", asked, namespace="ml"))
        given = {"name": "main", "count": 1, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: "8"}}
        at = made["metadata"]["creationTimestamp"]
        holds = {"status": "True", "reason": "Carried", "message": "", "lastTransitionTime": at}
        status = {
            "admission": {"clusterQueue": "a", "podSetAssignments": [given]},
            "conditions": [{"type": kind, **holds} for kind in ("QuotaReserved", "Admitted")],
        }
        await scene.user.merge_patch(f"{path}/carried/status", {"status": status})
        await asyncio.sleep(60)
        found.extend(scene.objects(NAMES.group, "workloads"))
        await scene.end()

    played(monkeypatch, 0, main)
    assert [bool(one["status"].get("admission")) for one in found] == [True]
    assert not [one for one in found[0]["status"]["conditions"] if one["type"] == "Evicted"]
