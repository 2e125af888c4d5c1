"""python -m e2e.soak [--minutes 10] [--tiny 20000]: load without end, on a real etcd and kube-apiserver.

Workloads arrive faster than they can be run, some are deleted while they wait, quota and nodes come and go; the run
times are played. The controller runs in a process of its own, with the code of `muster controller --workloads-only`,
and tells once a second what it holds. Then a tenant submits many tiny jobs at once, and another its first.

It fails when memory grows after warm-up, when a queue or the number of tasks grows, when a warning is repeated, when
the books differ from their recomputation, or when the first job of another tenant waits for more than one decision.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from admission.kube.client import ApiError, Client, Kind
from admission.kube.flow import Flow
from e2e import build
from e2e.bench import load
from e2e.bench.__main__ import environment
from e2e.bench.load import GROUP, Set, Size
from e2e.bench.play import WORKLOADS, Play
from e2e.control_plane import ControlPlane

OUT = Path("build/bench/soak.json")
RATE = 20
"""Workloads a second, of 30 cores x 0.5 s on average: about three times of what the quota can run."""
MOST_WAITING = 2_000
"""So many wait at once; the oldest of them are deleted then, as their owners would."""
QUEUES = Kind(GROUP, "v1beta2", "clusterqueues", "ClusterQueue", False)
NODES = Kind("", "v1", "nodes", "Node", False)
FIRST = ("other", "first")


# ---------------------------------------------------------------- the controller's process


async def control(kubeconfig: str) -> None:
    """The controller; a line of JSON a second says what it holds, and one more what became of the first job."""
    from admission.api.config import load_config
    from admission.commands.options import configure_logs
    from admission.controller.serve import Replica, serve_workloads
    from admission.engine.model import Admit, Plan

    configure_logs("json", "warning")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    cycles = seen_at = admitted_at = 0
    longest = 0.0

    async def tell(replica: Replica) -> None:
        shown = replica.controller

        def plan(made: Plan, took: float) -> None:
            nonlocal cycles, seen_at, admitted_at, longest
            cycles += 1
            longest = max(longest, took)
            if not seen_at and FIRST in shown.world.workloads:
                seen_at = cycles
            if not admitted_at and any(isinstance(d, Admit) and d.key == FIRST for d in made.decisions):
                admitted_at = cycles

        shown.watchers.plan.append(plan)
        drift = 0

        async def report() -> None:
            nonlocal longest, drift
            while True:
                await asyncio.sleep(1)
                drift = max(drift, len(shown.state.drift()) if int(time.monotonic()) % 15 == 0 else 0)
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                said = {
                    "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
                    "tasks": len(asyncio.all_tasks()),
                    "jobs": len(shown.jobs),
                    "in_flight": shown.client.flow.in_flight + shown.client.flow.waiting,
                    "workloads": len(shown.world.workloads),
                    "longest_cycle_ms": longest * 1000,
                    "cycles": cycles,
                    "drift": drift,
                    "first_waited_cycles": admitted_at - seen_at if admitted_at else None,
                }
                longest = 0.0
                print("@" + json.dumps(said), flush=True)

        reports.append(asyncio.create_task(report()))

    reports: list[asyncio.Task[None]] = []
    config = load_config(
        f"apiVersion: config.muster.dev/v1beta1\nkind: Configuration\napiGroup: {GROUP}\npreset: muster\n"
    )
    async with await Client.from_kubeconfig(kubeconfig) as client:
        serving = asyncio.create_task(serve_workloads(client, config, started=tell))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, stopping, *reports):
            task.cancel()
        await asyncio.gather(serving, stopping, *reports, return_exceptions=True)
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        print("@" + json.dumps({"left": left}), flush=True)


# ---------------------------------------------------------------- the load


class Soak(Play):
    """Arrivals without end, in the queues of `size`."""

    def __init__(self, client: Client, size: Size, seconds: float, tiny: int) -> None:
        super().__init__(client, size, lambda text: print(text, flush=True))
        self._seconds = seconds
        self._tiny = tiny
        self.made = 0

    async def soak(self) -> None:
        for name, cohort in self._cohort_of.items():
            for obj in load.queue(name, cohort):
                await self._make(obj)
        async with asyncio.TaskGroup() as group:
            aside = [group.create_task(work()) for work in (self._watch, self._tell, self._quota, self._nodes)]
            queues = list(self._cohort_of)
            await self._one(queues[0], self._size.sets[0], "begins")
            await self._until_admitted((queues[0], "begins"))
            ends = time.monotonic() + self._seconds
            while time.monotonic() < ends:
                began = time.monotonic()
                for _ in range(RATE):
                    kind = self._size.sets[self.made % len(self._size.sets)]
                    group.create_task(self._one(queues[self.made % len(queues)], kind, f"w{self.made}"))
                    self.made += 1
                await self._tidy()
                await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
            await self._flood()
            for task in aside:
                task.cancel()
        for key in list(self._runs):
            self.forget(key)
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _one(self, queue: str, kind: Set, name: str) -> None:
        self.expect(queue, name, kind)
        await self._client.create(WORKLOADS.path(queue), load.workload(kind, queue, name))
        self.tally.created += 1

    async def _tidy(self) -> None:
        """What has finished is deleted, and of what waits the oldest above a number."""
        doomed = self.finished()
        waiting = self.waiting()
        doomed += waiting[: max(0, len(waiting) - MOST_WAITING)]

        async def gone(key: tuple[str, str]) -> None:
            try:
                await self._client.delete(WORKLOADS.path(*key))
            except ApiError as error:
                if error.status != 404:
                    raise
            self.forget(key)

        await asyncio.gather(*map(gone, doomed))

    async def _quota(self) -> None:
        """A queue's quota is cut, and given back."""
        for number in range(10**9):
            await asyncio.sleep(3)
            name = list(self._cohort_of)[number // 2 % len(self._cohort_of)]
            amount = "5" if number % 2 == 0 else str(load.QUOTA)
            path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
            await self._client.json_patch(QUEUES.path(None, name), [{"op": "replace", "path": path, "value": amount}])

    async def _nodes(self) -> None:
        """A node is cordoned, and comes back."""
        names = [node["metadata"]["name"] for node in load.nodes(self._size)]
        for number in range(10**9):
            await asyncio.sleep(2)
            patch = {"spec": {"unschedulable": number % 2 == 0}}
            await self._client.merge_patch(NODES.path(None, names[number // 2 % len(names)]), patch)

    async def _flood(self) -> None:
        """One tenant submits many tiny jobs at once; then another comes with its first."""
        kind = Set("tiny", 1, 0, 100, 0, 1)
        for name, cohort in (("tiny", "flood"), ("other", "flood")):
            for obj in load.queue(name, cohort):
                if obj["kind"] == "ClusterQueue":
                    obj["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "0"
                await self._make(obj)
        self._say(f"{self._tiny} tiny jobs of one tenant")
        gate = asyncio.Semaphore(48)

        async def one(number: int) -> None:
            async with gate:
                await self._one("tiny", kind, f"t{number}")

        await asyncio.gather(*(one(number) for number in range(self._tiny)))
        await self._one(*FIRST[:1], kind, FIRST[1])
        await self._until_admitted(FIRST)
        self._say("the other tenant's first job was admitted")

    async def _until_admitted(self, key: tuple[str, str]) -> None:
        async with asyncio.timeout(120):
            while not self.was_admitted(key):
                await asyncio.sleep(0.2)


def run(minutes: float, tiny: int) -> dict[str, Any]:
    sets = (
        Set("small", 1, 0, 300, 50, 1, pods=2),
        Set("medium", 1, 0, 500, 100, 5, pods=5),
        Set("large", 1, 0, 800, 200, 20, pods=4),
    )
    size = Size("soak", cohorts=2, queues=3, sets=sets, racks=2, hosts=2)
    reports: list[dict[str, Any]] = []
    warnings: Counter[str] = Counter()
    with ControlPlane(apiserver_only=True, audit=False) as cp, tempfile.TemporaryFile() as log:
        from e2e.kueue import define  # here: the controller's process, whose memory is judged, does without

        define(cp)
        command = [sys.executable, "-m", "e2e.soak", "--controller", str(cp.kubeconfig())]

        async def play() -> None:
            client = Client.plain(
                cp.url, cp.token(), tls=cp.tls, flow=Flow(start=64, most=256), write_timeout=60.0
            )  # fmt: skip
            async with client:
                soak = Soak(client, size, minutes * 60, tiny)
                await soak.prepare()
                await soak.soak()

        process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            asyncio.run(play())
            time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            code = process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if sys.exc_info()[0] is not None:
                log.seek(0)
                print(log.read().decode(errors="replace")[-5000:], file=sys.stderr)
        log.seek(0)
        for line in log.read().decode(errors="replace").splitlines():
            if line.startswith("@"):
                reports.append(json.loads(line[1:]))
            elif line.strip():
                warnings[re.sub(r"[0-9a-f-]{8,}|\d+", "#", line)] += 1
    return judged(reports, warnings, code, minutes)


def judged(reports: list[dict[str, Any]], warnings: Counter[str], code: int, minutes: float) -> dict[str, Any]:
    """Figures, and what of them is wrong."""
    held = [one for one in reports if "rss_mb" in one]
    # While the soak lasts, past its first third; what the flood needs on top is its own.
    began = next((i for i, one in enumerate(held) if one["workloads"] > 1), 0)
    steady = held[began + round(minutes * 20) : began + round(minutes * 60)] or held
    middle = len(steady) // 2
    early, late = (sorted(one["rss_mb"] for one in half)[len(half) // 2] for half in (steady[:middle], steady[middle:]))
    last = held[-1]
    figures = {
        "minutes": minutes,
        "rss_early_mb": round(early, 1),
        "rss_late_mb": round(late, 1),
        "rss_growth_mb_per_hour": round((late - early) / max(1, middle) * 3600, 1),
        "rss_peak_mb": round(max(one["rss_mb"] for one in held), 1),
        "most_jobs_queued": max(one["jobs"] for one in steady),
        "most_requests": max(one["in_flight"] for one in steady),
        "tasks_early": sorted(one["tasks"] for one in steady[:middle] or steady)[middle // 2],
        "tasks_late": sorted(one["tasks"] for one in steady[middle:])[middle // 2],
        "longest_cycle_ms": round(max(one["longest_cycle_ms"] for one in held), 1),
        "first_waited_cycles": last["first_waited_cycles"],
        "drift": max(one["drift"] for one in held),
        "warnings": dict(warnings.most_common(5)),
        "left_tasks": next((one["left"] for one in reports if "left" in one), ["did not end"]),
        "exit_code": code,
    }
    wrong = []
    if late > early * 1.05 + 4:
        wrong.append(f"memory grew from {early:.0f} to {late:.0f} MB")
    if figures["most_jobs_queued"] > 2 * MOST_WAITING:
        wrong.append(f"{figures['most_jobs_queued']} jobs were queued at once")
    if figures["tasks_late"] > figures["tasks_early"] + 4:
        wrong.append(f"tasks grew from {figures['tasks_early']} to {figures['tasks_late']}")
    if figures["drift"]:
        wrong.append("the books differ from their recomputation")
    wrong += [f"{count} times: {text}" for text, count in warnings.items() if count > 3]
    if figures["first_waited_cycles"] is None or figures["first_waited_cycles"] > 1:
        wrong.append(f"the other tenant's first job waited for {figures['first_waited_cycles']} decisions")
    if figures["left_tasks"] or code:
        wrong.append(f"exit code {code}, tasks left: {figures['left_tasks']}")
    return {**figures, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tiny", type=int, default=20_000)
    parser.add_argument("--controller", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.controller:
        asyncio.run(control(given.controller))
        return 0
    build.ensure(("etcd", "kube-apiserver"))
    figures = run(given.minutes, given.tiny)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
