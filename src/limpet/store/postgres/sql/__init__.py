"""The SQL of the PostgreSQL store, in files beside this module.

`queries.sql`, `feed.sql`, `live.sql`, `leases.sql`, `erasure.sql`, `blobs.sql`, `verify.sql`,
`doctor.sql`, `schema.sql` and `overview.sql` hold named statements, found in `SQL` by name.
`functions.sql` and the numbered migrations are scripts. Statements are sent as they are written:
what varies is a parameter. Only pages of heads, whose filters vary, are put together in Python
(`heads.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from limpet.store.statements import scripts, statements

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
    "overview",
)
_FOLDER: Final = Path(__file__).parent
SQL: Final = statements(_FOLDER, STATEMENTS)
_SCRIPTS: Final = scripts(_FOLDER, STATEMENTS)


def script(name: str) -> str:
    """The text of one file, which was read with the others: opening a store needs no more files."""
    return _SCRIPTS[name]
