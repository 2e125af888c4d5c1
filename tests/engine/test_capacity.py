"""The book of nodes and the one door of placement, in rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from admission.engine import mixed, topology
from admission.engine.booking import booking_of, mark_of
from admission.engine.capacity import Capacity, Placement, PlaceRequest, place, takes
from admission.engine.counts import keeps_off
from admission.engine.mixed import _mixtures
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admission,
    AntiAffinity,
    Detail,
    Domain,
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
    Rules,
    Taint,
    Toleration,
    Topology,
    TopologyAssignment,
    TopologyRequest,
)
from admission.engine.project import misfit_sentence

GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
NET = Topology("net", ("block", "rack", HOST))


def node(name: str, gpus: int = 8, *, taints: tuple[Taint, ...] = (), cpu: int = 96, **labels: str) -> Node:
    return Node(
        name=name,
        labels=tuple(sorted({HOST: name, **labels}.items())),
        taints=taints,
        allocatable=(("cpu", cpu * 1000), (GPU, gpus), ("pods", 110)),
    )


def fabric(spec: dict[str, dict[str, list[int]]]) -> Capacity:
    """{block: {rack: [free GPUs per node]}}; nodes are called rack-0, rack-1 ..."""
    book = Capacity()
    book.put_topology(NET)
    for block, racks in spec.items():
        for rack, gpus in racks.items():
            for i, number in enumerate(gpus):
                book.put_node(node(f"{rack}-{i}", number, block=block, rack=rack))
    return book


def asks(count: int, gpus: int = 1, name: str = "w", flavor: Flavor | None = None, **shape: Any) -> PlaceRequest:
    topology = shape.pop("topology", None)
    pod_set = PodSet(name, count, PodShape(**shape), topology=topology)
    per_pod = shape.get("requests") or (((GPU, gpus),) if gpus else (("cpu", 1000),))
    return PlaceRequest(pod_set, count, per_pod, (flavor or Flavor("f", topology="net"),))


def where(got: Placement | Misfit, name: str = "w") -> dict[str, int]:
    assert isinstance(got, Placement), got
    out: dict[str, int] = {}
    for domain in got[name].domains:
        out[domain.values[0]] = out.get(domain.values[0], 0) + domain.count
    return out


def admitted(got: Placement | dict[str, dict[str, int]]) -> Admission:
    if not isinstance(got, Placement):
        got = Placement(
            {
                name: TopologyAssignment((HOST,), tuple(Domain((host,), n) for host, n in hosts.items()))
                for name, hosts in got.items()
            }
        )
    return Admission(
        "q",
        tuple(PodSetAssignment(n, (), (), sum(d.count for d in t.domains), t) for n, t in got.items()),
    )


# ---------------------------------------------------------------- which nodes


def test_a_taint_that_the_flavor_names_may_be_borne_for_a_while() -> None:
    pool, repair = Taint("pool", "spot", "NoExecute"), Taint("repair", "now", "NoExecute")
    brief = (Toleration("", "Exists", seconds=3600),)
    named, other = (replace(node(name), taints=taints) for name, taints in (("a", (pool,)), ("b", (pool, repair))))
    book = Capacity()
    book.put_node(named)
    book.put_node(other)
    flavor = Flavor("f", topology="net", node_taints=(pool,))
    assert where(place(book, [asks(2, flavor=flavor, tolerations=brief)], rules=MUSTER)) == {"a": 2}
    assert keeps_off(named, [flavor]) == ()
    assert keeps_off(other, [replace(flavor, tolerations=brief)]) == ("repair",)


@pytest.mark.parametrize(
    ("change", "shape", "excluded"),
    [
        ({"ready": False}, {}, "not ready"),
        ({"unschedulable": True}, {}, "cordoned"),
        ({"taints": (Taint("k", "v", "NoSchedule"),)}, {}, "taint k"),
        ({"taints": (Taint("k", "v", "NoExecute"),)}, {}, "taint k"),
        ({"taints": (Taint("k", "v", "PreferNoSchedule"),)}, {}, ""),
        ({"taints": (Taint("k", "v", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Exists"),)}, ""),
        ({"taints": (Taint("k", "v", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Equal", "v"),)}, ""),
        ({"taints": (Taint("k", "v", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Equal", "w"),)}, "taint k"),
        (
            {"taints": (Taint("k", "v", "NoExecute"),)},
            {"tolerations": (Toleration("k", "Exists", "", "NoSchedule"),)},
            "taint k",
        ),
        ({"taints": (Taint("k", "v", "NoExecute"),)}, {"tolerations": (Toleration("", "Exists"),)}, ""),
        # Borne for a while: its pods would come, and be deleted then. The first that bears it says for how long.
        (
            {"taints": (Taint("k", "v", "NoExecute"),)},
            {"tolerations": (Toleration("k", "Exists", seconds=60),)},
            "taint k",
        ),
        (
            {"taints": (Taint("k", "v", "NoExecute"),)},
            {"tolerations": (Toleration("k", "Exists", seconds=60), Toleration("", "Exists"))},
            "taint k",
        ),
        (
            {"taints": (Taint("k", "v", "NoExecute"),)},
            {"tolerations": (Toleration("", "Exists"), Toleration("k", "Exists", seconds=60))},
            "",
        ),
        ({"taints": (Taint("k", "v", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Exists", seconds=60),)}, ""),
        # Numbers are compared, where the API server lets tolerations say so.
        ({"taints": (Taint("k", "950", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Gt", "900"),)}, ""),
        ({"taints": (Taint("k", "950", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Gt", "950"),)}, "taint k"),
        ({"taints": (Taint("k", "5", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Lt", "10"),)}, ""),
        ({"taints": (Taint("k", "5", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Lt", "5"),)}, "taint k"),
        ({"taints": (Taint("k", "v", "NoSchedule"),)}, {"tolerations": (Toleration("k", "Lt", "5"),)}, "taint k"),
        ({}, {"node_selector": (("zone", "a"),)}, ""),
        ({}, {"node_selector": (("zone", "b"),)}, "node selector"),
        ({}, {"affinity": ((Requirement("zone", "In", ("a", "b")),),)}, ""),
        ({}, {"affinity": ((Requirement("zone", "NotIn", ("a",)),),)}, "node affinity"),
        ({}, {"affinity": ((Requirement("absent", "NotIn", ("a",)),),)}, ""),
        ({}, {"affinity": ((Requirement("zone", "Exists"), Requirement("absent", "DoesNotExist")),)}, ""),
        ({}, {"affinity": ((Requirement("size", "Gt", ("6",)),),)}, ""),
        ({}, {"affinity": ((Requirement("size", "Lt", ("7",)),),)}, "node affinity"),
        ({}, {"affinity": ((Requirement("zone", "Gt", ("6",)),),)}, "node affinity"),
        ({}, {"affinity": ((Requirement("metadata.name", "In", ("n",)),),)}, ""),
        ({}, {"affinity": ((Requirement("metadata.name", "In", ("m",)),),)}, "node affinity"),
        ({}, {"affinity": ((Requirement("zone", "In", ("b",)),), (Requirement("zone", "In", ("a",)),))}, ""),
        ({}, {"affinity": ()}, "node affinity"),
        ({}, {"affinity": ((),)}, "node affinity"),
        ({"allocatable": (("cpu", 1000), ("pods", 110))}, {}, GPU),
        ({"allocatable": ((GPU, 8), ("pods", 0))}, {}, "pods"),
        ({}, {"requests": ((GPU, 1), ("hugepages-2Mi", 2**21))}, "hugepages-2Mi"),
        ({}, {"requests": (("ephemeral-storage", 2**30), (GPU, 1))}, "ephemeral-storage"),
        (
            {"allocatable": ((GPU, 8), ("ephemeral-storage", 2**30), ("hugepages-2Mi", 2**21), ("pods", 1))},
            {"requests": (("ephemeral-storage", 2**30), (GPU, 1), ("hugepages-2Mi", 2**21))},
            "",
        ),
    ],
)
def test_filters(change: dict[str, Any], shape: dict[str, Any], excluded: str) -> None:
    book = Capacity()
    book.put_node(replace(node("n", zone="a", size="7"), **change))
    got = place(book, [asks(1, **shape)], rules=MUSTER)
    if not excluded:
        assert where(got) == {"n": 1}
        return
    assert isinstance(got, Misfit)
    assert (got.placeable, got.nodes, dict(got.excluded)) == (0, 1, {excluded: 1})
    repairable = excluded.startswith(("not ready", "cordoned", "taint"))
    assert got.detail is (Detail.NODES_UNUSABLE if repairable else Detail.NEVER_FITS_NODES)
    assert got.sound == (1 if repairable else 0)


@pytest.mark.parametrize(
    ("pods", "kept_out", "detail", "sound"),
    [
        (8, 1, None, 0),
        (9, 0, None, 0),
        (9, 1, Detail.NODES_UNUSABLE, 9),
        (16, 2, Detail.NODES_UNUSABLE, 16),
        (17, 1, Detail.NEVER_FITS_NODES, 16),
        (17, 0, Detail.NEVER_FITS_NODES, 16),
    ],
)
@pytest.mark.parametrize(
    "how", [{"unschedulable": True}, {"ready": False}, {"taints": (Taint("k", "", "NoSchedule"),)}]
)
def test_nodes_that_are_kept_out_make_no_gang_too_large(
    how: dict[str, Any], pods: int, kept_out: int, detail: Detail | None, sound: int
) -> None:
    """Two nodes of 8, of which so many are kept out: what repair would mend is not called too large."""
    book = Capacity()
    for i in range(2):
        book.put_node(replace(node(f"n{i}"), **(how if i < kept_out else {})))
    got = place(book, [asks(pods)], rules=MUSTER)
    if detail is None:
        assert isinstance(got, Placement)
        return
    assert isinstance(got, Misfit)
    assert (got.detail, got.sound, got.placeable) == (detail, sound, min(pods, 8 * (2 - kept_out)))
    for i in range(kept_out):
        book.put_node(node(f"n{i}"))
    assert isinstance(place(book, [asks(pods)], rules=MUSTER), Placement) is (detail is Detail.NODES_UNUSABLE)


def test_a_domain_that_is_kept_out_counts_where_one_domain_is_asked_for() -> None:
    book = fabric({"b": {"r": [8, 8], "s": [8]}})
    book.put_node(replace(node("r-0", 8, block="b", rack="r"), unschedulable=True))
    rack = TopologyRequest(required="rack")
    for pods, detail in ((16, Detail.NODES_UNUSABLE), (17, Detail.NEVER_FITS_NODES)):
        got = place(book, [asks(pods, topology=rack)], rules=MUSTER)
        assert isinstance(got, Misfit)
        assert (got.detail, got.placeable, got.sound) == (detail, 8, 16)


def test_flavor_labels_decide_which_nodes_count() -> None:
    book = Capacity()
    book.put_node(node("a", pool="x"))
    book.put_node(node("b", pool="y"))
    flavor = Flavor("f", node_labels=(("pool", "x"),))
    assert where(place(book, [asks(8, flavor=flavor)], rules=MUSTER)) == {"a": 8}
    got = place(book, [asks(9, flavor=flavor)], rules=MUSTER)
    assert isinstance(got, Misfit)
    assert (got.placeable, got.nodes, got.detail, got.flavor) == (8, 1, Detail.NEVER_FITS_NODES, "f")
    none = place(book, [asks(1, flavor=Flavor("g", node_labels=(("pool", "z"),)))], rules=MUSTER)
    assert isinstance(none, Misfit)
    assert (none.detail, none.nodes) == (Detail.NO_NODES, 0)


def test_a_refused_constraint_is_never_placed_and_elastic_flavors_need_no_nodes() -> None:
    book = Capacity()
    book.put_node(node("a"))
    refused = place(book, [asks(1, refused="topology spread over zones")], rules=MUSTER)
    assert isinstance(refused, Misfit)
    assert (refused.detail, refused.message) == (Detail.CONSTRAINT_REFUSED, "topology spread over zones")
    assert place(book, [asks(99, flavor=Flavor("cloud", elastic=True))], rules=MUSTER) == {}
    # Kueue's rule looks at nodes only where a topology is named.
    assert place(book, [asks(99, flavor=Flavor("plain"))], rules=KUEUE) == {}


@pytest.mark.parametrize("rules", [MUSTER, KUEUE])
def test_would_fit_an_empty_cluster(rules: Rules) -> None:
    book = fabric({"b": {"r": [8, 8]}})
    full = asks(16)
    book.charge(("ns", "g"), "g", admitted({"w": {"r-0": 8}}), {"w": takes(full.pod_set.shape, dict(full.per_pod))})
    got = place(book, [full], rules=rules)
    assert isinstance(got, Misfit)
    assert (got.placeable, got.detail, got.fits_when_empty) == (8, Detail.NODES_SHORT, True)
    assert dict(got.excluded) == ({GPU: 1} if rules is MUSTER else {}), "Kueue's rule says it in its message"
    assert where(place(book, [full], rules=rules, empty=True)) == {"r-0": 8, "r-1": 8}
    assert where(place(book, [full], rules=rules, without=[("ns", "g")])) == {"r-0": 8, "r-1": 8}
    assert book.free("r-0")[GPU] == 0
    book.put_pod(PodUsage(("kube-system", "daemon"), "d", "r-1", ((GPU, 1),)))
    taken = place(book, [full], rules=rules)
    assert isinstance(taken, Misfit)
    # Kueue's rule does not tell whose pods they are.
    assert taken.detail is (Detail.NODES_TAKEN if rules is MUSTER else Detail.NEVER_FITS_NODES)


@pytest.mark.parametrize(
    ("pods", "others", "kept_out", "detail", "sound"),
    [
        (1, 8, 0, Detail.NODES_TAKEN, 1),
        (16, 1, 0, Detail.NODES_TAKEN, 16),
        (16, 1, 1, Detail.NODES_TAKEN, 16),
        (8, 0, 1, None, 0),
        (16, 0, 1, Detail.NODES_UNUSABLE, 16),
        (17, 1, 0, Detail.NEVER_FITS_NODES, 14),
        (1, 2**63 - 1, 0, Detail.NODES_TAKEN, 1),
    ],
)
def test_room_that_pods_of_others_hold_is_not_called_too_small(
    pods: int, others: int, kept_out: int, detail: Detail | None, sound: int
) -> None:
    book = Capacity()
    for index, name in enumerate(("a", "b")):
        book.put_node(replace(node(name), unschedulable=index < kept_out))
        if others:
            book.put_pod(PodUsage(("x", name), name, name, ((GPU, others),)))
    got = place(book, [asks(pods)], rules=MUSTER)
    if detail is None:
        assert not isinstance(got, Misfit)
        return
    assert isinstance(got, Misfit)
    assert (got.detail, got.sound, got.fits_when_empty) == (detail, sound, False)


def test_a_port_that_pods_of_others_hold_is_theirs() -> None:
    book = Capacity()
    book.put_node(node("a"))
    book.put_pod(PodUsage(("x", "p"), "p", "a", (), host_ports=("80",)))
    for port, detail in (("80", Detail.NODES_TAKEN), ("81", None)):
        got = place(book, [asks(1, host_ports=(port,))], rules=MUSTER)
        assert (got.detail if isinstance(got, Misfit) else None) is detail


# ---------------------------------------------------------------- the book


def test_a_charge_pays_for_its_pods_and_no_more() -> None:
    book = fabric({"b": {"r": [8, 8]}})
    per_pod = {"w": {GPU: 2, "cpu": 1000}}
    pods = [PodUsage(("ns", f"p{i}"), f"p{i}", "r-0", ((GPU, 2), ("cpu", 1500)), workload_uid="g") for i in range(2)]
    free: Callable[[str], tuple[int, int, int]] = lambda n: (  # noqa: E731
        book.free(n)[GPU],
        book.free(n)["cpu"],
        book.free(n)["pods"],
    )
    assert free("r-0") == (8, 96_000, 110)
    book.put_pod(pods[0])
    assert free("r-0") == (6, 94_500, 109)
    book.charge(("ns", "g"), "g", admitted({"w": {"r-0": 2}}), per_pod)
    assert free("r-0") == (4, 94_000, 108)
    book.put_pod(pods[1])
    # A sidecar of 500m in each pod was not in the charge: the difference is booked.
    assert free("r-0") == (4, 93_000, 108)
    # A pod of the gang where the gang has no charge counts in full.
    book.put_pod(PodUsage(("ns", "stray"), "s", "r-1", ((GPU, 1),), workload_uid="g"))
    assert free("r-1") == (7, 96_000, 109)
    assert book.occupants("r-0") == {"g": {"cpu": 3000, GPU: 4, "pods": 2}}
    book.release(("ns", "g"))
    assert free("r-0") == (4, 93_000, 108)
    for key in [pods[0].key, pods[1].key, ("ns", "stray")]:
        book.remove_pod(key)
    assert free("r-0") == free("r-1") == (8, 96_000, 110)


def test_charges_wait_for_their_node_and_survive_it() -> None:
    book = Capacity()
    book.charge(("ns", "g"), "g", admitted({"w": {"late": 3}}), {"w": {GPU: 2}})
    assert book.free("late") == {}
    book.put_node(node("late"))
    assert book.free("late")[GPU] == 2
    book.remove_node("late")
    book.put_node(node("late", 4))
    assert book.free("late")[GPU] == -2
    got = place(book, [asks(1)], rules=MUSTER)
    assert isinstance(got, Misfit)
    assert got.placeable == 0


def test_hostname_label_that_is_not_the_name() -> None:
    """Muster answers with node names; a charge that names the label is booked on the node that carries it."""
    book = Capacity()
    book.put_topology(NET)
    labels = (("block", "b"), (HOST, "short"), ("rack", "r"))
    book.put_node(Node("short.example.org", labels, allocatable=((GPU, 8), ("pods", 110))))
    assert where(place(book, [asks(8)], rules=MUSTER)) == {"short.example.org": 8}
    assert where(place(book, [asks(8)], rules=KUEUE)) == {"short": 8}
    book.charge(("ns", "g"), "g", admitted({"w": {"short": 3}}), {"w": {GPU: 1}})
    assert book.free("short.example.org")[GPU] == 5
    book.put_node(node("short", 1, block="b", rack="r"))
    assert (book.free("short.example.org")[GPU], book.free("short")[GPU]) == (8, -2)
    book.remove_node("short")
    assert book.free("short.example.org")[GPU] == 5


def test_charges_of_wider_domains_pay_for_pods_anywhere() -> None:
    book = fabric({"b": {"r": [4, 4]}})
    book.put_topology(Topology("wide", ("block", "rack")))
    assignment = TopologyAssignment(("block", "rack"), (Domain(("b", "r"), 3),))
    flavor = Flavor("f", topology="wide")
    book.put_pod(PodUsage(("ns", "p"), "p", "r-0", ((GPU, 1),), workload_uid="g"))
    book.charge(("ns", "g"), "g", Admission("q", (PodSetAssignment("w", (), (), 3, assignment),)), {"w": {GPU: 1}})
    assert book.free("r-0")[GPU] == 4
    assert isinstance(place(book, [asks(5, flavor=flavor)], rules=KUEUE), Placement)
    assert isinstance(place(book, [asks(6, flavor=flavor)], rules=KUEUE), Misfit)
    book.release(("ns", "g"))
    assert book.free("r-0")[GPU] == 3


def test_host_ports_are_one_to_a_node() -> None:
    book = fabric({"b": {"r": [8, 8, 8]}})
    book.put_pod(PodUsage(("x", "p"), "p", "r-1", (), host_ports=("80",)))
    web = asks(2, host_ports=("80",))
    got = place(book, [web], rules=MUSTER)
    assert where(got) == {"r-0": 1, "r-2": 1}
    assert isinstance(got, Placement)
    book.charge(("ns", "g"), "g", admitted(got), {"w": takes(web.pod_set.shape, dict(web.per_pod))})
    none = place(book, [asks(1, host_ports=("80",))], rules=MUSTER)
    assert isinstance(none, Misfit)
    assert dict(none.excluded) == {"host port 80": 3}
    assert where(place(book, [asks(1, host_ports=("81",))], rules=MUSTER)) == {"r-0": 1}


def test_amounts_beyond_int64_saturate() -> None:
    book = Capacity()
    book.put_node(replace(node("n"), allocatable=((GPU, 2**70), ("pods", 2**70))))
    assert where(place(book, [asks(1000)], rules=MUSTER)) == {"n": 1000}
    book.charge(("ns", "g"), "g", admitted({"w": {"n": 1}}), {"w": {GPU: 2**80}})
    assert isinstance(place(book, [asks(1)], rules=MUSTER), Misfit)


# ---------------------------------------------------------------- packing

PACKING = [
    # name, room, pods, asked, where
    ("the tightest node", {"b": {"r": [8, 4, 6]}}, 4, None, {"r-1": 4}),
    ("the tightest of racks that hold it", {"b": {"r": [2, 2, 2], "s": [2, 2]}}, 4, None, {"s-0": 2, "s-1": 2}),
    ("partial nodes, the large ones stay whole", {"b": {"r": [8, 7, 4, 4]}}, 11, None, {"r-1": 7, "r-2": 4}),
    ("two fours rather than an eight and more", {"b": {"r": [7, 6, 5, 4, 4]}}, 8, None, {"r-3": 4, "r-4": 4}),
    ("a node of the fuller rack", {"b": {"r": [4, 4], "s": [4, 1]}}, 4, None, {"s-0": 4}),
    ("a required level", {"b": {"r": [4, 4], "s": [4]}}, 6, {"required": "rack"}, {"r-0": 4, "r-1": 2}),
    ("no rack is wide enough", {"b": {"r": [4], "s": [4]}}, 6, {"required": "rack"}, None),
    ("preferred goes up", {"b": {"r": [4], "s": [4]}}, 6, {"preferred": "rack"}, {"r-0": 4, "s-0": 2}),
    (
        "preferred over several blocks",
        {"b": {"r": [4]}, "c": {"s": [4]}},
        6,
        {"preferred": "rack"},
        {"r-0": 4, "s-0": 2},
    ),
    ("unconstrained fills gaps", {"b": {"r": [1, 8, 2]}}, 9, {"unconstrained": True}, {"r-0": 1, "r-1": 6, "r-2": 2}),
    (
        "slices of two per host",
        {"b": {"r": [3, 3, 5]}},
        8,
        {"slice_required": HOST, "slice_size": 2},
        {"r-0": 2, "r-1": 2, "r-2": 4},
    ),
    (
        "slices within slices",
        {"b": {"r": [3, 3, 2], "s": [8]}},
        12,
        {"slices": (("rack", 6), (HOST, 2))},
        {"r-0": 2, "r-1": 2, "r-2": 2, "s-0": 6},
    ),
    ("half a slice", {"b": {"r": [8]}}, 3, {"slice_required": "rack", "slice_size": 2}, {"r-0": 3}),
]


@pytest.mark.parametrize(("name", "room", "pods", "asked", "want"), PACKING, ids=[row[0] for row in PACKING])
def test_packing(
    name: str,
    room: dict[str, dict[str, list[int]]],
    pods: int,
    asked: dict[str, Any] | None,
    want: dict[str, int] | None,
) -> None:
    got = place(fabric(room), [asks(pods, topology=TopologyRequest(**asked) if asked else None)], rules=MUSTER)
    assert (where(got) if isinstance(got, Placement) else None) == want


@pytest.mark.parametrize(
    ("asked", "racks", "want"),
    [
        ({"slice_required": "rack", "slice_size": 2}, [1, 1], {"r-0": 1, "r-1": 1}),
        ({"slice_required": "rack", "slice_size": 2}, [1], None),
        ({"slice_required": "block", "slice_size": 2}, [1], None),
        ({"slice_required": HOST, "slice_size": 2}, [1], {"x-2": 2}),
        ({"slices": (("rack", 2), (HOST, 1))}, [1], None),
    ],
)
def test_nodes_that_do_not_say_where_they_are_hold_no_slice(
    asked: dict[str, Any], racks: list[int], want: dict[str, int] | None
) -> None:
    book = fabric({"b": {"r": racks}})
    for name, gpus in (("x-0", 1), ("x-1", 1), ("x-2", 2)):
        book.put_node(node(name, gpus))
    got = place(book, [asks(2, topology=TopologyRequest(**asked))], rules=MUSTER)
    assert (where(got) if isinstance(got, Placement) else None) == want


def test_spread_takes_the_emptiest() -> None:
    flavor = Flavor("f", topology="net", spread=True)
    room = {"b": {"r": [8, 8], "s": [8, 2]}}
    assert where(place(fabric(room), [asks(4, flavor=flavor)], rules=MUSTER)) == {"r-0": 2, "r-1": 1, "s-0": 1}
    in_rack = asks(4, flavor=flavor, topology=TopologyRequest(required="rack"))
    assert where(place(fabric(room), [in_rack], rules=MUSTER)) == {"r-0": 2, "r-1": 2}


def test_devices_that_are_not_asked_for_are_left_alone() -> None:
    book = Capacity()
    book.put_node(node("gpu", 8))
    book.put_node(replace(node("cpu"), allocatable=(("cpu", 96_000), ("pods", 110))))
    assert where(place(book, [asks(4, gpus=0)], rules=MUSTER)) == {"cpu": 4}
    assert where(place(book, [asks(100, gpus=0)], rules=MUSTER)) == {"cpu": 96, "gpu": 4}
    # What every node has makes no difference.
    for name, cpu, gpus in (("gpu", 32_000, ((GPU, 8),)), ("cpu", 96_000, ())):
        book.put_node(replace(node(name), allocatable=(("cpu", cpu), ("example.com/kvm", 1000), *gpus, ("pods", 110))))
    assert where(place(book, [asks(4, gpus=0)], rules=MUSTER)) == {"cpu": 4}


def test_equal_rooms_go_to_the_node_with_least_else() -> None:
    book = Capacity()
    for name, cpu in (("a", 96), ("b", 32), ("c", 64)):
        book.put_node(node(name, 8, cpu=cpu))
    assert where(place(book, [asks(8)], rules=MUSTER)) == {"b": 8}


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        ({"one_per_domain": ("rack",)}, {"r-0": 1, "s-0": 1, "t-0": 1}),
        ({"one_per_domain": (HOST,)}, {"r-0": 1, "r-1": 1, "s-0": 1}),
        ({"same_domain": ("rack",)}, {"t-0": 3}),
        ({"one_per_domain": (HOST,), "same_domain": ("block",)}, {"r-0": 1, "r-1": 1, "s-0": 1}),
    ],
)
def test_a_gang_against_itself(shape: dict[str, Any], want: dict[str, int]) -> None:
    book = fabric({"b": {"r": [2, 2], "s": [2]}, "c": {"t": [3]}})
    assert where(place(book, [asks(3, **shape)], rules=MUSTER)) == want


# ---------------------------------------------------------------- several pod sets


def test_mixed_pod_sets_need_search() -> None:
    """One after the other, in either order, tightest first, fails; together they fit."""
    book = Capacity()
    for name, gpus, cpu in (("a", 4, 3), ("b", 4, 4), ("c", 2, 5)):
        book.put_node(node(name, gpus, cpu=cpu))

    def kind(name: str, count: int, gpus: int, cpu: int) -> PlaceRequest:
        return PlaceRequest(PodSet(name, count), count, (("cpu", cpu * 1000), (GPU, gpus)), (Flavor("f"),))

    asked = [kind("x", 2, 3, 1), kind("y", 2, 1, 2), kind("z", 1, 2, 5)]
    got = place(book, asked, rules=MUSTER)
    assert isinstance(got, Placement)
    assert where(got, "z") == {"c": 1}
    assert where(got, "x") == where(got, "y") == {"a": 1, "b": 1}
    assert isinstance(place(book, [*asked, kind("v", 1, 1, 1)], rules=MUSTER), Misfit)


@pytest.mark.parametrize(
    ("counts", "level"),
    [([36] * 6, "rack"), ([36] * 7, "rack"), ([5] * 6 + [230], None)],
)
def test_a_gang_of_many_small_pod_sets_is_searched_within_bounds(
    counts: list[int], level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each set would fit alone, and all of them do not: how they could be mixed on a node is asked for a few nodes, not
    for all of them and every choice of racks."""
    book = fabric({"b": {f"r{rack}": [8] * 8 for rack in range(4)}})
    for row in range(32):  # no two of them alike
        rack, number = divmod(row, 8)
        book.put_node(node(f"r{rack}-{number}", 8, cpu=400 + row, block="b", rack=f"r{rack}"))
    looked_at = 0

    def counted(*asked: Any) -> list[tuple[int, ...]] | None:
        nonlocal looked_at
        found = _mixtures(*asked)
        looked_at += len(found or ())
        assert looked_at < 50_000
        return found

    monkeypatch.setattr(mixed, "_mixtures", counted)
    topology = TopologyRequest(required=level) if level else None
    gang = [
        asks(count, name=f"p{i}", requests=((GPU, 1), ("cpu", 1000 * (i + 1))), topology=topology)
        for i, count in enumerate(counts)
    ]
    assert isinstance(place(book, gang, rules=MUSTER), Misfit)


