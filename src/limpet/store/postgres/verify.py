"""Verification: every session against its log, and every table against the others.

All of it within one snapshot of the server, a page of rows at a time. Nobody waits for that
snapshot, so keys of sealed bodies are awaited within it.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.errors import SealUnavailable
from limpet.model.chain import SALT_BYTES
from limpet.model.due import deadline_us, first_us, runnable_us
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.model.ops import scope_of
from limpet.store import bodies
from limpet.store.codec import SEALED
from limpet.store.ledger import compare
from limpet.store.postgres import ledger, rows
from limpet.store.postgres.failures import FAILURES
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.server.schema import secret_crc
from limpet.store.postgres.server.settings import TABLES_SECONDS_MAX, Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Erasure, Finding, Place, Progress, Report
from limpet.store.seal import scope_owner
from limpet.store.verify import Log, Names, ScopeRow, Stored

_PAGE: Final = 500
_BOUNDS: Final = (_PAGE, READ_PAGE_BYTES_MAX)  # rows, and the bytes of their bodies


async def run(
    conn: Connection, reader: Reader, key: Key | None, progress: Progress | None
) -> Report:
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        await conn.execute(SQL["statement_timeout"], f"{TABLES_SECONDS_MAX}s")
        verification = Verification(conn, reader)
        if key is None:
            await verification.everything(progress)
        else:
            await verification.session(key)
    return Report(verification.sessions, verification.events, tuple(verification.findings))


class Verification:
    """One reading of the database. Changes nothing."""

    def __init__(self, conn: Connection, reader: Reader) -> None:
        self._conn, self._reader, self._sealer = conn, reader, reader.codec.sealer
        self.sessions = self.events = 0
        self.findings: list[Finding] = []
        self._scoped = self._unread = 0

    async def everything(self, progress: Progress | None) -> None:
        total = await self._conn.fetchval(SQL["verify_count"], timeout=TABLES_SECONDS_MAX)
        sid = 0
        while page := await self._conn.fetch(SQL["verify_keys"], sid, _PAGE):
            for row in page:
                sid = row["sid"]
                await self._guarded(row)
                if progress is not None:
                    progress(self.sessions, total)
        await self._scopes()
        await self._tombs()
        await self._erased()
        orphans = await self._conn.fetch(SQL["verify_orphans"], timeout=TABLES_SECONDS_MAX)
        for what, count in orphans:
            if count:
                self.findings.append(Finding(what, f"rows without a session: {count}"))

    async def _guarded(self, row: Any) -> None:
        """Damage that stops the reading of a session is itself a finding, and stops no other."""
        key = None
        try:
            key = Key(row["app"], row["owner"], row["id"])
            await self.session(key)
        except (*FAILURES, MemoryError, SealUnavailable):
            raise  # the reading failed, which says nothing about what is stored
        except Exception as error:
            self.sessions += 1
            self.findings.append(Finding("session", f"cannot be read: {error!r}", key))

    async def session(self, key: Key) -> None:
        """One session. Raises SessionNotFound, SessionDeleted, SessionErased."""
        found = await self._sealer.opening(lambda: self._reader.load(self._conn, key))
        head, sid = found.live.fold.head, found.live.sid
        log = Log(found.live.fold, found.snapshot)
        after, place = 0, (0, 0)
        while page := await self._conn.fetch(SQL["verify_events"], sid, after, *_BOUNDS):
            after = page[-1]["seq"]
            await self._sealer.ready([head.uid for row in page if row["flags"] & SEALED])
            self.events += len(page)
            for row in page:
                self.findings += log.add(self._one(row, head.uid))
                before, place = place, (row["xid"], row["pos"])
                if place <= before:
                    what = "stands in the feed before the event it follows"
                    self.findings.append(Finding("event", what, key, row["seq"]))
        self.findings += log.end()
        await self._columns(sid, head, place[0])
        self.sessions += 1

    def _one(self, row: Any, uid: str) -> Stored:
        event = rows.event_from(row, uid, self._reader.codec)
        self._scoped += sum([scope_of(str(op.path[0])) in ("app", "user") for op in event.ops])
        self._unread += event.damage is not None
        raw, salt = None, row["salt"]
        if event.damage is None:
            place = Place("event", uid, event.id, event.type)
            raw = self._reader.codec.unpack(row["flags"], row["body"], row["crc"], lambda: place)
            if row["flags"] & SEALED:
                salt, raw = raw[:SALT_BYTES], raw[SALT_BYTES:]
        return event, raw, salt, row["digest"]

    async def _columns(self, sid: int, head: Head, last_xid: int) -> None:
        row = await self._conn.fetchrow(SQL["verify_columns"], sid)
        due = (row["runnable_us"], row["deadline_us"], row["wake_us"])
        if due != (runnable_us(head), deadline_us(head), first_us(head, "wake")):
            self._find("head", "has other due times than its log says", head)
        if row["xid"] not in (0, last_xid):  # 0: from before it was kept
            self._find("event", "is not of the transaction that last wrote to its session", head)
        listed = [tuple(label) for label in await self._conn.fetch(SQL["verify_labels"], sid)]
        key = (head.key.app, head.key.user, head.created_us)
        if listed != sorted([(*key, name, value) for name, value in head.labels.items()]):
            self._find("label", "is not listed as the head has it", head)

    def _find(self, where: str, what: str, head: Head) -> None:
        self.findings.append(Finding(where, what, head.key))

    async def _scopes(self) -> None:
        names = Names(self._reader.codec)
        count, at = 0, ("", "", "", 0)
        while page := await self._conn.fetch(SQL["verify_scopes"], *at, *_BOUNDS):
            sealed = [scope_owner(*row[:2]) for row in page if row["flags"] & SEALED]
            await self._sealer.ready(sealed)
            for app, owner, name, *stored, lives in page:
                self.findings += names.add((app, owner, name), ScopeRow(*stored))
                count += lives
            at = tuple(page[-1][:4])
        # What an event that cannot be read did to shared names is not known.
        if not self._unread and count != self._scoped:
            what = "rows are missing or too many: the logs speak of another number"
            self.findings.append(Finding("scope", what))

    async def _tombs(self) -> None:
        """What deleted sessions left."""
        sid = 0
        while page := await self._conn.fetch(SQL["verify_tombs"], sid, _PAGE):
            sid = page[-1]["sid"]
            for row in page:
                key = Key(row["app"], row["owner"], row["id"])
                crc = bodies.tomb_crc(rows.tombstone(key, row), row["deleted_us"])
                if row["stirs"] or row["tomb_crc"] not in (None, crc):
                    what = "does not match its checksum"
                    self.findings.append(Finding("tombstone", what, key))

    async def _ledger(self, meta: dict[str, bytes]) -> None:
        try:
            kept = ledger.read(meta)
        except ValueError:
            what = "has a ledger of ended sessions that cannot be read"
            self.findings.append(Finding("meta", what))
            return
        if kept is not None:  # none: a database from before, opened by nobody since
            self.findings += compare(kept, await ledger.counted(self._conn))

    async def _erased(self) -> None:
        """What erased sessions left, and the secret by which their keys are known."""
        at = b""
        while page := await self._conn.fetch(SQL["verify_erased"], at, _PAGE):
            at = page[-1]["key_hash"]
            for *values, crc in page:
                if crc not in (None, bodies.erasure_crc(Erasure(*values))):
                    self.findings.append(Finding("erasure", "does not match its checksum"))
        meta = await self._conn.fetch(SQL["verify_meta"])
        kept = {name: bytes(value) for name, value in meta}
        await self._ledger(kept)
        if kept.get("secret_crc") != secret_crc(kept.get("secret", b"")):
            what = "has another secret than it was made with"
            self.findings.append(Finding("meta", what))
