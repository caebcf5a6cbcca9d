"""A graph cannot be compiled or run. What is kept of its runs has its errors in `invocation`.

Every class has a `category` beside its code: the name that agent frameworks share for it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from limpet.errors.input import InvalidInput, InvalidSchema
from limpet.errors.root import LimpetError


def said(error: BaseException) -> str:
    """The kind and the text of an error, as a part of another error's message."""
    return f"{type(error).__name__}: {error}"[:500].rstrip(".")


class GraphError(LimpetError):
    """A graph cannot do what was asked. `category` names the reason across frameworks."""

    code = "graph.error"
    category: ClassVar[str] = "graph_error"


# --- compiling ------------------------------------------------------------------------------------


class GraphInvalid(GraphError, InvalidInput):
    """The declaration of a graph is wrong: the base of every compile error."""

    code = "graph.invalid"
    category = "graph_invalid"
    status = 400
    exit_code = 2


class NoDeclaredEntry(GraphInvalid):
    code, category = "graph.no_entry", "no_declared_entry"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the graph has no entry: {reason}. Call set_entry with one of its nodes.")


class UnreachableNode(GraphInvalid):
    code, category = "graph.unreachable_node", "unreachable_node"

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"node {node!r} cannot be reached from the entry. Add an edge to it, or remove it."
        )


class DanglingEdge(GraphInvalid):
    code, category = "graph.dangling_edge", "dangling_edge"

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(
            f"the edge of node {node!r} {reason}. Give every node one edge, to a node of this "
            "graph or to END."
        )


class MultipleOutgoingEdges(GraphInvalid):
    code, category = "graph.multiple_edges", "multiple_outgoing_edges"

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"node {node!r} has more than one outgoing edge. Use one conditional edge to choose "
            "between nodes, or a parallel-branches node to run several."
        )


class ConflictingReducers(GraphInvalid):
    code, category = "graph.conflicting_reducers", "conflicting_reducers"

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"field {field!r} has {reason}. Declare one reducer for each field.")


class MappingReferencesUndeclaredField(GraphInvalid):
    code, category = "graph.mapping_field", "mapping_references_undeclared_field"

    def __init__(self, node: str, field: str, of: str) -> None:
        self.node, self.field, self.of = node, field, of
        super().__init__(
            f"{node!r} maps the field {field!r}, which {of} does not declare. Correct the name, "
            "or declare the field."
        )


class ConflictingProjectionForms(GraphInvalid):
    code, category = "graph.conflicting_projections", "conflicting_projection_forms"

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(
            f"{node!r} has a projection and also inputs or outputs. Give it one of the two forms."
        )


class ReducerConfigurationInvalid(GraphInvalid, InvalidSchema):
    code, category = "schema.reducer", "reducer_configuration_invalid"

    def __init__(self, reason: str, advice: str = "Correct the argument of the reducer") -> None:
        self.reason, self.advice = reason, advice
        LimpetError.__init__(self, f"{reason}. {advice}.")


class FanOutFieldNotList(GraphInvalid):
    code, category = "graph.fan_out_field", "fan_out_field_not_list"

    def __init__(self, node: str, field: str) -> None:
        self.node, self.field = node, field
        super().__init__(
            f"fan-out node {node!r} needs a list in the field {field!r}. Declare it as a list."
        )


class FanOutCountModeAmbiguous(GraphInvalid):
    code, category = "graph.fan_out_count", "fan_out_count_mode_ambiguous"

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(
            f"fan-out node {node!r} {reason}. Give it either items_field with item_field, or count."
        )


class FanOutDegradedUpdate(GraphInvalid):
    code = "graph.fan_out_degraded"
    category = "fan_out_degraded_update_missing_collect_field"

    def __init__(self, node: str, field: str) -> None:
        self.node, self.field = node, field
        super().__init__(
            f"fan-out node {node!r} collects {field!r}, and a degraded update around its instances "
            "does not have it. Add the field to degraded_update."
        )


class ParallelBranchesNoBranches(GraphInvalid):
    code, category = "graph.no_branches", "parallel_branches_no_branches"

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(f"node {node!r} has no branches. Give it at least one.")


class ParallelBranchesInvalidBranchSpec(GraphInvalid):
    code, category = "graph.branch_invalid", "parallel_branches_invalid_branch_spec"

    def __init__(self, node: str, name: str, reason: str) -> None:
        self.node, self.name, self.reason = node, name, reason
        super().__init__(
            f"branch {name!r} of node {node!r} {reason}. Give each branch either a subgraph or a "
            "call."
        )


