"""What a session shows of its runs, and the verbs by which people answer and stop them.

A part of Session. The runtime itself stands above: nothing here runs a harness.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from limpet import errors
from limpet.errors import (
    InvalidInput,
    SessionConflict,
)
from limpet.model import ID_CHARS_MAX, UPDATE_TRIES_MAX, Draft, Event, Head, Key, is_leased, unfit
from limpet.model.facts import TERMINAL
from limpet.model.facts.running import (
    CONFIRMATION,
    CUSTOM_RESULT,
    INTERRUPT,
    Budget,
    BudgetView,
    Request,
    RunFailure,
    Status,
    StopReason,
    Usage,
    budgets,
    children_in,
    failure_in,
    open_requests,
    requests_in,
    run_in,
)
from limpet.model.facts.running.requests import asked_id, check_answer
from limpet.model.facts.running.runs import waiting_status
from limpet.session.arguments import check_actor, check_limit

if TYPE_CHECKING:
    from limpet.session.runs.tracing import Activation, Trace
    from limpet.session.writer import Writer

_TAIL: Final = 20


class Running:
    """Statuses, requests and budgets of a session."""

    __slots__ = ()

    if TYPE_CHECKING:
        writer: Writer
        actor: str | None
        key: Key

        @property
        def user(self) -> str: ...

    @property
    def status(self) -> Status:
        """idle, running, rescheduling or terminated, as far as this object knows.

        It is running while a worker holds its lease.
        """
        return status_at(self.writer.known.head, self.writer.journal.now_us())

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the last run stopped; None if there was none."""
        head = self.writer.known.head
        if head.phase in TERMINAL:
            return "terminated"
        found: StopReason | None = run_in(head.facts).get("stop")
        return found

    @property
    def blocked_on(self) -> tuple[Request, ...]:
        """What its turn waits for: answer with confirm or answer."""
        known = self.writer.known
        return open_requests(known.head.facts, known.texts)

    @property
    def failure(self) -> RunFailure | None:
        """Why the last run of its turn failed; None if its last turn ended well."""
        known = self.writer.known
        return failure_in(known.head.facts, known.texts)

    @property
    def usage(self) -> Usage:
        """Turns, tokens and cost so far."""
        return budgets.usage(self.writer.known.head.facts)

    @property
    def budget(self) -> BudgetView | None:
        """What it may use, and what of it is spent, reserved and left; None: no limit."""
        return budgets.view(self.writer.known.head.facts)

    async def children(self) -> tuple[Key, ...]:
        """The children of this session that have not ended, in the order of their creation."""
        await self.writer.load(tail=_TAIL)
        found = children_in(self.writer.known.head.facts)
        in_order = sorted(found.items(), key=lambda item: int(item[1]["seq"]))
        return tuple([Key(child["app"], child["user"], id) for id, child in in_order])

    async def trace(self, wake_id: str) -> Trace:
        """One wake, as a tree of spans with times and all of its events."""
        if reason := unfit(wake_id, ID_CHARS_MAX):
            raise InvalidInput(f"the id of a wake {reason}. Pass `event.wake_id`.")
        from limpet.session.runs.tracing import trace_of

        return await trace_of(self.writer, wake_id)

    async def wakes(self, *, limit: int = 20) -> tuple[Event, ...]:
        """The events that began the newest wakes, the newest first; `event.wake_id` names each."""
        from limpet.session.runs.tracing import wakes_of

        return await wakes_of(self.writer, check_limit(limit))

    async def activations(self, *, limit: int = 20) -> tuple[Activation, ...]:
        """Why, when and by whom it was woken, and what came of it; the newest first."""
        from limpet.session.runs.tracing import activations_of

        return await activations_of(self.writer, check_limit(limit))

    async def grant(self, budget: Budget | float, *, actor: str | None = None) -> Event:
        """Let it use so much more. A number is a cost. The first grant sets the limit."""
        fact = budgets.granted(budgets.budget_of(budget))
        prepared = self.writer.journal.prepare(fact, self._by(actor))
        return (await self.writer.commit((prepared,)))[0]

    async def confirm(
        self,
        request_id: str,
        *,
        allow: bool,
        note: str | None = None,
        actor: str | None = None,
    ) -> Event:
        """Allow or deny what a turn asked for. Its worker goes on with it.

        Raises RequestNotFound, RequestAnswered, RequestMismatch.
        """
        _check_request(request_id)
        if not isinstance(allow, bool):
            raise InvalidInput("confirm takes allow=True or allow=False.")
        data: dict[str, Any] = {"request_id": request_id, "allow": allow}
        if note is not None:
            data["note"] = note
        return await self._answer(CONFIRMATION, data, actor)

    async def answer(
        self,
        request_id: str,
        output: Any,
        *,
        is_error: bool = False,
        actor: str | None = None,
    ) -> Event:
        """Bring the output of a tool that a turn asked for; or the result of an effect of which
        nobody knew. Raises RequestNotFound, RequestAnswered, RequestMismatch."""
        _check_request(request_id)
        data: dict[str, Any] = {"request_id": request_id, "output": output}
        if is_error:
            data["is_error"] = True
        return await self._answer(CUSTOM_RESULT, data, actor)

    async def interrupt(self, note: str | None = None, *, actor: str | None = None) -> Event:
        """Stop its turn: what it waits for is dropped, and its revisits.

        A running harness sees Interrupted at its next await. Works with no worker alive.
        """
        if note is not None and (not isinstance(note, str) or not note):
            raise InvalidInput("the note of an interrupt is a text that is not empty.")
        data = {} if note is None else {"note": note}
        draft = Draft(type=INTERRUPT, data={**data, "at": "now"})
        prepared = self.writer.journal.prepare(draft, self._by(actor))
        return (await self.writer.commit((prepared,)))[0]

    async def _answer(self, type: str, data: Mapping[str, Any], actor: str | None) -> Event:
        """Recorded on the version at which the request was seen: the commit refuses a second
        answer, and an answer of the wrong kind."""
        writer, id = self.writer, data["request_id"]
        prepared = writer.journal.prepare(Draft(type=type, data=data), self._by(actor))
        for left in reversed(range(UPDATE_TRIES_MAX)):
            await writer.load(tail=_TAIL)
            facts = writer.known.head.facts
            if id not in requests_in(facts):
                await self._check_asked(id)
            check_answer(self.key, facts, type, data)
            try:
                return (await writer.commit((prepared,), writer.known.version))[0]
            except SessionConflict as error:
                if error.on != "session" or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _check_asked(self, id: str) -> NoReturn:
        """The turn of this request is over, or there never was one: the log knows."""
        asked = await self.writer.journal.store.read_ids(self.key, [asked_id(id)])
        raise (errors.RequestAnswered if asked else errors.RequestNotFound)(self.key, id)

    def _by(self, actor: str | None) -> str:
        """Who answers: the one named, the one bound, or the user."""
        acting = check_actor(self.actor if actor is None else actor)
        return f"user:{self.user}" if acting is None else acting


def status_at(head: Head, now_us: int) -> Status:
    """What a session is at this time. It is running while a worker holds its lease."""
    if head.phase in TERMINAL:
        return "terminated"
    return "running" if is_leased(head, now_us) else waiting_status(head.facts)


def _check_request(id: str) -> None:
    if reason := unfit(id, ID_CHARS_MAX):
        raise InvalidInput(f"the id of a request {reason}. Pass `request.id` of s.blocked_on.")
