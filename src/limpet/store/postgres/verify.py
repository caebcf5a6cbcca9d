"""Verification: every session against its log, and every table against the others.

All of it within one snapshot of the server, a page of rows at a time. Nobody waits for that
snapshot, so keys of sealed bodies are awaited within it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.errors import SealUnavailable
from limpet.model import Base, Fold, Head, Key, blank, deadline_us, due_us, is_reserved
from limpet.model.limits import INT_MAX, READ_PAGE_BYTES_MAX
from limpet.store.coding.bodies import ScopeRow, erasure_crc, tomb_crc
from limpet.store.coding.codec import UNHELD, Damaged
from limpet.store.coding.seal import scope_owner
from limpet.store.cold import SegmentDamaged, mark
from limpet.store.ledger import compare
from limpet.store.postgres import blobs, cold, ledger, rows
from limpet.store.postgres.failures import FAILURES
from limpet.store.postgres.reading.lineage import base_of, link_at
from limpet.store.postgres.reading.reader import LAST, PostgresReader
from limpet.store.postgres.server.schema import secret_crc
from limpet.store.postgres.server.settings import TABLES_SECONDS_MAX, Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import ChainedEvent, Erasure, Finding, Progress, Report
from limpet.store.verify import LogVerifier, NameVerifier, ScopeCounter, event_problems

_PAGE: Final = 500
_BOUNDS: Final = (_PAGE, READ_PAGE_BYTES_MAX)  # rows, and the bytes of their bodies


async def run(
    conn: Connection, reader: PostgresReader, key: Key | None, progress: Progress | None
) -> Report:
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        await conn.execute(SQL["statement_timeout"], f"{TABLES_SECONDS_MAX}s")
        verification = PostgresVerification(conn, reader)
        if key is None:
            await verification.everything(progress)
        else:
            await verification.session(key)
    sessions, internal = verification.sessions, verification.internal
    findings = tuple(verification.findings)
    return Report(sessions - internal, verification.events, findings, internal)


class PostgresVerification:
    """One reading of the database. Changes nothing."""

    def __init__(self, conn: Connection, reader: PostgresReader) -> None:
        self._conn, self._reader, self._sealer = conn, reader, reader.codec.sealer
        self.sessions = self.internal = self.events = 0
        self.findings: list[Finding] = []
        self._scope_counter = ScopeCounter()

    async def everything(self, progress: Progress | None) -> None:
        total = await self._conn.fetchval(SQL["verify_count"], timeout=TABLES_SECONDS_MAX)
        sid = 0
        while page := await self._conn.fetch(SQL["verify_keys"], sid, _PAGE):
            for row in page:
                sid = row["sid"]
                await self._guard(row)
                if progress is not None:
                    progress(self.sessions, total)
        await self._scopes()
        await self._tombs()
        await self._kept_logs()
        await self._certificates()
        for row in await self._conn.fetch(SQL["verify_parents"], timeout=TABLES_SECONDS_MAX):
            what = "has a parent that is not there"
            self.findings.append(Finding(row["kind"], what, rows.key_from(row)))
        orphans = await self._conn.fetch(SQL["verify_orphans"], timeout=TABLES_SECONDS_MAX)
        for what, count in orphans:
            if count:
                self.findings.append(Finding(what, f"rows without a session: {count}"))

    async def _guard(self, row: Any) -> None:
        """Damage that stops the reading of a session is itself a finding, and stops no other."""
        key = None
        try:
            key = Key(row["app"], row["owner"], row["id"])
            await self.session(key)
        except (*FAILURES, MemoryError, SealUnavailable):
            raise  # the reading failed, which says nothing about what is stored
        except Exception as error:
            self._count(row["app"])
            self.findings.append(Finding("session", f"cannot be read: {error!r}", key))

    async def session(self, key: Key) -> None:
        """One session. Raises SessionNotFound, SessionDeleted, SessionErased."""
        loaded = await self._sealer.opening(lambda: self._reader.load(self._conn, key))
        head, sid = loaded.live.fold.head, loaded.live.sid
        row = await self._conn.fetchrow(SQL["verify_columns"], sid)
        base = await self._base(sid, head) if head.floor else None
        snapshots: dict[int, Fold | None] = {}
        log = LogVerifier(loaded.live.fold, snapshots, base)
        place = await self._log(log, sid, head, snapshots, row["adopted"])
        self.findings += log.end()
        if not loaded.holds:
            self.findings.append(Finding("head", UNHELD, key, head.version))
        await self._columns(sid, head, row, place[0])
        await self._blobs(sid, head.uid, key)
        self._count(key.app)

    def _count(self, app: str) -> None:
        self.sessions += 1
        self.internal += is_reserved(app)

    async def _log(
        self,
        log: LogVerifier,
        sid: int,
        head: Head,
        snapshots: dict[int, Fold | None],
        adopted: int,
    ) -> tuple[int, int]:
        """Every event with the snapshots on it, a page at a time; the place of the last."""
        after, place = await self._check_segments(log, sid, head, snapshots), (0, 0)
        while page := await self._conn.fetch(SQL["verify_events"], sid, after, *_BOUNDS):
            await self._rungs(sid, head, snapshots, after, page[-1]["seq"])
            after = page[-1]["seq"]
            await self._sealer.ready(
                [head.uid for row in page if self._reader.codec.needs_keys(row["flags"])]
            )
            self.events += len(page)
            for row in page:
                record = rows.record_from(row, head.uid, self._reader.codec)[0]
                own = record.event.seq > adopted
                self.findings += log.add(self._scope_counter.add(head.uid, record, adopted=not own))
                before, place = place, (row["xid"], row["pos"])
                if place <= before:
                    what = "stands in the feed before the event it follows"
                    self.findings.append(Finding("event", what, head.key, row["seq"]))
        await self._rungs(sid, head, snapshots, after, LAST)
        return place

    async def _check_segments(
        self, log: LogVerifier, sid: int, head: Head, snapshots: dict[int, Fold | None]
    ) -> int:
        """The events in segments, and whether each segment ends where it says; the last seq."""
        after = 0
        while (row := await self._conn.fetchrow(SQL["segments_of"], sid, after)) is not None:
            first, last = row["first"], row["last"]
            await self._sealer.ready(
                [head.uid] if self._reader.codec.needs_keys(row["flags"]) else []
            )
            await self._rungs(sid, head, snapshots, after, last)
            after = last
            try:
                segment = await cold.segment(self._reader.codec, self._conn, (sid, head.uid), row)
            except SegmentDamaged as error:
                self.findings.append(Finding("segment", error.problem, head.key, first))
                continue
            self.events += len(segment)
            for each in segment:
                stored = self._scope_counter.add(head.uid, each.record, adopted=each.adopted)
                self.findings += log.add(stored)
            marks = [(mark(c.record.event.id), c.record.event.seq) for c in segment]
            listed = await self._conn.fetch(SQL["segment_ids_of"], sid, first, last)
            same = [tuple(each) for each in listed] == marks
            if not same or segment[-1].record.event.at_us != row["last_us"]:
                what = "has other ids or times beside it than in it"
                self.findings.append(Finding("segment", what, head.key, first))
        return after

    async def _rungs(
        self, sid: int, head: Head, snapshots: dict[int, Fold | None], after: int, last: int
    ) -> None:
        """The snapshots on the events of a page; of those before, only where they stand is kept."""
        snapshots.update(dict.fromkeys(snapshots))
        for row in await self._conn.fetch(SQL["verify_snapshots"], sid, after, last):
            fold = self._reader.snapshot(head, row)
            snapshots[row["seq"]] = None if fold is None else fold[0]

    async def _base(self, sid: int, head: Head) -> Base | None:
        """The base of the log. Checks that the parent has the event that it goes on from."""
        row = await self._conn.fetchrow(SQL["origin"], sid)
        try:
            base = await base_of(self._reader, self._conn, row)
        except Damaged as error:
            self._find("base", str(error), head)
            return None
        if row["parent"] is not None:
            link = await link_at(self._reader, self._conn, sid, head.floor)
            erased = link is None and await self._conn.fetchval(SQL["bottom"], sid) >= head.floor
            if link != base.link and not erased:
                self._find("base", "stands on an event that its parent does not have", head)
        return base

    async def _columns(self, sid: int, head: Head, row: Any, last_xid: int) -> None:
        facts = head.facts
        derived = (
            due_us(facts),
            deadline_us(head),
            head.priority,
            head.updated_us >> rows.SLOT_BITS,
        )
        stored = (row["due_us"], row["deadline_us"], row["priority"], row["slot"])
        if stored != derived or row["standing"] != facts.get("standing"):
            self._find("head", "has other due times than its log says", head)
        if (row["parent"] is not None and not head.floor) or row["bases"] != (head.floor > 0):
            self._find("base", "is there for a log that begins on nothing, or is missing", head)
        if row["xid"] != last_xid:
            self._find("event", "is not of the transaction that last wrote to its session", head)
        listed = [tuple(label) for label in await self._conn.fetch(SQL["verify_labels"], sid)]
        key = (head.key.app, head.key.user, head.created_us)
        if listed != sorted([(*key, name, value) for name, value in head.indexed_labels.items()]):
            self._find("label", "is not listed as the head has it", head)

    async def _blobs(self, sid: int, uid: str, key: Key, below: int = INT_MAX) -> None:
        for problem in await blobs.problems(self._conn, self._reader.codec, sid, uid, below):
            self.findings.append(Finding("blob", problem, key))

    def _find(self, where: str, what: str, head: Head) -> None:
        self.findings.append(Finding(where, what, head.key))

    async def _scopes(self) -> None:
        names = NameVerifier(self._reader.codec)
        count, at = 0, ("", "", "", 0)
        while page := await self._conn.fetch(SQL["verify_scopes"], *at, *_BOUNDS):
            sealed = [
                scope_owner(*row[:2]) for row in page if self._reader.codec.needs_keys(row["flags"])
            ]
            await self._sealer.ready(sealed)
            for app, owner, name, *stored, lives in page:
                row = ScopeRow(*stored)
                self.findings += names.add((app, owner, name), row)
                count += lives and (row.uid, row.seq) not in self._scope_counter.adopted
            at = tuple(page[-1][:4])
        self.findings += self._scope_counter.compare(count)
        for app, owner in await self._conn.fetch(SQL["verify_owners"]):
            what = f"names of {app}/{owner} are not as many as the store counted"
            self.findings.append(Finding("scope", what))

    async def _tombs(self) -> None:
        """Check the tombstones of deleted sessions."""
        sid = 0
        while page := await self._conn.fetch(SQL["verify_tombs"], sid, _PAGE):
            sid = page[-1]["sid"]
            for row in page:
                key = rows.key_from(row)
                if tomb_crc(rows.tombstone_from(key, row)) != row["crc"]:
                    what = "does not match its checksum"
                    self.findings.append(Finding("tombstone", what, key))

    async def _kept_logs(self) -> None:
        """The logs of deleted sessions, as far as others still read them."""
        sid = 0
        while page := await self._conn.fetch(SQL["verify_kept"], sid, _PAGE):
            sid = page[-1]["sid"]
            for row in page:
                if row["most"] > row["floor"]:
                    await self._kept_log(row)
                await self._blobs(row["sid"], row["uid"], rows.key_from(row), row["most"])

    async def _kept_log(self, row: Any) -> None:
        key, seq, sid = rows.key_from(row), row["floor"], row["sid"]
        before = blank(key, row["uid"], 0)
        if seq:
            try:
                base = await base_of(self._reader, self._conn, row)
                before = msgspec.structs.replace(before, link=base.link)
            except Damaged as error:
                self.findings.append(Finding("base", str(error), key))
        before, seq = await self._kept_cold(row, before, seq)
        while page := await self._conn.fetch(SQL["verify_events"], sid, seq, *_BOUNDS):
            for each in page:
                record, _ = rows.record_from(each, row["uid"], self._reader.codec)
                before, seq = self._follows(key, before, record, seq)
        if seq < row["most"]:
            what = f"ends at {seq}, and others read it up to {row['most']}"
            self.findings.append(Finding("event", what, key))

    def _follows(self, key: Key, before: Head, record: ChainedEvent, seq: int) -> tuple[Head, int]:
        """Check that an event follows the one before it; the head and the seq after it."""
        event = record.event
        stored = (event, record.raw, record.salt, record.digest)
        for what in event_problems(before, *stored, seq + 1):
            self.findings.append(Finding("event", what, key, event.seq))
        after = msgspec.structs.replace(before, updated_us=event.at_us, link=event.link)
        return after, event.seq

    async def _kept_cold(self, row: Any, before: Head, seq: int) -> tuple[Head, int]:
        """The same of what is in segments."""
        key = rows.key_from(row)
        while (held := await self._conn.fetchrow(SQL["segments_of"], row["sid"], seq)) is not None:
            await self._sealer.ready(
                [row["uid"]] if self._reader.codec.needs_keys(held["flags"]) else []
            )
            try:
                of = (row["sid"], row["uid"])
                for each in await cold.segment(self._reader.codec, self._conn, of, held):
                    before, seq = self._follows(key, before, each.record, seq)
            except SegmentDamaged as error:
                self.findings.append(Finding("segment", error.problem, key, held["first"]))
                before, seq = msgspec.structs.replace(before, link=held["link"]), held["last"]
        return before, seq

    async def _ledger(self, meta: dict[str, bytes]) -> None:
        try:
            kept = ledger.read(meta)
        except ValueError:
            what = "has a ledger of ended sessions that cannot be read"
            self.findings.append(Finding("meta", what))
            return
        if kept is not None:  # none: it is begun when the next session ends
            self.findings += compare(kept, await ledger.count(self._conn))

    async def _certificates(self) -> None:
        """Check the certificates of erased sessions, and the secret that recognises keys."""
        at = b""
        while page := await self._conn.fetch(SQL["verify_erased"], at, _PAGE):
            at = page[-1]["key_hash"]
            for *values, crc in page:
                if crc != erasure_crc(Erasure(*values)):
                    self.findings.append(Finding("erasure", "does not match its checksum"))
        meta = await self._conn.fetch(SQL["verify_meta"])
        kept = {name: bytes(value) for name, value in meta}
        await self._ledger(kept)
        if kept.get("secret_crc") != secret_crc(kept.get("secret", b"")):
            what = "has another secret than it was made with"
            self.findings.append(Finding("meta", what))
