"""Who we are to the API server: base URL, TLS context and a bearer header that stays fresh.

kubernetes_asyncio reads kubeconfigs (exec plugins, OIDC, token files, client certificates) and the in-cluster mount;
nothing else of it is used, nor imported, and that only when a configuration is loaded (`_library`). What it does not do
is done here: re-reading token files and exec plugins as they expire, once a minute or when the server says 401,
reloading client certificates and the authority into the live TLS context; a plugin that hangs is given up; and a proxy
of the environment, the current context of several files, and whom a user acts as, are read as kubectl reads them.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import structlog
import yaml

_log = structlog.get_logger(__name__)
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN = _SERVICE_ACCOUNT / "token"
_LONGEST = 15.0  # seconds of one reading; some plugins ask a server far away


class Credentials:
    """A server and an identity. `base_url` has no trailing slash. `header()` gives the Authorization value or None.

    reload: reads the identity again and returns the header; True says that the server said 401. acts_as: headers that
    say so, (name, value).
    """

    def __init__(
        self,
        base_url: str,
        *,
        authorization: str | None = None,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        proxy: str | None = None,
        acts_as: tuple[tuple[str, str], ...] = (),
        namespace: str = "default",
        reload: Callable[[bool], Awaitable[str | None]] | None = None,
        reload_every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.tls = tls
        self.server_hostname = server_hostname
        self.proxy = proxy
        self.acts_as = acts_as
        self.namespace = namespace
        self._header = authorization
        self._reload = reload
        self._every = reload_every
        self._clock = clock
        self._loaded_at = clock()
        self._reading: asyncio.Task[None] | None = None
        self._forced = False
        self.certificates = 0
        """Counts client certificates: connections that were made with an old one keep it."""

    @property
    def fresh(self) -> bool:
        """`header` answers at once."""
        return self._reload is None or self._clock() < self._loaded_at + self._every

    async def header(self) -> str | None:
        if not self.fresh:
            await self.refresh(stale=self._header, force=False)
        return self._header

    async def refresh(self, *, stale: str | None, force: bool = True) -> bool:
        """Reads the identity again, once for all who ask at the same time; True if the header is not `stale` any more,
        or the client certificate is another.

        A reload that fails keeps the old header: the server is the one to refuse it. Whoever gives up waiting, because
        its own time is over, leaves the reading to the others.
        """
        if self._reload is None:
            return False
        certificates = self.certificates
        if self._header == stale and self._reading is not None and force and not self._forced:
            await asyncio.shield(self._reading)  # may bring what is remembered, and was refused
        if self._header == stale and certificates == self.certificates:
            if self._reading is None:
                self._loaded_at, self._forced = self._clock(), force
                self._reading = asyncio.create_task(self._read(self._reload, force))
            await asyncio.shield(self._reading)
        return self._header != stale or certificates != self.certificates

    async def _read(self, reload: Callable[[bool], Awaitable[str | None]], force: bool) -> None:
        try:
            async with asyncio.timeout(_LONGEST):
                self._header = await reload(force)
        except Exception as error:  # plugins fail in every way there is
            said = f"no answer in {_LONGEST:.0f} s" if isinstance(error, TimeoutError) else str(error)
            _log.warning("credentials could not be read again", error=said)
        finally:
            self._reading = None


@cache
def _library() -> tuple[Any, Any]:
    """(kubernetes_asyncio.config, the class Configuration).

    Importing the library as a whole loads its generated classes of the whole Kubernetes API, which takes longer than
    all the rest of a start. The two packages above what is needed are therefore there as names only, while it is
    imported.
    """
    bare: list[str] = []
    try:
        if "kubernetes_asyncio" not in sys.modules:
            for name in ("kubernetes_asyncio", "kubernetes_asyncio.client"):
                spec = find_spec(name)
                if spec is None:
                    raise ImportError(name)
                sys.modules[name] = module_from_spec(spec)
                bare.append(name)
        configuration = import_module("kubernetes_asyncio.client.configuration").Configuration
        if bare:
            client: Any = sys.modules["kubernetes_asyncio.client"]
            client.Configuration, client.ApiClient = configuration, object
        return import_module("kubernetes_asyncio.config"), configuration
    except (ImportError, AttributeError):  # another release may be put together otherwise
        for name in [name for name in sys.modules if bare and name.partition(".")[0] == "kubernetes_asyncio"]:
            del sys.modules[name]
        bare.clear()
        return import_module("kubernetes_asyncio.config"), import_module("kubernetes_asyncio.client").Configuration
    finally:
        for name in bare:
            sys.modules.pop(name, None)


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # Python 3.13 refuses authorities without key usage extensions; clusters older than that habit are common.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


class _Files:
    """What a live TLS context was made of: files that somebody may renew in place."""

    def __init__(self, tls: ssl.SSLContext, configuration: Any) -> None:
        self._tls = tls
        self._configuration = configuration
        self._authority, self._chain = self._read()

    def _read(self) -> tuple[bytes, bytes]:
        made = self._configuration
        authority, *chain = (
            Path(name).read_bytes() if name else b"" for name in (made.ssl_ca_cert, made.cert_file, made.key_file)
        )
        return authority, b"\n".join(chain)

    def renew(self) -> bool:
        """Load what has changed; is the client certificate another? Raises OSError, also for half of a new pair."""
        made = self._configuration
        authority, chain = self._read()
        if made.ssl_ca_cert and authority != self._authority:
            self._tls.load_verify_locations(cafile=made.ssl_ca_cert)
            self._authority = authority
        if not made.cert_file or chain == self._chain:
            return False
        # A certificate without its key would take the old pair out of the live context: tried on another one first.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self._tls):
            context.load_cert_chain(made.cert_file, keyfile=made.key_file)
        self._chain = chain
        return True


def kubeconfigs(said: str | None = None) -> Iterator[dict[str, Any]]:
    """The kubeconfigs of a path, or of several as $KUBECONFIG has them; else of $KUBECONFIG, or ~/.kube/config. What
    cannot be read is left out."""
    for path in (said or os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep):
        found: Any = None
        with suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
            found = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            yield found


async def from_kubeconfig(path: str | None = None, context: str | None = None) -> Credentials:
    """Raises kubernetes_asyncio's ConfigException, or OSError, when there is no usable configuration; ValueError, when
    the file is no kubeconfig at all, or names a proxy that cannot be spoken to."""
    library, new_configuration = _library()
    configuration = new_configuration()
    if context is None and os.pathsep in (path or os.environ.get("KUBECONFIG") or ""):
        # Of several the first that names one says it, as for kubectl; for the library it is the last.
        context = next((str(said) for one in kubeconfigs(path) if (said := one.get("current-context"))), None)
    try:
        loader = await library.load_kube_config(
            config_file=path, context=context, client_configuration=configuration, persist_config=False
        )
    except (TypeError, AttributeError, KeyError):  # the library takes the file for one
        raise ValueError(f"{path or 'the file'} does not hold clusters, users and contexts") from None
    host = str(configuration.host)
    proxy = configuration.proxy or _proxy_of_environment(host, os.environ)
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise ValueError(f"proxy {proxy}: http and https are the only ones that are spoken to")
    tls = _tls(configuration) if host.startswith("https") else None
    files = _Files(tls, configuration) if tls is not None else None

    async def reload(force: bool) -> str | None:
        if force and hasattr(loader, "exec_plugin_expiry"):
            del loader.exec_plugin_expiry  # the plugin's answer was refused before it expired
        await loader.load_and_set(configuration)
        try:
            if files is not None and files.renew():
                made.certificates += 1
        except OSError as error:  # a token beside it is new all the same
            _log.warning("certificates could not be read again", error=str(error))
        return _bearer(configuration)

    user = getattr(loader, "_user", None)
    # An exec plugin without an expiry would be run once a minute for nothing: it waits for a 401, as in client-go.
    every = float("inf") if user is not None and "exec" in user and not hasattr(loader, "exec_plugin_expiry") else 60.0
    current = loader.current_context or {}
    made = Credentials(
        host,
        authorization=_bearer(configuration),  # may be "Basic ..."
        tls=tls,
        server_hostname=configuration.tls_server_name,
        proxy=proxy,
        acts_as=tuple(_acts_as(user.value if user is not None else {})),
        namespace=(current.get("context") or {}).get("namespace") or "default",
        reload=reload,
        reload_every=every,
    )
    return made


def _acts_as(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Headers of the impersonation that a user of a kubeconfig asks for."""
    if not user.get("as"):
        return
    yield "Impersonate-User", str(user["as"])
    if user.get("as-uid"):
        yield "Impersonate-Uid", str(user["as-uid"])
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", str(group)
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe='')}", str(value)


