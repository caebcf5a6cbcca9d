"""A model call: what a model is asked, the pieces it streams, and its reply, recorded once.

`Turn.model` hands a `ModelRequest` to a function of the user's, or to one of `limpet.providers`.
It takes back a `Reply`, a text, a provider's own message, or an async iterator of `Piece`s, and
records one agent.message and one agent.tool_use for each call of a tool, in one commit. A model's
output is hostile input: what cannot be used is recorded as such and answered with an error.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import InvalidInput, ModelInvalid
from limpet.model import EMPTY, Draft, Event, canonical, described, settle, unfit
from limpet.model.facts.running import runs
from limpet.model.facts.running.requests import TOOL_USE
from limpet.model.limits import NAME_CHARS_MAX
from limpet.runtime.run import Reservation, TurnRun, takes
from limpet.runtime.turn_log import identity, plain
from limpet.session.conversation.shapes import Shape, safe_name
from limpet.session.life.tools import TOOL_NAME_CHARS_MAX, Tool
from limpet.session.runs.setup import Permission, strictest_of

TEXT_BYTES_MAX: Final = 4 * 2**20  # of a reply, as JSON; the stream of a longer one is closed
REPLY_BYTES_MAX: Final = 48 * 2**20  # of all its pieces: it is recorded in one commit
NATIVE_BYTES_MAX: Final = 2 * 2**20  # of what a provider wants back; more is left out
PARTIAL_CHARS_MAX: Final = 2**18  # of a piece as followers see it; a longer text is several
TOO_LONG: Final = "too_long"  # the stop reason of a reply that was cut
CLOSE_SECONDS: Final = 5.0  # for a stream to let go of its connection
COUNT_MAX: Final = 2**53  # of tokens; a larger number is a mistake of the provider
COST_MAX: Final = 1e9  # of one call; it is counted in millionths
CALLS_MAX: Final = 128  # of tools, in one reply; what comes after is left out
INPUT_BYTES_MAX: Final = 256 * 2**10  # of a tool; a larger one is answered with an error
_COUNTS: Final = {  # the names that providers give their token counts
    "input": ("input", "input_tokens", "prompt_tokens", "prompt_token_count"),
    "output": ("output", "output_tokens", "completion_tokens", "candidates_token_count"),
    "cache_read": ("cache_read", "cache_read_input_tokens", "cached_content_token_count"),
}
_TOTALS: Final = ("tokens", "total_tokens", "total_token_count")


# The other texts of a call, and how long each may be.
_CALL_TEXTS: Final = {"id": NAME_CHARS_MAX, "name": TOOL_NAME_CHARS_MAX, "signature": 2**20}
# Permissions of the API, and as events name them.
EVENT_PERMISSIONS: Final[Mapping[Permission, str]] = {
    "always_allow": "allow",
    "always_ask": "ask",
    "deny": "deny",
}


class ModelRequest(msgspec.Struct, frozen=True):
    """One call of a model: its context in the form of `shape`, and the tools that it may use.

    `attempt` counts the attempts at this call, from 1; it is above 1 after a crash.
    """

    system: str
    messages: Sequence[Mapping[str, Any]]
    tools: tuple[Tool, ...] = ()
    shape: Shape = "openai"
    attempt: int = 1


class Piece(msgspec.Struct, frozen=True):
    """A part of a streamed reply. Every field may be absent.

    `tool` is `{index, id, name, arguments}`: `arguments` is a fragment of JSON text, fragments with
    the same index belong together, and only the first needs id and name. `usage` has the token
    counts `input`, `output` and `cache_read`, and optionally `cost`; the last one counts.
    `reasoning` is shown to followers and never sent back to a model. `native` is data that the
    provider needs unchanged with this message, such as a signed block of reasoning.
    """

    text: str | None = None
    tool: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    stop: str | None = None
    reasoning: str | None = None
    native: Mapping[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call that the model requests. `id` is ours and unique in the session; `provider_id` is
    the provider's id. `error` says why its input cannot be used, if it cannot."""

    id: str
    name: str
    input: Any = EMPTY
    provider_id: str | None = None
    error: str | None = None


