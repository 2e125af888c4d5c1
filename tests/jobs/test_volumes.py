"""What volumes allow, against kube-scheduler's own way of asking: one pod, one node, objects as the API has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine.model import Admission, Node, Workload, matches
from admission.engine.order import stamp
from admission.jobs import values, volumes
from admission.jobs.kinds import JOBSET
from admission.jobs.requests import READ
from admission.jobs.volumes import Storage, use_of
from admission.jobs.workload import build_workload
from admission.names import Names
from tests.engine.placement_oracle import meets

NAMES = Names()
Json = dict[str, Any]
ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION, OLD_REGION = "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"
HOST = "kubernetes.io/hostname"


def claim(name: str = "data", *, volume: str = "", bound: bool = False, **said: Any) -> Json:
    notes = {"pv.kubernetes.io/bind-completed": "yes"} if bound else {}
    notes |= {"volume.kubernetes.io/selected-node": said.pop("node")} if "node" in said else {}
    size = said.pop("size", "1Gi")
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **said}
    meta: Json = {"namespace": "ns", "name": name, "uid": f"u-{name}", "annotations": notes}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": meta,
        "spec": {"volumeName": volume, **spec} if volume else spec,
        "status": {"phase": "Bound" if bound else "Pending"},
    }


def volume(name: str, terms: list[Json] | None = None, *, labels: Mapping[str, str] | None = None, **said: Any) -> Json:
    phase = said.pop("phase", "Available")
    spec: Json = {"capacity": {"storage": said.pop("size", "1Gi")}, "accessModes": ["ReadWriteOnce"], **said}
    if terms is not None:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    meta = {"name": name, "labels": dict(labels or {})}
    return {"kind": "PersistentVolume", "metadata": meta, "spec": spec, "status": {"phase": phase}}


def storage_class(name: str, waits: bool, provisioner: str = "csi.example.com", zones: list[str] | None = None) -> Json:
    out: Json = {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner}
    if zones is not None:
        out["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": [one]}]} for one in zones]
    return {**out, "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate"}


def test_what_names_nothing_that_can_be_is_not_kept() -> None:
    """Annotations have 256 KiB, and anybody may make claims."""
    raw = claim(node="n" * 200_000)
    raw["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = "c" * 50_000
    seen, _ = volumes.claim(raw, NAMES)
    assert len(seen.selected_node) == len(seen.wants.storage_class) == 254


def here(key: str, *named: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(named)}]}


READERS = {
    "PersistentVolumeClaim": volumes.claim,
    "PersistentVolume": volumes.volume,
    "StorageClass": volumes.storage_class,
}


def stored(*objects: Json) -> Storage:
    out = Storage()
    for raw in objects:
        out.change(None, READERS[raw["kind"]](raw, NAMES)[0])
    return out


def gang(*claims: str, pods: int = 1, affinity: list[Json] | None = None) -> Workload:
    spec: Json = {
        "containers": [],
        "volumes": [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": one}} for i, one in enumerate(claims)],
    }
    if affinity is not None:
        required = {"nodeSelectorTerms": affinity}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    sets, _ = values.pod_sets([{"name": "main", "count": pods, "template": {"spec": spec}}], NAMES, "ns")
    return Workload("ns", "w", pod_sets=sets)


def allows(asked: Workload, storage: Storage, nodes: list[Node]) -> set[str]:
    """Nodes on which a pod of the gang may stand."""
    laid, _ = storage.laid_on(asked)
    if laid.unbound:
        return set()
    terms = laid.pod_sets[0].shape.affinity
    if terms is None:
        return {node.name for node in nodes}
    return {node.name for node in nodes if any(term and all(meets(node, need) for need in term) for term in terms)}


# ---------------------------------------------------------------- as kube-scheduler asks


def selected(terms: list[Json], node: Node) -> bool:
    """Terms of node affinity, and of the nodes of a volume. (Of the latter kube-scheduler looks at labels alone, and
    would have a pod on a node that the volume does not name.)"""
    labels = {**dict(node.labels), "metadata.name": node.name}
    for term in terms:
        parts = [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
        if not parts:
            continue
        good = True
        for part in parts:
            value = labels.get(part["key"])
            match part["operator"]:
                case "In":
                    good &= value in part["values"]
                case "NotIn":
                    good &= value not in part["values"]
                case "Exists":
                    good &= value is not None
                case "DoesNotExist":
                    good &= value is None
        if good:
            return True
    return False


def reaches(held: Json, node: Node) -> bool:
    affinity = held["spec"].get("nodeAffinity")
    return affinity is None or selected(affinity["required"]["nodeSelectorTerms"], node)


def same_zone(held: Json, node: Node) -> bool:
    current = {OLD_ZONE: ZONE, OLD_REGION: REGION}
    labels = dict(node.labels)
    if not any(key in labels for key in (ZONE, REGION, OLD_ZONE, OLD_REGION)):
        return True
    for key in (OLD_ZONE, OLD_REGION, ZONE, REGION):
        if key in held["metadata"]["labels"]:
            value = labels.get(key, labels.get(current.get(key, key)))
            if value not in held["metadata"]["labels"][key].split("__"):
                return False
    return True


def schedulable(claims: list[Json], others: Mapping[tuple[str, str], Json], node: Node) -> bool:
    """VolumeBinding and VolumeZone, for one pod that names these claims."""
    for one in claims:
        spec, notes = one["spec"], one["metadata"]["annotations"]
        if spec.get("volumeName"):
            if "pv.kubernetes.io/bind-completed" not in notes:
                return False
            held = others.get(("PersistentVolume", spec["volumeName"]))
            if held is None or not reaches(held, node) or not same_zone(held, node):
                return False
            continue
        found = others.get(("StorageClass", spec.get("storageClassName", "")))
        if found is None or found["volumeBindingMode"] == "Immediate":
            return False
        if chosen := notes.get("volume.kubernetes.io/selected-node"):
            if chosen != node.name:
                return False
        elif any(
            held["spec"].get("storageClassName") == spec["storageClassName"]
            and held["status"]["phase"] == "Available"
            and int(held["spec"]["capacity"]["storage"][:-2]) >= int(spec["resources"]["requests"]["storage"][:-2])
            and set(spec["accessModes"]) <= set(held["spec"]["accessModes"])
            and reaches(held, node)
            for (kind, _), held in others.items()
            if kind == "PersistentVolume"
        ):
            continue
        if found["provisioner"] == "kubernetes.io/no-provisioner":
            return False
        topologies = found.get("allowedTopologies", [])
        if topologies and not any(
            all(dict(node.labels).get(part["key"]) in part["values"] for part in term["matchLabelExpressions"])
            for term in topologies
        ):
            return False
    return True


zones = st.sampled_from(["a", "b", "c"])
expressions = st.one_of(
    st.builds(lambda vs: {"key": ZONE, "operator": "In", "values": vs}, st.lists(zones, min_size=1, max_size=2)),
    st.builds(lambda vs: {"key": HOST, "operator": "In", "values": vs}, st.lists(st.sampled_from(["n0", "n1", "n4"]))),
    st.builds(lambda v: {"key": ZONE, "operator": "NotIn", "values": [v]}, zones),
    st.sampled_from([{"key": "disk", "operator": "Exists"}, {"key": "disk", "operator": "DoesNotExist"}]),
)
terms_of = st.lists(
    st.one_of(
        st.builds(lambda parts: {"matchExpressions": parts}, st.lists(expressions, min_size=1, max_size=2)),
        st.builds(
            lambda parts, operator: {
                "matchExpressions": parts,
                "matchFields": [{"key": "metadata.name", "operator": operator, "values": ["n0"]}],
            },
            st.lists(expressions, max_size=1),
            st.sampled_from(["In", "NotIn"]),
        ),
    ),
    min_size=1,
    max_size=3,
)
zone_labels = st.dictionaries(
    st.sampled_from([ZONE, OLD_ZONE, REGION]), st.sampled_from(["a", "b", "a__b"]), max_size=2
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Json], list[Json], list[Json] | None]:
    """Nodes; claims of a pod, at most one of which is unbound; volumes and classes; the pod's own affinity."""
    nodes = []
    for i in range(6):
        labels = {HOST: f"n{i}"}
        for key in draw(st.sampled_from([(), (ZONE,), (OLD_ZONE,), (ZONE, REGION), (OLD_ZONE, ZONE)])):
            labels[key] = draw(zones)
        labels |= {"disk": "yes"} if draw(st.booleans()) else {}
        nodes.append(Node(f"n{i}", labels=tuple(sorted(labels.items()))))
    others = [
        storage_class("wait", True, zones=draw(st.none() | st.lists(zones, min_size=1, max_size=2))),
        storage_class("local", True, "kubernetes.io/no-provisioner"),
        storage_class("now", False),
    ]
    claims = []
    for i in range(draw(st.integers(0, 2))):
        claims.append(claim(f"c{i}", volume=f"pv{i}", bound=True))
        if draw(st.integers(0, 9)):
            terms, phase = draw(st.none() | terms_of), "Bound"
            others.append(volume(f"pv{i}", terms, labels=draw(zone_labels), phase=phase, storageClassName="local"))
    if draw(st.booleans()):
        said: Json = {"storageClassName": draw(st.sampled_from(["wait", "local", "now", "gone"]))}
        said |= {"node": "n2"} if draw(st.integers(0, 4)) == 0 else {}
        said |= {"size": "2Gi"} if draw(st.booleans()) else {}
        claims.append(claim("free", volume="pv9" if draw(st.integers(0, 9)) == 0 else "", **said))
    for i in range(draw(st.integers(0, 3))):
        size, kind = draw(st.sampled_from(["1Gi", "2Gi"])), draw(st.sampled_from(["wait", "local"]))
        modes = draw(st.sampled_from([["ReadWriteOnce"], ["ReadOnlyMany"]]))
        said = {"size": size, "storageClassName": kind, "accessModes": modes}
        others.append(
            volume(f"s{i}", draw(st.none() | terms_of), phase=draw(st.sampled_from(["Available", "Released"])), **said)
        )
    return nodes, claims, others, draw(st.none() | terms_of)


