"""The SQL of the PostgreSQL store, in files beside this module.

`queries.sql`, `feed.sql`, `live.sql`, `leases.sql`, `erasure.sql`, `blobs.sql`, `verify.sql`,
`doctor.sql` and `schema.sql` hold named statements, found in `SQL` by name. `functions.sql` and the
numbered migrations are scripts. Statements are sent as they are written: what varies is a
parameter. Only pages of heads, whose filters vary, are put together in Python (`heads.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

STATEMENTS: Final = (
    "queries",
    "feed",
    "live",
    "leases",
    "erasure",
    "blobs",
    "cold",
    "verify",
    "doctor",
    "schema",
)


def script(name: str) -> str:
    """The text of one file."""
    return Path(__file__).with_name(f"{name}.sql").read_text()


def _load() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in STATEMENTS:
        blocks = re.split(r"^-- name: (\w+)\n", script(name), flags=re.MULTILINE)[1:]
        found |= dict(zip(blocks[::2], map(str.strip, blocks[1::2]), strict=True))
    return found


SQL: Final = _load()
