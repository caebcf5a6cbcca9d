"""MCP: the managed tools as a server of the Model Context Protocol, for one user of one app.

Each tool takes the `session` that it is for, beside its own input. What it does passes the guard
as the owner of that user's sessions; the tools that belong to a turn or to an agent are left out.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import ExtraMissing, InvalidInput, LimpetError
from limpet.runtime.managed_tools import (
    BY_NAME,
    ManagedTool,
    ToolCaller,
    refused,
    result_type,
    run_tool,
    tool_spec,
)
from limpet.security.access import Principal
from limpet.session.limpet import Limpet

try:
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
except ModuleNotFoundError as error:
    raise ExtraMissing("mcp", "mcp") from error

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from starlette.applications import Starlette

# One user must not read what an agent has learned from all users.
_OF_AGENTS: Final = frozenset({"learning_list", "memory_promote_note"})
OFFERED: Final[Mapping[str, type[ManagedTool]]] = {
    name: tool for name, tool in BY_NAME.items() if not tool.needs_turn and name not in _OF_AGENTS
}
_NO_SESSION: Final = frozenset({"session_list"})  # a list is of the user, not of a session
_WRITES: Final = frozenset({"memory_write", "outcome_define"})
_SESSION: Final = {"type": "string", "description": "The id of the session that this is for."}


class McpTools:
    """The tools of a user's sessions, and what a client of the protocol asks about them.

    With `session` the tools are for that session unless a call names another of the same user.
    """

    def __init__(self, lp: Limpet, app: str, user: str, *, session: str | None = None) -> None:
        principal = Principal(f"user:{user}", role="owner", app=app, user=user)
        self._lp = lp.acting_as(principal)
        self._app, self._user, self._session = app, user, session
        self._tools = [self._tool(tool) for tool in OFFERED.values()]

    def server(self) -> Server[Any]:
        """Return the server, to be run on any transport of the `mcp` package."""
        import limpet

        return Server(
            "limpet",
            version=limpet.__version__,
            instructions=f"Sessions of {self._user} in the app {self._app}: what they hold, what "
            "happened in them, and what they remember.",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )

    async def list_tools(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Answer which tools there are, with the schemas of their inputs and outputs."""
        return types.ListToolsResult(tools=self._tools)

    async def call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Run a tool. What is refused is a result with a code, and marked as an error."""
        try:
            result, refusal = await self._call(params.name, dict(params.arguments or {}))
        except LimpetError as error:
            result, refusal = refused(error), str(error)
        text = msgspec.json.encode(result).decode()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=result,
            is_error=refusal is not None,
        )

    async def _call(self, name: str, input: dict[str, Any]) -> tuple[Any, str | None]:
        if name not in OFFERED:
            raise InvalidInput(f"there is no tool {name!r} here. List the tools.")
        id = input.pop("session", self._session)
        if id is None and name in _NO_SESSION:
            id = "-"  # any: it is not looked at
        if not isinstance(id, str):
            raise InvalidInput("name the session: pass its id as session.")
        session = self._lp.session(self._app, self._user, id)
        if name not in _NO_SESSION:
            await session.refresh(tail=0)
        return await run_tool(name, input, ToolCaller(session, self._lp, uuid.uuid4().hex))

    def _tool(self, tool: type[ManagedTool]) -> types.Tool:
        spec = tool_spec(tool)
        schema = dict(spec["input_schema"])
        if tool.name not in _NO_SESSION:
            schema["properties"] = {"session": _SESSION, **schema.get("properties", {})}
            if self._session is None:
                schema["required"] = ["session", *schema.get("required", [])]
        return types.Tool(
            name=tool.name,
            description=spec["description"],
            input_schema=schema,
            output_schema=_output_schema(tool),
            annotations=types.ToolAnnotations(
                read_only_hint=tool.name not in _WRITES, destructive_hint=False
            ),
        )


def _output_schema(tool: type[ManagedTool]) -> dict[str, Any]:
    """Return the schema of a result: an object at its root, or the refusal."""
    schema = msgspec.json.schema(result_type(tool))
    named = schema["$ref"].rpartition("/")[2]
    rest = {name: each for name, each in schema["$defs"].items() if name != named}
    root = dict(schema["$defs"][named])
    return {**root, "$defs": rest} if rest else root


async def serve_stdio(lp: Limpet, app: str, user: str, *, session: str | None = None) -> None:
    """Serve one client over standard input and output, until it closes them."""
    server = McpTools(lp, app, user, session=session).server()
    # The transport takes the descriptors of the process, not what stands for them.
    with redirect_stdout(sys.__stdout__):
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())


def http_app(
    lp: Limpet, app: str, user: str, *, session: str | None = None, host: str = "127.0.0.1"
) -> Starlette:
    """Return the ASGI app that serves clients over streamable HTTP, at /mcp.

    It asks nobody who they are: `host` is a loopback address, and other Host headers are refused.
    """
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidInput(f"{host} is not a loopback address. Listen on 127.0.0.1.")
    server = McpTools(lp, app, user, session=session).server()
    served: Starlette = server.streamable_http_app(host=host)
    return served
