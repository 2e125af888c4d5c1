"""What may change of the land while a storm rages: each has actions of its own, and a storm has some of them or none.

UPHEAVALS=checks,flavors in the environment has every storm have these.
"""

from __future__ import annotations

import asyncio
import os
import random  # noqa: TID251  # seeded, and not of the engine
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from admission.engine.model import UsageFairness
from admission.jobs.values import rfc3339
from admission.kube.client import ApiError, Client
from admission.names import HOSTNAME_LABEL, JOBSET_EXCLUSIVE_TOPOLOGY
from tests.controller.lab import API, GPU, NAMES, Json, own
from tests.controller.storm import Replica, Town, Weather

OURS = f"/apis/{API}"
NODES = 8
NOTICE_S = 30.0
"""Within this, whatever the weather, a leader has put right what another did beside it."""
Action = Callable[[], Awaitable[None]]


class Raging(Protocol):
    """What an upheaval knows of its storm."""

    chance: random.Random
    town: Town
    user: Client
    weather: list[Weather]
    replicas: list[Replica]
    """The first leads."""
    manners: Json
    """What of their settings, rules and options is not as usual."""

    def some_job(self) -> str | None: ...

    async def submits(self) -> None: ...

    async def job_goes(self) -> None: ...

    async def workload_changes(self) -> None: ...


class Upheaval:
    """Nothing changes."""

    def __init__(self, storm: Raging) -> None:
        self.storm = storm
        self.chance, self.user = storm.chance, storm.user

    async def begin(self) -> None: ...

    def actions(self) -> Sequence[Action]:
        return ()

    def makes(self, job: Json) -> None:
        """What a job that is about to be created has besides."""

    async def calms(self) -> None: ...

    def objects(self, plural: str, group: str | None = None) -> list[Json]:
        return list(self.storm.town.store.objects(NAMES.group if group is None else group, plural))

    async def queue_gets(self, **spec: object) -> None:
        await self.user.merge_patch(f"{OURS}/clusterqueues/{self.chance.choice('abc')}", {"spec": spec})

    async def some_workload(self) -> Json | None:
        here = self.objects("workloads")
        return self.chance.choice(here) if here else None


