"""Kueue's leader beside a replica in Kueue mode, and one of Muster's in another namespace: whoever finds it leading,
waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from admission.controller.rival import Others, Rival, RivalLeads
from admission.kube.client import Forbidden, NotFound, Page, Unavailable
from tests.chart.runbooks import quoted
from tests.kube.virtual import virtually

START = datetime(2026, 1, 1, tzinfo=UTC)
FORBIDDEN = Forbidden(403, "Forbidden", "no")
AWAY = Unavailable(0, "NoAnswer", "away")


class Told:
    """An API server whose Lease is what a function of the seconds says: a spec, None, or what is raised."""

    def __init__(self, say: Any) -> None:
        self.say = say
        self.clock = self
        self.asked: list[str] = []

    def now(self) -> int:
        return round((START.timestamp() + asyncio.get_running_loop().time()) * 1000)

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        self.asked.append(path)
        said = self.say(asyncio.get_running_loop().time())
        if isinstance(said, Exception):
            raise said
        if said is None:
            raise NotFound(404, "NotFound", path)
        return {"spec": said}


def lease(at: float, holder: str = "kueue-0", lasts: int = 15) -> dict[str, Any]:
    """As renewed at this second."""
    renewed = (START + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": lasts}


def renewed_until(end: float) -> Any:
    return lambda now: lease(min(now, end) // 2 * 2)


ROWS = {
    "there is none": (lambda now: None, 0),
    "it was given up": (lambda now: lease(0, holder=""), 0),
    "it was last renewed long ago": (lambda now: lease(-3600), 0),
    "it was renewed just before": (lambda now: lease(-1), 15),
    "it lasts longer": (lambda now: lease(-1, lasts=60), 60),
    "its clock is an hour behind, and it is renewed": (lambda now: lease(-3600 + min(now, 50) // 2 * 2), 0),
    "its clock is an hour ahead": (lambda now: lease(3600), 15),
    "it is renewed for a minute": (renewed_until(60), 75),
    "it is deleted under its holder": (lambda now: lease(now) if now < 20 else None, 20),
    "it is given up after a while": (lambda now: lease(now, holder="" if now >= 20 else "kueue-0"), 20),
    "it may not be looked at": (lambda now: FORBIDDEN, 0),
    "the first answer takes its time": (lambda now: AWAY if now < 8 else None, 10),
    "no answer while it leads": (lambda now: lease(now) if now < 2 or now > 30 else AWAY, None),
    "nobody answers, nor is it renewed": (
        lambda now: AWAY if 9 < now < 39 else lease(min(now, 5) if now < 48 else min(now, 60)),
        75,
    ),
    "it is handed over": (
        lambda now: lease(now, holder="" if 19 < now < 21 else "kueue-0") if now < 60 else lease(60),
        75,
    ),
    "it is deleted, and made anew by its holder": (lambda now: None if 19 < now < 21 else renewed_until(60)(now), 75),
    "it never ends": (lease, None),
}
"""What the Lease says, and after how many seconds a replica may go on, to 5 s, between two looks (None: never)."""


@pytest.mark.parametrize("name", ROWS)
def test_when_a_replica_may_go_on(name: str) -> None:
    say, after = ROWS[name]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        rival = Rival(Told(say), "kueue-system", "lease", clock=loop.time)
        try:
            async with asyncio.timeout(600):
                await rival.gone()
        except TimeoutError:
            assert after is None
            assert "kueue-0" in rival.why()
            assert "kueue-system" in rival.why()
            return
        assert after is not None
        assert after <= loop.time() <= after + 5
        assert rival.why() == ""

    virtually(main)


def test_who_decides_ends_when_kueue_comes() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        # Of one that ended long ago; its clock is behind all the time.
        rival = Rival(Told(lambda now: lease(-3600 if now < 100 else now - 3600)), "kueue-system", "x", clock=loop.time)
        await rival.gone()
        with pytest.raises(RivalLeads, match="kueue-0"):
            async with asyncio.timeout(600):
                await rival.watch()
        assert 100 <= loop.time() <= 105

    virtually(main)


def test_who_may_not_look_says_so_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        rival = Rival(Told(lambda now: FORBIDDEN), "kueue-system", "lease", clock=loop.time)
        with capture_logs() as logs:
            await rival.gone()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(rival.watch(), 600)
        assert [line["event"] for line in logs] == ["may not see whether Kueue leads, and goes on"]

    virtually(main)


@pytest.mark.parametrize("who", ["Kueue", "another Muster"])
def test_who_waits_for_another_controller_says_what_the_alert_that_nobody_leads_quotes(who: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def may_lead(namespace: str) -> bool:
            return True

        rival = (
            Rival(Told(lease), "kueue-system", "lease", clock=loop.time)
            if who == "Kueue"
            else Others(Leases({"default": lease}), "home", "muster-controller", may_lead, clock=loop.time)
        )
        with capture_logs() as logs, pytest.raises(TimeoutError):
            await asyncio.wait_for(rival.gone(), 600)
        (said,) = [line["event"] for line in logs if line["log_level"] == "warning"]
        assert [words for words in quoted("MusterNotLeading") if said.startswith(words)]
        assert who in said

    virtually(main)


class Leases(Told):
    """All Leases of a name: namespace -> as of `Told`."""

    def __init__(self, of: dict[str, Any]) -> None:
        super().__init__(None)
        self.of = of

    async def list_pages(self, path: str, **asked: Any) -> Any:
        self.asked.append(f"{path} {asked['field_selector']}")
        now = asyncio.get_running_loop().time()
        items = []
        for namespace, say in self.of.items():
            said = say(now)
            if isinstance(said, Exception):
                raise said
            if said is not None:
                items.append(msgspec.json.encode({"metadata": {"namespace": namespace}, "spec": said}))
        yield Page([msgspec.Raw(one) for one in items], "1")


OTHERS: dict[str, tuple[dict[str, Any], int]] = {
    "no other": ({"home": lambda now: lease(now, "mine")}, 0),
    "one that is handed over": (
        {"default": lambda now: lease(now, holder="" if 19 < now < 21 else "kueue-0") if now < 60 else lease(60)},
        75,
    ),
    "one that is handed over as this one begins": (
        {"default": lambda now: lease(min(now, 60), holder="" if now < 2 else "kueue-0")},
        75,
    ),
    "nobody answers, nor is it renewed": (
        {"default": lambda now: AWAY if 9 < now < 40 else lease(min(now, 5) if now < 48 else min(now, 60))},
        75,
    ),
    "nobody answers at first": ({"default": lambda now: AWAY if now < 2 else renewed_until(60)(now)}, 75),
    "one that leads for a minute": ({"home": lambda now: None, "default": renewed_until(60)}, 75),
    "nobody answers for a while as one leads": (
        {"default": lambda now: AWAY if 9 < now < 40 else renewed_until(60)(now)},
        75,
    ),
    "one of two": ({"a": lambda now: lease(0, holder=""), "b": renewed_until(20)}, 35),
    "one that ended long ago": ({"default": lambda now: lease(-3600)}, 0),
    "one that a tenant writes": ({"tenant": lease}, 0),
    "one beside one that a tenant writes": ({"default": renewed_until(20), "tenant": lease}, 35),
    "they may not be looked for": ({"default": lambda now: FORBIDDEN}, 0),
    "nobody answers": ({"default": lambda now: AWAY}, 10),
}
"""What the Leases say, and after how many seconds a replica in `home` may campaign, to 5 s."""


@pytest.mark.parametrize("name", OTHERS)
def test_when_a_replica_may_campaign_beside_those_of_other_namespaces(name: str) -> None:
    of, after = OTHERS[name]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        leases = Leases(of)

        async def may_lead(namespace: str) -> bool:
            return namespace != "tenant"

        others = Others(leases, "home", "muster-controller", may_lead, clock=loop.time)
        waiting = asyncio.ensure_future(others.gone())
        await asyncio.sleep(1)
        if after > 10:
            await asyncio.sleep(6)
            assert "Another Muster leads (kueue-0)" in others.why()
            assert "--namespace" in others.why()
        await asyncio.wait_for(waiting, 600)
        assert after <= max(loop.time(), 1) <= max(after, 1) + 5
        assert others.why() == ""
        assert set(leases.asked) == {"/apis/coordination.k8s.io/v1/leases metadata.name=muster-controller"}

    virtually(main)


@pytest.mark.parametrize(
    ("home", "has_rights", "ends"),
    [("home", True, True), ("home", False, True), ("a", True, False), ("a", False, True)],
)
def test_of_two_that_lead_one_stays(home: str, has_rights: bool, ends: bool) -> None:
    """Each where it has the rights sees the other; one that was started by hand is seen by none."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        gone = lease(0, holder="")
        leases = Leases({"0": lambda now: gone, "default": lambda now: lease(now) if now > 100 else None})

        async def may_lead(namespace: str) -> bool:
            return namespace != home or has_rights

        others = Others(leases, home, "muster-controller", may_lead, clock=loop.time)
        await others.gone()
        with pytest.raises(RivalLeads if ends else TimeoutError):
            await asyncio.wait_for(others.watch(), 600)
        assert loop.time() <= 135 or not ends

    virtually(main)


