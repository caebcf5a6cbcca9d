"""Every error Holdfast raises, under one root.

    HoldfastError
    ├── InvalidInput        what was asked cannot be done as asked; nothing was changed
    │   ├── InvalidKey · InvalidURL · InvalidQuery · InvalidCursor
    │   ├── InvalidValue · EventTooLarge · CommitTooLarge
    │   ├── InvalidEvent · ReservedType · ActorMissing
    │   ├── InvalidOp · OpPathUnknown · OpTypeMismatch · NotPending
    │   └── InvalidSchema · SchemaViolation
    ├── SessionError        the session is not in the state the call needs
    │   ├── SessionNotFound · SessionExists · SessionDeleted · SessionErased
    │   ├── SessionConflict · SessionFenced · SessionLocked · SessionNotLoaded
    │   └── SessionCorrupt · FollowerBehind
    └── StoreError          the store cannot serve
        ├── StoreClosed · StoreForked · StoreBusy · StoreFull · StoreReadOnly · StoreFailed
        ├── StoreUnopened · StoreForeign · StoreNewer · StoreCorrupt · StoreOnNetwork
        └── BackupRefused · ExtraMissing

A class carries a stable `code`, whether the same call may succeed later (`retryable`), and what
the doors answer (`status` for HTTP, `exit_code` for the command line). The message is built here,
in one place, and ends with what to do next.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar


class HoldfastError(Exception):
    """The root. `code` never changes once released; messages may."""

    code: ClassVar[str] = "holdfast.error"
    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


# --- what was asked -----------------------------------------------------------------------------


class InvalidInput(HoldfastError, ValueError):
    """The request itself is wrong: repeating it cannot help."""

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


class InvalidURL(InvalidInput):
    code = "store.url"

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"cannot open {url!r}: {reason}. Use memory://, sqlite:///relative.db or "
            "sqlite:////absolute.db, the latter two with ?sync=full or ?sync=normal if wanted."
        )


class InvalidQuery(InvalidInput):
    code = "query.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the query cannot be answered: {reason}.")


class InvalidCursor(InvalidInput):
    code = "query.cursor"

    def __init__(self) -> None:
        super().__init__(
            "the cursor is not one that this query returned. Pass page.cursor of the same "
            "query unchanged, or None to begin again."
        )


class InvalidValue(InvalidInput):
    code = "value.invalid"

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where} {reason}. Values are what JSON can hold without loss: None, bool, 64-bit "
            "integers, finite floats, text, and lists and dicts of these."
        )


class EventTooLarge(InvalidInput):
    code = "event.too_large"
    status = 413

    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        self.size_bytes, self.bytes_max = size_bytes, bytes_max
        super().__init__(
            f"the event takes {size_bytes:,} bytes and an event may take {bytes_max:,}. "
            "Keep large payloads elsewhere and put a reference in the event."
        )


class CommitTooLarge(InvalidInput):
    code = "commit.too_large"
    status = 413

    def __init__(self, what: str, size: int, size_max: int) -> None:
        self.size, self.size_max = size, size_max
        super().__init__(
            f"one commit holds {size:,} {what} and may hold {size_max:,}. Split it: each part is "
            "still all or nothing."
        )


class InvalidEvent(InvalidInput):
    code = "event.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the event is not valid: {reason}.")


class ReservedType(InvalidInput):
    code = "event.reserved"

    def __init__(self, type: str) -> None:
        self.type = type
        super().__init__(
            f"events of type {type!r} are written by Holdfast itself. Choose a type outside "
            "session.*, state.* and audit.*, or call the verb that records this fact."
        )


class ActorMissing(InvalidInput):
    code = "event.actor_missing"

    def __init__(self) -> None:
        super().__init__(
            "every event says who caused it. Pass actor='user:ada', or bind one once with "
            "hf.session(key, actor='agent:main')."
        )


class InvalidOp(InvalidInput):
    code = "op.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the state operation is not valid: {reason}. See holdfast.ops.")


class OpPathUnknown(InvalidInput):
    code = "op.path"

    def __init__(self, path: str, missing: str) -> None:
        self.path, self.missing = path, missing
        super().__init__(
            f"state has no {missing} on the way to {path}. An operation may create the last "
            "name of its path, never the ones before it: set the parent first."
        )


class OpTypeMismatch(InvalidInput):
    code = "op.type"

    def __init__(self, op: str, path: str, expected: str, actual: str) -> None:
        self.op, self.path, self.expected, self.actual = op, path, expected, actual
        super().__init__(
            f"{op} at {path} needs {expected} and found {actual}. Set a fitting value first, "
            "or use another operation."
        )


class NotPending(InvalidInput):
    code = "event.not_pending"
    status = 409

    def __init__(self, seq: int) -> None:
        self.seq = seq
        super().__init__(
            f"event {seq} is not pending: it is no user.* event of this session, or it was "
            "processed already. Read the session again and process what is pending."
        )


class InvalidSchema(InvalidInput):
    code = "schema.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the schema is not valid: {reason}. Correct the class that declares the state."
        )


class SchemaViolation(InvalidInput):
    code = "state.schema_violation"
    status = 422

    def __init__(self, field: str, expected: str, actual: str) -> None:
        self.field, self.expected, self.actual = field, expected, actual
        super().__init__(
            f"{field} must be {expected}; found {actual}. Give a value that fits, or change the "
            "class that declares the state."
        )


# --- the session --------------------------------------------------------------------------------


class SessionError(HoldfastError):
    """The session is not in the state the call needs."""

    code = "session.error"
    status = 409
    exit_code = 3


class SessionNotFound(SessionError, LookupError):
    code = "session.not_found"
    status = 404

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(f"there is no session {key}. Create it with hf.create, or use hf.find.")


class SessionExists(SessionError):
    code = "session.exists"

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(f"session {key} exists already. Use hf.get, or hf.get_or_create.")


class SessionDeleted(SessionError):
    code = "session.deleted"
    status = 410

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(
            f"session {key} was deleted and its key is not used again. Create one with another id."
        )


class SessionErased(SessionError):
    code = "session.erased"
    status = 410

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(
            f"session {key} was erased and its key is not used again. Create one with another id."
        )


class SessionConflict(SessionError):
    code = "session.conflict"
    retryable = True

    def __init__(self, key: object, what: str, expected: int, actual: int) -> None:
        self.key, self.what, self.expected, self.actual = key, what, expected, actual
        super().__init__(
            f"{what} of {key} is at version {actual}, not {expected}: another writer was first. "
            "Refresh, decide again and retry, or leave expect out to let the append rebase."
        )


class SessionFenced(SessionError):
    code = "session.fenced"

    def __init__(self, key: object, fence: int, current: int) -> None:
        self.key, self.fence, self.current = key, fence, current
        why = f"its fence is {current}" if fence != current else "its lease has ended"
        super().__init__(
            f"fence {fence} no longer guards {key}: {why}. Another runner may hold the session; "
            "stop, and claim it again before writing."
        )


class SessionLocked(SessionError):
    code = "session.locked"
    retryable = True
    status = 423

    def __init__(self, key: object, worker: str, until: datetime) -> None:
        self.key, self.worker, self.until = key, worker, until
        super().__init__(
            f"session {key} is leased to {worker!r} until {until.isoformat()}. Try again when it "
            "has been released, or after that time."
        )


class SessionNotLoaded(SessionError):
    code = "session.not_loaded"

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} is not known: this handle has read nothing yet. Call await s.refresh() first."
        )


class SessionCorrupt(SessionError):
    code = "session.corrupt"
    status = 500

    def __init__(self, key: object, reason: str) -> None:
        self.key, self.reason = key, reason
        super().__init__(
            f"stored data of session {key} is damaged: {reason}. Run hf.verify for the whole "
            "picture and restore the session from a backup."
        )


class FollowerBehind(SessionError):
    code = "follow.behind"
    retryable = True

    def __init__(self, after: int, waiting_max: int) -> None:
        self.after, self.waiting_max = after, waiting_max
        super().__init__(
            f"more than {waiting_max:,} partial events waited for this follower and it was cut "
            f"off. No recorded event is lost: go on with s.follow(after={after})."
        )


# --- the store ----------------------------------------------------------------------------------


class StoreError(HoldfastError):
    """The store cannot serve the call; the session is as it was."""

    code = "store.error"
    status = 503
    exit_code = 4
    # The ids under which drafts were sent. Whether or not they were recorded, sending them again
    # with these ids never doubles them.
    ids: tuple[str, ...] = ()


class StoreClosed(StoreError):
    code = "store.closed"

    def __init__(self) -> None:
        super().__init__(
            "this Holdfast is not open. Use it inside `async with holdfast.open(url) as hf`."
        )


class StoreForked(StoreError):
    code = "store.forked"

    def __init__(self) -> None:
        super().__init__(
            "this store was opened before os.fork and belongs to the parent process: SQLite's "
            "locks do not survive a fork. Open it only after the fork, or start the process "
            "with spawn or forkserver."
        )


class StoreBusy(StoreError):
    code = "store.busy"
    retryable = True

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"another process holds {where} and did not let go in time; nothing was written. "
            "Try again; if it stays so, end the process that keeps a transaction open."
        )


class StoreFull(StoreError):
    code = "store.full"
    retryable = True
    status = 507

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"no space is left for {where} and nothing was written. Free some space, then retry."
        )


class StoreReadOnly(StoreError):
    code = "store.read_only"

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"{where} cannot be written. Give this process write permission to the file and to "
            "its directory (SQLite keeps -wal and -shm files beside it)."
        )


class StoreFailed(StoreError):
    code = "store.failed"
    retryable = True

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where} failed: {reason}. What was acknowledged before is safe. Whether this write "
            "was recorded is not known: send it again under the same id (error.ids), never doubled."
        )


class StoreUnopened(StoreError):
    code = "store.unopened"

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where} cannot be opened: {reason}.")


class BackupRefused(StoreError):
    code = "backup.refused"
    status = 409

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"nothing was copied to or from {where}: {reason}.")


class StoreForeign(StoreError):
    code = "store.foreign"

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"{where} is not a Holdfast database. Choose another path.")


class StoreNewer(StoreError):
    code = "store.newer"

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where, self.found, self.known = where, found, known
        super().__init__(
            f"{where} has schema {found} and this release knows {known}. Upgrade holdfast; "
            "nothing was changed."
        )


class StoreCorrupt(StoreError):
    code = "store.corrupt"
    status = 500

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where} is damaged: {reason}. Keep a copy of the file, run hf.verify() to see what "
            "is affected, and restore from a backup."
        )


class StoreOnNetwork(StoreError):
    code = "store.network"

    def __init__(self, where: str, file_system: str) -> None:
        self.where, self.file_system = where, file_system
        super().__init__(
            f"{where} is on a network file system ({file_system}), where SQLite's locks cannot be "
            "trusted. Put it on a local disk."
        )


class ExtraMissing(StoreError):
    code = "extra.missing"

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed. Run: pip install 'holdfast[{extra}]'.")