class Checks(Upheaval):
    """Others must agree before a gang starts. They answer late or never, change their minds, and may not be there."""

    BOTH = ("ask", "scan")
    RULES: tuple[list[Json], ...] = (
        [],
        [{"name": "ask"}],
        [{"name": "ask"}],
        [{"name": "ask", "onFlavors": ["h100"]}],
        [{"name": "scan", "onFlavors": ["a100"]}],
        [{"name": "ask"}, {"name": "scan"}],
        [{"name": "ask", "onFlavors": ["a100"]}, {"name": "scan"}],
    )

    def __init__(self, storm: Raging) -> None:
        super().__init__(storm)
        self.mood = random.Random(self.chance.random())
        self.calm = False
        self.due: dict[tuple[str, str, str], tuple[float, str]] = {}
        """(uid, check, since when it is asked) -> when it answers, and what."""

    async def begin(self) -> None:
        for name in self.BOTH:
            await self.appears(name)
        for _ in range(2):
            await self.queue_is_checked()
        self.answering = asyncio.ensure_future(self.answers())

    def actions(self) -> Sequence[Action]:
        return [self.queue_is_checked, self.mind_changes, self.mind_changes, self.check_changes]

    async def appears(self, name: str) -> None:
        made = await self.user.create(
            f"{OURS}/admissionchecks", own("AdmissionCheck", name, {"controllerName": "example.com/office"})
        )
        await self.opens(made, "True")

    async def opens(self, check: Json, active: str) -> None:
        said = {"type": "Active", "status": active, "reason": "Open", "message": ""}
        now = rfc3339(self.storm.town.clock())
        status = {"conditions": [{**said, "lastTransitionTime": now}]}
        await self.user.merge_patch(f"{OURS}/admissionchecks/{check['metadata']['name']}/status", {"status": status})

    async def queue_is_checked(self) -> None:
        rules = self.chance.choice(self.RULES)
        await self.queue_gets(admissionChecksStrategy={"admissionChecks": rules} if rules else None)

    async def check_changes(self) -> None:
        name, how = self.chance.choice(self.BOTH), self.chance.choice(["opens", "opens", "closes", "goes"])
        there = next((one for one in self.objects("admissionchecks") if one["metadata"]["name"] == name), None)
        if there is None:
            await self.appears(name)
        elif how == "goes":
            await self.user.delete(f"{OURS}/admissionchecks/{name}")
        else:
            await self.opens(there, "True" if how == "opens" else "False")

    async def mind_changes(self) -> None:
        workload = await self.some_workload()
        entries = ((workload or {}).get("status") or {}).get("admissionChecks")
        if workload is not None and entries:
            asked = self.chance.choice(entries)["name"]
            await self.says(workload, asked, self.chance.choice(["Ready", "Retry", "Rejected", "Pending"]), self.chance)

    async def says(self, workload: Json, check: str, state: str, chance: random.Random) -> None:
        answer = {
            "name": check,
            "state": state,
            "message": f"it is {state}",
            "lastTransitionTime": rfc3339(self.storm.town.clock()),
        }
        if state == "Retry":
            answer["requeueAfterSeconds"] = chance.choice([0, 5, 60])
        sets = [one["name"] for one in workload["spec"].get("podSets") or ()]
        if state == "Ready" and sets and chance.random() < 0.3:
            answer["podSetUpdates"] = [{"name": name, "labels": {"example.com/seen": "yes"}} for name in sets]
        meta = workload["metadata"]
        path = f"{OURS}/namespaces/{meta['namespace']}/workloads/{meta['name']}"
        if chance.random() < 0.5:
            body = {"apiVersion": API, "kind": "Workload", "metadata": {"name": meta["name"]}}
            body["status"] = {"admissionChecks": [answer]}
            await self.user.apply(f"{path}/status", body, manager="office")
            return
        listed = [one for one in (workload["status"].get("admissionChecks") or ()) if one["name"] != check]
        patch: Json = {"status": {"admissionChecks": [*listed, answer]}}
        patch["metadata"] = {"resourceVersion": meta["resourceVersion"]}
        await self.user.merge_patch(f"{path}/status", patch)

    async def answers(self) -> None:
        while True:
            await asyncio.sleep(self.mood.choice([0.2, 1.0, 3.0]))
            now = self.storm.town.loop.time()
            for workload in self.objects("workloads"):
                status = workload.get("status") or {}
                for entry in status.get("admissionChecks") or ():
                    if entry["state"] != "Pending" or entry["name"] not in self.BOTH or not status.get("admission"):
                        continue
                    key = workload["metadata"]["uid"], entry["name"], entry["lastTransitionTime"]
                    if key not in self.due:
                        self.due[key] = self.will_say(now)
                    at, state = self.due[key]
                    if now >= at:
                        with suppress(ApiError):
                            await self.says(workload, entry["name"], "Ready" if self.calm else state, self.mood)

    def will_say(self, now: float) -> tuple[float, str]:
        late = self.mood.choice([0.0, 0.0, 1.0, 10.0, 100.0, 1e9])
        return now + late, self.mood.choice(["Ready"] * 6 + ["Retry"] * 3 + ["Rejected"])

    async def calms(self) -> None:
        self.calm = True
        if self.answering.done():
            self.answering.result()