def test_leader_and_workers_share_the_tightest_domain() -> None:
    group = TopologyRequest(required="rack", group="g")
    book = fabric({"b": {"r": [8, 8], "s": [4, 1]}})
    asked = [asks(1, name="leader", topology=group), asks(4, name="workers", topology=group)]
    got = place(book, asked, rules=MUSTER)
    assert where(got, "leader") == {"s-1": 1}
    assert where(got, "workers") == {"s-0": 4}


@pytest.mark.parametrize("rules", [MUSTER, KUEUE])
@pytest.mark.parametrize("third", [3, 4])
def test_a_third_pod_set_finds_what_leader_and_workers_leave(rules: Rules, third: int) -> None:
    group = TopologyRequest(required="rack", group="g")
    asked = [asks(1, name="leader", topology=group), asks(4, name="workers", topology=group), asks(third, name="third")]
    got = place(fabric({"b": {"r": [8]}}), asked, rules=rules)
    assert isinstance(got, Placement) is (third == 3)


# ---------------------------------------------------------------- nodes that die


def test_replacements_take_the_ranks_of_the_lost() -> None:
    book = fabric({"b": {"r": [2, 2, 2, 2], "s": [8]}})
    asked = asks(6, topology=TopologyRequest(required="rack"))
    per_pod = {"w": takes(asked.pod_set.shape, dict(asked.per_pod))}
    before = admitted({"w": {"r-0": 2, "r-1": 2, "r-2": 2}})
    book.charge(("ns", "g"), "g", before, per_pod)
    book.remove_node("r-1")
    got = place(book, [asked], rules=MUSTER, previous=before, lost=["r-1"])
    assert isinstance(got, Placement)
    assert [(d.values[0], d.count) for d in got["w"].domains] == [("r-0", 2), ("r-3", 2), ("r-2", 2)]
    # Two at once are too many for the rack; the rack is required.
    assert isinstance(place(book, [asked], rules=MUSTER, previous=before, lost=["r-1", "r-2"], avoid=["r-2"]), Misfit)
    # Without word of what is lost, it is what is gone or to be avoided.
    assert place(book, [asked], rules=MUSTER, previous=before) == got


