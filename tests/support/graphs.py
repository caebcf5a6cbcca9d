"""What tests of graphs share: short ways to declare one, and a checkpointer that checks itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from limpet.graph import (
    END,
    CheckpointRecord,
    GraphBuilder,
    InMemoryCheckpointer,
    NodeEvent,
    State,
)

Node = Callable[[Any], Awaitable[Mapping[str, Any]]]


def line(state_type: type[State], **nodes: Node) -> GraphBuilder[Any]:
    """A graph whose nodes follow each other in the order given."""
    builder = GraphBuilder(state_type)
    names = list(nodes)
    for name, fn in nodes.items():
        builder.add_node(name, fn)
    for source, target in zip(names, [*names[1:], END], strict=True):
        builder.add_edge(source, target)
    return builder.set_entry(names[0])


def gives(**update: Any) -> Node:
    """A node that returns this update."""

    async def node(state: Any) -> dict[str, Any]:
        return update

    return node


class CheckedCheckpointer(InMemoryCheckpointer):
    """Holds every change against the whole record that it should amount to.

    `saves` has each record that was stored, so its length is the number of commits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.saves: list[CheckpointRecord] = []

    async def save(self, record: CheckpointRecord, /) -> None:
        await super().save(record)
        self.saves.append(record)

    async def save_changes(
        self, invocation_id: str, ops: Any, whole: Callable[[], CheckpointRecord], /
    ) -> None:
        expected = CheckpointRecord.from_bytes(whole().to_bytes())
        await super().save_changes(invocation_id, ops, whole)
        found = await self.load(invocation_id)
        assert found is not None
        assert _timeless(found) == _timeless(expected)
        self.saves.append(found)


class PlainCheckpointer:
    """A checkpointer as somebody else would write one: whole records, as bytes."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def save(self, record: CheckpointRecord) -> None:
        self.stored[record.invocation_id] = record.to_bytes()

    async def load(self, invocation_id: str) -> CheckpointRecord | None:
        found = self.stored.get(invocation_id)
        return None if found is None else CheckpointRecord.from_bytes(found)

    async def delete(self, invocation_id: str) -> None:
        self.stored.pop(invocation_id, None)

    async def list(self, filter: Any = None) -> Any:
        return [CheckpointRecord.from_bytes(data).summary() for data in self.stored.values()]


class Heard:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[NodeEvent] = []

    async def __call__(self, event: NodeEvent) -> None:
        self.events.append(event)

    @property
    def phases(self) -> list[tuple[str, str]]:
        return [(event.node_name, event.phase) for event in self.events]


def _timeless(record: CheckpointRecord) -> CheckpointRecord:
    return msgspec.structs.replace(record, last_saved_at=None)
