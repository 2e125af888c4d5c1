"""When a decision is made, on a clock that jumps."""

from __future__ import annotations

import asyncio

import pytest

from admission.controller.pace import Pace
from tests.kube.virtual import virtually

MS = 1e-3


@pytest.mark.parametrize(
    ("changes", "took", "decided"),
    [
        ([0], 0, [10]),
        ([0, 4, 8], 0, [20]),
        ([*range(0, 250, 7)], 0, [100, 205, 260]),
        # What comes while the last decision is rested from is decided on together ...
        ([0, 15, 20, 35], 20, [10, 100]),
        # ... within the window, however long it took.
        ([0, 15, 20, 35], 500, [10, 115]),
        # Who comes after a pause does not wait for what others cost.
        ([0, 500], 20, [10, 510]),
    ],
    ids=["one", "burst", "stream", "rested", "rested at most", "after a pause"],
)
def test_what_comes_together_is_decided_on_together(changes: list[int], took: int, decided: list[int]) -> None:
    made: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pace = Pace(quiet=10 * MS, window=100 * MS, rest=4.0)
        for at in changes:
            loop.call_at(at * MS, pace.changed)
        while len(made) < len(decided):
            await pace.due()
            made.append(round(loop.time() / MS))
            pace.took(took * MS)
        await asyncio.sleep(10)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await pace.due()  # nothing is left over

    virtually(main)
    assert made == decided
