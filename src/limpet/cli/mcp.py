"""The commands that speak a protocol on stdin and stdout: MCP for models, ACP for editors."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from limpet.cli.act import HarnessOption, import_harness
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


@command(ACT)
async def acp(lp: Writing, who: User, *, harness: HarnessOption) -> None:
    """Serve a user's sessions to an editor, over ACP.

    The editor makes, lists, loads, resumes and forks sessions of USER, sends prompts and is asked
    for approvals. Turns are run here, by the harness. Over standard input and output, until the
    editor leaves.
    """
    from limpet.acp import serve_stdio
    from limpet.runtime.worker import Worker

    worker = Worker(lp, import_harness(harness, None)[0], app=who.app, signals=False)
    working = asyncio.create_task(worker.run())
    try:
        await serve_stdio(lp, who.app, who.user)
    finally:
        worker.stop()
        await working
