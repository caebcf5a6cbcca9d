"""The commands about agents: setup, memory and outcomes of a session of theirs, their documents and
what they learned. They look, and write with an option (--put, --write, --define, --promote)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

import limpet
from limpet.cli.command import (
    ACT,
    LOOK,
    Actor,
    MaybeKey,
    Reading,
    SessionKey,
    StoreArgument,
    Unopened,
    Writing,
    command,
)
from limpet.cli.history import other_session
from limpet.cli.options import Expect, History, json_file
from limpet.cli.render import CommandResult, Grid, Part, TextLine, moment_cell
from limpet.errors import InvalidInput
from limpet.model import to_us
from limpet.model.facts.running.memory import BUFFERS
from limpet.session.json_forms import key_form, proposal_form, time_form

_Name = Annotated[str | None, typer.Argument(metavar="NAME", help="One document; else all.")]
_Version = Annotated[int | None, typer.Option("--version", metavar="N", min=1, help="Which one.")]
_Put = Annotated[
    str | None, typer.Option("--put", metavar="FILE", help="Put this JSON; - reads the input.")
]
_Delete = Annotated[bool, typer.Option("--delete", help="Delete it; its history stays.")]


@command(LOOK)
async def setup(
    lp: Reading,
    key: SessionKey,
    *,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="OTHER", help="With this session's: id, or app/user/id."),
    ] = None,
) -> CommandResult:
    """Show what a session was set up with.

    Also its fingerprint, and what has changed since. Compares with the newest versions of
    the documents, or with another session.
    """
    s = lp.session(key)
    await s.refresh(tail=0)
    other = None
    if compare is not None:
        other = (await lp.get(other_session(key, compare))).setup.current
    changes = await s.setup.compare(other)
    form = {"session": key_form(key), **msgspec.to_builtins(s.setup.current)}
    form["fingerprint"] = s.setup.current.fingerprint
    lines: list[Part] = []
    for what in ("agent", "environment", "permissions", "resources", "vaults", "tools"):
        value = form[what]
        listed = value if isinstance(value, str) or value is None else ", ".join(value)
        lines.append(f"{what:12} {listed or '-'}")
    lines.append(f"fingerprint  {form['fingerprint']}")
    lines += [TextLine(f"changed: {each}", "warning") for each in changes]
    form["changes"] = [{**msgspec.to_builtins(each), "words": str(each)} for each in changes]
    return CommandResult(form, lines)


@command(LOOK)
async def memory(
    store: Unopened,
    key: SessionKey,
    actor: Actor,
    buffer: Annotated[
        str | None,
        typer.Argument(metavar="BUFFER", help="session_state, working_buffer or shell_state."),
    ] = None,
    *,
    write: Annotated[
        str | None, typer.Option("--write", metavar="TEXT", help="Replace it with a text.")
    ] = None,
    expect: Expect = None,
    history: History = False,
) -> CommandResult:
    """Show or write the buffers of a session."""
    if buffer not in (None, *BUFFERS):
        raise InvalidInput(
            f"a buffer to read or write is one of {', '.join(BUFFERS)}, not {buffer!r}. "
            "limpet checkpoint --list shows the checkpoints."
        )
    if buffer is None and (write is not None or history):
        raise InvalidInput("name the buffer: limpet memory STORE SESSION session_state ….")
    async with store.opened(writes=write is not None) as lp:
        kept = lp.session(key, actor=actor).memory
        if buffer is None:
            buffers = await kept.buffers()
            form = [msgspec.to_builtins(each) for each in buffers]
            return CommandResult(
                {"memory": form}, [f"{b['name']}@{b['version']}  {b['access']}" for b in form]
            )
        of: limpet.Buffer = getattr(kept, buffer)
        if write is not None:
            notes = [await of.write(write, expect=expect)]
        else:
            notes = [n for n in (await of.history() if history else [await of.read()]) if n]
    lines = [
        line
        for note in notes
        for line in f"{note.name}@{note.version}  {_text(note.value)}".split("\n")
    ]
    return CommandResult({"memory": [_note_form(note) for note in notes]}, lines)


@command(LOOK)
async def outcomes(
    store: Unopened,
    key: SessionKey,
    actor: Actor,
    *,
    define: Annotated[
        str | None, typer.Option("--define", metavar="TITLE", help="What is to be achieved.")
    ] = None,
    detail: Annotated[
        str | None, typer.Option("--detail", metavar="TEXT", help="More about the outcome.")
    ] = None,
    criteria: Annotated[
        list[str] | None, typer.Option("--criterion", metavar="TEXT", help="Several may be given.")
    ] = None,
    history: History = False,
) -> CommandResult:
    """Show or define the outcome a session should achieve."""
    if define is None and (detail or criteria):
        raise InvalidInput("--detail and --criterion belong to --define TITLE.")
    async with store.opened(writes=define is not None) as lp:
        s = lp.session(key, actor=actor)
        await s.refresh(tail=0)
        if define is not None:
            await s.outcome.define(define, detail, criteria or ())
        outcome, grade = s.outcome.current, await s.outcome.grade()
        events = await s.outcome.history() if history else ()
    form: dict[str, Any] = {"session": key_form(key), "grade": grade}
    form["outcome"] = msgspec.to_builtins(outcome)
    if history:
        form["history"] = [_judged_form(event) for event in events]
    if outcome is None:
        lines = [f"nothing is defined: {grade}, not evaluated"]
    else:
        lines = [f"{outcome.title}: {grade}, {outcome.verdict or 'not evaluated'}"]
        lines += [f"  - {each}" for each in outcome.criteria]
    for each in form.get("history", ()):
        lines.append(f"{each['at']}  {each['type']}  {each.get('verdict', '')}".rstrip())
    return CommandResult(form, lines)


@command(LOOK)
async def agents(
    store: Unopened,
    actor: Actor,
    name: _Name = None,
    *,
    version: _Version = None,
    history: History = False,
    put: _Put = None,
    delete: _Delete = False,
    expect: Expect = None,
) -> CommandResult:
    """Show, put or delete definitions of agents."""
    chosen = _DocumentQuery("agents", name, version, history, put, delete, expect)
    return await _documents(store, chosen, actor)


@command(LOOK)
async def documents(
    store: Unopened,
    actor: Actor,
    collection: Annotated[str, typer.Argument(metavar="COLLECTION", help="Such as agents.")],
    name: _Name = None,
    *,
    version: _Version = None,
    history: History = False,
    put: _Put = None,
    delete: _Delete = False,
    expect: Expect = None,
) -> CommandResult:
    """Show, put or delete documents.

    Such as agents, environments, resources, permissions and vaults. Of vaults only the names
    are shown, never the references.
    """
    chosen = _DocumentQuery(collection, name, version, history, put, delete, expect)
    return await _documents(store, chosen, actor)


@command(LOOK)
async def learnings(
    store: Unopened,
    key: MaybeKey,
    actor: Actor,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent, or the app.")],
    *,
    promote: Annotated[
        str | None, typer.Option("--promote", metavar="ID", help="Promote it to the memory.")
    ] = None,
) -> CommandResult:
    """Show what an agent has learned, or promote it.

    Shows the gates and its MEMORY.md too. Where a gate asks for an outcome, SESSION names the
    session that has it.
    """
    async with store.opened(writes=promote is not None) as lp:
        learned = await lp.learnings(agent)
        if promote is not None:
            lesson = next((each for each in learned if each.id == promote), None)
            if lesson is None:
                raise InvalidInput(f"{agent!r} has no learning {promote!r}. See limpet learnings.")
            await lp.promote(agent, lesson, session=key, actor=actor)
        form: dict[str, Any] = {"agent": agent, "learnings": msgspec.to_builtins(learned)}
        form["gates"] = msgspec.to_builtins(await lp.policies.gates_of(agent))
        form["memory"] = text = await lp.memory_of(agent)
    rows = [(each.id, each.kind, f"{each.sessions}×", each.text) for each in learned]
    empty = f"{agent} has learned nothing yet."
    lines = (text or f"{agent} has no memory yet.").rstrip().split("\n")
    return CommandResult(form, [Grid(("id", "kind", "sessions"), rows, "text", empty), *lines])


@command(LOOK)
async def proposals(
    lp: Reading,
    *,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only open, accepted, refused, expired or withdrawn ones.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="NAME", help="The items of agent:NAME or org:NAME too."),
    ] = None,
) -> CommandResult:
    """Show what sessions propose to remember, and the decisions.

    With --memory also what is remembered there, and until when.
    """
    wanted: Any = status
    every = await lp.proposals(wanted)
    shown = [each for each in every if memory in (None, each.to)]
    form: dict[str, Any] = {"proposals": [proposal_form(each) for each in shown]}
    rows = [
        (each.id, each.to, each.status, f"{each.confidence:.2f}", str(each.provenance), each.text)
        for each in shown
    ]
    columns = ("id", "memory", "status", "confidence", "session")
    parts: list[Part] = [Grid(columns, rows, "text", "nothing was proposed.")]
    if memory is not None:
        items = await lp.recall(memory)
        form["items"] = [
            {"id": item.id, "text": item.text, "expires_at": _time_or_none(item.expires_at)}
            for item in items
        ]
        remembered = [(item.id, _time_or_none(item.expires_at) or "-", item.text) for item in items]
        parts.append(Grid(("id", "until"), remembered, "text", f"{memory} remembers nothing."))
    return CommandResult(form, parts)


@command(ACT)
async def decide(
    lp: Writing,
    actor: Actor,
    proposal: Annotated[str, typer.Argument(metavar="PROPOSAL", help="Its id.")],
    *,
    accept: Annotated[
        bool | None, typer.Option("--accept/--refuse", help="Accept it, or refuse it.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
) -> CommandResult:
    """Accept or refuse what a session proposes to remember.

    The gates of the memory are asked too. The decision is recorded with its reason.
    """
    if accept is None or not reason:
        raise InvalidInput("choose --accept or --refuse, and say why with --reason TEXT.")
    decided = await lp.decide(proposal, accept=accept, reason=reason, actor=actor)
    return CommandResult(
        proposal_form(decided), [TextLine(f"{decided.id} {decided.status}: {decided.reason}")]
    )


# --- private ------------------------------------------------------------------------------------


def _time_or_none(at: datetime | None) -> str | None:
    return None if at is None else time_form(to_us(at))


class _DocumentQuery(msgspec.Struct, frozen=True):
    """The documents that a command is about, and what is to be done with them."""

    collection: str
    name: str | None
    version: int | None
    history: bool
    put: str | None
    delete: bool
    expect: int | None


async def _documents(store: StoreArgument, chosen: _DocumentQuery, actor: str) -> CommandResult:
    name, put = chosen.name, chosen.put
    if name is None and (chosen.version or chosen.history or put or chosen.delete):
        raise InvalidInput("name the document: limpet documents STORE COLLECTION NAME.")
    if chosen.delete and put is not None:
        raise InvalidInput("pass one of --put and --delete.")
    value = None if put is None else json_file("--put", put)
    async with store.opened(writes=put is not None or chosen.delete) as lp:
        of = lp.documents(chosen.collection, actor=actor)
        if name is None:
            shown = [document async for document in of.each()]
        elif put is not None:
            shown = [await of.put(name, value, expect=chosen.expect)]
        elif chosen.delete:
            await of.delete(name, expect=chosen.expect)
            shown = list(await of.history(name, limit=1))
        elif chosen.history:
            shown = list(await of.history(name))
        else:
            shown = [await of.get(name, chosen.version)]
    rows = [
        (f"{d.name}@{d.version}", moment_cell(to_us(d.at)), d.actor)
        + (() if name is None else (_value(d),))
        for d in shown
    ]
    below = "" if name is None else "value"
    grid = Grid(("document", "at", "actor"), rows, below, "nothing is there.")
    return CommandResult({"documents": [_document_form(each) for each in shown]}, [grid])


def _value(document: limpet.Document) -> str:
    form = _document_form(document)
    return "deleted" if document.deleted else _text(form.get("value", form.get("names")))


def _document_form(document: limpet.Document) -> dict[str, Any]:
    """A document as JSON; of a vault only the names."""
    form: dict[str, Any] = {"name": document.name, "version": document.version}
    form |= {"at": document.at.isoformat(), "actor": document.actor, "deleted": document.deleted}
    if isinstance(document, limpet.VaultDocument):
        return {**form, "names": list(document.names)}
    return {**form, "value": document.value}


def _note_form(note: limpet.Note) -> dict[str, Any]:
    form = {"name": note.name, "version": note.version, "value": note.value}
    return {**form, "at": note.at.isoformat(), "actor": note.actor}


def _judged_form(event: limpet.Event) -> dict[str, Any]:
    at = {"seq": event.seq, "type": event.type, "at": time_form(event.at_us)}
    return {**at, "actor": event.actor, **(event.data or {})}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
