"""A live copy of one kind: list, then watch, and say what changed.

The state of the copy is (store, resource version). A list from the store of record, page by page, brings the copy to
one revision; the watch carries it on from there. What ends a watch decides how it goes on:

    the server's own timeout, a cut line, silence                      watch again from the last version seen
    a lost connection, no answer                                       the same, if the store is not behind that
    410 (also as an event), or five refusals in a row                  list again

A list is laid over the copy by uid: what is missing from it is deleted, a name with another uid is a deletion and a new
object, and nothing is ever announced twice. So handlers see each object as: absent, then a rising sequence of versions,
then absent; they never see a version go back. A server that answers with an older revision than was already seen (a
lagging replica) is not believed, until it insists: then the cluster was restored from a backup. A watch from a version
that is still to come is accepted there, and silent until it has come; and copies of several kinds cannot go back at one
moment, so that something would be done by one from before and one from after. So `StoreWentBack` ends the informer, and
whoever owns it begins anew. Whoever restores may have the store count on from far above (etcdutl snapshot restore
--bump-revision): then lists are newer than the copy, and objects in them older than they were seen by then, which no
lagging replica says.

Handlers are synchronous and must be short. What cannot be decoded is reported, keeps its last good form in the copy,
and leaves it when it is deleted. A handler that raises ends the informer: the shell's books would no longer be true.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from admission.kube.client import ApiError, Client, Forbidden, Gone, Kind, NotFound, Unavailable, error_of, unanswered
from admission.kube.flow import Backoff, Told, between, in_turns

_log = structlog.get_logger(__name__)

Key = tuple[str, str]
"""(namespace, name); the namespace of what has none is ""."""


class Watched(Protocol):
    """What the copy must know of an object."""

    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Watched)


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    namespace: str = ""
    name: str = ""


class _Bare(msgspec.Struct):
    """Any object, for its metadata: what is left to read when its kind's own decoder refuses."""

    metadata: _Meta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_bare = msgspec.json.Decoder(_Bare).decode
_decode_status = msgspec.json.Decoder(_Status).decode


class StoreWentBack(Exception):  # noqa: N818 - a turn of events
    """The server's store is behind what was read from it: it was put back to an earlier moment."""


_PATIENCE = 5  # how often in a row something unlikely is put down to chance
_LOOK_S = 0.05
_LAID_AT_ONCE = 25  # objects of the first list, before all else has a turn: a few ms
_AWAY = 5.0  # seconds at most between two tries where nobody answers: so much later than the server the copy is back


