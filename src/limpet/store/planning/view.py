"""What the planner asks a store for."""

from __future__ import annotations

from typing import Protocol

from limpet.model import Event, Fold, Key, ScopeKey, ScopeValue
from limpet.store.planning.scope_limits import Sizes
from limpet.store.scopes import Scopes


class View(Protocol):
    """A store's present state, as the planner asks for it. Must not change while planning."""

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        """The session now, None if it never was; raises SessionDeleted or SessionErased.

        `reuse`: None also if it was deleted, because the key may belong to a new session.
        """
        ...

    def ended(self, key: Key, uid: str) -> bool:
        """Whether a session with this uid was deleted under the key."""
        ...

    def link_at(self, key: Key, seq: int) -> bytes | None:
        """The link of an event of a living session, if it has one with this seq. None, too, if that
        was removed with a session above."""
        ...

    def recorded(self, key: Key, id: str) -> Event | None:
        """The event that the session recorded under this id, if there is such a session."""
        ...

    def pending(self, key: Key, seq: int) -> bool:
        """Whether this event is an input that no later event has processed."""
        ...

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        """The newest version of a scope name."""
        ...

    def scope_version(self, key: ScopeKey) -> int:
        """The number of its newest version, which needs no value; 0 if it never was."""
        ...

    def scopes(self, app: str, user: str) -> Scopes:
        """The newest version of every name that this user's sessions see."""
        ...

    def names(self, app: str, user: str) -> Sizes | None:
        """Every name of one owner with its size, for `ScopeLimits`. None: it was not looked up."""
        ...
