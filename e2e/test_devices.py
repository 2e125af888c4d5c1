"""Devices that a DRA driver lists, and that the real scheduler gives to pods which ask for the extended resource."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner

from admission.cli import cli
from admission.names import OF_DEVICE_CLASS
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, admitted, reason, running_pods, teams, workload_of
from e2e.installed import Installed, cluster_queue, job, pod_template
from e2e.invariants import LISTED_DEVICES

DRIVER, PARTS = "gpu.nvidia.com", "mig.nvidia.com"
GPU_BY_CLASS, PARTS_BY_CLASS = f"{OF_DEVICE_CLASS}{DRIVER}", f"{OF_DEVICE_CLASS}{PARTS}"
Json = dict[str, Any]


def of_driver(kind: str, name: str, namespace: str = "", **rest: Any) -> Json:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta, **rest}


def device_class(name: str, kind: str, resource: str = "") -> Json:
    picks = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    named = {"extendedResourceName": resource} if resource else {}
    return of_driver("DeviceClass", name, spec={"selectors": [{"cel": {"expression": picks}}], **named})


@contextmanager
def driver(cp: ControlPlane) -> Iterator[None]:
    """Its classes: whole GPUs, which pods may ask for as nvidia.com/gpu, and parts of them."""
    cp.apply([device_class(DRIVER, "gpu", GPU), device_class(PARTS, "mig")])
    try:
        yield
    finally:
        for plural in ("deviceclasses", "resourceslices"):
            cp.delete_all(f"{plural}.resource.k8s.io")


def listed(cp: ControlPlane, node: str, gpus: int, generation: int = 1, parts: int = 1) -> None:
    """What the driver of a node lists: its GPUs, and parts of one more."""
    kinds = ["gpu"] * gpus + ["mig"] * parts
    devices = [
        {"name": f"{kind}-{i}", "attributes": {"type": {"string": kind}, "uuid": {"string": f"{node}-{i}"}}}
        for i, kind in enumerate(kinds)
    ]
    there = {GPU: gpus, GPU_BY_CLASS: gpus, PARTS_BY_CLASS: parts}
    cp.patch("nodes", node, {"metadata": {"annotations": {LISTED_DEVICES: json.dumps(there)}}})
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    cp.apply(
        [
            of_driver(
                "ResourceSlice",
                f"{node}-gpus",
                spec={"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices},
            )
        ]
    )


def pod_of(source: Json, **rest: Any) -> Json:
    """The spec of a pod that gets its devices by a claim."""
    containers = [{"name": "c", "image": "c", "resources": {"claims": [{"name": "gpus"}]}}]
    return {"resourceClaims": [{"name": "gpus", **source}], "containers": containers, **rest}


def claimed(cp: ControlPlane, node: str) -> None:
    """A pod of nobody's on this node, that holds one of its GPUs by a claim."""
    request = {"name": "one", "exactly": {"deviceClassName": DRIVER}}
    cp.namespace("others")
    cp.apply([of_driver("ResourceClaim", "mine", "others", spec={"devices": {"requests": [request]}})])
    spec = pod_of({"resourceClaimName": "mine"}, nodeSelector={"kubernetes.io/hostname": node})
    cp.apply([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "others"}, "spec": spec}])
    cp.wait(lambda: running_pods(cp, "others"), 30, "the scheduler to give it a GPU")


def nodes(cp: ControlPlane, plugins: int, gpus: int, parts: int = 1) -> None:
    """Two whose four GPUs a driver lists, and so many that have some by a device plugin."""
    cp.add_nodes(2, gpus=0, labels={"gpu": "h100"}, prefix="listed")
    cp.add_nodes(plugins, gpus=gpus, labels={"gpu": "h100"}, prefix="plugin")
    for node in ("listed-0", "listed-1"):
        listed(cp, node, 4, parts=parts)


def linted(cp: ControlPlane) -> str:
    return CliRunner().invoke(cli, ["lint", "--cluster", "--kubeconfig", str(cp.kubeconfig())]).output


