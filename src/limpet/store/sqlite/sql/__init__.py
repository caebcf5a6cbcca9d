"""The SQL of the SQLite store, in files beside this module.

`queries.sql`, `feed.sql`, `live.sql`, `leases.sql`, `erasure.sql`, `blobs.sql`, `verify.sql`,
`doctor.sql`, `schema.sql` and `overview.sql` hold named statements; the numbered files are
migrations, and `live_schema.sql` makes the database of the live channel. A statement may have parts
in braces: lists of columns, the condition on event types, what a session does now. `SQL` has every
statement with its usual parts; `compose` puts others in their place. Only pages of heads, whose
filters vary, are built in `heads.py`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store.sqlite.rows import EVENT_COLUMNS, HEAD_COLUMNS, TOMBSTONE_COLUMNS
from limpet.store.statements import read_sql

_ALL_TYPES: Final = "TRUE"
_TEXTS, SCRIPTS = read_sql(Path(__file__).parent)
_PARTS: Final = {
    "head": HEAD_COLUMNS,
    "event": EVENT_COLUMNS,
    "tombstone": TOMBSTONE_COLUMNS,
    "overhead": str(EVENT_OVERHEAD_BYTES),
    "types": _ALL_TYPES,
    "ids": "?",
    "readiness": _TEXTS["readiness"],
}


@lru_cache(maxsize=256)
def compose(name: str, *, event: str = EVENT_COLUMNS, types: str = _ALL_TYPES) -> str:
    """A statement with other columns of an event, or with a condition on event types."""
    return _TEXTS[name].format_map({**_PARTS, "event": event, "types": types})


def select_types(types: tuple[str, ...] | None) -> tuple[str, list[str]]:
    """The condition on event types, and its arguments. A family is the range from its dot to the
    character after the dot."""
    if types is None:
        return _ALL_TYPES, []
    if not types:
        return "FALSE", []
    conditions, args = [], []
    for each in types:
        if each.endswith(".*"):
            conditions.append("(type >= ? AND type < ?)")
            args += [each[:-1], each[:-2] + "/"]
        else:
            conditions.append("(type = ?)")
            args.append(each)
    return " OR ".join(conditions), args


@lru_cache(maxsize=16)
def with_ids(name: str, count: int) -> str:
    """A statement that asks for so many ids."""
    return _TEXTS[name].format_map({**_PARTS, "ids": ", ".join("?" * count)})


SQL: Final = {name: text.format_map(_PARTS) for name, text in _TEXTS.items()}
