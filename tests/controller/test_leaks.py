"""Who is gone leaves nothing behind: what a controller holds is of what there is, however many came and went."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import pytest

from admission.controller.actuate import Options
from admission.controller.app import Controller, Tuning
from admission.controller.lifecycle import Settings
from admission.controller.world import WorkloadSeen
from admission.engine.model import KUEUE, MUSTER, Admit, Decision, Rules
from admission.jobs import values
from admission.jobs.values import rfc3339
from admission.kube.client import Client, Unavailable
from admission.names import CONTROLLER_UID_LABEL
from tests.controller import lab
from tests.controller.lab import GPU, NAMES, NOW, T0, Json, own

BETWEEN = (5, 50)
"""Generations after which it is counted."""
FEW = 4
"""Alarms that stand for nothing any more are dropped when there are more of them than of others."""
BOUNDED = {"Client.counts", "Kept._values", "EventRecorder._written", "EventRecorder._allowance"}
"""These have a bound of their own, and may fill up to it."""
NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType, asyncio.AbstractEventLoop, asyncio.Task)


def holdings(root: object) -> dict[str, int]:
    """How many entries the containers have that are reached from an object, by the attribute that leads there."""
    out: Counter[str] = Counter()
    seen = {id(root)}
    todo: list[tuple[object, str]] = [(root, "")]
    while todo:
        one, where = todo.pop()
        if isinstance(one, dict | list | set | deque):
            out[where] += len(one)
        if isinstance(one, MethodType):
            inside: list[tuple[object, str]] = [(one.__self__, where)]
        elif isinstance(one, dict | list | set | frozenset | tuple | deque | msgspec.Struct):
            inside = [(each, where) for each in gc.get_referents(one)]
        elif hasattr(one, "__dict__"):
            inside = [(each, f"{type(one).__name__}.{name}") for name, each in vars(one).items()]
        else:
            inside = [(each, where) for each in gc.get_referents(one)]
        for each, name in inside:
            if id(each) not in seen and not isinstance(each, NOT_ITS_OWN):
                seen.add(id(each))
                todo.append((each, name))
    return {where: held for where, held in out.items() if held and where not in BOUNDED}


class Town:
    """A controller that is told of a cluster line by line, as watches would, and whose writes are made at once."""

    def __init__(self, rules: Rules, *, leads: bool, refuses: bool = False) -> None:
        self.now = NOW
        self.refuses = refuses
        """What is written, of whatever, is refused."""
        self.controller = Controller(
            Client.plain("http://127.0.0.1:1"),
            names=NAMES,
            rules=rules,
            settings=Settings(),
            options=Options(can_rank=True),
            now=lambda: self.now,
            tuning=Tuning(sweep_s=0.0),
        )
        self.controller.leading = leads
        self.objects: dict[tuple[str, str, str], Json] = {}
        self._version = 0
        actuator: Any = self.controller.actuator
        actuator.carry_out, actuator.take, actuator.take_bare = self._carry_out, self._nothing, self._nothing
        actuator.job_is_gone, actuator.delete_workload, actuator.let_go = self._yes, self._deleted, self._deleted

    def put(self, obj: Json) -> Json:
        """An object as it is now, or as it came with a new uid."""
        meta = obj["metadata"]
        at = (obj["kind"], meta.get("namespace", ""), meta["name"])
        self._version += 1
        uid = self.objects.get(at, obj)["metadata"].get("uid", f"u{self._version}")
        obj["metadata"] = {**meta, "uid": uid, "resourceVersion": str(self._version)}
        obj["metadata"].setdefault("creationTimestamp", rfc3339(T0))
        self._tell("ADDED", obj)
        self.objects[at] = obj
        return obj

    def end(self, at: tuple[str, str, str]) -> None:
        self._version += 1
        obj = self.objects.pop(at)
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", obj)

    def _tell(self, what: str, obj: Json) -> None:
        self.controller.informers[obj["kind"]]._take(msgspec.json.encode({"type": what, "object": obj}))

    def _refuse(self) -> None:
        if self.refuses:
            raise Unavailable(500, "InternalError", "no")

    async def _carry_out(self, decision: Decision, _: object) -> str:
        if self.refuses and decision.key[1].startswith("guest"):
            self.end(("Workload", *decision.key))  # as the write is under way
        self._refuse()
        obj = self.objects["Workload", *decision.key]
        if isinstance(decision, Admit):
            obj["status"] = reserved(values.admission_object(decision.admission))
            self.put(obj)
        return ""

    async def _nothing(self, *_: object) -> None:
        self._refuse()

    async def _yes(self, *_: object) -> bool:
        return True

    async def _deleted(self, seen: WorkloadSeen) -> None:
        self._refuse()
        self.end(("Workload", *seen.key))


def reserved(admission: Json) -> Json:
    true = [lab.condition(kind, True, kind, "") for kind in ("QuotaReserved", "Admitted")]
    return {"conditions": true, "admission": admission}


LATER = rfc3339(NOW + 30 * 86_400_000)


def platform(g: str, others: str = "") -> Iterable[Json]:
    """What the platform team has in one generation; all names are of that generation."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"ns{g}", "labels": {"g": g}}}
    yield own("Topology", f"t{g}", {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]})
    yield own("AdmissionCheck", f"check{g}", {"controllerName": "example.com/budget"})
    yield own("ResourceFlavor", f"f{g}", {"nodeLabels": {"g": g}, "topologyName": f"t{g}"})
    yield own("Cohort", f"c{g}")
    yield own("WorkloadPriorityClass", f"p{g}", value=1)
    yield {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": f"p{g}"}, "value": 1}
    yield {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": f"r{g}"}, "handler": "r"}
    defaults = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}
    yield {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": f"ns{g}"}, "spec": defaults}
    yield {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": f"s{g}"}, "provisioner": "p"}
    yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"v{g}"}, "spec": {}}
    for i in range(3):
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n{g}-{i}", "labels": {"g": g, "kubernetes.io/hostname": f"host{g}-{i}"}},
            "status": {
                "allocatable": {GPU: "8", "cpu": "64", "memory": "1Ti", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    queue = lab.cluster_queue(f"q{g}", 32, cohort=f"c{g}")
    queue["spec"]["resourceGroups"][0]["flavors"][0]["name"] = f"f{g}"
    yield queue
    yield lab.local_queue("main", f"q{g}", f"ns{g}")


def rule_of(g: str) -> Json:
    """Pods that keep away from those with a label that only they have."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"job": g}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def gang(g: str, name: str, uid: str = "", *, gpus: int = 8, status: Json | None = None, **spec: Any) -> Json:
    template = lab.template(gpus)
    template["metadata"] = {"labels": {"job": f"{g}-{name}"}}
    template["spec"] |= {
        "affinity": rule_of(f"{g}-{name}"),
        "nodeSelector": {"g": g},
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": name}}] if name == "mounts" else [],
    }
    meta = {"name": f"{name}-{g}", "namespace": f"ns{g}", "labels": {NAMES.job_uid_label: uid} if uid else {}}
    asks = {"queueName": "main", "podSets": [{"name": "main", "count": 1, "template": template}], **spec}
    return {"apiVersion": lab.API, "kind": "Workload", "metadata": meta, "spec": asks, "status": status or {}}


def pod(g: str, name: str, **labels: str) -> Json:
    controller = [{"kind": "Job", "name": "j", "uid": labels.get(CONTROLLER_UID_LABEL, "x"), "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-{g}", "namespace": f"ns{g}", "labels": labels, "ownerReferences": controller},
        "spec": {"nodeName": f"n{g}-0", **lab.template(0)["spec"]},
        "status": {"phase": "Running"},
    }


async def generation(town: Town, g: str, *, backwards: bool) -> None:
    """Everything comes, runs, and goes."""
    before = set(town.objects)
    for obj in platform(g):
        town.put(obj)
    train = lab.job("train", "main", pods=1)
    train["metadata"]["namespace"] = f"ns{g}"
    job = town.put(train)["metadata"]["uid"]
    on_node = lab.admission(f"n{g}-0", pods=1)
    on_node["clusterQueue"] = f"q{g}"
    on_node["podSetAssignments"][0]["flavors"] = {GPU: f"f{g}"}
    runs = reserved(on_node)
    message = f"Preempted to accommodate a workload (UID: gone-{g}, JobUID: x)"
    evicted = [lab.condition("Evicted", True, "Preempted", ""), lab.condition("Preempted", True, "InCohort", message)]
    for one in (
        gang(g, "stands-for-a-job", job),
        gang(g, "runs", status=runs, maximumExecutionTimeSeconds=30 * 86_400),
        gang(g, "finished", status={"conditions": [lab.condition("Finished", True, "JobFinished", "")]}),
        gang(g, "evicted", status={**runs, "conditions": [*runs["conditions"], *evicted]}),
        gang(g, "backs-off", status={"requeueState": {"count": 1, "requeueAt": LATER}}),
        gang(g, "claims", gpus=1, status={"claim": {"admission": on_node, "victims": ["x"], "until": LATER}}),
        gang(g, "mounts"),
        gang(g, "lost-a-node", gpus=1, status={**runs, "unhealthyNodes": [{"name": f"n{g}-0"}]}),
        gang(g, "too-large", gpus=64),
        gang(g, "orphan", f"gone-{g}"),
        gang(g, "astray", queueName="nowhere"),
        gang("-0", f"guest{g}"),
    ):
        town.put(one)
    uid = town.objects["Workload", f"ns{g}", f"runs-{g}"]["metadata"]["uid"]
    for one in (
        pod(g, "ours", **{NAMES.managed_label: "true", NAMES.workload_uid_label: uid, CONTROLLER_UID_LABEL: job}),
        pod(g, "theirs", job=f"{g}-runs"),
        pod(g, "other", job=g),
    ):
        town.put(one)
    await settled(town)
    moved = pod(g, "other", **{CONTROLLER_UID_LABEL: job})
    town.put(moved)
    town.put({**gang(g, "too-large", gpus=63)})
    await settled(town)
    new = [at for at in town.objects if at not in before]
    for at in reversed(new) if backwards else new:
        if at in town.objects:
            town.end(at)
    await settled(town)


async def settled(town: Town) -> None:
    controller = town.controller
    town.now += 60_000
    for name in sorted(controller.state.queues):
        controller.state.holders(name)  # what is found out is kept
    if not controller.leading:
        await asyncio.sleep(0.001)
        return
    for _ in range(3):
        controller.decide_once()
        await asyncio.sleep(0)
        while not controller.jobs.idle:
            await asyncio.sleep(0)
    controller.stale._stale.clear()


@pytest.mark.parametrize(
    ("rules", "leads", "refuses"),
    [(MUSTER, True, False), (KUEUE, True, False), (MUSTER, False, False), (MUSTER, True, True)],
    ids=["leads", "Kueue's rules", "stands by", "all is refused"],
)
async def test_a_controller_holds_no_more_after_many_generations(rules: Rules, leads: bool, refuses: bool) -> None:
    town = Town(rules, leads=leads, refuses=refuses)
    for obj in platform("-0"):
        town.put(obj)
    town.put(gang("-0", "stays", gpus=64))
    running = [asyncio.ensure_future(one) for one in (town.controller.jobs.run(), town.controller._tidy())]
    found = []
    for g in range(1, BETWEEN[-1] + 1):
        await generation(town, f"-{2 * g}", backwards=False)
        await generation(town, f"-{2 * g + 1}", backwards=True)
        if g in BETWEEN:
            found.append(holdings(town.controller))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    before, after = found
    assert [(where, n, held) for where, held in after.items() if held > (n := before.get(where, 0)) + FEW] == []
