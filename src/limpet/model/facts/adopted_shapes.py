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
from limpet.model.facts.running import endings, memory, runs, setup
from limpet.model.facts.shapes import Id, Time, check_shape
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
    TIMERS_MAX,
)

# Beyond what the head reads: stored numbers may be as large as a column holds.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Seq: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
Sum: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # two of them still fit
Span: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=timeouts.SPAN_US_MAX)]
_LABELS_MAX: Final = LABELS_MAX + 2 + REQUESTS_MAX  # and our own: $dead, $task, $asked:…
Hex: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class _Form(msgspec.Struct, frozen=True):
    """A record that is only looked at."""


# --- the data of events that no fold looks into -------------------------------------------------


class _Original(_Form, frozen=True):
    app: Id
    user: Id
    id: Id
    uid: Id

    def __post_init__(self) -> None:
        Key(self.app, self.user, self.id)


class _SpanForm(_Form, frozen=True):
    span_id: Id
    kind: str
    name: str


class _Wake(_SpanForm, frozen=True):
    worker: str
    fence: Count
    claimed_us: Time


class _SpanEnd(_SpanForm, frozen=True):
    result: str
    error: str | None = None


class _StepForm(_Form, frozen=True):
    name: str
    occurrence: Count
    args_hash: str
    result: Any


class _Effect(_Form, frozen=True):
    name: str
    occurrence: Count
    args_hash: str
    key: str


class _Intended(_Effect, frozen=True):
    tries: Count
    span_id: str
    compensate: dict[str, Any] | None = None


class _Performed(_Effect, frozen=True):
    result: Any


class _NotPerformed(_Effect, frozen=True):
    error: str


class _Undoing(_Form, frozen=True):
    of: str
    name: str
    key: str


class _Cascaded(_Form, frozen=True):
    children: list[str]


class _BufferForm(_Form, frozen=True):
    value: Any


class _CheckpointData(_Form, frozen=True):
    seq: Seq
    checksum: Hex
    full: bool
    trigger: str
    size: Count


class _Merged(_Form, frozen=True):
    other: _Original
    at: Count
    base: dict[str, Any]
    checksum: str


class _ForkForm(_Form, frozen=True):
    base: Hex


class _Put(_Form, frozen=True):
    value: Any
    checkpoint: Count | None = None


class _Removed(_Form, frozen=True):
    checkpoint: Count | None = None


_DATA: Final[Mapping[str, type[_Form]]] = {
    creation.FORKED: _ForkForm,
    runs.SPAN_STARTED: _SpanForm,
    runs.SPAN_COMPLETED: _SpanEnd,
    runs.STEP: _StepForm,
    runs.INTENDED: _Intended,
    runs.SUCCEEDED: _Performed,
    runs.FAILED: _NotPerformed,
    runs.UNKNOWN: _NotPerformed,
    endings.COMPENSATING: _Undoing,
    endings.COMPENSATED: _Undoing,
    endings.NOT_COMPENSATED: _Undoing,
    endings.MAYBE_COMPENSATED: _Undoing,
    endings.CASCADED: _Cascaded,
    memory.WRITTEN: _BufferForm,
    checkpoints.RECORDED: _CheckpointData,
    history.MERGED: _Merged,
    documents.PUT: _Put,
    documents.DELETED: _Removed,
}
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
    if type == runs.SPAN_STARTED and data.get("kind") == data.get("name") == "wake":
        form = _Wake
    if form is not None:
        _convert(data, form, f"the data of its {type}")
    if type in (labels.LABELED, *_STARTS):
        for name, value in data.get("labels", {}).items():
            if unfit(name, NAME_CHARS_MAX) or name.startswith("$"):
                raise InvalidEvent("it has a label whose name is not one")
            if value is not None and unfit(value, LABEL_VALUE_CHARS_MAX):
                raise InvalidEvent(f"the label {name!r} has a value that is not one")


# --- the document of facts ------------------------------------------------------------------------


class _TimeoutsForm(_Form, frozen=True):
    idle_us: Span | None = None
    absolute_us: Span | None = None
    grace_us: Span | None = None
    archive_us: Span | None = None
    expiry_us: Span | None = None
    idle_max_us: Span | None = None
    background: bool = False


class _RetentionForm(_Form, frozen=True):
    events: Seq | None = None
    age_us: Count | None = None


class _SetupForm(_Form, frozen=True):
    resources: Annotated[list[str], msgspec.Meta(max_length=setup.ATTACHED_MAX)] = []
    vaults: Annotated[list[str], msgspec.Meta(max_length=setup.ATTACHED_MAX)] = []
    permissions: str | None = None
    limits: dict[str, str] = {}


class _Inputs(_Form, frozen=True):
    pending: Seq
    since_us: Time


