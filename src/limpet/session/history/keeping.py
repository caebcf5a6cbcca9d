"""Keeping: checkpoints, made when asked for and by themselves as the policy of an app says.

The journal calls `before` and `after` for each commit. A checkpoint before a commit is durable
before that commit is tried; if it fails, so does the commit. One after a commit is made when the
commit is durable: if it fails, that is logged, and the next commit makes up for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Final, TypeAlias

from limpet.errors import (
    LimpetError,
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
)
from limpet.model import (
    NO_CHECKPOINT,
    UPDATE_TRIES_MAX,
    Commit,
    FrozenDict,
    Head,
    Key,
    LastCheckpoint,
    canonical,
    is_reserved,
)
from limpet.model.facts.archive import check_present, place
from limpet.session.history.bounds import Bounds
from limpet.session.history.kept import Asked, Checkpoint, Kept, Taken
from limpet.session.history.policy import (
    CheckpointPolicy,
    interval_us,
    policy_of,
    trigger_after,
    trigger_before,
)
from limpet.session.history.refs import CheckpointRef
from limpet.session.history.retention import Limits
from limpet.session.history.tiers import Tiers
from limpet.session.journal import Journal
from limpet.session.logs import SESSION
from limpet.store.protocol import Committed

FRESH_US: Final = 5_000_000  # how long a policy that was read is followed
SESSIONS_MAX: Final = 4_096  # of which the checkpoints are remembered
PERIODIC: Final = "periodic"
_PLAIN: Final = CheckpointPolicy()
_Asker: TypeAlias = tuple[str, asyncio.AbstractEventLoop]  # an app, and the loop of who asks


class _Pace:
    """How a session is going: since when, how many events since, and its checkpoints."""

    __slots__ = ("kept", "last_us", "made", "mutations", "uid")

    def __init__(self, kept: Kept) -> None:
        self.kept, self.uid, self.last_us, self.mutations = kept, "", 0, 0
        self.made = NO_CHECKPOINT  # here


class _Rules:
    """What an app has decided, and how long that is followed before it is read again."""

    __slots__ = ("any", "limits", "policy", "until_us")

    def __init__(
        self, policy: CheckpointPolicy | None, limits: Limits | None, until_us: int
    ) -> None:
        self.policy, self.limits, self.until_us = policy, limits, until_us
        self.any = policy is not None or limits is not None


class Keeping:
    """The checkpoints of a store's sessions, as one process makes them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rules: dict[str, _Rules] = {}
        self._reading: dict[_Asker, asyncio.Task[_Rules]] = {}  # by those who wait for rules now
        self._paces: dict[Key, _Pace] = {}
        self.tiers = Tiers(journal)
        self.bounds = Bounds(journal)

    # --- for the journal -----------------------------------------------------------------------

    def concerns(self, commits: Sequence[Commit]) -> bool:
        """Whether an app has a policy, or may have one by now. Quick: every commit asks."""
        for commit in commits:
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
                await self.checkpoint(commit.key, Asked(wanted[0], wanted[1] or None))

    async def after(self, answers: Sequence[Committed]) -> None:
        """Make the checkpoints that are due after what was recorded. Raises nothing of ours."""
        for answer in answers:
            key = answer.head.key
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

    def _fresh(self, app: str) -> _Rules | None:
        """The rules of an app, if they were read a moment ago."""
        rules = self._rules.get(app)
        return rules if rules is not None and rules.until_us >= self._journal.now_us() else None

    async def _current(self, app: str) -> _Rules:
        """Read once for all who ask meanwhile: a crowd would otherwise read for each commit."""
        if (rules := self._fresh(app)) is not None:
            return rules
        if is_reserved(app):
            rules = self._rules[app] = _Rules(None, None, self._journal.now_us() + FRESH_US)
            return rules
        asker = (app, asyncio.get_running_loop())
        task = self._reading.get(asker)
        if task is None:
            task = self._reading[asker] = asyncio.ensure_future(self._read(app))
            task.add_done_callback(partial(self._was_read, asker))
        return await asyncio.shield(task)

    async def _read(self, app: str) -> _Rules:
        policy = await policy_of(self._journal, app)
        limits = await self.bounds.limits(app)
        return _Rules(policy, limits, self._journal.now_us() + FRESH_US)

    def _was_read(self, asker: _Asker, task: asyncio.Task[_Rules]) -> None:
        if self._reading.get(asker) is not task:
            return  # it was changed here meanwhile
        del self._reading[asker]
        if not task.cancelled() and task.exception() is None:
            self._rules[asker[0]] = task.result()

    # --- making them ---------------------------------------------------------------------------

    def kept(self, key: Key) -> Kept:
        """The checkpoints of a session."""
        return self._pace(key).kept

    async def ref(self, key: Key, uid: str, number: int) -> CheckpointRef | None:
        """The checkpoint of a session with this number, if it is kept."""
        found = [each.ref for each in await self.kept(key).read(uid) if each.number == number]
        return found[0] if found else None

    async def checkpoint(
        self,
        key: Key,
        asked: Asked,
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
        for left in reversed(range(UPDATE_TRIES_MAX)):
            known = state is not None
            head, fields = state or await self._newest(key, uid)
            if place(head.facts) is not None:  # what stands here for the session is not its state
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
        self._journal.metrics.measured(
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
            asked = Asked(wanted[0], wanted[1] or None)
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

    def _pace(self, key: Key) -> _Pace:
        pace = self._paces.get(key)
        if pace is None:
            if len(self._paces) >= SESSIONS_MAX:
                self._paces.clear()
            pace = self._paces[key] = _Pace(Kept(self._journal, key, self.tiers))
        return pace


def keeping_of(journal: Journal) -> Keeping:
    """The one that the journal was opened with."""
    found = journal.keeping
    assert isinstance(found, Keeping)
    return found


def _taken(head: Head, fields: FrozenDict, *, newest: bool) -> Taken:
    raw = canonical(fields)
    made = (head.uid, head.version, sha256(raw).hexdigest(), len(raw))
    return Taken(*made, newest, fields, head.schema_version)