def free(cp: ControlPlane, resource: str = GPU) -> dict[str, tuple[int, int]]:
    """GPUs of each node that has some, and how many are free, as `muster nodes` says."""
    given = ["nodes", "-o", "json", "--kubeconfig", str(cp.kubeconfig())]
    rows = json.loads(CliRunner().invoke(cli, given, catch_exceptions=False).stdout)["rows"]
    both = ((row["name"], dict(row["capacity"]), dict(row["free"])) for row in rows)
    return {name: (capacity[resource], free[resource]) for name, capacity, free in both if resource in capacity}


def test_gangs_go_where_a_driver_lists_devices(muster: Installed) -> None:
    cp = muster.cp
    with driver(cp):
        nodes(cp, plugins=1, gpus=2)
        teams(cp, {"team-a": 64})
        odd = {"cel": {"expression": f"cel.bind(d, device.driver, d == '{DRIVER}')"}}
        spec = {"extendedResourceName": "example.com/odd", "selectors": [odd]}
        cp.apply([of_driver("DeviceClass", "odd", spec=spec)])
        replica = muster.started()
        said = [line["device_class"] for line in replica.lines() if line["event"] == "no devices of this class count"]
        assert said == ["odd"]
        claimed(cp, "listed-1")
        assert "its 3 nodes have 10" in linted(cp)
        cp.wait(lambda: free(cp) == {"listed-0": (4, 4), "listed-1": (4, 3), "plugin-0": (2, 2)}, 10, "what is free")

        cp.apply([job("team-a", "large", 3, gpus=3, seconds=None), job("team-a", "both", 2, gpus=3, seconds=None)])
        cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "the scheduler to run the gang that fits")
        assert admitted(cp, "team-a", "both")
        cp.wait(lambda: reason(cp, "team-a", "large")[0] == "TopologyPlacementFailed", 20, "the other to be told why")
        cp.apply([job("team-a", "small", 1, gpus=2, seconds=None)])
        cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 30, "the one beside it")
        hosts = sorted(pod["spec"]["nodeName"] for pod in running_pods(cp, "team-a"))
        assert hosts == ["listed-0", "listed-1", "plugin-0"]
        assert free(cp) == {"listed-0": (4, 1), "listed-1": (4, 0), "plugin-0": (2, 0)}

        listed(cp, "listed-0", 8, generation=2)
        cp.delete("jobs", "both", "team-a")
        cp.add_nodes(1, gpus=0, labels={"gpu": "h100"}, prefix="new")
        listed(cp, "new-0", 4)
        cp.wait(lambda: len(running_pods(cp, "team-a")) == 4, 30, "the large one to run when there is room")


def template(namespace: str, name: str, gpus: int, **request: Any) -> Json:
    exactly = {"deviceClassName": DRIVER, "count": gpus, **request}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    return of_driver("ResourceClaimTemplate", name, namespace, spec={"spec": spec})


def claiming(name: str, pods: int, source: Json) -> Json:
    """A Job whose pods get their devices by claims."""
    note = pod_template(seconds=None)["metadata"]
    template = {"metadata": note, "spec": pod_of(source, restartPolicy="Never")}
    return job("team-a", name, pods, template=template, backoffLimit=6)


def running(cp: ControlPlane, name: str) -> list[Json]:
    """Pods of a Job that run."""
    return [pod for pod in running_pods(cp, "team-a") if pod["metadata"]["labels"]["job-name"] == name]


def told(cp: ControlPlane, name: str) -> str:
    """What the owner of a job was told."""
    return str([one["message"] for one in cp.list("events", "team-a") if one["involvedObject"]["name"] == name])


def submitted(cp: ControlPlane, asked: Json) -> str:
    """What `muster submit` foretells of a job."""
    given = ["submit", "-", "--kubeconfig", str(cp.kubeconfig())]
    return CliRunner().invoke(cli, given, input=json.dumps(asked)).output


def used(cp: ControlPlane, name: str, resource: str = GPU) -> str | None:
    """GPUs that a job was admitted for."""
    status = (workload_of(cp, "team-a", name) or {}).get("status") or {}
    found = [one.get("resourceUsage") or {} for one in (status.get("admission") or {}).get("podSetAssignments") or ()]
    return found[0].get(resource) if found else None


