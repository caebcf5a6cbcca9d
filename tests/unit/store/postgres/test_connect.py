"""Connections: what the page about them says is so."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.store.postgres import connect, doctor
from holdfast.store.postgres.committer import LANES

PAGE = (Path(__file__).parents[4] / "docs" / "postgres.md").read_text()


def test_the_page_says_how_many_connections_a_process_takes() -> None:
    """In all, and for each purpose."""
    table = [int(number) for number in re.findall(r"^\| .* \| (\d+) \|$", PAGE, re.MULTILINE)]
    assert table == [connect.POOL_MAX, connect.DESK_MAX, LANES, 1]
    assert sum(table) == doctor.PROCESS_MAX
    assert f"up to {doctor.PROCESS_MAX} connections" in PAGE


def test_the_page_says_which_server_is_needed() -> None:
    """And the doctor warns of no version that would be refused."""
    assert f"PostgreSQL {connect.VERSION_MIN} or newer" in PAGE
    assert doctor.OLDEST >= connect.VERSION_MIN
