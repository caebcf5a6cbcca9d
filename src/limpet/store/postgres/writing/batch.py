"""A batch: one call of the SQL function limpet.commit.

The plan of many jobs becomes columns, one array each, and the reply says which of the jobs hold.
What holds was recorded as it was planned: the server adds nothing but leases, which it judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, count
from typing import Any, Final, TypeAlias

import msgspec

from limpet.model import (
    LEFT_US,
    PROCESSING,
    Base,
    Commit,
    Fold,
    Head,
    Key,
    Recorded,
    ScopeKey,
    ScopeWrite,
    blank,
    deadline_us,
    due_us,
    moves_with_activity,
    processed_by,
    scope_of,
)
from limpet.model.lease import with_lease
from limpet.model.limits import EVENT_OVERHEAD_BYTES, SCOPE_NAMES_EVER_MAX, SCOPE_NAMES_MAX
from limpet.store.cache import CachedScope, CachedSession
from limpet.store.coding.bodies import (
    BY_OP,
    base_body,
    base_place,
    packed_snapshot,
    scope_body,
    scope_place,
)
from limpet.store.coding.codec import MAC_BYTES, Codec
from limpet.store.plan import Plan
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.server.cluster import Cluster
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SCRIPTS
from limpet.store.postgres.writing.view import PostgresView
from limpet.store.protocol import Committed, Owner

_AS_BEFORE: Final = (None,) * 4  # the facts of a visit that changes none
_UNNAMED: Final = (None,) * 8  # of a session that is there
_AWAITED: Final = "current_setting('synchronous_standby_names')"
LATE_US: Final = 10_000_000  # planned longer ago than this: the server's clock may have been set


class BatchSession:
    """A session of a batch, at its place among them."""

    __slots__ = ("adopted", "changed", "live", "needed", "place", "size")

    def __init__(self, place: int, live: CachedSession | None, *, needed: bool = False) -> None:
        self.place, self.needed = place, needed  # needed: it only has to live
        self.live = live  # as the batch found it; None: it is created
        self.size = 0  # of the events that are added
        self.adopted: int | None = None  # the last of them that another store recorded
        self.changed = False  # more than the last event is sent


class PostgresBatch:
    """Gathers the jobs of a plan as they are added."""

    def __init__(self, plan: Plan, view: PostgresView, reader: PostgresReader) -> None:
        self._plan, self._view = plan, view
        self._codec, self._hash = reader.codec, reader.key_hash
        self._no_mac = (
            bytes(MAC_BYTES) if reader.codec.marks else None
        )  # of what is not a last event
        self.cluster: Cluster | None = None  # that it is sent to
        self._jobs = 0
        self._refused: Collection[int] = ()  # jobs that the server did not record
        self._heads: dict[Key, BatchSession] = {}
        self._new = False  # some session is to be created
        self._seen_records = self._seen_writes = self._seen_pins = 0
        self._tables = BatchTables()
        self._names = BatchNames(plan, view, self._codec, self._tables)
        self._call: tuple[Any, ...] = ()  # the statement and its arguments
        self._left: list[tuple[int, Key, Fold]] = []  # what each job leaves of its sessions
        self._lives: dict[Key, CachedSession] = {}  # as they will be, if everything holds

    def take(self, commits: Sequence[Commit]) -> int:
        """Add what the plan just gained; the place of the job, 0 if it gained nothing."""
        plan = self._plan
        if len(commits) == 1 and commits[0].drafts and self._take_plain(commits[0]):
            return self._jobs
        records = plan.records[self._seen_records :]
        writes, pins = plan.writes[self._seen_writes :], plan.pins[self._seen_pins :]
        if not records and not pins:
            return 0
        self._seen_records, self._seen_writes = len(plan.records), len(plan.writes)
        self._seen_pins = len(plan.pins)
        self._jobs += 1
        last = {key: rec.event.seq for key, rec in records}
        for key, rec in records:
            self._add_event(key, rec, ends=rec.event.seq == last[key])
        touched = last.keys()
        for commit in commits:
            if not commit.drafts:
                live = self._view.lives.get(commit.key)
                if commit.pin is not None or commit.expect is not None:
                    self._head_of(commit.key)
                if live is not None:
                    self._need(commit.key, live)
                else:  # this very batch makes it
                    self._rely_on(self._heads[commit.key])
            elif commit.key in touched:
                self._add_visit(commit)
            elif commit.key in self._heads:  # a repeat, maybe of what a job before it records
                self._rely_on(self._heads[commit.key])
        for key, write in writes:
            self._add_scope(key, write)
        for key, number, fold in pins:
            seq, packed, _ = packed_snapshot(fold, self._codec)
            self._tables["k"].add(self._jobs, self._heads[key].place, seq, *packed, number)
        for commit in commits:
            if commit.guards:
                self._names.guard(self._jobs, commit)
        return self._jobs

    def _take_plain(self, commit: Commit) -> bool:
        """The common case: one event and nothing besides. False if it is not that."""
        plan, seen = self._plan, self._seen_records
        if (
            len(plan.records) != seen + 1
            or commit.guards
            or len(plan.writes) != self._seen_writes
            or len(plan.pins) != self._seen_pins
        ):
            return False
        self._seen_records += 1
        self._jobs += 1
        key, rec = plan.records[seen]
        self._add_event(key, rec, ends=True)
        self._add_visit(commit)
        return True

    def pack(self, planned_us: int, *, late: bool) -> None:
        """Close the batch: nothing more is added. Unless it may be `late`, what was planned long
        ago by the server's clock is refused."""
        if self._jobs:
            self._sort_heads()
            self._names.make_room()
            values: list[Any] = [planned_us, None if late else LATE_US, self._jobs]
            self._call = (self._tables.send(values), *values)

    async def send(self, conn: Connection) -> CommitReply:
        """Make one round trip, or none if there is nothing to record.

        In a cluster the setting comes along by which the commit waits for a quorum.
        """
        if not self._jobs:
            return CommitReply(None)
        if self.cluster is None:
            reply = CommitReply(await conn.fetchval(*self._call))
        else:
            call, *values = self._call
            row = await conn.fetchrow(f"{call}, {_AWAITED}", *values)
            self.cluster.see_names(row[1])
            reply = CommitReply(row[0])
        self._refused = reply.refused
        return reply

    def recorded(self) -> bool:
        """True if the server recorded anything."""
        return self._jobs > len(self._refused)

    def answers(
        self, answers: Sequence[Committed], reply: CommitReply, token: str
    ) -> tuple[Committed, ...] | None:
        """The planner's answers with the server's leases in place.

        None if one of them stands on something planned that the server refused.
        """
        if len(answers) == 1:
            only = self._answer(answers[0], reply, token)
            return None if only is None else (only,)
        done = [self._answer(answer, reply, token) for answer in answers]
        return None if None in done else tuple(done)  # type: ignore[arg-type]  # no None is left

    def _answer(self, answer: Committed, reply: CommitReply, token: str) -> Committed | None:
        head = answer.head
        if head.fence or not reply.plain:
            job = self._jobs_by_version.get((head.key, head.version))
            if job is not None:  # else as it was before this batch
                if job in self._refused:
                    return None
                head = reply.leased(head, self._heads[head.key].place)
        return Committed(
            answer.events,
            head,
            answer.fields,
            answer.versions,
            answer.scopes,
            answer.repeated,
            answer.damaged,
            token,
            answer.texts,
        )

    @cached_property
    def _jobs_by_version(self) -> dict[tuple[Key, int], int]:
        """The job that leaves a session at a version."""
        return {(key, fold.head.version): job for job, key, fold in self._left}

    def leaves(self) -> dict[Key, CachedSession]:
        """The sessions as all jobs together leave them, but for those that they create."""
        if not self._lives:
            self._lives = {
                key: self._live(entry, fold, entry.live.sid)
                for key, fold in self._plan.folds.items()
                if (entry := self._heads[key]).live is not None
            }
        return self._lives

    def settle(self, reply: CommitReply) -> dict[Key, CachedSession]:
        """The sessions as the jobs that held left them."""
        left, lives = self._plan.folds, self._lives
        if self._refused:
            left, lives = {k: f for job, k, f in self._left if job not in self._refused}, {}
        done: dict[Key, CachedSession] = {}
        for key, fold in left.items():
            entry, live = self._heads[key], lives.get(key)
            if live is None:
                before = entry.live
                sid = reply.sid(entry.place) if before is None else before.sid
                live = self._live(entry, fold, sid)
            head = reply.leased(fold.head, entry.place)
            if head is not fold.head:  # the server's leases count
                live.fold = Fold(head, fold.fields, fold.versions, fold.damaged, fold.texts)
            done[key] = live
        return done

    def _live(self, entry: BatchSession, fold: Fold, sid: int) -> CachedSession:
        live, era = entry.live, self._view.era
        if live is None:
            return CachedSession(sid, fold, 0, entry.size, era)
        return CachedSession(sid, fold, live.snapshot_bytes, live.delta_bytes + entry.size, era)

    def scopes(self) -> dict[ScopeKey, CachedScope]:
        """The scope names as the jobs that held left them."""
        return self._names.left(self._refused)

    # --- sessions ------------------------------------------------------------------------------

    def _head_of(self, key: Key) -> BatchSession:
        """The entry of a session that is written to."""
        entry = self._heads.get(key)
        if entry is None:
            live = self._view.lives.get(key)
            row = self._new_head(key) if live is None else _known_head(live)
            entry = self._heads[key] = BatchSession(self._tables["h"].add(*row), live)
            if live is None:
                self._names.find(self._jobs, key)
                if key in self._plan.bases:
                    base = self._plan.bases[key]
                    uid = self._plan.folds[key].head.uid
                    raw = base_body(base)
                    packed = self._codec.pack(raw, base_place(uid, base.floor), bound=True)
                    self._tables["b"].add(self._heads[key].place, *packed)
        elif entry.needed:
            assert entry.live is not None
            entry.needed = False
            self._tables["h"].rows[entry.place - 1] = _known_head(entry.live)
        return entry

    def _new_head(self, key: Key) -> tuple[Any, ...]:
        self._new = True
        head, base = self._plan.folds[key].head, self._plan.bases.get(key)
        start = blank(key, head.uid, 0)
        at = (start.version, start.link) if base is None else (base.floor, base.link)
        parent = None if base is None else self._parent(base)
        begin = (self._hash(key), head.created_us, at[0], parent, None)
        return (None, head.uid, *at, key.app, key.user, key.id, *begin)

    def _parent(self, base: Base) -> int | None:
        """The place of a session that must live for another to begin on it, if it is here."""
        live = self._view.lives.get(base.parent)
        if live is None or live.fold.head.uid != base.uid:
            return None
        return self._need(base.parent, live)

    def _need(self, key: Key, live: CachedSession) -> int:
        """The job needs a session to live, and does not write to it."""
        entry = self._heads.get(key)
        if entry is None:
            row = _known_head(live)
            row = (*row[:2], None, *row[3:])
            place = self._tables["h"].add(*row)
            entry = self._heads[key] = BatchSession(place, live, needed=True)
        self._rely_on(entry)
        return entry.place

    def _rely_on(self, entry: BatchSession) -> None:
        """The job holds only with the session, and with what jobs before it write there."""
        self._tables["l"].add(self._jobs, entry.place)

    def _add_event(self, key: Key, rec: Recorded, *, ends: bool) -> None:
        """`ends`: the job leaves the session at this event."""
        e, draft, salt = rec.event, rec.draft, rec.salt
        raw, place_of, compressed = draft.raw, None, draft.compressed
        entry = self._head_of(key)
        entry.size += len(raw) + EVENT_OVERHEAD_BYTES
        after = self._plan.folds[key].head
        if self._codec.seals:  # the salt goes inside the seal
            salt, raw, compressed = b"", salt + raw, None
            bound = (e.seq, e.at_us, draft.header, e.link)
            place_of = self._codec.event_place(after.uid, e.id, e.type, *bound)
        flags, body, crc = self._codec.pack(raw, place_of, compressed=compressed)
        adopted = None
        if draft.origin is not None:
            adopted, entry.adopted = True, e.seq
        row = (
            self._jobs,
            entry.place,
            e.seq,
            e.id,
            draft.caller_chose_id or None,
            e.type,
            e.actor,
            e.at_us,
            flags or None,
            body,
            crc,
            salt,
            rec.digest,
            e.link,
            e.cause,
            e.invocation_id,
            e.correlation_id,
            e.wake_id,
            e.processed,
            adopted,
            True if after.active_us == e.at_us else None,
            self._codec.head_mac(after) if ends else self._no_mac,
        )
        self._tables["e"].rows.append(row)
        if e.type in PROCESSING:
            for seq in processed_by(e.type, e.data):
                self._tables["p"].add(self._jobs, entry.place, seq, e.seq)

    def _add_visit(self, commit: Commit) -> None:
        """Add the change that a job makes to a session to which it adds events."""
        key = commit.key
        fold, entry = self._plan.folds[key], self._heads[key]
        if commit.reuse and entry.live is None:
            rows = self._tables["h"].rows
            rows[entry.place - 1] = (*rows[entry.place - 1][:11], True)
        # Once there is a change, the last job says what it came to, even if that is none.
        if entry.changed or not _only_adds(commit, fold.head, entry):
            entry.changed = True
            change = self._change(commit, fold.head, entry)
            self._tables["v"].add(self._jobs, entry.place, *change)
        self._left.append((self._jobs, key, fold))

    def _change(self, commit: Commit, after: Head, entry: BatchSession) -> tuple[Any, ...]:
        """More than that the session moves on: None where that is what the batch found."""
        live = entry.live
        before = blank(commit.key, after.uid, 0) if live is None else live.fold.head
        facts: tuple[Any, ...] = _AS_BEFORE
        deadline = deadline_us(after) if moves_with_activity(after.facts) else None
        if after.facts is not before.facts and after.facts != before.facts:
            relabel = True if after.indexed_labels != before.indexed_labels else None
            text = msgspec.json.encode(after.facts).decode()
            facts = (text, due_us(after.facts), after.priority, relabel)
            deadline = deadline_us(after)
        moved = after.active_us not in (after.updated_us, before.active_us)
        active_us = after.active_us if moved else None  # the last event says which of the two
        released = _release(commit, after)
        return (_fence(commit), active_us, *facts, deadline, released, entry.adopted)

    def _add_scope(self, key: Key, write: ScopeWrite) -> None:
        uid, place = self._plan.folds[key].head.uid, self._head_of(key).place
        rows = self._tables["h"].rows
        rows[place - 1] = (rows[place - 1][0], uid, *rows[place - 1][2:])  # who wrote the version
        self._names.write(self._jobs, place, uid, write)

    def _sort_heads(self) -> None:
        """The server locks in key order; new sessions are inserted in the order given."""
        if not self._new or len(self._heads) == 1:
            return
        keys = sorted(self._heads)
        old = [self._heads[key].place for key in keys]
        new = {was: place for place, was in enumerate(old, 1)}
        rows = self._tables["h"].rows
        self._tables["h"].rows = [
            (*rows[was - 1][:10], new.get(rows[was - 1][10]), rows[was - 1][11]) for was in old
        ]
        for entry in self._heads.values():
            entry.place = new[entry.place]
        for name, at in (("b", 0), ("v", 1), ("l", 1), ("e", 1), ("p", 1), ("s", 8), ("k", 1)):
            table = self._tables[name]
            table.rows = [(*row[:at], new[row[at]], *row[at + 1 :]) for row in table.rows]


