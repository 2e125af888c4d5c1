"""The shape of objects: one OpenAPI form for built-in kinds and custom resources, and what an API server does with it.

`schemas.json` holds the shapes of the built-in kinds and of JobSet, taken from their published OpenAPI; a
CustomResourceDefinition brings its own. `conform` does in one walk what decoding does in the real server: unknown fields
are dropped (and named, for `fieldValidation`), nulls go, defaults come, quantities take their canonical form, types are
checked. Where built-in kinds and custom resources differ, the real server is followed: a wrong type in a built-in kind is
a decoding error (400), in a custom resource an invalid value (422).

Rules in CEL are not evaluated here: who installs a kind passes a validator for them (`store.Store(validators=...)`).
"""  # noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from admission.quantity import QuantityError, parse_plain

Object = dict[str, Any]
Schema = Mapping[str, Any]

ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_SUFFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMALS = (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3), ("", 0), ("m", -3), ("u", -6), ("n", -9))


@cache
def builtin() -> dict[str, Any]:
    """The shapes that come with the sandbox, by short name (`core.v1.Pod`)."""
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "schemas.json").read_text())
    return loaded


def resolve(schema: Schema) -> Schema:
    """The schema itself, where it is only named."""
    while "$ref" in schema:
        schema = builtin()[schema["$ref"]]
    return schema


def child(schema: Schema, key: str) -> Schema | None:
    """The schema of a field of an object or of a value of a map; None where the field is unknown."""
    schema = resolve(schema)
    properties = schema.get("properties", {})
    if key in properties:
        found: Schema = properties[key]
        return found
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        return more
    if more is True or schema.get("x-kubernetes-preserve-unknown-fields") or not schema:
        return ANY
    if schema.get("type") == "object" and not properties and "additionalProperties" not in schema:
        return ANY
    return None


def item(schema: Schema | None) -> Schema:
    if schema is None:
        return ANY
    found: Schema = resolve(schema).get("items", ANY)
    return found


def list_keys(schema: Schema | None) -> tuple[str, ...]:
    """The fields that tell the items of a list apart; empty for a list that is replaced whole or is a set."""
    if schema is None:
        return ()
    schema = resolve(schema)
    if schema.get("x-kubernetes-list-type") == "map":
        return tuple(schema.get("x-kubernetes-list-map-keys", ()))
    return ()


def is_set(schema: Schema | None) -> bool:
    return schema is not None and resolve(schema).get("x-kubernetes-list-type") == "set"


def is_atomic(schema: Schema | None) -> bool:
    """Whether a map or object has one owner as a whole."""
    if schema is None:
        return False
    if schema.get("x-kubernetes-map-type") == "atomic":
        return True
    return resolve(schema).get("x-kubernetes-map-type") == "atomic"


def key_of(entry: Any, keys: tuple[str, ...], schema: Schema) -> tuple[Any, ...] | None:
    """What tells a list item apart; None where a key is missing and has no default."""
    if not isinstance(entry, Mapping):
        return None
    out = []
    for name in keys:
        value = entry.get(name)
        if value is None:
            value = (child(schema, name) or {}).get("default")
            if value is None and name == "protocol":
                value = "TCP"
            if value is None and len(keys) == 1:
                return None
        out.append(value)
    return tuple(out)


@lru_cache(maxsize=8192)
def canonical_quantity(text: str) -> str:
    """A quantity as the API server would write it back. Raises QuantityError."""
    value = parse_plain(text)
    if text[-1:].isdigit() and ("e" in text or "E" in text):
        return text
    suffix = text[-2:]
    if suffix in _SUFFIXES:
        amount = value
        if amount == amount.to_integral_value():
            whole = int(amount)
            for name, size in reversed(_SUFFIXES.items()):
                if whole and whole % size == 0:
                    return f"{whole // size}{name}"
            return str(whole)
    if value == 0:
        return "0"
    for name, power in _DECIMALS:
        scaled = value.scaleb(-power)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{name}"
    nano = value.scaleb(9)
    rounded = int(nano) + (1 if nano > int(nano) else 0)
    return f"{rounded}n"


@dataclass
class Report:
    """What a walk found: `unknown` and `types` are paths with their story; `invalid` are (field, reason, message)."""

    partial: bool = False
    """The document is only part of an object (an applied one): nothing is required of it, nothing defaulted."""
    unknown: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    invalid: list[tuple[str, str, str]] = field(default_factory=list)
    untyped: list[str] = field(default_factory=list)
    """Of a partial document of a custom kind: what cannot be merged with others, as the real server says it."""


