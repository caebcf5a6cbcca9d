"""Checkpoints: what is kept of an invocation after each node, so that it can be resumed.

A record has a cursor: a stack of frames, the outermost graph first, each with its state and the
node that runs next. Edges were evaluated before the record was saved; a resumed run continues at
the cursor and evaluates none again.

A record has one plain form, its document: what `to_document` returns. A checkpointer that can
store changes gets operations on that document, so a step costs what it changed, not what the state
weighs. A checkpointer of your own needs no base class: `save`, `load`, `delete` and `list` are
enough, and `record.to_bytes()` gives it something to store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from limpet.errors import InvalidInput
from limpet.graph.sessions import (
    RecordListing,
    SessionRecord,
    SessionStore,
    exact,
    filter_of,
    page_of,
)
from limpet.model import Key, PlainOp, freeze, thaw
from limpet.model.ops import Add, Merge, Set, apply

Document: TypeAlias = dict[str, Any]
Status: TypeAlias = Literal["running", "suspended", "completed", "resumed"]
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_WHERE: Final = "a checkpoint"
_LOG: Final = logging.getLogger("limpet.graph")


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completed node: its name and its number within the invocation, from 0."""

    node: str
    step: int
    parents: tuple[str, ...] = ()  # the nodes around it, the outermost first
    attempt_index: int = 0
    fan_out_index: int | None = None
    branch_name: str | None = None


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One graph of the stack: its state, and the node that runs next (None: it has ended)."""

    node: str | None
    state: dict[str, Any]
    progress: Progress | None = None
    schema_version: str | None = None  # of its state, if it is not that of the record


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a fan-out or parallel-branches node; slots by index or branch name.

    A slot that is not there has not begun.
    """

    total: int
    slots: dict[str, ProgressSlot] = {}


class ProgressSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One instance or branch: what it contributes once it is done, its frames until then."""

    done: bool = False
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    frames: tuple[Frame, ...] = ()


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An invocation as it stood after a node. All states are plain JSON data.

    `state` is the state of the innermost graph of the cursor, `parent_states` those around it. The
    engine always writes a cursor; a record without one is resumed by its completed positions.
    `revision` grows with every save of the invocation, and `last_saved_at` is when that was. Our
    checkpointers take both from the store's version and clock and ignore what a record says.
    """

    invocation_id: str
    correlation_id: str
    state: dict[str, Any]
    completed_positions: tuple[Position, ...] = ()
    parent_states: tuple[dict[str, Any], ...] = ()
    cursor: tuple[Frame, ...] | None = None
    last_saved_at: datetime | None = None
    schema_version: str = ""
    session_id: str | None = None
    status: Status = "running"
    graph: str = ""  # identifies the graph's nodes: a record is resumed by the graph it is of
    revision: int = 1
    suspension: dict[str, Any] | None = None  # of a suspended invocation
    signals: int = 0  # that it has taken: each continued it once
    resumed_as: str | None = None  # of a resumed one: the invocation that goes on in its place

    @property
    def fan_out_progress(self) -> Progress | None:
        """The progress of the fan-out or parallel-branches node at the cursor; None at another."""
        return self.cursor[-1].progress if self.cursor else None

    def to_document(self) -> Document:
        """The record as one dict of plain JSON data. With a cursor, states stand in its frames.

        What most records do not have is left out: every name costs a run that is checkpointed.
        """
        made: Document = {
            "invocation_id": self.invocation_id,
            "correlation_id": self.correlation_id,
            "completed_positions": [document_of(one) for one in self.completed_positions],
            "last_saved_at": msgspec.to_builtins(self.last_saved_at),
            "status": self.status,
            "graph": self.graph,
            "revision": self.revision,
        }
        for name in ("schema_version", "session_id", "suspension", "signals", "resumed_as"):
            if value := getattr(self, name):
                made[name] = value
        if self.cursor is not None:
            return {**made, "cursor": [document_of(frame) for frame in self.cursor]}
        return {**made, "state": self.state, "parent_states": list(self.parent_states)}

    @classmethod
    def from_document(cls, document: Document) -> CheckpointRecord:
        """The record of a document. Raises msgspec.ValidationError if it is not one."""
        fields = dict(document)
        if frames := fields.get("cursor"):
            fields["state"] = frames[-1]["state"]
            fields["parent_states"] = [frame["state"] for frame in frames[:-1]]
        return msgspec.convert(fields, cls)

    def to_bytes(self) -> bytes:
        """The document as JSON. Raises InvalidValue for what JSON cannot hold, such as NaN."""
        return _encode(exact(self.to_document(), _WHERE))

    @classmethod
    def from_bytes(cls, data: bytes | str) -> CheckpointRecord:
        """The record of such bytes. Raises msgspec.DecodeError or msgspec.ValidationError."""
        return cls.from_document(_decode(data))

    def summary(self) -> CheckpointSummary:
        """The record without its states."""
        names = CheckpointSummary.__struct_fields__
        return CheckpointSummary(**{name: getattr(self, name) for name in names})


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An invocation in a listing, without its states."""

    invocation_id: str
    correlation_id: str
    session_id: str | None = None
    schema_version: str = ""
    status: Status = "running"
    revision: int = 1
    last_saved_at: datetime | None = None


class CheckpointFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the invocations that match every field that is given.

    With `limit` a listing has at most that many; pass its `cursor` to get the next ones.
    """

    correlation_id: str | None = None
    session_id: str | None = None
    schema_version: str | None = None
    status: Status | None = None
    saved_after: datetime | None = None
    limit: int | None = None
    cursor: str | None = None


