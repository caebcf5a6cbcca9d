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
from limpet.exports import lazy_exports

try:
    import pydantic as _pydantic  # noqa: F401  # asked for first, so that the error names the extra
except ModuleNotFoundError as error:
    raise ExtraMissing("pydantic", "state") from error

if TYPE_CHECKING:
    from limpet.graph.builder import GraphBuilder as GraphBuilder
    from limpet.graph.checkpoint import (
        Checkpointer as Checkpointer,
        CheckpointFilter as CheckpointFilter,
        CheckpointRecord as CheckpointRecord,
        CheckpointSummary as CheckpointSummary,
        Frame as Frame,
        InMemoryCheckpointer as InMemoryCheckpointer,
        JointCheckpointer as JointCheckpointer,
        LeasingCheckpointer as LeasingCheckpointer,
        Position as Position,
        Progress as Progress,
        ProgressSlot as ProgressSlot,
    )
    from limpet.graph.context import (
        CompileWarning as CompileWarning,
        IdentityFilter as IdentityFilter,
        Suspended as Suspended,
        current_correlation_id as current_correlation_id,
        current_invocation_id as current_invocation_id,
        current_metadata as current_metadata,
        current_node as current_node,
        current_session_id as current_session_id,
        save_session as save_session,
        suspend as suspend,
    )
    from limpet.graph.engine.compiled import CompiledGraph as CompiledGraph
    from limpet.graph.engine.loop import END as END
    from limpet.graph.engine.parallel import Branch as Branch
    from limpet.graph.harness import (
        ChatHarness as ChatHarness,
        ChatReply as ChatReply,
        Harness as Harness,
        HarnessOutcome as HarnessOutcome,
    )
    from limpet.graph.middleware import (
        FailureIsolationMiddleware as FailureIsolationMiddleware,
        RetryMiddleware as RetryMiddleware,
        Timing as Timing,
        TimingMiddleware as TimingMiddleware,
        full_jitter as full_jitter,
    )
    from limpet.graph.observers import (
        Drained as Drained,
        GraphSpan as GraphSpan,
        NodeEvent as NodeEvent,
        SuspensionDescriptor as SuspensionDescriptor,
        Tracer as Tracer,
    )
    from limpet.graph.otel import (
        IdentitySpanProcessor as IdentitySpanProcessor,
        OpenTelemetryTracer as OpenTelemetryTracer,
    )
    from limpet.graph.sessions import (
        InMemorySessionStore as InMemorySessionStore,
        RecordListing as RecordListing,
        SessionFilter as SessionFilter,
        SessionLocks as SessionLocks,
        SessionRecord as SessionRecord,
        SessionStore as SessionStore,
        SessionSummary as SessionSummary,
    )
    from limpet.graph.state import (
        DeclaredSameName as DeclaredSameName,
        ExplicitMapping as ExplicitMapping,
        FieldNameMatching as FieldNameMatching,
        Message as Message,
        Projection as Projection,
        State as State,
    )
    from limpet.graph.stores.checkpoints import (
        LimpetCheckpointer as LimpetCheckpointer,
        PostgresCheckpointer as PostgresCheckpointer,
        SQLiteCheckpointer as SQLiteCheckpointer,
    )
    from limpet.graph.stores.sessions import (
        LimpetSessionStore as LimpetSessionStore,
        PostgresSessionStore as PostgresSessionStore,
        SQLiteSessionStore as SQLiteSessionStore,
    )
    from limpet.graph.turn import (
        GraphHarness as GraphHarness,
        approve as approve,
        as_harness as as_harness,
        effect as effect,
        model as model,
        step as step,
        tool as tool,
    )
    from limpet.model.state.reducers import (
        Reducer as Reducer,
        Replace as Replace,
        append as append,
        bounded_append as bounded_append,
        concat_flatten as concat_flatten,
        dedupe_append as dedupe_append,
        last_write_wins as last_write_wins,
        merge as merge,
        merge_all as merge_all,
        merge_by_key as merge_by_key,
    )

# Every public name, by the module that it is loaded from at its first use.
_HOMES = {
    "limpet.graph.builder": "GraphBuilder",
    "limpet.graph.checkpoint": (
        "Checkpointer CheckpointFilter CheckpointRecord CheckpointSummary Frame "
        "InMemoryCheckpointer JointCheckpointer LeasingCheckpointer Position Progress "
        "ProgressSlot"
    ),
    "limpet.graph.context": (
        "CompileWarning IdentityFilter Suspended current_correlation_id "
        "current_invocation_id current_metadata current_node current_session_id "
        "save_session suspend"
    ),
    "limpet.graph.engine.compiled": "CompiledGraph",
    "limpet.graph.engine.loop": "END",
    "limpet.graph.engine.parallel": "Branch",
    "limpet.graph.harness": "ChatHarness ChatReply Harness HarnessOutcome",
    "limpet.graph.middleware": (
        "FailureIsolationMiddleware RetryMiddleware Timing TimingMiddleware full_jitter"
    ),
    "limpet.graph.observers": "Drained GraphSpan NodeEvent SuspensionDescriptor Tracer",
    "limpet.graph.state": (
        "DeclaredSameName ExplicitMapping FieldNameMatching Message Projection State"
    ),
    "limpet.graph.sessions": (
        "InMemorySessionStore RecordListing SessionFilter SessionLocks SessionRecord "
        "SessionStore SessionSummary"
    ),
    "limpet.graph.stores.checkpoints": "LimpetCheckpointer PostgresCheckpointer SQLiteCheckpointer",
    "limpet.graph.stores.sessions": "LimpetSessionStore PostgresSessionStore SQLiteSessionStore",
    "limpet.graph.turn": "GraphHarness approve as_harness effect model step tool",
    "limpet.model.state.reducers": (
        "Reducer Replace append bounded_append concat_flatten dedupe_append last_write_wins "
        "merge merge_all merge_by_key"
    ),
}

if not TYPE_CHECKING:  # a type checker that saw it would believe in any name
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        _HOMES,
        unlisted={"limpet.graph.otel": "IdentitySpanProcessor OpenTelemetryTracer"},
    )
