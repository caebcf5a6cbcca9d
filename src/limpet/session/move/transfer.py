"""Copying sessions from one store to another.

The source is read in pages of heads, the oldest session first, and each log from where the target
ends. Pieces of several sessions share a commit; the next pieces are read while the last commit is
under way. Stopped at any point, the target has whole logs that are only shorter, and the next copy
sends what is missing. One session that cannot be copied does not stop the others: it is named. app:
and user: names go where the target has none: each owner's missing names are one commit, guarded by
"the target never had this name", so a name is copied once, whoever else copies or writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from limpet.errors import (
    ArchiveFailed,
    InvalidInput,
    ReservedApp,
    ScopeFull,
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionError,
    SessionExists,
    SessionNotFound,
)
from limpet.model import (
    CHECKPOINTS,
    Base,
    Commit,
    Head,
    Key,
    checkpoints_of,
    encode,
    is_reserved,
    owner_of,
)
from limpet.model.facts.documents import NAMES_APP as NAMES
from limpet.model.facts.phases import archive_place, is_stub
from limpet.model.keys import ARCHIVING, AUDIT, AUDIT_NAMES, MOVING
from limpet.model.limits import OPS_PER_EVENT_MAX
from limpet.session.documents import WHOLE_STORE
from limpet.session.journal import Tries
from limpet.session.life.memory import MEMORY_APP, shared_places
from limpet.session.move.adopter import (
    PIECE_BYTES,
    PIECE_EVENTS,
    PIECE_SESSIONS,
    Adopter,
    Newest,
    check_whole,
    names_in,
    records_in,
    refuse_gone,
)
from limpet.session.move.attachments import (
    PINS_MAX,
    CheckpointMarks,
    blobs_in,
    copy_blobs,
    load_log,
    logs_of,
    marks_read,
    newest_beside,
    piece_beside,
    pinning_commits,
    records_beside,
)
from limpet.session.services import Services
from limpet.store.pages import each_head, head_pages
from limpet.store.protocol import Committed, Loaded, Names, Owner, Progress, Query, plural

REFUSED_NAMED_MAX: Final = 1_000
_REFUSALS: Final = (SessionError, InvalidInput)
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
# Names and checkpoints are sent with what they belong to; what attempts to archive prepare is not.
# The audit is about one store and stays with it.
_LEFT_OUT: Final = frozenset((NAMES, CHECKPOINTS, AUDIT, AUDIT_NAMES, *ARCHIVING, *MOVING))
_OWNERS: Final = 100
_PART_BYTES: Final = 2**20
_FASTER: Final = (SessionConflict, SessionExists)
_UNABLE: Final = (InvalidInput, ScopeFull, SessionDeleted, SessionErased)


class Refused(msgspec.Struct, frozen=True):
    """A session or shared name that could not be copied, and why."""

    what: str  # a session's key, or a shared name and its owner
    code: str
    reason: str
    key: Key | None = None  # of a session


class Copied(msgspec.Struct, frozen=True):
    """The counts of a copy; all are 0 if the target already had everything."""

    sessions: int  # that were sent events
    events: int
    names: int = 0  # app: and user: names that the target did not have
    # Of one session: names that it sees and the target does not have.
    left_out: tuple[str, ...] = ()
    # Forks that came without their parent: what is before reads as removed.
    cut: tuple[Key, ...] = ()
    refused: tuple[Refused, ...] = ()  # the first 1,000
    refusals: int = 0  # how many there were
    blobs: int = 0
    checkpoints: int = 0  # that were made or unpinned since the last copy
    memory: int = 0  # versions of what sessions remember
    checked: int | None = None  # sessions whose logs were compared with the target's, if asked for

    @property
    def ok(self) -> bool:
        """True if everything requested is now in the target."""
        return not self.refusals

    @property
    def sent(self) -> str:
        """The counts, for people."""
        counts = f"{plural(self.sessions, 'session')}, {plural(self.events, 'event')}"
        return f"{counts}, {plural(self.names, 'shared name')} copied"

    def __str__(self) -> str:
        parts = [self.sent]
        parts += [f"left out: {', '.join(self.left_out)}"] if self.left_out else []
        parts += [f"without their parents: {', '.join(map(str, self.cut))}"] if self.cut else []
        if self.refused:
            first = self.refused[0]
            parts.append(f"{self.refusals:,} not copied, the first {first.what}: {first.reason}")
        return "; ".join(parts)


class Transfer:
    """One copy under way."""

    def __init__(self, source: Services, target: Adopter, progress: Progress | None = None) -> None:
        self._services, self._journal = source, source.journal
        self._source = records_in(self._journal)
        self._target, self._progress = target, progress
        self._blobs, self._contained = blobs_in(self._journal), 0  # and how many were sent
        self._outbox = _Outbox(target, self._refuse)
        self._app: str | None = None
        self._owners: set[str] = set()  # whose sessions of that app were copied
        self._logs: dict[Key, Loaded | None] = {}  # of checkpoints, for the sessions of a page
        self._bare = False  # no session of that page has a blob
        # The target began with nothing. What others bring meanwhile is met by the planner: repeats
        # are harmless, another log is refused.
        self._begins = False
        self._early: set[Key] = set()  # parents that were sent before their turn
        self._names = 0
        self._done = self._total = 0
        self._cut: list[Key] = []
        self._refused: list[Refused] = []
        self._refusals = 0

    async def one(self, key: Key) -> Copied:
        """Copy one session. Raises what is in the way."""
        if key.app in (AUDIT, AUDIT_NAMES):
            raise ReservedApp(key.app)
        head = (await self._journal.store.load(key, tail=0, scopes=False)).head
        if is_stub(head.facts):
            raise SessionArchived(key)
        head.check_here()
        self._total = head.version - head.floor
        names = names_in(self._journal)
        left: list[str] = []
        for owner in ((key.app, ""), (key.app, key.user)):
            lacking = await missing(names, self._target, owner)
            left += [*lacking.values, *lacking.unread]
        self._outbox.raises = True
        try:
            await self._session(head)
            await self._outbox.flush()
            if not is_reserved(key.app):
                async for log in logs_of(self._journal, key):
                    await self._send_document(log)
                await self._outbox.flush()
        finally:
            await self._outbox.end()
        self._report(self._total)
        return self._copied(tuple(left))

    async def all(self, app: str | None, user: str | None = None) -> Copied:
        """Copy the sessions of an app, of one user of it, or all, and then the names they share."""
        self._app, self._begins = app, await self._target.is_empty()
        if self._progress is not None:
            async for head in self._heads(app, user, logs=False):
                self._total += head.version - head.floor
        try:
            async for head in self._heads(app, user):
                await self._copy_session(head)
            await self._outbox.flush()
            if app is not None:
                async for log in self._memory_of(app):
                    await self._copy_session(log)
                await self._outbox.flush()
        finally:
            await self._outbox.end()
        names = names_in(self._journal)
        async for owner in owners(names, app):
            if user is not None and owner[1] not in ("", user):
                continue
            set_, unable = await copy_names(names, self._target, owner)
            self._names += set_
            for name, reason in unable.items():
                self._refuse(f"{name} of {_owner_name(owner)}", "name.not_copied", reason)
        self._report(self._total)
        return self._copied()

    async def check(self, copied: Copied, app: str | None, user: str | None) -> Copied:
        """Compare every log with the target's: the same version, ending in the same link.

        A link covers the whole log before it. A session that was written to meanwhile is refused
        too: the copy lacks what was written.
        """
        checked, known = 0, {each.key for each in self._refused}
        async for head in self._heads(app, user, logs=False):
            if head.key in known:
                continue
            checked += 1
            kept = archive_place(head.facts) if is_stub(head.facts) else None
            version = head.version if kept is None else kept["version"]
            link = head.link if kept is None else bytes.fromhex(kept["link"])
            there = await self._target.newest(head.key)
            if (there.seq, there.link) != (version, link):
                reason = f"it is at version {version} here, and at {there.seq} there"
                self._refuse(str(head.key), "copy.differs", reason, head.key)
        return msgspec.structs.replace(
            copied, checked=checked, refused=tuple(self._refused), refusals=self._refusals
        )

    # --- sessions ------------------------------------------------------------------------------

    async def _send_document(self, log: Head) -> None:
        """Send the log of a document that one session remembers. The target's may have ended with
        an earlier session under the key: then it begins again."""
        here = await newest_beside(self._target, log.key)
        if here.seq >= log.version:
            await self._target.check_prefix(log.key, log.version, log.link)
        async for record in records_beside(self._journal, log.key, log.version, here.seq):
            await self._outbox.add(piece_beside(log.key, record))

    async def _memory_of(self, app: str) -> AsyncIterator[Head]:
        """The logs of what the sessions of an app remember, and of what they share."""
        query = Query(app=MEMORY_APP, reverse=False)
        async for head in each_head(self._journal.store, query):
            key = head.key
            shared = key.user == WHOLE_STORE and key.id.startswith(shared_places(app))
            if shared or key.user in self._owners:
                yield head

    async def _heads(
        self, app: str | None, user: str | None = None, *, logs: bool = True
    ) -> AsyncIterator[Head]:
        """Oldest first, which no write changes: each session is met once."""
        query = Query(app=app, user=user, reverse=False, reserved=True)
        async for page in head_pages(self._journal.store, query):
            # Names that were copied into the source stay; checkpoints go with their session.
            heads = [head for head in page.items if head.key.app not in _LEFT_OUT]
            if logs:
                await self._look_up(heads)
            for head in heads:
                yield head

    async def _copy_session(self, head: Head) -> None:
        """Copy a session, after those that it begins on. What is in the way is noted."""
        try:
            # The session, and before it the parents that the target lacks. In order of creation
            # they are mostly there already; a clock that was set back does not change what a fork
            # needs.
            line = [head]
            while line[0].floor:
                base = await self._source.base(line[0].key)
                if base is None or self._app not in (None, base.parent.app):
                    break
                try:
                    if await self._reaches(base):
                        break
                    loaded = await self._journal.store.load(base.parent, tail=0, scopes=False)
                except _GONE:
                    break
                if loaded.head.uid != base.uid:
                    break
                line.insert(0, loaded.head)
            *parents, own = line
            for each in (*parents, own):
                await self._session(each)
                if self._app is not None:
                    self._owners.add(owner_of(each.key.app, each.key.user))
            self._early.update([each.key for each in parents])
        except _REFUSALS as error:
            self._refuse(str(head.key), error.code, str(error), head.key)

    async def _reaches(self, base: Base) -> bool:
        """True if the target has the event that a fork goes on from."""
        if self._outbox.holds(base.parent):
            await self._outbox.flush()
        return (await self._target.newest(base.parent)).seq >= base.floor

    async def _look_up(self, heads: Sequence[Head]) -> None:
        """Look once for a page of sessions: which have checkpoints, and whether any has blobs."""
        store, keys = self._journal.store, [head.key for head in heads]
        some = await store.heads(Query(app=CHECKPOINTS, reserved=True), cursor=None, limit=1)
        logs: Sequence[Loaded | None] = [None] * len(keys)
        if some.items:
            logs = await store.load_many([checkpoints_of(key) for key in keys], tail=0)
        self._logs = dict(zip(keys, logs, strict=True))
        # Blobs that these heads name were put before the heads were read.
        self._bare = self._blobs is None or not await self._blobs.keys(None, after=None, limit=1)

    async def _session(self, head: Head) -> None:
        if self._services.archive is not None and is_stub(head.facts):
            return await self._send_archived(head)
        key, marks = head.key, await self._marks(head)
        if marks.last > head.version:  # it went on since the head was read
            head = (await self._journal.store.load(key, tail=0, scopes=False)).head
        begins = self._begins and key not in self._early
        here = Newest() if begins else await self._target.newest(key)
        if here.seq >= head.version:
            await self._target.check_prefix(key, head.version, head.link)
        self._done += max(here.seq, head.floor) - head.floor
        if here.seq:
            await self._contents(key)
        await self._events(head, here.seq, marks.pins)
        if marks.log.seq and not self._outbox.stopped(key):
            await self._checkpoints(key, marks.log)

    async def _send_archived(self, head: Head) -> None:
        """Send the log of an archived session from its file: a stub in the target would name a file
        that belongs to this store, and goes when either of them needs it no more."""
        from limpet.session.life.archive import read_archived

        key, kept = head.key, archive_place(head.facts)
        assert kept is not None
        here = await self._target.newest(key)
        if here.seq >= kept["version"]:
            return await self._target.check_prefix(
                key, kept["version"], bytes.fromhex(kept["link"])
            )
        await self._outbox.flush()  # what it began on
        try:
            apart = await read_archived(self._services, head)
        except ArchiveFailed as error:
            return self._refuse(str(key), error.code, str(error), key)
        sent = await Transfer(apart, self._target).one(key)
        self._outbox.count(sent)
        self._contained += sent.blobs
        self._cut += sent.cut

    async def _events(self, head: Head, here: int, pins: Mapping[int, int]) -> None:
        """Send the events beyond those that the target has."""
        key, after, begins = head.key, max(here, head.floor), not here
        base = await self._source.base(key) if head.floor and begins else None
        if base is not None:
            try:
                whole = await self._reaches(base)
            except _GONE:
                whole = False
            if not whole:
                self._cut.append(key)
        while after < head.version and not self._outbox.stopped(key):
            alone = begins and await self._has_contents(key)
            limit = 1 if alone else self._outbox.room
            records = await self._source.records(key, after=after, limit=limit)
            try:
                check_whole(key, records, after)
            except SessionCorrupt:
                await refuse_gone(self._journal, head)
                raise
            after = records[-1].event.seq
            for commit in pinning_commits(key, records, pins, base):
                await self._outbox.add(commit)
            base, begins = None, False
            self._report(self._done + len(records))
            if alone:
                await self._outbox.flush()
                if not self._outbox.stopped(key):
                    await self._contents(key)

    async def _marks(self, head: Head) -> CheckpointMarks:
        """Return the marks of a session's checkpoints; empty if it has no checkpoints."""
        key = head.key
        if is_reserved(key.app):
            return CheckpointMarks()
        known = key in self._logs
        log = self._logs[key] if known else await load_log(self._journal.store, key)
        return marks_read(log, head.uid)

    async def _checkpoints(self, key: Key, log: Newest) -> None:
        """Send the log of a session's checkpoints, after all that they stand on."""
        here = await newest_beside(self._target, checkpoints_of(key))
        if here.seq >= log.seq:
            await self._target.check_prefix(checkpoints_of(key), log.seq, log.link)
        async for record in records_beside(self._journal, checkpoints_of(key), log.seq, here.seq):
            await self._outbox.add(piece_beside(checkpoints_of(key), record))

    async def _has_contents(self, key: Key) -> bool:
        if self._blobs is None or (self._bare and key in self._logs):
            return False
        return bool(await self._blobs.page(key, after="", limit=1))

    async def _contents(self, key: Key) -> None:
        if self._blobs is not None:
            self._contained += await copy_blobs(self._blobs, self._target, key)

    # --- names ---------------------------------------------------------------------------------

    # --- the account ---------------------------------------------------------------------------

    def _refuse(self, what: str, code: str, reason: str, key: Key | None = None) -> None:
        self._refusals += 1
        if len(self._refused) < REFUSED_NAMED_MAX:
            self._refused.append(Refused(what, code, reason, key))

    def _report(self, done: int) -> None:
        self._done = done
        if self._progress is not None:
            self._progress(done, max(done, self._total))

    def _copied(self, left_out: tuple[str, ...] = ()) -> Copied:
        refused = (tuple(self._refused), self._refusals)
        sent = (self._outbox.sessions, self._outbox.events)
        beside = (self._contained, self._outbox.checkpoints, self._outbox.memory)
        return Copied(*sent, self._names, left_out, tuple(self._cut), *refused, *beside)


