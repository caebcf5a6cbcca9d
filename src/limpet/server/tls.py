"""TLS of a server: 1.3 only, and clients' certificates where a CA or pins for them are named."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from limpet.errors import InvalidInput
from limpet.store.remote.tls import pin_peers


def server_context(
    cert: Path | None, key: Path | None, client_ca: Path | None = None, pins: Sequence[str] = ()
) -> ssl.SSLContext | None:
    """The TLS of a server; None if no certificate is named. Raises InvalidInput.

    With `pins` only clients whose certificates have one of these public keys enter.
    """
    if pins and client_ca is None:
        raise InvalidInput("--pin checks clients' certificates: pass --client-ca too.")
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
    pin_peers(context, pins)
    return context