@settings(max_examples=300)
@given(clusters())
def test_the_nodes_that_volumes_allow_are_those_of_kube_scheduler(
    given_: tuple[list[Node], list[Json], list[Json], list[Json] | None],
) -> None:
    nodes, claims, others, affinity = given_
    named = {(one["kind"], one["metadata"]["name"]): one for one in others}
    wanted = {
        node.name
        for node in nodes
        if schedulable(claims, named, node) and (affinity is None or selected(affinity, node))
    }
    asked = gang(*(one["metadata"]["name"] for one in claims), affinity=affinity)
    assert allows(asked, stored(*claims, *others), nodes) == wanted


ON_N1 = volume("pv", [here(HOST, "n1")], phase="Bound")
LOCAL = storage_class("local", True, "kubernetes.io/no-provisioner")
NODES = [Node(f"n{i}", labels=((HOST, f"n{i}"), (ZONE, "ab"[i % 2]))) for i in range(4)]

WAITS = {
    "missing": ([], 1, "PersistentVolumeClaim data does not exist in namespace ns; its pods name it"),
    "at once": (
        [claim(storageClassName="now"), storage_class("now", False)],
        1,
        "PersistentVolumeClaim data is not bound yet (StorageClass now binds at once)",
    ),
    "no class": (
        [claim(storageClassName="")],
        1,
        "PersistentVolumeClaim data is not bound yet, and has no storage class: it needs a volume made for it",
    ),
    "class is gone": (
        [claim(storageClassName="now")],
        1,
        "PersistentVolumeClaim data is not bound yet, and its StorageClass now does not exist",
    ),
    "named volume": (
        [claim(volume="pv"), ON_N1],
        1,
        "PersistentVolumeClaim data is not bound yet to PersistentVolume pv, which it names",
    ),
    "volume is gone": (
        [claim(volume="pv", bound=True)],
        1,
        "PersistentVolumeClaim data is bound to PersistentVolume pv, which does not exist",
    ),
    "lost": (
        [{**claim(volume="pv", bound=True), "status": {"phase": "Lost"}}],
        1,
        "PersistentVolumeClaim data is Lost: its PersistentVolume pv is no more",
    ),
    "deleted": (
        [{**claim(volume="pv", bound=True), "metadata": {**claim()["metadata"], "deletionTimestamp": "now"}}, ON_N1],
        1,
        "PersistentVolumeClaim data is being deleted",
    ),
    "of one pod": (
        [claim(volume="pv", bound=True, accessModes=["ReadWriteOncePod"]), ON_N1],
        2,
        "PersistentVolumeClaim data is ReadWriteOncePod, and 2 pods name it: give it another access mode",
    ),
    "no volume": (
        [
            claim(storageClassName="local", size="2Gi"),
            LOCAL,
            volume("pv", [here(HOST, "n1")], storageClassName="local"),
        ],
        1,
        (
            "PersistentVolumeClaim data is not bound yet: no PersistentVolume of StorageClass local, which provisions "
            "none, is there for it"
        ),
    ),
}


