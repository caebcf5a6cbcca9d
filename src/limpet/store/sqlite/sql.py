"""The named statements of queries.sql."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from limpet.model.limits import EVENT_OVERHEAD_BYTES
from limpet.store.sqlite.rows import EVENT_COLUMNS, HEAD_COLUMNS

_FEED: Final = ", ".join(f"e.{column}" for column in EVENT_COLUMNS.split(", "))


def _load() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text()
    blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    names, bodies = blocks[::2], blocks[1::2]
    return {
        name: body.strip()
        .replace("{head}", HEAD_COLUMNS)
        .replace("{event}", EVENT_COLUMNS)
        .replace("{feed}", _FEED)
        .replace("{overhead}", str(EVENT_OVERHEAD_BYTES))
        for name, body in zip(names, bodies, strict=True)
    }


SQL: Final = _load()
