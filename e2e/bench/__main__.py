"""python -m e2e.bench [--only NAME ...] [--scale 0.1] [--check]: Kueue's scheduling benchmark against Muster.

Figures go to build/bench/cluster.json. --check fails when Muster writes more than it must.
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

from admission.kube.client import Client
from admission.kube.flow import Flow
from e2e import build
from e2e.bench.load import GROUP, SIZES, Size
from e2e.bench.play import Play, Tally
from e2e.control_plane import ControlPlane
from e2e.kueue import define

OUT = Path("build/bench/cluster.json")
MUSTER = ("-m", "admission.cli", "controller", "--workloads-only", f"--api-group={GROUP}", "--log-level=warning")
FLOOR = ("-m", "e2e.bench.floor")
_REQUESTS = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)


class Run:
    """A play with one controller on a control plane of its own."""

    def __init__(self, size: Size, arguments: tuple[str, ...], title: str) -> None:
        self._size = size
        self._arguments = arguments
        self._title = title
        self.tally = Tally()
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.memory_mb = 0.0
        self.writes: Counter[str] = Counter()
        """The controller's, by resource, as the API server counted them."""

    def say(self, text: str) -> None:
        print(f"{self._size.name:12} {self._title:7} {text}", flush=True)

    def go(self) -> None:
        with ControlPlane(apiserver_only=True, audit=False) as cp:
            define(cp)
            kubeconfig = str(cp.kubeconfig())
            url, token, tls = cp.url, cp.token(), cp.tls
            runner = _loop()
            before = _written(cp.metrics())
            runner(self._play(Client.plain(url, token, tls=tls, flow=Flow(start=64, most=256), write_timeout=120.0),
                              kubeconfig))  # fmt: skip
            self.writes = _written(cp.metrics()) - before
            usage = cp.usage()
        self.writes["workloads"] -= self.tally.own_writes["status"]
        self.say(
            f"{self.wall_s:5.1f} s; controller {self.cpu_s:.1f} CPU-s, {self.memory_mb:.0f} MB, "
            f"{self.writes['workloads'] / self._size.workloads:.3f} writes per workload; "
            + ", ".join(f"{name} {cpu:.0f} CPU-s" for name, (cpu, _) in usage.items())
        )

    async def _play(self, client: Client, kubeconfig: str) -> None:
        async with client:
            play = Play(client, self._size, self.say)
            self.tally = play.tally
            await play.prepare()
            with tempfile.TemporaryFile() as log:
                began = time.monotonic()
                process = subprocess.Popen(
                    [sys.executable, *self._arguments, "--kubeconfig", kubeconfig],
                    env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
                try:
                    playing = asyncio.ensure_future(play.run())
                    while not playing.done():
                        await asyncio.wait({playing}, timeout=0.5)
                        if _ended(process.pid):
                            playing.cancel()
                    await playing
                    self.wall_s = time.monotonic() - began
                    process.send_signal(signal.SIGINT)
                finally:
                    if sys.exc_info()[0] is not None:
                        process.kill()
                    _, status, used = os.wait4(process.pid, 0)
                    process.returncode = os.waitstatus_to_exitcode(status)
                    self.cpu_s, self.memory_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
                    log.seek(0)
                    if text := log.read().decode(errors="replace").strip():
                        self.say(f"its log ends:\n{text[-3000:]}")
                if process.returncode:
                    raise SystemExit(f"the controller ended with exit code {process.returncode}")


def environment() -> dict[str, str]:
    """With compiled modules, as an installed program has them."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(Path("build/pycache").resolve())}


def compile_modules() -> None:
    """Now, not while it is measured."""
    modules = "admission.cli, admission.controller.serve, admission.web.metrics, admission.web.health, e2e.bench.floor"
    subprocess.run([sys.executable, "-c", f"import {modules}, uvloop"], check=False, env=environment())


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _loop() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _written(metrics: str) -> Counter[str]:
    """Successful writes of each resource of the group, without creations."""
    counts: Counter[str] = Counter()
    for labels, value in _REQUESTS.findall(metrics):
        said = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if said["group"] == GROUP and said["verb"] in ("APPLY", "PATCH", "PUT") and said["code"].startswith("2"):
            counts[said["resource"]] += int(float(value))
    return counts


def measure(size: Size) -> dict[str, Any]:
    floor, muster = Run(size, FLOOR, "floor"), Run(size, MUSTER, "muster")
    floor.go()
    muster.go()
    tally, many = muster.tally, size.workloads
    status_writes = muster.writes.total() - muster.writes["workloads"]
    return {
        "workloads": many,
        "wall_s": round(muster.wall_s, 1),
        "quota_bound_s": round(size.quota_bound_s, 1),
        "floor_s": round(floor.wall_s, 1),
        "wall_over_floor": round(muster.wall_s / floor.wall_s, 3),
        "controller_cpu_s": round(muster.cpu_s, 1),
        "controller_cpu_s_per_1000": round(muster.cpu_s * 1000 / many, 2),
        "floor_cpu_s": round(floor.cpu_s, 1),
        "cpu_over_floor": round(muster.cpu_s / floor.cpu_s, 2),
        "memory_mb": round(muster.memory_mb),
        "writes_per_workload": round(muster.writes["workloads"] / many, 3),
        "reasons_written": tally.explained,
        "queue_status_writes_per_s": round(status_writes / muster.wall_s, 1),
        "admissions": tally.admitted,
        "evictions": tally.evictions,
        "evictions_written": tally.told_to_leave,
        "evicted_run_s": round(tally.evicted_s, 1),
        "delivered_run_s": round(tally.delivered_s, 1),
        "mean_wait_s": {name: round(sum(waits) / len(waits), 2) for name, waits in sorted(tally.waits.items())},
        "most_cores_held_by_a_cohort": tally.most_held,
        "cores_of_a_cohort": size.queues * 20,
    }


def check(size: Size, figures: dict[str, Any]) -> list[str]:
    """What Muster did that it must not: each Workload is written once when it is admitted, once when it is evicted
    (and admitted again), and where it waits long, when its reason changes; quota is never exceeded."""
    wrong = []
    writes = round(figures["writes_per_workload"] * figures["workloads"])
    most = figures["admissions"] + figures["evictions_written"] + figures["reasons_written"]
    if writes > most * 1.01:
        wrong.append(f"{writes} writes of Workloads: at most {most} were due")
    if figures["most_cores_held_by_a_cohort"] > size.queues * 20:
        wrong.append(f"a cohort held {figures['most_cores_held_by_a_cohort']} of {size.queues * 20} cores")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=list(SIZES), action="append")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each set of workloads is created")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    build.ensure(("etcd", "kube-apiserver"))
    compile_modules()
    held = json.loads(OUT.read_text()) if OUT.exists() else {}
    wrong: list[str] = []
    for name in given.only or SIZES:
        size = SIZES[name].scaled(given.scale)
        figures = {"scale": given.scale, **measure(size)}
        held[name] = figures
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(held, indent=2) + "\n")
        print(json.dumps({name: figures}, indent=2), flush=True)
        wrong += [f"{name}: {text}" for text in check(size, figures)]
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