def test_broken_slices_are_mended_where_they_stand() -> None:
    book = fabric({"b": {"r": [2, 2, 2], "s": [2, 2, 2]}})
    asked = asks(8, topology=TopologyRequest(slice_required="rack", slice_size=4))
    before = admitted({"w": {"r-0": 2, "r-1": 2, "s-0": 2, "s-1": 2}})
    book.charge(("ns", "g"), "g", before, {"w": takes(asked.pod_set.shape, dict(asked.per_pod))})
    got = place(book, [asked], rules=MUSTER, previous=before, lost=["r-1", "s-0"], avoid=["r-1", "s-0"])
    assert where(got) == {"r-0": 2, "r-2": 2, "s-1": 2, "s-2": 2}


@pytest.mark.parametrize(
    ("racks", "stood", "lost", "want"),
    [
        # One whole, and half of another: its ranks go where the rest of each is.
        ({"r": 2, "s": 3, "t": 2}, "r-0 r-1 s-0 s-1", "r-0 r-1 s-0", "t-0 t-1 s-2 s-1"),
        ({"r": 3, "s": 2, "t": 2}, "s-0 s-1 r-0 r-1", "s-0 s-1 r-1", "t-0 t-1 r-0 r-2"),
        ({"r": 3, "s": 3}, "s-0 s-1 r-0 r-1", "s-1 r-1", "s-0 s-2 r-0 r-2"),
        # Half of each of two in one rack.
        ({"r": 6, "s": 2}, "r-0 r-1 r-2 r-3", "r-1 r-3", "r-0 r-4 r-2 r-5"),
        ({"r": 4, "s": 2}, "r-0 r-1 r-2 r-3", "r-1 r-3", None),
        ({"r": 5, "s": 2}, "r-0 r-1 r-2 r-3", "r-1 r-3", None),
    ],
)
def test_every_slice_stays_in_its_domain_when_nodes_are_lost(
    racks: dict[str, int], stood: str, lost: str, want: str | None
) -> None:
    book = fabric({"b": {rack: [2] * nodes for rack, nodes in racks.items()}})
    asked = asks(4, gpus=2, topology=TopologyRequest(slice_required="rack", slice_size=2))
    before = admitted(Placement({"w": TopologyAssignment((HOST,), tuple(Domain((h,), 1) for h in stood.split()))}))
    book.charge(("ns", "g"), "g", before, {"w": takes(asked.pod_set.shape, dict(asked.per_pod))})
    gone = lost.split()
    got = place(book, [asked], rules=MUSTER, previous=before, lost=gone, avoid=gone)
    ranks = " ".join(d.values[0] for d in got["w"].domains) if isinstance(got, Placement) else None
    assert ranks == want
    # It left, and comes back.
    book.release(("ns", "g"))
    back = place(book, [asked], rules=MUSTER, previous=before, avoid=gone, again=True)
    ranks = " ".join(d.values[0] for d in back["w"].domains) if isinstance(back, Placement) else None
    assert ranks == want


