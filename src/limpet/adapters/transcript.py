"""A framework's conversation as one session: its records are appended whole, in order, each once.

One record becomes one event that carries it as JSON text under the framework's name, described in
our own vocabulary: a message, a tool call or a tool result. If it says several of these at once,
the others follow it in the same commit, without the record. So the framework gets its records back
unchanged, and `session.messages()` reads the conversation without the framework.

A commit is decided on the version that was read, so what the caller computes from the state (a
revision, a summary) is never stale. User messages stay pending until an answer is recorded: an
append that holds an answer marks them as processed in the same commit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from limpet import Draft, Event, Key, Limpet, Session, Trace, facts, ops
from limpet.errors import (
    CommitTooLarge,
    EventTooLarge,
    InvalidValue,
    NotPending,
    SessionConflict,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
)
from limpet.model import DefaultActor
from limpet.model.keys import unfit, unfit_id
from limpet.model.limits import LABEL_VALUE_CHARS_MAX, PAGE_MAX
from limpet.session.journal import Tries

Statement: TypeAlias = tuple[str, Mapping[str, Any]]  # an event type and its data
# (state, records that are new) -> what the same commit does to the state
Change: TypeAlias = Callable[
    [Mapping[str, Any], Sequence["TranscriptRecord"]], Sequence[ops.PlainOp]
]

USE: Final = "agent.tool_use"
RESULT: Final = "agent.tool_result"
_INPUTS: Final = ("user.message", "system.message")
_NAMES: Final = ("request_id", "name")  # what an event keeps if the rest does not fit
_UNFIT: Final = (InvalidValue, EventTooLarge, CommitTooLarge)
_PAGE: Final = PAGE_MAX
_PENDING_MAX: Final = 1_000
_RECORD_BYTES_MAX: Final = 4 * 2**20  # within an event; a larger one is a blob
_MEDIA_TYPE: Final = "application/json"


class TranscriptRecord(NamedTuple):
    """One record of the framework and what it says; `id` makes a repeat harmless."""

    value: Any  # JSON; None: only what it says
    statements: Sequence[Statement]
    id: str | None = None


class Transcript:
    """The conversation `key`. `member` names the record in an event's data; each append sees to it
    that the session has these labels, and none where one is None."""

    def __init__(
        self,
        lp: Limpet,
        key: Key,
        *,
        member: str,
        labels: Mapping[str, str | None] | None = None,
        correlation_id: str | None = None,
        reuse_deleted: bool = False,
    ) -> None:
        self._lp, self.key, self._member = lp, key, member
        self._parts = (key.app, key.user, key.id)
        self._labels = dict(labels or {})
        self._trace = Trace(correlation_id=correlation_id) if correlation_id else None
        self._reuse_deleted = reuse_deleted
        self._agent = DefaultActor(f"agent:{member.replace('_', '-')}")

    async def append(
        self, records: Sequence[TranscriptRecord], *, change: Change | None = None, type: str
    ) -> None:
        """Append the records that are not there yet and change the state, in one commit.

        The first append creates the session. `type` is that of records which say nothing, and of
        the event that carries a change alone. Raises InvalidValue if a record is not JSON, and
        SessionDeleted if somebody has deleted the session.
        """
        records = [_fitting(record) for record in records]
        async for left in Tries():
            try:
                return await self._append(records, change, type)
            except (SessionConflict, SessionExists, NotPending):  # another writer was faster
                if not left:
                    raise

    async def records(self, *, after: int = 0) -> AsyncIterator[tuple[Event, Any]]:
        """Yield each readable record with its event, the oldest first."""
        session = self._lp.session(self.key)
        while page := await self._page(session, after):
            for event in page:
                if (value := await record_in(session, event, self._member)) is not None:
                    yield event, value
            after = page[-1].seq

    # --- private --------------------------------------------------------------------------------

    async def _page(self, session: Session[Any], after: int) -> Sequence[Event]:
        try:
            return await session.read(after=after, limit=_PAGE)
        except (SessionNotFound, SessionDeleted):
            return ()

    async def _append(
        self, records: Sequence[TranscriptRecord], change: Change | None, type: str
    ) -> None:
        session = await self._lp.find(self.key, tail=0)
        records = await self._new(session, records)
        state = {} if session is None else session.state
        updates = () if change is None else change(state, records)
        if not records and not updates:
            return
        if session is None and any(_is_large(record) for record in records):
            await self._create()  # a blob belongs to a session that is there
            return await self._append(records, change, type)
        drafts = [
            draft for record in records for draft in await self._drafts(session, record, type)
        ]
        if updates:
            last = drafts.pop() if drafts else Draft(type=type, actor=self._agent)
            drafts.append(replace(last, ops=updates))
        try:
            await self._commit(session, drafts)
        except _UNFIT:  # it may be what stands beside the records: then they go without
            await self._commit(session, [self._bare(draft) for draft in drafts])

    async def _new(
        self, session: Session[Any] | None, records: Sequence[TranscriptRecord]
    ) -> list[TranscriptRecord]:
        """Leave out what was recorded before, and what stands in this batch twice."""
        ids = [record.id for record in records if record.id is not None]
        known: set[str] = set()
        if session is not None:
            for first in range(0, len(ids), _PAGE):
                events = await session.read_ids(ids[first : first + _PAGE])
                known |= {event.id for event in events}
        new: list[TranscriptRecord] = []
        for record in records:
            if record.id is None or record.id not in known:
                new.append(record)
                known.add(record.id or "")
        return new

    async def _create(self) -> None:
        with suppress(SessionExists):
            await self._lp.create(
                *self._parts,
                labels=self._first_labels(),
                actor=self._agent,
                reuse_deleted=self._reuse_deleted,
            )

    def _first_labels(self) -> dict[str, str]:
        return {name: value for name, value in self._labels.items() if value is not None}

    async def _drafts(
        self, session: Session[Any] | None, record: TranscriptRecord, type: str
    ) -> list[Draft]:
        statements = list(record.statements) or [(type, {})]
        drafts = [self._draft(kind, data) for kind, data in statements]
        if record.value is None:
            return drafts
        carried: Any = _text(record.value)
        if session is not None and _is_large(record):
            carried = (await session.blobs.put(carried.encode(), _MEDIA_TYPE)).data
        first = {**drafts[0].data, self._member: carried}
        return [replace(drafts[0], data=first, id=record.id), *drafts[1:]]

    def _draft(self, type: str, data: Mapping[str, Any]) -> Draft:
        actor = DefaultActor(f"user:{self.key.user}") if type == "user.message" else self._agent
        return Draft(type=type, data=data, actor=actor)

    def _bare(self, draft: Draft) -> Draft:
        names = (*_NAMES, self._member)
        data = {name: draft.data[name] for name in names if name in draft.data}
        data |= {"content": []} if draft.type == "user.message" else {}  # it stands in the record
        return replace(draft, data=data)

    async def _commit(self, session: Session[Any] | None, drafts: Sequence[Draft]) -> None:
        answers = [n for n, draft in enumerate(drafts) if draft.type not in _INPUTS]
        waiting = await _pending(session) if session is not None and answers else []
        async with self._lp.commit() as c:
            if session is None:
                target = c.create(
                    *self._parts,
                    labels=self._first_labels(),
                    actor=self._agent,
                    reuse_deleted=self._reuse_deleted,
                )
                version = 1  # the event that created it
            else:
                target, version = session, session.version
                c.expect(session, version)
                labels = {n: v for n, v in self._labels.items() if session.labels.get(n) != v}
                if labels:
                    c.record(session, facts.labeled(labels, actor=self._agent))
                    version += 1
            for draft in drafts:
                c.append(
                    target,
                    draft.type,
                    draft.data,
                    actor=draft.actor,
                    ops=draft.ops,
                    id=draft.id,
                    trace=self._trace,
                )
            first = version + 1
            waiting += [
                first + n
                for n, draft in enumerate(drafts)
                if draft.type in _INPUTS and answers and n < answers[-1]
            ]
            if waiting:
                c.record(target, facts.processed(waiting, actor=self._agent))


def statements_of(
    type: str, contents: Iterable[Statement | Mapping[str, Any]], **named: Any
) -> Iterator[Statement]:
    """Yield what a message says, in its order: parts of a content as messages of `type`, and the
    calls and results between them. `named` goes with each message."""
    parts: list[Mapping[str, Any]] = []
    for content in contents:
        if isinstance(content, Mapping):
            parts.append(content)
            continue
        if parts:
            yield type, {**_content(parts), **named}
        parts = []
        yield content
    if parts:
        yield type, {**_content(parts), **named}


def _content(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"text": parts[0]["text"]}
    return {"content": list(parts)}


def label_of(text: str) -> str:
    """Return a text as the value of a label: itself, or its hash if no label can hold it."""
    return text if unfit(text, LABEL_VALUE_CHARS_MAX) is None else _hash(text)


def _fitting(record: TranscriptRecord) -> TranscriptRecord:
    """Return a record whose id can be that of an event: one that cannot is replaced by its hash."""
    if record.id is None or unfit_id(record.id) is None:
        return record
    return record._replace(id=_hash(record.id))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def size_of(record: TranscriptRecord) -> int:
    """Return the bytes of a record as JSON text. Raises InvalidValue if it is not JSON."""
    return len(_text(record.value))


async def record_in(session: Session[Any], event: Event, member: str) -> Any | None:
    """Return the record that an event carries; None if it carries none, or cannot be read."""
    carried = event.data.get(member) if event.data is not None else None
    if isinstance(carried, Mapping):
        carried = (await session.blobs.get(carried)).decode()
    if not isinstance(carried, str):
        return None
    try:
        return json.loads(carried)
    except ValueError:
        return None


async def _pending(session: Session[Any]) -> list[int]:
    if not session.head.pending:
        return []
    return [event.seq for event in await session.pending(limit=_PENDING_MAX)]


def _is_large(record: TranscriptRecord) -> bool:
    return size_of(record) > _RECORD_BYTES_MAX


def _text(value: Any) -> str:
    """The record in ASCII: half a surrogate, which a cut stream leaves, and any number fit."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue("the record", f"cannot be written as JSON: {error}") from error
