"""Certificates for development: a local CA, and a server's and a client's certificate of it.

Not for production: the CA's key lies beside the certificates it signed.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from limpet.errors import ExtraMissing, InvalidInput

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ExtraMissing("cryptography", "security") from error

LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_CA_DAYS: Final = 3_650
_DAYS: Final = 397
_LEEWAY: Final = timedelta(minutes=5)  # for clocks that are a little behind


class CertificateWithKey(msgspec.Struct, frozen=True):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.pem and NAME.key, which nobody else may read. Raises InvalidInput."""
        pem = serialization.Encoding.PEM
        key = self.key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(folder / f"{name}.key", key, mode=0o600)
        _write(folder / f"{name}.pem", self.certificate.public_bytes(pem), mode=0o644)


def issue(
    name: str,
    *,
    issuer: CertificateWithKey | None = None,
    hosts: Sequence[str] = (),
    days: int = _DAYS,
    now: datetime | None = None,
) -> CertificateWithKey:
    """Make a certificate: a CA without an `issuer`, a server's with `hosts`, else a client's."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = key if issuer is None else issuer.key
    is_ca = issuer is None
    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if not is_ca:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return CertificateWithKey(builder.sign(signer, hashes.SHA256()), key)


def write_dev_certs(folder: Path, hosts: Sequence[str] = ()) -> None:
    """Write ca, server and client (.pem and .key) into a folder, for localhost and `hosts`.

    Nothing is overwritten: raises InvalidInput if one of the files is there.
    """
    ca = issue("Limpet development CA", days=_CA_DAYS)
    made = {
        "ca": ca,
        "server": issue("limpet server", issuer=ca, hosts=(*LOCAL, *hosts)),
        "client": issue("limpet client", issuer=ca),
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}.") from error
    for name in made:
        for path in (folder / f"{name}.pem", folder / f"{name}.key"):
            if path.exists():
                raise InvalidInput(f"{path} exists already. Choose an empty directory.")
    for name, issued in made.items():
        issued.write(folder, name)


def certificate_of(path: Path) -> bytes:
    """The first certificate of a PEM file, as DER. Raises InvalidInput."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read as a PEM certificate.") from error
    return certificate.public_bytes(serialization.Encoding.DER)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InvalidInput(f"{host!r} is not the name of a host. Use ASCII names.") from None


def _write(path: Path, content: bytes, *, mode: int) -> None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(number, "wb") as file:
            file.write(content)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from error
