"""A backup is restored: of etcd, under a controller that runs on, for which nothing it knows is true any more; and of
objects, which are made anew as they were, but for what says which object it was and what became of it."""

from __future__ import annotations

import re
from pathlib import Path

from e2e.api_client import ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.gangs import WORKLOADS, admitted, reason, running_pods, teams
from e2e.installed import NAMES, Installed, job, jobset


def test_a_controller_whose_cluster_was_restored_from_a_backup_begins_anew(tmp_path: Path) -> None:
    with ControlPlane(users={"muster": ("controllers",)}) as cp:
        Installed.install(cp)
        with Installed(cp, tmp_path) as muster:
            replica = muster.started()
            cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
            teams(cp, {"a": 32})
            cp.create(job("a", "first", 2, seconds=None))
            cp.wait(lambda: len(running_pods(cp, "a")) == 2, 60, "the first to run")
            before = {pod["metadata"]["uid"] for pod in running_pods(cp, "a")}
            then = cp.snapshot(tmp_path / "then")
            cp.create(job("a", "second", 2, seconds=None))
            cp.wait(lambda: len(running_pods(cp, "a")) == 4, 60, "the second to run")
            cp.delete("jobs", "first", "a")
            cp.create(job("a", "third", 2, seconds=None))
            cp.wait(lambda: admitted(cp, "a", "third"), 60, "the third to be admitted")

            cp.put_back(then)
            assert replica.process.wait(60) == 1, "its container begins anew"
            assert "the API server's store was put back to an earlier moment" in replica.log.read_text()
            muster.started()
            cp.create(job("a", "fourth", 2, seconds=None))
            cp.wait(lambda: len(running_pods(cp, "a")) == 4, 60, "quota of those who are gone to be free")
            assert {pod["metadata"]["uid"] for pod in running_pods(cp, "a")} > before, "nobody who ran was stopped"

            # The same backup, restored so that etcd counts on from far above what anybody has seen.
            replica = muster.replicas[-1]
            cp.patch("jobs", "first", {"metadata": {"labels": {NAMES.pause_label: "true"}}}, "a")
            cp.wait(lambda: cp.get("jobs", "first", "a")["spec"]["suspend"], 30, "the first to be stopped")
            cp.put_back(then, bump=2000)
            assert replica.process.wait(60) == 1, "its container begins anew"
            assert "the API server's store was put back to an earlier moment" in replica.log.read_text()
            muster.started()
            cp.patch("jobs", "first", {"metadata": {"labels": {NAMES.pause_label: "true"}}}, "a")
            cp.wait(lambda: cp.get("jobs", "first", "a")["spec"]["suspend"], 30, "the first to be stopped as it is now")


OF_THIS_OBJECT = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "generateName", "ownerReferences", "managedFields"),
)
CONTROLLER_UID = re.compile("(batch.kubernetes.io/)?controller-uid")


def as_restored(obj: Object) -> Object:
    """What is made of an object in a backup, by a tool that knows what the API server refuses of a Job and of a pod."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in OF_THIS_OBJECT}
    spec = dict(obj["spec"])
    if obj["kind"] == "Job":
        del spec["selector"]
        inner = spec["template"]["metadata"]
        for one in (meta, inner):
            one["labels"] = {key: value for key, value in one["labels"].items() if not CONTROLLER_UID.fullmatch(key)}
    if obj["kind"] == "Pod":
        spec = {key: value for key, value in spec.items() if key not in ("nodeName", "priority")}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": meta, "spec": spec}


def test_jobs_that_ran_are_restored_and_wait_for_their_turn(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    muster.started()
    teams(cp, {"a": 32})
    cp.create(job("a", "ran", 2, seconds=None))
    cp.create(jobset("a", "set", {"w": (1, 2)}, seconds=None))
    cp.wait(lambda: len(running_pods(cp, "a")) == 4, 30, "both to run")
    cp.create(job("a", "waited", 4, seconds=None))
    cp.wait(lambda: reason(cp, "a", "waited")[0], 30, "it to be told why it waits")
    backup = {kind: cp.list(kind, "a") for kind in ("pods", "jobs", "jobsets", WORKLOADS)}
    for kind in ("jobsets", "jobs"):
        for one in backup[kind]:
            cp.delete(kind, one["metadata"]["name"], "a")
    cp.wait(lambda: not cp.list("pods", "a") and not cp.list(WORKLOADS, "a"), 30, "all of it to be gone")

    refused = {}
    for kind, objects in backup.items():
        for one in objects:
            try:
                cp.create(as_restored(one))
            except ApiError as error:
                refused[kind, one["metadata"]["name"]] = error.message
    assert {kind for kind, _ in refused} == {"pods", "jobs"}
    assert len(refused) == 5, "pods, and the Job of the JobSet: who makes them makes them anew"
    assert "makes its pods anew" in refused["pods", backup["pods"][0]["metadata"]["name"]]

    def owners() -> dict[str, str]:
        """Workload -> the job that owns it."""
        meta = [one["metadata"] for one in cp.list(WORKLOADS, "a")]
        return {one["name"]: "".join(owner["name"] for owner in one.get("ownerReferences") or ()) for one in meta}

    def together() -> bool:
        return sorted(owners().values()) == ["ran", "set", "waited"]

    cp.wait(together, 20, "each to have its own Workload, and no other", describe=owners)
    cp.delete("jobs", "waited", "a")
    cp.wait(lambda: len(running_pods(cp, "a")) == 4, 30, "both to run again")
    assert {pod["metadata"]["labels"][NAMES.managed_label] for pod in running_pods(cp, "a")} == {"true"}
