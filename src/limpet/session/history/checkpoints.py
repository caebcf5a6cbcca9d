"""Checkpoints: making, listing, restoring and letting go of them, for one session."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import structs

from limpet.errors import (
    ArchiveSealed,
    CheckpointIntegrity,
    InvalidCursor,
    InvalidInput,
    LimpetError,
    NoCheckpoint,
    NoFullCheckpoint,
    SealUnavailable,
    SessionCorrupt,
    SessionNotLoaded,
)
from limpet.model import (
    EMPTY,
    NO_CHECKPOINT,
    Fold,
    FrozenDict,
    LastCheckpoint,
    checksum,
    described,
)
from limpet.session.history.at import head_now
from limpet.session.history.keeping import keeping_of
from limpet.session.history.kept import Asked, Checkpoint, CheckpointPage
from limpet.session.history.refs import CheckpointRef, Place, Rewound
from limpet.session.history.rewind import rewind
from limpet.session.logs import SESSION
from limpet.session.writer import Writer

_TRIGGER_CHARS_MAX = 256


class Trusted(NamedTuple):
    """A checkpoint that can be restored, and the session there."""

    checkpoint: Checkpoint
    fold: Fold
    by_tier: bool = False  # its file gave the state, for the log cannot any more
    passed: tuple[str, ...] = ()  # what could not be trusted before it, and why

    @property
    def data(self) -> dict[str, Any]:
        """What the event that goes back to it says."""
        found: dict[str, Any] = {"checkpoint": self.checkpoint.number}
        return {**found, "tier": self.checkpoint.tier} if self.by_tier else found


async def checkpoint(writer: Writer, asked: Asked) -> CheckpointRef:
    """Record a checkpoint of the newest state."""
    if not isinstance(asked.trigger, str) or not 0 < len(asked.trigger) <= _TRIGGER_CHARS_MAX:
        raise InvalidInput("trigger says in a few words what the checkpoint is for.")
    if asked.full is not None and type(asked.full) is not bool:
        raise InvalidInput("full is True, False, or None: as the policy of the app says.")
    known = writer.known
    state = None
    if known.maybe_head is not None and known.is_loaded and not known.damaged:
        state = (known.maybe_head, known.fields)  # most often the newest: saves reading it
    keeping = keeping_of(writer.journal)
    made = await keeping.checkpoint(known.key, asked, uid=known.uid, state=state, newest=True)
    known.note_checkpoint(LastCheckpoint(made.number, made.at_us))
    return made.ref


def newest(writer: Writer) -> LastCheckpoint:
    """The newest checkpoint as of the last load, or made by this process since.

    Raises SessionNotLoaded.
    """
    known = writer.known
    if known.uid is not None:
        made = writer.journal.keeping.last_checkpoint(known.key, known.uid)
        if made > (known.checkpoint or NO_CHECKPOINT):
            known.note_checkpoint(made)
    if known.checkpoint is None:
        raise SessionNotLoaded("the newest checkpoint")
    return known.checkpoint


async def listed(writer: Writer, limit: int, cursor: str | None) -> CheckpointPage:
    """A page of what is kept, the newest first."""
    if cursor is not None and not (isinstance(cursor, str) and cursor.isdecimal()):
        raise InvalidCursor("page")
    found = [c for c in await _kept(writer) if cursor is None or c.number < int(cursor)]
    page = found[::-1][:limit]
    return CheckpointPage(tuple(page), str(page[-1].number) if len(found) > limit else None)


async def unpin(writer: Writer, ref: CheckpointRef, actor: str | None) -> None:
    """Let go of a checkpoint. Raises NoCheckpoint."""
    kept = _find(writer, await _kept(writer), ref)
    uid = (await head_now(writer)).uid
    await keeping_of(writer.journal).kept(writer.known.key).unpin([kept.number], uid, actor)


async def restore(
    writer: Writer, ref: CheckpointRef, *, fallback: bool, actor: str | None
) -> Rewound:
    """Verify a checkpoint, then rewind to it; if it fails and may, to the full one before it.

    Raises NoCheckpoint, NoFullCheckpoint, CheckpointIntegrity; ArchiveSealed if only a sealed file
    has the state, and there is no seal.
    """
    found = await trusted(writer, ref, fallback=fallback)
    damaged = fallback or found.by_tier
    return await rewind(writer, found.fold, actor=actor, data=found.data, damaged=damaged)


async def trusted(writer: Writer, ref: CheckpointRef, *, fallback: bool) -> Trusted:
    """A checkpoint, and the state there; with `fallback`, of the newest that can be trusted.

    Raises NoCheckpoint, NoFullCheckpoint, CheckpointIntegrity.
    """
    kept = await _kept(writer)
    asked = _find(writer, kept, ref)
    fulls = [each for each in kept if each.full and each.number <= asked.number]
    if not fulls:
        raise NoFullCheckpoint(writer.known.key, asked.number)
    ways = [asked, *[each for each in reversed(fulls) if each.number < asked.number]]
    passed: tuple[str, ...] = ()
    for way in ways:
        try:
            found = await _trusted(writer, way)
            return found._replace(passed=(*passed, *found.passed))
        except CheckpointIntegrity as error:
            _log_failure(way, error)
            passed += (f"checkpoint {way.number} cannot be trusted: {error.reason}",)
            if not fallback or way is ways[-1]:
                raise
    raise AssertionError("the last one returns or raises")


async def _trusted(writer: Writer, kept: Checkpoint) -> Trusted:
    """The session at a checkpoint, by its log, or else by its file in a tier."""
    try:
        return Trusted(kept, await verified(writer, kept))
    except CheckpointIntegrity as error:
        if kept.place is None:
            raise
        _log_failure(kept, error)
        fold = await _in_tier(writer, kept, kept.place, error.reason)
        why = f"checkpoint {kept.number} cannot be trusted by the log: {error.reason}"
        return Trusted(kept, fold, by_tier=True, passed=(why,))


async def _in_tier(writer: Writer, kept: Checkpoint, place: Place, reason: str) -> Fold:
    """The session at a checkpoint as its file has it, if that is what the checkpoint names."""
    key, number, head = writer.known.key, kept.number, await head_now(writer)
    try:
        fields = await keeping_of(writer.journal).tiers.fields((key, head.uid), place)
    except (ArchiveSealed, SealUnavailable):  # says nothing about the file
        raise
    except LimpetError as error:
        why = f"{reason}; and its file in {kept.tier} cannot be read ({error.code})"
        raise CheckpointIntegrity(key, number, why) from error
    if checksum(fields).hex() != kept.ref.checksum:
        raise CheckpointIntegrity(key, number, f"{reason}; its file has another state")
    schema = place.schema_version
    facts = EMPTY if schema is None else FrozenDict(schema_version=schema)
    return Fold(structs.replace(head, version=kept.seq, facts=facts), fields)


def _log_failure(kept: Checkpoint, error: CheckpointIntegrity) -> None:
    text = "checkpoint integrity failure: session=%s checkpoint=%d reason=%s"
    SESSION.warning(text, kept.ref.key, kept.number, error.reason)


async def verified(writer: Writer, kept: Checkpoint) -> Fold:
    """The session at a checkpoint, as the log has it, if that is what the checkpoint names."""
    key, number = writer.known.key, kept.number
    try:
        fold = await writer.journal.store.fold_at(key, kept.seq)
    except (SessionCorrupt, InvalidInput) as error:
        raise CheckpointIntegrity(key, number, error.summary) from error
    if checksum(fold.fields).hex() != kept.ref.checksum:
        raise CheckpointIntegrity(key, number, "the log gives another state")
    return fold


async def unread_states(
    writer: Writer, kept: tuple[Checkpoint, ...], at: Checkpoint
) -> tuple[tuple[Checkpoint, ...], int]:
    """The full checkpoints up to this one whose kept states cannot be read, and the event from
    which the log gave the state instead."""
    rung = await writer.journal.store.rung(writer.known.key, at.seq)
    since = rung.head.version
    return tuple([each for each in kept if each.full and since < each.seq <= at.seq]), since


async def _kept(writer: Writer) -> tuple[Checkpoint, ...]:
    head = await head_now(writer)
    return await keeping_of(writer.journal).kept(head.key).read(head.uid)


def _find(writer: Writer, kept: tuple[Checkpoint, ...], ref: CheckpointRef) -> Checkpoint:
    """The checkpoint that a reference names. Raises InvalidInput, NoCheckpoint."""
    key = writer.known.key
    if not isinstance(ref, CheckpointRef):
        raise InvalidInput(f"{described(ref)} is not a CheckpointRef. Pass what checkpoint() gave.")
    if ref.key != key:
        raise InvalidInput(
            f"the checkpoint is of {ref.key}, not of {key}. Pass a checkpoint of this session."
        )
    found = next((each for each in kept if each.number == ref.number), None)
    if found is None:
        raise NoCheckpoint(key, ref.number)
    if (found.seq, found.ref.checksum) != (ref.seq, ref.checksum):
        raise CheckpointIntegrity(key, ref.number, "the reference names another state")
    return found
