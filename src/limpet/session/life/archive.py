"""Archiving: a session's log moves to cold storage and back. Its head stays in the store.

A key belongs to the log itself or to a stub, which names the one file that has the log. The store
exchanges the two in one transaction, and only if the log stands where the file ends, so no moment
exists at which a reader finds neither, or a part. Each attempt has a file name of its own and keeps
what it prepares under a key of its own in the store:

    $$archive-stubs     a stub whose file is being written, named by the file
    $$archive-logs      a log on its way back, with the log of its checkpoints
    $$archive-discards  files that no stub names and none ever will: they are removed
    $$archive-moves     where a session is to go, for whoever finishes what was interrupted

A file that a stub under a session's key does not name has its entry in the first or the third. A
process that dies leaves such entries behind; the next attempt or sweep removes them.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from limpet.errors import (
    ArchiveDamaged,
    ArchiveFailed,
    BundleRefused,
    InvalidInput,
    InvalidKey,
    InvalidTransition,
    SealUnavailable,
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    StoreFull,
)
from limpet.model import (
    EMPTY,
    Commit,
    Fact,
    FrozenDict,
    Head,
    Key,
    Lease,
    canonical,
    checkpoints_of,
    owner_of,
)
from limpet.model.facts import phases as facts
from limpet.model.facts.documents import VALUE, document_created
from limpet.model.facts.phases import ARCHIVED, rule
from limpet.model.facts.retention import RETENTION_SET
from limpet.model.facts.timeouts import Timeouts, timeouts_in, timeouts_set
from limpet.model.facts.view import with_changes
from limpet.model.head import stub as stub_created
from limpet.model.keys import (
    ARCHIVE_DISCARDS as DISCARDS,
    ARCHIVE_LOGS as LOGS,
    ARCHIVE_MOVES as UNDER_WAY,
    ARCHIVE_STUBS as STUBS,
)
from limpet.model.limits import COMMIT_BYTES_MAX
from limpet.session.documents import WHOLE_STORE, Internal, Put
from limpet.session.history.checkpoints import journal_with_checkpoints
from limpet.session.journal import Journal, Tries
from limpet.session.life.archive_storage import Archive, folder_of, home_of, name_of
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, Transition
from limpet.session.life.transitions import PhaseChange
from limpet.session.loggers import SESSION
from limpet.session.move.attachments import load_log
from limpet.session.move.import_export import adopt_bundle, export_session, prove_bundle
from limpet.session.performed import ask_server, server_of
from limpet.session.runs.delegation import children_elsewhere, head_of
from limpet.session.services import Metrics, Services
from limpet.session.writer import Handle, writer_of
from limpet.store.coding.files import FileSeal, SealedPath, file_seal, is_sealed
from limpet.store.memory import MemoryStore
from limpet.store.pages import each_head, head_pages
from limpet.store.protocol import Committed, Ending, Exchange, Query, Standing
from limpet.store.system import in_thread

# After so long whoever prepared something is taken for dead. Alive, it has to begin again.
ATTEMPT_US: Final = 24 * 3_600 * 1_000_000
OUTAGES_MAX: Final = 8  # in one sweep: each may take as long as a request may
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
_FASTER: Final = (*_GONE, SessionArchived)  # another process has dealt with it


# --- to the archive ------------------------------------------------------------------------------


async def archive_session(
    session: Handle, actor: str, *, reason: str | None = None, release: Lease | None = None
) -> Transition:
    """End the hot life of a completed or terminated session, or go on where that was interrupted.

    Raises InvalidTransition if there is nothing to go on with.
    """
    writer = writer_of(session)
    services = writer.services.system  # its rows and its file are the system's to move
    journal, archive = services.journal, services.archive
    if (server := server_of(journal)) is not None:
        archived: Transition = await ask_server(server, "archive", session.key, actor)
        journal.hub.touch(session.key)
        try:
            await writer.load(tail=1)
        except SessionArchived:  # its rows are gone: of what is known, only the phase has changed
            if (known := writer.known.maybe_head) is not None:
                changed = with_changes(known.facts, {"phase": ARCHIVED})
                writer.known.maybe_head = msgspec.structs.replace(known, facts=changed)
        return archived
    done = Transition(ARCHIVED, ("move_to_archive",), None, ARCHIVED, "archive")
    try:
        await writer.load(tail=1)
    except SessionArchived:
        rule(ARCHIVED, "archive")  # raises: the table has no such transition
    head = writer.known.head
    if head.phase == ARCHIVED and archive is None:
        rule(ARCHIVED, "archive")
    if head.phase != ARCHIVED:
        puts: tuple[Put, ...] = ()
        if archive is not None:  # with the transition: whoever comes next knows what is left to do
            puts = (_wanted(head, journal, "archive", actor),)
        (done,) = await PhaseChange(
            session, ("archive",), reason=reason, actor=actor, release=release, puts=puts
        ).run()
    if archive is not None:
        intent = await _intent(journal, session.key)
        await _move_rows(services, archive, session.key)
        await _settle(journal, session.key, intent, "archive")
    return done


async def _move_rows(services: Services, archive: Archive, key: Key) -> None:
    """Put an archived session's log into the archive, and the stub in the place of its rows.

    Until they go, how it is kept may be said, a checkpoint made, and it may even be unarchived:
    the rows go only where they are what the file has.
    """
    journal = services.journal
    while True:
        head = await head_of(journal, key)
        if head is None or head.phase != ARCHIVED or facts.archive_place(head.facts) is not None:
            break  # ended, taken back, or done
        log = await load_log(journal.store, key)
        at = Standing(head.uid, head.version, 0 if log is None else log.head.version)
        try:
            async with archive_upload(journal, archive, key, at) as file:
                if file is not None and await _is_exchanged(journal, archive, head, at, file):
                    journal.hub.touch(key)
                    break
        except _GONE:  # it was deleted or erased, or another was faster: looked at again
            continue
    await clear(services, key)


async def _is_exchanged(
    journal: Journal, archive: Archive, head: Head, at: Standing, file: ArchiveUpload
) -> bool:
    """Put the file into the archive and the stub under the key. False if the session went on."""
    stub = Key(STUBS, WHOLE_STORE, file.name)
    children = await children_elsewhere(journal, head)
    fact = stub_created(head, file.name, file.size, file.sha256, children)
    await journal.commit((Commit(stub, (journal.prepare(fact, LIFECYCLE_ACTOR),), 0),))
    late = True  # until the archive has answered, the file may still come
    try:
        await file.put()
        late = False
        if await journal.store.exchange([Exchange(head.key, at, stub)]):
            return True
    except ArchiveFailed:
        if await head_of(journal, stub) is None:
            return False  # another was faster, and has removed the file with its stub
        await _discard(journal, archive, stub, late=late)
        raise
    await _discard(journal, archive, stub, late=False)
    return False


# --- and back ------------------------------------------------------------------------------------


async def unarchive_session(session: Handle, actor: str) -> Transition:
    """Bring the log back, and the phase that it had before. Nothing was loaded yet.

    Raises InvalidTransition if it is not archived.
    """
    writer, key = writer_of(session), session.key
    services = writer.services
    journal = services.journal
    if (server := server_of(journal)) is not None:
        undone: Transition = await ask_server(server, "unarchive", key, actor)
        journal.hub.touch(key)
        await writer.load(tail=1)
        return undone
    async for left in Tries():
        head = (await journal.store.load(key, tail=0, scopes=False)).head
        try:
            if facts.archive_place(head.facts) is None:
                await writer.load(tail=1)
                before = writer.known.head.facts.get("archived_from")
                (done,) = await PhaseChange(session, ("unarchive",), actor=actor, to=before).run()
                break
            await _bring_back(services, head, actor)
        except (InvalidTransition, SessionArchived):  # or it was archived once more meanwhile
            if not left or not await _is_archived_here(journal, key):
                await clear(services, key)  # of whoever brought it back, and was interrupted
                raise
        except (ArchiveFailed, SessionDeleted, SessionNotFound):
            now = await head_of(journal, key)
            if not left or (now is not None and now.uid == head.uid):
                raise
            # Else another was faster: it is looked at again.
    else:
        raise SessionConflict(key, "session", 0, None)
    await clear(services, key)
    await _settle(journal, key, await _intent(journal, key), "store")
    return done


async def _bring_back(services: Services, head: Head, actor: str) -> None:
    """Put the log in the place of its stub. A file that does not prove itself changes nothing."""
    journal = services.journal
    async with archived_file(services, facts.archive_place(head.facts)) as file:
        from limpet.session.documents import commit_puts

        at = Commit(head.key, (), uid=head.uid)  # or it was exchanged meanwhile: SessionDeleted
        await commit_puts(journal, (at,), (_wanted(head, journal, "store", actor),))
        log = _log_key(journal, head)
        try:
            await adopt_bundle(journal, file.path, file.pins, log)
            await _replace_stub(journal, head, log)
        finally:
            await _drop_log(journal, log)


async def _replace_stub(journal: Journal, head: Head, log: Key) -> bool:
    """Put the log that arrived in the place of the stub, whose file is discarded with it. False if
    another was faster. How the session is kept may be said to the stub until then."""
    key, place = head.key, facts.archive_place(head.facts)
    assert place is not None
    discard = await _staged_discard(journal, str(place["place"]), late=False)
    checkpoints = await head_of(journal, checkpoints_in(log))
    stub: Head | None = head
    try:
        while stub is not None and stub.uid == head.uid:
            await _keep_said(journal, log, stub)
            exchanges = [Exchange(key, Standing(stub.uid, stub.version), log), discard]
            if checkpoints is not None:
                exchanges.append(Exchange(checkpoints_of(key), None, checkpoints.key))
            if await journal.store.exchange(exchanges):
                journal.hub.touch(key)
                return True
            stub = await head_of(journal, key)
    finally:  # of no use, unless it took its key
        assert discard.by is not None
        await journal.store.delete(discard.by, ending="moved")
    return False


async def _keep_said(journal: Journal, log: Key, stub: Head) -> None:
    """Record in a log that arrived how the session is to be kept, as it was said to its stub."""
    head = (await journal.store.load(log, tail=0, scopes=False)).head
    new: list[Fact] = []
    if _said(stub, "timeouts") != _said(head, "timeouts"):
        wanted = timeouts_in(FrozenDict(timeouts=_said(stub, "timeouts")))
        new.append(timeouts_set(wanted or Timeouts()))
    if _said(stub, "retention") != _said(head, "retention"):
        new.append(Fact(type=RETENTION_SET, data={"retention": _said(stub, "retention")}))
    if new:
        drafts = tuple([journal.prepare(fact, LIFECYCLE_ACTOR) for fact in new])
        await journal.commit((Commit(log, drafts, uid=head.uid),))


def _said(head: Head, what: str) -> dict[str, Any]:
    return dict(head.facts.get(what, EMPTY))


async def _is_archived_here(journal: Journal, key: Key) -> bool:
    head = await head_of(journal, key)
    return head is not None and head.phase == ARCHIVED


async def read_archived(services: Services, head: Head) -> Services:
    """A store in memory that holds nothing but this session, as its file has it. What it remembers
    stays where it is, and is read there."""
    async with _log_of(services, head) as file:
        store = _ReadOnlyStore()
        journal, metrics = services.journal, Metrics()
        apart = journal_with_checkpoints(store, journal.new_id, journal.now_us, metrics)
        await adopt_bundle(apart, file.path, file.pins)
        store.is_read = True
    return Services(apart, services.documents, metrics, {}, services.resume)


@asynccontextmanager
async def _log_of(services: Services, head: Head) -> AsyncIterator[ArchivedFile]:
    """The file of an archived session: from the archive, or through the server that has it."""
    if (server := server_of(services.journal)) is None:
        async with archived_file(services, facts.archive_place(head.facts)) as file:
            yield file
        return
    raw = await ask_server(server, "archived_bundle", head.key)
    with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
        path = Path(folder) / "session.limpet"
        await in_thread(lambda: path.write_bytes(raw))
        yield ArchivedFile(path, (await prove_bundle(path)).pins)


async def archived_bundle(services: Services, key: Key) -> bytes:
    """The file of an archived session, opened, for a client that has no archive. Raises
    SessionNotFound if the session is not archived, InvalidInput if it is too large to be sent."""
    head = await head_of(services.journal, key)
    place = None if head is None else facts.archive_place(head.facts)
    if place is None:
        raise SessionNotFound(key)
    if place["bytes"] > COMMIT_BYTES_MAX:
        raise InvalidInput(
            f"the archived log of {key} has {place['bytes']:,} bytes, more than a server sends at "
            f"once ({COMMIT_BYTES_MAX:,}). Bring it back with lp.unarchive(key), then read it."
        )
    async with archived_file(services, place) as file:

        def read() -> bytes:
            with file.path.open("rb") as opened:
                return opened.read()

        return await in_thread(read)


class _ReadOnlyStore(MemoryStore):
    """The log of an archived session, to be read: what is written here would be lost."""

    is_read = False

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        if self.is_read:
            raise SessionArchived(commits[0].key)
        return await super().commit(commits)


# --- ending what is archived ---------------------------------------------------------------------


async def end_session(services: Services, key: Key, ending: Ending = "deleted") -> bool:
    """Delete a session, and the file of one that is archived. False if there is none.

    The file goes first: if the archive fails, the session stays. Decided on what stands under the
    key, and decided again if that was exchanged meanwhile: no file outlives its session.
    """
    journal = services.journal
    deleted = False
    while (head := await head_of(journal, key)) is not None:
        await remove_file(services, head)
        at = Standing(head.uid, None)
        deleted = await journal.store.delete(key, ending=ending, at=at)
        if deleted:
            break
    await forget_moves(services, key)
    return deleted


async def remove_file(services: Services, head: Head) -> bool:
    """Remove the file that a stub names; False if it names none. Raises ArchiveFailed if the
    archive goes on listing it."""
    place = facts.archive_place(head.facts)
    if place is None:
        return False
    archive, name = archive_of(services), str(place["place"])
    await archive.remove(name)
    if name in await archive.names(name.rpartition("/")[0]):
        raise ArchiveFailed(archive.url, "removed", "deleted files are still listed")
    return True


async def forget_moves(services: Services, key: Key, *, erased: bool = False) -> None:
    """Forget that a session which has ended is on its way to the archive or back."""
    journal = services.journal
    intent = _intents(journal, key).key(key.id)
    if not erased:
        await journal.store.delete(intent, ending="moved")
    elif await _was_there(journal, intent):  # its key names the session
        await journal.store.erase(intent)
    await clear(services, key, erased=erased)


async def forget_user(services: Services, app: str, user: str) -> None:
    """Forget what of a user who was erased is on its way to the archive or in it."""
    journal = services.journal
    folder = folder_of(app, user)
    async for stub in _heads(journal, STUBS, WHOLE_STORE, f"{folder}/"):
        await _discard(journal, services.archive, stub.key, late=True, erased=True)
    if services.archive is not None:
        await _remove_unnamed(journal, services.archive, folder, Query(app=app, user=user))


async def remove_unnamed(services: Services, key: Key) -> None:
    """Remove the files of an erased session that no stub names."""
    if services.archive is not None:
        query = Query(app=key.app, user=key.user, order="key", reverse=False, prefix=key.id)
        await _remove_unnamed(services.journal, services.archive, home_of(key), query)


async def _remove_unnamed(journal: Journal, archive: Archive, folder: str, query: Query) -> None:
    """Remove the files in a folder that none of these sessions' stubs names.

    In this order: a file that is listed has its staged stub until a session's stub names it.
    """
    if not (names := await archive.names(folder)):
        return
    needed = {head.key.id async for head in _heads(journal, STUBS, WHOLE_STORE, f"{folder}/")}
    async for head in each_head(journal.store, query):
        if (place := facts.archive_place(head.facts)) is not None:
            needed.add(str(place["place"]))
    gone = [name for name in names if name not in needed]
    for name in gone:
        await archive.remove(name)
    if gone and not set(gone).isdisjoint(await archive.names(folder)):
        raise ArchiveFailed(archive.url, "removed", "deleted files are still listed")


# --- what was interrupted ------------------------------------------------------------------------


async def finish(session: Handle) -> bool:
    """Finish a move of this session that was interrupted. False if there is none."""
    services, key = writer_of(session).services, session.key
    journal = services.journal
    intent = await _intent(journal, key)
    if intent is None:
        return False
    move, head = intent[0], await head_of(journal, key)
    if head is not None and _is_of(head, move.uid):
        if move.to == "store":
            with suppress(InvalidTransition):  # it is back
                await unarchive_session(session, LIFECYCLE_ACTOR)
        else:
            await _move_rows(services, archive_of(services), key)
    await _settle(journal, key, intent, move.to)
    return True


def _is_of(head: Head, uid: str | None) -> bool:
    """True if the head is that of this session, or of the stub that stands for it."""
    place = facts.archive_place(head.facts)
    return uid == (head.uid if place is None else place["uid"])


async def finish_all(
    services: Services,
    session_of: Callable[[Key], Handle],
    limit: int = 100,
    *,
    tried: Container[Key] = (),
) -> list[tuple[Key, Exception]]:
    """Finish what processes that died have left between the store and the archive; what failed.

    Without an archive they are left to a process that has it open; `tried` failed a moment ago. At
    most `limit` of them, those not counted that fail by themselves; and no more once the archive
    has failed OUTAGES_MAX times, as one that is out of reach does. In random order: what fails in
    every sweep, because its file is lost, keeps none waiting for good.
    """
    journal = services.journal
    if services.archive is None:
        return []
    failed: list[tuple[Key, Exception]] = []
    keys = [key for key in await sessions_in_transit(journal) if key not in tried]
    random.shuffle(keys)
    for key in keys:
        if limit <= 0 or _outages(failed) >= OUTAGES_MAX:
            break
        try:
            await finish(session_of(key))
        except _FASTER:
            continue
        except Exception as error:  # an archive that is out of reach must stop no other work
            failed.append((key, error))
        else:
            limit -= 1
    await _collect(journal, services.archive, failed)
    return failed


def _outages(failed: list[tuple[Key, Exception]]) -> int:
    """Return how many of these failures were the archive's."""
    return sum(isinstance(error, ArchiveFailed) for _, error in failed)