@dataclass(frozen=True)
class Shape:
    """The schema of one kind; `custom` says that it comes from a CustomResourceDefinition."""

    schema: Schema
    custom: bool = False

    def conform(self, obj: Object, report: Report) -> Object:
        """A fresh copy of `obj` in this shape; what is wrong goes into `report`."""
        schema = resolve(self.schema)
        out: Object = {}
        for key, value in obj.items():
            if key in ("apiVersion", "kind"):
                out[key] = value
            elif key == "metadata":
                out[key] = _Walk(report, False, True).value(value, META, "metadata")
        walk = _Walk(report, self.custom, False)
        rest = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind", "metadata")}
        properties = {
            k: v for k, v in schema.get("properties", {}).items() if k not in ("apiVersion", "kind", "metadata")
        }
        top = {**schema, "properties": properties}
        top["required"] = [r for r in schema.get("required", ()) if r in properties]
        out.update(walk.value(rest, top, ""))
        return out


META: Schema = {"$ref": "apis.meta.v1.ObjectMeta"}


class _Walk:
    def __init__(self, report: Report, custom: bool, meta: bool) -> None:
        self.report, self.custom, self.meta = report, custom, meta

    def wrong(self, path: str, value: Any, wanted: str) -> None:
        merged = _MERGED.get(wanted)
        # Merging takes nothing for any value, and any number for a number; the schema refuses these.
        number = merged is not None and isinstance(value, float) and wanted in ("integer", "number")
        if self.custom and self.report.partial and merged is not None and value is not None and not number:
            self.report.untyped.append(f".{path}: expected {merged}, got {value!r}")
        elif self.custom:
            kind = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
            got = kind.get(type(value), "null")
            text = f'{path}: Invalid value: "{got}": {path} in body must be of type {wanted}: "{got}"'
            self.report.invalid.append((path, "FieldValueTypeInvalid", text))
        else:
            self.report.types.append(f"{path}: cannot unmarshal {_json_name(value)} into {wanted}")

    def value(self, value: Any, schema: Schema, path: str) -> Any:
        schema = resolve(schema)
        if schema.get("x-kubernetes-int-or-string"):
            if isinstance(value, bool) or not isinstance(value, int | str):
                self.wrong(path, value, "integer,string")
            elif self.custom:
                self.limits(value, schema, path)
            return value
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            return self.object(value, schema, path)
        if kind == "array":
            if not isinstance(value, list):
                self.wrong(path, value, "array")
                return value
            if self.custom:
                for bound, bad in (
                    ("maxItems", len(value) > schema.get("maxItems", 1 << 60)),
                    ("minItems", len(value) < schema.get("minItems", 0)),
                ):
                    if bad:
                        self.refuse(
                            path,
                            len(value),
                            f"{path} in body should have at {'most' if bound[1] == 'a' else 'least'} {schema[bound]} items",  # noqa: E501
                        )
                self.distinct(value, schema, path)
            return [self.value(x, schema.get("items", ANY), f"{path}[{i}]") for i, x in enumerate(value)]
        if kind == "string":
            return self.string(value, schema, path)
        if kind == "integer":
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                self.wrong(path, value, "integer")
            elif schema.get("format") == "int32" and not -(2**31) <= value < 2**31:
                self.wrong(path, value, "int32")
            elif self.custom:
                self.limits(value, schema, path)
        elif kind == "number":
            if isinstance(value, bool) or not isinstance(value, int | float):
                self.wrong(path, value, "number")
            elif self.custom:
                self.limits(value, schema, path)
        elif kind == "boolean" and not isinstance(value, bool):
            self.wrong(path, value, "boolean")
        return _copy(value)

    def object(self, value: Any, schema: Schema, path: str) -> Any:
        if not isinstance(value, dict):
            self.wrong(path, value, "object")
            return value
        out: Object = {}
        prefix = f"{path}." if path else ""
        keep = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        if self.custom:
            count = len(value)
            if count > schema.get("maxProperties", 1 << 60):
                self.refuse(path, count, f"{path} in body should have at most {schema['maxProperties']} properties")
        for key, entry in value.items():
            sub = child(schema, key)
            if sub is None:
                if keep:
                    out[key] = _copy(entry)
                else:
                    self.report.unknown.append(f"{prefix}{key}")
                continue
            if entry is None:
                # A null is "not given" for built-in kinds and for defaulted fields of custom ones.
                if sub is ANY or (self.custom and sub.get("nullable")):
                    out[key] = None
                elif self.custom and "default" not in sub:
                    self.wrong(prefix + key, None, str(sub.get("type", "object")))
                continue
            made = self.value(entry, sub, prefix + key)
            if not self.custom and made in ({}, []) and _is_bag(resolve(sub)):
                continue
            out[key] = made
        if self.report.partial:
            return out
        if self.custom:
            for key, sub in schema.get("properties", {}).items():
                if key not in out and "default" in sub:
                    out[key] = self.value(_copy(sub["default"]), sub, prefix + key)
        for key in schema.get("required", ()):
            if key not in out and not self.meta:
                self.report.invalid.append((prefix + key, "FieldValueRequired", f"{prefix}{key}: Required value"))
        return out

    def string(self, value: Any, schema: Schema, path: str) -> Any:
        if schema.get("format") == "quantity":
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                self.wrong(path, value, "quantity")
                return value
            try:
                return canonical_quantity(str(value))
            except QuantityError:
                message = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                self.report.types.append(message)
                return value
        if not isinstance(value, str):
            self.wrong(path, value, "string")
        elif schema.get("format") == "date-time" and not _TIME.match(value):
            self.wrong(path, value, "date-time")
        elif self.custom:
            self.limits(value, schema, path)
        return value

    def refuse(self, path: str, value: Any, message: str) -> None:
        shown = json.dumps(value)
        self.report.invalid.append((path, "FieldValueInvalid", f"{path}: Invalid value: {shown}: {message}"))

    def limits(self, value: Any, schema: Schema, path: str) -> None:
        options = schema.get("enum")
        if options is not None and value not in options:
            shown = ", ".join(json.dumps(x) for x in options)
            text = f"{path}: Unsupported value: {json.dumps(value)}: supported values: {shown}"
            self.report.invalid.append((path, "FieldValueNotSupported", text))
        if isinstance(value, str):
            if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
                self.refuse(path, value, f"{path} in body should match '{schema['pattern']}'")
            if len(value) > schema.get("maxLength", 1 << 60):
                text = f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
                self.report.invalid.append((path, "FieldValueTooLong", text))
            if len(value) < schema.get("minLength", 0):
                self.refuse(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
            return
        if value < schema.get("minimum", value):
            self.refuse(path, value, f"{path} in body should be greater than or equal to {schema['minimum']}")
        if value > schema.get("maximum", value):
            self.refuse(path, value, f"{path} in body should be less than or equal to {schema['maximum']}")

    def distinct(self, value: list[Any], schema: Schema, path: str) -> None:
        keys = list_keys(schema)
        seen: list[Any] = []
        for index, entry in enumerate(value):
            identity = key_of(entry, keys, item(schema)) if keys else entry if is_set(schema) else None
            if identity is None:
                continue
            if identity in seen:
                shown = json.dumps(dict(zip(keys, identity, strict=True)) if keys else entry)
                where = f"{path}[{index}]"
                if self.report.partial:
                    named = zip(keys, identity, strict=True) if keys else (("", entry),)
                    key = ",".join(f"{name}={json.dumps(value)}" for name, value in named)
                    self.report.untyped.append(f".{path}: duplicate entries for key [{key}]")
                else:
                    self.report.invalid.append((where, "FieldValueDuplicate", f"{where}: Duplicate value: {shown}"))
            seen.append(identity)


_MERGED = {"array": "list", "object": "map", "string": "string", "boolean": "boolean"}
_MERGED |= dict.fromkeys(("integer", "number"), "numeric (int or float)")
"""What the merge of applied objects calls a type."""
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$")


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _is_bag(schema: Schema) -> bool:
    """A list or a map, which Go omits when empty; a struct it keeps."""
    return schema.get("type") == "array" or "additionalProperties" in schema


def _json_name(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    names = {str: "string", int: "number", float: "number", Decimal: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copy(v) for v in value]
    return value


copy = _copy
"""A deep copy of JSON."""


def walk_paths(obj: Any, path: str) -> Iterator[Any]:
    """The values at a dotted path with optional `[*]`, `[?(@.k=="v")]`, `['k']` and escaped dots: simple JSONPath."""
    yield from _walk_tokens(obj, _tokens(path))


_TOKEN = re.compile(
    r"""\.?(?:(?P<key>(?:\\\.|[^.\[\]\\])+)
        |\[\?\(@\.(?P<field>[\w.\-/]+)\s*==\s*["'](?P<want>[^"']*)["']\)\]
        |\[['"](?P<quoted>[^'"]+)['"]\]
        |\[(?P<index>-?\d+|\*)\])""",
    re.VERBOSE,
)


@cache
def _tokens(path: str) -> tuple[tuple[str, str], ...]:
    out = []
    text = path.strip().strip("{}").removeprefix("$")
    for match in _TOKEN.finditer(text):
        if match["key"] is not None:
            out.append(("key", match["key"].replace("\\.", ".")))
        elif match["quoted"] is not None:
            out.append(("key", match["quoted"]))
        elif match["field"] is not None:
            out.append(("filter", f"{match['field']}={match['want']}"))
        else:
            out.append(("index", match["index"]))
    return tuple(out)


def _walk_tokens(obj: Any, tokens: tuple[tuple[str, str], ...]) -> Iterator[Any]:
    if not tokens:
        yield obj
        return
    (form, text), rest = tokens[0], tokens[1:]
    if form == "key":
        if isinstance(obj, dict) and text in obj:
            yield from _walk_tokens(obj[text], rest)
        elif isinstance(obj, dict) and text == "*":
            for value in obj.values():
                yield from _walk_tokens(value, rest)
    elif isinstance(obj, list):
        if form == "index" and text != "*":
            if -len(obj) <= int(text) < len(obj):
                yield from _walk_tokens(obj[int(text)], rest)
            return
        name, _, want = text.partition("=")
        for value in obj:
            if form == "index" or (isinstance(value, dict) and str(value.get(name)) == want):
                yield from _walk_tokens(value, rest)
