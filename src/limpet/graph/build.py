"""Building: the declaration of a graph, compiled once into steps.

    graph = (
        GraphBuilder(Chat)
        .add_node("plan", plan)
        .add_node("respond", respond)
        .add_edge("plan", "respond")
        .add_edge("respond", END)
        .set_entry("plan")
        .compile()
    )

Declaring collects; `compile` checks everything and raises the first error it finds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, Self, TypeVar

from limpet.errors import GraphInvalid
from limpet.graph.binding import Conflicts, OnLoad, SessionConfig
from limpet.graph.checkpoint import Checkpointer
from limpet.graph.engine import make
from limpet.graph.engine.check import round_trips
from limpet.graph.engine.compiled import CompiledGraph
from limpet.graph.engine.make import (
    Branch,
    Edge,
    End,
    ErrorPolicy,
    FanOut,
    Middleware,
    OnEmpty,
    ResumeInstances,
)
from limpet.graph.observe import Tracer
from limpet.graph.project import Projection, projection_of
from limpet.graph.sessions import SessionStore
from limpet.graph.state import State, plan_of
from limpet.model import GRAPH_STEPS_MAX, described
from limpet.model.state.labels import LabelRegistry

S = TypeVar("S", bound=State)
_LOG: Final = logging.getLogger("limpet.graph")


class GraphBuilder(Generic[S]):
    """Declares a graph over a State class. Every verb returns the builder."""

    def __init__(self, state_type: type[S], *, name: str | None = None) -> None:
        self._plan = plan_of(state_type)
        self._name = name or state_type.__name__
        self._nodes: dict[str, tuple[tuple[Middleware, ...], make.Maker]] = {}
        self._edges: list[Edge] = []
        self._entry: str | None = None
        self._middleware: list[Middleware] = []
        self._checkpointer: Checkpointer | None = None
        self._tracer: Tracer | None = None
        self._session: dict[str, Any] | None = None
        about = f"migrations of {self._name}"
        self._migrations = LabelRegistry(about, lifecycle="checkpoint")
        self._session_migrations = LabelRegistry(about, lifecycle="session")

    # --- nodes ----------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        fn: Callable[[S], Awaitable[Mapping[str, Any]]],
        *,
        middleware: Iterable[Middleware] = (),
    ) -> Self:
        """Add a node: an async function of the state that returns a partial update."""
        return self._add(name, middleware, make.function(name, fn))

    def add_subgraph_node(
        self,
        name: str,
        compiled: CompiledGraph[Any],
        projection: Projection | None = None,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> Self:
        """Add a node that runs another graph, and say which fields go in and out.

        By default nothing goes in and fields of the same name come out.
        """
        made = make.subgraph(name, self._plan, compiled, projection, inputs, outputs)
        return self._add(name, middleware, made)

    def add_fan_out_node(
        self,
        name: str,
        *,
        subgraph: CompiledGraph[Any],
        collect_field: str,
        target_field: str,
        items_field: str | None = None,
        item_field: str | None = None,
        count: int | Callable[[S], int] | None = None,
        concurrency: int | Callable[[S], int] | None = 10,
        error_policy: ErrorPolicy = "fail_fast",
        on_empty: OnEmpty = "raise",
        inputs: Mapping[str, str] | None = None,
        extra_outputs: Mapping[str, str] | None = None,
        errors_field: str | None = None,
        count_field: str | None = None,
        instance_middleware: Iterable[Middleware] = (),
        resume_instances: ResumeInstances = "continue",
        middleware: Iterable[Middleware] = (),
    ) -> Self:
        """Add a node that runs a subgraph for each item of a list, or `count` times.

        Each instance gets its item in `item_field`; its `collect_field` is gathered, in the order
        of the items, into `target_field`. An instance that had begun when its run stopped goes on
        at its own node; with resume_instances="restart" it starts again at its entry.
        """
        how = FanOut(
            collect_field=collect_field,
            target_field=target_field,
            items_field=items_field,
            item_field=item_field,
            count=count,
            concurrency=concurrency,
            error_policy=error_policy,
            on_empty=on_empty,
            errors_field=errors_field,
            count_field=count_field,
            extra_outputs=dict(extra_outputs or {}),
            instance_middleware=make.layers_of(name, instance_middleware),
            resume_instances=resume_instances,
        )
        made = make.fan_out(name, self._plan, subgraph, how, inputs)
        return self._add(name, middleware, made)

    def add_parallel_branches_node(
        self,
        name: str,
        *,
        branches: Mapping[str, Branch | CompiledGraph[Any] | Callable[[S], Awaitable[Any]]],
        error_policy: ErrorPolicy = "fail_fast",
        errors_field: str | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> Self:
        """Add a node that runs several branches at the same time."""
        made = make.branches(name, self._plan, branches, error_policy, errors_field)
        return self._add(name, middleware, made)

    def _add(self, name: str, middleware: Iterable[Middleware], maker: make.Maker) -> Self:
        if not isinstance(name, str) or not name:
            raise GraphInvalid(f"a node is named {described(name)}. Give it a text.")
        if name in self._nodes:
            raise GraphInvalid(f"there are two nodes {name!r}. Give each its own name.")
        self._nodes[name] = (make.layers_of(name, middleware), maker)
        return self

    # --- edges ----------------------------------------------------------------------------------

    def add_edge(self, source: str, target: str | End) -> Self:
        """Let `target` follow `source`; END ends the graph."""
        self._edges.append(make.edge(source, target))
        return self

    def add_conditional_edge(
        self,
        source: str,
        fn: Callable[[S], str | End],
        *,
        targets: Iterable[str | End] | None = None,
    ) -> Self:
        """Let a function of the merged state choose what follows `source`.

        `targets` lists what it may return: for drawings and to find unreachable nodes.
        """
        self._edges.append(make.choice(source, fn, targets))
        return self

    def set_entry(self, name: str) -> Self:
        """Start with this node."""
        self._entry = name
        return self

    # --- around the nodes -----------------------------------------------------------------------

    def add_middleware(self, middleware: Middleware) -> Self:
        """Put middleware around every node of this graph, inside what was added before."""
        self._middleware += make.layers_of("the graph", [middleware])
        return self

    def with_checkpointer(self, checkpointer: Checkpointer) -> Self:
        """Save every step, so that an invocation can be resumed."""
        if not isinstance(checkpointer, Checkpointer):
            raise GraphInvalid(
                f"{described(checkpointer)} is not a checkpointer. Pass an object with the "
                "coroutines save, load, delete and list."
            )
        self._checkpointer = checkpointer
        return self

    def with_state_migration(
        self, from_version: str, to_version: str, fn: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Self:
        """Migrate checkpoints of one schema version to another when they are resumed."""
        self._migrations.register(from_version, to_version, fn)
        return self

    def with_session_store(
        self,
        store: SessionStore,
        *,
        auto_save: bool = True,
        session_state: type[State] | None = None,
        projection: Projection | None = None,
        conflicts: Conflicts = "overwrite",
        on_load: OnLoad = "merge",
    ) -> Self:
        """Load a session before an invocation that names one, and save it afterwards.

        Only the fields of `session_state` are stored: all others belong to one invocation.
        `projection` says which field of the state each of them is, the same name by default. To
        store the whole state, pass the graph's own State class; there is no default, because a
        scratch field that was stored by accident comes back in every later invocation.

        The stored fields are the base of an invocation, and those that its caller set explicitly
        are folded into them; with on_load="replace" the stored ones count. With conflicts="raise"
        a save is refused if another invocation has saved the session since it was loaded.
        """
        if not all(callable(getattr(store, verb, None)) for verb in ("load", "save")):
            raise GraphInvalid(
                f"{described(store)} is not a session store. Pass an object with the coroutines "
                "load, save, delete and list."
            )
        if session_state is None:
            name = self._plan.name
            raise GraphInvalid(
                "with_session_store does not say which fields a session keeps. Pass "
                f"session_state={name} to keep all of {name}, or a State class with the fields "
                "to keep."
            )
        if projection is not None and session_state is self._plan.of:
            raise GraphInvalid(
                "projection was given, and session_state is the graph's own State class: the whole "
                "state is stored then. Pass a class with the fields to keep, or no projection."
            )
        if on_load not in ("merge", "replace"):
            raise GraphInvalid(f"on_load is {on_load!r}. Pass 'merge' or 'replace'.")
        if conflicts not in ("overwrite", "raise"):
            raise GraphInvalid(f"conflicts is {conflicts!r}. Pass 'overwrite' or 'raise'.")
        self._session = {
            "store": store,
            "auto_save": bool(auto_save),
            "session_state": session_state,
            "projection": projection,
            "conflicts": conflicts,
            "on_load": on_load,
        }
        return self

    def with_session_migration(
        self, from_version: str, to_version: str, fn: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Self:
        """Migrate sessions of one schema version to another when they are loaded."""
        self._session_migrations.register(from_version, to_version, fn)
        return self

    def with_tracer(self, tracer: Tracer) -> Self:
        """Open a span of this tracer around every invocation, node, instance and branch."""
        self._tracer = tracer
        return self

    # --- compiling ------------------------------------------------------------------------------

    def compile(self, *, steps_max: int = GRAPH_STEPS_MAX) -> CompiledGraph[S]:
        """Check the graph and compile it. Raises GraphInvalid, of the kind that says why.

        A run that has run `steps_max` nodes of this graph without reaching END stops with
        StepLimitReached. Graphs inside this one have limits of their own.
        """
        steps = make.steps_of(self._nodes, self._edges, self._entry, tuple(self._middleware))
        self._migrations.check(self._plan.version)
        warnings = round_trips(steps, self._plan)
        for found in warnings:
            about = (found.node, found.field, found.reducer)
            _LOG.warning("projection round trip: node=%s field=%s reducer=%s", *about)
        assert self._entry is not None  # as checked
        return CompiledGraph(
            self._name,
            self._plan,
            self._entry,
            steps,
            checkpointer=self._checkpointer,
            migrations=self._migrations,
            session=self._session_config(),
            tracer=self._tracer,
            steps_max=steps_max,
            warnings=warnings,
        )

    def _session_config(self) -> SessionConfig | None:
        if self._session is None:
            return None
        given = self._session
        kept = given["session_state"]
        return SessionConfig(
            given["store"],
            self._plan,
            None if kept is self._plan.of else plan_of(kept),
            projection_of("session", given["projection"]),
            self._session_migrations,
            auto_save=given["auto_save"],
            conflicts=given["conflicts"],
            on_load=given["on_load"],
        )
