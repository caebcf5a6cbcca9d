"""How many examples a property is tried on: fewer in a hurry, more when there is time.

A test says how many the suite should try; `make quick` tries a tenth of them and `make torture`,
on fresh seeds, three times as many.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

from tests.support import seeds

VARIABLE: Final = "LIMPET_QUICK"
_LEAST: Final = 10


def examples(count: int) -> settings:
    """The settings of a property that the suite tries on so many examples."""
    if seeds.fresh():
        return settings(max_examples=count * 3)
    if os.environ.get(VARIABLE):
        return settings(max_examples=max(_LEAST, count // 10))
    return settings(max_examples=count)
