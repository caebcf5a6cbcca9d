"""Every error Limpet raises, under one root.

    LimpetError
    ├── InvalidInput        the request itself is wrong; nothing was changed
    │   ├── InvalidKey · InvalidURL · InvalidQuery · InvalidCursor · PositionUnknown
    │   ├── IdempotencyKeyReused · BodyTooLarge · RouteNotFound
    │   ├── InvalidValue · EventTooLarge · CommitTooLarge
    │   ├── InvalidEvent · ReservedType · ReservedApp · ActorMissing · BlobTooLarge
    │   ├── InvalidOp · ScopeUnknown · OpPathUnknown · OpTypeMismatch · NotPending
    │   ├── KeysInvalid · ReceiptInvalid · CertificateInvalid · AuditInvalid · PolicyInvalid
    │   ├── ToolInvalid · ModelInvalid
    │   └── InvalidSchema · SchemaViolation · FieldAccessDenied · InvalidDiff
    ├── AccessError         the caller may not do this; nothing was changed
    │   ├── AccessDenied · CrossSessionAccessDenied · TooManyRequests
    │   └── TokenError          TokenInvalid · TokenExpired · TokenRevoked · TokenSessionInvalid
    │                           TokenUserMismatch · TokenAddressMismatch · RateLimited
    │                           RequestSuspicious · TokenReplayed
    ├── SessionError        the session is not in the state the call needs
    │   ├── SessionNotFound · SessionExists · SessionDeleted · SessionErased
    │   ├── SessionConflict · SessionFenced · SessionLocked · SessionNotLoaded · SessionTyped
    │   ├── SessionHasForks · DocumentNotFound · DocumentConflict · BlobNotFound · UploadLost
    │   ├── ShareNotFound
    │   ├── SessionSuspended · SessionEnded · SessionArchived · SessionMoved
    │   ├── ReclaimRefused
    │   ├── InvalidTransition · GuardFailed
    │   ├── InsufficientTokenBudget · SessionIntegrity · MemoryConflict · PromotionRefused
    │   ├── MemoryPreconditionFailed · MemoryPathTaken · HeartbeatRefused
    │   ├── ProposalNotFound · ProposalDecided
    │   ├── RelationNotFound · CitedChanged
    │   ├── ToolAuthorizationFailed · RequiredToolUnavailable · ToolLocked
    │   ├── NoCheckpoint · NoFullCheckpoint · CheckpointIntegrity
    │   ├── SessionCorrupt · FollowerBehind · SessionSchemaViolation (a SchemaViolation too)
    │   └── TurnError           Interrupted · TurnMismatch · TurnMisused · TurnUnderway
    │                           EffectFailed · EffectUnknown · NotDone · ToolDenied · ToolFailed
    │                           BudgetReached · RequestNotFound · RequestAnswered
    │                           RequestMismatch · ChildNotFound · ModelFailed
    ├── StateError          stored state does not match what the call needs
    │   ├── IntegrityViolation · InvalidEnvelope · EnvelopeNewer · DiffMismatch · MergeConflict
    │   ├── ScopeFull · TooLittleFeedback
    │   └── MigrationError      MigrationMissing · MigrationAmbiguous · MigrationFailed
    │                           SchemaIncompatible (all: a SessionError too)
    ├── GraphError          a graph cannot be compiled, run, resumed or bound to a session
    │   ├── GraphInvalid          NoDeclaredEntry · UnreachableNode · DanglingEdge
    │   │                         MultipleOutgoingEdges · ConflictingReducers
    │   │                         MappingReferencesUndeclaredField · ConflictingProjectionForms
    │   │                         ReducerConfigurationInvalid · FanOutFieldNotList
    │   │                         FanOutCountModeAmbiguous · FanOutDegradedUpdate
    │   │                         ParallelBranchesNoBranches · ParallelBranchesInvalidBranchSpec
    │   │                         (all: an InvalidInput too)
    │   ├── GraphMisused          (an InvalidInput too)
    │   ├── GraphRunError         NodeException · EdgeException · ReducerError · RoutingError
    │   │                         StateValidationError · FanOutEmpty · ParallelBranchesBranchFailed
    │   │                         StepLimitReached
    │   ├── CheckpointError       CheckpointNotFound · CheckpointRecordInvalid
    │   │                         CheckpointInUse · CheckpointSuperseded
    │   │                         CheckpointSaveFailed · CheckpointLoadFailed
    │   ├── SuspensionError       SuspensionPersistenceFailed · SuspensionRecordInvalid
    │   │                         SuspensionResumePayloadInvalid · SuspensionInUnsupportedContext
    │   └── SessionStoreError     SessionLoadFailed · SessionSaveFailed · SessionWriteConflict
    │                             (a SessionError too)
    └── StoreError          the store cannot serve the call
        ├── StoreClosed · StoreForked · StoreBusy · StoreFull · StoreReadOnly · StoreFailed
        ├── ProtocolMismatch · EntryRefused · SealBroken
        ├── QuorumUnavailable (a StoreFailed) · ReplicaBehind
        ├── StoreRefused · SealUnavailable · KeysMissing · QueueFull · FlushFailed
        ├── StoreUnopened · StoreUnreachable (a StoreUnopened)
        ├── StoreForeign · StoreNewer · StoreOlder · StoreCorrupt · StoreOnNetwork
        ├── BackupRefused · BackupDamaged · BundleRefused · BundleDamaged · ExtraMissing
        └── ArchiveFailed · ArchiveSealed · ArchiveDamaged

An error is declared, not written: a class has a stable `code`, an HTTP `status`, a command-line
`exit_code` and `retryable` (the same call may succeed later), its fields with their types, and a
`template` that says what happened and, in the next sentence, what to do. The root builds the
constructor, the message, `fields`, copying and pickling from the declaration, as a dataclass does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    TypeAlias,
    dataclass_transform,
)

import msgspec

if TYPE_CHECKING:
    from dataclasses import KW_ONLY


@dataclass_transform(eq_default=False)
class LimpetError(Exception):
    """The root. `code` never changes once released; messages may.

    A class that declares fields takes them as its arguments, in their order, with the defaults
    that it gives them; those after `_: KW_ONLY` by name only. A class without fields takes the
    message itself, or none if it has a template.
    """

    code: ClassVar[str] = "limpet.error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = ""
    field_names: ClassVar[tuple[str, ...]] = ()
    _positional: ClassVar[tuple[str, ...]] = ()  # the fields that may be passed by position

    def __init_subclass__(cls, **attributes: Any) -> None:
        """Set the attributes that the class statement names, and collect the fields."""
        for name, value in attributes.items():
            setattr(cls, name, value)
        cls.template = " ".join(cls.template.split())
        positional: dict[str, None] = {}
        named: dict[str, None] = {}
        for kind in reversed(cls.__mro__):
            own = positional
            for name, annotation in getattr(kind, "__annotations__", {}).items():
                if "KW_ONLY" in str(annotation):
                    own = named
                elif "ClassVar" not in str(annotation):
                    own[name] = None
        cls.field_names, cls._positional = (*positional, *named), tuple(positional)

    if TYPE_CHECKING:  # of a class without fields; for the others a type checker builds it

        def __init__(self, message: str = "") -> None: ...

    else:

        def __init__(self, *values, **given):
            kind = type(self)
            positional = kind._positional or ("message",)
            if len(values) > len(positional) or given.keys() & positional[: len(values)]:
                raise TypeError(f"{kind.__name__} takes {', '.join(positional)}, each once")
            given.update(zip(positional, values, strict=False))
            message = "" if kind._positional else given.pop("message", "")
            for name in kind.field_names:
                if name not in given and not hasattr(kind, name):
                    raise TypeError(f"{kind.__name__} needs the argument {name!r}")
                setattr(self, name, given.pop(name) if name in given else getattr(kind, name))
            if given:
                raise TypeError(f"{kind.__name__} has no field {', '.join(given)}")
            self._prepare()
            self.args = (message or self._describe(),)

    def _prepare(self) -> None:
        """Change the fields before the message is built."""

    def _describe(self) -> str:
        """Return the message. A class whose message has variants overrides this."""
        return self.template.format_map(vars(self))

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of this error by name: `type(error)(**error.fields)` builds it again."""
        named = {name: getattr(self, name) for name in self.field_names}
        return named if self._positional else {"message": str(self), **named}

    @property
    def page(self) -> str:
        """The page of the documentation that explains this error, below the root of its site."""
        return f"errors/#{self.code}"

    @property
    def summary(self) -> str:
        """The message without the advice, for use within another sentence."""
        return str(self).partition(". ")[0].rstrip(".")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the error as it is. The default calls the class with the message, which
        takes other arguments: in a pool of processes that breaks the pool and hides the error."""
        return _rebuild, (type(self), *self.args), self.__dict__ or None


def _rebuild(kind: type[LimpetError], *args: object) -> LimpetError:
    return kind.__new__(kind, *args)


# --- invalid input --------------------------------------------------------------------------------


class InvalidInput(LimpetError, ValueError, code="input.invalid", status=400, exit_code=2):
    """The request is wrong. Nothing was changed, and repeating the call does not help."""


class InvalidKey(InvalidInput, code="key.invalid"):
    template = """the key's {part} {reason}. A key part is 1 to 256 characters of text without
    padding, control characters or lone surrogates."""
    part: str
    reason: str


class InvalidURL(InvalidInput, code="store.url"):
    template = "cannot open {url!r}: {reason}. {advice}."
    url: str
    reason: str
    advice: str = (
        "Use memory://, sqlite:///relative.db or sqlite:////absolute.db (with ?sync=full or "
        "?sync=normal), files:///directory, postgresql://user@host/database or http://host:8420"
    )

    def _prepare(self) -> None:
        url = self.url
        url = re.sub(r"(?<=password=)[^&]*", "…", url)
        url = re.sub(r"(?<=[?&]direct=).*", "…", url, flags=re.DOTALL)  # a URL within the URL
        self.url = re.sub(r"(?<=://)([^:@]*):.*@", r"\1:…@", url, flags=re.DOTALL)


class InvalidQuery(InvalidInput, code="query.invalid"):
    template = "the query cannot be answered: {reason}."
    reason: str


class InvalidCursor(InvalidInput, code="query.cursor"):
    """A cursor is malformed or belongs to another query, or a position to another feed. Pass
    page.cursor or entry.position unchanged, or None."""

    of: Literal["page", "feed"] = "page"

    def _describe(self) -> str:
        if self.of == "page":
            return (
                "the cursor does not belong to this query. Pass page.cursor of the same query "
                "unchanged, or None to start again."
            )
        return (
            "`after` is not a position in this store's feed. Pass entry.position from lp.watch "
            "unchanged, or None to start with the first event."
        )


class PositionUnknown(InvalidInput, code="watch.position", status=410):
    template = """this store never issued the position {position!r}: it belongs to another store, or
    this store was restored to an earlier time. Watch from a position saved before that time, or
    without one to start from the beginning."""
    position: str


class IdempotencyKeyReused(InvalidInput, code="request.key_reused"):
    template = """the Idempotency-Key {key!r} was used for another body. Send the same body again,
        or use a new key."""
    key: str


class BodyTooLarge(InvalidInput, code="request.too_large", status=413):
    template = "the body has {bytes_max:,} bytes or more. Send less in one request."
    bytes_max: int


class RouteNotFound(InvalidInput, LookupError, code="request.no_route", status=404):
    template = "this server has no route {route}. See docs/serving.md for its routes."
    route: str


class InvalidValue(InvalidInput, code="value.invalid"):
    template = """{where} {reason}. Values must be what JSON can hold without loss: None, bool,
    64-bit integers, finite floats, text, and lists and dicts of these."""
    where: str
    reason: str


class EventTooLarge(InvalidInput, code="event.too_large", status=413):
    template = """the event takes {size_bytes:,} bytes; the limit is {bytes_max:,}. Put large
    content into a blob (s.blobs.put), or elsewhere, and its reference into the event."""
    size_bytes: int
    bytes_max: int


class CommitTooLarge(InvalidInput, code="commit.too_large", status=413):
    template = """the commit holds {size:,} {what}; the limit is {size_max:,}. Split it: each part
    is still all or nothing."""
    what: str
    size: int
    size_max: int


class BlobTooLarge(InvalidInput, code="blob.too_large", status=413):
    template = """the blob is larger than the limit of {bytes_max:,} bytes; nothing of it was kept.
    Split it, or keep it elsewhere and record a limpet.Ref to it."""
    bytes_max: int


class InvalidEvent(InvalidInput, code="event.invalid"):
    template = "the event is not valid: {reason}."
    reason: str


class ReservedType(InvalidInput, code="event.reserved"):
    template = """only Limpet writes events of type {type!r}. Choose a type outside session.*,
    state.*, audit.*, span.*, step.*, effect.*, budget.*, checkpoint.* and document.*, or record the
    fact with s.record and limpet.facts."""
    type: str


class ReservedApp(InvalidInput, code="app.reserved"):
    """A verb for sessions got an app that begins with `$`; those apps hold documents. Use
    lp.documents, or choose another app."""

    app: str

    def _describe(self) -> str:
        if self.app.startswith("$$"):
            return f"the app {self.app!r} is reserved for Limpet's own records. Choose another app."
        name = self.app.removeprefix("$") or "agents"
        return (
            f"the app {self.app!r} is reserved: apps that begin with '$' hold documents. Use "
            f"lp.documents({name!r}), or choose another app."
        )


class ActorMissing(InvalidInput, code="event.actor_missing"):
    template = """every event needs an actor: who caused it. Pass actor='user:ada', or bind one with
    lp.session(key, actor='agent:main') or lp.documents(name, actor='user:ada')."""


class NotPending(InvalidInput, code="event.not_pending", status=409):
    template = """event {seq} is not pending: it is not a user.* event of this session, or it was
    already processed. Read s.pending() again and process those events."""
    seq: int


class InvalidOp(InvalidInput, code="op.invalid"):
    template = "the state operation is not valid: {reason}. See limpet.ops."
    reason: str


class ScopeUnknown(InvalidInput, code="op.scope"):
    template = """the name {name!r} has an unknown scope prefix. Start it with app:, user: or temp:,
    or remove the colon for a field of the session itself."""
    name: str


class OpPathUnknown(InvalidInput, code="op.path"):
    template = """state has no {missing} on the path {path}. An operation creates only the last name
    of its path, so set the parent first; it removes only what exists."""
    path: str
    missing: str


class OpTypeMismatch(InvalidInput, code="op.type"):
    template = """{op} at {path} needs {expected} but found {actual}. Set a matching value first, or
    use another operation."""
    op: str
    path: str
    expected: str
    actual: str


class InvalidSchema(InvalidInput, code="schema.invalid"):
    template = "the schema is not valid: {reason}. {advice}."
    reason: str
    advice: str = "Correct the class that declares the state"


class SchemaViolation(InvalidInput, code="state.schema_violation", status=422):
    template = """{field} must be {expected}; found {actual}. Pass a matching value, or change the
    class that declares the state."""
    field: str
    expected: str
    actual: str


class FieldAccessDenied(InvalidInput, code="state.access_denied", status=403):
    """A field of typed state was to be written by an actor whose role may not, or is hidden from
    the principal that opens it. Write it as one of the `allowed` roles, or read without a
    state_type."""

    field: str
    actor: str
    allowed: tuple[str, ...]
    _: KW_ONLY
    operation: str = "write"

    def _describe(self) -> str:
        if self.operation == "read":
            return (
                f"{self.actor} may not read {self.field}, which the state's class requires. Open "
                "the session without a state_type, or as a principal that may read the field."
            )
        return (
            f"{self.actor} may not write {self.field}: its class allows "
            f"{', '.join(self.allowed) or 'nobody'}. Write it as one of these roles, or change the "
            "access that the class declares."
        )


class InvalidDiff(InvalidInput, code="diff.invalid"):
    template = "these bytes are not a diff: {reason}. Pass the bytes from Diff.to_bytes unchanged."
    reason: str


# --- access ---------------------------------------------------------------------------------------

Denial: TypeAlias = Literal[
    "access_denied",
    "cross_task_access_denied",
    "agent_write_denied",
    "agent_read_denied",
    "field_access_denied",
    "policy_denied",
]


class AccessError(LimpetError, code="access.error", status=403, exit_code=3):
    """The caller may not do this."""


class AccessDenied(AccessError, code="access.denied"):
    template = """{action} is not allowed on {resource} ({denial}). Use a principal that may do
    it, or change the isolation or the policy."""
    denial: Denial
    action: str
    resource: str
    _: KW_ONLY
    policy: str | None = None
    actor: str | None = None  # whom the caller named, and may not write as
    scope: str | None = None  # which the token lacks

    def _describe(self) -> str:
        if self.actor is not None:
            return (
                f"this principal may not write to {self.resource} as {self.actor!r} "
                f"({self.denial}). Leave out actor=. What a session's own user says, a backend "
                f"may append under that name: with a key made with --speaks-for user. Answers, "
                f"approvals, interrupts and lifecycle stay its own."
            )
        if self.scope is not None:
            return (
                f"{self.action} on {self.resource} needs the scope {self.scope!r}, which this "
                f"token does not have ({self.denial}). Ask for a token with that scope."
            )
        return super()._describe()


class CrossSessionAccessDenied(AccessError, code="share.denied"):
    """Two sessions may not share or cite these fields: they are of different apps or users, or the
    share grants less. Share within one app and user, and ask for the access that was granted."""

    source: object
    target: object
    field: str | None = None
    reason: str | None = None

    def _describe(self) -> str:
        if self.field is not None:
            return (
                f"{self.source} does not share the field {self.field!r} with {self.target} by this "
                "share. Name fields that it shares, or have it share this one too."
            )
        why = "" if self.reason is None else f": {self.reason}"
        return (
            f"{self.source} does not share with {self.target}{why}. Share within one app and user, "
            "and ask for the access that was granted."
        )


class TokenError(AccessError, code="token.error", status=401):
    """A request with a token was refused. The audit has it under `audit_code`."""

    audit_code: ClassVar[str] = "invalid_token_signature"


class TokenInvalid(TokenError, code="token.invalid"):
    template = "this is not a token of this store: {reason}. Ask for a new one."
    reason: str


class TokenExpired(TokenError, code="token.expired"):
    audit_code = "expired_token"
    template = "the token expired at {at}. Ask for a new one; rotate a token before it expires."
    at: datetime


class TokenRevoked(TokenError, code="token.revoked"):
    audit_code = "revoked_token"
    template = "the token was revoked, or replaced by a newer one. Use that, or ask for a new one."


class TokenSessionInvalid(TokenError, code="token.session_invalid"):
    audit_code = "invalid_session"
    template = """the session of this token {reason}. Ask for a token of a session that is open to
    its principal."""
    reason: str


class TokenUserMismatch(TokenError, code="token.user_mismatch", status=403):
    audit_code = "user_session_mismatch"
    template = """the token of {principal} is for a session that this principal may not enter. Issue
    it to a principal with access."""
    principal: str


class TokenAddressMismatch(TokenError, code="token.address_mismatch", status=403):
    audit_code = "ip_mismatch"
    template = """the token is bound to a different address. Ask for a new one from this address."""


class RateLimited(TokenError, code="access.rate_limited", status=429, retryable=True):
    """The session has used its `limit` of requests of this `operation` for now. Try again after
    `retry_after_seconds`."""

    audit_code = "rate_limited"
    operation: str
    limit: int
    retry_after_seconds: float

    def _describe(self) -> str:
        return (
            f"this session has used its {self.limit:,} requests of {self.operation!r} for now. "
            f"Try again in {self.retry_after_seconds:.0f} s."
        )


class TooManyRequests(AccessError, code="request.too_many", status=429, retryable=True):
    template = """this key has {count:,} {what}, and no more are accepted at a time. Nothing was
        stored. Try again in {retry_after_seconds:.0f} s."""
    what: str
    count: int
    retry_after_seconds: float


class RequestSuspicious(TokenError, code="access.suspicious", status=403):
    """The request is unlike the others of its session, in the ways that `signals` names. Look at
    the audit, or only flag such requests: TokenPolicy(anomaly="flag")."""

    audit_code = "anomalous_request"
    signals: tuple[str, ...]

    def _describe(self) -> str:
        return (
            f"the request is unlike the session's others ({', '.join(self.signals)}), and such "
            "are blocked. See the audit, or let TokenPolicy(anomaly='flag') only report them."
        )


class TokenReplayed(TokenError, code="token.replayed", status=409):
    audit_code = "replayed_request"
    template = """the request {reason}. Send each request with its own nonce."""
    reason: str = "was sent before"


# --- the session ----------------------------------------------------------------------------------


class SessionError(LimpetError, code="session.error", status=409, exit_code=3):
    """The session is not in the state that the call needs."""


class SessionNotFound(SessionError, LookupError, code="session.not_found", status=404):
    template = "there is no session {key}. {advice}."
    key: object
    advice: str = "Create it with lp.create, or use lp.find"


class SessionExists(SessionError, code="session.exists"):
    template = "session {key} already exists. {advice}."
    key: object
    advice: str = "Use lp.get, or lp.get_or_create"


class SessionDeleted(SessionError, code="session.deleted", status=410):
    template = "session {key} was deleted. {advice}."
    key: object
    advice: str = "Create one with another id, or with this id and reuse_deleted=True"


class SessionErased(SessionError, code="session.erased", status=410):
    template = "session {key} was erased and its key cannot be reused. {advice}."
    key: object
    advice: str = "Create one with another id"


class ShareNotFound(SessionError, LookupError, code="share.not_found", status=404):
    template = """there is no share {id!r} here, or it has ended. s.shared lists those that the
    session may use."""
    id: str


class SessionHasForks(SessionError, code="session.has_forks"):
    """A session to be erased has forks. Erase them too with forks="erase", or let them keep their
    base with forks="keep"."""

    key: object
    forks: tuple[object, ...]

    def _describe(self) -> str:
        count = "a fork" if len(self.forks) == 1 else f"{len(self.forks)} forks"
        named = f"{count}: {_listed(self.forks)}" if self.forks else "forks of others"
        return (
            f"session {self.key} has {named}. Erase them too with "
            "forks='erase', or let them keep the state they began with with forks='keep'."
        )


# The part that another writer changed first: the session's version, its schema, or a name in state.
# "log": events that come from another store do not follow those that are here.
ConflictOn: TypeAlias = Literal["session", "schema", "name", "log"]


class SessionConflict(SessionError, code="session.conflict", retryable=True):
    """Another writer committed first. Refresh, decide again and retry; without `expect` an append
    rebases."""

    key: object
    on: ConflictOn
    expected: object
    actual: object
    name: str | None = None

    def _describe(self) -> str:
        if self.on == "log":
            return (
                f"the log of {self.key} in this store (at version {self.actual}) and the log to be "
                f"added after version {self.expected} have diverged: both were written to. Nothing "
                "was recorded; erase one of them, or store it under another key."
            )
        return (
            f"{self.name or f'the {self.on}'} of {self.key} is at version {self.actual}, not "
            f"{self.expected}: another writer committed first. Refresh, decide again and retry, or "
            "leave expect out to let the append rebase."
        )


class SessionFenced(SessionError, code="session.fenced"):
    """The lease of this worker has ended, or another worker has claimed the session since. Claim it
    again before writing."""

    key: object
    fence: int
    current: int

    def _describe(self) -> str:
        lost = self.fence != self.current
        why = f"the current fence is {self.current}" if lost else "its lease has ended"
        return (
            f"fence {self.fence} is no longer valid for {self.key}: {why}. Another worker may hold "
            "the session; stop, and claim it again before writing."
        )


class SessionLocked(SessionError, code="session.locked", status=423, retryable=True):
    template = """session {key} is leased to {worker!r} until {until:%Y-%m-%d %H:%M:%S} UTC. Try
    again when it has been released, or after that time."""
    key: object
    worker: str
    until: datetime


class SessionTyped(SessionError, code="session.typed"):
    template = """session {key} has typed state (schema {schema_version}) and this change was not
    checked against a State class; nothing was recorded. Open the session with its state_type, or
    with untyped=True to bypass the class."""
    key: object
    schema_version: str


class SessionSuspended(SessionError, code="session.suspended"):
    """The session is suspended, or resumed and not active yet. Call s.resume(), or s.activate() if
    it is resumed."""

    key: object
    phase: str = "suspended"

    def _describe(self) -> str:
        call = "s.resume()" if self.phase == "suspended" else "s.activate()"
        return (
            f"session {self.key} is {self.phase} and records only inputs, labels, timers and "
            f"timeouts until it is active again. Call {call} first."
        )


class SessionEnded(SessionError, code="session.ended", status=410):
    template = """session {key} is {phase} and accepts no more work. Create a new session, or fork
    this one to continue from its state."""
    key: object
    phase: str


class SessionArchived(SessionError, code="session.archived", status=410):
    template = """session {key} is archived. Read it with lp.get(key, archived=True), or bring it
    back with lp.unarchive(key)."""
    key: object


class SessionMoved(SessionError, code="session.moved", status=410):
    template = """session {key} has moved to {to} (epoch {epoch}). Open it there, or with lp.get of
    a store that was opened with nodes= and follow_moves=True; if {to} is lost for good, an admin
    takes the session back with lp.reclaim."""
    key: object
    to: str
    epoch: int


class ReclaimRefused(SessionError, code="session.reclaim_refused"):
    template = "session {key} cannot be reclaimed: {reason}."
    key: object
    reason: str


class InvalidTransition(SessionError, code="session.invalid_transition"):
    """The phase of the session has no such transition; `allowed` names those it has. Refresh the
    session and look at s.phase."""

    phase: str
    event: str
    allowed: tuple[str, ...] = ()

    def _describe(self) -> str:
        article = "an" if self.phase[:1] in "aeiou" else "a"
        named = (
            "a session in phase init" if self.phase == "init" else f"{article} {self.phase} session"
        )
        return (
            f"{named} cannot be {_participle(self.event)}. Allowed from here: "
            f"{', '.join(self.allowed) or 'nothing'}."
        )


class GuardFailed(SessionError, code="session.guard_failed"):
    """A guard, an exit criterion or a hook refused the transition, and nothing was recorded. Fix
    the cause, then try again."""

    phase: str
    event: str
    reason: str

    def _describe(self) -> str:
        return (
            f"the session was not {_participle(self.event)} and stays {self.phase}: {self.reason}. "
            "Nothing was recorded; fix the cause, then try again."
        )


def _participle(event: str) -> str:
    """Return what a transition makes of a session: "completed" for "complete"."""
    irregular = {"suspend": "suspended", "timeout": "timed out", "renew": "renewed"}
    return irregular.get(event, f"{event}d")


class SessionIntegrity(SessionError, code="session.integrity"):
    """The session cannot be resumed, and stays suspended; `failures` says why. Fix each failure,
    then resume it again."""

    key: object
    failures: tuple[str, ...]

    def _describe(self) -> str:
        return (
            f"session {self.key} cannot be resumed: {'; '.join(self.failures)}. It stays "
            "suspended; fix the cause, then resume it again."
        )


class SessionNotLoaded(SessionError, code="session.not_loaded"):
    template = "{what} is not known: this handle is not loaded yet. Call await s.refresh() first."
    what: str


class SessionCorrupt(SessionError, code="session.corrupt", status=500):
    """Stored data of the session is damaged, or it is sealed and the store was opened without its
    keys. Open a sealed store with its keys; else verify the session and restore a backup."""

    key: object
    reason: str

    def _describe(self) -> str:
        if self.reason.endswith("no seal was given to open it"):
            return (
                f"session {self.key} cannot be read: {self.reason}. Open the store with its keys."
            )
        # Without its keys a sealed body is as unreadable as a damaged one.
        unread = self.reason.endswith("cannot be read")
        keys = "If the store is sealed, open it with its keys. " if unread else ""
        return (
            f"stored data of session {self.key} is damaged: {self.reason}. {keys}Run "
            "lp.maintenance.verify for details, then restore the store from a backup, or open the "
            "backup and copy the session's state from it."
        )


class SessionSchemaViolation(
    SchemaViolation, SessionError, code="session.schema_violation", status=409, exit_code=3
):
    """State in the store, or as a migration would leave it, does not fit the class."""

    template = """{field} must be {expected}; found {actual}. The state of session {key} does not
    fit its class: register a migration that repairs it, or read it with untyped=True."""
    key: object


class InsufficientTokenBudget(SessionError, code="session.tokens_insufficient"):
    template = """session {key} has {available:,} tokens left and needs {needed:,}. Raise its
    budget, pin fewer messages, or shorten the newest one."""
    key: object
    available: int
    needed: int


class FollowerBehind(SessionError, code="follow.behind", retryable=True):
    template = """this follower had more than {waiting_max:,} unread partial events and was
    disconnected. No recorded event is lost: continue with s.follow(after={after})."""
    after: int
    waiting_max: int


class NoCheckpoint(SessionError, LookupError, code="checkpoint.none", status=404):
    """The session has no checkpoint, or not this one. Make one with s.checkpoint(), or list them
    with s.history.checkpoints()."""

    key: object
    number: int | None = None

    def _describe(self) -> str:
        named = "no checkpoint" if self.number is None else f"no checkpoint {self.number}"
        return (
            f"session {self.key} has {named}. Make one with s.checkpoint(), or list them with "
            "s.history.checkpoints()."
        )


class NoFullCheckpoint(SessionError, LookupError, code="checkpoint.no_full", status=404):
    template = """session {key} has no full checkpoint at or before checkpoint {number}. Make one
    with s.checkpoint(full=True), or rewind to a seq with s.rewind(seq)."""
    key: object
    number: int


class CheckpointIntegrity(SessionError, code="checkpoint.integrity", status=500):
    template = """checkpoint {number} of session {key} cannot be trusted: {reason}. Restore an older
    one with s.history.restore(ref, fallback=True), and run `limpet verify`."""
    key: object
    number: int
    reason: str


class ToolAuthorizationFailed(SessionError, code="tool.not_authorized", status=403):
    template = """session {key} may not use the tool {tool!r}: {reason}. Authorize it, or bind the
    session without it."""
    key: object
    tool: str
    reason: str


class RequiredToolUnavailable(SessionError, code="tool.unavailable"):
    template = """session {key} needs the tool {tool!r}, but no matching version of it and no
    substitute is registered. Register it, or make it optional."""
    key: object
    tool: str


class ToolLocked(SessionError, code="tool.locked", status=423, retryable=True):
    template = """session {key} cannot use the tool {tool!r} now: another session holds it until
    {until:%Y-%m-%d %H:%M:%S} UTC. Try again when it has been released, or after that time."""
    key: object
    tool: str
    until: datetime


class DocumentNotFound(SessionError, LookupError, code="document.not_found", status=404):
    """The collection has no document of this name, or not in this version. Look with list() or
    history(), or put it first."""

    collection: str
    name: str
    version: int | None = None

    def _describe(self) -> str:
        missing = "does not exist" if self.version is None else f"has no version {self.version}"
        if self.collection == "agents":
            advice = "Define it first: lp.agents.put, limpet agents, or POST /v1/agents."
            return f"the agent {self.name!r} {missing}. {advice}"
        return (
            f"the document {self.name!r} in {self.collection!r} {missing}. See list() and "
            "history(), or put it first."
        )


class DocumentConflict(SessionError, code="document.conflict", retryable=True):
    """A document is not at the version in `expect`. Get it again, decide again, and put the result
    with the version that you read."""

    collection: str
    name: str
    expected: int
    actual: int | None  # None: it exists, at some version; 0: it does not exist

    def _describe(self) -> str:
        actual = "does not exist" if self.actual == 0 else f"is at version {self.actual}"
        return (
            f"the document {self.name!r} in {self.collection!r} "
            f"{'exists' if self.actual is None else actual}, but "
            f"{f'version {self.expected} was expected' if self.expected else 'the call creates it'}"
            ". Get it again, decide again, and put the result with the version that you read."
        )


class MemoryConflict(SessionError, code="memory.conflict", retryable=True):
    template = """the {name} of the session is at version {actual}, but version {expected} was
    expected. Read it again, decide again, and write with the version that you read."""
    name: str
    expected: int
    actual: int


class MemoryPreconditionFailed(SessionError, code="memory.precondition"):
    template = """the memory {memory} does not have the content that the request expects. Read it
        again, and send the new content_sha256."""
    memory: str


class MemoryPathTaken(SessionError, code="memory.path_taken"):
    template = """{path!r} is the path of the memory {memory}. Choose another path, or update that
        memory."""
    memory: str
    path: str


class HeartbeatRefused(SessionError, code="work.heartbeat", status=412):
    template = """the lease on {work} is not the one this heartbeat expects. Poll for other
        work."""
    work: str
    current_state: Mapping[str, Any]


class PromotionRefused(SessionError, code="promotion.refused"):
    """A learning does not pass the gates of its app; `unmet` names them. Promote it again when they
    hold, or change them with lp.policies.gates."""

    agent: str
    text: str
    unmet: tuple[str, ...]

    def _describe(self) -> str:
        return (
            f"the learning {self.text!r} was not promoted into the memory of {self.agent!r}: "
            f"{'; '.join(self.unmet)}. Promote it again when that holds, or change "
            "lp.policies.gates."
        )


class ProposalNotFound(SessionError, LookupError, code="promotion.not_found", status=404):
    template = """there is no proposal {id!r}: it was erased with its session, or never made. See
    lp.proposals()."""
    id: str


class ProposalDecided(SessionError, code="promotion.decided"):
    """The proposal was accepted, refused or withdrawn already, or has expired, and a decision
    stands. lp.withdraw removes what a session contributed; lp.propose proposes again."""

    id: str
    decision: str
    actor: str | None = None  # who decided it

    def _describe(self) -> str:
        by = "" if self.actor is None else f", by {self.actor}"
        return (
            f"proposal {self.id!r} is {self.decision} already{by}. A decision stands; lp.withdraw "
            "removes what a session contributed, and lp.propose proposes again."
        )


class RelationNotFound(SessionError, LookupError, code="relation.not_found", status=404):
    template = """the relation {id!r} is not in force, or names nothing to read. It ends by
    s.unrelate, by a move, or when one of its sessions is deleted or erased. s.relations lists those
    in force."""
    id: str


class CitedChanged(SessionError, code="relation.changed", status=409):
    template = """{name} of session {key} is not what it was when the relation {id!r} was made. End
    it with s.unrelate, and cite the session again."""
    id: str
    key: object
    name: str


class BlobNotFound(SessionError, LookupError, code="blob.not_found", status=404):
    template = """session {key} has no blob {hash}. Pass the Ref that s.blobs.put of this session
    returned; a fork loses its parent's blobs when the parent is erased."""
    key: object
    hash: str