def _proxy_of_environment(url: str, environment: Mapping[str, str]) -> str | None:
    """As Go's programs take it from HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""

    def said(name: str) -> str:
        return environment.get(name) or environment.get(name.lower()) or ""

    asked = urlsplit(url)
    proxy = said("HTTPS_PROXY" if asked.scheme == "https" else "HTTP_PROXY")
    port = asked.port or (443 if asked.scheme == "https" else 80)
    if not proxy or _without_proxy(asked.hostname or "", port, said("NO_PROXY")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _without_proxy(host: str, port: int, excepted: str) -> bool:
    """Is it this machine, or among what is excepted: names with all below them, addresses, networks; "*" for all."""
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in excepted.lower().split(","):
        rule = entry.strip()
        if rule == "*":
            return True
        try:
            if address is not None and address in ip_network(rule, strict=False):
                return True
        except ValueError:
            pass
        found = re.fullmatch(r"\*?(\[[^]]+\]|[^:]+)(?::(\d+))?", rule)
        if found is None or (found[2] and int(found[2]) != port):
            continue
        name = found[1].strip("[]")
        if host == name or (address is None and host.endswith(f".{name.removeprefix('.')}")):
            return True
    return False


def in_cluster() -> Credentials:
    """The pod's service account. Raises ConfigException outside a cluster."""
    library, new_configuration = _library()
    configuration = new_configuration()
    library.load_incluster_config(client_configuration=configuration, try_refresh_token=False)
    tls = _tls(configuration)

    async def reload(force: bool) -> str | None:
        # A file of the memory-backed mount: reading it is shorter than handing it to a thread.
        if force:
            tls.load_verify_locations(cafile=configuration.ssl_ca_cert)
        return "Bearer " + TOKEN.read_text(encoding="ascii").strip()

    namespace = _SERVICE_ACCOUNT / "namespace"
    return Credentials(
        str(configuration.host),
        authorization=_bearer(configuration),
        tls=tls,
        namespace=namespace.read_text(encoding="ascii").strip() if namespace.exists() else "default",
        reload=reload,
    )


def _bearer(configuration: Any) -> str | None:
    value = configuration.api_key.get("BearerToken")
    return None if value is None else " ".join(str(value).split())
