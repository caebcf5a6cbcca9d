"""The lines of the root log: what each says, how it is checked, and how a change is described.

A line is one JSON object. `op` says what it is, `n` counts lines, `crc` is the checksum of the line
itself, and `chain` has those of the two lines before it, so that each covers all before it:

    {"op":"event","n":7,"chain":"1f0ac42d77b0e916",…,"crc":"9c3e01aa"}

That finds lines that are missing, doubled or swapped. Who changes an event on purpose is found by
its `link`, the hash chain of its session.

Lines of one caller are a group: `left` counts those that follow, and a group without its last line
was never acknowledged. `begins` marks the first line of a batch, which is written after everything
before it was synced. In a sealed store bodies and changes are sealed; the rest is readable.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

from limpet.model import ABSENT, encode, ops, scope_of
from limpet.store.coding.codec import Damaged

VALUE_BYTES_MAX: Final = 1_024  # of a value in `changes`; of a longer one its length and hash
_SHORT_CHARS: Final = VALUE_BYTES_MAX // 6  # of a text that is short enough however it is escaped
CHAIN_START: Final = "0" * 16
CRC_START: Final = "0" * 8
_TRAILER_BYTES: Final = len(b',"crc":"00000000"}')
LINE_END_BYTES: Final = _TRAILER_BYTES + 1  # the checksum, the brace and the newline
_PLAIN: Final = frozenset((int, float, bool, type(None)))
_encode: Final = msgspec.json.Encoder().encode
Names: TypeAlias = tuple[str, str, str]  # app, user and id of a session


class FieldChange(msgspec.Struct, gc=False):
    """The effect of one operation on a field of the session."""

    operation: str
    field: Any
    value_before: Any
    value_after: Any


class LogLine(msgspec.Struct, omit_defaults=True, gc=False, tag_field="op"):
    """The members that every line has."""

    n: int = 0
    chain: str = ""


class PackedLine(LogLine, omit_defaults=True, gc=False):
    """A line with a body: `body` if it is plain JSON, else `packed`, with `flags` and `sum`."""

    body: Raw | UnsetType = UNSET
    packed: str = ""
    flags: int = 0
    sum: int = 0  # the checksum of the codec, where the place is part of it

    def put(self, flags: int, stored: bytes, crc: int) -> None:
        self.flags, self.sum = flags, crc
        if flags:
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
    done: tuple[int, int] | None = None  # of a compacted input: seq and time of what processed it
    adopted: bool = False
    removed: bool = False
    floor: int = 0  # of the first event of a log that begins on a state
    parent: int = 0  # the row that it begins on, if that is here
    created: int = 0  # of the first event, if it is not `time`
    active: int = 0  # of the head, if it is not `time`
    facts: Raw | UnsetType = UNSET  # of the head, if they changed
    mac: str = ""  # of the head
    left: int = 0
    begins: bool = False


class PlainLine(msgspec.Struct, gc=False):
    """An event line that says no more than what the event changed: most are so. It is made of bytes
    that exist already, in a fraction of the time, and reads back as an `EventLine`."""

    row: int
    seq: int
    text: bytes  # its members but op, n, chain, left, begins and crc
    left: int = 0
    begins: bool = False

    @property
    def marks(self) -> bytes:
        """Its members `left` and `begins`, where they are not the defaults."""
        marks = b'"left":%d,' % self.left if self.left else b""
        return marks + b'"begins":true,' if self.begins else marks


PLAIN_LINE: Final = b'{"op":"event","n":%d,"chain":"%b",%b%b'  # n, chain, marks and text of one


class BaseLine(PackedLine, omit_defaults=True, gc=False, tag="base"):
    """The state that a log begins on. It stands before the log's first event."""

    row: int = 0
    session: Names = ("", "", "")
    left: int = 0
    begins: bool = False


class SnapshotLine(PackedLine, omit_defaults=True, gc=False, tag="snapshot"):
    """The state of a session after event `seq`. It follows from the log and saves reading it."""

    row: int = 0
    seq: int = 0
    size: int = 0  # of the body
    left: int = 0
    begins: bool = False


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
    left: int = 0
    begins: bool = False


class LeaseLine(LogLine, omit_defaults=True, gc=False, tag="lease"):
    row: int = 0
    fence: int = 0
    lease_us: int | None = None
    worker: str | None = None
    leased_us: int | None = None
    left: int = 0
    begins: bool = False


class PinLine(LogLine, omit_defaults=True, gc=False, tag="pin"):
    """The state after event `seq` is checkpoint `number`; without a number it is one no more."""

    row: int = 0
    seq: int = 0
    number: int = 0
    left: int = 0
    begins: bool = False


class ColdLine(LogLine, omit_defaults=True, gc=False, tag="cold"):
    """The feed has no events up to `upto`, but those in `hot`."""

    row: int = 0
    upto: int = 0
    hot: tuple[int, ...] = ()
    left: int = 0
    begins: bool = False


