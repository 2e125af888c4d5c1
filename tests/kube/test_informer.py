from __future__ import annotations

import asyncio
import copy
import json
import random  # noqa: TID251  # seeded
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest
from structlog.testing import capture_logs

from admission.kube.client import Client, Kind
from admission.kube.informer import Informer, StoreWentBack
from tests.kube.server import Server, answer, drop, hang, passing, status

CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")


@dataclass(frozen=True)
class Thing:
    namespace: str
    name: str
    uid: str
    resource_version: str
    data: dict


def decode(raw) -> Thing:
    obj = msgspec.json.decode(raw)
    meta = obj["metadata"]
    if "poison" in obj["data"]:
        raise MemoryError if obj["data"]["poison"] == "memory" else ValueError("poison")
    return Thing(meta["namespace"], meta["name"], meta["uid"], meta["resourceVersion"], obj["data"])


class Seen:
    """What handlers were told, and the laws of it: absent, rising versions of one uid, absent."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.bad: list[tuple[str, str]] = []
        self.copy: dict[tuple[str, str], Thing] = {}

    def on_change(self, old: Thing | None, new: Thing | None) -> None:
        one = new or old
        key = (one.namespace, one.name)
        assert self.copy.get(key) == old
        if new is None:
            del self.copy[key]
        else:
            if old is not None:
                assert old.uid == new.uid
                assert int(old.resource_version) < int(new.resource_version)
            self.copy[key] = new
        self.log.append(f"{'+' if old is None else '-' if new is None else '~'}{one.name}:{one.uid}")

    def on_bad(self, key: tuple[str, str], error: Exception) -> None:
        self.bad.append(key)


@asynccontextmanager
async def informing(client: Client, **options):
    seen = options.pop("seen", None) or Seen()
    options = {"backoff": (0.001, 0.005), "absent_retry": 0.002, "watch_seconds": (60, 60)} | options
    informer = Informer(client, CONFIG_MAPS, decode, seen.on_change, on_bad=seen.on_bad, **options)
    task = asyncio.ensure_future(informer.run())
    try:
        async with asyncio.timeout(300):
            synced = asyncio.ensure_future(informer.synced.wait())
            await asyncio.wait({task, synced}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            yield informer, seen, task
    finally:
        task.cancel()
        synced.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def followed(informer: Informer, server: Server, settle) -> None:
    """News come to it."""
    await settle(lambda: informer.cut_off == 0.0)
    server.put("y", n=str(server.revision))
    await settle(lambda: same(informer, server))


def same(informer: Informer, server: Server) -> bool:
    return {k: (o.uid, o.resource_version) for k, o in informer.store.items()} == {
        k: (o["metadata"]["uid"], o["metadata"]["resourceVersion"]) for k, o in server.objects.items()
    }


async def test_lists_in_pages_then_follows(server: Server, client: Client, settle):
    for i in range(5):
        server.put(f"x{i}")
    async with informing(client, page_size=2) as (informer, seen, _):
        assert seen.log == [f"+x{i}:u{i + 1}" for i in range(5)]
        server.put("x1", colour="red")
        server.delete("x2")
        server.put("x5")
        await settle(lambda: same(informer, server))
        assert seen.log[5:] == ["~x1:u2", "-x2:u3", "+x5:u6"]
        assert informer.get("a", "x1").data == {"colour": "red"}
        assert informer.relists == 1
    first = server.requests[0].query
    assert "resourceVersion" not in first  # as new as the store of record


async def test_all_else_has_a_turn_while_a_page_is_laid_over_the_copy(server: Server, client: Client, monkeypatch):
    """A page of 500 jobs took a tenth of a second, in which no Lease was renewed and no probe answered."""
    monkeypatch.setattr("admission.kube.informer._LAID_AT_ONCE", 10, raising=False)
    for i in range(45):
        server.put(f"x{i:02}")
    turns, laid = 0, Counter()

    class Counted(Seen):
        def on_change(self, old: Thing | None, new: Thing | None) -> None:
            super().on_change(old, new)
            laid[turns] += 1

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    async with informing(client, seen=Counted()) as (_, seen, _):
        assert len(seen.copy) == 45
    counting.cancel()
    assert list(laid.values()) == [10, 10, 10, 10, 5]


@pytest.mark.parametrize("comes", ["a", "z"])
async def test_nobody_sees_who_went_beside_who_came_in_its_place(server, client, settle, monkeypatch, comes):
    """A gang would have one pod more than it was admitted for, since when that was made, and be stopped for it."""
    monkeypatch.setattr("admission.kube.informer._LAID_AT_ONCE", 10)
    for i in range(60):
        server.put(f"x{i:02}")
    both = False

    async def look(informer: Informer) -> None:
        nonlocal both
        while True:
            both |= {("a", "x30"), ("a", comes)} <= informer.store.keys()
            await asyncio.sleep(0)

    async with informing(client, page_size=60) as (informer, _seen, _):
        await settle(lambda: bool(server.watches))
        server.faults.append(drop())
        await server.cut()
        server.delete("x30", silently=True)
        server.put(comes)
        server.history.clear()
        server.compact()
        looking = asyncio.ensure_future(look(informer))
        await settle(lambda: same(informer, server))
        looking.cancel()
        assert informer.relists == 2
        assert not both


async def test_bookmarks_carry_the_version_and_a_dropped_watch_resumes_from_there(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, _seen, _):
        server.bookmark()
        await settle(lambda: informer.resource_version == str(server.revision))
        version = informer.resource_version
        await server.cut()
        await settle(lambda: server.count("GET", watch="true") == 2)
        server.put("x", more="yes")
        await settle(lambda: same(informer, server))
        assert [r.query["resourceVersion"] for r in server.requests if "watch" in r.query] == ["101", version]
        assert all(r.query["allowWatchBookmarks"] == "true" for r in server.requests if "watch" in r.query)
        assert informer.relists == 1


async def test_a_line_cut_in_the_middle_is_not_believed(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, seen, _):
        await settle(lambda: bool(server.watches))
        event = json.dumps({"type": "DELETED", "object": server.objects["a", "x"]}).encode()
        await server.utter(event[:40])
        await server.cut()
        await settle(lambda: server.count("GET", watch="true") == 2)
        assert seen.log == ["+x:u1"]
        server.put("x", ok="yes")
        await settle(lambda: same(informer, server))


async def test_a_line_in_many_pieces_is_one_line(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, seen, _):
        await settle(lambda: bool(server.watches))
        new = json.loads(json.dumps(server.objects["a", "x"]))
        new["metadata"]["resourceVersion"] = "150"
        new["data"] = {"long": "y" * 5000}
        event = json.dumps({"type": "MODIFIED", "object": new}).encode() + b"\n"
        for i in range(0, len(event), 700):
            await server.utter(event[i : i + 700])
            await asyncio.sleep(0.001)
        await settle(lambda: informer.resource_version == "150")
        assert seen.log == ["+x:u1", "~x:u1"]


async def test_text_that_is_no_event_breaks_the_watch_and_nothing_else(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, _seen, _):
        await settle(lambda: bool(server.watches))
        await server.utter(b"<html>proxy error</html>\n")
        await settle(lambda: server.count("GET", watch="true") == 2)
        server.put("x", ok="yes")
        await settle(lambda: same(informer, server))
        assert informer.relists == 1


async def test_silence_is_noticed(server, client, settle):
    async with informing(client, stall_seconds=0.01) as (informer, _seen, _):
        await settle(lambda: server.count("GET", watch="true") >= 3)
        server.put("x")
        await settle(lambda: same(informer, server))
        assert informer.relists == 1


async def test_a_watch_that_is_not_answered_is_asked_for_again(server: Server, settle):
    """By a server that stands still: its machine accepts connections. Meanwhile there is no news."""
    server.put("x")
    server.faults += [passing(), hang()]
    async with (
        Client.plain(server.url, read_timeout=0.5, backoff=(0.001, 0.01)) as client,
        informing(client, stall_seconds=3600.0, watch_seconds=(3600.0, 3600.0)) as (informer, _seen, _),
    ):
        await settle(lambda: server.count("GET", watch="true") == 1)
        server.put("y")
        await settle(lambda: same(informer, server))


@pytest.mark.parametrize("form", ["http", "event"])
async def test_a_version_that_is_gone_is_listed_again_and_differences_are_announced(server, client, settle, form):
    for name in ("stays", "changes", "goes", "reborn"):
        server.put(name)
    async with informing(client) as (informer, seen, _):
        await settle(lambda: bool(server.watches))
        del seen.log[:]
        server.history.clear()
        # While nobody watches: all of it is seen only in the next list.
        if form == "http":
            server.faults.append(drop())
            await server.cut()
        for name in ("goes", "reborn"):
            server.delete(name, silently=True)
        server.put("changes", now="yes")
        server.put("reborn")
        server.put("born")
        server.history.clear()
        server.compact()
        if form == "event":
            expired = status(410, "Expired", "too old resource version")
            await server.utter(json.dumps({"type": "ERROR", "object": expired}).encode() + b"\n")
        await settle(lambda: same(informer, server))
        if form == "http":
            assert sorted(seen.log) == sorted(["~changes:u2", "-goes:u3", "-reborn:u4", "+reborn:u5", "+born:u6"])
        assert "-reborn:u4" in seen.log
        assert seen.log.index("-reborn:u4") < seen.log.index("+reborn:u5")
        assert seen.copy == informer.store


async def test_a_name_with_another_uid_is_another_object(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, seen, _):
        server.delete("x", silently=True)
        server.put("x")
        await settle(lambda: same(informer, server))
        assert seen.log == ["+x:u1", "-x:u1", "+x:u2"]
        # The deletion of the first comes late: it says nothing about the second.
        old = {"name": "x", "namespace": "a", "uid": "u1", "resourceVersion": "102"}
        server.say("DELETED", {"metadata": old, "data": {}})
        server.put("y")
        await settle(lambda: ("a", "y") in informer.store)
        assert ("a", "x") in informer.store


async def test_a_deleted_name_that_is_recreated_between_list_and_watch(server, client, settle):
    server.put("x")

    async def recreate(_):
        server.delete("x")
        server.put("x")

    server.faults += [passing(), recreate]  # at the moment of the first watch request
    async with informing(client) as (informer, seen, _):
        await settle(lambda: not server.faults and same(informer, server))
        assert seen.log == ["+x:u1", "-x:u1", "+x:u2"]


async def test_versions_never_go_back(server, client, settle):
    server.put("x")
    old = json.loads(json.dumps(server.objects["a", "x"]))
    server.put("x", n="2")
    async with informing(client) as (informer, seen, _):
        server.say("MODIFIED", old)
        server.say("DELETED", old)
        server.put("y")
        await settle(lambda: ("a", "y") in informer.store)
        assert informer.get("a", "x").data == {"n": "2"}
        assert seen.log == ["+x:u1", "+y:u2"]


async def test_one_bad_object_stops_nothing(server, client, settle):
    server.put("bad", poison="yes")
    server.put("good")
    async with informing(client) as (informer, seen, _):
        assert seen.log == ["+good:u2"]
        assert informer.bad == {("a", "bad")}
        server.put("good", poison="now")
        server.put("other")
        await settle(lambda: ("a", "other") in informer.store)
        assert informer.get("a", "good").data == {}  # its last good form
        server.put("bad", fine="now")
        server.delete("good")
        await settle(lambda: same(informer, server))
        assert informer.bad == set()
        assert seen.log == ["+good:u2", "+other:u3", "+bad:u1", "-good:u2"]
        assert seen.bad == [("a", "bad"), ("a", "good")]
        assert informer.relists == 1


@pytest.mark.parametrize("listed", [True, False])
async def test_who_runs_out_of_memory_leaves_nothing_out(server, client, settle, *, listed):
    """A pod that was left out would have its node counted as free."""
    if listed:
        server.put("x", poison="memory")
        with pytest.raises(MemoryError):
            async with informing(client):
                pass
        return
    async with informing(client) as (_, seen, task):
        await settle(lambda: bool(server.watches))
        server.put("x", poison="memory")
        with pytest.raises(MemoryError):
            await task
        assert seen.bad == []


async def test_an_expired_continue_token_lists_again_in_one_piece(server, client):
    for i in range(4):
        server.put(f"x{i}")

    async def expire(_):
        server.delete("x0", silently=True)
        server.compact()

    server.faults += [passing(), expire]
    async with informing(client, page_size=2) as (informer, seen, _):
        assert same(informer, server)
        assert seen.log == ["+x0:u1", "+x1:u2", "+x2:u3", "+x3:u4", "-x0:u1"]
    assert [r.query["limit"] for r in server.requests[:3]] == ["2", "2", "0"]


@pytest.mark.parametrize(
    "fault",
    [
        answer(500),
        answer(503, text="no"),
        answer(403, status(403, "Forbidden")),
        answer(200, text="<html>"),
        answer(404, text="404 page not found"),
        drop(),
    ],
)
async def test_a_failing_list_is_tried_again_and_nothing_is_synced_before(server, client, fault):
    server.put("x")
    server.faults += [fault] * 12
    async with informing(client) as (_informer, seen, _):
        assert seen.log == ["+x:u1"]
        assert server.faults == []


@pytest.mark.parametrize("fault", [answer(500), answer(429, headers={"Retry-After": "0"}), drop(), answer(403)])
async def test_a_failing_watch_is_resumed(server, client, settle, fault):
    server.put("x")
    server.faults += [passing(), fault, fault, fault]
    async with informing(client) as (informer, _seen, _):
        await settle(lambda: len(server.watches) == 1)
        server.put("y")
        await settle(lambda: same(informer, server))
        assert informer.relists == 1


async def test_an_outage_causes_no_list_but_refusals_do(server, client, settle):
    server.put("x")
    server.faults += [passing(), *[drop()] * 12]
    async with informing(client) as (informer, _seen, _):
        await settle(lambda: len(server.watches) == 1)
        assert informer.relists == 1
        for n in "23":  # with news in between they are none in a row
            server.faults += [answer(500)] * 4
            await server.cut()
            await settle(lambda: len(server.watches) == 1)
            server.put("x", n=n)
            await settle(lambda: same(informer, server))
        assert informer.relists == 1
        server.faults += [answer(500)] * 5
        await server.cut()
        await settle(lambda: informer.relists == 2 and len(server.watches) == 1)


@pytest.mark.parametrize("of", ["lists", "watches"])
async def test_who_was_away_is_asked_soon_and_then_when_it_says(server, client, settle, of):
    """However long it was away: and that it refuses ever more is counted from its first answer."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    server.put("x")
    client_tries = 5 if of == "lists" else 1
    busy = answer(429, status(429, "TooManyRequests"), headers={"Retry-After": "1"})
    gone = [drop()] * 25 * client_tries
    server.faults += [*([] if of == "lists" else [passing()]), *gone, *[answer(500)] * client_tries * 2]
    server.faults += [answer(503, headers={"Retry-After": "20"})]  # a read does not wait for so long by itself
    if of == "watches":  # a list waits for its turn by itself
        server.faults += [busy] * 3
    async with informing(client, sleep=sleep, backoff=(0.5, 30.0)) as (informer, _seen, _):
        await settle(lambda: len(server.watches) == 1)
        assert same(informer, server)
    silent, refused, told = pauses[:25], pauses[25:27], pauses[27:]
    assert max(silent) <= 5.0 < sum(silent)
    assert refused[0] == 0.5
    assert refused[1] <= 1.5
    assert 20.0 <= told.pop(0) <= 25.5
    assert all(1.0 <= pause <= 1.75 for pause in told)
    assert len(told) == (3 if of == "watches" else 0)


