"""python -m e2e.bench.kueue [baseline|large-scale|tas ...] [--controllers muster floor ...]: Kueue's own runner.

The runner that Kueue is measured with, built from the pinned module, plays its own load against a controller that it
starts itself, on a real etcd and kube-apiserver with Kueue's CRDs:

muster      this project's controller, in Kueue mode
floor       admits everything at once with one write each (`e2e.bench.floor`), whatever the quota
kueue       Kueue's scheduler as its benchmark runs it, at most 50 writes a second
unlimited   the same without that limit

Figures are the runner's own, from its summary and the process's statistics, and what runs lost by eviction, which an
observer beside it adds up (`e2e.bench.observe`); they go to build/bench/kueue.json.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e import build
from e2e.bench.__main__ import FLOOR, MUSTER, compile_modules, environment
from e2e.bench.observe import ARGUMENTS, OBSERVED

OUT = Path("build/bench/kueue.json")
LOADS = ("baseline", "large-scale", "tas")
CONTROLLERS: Mapping[str, tuple[str, ...] | str] = {
    "muster": MUSTER,
    "floor": FLOOR,
    "kueue": "minimalkueue",
    "unlimited": "minimalkueue-unlimited",
}
"""Arguments of Python, or the binary."""
UNNOTED = 0.01
"""Of so many Workloads, or a handful, the runner may not have noted that they finished: it stops at once when the
status of the last queue says so, with events still in line, and drops events when it is late."""


class NoFiguresError(Exception):
    """A run that says nothing of the controller, and why."""


def play(load: Path, controller: str, minutes: int, *, tas: bool = False) -> dict[str, Any]:
    """One run of the runner with a load, a file of its own format. Raises NoFiguresError, with the end of what was
    said, where it or the controller failed, or it ended early: it takes queues in whose status nobody waits or runs for
    done, also if that status was not written yet."""
    binaries = build.ensure(("etcd", "kube-apiserver", "kubectl", "kueue-runner"), say=False)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made:
        folder = Path(made)
        for name in ("etcd", "kube-apiserver", "kubectl"):
            (folder / name).symlink_to(binaries[name])
        arguments = [
            str(binaries["kueue-runner"]),
            f"--o={folder}",
            f"--crds={build.manifests('kueue') / 'crds'}",
            f"--generatorConfig={load}",
            f"--minimalKueue={_command(folder, controller)}",
            f"--timeout={minutes}m",
            *(["--enableTAS"] if tas and controller != "floor" else []),
        ]
        # It looks for its own sources, and needs none of them here.
        settings = {"KUBEBUILDER_ASSETS": str(folder), "PROJECT_DIR": str(folder / "project")}
        log = folder / "runner.log"
        with _observed(folder):
            code = _run(arguments, environment() | settings, log)
        observed = json.loads((folder / OBSERVED).read_text())
        if code:
            controller_log = folder / "controller.log"
            said = controller_log.read_text()[-2000:] if controller_log.exists() else ""
            raise NoFiguresError(
                f"the runner ended with exit code {code}:\n{log.read_text()[-3000:]}\n{said}\nuntil then: {observed}"
            )
        row: dict[str, Any] = figures(folder) | observed
        wanted = size(load)
        if wanted - row["finished"] > max(5, wanted * UNNOTED):
            raise NoFiguresError(f"{row['finished']} of {wanted} Workloads had finished when the runner ended")
        return row


def _run(arguments: Sequence[str], settings: Mapping[str, str], log: Path) -> int:
    """The exit code. A runner that gives up leaves what it started behind, an API server of gigabytes among it."""
    with log.open("w") as out:
        runner = subprocess.Popen(
            arguments, env=settings, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        return runner.wait()
    finally:
        while left := list(_of_session(runner.pid)):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
        runner.wait()


def _of_session(session: int) -> Iterator[int]:
    """Its processes, less those that have ended and that nobody has asked for."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    yield int(entry.name)


