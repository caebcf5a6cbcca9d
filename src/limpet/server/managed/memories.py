"""Memory stores: documents of the user, and the memories in them, by path, with their versions.

A path is claimed by a document of its own, put in the same commit as the memory: no two memories of
a store have one path.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.routing import BaseRoute

from limpet.errors import (
    DocumentConflict,
    DocumentNotFound,
    InvalidInput,
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
)
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.documents import Document, Documents

STORES: Final = "wire_memory_stores"
MEMORIES: Final = "wire_memories"
PATHS: Final = "wire_memory_paths"
_CONTENT_BYTES_MAX: Final = 100 * 1024
_PATH_CHARS_MAX: Final = 1_024


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
    ]


# --- stores ---------------------------------------------------------------------------------------


@describe(response=MemoryStoreForm)
async def create_store(call: WireCall) -> Answer:
    value = msgspec.to_builtins(await call.body(StoreCreate))
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

    def changed(value: Json) -> Json:
        metadata = shelf.patched(value["metadata"], given.get("metadata"))
        return {**value, **given, "metadata": metadata}

    return _store(await shelf.change(call.of_user(STORES), call.path("store_id"), changed))


@describe(response=DeletedForm)
async def delete_store(call: WireCall) -> Answer:
    store = call.path("store_id")
    await shelf.find(call.of_user(STORES), store)
    for collection in (MEMORIES, PATHS):
        documents = call.of_user(collection)
        async for document in documents.each(f"{store}/"):
            await documents.purge(document.name)
    return await shelf.remove(call.of_user(STORES), store, "memory_store_deleted")


@describe(response=MemoryStoreForm)
async def archive_store(call: WireCall) -> Answer:
    return _store(await shelf.archive(call, call.of_user(STORES), call.path("store_id")))


def _store(document: Document) -> Json:
    return shelf.shown(document, "memory_store")


async def _open_store(call: WireCall) -> str:
    """The store of the path, to write to. Raises DocumentNotFound, InvalidInput."""
    store = await shelf.find(call.of_user(STORES), call.path("store_id"))
    if store.value.get("archived_at") is not None:
        raise InvalidInput(f"the memory store {store.name} is archived. Use another one.")
    return store.name


# --- memories -------------------------------------------------------------------------------------


@describe(response=MemoryForm)
async def create(call: WireCall) -> Answer:
    store, body = await _open_store(call), await call.body(MemoryCreate)
    value = _checked({"path": body.path, "content": body.content or ""})
    value["created_at"] = rfc3339(call.lp.now())
    memories, name = call.of_user(MEMORIES), f"{store}/{ids.new_id('mem_')}"
    return _memory(await _put(call, memories, store, name, value, expect=0), full=True)


async def _put(
    call: WireCall, memories: Documents, store: str, name: str, value: Json, *, expect: int
) -> Document:
    """Put the memory and claim its path, in one commit. Raises DocumentConflict."""
    paths, claim = call.of_user(PATHS), _claim(store, value["path"])
    held = await paths.find(claim)
    if held is not None and held.value["memory"] != name:
        other = await memories.find(held.value["memory"])
        if other is not None and other.value["path"] == value["path"]:
            raise DocumentConflict("memories", value["path"][:100], 0, other.version)
    async with call.lp.commit() as c:
        c.put(memories, name, value, expect=expect)
        version = 0 if held is None else held.version
        c.put(paths, claim, {"memory": name}, expect=version)
    return c.documents[0]


def _claim(store: str, path: str) -> str:
    return f"{store}/{sha256(path.encode()).hexdigest()}"


@describe(response=PageForm[MemoryItemForm])
async def listed(call: WireCall) -> Answer:
    """By path; deeper than `depth` below the prefix, only the folders."""
    store = await shelf.find(call.of_user(STORES), call.path("store_id"))
    prefix, full = call.text("path_prefix") or "", call.text("view") == "full"
    depth = call.number("depth", 0, most=1_000)
    listing: dict[str, Json] = {}
    async for document in call.of_user(MEMORIES).each(f"{store.name}/"):
        path = document.value["path"]
        if not path.startswith(prefix):
            continue
        steps = path[len(prefix) :].lstrip("/").split("/")
        if depth and len(steps) > depth:
            below = path[: len(path) - len("/".join(steps[depth:]))]
            listing[below] = {"type": "memory_prefix", "path": below}
        else:
            listing[path] = _memory(document, full=full)
    limit, token = call.limit(), call.text("page")
    after = "" if token is None else from_token(token)
    paths = [path for path in sorted(listing) if path > after]
    more = len(paths) > limit
    shown = [listing[path] for path in paths[:limit]]
    return page(shown, to_token(paths[limit - 1]) if more else None)


@describe(response=MemoryForm)
async def retrieve(call: WireCall) -> Answer:
    return _memory(await shelf.find(call.of_user(MEMORIES), _name(call)), full=True)


@describe(response=MemoryForm)
async def update(call: WireCall) -> Answer:
    """On the version whose content the precondition was held against."""
    store, body, name = await _open_store(call), await call.body(MemoryUpdate), _name(call)
    memories = call.of_user(MEMORIES)
    document = await shelf.find(memories, name)
    for _ in range(UPDATE_TRIES_MAX):
        _check_content(document, (body.precondition or {}).get("content_sha256"))
        given = {"path": body.path, "content": body.content}
        new = {field: text for field, text in given.items() if text is not None}
        value = _checked({**document.value, **new})
        if value == document.value:
            return _memory(document, full=True)
        try:
            put = await _put(call, memories, store, name, value, expect=document.version)
        except DocumentConflict as conflict:
            if conflict.collection == "memories":  # the path is another's
                raise
            document = await shelf.find(memories, name)
            continue
        return _memory(put, full=True)
    raise DocumentConflict("memories", name, document.version, None)


@describe(response=DeletedForm)
async def delete(call: WireCall) -> Answer:
    """Its versions can still be read. Its path is free: nobody has it any more."""
    await _open_store(call)
    memories, name = call.of_user(MEMORIES), _name(call)
    document = await shelf.find(memories, name)
    _check_content(document, call.text("expected_content_sha256"))
    try:
        await memories.delete(name, expect=document.version)
    except DocumentConflict:
        raise MemoryPreconditionFailed(call.path("id")) from None
    return {"id": call.path("id"), "type": "memory_deleted"}


def _check_content(document: Document, expected: object) -> None:
    if expected is not None and expected != _hash(document.value["content"]):
        raise MemoryPreconditionFailed(document.name.rpartition("/")[2])


def _hash(content: str) -> str:
    return sha256(content.encode()).hexdigest()


def _checked(value: Json) -> Json:
    path = value["path"]
    if not path.startswith("/") or len(path) > _PATH_CHARS_MAX:
        raise InvalidInput(f"path begins with / and has at most {_PATH_CHARS_MAX:,} characters.")
    if len(value["content"].encode()) > _CONTENT_BYTES_MAX:
        raise InvalidInput(f"content has at most {_CONTENT_BYTES_MAX:,} bytes.")
    return value


def _name(call: WireCall) -> str:
    store, id = call.path("store_id"), call.path("id")
    if "/" in store or "/" in id:
        raise DocumentNotFound(MEMORIES, id[:100])
    return f"{store}/{id}"


def _memory(document: Document, *, full: bool) -> Json:
    store, _, id = document.name.partition("/")
    content = document.value["content"]
    return {
        "id": id,
        "type": "memory",
        "memory_store_id": store,
        "memory_version_id": _version_id(id, document.version),
        "path": document.value["path"],
        "content": content if full else None,
        "content_sha256": _hash(content),
        "content_size_bytes": len(content.encode()),
        "created_at": document.value["created_at"],
        "updated_at": rfc3339(document.at),
    }


# --- versions -------------------------------------------------------------------------------------


@describe(response=PageForm[MemoryVersionForm])
async def list_versions(call: WireCall) -> Answer:
    """Of one memory, deleted or not, or of all that are there; the newest of each first."""
    store = await shelf.find(call.of_user(STORES), call.path("store_id"))
    memories, id = call.of_user(MEMORIES), call.text("memory_id")
    if id is not None:
        names = [f"{store.name}/{id}"]
    else:
        names = [each.name async for each in memories.each(f"{store.name}/")]
    full, operation = call.text("view") == "full", call.text("operation")
    every = [form for name in names for form in await _versions(memories, name, full=full)]
    kept = [each for each in every if operation in (None, each["operation"])]
    limit, start = call.limit(), place_in(call.text("page"))
    more = to_token(str(start + limit)) if start + limit < len(kept) else None
    return page(kept[start : start + limit], more)


@describe(response=MemoryVersionForm)
async def retrieve_version(call: WireCall) -> Answer:
    id = call.path("id")
    memory, _, number = id.removeprefix("memver_").rpartition("v")
    documents, name = call.of_user(MEMORIES), f"{call.path('store_id')}/mem_{memory}"
    for form in await _versions(documents, name, full=True) if number.isdecimal() else ():
        if form["id"] == id:
            return form
    raise DocumentNotFound("memory_versions", id[:100])


async def _versions(memories: Documents, name: str, *, full: bool) -> list[Json]:
    store, _, id = name.partition("/")
    forms: list[Json] = []
    before: int | None = None
    while before != 1 and (versions := await memories.history(name, limit=100, before=before)):
        before = versions[-1].version
        forms += [_version(store, id, each, full=full) for each in versions]
    return forms


def _version(store: str, id: str, document: Document, *, full: bool) -> Json:
    operation = "created" if document.version == 1 else "modified"
    form: Json = {
        "id": _version_id(id, document.version),
        "type": "memory_version",
        "memory_id": id,
        "memory_store_id": store,
        "operation": "deleted" if document.deleted else operation,
        "created_at": rfc3339(document.at),
        "created_by": {"type": "user_actor", "user_id": document.actor},
    }
    if document.deleted:
        return form
    content = document.value["content"]
    form |= {"path": document.value["path"], "content_sha256": _hash(content)}
    form |= {"content_size_bytes": len(content.encode())}
    return {**form, "content": content} if full else form


def _version_id(id: str, version: int) -> str:
    return f"memver_{id.removeprefix('mem_')}v{version}"
