"""python -m tests.bench.openb: the openb traces replayed as published, to see how full a cluster becomes.

The setting is that of the FGD paper (ATC'23), whose results are beside the traces (`fgd_golden.csv`): 1,213 nodes with
6,212 GPUs; the pods of a trace, and random ones of them again until they ask for 130 % of the GPUs, in random order;
none ever leaves; one that does not fit is dropped. What counts is the share of all GPUs that is allocated when 100 %
and 130 % have arrived. A pod may ask for a part of one GPU, so a node is the list of what is idle on its devices.

Rules: `FGD` grows the expected fragments least, as published: its score is cut to 0..100 and of equal ones the first
node counts, so that its figure depends on the order of the nodes (the file's, as published; or shuffled). `BestFit`,
`DotProd` and `Random` as in the paper. `Muster` is the product's rule (least harm, `engine.topology.harm`;
racks by `engine.topology.pack`) with parts of devices, which the product itself does not offer.

The gang variants: half of the load comes as gangs with the sizes of the Philly trace (drawn by their running time, as
one finds them at a moment), in pods of up to 8 GPUs, all or none. In `gangs` they may stand anywhere; in
`gangs_in_racks` one of more than a node asks for a rack of 16 nodes, and a rule other than Muster's tries the racks in
the order in which it likes their nodes. Beside the share they measure how much of what large gangs asked for was
placed, how many racks one spans, and the largest gang of pods of 8 GPUs that could still start, within one rack and
anywhere.

    --traces DIR      where the traces are (default: ../shared/traces)
    --workloads a,b   of openb_pods_<w>.csv.gz; `all` for all of them (default: default)
    --seeds N --orders N   (default: 10 and 5; FGD and Muster run under each order, and in the order of the file)
    --quick           2 seeds, 2 orders

Writes build/bench/placement.json, and the curves to placement.csv and placement.svg beside it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from admission.engine import topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WHOLE = 1000
MOST_GPUS = 8
RACK = 16
LEVELS = tuple(range(10, 131, 10))
OUT = Path("build/bench")


# ---------------------------------------------------------------- what the traces say


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods that ask for the same."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    """Of each GPU."""
    models: frozenset[str]
    """Which GPUs will do; empty: any."""

    @property
    def asks(self) -> int:
        """GPU milli in all."""
        return self.gpus * self.milli


@dataclass
class Trace:
    kinds: list[Kind]
    pods: Ints
    """Per pod of the trace its kind."""


def load_nodes(folder: Path) -> list[dict[str, Any]]:
    with (folder / "openb_nodes_gpu.csv").open() as file:
        return [
            {"cpu": int(r["cpu_milli"]), "memory": int(r["memory_mib"]), "gpus": int(r["gpu"]), "model": r["model"]}
            for r in csv.DictReader(file)
        ]


def load_trace(folder: Path, workload: str) -> Trace:
    kinds: dict[Kind, int] = {}
    pods = []
    with gzip.open(folder / f"openb_pods_{workload}.csv.gz", "rt") as file:
        for r in csv.DictReader(file):
            gpus = int(r["num_gpu"])
            kind = Kind(
                int(r["cpu_milli"]),
                int(r["memory_mib"]),
                gpus,
                int(r["gpu_milli"] or 0) if gpus else 0,
                frozenset(filter(None, (r.get("gpu_spec") or "").split("|"))),
            )
            pods.append(kinds.setdefault(kind, len(kinds)))
    return Trace(list(kinds), np.array(pods))


def philly(folder: Path) -> tuple[Ints, Floats]:
    """(sizes in GPUs, running seconds) of its jobs."""
    with gzip.open(folder / "philly_jobs.csv.gz", "rt") as file:
        rows = [(int(r["gpus"]), float(r["duration_s"])) for r in csv.DictReader(file)]
    return np.array([g for g, _ in rows]), np.array([d for _, d in rows])


# ---------------------------------------------------------------- nodes with devices


class Fragments:
    """What a placement does to the fragments of a node, for all pods at once; kept by the node's state.

    A state is (model, idle CPU, idle milli of each GPU ascending, padded in front by zeros). Of a fragment as the paper
    has it: for a kind that fits, what is idle on GPUs with less idle than it needs of one; for one that does not, or
    that needs no GPU, all idle GPU. The mean goes over the typical kinds by popularity; `by_need` counts who asks for a
    part of a device the more, the smaller the part, and nobody who asks for none, for he cannot lack one. With no
    popularity, for rules that do not look at fragments, they never grow.

    Kinds that differ in memory alone are one sort: `sort` has it for each kind, answers are per sort.
    """

    def __init__(
        self, kinds: list[Kind], popularity: Counter[int], *, by_need: bool = False, share: float = 0.95
    ) -> None:
        sorts: dict[tuple[int, int, int, frozenset[str]], int] = {}
        self.sort = [sorts.setdefault((k.cpu, k.gpus, k.milli, k.models), len(sorts)) for k in kinds]
        self.cpu = np.array([k[0] for k in sorts])
        self.gpus = np.array([k[1] for k in sorts])
        self.milli = np.array([k[2] for k in sorts])
        self.models = [k[3] for k in sorts]
        self.shares = (self.gpus == 1) & (self.milli < WHOLE)
        self.parts = np.unique(self.milli[self.shares])
        self.part = np.searchsorted(self.parts, self.milli[self.shares])
        """Per sort that shares a device its place in `parts`."""
        merged: Counter[tuple[int, int, int, frozenset[str]]] = Counter()
        of = list(sorts)
        for i, n in popularity.items():
            merged[of[self.sort[i]]] += n
        typical, seen, total = [], 0, sum(merged.values())
        for key, n in sorted(merged.items(), key=lambda e: (-e[1], e[0][:3], sorted(e[0][3]))):
            if seen >= share * total:
                break
            typical.append((key, n))
            seen += n
        self.t_cpu = np.array([k[0] for k, _ in typical], dtype=np.int64)
        self.t_gpus = np.array([k[1] for k, _ in typical], dtype=np.int64)
        self.t_models = [k[3] for k, _ in typical]
        self.millis = np.array(sorted({k[2] for k, _ in typical}), dtype=np.int64)
        self.t_milli = np.searchsorted(self.millis, [k[2] for k, _ in typical])
        # Whole numbers, so that equal growth is equal to the last bit.
        self.weight = np.array([n for _, n in typical], dtype=np.float64)
        if by_need:
            milli = self.millis[self.t_milli]
            self.weight = np.where(milli > 0, self.weight * WHOLE / np.maximum(milli, 1), 0.0)
        self.scale = max(1.0, float(self.weight.sum()))
        self._may: dict[str, tuple[NDArray[np.bool_], NDArray[np.bool_]]] = {}
        self._known: dict[tuple[str, int, tuple[int, ...]], tuple[Floats, Ints]] = {}

    def may(self, model: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which sorts, and which typical kinds, may use GPUs of a model."""
        if model not in self._may:
            both = (self.models, self.t_models)
            of, typical = (np.array([not m or model in m for m in some], dtype=np.bool_) for some in both)
            self._may[model] = of, typical
        return self._may[model]

    def amount(self, model: str, cpu: Ints, idle: Ints) -> Floats:
        """Fragments, in GPU milli times `scale`, with each idle CPU and each row of devices: cpu [C], idle [D, 8]."""
        small = idle[:, None, :] < self.millis[None, :, None]
        below = np.where(small, idle[:, None, :], 0).sum(axis=2)[:, self.t_milli]
        enough = (MOST_GPUS - small.sum(axis=2))[:, self.t_milli] >= self.t_gpus
        fits = enough & (self.t_gpus > 0) & self.may(model)[1]
        whole = idle.sum(axis=1)[:, None]
        spared = np.where(fits, below - whole, 0) * self.weight
        out: Floats = (cpu[:, None] >= self.t_cpu).astype(np.float64) @ spared.T + whole.T * self.weight.sum()
        return out

    def deltas(self, model: str, cpu: int, idle: tuple[int, ...]) -> tuple[Floats, Ints]:
        """Per sort: how much the fragments grow when one stands here (inf: it does not fit), and on which device (-1:
        on whole GPUs, or none). Of equal devices (by `cut`) the fullest."""
        key = (model, cpu, idle)
        got = self._known.get(key)
        if got is not None:
            return got
        now = np.array(idle)
        free = int((now == WHOLE).sum())
        distinct = np.array(
            [i for i in range(MOST_GPUS) if now[i] and (i == 0 or now[i] != now[i - 1])], dtype=np.int64
        )
        # The devices afterwards: with 0, 1, ... whole ones gone, then with each part gone from each that differs.
        whole = np.tile(now, (free + 1, 1))
        whole[np.arange(MOST_GPUS)[None, :] >= MOST_GPUS - np.arange(free + 1)[:, None]] = 0
        part = np.tile(now, (len(self.parts), len(distinct), 1))
        part[:, np.arange(len(distinct)), distinct] -= self.parts[:, None]
        after = np.concatenate([whole, part.reshape(-1, MOST_GPUS)])
        left = self.amount(model, np.append(cpu - self.cpu, cpu), after)
        grown = (left[:-1] - left[-1, 0]) / self.scale
        may = (self.cpu <= cpu) & self.may(model)[0]
        growth = np.full(len(self.cpu), np.inf)
        device = np.full(len(self.cpu), -1)
        fits = np.flatnonzero(may & ~self.shares & (self.gpus <= free))
        growth[fits] = grown[fits, self.gpus[fits]]
        if len(distinct):
            shares = np.flatnonzero(self.shares)
            at = free + 1 + self.part[:, None] * len(distinct) + np.arange(len(distinct))
            each = grown[shares[:, None], at]
            rating = np.where(now[distinct] >= self.milli[shares][:, None], cut(each), -1)
            best = rating.argmax(axis=1)
            rows = np.arange(len(shares))
            some = may[shares] & (rating[rows, best] >= 0)
            growth[shares[some]] = each[rows, best][some]
            device[shares[some]] = distinct[best][some]
        if len(self._known) > 100_000:
            self._known.clear()
        self._known[key] = (growth, device)
        return growth, device


