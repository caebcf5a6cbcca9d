"""Buffers: what a session keeps for itself between its runs, each with a version.

The value stands in the event that wrote it; the head has only the version of each buffer and the
seq of that event. So a buffer is fenced, exported, verified and erased with its session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from limpet.errors import InvalidEvent, MemoryConflict
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.values import EMPTY, FrozenDict

BufferName: TypeAlias = Literal["shell_state", "session_state", "working_buffer"]
BUFFERS: Final[tuple[BufferName, ...]] = ("shell_state", "session_state", "working_buffer")
WRITTEN: Final = "session.memory_written"


def memory_written(
    name: str, value: Any, *, expect: int | None = None, id: str | None = None
) -> Fact:
    """A buffer has this value from now on; with `expect` only if it is at that version."""
    if name not in BUFFERS:
        raise InvalidEvent(f"a buffer is one of {', '.join(BUFFERS)}, not {name!r}")
    data: dict[str, Any] = {"name": name, "value": value}
    if expect is not None:
        data["expect"] = expect
    return Fact(type=WRITTEN, data=data, id=id)


def version_in(facts: Facts, name: str) -> tuple[int, int]:
    """The version of a buffer and the seq of the event that wrote it; 0 if nothing did."""
    entry = facts.get("memory", EMPTY).get(name, EMPTY)
    return int(entry.get("version", 0)), int(entry.get("seq", 0))


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    version, _ = version_in(facts, data["name"])
    written = FrozenDict({"version": version + 1, "seq": at.seq})
    return {"memory": FrozenDict({**facts.get("memory", EMPTY), data["name"]: written})}


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise MemoryConflict if the buffer is not at the expected version."""
    expect, (actual, _) = data.get("expect"), version_in(before, data["name"])
    if expect is not None and expect != actual:
        raise MemoryConflict(data["name"], expect, actual)