class _Outbox:
    """Pieces on their way to the target: some waiting, and the commit of others under way."""

    def __init__(self, target: Adopter, refuse: Callable[[str, str, str, Key], None]) -> None:
        self._target, self._refuse = target, refuse
        self._waiting: list[Commit] = []
        self._events = self._bytes = self._pins = 0  # that wait
        self._flight: asyncio.Task[None] | None = None
        self._flying: frozenset[Key] = frozenset()
        self._stopped: set[Key] = set()  # refused by the last commit: no more of them is sent
        self._last: Key | None = None
        self.raises = False  # what is refused is an error, not an entry of the account
        self.sessions = self.events = self.checkpoints = self.memory = 0  # that were sent

    @property
    def room(self) -> int:
        """Return how many events still fit."""
        return PIECE_EVENTS - self._events

    def holds(self, key: Key) -> bool:
        return key in self._flying or any([commit.key == key for commit in self._waiting])

    def stopped(self, key: Key) -> bool:
        return key in self._stopped

    async def add(self, commit: Commit) -> None:
        self._waiting.append(commit)
        self._events += len(commit.drafts)
        self._bytes += sum([len(draft.raw) for draft in commit.drafts])
        self._pins += commit.pin is not None
        full = self._events >= PIECE_EVENTS or self._bytes >= PIECE_BYTES
        if full or len(self._waiting) >= PIECE_SESSIONS or self._pins >= PINS_MAX:
            await self._launch()

    def count(self, sent: Copied) -> None:
        """Count what was sent in another way."""
        self.sessions += sent.sessions
        self.events += sent.events
        self.checkpoints += sent.checkpoints

    async def flush(self) -> None:
        """Return when all that waits was recorded or refused."""
        await self._launch()
        await self._land()

    async def end(self) -> None:
        """Let what is under way come to its end, also when the copy has failed."""
        if self._flight is not None:
            await asyncio.wait([self._flight])

    async def _launch(self) -> None:
        await self._land()
        batch = [commit for commit in self._waiting if commit.key not in self._stopped]
        self._waiting, self._events, self._bytes, self._pins = [], 0, 0, 0
        if batch:
            self._flying = frozenset([commit.key for commit in batch])
            self._flight = asyncio.create_task(self._send(batch))

    async def _land(self) -> None:
        flight, self._flight, self._flying = self._flight, None, frozenset()
        if flight is not None:
            self._stopped.clear()
            try:
                await asyncio.shield(flight)
            except asyncio.CancelledError:
                self._flight = flight  # `end` waits for it
                raise

    async def _send(self, batch: Sequence[Commit]) -> None:
        try:
            self._count(batch, await self._target.commit(batch))
        except _REFUSALS as error:
            if self.raises:
                raise
            if len(batch) == 1:
                key = batch[0].key
                self._stopped |= {key, checkpoints_of(key)}
                self._refuse(str(key), error.code, str(error), key)
                return
            for commit in batch:  # one at a time: one that is refused stops no other
                if commit.key not in self._stopped:
                    await self._send((commit,))

    def _count(self, batch: Sequence[Commit], answers: Sequence[Committed]) -> None:
        for commit, answer in zip(batch, answers, strict=True):
            fresh = len(answer.events) - answer.repeated
            if commit.key.app == CHECKPOINTS:
                self.checkpoints += fresh
                continue
            if commit.key.app == MEMORY_APP:
                self.memory += fresh
                continue
            self.events += fresh
            self.sessions += bool(fresh) and commit.key != self._last
            self._last = commit.key


