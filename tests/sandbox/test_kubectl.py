"""kubectl against the sandbox, where kubectl is installed, or was built for `make e2e`."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml

from admission.sandbox.__main__ import read_definitions
from admission.sandbox.http import Sandbox
from admission.sandbox.store import Request
from e2e import build

KUBECTL = shutil.which("kubectl") or build.find("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed, nor built: make e2e builds it")
CRDS = Path(__file__).parents[2] / "crds"
Kubectl = Callable[..., "asyncio.Future[str]"]

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n0"},
    "status": {"allocatable": {"cpu": "8", "memory": "1Ti", "nvidia.com/gpu": "8"}},
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "suspend": True,
        "template": {
            "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
            },
        },
    },
}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "pair"},
    "spec": {
        "suspend": True,
        "replicatedJobs": [
            {"name": "w", "replicas": 2, "template": {"spec": {k: v for k, v in JOB["spec"].items() if k != "suspend"}}}
        ],
    },  # type: ignore[dict-item]
}
FLAVOR = {
    "apiVersion": "muster.dev/v1beta1",
    "kind": "ResourceFlavor",
    "metadata": {"name": "h100"},
    "spec": {"nodeLabels": {"gpu": "h100"}},
}


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    sandbox = Sandbox()
    await sandbox.start()
    definitions = sandbox.store.kind("apiextensions.k8s.io", "customresourcedefinitions")
    assert definitions is not None
    for definition in read_definitions(CRDS):
        sandbox.store.do(Request("create", definitions, body=definition), sandbox.clock())
    sandbox.write_kubeconfig(tmp_path / "config")
    yield tmp_path / "config"
    await sandbox.stop()


@pytest.fixture
def kubectl(kubeconfig: Path) -> Kubectl:
    async def run(*arguments: str, stdin: object = None, code: int | None = 0) -> str:
        text = yaml.safe_dump_all(stdin if isinstance(stdin, list) else [stdin]) if stdin else ""
        command = [*kubectl_with(kubeconfig), *arguments]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        assert code is None or done.returncode == code, done.stdout
        return done.stdout

    return run  # type: ignore[return-value]


def kubectl_with(kubeconfig: Path) -> list[str]:
    return [str(KUBECTL), f"--kubeconfig={kubeconfig}", f"--cache-dir={kubeconfig.parent / 'cache'}"]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_the_life_of_a_job(kubectl: Kubectl, kubeconfig: Path) -> None:
    assert "created" in await kubectl("create", "-f", "-", stdin=[NODE, JOB])
    table = rows(await kubectl("get", "jobs"))
    assert table[0] == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert table[1][:3] == ["train", "Suspended", "0/2"]
    watcher = await asyncio.create_subprocess_exec(
        *kubectl_with(kubeconfig), "get", "jobs", "-w", stdout=asyncio.subprocess.PIPE
    )
    assert watcher.stdout is not None
    assert await watcher.stdout.readline()  # the header
    assert (await watcher.stdout.readline()).split()[:2] == [b"train", b"Suspended"]
    assert "patched" in await kubectl("patch", "job", "train", "-p", '{"spec":{"suspend":false}}')
    await kubectl("wait", "job/train", "--for=jsonpath={.status.ready}=2", "--timeout=300s")
    table = rows(await kubectl("get", "pods", "-o", "wide"))
    assert [r[2] for r in table] == ["STATUS", "Running", "Running"]
    assert "n0" in table[1]
    assert re.search(r"Pods Statuses: +2 Active \(2 Ready\)", await kubectl("describe", "job", "train"))
    assert "Suspended" in await kubectl("get", "events")
    assert "n0" in await kubectl("describe", "node", "n0")
    assert "labeled" in await kubectl("label", "job", "train", "team=a")
    assert "annotated" in await kubectl("annotate", "job", "train", "note=hi")
    assert rows(await kubectl("get", "jobs", "-l", "team=a", "--no-headers"))[0][0] == "train"
    assert "deleted" in await kubectl("delete", "job", "train")
    async with asyncio.timeout(300):
        while "No resources found" not in await kubectl("get", "pods"):  # the collector and the kubelet take their time
            pass
        seen = []
        while b"Running" not in seen:
            seen = (await watcher.stdout.readline()).split()
            assert seen, "the watch ended"
    watcher.kill()
    await watcher.wait()


async def test_apply_in_both_ways(kubectl: Kubectl) -> None:
    assert "created" in await kubectl("apply", "-f", "-", stdin=JOBSET)
    version = ["get", "jobset", "pair", "-o", "jsonpath={.metadata.resourceVersion}"]
    before = await kubectl(*version)
    # kubectl sends the whole list of a custom resource, without the defaults: the server puts them back.
    assert "configured" in await kubectl("apply", "-f", "-", stdin=JOBSET)
    assert await kubectl(*version) == before
    assert "serverside-applied" in await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=JOBSET)
    assert "created" in await kubectl("apply", "-f", "-", stdin=JOB)
    assert "unchanged" in await kubectl("apply", "-f", "-", stdin=JOB)
    changed = {**JOB, "spec": {**JOB["spec"], "parallelism": 3}}  # type: ignore[dict-item]
    assert "configured" in await kubectl("apply", "-f", "-", stdin=changed)
    assert rows(await kubectl("get", "jobsets"))[0] == [
        "NAME",
        "TERMINALSTATE",
        "RESTARTS",
        "COMPLETED",
        "SUSPENDED",
        "AGE",
    ]
    assert rows(await kubectl("get", "jobset", "pair"))[1][:2] == ["pair", "0"]
    typo = {**JOB, "spec": {**JOB["spec"], "paralelism": 3}}  # type: ignore[dict-item]
    assert 'unknown field "spec.paralelism"' in await kubectl("apply", "-f", "-", stdin=typo, code=1)
    assert "conflict" in await kubectl(
        "apply",
        "--server-side",
        "--field-manager=x",
        "-f",
        "-",
        stdin=changed | {"spec": {**changed["spec"], "parallelism": 9}},
        code=1,
    )  # type: ignore[dict-item]


async def test_our_own_kinds(kubectl: Kubectl) -> None:
    assert "created" in await kubectl("apply", "-f", "-", stdin=FLAVOR)
    assert rows(await kubectl("get", "resourceflavors"))[1][0] == "h100"
    assert "nodeLabels" in await kubectl("explain", "resourceflavor.spec")
    assert "Gpu:  h100" in await kubectl("describe", "resourceflavor", "h100")
    assert "deleted" in await kubectl("delete", "resourceflavor", "h100")
    assert "muster.dev/v1beta1" in await kubectl("api-resources")


async def test_what_kubectl_makes_up_from_flags(kubectl: Kubectl) -> None:
    assert "created" in await kubectl("create", "namespace", "team-a")
    assert "created" in await kubectl("create", "configmap", "c", "--from-literal=a=1", "-n", "team-a")
    assert await kubectl("get", "configmap", "c", "-n", "team-a", "-o", "jsonpath={.data.a}") == "1"
    assert "created" in await kubectl("create", "secret", "generic", "s", "--from-literal=a=1", "-n", "team-a")
    assert await kubectl("get", "secret", "s", "-n", "team-a", "-o", "jsonpath={.data.a}") == "MQ=="
    assert "created" in await kubectl("create", "serviceaccount", "me", "-n", "team-a")
    assert "created" in await kubectl("create", "priorityclass", "low", "--value=-5", "--description=d")
    assert rows(await kubectl("get", "priorityclass", "low", "--no-headers"))[0][:3] == ["low", "-5", "false"]
    assert (await kubectl("auth", "can-i", "delete", "jobs.batch")).strip() == "yes"
    assert "send it as a manifest" in await kubectl("create", "job", "j", "--image=a", code=1)
    assert "deleted" in await kubectl("delete", "namespace", "team-a")


async def test_what_is_not_served_is_refused(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=[NODE, {**JOB, "spec": {**JOB["spec"], "suspend": False}}])  # type: ignore[dict-item]
    await kubectl("wait", "job/train", "--for=jsonpath={.status.ready}=2", "--timeout=300s")
    name = rows(await kubectl("get", "pods", "--no-headers"))[0][0]
    assert "sandbox does not serve pods/log" in await kubectl("logs", name, code=1)
    assert "the server doesn't have a resource type" in await kubectl("get", "deployments", code=1)
