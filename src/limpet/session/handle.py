"""What the life of a session needs of the object that holds it. Session is one."""

from __future__ import annotations

from typing import Protocol

from limpet.model import Event, Fact, Head, Key
from limpet.model.facts.phases import Phase
from limpet.session.writer import Standby, Writer


class Holder(Standby, Protocol):
    """What a session holds only while it works: see `life.lifecycle`."""

    def begin_memory(self) -> None:
        """Begin with empty working memory; the other layers stay as they are."""
        ...

    async def release(self) -> None:
        """Give back what a session holds only while it works: exclusive tools, working memory."""
        ...


class Handle(Protocol):
    """A session, as the modules below it see it."""

    key: Key
    actor: str | None
    writer: Writer

    @property
    def app(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def head(self) -> Head: ...
    @property
    def phase(self) -> Phase: ...

    @property
    def internals(self) -> Holder: ...

    async def record(self, *facts: Fact, actor: str | None = None) -> tuple[Event, ...]: ...
