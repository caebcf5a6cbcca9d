"""Things of the wire that are documents of ours: create, read, change, list, archive.

The value of a document holds what the client gave and `created_at`, and `archived_at` once it was
archived. Its id is its name, and sorts by the time it was made at.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from limpet.errors import DocumentConflict, DocumentNotFound, InvalidInput, InvalidKey
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.server import ids
from limpet.server.managed.wire import Json, WireCall, from_token, page, rfc3339, to_token
from limpet.session.documents import Document, Documents

Show = Callable[[Document], Json]
_NAME_CHARS_MAX: Final = 256
_AFTER_FIRST: Final = "first"  # the token of the page that begins with the first document


def shown(document: Document, type: str) -> Json:
    """The value with what every thing has."""
    value: Json = dict(document.value)
    value.setdefault("created_at", rfc3339(document.at))
    value.setdefault("archived_at", None)
    return {"id": document.name, "type": type, **value, "updated_at": rfc3339(document.at)}


async def create(call: WireCall, documents: Documents, prefix: str, value: Json) -> Document:
    """Put it under a new id."""
    made = {**value, "created_at": rfc3339(call.lp.now())}
    return await documents.put(ids.new_id(prefix), made, expect=0)


async def find(documents: Documents, id: str, version: int | None = None) -> Document:
    """Return a document. Raises DocumentNotFound, also for a malformed id."""
    try:
        return await documents.get(id, version)
    except InvalidKey:
        raise DocumentNotFound(documents.collection, id[:100]) from None


async def change(documents: Documents, id: str, changed: Callable[[Json], Json | None]) -> Document:
    """Put what `changed` makes of its value (None: nothing), on the version that it saw.

    Raises DocumentNotFound, InvalidInput if it is archived.
    """
    document = await find(documents, id)
    for _ in range(UPDATE_TRIES_MAX):
        if document.value.get("archived_at") is not None:
            raise InvalidInput(f"{id} is archived. Create another one.")
        value = changed(dict(document.value))
        if value is None or value == document.value:
            return document
        try:
            return await documents.put(id, value, expect=document.version)
        except DocumentConflict:
            document = await find(documents, id)
    raise DocumentConflict(documents.collection, id, document.version, None)


async def archive(call: WireCall, documents: Documents, id: str) -> Document:
    """Archive a document. Repeating it changes nothing."""
    document = await find(documents, id)
    if document.value.get("archived_at") is not None:
        return document
    now = rfc3339(call.lp.now())
    return await change(documents, id, lambda value: {**value, "archived_at": now})


async def remove(documents: Documents, id: str, type: str) -> Json:
    """Remove it with its history. Raises DocumentNotFound."""
    await find(documents, id)
    await documents.purge(id)
    return {"id": id, "type": type}


async def listed(
    call: WireCall,
    documents: Documents,
    show: Show,
    *,
    prefix: str = "",
    keep: Callable[[Document], bool] = lambda document: True,
    first: tuple[Json, ...] = (),
) -> Json:
    """A page of them, in the order in which they were made, after those that are always there."""
    limit, cursor, items = call.limit(), None, list(first)
    if (token := call.text("page")) is not None:
        cursor, items = None if token == _AFTER_FIRST else from_token(token), []
    elif len(items) == limit:
        return page(items, _AFTER_FIRST)
    archived, created = call.flag("include_archived"), call.times()
    while True:
        part = await documents.list(prefix, limit=limit - len(items), cursor=cursor)
        for document in part.items:
            form = show(document)
            is_shown = archived or form.get("archived_at") is None
            if is_shown and keep(document) and created(micros(form["created_at"])):
                items.append(form)
        cursor = part.cursor
        if cursor is None or len(items) == limit:
            return page(items, None if cursor is None else to_token(cursor))


def micros(text: str) -> int:
    """A time of the wire as microseconds since 1970."""
    return int(datetime.fromisoformat(text).timestamp() * 1_000_000)


def patched(metadata: Json, patch: Any) -> Json:
    """Metadata with a patch applied: null deletes a key. Raises InvalidInput."""
    if patch is None:
        return metadata
    joined = {**metadata, **patch}
    return check_metadata({name: value for name, value in joined.items() if value is not None})


def check_name(field: str, name: str) -> None:
    """Raise InvalidInput unless it is within the bounds of the wire."""
    if not 0 < len(name) <= _NAME_CHARS_MAX:
        raise InvalidInput(f"{field} is a text of 1 to {_NAME_CHARS_MAX} characters.")


def check_metadata(metadata: Json) -> Json:
    """Raise InvalidInput unless it is within the bounds of the wire."""
    fits = len(metadata) <= 16 and all(
        [len(name) <= 64 and len(value) <= 512 for name, value in metadata.items()]
    )
    if not fits:
        raise InvalidInput("metadata has at most 16 names of 64 characters, with 512 each.")
    return metadata