def test_slices_that_are_mended_beside_each_other_keep_apart_what_must_stand_apart() -> None:
    book = fabric({"b": {"r": [2, 2, 2, 2, 8, 8]}})
    slices = TopologyRequest(slice_required="rack", slice_size=2)
    asked = asks(4, gpus=2, one_per_domain=(HOST,), topology=slices)
    before = admitted(Placement({"w": TopologyAssignment((HOST,), tuple(Domain((f"r-{i}",), 1) for i in range(4)))}))
    book.charge(("ns", "g"), "g", before, {"w": takes(asked.pod_set.shape, dict(asked.per_pod))})
    gone = ["r-1", "r-3"]
    got = place(book, [asked], rules=MUSTER, previous=before, lost=gone, avoid=gone)
    assert where(got) == {"r-0": 1, "r-2": 1, "r-4": 1, "r-5": 1}


@pytest.mark.parametrize(("left", "want"), [([2, 2], {"r-0": 2, "r-2": 2}), ([1, 1], None)])
def test_slices_within_broken_slices_stay_whole_too(left: list[int], want: dict[str, int] | None) -> None:
    book = fabric({"b": {"r": [2, 2, *left]}})
    asked = asks(4, topology=TopologyRequest(slices=(("rack", 4), (HOST, 2))))
    before = admitted({"w": {"r-0": 2, "r-1": 2}})
    book.charge(("ns", "g"), "g", before, {"w": takes(asked.pod_set.shape, dict(asked.per_pod))})
    got = place(book, [asked], rules=MUSTER, previous=before, lost=["r-1"], avoid=["r-1"])
    assert (where(got) if isinstance(got, Placement) else None) == want


@pytest.mark.parametrize("rules", [MUSTER, KUEUE])
@pytest.mark.parametrize("level", ["rack", HOST])
def test_nobody_is_put_on_a_node_that_is_to_be_avoided(rules: Rules, level: str) -> None:
    book = fabric({"b": {"r": [4, 4, 5], "s": [2]}})
    asked = asks(4, topology=TopologyRequest(required=level))
    first, second = ("r-0", "r-1")
    assert where(place(book, [asked], rules=rules)) == {first: 4}
    assert where(place(book, [asked], rules=rules, avoid=[first])) == {second: 4}
    assert where(place(book, [asked], rules=rules, avoid=[first, second])) == {"r-2": 4}
    assert isinstance(place(book, [asked], rules=rules, avoid=[first, second, "r-2"]), Misfit)


def test_growth_keeps_what_stands() -> None:
    book = fabric({"b": {"r": [4, 4, 4]}})
    before = admitted({"w": {"r-1": 3}})
    book.charge(("ns", "old"), "g", before, {"w": {GPU: 1}})
    grown = place(book, [asks(7)], rules=MUSTER, previous=before, without=[("ns", "old")])
    assert isinstance(grown, Placement)
    assert grown["w"].domains[0] == Domain(("r-1",), 3)
    assert sum(where(grown).values()) == 7
    assert where(grown)["r-1"] <= 4
    less = place(book, [asks(2)], rules=MUSTER, previous=before, without=[("ns", "old")])
    assert where(less) == {"r-1": 2}


# ---------------------------------------------------------------- what is left


@pytest.mark.parametrize("rules", [MUSTER, KUEUE])
def test_no_nodes_and_no_topology_are_answers_too(rules: Rules) -> None:
    assert isinstance(place(Capacity(), [asks(1)], rules=rules), Misfit)
    book = fabric({"b": {"r": [8]}})
    assert isinstance(place(book, [asks(1, topology=TopologyRequest(required="shelf"))], rules=rules), Misfit)
    assert place(book, [asks(0)], rules=rules) == {}


ONE_LAYER = replace(KUEUE, gates=KUEUE.gates - {"TASMultiLayerTopology"})
NO_SIZE = "slice topology requested, but slice size not provided"


