"""A certificate that somebody else makes: read from files, its rotation noticed, its CA told to the API server."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from admission.controller import certificates
from admission.controller.certificates import CA_CERT, CERT, KEY, Certificates, ends_at, from_files, issue
from admission.controller.hooks import Hooks
from tests.controller.lab import NAMES, World
from tests.controller.test_keep import until

NOW = datetime.now(UTC)  # noqa: TID251 - TLS looks at the calendar
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/muster"


def put(folder: Path, made: Certificates, *, ca: bool = True) -> None:
    """As the kubelet does it: all files change at once, by a link."""
    new = folder.parent / f"{folder.name}-{len(list(folder.parent.iterdir()))}"
    new.mkdir()
    for name, text in ((CERT, made.cert), (KEY, made.key), *([(CA_CERT, made.ca_cert)] if ca else [])):
        (new / name).write_bytes(text)
    link = folder.parent / "link"
    link.symlink_to(new)
    link.rename(folder)


def a_certificate(days: float = 30) -> Certificates:
    return issue(None, ["127.0.0.1"], NOW - timedelta(days=90 - days))


async def served(port: int, trust: bytes) -> bytes:
    context = ssl.create_default_context(cadata=trust.decode())
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return der


def der(made: Certificates) -> bytes:
    return ssl.PEM_cert_to_DER_cert(made.cert.decode())


@pytest.mark.parametrize("ca", [True, False], ids=["with its CA", "whose CA somebody injects"])
async def test_a_rotation_is_noticed(world: World, tmp_path: Path, unused_tcp_port: int, ca: bool) -> None:
    folder, first, second = tmp_path / "certs", a_certificate(), a_certificate(60)
    put(folder, first, ca=ca)
    hooks = Hooks(
        world.client,
        NAMES,
        namespace="muster-system",
        host="127.0.0.1",
        port=unused_tcp_port,
        url=f"https://127.0.0.1:{unused_tcp_port}",
        folder=folder,
        look_every_s=0.01,
    )

    async def bundles() -> set[bytes]:
        found = await world.client.get(CONFIGURATIONS)
        return {base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in found["webhooks"]}

    await hooks.start()
    running = asyncio.ensure_future(hooks.run())
    try:
        assert await served(unused_tcp_port, first.ca_cert) == der(first)
        assert hooks.ends_at == ends_at(first)
        assert await bundles() == {first.ca_cert if ca else b""}
        if not ca:
            found = await world.client.get(CONFIGURATIONS)
            for hook in found["webhooks"]:
                hook["clientConfig"]["caBundle"] = base64.b64encode(second.ca_cert).decode()
            await world.client.put(CONFIGURATIONS, found)
        (folder / CERT).write_bytes(second.cert)  # half of a new one: the old one is served on
        await asyncio.sleep(0.05)
        assert not running.done()
        assert await served(unused_tcp_port, first.ca_cert) == der(first)
        put(folder, second, ca=ca)

        async def is_new() -> bool:
            try:
                return await served(unused_tcp_port, second.ca_cert) == der(second)
            except ssl.SSLCertVerificationError:
                return False

        await until(is_new)
        assert hooks.ends_at == ends_at(second)
        assert await bundles() == {second.ca_cert}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    with pytest.raises(OSError, match=r"tls\.crt"):
        from_files(folder)
    put(folder, a_certificate())
    assert from_files(folder).bundle == (folder / CA_CERT).read_bytes()
    (folder / KEY).write_bytes(a_certificate().key)
    with pytest.raises(ValueError, match="does not belong"):
        from_files(folder)
    (folder / CERT).write_bytes(b"rubbish")
    with pytest.raises(ValueError):
        from_files(folder)
    certificates.context(a_certificate())
