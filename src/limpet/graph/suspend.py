"""Suspension: a node ends the run until a signal arrives.

`suspend` raises a signal that no `except Exception` catches. It ends the attempt, the graphs around
it and the invocation, which is saved with its session and returns `Suspended`. A later
`invoke(resume_invocation=…, signal_payload=…)` continues it under the same invocation id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from limpet.errors import GraphMisused, SuspensionInUnsupportedContext
from limpet.graph.arguments import exact
from limpet.graph.checkpoint import Position
from limpet.graph.context import CURRENT
from limpet.graph.descriptor import SuspensionDescriptor
from limpet.graph.engine.track import LiveFrame
from limpet.model import described

T = TypeVar("T")


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an invocation that waits for a signal.

    `state` is the state of the outermost graph and `node_name` the node of it that suspended;
    `namespace` is the path from there to the node that called `suspend`. Inside a fan-out or
    branches the descriptor's metadata has `fan_out_index` or `branch_name`, of the innermost one.
    """

    invocation_id: str
    correlation_id: str
    descriptor: SuspensionDescriptor
    state: Any
    node_name: str
    namespace: tuple[str, ...]
    session_id: str | None = None


class SuspendSignal(BaseException):
    """Carries a suspension from its node to the invocation. Not an error: nothing may catch it."""

    def __init__(
        self,
        descriptor: SuspensionDescriptor,
        *,
        completed: bool,
        node_name: str,
        namespace: tuple[str, ...],
        frame: LiveFrame | None,
        position: Position,
    ) -> None:
        super().__init__(descriptor.signal_id)
        self.descriptor, self.completed = descriptor, completed
        self.node_name, self.namespace, self.frame = node_name, namespace, frame
        self.position = position  # of the node, if the suspension completes it
        self.slots: list[str] = []  # the instances and branches around the node
        self.outcome: Suspended | None = None  # once it is saved

    def leave(self, kind: Literal["fan_out_index", "branch_name"], value: int | str) -> None:
        """Leave an instance or a branch: the descriptor says which one. The innermost counts."""
        self.slots.insert(0, str(value))
        metadata = {kind: value, **self.descriptor.metadata}
        self.descriptor = SuspensionDescriptor(self.descriptor.signal_id, metadata)

    def document(self) -> dict[str, Any]:
        """What a record keeps of it."""
        return {
            "descriptor": msgspec.to_builtins(self.descriptor),
            "completed": self.completed,
            "node_name": self.node_name,
            "namespace": list(self.namespace),
            "slots": list(self.slots),
        }


async def suspend(
    descriptor: SuspensionDescriptor | str, *, mark_node_completed: bool = True
) -> NoReturn:
    """End this attempt, and the run, until a signal resumes the invocation.

    With `mark_node_completed` the resumed run continues after this node; without, it runs this node
    again, as the same attempt. Raises SuspensionInUnsupportedContext outside the body of a node,
    and inside a fan-out or branch with error_policy="collect".
    """
    if isinstance(descriptor, str):
        descriptor = SuspensionDescriptor(descriptor)
    _check(descriptor)
    scope = CURRENT.get()
    if scope is None or scope.run.ended:
        raise SuspensionInUnsupportedContext("", "no graph is running")
    if not scope.body:
        raise SuspensionInUnsupportedContext(scope.node, "middleware called suspend")
    if scope.collecting:
        reason = "its fan-out or branches collect errors, so the others would go on"
        raise SuspensionInUnsupportedContext(scope.node, reason)
    raise SuspendSignal(
        descriptor,
        completed=mark_node_completed,
        node_name=scope.node,
        namespace=(*scope.parents, scope.node),
        frame=scope.frame or (None if scope.outer is None else scope.outer.frame),
        position=scope.position(),
    )


def _check(descriptor: Any) -> None:
    """Refuse in the node what could not be stored when the run ends."""
    known = isinstance(descriptor, SuspensionDescriptor)
    if not known or not isinstance(descriptor.signal_id, str) or not descriptor.signal_id:
        raise GraphMisused("suspend takes a SuspensionDescriptor or a signal id. Pass one of them.")
    if not isinstance(descriptor.metadata, dict):
        raise GraphMisused(f"the metadata is {described(descriptor.metadata)}. Pass a dict.")
    exact(descriptor.metadata, "the metadata")


async def unwrapped(call: Awaitable[T]) -> T:
    """What the call gives. A task group in it, of a node or of middleware, hides no suspension."""
    try:
        return await call
    except BaseExceptionGroup as group:
        unwrap(group)


def unwrap(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise what the errors of a task group mean: a suspension, unless another of them failed."""
    signals, others = group.split(SuspendSignal)
    if signals is None:
        raise group
    found: BaseException = signals if others is None else others
    while others is None and isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    raise found from None
