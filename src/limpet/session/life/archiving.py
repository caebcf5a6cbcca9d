"""Archiving: a session's log moves to cold storage and back. Its head stays in the store.

Hot rows go only after the file was read back from the archive and proved itself. Between the end of
the one and the beginning of the other a document says what is under way, so that whoever comes next
finishes it: at every moment the session is in the store, or its whole file is in the archive.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Sequence
from typing import Any, Final, Literal

import msgspec

from limpet.errors import (
    ArchiveFailed,
    InvalidKey,
    SessionArchived,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from limpet.model import (
    EMPTY,
    PAGE_MAX,
    Commit,
    Fact,
    FrozenDict,
    Head,
    Key,
    Lease,
    owner_of,
)
from limpet.model.facts import ARCHIVED, Timeouts, timeouts_set
from limpet.model.facts import archive as facts
from limpet.model.facts.phases import rule
from limpet.model.facts.retention import RETENTION_SET
from limpet.model.facts.timeouts import timeouts_in
from limpet.model.keys import ARCHIVING
from limpet.session.documents import Document, Internal, Put, commit_puts
from limpet.session.handle import Handle
from limpet.session.history.keeping import Keeping
from limpet.session.journal import Journal
from limpet.session.life.archives import Archive, home_of
from limpet.session.life.cold import ColdFile, archive_of, fetched, stored
from limpet.session.life.mover import NOBODY, Mover
from limpet.session.life.policy import Transition
from limpet.session.logs import SESSION
from limpet.session.move.arriving import adopt
from limpet.session.move.checkpoints import load_log
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed, Query, Standing

UNDER_WAY: Final = ARCHIVING.removeprefix("$$")
_TAKEN: Final = (
    "It took the key of a session that was on its way to or from the archive, where its file is "
    "kept. Delete this one, and lp.sweep() or lp.unarchive(key) goes on with the other"
)
OUTAGES_MAX: Final = 8  # in one sweep: each may take as long as a request may


async def archive_session(
    session: Handle, actor: str, *, reason: str | None = None, release: Lease | None = None
) -> Transition:
    """End the hot life of a completed or terminated session, or go on where that was interrupted.

    Raises InvalidTransition if there is nothing to go on with.
    """
    journal, archive = session.writer.journal, session.writer.journal.archive
    done = Transition(ARCHIVED, ("move_to_archive",), None, ARCHIVED, "archive")
    if await _is_left(session):
        head = session.writer.known.head
        how: dict[str, Any] = {"reason": reason, "actor": actor, "release": release}
        if archive is not None:  # with the transition: whoever comes next knows what is left to do
            how["puts"] = (_begun(journal, head, actor),)
        (done,) = await Mover(session, ("archive",), **how).move()
    if archive is not None:
        await _move_rows(journal, archive, session.key, actor)
    return done


async def _is_left(session: Handle) -> bool:
    """Whether the transition is still to be made; if not, there is a move of rows to go on with."""
    journal = session.writer.journal
    try:
        await session.writer.load(tail=1)
    except SessionArchived:
        if not await finish(session):
            rule(ARCHIVED, "archive")  # raises: the table has no such transition
        return False
    head = session.writer.known.head
    if head.phase == ARCHIVED and (journal.archive is None or facts.place(head.facts)):
        rule(ARCHIVED, "archive")
    return head.phase != ARCHIVED


def _begun(journal: Journal, head: Head, actor: str) -> Put:
    """The document of a move whose file is not in the archive yet."""
    key = head.key
    move = {"to": "archive", "owner": [key.app, key.user], "uid": head.uid}
    return Put(_intents(journal, key), key.id, move, actor=actor)


async def _move_rows(journal: Journal, archive: Archive, key: Key, actor: str) -> bool:
    """Put an archived session's log into the archive, and a stub in the place of its rows. False
    if another has removed the rows, and the stub may not be there yet.

    Until they go, how it is kept may be said, a checkpoint made, and it may even be unarchived:
    the rows go only where they are what the file has.
    """
    while True:
        head = await _head(journal, key)
        if head is None:
            return False
        if facts.place(head.facts) is not None or head.phase != ARCHIVED:  # done, or taken back
            return True
        log = await load_log(journal.store, key)
        at = Standing(head.uid, head.version, 0 if log is None else log.head.version)
        place = await stored(journal, archive, key, at)
        if place is None:  # it went on, or another was faster
            continue
        if await _is_replaced(journal, head, at, place, actor):
            return True
        if not await _is_needed(journal, head):
            await archive.remove(place["place"])


async def _is_replaced(journal: Journal, head: Head, at: Standing, place: Any, actor: str) -> bool:
    """Replace the hot rows by the stub. False, and nothing is removed, if they went on since."""
    key = head.key
    move = {"to": "archive", "owner": [key.app, key.user], **place}
    put = Put(_intents(journal, key), key.id, move, actor=actor)
    try:
        await commit_puts(journal, (Commit(key, (), at.version, uid=at.uid),), (put,))
    except (SessionConflict, SessionDeleted, SessionErased, SessionNotFound):
        return False
    if not await _is_buried(journal, key, at):
        return False
    intent = await _intent(journal, key)
    await _add_stub(journal, head, place)
    await _settle(journal, key, intent)
    return True


async def _is_needed(journal: Journal, head: Head) -> bool:
    """Whether the file may be the one that another has archived: not if the rows are here and went
    on, nor if the session was deleted or erased."""
    key = head.key
    try:
        if await _uid(journal, key) == head.uid:
            return False
        if await is_under_way(journal, key) or await stub_of(journal, key, head.uid) is not None:
            return True
        return await is_under_way(journal, key)  # from before the stub goes, until rows are back
    except SessionErased:
        return False


async def _add_stub(journal: Journal, head: Head, place: Any) -> None:
    """Put the stub in the place of the rows, which are gone."""
    fact = facts.stub(head, place["place"], place["bytes"], place["sha256"])
    stub = journal.prepare(fact, NOBODY)
    try:
        await journal.commit((Commit(head.key, (stub,), 0, reuse=True),))
    except SessionExists:  # another was faster with it, or took the key for another session
        if await stub_of(journal, head.key, head.uid) is None:
            raise


async def unarchive_session(session: Handle, actor: str) -> None:
    """Bring the log back, and the phase that it had before. Nothing was loaded yet."""
    journal, key = session.writer.journal, session.key
    found = await _intent(journal, key)
    if found is not None and found[0]["to"] == "store":
        return await _bring_back(session, found[0], actor)
    await finish(session)
    head = (await journal.store.load(key, tail=0, scopes=False)).head
    place = facts.place(head.facts)
    if place is None:  # its log never left
        await session.writer.load(tail=1)
        return await _reopen(session, actor)
    async with fetched(journal, place):  # a file that does not prove itself changes nothing
        of = {name: place[name] for name in ("place", "uid", "version", "bytes", "sha256")}
        move = {"to": "store", "owner": [key.app, key.user], **of, **_said(head)}
        await _intents(journal, key).put(key.id, move, actor=actor)
    await _bring_back(session, move, actor)


async def _bring_back(session: Handle, move: Any, actor: str) -> None:
    """Do what is left of unarchiving: the log, the phase, and the file, which goes last.

    Raises SessionExists if another session took the key meanwhile: the file is all there is then.
    """
    journal, key = session.writer.journal, session.key
    head = await _head(journal, key)
    if head is not None and head.uid != move["uid"] and _place(head) is None:
        raise SessionExists(key, _TAKEN)
    if _is_missing(head, move):
        async with fetched(journal, move) as file:
            move = await _lifted(journal, key, move, actor)
            await adopt(journal, file.path, file.pins)  # what is here already is only a repeat
    await session.writer.load(tail=1)
    head, intent = session.writer.known.head, await _intent(journal, key)
    if (head.uid, head.phase) == (move["uid"], ARCHIVED):
        await _keep_said(journal, head, move)
        await _reopen(session, actor)
    await archive_of(journal).remove(move["place"])
    if intent is not None and intent[0]["to"] == "store":  # it may be on its way again
        await _settle(journal, key, intent)


async def _lifted(journal: Journal, key: Key, move: Any, actor: str) -> Any:
    """Remove the stub. How the session is kept may be said to it until then."""
    while (head := await _head(journal, key)) is not None and _place(head) == move["place"]:
        if not _said(head).items() <= move.items():
            move = {**move, **_said(head)}
            await _intents(journal, key).put(key.id, move, actor=actor)
        if await _is_buried(journal, key, Standing(head.uid, head.version)):
            break
    return move


def _is_missing(head: Head | None, move: Any) -> bool:
    """Whether a part of the log, or a blob, may still be in the file alone.

    Blobs come after the log: until the phase says that all is done, they may be missing.
    """
    if head is None:
        return True
    place = _place(head)
    if place is not None:  # else it was archived once more, into another file
        return bool(place == move["place"])
    unfinished = head.version < move["version"] or head.phase == ARCHIVED
    return bool(head.uid == move["uid"] and unfinished)


def _place(head: Head) -> str | None:
    """Where the log is that a stub stands for; None if it is here."""
    found = facts.place(head.facts)
    return None if found is None else str(found["place"])


async def _reopen(session: Handle, actor: str) -> None:
    """The transition back to the phase that it was archived from. Raises InvalidTransition."""
    before = session.writer.known.head.facts.get("archived_from")
    await Mover(session, ("unarchive",), actor=actor, to=before).move()


async def read_archived(journal: Journal, head: Head) -> Journal:
    """A store in memory that holds nothing but this session, as its file has it."""
    place = facts.place(head.facts)
    assert place is not None
    async with fetched(journal, place) as file:
        store = _Reading()
        apart = _apart(journal, store)
        await adopt(apart, file.path, file.pins)
        store.is_read = True
    return apart


async def _head_in(journal: Journal, file: ColdFile) -> Head:
    """The head of the session in a file."""
    apart = _apart(journal, MemoryStore())
    try:
        key = await adopt(apart, file.path, file.pins)
        return (await apart.store.load(key, tail=0, scopes=False)).head
    finally:
        await apart.close()


class _Reading(MemoryStore):
    """The log of an archived session, to be read: what is written here would be lost."""

    is_read = False

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        if self.is_read:
            raise SessionArchived(commits[0].key)
        return await super().commit(commits)


def _apart(journal: Journal, store: MemoryStore) -> Journal:
    """A journal on a store of its own in memory."""
    from limpet.session.following.follow import Hub

    return Journal(store, Hub(store), journal.new_id, journal.now_us, Keeping)


# --- what was interrupted -----------------------------------------------------------------------


async def is_under_way(journal: Journal, key: Key) -> bool:
    """Whether the session is between the store and the archive."""
    return await _intent(journal, key) is not None


async def is_archived(journal: Journal, key: Key, uid: str | None) -> bool:
    """Whether the log of this very session is in the archive, or on its way to or from there."""
    if await stub_of(journal, key, uid) is not None:
        return True
    return await _head(journal, key) is None and await is_under_way(journal, key)


async def stub_of(journal: Journal, key: Key, uid: str | None) -> Head | None:
    """What stands in the store for this very session while its log is in the archive."""
    head = await _head(journal, key)
    place = None if head is None else facts.place(head.facts)
    return None if place is None or uid not in (None, place["uid"]) else head


async def finish_all(
    journal: Journal,
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
    failed: list[tuple[Key, Exception]] = []
    every = [] if journal.archive is None else await _all_under_way(journal)
    keys = [key for key in every if key not in tried]
    random.shuffle(keys)
    for key in keys:
        if limit <= 0 or _outages(failed) >= OUTAGES_MAX:
            break
        try:
            await finish(session_of(key))
        except Exception as error:  # an archive that is out of reach must stop no other work
            failed.append((key, error))
        else:
            limit -= 1
    return failed


def _outages(failed: list[tuple[Key, Exception]]) -> int:
    """How often it was the archive that failed."""
    return sum(isinstance(error, ArchiveFailed) for _, error in failed)


async def _all_under_way(journal: Journal) -> list[Key]:
    """Every session between the store and the archive."""
    query = Query(app=Internal(journal, UNDER_WAY).app, order="key", reverse=False)
    found: list[Key] = []
    cursor: str | None = None
    while True:
        page = await journal.store.heads(query, cursor=cursor, limit=PAGE_MAX, states=True)
        for head in page.items:
            move = page.states.get(head.key, EMPTY).get("value")
            key = None if move is None else _key_in(move, head.key)
            if key is not None:
                found.append(key)
        cursor = page.cursor
        if cursor is None:
            return found


async def finish(session: Handle) -> bool:
    """Finish a move of this session that was interrupted. False if there is none."""
    journal, key = session.writer.journal, session.key
    intent = await _intent(journal, key)
    if intent is None:
        return False
    move, here = intent[0], await _uid(journal, key)
    if move["to"] == "store":
        await _bring_back(session, move, NOBODY)
        return True
    if here == move["uid"]:
        if not await _move_rows(journal, archive_of(journal), key, NOBODY):
            return True  # whoever is between rows and stub, or comes after it, settles the rest
    elif "place" in move and await stub_of(journal, key, move["uid"]) is None:
        if here is not None:  # another session took the key: the file is all there is
            raise SessionExists(key, _TAKEN)
        await _finish_archiving(journal, move)
    await _settle(journal, key, intent)
    return True


async def _finish_archiving(journal: Journal, move: Any) -> None:
    """The file is whole in the archive: what is left of the log here goes, the stub comes."""
    async with fetched(journal, move) as file:
        head = await _head_in(journal, file)
    await _add_stub(journal, head, move)


def _said(head: Head) -> dict[str, Any]:
    """How a session is kept: what may be said of an archived one."""
    return {name: dict(head.facts.get(name, EMPTY)) for name in ("timeouts", "retention")}


async def _keep_said(journal: Journal, head: Head, move: Any) -> None:
    """How it is kept may have been decided while it was archived: that holds on."""
    here, new = _said(head), list[Fact]()
    if move["timeouts"] != here["timeouts"]:
        wanted = timeouts_in(FrozenDict(timeouts=move["timeouts"]))
        new.append(timeouts_set(wanted or Timeouts()))
    if move.get("retention", here["retention"]) != here["retention"]:
        new.append(Fact(type=RETENTION_SET, data={"retention": dict(move["retention"])}))
    if new:
        drafts = tuple([journal.prepare(fact, NOBODY) for fact in new])
        await journal.commit((Commit(head.key, drafts, uid=head.uid),))


# --- private ------------------------------------------------------------------------------------


class _Move(msgspec.Struct, frozen=True):
    """The document of a move: where to, of which session, and where its file is."""

    to: Literal["archive", "store"]
    owner: tuple[str, str]
    uid: str
    place: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    version: int | None = None
    timeouts: dict[str, Any] = {}
    retention: dict[str, Any] = {}


def _intents(journal: Journal, key: Key) -> Internal:
    return Internal(journal, UNDER_WAY, owner=(key.app, key.user))


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


def _move_in(intents: Internal, key: Key, found: Document) -> Any | None:
    """The move in a document; None if it is not one. It never names another session's file."""
    read = intents.decoded(found, _Move)
    if read is None or read.owner != (key.app, key.user):
        return None
    whole = None not in (read.place, read.bytes, read.sha256)
    if read.to == "store" and not (whole and read.version is not None):
        return None
    if read.place is not None and not (whole and read.place.startswith(f"{home_of(key)}/")):
        return None
    return found.value


