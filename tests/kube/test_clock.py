"""What time it is by the API server."""

from __future__ import annotations

from contextlib import suppress
from email.utils import formatdate

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from admission.jobs.values import rfc3339
from admission.kube.client import ApiError, Client
from admission.kube.clock import NOT_SET, ServerClock
from admission.kube.events import EventRecorder
from admission.kube.lease import LeaderElector
from tests.kube.server import Server

START = 1_790_000_000_000


class Clocks:
    """This machine's clock, `ahead` of the API server's by so many ms."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.true = START
        self.clock = ServerClock(lambda: self.true + self.ahead)

    def answer(self, took: int = 20, date: str | None = None) -> None:
        asked = self.clock.local()
        self.true += took // 2
        told = formatdate(self.true // 1000, usegmt=True) if date is None else date
        self.true += took - took // 2
        self.clock.heard(told or None, asked)

    @property
    def wrong(self) -> int:
        return self.clock.now() - self.true


@pytest.mark.parametrize("ahead", [600_000, 31_000, 4_500, -4_500, -600_000])
def test_two_answers_put_a_wrong_clock_right(ahead: int) -> None:
    clocks = Clocks(ahead)
    assert clocks.clock.doubtful
    clocks.answer()
    assert clocks.wrong == ahead, "one answer may be anything"
    assert clocks.clock.doubtful
    clocks.answer()
    assert abs(clocks.wrong) <= 600
    assert not clocks.clock.doubtful
    assert abs(clocks.clock.wall().timestamp() * 1000 - clocks.true) <= 600
    known = clocks.clock.ahead_ms
    for _ in range(50):
        clocks.true += 1_337
        clocks.answer()
    assert clocks.clock.ahead_ms == known, "it does not go to and fro"


@pytest.mark.parametrize("ahead", [0, 1_500, -1_500])
def test_small_differences_are_none(ahead: int) -> None:
    clocks = Clocks(ahead)
    for _ in range(50):
        clocks.true += 777
        clocks.answer()
        assert not clocks.clock.doubtful
    assert clocks.wrong == ahead


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_who_tells_nothing_or_something_else_once_changes_nothing(date: str) -> None:
    clocks = Clocks(0)
    for at in range(20):
        clocks.true += 1_100
        clocks.answer(date=date if at % 2 else None)
    assert clocks.wrong == 0


def test_slow_answers_tell_nothing() -> None:
    clocks = Clocks(0)
    for _ in range(5):
        clocks.answer(took=60_000)
    assert clocks.clock.ahead_ms == 0


def test_a_clock_that_is_put_right_is_followed() -> None:
    clocks = Clocks(600_000)
    clocks.answer()
    clocks.answer()
    clocks.ahead = 0
    for _ in range(3):
        clocks.true += 1_100
        clocks.answer()
    assert clocks.clock.ahead_ms == 0
    assert clocks.wrong == 0


@pytest.mark.parametrize("ahead", [0, 60_000, -60_000])
@pytest.mark.parametrize("by", [600_000, -600_000])
def test_that_the_api_servers_clock_is_set_ahead_is_known(ahead: int, by: int) -> None:
    clocks = Clocks(ahead)
    for _ in range(5):
        clocks.true += 1_100
        clocks.answer()
    assert clocks.clock.set_ahead == NOT_SET, "it was this machine's that was wrong, if any"
    then = clocks.true
    clocks.true, clocks.ahead = clocks.true + by, clocks.ahead - by
    for _ in range(5):
        clocks.true += 1_100
        clocks.answer()
    assert abs(clocks.wrong) <= 600
    told = clocks.clock.set_ahead
    if by < 0:
        assert told == NOT_SET
    else:
        assert then <= told.at < then + 5_000
        assert abs(told.by - by) <= 2_000


YEAR = 365 * 86_400


@pytest.mark.parametrize(
    "leaps",
    [
        [YEAR, -YEAR],
        [600, -200],
        [600, 600],
        [600, 900, -900],
        [600, 900, -1500],
        [600, 900, 1200, -1200],
        [600, -600] * 30,
        [3] * 30 + [YEAR],
        [3] * 30 + [600, 900],
    ],
    ids=lambda leaps: f"{leaps[:3]} of {len(leaps)}",
)
def test_what_was_begun_before_lasts_as_long_as_it_does_however_often_that_clock_is_set(leaps: list[int]) -> None:
    """By NTP, to a wrong time and back. Where one of several API servers is wrong it depends on who answers. A clock
    that merely runs slow is put right again and again."""
    clocks = Clocks(0)
    for _ in range(5):
        clocks.true += 1_100
        clocks.answer()
    then, began = clocks.true, clocks.clock.local()
    for by in leaps:
        clocks.true, clocks.ahead = clocks.true + 1000 * by, clocks.ahead - 1000 * by
        for _ in range(5):
            clocks.true += 1_100
            clocks.answer()
    told = clocks.clock.set_ahead
    assert len(told.earlier) < 10, "what is kept does not grow"
    assert told.now(0) == 0, "that is no time"
    lasted = clocks.clock.now() - told.now(then)
    forgotten = 1000 * sum(by for by in leaps if by == 3)  # what is little may be
    assert abs(lasted - (clocks.clock.local() - began)) <= 3_000 + forgotten


def test_of_api_servers_whose_clocks_differ_little_is_said() -> None:
    clocks = Clocks(0)
    with capture_logs() as lines:
        for turn in range(50):
            clocks.ahead = 10_000 * (turn % 2)  # of two answers by one of them, and two by the other
            for _ in range(2):
                clocks.true += 1_100
                clocks.answer()
    assert [line["log_level"] for line in lines if line["log_level"] != "debug"] == ["warning", "info"]


@pytest.mark.parametrize(
    ("said", "ahead"),
    [({"json": {}}, 3600), ({"text": "<html>502 Bad Gateway"}, 0)],
    ids=["by the API server", "by a load balancer"],
)
async def test_the_time_is_the_api_servers_and_not_of_who_stands_before_it(
    server: Server, client: Client, said: dict[str, object], ahead: int
) -> None:
    """While that is away, a load balancer answers, by a clock of its own: all that is waited for would be over."""
    client.clock = ServerClock(lambda: START)

    async def dated(_: web.Request) -> web.Response:
        headers = {"Date": formatdate(START // 1000 - 3600, usegmt=True)}
        if "json" in said:
            return web.json_response(said["json"], headers=headers)
        return web.Response(status=502, text=str(said["text"]), headers=headers)

    server.faults += [dated] * 3
    for _ in range(3):
        with suppress(ApiError):
            await client.get("/version", attempts=1)
    assert (client.clock.ahead_ms + 500) // 1000 == ahead


async def test_what_others_read_is_dated_by_the_api_server(server: Server, client: Client) -> None:
    """Whoever asks whether somebody leads, or what happened in which order, has that clock and not this machine's."""
    client.clock = clocks = ServerClock(lambda: START + 600_000)
    clocks.ahead_ms = 600_000
    recorder = EventRecorder(client, source="muster")
    recorder.record({"kind": "Job", "namespace": "a", "name": "train", "uid": "u"}, "Normal", "Started", "now")
    await recorder.flush()
    ((_, event),) = server.objects.items()
    assert event["firstTimestamp"] == event["lastTimestamp"] == rfc3339(START)

    server.objects.clear()
    client.clock = clocks = ServerClock(lambda: START + 600_000)
    clocks.ahead_ms = 600_000
    written: list[str] = []

    async def leads() -> None:
        written.extend(lease["spec"]["renewTime"] for lease in server.objects.values())

    await LeaderElector(client, "muster-system", "controller").lead(leads)
    assert written == [rfc3339(START).replace("Z", ".000000Z")]