class Flavors(Upheaval):
    """Flavors come and go, and mean other nodes than before."""

    async def begin(self) -> None:
        await self.user.create(f"{OURS}/resourceflavors", self.flavor("spot"))
        for i in (2, 5, 6, 7):
            await self.user.merge_patch(f"/api/v1/nodes/n{i}", {"metadata": {"labels": {"pool": "spot"}}})
        await self.queue_chooses()

    def flavor(self, name: str) -> Json:
        spec: Json = {"nodeLabels": {"pool": "spot"}} if name == "spot" else {"nodeLabels": {"gpu": name}}
        if name == "spot":
            spec["elastic"] = self.chance.choice([None, True])
        elif self.chance.random() < 0.8:
            spec["topologyName"] = "racks"
        return own("ResourceFlavor", name, spec)

    def actions(self) -> Sequence[Action]:
        return [self.flavor_changes, self.flavor_changes, self.flavor_goes, self.queue_chooses, self.node_moves]

    def makes(self, job: Json) -> None:
        for spec in pod_specs(job):
            if self.chance.random() < 0.3:
                spec["tolerations"] = [{"key": "x", "operator": "Exists"}]
            if self.chance.random() < 0.15:
                spec["nodeSelector"] = self.chance.choice([{"gpu": "h100"}, {"pool": "spot"}])

    async def flavor_changes(self) -> None:
        taint = {"key": "x", "effect": self.chance.choice(["NoSchedule", "NoExecute"])}
        means = {"nodeLabels": self.chance.choice([{"pool": "spot"}, {"gpu": "a100"}, {"pool": "spot", "gpu": "a100"}])}
        change: Json = self.chance.choice(
            [
                {"nodeTaints": self.chance.choice([None, [taint]])},
                {"tolerations": self.chance.choice([None, [{"key": "x", "operator": "Exists"}]])},
                means,
            ]
        )
        name = self.chance.choice(["spot", "spot", "spot", "h100", "a100"])
        if name == "spot" and self.chance.random() < 0.3:
            change = {"elastic": self.chance.choice([None, True])}
        await self.user.merge_patch(f"{OURS}/resourceflavors/{name}", {"spec": change})

    async def flavor_goes(self) -> None:
        """It is kept for as long as it is in use: half of the time nothing names it any more."""
        name = self.chance.choice(["spot", "h100", "a100"])
        if self.chance.random() < 0.5:
            for queue in self.objects("clusterqueues"):
                groups = queue["spec"].get("resourceGroups") or ()
                left = [one for group in groups for one in group["flavors"] if one["name"] != name]
                listed = [{"coveredResources": [GPU], "flavors": left}] if left else None
                path = f"{OURS}/clusterqueues/{queue['metadata']['name']}"
                await self.user.merge_patch(path, {"spec": {"resourceGroups": listed}})
        try:
            await self.user.delete(f"{OURS}/resourceflavors/{name}")
        except ApiError:
            await self.user.create(f"{OURS}/resourceflavors", self.flavor(name))

    async def queue_chooses(self) -> None:
        names = self.chance.choice([["spot"], ["h100", "spot"], ["spot", "a100"], ["a100", "h100"], ["h100"]])
        quotas = [{"name": GPU, "nominalQuota": self.chance.choice([4, 8, 16])} for _ in names]
        flavors = [{"name": name, "resources": [quota]} for name, quota in zip(names, quotas, strict=True)]
        await self.queue_gets(resourceGroups=[{"coveredResources": [GPU], "flavors": flavors}])

    async def node_moves(self) -> None:
        label = self.chance.choice(["gpu", "rack", "pool"])
        values = {"gpu": ["h100", "a100", None], "rack": ["r0", "r1", None], "pool": ["spot", None]}[label]
        change = {"metadata": {"labels": {label: self.chance.choice(values)}}}
        await self.user.merge_patch(f"/api/v1/nodes/n{self.chance.randrange(NODES)}", change)


class Cohorts(Upheaval):
    """Queues and cohorts move in the tree, which may be a loop for a while."""

    ALL = ("lab", "other", "campus")

    def actions(self) -> Sequence[Action]:
        return [self.cohort_changes, self.cohort_changes, self.cohort_goes, self.queue_moves, self.weight_changes]

    async def cohort_changes(self) -> None:
        name, above = self.chance.choice(self.ALL), self.chance.choice([*self.ALL, None])
        spec: Json = {"parentName": above}
        if self.chance.random() < 0.5:
            resource: Json = {"name": GPU, "nominalQuota": self.chance.choice([0, 4, 16])}
            if above and self.chance.random() < 0.4:
                resource[self.chance.choice(["lendingLimit", "borrowingLimit"])] = self.chance.choice([0, 4])
            flavors = [{"name": one, "resources": [resource]} for one in self.chance.choice([["h100"], ["a100"]])]
            spec["resourceGroups"] = [{"coveredResources": [GPU], "flavors": flavors}]
        else:
            spec["resourceGroups"] = None
        try:
            await self.user.create(f"{OURS}/cohorts", own("Cohort", name, {k: v for k, v in spec.items() if v}))
        except ApiError:
            await self.user.merge_patch(f"{OURS}/cohorts/{name}", {"spec": spec})

    async def cohort_goes(self) -> None:
        await self.user.delete(f"{OURS}/cohorts/{self.chance.choice(self.ALL)}")

    async def queue_moves(self) -> None:
        await self.queue_gets(cohortName=self.chance.choice([*self.ALL, None]))

    async def weight_changes(self) -> None:
        weight = {"fairSharing": {"weight": self.chance.choice(["0", "0.5", "1", "3"])}}
        kind, name = self.chance.choice([("cohorts", "lab"), ("clusterqueues", "a"), ("clusterqueues", "b")])
        await self.user.merge_patch(f"{OURS}/{kind}/{name}", {"spec": weight})


class Stops(Upheaval):
    """Queues are held, drained, and let go on."""

    def actions(self) -> Sequence[Action]:
        return [self.local_stops, self.local_stops, self.queue_stops, self.queue_stops]

    async def local_stops(self) -> None:
        path = f"{OURS}/namespaces/ml/localqueues/{self.chance.choice('abc')}"
        await self.user.merge_patch(path, {"spec": {"stopPolicy": self.policy()}})

    async def queue_stops(self) -> None:
        await self.queue_gets(stopPolicy=self.policy())

    def policy(self) -> str:
        return self.chance.choice(["None", "None", "Hold", "HoldAndDrain"])


