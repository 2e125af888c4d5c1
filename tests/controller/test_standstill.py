"""While pods are made for nobody, no gang is blamed for having none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from admission.controller import app
from admission.controller.lifecycle import EvictWorkload, LookForRefusal, Refusal, Settings, next_step
from admission.controller.standstill import WINDOW_MS, Standstill
from admission.engine.model import Admission
from admission.jobs.kinds import JobKey, millis
from admission.jobs.values import rfc3339
from tests.controller import lab, test_follows
from tests.controller.lab import T0, World, admission, condition, job, workload
from tests.controller.test_keep import running, until
from tests.controller.test_world import HOLDS, JOB, ON_N1, Setting, pod, seen

NOW = 1_000_000
LONG_AGO, BEFORE, LATELY = NOW - 10 * WINDOW_MS, NOW - WINDOW_MS, NOW - WINDOW_MS + 1
THREE = [("Job", "a", "1"), ("Job", "a", "2"), ("Job", "b", "1")]
SETS = [("JobSet", namespace, name) for _, namespace, name in THREE]


@pytest.mark.parametrize(
    ("lacking", "made", "stands"),
    [
        (dict.fromkeys(THREE, BEFORE), {}, ("Job", "JobSet")),
        (dict.fromkeys(THREE, BEFORE), {"Job": BEFORE}, ("Job", "JobSet")),
        (dict.fromkeys(THREE, BEFORE), {"Job": LATELY}, ()),
        (dict.fromkeys(THREE, LATELY), {}, ()),
        ({**dict.fromkeys(THREE, BEFORE), THREE[0]: LATELY}, {}, ()),
        (dict.fromkeys(THREE[1:], BEFORE), {}, ()),
        ({("Job", "a", str(n)): BEFORE for n in range(100)}, {}, ()),  # a rule of their namespace, say
        (dict.fromkeys([*SETS, THREE[0]], BEFORE), {"Job": LATELY}, ("JobSet",)),
        (dict.fromkeys([SETS[0], *THREE[1:]], BEFORE), {}, ("Job", "JobSet")),
        (dict.fromkeys([SETS[0], *THREE[1:]], BEFORE), {"Job": LATELY}, ()),
    ],
)
def test_pods_are_made_for_nobody(lacking: Any, made: dict[str, int], stands: tuple[str, ...]) -> None:
    standstill = Standstill(by_kind=True)
    for key, admitted_at in lacking.items():
        standstill.lacks(key, admitted_at)
    for kind, at in made.items():
        standstill.made(kind, at, LONG_AGO)
    assert tuple(kind for kind in ("Job", "JobSet") if standstill.over_since(kind, NOW) is None) == stands
    assert standstill.gangs(NOW) == sum(key[0] in stands for key in lacking)


def test_it_ends_with_the_first_pod_that_is_made_or_when_nobody_lacks_one() -> None:
    standstill = Standstill(by_kind=True)
    for key in (*THREE, *SETS):
        standstill.lacks(key, LONG_AGO)
    assert standstill.made("Job", NOW, NOW)
    assert not standstill.made("Job", NOW + 1, NOW + 1)
    assert standstill.over_since("Job", NOW + 2) == NOW
    assert standstill.over_since("JobSet", NOW + 2) is None
    for key in SETS:
        standstill.lacks_none(key)
        standstill.lacks_none(key)
    assert standstill.over_since("JobSet", NOW + 2) == NOW
    assert standstill.lacking() == THREE


SETTINGS = Settings(pods_ready_ms=600_000, recovery_ms=600_000)
WEBHOOK = "Internal error occurred: failed calling webhook"
EVERYBODY = (("Job", "ns", "x"), ("Job", "ns", "y"), ("Job", "other", "z"))


def a_town(jobs: tuple[JobKey, ...]) -> Setting:
    """Gangs that were admitted and started at NOW, and have no pod."""
    setting = Setting()
    setting.world.job_lost(JOB)
    for kind, namespace, name in jobs:
        uid, runs = f"uid-{name}", {"suspended": False, "pods_expected": 2, "pods_at_once": 2}
        setting.world.job_seen(replace(JOB, kind=kind, namespace=namespace, name=name, uid=uid, **runs))
        of = {"namespace": namespace, "name": f"w-{name}", "uid": f"w-{name}", "job_uid": uid, "queue": "main"}
        held = {"admission": Admission("q", (ON_N1,)), "admitted": True, "admitted_at": NOW, "reserved_at": NOW}
        setting.world.workload_seen(seen(replace(HOLDS, **of, **held)))
    return setting


def evicted(setting: Setting, jobs: tuple[JobKey, ...], now: int, said: str = "", said_at: int = 0) -> int:
    """How many are, once all were looked at, and where that is due it was looked up what was said of their pods."""
    for key in jobs:
        setting.world.sight(key, now)
    for key in jobs:
        if isinstance(next_step(setting.world.sight(key, now), SETTINGS, now).step, LookForRefusal):
            setting.world.refusal_found(key, Refusal(now, said_at or now - 1_000 if said else 0, said))
    due = [next_step(setting.world.sight(key, now), SETTINGS, now).step for key in jobs]
    assert not any(isinstance(step, LookForRefusal) for step in due)
    return sum(isinstance(step, EvictWorkload) for step in due)


def made(setting: Setting, at: int, jobset: str = "") -> None:
    """A pod of somebody else's gang, or JobSet."""
    setting.world.pod_came(None, pod(f"made-{at}", workload_uid="else", jobset_uid=jobset, created_at=at), at)


