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
    moves,
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
from limpet.model.facts.running import (
    budgets,
    children,
    deaths,
    endings,
    memory,
    requests,
    runs,
    setup,
    spawned,
)
from limpet.model.facts.running.setup import TOOLS_MAX
from limpet.model.facts.view import Facts
from limpet.model.keys import Key, unfit
from limpet.model.limits import (
    ACTOR_CHARS_MAX,
    DELEGATION_DEPTH_MAX,
    ID_CHARS_MAX,
    INT_MAX,
    KEY_PART_CHARS_MAX,
    LABEL_BYTES_MAX,
    LABEL_VALUE_CHARS_MAX,
    LABELS_MAX,
    MEDIA_TYPE_CHARS_MAX,
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


def shape(
    optional: Mapping[str, Any] | None = None, base: type[Struct] = Struct, /, **required: Any
) -> Any:
    """Return a Struct class of these members. An optional one that is missing reads as UNSET."""
    fields: list[Any] = list(required.items())
    fields += [(name, of | UnsetType, UNSET) for name, of in (optional or {}).items()]
    return msgspec.defstruct("Shape", fields, bases=(base,))


def table(of: Any, most: int | None = None, *, names: Any = str) -> Any:
    """Return the type of a mapping from names to one shape."""
    return Annotated[dict[names, of], Meta(max_length=most)]


class _BudgetCheck(Struct):
    def __post_init__(self: Any) -> None:
        if self.cost is self.tokens is self.compute_us is UNSET:
            raise ValueError("a budget has a cost, tokens or compute_seconds")


class _AccountCheck(Struct):
    """The account of a child; in the child's own log it names nobody."""

    def __post_init__(self: Any) -> None:
        if (self.own is True) is (self.child is not UNSET):
            raise ValueError("it is of a child, or of the session itself")


_AMOUNTS: Final = {"cost": Amount, "tokens": Amount}
_GRANTED: Final = {**_AMOUNTS, budgets.COMPUTE: Amount}
_LIMITS: Final = shape(_GRANTED)  # of budget.granted and session.created: what is there is a number
_RETENTION: Final = shape(
    {
        "events": Annotated[int, Meta(ge=1, le=2**53)],
        "age_us": Annotated[int, Meta(ge=0, le=INT_MAX)],
    }
)
_NAMES: Final = Annotated[list[Name], Meta(max_length=isolation.ISOLATED_FIELDS_MAX)]
_ISOLATION: Final = shape(
    {
        "model": isolation.IsolationModel,
        "listed": bool,
        "siblings": bool,
        "users": Annotated[list[KeyPart], Meta(max_length=isolation.ISOLATED_USERS_MAX)],
        "task": LabelValue,
        "agents": table(
            shape({"owns": _NAMES, "reads": _NAMES, "tools": _NAMES}),
            isolation.ISOLATED_AGENTS_MAX,
            names=Actor,
        ),
    }
)
# The roles that may; None, or missing: everybody.
_FIELD_POLICY: Final = shape({"read": list[KeyPart] | None, "write": list[KeyPart] | None})
_ACCESS: Final = {
    "isolation": _ISOLATION,
    "field_policies": table(_FIELD_POLICY, isolation.ISOLATED_FIELDS_MAX, names=Name),
}
# The facts in the stub of an archived session; labels include those of a dead letter and its task.
_STUB: Final = shape(
    {
        "labels": Annotated[dict[Name, LabelValue], Meta(max_length=LABELS_MAX + 2)],
        "timeouts": dict[str, Any],
        "retention": _RETENTION,
        "durations": dict[str, Time],
        "archived_from": str,
        "schema_version": str,
        **_ACCESS,
    }
)
_ATTACHED: Final = shape(
    {"resources": list[str], "vaults": list[str], "permissions": str, "limits": dict[str, str]}
)
# A bound tool in the facts of a session.
_BINDING: Final = shape(
    {
        "version": str,
        "required": bool,
        "permission": str,
        "cost": Annotated[float, Meta(ge=0)],
        "exclusive": bool,
        "substitutes": list[str],
        "as": Name,
        "as_version": str,
    }
)
_TOOLS: Final = table(_BINDING, TOOLS_MAX)
# The facts that a fork inherits from its original, besides the state.
_INHERITED: Final = shape(
    {
        "setup": _ATTACHED,
        "tools": _TOOLS,
        "wanted": _TOOLS,
        "given": list[str],
        "timeouts": dict[str, Any],
        "budget": _LIMITS,
        **_ACCESS,
    }
)
_SETUP: Final = shape({"agent": str, "environment": str, "budget": _LIMITS})
_CREATED: Final = shape(
    {
        "labels": Labels,
        "schema_version": str,
        "phase": str,
        "archived": shape({"facts": _STUB}, created_us=Time),
        "setup": _SETUP,
        "timeouts": dict[str, Any],
        **_ACCESS,
    }
)
_SESSION: Final = shape(app=KeyPart, user=KeyPart, id=KeyPart, uid=str)
_FORKED: Final = shape(
    {"labels": Labels, "schema_version": str, "inherits": _INHERITED},
    parent=_SESSION,
    at=Count,
)
_PLACE: Final = {"app": KeyPart, "user": KeyPart, "uid": Id}
# A child in the log of its parent. One that the parent lets go of is named by its id.
_CHILD: Final = shape(_PLACE, child=KeyPart)
_RESERVED: Final = shape(reservation=Id, **_AMOUNTS)
_SHARED: Final = {
    "share": Id,
    "fields": Annotated[list[Name], Meta(min_length=1, max_length=shares.SHARED_FIELDS_MAX)],
    "access": shares.ShareAccess,
    "sync": shares.ShareSync,
    "version": Count,
}
Hash: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
# The part of another session that a relation lets one read, and the principal who made it.
_BLOB: Any = shape(
    {"size": Count, "media_type": Name},
    uri=Annotated[str, Meta(pattern="^blob:sha256:[0-9a-f]{64}$")],
    sha256=Hash,
)
_MAKER: Final = shape(
    {"app": KeyPart, "user": KeyPart, "task": KeyPart, "attributes": dict[str, Any]},
    id=Actor,
    role=KeyPart,
)
_READS: Final = shape(
    {
        "output": Hash,
        "fields": table(Hash, relations.CITED_MAX, names=Name),
        "blobs": Annotated[list[_BLOB], Meta(max_length=relations.CITED_MAX)],
        "maker": _MAKER,
    },
    version=Count,
)
NodeName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=moves.NODE_CHARS_MAX)]
Epoch: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
_FAMILY: Final = Annotated[
    list[tuple[KeyPart, KeyPart, KeyPart]], Meta(min_length=2, max_length=moves.FAMILY_MAX)
]
_TRANSITION: Final = shape(**{"from": str}, to=phases.Phase, event=str)
_SHAPES: Final[Mapping[str, type[Struct]]] = {
    creation.CREATED: _CREATED,
    creation.FORKED: _FORKED,
    labels.LABELED: shape(labels=Labels),
    timers.TIMER_SET: shape(name=TimerName, at_us=Time, kind=timers.TimerKind),
    timers.TIMER_CLEARED: shape(name=TimerName),
    inputs.PROCESSED: shape(seqs=Annotated[list[Count], Meta(min_length=1)]),
    runs.STATUS_IDLE: shape(
        {"processed": list[Count], "needs": dict[str, Amount] | None, "redirect": Count},
        stop_reason=str,
        blocked_on=list[Id],
    ),
    runs.ERROR: shape(
        {
            "counts": bool,
            "retry_us": Time | None,
            "effects": list[tuple[str, Count]],
            "death": deaths.Death,
        },
        code=str,
        message=str,
        attempt=Count,
    ),
    endings.FINISHED: shape({"retry_us": Time | None}, left=list[str]),
    timers.REVISIT_SET: shape(
        name=TimerName,
        at_us=Time,
        reason=Annotated[str, Meta(max_length=REASON_CHARS_MAX)],
        priority=timers.RevisitPriority,
        replace=bool,
    ),
    timers.TIMERS_TAKEN: shape(names=list[str]),
    children.CHILD_CREATED: shape(
        {"uid": Id, "title": str, "cascade": bool}, child=KeyPart, app=KeyPart, user=KeyPart
    ),
    children.CHILD_RELEASED: _CHILD,
    children.DELEGATED: shape(
        {"uid": Id, "tools": list[str], "task_hash": str, "lent": shape(**_AMOUNTS)},
        app=KeyPart,
        user=KeyPart,
        id=KeyPart,
        depth=Annotated[int, Meta(ge=1, le=DELEGATION_DEPTH_MAX)],
    ),
    CHILD_ENDED: _CHILD,
    spawned.CHILD_SPAWNED: shape(
        {"lent": shape(**_AMOUNTS)},
        child=KeyPart,
        app=KeyPart,
        user=KeyPart,
        uid=Id,
        task_hash=str,
    ),
    spawned.CHILD_DONE: shape(
        {"lent": shape(**_AMOUNTS)},
        child=KeyPart,
        app=KeyPart,
        user=KeyPart,
        uid=Id,
        account=shape({"limit": _LIMITS}, **_AMOUNTS),
    ),
    budgets.GRANTED: shape(_GRANTED, _BudgetCheck),
    budgets.RESERVED: _RESERVED,
    budgets.SETTLED: _RESERVED,
    budgets.LENT: shape(_PLACE, child=KeyPart, **_AMOUNTS),
    budgets.RETURNED: shape(
        {**_PLACE, "child": KeyPart, "own": bool, "limit": _LIMITS}, _AccountCheck, **_AMOUNTS
    ),
    outcomes.EVALUATED: shape(verdict=outcomes.Verdict, met=list[bool | None]),
    memory.WRITTEN: shape({"expect": Count | None}, name=memory.BufferName),
    setup.ATTACHED: _ATTACHED,
    checkpoints.RECORDED: shape(number=Count, at_us=Time),
    priority.PRIORITIZED: shape(priority=Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]),
    relations.RELATED: shape(
        {"reads": _READS},
        kind=relations.RelationKind,
        direction=relations.Direction,
        app=KeyPart,
        user=KeyPart,
        id=KeyPart,
        uid=Id,
    ),
    relations.UNRELATED: shape(relation=Id),
    retention.RETENTION_SET: shape(retention=_RETENTION),
    schema.MIGRATED: shape({"field_policies": _ACCESS["field_policies"]}, to=str),
    timeouts.TIMEOUTS_SET: shape(timeouts=dict[str, Any]),
    timeouts.RENEWED: shape(idle_us=Annotated[int, Meta(ge=1, le=timeouts.SPAN_US_MAX)]),
    setup.TOOLS_BOUND: shape({"degraded": list[str], "wanted": _TOOLS}, tools=_TOOLS),
    shares.SHARED: shape({"expires_us": Time}, **_SHARED),
    shares.SHARE_RECEIVED: shape({"expires_us": Time, "hash": str}, **_SHARED, source=_SESSION),
    shares.UNSHARED: shape(share=Id),
    shares.SHARE_USED: shape(share=Id),
    moves.DEPARTED: shape(
        {"family": _FAMILY, "from": NodeName, "store": Id}, to=NodeName, epoch=Epoch
    ),
    moves.ARRIVED: shape({"from": NodeName}, node=NodeName, epoch=Epoch),
    moves.RETURNED: shape(node=NodeName, epoch=Epoch, reason=str),
    moves.RECLAIMED: shape({"store": Id}, node=NodeName, epoch=Epoch, lost=NodeName, reason=str),
    **dict.fromkeys(phases.TRANSITIONS, _TRANSITION),
}
_WAKES: Final[Mapping[str, type[Struct]]] = {
    "wake": shape(
        {"redirect": Count, "version": Name},
        span_id=Id,
        turn=Id,
        attempt=Count,
        inputs=list[Count],
        timers=list[TimerName],
    ),
    "finish": shape(span_id=Id),
}
_WAKE_COMPLETED: Final = shape({"got_on": bool, budgets.COMPUTE: Amount}, span_id=Id, fence=Count)
_ASKED: Final = shape(
    {"input_hash": str, "deadline_us": Time, "otherwise": bool, "replaces": Id | None},
    request_id=Annotated[str, Meta(min_length=1, max_length=ID_CHARS_MAX - len("/asked"))],
    awaits=requests.StoredKind,
    name=Name,
    input=Any,
)


