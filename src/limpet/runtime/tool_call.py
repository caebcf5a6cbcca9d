"""A tool call of a model: checked, permitted, run once, and answered exactly once.

Whatever goes wrong, a wrong input, an unknown tool, a denial or an exception, becomes a result
that the model reads; the turn goes on. The call's id is the identity of its approval, its effect
and its result, so calls may run in any order and at once.
"""

from __future__ import annotations

import asyncio
import inspect
import io
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from datetime import timedelta
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import msgspec

from limpet.errors import (
    EffectFailed,
    EffectUnknown,
    Interrupted,
    InvalidEvent,
    InvalidInput,
    LimpetError,
    ToolDenied,
    ToolInvalid,
)
from limpet.model import EMPTY, Draft, Event, canonical, settle
from limpet.model.facts.running import budgets, runs
from limpet.model.facts.running.requests import TOOL_RESULT
from limpet.model.facts.running.runs import readable, stored_error
from limpet.runtime import effects, requests
from limpet.runtime.effects import (
    Effect,
    EffectCall,
    cancelled_itself,
    idempotency_key,
    retry_pause,
)
from limpet.runtime.model_call import ToolCall, ToolResult
from limpet.runtime.run import TurnRun
from limpet.runtime.tool import KEY, ApprovalNeeded, allowing, arguments_of, parameters_of
from limpet.runtime.turn_log import args_hash, identity
from limpet.session.conversation.messages import UNKNOWN
from limpet.session.conversation.shapes import safe_name
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.journal import Journal
from limpet.session.life.tools import OnUnknown, Tool, ToolUse
from limpet.session.runs.setup import Permission
from limpet.session.runs.switches import CLOSED
from limpet.session.writer import writer_of

OUTPUT_BYTES_MAX: Final = 2**20  # of a result; a larger one is cut, and says so
RESULTS_CACHED_MAX: Final = 1_024  # of pure tools, in one process
_SHOWN: Final = (complex, range, slice)  # their repr is all there is to them