async def sessions_in_transit(journal: Journal) -> list[Key]:
    """Return the keys of all sessions whose move to or from the archive is not finished."""
    query = Query(app=UNDER_WAY, order="key", reverse=False)
    keys: list[Key] = []
    async for page in head_pages(journal.store, query, states=True):
        for head in page.items:
            move = page.states.get(head.key, EMPTY).get(VALUE)
            key = None if move is None else _key_in(move, head.key)
            if key is not None:
                keys.append(key)
    return keys


async def _collect(journal: Journal, archive: Archive, failed: list[tuple[Key, Exception]]) -> None:
    """Remove what attempts that came to nothing have left, in the store and in the archive."""
    for app, collect in (
        (STUBS, _collect_stub),
        (LOGS, _collect_log),
        (DISCARDS, _collect_discard),
    ):
        async for head in _heads(journal, app):
            if _outages(failed) >= OUTAGES_MAX:
                return
            try:
                await collect(journal, archive, head)
            except _FASTER:
                continue
            except Exception as error:
                failed.append((head.key, error))


async def _collect_stub(journal: Journal, archive: Archive, stub: Head) -> None:
    """Discard a stub that can never take the key of its session, or whose maker is dead."""
    if journal.now_us() - stub.updated_us > ATTEMPT_US or not await _may_exchange(journal, stub):
        await _discard(journal, archive, stub.key, late=True)