def _start_shape(data: Mapping[str, Any]) -> type[Struct] | None:
    """Spans within a wake change nothing in the head; nor does a wake that only settles."""
    name = data.get("name")
    return _WAKES.get(name) if data.get("kind") == "wake" and isinstance(name, str) else None


def _completion_shape(data: Mapping[str, Any]) -> type[Struct] | None:
    return _WAKE_COMPLETED if data.get("kind") == "wake" else None


def _asked(data: Mapping[str, Any]) -> type[Struct] | None:
    """A tool that was used asks nobody."""
    return _ASKED if "awaits" in data else None


# Of some types the data decides whether the head looks at it at all.
_CHOSEN: Final[Mapping[str, Callable[[Mapping[str, Any]], type[Struct] | None]]] = {
    runs.SPAN_STARTED: _start_shape,
    runs.SPAN_COMPLETED: _completion_shape,
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
        decoded = msgspec.convert(data, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidEvent(f"the data of {type} does not fit: {error}") from error
    more = _MORE.get(type)
    if more is not None:
        more(decoded)


# --- what a type cannot say -----------------------------------------------------------------------


def _check_created(data: Any) -> None:
    _check_labels(data.labels)
    _check_timeouts(data.timeouts)
    _check_isolation(data.isolation)
    stub = UNSET if data.archived is UNSET else data.archived.facts
    if stub is not UNSET:
        _check_label_sizes(stub.labels)
        _check_timeouts(stub.timeouts)
        _check_isolation(stub.isolation)


def _check_related(data: Any) -> None:
    Key(data.app, data.user, data.id)
    if data.reads is not UNSET and data.reads.blobs is not UNSET:
        for blob in data.reads.blobs:
            reason = blob.media_type is not UNSET and unfit(blob.media_type, MEDIA_TYPE_CHARS_MAX)
            if reason:
                raise InvalidEvent(f"the media type of a blob {reason}")


def _check_forked(data: Any) -> None:
    Key(data.parent.app, data.parent.user, data.parent.id)
    _check_labels(data.labels)
    if data.inherits is not UNSET:
        _check_timeouts(data.inherits.timeouts)
        _check_isolation(data.inherits.isolation)


def _check_isolation(stored: Struct | UnsetType) -> None:
    """Check that the isolation can be read back. Raises InvalidInput."""
    if stored is not UNSET:
        isolation.isolation_in(Facts({"isolation": msgspec.to_builtins(stored)}))


def _check_labels(given: Mapping[str, str | None] | UnsetType) -> None:
    """Raise InvalidEvent if a label is too large, or one of those that Limpet sets itself."""
    _check_label_sizes(given)
    if given and (reserved := [name for name in given if name.startswith("$")]):
        raise InvalidEvent(f"the label {reserved[0]!r} begins with '$', which is reserved")


def _check_label_sizes(given: Mapping[str, str | None] | UnsetType) -> None:
    for name, value in given.items() if given else ():
        if len(f"{name}{value or ''}".encode()) > LABEL_BYTES_MAX:
            raise InvalidEvent(f"the label {name!r} has more than {LABEL_BYTES_MAX:,} bytes")


def _check_timeouts(spans: Mapping[str, Any] | UnsetType) -> None:
    """Check that the timeouts can be read back. Raises InvalidEvent."""
    if not spans:
        return
    if any([name.endswith("_us") and type(us) is not int for name, us in spans.items()]):
        raise InvalidEvent("timeouts are numbers of microseconds")
    if any([name.endswith("_us") and abs(us) > timeouts.SPAN_US_MAX for name, us in spans.items()]):
        raise InvalidEvent("a timeout is too long")
    timeouts.timeouts_in(Facts({"timeouts": spans}))


# Key raises InvalidKey if a session is named that cannot be.
_MORE: Final[Mapping[str, Callable[[Any], object]]] = {
    creation.CREATED: _check_created,
    creation.FORKED: _check_forked,
    labels.LABELED: lambda data: _check_labels(data.labels),
    children.CHILD_CREATED: lambda data: Key(data.app, data.user, data.child),
    children.DELEGATED: lambda data: Key(data.app, data.user, data.id),
    spawned.CHILD_SPAWNED: lambda data: Key(data.app, data.user, data.child),
    spawned.CHILD_DONE: lambda data: Key(data.app, data.user, data.child),
    moves.DEPARTED: lambda data: [Key(*names) for names in data.family or ()],
    relations.RELATED: _check_related,
    shares.SHARE_RECEIVED: lambda data: Key(data.source.app, data.source.user, data.source.id),
    timeouts.TIMEOUTS_SET: lambda data: _check_timeouts(data.timeouts),
}
