"""ACP: sessions in an editor, by the Agent Client Protocol over stdio, on any harness.

A session of the editor is one of ours: it can be listed, loaded with its history, resumed and
forked. A prompt is an input whose turn a worker runs, and what happens is told to the editor as it
does. An approval is asked for in the editor; the answer is recorded, so a prompt that was cut off
continues where it stood.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, redirect_stdout, suppress
from typing import Any, Final

from limpet.adapters.transcript import label_of
from limpet.errors import (
    ExtraMissing,
    InvalidCursor,
    RequestAnswered,
    RequestNotFound,
    SessionDeleted,
    SessionNotFound,
)
from limpet.model import Event, Key, thaw
from limpet.model.due import runnable_us
from limpet.model.facts.phases import INIT, SUSPENDED
from limpet.model.facts.running.requests import Request
from limpet.security.access import Principal
from limpet.session.conversation.pieces import ShownPieces
from limpet.session.limpet import Limpet
from limpet.session.session import Session

try:
    import acp
    from acp import RequestError, schema
    from acp.agent.router import build_agent_router
    from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES, Connection
    from acp.meta import AGENT_METHODS, CLIENT_METHODS
    from acp.utils import normalize_result, notify_model, request_model
except ModuleNotFoundError as error:
    raise ExtraMissing("agent-client-protocol", "acp") from error

_CWD: Final = "cwd"  # the label: where the editor works
_TITLE_CHARS_MAX: Final = 80
_PAGE: Final = 50
_IDLE: Final = "session.status_idle"
_USES: Final = ("agent.tool_use", "agent.custom_tool_use")
_RESULTS: Final = ("agent.tool_result", "user.custom_tool_result")
_STOPS: Final[Mapping[str, str]] = {
    "end_turn": "end_turn",
    "interrupted": "cancelled",
    "budget_reached": "max_tokens",
    "requires_action": "end_turn",
}
_FAILED: Final = ("retries_exhausted", "budget_reached", "terminated")
_ALLOW: Final = "allow"
_DENY: Final = "deny"
_AGAIN: Final = "run_again"
_GIVE_UP: Final = "give_up"


class AcpAgent:
    """The sessions of one user of one app, as an agent of the protocol."""

    def __init__(self, lp: Limpet, app: str, user: str) -> None:
        principal = Principal(f"user:{user}", role="owner", app=app, user=user)
        self._lp = lp.acting_as(principal)
        self._app, self._user = app, user
        self._client: Any = None

    def on_connect(self, conn: Any) -> None:
        """Remember the editor: updates and questions go to it."""
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: Any = None,
        client_info: Any = None,
        **_: Any,
    ) -> Any:
        """Say what this agent can do."""
        can = schema.SessionCapabilities(
            list=schema.SessionListCapabilities(),
            fork=schema.SessionForkCapabilities(),
            resume=schema.SessionResumeCapabilities(),
            close=schema.SessionCloseCapabilities(),
            delete=schema.SessionDeleteCapabilities(),
        )
        prompts = schema.PromptCapabilities(image=True, embedded_context=True)
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True, prompt_capabilities=prompts, session_capabilities=can
            ),
        )

    async def authenticate(self, method_id: str, **_: Any) -> None:
        """Do nothing: the user is the one that the command names."""

    async def new_session(self, cwd: str, **_: Any) -> Any:
        """Create a session that works in a directory."""
        session = await self._lp.create(self._app, self._user, labels={_CWD: label_of(cwd)})
        return schema.NewSessionResponse(session_id=session.id)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> Any:
        """Open a session and tell the editor its whole conversation."""
        session = await self._session(session_id)
        for message in await session.messages():
            for update in _replayed(message):
                await self._client.session_update(session_id, update)
        return schema.LoadSessionResponse()

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> Any:
        """Open a session without telling its conversation again."""
        await self._session(session_id)
        return schema.ResumeSessionResponse()

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> Any:
        """List the sessions, those of one directory if it is named; the newest first."""
        try:
            page = await self._lp.list(
                app=self._app,
                user=self._user,
                labels=None if cwd is None else {_CWD: label_of(cwd)},
                limit=_PAGE,
                cursor=cursor,
            )
        except InvalidCursor as error:
            raise RequestError.invalid_params({"details": str(error)}) from None
        sessions = [
            schema.SessionInfo(
                session_id=head.key.id,
                cwd=cwd or head.labels.get(_CWD, "/"),
                title=await self._title(head.key),
                updated_at=head.updated_at.isoformat(),
            )
            for head in page.items
        ]
        return schema.ListSessionsResponse(sessions=sessions, next_cursor=page.cursor)

    async def fork_session(self, session_id: str, cwd: str, **_: Any) -> Any:
        """Continue from where a session stands, in a session of its own."""
        fork = await (await self._session(session_id)).fork(labels={_CWD: label_of(cwd)})
        return schema.ForkSessionResponse(session_id=fork.id)

    async def close_session(self, session_id: str, **_: Any) -> Any:
        """Stop the turn of a session, if one runs. The session stays."""
        await self.cancel(session_id)
        return schema.CloseSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the turn of a session: its prompt ends as cancelled."""
        session = await self._session(session_id)
        if session.status == "running" or session.head.pending or session.blocked_on:
            await session.interrupt()

    async def delete_session(self, session_id: str, **_: Any) -> Any:
        """Delete a session. One that is gone already is fine."""
        await self._lp.delete(self._key(session_id))
        return schema.DeleteSessionResponse()

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Extensions are passed over."""

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> Any:
        """Record what the user says, and tell the editor what the turn does until it is over."""
        session = await self._session(session_id)
        before = session.version
        await session.append("user.message", _content(prompt))
        usage = {"input": 0, "output": 0}
        stop = "end_turn"
        _check_active(session)
        if _has_failed(session):  # as of that commit: no turn has seen it yet
            return _answered(_not_failed(session, str(session.stop_reason)), usage)
        async with aclosing(self._ends(session, before, usage)) as ends:
            await session.refresh()
            if _waits_for_answers(session) and not await self._ask(session):
                return _answered(stop, usage)
            async for reason in ends:
                stop = reason
                if not await self._ask(session):  # or the turn goes on
                    break
        return _answered(_not_failed(session, stop), usage)

    # --- private --------------------------------------------------------------------------------

    def _key(self, session_id: str) -> Key:
        return Key(self._app, self._user, session_id)

    async def _session(self, session_id: str) -> Session[Any]:
        try:
            return await self._lp.get(self._key(session_id), tail=0)
        except (SessionNotFound, SessionDeleted):
            raise RequestError.resource_not_found(session_id) from None

    async def _title(self, key: Key) -> str | None:
        first = await self._lp.session(key).read(limit=1, types=["user.message"])
        text = first[0].data.get("text") if first and first[0].data is not None else None
        return text[:_TITLE_CHARS_MAX] if isinstance(text, str) else None

    async def _ends(
        self, session: Session[Any], after: int, usage: dict[str, int]
    ) -> AsyncGenerator[str, None]:
        """Tell the editor what happens; yield the stop reason whenever nothing more does."""
        updates = _Told()
        async with aclosing(session.follow(after=after)) as events:
            async for event in events:
                for update in updates.updates(event):
                    await self._client.session_update(session.id, update)
                _count(event, usage)
                if event.type != _IDLE or event.data.get("stop_reason") == "rescheduling":
                    continue
                await session.refresh()
                waits = bool(session.blocked_on) or _has_failed(session)
                if session.status != "running" and (waits or not session.head.pending):
                    yield str(event.data.get("stop_reason"))

    async def _ask(self, session: Session[Any]) -> bool:
        """Ask the editor about what a session waits for. True if the turn goes on by that."""
        answered = False
        for request in session.blocked_on:
            options = _options(request)
            if not options:
                text = f"\n(waits for {request.name}: `limpet answer` gives it.)\n"
                await self._client.session_update(session.id, acp.update_agent_message_text(text))
                continue
            call = schema.ToolCallUpdate(
                tool_call_id=request.id,
                title=_title_of(request),
                status="pending",
                raw_input=thaw(request.input),
            )
            reply = await self._client.request_permission(session.id, call, options)
            chosen = getattr(reply.outcome, "option_id", None)
            with suppress(RequestAnswered, RequestNotFound):  # somebody else was faster
                await _settle(session, request, chosen)
            answered = True
        return answered


def _waits_for_answers(session: Session[Any]) -> bool:
    """True if a session waits for answers that an earlier prompt did not get: its editor left
    before it answered. What was said now is processed after them."""
    return session.status != "running" and bool(session.blocked_on)


def _has_failed(session: Session[Any]) -> bool:
    """True if a turn failed for good. Its input stays pending, as does all that is said after it:
    no worker takes that before somebody requeues the session, or grants it more."""
    return session.stop_reason in _FAILED and runnable_us(session.head) is None


def _check_active(session: Session[Any]) -> None:
    """Raise RequestError if no turn begins before somebody resumes the session, or activates it.
    What was said is kept; a prompt that waited for that could not even be cancelled."""
    phase = session.phase
    if phase in (INIT, SUSPENDED) and runnable_us(session.head) is None:
        verb = "resume" if phase == SUSPENDED else "activate"
        why = f"The session is in phase {phase}: {verb} it, and what was said is answered."
        raise RequestError.internal_error({"details": why})


def _not_failed(session: Session[Any], stop: str) -> str:
    """The reason why a turn stopped. Raises RequestError if it failed."""
    if stop in _FAILED and stop != "budget_reached":
        failure = session.runs.failure
        why = f"The turn ended: {stop}." if failure is None else failure.message
        raise RequestError.internal_error({"details": why})
    return stop


async def _settle(session: Session[Any], request: Request, chosen: str | None) -> None:
    if request.kind == "approval":
        await session.confirm(request.id, allow=chosen == _ALLOW)
    elif chosen == _AGAIN:
        await session.resolve(request.id, run_again=True)
    else:
        await session.resolve(request.id, give_up=True)


def _title_of(request: Request) -> str:
    if request.kind == "approval":
        return request.name
    if request.kind == "unknown_effect":
        return f"{request.name} may have happened. Run it again?"
    return f"The program changed while {request.name} waited. Run the turn again?"


def _options(request: Request) -> list[Any]:
    if request.kind == "question":
        return []
    if request.kind == "approval":
        named = ((_ALLOW, "Allow", "allow_once"), (_DENY, "Deny", "reject_once"))
    else:
        named = ((_AGAIN, "Run again", "allow_once"), (_GIVE_UP, "Give up", "reject_once"))
    return [schema.PermissionOption(option_id=id, name=name, kind=kind) for id, name, kind in named]


class _Told:
    """The part of the streaming message that the editor has already received."""

    def __init__(self) -> None:
        self._pieces = ShownPieces()

    def updates(self, event: Event) -> list[Any]:
        """Return what one event, or one partial, is to the editor."""
        data = event.data
        if not isinstance(data, Mapping):
            return []
        if event.partial:
            text, thought = self._pieces.add(event), data.get("reasoning")
            if isinstance(thought, str) and thought and self._pieces.follows(event):
                return [acp.update_agent_thought_text(thought)]
            return [acp.update_agent_message_text(text)] if text else []
        if event.type == "agent.message":
            text, replaces = self._pieces.finish(event)
            text = f"\n{text}" if replaces else text
            return [acp.update_agent_message_text(text)] if text.strip() else []
        if event.type in _USES and "awaits" not in data:
            call = acp.start_tool_call(
                str(data.get("request_id")),
                str(data.get("name")),
                status="in_progress",
                raw_input=thaw(data.get("input")),
            )
            return [call]
        if event.type in _RESULTS:
            output = thaw(data.get("output"))
            done = acp.update_tool_call(
                str(data.get("request_id")),
                status="failed" if data.get("is_error") else "completed",
                raw_output=output,
                content=[acp.tool_content(acp.text_block(_shown(output)))],
            )
            return [done]
        return []


def _answered(stop: str, usage: Mapping[str, int]) -> Any:
    return schema.PromptResponse(
        stop_reason=_STOPS.get(stop, "end_turn"),
        usage=schema.Usage(
            input_tokens=usage["input"],
            output_tokens=usage["output"],
            total_tokens=usage["input"] + usage["output"],
        ),
    )


def _count(event: Event, usage: dict[str, int]) -> None:
    used = event.data.get("usage") if isinstance(event.data, Mapping) else None
    if event.type == "agent.message" and not event.partial and isinstance(used, Mapping):
        for name in usage:
            count = used.get(name)
            usage[name] += count if isinstance(count, int) else 0


def _replayed(message: Any) -> list[Any]:
    part = message.parts[0] if message.parts else {}
    if part.get("type") == "tool_use":
        given = thaw(part["input"])
        return [acp.start_tool_call(part["request_id"], part["name"], raw_input=given)]
    if part.get("type") == "tool_result":
        status = "failed" if part.get("is_error") else "completed"
        text = acp.tool_content(acp.text_block(_shown(thaw(part["output"]))))
        return [acp.update_tool_call(part["request_id"], status=status, content=[text])]
    if not message.text or message.role == "system":
        return []
    if message.role == "user":
        return [acp.update_user_message_text(message.text)]
    return [acp.update_agent_message_text(message.text)]


def _shown(output: Any) -> str:
    return output if isinstance(output, str) else str(output)


def _content(blocks: Sequence[Any]) -> dict[str, Any]:
    parts = [part for block in blocks if (part := _part(block)) is not None]
    if not parts:
        raise RequestError.invalid_params({"details": "The prompt is empty. Write something."})
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"text": parts[0]["text"]}
    return {"content": parts}


def _part(block: Any) -> dict[str, Any] | None:
    kind = getattr(block, "type", None)
    if kind == "text":
        return {"type": "text", "text": block.text} if block.text else None
    if kind == "image":
        return {"type": "image", "data": block.data, "media_type": block.mime_type}
    if kind == "resource_link":
        return {"type": "text", "text": f"[{block.name}]({block.uri})"}
    if kind == "resource" and isinstance(getattr(block.resource, "text", None), str):
        return {"type": "text", "text": f"{block.resource.uri}\n{block.resource.text}"}
    return None


class _Editor:
    """The editor at the other end of a connection. The package's own class routes no deletion."""

    def __init__(self, agent: AcpAgent, writer: Any, reader: Any) -> None:
        router = build_agent_router(agent, use_unstable_protocol=True)
        router.route_request(
            AGENT_METHODS["session_delete"],
            schema.DeleteSessionRequest,
            agent,
            "delete_session",
            adapt_result=normalize_result,
        )
        self.connection = Connection(router, writer, reader, listening=False)

    async def session_update(self, session_id: str, update: Any) -> None:
        notification = schema.SessionNotification(session_id=session_id, update=update)
        await notify_model(self.connection, CLIENT_METHODS["session_update"], notification)

    async def request_permission(self, session_id: str, tool_call: Any, options: Any) -> Any:
        asked = schema.RequestPermissionRequest(
            session_id=session_id, tool_call=tool_call, options=options
        )
        return await request_model(
            self.connection,
            CLIENT_METHODS["session_request_permission"],
            asked,
            schema.RequestPermissionResponse,
        )


async def serve_stdio(lp: Limpet, app: str, user: str) -> None:
    """Speak the protocol on stdin and stdout until the editor leaves.

    What a harness prints goes to stderr: stdout is the protocol's.
    """
    agent = AcpAgent(lp, app, user)
    reader, writer = await acp.stdio_streams(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
    editor = _Editor(agent, writer, reader)
    agent.on_connect(editor)
    with redirect_stdout(sys.stderr):
        async with editor.connection as connection:
            await connection.main_loop()
