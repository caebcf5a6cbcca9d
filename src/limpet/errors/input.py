"""The request itself is wrong. Nothing was changed, and repeating the call does not help."""

from __future__ import annotations

import re
from typing import Final, Literal

from limpet.errors.root import LimpetError


class InvalidInput(LimpetError, ValueError):
    """The request itself is wrong; repeating it does not help."""

    code = "input.invalid"
    status = 400
    exit_code = 2


class InvalidKey(InvalidInput):
    code = "key.invalid"

    def __init__(self, part: str, reason: str) -> None:
        self.part, self.reason = part, reason
        super().__init__(
            f"the key's {part} {reason}. A key part is 1 to 256 characters of text "
            "without padding, control characters or lone surrogates."
        )


def _without_secrets(url: str) -> str:
    """The URL with anything that looks like a password removed."""
    url = re.sub(r"(?<=password=)[^&]*", "…", url)
    url = re.sub(r"(?<=[?&]direct=).*", "…", url, flags=re.DOTALL)  # a URL within the URL
    return re.sub(r"(?<=://)([^:@]*):.*@", r"\1:…@", url, flags=re.DOTALL)


_URLS: Final = (
    "Use memory://, sqlite:///relative.db or sqlite:////absolute.db (with ?sync=full or "
    "?sync=normal), or postgresql://user@host/database"
)


class InvalidURL(InvalidInput):
    code = "store.url"

    def __init__(self, url: str, reason: str, advice: str = _URLS) -> None:
        self.url, self.reason, self.advice = _without_secrets(url), reason, advice
        super().__init__(f"cannot open {self.url!r}: {reason}. {advice}.")


class InvalidQuery(InvalidInput):
    code = "query.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the query cannot be answered: {reason}.")


class InvalidCursor(InvalidInput):
    code = "query.cursor"

    def __init__(self, of: Literal["page", "feed"] = "page") -> None:
        self.of = of
        super().__init__(
            "the cursor is not one that this query returned. Pass page.cursor of the same "
            "query unchanged, or None to start again."
            if of == "page"
            else "`after` is not a position in this store's feed. Pass entry.position from "
            "lp.watch unchanged, or None to start with the first event."
        )


class PositionUnknown(InvalidInput):
    code = "watch.position"
    status = 410

    def __init__(self, position: str) -> None:
        self.position = position
        super().__init__(
            f"this store never issued the position {position!r}: it belongs to another store, or "
            "this store was restored to an earlier time. Watch from a position saved before that "
            "time, or without one to start from the beginning."
        )


class InvalidValue(InvalidInput):
    code = "value.invalid"

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where} {reason}. Values must be what JSON can hold without loss: None, bool, "
            "64-bit integers, finite floats, text, and lists and dicts of these."
        )


class EventTooLarge(InvalidInput):
    code = "event.too_large"
    status = 413

    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        self.size_bytes, self.bytes_max = size_bytes, bytes_max
        super().__init__(
            f"the event takes {size_bytes:,} bytes; the limit is {bytes_max:,}. Put large content "
            "into a blob (s.blobs.put), or elsewhere, and its reference into the event."
        )


class CommitTooLarge(InvalidInput):
    code = "commit.too_large"
    status = 413

    def __init__(self, what: str, size: int, size_max: int) -> None:
        self.size, self.size_max = size, size_max
        super().__init__(
            f"the commit holds {size:,} {what}; the limit is {size_max:,}. Split it: each part "
            "is still all or nothing."
        )


class InvalidEvent(InvalidInput):
    code = "event.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the event is not valid: {reason}.")


# As limpet.model.events.RESERVED has them; a test compares the two.
_FAMILIES: Final = (
    "session.*",
    "state.*",
    "audit.*",
    "span.*",
    "step.*",
    "effect.*",
    "budget.*",
    "checkpoint.*",
    "document.*",
)


