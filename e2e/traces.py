"""A real cluster's nodes and a real day of gangs, as objects: for the end-to-end test of that name.

    nodes, source = gpu_nodes(300)
    gangs, source = philly_gangs(400)

Nodes are those of the OpenB trace (Alibaba, 2023) with their CPU, memory and GPU counts; gangs those of the Philly
trace (Microsoft, 2017) with their GPUs, run times and virtual clusters, in the order in which they came. The files are
read where they lie, beside the checkout; where they are absent, a generated stand-in of the same shape takes their
place, and `source` says so.
"""

from __future__ import annotations

import csv
import gzip
import math
import random  # noqa: TID251  # for stand-ins, seeded
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
TEAMS = 3
POD = 8
"""GPUs of a pod of a gang that has several."""
SHORTEST, LONGEST = 1.0, 60.0
"""Run times here, in seconds; equal ratios in the trace are equal ratios here."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class TraceGang:
    name: str
    team: str
    pods: int
    gpus: int
    """Of each pod."""
    seconds: float


def gpu_nodes(count: int, folder: Path = TRACES) -> tuple[list[TraceNode], str]:
    """Nodes evenly from the whole list, so that models are mixed as they are there; and where they come from."""
    path = folder / "openb_nodes_gpu.csv"
    if path.exists():
        with path.open() as file:
            rows = list(csv.DictReader(file))
        chosen = [rows[index * len(rows) // count] for index in range(count)]
        return [
            TraceNode(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in chosen
        ], f"{count} of {len(rows)} GPU nodes of the OpenB trace"
    draw = random.Random(300)
    shapes = [
        (96000, 393216, 8, "G2"),
        (104000, 524288, 2, "T4"),
        (16000, 122880, 2, "P100"),
        (128000, 786432, 8, "G3"),
    ]
    picked = draw.choices(shapes, weights=(50, 33, 11, 6), k=count)
    nodes = [TraceNode(f"made-node-{n:04}", *shape) for n, shape in enumerate(picked)]
    return nodes, f"{count} generated nodes (a stand-in: {path} is absent)"


def philly_gangs(count: int, folder: Path = TRACES) -> tuple[list[TraceGang], str]:
    """Gangs in order of arrival, at least half of them of several pods; and where they come from.

    Only 183 jobs of the trace asked for more than 8 GPUs: all are taken, and as many of them a second time as make half
    of `count`. The rest is drawn evenly from the smaller ones. Teams are its virtual clusters, dealt out so that each
    has about as many gangs.
    """
    path = folder / "philly_jobs.csv.gz"
    rows: list[tuple[float, float, int, str]]
    if path.exists():
        with gzip.open(path, "rt") as file:
            rows = [
                (float(row["submit_s"]), float(row["duration_s"]), int(row["gpus"]), row["vc"])
                for row in csv.DictReader(file)
            ]
        source = "the Philly trace"
    else:
        draw = random.Random(400)
        sizes = draw.choices((1, 2, 4, 8, 16, 32), weights=(400, 60, 80, 80, 134, 36), k=4 * count)
        rows = [
            (60.0 * n, math.exp(draw.uniform(3, 13)), gpus, f"vc-{draw.randrange(9)}") for n, gpus in enumerate(sizes)
        ]
        source = f"a generated trace (a stand-in: {path} is absent)"
    large = [row for row in rows if row[2] > POD]
    small = [row for row in rows if row[2] <= POD]
    several = (count + 1) // 2
    again = max(0, several - len(large))
    chosen = _evenly(large, several - again) + _evenly(large, again) + _evenly(small, count - several)
    chosen.sort()
    teams = _deal(Counter(vc for *_, vc in chosen))
    times = [math.log(max(1.0, duration)) for _, duration, _, _ in chosen]
    low, high = min(times), max(times)
    gangs = []
    for n, (_, _, gpus, vc) in enumerate(chosen):
        part = (times[n] - low) / (high - low)
        pods = -(-gpus // POD)
        seconds = round(SHORTEST * (LONGEST / SHORTEST) ** part, 1)
        gangs.append(TraceGang(f"gang-{n:03}", teams[vc], pods, POD if pods > 1 else gpus, seconds))
    return gangs, f"{count} gangs of {source}" + (f", {again} of them twice" if again else "")


def _evenly(rows: Sequence[tuple[float, float, int, str]], count: int) -> list[tuple[float, float, int, str]]:
    return [rows[index * len(rows) // count] for index in range(count)]


def _deal(sizes: Counter[str]) -> dict[str, str]:
    """Virtual cluster -> team: the largest first, each to the team that has least so far."""
    load = dict.fromkeys((f"team-{'abcdefgh'[n]}" for n in range(TEAMS)), 0)
    dealt = {}
    for vc, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        team = min(load, key=lambda name: (load[name], name))
        dealt[vc] = team
        load[team] += size
    return dealt