class BatchNames:
    """Scope names in a batch: those that its jobs write, and those that they only rely on.

    Whether a name moved, and whether its owner has room for another, the server judges under a
    lock. Belongs to one batch, and adds to its tables.
    """

    def __init__(self, plan: Plan, view: PostgresView, codec: Codec, tables: BatchTables) -> None:
        self._plan, self._view, self._codec, self._tables = plan, view, codec, tables
        self._places: dict[ScopeKey, int] = {}
        self._now: dict[ScopeKey, CachedScope] = {}
        self._added: dict[Owner, set[str]] = {}  # names that are not stored yet
        self._first: dict[Owner, set[str]] = {}  # of those, names that never were
        self._left: list[tuple[int, ScopeKey, CachedScope]] = []

    def write(self, job: int, head: int, uid: str, write: ScopeWrite) -> None:
        """A new version of a name, by a job and an event of the session at `head`."""
        name, version = write.key, write.at.version
        stored = self._view.known.get(name)
        before = self._now.get(name) or stored
        place = self._places.get(name)
        if place is None:
            made_by = (None, None) if stored is None else stored.made_by
            place = self._places[name] = self._tables["n"].add(*name, version - 1, *made_by)
        self._tables["w"].add(job, place)
        if not write.at.deleted and (stored is None or stored.value.deleted):
            self._add(job, name, never=stored is None)
        form, raw, since = scope_body(write, -1 if before is None else before.since_base)
        base = version if form != BY_OP or before is None else before.base
        size, made_by = len(write.whole), (uid, write.seq)
        live = CachedScope(write.at, base, since, self._view.era, size, made_by)
        self._now[name] = live
        self._left.append((job, name, live))
        place_of = scope_place(name, version, base, form, uid, write.seq)
        packed = self._codec.pack(raw, place_of, bound=True)
        row = (job, place, version, base, form, *packed, head, write.seq)
        self._tables["s"].add(*row, *_count_change(before, write))

    def guard(self, job: int, commit: Commit) -> None:
        """Names that were only looked at must not have moved either."""
        app, user = commit.owner
        for name in commit.guards:
            kind = scope_of(name)
            if kind in ("app", "user"):
                key = (app, "" if kind == "app" else user, name)
                place = self._places.get(key)
                if place is None:
                    base = self._view.scope_version(key)
                    place = self._places[key] = self._tables["n"].add(*key, base, None, None)
                self._tables["w"].add(job, place)

    def find(self, job: int, key: Key) -> None:
        """The job creates a session, whose creator is shown what jobs before it write."""
        for name in self._now:
            if name[0] == key.app and name[1] in ("", key.user):
                self._tables["w"].add(job, self._places[name])

    def make_room(self) -> None:
        """Tell the server how many names each owner may have before this batch adds its own."""
        for owner, added in self._added.items():
            place, first = self._places[*owner, ""], len(self._first.get(owner, ()))
            live, ever = self._plan.scope_limits.live(owner), self._view.names(*owner) or ()
            most = max(SCOPE_NAMES_MAX - len(added), live)
            past = max(SCOPE_NAMES_EVER_MAX - first, len(ever))
            self._tables["n"].rows[place - 1] = (*owner, "", most, "", past)

    def left(self, refused: Container[int]) -> dict[ScopeKey, CachedScope]:
        """The names as all jobs but these left them."""
        return {key: live for job, key, live in self._left if job not in refused}

    def _add(self, job: int, name: ScopeKey, *, never: bool) -> None:
        """The job adds a name to those that are stored: whether there is room for it the server
        knows, under a lock. Each name once, however often the batch writes it."""
        owner = name[:2]
        place = self._places.get((*owner, ""))
        if place is None:
            place = self._places[*owner, ""] = self._tables["n"].add(*owner, "", 0, "", 0)
        self._tables["w"].add(job, place)
        self._added.setdefault(owner, set()).add(name[2])
        if never:
            self._first.setdefault(owner, set()).add(name[2])


