"""A ring of keys with what was sealed, anchored and signed with them, as earlier code wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from limpet.model import Key
from limpet.model.head import blank
from limpet.security.keys import KeySeal
from limpet.security.masters import LocalMasters
from limpet.security.ring import MemoryRing, RingRow
from limpet.store.protocol import Place

GOLDEN: Final = Path(__file__).parent / "keys-1.json"
UID: Final = "01900000-0000-7000-8000-000000000001"
BODY: Final = b'{"data":{"text":"hello"}}'
PLACE: Final = Place("event", UID, "e1", "user.message", b"bound")
KEY: Final = Key("support", "ada", "c1")
HEAD: Final = blank(KEY, UID, 0)
LINK: Final = bytes(range(32))


def seal_of(ring: MemoryRing) -> KeySeal:
    """The seal of a ring whose master is known."""
    return KeySeal(LocalMasters("golden", lambda: [bytes(range(32))]), ring)


async def rows(ring: MemoryRing) -> list[RingRow]:
    kinds: tuple[Any, ...] = ("meta", "key", "plain", "anchor")
    return [row for kind in kinds for row in await ring.page(kind, None)]


async def write() -> None:
    """Make a ring, and one of everything that is made with its keys."""
    ring = MemoryRing()
    seal = seal_of(ring)
    await seal.open_ring(None)
    await seal.mark_bound([(UID, "", 3)])
    await seal.ready([UID])
    await seal.anchor({UID: (KEY, 7, LINK)})
    made: dict[str, Any] = {
        "ring": [[*row[:3], row.value.hex()] for row in await rows(ring)],
        "body": seal.seal(BODY, PLACE).hex(),
        "mac": seal.mac(HEAD).hex(),
        "public_key": seal.public_key,
        "signature": seal.sign(b"signed").hex(),
    }
    GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
