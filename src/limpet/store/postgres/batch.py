"""A batch: one call of the SQL function limpet.commit.

The plan of many jobs becomes columns, one array each, and the reply becomes their answers. The
server dates events and links them into their chains; until then their time is UNDATED.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from limpet.model.chain import genesis
from limpet.model.commit import Commit
from limpet.model.due import first_us
from limpet.model.facts.inputs import PROCESSED
from limpet.model.fold import Fold, Recorded, ScopeKey
from limpet.model.head import Head, blank
from limpet.model.keys import Key
from limpet.model.lease import with_lease
from limpet.model.limits import EVENT_OVERHEAD_BYTES, SCOPE_NAMES_MAX
from limpet.model.ops import scope_of
from limpet.store import bodies
from limpet.store.cache import Live, LiveScope
from limpet.store.plan import Plan
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.view import View
from limpet.store.protocol import Committed, Place
from limpet.store.room import Owner

UNDATED: Final = 2**60  # the time of an event that the server has not dated yet
_WIDTHS: Final = {"h": 8, "n": 4, "v": 11, "w": 2, "e": 16, "p": 4, "s": 10}
# Columns that are NULL in most batches, by runs: a run of nothing but NULL is not sent.
_OPTIONAL: Final = {"v": ((2, 3), (3, 11)), "e": ((6, 10),)}


@lru_cache(maxsize=64)
def _statement(sent: tuple[bool, ...]) -> str:
    """The statement with a parameter for each column that is sent. Few forms occur."""
    numbers = count(1)
    return "SELECT * FROM limpet.commit({})".format(
        ", ".join(f"${next(numbers)}" if here else "'{}'" for here in sent)
    )


class Reply:
    """What the server said: refusals by job, times and links by event, leases by session."""

    __slots__ = ("_row", "has_listeners", "now_us", "refused")

    def __init__(self, row: Any) -> None:
        self._row = row
        self.now_us: int = 0 if row is None else row["now_us"]  # by which jobs were judged
        self.has_listeners: bool = row is not None and row["listeners"]  # to notify
        reasons = None if row is None else row["refused"]
        self.refused: dict[int, str] = {}
        if reasons is not None:
            self.refused = {job: why for job, why in enumerate(reasons, 1) if why is not None}

    def events(self) -> tuple[list[int], list[bytes | None]]:
        """Time and link of each event by its place; without a link it was not recorded."""
        return ([], []) if self._row is None else (self._row["ats"], self._row["links"])

    def sid(self, place: int) -> int:
        """The number of the session at this place, counted from one."""
        found: int = self._row["sids"][place - 1]
        return found

    def leased(self, head: Head, place: int) -> Head:
        """The head under the lease that the server has: ours may be older."""
        fences = self._row["fences"]
        if fences is None or not fences[place - 1]:
            return with_lease(head, 0, None, None) if head.fence else head
        at = place - 1
        return with_lease(head, fences[at], self._row["leases"][at], self._row["workers"][at])


class _Table:
    """Rows that become columns."""

    __slots__ = ("_name", "rows")

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *row: Any) -> int:
        self.rows.append(row)
        return len(self.rows)

    def columns(self) -> list[Any]:
        """Empty ones for what is not to be sent."""
        if not self.rows:
            return [()] * _WIDTHS[self._name]
        columns: list[Any] = list(zip(*self.rows, strict=True))
        for start, stop in _OPTIONAL.get(self._name, ()):
            if all([column.count(None) == len(column) for column in columns[start:stop]]):
                columns[start:stop] = [()] * (stop - start)
        return columns


class Batch:
    """Gathers the jobs of a plan as they are added."""

    def __init__(self, plan: Plan, view: View, reader: Reader) -> None:
        self._plan, self._view = plan, view
        self._codec, self._hash = reader.codec, reader.key_hash
        self._jobs = 0
        self._heads: dict[Key, int] = {}
        self._new = False  # some session is to be created
        self._names: dict[ScopeKey, int] = {}
        self._name_now: dict[ScopeKey, LiveScope] = {}
        self._added: dict[Owner, set[str]] = {}  # names that are not stored yet
        self._seen_records = self._seen_writes = 0
        self._h, self._n, self._v = _Table("h"), _Table("n"), _Table("v")
        self._w, self._e, self._p, self._s = _Table("w"), _Table("e"), _Table("p"), _Table("s")
        self._keys: list[tuple[Key, int]] = []  # of each event: its session and its seq
        self._written: dict[tuple[Key, int], tuple[int, bytes]] = {}
        self._left: list[tuple[int, Key, Fold]] = []
        self._scope_left: list[tuple[int, ScopeKey, LiveScope]] = []

    def take(self, commits: Sequence[Commit]) -> int:
        """Add what the plan just gained; the place of the job, 0 if it gained nothing."""
        records = self._plan.records[self._seen_records :]
        if not records:
            return 0
        writes = self._plan.writes[self._seen_writes :]
        self._seen_records += len(records)
        self._seen_writes += len(writes)
        self._jobs += 1
        places: dict[Key, int] = {}
        for key, rec in records:
            places[key] = self._add_event(key, rec)
        for commit in commits:
            if commit.key in places:
                self._add_visit(commit, places[commit.key])
        for key, write in writes:
            self._add_scope(key, write)
        for commit in commits:
            if commit.guards:
                self._add_guards(commit)
        return self._jobs

    async def send(self, conn: Connection) -> Reply:
        """One round trip; none if there is nothing to record."""
        if not self._jobs:
            return Reply(None)
        self._sort_heads()
        self._make_room()
        columns = self._h.columns()
        if not self._new:  # only who is to be created needs a name, a first link and a hash
            columns[1:4] = (), (), ()
            columns[6:8] = (), ()
        columns += [*self._n.columns(), self._jobs]
        for table in (self._v, self._w, self._e, self._p, self._s):
            columns += table.columns()
        sql = _statement(tuple([column != () for column in columns]))
        reply = Reply(await conn.fetchrow(sql, *[column for column in columns if column != ()]))
        times, links = reply.events()
        for key, at_us, link in zip(self._keys, times, links, strict=True):
            if link is not None:
                self._written[key] = (at_us, link)
        return reply

    def recorded(self) -> bool:
        """Whether the server recorded anything."""
        return bool(self._written)

    def answers(self, answers: Sequence[Committed], reply: Reply) -> tuple[Committed, ...] | None:
        """The planner's answers with the server's times and links in place.

        None if one of them stands on something planned that the server refused.
        """
        done = [self._answer(answer, reply) for answer in answers]
        return None if None in done else tuple(done)  # type: ignore[arg-type]  # no None is left

    def _answer(self, answer: Committed, reply: Reply) -> Committed | None:
        head = answer.head
        last = self._written.get((head.key, head.version))
        if last is None:  # as it was before this batch, or not recorded
            return answer if head.updated_us != UNDATED else None
        for event in answer.events:
            # In place: the planner made it for this answer, and nobody has seen it yet.
            if event.at_us == UNDATED:
                at_us, link = self._written[head.key, event.seq]
                force_setattr(event, "at_us", at_us)
                force_setattr(event, "link", link)
            if event.processed_us == UNDATED:
                force_setattr(event, "processed_us", last[0])
        now = reply.leased(_head(head, *last, reply.now_us), self._heads[head.key])
        fields, versions, scopes = answer.fields, answer.versions, answer.scopes
        repeated, damaged = answer.repeated, answer.damaged
        return Committed(answer.events, now, fields, versions, scopes, repeated, damaged)

    def settle(self, reply: Reply) -> dict[Key, Live]:
        """The sessions as the jobs that held left them."""
        done: dict[Key, Live] = {}
        sizes: dict[Key, int] = {}
        for (key, _), row in zip(self._keys, self._e.rows, strict=True):
            sizes[key] = sizes.get(key, EVENT_OVERHEAD_BYTES) + len(row[11])
        for job, key, fold in self._left:
            if job in reply.refused:
                continue
            place = self._heads[key]
            before = self._view.lives.get(key)
            old = (before.snapshot_bytes, before.delta_bytes) if before is not None else (0, 0)
            last = self._written[key, fold.head.version]
            now = reply.leased(_head(fold.head, *last, reply.now_us), place)
            after = Fold(now, fold.fields, fold.versions, fold.damaged)
            sid = reply.sid(place) if before is None else before.sid
            done[key] = Live(sid, after, old[0], old[1] + sizes[key], self._view.era)
        return done

    def scopes(self, reply: Reply) -> dict[ScopeKey, LiveScope]:
        return {key: s for job, key, s in self._scope_left if job not in reply.refused}

    # --- private -------------------------------------------------------------------------------

    def _head_of(self, key: Key) -> int:
        found = self._heads.get(key)
        if found is None:
            live = self._view.lives.get(key)
            if live is None:
                self._new = True
                uid = self._plan.folds[key].head.uid
                begin = (uid, 0, genesis(uid), self._hash(key))
                row: tuple[Any, ...] = (None, key.app, key.user, key.id, *begin)
            else:
                head = live.fold.head
                row = (live.sid, key.app, key.user, key.id, head.uid, head.version, None, None)
            found = self._heads[key] = self._h.add(*row)
        return found

    def _add_event(self, key: Key, rec: Recorded) -> int:
        e = rec.event
        salt, raw, place_of = rec.salt, rec.raw, None
        if self._codec.seals:  # the salt goes inside the seal
            uid = self._plan.folds[key].head.uid
            salt, raw, place_of = b"", salt + raw, Place("event", uid, e.id, e.type)
        flags, body, crc = self._codec.pack(raw, place_of)
        head = self._head_of(key)
        names = (e.id, rec.draft.given, e.type, e.actor)
        causes = (e.cause, e.invocation_id, e.correlation_id, e.wake_id)
        chained = (salt, rec.digest, rec.draft.header)
        place = self._e.add(self._jobs, head, *names, *causes, flags, body, crc, *chained)
        self._keys.append((key, e.seq))
        if e.type == PROCESSED and e.data is not None:
            for seq in e.data["seqs"]:
                self._p.add(self._jobs, head, seq, place)
        return place

    def _add_visit(self, commit: Commit, last: int) -> None:
        """What the job leaves of a session: None where that is what the batch found."""
        fold = self._plan.folds[commit.key]
        after = fold.head
        live = self._view.lives.get(commit.key)
        before = blank(commit.key, after.uid, 0) if live is None else live.fold.head
        labels = timers = wake_us = due_us = pending = since = None
        if after.labels != before.labels:
            labels = msgspec.json.encode(after.labels).decode()
        if after.timers != before.timers:
            timers = msgspec.json.encode(after.timers).decode()
            wake_us, due_us = first_us(after, "wake"), first_us(after, "deadline")
        if (after.pending, after.pending_us) != (before.pending, before.pending_us):
            pending = after.pending
            since = -1 if after.pending_us is None else last if after.pending_us == UNDATED else 0
        priority = None if after.priority == before.priority else after.priority
        schema = after.schema_version
        schema = None if schema == before.schema_version else schema
        visit = (self._jobs, self._head_of(commit.key), commit.fence)
        inputs = (labels, pending, since, timers, wake_us, due_us)
        self._v.add(*visit, *inputs, priority, schema)
        self._left.append((self._jobs, commit.key, fold))

    def _add_scope(self, key: Key, write: Any) -> None:
        name: ScopeKey = write.key
        before = self._name_now.get(name) or self._view.known.get(name)
        version = write.at.version
        place = self._names.get(name)
        if place is None:
            place = self._names[name] = self._n.add(*name, version - 1)
        self._w.add(self._jobs, place)
        stored = self._view.known.get(name)
        if not write.at.deleted and (stored is None or stored.value.deleted):
            self._add_name(name)
        form, raw, since = bodies.scope_body(write, -1 if before is None else before.since_base)
        base = version if form != bodies.BY_OP or before is None else before.base
        live = LiveScope(write.at, base, since, self._view.era, len(write.whole))
        self._name_now[name] = live
        self._scope_left.append((self._jobs, name, live))
        uid = self._plan.folds[key].head.uid
        place_of = bodies.scope_place(name, version, base, form, uid, write.seq)
        packed = self._codec.pack(raw, place_of, bound=True)
        self._s.add(self._jobs, place, version, base, form, *packed, self._head_of(key), write.seq)

    def _add_name(self, name: ScopeKey) -> None:
        """The job adds a name to those that are stored: whether there is room for it the server
        counts, under a lock. Each name once, however often the batch writes it."""
        owner = name[:2]
        place = self._names.get((*owner, ""))
        if place is None:
            place = self._names[*owner, ""] = self._n.add(*owner, "", 0)
        self._w.add(self._jobs, place)
        self._added.setdefault(owner, set()).add(name[2])

    def _make_room(self) -> None:
        """How many names each owner may have before those of this batch are added."""
        for owner, added in self._added.items():
            place = self._names[*owner, ""]
            most = max(SCOPE_NAMES_MAX - len(added), self._plan.room.live(owner))
            self._n.rows[place - 1] = (*owner, "", most)

    def _add_guards(self, commit: Commit) -> None:
        """Names that were only looked at must not have moved either."""
        for name in commit.guards:
            kind = scope_of(name)
            if kind in ("app", "user"):
                key = (commit.key.app, "" if kind == "app" else commit.key.user, name)
                place = self._names.get(key)
                if place is None:
                    base = self._view.scope_version(key)
                    place = self._names[key] = self._n.add(*key, base)
                self._w.add(self._jobs, place)

    def _sort_heads(self) -> None:
        """The server locks in key order by itself; new sessions are inserted in the order given."""
        if not self._new or len(self._heads) == 1:
            return
        order = sorted(range(len(self._heads)), key=lambda i: self._h.rows[i][1:4])
        new = {old + 1: place for place, old in enumerate(order, 1)}
        self._h.rows = [self._h.rows[i] for i in order]
        self._heads = {key: new[place] for key, place in self._heads.items()}
        for table, at in ((self._v, 1), (self._e, 1), (self._p, 1), (self._s, 8)):
            table.rows = [(*row[:at], new[row[at]], *row[at + 1 :]) for row in table.rows]


def _head(head: Head, at_us: int, link: bytes, now_us: int) -> Head:
    """The planned head with the server's time in place; the head itself once that is done."""
    if head.updated_us == UNDATED:
        # In place: the planner made it for this batch, and nobody has seen it yet.
        force_setattr(head, "link", link)
        force_setattr(head, "updated_us", at_us)
        if head.created_us == UNDATED:
            force_setattr(head, "created_us", at_us)
        if (
            head.pending_us is not None and head.pending_us > now_us
        ):  # not dated, or a clock set back
            force_setattr(head, "pending_us", now_us)
    return head
