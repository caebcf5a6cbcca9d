"""The key that names a session, and the rules for short texts that are stored in columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Final

import msgspec

from limpet.errors import InvalidKey
from limpet.model.limits import ID_CHARS_MAX, KEY_BYTES_MAX, KEY_PART_CHARS_MAX

CHECKPOINTS: Final = "$$checkpoints"  # no collection of documents can have this name
# Sessions on their way to the archive or back, before they take a key of their own; where sessions
# are to go; and files to remove. All of it is about one store and its archive, and never copied.
ARCHIVE_STUBS: Final = "$$archive-stubs"
ARCHIVE_LOGS: Final = "$$archive-logs"
ARCHIVE_MOVES: Final = "$$archive-moves"
ARCHIVE_DISCARDS: Final = "$$archive-discards"
# Sessions that arrive from another store, before they take their key; the departures that are not
# settled; where sessions went whose rows were removed; and those that were reclaimed from a store
# that is lost. About one store, too.
ARRIVALS: Final = "$$arrivals"
DEPARTURES: Final = "$$departures"
ROUTES: Final = "$$routes"
RECLAIMS: Final = "$$reclaims"
MOVING: Final = (ARRIVALS, DEPARTURES, ROUTES, RECLAIMS)
# The audit of each app, and the names in it: see `limpet.security.audit`. About one store, too.
AUDIT: Final = "$$audit"
AUDIT_NAMES: Final = "$$audit-names"
ARCHIVING: Final = (ARCHIVE_STUBS, ARCHIVE_LOGS, ARCHIVE_MOVES, ARCHIVE_DISCARDS)
_NAME_PART_BYTES_MAX: Final = 64  # a longer one is hashed
_HASHED: Final = "sha256/"
_NEW_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# A longer one is hashed, so that there is space in the key for the name of a document.
_OWNER_BYTES_MAX: Final = KEY_BYTES_MAX // 2


class Key(msgspec.Struct, frozen=True, gc=False, order=True, cache_hash=True):
    """The app, user and id that together name one session. A deleted session's key is reused only
    if the caller asks for it."""

    app: str
    user: str
    id: str

    def __post_init__(self) -> None:
        for part in ("app", "user", "id"):
            text = getattr(self, part)
            if reason := unfit(text, KEY_PART_CHARS_MAX):
                raise InvalidKey(part, reason)
            if type(text) is not str:  # a class of its own: no codec and no driver knows it
                msgspec.structs.force_setattr(self, part, str.__str__(text))
        if len(self.app) + len(self.user) + len(self.id) > KEY_BYTES_MAX // 4:
            size = len(f"{self.app}{self.user}{self.id}".encode())
            if size > KEY_BYTES_MAX:
                reason = f"has with the other parts {size:,} bytes, more than {KEY_BYTES_MAX:,}"
                raise InvalidKey("id", reason)

    def __str__(self) -> str:
        return f"{self.app}/{self.user}/{self.id}"


def is_reserved(app: str) -> bool:
    """True if an app is one of ours: documents and other logs that are not users' sessions."""
    return app.startswith("$")


def is_staged(app: str) -> bool:
    """True if sessions of this app wait for another key: that which their first event names."""
    return app in (ARCHIVE_STUBS, ARCHIVE_LOGS, ARRIVALS)


def owner_of(app: str, user: str) -> str:
    """Return the user under whom a reserved app keeps what belongs to a user of an app.

    No two pairs share one: ("a/b", "c") and ("a", "b/c") differ. It always fits a key.
    """
    owner = f"{len(app)}/{app}/{user}"
    if len(owner) <= KEY_PART_CHARS_MAX and len(owner.encode()) <= _OWNER_BYTES_MAX:
        return owner
    return hashed(owner)


def owned_by(owner: str) -> tuple[str, str] | None:
    """The app and the user that `owner_of` made this of; None if it is hashed, or is not one."""
    length, slash, rest = owner.partition("/")
    if not slash or not length.isdecimal() or len(length) > len(str(KEY_PART_CHARS_MAX)):
        return None
    app, between, user = rest[: int(length)], rest[int(length) :][:1], rest[int(length) + 1 :]
    return (app, user) if between == "/" and owner_of(app, user) == owner else None


def name_part(text: str) -> str:
    """A text as a part of a document's name, of at most 71 characters; "/" and more follows it.

    No part of another text begins so, even where the texts hold a "/": the documents of app "shop"
    are never those of app "shop/eu".
    """
    if len(text.encode()) > _NAME_PART_BYTES_MAX:
        return hashed(text)
    return f"{len(text)}/{text}"


def first_part(name: str) -> str | None:
    """The text that a name begins with, as `name_part` made it: itself, or what it is hashed to.
    None if the name does not begin with a part."""
    length, _, rest = name.partition("/")
    if name.startswith(_HASHED):
        return f"{_HASHED}{rest.partition('/')[0]}"
    return rest[: int(length)] if length.isdecimal() else None


def is_hashed(text: str) -> bool:
    """True if a text looks like one that stands for a longer one."""
    return text.startswith(_HASHED)


def without_length(name: str) -> str:
    """A name that begins with a part, as a person reads it."""
    return name.removeprefix(_HASHED) if name.startswith(_HASHED) else name.partition("/")[2]


def checkpoints_of(key: Key) -> Key:
    """Return the key of the log in which the checkpoints of a session are recorded, under a
    reserved app, so that a checkpoint changes no version. It ends with the session, and with its
    user.

    An id that looks hashed is hashed too: its log would be that of another session.
    """
    fits = len(key.id.encode()) <= _OWNER_BYTES_MAX // 2 and not is_hashed(key.id)
    id = key.id if fits else hashed(key.id)
    return Key(CHECKPOINTS, owner_of(key.app, key.user), id)


