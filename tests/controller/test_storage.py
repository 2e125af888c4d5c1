"""A running controller and claims: who waits for one goes on once it is bound; where none may be seen, none counts."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from admission.engine.model import Detail, Workload
from tests.web.running import Running, job, running

CLAIMS = "/api/v1/namespaces/team-a/persistentvolumeclaims"


async def submit(town: Running, name: str, claim: str) -> None:
    made = job("team-a", name, 1, 1)
    spec = made["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    await town.client.create("/apis/batch/v1/namespaces/team-a/jobs", made)


def nodes(gang: Workload) -> list[str]:
    assert gang.admission is not None
    given = gang.admission.pod_sets[0].topology
    assert given is not None
    return [domain.values[-1] for domain in given.domains]


async def test_a_gang_waits_for_its_claim_and_goes_where_its_volume_is() -> None:
    async with running() as town:
        await submit(town, "train", "data")
        waits = await town.until(lambda: list(town.controller.verdicts.values()))
        assert waits[0].why.detail is Detail.VOLUME_PENDING
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-3"]}]}
        has: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        volume = {
            **has,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/x"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        meta = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}}
        await town.client.create("/api/v1/persistentvolumes", {**meta, "spec": volume})
        meta = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        spec = {**has, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "pv"}
        bound = {"name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        await town.client.create(CLAIMS, {**meta, "metadata": bound, "spec": spec})
        await town.until(lambda: town.running() == {"train"})
        assert nodes(town.workloads()["train"]) == ["node-3"]


async def test_a_controller_that_may_not_see_volumes_goes_on_without() -> None:
    def refuse(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/persistentvolumes"):
            return None
        body = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "volumes are not for you"}
        return web.json_response(body, status=403)

    async with running(refuse) as town:
        await submit(town, "train", "none")
        await town.until(lambda: town.running() == {"train"})
