"""Reservations: a part of the budget that a call may use, set aside before it begins."""

from __future__ import annotations

from types import TracebackType

from limpet.model.facts.running import budgets
from limpet.model.facts.running.budgets import Amount
from limpet.runtime.records import identity
from limpet.runtime.under_way import UnderWay


class Reservation:
    """A block within which so much may be used. It ends settled: at what was used, or at all."""

    def __init__(self, turn: UnderWay, of: Amount | None) -> None:
        self._turn, self._of = turn, of
        self._used: Amount | None = None
        self._id = ""

    def settle(self, *, cost: float | None = None, tokens: int | None = None) -> None:
        """Say what was used; recorded when the block ends."""
        self._used = budgets.amount(cost, tokens)

    def use(self) -> None:
        """What was reserved counts as used, unless the call said otherwise."""

    async def __aenter__(self) -> Reservation:
        if self._of is not None:
            turn = self._turn
            number = turn.records.occurrence("reserve", "")
            self._id = identity(turn.id, "reserve", number, turn.wake_id)
            await turn.log.write(budgets.reserved(self._id, self._of))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Where the run was stopped, the closing commit settles what is left.
        if self._of is not None and self._turn.driver.stopped is None:
            used = self._of if self._used is None else self._used
            await self._turn.log.write(budgets.settled(self._id, used))
