"""From a model to the structural schema that the API server wants.

pydantic speaks JSON Schema 2020-12; a CRD holds a structural schema in the dialect of OpenAPI 3.0. References are
written out, `null` alternatives dropped (the API server prunes nulls itself), exclusive bounds and `const` spelled the
old way, and what would contradict pruning is removed. What has no such form (unions, tuples, sets) is an error here,
not at install time.
"""

from __future__ import annotations

from typing import Any

from admission.api.schema import GROUP, Resource
from admission.names import Names

Schema = dict[str, Any]

_KNOWN = {
    "type", "format", "description", "default", "enum", "nullable", "properties", "required", "items", "anyOf",
    "pattern", "additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "x-kubernetes-validations",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type",
    "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields",
}  # fmt: skip
_DROPPED = ("title", "examples", "discriminator", "$defs", "additionalProperties")


class NotStructuralError(ValueError):
    """A model uses what no structural schema can say; the message names the place."""


def structural(schema: Schema, definitions: dict[str, Schema], path: str = "") -> Schema:
    """`schema` as the API server wants it. Raises NotStructuralError."""
    out = dict(schema)
    if "$ref" in out:
        target = definitions[out.pop("$ref").removeprefix("#/$defs/")]
        out = {**target, **out}
    if isinstance(choices := out.get("anyOf"), list) and {"type": "null"} in choices:
        rest = [choice for choice in choices if choice != {"type": "null"}]
        del out["anyOf"]
        if len(rest) != 1:
            raise NotStructuralError(f"{path}: a union of {len(rest)} types")
        if out.get("default", 0) is None:
            del out["default"]
        return structural({**rest[0], **out}, definitions, path)
    if "anyOf" in out and not out.get("x-kubernetes-int-or-string"):
        raise NotStructuralError(f"{path}: anyOf")
    if "const" in out:
        out["enum"] = [out.pop("const")]
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if name in out:
            out[bound], out[name] = out[name], True
    extra = out.get("additionalProperties")
    for name in _DROPPED:
        out.pop(name, None)
    if unknown := out.keys() - _KNOWN:
        raise NotStructuralError(f"{path}: {', '.join(sorted(unknown))}")
    if isinstance(extra, dict) and extra:
        out["additionalProperties"] = structural(extra, definitions, f"{path}.*")
    elif "properties" not in out and out.get("type") == "object":
        out["x-kubernetes-preserve-unknown-fields"] = True
    if isinstance(out.get("default"), dict):
        out["default"] = {}  # the defaults inside apply by themselves
    if not out.get("properties", True):
        # Nor does the API server store an empty one: it would be a change to who applies the same again.
        del out["properties"]
    if "properties" in out:
        out["properties"] = {
            name: structural(value, definitions, f"{path}.{name}") for name, value in sorted(out["properties"].items())
        }
    if "items" in out:
        out["items"] = structural(out["items"], definitions, f"{path}[]")
    if "required" in out:
        out["required"] = sorted(out["required"])
    return out


def _in_group(value: Any, names: Names) -> Any:
    if isinstance(value, str):
        return value.replace(GROUP, names.group)
    if isinstance(value, list):
        return [_in_group(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _in_group(item, names) for key, item in value.items()}
    return value


def schema_of(model: type[Resource], names: Names) -> Schema:
    """The structural schema of a kind: what stands under openAPIV3Schema."""
    raw = model.model_json_schema(by_alias=True)
    schema = structural(raw, raw.get("$defs", {}), model.__name__)
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    result: Schema = _in_group(schema, names)
    return result