class Ranks(Upheaval):
    """Who is before whom changes, for those that wait and for those that run."""

    def actions(self) -> Sequence[Action]:
        return [self.class_changes, self.workload_is_raised, self.workload_is_boosted, self.queue_prefers]

    async def begin(self) -> None:
        await self.queue_prefers()

    async def calms(self) -> None:
        """A job whose class is not there is not queued."""
        for name in ("low", "high"):
            with suppress(ApiError):
                await self.class_comes(name, 0)

    async def class_comes(self, name: str, value: int) -> None:
        body = {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
        await self.user.create(f"{OURS}/workloadpriorityclasses", body)

    async def class_changes(self) -> None:
        name, value = self.chance.choice(["low", "high"]), self.chance.choice([-5, 0, 50, 100])
        path = f"{OURS}/workloadpriorityclasses/{name}"
        if self.chance.random() < 0.3:
            with suppress(ApiError):
                await self.user.delete(path)
                return
        try:
            await self.class_comes(name, value)
        except ApiError:
            await self.user.merge_patch(path, {"value": value})

    async def workload_is_raised(self) -> None:
        await self.change({"spec": {"priority": self.chance.choice([-10, 0, 70, 1000])}})

    async def workload_is_boosted(self) -> None:
        boost = self.chance.choice(["5", "-5", "200", "x", None])
        await self.change({"metadata": {"annotations": {NAMES.priority_boost_annotation: boost}}})

    async def change(self, patch: Json) -> None:
        workload = await self.some_workload()
        if workload is not None:
            await self.user.merge_patch(f"{OURS}/namespaces/ml/workloads/{workload['metadata']['name']}", patch)

    async def queue_prefers(self) -> None:
        policies = ["Never", "LowerPriority", "LowerOrNewerEqualPriority"]
        preemption: Json = {
            "withinClusterQueue": self.chance.choice(policies),
            "reclaimWithinCohort": self.chance.choice(["Never", "LowerPriority", "Any"]),
        }
        if preemption["reclaimWithinCohort"] != "Never":
            policy = self.chance.choice(["Never", "LowerPriority"])
            preemption["borrowWithinCohort"] = {"policy": policy}
            if policy != "Never" and self.chance.random() < 0.5:
                preemption["borrowWithinCohort"]["maxPriorityThreshold"] = 60
        await self.queue_gets(preemption=preemption)


class Parts(Upheaval):
    """Jobs that do with fewer pods, and change how many."""

    def actions(self) -> Sequence[Action]:
        return [self.least_changes, self.size_changes]

    def makes(self, job: Json) -> None:
        if job["kind"] == "Job" and self.chance.random() < 0.7:
            spec = job["spec"]
            spec["parallelism"] = spec["completions"] = self.chance.choice([2, 4, 6, 8])
            if self.chance.random() < 0.3:
                spec["completions"] *= 2
            least = self.chance.choice([1, 2, 3])
            job["metadata"].setdefault("annotations", {})[NAMES.min_parallelism_annotation] = str(least)

    async def least_changes(self) -> None:
        least = self.chance.choice(["1", "2", "5", "0", "x", None])
        await self.change({"metadata": {"annotations": {NAMES.min_parallelism_annotation: least}}})

    async def calms(self) -> None:
        """A job that says what cannot be read is not queued."""
        nothing = {"metadata": {"annotations": {NAMES.min_parallelism_annotation: None}}}
        for job in self.objects("jobs", "batch"):
            if job["spec"].get("suspend"):
                with suppress(ApiError):
                    await self.user.merge_patch(f"/apis/batch/v1/namespaces/ml/jobs/{job['metadata']['name']}", nothing)

    async def size_changes(self) -> None:
        await self.change({"spec": {"parallelism": self.chance.choice([1, 2, 3, 5, 8])}})

    async def change(self, patch: Json) -> None:
        path = self.storm.some_job()
        if path is not None:
            await self.user.merge_patch(path, patch)


class Tools(Upheaval):
    """Tools make bare Workloads and run what is behind them: they start it at Admitted, and say when it has stopped
    after Evicted, or ended."""

    def __init__(self, storm: Raging) -> None:
        super().__init__(storm)
        self.mood = random.Random(self.chance.random())
        self.made = 0
        self.due: dict[tuple[str, str, str], float] = {}
        """(name, condition, since when) -> when its tool will have acted on that."""

    async def begin(self) -> None:
        self.answering = asyncio.ensure_future(self.answers())

    def actions(self) -> Sequence[Action]:
        return [self.workload_comes, self.workload_comes, self.workload_is_switched, self.workload_goes]

    async def calms(self) -> None:
        if self.answering.done():
            self.answering.result()

    async def workload_comes(self) -> None:
        self.made += 1
        gpus = {GPU: str(self.chance.choice([1, 2, 4, 8]))}
        container = {"name": "m", "image": "x", "resources": {"requests": gpus, "limits": gpus}}
        pods: Json = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        sets = [{"name": "main", "count": self.chance.choice([1, 2, 4]), "template": pods}]
        spec: Json = {"queueName": self.chance.choice("abc"), "podSets": sets, "priority": self.chance.choice([0, 70])}
        if self.chance.random() < 0.2:
            spec["maximumExecutionTimeSeconds"] = 300
        made = own("Workload", f"w{self.made}", spec, namespace="ml")
        if self.chance.random() < 0.3:
            made["metadata"]["finalizers"] = [NAMES.finalizer]
        await self.user.create(f"{OURS}/namespaces/ml/workloads", made)

    def bare(self) -> list[Json]:
        return [one for one in self.objects("workloads") if one["metadata"]["name"].startswith("w")]

    def path(self, workload: Json, *rest: str) -> str:
        return "/".join((f"{OURS}/namespaces/ml/workloads", workload["metadata"]["name"], *rest))

    async def workload_is_switched(self) -> None:
        if here := self.bare():
            active = self.chance.random() < 0.6
            await self.user.merge_patch(self.path(self.chance.choice(here)), {"spec": {"active": active}})

    async def workload_goes(self) -> None:
        if here := self.bare():
            await self.user.delete(self.path(self.chance.choice(here)))

    async def answers(self) -> None:
        while True:
            await asyncio.sleep(self.mood.choice([0.2, 1.0, 3.0]))
            for workload in self.bare():
                with suppress(ApiError):
                    await self.look(workload)

    async def look(self, workload: Json) -> None:
        status = workload.get("status") or {}
        said = {one["type"]: one for one in status.get("conditions") or () if one["status"] == "True"}
        kind = "Evicted" if "Evicted" in said else "Admitted"
        if not status.get("admission") or kind not in said or "Finished" in said:
            return
        now = self.storm.town.loop.time()
        key = workload["metadata"]["uid"], kind, said[kind]["lastTransitionTime"]
        waits = (0.0, 1.0, 30.0) if kind == "Evicted" else (20.0, 90.0, 400.0, 1e9)
        if now < self.due.setdefault(key, now + self.mood.choice(waits)):
            return
        at = rfc3339(self.storm.town.clock())
        if kind == "Admitted":
            done = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": ""}
            await self.applies(workload, {"conditions": [{**done, "lastTransitionTime": at}]}, "tool", version=False)
            return
        listed = [dict(one) for one in status["conditions"]]
        for one in listed:
            if one["type"] in ("QuotaReserved", "Admitted"):
                one |= {"status": "False", "reason": "Pending", "lastTransitionTime": at}
        await self.applies(workload, {"conditions": listed}, NAMES.admission_manager, version=True)

    async def applies(self, workload: Json, status: Json, manager: str, *, version: bool) -> None:
        meta = {"name": workload["metadata"]["name"], "uid": workload["metadata"]["uid"]}
        if version:
            meta["resourceVersion"] = workload["metadata"]["resourceVersion"]
        body = {"apiVersion": API, "kind": "Workload", "metadata": meta, "status": status}
        await self.user.apply(self.path(workload, "status"), body, manager=manager)


class Strangers(Upheaval):
    """Pods of nobody's take room on nodes, and go."""

    made = 0

    def actions(self) -> Sequence[Action]:
        return [self.stranger_comes, self.stranger_comes, self.stranger_goes]

    async def stranger_comes(self) -> None:
        self.made += 1
        gpus = {GPU: str(self.chance.choice([1, 2, 4, 8]))}
        container = {"name": "m", "image": "x", "resources": {"requests": gpus, "limits": gpus}}
        spec: Json = {"restartPolicy": "Never", "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"s{self.made}"}, "spec": spec}
        await self.user.create("/api/v1/namespaces/ml/pods", body)

    async def stranger_goes(self) -> None:
        here = [one for one in self.objects("pods", "") if one["metadata"]["name"].startswith("s")]
        if here:
            grace = self.chance.choice([0, 30])
            await self.user.delete(
                f"/api/v1/namespaces/ml/pods/{self.chance.choice(here)['metadata']['name']}", grace_seconds=grace
            )


class Defaults(Upheaval):
    """What the API server adds to pods changes: defaults of the namespace, and what a RuntimeClass costs."""

    def actions(self) -> Sequence[Action]:
        return [self.range_changes, self.range_changes, self.class_changes]

    def makes(self, job: Json) -> None:
        for spec in pod_specs(job):
            if self.chance.random() < 0.3:
                spec["runtimeClassName"] = "boxed"

    async def calms(self) -> None:
        """Pods whose class is not there are not made."""
        with suppress(ApiError):
            await self.class_comes()

    async def range_changes(self) -> None:
        path = "/api/v1/namespaces/ml/limitranges"
        given = {"cpu": self.chance.choice(["1", "8", "40"]), "memory": "1Gi"}
        limits = [{"type": "Container", "default": given, "defaultRequest": given}]
        body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "usual"}, "spec": {"limits": limits}}
        if self.chance.random() < 0.4:
            await self.user.delete(f"{path}/usual")
            return
        try:
            await self.user.create(path, body)
        except ApiError:
            await self.user.merge_patch(f"{path}/usual", {"spec": body["spec"]})

    async def class_comes(self) -> None:
        overhead = {"podFixed": {"cpu": self.chance.choice(["1", "20"])}}
        body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "boxed"}}
        await self.user.create(
            "/apis/node.k8s.io/v1/runtimeclasses", {**body, "handler": "boxed", "overhead": overhead}
        )

    async def class_changes(self) -> None:
        try:
            await self.class_comes()
        except ApiError:
            await self.user.delete("/apis/node.k8s.io/v1/runtimeclasses/boxed")


