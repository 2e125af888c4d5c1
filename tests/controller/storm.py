"""A cluster in one process and in virtual time: sandbox, webhook and replicas of the controller, whose requests and
watches pass through a weather of errors, lost answers, late writes and lags of each kind's own. A seed says it all:
`in_virtual_time` takes from the controller what it would draw, and every clock but the loop's."""

from __future__ import annotations

import asyncio
import base64
import random  # noqa: TID251  # seeded, and not of the engine
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from msgspec.structs import replace

from admission.api.crd import crd as definition
from admission.api.kinds import KINDS
from admission.controller import app, stale
from admission.controller.actuate import Options
from admission.controller.app import Controller, Tuning
from admission.controller.lifecycle import Settings, next_step
from admission.controller.webhook import Webhook, configurations
from admission.engine.model import KUEUE, MUSTER
from admission.kube import flow
from admission.kube.client import Client, Fenced, Unavailable, error_of
from admission.kube.credentials import Credentials
from admission.names import Names
from admission.sandbox.actors import Cluster
from admission.sandbox.http import Sandbox, _review_of, _seen
from admission.sandbox.play import _validators
from admission.sandbox.store import Request, Stored, User
from e2e.event_log import Entry
from tests.controller import lab
from tests.controller.lab import T0, Json
from tests.kube.virtual import Loop

T = TypeVar("T")

RECORDED = {"Job", "JobSet", "Pod", "Node", "Workload", "ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor"}
WRITE_S = 10.0


class Access:
    """What the sandbox's authorizer says."""

    async def allowed(
        self, user: Json, group: str, resource: str, verb: str, subresource: str = "", *, source: str
    ) -> bool:
        return verb != "admit" or "system:masters" in user.get("groups", ())


class Town(Sandbox):
    """Its webhooks are called without a socket."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        users = {"alice": User("alice", ("system:authenticated",))}
        super().__init__(
            clock=lambda: T0 + int(self.loop.time() * 1000), seed="storm", users=users, validators=_validators()
        )
        self._like = make_mocked_request("GET", "/")
        self.webhook = Webhook(Access(), lab.NAMES)  # type: ignore[arg-type]
        self.entries: list[Entry] = []
        self.news: dict[asyncio.Event, None] = {}  # in an order of their own
        self.cuts = 0
        """How often all watches were broken off ..."""
        self.away_until = 0.0
        """... and until when nobody may watch; then what came before `forgotten` cannot be watched from."""
        self._away_since = 0.0
        self.longest_away = 0.0
        """For so long nobody could notice anything."""
        self.forgotten = 0
        self.two_lead = False
        self.rivalries: list[tuple[float, float]] = []
        """From when until when two led."""
        self.store.listeners.append(self._heard)
        crd = self.store.kind("apiextensions.k8s.io", "customresourcedefinitions")
        for body in (definition(kind, lab.NAMES) for kind in KINDS):
            self.store.do(Request("create", crd, body=body), self.clock())  # type: ignore[arg-type]
        for body in configurations(lab.NAMES, ca_bundle=b"", url="http://webhook"):
            kind = self.store.kind_of(body["apiVersion"], body["kind"])
            self.store.do(Request("create", kind, body=body), self.clock())  # type: ignore[arg-type]
        self.cluster = Cluster(self.store)
        self.driver = asyncio.ensure_future(self._drive(self.cluster))

    def cut(self, seconds: float) -> None:
        """Break off all watches for so long; what happened meanwhile, watches are not told."""
        self.cuts += 1
        now = self.loop.time()
        if now >= self.away_until:
            self._away_since = now
        self.away_until = now + seconds
        self.longest_away = max(self.longest_away, self.away_until - self._away_since)
        self.loop.call_at(self.away_until, self._forget)
        for one in self.news:
            one.set()

    def _forget(self) -> None:
        self.forgotten = self.store.revision

    async def end(self) -> None:
        """Raises what its actors ended with, if they did."""
        await _end(self.driver)

    def _heard(self, kind: Any, event: Any) -> None:
        if kind.kind in RECORDED:
            at = self.loop.time()
            self.entries.append(Entry(event.revision, kind.kind, event.type, event.new.obj, at))
        for one in self.news:
            one.set()

    async def _call(self, hook: Json, change: Any) -> Json:
        path = hook["clientConfig"]["url"].removeprefix("http://webhook/")
        review = {"mutate-jobs": "_mutate_job", "validate-jobs": "_validate_job"}.get(path)
        review = (
            review
            or {
                "mutate-pods": "_mutate_pod",
                "validate-pods": "_validate_pod",
                "validate-evictions": "_validate_eviction",
            }[path]
        )
        answer = await getattr(self.webhook, review)(_review_of(change)["request"], "")
        if isinstance(answer, str):
            return {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": answer}}
        return {"allowed": True, "patch": base64.b64encode(msgspec.json.encode(answer)).decode() if answer else ""}

    async def take(self, method: str, path: str, headers: Json, body: bytes | None) -> tuple[int, bytes]:
        request = self._like.clone(method=method, rel_url=path, headers=headers)
        request._read_bytes = body or b""
        answer = await self._serve(request)
        return answer.status, bytes(answer.body or b"")  # type: ignore[attr-defined]


class Weather:
    """How requests and watches of one replica fare."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.bad = 0.0
        self.lag: dict[str, float] = {}
        self.ahead_ms = 0
        """Of the clock by which it decides."""
        self.frozen_until = 0.0
        """Until then nothing reaches it, and nothing of it reaches anybody."""
        self.hangs: Callable[[str, str], bool] = lambda method, path: False
        """Is such a request kept waiting, as by a webhook that never answers, until the client gives it up."""

    def request(self) -> tuple[float, float, str]:
        """Seconds until it is applied, until it is answered, and what becomes of it."""
        there, back = self.chance.random() * 0.02, self.chance.random() * 0.02
        if self.chance.random() >= self.bad:
            return there, back, ""
        fate = self.chance.choice(["409", "429", "500", "503", "lost", "unanswered", "late", "slow"])
        if fate in ("slow", "late"):
            there = self.chance.random() * 9
        return there, back, fate

    def delay(self, kind: str) -> float:
        return self.chance.random() * self.lag.get(kind, 0.0) + self.chance.random() * 0.01


