"""Shapes: what the data of an event must be that the head looks into.

Folds read members without looking twice, and what they leave in the head is read by every claim,
sweep and listing of the store. So a commit that brings wrong data is refused here, alone, before it
is folded: made by a constructor of ours, appended as a plain event, or adopted from another store.
Members that no fold reads are not looked at; one that is optional is missing, never null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from limpet.errors import InvalidEvent
from limpet.model.events import CHILD_ENDED, TIME_US_MAX, TIME_US_MIN
from limpet.model.facts import (
    checkpoints,
    creation,
    inputs,
    isolation,
    labels,
    outcomes,
    phases,
    priority,
    relations,
    retention,
    schema,
    shares,
    timeouts,
    timers,
)
from limpet.model.facts.running import budgets, children, endings, memory, requests, runs, setup
from limpet.model.facts.running.setup import TOOLS_MAX
from limpet.model.facts.view import Facts
from limpet.model.keys import Key
from limpet.model.limits import (
    ACTOR_CHARS_MAX,
    DELEGATION_DEPTH_MAX,
    ID_CHARS_MAX,
    INT_MAX,
    KEY_PART_CHARS_MAX,
    LABEL_BYTES_MAX,
    LABEL_VALUE_CHARS_MAX,
    LABELS_MAX,
    NAME_CHARS_MAX,
    PRIORITY_MAX,
    REASON_CHARS_MAX,
)

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
TimerName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2 * NAME_CHARS_MAX)]
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ID_CHARS_MAX)]
KeyPart: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KEY_PART_CHARS_MAX)]
LabelValue: TypeAlias = Annotated[str, Meta(min_length=1, max_length=LABEL_VALUE_CHARS_MAX)]
Actor: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ACTOR_CHARS_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=budgets.AMOUNT_MAX)]
Time: TypeAlias = Annotated[int, Meta(ge=TIME_US_MIN, le=TIME_US_MAX)]  # a datetime can show it
Labels: TypeAlias = Annotated[dict[Name, LabelValue | None], Meta(max_length=LABELS_MAX)]


class _Budget(Struct):
    cost: Amount | UnsetType = UNSET
    tokens: Amount | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.cost is self.tokens is UNSET:
            raise ValueError("a budget has a cost, tokens, or both")


class _Limits(Struct):
    """Of budget.granted and session.created: what is there is a number."""

    cost: Amount = 0
    tokens: Amount = 0


class _Setup(Struct):
    agent: str = ""
    environment: str = ""
    budget: _Limits | UnsetType = UNSET


class _Retention(Struct):
    events: Annotated[int, Meta(ge=1, le=2**53)] = 1
    age_us: Annotated[int, Meta(ge=0, le=INT_MAX)] = 0


FieldNames: TypeAlias = Annotated[list[Name], Meta(max_length=isolation.ISOLATED_FIELDS_MAX)]


class _FieldAccess(Struct):
    owns: FieldNames = msgspec.field(default_factory=list)
    reads: FieldNames = msgspec.field(default_factory=list)


class _Isolation(Struct):
    model: isolation.IsolationModel = "per_user"
    users: Annotated[list[KeyPart], Meta(max_length=isolation.ISOLATED_USERS_MAX)] = msgspec.field(
        default_factory=list
    )
    task: LabelValue | UnsetType = UNSET
    agents: Annotated[dict[Actor, _FieldAccess], Meta(max_length=isolation.ISOLATED_AGENTS_MAX)] = (
        msgspec.field(default_factory=dict)
    )


class _FieldPolicy(Struct):
    """The roles that may; None, or missing: everybody."""

    read: list[KeyPart] | None = None
    write: list[KeyPart] | None = None


FieldPolicies: TypeAlias = Annotated[
    dict[Name, _FieldPolicy], Meta(max_length=isolation.ISOLATED_FIELDS_MAX)
]


class _Stub(Struct):
    """What the head of an archived session keeps."""

    labels: Annotated[dict[Name, LabelValue], Meta(max_length=LABELS_MAX + 2)] = msgspec.field(
        default_factory=dict
    )  # with those of a dead letter and of its task
    timeouts: dict[str, Any] = msgspec.field(default_factory=dict)
    retention: _Retention | UnsetType = UNSET
    durations: dict[str, Time] = msgspec.field(default_factory=dict)
    archived_from: str = ""
    schema_version: str = ""
    isolation: _Isolation | UnsetType = UNSET
    field_policies: FieldPolicies = msgspec.field(default_factory=dict)


class _Archived(Struct):
    created_us: Time
    facts: _Stub | UnsetType = UNSET


class _Created(Struct):
    labels: Labels = msgspec.field(default_factory=dict)
    schema_version: str = ""
    phase: str = ""
    archived: _Archived | UnsetType = UNSET
    setup: _Setup | UnsetType = UNSET
    timeouts: dict[str, Any] = msgspec.field(default_factory=dict)
    isolation: _Isolation | UnsetType = UNSET
    field_policies: FieldPolicies = msgspec.field(default_factory=dict)


class _Parent(Struct):
    app: KeyPart
    user: KeyPart
    id: KeyPart
    uid: str


class _Attached(Struct):
    resources: list[str] = msgspec.field(default_factory=list)
    vaults: list[str] = msgspec.field(default_factory=list)
    permissions: str = ""
    limits: dict[str, str] = msgspec.field(default_factory=dict)


class _Binding(Struct, rename={"as_": "as"}):
    """What a session keeps of a tool."""

    version: str = ""
    required: bool = True
    permission: str = ""
    cost: Annotated[float, Meta(ge=0)] = 0.0
    exclusive: bool = False
    substitutes: list[str] = msgspec.field(default_factory=list)
    as_: Name = "as"
    as_version: str = ""


Tools: TypeAlias = Annotated[dict[str, _Binding], Meta(max_length=TOOLS_MAX)]


class _Inherited(Struct):
    """What a fork has of its original, besides the state."""

    setup: _Attached | UnsetType = UNSET
    tools: Tools = msgspec.field(default_factory=dict)
    wanted: Tools = msgspec.field(default_factory=dict)
    given: list[str] = msgspec.field(default_factory=list)
    timeouts: dict[str, Any] = msgspec.field(default_factory=dict)
    budget: _Limits | UnsetType = UNSET
    isolation: _Isolation | UnsetType = UNSET
    field_policies: FieldPolicies = msgspec.field(default_factory=dict)


class _Forked(Struct):
    parent: _Parent
    at: Count
    labels: Labels = msgspec.field(default_factory=dict)
    schema_version: str = ""
    inherits: _Inherited | UnsetType = UNSET


class _Labeled(Struct):
    labels: Labels


class _Named(Struct):
    name: TimerName


class _TimerSet(Struct):
    name: TimerName
    at_us: Time
    kind: timers.TimerKind


class _Processed(Struct):
    seqs: Annotated[list[Count], Meta(min_length=1)]


class _Idle(Struct):
    stop_reason: str
    blocked_on: list[Id]
    processed: list[Count] = msgspec.field(default_factory=list)
    needs: dict[str, Amount] | None = None
    redirect: Count | UnsetType = UNSET


class _WakeStarted(Struct):
    span_id: Id
    turn: Id
    attempt: Count
    inputs: list[Count]
    timers: list[TimerName]
    redirect: Count | UnsetType = UNSET
    version: Name | UnsetType = UNSET


class _FinishStarted(Struct):
    span_id: Id


class _WakeCompleted(Struct):
    span_id: Id
    fence: Count


class _Error(Struct):
    code: str
    message: str
    attempt: Count
    counts: bool = True
    retry_us: Time | None = None
    effects: list[tuple[str, Count]] = msgspec.field(default_factory=list)


class _Finished(Struct):
    left: list[str]
    retry_us: Time | None = None


class _Asked(Struct):
    request_id: Annotated[str, Meta(min_length=1, max_length=ID_CHARS_MAX - len("/asked"))]
    awaits: requests.StoredKind
    name: Name
    input: Any
    input_hash: str = ""
    deadline_us: Time | UnsetType = UNSET
    otherwise: bool = False
    replaces: Id | None = None


class _RevisitSet(Struct):
    name: TimerName
    at_us: Time
    reason: Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
    priority: timers.RevisitPriority
    replace: bool


class _Names(Struct):
    names: list[str]


class _Child(Struct):
    """A child in the log of its parent. One that the parent lets go of is named by its id."""

    child: KeyPart
    app: KeyPart | UnsetType = UNSET
    user: KeyPart | UnsetType = UNSET
    uid: Id | UnsetType = UNSET


class _ChildCreated(Struct):
    child: KeyPart
    app: KeyPart
    user: KeyPart
    uid: Id | UnsetType = UNSET
    title: str = ""
    cascade: bool = True


class _Delegated(Struct):
    app: KeyPart
    user: KeyPart
    id: KeyPart
    depth: Annotated[int, Meta(ge=1, le=DELEGATION_DEPTH_MAX)]
    uid: Id | UnsetType = UNSET
    tools: list[str] = msgspec.field(default_factory=list)


class _Related(Struct):
    """Read from the log, by `session.relations`."""

    kind: relations.RelationKind
    direction: relations.Direction
    app: KeyPart
    user: KeyPart
    id: KeyPart
    uid: Id


class _Shared(Struct):
    share: Id
    fields: Annotated[list[Name], Meta(min_length=1, max_length=shares.SHARED_FIELDS_MAX)]
    access: shares.ShareAccess
    sync: shares.ShareSync
    version: Count
    expires_us: Time | UnsetType = UNSET


class _ShareReceived(_Shared, kw_only=True):
    source: _Parent
    hash: str = ""


class _ShareNamed(Struct):
    share: Id


class _Reserved(Struct):
    reservation: Id
    cost: Amount
    tokens: Amount


class _Lent(_Child, kw_only=True):
    cost: Amount
    tokens: Amount


class _Returned(Struct):
    """The account of a child; in the child's own log it names nobody."""

    cost: Amount
    tokens: Amount
    child: KeyPart | UnsetType = UNSET
    own: bool = False
    app: KeyPart | UnsetType = UNSET
    user: KeyPart | UnsetType = UNSET
    uid: Id | UnsetType = UNSET
    limit: _Limits | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.own is (self.child is not UNSET):
            raise ValueError("it is of a child, or of the session itself")


