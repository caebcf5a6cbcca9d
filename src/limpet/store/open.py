"""From a URL to a store: opening it, looking at it, copying it and restoring it.

memory://                      in this process, gone with it
sqlite:///support.db           a file, relative to the working directory
sqlite:////var/lib/support.db  a file, absolute
sqlite:///support.db?sync=normal   faster; a power cut may take the last commits (a crash does not)
files:///support               a directory of log files, written by one process
files:///support?mode=ro       the same, read beside the process that writes it
postgresql://user@host/db      a database on a server
http://host:8420               a store that `limpet serve` serves; https:// with TLS

Each function here picks the `Backend` of the URL's scheme and calls it. PostgreSQL's driver is an
extra, so it is imported when it is needed; so are backups and the memory store, which most
processes never use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from limpet.errors import (
    Asked,
    BackupRefused,
    ExtraMissing,
    InvalidInput,
    InvalidURL,
    StoreUnopened,
)
from limpet.store.jobs import Pace
from limpet.store.protocol import Checked, Progress, Report, Restored, Seal, Store
from limpet.store.sqlite.store import SQLiteStore
from limpet.store.system import fourth_slash, in_thread, of_system

if TYPE_CHECKING:
    from ssl import SSLContext

    from limpet.store.remote.tls import Tls

TLS: TypeAlias = "Tls | SSLContext | str | Path"  # how a server is checked, or its CA's file


async def open_store(
    url: str,
    *,
    seal: Seal | None = None,
    connections: int | None = None,
    check: Checked | None = None,
    token: str | None = None,
    tls: TLS | None = None,
    seal_for: str | None = None,
) -> Store:
    """Open the store a URL names, creating it if it is not there. Raises InvalidURL, StoreError.

    `token`, `tls` and `seal_for` are for http:// and https:// URLs: the key to enter with, how the
    server's certificate is checked, and the public key of its store, for which calls are sealed.
    """
    scheme = scheme_of(url)
    backend = BACKENDS.get(scheme)
    if scheme in SERVED:
        if seal is not None or check is not None:
            raise InvalidInput("a server has its own seal and checks. Pass them to limpet serve.")
        return await _open_served(url, token, tls, seal_for)
    if token is not None or tls is not None or seal_for is not None:
        raise InvalidInput(
            "token, tls and seal_for are for http:// and https:// URLs. Leave them out."
        )
    if connections is not None and (backend is None or not backend.has_connections):
        raise InvalidInput("connections are those to a server. Leave them out for this store.")
    if backend is None:
        raise _unknown_scheme(url)
    if check not in (None, "crc", "chain"):
        raise InvalidInput("check is 'crc', 'chain', or None: 'chain' if there is a seal.")
    return await backend.open(url, seal, connections, check)


async def look_at(url: str, *, seal: Seal | None = None, token: str | None = None) -> Store:
    """Open the store that is there to read it: for commands that promise to change nothing.

    Raises StoreError where there is none, and where opening it would migrate it.
    """
    backend = BACKENDS.get(scheme_of(url))
    if backend is SERVER:
        return await _open_served(url, token, None, None)
    if backend is None:
        raise _unknown_scheme(url)
    await backend.refuse_missing(url)
    return await backend.look(url, seal)


async def refuse_missing(url: str) -> None:
    """Raise StoreUnopened where opening would create a store."""
    backend = BACKENDS.get(scheme_of(url))
    if backend is not None:
        await backend.refuse_missing(url)


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
    if BACKENDS.get(scheme_of(url)) is None:
        raise _unknown_scheme(url)
    if scheme_of(url) == "files":
        return await _back_up_files(url, target, verify, progress, checking)
    from limpet.store.sqlite.file.backup import back_up_file

    path = sqlite_path(url)
    copy = partial(back_up_file, path, target, sync=_sync(url))
    with _of_system(path, "read"):
        return await in_thread(lambda: copy(verify=verify, progress=progress, checking=checking))


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
    backend = _by_prefix(url)
    if backend is None:
        raise not_a_file(url)
    backend.refuse_restore(url)
    if scheme_of(url) == "files":
        from limpet.store.files.backup import restore as restore_files

        at = files_path(url)
        with _of_system(at, "change"):
            return restore_files(
                Path(backup), at, replace=replace, damaged=damaged, progress=checking or progress
            )
    from limpet.store.sqlite.file.backup import restore

    path = sqlite_path(url)
    with _of_system(path, "change"):
        return restore(
            Path(backup),
            path,
            replace=replace,
            damaged=damaged,
            progress=progress,
            checking=checking,
        )


def refuse_uncopied(url: str) -> None:
    """Raise BackupRefused for a store that is not kept in a file."""
    backend = _by_prefix(url)
    if backend is None:
        scheme_of(url)
    else:
        backend.refuse_backup(url)


def _by_prefix(url: str) -> Backend | None:
    """The backend of a URL by its first characters alone: the rest may be malformed."""
    return BACKENDS.get(url.partition("://")[0].lower()) if "://" in url else None


def _unknown_scheme(url: str) -> InvalidURL:
    return InvalidURL(url, f"no store is called {scheme_of(url)!r}")


# --- what each kind of store does with a URL of its own -------------------------------------------

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
_MARKS: Final = frozenset("?#%[]\\")  # with a meaning of their own in some URL
_FILES: Final = "Use sqlite:///relative.db or sqlite:////absolute.db"
_DIRECTORIES: Final = "Use files:///relative or files:////absolute"


class Open(Protocol):
    """Opens a store, and makes it if it is not there."""

    def __call__(
        self, url: str, seal: Seal | None, connections: int | None, check: Checked | None
    ) -> Awaitable[Store]: ...


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """The operations on the URLs of one kind of store."""

    open: Open  # creates what is missing
    look: Callable[[str, Seal | None], Awaitable[Store]]  # reads what is there and changes nothing
    refuse_missing: Callable[[str], Awaitable[None]]  # raises StoreUnopened
    # Only a file is copied and restored.
    refuse_backup: Callable[[str], object]  # raises BackupRefused where there is none
    refuse_restore: Callable[[str], object]  # raises InvalidURL or BackupRefused
    has_connections: bool = False  # whether it takes a number of connections


# --- URLs ----------------------------------------------------------------------------------------


def scheme_of(url: str) -> str:
    """The part that names the kind of store. Raises InvalidURL."""
    if not isinstance(url, str) or "://" not in url:
        raise _not_a_url(url)
    try:
        return split_url(url).scheme
    except ValueError:  # its words may hold a piece of a password
        reason = "it is not a URL; [ and ] belong around an IPv6 address only"
        raise InvalidURL(url, reason) from None


def split_url(url: str) -> SplitResult:
    """A URL in its parts. Of a plain one they are plain to see, and every start asks."""
    if url.startswith("sqlite:///") and url.isprintable() and _MARKS.isdisjoint(url):
        return SplitResult("sqlite", "", url[9:], "", "")
    return urlsplit(url)


def not_a_file(url: str) -> InvalidURL:
    """Return why nothing can be restored to a URL."""
    if "://" not in url:
        return _not_a_url(url)
    return InvalidURL(url, "a backup is restored to a file", _FILES)


def _not_a_url(given: object) -> InvalidURL:
    """Most who write no URL mean a file."""
    text = str(given)
    if not isinstance(given, (str, Path)) or not text or ":" in text:
        return InvalidURL(text, "it is not a URL")
    return InvalidURL(text, "it is not a URL", f"Write sqlite:///{text} for that file")


# --- memory --------------------------------------------------------------------------------------


async def _open_memory(
    url: str,
    seal: Seal | None = None,
    connections: int | None = None,
    check: Checked | None = None,  # it keeps no bytes that could change
) -> Store:
    if url != "memory://":
        raise InvalidURL(url, "a memory store has no name and no options")
    from limpet.store.memory import MemoryStore

    return MemoryStore(seal=seal)


async def _always_there(url: str) -> None:
    """A memory store begins with its process."""


def _refuse_memory_backup(url: str) -> None:
    raise BackupRefused(url, _IN_MEMORY)


def _refuse_memory_restore(url: str) -> None:
    raise not_a_file(url)


# --- SQLite --------------------------------------------------------------------------------------


# The usual one first.
_NUMBER: Final = ("",)  # any number; left out: as the store has it
_PATH: Final = ("", "/")  # any path; left out: none, or its own
_OPTIONS: Final = {"sync": ("full", "normal"), "inline": ("on", "off"), "mirror": _PATH}
FILES_OPTIONS: Final = {
    "mode": ("rw", "ro"),
    "inline": ("on", "off"),
    "compact_mb": _NUMBER,
    "compact_seconds": _NUMBER,
    "damage": ("refuse", "accept"),
    "mirror": _PATH,
}


async def _open_sqlite(
    url: str, seal: Seal | None, connections: int | None, check: Checked | None
) -> Store:
    path = sqlite_path(url)
    pace = Pace(enabled=_options(url)["inline"] == "on")
    mirror = _mirror(url, _options(url), seal)
    with _of_system(path, "change"):
        store = await SQLiteStore.open(path, sync=_sync(url), seal=seal, pace=pace, check=check)
    store.mirror_directory = mirror
    return store


async def _look_sqlite(url: str, seal: Seal | None) -> Store:
    path = sqlite_path(url)
    with _of_system(path, "read"):
        return await SQLiteStore.look(path, sync=_sync(url), seal=seal)


async def _refuse_no_file(url: str) -> None:
    path = sqlite_path(url)
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        reason = f"there is no such file; check its path{fourth_slash('sqlite', path)}"
        raise StoreUnopened(str(path), reason) from error
    except OSError as error:
        reason = f"{error.strerror}; check the path, and the permissions on the way to it"
        raise StoreUnopened(str(path), reason) from error
    if not size and path.is_file():
        reason = "the file is empty, and nothing is made of it here; restore a backup"
        raise StoreUnopened(str(path), reason)


@contextmanager
def _of_system(path: Path, asked: Asked) -> Iterator[None]:
    """Translate errors of the operating system while a file is opened or copied."""
    try:
        yield
    except OSError as error:
        raise of_system(error, str(path), asked) from error


def sqlite_path(url: str) -> Path:
    """The file that a sqlite: URL names."""
    parts = split_url(url)
    path = unquote(parts.path)
    if parts.scheme == "sqlite" and parts.netloc and not parts.fragment:
        meant = f"{parts.netloc}{path}"
        raise InvalidURL(url, "a / is missing", f"Write sqlite:///{meant} for the file {meant}")
    if parts.scheme != "sqlite" or parts.fragment or len(path) < 2:
        raise InvalidURL(url, "it names no file")
    if path.endswith("/") or "\x00" in path:
        raise InvalidURL(url, "it names no file")
    return Path(path[1:])


def _mirror(url: str, options: Mapping[str, str], seal: Seal | None) -> Path | None:
    """The directory that files for people are kept in. Raises InvalidURL for a sealed store."""
    if options["mirror"] and seal is not None:
        raise InvalidURL(url, "a sealed store is not mirrored: the files would be in plain text")
    return Path(options["mirror"]) if options["mirror"] else None


def _sync(url: str) -> str:
    return _options(url)["sync"]


def _options(url: str, known: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, str]:
    """The options of a URL, those that it leaves out too. Raises InvalidURL."""
    known, query = known or _OPTIONS, split_url(url).query
    try:
        pairs = parse_qsl(query, strict_parsing=True, keep_blank_values=True)
    except ValueError:
        pairs = [("?", "")] if query else []
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidURL(url, "it has an option more than once")
    for name, value in given.items():
        if name not in known:
            raise InvalidURL(url, f"it has the unknown option {name!r}")
        if known[name] == _NUMBER:
            if not value.isdecimal() or not 0 < int(value) < 10**6:
                raise InvalidURL(url, f"{name} is a number from 1 to 999999, not {value!r}")
        elif known[name] == _PATH:
            if not value or "\x00" in value:
                raise InvalidURL(url, f"{name} names no directory")
        elif value not in known[name]:
            raise InvalidURL(url, f"{name} is {' or '.join(known[name])}, not {value!r}")
    return {name: given.get(name, values[0]) for name, values in known.items()}


# --- files ---------------------------------------------------------------------------------------


async def _open_files(
    url: str,
    seal: Seal | None,
    connections: int | None = None,
    check: Checked | None = None,
    *,
    looking: bool = False,
) -> Store:
    from limpet.store.files.store import FilesStore

    path, options = files_path(url), _options(url, FILES_OPTIONS)
    read_only = looking or options["mode"] == "ro"
    if read_only:
        await _refuse_no_directory(url)
    pace, accepts = Pace(enabled=options["inline"] == "on"), options["damage"] == "accept"
    with _of_system(path, "read" if read_only else "change"):
        store = await FilesStore.open(
            path,
            seal=seal,
            check=check,
            pace=pace,
            read_only=read_only,
            accept=accepts,
        )
    store.mirrors_to = _mirror(url, options, seal)
    if options["compact_mb"]:
        store.compact_bytes = int(options["compact_mb"]) * 2**20
    if options["compact_seconds"]:
        store.compact_seconds = float(options["compact_seconds"])
    return store


async def _look_files(url: str, seal: Seal | None) -> Store:
    return await _open_files(url, seal, looking=True)


async def _refuse_no_directory(url: str) -> None:
    from limpet.store.files.state import META

    path = files_path(url)
    if not path.is_dir():
        reason = f"there is no such directory; check its path{fourth_slash('files', path)}"
        raise StoreUnopened(str(path), reason)
    if not (path / META).is_file():
        reason = f"the directory holds no files:// store ({META} is missing); check its path"
        raise StoreUnopened(str(path), reason)


async def _back_up_files(
    url: str,
    target: Path,
    verify: bool,  # noqa: FBT001  # as backup_store has it
    progress: Progress | None,
    checking: Progress | None,
) -> Report | None:
    from limpet.store.files.backup import back_up_directory

    path = files_path(url)
    with _of_system(path, "read"):
        return await back_up_directory(
            path, target, verify=verify, progress=progress, checking=checking
        )


def files_path(url: str) -> Path:
    """The directory that a files: URL names."""
    parts = split_url(url)
    path = unquote(parts.path).rstrip("/")
    if parts.scheme == "files" and parts.netloc and not parts.fragment:
        meant = f"{parts.netloc}{path}"
        advice = f"Write files:///{meant} for the directory {meant}"
        raise InvalidURL(url, "a / is missing", advice)
    if parts.scheme != "files" or parts.fragment or len(path) < 2 or "\x00" in path:
        raise InvalidURL(url, "it names no directory", _DIRECTORIES)
    return Path(path[1:])


# --- PostgreSQL, whose driver is an extra --------------------------------------------------------


async def _open_postgres(
    url: str,
    seal: Seal | None,
    connections: int | None,
    check: Checked | None = None,
    *,
    looking: bool = False,
) -> Store:
    pool = _postgres_pool()
    from limpet.store.postgres.store import PostgresStore

    most = pool.CONNECTIONS if connections is None else connections
    return await PostgresStore.open(url, seal=seal, connections=most, looking=looking, check=check)


async def _look_postgres(url: str, seal: Seal | None) -> Store:
    await _postgres_pool().refuse_empty(url, ready=True)
    return await _open_postgres(url, seal, None, looking=True)


async def _refuse_no_schema(url: str) -> None:
    await _postgres_pool().refuse_empty(url)


def _postgres_pool() -> ModuleType:
    try:
        from limpet.store.postgres.server import pool
    except ImportError as error:
        raise ExtraMissing("asyncpg", "postgres") from error
    return pool


def _refuse_server(_: str) -> None:
    """A server has better tools than a copy of ours."""
    raise BackupRefused("PostgreSQL", _POSTGRES_TOOLS)


def _refuse_server_restore(_: str) -> None:
    raise BackupRefused("PostgreSQL", _NOT_TO_POSTGRES)


# --- a server of ours, whose client is an extra --------------------------------------------------


async def _open_served(url: str, token: str | None, tls: TLS | None, seal_for: str | None) -> Store:
    from limpet.store.remote.store import open_remote  # it says which extra is missing

    return await open_remote(url, token=token, tls=tls, seal_for=seal_for)


async def _open_plain(
    url: str, seal: Seal | None, connections: int | None = None, check: Checked | None = None
) -> Store:
    return await _open_served(url, None, None, None)


def _refuse_served_restore(url: str) -> None:
    raise BackupRefused(url, "is served; restore the store itself, where limpet serve runs")


def _refuse_served_backup(url: str) -> None:
    raise BackupRefused(url, "is served; back the store itself up, where limpet serve runs")


# --- the table -----------------------------------------------------------------------------------

MEMORY: Final = Backend(
    open=_open_memory,
    look=_open_memory,
    refuse_missing=_always_there,
    refuse_backup=_refuse_memory_backup,
    refuse_restore=_refuse_memory_restore,
)
SQLITE: Final = Backend(
    open=_open_sqlite,
    look=_look_sqlite,
    refuse_missing=_refuse_no_file,
    refuse_backup=scheme_of,  # refuses what is malformed
    refuse_restore=scheme_of,
)
POSTGRESQL: Final = Backend(
    open=_open_postgres,
    look=_look_postgres,
    refuse_missing=_refuse_no_schema,
    refuse_backup=_refuse_server,
    refuse_restore=_refuse_server_restore,
    has_connections=True,
)
SERVER: Final = Backend(
    open=_open_plain,
    look=_open_plain,
    refuse_missing=_always_there,
    refuse_backup=_refuse_served_backup,
    refuse_restore=_refuse_served_restore,
)
FILES: Final = Backend(
    open=_open_files,
    look=_look_files,
    refuse_missing=_refuse_no_directory,
    refuse_backup=scheme_of,
    refuse_restore=scheme_of,
)
SERVED: Final = ("http", "https")
BACKENDS: Final = {
    "http": SERVER,
    "https": SERVER,
    "files": FILES,
    "memory": MEMORY,
    "sqlite": SQLITE,
    "postgresql": POSTGRESQL,
    "postgres": POSTGRESQL,
}
