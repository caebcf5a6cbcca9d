"""The audit: who was refused, and who did what is sensitive, in one chained log per app.

A record is durable before the caller is answered. The log of an app is a log like any other, under
a reserved app: appended to, hashed into a chain, covered by verify; no verb of a user reaches it.
Names of users and sessions stand in it as keyed hashes that erasing makes final (`pseudonyms`).

The same denial (principal, action, resource, code, address) within a second is written once.
Repeats are counted in memory, and the count is written when the second has passed, with the next
record of the app, before the audit is read, and when the store is closed. A crash may lose the
counts of its last second, never a denial.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import (
    InvalidCursor,
    LimpetError,
    SessionExists,
    SessionNotFound,
    StoreBusy,
    StoreFailed,
)
from limpet.model import Commit, Event, Fact, Head, Key, Prepared, prepare
from limpet.model.facts.creation import created
from limpet.model.keys import AUDIT
from limpet.model.limits import WALK_MAX
from limpet.security.access import AllowedOperation, Principal, Resource
from limpet.security.audit_check import RECORDS, REPEATED, hashes_in, record_of, shown_name
from limpet.security.pseudonyms import SYSTEM, CommitAll, Opening, Pseudonyms
from limpet.store.pages import each_head
from limpet.store.protocol import Page, Query, Store

ALLOWED, DENIED = RECORDS
WINDOW_US: Final = 1_000_000  # in which the same denial is counted instead of written again
# A count that is written later than this after its denial is a record of its own.
LATE_US: Final = 60_000_000
WINDOWS_MAX: Final = 10_000  # denials that are remembered at a time
COUNTS_MAX: Final = 1_000  # counts in one event
TEXT_CHARS_MAX: Final = 512  # of a policy, an address and a code, which come from outside
_LOGS: Final = "apps"
_EVERYTHING: Final = "*"  # the app of what belongs to none
_READ_AT_ONCE: Final = 200
_NOW_SECONDS: Final = 10.0  # that a caller which cannot await is held at most
_LOG: Final = logging.getLogger("limpet.audit")
_Same: TypeAlias = tuple[str, str, str, str | None, str | None]
# Opens the same store once more, for another event loop; and closes that one.
Reopen: TypeAlias = Callable[[], Awaitable[tuple[Store, Callable[[], Awaitable[None]]]]]


class AuditRecord(msgspec.Struct, frozen=True):
    """One decision. `resource` is `app/user/id`, with `#name` for a field, a tool or a document.

    `code` is why access was denied; `policy` is the rule that decided. `repeats` counts further
    identical denials within a second. `via` is the principal again, if it wrote as the user of the
    session, for whom it speaks. `seq` is the record's place in its app's log.
    """

    at: datetime
    principal: str
    action: str
    resource: str
    allowed: bool
    code: str | None
    policy: str | None
    address: str | None
    repeats: int
    seq: int
    via: str | None = None


class AuditQuery(msgspec.Struct, frozen=True):
    """A selection of audit records; all of them without conditions."""

    app: str | None = None
    since_us: int | None = None
    principal: str | None = None
    session: Key | None = None
    denied: bool | None = None


class _RecentDenial:
    """A denial that was written, and how often it came again within the second."""

    __slots__ = ("count", "data", "done", "log", "seq", "since_us")

    def __init__(self, log: Key, since_us: int) -> None:
        self.log, self.since_us = log, since_us
        self.count, self.seq = 0, 0  # seq 0: it is not written, or could not be
        self.data: Mapping[str, Any] = {}
        self.done = asyncio.Event()

    def lasts(self, at_us: int) -> bool:
        """True if the same denial is counted with it."""
        return 0 <= at_us - self.since_us < WINDOW_US


class Audit:
    """The audit of one store. Everything in this process records into the same one."""

    def __init__(
        self,
        store: Store,
        commit: CommitAll,
        new_id: Callable[[], str],
        reopen: Reopen | None = None,
    ) -> None:
        """`commit` is the one way to write to the store; `reopen` opens it again, for those who
        cannot await: see `record_now`."""
        self._store, self._commit, self._new_id = store, commit, new_id
        self._reopen = reopen
        self._names = Pseudonyms(store, commit, new_id)
        self._windows: dict[_Same, _RecentDenial] = {}
        self._unsent: dict[Key, list[Prepared]] = {}  # counts, until they are written
        self._begun: set[Key] = set()
        self._timer: asyncio.TimerHandle | None = None
        # Records written without a caller; each task returns why it failed.
        self._tasks: set[asyncio.Task[Exception | None]] = set()
        self.denials = 0  # that this process was to record

    # --- recording ------------------------------------------------------------------------------

    async def record(
        self,
        principal: Principal | str | None,
        action: str,
        resource: Resource,
        *,
        allowed: bool,
        code: str | None = None,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        """Record a decision. Durable when it returns; call it before the caller is answered.

        `principal` is a text, or None, if nobody was authenticated. A denial that was recorded
        within the last second is counted. Raises StoreError: then the caller must not be told
        that it was recorded, nor be let through.
        """
        said = _Said(principal, action, resource, allowed, code, policy, address)
        if allowed:
            await self._write(log_of(resource.app), _fact(ALLOWED, await self._data(said)))
            return
        self.denials += 1
        while not await self._denied(said.same, said):
            pass

    async def commits(
        self,
        principal: Principal,
        approved: Sequence[AllowedOperation],
        address: str | None = None,
    ) -> tuple[Commit, ...]:
        """Return commits that record operations which were allowed, to be made with these.

        Pass them to `store.commit` after those of the operations: all or none are recorded.
        """
        drafts: dict[Key, list[Prepared]] = {}
        for each in dict.fromkeys(approved):
            of = (principal, each.action, each.resource, True, None, each.policy, address)
            said = _Said(*of, via=each.via)
            draft = self._prepared(_fact(ALLOWED, await self._data(said)))
            drafts.setdefault(log_of(each.resource.app), []).append(draft)
        for log in drafts:
            await self._begin(log)
        return tuple([Commit(log, tuple(some)) for log, some in drafts.items()])

    def record_now(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        code: str,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        """Record a denial for a caller that cannot await. Durable when it returns: another thread
        opens the store once more, and this one blocks until it has written.

        A store in memory has nothing that is durable, and one that was opened by its caller, or
        with a seal of its own, cannot be opened again: there it is written a moment later. Raises
        StoreError, as `record` does.
        """
        said = _Said(principal, action, resource, False, code, policy, address)
        now = self._store.now_us()
        window = self._windows.get(said.same)
        if window is not None and window.seq and window.lasts(now):
            self.denials += 1
            window.count += 1
            self._count_soon()
            return
        if self._reopen is None:
            self.note(principal, action, resource, code=code, policy=policy, address=address)
            return
        self.denials += 1
        window = _RecentDenial(log_of(resource.app), now)
        window.data, window.seq = _in_thread(self._reopen, self._new_id, said)
        window.done.set()
        self._settle(now)
        self._windows.pop(said.same, None)
        self._windows[said.same] = window

    def note(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        code: str,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        """Record a denial soon, for a caller that awaits `settle` before it answers."""
        record = self.record(
            principal, action, resource, allowed=False, code=code, policy=policy, address=address
        )
        try:
            task = asyncio.get_running_loop().create_task(self._noted(record))
        except RuntimeError:  # no loop runs here: nothing can be written
            record.close()
            _LOG.warning("denial not recorded: error=%r", "no event loop")
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _noted(self, record: Coroutine[Any, Any, None]) -> Exception | None:
        try:
            await record
        except (LimpetError, OSError) as error:
            _LOG.warning("denial not recorded: error=%r", error)
            return error
        return None

    async def settle(self, *, strict: bool = False) -> None:
        """Wait until what was noted is durable. With `strict` raises what kept it from that."""
        tasks = [*self._tasks]
        if not tasks:
            return
        await asyncio.wait(tasks)
        failed = [error for task in tasks if (error := task.result()) is not None]
        if strict and failed:
            raise failed[0]

    async def flush(self) -> None:
        """Write the counts of denials that came again. Raises StoreError."""
        self._settle(self._store.now_us(), everything=True)
        for log in [*self._unsent]:
            await self._write(log)

    async def close(self) -> None:
        """Write what was counted and stop. Raises nothing of ours."""
        if self._timer is not None:
            self._timer.cancel()
        await self.settle()
        await self._flush_quietly()

    async def write_denial(self, said: _Said) -> tuple[Mapping[str, Any], int]:
        """Write a denial that is not counted here; return its data and its seq."""
        data = await self._data(said)
        return data, await self._write(log_of(said.resource.app), _fact(DENIED, data))

    async def _denied(self, same: _Same, said: _Said) -> bool:
        """Write or count a denial. False if it was to be counted with one that was not written."""
        now = self._store.now_us()
        window = self._windows.get(same)
        if window is not None and (not window.done.is_set() or window.lasts(now)):
            window.count += 1
            await window.done.wait()  # durable before this one is answered, too
            if not window.seq:
                return False
            self._count_soon()
            return True
        self._settle(now)
        self._windows.pop(same, None)
        window = self._windows[same] = _RecentDenial(log_of(said.resource.app), now)
        try:
            window.data = await self._data(said)
            window.seq = await self._write(window.log, _fact(DENIED, window.data))
        finally:
            if not window.seq and self._windows.get(same) is window:
                del self._windows[same]
            window.done.set()
        return True

    async def _data(self, said: _Said) -> dict[str, Any]:
        """Return a record as it is stored: names of users are hashes."""
        at, who = said.resource, said.principal
        path: list[list[Any]] = []
        name: list[Any] | None = None if at.name is None else [at.name, False]
        if at.user is not None:
            path.append([await self._names.of_user(at.app, at.user), True])
            if at.id is not None:
                path.append([await self._names.of_part(at.app, at.user, "session", at.id), True])
            if at.name is not None and at.kind == "document":
                hash = await self._names.of_part(at.app, at.user, "document", at.name)
                name = [hash, True]
        elif at.id is not None:
            path.append([at.id, False])
        data: dict[str, Any] = {
            "principal": await self._who(who, at.app),
            "action": said.action,
            "kind": at.kind,
            "path": path,
        }
        if isinstance(who, Principal):
            data["role"] = who.role
        members = {
            "name": name,
            "code": said.code,
            "policy": said.policy,
            "address": said.address,
            "via": said.via,
        }
        for key, value in members.items():
            if value is not None:
                data[key] = value[:TEXT_CHARS_MAX] if isinstance(value, str) else value
        return data

    async def _who(self, who: Principal | str | None, app: str) -> list[Any]:
        """Return the id of a principal in parts, with a hash where the name of its user stands."""
        id = _principal_id(who)
        user = who.user if isinstance(who, Principal) else _user_in(id)
        if not user or user not in id:
            return [id]
        of = who.app if isinstance(who, Principal) and who.app is not None else app
        hash = await self._names.of_user(of, user)
        parts: list[Any] = []
        for text in id.split(user):
            parts += [text, [hash]] if text else [[hash]]
        return parts[:-1]

    async def _write(self, log: Key, *facts: Fact) -> int:
        """Record facts and the counts that are due; return the seq of the first fact."""
        counts = self._unsent.pop(log, [])
        drafts = (*map(self._prepared, facts), *counts)
        if not drafts:
            return 0
        try:
            await self._begin(log)
            (answer,) = await self._commit((Commit(log, drafts),))
        except BaseException:
            # Their ids are given: if they were recorded after all, a repeat is recognised.
            self._unsent.setdefault(log, [])[:0] = counts
            raise
        return answer.events[0].seq

    async def _begin(self, log: Key) -> None:
        """Make the log of an app, unless it is there."""
        if log in self._begun:
            return
        try:
            await self._store.load(log, tail=0, scopes=False)
        except SessionNotFound:
            first = self._prepared(created(log))
            with suppress(SessionExists):  # another was faster
                await self._commit((Commit(log, (first,), 0),))
        self._begun.add(log)

    def _prepared(self, fact: Fact) -> Prepared:
        return prepare(fact, id=self._new_id(), actor=SYSTEM)

    # --- counting -------------------------------------------------------------------------------

    def _settle(self, at: int, *, everything: bool = False) -> None:
        """Turn counts into events: of windows that have ended, or of all. They are in the order in
        which they began."""
        over = max(0, len(self._windows) + 1 - WINDOWS_MAX)
        ended, counts = [], dict[Key, list[tuple[int, int]]]()
        for number, (same, window) in enumerate(self._windows.items()):
            if window.lasts(at) and not everything and number >= over:
                break
            if not window.done.is_set():
                continue
            if window.count:
                self._count(window, at, counts)
            if not window.lasts(at) or number < over:
                ended.append(same)
        for same in ended:
            del self._windows[same]
        for log, pairs in counts.items():
            for start in range(0, len(pairs), COUNTS_MAX):
                some = [[*pair] for pair in pairs[start : start + COUNTS_MAX]]
                self._to_send(log, _fact(REPEATED, {"of": some}))

    def _count(
        self, window: _RecentDenial, at: int, counts: dict[Key, list[tuple[int, int]]]
    ) -> None:
        many, window.count = window.count, 0
        if at - window.since_us <= LATE_US:
            counts.setdefault(window.log, []).append((window.seq, many))
        else:
            self._to_send(window.log, _fact(DENIED, {**window.data, "repeats": many - 1}))

    def _to_send(self, log: Key, fact: Fact) -> None:
        given = msgspec.structs.replace(fact, id=self._new_id())
        self._unsent.setdefault(log, []).append(self._prepared(given))

    def _count_soon(self) -> None:
        """Have the counts written once their second has passed."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WINDOW_US / 1e6, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        task = loop.create_task(self._noted(self._flush_quietly()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_quietly(self) -> None:
        try:
            await self.flush()
        except (LimpetError, OSError) as error:  # they are kept, and written with the next record
            _LOG.warning("repeats of denials not written: error=%r", error)

    # --- reading --------------------------------------------------------------------------------

    async def page(
        self, query: AuditQuery, *, limit: int, cursor: str | None = None
    ) -> Page[AuditRecord]:
        """Return records, the newest first; of several apps in the order of time.

        A page that passed over many records is short and its cursor leads on.
        """
        after = None if cursor is None else _place(cursor, query)
        await self.settle()
        await self._flush_quietly()  # what this process has counted shows
        names = _NamesShown(self._names)
        records: list[tuple[str, Event]] = []
        looked, place = 0, None
        async for app, event in self._backwards(query, after):
            if looked >= WALK_MAX or len(records) >= limit:
                return await self._page(records, names, _cursor(query, place))
            looked, place = looked + 1, (event.at_us, app, event.seq)
            if await self._fits(query, app, event, names):
                records.append((app, event))
        return await self._page(records, names, None)

    async def _page(
        self, events: Sequence[tuple[str, Event]], names: _NamesShown, cursor: str | None
    ) -> Page[AuditRecord]:
        counts = await self._counts(events)
        items = []
        for app, event in events:
            if event.data is None:
                items.append(_unreadable(app, event))
                continue
            await names.open(hashes_in(event.data))
            said = record_of(app, event.type, event.at_us, event.data, names.texts)
            said["repeats"] += counts.get((app, event.seq), 0)
            items.append(AuditRecord(**{**said, "at": event.at}, seq=event.seq))
        return Page(tuple(items), cursor)

    async def _fits(self, query: AuditQuery, app: str, event: Event, names: _NamesShown) -> bool:
        if event.data is None:
            return query.principal is None and query.session is None
        if query.principal is not None or query.session is not None:
            await names.open(hashes_in(event.data))
        return self.asked(query, app, event, event.data, names.texts)

    def asked(
        self,
        query: AuditQuery,
        app: str,
        event: Event,
        data: Mapping[str, Any],
        names: Mapping[str, str],
    ) -> bool:
        """True if a record meets the conditions of a query, with these names."""
        if query.since_us is not None and event.at_us < query.since_us:
            return False
        if event.type not in RECORDS:
            return (query.denied, query.principal, query.session) == (None, None, None)
        if query.denied is not None and query.denied != (event.type == DENIED):
            return False
        said = record_of(app, event.type, event.at_us, data, names)
        if query.principal is not None and said["principal"] != query.principal:
            return False
        of = query.session
        path = [shown_name(text, names) if hashed else text for text, hashed in data["path"]]
        return of is None or (app, *path) == (of.app, of.user, of.id)

    async def _backwards(
        self, query: AuditQuery, after: _At | None
    ) -> AsyncIterator[tuple[str, Event]]:
        """Yield records, the newest first, of one log or of all. A log is opened only when the
        newest of its records may be next."""
        opened: dict[str, _Backwards] = {}
        async for head in self._heads(query.app):
            async for each in _merged(opened, query.since_us, until_us=head.updated_us):
                yield each
            if query.since_us is not None and head.updated_us < query.since_us:
                break
            before = 0 if after is None else await self._before(head, after)
            log = _Backwards(self._store, head.key, before)
            if await log.look() is not None:
                opened[head.key.id] = log
        async for each in _merged(opened, query.since_us, until_us=None):
            yield each

    async def _heads(self, app: str | None) -> AsyncIterator[Head]:
        """Yield the heads of the logs, the one that was last written to first."""
        if app is None:
            async for head in each_head(self._store, Query(app=AUDIT, order="updated")):
                yield head
            return
        try:
            yield (await self._store.load(log_of(app), tail=0, scopes=False)).head
        except SessionNotFound:
            return

    async def _before(self, head: Head, after: _At) -> int:
        """Return the first seq of a log that stood on the pages before."""
        at_us, app, seq = after
        mine = head.key.id
        if mine == app:
            return seq
        low, high = 1, head.version + 1  # events in a log are in the order of time
        while low < high:
            middle = (low + high) // 2
            (event,) = await self._store.read(
                head.key, after=middle - 1, limit=1, reverse=False, types=None
            )
            if event.at_us > at_us or (event.at_us == at_us and mine > app):
                high = middle
            else:
                low = middle + 1
        return low

    async def _counts(self, events: Sequence[tuple[str, Event]]) -> dict[tuple[str, int], int]:
        """Return how often these denials came again, as it was counted after them."""
        counts: dict[tuple[str, int], int] = {}
        for app in dict.fromkeys([app for app, _ in events]):
            denied = [event for of, event in events if of == app and event.type == DENIED]
            if not denied:
                continue
            until = denied[0].at_us + LATE_US + WINDOW_US
            async for event in self._repeats(log_of(app), denied[-1].seq, until):
                for seq, many in (event.data or {}).get("of", ()):
                    counts[app, seq] = counts.get((app, seq), 0) + many
        return counts

    async def _repeats(self, log: Key, after: int, until_us: int) -> AsyncIterator[Event]:
        while page := await self._store.read(
            log, after=after, limit=_READ_AT_ONCE, reverse=False, types=(REPEATED,)
        ):
            for event in page:
                if event.at_us > until_us:
                    return
                yield event
            after = page[-1].seq

    # --- for exports ----------------------------------------------------------------------------

    async def heads(self, app: str | None) -> list[Head]:
        """Return where the logs stand, in the order of their apps."""
        await self.flush()
        return sorted([head async for head in self._heads(app)], key=lambda head: head.key)

    async def openings(self, data: Mapping[str, Any]) -> dict[str, Opening]:
        """Return the names in a record with the keys of their hashes, as far as they are there."""
        openings = {hash: await self._names.opened(hash) for hash in hashes_in(data)}
        return {hash: opening for hash, opening in openings.items() if opening is not None}


