"""Reviews beside the client's flow: a few at a time, no line without end, and no question asked twice over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from admission.kube import access
from admission.kube.access import Access, Busy, Unfenced
from admission.kube.client import Client, Fenced, Unavailable
from admission.kube.flow import Flow
from tests.kube.server import Server, answer

Settle = Callable[[Callable[[], bool]], Awaitable[None]]
ANN = {"username": "ann"}


class Reviewer:
    """Knows the tokens "ann" and "bob"; gives everybody every right, when it is let."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.under_way = 0
        self.most = 0
        self.gate = asyncio.Event()

    async def create(self, path: str, obj: dict[str, Any], /) -> dict[str, Any]:
        spec = obj["spec"]
        self.asked[spec.get("token") or spec["resourceAttributes"]["resource"]] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        if "token" in spec:
            known = spec["token"] in {"ann", "bob"}
            return {"status": {"authenticated": known, "user": {"username": spec["token"]}}}
        return {"status": {"allowed": True}}


def _token(found: Access, n: int) -> Awaitable[Any]:
    return found.user_of(f"junk-{n}")


def _right(found: Access, n: int) -> Awaitable[Any]:
    return found.allowed(ANN, "muster.dev", f"thing-{n}", "get")


@pytest.mark.parametrize(
    ("ask", "at_once", "waiting"),
    [
        (_token, access.TOKENS_AT_ONCE, access.TOKENS_WAITING),
        (_right, access.RIGHTS_AT_ONCE, access.RIGHTS_WAITING),
    ],
)
async def test_so_many_at_once_so_many_wait_and_the_next_is_refused(settle: Settle, ask, at_once, waiting):
    reviewer = Reviewer()
    found = Access(reviewer)
    calls = [asyncio.ensure_future(ask(found, n)) for n in range(at_once + waiting)]
    await settle(lambda: reviewer.under_way == at_once)
    with pytest.raises(Busy, match="too many callers wait"):
        await ask(found, -1)
    other = _right if ask is _token else _token
    reviewer.gate.set()
    await other(found, -1)  # has a line of its own
    await asyncio.gather(*calls)
    assert reviewer.most <= at_once + 1
    await ask(found, -1)
    assert sum(reviewer.asked.values()) == at_once + waiting + 2


@pytest.mark.parametrize(
    ("ask", "at_once", "waiting"),
    [
        (lambda a, n, at: a.user_of(f"junk-{n}", source=at), access.TOKENS_AT_ONCE, access.TOKENS_WAITING),
        (
            lambda a, n, at: a.allowed(ANN, "muster.dev", f"junk-{n}", "get", source=at),
            access.RIGHTS_AT_ONCE,
            access.RIGHTS_WAITING,
        ),
    ],
)
async def test_who_fills_the_line_stands_in_his_own_way(settle: Settle, ask, at_once, waiting):
    """Anybody who reaches the port may ask: pods may, and the API server does."""
    reviewer = Reviewer()
    found = Access(reviewer)
    calls = [asyncio.ensure_future(ask(found, n, "10.0.0.9")) for n in range(at_once + waiting)]
    await settle(lambda: reviewer.under_way == at_once)
    servers = [asyncio.ensure_future(ask(found, n, f"10.0.0.{n}")) for n in (-1, -2)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await ask(found, -3, "10.0.0.9")
    reviewer.gate.set()
    await asyncio.gather(*servers)
    said = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, one in enumerate(said) if isinstance(one, Busy)] == [at_once + waiting - 2, at_once + waiting - 1]
    asked = list(reviewer.asked)
    assert max(asked.index("junk--1"), asked.index("junk--2")) <= at_once + 2


@pytest.mark.parametrize("ask", [_token, _right])
async def test_one_question_of_many_is_asked_a_few_times(settle: Settle, ask):
    reviewer = Reviewer()
    found = Access(reviewer)
    calls = [asyncio.ensure_future(ask(found, 1)) for _ in range(100)]
    await settle(lambda: reviewer.under_way > 0)
    reviewer.gate.set()
    await asyncio.gather(*calls)
    assert sum(reviewer.asked.values()) <= access.RIGHTS_AT_ONCE


async def test_who_waits_too_long_is_refused_and_leaves_no_place_taken(monkeypatch):
    monkeypatch.setattr(access, "PATIENCE_S", 0.01)
    reviewer = Reviewer()
    found = Access(reviewer)
    first = [asyncio.ensure_future(_token(found, n)) for n in range(access.TOKENS_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await _token(found, 99)
    assert not found._tokens._waiting
    first.pop().cancel()
    reviewer.gate.set()
    await asyncio.gather(*first)
    assert await _token(found, 99) is None


async def test_junk_does_not_push_out_those_who_are_known():
    reviewer = Reviewer()
    reviewer.gate.set()
    found = Access(reviewer, clock=lambda: 0.0)
    for token in ("ann", "bob", "ann"):
        assert await found.user_of(token) == {"username": token}
    for n in range(access.MOST_TOKENS + 10):
        assert await _token(found, n) is None
    assert await found.user_of("ann") == {"username": "ann"}
    assert reviewer.asked["ann"] == 1
    assert await _token(found, 0) is None  # the tables are bounded all the same
    assert reviewer.asked["junk-0"] == 2


async def test_what_many_people_may_in_many_namespaces_is_asked_once():
    """As by the pages that all teams have open, each of which looks again with every change."""
    reviewer = Reviewer()
    reviewer.gate.set()
    found = Access(reviewer, clock=lambda: 0.0)
    people = [{"username": f"user-{n}", "groups": ["system:authenticated"]} for n in range(40)]
    for _ in range(2):
        for user in people:
            for n in range(300):
                assert await found.allowed(user, "muster.dev", "workloads", "list", namespace=f"team-{n}")
    assert reviewer.asked == {"workloads": 40 * 300}
    for n in range(access.MOST_ANSWERS):
        await found.allowed(people[0], "muster.dev", "clusterqueues", "get", name=str(n))
    assert len(found._known) == access.MOST_ANSWERS, "of names that anybody invents no more are kept"


@pytest.mark.parametrize("gate", ["full", "closed"])
async def test_a_review_passes_a_flow_that_lets_nobody_in(server: Server, gate: str):
    """And no fence: every replica asks."""

    def fence() -> None:
        raise Fenced

    flow = Flow(start=1, most=1)
    async with Client.plain(server.url, flow=flow, write_timeout=5) as client:
        client.fence = fence
        if gate == "full":
            await flow.enter()
        else:
            flow.pushed_back(3600)
        server.faults.append(answer(201, {"status": {"allowed": True}}))
        assert await _right(Access(Unfenced(client)), 1) is True
        assert 1000 < int(server.requests[0].query["timeout"].removesuffix("ms")) <= 5000
        server.faults.append(answer(500))
        with pytest.raises(Unavailable):
            await _token(Access(Unfenced(client)), 1)
