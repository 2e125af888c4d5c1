"""Devices that DRA drivers hand out, as room on nodes.

A device plugin tells its node how many devices there are (`status.allocatable`). A DRA driver lists each of them in a
ResourceSlice, and a DeviceClass picks some by CEL. Pods ask for these by the extended resource that the class names, or
by the class's own name, `deviceclass.resource.kubernetes.io/CLASS`, which every class has. kube-scheduler then gives
such a pod devices of the class wherever the node itself offers none of the resource (KEP-5004; its plugin
DynamicResources). So that is what a node has room for here as well: the devices on it that the class picks, of pools
whose newest generation is there in full, without those whose taints expel pods. What a ResourceClaim holds is taken, as
if a pod had asked for it, and so is what a taint keeps from pods to come. Of a claim that kube-scheduler makes for
extended resources only what its pod does not ask for: anybody can write a claim that looks like one.

A class is counted by one name: the resource that it names, or its own name if it names none. Of several that name one
resource the newest counts. By their own names only those are laid on nodes of which somebody can have any
(`Devices.quotas_name`). Pods that ask by its own name for a class that names a resource count as if they asked for
that, on nodes that have it from listed devices. So do pods that name ResourceClaimTemplates, and get a claim each, made
from the template by kube-controller-manager (`Devices.asked`). What such a claim holds is its gang's.

Left to kube-scheduler: devices that share counters with others (parts of a GPU beside the whole), and devices that more
than one node reaches. A device that two classes pick which are counted by two names is free by both until a claim holds
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from msgspec.structs import replace

from admission.engine.model import MUSTER, Claimed, ClusterQueue, Key, Node, PodUsage, Rules, drop, of_class_label
from admission.jobs.kinds import Json, annotations_of, millis, name_of, namespace_of, obj, objects, text, whole
from admission.names import OF_DEVICE_CLASS, Names
from admission.quantity import QuantityError, parse_plain, saturate

CLASS, SLICE, CLAIM, TEMPLATE = "DeviceClass", "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate"
_FOR_EXTENDED_RESOURCE = "resource.kubernetes.io/extended-resource-claim"
_FROM_TEMPLATE = "resource.kubernetes.io/pod-claim-name"
_VERSION = re.compile(r"(?<![\w-])\d+")
_MAP_KEY = re.compile(r"""\[\s*(['"])([^'"\\]+)\1\s*\]""")

Pool = tuple[str, str]
"""(driver, name)."""
Owner = tuple[str, str]
"""(name, uid) of a pod."""
Amounts = tuple[tuple[str, int], ...]
Said = str | int | bool | tuple[int, ...]
Fact = tuple[str, str, str, Said]
"""("attributes" or "capacity", domain, name, value); a version by its numbers, a capacity in thousandths."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    name: str
    resource: str = ""
    """The extended resource by which pods ask for one of its devices; "" if it names none."""
    created: int = 0
    """Unix milliseconds."""
    selectors: tuple[str, ...] = ()
    """CEL expressions over `device`, all of which pick it."""

    @property
    def own_name(self) -> str:
        """The resource by which pods may ask for its devices, whether it names one or not."""
        return f"{OF_DEVICE_CLASS}{self.name}"

    @property
    def counted_as(self) -> str:
        return self.resource or self.own_name


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    node: str
    """"" if more than one node reaches it."""
    facts: tuple[Fact, ...] = ()
    closed: bool = False
    """A taint keeps it from pods to come, and leaves it to who has it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice: some of the devices of a pool."""

    name: str
    pool: Pool
    generation: int = 0
    of: int = 1
    """So many slices the pool has in this generation."""
    devices: tuple[Device, ...] = ()
    """Those whose taints expel no pods."""

    @property
    def closes(self) -> Claim:
        """Devices that nobody is to have from now on, as if they were claimed; no other claim is in no namespace."""
        return Claim("", self.name, tuple((self.pool, device.name) for device in self.devices if device.closed))


class Asks(NamedTuple):
    """What a claim asks for."""

    devices: tuple[tuple[str, int], ...] = ()
    """(class, how many)."""
    refused: tuple[tuple[str, str], ...] = ()
    """(class or "", what of it cannot be counted, in words)."""


_NOTHING = Asks()


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim, for the devices that it holds beside what pods ask for."""

    namespace: str
    name: str
    holds: tuple[tuple[Pool, str], ...] = ()
    pod: Owner = ("", "")
    """For which Kubernetes made it."""
    extended: bool = False
    """Made for the extended resources that its pod asks for, which count as the pod's."""
    asks: Asks = _NOTHING

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Template:
    """A ResourceClaimTemplate."""

    namespace: str
    name: str
    asks: Asks = _NOTHING
    """Each claim that is made from it."""
    created: int = 0
    """Unix milliseconds. What it asks for stays: who asks for something else makes it anew."""

    @property
    def key(self) -> Key:
        return self.namespace, self.name


class Asked(NamedTuple):
    """What each pod asks for of classes."""

    devices: Claimed = ()
    problems: tuple[str, ...] = ()


Listed = DeviceClass | Slice | Claim | Template


# ---------------------------------------------------------------- as the API has them


def device_class(raw: Json, names: Names) -> tuple[DeviceClass, tuple[str, ...]]:
    del names
    meta, spec = obj(raw.get("metadata")), obj(raw.get("spec"))
    selectors = tuple(text(obj(one.get("cel")).get("expression")) for one in objects(spec.get("selectors")))
    value = DeviceClass(
        name_of(raw), text(spec.get("extendedResourceName")), millis(meta.get("creationTimestamp")), selectors
    )
    return value, ()


def resource_slice(raw: Json, names: Names) -> tuple[Slice, tuple[str, ...]]:
    del names
    spec = obj(raw.get("spec"))
    driver, pool = text(spec.get("driver")), obj(spec.get("pool"))
    devices = []
    for device in objects(spec.get("devices")):
        effects = {taint.get("effect") for taint in objects(device.get("taints"))}
        if "NoExecute" in effects:
            continue
        on = text((device if spec.get("perDeviceNodeSelection") is True else spec).get("nodeName"))
        devices.append(Device(text(device.get("name")), on, tuple(_facts(driver, device)), "NoSchedule" in effects))
    value = Slice(
        name_of(raw),
        (driver, text(pool.get("name"))),
        int(pool.get("generation") or 0),
        int(pool.get("resourceSliceCount") or 1),
        tuple(devices),
    )
    return value, ()


def resource_claim(raw: Json, names: Names) -> tuple[Claim, tuple[str, ...]]:
    del names
    results = objects(obj(obj(obj(raw.get("status")).get("allocation")).get("devices")).get("results"))
    notes = annotations_of(raw)
    holds = [
        ((text(one.get("driver")), text(one.get("pool"))), text(one.get("device")))
        for one in results
        if one.get("adminAccess") is not True
    ]
    owners = objects(obj(raw.get("metadata")).get("ownerReferences"))
    pod = next((one for one in owners if one.get("kind") == "Pod" and one.get("controller") is True), {})
    owner = text(pod.get("name")), text(pod.get("uid"))
    # Whoever writes a template says what annotations its claims have, but for this one, which tells them.
    extended = notes.get(_FOR_EXTENDED_RESOURCE) == "true" and _FROM_TEMPLATE not in notes
    asks = _asks(obj(raw.get("spec")))
    return Claim(namespace_of(raw), name_of(raw), tuple(sorted(holds)), owner, extended, asks), ()


def claim_template(raw: Json, names: Names) -> tuple[Template, tuple[str, ...]]:
    del names
    created = millis(obj(raw.get("metadata")).get("creationTimestamp"))
    return Template(namespace_of(raw), name_of(raw), _asks(obj(obj(raw.get("spec")).get("spec"))), created), ()


def _asks(spec: Json) -> Asks:
    """Of a claim's spec."""
    asks: dict[str, int] = {}
    refused: list[tuple[str, str]] = []
    for request in objects(obj(spec.get("devices")).get("requests")):
        exactly, name = obj(request.get("exactly")), text(request.get("name"))
        of_class = text(exactly.get("deviceClassName"))
        if exactly.get("adminAccess") is True:
            continue  # it takes no device from anybody
        why = ""
        if not of_class:
            why = "leaves open which devices it gets (firstAvailable): ask for one class exactly"
        elif exactly.get("allocationMode") == "All":
            why = "asks for all devices of a node: write how many (count)"
        elif exactly.get("selectors"):
            why = "selects devices itself: ask for a DeviceClass that does"
        elif exactly.get("capacity"):
            why = "asks for parts of devices (capacity): ask for whole ones"
        if why:
            refused.append((of_class, f"request {name} {why}"))
        else:
            asks[of_class] = asks.get(of_class, 0) + whole(exactly.get("count"), 1)
    return Asks(tuple(sorted(asks.items())), tuple(refused))


def _facts(driver: str, device: Json) -> Iterable[Fact]:
    for at, said in sorted(obj(device.get("attributes")).items()):
        for kind, value in obj(said).items():
            if isinstance(value, str | int | bool):
                yield _fact("attributes", driver, at, _version(value) if kind == "version" else value)
    for at, said in sorted(obj(device.get("capacity")).items()):
        try:
            yield _fact("capacity", driver, at, _thousandths(obj(said).get("value", "")))
        except QuantityError:
            continue  # whoever asks for it finds that it is not there


@lru_cache(maxsize=4096, typed=True)
def _fact(of: str, driver: str, at: str, value: Said) -> Fact:
    """Most devices say mostly the same: each fact is held once."""
    domain, _, name = at.rpartition("/")
    return of, domain or driver, name, value


def _thousandths(quantity: Any) -> int:
    """CEL compares quantities; it has whole numbers to do it with. Raises QuantityError."""
    return min(ceil(parse_plain(quantity) * 1000), 2**63 - 1)


def _version(said: object) -> tuple[int, ...]:
    """Its three numbers; what more it may say (of a pre-release) is left out."""
    return tuple(int(number) for number in _VERSION.findall(str(said))[:3])


# ---------------------------------------------------------------- which devices a class picks


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": _thousandths,
    "semver": lambda said: list(_version(said)),
    "compareTo": lambda one, other: (one > other) - (one < other),
    "isGreaterThan": lambda one, other: one > other,
    "isLessThan": lambda one, other: one < other,
}
"""Of Kubernetes' own for CEL, those for capacities and versions."""


class NotUnderstoodError(ValueError):
    """An expression that is no CEL, or has functions that are not known here."""


@lru_cache(maxsize=256)
def _compiled(expression: str) -> Any:
    import cel  # a large one, and only where there are devices

    try:
        return cel.compile(expression)
    except ValueError as error:
        raise NotUnderstoodError(str(error).partition("\n")[0]) from None


@lru_cache(maxsize=65_536)
def _picks(expression: str, driver: str, facts: tuple[Fact, ...]) -> bool:
    """Does an expression hold for a device of this driver. A device that lacks what it asks about is not picked.

    Raises NotUnderstoodError.
    """
    import cel

    said: dict[str, dict[str, dict[str, Any]]] = {"attributes": {}, "capacity": {}}
    for domains in said.values():
        # Of a domain of which nothing is said, Kubernetes says that nothing is in it.
        domains.update((key, {}) for _, key in _MAP_KEY.findall(expression))
    for of, domain, name, value in facts:
        said[of].setdefault(domain, {})[name] = list(value) if isinstance(value, tuple) else value
    context = cel.Context(variables={"device": {"driver": driver, **said}}, functions=_FUNCTIONS)
    try:
        return _compiled(expression).execute(context) is True
    except (KeyError, TypeError):
        return False
    except (RuntimeError, ValueError) as error:
        raise NotUnderstoodError(str(error).partition("\n")[0]) from None


def of_classes(queue: ClusterQueue) -> frozenset[str]:
    """What it has quota of that are DeviceClasses by their own names."""
    return frozenset(name for group in queue.groups for name in group.covered if name.startswith(OF_DEVICE_CLASS))


class Touched(NamedTuple):
    """What may be another after a change."""

    nodes: set[str]
    claims: set[Key]
    asks: set[Key]
    """(namespace, ResourceClaimTemplate), or ("", DeviceClass) for what is asked of a class by its own name."""


class HeldDevices(NamedTuple):
    """Devices that a claim holds."""

    names: frozenset[str] = frozenset()
    """As what they count; of several classes it is not known which is whose."""
    gone: int = 0
    """So many of them nobody lists any more."""
    away: bool = False
    """Of the pools of those nothing is listed: their driver is not there, or begins."""


class Devices:
    """Classes, slices and claims as they are now. `listed`: those that are there."""

    def __init__(self, listed: Iterable[Listed] = (), rules: Rules = MUSTER, quotas: Collection[str] = ()) -> None:
        """quotas: see `quotas_name`."""
        self._excluded = rules.excluded_classes
        self._beside_quotas = "" if rules.ignore_undeclared else rules.excluded_prefixes
        self._transformed = frozenset(one.input for one in rules.transformations)
        self._in_quotas = frozenset(quotas)
        self.not_understood: dict[str, str] = {}
        """Class that picks none, for its selectors could not be evaluated -> why."""
        self._classes: dict[str, DeviceClass] = {}
        self._of_pool: dict[Pool, dict[str, Slice]] = {}
        self._on: dict[str, dict[str, Slice]] = {}
        """Node -> the slices with devices of it."""
        self._claims: dict[Key, Claim] = {}
        """Those that hold something, or were made for a pod."""
        self._holding: dict[Pool, dict[Key, Claim]] = {}
        self._of_pod: dict[tuple[str, Owner], dict[Key, Claim]] = {}
        """(namespace, pod) -> the claims that were made for it."""
        self._templates: dict[Key, Template] = {}
        self._room: dict[str, Amounts] = {}
        """Of nodes, what was found on them."""
        self._counting_now: dict[str, DeviceClass] | None = None
        for one in listed:
            self.change(None, one)

    def quotas_name(self, resources: Collection[str]) -> Touched:
        """Take in which resources there are quotas of. Of classes without an extended resource only those that can be
        had are counted on nodes: drivers list thousands of devices that nobody asks for."""
        changed = self._in_quotas.symmetric_difference(resources)
        self._in_quotas = frozenset(resources)
        self._counting_now = None
        if not any(one.own_name in changed and not one.resource for one in self._classes.values()):
            return Touched(set(), set(), set())
        self._room.clear()
        return Touched(set(self._on), set(self._claims), set())

    def change(self, old: Listed | None, new: Listed | None) -> Touched:
        """Take in that one came, changed or went."""
        touched = self._reached(old)
        if isinstance(old, DeviceClass) or isinstance(new, DeviceClass):
            self._counting_now = None
        match old:
            case DeviceClass():
                self._classes.pop(old.name, None)
                self.not_understood.pop(old.name, None)
            case Slice():
                drop(self._of_pool, old.pool, old.name)
                for node in {device.node for device in old.devices}:
                    drop(self._on, node, old.name)
                self._let_go(old.closes)
            case Claim():
                self._let_go(old)
            case Template():
                self._templates.pop(old.key, None)
        match new:
            case DeviceClass():
                self._classes[new.name] = new
            case Slice():
                self._of_pool.setdefault(new.pool, {})[new.name] = new
                for node in {device.node for device in new.devices} - {""}:
                    self._on.setdefault(node, {})[new.name] = new
                self._hold(new.closes)
            case Claim():
                self._hold(new)
            case Template():
                self._templates[new.key] = new
        also = self._reached(new)
        touched = Touched(touched.nodes | also.nodes, touched.claims | also.claims, touched.asks | also.asks)
        for node in touched.nodes:
            self._room.pop(node, None)
        return touched

    def _hold(self, claim: Claim) -> None:
        if claim.holds or claim.pod[1]:
            self._claims[claim.key] = claim
        if claim.pod[1]:
            self._of_pod.setdefault((claim.namespace, claim.pod), {})[claim.key] = claim
        for pool, _ in claim.holds:
            self._holding.setdefault(pool, {})[claim.key] = claim

    def _let_go(self, claim: Claim) -> None:
        self._claims.pop(claim.key, None)
        drop(self._of_pod, (claim.namespace, claim.pod), claim.key)
        for pool, _ in claim.holds:
            drop(self._holding, pool, claim.key)

    def _reached(self, value: Listed | None) -> Touched:
        match value:
            case DeviceClass():
                asks = self._templates.keys() | {("", name) for name in (value.name, *self._classes)}
                if not value.resource and not self._may_be_had(value):
                    return Touched(set(), set(), asks)
                return Touched(set(self._on), set(self._claims), asks)
            case Slice():
                slices = (value, *self._of_pool.get(value.pool, {}).values())
                nodes = {device.node for one in slices for device in one.devices}
                return Touched(nodes - {""}, {value.closes.key, *self._holding.get(value.pool, ())}, set())
            case Claim():
                return Touched(set(), {value.key}, set())
            case Template():
                return Touched(set(), set(), {value.key})
        return Touched(set(), set(), set())

    def asked(self, namespace: str, claims: Iterable[Json], classes: Iterable[str] = ()) -> Asked:
        """What a pod of this namespace asks for by its spec.resourceClaims, and of `classes` by their own names, and
        what keeps it from being counted."""
        asked = dict.fromkeys(classes, 0)
        problems: list[str] = []
        for entry in claims:
            name = text(entry.get("resourceClaimTemplateName"))
            template = self._templates.get((namespace, name))
            if not name:
                problems.append(
                    f"resourceClaims {text(entry.get('name'))}: a claim that pods share is not counted: name a "
                    "ResourceClaimTemplate, of which each pod has one of its own"
                )
            elif template is None:
                problems.append(f"ResourceClaimTemplate {name!r} does not exist")
            else:
                devices, refused = self._counted(template.asks)
                problems += [f"ResourceClaimTemplate {name!r}: {why}" for why in refused]
                for of_class, count in devices:
                    asked[of_class] = saturate(asked.get(of_class, 0) + count)
        problems += [why for name in sorted(asked) if (why := self._uncounted(name))]
        if problems:
            return Asked(problems=tuple(dict.fromkeys(problems)))
        return Asked(tuple((name, self._classes[name].counted_as, count) for name, count in sorted(asked.items())))

    def _counted(self, asks: Asks) -> tuple[list[tuple[str, int]], list[str]]:
        """What of a claim is to be counted, and what cannot be."""
        devices = [(of_class, count) for of_class, count in asks.devices if of_class not in self._excluded]
        return devices, [why for of_class, why in asks.refused if of_class not in self._excluded]

    def _uncounted(self, of_class: str) -> str:
        """Why devices of a class cannot be counted; "" if they can."""
        found = self._classes.get(of_class)
        if found is None:
            return f"DeviceClass {of_class!r} does not exist"
        if found.resource and (counts := self.counting[found.resource].name) != of_class:
            return (
                f"{found.resource} is counted by DeviceClass {counts!r}, which is newer than {of_class!r}: ask for that"
            )
        return ""

    def marks(self, namespace: str, templates: Iterable[str], classes: Iterable[str]) -> dict[str, str]:
        """Of templates, and of classes that are asked for by their own names: a mark of each, by name, that changes
        when what it asks for does."""
        asked = {name: self.asked(namespace, [{"resourceClaimTemplateName": name}]) for name in templates}
        asked |= {f"{OF_DEVICE_CLASS}{name}": self.asked(namespace, (), [name]) for name in classes}
        return {name: str(one) for name, one in asked.items()}

    def newest(self, namespace: str, templates: Iterable[str]) -> int:
        """When the last of these templates was made; 0 if none is there."""
        found = (self._templates.get((namespace, name)) for name in templates)
        return max((one.created for one in found if one is not None), default=0)

    def made_for(self, namespace: str, pod: Owner) -> list[Key]:
        """Claims that were made for a pod, by name."""
        return sorted(self._of_pod.get((namespace, pod), ()))

    def pod_of(self, claim: Key) -> Owner:
        """For which a claim was made; ("", "") for none."""
        return self._claims[claim].pod if claim in self._claims else ("", "")

    def beyond(self, namespace: str, pod: Owner, claimed: Claimed, requests: Mapping[str, int]) -> str:
        """What a pod asks for by the claims that were made for it, where that is more than was counted, in words; "" if
        not. `claimed`: what was counted for claims; `requests`: all that was counted, these among them, by resource.
        The name of a class may have become another meanwhile, and may have been any by which none is counted now."""
        counted, besides, names = dict[str, int](), dict(requests), dict[str, set[str]]()
        for of_class, resource, count in claimed:
            counted[of_class] = counted.get(of_class, 0) + count
            besides[resource] = besides.get(resource, 0) - count
            names.setdefault(of_class, set()).add(resource)
        extended = (name for name in besides if "/" in name and not name.startswith(OF_DEVICE_CLASS))
        nameless = {name for name in extended if name not in self.counting}
        asked: dict[tuple[bool, str], int] = {}
        for claim in self._of_pod.get((namespace, pod), {}).values():
            devices, refused = self._counted(claim.asks)
            if refused:
                return refused[0]
            for of_class, count in devices:
                key = claim.extended, of_class
                asked[key] = saturate(asked.get(key, 0) + count)
        for (by_name, of_class), count in sorted(asked.items()):
            may = counted.get(of_class, 0)
            if by_name:
                found = self._classes.get(of_class)
                if found is None:
                    continue  # nobody knows by what name its pod asked
                by = names.get(of_class, set()) | {found.counted_as, found.own_name}
                may = sum(besides.get(name, 0) for name in by)
                if not found.resource or not may:
                    may += sum(besides[name] for name in nameless - by)
            if count > may:
                return f"{count} of {of_class}, and {may} were counted"
        return ""

    def has_of_others(self, namespace: str, pod: Owner, node: str, names: Collection[str]) -> bool:
        """Has a pod devices that are listed on a node by a claim on a class that is counted by none of these names."""
        return bool(self.names_on(namespace, pod, node, but=names))

    def names_on(self, namespace: str, pod: Owner, node: str, but: Collection[str] = ()) -> set[str]:
        """By what names, but for these, the devices count that a pod has on a node by its claims; "" of a class that is
        gone."""
        out: set[str] = set()
        for claim in self._of_pod.get((namespace, pod), {}).values():
            classes = (self._classes.get(of_class) for of_class, _ in self._counted(claim.asks)[0])
            names = {"" if one is None else one.counted_as for one in classes}.difference(but)
            if names - out:
                held, pools = set(claim.holds), {pool for pool, _ in claim.holds}
                if any((at, one.name) in held and one.node == node for at in pools for one in self._current(at)):
                    out |= names
        return out

    def listed(self, claim: Key) -> HeldDevices:
        """What has become of the devices that a claim holds. Of classes that are not counted it holds none."""
        found = self._claims.get(claim)
        if found is None or not found.holds:
            return HeldDevices()
        classes = [self._classes.get(of_class) for of_class, _ in self._counted(found.asks)[0]]
        names = frozenset(one.counted_as for one in classes if one is not None)
        if not names:
            return HeldDevices()
        there = {(pool, one.name) for pool in {pool for pool, _ in found.holds} for one in self._current(pool)}
        gone = [pool for pool, name in found.holds if (pool, name) not in there]
        return HeldDevices(names, len(gone), away=bool(gone) and not any(map(self._newest, gone)))

    def held_by(self, claim: Key, pod: PodUsage | None = None) -> tuple[PodUsage, ...]:
        """What a claim takes of nodes: as much as a pod would that asks for so many. `pod`: for which it was made, if
        that is there and bound; if it is of a gang, so is what the claim takes."""
        held: dict[str, dict[str, int]] = {}
        classes = self.counting
        for pool, name in self._claims[claim].holds if claim in self._claims else ():
            for device in self._current(pool):
                # One that is closed is taken as such, whoever holds it.
                if device.name == name and device.node and not (device.closed and claim[0]):
                    amounts = held.setdefault(device.node, {})
                    for resource, picking in classes.items():
                        amounts[resource] = amounts.get(resource, 0) + self._is_of(picking, pool[0], device)
        if pod is not None and claim in self._claims and self._claims[claim].extended:
            amounts = held.get(pod.node, {})
            for resource, amount in pod.requests:
                if resource in amounts:
                    amounts[resource] = max(0, amounts[resource] - amount)
        gang = pod.workload_uid if pod is not None else ""
        namespace, name = claim
        return tuple(
            PodUsage((f"{namespace}/resourceclaims", f"{name}/{node}"), "", node, tuple(sorted(amounts.items())), gang)
            for node, amounts in sorted(held.items())
            if any(amounts.values())
        )

    def held(self, pods: Iterable[PodUsage] = ()) -> Iterator[PodUsage]:
        """By all claims, where these pods are there."""
        there = {(pod.key, pod.uid): pod for pod in pods}
        for claim in sorted(self._claims):
            name, uid = self._claims[claim].pod
            yield from self.held_by(claim, there.get(((claim[0], name), uid)))

    def laid_on(self, node: Node) -> Node:
        """The node, with what its devices make room for where it offers none of the resource itself."""
        if node.name not in self._on:
            return node
        room = self._room.get(node.name)
        if room is None:
            room = self._room[node.name] = self._found(node.name)
        own = dict(node.allocatable)
        laid = {resource: amount for resource, amount in room if not own.get(resource)}
        if not laid:
            return node
        classes = self.counting
        labels = ((of_class_label(classes[resource].name), "") for resource, amount in laid.items() if amount)
        return replace(
            node,
            allocatable=tuple(sorted({**own, **laid}.items())),
            labels=tuple(sorted((*node.labels, *labels))),
        )

    def _found(self, node: str) -> Amounts:
        """Resources, and how many devices there are for each."""
        classes = self.counting
        out = dict.fromkeys(classes, 0)
        for pool in sorted({one.pool for one in self._on[node].values()}):
            for device in self._current(pool):
                if device.node == node:
                    for resource, picking in classes.items():
                        out[resource] += self._is_of(picking, pool[0], device)
        return tuple(sorted(out.items()))

    def _current(self, pool: Pool) -> Iterator[Device]:
        return (device for one in self._newest(pool) for device in one.devices)

    def _newest(self, pool: Pool) -> list[Slice]:
        """Slices of its newest generation; none before all of that is there."""
        slices = self._of_pool.get(pool, {}).values()
        newest = max((one.generation for one in slices), default=0)
        current = [one for one in slices if one.generation == newest]
        return current if current and len(current) >= max(one.of for one in current) else []

    @property
    def counting(self) -> dict[str, DeviceClass]:
        """Resource -> the class that counts it: of those that name it the newest, or the first by name of those of one
        second; its own name, of one that names none."""
        if self._counting_now is None:
            there = (one for one in self._classes.values() if one.resource or self._may_be_had(one))
            ordered = sorted(there, key=lambda c: (-c.created, c.name), reverse=True)
            self._counting_now = {one.counted_as: one for one in ordered}
        return self._counting_now

    def _may_be_had(self, of: DeviceClass) -> bool:
        """By its own name: a quota is of that, or what is asked for by it needs none."""
        name = of.own_name
        return name in self._in_quotas or name in self._transformed or name.startswith(self._beside_quotas)

    def _is_of(self, picking: DeviceClass, driver: str, device: Device) -> bool:
        try:
            return all(
                _picks(one, driver, tuple(fact for fact in device.facts if fact[2] in one)) for one in picking.selectors
            )
        except NotUnderstoodError as error:
            self.not_understood[picking.name] = str(error)
            return False