class UploadLost(SessionError, code="blob.upload_lost", retryable=True):
    template = """a blob of session {key} was not kept: the upload paused for too long and was
    cleaned up. Put the blob again."""
    key: object


# --- turns ----------------------------------------------------------------------------------------


class TurnError(SessionError, code="turn.error"):
    """A turn of an agent cannot continue, or an answer does not match an open request."""


class Interrupted(TurnError, code="turn.interrupted"):
    """Raised in a running harness at its next await; the turn closes as interrupted."""

    key: object
    note: str | None = None

    def _describe(self) -> str:
        return (
            f"the turn of {self.key} was interrupted{_noted(self.note)}. Clean up and return; the "
            "turn can record nothing more."
        )


class TurnMismatch(TurnError, code="turn.mismatch"):
    """A harness that runs again does not make the calls that its turn recorded before. `recorded`
    is what the call was made with then, as far as the log has it, and `now` what it is made with.
    """

    template = """{what} {name!r} (call {occurrence} of that name in the turn) {why}. Move
    nondeterministic code into turn.step or turn.stream, or deploy the code that the turn began
    with; then answer the request with s.resolve(request_id, run_again=True)."""
    what: str
    name: str
    occurrence: int
    why: str
    recorded: Any = None
    now: Any = None


class TurnMisused(TurnError, InvalidInput, code="turn.misused", status=400, exit_code=2):
    """A turn was used after its end, or in a way that cannot be recorded."""


