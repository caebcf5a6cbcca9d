"""Connections: what the page about them says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from limpet.store.postgres import connect, doctor
from limpet.store.postgres.server import settings
from limpet.store.postgres.writing.committer import LANES

PAGE = (Path(__file__).parents[4] / "docs" / "postgres.md").read_text()


def test_the_page_says_how_many_connections_a_process_takes() -> None:
    """In all, and for each purpose."""
    table = [int(number) for number in re.findall(r"^\| .* \| (\d+) \|$", PAGE, re.MULTILINE)]
    assert table == [*connect.shares(connect.CONNECTIONS), LANES, 1, 1]
    assert sum(table) == connect.CONNECTIONS
    assert f"up to {connect.CONNECTIONS} connections" in PAGE
    assert f"at least {connect.CONNECTIONS_MIN}" in PAGE


@pytest.mark.parametrize("connections", range(connect.CONNECTIONS_MIN, 60))
def test_every_purpose_has_a_connection(connections: int) -> None:
    """However few there are, and none more than was given."""
    reading, waiting = connect.shares(connections)
    assert min(reading, waiting) >= 1
    assert reading + waiting + LANES + 2 == connections


def test_the_page_says_which_server_is_needed() -> None:
    """And the doctor warns of no version that would be refused."""
    assert f"PostgreSQL {settings.VERSION_MIN} or newer" in PAGE
    assert doctor.OLDEST >= settings.VERSION_MIN