async def _intent(journal: Journal, key: Key) -> tuple[Any, Standing] | None:
    """What is under way with a session, if anything is, and where the document stands."""
    intents = _intents(journal, key)
    try:
        log = await _head(journal, intents.key(key.id))  # what is newer than this is not settled
    except SessionErased:
        return None
    found = await intents.find(key.id)
    move = None if found is None else _move_in(intents, key, found)
    return None if log is None or move is None else (move, Standing(log.uid, log.version))


async def _settle(journal: Journal, key: Key, intent: tuple[Any, Standing] | None) -> None:
    """Nothing is under way any more. What another has begun since stays."""
    if intent is not None:
        await journal.store.delete(_intents(journal, key).key(key.id), at=intent[1])


async def _head(journal: Journal, key: Key) -> Head | None:
    """The head of the session that has this key now, if one has."""
    try:
        return (await journal.store.load(key, tail=0, scopes=False)).head
    except (SessionDeleted, SessionNotFound):
        return None


async def _uid(journal: Journal, key: Key) -> str | None:
    head = await _head(journal, key)
    return None if head is None else head.uid


async def _is_buried(journal: Journal, key: Key, at: Standing) -> bool:
    """Remove the rows of this very session. False if it does not stand there any more."""
    buried: bool = await journal.store.delete(key, ending="moved", at=at)
    if buried:
        journal.hub.touch(key)
    return buried