@pytest.mark.parametrize(
    ("rules", "asked", "why"),
    [
        (MUSTER, {"required": "shelf"}, "topology 'net' has no level shelf"),
        (MUSTER, {"slice_required": "rack", "slice_size": 0}, NO_SIZE),
        (MUSTER, {"slice_required": "rack", "slice_size": 5}, None),
        (MUSTER, {"slices": (("rack", 6), (HOST, 4))}, "slices of 4 do not nest in slices of 6"),
        (MUSTER, {"slices": ((HOST, 6), ("rack", 2))}, "slices of 2 do not nest in slices of 6"),
        (MUSTER, {"slices": (("rack", 6), ("rack", 2))}, "slices of 2 do not nest in slices of 6"),
        (
            MUSTER,
            {"required": "rack", "slice_required": "block", "slice_size": 6},
            "slices of level block are wider than level rack",
        ),
        (KUEUE, {"required": "shelf"}, "no requested topology level: shelf"),
        (KUEUE, {"slice_required": "rack", "slice_size": 0}, NO_SIZE),
        (KUEUE, {"slice_required": "shelf", "slice_size": 2}, "no requested topology level for slices: shelf"),
        (
            KUEUE,
            {"required": "rack", "slice_required": "block", "slice_size": 6},
            "podset slice topology block is above the podset topology rack",
        ),
        (
            KUEUE,
            {"slices": (("rack", 6), ("shelf", 2))},
            "no requested topology level for additional slice layer: shelf",
        ),
        (
            KUEUE,
            {"slices": (("rack", 6), ("rack", 2))},
            "additional slice layer topology rack must be at a lower level than rack",
        ),
        (
            KUEUE,
            {"slices": (("rack", 6), (HOST, 4))},
            "additional slice layer size 4 must evenly divide parent layer size 6",
        ),
        (KUEUE, {"slices": (("rack", 6), (HOST, 1))}, None),
        (ONE_LAYER, {"slices": (("rack", 6), (HOST, 4))}, None),
        (KUEUE, {"required": "rack", "slice_required": "rack", "slice_size": 6}, None),
        (MUSTER, {"required": "rack", "slice_required": "rack", "slice_size": 6}, None),
        (MUSTER, {"slices": (("rack", 6), (HOST, 1))}, None),
    ],
)
def test_what_cannot_be_asked_of_a_topology_is_said(rules: Rules, asked: dict[str, Any], why: str | None) -> None:
    got = place(fabric({"b": {"r": [8, 8]}}), [asks(12, topology=TopologyRequest(**asked))], rules=rules)
    assert (got.message if isinstance(got, Misfit) else None) == why


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
@pytest.mark.parametrize(
    ("pods", "size", "free", "wanted"),
    [
        pytest.param(7, 4, [4, 4], [4, 3], id="the last slice is shorter"),
        pytest.param(3, 4, [4, 4], [3], id="it is the only one"),
        pytest.param(5, 3, [2, 3, 3], [3, 2], id="a whole one has its room"),
        pytest.param(7, 4, [4, 2], None, id="it is not divided"),
    ],
)
def test_pods_that_are_no_whole_slices_have_places(
    pods: int, size: int, free: list[int], wanted: list[int] | None, rules: Rules
) -> None:
    """As of a gang of which some are done when it comes back."""
    asked = asks(pods, topology=TopologyRequest(slice_required=HOST, slice_size=size))
    got = place(fabric({"b": {"r": free}}), [asked], rules=rules)
    if wanted is None:
        assert isinstance(got, Misfit)
        assert (got.pods, got.placeable) == (pods, size)
    else:
        assert not isinstance(got, Misfit)
        assert [domain.count for domain in got["w"].domains] == wanted


@pytest.mark.parametrize(
    ("level", "stood", "lost", "wanted"),
    [
        pytest.param(HOST, {"r-0": 5}, "r-0", {"r-1": 3, "r-2": 2}, id="all of it"),
        pytest.param(HOST, {"r-0": 3, "r-1": 2}, "r-1", {"r-0": 3, "r-2": 2}, id="the short slice"),
        pytest.param("rack", {"r-0": 3, "s-0": 1, "s-1": 1}, "s-0", {"r-0": 3, "s-1": 2}, id="one of the short slice"),
    ],
)
def test_a_gang_whose_last_slice_is_short_loses_a_node_by_kueues_rules(
    level: str, stood: dict[str, int], lost: str, wanted: dict[str, int]
) -> None:
    before, asked = admitted({"w": stood}), asks(5, topology=TopologyRequest(slice_required=level, slice_size=3))
    book = fabric({"b": {"r": [5, 3, 3], "s": [3, 3]}})
    book.charge(("ns", "g"), "g", before, {"w": takes(asked.pod_set.shape, dict(asked.per_pod))})
    got = place(book, [asked], rules=KUEUE, previous=before, lost=[lost], avoid=[lost])
    assert where(got) == wanted


THREES_IN_A_RACK = {"required": "rack", "slice_required": HOST, "slice_size": 3}
RACK_OF_FOUR = {"slice_required": "rack", "slice_size": 4}
FOURS_IN_EIGHTS = {"slices": (("block", 8), ("rack", 4))}


@pytest.mark.parametrize(
    ("asked", "stood", "lost", "rooms", "wanted"),
    [
        pytest.param(
            THREES_IN_A_RACK,
            {"r-0": 3, "r-1": 2},
            ["r-1"],
            {"b": {"r": [3, 3], "s": [3, 3]}},
            None,
            id="out of its rack",
        ),
        pytest.param(
            THREES_IN_A_RACK,
            {"s-0": 3, "s-1": 2},
            ["s-1"],
            {"b": {"r": [3, 3], "s": [3, 3, 3]}},
            {"s-0": 3, "s-2": 2},
            id="in its rack",
        ),
        pytest.param(
            {"slices": (("rack", 4), (HOST, 2))},
            {"r-0": 2, "r-1": 2, "s-0": 2, "s-1": 1},
            ["s-1"],
            {"b": {"r": [2, 2], "s": [2, 2, 2], "t": [2, 2]}},
            {"r-0": 2, "r-1": 2, "s-0": 2, "s-2": 1},
            id="the inner short slice, beside the outer",
        ),
        pytest.param(
            {"slices": (("rack", 4), (HOST, 2))},
            {"r-0": 2, "r-1": 2, "s-0": 2, "s-1": 1},
            ["s-1"],
            {"b": {"r": [2, 2], "s": [3, 2, 2], "t": [2, 2]}},
            {"r-0": 2, "r-1": 2, "s-0": 2, "s-2": 1},
            id="the inner short slice, not torn",
        ),
        pytest.param(
            {"slices": (("rack", 4), (HOST, 2))},
            {"r-0": 2, "r-1": 2, "s-0": 2, "s-1": 1},
            ["s-0", "s-1"],
            {"b": {"r": [2, 2], "s": [2, 2], "t": [2, 2]}},
            {"r-0": 2, "r-1": 2, "t-0": 2, "t-1": 1},
            id="the short slice of both layers",
        ),
        pytest.param(
            RACK_OF_FOUR,
            {"r-0": 3, "r-1": 1, "s-0": 3, "s-1": 1},
            ["r-0", "s-0"],
            {"b": {"r": [3, 1], "s": [3, 1], "t": [4], "u": [4]}},
            None,
            id="parts of two slices",
        ),
        pytest.param(
            RACK_OF_FOUR,
            {"r-0": 2, "r-1": 2, "s-0": 2, "s-1": 2},
            ["r-0", "s-0"],
            {"b": {"r": [2, 2], "s": [2, 2], "t": [4]}},
            None,
            id="parts of two slices, as many as a whole one",
        ),
        pytest.param(
            RACK_OF_FOUR,
            {"r-0": 4, "s-0": 1, "s-1": 1},
            ["r-0"],
            {"b": {"r": [4], "s": [1, 1], "t": [4]}},
            {"s-0": 1, "s-1": 1, "t-0": 4},
            id="a whole one beside the short one",
        ),
        pytest.param(
            RACK_OF_FOUR,
            {"r-0": 3, "r-1": 1, "s-0": 3, "s-1": 1, "t-0": 2},
            ["r-0", "s-0"],
            {"b": {"r": [3, 1], "s": [3, 1], "t": [8]}},
            None,
            id="parts of two slices beside the short one",
        ),
        pytest.param(
            FOURS_IN_EIGHTS,
            {"r-0": 3, "r-1": 1, "s-0": 3, "s-1": 1},
            ["r-0", "s-0"],
            {"b": {"r": [3, 1], "s": [3, 1], "t": [8]}},
            None,
            id="parts of two inner slices",
        ),
        pytest.param(
            FOURS_IN_EIGHTS,
            {"r-0": 2, "r-1": 2, "s-0": 4, "t-0": 4, "u-0": 4},
            ["r-1", "t-0"],
            {"a": {"r": [2, 2, 8], "s": [4]}, "b": {"t": [4], "u": [4]}},
            None,
            id="an inner slice whole, two outer ones torn",
        ),
        pytest.param(
            FOURS_IN_EIGHTS,
            {"r-0": 2, "r-1": 2, "s-0": 4, "t-0": 4, "u-0": 2},
            ["r-1", "t-0"],
            {"a": {"r": [2, 2, 8], "s": [4]}, "b": {"t": [4], "u": [2, 8]}},
            {"r-0": 2, "s-0": 4, "u-0": 2, "u-1": 6},
            id="beside the inner short slice, where the outer is whole",
        ),
    ],
)
def test_where_pods_of_a_lost_node_may_not_be_by_kueues_rules_they_are_not_replaced(
    asked: dict[str, Any],
    stood: dict[str, int],
    lost: list[str],
    rooms: dict[str, dict[str, list[int]]],
    wanted: dict[str, int] | None,
) -> None:
    before, gang = admitted({"w": stood}), asks(sum(stood.values()), topology=TopologyRequest(**asked))
    book = fabric(rooms)
    book.charge(("ns", "g"), "g", before, {"w": takes(gang.pod_set.shape, dict(gang.per_pod))})
    got = place(book, [gang], rules=KUEUE, previous=before, lost=lost, avoid=lost)
    assert (None if isinstance(got, Misfit) else where(got)) == wanted