class CommitAnswer(msgspec.Struct):
    """The JSON of limpet.commit. Lists are by job or by session, and absent if all is plain."""

    now_us: int = 0  # by which jobs were judged
    token: str = ""  # names the transaction
    listened: bool = False  # somebody waits for hints
    refused: list[str | None] | None = None
    sids: list[int | None] | None = None
    fences: list[int] | None = None
    leases: list[int | None] = []
    workers: list[str | None] = []
    leaseds: list[int | None] = []


_answer: Final = msgspec.json.Decoder(CommitAnswer).decode


class CommitReply:
    """The reply to a batch: refusals by job, leases by session, and the server's time."""

    __slots__ = ("_said", "has_listeners", "now_us", "plain", "refused", "token")

    def __init__(self, text: str | None) -> None:
        self._said = said = CommitAnswer() if text is None else _answer(text)
        self.now_us, self.token, self.has_listeners = said.now_us, said.token, said.listened
        self.refused: dict[int, str] = {}
        if said.refused is not None:
            self.refused = {job: why for job, why in enumerate(said.refused, 1) if why is not None}
        self.plain = not self.refused and said.fences is None  # everything holds, nobody is leased

    def sid(self, place: int) -> int:
        """The number of a session that the batch created, by its place, counted from one."""
        assert self._said.sids is not None
        sid = self._said.sids[place - 1]
        assert sid is not None
        return sid

    def leased(self, head: Head, place: int) -> Head:
        """The head under the lease that the server has: ours may be older."""
        said, at = self._said, place - 1
        if said.fences is None or not said.fences[at]:
            return with_lease(head, 0, None, None, None) if head.fence else head
        lease = (said.leases[at], said.workers[at], said.leaseds[at])
        return with_lease(head, said.fences[at], *lease)