async def _may_exchange(journal: Journal, stub: Head) -> bool:
    """True if the session that a staged stub is for still stands where the stub's file ends."""
    place = facts.archive_place(stub.facts) or EMPTY
    if "key" not in place:
        return True
    head = await head_of(journal, Key(*place["key"]))
    return head is not None and (head.uid, head.version) == (place["uid"], place["version"])


async def _collect_log(journal: Journal, archive: Archive, log: Head) -> None:
    begun_us = log.key.id.split("/")[-1].partition("-")[0]
    if not begun_us.isdecimal() or journal.now_us() - int(begun_us) > ATTEMPT_US:
        await journal.store.delete(log.key, ending="moved")


async def _collect_discard(journal: Journal, archive: Archive, discard: Head) -> None:
    await _remove_discarded(journal, archive, discard.key.id)


async def clear(services: Services, key: Key, *, erased: bool = False) -> None:
    """Remove what attempts have prepared for this session and can use no more, and its files that
    no stub names. What the archive does not remove now is left to a sweep.

    If the session was `erased`, all of it goes, so that nothing of it can be read.
    """
    journal = services.journal
    async for stub in _heads(journal, STUBS, WHOLE_STORE, f"{home_of(key)}/"):
        if erased or not await _may_exchange(journal, stub):
            await _discard(journal, services.archive, stub.key, late=True, erased=erased)
    head = await head_of(journal, key)
    current = "" if head is None else f"{_log_prefix(key)}{head.uid}/"
    async for log in _heads(journal, LOGS, owner_of(key.app, key.user), _log_prefix(key)):
        if erased:
            await journal.store.erase(log.key)
        elif not current or not log.key.id.startswith(current):
            await journal.store.delete(log.key, ending="moved")
    if (archive := services.archive) is not None:
        async for discard in _heads(journal, DISCARDS, WHOLE_STORE, f"{home_of(key)}/"):
            with suppress(ArchiveFailed):
                await _remove_discarded(journal, archive, discard.key.id)


