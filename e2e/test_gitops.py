"""What is kept in Git and applied over and over by a tool: it meets nothing that Muster wrote. See docs/install.md."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.api_client import ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, admitted, entry_of, reason, running_pods
from e2e.installed import NAMES, Installed, cluster_queue, cohort, flavor, job, jobset, local_queue
from e2e.prompt import Prompt
from tests.docs.blocks import block, spans

PAGE, TOOL = "docs/install.md", "argocd-controller"
LOOKED_AT = ("clusterqueues", "cohorts", "resourceflavors", "localqueues", "workloads", "jobs", "jobsets")
NOT_COMPARED = {"managedFields", "resourceVersion", "generation"}


def compared(obj: Object) -> Object:
    """What such a tool compares of an object."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in NOT_COMPARED}
    return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": meta}


def differences(wanted: Any, live: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths at which what is written in Git is not what is there; what is there besides does not count."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            yield from differences(value, live.get(key), (*path, key))
    elif wanted != live:
        yield path


def versions(cp: ControlPlane) -> dict[str, str]:
    """uid -> version, of all that Muster reads or writes but pods and nodes."""
    return {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for kind in LOOKED_AT for one in cp.list(kind)}


def amounts_as_people_write_them(jobset: Object) -> None:
    """Of a JobSet; its webhook writes them otherwise when it is created, and not when it is applied again."""
    for entry in jobset["spec"]["replicatedJobs"]:
        (container,) = entry["template"]["spec"]["template"]["spec"]["containers"]
        asked = {name: int(amount) for name, amount in container["resources"]["limits"].items()}
        container["resources"] = {"limits": asked, "requests": asked}


def ignored() -> set[str]:
    """The field managers that the page says to ignore."""
    (said,) = [text for _, text in spans(PAGE) if text.startswith("managedFieldsManagers")]
    return set(re.findall(r"muster[a-z-]*", said))


def test_what_is_applied_again_writes_nothing_and_stops_nobody(muster: Installed, tmp_path: Path) -> None:
    """In the wrong order first: each is told what it lacks, and goes on when that comes."""
    cp = muster.cp
    cp.add_nodes(5, gpus=8, labels={"gpu": "h100"})
    cp.namespace("team-a")
    made = [
        job("team-a", "train", 2, seconds=None),
        local_queue("team-a", "team-a"),
        cluster_queue("team-a", {GPU: 40}, cohortName="all"),
        flavor(labels={"gpu": "h100"}),
        cohort("all"),
        jobset("team-a", "set", {"driver": (1, 1), "workers": (1, 1)}, gpus=4, seconds=None),
        job("team-a", "said-to-wait", 1, seconds=None, suspend=True),
    ]
    amounts_as_people_write_them(made[5])
    first, local, queue, gpu, *rest = made
    muster.started()
    cp.apply(first, manager=TOOL)
    cp.wait(lambda: "LocalQueue main does not exist" in reason(cp, "team-a", "train")[1], 30, "a job to be told")
    cp.apply(local, manager=TOOL)
    cp.wait(lambda: "team-a does not exist" in _active(cp, "localqueues", "main"), 30, "its queue to be told")
    cp.apply(queue, manager=TOOL)
    cp.wait(lambda: "missing ResourceFlavor(s): gpu" in _active(cp, "clusterqueues", "team-a"), 30, "it to be told")
    cp.apply([gpu, *rest], manager=TOOL)
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 5, 30, "all to run")
    with Prompt(cp, tmp_path) as prompt:
        ran = prompt.run(block(PAGE, "kubectl wait").text)
        assert ran.returncode == 0, ran.stdout

    pods = {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")}
    cp.wait(lambda: _still(cp), 30, "nothing to change any more")
    before = versions(cp)
    for one in made[:-1]:
        (offered,) = cp.apply(one, manager=TOOL, dryRun="All")
        path = cp.resource_of(one).path(one["metadata"].get("namespace"), one["metadata"]["name"])
        live = cp.request("GET", path)
        assert compared(offered) == compared(live)
        if one["kind"] != "Job":  # of a kind of its own a client knows no lists that merge
            lists = {("spec", "replicatedJobs")} if one["kind"] == "JobSet" else set()
            assert set(differences(one, live)) == lists
    cp.apply(made[:-1], manager=TOOL)
    _still(cp)
    assert versions(cp) == before
    # One that started with less: it is applied again with all that it asks for.
    less = job("team-a", "less", 3, seconds=None)
    less["metadata"]["annotations"] = {NAMES.min_parallelism_annotation: "1"}
    cp.apply(less, manager=TOOL)
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 6, 30, "one of its pods to run")
    _still(cp)
    for _ in range(2):
        cp.apply(less, manager=TOOL)
    # Whether a tool shows its parallelism as different depends on what the page says to ignore, as for `suspend`.
    live = cp.get("jobs", "less", "team-a")
    (offered,) = cp.apply(less, manager=TOOL, dryRun="All")
    assert (live["spec"]["parallelism"], compared(offered)) == (1, compared(live))
    with pytest.raises(ApiError, match="holds room for what it asked for"):
        cp.patch("jobs", "less", {"spec": {"parallelism": 2}}, "team-a")
    cp.delete("jobs", "less", "team-a")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 5, 30, "it to be gone")
    # Who says that it is to wait is not heard while it holds room; the page says to leave it out, and whom to ignore.
    cp.apply(made[-1], manager=TOOL)
    live = cp.get("jobs", "said-to-wait", "team-a")
    assert live["spec"]["suspend"] is False
    for kind, name in (("jobs", "train"), ("jobs", "said-to-wait"), ("jobsets", "set")):
        owners = [entry["manager"] for entry in cp.get(kind, name, "team-a")["metadata"]["managedFields"]]
        assert {owner for owner in owners if owner.startswith("muster")} <= ignored()
    owners = [e["manager"] for e in cp.get("clusterqueues", "team-a")["metadata"]["managedFields"] if "status" not in e]
    assert {e for e in owners if e.startswith("muster")} - {"muster-admission"} <= ignored()

    # A LocalQueue that is pruned stops nobody, and is asked for anew by who comes next.
    cp.delete("localqueues", "main", "team-a")
    cp.create(job("team-a", "late", 1, seconds=None))
    cp.wait(lambda: "LocalQueue main does not exist" in reason(cp, "team-a", "late")[1], 30, "a job to be told")
    cp.apply(local, manager=TOOL)
    cp.wait(lambda: admitted(cp, "team-a", "late"), 30, "it to go on")
    assert {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")} >= pods
    assert cp.get("jobs", "train", "team-a")["metadata"]["labels"] == {NAMES.queue_label: "main"}


def _active(cp: ControlPlane, kind: str, name: str) -> str:
    found = cp.find(kind, name, "team-a" if kind == "localqueues" else None)
    return str(entry_of(found or {}, "Active").get("message", ""))


def _still(cp: ControlPlane) -> bool:
    """Nothing was written within two seconds."""
    before = versions(cp)
    time.sleep(2)
    return versions(cp) == before
