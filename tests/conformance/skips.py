"""Cases that are not replayed, each with its reason: input that is no data, or a gate that is decided against."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.conformance.registry import Json


@dataclass(frozen=True)
class Skip:
    """Skips the cases of `table` whose name matches `name`; both are patterns that must match wholly."""

    table: str
    name: str
    reason: str


SKIPS: tuple[Skip, ...] = ()

GATES: dict[str, str] = {}
"""Gates of the alpha stage that are decided against: a case that switches one on is skipped."""


def reason(table: str, case: Json) -> str | None:
    for skip in SKIPS:
        if re.fullmatch(skip.table, table) and re.fullmatch(skip.name, case["name"]):
            return skip.reason
    for gate, on in (case["config"].get("featureGates") or {}).items():
        if on and gate in GATES:
            return f"{gate}: {GATES[gate]}"
    return None