async def test_an_outage_is_told_once_for_all_that_is_watched_and_so_is_its_end(server, client, settle):
    with capture_logs() as lines:
        async with informing(client) as (one, _, _), informing(client) as (other, _, _):
            await settle(lambda: len(server.watches) == 2)
            before = sum(client.counts.values())
            server.faults += [drop()] * 40
            await server.cut()
            await settle(lambda: not server.faults and len(server.watches) == 2)
            await settle(lambda: sum(client.counts.values()) > before + 40)  # an answer is counted when it is read
            assert one.relists == other.relists == 1
    told = [line["event"] for line in lines if "API server" in line["event"]]
    # Of two that try at once, one may be let in while the other is still turned away: then that is told, too.
    away, back = "the API server does not answer", "the API server answers again"
    assert told == [away, back] * (len(told) // 2)
    assert len(told) < 10


async def test_refusals_of_one_kind_are_told_once_in_a_while(server, client):
    with capture_logs() as lines:
        server.faults += [answer(500)] * 30
        async with informing(client) as (informer, _, _):
            assert informer.synced.is_set()
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == ["list failed"]


async def test_an_optional_kind_that_is_not_served_counts_as_empty_until_it_is(server, client, settle):
    server.absent = True
    async with informing(client, optional=True) as (informer, seen, _):
        assert informer.store == {}
        await settle(lambda: informer.relists > 3)
        server.absent = False
        server.put("x")
        await settle(lambda: same(informer, server))
        assert seen.log == ["+x:u1"]
        # Taken away again: emptied, but not for a single 404 now and then.
        for _ in range(3):
            await followed(informer, server, settle)
            server.faults.append(answer(404, text="404 page not found"))
            informer.relist()
            await settle(lambda: not server.faults)
        await followed(informer, server, settle)
        assert not any(entry.startswith("-") for entry in seen.log)
        server.absent = True
        informer.relist()
        await settle(lambda: informer.store == {})
        assert sorted(entry[:2] for entry in seen.log if entry.startswith("-")) == ["-x", "-y"]


async def test_what_may_be_withheld_counts_as_absent_until_it_may_be_listed(server, client, settle):
    server.put("x")
    server.faults += [answer(403)] * 3
    with capture_logs() as lines:
        async with informing(client, optional=True, withheld=True) as (informer, seen, _):
            assert informer.absent
            assert informer.store == {}
            await settle(lambda: same(informer, server))
            assert not informer.absent
            server.faults += [answer(403)] * 5
            informer.relist()
            await settle(lambda: not server.faults and bool(server.watches))
            assert seen.log == ["+x:u1"]
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "may not be listed, and is gone without"
    ]


