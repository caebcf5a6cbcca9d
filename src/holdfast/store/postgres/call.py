"""One call of holdfast.commit: a plan turned into columns, and its reply turned into answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.model.due import deadline_us
from holdfast.model.events import Commit, Event
from holdfast.model.fold import Fold, ScopeKey
from holdfast.model.head import PROCESSED, Head, blank
from holdfast.model.keys import Key
from holdfast.model.lease import with_lease
from holdfast.model.limits import EVENT_OVERHEAD_BYTES
from holdfast.model.ops import scope_of
from holdfast.store import bodies
from holdfast.store.codec import Codec
from holdfast.store.plan import Plan
from holdfast.store.postgres.connect import Connection
from holdfast.store.protocol import Committed, Place
from holdfast.store.sqlite.cache import Cache, Live, LiveScope

SOON: Final = 2**60  # stands for the server's clock until the server has told it
_COMMIT: Final = "SELECT what, place, number, bytes FROM holdfast.commit({})".format(
    ", ".join(f"${n}" for n in range(1, 7 + 4 + 1 + 11 + 2 + 16 + 4 + 10 + 1))
)


class Reply:
    """What the server said: refusals by unit, times by event, sids and leases by session."""

    def __init__(self, rows: list[Any]) -> None:
        self.refused: dict[int, str] = {}
        self.events: dict[int, tuple[int, bytes]] = {}
        self.sids: dict[int, int] = {}
        self.told: dict[tuple[Key, int], tuple[int, bytes]] = {}
        self.leases: dict[int, tuple[int, int | None, str | None]] = {}
        self.judged_us = 0  # by which time units were refused
        for what, place, number, link in rows:
            if what == "event":
                self.events[place] = (number, link)
            elif what == "sid":
                self.sids[place] = number
            elif what == "lease":
                self.leases[place] = (number, *_lease(link))
            else:
                self.refused[place] = what
                self.judged_us = number

    def leased(self, head: Head, place: int) -> Head:
        """The head under the lease that the server has: ours may be of before."""
        return with_lease(head, *self.leases.get(place, (0, None, None)))


class _Table:
    """Columns that grow by rows."""

    def __init__(self, width: int) -> None:
        self.columns: list[list[Any]] = [[] for _ in range(width)]

    def add(self, *row: Any) -> int:
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)
        return len(self.columns[0])


class Call:
    """Gathers the units of a plan as they are added."""

    def __init__(self, plan: Plan, cache: Cache, codec: Codec) -> None:
        self._plan, self._cache, self._codec = plan, cache, codec
        self._units = 0
        self._heads: dict[Key, int] = {}
        self._names: dict[ScopeKey, int] = {}
        self._name_now: dict[ScopeKey, LiveScope] = {}
        self._seen_records = self._seen_writes = 0
        self._h, self._n, self._v = _Table(7), _Table(4), _Table(11)
        self._w, self._e, self._p, self._s = _Table(2), _Table(16), _Table(4), _Table(10)
        self._keys: list[tuple[Key, int]] = []  # of each event: its session and its seq
        self._left: list[tuple[int, Key, Fold]] = []
        self._scope_left: list[tuple[int, ScopeKey, LiveScope]] = []

    def take(self, commits: Sequence[Commit]) -> int:
        """Add what the plan just gained; the place of the unit, 0 if it gained nothing."""
        records = self._plan.records[self._seen_records :]
        writes = self._plan.writes[self._seen_writes :]
        self._seen_records, self._seen_writes = len(self._plan.records), len(self._plan.writes)
        if not records:
            return 0
        self._units += 1
        given = {d.id for commit in commits for d in commit.drafts if d.given}
        headers = {d.id: d.header for commit in commits for d in commit.drafts}
        places: dict[Key, int] = {}
        for key, rec in records:
            places[key] = self._add_event(key, rec, headers, given)
        for commit in commits:
            self._add_visit(commit, places.get(commit.key, 0))
        for key, write in writes:
            self._add_scope(key, write)
        for commit in commits:
            self._add_guards(commit)
        return self._units

    async def send(self, conn: Connection) -> Reply:
        """One round trip; none if there is nothing to record."""
        if not self._units:
            return Reply([])
        self._sort_heads()
        tables = (self._h, self._n)
        columns = [column for table in tables for column in table.columns]
        columns.append(self._units)  # type: ignore[arg-type]  # the one scalar
        for table in (self._v, self._w, self._e, self._p, self._s):
            columns += table.columns
        return Reply(await conn.fetch(_COMMIT, *columns))

    def answers(self, answers: Sequence[Committed], reply: Reply) -> tuple[Committed, ...] | None:
        """The planner's answers with the server's times and links in place.

        None if one of them stands on something planned that the server refused.
        """
        told = self._told(reply)
        done = [self._answer(answer, told, reply) for answer in answers]
        return None if None in done else tuple(done)  # type: ignore[arg-type]  # no None is left

    def _answer(
        self, answer: Committed, told: dict[tuple[Key, int], tuple[int, bytes]], reply: Reply
    ) -> Committed | None:
        head = answer.head
        if head.updated_us != SOON:
            return answer  # as it was before this call
        last = told.get((head.key, head.version))
        if last is None:
            return None
        events = []
        for event in answer.events:
            if event.at_us == SOON:
                at_us, link = told[head.key, event.seq]
                event = msgspec.structs.replace(event, at_us=at_us, link=link)
            if event.processed_us == SOON:
                event = msgspec.structs.replace(event, processed_us=last[0])
            events.append(event)
        now = reply.leased(_head(head, *last), self._heads[head.key])
        return msgspec.structs.replace(answer, events=tuple(events), head=now)

    def settle(self, reply: Reply) -> dict[Key, Live]:
        """The sessions as the units that held left them."""
        done: dict[Key, Live] = {}
        told = self._told(reply)
        sizes: dict[Key, int] = {}
        for place in reply.events:
            key = self._keys[place - 1][0]
            sizes[key] = sizes.get(key, 0) + len(self._e.columns[11][place - 1])
        for unit, key, fold in self._left:
            if unit in reply.refused:
                continue
            at, link = told[key, fold.head.version]
            before = self._cache.session(key)
            sid = reply.sids.get(self._heads[key]) or (before.sid if before is not None else 0)
            old = (before.snapshot_bytes, before.delta_bytes) if before is not None else (0, 0)
            now = reply.leased(_head(fold.head, at, link), self._heads[key])
            after = Fold(now, fold.fields, fold.versions)
            damaged = before is not None and before.damaged
            delta = old[1] + sizes[key] + EVENT_OVERHEAD_BYTES
            done[key] = Live(sid, after, old[0], delta, damaged, self._cache.era)
        return done

    def scopes(self, reply: Reply) -> dict[ScopeKey, LiveScope]:
        return {key: s for unit, key, s in self._scope_left if unit not in reply.refused}

    # --- private -------------------------------------------------------------------------------

    def _told(self, reply: Reply) -> dict[tuple[Key, int], tuple[int, bytes]]:
        """Time and link of each event, by session and seq. Made once, not for every answer."""
        if len(reply.told) < len(reply.events):
            reply.told = {self._keys[place - 1]: event for place, event in reply.events.items()}
        return reply.told

    def _head_of(self, key: Key) -> int:
        found = self._heads.get(key)
        if found is None:
            live = self._cache.session(key)
            base = self._plan.folds[key].head if live is None else live.fold.head
            start = blank(key, base.uid, 0) if live is None else base
            row = (None if live is None else live.sid, key.app, key.user, key.id, base.uid)
            version = 0 if live is None else start.version
            found = self._heads[key] = self._h.add(*row, version, start.link)
        return found

    def _add_event(self, key: Key, rec: Any, headers: dict[str, bytes], given: set[str]) -> int:
        e: Event = rec.event
        salt, raw, place_of = rec.salt, rec.raw, None
        if self._codec.seals:  # the salt goes inside the seal
            uid = self._plan.folds[key].head.uid
            salt, raw, place_of = b"", salt + raw, Place("event", uid, e.id, e.type)
        flags, body, crc = self._codec.pack(raw, place_of)
        head = self._head_of(key)
        place = self._e.add(
            self._units,
            head,
            e.id,
            e.id in given,
            e.type,
            e.actor,
            e.cause,
            e.invocation_id,
            e.correlation_id,
            e.wake_id,
            flags,
            body,
            crc,
            salt,
            rec.digest,
            headers[e.id],
        )
        self._keys.append((key, e.seq))
        if e.type == PROCESSED and e.data is not None:
            for seq in e.data["seqs"]:
                self._p.add(self._units, head, seq, place)
        return place

    def _add_visit(self, commit: Commit, last: int) -> None:
        """What the unit leaves of a session."""
        if not last:
            return
        fold = self._plan.folds[commit.key]
        after = fold.head
        live = self._cache.session(commit.key)
        before = None if live is None else live.fold.head
        same_labels = before is not None and before.labels == after.labels
        same_timers = before is not None and before.timers == after.timers
        since = -1 if after.pending_us is None else last if after.pending_us == SOON else 0
        self._v.add(
            self._units,
            self._head_of(commit.key),
            commit.fence,
            after.version,
            None if same_labels else msgspec.json.encode(after.labels).decode(),
            after.pending,
            since,
            None if same_timers else msgspec.json.encode(after.timers).decode(),
            min((t.at_us for t in after.timers.values() if t.kind == "wake"), default=None),
            deadline_us(after),
            after.priority,
        )
        self._left.append((self._units, commit.key, fold))

    def _add_scope(self, key: Key, write: Any) -> None:
        name: ScopeKey = write.key
        before = self._name_now.get(name) or self._cache.scope(name)
        version = write.at.version
        place = self._names.get(name)
        if place is None:
            place = self._names[name] = self._n.add(*name, version - 1)
        self._w.add(self._units, place)
        form, raw, since = bodies.scope_body(
            write.at, write.op, -1 if before is None else before.since_base
        )
        base = version if form != bodies.BY_OP or before is None else before.base
        live = LiveScope(write.at, base, since, self._cache.era)
        self._name_now[name] = live
        self._scope_left.append((self._units, name, live))
        uid = self._plan.folds[key].head.uid
        place_of = bodies.scope_place(name, version, base, form, uid, write.seq)
        packed = self._codec.pack(raw, place_of, bound=True)
        self._s.add(self._units, place, version, base, form, *packed, self._head_of(key), write.seq)

    def _add_guards(self, commit: Commit) -> None:
        """Names that were only looked at must not have moved either."""
        for name in commit.guards:
            kind = scope_of(name)
            if kind in ("app", "user"):
                key = (commit.key.app, "" if kind == "app" else commit.key.user, name)
                live = self._cache.scope(key)
                place = self._names.get(key)
                if place is None:
                    base = 0 if live is None else live.value.version
                    place = self._names[key] = self._n.add(*key, base)
                self._w.add(self._units, place)

    def _sort_heads(self) -> None:
        """The server locks in key order by itself; new sessions are inserted in the order given."""
        order = sorted(
            range(len(self._heads)), key=lambda i: tuple(c[i] for c in self._h.columns[1:4])
        )
        if order == list(range(len(order))):
            return
        new = {old + 1: place for place, old in enumerate(order, 1)}
        self._h.columns = [[column[i] for i in order] for column in self._h.columns]
        self._heads = {key: new[place] for key, place in self._heads.items()}
        for table, column in ((self._v, 1), (self._e, 1), (self._p, 1), (self._s, 8)):
            table.columns[column] = [new[place] for place in table.columns[column]]


def _lease(told: bytes | None) -> tuple[int | None, str | None]:
    """Until when and to whom a session is leased, if it is."""
    if told is None:
        return None, None
    return int.from_bytes(told[:8], "big"), told[8:].decode()


def _head(head: Head, at_us: int, link: bytes) -> Head:
    return msgspec.structs.replace(
        head,
        link=link,
        updated_us=at_us,
        created_us=at_us if head.created_us == SOON else head.created_us,
        pending_us=at_us if head.pending_us == SOON else head.pending_us,
    )
