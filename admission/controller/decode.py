"""From the bytes of a watched object to the slim value that is kept of it.

The informers hold what these functions return and nothing else; the full objects are dropped, but for the last few
thousand jobs, whose bytes are kept in `Recent` because they are about to be written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from admission.controller import conditions
from admission.controller.defaults import PriorityClassSeen
from admission.controller.lifecycle import WorkloadView
from admission.controller.world import PodView, WorkloadSeen
from admission.engine.model import Pairs, PodSet
from admission.jobs import devices, pins, values, volumes
from admission.jobs.kinds import JobKind, JobView, containers_of, labels_of, millis, obj, owner_in, text, view
from admission.jobs.requests import of_jobset
from admission.kube.client import Kind
from admission.names import (
    CONTROLLER_UID_LABEL,
    JOB_COMPLETION_INDEX,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_LABELS,
    JOBSET_NAME_LABEL,
    JOBSET_REPLICAS_LABEL,
    JOBSET_REPLICATED_JOB_LABEL,
    JOBSET_UID_LABEL,
    LABELS_OF_JOB,
    REQUEUED,
    Names,
)

V = TypeVar("V")
K = TypeVar("K")
Reader = Callable[[dict[str, Any], Names], tuple[Any, Sequence[str]]]
"""Of `jobs.values`: what it understands of an object, and what had to be left out of that."""
STORED = (
    (Kind("", "v1", "persistentvolumeclaims", volumes.CLAIM), volumes.claim),
    (Kind("", "v1", "persistentvolumes", volumes.VOLUME, False), volumes.volume),
    (Kind("storage.k8s.io", "v1", "storageclasses", volumes.CLASS, False), volumes.storage_class),
)
"""What says where volumes are."""
LISTED = (
    (Kind("resource.k8s.io", "v1", "deviceclasses", devices.CLASS, False), devices.device_class),
    (Kind("resource.k8s.io", "v1", "resourceslices", devices.SLICE, False), devices.resource_slice),
    (Kind("resource.k8s.io", "v1", "resourceclaims", devices.CLAIM), devices.resource_claim),
)
"""What says which devices there are."""
CLAIM_TEMPLATES = (
    Kind("resource.k8s.io", "v1", "resourceclaimtemplates", devices.TEMPLATE),
    devices.claim_template,
)
"""What pods ask for by claims."""
_decode = msgspec.json.Decoder(type=dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Item(Generic[V]):
    """An object whose value the engine understands; `problems` are what had to be left out of it."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    value: V
    problems: tuple[str, ...] = ()
    generation: int = 0
    status: dict[str, Any] | None = None
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    labels: tuple[tuple[str, str], ...] = ()


class Kept(Generic[K, V]):
    """The values that were put in or asked for last, of at most so many bytes together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: K, value: V, size: int) -> None:
        """size: bytes."""
        self._held += size - self._values.pop(key, (None, 0))[1]
        self._values[key] = value, size
        while self._held > self._limit:
            self._held -= self._values.popitem(last=False)[1][1]


class Recent:
    """The bytes of the jobs seen last, so that a write need not read first."""

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._raw: Kept[str, tuple[str, bytes]] = Kept(limit_bytes)

    def put(self, uid: str, resource_version: str, raw: bytes) -> None:
        self._raw.put(uid, (resource_version, raw), len(raw))

    def get(self, uid: str, resource_version: str) -> dict[str, Any] | None:
        """The object, if it is held in exactly this version."""
        held = self._raw.get(uid)
        return _decode(held[1]) if held is not None and held[0] == resource_version else None


def job(kind: JobKind, names: Names, raw: msgspec.Raw, recent: Recent, *, every: bool = False) -> JobView:
    data = bytes(raw)
    seen = view(kind, _decode(data), names, every=every)
    if seen.finished is None and (seen.queue or seen.started or every):
        recent.put(seen.uid, seen.resource_version, data)
    return seen


class _Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    """Of a Workload's metadata what is read; managedFields, the larger part of it, is skipped."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 1
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: list[str] = []
    labels: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    owner_references: list[dict[str, Any]] = []


