"""The runs of a session: its wakes, its budget, and whom it delegated to. `s.runs`.

Beside it what `lp.wake` takes and returns. The runtime itself stands above: nothing here runs a
harness.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from limpet.errors import InvalidInput
from limpet.model import Event, Key, unfit
from limpet.model.facts.running import budgets
from limpet.model.facts.running.budgets import Budget, BudgetView, Usage
from limpet.model.facts.running.children import children_in, parent_in
from limpet.model.facts.running.runs import RunFailure, failure_in
from limpet.model.facts.running.spawned import spawned_in
from limpet.model.limits import DELEGATION_DEPTH_MAX, ID_CHARS_MAX
from limpet.session.arguments import check_before, check_limit
from limpet.session.runs.delegation import Kin, children_of, kin_of
from limpet.session.runs.setup import Permission

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.session.runs.traces import Activation, WakeTrace
    from limpet.session.writer import Writer

OnMismatch: TypeAlias = Literal["ask", "accept"]
RETRIES: Final = 5
# Set in the tasks of a harness while it runs a turn: tasks that it begins inherit it.
HARNESS: Final[ContextVar[object]] = ContextVar("limpet_harness", default=None)
_TAIL: Final = 20


class HarnessObject(Protocol):
    """An object that runs turns."""

    def run(self, turn: Any, /) -> Awaitable[Any]: ...


# A turn is a `limpet.Turn`, which the runtime makes.
Harness: TypeAlias = "Callable[[Any], Awaitable[Any]] | HarnessObject"


class WakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of turns, whichever harness runs them."""

    retries: int = RETRIES
    on_mismatch: OnMismatch = "ask"
    version: str | None = None
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


class SessionRuns:
    """Wakes, budget and children of a session: `s.runs`."""

    __slots__ = ("_writer",)

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def usage(self) -> Usage:
        """Turns, tokens and cost so far."""
        return budgets.usage(self._writer.known.head.facts)

    @property
    def budget(self) -> BudgetView | None:
        """Its budget, and how much of it is spent, reserved and left; None without a limit."""
        return budgets.view(self._writer.known.head.facts)

    async def grant(self, budget: Budget | float, *, actor: str | None = None) -> Event:
        """Add to its budget and return the event. A number is a cost. The first grant sets the
        limit.

        Raises InvalidInput, SessionSuspended, SessionEnded, SessionNotFound.
        """
        fact = budgets.granted(budgets.budget_of(budget))
        prepared = self._writer.journal.prepare(fact, self._writer.acting(actor))
        return (await self._writer.commit((prepared,)))[0]

    @property
    def failure(self) -> RunFailure | None:
        """The reason why the last run of its turn failed; None if its last turn ended well."""
        known = self._writer.known
        return failure_in(known.head.facts, known.texts)

    async def wakes(self, *, limit: int = 20, before: int | None = None) -> tuple[Event, ...]:
        """Return the events that began the newest wakes, newest first, each with its wake_id.

        Continue with `before` the last seq: then those with smaller seqs are returned. Raises
        SessionNotFound.
        """
        from limpet.session.runs.traces import wakes_of

        return await wakes_of(self._writer, check_limit(limit), check_before(before))

    async def activations(self, *, limit: int = 20) -> tuple[Activation, ...]:
        """Return the newest activations first: when, why and by whom it was woken, and the result.

        Raises SessionNotFound.
        """
        from limpet.session.runs.traces import activations_of

        return await activations_of(self._writer, check_limit(limit))

    async def trace(self, wake_id: str) -> WakeTrace:
        """Return one wake as a tree of spans with times and all of its events; to an auditor
        without their bodies.

        Raises InvalidInput if it had no such wake, SessionNotFound.
        """
        if reason := unfit(wake_id, ID_CHARS_MAX):
            raise InvalidInput(f"the id of a wake {reason}. Pass `event.wake_id`.")
        from limpet.session.runs.traces import trace_of

        return await trace_of(self._writer, wake_id)

    @property
    def parent(self) -> Key | None:
        """The session that delegated this one; None if none did. For forks see `lineage`."""
        return parent_in(self._writer.known.head.facts)

    async def children(self) -> tuple[Key, ...]:
        """Return the children of this session that have not ended, in order of creation.

        Raises SessionNotFound.
        """
        await self._writer.load(tail=_TAIL)
        facts = self._writer.known.head.facts
        if spawned_in(facts):  # the head only counts these
            known = await children_of(self._writer.journal, self._writer.known.head)
            return tuple([of["key"] for of in known if of["stop_reason"] is None])
        in_order = sorted(children_in(facts).items(), key=lambda item: int(item[1]["seq"]))
        return tuple([Key(child["app"], child["user"], id) for id, child in in_order])

    async def tree(self) -> Kin:
        """Return this session and all that were ever delegated from it, as a tree.

        Sessions that have ended are in it with their output, the others are `at_work`. Reads one
        log for each. Raises SessionNotFound.
        """
        levels = DELEGATION_DEPTH_MAX + 1  # below the lowest there is nobody
        return await kin_of(self._writer.journal, self._writer.known.key, levels)
