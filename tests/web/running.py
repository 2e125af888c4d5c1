"""A controller that decides about a sandbox, and what is served of it; with people who may see this and that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from admission.controller.actuate import Options
from admission.controller.app import Controller, Tuning
from admission.controller.lifecycle import Settings
from admission.engine.model import MUSTER
from admission.kube.client import Client
from admission.names import Names
from admission.sandbox.http import Sandbox
from admission.sandbox.store import Request, User
from admission.web.server import Web
from tests.controller.lab import crds

Json = dict[str, Any]
NAMES = Names()
GPU = "nvidia.com/gpu"
TEAMS = {"team-a": 16, "team-b": 8}
"""Namespace, ClusterQueue of its name -> GPUs; in one cohort. Four nodes of 8 GPUs, of which one belongs to nobody."""

PEOPLE = {
    "ann-token": User("ann", ("team-a",)),
    "bob-token": User("bob", ("team-b",)),
    "ops-token": User("olga", ("platform",)),
    "nobody-token": User("nobody", ()),
}
FAST = Tuning(explain_after_s=0.05, explain_per_s=500, queue_status_s=0.1, sweep_s=5)


class Cluster(Sandbox):
    """A sandbox whose authorizer knows tenants, each with a namespace of the name of their group, and the platform.

    `aggregated`: answers for groups that begin with `visibility.`, as an aggregated API server, by path and user."""

    aggregated: Callable[[str, User], Awaitable[tuple[int, Json]]] | None = None

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if self.aggregated is None or not request.path.startswith("/apis/visibility."):
            return await super()._route(request)
        status, body = await self.aggregated(request.path_qs, self._user(request))
        return web.json_response(body, status=status)

    def allows(self, user: str, groups: Iterable[str], attributes: Mapping[str, Any]) -> bool:
        groups = set(groups)
        if groups & {"platform", "system:masters"}:
            return True
        return attributes.get("namespace") in groups and attributes.get("verb") in ("get", "list")


@dataclass
class Running:
    """What a test has to hand."""

    cluster: Cluster
    client: Client
    controller: Controller
    web: Web
    http: TestClient[web.Request, web.Application]

    async def get(self, path: str, token: str = "ops-token", status: int = 200, **query: Any) -> Json:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.http.get(path, params=query, headers=headers) as answer:
            body = await answer.text()
            assert answer.status == status, body
            made: Json = await answer.json()
            return made

    async def submit(self, namespace: str, name: str, gpus: int = 8, pods: int = 1, priority: str = "") -> None:
        await self.client.create(
            f"/apis/batch/v1/namespaces/{namespace}/jobs", job(namespace, name, gpus, pods, priority)
        )

    async def delete(self, namespace: str, name: str) -> None:
        await self.client.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", propagation="Background")

    async def until(self, holds: Callable[[], Any]) -> Any:
        async with asyncio.timeout(300):
            while not (found := holds()):
                await asyncio.sleep(0.02)
        return found

    def workloads(self) -> dict[str, Any]:
        """Job -> its Workload as the engine has it; without those that are deleted and hold their room still."""
        shown = self.controller.numbers
        every = {shown.owner(key)[1]: gang for key, gang in self.controller.state.workloads.items()}
        return {name: gang for name, gang in every.items() if name}

    def running(self) -> set[str]:
        return {name for name, gang in self.workloads().items() if gang.admitted}

    def settled(self, *names: str) -> Callable[[], bool]:
        """These jobs are known, and nothing that has changed is still to be decided about."""

        def look() -> bool:
            found = self.workloads()
            if not set(names) <= set(found):
                return False
            verdicts = self.controller.verdicts
            return all(found[name].admitted or found[name].key in verdicts for name in names)

        return look


def job(namespace: str, name: str, gpus: int, pods: int, priority: str = "") -> Json:
    labels = {NAMES.queue_label: "main", **({NAMES.priority_class_label: priority} if priority else {})}
    amounts = {GPU: str(gpus)}
    template = {
        "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "24h"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "c", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }
    spec = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "suspend": True,
        "template": template,
    }
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def _objects() -> Iterable[tuple[str, Json]]:
    def ours(kind: str, plural: str, name: str, spec: Json | None, namespace: str = "") -> tuple[str, Json]:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        inside = f"namespaces/{namespace}/{plural}" if namespace else plural
        body: Json = {"apiVersion": NAMES.api_version, "kind": kind, "metadata": meta}
        return f"/apis/{NAMES.api_version}/{inside}", body | ({"spec": spec} if spec is not None else {})

    yield ours("ResourceFlavor", "resourceflavors", "h100", {"nodeLabels": {"gpu": "h100"}})
    yield ours("Cohort", "cohorts", "lab", {})
    path, urgent = ours("WorkloadPriorityClass", "workloadpriorityclasses", "urgent", None)
    yield path, urgent | {"value": 1000}
    for team, gpus in TEAMS.items():
        yield "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}
        flavors = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": gpus}]}]
        spec = {
            "cohortName": "lab",
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
        }
        yield ours("ClusterQueue", "clusterqueues", team, spec)
        yield ours("LocalQueue", "localqueues", "main", {"clusterQueue": team}, team)
    for number in range(4):
        name, size = f"node-{number}", {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}
        labels = {"gpu": "h100", "kubernetes.io/hostname": name, "type": "kwok"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"capacity": size, "allocatable": size, "conditions": [ready]}
        meta = {"name": name, "labels": labels}
        yield "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def controller(client: Client) -> Controller:
    return Controller(
        client, names=NAMES, rules=MUSTER, settings=Settings(), options=Options(can_rank=False), tuning=FAST
    )


async def install(cluster: Cluster, client: Client) -> None:
    """The kinds, the teams with their quota, and the nodes."""
    kind = cluster.store.kind("apiextensions.k8s.io", "customresourcedefinitions")
    assert kind is not None
    for body in crds():
        cluster.store.do(Request("create", kind, body=body, manager="test"), cluster.clock())
    for path, body in _objects():
        await client.create(path, body)


@contextlib.asynccontextmanager
async def running(*faults: Callable[[web.Request], web.Response | None]) -> AsyncIterator[Running]:
    async with (
        Cluster(users=PEOPLE) as cluster,
        Client.plain(cluster.url, token="admin-token", backoff=(0.001, 0.01)) as client,
    ):
        await install(cluster, client)
        cluster.faults += faults
        made = controller(client)
        shown = Web(made.numbers, client, NAMES)
        made.watchers.workload.append(shown.stories.seen)
        tasks = [asyncio.create_task(made.watch()), asyncio.create_task(made.lead())]
        async with TestClient(TestServer(shown.app)) as http:
            one = Running(cluster, client, made, shown, http)
            await one.until(lambda: made.synced and made.leading)
            try:
                yield one
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
