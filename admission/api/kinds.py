"""The eight kinds in one table, and the door through which their objects are checked.

`validate_object` answers as the API server would with our CRDs: the sandbox and the webhook ask it, and `e2e` compares
the two. `default_object` and `prune_object` do what the API server does before it stores an object.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from admission.api.flavors import AdmissionCheck, ResourceFlavor, Topology
from admission.api.queues import ClusterQueue, Cohort, LocalQueue
from admission.api.schema import OBJECT_NAME, OBJECT_NAME_HELP, Resource, broken_updates, path_text, say
from admission.api.structural import schema_of
from admission.api.workload import Workload, WorkloadPriorityClass
from admission.names import Names


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`. Those with a priority above 0 show with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True)
class Kind:
    model: type[Resource]
    plural: str
    namespaced: bool
    short_names: tuple[str, ...]
    kueue_short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    has_status: bool = True
    selectable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.model.__name__


def _condition(type_: str, field: str = "status") -> str:
    return f".status.conditions[?(@.type=='{type_}')].{field}"


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_ACTIVE = Column("Active", _condition("Active"))
_COUNTS = (
    Column("Pending", ".status.pendingWorkloads", "integer"),
    Column("Admitted", ".status.admittedWorkloads", "integer"),
)
_WHY_NOT = Column("Reason", _condition("Active", "reason"), priority=1)

# Short names are not Kueue's, so that both can be installed and `kubectl get cq` stays Kueue's.
KINDS: tuple[Kind, ...] = (
    Kind(
        ClusterQueue,
        "clusterqueues",
        False,
        ("mcq",),
        ("cq",),
        (
            Column("Cohort", ".spec.cohortName"),
            Column("Strategy", ".spec.queueingStrategy", priority=1),
            *_COUNTS,
            _ACTIVE,
            _WHY_NOT,
            _AGE,
        ),
    ),
    Kind(
        LocalQueue,
        "localqueues",
        True,
        ("mlq",),
        ("lq", "queue", "queues"),
        (Column("ClusterQueue", ".spec.clusterQueue"), *_COUNTS, _ACTIVE, _WHY_NOT, _AGE),
    ),
    Kind(
        ResourceFlavor,
        "resourceflavors",
        False,
        ("mrf",),
        ("rf", "flavor", "flavors"),
        (
            Column("Topology", ".spec.topologyName"),
            Column("Elastic", ".spec.elastic", "boolean"),
            Column("Placement", ".spec.placement", priority=1),
            _AGE,
        ),
        has_status=False,
    ),
    Kind(
        Cohort,
        "cohorts",
        False,
        ("mco",),
        ("co",),
        (Column("Parent", ".spec.parentName"), *_COUNTS, _ACTIVE, _WHY_NOT, _AGE),
    ),
    Kind(
        Workload,
        "workloads",
        True,
        ("mwl",),
        ("kwl",),
        (
            Column("Queue", ".spec.queueName"),
            Column("Reserved in", ".status.admission.clusterQueue"),
            Column("Admitted", _condition("Admitted")),
            Column("Reason", _condition("QuotaReserved", "reason")),
            Column("Finished", _condition("Finished")),
            Column("Message", _condition("QuotaReserved", "message"), priority=1),
            _AGE,
        ),
        selectable=(".spec.queueName", ".status.admission.clusterQueue"),
    ),
    Kind(
        WorkloadPriorityClass,
        "workloadpriorityclasses",
        False,
        ("mwpc",),
        ("wpc",),
        (Column("Value", ".value", "integer"), _AGE),
        has_status=False,
    ),
    Kind(
        AdmissionCheck,
        "admissionchecks",
        False,
        ("mac",),
        ("ac",),
        (Column("Controller", ".spec.controllerName"), _ACTIVE, _AGE),
    ),
    Kind(Topology, "topologies", False, ("mtopo",), ("topo",), (_AGE,), has_status=False),
)
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}


@lru_cache(maxsize=64)
def _schema(kind: str, group: str) -> dict[str, Any]:
    return schema_of(BY_NAME[kind].model, Names(group))


def _kind_of(obj: Mapping[str, Any]) -> Kind:
    kind = BY_NAME.get(str(obj.get("kind")))
    if kind is None:
        raise KeyError(f"kind {obj.get('kind')!r} is none of {', '.join(BY_NAME)}")
    return kind


def default_object(obj: Mapping[str, Any], names: Names | None = None) -> dict[str, Any]:
    """A copy of `obj` with what was left out filled in, and nulls taken out, as the API server does on every write.

    Raises KeyError for a kind that is not ours.
    """
    names = names or Names()
    out = copy.deepcopy(dict(obj))
    _default(out, _schema(_kind_of(obj).name, names.group))
    return out


def _default(value: Any, schema: Mapping[str, Any]) -> None:
    if isinstance(value, dict):
        properties: Mapping[str, Any] = schema.get("properties", {})
        for key, inner in properties.items():
            if value.get(key) is None:
                if key in value:
                    del value[key]
                if "default" in inner:
                    value[key] = copy.deepcopy(inner["default"])
            if key in value:
                _default(value[key], inner)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for key in [key for key, item in value.items() if item is None]:
                del value[key]
            for item in value.values():
                _default(item, extra)
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            _default(item, schema["items"])


def prune_object(obj: Mapping[str, Any], names: Names | None = None) -> dict[str, Any]:
    """A copy of `obj` without the fields that its kind does not have. Raises KeyError for a kind that is not ours."""
    names = names or Names()
    out = copy.deepcopy(dict(obj))
    for parent, key, _path, _known in list(_unknown(out, _schema(_kind_of(obj).name, names.group), "")):
        del parent[key]
    return out


def unknown_fields(obj: Mapping[str, Any], names: Names | None = None) -> list[str]:
    """One message for each field that the kind of `obj` does not have, naming the nearest that it has.

    `kubectl apply` asks the API server to refuse such an object; a plain client has the fields dropped.
    """
    names = names or Names()
    found = []
    for _parent, key, path, known in _unknown(dict(obj), _schema(_kind_of(obj).name, names.group), ""):
        near = difflib.get_close_matches(key, known, n=1)
        found.append(f'unknown field "{path}"' + (f": did you mean {near[0]}?" if near else ""))
    return found


def _unknown(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[tuple[dict[str, Any], str, str, list[str]]]:
    if isinstance(value, dict):
        properties: Mapping[str, Any] = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        if path == "metadata":
            return
        for key, item in value.items():
            here = f"{path}.{key}" if path else key
            if key in properties:
                yield from _unknown(item, properties[key], here)
            elif isinstance(extra, dict):
                yield from _unknown(item, extra, here)
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and "properties" in schema:
                yield value, key, here, list(properties)
    elif isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from _unknown(item, schema["items"], f"{path}[{i}]")


def validate_object(
    obj: Mapping[str, Any],
    names: Names | None = None,
    old: Mapping[str, Any] | None = None,
    *,
    strict: bool = False,
) -> list[str]:
    """Why the API server would refuse `obj`: messages like "spec.x[0].y: what to write instead". Empty: it would not.

    `old` is what is stored now, on an update. `strict` refuses unknown fields too, as kubectl asks for by default.
    Defaults need not be filled in. An object of no kind of ours, or of another group, gets one message saying so.
    """
    names = names or Names()
    kind = BY_NAME.get(str(obj.get("kind")))
    if kind is None:
        return [f"kind: {obj.get('kind')!r} is none of {', '.join(BY_NAME)}"]
    if obj.get("apiVersion") != names.api_version:
        return [f"apiVersion: {obj.get('apiVersion')!r}: write {names.api_version}"]
    problems = [*_metadata_problems(obj)]
    if strict:
        problems += unknown_fields(obj, names)
    new = _parse(kind, obj, names, problems)
    if old is not None and new is not None:
        before = _parse(kind, old, names, [])
        if before is not None:
            problems += broken_updates(new, before)
    return problems


def _parse(kind: Kind, obj: Mapping[str, Any], names: Names, problems: list[str]) -> Resource | None:
    try:
        return kind.model.model_validate(default_object(obj, names), context={"names": names})
    except ValidationError as error:
        problems += [f"{path_text(e['loc'])}: {say(e)}" for e in error.errors(include_url=False)]
        return None


def _metadata_problems(obj: Mapping[str, Any]) -> Iterator[str]:
    meta = obj.get("metadata")
    if not isinstance(meta, Mapping):
        yield "metadata: write a mapping with a name"
        return
    name = meta.get("name")
    if not name and not meta.get("generateName"):
        yield "metadata.name: write a name"
    elif name and not (isinstance(name, str) and len(name) <= 253 and re.fullmatch(OBJECT_NAME, name)):
        yield f"metadata.name: {name!r} {OBJECT_NAME_HELP}"