def test_an_inner_slice_that_does_not_bind_is_not_asked_for_when_a_node_is_lost() -> None:
    gang = asks(8, topology=TopologyRequest(slices=(("rack", 4), (HOST, 2))))
    before = admitted({"w": {"r-0": 1, "r-1": 3, "s-0": 1, "s-1": 3}})
    book = fabric({"b": {"r": [1, 3, 1], "s": [1, 3]}})
    book.charge(("ns", "g"), "g", before, {"w": takes(gang.pod_set.shape, dict(gang.per_pod))})
    got = place(book, [gang], rules=ONE_LAYER, previous=before, lost=["r-0"], avoid=["r-0"])
    assert where(got) == {"r-1": 3, "r-2": 1, "s-0": 1, "s-1": 3}


@pytest.mark.parametrize(
    ("kept_out", "others", "detail"), [(True, 0, Detail.NODES_UNUSABLE), (False, 2, Detail.NODES_TAKEN)]
)
def test_what_nodes_could_take_of_pods_that_are_no_whole_slices_is_no_more_than_there_are(
    kept_out: bool, others: int, detail: Detail
) -> None:
    book = fabric({"b": {"r": [4, 4]}})
    if kept_out:
        book.put_node(replace(node("r-1", 4, block="b", rack="r"), unschedulable=True))
    if others:
        book.put_pod(PodUsage(("x", "p"), "p", "r-1", ((GPU, others),)))
    got = place(book, [asks(7, topology=TopologyRequest(slice_required=HOST, slice_size=4))], rules=MUSTER)
    assert isinstance(got, Misfit)
    assert (got.detail, got.placeable, got.pods, got.sound) == (detail, 4, 7, 7)
    assert "they could take 7 of 7" in misfit_sentence(got)


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
def test_of_a_last_slice_across_nodes_no_more_pods_get_places_than_there_are(rules: Rules) -> None:
    asked = asks(5, topology=TopologyRequest(slice_required="rack", slice_size=4))
    got = place(fabric({"b": {"r": [2, 2], "s": [2, 2]}}), [asked], rules=rules)
    assert isinstance(got, Placement)
    assert [domain.count for domain in got["w"].domains] == [2, 2, 1]


def test_a_group_with_a_short_slice_has_a_domain_that_holds_it() -> None:
    sliced = TopologyRequest(required="rack", group="g", slice_required=HOST, slice_size=4)
    sets = [asks(7, topology=sliced), asks(1, name="l", topology=TopologyRequest(required="rack", group="g"))]
    got = place(fabric({"b": {"r": [4, 3, 1]}}), sets, rules=MUSTER)
    assert (where(got), where(got, "l")) == ({"r-0": 4, "r-1": 3}, {"r-2": 1})


@pytest.mark.parametrize("required", [None, "rack"])
@pytest.mark.parametrize(
    ("pods", "free", "placeable"),
    [pytest.param(11, [4, 3], 7, id="the short one, too"), pytest.param(7, [4, 2], 4, id="a whole one alone")],
)
def test_of_pods_that_are_no_whole_slices_it_is_said_how_many_there_is_room_for(
    pods: int, free: list[int], placeable: int, required: str | None
) -> None:
    asked = asks(pods, topology=TopologyRequest(required=required, slice_required=HOST, slice_size=4))
    got = place(fabric({"b": {"r": free}}), [asked], rules=MUSTER)
    assert isinstance(got, Misfit)
    assert (got.placeable, got.pods) == (placeable, pods)


@pytest.mark.parametrize("room", [[4, 4], [4, 3]], ids=["for more", "for just these"])
def test_of_pods_that_are_no_whole_slices_it_is_not_said_that_there_are_more_that_fit_alone(room: list[int]) -> None:
    slices = TopologyRequest(required="rack", group="g", slice_required=HOST, slice_size=4)
    beside = TopologyRequest(required="rack", group="g")
    sets = [asks(7, topology=slices), asks(2, name="l", topology=beside)]
    got = place(fabric({"b": {"r": room}}), sets, rules=MUSTER)
    assert isinstance(got, Misfit)
    assert got.pods == 7
    assert got.message == "the pods of w would fit alone, but not beside the other pod sets"


LAYERS = {"slices": (("rack", 4), (HOST, 2))}
FOURS = {"slice_required": HOST, "slice_size": 4}
IN_A_RACK = {"required": "rack", **FOURS}
PAIRS = {"slice_required": HOST, "slice_size": 2}


@pytest.mark.parametrize(
    ("room", "pods", "asked", "spread", "wanted"),
    [
        pytest.param({"b": {"r": [3, 4]}}, 7, FOURS, False, ["r-1 4", "r-0 3"], id="it fits"),
        pytest.param({"b": {"r": [3, 2]}}, 3, FOURS, False, ["r-0 3"], id="it is the only one"),
        pytest.param(
            {"b": {"r": [3, 3, 7, 8]}}, 11, FOURS, False, ["r-3 8", "r-1 3"], id="the last of the tightest nodes"
        ),
        pytest.param({"b": {"r": [7, 4]}}, 11, FOURS, False, ["r-1 4", "r-0 7"], id="behind a whole one of its node"),
        pytest.param({"b": {"r": [11, 7, 4]}}, 7, IN_A_RACK, False, ["r-1 7"], id="the tightest node for all"),
        pytest.param(
            {"b": {"r": [11], "s": [7], "t": [4]}},
            7,
            {"required": "block", "slice_required": "rack", "slice_size": 4},
            False,
            ["s-0 7"],
            id="the tightest rack for all",
        ),
        pytest.param(
            {"b": {"r": [4, 3], "s": [4, 4]}}, 7, FOURS, False, ["r-0 4", "r-1 3"], id="a rack that is as tight by it"
        ),
        pytest.param({"b": {"r": [4, 3]}}, 7, IN_A_RACK, True, ["r-0 4", "r-1 3"], id="spread within a rack"),
        pytest.param(
            {"b": {"a": [4], "r": [1, 2]}}, 7, LAYERS, True, ["a-0 4", "r-1 2", "r-0 1"], id="spread, in another rack"
        ),
        pytest.param(
            {"b": {"r": [1, 2], "s": [4]}}, 7, LAYERS, False, ["s-0 4", "r-1 2", "r-0 1"], id="a slice in a slice"
        ),
        pytest.param({"b": {"r": [2, 1], "s": [3, 1]}}, 7, LAYERS, False, None, id="no room for the whole one"),
        pytest.param({"b": {"r": [3, 3, 4]}}, 7, PAIRS, False, ["r-2 4", "r-1 3"], id="as few nodes: of equal ones"),
        pytest.param(
            {"b": {"r": [9, 10, 10, 12]}}, 21, PAIRS, False, ["r-3 12", "r-0 9"], id="as few nodes: beside a larger one"
        ),
        pytest.param(
            {"b": {"r": [3, 4, 7]}}, 11, PAIRS, False, ["r-1 4", "r-2 7"], id="as few nodes: not the smallest for it"
        ),
        pytest.param(
            {"b": {"r": [1, 4, 8]}}, 11, PAIRS, False, ["r-2 8", "r-1 3"], id="as few nodes: in the room of a whole one"
        ),
        pytest.param(
            {"b": {"r": [1, 2], "s": [4]}}, 7, LAYERS, True, ["s-0 4", "r-1 2", "r-0 1"], id="where pods are spread"
        ),
        pytest.param(
            {"b": {"r": [8], "s": [4]}},
            12,
            {"slice_required": "rack", "slice_size": 8, "slices": ((HOST, 2),)},
            True,
            ["r-0 8", "s-0 4"],
            id="asked for in both ways",
        ),
    ],
)
def test_a_short_slice_takes_no_more_room_than_its_pods_and_is_the_last(
    room: dict[str, dict[str, list[int]]], pods: int, asked: dict[str, Any], spread: bool, wanted: list[str] | None
) -> None:
    flavor = Flavor("f", topology="net", spread=spread)
    got = place(fabric(room), [asks(pods, flavor=flavor, topology=TopologyRequest(**asked))], rules=MUSTER)
    there = None if isinstance(got, Misfit) else [f"{one.values[0]} {one.count}" for one in got["w"].domains]
    assert there == wanted


def test_what_a_short_slice_takes_does_not_grow_with_the_kinds_of_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    book, wanted = Capacity(), []
    book.put_topology(NET)
    for room in range(1, 201):
        there = node(f"n-{room:03}", block="b", rack="r")
        book.put_node(replace(there, allocatable=((GPU, room), ("pods", 300))))
    asked, plain = asks(3999, topology=TopologyRequest(**PAIRS)), topology.fewest

    def counted(caps: topology.Ints, want: int) -> list[int] | None:
        wanted.append(want)
        return plain(caps, want)

    monkeypatch.setattr(topology, "fewest", counted)
    got = where(place(book, [asked], rules=MUSTER))
    assert (len(got), sum(got.values())) == (22, 3999)
    assert len(wanted) == 1


# ---------------------------------------------------------------- JobSet's exclusive placement


def children(number: int, pods: int, key: str = "rack", name: str = "w", **more: Any) -> PlaceRequest:
    shape = {"of_jobset": True, "exclusive": Exclusive(key, pods, more.pop("values", "")), **more}
    return asks(number * pods, name=name, **shape)


def taken(book: Capacity, request: PlaceRequest, hosts: dict[str, int], key: str = "other") -> None:
    book.charge(("ns", key), key, admitted({"w": hosts}), {"w": takes(request.pod_set.shape, dict(request.per_pod))})


