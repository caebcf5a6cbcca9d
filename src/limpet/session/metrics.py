"""Metrics: numbers about what happened, handed to whoever measures.

`lp.maintenance.on_metric(fn)` calls `fn(metric)` in this process, after what it tells of is
durable. What a hook raises is logged and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from limpet.session.loggers import SESSION


class Metric(msgspec.Struct, frozen=True):
    """One measurement: what it is of, and its values. docs/history.md lists the names."""

    name: str
    values: Mapping[str, Any]


Hook: TypeAlias = Callable[[Metric], None]


class Metrics:
    """The hooks of one process."""

    def __init__(self) -> None:
        self._hooks: list[Hook] = []

    def add(self, hook: Hook) -> None:
        self._hooks.append(hook)

    def record(self, name: str, **values: Any) -> None:
        """Hand a measurement to every hook."""
        for hook in self._hooks:
            try:
                hook(Metric(name, values))
            except Exception as error:
                kind = type(error).__name__
                SESSION.warning("metric hook failed: error=%s metric=%s", kind, name)
