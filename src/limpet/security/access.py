"""Access: who asks, for what, about what, and the answer.

A guard asks its deciders in turn: roles, isolation, then the user's policies. The first that
denies gives the answer; all of them together must allow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import msgspec

from limpet.errors import AccessDenied, Denial, InvalidInput
from limpet.model import Event, FrozenDict, Head, Key, Texts, described
from limpet.model.keys import unfit
from limpet.model.limits import KEY_PART_CHARS_MAX

Role: TypeAlias = Literal["owner", "agent", "viewer", "auditor", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

Action: TypeAlias = Literal[
    "read",  # bodies: state, events, documents, blobs, partials
    "inspect",  # heads, lists and traces, without bodies
    "create",
    "write",  # append, change or delete fields; documents and blobs
    "lifecycle",  # suspend, resume, complete, terminate, archive
    "claim",  # take a lease and run turns
    "tool",
    "share",
    "move",  # move, copy, export and import
    "erase",  # delete and erase
    "policy",  # policies, grants and access keys
    "keys",
    "audit",  # read the audit
]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
# Recorded in the audit whether they are allowed or not.
SENSITIVE: Final[frozenset[Action]] = frozenset(
    {"lifecycle", "share", "move", "erase", "policy", "keys"}
)
ResourceKind: TypeAlias = Literal["session", "field", "tool", "document", "app", "store"]


_SPEAKERS: Final[frozenset[Role]] = frozenset({"agent", "admin"})


class _Identified(msgspec.Struct, frozen=True):
    id: str


class Principal(_Identified, frozen=True, kw_only=True):
    """Someone who makes requests: `Principal("user:ada", role="owner", app="support", user="ada")`.

    Without `app` its role applies to every app, without `user` to every user. `task` is the task it
    works on; `attributes` are for policies. With `speaks_for="user"`, an agent or admin of no one
    user may record what the user of a session says: `actor="user:ada"` in a session of ada.
    """

    role: Role
    app: str | None = None
    user: str | None = None
    task: str | None = None
    attributes: Mapping[str, Any] = FrozenDict()
    speaks_for: Literal["user"] | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidInput(f"a role is one of {', '.join(ROLES)}, not {described(self.role)}.")
        for name in ("id", "app", "user", "task"):
            value = getattr(self, name)
            if value is None and name != "id":
                continue
            if reason := unfit(value, KEY_PART_CHARS_MAX):
                raise InvalidInput(f"the {name} of a principal {reason}.")
        if not isinstance(self.attributes, Mapping):
            raise InvalidInput("the attributes of a principal are a mapping.")
        msgspec.structs.force_setattr(self, "attributes", FrozenDict(self.attributes))
        if self.speaks_for is None:
            return
        if self.speaks_for != "user":
            raise InvalidInput(f"speaks_for is 'user', not {described(self.speaks_for)}.")
        if self.role not in _SPEAKERS or self.user is not None:
            raise InvalidInput(
                "only a principal of role agent or admin that acts for no one user speaks for "
                "users. Leave out the user, or speaks_for."
            )


def principal_data(principal: Principal) -> dict[str, Any]:
    """A principal in the data of an event, to be asked for later: see `principal_in`."""
    data: dict[str, Any] = {"id": principal.id, "role": principal.role}
    for name in ("app", "user", "task"):
        if (value := getattr(principal, name)) is not None:
            data[name] = value
    if principal.attributes:
        data["attributes"] = _recorded(principal.attributes)
    return data


def _recorded(attributes: Mapping[str, Any]) -> Any:
    """Attributes as the log has them: sets and tuples are lists there."""
    try:
        return msgspec.json.decode(msgspec.json.encode(dict(attributes), order="deterministic"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"an attribute of the principal cannot be recorded ({error})."
        ) from error


def principal_in(data: Mapping[str, Any]) -> Principal:
    """The principal whose data this is."""
    return Principal(**data)


class Resource(msgspec.Struct, frozen=True):
    """The subject of a decision. `head` is the session's, if it exists and was read."""

    kind: ResourceKind
    app: str  # "*" of what belongs to no app
    user: str | None = None
    id: str | None = None
    name: str | None = None  # of the field, the tool or the document
    head: Head | None = None

    @classmethod
    def of(cls, key: Key, head: Head | None = None) -> Resource:
        """Return the resource of a session."""
        return cls("session", key.app, key.user, key.id, head=head)

    def __str__(self) -> str:
        where = "/".join(part for part in (self.app, self.user, self.id) if part is not None)
        return where if self.name is None else f"{where}#{self.name}"


class Decision(msgspec.Struct, frozen=True):
    """Yes, or no with a code; `policy` is the id of the rule that decided."""

    allowed: bool
    denial: Denial | None = None
    policy: str | None = None

    def check(self, action: Action, resource: Resource) -> None:
        """Raise AccessDenied unless it is a yes."""
        if not self.allowed:
            raise AccessDenied(
                self.denial or "access_denied", action, str(resource), policy=self.policy
            )


class AllowedOperation(msgspec.Struct, frozen=True):
    """A sensitive operation that was allowed."""

    action: str
    resource: Resource
    policy: str | None = None
    via: str | None = None  # the principal, if it wrote as the session's user


ALLOWED: Final = Decision(True)


class Decider(Protocol):
    """One of the rules that a guard asks. It answers from memory: no I/O, nothing awaited."""

    @property
    def revision(self) -> int:
        """Another number once its answers may have changed: what a guard remembers is dropped."""
        ...

    @property
    def needs_head(self) -> bool:
        """True if its answers depend on the head: a guard reads it before it asks."""
        ...

    @property
    def needs_newest_head(self) -> bool:
        """True if they depend on what changes in a head; else one of the same session will do."""
        ...

    def decide(
        self, principal: Principal, action: Action, resource: Resource, address: str | None = None
    ) -> Decision:
        """The answer to a principal that asks from this address, if one is known."""
        ...

    def depends_on(self, action: Action, resource: Resource) -> Hashable:
        """All of the resource that the answer depends on; a guard remembers answers by it. None:
        the answer must not be remembered."""
        ...

    def view(
        self, principal: Principal, head: Head, address: str | None = None
    ) -> SessionView | None:
        """Return the principal's view of a session that it may read; None means everything."""
        ...


class SessionView(Protocol):
    """A principal's view of one session; `security.view` has the one that isolation gives."""

    def sees(self, name: str) -> bool:
        """True if this name in state may be read: a field, an app: or a user: name."""
        ...

    def event(self, event: Event) -> Event:
        """The event without operations on hidden names, and without the data they refer to."""
        ...

    def texts(self, texts: Texts, events: Iterable[Event]) -> Texts:
        """The texts of events that the head names, without what is hidden in these `events`."""
        ...