_NO_POD_SETS = msgspec.Raw(b"[]")


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    pod_sets: msgspec.Raw = _NO_POD_SETS
    queue_name: Any = None
    priority: Any = None
    priority_class_ref: dict[str, Any] | None = None
    active: Any = None
    preemption_gates: Any = None
    maximum_execution_time_seconds: Any = None


_NO_STATUS = msgspec.Raw(b"{}")


class _Workload(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: msgspec.Raw = _NO_STATUS


_decode_workload = msgspec.json.Decoder(_Workload).decode
_decode_status = msgspec.json.Decoder(dict[str, Any] | None).decode
_decode_list = msgspec.json.Decoder(list[dict[str, Any]]).decode
PodSets = tuple[tuple[tuple[PodSet, ...], tuple[str, ...]], tuple[tuple[str, int], ...]]


_UNREAD = (
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "readinessProbe",
    "securityContext", "startupProbe", "terminationMessagePath", "terminationMessagePolicy", "workingDir",
)  # fmt: skip
"""Of a container: where a pod may run does not depend on it, and by it most jobs differ that are alike otherwise."""


class Read(Generic[V]):
    """What was read last, by the bytes that it was read from: a value of large ones is large, too."""

    def __init__(self, read: Callable[[Names, str, bytes], V], limit_bytes: int = 16 << 20) -> None:
        self._read = read
        self._values: Kept[tuple[Names, str, bytes], V] = Kept(limit_bytes)

    def __call__(self, names: Names, namespace: str, raw: bytes) -> V:
        key = (names, namespace, raw)
        value = self._values.get(key)
        if value is None:
            value = self._read(names, namespace, raw)
            self._values.put(key, value, len(raw))
        return value


def _read_pod_sets(names: Names, namespace: str, raw: bytes) -> PodSets:
    """(pod sets and problems, counts) of spec.podSets. A status write changes none of it."""
    entries = _decode_list(raw)
    counts = tuple((str(entry.get("name", "main")), int(entry.get("count", 1))) for entry in entries)
    templates = [obj(entry.get("template")) for entry in entries]
    for template in templates:
        for container in containers_of(obj(template.get("spec"))):
            for name in _UNREAD:
                container.pop(name, None)
    own = [()] * len(entries) if any(map(_read_by_labels, templates)) else list(map(_unlabelled, templates))
    pod_sets, problems = _pod_sets_alike(names, namespace, msgspec.json.encode(entries))
    if any(own):
        pod_sets = tuple(
            replace(part, shape=replace(part.shape, labels=tuple(sorted((*part.shape.labels, *labels)))))
            for part, labels in zip(pod_sets, own, strict=True)
        )
    return (pod_sets, problems), counts


def _read_by_labels(template: dict[str, Any]) -> bool:
    """Do labels of its pods, or of others, say where they may stand."""
    spec, labels = obj(template.get("spec")), labels_of(template)
    return of_jobset(labels) or bool(spec.get("affinity")) or bool(spec.get("topologySpreadConstraints"))


def _unlabelled(template: dict[str, Any]) -> Pairs:
    """Takes out the labels that the API server gives each Job's template, which it returns: with them no two would be
    alike."""
    labels = obj(obj(template.get("metadata")).get("labels"))
    return tuple((name, labels.pop(name)) for name in LABELS_OF_JOB if isinstance(labels.get(name), str))


def _read_alike(names: Names, namespace: str, read: bytes) -> tuple[tuple[PodSet, ...], tuple[str, ...]]:
    return values.pod_sets(_decode_list(read), names, namespace)


_pod_sets = Read(_read_pod_sets)
_pod_sets_alike = Read(_read_alike)
"""One value for all of which nothing differs that is read."""


def workload(names: Names, raw: msgspec.Raw) -> WorkloadSeen:
    seen = _decode_workload(raw)
    meta, spec, stored = seen.metadata, seen.spec, bytes(seen.status)
    status = _decode_status(stored) or {}
    read, counts = _pod_sets(names, meta.namespace, bytes(spec.pod_sets))
    spec.pod_sets = _NO_POD_SETS  # the very default: left out below, where raw bytes have no place
    obj = {"metadata": msgspec.to_builtins(meta), "spec": msgspec.to_builtins(spec), "status": status}
    value, _problems = values.workload(obj, names, read=read)
    state = status.get("requeueState") or {}
    limit = spec.maximum_execution_time_seconds
    boost = str(meta.annotations.get(names.priority_boost_annotation, ""))
    return WorkloadSeen(
        namespace=value.namespace,
        name=value.name,
        uid=value.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        stored=stored if status and not value.finished else b"{}",
        view=WorkloadView(
            value=value,
            resource_version=meta.resource_version,
            spec_hash=str(meta.annotations.get(names.spec_hash_annotation, "")),
            counts=counts,
            requeue_count=int(state.get("count") or 0),
            deleting=meta.deletion_timestamp is not None,
            paused=meta.annotations.get(names.pause_label) == "true",
            kept_out=_kept_out(status),
            max_execution_s=int(limit) if limit else None,
            owner=owner_in(meta.owner_references),
            gated_by=str(meta.annotations.get(names.gated_by_annotation, "")),
            priority_class=_class_of(spec.priority_class_ref),
            defaults=str(meta.annotations.get(names.defaults_annotation, "")),
            no_boost=boost if boost and values.boost_of(boost) is None else "",
            kept=names.finalizer in meta.finalizers,
        ),
    )


def _kept_out(status: dict[str, Any]) -> str:
    said = conditions.condition(status, REQUEUED) or {}
    return str(said.get("reason", "")) if said.get("status") == "False" else ""


def _class_of(ref: dict[str, Any] | None) -> str:
    return str(ref.get("name", "")) if ref and ref.get("kind") == "WorkloadPriorityClass" else ""


class _PodMeta(msgspec.Struct, rename="camel"):
    """Of a pod what is read: pods are what changes most, and most of what they say is for others."""

    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    owner_references: list[dict[str, Any]] | None = None


class _Volume(msgspec.Struct, rename="camel"):
    persistent_volume_claim: Any = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: Any = None
    containers: Any = None
    init_containers: Any = None
    overhead: Any = None
    resources: Any = None
    affinity: Any = None
    tolerations: list[dict[str, Any]] | None = None
    scheduling_gates: list[dict[str, Any]] | None = None
    volumes: list[_Volume] | None = None


_NO_STATE = msgspec.Raw(b"{}")


class _ContainerStatus(msgspec.Struct, rename="camel"):
    """Of a container what a resize in place makes of it, and how it goes."""

    name: Any = None
    ready: Any = None
    state: msgspec.Raw = _NO_STATE
    last_state: msgspec.Raw = _NO_STATE
    resources: Any = None
    allocated_resources: Any = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: Any = None
    nominated_node_name: Any = None
    conditions: list[dict[str, Any]] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    resources: Any = None
    allocated_resources: Any = None
    resize: Any = None


class _Pod(msgspec.Struct):
    metadata: _PodMeta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_decode_pod = msgspec.json.Decoder(_Pod).decode


def pod(names: Names, raw: msgspec.Raw) -> PodView:
    seen = _decode_pod(raw)
    meta, status = seen.metadata, seen.status
    spec = {
        "nodeName": seen.spec.node_name,
        "containers": seen.spec.containers,
        "initContainers": seen.spec.init_containers,
        "overhead": seen.spec.overhead,
        "resources": seen.spec.resources,
        "affinity": seen.spec.affinity,
    }
    obj = {
        "metadata": {
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "labels": meta.labels,
            "annotations": meta.annotations,
            "deletionTimestamp": meta.deletion_timestamp,
        },
        "spec": spec,
        "status": {
            "phase": status.phase,
            "nominatedNodeName": status.nominated_node_name,
            "conditions": status.conditions,
            "containerStatuses": _resized(status.container_statuses),
            "initContainerStatuses": _resized(status.init_container_statuses),
            "resources": status.resources,
            "allocatedResources": status.allocated_resources,
            "resize": status.resize,
        },
    }
    labels: dict[str, str] = meta.labels or {}
    owner: dict[str, Any] = next((ref for ref in meta.owner_references or () if ref.get("controller")), {})
    phase = status.phase or "Pending"
    ready, unready, turned, since, message = False, 0, 0, None, ""
    for condition in status.conditions or ():
        if condition.get("type") == "Ready":
            ready = condition.get("status") == "True"
            if not ready:
                looked_at = _as_it_goes(seen)
                ready = values.is_ready(looked_at)
                if not ready:
                    unready, turned = values.unready_since(looked_at), millis(condition.get("lastTransitionTime"))
        elif (
            condition.get("type") == "PodScheduled"
            and condition.get("status") == "False"
            and condition.get("reason") == "Unschedulable"
        ):
            since, message = millis(condition.get("lastTransitionTime")), str(condition.get("message", ""))
    gated = any(gate.get("name") == names.topology_gate for gate in seen.spec.scheduling_gates or ())
    ours, usage = values.gang_of(labels, names), values.pod_usage(obj, names)
    return PodView(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        workload_uid=ours,
        # Whose pod it is its labels say only where nobody but us could have put our mark beside them.
        owner_uid=(labels.get(CONTROLLER_UID_LABEL, "") if ours else "") or str(owner.get("uid", "")),
        held_by=str(owner.get("uid", "")),
        jobset_uid=labels.get(JOBSET_UID_LABEL, "") if ours else "",
        node=str(spec["nodeName"] or ""),
        done=phase in ("Succeeded", "Failed"),
        ready=ready,
        terminating=meta.deletion_timestamp is not None,
        ends_at=millis(meta.deletion_timestamp),
        created_at=millis(meta.creation_timestamp),
        gated=gated,
        unready_since=unready,
        unschedulable_since=since,
        unschedulable_message=message[:200],
        labels=_kept_labels(labels, ours=bool(ours), gated=gated, stands=usage is not None),
        pod_set=labels.get(names.pod_set_label, "") if ours else "",
        pinned=_pinned(spec),
        usage=usage,
        stays_ms=_stays(seen.spec.tolerations or ()) if ours else None,
        failed=phase == "Failed",
        claims=_claims(seen.spec.volumes or ()),
        turned_at=turned,
    )


def _as_it_goes(pod: _Pod) -> dict[str, Any]:
    """A pod with what `values.is_ready` and `values.unready_since` read of it."""
    status = pod.status

    def each(containers: Sequence[_ContainerStatus] | None) -> list[dict[str, Any]]:
        return [
            {
                "name": one.name,
                "ready": one.ready,
                "state": _decode_status(one.state),
                "lastState": _decode_status(one.last_state),
            }
            for one in containers or ()
        ]

    return {
        "spec": {"containers": pod.spec.containers, "initContainers": pod.spec.init_containers},
        "status": {
            "phase": status.phase,
            "conditions": status.conditions,
            "containerStatuses": each(status.container_statuses),
            "initContainerStatuses": each(status.init_container_statuses),
        },
    }


def _claims(volumes: Sequence[_Volume]) -> tuple[str, ...]:
    said = [obj(one.persistent_volume_claim) for one in volumes if one.persistent_volume_claim is not None]
    return tuple(sorted({text(one.get("claimName")) for one in said} - {""})) if said else ()


def _resized(containers: Sequence[_ContainerStatus] | None) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "resources": one.resources, "allocatedResources": one.allocated_resources}
        for one in containers or ()
        if one.resources is not None or one.allocated_resources is not None
    ]