def _known_head(live: CachedSession) -> tuple[Any, ...]:
    """A session that is there needs no name: only who is to be created does."""
    head = live.fold.head
    return (live.sid, None, head.version, head.link, *_UNNAMED)


def _only_adds(commit: Commit, after: Head, entry: BatchSession) -> bool:
    """True if a session is only moved on to its last event: the common case."""
    live = entry.live
    if live is None or entry.adopted or commit.fence is not None or commit.release is not None:
        return False
    before = live.fold.head
    if after.facts is not before.facts or moves_with_activity(after.facts):
        return False
    return after.active_us in (after.updated_us, before.active_us)


def _fence(commit: Commit) -> int | None:
    return commit.fence if commit.release is None else commit.release.fence


def _release(commit: Commit, after: Head) -> int | None:
    """The time for which the session is held back once its lease has ended with the commit."""
    if commit.release is None:
        return None
    return 0 if after.lease_us is None else LEFT_US


def _count_change(before: CachedScope | None, write: ScopeWrite) -> tuple[int | None, int | None]:
    """Return by how many names, and by how many new ones, a write changes those of its owner."""
    was = before is not None and not before.value.deleted
    more, first = (not write.at.deleted) - was, int(before is None)
    return (more, first) if more or first else (None, None)


Column: TypeAlias = Sequence[Any]
ColumnWriter: TypeAlias = Callable[[Column, list[Any]], None]
_encode: Final = msgspec.json.Encoder().encode

