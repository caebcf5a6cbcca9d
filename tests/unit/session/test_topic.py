"""A topic: partials in their place, pages that followers share."""

from __future__ import annotations

from typing import Any

from limpet.model.events import Event
from limpet.model.keys import Key
from limpet.model.limits import FINALS_REMEMBERED, PARTIALS_WAITING_MAX
from limpet.session.follow import UNKNOWN, Follower, Topic
from limpet.store.sqlite.live import ROWS_MAX

KEY = Key("a", "b", "c")


def event(seq: int, **more: Any) -> Event:
    return Event(
        **{"seq": seq, "id": f"e{seq}", "type": "a.b", "actor": "x", "at_us": 1, "data": {}, **more}
    )


def partial(id: str, attempt: int = 1) -> Event:
    return event(0, id=id, partial=True, attempt=attempt)


def followed() -> tuple[Topic, Follower]:
    topic, follower = Topic(KEY), Follower(None, takes_partials=True)
    topic.followers.add(follower)
    return topic, follower


def test_a_partial_waits_for_its_mark() -> None:
    """It is due once the event with that seq was passed, and not before."""
    topic, follower = followed()
    topic.publish(5, partial("final"))
    assert topic.due(follower, 4, all_read=True) is None
    assert topic.due(follower, 5, all_read=False) == partial("final")


def test_a_partial_without_a_mark_waits_for_the_end() -> None:
    """Its publisher knew nothing of the log: everything that is there comes first."""
    topic, follower = followed()
    topic.publish(UNKNOWN, partial("final"))
    assert topic.due(follower, 99, all_read=False) is None
    assert topic.due(follower, 99, all_read=True) == partial("final")


def test_partials_keep_their_order() -> None:
    """A mark below that of the one before does not let it overtake."""
    topic, follower = followed()
    topic.publish(5, partial("one"))
    topic.publish(3, partial("two"))
    assert topic.due(follower, 3, all_read=True) is None
    met = [topic.due(follower, 5, all_read=True) for _ in range(3)]
    assert met == [partial("one"), partial("two"), None]


def test_a_partial_is_dropped_once_its_final_event_was_passed() -> None:
    """For those who are there; a follower further back still gets it, in its place."""
    topic, follower = followed()
    slow = Follower(None, takes_partials=True)
    topic.followers.add(slow)
    topic.passed(event(7, id="final"))
    topic.publish(6, partial("final"))
    assert topic.due(follower, 7, all_read=True) is None
    assert topic.due(slow, 6, all_read=False) == partial("final")


def test_final_events_are_remembered_for_a_while() -> None:
    """As many as the live channel of a file may still hold partials of."""
    topic, follower = followed()
    for seq in range(1, 3 * FINALS_REMEMBERED):
        topic.passed(event(seq))
    oldest = 2 * FINALS_REMEMBERED
    topic.publish(1, partial(f"e{oldest}"))
    assert topic.due(follower, seq, all_read=True) is None
    assert len(topic._finals) == FINALS_REMEMBERED >= ROWS_MAX


def test_pages_serve_those_who_stand_within_them() -> None:
    """From where it was read to before its last event, also where a seq is missing."""
    topic, _ = followed()
    page = (event(3), event(5), event(6))
    topic.keep(2, page)
    assert topic.kept(2) == page
    assert topic.kept(3) == topic.kept(4) == page[1:]
    assert topic.kept(5) == page[2:]
    assert topic.kept(1) == topic.kept(6) == ()
    topic.changed()
    assert topic.kept(2) == ()


def test_an_end_counts_only_while_nothing_was_heard_since() -> None:
    """Whoever reached the known version has everything, unless the topic changed meanwhile."""
    topic, _ = followed()
    topic.reached(5)
    assert topic.version == UNKNOWN  # what came before it is not known
    topic.read_to(5, topic.generation)
    topic.reached(6)
    assert topic.is_end(6, topic.generation)
    assert not topic.is_end(5, topic.generation)
    assert not topic.is_end(6, topic.generation - 1)
    topic.changed()
    assert not topic.is_end(6, topic.generation)
    topic.read_to(6, topic.generation - 1)
    assert topic.version == UNKNOWN


def test_one_that_is_joining_loses_the_oldest_partials_and_is_not_behind() -> None:
    """It could not read any of them yet; once it reads, one too many disconnects it."""
    topic, follower = followed()
    for n in range(PARTIALS_WAITING_MAX + 1):
        topic.publish(0, partial(f"p{n}"))
    assert not follower.behind
    assert follower.partials[0] == (0, partial("p1"))
    assert len(follower.partials) == PARTIALS_WAITING_MAX
    follower.joining = False
    topic.publish(0, partial("more"))
    assert follower.behind