class ToolInvalid(InvalidInput, code="tool.invalid"):
    """A function cannot be a tool, or a tool has returned what cannot be recorded. In a call it is
    an error result."""

    template = "the tool {tool!r} {why}."
    tool: str
    why: str


class ModelInvalid(InvalidInput, code="model.invalid"):
    """The function of a model call does not take a ModelRequest, or returns what is not a reply. No
    retry can cure that: a turn that it ends is a dead letter at once."""


class TurnUnderway(TurnError, code="turn.underway"):
    """A session cannot be rewound while one of its turns runs or is paused."""

    template = """{key} cannot be rewound while a turn of it runs or is paused. Interrupt the turn
    with s.interrupt(), and rewind once it has ended."""
    key: object


class EffectFailed(TurnError, code="effect.failed"):
    """An effect's function raised at every attempt."""

    template = """the effect {name!r} failed: {error}. It is recorded as not done; handle the error,
    or let it end the turn, which tries it again."""
    name: str
    occurrence: int
    error: str


class EffectUnknown(TurnError, code="effect.unknown"):
    """It is unknown whether an effect was performed, and a person gave it up. If uncaught, it ends
    the turn. The function of an effect may raise it, too: then nobody knows what came of that try.
    """

    name: str
    occurrence: int = 1
    note: str | None = None

    def _describe(self) -> str:
        return (
            f"it is not known whether the effect {self.name!r} was performed, and it was not tried "
            f"again{_noted(self.note)}. Check the remote system, then answer the user."
        )