def test_nobody_is_evicted_while_the_pods_of_all_are_refused() -> None:
    town = a_town(EVERYBODY)
    assert evicted(town, EVERYBODY, NOW + 70_000, WEBHOOK) == 0
    town.woken.clear()
    made(town, NOW + 100_000)
    assert town.woken == [*EVERYBODY]
    # Each has a minute from then on, and leaves only if it was refused since: the Job controller tries more and more
    # seldom. Who is refused now makes no other standstill, however seldom other pods are made.
    assert evicted(town, EVERYBODY, NOW + 159_999, WEBHOOK) == 0
    assert evicted(town, EVERYBODY, NOW + 160_000, WEBHOOK, NOW + 99_000) == 0
    assert evicted(town, EVERYBODY, NOW + 220_000, WEBHOOK) == 3


def test_whose_pods_are_refused_alone_leave_as_ever() -> None:
    """So do all of one namespace, and those that keep others from their quota for as long as pods have to get ready."""
    alone = (*EVERYBODY[:2], ("Job", "ns", "z"))
    assert evicted(a_town(alone), alone, NOW + 70_000, WEBHOOK) == 3
    town = a_town(EVERYBODY)
    assert evicted(town, EVERYBODY, NOW) == 0
    assert evicted(town, EVERYBODY, NOW + 599_999, WEBHOOK) == 0
    assert evicted(town, EVERYBODY, NOW + 600_000, WEBHOOK) == 3
    step = next_step(town.world.sight(EVERYBODY[0], NOW + 600_000), SETTINGS, NOW + 600_000).step
    assert isinstance(step, EvictWorkload)
    assert step.backoff
    assert not step.counted


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_nobody_is_evicted_while_whoever_makes_pods_stands_still(kind: str) -> None:
    """Of JobSets also where Jobs get their pods."""
    jobs = tuple((kind, namespace, name) for _, namespace, name in EVERYBODY)
    town = a_town(jobs)
    assert evicted(town, jobs, NOW) == 0
    if kind == "JobSet":
        made(town, NOW + 3_599_000)
    assert evicted(town, jobs, NOW + 3_600_000) == 0
    # Nobody's quota is held for ever, whatever is not seen here.
    assert evicted(town, jobs, NOW + 4_199_999) == 0
    assert evicted(town, jobs, NOW + 4_200_000) == 3
    of = "another" if kind == "JobSet" else ""
    made(town, NOW + 3_700_000, of)
    assert evicted(town, jobs, NOW + 4_299_999) == 0
    assert evicted(town, jobs, NOW + 4_300_000) == 3
    step = next_step(town.world.sight(jobs[0], NOW + 4_300_000), SETTINGS, NOW + 4_300_000).step
    assert isinstance(step, EvictWorkload)
    assert step.counted
    assert step.message.endswith("they had 600 s from when pods were made, and placed, for others again")


@pytest.mark.parametrize("had", ["one that failed", "all that were due"])
def test_gangs_that_have_had_pods_are_no_sign(had: str) -> None:
    """Their Jobs make the next one ever later after each that fails, and a JobSet that restarts has none for long."""
    town = a_town(EVERYBODY)
    whole = had == "all that were due"
    pods = [
        pod(f"{name}-{i}", namespace=at, workload_uid=f"w-{name}", held_by=f"uid-{name}", ready=whole, done=not whole)
        for _, at, name in EVERYBODY
        for i in range(2 if whole else 1)
    ]
    for one in pods:
        town.world.pod_seen(one)
    for key in EVERYBODY:
        town.world.sight(key, NOW + 1_000)
    for one in pods if whole else ():
        town.world.pod_lost(one)
    for key in EVERYBODY:
        assert town.world.sight(key, NOW + 100_000).pods.missing_since is not None
    assert town.world.making.gangs(NOW + 200_000) == 0


