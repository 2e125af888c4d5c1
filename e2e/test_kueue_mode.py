"""Kueue mode with Kueue's own CRDs: Workloads that a client makes, admits nothing but watches, stops and finishes.

The client here keeps to what tools for Kueue do (its benchmark's runner among them); what the controller wrote is
counted from the API server's audit log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from admission.sandbox.play import free_port
from e2e import build
from e2e.api_client import APPLY, Object
from e2e.bench import kueue, load
from e2e.bench.load import GROUP, VERSION
from e2e.control_plane import ControlPlane
from e2e.gangs import entry_of
from e2e.kueue import define
from tests.docs.blocks import block

USER = "admitter"
WORKLOADS = f"workloads.{GROUP}"
QUEUES = f"clusterqueues.{GROUP}"


class Admitter:
    """`muster controller --workloads-only`, started as Kueue's runner starts a controller."""

    def __init__(self, cp: ControlPlane, folder: Path) -> None:
        self.cp = cp
        self.port = free_port()
        self.log = folder / "admitter.log"
        # The file of docs/scale.md, which runs the command of docs/migrate.md.
        script = block("docs/scale.md", "#!/bin/sh").text
        assert f"exec {block('docs/migrate.md', 'muster controller').text.strip()} " in script
        runner = folder / "minimalkueue"
        runner.write_text(script)
        runner.chmod(0o755)
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = [str(runner), "--kubeconfig", str(cp.kubeconfig(USER, ["system:masters"])), "--zap-log-level=2"]
        command += ["--metricsPort", str(self.port), "--enableTAS"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        cp.wait(self._scraped, 60, "the metrics to be served")

    def _scraped(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://localhost:{self.port}/metrics", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(apiserver_only=True) as cp:
        define(cp)
        yield cp


@pytest.fixture
def admitter(plane: ControlPlane, tmp_path: Path) -> Iterator[Admitter]:
    plane.clean()
    running = Admitter(plane, tmp_path)
    yield running
    assert running.stop() == 0, running.log.read_text()[-3000:]
    log = running.log.read_text()
    assert "Traceback" not in log, log[-3000:]
    assert "write failed" not in log, log[-3000:]


def queue(cp: ControlPlane, name: str, cohort: str = "all", **spec: Any) -> None:
    """ClusterQueue of 20 cores, namespace and LocalQueue."""
    for obj in load.queue(name, cohort):
        if obj["kind"] == "ClusterQueue":
            obj["spec"] |= spec
        cp.apply(obj)


def flavor(cp: ControlPlane, **spec: Any) -> None:
    cp.apply({"apiVersion": VERSION, "kind": "ResourceFlavor", "metadata": {"name": "rf"}, "spec": spec})


def workload(queue: str, name: str, cores: int, priority: int = 0, **more: Any) -> Object:
    made = load.workload(load.Set("test", 1, 0, 0, priority, cores, **more), queue, name)
    made["metadata"].pop("labels")
    return made


def true(obj: Object, kind: str) -> bool:
    return bool(entry_of(obj, kind).get("status") == "True")


def all_are(cp: ControlPlane, kind: str, *names: tuple[str, str]) -> bool:
    return all(true(cp.get(WORKLOADS, name, namespace), kind) for namespace, name in names)


def finish(cp: ControlPlane, namespace: str, name: str) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done = {"type": "Finished", "status": "True", "reason": "ByTest", "message": "", "lastTransitionTime": now}
    apply_status(cp, namespace, name, {"conditions": [done]}, "kueue-job-controller-Finished")


def stopped(cp: ControlPlane, namespace: str, name: str) -> None:
    """What was evicted runs no longer: its reservation is taken away, under the admission's own manager."""
    seen = cp.get(WORKLOADS, name, namespace)
    conditions = [dict(entry) for entry in seen["status"]["conditions"]]
    for entry in conditions:
        if entry["type"] in ("QuotaReserved", "Admitted"):
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            entry |= {"status": "False", "reason": "Pending", "lastTransitionTime": now}
    version = seen["metadata"]["resourceVersion"]
    apply_status(cp, namespace, name, {"conditions": conditions}, "kueue-admission", version)


def apply_status(cp: ControlPlane, namespace: str, name: str, status: Object, who: str, version: str = "") -> None:
    meta = {"name": name, "namespace": namespace, **({"resourceVersion": version} if version else {})}
    body = {"apiVersion": VERSION, "kind": "Workload", "metadata": meta, "status": status}
    path = f"/apis/{VERSION}/namespaces/{namespace}/workloads/{name}/status"
    params = {"fieldManager": who, "force": "true"}
    cp.request("PATCH", path, body, params=params, content_type=APPLY)


def status_of(cp: ControlPlane, name: str) -> Object:
    return dict(cp.get(QUEUES, name).get("status") or {})


def totals(status: Object) -> tuple[str, str]:
    """(reserved, used) of the first flavor's first resource, as tools read them."""
    return tuple(status[field][0]["resources"][0]["total"] for field in ("flavorsReservation", "flavorsUsage"))


def test_a_workload_is_admitted_with_one_write_and_its_quota_is_free_when_it_has_finished(admitter: Admitter) -> None:
    cp = admitter.cp
    flavor(cp)
    for name in ("a", "b"):
        queue(cp, name)
    mark = cp.audit_mark()
    began = time.monotonic()
    names = [(where, f"w{number}") for where in ("a", "b") for number in range(15)]
    for namespace, name in names:
        cp.create(workload(namespace, name, cores=1))
    cp.wait(lambda: all_are(cp, "Admitted", *names), 60, "all to be admitted")
    cp.wait(lambda: totals(status_of(cp, "a")) == ("15", "15"), 30, "the numbers of the queue to be written")
    assert {k: status_of(cp, "a")[k] for k in ("reservingWorkloads", "admittedWorkloads")} == {
        "reservingWorkloads": 15,
        "admittedWorkloads": 15,
    }
    for namespace, name in names:
        finish(cp, namespace, name)
    cp.wait(
        lambda: all(
            totals(status_of(cp, name)) == ("0", "0") and not status_of(cp, name).get("reservingWorkloads")
            for name in ("a", "b")
        ),
        30,
        "the quota to be free",
    )
    passed = time.monotonic() - began
    assert true(cp.get(QUEUES, "a"), "Active")
    writes: Counter[str] = Counter()
    each: Counter[tuple[str, str]] = Counter()
    for event in cp.audit_events(mark):
        target = event.get("objectRef") or {}
        if event["user"].get("username") == USER and event["responseStatus"].get("code", 0) < 400:
            writes[target["resource"]] += 1
            each[target["resource"], f"{target.get('namespace', '')}/{target['name']}"] += 1
    assert writes["workloads"] == len(names), each
    # A flavor is written once, with the finalizer that keeps it while it is in use.
    assert set(writes) <= {"workloads", "clusterqueues", "localqueues", "resourceflavors"}, writes
    assert writes["resourceflavors"] <= 1, writes
    for (resource, name), count in each.items():
        # Once in a second at most, and once more for the beginning of the first.
        assert count <= (1 if resource == "workloads" else passed + 2), (resource, name, count, passed)


def test_who_is_preempted_keeps_its_quota_until_its_owner_says_that_it_has_stopped(admitter: Admitter) -> None:
    cp = admitter.cp
    flavor(cp)
    queue(cp, "a", cohort="alone")
    low, high = ("a", "low"), ("a", "high")
    cp.create(workload(*low, cores=20, priority=50))
    cp.wait(lambda: all_are(cp, "Admitted", low), 30, "the first to be admitted")
    first = entry_of(cp.get(WORKLOADS, "low", "a"), "Admitted")["lastTransitionTime"]
    cp.create(workload(*high, cores=20, priority=200))
    cp.wait(lambda: all_are(cp, "Evicted", low), 30, "the first to be evicted")
    seen = cp.get(WORKLOADS, "low", "a")
    assert (true(seen, "Admitted"), true(seen, "Preempted")) == (True, True)
    assert entry_of(seen, "Evicted")["reason"] == "Preempted"
    assert entry_of(seen, "Preempted")["reason"] == "InClusterQueue"
    assert seen["status"].get("admission"), "what still runs keeps what it has"
    assert not true(cp.get(WORKLOADS, "high", "a"), "QuotaReserved")
    stopped(cp, *low)
    assert "admission" not in cp.get(WORKLOADS, "low", "a")["status"]
    cp.wait(lambda: all_are(cp, "Admitted", high), 30, "the second to be admitted")
    finish(cp, *high)
    cp.wait(lambda: all_are(cp, "Admitted", low), 30, "the first to be admitted again")
    again = cp.get(WORKLOADS, "low", "a")
    assert [entry_of(again, kind)["status"] for kind in ("Evicted", "Preempted")] == ["False", "False"]
    assert entry_of(again, "Admitted")["lastTransitionTime"] >= first


def test_a_workload_with_kueues_finalizer_goes_when_it_is_deleted_and_holds_nothing(admitter: Admitter) -> None:
    """Kueue keeps each of its Workloads by one, and where Muster has taken its place nobody else takes it off."""
    cp = admitter.cp
    flavor(cp)
    queue(cp, "a")
    owner = {"apiVersion": "example.com/v1", "kind": "AppWrapper", "name": "x", "uid": "u", "controller": True}
    for name, cores in (("done", 5), ("waits", 100), ("runs", 5)):
        made = workload("a", name, cores=cores)
        made["metadata"] |= {"finalizers": ["kueue.x-k8s.io/resource-in-use"], "ownerReferences": [owner]}
        made["metadata"]["labels"] = {"kueue.x-k8s.io/job-uid": "u"}  # of a kind that is somebody else's
        cp.create(made)
    cp.wait(lambda: all_are(cp, "Admitted", ("a", "done"), ("a", "runs")), 30, "two to be admitted")
    finish(cp, "a", "done")
    for name in ("done", "waits", "runs"):
        cp.delete(WORKLOADS, name, "a")

    def left() -> list[str]:
        return sorted(one["metadata"]["name"] for one in cp.list(WORKLOADS, "a"))

    cp.wait(lambda: left() == ["runs"], 20, "those to go that hold nothing")
    cp.wait(lambda: true(cp.get(WORKLOADS, "runs", "a"), "Evicted"), 20, "the other to be told to stop")
    stopped(cp, "a", "runs")
    cp.wait(lambda: left() == [], 20, "it to go when it has stopped")


def test_a_workload_follows_its_priority_class(admitter: Admitter) -> None:
    """Of a kind that is somebody else's: nobody but who queues them writes it anew when the class has another value."""
    cp = admitter.cp
    high = {"apiVersion": VERSION, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}}
    cp.apply(high | {"value": 100})
    flavor(cp)
    queue(cp, "a", cohort="alone")
    for name, cores in (("runs", 20), ("waits", 20)):
        made = workload("a", name, cores=cores, priority=100)
        made["spec"]["priorityClassRef"] = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": "high"}
        cp.create(made)
        cp.wait(lambda: all_are(cp, "Admitted", ("a", "runs")), 30, "the first to be admitted")
    cp.create(workload("a", "other", cores=20, priority=50))
    cp.apply(high | {"value": 10})
    for name in ("runs", "waits"):
        cp.wait(lambda name=name: cp.get(WORKLOADS, name, "a")["spec"]["priority"] == 10, 20, f"{name} to follow")  # type: ignore[misc]
    cp.wait(lambda: all_are(cp, "Evicted", ("a", "runs")), 30, "it to make room for the one that comes before it now")
    stopped(cp, "a", "runs")
    cp.wait(lambda: all_are(cp, "Admitted", ("a", "other")), 30, "that one to be admitted")


def test_a_gang_is_placed_within_the_level_that_it_asks_for(admitter: Admitter) -> None:
    cp = admitter.cp
    size = load.Size("test", 1, 1, (), racks=2, hosts=2)
    for obj in (*load.nodes(size), *load.shared(size)):
        cp.apply(obj) if obj["kind"] != "Node" else cp.create(obj)
    queue(cp, "a")
    cp.create(workload("a", "rack", cores=8, pods=4, topology=(("required", load.RACK),)))
    cp.create(workload("a", "slices", cores=8, pods=4, topology=(
        ("podSetSliceRequiredTopology", load.RACK), ("podSetSliceSize", 2))))  # fmt: skip
    cp.wait(lambda: all_are(cp, "Admitted", ("a", "rack"), ("a", "slices")), 30, "both to be admitted")
    assigned = cp.get(WORKLOADS, "rack", "a")["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]
    assert assigned["levels"] == [load.HOST]
    hosts = [host for part in assigned["slices"] for host in column(part["valuesPerLevel"][0], part["domainCount"])]
    assert hosts
    assert len({host.split("-")[2] for host in hosts}) == 1, hosts


def test_a_gang_goes_on_to_the_next_flavor_where_the_nodes_of_one_are_full(admitter: Admitter) -> None:
    cp = admitter.cp
    size = load.Size("test", 1, 1, (), racks=1, hosts=2)
    first, second = load.nodes(size)
    second["metadata"]["labels"]["tas-node-group"] = "spare"
    topology, rf = load.shared(size)
    spare = {**rf, "metadata": {"name": "spare"}, "spec": {**rf["spec"], "nodeLabels": {"tas-node-group": "spare"}}}
    for obj in (first, second):
        cp.create(obj)
    for obj in (topology, rf, spare):
        cp.apply(obj)
    flavors = [{"name": name, "resources": [{"name": "cpu", "nominalQuota": "200"}]} for name in ("rf", "spare")]
    queue(cp, "a", resourceGroups=[{"coveredResources": ["cpu"], "flavors": flavors}])
    for name in ("w0", "w1", "w2"):
        cp.create(workload("a", name, cores=60))
        if name != "w2":
            cp.wait(partial(all_are, cp, "Admitted", ("a", name)), 30, f"{name} to be admitted")
    got = [
        cp.get(WORKLOADS, name, "a")["status"]["admission"]["podSetAssignments"][0]["flavors"] for name in ("w0", "w1")
    ]
    assert got == [{"cpu": "rf"}, {"cpu": "spare"}]
    finish(cp, "a", "w0")
    cp.wait(lambda: all_are(cp, "Admitted", ("a", "w2")), 30, "the last to be admitted")


def column(raw: Object, count: int) -> list[str]:
    """Names of hosts, of Kueue's short form."""
    if "universal" in raw:
        return [raw["universal"]] * count
    one = raw["individual"]
    return [one.get("prefix", "") + root + one.get("suffix", "") for root in one["roots"]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [("check", ""), ("inactive", "Deactivated"), ("stopped queue", "ClusterQueueStopped")],
)
def test_what_is_said_of_a_bare_workload_binds_it(admitter: Admitter, change: str, reason: str) -> None:
    cp = admitter.cp
    flavor(cp)
    checks: Object = {}
    if change == "check":
        check = {"apiVersion": VERSION, "kind": "AdmissionCheck", "metadata": {"name": "ok"}}
        cp.apply(check | {"spec": {"controllerName": "test.example/checks"}})
        active = {"type": "Active", "status": "True", "reason": "Ready", "message": "",
                  "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
        cp.patch(f"admissionchecks.{GROUP}", "ok", {"status": {"conditions": [active]}}, subresource="status")
        checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": "ok"}]}}
    queue(cp, "a", **checks)
    cp.create(workload("a", "w", cores=1))
    if change == "check":
        cp.wait(lambda: all_are(cp, "QuotaReserved", ("a", "w")), 30, "the quota to be reserved")
        assert not true(cp.get(WORKLOADS, "w", "a"), "Admitted")
        state = cp.get(WORKLOADS, "w", "a")["status"]["admissionChecks"][0]
        ready = {"admissionChecks": [state | {"state": "Ready", "message": "fine"}]}
        apply_status(cp, "a", "w", ready, "checker")
        cp.wait(lambda: all_are(cp, "Admitted", ("a", "w")), 30, "it to be admitted")
        return
    cp.wait(lambda: all_are(cp, "Admitted", ("a", "w")), 30, "it to be admitted")
    if change == "inactive":
        cp.patch(WORKLOADS, "w", {"spec": {"active": False}}, "a")
    else:
        cp.patch(QUEUES, "a", {"spec": {"stopPolicy": "HoldAndDrain"}})
    cp.wait(lambda: all_are(cp, "Evicted", ("a", "w")), 30, "it to be told to stop")
    assert entry_of(cp.get(WORKLOADS, "w", "a"), "Evicted")["reason"] == reason
    stopped(cp, "a", "w")
    cp.wait(lambda: totals(status_of(cp, "a")) == ("0", "0"), 30, "its quota to be free")
    assert not true(cp.get(WORKLOADS, "w", "a"), "QuotaReserved")


RUNNERS_LOAD = """
cohorts:
- className: cohort
  count: 1
  queuesSets:
  - className: cq
    count: 3
    nominalQuota: 20
    borrowingLimit: 100
    reclaimWithinCohort: Any
    withinClusterQueue: LowerPriority
    workloadsSets:
    - count: 20
      creationIntervalMs: 1000
      workloads: [{className: small, runtimeMs: 200, priority: 50, request: 1}]
    - count: 5
      creationIntervalMs: 4000
      workloads: [{className: large, runtimeMs: 1000, priority: 200, request: 20}]
"""


@pytest.mark.skipif(build.find("kueue-runner") is None, reason="needs Kueue's runner: make bench-kueue builds it")
def test_kueues_own_runner_plays_a_load_on_muster(tmp_path: Path) -> None:
    file = tmp_path / "load.yaml"
    file.write_text(RUNNERS_LOAD)
    figures = kueue.play(file, "muster", 5)
    assert figures["finished"] == figures["workloads"] == kueue.size(file) == 75, figures
    assert set(figures["mean_wait_s"]) == {"small", "large"}
    assert figures["delivered_run_s"] == pytest.approx(3 * (20 * 0.2 + 5 * 1.0))
    assert figures["evictions_of_runs"] <= figures["evictions"]
