"""Moves under faults: a session has at most one owner at any moment, and one in the end."""

from __future__ import annotations

import pytest

from limpet.session.move import mover
from tests.support import move_simulation
from tests.support.examples import schedules
from tests.support.seeds import seed

FEW, MANY = 500, 10_000


async def test_a_session_is_never_lost_and_never_active_at_two_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Movers die before and after every call, messages are lost, repeated, late and out of order,
    nodes are out of reach in one direction, clocks leap, two movers race: after every call at most
    one store accepts a write; the next attempt finishes; the owner's log is whole, verifies, and
    begins with what the other store has."""
    monkeypatch.setattr(
        mover, "_WAIT_SECONDS", 0.000_1
    )  # the time that passes is the simulated one
    first = seed("moves")
    for number in range(first, first + schedules(FEW, MANY)):
        try:
            await move_simulation.run(number)
        except BaseException as error:
            error.add_note(f"schedule {number}")
            raise
