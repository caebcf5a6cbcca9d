"""Commits: what a store is asked to record of one session, and under which conditions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from limpet.model.events import Prepared
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.model.values import FrozenDict


class Base(msgspec.Struct, frozen=True, gc=False):
    """The state that a log begins on, instead of on nothing: its parent's at `floor`.

    `checksum` stands in the first own event, so that another state in its place shows.
    """

    parent: Key
    uid: str  # of the parent
    floor: int
    link: bytes  # of the parent's event there; the chain goes on from it
    fields: FrozenDict
    versions: FrozenDict
    checksum: bytes


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Drafts for one session, with conditions. Without any they rebase onto the newest state.

    Without drafts, it only says that the session (`uid`) must be there, at the version that it
    expects, or keeps a snapshot of it.
    """

    key: Key
    drafts: tuple[Prepared, ...]
    expect: int | None = None  # the session's version; 0 with session.created: make it
    fence: int | None = None  # the fence its runner holds
    guards: Mapping[str, int] = {}  # names in state, and the version each must still have
    schema: str | msgspec.UnsetType | None = msgspec.UNSET  # the schema version it was made for
    classless: bool = False  # not checked by a State class: must not change fields of typed state
    uid: str | None = None  # the session it means: another one under the same key is refused
    reuse: bool = False  # creates the session also if its key belongs to a deleted one
    base: Base | None = None  # the state that a new log begins on
    pin: int | None = None  # keep a snapshot of the version it leaves, under this number
    release: Lease | None = None  # ends with the commit
    # Whose app: and user: names it changes (app, user), if not those of its own key: the log of a
    # copy of names is in a reserved app. Nobody else says so.
    names_of: tuple[str, str] | None = None

    @property
    def owner(self) -> tuple[str, str]:
        """The app and the user whose app: and user: names it sees."""
        return self.names_of or (self.key.app, self.key.user)
