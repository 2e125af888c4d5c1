"""The webhook kept up: its certificate in a Secret, its configurations in the API server, its server in this process.

Every replica serves. Whoever comes first makes the certificate; the others find it in the Secret, for each write is a
create or carries the version that was read. The API server is told of a new CA before a leaf of it is served. The
Secret is looked at once a minute, and what is new in it swapped in under the running server; one that was emptied is
filled again with what is served. A certificate that somebody else makes (cert-manager) is read from files instead, and
they are looked at every ten seconds; its CA, where the files do not have it, is left to whoever writes it into the
configurations.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from admission.controller import certificates
from admission.controller.certificates import Certificates
from admission.controller.webhook import Webhook, configurations
from admission.jobs.hold import IDENTITIES, Identities
from admission.jobs.requests import LIMITS, Limits
from admission.kube.access import Access, Unfenced
from admission.kube.client import AlreadyExists, ApiError, Client, Conflict, Forbidden, Invalid, Kind, NotFound
from admission.kube.flow import Told
from admission.names import Names

log = structlog.get_logger("muster.webhook")

PARTING_S = 3.0
"""How long a replica that leaves answers over connections that are there; some are asked over by nobody."""
PARTING_LOOKS = 60
"""In that time, whether there are any left."""
SERVICE = "muster-webhook"
SECRET = "muster-webhook"  # noqa: S105 - a name
_SECRETS = Kind("", "v1", "secrets", "Secret")
_CONFIGURATIONS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


class Hooks:
    """See the module. `service` is (namespace, name); without one the API server reaches `url`, whose host counts.

    folder: of tls.crt and tls.key (and ca.crt) that somebody else makes. look_every_s: seconds between looks.
    """

    def __init__(
        self,
        client: Client,
        names: Names,
        *,
        namespace: str,
        port: int,
        host: str = "",
        service: tuple[str, str] | None = None,
        url: str = "",
        identities: Identities | None = None,
        limits: Limits = LIMITS,
        governed_namespaces: Mapping[str, Any] | None = None,
        defaulted_namespaces: Mapping[str, Any] | None = None,
        has_queue: Callable[[str, str], bool] = lambda _namespace, _name: False,
        folder: Path | None = None,
        look_every_s: float | None = None,
    ) -> None:
        self._client = client
        self._names = names
        self._namespace = namespace
        self._port = port
        self._host = host
        self._service = service
        self._url = url
        self._governed = governed_namespaces
        self._defaulted = defaulted_namespaces
        self._folder = folder
        self._look_every_s = look_every_s if look_every_s is not None else 60.0 if folder is None else 10.0
        reviews = Access(Unfenced(client))
        self.webhook = Webhook(reviews, names, identities=identities or IDENTITIES, limits=limits, has_queue=has_queue)
        self._tls: ssl.SSLContext | None = None
        self._held: Certificates | None = None
        self._runner: web.AppRunner | None = None
        self._writing = asyncio.Lock()
        self._overdue, self._unrenewed, self._unrestored = Told(), Told(), Told()

    def _hosts(self) -> Sequence[str]:
        if self._service is not None:
            return certificates.service_names(self._service[1], self._service[0])
        return [urlsplit(self._url).hostname or ""]

    async def start(self) -> None:
        """Certificate, server, configurations; returns when jobs are held."""
        await self._renew()
        log.info("webhook serves", port=self._port, hosts=list(self._hosts()))

    async def run(self) -> None:
        """Keep the certificate fresh; until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._look_every_s)
                try:
                    await self._renew()
                    self._unrenewed.over()
                except (ApiError, OSError, TimeoutError, ValueError) as error:
                    tell = log.warning if self._unrenewed.due() else log.debug
                    tell("certificate not looked after", error=str(error), times=self._unrenewed.times)
        finally:
            if self._runner is not None:
                await self._parted(self._runner)
                await self._runner.cleanup()
            self.webhook.leaving = True

    async def _parted(self, runner: web.AppRunner) -> None:
        """The API server asks over connections that it keeps, also when no new ones come here any more; what it is just
        asking as one is closed fails. So it is told with each answer to close them first."""
        self.webhook.parting = True
        for _ in range(PARTING_LOOKS):
            if runner.server is None or not runner.server.connections:
                return
            await asyncio.sleep(PARTING_S / PARTING_LOOKS)

    async def restore(self) -> None:
        """Write the configurations again: somebody emptied them, as Helm does when it makes them anew, or changed them.
        What cannot be written is told in the log, now and then."""
        try:
            async with self._writing:
                # Another replica may have told of a new CA meanwhile: an old one must not be written over it.
                if self._held is not None:
                    await self._renewed()
            self._unrestored.over()
        except (ApiError, OSError, TimeoutError, ValueError) as error:
            tell = log.warning if self._unrestored.due() else log.debug
            tell("webhook not restored", error=str(error), times=self._unrestored.times)

    async def _renew(self) -> None:
        async with self._writing:
            await self._renewed()

    async def _renewed(self) -> None:
        """What is new is served, and told of; what somebody took out of the configurations is put in again."""
        have = await self._certificates()
        if have == self._held:
            await self._configure(have)
            return
        if self._tls is None:
            self._tls = certificates.context(have)
            self._runner = await self.webhook.serve(self._port, self._tls, host=self._host or None)
            await self._configure(have)
        else:
            await self._configure(have)
            certificates.load(self._tls, have)
        self._held = have

    @property
    def ends_at(self) -> datetime | None:
        """When the certificate that is served ends."""
        return certificates.ends_at(self._held) if self._held is not None else None

    async def _certificates(self) -> Certificates:
        """From the files, else from the Secret; made or renewed there when it is time."""
        if self._folder is not None:
            return certificates.from_files(self._folder)
        clock = self._client.clock.wall
        return await kept(self._client, self._namespace, SECRET, self._hosts(), clock, self._held, self._overdue)

    async def _configure(self, have: Certificates) -> None:
        """Raises TimeoutError where somebody else is always quicker."""
        for wanted in configurations(
            self._names,
            ca_bundle=have.bundle,
            service=self._service,
            url=self._url,
            home=self._namespace,
            governed_namespaces=self._governed,
            defaulted_namespaces=self._defaulted,
        ):
            kind = Kind(
                "admissionregistration.k8s.io", "v1", _CONFIGURATIONS[wanted["kind"]], wanted["kind"], namespaced=False
            )
            path = kind.path(name=wanted["metadata"]["name"])
            for _ in range(5):
                try:
                    raw = await self._client.get(path)
                except NotFound:
                    try:
                        await self._client.create(kind.path(), wanted, fenced=False)
                        break
                    except AlreadyExists:
                        continue
                if not have.bundle:
                    _keep_bundles(wanted, raw)
                if raw.get("webhooks") == wanted["webhooks"]:
                    break
                try:
                    await self._client.put(path, {**raw, "webhooks": wanted["webhooks"]}, fenced=False)
                    break
                except Conflict:
                    continue
            else:
                raise TimeoutError(f"{wanted['kind']} {wanted['metadata']['name']} keeps changing under this replica")


