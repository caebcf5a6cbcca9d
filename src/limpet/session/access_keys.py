"""Access keys: who may use a server, as which principal. Only a hash of each key is stored.

A key is `lk_ID_SECRET`. Its document, in a reserved app, has the SHA-256 of the secret, which is
random and long, so that a guess is hopeless. A revoked key keeps its document: the id is not given
out again, and the list shows it.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import timedelta
from hashlib import sha256
from typing import Final, Literal

import msgspec
from msgspec import structs

from limpet.errors import DocumentConflict, DocumentNotFound, EntryRefused, InvalidInput
from limpet.model import DefaultActor, to_time
from limpet.model.events import TIME_US_MAX
from limpet.security.access import Principal, Role
from limpet.session.documents import Internal
from limpet.session.journal import Journal

PREFIX: Final = "lk_"
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_TOKEN_CHARS_MAX: Final = 256
_HERE: Final = "this server"


class AccessKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without its secret."""

    id: str
    hash: str
    role: Role
    app: str | None = None
    user: str | None = None
    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    speaks_for: Literal["user"] | None = None

    @property
    def principal(self) -> Principal:
        """The principal who enters with it: `user:U`, or `key:ID` without a user."""
        id = f"key:{self.id}" if self.user is None else f"user:{self.user}"
        return Principal(
            id, role=self.role, app=self.app, user=self.user, speaks_for=self.speaks_for
        )

    def state(self, now_us: int) -> str:
        """ "active", "expired" or "revoked": only an active key opens the door."""
        if self.revoked_us is not None:
            return "revoked"
        return "active" if self.expires_us is None or now_us < self.expires_us else "expired"

    def __str__(self) -> str:
        """Return a line for people."""
        owner = self.principal.id
        until = "" if self.expires_us is None else f", until {to_time(self.expires_us):%F %H:%M}"
        speaks = "" if self.speaks_for is None else ", speaks for users"
        return f"{self.id} {self.role} of {self.app or 'every app'} as {owner}{speaks}{until}"


class AccessKeys:
    """The keys of a store."""

    def __init__(self, journal: Journal) -> None:
        self._documents = Internal(journal, "access", actor=DefaultActor("system:access"))
        self._journal = journal

    async def create(
        self,
        *,
        role: Role,
        app: str | None,
        user: str | None = None,
        expires: timedelta | None = None,
        speaks_for: Literal["user"] | None = None,
    ) -> tuple[AccessKey, str]:
        """Make a key; and its text, which is stored nowhere. Raises InvalidInput."""
        if user is not None and app is None:
            raise InvalidInput("a user belongs to an app. Pass --app too.")
        if role == "owner" and user is None:
            raise InvalidInput("a key of role owner is for one user. Pass --user too.")
        now_us, until_us = self._journal.now_us(), None
        if expires is not None:
            until_us = now_us + expires // timedelta(microseconds=1)
            if not now_us < until_us <= TIME_US_MAX:
                raise InvalidInput("a key expires in the future. Pass a span such as 30d.")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        key = AccessKey(
            id=secrets.token_hex(_ID_BYTES),
            hash=_hash(secret),
            role=role,
            app=app,
            user=user,
            created_us=now_us,
            expires_us=until_us,
            speaks_for=speaks_for,
        )
        _ = key.principal  # raises InvalidInput for what no principal may be
        await self._documents.put(key.id, msgspec.to_builtins(key), expect=0)
        return key, f"{PREFIX}{key.id}_{secret}"

    async def list(self) -> list[AccessKey]:
        """Every key, revoked ones too."""
        decode = self._documents.decoded
        keys = [decode(each, AccessKey) async for each in self._documents.each()]
        return [key for key in keys if key is not None]

    async def revoke(self, id: str) -> AccessKey:
        """Take a key back, for good. Repeating it is harmless. Raises DocumentNotFound."""
        while True:
            document = await self._documents.get(id)
            key = self._documents.decoded(document, AccessKey)
            if key is None:
                raise DocumentNotFound("access", id)
            if key.revoked_us is not None:
                return key
            revoked = structs.replace(key, revoked_us=self._journal.now_us())
            value = msgspec.to_builtins(revoked)
            try:
                await self._documents.put(id, value, expect=document.version)
            except DocumentConflict:
                continue
            return revoked

    async def find(self, id: str) -> AccessKey | None:
        """The key with this id; None if there is none."""
        try:
            return self._documents.decoded(await self._documents.get(id), AccessKey)
        except (DocumentNotFound, InvalidInput):
            return None

    async def check(self, token: str) -> AccessKey:
        """The key of a text, if it opens the door now. Raises EntryRefused, which says no more than
        that it does not."""
        id, _, secret = token.removeprefix(PREFIX).partition("_")
        fits = token.startswith(PREFIX) and token.isascii() and len(token) <= _TOKEN_CHARS_MAX
        key = await self.find(id) if fits and id.isalnum() else None
        known = _hash("") if key is None else key.hash
        same = hmac.compare_digest(known, _hash(secret))  # in the same time, found or not
        if key is None or not same:
            raise EntryRefused(_HERE, "the key is not known")
        state = key.state(self._journal.now_us())
        if state != "active":
            raise EntryRefused(_HERE, f"the key is {state}", "Ask for another one")
        return key


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
