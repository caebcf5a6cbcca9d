"""The graph engine: nodes over typed state, with sessions, checkpoints, resume and suspension.

    graph = (
        GraphBuilder(Chat)
        .add_node("respond", respond)
        .add_edge("respond", END)
        .set_entry("respond")
        .with_session_store(SQLiteSessionStore("chat.db"), session_state=Chat)
        .compile()
    )
    final = await graph.invoke(Chat(messages=[…]), session_id="ada")

It needs pydantic: the extra `state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.errors import ExtraMissing

try:
    import pydantic as _pydantic  # noqa: F401  # asked for first, so that the error names the extra
except ModuleNotFoundError as error:
    raise ExtraMissing("pydantic", "state") from error

from limpet.graph.builder import GraphBuilder
from limpet.graph.checkpoint import (
    Checkpointer,
    CheckpointFilter,
    CheckpointRecord,
    CheckpointSummary,
    Frame,
    InMemoryCheckpointer,
    JointCheckpointer,
    LeasingCheckpointer,
    Position,
    Progress,
    ProgressSlot,
)
from limpet.graph.context import (
    IdentityFilter,
    Suspended,
    current_correlation_id,
    current_invocation_id,
    current_metadata,
    current_node,
    current_session_id,
    save_session,
    suspend,
)
from limpet.graph.engine.compiled import CompiledGraph
from limpet.graph.engine.loop import END
from limpet.graph.engine.parallel import Branch
from limpet.graph.harness import ChatHarness, ChatReply, Harness, HarnessOutcome
from limpet.graph.middleware import (
    FailureIsolationMiddleware,
    RetryMiddleware,
    Timing,
    TimingMiddleware,
    full_jitter,
)
from limpet.graph.observers import Drained, GraphSpan, NodeEvent, SuspensionDescriptor, Tracer
from limpet.graph.plan import CompileWarning
from limpet.graph.projections import (
    DeclaredSameName,
    ExplicitMapping,
    FieldNameMatching,
    Projection,
)
from limpet.graph.sessions import (
    InMemorySessionStore,
    RecordListing,
    SessionFilter,
    SessionLocks,
    SessionRecord,
    SessionStore,
    SessionSummary,
)
from limpet.graph.state import Message, State
from limpet.model.state.reducers import (
    Reducer,
    Replace,
    append,
    bounded_append,
    concat_flatten,
    dedupe_append,
    last_write_wins,
    merge,
    merge_all,
    merge_by_key,
)

if TYPE_CHECKING:
    from limpet.graph.otel import IdentitySpanProcessor as IdentitySpanProcessor
    from limpet.graph.otel import OpenTelemetryTracer as OpenTelemetryTracer
    from limpet.graph.stores.checkpoints import (
        LimpetCheckpointer,
        PostgresCheckpointer,
        SQLiteCheckpointer,
    )
    from limpet.graph.stores.sessions import (
        LimpetSessionStore,
        PostgresSessionStore,
        SQLiteSessionStore,
    )

__all__ = [
    "END",
    "Branch",
    "ChatHarness",
    "ChatReply",
    "CheckpointFilter",
    "CheckpointRecord",
    "CheckpointSummary",
    "Checkpointer",
    "CompileWarning",
    "CompiledGraph",
    "DeclaredSameName",
    "Drained",
    "ExplicitMapping",
    "FailureIsolationMiddleware",
    "FieldNameMatching",
    "Frame",
    "GraphBuilder",
    "GraphSpan",
    "Harness",
    "HarnessOutcome",
    "IdentityFilter",
    "InMemoryCheckpointer",
    "InMemorySessionStore",
    "JointCheckpointer",
    "LeasingCheckpointer",
    "LimpetCheckpointer",
    "LimpetSessionStore",
    "Message",
    "NodeEvent",
    "Position",
    "PostgresCheckpointer",
    "PostgresSessionStore",
    "Progress",
    "ProgressSlot",
    "Projection",
    "RecordListing",
    "Reducer",
    "Replace",
    "RetryMiddleware",
    "SQLiteCheckpointer",
    "SQLiteSessionStore",
    "SessionFilter",
    "SessionLocks",
    "SessionRecord",
    "SessionStore",
    "SessionSummary",
    "State",
    "Suspended",
    "SuspensionDescriptor",
    "Timing",
    "TimingMiddleware",
    "Tracer",
    "append",
    "bounded_append",
    "concat_flatten",
    "current_correlation_id",
    "current_invocation_id",
    "current_metadata",
    "current_node",
    "current_session_id",
    "dedupe_append",
    "full_jitter",
    "last_write_wins",
    "merge",
    "merge_all",
    "merge_by_key",
    "save_session",
    "suspend",
]

# Loaded when first asked for: they need a store, or packages of another extra.
_LATER = {
    "IdentitySpanProcessor": "otel",
    "OpenTelemetryTracer": "otel",
    "LimpetCheckpointer": "stores.checkpoints",
    "PostgresCheckpointer": "stores.checkpoints",
    "SQLiteCheckpointer": "stores.checkpoints",
    "LimpetSessionStore": "stores.sessions",
    "PostgresSessionStore": "stores.sessions",
    "SQLiteSessionStore": "stores.sessions",
}

if not TYPE_CHECKING:  # a type checker that saw it would believe in any name

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
        return value
