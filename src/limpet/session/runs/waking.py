"""Waking a session, and those that could not be woken: a part of Limpet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from limpet.errors import InvalidInput
from limpet.model import Event, FrozenDict
from limpet.model.facts.running.endings import is_held
from limpet.model.facts.running.runs import DEAD, is_dead, requeued
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_lease_seconds,
    check_limit,
    check_sessions,
    key_and,
    key_of,
)
from limpet.session.door import Door
from limpet.session.session import Session
from limpet.store.protocol import Page, Query

_run_a_turn: Callable[..., Awaitable[Any]]


def turns_are_run_by(run: Callable[..., Awaitable[Any]]) -> None:
    """The runtime stands above this room, so it is handed down by who stands above both."""
    global _run_a_turn  # once, while `limpet` is imported
    _run_a_turn = run


class Waking(Door):
    """One turn of one session; and dead letters."""

    async def wake(
        self, key: AnyKey | str, *then: Any, lease_seconds: float = 30, **how: Any
    ) -> Any:
        """Run one bounded turn of this session, or nothing: `woken.ran`, `woken.reason`.

        The harness comes after the key: `wake(key, harness)`, `wake(app, user, id, harness)`. There
        is no payload: what is to be done is in the log. Never raises what the harness raises: that
        is `woken.error`, and recorded. `how` as for limpet.Worker: retries, on_mismatch,
        permissions, agent, state_type, migrations.
        """
        named, runs = key_and((key, *then), how.pop("harness", None), "a harness")
        seconds = check_lease_seconds(lease_seconds)
        return await _run_a_turn(self, named, runs, lease_seconds=seconds, **how)

    def ringing(self, app: str | None = None) -> AbstractContextManager[asyncio.Event]:
        """A bell that rings when a session of this app may have become due; for workers."""
        return self._journal.hub.waiting(app=app)

    async def dead_letters(self, *, app: str, limit: int = 50, cursor: str | None = None) -> Page:
        """Sessions of an app whose turn, or whose compensations, failed as often as they may.

        Each is held until `requeue`. `head.facts["run"]["dead"]` has the code of the error, and
        `s.failure` of the loaded session what it said; of a session that was terminated,
        `head.facts["ending"]["held"]` names the effects that are not undone.
        """
        query = Query(app=check_sessions(app), labels=FrozenDict({DEAD: "yes"}))
        return await self._journal.store.heads(query, cursor=cursor, limit=check_limit(limit))

    async def requeue(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        *,
        actor: str | None = None,
    ) -> Event:
        """Try a dead letter again, with all its attempts. Raises InvalidInput if it is none."""
        session: Session[Any] = Session(self._journal, key_of(key, user, id))
        await session.refresh(tail=0)
        facts = session.head.facts
        if not is_dead(facts) and not is_held(facts):
            raise InvalidInput(f"session {session.key} is not a dead letter. Send it an input.")
        by = check_actor(actor) or "system:operator"
        prepared = self._journal.prepare(requeued(), by)
        return (await session.writer.commit((prepared,), session.version))[0]
