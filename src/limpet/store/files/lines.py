"""The lines of the journal: what each says, how it is checked, and how a change is described.

A line is one JSON object. `op` says what it is, `n` counts lines, `crc` is the checksum of the line
itself, and `chain` says of the line before whose it is and what its checksum is:

    {"op":"event","n":7,"chain":"3.12.1f0ac42d",…,"crc":"9c3e01aa"}

Here that is event 12 of the session in row 3. So a line that is missing, doubled or swapped is
noticed, and one that cannot be read is known by the line behind it. Who changes an event on purpose
is found by its `link`, the hash chain of its session.

Lines of one caller are a group: `left` counts those that follow, and a group without its last line
was never acknowledged. `begins` marks the first line of a batch, which is written after everything
before it was synced. In a sealed store bodies and changes are sealed; the rest is readable.

What is no event is a change of the memory store's (`limpet.store.memory.changes`), or one of those
here that only a journal has.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

from limpet.model import ABSENT, encode, ops, scope_of
from limpet.store.coding.codec import Damaged
from limpet.store.memory.changes import (
    ColdChange,
    EndChange,
    EraseChange,
    LeaseChange,
    MarkChange,
    Names,
    PinChange,
    RingChange,
    StoreChange,
    TakeChange,
)

VALUE_BYTES_MAX: Final = 1_024  # of a value in `changes`; of a longer one its length and hash
_SHORT_CHARS: Final = VALUE_BYTES_MAX // 6  # of a text that is short enough however it is escaped
START: Final = "-.00000000"  # the chain of the first line
_TRAILER_BYTES: Final = len(b',"crc":"00000000"}')
LINE_END_BYTES: Final = _TRAILER_BYTES + 1  # the checksum, the brace and the newline
_PLAIN: Final = frozenset((int, float, bool, type(None)))
_encode: Final = msgspec.json.Encoder().encode


class PackedLine(StoreChange, omit_defaults=True, gc=False):
    """A line with a body: `body` if it is plain JSON, else `packed`, with `flags` and `sum`."""

    body: Raw | UnsetType = UNSET
    packed: str = ""
    flags: int = 0
    sum: int = 0  # the checksum of the codec, where the place is part of it

    def put(self, flags: int, stored: bytes, crc: int, *, plain: bool = True) -> None:
        self.flags, self.sum = flags, crc
        if flags or not plain:
            self.packed = b64encode(stored).decode()
        else:
            self.body = Raw(stored)

    @property
    def stored(self) -> bytes:
        """The stored bytes of the body. Raises Damaged."""
        if self.body is not UNSET:
            return bytes(self.body)
        try:
            return b64decode(self.packed, validate=True)
        except ValueError as error:
            raise Damaged("has a body that is not base64") from error


class EventLine(PackedLine, omit_defaults=True, gc=False, tag="event"):
    """One event. The last of a session in a group also says what became of the head."""

    row: int = 0
    session: Names = ("", "", "")
    seq: int = 0
    id: str = ""
    type: str = ""
    time: int = 0  # in microseconds since 1970
    actor: str = ""
    link: str = ""
    salt: str = ""  # empty if it is sealed with the body
    digest: str = ""  # of the body, where that is not plain
    changes: Raw | UnsetType = UNSET  # operation, field, value_before and value_after of each
    cause: str | None = None
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None
    input: bool = False
    processes: tuple[int, ...] = ()  # seqs of the inputs that it marks as processed
    done: tuple[int, int] | None = None  # of a compacted input, by earlier releases: seq and time
    adopted: bool = False
    removed: bool = False
    floor: int = 0  # of the first event of a log that begins on a state
    parent: int = 0  # the row that it begins on, if that is here
    created: int = 0  # of the first event, if it is not `time`
    active: int = 0  # of the head, if it is not `time`
    facts: Raw | UnsetType = UNSET  # of the head, if they changed
    mac: str = ""  # of the head


class PlainLine(msgspec.Struct, gc=False):
    """An event line that says no more than what the event changed: most are so. It is made of bytes
    that exist already, in a fraction of the time, and reads back as an `EventLine`."""

    row: int
    seq: int
    text: bytes  # its members but op, n, chain, left, begins and crc


class BaseLine(PackedLine, omit_defaults=True, gc=False, tag="base"):
    """The state that a log begins on. It stands before the log's first event."""

    row: int = 0
    session: Names = ("", "", "")


