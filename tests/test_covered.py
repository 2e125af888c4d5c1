"""Every value of the chart, key of the configuration, metric and command has a test: `python -m tests.covered` shows
which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests import covered

LISTS = [covered.values, covered.settings, covered.metrics, covered.commands]


@pytest.mark.parametrize("rows", LISTS, ids=lambda rows: rows.__name__)
def test_each_has_a_test(rows: Callable[[], dict[str, list[str]]]) -> None:
    found = rows()
    assert found
    assert [name for name, by in found.items() if not by] == []


def test_what_has_no_test_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command, a metric and a key that nobody tries have empty rows."""
    known = [
        replace(
            one,
            commands=tuple(ran for ran in one.commands if "release-all" not in ran[0]),
            keys=frozenset(path for path in one.keys if "tls" not in path),
        )
        for one in covered.tests()
    ]
    monkeypatch.setattr(covered, "tests", lambda: tuple(known))
    monkeypatch.setattr(covered, "examples", tuple)
    monkeypatch.setattr(covered, "blocks", lambda _page: ())
    assert covered.commands()["muster release-all --unlabel"] == []
    assert [key for key, by in covered.settings().items() if not by] == ["web.tls"]
    monkeypatch.setattr(covered, "tests", tuple)
    monkeypatch.setattr(covered, "ALERTS", ())
    monkeypatch.setattr(covered, "DASHBOARDS", ())
    assert not any(covered.metrics().values())
