"""Cases as engine values: API objects by the controller's own readers, settings as Rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any, TypeVar

from msgspec.structs import replace

from admission.engine.ledger import Charge, Ledger, charge_of
from admission.engine.model import (
    KUEUE,
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorResource,
    LocalQueue,
    Namespace,
    Node,
    PodUsage,
    Rules,
    Strategies,
    Topology,
    Transformation,
    UsageFairness,
    Workload,
)
from admission.jobs import values
from admission.names import KUEUE_GROUP, Names
from admission.quantity import parse
from tests.conformance.registry import Json

NAMES = Names(KUEUE_GROUP)

V = TypeVar("V")

_READERS = {
    "ClusterQueue": values.cluster_queue,
    "Cohort": values.cohort,
    "LocalQueue": values.local_queue,
    "ResourceFlavor": values.flavor,
    "Topology": values.topology,
    "AdmissionCheck": values.admission_check,
    "Namespace": values.namespace,
    "Node": values.node,
    "Workload": values.workload,
}


def read(raw: Json) -> Any:
    """The engine value of an API object of a kind that the engine knows."""
    if raw["kind"] == "Pod":
        return values.pod_usage(raw, NAMES)
    value, _problems = _READERS[raw["kind"]](raw, NAMES)
    return value


def every(raw: Any, kind: type[V]) -> list[V]:
    """The values of an input that holds one object, a list of them, or a mapping by name. Nothing for None."""
    if raw is None:
        return []
    if isinstance(raw, dict):
        raw = [raw] if "kind" in raw else list(raw.values())
    out = []
    for entry in raw:
        value = read(entry)
        if value is not None:
            assert isinstance(value, kind), (entry["kind"], kind)
            out.append(value)
    return out


def cluster_queues(raw: Any) -> list[ClusterQueue]:
    """Some rows have a flavor in two resource groups, which admission by the API refuses and the reader drops: their
    groups are read one by one, for the engine gives them a meaning."""
    out = []
    for entry in [raw] if isinstance(raw, dict) else raw or ():
        queue: ClusterQueue = read(entry)
        groups = entry["spec"].get("resourceGroups") or ()
        if len(groups) > 1:
            apart = [read({**entry, "spec": {**entry["spec"], "resourceGroups": [group]}}) for group in groups]
            queue = replace(queue, groups=tuple(one.groups[0] for one in apart))
        out.append(queue)
    return out


def cohorts(raw: Any) -> list[Cohort]:
    return every(raw, Cohort)


def local_queues(raw: Any) -> list[LocalQueue]:
    return every(raw, LocalQueue)


def flavors(raw: Any) -> dict[str, Flavor]:
    return {flavor.name: flavor for flavor in every(raw, Flavor)}


def topologies(raw: Any) -> dict[str, Topology]:
    return {topology.name: topology for topology in every(raw, Topology)}


def nodes(raw: Any) -> list[Node]:
    return every(raw, Node)


def pods(raw: Any) -> list[PodUsage]:
    return every(raw, PodUsage)


def checks(raw: Any) -> list[AdmissionCheck]:
    return every(raw, AdmissionCheck)


def namespaces(raw: Any) -> list[Namespace]:
    return every(raw, Namespace)


def workloads(raw: Any) -> list[Workload]:
    return every(raw, Workload)


def without_topology(case: Json) -> Json:
    """The case as it reads where placement by topology is switched off: nobody asks for it, no flavor gives it."""
    if (case["config"].get("featureGates") or {}).get("TopologyAwareScheduling") is not False:
        return case

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in ("topologyName", "topologyRequest", "topologies")}
        return [strip(entry) for entry in value] if isinstance(value, list) else value

    return {**case, "inputs": strip(case["inputs"])}


def gang(pod_sets: Iterable[Json], **more: Any) -> Workload:
    """A pending Workload of these podSets (of a case that has nothing else of it)."""
    raw = {"kind": "Workload", "metadata": {"name": "wl", "namespace": "ns"}, "spec": {"podSets": list(pod_sets)}}
    value: Workload = read(raw)
    return replace(value, **more)


def pair(key: str) -> FlavorResource:
    """ "flavor/resource" (the resource may hold a slash itself)."""
    flavor, _, resource = key.partition("/")
    return flavor, resource


def usage(raw: Mapping[str, int] | None) -> dict[FlavorResource, int]:
    return {pair(key): int(amount) for key, amount in (raw or {}).items()}


def usage_json(of: Mapping[FlavorResource, int]) -> dict[str, int]:
    return {f"{flavor}/{resource}": amount for (flavor, resource), amount in sorted(of.items())}


def amounts(raw: Mapping[str, Any] | None) -> dict[str, int]:
    """A resource list of quantities."""
    return {name: parse(name, quantity) for name, quantity in (raw or {}).items()}


def milliseconds(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)


def _seconds(text: str) -> float:
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    total, number = 0.0, ""
    rest = text
    while rest:
        i = 0
        while i < len(rest) and (rest[i].isdigit() or rest[i] == "."):
            i += 1
        number, rest = rest[:i], rest[i:]
        unit = next(u for u in ("ms", "s", "m", "h") if rest.startswith(u))
        total += float(number) * units[unit]
        rest = rest[len(unit) :]
    return total


def usage_fairness(raw: Json | None) -> UsageFairness | None:
    if not raw:
        return None
    return UsageFairness(
        half_life_ms=round(_seconds(raw.get("usageHalfLifeTime", "0s")) * 1000),
        sampling_ms=round(_seconds(raw.get("usageSamplingInterval", "5m")) * 1000),
        weights=tuple(sorted((name, float(weight)) for name, weight in (raw.get("resourceWeights") or {}).items())),
    )


def rules_of(config: Json) -> Rules:
    """The preset kueue with the settings of a case."""
    gates = set(KUEUE.gates)
    for gate, on in (config.get("featureGates") or {}).items():
        (gates.add if on else gates.discard)(gate)
    strategies = config.get("strategies")
    return replace(
        KUEUE,
        gates=frozenset(gates),
        fair_sharing=bool(config.get("enableFairSharing")),
        strategies=tuple(Strategies(name) for name in strategies) if strategies else KUEUE.strategies,
        usage_fairness=usage_fairness(config.get("admissionFairSharing")),
        ignore_undeclared=config.get("quotaCheckStrategy") == "IgnoreUndeclared",
        excluded_prefixes=tuple(config.get("excludeResourcePrefixes") or ()),
        transformations=tuple(
            Transformation(
                input=entry["input"],
                outputs=tuple(
                    sorted((name, Fraction(str(factor))) for name, factor in (entry.get("outputs") or {}).items())
                ),
                retain=entry.get("strategy", "Retain") != "Replace",
                multiply_by=entry.get("multiplyBy", ""),
            )
            for entry in config.get("resourceTransformations") or ()
        ),
    )


def ledger(
    rules: Rules,
    queues: Iterable[ClusterQueue],
    in_cohorts: Iterable[Cohort] = (),
    used: Mapping[str, Mapping[FlavorResource, int]] | None = None,
    running: Iterable[Workload] = (),
) -> Ledger:
    """A ledger with quota, with plain usage per queue, and with the charges of workloads that hold quota."""
    book = Ledger(rules)
    book.set_queues(queues, in_cohorts)
    for queue, amounts_of in (used or {}).items():
        book.charge(Charge(("usage", queue), f"usage-{queue}", queue, tuple(sorted(amounts_of.items()))))
    for workload in running:
        if workload.admission is not None:
            book.charge(charge_of(workload))
    return book
