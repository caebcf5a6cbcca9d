"""The canonical encoding: equal values, equal bytes; and the checksum taken over it.

JSON in UTF-8 without white space, names sorted by code point. Integers and floats keep their
kind (1 and 1.0 are different values), floats are written in the shortest form that reads back.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def checksum(fields: Any) -> bytes:
    """SHA-256 of the canonical encoding: what a snapshot's state must still amount to."""
    return hashlib.sha256(canonical(fields)).digest()