def cut(growth: Floats) -> Floats:
    """The published score: whole numbers from 0 to 100."""
    out: Floats = np.floor(100 / (1 + np.exp(growth / 1000)))
    return out


def racks(nodes: list[dict[str, Any]]) -> list[int]:
    """Per node its rack: 16 nodes with equal GPUs, in the order of the file (the trace has no racks of its own)."""
    seen: Counter[tuple[str, int]] = Counter()
    number: dict[tuple[str, int, int], int] = {}
    out = []
    for node in nodes:
        sort = (node["model"], node["gpus"])
        out.append(number.setdefault((*sort, seen[sort] // RACK), len(number)))
        seen[sort] += 1
    return out


class Cluster:
    """Nodes in some order, and what is idle on them. `order` lists rows of the node file."""

    def __init__(self, nodes: list[dict[str, Any]], order: Iterable[int], frag: Fragments) -> None:
        rows = list(order)
        rack_of = racks(nodes)
        self.rack = np.array([rack_of[i] for i in rows])
        self.frag = frag
        self.models = [nodes[i]["model"] for i in rows]
        self.cpu = np.array([nodes[i]["cpu"] for i in rows])
        self.memory = np.array([nodes[i]["memory"] for i in rows])
        self.gpus = np.array([nodes[i]["gpus"] for i in rows])
        self.idle = np.zeros((len(rows), MOST_GPUS), dtype=np.int64)
        for i, gpus in enumerate(self.gpus.tolist()):
            self.idle[i, MOST_GPUS - gpus :] = WHOLE
        self.total = int(self.gpus.sum()) * WHOLE
        self.used = 0
        self._growth = np.empty((len(frag.cpu), len(rows)))
        for row in range(len(rows)):
            self.refresh(row)

    def growth(self, kind: int) -> Floats:
        """Per node: how much its fragments grow by a pod of this kind; inf: it has no room for one, memory aside."""
        out: Floats = self._growth[self.frag.sort[kind]]
        return out

    def refresh(self, row: int) -> None:
        self._growth[:, row] = self.frag.deltas(self.models[row], int(self.cpu[row]), tuple(self.idle[row].tolist()))[0]

    def keep(self, row: int) -> tuple[int, int, int, Ints, int]:
        return row, int(self.cpu[row]), int(self.memory[row]), self.idle[row].copy(), self.used

    def restore(self, kept: tuple[int, int, int, Ints, int]) -> None:
        row, self.cpu[row], self.memory[row], self.idle[row], self.used = kept
        self.refresh(row)

    def fits(self, kind: int, memory: int) -> NDArray[np.bool_]:
        out: NDArray[np.bool_] = np.isfinite(self.growth(kind)) & (self.memory >= memory)
        return out

    def put(self, row: int, number: int, kind: Kind) -> None:
        idle = tuple(self.idle[row].tolist())
        device = int(self.frag.deltas(self.models[row], int(self.cpu[row]), idle)[1][self.frag.sort[number]])
        if device >= 0:
            self.idle[row, device] -= kind.milli
            self.idle[row].sort()
        elif kind.gpus:
            self.idle[row, MOST_GPUS - kind.gpus :] = 0
            self.idle[row].sort()
        self.cpu[row] -= kind.cpu
        self.memory[row] -= kind.memory
        self.used += kind.asks
        self.refresh(row)


# ---------------------------------------------------------------- rules

Rng = np.random.Generator


def fgd(cluster: Cluster, number: int, kind: Kind, rows: Ints, rng: Rng) -> int:
    return int(rows[cut(cluster.growth(number)[rows]).argmax()])


def best_fit(cluster: Cluster, number: int, kind: Kind, rows: Ints, rng: Rng) -> int:
    left = (cluster.cpu[rows] - kind.cpu) / 128_000 + (cluster.idle[rows].sum(axis=1) - kind.asks) / 8_000
    return int(rows[np.floor(100 * (1 - left / 2)).argmax()])


def dot_product(cluster: Cluster, number: int, kind: Kind, rows: Ints, rng: Rng) -> int:
    dot = cluster.cpu[rows] / 128_000 * kind.cpu / 128_000 + cluster.idle[rows].sum(axis=1) / 8_000 * kind.asks / 8_000
    return int(rows[np.floor(100 * (1 - dot / 2)).argmax()])


def at_random(cluster: Cluster, number: int, kind: Kind, rows: Ints, rng: Rng) -> int:
    return int(rows[rng.integers(len(rows))])


STEP = 80
"""GPU milli: growth of fragments within one step is equal to Muster's rule."""


def muster(cluster: Cluster, number: int, kind: Kind, rows: Ints, rng: Rng) -> int:
    """Least harm, as `engine.topology.harm` measures it, here with parts of devices; then no node that is wholly idle;
    then the first in rack order."""
    steps = np.ceil(np.round(cluster.growth(number)[rows] / STEP, 9))
    untouched = cluster.idle[rows].sum(axis=1) == cluster.gpus[rows] * WHOLE
    return int(rows[np.lexsort([rows, cluster.rack[rows], untouched, steps])[0]])


Rule = Callable[[Cluster, int, Kind, Ints, Rng], int]
RULES: dict[str, Rule] = {
    "FGD": fgd,
    "BestFit": best_fit,
    "DotProd": dot_product,
    "Random": at_random,
    "Muster": muster,
}
BY_FRAGMENTS = ("FGD", "Muster")


# ---------------------------------------------------------------- arrivals


@dataclass
class Arrivals:
    kinds: list[Kind]
    popularity: Counter[int]
    order: list[tuple[int, int]]
    """(kind, pods): one after the other."""


def singles(trace: Trace, total: int, rng: Rng) -> Arrivals:
    asks = np.array([kind.asks for kind in trace.kinds])
    pods = trace.pods.tolist()
    asked = int(asks[trace.pods].sum())
    while asked < 1.3 * total:
        kind = int(trace.pods[rng.integers(len(trace.pods))])
        pods.append(kind)
        asked += int(asks[kind])
    rng.shuffle(pods)
    return Arrivals(trace.kinds, Counter(trace.pods.tolist()), [(kind, 1) for kind in pods])


def with_gangs(trace: Trace, total: int, rng: Rng, sizes: Ints, seconds: Floats) -> Arrivals:
    """Half of the load single pods of the trace, half gangs."""
    of_size = {g: Kind(8_000 * g, 32_768 * g, g, WHOLE, frozenset()) for g in range(1, MOST_GPUS + 1)}
    kinds = [*trace.kinds, *of_size.values()]
    first = len(trace.kinds) - 1
    popularity = Counter(trace.pods.tolist())
    drawn = rng.choice(sizes, size=20_000, p=seconds / seconds.sum()).tolist()
    order: list[tuple[int, int]] = []
    alone = together = 0
    for size in drawn:
        if alone + together >= 1.3 * total:
            break
        each, pods = (size, 1) if size <= MOST_GPUS else (MOST_GPUS, -(-size // MOST_GPUS))
        order.append((first + each, pods))
        popularity[first + each] += pods
        together += each * pods * WHOLE
        while alone < together:
            kind = int(trace.pods[rng.integers(len(trace.pods))])
            order.append((kind, 1))
            alone += trace.kinds[kind].asks
    return Arrivals(kinds, popularity, order)


# ---------------------------------------------------------------- one run


@dataclass
class Run:
    workload: str
    rule: str
    seed: int
    order: int
    """-1: as in the file."""
    gangs: bool
    racks: bool = False
    """A gang of several pods must stand in one rack."""
    asked: int = 0
    """GPUs that gangs of several pods asked for; `placed` of them."""
    placed: int = 0
    spans: list[int] = field(default_factory=list)
    """Racks of each of them."""
    allocated: dict[int, float] = field(default_factory=dict)
    """Arrived GPU % -> allocated GPU %."""
    block: dict[int, int] = field(default_factory=dict)
    """Arrived GPU % -> GPUs of the largest gang that one rack could still take."""
    anywhere: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0


@cache
def _inputs(folder: Path, workload: str) -> tuple[list[dict[str, Any]], Trace, tuple[Ints, Floats]]:
    return load_nodes(folder), load_trace(folder, workload), philly(folder)


_FRAGMENTS: dict[tuple[Any, ...], Fragments] = {}


def fragments(key: tuple[Any, ...], arrivals: Arrivals, rule: str) -> Fragments:
    got = _FRAGMENTS.get(key)
    if got is None:
        if len(_FRAGMENTS) > 3:
            _FRAGMENTS.clear()
        seen = arrivals.popularity if rule in BY_FRAGMENTS else Counter[int]()
        got = _FRAGMENTS[key] = Fragments(arrivals.kinds, seen, by_need=rule == "Muster")
    return got


def play(folder: Path, run: Run) -> Run:
    began = time.perf_counter()
    nodes, trace, sizes = _inputs(folder, run.workload)
    rng = np.random.default_rng(run.seed)
    total = sum(node["gpus"] for node in nodes) * WHOLE
    arrivals = with_gangs(trace, total, rng, *sizes) if run.gangs else singles(trace, total, rng)
    own = run.rule == "Muster"
    looks = run.rule if run.rule in BY_FRAGMENTS else ""
    frag = fragments((run.workload, looks, run.seed if run.gangs else -1), arrivals, run.rule)
    count = len(nodes)
    order = range(count) if run.order < 0 else np.random.default_rng(1000 + run.order).permutation(count).tolist()
    cluster = Cluster(nodes, order, frag)
    tree = topology.grow(("rack", "node"), [cluster.rack], count)
    full = max(i for i, kind in enumerate(arrivals.kinds) if kind.gpus == MOST_GPUS and kind.milli == WHOLE)
    rule = RULES[run.rule]
    arrived = 0
    levels = iter((*LEVELS, 10**9))
    level = next(levels)
    refused: dict[tuple[int, int], int] = {}
    """Nothing ever leaves: what did not fit will not fit."""
    for number, pods in arrivals.order:
        kind = arrivals.kinds[number]
        arrived += kind.asks * pods
        if refused.get((number, 0), 10**9) > pods:
            kept: list[tuple[int, int, int, Ints, int]] = []
            rows = np.flatnonzero(cluster.fits(number, kind.memory))
            whole_gang = None
            if own and pods > 1:
                whole_gang = _by_racks(cluster, tree, number, kind, pods, rows, required=run.racks)
            elif run.racks and pods > 1:
                whole_gang = _in_one_rack(cluster, rule, number, kind, pods, rows, rng)
            for i in range(pods):
                if whole_gang is None:
                    rows = np.flatnonzero(cluster.fits(number, kind.memory)) if i else rows
                    at = rule(cluster, number, kind, rows, rng) if len(rows) else -1
                else:
                    at = whole_gang[i] if whole_gang else -1
                if at < 0:
                    for entry in reversed(kept):
                        cluster.restore(entry)
                    refused[number, 0] = pods
                    break
                kept.append(cluster.keep(at))
                cluster.put(at, number, kind)
            else:
                if pods > 1:
                    run.placed += kind.gpus * pods
                    run.spans.append(len({int(cluster.rack[entry[0]]) for entry in kept}))
        run.asked += kind.gpus * pods if pods > 1 else 0
        while arrived * 100 >= level * total:
            run.allocated[level] = cluster.used * 100 / total
            if run.gangs:
                free = np.bincount(cluster.rack, cluster.fits(full, arrivals.kinds[full].memory))
                run.block[level] = int(free.max()) * MOST_GPUS
                run.anywhere[level] = int(free.sum()) * MOST_GPUS
            level = next(levels)
    run.allocated.setdefault(130, cluster.used * 100 / total)
    run.seconds = time.perf_counter() - began
    return run


def _hold(cluster: Cluster, kind: Kind, rows: Ints) -> Ints:
    """Per node: how many pods of a gang it could take; of `rows` alone."""
    counts = np.zeros(len(cluster.cpu), dtype=np.int64)
    each = np.minimum(cluster.cpu[rows] // max(1, kind.cpu), cluster.memory[rows] // max(1, kind.memory))
    counts[rows] = np.minimum(each, (cluster.idle[rows] == WHOLE).sum(axis=1) // max(1, kind.gpus))
    return counts


def _in_one_rack(cluster: Cluster, rule: Rule, number: int, kind: Kind, pods: int, rows: Ints, rng: Rng) -> list[int]:
    """Where a rule for single pods puts a gang that asks for one rack: in the first that holds it, in the order in
    which the rule likes the nodes; empty: nowhere."""
    counts = _hold(cluster, kind, rows)
    holds = np.bincount(cluster.rack, counts)
    rows = rows[holds[cluster.rack[rows]] >= pods]
    if not len(rows):
        return []
    rack = cluster.rack[rule(cluster, number, kind, rows, rng)]
    kept: list[tuple[int, int, int, Ints, int]] = []
    out = []
    for _ in range(pods):
        here = np.flatnonzero(cluster.fits(number, kind.memory) & (cluster.rack == rack))
        at = rule(cluster, number, kind, here, rng)
        kept.append(cluster.keep(at))
        cluster.put(at, number, kind)
        out.append(at)
    for entry in reversed(kept):
        cluster.restore(entry)
    return out


def _by_racks(
    cluster: Cluster, tree: topology.Tree, number: int, kind: Kind, pods: int, rows: Ints, *, required: bool
) -> list[int]:
    """Where the product's packing puts a gang that would like one rack, or must have one; empty: nowhere."""
    counts = _hold(cluster, kind, rows)
    shape = topology.Shape(pods, required=0) if required else topology.Shape(pods, preferred=0)
    growth = cluster.growth(number)[tree.order]
    take = topology.pack(tree, topology.capacities(tree, counts[tree.order], shape), shape, [growth.__getitem__])
    return [int(tree.order[leaf]) for leaf, some in take or () for _ in range(some)]


# ---------------------------------------------------------------- all runs


def golden(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    out: dict[tuple[str, str], dict[int, float]] = {}
    with (folder / "fgd_golden.csv").open() as file:
        for r in csv.DictReader(file):
            if r["metric"] == "alloc_pct":
                out.setdefault((r["workload"], r["policy"]), {})[int(r["arrived_gpu_pct"])] = float(r["mean"])
    return out


def planned(workloads: list[str], seeds: int, orders: int) -> Iterator[Run]:
    for workload in workloads:
        for seed in range(42, 42 + seeds):
            for rule in RULES:
                for order in range(-1, orders if rule in BY_FRAGMENTS else 0):
                    yield Run(workload, rule, seed, order, gangs=False)
    for racks in (False, True):
        for seed in range(42, 42 + seeds):
            for rule in RULES:
                for order in range(-1, orders if rule in BY_FRAGMENTS else 0):
                    yield Run("default", rule, seed, order, gangs=True, racks=racks)


def _mean(values: Iterable[float]) -> float:
    return round(statistics.mean(values), 2)


def _said(values: list[float]) -> str:
    return f"{statistics.mean(values):6.2f} ±{statistics.pstdev(values):4.2f}"


def against(runs: list[Run]) -> dict[str, float]:
    """Muster's allocated share at 130 % less FGD's for the same arrivals and order of nodes, printed and returned: the
    mean, its standard error over the seeds, and of how many runs each was ahead."""
    of = {rule: {(r.seed, r.order): r.allocated[130] for r in runs if r.rule == rule} for rule in BY_FRAGMENTS}
    ahead = {run: round(of["Muster"][run] - of["FGD"][run], 9) for run in of["FGD"]}
    seeds = [statistics.mean(d for (s, _), d in ahead.items() if s == seed) for seed in {s for s, _ in ahead}]
    error = statistics.stdev(seeds) / len(seeds) ** 0.5 if len(seeds) > 1 else 0.0
    mean, more, less = statistics.mean(seeds), sum(d > 0 for d in ahead.values()), sum(d < 0 for d in ahead.values())
    print(f"  Muster less FGD, run by run, at 130 %: {mean:+.3f} (error {error:.3f}), more in {more}, less in {less}")
    return {"ahead_of_fgd_pct": round(mean, 3), "ahead_error": round(error, 3), "runs_ahead": more, "runs_behind": less}


def summary(runs: list[Run], published: dict[tuple[str, str], dict[int, float]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for workload in dict.fromkeys(run.workload for run in runs if not run.gangs):
        entry: dict[str, Any] = {}
        print(f"\n{workload}: allocated GPU % when 100 % and 130 % have arrived (mean ± deviation over runs)")
        for rule in RULES:
            mine = [r for r in runs if r.workload == workload and r.rule == rule and not r.gangs]
            name = {"Muster": "", "FGD": "fgd_", "BestFit": "best_fit_", "DotProd": "dot_product_", "Random": "random_"}
            word = published.get((workload, rule), {})
            for what, some in (("file", [r for r in mine if r.order < 0]), ("", [r for r in mine if r.order >= 0])):
                if not some:
                    continue
                key = name[rule] + ("file_order_" if what and rule in BY_FRAGMENTS else "")
                entry[f"{key}allocated_pct_at_100"] = _mean(r.allocated[100] for r in some)
                entry[f"{key}allocated_pct_at_130"] = _mean(r.allocated[130] for r in some)
                told = f"published {word[100]:6.2f} {word[130]:6.2f}" if what and word else ""
                orders = "order of the file" if what else f"{len({r.order for r in some})} other orders"
                at = [_said([r.allocated[n] for r in some]) for n in (100, 130)]
                print(f"  {rule:8} {orders:18} {at[0]}   {at[1]}   {len(some):3} runs   {told}")
            if word:
                entry[f"golden_{rule.lower()}_allocated_pct_at_130"] = round(word[130], 2)
        singles = [r for r in runs if r.workload == workload and not r.gangs]
        out[workload] = entry | against(singles)
    for racks, title in ((False, "gangs"), (True, "gangs_in_racks")):
        gangs = [run for run in runs if run.gangs and run.racks is racks]
        if not gangs:
            continue
        entry = {}
        print(
            f"\n{title}: allocated GPU % at 100 and 130 %; largest gang in one rack | anywhere, at 50, 70 and 90 % "
            "arrived; GPUs of large gangs placed, %; racks of one"
        )
        for rule in RULES:
            mine = [run for run in gangs if run.rule == rule]
            at = [_said([r.allocated[n] for r in mine]) for n in (100, 130)]
            blocks = [(_mean(r.block[n] for r in mine), _mean(r.anywhere[n] for r in mine)) for n in (50, 70, 90)]
            key = "" if rule == "Muster" else f"{rule.lower()}_"
            entry[f"{key}allocated_pct_at_100"] = _mean(r.allocated[100] for r in mine)
            entry[f"{key}allocated_pct_at_130"] = _mean(r.allocated[130] for r in mine)
            for n, (block, anywhere) in zip((50, 70, 90), blocks, strict=True):
                entry[f"{key}largest_in_rack_at_{n}"] = block
                entry[f"{key}largest_anywhere_at_{n}"] = anywhere
            said = "   ".join(f"{block:5.0f} | {anywhere:5.0f}" for block, anywhere in blocks)
            started = entry[f"{key}large_gangs_placed_pct"] = _mean(r.placed * 100 / r.asked for r in mine)
            spans = entry[f"{key}racks_of_a_gang"] = _mean(n for r in mine for n in r.spans)
            print(f"  {rule:8} {at[0]}   {at[1]}   {said}   {started:6.2f}   {spans:.2f}")
        out[title] = entry | against(gangs)
    return out


MARKS = {"Muster": "M", "FGD": "F", "BestFit": "B", "DotProd": "D", "Random": "R"}


def curves(runs: list[Run]) -> dict[str, list[float]]:
    one = [run for run in runs if run.workload == runs[0].workload and not run.gangs]
    return {rule: [_mean(r.allocated[n] for r in one if r.rule == rule) for n in LEVELS] for rule in RULES}


def plot(runs: list[Run]) -> None:
    """Unallocated share over arrived share, as far as they differ: in text, and as a drawing."""
    shown = curves(runs)
    path = OUT / "placement.csv"
    with path.open("w") as file:
        file.write(",".join(("arrived_pct", *shown)) + "\n")
        for i, n in enumerate(LEVELS):
            file.write(",".join((str(n), *(str(values[i]) for values in shown.values()))) + "\n")
    print(f"\nGPUs of the cluster that are not allocated, %, over arrived % ({runs[0].workload})")
    late = [n for n in LEVELS if n >= 80]
    high = 22
    for line in range(high, -1, -2):
        row = ""
        for n in late:
            here = [m for rule, m in MARKS.items() if line - 1 <= 100 - shown[rule][LEVELS.index(n)] < line + 1]
            row += f"{''.join(here):^10}"
        print(f"{line:4} |{row}")
    print("     +" + "-" * 10 * len(late) + "\n      " + "".join(f"{n:^10}" for n in late))
    print("      " + "  ".join(f"{mark} {rule}" for rule, mark in MARKS.items()))
    (OUT / "placement.svg").write_text(_svg(shown, late, high))


COLOURS = {"Muster": "#0b6e4f", "FGD": "#c1121f", "BestFit": "#3a5a98", "DotProd": "#b08900", "Random": "#777777"}


def _svg(shown: dict[str, list[float]], late: list[int], high: int) -> str:
    """The same curves as a drawing, Muster's on top."""
    wide, tall, left, top = 560, 320, 50, 16

    def x(arrived: float) -> float:
        return round(left + (arrived - late[0]) / (late[-1] - late[0]) * wide, 1)

    def y(idle: float) -> float:
        return round(top + (1 - min(idle, high) / high) * tall, 1)

    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 100}" height="{top + tall + 46}"'
            ' font-family="sans-serif" font-size="12">'
        ),
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for idle in range(0, high + 1, 4):
        out.append(f'<line x1="{left}" x2="{left + wide}" y1="{y(idle)}" y2="{y(idle)}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(idle) + 4}" text-anchor="end">{idle}</text>')
    out += [f'<text x="{x(n)}" y="{top + tall + 18}" text-anchor="middle">{n}</text>' for n in late]
    out.append(f'<text x="{left + wide / 2}" y="{top + tall + 38}" text-anchor="middle">arrived, % of GPUs</text>')
    middle = top + tall / 2
    turned = f'transform="rotate(-90 14 {middle})" text-anchor="middle"'
    out.append(f'<text x="14" y="{middle}" {turned}>not allocated, % of GPUs</text>')
    for rule, values in sorted(shown.items(), key=lambda item: -item[1][-1]):
        points = " ".join(f"{x(n)},{y(100 - values[LEVELS.index(n)])}" for n in late)
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[rule]}" stroke-width="2"/>')
    above = float(top + tall)
    for rule, values in sorted(shown.items(), key=lambda item: -item[1][-1]):
        above = min(y(100 - values[-1]), above - 14)
        out.append(f'<text x="{left + wide + 8}" y="{above + 4}" fill="{COLOURS[rule]}">{rule}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("MUSTER_TRACES") or Path(__file__).resolve().parents[2].parent / "shared" / "traces"
    parser.add_argument("--traces", type=Path, default=Path(default))
    parser.add_argument("--workloads", default="default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    said = parser.parse_args()
    if not (said.traces / "openb_nodes_gpu.csv").exists():
        print(f"no traces in {said.traces}: say where with --traces or MUSTER_TRACES", file=sys.stderr)
        return 2
    there = sorted(p.name[len("openb_pods_") : -len(".csv.gz")] for p in said.traces.glob("openb_pods_*.csv.gz"))
    workloads = there if said.workloads == "all" else said.workloads.split(",")
    seeds, orders = (2, 2) if said.quick else (said.seeds, said.orders)
    todo = list(planned(workloads, seeds, orders))
    began = time.monotonic()
    done: list[Run] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for future in as_completed([pool.submit(play, said.traces, run) for run in todo]):
            done.append(future.result())
            if sys.stderr.isatty() or len(done) % 20 == 0 or len(done) == len(todo):
                left = (time.monotonic() - began) / len(done) * (len(todo) - len(done))
                end = "\r" if sys.stderr.isatty() and len(done) < len(todo) else "\n"
                print(f"{len(done):4} of {len(todo)} runs, {left:4.0f} s left ", end=end, file=sys.stderr, flush=True)
    done.sort(key=lambda r: (workloads.index(r.workload), r.gangs, r.racks, r.rule, r.seed, r.order))
    OUT.mkdir(parents=True, exist_ok=True)
    out = summary(done, golden(said.traces))
    plot(done)
    out["runs"] = {"seeds": seeds, "orders": orders, "seconds": round(time.monotonic() - began, 1)}
    (OUT / "placement.json").write_text(json.dumps(out, indent=1) + "\n")
    print(f"\nwritten: {OUT}/placement.json, placement.csv, placement.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