# Columns that are NULL in most batches, by runs: a run of nothing but NULL is not sent.
_OPTIONAL: Final = {
    "h": ("uid", "app owner id hash created floor parent reuse"),
    "n": ("uid seq",),
    "v": ("fence", "active", "facts due priority relabel", "deadline", "release", "adopted"),
    "e": (
        "given",
        "flags",
        "cause invocation correlation wake",
        "processed",
        "adopted",
        "active",
        "mac",
    ),
    "s": ("more first",),
}
_ALIKE: Final = {"e_type", "e_actor", "e_at"}  # one value stands for all, if they are the same
_NONE: Final = -1  # the form of a table without rows


def literal(column: Column) -> str:
    """Numbers, booleans, texts and None as PostgreSQL writes an array.

    JSON writes them the same way, but for the characters that it escapes.
    """
    text = _encode(column).decode()
    if "\\" in text:
        text = f"[{','.join([_element(value) for value in column])}]"
    return f"{{{text[1:-1]}}}"


def _element(value: Any) -> str:
    if not isinstance(value, str):
        return _encode(value).decode()
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


# --- how columns are sent ----------------------------------------------------------------------


def _put_literal(column: Column, into: list[Any]) -> None:
    into.append(literal(column))


def _put_alike(column: Column, into: list[Any]) -> None:
    same = column.count(column[0]) == len(column)
    into.append(literal(column[:1] if same else column))