async def _was_there(journal: Journal, key: Key) -> bool:
    """True if a log has this key, or had it."""
    try:
        await journal.store.load(key, tail=0, scopes=False)
    except (SessionNotFound, SessionErased):
        return False
    except (SessionDeleted, SealUnavailable):
        pass
    return True


# --- private -------------------------------------------------------------------------------------


class _Move(msgspec.Struct, frozen=True):
    """The document of a move: where to, and of which session."""

    to: Literal["archive", "store"]
    owner: tuple[str, str]
    uid: str


def _intents(journal: Journal, key: Key) -> Internal:
    return Internal(journal, UNDER_WAY.removeprefix("$$"), owner=(key.app, key.user))


def _key_in(move: Any, at: Key) -> Key | None:
    """The session that a document of a move at this place speaks of; None if it is of none."""
    try:
        app, user = msgspec.convert(move, _Move).owner
        key = Key(app, user, at.id)
    except (msgspec.ValidationError, InvalidKey):
        key = None
    if key is None or owner_of(key.app, key.user) != at.user:
        SESSION.warning("document has another form: session=%s", at)
        return None
    return key


def _wanted(head: Head, journal: Journal, to: str, actor: str) -> Put:
    """Return the document of a move, so that another process can continue it."""
    key, place = head.key, facts.archive_place(head.facts)
    uid = head.uid if place is None else place["uid"]
    move = {"to": to, "owner": [key.app, key.user], "uid": uid}
    return Put(_intents(journal, key), key.id, move, actor=actor)


