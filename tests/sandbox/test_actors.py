"""The actors, in process and in virtual time: `settle` runs a cluster as far as nothing is left to do."""

from __future__ import annotations

from typing import Any

import pytest

from admission.sandbox.actors import FAIL, NODE_DOWN, RUN_TIME, Cluster, settle
from admission.sandbox.kinds import JOB, NODE, POD, new_store
from admission.sandbox.store import MERGE, Refused, Request, Store

NOW = 1_700_000_000_000
GPU = "nvidia.com/gpu"


class World:
    """A store with its actors and a clock."""

    def __init__(self, nodes: int = 2, gpus: int = 8, time_scale: float = 1.0) -> None:
        self.store: Store = new_store(now=NOW)
        self.cluster = Cluster(self.store, time_scale=time_scale)
        self.now = NOW
        for number in range(nodes):
            self.node(f"n{number}", gpus)
        self.run(0)

    def node(self, name: str, gpus: int = 8, **spec: Any) -> None:
        size = {"cpu": "64", "memory": "1Ti", GPU: str(gpus)}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.store.create(
            NODE,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": meta,
                "spec": spec,
                "status": {"allocatable": size, "capacity": size},
            },
            self.now,
        )

    def run(self, seconds: float) -> None:
        """Let this time pass."""
        until = self.now + int(seconds * 1000)
        settle(self.store, self.cluster, self.now, until)
        self.now = until

    def patch(
        self, plural: str, name: str, body: Any, group: str = "", namespace: str = "default", sub: str = ""
    ) -> Any:
        kind = self.store.kind(group, plural)
        assert kind is not None
        return self.store.do(Request("patch", kind, namespace, name, body, sub, MERGE), self.now)

    def delete(self, plural: str, name: str, group: str = "", namespace: str = "default", **options: Any) -> None:
        kind = self.store.kind(group, plural)
        assert kind is not None
        self.store.do(Request("delete", kind, namespace, name, options), self.now)

    def job(
        self,
        name: str,
        pods: int = 1,
        gpus: int = 8,
        run: str = "60s",
        annotations: Any = None,
        pod: Any = None,
        **spec: Any,
    ) -> None:
        container = {"name": "a", "image": "b", "resources": {"limits": {GPU: str(gpus)}}}
        template = {
            "metadata": {"annotations": {RUN_TIME: run, **(annotations or {})}},
            "spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})},
        }
        body = {"parallelism": pods, "completions": pods, "template": template, **spec}
        self.store.create(
            JOB,
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}, "spec": body},
            self.now,
        )

    def status(self, name: str) -> dict[str, Any]:
        found = self.store.find("batch", "jobs", "default", name)
        assert found is not None
        status: dict[str, Any] = found["status"]
        return status

    def true(self, name: str) -> set[str]:
        return {c["type"] for c in self.status(name).get("conditions", ()) if c["status"] == "True"}

    @property
    def pods(self) -> dict[str, tuple[str, str]]:
        """Name -> (phase, node)."""
        return {
            p["metadata"]["name"]: (p["status"]["phase"], p["spec"].get("nodeName", ""))
            for p in self.store.objects("", "pods")
        }

    def phases(self) -> list[str]:
        return sorted(phase for phase, _ in self.pods.values())


def test_a_gang_runs_and_ends_and_time_scale_divides_its_run() -> None:
    world = World()
    world.job("a", pods=2, run="60s")
    world.run(2)
    assert sorted(world.pods.values()) == [("Running", "n0"), ("Running", "n1")]
    world.run(57)
    assert world.phases() == ["Running", "Running"]
    world.run(3)
    assert "Complete" in world.true("a")
    fast = World(time_scale=60)
    fast.job("a", pods=2, run="60s")
    fast.run(3)
    assert "Complete" in fast.true("a")


def test_what_does_not_fit_waits_for_room() -> None:
    world = World(nodes=1)
    world.job("a", run="10s")
    world.run(1)
    world.job("b", run="10s")
    world.run(1)
    assert world.phases() == ["Pending", "Running"]
    (pending,) = [p for p in world.store.objects("", "pods") if p["status"]["phase"] == "Pending"]
    assert pending["status"]["conditions"][0]["message"] == f"0/1 nodes are available: 1 Insufficient {GPU}."
    world.run(20)
    assert {"Complete"} <= world.true("a") & world.true("b")


