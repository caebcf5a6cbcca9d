"""The store that a command is about: a URL or a path."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from limpet.cli.options import store_url
from limpet.errors import InvalidURL
from limpet.store.open import sqlite_path


@pytest.mark.parametrize(
    "path",
    ["new.db", "./new", "data/new", "/var/lib/new.db", "../a b?.db", "100%41#.db", "é.db", "here"],
)
def test_a_path_names_the_file_that_a_shell_would_open(tmp_path: Path, path: str) -> None:
    """Relative or absolute, with whatever a URL would have to quote."""
    (tmp_path / "here").touch()
    with contextlib.chdir(tmp_path):
        assert sqlite_path(store_url(path)) == Path(path)


@pytest.mark.parametrize(
    "url", ["sqlite:///a.db?sync=normal", "postgresql://x@y/z", "memory://", "mysql://x/y.db"]
)
def test_a_url_stays_as_it_is(url: str) -> None:
    """Whether a store can be opened there is not decided here."""
    assert store_url(url) == url


@pytest.mark.parametrize("text", ["", "support", "sqlite:a.db", "postgresql:x/y", "a\x00.db"])
def test_what_is_neither_is_refused_with_both_forms(tmp_path: Path, text: str) -> None:
    """The error shows how a path and how a URL is written."""
    with contextlib.chdir(tmp_path), pytest.raises(InvalidURL) as caught:
        store_url(text)
    assert "support.db" in str(caught.value)
    assert "postgresql://" in str(caught.value)