class NotDone(TurnError, code="effect.not_done"):
    """Raise it in the function of an effect or of a tool to say that nothing was done: neither by
    this try nor by an earlier one. The effect is recorded as failed, and not tried again."""

    reason: str

    def _describe(self) -> str:
        return f"nothing was done: {str(self.reason).rstrip('.')}."


class BudgetReached(TurnError, code="budget.reached"):
    """A call may need more than the budget has left; `amount` is None if nothing is left."""

    name: str
    amount: float | None
    left: float

    def _describe(self) -> str:
        if self.amount is not None:
            return (
                f"the budget has {self.left:g} {self.name} left, and the call needs to reserve "
                f"{self.amount:g}. Ask for less, or grant the session more."
            )
        excess = f": {-self.left:g} more was spent than the limit allows" if self.left < 0 else ""
        return (
            f"the budget has no {self.name} left{excess}. Grant the session more with "
            "s.runs.grant(…)."
        )


class ChildNotFound(TurnError, LookupError, code="child.not_found", status=404):
    template = """the session has no child {id!r} at work: it was never delegated from here, or has
    ended. s.runs.children() lists those at work."""
    id: str


class RequestNotFound(TurnError, LookupError, code="request.not_found", status=404):
    template = "session {key} has no request {id!r}. s.blocked_on lists its open requests."
    key: object
    id: str


