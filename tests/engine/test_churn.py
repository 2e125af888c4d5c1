"""A busy town for hours: nobody is evicted for much more than others lack."""

from __future__ import annotations

import random  # noqa: TID251  # seeded

from msgspec.structs import replace

from tests.bench import days, engine


def test_few_are_evicted_where_teams_take_turns() -> None:
    """The same town had a third of those that came evicted when gangs were evicted for room that is only kept, and
    loses more than twice as much where small gangs may send large ones (`LessThanInitialShare`)."""
    figures = days.churn(days.SMALL, hours=4).figures()
    assert figures["churn_finished_count"] > 370
    assert figures["churn_evicted_of_arrived_pct"] < 25
    assert figures["churn_lost_work_pct"] < 15


def test_few_are_admitted_only_to_be_evicted_where_all_come_at_once() -> None:
    """A twentieth of what was admitted went again for quota that its owners wanted all along. (A tenth did when those
    borrowed first who would borrow least.)"""
    size, dice, tally = engine.Size().part(50), random.Random(7), engine.Tally()
    state = engine.town(size)
    for number in range(size.pending):
        state.apply(engine.Put(replace(engine.gang(dice, number, size), created=engine.NOW - 60_000 + number % 1000)))
    engine.settle(state, engine.NOW, tally)
    assert tally.admitted > 250
    assert tally.evicted < 0.07 * tally.admitted
