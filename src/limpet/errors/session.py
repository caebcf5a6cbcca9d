"""The session is not in the state that the call needs."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias

from limpet.errors.root import LimpetError

_ANOTHER_ID: Final = "Create one with another id"
_REUSE: Final = f"{_ANOTHER_ID}, or under this one with reuse_deleted=True"


class SessionError(LimpetError):
    """The session is not in the state the call needs."""

    code = "session.error"
    status = 409
    exit_code = 3


class SessionNotFound(SessionError, LookupError):
    code = "session.not_found"
    status = 404

    def __init__(
        self, key: object, advice: str = "Create it with lp.create, or use lp.find"
    ) -> None:
        self.key, self.advice = key, advice
        super().__init__(f"there is no session {key}. {advice}.")


class SessionExists(SessionError):
    code = "session.exists"

    def __init__(self, key: object, advice: str = "Use lp.get, or lp.get_or_create") -> None:
        self.key, self.advice = key, advice
        super().__init__(f"session {key} already exists. {advice}.")


class SessionDeleted(SessionError):
    code = "session.deleted"
    status = 410

    def __init__(self, key: object, advice: str = _REUSE) -> None:
        self.key, self.advice = key, advice
        super().__init__(f"session {key} was deleted. {advice}.")


class SessionErased(SessionError):
    code = "session.erased"
    status = 410

    def __init__(self, key: object, advice: str = _ANOTHER_ID) -> None:
        self.key, self.advice = key, advice
        super().__init__(f"session {key} was erased and its key cannot be reused. {advice}.")


class SessionHasForks(SessionError):
    """A session that others begin on cannot be erased without saying what becomes of them."""

    code = "session.has_forks"

    def __init__(self, key: object, forks: tuple[object, ...]) -> None:
        self.key, self.forks = key, forks
        named = ", ".join(str(fork) for fork in forks[:5]) + (", …" if len(forks) > 5 else "")
        count = "a fork" if len(forks) == 1 else f"{len(forks)} forks"
        super().__init__(
            f"session {key} has {count}: {named}. Erase them too with forks='erase', or "
            "let them keep the state they began on with forks='keep'."
        )


class NoCheckpoint(SessionError, LookupError):
    code = "checkpoint.none"
    status = 404

    def __init__(self, key: object, number: int | None = None) -> None:
        self.key, self.number = key, number
        named = "no checkpoint" if number is None else f"no checkpoint {number}"
        super().__init__(
            f"session {key} has {named}. Make one with s.checkpoint(), or list them with "
            "s.history.checkpoints()."
        )


class NoFullCheckpoint(SessionError, LookupError):
    code = "checkpoint.no_full"
    status = 404

    def __init__(self, key: object, number: int) -> None:
        self.key, self.number = key, number
        super().__init__(
            f"session {key} has no full checkpoint at or before checkpoint {number}. Make one with "
            "s.checkpoint(full=True), or rewind to a seq with s.rewind(seq)."
        )


class CheckpointIntegrity(SessionError):
    code = "checkpoint.integrity"
    status = 500

    def __init__(self, key: object, number: int, reason: str) -> None:
        self.key, self.number, self.reason = key, number, reason
        super().__init__(
            f"checkpoint {number} of session {key} cannot be trusted: {reason}. Restore an older "
            "one with s.history.restore(ref, fallback=True), and run `limpet verify`."
        )


# What another writer changed first: the session's version, its schema, or one name in its state.
# "log": events that come from another store do not follow those that are here.
ConflictOn: TypeAlias = Literal["session", "schema", "name", "log"]


class SessionConflict(SessionError):
    code = "session.conflict"
    retryable = True

    def __init__(
        self, key: object, on: ConflictOn, expected: object, actual: object, name: str | None = None
    ) -> None:
        self.key, self.on, self.name = key, on, name
        self.expected, self.actual = expected, actual
        if on == "log":
            super().__init__(
                f"the log of {key} in this store (at version {actual}) and the log to be "
                f"added after version {expected} have diverged: both were written to. Nothing was "
                "recorded. Keep one of them: erase the other, or store it under another key."
            )
            return
        super().__init__(
            f"{name or f'the {on}'} of {key} is at version {actual}, not {expected}: another "
            "writer committed first. Refresh, decide again and retry, or leave expect out to let "
            "the append rebase."
        )


class SessionFenced(SessionError):
    code = "session.fenced"

    def __init__(self, key: object, fence: int, current: int) -> None:
        self.key, self.fence, self.current = key, fence, current
        why = f"the current fence is {current}" if fence != current else "its lease has ended"
        super().__init__(
            f"fence {fence} is no longer valid for {key}: {why}. Another worker may hold the "
            "session; stop, and claim it again before writing."
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


class SessionTyped(SessionError):
    code = "session.typed"

    def __init__(self, key: object, schema_version: str) -> None:
        self.key, self.schema_version = key, schema_version
        super().__init__(
            f"session {key} has typed state (schema {schema_version}) and this change was not "
            "checked against a State class; nothing was recorded. Open the session with its "
            "state_type, or with untyped=True to bypass the class."
        )


class SessionSuspended(SessionError):
    code = "session.suspended"

    def __init__(self, key: object, phase: str = "suspended") -> None:
        self.key, self.phase = key, phase
        next_step = "s.resume()" if phase == "suspended" else "s.activate()"
        super().__init__(
            f"session {key} is {phase}: it records inputs, labels, timers and timeouts, and "
            f"nothing else until it is active again. Call {next_step} first."
        )


class SessionEnded(SessionError):
    code = "session.ended"
    status = 410

    def __init__(self, key: object, phase: str) -> None:
        self.key, self.phase = key, phase
        super().__init__(
            f"session {key} is {phase} and accepts no more work. Create a new session, or fork "
            "this one to continue from its state."
        )


class SessionArchived(SessionError):
    code = "session.archived"
    status = 410

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(
            f"session {key} is archived. Read it with lp.get(key, archived=True), or bring it back "
            "with lp.unarchive(key)."
        )


class InvalidTransition(SessionError):
    code = "session.invalid_transition"

    def __init__(self, phase: str, event: str, allowed: tuple[str, ...] = ()) -> None:
        self.phase, self.event, self.allowed = phase, event, allowed
        accepts = f"accepts {', '.join(allowed)}" if allowed else "accepts no transition"
        super().__init__(
            f"a session that is {phase} cannot {event}: it {accepts}. Refresh it and look at "
            "s.phase."
        )


class GuardFailed(SessionError):
    code = "session.guard_failed"

    def __init__(self, phase: str, event: str, reason: str) -> None:
        self.phase, self.event, self.reason = phase, event, reason
        super().__init__(
            f"the session stays {phase}: it cannot {event}, because {reason}. Nothing was "
            "recorded. Fix the cause, then try again."
        )


class InsufficientTokenBudget(SessionError):
    code = "session.tokens_insufficient"

    def __init__(self, key: object, available: int, needed: int) -> None:
        self.key, self.available, self.needed = key, available, needed
        super().__init__(
            f"session {key} has {available:,} tokens left and needs {needed:,}. Raise its budget, "
            "or leave out more: pin fewer messages, or shorten the newest one."
        )


class ToolAuthorizationFailed(SessionError):
    code = "tool.not_authorized"
    status = 403

    def __init__(self, key: object, tool: str, reason: str) -> None:
        self.key, self.tool, self.reason = key, tool, reason
        super().__init__(
            f"session {key} may not use the tool {tool!r}: {reason}. Authorize it, or bind the "
            "session without it."
        )


class RequiredToolUnavailable(SessionError):
    code = "tool.unavailable"

    def __init__(self, key: object, tool: str) -> None:
        self.key, self.tool = key, tool
        super().__init__(
            f"session {key} needs the tool {tool!r}, but no matching version of it and "
            "no substitute is registered. Register it, or make it optional."
        )


class ToolLocked(SessionError):
    code = "tool.locked"
    retryable = True
    status = 423

    def __init__(self, key: object, tool: str, until: datetime) -> None:
        self.key, self.tool, self.until = key, tool, until
        super().__init__(
            f"session {key} cannot use the tool {tool!r} now: another session holds it until "
            f"{until.isoformat()}. Try again when it has been released, or after that time."
        )


class SessionIntegrity(SessionError):
    code = "session.integrity"

    def __init__(self, key: object, failures: tuple[str, ...]) -> None:
        self.key, self.failures = key, failures
        super().__init__(
            f"session {key} cannot be resumed: {'; '.join(failures)}. It stays suspended; fix the "
            "cause, then resume it again."
        )


class SessionNotLoaded(SessionError):
    code = "session.not_loaded"

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} is not known: this handle is not loaded yet. Call await s.refresh() first."
        )


class SessionCorrupt(SessionError):
    code = "session.corrupt"
    status = 500

    def __init__(self, key: object, reason: str) -> None:
        self.key, self.reason = key, reason
        super().__init__(
            f"stored data of session {key} is damaged: {reason}. Run lp.maintenance.verify for "
            "details, then restore the store from a backup, or open the backup and copy the "
            "session's state from it."
        )


class FollowerBehind(SessionError):
    code = "follow.behind"
    retryable = True

    def __init__(self, after: int, waiting_max: int) -> None:
        self.after, self.waiting_max = after, waiting_max
        super().__init__(
            f"this follower had more than {waiting_max:,} unread partial events and was "
            f"disconnected. No recorded event is lost: continue with s.follow(after={after})."
        )


class DocumentNotFound(SessionError, LookupError):
    code = "document.not_found"
    status = 404

    def __init__(self, collection: str, name: str, version: int | None = None) -> None:
        self.collection, self.name, self.version = collection, name, version
        found = "does not exist" if version is None else f"has no version {version}"
        super().__init__(
            f"the document {name!r} in {collection!r} {found}. See list() and history(), or put it "
            "first."
        )


class DocumentConflict(SessionError):
    code = "document.conflict"
    retryable = True

    def __init__(self, collection: str, name: str, expected: int, actual: int | None) -> None:
        self.collection, self.name = collection, name
        self.expected, self.actual = expected, actual  # None: it is there, at some version
        found = "exists" if actual is None else f"is at version {actual}" if actual else "is absent"
        wanted = f"version {expected} was expected" if expected else "the call was to create it"
        super().__init__(
            f"the document {name!r} in {collection!r} {found}, but {wanted}. Get it again, decide "
            "again, and put the result with the version that you read."
        )


class MemoryConflict(SessionError):
    code = "memory.conflict"
    retryable = True

    def __init__(self, name: str, expected: int, actual: int) -> None:
        self.name, self.expected, self.actual = name, expected, actual
        super().__init__(
            f"the {name} of the session is at version {actual}, but version {expected} was "
            "expected. Read it again, decide again, and write with the version that you read."
        )


class PromotionRefused(SessionError):
    code = "promotion.refused"

    def __init__(self, agent: str, text: str, unmet: tuple[str, ...]) -> None:
        self.agent, self.text, self.unmet = agent, text, unmet
        super().__init__(
            f"the learning {text!r} was not promoted into the memory of {agent!r}: "
            f"{'; '.join(unmet)}. Promote it again when that holds, or change lp.policies.gates."
        )


class BlobNotFound(SessionError, LookupError):
    code = "blob.not_found"
    status = 404

    def __init__(self, key: object, hash: str) -> None:
        self.key, self.hash = key, hash
        super().__init__(
            f"session {key} has no blob {hash}. Pass the Ref that s.blobs.put of this session "
            "returned; a fork loses its parent's blobs when the parent is erased."
        )


class UploadLost(SessionError):
    code = "blob.upload_lost"
    retryable = True

    def __init__(self, key: object) -> None:
        self.key = key
        super().__init__(
            f"a blob of session {key} was not kept: the upload paused for too long and was "
            "cleaned up. Put the blob again."
        )