async def _intent(journal: Journal, key: Key) -> tuple[_Move, Standing] | None:
    """Return the unfinished move of a session and where its document stands; None if none is."""
    intents = _intents(journal, key)
    log = await head_of(journal, intents.key(key.id))  # what is newer than this is not settled
    document = None if log is None else await intents.find(key.id)
    move = None if document is None else intents.decoded(document, _Move)
    return None if log is None or move is None else (move, Standing(log.uid, log.version))


async def _settle(
    journal: Journal, key: Key, intent: tuple[_Move, Standing] | None, to: str
) -> None:
    """Note that nothing is under way any more. What another has begun since stays."""
    if intent is not None and intent[0].to == to:
        await journal.store.delete(_intents(journal, key).key(key.id), ending="moved", at=intent[1])


def _log_prefix(key: Key) -> str:
    return f"{sha256(canonical(key.id)).hexdigest()[:32]}/"


def _log_key(journal: Journal, stub: Head) -> Key:
    """Return the key under which a log arrives that is to take the place of this stub."""
    key, attempt = stub.key, f"{journal.now_us()}-{journal.new_id()}"
    owner = owner_of(key.app, key.user)  # with whom it is erased
    return Key(LOGS, owner, f"{_log_prefix(key)}{stub.uid}/{attempt}")