class Wire(Client):
    """A client whose connections are calls."""

    def __init__(self, town: Town, weather: Weather, token: str = "admin-token") -> None:
        super().__init__(Credentials("http://town", authorization=f"Bearer {token}"), write_timeout=WRITE_S)
        self.town, self.weather = town, weather
        self._unary = self._streams = None

    async def _once(self, call: Any, url: Any, headers: Any, idle: float | None) -> bytes:
        loop, doubtful = self.town.loop, False
        method, path, deadline, write = call.method, call.path, call.deadline, call.write
        try:
            if call.fence is not None:
                call.fence()
                doubtful = True
            await asyncio.sleep(max(0.0, self.weather.frozen_until - loop.time()))
            if self.weather.hangs(method, path):
                await asyncio.sleep(deadline - loop.time())
                raise Unavailable(0, "NoAnswer", f"{method} {path}: not in time", ambiguous=write)
            there, back, fate = self.weather.request()
            if fate in ("429", "500", "503"):
                await asyncio.sleep(there)
                doubtful = False
                raise error_of(int(fate), b"{}", "1" if fate == "429" else None)
            if fate == "409" and write and method != "POST":
                doubtful = False
                raise error_of(409, b'{"reason":"Conflict","message":"the object has been modified"}')
            if fate == "lost":
                raise Unavailable(0, "NoAnswer", f"{method} {path}: lost", ambiguous=write)

            async def serve() -> tuple[int, bytes]:
                await asyncio.sleep(there)
                if loop.time() > deadline:
                    return 504, b"{}"
                return await self.town.take(method, url.raw_path_qs, headers, call.data)

            served = asyncio.ensure_future(serve())
            served.add_done_callback(lambda task: task.cancelled() or task.exception())
            if fate == "late":
                raise Unavailable(0, "NoAnswer", f"{method} {path}: broken, and late", ambiguous=write)
            status, content = await asyncio.shield(served)
            if fate == "unanswered":
                raise Unavailable(0, "NoAnswer", f"{method} {path}: applied ({status})", ambiguous=write)
            await asyncio.sleep(back)
            doubtful = doubtful and status >= 500
            self.counts[call.verb, path, "", status] += 1
            if 200 <= status < 300:
                return content
            raise error_of(status, content)
        finally:
            if doubtful:
                self._doubtful_until = max(self._doubtful_until, deadline)
            if not call.urgent:
                self.flow.leave(call.lane)

    async def watch_lines(
        self,
        path: str,
        *,
        resource_version: str,
        opened: Callable[[], None],
        timeout_seconds: int = 300,
        **_: Any,
    ) -> AsyncGenerator[bytes, None]:
        parts = path.strip("/").split("/")
        kind = self.town.store.kind(parts[1] if parts[0] == "apis" else "", parts[-1])
        if kind is None:
            raise error_of(404, b"{}")
        position, until = int(resource_version), self.town.loop.time() + timeout_seconds
        if self.town.loop.time() < self.town.away_until:
            raise error_of(503, b"{}")
        if position < self.town.forgotten:
            raise error_of(410, b'{"reason":"Expired","message":"too old resource version"}')
        opened()
        news, cuts = asyncio.Event(), self.town.cuts
        self.town.news[news] = None
        try:
            while (now := self.town.loop.time()) < until:
                news.clear()
                if self.town.cuts > cuts:
                    raise Unavailable(0, "StreamBroken", path, ambiguous=False)
                seen = self.town.store.revision
                if self.town.store.since(kind, position):
                    frozen = max(0.0, self.weather.frozen_until - self.town.loop.time())
                    await asyncio.sleep(frozen + self.weather.delay(kind.kind))
                    if self.weather.chance.random() < self.weather.bad / 10:
                        raise Unavailable(0, "StreamBroken", path, ambiguous=False)
                    for event in self.town.store.since(kind, position):
                        if event.revision > seen:
                            break
                        position = event.revision
                        for name, stored in _seen(event, lambda _obj: True):
                            yield b'{"type":"' + name.encode() + b'","object":' + stored.raw + b"}"
                    continue
                try:
                    async with asyncio.timeout(min(60.0, until - now)):
                        await news.wait()
                except TimeoutError:
                    if not self.town.store.since(kind, position):
                        position = max(position, self.town.store.revision)
                        meta = {"resourceVersion": str(position)}
                        yield _line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta})
        finally:
            self.town.news.pop(news, None)


