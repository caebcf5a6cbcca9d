"""Sets of failing sessions: named, saved as JSON, and replayed by forking.

A set says why each session failed and where to fork it: before the last request, so that the same
request can be sent to another version of the agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from limpet.analytics.destination import destination
from limpet.analytics.metrics import SessionFold
from limpet.errors import InvalidInput
from limpet.model import Key, to_time


class FailingSession(msgspec.Struct, frozen=True):
    """A session that failed. Fork it `at`, and send its event `request` again."""

    app: str
    user: str
    id: str
    at: int  # the last event before the request
    request: int  # the seq of the last request; 0: there was none
    why: tuple[str, ...]

    @property
    def key(self) -> Key:
        return Key(self.app, self.user, self.id)


class FailingSet(msgspec.Struct, frozen=True):
    """Failing sessions, the newest first."""

    made_at: datetime
    sessions: tuple[FailingSession, ...]
    name: str = "failing"

    def __iter__(self) -> Iterator[FailingSession]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    def save(self, path: str | Path) -> None:
        """Write it as JSON, named as the file. Raises InvalidInput if that cannot be done there."""
        named = msgspec.structs.replace(self, name=Path(path).stem)
        text = msgspec.json.format(msgspec.json.encode(named), indent=2) + b"\n"
        with destination(Path(path)):
            Path(path).write_bytes(text)

    @classmethod
    def load(cls, path: str | Path) -> FailingSet:
        """Read a set that was saved. Raises InvalidInput."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{path} is not a set of sessions: {error}.") from error

    @property
    def plain(self) -> dict[str, Any]:
        """Return its JSON form."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def failing_set(folds: Sequence[SessionFold], *, limit: int, now_us: int) -> FailingSet:
    """Return the set of those that failed."""
    failing: list[FailingSession] = []
    for fold in reversed(folds):
        if (why := reasons(fold)) and len(failing) < limit:
            at = fold.asked_seq - 1 if fold.asked_seq > 1 else fold.seq
            failing.append(
                FailingSession(fold.app, fold.user, fold.id, at, fold.asked_seq, tuple(why))
            )
    return FailingSet(to_time(now_us), tuple(failing))


def reasons(fold: SessionFold) -> list[str]:
    """Return why a session counts as failing; empty if it does not."""
    why = []
    if fold.ended_us and not fold.task_completed:
        why.append("it ended without completing its task")
    if fold.evaluations and fold.verdict != 1 and not fold.ended_us:
        why.append("its outcome did not pass the last evaluation")
    if 0 <= fold.rating < 500_000:
        why.append(f"its user rated it {fold.rating / 1_000_000:.2f}")
    if fold.hallucinated:
        why.append("its user reported something made up")
    if fold.failed:
        why.append("its last turn failed")
    return why
