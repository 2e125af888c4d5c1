"""What people read under `kubectl describe`: Events, written aside, never waited for.

An Event is news, not state: losing one harms nothing, and writing one must harm nothing either. So `record` only notes
it; a background task writes. The same news about the same object is one Event with a count: the first time creates it,
repeats raise the count at most once in `repeat_every` seconds, and each time later again, up to ten minutes: what is
said for as long as somebody leaves it so costs nothing much, and its Event is there. The queue is bounded (the oldest
of the namespace with the most goes first), namespaces take turns, each object has an allowance, and all of them
together have a rate. What was left out is counted in `dropped`.

The form is core/v1, which every kubectl sorts, counts and shows; events.k8s.io/v1 is another view of the same objects.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from uuid import uuid4

import structlog

from admission.kube.client import ApiError, Client, Fenced, Kind, NotFound, Terminating

_log = structlog.get_logger(__name__)

EVENTS = Kind("", "v1", "events", "Event")

_LONGEST_NOTE = 1024  # bytes; the API server refuses longer ones
_REMEMBERED = 4096  # news whose repeats are counted rather than created again
_PATIENCE_S = 0.25
_RARELY_S = 600.0  # an API server keeps Events for an hour
_REFERENCE = ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath")

_Key = tuple[str, str, str, str, str, str, str]


@dataclass(slots=True)
class _News:
    regarding: dict[str, Any]
    type: str
    reason: str
    note: str
    first: str
    last: str
    annotations: dict[str, str]
    count: int = 1
    name: str = ""  # of the Event once it is written
    unwritten: int = 0  # repeats since
    pause: float = 0.0  # after its count was raised
    again_at: float = 0.0  # clock


_NO_NEWS: Mapping[_Key, _News] = {}


class _Waiting:
    """News that is to be written, oldest first; namespaces take turns, so that none is kept waiting by another's."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, OrderedDict[_Key, _News]] = OrderedDict()
        """Namespace -> its news. The first is next, and none is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def get(self, key: _Key) -> _News | None:
        return self._lanes.get(key[1], _NO_NEWS).get(key)

    def put(self, key: _Key, news: _News) -> None:
        self._lanes.setdefault(key[1], OrderedDict())[key] = news

    def next(self, but: Container[str]) -> _Key | None:
        """Of these namespaces none."""
        lane = next((name for name in self._lanes if name not in but), None)
        return None if lane is None else next(iter(self._lanes[lane]))

    def take(self, key: _Key) -> _News | None:
        """Its namespace has had its turn. None where it was dropped meanwhile."""
        lane = self._lanes.pop(key[1], OrderedDict())
        news = lane.pop(key, None)
        if lane:
            self._lanes[key[1]] = lane
        return news

    def drop(self) -> None:
        """The oldest of the namespace with the most."""
        most = max(self._lanes, key=lambda name: len(self._lanes[name]))
        self._lanes[most].popitem(last=False)
        if not self._lanes[most]:
            del self._lanes[most]

    def forget(self, namespace: str) -> int:
        """How many were dropped."""
        return len(self._lanes.pop(namespace, ()))


class EventRecorder:
    """Writes Events as `source`. Run `run()` beside the work.

    qps, burst: writes per second, over all objects. object_burst, object_refill: news an object may make at once, and
    seconds until it may make one more. clock: monotonic seconds. failed: told of each write that failed.
    """

    def __init__(
        self,
        client: Client,
        *,
        source: str,
        qps: float = 20.0,
        burst: int = 200,
        object_burst: int = 25,
        object_refill: float = 60.0,
        repeat_every: float = 10.0,
        limit: int = 2000,
        failed: Callable[[Exception], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], datetime] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        """By why: queue (full), object (its allowance), refused (by the server), fenced."""
        self._client = client
        self._source = source
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at = clock()
        self._object_burst = object_burst
        self._object_refill = object_refill
        self._repeat_every = repeat_every
        self._limit = limit
        self._failed = failed
        self._clock = clock
        self._wall = wall or client.clock.wall
        self._sleep = sleep
        self._queue = _Waiting()
        self._written: OrderedDict[_Key, _News] = OrderedDict()
        self._repeated: dict[_Key, None] = {}
        self._allowance: OrderedDict[tuple[str, str, str, str], tuple[float, float]] = OrderedDict()
        self._flushed_at = clock()
        self._wake = asyncio.Event()

    def record(
        self,
        regarding: Mapping[str, Any],
        type: str,  # noqa: A002
        reason: str,
        note: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Notes one piece of news. Never blocks, never fails.

        regarding: an object reference (apiVersion, kind, namespace, name, uid). type: Normal or Warning. reason: a
        CamelCase word. note: a sentence; cut at 1024 bytes. annotations: of the Event; repeats keep the first.
        """
        about = {field: str(regarding[field]) for field in _REFERENCE if regarding.get(field)}
        note = note.encode()[:_LONGEST_NOTE].decode("utf-8", "ignore")
        who = (about.get("kind", ""), about.get("namespace", ""), about.get("name", ""), about.get("uid", ""))
        key = (*who, type, reason, note)
        now = self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self._queue.get(key)
        if known is not None:
            known.count += 1
            known.last = now
            return
        known = self._written.get(key)
        if known is not None:
            known.unwritten += 1
            known.last = now
            self._repeated[key] = None
            self._wake.set()
            return
        if not self._allowed(who):
            self.dropped["object"] += 1
            return
        if len(self._queue) >= self._limit:
            self._queue.drop()
            self.dropped["queue"] += 1
        self._queue.put(key, _News(about, type, reason, note, now, now, dict(annotations or {})))
        self._wake.set()

    async def run(self) -> None:
        """Writes what was noted, until cancelled."""
        while True:
            if not self._queue:
                wait = None
                if self._repeated:
                    wait = max(0.0, self._flushed_at + self._repeat_every - self._clock())
                if wait is None:
                    await self._wake.wait()
                elif wait > 0:
                    await self._sleep(min(wait, 1.0))
            self._wake.clear()
            await self.flush()

    async def flush(self, *, everything: bool = False) -> None:
        """Writes what is queued, and the counts of repeats where they are due (`everything`: all of them); one after
        the other, but of one namespace nobody waits long for what is written in another."""
        slow: dict[str, asyncio.Task[None]] = {}
        repeats: dict[_Key, None] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                slow = {namespace: writing for namespace, writing in slow.items() if not writing.done()}
                key = self._queue.next(but=slow)
                due = everything or self._clock() >= self._flushed_at + self._repeat_every
                if key is None and self._repeated and due:
                    self._flushed_at = self._clock()
                    repeats |= self._due(everything=everything)
                if key is not None:
                    write = self._write_new(key)
                elif (key := next((key for key in repeats if key[1] not in slow), None)) is not None:
                    del repeats[key]
                    write = self._write_repeats(key)
                elif slow:
                    await asyncio.wait(slow.values(), timeout=_PATIENCE_S)
                    continue
                else:
                    return
                writing = group.create_task(write)
                await asyncio.wait({writing}, timeout=_PATIENCE_S)
                if not writing.done():
                    slow[key[1]] = writing

    async def _write_new(self, key: _Key) -> None:
        news = self._queue.take(key)
        if news is None:
            return
        self._written[key] = news  # from here on the same news is a repeat
        if len(self._written) > _REMEMBERED:
            gone, _ = self._written.popitem(last=False)
            self._repeated.pop(gone, None)
        if not await self._write(self._create, news):
            self._written.pop(key, None)

    def _due(self, *, everything: bool) -> dict[_Key, None]:
        """Repeats whose pause is over; they are noted no more."""
        now = self._clock()
        due = [
            key
            for key in self._repeated
            if everything or (old := self._written.get(key)) is None or old.again_at <= now
        ]
        for key in due:
            del self._repeated[key]
        return dict.fromkeys(due)

    async def _write_repeats(self, key: _Key) -> None:
        old = self._written.get(key)
        if old is None:
            return
        old.count += old.unwritten
        old.unwritten = 0
        old.pause = min(max(self._repeat_every, 2 * old.pause), _RARELY_S)
        old.again_at = self._clock() + old.pause
        if not await self._write(self._raise_count, old):
            self._written.pop(key, None)

    async def _write(self, write: Callable[[_News], Awaitable[None]], news: _News) -> bool:
        await self._pace()
        try:
            await write(news)
        except Fenced:
            self.dropped["fenced"] += 1
            return False
        except ApiError as error:
            self.dropped["refused"] += 1
            _log.debug("event not written", error=str(error))
            if isinstance(error, Terminating):
                self._forget(news.regarding.get("namespace", ""))
            else:
                self._failed(error)
            return False
        return True

    def _forget(self, namespace: str) -> None:
        """Where no Event can be made any more: the news of others does not wait until each of these is refused."""
        self.dropped["refused"] += self._queue.forget(namespace)

    async def _create(self, news: _News) -> None:
        namespace = news.regarding.get("namespace") or "default"
        about = news.regarding.get("name", "unknown")[:200].rstrip(".-")  # a name has none of these before a dot
        news.name = f"{about}.{uuid4().hex[:16]}"
        await self._client.create(
            EVENTS.path(namespace),
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": news.name, "namespace": namespace, "annotations": news.annotations},
                "involvedObject": news.regarding,
                "type": news.type,
                "reason": news.reason,
                "message": news.note,
                "action": news.reason,
                "source": {"component": self._source},
                "reportingComponent": self._source,
                "reportingInstance": self._source,
                "firstTimestamp": news.first,
                "lastTimestamp": news.last,
                "count": news.count,
            },
            timeout=5.0,
        )

    async def _raise_count(self, news: _News) -> None:
        namespace = news.regarding.get("namespace") or "default"
        try:
            await self._client.merge_patch(
                EVENTS.path(namespace, news.name), {"count": news.count, "lastTimestamp": news.last}, timeout=5.0
            )
        except NotFound:  # Events live for an hour
            news.count, news.first = 1, news.last
            await self._create(news)

    def _allowed(self, who: tuple[str, str, str, str]) -> bool:
        """One object that makes news all the time must not drown the others."""
        now = self._clock()
        tokens, at = self._allowance.pop(who, (float(self._object_burst), now))
        tokens = min(float(self._object_burst), tokens + (now - at) / self._object_refill)
        allowed = tokens >= 1.0
        self._allowance[who] = (tokens - 1.0 if allowed else tokens, now)
        if len(self._allowance) > _REMEMBERED:
            self._allowance.popitem(last=False)
        return allowed

    async def _pace(self) -> None:
        while True:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._qps)
            self._filled_at = now
            if self._tokens >= 1.0:
                self._tokens -= 1.0
                return
            await self._sleep(max(0.001, (1.0 - self._tokens) / self._qps))
