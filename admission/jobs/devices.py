"""Devices that DRA drivers hand out, as room on nodes.

A device plugin tells its node how many devices there are (`status.allocatable`). A DRA driver lists each of them in a
ResourceSlice, and a DeviceClass picks some by CEL and may name the extended resource that pods ask for. kube-scheduler
then gives such a pod devices of the class wherever the node itself offers none of the resource (KEP-5004; its plugin
DynamicResources). So that is what a node has room for here as well: the devices on it that the class picks, of pools
whose newest generation is there in full, without those whose taints expel pods. What a ResourceClaim holds is taken, as
if a pod had asked for it, and so is what a taint keeps from pods to come. Claims that kube-scheduler makes for extended
resources are left out, for their pods do ask. Of several classes that name one resource the newest counts.

Left to kube-scheduler: devices that share counters with others (parts of a GPU beside the whole), devices that more
than one node reaches, and the names `deviceclass.resource.kubernetes.io/CLASS`, by which a class can be asked for
whether it names a resource or not: nobody can tell for which of two names a device is still free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from msgspec.structs import replace

from admission.engine.model import Key, Node, PodUsage, drop
from admission.jobs.kinds import Json, millis, name_of, namespace_of, obj, objects, text, texts
from admission.names import Names
from admission.quantity import QuantityError, parse_plain

CLASS, SLICE, CLAIM = "DeviceClass", "ResourceSlice", "ResourceClaim"
_FOR_EXTENDED_RESOURCE = "resource.kubernetes.io/extended-resource-claim"
_VERSION = re.compile(r"(?<![\w-])\d+")
_MAP_KEY = re.compile(r"""\[\s*(['"])([^'"\\]+)\1\s*\]""")

Pool = tuple[str, str]
"""(driver, name)."""
Amounts = tuple[tuple[str, int], ...]
Said = str | int | bool | tuple[int, ...]
Fact = tuple[str, str, str, Said]
"""("attributes" or "capacity", domain, name, value); a version by its numbers, a capacity in thousandths."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    name: str
    resource: str = ""
    """The extended resource by which pods ask for one of its devices; "" if only claims do."""
    created: int = 0
    """Unix milliseconds."""
    selectors: tuple[str, ...] = ()
    """CEL expressions over `device`, all of which pick it."""


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


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim, for the devices that it holds beside what pods ask for."""

    namespace: str
    name: str
    holds: tuple[tuple[Pool, str], ...] = ()

    @property
    def key(self) -> Key:
        return self.namespace, self.name


Listed = DeviceClass | Slice | Claim


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
    counted = texts(obj(raw.get("metadata")).get("annotations")).get(_FOR_EXTENDED_RESOURCE) == "true"
    holds = [
        ((text(one.get("driver")), text(one.get("pool"))), text(one.get("device")))
        for one in results
        if not counted and one.get("adminAccess") is not True
    ]
    return Claim(namespace_of(raw), name_of(raw), tuple(sorted(holds))), ()


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


class Touched(NamedTuple):
    """What may be another after a change."""

    nodes: set[str]
    claims: set[Key]


class Devices:
    """Classes, slices and claims as they are now. `listed`: those that are there."""

    def __init__(self, listed: Iterable[Listed] = ()) -> None:
        self.not_understood: dict[str, str] = {}
        """Class that picks none, for its selectors could not be evaluated -> why."""
        self._classes: dict[str, DeviceClass] = {}
        self._of_pool: dict[Pool, dict[str, Slice]] = {}
        self._on: dict[str, dict[str, Slice]] = {}
        """Node -> the slices with devices of it."""
        self._claims: dict[Key, Claim] = {}
        """Those that hold something."""
        self._holding: dict[Pool, dict[Key, Claim]] = {}
        self._room: dict[str, Amounts] = {}
        """Of nodes, what was found on them."""
        for one in listed:
            self.change(None, one)

    def change(self, old: Listed | None, new: Listed | None) -> Touched:
        """Take in that one came, changed or went."""
        touched = self._reached(old)
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
        also = self._reached(new)
        touched = Touched(touched.nodes | also.nodes, touched.claims | also.claims)
        for node in touched.nodes:
            self._room.pop(node, None)
        return touched

    def _hold(self, claim: Claim) -> None:
        if claim.holds:
            self._claims[claim.key] = claim
        for pool, _ in claim.holds:
            self._holding.setdefault(pool, {})[claim.key] = claim

    def _let_go(self, claim: Claim) -> None:
        self._claims.pop(claim.key, None)
        for pool, _ in claim.holds:
            drop(self._holding, pool, claim.key)

    def _reached(self, value: Listed | None) -> Touched:
        match value:
            case DeviceClass() if value.resource:
                return Touched(set(self._on), set(self._claims))
            case Slice():
                slices = (value, *self._of_pool.get(value.pool, {}).values())
                nodes = {device.node for one in slices for device in one.devices}
                return Touched(nodes - {""}, {value.closes.key, *self._holding.get(value.pool, ())})
            case Claim():
                return Touched(set(), {value.key})
        return Touched(set(), set())

    def held_by(self, claim: Key) -> tuple[PodUsage, ...]:
        """What a claim takes of nodes: as much as a pod would that asks for so many."""
        held: dict[str, dict[str, int]] = {}
        classes = self._by_resource()
        for pool, name in self._claims[claim].holds if claim in self._claims else ():
            for device in self._current(pool):
                # One that is closed is taken as such, whoever holds it.
                if device.name == name and device.node and not (device.closed and claim[0]):
                    amounts = held.setdefault(device.node, {})
                    for resource, picking in classes.items():
                        amounts[resource] = amounts.get(resource, 0) + self._is_of(picking, pool[0], device)
        namespace, name = claim
        return tuple(
            PodUsage((f"{namespace}/resourceclaims", f"{name}/{node}"), "", node, tuple(sorted(amounts.items())))
            for node, amounts in sorted(held.items())
        )

    def held(self) -> Iterator[PodUsage]:
        """By all claims."""
        for claim in sorted(self._claims):
            yield from self.held_by(claim)

    def laid_on(self, node: Node) -> Node:
        """The node, with what its devices make room for where it offers none of the resource itself."""
        if node.name not in self._on:
            return node
        room = self._room.get(node.name)
        if room is None:
            room = self._room[node.name] = self._found(node.name)
        own = dict(node.allocatable)
        laid = own | {resource: amount for resource, amount in room if not own.get(resource)}
        return node if laid == own else replace(node, allocatable=tuple(sorted(laid.items())))

    def _found(self, node: str) -> Amounts:
        """Resources, and how many devices there are for each."""
        classes = self._by_resource()
        out = dict.fromkeys(classes, 0)
        for pool in sorted({one.pool for one in self._on[node].values()}):
            for device in self._current(pool):
                if device.node == node:
                    for resource, picking in classes.items():
                        out[resource] += self._is_of(picking, pool[0], device)
        return tuple(sorted(out.items()))

    def _current(self, pool: Pool) -> Iterator[Device]:
        """Devices of its newest generation; none before all of that is there."""
        slices = self._of_pool.get(pool, {}).values()
        newest = max((one.generation for one in slices), default=0)
        current = [one for one in slices if one.generation == newest]
        if current and len(current) >= max(one.of for one in current):
            yield from (device for one in current for device in one.devices)

    def _by_resource(self) -> dict[str, DeviceClass]:
        """Of the classes that name a resource the newest, or the first by name of those of one second."""
        named = (one for one in self._classes.values() if one.resource)
        return {one.resource: one for one in sorted(named, key=lambda c: (-c.created, c.name), reverse=True)}

    def _is_of(self, picking: DeviceClass, driver: str, device: Device) -> bool:
        try:
            return all(
                _picks(one, driver, tuple(fact for fact in device.facts if fact[2] in one)) for one in picking.selectors
            )
        except NotUnderstoodError as error:
            self.not_understood[picking.name] = str(error)
            return False
