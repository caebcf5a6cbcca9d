"""The canonical encoding: equal values give equal bytes. Also its checksum, and sameness.

JSON in UTF-8 without white space, names sorted by code point. Integers and floats keep their
kind (1 and 1.0 are different values), floats are written in the shortest form that reads back.
Two values are the same when these bytes are: `==` calls 1, 1.0 and True equal, and 0.0 and -0.0.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import msgspec

from limpet.model.values import ABSENT

canonical: Final = msgspec.json.Encoder(order="deterministic").encode
# Tells the same values apart as the canonical encoding does, without the cost of escaping text.
packed: Final = msgspec.msgpack.Encoder(order="deterministic").encode
SCALARS: Final = frozenset((str, int, float, bool, type(None)))


def checksum(fields: Any) -> bytes:
    """SHA-256 of the canonical encoding. A snapshot's state must still match it."""
    return hashlib.sha256(canonical(fields)).digest()


def same(a: Any, b: Any) -> bool:
    """True if two values have the same canonical encoding. ABSENT equals only itself."""
    if a is b:
        return True
    kind = type(a)
    if kind is float:
        return type(b) is float and a == b and math.copysign(1.0, a) == math.copysign(1.0, b)
    if kind in SCALARS:
        return kind is type(b) and bool(a == b)
    if a is ABSENT or b is ABSENT:
        return False
    return packed(a) == packed(b)
