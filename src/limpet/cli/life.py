"""The commands that lead a session from phase to phase: suspend, resume, complete, terminate,
archive, unarchive; and sweep, which does so for every session whose time is over."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

import limpet
from limpet.cli.command import LIFE, Actor, Display, SessionKey, Unopened, Writing, command
from limpet.cli.options import ArchiveUrl, OtherNodes, OwnNode, Reason
from limpet.cli.render import CommandResult, TextLine
from limpet.errors import InvalidInput
from limpet.session.json_forms import key_form


@command(LIFE)
async def suspend(
    lp: Writing, key: SessionKey, actor: Actor, *, reason: Reason = None
) -> CommandResult:
    """Suspend a session: inputs wait, nothing runs."""
    return _phase(key, (await lp.session(key).suspend(reason, actor=actor)).phase)


@command(LIFE)
async def resume(
    lp: Writing,
    key: SessionKey,
    actor: Actor,
    *,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Restore an older checkpoint if necessary.")
    ] = False,
) -> CommandResult:
    """Resume a suspended session, and print the report."""
    _, report = await lp.resume(key, fallback=fallback, actor=actor)
    form = {"session": key_form(key), "steps": [msgspec.to_builtins(step) for step in report.steps]}
    lines = [
        TextLine(line, "warning" if line.startswith("  warning") else "ok")
        for line in str(report).split("\n")
    ]
    return CommandResult({**form, **report.figures, "warnings": list(report.warnings)}, lines)


@command(LIFE)
async def complete(lp: Writing, key: SessionKey, actor: Actor) -> CommandResult:
    """Complete a session: its work is done."""
    return _phase(key, (await lp.session(key).complete(actor=actor)).phase)


@command(LIFE)
async def terminate(
    lp: Writing, key: SessionKey, actor: Actor, *, reason: Reason = None
) -> CommandResult:
    """Terminate a session: it ends before its work is done."""
    return _phase(key, (await lp.session(key).terminate(reason, actor=actor)).phase)


@command(LIFE)
async def archive(
    store: Unopened, key: SessionKey, actor: Actor, *, archive_url: ArchiveUrl = None
) -> CommandResult:
    """Move a completed or terminated session to the archive."""
    async with store.opened(archive=archive_url) as lp:
        return _phase(key, (await lp.session(key).archive(actor=actor)).phase)


@command(LIFE)
async def unarchive(
    store: Unopened, key: SessionKey, actor: Actor, *, archive_url: ArchiveUrl = None
) -> CommandResult:
    """Bring an archived session back, in the phase it had before."""
    async with store.opened(archive=archive_url) as lp:
        await lp.unarchive(key, actor=actor)
        return _phase(key, (await lp.get(key)).phase)


@command(LIFE)
async def sweep(
    store: Unopened,
    screen: Display,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until interrupted.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="With --watch: how often.")
    ] = 60.0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Act on at most N sessions at once.")
    ] = 1_000,
    archive_url: ArchiveUrl = None,
    node: OwnNode = None,
    nodes: OtherNodes = None,
) -> CommandResult:
    """Act on timeouts: suspend, terminate, archive, delete.

    It also finishes moves that were interrupted, to nodes that it is told of. Any number may run
    at once. Exits with 1 if a session could not be moved on.
    """
    if not every > 0:
        raise InvalidInput("--every is a number of seconds above 0.")
    async with store.opened(archive=archive_url, node=node, nodes=nodes or ()) as lp:
        while True:
            swept = await lp.work.sweep(limit=limit)
            if not watch:
                return _swept(swept)
            screen.show(_swept(swept))
            if not swept.more:
                await asyncio.sleep(every)


def _phase(key: limpet.Key, phase: str) -> CommandResult:
    line = TextLine(f"ok: {key} is {phase}.", "ok")
    return CommandResult({"session": key_form(key), "phase": phase}, [line])


def _swept(swept: limpet.Swept) -> CommandResult:
    ok = not swept.failed
    failed = [{"session": key_form(e.key), "reason": e.reason} for e in swept.failed]
    lines = [TextLine(f"not swept: {e.key}: {e.reason}", "problem") for e in swept.failed]
    lines.append(TextLine(f"{'ok' if ok else 'not ok'}: {swept}.", "ok" if ok else "problem"))
    return CommandResult({**msgspec.to_builtins(swept), "failed": failed}, lines, ok)
