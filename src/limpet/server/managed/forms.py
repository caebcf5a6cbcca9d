"""The forms of answers on the Managed Agents wire, for the OpenAPI document.

Objects that a client sent, such as tools and configurations, come back as they are: they are open.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class DeletedForm(TypedDict):
    """A removed object, with a type that ends in `_deleted`."""

    id: str
    type: str


class AgentForm(TypedDict):
    id: str
    type: str
    version: int
    name: str
    description: str | None
    model: dict[str, Any]
    system: str | None
    tools: list[dict[str, Any]]
    mcp_servers: list[dict[str, Any]]
    skills: list[dict[str, Any]]
    metadata: dict[str, str]
    multiagent: Any
    created_at: str
    updated_at: str
    archived_at: str | None


class EnvironmentForm(TypedDict):
    id: str
    type: str
    name: str
    description: str | None
    config: dict[str, Any]
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


class StatsForm(TypedDict):
    duration_seconds: float
    active_seconds: NotRequired[float]


class UsageForm(TypedDict):
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation: dict[str, int]
    list_cost: dict[str, str]


class WireSessionForm(TypedDict):
    """A session: idle, running, rescheduling or terminated."""

    id: str
    type: str
    status: str
    agent: dict[str, Any]
    environment_id: str
    title: str | None
    metadata: dict[str, str]
    resources: list[dict[str, Any]]
    vault_ids: list[str]
    budget: dict[str, Any] | None
    outcome_evaluations: list[dict[str, Any]]
    stats: StatsForm
    usage: UsageForm
    created_at: str
    updated_at: str
    archived_at: str | None
    deployment_id: None


class SessionPageForm(TypedDict):
    data: list[WireSessionForm]
    next_page: str | None
    prev_page: str | None


class WireEventForm(TypedDict):
    """An event with the members of its type; `processed_at` is null while an input waits."""

    id: str
    type: str
    processed_at: str | None


class SentForm(TypedDict):
    data: list[WireEventForm]


class ResourceForm(TypedDict):
    id: str
    type: str
    created_at: str
    updated_at: str


class ThreadForm(TypedDict):
    id: str
    type: str
    session_id: str
    parent_thread_id: str | None
    status: str
    agent: dict[str, Any]
    stats: StatsForm
    usage: UsageForm
    created_at: str
    updated_at: str
    archived_at: str | None


class VaultForm(TypedDict):
    id: str
    type: str
    display_name: str
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


class CredentialForm(TypedDict):
    """A credential without its secrets."""

    id: str
    type: str
    vault_id: str
    auth: dict[str, Any]
    display_name: str | None
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


class FileForm(TypedDict):
    id: str
    type: str
    filename: str
    mime_type: str
    size_bytes: int
    downloadable: bool
    created_at: str
    expires_at: str | None


class FilePageForm(TypedDict):
    data: list[FileForm]
    next_page: str | None
    has_more: bool
    first_id: NotRequired[str]
    last_id: NotRequired[str]


class MemoryStoreForm(TypedDict):
    id: str
    type: str
    name: str
    description: str
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None


class MemoryForm(TypedDict):
    """A memory; in a list its content is null unless view=full."""

    id: str
    type: str
    memory_store_id: str
    memory_version_id: str
    path: str
    content: str | None
    content_sha256: str
    content_size_bytes: int
    created_at: str
    updated_at: str


class MemoryItemForm(TypedDict):
    """A memory, or a folder of them (`memory_prefix`)."""

    type: str
    path: str


class MemoryVersionForm(TypedDict):
    """A version; of a deletion there is no content, of a redacted one no path either."""

    id: str
    type: str
    memory_id: str
    memory_store_id: str
    operation: str
    created_at: str
    created_by: dict[str, Any]
    path: NotRequired[str]
    content: NotRequired[str]
    content_sha256: NotRequired[str]
    content_size_bytes: NotRequired[int]
    redacted_at: NotRequired[str]
    redacted_by: NotRequired[dict[str, Any]]


class WorkForm(TypedDict):
    id: str
    type: str
    environment_id: str
    data: dict[str, Any]
    state: str
    metadata: dict[str, str]
    created_at: str
    acknowledged_at: str | None
    started_at: str | None
    latest_heartbeat_at: str | None
    stop_requested_at: str | None
    stopped_at: str | None


class HeartbeatForm(TypedDict):
    """`last_heartbeat` is empty if there was none."""

    type: str
    last_heartbeat: str
    lease_extended: bool
    state: str
    ttl_seconds: int


class WorkStatsForm(TypedDict):
    type: str
    depth: int
    pending: int
    oldest_queued_at: str | None
    workers_polling: int | None


class ModelForm(TypedDict):
    id: str
    type: str
    display_name: str
    created_at: str


class SkillForm(TypedDict):
    id: str
    type: str
    display_name: str
    source: dict[str, Any]
    latest_version_id: str
    created_at: str
    updated_at: str


class CatalogPageForm(TypedDict):
    """Models or skills: those that agents name."""

    data: list[dict[str, Any]]
    has_more: bool
    next_page: str | None
    first_id: NotRequired[str]
    last_id: NotRequired[str]