class _Said(msgspec.Struct, frozen=True):
    """A decision, as a caller names it."""

    principal: Principal | str | None
    action: str
    resource: Resource
    allowed: bool
    code: str | None
    policy: str | None
    address: str | None
    via: str | None = None

    @property
    def same(self) -> _Same:
        """Return the key under which repeats of this denial are counted."""
        who = _principal_id(self.principal)
        return (who, self.action, str(self.resource), self.code, self.address)


def _in_thread(
    reopen: Reopen, new_id: Callable[[], str], said: _Said
) -> tuple[Mapping[str, Any], int]:
    """Write a denial from a thread of its own, on a store of its own. Raises StoreError."""

    async def write() -> tuple[Mapping[str, Any], int]:
        store, close = await reopen()
        try:
            return await Audit(store, store.commit, new_id).write_denial(said)
        finally:
            await close()

    written: list[tuple[Mapping[str, Any], int]] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            written.append(asyncio.run(write()))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="limpet audit", daemon=True)
    thread.start()
    thread.join(_NOW_SECONDS)
    if written:
        return written[0]
    if not failed:
        raise StoreBusy("the audit", "a denial is not recorded yet", "try again")
    if isinstance(failed[0], LimpetError):
        raise failed[0]
    raise StoreFailed("the audit", str(failed[0])) from failed[0]