@pytest.mark.parametrize("runs", [False, True], ids=["they start", "they lost a pod"])
def test_a_try_does_not_count_while_no_pods_are_placed_and_nothing_that_ran_is_lost(runs: bool) -> None:
    """The time of all begins anew with the first that comes to its node."""
    town = a_town(EVERYBODY)
    said: dict[str, Any] = {"node": "n1" if runs else "", "ready": runs}
    said |= {"created_at": NOW + 1_000, "unready_since": NOW + 1_000}
    pods = [
        pod(f"{name}-{i}", namespace=at, workload_uid=f"w-{name}", held_by=f"uid-{name}", **said)
        for _, at, name in EVERYBODY
        for i in range(2)
    ]
    for one in pods:
        town.world.pod_seen(one)
    assert evicted(town, EVERYBODY, NOW + 2_000) == 0
    for one in pods[::2] if runs else ():
        # One of each was lost, and another was made in its place.
        town.world.pod_lost(one)
        town.world.pod_seen(replace(one, name=f"{one.name}-again", ready=False, node="", unready_since=0))
    assert evicted(town, EVERYBODY, NOW + 3_000) == 0
    late = NOW + 620_000
    assert evicted(town, EVERYBODY, late) == (0 if runs else 3)
    if not runs:
        step = next_step(town.world.sight(EVERYBODY[0], late), SETTINGS, late).step
        assert isinstance(step, EvictWorkload)
        assert not step.counted
        assert step.message.endswith("; pods are placed for nobody, and this counts as no try")
    other = pod("other", workload_uid="else", node="")
    town.woken.clear()
    town.world.pod_came(other, replace(other, node="n2"), late)
    assert town.woken == [*EVERYBODY]
    assert evicted(town, EVERYBODY, late + 599_999) == 0
    assert evicted(town, EVERYBODY, late + 600_000) == 3


@pytest.mark.parametrize(("tries", "counted"), [(0, False), (3, False), (3, True)])
async def test_a_try_that_failed_with_all_others_does_not_count(world: World, tries: int, counted: bool) -> None:
    """One that does is here its last."""
    await test_follows.a_town(world, 16)
    owner = await world.put(job("train", "main"))
    status = {
        "conditions": [condition(kind, True, kind, "") for kind in ("QuotaReserved", "Admitted")],
        "admission": admission("n"),
        "requeueState": {"count": tries, "requeueAt": rfc3339(T0)} if tries else {},
    }
    await world.put(workload(owner, {key: value for key, value in status.items() if value}, queue="main"))
    async with running(world, leads=False) as controller:
        controller.actuator._settings = Settings(backoff_base_ms=60_000, backoff_limit=3)

        async def known() -> bool:
            return bool(controller.world.workloads and controller.world.jobs)

        await until(known)
        step = EvictWorkload("PodsReadyTimeout", "Late", backoff=True, counted=counted)
        await controller.actuator.take(("Job", "ml", "train"), step)
    found = await test_follows.its_workload(world)
    assert found is not None
    assert found["spec"]["active"] == (not counted)
    if not counted:
        state = found["status"]["requeueState"]
        assert state.get("count", 0) == tries
        assert 60_000 <= millis(state["requeueAt"]) - lab.NOW <= 60_000 * 9 // 8 + 1_000


async def test_what_ends_by_itself_is_no_warning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to do anything when pods are made again."""
    async with running(world, leads=False) as controller:
        of_all = controller.world.making
        for key in THREE:
            of_all.lacks(key, controller.now() - 2 * WINDOW_MS)
        turns = iter((lambda: of_all.made("Job", controller.now(), controller.now()),))

        async def sleep(_: float) -> None:
            if (do := next(turns, None)) is None:
                raise asyncio.CancelledError
            do()

        with capture_logs() as lines, monkeypatch.context() as patched:
            patched.setattr(app, "asyncio", SimpleNamespace(sleep=sleep))
            with pytest.raises(asyncio.CancelledError):
                await controller._tell_standstill()
    told = [(line["event"], line["log_level"]) for line in lines if line["event"].startswith("pods are")]
    assert told == [("pods are made for nobody", "warning"), ("pods are made again", "info")]
