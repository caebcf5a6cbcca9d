"""TLS of a client, and pinned peers for both sides.

A pin is the SHA-256 of a certificate's public key (SubjectPublicKeyInfo). It is compared when the
handshake ends, before a byte of a request is sent or read: whoever has another key gets no token.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from limpet.errors import ExtraMissing, InvalidInput

_HEX: Final = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
_CURL: Final = "sha256//"


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS settings of a client: how it verifies its server and authenticates itself. TLS 1.3
    only.

    `pins` are accepted public keys of the server, in addition to the check of its certificate.
    """

    ca: str | Path | None = None  # PEM of the CA to trust; None: those of the system
    cert: str | Path | None = None  # PEM of the client's certificate
    key: str | Path | None = None  # PEM of its key
    pins: Sequence[str] = ()

    def context(self) -> ssl.SSLContext:
        """Return the SSLContext. Raises InvalidInput if a file cannot be read."""
        if (self.cert is None) != (self.key is None):
            raise InvalidInput("a client certificate and its key go together. Pass cert and key.")
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            if self.cert is not None and self.key is not None:
                context.load_cert_chain(str(self.cert), str(self.key))
        except OSError as error:  # ssl.SSLError is one
            names = ", ".join([str(each) for each in (self.ca, self.cert, self.key) if each])
            raise InvalidInput(f"the TLS files cannot be read ({names}): {error}.") from error
        pin_peers(context, self.pins)
        return context


def tls_from_environment(url: str) -> Tls | None:
    """The settings for the server of a URL in LIMPET_TLS_CA, _CERT, _KEY (files) and _PIN; None for
    http:// and where none of them is set."""
    named = {name: os.environ.get(f"LIMPET_TLS_{name}") for name in ("CA", "CERT", "KEY", "PIN")}
    if not url.lower().startswith("https:") or not any(named.values()):
        return None
    pins = [each for each in (named["PIN"] or "").split(",") if each]
    return Tls(
        ca=named["CA"] or None, cert=named["CERT"] or None, key=named["KEY"] or None, pins=pins
    )


def pin_peers(context: ssl.SSLContext, pins: Sequence[str]) -> None:
    """End every handshake with a peer whose public key is not pinned. No pins: change nothing.

    Raises InvalidInput for a text that is not a pin.
    """
    if isinstance(pins, str):
        raise InvalidInput("pins is a list of pins. Write pins=['sha256:…'].")
    pinned = frozenset([parse_pin(each) for each in pins])
    if not pinned:
        return

    class PinnedHandshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            certificate = self.getpeercert(binary_form=True)
            if certificate is None or public_key_digest(certificate) not in pinned:
                raise ssl.SSLCertVerificationError("the peer's public key is not pinned")

    public_key_digest(b"")  # fails now if the package is missing, and not at the first handshake
    context.sslobject_class = PinnedHandshake


def is_pinned(context: ssl.SSLContext) -> bool:
    """True if the context checks pins: then the handshake has to be Python's own."""
    return context.sslobject_class is not ssl.SSLObject


def parse_pin(text: str) -> bytes:
    """The digest of a pin: 64 hex digits, `sha256:HEX`, or `sha256//BASE64` as curl takes it."""
    if isinstance(text, str) and (match := _HEX.fullmatch(text.replace(" ", ""))):
        return bytes.fromhex(match[1])
    try:
        if not isinstance(text, str) or not text.startswith(_CURL):
            raise ValueError
        digest = base64.b64decode(text.removeprefix(_CURL), validate=True)
        if len(digest) != 32:
            raise ValueError
    except (ValueError, binascii.Error):
        raise InvalidInput(
            "a pin is the SHA-256 of a public key: sha256:HEX, or sha256//BASE64 as curl takes it. "
            "limpet certs pin FILE prints it."
        ) from None
    return digest


def public_key_digest(certificate: bytes) -> bytes | None:
    """The SHA-256 of the public key of a certificate (DER); None if it is not a certificate."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    except ImportError as error:
        raise ExtraMissing("cryptography", "security") from error
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
        encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except ValueError:
        return None
    digest = hashes.Hash(hashes.SHA256())
    digest.update(encoded)
    return digest.finalize()
