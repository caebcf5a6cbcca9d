"""Seals with keys, rings of their own, and masters for tests."""

from __future__ import annotations

import os
from pathlib import Path

from limpet.security.keys import KeySeal, open_masters
from limpet.security.masters import new_master
from limpet.security.ring import MemoryRing, Ring
from tests.support.seal import at_once


def key_file(path: Path, masters: int = 1) -> str:
    """A new key file, and `keys=` for it."""
    return rewrite(path, [new_master() for _ in range(masters)])


def rewrite(path: Path, masters: list[str]) -> str:
    """Put these masters in a key file."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join(masters) + "\n")
    return f"file://{path}"


def memory_seal(ring: Ring | None = None) -> KeySeal:
    """A seal on the masters of this process, ready to use; on a ring that others may share."""
    seal = KeySeal(open_masters("memory:"), ring or MemoryRing())
    at_once(seal.open_ring(None))
    return seal
