"""A server on loopback that speaks the streaming wires of four model APIs: for tests.

It plays back `Said`s in order, checks every request by the rules of `shape_rules`, and remembers
the bodies. Written from the published references; nothing here imports Limpet or a client.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support import shape_rules


@dataclass
class Said:
    """One reply of a model: pieces of text, calls of tools (id, name, fragments), token counts."""

    texts: tuple[str, ...] = ()
    calls: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    given: int = 10
    said: int = 5
    cached: int = 0
    thinking: str = ""
    cut: bool = False  # the connection breaks before the end


@dataclass
class Provider:
    """A server, and what it was asked."""

    url: str
    replies: list[Said]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # rules that a request has broken


@contextmanager
def serving(*replies: Said) -> Iterator[Provider]:
    """Run the server; after the last reply every request is an error of the server."""
    provider = Provider("", list(replies))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            provider.bodies.append(body)
            wire = _wire(self.path)
            try:
                _CHECKS[wire](body)
            except AssertionError as error:
                provider.wrong.append(f"{wire}: {error}")
            if not provider.replies:
                self.send_error(500)
                return
            said = provider.replies.pop(0)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            frames = [*_WIRES[wire](said)]
            for frame in frames[: len(frames) // 2] if said.cut else frames:
                self._send(frame.encode())
            if said.cut:
                self.close_connection = True
            else:
                self._send(b"")

        def _send(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _wire(path: str) -> str:
    for end, wire in (("/chat/completions", "chat"), ("/responses", "responses")):
        if path.endswith(end):
            return wire
    return "anthropic" if path.endswith("/messages") else "gemini"


def _data(value: Any, event: str | None = None) -> str:
    named = "" if event is None else f"event: {event}\n"
    return f"{named}data: {json.dumps(value)}\n\n"


# --- the four wires -----------------------------------------------------------------------------


def _chat(said: Said) -> Iterator[str]:
    whole = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({**whole, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if said.thinking:
        yield chunk({"reasoning_content": said.thinking})
    for text in said.texts:
        yield chunk({"content": text})
    for index, (id, name, fragments) in enumerate(said.calls):
        first = {"index": index, "id": id, "type": "function"}
        yield chunk({"tool_calls": [{**first, "function": {"name": name, "arguments": ""}}]})
        for part in fragments:
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, "tool_calls" if said.calls else "stop")
    used: dict[str, Any] = {"prompt_tokens": said.given, "completion_tokens": said.said}
    used |= {"total_tokens": said.given + said.said}
    used["prompt_tokens_details"] = {"cached_tokens": said.cached}
    yield _data({**whole, "choices": [], "usage": used})
    yield "data: [DONE]\n\n"


def _responses(said: Said) -> Iterator[str]:
    number = iter(range(10_000))

    def event(type: str, **more: Any) -> str:
        return _data({"type": type, "sequence_number": next(number), **more}, type)

    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": [],
        "status": "in_progress",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    yield event("response.created", response=response)
    index = 0
    if said.thinking:
        item: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": []}
        yield event("response.output_item.added", output_index=0, item=item)
        of = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
        yield event("response.reasoning_summary_text.delta", delta=said.thinking, **of)
        item = {**item, "summary": [{"type": "summary_text", "text": said.thinking}]}
        yield event("response.output_item.done", output_index=0, item=item)
        index += 1
    if said.texts:
        item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        item["status"] = "in_progress"
        yield event("response.output_item.added", output_index=index, item=item)
        for text in said.texts:
            of = {"item_id": "msg_1", "output_index": index, "content_index": 0}
            yield event("response.output_text.delta", delta=text, logprobs=[], **of)
        index += 1
    for place, (id, name, fragments) in enumerate(said.calls, index):
        item = {"id": f"fc_{place}", "type": "function_call", "call_id": id, "name": name}
        item |= {"arguments": "", "status": "in_progress"}
        yield event("response.output_item.added", output_index=place, item=item)
        for part in fragments:
            of = {"item_id": f"fc_{place}", "output_index": place}
            yield event("response.function_call_arguments.delta", delta=part, **of)
        item = {**item, "arguments": "".join(fragments), "status": "completed"}
        yield event("response.output_item.done", output_index=place, item=item)
    used: dict[str, Any] = {"input_tokens": said.given, "output_tokens": said.said}
    used["input_tokens_details"] = {"cached_tokens": said.cached, "cache_write_tokens": 0}
    used["output_tokens_details"] = {"reasoning_tokens": 0}
    used["total_tokens"] = said.given + said.said
    yield event("response.completed", response={**response, "status": "completed", "usage": used})


def _anthropic(said: Said) -> Iterator[str]:
    def event(type: str, **more: Any) -> str:
        return _data({"type": type, **more}, type)

    used = {"input_tokens": said.given - said.cached, "output_tokens": 1}
    used["cache_read_input_tokens"] = said.cached
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield event("message_start", message={**message, "stop_reason": None, "usage": used})
    yield event("ping")
    index = 0
    if said.thinking:
        block: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
        yield event("content_block_start", index=0, content_block=block)
        delta = {"type": "thinking_delta", "thinking": said.thinking}
        yield event("content_block_delta", index=0, delta=delta)
        delta = {"type": "signature_delta", "signature": "signed"}
        yield event("content_block_delta", index=0, delta=delta)
        yield event("content_block_stop", index=0)
        index += 1
    if said.texts:
        yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
        for text in said.texts:
            delta = {"type": "text_delta", "text": text}
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
        index += 1
    for place, (id, name, fragments) in enumerate(said.calls, index):
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        yield event("content_block_start", index=place, content_block=block)
        for part in fragments:
            delta = {"type": "input_json_delta", "partial_json": part}
            yield event("content_block_delta", index=place, delta=delta)
        yield event("content_block_stop", index=place)
    stop = {"stop_reason": "tool_use" if said.calls else "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": said.said})
    yield event("message_stop")


def _gemini(said: Said) -> Iterator[str]:
    def chunk(part: dict[str, Any], **more: Any) -> str:
        candidate = {"content": {"role": "model", "parts": [part]}, "index": 0, **more}
        return _data({"candidates": [candidate], "modelVersion": "m"})

    if said.thinking:
        yield chunk({"text": said.thinking, "thought": True})
    for text in said.texts:
        yield chunk({"text": text})
    for id, name, fragments in said.calls:
        call = {"id": id, "name": name, "args": json.loads("".join(fragments) or "{}")}
        signed = base64.b64encode(b"signed").decode()
        yield chunk({"functionCall": call, "thoughtSignature": signed})
    used = {"promptTokenCount": said.given, "candidatesTokenCount": said.said}
    used |= {"totalTokenCount": said.given + said.said, "cachedContentTokenCount": said.cached}
    end = {"content": {"role": "model", "parts": []}, "finishReason": "STOP", "index": 0}
    yield _data({"candidates": [end], "usageMetadata": used})


_WIRES = {"chat": _chat, "responses": _responses, "anthropic": _anthropic, "gemini": _gemini}
_CHECKS = {
    "chat": lambda body: shape_rules.openai(body["messages"]),
    "responses": lambda body: shape_rules.responses(body["input"]),
    "anthropic": lambda body: shape_rules.anthropic(body["messages"]),
    "gemini": lambda body: shape_rules.gemini(body["contents"]),
}
