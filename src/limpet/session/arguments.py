"""Arguments of the verbs that no other part looks at, checked before anything is asked.

What is wrong is the caller's mistake and told as such (InvalidInput), whatever the store: a store
is never handed what it would stumble over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from limpet.errors import InvalidInput, InvalidQuery
from limpet.model.events import to_us
from limpet.model.keys import unfit
from limpet.model.limits import ACTOR_CHARS_MAX, PAGE_MAX, TAIL_LOADED
from limpet.model.values import described
from limpet.store.protocol import Progress
from limpet.store.select import check_tail

T = TypeVar("T", bound=Callable[..., Any])


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


def check_many(drafts: Iterable[Any]) -> Iterable[Any]:
    """What `append_many` goes through; each draft is looked at by itself."""
    if not isinstance(drafts, Iterable):
        raise InvalidInput(
            f"append_many takes a list of drafts, not {described(drafts)}. Make them with "
            "limpet.Draft(type=…, data=…)."
        )
    return drafts


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
