"""Certificates of the webhook: made here, renewed here, swapped under a running server.

Or made by somebody else and read from files, which are looked at again and again.

A CA of our own and one leaf for the webhook's Service, both EC P-256. `issue` is pure but for randomness: it takes what
there is and the time, and answers what there should be. A leaf is renewed at two thirds of its life; a CA likewise, and
then the old one stays in the bundle until every leaf it signed has ended, so that callers and server may change over in
any order. The caller stores the answer (a Secret, one writer) and shows `bundle` to the API server before it serves the
new leaf; `context` makes a TLS context whose certificate `load` replaces while connections live on.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=5 * 365)
LEAF_LIFE = timedelta(days=90)
SKEW = timedelta(minutes=10)
"""Clocks of others may be behind by so much."""

CA_CERT, CA_KEY, OLD_CA, CERT, KEY = "ca.crt", "ca.key", "old-ca.crt", "tls.crt", "tls.key"


@dataclass(frozen=True)
class Certificates:
    """PEM texts, as the Secret stores them."""

    ca_cert: bytes
    ca_key: bytes
    cert: bytes
    key: bytes
    old_ca: bytes = b""
    """CAs that signed leaves which may still be served."""

    @property
    def bundle(self) -> bytes:
        """What callers must trust."""
        return self.ca_cert + self.old_ca

    def data(self) -> dict[str, bytes]:
        """As the data of a Secret, before base64; the leaf under the names that one of type kubernetes.io/tls has."""
        return {CA_CERT: self.ca_cert, CA_KEY: self.ca_key, OLD_CA: self.old_ca, CERT: self.cert, KEY: self.key}

    @classmethod
    def from_data(cls, data: Mapping[str, bytes]) -> Certificates | None:
        """None when something is missing."""
        if not all(data.get(name) for name in (CA_CERT, CA_KEY, CERT, KEY)):
            return None
        return cls(data[CA_CERT], data[CA_KEY], data[CERT], data[KEY], data.get(OLD_CA, b""))


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Names by which the API server calls a Service."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", f"{service}.{namespace}", service)


def issue(have: Certificates | None, hosts: Sequence[str], now: datetime) -> Certificates:
    """What should be served from now on: the same value while nothing is due. `hosts` are DNS names or IP addresses.

    What cannot be read, or was not made for these hosts, is made anew.
    """
    ca, ca_key, leaf = None, None, None
    if have is not None:
        with contextlib.suppress(ValueError):
            ca, ca_key = _load(have.ca_cert, have.ca_key)
        with contextlib.suppress(ValueError):
            leaf = x509.load_pem_x509_certificate(have.cert)
    old = _still_needed(have.old_ca, now) if have is not None else b""
    if ca is None or ca_key is None or have is None or _due(ca, now):
        if ca is not None and ca.not_valid_after_utc > now:
            old = ca.public_bytes(serialization.Encoding.PEM) + old
        ca, ca_key = _authority(now)
        leaf = None
    if have is not None and leaf is not None and not _due(leaf, now) and _hosts(leaf) == set(hosts) and _matches(have):
        if old == have.old_ca:
            return have
        return Certificates(have.ca_cert, have.ca_key, have.cert, have.key, old)
    cert, key = _leaf(ca, ca_key, hosts, now)
    return Certificates(ca.public_bytes(serialization.Encoding.PEM), _pem(ca_key), cert, key, old)


def from_files(folder: Path) -> Certificates:
    """What somebody else (cert-manager) put into a folder: tls.crt and tls.key, and ca.crt where callers are to trust
    it. Raises ValueError or OSError when there is none, or half of a new one."""
    cert, key = (folder / CERT).read_bytes(), (folder / KEY).read_bytes()
    ca = (folder / CA_CERT).read_bytes() if (folder / CA_CERT).exists() else b""
    if x509.load_pem_x509_certificate(cert).public_key() != _private(key).public_key():
        raise ValueError(f"{folder}: the key does not belong to the certificate")
    return Certificates(ca, b"", cert, key)


def ends_at(have: Certificates) -> datetime:
    """When the leaf ends."""
    return x509.load_pem_x509_certificate(have.cert).not_valid_after_utc


def serves(have: Certificates, hosts: Sequence[str], now: datetime) -> bool:
    """Is it whole, made for these hosts, and not over yet, though it may be due."""
    if not _matches(have):
        return False
    leaf = x509.load_pem_x509_certificate(have.cert)
    return leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc and _hosts(leaf) == set(hosts)


def _renewal(cert: x509.Certificate) -> datetime:
    life = cert.not_valid_after_utc - cert.not_valid_before_utc
    return cert.not_valid_before_utc + life * 2 / 3


def _due(cert: x509.Certificate, now: datetime) -> bool:
    return now >= _renewal(cert) or now < cert.not_valid_before_utc


def _hosts(cert: x509.Certificate) -> set[str]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    }


def _matches(have: Certificates) -> bool:
    """Was the leaf signed by this CA, and is this its key?"""
    try:
        leaf, _ = _load(have.cert, have.key)
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(have.ca_cert))
    except Exception:  # noqa: BLE001, RUF100 - whatever is wrong with it, a new one is right
        return False
    return True


def _load(cert: bytes, key: bytes) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    loaded, private = x509.load_pem_x509_certificate(cert), _private(key)
    if not isinstance(private, ec.EllipticCurvePrivateKey) or loaded.public_key() != private.public_key():
        raise ValueError("the key does not belong to the certificate")
    return loaded, private


def _private(key: bytes) -> Any:
    """Raises ValueError, also for one that takes a password, or is of a kind that nobody here knows."""
    try:
        return serialization.load_pem_private_key(key, None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from None


def _still_needed(bundle: bytes, now: datetime) -> bytes:
    """Old CAs, but for those whose last leaf has ended: no leaf was signed after two thirds of a CA's life."""
    try:
        kept = [
            cert
            for cert in (x509.load_pem_x509_certificates(bundle) if bundle else [])
            if now < min(cert.not_valid_after_utc, _renewal(cert) + LEAF_LIFE)
        ]
    except ValueError:
        return b""
    return b"".join(cert.public_bytes(serialization.Encoding.PEM) for cert in kept)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(subject: x509.Name, issuer: x509.Name, now: datetime, life: timedelta) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + life)
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name keeps an old and a new CA apart for those who look issuers up by name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"muster-ca-{x509.random_serial_number() % 10**8:08}")])
    public = key.public_key()
    cert = (
        _builder(name, name, now, CA_LIFE)
        .public_key(public)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    return cert, key


def _leaf(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, hosts: Sequence[str], now: datetime
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(LEAF_LIFE, ca.not_valid_after_utc - now)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster-webhook")])
    cert = (
        _builder(name, ca.subject, now, life)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return cert.public_bytes(serialization.Encoding.PEM), _pem(key)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# ---------------------------------------------------------------- serving


def context(have: Certificates) -> ssl.SSLContext:
    """A TLS context for a server, 1.2 or newer."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    load(made, have)
    return made


def load(into: ssl.SSLContext, have: Certificates) -> None:
    """Serve this leaf from the next handshake on; connections that are open stay."""
    # The ssl module reads files only; they live for this call, in memory where the system has such a folder.
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=folder) as where:
        cert, key = Path(where) / CERT, Path(where) / KEY
        cert.write_bytes(have.cert)
        key.touch(mode=0o600)
        key.write_bytes(have.key)
        into.load_cert_chain(cert, key)
