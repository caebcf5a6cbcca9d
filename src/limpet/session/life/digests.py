"""Digests: by which a file that came back is known to be the one that was sent."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path


def digest_of(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        found = sha256()
        while piece := file.read(2**20):
            found.update(piece)
    return path.stat().st_size, found.hexdigest()