class _Evaluated(Struct):
    verdict: outcomes.Verdict
    met: list[bool | None]


class _MemoryWritten(Struct):
    name: memory.BufferName
    expect: Count | None = None


class _Checkpoint(Struct):
    number: Count
    at_us: Time


class _Prioritized(Struct):
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


class _RetentionSet(Struct):
    retention: _Retention


class _Migrated(Struct):
    to: str
    field_policies: FieldPolicies = msgspec.field(default_factory=dict)


class _TimeoutsSet(Struct):
    timeouts: dict[str, Any]


class _Renewed(Struct):
    idle_us: Annotated[int, Meta(ge=1, le=timeouts.SPAN_US_MAX)]


class _ToolsBound(Struct):
    tools: Tools
    degraded: list[str] = msgspec.field(default_factory=list)
    wanted: Tools = msgspec.field(default_factory=dict)


class _Transition(Struct):
    from_: str = msgspec.field(name="from")
    to: phases.Phase
    event: str


_SHAPES: Final[Mapping[str, type[Struct]]] = {
    creation.CREATED: _Created,
    creation.FORKED: _Forked,
    labels.LABELED: _Labeled,
    timers.TIMER_SET: _TimerSet,
    timers.TIMER_CLEARED: _Named,
    inputs.PROCESSED: _Processed,
    runs.STATUS_IDLE: _Idle,
    runs.ERROR: _Error,
    endings.FINISHED: _Finished,
    timers.REVISIT_SET: _RevisitSet,
    timers.TIMERS_TAKEN: _Names,
    children.CHILD_CREATED: _ChildCreated,
    children.CHILD_RELEASED: _Child,
    children.DELEGATED: _Delegated,
    CHILD_ENDED: _Child,
    budgets.GRANTED: _Budget,
    budgets.RESERVED: _Reserved,
    budgets.SETTLED: _Reserved,
    budgets.LENT: _Lent,
    budgets.RETURNED: _Returned,
    outcomes.EVALUATED: _Evaluated,
    memory.WRITTEN: _MemoryWritten,
    setup.ATTACHED: _Attached,
    checkpoints.RECORDED: _Checkpoint,
    priority.PRIORITIZED: _Prioritized,
    relations.RELATED: _Related,
    retention.RETENTION_SET: _RetentionSet,
    schema.MIGRATED: _Migrated,
    timeouts.TIMEOUTS_SET: _TimeoutsSet,
    timeouts.RENEWED: _Renewed,
    setup.TOOLS_BOUND: _ToolsBound,
    shares.SHARED: _Shared,
    shares.SHARE_RECEIVED: _ShareReceived,
    shares.UNSHARED: _ShareNamed,
    shares.SHARE_USED: _ShareNamed,
    **dict.fromkeys(phases.TRANSITIONS, _Transition),
}
_WAKES: Final[Mapping[str, type[Struct]]] = {"wake": _WakeStarted, "finish": _FinishStarted}


