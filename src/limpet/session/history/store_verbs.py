"""The verbs of history on a store: policies that belong to an app, and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.errors import InvalidInput
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_progress,
    check_sessions,
    one_or_all,
)
from limpet.session.documents import Internal
from limpet.session.door import Door
from limpet.session.metrics import Hook
from limpet.store.protocol import Progress

if TYPE_CHECKING:
    from datetime import timedelta

    from limpet.session.history.policy import CheckpointPolicy
    from limpet.session.history.retention import CompactReport

_NOBODY = "system:policies"  # who sets a policy where nobody is named


class Policies(Door):
    """What is decided for all sessions of an app. Kept with the store, for every process."""

    async def checkpointing(
        self, app: str, policy: CheckpointPolicy | None, *, actor: str | None = None
    ) -> None:
        """Have checkpoints made by themselves: see CheckpointPolicy. None ends that.

        It is kept with the store. This process follows it at once, others within a few seconds.
        """
        from limpet.session.history.keeping import keeping_of
        from limpet.session.history.policy import COLLECTION, CheckpointPolicy, stored

        if check_sessions(app) is None:
            raise InvalidInput("a policy is of an app. Pass its name.")
        if not isinstance(policy, CheckpointPolicy | None):
            raise InvalidInput("policy is a limpet.CheckpointPolicy, or None to end it.")
        documents = Internal(self._journal, COLLECTION, actor=check_actor(actor) or _NOBODY)
        if policy is None:
            await documents.delete(app)
        else:
            await documents.put(app, stored(policy))
        keeping_of(self._journal).forget(app)

    async def retention(
        self,
        app: str,
        *,
        events: int | None = None,
        age: timedelta | None = None,
        every: timedelta | None = None,
        actor: str | None = None,
    ) -> None:
        """Bound the history of each session of an app: the newest `events` stay hot, nothing older
        than `age`, or both. Without either, everything, but for sessions with their own limits.

        The rest moves into compressed cold segments in the store, by itself: after commits, once a
        session is a quarter beyond its limit, and by sweeps, which look at all sessions of the app
        once in `every`, an hour if that is not given. `compact` does it at once. Nothing is lost.
        This process follows new limits at once, others within a few seconds.
        """
        from limpet.session.history.keeping import keeping_of
        from limpet.session.history.retention import COLLECTION, EVERY, checked

        if check_sessions(app) is None:
            raise InvalidInput("limits are of an app. Pass its name.")
        value = checked(events, age, EVERY if every is None else every)
        documents = Internal(self._journal, COLLECTION, actor=check_actor(actor) or _NOBODY)
        await documents.put(app, value)
        keeping_of(self._journal).forget(app)

    async def compact(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Move events beyond their limits into cold segments, of one session or of all.

        Cold events are read, verified and exported like all others, and a repeat of their ids is
        recognised. Pending inputs stay, and the newest event; the feed no longer has what was
        moved. Safe to interrupt: one segment is one commit. `progress(done, total)` counts
        sessions.
        """
        from limpet.session.history.retention import compact

        one = one_or_all(key, user, id)
        return await compact(self._journal, one, check_progress(progress))

    def on_metric(self, hook: Hook) -> None:
        """Call `hook(metric)` for what is measured in this process: see limpet.Metric."""
        if not callable(hook):
            raise InvalidInput("on_metric takes a function of a limpet.Metric.")
        self._journal.metrics.add(hook)