class ReservedType(InvalidInput):
    code = "event.reserved"

    def __init__(self, type: str) -> None:
        self.type = type
        super().__init__(
            f"only Limpet writes events of type {type!r}. Choose a type outside "
            f"{', '.join(_FAMILIES[:-1])} and {_FAMILIES[-1]}, or record the fact with s.record "
            "and limpet.facts."
        )


class ReservedApp(InvalidInput):
    code = "app.reserved"

    def __init__(self, app: str) -> None:
        self.app = app
        if app.startswith("$$"):
            super().__init__(
                f"the app {app!r} is reserved: Limpet keeps its own records there. Choose another "
                "app."
            )
            return
        name = app.removeprefix("$") or "agents"
        super().__init__(
            f"the app {app!r} is reserved: apps that begin with '$' hold documents. Use "
            f"lp.documents({name!r}), or choose another app."
        )


class BlobTooLarge(InvalidInput):
    code = "blob.too_large"
    status = 413

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        super().__init__(
            f"the blob has more than {bytes_max:,} bytes, which is the limit; nothing of it was "
            "kept. Split it, or keep it elsewhere and record a limpet.Ref to it."
        )


class ActorMissing(InvalidInput):
    code = "event.actor_missing"

    def __init__(self) -> None:
        super().__init__(
            "every event needs an actor: who caused it. Pass actor='user:ada', or bind one with "
            "lp.session(key, actor='agent:main') or lp.documents(name, actor='user:ada')."
        )


class InvalidOp(InvalidInput):
    code = "op.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the state operation is not valid: {reason}. See limpet.ops.")


class ScopeUnknown(InvalidInput):
    code = "op.scope"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the name {name!r} has an unknown scope prefix. Start it with app:, user: or temp:, "
            "or remove the colon for a field of the session itself."
        )


class OpPathUnknown(InvalidInput):
    code = "op.path"

    def __init__(self, path: str, missing: str) -> None:
        self.path, self.missing = path, missing
        super().__init__(
            f"state has no {missing} on the path {path}. An operation can create only the last "
            "name of its path, so set the parent first, and can remove only what is there."
        )


class OpTypeMismatch(InvalidInput):
    code = "op.type"

    def __init__(self, op: str, path: str, expected: str, actual: str) -> None:
        self.op, self.path, self.expected, self.actual = op, path, expected, actual
        super().__init__(
            f"{op} at {path} needs {expected} but found {actual}. Set a matching value first, "
            "or use another operation."
        )


class NotPending(InvalidInput):
    code = "event.not_pending"
    status = 409

    def __init__(self, seq: int) -> None:
        self.seq = seq
        super().__init__(
            f"event {seq} is not pending: it is not a user.* event of this session, or it was "
            "already processed. Read s.pending() again and process those events."
        )


_DECLARED: Final = "Correct the class that declares the state"


class InvalidSchema(InvalidInput):
    code = "schema.invalid"

    def __init__(self, reason: str, advice: str = _DECLARED) -> None:
        self.reason, self.advice = reason, advice
        super().__init__(f"the schema is not valid: {reason}. {advice}.")


class FieldAccessDenied(InvalidInput):
    code = "state.access_denied"
    status = 403

    def __init__(self, field: str, actor: str, allowed: tuple[str, ...]) -> None:
        self.field, self.actor, self.allowed = field, actor, allowed
        super().__init__(
            f"{actor} may not write {field}: its class allows {', '.join(allowed) or 'nobody'}. "
            "Write it as one of these roles, or change the access that the class declares."
        )


class InvalidDiff(InvalidInput):
    code = "diff.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"these bytes are not a diff: {reason}. Pass the bytes from Diff.to_bytes unchanged."
        )


class SchemaViolation(InvalidInput):
    code = "state.schema_violation"
    status = 422

    def __init__(self, field: str, expected: str, actual: str) -> None:
        self.field, self.expected, self.actual = field, expected, actual
        super().__init__(
            f"{field} must be {expected}; found {actual}. Pass a matching value, or change the "
            "class that declares the state."
        )
