from __future__ import annotations

import asyncio
import itertools
import re
from datetime import UTC, datetime, timedelta

import pytest

from admission.kube.client import Client, Fenced
from admission.kube.events import EventRecorder
from tests.kube.server import Server, answer, status

JOB = {"apiVersion": "batch/v1", "kind": "Job", "namespace": "a", "name": "train", "uid": "u-1", "resourceVersion": "7"}


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def recorder(client: Client, time: Time) -> EventRecorder:
    return EventRecorder(client, source="muster", clock=time.clock, wall=time.wall, sleep=time.sleep, limit=50)


async def test_an_event_as_people_see_it(server: Server, recorder: EventRecorder):
    recorder.record(JOB, "Normal", "Started", "Admitted by ClusterQueue all")
    await recorder.flush()
    ((namespace, name), event) = server.objects.popitem()
    assert namespace == "a"
    assert name.startswith("train.")
    del event["metadata"]
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": JOB,
        "type": "Normal",
        "reason": "Started",
        "message": "Admitted by ClusterQueue all",
        "action": "Started",
        "source": {"component": "muster"},
        "reportingComponent": "muster",
        "reportingInstance": "muster",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }


async def test_the_same_news_is_one_event_with_a_count(server: Server, recorder: EventRecorder, time: Time):
    for _ in range(3):
        recorder.record(JOB, "Normal", "Pending", "waits")
    await recorder.flush()
    for _ in range(4):
        time.now += 1
        recorder.record(JOB | {"resourceVersion": "8"}, "Normal", "Pending", "waits")
        await recorder.flush()
    assert server.count("POST") == 1
    assert server.count("PATCH") == 0  # not due yet
    time.now = 11
    await recorder.flush()
    (event,) = server.objects.values()
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
        7,
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:04Z",
    )
    assert server.count("PATCH") == 1
    recorder.record(JOB, "Normal", "Pending", "waits for something else")
    recorder.record(JOB | {"uid": "u-2"}, "Normal", "Pending", "waits")
    await recorder.flush()
    assert server.count("POST") == 3


