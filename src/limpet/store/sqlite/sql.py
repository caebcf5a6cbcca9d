"""The named statements of queries.sql.

A statement may have parts in braces: lists of columns, and the condition on event types. `SQL` has
every statement with its usual parts; `compose` puts others in their place.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store.sqlite.rows import EVENT_COLUMNS, HEAD_COLUMNS

ALL_TYPES: Final = "TRUE"
_PARTS: Final = {
    "head": HEAD_COLUMNS,
    "event": EVENT_COLUMNS,
    "feed": ", ".join(f"e.{column}" for column in EVENT_COLUMNS.split(", ")),
    "overhead": str(EVENT_OVERHEAD_BYTES),
    "types": ALL_TYPES,
}


def _load() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text()
    blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(blocks[::2], blocks[1::2], strict=True)}


_TEXTS: Final = _load()


@lru_cache(maxsize=256)
def compose(name: str, *, event: str = EVENT_COLUMNS, types: str = ALL_TYPES) -> str:
    """A statement with other columns of an event, or with a condition on event types."""
    return _TEXTS[name].format_map({**_PARTS, "event": event, "types": types})


def select_types(types: tuple[str, ...]) -> tuple[str, list[str]]:
    """The condition on event types, and its arguments. A family is the range from its dot to the
    character after the dot."""
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


SQL: Final = {name: text.format_map(_PARTS) for name, text in _TEXTS.items()}
