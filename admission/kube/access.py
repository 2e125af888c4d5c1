"""Who somebody is, and what they may do: asked of the API server's authenticator and authorizer, never decided here.

Answers are kept for a short while, in tables of bounded size; a token is kept as its hash. A right that is taken away
counts for `keep` seconds more.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

Json = dict[str, Any]

MOST_ANSWERS, MOST_TOKENS = 4096, 1024
LONGEST_TOKEN = 16 * 1024
NO_TOKEN_S = 5.0
"""A token that was refused is not asked about again for so long."""


class Asks(Protocol):
    """What is needed of the API client."""

    def create(self, path: str, obj: Json, /) -> Awaitable[Json]: ...


class Unfenced:
    """Reviews change nothing that the leader owns: every replica may ask."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def create(self, path: str, obj: Json, /) -> Json:
        answer: Json = await self._client.create(path, obj, fenced=False)
        return answer


class Access:
    """What the API server says of callers, kept for `keep` seconds. Users have the shape of a TokenReview's
    `status.user`: username, uid, groups, extra. All methods raise what the client raises."""

    def __init__(self, client: Asks, *, keep: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._keep = keep
        self._clock = clock
        self._known: OrderedDict[Any, tuple[float, bool]] = OrderedDict()
        self._users: OrderedDict[bytes, tuple[float, Json | None]] = OrderedDict()

    async def user_of(self, token: str) -> Json | None:
        """Whose bearer token this is; None when the API server knows nobody by it."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        key = hashlib.sha256(token.encode()).digest()
        known = self._users.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        answer = await self._client.create("/apis/authentication.k8s.io/v1/tokenreviews", body)
        status = answer.get("status") or {}
        user: Json | None = None
        if status.get("authenticated") is True and isinstance(status.get("user"), dict):
            user = status["user"] if status["user"].get("username") else None
        self._users[key] = (self._clock() + (self._keep if user is not None else NO_TOKEN_S), user)
        self._users.move_to_end(key)
        while len(self._users) > MOST_TOKENS:
            self._users.popitem(last=False)
        return user

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
        asked = msgspec.json.encode((who, what), order="sorted")
        known = self._known.get(asked)
        if known is not None and self._clock() < known[0]:
            return known[1]
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**who, "resourceAttributes": what},
        }
        answer = await self._client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        allowed = (answer.get("status") or {}).get("allowed") is True
        self._known[asked] = (self._clock() + self._keep, allowed)
        self._known.move_to_end(asked)
        while len(self._known) > MOST_ANSWERS:
            self._known.popitem(last=False)
        return allowed