class Watches(Upheaval):
    """Watches break off, and where they stood is forgotten: what is listed anew says nothing of what came between."""

    def actions(self) -> Sequence[Action]:
        return [self.watches_are_cut, self.watches_are_cut]

    async def watches_are_cut(self) -> None:
        self.storm.town.cut(self.chance.choice([0.0, 1.0, 20.0, 90.0]))


class Clocks(Upheaval):
    """The time by which a replica decides jumps."""

    def actions(self) -> Sequence[Action]:
        return [self.clock_jumps, self.clock_jumps]

    async def clock_jumps(self) -> None:
        jumps = [0, 2_000, -2_000, 90_000, -90_000, 600_000, -600_000]
        self.chance.choice(self.storm.weather).ahead_ms = self.chance.choice(jumps)


class Again(Upheaval):
    """What is deleted is made again under its name, mostly at once."""

    def __init__(self, storm: Raging) -> None:
        super().__init__(storm)
        self.written: dict[str, Json] = {}
        self.owed: list[tuple[str, Json]] = []
        """What its predecessor, which was still being deleted, kept from being made."""

    def actions(self) -> Sequence[Action]:
        return [self.job_again, self.job_again, self.node_again, self.queue_again, self.local_queue_again] + [
            self.namespace_again
        ] * (self.chance.random() < 0.3)

    def makes(self, job: Json) -> None:
        self.written[job["metadata"]["name"]] = job

    async def again(self, path: str, body: Json, propagation: str | None = None) -> None:
        with suppress(ApiError):
            await self.user.delete(path, propagation=propagation)
        await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.1, 5.0, 60.0]))
        self.owed.append((path.rpartition("/")[0], body))
        await self.calms()

    async def calms(self) -> None:
        owed, self.owed = self.owed, []
        for path, body in owed:
            try:
                await self.user.create(path, body)
            except ApiError:
                self.owed.append((path, body))

    async def job_again(self) -> None:
        path = self.storm.some_job()
        written = None if path is None else self.written.get(path.rpartition("/")[2])
        if path is not None and written is not None:
            await self.again(path, written, self.chance.choice(["Background", "Background", "Foreground"]))

    async def node_again(self) -> None:
        name = f"n{self.chance.randrange(NODES)}"
        node = next((one for one in self.objects("nodes", "") if one["metadata"]["name"] == name), None)
        if node is not None:
            await self.again(f"/api/v1/nodes/{name}", bare(node))

    async def queue_again(self) -> None:
        queue = self.chance.choice(self.objects("clusterqueues") or [None])
        if queue is not None:
            await self.again(f"{OURS}/clusterqueues/{queue['metadata']['name']}", bare(queue))

    async def local_queue_again(self) -> None:
        queue = self.chance.choice(self.objects("localqueues") or [None])
        if queue is not None:
            await self.again(f"{OURS}/namespaces/ml/localqueues/{queue['metadata']['name']}", bare(queue))

    async def namespace_again(self) -> None:
        path = "/api/v1/namespaces"
        (there,) = [bare(one) for one in self.objects("namespaces", "") if one["metadata"]["name"] == "ml"]
        queues = [bare(one) for one in self.objects("localqueues")]
        await self.user.delete(f"{path}/ml")
        while any(one["metadata"]["name"] == "ml" for one in self.objects("namespaces", "")):
            await asyncio.sleep(1.0)
        await self.user.create(path, there)
        for queue in queues:
            await self.user.create(f"{OURS}/namespaces/ml/localqueues", queue)


