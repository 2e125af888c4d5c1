from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import ClientSession, TCPConnector, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from admission.controller import certificates
from admission.controller.certificates import CA_LIFE, LEAF_LIFE, Certificates, issue

NOW = datetime.now(UTC).replace(microsecond=0)  # noqa: TID251 - TLS itself looks at the clock
HOSTS = ("localhost", "127.0.0.1")


def test_nothing_is_made_anew_before_it_is_due() -> None:
    first = issue(None, HOSTS, NOW)
    assert issue(first, HOSTS, NOW + timedelta(days=30)) is first


def test_a_leaf_is_renewed_by_the_same_ca() -> None:
    first = issue(None, HOSTS, NOW)
    second = issue(first, HOSTS, NOW + LEAF_LIFE * 2 / 3)
    assert second.cert != first.cert
    assert second.bundle == first.bundle


def test_an_old_ca_stays_trusted_until_its_last_leaf_has_ended() -> None:
    first = issue(None, HOSTS, NOW)
    turn = NOW + CA_LIFE * 2 / 3
    second = issue(first, HOSTS, turn)
    assert second.ca_cert != first.ca_cert
    assert second.bundle == second.ca_cert + first.ca_cert
    leaf = x509.load_pem_x509_certificate(second.cert)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(second.ca_cert))
    later = turn + timedelta(days=1)
    while later < turn + LEAF_LIFE - timedelta(days=5):
        second = issue(second, HOSTS, later)
        assert first.ca_cert in second.bundle
        later += timedelta(days=25)
    assert issue(second, HOSTS, turn + LEAF_LIFE + timedelta(days=1)).old_ca == b""


def of_others(password: bytes = b"") -> tuple[bytes, bytes]:
    """A certificate without names, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begun = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    whole = begun.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + LEAF_LIFE).sign(key, hashes.SHA256())
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    form = serialization.Encoding.PEM
    return whole.public_bytes(form), key.private_bytes(form, serialization.PrivateFormat.PKCS8, hidden)


UNNAMED, LOCKED = of_others()[0], of_others(b"secret")[1]
UNKNOWN = b"-----BEGIN PRIVATE KEY-----\nMBMCAQAwBwYDKgMEBQAEBQQDAQID\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize("field", ["ca_cert", "ca_key", "cert", "key", "old_ca"])
@pytest.mark.parametrize(
    "rubbish",
    [b"rubbish", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", UNNAMED, LOCKED, UNKNOWN],
    ids=["no text of it", "none in it", "without names", "with a password", "of an unknown kind"],
)
def test_what_cannot_be_read_is_made_anew(field: str, rubbish: bytes) -> None:
    broken = replace(issue(None, HOSTS, NOW), **{field: rubbish})
    made = issue(broken, HOSTS, NOW)
    assert issue(made, HOSTS, NOW) is made
    certificates.context(made)


def test_another_key_or_other_hosts_need_another_leaf() -> None:
    first, other = issue(None, HOSTS, NOW), issue(None, HOSTS, NOW)
    assert issue(replace(first, key=other.key), HOSTS, NOW).key != other.key
    assert issue(replace(first, cert=other.cert, key=other.key), HOSTS, NOW).cert != other.cert
    assert issue(first, ("elsewhere",), NOW).cert != first.cert


def test_the_secret_holds_all_of_it() -> None:
    first = issue(None, HOSTS, NOW)
    assert Certificates.from_data(first.data()) == first
    assert Certificates.from_data({**first.data(), "tls.key": b""}) is None


async def test_a_new_leaf_is_served_without_a_break() -> None:
    first = issue(None, HOSTS, NOW)
    second = issue(replace(first, cert=b"x"), HOSTS, NOW)
    tls = certificates.context(first)

    async def name(_: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/", name)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    trust = ssl.create_default_context(cadata=second.bundle.decode())

    async def served() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost")
        der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        del reader
        return der

    def der(pem: bytes) -> bytes:
        return ssl.PEM_cert_to_DER_cert(pem.decode())

    try:
        async with ClientSession(connector=TCPConnector(ssl=trust)) as session:
            assert await (await session.get(f"https://localhost:{port}/")).text() == "here"
            assert await served() == der(first.cert)
            certificates.load(tls, second)
            assert await served() == der(second.cert)
            assert await (await session.get(f"https://localhost:{port}/")).text() == "here"
    finally:
        await runner.cleanup()