RACKS = {"b1": {"r": [4, 4], "s": [4, 4]}, "b2": {"t": [8], "u": [4]}}


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        # The tightest domains that hold a child job, in one block if that can be, in the order of the tree.
        (children(2, 4), {"t-0": 4, "u-0": 4}),
        (children(2, 8), {"r-0": 4, "r-1": 4, "s-0": 4, "s-1": 4}),
        (children(3, 8), {"r-0": 4, "r-1": 4, "s-0": 4, "s-1": 4, "t-0": 8}),
        (children(4, 1), {"r-0": 1, "s-0": 1, "t-0": 1, "u-0": 1}),
        (children(2, 3, key=HOST), {"r-0": 3, "r-1": 3}),
        (children(2, 4, key="block"), {"r-0": 4, "u-0": 4}),
        (children(2, 2, topology=TopologyRequest(required="block")), {"t-0": 2, "u-0": 2}),
        (children(2, 2, one_per_domain=(HOST,)), {"r-0": 1, "r-1": 1, "s-0": 1, "s-1": 1}),
        (children(3, 2, topology=TopologyRequest(required="block")), "all within one block"),
        (children(5, 1), "4 of 4 hold the 1 pod(s)"),
        (children(4, 8), "3 of 4 hold the 8 pod(s)"),
        (children(2, 4, key="room"), "0 of 0"),
        (children(2, 4, topology=TopologyRequest(slice_required="rack", slice_size=4)), "drop the slices"),
    ],
)
def test_each_child_job_gets_a_domain_of_its_own(request_: PlaceRequest, wanted: dict[str, int] | str) -> None:
    got = place(fabric(RACKS), [request_], rules=MUSTER)
    if isinstance(wanted, str):
        assert isinstance(got, Misfit)
        assert wanted in got.message
    else:
        assert where(got) == wanted


def test_child_jobs_follow_each_other_in_the_order_of_the_tree() -> None:
    """However their racks are called: neighbours in rank are near each other."""
    got = place(fabric({"b1": {"y": [4], "z": [4]}, "b2": {"a": [4]}}), [children(3, 4)], rules=MUSTER)
    assert list(where(got)) == ["y-0", "z-0", "a-0"]


def test_no_other_jobset_shares_a_domain_and_jobs_may() -> None:
    book = fabric(RACKS)
    mine, plain, job = children(1, 4), asks(4, of_jobset=True), asks(4)
    taken(book, mine, {"u-0": 4})
    taken(book, plain, {"t-0": 1}, "plain")
    taken(book, job, {"r-0": 1}, "job")
    assert where(place(book, [children(2, 4)], rules=MUSTER)) == {"r-1": 4, "s-0": 4}
    got = place(book, [children(3, 1)], rules=MUSTER)
    assert isinstance(got, Misfit)
    assert (got.placeable, dict(got.excluded)) == (2, {"exclusive topology": 1, GPU: 1})
    assert "2 of 4 hold" in got.message
    # Who is not exclusive shares with its like, and not with who is.
    assert where(place(book, [asks(22, of_jobset=True)], rules=MUSTER)) == {
        "r-0": 3,
        "r-1": 4,
        "s-0": 4,
        "s-1": 4,
        "t-0": 7,
    }
    # What would leave, or is set aside, counts at once.
    assert where(place(book, [children(1, 4)], rules=MUSTER, without=[("ns", "other")])) == {"u-0": 4}
    assert where(place(book, [children(4, 1)], rules=MUSTER, empty=True))["t-0"] == 1
    book.set_aside(("ns", "claim"), booking_of("", admitted({"w": {"s-0": 1}}), {"w": mine.takes}))
    with book.as_if(frozenset(), frozenset(), frozenset()):
        assert isinstance(place(book, [children(2, 1)], rules=MUSTER), Misfit)
    # Pods, of others and of gangs that left, as well as charges; and nothing stays when they go.
    book.put_pod(PodUsage(("x", "p"), "p", "s-1", (), of_jobset=True))
    assert where(place(book, [children(1, 1)], rules=MUSTER)) == {"r-0": 1}
    book.put_pod(PodUsage(("x", "q"), "q", "r-1", (), of_jobset=True, exclusive_key="block"))
    assert where(place(book, [asks(7, of_jobset=True)], rules=MUSTER)) == {"t-0": 7}
    assert isinstance(place(book, [asks(8, of_jobset=True)], rules=MUSTER), Misfit), "u-0 is barred by its rack"
    for key in (("x", "p"), ("x", "q")):
        book.remove_pod(key)
    for name in ("other", "plain", "job"):
        book.release(("ns", name))
    assert not book.drift()
    assert where(place(book, [children(4, 1)], rules=MUSTER)) == {"r-0": 1, "s-0": 1, "t-0": 1, "u-0": 1}


def test_the_other_pod_sets_of_an_exclusive_jobset_keep_out_too() -> None:
    lead, work = asks(1, name="lead", of_jobset=True), children(3, 4)
    got = place(fabric(RACKS), [lead, work], rules=MUSTER)
    racks = [{host[0] for host in where(got, name)} for name in ("lead", "w")]
    assert not racks[0] & racks[1]
    assert isinstance(place(fabric(RACKS), [lead, children(4, 4)], rules=MUSTER), Misfit)
    both = place(fabric(RACKS), [children(2, 4, name="lead"), children(2, 8)], rules=MUSTER)
    assert (where(both, "lead"), where(both)) == (
        {"t-0": 4, "u-0": 4},
        {"r-0": 4, "r-1": 4, "s-0": 4, "s-1": 4},
    )


def test_child_jobs_on_nodes_that_were_labelled_for_them() -> None:
    book = fabric(RACKS)
    for rack, child in (("s", 0), ("r", 1)):
        for i in range(2):
            book.put_node(node(f"{rack}-{i}", 4, block="b1", rack=rack, job=f"ns_js-w-{child}"))
    named = children(2, 6, key="job", values="ns_js-w-")
    got = place(book, [named], rules=MUSTER)
    assert isinstance(got, Placement)
    assert [(d.values[0], d.count) for d in got["w"].domains] == [("s-0", 4), ("s-1", 2), ("r-0", 4), ("r-1", 2)]
    short = place(book, [children(3, 6, key="job", values="ns_js-w-")], rules=MUSTER)
    assert isinstance(short, Misfit)
    assert "2 child jobs have theirs" in short.message


def test_child_jobs_keep_their_domains_when_a_node_is_lost() -> None:
    book = fabric({"b1": {"r": [4, 4, 4], "s": [4, 4, 4]}, "b2": {"t": [8], "u": [8]}})
    asked = children(2, 8)
    before = admitted({"w": {"r-0": 4, "r-1": 4, "s-0": 4, "s-1": 4}})
    book.charge(("ns", "g"), "g", before, {"w": takes(asked.pod_set.shape, dict(asked.per_pod))})

    def replaced(*lost: str) -> Placement | Misfit:
        return place(book, [asked], rules=MUSTER, avoid=lost, lost=lost, previous=before)

    def hosts(got: Placement | Misfit) -> list[tuple[str, int]]:
        assert isinstance(got, Placement)
        return [(d.values[0], d.count) for d in got["w"].domains]

    assert hosts(replaced("r-1")) == [("r-0", 4), ("r-2", 4), ("s-0", 4), ("s-1", 4)]
    assert hosts(replaced("r-1", "s-0")) == [("r-0", 4), ("r-2", 4), ("s-2", 4), ("s-1", 4)]
    assert hosts(replaced("s-0", "s-1")) == [("r-0", 4), ("r-1", 4), ("t-0", 8)], "a child that lost all moves as one"
    book.put_node(node("r-2", 0, block="b1", rack="r"))
    assert isinstance(replaced("r-1"), Misfit), "the rest of its child is in that rack"
    # It left, and comes back to where it stood, unless another JobSet is there by now.
    book.release(("ns", "g"))
    back = place(book, [asked], rules=MUSTER, previous=before, again=True)
    assert hosts(back) == [("r-0", 4), ("r-1", 4), ("s-0", 4), ("s-1", 4)]
    taken(book, asks(1, of_jobset=True), {"s-2": 1})
    again = place(book, [asked], rules=MUSTER, previous=before, again=True)
    assert hosts(again) == [("r-0", 4), ("r-1", 4), ("t-0", 8)]


def test_pods_that_linger_on_lost_nodes_keep_their_domains_for_their_child_jobs() -> None:
    """By JobSet's affinities, for kube-scheduler counts pods until they are gone."""
    asked, before = children(2, 8, **NAMED), admitted({"w": {"r-0": 4, "r-1": 4, "s-0": 4, "s-1": 4}})

    def book(*lingering: str) -> Capacity:
        out = fabric({"b1": {"r": [4, 4, 4], "s": [4, 4]}, "b2": {"t": [8], "u": [8]}})
        for host in lingering:
            out.put_node(replace(node(host, 4, block="b1", rack=host[0]), ready=False))
            out.put_pod(of_child("rs".index(host[0]), host, "g"))
        return out

    def again(held: Capacity) -> list[tuple[str, int]] | str:
        for options in ({"previous": before, "again": True}, {}):
            got = place(held, [asked], rules=MUSTER, own="g", **options)
            if isinstance(got, Placement):
                return [(d.values[0], d.count) for d in got["w"].domains]
        assert isinstance(got, Misfit)
        return got.message

    survivors = [("s-0", 4), ("s-1", 4)]
    assert again(book("r-1")) == [("r-0", 4), ("r-2", 4), *survivors], "in its rack, beside the pod that lingers"
    one = book("s-0")
    assert "are not gone from s-0" in again(one), "its child job may stand in no other rack"
    one.remove_pod(("ns", "s-0-g"))
    assert again(one) == [("t-0", 8), ("u-0", 8)]
    # Both nodes of a child job lost: it stands wholly on others, of the same rack.
    both = book("r-0", "r-1")
    both.put_node(node("r-3", 4, block="b1", rack="r"))
    assert again(both) == [("r-2", 4), ("r-3", 4), *survivors]
    # Without a word of where it stood pods say themselves whose rack it is; others keep out as ever.
    assert where(place(both, [asked], rules=MUSTER, own="g")) == {"r-2": 4, "r-3": 4, "s-0": 4, "s-1": 4}
    assert where(place(both, [children(2, 8)], rules=MUSTER)) == {"t-0": 8, "u-0": 8}
    # Those of a node that is no more are nobody's business.
    both.remove_node("r-0")
    both.remove_node("r-1")
    assert isinstance(place(both, [asked], rules=MUSTER, own="g"), Placement)


