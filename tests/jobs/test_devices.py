"""What devices of DRA drivers make room for on nodes, from objects as the API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.engine.model import MUSTER, Node, PodUsage, Rules, Transformation
from admission.jobs import devices
from admission.jobs.devices import Devices, Listed
from admission.names import OF_DEVICE_CLASS, Names

NAMES = Names()
Json = dict[str, Any]
DRIVER, GPU, POOL = "gpu.example.com", "example.com/gpu", "n0"
BARE, OWN_NAME = f"{OF_DEVICE_CLASS}bare", f"{OF_DEVICE_CLASS}gpu"
NO_CHANNELS = Rules(excluded_classes=frozenset({"channel"}))
OF_DRIVER = f"device.driver == '{DRIVER}'"
A_GPU = f"{OF_DRIVER} && device.attributes['{DRIVER}'].type == 'gpu'"


def device_class(*expressions: str, name: str = "gpu", resource: str = GPU, created: str = "") -> Json:
    spec: Json = {"selectors": [{"cel": {"expression": one}} for one in expressions]}
    if resource:
        spec["extendedResourceName"] = resource
    stamp = created or "2026-01-01T00:00:00Z"
    return {"kind": "DeviceClass", "metadata": {"name": name, "creationTimestamp": stamp}, "spec": spec}


def device(name: str, taint: str = "", node: str = "", capacity: str = "80Gi", **attributes: Any) -> Json:
    said = {"type": "gpu", **attributes}
    kinds = {bool: "bool", int: "int", str: "string"}
    out: Json = {
        "name": name,
        "attributes": {at: v if isinstance(v, dict) else {kinds[type(v)]: v} for at, v in said.items()},
        "capacity": {"memory": {"value": capacity}},
    }
    if taint:
        out["taints"] = [{"key": "example.com/broken", "effect": taint}]
    return out | ({"nodeName": node} if node else {})


def slice_of(*there: Json, name: str = "", generation: int = 1, of: int = 1, **said: Any) -> Json:
    where = {"driver": DRIVER, "nodeName": "n0", **said}
    pool = {"name": POOL, "generation": generation, "resourceSliceCount": of}
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"s-{there[0]['name']}"},
        "spec": {**where, "pool": pool, "devices": list(there)},
    }


def claim(
    *held: str,
    extended: bool = False,
    admin: bool = False,
    generated: bool = False,
    pod: str = "",
    requests: Sequence[Json] = (),
) -> Json:
    results = [{"driver": DRIVER, "pool": POOL, "device": one, "adminAccess": admin} for one in held]
    notes = {"resource.kubernetes.io/extended-resource-claim": "true"} if extended else {}
    notes |= {"resource.kubernetes.io/pod-claim-name": "gpu"} if generated else {}
    meta: Json = {"namespace": "ns", "name": f"c-{'-'.join(held)}", "annotations": notes}
    if pod:
        meta["ownerReferences"] = [{"kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}]
    allocation = {"devices": {"results": results}}
    spec = {"devices": {"requests": list(requests)}}
    return {"kind": "ResourceClaim", "metadata": meta, "spec": spec, "status": {"allocation": allocation}}


def request(count: int = 1, of: str = "gpu", **said: Any) -> Json:
    return {"name": "one", "exactly": {"deviceClassName": of, "count": count, **said}}


def template(*requests: Json, name: str = "t") -> Json:
    meta = {"namespace": "ns", "name": name}
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": meta,
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


READ = {
    "DeviceClass": devices.device_class,
    "ResourceSlice": devices.resource_slice,
    "ResourceClaim": devices.resource_claim,
    "ResourceClaimTemplate": devices.claim_template,
}


def read(raw: Json) -> Any:
    return READ[raw["kind"]](raw, NAMES)[0]


def room(
    *objects: Json,
    node: str = "n0",
    has: dict[str, int] | None = None,
    pods: Sequence[PodUsage] = (),
    rules: Rules = MUSTER,
    quotas: Sequence[str] = (),
) -> dict[str, int]:
    there = Devices(rules=rules, quotas=quotas)
    for raw in objects:
        there.change(None, read(raw))
    out = dict(there.laid_on(Node(node, allocatable=tuple(sorted((has or {}).items())))).allocatable)
    for usage in (*pods, *there.held(pods)):
        if usage.node == node:
            for resource, amount in usage.requests:
                out[resource] -= amount
    return out


TWO = slice_of(device("a"), device("b"), name="two")


@pytest.mark.parametrize(
    ("objects", "gpus"),
    [
        pytest.param([device_class(A_GPU), TWO], 2, id="those that the class picks"),
        pytest.param([device_class(A_GPU), slice_of(device("a"), device("b", type="part"))], 1, id="and no others"),
        pytest.param([device_class(), TWO], 2, id="a class without selectors picks all"),
        pytest.param([device_class(OF_DRIVER, f"!({A_GPU})"), TWO], 0, id="all selectors must hold"),
        pytest.param([device_class(A_GPU), slice_of(device("a"), driver="other.example.com")], 0, id="another driver"),
        pytest.param([device_class(A_GPU, resource=""), TWO], None, id="a class for claims alone"),
        pytest.param([TWO], None, id="no class"),
        pytest.param([device_class(A_GPU), TWO, claim("a")], 1, id="a claim holds one"),
        pytest.param([device_class(A_GPU), TWO, claim("a"), claim("b")], 0, id="two claims hold both"),
        pytest.param([device_class(A_GPU), TWO, claim("a", extended=True)], 1, id="for a pod that is no more"),
        pytest.param([device_class(A_GPU), TWO, claim("a", admin=True)], 2, id="who only looks holds nothing"),
        pytest.param([device_class(A_GPU), slice_of(device("a"), device("b", "NoSchedule"))], 1, id="tainted"),
        pytest.param(
            [device_class(A_GPU), slice_of(device("a"), device("b", "NoSchedule")), claim("b")], 1, id="and claimed"
        ),
        pytest.param([device_class(A_GPU), slice_of(device("a"), device("b", "NoExecute"))], 1, id="tainted to expel"),
        pytest.param([device_class(A_GPU), slice_of(device("a"), device("b", "None"))], 2, id="a taint that tells"),
        pytest.param([device_class(A_GPU), slice_of(device("a"), of=2)], 0, id="half a pool"),
        pytest.param(
            [device_class(A_GPU), slice_of(device("a"), of=2), slice_of(device("b"), of=2)], 2, id="all of it"
        ),
        pytest.param(
            [device_class(A_GPU), slice_of(device("a"), generation=1), slice_of(device("b"), generation=2)],
            1,
            id="what is left of an older generation does not count",
        ),
        pytest.param([device_class(A_GPU), slice_of(device("a"), nodeName="n1")], None, id="on another node"),
        pytest.param([device_class(A_GPU), slice_of(device("a"), nodeName="", allNodes=True)], None, id="on all nodes"),
        pytest.param(
            [
                device_class(A_GPU),
                slice_of(device("a", node="n0"), device("b", node="n1"), nodeName="", perDeviceNodeSelection=True),
            ],
            1,
            id="each device on its own node",
        ),
        pytest.param(
            [
                device_class("device.driver == 'none'", name="old"),
                device_class(A_GPU, name="z", created="2026-02-01T00:00:00Z"),
                TWO,
            ],
            2,
            id="the newest class of a resource",
        ),
        pytest.param(
            [device_class(A_GPU, name="a"), device_class("device.driver == 'none'", name="b"), TWO],
            2,
            id="of one second the first by name",
        ),
    ],
)
def test_counts(objects: list[Json], gpus: int | None) -> None:
    assert room(*objects) == ({} if gpus is None else {GPU: gpus})
    assert room(*reversed(objects)) == ({} if gpus is None else {GPU: gpus})


@pytest.mark.parametrize(
    ("one", "asks", "free"),
    [
        pytest.param(claim("a", extended=True, pod="p"), 1, 1, id="what the pod asks for is held once"),
        pytest.param(claim("a", "b", extended=True, pod="p"), 1, 0, id="more than it asks for is held all the same"),
        pytest.param(claim("a", extended=True, pod="p"), 0, 1, id="said of a pod that asks for none"),
        pytest.param(claim("a", extended=True, pod="p", generated=True), 1, 0, id="said by who wrote the template"),
        pytest.param(claim("a", extended=True, pod="other"), 1, 0, id="for another pod"),
        pytest.param(claim("a", pod="p"), 1, 0, id="by a claim of its own, besides"),
    ],
)
def test_a_claim_for_extended_resources_is_held_by_its_pod(one: Json, asks: int, free: int) -> None:
    pod = PodUsage(("ns", "p"), "uid-p", "n0", ((GPU, asks),))
    assert room(device_class(A_GPU), TWO, one, pods=[pod])[GPU] == free


def test_what_the_claims_of_a_gang_hold_is_its_own() -> None:
    pod = PodUsage(("ns", "p"), "uid-p", "n0", (), workload_uid="w")
    there = Devices(map(read, [device_class(A_GPU), TWO, claim("a", pod="p")]))
    assert [(usage.workload_uid, usage.requests) for usage in there.held([pod])] == [("w", ((GPU, 1),))]
    assert [usage.workload_uid for usage in there.held()] == [""]


NAMED, NAMELESS = device_class(A_GPU), device_class(A_GPU, resource="")
ANY = device_class(OF_DRIVER, name="any", resource="")


@pytest.mark.parametrize(
    ("objects", "rules", "quotas", "free"),
    [
        pytest.param([NAMELESS, TWO], MUSTER, [OWN_NAME], {OWN_NAME: 2}, id="a class that names no resource"),
        pytest.param([NAMELESS, TWO, claim("a")], MUSTER, [OWN_NAME], {OWN_NAME: 1}, id="a claim holds one"),
        pytest.param([NAMELESS, TWO], MUSTER, [], {}, id="of which nobody can have any"),
        pytest.param([NAMED, TWO], MUSTER, [OWN_NAME], {GPU: 2}, id="one that names a resource is counted by that"),
        pytest.param(
            [NAMED, ANY, TWO, claim("a")],
            MUSTER,
            [f"{OF_DEVICE_CLASS}any"],
            {GPU: 1, f"{OF_DEVICE_CLASS}any": 1},
            id="two classes pick the device that a claim holds",
        ),
        pytest.param([NAMELESS, TWO], Rules(ignore_undeclared=True), [], {OWN_NAME: 2}, id="no quota is needed"),
        pytest.param([NAMELESS, TWO], Rules(excluded_prefixes=(OWN_NAME,)), [], {OWN_NAME: 2}, id="nor counted"),
        pytest.param(
            [NAMELESS, TWO], Rules(transformations=(Transformation(OWN_NAME),)), [], {OWN_NAME: 2}, id="or of another"
        ),
    ],
)
def test_a_class_counts_by_its_own_name(objects: list[Json], rules: Rules, quotas: list[str], free: Json) -> None:
    assert room(*objects, rules=rules, quotas=quotas) == free
    assert room(*reversed(objects), rules=rules, quotas=quotas) == free


@pytest.mark.parametrize(
    ("of", "asks", "free"),
    [
        pytest.param(NAMELESS, {OWN_NAME: 2}, {OWN_NAME: 0}, id="what the pod asks for is held once"),
        pytest.param(NAMELESS, {OWN_NAME: 1}, {OWN_NAME: 0}, id="more than that is held all the same"),
        pytest.param(NAMELESS, {GPU: 2}, {OWN_NAME: 0}, id="asked for by a name that it has no more"),
        pytest.param(NAMED, {OWN_NAME: 2}, {GPU: 0}, id="as of the named resource"),
        pytest.param(NAMED, {OWN_NAME: 1, GPU: 1}, {GPU: 0}, id="by both names"),
    ],
)
def test_pods_may_ask_by_the_name_of_a_class(of: Json, asks: dict[str, int], free: dict[str, int]) -> None:
    there = Devices(map(read, [of, TWO, claim("a", "b", extended=True, pod="p")]), quotas=[OWN_NAME])
    pod = PodUsage(("ns", "p"), "uid-p", "n0", tuple(sorted(asks.items())))
    out = dict(there.laid_on(Node("n0")).allocatable)
    for usage in (pod, *there.held([pod])):
        for resource, amount in usage.requests:
            out[resource] = out.get(resource, 0) - amount
    assert {resource: out[resource] for resource in free} == free


def test_quota_of_a_class_may_come_and_go() -> None:
    there = Devices(map(read, [NAMELESS, TWO, claim("a"), device_class(A_GPU, name="other")]))

    def seen() -> tuple[tuple[tuple[str, int], ...], list[tuple[tuple[str, int], ...]]]:
        return there.laid_on(Node("n0")).allocatable, [usage.requests for usage in there.held()]

    assert seen() == (((GPU, 2),), [((GPU, 1),)])
    both = (OWN_NAME, f"{OF_DEVICE_CLASS}other", f"{OF_DEVICE_CLASS}none")
    assert there.quotas_name(both)[:2] == ({"n0"}, {("ns", "c-a")})
    assert seen() == (((OWN_NAME, 2), (GPU, 2)), [((OWN_NAME, 1), (GPU, 1))])
    assert not any(there.quotas_name([OWN_NAME])), "of a class that is not counted by it"
    assert there.quotas_name([])[:2] == ({"n0"}, {("ns", "c-a")})
    assert seen() == (((GPU, 2),), [((GPU, 1),)])


BY_TEMPLATE = {"name": "gpus", "resourceClaimTemplateName": "t"}


@pytest.mark.parametrize(
    ("objects", "claims", "said"),
    [
        pytest.param([template(request(2))], [BY_TEMPLATE], 2, id="as many as it says"),
        pytest.param([template({"name": "x", "exactly": {"deviceClassName": "gpu"}})], [BY_TEMPLATE], 1, id="or one"),
        pytest.param([template(request(2), request(1))], [BY_TEMPLATE], 3, id="in all requests"),
        pytest.param([template(request(2))], [BY_TEMPLATE, BY_TEMPLATE], 4, id="of each claim"),
        pytest.param([template(request(2), request(8, adminAccess=True))], [BY_TEMPLATE], 2, id="to look takes none"),
        pytest.param([], [BY_TEMPLATE], "ResourceClaimTemplate 't' does not exist", id="no template"),
        pytest.param([], [{"name": "mine", "resourceClaimName": "c"}], "claim that pods share", id="a claim of many"),
        pytest.param([template(request(of="none"))], [BY_TEMPLATE], "DeviceClass 'none' does not exist", id="no class"),
        pytest.param(
            [template(request()), device_class(name="newer", created="2026-02-01T00:00:00Z")],
            [BY_TEMPLATE],
            f"{GPU} is counted by DeviceClass 'newer'",
            id="a class that another has taken over from",
        ),
        pytest.param([template(request(allocationMode="All"))], [BY_TEMPLATE], "write how many", id="all there are"),
        pytest.param([template(request(selectors=[{}]))], [BY_TEMPLATE], "selects devices itself", id="by CEL"),
        pytest.param([template(request(capacity={"requests": {}}))], [BY_TEMPLATE], "whole ones", id="parts"),
        pytest.param(
            [template({"name": "any", "firstAvailable": [{"deviceClassName": "gpu"}]})],
            [BY_TEMPLATE],
            "request any leaves open which devices it gets",
            id="one of several",
        ),
        pytest.param(
            [template(request(2), request(of="channel", allocationMode="All"), request(of="channel"))],
            [BY_TEMPLATE],
            2,
            id="of a class that is not counted, whatever it asks for",
        ),
    ],
)
def test_what_pods_ask_for_by_claims(objects: list[Json], claims: list[Json], said: int | str) -> None:
    asked = Devices(map(read, [device_class(), *objects]), NO_CHANNELS).asked("ns", claims)
    if isinstance(said, int):
        assert asked == ((("gpu", GPU, said),), ())
    else:
        assert asked.devices == ()
        assert said in asked.problems[0]


@pytest.mark.parametrize(
    ("classes", "claims", "said"),
    [
        pytest.param(["gpu"], [], [("gpu", GPU, 0)], id="as of the resource that it names"),
        pytest.param(["bare"], [], [("bare", BARE, 0)], id="or by that name"),
        pytest.param(["gpu"], [BY_TEMPLATE], [("bare", BARE, 2), ("gpu", GPU, 0)], id="besides"),
        pytest.param(["bare"], [BY_TEMPLATE], [("bare", BARE, 2)], id="and of the same class"),
        pytest.param(["channel"], [], [("channel", f"{OF_DEVICE_CLASS}channel", 0)], id="only claims can be left out"),
        pytest.param(["none"], [], "DeviceClass 'none' does not exist", id="no class"),
        pytest.param(["old"], [], f"{GPU} is counted by DeviceClass 'gpu'", id="a class that does not count"),
    ],
)
def test_what_pods_ask_for_by_the_names_of_classes(
    classes: list[str], claims: list[Json], said: list[tuple[str, str, int]] | str
) -> None:
    there = [device_class(created="2026-02-01T00:00:00Z"), device_class(name="old"), template(request(2, of="bare"))]
    there += [device_class(name=name, resource="") for name in ("bare", "channel")]
    asked = Devices(map(read, there), NO_CHANNELS).asked("ns", claims, classes)
    if isinstance(said, str):
        assert asked.devices == ()
        assert said in asked.problems[0]
    else:
        assert asked == (tuple(said), ())


@pytest.mark.parametrize(
    ("requests", "counted", "more"),
    [
        pytest.param([request(2)], 2, "", id="as counted"),
        pytest.param([request(3)], 2, "3 of gpu, and 2 were counted", id="more"),
        pytest.param([request(1), request(2)], 2, "3 of gpu, and 2 were counted", id="in two requests"),
        pytest.param([request(of="other")], 2, "1 of other, and 0 were counted", id="of another class"),
        pytest.param([request(allocationMode="All")], 2, "asks for all devices of a node", id="without number"),
        pytest.param([request(2), request(of="channel", allocationMode="All")], 2, "", id="of one that is not counted"),
    ],
)
def test_a_claim_that_asks_for_more_than_was_counted(requests: list[Json], counted: int, more: str) -> None:
    there = Devices(map(read, [device_class(), claim(pod="p", requests=requests), claim("z", pod="q")]), NO_CHANNELS)
    claimed = (("gpu", GPU, counted),)
    said = there.beyond("ns", ("p", "uid-p"), claimed, {GPU: counted})
    assert more in said
    assert bool(more) == bool(said)
    assert not there.beyond("ns", ("p", "another"), (), {})
    there.change(read(device_class()), read(device_class(resource="")))  # nothing that those who run could help
    assert there.beyond("ns", ("p", "uid-p"), claimed, {GPU: counted}) == said


@pytest.mark.parametrize(
    ("count", "asks", "more"),
    [
        pytest.param(2, {GPU: 3}, "", id="what the pod asks for besides"),
        pytest.param(3, {GPU: 3}, "3 of gpu, and 2 were counted", id="more than that"),
        pytest.param(3, {GPU: 3, "deviceclass.resource.kubernetes.io/gpu": 1}, "", id="by both names"),
    ],
)
def test_a_claim_for_extended_resources_that_asks_for_more_than_its_pod(count: int, asks: Json, more: str) -> None:
    one = claim(pod="p", extended=True, requests=[request(count)])
    there = Devices(map(read, [device_class(), one, claim("z", pod="p", requests=[request(1)])]))
    assert there.beyond("ns", ("p", "uid-p"), (("gpu", GPU, 1),), asks) == more
    there.change(read(device_class()), None)
    assert there.beyond("ns", ("p", "uid-p"), (("gpu", GPU, 1),), asks) == ""


@pytest.mark.parametrize(
    ("named", "counted", "asks", "more"),
    [
        pytest.param("", [], {OWN_NAME: 3}, "", id="by its name"),
        pytest.param("", [("gpu", OWN_NAME, 0)], {OWN_NAME: 3}, "", id="as it was counted"),
        pytest.param("", [], {OWN_NAME: 2}, "3 of gpu, and 2 were counted", id="more than that"),
        pytest.param("", [("gpu", OWN_NAME, 2)], {OWN_NAME: 4}, "3 of gpu, and 2 were counted", id="besides claims"),
        pytest.param("", [], {"cpu": 9, "memory": 9}, "3 of gpu, and 0 were counted", id="by no name"),
        pytest.param(GPU, [("gpu", GPU, 0)], {GPU: 3}, "", id="as of the resource that it names"),
        pytest.param(GPU, [("gpu", GPU, 0)], {GPU: 2}, "3 of gpu, and 2 were counted", id="more of that"),
        pytest.param(GPU, [("gpu", OWN_NAME, 0)], {OWN_NAME: 3}, "", id="it has got a name since"),
        pytest.param("", [("gpu", GPU, 0)], {GPU: 3}, "", id="it has lost it"),
        pytest.param("", [], {GPU: 3}, "", id="and was asked for by that"),
        pytest.param("", [("gpu", GPU, 0)], {GPU: 2}, "3 of gpu, and 2 were counted", id="for no more"),
        pytest.param("example.com/new", [], {GPU: 3}, "", id="it has another"),
        pytest.param("example.com/new", [], {GPU: 2}, "3 of gpu, and 2 were counted", id="and no more by that"),
        pytest.param(GPU, [], {GPU: 2, "rdma/hca": 8}, "3 of gpu, and 2 were counted", id="or of a device plugin"),
    ],
)
def test_a_claim_for_what_its_pod_asks_for_by_the_name_of_a_class(
    named: str, counted: list[tuple[str, str, int]], asks: dict[str, int], more: str
) -> None:
    one = claim(pod="p", extended=True, requests=[request(3)])
    there = Devices(map(read, [device_class(resource=named), one]))
    assert there.beyond("ns", ("p", "uid-p"), tuple(counted), asks) == more


def test_a_claim_is_compared_with_what_was_counted_whichever_class_has_that_name_now() -> None:
    one = claim(pod="p", extended=True, requests=[request(3)])
    there = Devices(map(read, [device_class(resource="example.com/new"), device_class(name="other"), one]))
    assert there.beyond("ns", ("p", "uid-p"), (("gpu", GPU, 0),), {GPU: 3}) == ""
    assert there.beyond("ns", ("p", "uid-p"), (), {GPU: 3}) == "3 of gpu, and 0 were counted"


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"device.capacity['{DRIVER}'].memory.isLessThan(quantity('80Gi'))", False),
        (f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('79.5Gi'))", True),
        (f"device.attributes['{DRIVER}'].driverVersion.compareTo(semver('570.1.0')) >= 0", True),
        (f"device.attributes['{DRIVER}'].driverVersion.isGreaterThan(semver('571.0.0'))", False),
        (f"device.attributes['{DRIVER}'].model.startsWith('H1') && device.attributes['{DRIVER}'].index < 4", True),
        (f"device.attributes['{DRIVER}'].healthy", True),
        (f"device.attributes['{DRIVER}'].model.matches('^H[0-9]+$')", True),
        ("'rail' in device.attributes['net.example.com']", True),
        ("'rail' in device.attributes['other.example.com']", False),
        ("device.attributes['net.example.com'].rail in ['r1', 'r2']", True),
        ("device.attributes['other.example.com'].rail == 'r1'", False),
        (f"device.attributes['{DRIVER}'].model == 3", False),
        (f"device.attributes['{DRIVER}'].model", False),
    ],
)
def test_selectors(expression: str, holds: bool) -> None:
    one = device("a", model="H100", index=3, healthy=True, driverVersion={"version": "570.86.15"})
    one["attributes"]["net.example.com/rail"] = {"string": "r1"}
    assert room(device_class(expression), slice_of(one)) == {GPU: int(holds)}


@pytest.mark.parametrize("expression", ["device.driver ==", "device.driver.frobnicated()", "nonsense", "1 + 1"])
def test_what_is_not_understood_picks_nothing_and_says_so(expression: str) -> None:
    there = Devices()
    for raw in (device_class(expression), TWO):
        there.change(None, read(raw))
    node = Node("n0")
    assert there.laid_on(node).allocatable == ((GPU, 0),)
    assert list(there.not_understood) == ([] if expression == "1 + 1" else ["gpu"])
    there.change(read(device_class(expression)), read(device_class(A_GPU)))
    assert there.laid_on(node).allocatable == ((GPU, 2),)
    assert not there.not_understood


def test_a_device_closed_to_pods_to_come_is_not_lost_to_those_that_have_it() -> None:
    there = Devices(read(raw) for raw in (device_class(A_GPU), slice_of(device("a"), device("b", "NoSchedule"))))
    assert there.laid_on(Node("n0")).allocatable == ((GPU, 2),)
    assert [(usage.node, usage.requests) for usage in there.held()] == [("n0", ((GPU, 1),))]


@pytest.mark.parametrize(("own", "gpus"), [({}, 2), ({GPU: 0}, 2), ({GPU: 5}, 5), ({"cpu": 4000}, 2)])
def test_what_the_node_itself_offers_comes_first(own: dict[str, int], gpus: int) -> None:
    assert room(device_class(A_GPU), TWO, has=own) == {**own, GPU: gpus}


CLAIMS = ("c-a0", "c-a1", "c-b0", "c-c2")
names = st.sampled_from("abc")
listed = st.one_of(
    st.builds(
        lambda n, e, resource: device_class(e, name=n, resource=resource),
        names,
        st.sampled_from([A_GPU, OF_DRIVER, "true", "oops("]),
        st.sampled_from([GPU, GPU, ""]),
    ),
    st.builds(
        lambda n, there, of, generation, node: slice_of(
            *(device(f"{n}{i}", taint, type=kind) for i, (kind, taint) in enumerate(there)),
            name=n,
            of=of,
            generation=generation,
            nodeName=node,
        ),
        names,
        st.lists(
            st.tuples(st.sampled_from(["gpu", "part"]), st.sampled_from(["", "", "NoSchedule", "NoExecute"])),
            min_size=1,
            max_size=3,
        ),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from(["n0", "n1"]),
    ),
    st.builds(claim, st.sampled_from(["a0", "a1", "b0", "c2"]), extended=st.booleans(), pod=st.sampled_from(["", "p"])),
    st.builds(lambda n, of: template(request(of=of), name=n), st.sampled_from("de"), names),
)


@given(st.lists(st.tuples(listed, st.booleans()), max_size=12))
def test_what_came_and_went_leaves_what_is_there(news: list[tuple[Json, bool]]) -> None:
    """And nothing changes but where it was said that it may."""

    def seen(there: Devices) -> dict[Any, Any]:
        nodes = {name: there.laid_on(Node(name)) for name in ("n0", "n1")}
        claims = [*(("ns", name) for name in CLAIMS), *(("", name) for name in "abc")]
        asked = {("asks", "ns", name): there.marks("ns", name, ()) for name in "de"}
        asked |= {("asks", "", name): there.marks("", (), name) for name in "abc"}
        made = {("pod", "p"): there.made_for("ns", ("p", "uid-p"))}
        return nodes | {claim: there.held_by(claim) for claim in claims} | asked | made

    quotas = [f"{OF_DEVICE_CLASS}a"]
    there, held = Devices(quotas=quotas), dict[tuple[str, str], Json]()
    before = seen(there)
    for raw, stays in news:
        key = (raw["kind"], raw["metadata"]["name"])
        old, new = held.pop(key, None), raw if stays else None
        touched = there.change(None if old is None else read(old), None if new is None else read(new))
        if new is not None:
            held[key] = new
        now = seen(there)
        changed = {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
        of_pods = {("pod", "p")} if touched.claims else set()
        assert changed <= touched.nodes | touched.claims | of_pods | {("asks", *key) for key in touched.asks}
        before = now
    fresh = Devices(quotas=quotas)
    objects: list[Listed] = [read(raw) for raw in held.values()]
    for value in objects:
        fresh.change(None, value)
    assert seen(fresh) == before
    assert fresh.not_understood.keys() <= there.not_understood.keys()