class Rivals(Upheaval):
    """A leader goes on though another leads already, who may have stood still for long: no lease can keep it from
    writing for as long as it takes to notice."""

    def __init__(self, storm: Raging) -> None:
        super().__init__(storm)
        self.over: asyncio.Task[None] | None = None

    def actions(self) -> Sequence[Action]:
        return [self.two_lead, self.two_lead, self.two_lead]

    async def two_lead(self) -> None:
        town, (first, second) = self.storm.town, self.storm.replicas
        if town.two_lead:
            return
        for one in (first, second):
            one.client.weather.lag["Workload"] = self.chance.choice([0.0, 0.5, 5.0])
        frozen, both = self.chance.choice([0.0, 0.0, 3.0, 30.0]), self.chance.choice([0.5, 2.0, 5.0, 12.0])
        began = town.loop.time()
        second.client.weather.ahead_ms = self.chance.choice([0, 0, 3_000, -3_000])
        first.client.weather.frozen_until = began + frozen
        town.two_lead = True
        second.lead()
        self.storm.replicas.reverse()
        self.over = asyncio.ensure_future(self.first_notices(first, began, frozen + both))
        await asyncio.sleep(frozen)
        busy = [self.storm.submits, self.storm.submits, self.storm.job_goes, self.storm.workload_changes]
        for _ in range(self.chance.choice([0, 4, 8])):
            with suppress(ApiError):
                await self.chance.choice(busy)()
            await asyncio.sleep(self.chance.choice([0.0, 0.01, 0.05, 0.3]))

    async def first_notices(self, first: Replica, began: float, after: float) -> None:
        town = self.storm.town
        await asyncio.sleep(after)
        await first.lose()
        await asyncio.sleep(first.client.write_timeout)
        town.rivalries.append((began, town.loop.time()))
        await asyncio.sleep(NOTICE_S)  # if who leads goes, too, nobody knows what was given twice
        town.two_lead = False

    async def calms(self) -> None:
        if self.over is not None:
            await self.over


