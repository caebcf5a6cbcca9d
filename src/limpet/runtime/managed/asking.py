"""What every managed tool is: an input with a description, run for one turn.

Whatever a tool returns is plain JSON, because it is recorded and goes to a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from limpet.errors import InvalidInput
from limpet.model import NO_TEXTS, Event, Head, Key, Texts
from limpet.model.facts.outcomes import outcome_in
from limpet.model.facts.running.children import CHILD_CREATED, created_id
from limpet.model.facts.running.requests import open_requests
from limpet.model.facts.running.runs import run_in
from limpet.runtime.children import open_child
from limpet.session.session import Session
from limpet.session.wire import time_form

LIMIT: Final = 20
LIMIT_MAX: Final = 200


class Caller(msgspec.Struct, frozen=True):
    """For whom a tool runs. `id` is the same whenever the same call of the turn is made."""

    turn: Any  # a Turn, which imports what is below
    lp: Any  # a Limpet, or None
    harnesses: Mapping[str, Any]
    id: str

    @property
    def session(self) -> Session[Any]:
        found: Session[Any] = self.turn.session
        return found

    async def other(self, id: str | None) -> Session[Any]:
        """The session of the turn, one of any app that was delegated from it, or another one of its
        user and app. Raises SessionNotFound if a child's key is another session's."""
        own = self.session
        if id is None or id == own.id:
            return own
        for made in await own.read_ids([created_id(id)]):
            if made.type == CHILD_CREATED and made.data is not None:
                return await open_child(own, Key(made.data["app"], made.data["user"], id))
        return Session(own.writer.journal, Key(own.app, own.user, id))


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool: its fields are its input, its docstring is what the model reads."""

    name: ClassVar[str] = ""
    records: ClassVar[bool] = False  # it records its own call in the turn

    async def run(self, caller: Caller) -> Any:
        raise NotImplementedError  # every tool has its own


def check_limit(limit: int) -> int:
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidInput(f"limit is a number from 1 to {LIMIT_MAX}, not {limit}.")
    return limit


def event_shown(event: Event) -> dict[str, Any]:
    """An event as a model reads it."""
    shown: dict[str, Any] = {"seq": event.seq, "id": event.id, "type": event.type}
    shown |= {"actor": event.actor, "at": time_form(event.at_us), "data": event.data}
    if event.wake_id is not None:
        shown["wake_id"] = event.wake_id
    if event.processed is not None:
        shown["processed"] = event.processed != 0
    return shown


def head_shown(head: Head, texts: Texts = NO_TEXTS) -> dict[str, Any]:
    """Where a session stands, in a line."""
    facts = head.facts
    shown: dict[str, Any] = {"id": head.key.id, "app": head.key.app, "phase": head.phase}
    shown |= {"version": head.version, "pending": head.pending}
    shown |= {"stop_reason": run_in(facts).get("stop"), "labels": dict(head.labels)}
    shown["blocked_on"] = [request.id for request in open_requests(facts)]
    shown["updated_at"] = time_form(head.updated_us)
    if (outcome := outcome_in(facts, texts)) is not None:
        shown["outcome"] = {"title": outcome.title, "verdict": outcome.verdict}
    return shown
