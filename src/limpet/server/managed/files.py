"""Files: documents of the user, each with its content as a blob beside it."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response
from starlette.routing import BaseRoute

from limpet.errors import DocumentNotFound, InvalidInput
from limpet.server import ids
from limpet.server.managed import shelf
from limpet.server.managed.forms import DeletedForm, FileForm, FilePageForm
from limpet.server.managed.wire import Answer, Json, WireCall, endpoint, rfc3339
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.blobs import get_blob, put_blob
from limpet.session.documents import Document
from limpet.session.limpet import journal_of

FILES: Final = "wire_files"
_NAME_CHARS_MAX: Final = 500
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
    name, media, data = _file(await call.raw(), call.request.headers.get("content-type", ""))
    documents, id = call.of_user(FILES), ids.new_id("file_")
    value: Json = {"filename": name, "mime_type": media, "size_bytes": len(data)}
    value |= {"created_at": rfc3339(call.lp.now()), "downloadable": True, "hash": None}
    document = await documents.put(id, value, expect=0)
    ref = await put_blob(journal_of(call.lp), documents.key(id), data, media, None)
    value["hash"] = ref.sha256
    return _form(await documents.put(id, value, expect=document.version))


@describe(response=FilePageForm)
async def listed(call: WireCall) -> Answer:
    wanted = call.texts("ids")
    after, before = call.text("after_id"), call.text("before_id")  # of earlier clients

    def keep(document: Document) -> bool:
        name = document.name  # they sort by the time that they were made at
        if (after is not None and name <= after) or (before is not None and name >= before):
            return False
        return document.value["hash"] is not None and (not wanted or name in wanted)

    files = await shelf.listed(call, call.of_user(FILES), _form, keep=keep)
    data = files["data"]
    edges = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {**files, "has_more": files["next_page"] is not None, **edges}


@describe(response=FileForm)
async def retrieve(call: WireCall) -> Answer:
    return _form(await find_file(call, call.path("id")))


@describe(response=DeletedForm)
async def delete(call: WireCall) -> Answer:
    return await shelf.remove(call.of_user(FILES), call.path("id"), "file_deleted")


@describe(media_type="application/octet-stream")
async def content(call: WireCall) -> Answer:
    document = await find_file(call, call.path("id"))
    data = await content_of(call, document)
    # A page of the web must not run what somebody uploaded.
    headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
    return Response(data, headers=headers, media_type=document.value["mime_type"])


async def find_file(call: WireCall, id: str) -> Document:
    """A file of this user whose content is stored. Raises DocumentNotFound."""
    document = await shelf.find(call.of_user(FILES), id)
    if document.value["hash"] is None:
        raise DocumentNotFound(FILES, document.name)
    return document


async def content_of(call: WireCall, document: Document) -> bytes:
    """The content of a file, as it was uploaded."""
    key = call.of_user(FILES).key(document.name)
    return await get_blob(journal_of(call.lp), key, document.value["hash"])


def _form(document: Document) -> Json:
    form = shelf.shown(document, "file")
    return {name: value for name, value in form.items() if name not in ("hash", "archived_at")}


def _file(body: bytes, content_type: str) -> tuple[str, str, bytes]:
    """The part `file` of a form: its name, media type and content. Raises InvalidInput."""
    kind, _, options = content_type.partition(";")
    match = re.search(r'boundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))', options)
    if kind.strip().lower() != "multipart/form-data" or match is None:
        raise InvalidInput("a file is sent as multipart/form-data, in a part named file.")
    boundary = (match[1] or match[2]).encode()
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:-1]:
        head, blank, data = part.partition(b"\r\n\r\n")
        named = {m[1].lower(): m[2] for m in _FIELD.finditer(head)}
        if blank and named.get(b"name") == b"file":
            media = _MEDIA.search(head)
            name = _ESCAPED.sub(rb"\1", named.get(b"filename", b"file")).decode("utf-8", "replace")
            name = name.replace("%22", '"')  # as clients write a quotation mark in a name
            if not 0 < len(name) <= _NAME_CHARS_MAX:
                raise InvalidInput(f"the name of a file has 1 to {_NAME_CHARS_MAX} characters.")
            shown = media[1].strip().decode("ascii", "replace") if media else ""
            if not _MEDIA_TYPE.fullmatch(shown):
                shown = "application/octet-stream"
            return name, shown, data
    raise InvalidInput("the form has no part named file.")