@runtime_checkable
class Checkpointer(Protocol):
    """Keeps the newest record of each invocation.

    One with an attribute `flush_every` gets the steps inside the instances of a fan-out so many at
    a time. Every other step is saved at once, and with it those that were held back; if the run
    stops before, they run again, and count once.
    """

    async def save(self, record: CheckpointRecord, /) -> None:
        """Replace the record of its invocation, all or nothing, durable on return.

        The engine never has two saves of one invocation under way at a time.
        """
        ...

    async def load(self, invocation_id: str, /) -> CheckpointRecord | None:
        """The newest record of the invocation; None if there is none."""
        ...

    async def delete(self, invocation_id: str, /) -> None:
        """Remove the record. Does nothing if there is none."""
        ...

    async def list(
        self, filter: CheckpointFilter | None = None, /
    ) -> RecordListing[CheckpointSummary]:
        """Summaries of the invocations that match the filter; of all without one."""
        ...


@runtime_checkable
class LeasingCheckpointer(Checkpointer, Protocol):
    """A checkpointer that stores what a step changed, and lets one of several runs resume.

    It saves changes beside whole records, claims a record for the first of racing runs, and knows
    whether a resumed run is still under way.
    """

    async def save_changes(
        self,
        invocation_id: str,
        ops: tuple[PlainOp, ...],
        whole: Callable[[], CheckpointRecord],
        /,
    ) -> None:
        """Apply `ops` to the document of the invocation, in one commit, durable on return.

        The engine has saved a whole record of the invocation with this object before, and every
        later change in order, so the stored document is the one that `ops` were made for. Calls of
        one invocation may overlap and take effect in the order in which they were made. A
        checkpointer that no longer has the document saves `whole()`, which is the record with this
        change applied if it is called before the first await. No operation changes `revision` or
        `last_saved_at`: the checkpointer counts its saves and has a clock.
        """
        ...

    async def claim(self, record: CheckpointRecord, revision: int, /) -> bool:
        """Save `record` if the stored record has this revision; otherwise return False.

        Revision 0 means that no record of the invocation is stored.
        """
        ...

    async def hold(self, invocation_id: str, /) -> bool:
        """Take the lease on a stored invocation; False if somebody holds it, this object included.

        It is held until `release`. The lease of a process that died expires. A save of an
        invocation whose lease this object held and lost is refused, where processes share a store.
        """
        ...

    async def pass_on(self, pointer: CheckpointRecord, record: CheckpointRecord, /) -> bool:
        """Save both, or neither and return False: a run goes on under another id.

        `pointer` is the record whose lease this object holds, with `resumed_as`; it replaces the
        stored one if that has its revision. `record` is the first of an id that is not stored yet.
        """
        ...

    async def release(self, invocation_id: str, /) -> None:
        """Give the lease back that this object holds. Does nothing if it holds none."""
        ...


