"""A cluster to ask: a sandbox without actors, in which a test writes what the controller would have written, asked with
the rights that the test grants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from click.testing import CliRunner, Result

from admission.cli import cli
from admission.controller.ask import Ask
from admission.engine.model import Detail, Shortfall, Why
from admission.engine.project import sentence
from admission.jobs.values import rfc3339
from admission.kube.client import Client
from admission.names import Names
from admission.sandbox.http import Sandbox
from admission.sandbox.store import Request

Json = dict[str, Any]
NAMES = Names()
API = NAMES.api_version
T0 = 1_800_000_000_000
NOW = T0 + 900_000
GPU = "nvidia.com/gpu"


class World:
    """A sandbox that is filled by hand."""

    def __init__(self, sandbox: Sandbox, client: Client) -> None:
        self.sandbox = sandbox
        self.client = client
        self.denied: set[str] = set()
        sandbox.faults.append(self._refuse)

    def _refuse(self, request: web.Request) -> web.Response | None:
        """403 for the plurals in `denied`; "pods*" denies the list of all namespaces only, "PATCH pods" one method."""
        parts = request.path.strip("/").split("/")
        everywhere = "namespaces" not in parts
        for said in self.denied:
            method, _, denied = said.rpartition(" ")
            if method and method != request.method:
                continue
            if denied.rstrip("*") in parts and (everywhere or not denied.endswith("*")):
                body = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": f"may not see {denied}"}
                return web.json_response(body, status=403)
        return None

    async def put(self, obj: Json) -> Json:
        """Create an object, its status too; the answer is the object as stored."""
        group, _, version = obj["apiVersion"].rpartition("/")
        plural = {"LocalQueue": "localqueues", "Topology": "topologies"}.get(obj["kind"], obj["kind"].lower() + "s")
        if obj["kind"] in ("PriorityClass", "StorageClass", "RuntimeClass"):
            plural = obj["kind"].lower() + "es"
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        namespace = obj["metadata"].get("namespace")
        path = f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
        made = await self.client.create(path, {key: value for key, value in obj.items() if key != "status"})
        if "status" in obj:
            made["status"] = obj["status"]
            made = await self.client.put(f"{path}/{made['metadata']['name']}/status", made)
        return made

    def ask(self) -> Ask:
        return Ask(self.client, NAMES, NOW)


@cache
def crds() -> tuple[Json, ...]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(yaml.load(path.read_bytes(), loader) for path in sorted(Path("crds").glob("muster.dev_*.yaml")))


@asynccontextmanager
async def a_world(tmp_path: Path) -> AsyncIterator[World]:
    async with Sandbox(with_actors=False, clock=lambda: T0) as sandbox:
        kind = sandbox.store.kind("apiextensions.k8s.io", "customresourcedefinitions")
        assert kind is not None
        for body in crds():
            sandbox.store.do(Request("create", kind, body=body, manager="test"), T0)
        sandbox.write_kubeconfig(tmp_path / "kubeconfig")
        async with Client.plain(sandbox.url, token="admin-token", backoff=(0.001, 0.01)) as client:
            world = World(sandbox, client)
            for name in ("ml", "web"):
                await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            yield world


def own(kind: str, name: str, spec: Json | None = None, *, namespace: str = "", **more: Any) -> Json:
    out: Json = {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec or {}, **more}
    if namespace:
        out["metadata"]["namespace"] = namespace
    return out


def cluster_queue(name: str, nominal: int, used: int = 0, *, cohort: str = "lab", **fields: Any) -> Json:
    resource = {"name": GPU, "nominalQuota": nominal, **fields}
    flavors = [{"name": "h100", "resources": [resource]}]
    spec: Json = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
    }
    if cohort:
        spec["cohortName"] = cohort
    held = [{"name": "h100", "resources": [{"name": GPU, "total": str(used)}]}]
    return own(
        "ClusterQueue", name, spec, status={"flavorsReservation": held, "pendingWorkloads": 1, "admittedWorkloads": 2}
    )


def local_queue(name: str, to: str, namespace: str = "ml") -> Json:
    return own("LocalQueue", name, {"clusterQueue": to}, namespace=namespace, status={"pendingWorkloads": 1})


def template(gpus: int) -> Json:
    container = {"name": "main", "image": "x", "resources": {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}}}
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


def job(name: str, queue: str = "team-a", *, pods: int = 2, gpus: int = 8, status: Json | None = None) -> Json:
    labels = {NAMES.queue_label: queue} if queue else {}
    out: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml", "labels": labels},
        "spec": {
            "suspend": status is None,
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": template(gpus),
        },
    }
    if status is not None:
        out["status"] = status
    return out


def condition(kind: str, holds: bool, reason: str, message: str, at: int = T0) -> Json:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(at),
    }


def workload(made: Json, status: Json, *, priority: int = 0, queue: str = "team-a", active: bool = True) -> Json:
    """The Workload of a job that was made."""
    meta = made["metadata"]
    spec = {
        "queueName": queue,
        "priority": priority,
        "active": active,
        "podSets": [
            {"name": "main", "count": made["spec"]["parallelism"], "template": made["spec"]["template"]},
        ],
    }
    out = own("Workload", f"job-{meta['name']}", spec, namespace=meta["namespace"], status=status)
    out["metadata"]["labels"] = {NAMES.job_uid_label: meta["uid"]}
    out["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
    ]
    return out


def waiting(why: Why) -> Json:
    return {"conditions": [condition("QuotaReserved", False, why.reason.value, sentence(why))]}


def admission(*nodes: str, pods: int = 2, gpus: int = 8) -> Json:
    each = pods // len(nodes)
    slices = {
        "domainCount": len(nodes),
        "valuesPerLevel": [{"individual": {"roots": list(nodes)}} if len(nodes) > 1 else {"universal": nodes[0]}],
        "podCounts": {"universal": each},
    }
    assignment = {
        "name": "main",
        "count": pods,
        "flavors": {GPU: "h100"},
        "resourceUsage": {GPU: str(pods * gpus)},
        "topologyAssignment": {"levels": ["kubernetes.io/hostname"], "slices": [slices]},
    }
    return {"clusterQueue": "team-a", "podSetAssignments": [assignment]}


async def lab(world: World) -> None:
    """Two teams of 16 and 16 devices, of which 8 and 24 are in use."""
    await world.put(own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}))
    await world.put(cluster_queue("team-a", 16, 8))
    await world.put(cluster_queue("team-b", 16, 24))
    await world.put(local_queue("team-a", "team-a"))
    await world.put(local_queue("team-b", "team-b", "web"))


SHORT = Shortfall("main", "h100", GPU, Detail.COHORT_SHORT, 16, 16, 8, 8, 16, limited_by="lab")


def jobs_of(name: str, **more: Any) -> Callable[[World], Any]:
    async def put(world: World) -> None:
        await world.put(job(name, **more))

    return put


STARTED = {"active": 2, "ready": 2, "startTime": rfc3339(T0)}


async def with_workload(world: World, made: Json, status: Json, **more: Any) -> None:
    await world.put(workload(await world.put(made), status, **more))


RESERVED = condition("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue team-a")
ADMITTED_ = condition("Admitted", True, "Admitted", "The workload is admitted", T0 + 60_000)


async def run(world: World, tmp_path: Path, *arguments: str, code: int = 0) -> Result:
    """The command, as a person runs it."""
    runner = CliRunner()
    given = [*arguments, "--kubeconfig", str(tmp_path / "kubeconfig")]
    result = await asyncio.to_thread(runner.invoke, cli, given)
    assert result.exit_code == code, result.output
    return result


async def fleet(world: World) -> None:
    for name, more in (("n1", {}), ("n2", {}), ("n3", {"unschedulable": True}), ("n4", {})):
        await world.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"gpu": "h100", "kubernetes.io/hostname": name}},
                "spec": more,
                "status": {
                    "allocatable": {GPU: "8", "cpu": "64", "memory": "256Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
