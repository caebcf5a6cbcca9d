"""History: rewinds and merges. They change state by their operations; no fact follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.model.events import Fact
from limpet.model.keys import Key
from limpet.model.ops import PlainOp

REWOUND: Final = "session.rewound"
MERGED: Final = "session.merged"


def rewound(data: Mapping[str, Any], ops: Iterable[PlainOp]) -> Fact:
    """The state became again what it was after event `at`; `checksum` is that of the fields."""
    return Fact(type=REWOUND, data=data, ops=ops)


def merged(
    other: Key,
    *,
    uid: str,
    at: int,
    base: Mapping[str, Any],
    checksum: bytes,
    ops: Iterable[PlainOp],
) -> Fact:
    """Records that what `other` (with this uid) had new up to its event `at` was merged.

    `base` names the state on which both were compared, `checksum` is that of the state after.
    """
    named = {"app": other.app, "user": other.user, "id": other.id, "uid": uid}
    data = {"other": named, "at": at, "base": dict(base), "checksum": checksum.hex()}
    return Fact(type=MERGED, data=data, ops=ops)
