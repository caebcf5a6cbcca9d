"""The past of a session: read it, compare it, and keep places in it. `s.history`.

Each verb is one call into a module of this room. What most sessions never do, such as blame, is
imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import UNSET, UnsetType

from limpet.errors import InvalidInput
from limpet.model import to_time
from limpet.session.arguments import check_flag, check_limit
from limpet.session.history.checkpoint_log import CheckpointRef
from limpet.session.history.checkpoints import (
    list_checkpoints,
    newest_checkpoint,
    restore,
    store_checkpoints,
    unpin,
)
from limpet.session.history.point_in_time import When, fold_of, head_now, state_of
from limpet.session.history.retention import own_limits, watch_app
from limpet.session.performed import ask_server, server_of
from limpet.session.writer import Writer

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    import typing_extensions

    from limpet.model import Event
    from limpet.model.diff.diff import Diff
    from limpet.session.history.blame import Blame
    from limpet.session.history.branches import Lineage
    from limpet.session.history.checkpoint_log import CheckpointPage
    from limpet.session.history.point_in_time import Predicate
    from limpet.session.history.retention import RetentionLimits
    from limpet.session.history.rewind import Rewound

if TYPE_CHECKING:
    S = typing_extensions.TypeVar("S", covariant=True, default=Any)
else:
    S = TypeVar("S", covariant=True)


class SessionHistory(Generic[S]):
    """The past of a session: `s.history`."""

    __slots__ = ("_writer",)

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def at(self, when: When) -> S:
        """Return the session's own fields as they were: after an event (its seq), at a time, at a
        checkpoint.

        A text names one as the command line does: "12", "2026-05-01T10:00:00Z", "#3". Typed as
        `state` is, and brought to the version of its class if it is older; nothing is recorded.
        app: and user: names are not in it. Raises InvalidInput if there was no session yet, or no
        such event; SessionNotFound.
        """
        state: S = state_of(self._writer.typed, await fold_of(self._writer, when))
        return state

    async def diff(self, before: When, after: When | None = None) -> Diff:
        """Return what changed in the session's own fields between two places in its history.

        Without `after`, up to now. Stored values are compared, as they were recorded. Raises
        InvalidInput if there is no such place, SessionNotFound.
        """
        from limpet.model.diff.diff import diff

        last = (await head_now(self._writer)).version if after is None else after
        one, other = await fold_of(self._writer, before), await fold_of(self._writer, last)
        return diff(one.fields, other.fields)

    async def blame(self, path: str | Sequence[str | int]) -> tuple[Blame, ...]:
        """Return every change of a value, the newest first: event, actor, time and operation.

        `path` is a name in state and what is below it, "plan.steps.0" or "plan.steps[0]", or a
        tuple if a name has a dot in it. An operation on a part of the value counts, and one that
        replaced a value around it; a merge of other names does not. An app: or user: name shows
        only the changes by this session. Raises InvalidInput for a malformed path, SessionNotFound.
        """
        from limpet.session.history.blame import blame, path_of

        return await blame(self._writer, path_of(path))

    async def bisect(self, predicate: Predicate) -> Event | None:
        """Return the first event after which `predicate(state)` is false; None if it is true now.

        `predicate` may be a coroutine function. It is asked at most ceil(log2 n) + 1 times for n
        events, and has to stay false once it is. Raises SessionNotFound, and what `predicate`
        raises.
        """
        from limpet.session.history.point_in_time import bisect

        if not callable(predicate):
            raise InvalidInput("bisect takes a function of the state that returns True or False.")
        return await bisect(self._writer, predicate)

    @property
    def checkpoint_seq(self) -> int:
        """Return the number of the newest checkpoint, 0 before the first. Unpinning keeps it.

        As of the last load, and of what this process has made since. Raises SessionNotLoaded.
        """
        return newest_checkpoint(self._writer).number

    @property
    def last_checkpoint_at(self) -> datetime | None:
        """Return when the newest checkpoint was made; None before the first. See checkpoint_seq."""
        made = newest_checkpoint(self._writer)
        return to_time(made.at_us) if made.number else None

    async def checkpoints(self, *, limit: int = 50, cursor: str | None = None) -> CheckpointPage:
        """Return a page of its checkpoints, the newest first; `page.cursor` leads to the next page.

        Raises InvalidCursor, SessionNotFound.
        """
        return await list_checkpoints(self._writer, check_limit(limit), cursor)

    async def restore(
        self,
        ref: CheckpointRef,
        *,
        fallback: bool = False,
        messages: bool = True,
        actor: str | None = None,
    ) -> Rewound:
        """Verify a checkpoint, rewind to it and return what changed: see Session.rewind for
        `messages`.

        If it cannot be trusted: CheckpointIntegrity, or with `fallback` the full checkpoint before
        it that can. Either way the state is one that the log gives. Raises NoCheckpoint,
        NoFullCheckpoint; TurnUnderway; InvalidInput if it is of another session.
        """
        check_flag("fallback", fallback)
        check_flag("messages", messages)
        return await restore(
            self._writer,
            ref,
            fallback=fallback,
            messages=messages,
            actor=self._writer.actor_or_none(actor),
        )

    async def unpin(self, ref: CheckpointRef, *, actor: str | None = None) -> None:
        """Unpin a checkpoint: it is no longer listed, and its kept state is freed.

        The log still gives that state: s.history.at(ref.seq). Raises NoCheckpoint.
        """
        by = self._writer.actor_or_none(actor)
        if by is not None:
            by = await self._writer.services.actor(by, self._writer.known.key)
        await unpin(self._writer, ref, by)

    async def retention(
        self,
        *,
        events: int | UnsetType | None = UNSET,
        age: timedelta | UnsetType | None = UNSET,
        actor: str | None = None,
    ) -> Event:
        """Set how much of this session's history stays hot, and return the event that says so.

        It overrides the limits of its app: the newest `events`, nothing older than `age`, or both.
        With events=None or age=None alone, the app's limits apply again. See `limits`, and
        `lp.policies.retention`: nothing is lost, and the rest is moved in the background. Raises
        InvalidInput, also without a limit; SessionNotFound.
        """
        from limpet.model.facts.retention import retention_set

        if events is age is UNSET:
            raise InvalidInput(
                "retention() names no limit. Pass events=500, age=timedelta(days=30) or both, or "
                "events=None to follow the limits of the app; s.history.limits reads them."
            )
        journal = self._writer.journal
        fact = retention_set(
            events=None if isinstance(events, UnsetType) else events,
            age=None if isinstance(age, UnsetType) else age,
        )
        draft = journal.prepare(fact, self._writer.actor_or_none(actor))
        # Only the system may read which apps have limits.
        system = await self._writer.services.permitted("write", self._writer.known.key)
        if (server := server_of(system.journal)) is not None:
            await ask_server(server, "watch_limits", self._writer.known.key)
        else:
            await watch_app(system.journal, self._writer.known.key.app)
        store_checkpoints(journal).forget(self._writer.known.key.app)
        return (await self._writer.commit((draft,)))[0]

    @property
    def limits(self) -> RetentionLimits | None:
        """The limits of this session's history as its log has them; None if it has none of its own:
        then those of its app apply, `lp.policies.retention_of(app)`."""
        return own_limits(self._writer.known.head)

    async def lineage(self) -> Lineage:
        """Return the session among its relatives: its parents, its forks and theirs, and merges.

        Raises SessionNotFound.
        """
        from limpet.session.history.branches import lineage

        return await lineage(self._writer.journal.store, await head_now(self._writer))

    @property
    def damaged(self) -> tuple[int, ...]:
        """Return the seqs of events that could not be read; the state lacks what they did."""
        return self._writer.known.damaged
