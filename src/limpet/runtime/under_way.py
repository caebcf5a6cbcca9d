"""A turn under way, as its calls see it: what effects, streams and requests need of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from limpet.runtime.driving import Driver
from limpet.runtime.hold import Hold
from limpet.runtime.log import TurnLog
from limpet.runtime.pauses import Pauses
from limpet.runtime.records import Records
from limpet.session.runs.setup import Permission
from limpet.session.session import Session


class UnderWay(Protocol):
    """Part of `limpet.Turn`."""

    log: TurnLog
    driver: Driver
    hold: Hold
    records: Records
    pauses: Pauses
    id: str
    wake_id: str
    attempt: int
    worker_permissions: Mapping[str, Permission]

    @property
    def session(self) -> Session[Any]: ...

    @property
    def now_us(self) -> int: ...

    def check_same(
        self,
        what: str,
        name: str,
        occurrence: int,
        hashes: tuple[str, str],
        values: tuple[Any, Any],
    ) -> None:
        """Stop the turn if a call has other arguments than its record."""
        ...
