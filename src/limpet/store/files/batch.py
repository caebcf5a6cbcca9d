"""Commits of several callers on their way into the journal: the lines of each are a group."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw

from limpet.model import (
    ABSENT,
    EMPTY,
    PROCESSING,
    Base,
    Commit,
    Event,
    Fold,
    FrozenDict,
    Head,
    Key,
    Prepared,
    Recorded,
    ScopeKey,
    ScopeWrite,
    decode_body,
    ops,
    processed_by,
)
from limpet.store.cache import CachedScope
from limpet.store.coding import bodies
from limpet.store.coding.codec import Codec
from limpet.store.files.lines import (
    AnyLine,
    BaseLine,
    EventLine,
    FieldChange,
    NameLine,
    PlainLine,
    SnapshotLine,
    change_of,
    changes_by_sets,
    changes_of,
    encode_line,
    kind_text,
    session_text,
)
from limpet.store.files.records import JournaledLog, JournaledName
from limpet.store.memory.changes import LeaseChange, PinChange
from limpet.store.memory.tables import MemoryLog, MemoryTables
from limpet.store.plan import Plan
from limpet.store.protocol import Committed
from limpet.store.scopes import DELETED

_PLAIN_TEXT: Final = b'%b,"seq":%d,"id":%b,%b,"time":%d,"body":%b,"link":"%b","salt":"%b"%b'


class WrittenSession:
    """A session as a batch leaves it so far."""

    __slots__ = ("_text", "fields", "head", "key", "log", "row")

    def __init__(
        self, row: int, key: Key, log: JournaledLog | None = None, fold: Fold | None = None
    ) -> None:
        """Without a log and a fold, the batch creates the session."""
        self.row, self.key, self.log = row, key, log
        self._text = None if log is None else log.names
        self.head = None if fold is None else fold.head
        self.fields: Any = None if fold is None else fold.fields

    @property
    def text(self) -> bytes:
        """The name that lines give it: made once for as long as it is written to."""
        if self._text is None:
            key = self.key
            self._text = session_text(self.row, (key.app, key.user, key.id))
            if self.log is not None:
                self.log.names = self._text
        return self._text


class JournalView:
    """The planner's view of a store with a journal: its tables, and which sessions it asked for."""

    __slots__ = ("_tables", "ended", "link_at", "names", "pending", "recorded", "scope", "sessions")

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables
        self.sessions: dict[Key, WrittenSession] = {}  # that were there before the batch
        self.ended, self.link_at, self.names = tables.ended, tables.link_at, tables.names
        self.pending, self.recorded, self.scope = tables.pending, tables.recorded, tables.scope

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        fold = self._tables.fold(key, reuse=reuse)
        if fold is not None:
            log = self._tables.log_of(key)
            assert isinstance(log, JournaledLog)
            self.sessions[key] = WrittenSession(log.row, key, log, fold)
        return fold

    def scope_version(self, key: ScopeKey) -> int:
        return self._tables.scope_version(key)

    def scopes(self, app: str, user: str) -> Any:
        return self._tables.scopes(app, user)