def _line(what: str, obj: Json) -> bytes:
    return b'{"type":"' + what.encode() + b'","object":' + Stored(obj, 0).raw + b"}"


class Replica:
    def __init__(
        self, town: Town, weather: Weather, *, workloads_only: bool = False, manners: Json | None = None
    ) -> None:
        """manners: what of its settings, rules and options is not as usual."""
        said = manners or {}
        self.client = Wire(town, weather)
        self.client.fence = self._fence
        self.may_write = False
        self.since = town.loop.time()
        self.controller = Controller(
            self.client,
            names=lab.NAMES,
            rules=replace(KUEUE if lab.NAMES.as_kueue else MUSTER, **said.get("rules", {})),
            settings=Settings(as_kueue=lab.NAMES.as_kueue, **said.get("settings", {})),
            options=Options(can_rank=not workloads_only and said.get("can_rank", True)),
            workloads_only=workloads_only,
            tuning=Tuning(),
            now=lambda: town.clock() + weather.ahead_ms,
        )
        informers = self.controller.informers.values()
        for one in (self.controller.events, self.controller.statuses, *informers):
            one._clock = town.loop.time  # type: ignore[attr-defined]
        for informer in informers:
            informer._heard_at = town.loop.time()
        self.controller.events._filled_at = self.controller.events._flushed_at = town.loop.time()
        self.watching = asyncio.ensure_future(self.controller.watch())
        self.leading: asyncio.Task[None] | None = None

    def _fence(self) -> None:
        if not self.may_write:
            raise Fenced("not the leader")

    def lead(self) -> None:
        self.may_write = True
        self.leading = asyncio.ensure_future(self.controller.lead())

    async def resign(self) -> None:
        """As the elector does it."""
        await _end(self.leading)
        self.leading = None
        left = await self.client.settle(2.0)
        self.may_write = False
        await asyncio.sleep(left)

    async def lose(self) -> None:
        """As the elector does it that finds the lease with another."""
        self.may_write = False
        leading, self.leading = self.leading, None
        if leading is not None and leading.done() and isinstance(leading.exception(), Fenced):
            return
        await _end(leading)

    async def die(self) -> None:
        self.may_write = False
        await _end(self.leading)
        await _end(self.watching)
        await asyncio.sleep(WRITE_S + 15)

    async def end(self) -> None:
        await _end(self.leading)
        await _end(self.watching)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        if task.done() and not task.cancelled() and task.exception():
            raise task.exception()  # type: ignore[misc]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def due(controller: Controller, now: int) -> list[str]:
    """Steps that are due for jobs and were not taken."""
    found = []
    for key in controller.world.jobs:
        step = next_step(controller.world.sight(key, now), controller.settings, now).step
        if step is not None:
            found.append(f"{key}: {step}")
    return found


def in_virtual_time(monkeypatch: pytest.MonkeyPatch, loop: Loop, seed: int) -> None:
    clock = SimpleNamespace(monotonic=loop.time, perf_counter=time.perf_counter)
    monkeypatch.setattr(app, "time", clock)
    monkeypatch.setattr(stale, "time", clock)
    monkeypatch.setattr(flow, "_chance", random.Random(f"pauses of {seed}"))


def played(monkeypatch: pytest.MonkeyPatch, seed: int, story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What comes of a story that is played in virtual time; nothing of it is left running."""
    loop = Loop()
    in_virtual_time(monkeypatch, loop, seed)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(story())
    finally:
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=60))
        loop.close()


def in_group(monkeypatch: pytest.MonkeyPatch, names: Names, *modules: ModuleType) -> None:
    """Have the modules of a storm, which name what everybody writes, do so in this API group."""
    told = {"NAMES": names, "API": names.api_version, "OURS": f"/apis/{names.api_version}"}
    for module in (lab, *modules):
        for name in told.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, told[name])