def checkpoints_in(log: Key) -> Key:
    """Return the key under which the log of its checkpoints arrives."""
    return Key(log.app, log.user, f"{log.id}-checkpoints")


async def _drop_log(journal: Journal, log: Key) -> None:
    """Remove what arrived and was not needed."""
    for key in (log, checkpoints_in(log)):
        await journal.store.delete(key, ending="moved")


async def _staged_discard(journal: Journal, name: str, *, late: bool) -> Exchange:
    """Return the exchange that lists a file for removal, to be made with what makes it unneeded.

    `late`: another process may still be writing it, so that it has to be removed once more.
    """
    stage = Key(LOGS, WHOLE_STORE, f"{journal.now_us()}-{journal.new_id()}")
    until_us = journal.now_us() + ATTEMPT_US if late else 0
    key = Key(DISCARDS, WHOLE_STORE, name)
    fact = document_created(key, {"until_us": until_us}, actor=LIFECYCLE_ACTOR)
    await journal.commit((Commit(stage, (journal.prepare(fact, None),), 0),))
    return Exchange(key, None, stage)


async def _discard(
    journal: Journal, archive: Archive | None, stub: Key, *, late: bool, erased: bool = False
) -> None:
    """A staged stub will take no key any more: it goes, and then its file.

    If the archive cannot remove the file now, or is not open, a sweep does it later.
    """
    discard = await _staged_discard(journal, stub.id, late=late)
    assert discard.by is not None
    head = await head_of(journal, stub)
    ended = None if head is None else Exchange(stub, Standing(head.uid, None))
    if ended is None or not await journal.store.exchange([ended, discard]):
        await journal.store.delete(discard.by, ending="moved")  # it took its key, or is discarded
    elif erased:
        await journal.store.erase(stub)
    if archive is not None:
        with suppress(ArchiveFailed):
            await _remove_discarded(journal, archive, stub.id)


