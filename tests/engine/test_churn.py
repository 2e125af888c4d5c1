"""A busy town for hours: nobody is evicted for much more than others lack."""

from __future__ import annotations

from tests.bench import days


def test_few_are_evicted_where_teams_take_turns() -> None:
    """The same town had a third of those that came evicted when gangs were evicted for room that is only kept, and
    loses more than twice as much where small gangs may send large ones (`LessThanInitialShare`)."""
    figures = days.churn(days.SMALL, hours=4).figures()
    assert figures["churn_finished_count"] > 370
    assert figures["churn_evicted_of_arrived_pct"] < 25
    assert figures["churn_lost_work_pct"] < 15