def _keep_bundles(wanted: dict[str, Any], there: dict[str, Any]) -> None:
    """Leave the CAs that stand in a configuration as they are."""
    held = {hook["name"]: hook["clientConfig"].get("caBundle") for hook in there.get("webhooks") or ()}
    for hook in wanted["webhooks"]:
        bundle = held.get(hook["name"])
        if bundle:
            hook["clientConfig"]["caBundle"] = bundle
        else:
            hook["clientConfig"].pop("caBundle", None)


async def kept(
    client: Client,
    namespace: str,
    secret: str,
    hosts: Sequence[str],
    clock: Callable[[], datetime],
    held: Certificates | None,
    overdue: Told,
) -> Certificates:
    """The certificates that a Secret keeps for these hosts; made or renewed there when it is time. Replicas agree, for
    each write is a create or carries the version that was read. Raises TimeoutError when they do not.

    clock: of who looks at them, which is the API server; where this machine's is ahead, one would begin in its future.

    held: what this replica serves. It goes back into a Secret that was emptied or spoilt, for the other replicas serve
    it too, and callers trust it. overdue: when to say that it may not be renewed, though it is time.
    """
    path = _SECRETS.path(namespace, secret)
    for _ in range(2):
        if client.clock.doubtful:
            with suppress(NotFound):
                await client.get(path)
    now = clock()
    for _ in range(5):
        try:
            raw = await client.get(path)
        except NotFound:
            raw = None
        data = {key: base64.b64decode(value) for key, value in ((raw or {}).get("data") or {}).items()}
        have = Certificates.from_data(data)
        wanted = certificates.issue(have, hosts, now)
        if wanted != have and held is not None:
            wanted = certificates.issue(held, hosts, now)
        if wanted == have:
            return wanted
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret, "namespace": namespace},
            "type": "Opaque",  # as the chart makes it: nobody can change the type of one that is there
            "data": {key: base64.b64encode(value).decode() for key, value in wanted.data().items()},
        }
        try:
            if raw is None:
                await client.create(_SECRETS.path(namespace), body, fenced=False)
            else:
                body["metadata"] = raw["metadata"]
                body["type"] = raw.get("type", "Opaque")
                await client.put(path, body, fenced=False)
        except (AlreadyExists, Conflict):
            continue  # another replica was quicker
        except (Forbidden, Invalid) as error:
            if raw is None and isinstance(error, Forbidden):
                back = f"{error.message}; the chart makes the Secret {secret}: helm upgrade makes it again"
                raise Forbidden(error.status, error.reason, back, error.body) from error
            # Due for renewal is not ended: a replica that would not start with it holds no jobs at all.
            if have is None or not certificates.serves(have, hosts, now):
                raise
            ends = certificates.ends_at(have).isoformat()
            tell = log.warning if overdue.due() else log.debug
            tell("certificate not looked after", secret=secret, ends=ends, error=str(error))
            return have
        return wanted
    raise TimeoutError(f"the certificate in Secret {secret} keeps changing under this replica")