class SnapshotLine(PackedLine, omit_defaults=True, gc=False, tag="snapshot"):
    """The fold of a session after event `seq`. It follows from the log and saves reading it."""

    row: int = 0
    seq: int = 0
    size: int = 0  # of the body
    fold: bool = False  # written by compaction: the next one takes a newer one


class NameLine(PackedLine, omit_defaults=True, gc=False, tag="name"):
    """One version of an app: or user: name."""

    app: str = ""
    user: str = ""
    name: str = ""
    version: int = 0
    base: int = 0
    form: int = 0
    row: int = 0  # of the session that wrote it
    uid: str = ""
    seq: int = 0
    time: int = 0
    size: int = 0  # of the whole value; -1: deleted


class ChunkLine(PackedLine, omit_defaults=True, gc=False, tag="chunk"):
    """A chunk of an upload."""

    row: int = 0
    upload: str = ""
    number: int = 0
    time: int = 0


class BlobLine(PackedLine, omit_defaults=True, gc=False, tag="blob"):
    """An upload is complete: the session has this blob."""

    row: int = 0
    hash: str = ""
    version: int = 0
    chunks: int = 0
    upload: str = ""


class MacLine(StoreChange, omit_defaults=True, gc=False, tag="mac"):
    """The session's keys vouch for its head as it stands."""

    row: int = 0
    mac: str = ""


class TombLine(StoreChange, omit_defaults=True, gc=False, tag="tomb"):
    """A session that ended, as compaction leaves it: its head, without its events."""

    row: int = 0
    session: Names = ("", "", "")
    uid: str = ""
    version: int = 0
    link: str = ""
    times: tuple[int, int, int, int] = (0, 0, 0, 0)  # created, updated, active, deleted
    floor: int = 0
    ending: str = "deleted"


class FeedLine(StoreChange, omit_defaults=True, gc=False, tag="feed"):
    """The next event has this number in the feed: those before it are gone."""

    first: int = 0


class LostLine(StoreChange, omit_defaults=True, gc=False, tag="lost"):
    """Lines of this session could not be read. Row 0: nobody knows whose they were."""

    row: int = 0


class AcceptLine(StoreChange, omit_defaults=True, gc=False, tag="accept"):
    """A person has decided to go on without what was lost of a session. Row 0: with what nobody
    knows whose it was."""

    row: int = 0


class SegmentLine(StoreChange, omit_defaults=True, gc=False, tag="segment"):
    """The first line of a segment. One that is `compacted` stands for all with smaller numbers."""

    number: int = 0
    store: str = ""
    compacted: bool = False
    time: int = 0  # of the compaction
    ended: int = 0  # how many sessions were deleted or erased until then


class FoldedLine(StoreChange, omit_defaults=True, gc=False, tag="folded"):
    """The last line of a compacted segment: what the first of the next one follows."""

    lines: int = 0
    next: str = ""


class ErasedLine(StoreChange, omit_defaults=True, gc=False, tag="erased"):
    """Stands where a line was that was erased. `was` is what the chain goes on with; `event` tells
    the feed that an event was here."""

    was: str = ""
    event: bool = False


JournalLine: TypeAlias = (
    EventLine
    | BaseLine
    | SnapshotLine
    | NameLine
    | ChunkLine
    | BlobLine
    | MacLine
    | TombLine
    | FeedLine
    | LostLine
    | AcceptLine
    | SegmentLine
    | FoldedLine
    | ErasedLine
)
AnyLine: TypeAlias = (
    JournalLine
    | LeaseChange
    | PinChange
    | ColdChange
    | EndChange
    | TakeChange
    | EraseChange
    | MarkChange
    | RingChange
)
decode_any: Final = msgspec.json.Decoder(AnyLine).decode
decode_event: Final = msgspec.json.Decoder(EventLine).decode
encode_line: Final[Any] = _encode
_NOBODYS: Final = (SnapshotLine, TombLine, FeedLine, SegmentLine, FoldedLine, ErasedLine)


