"""Models of four providers, as functions for `Turn.model` and `limpet.Agent`.

Each function takes the provider's own client object, which you make and configure, and returns a
call that streams. Nothing is imported from the providers' packages: whatever has the same methods
works, so gateways and fakes do too. Asynchronous clients are preferred; a synchronous one is used
from threads.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import ModelFailed
from limpet.runtime.model_call import ModelRequest, Piece
from limpet.session.conversation.shapes import Shape, safe_name
from limpet.session.life.tools import Tool

Reader: TypeAlias = Callable[[AsyncIterator[Any]], AsyncIterator[Piece]]
_OUTPUT_TOKENS_MAX: Final = 4096  # Anthropic's API wants a limit; pass max_tokens= for another
_NO_INPUT: Final = {"type": "object", "properties": {}}


def openai(client: Any, model: str, **options: Any) -> Model:
    """Return a call of OpenAI's Chat Completions, for a client `openai.AsyncOpenAI`.

    `options` go to every request, for instance `temperature=0`. Any service that speaks this API
    works, with its own `base_url` in the client.
    """

    def ask(request: ModelRequest) -> Any:
        tools = [{"type": "function", "function": _function(t)} for t in request.tools]
        return client.chat.completions.create(
            model=model,
            messages=list(request.messages),
            stream=True,
            stream_options={"include_usage": True},
            **({"tools": tools} if tools else {}),
            **options,
        )

    return Model("openai", model, ask, _read_chat, is_async=_is_async(client))


def openai_responses(client: Any, model: str, **options: Any) -> Model:
    """Return a call of OpenAI's Responses API, for a client `openai.AsyncOpenAI`.

    The log is the conversation: `previous_response_id` is not needed. Reasoning items are given
    back as the API wants it.
    """

    def ask(request: ModelRequest) -> Any:
        tools = [{"type": "function", "strict": False, **_function(t)} for t in request.tools]
        return client.responses.create(
            model=model,
            input=list(request.messages),
            stream=True,
            **({"tools": tools} if tools else {}),
            **options,
        )

    return Model("openai-responses", model, ask, _read_responses, is_async=_is_async(client))


def anthropic(client: Any, model: str, **options: Any) -> Model:
    """Return a call of Anthropic's Messages API, for a client `anthropic.AsyncAnthropic`.

    `max_tokens` is 4096 unless `options` say otherwise. Signed blocks of thinking are given back
    as the API wants it.
    """

    def ask(request: ModelRequest) -> Any:
        tools = [
            {"name": safe_name(t.name), "description": t.description, "input_schema": _schema(t)}
            for t in request.tools
        ]
        return client.messages.create(
            model=model,
            messages=list(request.messages),
            stream=True,
            **({"system": request.system} if request.system else {}),
            **({"tools": tools} if tools else {}),
            **{"max_tokens": _OUTPUT_TOKENS_MAX, **options},
        )

    return Model("anthropic", model, ask, _read_anthropic, is_async=_is_async(client))


def gemini(client: Any, model: str, **options: Any) -> Model:
    """Return a call of Gemini's generateContent, for a client `google.genai.Client`.

    `options` are fields of its GenerateContentConfig, for instance `temperature=0`.
    """
    models = getattr(client, "aio", client).models

    def ask(request: ModelRequest) -> Any:
        tools = [
            {
                "name": safe_name(t.name),
                "description": t.description,
                "parameters_json_schema": _schema(t),
            }
            for t in request.tools
        ]
        config: dict[str, Any] = {"automatic_function_calling": {"disable": True}, **options}
        if request.system:
            config["system_instruction"] = request.system
        if tools:
            config["tools"] = [{"function_declarations": tools}]
        return models.generate_content_stream(
            model=model, contents=list(request.messages), config=config
        )

    return Model("gemini", model, ask, _read_gemini, is_async=True)


class Model:
    """A model of a provider: call it with a ModelRequest and iterate over the pieces.

    `shape` is the form of the messages that it takes, and `name` the model's name.
    """

    def __init__(
        self,
        shape: Shape,
        name: str,
        ask: Callable[[ModelRequest], Any],
        read: Reader,
        *,
        is_async: bool,
    ) -> None:
        self.shape, self.name = shape, name
        self._ask, self._read, self._is_async = ask, read, is_async

    def __repr__(self) -> str:
        return f"<limpet.providers {self.shape} {self.name}>"

    async def __call__(self, request: ModelRequest) -> AsyncIterator[Piece]:
        """Yield the pieces of the reply. The connection is closed however the iteration ends."""
        if self._is_async:
            stream = self._ask(request)
            stream = await stream if inspect.isawaitable(stream) else stream
        else:
            stream = await asyncio.to_thread(self._ask, request)
        async with _closing(stream):
            async for piece in self._read(_each(stream)):
                yield piece


# --- reading the streams ------------------------------------------------------------------------


async def _read_chat(chunks: AsyncIterator[Any]) -> AsyncIterator[Piece]:
    async for chunk in chunks:
        if (used := _get(chunk, "usage")) is not None:
            details = _get(used, "prompt_tokens_details")
            yield Piece(
                usage=_usage(
                    _get(used, "prompt_tokens"),
                    _get(used, "completion_tokens"),
                    _get(details, "cached_tokens"),
                )
            )
        for choice in (_get(chunk, "choices") or ())[:1]:
            delta = _get(choice, "delta")
            if thought := _get(delta, "reasoning_content") or _get(delta, "reasoning"):
                yield Piece(reasoning=str(thought))
            if text := _get(delta, "content") or _get(delta, "refusal"):
                yield Piece(text=text)
            for call in _get(delta, "tool_calls") or ():
                function = _get(call, "function")
                yield _fragment(
                    _get(call, "index") or 0,
                    _get(call, "id"),
                    _get(function, "name"),
                    _get(function, "arguments"),
                )
            if (stop := _get(choice, "finish_reason")) is not None:
                yield Piece(stop=stop)


async def _read_responses(events: AsyncIterator[Any]) -> AsyncIterator[Piece]:
    async for event in events:
        type, item = _get(event, "type"), _get(event, "item")
        if type in ("response.output_text.delta", "response.refusal.delta"):
            yield Piece(text=_get(event, "delta"))
        elif type in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            yield Piece(reasoning=_get(event, "delta"))
        elif type == "response.output_item.added" and _get(item, "type") == "function_call":
            index = _get(event, "output_index")
            yield _fragment(index, _get(item, "call_id"), _get(item, "name"), None)
        elif type == "response.function_call_arguments.delta":
            yield _fragment(_get(event, "output_index"), None, None, _get(event, "delta"))
        elif type == "response.output_item.done" and _get(item, "type") == "reasoning":
            yield Piece(native=_plain(item))
        elif type in ("response.completed", "response.incomplete"):
            response = _get(event, "response")
            used = _get(response, "usage")
            if used is not None:
                details = _get(used, "input_tokens_details")
                yield Piece(
                    usage=_usage(
                        _get(used, "input_tokens"),
                        _get(used, "output_tokens"),
                        _get(details, "cached_tokens"),
                    )
                )
            why = _get(_get(response, "incomplete_details"), "reason")
            yield Piece(stop=why or _get(response, "status") or "completed")
        elif type in ("response.failed", "error"):
            error = _get(_get(event, "response"), "error") or event
            raise ModelFailed(str(_get(error, "message") or "the model failed"))


async def _read_anthropic(events: AsyncIterator[Any]) -> AsyncIterator[Piece]:
    thinking: dict[int, dict[str, Any]] = {}
    used: dict[str, Any] = {}
    async for event in events:
        type, index = _get(event, "type"), _get(event, "index")
        if type == "message_start":
            used |= _counts(_get(_get(event, "message"), "usage"))
        elif type == "content_block_start":
            block = _get(event, "content_block")
            kind = _get(block, "type")
            if kind == "tool_use":
                yield _fragment(index, _get(block, "id"), _get(block, "name"), None)
            elif kind in ("thinking", "redacted_thinking"):
                thinking[index] = _plain(block)
            elif kind == "text" and _get(block, "text"):
                yield Piece(text=_get(block, "text"))
        elif type == "content_block_delta":
            delta = _get(event, "delta")
            kind = _get(delta, "type")
            if kind == "text_delta":
                yield Piece(text=_get(delta, "text"))
            elif kind == "input_json_delta":
                yield _fragment(index, None, None, _get(delta, "partial_json"))
            elif kind == "thinking_delta":
                block = thinking.setdefault(index, {"type": "thinking", "thinking": ""})
                block["thinking"] = block.get("thinking", "") + _get(delta, "thinking")
                yield Piece(reasoning=_get(delta, "thinking"))
            elif kind == "signature_delta":
                block = thinking.setdefault(index, {"type": "thinking", "thinking": ""})
                block["signature"] = _get(delta, "signature")
        elif type == "content_block_stop" and index in thinking:
            yield Piece(native=thinking.pop(index))
        elif type == "message_delta":
            used |= _counts(_get(event, "usage"))
            stop = _get(_get(event, "delta"), "stop_reason")
            given = used.get("input_tokens") or 0
            given += used.get("cache_creation_input_tokens") or 0
            cached = used.get("cache_read_input_tokens") or 0
            yield Piece(usage=_usage(given + cached, used.get("output_tokens"), cached), stop=stop)
        elif type == "error":
            raise ModelFailed(str(_get(_get(event, "error"), "message") or "the model failed"))


async def _read_gemini(chunks: AsyncIterator[Any]) -> AsyncIterator[Piece]:
    calls = 0
    async for chunk in chunks:
        for candidate in (_get(chunk, "candidates") or ())[:1]:
            for part in _get(_get(candidate, "content"), "parts") or ():
                call, text = _get(part, "function_call"), _get(part, "text")
                if call is not None:
                    arguments = msgspec.json.encode(_get(call, "args") or {}).decode()
                    piece = _fragment(calls, _get(call, "id"), _get(call, "name"), arguments)
                    if (signed := _get(part, "thought_signature")) is not None:
                        if not isinstance(signed, str):
                            signed = base64.b64encode(signed).decode()
                        piece = Piece(tool={**(piece.tool or {}), "signature": signed})
                    yield piece
                    calls += 1
                elif text:
                    yield Piece(reasoning=text) if _get(part, "thought") else Piece(text=text)
            if (stop := _get(candidate, "finish_reason")) is not None:
                yield Piece(stop=str(getattr(stop, "value", stop)).lower())
        if (used := _get(chunk, "usage_metadata")) is not None:
            said, thought = _get(used, "candidates_token_count"), _get(used, "thoughts_token_count")
            yield Piece(
                usage=_usage(
                    _get(used, "prompt_token_count"),
                    (said or 0) + (thought or 0),
                    _get(used, "cached_content_token_count"),
                )
            )


# --- private ------------------------------------------------------------------------------------


def _schema(tool: Tool) -> dict[str, Any]:
    return dict(tool.schema) or dict(_NO_INPUT)


def _function(tool: Tool) -> dict[str, Any]:
    """A tool as both of OpenAI's APIs describe functions."""
    described = {"name": safe_name(tool.name), "description": tool.description}
    return {**described, "parameters": _schema(tool)}


