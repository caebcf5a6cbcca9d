"""From a URL to an open store.

memory://                      in this process, gone with it
sqlite:///support.db           a file, relative to the working directory
sqlite:////var/lib/support.db  a file, absolute
sqlite:///support.db?sync=normal   faster; a power cut may take the last commits (a crash not)
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import ExtraMissing, InvalidURL
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Progress, Seal, Store
from holdfast.store.sqlite.backup import restore
from holdfast.store.sqlite.store import SQLiteStore


async def open_store(url: str, *, seal: Seal | None = None) -> Store:
    """Open the store a URL names, creating it if it is not there. Raises InvalidURL, StoreError."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or "://" not in url:
        raise InvalidURL(str(url), "it is not a URL")
    match parts.scheme:
        case "memory":
            if url != "memory://":
                raise InvalidURL(url, "a memory store has no name and no options")
            return MemoryStore()
        case "sqlite":
            return await SQLiteStore.open(sqlite_path(url), sync=_sync(url), seal=seal)
        case "postgresql" | "postgres":
            return await _open_postgres(url, seal)
        case scheme:
            raise InvalidURL(url, f"no store is called {scheme!r}")


async def _open_postgres(url: str, seal: Seal | None) -> Store:
    try:
        from holdfast.store.postgres.store import PostgresStore
    except ImportError as error:
        raise ExtraMissing("asyncpg", "postgres") from error
    return await PostgresStore.open(url, seal=seal)


def restore_store(
    backup: str | Path, url: str, *, replace: bool, progress: Progress | None
) -> None:
    """Put a backup file in the place of the store that a URL names."""
    restore(Path(backup), sqlite_path(url), replace=replace, progress=progress)


def sqlite_path(url: str) -> Path:
    """The file that a sqlite: URL names."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "sqlite" or parts.netloc or parts.fragment or len(path) < 2:
        raise InvalidURL(url, "it names no file")
    if path.endswith("/") or "\x00" in path:
        raise InvalidURL(url, "it names no file")
    return Path(path[1:])


def _sync(url: str) -> str:
    try:
        options = dict(parse_qsl(urlsplit(url).query, strict_parsing=True, keep_blank_values=True))
    except ValueError:
        options = {} if not urlsplit(url).query else {"?": ""}
    sync = options.pop("sync", "full")
    if options:
        raise InvalidURL(url, f"it has the unknown option {next(iter(options))!r}")
    if sync not in ("full", "normal"):
        raise InvalidURL(url, f"sync is full or normal, not {sync!r}")
    return sync
