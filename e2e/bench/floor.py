"""A controller that decides nothing: it reserves and admits each Workload when it sees it, with one write.

Beside that it says in the status of a ClusterQueue whether anybody runs in it, as soon as that changes and at most once
a second: a load generator may take a queue in which nobody runs or waits for one that is done.

python -m e2e.bench.floor --kubeconfig FILE
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from collections import Counter
from typing import Any

import msgspec

from admission.kube.client import Client, Kind
from e2e.bench.load import GROUP, VERSION
from e2e.bench.play import WORKLOADS, lines

CLUSTER_QUEUES = Kind(GROUP, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
LOCAL_QUEUES = Kind(GROUP, "v1beta2", "localqueues", "LocalQueue")


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


class _Condition(msgspec.Struct):
    type: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Workload(msgspec.Struct):
    metadata: _Meta
    spec: _Spec | None = None
    status: _Status = msgspec.field(default_factory=_Status)


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


class Queues:
    """In which ClusterQueues somebody runs, and what was written of that."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._running: Counter[tuple[str, str]] = Counter()
        """By LocalQueue."""
        self._of: dict[tuple[str, str], str] = {}
        self._written: dict[str, bool] = {}

    def came(self, namespace: str, queue: str) -> None:
        self._running[namespace, queue] += 1

    def ended(self, namespace: str, queue: str) -> None:
        self._running[namespace, queue] -= 1

    async def write(self) -> None:
        while True:
            await asyncio.sleep(1)
            if not self._of.keys() >= self._running.keys():
                # Urgent: admissions by the thousand stand in line.
                for held in (await self._client.get(LOCAL_QUEUES.path(), urgent="status"))["items"]:
                    self._of[held["metadata"]["namespace"], held["metadata"]["name"]] = held["spec"]["clusterQueue"]
            busy: dict[str, bool] = {}
            for local, many in self._running.items():
                if (queue := self._of.get(local)) is not None:
                    busy[queue] = busy.get(queue, False) or many > 0
            for queue, runs in busy.items():
                if self._written.get(queue) is not runs:
                    await self._show(queue, runs)
                    self._written[queue] = runs

    async def _show(self, queue: str, runs: bool) -> None:
        active = {
            "type": "Active",
            "status": "True",
            "reason": "Ready",
            "message": "",
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        body = {
            "apiVersion": VERSION,
            "kind": "ClusterQueue",
            "metadata": {"name": queue},
            "status": {"conditions": [active], "reservingWorkloads": int(runs), "admittedWorkloads": int(runs)},
        }
        await self._client.apply_raw(
            CLUSTER_QUEUES.path(None, queue, "status"), body, manager="kueue-admission", urgent="status"
        )


async def run(kubeconfig: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def work(client: Client, queues: Queues, group: asyncio.TaskGroup) -> None:
        runs: dict[tuple[str, str], bool] = {}
        async for line in lines(client):
            event = _decode(line)
            one = event.object
            key = (one.metadata.namespace, one.metadata.name)
            if one.spec is None:
                continue
            if event.type == "ADDED" and key not in runs:
                runs[key] = True
                queues.came(key[0], one.spec.queue_name)
                group.create_task(admit(client, one))
            elif runs.get(key) and any(condition.type == "Finished" for condition in one.status.conditions):
                runs[key] = False
                queues.ended(key[0], one.spec.queue_name)

    async with await Client.from_kubeconfig(kubeconfig, write_timeout=3600.0) as client:  # they stand in line
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                queues = Queues(client)
                endless = [group.create_task(work(client, queues, group)), group.create_task(queues.write())]
                await stop.wait()
                for task in endless:
                    task.cancel()


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
