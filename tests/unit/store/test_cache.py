"""What a writer remembers of a session, as readers in other threads find it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from limpet.model import Event, Fold, Recorded, blank
from limpet.model.fold import record
from limpet.store.cache import Live
from limpet.testing.commits import draft, key
from limpet.testing.laws.log.facts import idle

SALT = bytes(16)


def test_an_input_is_never_seen_processed_by_an_event_that_is_not_there() -> None:
    """A reader takes a copy between any two steps of the writer: at each it fits its last event."""
    fold, recorded = Fold(blank(key("a"), "uid", 0)), list[Recorded]()
    for each in (draft("session.created"), draft("user.said"), draft("user.said"), idle(2, 3)):
        fold, rec = record(fold, each, 1, SALT)
        recorded.append(rec)
    live, seen = Live(1, fold, 0, 0, 0), list[tuple[Event, ...]]()

    def look(frame: FrameType, _: str, __: object) -> Any:
        frame.f_trace_opcodes = frame.f_code is Live.add.__code__
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
