"""Copied names: the log of which app: and user: names a copy has brought to a store.

Shared names belong to an app or a user, not to a session, and yet there is one way to write. So a
copy writes them through a log of its own in the reserved app `$$names`, one for each owner. Erasing
a user erases that log too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.model.events import Fact
from limpet.model.keys import Key, owner_of

APP: Final = "$$names"  # no collection of documents can have this name
COPIED: Final = "state.copied"
_ID: Final = "copied"


def names_key(app: str, user: str) -> Key:
    """The log of the names of one owner. Raises InvalidKey if app and user are too long for one."""
    return Key(APP, owner_of(app, user), _ID)


def copied(app: str, user: str, values: Mapping[str, Any]) -> Fact:
    """Names of an owner were copied from another store, with the values they had there."""
    data = {"app": app, "user": user, "names": sorted(values)}
    return Fact(type=COPIED, data=data, set=values)
