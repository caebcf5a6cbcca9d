"""Waking a session: what `lp.wake` takes and returns. The runtime, above this room, runs turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from limpet.session.runs.setup import Permission

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry

OnMismatch: TypeAlias = Literal["ask", "accept"]
RETRIES: Final = 5


class HarnessObject(Protocol):
    """An object that runs turns."""

    async def run(self, turn: Any) -> None: ...


# A turn is a `limpet.Turn`, which the runtime makes.
Harness: TypeAlias = "Callable[[Any], Awaitable[Any]] | HarnessObject"


class WakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How turns are run, whichever harness runs them."""

    retries: int = RETRIES
    on_mismatch: OnMismatch = "ask"
    permissions: Mapping[str, Permission] = {}
    agent: str | None = None
    state_type: type[Any] | None = None
    migrations: MigrationRegistry | None = None


class Woken(msgspec.Struct, frozen=True):
    """The result of a wake. `reason` says why nothing ran, or else why the turn stopped."""

    ran: bool
    reason: str
    wake_id: str | None = None
    error: Exception | None = None
