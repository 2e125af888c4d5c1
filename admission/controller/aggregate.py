"""The visibility API made known to the API server: a certificate that it trusts, and whom this server may believe.

The certificate is kept in a Secret that all replicas share, its CA in the `caBundle` of the APIService (which the chart
makes); both are looked after once a minute, and the new leaf is swapped in under the running server. The CA of the API
server's front proxy comes from kube-system/extension-apiserver-authentication. One that is added is believed from the
next look on; one that was taken away until the replica restarts.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import structlog

from admission.controller import certificates
from admission.controller.certificates import Certificates
from admission.controller.hooks import kept
from admission.controller.resources import API_SERVICES, CONFIG_MAPS
from admission.kube.client import ApiError, Client, Conflict, NotFound
from admission.kube.flow import Told
from admission.names import Names

log = structlog.get_logger("muster.web")

SECRET = SERVICE = "muster-web"  # noqa: S105 - a name
_CONFIG = CONFIG_MAPS.path("kube-system", "extension-apiserver-authentication")
LOOK_S = 60.0
AGAIN_S = 30.0


class Aggregate:
    """See the module."""

    def __init__(
        self,
        client: Client,
        names: Names,
        *,
        namespace: str,
        believe: Callable[[Mapping[str, str]], str],
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """`believe`: takes the data of the ConfigMap and returns the CA (PEM) of the front proxy; raises ValueError."""
        self._client = client
        self._api_service = f"{names.version}.{names.visibility_group}"
        self._namespace = namespace
        self._believe = believe
        self._now = now or client.clock.wall
        self._held: Certificates | None = None
        self._trusted = ""
        self._overdue, self._unseen, self._unknown = Told(), Told(), Told()
        self.context: ssl.SSLContext | None = None

    async def run(self, serve: Callable[[ssl.SSLContext], Awaitable[None]]) -> None:
        """Serve as soon as there is a certificate, and keep it fresh; until cancelled. Never raises for an API server
        that refuses or does not answer: what can be shown waits, decisions do not."""
        served = False
        while True:
            try:
                await self._look()
                self._unseen.over()
                if not served and self.context is not None:
                    await serve(self.context)
                    served = True
                await asyncio.sleep(LOOK_S)
            except (ApiError, OSError, TimeoutError, ValueError) as error:
                tell = log.warning if self._unseen.due() else log.debug
                tell("visibility API not looked after", error=str(error), times=self._unseen.times)
                await asyncio.sleep(AGAIN_S)

    @property
    def ends_at(self) -> datetime | None:
        """When the certificate that is served ends."""
        return certificates.ends_at(self._held) if self._held is not None else None

    async def _look(self) -> None:
        hosts = certificates.service_names(SERVICE, self._namespace)
        hosts = (*hosts, "localhost")
        have = await kept(self._client, self._namespace, SECRET, hosts, self._now, self._held, self._overdue)
        if self.context is None:
            self.context = certificates.context(have)
            self._held = have
        await self._trust(self.context)
        # Callers must know a new CA before a leaf of it is served.
        await self._publish(have)
        if have != self._held:
            certificates.load(self.context, have)
            self._held = have

    async def _trust(self, context: ssl.SSLContext) -> None:
        """Whom this server believes. Without the ConfigMap nobody; the page, which asks for tokens, is served."""
        try:
            found = await self._client.get(_CONFIG)
            ca = self._believe(found.get("data") or {})
        except (ApiError, ValueError) as error:
            tell = log.warning if self._unknown.due() else log.debug
            tell("the front proxy of the API server is not known", error=str(error), times=self._unknown.times)
            return
        self._unknown.over()
        if ca != self._trusted:
            context.load_verify_locations(cadata=ca)
            # A browser has no such certificate, and asks for the page.
            context.verify_mode = ssl.CERT_OPTIONAL
            self._trusted = ca

    async def _publish(self, have: Certificates) -> None:
        """Raises TimeoutError where somebody else is always quicker."""
        bundle = base64.b64encode(have.bundle).decode()
        path = API_SERVICES.path(name=self._api_service)
        for _ in range(5):
            try:
                raw = await self._client.get(path)
            except NotFound:
                return  # not wanted here: the chart makes it
            if raw["spec"].get("caBundle") == bundle:
                return
            try:
                await self._client.put(path, {**raw, "spec": {**raw["spec"], "caBundle": bundle}}, fenced=False)
            except Conflict:
                continue
            log.info("APIService updated", name=self._api_service)
            return
        raise TimeoutError(f"APIService {self._api_service} keeps changing under this replica")
