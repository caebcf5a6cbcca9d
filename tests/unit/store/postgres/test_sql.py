"""The named statements: each is sent as it is written, and each is sent by somebody."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from limpet.store.postgres import sql
from limpet.store.postgres.sql import SQL

FOLDER = Path(sql.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.sql") if path.stem not in sql.SCRIPTS)


def test_statements_have_no_holes() -> None:
    """What varies is a parameter; '{}' is an empty JSON object, '{run,stop}' a path in one."""
    assert [name for name, text in SQL.items() if re.search(r"(?<!')\{\w", text)] == []


def test_every_name_is_given_once() -> None:
    """A second statement of a name would silently take the place of the first."""
    texts = [path.read_text() for path in FILES]
    names = Counter(name for text in texts for name in re.findall(r"^-- name: (\w+)$", text, re.M))
    assert set(names) == set(SQL)
    assert names.most_common(1)[0][1] == 1


def test_every_statement_is_used() -> None:
    """A statement that no module names would only be read by people."""
    code = "".join(path.read_text() for path in FOLDER.parent.rglob("*.py"))
    assert [name for name in SQL if f'"{name}"' not in code and f"'{name}'" not in code] == []


def test_columns_of_a_load_have_one_meaning() -> None:
    """Each of them is a column of the tables under its own name, or says the kind of the row."""
    tables = "".join(path.read_text() for path in FOLDER.glob("0*.sql"))
    first = SQL["load"].partition("SELECT 'head' AS kind, s.place, ")[2].partition("\nFROM s\n")[0]
    plain = re.sub(r"--[^\n]*|NULL::\w+ AS |::text|\bs\.", "", first)
    names = [name.strip() for name in plain.split(",")]
    assert len(set(names)) == len(names) > 30
    assert [
        name
        for name in names
        if not re.search(rf"\b{name}\b +(text|bigint|bytea|integer|jsonb|xid8)", tables)
    ] == ["processed_us"]  # it is read off the event that processed an input
