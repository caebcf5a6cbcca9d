"""The view of facts: the document in the head that a fact may read and change.

Each subject owns one member of the document and leaves the others as they are. A member that is
not there has its default value, so that a plain session has an empty document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from limpet.model.values import EMPTY, FrozenDict

Facts: TypeAlias = FrozenDict
Changes: TypeAlias = dict[str, Any]  # members of the document; None removes one
Texts: TypeAlias = Mapping[int, FrozenDict]  # the data of events that the document names, by seq
NO_TEXTS: Final[Texts] = EMPTY  # type: ignore[assignment]  # no seqs


_put: Final[Any] = dict.__setitem__  # into a FrozenDict that nobody else has seen yet
_drop: Final[Any] = dict.pop


class Moment(NamedTuple):
    """The moment at which an event is folded: its seq, and the clock's time when it was
    recorded."""

    seq: int
    now_us: int
    at_us: int = 0  # the time of the event, which replay has too
    created_us: int = 0  # when the session was created


# The document before the event, the event's data, and when it was recorded.
Fold: TypeAlias = Callable[[Facts, Mapping[str, Any], Moment], Changes]
# The document before and after the event, and its data. Raises to refuse the commit.
Check: TypeAlias = Callable[[Facts, Facts, Mapping[str, Any]], None]


def with_changes(facts: Facts, changes: Changes) -> Facts:
    """The document with some members replaced; without those that became None.

    The same object if there are none: a store writes the document only if it is another one.
    """
    return replaced(facts, changes) if changes else facts


def replaced(document: FrozenDict, changes: Changes) -> FrozenDict:
    """A copy with some members replaced, without those that became None."""
    after = FrozenDict(document)  # ours until it is returned
    for name, value in changes.items():
        if value is None:
            _drop(after, name, None)
        else:
            _put(after, name, value)
    return after