class RequestAnswered(TurnError, code="request.answered"):
    template = """request {id!r} of session {key} was already answered. The first answer stands;
    refresh to see its result."""
    key: object
    id: str


class RequestMismatch(TurnError, InvalidInput, code="request.mismatch", status=400, exit_code=2):
    template = "request {id!r} has the kind {kind!r}. Use {verb} to answer it."
    id: str
    kind: str
    verb: str


class ToolDenied(TurnError, code="tool.denied", status=403):
    """A tool may not be used, or the person asked said no. If uncaught, it ends the turn."""

    name: str
    note: str | None = None

    def _describe(self) -> str:
        return (
            f"the tool {self.name!r} may not be used{_noted(self.note)}. Tell the user, or use "
            "another tool."
        )


class ModelFailed(TurnError, code="model.failed", status=502, retryable=True):
    """Raised by limpet.providers; a turn that it ends is tried again."""

    template = """the model's provider reported an error: {reason}. The call can be repeated."""
    reason: str


class ToolFailed(TurnError, code="tool.failed"):
    template = """the custom tool {name!r} was answered with an error: {output}. Handle the error;
    the answer stands."""
    name: str
    output: object


# --- stored state ---------------------------------------------------------------------------------


class StateError(LimpetError, code="state.error", status=409, exit_code=3):
    """Stored state does not match what the call needs."""


class DiffMismatch(StateError, code="diff.mismatch"):
    template = """the diff expects {expected} at {path} but found {actual}; nothing was changed.
    Apply it to the value it was made from, or merge the two."""
    path: str
    expected: str
    actual: str


class MergeConflict(StateError, code="merge.conflict"):
    """Both sides of a merge changed the same places differently. Resolve the `places`, or give them
    a policy."""

    places: tuple[str, ...]
    conflicts: tuple[Any, ...] = ()  # each with base, a and b of its place

    def _describe(self) -> str:
        return (
            f"both sides changed {_listed(self.places)}. Resolve these places and merge again, or "
            "give them a policy."
        )


class ScopeFull(StateError, code="scope.full"):
    """The commit would exceed a limit on `app:` or `user:` names, and nothing was written. Delete
    names that are not needed, or keep the values in fields of a session."""

    app: str
    user: str
    what: str
    size: int
    size_max: int

    def _describe(self) -> str:
        whose = f"user {self.user!r} of app {self.app!r}" if self.user else f"app {self.app!r}"
        return (
            f"{whose} would have {self.size:,} shared {self.what}; the limit is {self.size_max:,}. "
            f"Nothing was written: delete {'user' if self.user else 'app'}: names that are not "
            "needed, reuse a name, or keep the values in a session's own fields."
        )


class TooLittleFeedback(StateError, code="feedback.too_little"):
    template = """only {found} of the sessions that were measured have feedback; training needs at
    least {minimum}. Measure new sessions with run(once=True), or wait for more feedback."""
    found: int
    minimum: int


class IntegrityViolation(StateError, code="integrity.violation", status=500):
    template = """{what} is damaged: its checksum should be {expected} but is {computed}. Use
    another copy, or write it again from its source."""
    what: str
    expected: str
    computed: str


class InvalidEnvelope(StateError, code="envelope.invalid", status=400):
    template = """these bytes are not an envelope: {reason}. Pass the bytes from envelope.encode
    unchanged."""
    reason: str


class EnvelopeNewer(StateError, code="envelope.newer"):
    template = """the envelope has format {found}; this release reads up to {known}. Upgrade limpet
    to read it."""
    found: int
    known: int


Lifecycle: TypeAlias = Literal["session", "checkpoint"]  # whose state it is
Step: TypeAlias = tuple[str, str]  # one migration: from which version, to which