def test_what_pods_ask_for_by_claims_is_counted(muster: Installed) -> None:
    cp = muster.cp
    with driver(cp):
        nodes(cp, plugins=2, gpus=4)
        teams(cp, {"team-a": 13})
        replica = muster.started()
        of_two = {"resourceClaimTemplateName": "two"}
        cp.apply([claiming("first", 3, of_two)])
        unclear = "The devices that its pods ask for cannot be counted: ResourceClaimTemplate 'two' does not exist"
        cp.wait(lambda: reason(cp, "team-a", "first")[1] == unclear, 20, "to be told")
        assert "ResourceClaimTemplate 'two' does not exist" in submitted(cp, claiming("asked", 3, of_two))
        cp.apply([template("team-a", "two", 2)])
        cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 30, "the scheduler to run all of it")
        assert {pod["spec"]["nodeName"] for pod in running_pods(cp, "team-a")} == {"listed-0", "listed-1"}
        assert used(cp, "first") == "6"
        assert "would start now" in submitted(cp, claiming("asked", 1, of_two))
        cp.wait(lambda: sum(there[1] for there in free(cp).values()) == 10, 10, "what is free")

        # Who comes after it finds its gangs' claims, and counts none of them twice.
        replica.stop()
        muster.started()
        first = {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")}
        cp.apply([claiming("many", 4, of_two), claiming("shared", 1, {"resourceClaimName": "mine"})])
        cp.wait(lambda: "eeds 8 nvidia.com/gpu" in reason(cp, "team-a", "many")[1], 20, "quota to count them")
        cp.wait(lambda: "a claim that pods share is not counted" in reason(cp, "team-a", "shared")[1], 20, "to be told")
        cp.delete("jobs", "many", "team-a")
        # Of the nodes with room two have none for claims.
        cp.apply([claiming("next", 2, of_two)])
        kept_out = f"2 kept out by no devices of class {DRIVER}"
        cp.wait(lambda: kept_out in reason(cp, "team-a", "next")[1], 20, "to be told of nodes")
        assert {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")} == first
        cp.delete("jobs", "first", "team-a")
        cp.wait(lambda: len(running(cp, "next")) == 2, 30, "it to run when there is room")

        # What it asked for when it was admitted holds, whatever its template becomes.
        cp.delete("resourceclaimtemplates.resource.k8s.io", "two", "team-a")
        cp.apply([template("team-a", "two", 4)])
        cp.delete("pods", running(cp, "next")[0]["metadata"]["name"], "team-a")
        more = f"asks for this by its claims: 4 of {DRIVER}, and 2 were counted"
        cp.wait(lambda: more in told(cp, "next"), 30, "it to be sent back")
        cp.wait(lambda: f'"{GPU}",4' in str(workload_of(cp, "team-a", "next")), 20, "it to be counted anew")


def asking(name: str, pods: int, amounts: dict[str, int]) -> Json:
    """A Job whose pods ask for these resources."""
    template = pod_template(seconds=None)
    asked = {resource: str(amount) for resource, amount in amounts.items()}
    template["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
    return job("team-a", name, pods, template=template)


def test_a_class_is_counted_by_its_own_name_or_by_the_resource_that_it_names(muster: Installed) -> None:
    cp = muster.cp
    with driver(cp):
        nodes(cp, plugins=1, gpus=4, parts=2)
        teams(cp, {"team-a": 64})
        muster.started()
        part = {"resourceClaimTemplateName": "part"}
        cp.apply([template("team-a", "part", 1, deviceClassName=PARTS), claiming("claims", 3, part)])
        cp.wait(lambda: PARTS_BY_CLASS in reason(cp, "team-a", "claims")[1], 20, "to be told what needs quota")
        assert PARTS_BY_CLASS in submitted(cp, claiming("asked", 3, part))
        assert free(cp, PARTS_BY_CLASS) == {}

        # One that names no resource: by claims, and by its name.
        cp.apply([cluster_queue("team-a", {GPU: 8, PARTS_BY_CLASS: 4}, cohortName="all")])
        cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 30, "the scheduler to run all of it")
        assert {pod["spec"]["nodeName"] for pod in running_pods(cp, "team-a")} == {"listed-0", "listed-1"}
        assert used(cp, "claims", PARTS_BY_CLASS) == "3"
        cp.apply([cluster_queue("team-b", {PARTS_BY_CLASS: 4})])
        assert f"have together 8 {PARTS_BY_CLASS} of flavor gpu, and its 3 nodes have 4" in linted(cp)
        cp.delete("clusterqueues", "team-b")
        assert sorted(free(cp, PARTS_BY_CLASS).values()) == [(2, 0), (2, 1)]
        assert "would start now" in submitted(cp, asking("asked", 1, {PARTS_BY_CLASS: 1}))
        assert f"eeds 2 {PARTS_BY_CLASS}" in submitted(cp, asking("asked", 2, {PARTS_BY_CLASS: 1}))
        cp.apply([asking("parts", 2, {PARTS_BY_CLASS: 1})])
        cp.wait(lambda: f"eeds 2 {PARTS_BY_CLASS}" in reason(cp, "team-a", "parts")[1], 20, "quota to count it")
        cp.delete("jobs", "claims", "team-a")
        cp.wait(lambda: len(running(cp, "parts")) == 2, 30, "it to run when there is room")
        assert used(cp, "parts", PARTS_BY_CLASS) == "2"
        cp.wait(lambda: sum(there[1] for there in free(cp, PARTS_BY_CLASS).values()) == 2, 10, "what is free")

        # One that names a resource: as of that, where a driver lists its devices.
        cp.apply([asking("whole", 2, {GPU_BY_CLASS: 2, GPU: 1})])
        cp.wait(lambda: len(running(cp, "whole")) == 2, 30, "the scheduler to run it")
        assert used(cp, "whole") == "6"
        assert {pod["spec"]["nodeName"] for pod in running(cp, "whole")} == {"listed-0", "listed-1"}
        cp.wait(lambda: sum(there[1] for there in free(cp).values()) == 6, 10, "what is free")
        cp.apply([asking("many", 1, {GPU_BY_CLASS: 3}), asking("none", 1, {f"{OF_DEVICE_CLASS}none": 1})])
        cp.wait(lambda: f"eeds 3 {GPU}" in reason(cp, "team-a", "many")[1], 20, "quota to count it")
        cp.wait(lambda: "DeviceClass 'none' does not exist" in reason(cp, "team-a", "none")[1], 20, "to be told")

        # It gets a name: who waits is counted by that, and who runs, runs on.
        before = {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")}
        cp.apply([asking("later", 1, {PARTS_BY_CLASS: 3})])
        cp.wait(lambda: f"eeds 3 {PARTS_BY_CLASS}" in reason(cp, "team-a", "later")[1], 20, "it to wait")
        cp.apply([device_class(PARTS, "mig", "nvidia.com/mig")])
        cp.wait(lambda: "nvidia.com/mig" in reason(cp, "team-a", "later")[1], 20, "it to be counted by that")
        cp.apply([cluster_queue("team-a", {GPU: 9, "nvidia.com/mig": 4}, cohortName="all")])
        cp.delete("jobs", "later", "team-a")
        cp.apply([asking("later", 2, {PARTS_BY_CLASS: 1})])
        cp.wait(lambda: len(running(cp, "later")) == 2, 30, "the rest to run")
        assert used(cp, "later", "nvidia.com/mig") == "2"
        assert before < {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")}
        assert all(free == 0 for _, free in free(cp, "nvidia.com/mig").values())

        # One loses its name: nobody has more than there is, and the devices are told by their other one.
        cp.apply([cluster_queue("team-a", {GPU: 9, GPU_BY_CLASS: 8, "nvidia.com/mig": 4}, cohortName="all")])
        cp.apply([device_class(DRIVER, "gpu")])
        cp.wait(lambda: sum(there[1] for there in free(cp, GPU_BY_CLASS).values()) == 2, 20, "them to count as that")
        assert all(left >= 0 for _, left in free(cp).values())
        said = CliRunner().invoke(cli, ["nodes", "--kubeconfig", str(cp.kubeconfig())]).stdout
        assert f"3 {GPU} count as {GPU_BY_CLASS} now" in " ".join(said.split())
