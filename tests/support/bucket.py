"""A bucket on a server of the tests: what S3 answers to the requests that Limpet makes."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SECRET = "wJalrXUtnFEMI"


class Bucket(BaseHTTPRequestHandler):
    """PUT, GET, DELETE and a listing; what is not signed right is 403."""

    files: dict[str, bytes]
    keeps = False  # what is deleted

    def handle_one(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else b""
        if not self._is_signed(body):
            return self._answer(403, b"")
        at = urlsplit(self.path)
        name = unquote(at.path).removeprefix("/cold/").removeprefix("/cold")
        if self.command == "PUT":
            self.files[name] = body
            return self._answer(200, b"")
        if self.command == "DELETE" and self.keeps:
            return self._answer(204, b"")
        if self.command == "DELETE":
            return self._answer(204 if self.files.pop(name, None) is not None else 404, b"")
        if not name:
            asked = parse_qs(at.query)
            prefix, after = asked["prefix"][0], asked.get("start-after", [""])[0]
            found = sorted([e for e in self.files if e.startswith(prefix) and e > after])
            keys = [f"<Key>{escape(each)}</Key>" for each in found[:2]]  # a page is not everything
            return self._answer(200, "".join(keys).encode())
        found = self.files.get(name)
        return self._answer(404 if found is None else 200, found or b"")

    do_PUT = do_GET = do_DELETE = handle_one  # noqa: N815  # as the server calls them

    def log_message(self, *_: object) -> None: ...

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _is_signed(self, body: bytes) -> bool:
        """As the documentation of AWS Signature Version 4 says, from what arrived."""
        given = self.headers["Authorization"].removeprefix("AWS4-HMAC-SHA256 ")
        parts = dict(part.split("=", 1) for part in given.split(", "))
        _, day, region, service, end = parts["Credential"].split("/")
        digest = hashlib.sha256(body).hexdigest()
        if digest != self.headers["x-amz-content-sha256"]:
            return False
        at = urlsplit(self.path)
        names = parts["SignedHeaders"].split(";")
        lines = "".join(f"{name}:{self.headers[name]}\n" for name in names)
        asked = f"{self.command}\n{at.path}\n{at.query}\n{lines}\n{';'.join(names)}\n{digest}"
        scope = f"{day}/{region}/{service}/{end}"
        hashed = hashlib.sha256(asked.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self.headers['x-amz-date']}\n{scope}\n{hashed}"
        key = b"AWS4" + SECRET.encode()
        for part in (day, region, service, end):
            key = hmac.digest(key, part.encode(), "sha256")
        wanted = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return hmac.compare_digest(wanted, parts["Signature"])


@contextmanager
def bucket_server(env: Any) -> Iterator[dict[str, bytes]]:
    """The files of a bucket `cold`; `env(name, value)` sets what a client of it needs to know."""
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Cold", (Bucket,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    env("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    env("AWS_ACCESS_KEY_ID", "AKID")
    env("AWS_SECRET_ACCESS_KEY", SECRET)
    for name in ("no_proxy", "NO_PROXY"):
        env(name, "127.0.0.1")
    try:
        yield files
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