def whose(line: AnyLine | PlainLine) -> str:
    """Whose line it is, as the next one says it: row and seq of an event, the row of what else is
    of a session, `-` for what follows from other lines, `*` for the rest."""
    kind = type(line)
    if kind is PlainLine or kind is EventLine:
        return f"{line.row}.{line.seq}"  # type: ignore[union-attr]  # an event
    if isinstance(line, _NOBODYS):
        return "-"
    row = getattr(line, "row", 0)
    return f"{row}" if row else "*"


class Owned(NamedTuple):
    """Whose a line was that cannot be read."""

    row: int  # 0: nobody's in particular
    seq: int = 0  # of an event


def owner_in(chain: str) -> Owned | None:
    """Whose the line before is, by the chain of a line. None if it lost nothing to anybody."""
    of = chain.split(".")[:-1]
    if of == ["-"]:
        return None
    try:
        return Owned(*map(int, of)) if 0 < len(of) <= 2 else Owned(0)
    except ValueError:
        return Owned(0)


_NAMED: Final = re.compile(rb'"row":(\d+),"session":(\["[^\]]*"\])(?:,"seq":(\d+))?')


_WRITTEN: Final = re.compile(rb'\{"op":".*,"crc":"[0-9a-f]{8}"\}', re.DOTALL)


def was_written(text: bytes) -> bool:
    """True if a line that cannot be read has its two ends: it was not torn, but damaged later."""
    return _WRITTEN.fullmatch(text) is not None


def owner_by_text(text: bytes) -> tuple[Owned, Names] | None:
    """Whose a damaged line says that it is. That may be damaged, too."""
    match = _NAMED.search(text)
    if match is None:
        return None
    try:
        names = msgspec.json.decode(match[2], type=Names)
    except msgspec.MsgspecError:
        return None
    return Owned(int(match[1]), int(match[3] or 0)), names


# --- the outside of a line -----------------------------------------------------------------------

_OUTSIDE: Final = re.compile(
    rb'\{"op":"([a-z]+)","n":(\d+),"chain":"([^"]*)"(?:,"left":(\d+))?(,"begins":true)?'
)


class Outside(NamedTuple):
    """The place of a line in the journal."""

    n: int
    chain: str
    left: int = 0
    begins: bool = False


def outside_of(text: bytes) -> tuple[bytes, Outside] | None:
    """The kind of a line, and its place."""
    match = _OUTSIDE.match(text)
    if match is None:
        return None
    op, n, chain, left, begins = match.groups()
    return op, Outside(int(n), chain.decode(), int(left) if left else 0, begins is not None)


def text_of(line: AnyLine | PlainLine, n: int, chain: str, *, left: int, begins: bool) -> bytes:
    """A line as it is written, without its checksum."""
    marks = b',"left":%d' % left if left else b""
    if begins:
        marks += b',"begins":true'
    if type(line) is PlainLine:
        return b'{"op":"event","n":%d,"chain":"%b"%b,%b' % (n, chain.encode(), marks, line.text)
    text: bytes = _encode(line)
    at = text.index(b'"', 7) + 1  # behind the op
    return b'%b,"n":%d,"chain":"%b"%b%b' % (text[:at], n, chain.encode(), marks, text[at:-1])


def finished(text: bytes, *, pad: int = 0) -> tuple[bytes, str]:
    """The text of a line with its checksum and newline, and that checksum.

    `pad` is the length that it must have, with its newline; spaces are put in.
    """
    if pad:
        text += b" " * (pad - 1 - len(text) - _TRAILER_BYTES)
    crc = f"{crc32(text):08x}"
    return b'%b,"crc":"%b"}\n' % (text, crc.encode()), crc


def is_whole(line: bytes) -> bool:
    """True if a line, without its newline, is what was written."""
    if len(line) <= _TRAILER_BYTES or line[-_TRAILER_BYTES:-10] != b',"crc":"':
        return False
    return b"%08x" % crc32(line[:-_TRAILER_BYTES]) == line[-10:-2]