@pytest.mark.parametrize("says", [403, 404])
@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("of", ["lists", "watches"])
async def test_who_may_look_no_more_goes_on_without_as_after_a_restart(server, client, settle, of, forgets, says):
    """What was seen is not the truth any more, and a leader that stepped aside for it would do so again and again. A
    quota that somebody may have raised since is no reason to refuse a job. One of several API servers may be older, and
    not have the kind (404): that takes no devices from gangs that run with them."""
    server.put("x")
    now = [1000.0]

    async def refused(request):
        now[0] += 7
        return await answer(says)(request)

    form = {"optional": True, "withheld": True, "forgets": forgets}
    async with informing(client, **form, clock=lambda: now[0]) as (informer, seen, _):
        await settle(lambda: bool(server.watches))
        server.faults += [refused] * 1000
        if of == "lists":
            informer.relist()
        else:
            await server.cut()
        cut_off = []
        async with asyncio.timeout(60):
            while not informer.absent:
                cut_off.append(informer.cut_off)
                await asyncio.sleep(0)
        assert max(cut_off) < 30
        asked = len(server.requests)
        await settle(lambda: len(server.requests) > asked + 5)
        assert informer.cut_off == 0
        assert seen.log == ["+x:u1", *(["-x:u1"] if forgets else [])]
        server.faults.clear()
        server.put("y")
        await settle(lambda: same(informer, server) and not informer.absent)


