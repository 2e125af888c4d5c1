"""Gangs that lost a node, in the line of their queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from admission.engine.cycle import decide
from admission.engine.model import (
    MUSTER,
    Admission,
    Admit,
    ClusterQueue,
    Domain,
    Flavor,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    PodSet,
    PodSetAssignment,
    PodShape,
    Put,
    Quota,
    ResourceGroup,
    TopologyAssignment,
    Workload,
)
from admission.engine.state import State


def test_whoever_lost_a_node_comes_back_before_newcomers_and_nobody_claims_its_room() -> None:
    state = State(MUSTER)
    gpu, host = "nvidia.com/gpu", "kubernetes.io/hostname"
    nodes = [Node(f"n{i}", ((host, f"n{i}"),), (), ((gpu, 8), ("pods", 10))) for i in range(5)]
    group = ResourceGroup((gpu,), (FlavorQuotas("f", ((gpu, Quota(320)),)),))
    queue = ClusterQueue("q", groups=(group,), namespace_selector=LabelSelector())
    for value in (Namespace("a", ()), *nodes, Flavor("f"), queue, LocalQueue("a", "main", "q")):
        state.apply(Put(value))

    def gang(name: str, pods: int, **said: Any) -> Workload:
        shape = PodShape(requests=((gpu, 8),))
        return Workload("a", name, uid=name, queue="main", pod_sets=(PodSet("main", pods, shape),), **said)

    def on(name: str, *hosts: str) -> Workload:
        topology = TopologyAssignment((host,), tuple(Domain((h,), 1) for h in hosts))
        got = PodSetAssignment("main", ((gpu, "f"),), ((gpu, 8 * len(hosts)),), len(hosts), topology)
        held = Admission("q", (got,))
        return gang(name, len(hosts), created=100, admission=held, reserved_at=200, admitted=True, admitted_at=200)

    state.apply(Put(replace(on("one", "n0", "n1"), evicted="NodeFailures", evicted_at=400, queue_stamp=0)))
    state.apply(Put(replace(nodes[0], ready=False, lost_since=300)))
    state.apply(Put(on("two", "n4")))
    for name in ("older", "newer"):
        state.apply(Put(gang(name, 3, created=50 if name == "older" else 300)))
    first = decide(state, 500, 1000)
    assert not first.decisions, "the room of a gang that comes back is nobody's to claim"
    state.apply(Put(gang("one", 2, created=100, evicted="NodeFailures", evicted_at=400, queue_stamp=0)))
    plan = decide(state, 600, 1000)
    assert [(type(d), d.key) for d in plan.decisions] == [(Admit, ("a", "one"))]
    (decision,) = plan.decisions
    assert isinstance(decision, Admit)
    assert decision.waited_ms < 1000
