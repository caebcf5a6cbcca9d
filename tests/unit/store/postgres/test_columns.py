"""Columns as parameters: the server reads the literal of an array as what it was written from."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import pytest

from limpet.store.postgres.writing.batch import literal

TEXTS = [
    "plain",
    "",
    "null",
    "NULL",
    'a "quoted" one',
    "back\\slash",
    "new\nline",
    "tab\t{,}",
    "ä€😀",
]


@pytest.mark.parametrize(
    ("type", "column"),
    [
        ("text[]", TEXTS),
        ("text[]", [*TEXTS, None]),
        ("text[]", ["one"]),
        ("bigint[]", [0, -1, None, 2**63 - 1, -(2**63)]),
        ("boolean[]", [True, None, False]),
        ("integer[]", []),
    ],
)
async def test_a_literal_is_read_as_what_it_was_written_from(
    postgres_store_url: str, type: str, column: Sequence[object]
) -> None:
    """Whatever characters are in it, and where something is missing."""
    conn = await asyncpg.connect(postgres_store_url)
    found = await conn.fetchval(f"SELECT $1::text::{type}", literal(column))
    await conn.close()
    assert found == column
