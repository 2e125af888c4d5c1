"""A controller that decides nothing: it reserves and admits each Workload when it sees it, with one write.

python -m e2e.bench.floor --kubeconfig FILE
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from typing import Any

import msgspec

from admission.kube.client import Client
from e2e.bench.load import VERSION
from e2e.bench.play import WORKLOADS, lines


class _PodSet(msgspec.Struct):
    name: str
    count: int


class _Spec(msgspec.Struct, rename="camel"):
    queue_name: str
    pod_sets: list[_PodSet]


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str
    name: str = ""
    namespace: str = ""


class _Workload(msgspec.Struct):
    metadata: _Meta
    spec: _Spec | None = None


class _Event(msgspec.Struct):
    type: str
    object: _Workload


_decode = msgspec.json.Decoder(_Event).decode


async def admit(client: Client, one: _Workload) -> None:
    assert one.spec is not None
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    assignments = [
        {"name": part.name, "count": part.count, "flavors": {"cpu": "rf"}, "resourceUsage": {"cpu": "1"}}
        for part in one.spec.pod_sets
    ]
    conditions: list[dict[str, Any]] = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
        for kind in ("QuotaReserved", "Admitted")
    ]
    body = {
        "apiVersion": VERSION,
        "kind": "Workload",
        "metadata": msgspec.to_builtins(one.metadata),
        "status": {
            "conditions": conditions,
            "admission": {"clusterQueue": one.spec.queue_name, "podSetAssignments": assignments},
        },
    }
    path = WORKLOADS.path(one.metadata.namespace, one.metadata.name, "status")
    await client.apply_raw(path, body, manager="kueue-admission")


async def run(kubeconfig: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def work(client: Client, group: asyncio.TaskGroup) -> None:
        known: set[tuple[str, str]] = set()
        async for line in lines(client):
            event = _decode(line)
            key = (event.object.metadata.namespace, event.object.metadata.name)
            if event.type == "ADDED" and key not in known:
                known.add(key)
                group.create_task(admit(client, event.object))

    async with await Client.from_kubeconfig(kubeconfig, write_timeout=60.0) as client:
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                working = group.create_task(work(client, group))
                await stop.wait()
                working.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.floor", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    try:
        import uvloop

        uvloop.run(run(parser.parse_args().kubeconfig))
    except ImportError:
        asyncio.run(run(parser.parse_args().kubeconfig))


if __name__ == "__main__":
    main()
