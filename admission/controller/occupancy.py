"""Who sits where on the nodes, what is free, and how large a gang fits: by the engine's own book of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import structs

from admission import quantity
from admission.controller.answers import Largest, NodeRow
from admission.controller.standing import owner_of
from admission.engine.capacity import Capacity, PlaceRequest, place, takes
from admission.engine.counts import keeps_off
from admission.engine.model import MUSTER, Flavor, Misfit, Node, PodSet, PodShape, Toleration
from admission.jobs import values
from admission.jobs.devices import Devices
from admission.jobs.kinds import obj, texts
from admission.names import Names

Json = dict[str, Any]


def _lost(raw: Json, node: Node) -> tuple[tuple[str, int], ...]:
    """Devices of its capacity that it does not hand out."""
    there = dict(node.allocatable)
    out: dict[str, int] = {}
    for resource, amount in texts(obj(raw.get("status")).get("capacity")).items():
        if "/" in resource:
            with suppress(quantity.QuantityError):
                out[resource] = quantity.parse(resource, amount) - there.get(resource, 0)
    return tuple(sorted((resource, amount) for resource, amount in out.items() if amount > 0))


class Occupancy:
    """Nodes, and the Workloads and pods that hold room on them, from their objects."""

    def __init__(
        self,
        nodes: Iterable[Json],
        topologies: Iterable[Json],
        workloads: Iterable[Json],
        pods: Iterable[Json],
        names: Names,
        devices: Devices,
    ) -> None:
        self._book = Capacity()
        self._owners: dict[str, str] = {}
        """uid of a Workload -> its job."""
        self._lost: dict[str, tuple[tuple[str, int], ...]] = {}
        for raw in nodes:
            node = values.node(raw, names)[0]
            self._book.put_node(devices.laid_on(node))
            self._lost[node.name] = _lost(raw, node)
        for raw in topologies:
            self._book.put_topology(values.topology(raw, names)[0])
        for raw in workloads:
            value, _ = values.workload(raw, names)
            self._owners[value.uid] = f"{value.namespace}/{owner_of(raw)[1] or value.name}"
            if value.admission is not None and not value.finished:
                shapes = {pod_set.name: takes(pod_set.shape) for pod_set in value.pod_sets}
                self._book.charge(value.key, value.uid, value.admission, shapes)
        self._renamed: dict[str, dict[str, set[str]]] = {}
        """Node -> uid of a Workload -> names by which devices count that its pods have there by claims."""
        there_are = [usage for raw in pods if (usage := values.pod_usage(raw, names)) is not None]
        for usage in (*there_are, *devices.held(there_are)):
            self._book.put_pod(usage)
        for pod in there_are:
            if names_there := devices.names_on(pod.key[0], (pod.key[1], pod.uid), pod.node):
                self._renamed.setdefault(pod.node, {}).setdefault(pod.workload_uid, set()).update(names_there)
        there = {name for node in self._book.nodes() for name, amount in node.allocatable if amount}
        named = sorted(name for name in there if "/" in name)
        self.resources = tuple(named) or tuple(name for name in ("cpu", "memory") if name in there)
        """Devices (resources with a domain, as nvidia.com/gpu) where there are any; else cpu and memory."""

    def rows(self, flavors: Sequence[Flavor]) -> tuple[NodeRow, ...]:
        return tuple(self._row(node, flavors) for node in self._book.nodes())

    def _row(self, node: Node, flavors: Sequence[Flavor]) -> NodeRow:
        occupants = {uid: dict(amounts) for uid, amounts in self._book.occupants(node.name).items()}
        free = self._book.free(node.name)
        renamed: dict[tuple[str, str], int] = {}
        offered, lost = dict(node.allocatable), dict(self._lost[node.name])
        for uid, names in self._renamed.get(node.name, {}).items():
            held = occupants.get(uid, {})
            for resource in [r for r in held if "/" in r and not offered.get(r) and r not in lost and r not in names]:
                amount = held.pop(resource)
                if resource in free:
                    free[resource] += amount
                if resource in self.resources:
                    what = resource, ", ".join(sorted(names))
                    renamed[what] = renamed.get(what, 0) + amount
        return NodeRow(
            name=node.name,
            ready=node.ready,
            cordoned=node.unschedulable,
            flavors=tuple(f.name for f in flavors if set(f.node_labels) <= set(node.labels)),
            capacity=self._counted(dict(node.allocatable)),
            free=self._counted(dict(sorted(free.items()))),
            gangs=self._gangs(occupants),
            taints=keeps_off(node, flavors),
            lost=self._lost[node.name],
            renamed=tuple((resource, amount, names) for (resource, names), amount in sorted(renamed.items())),
        )

    def _gangs(self, occupants: Mapping[str, Mapping[str, int]]) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
        held = {(uid, self._owners.get(uid, uid)): amounts for uid, amounts in occupants.items()}
        return tuple(
            (owner if uid else "others", self._counted({r: amount for r, amount in amounts.items() if amount}))
            for (uid, owner), amounts in sorted(held.items(), key=lambda one: (not one[0][0], one[0][1]))
        )

    def _counted(self, amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        return tuple((resource, amount) for resource, amount in amounts.items() if resource in self.resources)

    def largest(self, flavors: Sequence[Flavor], per_pod: dict[str, int] | None) -> tuple[Largest, ...]:
        """On each flavor. `per_pod`: what each pod takes; None: one device, and a whole node's devices."""
        out: list[Largest] = []
        for flavor in flavors or [Flavor("")]:
            nodes = [node for node in self._book.nodes() if set(flavor.node_labels) <= set(node.labels)]
            sizes: list[dict[str, int]] = [per_pod] if per_pod is not None else []
            if per_pod is None:
                for resource in self.resources:
                    whole_node = max((dict(node.allocatable).get(resource, 0) for node in nodes), default=0)
                    one = 1 if "/" in resource else 1000 if resource == "cpu" else 2**30
                    sizes.extend({resource: amount} for amount in sorted({one, whole_node}) if 0 < amount <= whole_node)
            out.extend(Largest(flavor.name, tuple(sorted(size.items())), self._fitting(flavor, size)) for size in sizes)
        return tuple(out)

    def _fitting(self, flavor: Flavor, per_pod: dict[str, int]) -> int:
        """How many pods of this size the flavor's nodes take at once: the engine's own answer, by bisection."""
        # Of its taints those that it names are for its pods to tolerate.
        own = tuple(Toleration(taint.key, value=taint.value, effect=taint.effect) for taint in flavor.node_taints)
        shape = PodShape(requests=tuple(sorted(per_pod.items())), tolerations=own)
        # Nodes that may yet come are not counted: the question is what fits now.
        on = (structs.replace(flavor, elastic=False),)

        def fits(count: int) -> bool:
            request = PlaceRequest(PodSet("gang", count, shape), count, takes(shape), on)
            return not isinstance(place(self._book, [request], rules=MUSTER), Misfit)

        low, high = 0, 1
        while high < 2**20 and fits(high):
            low, high = high, high * 2
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
