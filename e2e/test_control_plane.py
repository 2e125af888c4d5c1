"""The harness itself, on the real thing: what the other end-to-end tests take for granted.

A controller of a few lines plays Muster here, so that the event log and its judge are tried on objects that a real
API server, Job controller and JobSet controller have written.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.api_client import ApiError, Object, condition, finished
from e2e.control_plane import FAIL, FAIL_SECONDS, JOBSET_USER, RUN_SECONDS, ControlPlane
from e2e.event_log import EventLog
from e2e.invariants import check, figures, report

GROUP = "muster.dev"
PLURALS = {"Workload": "workloads", "ClusterQueue": "clusterqueues"}


@pytest.fixture(scope="module")
def shared() -> Iterator[ControlPlane]:
    with ControlPlane(users={"alice": ["team-a"]}) as cp:
        for kind, plural in PLURALS.items():
            cp.apply(crd(kind, plural))
        yield cp


@pytest.fixture
def cp(shared: ControlPlane) -> Iterator[ControlPlane]:
    shared.namespace("team")
    yield shared
    shared.clean()


def crd(kind: str, plural: str) -> Object:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": schema}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    scope = "Namespaced" if kind == "Workload" else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": scope, "names": names, "versions": [version]},
    }


def job(name: str, pods: int = 3, run: str = "0.5s", **spec: object) -> Object:
    gpu = {"nvidia.com/gpu": 8}
    containers = [{"name": "main", "image": "none", "resources": {"requests": gpu, "limits": gpu}}]
    template: Object = {"metadata": {"annotations": {RUN_SECONDS: run}}}
    template["spec"] = {"restartPolicy": "Never", "containers": containers}
    body: Object = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0} | spec
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body | {"template": template}}


def jobset(name: str, replicas: int, pods: int) -> Object:
    part = {"name": "workers", "replicas": replicas, "template": {"spec": job("", pods)["spec"]}}
    metadata = {"name": name, "namespace": "team"}
    spec = {"replicatedJobs": [part]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


def ends(cp: ControlPlane, obj: Object, seconds: float = 20) -> str:
    kind, meta = obj["kind"], obj["metadata"]
    return cp.wait(lambda: finished(cp.get(kind, meta["name"], "team")) or "", seconds, f"{kind} {meta['name']} to end")


def pods_of(cp: ControlPlane, name: str) -> list[Object]:
    return cp.list("pods", "team", labelSelector=f"job-name={name}")


def test_versions(cp: ControlPlane) -> None:
    said, minor = cp.kubectl("version"), cp.kubernetes or "1.36"
    assert f"Server Version: v{minor}." in said
    assert f"Client Version: v{minor}." in said


def test_jobs_run(cp: ControlPlane) -> None:
    cp.add_nodes(4)
    for obj, outcome in (
        (job("short"), "Complete"),
        (jobset("set", replicas=2, pods=2), "Completed"),
    ):
        cp.create(obj)
        assert ends(cp, obj) == outcome


def test_a_pod_runs_as_long_as_it_says(cp: ControlPlane) -> None:
    cp.add_nodes(1)
    began = time.monotonic()
    cp.create(job("long", pods=1, run="7s"))
    ends(cp, job("long"))
    assert time.monotonic() - began >= 7


def test_a_pod_fails_when_told(cp: ControlPlane) -> None:
    cp.add_nodes(1)
    failing = job("failing", pods=1)
    failing["spec"]["template"]["metadata"]["annotations"] = {FAIL: "true", FAIL_SECONDS: "0.1s"}
    cp.create(failing)
    assert ends(cp, failing) == "Failed"


def test_a_terminating_pod_with_a_finalizer_ends(cp: ControlPlane) -> None:
    cp.add_nodes(2)
    cp.create(job("kept", pods=2, run="600s", podReplacementPolicy="Failed"))
    cp.wait(lambda: cp.get("job", "kept", "team")["status"].get("ready") == 2, 20, "both pods to be ready")
    cp.patch("job", "kept", {"spec": {"suspend": True}}, "team")
    cp.wait(lambda: not pods_of(cp, "kept"), 20, "the pods to go")


def test_a_lost_node_keeps_its_pods(cp: ControlPlane) -> None:
    cp.add_nodes(2)
    cp.create(job("gang", pods=2, run="10s", podReplacementPolicy="Failed"))
    cp.wait(lambda: cp.get("job", "gang", "team")["status"].get("ready") == 2, 20, "both pods to be ready")
    cp.set_node_ready("node-1", False)
    stuck = next(p for p in pods_of(cp, "gang") if p["spec"]["nodeName"] == "node-1")["metadata"]["name"]
    cp.delete("pod", stuck, "team")
    cp.wait(lambda: cp.get("job", "gang", "team")["status"].get("succeeded"), 30, "the time of the other to be over")
    pod = cp.get("pod", stuck, "team")
    assert pod["status"]["phase"] == "Running"
    assert condition(pod, "Ready") == "False"
    assert condition(cp.get("node", "node-1"), "Ready") == "Unknown"
    cp.set_node_ready("node-1", True)
    cp.wait(lambda: cp.find("pod", stuck, "team") is None, 20, "the deleted pod to go")
    assert condition(cp.get("node", "node-1"), "Ready") == "True"


def test_identities(cp: ControlPlane) -> None:
    assert "team-a" in cp.kubectl("auth", "whoami", user="alice")
    robot = cp.as_user("system:serviceaccount:team:robot")
    nobody = cp.as_user("nobody", ["strangers"])
    for client in (cp.as_user("alice"), robot, nobody):
        with pytest.raises(ApiError) as refused:
            client.list("pods", "team")
        assert refused.value.status == 403
    since = cp.audit_mark()
    with contextlib.suppress(ApiError):
        robot.create(job("not-mine"))
    cp.create(jobset("set", replicas=1, pods=1))
    made = (JOBSET_USER, "create", "jobs", "")
    cp.wait(lambda: cp.audit_counts(JOBSET_USER, since=since)[made], 20, "the JobSet controller's Job")
    counts = cp.audit_counts(since=since)
    assert counts["admin", "create", "jobsets", ""] == 1
    assert counts[made] == 1
    assert not any("robot" in user for user, *_ in counts)
    assert cp.audit_counts("system:serviceaccount:team:robot", since=since, succeeded=False).total() == 1


def test_a_namespace_that_is_removed_is_never_one_that_is_to_be_emptied(cp: ControlPlane) -> None:
    """What the next test makes in another of that name would be taken away."""
    before = cp.request("GET", "/api/v1/namespaces")["metadata"]["resourceVersion"]
    cp.clean()
    told = cp.raw("GET", f"/api/v1/namespaces?watch=1&resourceVersion={before}&timeoutSeconds=1")[1]
    seen = [one["object"] for one in map(json.loads, told.splitlines()) if one["object"]["metadata"]["name"] == "team"]
    assert any("deletionTimestamp" in one["metadata"] for one in seen)
    assert not [one for one in seen if "deletionTimestamp" in one["metadata"] and one["spec"].get("finalizers")]


def test_components_pause_die_and_return(cp: ControlPlane) -> None:
    cp.add_nodes(1)
    cp.pause("kube-scheduler")
    cp.create(job("one", pods=1))
    cp.wait(lambda: pods_of(cp, "one"), 10, "the pod")
    time.sleep(1)
    assert "nodeName" not in pods_of(cp, "one")[0]["spec"]
    cp.resume("kube-scheduler")
    ends(cp, job("one"))
    # Who has lost its server tries again after a wait that doubles, to a minute: it begins anew, too.
    for name in ("kube-apiserver", "etcd", "kwok", "jobset-controller", "kube-controller-manager", "kube-scheduler"):
        cp.kill(name)
        cp.restart(name)
    cp.create(job("two", pods=1))
    ends(cp, job("two"), 30)


class Controller:
    """Admits, evicts and finishes when told: the writes of Muster in their order."""

    def __init__(self, cp: ControlPlane) -> None:
        self.cp = cp

    def queue(self, name: str, gpus: int) -> None:
        quota = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
        spec = {"resourceGroups": [{"flavors": [{"name": "h100", "resources": [quota]}]}]}
        self.cp.create(self._own("ClusterQueue", name, spec=spec))

    def submit(self, obj: Object) -> Object:
        obj["metadata"]["labels"] = {f"{GROUP}/queue-name": "main"}
        obj["spec"]["suspend"] = True
        made = self.cp.create(obj)
        owner = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "controller": True}
        owner |= {key: made["metadata"][key] for key in ("name", "uid")}
        workload = self._own("Workload", made["metadata"]["name"], namespace="team", ownerReferences=[owner])
        workload["metadata"]["labels"] = {f"{GROUP}/job-uid": made["metadata"]["uid"]}
        self.cp.create(workload)
        self._status(made, {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending"}]})
        return made

    def admit(self, obj: Object, pods: int, pod_set: str) -> None:
        usage = {"nvidia.com/gpu": str(8 * pods)}
        assignment = {"name": pod_set, "count": pods, "resourceUsage": usage, "flavors": {"nvidia.com/gpu": "h100"}}
        admission = {"clusterQueue": "a", "podSetAssignments": [assignment]}
        yes = [{"type": kind, "status": "True", "reason": kind} for kind in ("QuotaReserved", "Admitted")]
        self._status(obj, {"admission": admission, "conditions": yes})
        self._start(obj)

    def evict(self, obj: Object) -> None:
        self._patch(obj, [{"op": "replace", "path": "/spec/suspend", "value": True}])
        self.cp.wait(lambda: condition(self._get(obj), "Suspended") == "True", 20, "the job to be suspended")
        self.cp.wait(lambda: not self.cp.list("pods", "team"), 20, "its pods to go")
        for path in self._templates(obj):
            marks: list[Object] = [{"op": "remove", "path": f"{path}/metadata/labels/muster.dev~1managed"}]
            self.cp.wait(functools.partial(self._restore, obj, marks), 10, "the template to be restored")
        conditions = [{"type": "Evicted", "status": "True", "reason": "Preempted"}]
        self._status(obj, {"admission": None, "conditions": conditions})

    def finish(self, obj: Object) -> None:
        ends(self.cp, obj)
        conditions = [{"type": "Finished", "status": "True", "reason": "Succeeded"}]
        self._status(obj, {"conditions": conditions})

    def _start(self, obj: Object) -> None:
        add = {"op": "add", "value": "true"}
        marks = [add | {"path": f"{path}/metadata/labels/muster.dev~1managed"} for path in self._templates(obj)]
        self._patch(obj, [*marks, {"op": "replace", "path": "/spec/suspend", "value": False}])

    def _restore(self, obj: Object, marks: list[Object]) -> bool:
        try:
            self._patch(obj, marks)
        except ApiError as error:
            if error.status == 422 and "immutable" in error.message:
                return False  # the Job controller has not cleared startTime yet
            raise
        return True

    def _templates(self, obj: Object) -> list[str]:
        if obj["kind"] == "Job":
            return ["/spec/template"]
        return [f"/spec/replicatedJobs/{i}/template/spec/template" for i in range(len(obj["spec"]["replicatedJobs"]))]

    def _get(self, obj: Object) -> Object:
        return self.cp.get(obj["kind"], obj["metadata"]["name"], "team")

    def _patch(self, obj: Object, operations: list[Object]) -> None:
        self.cp.patch(obj["kind"], obj["metadata"]["name"], operations, "team")

    def _status(self, obj: Object, status: Object) -> None:
        name = obj["metadata"]["name"]
        self.cp.patch(f"workloads.{GROUP}", name, {"status": status}, "team", subresource="status")

    def _own(self, kind: str, name: str, spec: Object | None = None, **metadata: object) -> Object:
        return {
            "apiVersion": f"{GROUP}/v1beta1",
            "kind": kind,
            "metadata": {"name": name} | metadata,
            "spec": spec or {},
        }


@pytest.mark.parametrize(
    ("obj", "pods", "pod_set"),
    [(job("train", pods=2), 2, "main"), (jobset("train", replicas=2, pods=1), 2, "workers")],
    ids=["Job", "JobSet"],
)
def test_the_judge_on_a_real_life(cp: ControlPlane, obj: Object, pods: int, pod_set: str) -> None:
    """Queued, admitted, evicted, restored, admitted, finished: no violation. Cut short, each cut is found."""
    controller = Controller(cp)
    cp.add_nodes(2)
    for template in _pod_templates(obj):
        template["metadata"] |= {"labels": {"app": "train"}, "annotations": {RUN_SECONDS: "2s"}}
    controller.queue("a", 16)
    with EventLog(cp) as log:
        made = controller.submit(copy.deepcopy(obj))
        controller.admit(made, pods, pod_set)
        cp.wait(lambda: len([p for p in cp.list("pods", "team") if p["status"]["phase"] == "Running"]) == 2, 20, "pods")
        controller.evict(made)
        controller.admit(made, pods, pod_set)
        controller.finish(made)
    assert log.gaps == []
    violations = check(log)
    assert not violations, report(violations)
    seen = figures(log)
    assert (seen.jobs, seen.starts, seen.evictions, seen.partial_gangs) == (1, 2, 1, 0)
    assert list(seen.ready) == ["team/train"]
    entries = list(log.entries())

    def without(kind: str, index: int) -> set[str]:
        """What is found when one version is taken out of the log."""
        versions = [e for e in entries if e.kind == kind and e.revision > log.started]
        cut = [e for e in entries if e is not versions[index]]
        return {v.invariant for v in check(cut, started=log.started)}

    assert "I3" in without("Workload", 2)  # the reservation before the first start
    assert "I9" in without("Workload", -1)  # the end


def _pod_templates(obj: Object) -> list[Object]:
    if obj["kind"] == "Job":
        return [obj["spec"]["template"]]
    return [part["template"]["spec"]["template"] for part in obj["spec"]["replicatedJobs"]]


def test_nothing_outlives_its_parent() -> None:
    command = [sys.executable, "-m", "e2e.up", "--nodes", "1"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    assert parent.stdout is not None
    assert any("KUBECONFIG" in line for line in parent.stdout)
    mine = [pid for pid in _pids() if f"muster-e2e-{parent.pid}-" in _command(pid)]
    assert len(mine) == 6
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 120
    while any(_command(pid) for pid in mine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in mine if _command(pid)]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