def _fragment(index: int, id: str | None, name: str | None, arguments: str | None) -> Piece:
    return Piece(tool={"index": index, "id": id, "name": name, "arguments": arguments or ""})


def _usage(given: Any, said: Any, cached: Any) -> dict[str, int]:
    """Token counts as an agent.message has them. A provider that does not say counts as 0."""
    usage = {"input": given or 0, "output": said or 0}
    return {**usage, "cache_read": cached} if cached else usage


def _counts(used: Any) -> dict[str, Any]:
    """The counts that an event of Anthropic's names; later ones replace earlier ones."""
    names = ("input_tokens", "output_tokens", "cache_creation_input_tokens")
    counts = {name: _get(used, name) for name in (*names, "cache_read_input_tokens")}
    return {name: count for name, count in counts.items() if count is not None}


def _get(of: Any, name: str) -> Any:
    """A field of what a client returns: an object of its types, or a dict of one without types."""
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def _plain(block: Any) -> dict[str, Any]:
    dump = getattr(block, "model_dump", None)
    return dict(block) if dump is None else dict(dump(mode="json", exclude_none=True))


def _is_async(client: Any) -> bool:
    """True unless it is surely one of the synchronous clients."""
    return hasattr(client, "__aenter__") or not hasattr(client, "__enter__")


async def _each(stream: Any) -> AsyncIterator[Any]:
    if hasattr(stream, "__aiter__"):
        async for each in stream:
            yield each
        return
    iterator: Iterator[Any] = iter(stream)
    end = object()
    while (each := await asyncio.to_thread(next, iterator, end)) is not end:
        yield each


@asynccontextmanager
async def _closing(stream: Any) -> AsyncIterator[None]:
    """Close the connection at the end: a turn that is interrupted must not leave it open."""
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
        ending = close() if callable(close) else None
        if inspect.isawaitable(ending):
            await ending