@pytest.mark.parametrize("form", [{}, {"optional": True, "withheld": True}])
async def test_who_refuses_as_it_begins_is_asked_again_and_nobody_is_told_of_rights(server, client, settle, form):
    server.put("x")
    with capture_logs() as lines:
        async with informing(client, **form) as (informer, seen, _):
            await settle(lambda: bool(server.watches))
            server.faults += [drop(), answer(403), answer(403), answer(403)]
            informer.relist()
            await settle(lambda: not server.faults and bool(server.watches) and same(informer, server))
            assert not informer.absent
            assert seen.log == ["+x:u1"]
    told = {line["event"] for line in lines if line["log_level"] == "warning"}
    assert told == {"the API server does not answer"}
    assert client.counts["LIST", "configmaps", "", 403] == 0


def put_back(server):
    """To an earlier moment, from a backup."""
    del server.objects["a", "x"]
    server.history.clear()
    server.revision = 50
    server.put("v")


async def test_a_list_from_the_past_is_not_believed_until_it_insists(server, client, settle):
    server.put("x")
    server.put("x", n="2")
    past = {
        "metadata": {"resourceVersion": "90"},
        "items": [{"metadata": {"name": "w", "namespace": "a", "uid": "w", "resourceVersion": "80"}, "data": {}}],
    }
    async with informing(client) as (informer, seen, task):
        for _ in range(3):  # it does not by coming now and then
            await followed(informer, server, settle)
            server.faults += [answer(200, past)] * 2
            informer.relist()
            await settle(lambda: task.done() or not server.faults)
            assert not task.done()
        await followed(informer, server, settle)
        told = list(seen.log)
        assert {entry[:2] for entry in told} == {"+x", "+y", "~y"}
        put_back(server)
        informer.relist()
        with pytest.raises(StoreWentBack, match="list of 51 after 1"):
            await task
        assert seen.log == told