class _NamesShown:
    """Names that one page shows. Kept no longer than that: they may be erased meanwhile."""

    def __init__(self, names: Pseudonyms) -> None:
        self._names, self._looked = names, set[str]()
        self.texts: dict[str, str] = {}

    async def open(self, hashes: Sequence[str]) -> None:
        for hash in hashes:
            if hash not in self._looked:
                self._looked.add(hash)
                if (opening := await self._names.opened(hash)) is not None:
                    self.texts[hash] = opening.name


class _Backwards:
    """One log from its end to its beginning."""

    def __init__(self, store: Store, key: Key, before: int) -> None:
        self._store, self._key, self._before = store, key, before
        self._page: list[Event] = []  # the next one last
        self._ended = before == 1

    async def look(self) -> Event | None:
        """Return the next record without taking it; None at the beginning."""
        if not self._page and not self._ended:
            read = self._store.read
            page = await read(
                self._key, after=self._before, limit=_READ_AT_ONCE, reverse=True, types=RECORDS
            )
            self._page, self._ended = [*reversed(page)], not page
            if page:
                self._before = page[-1].seq
                self._ended = self._before == 1
        return self._page[-1] if self._page else None

    def take(self) -> None:
        self._page.pop()


async def _merged(
    logs: dict[str, _Backwards], since_us: int | None, until_us: int | None
) -> AsyncIterator[tuple[str, Event]]:
    """Take the newest records of these logs, as long as they are newer than `until_us`."""
    while logs:
        heads = [(app, await log.look()) for app, log in logs.items()]
        places = [(event.at_us, app, event.seq) for app, event in heads if event is not None]
        for app, event in heads:
            if event is None:
                del logs[app]
        if not places:
            return
        at_us, app, _ = max(places)
        if until_us is not None and at_us <= until_us:
            return
        if since_us is not None and at_us < since_us:
            logs.clear()
            return
        event = await logs[app].look()
        assert event is not None
        logs[app].take()
        yield app, event


