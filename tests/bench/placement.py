"""python -m tests.bench.placement: how long placement takes, beside the plain form of the same rule.

Prints one line per question and writes build/bench/placement_speed.json. Times are of the CPU, for a busy machine does
not change them much: the median of several runs, each on a book that has just changed (one gang charged), as it does
in a cycle.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from admission.engine.capacity import Capacity, Placement, PlaceRequest, place
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admission,
    Flavor,
    Node,
    PodSet,
    PodSetAssignment,
    PodShape,
    Put,
    Requirement,
    Rules,
    Taint,
    Toleration,
    Topology,
    TopologyRequest,
    Workload,
)
from tests.bench.engine import NOW, Size, Tally, as_the_controller, queue_name, settle, town
from tests.engine import placement_oracle as oracle

GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
FLAVOR = Flavor("gpu", node_labels=(("pool", "gpu"),), topology="net")
PER_POD = (("cpu", 8000), ("memory", 64 * 2**30), (GPU, 1))


def nodes(number: int) -> list[Node]:
    """Blocks of 500 nodes, racks of 50, 8 GPUs a node, three zones; some nodes have lost devices, some are tainted,
    some cordoned."""
    return [
        Node(
            name=f"n{i:05}",
            labels=(
                ("block", f"b{i // 500:03}"),
                (HOST, f"n{i:05}"),
                ("pool", "gpu"),
                ("rack", f"r{i // 50:04}"),
                ("zone", f"z{i // 50 % 3}"),
            ),
            taints=(Taint("reserved", "yes", "NoSchedule"),) if i % 10 == 9 else (),
            unschedulable=i % 500 == 77,
            allocatable=(("cpu", 96_000), ("memory", 2**40), (GPU, 8 - (i * 7919 % 11 == 0)), ("pods", 110)),
        )
        for i in range(number)
    ]


def book(of: list[Node]) -> Capacity:
    out = Capacity()
    out.put_topology(Topology("net", ("block", "rack", HOST)))
    for node in of:
        out.put_node(node)
    return out


def gang(name: str, count: int, asked: TopologyRequest | None = None, **shape: Any) -> PlaceRequest:
    return PlaceRequest(PodSet(name, count, PodShape(**shape), topology=asked), count, PER_POD, (FLAVOR,))


CHOOSY: dict[str, Any] = {
    "node_selector": (("zone", "z1"),),
    "affinity": ((Requirement("rack", "NotIn", ("r0001", "r0004")), Requirement("block", "Exists")),),
    "tolerations": (Toleration("reserved", "Equal", "yes", "NoSchedule"),),
}


def median_ms(run: Callable[[], object], times: int, between: Callable[[int], None] | None = None) -> float:
    out = []
    for i in range(times):
        if between is not None:
            between(i)
        start = time.process_time()
        run()
        out.append((time.process_time() - start) * 1e3)
    return statistics.median(out)


def charge(capacity: Capacity, key: str, request: PlaceRequest, rules: Rules = MUSTER) -> bool:
    got = place(capacity, [request], rules=rules, explain=False)
    if not isinstance(got, Placement):
        return False
    name = request.pod_set.name
    admission = Admission("q", (PodSetAssignment(name, (), (), request.count, got[name]),))
    capacity.charge(("bench", key), key, admission, {name: dict(request.per_pod)})
    return True


def questions(number: int) -> dict[str, dict[str, float]]:
    of = nodes(number)
    capacity = book(of)
    start = time.process_time()
    assert charge(capacity, "first", gang("w", 512))
    cold = (time.process_time() - start) * 1e3
    out: dict[str, dict[str, float]] = {"cold, 512 pods": {"ms": cold}}
    small = gang("s", 3)

    def change(i: int) -> None:
        if not charge(capacity, f"c{i % 50}", small):
            capacity.release(("bench", f"c{i % 50}"))

    mixed = [gang("leader", 1), gang("workers", 511)]
    together = TopologyRequest(required="block", group="g")
    grouped = [gang("leader", 1, together), gang("workers", 511, together)]
    asked: dict[str, tuple[list[PlaceRequest], Rules]] = {
        "1 pod": ([gang("w", 1)], MUSTER),
        "64 pods": ([gang("w", 64)], MUSTER),
        "512 pods": ([gang("w", 512)], MUSTER),
        "512 pods, block required": ([gang("w", 512, TopologyRequest(required="block"))], MUSTER),
        "512 pods, block required, slices of 8 per rack": (
            [gang("w", 512, TopologyRequest(required="block", slice_required="rack", slice_size=8))],
            MUSTER,
        ),
        "512 pods, selector, affinity, toleration": ([gang("w", 512, **CHOOSY)], MUSTER),
        "512 pods, selector, affinity, toleration, block required": (
            [gang("w", 512, TopologyRequest(required="block"), **CHOOSY)],
            MUSTER,
        ),
        "512 pods, unconstrained": ([gang("w", 512, TopologyRequest(unconstrained=True))], MUSTER),
        "1 + 511 pods": (mixed, MUSTER),
        "1 + 511 pods, one group, block required": (grouped, MUSTER),
        "512 pods, block required, Kueue's rule": ([gang("w", 512, TopologyRequest(required="block"))], KUEUE),
        "no room: 100,000 pods": ([gang("w", 100_000)], MUSTER),
    }
    for name, (requests, rules) in asked.items():
        out[name] = {"ms": median_ms(lambda r=requests, u=rules: place(capacity, r, rules=u), 21, change)}  # type: ignore[misc]
    cluster = oracle.Cluster(of, [], [Topology("net", ("block", "rack", HOST))])
    for name in (
        "1 pod",
        "64 pods",
        "512 pods",
        "512 pods, block required",
        "512 pods, selector, affinity, toleration, block required",
    ):
        plain = median_ms(lambda r=asked[name][0][0]: oracle.pack(cluster, r), 3)  # type: ignore[misc]
        out[name]["plain_ms"] = plain
        out[name]["ratio"] = plain / out[name]["ms"]
    node = of[number // 2]
    out["node update (labels alike)"] = {"ms": median_ms(lambda: capacity.put_node(node), 21)}
    flip = [Node(node.name, node.labels, (), node.allocatable, ready=bool(i % 2)) for i in range(2)]
    turn = iter(range(1000))
    out["node goes or comes, then 512 pods"] = {
        "ms": median_ms(lambda: (capacity.put_node(flip[next(turn) % 2]), place(capacity, mixed[1:], rules=MUSTER)), 11)
    }

    def join() -> None:
        capacity.remove_node(node.name)
        capacity.put_node(node)
        place(capacity, mixed[1:], rules=MUSTER)

    out["node removed and added, then 512 pods"] = {"ms": median_ms(join, 7)}
    return out


def backlog(number: int, gangs: int, shapes: int) -> dict[str, float]:
    """Many gangs of few shapes, placed and charged one after the other until nothing fits."""
    capacity = book(nodes(number))
    asked = [gang(f"w{i}", 1 + i * 5 % 23 if i % 4 else 8 * (1 + i % 9)) for i in range(shapes)]
    start = time.process_time()
    placed = 0
    full: set[int] = set()
    for i in range(gangs):
        if i % shapes in full:
            continue
        if charge(capacity, str(i), asked[i % shapes]):
            placed += 1
        else:
            full.add(i % shapes)
    return {"seconds": time.process_time() - start, "gangs": gangs, "placed": placed}


def decided(number: int, gangs: int, shapes: int, *, waited_ms: int = 0) -> dict[str, float]:
    """The same through whole cycles, with 100 queues that have quota for these nodes: until nothing more is decided.
    The gangs came one a millisecond, the last of them `waited_ms` ago."""
    size = Size(queues=100, cohorts=10, nodes=number, pending=gangs)
    state = town(size)
    for i in range(gangs):
        shape = i % shapes
        pods = 1 + shape * 5 % 23 if shape % 4 else 8 * (1 + shape % 9)
        sets = (PodSet("main", pods, PodShape(requests=PER_POD)),)
        came = NOW - waited_ms - gangs + i
        state.apply(
            Put(Workload("ns", f"g{i:05}", uid=f"u{i:05}", queue=queue_name(i % 100), pod_sets=sets, created=came))
        )
    tally = Tally()
    settle(state, NOW, tally)
    return {"seconds": tally.seconds, "gangs": gangs, "placed": tally.admitted, "cycles": tally.cycles}


def main() -> int:
    as_the_controller()
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    result = {
        "nodes": number,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "questions": questions(number),
        "backlog": backlog(number, 10_000, 50),
        "decided": decided(number, 10_000, 50),
        "decided_passed_over": decided(number, 10_000, 50, waited_ms=3_600_000),
    }
    for name, row in result["questions"].items():  # type: ignore[attr-defined]
        plain = f"   plain {row['plain_ms']:9.2f} ms   x{row['ratio']:.0f}" if "ratio" in row else ""
        print(f"{name:56} {row['ms']:9.3f} ms{plain}")
    print("backlog", result["backlog"])
    for which in ("decided", "decided_passed_over"):
        print(which, result[which])
    path = Path("build/bench/placement_speed.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