def test_who_leads_is_believed_though_it_is_now_and_then_said_to_have_no_rights() -> None:
    """As by an API server that has just begun, or while its role is written anew: but not by three looks in a row; and
    again when it has them again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def may_lead(namespace: str) -> bool:
            now = loop.time()
            return namespace == "home" or not (12 < now % 30 < 22 if now < 300 else 400 < now < 500)

        others = Others(Leases({"default": lease}), "home", "muster-controller", may_lead, clock=loop.time)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(others.gone(), 300)
        assert others.why() != ""
        await asyncio.wait_for(others.gone(), 200)
        assert 410 <= loop.time() < 420
        with pytest.raises(RivalLeads):
            await asyncio.wait_for(others.watch(), 600)

    virtually(main)


def test_who_leads_is_waited_for_until_it_is_known_whether_it_has_the_rights() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def may_lead(namespace: str) -> bool:
            if loop.time() < 8:
                raise AWAY
            return True

        leases = Leases({"default": renewed_until(60)})
        await Others(leases, "home", "muster-controller", may_lead, clock=loop.time).gone()
        assert 75 <= loop.time() <= 80

    virtually(main)


def test_who_is_known_is_seen_to_lead_though_nobody_says_whether_it_has_the_rights() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def may_lead(namespace: str) -> bool:
            if namespace != "home" and loop.time() > 50:
                raise AWAY
            return True

        leases = Leases({"default": lambda now: lease(now, holder="kueue-0" if now > 100 else "")})
        others = Others(leases, "home", "muster-controller", may_lead, clock=loop.time)
        await others.gone()
        with pytest.raises(RivalLeads):
            await asyncio.wait_for(others.watch(), 600)
        assert loop.time() <= 135

    virtually(main)


def test_who_never_had_the_rights_is_asked_about_and_told_of_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asked: list[str] = []

        async def may_lead(namespace: str) -> bool:
            asked.append(namespace)
            return False

        others = Others(Leases({"tenant": lease}), "home", "muster-controller", may_lead, clock=loop.time)
        with capture_logs() as logs:
            await others.gone()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(others.watch(), 600)
        assert asked == ["tenant"]
        assert [(line["namespace"], line["log_level"]) for line in logs] == [("tenant", "warning")]

    virtually(main)


@pytest.mark.parametrize("lapses", [True, False])
def test_who_has_lost_the_rights_since_it_led_is_believed_no_more(lapses: bool) -> None:
    """Muster was removed from there, and whoever may edit the namespace writes a Lease of its name."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        leases = Leases({"default": lambda now: lease(now if now > 200 or not lapses else min(now, 60))})

        async def may_lead(namespace: str) -> bool:
            return namespace == "home" or loop.time() < 100

        others = Others(leases, "home", "muster-controller", may_lead, clock=loop.time)
        await others.gone()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(others.watch(), 600)
        assert others.why() == ""

    virtually(main)