class MigrationError(StateError, SessionError, code="migration.error"):
    """Stored state cannot be migrated to the version that the code declares.

    `lifecycle` says whose state it is, a session's or a graph checkpoint's. `category` is the name
    that agent frameworks share for the failure, as in "session_state_migration_missing".
    """

    kind: ClassVar[str] = "migration_error"
    lifecycle: Lifecycle

    @property
    def category(self) -> str:
        return f"{self.lifecycle}_state_{self.kind}"


class MigrationMissing(MigrationError, code="migration.missing"):
    """No registered migrations lead from the version of the stored state to that of the code.
    Register the missing one."""

    kind = "migration_missing"
    from_version: str
    to_version: str
    registered_migrations_count: int
    registry_description: str
    advice: str = "Pass migrations=registry with the state_type"

    def _describe(self) -> str:
        way = f"from schema {_quote(self.from_version)} to {_quote(self.to_version)}"
        if not self.registered_migrations_count:
            return (
                f"no migration path leads {way}: no migrations were given; nothing was changed. "
                f"{self.advice}."
            )
        return (
            f"no migration path leads {way} (registered migrations: "
            f"{self.registered_migrations_count:,}); nothing was changed. Register the missing "
            "migration; error.registry_description lists the others."
        )


class MigrationAmbiguous(MigrationError, code="migration.ambiguous"):
    """Several equally good `paths` of migrations lead to the version of the code. Remove one, or
    register a shorter one."""

    kind = "migration_chain_ambiguous"
    from_version: str
    to_version: str
    paths: tuple[tuple[Step, ...], ...]

    def _describe(self) -> str:
        source, target = _quote(self.from_version), _quote(self.to_version)
        if len(set(self.paths)) < len(self.paths):
            return f"{source} → {target} is already registered. Keep one function for it."
        ways = [", ".join(f"{_quote(a)} → {_quote(b)}" for a, b in path) for path in self.paths]
        return (
            f"several equally good migration paths lead from schema {source} to {target}: "
            f"{'; or '.join(ways)}. Remove one of them, or register a shorter one."
        )


class MigrationFailed(MigrationError, code="migration.failed", status=500):
    """The function of a migration step raised, or did not return a dict that can be stored. Fix it,
    then load again."""

    kind = "migration_failed"
    from_version: str
    to_version: str
    step: Step
    reason: str

    def _describe(self) -> str:
        source, target = self.step
        return (
            f"migrating from schema {_quote(self.from_version)} to {_quote(self.to_version)}, "
            f"the step {_quote(source)} → {_quote(target)} {self.reason}. No later step ran and "
            "the stored state is unchanged: fix the function, then load again."
        )


class SchemaIncompatible(MigrationError, code="schema.incompatible"):
    """The code cannot read the version in which the state is stored. Run the code that wrote it, or
    register a migration."""

    kind = "incompatible"
    stored: str
    wanted: str
    reason: str
    advice: str = "Run the code that wrote it, or register a migration from its version"

    def _describe(self) -> str:
        return (
            f"state stored under schema {_quote(self.stored)} cannot be used as "
            f"{_quote(self.wanted)}: {self.reason}. {self.advice}."
        )


# --- the store ------------------------------------------------------------------------------------


class StoreError(LimpetError, code="store.error", status=503, exit_code=4):
    """The store cannot serve the call; the session is unchanged.

    `ids` are the ids of the drafts that were sent. Sending them again with these ids never records
    them twice, whether or not the first attempt was recorded.
    """

    _: KW_ONLY
    ids: tuple[str, ...] = ()

    def naming(self, ids: tuple[str, ...]) -> Self:
        """Return the same error for one caller, with the ids of that caller's drafts.

        A store gives one error to all whose commits were in a batch that failed: with the ids of
        one on it, the others would send these again, and lose their own.
        """
        own = type(self).__new__(type(self), *self.args)
        own.__dict__.update(self.__dict__)
        own.ids = ids
        return own.with_traceback(self.__traceback__)


class StoreClosed(StoreError, code="store.closed"):
    template = "{what} is not open. {advice}."
    what: str = "this Limpet"
    advice: str = (
        "Use it inside `async with limpet.open(url) as lp`, or without await inside "
        "`with limpet.open_sync(url) as lp`"
    )


class StoreForked(StoreError, code="store.forked"):
    template = """this store was opened before os.fork and belongs to the parent process: neither
    SQLite's locks nor a server's connections can be shared. Open it only after the fork, or start
    the process with spawn or forkserver."""


class StoreBusy(StoreError, code="store.busy", retryable=True):
    template = "{where} is busy: {reason}; nothing was written. Try again; {advice}."
    where: str
    reason: str = "another process holds the write lock and did not release it in time"
    advice: str = "if this persists, end the process that keeps a transaction open"


class StoreFull(StoreError, code="store.full", status=507, retryable=True):
    template = "no space is left for {where} and nothing was written. Free some space, then retry."
    where: str


class StoreReadOnly(StoreError, code="store.read_only"):
    template = "{where} cannot be written: {advice}."
    where: str
    advice: str = (
        "give this process write permission to the file and to its directory (SQLite keeps -wal "
        "and -shm files beside it)"
    )


# The kind of call decides what is unknown after a failure: whether events were recorded, a session
# was created, a change was made (a deletion, a release) or a lease was granted. A read leaves
# nothing unknown.
Asked: TypeAlias = Literal["write", "create", "change", "lease", "read"]
_UNKNOWN: Final[dict[Asked, str]] = {
    "write": "Earlier acknowledged writes are safe. Whether this write was recorded is unknown: "
    "send it again with the same id (error.ids); it is never recorded twice",
    "create": "Whether the session was created is unknown: call lp.get_or_create with its id",
    "change": "Whether the change was made is unknown: calling again is safe",
    "lease": "A lease may have been granted; it expires on its own. Try again",
    "read": "Nothing was written. Try again",
}


class StoreFailed(StoreError, code="store.failed", retryable=True):
    """The store or its server reports an error that no other code describes; `asked` says what is
    unknown. Retry: what was recorded is not recorded twice."""

    where: str
    reason: str
    asked: Asked = "write"

    def _describe(self) -> str:
        return f"{self.where} failed: {self.reason}. {_UNKNOWN[self.asked]}."


class QuorumUnavailable(StoreFailed, code="store.quorum", retryable=True):
    """Too few servers of a cluster have confirmed a commit in time; it may be there later."""

    def _describe(self) -> str:
        return (
            f"the quorum of {self.where} is not available: {self.reason}. {_UNKNOWN[self.asked]}."
        )


class ReplicaBehind(StoreError, code="store.replica_behind", retryable=True):
    template = """the replica of {where} does not have the commit yet that this read requires.
    Nothing was read. Try again, or let such reads wait (behind=wait in the URL) or go to
    the primary (behind=primary)."""
    where: str


class StoreRefused(StoreError, code="store.refused", status=500):
    template = """{where} refused the operation: {reason}. Nothing was written, and trying again
    does not help. {advice}."""
    where: str
    reason: str
    advice: str = (
        "Run lp.maintenance.doctor() (limpet doctor); if it finds no problem, report this as a bug"
    )


class ProtocolMismatch(StoreError, code="server.protocol", status=426):
    template = """{where} speaks protocol {theirs} and this client speaks {ours}. Use the same
    version of Limpet on both sides."""
    where: str
    theirs: str
    ours: str


class EntryRefused(StoreError, code="access.entry", status=401):
    template = "{where} does not let this client in: {reason}. {advice}."
    where: str
    reason: str
    advice: str = (
        "Pass the key that limpet access create printed: limpet.open(url, token=…), or limpet "
        "login URL for the command line"
    )


class SealBroken(StoreError, code="server.seal", status=400):
    template = """{where} cannot be used under a seal: {reason}. Compare seal_for with the key that
    limpet keys public prints there, and check any proxy in between."""
    where: str
    reason: str


class SealUnavailable(StoreError, code="store.seal", retryable=True):
    """The seal could not provide or destroy the keys of `owners`, and nothing was read, written or
    erased. Make the key service reachable, then retry."""

    owners: Sequence[str]
    reason: str
    doing: Literal["provide", "destroy"] = "provide"
    advice: str = "Make the key service reachable, then try again"

    def _describe(self) -> str:
        more = f" and {len(self.owners) - 1} more" if len(self.owners) > 1 else ""
        done = "read or written" if self.doing == "provide" else "erased"
        return (
            f"the seal could not {self.doing} the keys of {self.owners[0]}{more} ({self.reason}), "
            f"so nothing was {done}. {self.advice}."
        )


class KeysInvalid(InvalidInput, code="keys.invalid"):
    template = "the keys {where} cannot be used: {reason}."
    where: str
    reason: str


