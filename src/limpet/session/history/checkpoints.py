"""Checkpoints: made on request and as the policy of an app says, listed, verified and restored.

The journal calls `StoreCheckpoints.before` and `after` for each commit. A checkpoint before a
commit is durable before that commit is tried; if it fails, so does the commit. One after a commit
is made when the commit is durable: if it fails, that is logged, and the next commit makes up for
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

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
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionNotLoaded,
)
from limpet.model import (
    EMPTY,
    NO_CHECKPOINT,
    Commit,
    Fold,
    FrozenDict,
    Head,
    Key,
    LastCheckpoint,
    canonical,
    checksum,
    described,
    is_reserved,
)
from limpet.model.facts.phases import archive_place
from limpet.model.head import check_present
from limpet.model.keys import Ids
from limpet.session.follow import Hub
from limpet.session.history.checkpoint_log import (
    KINDS,
    Checkpoint,
    CheckpointLog,
    CheckpointPage,
    CheckpointRef,
    CheckpointRequest,
    StateToCheckpoint,
)
from limpet.session.history.checkpoint_policy import (
    CheckpointPolicy,
    interval_us,
    policy_of,
    trigger_after,
    trigger_before,
)
from limpet.session.history.checkpoint_tiers import CheckpointFile, CheckpointTiers
from limpet.session.history.point_in_time import head_now
from limpet.session.history.retention import Compactor, RetentionLimits
from limpet.session.journal import CommitHooks, Journal, Tries
from limpet.session.loggers import SESSION
from limpet.session.performed import ask_server, server_of
from limpet.session.runs.switches import NO_SWITCHES, AppSwitches, switches_of
from limpet.session.services import Metrics
from limpet.session.writer import Writer
from limpet.store.protocol import Committed, Store

if TYPE_CHECKING:
    from limpet.session.history.rewind import Rewound

_TRIGGER_CHARS_MAX = 256
FRESH_US: Final = 5_000_000  # how long a policy that was read is followed
SESSIONS_MAX: Final = 4_096  # of which the checkpoints are remembered
PERIODIC: Final = "periodic"
_RULES: Final = frozenset(("$$checkpointing", "$$retention", "$$switches"))  # their documents
_PLAIN: Final = CheckpointPolicy()
_Asker: TypeAlias = tuple[str, asyncio.AbstractEventLoop]  # an app, and the loop of who asks


class TrustedCheckpoint(NamedTuple):
    """A checkpoint that can be restored, and the session there."""

    checkpoint: Checkpoint
    fold: Fold
    by_tier: bool = False  # its file gave the state, for the log cannot any more
    passed: tuple[str, ...] = ()  # what could not be trusted before it, and why

    @property
    def data(self) -> dict[str, Any]:
        """Return the data of the event that goes back to it."""
        data: dict[str, Any] = {"checkpoint": self.checkpoint.number}
        return {**data, "tier": self.checkpoint.tier} if self.by_tier else data


# --- of one session ------------------------------------------------------------------------------


async def checkpoint(writer: Writer, asked: CheckpointRequest) -> CheckpointRef:
    """Record a checkpoint of the newest state."""
    if not isinstance(asked.trigger, str) or not 0 < len(asked.trigger) <= _TRIGGER_CHARS_MAX:
        raise InvalidInput("trigger says in a few words what the checkpoint is for.")
    if asked.full is not None and type(asked.full) is not bool:
        raise InvalidInput("full is True, False, or None: as the policy of the app says.")
    known = writer.known
    if (server := server_of(writer.journal)) is not None:  # which knows the whole state
        kind = None if asked.full is None else KINDS[asked.full]
        sent = (known.key, known.uid, asked.trigger, kind, asked.actor)
        ref, at_us = await ask_server(server, "checkpoint", *sent)
        known.note_checkpoint(LastCheckpoint(ref.number, at_us))
        served: CheckpointRef = ref
        return served
    await writer.services.permitted("write", known.key)
    state = None
    is_whole = known.is_loaded and not known.damaged and writer.view is None
    if known.maybe_head is not None and is_whole:
        state = (known.maybe_head, known.fields)  # most often the newest: saves reading it
    keeping = store_checkpoints(writer.journal)
    made = await keeping.checkpoint(known.key, asked, uid=known.uid, state=state, newest=True)
    known.note_checkpoint(LastCheckpoint(made.number, made.at_us))
    return made.ref if writer.view is None else _unmeasured(made).ref


def newest_checkpoint(writer: Writer) -> LastCheckpoint:
    """The newest checkpoint as of the last load, or made by this process since.

    Raises SessionNotLoaded.
    """
    known = writer.known
    if known.uid is not None:
        made = store_checkpoints(writer.journal).last_checkpoint(known.key, known.uid)
        if made > (known.checkpoint or NO_CHECKPOINT):
            known.note_checkpoint(made)
    if known.checkpoint is None:
        raise SessionNotLoaded("the newest checkpoint")
    return known.checkpoint


async def list_checkpoints(writer: Writer, limit: int, cursor: str | None) -> CheckpointPage:
    """A page of what is kept, the newest first."""
    if cursor is not None and not (isinstance(cursor, str) and cursor.isdecimal()):
        raise InvalidCursor("page")
    await writer.services.permitted("read", writer.known.key)
    checkpoints = [c for c in await _kept(writer) if cursor is None or c.number < int(cursor)]
    page = checkpoints[::-1][:limit]
    return CheckpointPage(tuple(page), str(page[-1].number) if len(checkpoints) > limit else None)


async def unpin(writer: Writer, ref: CheckpointRef, actor: str | None) -> None:
    """Unpin a checkpoint. Raises NoCheckpoint."""
    await writer.services.approved("write", writer.known.key)
    kept = _find(writer, await _kept(writer), ref)
    uid = (await head_now(writer)).uid
    await store_checkpoints(writer.journal).kept(writer.known.key).unpin([kept.number], uid, actor)


async def restore(
    writer: Writer, ref: CheckpointRef, *, fallback: bool, messages: bool, actor: str | None
) -> Rewound:
    """Verify a checkpoint, then rewind to it; if it fails and may, to the full one before it.

    Raises NoCheckpoint, NoFullCheckpoint, CheckpointIntegrity; ArchiveSealed if only a sealed file
    has the state, and there is no seal.
    """
    from limpet.session.history.rewind import rewind  # most processes never go back

    await writer.services.approved("write", writer.known.key)
    trusted = await find_trusted(writer, ref, fallback=fallback)
    damaged = fallback or trusted.by_tier
    return await rewind(
        writer, trusted.fold, actor=actor, data=trusted.data, messages=messages, damaged=damaged
    )


async def find_trusted(writer: Writer, ref: CheckpointRef, *, fallback: bool) -> TrustedCheckpoint:
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
            trust = await _trust(writer, way)
            return trust._replace(passed=(*passed, *trust.passed))
        except CheckpointIntegrity as error:
            _log_failure(way, error)
            passed += (f"checkpoint {way.number} cannot be trusted: {error.reason}",)
            if not fallback or way is ways[-1]:
                raise
    raise AssertionError("the last one returns or raises")


async def _trust(writer: Writer, kept: Checkpoint) -> TrustedCheckpoint:
    """The session at a checkpoint, by its log, or else by its file in a tier."""
    try:
        return TrustedCheckpoint(kept, await verify_checkpoint(writer, kept))
    except CheckpointIntegrity as error:
        if kept.place is None:
            raise
        _log_failure(kept, error)
        fold = await _in_tier(writer, kept, kept.place, error.reason)
        why = f"checkpoint {kept.number} cannot be trusted by the log: {error.reason}"
        return TrustedCheckpoint(kept, fold, by_tier=True, passed=(why,))


async def _in_tier(writer: Writer, kept: Checkpoint, place: CheckpointFile, reason: str) -> Fold:
    """The session at a checkpoint as its file has it, if that is what the checkpoint names."""
    key, number, head = writer.known.key, kept.number, await head_now(writer)
    try:
        fields = await store_checkpoints(writer.journal).tiers.fields((key, head.uid), place)
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


async def verify_checkpoint(writer: Writer, kept: Checkpoint) -> Fold:
    """The session at a checkpoint, as the log has it, if that is what the checkpoint names."""
    key, number = writer.known.key, kept.number
    try:  # by the whole state, whoever asks
        fold = await writer.services.system.journal.store.fold_at(key, kept.seq)
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
    kept = await store_checkpoints(writer.journal).kept(head.key).read(head.uid)
    guard = writer.services.guard
    if guard is None or guard.view(head) is None:
        return kept
    return tuple(map(_unmeasured, kept))


def _unmeasured(kept: Checkpoint) -> Checkpoint:
    """The checkpoint for one who sees a part of the state: a checksum would confirm a guess."""
    return structs.replace(kept, ref=structs.replace(kept.ref, checksum=""), size=0, place=None)


def _find(writer: Writer, kept: tuple[Checkpoint, ...], ref: CheckpointRef) -> Checkpoint:
    """The checkpoint that a reference names. Raises InvalidInput, NoCheckpoint."""
    key = writer.known.key
    if not isinstance(ref, CheckpointRef):
        raise InvalidInput(f"{described(ref)} is not a CheckpointRef. Pass what checkpoint() gave.")
    if ref.key != key:
        raise InvalidInput(
            f"the checkpoint is of {ref.key}, not of {key}. Pass a checkpoint of this session."
        )
    checkpoint = next((each for each in kept if each.number == ref.number), None)
    if checkpoint is None:
        raise NoCheckpoint(key, ref.number)
    if checkpoint.seq != ref.seq or checkpoint.ref.checksum not in ("", ref.checksum):
        raise CheckpointIntegrity(key, ref.number, "the reference names another state")
    return checkpoint


def _log_failure(kept: Checkpoint, error: CheckpointIntegrity) -> None:
    text = "checkpoint integrity failure: session=%s checkpoint=%d reason=%s"
    SESSION.warning(text, kept.ref.key, kept.number, error.reason)


# --- of a store ----------------------------------------------------------------------------------


class _SessionPace:
    """The pace of a session: its last checkpoint, the events since, and its checkpoint log."""

    __slots__ = ("kept", "last_us", "made", "mutations", "uid")

    def __init__(self, kept: CheckpointLog) -> None:
        self.kept, self.uid, self.last_us, self.mutations = kept, "", 0, 0
        self.made = NO_CHECKPOINT  # here


class _AppRules:
    """The policies of an app, and until when they are followed before they are read again."""

    __slots__ = ("any", "limits", "policy", "switches", "until_us")

    def __init__(
        self,
        policy: CheckpointPolicy | None,
        limits: RetentionLimits | None,
        until_us: int,
        switches: AppSwitches = NO_SWITCHES,
    ) -> None:
        self.policy, self.limits, self.until_us = policy, limits, until_us
        self.switches = switches
        self.any = policy is not None or limits is not None


class StoreCheckpoints(CommitHooks):
    """The checkpoints of a store's sessions, as one process makes them."""

    def __init__(self, journal: Journal, metrics: Metrics) -> None:
        self._journal, self._metrics = journal, metrics
        self._is_served = bool(getattr(journal.store, "audits_itself", False))
        self._rules: dict[str, _AppRules] = {}
        self._reading: dict[_Asker, asyncio.Task[_AppRules]] = {}  # by those who wait for rules now
        self._paces: dict[Key, _SessionPace] = {}
        self.tiers = CheckpointTiers(journal)
        self.bounds = Compactor(journal)

    # --- for the journal -----------------------------------------------------------------------

    def concerns(self, commits: Sequence[Commit]) -> bool:
        """True if an app has a policy, or may have one by now. Quick: every commit asks. A server
        follows the policies itself, for all of its clients."""
        if self._is_served:
            return False
        for commit in commits:
            if commit.key.app in _RULES:
                return True
            of = self._rules.get(commit.key.app)
            if of is None or of.any or of.until_us < self._journal.now_us():
                adopts = bool(commit.drafts) and commit.drafts[0].origin is not None
                if not adopts:  # what is adopted brings its own checkpoints
                    return True
        return False

    async def before(self, commits: Sequence[Commit]) -> None:
        """Make the checkpoints that have to be there before these commits."""
        for commit in commits:
            policy = await self.policy(commit.key.app)
            new = commit.expect == 0 or not commit.drafts or commit.drafts[0].origin is not None
            if policy is None or new:
                continue
            wanted = trigger_before(policy, commit.drafts)
            if wanted is not None:
                await self.checkpoint(commit.key, CheckpointRequest(wanted[0], wanted[1] or None))

    async def after(self, answers: Sequence[Committed]) -> None:
        """Make the checkpoints that are due after what was recorded, and follow the rules that it
        changed: a client of a server writes them through it. Raises nothing of ours."""
        for answer in answers:
            key = answer.head.key
            if key.app in _RULES:
                self.forget(key.id)
            try:
                rules = await self._current(key.app)
                if rules.policy is not None and len(answer.events) > answer.repeated:
                    await self._after(rules.policy, answer)
                if rules.limits is not None:
                    self.bounds.noted(answer.head, rules.limits)
            except LimpetError as error:
                SESSION.warning("checkpoint failed: session=%s code=%s", key, error.code)

    def last_checkpoint(self, key: Key, uid: str) -> LastCheckpoint:
        """The newest checkpoint that this process has made of a session."""
        pace = self._paces.get(key)
        return pace.made if pace is not None and pace.uid == uid else NO_CHECKPOINT

    # --- policies ------------------------------------------------------------------------------

    async def policy(self, app: str) -> CheckpointPolicy | None:
        """The policy of an app, not older than a few seconds."""
        return (self._fresh(app) or await self._current(app)).policy

    async def switches(self, app: str) -> AppSwitches:
        """The switches of an app, not older than a few seconds."""
        return (self._fresh(app) or await self._current(app)).switches

    def known_switches(self, app: str) -> AppSwitches:
        """The switches of an app as they were last read, without waiting; empty before that."""
        rules = self._rules.get(app)
        return NO_SWITCHES if rules is None else rules.switches

    def forget(self, app: str) -> None:
        """Read the rules of an app again: they were changed here."""
        self._rules.pop(app, None)
        for asker in [asker for asker in self._reading if asker[0] == app]:
            del self._reading[asker]  # it may have read them before the change

    async def close(self) -> None:
        """Stop what is done in the background."""
        here = asyncio.get_running_loop()
        if reading := [task for (_, loop), task in self._reading.items() if loop is here]:
            await asyncio.wait(reading)  # somebody's commit waits for them
        await self.bounds.close()

    def _fresh(self, app: str) -> _AppRules | None:
        """The rules of an app, if they were read a moment ago."""
        rules = self._rules.get(app)
        return rules if rules is not None and rules.until_us >= self._journal.now_us() else None

    async def _current(self, app: str) -> _AppRules:
        """Read once for all who ask meanwhile: a crowd would otherwise read for each commit."""
        if (rules := self._fresh(app)) is not None:
            return rules
        if is_reserved(app):
            rules = self._rules[app] = _AppRules(None, None, self._journal.now_us() + FRESH_US)
            return rules
        asker = (app, asyncio.get_running_loop())
        task = self._reading.get(asker)
        if task is None:
            task = self._reading[asker] = asyncio.ensure_future(self._read(app))
            task.add_done_callback(partial(self._was_read, asker))
        return await asyncio.shield(task)

    async def _read(self, app: str) -> _AppRules:
        policy = await policy_of(self._journal, app)
        limits = await self.bounds.limits(app)
        switches = await switches_of(self._journal, app)
        return _AppRules(policy, limits, self._journal.now_us() + FRESH_US, switches)

    def _was_read(self, asker: _Asker, task: asyncio.Task[_AppRules]) -> None:
        if self._reading.get(asker) is not task:
            return  # it was changed here meanwhile
        del self._reading[asker]
        if not task.cancelled() and task.exception() is None:
            self._rules[asker[0]] = task.result()

    # --- making them ---------------------------------------------------------------------------

    def kept(self, key: Key) -> CheckpointLog:
        """The checkpoints of a session."""
        return self._pace(key).kept

    async def checkpoint(
        self,
        key: Key,
        asked: CheckpointRequest,
        *,
        uid: str | None = None,
        state: tuple[Head, FrozenDict] | None = None,
        newest: bool = False,
    ) -> Checkpoint:
        """Record a checkpoint of the newest state; `state` is it, if that is known. If it was
        read a while ago and has to be the `newest`, the commit looks whether it is.

        Raises SessionCorrupt if an event cannot be read: what is not known is not vouched for.
        """
        policy = await self.policy(key.app) or _PLAIN
        async for left in Tries():
            known = state is not None
            head, fields = state or await self._newest(key, uid)
            if (
                archive_place(head.facts) is not None
            ):  # what stands here for the session is not its state
                raise SessionArchived(key)
            taken = _taken(head, fields, newest=newest and known)
            try:
                made = await self.kept(key).record(taken, asked, policy)
            except SessionDeleted:
                await self._newest(key, head.uid)  # raises SessionArchived if that is what it is
                raise
            except SessionConflict:  # it moved on
                state = None
                if not left:
                    raise
            else:
                self._note(taken.uid, made)
                return made
        raise AssertionError("the last try returns or raises")

    def _note(self, uid: str, made: Checkpoint) -> None:
        pace, at_us = self._pace(made.ref.key), made.at_us
        pace.uid, pace.last_us, pace.mutations = uid, at_us, 0
        pace.made = LastCheckpoint(made.number, at_us)
        self._metrics.record(
            "session.checkpoint",
            session=made.ref.key,
            number=made.number,
            type=made.kind,
            size=made.size,
            trigger=made.trigger,
        )

    async def _after(self, policy: CheckpointPolicy, answer: Committed) -> None:
        head, new = answer.head, answer.events[answer.repeated :]
        wanted = trigger_after(policy, [event.type for event in new])
        if wanted is None and await self._is_due(policy, head, len(new)):
            wanted = (PERIODIC, False)
        if wanted is not None and not answer.damaged:
            asked = CheckpointRequest(wanted[0], wanted[1] or None)
            await self.checkpoint(head.key, asked, uid=head.uid, state=(head, answer.fields))

    async def _is_due(self, policy: CheckpointPolicy, head: Head, new: int) -> bool:
        if policy.every is None and policy.adaptive is None:
            return False
        pace, now_us = self._pace(head.key), self._journal.now_us()
        if pace.uid != head.uid:
            last = await pace.kept.read(head.uid)
            pace.last_us = last[-1].at_us if last else head.created_us
            pace.uid, pace.mutations, pace.made = head.uid, 0, NO_CHECKPOINT
        pace.mutations += new
        elapsed_us = max(0, now_us - pace.last_us)
        due_us = interval_us(policy, pace.mutations, elapsed_us)
        return due_us is not None and elapsed_us >= due_us

    async def _newest(self, key: Key, uid: str | None) -> tuple[Head, FrozenDict]:
        loaded = await self._journal.store.load(key, tail=0, scopes=False)
        check_present(loaded.head, uid)
        if loaded.damaged:
            raise SessionCorrupt(key, f"event {loaded.damaged[0]} cannot be read")
        return loaded.head, loaded.fields

    def _pace(self, key: Key) -> _SessionPace:
        pace = self._paces.get(key)
        if pace is None:
            if len(self._paces) >= SESSIONS_MAX:
                self._paces.clear()
            pace = self._paces[key] = _SessionPace(CheckpointLog(self._journal, key, self.tiers))
        return pace


def store_checkpoints(journal: Journal) -> StoreCheckpoints:
    """The one that the journal was opened with."""
    checkpoints = journal.hooks
    assert isinstance(checkpoints, StoreCheckpoints)
    return checkpoints


def journal_with_checkpoints(
    store: Store, ids: Ids, clock: Callable[[], int], metrics: Metrics
) -> Journal:
    """Return a journal on a store that makes the checkpoints its policies ask for."""
    journal = Journal(store, Hub(store), ids, clock)
    journal.hooks = StoreCheckpoints(journal, metrics)
    return journal


def _taken(head: Head, fields: FrozenDict, *, newest: bool) -> StateToCheckpoint:
    raw = canonical(fields)
    made = (head.uid, head.version, sha256(raw).hexdigest(), len(raw))
    return StateToCheckpoint(*made, newest, fields, head.schema_version)
