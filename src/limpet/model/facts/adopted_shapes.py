"""Adopted shapes: what an event recorded elsewhere, and the facts that follow, must look like.

A commit of our own is built by the constructors of the facts, which check their arguments, and
`shapes` checks what the head reads of it before it is folded. What was recorded elsewhere may hold
anything that its hashes cover. So the members of an adopted event that no fold reads are checked
here too, and so is the whole document of facts that follows from it. Imported only to adopt: most
processes never do.

Members that a record does not name are left alone: a later release may add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from limpet.errors import InvalidEvent
from limpet.model.facts import (
    checkpoints,
    creation,
    documents,
    history,
    labels,
    outcomes,
    phases,
    timeouts,
    timers,
)
from limpet.model.facts.running import children, endings, memory, requests, runs, setup
from limpet.model.facts.shapes import Id, Time, check_shape, shape, table
from limpet.model.facts.view import Facts
from limpet.model.keys import Key, unfit
from limpet.model.limits import (
    CHILDREN_MAX,
    DELEGATION_DEPTH_MAX,
    INT_MAX,
    LABEL_VALUE_CHARS_MAX,
    LABELS_MAX,
    NAME_CHARS_MAX,
    PRIORITY_MAX,
    REQUESTS_MAX,
    SPAWNED_MAX,
    TIMERS_MAX,
)

# Beyond what the head reads: stored numbers may be as large as a column holds.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Seq: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
Sum: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # two of them still fit
Span: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=timeouts.SPAN_US_MAX)]
_LABELS_MAX: Final = LABELS_MAX + 2 + REQUESTS_MAX  # and our own: $dead, $task, $asked:…
Hex: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


# --- the data of events that no fold looks into -------------------------------------------------


class _KeyCheck(Struct):
    def __post_init__(self: Any) -> None:
        Key(self.app, self.user, self.id)


_ORIGINAL: Final = {"app": Id, "user": Id, "id": Id, "uid": Id}
_SPAN: Final = {"span_id": Id, "kind": str, "name": str}
_EFFECT: Final = {"name": str, "occurrence": Count, "args_hash": str}
_OF_CALL: Final = {"call": str}
_COMPENSATE: Final = shape(name=str, args=dict[str, Any], on_unknown=str)
_UNDOING: Final = shape(of=str, name=str, key=str)
_DATA: Final[Mapping[str, type[Struct]]] = {
    creation.FORKED: shape(base=Hex),
    runs.SPAN_STARTED: shape(**_SPAN),
    runs.SPAN_COMPLETED: shape({"error": str | None}, **_SPAN, result=str),
    runs.STEP: shape(_OF_CALL, **_EFFECT, result=Any),
    runs.INTENDED: shape(
        {"compensate": _COMPENSATE | None, "tool": str | None, "raised": Count, **_OF_CALL},
        **_EFFECT,
        key=str,
        tries=Count,
        span_id=str,
    ),
    runs.SUCCEEDED: shape(_OF_CALL, **_EFFECT, key=str, result=Any),
    runs.FAILED: shape({"not_done": bool, **_OF_CALL}, **_EFFECT, key=str, error=str),
    runs.UNKNOWN: shape(
        {"tries": Count, "raised": Count, **_OF_CALL}, **_EFFECT, key=str, error=str
    ),
    endings.COMPENSATING: _UNDOING,
    endings.COMPENSATED: _UNDOING,
    endings.NOT_COMPENSATED: shape({"not_done": bool}, of=str, name=str, key=str),
    endings.MAYBE_COMPENSATED: _UNDOING,
    endings.CASCADED: shape(children=list[str]),
    children.CHILD_CREATED: shape(**_EFFECT),
    memory.WRITTEN: shape(value=Any),
    checkpoints.RECORDED: shape(seq=Seq, checksum=Hex, full=bool, trigger=str, size=Count),
    history.MERGED: shape(
        other=shape(None, _KeyCheck, **_ORIGINAL), at=Count, base=dict[str, Any], checksum=str
    ),
    documents.PUT: shape({"checkpoint": Count | None}, value=Any),
    documents.DELETED: shape({"checkpoint": Count | None}),
}
_WAKE: Final = shape(
    {"why": str, "answers": list[Count]},
    **_SPAN,
    turn=str,
    attempt=Count,
    inputs=list[Count],
    timers=list[str],
    worker=str,
    fence=Count,
    claimed_us=Time,
)
_TOOL_CALL: Final = shape(request_id=Id, name=str, input=Any)  # of a model's message
_STARTS: Final = frozenset((creation.CREATED, creation.FORKED))


def check_data(type: str, data: Mapping[str, Any], *, first: bool) -> None:
    """Raise InvalidEvent unless an event recorded elsewhere has the form that its type has here.

    `first`: it begins its log. What stands in a store for an archived session begins none: its log
    is elsewhere, and a file cannot say where.
    """
    if first != (type in _STARTS):
        raise InvalidEvent(f"an event of type {type!r} is not in its place")
    if first and "archived" in data:
        raise InvalidEvent("it stands for a session that is in an archive")
    check_shape(type, data)
    form = _DATA.get(type)
    if type == runs.SPAN_STARTED and data.get("kind") == "wake":
        form = _WAKE
    elif type == requests.TOOL_USE and "message" in data:
        form = _TOOL_CALL
    if form is not None:
        _convert(data, form, f"the data of its {type}")
    if type in (labels.LABELED, *_STARTS):
        for name, value in data.get("labels", {}).items():
            if unfit(name, NAME_CHARS_MAX) or name.startswith("$"):
                raise InvalidEvent("it has a label whose name is not one")
            if value is not None and unfit(value, LABEL_VALUE_CHARS_MAX):
                raise InvalidEvent(f"the label {name!r} has a value that is not one")


# --- the document of facts ------------------------------------------------------------------------


_SPANS: Final = ("idle", "absolute", "grace", "archive", "expiry", "idle_max")
_ATTACHED: Final = Annotated[list[str], msgspec.Meta(max_length=setup.ATTACHED_MAX)]
_TURN: Final = shape(
    **{"from": Count},
    id=Id,
    inputs=list[Seq],
    timers=list[str],
    attempt=Count,
    span=str | None,
    since_us=Time,
)
_TIMER: Final = shape(
    {"reason": str, "priority": timers.RevisitPriority},
    at_us=Time,
    kind=timers.TimerKind,
    seq=Count,
)
_RUN: Final = shape(
    {
        "turn": _TURN | None,
        "stop": str | None,
        "paused": bool | None,
        "deadline_us": Time | None,
        "retry_us": Time | None,
        "fails": Count,
        "fence": Count,
        "interrupt": Seq | None,
        "redirect": Seq | None,
        "needs": shape(dict.fromkeys(("cost", "tokens", "compute_us"), Sum | None), since_us=Time)
        | None,
        "error": dict[str, Any],
        "dead": dict[str, Any],
        "requeued": bool | None,
        "deaths": shape(shared=Count, alone=Count, at_us=Time) | None,
    }
)
_REQUEST: Final = shape(
    {"deadline_us": Time | None, "otherwise": bool, "answer": Seq | None}, kind=str, seq=Count
)
_CHILD: Final = shape({"uid": str | None, "cascade": bool}, app=str, user=str, seq=Count)
_DELEGATION: Final = shape(
    {
        "uid": Id | None,
        "turn": Id,
        "ended": bool,
        "quiet": bool,
        "task_hash": str,
        "lent": shape(cost=Sum, tokens=Sum),
    },
    app=Id,
    user=Id,
    id=Id,
    depth=Annotated[int, msgspec.Meta(ge=0, le=DELEGATION_DEPTH_MAX)],
)


class _Loan(Struct, array_like=True):
    cost: Sum
    tokens: Sum
    child: dict[str, str | None] = {}


_BUDGET: Final = shape(
    {
        "cost": Sum | None,
        "tokens": Sum | None,
        "compute_us": Sum | None,
        "reserved": dict[str, tuple[Sum, Sum]],
        "lent": dict[str, _Loan],
        "gone": tuple[Sum, Sum] | None,
        "spawned": tuple[Sum, Sum] | None,
    }
)
_ENDING: Final = shape(
    {
        "undo": bool | None,
        "cascaded": bool | None,
        "span": str | None,
        "fails": Count,
        "retry_us": Time | None,
        "held": list[str],
    }
)
_FACTS: Final = shape(
    {
        "labels": Annotated[dict[str, str], msgspec.Meta(max_length=_LABELS_MAX)],
        "schema_version": str | None,
        "phase": phases.Phase,
        "standing": str | None,
        "durations": dict[str, Sum],
        "resumes": bool | None,
        "roused_us": Time | None,
        "archived_from": phases.Phase | None,
        "timeouts": shape({f"{n}_us": Span | None for n in _SPANS} | {"background": bool}) | None,
        "retention": shape({"events": Seq | None, "age_us": Count | None}) | None,
        "priority": Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)],
        "inputs": shape(pending=Seq, since_us=Time) | None,
        "timers": table(_TIMER, TIMERS_MAX),
        "run": _RUN | None,
        "requests": table(_REQUEST),
        "children": table(_CHILD, CHILDREN_MAX),
        "spawned": Annotated[int, msgspec.Meta(ge=0, le=SPAWNED_MAX)] | None,
        "delegation": _DELEGATION | None,
        "parent": shape(None, _KeyCheck, **_ORIGINAL, at=Count) | None,
        "agent": str | None,
        "environment": str | None,
        "setup": shape(
            {
                "resources": _ATTACHED,
                "vaults": _ATTACHED,
                "permissions": str | None,
                "limits": dict[str, str],
            }
        )
        | None,
        "tools": dict[str, dict[str, Any]],
        "degraded": dict[str, dict[str, Any]],
        "given": list[str],
        "usage": shape(
            dict.fromkeys(
                ("turns", "input", "output", "cache_read", "cost", "other", "compute_us"), Sum
            )
        )
        | None,
        "budget": _BUDGET | None,
        "outcome": shape({"verdict": outcomes.Verdict | None, "met": list[bool | None]}, seq=Seq)
        | None,
        "memory": table(shape(version=Seq, seq=Seq), names=memory.BufferName),
        "ending": _ENDING | None,
        "checkpoint": shape(number=Seq, at_us=Time) | None,
        "isolation": dict[str, Any],
        "field_policies": dict[str, dict[str, Any]],
        "departed": shape(
            {"from": str, "family": list[Any], "store": str}, to=str, epoch=Seq, at_us=Time
        )
        | None,
        "moves": shape({"lost": str}, epoch=Seq, node=str) | None,
    }
)


def check_document(facts: Facts) -> None:
    """Raise InvalidEvent unless every member of a head's document of facts has its form."""
    if facts:
        _convert(facts, _FACTS, "what follows from it")


def _convert(value: Any, form: type[Struct], what: str) -> None:
    try:
        msgspec.convert(value, form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidEvent(f"{what} has another form ({error})") from error