class Places(Upheaval):
    """Gangs ask for places of every kind, and jobs that go on without single pods have these replaced."""

    def makes(self, job: Json) -> None:
        chance = self.chance
        for pods in templates(job):
            notes = pods.setdefault("metadata", {}).setdefault("annotations", {})
            asked: Json = chance.choice(
                [
                    {},
                    {NAMES.unconstrained_topology_annotation: "true"},
                    {NAMES.required_topology_annotation: HOSTNAME_LABEL},
                    {NAMES.preferred_topology_annotation: HOSTNAME_LABEL},
                    {NAMES.slice_required_topology_annotation: "rack", NAMES.slice_size_annotation: "2"},
                    {NAMES.slice_required_topology_annotation: HOSTNAME_LABEL, NAMES.slice_size_annotation: "2"},
                ]
            )
            for key in NAMES.topology_annotations if asked else ():
                notes.pop(key, None)
            notes |= asked
        notes = job["metadata"].setdefault("annotations", {})
        if chance.random() < 0.4:
            notes[NAMES.replace_lost_pods_annotation] = "true"
        if job["kind"] == "JobSet" and chance.random() < 0.3:
            notes[JOBSET_EXCLUSIVE_TOPOLOGY] = chance.choice(["rack", HOSTNAME_LABEL])


class Spaces(Upheaval):
    """Queues take jobs of other namespaces than before, and the namespace is another kind of one."""

    def actions(self) -> Sequence[Action]:
        return [self.queue_selects, self.namespace_changes]

    async def queue_selects(self) -> None:
        await self.queue_gets(namespaceSelector=self.chance.choice([{}, {}, {"matchLabels": {"kind": "lab"}}, None]))

    async def namespace_changes(self) -> None:
        labels = {"metadata": {"labels": {"kind": self.chance.choice(["lab", "lab", "office", None])}}}
        await self.user.merge_patch("/api/v1/namespaces/ml", labels)


