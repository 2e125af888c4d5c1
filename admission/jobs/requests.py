"""What the pods of a template ask for: how much, and where they may go.

`pod_requests` counts resources as kube-scheduler does: the sum of the containers and sidecars, or the largest moment
of their start-up if that is more; what is said for the pod as a whole before what its containers say; plus overhead. A
limit without a request is a request. Of a pod that is there, what its kubelet says of a resize in place counts, too.

`complete` first adds what the API server will add when the pods are made (LimitRange defaults, the RuntimeClass's
overhead, selector and tolerations), so that a Workload's template says all by itself and is charged as its pods are.
`out_of_bounds` says for which LimitRanges it will refuse them, `over_limits` for which limits of their own, and
`beside_class` for what their RuntimeClass says otherwise.

`shape_of` reads what decides where a pod may stand. A constraint that placement does not model is not ignored: the
shape says it in `refused`, in words, and such a gang is not admitted on real nodes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from admission.engine.model import (
    AntiAffinity,
    Claimed,
    Exclusive,
    LabelSelector,
    Pairs,
    PodShape,
    Requirement,
    Toleration,
    TopologyRequest,
    matches,
    of_class_label,
)
from admission.jobs.kinds import (
    JOB,
    KUEUES_YES_OR_NO,
    JobKind,
    Json,
    annotations_of,
    containers_of,
    device_classes,
    digest,
    digits,
    items,
    json_of,
    labels_of,
    obj,
    objects,
    text,
    texts,
    whole,
)
from admission.names import (
    HOSTNAME_LABEL,
    JOB_COMPLETION_INDEX,
    JOBSET_EXCLUSIVE_TOPOLOGY,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_JOB_KEY_LABEL,
    JOBSET_NAME_LABEL,
    JOBSET_NAMESPACED_JOB_LABEL,
    JOBSET_NODE_SELECTOR,
    JOBSET_REPLICATED_JOB_LABEL,
    JOBSET_UID_LABEL,
    LABELS_OF_JOB,
    OF_DEVICE_CLASS,
    Names,
)
from admission.quantity import QuantityError, format_resources, parse, parse_plain, saturate
from admission.quantity import format as written

NODE_NAME = "metadata.name"
"""The one field that node affinity can match."""

Terms = tuple[tuple[Requirement, ...], ...]
"""Required node affinity: any of the terms, all requirements of it."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_POD_LEVEL = ("cpu", "memory")
_LIMITED = (*_POD_LEVEL, "ephemeral-storage")
"""Whose limits a ResourceQuota counts."""
_OF_ONE_CHILD = frozenset({*LABELS_OF_JOB, JOBSET_JOB_KEY_LABEL})
"""Labels of pods whose values no two Jobs share, of one JobSet or not; each pod of a Job has them."""
_OF_ONE_JOB = _OF_ONE_CHILD | {JOBSET_NAME_LABEL, JOBSET_UID_LABEL}
"""Labels of pods whose values no two jobs share."""


def of_jobset(labels: Mapping[str, str]) -> bool:
    """Are pods with these labels a JobSet's."""
    return JOBSET_NAME_LABEL in labels or JOBSET_JOB_KEY_LABEL in labels


def _as_made(own: Mapping[str, str], names: Names) -> Pairs:
    """Labels of a template, sorted, with those that its pods get as they are made, of which others may select all that
    have one; without values, where each has its own."""
    added = {names.managed_label: "true", names.workload_uid_label: "", names.pod_set_label: ""}
    if of_jobset(own):
        added |= dict.fromkeys((*_OF_ONE_JOB, JOBSET_JOB_INDEX_LABEL), "")
    return tuple(sorted({**added, **own}.items()))


def _amounts(raw: object, where: str) -> dict[str, int]:
    out: dict[str, int] = {}
    for name, quantity in obj(raw).items():
        if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
            raise QuantityError(f"{where}: {name}: {quantity!r} is no quantity")
        try:
            amount = parse(name, quantity)
        except QuantityError as error:
            raise QuantityError(f"{where}: {name}: {error}") from None
        if amount < 0:
            raise QuantityError(f"{where}: {name}: {quantity} is negative")
        out[name] = amount
    return out


def _container(container: Json) -> dict[str, int]:
    """Requests of a container; a limit without a request counts as one."""
    resources = obj(container.get("resources"))
    where = f"container {text(container.get('name'))!r}"
    return _amounts(resources.get("limits"), where) | _amounts(resources.get("requests"), where)


def _infeasible(status: Json) -> bool:
    """Can its node never give a pod what a resize asks for? (Kubernetes 1.32 and older say so in a field.)"""
    pending = next((one for one in objects(status.get("conditions")) if one.get("type") == "PodResizePending"), None)
    return status.get("resize") == "Infeasible" if pending is None else pending.get("reason") == "Infeasible"


def _in_force(asked: dict[str, int], status: Json, where: str, *, infeasible: bool) -> dict[str, int]:
    """The most of what a container or a pod asks for, what its kubelet has set aside and what it runs with; not what it
    asks for where it cannot have it. status: of the container, or of the pod."""
    runs, allocated = status.get("resources"), status.get("allocatedResources")
    if not isinstance(runs, dict) and not isinstance(allocated, dict):
        return asked
    out = {} if infeasible else dict(asked)
    _at_least(out, _amounts(allocated, where))
    _at_least(out, _amounts(obj(runs).get("requests"), where))
    return out


def _of_one(status: Json) -> Callable[[Json], dict[str, int]]:
    """What a container counts for in a pod of this status."""
    infeasible = _infeasible(status)
    groups = ("containerStatuses", "initContainerStatuses")
    known = {text(one.get("name")): one for group in groups for one in objects(status.get(group))}

    def counts(container: Json) -> dict[str, int]:
        name, asked = text(container.get("name")), _container(container)
        said = known.get(name)
        if said is None:
            return asked
        requests = obj(container.get("resources")).get("requests")
        if requests == said.get("allocatedResources") == obj(said.get("resources")).get("requests"):
            return asked  # nearly always: it need not be read thrice
        return _in_force(asked, said, f"status of container {name!r}", infeasible=infeasible)

    return counts


