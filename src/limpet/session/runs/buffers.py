"""Buffers: session_state, working_buffer and shell_state, the notes a session keeps between runs.

They are of one session and no other: each write is an event of its own log, made under its lease
and counted. A write that expects a version is refused if another was faster.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from limpet.errors import InvalidInput, MemoryConflict, SessionCorrupt
from limpet.model import Event, Trace, described, traced
from limpet.model.facts.running.memory import (
    BUFFERS,
    WRITTEN,
    BufferName,
    memory_written,
    version_in,
)
from limpet.model.limits import PAGE_MAX
from limpet.session.arguments import check_expect, check_limit
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.history.point_in_time import head_now
from limpet.session.journal import retrying
from limpet.session.writer import Writer


class Note(msgspec.Struct, frozen=True):
    """One version of a buffer. Its value is read-only."""

    name: str
    value: Any
    version: int  # 1 for the first write, and one more for each
    at: datetime
    actor: str


class BufferInfo(msgspec.Struct, frozen=True):
    """The name and version of a buffer, and whether an agent's tools may write it."""

    name: str
    access: Literal["ro", "rw"]
    version: int  # 0: nothing was written


class Buffer:
    """One buffer of one session."""

    def __init__(self, writer: Writer, name: BufferName) -> None:
        self._writer, self.name = writer, name

    def __repr__(self) -> str:
        return f"<limpet.Buffer {self.name} of {self._writer.known.key}>"

    async def read(self, version: int | None = None) -> Note | None:
        """Return the newest version, or the given one; None if it does not exist. Reads from the
        store.

        Raises SessionNotFound.
        """
        if version is not None and type(version) is not int:
            wanted = "version is that of a note, a number from 1"
            raise InvalidInput(f"{wanted}, not {described(version)}.")
        newest, seq = version_in((await head_now(self._writer)).facts, self.name)
        if version is None or version == newest:
            return await self._at(seq, newest) if seq else None
        for note in await self._versions(newest, None, down_to=version):
            if note.version == version:
                return note
        return None

    async def write(
        self,
        value: Any,
        *,
        expect: int | None = None,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> Note:
        """Replace the value, durably, and return the new version.

        With `expect=n` it is written only if the buffer is at version n (0: never written), else it
        raises MemoryConflict. A repeated `id` returns the version first written under it. `trace`
        names the wake it belongs to.
        """
        fact = memory_written(self.name, value, expect=check_expect(expect), id=id)
        writer = self._writer
        prepared = writer.journal.prepare(traced(fact, trace), writer.acting(actor))
        (event,) = await writer.commit((prepared,))
        version, seq = version_in(writer.known.head.facts, self.name)
        if event.seq == seq:
            return _note(self._writer, event, version)
        return (await self._versions(version, None, of=event.seq))[-1]  # of a repeat

    async def append(
        self,
        more: str | list[Any],
        *,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> Note:
        """Append a text to a text, or items to a list, and return the new version. An empty buffer
        starts with the value.

        Concurrent appends lose nothing: each is applied to the newest value. Raises InvalidInput if
        the value is of another kind.
        """
        if not isinstance(more, (str, list, tuple)):
            raise InvalidInput(f"append takes a text or a list, not {described(more)}.")

        async def attempt() -> Note:
            note = await self.read()
            value, version = (None, 0) if note is None else (note.value, note.version)
            joined = _join(self.name, value, more)
            return await self.write(joined, expect=version, actor=actor, id=id, trace=trace)

        return await retrying(attempt, MemoryConflict)

    async def history(self, *, limit: int = 50) -> tuple[Note, ...]:
        """Return the newest versions, the newest first. Raises SessionNotFound."""
        newest, _ = version_in((await head_now(self._writer)).facts, self.name)
        return tuple(await self._versions(newest, check_limit(limit)))

    async def _at(self, seq: int, version: int) -> Note:
        store, key = self._writer.journal.store, self._writer.known.key
        events = await store.read(key, after=seq - 1, limit=1, reverse=False, types=None)
        if not events or events[0].seq != seq:
            raise SessionCorrupt(key, f"event {seq} is missing")
        return _note(self._writer, events[0], version)

    async def _versions(
        self, newest: int, limit: int | None, *, of: int = 0, down_to: int = 1
    ) -> list[Note]:
        """Versions from the newest on, down to one version or one event."""
        store, key = self._writer.journal.store, self._writer.known.key
        notes: list[Note] = []
        before, version = 0, newest
        while version >= down_to and (limit is None or len(notes) < limit):
            page = await store.read(
                key, after=before, limit=PAGE_MAX, reverse=True, types=(WRITTEN,)
            )
            if not page:
                break
            for event in [e for e in page if e.data is not None and e.data["name"] == self.name]:
                notes.append(_note(self._writer, event, version))
                version -= 1
                if event.seq == of or version < down_to or len(notes) == limit:
                    return notes
            before = page[-1].seq
        return notes


def _note(writer: Writer, event: Event, version: int) -> Note:
    if event.data is None or "value" not in event.data:
        raise SessionCorrupt(writer.known.key, f"event {event.seq} cannot be read")
    return Note(event.data["name"], event.data["value"], version, event.at, event.actor)


def _join(name: str, value: Any, more: str | list[Any]) -> Any:
    if value is None:
        return more
    if isinstance(value, str) and isinstance(more, str):
        return value + more
    if isinstance(value, list) and not isinstance(more, str):
        return [*value, *more]
    raise InvalidInput(
        f"the {name} holds {described(value)}, and {described(more)} cannot be added to it. "
        "Replace it with write."
    )


class Buffers:
    """The buffers of one session: a part of its memory."""

    _writer: Writer

    @property
    def session_state(self) -> Buffer:
        """The state of the session as its agent noted it, with a version."""
        return Buffer(self._writer, "session_state")

    @property
    def working_buffer(self) -> Buffer:
        """The agent's notes on its current work; with a version."""
        return Buffer(self._writer, "working_buffer")

    @property
    def shell_state(self) -> Buffer:
        """The state that a harness keeps of its shell. The tools of an agent only read it."""
        return Buffer(self._writer, "shell_state")

    async def buffers(self) -> tuple[BufferInfo, ...]:
        """List what can be read: checkpoint, shell_state, session_state, working_buffer.

        The version of `checkpoint` is the number of the newest one.
        """
        head = await head_now(self._writer)
        kept = store_checkpoints(self._writer.journal).kept(self._writer.known.key)
        numbers = [each.number for each in await kept.read(head.uid)]
        infos = [BufferInfo("checkpoint", "ro", max(numbers, default=0))]
        for name in BUFFERS:
            version, _ = version_in(head.facts, name)
            infos.append(BufferInfo(name, "ro" if name == "shell_state" else "rw", version))
        return tuple(infos)
