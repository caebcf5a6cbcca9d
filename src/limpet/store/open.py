"""From a URL to a store: opening it, looking at it, copying it and restoring it.

memory://                      in this process, gone with it
sqlite:///support.db           a file, relative to the working directory
sqlite:////var/lib/support.db  a file, absolute
sqlite:///support.db?sync=normal   faster; a power cut may take the last commits (a crash does not)
postgresql://user@host/db      a database on a server

Each function here picks the `Backend` of the URL's scheme and calls it.
"""

from __future__ import annotations

from pathlib import Path

from limpet.errors import InvalidInput, InvalidURL
from limpet.store.answers import Checked
from limpet.store.backends import BACKENDS, Backend, not_a_file, scheme_of, sqlite_path
from limpet.store.protocol import Progress, Report, Restored, Seal, Store

__all__ = [
    "backup_store",
    "look_at",
    "open_store",
    "refuse_missing",
    "refuse_uncopied",
    "restore_store",
    "sqlite_path",
]


async def open_store(
    url: str,
    *,
    seal: Seal | None = None,
    connections: int | None = None,
    check: Checked | None = None,
) -> Store:
    """Open the store a URL names, creating it if it is not there. Raises InvalidURL, StoreError."""
    scheme = scheme_of(url)
    backend = BACKENDS.get(scheme)
    if connections is not None and (backend is None or not backend.has_connections):
        raise InvalidInput("connections are those to a server. Leave them out for this store.")
    if backend is None:
        raise _unknown(url)
    if check not in (None, "crc", "chain"):
        raise InvalidInput("check is 'crc', 'chain', or None: 'chain' if there is a seal.")
    return await backend.open(url, seal, connections, check)


async def look_at(url: str) -> Store:
    """Open the store that is there to read it: for commands that promise to change nothing.

    Raises StoreError where there is none, and where opening it would migrate it.
    """
    backend = BACKENDS.get(scheme_of(url))
    if backend is None:
        raise _unknown(url)
    await backend.refuse_missing(url)
    return await backend.look(url)


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
    backend = BACKENDS.get(scheme_of(url))
    if backend is None:
        raise _unknown(url)
    return await backend.backup(url, target, verify=verify, progress=progress, checking=checking)


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
    return backend.restore(
        Path(backup),
        url,
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


def _unknown(url: str) -> InvalidURL:
    return InvalidURL(url, f"no store is called {scheme_of(url)!r}")