async def test_what_is_said_again_for_hours_is_written_ever_more_rarely_and_does_not_expire(
    server: Server, recorder: EventRecorder, time: Time
):
    """As of a job that cannot be queued as it is, at each look."""
    raised = []
    for _ in range(6 * 3600 // 30):
        recorder.record(JOB, "Warning", "InvalidJob", "no such priority class")
        before = server.count("PATCH")
        await recorder.flush()
        raised += [time.now] * (server.count("PATCH") - before)
        time.now += 30
    assert len(raised) < 50
    assert max(later - earlier for earlier, later in itertools.pairwise(raised)) <= 630
    await recorder.flush(everything=True)
    (event,) = server.objects.values()
    assert event["count"] == 6 * 3600 // 30


async def test_a_repeat_of_an_expired_event_is_a_new_event(server: Server, recorder: EventRecorder):
    recorder.record(JOB, "Normal", "Pending", "waits")
    await recorder.flush()
    server.objects.clear()
    recorder.record(JOB, "Normal", "Pending", "waits")
    await recorder.flush(everything=True)
    (event,) = server.objects.values()
    assert event["count"] == 1


async def test_an_object_without_a_namespace(server: Server, recorder: EventRecorder):
    recorder.record({"apiVersion": "muster.dev/v1beta1", "kind": "ClusterQueue", "name": "q"}, "Warning", "Bad", "no")
    await recorder.flush()
    ((key, event),) = server.objects.items()
    assert key[0] == "default"
    assert "namespace" not in event["involvedObject"]


@pytest.mark.parametrize("name", ["q" * 199 + "-" + "r" * 20, "q" * 198 + ".-" + "r" * 20, "q" * 253])
async def test_an_event_of_a_long_name_has_one_that_is_allowed(server: Server, recorder: EventRecorder, name: str):
    recorder.record({**JOB, "name": name}, "Normal", "Started", "now")
    await recorder.flush()
    ((_, made),) = server.objects
    assert len(made) <= 253
    assert all(re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", part) for part in made.split("."))


async def test_a_long_note_is_cut_between_letters(server: Server, recorder: EventRecorder):
    recorder.record(JOB, "Normal", "Long", "ü" * 900)
    await recorder.flush()
    (event,) = server.objects.values()
    assert event["message"] == "ü" * 512


async def test_the_queue_is_bounded_and_drops_the_oldest(server: Server, recorder: EventRecorder):
    for i in range(60):
        recorder.record(JOB | {"uid": str(i)}, "Normal", "R", f"note {i}")
    await recorder.flush()
    assert recorder.dropped == {"queue": 10}
    assert {event["message"] for event in server.objects.values()} == {f"note {i}" for i in range(10, 60)}


async def test_one_namespace_cannot_drown_the_others(server: Server, recorder: EventRecorder):
    """As one that makes jobs with a wrong label by the thousand."""
    recorder.record(JOB | {"namespace": "b", "uid": "first"}, "Normal", "R", "first")
    for i in range(60):
        recorder.record(JOB | {"uid": str(i)}, "Normal", "R", f"note {i}")
    for namespace in ("b", "c"):
        recorder.record(JOB | {"namespace": namespace, "uid": "last"}, "Normal", "R", "last")
    await recorder.flush()
    assert recorder.dropped == {"queue": 13}
    written = [(namespace, event["message"]) for (namespace, _), event in server.objects.items()]
    assert len(written) == 50
    assert [one for one in written[:6] if one[0] != "a"] == [("b", "first"), ("c", "last"), ("b", "last")]
    assert [said for namespace, said in written if namespace == "a"] == [f"note {i}" for i in range(13, 60)]


async def test_one_object_cannot_drown_the_others(server: Server, recorder: EventRecorder, time: Time):
    for i in range(100):
        recorder.record(JOB, "Normal", "R", f"note {i}")
    recorder.record(JOB | {"uid": "other"}, "Normal", "R", "heard")
    await recorder.flush()
    assert len(server.objects) == 26
    assert recorder.dropped == {"object": 75}
    time.now += 61
    recorder.record(JOB, "Normal", "R", "later")
    await recorder.flush()
    assert len(server.objects) == 27


async def test_writes_keep_a_rate(server: Server, client: Client, time: Time):
    recorder = EventRecorder(client, source="m", qps=2, burst=5, clock=time.clock, wall=time.wall, sleep=time.sleep)
    for i in range(25):
        recorder.record(JOB | {"uid": str(i)}, "Normal", "R", "n")
    await recorder.flush()
    assert len(server.objects) == 25
    assert time.now == pytest.approx(10, rel=0.05)


async def test_what_cannot_be_written_is_left_out(server: Server, client: Client, recorder: EventRecorder):
    server.faults.append(answer(403, status(403, "Forbidden", "namespace is terminating")))
    recorder.record(JOB, "Normal", "R", "refused")
    recorder.record(JOB, "Normal", "R", "written")
    await recorder.flush()
    assert [event["message"] for event in server.objects.values()] == ["written"]

    def fence() -> None:
        raise Fenced

    client.fence = fence
    recorder.record(JOB, "Normal", "R", "fenced")
    await recorder.flush()
    assert recorder.dropped == {"refused": 1, "fenced": 1}


async def test_news_of_a_namespace_that_is_being_deleted_is_dropped_with_the_first_that_is_refused(
    server: Server, recorder: EventRecorder, time: Time
):
    body = status(403, "Forbidden", "being terminated")
    body["details"] = {"causes": [{"reason": "NamespaceTerminating"}]}
    server.faults.append(answer(403, body))
    for name in ("first", "second", "third"):
        recorder.record(JOB | {"name": name, "uid": name}, "Normal", "R", "n")
    recorder.record(JOB | {"namespace": "b"}, "Normal", "R", "n")
    await recorder.flush()
    assert [namespace for namespace, _ in server.objects] == ["b"]
    assert recorder.dropped == {"refused": 3}
    # Another namespace of that name may be made.
    recorder.record(JOB, "Normal", "R", "later")
    await recorder.flush()
    assert [event["message"] for event in server.objects.values()] == ["n", "later"]


async def test_it_runs_beside_the_work(server: Server, client: Client, settle):
    recorder = EventRecorder(client, source="m", repeat_every=0.01)
    running = asyncio.ensure_future(recorder.run())
    for i in range(5):
        recorder.record(JOB, "Normal", "R", "n")
        await settle(lambda i=i: any(event["count"] == i + 1 for event in server.objects.values()))
    assert len(server.objects) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_events_of_a_namespace_that_hang_delay_no_others(server: Server, recorder: EventRecorder):
    release = asyncio.Event()

    async def hangs(request: object) -> None:
        await release.wait()

    server.faults.append(hangs)
    for n in range(5):
        recorder.record(JOB | {"uid": f"u-{n}"}, "Normal", "Started", "now")
    recorder.record(JOB | {"namespace": "b"}, "Normal", "Started", "now")
    flushing = asyncio.ensure_future(recorder.flush())
    while not server.objects:
        await asyncio.sleep(0.01)
    assert [namespace for namespace, _ in server.objects] == ["b"]
    recorder.record(JOB | {"namespace": "c"}, "Normal", "Started", "now")
    while len(server.objects) < 2:
        await asyncio.sleep(0.01)
    assert server.count("POST") == 3, "of the others one is under way"
    release.set()
    await flushing
    assert len(server.objects) == 7