class ToolUseCall:
    """One call of Turn.tool."""

    def __init__(
        self,
        turn: TurnRun,
        call: ToolCall,
        tool: Tool | None,
        use: ToolUse,
        *,
        permission: Permission,
        offered: Iterable[str],
        on_unknown: OnUnknown | None,
        pure: bool,
        timeout: float | timedelta | None,
        retries: int,
        record_args: bool | None = None,
        tools: Mapping[str, Tool] = EMPTY,
        permit: Callable[[Tool], Permission] = lambda tool: tool.permission,
    ) -> None:
        self._turn, self._call, self._tool, self._use = turn, call, tool, use
        self._retries, self._record_args = retries, record_args
        self._permission, self._on_unknown, self._offered = permission, on_unknown, offered
        self._pure, self._timeout = pure, timeout
        self._tools, self._permit = tools, permit  # what an open circuit may fall back to
        self._switch = CLOSED
        self._arguments: dict[str, Any] | None = None  # for the first try of the function
        self._invalid: str | None = None  # said of a result that cannot be recorded

    async def run(self) -> ToolResult:
        """Its result: recorded, or found now. Never raises what the tool raised."""
        # Two hands on one call would both find no result, and both act.
        async with self._turn.pauses.one_by_one(("call", self._call.id)):
            return await self._run()

    async def _run(self) -> ToolResult:
        call, turn = self._call, self._turn
        turn.records.reach("effect", call.id, 1)
        turn.records.reach("request", call.id)
        done = turn.records.events.get(self._result_id)
        if done is None and call.id not in turn.records.calls:
            done = await self._result_elsewhere()
        if done is not None:
            return ToolResult(done.data.get("output"), done.data.get("is_error", False))
        begun = turn.records.effects.get((call.id, 1))
        if begun is not None and begun.has_outcome:  # recorded while the session was suspended
            output, is_error = begun.outcome
            return await self._answered(output, is_error=is_error)
        turn.check_budget()
        with turn.traced("tool", call.name, call=call.provider_id or call.id) as notes:
            try:
                result = await self._ran()
            except (InvalidInput, InvalidEvent, ToolDenied) as error:
                result = await self._refused(error)
            notes.error = "tool_error" if result.is_error else None
            return result

    async def _result_elsewhere(self) -> Event | None:
        """The result of a call of an earlier turn. Raises InvalidInput for an id that a harness
        made up, if it has one too: that is the result of another call."""
        use, result = f"{self._call.id}/use", self._result_id
        events = {event.id: event for event in await self._turn.session.read_ids([use, result])}
        if result in events and use not in events:
            raise InvalidInput(
                f"an earlier turn has used the id {self._call.id!r} for a call of a tool. Give "
                "each ToolCall that you make an id of its own."
            )
        return events.get(result)

    async def _ran(self) -> ToolResult:
        call, tool = self._call, self._tool
        if call.error is not None:
            return await self._answered(call.error, is_error=True)
        if tool is None:
            offered = ", ".join(self._offered) or "none"
            raise InvalidInput(f"There is no tool named {call.name!r}. The tools are: {offered}.")
        if (chosen := await self._switched(tool)) is None:
            raise InvalidInput(f"The tool {tool.name!r} is switched off for now. Do without it.")
        tool = chosen
        if not isinstance(call.input, Mapping):
            raise InvalidInput(f"the input of {tool.name!r} must be an object.")
        input = dict(call.input)
        if tool.function is not None:  # nobody is asked about an input that cannot be used
            self._arguments = arguments_of(tool, input)
        if self._permission == "deny":
            raise ToolDenied(tool.name)
        # Nobody is asked about what cannot be used; an effect is checked when it is performed.
        if self._permission == "always_ask" or self._pure or tool.pure:
            await self._use.check(tool.name)
        if self._permission == "always_ask":
            allowed = await self._approved(input)
            if isinstance(allowed, str):
                raise InvalidInput(allowed)
        if tool.function is None and self._is_unknown:
            raise InvalidInput(
                f"The tool {tool.name!r} has no function any more: a client runs it."
            )
        if tool.function is None:
            return await self._asked_client(input)
        if (self._pure or tool.pure) and not self._is_unknown:
            return await self._stepped(tool, input)
        try:
            was_asked = self._permission == "always_ask"
            return await self._performed(tool, input, is_allowed=was_asked)
        except ApprovalNeeded:
            allowed = await self._approved(input)
        if isinstance(allowed, str):
            raise InvalidInput(allowed)
        return await self._performed(tool, input, is_allowed=True)

    async def _switched(self, tool: Tool) -> Tool | None:
        """The tool that runs: its fallback while its circuit is open, None if it has none. A call
        that has begun ends as it began, with the tool that it began with, and with no other."""
        checkpoints = store_checkpoints(writer_of(self._turn.session).journal)
        switches = (await checkpoints.switches(self._turn.session.app)).tools
        self._switch = switches.get(tool.name, CLOSED)
        begun = self._turn.records.effects.get((self._call.id, 1))
        if begun is None:
            if not self._switch.is_open(self._turn.now_us):
                return tool
            other = self._switch.fallback
        else:
            other = begun.name
            if other == tool.name:
                return tool
        chosen = self._tools.get(safe_name(other)) if other is not None else None
        if chosen is not None:
            self._permission = self._permit(chosen)
            self._switch = switches.get(chosen.name, CLOSED)
        return chosen

    async def _approved(self, input: Mapping[str, Any]) -> str | None:
        """Return None if a person allows the call, else the text that denies it."""
        name = self._call.name
        _, data = await requests.request(self._turn, self._call.id, "approval", name, input)
        if data.get("allow") is True:
            return None
        note = data.get("note")
        return f"The user did not allow this call. {note}" if note else "The user did not allow it."

    async def _asked_client(self, input: Mapping[str, Any]) -> ToolResult:
        """The client's answer. If a person was asked first, the call's id names that request."""
        turn, id, name = self._turn, self._call.id, self._call.name
        was_approved = (
            id in turn.records.asked and turn.records.asked[id].data["awaits"] == "approval"
        )
        asked = identity(id, "client") if was_approved else id
        asked, data = await requests.request(turn, asked, "question", name, input)
        if was_approved:
            requests.queue_result(turn, asked, data, output=data.get("output"))
        return await self._answered(data.get("output"), is_error=data.get("is_error") is True)

    async def _stepped(self, tool: Tool, input: Mapping[str, Any]) -> ToolResult:
        """A tool that only looks: one commit holds the step and the result."""
        started_us = self._turn.now_us
        cache = _Cache(self._turn, tool, input, self._switch.cache_seconds)
        output, error = cache.find(started_us) or await self._looked(tool, input)
        if error is None:
            cache.put(output, self._turn.now_us)
        if error is not None:
            return await self._answered(error, is_error=True)
        step = runs.step_recorded(
            f"{self._call.id}/step",
            tool.name,
            1,
            args_hash(input),
            output,
            started_us=started_us,
            call=self._call.id,
        )
        return await self._answered(output, is_error=False, before=(step,))

    async def _looked(self, tool: Tool, input: Mapping[str, Any]) -> tuple[Any, str | None]:
        """The output of a function that only looks, or what the last of its tries raised."""
        tried = 0
        while True:
            try:
                async with asyncio.timeout(_seconds(self._bound_of(tool))):
                    with self._turn.pauses.inside(f"the tool {tool.name!r}"):
                        output = await effects.call(self._bound(tool), **input)
                self._turn.driver.check()
                return (output, None) if self._invalid is None else (None, self._invalid)
            except Interrupted:
                raise
            except asyncio.CancelledError:
                if not cancelled_itself():
                    raise
                why = "It was cancelled from inside."
            except Exception as error:
                why = _said(error)
            self._turn.driver.check()
            tried += 1
            if tried > self._retries_of(tool):
                return None, why
            await asyncio.sleep(retry_pause(tried))

    async def _performed(
        self, tool: Tool, input: Mapping[str, Any], *, is_allowed: bool
    ) -> ToolResult:
        """Perform the effect. Raises ApprovalNeeded if the function wants a person to allow it."""
        turn = self._turn
        cost = tool.cost or turn.session.tools.bound.get(tool.name, {}).get("cost")
        effect = Effect(
            tool.name,
            self._bound(tool),
            input,
            self._on_unknown or tool.on_unknown,
            None,
            self._bound_of(tool),
            self._retries_of(tool),
            budgets.amount(cost, None) if cost else None,
            None,
            call=self._call.id,
            outcome=self._result,
            record_args=tool.record_args if self._record_args is None else self._record_args,
        )
        try:
            with allowing(is_allowed=is_allowed):
                return await self._settled(effect)
        except ApprovalNeeded as error:
            if is_allowed:  # it was allowed
                return await self._refused(error)
            raise

    async def _settled(self, effect: Effect) -> ToolResult:
        """The result of an effect, once it is known what came of it, or a person has given it
        up."""
        try:
            output = await EffectCall(self._turn, effect, self._use).run()
        except EffectFailed as error:
            return await self._answered(error.error, is_error=True)
        except EffectUnknown as error:
            note = f"{UNKNOWN} {error.note}" if error.note else UNKNOWN
            return await self._answered(note, is_error=True)
        return await self._answered(output, is_error=False)

    @property
    def _is_unknown(self) -> bool:
        """True if an earlier try of the call may have had its effect."""
        record = self._turn.records.effects.get((self._call.id, 1))
        return record is not None and record.is_unknown

    async def _refused(self, refusal: Exception) -> ToolResult:
        """The result of a call that is not made. If an earlier try may have had its effect, that is
        settled first: to the model a refusal says that nothing was done."""
        call = self._call
        record = self._turn.records.effects.get((call.id, 1))
        if record is None or not self._is_unknown:
            said = str(refusal) if isinstance(refusal, LimpetError) else _said(refusal)
            return await self._answered(said, is_error=True)
        effect = Effect(
            record.name,
            _never,
            dict(call.input),
            "ask",
            None,
            None,
            0,
            None,
            None,
            call=call.id,
            outcome=self._result,
            record_args=record.args is not None,
            refusal=refusal,
        )
        return await self._settled(effect)

    def _bound_of(self, tool: Tool) -> float | timedelta | None:
        """Return how long a try may take."""
        return self._timeout or tool.timeout or self._switch.timeout_seconds or None

    def _retries_of(self, tool: Tool) -> int:
        """Return how often a try that raises is repeated."""
        return self._retries or tool.retries

    def _bound(self, tool: Tool) -> Callable[..., Any]:
        """The function as the effect calls it: with the plain input, which it turns into arguments,
        new ones for each try."""

        async def run(**input: Any) -> Any:
            arguments, self._arguments = self._arguments, None
            if arguments is None:
                arguments = arguments_of(tool, input)
            assert tool.function is not None
            if KEY in parameters_of(tool.function):
                arguments[KEY] = idempotency_key()
            value = await effects.call(tool.function, **arguments)
            try:
                return _output_of(value)
            except TypeError as error:  # it has done its work: no reason to do that again
                why = f"has returned a live object, which cannot be recorded: {error}"
                self._invalid = str(
                    ToolInvalid(tool.name, f"{why}. It ran; do not repeat the call")
                )
                return self._invalid

        return run

    async def _answered(
        self, output: Any, *, is_error: bool, before: tuple[Draft, ...] = ()
    ) -> ToolResult:
        """Record the result, unless it was recorded with the outcome of the effect."""
        records = self._turn.records
        event = records.events.get(self._result_id)
        if event is None:
            *_, event = await self._turn.log.write(*before, self._result(output, is_error=is_error))
            records.add(event)
        return ToolResult(event.data.get("output"), event.data.get("is_error", False))

    def _result(self, output: Any, *, is_error: bool) -> Draft:
        data: dict[str, Any] = {"request_id": self._call.id, "output": _cut(output)}
        if is_error or (self._invalid is not None and output == self._invalid):
            data["is_error"] = True
        return Draft(type=TOOL_RESULT, data=data, id=self._result_id)

    @property
    def _result_id(self) -> str:
        return f"{self._call.id}/result"


