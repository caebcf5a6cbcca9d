"""Verification: whatever is changed after the fact is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from limpet.model import chain
from limpet.model.events import Fact, prepare
from limpet.model.fold import Fold, record
from limpet.model.head import blank
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict, freeze
from limpet.store.protocol import Finding
from limpet.store.verify import Stored, verify_session

KEY = Key("shop", "ada", "1")
GOLD = {"labels": {"plan": "gold"}}
replace = msgspec.structs.replace


def history() -> tuple[Fold, list[Stored]]:
    """Five sound events: a creation, an input, a change of state, its processing, a label."""
    drafts = [
        ("session.created", {"app": "shop", "user": "ada", "id": "1"}, {"set": {"n": 0}}),
        ("user.said", {"text": "hi"}, {}),
        ("agent.said", {"text": "ho"}, {"inc": {"n": 1}, "cause": "id-2", "wake_id": "w"}),
        ("session.processed", {"seqs": [2]}, {}),
        ("session.labeled", {"labels": {"plan": "gold"}}, {}),
    ]
    fold = Fold(blank(KEY, "id-1", 1_000))
    stored: list[Stored] = []
    for n, (type, data, more) in enumerate(drafts, 1):
        draft = Fact(type=type, data=data, actor="me", id=f"id-{n}", **more)
        ready = prepare(draft, id="", actor=None)
        fold, rec = record(fold, ready, 1_000 * n, bytes([n]) * 16)
        stored.append((rec.event, rec.raw, rec.salt, rec.digest))
    done = stored[3][0]
    seen = replace(stored[1][0], processed=done.seq, processed_us=done.at_us)
    stored[1] = (seen, *stored[1][1:])
    return fold, stored


def findings(fold: Fold, stored: list[Stored]) -> list[Finding]:
    return list(verify_session(fold, iter(stored)))


def test_a_sound_history_has_no_findings() -> None:
    """What was recorded verifies."""
    assert findings(*history()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"type": "agent.shouted"},
        {"actor": "you"},
        {"at_us": 3_001},
        {"cause": None},
        {"invocation_id": "x"},
        {"correlation_id": "x"},
        {"wake_id": None},
        {"link": b"\x00" * 32},
        {"seq": 4},
        {"seq": 2},
        {"processed": 0},
        {"processed": 4},
        {"damage": "could not be read", "data": None},
    ],
    ids=str,
)
def test_a_changed_field_of_an_event_is_found(change: dict[str, Any]) -> None:
    """Every field of the row is covered by the chain or by a rule, and the finding names it."""
    fold, stored = history()
    stored[2] = (replace(stored[2][0], **change), *stored[2][1:])
    found = findings(fold, stored)
    assert found
    assert {finding.key for finding in found} == {KEY}
    assert any(finding.seq in (3, change.get("seq")) for finding in found)


def test_a_time_before_the_event_it_follows_is_found() -> None:
    """Though the chain was computed again and the head says the same."""
    fold, stored = history()
    event, raw, salt, digest = stored[-1]
    names = (event.id, event.type, event.actor, None, None, None, None)
    link = chain.link(stored[-2][0].link, event.seq, 1, chain.header_digest(names), digest)
    stored[-1] = (replace(event, at_us=1, link=link), raw, salt, digest)
    fold = replace(fold, head=replace(fold.head, link=link, updated_us=1))
    assert [(found.problem, found.seq) for found in findings(fold, stored)] == [
        ("was recorded before the event it follows", 5)
    ]


@pytest.mark.parametrize("place", range(5))
def test_a_changed_body_salt_or_digest_is_found(place: int) -> None:
    """Each of the three alone, at every event."""
    for column, value in ((1, b'{"data":{"text":"no"}}'), (2, b"x" * 16), (3, b"x" * 32)):
        fold, stored = history()
        row = list(stored[place])
        row[column] = value
        stored[place] = tuple(row)  # type: ignore[assignment]  # same shape
        assert any(finding.seq == place + 1 for finding in findings(fold, stored))


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.pop(),
        lambda stored: stored.pop(2),
        lambda stored: stored.pop(0),
        lambda stored: stored.insert(2, stored[1]),
        lambda stored: stored.append(stored[-1]),
        lambda stored: stored.reverse(),
        lambda stored: stored.clear(),
    ],
    ids=["end cut", "hole", "beginning cut", "doubled", "last doubled", "reversed", "emptied"],
)
def test_a_missing_doubled_or_moved_event_is_found(change: Callable[[list[Stored]], None]) -> None:
    """The log is dense and complete up to the head's version."""
    fold, stored = history()
    change(stored)
    assert findings(fold, stored)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 4},
        {"version": 6},
        {"link": b"x" * 32},
        {"updated_us": 9_999},
        {"active_us": 9_999},
        {"facts": freeze({"labels": {"plan": "free"}})},
        {"facts": EMPTY},
        {"facts": freeze({**GOLD, "inputs": {"pending": 1, "since_us": 2_000}})},
        {"facts": freeze({**GOLD, "timers": {"t": {"at_us": 1, "kind": "wake", "seq": 3}}})},
        {"facts": freeze({**GOLD, "priority": 1})},
        {"facts": freeze({**GOLD, "unknown": 1})},
        {"uid": "other"},
        {"key": Key("shop", "bob", "1")},
        {"created_us": 2_000},
        {"created_us": 500},
    ],
    ids=str,
)
def test_a_head_that_its_log_does_not_amount_to_is_found(change: dict[str, Any]) -> None:
    """A row cannot change hands, labels or age unseen."""
    fold, stored = history()
    assert findings(replace(fold, head=replace(fold.head, **change)), stored)


@pytest.mark.parametrize("field", ["fields", "versions"])
def test_a_state_that_its_log_does_not_amount_to_is_found(field: str) -> None:
    """Cached state is compared with what the events make of it."""
    fold, stored = history()
    assert findings(replace(fold, **{field: FrozenDict({"n": 7})}), stored)


def test_a_processing_that_no_event_tells_is_found() -> None:
    """Marked without being processed, by another event than the log says, or not an input."""
    for change in ({"processed": 0}, {"processed": 5}, {"processed": None}):
        fold, stored = history()
        stored[1] = (replace(stored[1][0], **change), *stored[1][1:])
        assert findings(fold, stored)


@pytest.mark.parametrize("place", range(5))
def test_a_damaged_event_does_not_stop_the_reading(place: int) -> None:
    """Each damaged event is one finding of its own, and later rot is found behind it."""
    fold, stored = history()
    lost = replace(stored[place][0], damage="has rotted", data=None, ops=())
    stored[place] = (lost, None, *stored[place][2:])
    last = list(stored[4])
    if place != 4:
        last[1] = b"{}"
        stored[4] = tuple(last)  # type: ignore[assignment]  # same shape
    seqs = {finding.seq for finding in findings(fold, stored)}
    assert {place + 1, 5} <= seqs
