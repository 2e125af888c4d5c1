"""The page and the visibility API on one port, put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from admission.kube.access import Access, Unfenced
from admission.names import Names
from admission.web.page import Page
from admission.web.stories import Stories
from admission.web.view import Source, View
from admission.web.visibility import FrontProxy, Visibility

RIGHTS_S = 60.0
"""How long an answer about somebody's rights counts."""


class Web:
    """What is served of one controller. `app` is read-only; `stories` is to be told of every change of a Workload."""

    def __init__(self, source: Source, client: Any, names: Names) -> None:
        view = View(source)
        access = Access(Unfenced(client), keep=RIGHTS_S)
        self.stories = Stories(source.now)
        self.visibility = Visibility(view, access, names, FrontProxy())
        page = Page(view, self.stories, access, names)
        self.app = web.Application(client_max_size=16 * 1024)
        self.app.add_routes([*self.visibility.routes, *page.routes])
        self.app.on_shutdown.append(page.close)

    def believe(self, data: Mapping[str, str]) -> str:
        """From now on the API server is who the ConfigMap says; returns the CA (PEM) of its client certificate.

        Raises ValueError when it says nobody."""
        self.visibility.proxy = FrontProxy.from_config(data)
        return self.visibility.proxy.ca