@pytest.mark.parametrize(
    ("pod", "where"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "n1"}}, "n1"),
        ({"nodeSelector": {"kubernetes.io/hostname": "none"}}, ""),
        (
            {
                "tolerations": [{"key": "only", "operator": "Equal", "value": "x"}],
                "nodeSelector": {"kubernetes.io/hostname": "tainted"},
            },
            "tainted",
        ),
        ({"nodeSelector": {"kubernetes.io/hostname": "tainted"}}, ""),
        ({"schedulingGates": [{"name": "a/b"}]}, ""),
        ({"schedulerName": "other"}, ""),
        (
            {
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a", "labelSelector": {}}]
                    }
                }
            },
            "",
        ),
    ],
)
def test_where_a_pod_goes(pod: Any, where: str) -> None:
    world = World()
    world.node("tainted", taints=[{"key": "only", "value": "x", "effect": "NoSchedule"}])
    world.job("a", pod=pod)
    world.run(2)
    assert [node for _, node in world.pods.values()] == [where]


def test_a_silent_node_drives_its_pods_away_after_their_time() -> None:
    world = World(nodes=1)
    world.job("a", run="1h", backoffLimit=0)
    world.run(1)
    world.patch("nodes", "n0", {"metadata": {"annotations": {NODE_DOWN: "true"}}}, namespace="")
    world.run(1)
    node = world.store.find("", "nodes", "", "n0")
    assert node is not None
    assert {t["key"] for t in node["spec"]["taints"]} == {"node.kubernetes.io/unreachable"}
    assert world.status("a")["ready"] == 0
    world.run(290)
    assert world.true("a") == set()
    world.run(10)
    assert "FailureTarget" in world.true("a")
    (pod,) = world.store.objects("", "pods")
    assert pod["metadata"]["deletionTimestamp"], "stays Terminating, for nobody ends it there"
    world.patch("nodes", "n0", {"metadata": {"annotations": {NODE_DOWN: None}}}, namespace="")
    world.run(2)
    node = world.store.find("", "nodes", "", "n0")
    assert node is not None
    assert "taints" not in node["spec"]
    assert world.pods == {}
    assert "Failed" in world.true("a")


def test_a_gang_suspended_in_time_survives_its_node() -> None:
    world = World(nodes=2)
    world.job("a", pods=2, run="1h", backoffLimit=0, completionMode="Indexed")
    world.run(1)
    world.delete("nodes", "n1", namespace="")
    world.run(1)
    world.patch("jobs", "a", {"spec": {"suspend": True}}, "batch")
    world.run(10)
    assert world.pods == {}
    assert world.true("a") == {"Suspended"}
    assert world.status("a").get("failed", 0) == 0
    world.node("n2")
    world.patch("jobs", "a", {"spec": {"suspend": False}}, "batch")
    world.run(2)
    assert sorted(world.pods.values()) == [("Running", "n0"), ("Running", "n2")]


def test_a_job_that_comes_to_its_end_while_it_is_held_is_finished_once_it_has_a_start_time() -> None:
    world = World()
    world.job("a", pods=2, run="1h", completionMode="Indexed")
    world.run(1)
    world.patch("pods", min(world.pods), {"metadata": {"annotations": {RUN_TIME: "1s"}}})
    world.run(2)
    world.patch("jobs", "a", {"spec": {"suspend": True}}, "batch")
    world.run(2)
    world.patch("jobs", "a", {"spec": {"parallelism": 1, "completions": 1}}, "batch")
    world.run(60)
    assert world.true("a") == {"Suspended", "SuccessCriteriaMet"}
    world.patch("jobs", "a", {"status": {"startTime": "2023-11-14T22:13:20Z"}}, "batch", sub="status")
    world.run(1)
    assert "Complete" in world.true("a")


def test_a_node_that_is_deleted_fails_what_ran_there() -> None:
    world = World(nodes=1)
    world.job("a", run="1h", backoffLimit=0)
    world.run(1)
    world.delete("nodes", "n0", namespace="")
    world.run(5)
    assert "Failed" in world.true("a")
    assert world.pods == {}


def test_failures_are_retried_with_a_pause_up_to_the_limit() -> None:
    world = World()
    world.job("a", run="1s", annotations={FAIL: "true"}, backoffLimit=1)
    world.run(5)
    assert world.status("a")["failed"] == 1
    assert world.phases() == ["Failed"]
    world.run(15)
    assert "Failed" in world.true("a")
    assert world.status("a")["failed"] == 2


def test_pod_failure_policy_spares_what_was_disrupted() -> None:
    world = World(nodes=2)
    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    world.job("a", run="1h", backoffLimit=0, podFailurePolicy=policy)
    world.run(1)
    ((_, node),) = world.pods.values()
    world.delete("nodes", node, namespace="")
    world.run(10)
    assert world.true("a") == set()
    assert [phase for phase, _ in world.pods.values()] == ["Running"]


