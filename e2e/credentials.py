"""The keys and certificates of one control plane: an authority of its own, and whoever it vouches for."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SIGNS_OTHERS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Issues certificates into a folder. `ca.crt` there is what clients trust. `plain`: as those of older clusters are,
    which say neither what their keys are for nor by which key they were signed."""

    def __init__(self, folder: Path, *, plain: bool = False) -> None:
        self.folder = folder
        self._plain = plain
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster-e2e")])
        certificate = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if not plain:
            identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
            certificate = certificate.add_extension(_SIGNS_OTHERS, critical=True)
            certificate = certificate.add_extension(identifier, critical=False)
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def server(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of a server on this machine's loopback address."""
        names = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc")]
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        alternatives = x509.SubjectAlternativeName([*names, *addresses])
        return self._issue(name, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), alternatives)

    def client(self, user: str, groups: Sequence[str] = ()) -> tuple[Path, Path]:
        """Certificate and key that the API server takes for `user` in `groups`."""
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        file = "client-" + "".join(c if c.isalnum() else "-" for c in "-".join([user, *groups]))
        return self._issue(file, x509.Name(attributes), None)

    def signing_key(self, name: str) -> Path:
        """A private key alone, as for service account tokens."""
        return self._write_key(name, ec.generate_private_key(ec.SECP256R1()))

    def _issue(
        self, file: str, subject: x509.Name, alternatives: x509.SubjectAlternativeName | None
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key)
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH if alternatives is None else ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        # Python checks certificates strictly from 3.13 on, and wants to be told by which key they were signed.
        signed = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder if self._plain else builder.add_extension(signed, critical=False)
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        certificate = self.folder / f"{file}.crt"
        certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return certificate, self._write_key(file, key)

    def _write_key(self, file: str, key: ec.EllipticCurvePrivateKey) -> Path:
        path = self.folder / f"{file}.key"
        path.touch(mode=0o600)
        traditional = serialization.PrivateFormat.TraditionalOpenSSL
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, traditional, serialization.NoEncryption()))
        return path


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - certificates have dates
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
