"""Memory stores: documents of the user, and the memories in them, by path, with their versions.

A path is claimed by a document of its own, put in the same commit as the memory: no two memories of
a store have one path. The path and content of each version are a document of their own too, so that
a version can be redacted: its text is removed from the store, and the others stay.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.routing import BaseRoute

from limpet.errors import (
    DocumentConflict,
    DocumentNotFound,
    InvalidInput,
    InvalidKey,
    InvalidQuery,
    MemoryPathTaken,
    MemoryPreconditionFailed,
)
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.server import ids
from limpet.server.forms import PageForm
from limpet.server.managed import shelf
from limpet.server.managed.forms import (
    DeletedForm,
    MemoryForm,
    MemoryItemForm,
    MemoryStoreForm,
    MemoryVersionForm,
)
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    from_token,
    page,
    place_in,
    rfc3339,
    to_token,
    whole_number,
)
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.documents import Document, Documents
from limpet.session.journal import retrying

STORES: Final = "wire_memory_stores"
MEMORIES: Final = "wire_memories"
TEXTS: Final = "wire_memory_texts"  # the path and content of one version
REDACTED: Final = "wire_memory_redactions"  # of one version: when, and by whom
PATHS: Final = "wire_memory_paths"
_CONTENT_BYTES_MAX: Final = 100 * 1024
_PATH_BYTES_MAX: Final = 1_024
_STEPS_MAX: Final = 20  # of a path
_UNSEEN: Final = frozenset(("Cc", "Cf", "Zl", "Zp"))  # control and format characters, lines
_READ_AT_ONCE: Final = 100
_OPERATIONS: Final = ("created", "modified", "deleted")


class StoreCreate(msgspec.Struct):
    """The body of memory_stores.create."""

    name: str
    description: str = ""
    metadata: dict[str, str] = {}


class StoreUpdate(msgspec.Struct):
    """The body of memory_stores.update."""

    name: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    metadata: dict[str, str | None] | UnsetType | None = UNSET


class MemoryCreate(msgspec.Struct):
    """The body of memories.create."""

    path: str
    content: str | None


class MemoryUpdate(msgspec.Struct):
    """The body of memories.update."""

    path: str | None = None
    content: str | None = None
    precondition: dict[str, Any] | None = None


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/v1/memory_stores{path}", method, act)

    memories, versions = "/{store_id}/memories", "/{store_id}/memory_versions"
    return [
        at("POST", "", create_store),
        at("GET", "", list_stores),
        at("GET", "/{store_id}", retrieve_store),
        at("POST", "/{store_id}", update_store),
        at("DELETE", "/{store_id}", delete_store),
        at("POST", "/{store_id}/archive", archive_store),
        at("POST", memories, create),
        at("GET", memories, listed),
        at("GET", memories + "/{id}", retrieve),
        at("POST", memories + "/{id}", update),
        at("DELETE", memories + "/{id}", delete),
        at("GET", versions, list_versions),
        at("GET", versions + "/{id}", retrieve_version),
        at("POST", versions + "/{id}/redact", redact),
    ]


# --- stores ---------------------------------------------------------------------------------------


@describe(response=MemoryStoreForm)
async def create_store(call: WireCall) -> Answer:
    value = msgspec.to_builtins(await call.body(StoreCreate))
    shelf.check_name("name", value["name"])
    shelf.check_metadata(value["metadata"])
    return _store(await shelf.create(call, call.of_user(STORES), "memstore_", value))


@describe(response=PageForm[MemoryStoreForm])
async def list_stores(call: WireCall) -> Answer:
    return await shelf.listed(call, call.of_user(STORES), _store)


@describe(response=MemoryStoreForm)
async def retrieve_store(call: WireCall) -> Answer:
    return _store(await shelf.find(call.of_user(STORES), call.path("store_id")))


@describe(response=MemoryStoreForm)
async def update_store(call: WireCall) -> Answer:
    body = msgspec.to_builtins(await call.body(StoreUpdate))
    given = {name: value for name, value in body.items() if value is not None}
    if "name" in given:
        shelf.check_name("name", given["name"])

    def changed(value: Json) -> Json:
        metadata = shelf.patched(value["metadata"], given.get("metadata"))
        return {**value, **given, "metadata": metadata}

    return _store(await shelf.change(call.of_user(STORES), call.path("store_id"), changed))


@describe(response=DeletedForm)
async def delete_store(call: WireCall) -> Answer:
    store = call.path("store_id")
    await shelf.find(call.of_user(STORES), store)
    for collection in (MEMORIES, PATHS, TEXTS, REDACTED):
        documents = call.of_user(collection)
        async for document in documents.each(f"{store}/"):
            await documents.purge(document.name)
    return await shelf.remove(call.of_user(STORES), store, "memory_store_deleted")


@describe(response=MemoryStoreForm)
async def archive_store(call: WireCall) -> Answer:
    return _store(await shelf.archive(call, call.of_user(STORES), call.path("store_id")))


def _store(document: Document) -> Json:
    return shelf.shown(document, "memory_store")


async def open_store(call: WireCall, id: str) -> Document:
    """A store of this user, to be used. Raises DocumentNotFound, InvalidInput."""
    store = await shelf.find(call.of_user(STORES), id)
    if store.value.get("archived_at") is not None:
        raise InvalidInput(f"the memory store {store.name} is archived. Use another one.")
    return store


async def _store_of(call: WireCall) -> str:
    """The store of the path, to write to. Raises DocumentNotFound, InvalidInput."""
    return (await open_store(call, call.path("store_id"))).name


# --- memories -------------------------------------------------------------------------------------


class StoredMemory:
    """One memory: its newest version, and the path and content that this version has."""

    def __init__(self, document: Document, text: Json) -> None:
        self.document = document
        self.path: str = text["path"]
        self.content: str = text["content"]

    def form(self, *, full: bool) -> Json:
        store, _, id = self.document.name.partition("/")
        return {
            "id": id,
            "type": "memory",
            "memory_store_id": store,
            "memory_version_id": _version_id(id, self.document.version),
            "path": self.path,
            "content": self.content if full else None,
            "content_sha256": _hash(self.content),
            "content_size_bytes": len(self.content.encode()),
            "created_at": self.document.value["created_at"],
            "updated_at": rfc3339(self.document.at),
        }

    def check_content(self, expected: object) -> None:
        """Raise MemoryPreconditionFailed if it has another content."""
        if expected is not None and expected != _hash(self.content):
            raise MemoryPreconditionFailed(self.document.name.rpartition("/")[2])


async def _find(call: WireCall, name: str) -> StoredMemory:
    """Return a memory. Raises DocumentNotFound."""
    document = await shelf.find(call.of_user(MEMORIES), name)
    text = await call.of_user(TEXTS).get(_text_name(name, document.version))
    return StoredMemory(document, text.value)


async def _each(call: WireCall, documents: Sequence[Document]) -> list[StoredMemory]:
    """These memories, without those that have changed meanwhile beyond recognition."""
    texts, memories = call.of_user(TEXTS), list[StoredMemory]()
    for first in range(0, len(documents), _READ_AT_ONCE):
        some = documents[first : first + _READ_AT_ONCE]
        read = [texts.find(_text_name(each.name, each.version)) for each in some]
        for document, text in zip(some, await asyncio.gather(*read), strict=True):
            if text is not None:  # else it was deleted and redacted since it was listed
                memories.append(StoredMemory(document, text.value))
    return memories


def _text_name(name: str, version: int) -> str:
    return f"{name}/{version}"


@describe(response=MemoryForm)
async def create(call: WireCall) -> Answer:
    store, body = await _store_of(call), await call.body(MemoryCreate)
    view = call.view("full")
    text = {"path": _path(body.path), "content": _content(body.content or "")}
    name, made_at = f"{store}/{ids.new_id('mem_')}", rfc3339(call.lp.now())
    made = await retrying(  # another memory claimed the path at the same time: it is seen next
        lambda: _put(call, store, name, {"created_at": made_at}, text, expect=0), DocumentConflict
    )
    return made.form(full=view == "full")


async def _put(
    call: WireCall, store: str, name: str, value: Json, text: Json, *, expect: int
) -> StoredMemory:
    """Put the memory, the text of the new version, and claim its path, in one commit. Raises
    DocumentConflict, MemoryPathTaken."""
    paths, claim = call.of_user(PATHS), _claim(store, text["path"])
    held = await paths.find(claim)
    if held is not None and held.value["memory"] != name:
        await _check_free(call, held.value["memory"], text["path"])
    async with call.lp.commit() as c:
        c.put(call.of_user(MEMORIES), name, value, expect=expect)
        c.put(call.of_user(TEXTS), _text_name(name, expect + 1), text, expect=0)
        version = 0 if held is None else held.version
        c.put(paths, claim, {"memory": name}, expect=version)
    return StoredMemory(c.documents[0], text)


async def _check_free(call: WireCall, holder: str, path: str) -> None:
    """Raise MemoryPathTaken if the memory that claimed this path still has it."""
    try:
        other = await _find(call, holder)
    except DocumentNotFound:
        return
    if other.path == path:
        raise MemoryPathTaken(holder.rpartition("/")[2], path[:100])


def _claim(store: str, path: str) -> str:
    return f"{store}/{sha256(path.encode()).hexdigest()}"


@describe(response=PageForm[MemoryItemForm])
async def listed(call: WireCall) -> Answer:
    """By path; deeper than `depth` below the prefix, only the folders."""
    store = await shelf.find(call.of_user(STORES), call.path("store_id"))
    prefix, full = call.text("path_prefix") or "", call.view("basic") == "full"
    # 0 is all of them.
    depth = 0 if call.text("depth") == "0" else call.number("depth", 0, most=1_000)
    listing: dict[str, Json] = {}
    documents = [each async for each in call.of_user(MEMORIES).each(f"{store.name}/")]
    for memory in await _each(call, documents):
        path = memory.path
        if not path.startswith(prefix):
            continue
        steps = path[len(prefix) :].lstrip("/").split("/")
        if depth and len(steps) > depth:
            below = path[: len(path) - len("/".join(steps[depth:]))]
            listing[below] = {"type": "memory_prefix", "path": below}
        else:
            listing[path] = memory.form(full=full)
    limit, token = call.limit(), call.text("page")
    after = "" if token is None else from_token(token)
    paths = [path for path in sorted(listing) if path > after]
    more = len(paths) > limit
    shown = [listing[path] for path in paths[:limit]]
    return page(shown, to_token(paths[limit - 1]) if more else None)


@describe(response=MemoryForm)
async def retrieve(call: WireCall) -> Answer:
    view = call.view("full")
    return (await _find(call, _name(call))).form(full=view == "full")


@describe(response=MemoryForm)
async def update(call: WireCall) -> Answer:
    """On the version whose content the precondition was held against."""
    store, body, name = await _store_of(call), await call.body(MemoryUpdate), _name(call)
    full, expected = call.view("full") == "full", _expected(body.precondition)
    for _ in range(UPDATE_TRIES_MAX):
        memory = await _find(call, name)
        memory.check_content(expected)
        text = {
            "path": memory.path if body.path is None else _path(body.path),
            "content": memory.content if body.content is None else _content(body.content),
        }
        if (memory.path, memory.content) == (text["path"], text["content"]):
            return memory.form(full=full)
        value, expect = dict(memory.document.value), memory.document.version
        try:
            put = await _put(call, store, name, value, text, expect=expect)
        except DocumentConflict:
            continue
        return put.form(full=full)
    raise DocumentConflict("memories", name, 0, None)


@describe(response=DeletedForm)
async def delete(call: WireCall) -> Answer:
    """Its versions can still be read. Its path is free: nobody has it any more."""
    await _store_of(call)
    memories, name = call.of_user(MEMORIES), _name(call)
    memory = await _find(call, name)
    memory.check_content(call.text("expected_content_sha256"))
    try:
        await memories.delete(name, expect=memory.document.version)
    except DocumentConflict:
        raise MemoryPreconditionFailed(call.path("id")) from None
    return {"id": call.path("id"), "type": "memory_deleted"}


def _hash(content: str) -> str:
    return sha256(content.encode()).hexdigest()


def _expected(precondition: Json | None) -> str | None:
    """The hash that the content has to have. Raises InvalidInput."""
    if precondition is None:
        return None
    expected = precondition.get("content_sha256")
    if precondition.get("type", "content_sha256") != "content_sha256" or type(expected) is not str:
        form = '{"type": "content_sha256", "content_sha256": …}'
        raise InvalidInput(f"precondition is an object as in {form}.")
    return expected


def _path(path: str) -> str:
    """Raise InvalidInput unless it is a path of the wire, of which each has one spelling."""
    first, *steps = path.split("/")
    if first or not 0 < len(steps) <= _STEPS_MAX or not {"", ".", ".."}.isdisjoint(steps):
        raise InvalidInput(
            f"path begins with / and has 1 to {_STEPS_MAX} segments; none is empty, `.` or `..`."
        )
    if len(path.encode()) > _PATH_BYTES_MAX:
        raise InvalidInput(f"path has at most {_PATH_BYTES_MAX:,} bytes.")
    seen = _UNSEEN.isdisjoint([unicodedata.category(each) for each in path])
    if not seen or not unicodedata.is_normalized("NFC", path):
        raise InvalidInput(
            "path has no control or format characters, and is in Unicode Normalization Form C."
        )
    return path


def _content(content: str) -> str:
    if len(content.encode()) > _CONTENT_BYTES_MAX:
        raise InvalidInput(f"content has at most {_CONTENT_BYTES_MAX:,} bytes.")
    return content


def _name(call: WireCall) -> str:
    store, id = call.path("store_id"), call.path("id")
    if "/" in store or "/" in id:
        raise DocumentNotFound(MEMORIES, id[:100])
    return f"{store}/{id}"


# --- versions -------------------------------------------------------------------------------------


@describe(response=PageForm[MemoryVersionForm])
async def list_versions(call: WireCall) -> Answer:
    """List the versions of one memory, deleted or not, or of all; newest first."""
    store = await shelf.find(call.of_user(STORES), call.path("store_id"))
    memories, id = call.of_user(MEMORIES), call.text("memory_id")
    full, operation, created = call.view("basic") == "full", call.text("operation"), call.times()
    if operation not in (None, *_OPERATIONS):
        raise InvalidQuery(f"operation is one of {', '.join(_OPERATIONS)}")
    others = (call.text("session_id"), call.text("api_key_id"), call.text("service_account_id"))
    if any([each is not None for each in others]):
        return page([], None)  # each version here is written by a user
    names = {f"{store.name}/{id}"} if id is not None else await _ever_in(call, store.name)
    every = [document for name in names for document in await _history(memories, name)]
    kept = [
        each
        for each in sorted(every, key=lambda each: (each.at, each.name, each.version), reverse=True)
        if operation in (None, _operation(each)) and created(shelf.micros(rfc3339(each.at)))
    ]
    limit, start = call.limit(), place_in(call.text("page"))
    more = to_token(str(start + limit)) if start + limit < len(kept) else None
    shown = kept[start : start + limit]
    return page([await _version(call, each, full=full) for each in shown], more)


async def _ever_in(call: WireCall, store: str) -> set[str]:
    """The names of all memories that the store has or had: a version of a deleted one has left a
    text, or the record that it was redacted."""
    names = {each.name async for each in call.of_user(MEMORIES).each(f"{store}/")}
    for collection in (TEXTS, REDACTED):
        async for each in call.of_user(collection).each(f"{store}/"):
            names.add(each.name.rpartition("/")[0])
    return names


@describe(response=MemoryVersionForm)
async def retrieve_version(call: WireCall) -> Answer:
    view = call.view("full")
    return await _version(call, await _find_version(call), full=view == "full")


@describe(response=MemoryVersionForm)
async def redact(call: WireCall) -> Answer:
    """Remove the path and content of a version for good. Repeating it changes nothing.

    The record comes first: if the server dies before the text is gone, the version shows nothing
    of it all the same, and a repeat removes it.
    """
    document = await _find_version(call)
    newest = await call.of_user(MEMORIES).find(document.name)
    if newest is not None and newest.version == document.version:
        raise InvalidInput(
            "this is the current version of a memory. Update or delete the memory first."
        )
    name = _text_name(document.name, document.version)
    value = {"redacted_at": rfc3339(call.lp.now()), "redacted_by": call.caller.name}
    with suppress(DocumentConflict):
        await call.of_user(REDACTED).put(name, value, expect=0)
    await call.of_user(TEXTS).purge(name)
    return await _version(call, document, full=True)


async def _find_version(call: WireCall) -> Document:
    """The version of the path. Raises DocumentNotFound."""
    id = call.path("id")
    memory, _, number = id.removeprefix("memver_").rpartition("v")
    name, version = f"{call.path('store_id')}/mem_{memory}", whole_number(number)
    if version and _version_id(f"mem_{memory}", version) == id:
        with suppress(InvalidKey):
            before = version + 1
            for document in await call.of_user(MEMORIES).history(name, limit=1, before=before):
                if document.version == version:
                    return document
    raise DocumentNotFound("memory_versions", id[:100])


async def _history(memories: Documents, name: str) -> list[Document]:
    """Every version of a memory, the newest first."""
    documents: list[Document] = []
    before: int | None = None
    while before != 1 and (versions := await memories.history(name, limit=100, before=before)):
        before = versions[-1].version
        documents += versions
    return documents


def _operation(document: Document) -> str:
    if document.deleted:
        return "deleted"
    return "created" if document.version == 1 else "modified"


async def _version(call: WireCall, document: Document, *, full: bool) -> Json:
    store, _, id = document.name.partition("/")
    form: Json = {
        "id": _version_id(id, document.version),
        "type": "memory_version",
        "memory_id": id,
        "memory_store_id": store,
        "operation": _operation(document),
        "created_at": rfc3339(document.at),
        "created_by": _person(document.actor),
    }
    # A deletion has the path of the version before it.
    text_version = document.version - 1 if document.deleted else document.version
    text, redacted = await asyncio.gather(
        call.of_user(TEXTS).find(_text_name(document.name, text_version)),
        call.of_user(REDACTED).find(_text_name(document.name, document.version)),
    )
    if redacted is not None:
        by = _person(redacted.value["redacted_by"])
        return {**form, "redacted_at": redacted.value["redacted_at"], "redacted_by": by}
    if text is None:
        return form
    form["path"] = text.value["path"]
    if document.deleted:
        return form
    content = text.value["content"]
    form |= {"content_sha256": _hash(content), "content_size_bytes": len(content.encode())}
    return {**form, "content": content} if full else form


def _person(actor: str) -> Json:
    return {"type": "user_actor", "user_id": actor}


def _version_id(id: str, version: int) -> str:
    return f"memver_{id.removeprefix('mem_')}v{version}"
