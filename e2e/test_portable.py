"""The part of the suite that runs on any cluster: `make e2e KUBECONFIG=...`.

It speaks through kubectl alone, asks for a little CPU on nodes that are there, and takes away what it made. Without a
kubeconfig it runs on the control plane of the suite, so that it is never out of use. The cluster must be Kubernetes
1.36 or newer (its API server holds the jobs), and the kubeconfig that of an administrator.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.api import crd
from e2e.build import ensure
from e2e.forked import SOURCES
from e2e.installed import NAMES, cluster_queue, flavor, job, local_queue

IMAGE = os.environ.get("MUSTER_E2E_IMAGE", "busybox:stable")
TEAM = "muster-e2e"


class Cluster:
    """Some cluster, through kubectl."""

    def __init__(self, kubeconfig: Path, kubectl: str) -> None:
        self.kubeconfig = kubeconfig
        self._kubectl = kubectl

    def __call__(self, *arguments: str, said: str | None = None, check: bool = True) -> str:
        ran = subprocess.run(
            [self._kubectl, "--kubeconfig", str(self.kubeconfig), *arguments],
            input=said,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and ran.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {ran.stderr}")
        return ran.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self("apply", "--server-side", "--force-conflicts", "-f", "-", said=yaml.safe_dump_all(objects))

    def get(self, kind: str, name: str, namespace: str = TEAM) -> dict[str, Any]:
        return dict(json.loads(self("get", kind, name, "-n", namespace, "-o", "json")))

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if holds():
                    return
            except AssertionError:
                pass
            time.sleep(0.3)
        raise AssertionError(f"waited {seconds:g} s for {what}")


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    given = request.config.getoption("--kubeconfig")
    if given:
        kubectl = shutil.which("kubectl") or str(ensure(["kubectl"])["kubectl"])
        cluster = Cluster(Path(given).resolve(), kubectl)
    else:
        cp = request.getfixturevalue("cp")
        cp.clean()
        cp.add_nodes(2, gpus=0, cpu="8")
        cluster = Cluster(cp.kubeconfig(), str(cp.kubectl_path))
    cluster.apply(*(yaml.safe_load(text) for text in crd.files(NAMES).values()))
    for kind in ("clusterqueues", "workloads"):
        cluster("wait", "--for=condition=Established", f"crd/{kind}.{NAMES.group}", "--timeout=300s")
    for part in ("namespace", "priority", "roles", "policies"):
        cluster("apply", "--server-side", "--force-conflicts", "-f", str(SOURCES / "config" / f"{part}.yaml"))
    config = tmp_path / "muster.yaml"
    off = {"bindAddress": "0"}
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.muster.dev/v1beta1",
                "kind": "Configuration",
                "hold": "policy",
                "health": off,
                "metrics": off,
                "web": off,
            }
        )
    )
    arguments = ["controller", "--kubeconfig", str(cluster.kubeconfig), "--namespace", "muster-system"]
    log = (tmp_path / "controller.log").open("wb")
    controller = subprocess.Popen(
        [sys.executable, "-m", "admission.cli", *arguments, "--config", str(config)],
        stdout=log,
        stderr=log,
        cwd=SOURCES,
    )
    try:
        yield cluster
    finally:
        cluster("delete", "namespace", TEAM, "--ignore-not-found", "--wait=false", check=False)
        for kind in ("clusterqueue", "resourceflavor"):
            cluster("delete", f"{kind}s.{NAMES.group}", TEAM, "--ignore-not-found", "--wait=false", check=False)
        controller.terminate()
        controller.wait(120)
        log.close()


def _job(name: str, pods: int, cpu: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "16Mi"}
    container = {"name": "c", "image": IMAGE, "command": ["sleep", "2"], "resources": {"requests": amounts}}
    template = {
        "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "2s"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return job(TEAM, name, pods, template=template)


def succeeded(cluster: Cluster, name: str, pods: int) -> Callable[[], bool]:
    return lambda: cluster.get("job", name)["status"].get("succeeded") == pods


@pytest.mark.portable
def test_two_gangs_take_turns_on_one_quota(cluster: Cluster) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    cluster.apply(
        flavor(TEAM), cluster_queue(TEAM, {"cpu": "200m", "memory": "1Gi"}, flavor=TEAM), local_queue(TEAM, TEAM)
    )
    cluster.apply(_job("one", 2, "100m"), _job("two", 2, "100m"), _job("never", 4, "100m"))
    assert cluster.get("job", "two")["spec"]["suspend"] is True
    for name in ("one", "two"):
        cluster.wait(f"{name} to finish", succeeded(cluster, name, 2))

    def told() -> bool:
        listed = json.loads(cluster("get", f"workloads.{NAMES.group}", "-n", TEAM, "-o", "json"))["items"]
        for one in listed:
            if one["metadata"]["ownerReferences"][0]["name"] == "never":
                reasons = {c["type"]: c["reason"] for c in one.get("status", {}).get("conditions", ())}
                return reasons.get("QuotaReserved") == "ExceedsMaxQuota"
        return False

    cluster.wait("the gang that is too big to be told so", told)
    assert cluster.get("job", "never")["spec"]["suspend"] is True