class KeysMissing(StoreError, code="keys.missing", status=409):
    template = """{what} needs the keys of the store, and it was opened without them. Open it with
    limpet.open(url, keys=…)."""
    what: str


class ReceiptInvalid(InvalidInput, code="receipt.invalid"):
    template = """the receipt does not hold: {reason}. Do not rely on it; ask for another from the
    store that signed it."""
    reason: str


class CertificateInvalid(InvalidInput, code="certificate.invalid"):
    template = """the certificate of erasure does not hold: {reason}. Do not rely on it; erase again
    with the store's keys, which is harmless, and use the new certificate."""
    reason: str


class AuditInvalid(InvalidInput, code="audit.invalid"):
    template = """{where} is not a complete audit: {reason}. Do not rely on it; export the audit
    again and compare the two."""
    where: str
    reason: str


class PolicyInvalid(InvalidInput, code="policy.invalid"):
    template = """the policies cannot be used: {where}: {reason}. Correct them; limpet policy
    check validates them."""
    where: str
    reason: str


class StoreUnopened(StoreError, code="store.unopened"):
    template = "{where} cannot be opened: {reason}."
    where: str
    reason: str


class StoreUnreachable(StoreUnopened, code="store.unreachable", retryable=True):
    """Its server is down, starts, or fails over: it can be opened when that has ended."""


class StoreForeign(StoreError, code="store.foreign"):
    template = "{where} is not a Limpet database: another program created it. {advice}."
    where: str
    advice: str = "Choose another path or another database"


class StoreNewer(StoreError, code="store.newer"):
    template = """{where} has schema {found}; this release supports up to {known}. Nothing was
    changed: upgrade limpet."""
    where: str
    found: int
    known: int


class StoreOlder(StoreError, code="store.older"):
    template = """{where} has schema {found}; this release needs {known}, and this read-only command
    changed nothing. Use the release that wrote the store, or start your application with this
    release, which migrates the schema: limpet doctor says what that will do."""
    where: str
    found: int
    known: int


class StoreCorrupt(StoreError, code="store.corrupt", status=500):
    template = "{where} is damaged: {reason}. {advice}."
    where: str
    reason: str
    advice: str = (
        "Keep a copy of the file with its -wal, run lp.maintenance.verify() (limpet verify) to see "
        "what is affected, and restore a backup"
    )


class StoreOnNetwork(StoreError, code="store.network"):
    template = """{where} is on a network file system ({file_system}), where SQLite's locks cannot
    be trusted. Put it on a local disk."""
    where: str
    file_system: str


class ExtraMissing(StoreError, code="extra.missing"):
    template = "{package} is not installed. Run: pip install 'limpet[{extra}]'."
    package: str
    extra: str


class BackupRefused(StoreError, code="backup.refused", status=409):
    template = "nothing was copied: {where} {reason}."
    where: str
    reason: str


class BackupDamaged(StoreError, code="backup.damaged", status=409):
    """The sessions of a backup do not verify, and nothing was replaced. Restore another backup, or
    this one anyway with damaged=True (--damaged)."""

    where: str
    findings: tuple[str, ...]

    def _describe(self) -> str:
        count = len(self.findings) - 1
        more = f", and {count:,} more findings" if count else ""
        return (
            f"{self.where} is damaged, and nothing was replaced: {self.findings[0]}{more}. Restore "
            "another backup, or restore this one anyway (damaged=True, or --damaged on the command "
            "line): sessions that are not named are intact."
        )


class BundleRefused(StoreError, code="bundle.refused", status=409):
    template = "nothing was written or recorded: {where} {reason}."
    where: str
    reason: str


class BundleDamaged(StoreError, code="bundle.damaged", status=409):
    template = """{where} is not a complete export of a session, and nothing was imported: {reason}.
    Export the session again, or use another copy of the file."""
    where: str
    reason: str


class ArchiveFailed(StoreError, code="archive.failed", retryable=True):
    template = """a file in the archive {where} could not be {doing}: {reason}. Nothing was removed
    from the store; check the archive, then try again."""
    where: str
    doing: str
    reason: str


class ArchiveSealed(StoreError, code="archive.sealed", status=409):
    template = """the file {where} is sealed with the keys of {owner}, and no seal was given to open
    it. Open the store with the seal that it was written with: limpet.open(url, seal=…)."""
    where: str
    owner: str


class ArchiveDamaged(StoreError, code="archive.damaged", status=409):
    template = """the sealed file {where} cannot be opened, and nothing was removed from the store:
    {reason}. Open the store with the keys that it was sealed with, or put a copy of the file in
    its place."""
    where: str
    reason: str


class QueueFull(StoreError, code="queue.full", retryable=True):
    template = """{waiting:,} {what} wait for a flush; the limit is {waiting_max:,}. This event was
    not queued: await lp.flush(), then append it again."""
    what: str
    waiting: int
    waiting_max: int


class Unrecorded(msgspec.Struct, frozen=True):
    """Events of one session that a flush could not record, in their order, and why.

    `drafts` are limpet.Draft objects with their ids: `await s.append_many(each.drafts)`.
    """

    key: Any
    drafts: tuple[Any, ...]
    error: Exception

    def __repr__(self) -> str:
        return f"<{_events(len(self.drafts))} of {self.key} not recorded: {self.error}>"

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple([draft.id for draft in self.drafts])


class FlushFailed(StoreError, code="flush.failed", status=409):
    """Events that were queued by append_soon could not be recorded; `unrecorded` has key, drafts
    and error for each session. Look at each error, and send the drafts again with append_many."""

    unrecorded: Sequence[Unrecorded]
    during: Literal["flush", "write"] = "flush"

    def _prepare(self) -> None:
        self.unrecorded = tuple(self.unrecorded)
        self.ids = tuple([id for each in self.unrecorded for id in each.ids])

    def _describe(self) -> str:
        first, others = self.unrecorded[0], len(self.unrecorded) - 1
        more = "" if not others else f" and {others:,} more session{'s' if others > 1 else ''}"
        advice = {
            "flush": "What was not recorded has left the queue. error.unrecorded has the drafts: "
            "send them again with append_many; none is recorded twice.",
            "write": "So this write was not tried. lp.flush() reports them too; then try this "
            "write again.",
        }[self.during]
        return (
            f"not recorded: {_events(len(self.ids))} queued for {first.key}{more}. {first.error} "
            f"{advice}"
        )


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"


# --- graphs ---------------------------------------------------------------------------------------


class GraphError(LimpetError, code="graph.error"):
    """A graph cannot be compiled, run or resumed.

    `category` is the name that agent frameworks share for the failure: the name of the class in
    snake case, unless the class says otherwise.
    """

    category: ClassVar[str] = "graph_error"

    def __init_subclass__(cls, **attributes: Any) -> None:
        super().__init_subclass__(**attributes)
        if "category" not in vars(cls):
            cls.category = re.sub(r"\B(?=[A-Z])", "_", cls.__name__).lower()


class GraphMisused(GraphError, InvalidInput, code="graph.misused", status=400, exit_code=2):
    """A call of a graph has arguments that do not fit."""


class GraphInvalid(GraphError, InvalidInput, code="graph.invalid", status=400, exit_code=2):
    """The declaration of a graph is wrong: the base of every compile error."""


class NoDeclaredEntry(GraphInvalid, code="graph.no_entry"):
    template = "the graph has no entry: {reason}. Call set_entry with one of its nodes."
    reason: str


class UnreachableNode(GraphInvalid, code="graph.unreachable_node"):
    template = "node {node!r} cannot be reached from the entry. Add an edge to it, or remove it."
    node: str


class DanglingEdge(GraphInvalid, code="graph.dangling_edge"):
    template = """the edge of node {node!r} {reason}. Give every node one edge, to a node of this
    graph or to END."""
    node: str
    reason: str


class MultipleOutgoingEdges(GraphInvalid, code="graph.multiple_edges"):
    template = """node {node!r} has more than one outgoing edge. Use one conditional edge to choose
    between nodes, or a parallel-branches node to run several."""
    node: str


class ConflictingReducers(GraphInvalid, code="graph.conflicting_reducers"):
    template = "field {field!r} has {reason}. Declare one reducer for each field."
    field: str
    reason: str


class MappingReferencesUndeclaredField(GraphInvalid, code="graph.mapping_field"):
    template = """{node!r} maps the field {field!r}, which {of} does not declare. Correct the name,
    or declare the field."""
    node: str
    field: str
    of: str


class ConflictingProjectionForms(GraphInvalid, code="graph.conflicting_projections"):
    template = "{node!r} has a projection and also inputs or outputs. Give it one of the two forms."
    node: str


