"""The chain: vectors computed here from its description, not from its code."""

from __future__ import annotations

import struct
from hashlib import sha256

from limpet.model import chain
from limpet.model.events import Draft, prepare
from limpet.model.fold import Fold, record
from limpet.model.head import blank
from limpet.model.keys import Key

UID = "01a1e12d-6459-7000-99bb-c2a881cf6b3c"
NAMES = ("id-1", "user.message", "user:ada", None, "inv", None, "wäke")


def test_a_chain_begins_with_its_session() -> None:
    """The link before the first event is a hash of the session's uid."""
    assert chain.genesis(UID) == sha256(b"limpet\x00" + UID.encode()).digest()
    assert chain.genesis(UID) != chain.genesis(UID[:-1] + "d")


def test_a_header_digest_covers_the_names_in_order() -> None:
    """Canonical JSON of seven names, absent ones as null."""
    raw = '["id-1","user.message","user:ada",null,"inv",null,"wäke"]'.encode()
    assert chain.header_digest(NAMES) == sha256(raw).digest()


def test_a_header_by_its_tail_is_the_same_digest() -> None:
    """What is the same for many events is made once; the digest does not show it."""
    tail = chain.header_tail("user.message", "user:ädä")
    names = (UID, "user.message", "user:ädä", None, None, None, None)
    assert chain.header_of(UID, tail) == chain.header_digest(names)


def test_a_body_digest_is_salted() -> None:
    """A short body cannot be guessed from its digest once the salt is gone."""
    raw = b'{"data":{"text":"yes"}}'
    assert chain.body_digest(b"\x01" * 16, raw) == sha256(b"\x01" * 16 + raw).digest()
    assert chain.body_digest(b"\x01" * 16, raw) != chain.body_digest(b"\x02" * 16, raw)


def test_a_link_covers_everything_before_it() -> None:
    """Previous link, seq and time as 8 big-endian bytes, header and body digests."""
    previous, header, body = b"p" * 32, b"h" * 32, b"b" * 32
    expected = sha256(
        previous + struct.pack(">Q", 7) + struct.pack(">q", 1_893_456_000_000_000) + header + body
    ).digest()
    assert chain.link(previous, 7, 1_893_456_000_000_000, header, body) == expected


def test_a_time_before_1970_has_a_link_too() -> None:
    """Time is signed."""
    expected = sha256(b"p" * 32 + struct.pack(">Qq", 1, -5) + b"h" * 32 + b"b" * 32).digest()
    assert chain.link(b"p" * 32, 1, -5, b"h" * 32, b"b" * 32) == expected


def test_recorded_events_are_linked_as_described() -> None:
    """Two events, linked by hand from what is stored of them."""
    fold = Fold(blank(Key("a", "u", "i"), UID, 5))
    drafts = [
        prepare(
            Draft(type="note.made", data={"n": n}, id=f"id-{n}", cause="c", set={"x": n}),
            id="unused",
            actor="me",
        )
        for n in (1, 2)
    ]
    link = sha256(b"limpet\x00" + UID.encode()).digest()
    for seq, draft in enumerate(drafts, 1):
        salt = bytes([seq]) * 16
        fold, rec = record(fold, draft, 1_000 + seq, salt)
        names = f'["id-{seq}","note.made","me","c",null,null,null]'.encode()
        body = b'{"data":{"n":%d},"ops":[["set",["x"],%d]]}' % (seq, seq)
        assert rec.raw == body
        link = sha256(
            link
            + struct.pack(">Qq", seq, 1_000 + seq)
            + sha256(names).digest()
            + sha256(salt + body).digest()
        ).digest()
        assert rec.event.link == fold.head.link == link


def test_every_field_of_an_event_is_covered() -> None:
    """Changing any one of them changes the link."""
    base = (b"p" * 32, 1, 2, chain.header_digest(NAMES), chain.body_digest(b"s" * 16, b"{}"))
    links = {chain.link(*base)}
    for place in range(len(NAMES)):
        names = tuple("other" if n == place else name for n, name in enumerate(NAMES))
        links.add(chain.link(*base[:3], chain.header_digest(names), base[4]))
    links.add(chain.link(b"q" * 32, *base[1:]))
    links.add(chain.link(base[0], 2, *base[2:]))
    links.add(chain.link(*base[:2], 3, *base[3:]))
    links.add(chain.link(*base[:4], chain.body_digest(b"s" * 16, b"{ }")))
    assert len(links) == 1 + len(NAMES) + 4


def test_a_salt_has_128_bits() -> None:
    """As the stored format says: fewer could be guessed with a short erased body."""
    assert chain.SALT_BYTES * 8 == 128
