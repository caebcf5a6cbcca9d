"""Building: the declaration of a graph, checked and compiled once into steps.

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

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

from limpet.errors import (
    DanglingEdge,
    FanOutCountModeAmbiguous,
    FanOutDegradedUpdate,
    FanOutFieldNotList,
    GraphInvalid,
    MultipleOutgoingEdges,
    NoDeclaredEntry,
    ParallelBranchesInvalidBranchSpec,
    ParallelBranchesNoBranches,
    UnreachableNode,
)
from limpet.graph.checkpoint import Checkpointer
from limpet.graph.context import CompileWarning
from limpet.graph.engine.compiled import CompiledGraph
from limpet.graph.engine.loop import END, Edge, End, FunctionStep, Middleware, SubgraphStep
from limpet.graph.engine.parallel import (
    Branch,
    BranchesStep,
    ErrorPolicy,
    FanOut,
    FanOutStep,
    OnEmpty,
    ResumeInstances,
)
from limpet.graph.observers import Tracer
from limpet.graph.sessions import Conflicts, OnLoad, SessionConfig, SessionStore
from limpet.graph.state import (
    CheckedProjection,
    ExplicitMapping,
    Projection,
    State,
    StatePlan,
    check_names,
    plan_of,
    projection_of,
)
from limpet.model import described
from limpet.model.limits import GRAPH_STEPS_MAX
from limpet.model.state.label_migrations import LabelRegistry
from limpet.model.state.reducers import Append, BoundedAppend, ConcatFlatten, MergeAll

S = TypeVar("S", bound=State)
_LOG: Final = logging.getLogger("limpet.graph")
_POLICIES: Final = ("fail_fast", "collect")
# Reducers that change a field when the value that it has is merged into it again.
_GROWING: Final = (Append, BoundedAppend, ConcatFlatten, MergeAll)
Maker: TypeAlias = Callable[[tuple[Middleware, ...], Edge], Any]


class GraphBuilder(Generic[S]):
    """Declares a graph over a State class. Every verb returns the builder."""

    def __init__(self, state_type: type[S], *, name: str | None = None) -> None:
        self._plan = plan_of(state_type)
        self._name = name or state_type.__name__
        self._nodes: dict[str, tuple[tuple[Middleware, ...], Maker]] = {}
        self._edges: list[Edge] = []
        self._entry: str | None = None
        self._middleware: list[Middleware] = []
        self._checkpointer: Checkpointer | None = None
        self._tracer: Tracer | None = None
        self._session: Callable[[], SessionConfig] | None = None
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
        check_function(name, fn)

        def make(layers: tuple[Middleware, ...], edge: Edge) -> FunctionStep:
            return FunctionStep(name, fn, layers, edge)

        return self._add(name, middleware, make)

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
        check_compiled(name, compiled)

        def make(layers: tuple[Middleware, ...], edge: Edge) -> SubgraphStep:
            chosen = projection_of(name, projection, inputs, outputs)
            checked = CheckedProjection(name, compiled.plan, self._plan, chosen)
            return SubgraphStep(name, compiled, checked, layers, edge)

        return self._add(name, middleware, make)

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
        check_compiled(name, subgraph)
        settings = FanOut(
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
            instance_middleware=layers_of(name, instance_middleware),
            resume_instances=resume_instances,
        )

        def make(layers: tuple[Middleware, ...], edge: Edge) -> FanOutStep:
            check_fan_out(name, settings, subgraph.plan, self._plan)
            mapping = ExplicitMapping(inputs, {})
            checked = CheckedProjection(name, subgraph.plan, self._plan, mapping)
            return FanOutStep(name, subgraph, checked, settings, layers, edge)

        return self._add(name, middleware, make)

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

        def make(layers: tuple[Middleware, ...], edge: Edge) -> BranchesStep:
            check_policy(name, error_policy)
            check_names(name, self._plan, [] if errors_field is None else [errors_field])
            made = {}
            for key, branch in check_branches(name, branches).items():
                made[key] = (branch, _branch_projection(name, self._plan, branch))
            return BranchesStep(name, made, self._plan, error_policy, errors_field, layers, edge)

        return self._add(name, middleware, make)

    def _add(self, name: str, middleware: Iterable[Middleware], maker: Maker) -> Self:
        if not isinstance(name, str) or not name:
            raise GraphInvalid(f"a node is named {described(name)}. Give it a text.")
        if name in self._nodes:
            raise GraphInvalid(f"there are two nodes {name!r}. Give each its own name.")
        self._nodes[name] = (layers_of(name, middleware), maker)
        return self

    # --- edges ----------------------------------------------------------------------------------

    def add_edge(self, source: str, target: str | End) -> Self:
        """Let `target` follow `source`; END ends the graph."""
        if target is not END and not isinstance(target, str):
            raise DanglingEdge(str(source), f"leads to {described(target)}")
        self._edges.append(Edge(source, None if isinstance(target, End) else target))
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
        if not callable(fn) or inspect.iscoroutinefunction(fn):
            raise GraphInvalid(f"the edge of {source!r} is not a plain function. Pass one.")
        drawn = None
        if targets is not None:
            drawn = tuple([None if isinstance(target, End) else target for target in targets])
        self._edges.append(Edge(source, None, fn, drawn=drawn))
        return self

    def set_entry(self, name: str) -> Self:
        """Start with this node."""
        self._entry = name
        return self

    # --- around the nodes -----------------------------------------------------------------------

    def add_middleware(self, middleware: Middleware) -> Self:
        """Put middleware around every node of this graph, inside what was added before."""
        self._middleware += layers_of("the graph", [middleware])
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

        def config() -> SessionConfig:
            return SessionConfig(
                store,
                self._plan,
                None if session_state is self._plan.of else plan_of(session_state),
                projection_of("session", projection),
                self._session_migrations,
                auto_save=bool(auto_save),
                conflicts=conflicts,
                on_load=on_load,
            )

        self._session = config
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
        steps = steps_of(self._nodes, self._edges, self._entry, tuple(self._middleware))
        self._migrations.check(self._plan.version)
        warnings = round_trips(steps, self._plan)
        for warning in warnings:
            about = (warning.node, warning.field, warning.reducer)
            _LOG.warning("projection round trip: node=%s field=%s reducer=%s", *about)
        assert self._entry is not None  # as checked
        return CompiledGraph(
            self._name,
            self._plan,
            self._entry,
            steps,
            checkpointer=self._checkpointer,
            migrations=self._migrations,
            session=None if self._session is None else self._session(),
            tracer=self._tracer,
            steps_max=steps_max,
            warnings=warnings,
        )


def steps_of(
    nodes: Mapping[str, tuple[tuple[Middleware, ...], Maker]],
    edges: Iterable[Edge],
    entry: str | None,
    outer: tuple[Middleware, ...],
) -> dict[str, Any]:
    """The steps of a graph, each with its edge and the middleware around it."""
    leaving, names = check_edges(nodes, edges, entry), frozenset(nodes)
    steps = {}
    for name, (layers, make) in nodes.items():
        declared = leaving.get(name) or Edge(name)
        steps[name] = make(
            outer + layers, Edge(name, declared.target, declared.fn, names, declared.drawn)
        )
    assert entry is not None  # as checked
    check_ways(nodes, leaving, entry)
    return steps


def layers_of(name: str, middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """The middleware as a tuple. Raises GraphInvalid if one cannot be called."""
    layers = tuple(middleware)
    for layer in layers:
        if not callable(layer):
            raise GraphInvalid(f"middleware of {name!r} is {described(layer)}. Pass a callable.")
    return layers


def check_function(name: str, fn: object) -> None:
    """Refuse what cannot be awaited as a node."""
    plain = inspect.isfunction(fn) and not inspect.iscoroutinefunction(fn)
    wraps = hasattr(fn, "__wrapped__") or getattr(fn, "__name__", "") == "<lambda>"
    if not callable(fn) or (plain and not wraps):
        raise GraphInvalid(
            f"node {name!r} is {described(fn)}. Pass an async function of the state: async def."
        )


def check_compiled(name: str, graph: object) -> None:
    """Refuse a subgraph that is not a compiled graph."""
    if not hasattr(graph, "steps"):
        raise GraphInvalid(f"node {name!r} has {described(graph)} as subgraph. Compile it first.")


def _branch_projection(name: str, plan: StatePlan[Any], branch: Branch) -> CheckedProjection | None:
    if branch.subgraph is None:
        return None
    chosen = projection_of(name, None, branch.inputs, branch.outputs)
    return CheckedProjection(name, branch.subgraph.plan, plan, chosen)


def check_edges(nodes: Iterable[str], edges: Iterable[Edge], entry: str | None) -> dict[str, Edge]:
    """The edge that leaves each node, if there is an entry and no node has two.

    Of several mistakes an edge that leads nowhere is reported last, by `check_ways`: it is often
    what another mistake left behind, such as a node that nothing leads to.
    """
    names = set(nodes)
    if entry is None:
        raise NoDeclaredEntry("set_entry was not called")
    if entry not in names:
        raise NoDeclaredEntry(f"{entry!r} is not a node of this graph")
    leaving: dict[str, Edge] = {}
    for edge in edges:
        if leaving.setdefault(edge.source, edge) is not edge:
            raise MultipleOutgoingEdges(edge.source)
    return leaving


def check_ways(nodes: Iterable[str], edges: Mapping[str, Edge], entry: str) -> None:
    """Refuse a node that cannot be reached or left, and an edge that leads nowhere."""
    names = set(nodes)
    reached = _reachable_nodes(names, edges, entry)
    for name in nodes:
        if name not in reached:
            raise UnreachableNode(name)
    for edge in edges.values():
        if edge.source not in names:
            raise DanglingEdge(edge.source, "starts at a node that does not exist")
        for target in (edge.target, *(edge.drawn or ())):
            if target is not None and target not in names:
                raise DanglingEdge(edge.source, f"leads to {target!r}, which does not exist")
    for name in nodes:
        if name not in edges:
            raise DanglingEdge(name, "is missing")


def _reachable_nodes(names: set[str], edges: Mapping[str, Edge], entry: str) -> set[str]:
    """The nodes that a run may come to. A function may choose any, unless it declares targets."""
    reached, waiting = {entry}, [entry]
    while waiting:
        edge = edges.get(waiting.pop())
        if edge is None:
            continue
        targets: Iterable[str | None] = (edge.target,)
        if edge.fn is not None:
            targets = names if edge.drawn is None else edge.drawn
        new = {target for target in targets if target in names} - reached
        reached |= new
        waiting += new
    return reached


def check_fan_out(
    node: str, settings: FanOut, inner: StatePlan[Any], outer: StatePlan[Any]
) -> None:
    """Check the settings of a fan-out against the two State classes."""
    if settings.items_field is not None and settings.count is not None:
        raise FanOutCountModeAmbiguous(node, "has items_field and count")
    if settings.items_field is None and settings.count is None:
        raise FanOutCountModeAmbiguous(node, "has neither items_field nor count")
    if (settings.items_field is None) != (settings.item_field is None):
        raise FanOutCountModeAmbiguous(node, "has only one of items_field and item_field")
    check_names(node, outer, [name for name in (settings.items_field,) if name is not None])
    check_names(node, inner, [name for name in (settings.item_field,) if name is not None])
    check_names(node, inner, [settings.collect_field, *settings.extra_outputs.values()])
    targets = [settings.target_field, *settings.extra_outputs]
    targets += [settings.errors_field] if settings.errors_field is not None else []
    check_names(node, outer, targets)
    check_names(node, outer, [name for name in (settings.count_field,) if name is not None])
    for name in [*([settings.items_field] if settings.items_field else []), *targets]:
        if not outer.fields[name].holds_list:
            raise FanOutFieldNotList(node, name)
    _check_settings(node, settings)
    if settings.resume_instances not in ("continue", "restart"):
        given = settings.resume_instances
        raise GraphInvalid(
            f"{node!r} has resume_instances={given!r}. Pass 'continue' or 'restart'."
        )
    for layer in settings.instance_middleware:
        degraded = getattr(layer, "degraded_update", None)
        if isinstance(degraded, Mapping) and settings.collect_field not in degraded:
            raise FanOutDegradedUpdate(node, settings.collect_field)


def _check_settings(node: str, settings: FanOut) -> None:
    for name, least in (("count", 0), ("concurrency", 1)):
        value = getattr(settings, name)
        number = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if value is not None and not callable(value) and not number:
            raise GraphInvalid(
                f"fan-out node {node!r} has {name}={value!r}. Pass a number from {least}, or a "
                "function of the state."
            )
    check_policy(node, settings.error_policy)
    if settings.on_empty not in ("raise", "noop"):
        raise GraphInvalid(f"{node!r} has on_empty={settings.on_empty!r}. Pass 'raise' or 'noop'.")


def check_policy(node: str, error_policy: object) -> None:
    """Check an error policy."""
    if error_policy not in _POLICIES:
        raise GraphInvalid(
            f"{node!r} has error_policy={error_policy!r}. Pass 'fail_fast' or 'collect'."
        )


def check_branches(node: str, branches: object) -> dict[str, Branch]:
    """The branches by name; a graph or a function stands for a branch of it."""
    if not isinstance(branches, Mapping) or not branches:
        raise ParallelBranchesNoBranches(node)
    return {_branch_name(node, name): _branch(node, name, b) for name, b in branches.items()}


def _branch_name(node: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ParallelBranchesInvalidBranchSpec(node, str(name), "has no name")
    return name


def _branch(node: str, name: str, given: Any) -> Branch:
    if isinstance(given, Branch):
        branch = given
    elif hasattr(given, "steps"):
        branch = Branch(subgraph=given)
    elif callable(given):
        branch = Branch(call=given)
    else:
        raise ParallelBranchesInvalidBranchSpec(node, name, f"is {described(given)}")
    if (branch.subgraph is None) == (branch.call is None):
        had = "both a subgraph and a call" if branch.call else "neither a subgraph nor a call"
        raise ParallelBranchesInvalidBranchSpec(node, name, f"has {had}")
    if branch.call is not None and (branch.inputs or branch.outputs):
        reason = "is a call with inputs or outputs, which only a subgraph has"
        raise ParallelBranchesInvalidBranchSpec(node, name, reason)
    if branch.subgraph is not None and not hasattr(branch.subgraph, "steps"):
        raise ParallelBranchesInvalidBranchSpec(node, name, "has a subgraph that is not compiled")
    return branch


def round_trips(steps: Mapping[str, Any], plan: StatePlan[Any]) -> tuple[CompileWarning, ...]:
    """The fields whose value goes into a graph inside and comes back, to be added once more."""
    warnings = []
    for name, step in steps.items():
        for inward, outward in _ways(step):
            for inner, outer in inward.items():
                reducer = plan.fields[outer].reducer
                if outward.get(outer) == inner and isinstance(reducer, _GROWING):
                    warnings.append(
                        CompileWarning(
                            category="projection_reducer_round_trip",
                            node=name,
                            field=outer,
                            reducer=reducer.name,
                        )
                    )
    return tuple(dict.fromkeys(warnings))


def _ways(step: Any) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """The fields in and out of each graph inside a step: inner ← outer, outer ← inner."""
    if isinstance(step, FanOutStep):
        settings = step.settings
        outward = {settings.target_field: settings.collect_field, **settings.extra_outputs}
        yield step.projection.inward, outward
    elif isinstance(step, BranchesStep):
        for _, checked in step.branches.values():
            if checked is not None:
                yield checked.inward, checked.outward
    elif isinstance(step, SubgraphStep):
        yield step.projection.inward, step.projection.outward
