"""Kubernetes quantities as exact ints.

CPU is counted in milli-units, every other resource in its base unit (bytes, devices, pods); a fraction is rounded up,
as Kubernetes' own `Quantity.Value` does. Values saturate at the bounds of int64, for the API server stores no more.
Memory is not counted in milli-units: 2**63 / 1000 bytes is 8.2 PiB, less than a large quota.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_UP, Decimal, InvalidOperation, Overflow, localcontext
from functools import lru_cache

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

Resources = Mapping[str, int]
"""Resource name -> amount, in the units of this module."""

_SUFFIX = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(1000),
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
_NANO = Decimal("1e-9")
_DIGITS = frozenset("0123456789")
_NUMBER = frozenset("0123456789.+-")


class QuantityError(ValueError):
    """The text is no Kubernetes quantity; the message says what one looks like."""


def saturate(value: int) -> int:
    """The nearest int64."""
    return value if INT64_MIN <= value <= INT64_MAX else min(max(value, INT64_MIN), INT64_MAX)


def _decimal(text: str) -> Decimal:
    end = len(text)
    for i, ch in enumerate(text):
        if ch not in _NUMBER:
            end = i
            break
    number, suffix = text[:end], text[end:]
    # "1e3" is an exponent, "1E" is exa: a digit or sign after the letter decides.
    if (
        suffix[:1] in ("e", "E")
        and len(suffix) > 1
        and suffix[1:].lstrip("+-").isascii()
        and suffix[1:].lstrip("+-").isdigit()
    ):
        if len(suffix) > 12:
            raise QuantityError(f"{text!r} is no quantity: exponent out of range")
        number, suffix = number + suffix, ""
    unit = _SUFFIX.get(suffix)
    if unit is None or not any(ch in _DIGITS for ch in number) or len(number) > 64:
        raise QuantityError(f"{text!r} is no quantity; write for example 4, 500m, 16Gi or 1e3")
    try:
        with localcontext() as context:
            context.prec = 80
            context.Emax, context.Emin = 999_999, -999_999
            return Decimal(number) * unit
    except Overflow:
        raise QuantityError(f"{text!r} is no quantity: exponent out of range") from None
    except InvalidOperation:
        raise QuantityError(f"{text!r} is no quantity; write for example 4, 500m, 16Gi or 1e3") from None


def _ceil(value: Decimal) -> int:
    # Bounds first, so that 1e999 costs nothing.
    if value > INT64_MAX:
        return INT64_MAX
    if value < INT64_MIN:
        return INT64_MIN
    return int(value.to_integral_value(rounding=ROUND_CEILING))


@lru_cache(maxsize=16384)
def _parse_text(text: str, milli: bool) -> int:
    if text.isascii() and text.isdigit() and len(text) < 18:
        return saturate(int(text) * 1000) if milli else int(text)
    value = _decimal(text.strip())
    with localcontext() as context:
        context.prec, context.Emax = 80, 2_000_000
        return _ceil(value * 1000 if milli else value)


def same(one: object, other: object) -> bool:
    """Do both stand for one amount, as 2 and "2", or 1024Mi and 1Gi do? False where either is no quantity."""
    try:
        first, second = (_decimal(str(said).strip()) for said in (one, other))
    except QuantityError:
        return False
    return first == second


def parse(resource: str, quantity: str | int | float) -> int:
    """The amount of `resource` that `quantity` stands for: milli-CPU for cpu, else base units.

    Raises QuantityError for what is no quantity.
    """
    if isinstance(quantity, bool):
        raise QuantityError(f"{quantity!r} is no quantity; write for example 4, 500m, 16Gi or 1e3")
    return _parse_text(str(quantity), resource == "cpu")


def parse_plain(quantity: str | int | float) -> Decimal:
    """The value of a quantity that belongs to no resource (a weight), as far as Kubernetes counts: within int64, to a
    billionth, beyond which it is rounded up. Raises QuantityError."""
    value = _decimal(str(quantity).strip())
    if value.copy_abs() > INT64_MAX:
        return Decimal(INT64_MAX).copy_sign(value)
    parts = value.as_tuple().exponent
    return value.quantize(_NANO, rounding=ROUND_UP) if isinstance(parts, int) and parts < -9 else value


def parse_resources(raw: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """A resource list as written in a manifest, as amounts. Raises QuantityError naming the resource."""
    out: dict[str, int] = {}
    for name, quantity in (raw or {}).items():
        try:
            out[name] = parse(name, quantity)
        except QuantityError as error:
            raise QuantityError(f"{name}: {error}") from None
    return out


_BINARY = ((2**60, "Ei"), (2**50, "Pi"), (2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
_DECIMAL = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def is_bytes(resource: str) -> bool:
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def format(resource: str, amount: int) -> str:  # noqa: A001 - read as quantity.format
    """The canonical text of an amount: the largest suffix that keeps it a whole number; binary for bytes."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    number, suffix = _whole(amount, _BINARY if is_bytes(resource) else () if resource == "pods" else _DECIMAL)
    return f"{number}{suffix}"


