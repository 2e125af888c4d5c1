"""The page in a headless Chromium, over a controller that decides about a sandbox.

With SCREENSHOTS=1 the pictures in docs/images are taken anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from admission.web import page
from admission.web.view import View
from tests.web.browser import Browser, browser, needs_browser
from tests.web.running import NAMES, Running, job, running

pytestmark = needs_browser
IMAGES = Path("docs/images") if os.environ.get("SCREENSHOTS") else Path("build/screenshots")


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture
async def town() -> AsyncIterator[Running]:
    async with running() as one:
        yield one


Does = Callable[[Coroutine[Any, Any, Any]], Any]


async def played(scene: Callable[[Does], None]) -> None:
    """Play a scene in a thread; `do(coroutine)` there runs in the loop of the controller."""
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(scene, lambda todo: asyncio.run_coroutine_threadsafe(todo, loop).result(60))


async def test_a_tenant_signs_in_and_follows_a_job(town: Running, window: Browser) -> None:
    await town.submit("team-b", "secret-plan", pods=1)
    await town.submit("team-a", "runs", pods=2)
    await town.until(lambda: town.running() == {"runs", "secret-plan"})

    def scene(do: Does) -> None:
        window.open(str(town.http.make_url("/")))
        window.sign_in("no-such-token")
        window.reads("a bearer token of this cluster is needed")
        window.accessible()
        window.sign_in("ann-token")
        window.reads("team-a/main", "ann, who sees namespaces team-a")
        assert "LocalQueue" in window.text
        assert "ClusterQueue" not in window.text
        window.accessible()

        # By keyboard: to the jobs, and to one of them.
        window.js("document.getElementById('skip').focus()")
        window.press("ENTER")
        assert window.focused() == "main"
        window.js("document.getElementById('skip').focus()")
        for _ in range(3):
            window.press("TAB")
        assert window.focused() == "Jobs"
        window.press("ENTER")
        window.reads("team-a/runs", "0 wait of 1")
        assert "secret-plan" not in window.text
        assert window.focused() == "main"

        # Live: nobody reloads, and whoever has the focus keeps it.
        window.js("document.querySelector('main a[data-key]').focus()")
        before = window.focused()
        do(town.submit("team-a", "waits", pods=2))
        window.reads("team-a/waits", "WaitingForQuota", "1 of 1", "Live")
        assert window.focused() == before == "team-a/runs"
        window.accessible()

        window.js("document.querySelector('main a[href*=job-waits]').click()")
        window.reads("Job team-a/waits", "Needs 16 nvidia.com/gpu", "It means", "Its story", "Created")
        window.accessible()
        do(town.delete("team-a", "runs"))
        window.reads("Quota and nodes reserved", "Admitted")

        # Nothing but the own server was asked, and nothing was refused by the policy.
        asked = window.js("return performance.getEntriesByType('resource').map((e) => new URL(e.name).origin)")
        assert set(asked) == {str(town.http.make_url("/").origin())}
        window.js("document.getElementById('leave').click()")
        window.reads("Sign in")
        assert window.js("return sessionStorage.length") == 0
        assert window.complaints() == []

    await played(scene)


async def test_two_replicas_behind_one_address(town: Running, window: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that tells of changes has counted far more of them than the one that answers, which does not lead."""
    asked = 0
    answered = View.queues

    def counted(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return answered(*given)

    monkeypatch.setattr(View, "queues", counted)
    monkeypatch.setattr(page, "FRESH_S", 0.0)
    monkeypatch.setattr(page, "OLD_S", 0.0)
    monkeypatch.setattr(type(town.controller.numbers), "leading", lambda _: False)
    write = web.StreamResponse.write

    async def ahead(self: web.StreamResponse, data: bytes) -> None:
        await write(self, data.replace(b"data: ", b"data: 1000"))

    monkeypatch.setattr(web.StreamResponse, "write", ahead)

    def scene(_: Does) -> None:
        window.open(str(town.http.make_url("/")))
        window.sign_in("ops-token")
        window.reads("Live", "team-a", "This replica does not lead: reasons are those that were last written.")

    await played(scene)
    quiet = asked
    while True:  # until nothing is asked for as long as some looks would take
        await asyncio.sleep(4)
        if asked == quiet:
            break
        assert asked < 20, "it asks again and again for what it is never told"
        quiet = asked


async def test_what_people_write_is_text(town: Running, window: Browser) -> None:
    evil = "<img src=x onerror=\"document.title='taken'\">"
    held = job("team-a", "held", 8, 1)
    held["metadata"]["annotations"] = {NAMES.gated_by_annotation: evil}
    await town.client.create("/apis/batch/v1/namespaces/team-a/jobs", held)
    await town.until(town.settled("held"))

    def scene(_: Does) -> None:
        window.open(str(town.http.make_url("/#/jobs")))
        window.sign_in("ops-token")
        window.reads(f"held back by {evil}")
        assert window.js("return document.querySelectorAll('main img').length") == 0
        assert window.js("return document.title") == "Jobs - Muster"
        # Where a text could become code after all, the policy stops it.
        window.js(
            "const s = document.createElement('script');"
            "s.textContent = \"document.title='taken'\"; document.body.append(s)"
        )
        assert window.js("return document.title") == "Jobs - Muster"
        assert any("Content Security Policy" in line for line in window.complaints())

    await played(scene)


async def test_the_platform_team_sees_the_tree_and_the_nodes(town: Running, window: Browser) -> None:
    """And the pictures of the documentation, light and dark."""
    await town.submit("team-a", "pretrain", pods=2)
    await town.submit("team-b", "speech", gpus=4, pods=1)
    await town.until(lambda: town.running() == {"pretrain", "speech"})
    await town.submit("team-a", "sweep", gpus=4, pods=1)
    await town.until(lambda: town.running() == {"pretrain", "speech", "sweep"})
    for name, pods in (("finetune", 2), ("evaluate", 1)):
        await town.submit("team-a", name, pods=pods, priority="urgent" if name == "evaluate" else "")
        await town.until(town.settled(name))
    node = "/api/v1/nodes/node-3"
    await town.client.merge_patch(node, {"spec": {"unschedulable": True}})

    def scene(_: Does) -> None:
        window.open(str(town.http.make_url("/")))
        window.sign_in("ops-token")
        window.reads("lab Cohort", "team-a ClusterQueue", "olga, who sees all namespaces")
        bars = window.js("return [...document.querySelectorAll('svg.bar')].map((b) => b.getAttribute('aria-label'))")
        assert "20 of 16 used, 4 borrowed, 0 lent" in bars
        assert "4 of 8 used, 0 borrowed, 4 lent" in bars
        waiting = town.workloads()["evaluate"].name
        for name, path, texts in (
            ("queues", "/#/queues", ("team-b ClusterQueue",)),
            ("jobs", "/#/jobs", ("team-a/evaluate", "1 of 2", "2 of 2", "team-b/speech")),
            ("nodes", "/#/nodes", ("node-3 cordoned", "team-a/pretrain")),
            ("job", f"/#/job?namespace=team-a&workload={waiting}", ("Its story", "WaitingForQuota")),
        ):
            window.js("location.hash = arguments[0]", path.partition("#")[2])
            window.reads(*texts)
            window.accessible()
            for theme in ("light", "dark"):
                window.theme(theme)
                window.js("window.scrollTo(0, 0); document.activeElement.blur()")
                window.picture(IMAGES / f"page-{name}-{theme}.png")
        window.theme("light")
        # An address of a page that has no rows any more shows the last one that has; others begin where they say.
        window.js("location.hash = '/jobs?offset=300'")
        window.reads("2 wait of 5", "team-b/speech")
        window.js("location.hash = '/nodes?offset=3'")
        window.reads("4 nodes", "node-3 cordoned")
        assert "node-0" not in window.text
        assert window.complaints() == []

    await played(scene)
