"""What a writer remembers of a session, as readers in other threads find it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from limpet.model import Event, Fold, Recorded, blank
from limpet.model.fold import record
from limpet.store import cache
from limpet.store.cache import CachedSession
from limpet.testing.commits import draft, key
from limpet.testing.laws.log.facts import idle

SALT = bytes(16)


def test_an_input_is_never_seen_processed_by_an_event_that_is_not_there() -> None:
    """A reader takes a copy between any two steps of the writer: at each it fits its last event."""
    fold, recorded = Fold(blank(key("a"), "uid", 0)), list[Recorded]()
    for each in (draft("session.created"), draft("user.said"), draft("user.said"), idle(2, 3)):
        fold, rec = record(fold, each, 1, SALT)
        recorded.append(rec)
    live, seen = CachedSession(1, fold, 0, 0, 0), list[tuple[Event, ...]]()

    def look(frame: FrameType, _: str, __: object) -> Any:
        frame.f_trace_opcodes = frame.f_code is CachedSession.add.__code__
        seen.append(tuple(live.tail))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        for rec in recorded:
            live.add(rec)
    finally:
        sys.settrace(before)
    assert {tail[-1].seq for tail in seen if tail} == {1, 2, 3, 4}
    for tail in seen:
        assert all([(event.processed or 0) <= tail[-1].seq for event in tail])
    assert [event.processed for event in live.tail] == [None, 4, 4, None]


def test_an_entry_that_is_replaced_takes_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a session is read again, the others stay."""
    monkeypatch.setattr(cache, "BYTES_MAX", 8_192)
    kept = cache.Cache()
    for _ in range(50):
        for name in ("a", "b"):
            kept.keep(key(name), CachedSession(1, Fold(blank(key(name), "uid", 0)), 0, 0, 0))
    assert kept.peek(key("a")) is not None
    assert kept.peek(key("b")) is not None


def test_the_session_that_was_not_used_for_longest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To write to one is to use it."""
    monkeypatch.setattr(cache, "SESSIONS_MAX", 2)
    kept = cache.Cache()
    lives = {name: CachedSession(1, Fold(blank(key(name), "uid", 0)), 0, 0, 0) for name in "abc"}
    for name in "abac":
        kept.keep(key(name), lives[name])
    assert [kept.peek(key(name)) is not None for name in "abc"] == [True, False, True]
