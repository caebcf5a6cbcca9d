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

from limpet.errors import (
    BackupRefused,
    ExtraMissing,
    InvalidInput,
    InvalidURL,
    StoreUnopened,
)
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Progress, Report, Restored, Seal, Store
from limpet.store.sqlite.file.backup import back_up, restore
from limpet.store.sqlite.file.connect import Database, close
from limpet.store.sqlite.file.filesystems import refuse_network
from limpet.store.sqlite.store import SQLiteStore
from limpet.store.threads import in_thread

_POSTGRES_TOOLS: Final = (
    "has tools of its own. Copy one database with pg_dump -Fc --schema=limpet -f FILE URL and "
    "put it back with pg_restore --clean --if-exists --single-transaction -d URL FILE; copy the "
    "whole server, to any point in time, with pg_basebackup and archived WAL"
)
_NOT_TO_POSTGRES: Final = (
    "is restored with its own tools. Put back what pg_dump wrote with pg_restore --clean "
    "--if-exists --single-transaction -d URL FILE. A file of limpet backup is restored to a SQLite "
    "store (limpet restore FILE sqlite:///store.db); to carry the state of its sessions over to "
    "PostgreSQL, open both stores in a program (docs/cli.md, carry_over, has the lines)"
)
_IN_MEMORY: Final = "is kept in the memory of one process and in no file; name a sqlite:/// store"
_FILES: Final = "Use sqlite:///relative.db or sqlite:////absolute.db"


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


async def _open_postgres(
    url: str, seal: Seal | None, connections: int | None, *, looking: bool = False
) -> Store:
    try:
        from limpet.store.postgres.connect import CONNECTIONS
        from limpet.store.postgres.store import PostgresStore
    except ImportError as error:
        raise ExtraMissing("asyncpg", "postgres") from error
    most = CONNECTIONS if connections is None else connections
    return await PostgresStore.open(url, seal=seal, connections=most, looking=looking)


async def refuse_missing(url: str) -> None:
    """Raise StoreUnopened where opening would make a store: for doors that only look after one."""
    match scheme_of(url):
        case "sqlite":
            _refuse_no_file(sqlite_path(url))
        case "postgresql" | "postgres":
            try:
                from limpet.store.postgres.connect import refuse_empty
            except ImportError as error:
                raise ExtraMissing("asyncpg", "postgres") from error
            await refuse_empty(url)
        case _:
            return


def _refuse_no_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise StoreUnopened(str(path), "there is no such file; check its path") from error
    except OSError as error:
        reason = f"{error.strerror}; check the path, and the permissions on the way to it"
        raise StoreUnopened(str(path), reason) from error
    if not size and path.is_file():
        reason = "the file is empty, and nothing is made of it here; restore a backup"
        raise StoreUnopened(str(path), reason)


async def look_at(url: str) -> Store:
    """Open the store that is there to read it: for commands that promise to change nothing.

    Raises StoreError where there is none, and where opening it would bring it forward.
    """
    await refuse_missing(url)
    match scheme_of(url):
        case "sqlite":
            return await SQLiteStore.look(sqlite_path(url), sync=_sync(url))
        case "postgresql" | "postgres":
            from limpet.store.postgres.connect import refuse_empty

            await refuse_empty(url, ready=True)
            return await _open_postgres(url, None, None, looking=True)
        case _:
            return await open_store(url)


async def backup_store(
    url: str,
    target: Path,
    *,
    verify: bool = False,
    progress: Progress | None = None,
    checking: Progress | None = None,
) -> Report | None:
    """Copy the store that a URL names to a file, as it is: of an older schema it stays one.

    With `verify` the copy is read back, and what was found is returned.
    """
    refuse_uncopied(url)
    await refuse_missing(url)
    path = sqlite_path(url)
    refuse_network(path)
    database = Database(path, sync=_sync(url), vfs=None, looking=True)

    def run() -> Report | None:
        close(database.recognise(older=True))
        report = back_up(database, target, progress, verify=verify, checking=checking)
        database.refuse_written()
        return report

    return await in_thread(run)


def restore_store(
    backup: str | Path,
    url: str,
    *,
    replace: bool,
    damaged: bool = False,
    progress: Progress | None = None,
    checking: Progress | None = None,
) -> Restored:
    """Put a backup file in the place of the store that a URL names."""
    if _is_server(url):
        raise BackupRefused("PostgreSQL", _NOT_TO_POSTGRES)
    return restore(
        Path(backup),
        _place(url),
        replace=replace,
        damaged=damaged,
        progress=progress,
        checking=checking,
    )


def refuse_uncopied(url: str) -> None:
    """Raise BackupRefused for a store that is not kept in a file."""
    refuse_server(url)
    if scheme_of(url) == "memory":
        raise BackupRefused(url, _IN_MEMORY)


def refuse_server(url: str) -> None:
    """Raise BackupRefused for a store on a server, which has better tools than a copy of ours."""
    if _is_server(url):
        raise BackupRefused("PostgreSQL", _POSTGRES_TOOLS)


def _is_server(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def _place(url: str) -> Path:
    """The file that is restored to. Raises InvalidURL in words that fit."""
    if "://" not in url:
        raise InvalidURL(url, "it is not a URL", f"Write sqlite:///{url} for that file")
    if scheme_of(url) != "sqlite":
        raise InvalidURL(url, "a backup is restored to a file", _FILES)
    return sqlite_path(url)


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