def _stays(tolerations: Sequence[dict[str, Any]]) -> int | None:
    """How long Kubernetes leaves a pod on a node that is lost, by the shortest of its tolerations; None: for ever."""
    shortest: int | None = None
    for taint in values.UNWELL_TAINTS:
        having = [
            each.get("tolerationSeconds")
            for each in tolerations
            if each.get("effect") in (None, "", "NoExecute") and each.get("key") in (None, "", taint)
        ]
        limits = [seconds for seconds in having if seconds is not None] if having else [0]
        if limits:
            ms = max(0, min(limits)) * 1000
            shortest = ms if shortest is None else min(shortest, ms)
    return shortest


_RANK_LABELS = tuple(sorted((JOB_COMPLETION_INDEX, JOBSET_JOB_INDEX_LABEL, JOBSET_REPLICAS_LABEL)))
_OF_JOBSET = (JOBSET_NAME_LABEL, JOBSET_UID_LABEL, JOBSET_REPLICATED_JOB_LABEL)
_MOST_LABELS = 256
"""Kubernetes knows no bound; a selector that asks for one that is beyond does not find it here."""
_FEW_LABELS = 16
_FEW_LABELS_OF_OURS = 64
"""Those of pods with so few are shared. More would stay when their pods are gone."""


def _kept_labels(labels: dict[str, str], *, ours: bool, gated: bool, stands: bool) -> Pairs:
    """By which a pod that stands somewhere may be selected; while one of ours is gated, by which it has its rank."""
    if ours and gated:
        return _shared(tuple((key, labels[key]) for key in _RANK_LABELS if key in labels))
    if not stands:
        return ()
    pairs = _of_all(labels) if ours else tuple(sorted(labels.items()))
    return _shared(pairs) if len(pairs) <= (_FEW_LABELS_OF_OURS if ours else _FEW_LABELS) else pairs[:_MOST_LABELS]