def _started(data: Mapping[str, Any]) -> type[Struct] | None:
    """Spans within a wake change nothing in the head; nor does a wake that only settles."""
    name = data.get("name")
    return _WAKES.get(name) if data.get("kind") == "wake" and isinstance(name, str) else None


def _completed(data: Mapping[str, Any]) -> type[Struct] | None:
    return _WakeCompleted if data.get("kind") == "wake" else None


def _asked(data: Mapping[str, Any]) -> type[Struct] | None:
    """A tool that was used asks nobody."""
    return _Asked if "awaits" in data else None


# Of some types the data decides whether the head looks at it at all.
_CHOSEN: Final[Mapping[str, Callable[[Mapping[str, Any]], type[Struct] | None]]] = {
    runs.SPAN_STARTED: _started,
    runs.SPAN_COMPLETED: _completed,
    requests.TOOL_USE: _asked,
    requests.CUSTOM_TOOL_USE: _asked,
}


def check_shape(type: str, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if the head could not fold this data. Most events are not looked at."""
    shape = _SHAPES.get(type)
    if shape is None:
        choose = _CHOSEN.get(type)
        if choose is None or (shape := choose(data)) is None:
            return
    try:
        found = msgspec.convert(data, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidEvent(f"the data of {type} does not fit: {error}") from error
    more = _MORE.get(shape)
    if more is not None:
        more(found)


# --- what a type cannot say -----------------------------------------------------------------------


def _check_created(found: _Created) -> None:
    _check_labels(found.labels)
    _check_timeouts(found.timeouts)
    _check_isolation(found.isolation)
    kept = UNSET if found.archived is UNSET else found.archived.facts
    if kept is not UNSET:
        _check_label_sizes(kept.labels)
        _check_timeouts(kept.timeouts)
        _check_isolation(kept.isolation)


def _check_isolation(found: _Isolation | UnsetType) -> None:
    """As it is read back. Raises InvalidInput."""
    if found is not UNSET:
        isolation.isolation_in(Facts({"isolation": msgspec.to_builtins(found)}))


def _check_labels(found: Mapping[str, str | None]) -> None:
    """Raise InvalidEvent if a label is too large, or one of those that Limpet sets itself."""
    _check_label_sizes(found)
    if reserved := [name for name in found if name.startswith("$")]:
        raise InvalidEvent(f"the label {reserved[0]!r} begins with '$', which is reserved")


def _check_label_sizes(found: Mapping[str, str | None]) -> None:
    for name, value in found.items():
        if len(f"{name}{value or ''}".encode()) > LABEL_BYTES_MAX:
            raise InvalidEvent(f"the label {name!r} has more than {LABEL_BYTES_MAX:,} bytes")


def _check_timeouts(found: Mapping[str, Any]) -> None:
    """As they are read back. Raises InvalidEvent."""
    if any([name.endswith("_us") and type(us) is not int for name, us in found.items()]):
        raise InvalidEvent("timeouts are numbers of microseconds")
    if any([name.endswith("_us") and abs(us) > timeouts.SPAN_US_MAX for name, us in found.items()]):
        raise InvalidEvent("a timeout is too long")
    timeouts.timeouts_in(Facts({"timeouts": found}))


def _check_keys(found: _ChildCreated | _Delegated | _Forked | _Related | _ShareReceived) -> None:
    """Raise InvalidKey if a session is named that cannot be."""
    if isinstance(found, _ChildCreated):
        Key(found.app, found.user, found.child)
    elif isinstance(found, _Delegated | _Related):
        Key(found.app, found.user, found.id)
    elif isinstance(found, _ShareReceived):
        Key(found.source.app, found.source.user, found.source.id)
    else:
        Key(found.parent.app, found.parent.user, found.parent.id)
        _check_labels(found.labels)
        if found.inherits is not UNSET:
            _check_timeouts(found.inherits.timeouts)
            _check_isolation(found.inherits.isolation)


_MORE: Final[Mapping[type[Struct], Callable[[Any], None]]] = {
    _Created: _check_created,
    _Labeled: lambda found: _check_labels(found.labels),
    _Forked: _check_keys,
    _ChildCreated: _check_keys,
    _Delegated: _check_keys,
    _Related: _check_keys,
    _ShareReceived: _check_keys,
    _TimeoutsSet: lambda found: _check_timeouts(found.timeouts),
}