async def test_after_a_lost_connection_the_store_is_asked_whether_it_went_back(server, client, settle):
    """A watch from a version that is still to come would be accepted, and be silent until it has come."""
    server.put("x")
    server.put("x", n="2")
    async with informing(client) as (informer, seen, task):
        await settle(lambda: bool(server.watches))
        await server.cut()
        await settle(lambda: bool(server.watches))
        server.put("x", n="3")
        await settle(lambda: same(informer, server))
        assert informer.relists == 1
        put_back(server)
        await server.cut()
        with pytest.raises(StoreWentBack, match="list of 51 after 103"):
            await task
        assert [entry[:2] for entry in seen.log] == ["+x", "~x"]


@pytest.mark.parametrize("recreated", [False, True])
async def test_a_list_that_is_newer_and_has_an_object_older_than_it_was_is_of_another_past(server, client, recreated):
    """The store was put back, and counts on from far above."""
    server.put("x")
    before = json.loads(json.dumps(server.objects["a", "x"]))
    if recreated:
        server.delete("x")
    server.put("x", n="2")
    server.put("y")
    async with informing(client) as (informer, seen, task):
        version = server.objects["a", "x"]["metadata"]["resourceVersion"]
        server.revision += 1000
        server.objects["a", "x"] = before
        informer.relist()
        with pytest.raises(StoreWentBack, match=rf"a/x is of 101 in the list of {server.revision}, after {version}$"):
            await task
        assert [entry[:2] for entry in seen.log] == ["+x", "+y"]