class Reply(msgspec.Struct, frozen=True):
    """A model's complete answer to one call. `event` is its agent.message once it is recorded."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Mapping[str, Any] | None = None
    stop_reason: str | None = None
    event: Event | None = None


class ToolResult(msgspec.Struct, frozen=True):
    """The outcome of a tool call, as the model reads it."""

    output: Any = None
    is_error: bool = False


Said: TypeAlias = "Reply | str | AsyncIterator[Piece] | Any"  # or a provider's own message
Call: TypeAlias = "Callable[[ModelRequest], Said | Awaitable[Said]]"


class ModelCall:
    """One call of Turn.model."""

    def __init__(
        self,
        turn: TurnRun,
        name: str,
        tools: Iterable[Tool],
        permission: Callable[[str], Permission],
    ) -> None:
        self._turn, self._name, self._tools = turn, name, tuple(tools)
        self._offered = {safe_name(tool.name): tool for tool in self._tools}
        self._permission = permission
        self._occurrence = turn.records.occurrence("model", name)
        self.id = identity(turn.id, "model", name, self._occurrence)
        self.attempt = 1
        while self._started(self.attempt) in turn.records.events:
            self.attempt += 1

    @property
    def recorded(self) -> Reply | None:
        """The reply that an earlier run has recorded."""
        self._turn.records.reach("event", self.id)
        events = self._turn.records.events
        message = events.get(self.id)
        if message is None:
            return None
        uses = [events.get(f"{self._call_id(n)}/use") for n in range(CALLS_MAX)]
        return _reply(message, [use for use in uses if use is not None])

    async def run(
        self,
        call: Call,
        context: Callable[[], Awaitable[tuple[str, Sequence[Mapping[str, Any]]]]],
        shape: Shape,
        reservation: Reservation,
    ) -> Reply:
        """Ask the model, hand on each piece to followers, and record the whole."""
        turn, span = self._turn, identity(self.id, "span", self.attempt)
        begun = runs.span_started(span, "model", self._name, parent=turn.wake_id)
        begun = msgspec.structs.replace(begun, id=self._started(self.attempt))
        turn.records.add((await turn.log.write(begun))[-1])
        try:
            system, messages = await context()
            request = ModelRequest(system, messages, self._tools, shape, self.attempt)
            inside = turn.pauses.inside(f"the model call {self._name!r}")
            with turn.traced("model", self._name) as notes, inside:
                said = _called(call, request)
                said = await said if inspect.isawaitable(said) else said
                whole = await self._collected(said)
                model, provider = getattr(call, "name", None), getattr(call, "provider", None)
                notes.model = model if isinstance(model, str) else None
                notes.provider = provider if isinstance(provider, str) else None
                notes.usage, notes.cost, notes.stop_reason = whole.usage, whole.cost, whole.stop
        except Exception as error:
            text = runs.stored_error(error)
            end = runs.span_completed(
                span, "model", self._name, "error", parent=turn.wake_id, error=text
            )
            turn.log.queue(msgspec.structs.replace(end, id=f"{self._started(self.attempt)}/failed"))
            raise
        turn.driver.check()
        end = runs.span_completed(span, "model", self._name, "success", parent=turn.wake_id)
        uses = self._uses(whole)
        message = self._message(whole, getattr(call, "name", None), shape)
        reservation.settle_at(*[None if used is None else 0 for used in whole.used])
        events = await turn.log.write(message, *uses, end, *reservation.settling())
        events = events[: 1 + len(uses)]
        for event in events:
            turn.records.add(event)
        return _reply(events[0], events[1:])

    async def _collected(self, said: Said) -> _Whole:
        whole = _Whole()
        if hasattr(said, "__aiter__"):
            try:
                async for piece in said:
                    self._turn.driver.check()
                    for partial in whole.add(_piece(piece)):
                        await self._publish(partial)
                    if whole.is_full:
                        break
            finally:
                await _close(said)
            return whole
        pieces = map(_piece, said) if isinstance(said, Iterator) else _pieces_of(said)
        for piece in pieces:
            for partial in whole.add(piece):
                await self._publish(partial)
            if whole.is_full:
                break
        return whole

    async def _publish(self, data: dict[str, Any]) -> None:
        """Hand a piece to followers; one of a tool call with the id that the call will have."""
        if (fragment := data.get("tool")) is not None:
            number, name = fragment.pop("number"), fragment["name"]
            tool = self._offered.get(safe_name(name or ""))
            named: dict[str, Any] = {"request_id": self._call_id(number)}
            named["name"] = tool.name if tool else name
            if tool is not None and tool.function is None:
                named["client"] = True
            data = {**data, "tool": {**fragment, **named}}
        await self._turn.log.publish("agent.message", data, id=self.id, attempt=self.attempt)

    def _message(self, whole: _Whole, model: Any, shape: Shape) -> Draft:
        data: dict[str, Any] = {"text": whole.text, "call": self._name}
        data["occurrence"] = self._occurrence
        if isinstance(model, str) and not unfit(model, NAME_CHARS_MAX):
            data["model"] = model
        if whole.usage:
            data["usage"] = whole.usage
        if whole.cost is not None:
            data["cost"] = whole.cost
        if whole.stop:
            data["stop_reason"] = whole.stop
        if whole.natives:
            data["native"] = {"shape": shape, "items": whole.natives}
        return Draft(type="agent.message", data=data, id=self.id)

    def _uses(self, whole: _Whole) -> list[Draft]:
        drafts = []
        for number, given in enumerate(list(whole.calls.values())[:CALLS_MAX]):
            id, (input, error) = self._call_id(number), _input_of("".join(given["arguments"]))
            name = given["name"] or ""
            data: dict[str, Any] = {"request_id": id, "name": name}
            data |= {"input": input, "message": self.id}
            if (tool := self._offered.get(safe_name(name))) is not None:
                permission = strictest_of(tool.permission, self._permission(tool.name))
                data |= {"name": tool.name, "permission": EVENT_PERMISSIONS[permission]}
                if tool.function is None and permission == "always_allow" and error is None:
                    data["client"] = True  # who is asked for the result with an event of its own
            if not name.strip() or unfit(name, NAME_CHARS_MAX):
                data["name"], error = "unnamed", "The call names no tool."
            if given["id"]:
                data["provider_id"] = given["id"]
            if given.get("signature"):
                data["signature"] = given["signature"]
            if error is not None:
                data["error"] = error
            drafts.append(Draft(type=TOOL_USE, data=data, id=f"{id}/use"))
        return drafts

    def _call_id(self, number: int) -> str:
        return f"{self.id}-{number}"

    def _started(self, attempt: int) -> str:
        return f"{self.id}/started/{attempt}"


def assemble(partials: Iterable[Event]) -> str:
    """Return the joined texts of the partial events of one message, in the order of their index.

    Of a message that was begun again, the pieces of its last attempt count; of several messages,
    those of the newest. Fragments of tool calls and of reasoning are left out, and recorded events
    too.
    """
    pieces = [event for event in partials if event.partial and isinstance(event.data, Mapping)]
    if not pieces:
        return ""
    own = [event for event in pieces if event.id == pieces[-1].id]
    last = max([event.attempt for event in own])
    texts = [e.data for e in own if e.attempt == last and isinstance(e.data.get("text"), str)]
    return "".join([data["text"] for data in sorted(texts, key=lambda d: d.get("index", 0))])


# --- what a model said ----------------------------------------------------------------------------


class _Whole:
    """The pieces of a reply, put together."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.usage: dict[str, int] = {}
        self.cost: float | None = None
        self.stop: str | None = None
        self.natives: list[Any] = []
        self._index = 0
        self._text_bytes = self._native_bytes = self._bytes = 0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def used(self) -> tuple[float | None, int | None]:
        """Cost and tokens, where the model says them: they are counted with the message."""
        return self.cost, sum(self.usage.values()) if self.usage else None

    @property
    def is_full(self) -> bool:
        """True if nothing more is taken: a stream may never end."""
        return self.stop == TOO_LONG

    def add(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Take a piece; yield what followers see of it."""
        for reasoning in _cut_up(piece.reasoning):
            self._count(reasoning)
            yield self._numbered("reasoning", reasoning)
        for text in _cut_up(piece.text):
            self._text_bytes += self._count(text)
            if self._text_bytes > TEXT_BYTES_MAX or self.is_full:
                self.stop = TOO_LONG
                return
            self._texts.append(text)
            yield self._numbered("text", text)
        if piece.tool is not None:
            for fragment in self._add_call(piece.tool):
                yield self._numbered("tool", fragment)
        if piece.usage is not None:
            self.usage, self.cost = _used(piece.usage)
        if piece.stop and not self.is_full:
            self.stop = clean_text(str(piece.stop))[:NAME_CHARS_MAX]
        if piece.native is not None:
            self._add_native(piece.native)

    def _count(self, text: str) -> int:
        """The bytes of a text as JSON, which count for the whole."""
        size = len(msgspec.json.encode(text))
        self._bytes += size
        if self._bytes > REPLY_BYTES_MAX:
            self.stop = TOO_LONG
        return size

    def _add_native(self, given: Any) -> None:
        """A block that cannot be stored as it is would not be accepted back."""
        try:
            native = settle(given, "native")
        except (InvalidInput, RecursionError):
            return
        self._native_bytes += len(canonical(native))
        if self._native_bytes <= NATIVE_BYTES_MAX:
            self.natives.append(native)

    def _numbered(self, name: str, value: Any) -> dict[str, Any]:
        self._index += 1
        return {name: value, "index": self._index - 1}

    def _add_call(self, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Take a fragment of a tool call; yield it in pieces of a size that can be published."""
        number = given.get("index")
        if type(number) is not int or abs(number) > COUNT_MAX:
            number = len(self.calls) if given.get("id") or not self.calls else max(self.calls)
        empty: dict[str, Any] = {"id": None, "name": None, "arguments": [], "bytes": 0}
        call = self.calls.setdefault(number, empty)
        fragment = given.get("arguments") or ""
        fragment = clean_text(
            fragment if isinstance(fragment, str) else canonical(plain(fragment)).decode()
        )
        if call["bytes"] <= INPUT_BYTES_MAX:  # one that is too large is answered with an error
            call["arguments"].append(fragment)
        call["bytes"] += self._count(fragment)
        for name, most in _CALL_TEXTS.items():
            if isinstance(given.get(name), str) and given[name]:
                call[name] = clean_text(given[name])[:most]
        place = list(self.calls).index(number)  # calls are numbered as they begin
        for part in [*_cut_up(fragment)] or [""]:
            shown = {"index": number, "id": call["id"], "name": call["name"], "number": place}
            yield {**shown, "arguments": part}


def _called(call: Call, request: ModelRequest) -> Any:
    try:
        return call(request)
    except TypeError as error:
        if takes(call, request):
            raise
        raise ModelInvalid(
            f"a model call takes one argument, a limpet.ModelRequest: {error}. Give it one "
            "parameter."
        ) from error


def _piece(given: Any) -> Piece:
    """A piece of a stream; a text, or a dict with its fields, is one too."""
    if isinstance(given, Piece):
        return given
    if isinstance(given, str):
        return Piece(text=given)
    if isinstance(given, Mapping):
        known = {name: given[name] for name in Piece.__struct_fields__ if name in given}
        usage = {name: given[name] for name in ("cost",) if given.get(name) is not None}
        if usage:
            known["usage"] = {**(known.get("usage") or {}), **usage}
        return Piece(**known)
    raise ModelInvalid(
        f"a model call yields pieces (limpet.Piece, a text or a dict), not {described(given)}."
    )


def _pieces_of(said: Any) -> Iterator[Piece]:
    """A whole reply as pieces: a Reply, a text, or a provider's own message."""
    if isinstance(said, str):
        yield Piece(text=said)
    elif isinstance(said, Reply):
        yield Piece(text=said.text, usage=said.usage, stop=said.stop_reason)
        for number, call in enumerate(said.tool_calls):
            yield _whole_call(number, call.provider_id or call.id, call.name, call.input)
    elif (choices := field(said, "choices")) is not None:
        for choice in choices[:1]:  # none where the provider refuses
            yield from _from_chat(field(choice, "message"))
            yield Piece(stop=field(choice, "finish_reason"))
        yield Piece(usage=_usage_of(said))
    elif (candidates := field(said, "candidates")) is not None:
        for candidate in candidates[:1]:
            yield from _from_gemini(candidate)
        yield Piece(usage=_counted(field(said, "usage_metadata") or field(said, "usageMetadata")))
    elif isinstance(output := field(said, "output"), (list, tuple)):
        yield from _from_responses(output)
        yield Piece(usage=_usage_of(said), stop=field(said, "status"))
    elif isinstance(content := field(said, "content"), (list, tuple)):
        yield from _from_anthropic(content)
        yield Piece(usage=_usage_of(said), stop=field(said, "stop_reason"))
    elif field(said, "role") is not None or field(said, "tool_calls") is not None:
        yield from _from_chat(said)
    else:
        raise ModelInvalid(
            f"a model call returns a limpet.Reply, a text, a provider's message or an async "
            f"iterator of limpet.Piece, not {described(said)}."
        )


def _from_chat(message: Any) -> Iterator[Piece]:
    yield Piece(text=field(message, "content") or field(message, "refusal"))
    for number, call in enumerate(field(message, "tool_calls") or ()):
        function = field(call, "function")
        name, given = field(function, "name"), field(function, "arguments")
        yield _whole_call(number, field(call, "id"), name, given)


def _from_responses(items: Iterable[Any]) -> Iterator[Piece]:
    for number, item in enumerate(items):
        kind = field(item, "type")
        if kind == "function_call":
            id, name = field(item, "call_id"), field(item, "name")
            yield _whole_call(number, id, name, field(item, "arguments"))
        elif kind == "reasoning":
            yield Piece(native=plain_object(item))
        elif kind == "message":
            for part in field(item, "content") or ():
                yield Piece(text=field(part, "text") or field(part, "refusal"))


def _from_anthropic(blocks: Iterable[Any]) -> Iterator[Piece]:
    for number, block in enumerate(blocks):
        kind = field(block, "type")
        if kind == "text":
            yield Piece(text=field(block, "text"))
        elif kind == "tool_use":
            id, name = field(block, "id"), field(block, "name")
            yield _whole_call(number, id, name, field(block, "input"))
        elif kind in ("thinking", "redacted_thinking"):
            yield Piece(native=plain_object(block))


def _from_gemini(candidate: Any) -> Iterator[Piece]:
    for number, part in enumerate(field(field(candidate, "content"), "parts") or ()):
        call = field(part, "function_call") or field(part, "functionCall")
        if call is not None:
            id, name = field(call, "id"), field(call, "name")
            signed = field(part, "thought_signature") or field(part, "thoughtSignature")
            if isinstance(signed, bytes):
                signed = base64.b64encode(signed).decode()
            yield _whole_call(number, id, name, field(call, "args"), signed)
        elif not field(part, "thought"):
            yield Piece(text=field(part, "text"))
    stop = field(candidate, "finish_reason") or field(candidate, "finishReason")
    yield Piece(stop=None if stop is None else str(getattr(stop, "value", stop)).lower())


def _whole_call(
    number: int, id: Any, name: Any, arguments: Any, signature: str | None = None
) -> Piece:
    given = arguments if isinstance(arguments, str) else plain_object(arguments)
    call = {"index": number, "id": id, "name": name, "arguments": given}
    return Piece(tool=call if signature is None else {**call, "signature": signature})


def field(of: Any, name: str) -> Any:
    """A field of what a client returns: an object of its types, or a dict of one without types."""
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def plain_object(given: Any) -> Any:
    """An object of a client's types as JSON holds it."""
    if isinstance(given, Mapping) or given is None:
        return dict(given or {})
    dump = getattr(given, "model_dump", None)
    return given if dump is None else dump(mode="json", exclude_none=True)


def _usage_of(said: Any) -> Mapping[str, Any] | None:
    return _counted(field(said, "usage"))


def _counted(usage: Any) -> Mapping[str, Any] | None:
    """The counts of a provider's usage, under our names."""
    if usage is None:
        return None
    counts = {"cost": field(usage, "cost")}
    for ours, names in _COUNTS.items():
        counts[ours] = next((n for n in [field(usage, name) for name in names] if n), None)
    if counts["input"] is None and counts["output"] is None:  # one number for both counts too
        counts["input"] = next((n for n in [field(usage, name) for name in _TOTALS] if n), None)
    return {name: value for name, value in counts.items() if value is not None}


def _used(usage: Any) -> tuple[dict[str, int], float | None]:
    """The token counts and the cost that a model says; what is not a number is left out."""
    counts = _counted(usage) or {}
    counted = {n: c for n, c in counts.items() if n != "cost" and type(c) is int}
    tokens = {n: c for n, c in counted.items() if 0 <= c <= COUNT_MAX}
    if tokens:
        tokens = {"input": 0, "output": 0, **tokens}
    cost = counts.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, (int, float)):
        return tokens, None
    return tokens, float(cost) if 0 <= cost <= COST_MAX else None


