"""A decision whose write failed keeps its room for a moment, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from admission.controller import unmade
from admission.controller.unmade import Unmade
from admission.engine.model import Admission, Admit, Claim, ClaimRecord, Decision, Evict, EvictReason
from admission.jobs.kinds import JobKey
from admission.kube.client import ApiError, Conflict, Invalid, Unavailable
from tests.controller.lab import NAMES, T0, World, job
from tests.controller.test_follows import JOBS, WORKLOADS, a_town
from tests.controller.test_keep import running, until
from tests.kube.virtual import virtually

GANG, JOB = ("ml", "job-a"), ("Job", "ml", "a")
ADMIT = Admit(GANG, "uid", Admission("team", ()))
CLAIM = Claim(GANG, "uid", ClaimRecord(Admission("team", ()), (), 0))
EVICT = Evict(GANG, "uid", EvictReason.IN_CLUSTER_QUEUE, ("ml", "job-b"), "uid-b", "team")


@pytest.mark.parametrize(
    ("failures", "others"),
    [
        (1, False),
        (3, False),
        (1000, True),
    ],
    ids=["in passing", "for a moment", "always"],
)
@pytest.mark.parametrize(
    "error",
    [
        Conflict(409, "Conflict", "the object has been modified"),
        Unavailable(500, "InternalError", "etcdserver: leader changed"),
        Invalid(422, "Invalid", "no"),
    ],
    ids=lambda error: error.reason,
)
async def test_room_is_kept_while_a_write_that_failed_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, failures: int, others: bool, error: ApiError
) -> None:
    """Each of two jobs needs the whole queue, and the first's admission is not written so many times."""
    if others:
        monkeypatch.setattr(unmade, "KEEPS_ROOM_S", 0.3)
    await a_town(world, 16)
    tries = 0
    async with running(world, at=T0) as controller:
        carry_out = controller.actuator.carry_out

        async def carried_out(decision: Decision, *rest: Any) -> str:
            nonlocal tries
            seen = controller.world.workloads[decision.key]
            if isinstance(decision, Admit) and seen.view.owner[1] == "one" and tries < failures:
                tries += 1
                raise error
            return await carry_out(decision, *rest)

        monkeypatch.setattr(controller.actuator, "carry_out", carried_out)
        first = job("one", "main")
        first["metadata"]["labels"][NAMES.priority_class_label] = "high"
        await world.put(first)

        async def failed() -> bool:
            return tries > 0

        await until(failed)
        await world.put(job("two", "main"))

        async def started() -> list[str]:
            found = (await world.client.get(JOBS))["items"]
            return [one["metadata"]["name"] for one in found if not one["spec"]["suspend"]]

        assert await until(started) == ["two" if others else "one"]
        made = (await world.client.get(WORKLOADS))["items"]
        evicted = [c for one in made for c in one.get("status", {}).get("conditions", ()) if c["type"] == "Evicted"]
    assert not evicted


def kept(decision: Decision, *, waits: bool, news_after: float = 0.0) -> list[tuple[float, float]]:
    """(when, for how long its gang sits out) of each failure in a row in ten minutes."""
    seen: list[tuple[float, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again(job: JobKey, _: Decision) -> None:
            loop.call_soon(fails)

        held = Unmade(again)

        def fails() -> None:
            out = held.failed(JOB, decision, waits=waits)
            assert held.keeps(GANG) == (not out)
            seen.append((round(loop.time(), 1), round(out, 1)))
            if out:
                loop.call_later(out, fails)
            elif news_after:
                loop.call_later(news_after, held.news, GANG)

        fails()
        await asyncio.sleep(600)

    virtually(main)
    return seen


@pytest.mark.parametrize("decision", [ADMIT, CLAIM], ids=["admission", "claim"])
def test_who_waits_keeps_room_for_some_seconds_and_is_tried_ever_less(decision: Decision) -> None:
    tried = kept(decision, waits=True)
    assert tried[:8] == [(0.0, 0), (0.1, 0), (0.3, 0), (0.7, 0), (1.5, 0), (3.1, 0), (6.3, 6.4), (12.7, 12.8)]
    assert [out for _, out in tried[9:]] == [51.2] + [60] * (len(tried) - 10)


def test_what_is_decided_on_who_holds_quota_is_repeated_at_most_each_minute() -> None:
    tried = kept(EVICT, waits=False)
    assert not any(out for _, out in tried)
    gaps = [round(b - a, 1) for (a, _), (b, _) in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 60


def test_a_newer_version_is_not_waited_for() -> None:
    tried = kept(ADMIT, waits=True, news_after=0.01)
    assert [at for at, _ in tried[:3]] == [0.0, 0.0, 0.0]
    assert tried[6][1] == 6.4, "it was tried as often"


@pytest.mark.parametrize(
    ("ends", "told", "sits_out"),
    [
        (lambda held: held.made(GANG), True, 0),
        (lambda held: held.clear(), True, 0),
        (lambda held: held.news(GANG), True, 0.2),
        (lambda held: held.let_go(GANG), False, 0.2),
    ],
    ids=["written", "it leads no more", "another", "decided on again"],
)
def test_failures_count_until_a_decision_is_written(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[Unmade], object], told: bool, sits_out: float
) -> None:
    monkeypatch.setattr(unmade, "KEEPS_ROOM_S", 0.1)

    async def main() -> None:
        again: list[Decision] = []
        held = Unmade(lambda job, decision: again.append(decision))
        assert held.failed(JOB, ADMIT, waits=True) == 0
        ends(held)
        assert again == [ADMIT] * told
        assert not held.keeps(GANG)
        assert held.failed(JOB, ADMIT, waits=True) == sits_out

    virtually(main)