def audit_name_of(app: str, user: str, kind: str, text: str) -> Key:
    """Return the key under which the name of something of a user is kept for the audit. It ends
    with the user."""
    id = f"{kind}/{text}"
    if len(id) > KEY_PART_CHARS_MAX or len(id.encode()) > _OWNER_BYTES_MAX // 2:
        id = f"{kind}/{hashed(text)}"
    return Key(AUDIT_NAMES, owner_of(app, user), id)


@lru_cache(maxsize=4_096)  # the same sessions come again and again
def known_key(app: str, user: str, id: str) -> Key:
    """The key of these parts, which is checked and hashed once. Raises InvalidKey."""
    return Key(app, user, id)


def forgotten_with(key: Key) -> tuple[Key, ...]:
    """The logs that are erased with a session: its checkpoints, and its name in the audit."""
    if is_reserved(key.app):
        return ()
    return checkpoints_of(key), audit_name_of(key.app, key.user, "session", key.id)


def hashed(text: str) -> str:
    """Return the hash that replaces a text too long for a name."""
    return f"{_HASHED}{sha256(text.encode()).hexdigest()}"


def unfit(text: object, chars_max: int) -> str | None:
    """Return why `text` cannot be a name, or None when it can."""
    if not isinstance(text, str):
        return f"is {type(text).__name__}, not text"
    return _unfit(text, chars_max)


def unfit_id(id: str) -> str | None:
    """Return why `id` cannot be an event's, or None. Most are seen once: the answer is not
    remembered."""
    return _unfit.__wrapped__(id, ID_CHARS_MAX)


@lru_cache(maxsize=4_096)  # the same few types, actors and field names come again and again
def _unfit(text: str, chars_max: int) -> str | None:
    if not text:
        return "is empty"
    if len(text) > chars_max:
        return f"has {len(text):,} characters, more than {chars_max}"
    if text[0].isspace() or text[-1].isspace():
        return "begins or ends with white space"
    if not text.isprintable() and any(map(_is_unfit, text)):
        return "holds a control character or a lone surrogate"
    return None


def _is_unfit(char: str) -> bool:
    """Control characters (NUL among them) break logs, terminals and PostgreSQL text, and lone
    surrogates cannot be encoded: neither is ever intended."""
    return char < " " or char == "\x7f" or is_lone(char)


def is_lone(char: str) -> bool:
    """True if a character is half of a pair, which no encoding has."""
    return "\ud800" <= char <= "\udfff"


# --- ids -----------------------------------------------------------------------------------------


_BLOCK_BYTES: Final = 4_096
_NOISE_BYTES: Final = 8
_COUNTER_MAX: Final = 0xFFF
# RFC 9562: of every eight bytes of noise the two high bits are 10, its variant.
_FREE: Final = int.from_bytes((b"\x3f" + b"\xff" * 7) * (_BLOCK_BYTES // _NOISE_BYTES))
_VARIANT: Final = int.from_bytes((b"\x80" + b"\x00" * 7) * (_BLOCK_BYTES // _NOISE_BYTES))
_COUNTED: Final = tuple([f"{number:03x}-" for number in range(256)])  # of most milliseconds


class Noise:
    """A source of `size` random bytes at a time, each given once; `size` divides a block. For one
    process."""

    __slots__ = ("_draw", "_left", "_split")

    def __init__(self, draw: Callable[[int], bytes], size: int) -> None:
        self._draw, self._split = draw, Struct(f"{size}s" * (_BLOCK_BYTES // size)).unpack
        self._left: list[bytes] = []

    def __call__(self) -> bytes:
        try:
            return self._left.pop()
        except IndexError:
            self._left += self._split(self._draw(_BLOCK_BYTES))
            return self._left.pop()


def is_new_id(id: str) -> bool:
    """True if `id` is as a source of new ids makes them: a UUID in small letters."""
    return _NEW_ID.fullmatch(id) is not None


class Ids:
    """A source of UUIDv7 texts in ascending order. For one process."""

    __slots__ = ("_counter", "_digits", "_draw", "_last_ms", "_now_ns", "_prefix")

    def __init__(self, now_ns: Callable[[], int], draw: Callable[[int], bytes]) -> None:
        self._now_ns, self._draw = now_ns, draw
        self._last_ms, self._counter, self._prefix = -1, 0, ""
        self._digits: list[str] = []  # 16 random ones for an id

    def __call__(self) -> str:
        now_ms, counter = self._now_ns() // 1_000_000, self._counter + 1
        if now_ms > self._last_ms:
            counter = self._begin(now_ms)
        elif counter > _COUNTER_MAX:  # used up: borrow the next one rather than lose the order
            counter = self._begin(self._last_ms + 1)
        self._counter = counter
        counted = _COUNTED[counter] if counter < 256 else f"{counter:03x}-"
        try:
            tail = self._digits.pop()
        except IndexError:
            drawn = int.from_bytes(self._draw(_BLOCK_BYTES)) & _FREE | _VARIANT
            self._digits += drawn.to_bytes(_BLOCK_BYTES).hex("-", _NOISE_BYTES).split("-")
            tail = self._digits.pop()
        return f"{self._prefix}{counted}{tail[:4]}-{tail[4:]}"

    def _begin(self, at_ms: int) -> int:
        """Go on to this millisecond, whose counter begins with 0."""
        head = f"{at_ms:012x}"
        self._last_ms, self._prefix = at_ms, f"{head[:8]}-{head[8:]}-7"
        return 0