def of_child(child: int, host: str, uid: str) -> PodUsage:
    return PodUsage(
        key=("ns", f"{host}-{uid}"),
        uid=f"{host}-{uid}",
        node=host,
        requests=(),
        workload_uid=uid,
        of_jobset=True,
        exclusive_key="rack",
        child=("ns/js-w", child),
    )


NAMED = {
    "namespace": "ns",
    "labels": (("jobset.sigs.k8s.io/jobset-name", "js"), ("jobset.sigs.k8s.io/replicatedjob-name", "w")),
}


@pytest.mark.parametrize("uid", ["old", ""], ids=["its workload is known", "its workload is gone"])
def test_pods_of_a_jobset_that_was_deleted_keep_their_domains_for_the_next_of_its_name(uid: str) -> None:
    """JobSet names child jobs by namespace and name in its affinities, not by uid."""
    asked, stranger = children(2, 8, **NAMED), children(2, 8, **{**NAMED, "namespace": "other"})
    book = fabric({"b1": {"r": [4, 4, 4], "s": [4, 4, 4]}, "b2": {"t": [8], "u": [8]}})
    book.put_node(replace(node("s-0", 4, block="b1", rack="s"), ready=False))
    book.put_pod(of_child(1, "s-0", uid))
    anew = place(book, [asked], rules=MUSTER, own="new")
    assert isinstance(anew, Placement)
    assert [(d.values[0], d.count) for d in anew["w"].domains] == [("t-0", 8), ("s-1", 4), ("s-2", 4)]
    # Nobody else may stand there, and nobody else is bound to it.
    for other in (stranger, children(2, 8, **{**NAMED, "labels": (("jobset.sigs.k8s.io/jobset-name", "x"),)})):
        assert where(place(book, [other], rules=MUSTER, own="x")) == {"t-0": 8, "u-0": 8}
    book.put_node(replace(node("s-1", 4, block="b1", rack="s"), unschedulable=True))
    short = place(book, [asked], rules=MUSTER, own="new")
    assert isinstance(short, Misfit)
    assert "or of a JobSet of its name before it, are not gone from s-0" in short.message
    book.remove_pod(("ns", f"s-0-{uid}"))
    assert where(place(book, [asked], rules=MUSTER, own="new")) == {"t-0": 8, "u-0": 8}


def test_exclusive_topology_is_refused_where_kueues_rule_places() -> None:
    got = place(fabric(RACKS), [children(2, 4)], rules=KUEUE)
    assert isinstance(got, Misfit)
    assert got.detail is Detail.CONSTRAINT_REFUSED


# ---------------------------------------------------------------- whom pods of others keep away


def keeps_away(key: str, *namespaces: str, **labels: str) -> AntiAffinity:
    needs = tuple(Requirement(label, "In", (value,)) for label, value in sorted(labels.items()))
    return AntiAffinity(key, LabelSelector(needs), namespaces)


@pytest.mark.parametrize(
    ("asked", "barred"),
    [
        (keeps_away(HOST, "ns", app="llm"), {"r-0"}),
        (keeps_away("rack", "ns", app="llm"), {"r-0", "r-1"}),
        (keeps_away("rack", app="llm"), {"r-0", "r-1"}),
        (AntiAffinity("rack", LabelSelector((Requirement("app", "Exists"),)), ("ns",)), {"r-0", "r-1"}),
        (AntiAffinity("block", LabelSelector(), ()), {"r-0", "r-1", "s-0", "s-1"}),
        (keeps_away("rack", "x", app="llm"), set()),
        (keeps_away("rack", "ns", app="other"), set()),
        (keeps_away("rack", "ns", app="llm", tier="web"), set()),
        (keeps_away("no-such-label", "ns", app="llm"), set()),
        (AntiAffinity("rack", LabelSelector((Requirement("app", "NotIn", ("llm",)),)), ("ns",)), set()),
    ],
)
def test_pods_of_others_keep_those_away_whom_they_select(asked: AntiAffinity, barred: set[str]) -> None:
    """Whatever they are: pods that are not ours, pods of a gang, or a gang whose pods are not made yet."""
    book, holder = fabric(RACKS), asks(1, 0, apart=(asked,))
    request = asks(28, namespace="ns", labels=(("app", "llm"),))
    free = where(place(book, [request], rules=MUSTER))
    for way in ("foreign", "gang", "charge"):
        if way == "charge":
            taken(book, holder, {"r-0": 1}, "holder")
        else:
            book.put_pod(PodUsage(("x", "p"), "p", "r-0", (), "" if way == "foreign" else "g", apart=(asked,)))
        left = {host: pods for host, pods in free.items() if host not in barred}
        assert where(place(book, [replace(request, count=sum(left.values()))], rules=MUSTER)) == left, way
        got = place(book, [request], rules=MUSTER)
        if barred:
            assert isinstance(got, Misfit)
            assert got.placeable == sum(left.values())
            assert got.excluded == (("anti-affinity of other pods", len(barred)),)
        # On nodes without gangs only those of others count.
        bare = place(book, [request], rules=MUSTER, empty=True)
        assert isinstance(bare, Misfit) == (bool(barred) and way == "foreign")
        if way == "charge":
            book.release(("ns", "holder"))
        else:
            book.remove_pod(("x", "p"))
        assert where(place(book, [request], rules=MUSTER)) == free
        assert book.settle_apart() == set()
        assert book.repelled(request.pod_set.shape) == ()


def test_a_gang_of_the_same_template_keeps_its_twin_away_and_not_itself() -> None:
    apart = keeps_away("rack", "ns", app="llm")
    twin = asks(2, labels=(("app", "llm"),), namespace="ns", apart=(apart,), one_per_domain=("rack",))
    book = fabric(RACKS)
    before = admitted({"w": {"r-0": 1, "s-0": 1}})
    taken(book, twin, {"r-0": 1, "s-0": 1}, "g")
    other = where(place(book, [twin], rules=MUSTER))
    assert {host[0] for host in other} == {"t", "u"}
    three = place(book, [replace(twin, count=3)], rules=MUSTER)
    assert isinstance(three, Misfit)
    assert three.placeable == 2
    # One of its own nodes is lost: another of the same rack will do, for it is its own pod that stood there.
    for host in ("t-0", "u-0"):
        book.put_node(node(host, 0, block="b2", rack=host[0]))
    assert where(place(book, [twin], rules=MUSTER, previous=before, avoid=["s-0"], lost=["s-0"])) == {
        "r-0": 1,
        "s-1": 1,
    }
    # It left, and comes back to where it stood, but not to where its twin is by now.
    book.release(("ns", "g"))
    assert where(place(book, [twin], rules=MUSTER, previous=before, again=True)) == {"r-0": 1, "s-0": 1}
    book.put_pod(PodUsage(("ns", "p"), "p", "s-1", (), "twin", apart=(apart,)))
    book.put_node(node("t-0", 1, block="b2", rack="t"))
    assert where(place(book, [twin], rules=MUSTER, previous=before, again=True)) == {"r-0": 1, "t-0": 1}


def test_gangs_that_only_keep_off_each_other_cost_the_book_nothing() -> None:
    """Each asks for a label of its own: nobody stands in the way of anybody, and nothing stays of them."""
    book = fabric(RACKS)
    for i in range(5):
        apart = keeps_away(HOST, "ns", app=f"g{i}")
        mine = asks(2, labels=(("app", f"g{i}"),), namespace="ns", apart=(apart,), one_per_domain=(HOST,))
        book.count_apart([mark_of(apart)], 1)
        assert book.repelled(mine.pod_set.shape) == (mark_of(apart),), "as one who waits"
        assert book.kept_away_by(mine.pod_set.shape) == ()
        taken(book, mine, where(place(book, [mine], rules=MUSTER)), f"g{i}")
        assert mine.takes == asks(2).takes
        assert len(book.kept_away_by(mine.pod_set.shape)) == 1, "of its twin it would"
        assert isinstance(place(book, [replace(mine, count=6)], rules=MUSTER), Misfit)
        book.release(("ns", f"g{i}"))
        book.count_apart([mark_of(apart)], -1)
        book.settle_apart()
    assert not [name for name in book.table.free if name.startswith("anti-affinity:")]


def test_child_jobs_that_have_no_domain_beside_those_of_another_pod_set_are_told_how_many_are_left() -> None:
    asked = [children(1, 2, name="leader"), children(1, 4, name="worker")]
    got = place(fabric({"b": {"r": [8]}}), asked, rules=MUSTER)
    assert isinstance(got, Misfit)
    assert got.beside
    assert ", and 0 of 1 hold the 2 pod(s) of one beside its other pod sets and have no pod of" in got.message


@pytest.mark.parametrize(
    ("free", "detail", "sound"),
    [
        pytest.param([4], Detail.NEVER_FITS_NODES, 1, id="half of a pod has no room beside them"),
        pytest.param([3, 2], Detail.NODES_UNUSABLE, 2, id="a node that they fill costs the others none"),
    ],
)
def test_what_nodes_could_take_beside_the_other_pod_sets_is_told_in_whole_pods(
    free: list[int], detail: Detail, sound: int
) -> None:
    book = fabric({"b": {"r": free}})
    book.put_node(replace(node("closed", 2, block="b", rack="r"), unschedulable=True))
    asked = [asks(1, 3, name="first", requests=((GPU, 3), ("cpu", 1))), asks(2, 2, requests=((GPU, 2), ("cpu", 1)))]
    got = place(book, asked, rules=MUSTER)
    assert isinstance(got, Misfit)
    assert (got.pod_set, got.beside, got.detail, got.sound) == ("w", True, detail, sound)
