"""Seeds: every random choice of a test comes from one number, printed so that it can be replayed.

HOLDFAST_SEED=123 makes every test that asks for a seed use this one.
"""

from __future__ import annotations

import os
import random
from typing import Final

VARIABLE: Final = "HOLDFAST_SEED"


def seed(name: str) -> int:
    """A fresh seed, or the one that is to be replayed."""
    given = os.environ.get(VARIABLE)
    chosen = int(given) if given else random.SystemRandom().randrange(2**32)
    print(f"{name}: replay with {VARIABLE}={chosen}")
    return chosen