class JournalBatch:
    """The lines of one write. A refused caller leaves nothing in it."""

    def __init__(
        self, tables: MemoryTables, codec: Codec, now_us: int, salt: Callable[[], bytes]
    ) -> None:
        self._tables, self._codec = tables, codec
        self.view = JournalView(tables)
        self.plan = Plan(self.view, now_us, salt)
        self.groups: list[Sequence[AnyLine | PlainLine]] = []
        self._sessions = self.view.sessions
        self._rows = tables.rows
        self.scopes: dict[ScopeKey, CachedScope] = {}

    def add(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Plan one caller's commits and make their lines."""
        plan = self.plan
        if len(commits) == 1 and (answer := plan.add_plain(commits[0])) is not None:
            key, rec = plan.records[-1]
            session, fold = self._sessions[key], plan.folds[key]
            self.groups.append((self._line(session, key, rec, fold),))
            return (answer,)
        first, writes, pins = len(plan.records), len(plan.writes), len(plan.pins)
        answers = plan.add(commits)
        lines = self._lines(commits, first, writes, pins)
        if lines:
            self.groups.append(lines)
        return answers

    def _lines(
        self, commits: Sequence[Commit], first: int, writes: int, pins: int
    ) -> list[AnyLine | PlainLine]:
        """The lines of what was planned since these numbers of records, writes and pins."""
        plan, records = self.plan, self.plan.records[first:]
        lines: list[AnyLine | PlainLine] = []
        last = {key: place for place, (key, _) in enumerate(records)}
        named: dict[tuple[Key, int], list[ScopeWrite]] = {}
        for key, write in plan.writes[writes:]:
            named.setdefault((key, write.seq), []).append(write)
        for place, (key, rec) in enumerate(records):
            session, final = self._session(key), plan.folds[key] if last[key] == place else None
            if session.head is None and (base := plan.bases.get(key)) is not None:
                lines.append(self._base_line(session.row, key, base))
            shared = named.get((key, rec.event.seq), ()) if named else ()
            lines.append(self._line(session, key, rec, final, shared))
            uid = plan.folds[key].head.uid
            lines += [self._name_line(session.row, uid, rec.event, write) for write in shared]
        for key in dict.fromkeys([commit.key for commit in commits if commit.release is not None]):
            if key in plan.folds:
                lines.append(lease_change(self._session(key).row, plan.folds[key].head))
        for key, number, fold in plan.pins[pins:]:
            row = self._session(key).row
            lines.append(snapshot_line(row, fold, self._codec))
            lines.append(PinChange(row, fold.head.version, number))
        return lines

    def _session(self, key: Key) -> WrittenSession:
        session = self._sessions.get(key)
        if session is None:
            self._rows += 1
            session = self._sessions[key] = WrittenSession(self._rows, key)
        return session

    def _line(
        self,
        session: WrittenSession,
        key: Key,
        rec: Recorded,
        final: Fold | None,
        shared: Sequence[ScopeWrite] = (),
    ) -> EventLine | PlainLine:
        """The line of an event. `final` is the session as the group leaves it, if the event is its
        last there; `shared` are the versions of app: and user: names that it makes."""
        event, draft, before = rec.event, rec.draft, session.head
        changes: Any = self._changes(session, key, draft, final) if draft.plain_ops else UNSET
        if shared:
            changes += self._shared_changes(shared)
        session.head = final.head if final is not None else before or _ANY
        if (
            before is None
            or self._codec.seals
            or not (draft.plain or _is_plain(draft))
            or event.cause
            or event.invocation_id
            or event.correlation_id
            or event.wake_id
            or (final is not None and final.head.facts is not before.facts)
        ):
            return self._event_line(session, key, rec, before, changes, final)
        more = b"" if changes is UNSET else b',"changes":' + encode_line(changes)
        if final is not None and final.head.active_us != event.at_us:
            more += b',"active":%d' % final.head.active_us
        text = _PLAIN_TEXT % (
            session.text,
            event.seq,
            encode_line(event.id),  # whoever chose it: a client of a server names its own
            kind_text(event.type, event.actor),
            event.at_us,
            draft.raw,
            hexlify(event.link),
            hexlify(rec.salt),
            more,
        )
        return PlainLine(session.row, event.seq, text)

    def _event_line(
        self,
        session: WrittenSession,
        key: Key,
        rec: Recorded,
        before: Head | None,
        changes: Any,
        final: Fold | None,
    ) -> EventLine:
        event, draft = rec.event, rec.draft
        line = EventLine(
            row=session.row,
            session=(key.app, key.user, key.id),
            seq=event.seq,
            id=event.id,
            type=event.type,
            time=event.at_us,
            actor=event.actor,
            link=event.link.hex(),
        )
        line.cause, line.invocation_id = event.cause, event.invocation_id
        line.correlation_id, line.wake_id = event.correlation_id, event.wake_id
        if not draft.plain:
            line.input, line.adopted = event.processed is not None, draft.origin is not None
            if event.type in PROCESSING:
                data = draft.data
                if data is None:
                    data = decode_body(rec.raw).data
                line.processes = tuple(processed_by(event.type, data))
        self._put_body(line, key, rec, changes)
        if before is None:
            head = self.plan.folds[key].head
            line.floor = head.floor
            line.created = head.created_us if head.created_us != event.at_us else 0
            base = self.plan.bases.get(key)
            if base is not None:
                line.parent = self._row_of(base)
        if final is not None:
            head = final.head
            if head.active_us != event.at_us:
                line.active = head.active_us
            if head.facts if before is None else before.facts is not head.facts:
                line.facts = Raw(encode_line(head.facts))
            mac = self._codec.head_mac(head)
            line.mac = "" if mac is None else mac.hex()
        return line

    def _changes(
        self, session: WrittenSession, key: Key, draft: Prepared, final: Fold | None
    ) -> list[FieldChange]:
        """Describe what an event does to the fields of its session, which are then those that it
        leaves."""
        fields, sets = session.fields, draft.sets
        if fields is None:  # a new session
            base = self.plan.bases.get(key)
            fields = EMPTY if base is None else base.fields
        if sets is not None:
            changes = changes_by_sets(fields, sets, len(draft.raw))
        else:
            changes = changes_of(fields, draft.plain_ops)
        if final is not None:
            session.fields = final.fields
        elif sets is not None:
            if type(fields) is not dict:
                session.fields = fields = dict(fields)  # ours: the events of a run change it
            fields.update(sets)
        else:
            own = [op for op in draft.plain_ops if ops.scope_of(str(op.path[0])) == "session"]
            session.fields = ops.apply(FrozenDict(fields), own)
        return changes

    def _shared_changes(self, writes: Sequence[ScopeWrite]) -> list[FieldChange]:
        """Describe what an event does to app: and user: names."""
        changes, now = list[FieldChange](), dict[str, Any]()
        for write in writes:
            name = write.key[2]
            if name not in now:
                before = self._scope(write.key)
                if before is not None and not before.value.deleted:
                    now[name] = before.value.value
            changes.append(change_of(now, write.op))
            now[name] = ABSENT if write.at.deleted else write.at.value
        return changes

    def _scope(self, key: ScopeKey) -> CachedScope | None:
        """The newest version of a name, as it was before or as this batch has left it."""
        name = self.scopes.get(key) or self._tables.name_of(key)
        return name.cached if isinstance(name, JournaledName) else name  # type: ignore[return-value]  # one of them

    def _put_body(self, line: EventLine, key: Key, rec: Recorded, changes: Any) -> None:
        codec = self._codec
        if not codec.seals:
            line.body, line.salt, line.changes = Raw(rec.raw), rec.salt.hex(), changes
            if changes is not UNSET:
                line.changes = Raw(encode_line(changes))
            return
        event, uid = rec.event, self.plan.folds[key].head.uid
        bound = (event.seq, event.at_us, rec.draft.header, event.link)
        place = codec.event_place(uid, event.id, event.type, *bound)
        plain = rec.salt + rec.raw
        if changes is not UNSET:
            plain += b"\n" + encode_line(changes)
        flags, stored, _ = codec.pack(plain, place)
        line.put(flags, stored, 0)
        line.digest = rec.digest.hex()

    def _row_of(self, base: Base) -> int:
        """The row of the parent, if it is here: what is adopted may come without."""
        key = base.parent
        session = self._sessions.get(key)
        if session is not None:
            head = self.plan.folds[key].head if key in self.plan.folds else session.head
            return session.row if head is not None and head.uid == base.uid else 0
        log: MemoryLog | None = self._tables.log_of(key)
        return log.row if log is not None and log.head.uid == base.uid else 0

    def _base_line(self, row: int, key: Key, base: Base) -> BaseLine:
        line = BaseLine(row=row, session=(key.app, key.user, key.id))
        place = bodies.base_place(self.plan.folds[key].head.uid, base.floor)
        line.put(*self._codec.pack(bodies.base_body(base), place, bound=True))
        return line

    def _name_line(self, row: int, uid: str, event: Event, write: ScopeWrite) -> NameLine:
        before = self._scope(write.key)
        since = -1 if before is None else before.since_base
        form, raw, since_base = bodies.scope_body(write, since)
        version = write.at.version
        base = version if form != bodies.BY_OP or before is None else before.base
        self.scopes[write.key] = CachedScope(write.at, base, since_base, 0)
        place = bodies.scope_place(write.key, version, base, form, uid, write.seq)
        app, user, name = write.key
        line = NameLine(app=app, user=user, name=name, version=version, base=base, form=form)
        line.row, line.uid, line.seq, line.time = row, uid, write.seq, event.at_us
        line.size = DELETED if write.at.deleted else len(write.whole)
        flags, stored, crc = self._codec.pack(raw, place, bound=True)
        line.put(flags, stored or b'""', crc)
        if not stored:
            line.body, line.packed = UNSET, ""
        return line


def _is_plain(draft: Prepared) -> bool:
    """True if the line of an event says no more than what it changed."""
    return not draft.input and draft.origin is None and draft.type not in PROCESSING


_ANY: Final = Head(Key("x", "x", "x"), "", 0, b"", 0, 0, 0)  # stands for a head that is not known


def lease_change(row: int, head: Head) -> LeaseChange:
    return LeaseChange(row, head.fence, head.lease_us, head.worker, head.leased_us)


def snapshot_line(row: int, fold: Fold, codec: Codec) -> SnapshotLine:
    """The state of a session as a line. Raises Unready."""
    seq, packed, size = bodies.packed_snapshot(fold, codec)
    line = SnapshotLine(row=row, seq=seq, size=size)
    line.put(*packed)
    return line