async def _remove_discarded(journal: Journal, archive: Archive, name: str) -> None:
    """Remove a file that no stub names, if it is among those; raises ArchiveFailed."""
    key = Key(DISCARDS, WHOLE_STORE, name)
    head = await head_of(journal, key)
    if head is None:
        return
    state = (await journal.store.load(key, tail=0, scopes=False)).fields.get(VALUE, EMPTY)
    await archive.remove(name)
    if state.get("until_us", 0) <= journal.now_us():
        await journal.store.delete(key, ending="moved", at=Standing(head.uid, None))


async def _heads(
    journal: Journal, app: str, user: str | None = None, prefix: str = ""
) -> AsyncIterator[Head]:
    """The logs of a reserved app, in the order of their keys."""
    query = Query(app=app, user=user, order="key", reverse=False, prefix=prefix)
    async for head in each_head(journal.store, query):
        yield head


_NO_ARCHIVE: Final = (
    "the session is in an archive and none is open. Open the store with "
    "limpet.open(url, archive='file:///directory'), or pass --archive to the command."
)


class ArchivedFile(NamedTuple):
    """The file of a session, proved, and where its full checkpoints stand."""

    path: SealedPath | Path
    pins: Mapping[int, int]


class ArchiveUpload:
    """The file of a session on its way into an archive, under a name that no other file has."""

    def __init__(
        self, archive: Archive, made: Path, seal: FileSeal, size: int, sha256: str
    ) -> None:
        self._archive, self._made, self._seal = archive, made, seal
        self.name, self.size, self.sha256 = seal.name, size, sha256

    async def put(self) -> None:
        """Put it there, read it back and prove it. Raises ArchiveFailed."""
        await self._archive.put(self.name, self._made)
        back = self._made.with_name("back")
        await self._archive.fetch(self.name, back)
        if await _digest_of(back) != (self.size, self.sha256):
            url = self._archive.url
            raise ArchiveFailed(url, "verified", "the file that came back differs")
        try:
            await prove_bundle(self._seal.at(back))
        except ArchiveDamaged as error:
            raise ArchiveFailed(self._archive.url, "verified", error.reason) from error


