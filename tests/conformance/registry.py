"""Which function replays which table, and how two answers are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Table = Callable[[Json], list[str]]
"""(case) -> what differs from its expected results, in words; empty when nothing does."""

TABLES: dict[str, Table] = {}


def table(*names: str) -> Callable[[Table], Table]:
    """Register a function for tables of these names (`meta.test` of the case file)."""

    def register(function: Table) -> Table:
        for name in names:
            assert name not in TABLES, name
            TABLES[name] = function
        return function

    return register


def differences(expected: Any, got: Any, at: str = "") -> list[str]:
    """Where two JSON values differ, in words."""
    if isinstance(expected, dict) and isinstance(got, dict):
        out = []
        for key in sorted({*expected, *got}, key=str):
            where = f"{at}.{key}" if at else str(key)
            if key not in got:
                out.append(f"{where}: expected {_short(expected[key])}, got nothing")
            elif key not in expected:
                out.append(f"{where}: expected nothing, got {_short(got[key])}")
            else:
                out.extend(differences(expected[key], got[key], where))
        return out
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        return [
            line
            for i, (one, other) in enumerate(zip(expected, got, strict=True))
            for line in differences(one, other, f"{at}[{i}]")
        ]
    return [] if expected == got else [f"{at or 'result'}: expected {_short(expected)}, got {_short(got)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) < 300 else text[:300] + "..."
