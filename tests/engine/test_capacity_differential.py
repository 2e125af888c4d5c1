"""Placement against brute force, against the plain form of the rule, and against its own promises."""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine.capacity import Capacity, Placement, PlaceRequest, place, takes
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admission,
    AntiAffinity,
    Exclusive,
    Flavor,
    LabelSelector,
    Misfit,
    Node,
    PodSet,
    PodSetAssignment,
    PodShape,
    PodUsage,
    Requirement,
    Taint,
    Toleration,
    Topology,
    TopologyAssignment,
    TopologyRequest,
)
from tests.engine import placement_oracle as oracle
from tests.engine.placement_oracle import Cluster

GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
FLAVOR = Flavor("f", topology="t")
EXAMPLES = 2000 if os.environ.get("THOROUGH") else 250

labels_of = st.fixed_dictionaries(
    {
        "block": st.sampled_from(["b0", "b0", "b1", ""]),
        "rack": st.sampled_from(["r0", "r0", "r1", "r1", "r2", ""]),
        "zone": st.sampled_from(["x", "x", "x", "y", "7", ""]),
    }
)
taints = st.sampled_from(
    [Taint("k", "v", "NoSchedule"), Taint("k", "w", "NoExecute"), Taint("soft", "", "PreferNoSchedule")]
)


@st.composite
def node_lists(draw: st.DrawFn, most: int = 5) -> list[Node]:
    out = []
    for i in range(draw(st.integers(1, most))):
        name = f"n{i}"
        labels = {HOST: name, **{key: value for key, value in draw(labels_of).items() if value}}
        out.append(
            Node(
                name=name,
                labels=tuple(sorted(labels.items())),
                taints=tuple(draw(st.lists(taints, max_size=1))) if draw(st.integers(0, 3)) == 0 else (),
                allocatable=(("cpu", draw(st.integers(1, 8))), (GPU, draw(st.integers(0, 5))), ("pods", 5)),
                ready=draw(st.integers(0, 9)) > 0,
                unschedulable=draw(st.integers(0, 9)) == 0,
            )
        )
    return out


