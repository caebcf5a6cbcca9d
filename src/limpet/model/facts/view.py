"""What a fact may read of a head, without importing the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

Changes: TypeAlias = dict[str, Any]  # fields of the head, and what each becomes


class View(Protocol):
    """The folded part of a head, read-only."""

    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def pending(self) -> int: ...
    @property
    def pending_us(self) -> int | None: ...
    @property
    def timers(self) -> Mapping[str, Any]: ...
    @property
    def priority(self) -> int: ...
    @property
    def schema_version(self) -> str | None: ...


# The view before the event, its data, and the clock's time when it was recorded.
Fold: TypeAlias = Callable[[View, Mapping[str, Any], int], Changes]
Bound: TypeAlias = Callable[[View], None]
