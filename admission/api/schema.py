"""What the kinds are made of: field types and rules that pydantic and the API server understand alike.

A `Model` is a pydantic model in the JSON shape of a custom resource. Everything it demands is said once and read twice:
pydantic refuses what breaks it (in the sandbox, in the webhook, in tests), and `crd.py` writes the same demand into the
OpenAPI schema of the CRD, so that the API server refuses it at `kubectl apply`. What a schema cannot say is a `Rule`: a
CEL expression, its twin in Python, and one message that says what to write instead. `tests/api` holds rows that must be
refused, and `e2e` asks a real API server about the same rows.

Every string, list and map that a rule reaches has a bound, because the API server multiplies bounds into the cost of a
rule and refuses a CRD that could be too dear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from admission.names import Names
from admission.quantity import QuantityError, parse_plain

GROUP = "$GROUP"
"""Stands for the API group in the CEL and the enums of a model; `crd.py` puts the real one in its place."""


@dataclass(frozen=True)
class Rule:
    """A demand on one object that a schema cannot express.

    `cel` is what the API server evaluates with the object as `self` and, for an update rule, what was there as
    `oldSelf`. Of its twins at most one is given: `holds(obj)` for what must always be so, `keeps(new, old)` for what an
    update must not change. `message` is shown by both; it says what to write instead.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    keeps: Callable[[Any, Any], bool] | None = None


class Model(BaseModel):
    """A JSON object of the API. Field names are snake_case here and camelCase there.

    Unknown fields are dropped, as the API server prunes them; types are not coerced, as it coerces none.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="ignore",
        frozen=True,
        protected_namespaces=(),
        strict=True,
        validate_by_alias=True,
        validate_by_name=True,
    )
    rules: ClassVar[Sequence[Rule]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Model:
        broken = [rule.message for rule in self.rules if rule.holds is not None and not rule.holds(self)]
        if broken:
            raise PydanticCustomError("rule", "{message}", {"message": "; ".join(broken)})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        if cls.rules:
            schema["x-kubernetes-validations"] = [{"rule": rule.cel, "message": rule.message} for rule in cls.rules]
        return schema


class OpenModel(Model):
    """An object that keeps what it does not know: later versions may write more into it."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})


def broken_updates(new: Model, old: Model, path: str = "") -> list[str]:
    """What the update rules of `new`, and of the objects directly inside it, say about a change from `old`."""
    found = [
        f"{path or '<root>'}: {rule.message}"
        for rule in new.rules
        if rule.keeps is not None and not rule.keeps(new, old)
    ]
    for name, info in type(new).model_fields.items():
        here, there = getattr(new, name), getattr(old, name)
        if isinstance(here, Model) and isinstance(there, Model):
            found += broken_updates(here, there, f"{path}.{info.alias}" if path else str(info.alias))
    return found


def opt(description: str, /, **more: Any) -> Any:
    """A field that may be left out."""
    return Field(default=None, description=description, **more)


def req(description: str, /, **more: Any) -> Any:
    """A field that must be given."""
    return Field(description=description, **more)


def part(description: str, model: Callable[[], Model], /, **more: Any) -> Any:
    """An object that is there even if left out, so that the defaults inside it apply."""
    return Field(default_factory=model, description=description, json_schema_extra={"default": {}}, **more)


# Lists: how the API server merges them, and which keys must be unique.


@dataclass(frozen=True)
class ListMap:
    """A list whose items are found by keys (x-kubernetes-list-type: map): no two items share them."""

    keys: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def _unique(self, items: list[Any]) -> list[Any]:
        if not all(isinstance(item, Model) for item in items):
            return items
        fields = {info.alias: name for name, info in type(items[0]).model_fields.items()} if items else {}
        _no_twice((tuple(str(getattr(item, fields[key]) or "") for key in self.keys) for item in items), self.keys)
        return items

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            **handler(core),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": list(self.keys),
        }