def _input_of(text: str) -> tuple[Any, str | None]:
    """The input in a call's arguments, and why it cannot be used, if it cannot."""
    if len(text.encode()) > INPUT_BYTES_MAX:
        return {}, f"The input has more than {INPUT_BYTES_MAX:,} bytes. Send less."
    if not text.strip():
        return {}, None
    try:
        input = msgspec.json.decode(text)
        settle(input, "the input")
    except (ValueError, InvalidInput, RecursionError) as error:
        return {"arguments": text}, f"The input is not valid JSON: {error}"
    if not isinstance(input, dict):
        return {"arguments": input}, "The input is not a JSON object."
    return input, None


def _cut_up(text: str | None) -> Iterator[str]:
    """A text in the pieces that followers see."""
    whole = clean_text(text or "")
    for start in range(0, len(whole), PARTIAL_CHARS_MAX):
        yield whole[start : start + PARTIAL_CHARS_MAX]


async def _close(stream: Any) -> None:
    """Let go of what makes a stream. What was read of it is whole, also if that fails."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                await close()


def clean_text(text: str) -> str:
    """A text that can be stored: models, and their clients, produce lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _reply(message: Event, uses: Sequence[Event]) -> Reply:
    data = message.data
    usage = data.get("usage")
    usage = dict(usage) if isinstance(usage, Mapping) else None
    if "cost" in data:
        usage = {**(usage or {}), "cost": data["cost"]}
    calls = [
        ToolCall(
            use.data["request_id"],
            use.data["name"],
            use.data["input"],
            use.data.get("provider_id"),
            use.data.get("error"),
        )
        for use in uses
    ]
    return Reply(data.get("text", ""), tuple(calls), usage, data.get("stop_reason"), message)
