"""Masters in a Vault server: its transit engine wraps and unwraps, and never shows the master.

    vault://host:8200/transit/KEY           the engine's mount and the name of the key, over TLS
    vault://127.0.0.1:8200/transit/KEY?tls=off

The token is read from VAULT_TOKEN at each call, so that it can be renewed. The versions of the key
are the masters: after `vault write -f transit/keys/KEY/rotate`, rotate the ring.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote, urlsplit
from urllib.request import Request, urlopen

from limpet.errors import KeysInvalid
from limpet.security.masters import WrongMaster
from limpet.store.system import in_thread

TIMEOUT_SECONDS: Final = 10.0
_TOKEN: Final = "VAULT_TOKEN"  # the name of the variable


class VaultMasters:
    """The versions of one transit key."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        mount, _, key = parts.path.strip("/").rpartition("/")
        tls = parse_qs(parts.query).get("tls", ["on"])[-1]
        if not parts.hostname or not key or tls not in ("on", "off") or parts.username:
            raise KeysInvalid("vault://…", "write vault://host:8200/transit/KEY")
        self.name = f"vault://{parts.netloc}/{mount or 'transit'}/{key}"
        scheme = "https" if tls == "on" else "http"
        self._base = f"{scheme}://{parts.netloc}/v1/{quote(mount or 'transit')}"
        self._key = quote(key, safe="")

    async def newest(self) -> str:
        answer = await self._ask("GET", f"keys/{self._key}", None)
        return f"v{answer['latest_version']}"

    async def wrap(self, plain: bytes, owner: bytes, context: bytes) -> tuple[str, bytes]:
        said = {"plaintext": _text(plain), "associated_data": _text(context)}
        answer = await self._ask("POST", f"encrypt/{self._key}", said)
        sealed = str(answer["ciphertext"])
        return sealed.split(":")[1], sealed.encode()  # vault:v2:…

    async def unwrap(self, master: str, body: bytes, owner: bytes, context: bytes) -> bytes:
        said = {"ciphertext": body.decode(), "associated_data": _text(context)}
        answer = await self._ask("POST", f"decrypt/{self._key}", said)
        return base64.b64decode(answer["plaintext"])

    async def _ask(self, method: str, path: str, said: Mapping[str, Any] | None) -> dict[str, Any]:
        token = os.environ.get(_TOKEN)
        if not token:
            raise KeysInvalid(self.name, f"the variable {_TOKEN} is not set")
        raw = None if said is None else json.dumps(said).encode()
        headers = {"X-Vault-Token": token, "Content-Type": "application/json"}
        asked = Request(f"{self._base}/{path}", data=raw, headers=headers, method=method)

        def ask() -> dict[str, Any]:
            try:
                # The scheme is that of `_base`: http or https.
                with urlopen(asked, timeout=TIMEOUT_SECONDS) as answer:  # nosec B310
                    data: dict[str, Any] = json.loads(answer.read())["data"]
                    return data
            except HTTPError as error:
                error.close()
                reason = f"{self.name} answers {error.code} to {path.partition('/')[0]}"
                raise WrongMaster(reason) from None

        return await in_thread(ask)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
