"""Who somebody is, and what they may do: asked of the API server's authenticator and authorizer, never decided here.

Answers are kept for a short while, in tables of bounded size; a token is kept as its hash. A right that is taken away
counts for `keep` seconds more.

Reviews do not pass the client's flow gate: writes that wait for our webhook hold places there, and whoever finds the
web port could fill the rest. They take turns here instead, a few at a time, one address that asks after the other, and
who would wait too long is refused: where too many wait, of the address of which most do.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from admission.kube.client import Unavailable
from admission.kube.lanes import Lanes

Json = dict[str, Any]
T = TypeVar("T")

MOST_ANSWERS, MOST_TOKENS = 1 << 16, 1024
"""Answers are for each user and namespace: 200 people in 300 namespaces. Each is kept by a hash of what was asked."""
LONGEST_TOKEN = 16 * 1024
NO_TOKEN_S = 5.0
"""A token that was refused is not asked about again for so long."""
TOKENS_AT_ONCE, RIGHTS_AT_ONCE = 4, 8
"""Reviews under way. The client's pool has room for those of two tables beside what its gate lets through."""
TOKENS_WAITING, RIGHTS_WAITING = 128, 1024
"""Reviews that wait for a turn: anybody can show a token, while rights are asked of callers who are known."""
PATIENCE_S = 5.0
"""So long a review waits for its turn, and so long for its answer."""


class Busy(Unavailable):
    """Too many reviews wait; nothing was asked."""

    def __init__(self) -> None:
        text = "too many callers wait to be looked up; try again in a moment"
        super().__init__(0, "TooManyReviews", text, ambiguous=False)


class Asks(Protocol):
    """What is needed of the API client."""

    def create(self, path: str, obj: Json, /) -> Awaitable[Json]: ...


class Unfenced:
    """Reviews change nothing that the leader owns: every replica may ask, beside the flow of its writes."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def create(self, path: str, obj: Json, /) -> Json:
        answer: Json = await self._client.create(path, obj, fenced=False, urgent="reviews", timeout=PATIENCE_S)
        return answer


class _Turns:
    """`at_once` reviews at a time; Busy for the last of whoever has most where `most` wait already, or one waits too
    long."""

    def __init__(self, at_once: int, most: int) -> None:
        self._free = at_once
        self._most = most
        self._waiting = Lanes[asyncio.Future[None]]()
        """Nobody does while there is a free place."""

    @asynccontextmanager
    async def turn(self, source: str) -> AsyncGenerator[None, None]:
        if len(self._waiting) >= self._most:
            if (last := self._waiting.pop_last(source)) is None:
                raise Busy
            last.set_exception(Busy())
        if self._free:
            self._free -= 1
        else:
            await self._wait(source)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, source: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(source, place)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.shield(place)
        except (TimeoutError, asyncio.CancelledError) as error:
            if not place.done():
                self._waiting.remove(source, place)
            elif place.exception() is None:  # it was given a place all the same
                self._give_back()
            if isinstance(error, TimeoutError):
                raise Busy from None
            raise

    def _give_back(self) -> None:
        if (found := self._waiting.pop(lambda _: True)) is None:
            self._free += 1
        else:
            found[1].set_result(None)


class Access:
    """What the API server says of callers, kept for `keep` seconds. Users have the shape of a TokenReview's
    `status.user`: username, uid, groups, extra. source: the address from which it is asked. All methods raise what the
    client raises."""

    def __init__(self, client: Asks, *, keep: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._keep = keep
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, bool]] = OrderedDict()
        self._users: OrderedDict[bytes, tuple[float, Json | None]] = OrderedDict()
        self._nobody: OrderedDict[bytes, tuple[float, Json | None]] = OrderedDict()
        """Tokens that were refused: apart, or junk would push out those that count."""
        self._tokens = _Turns(TOKENS_AT_ONCE, TOKENS_WAITING)
        self._rights = _Turns(RIGHTS_AT_ONCE, RIGHTS_WAITING)

    async def user_of(self, token: str, *, source: str = "") -> Json | None:
        """Whose bearer token this is; None when the API server knows nobody by it."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        try:
            key = hashlib.sha256(token.encode()).digest()
        except UnicodeEncodeError:  # bytes of a header that are no text: no token could be asked about so
            return None

        def said() -> tuple[float, Json | None] | None:
            return self._fresh(self._users, key) or self._fresh(self._nobody, key)

        if (known := said()) is not None:
            return known[1]
        async with self._tokens.turn(source):
            if (known := said()) is not None:  # somebody before us in line asked the same
                return known[1]
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
            answer = await self._client.create("/apis/authentication.k8s.io/v1/tokenreviews", body)
            status = answer.get("status") or {}
            user = status.get("user")
            if status.get("authenticated") is True and isinstance(user, dict) and user.get("username"):
                self._note(self._users, key, (self._clock() + self._keep, user), MOST_TOKENS)
                return user
            self._note(self._nobody, key, (self._clock() + NO_TOKEN_S, None), MOST_TOKENS)
            return None

    async def allowed(
        self,
        user: Mapping[str, Any],
        group: str,
        resource: str,
        verb: str,
        subresource: str = "",
        *,
        namespace: str = "",
        name: str = "",
        source: str = "",
    ) -> bool:
        """May this user do so; without a namespace: in all of them."""
        who = {
            "user": str(user.get("username") or ""),
            "groups": list(user.get("groups") or ()),
            "uid": str(user.get("uid") or ""),
            "extra": dict(user.get("extra") or {}),
        }
        what = {"group": group, "resource": resource, "verb": verb, "subresource": subresource}
        what |= {key: value for key, value in (("namespace", namespace), ("name", name)) if value}
        asked = hashlib.sha256(msgspec.json.encode((who, what), order="sorted")).digest()
        if (known := self._fresh(self._known, asked)) is not None:
            return known[1]
        async with self._rights.turn(source):
            if (known := self._fresh(self._known, asked)) is not None:  # somebody before us in line asked the same
                return known[1]
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {**who, "resourceAttributes": what},
            }
            answer = await self._client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
            allowed = (answer.get("status") or {}).get("allowed") is True
            self._note(self._known, asked, (self._clock() + self._keep, allowed), MOST_ANSWERS)
            return allowed

    def _fresh(self, table: OrderedDict[bytes, tuple[float, T]], key: bytes) -> tuple[float, T] | None:
        known = table.get(key)
        return known if known is not None and self._clock() < known[0] else None

    @staticmethod
    def _note(table: OrderedDict[bytes, tuple[float, T]], key: bytes, found: tuple[float, T], most: int) -> None:
        table[key] = found
        table.move_to_end(key)
        while len(table) > most:
            table.popitem(last=False)
