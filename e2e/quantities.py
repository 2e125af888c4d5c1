"""Kubernetes quantities and the requests of a pod, written a second time on purpose.

The invariants judge the controller from outside; they must not inherit its arithmetic. Everything is counted in
thousandths, exactly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

_SUFFIX = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FORM = re.compile(r"([+-]?[0-9]*\.?[0-9]*)([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE]?)")

Resources = Counter[str]


def milli(quantity: Any) -> int:
    """A quantity in thousandths, rounded up as Kubernetes does. What cannot be read is an error."""
    found = _FORM.fullmatch(str(quantity))
    if found is None or not found[1].strip("+-."):
        raise ValueError(f"not a quantity: {quantity!r}")
    number, suffix = Fraction(found[1]), found[2]
    if suffix in _BINARY:
        number *= 2 ** _BINARY[suffix]
    elif suffix in _SUFFIX:
        number *= Fraction(10) ** _SUFFIX[suffix]
    else:
        number *= Fraction(10) ** int(suffix[1:])
    return -(-(number * 1000).numerator // (number * 1000).denominator)


def resources(listed: Mapping[str, Any] | None) -> Resources:
    return Counter({name: milli(quantity) for name, quantity in (listed or {}).items()})


def pod_requests(spec: Mapping[str, Any]) -> Resources:
    """What one pod asks for: containers and sidecars together, or the largest init step, plus overhead."""
    running: Resources = Counter()
    largest: Resources = Counter()
    for container in spec.get("initContainers") or ():
        asked = _container(container)
        if container.get("restartPolicy") == "Always":
            running += asked
            largest |= running
        else:
            largest |= running + asked
    for container in spec.get("containers") or ():
        running += _container(container)
    total = running | largest
    pod_level = spec.get("resources") or {}
    for name, amount in _defaulted(pod_level).items():
        total[name] = amount
    return total + resources(spec.get("overhead"))


def total(parts: Iterable[Resources]) -> Resources:
    result: Resources = Counter()
    for part in parts:
        result.update(part)
    return result


def _container(container: Mapping[str, Any]) -> Resources:
    return _defaulted(container.get("resources") or {})


def _defaulted(asked: Mapping[str, Any]) -> Resources:
    """Requests; a limit without a request is one."""
    return Counter(dict(resources(asked.get("limits"))) | dict(resources(asked.get("requests"))))
