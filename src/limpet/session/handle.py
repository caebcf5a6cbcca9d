"""What the life of a session needs of the object that holds it. Session is one."""

from __future__ import annotations

from typing import Protocol

from limpet.model import Event, Fact, Head, Key
from limpet.model.facts.phases import Phase
from limpet.session.writer import Writer


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

    async def record(self, *facts: Fact, actor: str | None = None) -> tuple[Event, ...]: ...

    def _begin_memory(self) -> None:
        """Begin with working memory that is empty; the other layers are there as they are."""
        ...

    async def _let_go(self) -> None:
        """Give back what a session that does not work any more has no use for."""
        ...