@dataclass(frozen=True)
class ListSet:
    """A list of scalars without repetition (x-kubernetes-list-type: set)."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    @staticmethod
    def _unique(items: list[Any]) -> list[Any]:
        _no_twice(((str(item),) for item in items), ())
        return items

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-kubernetes-list-type": "set"}


def _no_twice(keys: Iterable[tuple[str, ...]], names: tuple[str, ...]) -> None:
    seen: set[tuple[str, ...]] = set()
    for key in keys:
        if key in seen:
            text = ", ".join(f"{n}={k}" for n, k in zip(names, key, strict=True)) if names else key[0]
            raise PydanticCustomError("duplicate", "Duplicate value: {key}; each may stand here once", {"key": text})
        seen.add(key)


ATOMIC = {"x-kubernetes-list-type": "atomic"}
"""For json_schema_extra of a list that is replaced as a whole."""


# Scalars.


@dataclass(frozen=True)
class Form:
    """What the text of a scalar must look like. pydantic says what to write; a CRD has the pattern or format alone."""

    check: Callable[[Any], Any]
    schema: tuple[tuple[str, str], ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), **dict(self.schema)}


def _pattern(pattern: str, message: str) -> Form:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):  # for Python `$` is before a last line's end, too
            raise PydanticCustomError("text", "{text} {message}", {"text": repr(text), "message": message})
        return text

    return Form(check, (("pattern", pattern),))


def _text(pattern: str, message: str, max_length: int) -> Any:
    return Annotated[str, Field(max_length=max_length), _pattern(pattern, message)]


OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_LABEL_NAME = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])"
_QUALIFIED = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?" + _LABEL_NAME + "$"
OBJECT_NAME_HELP = "is no object name: write lower-case letters, digits, '-' and '.', for example team-a"

if TYPE_CHECKING:
    ObjectName = str
    PodSetName = str
    LabelKey = str
    LabelValue = str
    Text63 = str
    Text256 = str
    Text317 = str
    Text1024 = str
    Text32k = str
    Time = str
    Int32 = int
    Int64 = int
    Count = int
    Positive = int
    Quantity = str | int
    Amount = str | int
    Weight = str | int
else:
    ObjectName = _text(OBJECT_NAME, OBJECT_NAME_HELP, 253)
    PodSetName = _text(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "is no pod set name: write lower-case letters, digits and '-', for example workers",
        63,
    )
    LabelKey = _text(_QUALIFIED, "is no label key: write for example topology.kubernetes.io/zone", 317)
    LabelValue = _text(
        "^" + _LABEL_NAME + "?$", "is no label value: write at most 63 letters, digits, '-', '_' and '.'", 63
    )
    Text63 = Annotated[str, Field(max_length=63)]
    Text256 = Annotated[str, Field(max_length=256)]
    Text317 = Annotated[str, Field(max_length=317)]
    Text1024 = Annotated[str, Field(max_length=1024)]
    Text32k = Annotated[str, Field(max_length=32768)]

    def _time(text: str) -> str:
        # RFC 3339: the API server wants a date, a time and a zone.
        if not re.fullmatch(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", text):
            raise PydanticCustomError(
                "time", "{text} is no time: write for example 2026-11-20T08:30:00Z", {"text": repr(text)}
            )
        try:
            datetime.fromisoformat(re.sub(r"\.\d+", "", text.upper()))
        except ValueError:
            raise PydanticCustomError("time", "{text} is no time of any day", {"text": repr(text)}) from None
        return text

    Time = Annotated[str, Form(_time, (("format", "date-time"),))]

    def _whole(bits: int) -> Any:
        def check(value: int) -> int:
            if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
                raise PydanticCustomError(
                    "range", "{value} is out of range for int{bits}", {"value": value, "bits": bits}
                )
            return value

        return Form(check, (("format", f"int{bits}"),))

    Int32 = Annotated[int, _whole(32)]
    Int64 = Annotated[int, _whole(64)]
    Count = Annotated[int, Field(ge=0), _whole(32)]
    Positive = Annotated[int, Field(ge=1), _whole(32)]

# Quantities. Kubernetes' own pattern also lets through an exponent with a fraction, which its parser then refuses.
_QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_QUANTITY = re.compile(_QUANTITY_PATTERN)
QUANTITY_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
    "maxLength": 40,
}
AMOUNT_MAX = 2**60
AMOUNT_HELP = "write an amount from 0 to 1Ei, in quotes if it has a point or a unit: 8, 500m, 16Gi, '1.5'"
WEIGHT_HELP = (
    "write a weight from 0 to 1000000, and if not 0 then more than 0.000000001, in quotes if it has a point: 1, '0.5'"
)
_AMOUNT_CEL = (
    "type(self) == int ? self >= 0 && self <= 1152921504606846976 : "
    "!self.startsWith('-') && isQuantity(self) && !quantity(self).isGreaterThan(quantity('1Ei'))"
)
_WEIGHT_CEL = (
    "type(self) == int ? self >= 0 && self <= 1000000 : "
    "!self.startsWith('-') && isQuantity(self) && !quantity(self).isGreaterThan(quantity('1M'))"
    " && (quantity(self).compareTo(quantity('0')) == 0 || quantity(self).isGreaterThan(quantity('1n')))"
)


def _quantity_like(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PydanticCustomError(
            "quantity",
            "{value} is no quantity; write a whole number, or text in quotes: 8, 500m, 16Gi, '1.5'",
            {"value": repr(value)},
        )
    if isinstance(value, str):
        if len(value) > QUANTITY_SCHEMA["maxLength"] or not _QUANTITY.fullmatch(value):
            raise PydanticCustomError(
                "quantity", "{value} is no quantity; write for example 8, 500m, 16Gi or '1.5'", {"value": repr(value)}
            )
    elif not -(2**63) <= value < 2**63:
        raise PydanticCustomError("quantity", "{value} is more than Kubernetes can count", {"value": str(value)})
    return value


def _bounded(holds: Callable[[Any], bool], message: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int):
            return _quantity_like(value)
        ok = not str(value).startswith("-") and (not isinstance(value, str) or bool(_QUANTITY.fullmatch(value)))
        if ok:
            try:
                ok = len(str(value)) <= QUANTITY_SCHEMA["maxLength"] and holds(parse_plain(value))
            except QuantityError:
                ok = False
        if not ok:
            raise PydanticCustomError("amount", "{value}: {message}", {"value": repr(value), "message": message})
        return value

    return check


def _quantity_type(check: Callable[[Any], Any], cel: str | None, message: str = "") -> Any:
    schema = dict(QUANTITY_SCHEMA)
    if cel is None:
        schema["pattern"] = _QUANTITY_PATTERN
    else:
        schema["x-kubernetes-validations"] = [{"rule": cel, "message": message}]
    return Annotated[str | int, BeforeValidator(check), WithJsonSchema(schema)]


if not TYPE_CHECKING:
    Quantity = _quantity_type(_quantity_like, None)
    Amount = _quantity_type(_bounded(lambda v: v <= AMOUNT_MAX, AMOUNT_HELP), _AMOUNT_CEL, AMOUNT_HELP)
    Weight = _quantity_type(
        _bounded(lambda v: v <= 10**6 and (v == 0 or v * 10**9 > 1), WEIGHT_HELP), _WEIGHT_CEL, WEIGHT_HELP
    )


def names_of(info: ValidationInfo) -> Names:
    """The names that `validate_object` was called with."""
    return (info.context or {}).get("names") or Names()


# Objects that many kinds have.


class Condition(Model):
    """As metav1.Condition."""

    type: Annotated[str, Field(max_length=316, pattern=_QUALIFIED)] = req("Type.")
    status: Literal["True", "False", "Unknown"] = req("True, False or Unknown.")
    observed_generation: Int64 | None = opt("The metadata.generation that this speaks of.")
    last_transition_time: Time = req("When status last changed.")
    reason: Annotated[
        str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ] = req("One word that programs read.")
    message: Text32k = req("What people read.")


Conditions = Annotated[list[Condition], Field(max_length=16), ListMap(("type",))]


class Metadata(Model):
    """What is read of metadata; the API server checks the rest."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None


