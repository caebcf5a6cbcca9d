"""The command that serves the managed tools to a client of the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from limpet.cli.command import ACT, User, Writing, command


@command(ACT)
async def mcp(
    lp: Writing,
    who: User,
    *,
    default: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="For this session unless a call names one."),
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(
            "--http", metavar="PORT", min=0, max=65_535, help="Over HTTP on 127.0.0.1, at /mcp."
        ),
    ] = None,
) -> None:
    """Serve a user's sessions to an MCP client.

    The client lists and reads the sessions of USER, their events, traces, setup and outcomes, and
    writes what they remember. Over standard input and output; with --http over streamable HTTP.
    """
    from limpet.mcp import http_app, serve_stdio

    if http is None:
        await serve_stdio(lp, who.app, who.user, session=default)
        return
    import uvicorn

    app = http_app(lp, who.app, who.user, session=default)
    await uvicorn.Server(uvicorn.Config(app, "127.0.0.1", http, log_level="warning")).serve()