def test_deadline_and_ttl() -> None:
    world = World()
    world.job("late", run="1h", activeDeadlineSeconds=5)
    world.job("quick", run="1s", ttlSecondsAfterFinished=10)
    world.run(8)
    assert "Failed" in world.true("late")
    assert "Complete" in world.true("quick")
    world.run(10)
    assert world.store.find("batch", "jobs", "default", "quick") is None


def test_more_pods_than_parallelism_and_scaling() -> None:
    world = World(nodes=8)
    world.job("a", pods=5, gpus=1, run="2s", completionMode="Indexed", parallelism=2)
    world.run(1)
    assert world.status("a")["active"] == 2
    world.run(12)
    assert world.status("a")["completedIndexes"] == "0-4"
    world.job("b", pods=2, gpus=1, run="1h", completionMode="Indexed")
    world.run(1)
    world.patch("jobs", "b", {"spec": {"parallelism": 1, "completions": 1}}, "batch")
    world.run(2)
    assert world.status("b")["active"] == 1


def test_a_refused_pod_is_tried_again() -> None:
    world = World()
    open_now = False

    def hook(change: Any) -> None:
        if change.request.verb == "create" and change.request.kind is POD and not open_now:
            raise Refused(403, "Forbidden", "not yet")

    world.store.admission.append(hook)
    world.job("a")
    world.run(3)
    assert world.pods == {}
    open_now = True
    world.run(3)
    assert world.phases() == ["Running"]


def test_what_a_pod_is_given_on_its_way() -> None:
    world = World()
    runtime = world.store.kind("node.k8s.io", "runtimeclasses")
    limits = world.store.kind("", "limitranges")
    assert runtime is not None
    assert limits is not None
    world.store.create(
        runtime,
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "kata"},
            "handler": "kata",
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"kubernetes.io/hostname": "n1"}},
        },
        NOW,
    )
    world.store.create(
        limits,
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "l", "namespace": "default"},
            "spec": {"limits": [{"type": "Container", "defaultRequest": {"memory": "1Gi"}}]},
        },
        NOW,
    )
    world.job("a", pod={"runtimeClassName": "kata"})
    world.run(2)
    (pod,) = world.store.objects("", "pods")
    assert pod["spec"]["overhead"] == {"cpu": "250m"}
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {GPU: "8", "memory": "1Gi"}


def test_in_order_jobsets_start_one_after_the_other() -> None:
    world = World(nodes=4)
    kind = world.store.kind("jobset.x-k8s.io", "jobsets")
    assert kind is not None
    container = {"name": "a", "image": "b", "resources": {"limits": {GPU: "8"}}}
    template = {
        "spec": {
            "template": {
                "metadata": {"annotations": {RUN_TIME: "5s"}},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            }
        }
    }
    jobs = [{"name": name, "replicas": 1, "template": template} for name in ("first", "second")]
    spec = {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": jobs}
    world.store.create(
        kind,
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "s", "namespace": "default"},
            "spec": spec,
        },
        NOW,
    )
    settle(world.store, world.cluster, NOW, NOW + 100)
    assert [j["metadata"]["name"] for j in world.store.objects("batch", "jobs")] == ["s-first-0"]
    world.now = NOW + 100
    world.run(2)
    assert [j["metadata"]["name"] for j in world.store.objects("batch", "jobs")] == ["s-first-0", "s-second-0"]
    world.run(15)
    found = world.store.find("jobset.x-k8s.io", "jobsets", "default", "s")
    assert found is not None
    assert found["status"]["terminalState"] == "Completed"


def test_a_cluster_over_a_store_that_lived_goes_on() -> None:
    """Actors hold no truth: others over the same store finish what the first began."""
    world = World()
    world.job("a", pods=2, run="5s", completionMode="Indexed")
    world.run(1)
    world.store.listeners.remove(world.cluster._on_event)
    world.cluster = Cluster(world.store)
    world.run(10)
    assert world.status("a")["succeeded"] == 2
    assert "Complete" in world.true("a")


def test_two_runs_are_the_same() -> None:
    def run() -> list[Any]:
        world = World(nodes=3)
        for name in "abc":
            world.job(name, pods=2, gpus=4, run="5s")
        world.run(20)
        return [*world.store.objects("batch", "jobs"), *world.store.objects("", "pods")]

    assert run() == run()
