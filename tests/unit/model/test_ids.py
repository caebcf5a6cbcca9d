"""Ids: UUID version 7 by the letter, and sorted as they were made."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from limpet.model.keys import Ids, Noise

ONES = b"\xff" * 8
ZEROS = b"\x00" * 8


def counting() -> Callable[[int], bytes]:
    """Bytes that never repeat within a test: 0, 1, 2, … as eight-byte numbers."""
    number = iter(range(10**9))
    return lambda size: b"".join(next(number).to_bytes(8, "big") for _ in range(size // 8))


def made(at_ms: int, counter: int, noise: bytes) -> str:
    """The id that is made in this millisecond after so many others, of this noise."""
    ids = Ids(lambda: at_ms * 1_000_000 + 999_999, lambda size: noise * (size // 8))
    return [ids() for _ in range(counter + 1)][-1]


@pytest.mark.parametrize("noise", [ZEROS, ONES, bytes(range(8))])
@pytest.mark.parametrize("counter", [0, 1, 0xFFF])
@pytest.mark.parametrize("at_ms", [0, 1_700_000_000_000, 2**48 - 1])
def test_every_field_stands_where_rfc_9562_puts_it(at_ms: int, counter: int, noise: bytes) -> None:
    """Time, version, counter, variant and noise are read back by an independent parser."""
    parsed = uuid.UUID(made(at_ms, counter, noise))
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == at_ms
    assert parsed.int >> 64 & 0xFFF == counter
    assert parsed.int & (1 << 62) - 1 == int.from_bytes(noise, "big") & (1 << 62) - 1


def test_the_example_of_the_rfc_is_reproduced() -> None:
    """RFC 9562, appendix A.6: time 0x017F22E279B0, rand_a 0xCC3, rand_b 0x18C4DC0C0C07398F."""
    noise = 0x18C4DC0C0C07398F.to_bytes(8, "big")
    assert made(0x017F22E279B0, 0xCC3, noise) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


def test_the_text_is_the_standard_one() -> None:
    """Lower-case hexadecimal with four hyphens, as uuid.UUID prints it."""
    id = made(1_700_000_000_000, 5, ONES)
    assert str(uuid.UUID(id)) == id


def test_ids_sort_in_the_order_they_were_made() -> None:
    """As text, within a millisecond and across them."""
    now = iter(n // 100 * 1_000_000 for n in range(1_000))
    ids = Ids(lambda: next(now), counting())
    made = [ids() for _ in range(1_000)]
    assert made == sorted(made)
    assert len(set(made)) == 1_000


def test_a_clock_that_steps_back_does_not_unsort_ids() -> None:
    """The last millisecond used is held until the clock has passed it."""
    times = iter([1_000, 400, 999, 1_000, 1_001])
    ids = Ids(lambda: next(times) * 1_000_000, counting())
    made = [ids() for _ in range(5)]
    assert made == sorted(made)
    assert [uuid.UUID(id).int >> 80 for id in made] == [1_000, 1_000, 1_000, 1_000, 1_001]


def test_a_used_up_millisecond_borrows_the_next() -> None:
    """More than 4,096 ids in one millisecond are still unique and sorted."""
    ids = Ids(lambda: 7_000_000, lambda size: ZEROS * (size // 8))
    made = [ids() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert {uuid.UUID(id).int >> 80 for id in made} == {7, 8, 9}


@pytest.mark.parametrize("size", [8, 16])
def test_noise_is_drawn_in_blocks_and_given_once(size: int) -> None:
    """No two takes share a byte, and a thousand takes need few draws."""
    draws: list[int] = []
    source = counting()

    def draw(size: int) -> bytes:
        draws.append(size)
        return source(size)

    noise = Noise(draw, size)
    taken = [noise() for _ in range(1_000)]
    assert {len(each) for each in taken} == {size}
    assert len(set(taken)) == 1_000
    assert len(draws) <= 4


def test_a_draw_that_is_interrupted_is_made_again() -> None:
    """Ids and noise go on after an interrupt, whenever it came."""
    fails = iter([True, False, True, False])
    source = counting()

    def draw(size: int) -> bytes:
        if next(fails):
            raise KeyboardInterrupt
        return source(size)

    ids, noise = Ids(lambda: 0, draw), Noise(draw, 16)
    for take in (ids, noise):
        with pytest.raises(KeyboardInterrupt):
            take()
        assert take() != take()