# --- running --------------------------------------------------------------------------------------


class GraphRunError(GraphError):
    """A run stopped. `recoverable_state` is the state before the node or edge that failed."""

    code = "graph.run_failed"
    category = "graph_run_failed"

    def __init__(self, message: str, node: str = "", recoverable_state: Any = None) -> None:
        self.node, self.recoverable_state = node, recoverable_state
        super().__init__(message)

    @property
    def node_name(self) -> str:
        """The node that failed, as events name it."""
        return self.node


class NodeException(GraphRunError):
    code, category = "graph.node_failed", "node_exception"

    def __init__(self, node: str, reason: str, recoverable_state: Any = None) -> None:
        self.reason = reason
        super().__init__(
            f"node {node!r} failed: {reason}. See __cause__; recoverable_state is the state "
            "before the node.",
            node=node,
            recoverable_state=recoverable_state,
        )


class EdgeException(GraphRunError):
    code, category = "graph.edge_failed", "edge_exception"

    def __init__(self, node: str, reason: str, recoverable_state: Any = None) -> None:
        self.reason = reason
        super().__init__(
            f"the edge after node {node!r} failed: {reason}. See __cause__; recoverable_state is "
            "the state that the edge saw.",
            node=node,
            recoverable_state=recoverable_state,
        )


class ReducerError(GraphRunError):
    code, category = "graph.reducer_failed", "reducer_error"

    def __init__(self, node: str, field: str, reason: str, recoverable_state: Any = None) -> None:
        self.field, self.reason = field, reason
        super().__init__(
            f"the update of field {field!r} by node {node!r} was not applied: {reason}. Return a "
            "value that the field's reducer accepts.",
            node=node,
            recoverable_state=recoverable_state,
        )


class RoutingError(GraphRunError):
    code, category = "graph.routing_failed", "routing_error"

    def __init__(self, node: str, target: str, recoverable_state: Any = None) -> None:
        self.target = target
        super().__init__(
            f"the edge after node {node!r} led to {target}, which is not a valid target. Return "
            "the name of a node of this graph, or END; if targets are declared, one of them.",
            node=node,
            recoverable_state=recoverable_state,
        )


class StateValidationError(GraphRunError):
    code, category = "graph.state_invalid", "state_validation_error"
    status = 422

    def __init__(
        self,
        where: str,
        fields: tuple[str, ...],
        reason: str,
        recoverable_state: Any = None,
        node: str = "",
    ) -> None:
        self.where, self.fields, self.reason = where, fields, reason
        super().__init__(
            f"{where} is not a valid state ({', '.join(fields) or 'as a whole'}): "
            f"{reason}. Correct these fields.",
            node=node,
            recoverable_state=recoverable_state,
        )


class FanOutEmpty(GraphRunError):
    code, category = "graph.fan_out_empty", "fan_out_empty"

    def __init__(self, node: str, recoverable_state: Any = None) -> None:
        super().__init__(
            f'fan-out node {node!r} has nothing to run. Give it items, or set on_empty="noop".',
            node=node,
            recoverable_state=recoverable_state,
        )


class StepLimitReached(GraphRunError):
    code, category = "graph.step_limit", "step_limit_reached"

    def __init__(self, node: str, steps_max: int, recoverable_state: Any = None) -> None:
        self.steps_max = steps_max
        super().__init__(
            f"the run stopped before node {node!r}: its graph has run {steps_max:,} nodes without "
            "reaching END. Check the edges for an endless loop, or invoke with a higher steps_max; "
            "with a checkpointer, resume the invocation with it.",
            node=node,
            recoverable_state=recoverable_state,
        )


class ParallelBranchesBranchFailed(GraphRunError):
    code, category = "graph.branch_failed", "parallel_branches_branch_failed"

    def __init__(
        self, node: str, branch_name: str, reason: str, recoverable_state: Any = None
    ) -> None:
        self.branch_name, self.reason = branch_name, reason
        super().__init__(
            f"branch {branch_name!r} of node {node!r} failed: {reason}. The other branches were "
            "cancelled; see __cause__.",
            node=node,
            recoverable_state=recoverable_state,
        )


class GraphMisused(GraphError, InvalidInput):
    code, category = "graph.misused", "graph_misused"
    status = 400
    exit_code = 2

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)
