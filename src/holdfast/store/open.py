"""From a URL to an open store.

memory://                      in this process, gone with it
sqlite:///support.db           a file, relative to the working directory
sqlite:////var/lib/support.db  a file, absolute
sqlite:///support.db?sync=normal   faster; a power cut may take the last commits (a crash not)
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import (
    BackupRefused,
    ExtraMissing,
    InvalidInput,
    InvalidURL,
    StoreUnopened,
)
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Progress, Seal, Store
from holdfast.store.sqlite.backup import restore
from holdfast.store.sqlite.connect import Database
from holdfast.store.sqlite.disks import refuse_network
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.store.threads import in_thread

_POSTGRES_TOOLS: Final = (
    "it has tools of its own. Copy one database with pg_dump --schema=holdfast and put it back "
    "with pg_restore; copy the whole server, to any point in time, with pg_basebackup and "
    "archived WAL"
)


async def open_store(
    url: str, *, seal: Seal | None = None, connections: int | None = None
) -> Store:
    """Open the store a URL names, creating it if it is not there. Raises InvalidURL, StoreError."""
    scheme = scheme_of(url)
    if connections is not None and scheme not in ("postgresql", "postgres"):
        raise InvalidInput("connections are those to a server. Leave them out for this store.")
    match scheme:
        case "memory":
            if url != "memory://":
                raise InvalidURL(url, "a memory store has no name and no options")
            return MemoryStore()
        case "sqlite":
            return await SQLiteStore.open(sqlite_path(url), sync=_sync(url), seal=seal)
        case "postgresql" | "postgres":
            return await _open_postgres(url, seal, connections)
        case _:
            raise InvalidURL(url, f"no store is called {scheme!r}")


def scheme_of(url: str) -> str:
    """The part that names the kind of store. Raises InvalidURL."""
    if not isinstance(url, str) or "://" not in url:
        raise InvalidURL(str(url), "it is not a URL")
    try:
        return urlsplit(url).scheme
    except ValueError:  # its words may hold a piece of a password
        reason = "it is not a URL; [ and ] belong around an IPv6 address only"
        raise InvalidURL(url, reason) from None


async def _open_postgres(url: str, seal: Seal | None, connections: int | None) -> Store:
    try:
        from holdfast.store.postgres.connect import CONNECTIONS
        from holdfast.store.postgres.store import PostgresStore
    except ImportError as error:
        raise ExtraMissing("asyncpg", "postgres") from error
    most = CONNECTIONS if connections is None else connections
    return await PostgresStore.open(url, seal=seal, connections=most)


async def refuse_missing(url: str) -> None:
    """Raise StoreUnopened where opening would make a store: for doors that only look after one."""
    match scheme_of(url):
        case "sqlite":
            path = sqlite_path(url)
            if not path.exists():
                raise StoreUnopened(str(path), "there is no such file; check the URL")
            if path.is_file() and not path.stat().st_size:
                reason = "the file is empty, and nothing is made of it here; restore a backup"
                raise StoreUnopened(str(path), reason)
        case "postgresql" | "postgres":
            try:
                from holdfast.store.postgres.connect import refuse_empty
            except ImportError as error:
                raise ExtraMissing("asyncpg", "postgres") from error
            await refuse_empty(url)
        case _:
            return


async def refuse_change(url: str) -> None:
    """Raise StoreError where opening would write anything: for a command that promises not to."""
    await refuse_missing(url)
    match scheme_of(url):
        case "sqlite":
            path = sqlite_path(url)
            refuse_network(path)
            database = Database(path, sync=_sync(url), vfs=None)
            await in_thread(database.refuse_change)
        case "postgresql" | "postgres":
            from holdfast.store.postgres.connect import refuse_empty

            await refuse_empty(url, ready=True)
        case _:
            return


def restore_store(
    backup: str | Path, url: str, *, replace: bool, progress: Progress | None
) -> None:
    """Put a backup file in the place of the store that a URL names."""
    refuse_server(url)
    restore(Path(backup), sqlite_path(url), replace=replace, progress=progress)


def refuse_server(url: str) -> None:
    """Raise BackupRefused for a store on a server, which has better tools than a copy of ours."""
    if url.startswith(("postgresql://", "postgres://")):
        raise BackupRefused("PostgreSQL", _POSTGRES_TOOLS)


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