def _put_array(column: Column, into: list[Any]) -> None:
    into.append(column)


def _put_joined(column: Column, into: list[Any]) -> None:
    into.append(b"".join(column))


def _put_ended(column: Column, into: list[Any]) -> None:
    into.append(b"".join(column))
    into.append(literal(tuple(accumulate(map(len, column)))))


def _put(column: str) -> ColumnWriter:
    if _TYPES[column] == "bytea":
        return _put_ended if f"{column}_end" in _TYPES else _put_joined
    if column in _ALIKE:
        return _put_alike
    return _put_array if _TYPES[column] == "bytea[]" else _put_literal


def _parameters() -> dict[str, str]:
    """The names and types of the function's parameters, in order."""
    match = re.search(r"FUNCTION limpet\.commit\(([^)]*)\)", SCRIPTS["functions"])
    assert match is not None
    return dict([part.split() for part in match[1].split(",")])


_TYPES: Final = _parameters()


class _Kind:
    """The columns of one kind of rows. Its letter begins the names of their parameters."""

    def __init__(self, letter: str) -> None:
        names = [n for n in _TYPES if n.startswith(f"{letter}_") and not n.endswith("_end")]
        self._puts = [_put(name) for name in names]
        self._parameters = [[n for n in (name, f"{name}_end") if n in _TYPES] for name in names]
        runs = [run.split() for run in _OPTIONAL.get(letter, ())]
        self.runs = [[names.index(f"{letter}_{column}") for column in run] for run in runs]
        self._sent: dict[int, list[tuple[int, ColumnWriter]]] = {}

    def sent(self, form: int) -> list[tuple[int, ColumnWriter]]:
        """The places of the columns that a form sends, and how each is sent."""
        if form not in self._sent:
            absent = self._absent(form)
            puts = [(place, put) for place, put in enumerate(self._puts) if place not in absent]
            self._sent[form] = puts
        return self._sent[form]

    def values(self, form: int, numbers: Iterator[int]) -> Iterator[str]:
        """The arguments of the function for such rows."""
        absent = self._absent(form)
        for place, parameters in enumerate(self._parameters):
            for parameter in parameters:
                type = _TYPES[parameter]
                if place in absent:
                    yield "''" if type == "bytea" else "'{}'"
                else:
                    cast = "" if type.startswith("bytea") else f"::text::{type}"
                    yield f"${next(numbers)}{cast}"

    def _absent(self, form: int) -> set[int]:
        if form == _NONE:
            return set(range(len(self._puts)))
        return {place for bit, run in enumerate(self.runs) if not form >> bit & 1 for place in run}


