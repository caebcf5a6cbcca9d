"""Bytes on their way to disk and back: encode, compress, seal; and what a body is."""

from limpet.store.coding.codec import COMPRESSED, NO_SEAL, REMOVED, SEALED, Codec, Damaged
from limpet.store.coding.seal import (
    Awaited,
    Sealer,
    Unavailable,
    Unforgotten,
    Unready,
    WaitingSealer,
    owners_of,
    scope_owner,
)

__all__ = [
    "COMPRESSED",
    "NO_SEAL",
    "REMOVED",
    "SEALED",
    "Awaited",
    "Codec",
    "Damaged",
    "Sealer",
    "Unavailable",
    "Unforgotten",
    "Unready",
    "WaitingSealer",
    "owners_of",
    "scope_owner",
]
