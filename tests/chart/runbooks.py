"""What runbooks of alerts have somebody look for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import admission
from charts.monitoring import ALERTS


def quoted(alert: str) -> set[str]:
    """What a runbook quotes of the log."""
    (runbook,) = [one.runbook for one in ALERTS if one.name == alert]
    return {word for words in re.findall(r"(?<!\w)'([^']+)'(?!\w)", runbook) for word in words.split("|")}


def logged() -> set[str]:
    """Events of the log, as the code has them; of those that it puts together the constant parts."""
    found = set[str]()
    for path in Path(admission.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args and _logs(node.func):
                found.update(_constants(node.args[0]))
    return found


def _logs(called: ast.expr) -> bool:
    """log.warning, the informer's self._say, and what one of several such is called: level, tell."""
    if isinstance(called, ast.IfExp):
        return _logs(called.body)
    if isinstance(called, ast.Attribute):
        of = called.value.id if isinstance(called.value, ast.Name) else ""
        return of in ("log", "_log") or (of == "self" and called.attr == "_say")
    return isinstance(called, ast.Name) and called.id in ("level", "tell")


def _constants(event: ast.expr) -> Iterator[str]:
    for part in event.values if isinstance(event, ast.JoinedStr) else [event]:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def finds(alert: str, event: str) -> bool:
    """Does a line of the log with this event match what the runbook greps for?"""
    (runbook,) = [one.runbook for one in ALERTS if one.name == alert]
    (pattern,) = re.findall(r"grep (?:-E )?'([^']+)'", runbook)
    return re.search(pattern, event) is not None