class Resource(Model):
    """What every object has at its top."""

    api_version: str = opt("Group and version.")
    kind: str = opt("Kind.")
    metadata: Metadata = Field(default_factory=Metadata)


class SelectorRequirement(Model):
    rules = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values; Exists and DoesNotExist take none",
            holds=lambda r: bool(r.values) == (r.operator in ("In", "NotIn")),
        ),
    )
    key: LabelKey = req("Label key.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = req("How values are compared.")
    values: Annotated[list[LabelValue], Field(max_length=64, json_schema_extra=ATOMIC)] | None = opt("Label values.")


class LabelSelector(Model):
    """As metav1.LabelSelector: all of it must match; an empty one matches everything."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})
    match_labels: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = opt("Labels with these values.")
    match_expressions: Annotated[list[SelectorRequirement], Field(max_length=64, json_schema_extra=ATOMIC)] | None = (
        opt("Conditions on labels.")
    )


class Toleration(Model):
    rules = (
        Rule(
            "has(self.key) && size(self.key) > 0 || has(self.operator) && self.operator == 'Exists'",
            "without a key, write operator: Exists, which tolerates every taint",
            holds=lambda t: bool(t.key) or t.operator == "Exists",
        ),
        Rule(
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || size(self.value) == 0",
            "operator Exists takes no value: drop value, or write operator: Equal",
            holds=lambda t: t.operator != "Exists" or not t.value,
        ),
        Rule(
            "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            "tolerationSeconds needs effect: NoExecute",
            holds=lambda t: t.toleration_seconds is None or t.effect == "NoExecute",
        ),
    )
    key: Text317 | None = opt("Key of the taint; empty with operator Exists means every taint.")
    operator: Literal["Exists", "Equal"] | None = opt("Equal (the default) compares value; Exists does not.")
    value: Text63 | None = opt("Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = opt("Effect of the taint; empty means all.")
    toleration_seconds: Int64 | None = opt("How long a NoExecute taint is tolerated.")


class Taint(Model):
    key: LabelKey = req("Taint key.")
    value: LabelValue | None = opt("Taint value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = req(
        "What happens to pods that do not tolerate it."
    )
    time_added: Time | None = opt("When it was added.")


# What pydantic finds, as people read it.


def path_text(location: tuple[str | int, ...]) -> str:
    """A pydantic location as people write it: spec.podSets[0].count."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step == "[key]":
            text += " (a key)"
        else:
            text += f".{step}" if text else step
    return text or "<root>"


_TYPES = {
    "bool_type": "write true or false, without quotes",
    "int_type": "write a whole number, without quotes",
    "string_type": "write text (in quotes, if it looks like a number)",
    "list_type": "write a list",
    "dict_type": "write a mapping",
    "model_type": "write a mapping",
    "model_attributes_type": "write a mapping",
    "missing": "Required value: write it",
}


def say(error: Any) -> str:
    """A pydantic error as an instruction."""
    kind, ctx, given = error["type"], error.get("ctx") or {}, error.get("input")
    if kind == "literal_error":
        return f"Unsupported value {given!r}: write {ctx['expected']}"
    if kind in _TYPES:
        return _TYPES[kind] if kind == "missing" else f"{str(given)[:60]!r}: {_TYPES[kind]}"
    if kind == "finite_number":
        return f"{given!r} is no number to count with: write a finite one"
    if kind == "greater_than_equal":
        return f"{given!r} is too small: write {ctx['ge']} or more"
    if kind == "greater_than":
        return f"{given!r}: write more than {ctx['gt']}"
    if kind == "less_than_equal":
        return f"{given!r} is too large: write {ctx['le']} or less"
    if kind in ("too_long", "string_too_long"):
        return f"too long: at most {ctx['max_length']}"
    if kind in ("too_short", "string_too_short"):
        return f"empty: write at least {ctx['min_length']}"
    return str(error["msg"])
