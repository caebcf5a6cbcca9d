"""The places of files that are written for others: a page, a set of sessions, a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limpet.errors import InvalidInput, StoreFull
from limpet.session.move.bundle import NO_SPACE


@contextmanager
def destination(path: Path) -> Iterator[None]:
    """Write a file inside. Raises InvalidInput if that cannot be done there, StoreFull."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StoreFull(str(path)) from error
        reason = error.strerror or str(error)
        raise InvalidInput(f"{path} cannot be written: {reason}. Choose another place.") from error
