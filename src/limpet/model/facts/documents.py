"""Documents: logs under reserved apps, each event of which puts a whole value or deletes it.

The first put is the creation of the log, so the seq of an event is the version of the document.
Nothing but puts and deletions is ever recorded in such a log. The value stands in the data of the
event; state takes it from there. The actor is a field too, so that a page of states has all of a
document. A deleted document has no fields.

What a session remembers goes back with it. Such a version has in its data the number of the newest
checkpoint of the session when it was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from limpet.model.events import Fact
from limpet.model.facts.creation import CREATED, created
from limpet.model.keys import Key, owner_of

FAMILY: Final = "document."
PUT: Final = "document.put"
DELETED: Final = "document.deleted"
VERSIONS: Final = (CREATED, PUT, DELETED)  # the types of events that make a version
VALUE: Final = "value"
ACTOR: Final = "actor"
CHECKPOINT: Final = "checkpoint"


def document_put(
    value: Any, *, actor: str | None, id: str | None = None, checkpoint: int | None = None
) -> Fact:
    """The document has this value from now on."""
    fields = {VALUE: value, ACTOR: actor}
    data = {VALUE: value, **_since(checkpoint)}
    return Fact(type=PUT, data=data, set=fields, actor=actor, id=id)


def document_created(
    key: Key, value: Any, *, actor: str | None, id: str | None = None, checkpoint: int | None = None
) -> Fact:
    """The document begins with this value."""
    first = created(key, fields={VALUE: value, ACTOR: actor}, actor=actor)
    data = {**first.data, VALUE: value, **_since(checkpoint)}
    return structs.replace(first, data=data, id=id)


def document_deleted(*, actor: str, checkpoint: int | None = None) -> Fact:
    """Delete the document; its earlier versions can still be read."""
    return Fact(type=DELETED, data=_since(checkpoint), delete=(VALUE, ACTOR), actor=actor)


def _since(checkpoint: int | None) -> dict[str, Any]:
    return {} if checkpoint is None else {CHECKPOINT: checkpoint}


NAMES_APP: Final = "$$names"  # no collection of documents can have this name
COPIED: Final = "state.copied"
_ID: Final = "copied"


def names_key(app: str, user: str) -> Key:
    """The log of the names of one owner. Raises InvalidKey if app and user are too long for one."""
    return Key(NAMES_APP, owner_of(app, user), _ID)


def copied(app: str, user: str, values: Mapping[str, Any]) -> Fact:
    """Names of an owner were copied from another store, with the values they had there."""
    data = {"app": app, "user": user, "names": sorted(values)}
    return Fact(type=COPIED, data=data, set=values)