# --- app: and user: names ------------------------------------------------------------------------


class MissingNames(msgspec.Struct):
    """The names of one owner that a target does not have, and those that cannot be copied."""

    values: dict[str, Any]
    unread: dict[str, str]  # and why


async def owners(source: Names, app: str | None) -> AsyncIterator[Owner]:
    """Everybody who has names, in order."""
    after: Owner | None = None
    while page := await source.owners(app, after=after, limit=_OWNERS):
        for owner in page:
            yield owner
        after = page[-1]


async def missing(source: Names, target: Adopter, owner: Owner) -> MissingNames:
    """Return the names that an owner has in the source and never had in the target."""
    has = await source.names_of(*owner)
    there = await target.names_of(*owner) if has else {}
    names = MissingNames({}, {})
    for name in has:
        scope = has[name]
        if scope.deleted or name in there:
            continue
        if scope.damage is not None:
            names.unread[name] = scope.damage
        else:
            names.values[name] = scope.value
    return names


async def copy_names(source: Names, target: Adopter, owner: Owner) -> tuple[int, dict[str, str]]:
    """Copy an owner's missing names: how many were set, and why others could not be.

    A value that is too large for one event cannot be copied; nor can a name for which the target
    has no room, or whose owner was erased there.
    """
    unable: dict[str, str] = {}
    done = 0
    async for left in Tries():
        names = await missing(source, target, owner)
        waiting = _shared({n: v for n, v in names.values.items() if n not in unable})
        try:
            for values in waiting:
                done += await _write(target, owner, values, unable)
        except _FASTER:  # another writer was first: see what is still missing
            if left:
                continue
            break
        return done, names.unread | unable
    raise SessionConflict(f"{owner[0]}/{owner[1]}", "name", 0, "another", "a shared name")


async def _write(
    target: Adopter, owner: Owner, values: Mapping[str, Any], unable: dict[str, str]
) -> int:
    """Set these names, or one at a time if together they are refused."""
    try:
        await target.write_names(owner, values)
    except _FASTER:
        raise
    except _UNABLE as error:
        if len(values) == 1:
            unable |= dict.fromkeys(values, str(error))
            return 0
        return sum([await _write(target, owner, {n: v}, unable) for n, v in values.items()])
    return len(values)


def _shared(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The names in parts that fit an event; a value that is larger has one to itself."""
    part: dict[str, Any] = {}
    size = 0
    for name, value in values.items():
        more = len(encode(value))
        if part and (size + more > _PART_BYTES or len(part) == OPS_PER_EVENT_MAX):
            yield part
            part, size = {}, 0
        part[name] = value
        size += more
    if part:
        yield part


def _owner_name(owner: Owner) -> str:
    return f"{owner[0]}/{owner[1]}" if owner[1] else f"the app {owner[0]}"