def test_a_claim_of_one_pod_that_a_gang_holds_is_nobody_elses() -> None:
    storage = stored(claim(volume="pv", bound=True, accessModes=["ReadWriteOncePod"]), ON_N1)
    waits = replace(gang("data"), name="next")
    holds = replace(gang("data"), admission=Admission("q", ()))
    assert storage.uses(*use_of(waits)) == set()
    assert allows(waits, storage, NODES) == {"n1"}
    assert storage.uses(*use_of(holds)) == {("PersistentVolumeClaim", "ns", "data")}
    assert storage.lacks(waits) == "PersistentVolumeClaim data is ReadWriteOncePod, and Workload w uses it"
    assert allows(holds, storage, NODES) == {"n1"}
    storage.uses(*use_of(replace(holds, finished=True)))
    assert allows(waits, storage, NODES) == {"n1"}


@pytest.mark.parametrize("row", WAITS)
def test_a_gang_waits_for_a_claim_that_no_pod_could_use(row: str) -> None:
    objects, pods, said = WAITS[row]
    laid, sources = stored(*objects).laid_on(gang("data", pods=pods))
    assert laid.unbound == said
    assert ("PersistentVolumeClaim", "ns", "data") in sources


LOCALS = [volume(f"pv{i}", [here(HOST, f"n{i}")], storageClassName="local") for i in range(3)]
OTHERS_CLAIM = {"namespace": "ns", "name": "other"}
DISK = {"pdName": "d"}
GOES: dict[str, tuple[list[Json], list[Json] | None, set[str]]] = {
    "bound": ([claim(volume="pv", bound=True), ON_N1], None, {"n1"}),
    "bound, beside its own affinity": ([claim(volume="pv", bound=True), ON_N1], [here(ZONE, "a")], set()),
    "by a label that nodes no longer have": (
        [claim(volume="pv", bound=True), volume("pv", [here(OLD_ZONE, "b")], phase="Bound", gcePersistentDisk=DISK)],
        None,
        {"n1", "n3"},
    ),
    "everywhere": ([claim(volume="pv", bound=True), volume("pv", phase="Bound")], None, {"n0", "n1", "n2", "n3"}),
    "one pod may have it": (
        [claim(volume="pv", bound=True, accessModes=["ReadWriteOncePod"]), ON_N1],
        None,
        {"n1"},
    ),
    "local": ([claim(storageClassName="local"), LOCAL, *LOCALS], None, {"n0", "n1", "n2"}),
    "not those of others": (
        [
            claim(storageClassName="local"),
            LOCAL,
            LOCALS[0],
            volume("p", None, storageClassName="local", claimRef=OTHERS_CLAIM),
        ],
        None,
        {"n0"},
    ),
    "the one that was made for it": (
        [
            claim(storageClassName="local"),
            LOCAL,
            LOCALS[0],
            volume("p", [here(HOST, "n3")], storageClassName="local", claimRef={"namespace": "ns", "name": "data"}),
        ],
        None,
        {"n3"},
    ),
    "by label": (
        [
            claim(storageClassName="local", selector={"matchLabels": {"tier": "fast"}}),
            LOCAL,
            *LOCALS,
            volume("p", [here(HOST, "n3")], storageClassName="local", labels={"tier": "fast"}),
        ],
        None,
        {"n3"},
    ),
    "not a block device": (
        [
            claim(storageClassName="local"),
            LOCAL,
            LOCALS[1],
            {**LOCALS[0], "spec": {**LOCALS[0]["spec"], "volumeMode": "Block"}},
        ],
        None,
        {"n1"},
    ),
    "where its class provisions": (
        [claim(storageClassName="wait"), storage_class("wait", True, zones=["b"])],
        None,
        {"n1", "n3"},
    ),
    "the node that was selected": (
        [claim(storageClassName="wait", node="n2"), storage_class("wait", True)],
        None,
        {"n2"},
    ),
    "by the old annotation": (
        [
            {
                **claim(),
                "metadata": {
                    **claim()["metadata"],
                    "annotations": {"volume.beta.kubernetes.io/storage-class": "local"},
                },
            },
            LOCAL,
            *LOCALS,
        ],
        None,
        {"n0", "n1", "n2"},
    ),
}