_LETTERS: Final = [name[0] for name in _TYPES if name[1] == "_"]
_KINDS: Final = {letter: _Kind(letter) for letter in dict.fromkeys(_LETTERS)}
_SCALARS: Final = len(_TYPES) - len(_LETTERS)  # parameters before the columns


class BatchTable:
    """Rows of one kind."""

    __slots__ = ("_kind", "rows")

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *row: Any) -> int:
        """The place of the row, counted from one."""
        self.rows.append(row)
        return len(self.rows)

    def send(self, into: list[Any]) -> int:
        """Add the columns that are to be sent; which they are, as a number (see `statement`)."""
        if not self.rows:
            return _NONE
        columns = list(zip(*self.rows, strict=True))
        form, rows = 0, len(self.rows)
        for bit, run in enumerate(self._kind.runs):
            if any([columns[place].count(None) != rows for place in run]):
                form |= 1 << bit
        for place, put in self._kind.sent(form):
            put(columns[place], into)
        return form


class BatchTables(dict[str, BatchTable]):
    """The tables of a batch by their letters, each made when it is first asked for."""

    def __missing__(self, letter: str) -> BatchTable:
        table = self[letter] = BatchTable(_KINDS[letter])
        return table

    def send(self, into: list[Any]) -> str:
        """Add the columns of all tables; the statement that takes them."""
        return statement(tuple([self[k].send(into) if k in self else _NONE for k in _KINDS]))


@lru_cache(maxsize=256)
def statement(forms: tuple[int, ...]) -> str:
    """The statement with a parameter for each column that is sent. Few forms occur.

    A form has a bit for each run of optional columns: whether the run is sent.
    """
    numbers = count(1)
    values = [f"${next(numbers)}" for _ in range(_SCALARS)]
    for kind, form in zip(_KINDS.values(), forms, strict=True):
        values += kind.values(form, numbers)
    return f"SELECT limpet.commit({', '.join(values)})"
