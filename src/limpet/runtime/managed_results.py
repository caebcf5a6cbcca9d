"""The results of managed tools, as a model reads them."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class EventShown(TypedDict):
    """An event as a model reads it."""

    seq: int
    id: str
    type: str
    actor: str
    at: str | None
    data: Any
    wake_id: NotRequired[str]
    processed: NotRequired[bool]


class OutcomeShown(TypedDict):
    """The outcome that a session is to achieve, and the last verdict on it."""

    title: str
    verdict: str | None


class SessionShown(TypedDict):
    """A session in one line."""

    id: str
    app: str
    phase: str
    version: int
    pending: int
    stop_reason: str | None
    labels: dict[str, str]
    blocked_on: list[str]
    updated_at: str | None
    outcome: NotRequired[OutcomeShown]


class SessionsShown(TypedDict):
    """A page of sessions."""

    sessions: NotRequired[list[SessionShown]]
    cursor: NotRequired[str | None]
    children: NotRequired[list[SessionShown]]


class UsageShown(TypedDict):
    """The usage of a session."""

    turns: int
    tokens: int
    cost: float


class ParentShown(TypedDict):
    """The session that another works for."""

    id: str
    app: str


class SnapshotShown(SessionShown):
    """A session in full."""

    status: str
    state: dict[str, Any]
    usage: UsageShown
    remaining: float | None
    parent: ParentShown | None
    agent: str | None
    environment: str | None
    fingerprint: str


class EventsShown(TypedDict):
    """Events in order."""

    events: list[EventShown]


class SpanShown(TypedDict):
    """A part of a wake."""

    id: str
    parent: str | None
    kind: str
    name: str
    result: str | None


class TraceShown(TypedDict):
    """One wake, with its spans and events."""

    wake_id: str
    spans: list[SpanShown]
    events: list[EventShown]


class EndedShown(TypedDict):
    """A child that has ended, and what came of it."""

    id: str
    app: str
    title: str | None
    stop_reason: str | None
    summary: str | None
    output: Any


class ChildrenShown(TypedDict):
    """The children of a session at work, and those that have ended."""

    children: list[SessionShown]
    ended: NotRequired[list[EndedShown]]


class ChildRunShown(SessionShown):
    """A child after it was run."""

    cycles: int
    runs: list[str]
    ended: bool


class DelegatedShown(TypedDict):
    """A child that was created."""

    id: str
    app: str


class DocumentShown(TypedDict):
    """A version of a document."""

    name: str
    version: int
    value: Any


class EnvironmentShown(TypedDict):
    """The environment of a session."""

    environment: DocumentShown | None


class VaultsShown(TypedDict):
    """The names of secrets, by vault."""

    vaults: dict[str, list[str]]


class PermissionsShown(TypedDict):
    """The permission of each tool."""

    tools: dict[str, str]


class PermissionShown(TypedDict):
    """The permission of one tool."""

    tool: str
    permission: str


class ResourcesShown(TypedDict):
    """A resource that a session works on."""

    resources: list[DocumentShown]


class SetupShown(TypedDict):
    """The setup of a session."""

    agent: str | None
    environment: str | None
    permissions: str | None
    tools: dict[str, Any]
    resources: list[str]
    vaults: list[str]
    limits: dict[str, str]
    fingerprint: str


class ChangesShown(TypedDict):
    """The differences between two setups, a line each."""

    changes: list[str]


class BufferShown(TypedDict):
    """A buffer of a session."""

    name: str
    access: str
    version: int


class BuffersShown(TypedDict):
    """The buffers of a session."""

    stores: list[BufferShown]


class NoteShown(TypedDict):
    """A version of a buffer; version 0 if nothing was written."""

    target: str
    version: int
    value: NotRequired[Any]
    at: NotRequired[str | None]


class NotesShown(TypedDict):
    """Versions of a buffer."""

    versions: list[NoteShown]


class LearningsShown(TypedDict):
    """The learnings of an agent, and its curated memory."""

    learnings: list[dict[str, Any]]
    memory: str


class PromotedShown(TypedDict):
    """The version of an agent's memory after a promotion."""

    agent: str
    version: int


class GradeShown(TypedDict):
    """The progress of a session, and what it should achieve."""

    grade: str
    outcome: dict[str, Any] | None


class DefinedShown(TypedDict):
    """An outcome that was defined, and the event that did."""

    title: str
    seq: int
