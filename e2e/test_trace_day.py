"""A real cluster's nodes and a real day: 400 gangs of three teams on 300 nodes.

The figures are printed; `-s` shows them.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.api_client import Object, finished
from e2e.gangs import GPU
from e2e.installed import NAMES, USER, Installed, cluster_queue, cohort, flavor, job, local_queue, pod_template
from e2e.invariants import check, report
from e2e.invariants import figures as figures_of
from e2e.traces import TraceGang, TraceNode, gpu_nodes, philly_gangs

SUBMITTED_WITHIN = 25.0
LIMIT = 420.0
"""Longer than the five minutes for which Kubernetes' job controller leaves a Job alone when it waits for news of pods
that it will not get."""


def _node(node: TraceNode) -> Object:
    size = {
        "cpu": f"{node.cpu_milli}m",
        "memory": f"{node.memory_mib}Mi",
        "pods": "110",
        GPU: str(node.gpus),
    }
    meta = {"name": node.name, "labels": {"gpu-model": node.model}}
    return {"metadata": meta, "status": {"capacity": size, "allocatable": size}}


def _job(gang: TraceGang) -> Object:
    template = pod_template(gang.gpus, gang.seconds)
    amounts = {GPU: str(gang.gpus), "cpu": str(4 * gang.gpus), "memory": f"{16 * gang.gpus}Gi"}
    template["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return job(gang.team, gang.name, gang.pods, template=template)


@pytest.mark.alone
def test_a_real_clusters_nodes_and_a_real_day(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    nodes, where = gpu_nodes(300)
    gangs, whose = philly_gangs(400)
    assert sum(gang.pods > 1 for gang in gangs) >= len(gangs) / 2
    cp.add_node_objects([_node(node) for node in nodes])
    gpus = sum(node.gpus for node in nodes)
    cp.apply([flavor(), cohort("all")])
    share: dict[str, int | str] = {
        GPU: gpus // 3,
        "cpu": sum(node.cpu_milli for node in nodes) // 3000,
        "memory": f"{sum(node.memory_mib for node in nodes) // 3}Mi",
    }
    for team in ("team-a", "team-b", "team-c"):
        cp.namespace(team)
        cp.apply([cluster_queue(team, share, cohortName="all"), local_queue(team, team)])
    muster.started(config={"leaderElection": {}}, tuning={})
    mark = cp.audit_mark()
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        for n, gang in enumerate(gangs):
            time.sleep(max(0.0, began + SUBMITTED_WITHIN * n / len(gangs) - time.monotonic()))
            pool.submit(cp.create, _job(gang))
    submitted = time.monotonic() - began

    def ended() -> Counter[str]:
        return Counter(finished(one) or "" for one in cp.list("jobs") if NAMES.queue_label in one["metadata"]["labels"])

    def still_there() -> object:
        """Of those that have not finished: what their Jobs and pods say."""
        late = {one["metadata"]["name"]: one["status"] for one in cp.list("jobs") if not finished(one)}
        left = [pod for pod in cp.list("pods") if pod["metadata"].get("labels", {}).get("job-name") in late]
        pods = [(pod["metadata"], pod["spec"].get("nodeName"), pod["status"].get("phase")) for pod in left[:3]]
        return ended(), dict(list(late.items())[:3]), pods

    cp.wait(lambda: not ended()[""], LIMIT, "all gangs to finish", every=0.5, describe=still_there)
    took = time.monotonic() - began
    assert ended() == {"Complete": len(gangs)}
    cp.wait(
        lambda: not any(queue["status"]["reservingWorkloads"] for queue in cp.list("clusterqueues")),
        30,
        "all quota back",
    )
    log.catch_up()
    said = figures_of(log)
    waits, ready = sorted(said.waits.values()), sorted(said.ready.values())
    counts: Counter[str] = Counter()
    for (_, _, resource, _), count in cp.audit_counts(USER, since=mark).items():
        counts[resource] += count
    asked = sum(gang.pods * gang.gpus * gang.seconds for gang in gangs)
    pods, several = sum(gang.pods for gang in gangs), sum(gang.pods > 1 for gang in gangs)
    print(f"\n{where}: {gpus} GPUs; {whose}: {pods} pods, {several} gangs of several")
    used = asked / took / gpus
    print(f"submitted in {submitted:.0f} s, all finished after {took:.0f} s; {used:.0%} of all GPU time used")
    middle, late, last = statistics.median(waits), waits[len(waits) * 95 // 100], waits[-1]
    print(f"waited for a reservation: median {middle:.2f} s, 95 of 100 within {late:.1f} s, longest {last:.1f} s")
    print(f"from reservation to all pods running: median {statistics.median(ready):.2f} s, longest {ready[-1]:.1f} s")
    bad = f"partial gangs {said.partial_gangs}, overcommitted nodes {said.overcommitted_nodes}"
    print(f"starts {said.starts}, evictions {said.evictions}, {bad}, unschedulable {said.max_unschedulable:.2f} s")
    each = sum(counts[resource] for resource in ("workloads", "jobs", "pods")) / len(gangs)
    print(f"writes of the controller: {dict(counts)}; on Workloads, Jobs and pods a gang: {each:.2f}")
    violations = check(log, at_end=True)
    assert not violations, report(violations)
    assert len(said.waits) == len(gangs)
    assert said.partial_gangs == 0
    assert said.overcommitted_nodes == 0
    assert said.max_unschedulable <= 5
