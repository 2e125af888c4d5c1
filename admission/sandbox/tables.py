"""What `kubectl get` shows: the server renders rows, the client only prints them.

Built-in kinds have the columns of the real server; a custom resource has those of its definition (JSONPath), else name and
age.
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from admission.quantity import QuantityError, parse_plain
from admission.sandbox.shapes import Object, walk_paths
from admission.sandbox.store import Kind, moment

Column = tuple[str, str, int]
"""Name, type, priority (0 is shown always, more with `-o wide`)."""
Cells = Callable[[Object, int], list[Any]]


def age(then: str | None, now: int) -> str:
    """How long ago, as kubectl writes it: 45s, 2m10s, 10m, 3h5m, 2d, 400d."""
    if not then:
        return "<unknown>"
    seconds = (now - moment(then)) // 1000
    if seconds < -1:
        return "<invalid>"
    return duration(max(seconds, 0))


def duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        rest = seconds % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        rest = hours % 24
        return f"{days}d{rest}h" if rest else f"{days}d"
    return f"{days}d"


def _meta(obj: Object) -> Object:
    found: Object = obj["metadata"]
    return found


def _pod(pod: Object, now: int) -> list[Any]:
    spec, status = pod["spec"], pod.get("status", {})
    phase = status.get("reason") or status.get("phase", "Unknown")
    if any(c["type"] == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions", [])):
        phase = "SchedulingGated"
    statuses = status.get("containerStatuses", [])
    ready = sum(1 for c in statuses if c.get("ready"))
    for container in statuses:
        ended = container.get("state", {}).get("terminated")
        if ended:
            phase = ended.get("reason") or phase
    if status.get("phase") in ("Succeeded", "Failed") and not statuses:
        phase = "Completed" if status["phase"] == "Succeeded" else status.get("reason", "Error")
    if _meta(pod).get("deletionTimestamp") and status.get("phase") not in ("Succeeded", "Failed"):
        phase = "Terminating"
    gates = spec.get("readinessGates", [])
    restarts = sum(c.get("restartCount", 0) for c in statuses)
    return [
        _meta(pod)["name"],
        f"{ready}/{len(spec.get('containers', []))}",
        phase,
        str(restarts),
        age(_meta(pod)["creationTimestamp"], now),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>" if not gates else f"0/{len(gates)}",
    ]


def _job(job: Object, now: int) -> list[Any]:
    spec, status = job["spec"], job.get("status", {})
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    succeeded = status.get("succeeded", 0)
    if spec.get("completions") is not None:
        completions = f"{succeeded}/{spec['completions']}"
    else:
        parallelism = spec.get("parallelism", 1)
        completions = f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"
    took = ""
    if status.get("startTime"):
        end = moment(status["completionTime"]) if status.get("completionTime") else now
        took = duration(max((end - moment(status["startTime"])) // 1000, 0))
    state = "Running"
    for name in ("Complete", "Failed"):
        if conditions.get(name) == "True":
            state = name
            break
    else:
        if _meta(job).get("deletionTimestamp"):
            state = "Terminating"
        elif conditions.get("Suspended") == "True":
            state = "Suspended"
        elif conditions.get("FailureTarget") == "True":
            state = "FailureTarget"
        elif conditions.get("SuccessCriteriaMet") == "True":
            state = "SuccessCriteriaMet"
    containers = spec["template"]["spec"].get("containers", [])
    selector = ",".join(f"{k}={v}" for k, v in sorted((spec.get("selector") or {}).get("matchLabels", {}).items()))
    return [
        _meta(job)["name"],
        state,
        completions,
        took,
        age(_meta(job)["creationTimestamp"], now),
        ",".join(c["name"] for c in containers),
        ",".join(c.get("image", "") for c in containers),
        selector,
    ]


def _node(node: Object, now: int) -> list[Any]:
    status, labels = node.get("status", {}), _meta(node).get("labels", {})
    ready = {c["type"]: c["status"] for c in status.get("conditions", [])}.get("Ready")
    states = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    if node.get("spec", {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = ",".join(sorted(k[len(prefix) :] for k in labels if k.startswith(prefix))) or "<none>"
    info = status.get("nodeInfo", {})
    addresses = {a["type"]: a["address"] for a in status.get("addresses", [])}
    return [
        _meta(node)["name"],
        ",".join(states),
        roles,
        age(_meta(node)["creationTimestamp"], now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _event(event: Object, now: int) -> list[Any]:
    about = event.get("involvedObject", {})
    last = event.get("series", {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    first = event.get("firstTimestamp") or event.get("eventTime") or _meta(event)["creationTimestamp"]
    count = event.get("series", {}).get("count") or event.get("count") or 1
    shown = age(last or first, now)
    if count > 1:
        shown = f"{shown} (x{count} over {age(first, now)})"
    source = event.get("source", {}).get("component") or event.get("reportingComponent", "")
    return [
        shown,
        event.get("type", ""),
        event.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        source,
        (event.get("message") or "").strip(),
        age(first, now),
        str(count),
        _meta(event)["name"],
    ]


def _named(*more: tuple[Column, Callable[[Object, int], Any]]) -> tuple[tuple[Column, ...], Cells]:
    """Name, the columns given, age."""
    columns = (("Name", "string", 0), *(c for c, _ in more), ("Age", "string", 0))

    def cells(obj: Object, now: int) -> list[Any]:
        return [_meta(obj)["name"], *(f(obj, now) for _, f in more), age(_meta(obj).get("creationTimestamp"), now)]

    return columns, cells


def _columns(text: str) -> tuple[Column, ...]:
    """`Name Ready(integer) Node*`: a star marks what only `-o wide` shows; `_` is a space."""
    out = []
    for word in text.split():
        name, _, kind = word.rstrip("*").rstrip(")").partition("(")
        out.append((name.replace("_", " "), kind or "string", 1 if word.endswith("*") else 0))
    return tuple(out)


_PLAIN = _named()
_BUILTIN: dict[tuple[str, str], tuple[tuple[Column, ...], Cells]] = {
    ("", "pods"): (_columns("Name Ready Status Restarts Age IP* Node* Nominated_Node* Readiness_Gates*"), _pod),
    ("batch", "jobs"): (_columns("Name Status Completions Duration Age Containers* Images* Selector*"), _job),
    ("", "nodes"): (
        _columns(
            "Name Status Roles Age Version Internal-IP* External-IP* OS-Image* Kernel-Version* Container-Runtime*"
        ),
        _node,
    ),
    ("", "events"): (
        _columns("Last_Seen Type Reason Object Subobject* Source* Message First_Seen* Count* Name*"),
        _event,
    ),
    ("", "namespaces"): _named((("Status", "string", 0), lambda o, _: o.get("status", {}).get("phase", ""))),
    ("", "configmaps"): _named(
        (("Data", "string", 0), lambda o, _: str(len(o.get("data", {})) + len(o.get("binaryData", {}))))
    ),
    ("", "secrets"): _named(
        (("Type", "string", 0), lambda o, _: o.get("type", "")),
        (("Data", "string", 0), lambda o, _: str(len(o.get("data", {})))),
    ),
    ("", "serviceaccounts"): _named((("Secrets", "string", 0), lambda o, _: str(len(o.get("secrets", []))))),
    ("scheduling.k8s.io", "priorityclasses"): _named(
        (("Value", "integer", 0), lambda o, _: o.get("value", 0)),
        (("Global-Default", "boolean", 0), lambda o, _: bool(o.get("globalDefault"))),
        (("PreemptionPolicy", "string", 0), lambda o, _: o.get("preemptionPolicy", "")),
    ),
    ("node.k8s.io", "runtimeclasses"): _named((("Handler", "string", 0), lambda o, _: o.get("handler", ""))),
    ("coordination.k8s.io", "leases"): _named(
        (("Holder", "string", 0), lambda o, _: o.get("spec", {}).get("holderIdentity", ""))
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (
        (("Name", "string", 0), ("Created At", "date", 0)),
        lambda o, _: [_meta(o)["name"], _meta(o)["creationTimestamp"]],
    ),
    **{
        ("admissionregistration.k8s.io", plural): _named(
            (("Webhooks", "integer", 0), lambda o, _: len(o.get("webhooks", [])))
        )
        for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    },
}


def _custom(kind: Kind) -> tuple[tuple[Column, ...], Cells]:
    wanted = [(c["name"], c.get("type", "string"), int(c.get("priority", 0)), c["jsonPath"]) for c in kind.columns]
    if not wanted:
        wanted = [("Age", "date", 0, ".metadata.creationTimestamp")]
    columns = (("Name", "string", 0), *((name, form, priority) for name, form, priority, _ in wanted))

    def cells(obj: Object, now: int) -> list[Any]:
        return [_meta(obj)["name"], *(_cell(obj, form, path, now) for _, form, _, path in wanted)]

    return columns, cells


def _cell(obj: Object, form: str, path: str, now: int) -> Any:
    found = list(walk_paths(obj, path))
    if not found or found[0] is None:
        return None
    value = found[0]
    if form == "date":
        try:
            return age(str(value), now)
        except ValueError:
            return "<invalid>"
    if form == "integer":
        try:
            return int(parse_plain(value))
        except (QuantityError, TypeError):
            return None
    if form in ("number", "boolean") and isinstance(value, int | float):
        return value
    if len(found) > 1:
        return " ".join(str(x) for x in found)
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


_cache: dict[int, tuple[Kind, tuple[tuple[Column, ...], Cells]]] = {}


def _of(kind: Kind) -> tuple[tuple[Column, ...], Cells]:
    cached = _cache.get(id(kind))
    if cached is None or cached[0] is not kind:
        made = _BUILTIN.get(kind.id)
        if kind.shape.custom:
            made = _custom(kind)
        cached = _cache[id(kind)] = (kind, made or _PLAIN)
    return cached[1]


def table(
    kind: Kind, objects: list[Object], now: int, *, include: str = "Metadata", meta: Mapping[str, Any] | None = None
) -> Object:
    """A meta.k8s.io/v1 Table. `include` is Metadata, Object or None: what comes with each row."""
    columns, cells = _of(kind)
    rows = []
    for obj in objects:
        row: Object = {"cells": cells(obj, now)}
        if include == "Object":
            row["object"] = obj
        elif include == "Metadata":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            }
        rows.append(row)
    definitions = [
        {"name": n, "type": t, "format": "name" if n == "Name" else "", "description": "", "priority": p}
        for n, t, p in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(meta or {}),
        "columnDefinitions": definitions,
        "rows": rows,
    }
