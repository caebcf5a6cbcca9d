"""Every error Holdfast raises, under one root.

    HoldfastError
    ├── InvalidInput        what was asked cannot be done as asked; nothing was changed
    │   ├── InvalidKey · InvalidURL · InvalidQuery · InvalidCursor
    │   ├── InvalidValue · EventTooLarge · CommitTooLarge
    │   ├── InvalidEvent · ReservedType · ActorMissing
    │   ├── InvalidOp · OpPathUnknown · OpTypeMismatch · NotPending
    │   └── InvalidSchema · SchemaViolation · FieldAccessDenied · InvalidDiff
    ├── SessionError        the session is not in the state the call needs
    │   ├── SessionNotFound · SessionExists · SessionDeleted · SessionErased
    │   ├── SessionConflict · SessionFenced · SessionLocked · SessionNotLoaded
    │   └── SessionCorrupt · FollowerBehind
    ├── StateError          stored state and what is asked of it do not agree
    │   ├── IntegrityViolation · InvalidEnvelope · EnvelopeNewer · DiffMismatch · MergeConflict
    │   └── MigrationError
    │       ├── MigrationMissing      SessionMigrationMissing · CheckpointMigrationMissing
    │       ├── MigrationAmbiguous    SessionMigrationAmbiguous · CheckpointMigrationAmbiguous
    │       ├── MigrationFailed       SessionMigrationFailed · CheckpointMigrationFailed
    │       └── SchemaIncompatible    SessionSchemaIncompatible · CheckpointSchemaIncompatible
    └── StoreError          the store cannot serve
        ├── StoreClosed · StoreForked · StoreBusy · StoreFull · StoreReadOnly · StoreFailed
        ├── StoreUnopened · StoreForeign · StoreNewer · StoreOlder · StoreCorrupt · StoreOnNetwork
        └── BackupRefused · ExtraMissing

A class carries a stable `code`, whether the same call may succeed later (`retryable`), and what
the doors answer (`status` for HTTP, `exit_code` for the command line). The message is built here,
in one place, and ends with what to do next.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import ClassVar, Final, Literal, Self, TypeAlias

Lifecycle: TypeAlias = Literal["session", "checkpoint"]  # whose state it is
Step: TypeAlias = tuple[str, str]  # one migration: from which version, to which


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


def _without_secrets(url: str) -> str:
    """A URL that may be shown: whatever it is, what looks like a password is left out."""
    url = re.sub(r"(?<=password=)[^&#]*", "…", url)
    return re.sub(r"(?<=://)([^/?#@]*?):[^/?#]*@", r"\1:…@", url)


class InvalidURL(InvalidInput):
    code = "store.url"

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = _without_secrets(url), reason
        super().__init__(
            f"cannot open {self.url!r}: {reason}. Use memory://, sqlite:///relative.db or "
            "sqlite:////absolute.db (with ?sync=full or ?sync=normal if wanted), or "
            "postgresql://user@host/database."
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
            f"the schema is not valid: {reason}. Correct the class that declares the state, or the "
            "version: MAJOR.MINOR.PATCH, as in '1.2.0'."
        )


class FieldAccessDenied(InvalidInput):
    code = "state.access_denied"
    status = 403

    def __init__(self, field: str, actor: str, allowed: tuple[str, ...]) -> None:
        self.field, self.actor, self.allowed = field, actor, allowed
        super().__init__(
            f"{actor} may not write {field}: its class allows {', '.join(allowed) or 'nobody'}. "
            "Let such an actor write it, or change the access that the class declares."
        )


class InvalidDiff(InvalidInput):
    code = "diff.invalid"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"this is no diff: {reason}. Pass the bytes that Diff.to_bytes gave, unchanged."
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

    def __init__(self, key: object, what: str, expected: object, actual: object) -> None:
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


# --- the state ----------------------------------------------------------------------------------


class StateError(HoldfastError):
    """Stored state and what is asked of it do not agree."""

    code = "state.error"
    status = 409
    exit_code = 3


class DiffMismatch(StateError):
    code = "diff.mismatch"

    def __init__(self, path: str, expected: str, actual: str) -> None:
        self.path, self.expected, self.actual = path, expected, actual
        super().__init__(
            f"the diff expects {expected} at {path} and found {actual}; nothing was changed. "
            "Apply it to the value it was made from, or merge the two."
        )


class MergeConflict(StateError):
    code = "merge.conflict"

    def __init__(self, places: tuple[str, ...]) -> None:
        self.places = places
        named = ", ".join(places[:5])
        more = f" and {len(places) - 5:,} more" if len(places) > 5 else ""
        super().__init__(
            f"both sides changed {named}{more}. Decide these places and merge again, or give them "
            "a policy."
        )


class IntegrityViolation(StateError):
    code = "integrity.violation"
    status = 500

    def __init__(self, what: str, expected: str, computed: str) -> None:
        self.what, self.expected, self.computed = what, expected, computed
        super().__init__(
            f"{what} is damaged: its checksum should be {expected} and is {computed}. Use another "
            "copy, or have it written again from its source."
        )


class InvalidEnvelope(StateError):
    code = "envelope.invalid"
    status = 400

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"these bytes are no envelope: {reason}. Pass the bytes of envelope.encode unchanged."
        )


class EnvelopeNewer(StateError):
    code = "envelope.newer"

    def __init__(self, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(
            f"the envelope has format {found} and this release knows {known}. Upgrade holdfast to "
            "read it."
        )


class MigrationError(StateError):
    """Stored state cannot be brought to the version that the code declares.

    `category` is the stable name of the kind of failure. Each kind below comes in two flavours,
    for the state of a session and that of a checkpoint; `of` chooses.
    """

    code = "migration.error"
    category: ClassVar[str] = "state_migration_error"
    lifecycle: ClassVar[Lifecycle | None] = None

    @classmethod
    def of(cls, lifecycle: Lifecycle | None) -> type[Self]:
        """This kind of error for one lifecycle; the kind itself where none is known yet."""
        if lifecycle is None:
            return cls
        for flavour in cls.__subclasses__():
            if flavour.lifecycle == lifecycle:
                return flavour
        raise InvalidInput(
            f"{lifecycle!r} is no lifecycle that has state. Pass 'session' or 'checkpoint'."
        )


class MigrationMissing(MigrationError):
    code = "migration.missing"
    category = "state_migration_missing"

    def __init__(
        self,
        from_version: str,
        to_version: str,
        registered_migrations_count: int,
        registry_description: str,
    ) -> None:
        self.from_version, self.to_version = from_version, to_version
        self.registered_migrations_count = registered_migrations_count
        self.registry_description = registry_description
        super().__init__(
            f"no way leads from schema {from_version} to {to_version} over the "
            f"{registered_migrations_count:,} registered migrations, and nothing was changed. "
            "Register the one that is missing; error.registry_description lists those there are."
            if registered_migrations_count
            else f"no way leads from schema {from_version} to {to_version}: no migrations were "
            "given, and nothing was changed. Pass migrations=registry beside the state_type."
        )


class MigrationAmbiguous(MigrationError):
    code = "migration.ambiguous"
    category = "state_migration_chain_ambiguous"

    def __init__(
        self, from_version: str, to_version: str, paths: tuple[tuple[Step, ...], ...]
    ) -> None:
        self.from_version, self.to_version, self.paths = from_version, to_version, paths
        ways = "; or ".join(", ".join(f"{a} → {b}" for a, b in path) for path in paths)
        twice = len(set(paths)) < len(paths)
        super().__init__(
            f"{from_version} → {to_version} is registered already. Keep one function for it."
            if twice
            else f"several ways lead from schema {from_version} to {to_version} and none is "
            f"better: {ways}. Remove one of them, or register a shorter one."
        )


class MigrationFailed(MigrationError):
    code = "migration.failed"
    category = "state_migration_failed"
    status = 500

    def __init__(self, from_version: str, to_version: str, step: Step, reason: str) -> None:
        self.from_version, self.to_version = from_version, to_version
        self.step, self.reason = step, reason
        super().__init__(
            f"on the way from schema {from_version} to {to_version} the migration "
            f"{step[0]} → {step[1]} {reason}. No later one ran and the stored state is as it was: "
            "mend the function, then load again."
        )


class SchemaIncompatible(MigrationError):
    code = "schema.incompatible"
    category = "state_incompatible"

    def __init__(self, stored: str, wanted: str, reason: str) -> None:
        self.stored, self.wanted, self.reason = stored, wanted, reason
        super().__init__(
            f"state stored under schema {stored} cannot be used as {wanted}: {reason}. Run the "
            "code that wrote it, or register a migration from its version."
        )


class SessionMigrationMissing(MigrationMissing):
    code, category, lifecycle = (
        "session.migration_missing",
        "session_state_migration_missing",
        "session",
    )


class CheckpointMigrationMissing(MigrationMissing):
    code, category, lifecycle = (
        "checkpoint.migration_missing",
        "checkpoint_state_migration_missing",
        "checkpoint",
    )


class SessionMigrationAmbiguous(MigrationAmbiguous):
    code, category, lifecycle = (
        "session.migration_ambiguous",
        "session_state_migration_chain_ambiguous",
        "session",
    )


class CheckpointMigrationAmbiguous(MigrationAmbiguous):
    code, category, lifecycle = (
        "checkpoint.migration_ambiguous",
        "checkpoint_state_migration_chain_ambiguous",
        "checkpoint",
    )


class SessionMigrationFailed(MigrationFailed):
    code, category, lifecycle = (
        "session.migration_failed",
        "session_state_migration_failed",
        "session",
    )


class CheckpointMigrationFailed(MigrationFailed):
    code, category, lifecycle = (
        "checkpoint.migration_failed",
        "checkpoint_state_migration_failed",
        "checkpoint",
    )


class SessionSchemaIncompatible(SchemaIncompatible):
    code, category, lifecycle = (
        "session.schema_incompatible",
        "session_state_incompatible",
        "session",
    )


class CheckpointSchemaIncompatible(SchemaIncompatible):
    code, category, lifecycle = (
        "checkpoint.schema_incompatible",
        "checkpoint_state_incompatible",
        "checkpoint",
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
            "this store was opened before os.fork and belongs to the parent process: neither "
            "SQLite's locks nor a server's connections can be shared. Open it only after the fork, "
            "or start the process with spawn or forkserver."
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


_FILE_RIGHTS: Final = (
    "give this process write permission to the file and to its directory (SQLite keeps -wal and "
    "-shm files beside it)"
)


class StoreReadOnly(StoreError):
    code = "store.read_only"

    def __init__(self, where: str, advice: str = _FILE_RIGHTS) -> None:
        self.where, self.advice = where, advice
        super().__init__(f"{where} cannot be written: {advice}.")


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
        super().__init__(
            f"{where} is not a Holdfast database: what is there was made by something else. "
            "Choose another path or another database."
        )


class StoreNewer(StoreError):
    code = "store.newer"

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where, self.found, self.known = where, found, known
        super().__init__(
            f"{where} has schema {found} and this release knows {known}. Upgrade holdfast; "
            "nothing was changed."
        )


class StoreOlder(StoreError):
    code = "store.older"

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where, self.found, self.known = where, found, known
        super().__init__(
            f"{where} has schema {found} and this release works on {known}; nothing was changed, "
            "because this command only looks. Use the release that wrote it, or start your "
            "application with this one, which brings the schema forward."
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
