"""Files: documents of the user, each with its content as a blob beside it.

A file may expire. From then on it is not there; it is removed when somebody would have found it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from mimetypes import guess_extension
from typing import Final, NamedTuple

from starlette.responses import Response
from starlette.routing import BaseRoute

from limpet.errors import DocumentNotFound, InvalidInput, InvalidQuery
from limpet.server import ids
from limpet.server.managed import shelf
from limpet.server.managed.forms import DeletedForm, FileForm, FilePageForm
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    page,
    rfc3339,
    whole_number,
)
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.blobs import get_blob, put_blob
from limpet.session.documents import Document
from limpet.session.limpet import journal_of

FILES: Final = "wire_files"
_NAME_CHARS_MAX: Final = 500
_IDS_MAX: Final = 100  # that a list may name
_EXPIRES: Final = (3_600, 7_776_000)  # the fewest and most seconds
_FIELD: Final = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_ESCAPED: Final = re.compile(rb'\\(["\\])')
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_MEDIA: Final = re.compile(rb"content-type:\s*([^\r\n;]{1,200})", re.IGNORECASE)


def routes(service: Service) -> list[BaseRoute]:
    return [
        endpoint(service, "/v1/files", "POST", upload),
        endpoint(service, "/v1/files", "GET", listed),
        endpoint(service, "/v1/files/{id}", "GET", retrieve),
        endpoint(service, "/v1/files/{id}", "DELETE", delete),
        endpoint(service, "/v1/files/{id}/content", "GET", content),
    ]


@describe(request=bytes, response=FileForm, request_media_type="multipart/form-data")
async def upload(call: WireCall) -> Answer:
    """Upload a file. It is listed once its content is stored."""
    parts = _parts(await call.raw(), call.request.headers.get("content-type", ""))
    if "file" not in parts:
        raise InvalidInput("the form has no part named file.")
    seconds = None if (part := parts.get("expires_in_seconds")) is None else _seconds(part.data)
    name, media, data = _file(parts["file"])
    documents, id, now = call.of_user(FILES), ids.new_id("file_"), call.lp.now()
    expires = None if seconds is None else rfc3339(now + timedelta(seconds=seconds))
    value: Json = {"filename": name, "mime_type": media, "size_bytes": len(data)}
    value |= {"created_at": rfc3339(now), "expires_at": expires, "downloadable": True, "hash": None}
    document = await documents.put(id, value, expect=0)
    ref = await put_blob(journal_of(call.lp), documents.key(id), data, media, None)
    value["hash"] = ref.sha256
    return _form(await documents.put(id, value, expect=document.version))


@describe(response=FilePageForm)
async def listed(call: WireCall) -> Answer:
    """Those of these ids, on one page, or all."""
    after, before = call.text("after_id"), call.text("before_id")  # of earlier clients

    def keep(document: Document) -> bool:
        name = document.name  # they sort by the time that they were made at
        if (after is not None and name <= after) or (before is not None and name >= before):
            return False
        return document.value["hash"] is not None and not _is_expired(call, document)

    if call.text("scope_id") is not None:  # no file here is made by a session
        files = page([], None)
    elif wanted := dict.fromkeys(call.texts("ids")):
        files = page([_form(each) for each in await _named(call, wanted)], None)
    else:
        files = await shelf.listed(call, call.of_user(FILES), _form, keep=keep)
    data = files["data"]
    edges = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {**files, "has_more": files["next_page"] is not None, **edges}


async def _named(call: WireCall, wanted: Mapping[str, object]) -> list[Document]:
    """The files of these ids that there are."""
    if len(wanted) > _IDS_MAX:
        raise InvalidQuery(f"ids has at most {_IDS_MAX} ids")
    files = []
    for id in wanted:
        with suppress(DocumentNotFound):
            files.append(await find_file(call, id))
    return files


@describe(response=FileForm)
async def retrieve(call: WireCall) -> Answer:
    return _form(await find_file(call, call.path("id")))


@describe(response=DeletedForm)
async def delete(call: WireCall) -> Answer:
    document = await find_file(call, call.path("id"))
    return await shelf.remove(call.of_user(FILES), document.name, "file_deleted")


@describe(media_type="application/octet-stream")
async def content(call: WireCall) -> Answer:
    document = await find_file(call, call.path("id"))
    data = await content_of(call, document)
    # A page of the web must not run what somebody uploaded.
    headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
    return Response(data, headers=headers, media_type=document.value["mime_type"])


async def find_file(call: WireCall, id: str) -> Document:
    """A file of this user whose content is stored. Raises DocumentNotFound."""
    documents = call.of_user(FILES)
    document = await shelf.find(documents, id)
    if _is_expired(call, document):  # the server removes it, whoever asks for it
        await call.service.lp.documents(FILES, owner=documents.owner).purge(document.name)
    elif document.value["hash"] is not None:
        return document
    raise DocumentNotFound(FILES, document.name)


def _is_expired(call: WireCall, document: Document) -> bool:
    expires = document.value.get("expires_at")
    return expires is not None and datetime.fromisoformat(expires) <= call.lp.now()


async def content_of(call: WireCall, document: Document) -> bytes:
    """The content of a file, as it was uploaded."""
    key = call.of_user(FILES).key(document.name)
    return await get_blob(journal_of(call.lp), key, document.value["hash"])


def _form(document: Document) -> Json:
    form = shelf.shown(document, "file")
    return {name: value for name, value in form.items() if name not in ("hash", "archived_at")}


class FormPart(NamedTuple):
    """One part of a form."""

    head: bytes
    filename: bytes
    data: bytes


def _parts(body: bytes, content_type: str) -> dict[str, FormPart]:
    """The parts of a form by their names; of several with one name, the first. Raises
    InvalidInput."""
    return dict(reversed([*_each_part(body, content_type)]))


def _each_part(body: bytes, content_type: str) -> Iterator[tuple[str, FormPart]]:
    kind, _, options = content_type.partition(";")
    match = re.search(r'boundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))', options)
    if kind.strip().lower() != "multipart/form-data" or match is None:
        raise InvalidInput("a file is sent as multipart/form-data, in a part named file.")
    boundary = (match[1] or match[2]).encode()
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:-1]:
        head, blank, data = part.partition(b"\r\n\r\n")
        named = {m[1].lower(): m[2] for m in _FIELD.finditer(head)}
        if blank:
            filename = named.get(b"filename", b"")
            yield named.get(b"name", b"").decode("utf-8", "replace"), FormPart(head, filename, data)


def _file(part: FormPart) -> tuple[str, str, bytes]:
    """The name, media type and content of a file. Raises InvalidInput."""
    media = _MEDIA.search(part.head)
    shown = media[1].strip().decode("ascii", "replace") if media else ""
    if not _MEDIA_TYPE.fullmatch(shown):
        shown = "application/octet-stream"
    name = _ESCAPED.sub(rb"\1", part.filename).decode("utf-8", "replace")
    name = name.replace("%22", '"')  # as clients write a quotation mark in a name
    name = name.rpartition("/")[2] or f"unnamed{guess_extension(shown) or ''}"
    if len(name) > _NAME_CHARS_MAX:
        raise InvalidInput(f"the name of a file has at most {_NAME_CHARS_MAX} characters.")
    return name, shown, part.data


def _seconds(given: bytes) -> int:
    """After how many seconds a file expires. Raises InvalidInput."""
    fewest, most = _EXPIRES
    seconds = whole_number(given.strip().decode("utf-8", "replace"))
    if seconds is None or not fewest <= seconds <= most:
        raise InvalidInput(f"expires_in_seconds is a number from {fewest:,} to {most:,}.")
    return seconds