def _never() -> NoReturn:
    raise AssertionError("a call that is refused is not made")


class _Cache:
    """The results of pure tools that are used again, of one user in one process."""

    def __init__(self, turn: TurnRun, tool: Tool, input: Mapping[str, Any], seconds: float) -> None:
        session = turn.session
        self._us, self._of = round(seconds * 1_000_000), _results(writer_of(session).journal)
        self._key = (session.app, session.user, tool.name, args_hash(input)) if self._us else None

    def find(self, now_us: int) -> tuple[Any, None] | None:
        cached = None if self._key is None else self._of.get(self._key)
        return (cached[1], None) if cached is not None and now_us < cached[0] else None

    def put(self, output: Any, now_us: int) -> None:
        if self._key is None:
            return
        self._of.setdefault(self._key, (now_us + self._us, output))
        if self._of[self._key][0] <= now_us:
            self._of[self._key] = (now_us + self._us, output)
        if len(self._of) > RESULTS_CACHED_MAX:
            del self._of[next(iter(self._of))]


_results_by_journal: WeakKeyDictionary[Journal, dict[Any, tuple[int, Any]]] = WeakKeyDictionary()


def _results(journal: Journal) -> dict[Any, tuple[int, Any]]:
    return _results_by_journal.setdefault(journal, {})


