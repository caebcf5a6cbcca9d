"""Exporting a session to a bundle, and importing one.

An import reads the file twice. The first reading computes every link and folds every event, and
records nothing: a file that is not whole is refused whole. The second adopts the events in pieces.
Killed in between, it leaves a log that is only shorter, and importing again goes on from there.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from limpet.errors import (
    BundleRefused,
    InvalidInput,
    LimpetError,
    ReservedApp,
    SessionConflict,
    SessionCorrupt,
)
from limpet.model.adopt import adopted
from limpet.model.facts.creation import CREATED
from limpet.model.fold import Fold, record
from limpet.model.head import based, blank
from limpet.model.keys import Key, is_reserved, unfit
from limpet.model.limits import ACTOR_CHARS_MAX, ID_CHARS_MAX, TYPE_CHARS_MAX
from limpet.session.journal import Journal
from limpet.session.move.adopter import (
    PIECE_BYTES,
    PIECE_EVENTS,
    Adopter,
    Newest,
    piece,
    records_in,
)
from limpet.session.move.bundle import BundleReader, BundleWriter, Opening, refuse_place
from limpet.store.protocol import Record
from limpet.store.sqlite.file.locks import part_beside
from limpet.store.threads import in_thread


async def export_session(journal: Journal, key: Key, path: Path) -> None:
    """Write the session as it is now to a file that must not exist yet."""
    _refuse_reserved(key)
    source = records_in(journal)
    head = (await journal.store.load(key, tail=0, scopes=False)).head
    base = await source.base(key)
    refuse_place(path)
    try:
        writer = await in_thread(lambda: BundleWriter(path, part_beside(path)))
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        writer.begin(head, base)
        after = head.floor
        while after < head.version:
            limit = min(PIECE_EVENTS, head.version - after)
            found = await source.records(key, after=after, limit=limit)
            check_whole(key, found, after)
            after = found[-1].event.seq
            await in_thread(lambda some=found: writer.add(some))  # type: ignore[misc]  # bound now
        await in_thread(writer.finish)
    except OSError as error:
        raise _unwritten(path, error) from error
    finally:
        await in_thread(writer.discard)


async def import_session(journal: Journal, path: Path) -> Key:
    """Adopt the session in a file, as far as this store does not have it."""
    adopter = Adopter(journal)
    reader = await in_thread(lambda: BundleReader(path))
    try:
        opening = reader.opening
        _refuse_reserved(opening.key)
        here = await adopter.newest(opening.key)
        last = await _prove(reader, here)
    finally:
        await in_thread(reader.close)
    if here.seq > last.seq:  # it went on since: the file must be what it began with
        await adopter.check_prefix(opening.key, last.seq, last.link)
        return opening.key
    reader = await in_thread(lambda: BundleReader(path))
    try:
        await _adopt(adopter, reader, opening, here.seq)
    finally:
        await in_thread(reader.close)
    return opening.key


def check_whole(key: Key, records: tuple[Record, ...], after: int) -> None:
    """Raise SessionCorrupt unless these follow `after` without a gap, each with its body."""
    if not records:
        raise SessionCorrupt(key, f"event {after + 1} is missing")
    for seq, each in enumerate(records, after + 1):
        if each.event.seq != seq:
            raise SessionCorrupt(key, f"event {seq} is missing")
        if each.raw is None:
            reason = "was removed" if each.event.removed else each.event.damage
            raise SessionCorrupt(key, f"event {seq} {reason or 'cannot be read'}")


async def _adopt(adopter: Adopter, reader: BundleReader, opening: Opening, here: int) -> None:
    first = opening.floor + 1
    while found := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
        fresh = [each for each in found if each.event.seq > here]
        if fresh:
            base = opening.base if fresh[0].event.seq == first else None
            await adopter.commit((piece(opening.key, fresh, base),))


async def _prove(reader: BundleReader, here: Newest) -> Newest:
    """Read to the end and compute everything again; what the last event is.

    Raises BundleDamaged; SessionConflict if the file's log is not the one that is here.
    """
    proof = _Proof(reader, here)
    while found := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
        await in_thread(lambda some=found: proof.add(some))  # type: ignore[misc]  # bound now
    return proof.end()


class _Proof:
    """A log that is folded and linked from its beginning, as adopting it will."""

    def __init__(self, reader: BundleReader, here: Newest) -> None:
        self._reader, self._here, self._opening = reader, here, reader.opening
        self._fold: Fold | None = None

    def add(self, records: list[Record]) -> None:
        fold = self._fold or self._begun(records[0])
        for each in records:
            event = each.event
            self._check_names(each)
            assert each.raw is not None
            try:
                after, made = record(fold, adopted(event, each.raw, each.salt), 0, b"")
            except (LimpetError, LookupError, TypeError, ValueError, AttributeError) as error:
                raise self._wrong(event.seq, f"does not fit those before it ({error})") from error
            if made.event.seq != event.seq or made.event.link != event.link:
                raise self._wrong(event.seq, "breaks the chain")
            if event.at_us < fold.head.updated_us:
                raise self._wrong(event.seq, "was recorded before the event it follows")
            if event.seq == self._here.seq and event.link != self._here.link:
                key = self._opening.key
                raise SessionConflict(key, "log", event.seq - 1, self._here.seq)
            fold = after
        self._fold = fold

    def end(self) -> Newest:
        if self._fold is None:
            raise self._reader.damaged("it has no events")
        return Newest(self._fold.head.version, self._fold.head.link)

    def _begun(self, first: Record) -> Fold:
        """What the log begins on, if its first event says the same as the header."""
        opening, event = self._opening, first.event
        key, base, data = opening.key, opening.base, event.data
        same = (data.get("app"), data.get("user"), data.get("id")) == (key.app, key.user, key.id)
        if not same or event.id != opening.uid:
            raise self._wrong(event.seq, "begins another session than the header names")
        if base is None:
            if event.type != CREATED or opening.floor:
                raise self._wrong(event.seq, "does not begin a session")
            return Fold(blank(key, opening.uid, event.at_us))
        if base.floor != opening.floor or data.get("base") != base.checksum.hex():
            raise self._wrong(event.seq, "begins on another state than the header has")
        head = based(key, opening.uid, event.at_us, base.floor, base.link)
        return Fold(head, base.fields, base.versions)

    def _check_names(self, each: Record) -> None:
        event = each.event
        ids = (event.id, event.cause, event.invocation_id, event.correlation_id, event.wake_id)
        texts = chain(
            [(event.type, TYPE_CHARS_MAX), (event.actor, ACTOR_CHARS_MAX)],
            [(id, ID_CHARS_MAX) for id in ids if id is not None],
        )
        for text, chars_max in texts:
            if reason := unfit(text, chars_max):
                raise self._wrong(event.seq, f"has a name that {reason}")

    def _wrong(self, seq: int, what: str) -> LimpetError:
        return self._reader.damaged(f"event {seq} {what}")


def check_path(path: object) -> Path:
    """A path of a file. Raises InvalidInput."""
    if not isinstance(path, (str, Path)) or not str(path):
        raise InvalidInput(f"{path!r} does not name a file. Pass a path, as in 'ada.limpet'.")
    return Path(path)


def _refuse_reserved(key: Key) -> None:
    if is_reserved(key.app):
        raise ReservedApp(key.app)


def _unwritten(path: Path, error: OSError) -> BundleRefused:
    return BundleRefused(str(path), f"cannot be written ({error.strerror or error})")