def _of_all(labels: dict[str, str]) -> Pairs:
    """Labels of a gang's pod, without what tells it from the others of its pod set."""
    own = {JOB_COMPLETION_INDEX}
    if of_jobset(labels):
        own.update(LABELS_OF_JOB, (key for key in labels if key.startswith(JOBSET_LABELS) and key not in _OF_JOBSET))
    return tuple(sorted((key, "" if key in own else value) for key, value in labels.items()))


@lru_cache(maxsize=8192)
def _shared(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One value for all that are equal: most pods are many of a kind."""
    return labels


def _pinned(spec: dict[str, Any]) -> str:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(pins.REQUIRED) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return ""


def priority_class(raw: msgspec.Raw) -> PriorityClassSeen:
    return priority_class_of(_decode(raw))


def priority_class_of(obj: dict[str, Any]) -> PriorityClassSeen:
    meta = obj["metadata"]
    return PriorityClassSeen(
        namespace="",
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        resource_version=str(meta.get("resourceVersion", "")),
        value=int(obj.get("value", 0)),
        default=bool(obj.get("globalDefault", False)),
    )


def plain(raw: msgspec.Raw) -> Item[dict[str, Any]]:
    """An object that is kept as it is (LimitRange, RuntimeClass)."""
    obj = _decode(raw)
    return _item(obj, obj)


def named(raw: msgspec.Raw) -> Item[None]:
    """An object of which it counts that it is there."""
    return _item(_decode(raw), None)


def quota(raw: msgspec.Raw) -> Item[dict[str, Any]]:
    """Of a ResourceQuota what it allows: its status changes with each pod."""
    obj = _decode(raw)
    return _item(obj, {"metadata": {"name": obj["metadata"]["name"]}, "spec": obj.get("spec") or {}})


def judged(kind: str, read: Reader) -> Reader:
    """A reader of `jobs.values` that also tells which rules of the kind the object breaks: API servers before 1.34 get
    the kinds without their rules, and store what the others refuse."""
    from admission.api.kinds import validate_object  # most controllers do without, and start sooner

    def reader(raw: dict[str, Any], names: Names) -> tuple[Any, Sequence[str]]:
        value, problems = read(raw, names)
        return value, [*problems, *validate_object({**raw, "apiVersion": names.api_version, "kind": kind}, names)]

    return reader


def item(
    convert: Any, names: Names, raw: msgspec.Raw, *, keep_status: bool = False, keep_labels: bool = False
) -> Item[Any]:
    """An object as `convert(obj, names) -> (value, problems)` of `jobs.values` understands it."""
    obj = _decode(raw)
    value, problems = convert(obj, names)
    labels = tuple((obj["metadata"].get("labels") or {}).items()) if keep_labels else ()
    return _item(obj, value, tuple(problems), (obj.get("status") or {}) if keep_status else None, labels)


def _item(
    obj: dict[str, Any],
    value: V,
    problems: tuple[str, ...] = (),
    status: dict[str, Any] | None = None,
    labels: tuple[tuple[str, str], ...] = (),
) -> Item[V]:
    meta = obj["metadata"]
    return Item(
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        resource_version=str(meta.get("resourceVersion", "")),
        value=value,
        problems=problems,
        generation=int(meta.get("generation", 0)),
        status=status,
        finalizers=tuple(meta.get("finalizers") or ()),
        deleting="deletionTimestamp" in meta,
        labels=labels,
    )
