"""The page over TLS, in a browser, with the tokens and the RBAC of a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from admission.sandbox.play import free_port
from e2e.control_plane import ControlPlane
from e2e.gangs import admitted, reason, teams
from e2e.installed import Installed, job
from e2e.test_visibility import let_view
from tests.web.browser import Browser, browser, needs_browser

pytestmark = needs_browser


@pytest.fixture
def window() -> Iterator[Browser]:
    with browser() as one:
        yield one


def test_people_see_what_rbac_lets_them_see(muster: Installed, window: Browser) -> None:
    cp: ControlPlane = muster.cp
    cp.add_nodes(2, labels={"gpu": "h100"})
    teams(cp, {"red": 8, "blue": 8})
    let_view(cp, "tenant", "red")
    port = free_port()
    muster.started(config={"web": {"bindAddress": f"127.0.0.1:{port}"}})
    cp.create(job("red", "trains", seconds=None))
    cp.create(job("blue", "secret-plan", seconds=None))
    cp.wait(lambda: admitted(cp, "red", "trains") and admitted(cp, "blue", "secret-plan"), 30, "both to run")
    cp.create(job("red", "waits", seconds=None))
    cp.wait(lambda: reason(cp, "red", "waits")[0], 30, "the third to be told why it waits")

    window.open(f"https://127.0.0.1:{port}/#/jobs")
    window.sign_in("nobody-knows-it")
    window.reads("a bearer token of this cluster is needed")
    window.sign_in(cp.token("tenant"))
    window.reads("red/trains", "red/waits", "tenant, who sees namespaces red")
    assert "secret-plan" not in window.text

    # The words are those of the condition; and nobody reloads the page.
    window.js("document.querySelector('main a[href*=waits]').click()")
    word, message = reason(cp, "red", "waits")
    window.reads(word, message, "It means", "Its story")
    cp.delete("jobs", "trains", "red")
    window.reads("Quota and nodes reserved", "Admitted")

    window.js("location.hash = '#/nodes'")
    window.reads("You may not list nodes")
    window.js("document.getElementById('leave').click()")
    window.sign_in(cp.token())
    window.reads("admin, who sees all namespaces", "node-0", "blue/secret-plan")
    window.accessible()
    assert window.complaints() == []
