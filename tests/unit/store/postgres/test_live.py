"""Messages of the live channel and the pieces they are sent in."""

from __future__ import annotations

import random

import pytest

from limpet.store.postgres.live import PIECE_CHARS, SENDERS_MAX, Pieces, split

PAYLOAD_BYTES_MAX = 7_999  # of a notification


@pytest.mark.parametrize("length", [0, 1, PIECE_CHARS, 40_000, 400_000])
def test_a_message_comes_back_from_its_pieces(length: int) -> None:
    """With the last of them, and not before; each fits a notification."""
    message = random.Random(length).randbytes(length)
    payloads = split("0123456789abcdef.1000000", message)
    pieces = Pieces()
    assert [pieces.add(each) for each in payloads[:-1]] == [None] * (len(payloads) - 1)
    assert pieces.add(payloads[-1]) == message
    assert max(len(each.encode()) for each in payloads) <= PAYLOAD_BYTES_MAX


def test_a_message_that_lacks_a_piece_is_dropped() -> None:
    """Whichever piece it is, and the next message comes whole."""
    first, second = split("a.1", b"x" * 30_000), split("a.2", b"y" * 30_000)
    for lost in range(len(first)):
        pieces = Pieces()
        met = [pieces.add(each) for place, each in enumerate(first) if place != lost]
        assert met == [None] * (len(first) - 1)
        assert [pieces.add(each) for each in second][-1] == b"y" * 30_000


def test_messages_of_several_senders_do_not_mix() -> None:
    """Their pieces may come in turns."""
    sent = {name: split(f"{name}.1", name.encode() * 20_000) for name in ("a", "b")}
    pieces = Pieces()
    met = [pieces.add(each) for pair in zip(*sent.values(), strict=True) for each in pair]
    assert met[-2:] == [b"a" * 20_000, b"b" * 20_000]


def test_senders_who_never_finish_are_forgotten() -> None:
    """Only so many are remembered."""
    pieces = Pieces()
    for number in range(3 * SENDERS_MAX):
        pieces.add(split(f"{number}.1", b"x" * 30_000)[0])
    assert len(pieces._parts) == SENDERS_MAX


@pytest.mark.parametrize(
    "payload", ["", "x", "a.1.0.1", "a.1.x.1.", "a.1.0.x.", "....", "a.1.5.1."]
)
def test_what_is_not_a_piece_is_passed_over(payload: str) -> None:
    """Another program may notify on the same channel."""
    assert Pieces().add(payload) is None