def size(load: Path) -> int:
    """How many Workloads a load consists of."""
    return sum(
        cohorts["count"] * queues["count"] * kind["count"] * len(kind["workloads"])
        for cohorts in yaml.safe_load(load.read_text())["cohorts"]
        for queues in cohorts["queuesSets"]
        for kind in queues["workloadsSets"]
    )


def figures(folder: Path) -> dict[str, Any]:
    """What the runner wrote down of one run."""
    summary = yaml.safe_load((folder / "summary.yaml").read_text())
    used = yaml.safe_load((folder / "minimalkueue.stats.yaml").read_text())
    with (folder / "wlStates.csv").open() as file:
        finished = [row for row in csv.DictReader(file, skipinitialspace=True) if int(row["ms to finish"]) > 0]
    classes = summary["workloadClasses"]
    (queues,) = summary["clusterQueueClasses"].values()
    return {
        "workloads": sum(one["count"] for one in classes.values()),
        "finished": len(finished),
        "wall_s": used["wallMs"] / 1000,
        "controller_cpu_s": (used["userMs"] + used["sysMs"]) / 1000,
        "memory_mb": round(used["maxrss"] / 1024),
        "evictions": sum(one["totalEvictions"] for one in classes.values()),
        "cpu_average_usage_pct": round(100 * queues["cpuAverageUsage"] / queues["nominalQuota"], 1),
        "mean_wait_s": {name: one["averageTimeToAdmissionMs"] / 1000 for name, one in sorted(classes.items())},
    }


@contextlib.contextmanager
def _observed(folder: Path) -> Iterator[None]:
    """With somebody who watches what the controller of this folder does, and writes it down at the end."""
    watcher = subprocess.Popen(
        [sys.executable, "-m", "e2e.bench.observe", str(folder)], env=environment(), stdin=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        watcher.terminate()
        if watcher.wait(60):
            raise NoFiguresError("nobody observed the runs")


def _command(folder: Path, controller: str) -> Path:
    """The program that the runner starts. Statistics are named after it."""
    program = folder / "minimalkueue"
    what = CONTROLLERS[controller]
    if isinstance(what, str):
        line, log = str(build.ensure((what,), say=False)[what]), ""
    else:
        line, log = " ".join((sys.executable, *what)), f" >{folder}/controller.log 2>&1"
    program.write_text(f'#!/bin/sh\necho "$@" >{folder}/{ARGUMENTS}\ncd {Path.cwd()} && exec {line} "$@"{log}\n')
    program.chmod(0o755)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.kueue", description=__doc__.split("\n")[0])
    parser.add_argument("load", nargs="*", help=f"of {', '.join(LOADS)}; without, the first")
    parser.add_argument("--controllers", nargs="+", choices=list(CONTROLLERS), default=["floor", "muster"])
    parser.add_argument("--minutes", type=int, default=30, help="when a run is given up")
    given = parser.parse_args()
    if unknown := [load for load in given.load if load not in LOADS]:
        parser.error(f"no such load: {', '.join(unknown)}")
    build.ensure(("etcd", "kube-apiserver", "kubectl", "kueue-runner"))
    compile_modules()
    held = json.loads(OUT.read_text()) if OUT.exists() else {}
    loads = build.module_directory("kueue") / "test/performance/scheduler/configs"
    failed = False
    for load in given.load or LOADS[:1]:
        for controller in given.controllers:
            print(f"{load}: {controller} ...", flush=True)
            try:
                row = play(loads / load / "generator.yaml", controller, given.minutes, tas=load == "tas")
            except NoFiguresError as error:  # the others are worth their time all the same
                print(f"{load}: {controller}: no figures: {error}", file=sys.stderr, flush=True)
                failed = True
                continue
            held.setdefault(load, {})[controller] = row
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps(held, indent=2) + "\n")
            print(json.dumps({load: {controller: row}}, indent=2), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
