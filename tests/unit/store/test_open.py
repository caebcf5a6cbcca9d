"""URLs: which store, which file, which options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest

from limpet.errors import InvalidInput, InvalidURL
from limpet.session.limpet import Limpet
from limpet.store import open as backends
from limpet.store.memory import MemoryStore
from limpet.store.open import open_store, sqlite_path
from limpet.store.sqlite.store import SQLiteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///support.db", "support.db"),
        ("sqlite:///data/support.db", "data/support.db"),
        ("sqlite:////var/lib/support.db", "/var/lib/support.db"),
        ("sqlite:///./support.db", "support.db"),
        ("sqlite:////tmp/a%20b%3F.db", "/tmp/a b?.db"),
        ("sqlite:////tmp/ä😀.db", "/tmp/ä😀.db"),
        ("sqlite:///support.db?sync=normal", "support.db"),
        ("sqlite:///100%25.db", "100%.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    """Three slashes are relative, four absolute, and quoting is undone."""
    assert sqlite_path(url) == Path(path)


@pytest.mark.parametrize(
    "part", [*" !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\t\n\x00é😀", "", "//", "?a=b"]
)
def test_a_plain_url_is_split_as_every_other(part: str) -> None:
    """The short way gives what urllib gives, or leaves it to that."""
    for url in (f"sqlite:///a{part}b.db", f"sqlite:////{part}", f"sqlite://{part}/a.db"):
        assert _split(backends.split_url, url) == _split(urlsplit, url)


def _split(how: Callable[[str], SplitResult], url: str) -> SplitResult | str:
    try:
        return how(url)
    except ValueError as error:
        return str(error)


BAD_URLS = [
    "",
    "support.db",
    "/var/lib/support.db",
    "sqlite:support.db",
    "sqlite://support.db",
    "sqlite://",
    "sqlite:///",
    "sqlite:////",
    "sqlite:///dir/",
    "sqlite:///a%00b",
    "sqlite:///a.db#part",
    "sqlite:///a.db?sync=never",
    "sqlite:///a.db?sync=",
    "sqlite:///a.db?mode=ro",
    "sqlite:///a.db?sync=full&mode=ro",
    "sqlite:///a.db?inline=never",
    "sqlite:///a.db?nonsense",
    "memory://name",
    "memory://?sync=full",
    "memory:///",
    "ftp://example.com",
    "://",
    None,
    5,
    b"memory://",
    Path("a.db"),
]


@pytest.mark.parametrize("url", BAD_URLS, ids=repr)
async def test_what_is_no_url_of_ours_is_refused(
    url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets InvalidURL with the forms that work, and no file appears."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidURL) as info:
        await open_store(url)
    assert info.value.code == "store.url"
    assert "sqlite:///" in str(info.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("support.db", "sqlite:///support.db"),
        (Path("/var/a.db"), "sqlite:////var/a.db"),
        ("sqlite://support.db", "sqlite:///support.db"),
        ("sqlite://data/a.db", "sqlite:///data/a.db"),
    ],
)
async def test_who_names_a_file_is_shown_its_url(url: Any, meant: str) -> None:
    """A path is not a URL, and two slashes are not three."""
    with pytest.raises(InvalidURL, match=f"Write {meant} for "):
        await open_store(url)


def test_a_limpet_shows_its_place_and_no_secret() -> None:
    """In logs and in tracebacks."""
    for url in ("postgresql://ada:secret@db.example/a", "postgresql://h/x?password=secret"):
        assert repr(Limpet(url)) == "<limpet.Limpet postgresql://…>"
    pooled = "postgresql://host/db?pooler=transaction&direct=postgresql%3A//ada%3Asecret%40one/two"
    assert repr(Limpet(pooled)) == "<limpet.Limpet postgresql://…>"
    assert repr(Limpet("sqlite:///a.db")) == "<limpet.Limpet sqlite:///a.db>"


async def test_memory_stores_are_separate() -> None:
    """Each opening is a store of its own."""
    one, two = await open_store("memory://"), await open_store("memory://")
    assert type(one) is MemoryStore
    assert one is not two


@pytest.mark.parametrize("query", ["", "?sync=full", "?sync=normal"])
async def test_a_file_is_created_where_the_url_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Relative to the working directory at the time of opening."""
    monkeypatch.chdir(tmp_path)
    store = await open_store(f"sqlite:///here.db{query}")
    assert type(store) is SQLiteStore
    await store.close()
    assert (tmp_path / "here.db").is_file()


@pytest.mark.parametrize("connections", [5, 0, -1, 1_001, 10**5_000, "8", 8.0, True], ids=type)
async def test_a_number_of_connections_is_one(connections: Any) -> None:
    """Looked at before the server is."""
    with pytest.raises(InvalidInput, match="6 to 1,000 connections"):
        await open_store("postgresql://ada@127.0.0.1:1/db", connections=connections)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///here.db"])
async def test_only_a_server_has_connections(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere they are refused, not passed over."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="Leave them out"):
        await open_store(url, connections=8)
    assert list(tmp_path.iterdir()) == []
