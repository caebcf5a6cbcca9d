"""Logging of the stores: their loggers, what counts as a slow commit, the name of an error.

A message begins with words that stay, followed by fields: `slow commit: store=… seconds=…`. It
never holds a body, state or a password. An error is logged by its type only, since its words may
quote a row. docs/logging.md lists every message.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from limpet.model import Commit

SLOW_COMMIT_SECONDS: Final = 1.0  # a batch that took longer is logged as a warning

SHOWN: Final = "limpet_shown"  # of a record: its text for a person at a terminal

SQLITE: Final = logging.getLogger("limpet.store.sqlite")
POSTGRES: Final = logging.getLogger("limpet.store.postgres")
FILES: Final = logging.getLogger("limpet.store.files")
REMOTE: Final = logging.getLogger("limpet.store.remote")


class QueuedCommits(Protocol):
    """One caller's commits, however a store queues them."""

    @property
    def commits(self) -> Sequence[Commit]: ...


def slow_commit(
    log: logging.Logger, store: object, seconds: float, asked: Sequence[QueuedCommits]
) -> None:
    """Warn of a batch that took long. Costs one comparison if it did not."""
    if seconds < SLOW_COMMIT_SECONDS:
        return
    events = sum(len(commit.drafts) for one in asked for commit in one.commits)
    log.warning(
        "slow commit: store=%s seconds=%.3f commits=%d events=%d",
        store,
        seconds,
        len(asked),
        events,
    )


def error_name(error: BaseException) -> str:
    """The type of an error, and the code that a server gave it."""
    code = getattr(error, "sqlstate", None)
    return type(error).__name__ if code is None else f"{type(error).__name__}({code})"


def is_heard(log: logging.Logger) -> bool:
    """True if the program has configured logging: a handler other than a NullHandler gets what is
    logged here."""
    logger: logging.Logger | None = log
    while logger is not None:
        if any([not isinstance(each, logging.NullHandler) for each in logger.handlers]):
            return True
        logger = logger.parent if logger.propagate else None
    return False
