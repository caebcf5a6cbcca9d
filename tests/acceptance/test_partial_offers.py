"""Partials that are offered to a client which does not answer: what is kept for it is bounded."""

from __future__ import annotations

from limpet.model import Event, Key
from limpet.server.partials import OFFERS_MAX, Interest
from limpet.store.coding.codec import Codec
from limpet.store.live import Packed, pack_all
from limpet.store.protocol import Partial


class Silent:
    """A connection that notes what it is told, and says nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def tell(self, kind: str, value: object) -> None:
        self.told.append((kind, value))


def piece(number: int) -> Packed:
    event = Event(seq=0, id="e", type="agent.message", actor="a:b", at_us=1, data={}, partial=True)
    (packed,) = pack_all(Codec(), [Partial(Key("app", "ada", f"s{number}"), "uid", 1, event)])
    return packed


def test_a_client_that_does_not_answer_is_not_offered_without_end() -> None:
    """The newest sessions are kept, and given out once it answers."""
    silent = Silent()
    interest = Interest(silent)
    for number in range(OFFERS_MAX + 500):
        interest.offer([piece(number)])
    assert len(interest._offered) == OFFERS_MAX
    interest.answered(Key("app", "ada", f"s{OFFERS_MAX + 499}"), wanted=True)
    assert silent.told[-1][0] == "partials"
    interest.answered(Key("app", "ada", "s0"), wanted=True)  # it was dropped meanwhile
    assert len([kind for kind, _ in silent.told if kind == "partials"]) == 1
