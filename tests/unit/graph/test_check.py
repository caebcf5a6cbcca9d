"""Compile errors: each wrong declaration has its own error, and says what to do."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

import limpet
from limpet.graph import (
    END,
    Branch,
    DeclaredSameName,
    ExplicitMapping,
    FailureIsolationMiddleware,
    GraphBuilder,
    InMemorySessionStore,
    Reducer,
    State,
    append,
    bounded_append,
    concat_flatten,
    dedupe_append,
    merge,
    merge_by_key,
)
from tests.support.graphs import gives, line


class Outer(State):
    xs: list[int] = []
    ys: list[int] = []
    n: int = 0


class Inner(State):
    x: int = 0
    y: int = 0


node = gives()
inner = line(Inner, only=node).compile()


def builder() -> GraphBuilder[Outer]:
    return GraphBuilder(Outer).add_node("a", node).add_edge("a", END).set_entry("a")


def fan_out(**how: Any) -> GraphBuilder[Outer]:
    given = {
        "subgraph": inner,
        "collect_field": "y",
        "target_field": "ys",
        "items_field": "xs",
        "item_field": "x",
    } | how
    made = GraphBuilder(Outer).add_fan_out_node("f", **given)
    return made.add_edge("f", END).set_entry("f")


def branches(given: Any, **how: Any) -> GraphBuilder[Outer]:
    made = GraphBuilder(Outer).add_parallel_branches_node("b", branches=given, **how)
    return made.add_edge("b", END).set_entry("b")


def subgraph(*projection: Any, **how: Any) -> GraphBuilder[Outer]:
    made = GraphBuilder(Outer).add_subgraph_node("s", inner, *projection, **how)
    return made.add_edge("s", END).set_entry("s")


class Two(State):
    xs: Annotated[list[int], append, bounded_append(2)] = []


class Wrong(State):
    n: Annotated[int, append] = 0


class WrongToo(State):
    n: Annotated[list[int], merge] = []


class Uncalled(State):
    n: Annotated[list[int], bounded_append] = []


class Loose(State):
    model_config = {"frozen": False}


class Open(State):
    model_config = {"extra": "allow"}


def versioned() -> type[State]:
    with pytest.warns(UserWarning, match="shadows"):
        return type("Versioned", (State,), {"__annotations__": {"schema_version": str}})


class Unfinished(State):
    later: NotThere | None = None  # type: ignore[name-defined]  # noqa: F821


CASES: list[tuple[str, str, Any]] = [
    ("no entry", "no_declared_entry", lambda: GraphBuilder(Outer).add_node("a", node)),
    ("strange entry", "no_declared_entry", lambda: builder().set_entry("z")),
    ("island", "unreachable_node", lambda: builder().add_node("b", node).add_edge("b", "b")),
    (
        "island by declared targets",
        "unreachable_node",
        lambda: (
            GraphBuilder(Outer)
            .add_node("a", node)
            .add_node("b", node)
            .add_conditional_edge("a", lambda s: END, targets=[END])
            .add_edge("b", END)
            .set_entry("a")
        ),
    ),
    ("no edge", "dangling_edge", lambda: GraphBuilder(Outer).add_node("a", node).set_entry("a")),
    ("to nowhere", "dangling_edge", lambda: line(Outer, a=node).add_edge("z", "a")),
    (
        "from nowhere",
        "dangling_edge",
        lambda: GraphBuilder(Outer).add_node("a", node).add_edge("a", "z").set_entry("a"),
    ),
    ("to a number", "dangling_edge", lambda: GraphBuilder(Outer).add_edge("a", 3)),  # type: ignore[arg-type]
    ("two edges", "multiple_outgoing_edges", lambda: builder().add_edge("a", "a")),
    (
        "an edge and a choice",
        "multiple_outgoing_edges",
        lambda: builder().add_conditional_edge("a", lambda s: END),
    ),
    (
        "island without an edge",
        "unreachable_node",
        lambda: builder().add_node("b", node),
    ),
    (
        "island, and an edge to nowhere",
        "unreachable_node",
        lambda: line(Outer, a=node).add_node("b", node).add_edge("b", "z"),
    ),
    (
        "two edges, one to nowhere",
        "multiple_outgoing_edges",
        lambda: builder().add_edge("a", "z"),
    ),
    (
        "no entry, and an edge to nowhere",
        "no_declared_entry",
        lambda: GraphBuilder(Outer).add_node("a", node).add_edge("a", "z"),
    ),
    (
        "input from nowhere, and an edge to nowhere",
        "mapping_references_undeclared_field",
        lambda: (
            GraphBuilder(Outer)
            .add_subgraph_node("s", inner, inputs={"x": "zs"})
            .add_edge("s", "z")
            .set_entry("s")
        ),
    ),
    (
        "degraded without what is collected",
        "fan_out_degraded_update_missing_collect_field",
        lambda: fan_out(instance_middleware=[FailureIsolationMiddleware(degraded_update={"x": 1})]),
    ),
    ("no such way to resume", "graph_invalid", lambda: fan_out(resume_instances="again")),
    ("sessions of nobody knows what", "graph_invalid", lambda: _sessions(session_state=None)),
    ("no such way to load", "graph_invalid", lambda: _sessions(on_load="fold")),
    ("two reducers", "conflicting_reducers", lambda: line(Two, a=node)),
    ("append on a number", "reducer_configuration_invalid", lambda: line(Wrong, a=node)),
    ("merge on a list", "reducer_configuration_invalid", lambda: line(WrongToo, a=node)),
    ("reducer not called", "reducer_configuration_invalid", lambda: line(Uncalled, a=node)),
    ("bound of nothing", "reducer_configuration_invalid", lambda: bounded_append(0)),
    ("bound that is text", "reducer_configuration_invalid", lambda: bounded_append("2")),  # type: ignore[arg-type]
    ("empty key", "reducer_configuration_invalid", lambda: merge_by_key("")),
    ("number as key", "reducer_configuration_invalid", lambda: dedupe_append(3)),  # type: ignore[arg-type]
    (
        "input from nowhere",
        "mapping_references_undeclared_field",
        lambda: subgraph(inputs={"x": "zs"}),
    ),
    (
        "input to nowhere",
        "mapping_references_undeclared_field",
        lambda: subgraph(inputs={"z": "n"}),
    ),
    (
        "output to nowhere",
        "mapping_references_undeclared_field",
        lambda: subgraph(ExplicitMapping(outputs={"z": "y"})),
    ),
    (
        "declared on one side only",
        "mapping_references_undeclared_field",
        lambda: subgraph(DeclaredSameName(in_fields=["x"])),
    ),
    (
        "session field of its own",
        "mapping_references_undeclared_field",
        lambda: builder().with_session_store(InMemorySessionStore(), session_state=Inner),
    ),
    (
        "session mapped to nowhere",
        "mapping_references_undeclared_field",
        lambda: builder().with_session_store(
            InMemorySessionStore(),
            session_state=Inner,
            projection=ExplicitMapping(outputs={"x": "n", "y": "nothing"}),
        ),
    ),
    (
        "projection and inputs",
        "conflicting_projection_forms",
        lambda: subgraph(ExplicitMapping(), inputs={"x": "n"}),
    ),
    ("items not a list", "fan_out_field_not_list", lambda: fan_out(items_field="n")),
    ("target not a list", "fan_out_field_not_list", lambda: fan_out(target_field="n")),
    ("errors not a list", "fan_out_field_not_list", lambda: fan_out(errors_field="n")),
    (
        "collects what is not there",
        "mapping_references_undeclared_field",
        lambda: fan_out(collect_field="z"),
    ),
    ("items and count", "fan_out_count_mode_ambiguous", lambda: fan_out(count=2)),
    (
        "neither items nor count",
        "fan_out_count_mode_ambiguous",
        lambda: fan_out(items_field=None, item_field=None),
    ),
    ("items without item", "fan_out_count_mode_ambiguous", lambda: fan_out(item_field=None)),
    ("no branches", "parallel_branches_no_branches", lambda: branches({})),
    ("branches in a list", "parallel_branches_no_branches", lambda: branches([node])),
    ("empty branch", "parallel_branches_invalid_branch_spec", lambda: branches({"l": Branch()})),
    (
        "branch of both kinds",
        "parallel_branches_invalid_branch_spec",
        lambda: branches({"l": Branch(subgraph=inner, call=node)}),
    ),
    (
        "call with outputs",
        "parallel_branches_invalid_branch_spec",
        lambda: branches({"l": Branch(call=node, outputs={"n": "y"})}),
    ),
    ("branch of nothing", "parallel_branches_invalid_branch_spec", lambda: branches({"l": 3})),
    (
        "branch without a name",
        "parallel_branches_invalid_branch_spec",
        lambda: branches({"": node}),
    ),
    ("two nodes of one name", "graph_invalid", lambda: builder().add_node("a", node)),
    ("node without a name", "graph_invalid", lambda: builder().add_node("", node)),
    ("node that is no function", "graph_invalid", lambda: builder().add_node("b", 3)),  # type: ignore[arg-type]
    ("node that is not async", "graph_invalid", lambda: builder().add_node("b", _plain)),  # type: ignore[arg-type]
    ("async edge", "graph_invalid", lambda: builder().add_conditional_edge("a", node)),  # type: ignore[arg-type]
    ("not a State", "graph_invalid", lambda: GraphBuilder(int)),  # type: ignore[type-var]
    ("a State of typed sessions", "graph_invalid", lambda: GraphBuilder(limpet.State)),  # type: ignore[type-var]
    ("not compiled", "graph_invalid", lambda: builder().add_subgraph_node("b", builder())),  # type: ignore[arg-type]
    ("not a checkpointer", "graph_invalid", lambda: builder().with_checkpointer(3)),  # type: ignore[arg-type]
    ("not a store", "graph_invalid", lambda: builder().with_session_store(3, session_state=Outer)),  # type: ignore[arg-type]
    ("no such conflicts", "graph_invalid", lambda: _sessions(conflicts="ask")),
    ("no such policy", "graph_invalid", lambda: fan_out(error_policy="ignore")),
    (
        "no such policy for branches",
        "graph_invalid",
        lambda: branches({"l": node}, error_policy="x"),
    ),
    ("no such on_empty", "graph_invalid", lambda: fan_out(on_empty="ignore")),
    ("no concurrency", "graph_invalid", lambda: fan_out(concurrency=0)),
    (
        "negative count",
        "graph_invalid",
        lambda: fan_out(items_field=None, item_field=None, count=-1),
    ),
    ("middleware that cannot be called", "graph_invalid", lambda: builder().add_middleware(3)),  # type: ignore[arg-type]
    ("state that can be changed", "graph_invalid", lambda: GraphBuilder(Loose)),
    ("state that takes anything", "graph_invalid", lambda: GraphBuilder(Open)),
    ("version that is a field", "graph_invalid", lambda: GraphBuilder(versioned())),
    ("type that is not defined", "graph_invalid", lambda: GraphBuilder(Unfinished)),
    (
        "projection of the whole state",
        "graph_invalid",
        lambda: _sessions(projection=ExplicitMapping({"a": "b"})),
    ),
    (
        "version that is a number",
        "graph_invalid",
        lambda: GraphBuilder(type("Odd", (State,), {"schema_version": 3})),
    ),
]


def _plain(state: Any) -> dict[str, Any]:
    return {}


def _sessions(**how: Any) -> GraphBuilder[Outer]:
    given = {"session_state": Outer} | how
    return builder().with_session_store(InMemorySessionStore(), **given)


@pytest.mark.parametrize(("what", "category", "declare"), CASES, ids=[c[0] for c in CASES])
def test_a_wrong_declaration_has_its_own_error(what: str, category: str, declare: Any) -> None:
    """It is refused before anything runs, with a stable category and code."""
    with pytest.raises(limpet.InvalidInput) as info:
        declare().compile()
    assert info.value.category == category  # type: ignore[attr-defined]
    assert info.value.code.partition(".")[0] in ("graph", "schema")


def test_every_compile_error_is_provoked() -> None:
    """The cases above cover each category that a compile error has."""
    kinds = limpet.errors.GraphInvalid.__subclasses__()
    assert {kind.category for kind in kinds} <= {category for _, category, _ in CASES}


def test_a_reducer_of_ones_own_is_accepted() -> None:
    """Any Reducer object may stand on a field."""

    class Longest(Reducer, frozen=True):
        def fold(self, old: Any, update: Any, field: str = "field") -> Any:
            return max(old, update, key=len)

    class Mine(State):
        word: Annotated[str, Longest()] = ""

    line(Mine, a=node).compile()


def test_a_builder_can_be_compiled_twice() -> None:
    """Compiling changes nothing in the builder, and the graphs are separate."""
    made = builder()
    first = made.compile()
    second = made.add_node("b", node).add_edge("b", END)
    with pytest.raises(limpet.errors.UnreachableNode):
        second.compile()
    assert list(first.steps) == ["a"]


class Grown(State):
    log: Annotated[list[str], append] = []
    recent: Annotated[list[str], bounded_append(2)] = []
    flat: Annotated[list[str], concat_flatten] = []
    facts: Annotated[dict[str, int], merge] = {}
    plain: list[str] = []


class Part(State):
    x: int = 0
    log: list[str] = []
    other: list[str] = []
    facts: dict[str, int] = {}
    plain: list[str] = []


part = line(Part, only=node).compile()


def grown(kind: str, **how: Any) -> Any:
    made: Any = GraphBuilder(Grown)
    if kind == "subgraph":
        made.add_subgraph_node("n", part, **how)
    elif kind == "branch":
        made.add_parallel_branches_node("n", branches={"b": Branch(subgraph=part, **how)})
    else:
        made.add_fan_out_node("n", subgraph=part, count=2, **how)
    return made.add_edge("n", END).set_entry("n")


@pytest.mark.parametrize(
    ("kind", "how", "fields"),
    [
        ("subgraph", {"inputs": {"log": "log"}}, ["log"]),  # the default brings it back
        ("subgraph", {"inputs": {"log": "log"}, "outputs": {}}, []),
        ("subgraph", {"inputs": {"log": "log"}, "outputs": {"recent": "log"}}, []),
        ("subgraph", {"inputs": {"log": "recent"}, "outputs": {"recent": "log"}}, ["recent"]),
        ("subgraph", {"inputs": {"log": "log"}, "outputs": {"log": "other"}}, []),
        ("subgraph", {"inputs": {"facts": "facts", "plain": "plain"}}, []),  # no harm there
        (
            "subgraph",
            {"projection": DeclaredSameName(in_fields=["log"], out_fields=["log"])},
            ["log"],
        ),
        ("subgraph", {"projection": DeclaredSameName(in_fields=["log"], out_fields=[])}, []),
        ("branch", {"inputs": {"log": "log"}, "outputs": {"log": "log"}}, ["log"]),
        (
            "fan_out",
            {"inputs": {"log": "flat"}, "collect_field": "log", "target_field": "flat"},
            ["flat"],
        ),
        (
            "fan_out",
            {
                "inputs": {"log": "log"},
                "collect_field": "x",
                "target_field": "plain",
                "extra_outputs": {"log": "log"},
            },
            ["log"],
        ),
        ("fan_out", {"collect_field": "log", "target_field": "flat"}, []),
    ],
)
def test_a_value_that_comes_back_to_be_added_again_is_warned_of(
    kind: str, how: Any, fields: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The graph compiles: it may be meant."""
    graph = grown(kind, **how).compile()
    assert [found.field for found in graph.warnings] == fields
    assert {found.category for found in graph.warnings} <= {"projection_reducer_round_trip"}
    assert len(caplog.records) == len(fields)