class _TimerForm(_Form, frozen=True):
    at_us: Time
    kind: timers.TimerKind
    seq: Count
    reason: str = ""
    priority: timers.RevisitPriority = "normal"


class _TurnForm(_Form, frozen=True, rename={"from_": "from"}):
    id: Id
    from_: Count
    inputs: list[Seq]
    timers: list[str]
    attempt: Count
    span: str | None
    since_us: Time


class _NeedsForm(_Form, frozen=True, kw_only=True):
    since_us: Time
    cost: Sum | None = None
    tokens: Sum | None = None


class _RunForm(_Form, frozen=True):
    turn: _TurnForm | None = None
    stop: str | None = None
    paused: bool | None = None
    deadline_us: Time | None = None
    retry_us: Time | None = None
    fails: Count = 0
    fence: Count = 0
    interrupt: Seq | None = None
    redirect: Seq | None = None
    needs: _NeedsForm | None = None
    error: dict[str, Any] = {}
    dead: dict[str, Any] = {}
    requeued: bool | None = None


class _RequestForm(_Form, frozen=True):
    kind: str
    seq: Count
    deadline_us: Time | None = None
    otherwise: bool = False
    answer: Seq | None = None


class _ChildForm(_Form, frozen=True):
    app: str
    user: str
    seq: Count
    uid: str | None = None
    cascade: bool = True


class _DelegationForm(_Form, frozen=True, kw_only=True):
    app: Id
    user: Id
    id: Id
    uid: Id | None = None
    turn: Id
    depth: Annotated[int, msgspec.Meta(ge=0, le=DELEGATION_DEPTH_MAX)]
    ended: bool = False
    quiet: bool = False


class _ParentForm(_Original, frozen=True):
    at: Count


class _UsageForm(_Form, frozen=True):
    turns: Sum = 0
    input: Sum = 0
    output: Sum = 0
    cache_read: Sum = 0
    cost: Sum = 0
    other: Sum = 0


class _LoanForm(_Form, frozen=True, array_like=True):
    cost: Sum
    tokens: Sum
    child: dict[str, str | None] = {}


class _BudgetForm(_Form, frozen=True):
    cost: Sum | None = None
    tokens: Sum | None = None
    reserved: dict[str, tuple[Sum, Sum]] = {}
    lent: dict[str, _LoanForm] = {}
    gone: tuple[Sum, Sum] | None = None


class _OutcomeForm(_Form, frozen=True):
    seq: Seq
    verdict: outcomes.Verdict | None = None
    met: list[bool | None] = []


class _Buffer(_Form, frozen=True):
    version: Seq
    seq: Seq


class _EndingForm(_Form, frozen=True):
    undo: bool | None = None
    cascaded: bool | None = None
    span: str | None = None
    fails: Count = 0
    retry_us: Time | None = None
    held: list[str] = []


class _CheckpointForm(_Form, frozen=True):
    number: Seq
    at_us: Time


class _FactsForm(_Form, frozen=True):
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=_LABELS_MAX)] = {}
    schema_version: str | None = None
    phase: phases.Phase = "active"
    standing: str | None = None
    durations: dict[str, Sum] = {}
    resumes: bool | None = None
    roused_us: Time | None = None
    archived_from: phases.Phase | None = None
    timeouts: _TimeoutsForm | None = None
    retention: _RetentionForm | None = None
    priority: Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0
    inputs: _Inputs | None = None
    timers: Annotated[dict[str, _TimerForm], msgspec.Meta(max_length=TIMERS_MAX)] = {}
    run: _RunForm | None = None
    requests: dict[str, _RequestForm] = {}
    children: Annotated[dict[str, _ChildForm], msgspec.Meta(max_length=CHILDREN_MAX)] = {}
    delegation: _DelegationForm | None = None
    parent: _ParentForm | None = None
    agent: str | None = None
    environment: str | None = None
    setup: _SetupForm | None = None
    tools: dict[str, dict[str, Any]] = {}
    degraded: dict[str, dict[str, Any]] = {}
    given: list[str] = []
    usage: _UsageForm | None = None
    budget: _BudgetForm | None = None
    outcome: _OutcomeForm | None = None
    memory: dict[memory.BufferName, _Buffer] = {}
    ending: _EndingForm | None = None
    checkpoint: _CheckpointForm | None = None
    isolation: dict[str, Any] = {}
    field_policies: dict[str, dict[str, Any]] = {}


def check_document(facts: Facts) -> None:
    """Raise InvalidEvent unless every member of a head's document of facts has its form."""
    if facts:
        _convert(facts, _FactsForm, "what follows from it")


def _convert(value: Any, form: type[_Form], what: str) -> None:
    try:
        msgspec.convert(value, form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidEvent(f"{what} has another form ({error})") from error
