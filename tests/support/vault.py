"""A fake Vault server on loopback: the three calls of the transit engine that we use."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TOKEN = "s.token"


class FakeVault:
    """One transit key with versions. `down` refuses everything, as a sealed Vault does."""

    def __init__(self) -> None:
        self.versions = [AESGCM.generate_key(256)]
        self.least = 1  # older versions do not decrypt any more
        self.down = False
        self.lies = False  # decrypts to another key
        self.asked: list[str] = []
        self.url = ""

    def rotate(self) -> None:
        self.versions.append(AESGCM.generate_key(256))

    def answer(self, method: str, path: str, token: str | None, said: Any) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        if self.down:
            return 503, {"errors": ["Vault is sealed"]}
        if token != TOKEN:
            return 403, {"errors": ["permission denied"]}
        *_, verb, key = path.split("/")
        if key != "limpet" or not path.startswith("/v1/transit/"):
            return 404, {"errors": []}
        if (method, verb) == ("GET", "keys"):
            return 200, {"data": {"latest_version": len(self.versions)}}
        aad = base64.b64decode(said["associated_data"])
        if verb == "encrypt":
            return 200, {"data": {"ciphertext": self._encrypt(said["plaintext"], aad)}}
        return self._decrypt(said["ciphertext"], aad)

    def _encrypt(self, plain: str, aad: bytes) -> str:
        nonce = os.urandom(12)
        sealed = AESGCM(self.versions[-1]).encrypt(nonce, base64.b64decode(plain), aad)
        return f"vault:v{len(self.versions)}:{base64.b64encode(nonce + sealed).decode()}"

    def _decrypt(self, text: str, aad: bytes) -> tuple[int, Any]:
        _, version, body = text.split(":")
        number, raw = int(version[1:]), base64.b64decode(body)
        if number < self.least:
            return 400, {"errors": ["ciphertext or signature version is disallowed"]}
        try:
            plain = AESGCM(self.versions[number - 1]).decrypt(raw[:12], raw[12:], aad)
        except InvalidTag:
            return 400, {"errors": ["cipher: message authentication failed"]}
        if self.lies:
            plain = os.urandom(len(plain))
        return 200, {"data": {"plaintext": base64.b64encode(plain).decode()}}


@contextmanager
def fake_vault() -> Iterator[FakeVault]:
    """A server that answers until the block ends."""
    vault = FakeVault()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("X-Vault-Token")
            said = json.loads(raw) if raw else None
            code, told = vault.answer(self.command, self.path, token, said)
            body = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _serve  # noqa: N815  # the names of http.server

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    vault.url = f"vault://127.0.0.1:{server.server_port}/transit/limpet?tls=off"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield vault
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
