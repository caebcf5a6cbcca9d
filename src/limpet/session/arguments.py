"""Arguments of the verbs that no other part looks at, checked before anything is asked.

What is wrong is the caller's mistake and told as such (InvalidInput), whatever the store: a store
is never handed what it would stumble over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar

from limpet.errors import InvalidEvent, InvalidInput, InvalidKey, InvalidQuery
from limpet.model.events import Fact, to_time, to_us
from limpet.model.keys import Key, unfit
from limpet.model.limits import ACTOR_CHARS_MAX, PAGE_MAX, TAIL_LOADED
from limpet.model.values import described
from limpet.store.protocol import Progress
from limpet.store.select import check_tail

T = TypeVar("T", bound=Callable[..., Any])
AnyKey: TypeAlias = Key | tuple[str, str, str]


def key_of(key: AnyKey | str | None, user: str | None = None, id: str | None = None) -> Key:
    """The key that a verb was given: a Key, a tuple, or app, user and id. Raises InvalidKey."""
    if isinstance(key, str):
        for part, text in (("user", user), ("id", id)):
            if text is None:
                raise InvalidKey(part, "is missing: pass app, user and id, or one limpet.Key")
        return Key(key, user, id)  # type: ignore[arg-type]  # both are there
    if user is not None or id is not None:
        given = f"is {described(key)} and more beside it"
        raise InvalidKey("form", f"{given}: pass app, user and id, or one limpet.Key")
    if isinstance(key, Key):
        return key
    if not isinstance(key, tuple) or len(key) != 3:
        raise InvalidKey("form", f"is {key!r}, neither a limpet.Key nor (app, user, id)")
    return Key(*key)


def check_actor(actor: str | None) -> str | None:
    """Who is bound to a session, if anybody."""
    if actor is not None and (reason := unfit(actor, ACTOR_CHARS_MAX)):
        raise InvalidInput(f"the actor {reason}. Name who acts, as in actor='agent:main'.")
    return actor


def check_progress(progress: Progress | None) -> Progress | None:
    if progress is not None and not callable(progress):
        raise InvalidInput(
            f"progress is {described(progress)}. Pass a function that takes two numbers: how many "
            "are done, and of how many."
        )
    return progress


def check_change(change: T) -> T:
    """What `update` calls."""
    if not callable(change):
        raise InvalidInput(
            f"update takes a function, not {described(change)}. Pass one that takes the state and "
            "returns the names to set, or append an event with set=…."
        )
    return change


def check_fact(fact: Any) -> Fact:
    """What `record` takes: made by a constructor, so checked already."""
    if not isinstance(fact, Fact):
        raise InvalidInput(
            f"record takes facts, not {described(fact)}. Make them with limpet.facts, as in "
            "limpet.facts.labeled({'plan': 'gold'}); append records events of your own."
        )
    return fact


def check_many(drafts: Iterable[Any]) -> Iterable[Any]:
    """What `append_many` goes through; each draft is looked at by itself."""
    if not isinstance(drafts, Iterable):
        raise InvalidInput(
            f"append_many takes a list of drafts, not {described(drafts)}. Make them with "
            "limpet.Draft(type=…, data=…)."
        )
    return drafts


def timer_at(at: datetime | timedelta, now_us: int) -> datetime:
    """When a timer is due: at a time, or so long from now."""
    if not isinstance(at, timedelta):
        return at
    if at < timedelta(0):
        raise InvalidEvent(f"a timer is due after 0 seconds or more, not {at.total_seconds():g}")
    try:
        return to_time(now_us) + at
    except OverflowError:
        raise InvalidEvent(f"a timer of {at.days:,} days is due after the year 9999") from None


def moment_us(name: str, at: datetime | None) -> int | None:
    """A bound in time of a query, in microseconds since 1970."""
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidQuery(
            f"{name} is a datetime with a time zone, as in datetime.now(UTC), not {described(at)}"
        )
    return to_us(at)


def tail_of(tail: int | None, since: datetime | None) -> int:
    """How many of the last events to load: as said; else all since a time, as far as they go."""
    if tail is None:
        return TAIL_LOADED if since is None else PAGE_MAX
    return check_tail(tail)


def check_flag(name: str, flag: object) -> None:
    """Yes or no, and nothing that only counts as one of them."""
    if not isinstance(flag, bool):
        raise InvalidQuery(f"{name} is True or False, not {described(flag)}")