def _plus(into: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        into[name] = saturate(into.get(name, 0) + amount)


def _at_least(into: dict[str, int], other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        into[name] = max(into.get(name, 0), amount)


def _of_whole_pod(spec: Json, running: Mapping[str, int], status: Json | None = None) -> dict[str, int]:
    """What a pod with resources of its own requests as a whole, where `running` is what its containers do: what it
    says, else the sum of its containers (of hugepages never), else its limit. As the API server fills it in."""
    said = obj(spec.get("resources"))
    if not said:
        return {}
    requested, limited = _amounts(said.get("requests"), "pod"), _amounts(said.get("limits"), "pod")
    of_containers = {name: amount for name, amount in running.items() if name in _POD_LEVEL}
    out = limited | of_containers | requested
    out = {name: amount for name, amount in out.items() if name in _POD_LEVEL or name.startswith("hugepages-")}
    if status is None:
        return out
    force = _in_force(out, status, "status of the pod", infeasible=_infeasible(status))
    return {name: force.get(name, 0) for name in out}


def _of_containers(spec: Json, counts: Callable[[Json], dict[str, int]] = _container) -> dict[str, int]:
    """What the containers of a pod request together. counts: what one does that may be resized while it runs."""
    running: dict[str, int] = {}
    for container in objects(spec.get("containers")):
        _plus(running, counts(container))
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in objects(spec.get("initContainers")):
        sidecar = container.get("restartPolicy") == "Always"
        own = counts(container) if sidecar else _container(container)
        if sidecar:
            _plus(running, own)
            _plus(sidecars, own)
            _at_least(starting, sidecars)
        else:
            # It runs beside the sidecars that were started before it.
            _plus(own, sidecars)
            _at_least(starting, own)
    _at_least(running, starting)
    return running


def pod_requests(spec: Json, *, status: Json | None = None) -> dict[str, int]:
    """Resource -> amount of one pod, in the units of `quantity`, without the pod itself (resource `pods`). `status` is
    that of a pod that is there. Raises QuantityError, naming container and resource."""
    running = _of_containers(spec, _of_one(status) if status else _container)
    running |= _of_whole_pod(spec, running, status)
    _plus(running, _amounts(spec.get("overhead"), "overhead"))
    return running


# ---------------------------------------------------------------- what the API server will add


def limits_of(limit_range: Json) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """(type, default limits, default requests) of a LimitRange, with the defaults that the API server fills in."""
    out = []
    for item in objects(obj(limit_range.get("spec")).get("limits")):
        default, request = obj(item.get("default")), obj(item.get("defaultRequest"))
        if item.get("type") == "Container":
            default = obj(item.get("max")) | default
            request = obj(item.get("min")) | default | request
        out.append((text(item.get("type")), default, request))
    return out


_CONTAINERS = ("containers", "initContainers")


def _with_defaults(pod_spec: Json, limit_ranges: Iterable[Json]) -> Json:
    defaults = [entry for limit_range in limit_ranges for entry in limits_of(limit_range) if entry[0] == "Container"]
    if not any(default or request for _, default, request in defaults):
        return pod_spec
    out = dict(pod_spec)
    if whole := obj(pod_spec.get("resources")):
        # Filled in before a LimitRange adds to the containers, which changes nothing of it.
        try:
            requests = format_resources(_of_whole_pod(pod_spec, _of_containers(pod_spec)))
        except QuantityError:
            requests = {}  # it is told where they are read
        out["resources"] = {**whole, "requests": requests | obj(whole.get("requests"))}
    for group in _CONTAINERS:
        if group not in out:
            continue
        containers = []
        for container in objects(out[group]):
            resources = obj(container.get("resources"))
            limits = dict(obj(resources.get("limits")))
            # As Kubernetes does, limits become requests before a LimitRange adds what is still missing.
            requests = limits | obj(resources.get("requests"))
            for _, default, request in defaults:
                limits = {**default, **limits}
                requests = {**request, **requests}
            merged = dict(resources)
            if limits:
                merged["limits"] = limits
            if requests:
                merged["requests"] = requests
            containers.append({**container, "resources": merged} if merged else container)
        out[group] = containers
    return out


def with_devices(template: Json, names: Names, asked: Claimed | str) -> Json:
    """A template whose pods ask for devices of DeviceClasses, with what they ask for, or why that is not known."""
    meta = obj(template.get("metadata"))
    said = json.dumps(asked, separators=(",", ":"), ensure_ascii=False)
    notes = {**obj(meta.get("annotations")), names.claimed_devices_annotation: said}
    return {**template, "metadata": {**meta, "annotations": notes}}


def _claimed(template: Json, names: Names) -> Claimed | str | None:
    """The same as it was written; None where that was not done, or cannot be read."""
    notes = annotations_of(template)
    said = json_of(notes.get(names.claimed_devices_annotation, ""))
    if not isinstance(said, list):
        return said if isinstance(said, str) and said else None
    out = tuple((text(one[0]), text(one[1]), one[2]) for one in said if isinstance(one, list) and len(one) == 3)
    good = all(of_class and resource and isinstance(count, int) and count >= 0 for of_class, resource, count in out)
    return out if good and len(out) == len(said) else None


def asked_by_class_name(template: Json) -> list[str]:
    """DeviceClasses of which a pod template asks for some devices by the classes' own names; none where its requests
    cannot be read."""
    classes = device_classes(template)
    try:
        requests = pod_requests(obj(template.get("spec"))) if classes else {}
    except QuantityError:
        return []
    return sorted(name for name in classes if requests.get(f"{OF_DEVICE_CLASS}{name}"))


def complete(template: Json, *, limit_ranges: Sequence[Json] = (), runtime_class: Json | None = None) -> Json:
    """The template with what the API server will add to its pods. The argument is not changed."""
    spec = obj(template.get("spec"))
    if not limit_ranges and runtime_class is None:
        return template
    spec = copy.deepcopy(_with_defaults(spec, limit_ranges))
    if runtime_class is not None:
        fixed = obj(obj(runtime_class.get("overhead")).get("podFixed"))
        if fixed and spec.get("overhead") is None:
            spec["overhead"] = dict(fixed)
        scheduling = obj(runtime_class.get("scheduling"))
        if selector := obj(scheduling.get("nodeSelector")):
            spec["nodeSelector"] = {**obj(spec.get("nodeSelector")), **selector}
        missing = [t for t in objects(scheduling.get("tolerations")) if t not in items(spec.get("tolerations"))]
        if missing:
            spec["tolerations"] = [*items(spec.get("tolerations")), *missing]
    return {**template, "spec": spec}


def with_added(template: Json, full: Json, names: Names) -> Json:
    """`template` with what `complete` made of it written beside it. For Kueue, which stops a running job whose
    containers or tolerations are not those of its Workload."""
    was, meta = obj(template.get("spec")), obj(template.get("metadata"))
    added = {
        key: [obj(one.get("resources")) for one in objects(value)] if key in _CONTAINERS else value
        for key, value in obj(full.get("spec")).items()
        if value != was.get(key)
    }
    held = obj(meta.get("annotations"))
    # Never what an owner wrote there.
    notes = {key: value for key, value in held.items() if key != names.added_annotation}
    if added:
        notes[names.added_annotation] = json.dumps(added, separators=(",", ":"), ensure_ascii=False)
    return template if notes == held else {**template, "metadata": {**meta, "annotations": notes}}


def _with_what_was_added(template: Json, names: Names) -> Json:
    """The inverse; a template beside which nothing is written is the answer."""
    notes = annotations_of(template) if names.as_kueue else {}
    if names.added_annotation not in notes:
        return template
    spec = dict(obj(template.get("spec")))
    for key, value in obj(json_of(notes[names.added_annotation])).items():
        if key not in _CONTAINERS:
            spec[key] = value
        elif len(written := objects(spec.get(key))) == len(said := objects(value)):
            spec[key] = [{**one, "resources": resources} for one, resources in zip(written, said, strict=True)]
    return {**template, "spec": spec}


def out_of_bounds(pod_spec: Json, limit_ranges: Iterable[Json]) -> list[str]:
    """For which LimitRanges of its namespace the API server refuses a pod, in words; pod_spec as of `complete`."""
    try:
        asked = {"Container": _by_container(pod_spec), "Pod": [("the pod", *_of_pod(pod_spec))]}
        return [
            f"LimitRange {text(obj(limit_range.get('metadata')).get('name'))!r}: {who} {wrong}"
            for limit_range in limit_ranges
            for item in _limits(limit_range)
            for who, requests, limits in asked[text(item.get("type"))]
            for wrong in _out_of(item, requests, limits)
        ]
    except QuantityError:
        return []  # it is told where they are read


def over_limits(pod_spec: Json) -> list[str]:
    """For which requests beside which limits the API server refuses a pod, in words. (A Job that is written like that
    it does not take; a JobSet it does, and not its child Jobs.) Extended resources and hugepages cannot be
    overcommitted, extended resources have no parts, and containers stay within what the pod has as a whole."""
    try:
        return [*_in_parts(pod_spec), *_overcommitted(pod_spec), *_beyond_whole(pod_spec)]
    except QuantityError:
        return []  # it is told where they are read


def beyond_defaults(pod_spec: Json, limit_ranges: Sequence[Json]) -> list[str]:
    """The same of what LimitRanges add to a pod: a limit may be less than a request that is written. pod_spec: as it is
    written."""
    full = _with_defaults(pod_spec, limit_ranges)
    if full is pod_spec:
        return []
    told = over_limits(pod_spec)
    return [f"with what LimitRanges add, {one}" for one in over_limits(full) if one not in told]


def _overcommitted(pod_spec: Json) -> Iterator[str]:
    for who, requests, limits in _by_container(pod_spec):
        for name, amount in requests.items():
            exact = _is_extended(name) or name.startswith("hugepages-")
            limit = limits.get(name)
            if amount != limit if exact else limit is not None and amount > limit:
                said = "none" if limit is None else written(name, limit)
                rule = "is to be its limit" if exact else "may be its limit at most"
                yield f"{who}: a request of {name} {rule} (it has: request {written(name, amount)}, limit {said})"


def _beyond_whole(pod_spec: Json) -> Iterator[str]:
    whole = obj(pod_spec.get("resources"))
    limited, requested = _amounts(whole.get("limits"), "pod"), _amounts(whole.get("requests"), "pod")
    for container in objects(pod_spec.get("containers")) if limited else ():
        who = f"container {text(container.get('name'))!r}"
        for name, limit in _amounts(obj(container.get("resources")).get("limits"), who).items():
            if limit > limited.get(name, limit):
                has = f"it has {written(name, limit)}, the pod {written(name, limited[name])}"
                yield f"{who}: a limit of {name} may be the pod's at most ({has})"
    for name, amount in (_of_containers(pod_spec) if requested else {}).items():
        if amount > requested.get(name, amount):
            has = f"they have {written(name, amount)}, the pod {written(name, requested[name])}"
            yield f"requests of {name} of its containers may be the pod's at most together ({has})"


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _in_parts(pod_spec: Json) -> list[str]:
    """Raises QuantityError."""
    out: dict[str, None] = {}
    for container in containers_of(pod_spec):
        resources = obj(container.get("resources"))
        for listed in ("limits", "requests"):
            for name, amount in obj(resources.get(listed)).items():
                if _is_extended(name) and parse_plain(amount) < parse(name, amount):  # which rounds up
                    who = f"container {text(container.get('name'))!r}"
                    out[f"{who}: {name} is given in whole numbers only (it has: {amount})"] = None
    return list(out)


def refused_children(job_spec: Json) -> list[str]:
    """Why the API server takes none of the Jobs that a JobSet makes of this, in words: what of a Job it would have
    refused at once. (What JobSet's webhook fills in is there.)"""
    out = []
    sized = job_spec.get("parallelism") is None or job_spec.get("completions") is not None
    if not sized and job_spec.get("completionMode") in (None, "Indexed"):
        out.append("its Jobs are Indexed and need completions: write as many as parallelism, or NonIndexed")
    policy = text(obj(obj(job_spec.get("template")).get("spec")).get("restartPolicy"))
    if policy == "Always":
        out.append("restartPolicy of a Job's pods is OnFailure or Never, and not Always")
    elif job_spec.get("podFailurePolicy") is not None and policy != "Never":
        out.append("beside a podFailurePolicy restartPolicy is to be Never (where a JobSet says none, it is OnFailure)")
    return out


def beside_class(pod_spec: Json, runtime_class: Json | None) -> list[str]:
    """Where a pod contradicts its RuntimeClass (None: it names none), so that the API server refuses it, in words.
    pod_spec: as it is written."""
    who = f"RuntimeClass {text(pod_spec.get('runtimeClassName'))!r}"
    scheduling, own = obj(obj(runtime_class).get("scheduling")), texts(pod_spec.get("nodeSelector"))
    out = [
        f"{who} selects nodes by {key}={value}, and the template by {key}={own[key]}"
        for key, value in sorted(texts(scheduling.get("nodeSelector")).items())
        if own.get(key, value) != value
    ]
    fixed, said = obj(obj(obj(runtime_class).get("overhead")).get("podFixed")), obj(pod_spec.get("overhead"))
    try:
        if said and _amounts(said, "overhead") != _amounts(fixed, "overhead"):
            out.append("overhead is added by a RuntimeClass: leave it out of the template")
    except QuantityError:
        pass  # it is told where they are read
    return out


def _limits(limit_range: Json) -> list[Json]:
    """What is said of pods, and not of claims."""
    said = objects(obj(limit_range.get("spec")).get("limits"))
    return [item for item in said if item.get("type") in ("Container", "Pod")]


def _by_container(spec: Json) -> list[tuple[str, dict[str, int], dict[str, int]]]:
    """(who, requests, limits)."""
    out = []
    for container in containers_of(spec):
        who = f"container {text(container.get('name'))!r}"
        out.append((who, _container(container), _amounts(obj(container.get("resources")).get("limits"), who)))
    return out


def _of_pod(spec: Json) -> tuple[dict[str, int], dict[str, int]]:
    """Requests and limits as LimitRanges of type Pod count them: without overhead."""
    running = _of_containers(spec)
    requests = running | {name: n for name, n in _of_whole_pod(spec, running).items() if name in _POD_LEVEL}
    limited: Json = {}
    for group in _CONTAINERS:
        limited[group] = [
            {**one, "resources": {"requests": obj(one.get("resources")).get("limits")}}
            for one in objects(spec.get(group))
        ]
    whole = _amounts(obj(spec.get("resources")).get("limits"), "pod")
    return requests, _of_containers(limited) | {name: n for name, n in whole.items() if name in _POD_LEVEL}


def _out_of(item: Json, requests: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    """Which bounds of a LimitRange's item what is asked for is beyond. What has no request or limit is beyond, too."""

    def short(name: str, amounts: Mapping[str, int]) -> str:
        return written(name, amounts[name]) if name in amounts else "none"

    for name, least in _amounts(item.get("min"), "min").items():
        if requests.get(name, -1) < least or limits.get(name, least) < least:
            said = f"request {short(name, requests)}, limit {short(name, limits)}"
            yield f"is to have {written(name, least)} {name} at least (it has: {said})"
    for name, most in _amounts(item.get("max"), "max").items():
        if name not in limits or max(limits[name], requests.get(name, 0)) > most:
            said = f"limit {short(name, limits)}, request {short(name, requests)}"
            yield f"may have {written(name, most)} {name} at most (it has: {said})"
    for name, ratio in obj(item.get("maxLimitRequestRatio")).items():
        limit, request = limits.get(name, 0), requests.get(name, 0)
        if not limit or not request or limit * 1000 > parse("cpu", ratio) * request:
            said = f"request {short(name, requests)}, limit {short(name, limits)}"
            yield f"may have a limit of {ratio} times its request of {name} at most (it has: {said})"


def over_quota(pods: Sequence[tuple[int, Json]], quotas: Iterable[Json], *, together: bool) -> list[str]:
    """For which ResourceQuotas of its namespace a job could never have all of its pods, though nobody else had any, in
    words. pods: (how many, spec as of `complete`); together: all of them, else one entry at a time. A quota with a
    scope is not looked at."""
    out = []
    pods = [(count, spec) for count, spec in pods if count]
    for quota in quotas:
        spec = obj(quota.get("spec"))
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        who = f"ResourceQuota {text(obj(quota.get('metadata')).get('name'))!r}"
        for name, hard in obj(spec.get("hard")).items():
            read = _quota_name(name)
            try:
                if read is None:
                    continue
                asked = [count * _counted(one, *read) for count, one in pods]
                total, most = sum(asked) if together else max(asked, default=0), parse(read[1], hard)
            except QuantityError:
                continue  # it is told where they are read
            if total > most:
                had, wanted = written(read[1], most), written(read[1], saturate(total))
                out.append(f"{who} allows {had} {name} in the namespace, and its pods ask for {wanted} at once")
            elif read[1] in _POD_LEVEL:
                silent = sorted({text(c.get("name")) for _, one in pods for c in _silent(one, *read)})
                if silent:
                    unsaid = ", ".join(map(repr, silent[:3]))
                    out.append(f"{who} has {name}, so that each container must say it, and these do not: {unsaid}")
    return out


def _quota_name(name: str) -> tuple[str, str] | None:
    """("requests" | "limits" | "", resource) that a name in a ResourceQuota counts of pods; None: nothing, or what is
    not known here."""
    kind, dot, resource = name.partition(".")
    if kind == "limits" and dot:
        return (kind, resource) if resource in _LIMITED else None  # of others Kubernetes takes it, and counts nothing
    if kind == "requests" and dot:
        return None if resource.startswith(OF_DEVICE_CLASS) else (kind, resource)
    if name in ("pods", "count/pods"):
        return "", "pods"
    return ("requests", name) if name in _LIMITED or name.startswith("hugepages-") else None


def _counted(spec: Json, kind: str, resource: str) -> int:
    """What a pod counts for in a ResourceQuota."""
    if not kind:
        return 1
    return (pod_requests(spec) if kind == "requests" else _of_pod(spec)[1]).get(resource, 0)


def _silent(spec: Json, kind: str, resource: str) -> list[Json]:
    """Containers that do not say what a ResourceQuota counts; none where the pod says something as a whole."""
    if any(obj(obj(spec.get("resources")).get(one)) for one in ("requests", "limits")):
        return []

    def says(container: Json) -> bool:
        said = obj(container.get("resources"))
        return resource in obj(said.get("limits")) or (kind == "requests" and resource in obj(said.get("requests")))

    return [one for one in containers_of(spec) if not says(one)]


def quotas_mark(quotas: Iterable[Json]) -> str:
    """Hash of what ResourceQuotas, in their order, allow pods; "" for nothing."""
    specs = [obj(quota.get("spec")) for quota in quotas]
    said = [one for one in specs if any(_quota_name(name) for name in obj(one.get("hard")))]
    return digest(said) if said else ""


def limits_mark(limit_ranges: Iterable[Json]) -> str:
    """Hash of what LimitRanges, in their order, add to containers, and of their bounds; "" for nothing."""
    ranges = list(limit_ranges)
    said: list[object] = [
        entry for one in ranges for entry in limits_of(one) if entry[0] == "Container" and any(entry[1:])
    ]
    for item in (item for one in ranges for item in _limits(one)):
        bounds = [obj(item.get(key)) for key in ("min", "max", "maxLimitRequestRatio")]
        if any(bounds):
            said.append([item.get("type"), bounds])
    return digest(said) if said else ""


def class_mark(runtime_class: Json | None) -> str:
    """Hash of what a RuntimeClass adds to pods; "" for nothing, and a word where there is none."""
    if runtime_class is None:
        return "absent"
    said = obj(obj(runtime_class.get("overhead")).get("podFixed")), obj(runtime_class.get("scheduling"))
    return digest(said) if any(said) else ""


def defaults_mark(limits: str, classes: Iterable[tuple[str, str]], claims: Iterable[tuple[str, str]] = ()) -> str:
    """One hash for what is added to pods of a job; "" for nothing. classes: (name, `class_mark`) of the RuntimeClasses
    that it names; claims: `Devices.marks`."""
    said = sorted(pair for pair in classes if pair[1])
    asked = sorted(claims)
    return digest([limits, said, *([asked] if asked else [])]) if limits or said or asked else ""


# ---------------------------------------------------------------- what is too much


@dataclass(frozen=True, slots=True)
class Limits:
    """What a queued job may say, so that it can be started, pinned, and taken back. All but the first two follow from
    what the API server and the CRDs allow."""

    grace_s: int = 3600
    """terminationGracePeriodSeconds: for so long a gang that is evicted may keep what it had. A setting."""
    child_jobs: int = 4096
    """Of a JobSet: JobSet's controller builds all of them before it makes one, of held JobSets, too. A setting."""
    annotation_bytes: int = 64 << 10
    """Of a job's annotations, and of each pod template's: the API server allows 256 KiB with what a start adds."""
    labels: int = 256
    """Of a pod template: they are kept of each gang, for pods of others may ask for them."""
    affinity_parts: int = 256
    """Required node affinity of a template: terms and their requirements together. Each is read as a pod is pinned."""
    affinity_values: int = 4096
    """Of these requirements together."""
    pod_terms: int = 32
    """Required pod affinity, required pod anti-affinity and topology spread constraints of a template, each: every term
    is asked of all pods that are there, and of each that comes or goes."""
    pod_parts: int = 256
    """Such terms, their requirements, and the values, namespaces and label keys that they name, together."""
    tolerations: int = 256
    node_selector: int = 256
    ports: int = 128
    """Of a template's containers. What a node has of each is a column over all nodes."""
    claims: int = 64
    """PersistentVolumeClaims that a template names, or that are made for a JobSet: each is looked for among volumes."""
    pod_sets: int = 18
    """As many as a Workload may have."""


LIMITS = Limits()

_AS_MADE = 4
"""Of so many times as much a Workload, or a pod, is still read: the API server, RuntimeClasses and JobSet add to what a
template says, and others may make Workloads as well."""
READ = Limits(
    labels=_AS_MADE * LIMITS.labels,
    affinity_parts=_AS_MADE * LIMITS.affinity_parts,
    affinity_values=_AS_MADE * LIMITS.affinity_values,
    pod_terms=_AS_MADE * LIMITS.pod_terms,
    pod_parts=_AS_MADE * LIMITS.pod_parts,
    tolerations=_AS_MADE * LIMITS.tolerations,
    node_selector=_AS_MADE * LIMITS.node_selector,
    ports=_AS_MADE * LIMITS.ports,
    claims=_AS_MADE * LIMITS.claims,
)

SYSTEM_CLASSES = "system-"
"""PriorityClasses that begin so are Kubernetes' own, above all that others may have."""

GANG_CLASS = Names().priority_class
"""Of pods of admitted gangs, in every API group. In a template it would be a place before all others of the queue."""


@dataclass(frozen=True, slots=True)
class Excess:
    """The words for each of the limits; `controller.policies` says the same."""

    grace: str
    annotations: str
    labels: str
    affinity: str
    pod_affinity: str
    spread: str
    tolerations: str
    node_selector: str
    ports: str
    claims: str
    pod_sets: str
    child_jobs: str
    managed_by: str
    priority: str


def excess_words(limits: Limits) -> Excess:
    return Excess(
        grace=(
            f"terminationGracePeriodSeconds of a queued job is at most {limits.grace_s}: for so long it may keep what "
            "others are to have; save checkpoints as it runs"
        ),
        annotations=(
            f"the annotations of a queued job, and those of each pod template, have at most {limits.annotation_bytes} "
            "bytes together: what says where its pods go is added to them; keep data in a ConfigMap"
        ),
        labels=(
            f"each pod template of a queued job has at most {limits.labels} labels, with those that Kubernetes adds: "
            "keep data in annotations"
        ),
        affinity=(
            "the required node affinity of a queued job's template has at most "
            f"{limits.affinity_parts} terms and requirements together, and {limits.affinity_values} values: select a "
            "label that stands for them"
        ),
        pod_affinity=(
            "the required podAffinity and podAntiAffinity of a queued job's template have at most "
            f"{limits.pod_terms} terms each, of {limits.pod_parts} requirements, values, namespaces and label keys "
            "together: give the pods that are meant one label, and select that"
        ),
        spread=(
            f"a queued job's template has at most {limits.pod_terms} topologySpreadConstraints, of {limits.pod_parts} "
            "requirements, values and label keys together"
        ),
        tolerations=f"a queued job's template has at most {limits.tolerations} tolerations",
        node_selector=f"the nodeSelector of a queued job's template has at most {limits.node_selector} labels",
        ports=f"the containers of a queued job's template name at most {limits.ports} ports",
        claims=(
            f"a queued job's template names at most {limits.claims} PersistentVolumeClaims, and as many are made for a "
            "JobSet"
        ),
        pod_sets=f"a queued JobSet has at most {limits.pod_sets} replicatedJobs: put equal ones together with replicas",
        child_jobs=(
            f"a queued JobSet has at most {limits.child_jobs} Jobs, the replicas of its replicatedJobs together: give "
            "each Job more pods (parallelism and completions), or make several JobSets"
        ),
        managed_by=(
            "a queued job, and each Job of a JobSet, is run by the controller of its own kind: leave managedBy out, or "
            "nobody stops its pods"
        ),
        priority=(
            f"priorityClassName {SYSTEM_CLASSES}... is for the cluster's own pods, and {GANG_CLASS} for pods of "
            "admitted gangs: name another, or a WorkloadPriorityClass by its label"
        ),
    )


_READ_WORDS = excess_words(READ)


def excess(kind: JobKind, raw: Json, limits: Limits = LIMITS) -> tuple[str, ...]:
    """Which limits a job is beyond, in words."""
    words = excess_words(limits)
    slots = kind.slots(raw)
    specs = [obj(slot.template.get("spec")) for slot in slots]
    notes = [obj(raw.get("metadata")), *(obj(slot.template.get("metadata")) for slot in slots)]
    found = (
        (words.grace, any(whole(s.get("terminationGracePeriodSeconds"), 0) > limits.grace_s for s in specs)),
        (words.annotations, any(_size(texts(meta.get("annotations"))) > limits.annotation_bytes for meta in notes)),
        (words.labels, any(len(obj(meta.get("labels"))) > limits.labels for meta in notes[1:])),
        *(pair for spec in specs for pair in _placing(spec, limits, words)),
        (words.claims, _claims_made(raw) > limits.claims),
        (words.pod_sets, len(slots) > limits.pod_sets),
        (words.child_jobs, kind is not JOB and sum(slot.replicas for slot in slots) > limits.child_jobs),
        (words.priority, any(_kept_class(text(s.get("priorityClassName"))) for s in specs)),
        (words.managed_by, text(obj(raw.get("spec")).get("managedBy")) not in ("", kind.run_by)),
        (words.managed_by, any(run_by not in (None, JOB.run_by) for run_by in _children_run_by(raw))),
    )
    return tuple(dict.fromkeys(said for said, beyond in found if beyond))


def _placing(spec: Json, limits: Limits, words: Excess) -> tuple[tuple[str, bool], ...]:
    """(limit in words, is it beyond that) of what a pod's spec says about where it may stand."""
    rules = obj(spec.get("affinity"))
    parts, values = _node_affinity_size(rules)
    pods = [objects(obj(rules.get(word)).get(_REQUIRED)) for word in ("podAffinity", "podAntiAffinity")]
    claims = sum("persistentVolumeClaim" in volume for volume in objects(spec.get("volumes")))
    return (
        (words.affinity, parts > limits.affinity_parts or values > limits.affinity_values),
        (words.pod_affinity, any(_too_many(terms, limits) for terms in pods)),
        (words.spread, _too_many(objects(spec.get("topologySpreadConstraints")), limits)),
        (words.tolerations, len(items(spec.get("tolerations"))) > limits.tolerations),
        (words.node_selector, len(obj(spec.get("nodeSelector"))) > limits.node_selector),
        (words.ports, sum(len(items(one.get("ports"))) for one in containers_of(spec)) > limits.ports),
        (words.claims, claims > limits.claims),
    )


def _too_many(terms: Sequence[Json], limits: Limits) -> bool:
    """Of required pod (anti-)affinity, or of topology spread constraints."""
    return len(terms) > limits.pod_terms or sum(map(_pod_parts, terms)) > limits.pod_parts


def _pod_parts(term: Json) -> int:
    named = sum(len(items(term.get(word))) for word in ("namespaces", "matchLabelKeys", "mismatchLabelKeys"))
    return 1 + named + selector_parts(term.get("labelSelector"))


def selector_parts(selector: object) -> int:
    """Labels, requirements and values of a label selector together."""
    said = obj(selector)
    needs = sum(1 + len(items(part.get("values"))) for part in objects(said.get("matchExpressions")))
    return len(obj(said.get("matchLabels"))) + needs


def _claims_made(raw: Json) -> int:
    policies = objects(obj(raw.get("spec")).get("volumeClaimPolicies"))
    return sum(len(items(policy.get("templates"))) for policy in policies)


def _children_run_by(raw: Json) -> list[object]:
    entries = objects(obj(raw.get("spec")).get("replicatedJobs"))
    return [obj(obj(entry.get("template")).get("spec")).get("managedBy") for entry in entries]


def _kept_class(name: str) -> bool:
    return name.startswith(SYSTEM_CLASSES) or name == GANG_CLASS


def _size(notes: Mapping[str, str]) -> int:
    return sum(len(said.encode("utf-8", "surrogatepass")) for pair in notes.items() for said in pair)


def _node_affinity_size(rules: Json) -> tuple[int, int]:
    """(terms and requirements, values of these) of required node affinity."""
    terms = objects(obj(obj(rules.get("nodeAffinity")).get(_REQUIRED)).get("nodeSelectorTerms"))
    needs = [part for term in terms for word in ("matchExpressions", "matchFields") for part in items(term.get(word))]
    return len(terms) + len(needs), sum(len(items(obj(part).get("values"))) for part in needs)


# ---------------------------------------------------------------- where a pod may stand


def toleration(raw: Json) -> Toleration:
    seconds = raw.get("tolerationSeconds")
    return Toleration(
        key=text(raw.get("key")),
        operator=text(raw.get("operator")) or "Equal",
        value=text(raw.get("value")),
        effect=text(raw.get("effect")),
        seconds=seconds if isinstance(seconds, int) and not isinstance(seconds, bool) else None,
    )


_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def requirement(raw: Json) -> Requirement:
    """Raises ValueError for an operator that Kubernetes does not have."""
    operator = text(raw.get("operator"))
    for known in _OPERATORS:
        if operator == known:
            return Requirement(
                key=text(raw.get("key")),
                operator=known,  # type: ignore[arg-type] # mypy does not narrow str by a tuple of literals
                values=tuple(value for value in items(raw.get("values")) if isinstance(value, str)),
            )
    raise ValueError(f"operator {operator!r} is none of {', '.join(_OPERATORS)}")


def node_affinity(pod_spec: Json) -> Terms | None:
    """Required node affinity as the engine has it. Raises ValueError for an unknown operator."""
    required = obj(obj(pod_spec.get("affinity")).get("nodeAffinity")).get(_REQUIRED)
    if not isinstance(required, dict):
        return None
    terms = []
    for term in objects(required.get("nodeSelectorTerms")):
        parts = [requirement(part) for part in objects(term.get("matchExpressions"))]
        for part in objects(term.get("matchFields")):
            if part.get("key") != NODE_NAME:
                raise ValueError(f"matchFields knows only {NODE_NAME}, not {text(part.get('key'))!r}")
            parts.append(requirement(part))
        if parts:  # an empty term matches no node
            terms.append(tuple(parts))
    return tuple(terms)


def both(first: Terms | None, second: Terms | None) -> Terms | None:
    """Nodes that both allow; None allows all."""
    if first is None or second is None or first == second:
        return second if first is None else first
    return tuple({tuple(dict.fromkeys((*one, *other))): None for one in first for other in second})


def label_selector(raw: object, where: str, problems: list[str]) -> LabelSelector | None:
    """None, which matches nothing, for a missing one and for one that cannot be read."""
    if not isinstance(raw, dict):
        return None
    parts = [Requirement(key, "In", (value,)) for key, value in sorted(texts(raw.get("matchLabels")).items())]
    try:
        parts += [requirement(part) for part in objects(raw.get("matchExpressions"))]
    except ValueError as error:
        problems.append(f"{where}: {error}")
        return None
    return LabelSelector(tuple(parts))


def _selects(selector: object, labels: Mapping[str, str]) -> bool:
    """Does a label selector of a pod match these labels?"""
    return matches(label_selector(selector, "labelSelector", []), labels)


def _of_itself(term: Json, labels: Mapping[str, str], namespace: str) -> bool:
    """Does a term of pod (anti-)affinity speak of the pod's own kind, in its own namespace?"""
    if items(term.get("mismatchLabelKeys")):
        return False
    if term.get("namespaceSelector") is not None:
        return False
    namespaces = items(term.get("namespaces"))
    if namespaces and namespaces != [namespace]:
        return False
    return _selects(term.get("labelSelector"), labels)


def _match_keys(term: Json) -> set[str]:
    return {key for key in items(term.get("matchLabelKeys")) if isinstance(key, str)}


def by_child(pod_spec: Json) -> bool:
    """Does required affinity or anti-affinity of a pod speak of the pods of its own Job, if of its own kind at all?"""
    rules = obj(pod_spec.get("affinity"))
    terms = (objects(obj(rules.get(word)).get(_REQUIRED)) for word in ("podAffinity", "podAntiAffinity"))
    return any(_match_keys(term) & _OF_ONE_CHILD for found in terms for term in found)


def _selects_sibling(term: Json, own: Mapping[str, str], sibling: Mapping[str, str], namespace: str) -> bool:
    """Does a term that speaks of a pod's own kind speak of pods of another pod set, too: not where it wants a label to
    be as the pod's own is, which theirs is not."""
    keys = _match_keys(term)
    same = not keys & _OF_ONE_CHILD and all(sibling.get(key) == own[key] for key in keys if key in own)
    return same and _of_itself(term, sibling, namespace)


@lru_cache(maxsize=8192)
def _one(asked: AntiAffinity) -> AntiAffinity:
    """One value for all that are equal: the pods of a Deployment all ask the same."""
    return asked


def anti_affinity(
    spec: Json, namespace: str, labels: Mapping[str, str], exclusive: str = ""
) -> tuple[AntiAffinity, ...]:
    """What a pod with this spec and these labels asks of all others. A selector of namespaces is read as all of them.
    Left out: terms that select the pods of its own job by its name or uid; and those for other child jobs that JobSet's
    webhooks add where it has domains of the label `exclusive` to itself."""
    found = _apart(obj(obj(spec.get("affinity")).get("podAntiAffinity")), namespace, pod=labels)
    return tuple(one for one in found if one.key != exclusive or not _of_child_jobs(one)) if exclusive else found


def _of_child_jobs(asked: AntiAffinity) -> bool:
    needs = asked.selector.requirements
    return bool(needs) and all(need.key == JOBSET_JOB_KEY_LABEL for need in needs)


def _apart(
    rules: Json, namespace: str, *, own: Mapping[str, str] | None = None, pod: Mapping[str, str] | None = None
) -> tuple[AntiAffinity, ...]:
    terms = objects(rules.get(_REQUIRED))
    if _too_many(terms, READ):
        return _from_all(terms)
    found = {_asked(term, namespace, own, pod) for term in terms}
    return tuple(sorted((one for one in found if one is not None), key=repr))


_MOST_KEYS = 16


def _from_all(terms: Iterable[Json]) -> tuple[AntiAffinity, ...]:
    """Terms of anti-affinity that are too many to be read, as if they selected every pod: nobody is put on the pod's
    node, nor into its domain of any label that they name (of more than so many, the first by name)."""
    keys = sorted({text(term.get("topologyKey")) for term in terms})[:_MOST_KEYS]
    return tuple(_one(AntiAffinity(key, LabelSelector())) for key in sorted({HOSTNAME_LABEL, *keys}))


def _near(rules: Json, namespace: str, own: Mapping[str, str]) -> tuple[AntiAffinity, ...]:
    """Terms of affinity, which select together: none of others where one selects the pods of one job alone."""
    found = {_asked(term, namespace, own) for term in objects(rules.get(_REQUIRED))}
    return () if None in found else tuple(sorted((one for one in found if one is not None), key=repr))


def _asked(
    term: Json, namespace: str, own: Mapping[str, str] | None, pod: Mapping[str, str] | None = None
) -> AntiAffinity | None:
    """One term of affinity or anti-affinity; None where it selects pods of one job alone. own: labels of the pods of a
    template, in whose selectors the API server has not put its `matchLabelKeys` yet. pod: those of a pod that is there,
    which may mean another job than its own."""
    key, selector = text(term.get("topologyKey")), label_selector(term.get("labelSelector"), "labelSelector", [])
    if selector is None:
        return None
    needs = list(selector.requirements)
    if own is not None:
        keys = sorted(_match_keys(term))
        needs += [Requirement(k, "In", (own.get(k, ""),)) for k in keys if k in own or k in _OF_ONE_JOB]
    namespaces = {name for name in items(term.get("namespaces")) if isinstance(name, str)} or {namespace}
    everywhere = isinstance(term.get("namespaceSelector"), dict)
    if any(
        need.key in _OF_ONE_JOB
        and need.operator == "In"
        and (pod is None or (pod.get(need.key) in need.values and namespaces == {namespace} and not everywhere))
        for need in needs
    ):
        return None
    return _one(AntiAffinity(key, LabelSelector(tuple(needs)), () if everywhere else tuple(sorted(namespaces))))


def _claims(spec: Json) -> tuple[str, ...]:
    volumes = objects(spec.get("volumes"))
    return tuple(sorted({text(obj(one.get("persistentVolumeClaim")).get("claimName")) for one in volumes} - {""}))


def host_ports(spec: Json) -> tuple[str, ...]:
    """Ports of its node that a pod takes, as "80", or with a protocol that is not TCP "53/UDP". An address to which one
    is bound is not looked at: of one port, two pods with different addresses are not put on one node."""
    ports = set()
    sidecars = [c for c in objects(spec.get("initContainers")) if c.get("restartPolicy") == "Always"]
    for container in [*objects(spec.get("containers")), *sidecars]:
        for port in objects(container.get("ports")):
            number = whole(port.get("hostPort"), 0)
            if not number and spec.get("hostNetwork") is True:
                number = whole(port.get("containerPort"), 0)
            protocol = text(port.get("protocol")) or "TCP"
            if number:
                ports.add(str(number) if protocol == "TCP" else f"{number}/{protocol}")
    return tuple(sorted(ports))


def _spread(
    spec: Json, own: Mapping[str, str], siblings: Sequence[Mapping[str, str]], namespace: str, *, many: bool
) -> tuple[list[str], list[str]]:
    """Topology keys of the constraints with DoNotSchedule: (those that cannot be honoured, those that a node must have
    and no more is asked). One pod that is alone among those that are counted is no skew anywhere."""
    beyond: list[str] = []
    alone: list[str] = []
    for spread in objects(spec.get("topologySpreadConstraints")):
        if spread.get("whenUnsatisfiable") == "ScheduleAnyway":
            continue
        counted = any(_selects(spread.get("labelSelector"), sibling) for sibling in siblings)
        counts_others = many or counted or _asked(spread, namespace, own) is not None
        (beyond if counts_others else alone).append(text(spread.get("topologyKey")))
    return beyond, alone


def shape_of(
    template: Json,
    names: Names,
    *,
    siblings: Sequence[Mapping[str, str]] = (),
    namespace: str = "",
    many: bool = True,
    child_pods: int = 0,
) -> PodShape:
    """What of a template decides where its pods may go. Never raises: what it cannot honour is in `refused`.

    `siblings` are the labels of the job's other pod sets; `many` is whether there is more than one pod of this
    template; `child_pods` are those of one child job whose pods all have an index (0: not known, or not all have one).
    """
    template = _with_what_was_added(template, names)
    spec, own = obj(template.get("spec")), labels_of(template)
    refused: list[str] = []
    uncounted: list[str] = []
    requests: dict[str, int] = {}
    try:
        requests = pod_requests(spec)
    except ValueError as error:  # QuantityError is one
        refused.append(str(error))
        uncounted.append(str(error))
    beyond = tuple(said for said, is_beyond in _placing(spec, READ, _READ_WORDS) if is_beyond)
    if len(own) > READ.labels:
        own, beyond = {}, (_READ_WORDS.labels, *beyond)
    if beyond:
        # More than is read, so that it is admitted nowhere. If it runs already, other pods are still kept away from it.
        unread = "; ".join((*refused, *beyond))
        return PodShape(
            requests=tuple(sorted(requests.items())),
            apart=_apart(obj(obj(spec.get("affinity")).get("podAntiAffinity")), namespace, own=own),
            namespace=namespace,
            labels=_as_made(own, names),
            of_jobset=of_jobset(own),
            refused=unread,
            uncounted=unread,
        )
    terms: Terms | None = ()
    try:
        terms = node_affinity(spec)
    except ValueError as error:
        refused.append(str(error))
    if node := text(spec.get("nodeName")):
        terms = both(terms, ((Requirement(NODE_NAME, "In", (node,)),),))
    rules = obj(spec.get("affinity"))
    near = _to_itself(rules, own, siblings, namespace, many=many, child_pods=child_pods)
    refused.extend(near.refused)
    skewed, alone = _spread(spec, own, siblings, namespace, many=many)
    refused.extend(
        f"topologySpreadConstraints with DoNotSchedule (topologyKey {key}) cannot be honoured: write ScheduleAnyway, "
        f"or ask for a topology with an annotation of {names.group}"
        for key in skewed
    )
    # For a single pod these rules still say that its node has the label.
    for key in dict.fromkeys([*near.labelled, *alone]):
        terms = both(terms, ((Requirement(key, "Exists"),),))
    exclusive = _exclusive(template, namespace, child_pods, refused)
    if exclusive is not None and (near.together or near.apart - {HOSTNAME_LABEL}):
        refused.append("exclusive topology beside a gang's affinity to itself cannot be honoured: drop the affinity")
    devices = _claimed_devices(template, names)
    if devices.uncounted:
        uncounted.append(devices.uncounted)
        refused.append(devices.uncounted)
    for of_class, resource, count in devices.claimed:
        # A request by the class's own name is for the same devices.
        by_name = requests.pop(f"{OF_DEVICE_CLASS}{of_class}", 0)
        requests[resource] = saturate(requests.get(resource, 0) + by_name + count)
        terms = both(terms, ((Requirement(of_class_label(of_class), "Exists"),),))
    return PodShape(
        # A request of nothing stays: it takes no room, but the queue gives it a flavor where it covers the resource.
        requests=tuple(sorted(requests.items())),
        node_selector=tuple(sorted(texts(spec.get("nodeSelector")).items())),
        affinity=terms,
        tolerations=tuple(toleration(item) for item in objects(spec.get("tolerations"))),
        host_ports=host_ports(spec),
        one_per_domain=tuple(sorted(near.apart)),
        apart=_apart(obj(rules.get("podAntiAffinity")), namespace, own=own),
        near=_near(obj(rules.get("podAffinity")), namespace, own),
        namespace=namespace,
        labels=_as_made(own, names),
        same_domain=tuple(sorted(near.together)),
        of_jobset=of_jobset(own),
        exclusive=exclusive,
        claims=_claims(spec),
        refused="; ".join(refused),
        uncounted="; ".join(uncounted),
        claimed=devices.claimed,
        unclear=devices.unclear,
    )


@dataclass(slots=True)
class _ToItself:
    """What the required affinity and anti-affinity of a template's pods to one another asks, as topology keys."""

    apart: set[str] = field(default_factory=set)
    """No two of the pods in one domain."""
    together: set[str] = field(default_factory=set)
    """All of the pods in one domain."""
    labelled: list[str] = field(default_factory=list)
    """The node of a pod has this label, and no more is asked."""
    refused: list[str] = field(default_factory=list)
    """Terms that cannot be honoured, in words."""


def _to_itself(
    rules: Json,
    own: Mapping[str, str],
    siblings: Sequence[Mapping[str, str]],
    namespace: str,
    *,
    many: bool,
    child_pods: int,
) -> _ToItself:
    """Read `spec.affinity` of a template with these labels; the other parameters as of `shape_of`."""
    out = _ToItself()
    for word, into in (("podAntiAffinity", out.apart), ("podAffinity", out.together)):
        for term in objects(obj(rules.get(word)).get(_REQUIRED)):
            key = text(term.get("topologyKey"))
            if not _of_itself(term, own, namespace):
                out.refused.append(
                    f"{word} to other pods (topologyKey {key}) cannot be honoured: drop it, or make it preferred"
                )
            elif any(_selects_sibling(term, own, sibling, namespace) for sibling in siblings):
                out.refused.append(f"{word} across pod sets (topologyKey {key}) cannot be honoured: select one pod set")
            elif child_pods == 1 and _match_keys(term) & _OF_ONE_CHILD:  # it selects each pod alone
                out.labelled += [key] if word == "podAffinity" else []
            elif many or word == "podAntiAffinity":
                into.add(key)
            else:
                out.labelled.append(key)
    return out


@dataclass(frozen=True, slots=True)
class _Devices:
    """What one pod asks for by ResourceClaims."""

    claimed: Claimed = ()
    unclear: str = ""
    """Why that is not known yet."""
    uncounted: str = ""
    """Why it can never be known."""


def _claimed_devices(template: Json, names: Names) -> _Devices:
    claims = bool(items(obj(template.get("spec")).get("resourceClaims")))
    if not claims and not asked_by_class_name(template):
        return _Devices()
    said = _claimed(template, names)
    if said is None and claims:
        return _Devices(uncounted="resourceClaims are not counted: nothing says how many devices they ask for")
    return _Devices(unclear=said) if isinstance(said, str) else _Devices(said or ())


def _exclusive(template: Json, namespace: str, child_pods: int, refused: list[str]) -> Exclusive | None:
    """JobSet's exclusive placement, as a template of one of its pods says it: by its webhooks, which let in the other
    pods of a child job after the first of them (index 0) is bound, to the value of the label that its node has; or by a
    node selector for each child job."""
    meta = obj(template.get("metadata"))
    labels, notes = texts(meta.get("labels")), texts(meta.get("annotations"))
    key, name = notes.get(JOBSET_EXCLUSIVE_TOPOLOGY, ""), labels.get(JOBSET_NAME_LABEL, "")
    if not key or not name:
        return None
    if not child_pods:
        refused.append(
            f"exclusive topology ({key}) cannot be honoured for pods without an index of their own: write "
            "completionMode Indexed, and completions no higher than parallelism"
        )
        return None
    if JOBSET_NODE_SELECTOR not in notes:
        return Exclusive(key, child_pods)
    jobs = f"{namespace}_{name}-{labels.get(JOBSET_REPLICATED_JOB_LABEL, '')}-"
    return Exclusive(JOBSET_NAMESPACED_JOB_LABEL, child_pods, jobs)


def exclusive_key(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The label of which the child job of a pod has its domain to itself by JobSet's webhooks, or ""."""
    if JOBSET_JOB_KEY_LABEL not in labels or JOBSET_NODE_SELECTOR in annotations:
        return ""
    return annotations.get(JOBSET_EXCLUSIVE_TOPOLOGY, "")


_LEVEL, _GROUP_NAME = 63, 256
"""Characters that the kind Workload allows for the name of a level, and of a group of pod sets."""


def topology_request(
    annotations: Mapping[str, str] | None,
    names: Names,
    *,
    indexed: bool = False,
    replicas: int = 0,
    by_child: bool = False,
) -> tuple[Json | None, list[str]]:
    """(podSet.topologyRequest of a Workload or None, problems) from a pod template's annotations.

    `replicas` are child jobs of a JobSet's replicated job (0: no child jobs); `by_child`: where the pods may stand
    depends on which of them is of which.
    """
    said = texts(annotations)
    problems = []
    out: Json = {}
    required, preferred = said.get(names.required_topology_annotation), said.get(names.preferred_topology_annotation)
    loose = KUEUES_YES_OR_NO.get(said.get(names.unconstrained_topology_annotation, ""), False)
    if sum((bool(required), bool(preferred), loose)) > 1:
        problems.append("more than one of required, preferred and unconstrained topology: write one")
    if required:
        out["required"] = required
    elif preferred:
        out["preferred"] = preferred
    elif loose:
        out["unconstrained"] = True
    slice_level, slice_size = said.get(names.slice_required_topology_annotation), said.get(names.slice_size_annotation)
    if slice_level or slice_size:
        size = digits(slice_size or "")
        if slice_level and size is not None and 0 < size < 2**31:
            out["podSetSliceRequiredTopology"], out["podSetSliceSize"] = slice_level, size
        else:
            problems.append("a slice needs both its topology and its size, a number above 0")
    if layers := said.get(names.slice_layers_annotation):
        found, wrong = _layers(layers, names)
        problems.extend(wrong)
        if slice_level or slice_size:
            problems.append("slices are asked for in two ways: write either one pair or the layers")
        elif found:
            out["podsetSliceRequiredTopologyConstraints"] = found
    if group := said.get(names.group_name_annotation):
        out["podSetGroupName"] = group
    problems += [
        f"annotation {key} is longer than {most} characters"
        for key, most in (
            (names.required_topology_annotation, _LEVEL),
            (names.preferred_topology_annotation, _LEVEL),
            (names.slice_required_topology_annotation, _LEVEL),
            (names.group_name_annotation, _GROUP_NAME),
        )
        if len(said.get(key, "")) > most
    ]
    if not (out or (by_child and replicas)):
        return None, problems
    if indexed:
        out["podIndexLabel"] = JOB_COMPLETION_INDEX
    if replicas:
        out["subGroupIndexLabel"], out["subGroupCount"] = JOBSET_JOB_INDEX_LABEL, replicas
    return out, problems


def _layers(said: str, names: Names) -> tuple[list[Json], list[str]]:
    """Slices of several layers as the annotation has them, and what is wrong with it."""
    listed = json_of(said)
    entries = objects(listed)
    good = [
        {"topology": text(entry.get("topology")), "size": whole(entry.get("size"), 0)}
        for entry in entries
        if 0 < len(text(entry.get("topology"))) <= _LEVEL and whole(entry.get("size"), 0) > 0
    ]
    if not entries or len(entries) > 3 or len(good) != len(items(listed)):
        wanted = f'one to three {{"topology": LEVEL, "size": PODS}}, each level of at most {_LEVEL} characters'
        return [], [f"annotation {names.slice_layers_annotation} must be a list of {wanted}"]
    return good, []


def topology_value(raw: object) -> TopologyRequest | None:
    """A Workload's podSet.topologyRequest as the engine has it."""
    if not isinstance(raw, dict):
        return None
    layers = objects(raw.get("podsetSliceRequiredTopologyConstraints"))
    return TopologyRequest(
        required=text(raw.get("required")),
        preferred=text(raw.get("preferred")),
        unconstrained=raw.get("unconstrained") is True,
        slice_required=text(raw.get("podSetSliceRequiredTopology")),
        slice_size=whole(raw.get("podSetSliceSize"), 0),
        slices=tuple((text(layer.get("topology")), whole(layer.get("size"), 0)) for layer in layers),
        group=text(raw.get("podSetGroupName")),
    )