class Volumes(Upheaval):
    """Pods need claims, of which some are not there yet, and some are for one pod at a time."""

    NAMED = ("shared", "single", "local", "late")

    async def begin(self) -> None:
        for i in range(2):
            await self.user.create("/api/v1/persistentvolumes", self.volume(i))
        for name in self.NAMED[:3]:
            await self.claim_comes(name)

    def actions(self) -> Sequence[Action]:
        return [self.claim_changes, self.claim_changes]

    def makes(self, job: Json) -> None:
        for spec in pod_specs(job):
            if self.chance.random() < 0.5:
                claim = {"claimName": self.chance.choice(self.NAMED)}
                spec["volumes"] = [{"name": "v", "persistentVolumeClaim": claim}]

    def volume(self, i: int) -> Json:
        spec: Json = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOncePod"]}
        if i:
            here = {"key": "rack", "operator": "In", "values": ["r0", "r1"]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
        spec["csi"] = {"driver": "x", "volumeHandle": f"pv{i}"}
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv{i}"}, "spec": spec}

    async def claim_comes(self, name: str) -> None:
        spec: Json = {
            "accessModes": ["ReadWriteOncePod" if name == "single" else "ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": "pv1" if name == "local" else "pv0",
        }
        meta = {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
        await self.user.create("/api/v1/namespaces/ml/persistentvolumeclaims", body)

    async def claim_changes(self) -> None:
        name = self.chance.choice(self.NAMED)
        try:
            await self.claim_comes(name)
        except ApiError:
            await self.user.delete(f"/api/v1/namespaces/ml/persistentvolumeclaims/{name}")


class Manners(Upheaval):
    """The controller is configured in another way."""

    async def begin(self) -> None:
        chance, manners = self.chance, self.storm.manners
        manners["settings"] = {
            "pods_ready_ms": chance.choice([None, 20_000, 300_000]),
            "recovery_ms": chance.choice([None, 20_000, 300_000]),
            "backoff_base_ms": chance.choice([1_000, 60_000]),
            "backoff_limit": chance.choice([None, None, 0, 2]),
        }
        manners["can_rank"] = chance.random() < 0.5
        if chance.random() < 0.5:
            manners["rules"] = {"usage_fairness": UsageFairness(chance.choice([0, 600_000, 3_600_000]))}

    def actions(self) -> Sequence[Action]:
        return [self.local_queue_weighs, self.usage_counts]

    async def local_queue_weighs(self) -> None:
        path = f"{OURS}/namespaces/ml/localqueues/{self.chance.choice('abc')}"
        weight = {"fairSharing": {"weight": self.chance.choice(["0", "0.5", "1", "3"])}}
        leads = {"clusterQueue": self.chance.choice("abc")}
        await self.user.merge_patch(path, {"spec": self.chance.choice([weight, leads])})

    async def usage_counts(self) -> None:
        mode = self.chance.choice(["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"])
        await self.queue_gets(admissionScope={"admissionMode": mode})


def bare(obj: Json) -> Json:
    """As somebody would write it who has read it."""
    written = ("name", "namespace", "labels", "annotations")
    kept = {key: value for key, value in obj.items() if key != "status" or obj["kind"] == "Node"}
    return kept | {"metadata": {key: value for key, value in obj["metadata"].items() if key in written}}


def templates(job: Json) -> list[Json]:
    if job["kind"] == "Job":
        return [job["spec"]["template"]]
    return [part["template"]["spec"]["template"] for part in job["spec"]["replicatedJobs"]]


def pod_specs(job: Json) -> list[Json]:
    return [pods["spec"] for pods in templates(job)]


UPHEAVALS: dict[str, type[Upheaval]] = {
    "checks": Checks,
    "flavors": Flavors,
    "cohorts": Cohorts,
    "stops": Stops,
    "ranks": Ranks,
    "parts": Parts,
    "strangers": Strangers,
    "watches": Watches,
    "clocks": Clocks,
    "again": Again,
    "defaults": Defaults,
    "rivals": Rivals,
    "tools": Tools,
    "places": Places,
    "spaces": Spaces,
    "volumes": Volumes,
    "manners": Manners,
}


def of(storm: Raging, seed: int, *needed: str) -> list[Upheaval]:
    """Those that a storm has, these among them."""
    given = os.environ.get("UPHEAVALS")
    chance = random.Random(f"upheavals of {seed}")
    names = [name for name in UPHEAVALS if chance.random() < 0.25] if given is None else given.split(",")
    return [UPHEAVALS[name](storm) for name in dict.fromkeys((*names, *needed)) if name]