@pytest.mark.parametrize("row", GOES)
def test_the_nodes_that_are_left(row: str) -> None:
    objects, affinity, wanted = GOES[row]
    assert allows(gang("data", affinity=affinity), stored(*objects), NODES) == wanted


def test_a_thousand_local_volumes_are_one_term() -> None:
    objects = [volume(f"pv{i}", [here(HOST, f"n{i}")], storageClassName="local") for i in range(1000)]
    laid, _ = stored(claim(storageClassName="local"), LOCAL, *objects).laid_on(gang("data"))
    ((need,),) = laid.pod_sets[0].shape.affinity or ()
    assert len(need.values) == 1000


def test_claims_that_want_the_same_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    is_free = volumes._is_free_for
    monkeypatch.setattr(volumes, "_is_free_for", lambda one, asked: looks.append(one) or is_free(one, asked))
    names = [f"c{i}" for i in range(50)]
    storage = stored(LOCAL, *LOCALS, *(claim(name, storageClassName="local") for name in names))
    storage.laid_on(gang(*names))
    assert len(looks) == len(LOCALS)
    storage.laid_on(gang(*names))
    assert len(looks) == len(LOCALS)
    assert allows(gang(*names), storage, NODES) == allows(gang("c0"), storage, NODES)
    storage.change(storage.volumes["pv0"], None)
    assert allows(gang(*names), storage, NODES) == allows(gang("c0"), storage, NODES)
    assert len(looks) == 2 * len(LOCALS) - 1