@runtime_checkable
class JointCheckpointer(Checkpointer, Protocol):
    """A checkpointer that saves a record and a session in one commit, where both live together."""

    def joins(self, store: SessionStore, /) -> bool:
        """True if sessions of this store can be saved together with records."""
        ...

    async def save_with_session(
        self,
        record: CheckpointRecord,
        store: SessionStore,
        session: SessionRecord,
        /,
        *,
        expected_version: int | None = None,
    ) -> int | None:
        """Save both, or neither. Returns the session's new version.

        Raises SessionWriteConflict if `expected_version` is given and is not the stored one.
        """
        ...


class _StoredDocument(NamedTuple):
    """A document in memory: how often it was saved, and when."""

    document: Any
    revision: int
    saved_at: datetime


class InMemoryCheckpointer:
    """A checkpointer for tests and experiments: everything ends with the process.

    With `keep` it forgets the completed invocations that were saved longest ago beyond that many,
    among them those that were resumed as one that has completed. With `flush_every` steps inside
    the instances of a fan-out are saved so many at a time.
    """

    def __init__(self, *, keep: int | None = None, flush_every: int = 1) -> None:
        self.flush_every = check_flush_every(flush_every)
        self._kept: dict[str, _StoredDocument] = {}  # the invocation saved last is last
        self._held: set[str] = set()
        self._keep = check_keep(keep)

    async def save(self, record: CheckpointRecord, /) -> None:
        """Replace the record."""
        id = invocation_key(record.invocation_id)
        self._put(id, freeze(exact(record.to_document(), _WHERE)))

    async def save_changes(
        self,
        invocation_id: str,
        ops: tuple[PlainOp, ...],
        whole: Callable[[], CheckpointRecord],
        /,
    ) -> None:
        """Apply the changes; if the record is gone, save the whole one."""
        if (kept := self._kept.get(invocation_id)) is None:
            warn_missing(invocation_id)
            await self.save(whole())
        else:
            self._put(invocation_id, apply(kept.document, _plain(ops)))

    async def claim(self, record: CheckpointRecord, revision: int, /) -> bool:
        """Save the record if the stored one has this revision."""
        stored = self._kept.get(record.invocation_id)
        if revision != (0 if stored is None else stored.revision):
            return False
        await self.save(record)
        return True

    async def hold(self, invocation_id: str, /) -> bool:
        """Take the lease on an invocation. Nobody outside this process could hold it."""
        if invocation_id in self._held:
            return False
        self._held.add(invocation_id)
        return True

    async def pass_on(self, pointer: CheckpointRecord, record: CheckpointRecord, /) -> bool:
        """Save both records, or neither."""
        stored = self._kept.get(pointer.invocation_id)
        if (
            stored is None
            or stored.revision != pointer.revision
            or record.invocation_id in self._kept
        ):
            return False
        id, both = invocation_key(record.invocation_id), (pointer, record)
        old, new = [freeze(exact(one.to_document(), _WHERE)) for one in both]
        self._put(pointer.invocation_id, old)
        self._put(id, new)
        return True

    async def release(self, invocation_id: str, /) -> None:
        """Give the lease back."""
        self._held.discard(invocation_id)

    async def load(self, invocation_id: str, /) -> CheckpointRecord | None:
        """The newest record, as a copy."""
        kept = self._kept.get(invocation_key(invocation_id))
        if kept is None:
            return None
        by_us = {"revision": kept.revision, "last_saved_at": kept.saved_at}
        return CheckpointRecord.from_document({**thaw(kept.document), **by_us})

    async def latest(
        self, correlation_id: str | None = None, /, *, session_id: str | None = None
    ) -> CheckpointRecord | None:
        """The record that was saved last under this correlation id, or in this session."""
        for invocation_id, (document, *_) in reversed(self._kept.items()):
            in_session = session_id is None or document.get("session_id") == session_id
            if in_session and correlation_id in (None, document["correlation_id"]):
                return await self.load(invocation_id)
        return None

    async def delete(self, invocation_id: str, /) -> None:
        """Remove the record, if there is one."""
        self._kept.pop(invocation_key(invocation_id), None)

    async def list(
        self, filter: CheckpointFilter | None = None, /
    ) -> RecordListing[CheckpointSummary]:
        """Summaries in the order of their ids."""
        wanted = filter_of(filter, CheckpointFilter)
        records = [await self.load(name) for name in sorted(self._kept)]
        summaries = [r.summary() for r in records if r is not None and matches(r.summary(), wanted)]
        return page_of(
            summaries, [item.invocation_id for item in summaries], wanted.limit, wanted.cursor
        )

    def _put(self, invocation_id: str, document: Any) -> None:
        before = self._kept.pop(invocation_id, None)
        revision = 1 if before is None else before.revision + 1
        self._kept[invocation_id] = _StoredDocument(document, revision, datetime.now(UTC))
        if self._keep is not None and document["status"] == "completed":
            documents = {name: kept.document for name, kept in self._kept.items()}
            ended = [name for name in documents if is_over(name, documents)]
            for name in ended[: max(0, len(ended) - self._keep)]:
                del self._kept[name]