async def test_a_handler_that_raises_ends_the_informer(server, client):
    class Broken(Seen):
        def on_change(self, old, new):
            if new.name == "y":
                raise RuntimeError("the books are wrong")

    server.put("x")
    async with informing(client, seen=Broken()) as (_, _, task):
        server.put("y")
        with pytest.raises(RuntimeError, match="books"):
            await task


async def test_the_age_is_the_time_since_the_last_line(server, client, settle):
    now = [1000.0]
    async with informing(client, clock=lambda: now[0]) as (informer, _, _):
        assert informer.age == 0
        now[0] += 7
        assert informer.age == 7
        server.bookmark()
        await settle(lambda: informer.age == 0)


@pytest.mark.parametrize("fault", [answer(403), answer(500), answer(429, headers={"Retry-After": "0"}), drop()])
@pytest.mark.parametrize("of", ["lists", "watches"])
async def test_it_is_cut_off_from_its_first_failure_until_a_list_or_a_watch_is_had(server, client, settle, of, fault):
    now = [1000.0]

    async def refused_and(request):
        if of == "lists" or request.query.get("watch"):
            now[0] += 7
            return await fault(request)
        return None

    async with informing(client, clock=lambda: now[0]) as (informer, _, _):
        await settle(lambda: len(server.watches) == 1)
        assert informer.cut_off == 0
        cut_off = []

        async def last(request):
            cut_off.append(informer.cut_off)

        server.faults += [refused_and, refused_and, refused_and, last]
        if of == "lists":
            informer.relist()
        else:
            await server.cut()
        await settle(lambda: bool(cut_off))
        await settle(lambda: informer.cut_off == 0)
        now[0] += 60  # nothing has happened since, and no line has come
        assert informer.cut_off == 0


@pytest.mark.parametrize(
    ("within", "change", "asked", "relists"),
    [
        (3600.0, True, 0, 1),
        (-1.0, False, 1, 1),
        (-1.0, True, 1, 2),
    ],
    ids=["heard of lately", "silent, and nothing was to be said", "silent, and something was"],
)
async def test_who_catches_up_has_what_the_server_has(server, client, within, change, asked, relists):
    server.put("x")
    server.put("y")
    async with informing(client) as (informer, _seen, _):
        if change:
            server.delete("x", silently=True)
        await informer.catch_up(within)
        assert server.count("GET", limit="1") == asked
        assert informer.relists == relists
        assert same(informer, server) == (not change or relists == 2)


async def test_who_is_cut_off_has_caught_up_when_the_server_is_back(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, _seen, _):
        await settle(lambda: server.count("GET", watch="true") == 1)
        server.faults += [answer(503)] * 8
        await server.cut()
        await settle(lambda: informer.cut_off > 0)
        server.put("y")
        await informer.catch_up(3600.0)
        assert same(informer, server)