@pytest.mark.parametrize(
    ("made", "state", "since"),
    [
        pytest.param((9,), {}, 100, id="before it"),
        pytest.param((9, 300, 200), {}, 300, id="the last of them after it"),
        pytest.param((300, None), {}, 300, id="and one is not there yet"),
        pytest.param((), {}, 100, id="it names none"),
        pytest.param((300,), {"evicted": "Preempted"}, 100, id="it has run, and its place is its own"),
        pytest.param((300,), {"evicted": "NodeFailures", "queue_stamp": 0}, 0, id="it lost a node"),
    ],
)
def test_who_is_given_a_claim_late_waits_since_then(
    made: tuple[int | None, ...], state: dict[str, Any], since: int
) -> None:
    objects = {f"c{i}": at for i, at in enumerate(made)}
    claims = [claim(name) for name, at in objects.items() if at is not None]
    for one in claims:
        one["metadata"]["creationTimestamp"] = values.rfc3339((objects[one["metadata"]["name"]] or 0) * 1000)
    asked = replace(gang(*objects), created=100_000, **state)
    assert stamp(stored(*claims).laid_on(asked)[0]) == since * 1000


def test_terms_that_multiply_are_refused_in_words() -> None:
    wide = [
        {"matchExpressions": [*here(ZONE, "a")["matchExpressions"], *here(HOST, f"n{i}")["matchExpressions"]]}
        for i in range(40)
    ]
    objects = [volume(f"pv{i}", [*wide, here(ZONE, str(i))], phase="Bound") for i in range(2)]
    claims = [claim(f"c{i}", volume=f"pv{i}", bound=True) for i in range(2)]
    laid, _ = stored(*claims, *objects).laid_on(gang("c0", "c1"))
    assert laid.unbound.startswith("PersistentVolumeClaim c1 cannot be honoured beside what else its pods ask of nodes")


def test_what_changed_touches_who_depends_on_it() -> None:
    storage = stored(claim(storageClassName="local"), LOCAL, *LOCALS)
    _, sources = storage.laid_on(gang("data"))
    assert not storage.change(None, volumes.claim(claim("other"), NAMES)[0]) & sources
    taken = volumes.volume({**LOCALS[0], "status": {"phase": "Bound"}}, NAMES)[0]
    assert storage.change(storage.volumes["pv0"], taken) & sources
    assert allows(gang("data"), storage, NODES) == {"n1", "n2"}
    bound = volumes.claim(claim(storageClassName="local", volume="pv0", bound=True), NAMES)[0]
    assert storage.change(storage.claims["ns", "data"], bound) & sources
    _, sources = storage.laid_on(gang("data"))
    assert storage.change(taken, None) & sources


def test_claims_that_a_jobset_makes_are_its_pods_own() -> None:
    container = {"name": "c", "volumeMounts": [{"name": "scratch", "mountPath": "/s"}]}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    parts = [
        {"name": "workers", "replicas": 2, "template": {"spec": {"template": template}}},
        {"name": "driver", "template": {"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}},
    ]
    made = [{"metadata": {"name": name}, "spec": claim()["spec"]} for name in ("scratch", "unused")]
    raw = {
        "apiVersion": JOBSET.api_version,
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "ns", "uid": "u"},
        "spec": {"replicatedJobs": parts, "volumeClaimPolicies": [{"templates": made}]},
    }
    built, problems = build_workload(JOBSET, raw, NAMES)
    assert not problems
    value, _ = values.workload(built, NAMES)
    assert [pod_set.shape.claims for pod_set in value.pod_sets] == [("scratch-train",), ()]


@pytest.mark.parametrize(("more", "selects"), [(0, True), (1, False)])
def test_a_claim_whose_selector_is_too_long_to_be_read_selects_no_volume(more: int, selects: bool) -> None:
    """Whoever names it waits; it would be held against all volumes, whenever one of them changes."""
    parts = [{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(READ.pod_parts + more)]
    found, _ = volumes.claim(claim(storageClassName="local", selector={"matchExpressions": parts}), NAMES)
    assert found.selector is not None
    assert matches(found.selector, {}) is selects
