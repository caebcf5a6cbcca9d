"""Connections: what the page about them says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from limpet.store.postgres import doctor
from limpet.store.postgres.server import pool, settings
from limpet.store.postgres.writing.committer import LANES

PAGE = (Path(__file__).parents[5] / "docs" / "postgres.md").read_text()


def test_the_page_says_how_many_connections_a_process_takes() -> None:
    """In all, and for each purpose."""
    table = [int(number) for number in re.findall(r"^\| .* \| (\d+) \|$", PAGE, re.MULTILINE)]
    assert table == [*pool.shares(pool.CONNECTIONS), LANES, 1, 1]
    assert sum(table) == pool.CONNECTIONS
    assert f"up to {pool.CONNECTIONS} connections" in PAGE
    assert f"at least {pool.CONNECTIONS_MIN}" in PAGE


@pytest.mark.parametrize("connections", range(pool.CONNECTIONS_MIN, 60))
def test_every_purpose_has_a_connection(connections: int) -> None:
    """However few there are, and none more than was given."""
    reading, waiting = pool.shares(connections)
    assert min(reading, waiting) >= 1
    assert reading + waiting + LANES + 2 == connections


def test_the_page_says_which_server_is_needed() -> None:
    """And the doctor warns of no version that would be refused."""
    assert f"PostgreSQL {settings.VERSION_MIN} or newer" in PAGE
    assert doctor.OLDEST >= settings.VERSION_MIN
