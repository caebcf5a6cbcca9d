"""Seeds: every random choice of a test comes from one number, printed so that it can be replayed.

A run of the suite makes the choices of the last run: what passed once fails only when something
changed. LIMPET_SEED=fresh makes new ones, as `make torture` does; LIMPET_SEED=123 makes every
test that asks for a seed use this one.
"""

from __future__ import annotations

import os
import random
from typing import Final
from zlib import crc32

VARIABLE: Final = "LIMPET_SEED"
FRESH: Final = "fresh"


def fresh() -> bool:
    """Whether this run is to look where none has looked before."""
    return os.environ.get(VARIABLE) == FRESH


def seed(name: str) -> int:
    """The seed of this name, a new one, or the one that is to be replayed."""
    given = os.environ.get(VARIABLE)
    if fresh():
        chosen = random.SystemRandom().randrange(2**32)
    else:
        chosen = int(given) if given else crc32(name.encode())
    print(f"{name}: replay with {VARIABLE}={chosen}")
    return chosen