class ReducerConfigurationInvalid(GraphInvalid, InvalidSchema, code="schema.reducer"):
    template = "{reason}. {advice}."
    advice: str = "Correct the argument of the reducer"


class FanOutFieldNotList(GraphInvalid, code="graph.fan_out_field"):
    template = "fan-out node {node!r} needs a list in the field {field!r}. Declare it as a list."
    node: str
    field: str


class FanOutCountModeAmbiguous(GraphInvalid, code="graph.fan_out_count"):
    template = """fan-out node {node!r} {reason}. Give it either items_field with item_field, or
    count."""
    node: str
    reason: str


class FanOutDegradedUpdate(GraphInvalid, code="graph.fan_out_degraded"):
    category = "fan_out_degraded_update_missing_collect_field"
    template = """fan-out node {node!r} collects {field!r}, and a degraded update around its
    instances does not have it. Add the field to degraded_update."""
    node: str
    field: str


class ParallelBranchesNoBranches(GraphInvalid, code="graph.no_branches"):
    template = "node {node!r} has no branches. Give it at least one."
    node: str


class ParallelBranchesInvalidBranchSpec(GraphInvalid, code="graph.branch_invalid"):
    template = """branch {name!r} of node {node!r} {reason}. Give each branch either a subgraph or a
    call."""
    node: str
    name: str
    reason: str


class GraphRunError(GraphError, code="graph.run_failed"):
    """A run stopped. `recoverable_state` is the state before the node or edge that failed."""

    category = "graph_run_failed"
    _: KW_ONLY
    node: str = ""
    recoverable_state: Any = None

    @property
    def node_name(self) -> str:
        """The node that failed, as events name it."""
        return self.node


class NodeException(GraphRunError, code="graph.node_failed"):
    template = """node {node!r} failed: {reason}. See __cause__; recoverable_state is the state
    before the node."""
    reason: str


class EdgeException(GraphRunError, code="graph.edge_failed"):
    template = """the edge after node {node!r} failed: {reason}. See __cause__; recoverable_state is
    the state that the edge saw."""
    reason: str


class ReducerError(GraphRunError, code="graph.reducer_failed"):
    template = """the update of field {field!r} by node {node!r} was not applied: {reason}. Return a
    value that the field's reducer accepts."""
    field: str
    reason: str


class RoutingError(GraphRunError, code="graph.routing_failed"):
    template = """the edge after node {node!r} led to {target}, which is not a valid target. Return
    the name of a node of this graph, or END; if targets are declared, one of them."""
    target: str


class StateValidationError(GraphRunError, code="graph.state_invalid", status=422):
    """A state or an update is not valid: a wrong type, an unknown field, not a dict. Correct the
    `fields`; stored state may need a migration."""

    where: str
    invalid_fields: tuple[str, ...]
    reason: str

    def _describe(self) -> str:
        named = ", ".join(self.invalid_fields) or "as a whole"
        return f"{self.where} is not a valid state ({named}): {self.reason}. Correct these fields."


class FanOutEmpty(GraphRunError, code="graph.fan_out_empty"):
    template = 'fan-out node {node!r} has nothing to run. Give it items, or set on_empty="noop".'


class ParallelBranchesBranchFailed(GraphRunError, code="graph.branch_failed"):
    template = """branch {branch_name!r} of node {node!r} failed: {reason}. The other branches were
    cancelled; see __cause__."""
    branch_name: str
    reason: str


class StepLimitReached(GraphRunError, code="graph.step_limit"):
    template = """the run stopped before node {node!r}: its graph has run {steps_max:,} nodes
    without reaching END. Check the edges for an endless loop, or invoke with a higher steps_max;
    with a checkpointer, resume the invocation with it."""
    steps_max: int


class CheckpointError(GraphError, code="checkpoint.error"):
    """A checkpoint of a graph cannot be saved, loaded or resumed."""

    invocation_id: str


class CheckpointNotFound(
    CheckpointError, LookupError, code="checkpoint.not_found", status=404, exit_code=3
):
    template = "no checkpoint of invocation {invocation_id!r} is stored. {advice}."
    advice: str = "Pass the id of an invocation that ran with this checkpointer and was not deleted"


class CheckpointRecordInvalid(
    CheckpointError, code="checkpoint.record_invalid", status=409, exit_code=3
):
    template = """the checkpoint of invocation {invocation_id!r} cannot be resumed: {reason}. Resume
    it with the graph that wrote it, or start a new invocation."""
    reason: str


class CheckpointInUse(
    CheckpointError, code="checkpoint.in_use", status=409, exit_code=3, retryable=True
):
    template = """invocation {invocation_id!r} is being run by another caller, so nothing ran here.
    Wait for that run; if its process has died, resume the invocation when its lease has ended,
    after 30 seconds unless the checkpointer says otherwise."""


class CheckpointSuperseded(CheckpointError, code="checkpoint.superseded", status=409, exit_code=3):
    """The invocation was resumed already, as `resumed_as`, and nothing ran. Resume that one to go
    on from there, or start a new invocation."""

    resumed_as: str
    now: str

    def _describe(self) -> str:
        go_on = f"Resume {self.resumed_as!r} to continue from there."
        return (
            f"invocation {self.invocation_id!r} was already resumed as {self.resumed_as!r}, which "
            f"is {self.now}. {'Start a new invocation.' if self.now == 'deleted' else go_on}"
        )


class CheckpointSaveFailed(CheckpointError, code="checkpoint.save_failed"):
    template = """the checkpointer could not save invocation {invocation_id!r}: {reason}. The run
    stopped; resume it from its last checkpoint when the checkpointer works again."""
    reason: str
    result: Any = None


class CheckpointLoadFailed(CheckpointError, code="checkpoint.load_failed"):
    template = """the checkpointer could not load invocation {invocation_id!r}: {reason}. Nothing
    ran; resume it again when the checkpointer works."""
    reason: str


class SuspensionError(GraphError, code="suspension.error"):
    """A run cannot be suspended, or a suspended one cannot be resumed."""


class SuspensionPersistenceFailed(SuspensionError, code="suspension.persistence_failed"):
    template = "invocation {invocation_id!r} could not be suspended: {reason}. {advice}."
    invocation_id: str
    reason: str
    advice: str = "Resume it from its last checkpoint when its stores work"


class SuspensionRecordInvalid(
    SuspensionError, code="suspension.record_invalid", status=409, exit_code=3
):
    template = """invocation {invocation_id!r} was not resumed, because {reason}. Send each signal
    once, to an invocation that is suspended."""
    invocation_id: str
    reason: str


class SuspensionResumePayloadInvalid(
    SuspensionError, code="suspension.payload_invalid", status=422, exit_code=2
):
    template = """the signal payload of invocation {invocation_id!r} does not fit its state:
    {reason}. The invocation is still suspended; send a dict of fields with valid values."""
    invocation_id: str
    reason: str


class SuspensionInUnsupportedContext(SuspensionError, code="suspension.unsupported_context"):
    template = """node {node!r} cannot suspend here: {reason}. Suspend in the body of a node,
    outside fan-outs and branches with error_policy="collect"."""
    node: str
    reason: str


class SessionStoreError(GraphError, SessionError, code="session.store_error", status=500):
    """The session of an invocation could not be loaded or saved."""

    session_id: str


class SessionLoadFailed(SessionStoreError, code="session.load_failed"):
    template = """session {session_id!r} could not be loaded: {reason}. Nothing ran; invoke again
    when the session store works."""
    reason: str


class SessionSaveFailed(SessionStoreError, code="session.save_failed"):
    template = """session {session_id!r} was not saved: {reason}. The final state is in `result`;
    the store has the session as it was before."""
    reason: str
    result: Any = None


class SessionWriteConflict(SessionStoreError, code="session.write_conflict", status=409):
    template = """session {session_id!r} is at version {actual_version}, not {expected_version}:
    another invocation saved it first. Nothing was overwritten; load it and decide again."""
    expected_version: Any
    actual_version: Any
    result: Any = None


# --- phrases --------------------------------------------------------------------------------------


def error_text(error: BaseException) -> str:
    """Return the kind and the text of an error, as a part of another error's message."""
    return f"{type(error).__name__}: {error}"[:500].rstrip(".")


def _listed(items: Sequence[object], most: int = 5) -> str:
    """Name the first few, and count the others."""
    named = ", ".join(map(str, items[:most]))
    return named + (f" and {len(items) - most:,} more" if len(items) > most else "")


def _noted(note: str | None) -> str:
    return f" ({note})" if note else ""


def _quote(version: str) -> str:
    """Return a version for a sentence: that of a state without one is empty, shown as quotes."""
    return version or '""'
