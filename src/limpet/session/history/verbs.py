"""The verbs of history on a session. Each is one call into a module of this room, which is imported
when it is first used: most sessions are never rewound, merged or blamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from limpet.errors import InvalidInput
from limpet.model import Key, to_time
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_flag,
    check_limit,
    key_of,
    own_key,
)
from limpet.session.history.at import When, fold_of, head_now, state_of
from limpet.session.history.refs import Blame, CheckpointRef, Lineage, Rewound
from limpet.session.writer import Writer

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from limpet.model import Event, Path
    from limpet.model.diff.diff import Diff
    from limpet.model.diff.policy import Policy
    from limpet.session.history.bisect import Predicate
    from limpet.session.history.kept import CheckpointPage
    from limpet.session.history.merge import Merged

S = TypeVar("S", covariant=True)


class History(Generic[S]):
    """What can be asked of a session's past, and done with it."""

    __slots__ = ()
    key: Key
    actor: str | None
    writer: Writer

    async def state_at(self, when: When) -> S:
        """The session's own fields as they were: after an event (its seq), at a time, at a
        checkpoint. A text names one as the command line does: "12", "2026-05-01T10:00:00Z", "#3".

        Typed as `state` is, and brought to the version of its class if it is older; nothing is
        recorded. app: and user: names are not in it. Raises InvalidInput if there was no session
        yet, or no such event.
        """
        state: S = state_of(self.writer.typed, await fold_of(self.writer, when))
        return state

    async def diff(self, before: When, after: When | None = None) -> Diff:
        """What changed in the session's own fields from one place in its history to another.

        Without `after`, up to now. Stored values are compared, as they were recorded.
        """
        from limpet.model.diff.diff import diff

        last = (await head_now(self.writer)).version if after is None else after
        one, other = await fold_of(self.writer, before), await fold_of(self.writer, last)
        return diff(one.fields, other.fields)

    async def fork(
        self,
        at: When | None = None,
        *,
        id: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        actor: str | None = None,
    ) -> Self:
        """A new session that goes on from any event of this one; without `at`, from the last.

        Its history reads through to this one's and its seqs go on densely. Labels are only those
        given; inputs that were pending here, timers and leases are not pending or set there. It has
        the permissions, bound tools and timeouts that this session has now, and every limit of its
        budget with nothing in it: `fork.grant` gives it something to spend. Nothing is written to
        this session. The cost grows with the state, not with the history.
        """
        from limpet.session.history.fork import record_fork

        writer, bound = self.writer, check_actor(self.actor if actor is None else actor)
        journal, typed = writer.journal, writer.typed
        head = await head_now(writer)
        fold = await fold_of(writer, head.version if at is None else at)
        key = own_key(self.key.app, self.key.user if user is None else user, id or journal.new_id())
        how: dict[str, Any] = {"labels": labels, "actor": bound or f"user:{key.user}"}
        made, drafts = await record_fork(journal, head, fold, key, **how)
        again = None if typed is None else type(typed)(typed.of, typed.migrations)
        untyped = typed is None and not writer.classless
        how = {"actor": bound, "typed": again, "untyped": untyped}
        fork = type(self)(journal, key, **how)  # type: ignore[call-arg]  # a Session inherits this
        fork.writer.known.begin(made, drafts)
        return fork

    async def rewind(self, when: When, *, actor: str | None = None) -> Rewound:
        """Make the state what it was at a place in the history, by one event; nothing is deleted.

        The session's own fields become exactly those of then. An app: or user: name that only this
        session changed since goes back to what it was before; those that another session changed
        too are left, and named in `left`. Labels, timers, inputs and phase stay. If the state is
        the same nothing is recorded. A rewind can be rewound.
        """
        from limpet.session.history.rewind import rewind

        fold = await fold_of(self.writer, when)
        return await rewind(self.writer, fold, actor=self._acting(actor), data={})

    async def merge(
        self,
        other: History[Any] | AnyKey,
        *,
        policy: Policy | None = None,
        policies: Mapping[str | Path, Policy] | None = None,
        actor: str | None = None,
    ) -> Merged:
        """Take in what another session changed since the two last agreed, by one event.

        They last agreed at the last merge between them, or else where one forked the other, or
        both forked a third. Where only one side changed a place, its change is taken; where both
        did, `policy` decides (limpet.LastWriter, Priority, any function of a Conflict), at or below
        a path the policy in `policies`. MergeConflict has all `conflicts` that are left, and
        nothing is recorded then. Nothing is written to the other session, and app: and user: names
        are never merged. If the other has nothing new, nothing is recorded.
        """
        from limpet.model.diff.policy import escalate
        from limpet.session.history.merge import merge

        if isinstance(other, History):
            if other.writer.journal is not self.writer.journal:
                raise InvalidInput(f"{other.key} is open in another store. Copy it here first.")
            other = other.key
        how: dict[str, Any] = {"policy": policy or escalate, "policies": policies}
        return await merge(self.writer, key_of(other), actor=self._acting(actor), **how)

    async def blame(self, path: str | Sequence[str | int]) -> tuple[Blame, ...]:
        """Every change of a value, the newest first: the event, who acted, when, the operation.

        `path` is a name in state and what is below it, "plan.steps.0" or "plan.steps[0]", or a
        tuple if a name has a dot in it. An operation on a part of the value counts, and one that
        replaced what it is a part of; a merge of other names does not. Of an app: or user: name,
        what this session did.
        """
        from limpet.session.history.blame import blame, path_of

        return await blame(self.writer, path_of(path))

    async def bisect(self, predicate: Predicate) -> Event | None:
        """The first event after which `predicate(state)` is false; None if it is true now.

        `predicate` may be a coroutine function. It is asked at most ceil(log2 n) + 1 times for n
        events, and has to stay false once it is.
        """
        from limpet.session.history.bisect import bisect

        if not callable(predicate):
            raise InvalidInput("bisect takes a function of the state that returns True or False.")
        return await bisect(self.writer, predicate)

    # --- checkpoints ---------------------------------------------------------------------------

    async def checkpoint(
        self, trigger: str = "manual", *, full: bool | None = None, actor: str | None = None
    ) -> CheckpointRef:
        """A named, verifiable place to come back to. Never changes the version.

        A `full` one keeps the state itself, an incremental one its seq and checksum: the log is
        the rest. None: as the policy of the app says, by default every tenth is full. It stays
        until `unpin` lets it go. Raises SessionCorrupt while an event cannot be read.
        """
        from limpet.session.history.checkpoints import checkpoint
        from limpet.session.history.kept import Asked

        return await checkpoint(self.writer, Asked(trigger, full, self._acting(actor), manual=True))

    @property
    def checkpoint_seq(self) -> int:
        """The number of the newest checkpoint, 0 before the first. It stays if that is let go.

        As of the last load, and of what this process has made since. Raises SessionNotLoaded.
        """
        from limpet.session.history.checkpoints import newest

        return newest(self.writer).number

    @property
    def last_checkpoint_at(self) -> datetime | None:
        """When the newest checkpoint was made; None before the first. See checkpoint_seq."""
        from limpet.session.history.checkpoints import newest

        made = newest(self.writer)
        return to_time(made.at_us) if made.number else None

    async def checkpoints(self, *, limit: int = 50, cursor: str | None = None) -> CheckpointPage:
        """The checkpoints that are kept, the newest first; `page.cursor` leads to the next page."""
        from limpet.session.history.checkpoints import listed

        return await listed(self.writer, check_limit(limit), cursor)

    async def restore(
        self, ref: CheckpointRef, *, fallback: bool = False, actor: str | None = None
    ) -> Rewound:
        """Verify a checkpoint, then rewind to it.

        If it cannot be trusted: CheckpointIntegrity, or with `fallback` the full checkpoint before
        it that can. Either way the state is one that the log gives. Raises NoCheckpoint,
        NoFullCheckpoint; InvalidInput if it is of another session.
        """
        from limpet.session.history.checkpoints import restore

        check_flag("fallback", fallback)
        return await restore(self.writer, ref, fallback=fallback, actor=self._acting(actor))

    async def unpin(self, ref: CheckpointRef, *, actor: str | None = None) -> None:
        """Let go of a checkpoint: it is no longer listed, and its kept state is freed.

        The log still gives that state: state_at(ref.seq). Raises NoCheckpoint.
        """
        from limpet.session.history.checkpoints import unpin

        await unpin(self.writer, ref, self._acting(actor))

    async def retention(
        self,
        *,
        events: int | None = None,
        age: timedelta | None = None,
        actor: str | None = None,
    ) -> Event:
        """Bound this session's history, whatever its app says: the newest `events` stay hot,
        nothing older than `age`, or both. Without either, as its app says.

        See `lp.retention`: nothing is lost, and the rest is moved by itself.
        """
        from limpet.model.facts.retention import retention_set
        from limpet.session.history.keeping import keeping_of
        from limpet.session.history.retention import watch_app

        journal = self.writer.journal
        draft = journal.prepare(retention_set(events=events, age=age), self._acting(actor))
        await watch_app(journal, self.key.app)
        keeping_of(journal).forget(self.key.app)
        return (await self.writer.commit((draft,)))[0]

    # --- relatives -----------------------------------------------------------------------------

    async def lineage(self) -> Lineage:
        """The session among its relatives: its parents, its forks and theirs, and merges."""
        from limpet.session.history.lineage import lineage

        return await lineage(self.writer.journal.store, await head_now(self.writer))

    def _acting(self, actor: str | None) -> str | None:
        """Who acts: the one named, or the one bound."""
        return check_actor(self.actor if actor is None else actor)
