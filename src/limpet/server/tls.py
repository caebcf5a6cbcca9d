"""TLS of a server: 1.3 only, and certificates of clients where a CA for them is named."""

from __future__ import annotations

import ssl
from pathlib import Path

from limpet.errors import InvalidInput


def server_context(
    cert: Path | None, key: Path | None, client_ca: Path | None
) -> ssl.SSLContext | None:
    """The TLS of a server; None if no certificate is named. Raises InvalidInput."""
    if cert is None and key is None:
        if client_ca is not None:
            raise InvalidInput("--client-ca needs TLS: pass --tls-cert and --tls-key too.")
        return None
    if cert is None or key is None:
        raise InvalidInput("--tls-cert and --tls-key go together. Pass both.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(cert, key)
        if client_ca is not None:
            context.load_verify_locations(cafile=client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        names = f"{cert}, {key}" + ("" if client_ca is None else f", {client_ca}")
        raise InvalidInput(f"the TLS files cannot be read ({names}): {error}.") from error
    return context