async def test_lost_events_are_found_by_comparison_and_mended(server, client, settle):
    for name in ("x", "y", "z"):
        server.put(name)
    async with informing(client) as (informer, _seen, _):
        await settle(lambda: bool(server.watches))
        assert await informer.differences() == []
        server.delete("x", silently=True)
        server.objects["a", "y"]["metadata"]["resourceVersion"] = "1000"
        server.bookmark()
        await settle(lambda: informer.resource_version == str(server.revision))
        assert sorted(await informer.differences()) == [("a", "x"), ("a", "y")]
        exact = server.requests[-1].query
        assert (exact["resourceVersion"], exact["resourceVersionMatch"]) == (informer.resource_version, "Exact")
        await settle(lambda: same(informer, server))


async def test_what_is_known_better_is_not_understood_or_cannot_be_compared_is_no_difference(server, client, settle):
    server.put("x")
    server.put("bad", poison="yes")
    async with informing(client) as (informer, _seen, _):
        await settle(lambda: bool(server.watches))
        assert await informer.differences() == []
        version, listed = informer.resource_version, copy.deepcopy(list(server.objects.values()))
        for name, uid in (("x", "u1"), ("z", "u9")):  # learned from writes, and the watch is not there yet
            one = copy.deepcopy(listed[0])
            one["metadata"] |= {"name": name, "uid": uid, "resourceVersion": str(int(version) + 10)}
            informer.learn(one)
        assert set(informer.store) == {("a", "x"), ("a", "z")}
        server.faults.append(answer(200, {"metadata": {"resourceVersion": version}, "items": listed}))
        assert await informer.differences() == []
        server.faults.append(answer(410))
        assert await informer.differences() == []
        assert informer.relists == 1


async def test_the_answer_of_a_write_is_learned_before_the_watch_brings_it(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, seen, _):
        await settle(lambda: bool(server.watches))
        new = server.put("x", n="2")
        informer.learn(new)
        assert seen.log == ["+x:u1", "~x:u1"]
        assert await informer.differences() == []
        server.put("y")
        await settle(lambda: same(informer, server))
        assert seen.log == ["+x:u1", "~x:u1", "+y:u2"]


async def test_a_late_answer_does_not_bring_back_what_was_deleted(server, client, settle):
    server.put("x")
    async with informing(client) as (informer, seen, _):
        answered = server.put("x", n="2")
        server.delete("x")
        await settle(lambda: same(informer, server) and informer.resource_version == str(server.revision))
        informer.learn(answered)
        assert informer.store == {}
        assert seen.log[-1] == "-x:u1"


async def test_what_was_learned_after_a_lists_revision_is_not_gone(server, client, settle):
    for i in range(3):
        server.put(f"x{i}")
    async with informing(client, page_size=2) as (informer, seen, _):
        await settle(lambda: bool(server.watches))

        async def write_between_pages(_):
            informer.learn(server.put("x9"))

        server.faults += [passing(), write_between_pages]
        informer.relist()
        await settle(lambda: informer.relists == 2 and not server.faults and same(informer, server))
        server.put("last")
        await settle(lambda: same(informer, server))
        assert seen.log[3:] == ["+x9:u4", "+last:u5"]


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_the_copy_arrives_at_the_truth(server, client, settle, seed):
    """The laws of `Seen` hold all the way, and the copy equals the books once the faults stop."""
    chance = random.Random(seed)
    async with informing(client, page_size=3, stall_seconds=0.03) as (informer, seen, _):
        for _ in range(150):
            name = f"x{chance.randrange(8)}"
            match chance.randrange(12):
                case 0:
                    await server.cut(b'{"type":"ADD')
                case 1:
                    server.compact()
                    await server.cut()
                case 2:
                    server.faults.append(chance.choice([answer(500), drop(), answer(410, status(410, "Expired"))]))
                case 3:
                    server.bookmark()
                case 4:
                    informer.relist()
                case 5 | 6 if ("a", name) in server.objects:
                    server.delete(name)
                case 7 if ("a", name) in server.objects:
                    server.delete(name)
                    server.put(name)
                case _:
                    server.put(name, n=str(chance.random()), **({"poison": "1"} if chance.random() < 0.05 else {}))
            if chance.random() < 0.4:
                await asyncio.sleep(0.001)
        server.faults.clear()
        for namespace, name in list(server.objects):
            server.put(name, namespace, well="yes")
        await settle(lambda: same(informer, server))
        assert seen.copy == informer.store
        assert informer.bad == set()