def _output_of(value: Any) -> Any:
    """Return a tool's result as JSON holds it: words for what it cannot hold, cut if too large.
    Raises TypeError for a live object, also in a list or a dict; it names the type."""
    try:
        return _cut(settle(value, "the result"))
    except InvalidInput:
        pass
    try:
        plain = msgspec.to_builtins(value, enc_hook=_plain)
    except _Live as live:
        raise TypeError(str(live)) from None
    except Exception:  # of a value's own code, or it is too deep
        return f"(a value of the type {type(value).__name__})"
    try:
        return _cut(settle(plain, "the result"))
    except InvalidInput:
        return readable(str(plain))


class _Live(Exception):
    """A value that only its process can use. The name of its type is the message."""


def _plain(value: Any) -> Any:
    """Turn a value that msgspec does not know into values that it knows; into text, where its type
    has one. Raises _Live."""
    if (dump := getattr(value, "model_dump", None)) is not None and not isinstance(value, type):
        try:
            return dump(mode="json")
        except Exception:  # one of its fields has no JSON: it may be a live object
            return dump()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Set, Sequence)) and not isinstance(value, range):
        return list(value)
    kind: Any = type(value)
    is_live = isinstance(value, (Awaitable, Iterator, AsyncIterator, io.IOBase))
    if is_live or (kind.__str__ is object.__str__ and not isinstance(value, _SHOWN)):
        if inspect.iscoroutine(value):
            value.close()  # nobody awaits it
        raise _Live(kind.__qualname__)
    return str(value)


def _cut(output: Any) -> Any:
    raw = canonical(output)
    if len(raw) <= OUTPUT_BYTES_MAX:
        return output
    shown = output if isinstance(output, str) else raw.decode()
    return f"{shown[: OUTPUT_BYTES_MAX // 4]}… (cut; the result had {len(raw):,} bytes)"


def _said(error: Exception) -> str:
    return "It took too long." if isinstance(error, TimeoutError) else stored_error(error)


def _seconds(timeout: float | timedelta | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
