"""When a decision is made, on a clock that jumps, and how much of the work is done in it."""

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
        # ... within a second, however long it took.
        ([0, 15, 20, 35], 500, [10, 1010]),
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


def test_who_keeps_the_writers_busy_and_has_more_goes_on_within_the_window() -> None:
    made: list[int] = []

    async def main() -> None:
        pace = Pace(quiet=10 * MS, window=100 * MS, rest=4.0)
        for _ in range(3):
            pace.changed()
            await pace.due()
            made.append(round(asyncio.get_running_loop().time() / MS))
            pace.took(500 * MS, go_on=True)

    virtually(main)
    assert made == [10, 110, 210]


@pytest.mark.parametrize(
    ("written_at", "took", "decided"),
    [
        # The line is short again after so long ...
        (420, 20, [10, 520]),
        # ... or stays long: whoever would be ahead in it does not wait for all of it.
        (100_000, 20, [10, 1100]),
        (100_000, 500, [10, 3020]),
    ],
    ids=["short again", "long", "long and dear"],
)
def test_while_what_was_decided_is_not_written_little_is_decided(
    written_at: int, took: int, decided: list[int]
) -> None:
    made: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pace = Pace(
            quiet=10 * MS,
            window=100 * MS,
            rest=4.0,
            behind=lambda: bool(made) and loop.time() < written_at * MS,
        )
        pace.changed()
        while len(made) < len(decided):
            await pace.due()
            made.append(round(loop.time() / MS))
            pace.took(took * MS)
            pace.changed()

    virtually(main)
    assert made == decided


@pytest.mark.parametrize(
    ("each_ms", "work", "steps"),
    [
        # What is asked for fits: all of it at once.
        (1, 300, [500, 500, 500]),
        # A trial costs 4 ms: half a second is 125 of them.
        (4, 10_000, [500, 125, 125]),
        # A decision that found little to do is no reason to do more at once, or less.
        (10, 20, [500, 500]),
        # Even where one costs a second, some are made: what a decision costs before its first trial is made good.
        (1_000, 10_000, [500, 125, 100, 100]),
    ],
    ids=["cheap", "dear", "few", "very dear"],
)
def test_a_decision_stops_after_about_half_a_second(each_ms: int, work: int, steps: list[int]) -> None:
    async def main() -> None:
        pace = Pace(quiet=10 * MS, window=100 * MS, rest=4.0)
        for allowed in steps:
            assert pace.steps == allowed
            made = min(work, allowed)
            pace.took(made * each_ms * MS, made)

    virtually(main)


def test_where_trials_become_cheap_again_more_are_made_at_once() -> None:
    async def main() -> None:
        pace = Pace(quiet=10 * MS, window=100 * MS, rest=4.0)
        for _ in range(3):
            pace.took(pace.steps * 0.01, pace.steps)
        allowed = []
        for _ in range(5):
            pace.took(pace.steps * 0.001, pace.steps)
            allowed.append(pace.steps)
        assert allowed == [200, 400, 400, 400, 400]  # near enough to half a second

    virtually(main)