@asynccontextmanager
async def archive_upload(
    journal: Journal, archive: Archive, key: Key, at: Standing
) -> AsyncIterator[ArchiveUpload | None]:
    """The file of a session that stands there, for as long as the block lasts; None if the session
    went on. Raises ArchiveFailed, also if there is no space for the file."""
    name = name_of(key, journal.new_id())
    seal = file_seal(journal.store, "archive", at.uid, name)
    await seal.ready()
    async with _folder(archive, "written") as folder:
        made = folder / "made"
        if await _is_exported(journal, archive, key, at, made, seal):
            yield ArchiveUpload(archive, made, seal, *await _digest_of(made))
        else:
            yield None


async def _is_exported(
    journal: Journal, archive: Archive, key: Key, at: Standing, made: Path, seal: FileSeal
) -> bool:
    """Write the session to a file. False if it does not stand there any more."""
    try:
        head = await export_session(journal, key, made, seal if seal.seals else None)
    except StoreFull as error:
        raise ArchiveFailed(archive.url, "written", os.strerror(errno.ENOSPC)) from error
    except BundleRefused as error:
        raise ArchiveFailed(archive.url, "written", error.reason) from error
    except SessionArchived:
        return False
    except SessionCorrupt:  # or its rows went while they were read
        here = await head_of(journal, key)
        if here is not None and (here.uid, here.version) == at[:2]:
            raise
        return False
    return (head.uid, head.version) == at[:2]


@asynccontextmanager
async def archived_file(services: Services, place: Any) -> AsyncIterator[ArchivedFile]:
    """The file of an archived session, for as long as the block lasts, proved. Raises."""
    journal = services.journal
    archive = archive_of(services)
    async with _folder(archive, "read") as folder:
        path = folder / "session.limpet"
        await archive.fetch(place["place"], path)
        seal = file_seal(journal.store, "archive", place["uid"], place["place"])
        await seal.ready()
        if not await _is_the_one(path, place):
            raise ArchiveFailed(archive.url, "read", "the file is not the one that was put there")
        yield ArchivedFile(seal.at(path), (await prove_bundle(seal.at(path))).pins)


def archive_of(services: Services) -> Archive:
    """The archive that is open. Raises InvalidInput if none is."""
    if services.archive is None:
        raise InvalidInput(_NO_ARCHIVE)
    return services.archive


async def _is_the_one(path: Path, place: Any) -> bool:
    """True if this is the file that was put there. A sealed one proves that as it is opened: its
    blocks are bound to its name, which stands for one log and no other."""
    if await in_thread(lambda: is_sealed(path)):
        return True
    return await _digest_of(path) == (place["bytes"], place["sha256"])


async def _digest_of(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""

    def read() -> tuple[int, str]:
        with path.open("rb") as file:
            return path.stat().st_size, file_digest(file, "sha256").hexdigest()

    return await in_thread(read)


@asynccontextmanager
async def _folder(archive: Archive, doing: str) -> AsyncIterator[Path]:
    """A temporary folder. What the disk refuses in it is an ArchiveFailed."""
    try:
        with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
            yield Path(folder)
    except TimeoutError:  # not of the disk
        raise
    except OSError as error:
        raise ArchiveFailed(archive.url, doing, error.strerror or str(error)) from error
