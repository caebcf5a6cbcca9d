"""The descriptor of a suspension: what an invocation waits for, as observers and callers see it."""

from __future__ import annotations

from typing import Any

import msgspec


class SuspensionDescriptor(msgspec.Struct, frozen=True):
    """What a suspended invocation waits for. `metadata` is plain JSON data."""

    signal_id: str
    metadata: dict[str, Any] = {}
