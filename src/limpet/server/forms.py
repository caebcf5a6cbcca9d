"""The forms of answers: what the OpenAPI document says that a route of ours returns.

They describe what `session.json_forms` and the routes make; the suite compares every answer with
its form. The forms of the Managed Agents wire are in `managed.forms`.
"""

from __future__ import annotations

from typing import Any, Generic, NotRequired, TypedDict, TypeVar

T = TypeVar("T")


class PageForm(TypedDict, Generic[T]):
    """A page of a list: `page=next_page` leads to the next one."""

    data: list[T]
    next_page: str | None


class KeyForm(TypedDict):
    app: str
    user: str
    id: str


class EventForm(TypedDict):
    """An event of the log. `data` is null if its body cannot be read, and `damage` says why."""

    seq: int
    id: str
    type: str
    actor: str
    at: str | None
    data: Any
    ops: list[Any]
    cause: str | None
    invocation_id: str | None
    correlation_id: str | None
    wake_id: str | None
    processed: int | None  # the seq of the event that says so
    processed_at: str | None
    link: str
    partial: bool
    attempt: int
    repeated: bool
    damage: str | None
    removed: bool
    brief: NotRequired[bool]  # with ?brief=true: texts were cut


class HeadForm(TypedDict):
    """The head of a session."""

    session_id: str
    session: KeyForm
    uid: str
    version: int
    phase: str | None
    status: str
    ready: str  # leased, due, blocked, dead, held or idle
    link: str
    created_at: str | None
    updated_at: str | None
    active_at: str | None
    deleted_at: str | None
    labels: dict[str, str]
    pending: int
    timers: dict[str, Any]
    priority: int
    schema_version: str | None
    due_at: str | None
    deadline_at: str | None
    worker: str | None
    fence: int
    lease_until: str | None


class RequestForm(TypedDict):
    """A request that waits for an answer."""

    id: str
    kind: str
    name: str
    input: Any
    deadline: str | None


class ProposalForm(TypedDict):
    """A proposal of a session for a shared memory, and how it was decided."""

    id: str
    to: str
    text: str
    session: KeyForm
    confidence: float
    at: str
    actor: str
    status: str
    reason: str | None
    decided_by: str | None


class OverviewForm(HeadForm):
    """One session: where it stands, what it waits for, what it used."""

    stop_reason: str | None
    requests: list[RequestForm]
    usage: dict[str, Any]
    budget: dict[str, Any] | None
    failure: dict[str, Any] | None
    parent: KeyForm | None
    damaged: list[int]


class StateForm(TypedDict):
    """A state: of now with its version, or at the place that was asked for."""

    state: dict[str, Any]
    version: NotRequired[int]
    at: NotRequired[str]


class ChangeForm(TypedDict):
    path: list[str | int]
    kind: str
    old: Any
    new: Any


class DiffForm(TypedDict):
    """`shared`: of two sessions, the last event of the history that they share; 0: none."""

    changes: list[ChangeForm]
    shared: NotRequired[int]


class BlameForm(TypedDict):
    """One change of a value."""

    event: EventForm
    actor: str
    op: Any


class BisectForm(TypedDict):
    """The first event after which a condition does not hold; null if it holds now."""

    event: EventForm | None


class RewindForm(TypedDict):
    """The event of a rewind, null if there was nothing to do; and names that others changed too."""

    event: EventForm | None
    left: list[str]


class CheckpointRefForm(TypedDict):
    key: KeyForm
    number: int
    seq: int
    checksum: str


class CheckpointForm(TypedDict):
    ref: CheckpointRefForm
    kind: str
    trigger: str
    at: str
    size: int


class ActivationForm(TypedDict):
    """One wake of a session: its reason, its times and its outcome."""

    wake_id: str
    turn_id: str
    attempt: int
    why: str
    worker: str
    fence: int
    claimed_us: int
    started_us: int
    inputs: list[int]
    timers: list[str]
    answers: list[int]
    ended_us: int | None
    result: str | None
    error: str | None


class SpanForm(TypedDict):
    """Something that took time."""

    id: str
    parent: str | None
    kind: str
    name: str
    started_us: int
    ended_us: int | None
    result: str | None
    error: str | None
    model: str | None
    usage: dict[str, int] | None
    cost: float | None


class TraceForm(TypedDict):
    """One wake as spans, with its events."""

    wake_id: str
    turn_id: str
    attempt: int
    worker: str
    spans: list[SpanForm]
    events: list[EventForm]
    activation: ActivationForm


class MergeForm(TypedDict):
    event: EventForm | None
    session: dict[str, Any]


