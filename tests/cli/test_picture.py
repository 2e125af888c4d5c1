"""The picture of `muster top` in the docs, drawn by the program from a cluster of three teams.

WRITE_DOCS=1 writes it anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from admission.controller import tell
from admission.engine.model import Detail, Reason, Why
from admission.jobs.values import rfc3339
from tests.controller.lab import (
    ADMITTED_,
    GPU,
    NOW,
    RESERVED,
    SHORT,
    STARTED,
    World,
    admission,
    cluster_queue,
    job,
    local_queue,
    own,
    waiting,
    with_workload,
)

PICTURE = Path("docs/top.svg")


def words(svg: str) -> str:
    """What is written on a picture."""
    return re.sub(r"\s+", " ", re.sub(r"<style.*?</style>|<[^>]+>", " ", svg, flags=re.DOTALL).replace("&#160;", " "))


async def three_teams(world: World) -> None:
    await world.put(own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}))
    for team, used in (("vision", 24), ("speech", 8), ("search", 8)):
        await world.put(cluster_queue(team, 16, used))
        await world.put(local_queue(team, team))
    for i in range(6):
        allocatable = {GPU: "8", "cpu": "64", "memory": "256Gi", "pods": "110"}
        spec = {"unschedulable": True} if i == 5 else {}
        meta = {"name": f"gpu-{i}", "labels": {"gpu": "h100", "kubernetes.io/hostname": f"gpu-{i}"}}
        status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
        await world.put({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status})
    started = [RESERVED, ADMITTED_]
    for name, queue, hosts, ready in (
        ("pretrain", "vision", ("gpu-0", "gpu-1"), 2),
        ("finetune", "vision", ("gpu-2",), 1),
        ("asr", "speech", ("gpu-3",), 1),
        ("ranking", "search", ("gpu-4",), 0),
    ):
        pods = len(hosts)
        made = job(name, queue, pods=pods, status={**STARTED, "active": pods, "ready": ready})
        status = {"conditions": started, "admission": admission(*hosts, pods=pods)}
        await with_workload(world, made, status, queue=queue)
    short = waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (SHORT,)))
    await with_workload(world, job("distill", "search"), short, priority=5, queue="search")
    await with_workload(world, job("eval", "search", pods=1), short, queue="search")
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "muster-system"}})
    lease = {"holderIdentity": "replica", "leaseDurationSeconds": 15, "renewTime": rfc3339(NOW)}
    meta = {"name": "muster-controller", "namespace": "muster-system"}
    await world.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": lease})


async def test_the_picture_in_the_docs_is_what_the_program_draws(world: World) -> None:
    await three_teams(world)
    ask = world.ask()
    shown = tell.top(await ask.queues(None), await ask.jobs(None), await ask.nodes(), NOW, height=30)
    drawn = tell.picture(shown, "muster top", width=130, height=30)
    assert "No controller leads" not in words(drawn)
    for part in ("vision", "speech", "search", "pretrain", "gpu-5", "1/2", "CohortShort", "40 of 48"):
        assert part in words(drawn), part
    if os.environ.get("WRITE_DOCS"):
        PICTURE.write_text(drawn, encoding="utf-8")
    assert words(PICTURE.read_text(encoding="utf-8")) == words(drawn)
