"""Reservations: a part of the budget that a call may use, set aside before it begins."""

from __future__ import annotations

from limpet.model import Draft
from limpet.model.facts.running import budgets
from limpet.model.facts.running.budgets import Amount
from limpet.runtime.run import TurnRun
from limpet.runtime.turn_log import identity


class Reservation:
    """The budget that one call may use. It ends settled: at what was used, or at all of it."""

    def __init__(self, turn: TurnRun, of: Amount | None, id: str) -> None:
        self._turn, self._of, self._id = turn, of, id
        self._used = of
        self._is_open = False

    def settle(self, *, cost: float | None = None, tokens: int | None = None) -> None:
        """Say what was used; recorded when the block ends."""
        self._used = budgets.amount(cost, tokens)

    def settle_at(self, cost: float | None, tokens: int | None) -> None:
        """Settle at what was used, where that is known; else all of it counts as used."""
        if self._of is not None:
            used = budgets.amount(cost, tokens)
            most = self._of
            self._used = Amount(
                most.cost if cost is None else used.cost,
                most.tokens if tokens is None else used.tokens,
            )

    def settling(self) -> list[Draft]:
        """The record of its end, to be written with the result of its call."""
        if not self._is_open:
            return []
        assert self._used is not None
        self._is_open = False
        return [budgets.settled(self._id, self._used)]

    async def __aenter__(self) -> Reservation:
        if self._of is not None:
            await self._turn.log.write(budgets.reserved(self._id, self._of))
            self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        # Where the run was stopped, the closing commit settles what is left.
        if self._is_open and self._turn.driver.stopped is None:
            await self._turn.log.write(*self.settling())


class ReservedBlock(Reservation):
    """A part of a harness within which so much may be used, by whatever it calls.

    Like any call of a turn it is done once: a later run finds it settled, or, if the turn paused
    inside, still open.
    """

    def __init__(self, turn: TurnRun, of: Amount | None) -> None:
        super().__init__(turn, of, "")

    async def __aenter__(self) -> Reservation:
        if self._of is None:
            return self
        turn, number = self._turn, self._turn.records.occurrence("reserve", "block")
        tries = 0
        self._id = identity(turn.id, "reserve", number, tries)
        while (before := turn.records.reserved.get(self._id)) == "cut":  # made again, paid again
            tries += 1
            self._id = identity(turn.id, "reserve", number, tries)
        if before is None:
            return await super().__aenter__()
        self._is_open = before == "open"
        return self