class Informer(Generic[T]):
    """Keeps `store` equal to what the API server has of `kind`, and calls `on_change(old, new)` for each difference.

    decode: raw JSON of one object -> T; it may raise. on_change: (None, new) added, (old, new) changed, (old, None)
    gone. on_bad: called with the key and the error of what could not be decoded. optional: a kind that is not served
    (its CRD is not installed) counts as empty, and is looked for again every `absent_retry` seconds. withheld: so does
    one that may not be listed; what was seen of it stays in `store`, unless it `forgets`, also where it is not served
    any more: of several API servers one may be older. watch_seconds: range of a
    watch's own timeout. stall_seconds: reconnect after that much silence; servers send a bookmark each minute.
    backoff: (base, cap) of the pauses, seconds; shorter ones where nobody answers. clock, sleep: monotonic seconds, and
    waiting for some.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        decode: Callable[[msgspec.Raw], T],
        on_change: Callable[[T | None, T | None], None],
        *,
        on_bad: Callable[[Key, Exception], None] | None = None,
        optional: bool = False,
        withheld: bool = False,
        forgets: bool = False,
        page_size: int = 500,
        watch_seconds: tuple[float, float] = (300.0, 600.0),
        stall_seconds: float = 150.0,
        absent_retry: float = 30.0,
        backoff: tuple[float, float] = (0.5, 30.0),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.kind = kind
        self.store: dict[Key, T] = {}
        self.synced = asyncio.Event()
        self.resource_version = ""
        """Of the last line or list; "" before the first list."""
        self.relists = 0
        """Lists begun, the first among them."""
        self.absent = False
        """An optional kind that is not served, or may not be listed: nothing is known of it."""
        self.bad: set[Key] = set()
        """Keys whose latest form could not be decoded."""
        self._client = client
        self._path = kind.path()
        self._decode = decode
        self._on_change = on_change
        self._on_bad = on_bad
        self._optional = optional
        self._withheld = withheld
        self._forgets = forgets
        self._page_size = page_size
        self._watch_seconds = watch_seconds
        self._stall_seconds = stall_seconds
        self._absent_retry = absent_retry
        self._pauses = Backoff(*backoff)
        """After what the server refuses. An outage teaches it nothing."""
        self._away = Backoff(backoff[0], min(backoff[1], _AWAY))
        self._spread = backoff[0]
        self._refused = Told(clock=clock)
        self._clock = clock
        self._sleep = sleep
        self._heard_at = clock()
        self._failed_at: float | None = None  # the first failure since the server last gave what was asked
        self._lines = 0
        self._older = 0
        self._absent = 0
        self._asked = asyncio.Event()

    @property
    def age(self) -> float:
        """Seconds since the server was last heard of: how old the copy may be."""
        return self._clock() - self._heard_at

    @property
    def cut_off(self) -> float:
        """Seconds for which neither a list nor a watch has been had for the asking; 0 while one is."""
        return 0.0 if self._failed_at is None else self._clock() - self._failed_at

    def get(self, namespace: str, name: str) -> T | None:
        return self.store.get((namespace, name))

    def learn(self, obj: dict[str, Any] | bytes) -> None:
        """Lays the answer of a write of one's own (decoded or not) over the copy, so that the next look does not miss
        it.

        An answer that the watch has overtaken is left alone: the object may have been deleted since.
        """
        raw = msgspec.Raw(obj if isinstance(obj, bytes) else msgspec.json.encode(obj))
        meta = self._bare(raw)
        if _older(self.resource_version, meta.resource_version):
            self._lay(raw, meta)

    def relist(self) -> None:
        """Asks for a fresh list, soon. Changes found by it are announced as any others."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled. Raises StoreWentBack, MemoryError, and what a handler raised."""
        while True:
            try:
                await self._list()
            except ApiError as error:
                await self._sleep(self._after_failed_list(error))
                continue
            self.synced.set()
            follow = asyncio.ensure_future(self._follow())
            asked = asyncio.ensure_future(self._asked.wait())
            try:
                await asyncio.wait({follow, asked}, return_when=asyncio.FIRST_COMPLETED)
                if follow.done():
                    follow.result()
            finally:
                for task in (follow, asked):
                    task.cancel()
                await asyncio.gather(follow, asked, return_exceptions=True)

    async def catch_up(self, within: float) -> None:
        """Until the copy has all that the server's store has now. One that is followed, and was heard of `within`
        seconds, is believed to have it: a watch may hang, or just have been had again, and then what it missed is still
        on its way. For as long as the server does not answer."""
        if not self.cut_off and self.age <= within:
            return
        newest = ""
        while not newest:
            try:
                newest = await self._newest()
            except ApiError as error:
                await self._sleep(self._pause(error))
        if _older(self.resource_version, newest):
            self.relist()
        while _older(self.resource_version, newest):
            await self._sleep(_LOOK_S)

    async def differences(self) -> list[Key]:
        """Compares the copy with the server's list of exactly its version, by metadata alone; the keys that differ.

        Watches have lost events in production; one that is late has not, for then the version is late as well. A
        difference asks for a fresh list. Empty as well when the server does not have that revision any more, or not
        the kind. Raises ApiError.
        """
        version = self.resource_version
        if not version:
            return []
        left, bad = self.store.copy(), self.bad.copy()  # of one moment: both change while the pages come in
        pages = self._client.list_pages(
            self._path,
            limit=self._page_size,
            resource_version=version,
            bare=True,
        )
        wrong: list[Key] = []
        try:
            async with aclosing(pages):
                async for page in pages:
                    for raw in page.items:
                        meta = _decode_bare(raw).metadata
                        key = (meta.namespace, meta.name)
                        old = left.pop(key, None)
                        if key in bad or (old is not None and _older(version, old.resource_version)):
                            continue  # learned from a write: the watch is not there yet
                        if old is None or (old.uid, old.resource_version) != (meta.uid, meta.resource_version):
                            wrong.append(key)
        except Gone:
            return []
        wrong += [key for key, old in left.items() if not _older(version, old.resource_version)]
        if wrong:
            _log.error("the copy differs from the server", path=self._path, keys=wrong[:10], count=len(wrong))
            self.relist()
        return wrong

    # --- list --------------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        self.relists += 1
        self._asked.clear()
        try:
            await self._list_pages(self._page_size)
        except Gone:
            # The revision was compacted between two pages. In one page it cannot be.
            await self._list_pages(0)
        self._absent = 0
        self.absent = False
        self._answered()

    async def _list_pages(self, size: int) -> None:
        seen: set[Key] = set()
        version = ""
        # Later ones have little that is new, and nobody is to see who went beside who came in its place: pages of the
        # usual size are laid in one go, and the last of them with what is removed.
        at_once = self._page_size + 1 if self.synced.is_set() else _LAID_AT_ONCE
        pages = self._client.list_pages(self._path, limit=size)
        async with aclosing(pages):
            async for page in pages:
                self._heard_at = self._clock()
                if not version:
                    version = page.resource_version
                    self._judge(version)
                async for raw in in_turns(page.items, at_once):
                    meta = self._bare(raw)
                    self._judge_one(meta, version)
                    seen.add(self._lay(raw, meta)[0])
        for key, old in list(self.store.items()):
            # What was learned from a write after the list's revision is not in it, and not gone.
            if key not in seen and not _older(version, old.resource_version):
                self._remove(key)
        self.bad &= seen
        self.resource_version = version

    def _judge(self, version: str) -> None:
        """A list has this version. Raises Unavailable for one from the past that is not believed yet, and StoreWentBack
        for one that is."""
        if not _older(version, self.resource_version):
            self._older = 0
            return
        self._older += 1
        text = f"{self._path}: list of {version} after {self.resource_version}"
        if self._older < _PATIENCE:
            raise Unavailable(200, "Stale", text, ambiguous=False)
        raise StoreWentBack(text)

    def _judge_one(self, meta: _Meta, version: str) -> None:
        """Raises StoreWentBack for an object of a list that was seen newer, at a version which the list includes."""
        old = self.store.get((meta.namespace, meta.name))
        if old is None or not _older(meta.resource_version, old.resource_version):
            return
        if not _older(version, old.resource_version):
            what = f"{meta.namespace}/{meta.name}".removeprefix("/")
            had = f"{meta.resource_version} in the list of {version}, after {old.resource_version}"
            raise StoreWentBack(f"{self._path}: {what} is of {had}")

    async def _not_gone_back(self) -> None:
        """Raises as `_judge` where the server's store is behind the copy."""
        self._judge(await self._newest())

    async def _newest(self) -> str:
        """The version of the server's store."""
        version = ""
        pages = self._client.list_pages(self._path, limit=1, bare=True, attempts=1)
        async with aclosing(pages):
            async for page in pages:
                version = page.resource_version
                break
        return version

    def _after_failed_list(self, error: ApiError) -> float:
        """Seconds to wait before the next list."""
        withheld = self._is_withheld(error)
        if withheld or isinstance(error, NotFound):
            self._absent += 1
            if self._optional and (not self.store or self._absent >= 3):
                # Once may be a server that has not yet read its CRDs: a full copy is given up only for good reason.
                for key in [] if self._withheld and not self._forgets else list(self.store):
                    self._remove(key)
                self.resource_version = ""
                self._heard_at = self._clock()
                self._answered()
                self.absent = True
                self.synced.set()
                pause = between(self._absent_retry * 0.8, self._absent_retry * 1.2)
                if withheld:
                    self._say("may not be listed, and is gone without", error, pause)
                return pause
        self._failed()
        pause = self._pause(error)
        self._say("list failed", error, pause)
        return pause

    def _is_withheld(self, error: ApiError) -> bool:
        return self._withheld and isinstance(error, Forbidden)

    def _failed(self) -> None:
        if self._failed_at is None:
            self._failed_at = self._clock()

    def _answered(self) -> None:
        self._failed_at = None

    def _pause(self, error: ApiError) -> float:
        """Seconds until the next try: soon where nobody answers, when the server says so if it does, and else later
        each time."""
        if not error.status:
            return self._away.next()
        self._away.reset()
        if error.retry_after is None:
            return self._pauses.next()
        return error.retry_after + between(0.0, error.retry_after / 4 + self._spread)

    def _say(self, what: str, error: ApiError, pause: float) -> None:
        """A server that is away is told once, by the client, for all that is watched of it; what it refuses here, now
        and then."""
        told = not unanswered(error) and self._refused.due()
        (_log.warning if told else _log.debug)(what, path=self._path, error=str(error), retry_in=round(pause, 2))

    # --- watch -------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Watches until a new list is needed."""
        refused = 0
        doubt = False
        while True:
            lines, began = self._lines, self._clock()
            pause = 0.0
            try:
                if doubt:
                    await self._not_gone_back()
                    doubt = False
                await self._watch()
                if self._lines == lines and self._clock() < began + 1.0:
                    pause = self._pauses.next()  # a server that hangs up at once is not pressed
            except ApiError as error:
                pause = self._pause(error)
                if isinstance(error, Gone):
                    _log.debug("watch too old, listing again", path=self._path)
                else:
                    self._failed()
                    self._say("watch broke", error, pause)
                if self._lines > lines:
                    refused = 0
                doubt = doubt or not error.status
                # No answer, and an overloaded server, say nothing about our version; other answers in a row do.
                if error.status not in {0, 429, 503}:
                    refused += 1
                if isinstance(error, Gone | NotFound) or self._is_withheld(error) or refused >= _PATIENCE:
                    await self._sleep(pause)
                    return
            if pause:
                await self._sleep(pause)

    async def _watch(self) -> None:
        """One watch, until the server ends it in good order."""
        seconds = between(*self._watch_seconds)
        lines = self._client.watch_lines(
            self._path,
            resource_version=self.resource_version,
            timeout_seconds=max(1, round(seconds)),
            idle_timeout=min(self._stall_seconds, seconds + 30.0),
            opened=self._answered,
        )
        async with aclosing(lines):
            async for line in lines:
                self._heard_at = self._clock()
                version = self._take(line)
                self._lines += 1
                self._pauses.reset()
                self._away.reset()
                self._refused.over()
                if version and not _older(version, self.resource_version):
                    self.resource_version = version

    def _take(self, line: bytes) -> str:
        """Applies one line of a watch and returns the version it brings the copy to."""
        try:
            event = _decode_event(line)
        except msgspec.DecodeError as error:
            raise Unavailable(200, "NotAnEvent", f"{self._path}: {error}", ambiguous=False) from error
        match event.type:
            case "ADDED" | "MODIFIED":
                return self._lay(event.object)[1]
            case "DELETED":
                return self._drop(event.object)
            case "BOOKMARK":
                return self._bare(event.object).resource_version
            case "ERROR":
                raise error_of(_code(event.object), event.object)
            case other:
                _log.warning("unknown event", path=self._path, type=other)
                return ""

    # --- the copy ----------------------------------------------------------------------------------------------------

    def _lay(self, raw: msgspec.Raw, meta: _Meta | None = None) -> tuple[Key, str]:
        """Lays one object over the copy, unless the copy is newer; its key and version. meta: of it, where known."""
        meta = meta or self._bare(raw)
        key = (meta.namespace, meta.name)
        old = self.store.get(key)
        if old is not None:
            # Decoding costs the most, and what one wrote oneself comes twice.
            if old.uid == meta.uid and old.resource_version == meta.resource_version:
                return key, meta.resource_version
            if _older(meta.resource_version, old.resource_version):
                return key, meta.resource_version
        try:
            new = self._decode(raw)
        except MemoryError:  # not the object's fault, and what it holds must not be taken for free
            raise
        except Exception as error:  # the decoder is the caller's, and one bad object must not hide the others
            return self._bad(raw, error)
        self.bad.discard(key)
        if old is not None and old.uid != new.uid:
            self._remove(key)
            old = None
        self.store[key] = new
        self._on_change(old, new)
        return key, new.resource_version

    def _drop(self, raw: msgspec.Raw) -> str:
        meta = self._bare(raw)
        key = (meta.namespace, meta.name)
        old = self.store.get(key)
        # A deletion newer than the copy ends it, whatever its uid: nothing else can have had the name in between.
        if old is not None and not _older(meta.resource_version, old.resource_version):
            self._remove(key)
        self.bad.discard(key)
        return meta.resource_version

    def _remove(self, key: Key) -> None:
        old = self.store.pop(key)
        self._on_change(old, None)

    def _bad(self, raw: msgspec.Raw, error: Exception) -> tuple[Key, str]:
        meta = self._bare(raw)
        key = (meta.namespace, meta.name)
        old = self.store.get(key)
        if old is not None and old.uid != meta.uid and not _older(meta.resource_version, old.resource_version):
            self._remove(key)
        self.bad.add(key)
        if self._on_bad is not None:
            self._on_bad(key, error)
        else:
            _log.error("object not understood", path=self._path, key=key, error=str(error))
        return key, meta.resource_version

    def _bare(self, raw: msgspec.Raw) -> _Meta:
        try:
            return _decode_bare(raw).metadata
        except msgspec.DecodeError as error:  # an object without metadata: no API server sends that
            raise Unavailable(200, "NotAnObject", f"{self._path}: {error}", ambiguous=False) from error


def _code(raw: msgspec.Raw) -> int:
    """The status code that an ERROR event stands for; 500 when it does not say."""
    try:
        return _decode_status(raw).code or 500
    except msgspec.DecodeError:
        return 500


def _older(one: str, other: str) -> bool:
    """Whether version `one` precedes `other`. Versions that are no numbers have no order: then it is not older."""
    return one.isdecimal() and other.isdecimal() and int(one) < int(other)
