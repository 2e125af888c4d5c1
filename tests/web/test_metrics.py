"""What Prometheus and the kubelet are told, read by Prometheus' own parser and over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from admission.engine.cycle import decide
from admission.engine.model import (
    MUSTER,
    Admit,
    Assumed,
    ClusterQueue,
    Evict,
    EvictReason,
    Flavor,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    Namespace,
    PodSet,
    PodShape,
    Put,
    Quota,
    ResourceGroup,
    Verdict,
    Workload,
)
from admission.engine.state import QueueNumbers, State
from admission.web import health
from admission.web.metrics import Metrics

GPU = "nvidia.com/gpu"


class Small:
    """A queue of 16 GPUs on elastic nodes: one gang of 12 runs, one of 8 waits."""

    def __init__(self) -> None:
        self.state = State(MUSTER)
        group = ResourceGroup(covered=(GPU,), flavors=(FlavorQuotas(name="h100", quotas=((GPU, Quota(16)),)),))
        for value in (
            Flavor(name="h100", elastic=True),
            ClusterQueue(name="team-a", groups=(group,), namespace_selector=LabelSelector()),
            Namespace(name="a"),
            LocalQueue(namespace="a", name="main", cluster_queue="team-a"),
            self.gang("first", 12, 1_000),
            self.gang("second", 8, 2_000),
        ):
            self.state.apply(Put(value))
        self.plan = decide(self.state, 10_000, 100)
        for decision in self.plan.decisions:
            self.state.apply(Assumed(decision))

    @staticmethod
    def gang(name: str, gpus: int, created: int) -> Workload:
        pods = PodSet(name="main", count=1, shape=PodShape(requests=((GPU, gpus),)))
        return Workload(namespace="a", name=name, uid=name, queue="main", created=created, pod_sets=(pods,))

    def queues(self) -> Iterator[tuple[str, str, QueueNumbers]]:
        yield "ClusterQueue", "team-a", self.state.queue_numbers("team-a")

    def verdicts(self) -> list[Verdict]:
        return [verdict for verdict in self.plan.verdicts if verdict.key[1] == "second"]

    def queue_of(self, key: tuple[str, str]) -> str:
        return "team-a"

    def api_calls(self) -> list[tuple[tuple[str, str, str, int], int]]:
        return [(("PATCH", "workloads", "status", 200), 3)]

    def watch_age(self) -> list[tuple[str, float]]:
        return [("Pod", 1.5)]

    def leading(self) -> bool:
        return True


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_run_is_counted() -> None:
    small = Small()
    metrics = Metrics(small)
    metrics.plan(small.plan, 0.002)
    for decision in small.plan.decisions:
        metrics.decision(decision)
    metrics.decision(
        Evict(
            key=("a", "first"),
            uid="first",
            reason=EvictReason.IN_COHORT_RECLAMATION,
            preemptor=("b", "x"),
            preemptor_uid="x",
        )
    )
    metrics.failure(None, TimeoutError())
    metrics.drift(0)
    found = samples(metrics.text())
    (admit,) = [decision for decision in small.plan.decisions if isinstance(decision, Admit)]
    assert admit.key == ("a", "first")

    def value(metric: str, /, **labels: str) -> float:
        return found[metric, frozenset(labels.items())]

    assert value("muster_admitted_workloads_total", cluster_queue="team-a") == 1
    assert value("muster_admission_wait_seconds_sum", cluster_queue="team-a") == 9
    assert value("muster_evicted_workloads_total", reason="InCohortReclamation") == 1
    assert value("muster_write_failures_total", error="TimeoutError") == 1
    assert value("muster_ledger_drift") == 0
    assert value("muster_cycle_duration_seconds_count") == 1
    assert value("muster_workloads", cluster_queue="team-a", state="pending") == 1
    assert value("muster_workloads", cluster_queue="team-a", state="admitted") == 1
    assert value("muster_pending_workloads", cluster_queue="team-a", reason="WaitingForQuota") == 1
    quota = {"kind": "ClusterQueue", "name": "team-a", "flavor": "h100", "resource": GPU}
    assert {what: value("muster_quota", **quota, what=what) for what in ("nominal", "reserved", "borrowed")} == {
        "nominal": 16,
        "reserved": 12,
        "borrowed": 0,
    }
    assert value("muster_api_calls", verb="PATCH", resource="workloads", subresource="status", code="200") == 3
    assert value("muster_watch_age_seconds", kind="Pod") == 1.5
    assert value("muster_leading") == 1


@pytest.mark.parametrize(("why_not", "status"), [("", 200), ("waiting for the first list of Pod", 503)])
async def test_readiness_says_what_is_missing(why_not: str, status: int) -> None:
    app = health.application(ready=lambda: why_not, metrics=lambda: b"up 1\n")
    runner = await health.serve(app, "127.0.0.1:0")
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            async with session.get("/readyz") as answer:
                assert (answer.status, (await answer.text()).strip()) == (status, why_not or "ok")
            async with session.get("/healthz") as answer:
                assert answer.status == 200
            async with session.get("/metrics") as answer:
                assert await answer.text() == "up 1\n"
    finally:
        await runner.cleanup()