def crc_of(line: bytes) -> str:
    """The checksum at the end of a whole line."""
    return line[-10:-2].decode()


def session_text(row: int, names: Names) -> bytes:
    """The members of an event line that name its session."""
    return b'"row":%d,"session":%b' % (row, _encode(names))


@lru_cache(maxsize=1_024)
def kind_text(type: str, actor: str) -> bytes:
    """The members of an event line that many of them share."""
    return b'"type":%b,"actor":%b' % (_encode(type), _encode(actor))


# --- what an event changed -----------------------------------------------------------------------


class FieldChange(msgspec.Struct, gc=False):
    """The effect of one operation on a field of the session."""

    operation: str
    field: Any
    value_before: Any
    value_after: Any


_VERBS: Final[Mapping[type, str]] = {
    ops.Set: "set",
    ops.Delete: "del",
    ops.Add: "add",
    ops.Insert: "insert",
    ops.Merge: "merge",
    ops.Inc: "inc",
    ops.Cut: "cut",
}


def changes_of(fields: Mapping[str, Any], plain: Iterable[ops.PlainOp]) -> list[FieldChange]:
    """Return the changes of a session's fields: operation, field, value before and after.

    Later operations are described on what the earlier ones leave. Shared names are described one by
    one (`change_of`), since their values are not the session's.
    """
    described: list[FieldChange] = []
    now: Any = fields
    own = [op for op in plain if scope_of(str(op.path[0])) == "session"]
    for place, op in enumerate(own):
        if place:
            now = ops.apply(now, (own[place - 1],))
        described.append(change_of(now, op))
    return described


def changes_by_sets(
    fields: Mapping[str, Any], sets: Mapping[str, Any], body_bytes: int
) -> list[FieldChange]:
    """The same for operations that only set names of the session: most do. The values are in a body
    of so many bytes: in a short one every value is short."""
    changes = []
    for name, after in sets.items():
        before = fields.get(name)
        kind = type(before)
        if kind not in _PLAIN and (kind is not str or len(before) >= _SHORT_CHARS):  # type: ignore[arg-type]  # a str
            before = _bounded(before)
        if body_bytes > VALUE_BYTES_MAX:
            after = _bounded(after)
        changes.append(FieldChange("set", name, before, after))
    return changes


def change_of(fields: Mapping[str, Any], op: ops.PlainOp) -> FieldChange:
    """Describe one operation on these fields."""
    before, after = _at(fields, op.path), None
    was: Any = None if before is ABSENT else before
    kind = type(op)
    if kind is ops.Set:
        was, after = _bounded(was), _bounded(op.value)  # type: ignore[union-attr]  # a Set
    elif kind is ops.Inc:
        after = (was or 0) + op.by  # type: ignore[union-attr]  # an Inc
    elif kind is ops.Delete:
        was = _bounded(was)
    elif kind is ops.Merge:
        value = op.value  # type: ignore[union-attr]  # a Merge
        was, after = sorted(set(was or ()) & set(value)), sorted(value)
    elif kind is ops.Cut:
        length = len(was or ())
        bounds = (op.start, op.stop)  # type: ignore[union-attr]  # a Cut
        was, after = list(bounds), length - (bounds[1] - bounds[0])
    else:  # Add, Insert: the length says enough
        was = len(was or ())
        after = was + len(op.items)  # type: ignore[union-attr]  # either has items
    field = op.path[0] if len(op.path) == 1 else list(op.path)
    return FieldChange(_VERBS[kind], field, was, after)


def _at(fields: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        try:
            fields = fields[step]
        except (LookupError, TypeError):
            return ABSENT
    return fields


def _bounded(value: Any) -> Any:
    """A value of at most VALUE_BYTES_MAX; of a longer one its length and hash."""
    if (type(value) is str and len(value) < _SHORT_CHARS) or type(value) in _PLAIN:
        return value
    raw = encode(value)
    if len(raw) <= VALUE_BYTES_MAX:
        return Raw(raw)
    return {"length": len(raw), "sha256": sha256(raw).hexdigest()}