class EndLine(LogLine, omit_defaults=True, gc=False, tag="end"):
    """The session was deleted, or moved away."""

    row: int = 0
    time: int = 0
    ending: str = "deleted"
    left: int = 0
    begins: bool = False


class TakeLine(LogLine, omit_defaults=True, gc=False, tag="take"):
    """The session has another key from now on."""

    row: int = 0
    session: Names = ("", "", "")
    fence: int = 0
    left: int = 0
    begins: bool = False


class EraseLine(LogLine, omit_defaults=True, gc=False, tag="erase"):
    """These sessions, and all names that an owner had before, are forgotten; certificates stay."""

    rows: tuple[int, ...] = ()
    # key hash, version, link, time, forks kept
    certificates: tuple[tuple[str, int, str, int, int], ...] = ()
    owner: str | tuple[str, str] = ""  # the keyed hash of its name; in format 1 the name
    left: int = 0
    begins: bool = False


class BlobLine(PackedLine, omit_defaults=True, gc=False, tag="blob"):
    row: int = 0
    hash: str = ""
    version: int = 0
    chunks: int = 0
    upload: str = ""
    left: int = 0
    begins: bool = False


class MarkLine(LogLine, omit_defaults=True, gc=False, tag="mark"):
    """A mark; with `until` 0 it is gone."""

    space: str = ""
    name: str = ""
    value: int = 0
    until: int = 0
    left: int = 0
    begins: bool = False


class MacLine(LogLine, omit_defaults=True, gc=False, tag="mac"):
    """The session's keys vouch for its head as it stands."""

    row: int = 0
    mac: str = ""
    left: int = 0
    begins: bool = False


class RingLine(LogLine, omit_defaults=True, gc=False, tag="ring"):
    ring: str = ""
    left: int = 0
    begins: bool = False


class SegmentLine(LogLine, omit_defaults=True, gc=False, tag="segment"):
    """The first line of a segment."""

    number: int = 0
    store: str = ""
    left: int = 0
    begins: bool = False


class FeedLine(msgspec.Struct, gc=False, tag="feed", tag_field="op"):
    """Entries of the feed from number `first` on, in a compacted file: row << 32 | seq of each."""

    first: int
    entries: list[int]


class ErasedLine(LogLine, omit_defaults=True, gc=False, tag="erased"):
    """Stands where a line was that was erased. `was` is the checksum that the chain goes on with;
    `event` tells the feed that an event was here."""

    was: str = ""
    event: bool = False
    left: int = 0
    begins: bool = False


AnyLine: TypeAlias = (
    EventLine
    | BaseLine
    | SnapshotLine
    | NameLine
    | LeaseLine
    | PinLine
    | ColdLine
    | EndLine
    | TakeLine
    | EraseLine
    | BlobLine
    | MarkLine
    | MacLine
    | RingLine
    | SegmentLine
    | ErasedLine
)
decode_any: Final = msgspec.json.Decoder(AnyLine).decode
decode_event: Final = msgspec.json.Decoder(EventLine).decode
encode_line: Final[Any] = _encode


def next_chain(chain: str, crc: str) -> str:
    """The chain of a line, from the chain and the checksum of the line before."""
    return chain[8:] + crc


def follows(line: LogLine, chain: str, crc: str) -> bool:
    """True if a line's chain covers the line before, which has this chain and this checksum.

    Lines of format 1 have a hash of both instead, and the first of them one of the chain alone.
    """
    if line.chain == next_chain(chain, crc):
        return True
    before = CHAIN_START if (chain, crc) == (CHAIN_START, CRC_START) else chain + crc
    return line.chain == sha256(before.encode()).hexdigest()[:16]


def session_text(row: int, names: Names) -> bytes:
    """The members of an event line that name its session."""
    return b'"row":%d,"session":%b' % (row, _encode(names))


@lru_cache(maxsize=1_024)
def kind_text(type: str, actor: str) -> bytes:
    """The members of an event line that many of them share."""
    return b'"type":%b,"actor":%b' % (_encode(type), _encode(actor))


def finished(line: bytes, *, pad: int = 0) -> tuple[bytes, str]:
    """An encoded line with its checksum and newline, and that checksum.

    `pad` is the length that it must have, with its newline; spaces are put in.
    """
    text = line[:-1]
    if pad:
        text += b" " * (pad - 1 - len(text) - _TRAILER_BYTES)
    crc = f"{crc32(text):08x}"
    return b'%b,"crc":"%b"}\n' % (text, crc.encode()), crc


def is_whole(line: bytes) -> bool:
    """True if a line, without its newline, is what was written."""
    if len(line) <= _TRAILER_BYTES or line[-_TRAILER_BYTES:-10] != b',"crc":"':
        return False
    return f"{crc32(line[:-_TRAILER_BYTES]):08x}".encode() == line[-10:-2]


def crc_of(line: bytes) -> str:
    """The checksum at the end of a whole line."""
    return line[-10:-2].decode()


# --- what an event changed -----------------------------------------------------------------------

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
