"""etcd is put back to an earlier moment, and the controller runs on: nothing it knows is true any more."""

from __future__ import annotations

from pathlib import Path

from e2e.control_plane import ControlPlane
from e2e.gangs import admitted, running_pods, teams
from e2e.installed import NAMES, Installed, job


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