class PhaseForm(TypedDict):
    """The phase after a step, and the session in the form of the wire."""

    phase: str
    session: dict[str, Any]


class MergedFromForm(TypedDict):
    session: KeyForm
    at: int
    seq: int


class LineageForm(TypedDict):
    """A session among its forks and what it is a fork of."""

    session: KeyForm
    at: int
    parent: LineageForm | None
    forks: list[LineageForm]
    merges: list[MergedFromForm]


class RelationForm(TypedDict):
    """A relation of a session, and what it may read of the other by it."""

    id: str
    session_id: str
    session: KeyForm
    kind: str
    direction: str
    at: str
    actor: str
    outputs: bool
    fields: list[str]
    blobs: list[Any]


class CitedForm(TypedDict):
    """The output, fields and blobs of another session that a relation lets one read."""

    id: str
    kind: str
    session: KeyForm
    output: Any
    values: dict[str, Any]
    blobs: list[Any]
    source_version: int
    at: str


class VisitForm(TypedDict):
    """A node that ran, and the state after it."""

    node: str
    seq: int
    state: dict[str, Any]


class GraphRunForm(TypedDict):
    """The run of a graph in the newest turn that has one; without a graph, `path` is empty."""

    graph: str | None
    entry: str | None
    nodes: list[tuple[str, str]]  # name and kind
    edges: list[tuple[str, str | None, bool]]  # from, to (null: the end), and if it is a choice
    path: list[VisitForm]
    current: str | None  # the node that runs next; null: it has ended
    stop_reason: str | None  # why the session stopped; null: it runs


class NodeForm(TypedDict):
    session: KeyForm
    phase: str | None
    forked_at: int | None


class EdgeForm(TypedDict):
    source: KeyForm
    target: KeyForm
    kind: str


class GraphForm(TypedDict):
    """The sessions connected with one, nearest first."""

    nodes: list[NodeForm]
    edges: list[EdgeForm]
    truncated: bool


class KinForm(TypedDict):
    """A session with all that were delegated from it."""

    session: KeyForm
    title: str | None
    stop_reason: str | None
    summary: str | None
    output: Any
    gone: bool
    children: list[KinForm]


class FindingForm(TypedDict):
    where: str
    problem: str
    session: KeyForm | None
    seq: int | None


class ReportForm(TypedDict):
    """The result of a verification."""

    ok: bool
    sessions: int
    internal: NotRequired[int]
    events: int
    findings: list[FindingForm]


class MessageForm(TypedDict):
    """One message of the conversation, and the seq of the event that recorded it."""

    role: str
    parts: list[dict[str, Any]]
    seq: int
    at: str | None
    actor: str
    synthetic: bool


class ImportForm(TypedDict):
    session_id: str
    session: KeyForm


class WaitingForm(TypedDict):
    """A session that waits for the answer to a request, and since when."""

    session_id: str
    key: KeyForm
    request: RequestForm
    since: str
    deadline: str | None


class AuditForm(TypedDict):
    at: str
    principal: str
    action: str
    resource: str
    allowed: bool
    code: str | None
    policy: str | None
    address: str | None
    repeats: int
    seq: int
    via: str | None


class StatusForm(TypedDict):
    """The number of sessions of each kind."""

    at: str
    sessions: int
    by_status: dict[str, int]
    by_phase: dict[str, int]
    pending: int
    due: int
    leased: int
    blocked: int
    dead: int
    held: int
    complete: bool


class PrincipalForm(TypedDict):
    """The caller. `app` and `user` are null if the request names them."""

    id: str
    role: str
    app: str | None
    user: str | None
    actions: list[str]  # that the role grants; a policy may refuse some


class PlotForm(TypedDict):
    """One series to plot: what it is, and its points, the oldest first."""

    title: str
    unit: str
    points: list[PointForm]


class PointForm(TypedDict):
    name: str
    value: float | None
    shown: str  # the value with its unit


class TableForm(TypedDict):
    """The largest groups of one dimension: headings, and a row of texts for each group."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class NoteForm(TypedDict):
    """Something to look at: an anomaly, a regression or advice."""

    text: str
    bad: bool
    sessions: list[KeyForm]  # behind it, the worst first; none for advice


class DashboardsForm(TypedDict):
    """An operator's overview. `complete` is false while older events are still being read."""

    sessions: int
    complete: bool
    notes: list[NoteForm]
    dashboards: list[PlotForm]
    tables: list[TableForm]


class TokenForm(TypedDict):
    """A session token, which is not shown again."""

    token: str
    expires_at: str


class NewTokenForm(TypedDict):
    token: str


class RevokedTokenForm(TypedDict):
    revoked: bool
