"""One control plane for the whole run; each test leaves it empty of jobs.

`muster` is Muster installed on it, with every object version recorded: when the test ends, the record is judged by the
invariants, and the controllers' logs are searched for what no healthy run has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.control_plane import ControlPlane, Timing
from e2e.event_log import EventLog
from e2e.installed import Installed
from e2e.invariants import check, report

# Collecting garbage is a third of the work of an API server that has so few objects.
os.environ.setdefault("GOGC", "400")
USERS = {"tenant": ("tenants",), "muster": ("controllers",)}
"""Somebody with rights in one namespace, and somebody with the controller's."""
LONGEST = (
    "test_fairness_and_crashes",
    "test_placement",
    "test_chart",
    "test_traps",
    "test_quota_contract",
    "test_migrate",
    "test_hold",
    "test_older",
    "test_leaving",
    "test_slow_writes",
    "test_docs",
    "test_demo",
    "test_day_two",
    "test_put_back",
    "test_control_plane",
    "test_contract",
    "test_ends",
)
"""Modules of a minute and more, which are begun first, so that no worker is left with one at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubeconfig", default="", help="run the portable part on this cluster instead")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--kubeconfig"):
        away = [item for item in items if item.get_closest_marker("portable") is None]
        items[:] = [item for item in items if item.get_closest_marker("portable") is not None]
        config.hook.pytest_deselected(items=away)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def cp() -> Iterator[ControlPlane]:
    # On a machine that is busy fake kubelets are late, and nobody is to lose nodes for that.
    with ControlPlane(users=USERS, timing=Timing(node_lease=400, node_monitor_grace=600)) as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def installed(cp: ControlPlane) -> ControlPlane:
    Installed.install(cp)
    return cp


@pytest.fixture
def muster(installed: ControlPlane, tmp_path: Path) -> Iterator[Installed]:
    """Installed, not started. The invariants are judged when the test is over."""
    installed.clean()
    Installed.install(installed)
    with EventLog(installed) as log, Installed(installed, tmp_path) as muster:
        muster.log = log
        yield muster
        log.stop()
        for replica in muster.replicas:
            replica.resume()
        trouble = muster.trouble()
    violations = check(log, at_end=False)
    assert not violations, report(violations)
    assert not trouble, "\n".join(trouble)