anti_affinities = st.one_of(
    st.just(()),
    st.just(()),
    st.builds(
        lambda key, app: (AntiAffinity(key, LabelSelector((Requirement("app", "In", (app,)),)), ("ns",)),),
        st.sampled_from(["rack", "zone", HOST]),
        st.sampled_from(["llm", "web"]),
    ),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    nodes = draw(node_lists())
    pods = [
        PodUsage(
            key=("x", f"p{i}"),
            uid=f"p{i}",
            node=draw(st.sampled_from([node.name for node in nodes])),
            requests=(("cpu", draw(st.integers(0, 2))), (GPU, draw(st.integers(0, 1)))),
            apart=draw(anti_affinities),
        )
        for i in range(draw(st.integers(0, 3)))
    ]
    return Cluster(nodes, pods, [Topology("t", ("block", "rack", HOST))])


requirements = st.one_of(
    st.builds(
        Requirement,
        st.sampled_from(["zone", "rack", "metadata.name"]),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(["x", "y", "r0", "n0", "n1"]), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(Requirement, st.sampled_from(["zone", "rack"]), st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(Requirement, st.just("zone"), st.sampled_from(["Gt", "Lt"]), st.sampled_from([("6",), ("8",), ("q",)])),
)


@st.composite
def shapes(draw: st.DrawFn, affine: bool) -> PodShape:
    rare = st.integers(0, 5)
    return PodShape(
        node_selector=(("zone", "x"),) if draw(rare) == 0 else (),
        affinity=tuple(draw(st.lists(st.lists(requirements, max_size=2).map(tuple), max_size=2)))
        if draw(rare) == 0
        else None,
        tolerations=tuple(
            draw(
                st.lists(
                    st.sampled_from(
                        [Toleration("k", "Exists"), Toleration("k", "Equal", "v"), Toleration("", "Exists")]
                    ),
                    max_size=1,
                )
            )
        ),
        host_ports=("80",) if draw(rare) == 0 else (),
        one_per_domain=(draw(st.sampled_from(["rack", "zone", HOST])),) if affine and draw(rare) == 0 else (),
        same_domain=(draw(st.sampled_from(["rack", "zone"])),) if affine and draw(rare) == 0 else (),
        namespace="ns",
        labels=(("app", "llm"),) if draw(st.booleans()) else (),
    )


topology_requests = st.one_of(
    st.none(),
    st.builds(TopologyRequest, required=st.sampled_from(["block", "rack", HOST])),
    st.builds(TopologyRequest, preferred=st.sampled_from(["block", "rack", HOST])),
    st.just(TopologyRequest(unconstrained=True)),
)
sliced = st.one_of(
    topology_requests,
    st.builds(TopologyRequest, slice_required=st.sampled_from(["block", "rack", HOST]), slice_size=st.integers(2, 4)),
    st.builds(TopologyRequest, required=st.just("block"), slice_required=st.just("rack"), slice_size=st.just(2)),
    st.just(TopologyRequest(slices=(("block", 4), ("rack", 2)))),
    st.just(TopologyRequest(slices=(("rack", 4), (HOST, 2)))),
)


@st.composite
def requests(draw: st.DrawFn, name: str, affine: bool, most: int = 6) -> PlaceRequest:
    asked = draw(sliced if affine else topology_requests)
    count = draw(st.integers(1, most))
    pod_set = PodSet(name, count, draw(shapes(affine)), topology=asked)
    per_pod = (("cpu", draw(st.sampled_from([1, 0, 2, 3]))), (GPU, draw(st.sampled_from([0, 1, 2]))))
    return PlaceRequest(pod_set, count, per_pod, (FLAVOR,))


def book(cluster: Cluster, reverse: bool = False) -> Capacity:
    out = Capacity()
    for topology in cluster.topologies:
        out.put_topology(topology)
    for node in reversed(cluster.nodes) if reverse else cluster.nodes:
        out.put_node(node)
    for pod in cluster.pods:
        out.put_pod(pod)
    return out


def check(
    cluster: Cluster, asked: list[PlaceRequest], got: Placement, shaped: list[PlaceRequest] | None = None
) -> None:
    """A placement keeps every rule, and charged it takes no more than there is."""
    for request in asked if shaped is None else shaped:
        assignment = got[request.pod_set.name]
        assert not oracle.faults(cluster, request, oracle.of(assignment))
    room = cluster.free()
    capacity = book(cluster)
    sets = tuple(PodSetAssignment(r.pod_set.name, (), (), r.count, got[r.pod_set.name]) for r in asked)
    before = {node.name: capacity.free(node.name) for node in cluster.nodes}
    capacity.charge(("g", "g"), "g", Admission("q", sets), {r.pod_set.name: dict(r.per_pod) for r in asked})
    for request in asked:
        for name, pods in oracle.of(got[request.pod_set.name]).items():
            for resource, amount in oracle.per_pod(request).items():
                room[name][resource] = room[name].get(resource, 0) - pods * amount
    for request in asked:
        for name in oracle.of(got[request.pod_set.name]):
            for resource in oracle.per_pod(request):
                assert room[name][resource] >= 0
                assert capacity.free(name)[resource] == room[name][resource]
    capacity.release(("g", "g"))
    assert before == {node.name: capacity.free(node.name) for node in cluster.nodes}


@settings(max_examples=EXAMPLES, deadline=None)
@given(clusters(), requests("a", affine=True), st.booleans())
def test_one_pod_set_fits_exactly_when_there_is_a_way(cluster: Cluster, request: PlaceRequest, spread: bool) -> None:
    request = replace(request, flavors=(replace(FLAVOR, spread=spread),))
    got = place(book(cluster), [request], rules=MUSTER)
    asked, shape = request.pod_set.topology, request.pod_set.shape
    inexact = shape.one_per_domain and asked is not None and (asked.slice_required or asked.slices)
    if not inexact:
        assert isinstance(got, Placement) == oracle.fits(cluster, [request])
    if isinstance(got, Placement):
        check(cluster, [request], got)
        assert not oracle.torn(cluster, request, got["a"])
    else:
        assert got.placeable <= request.count


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    clusters(),
    requests("a", affine=False),
    st.sampled_from(["block", "rack", "zone", HOST]),
    st.integers(1, 3),
    st.lists(st.tuples(st.booleans(), st.sampled_from(["", "", "rack", "zone"])), min_size=3, max_size=3),
)
def test_child_jobs_get_domains_of_their_own_exactly_when_there_is_a_way(
    cluster: Cluster, request: PlaceRequest, key: str, pods: int, others: list[tuple[bool, str]]
) -> None:
    cluster.pods[:] = [
        replace(pod, of_jobset=of_jobset, exclusive_key=own if of_jobset else "")
        for pod, (of_jobset, own) in zip(cluster.pods, others, strict=False)
    ]
    children = -(-request.count // pods)
    shape = replace(request.pod_set.shape, of_jobset=True, exclusive=Exclusive(key, pods))
    request = replace(request, count=children * pods, pod_set=replace(request.pod_set, shape=shape))
    got = place(book(cluster), [request], rules=MUSTER)
    assert isinstance(got, Placement) == oracle.exclusive_fits(cluster, request)
    if isinstance(got, Placement):
        check(cluster, [request], got)
        assert not oracle.exclusive_faults(cluster, request, got["a"])
    else:
        assert got.placeable < request.count or (request.pod_set.topology is not None)


@settings(max_examples=EXAMPLES, deadline=None)
@given(clusters(), requests("a", affine=False, most=3), requests("b", affine=False, most=3))
def test_two_pod_sets_fit_exactly_when_there_is_a_way(cluster: Cluster, one: PlaceRequest, two: PlaceRequest) -> None:
    # Host ports that both ask for are one resource, which the brute force does not know of.
    assume(not (one.pod_set.shape.host_ports and two.pod_set.shape.host_ports))
    got = place(book(cluster), [one, two], rules=MUSTER)
    assert isinstance(got, Placement) == oracle.fits(cluster, [one, two])
    if isinstance(got, Placement):
        check(cluster, [one, two], got)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(clusters(), st.sampled_from(["block", "rack", HOST]), st.data())
def test_a_group_shares_its_domain(cluster: Cluster, level: str, data: st.DataObject) -> None:
    asked = []
    for name, most in (("leader", 1), ("workers", 4)):
        request = data.draw(requests(name, affine=False, most=most))
        pod_set = PodSet(name, request.count, PodShape(), topology=TopologyRequest(required=level, group="g"))
        asked.append(PlaceRequest(pod_set, request.count, request.per_pod, (FLAVOR,)))
    got = place(book(cluster), asked, rules=MUSTER)
    assert isinstance(got, Placement) == oracle.fits(cluster, asked)
    if isinstance(got, Placement):
        check(cluster, asked, got)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    clusters(),
    st.lists(st.tuples(sliced, st.integers(1, 6), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=2),
    st.sets(st.sampled_from(["TASBalancedPlacement", "TASMultiLayerTopology", "TASProfileMixed"])),
)
def test_what_kueues_rule_answers_is_sound(
    cluster: Cluster, rows: list[tuple[TopologyRequest | None, int, int, int]], gates: set[str]
) -> None:
    """It may miss a way, and a way that it finds is one: all pods, room on every node, levels and slices kept."""
    asked = []
    for i, (topology, count, cpu, gpus) in enumerate(rows):
        pod_set = PodSet(f"s{i}", count, topology=topology)
        asked.append(PlaceRequest(pod_set, count, (("cpu", cpu), (GPU, gpus)), (FLAVOR,)))
    rules = replace(KUEUE, gates=KUEUE.gates - {"TASProfileMixed"} | gates)
    got = place(book(cluster), asked, rules=rules)
    if isinstance(got, Placement):
        multi = "TASMultiLayerTopology" in gates
        plain = [r for r in asked if multi or r.pod_set.topology is None or not r.pod_set.topology.slices]
        check(cluster, asked, got, shaped=plain)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=14),
    st.integers(1, 24),
    st.one_of(
        st.none(),
        st.builds(TopologyRequest, required=st.sampled_from(["block", "rack", HOST])),
        st.builds(TopologyRequest, preferred=st.sampled_from(["block", "rack", HOST])),
    ),
)
def test_the_same_domains_as_the_plain_form(
    rows: list[tuple[int, int, int]], count: int, asked: TopologyRequest | None
) -> None:
    nodes = [
        Node(
            f"n{i:02}",
            tuple(sorted({"block": f"b{block}", "rack": f"b{block}r{rack}", HOST: f"n{i:02}"}.items())),
            allocatable=((GPU, gpus), ("pods", 110)),
        )
        for i, (block, rack, gpus) in enumerate(rows)
    ]
    cluster = Cluster(nodes, [], [Topology("t", ("block", "rack"))])
    request = PlaceRequest(PodSet("a", count, topology=asked), count, ((GPU, 1),), (FLAVOR,))
    got = place(book(cluster), [request], rules=MUSTER)
    want = oracle.pack(cluster, request)
    assert (oracle.of(got["a"]) if isinstance(got, Placement) else None) == want
    # Whatever the order in which the nodes came.
    assert place(book(cluster, reverse=True), [request], rules=MUSTER) == got
    if isinstance(got, Placement):
        paths = [oracle.path(cluster, request, nodes[int(d.values[0][1:])]) for d in got["a"].domains]
        assert all(one < other for one, other in pairwise([tuple(map(str, p)) for p in paths]))


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(clusters(), requests("a", affine=True), st.data())
def test_lost_nodes_are_replaced_and_the_rest_stays(
    cluster: Cluster, request: PlaceRequest, data: st.DataObject
) -> None:
    capacity = book(cluster)
    got = place(capacity, [request], rules=MUSTER)
    if isinstance(got, Misfit):
        return
    assignment = got["a"]
    admission = Admission("q", (PodSetAssignment("a", (), (), request.count, assignment),))
    capacity.charge(("g", "g"), "g", admission, {"a": takes(request.pod_set.shape, dict(request.per_pod))})
    lost = data.draw(st.sampled_from([domain.values[0] for domain in assignment.domains]))
    again = place(capacity, [request], rules=MUSTER, previous=admission, lost=[lost], avoid=[lost])
    if isinstance(again, Misfit):
        return
    check(cluster, [request], again)
    assert not oracle.torn(cluster, request, again["a"])
    assert lost not in oracle.of(again["a"])
    ranks, old = _ranks(again), _ranks(got)
    assert len(ranks) == len(old)
    assert all(new == was for new, was in zip(ranks, old, strict=True) if was != lost)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(clusters(), st.lists(requests("a", affine=True), min_size=1, max_size=2), st.data())
def test_who_comes_back_stands_where_it_stood_as_far_as_there_is_room(
    cluster: Cluster, asked: list[PlaceRequest], data: st.DataObject
) -> None:
    """After any change of the nodes, and with another pod in the way: a yes keeps every rule, and moves no pod whose
    node is as it was."""
    asked = [replace(one, pod_set=replace(one.pod_set, name=f"s{i}")) for i, one in enumerate(asked)]
    got = place(book(cluster), asked, rules=MUSTER)
    if isinstance(got, Misfit):
        return
    stood = Admission("q", tuple(PodSetAssignment(r.pod_set.name, (), (), r.count, got[r.pod_set.name]) for r in asked))
    used = sorted({domain.values[0] for part in stood.pod_sets for domain in _there(part.topology).domains})
    lost = data.draw(st.sets(st.sampled_from(used), min_size=1, max_size=2))
    how = data.draw(st.sampled_from([{"ready": False}, {"unschedulable": True}, {"allocatable": ()}]))
    nodes = [replace(node, **how) if node.name in lost else node for node in cluster.nodes]
    after = dataclasses.replace(cluster, nodes=nodes)
    back = place(book(after), asked, rules=MUSTER, previous=stood, again=True)
    if isinstance(back, Misfit):
        return
    check(after, asked, back)
    assert not [torn for one in asked for torn in oracle.torn(after, one, back[one.pod_set.name])]
    for part in stood.pod_sets:
        was, now = (
            [domain.values[0] for domain in _there(where).domains for _ in range(domain.count)]
            for where in (part.topology, back[part.name])
        )
        assert len(was) == len(now)
        assert all(old == new for old, new in zip(was, now, strict=True) if old not in lost)


def _there(where: TopologyAssignment | None) -> TopologyAssignment:
    assert where is not None
    return where


def _ranks(placement: Placement) -> list[str]:
    return [domain.values[0] for domain in placement["a"].domains for _ in range(domain.count)]


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(clusters(), st.lists(requests("a", affine=False, most=4), min_size=1, max_size=5), st.data())
def test_the_book_forgets_nothing(cluster: Cluster, asked: list[PlaceRequest], data: st.DataObject) -> None:
    """Whatever is booked and taken back in whatever order, cached answers equal those of a fresh book."""
    capacity = book(cluster)
    nodes = {node.name: node for node in cluster.nodes}
    pods = {pod.key: pod for pod in cluster.pods}
    admissions: dict[str, tuple[Admission, PlaceRequest]] = {}
    for i, request in enumerate(asked):
        got = place(capacity, [request], rules=MUSTER, explain=False)
        if isinstance(got, Placement):
            admission = Admission("q", (PodSetAssignment("a", (), (), request.count, got["a"]),))
            capacity.charge(
                ("g", str(i)), str(i), admission, {"a": takes(request.pod_set.shape, dict(request.per_pod))}
            )
            admissions[str(i)] = (admission, request)
        what = data.draw(st.sampled_from(["release", "node", "remove", "pod", "pod", "pod gone", "nothing"]))
        if what == "release" and admissions:
            gone = data.draw(st.sampled_from(sorted(admissions)))
            capacity.release(("g", gone))
            del admissions[gone]
        elif what == "node":
            new = data.draw(node_lists(most=3))[-1]
            capacity.put_node(new)
            nodes[new.name] = new
        elif what == "remove" and len(nodes) > 1:
            name = data.draw(st.sampled_from(sorted(nodes)))
            capacity.remove_node(name)
            del nodes[name]
        elif what == "pod":
            pod = PodUsage(
                key=("y", data.draw(st.sampled_from(["p", "q"]))),
                uid="u",
                node=data.draw(st.sampled_from(["n0", "n1", "n9"])),
                requests=(("cpu", data.draw(st.integers(0, 4))), (GPU, data.draw(st.integers(0, 3)))),
                workload_uid=data.draw(st.sampled_from(["", "0", "1", "gone"])),
                host_ports=("80",) if data.draw(st.booleans()) else (),
                apart=data.draw(anti_affinities),
            )
            capacity.put_pod(pod)
            pods[pod.key] = pod
        elif what == "pod gone":
            capacity.remove_pod(("y", "p"))
            pods.pop(("y", "p"), None)
            capacity.settle_apart()
        fresh = book(Cluster(list(nodes.values()), list(pods.values()), cluster.topologies))
        for key, (admission, of) in admissions.items():
            fresh.charge(("g", key), key, admission, {"a": takes(of.pod_set.shape, dict(of.per_pod))})
        for probe in asked:
            for rules in (MUSTER, KUEUE):
                assert place(capacity, [probe], rules=rules) == place(fresh, [probe], rules=rules)
        assert {n: capacity.free(n) for n in nodes} == {n: fresh.free(n) for n in nodes}
