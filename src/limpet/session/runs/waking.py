"""Waking a session, and those that could not be woken: a part of Limpet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from limpet.session.arguments import (
    AnyKey,
    check_lease_seconds,
    key_and,
)
from limpet.session.door import Door

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
