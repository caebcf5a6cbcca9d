"""Certificates of erasure: what a store signs when it has forgotten a session or a user.

The signature is Ed25519 of the certificate's JSON without it, so that anybody can check it offline:
`receipt_check` does so without Limpet.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from limpet.errors import CertificateInvalid
from limpet.security import receipt_check as offline
from limpet.security.receipts import Receipt
from limpet.store.protocol import ErasureCertificate


def signed(draft: ErasureCertificate, sign: Callable[[bytes], bytes]) -> ErasureCertificate:
    """Return the certificate with its signature."""
    message = offline.certificate_message(msgspec.to_builtins(draft))
    return msgspec.structs.replace(draft, signature=sign(message))


def check_certificate(
    certificate: ErasureCertificate, receipt: Receipt | None = None, *, public_key: str | bytes
) -> None:
    """Check a certificate of erasure with the store's public key; with a receipt, that its session
    is among those that were erased. Raises CertificateInvalid; needs no store."""
    try:
        key = offline.public_key_of(public_key)
        message = offline.certificate_message(msgspec.to_builtins(certificate))
        offline.check_signature(key, certificate.signer, certificate.signature, message)
        if receipt is not None:
            offline.check_signature(key, receipt.signer, receipt.signature, receipt.message)
            names = {(each.uid, each.key_hash) for each in certificate.sessions}
            if (receipt.uid, receipt.key_hash) not in names:
                raise offline.NotValid("the session of the receipt is not among those erased")
    except (offline.NotValid, msgspec.MsgspecError, TypeError, AttributeError) as error:
        raise CertificateInvalid(str(error)) from error