def _whole(amount: int, units: Iterable[tuple[int, str]]) -> tuple[int, str]:
    """(number, suffix) with the largest unit of which an amount is a whole number."""
    for unit, suffix in units:
        if amount and amount % unit == 0:
            return amount // unit, suffix
    return amount, ""


def words(
    resource: str, *amounts: int, digits: int = 1, like: Iterable[int] = (), up: Collection[int] = ()
) -> tuple[str, ...]:
    """Amounts of one resource for people who read them beside each other; all are quantities. With few digits they
    are exact; else as many stand after the point as are asked for, and more, or all, where different ones would read
    the same. Rounded down: who asks for what is said to be there gets it; those of `up` rounded up: who grants what is
    said to be asked for has granted enough. Bytes are told in Ki to Ei, or in k to E where all of `like` (default: the
    amounts) are short in these alone.

    >>> words("memory", 8 * 2**30, 8 * 2**30 - 2**10, 253 * 10**9)
    ('8Gi', '7.99Gi', '235.6Gi')
    >>> words("memory", 253 * 10**9, 5 * 10**8)
    ('253G', '500M')
    """
    wanted = list(like) or amounts
    by_tens = not all(_short(one, _BINARY) for one in wanted) and all(_short(one, _DECIMAL) for one in wanted)
    units = _DECIMAL if by_tens else _BINARY
    told: dict[int, str] = {}
    for places in range(digits, _MOST_DIGITS + 1):
        told = {amount: _rounded(resource, amount, places, units, up=amount in up) for amount in amounts}
        if len(set(told.values())) == len(told) and (not up or _in_order(resource, told)):
            break
    else:
        told = {amount: format(resource, amount) for amount in amounts}
    return tuple(told[amount] for amount in amounts)


_MOST_DIGITS = 3


def _in_order(resource: str, told: Mapping[int, str]) -> bool:
    read = [parse(resource, told[amount]) for amount in sorted(told)]
    return read == sorted(read)


def _short(amount: int, units: Iterable[tuple[int, str]]) -> str:
    """The exact text, where that has four digits at most; else ""."""
    number, suffix = _whole(amount, units)
    return f"{number}{suffix}" if abs(number) < 10_000 else ""


def _rounded(resource: str, amount: int, digits: int, units: tuple[tuple[int, str], ...], *, up: bool = False) -> str:
    if amount < 0:
        return "-" + _rounded(resource, -amount, digits, units)
    if resource == "cpu":
        # Below ten as Kubernetes writes parts of them.
        return format(resource, amount) if amount < 10_000 else _decimals(amount, 1000, digits, up=up)
    if not _counts_bytes(resource, amount):
        return format(resource, amount)
    if exact := _short(amount, units):
        return exact
    unit, suffix = next((unit, suffix) for unit, suffix in units if amount >= unit)
    return _decimals(amount, unit, digits + (amount < 10 * unit), up=up) + suffix


def _counts_bytes(resource: str, amount: int) -> bool:
    """Memory of devices, too, which others' resources count: no other amount is so large and so even."""
    return is_bytes(resource) or (resource != "pods" and amount > 0 and amount % 2**20 == 0)


def _decimals(amount: int, unit: int, digits: int, *, up: bool = False) -> str:
    whole, rest = divmod((amount * 10**digits + (unit - 1 if up else 0)) // unit, 10**digits)
    return f"{whole}.{rest:0{digits}d}".rstrip("0").removesuffix(".")


def parse_fraction(resource: str, quantity: str | int | float) -> float:
    """As `parse`, without rounding: an average over time may be a part of a device. Raises QuantityError."""
    value = parse_plain(quantity)
    return float(value * 1000 if resource == "cpu" else value)


def format_fraction(resource: str, amount: float) -> str:
    """Text that `parse_fraction` reads as `amount`, to a billionth of a unit."""
    nano = round(amount * (10**6 if resource == "cpu" else 10**9))
    for unit, suffix in ((10**9, ""), (10**6, "m"), (10**3, "u")):
        if nano % unit == 0:
            return f"{nano // unit}{suffix}"
    return f"{nano}n"


def format_resources(amounts: Resources) -> dict[str, str]:
    return {name: format(name, amounts[name]) for name in sorted(amounts)}


def add(into: dict[str, int], other: Resources, times: int = 1) -> None:
    """`into += times * other`, in place, saturating."""
    for name, amount in other.items():
        into[name] = saturate(into.get(name, 0) + amount * times)