def flush_every_of(checkpointer: Checkpointer) -> int:
    """The number of steps inside a fan-out that this checkpointer saves at a time."""
    count = getattr(checkpointer, "flush_every", 1)
    return count if type(count) is int and count > 0 else 1


def warn_missing(invocation_id: str) -> None:
    """The record of an invocation is gone while it runs."""
    _LOG.warning("checkpoint missing: invocation=%s", invocation_id)


def is_over(invocation_id: str, documents: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if an invocation, or the one that went on in its place, has completed or is gone."""
    document = documents.get(invocation_id)
    while document is not None and document.get("status") == "resumed":
        document = documents.get(document["resumed_as"])
    return document is None or document.get("status") == "completed"


def matches(item: CheckpointSummary, wanted: CheckpointFilter) -> bool:
    """True if a listing with this filter has the item."""
    for name in ("correlation_id", "session_id", "schema_version", "status"):
        asked = getattr(wanted, name)
        if asked is not None and getattr(item, name) != asked:
            return False
    if wanted.saved_after is None:
        return True
    return item.last_saved_at is not None and item.last_saved_at > wanted.saved_after


def document_of(part: Position | Frame | ProgressSlot) -> Document:
    """The plain form of a part of a record: dicts and lists, as JSON has them."""
    if isinstance(part, Position):
        made: Document = {"node": part.node, "step": part.step}
        if part.parents:
            made["parents"] = list(part.parents)
        if part.attempt_index:
            made["attempt_index"] = part.attempt_index
        if part.fan_out_index is not None:
            made["fan_out_index"] = part.fan_out_index
        if part.branch_name is not None:
            made["branch_name"] = part.branch_name
        return made
    if isinstance(part, ProgressSlot):
        frames = [document_of(frame) for frame in part.frames]
        return {"done": part.done, "result": part.result, "error": part.error, "frames": frames}
    made = {"node": part.node, "state": part.state}
    if part.schema_version is not None:
        made["schema_version"] = part.schema_version
    if part.progress is not None:
        slots = {key: document_of(slot) for key, slot in part.progress.slots.items()}
        made["progress"] = {"total": part.progress.total, "slots": slots}
    return made


def _plain(ops: Iterable[PlainOp]) -> tuple[PlainOp, ...]:
    """The operations with values of their own: nothing in the record is shared with the run."""
    made: list[PlainOp] = []
    for op in ops:
        if isinstance(op, (Set, Merge)):
            made.append(type(op)(op.path, exact(op.value, _WHERE)))
        elif isinstance(op, Add):
            made.append(Add(op.path, exact(op.items, _WHERE)))
        else:
            made.append(op)  # it has no values
    return tuple(made)


def invocation_key(invocation_id: Any) -> str:
    """The id of an invocation: what may be the id in a key. Raises InvalidKey."""
    return Key("graph", "invocations", invocation_id).id


def check_keep(keep: int | None) -> int | None:
    """Check the number of completed invocations to keep; None keeps all."""
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidInput(f"keep is a number of invocations from 1, not {keep!r}.")
    return keep


def check_flush_every(flush_every: int) -> int:
    """Check the number of steps inside a fan-out that one commit has."""
    if type(flush_every) is not int or flush_every < 1:
        raise InvalidInput(f"flush_every is a number of steps from 1, not {flush_every!r}.")
    return flush_every
