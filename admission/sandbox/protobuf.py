"""The few bodies that kubectl sends as protobuf (`kubectl create namespace NAME` and its like), as JSON.

kubectl reads manifests as JSON, but objects that it makes up from flags come in Kubernetes' protobuf envelope: four
bytes, then a message with the type and the object. Only the kinds that such commands make, and that hold no pod
template, are known; the others are refused, and the caller is told to send a manifest.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\x00"
Fields = dict[int, tuple[str, Any]]
"""Field number -> (JSON name, form): `text`, `bool`, `int`, `map`, `bytemap`, or the fields of a message."""

_META: Fields = {
    1: ("name", "text"),
    2: ("generateName", "text"),
    3: ("namespace", "text"),
    11: ("labels", "map"),
    12: ("annotations", "map"),
}
_OPTIONS: Fields = {1: ("gracePeriodSeconds", "int"), 4: ("propagationPolicy", "text")}
_ATTRIBUTES: Fields = {
    number: (name, "text")
    for number, name in enumerate(("namespace", "verb", "group", "version", "resource", "subresource", "name"), 1)
}
_KINDS: dict[str, Fields] = {
    "Namespace": {1: ("metadata", _META)},
    "ServiceAccount": {1: ("metadata", _META)},
    "ConfigMap": {1: ("metadata", _META), 2: ("data", "map"), 3: ("binaryData", "bytemap"), 4: ("immutable", "bool")},
    "Secret": {1: ("metadata", _META), 2: ("data", "bytemap"), 3: ("type", "text"), 4: ("stringData", "map")},
    "PriorityClass": {
        1: ("metadata", _META),
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "text"),
        5: ("preemptionPolicy", "text"),
    },
    "SelfSubjectAccessReview": {2: ("spec", {1: ("resourceAttributes", _ATTRIBUTES)})},
    "Eviction": {1: ("metadata", _META), 2: ("deleteOptions", _OPTIONS)},
}


def decode(raw: bytes) -> dict[str, Any]:
    """The object in an envelope. ValueError for what is none, or of a kind that is not known."""
    if not raw.startswith(MAGIC):
        raise ValueError("no protobuf of Kubernetes")
    envelope = dict(_parts(raw[4:]))
    kind_of = dict(_parts(_bytes(envelope.get(1, b""))))
    kind = _bytes(kind_of.get(2, b"")).decode()
    fields = _KINDS.get(kind)
    if fields is None:
        raise ValueError(f"the sandbox reads no {kind or 'object'} as protobuf: send it as a manifest (-f FILE)")
    made = _message(_bytes(envelope.get(2, b"")), fields)
    return {"apiVersion": _bytes(kind_of.get(1, b"")).decode(), "kind": kind, **made}


def _message(raw: bytes, fields: Fields) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for number, value in _parts(raw):
        if number not in fields:
            continue
        name, form = fields[number]
        if isinstance(form, dict):
            out[name] = _message(_bytes(value), form)
        elif form in ("map", "bytemap"):
            entry = dict(_parts(_bytes(value)))
            key, content = _bytes(entry.get(1, b"")).decode(), _bytes(entry.get(2, b""))
            shown = content.decode() if form == "map" else base64.b64encode(content).decode()
            out.setdefault(name, {})[key] = shown
        elif form == "text":
            text = _bytes(value).decode()
            if text:
                out[name] = text
        elif form == "bool":
            out[name] = bool(value)
        elif isinstance(value, int):
            out[name] = value - (1 << 64) if value >> 63 else value
    return out


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message or a text was expected")
    return value


def _parts(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: varints as int, what has a length as bytes."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(raw, at)
            if at + size > len(raw):
                raise ValueError("cut off")
            yield number, raw[at : at + size]
            at += size
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 64:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("cut off")