_At = tuple[int, str, int]  # a place among all records: time, app and seq


class _AuditCursor(msgspec.Struct, frozen=True, array_like=True):
    query: AuditQuery
    at: _At


def _cursor(query: AuditQuery, place: _At | None) -> str | None:
    if place is None:
        return None
    raw = msgspec.json.encode(_AuditCursor(query, place))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _place(cursor: str, query: AuditQuery) -> _At:
    """Return the place in a cursor that this very query returned. Raises InvalidCursor."""
    try:
        raw = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        decoded = msgspec.json.decode(raw, type=_AuditCursor)
    except (AttributeError, UnicodeError, binascii.Error, msgspec.MsgspecError, LimpetError):
        raise InvalidCursor from None
    if decoded.query != query or decoded.at[2] < 1:
        raise InvalidCursor
    return decoded.at


def log_of(app: str) -> Key:
    """Return the key of an app's audit."""
    return Key(AUDIT, _LOGS, app or _EVERYTHING)


def _fact(type: str, data: Mapping[str, Any]) -> Fact:
    return Fact(type=type, data=data, actor=SYSTEM)


def _principal_id(principal: Principal | str | None) -> str:
    return principal.id if isinstance(principal, Principal) else (principal or "")[:TEXT_CHARS_MAX]


def _user_in(id: str) -> str | None:
    """Return the user that the id of a principal names, as in `user:ada`."""
    kind, _, name = id.partition(":")
    return name if kind == "user" and name else None


def _unreadable(app: str, event: Event) -> AuditRecord:
    """A record whose body is damaged: `verify` says more."""
    allowed = event.type == ALLOWED
    return AuditRecord(event.at, "", "", app, allowed, "damaged", None, None, 0, event.seq)
