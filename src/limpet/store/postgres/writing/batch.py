"""A batch: one call of the SQL function limpet.commit.

The plan of many jobs becomes columns, one array each, and the reply says which of the jobs hold.
What holds was recorded as it was planned: the server adds nothing but leases, which it judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from limpet.model import (
    EVENT_OVERHEAD_BYTES,
    LEFT_US,
    SCOPE_NAMES_EVER_MAX,
    SCOPE_NAMES_MAX,
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
from limpet.store.cache import Live, LiveScope
from limpet.store.coding import (
    BY_OP,
    base_body,
    base_place,
    packed_snapshot,
    scope_body,
    scope_place,
)
from limpet.store.planning.plan import Plan
from limpet.store.postgres.reading.reader import Reader
from limpet.store.postgres.server import Connection
from limpet.store.postgres.writing.columns import statement, tables
from limpet.store.postgres.writing.reply import Reply
from limpet.store.postgres.writing.view import View
from limpet.store.protocol import Committed, Owner, Place

_AS_BEFORE: Final = (None,) * 4  # the facts of a visit that changes none
_UNCHANGED: Final = (None,) * 9  # a visit that only moves the session on to its last event
_UNNAMED: Final = (None,) * 8  # of a session that is there
LATE_US: Final = 10_000_000  # planned longer ago than this: the server's clock may have been set


class Batch:
    """Gathers the jobs of a plan as they are added."""

    def __init__(self, plan: Plan, view: View, reader: Reader) -> None:
        self._plan, self._view = plan, view
        self._codec, self._hash = reader.codec, reader.key_hash
        self._jobs = 0
        self._held: set[int] = set()  # jobs that the server recorded
        self._heads: dict[Key, int] = {}
        self._new = False  # some session is to be created
        self._names: dict[ScopeKey, int] = {}
        self._name_now: dict[ScopeKey, LiveScope] = {}
        self._added: dict[Owner, set[str]] = {}  # names that are not stored yet
        self._first: dict[Owner, set[str]] = {}  # of those, names that never were
        self._seen_records = self._seen_writes = self._seen_pins = 0
        self._tables = tables()
        self._sizes: dict[Key, int] = {}
        self._adopted: dict[Key, int] = {}  # the last event of each that another store recorded
        self._changed: set[Key] = set()  # of which more than the last event is sent
        self._planned: dict[tuple[Key, int], int] = {}  # the job that leaves a session at a version
        self._left: list[tuple[int, Key, Fold]] = []
        self._needed: set[int] = set()  # places of sessions that only have to live
        self._lives: dict[Key, Live] = {}  # as they will be, if everything holds
        self._scope_left: list[tuple[int, ScopeKey, LiveScope]] = []

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
        for key, rec in records:
            self._add_event(key, rec)
        touched = {key for key, _ in records}
        for commit in commits:
            if not commit.drafts:
                self._add_look(commit)
            elif commit.key in touched:
                self._add_visit(commit)
        for key, write in writes:
            self._add_scope(key, write)
        for key, number, fold in pins:
            self._add_pin(key, number, fold)
        for commit in commits:
            if commit.guards:
                self._add_guards(commit)
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
        self._add_event(*plan.records[seen])
        self._add_visit(commit)
        return True

    async def send(self, conn: Connection, planned_us: int, *, late: bool) -> Reply:
        """One round trip; none if there is nothing to record.

        Unless it may be `late`, what was planned long ago by the server's clock is refused.
        """
        if not self._jobs:
            return Reply(None)
        self._sort_heads()
        self._make_room()
        values: list[Any] = [planned_us, None if late else LATE_US, self._jobs]
        forms = tuple([table.send(values) for table in self._tables.values()])
        reply = Reply(await conn.fetchval(statement(forms), *values))
        self._held = set(range(1, self._jobs + 1)).difference(reply.refused)
        return reply

    def recorded(self) -> bool:
        """Whether the server recorded anything."""
        return bool(self._held)

    def answers(
        self, answers: Sequence[Committed], reply: Reply, token: str
    ) -> tuple[Committed, ...] | None:
        """The planner's answers with the server's leases in place.

        None if one of them stands on something planned that the server refused.
        """
        if len(answers) == 1:
            only = self._answer(answers[0], reply, token)
            return None if only is None else (only,)
        done = [self._answer(answer, reply, token) for answer in answers]
        return None if None in done else tuple(done)  # type: ignore[arg-type]  # no None is left

    def _answer(self, answer: Committed, reply: Reply, token: str) -> Committed | None:
        head = answer.head
        job = self._planned.get((head.key, head.version))
        if job is not None:  # else as it was before this batch
            if job not in self._held:
                return None
            head = reply.leased(head, self._heads[head.key])
        return Committed(
            answer.events,
            head,
            answer.fields,
            answer.versions,
            answer.scopes,
            answer.repeated,
            answer.damaged,
            token,
        )

    def leaves(self) -> dict[Key, Live]:
        """The sessions as all jobs together leave them, but for those that they create."""
        if not self._lives:
            known = self._view.lives
            last = {key: fold for _, key, fold in self._left if key in known}
            self._lives = {key: self._live(key, fold, known[key].sid) for key, fold in last.items()}
        return self._lives

    def settle(self, reply: Reply) -> dict[Key, Live]:
        """The sessions as the jobs that held left them."""
        whole = len(self._held) == self._jobs
        lives = self._lives if whole else {}
        done: dict[Key, Live] = {}
        for key, fold in {key: fold for job, key, fold in self._left if job in self._held}.items():
            place, before = self._heads[key], self._view.lives.get(key)
            head, after = reply.leased(fold.head, place), fold
            if head is not fold.head:
                after = Fold(head, fold.fields, fold.versions, fold.damaged)
            live = lives.get(key)
            if live is None:
                live = self._live(key, after, reply.sid(place) if before is None else before.sid)
            live.fold = after  # the server's leases count
            done[key] = live
        return done

    def _live(self, key: Key, fold: Fold, sid: int) -> Live:
        before = self._view.lives.get(key)
        old = (before.snapshot_bytes, before.delta_bytes) if before is not None else (0, 0)
        return Live(sid, fold, old[0], old[1] + self._sizes[key], self._view.era)

    def scopes(self) -> dict[ScopeKey, LiveScope]:
        return {key: s for job, key, s in self._scope_left if job in self._held}

    # --- sessions ------------------------------------------------------------------------------

    def _head_of(self, key: Key) -> int:
        """The place of a session that is written to."""
        place = self._heads.get(key)
        if place is None:
            live = self._view.lives.get(key)
            row = self._new_head(key) if live is None else _known_head(live)
            place = self._heads[key] = self._tables["h"].add(*row)
        elif place in self._needed:
            self._needed.discard(place)
            self._tables["h"].rows[place - 1] = _known_head(self._view.lives[key])
        return place

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

    def _need(self, key: Key, live: Live) -> int:
        """The job needs a session to live, and does not write to it."""
        place = self._heads.get(key)
        if place is None:
            row = _known_head(live)
            row = (*row[:2], None, *row[3:])
            place = self._heads[key] = self._tables["h"].add(*row)
            self._needed.add(place)
        self._tables["l"].add(self._jobs, place)
        return place

    def _add_look(self, commit: Commit) -> None:
        """A session that has to be there; for a snapshot, and if one is expected, at the version
        that was planned on."""
        live = self._view.lives.get(commit.key)
        if commit.pin is not None or commit.expect is not None:
            self._head_of(commit.key)
        if live is not None:  # else this very batch makes it
            self._need(commit.key, live)

    def _add_base(self, key: Key, base: Base) -> None:
        uid = self._plan.folds[key].head.uid
        raw = base_body(base)
        packed = self._codec.pack(raw, base_place(uid, base.floor), bound=True)
        self._tables["b"].add(self._heads[key], *packed)

    def _add_event(self, key: Key, rec: Recorded) -> None:
        e, draft, salt = rec.event, rec.draft, rec.salt
        raw, place_of, compressed = draft.raw, None, draft.compressed
        self._sizes[key] = self._sizes.get(key, 0) + len(raw) + EVENT_OVERHEAD_BYTES
        if self._codec.seals:  # the salt goes inside the seal
            uid = self._plan.folds[key].head.uid
            salt, raw, place_of = b"", salt + raw, Place("event", uid, e.id, e.type)
            compressed = None
        flags, body, crc = self._codec.pack(raw, place_of, compressed=compressed)
        head = self._heads.get(key)
        if head is None:
            head = self._head_of(key)
            if key in self._plan.bases:
                self._add_base(key, self._plan.bases[key])
        elif self._needed:
            self._head_of(key)
        given, adopted = draft.caller_chose_id or None, None
        if draft.origin is not None:
            adopted, self._adopted[key] = True, e.seq
        names = (self._jobs, head, e.seq, e.id, given, e.type, e.actor, e.at_us)
        stored = (flags or None, body, crc, salt, rec.digest, e.link)
        causes = (e.cause, e.invocation_id, e.correlation_id, e.wake_id)
        active = True if self._plan.folds[key].head.active_us == e.at_us else None
        self._tables["e"].rows.append((*names, *stored, *causes, e.processed, adopted, active))
        for seq in processed_by(e.type, e.data):
            self._tables["p"].add(self._jobs, head, seq, e.seq)

    def _add_visit(self, commit: Commit) -> None:
        """What the job leaves of a session to which it adds events."""
        key = commit.key
        fold = self._plan.folds[key]
        if commit.reuse and key not in self._view.lives:
            rows, place = self._tables["h"].rows, self._heads[key]
            rows[place - 1] = (*rows[place - 1][:11], True)
        change = self._change(commit, fold.head)
        # Once there is a change, the last job says what it came to, even if that is none.
        if change != _UNCHANGED or key in self._changed:
            self._changed.add(key)
            self._tables["v"].add(self._jobs, self._heads[key], *change)
        self._left.append((self._jobs, key, fold))
        self._planned[key, fold.head.version] = self._jobs

    def _change(self, commit: Commit, after: Head) -> tuple[Any, ...]:
        """More than that the session moves on: None where that is what the batch found."""
        live = self._view.lives.get(commit.key)
        before = blank(commit.key, after.uid, 0) if live is None else live.fold.head
        facts: tuple[Any, ...] = _AS_BEFORE
        deadline = deadline_us(after) if moves_with_activity(after.facts) else None
        if after.facts is not before.facts and after.facts != before.facts:
            relabel = True if after.labels != before.labels else None
            text = msgspec.json.encode(after.facts).decode()
            facts = (text, due_us(after.facts), after.priority, relabel)
            deadline = deadline_us(after)
        moved = after.active_us not in (after.updated_us, before.active_us)
        active_us = after.active_us if moved else None  # the last event says which of the two
        adopted = self._adopted.get(commit.key)  # by whichever commit of the batch
        return (_fence(commit), active_us, *facts, deadline, _release(commit, after), adopted)

    def _add_pin(self, key: Key, number: int, fold: Fold) -> None:
        seq, packed, _ = packed_snapshot(fold, self._codec)
        self._tables["k"].add(self._jobs, self._heads[key], seq, *packed, number)

    # --- shared names --------------------------------------------------------------------------

    def _add_scope(self, key: Key, write: ScopeWrite) -> None:
        name, version = write.key, write.at.version
        stored = self._view.known.get(name)
        before = self._name_now.get(name) or stored
        place = self._names.get(name)
        if place is None:
            made_by = (None, None) if stored is None else stored.made_by
            place = self._names[name] = self._tables["n"].add(*name, version - 1, *made_by)
        self._tables["w"].add(self._jobs, place)
        if not write.at.deleted and (stored is None or stored.value.deleted):
            self._add_name(name, never=stored is None)
        form, raw, since = scope_body(write, -1 if before is None else before.since_base)
        base = version if form != BY_OP or before is None else before.base
        uid = self._plan.folds[key].head.uid
        size, made_by = len(write.whole), (uid, write.seq)
        live = LiveScope(write.at, base, since, self._view.era, size, made_by)
        self._name_now[name] = live
        self._scope_left.append((self._jobs, name, live))
        place_of = scope_place(name, version, base, form, uid, write.seq)
        packed = self._codec.pack(raw, place_of, bound=True)
        head = self._head_of(key)
        rows = self._tables["h"].rows
        rows[head - 1] = (rows[head - 1][0], uid, *rows[head - 1][2:])  # who wrote the version
        row = (self._jobs, place, version, base, form, *packed, head, write.seq)
        self._tables["s"].add(*row, *_counted(before, write))

    def _add_name(self, name: ScopeKey, *, never: bool) -> None:
        """The job adds a name to those that are stored: whether there is room for it the server
        knows, under a lock. Each name once, however often the batch writes it."""
        owner = name[:2]
        place = self._names.get((*owner, ""))
        if place is None:
            place = self._names[*owner, ""] = self._tables["n"].add(*owner, "", 0, "", 0)
        self._tables["w"].add(self._jobs, place)
        self._added.setdefault(owner, set()).add(name[2])
        if never:
            self._first.setdefault(owner, set()).add(name[2])

    def _make_room(self) -> None:
        """How many names each owner may have before those of this batch are added."""
        for owner, added in self._added.items():
            place, first = self._names[*owner, ""], len(self._first.get(owner, ()))
            live, ever = self._plan.room.live(owner), self._view.names(*owner) or ()
            most = max(SCOPE_NAMES_MAX - len(added), live)
            past = max(SCOPE_NAMES_EVER_MAX - first, len(ever))
            self._tables["n"].rows[place - 1] = (*owner, "", most, "", past)

    def _add_guards(self, commit: Commit) -> None:
        """Names that were only looked at must not have moved either."""
        app, user = commit.owner
        for name in commit.guards:
            kind = scope_of(name)
            if kind in ("app", "user"):
                key = (app, "" if kind == "app" else user, name)
                place = self._names.get(key)
                if place is None:
                    base = self._view.scope_version(key)
                    place = self._names[key] = self._tables["n"].add(*key, base, None, None)
                self._tables["w"].add(self._jobs, place)

    def _sort_heads(self) -> None:
        """The server locks in key order by itself; new sessions are inserted in the order given."""
        if not self._new or len(self._heads) == 1:
            return
        keys = sorted(self._heads)
        old = [self._heads[key] for key in keys]
        new = {was: place for place, was in enumerate(old, 1)}
        rows = self._tables["h"].rows
        self._tables["h"].rows = [
            (*rows[was - 1][:10], new.get(rows[was - 1][10]), rows[was - 1][11]) for was in old
        ]
        self._heads = {key: new[place] for key, place in self._heads.items()}
        for name, at in (("b", 0), ("v", 1), ("l", 1), ("e", 1), ("p", 1), ("s", 8), ("k", 1)):
            table = self._tables[name]
            table.rows = [(*row[:at], new[row[at]], *row[at + 1 :]) for row in table.rows]


def _known_head(live: Live) -> tuple[Any, ...]:
    """A session that is there needs no name: only who is to be created does."""
    head = live.fold.head
    return (live.sid, None, head.version, head.link, *_UNNAMED)


def _fence(commit: Commit) -> int | None:
    return commit.fence if commit.release is None else commit.release.fence


def _release(commit: Commit, after: Head) -> int | None:
    """How long the session is held back once its lease has ended with the commit."""
    if commit.release is None:
        return None
    return 0 if after.lease_us is None else LEFT_US


def _counted(before: LiveScope | None, write: ScopeWrite) -> tuple[int | None, int | None]:
    """By how many names, and by how many that never were, a write changes those of its owner."""
    was = before is not None and not before.value.deleted
    more, first = (not write.at.deleted) - was, int(before is None)
    return (more, first) if more or first else (None, None)
