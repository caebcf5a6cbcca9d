"""Names of parametrised tests that are the same in every process."""

from __future__ import annotations

import re


def plain(value: object) -> str:
    """The value as text, without addresses, and sets in order."""
    text = str(sorted(value)) if isinstance(value, (set, frozenset)) else str(value)
    return re.sub(r" at 0x[0-9a-f]+", "", text)
