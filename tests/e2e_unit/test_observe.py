"""What runs deliver and lose, from the states of Workloads that a watch shows."""

from __future__ import annotations

import msgspec
import pytest

from e2e.bench.load import RUN_LABEL
from e2e.bench.observe import Observed, Seen

WAITS: tuple[str, ...] = ()
RUNS = ("QuotaReserved", "Admitted")


@pytest.mark.parametrize(
    ("seen", "evictions", "evicted", "delivered"),
    [
        ([(0, WAITS), (1, RUNS), (3, (*RUNS, "Finished"))], 0, 0.0, 2.0),
        (
            [(1, RUNS), (2, RUNS), (3, (*RUNS, "Evicted")), (4, ("Evicted",)), (5, RUNS), (7, ("Finished",))],
            1,
            2.0,
            2.0,
        ),
        ([(1, RUNS), (2.5, WAITS), (3, RUNS), (4, ("Evicted", "Preempted"))], 2, 2.5, 0.0),
        ([(1, ("QuotaReserved",)), (2, ("Evicted",)), (3, WAITS)], 0, 0.0, 0.0),
        ([(1, RUNS), (3, ("Finished",)), (4, ("Finished", "Evicted"))], 0, 0.0, 2.0),
    ],
)
def test_what_a_run_delivers_and_loses(
    seen: list[tuple[float, tuple[str, ...]]], evictions: int, evicted: float, delivered: float
) -> None:
    observed = Observed()
    for at, true in seen:
        conditions = [{"type": kind, "status": "True"} for kind in true]
        one = {"metadata": {"uid": "a", "labels": {RUN_LABEL: "2000"}}, "status": {"conditions": conditions}}
        observed.see(msgspec.convert(one, Seen), at)
    assert (observed.evictions, observed.evicted_s, observed.delivered_s) == (evictions, evicted, delivered)
