"""The commands about agents: their documents, what they learned, and what one session of theirs
runs with, keeps and is to achieve: documents, agents, learnings, setup, memory, outcomes, children.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import limpet
from limpet.cli.asked import Json, Url, named_by_options, on
from limpet.cli.life import acting
from limpet.cli.past import Actor, App, Id, User
from limpet.cli.show import Screen
from limpet.errors import InvalidInput
from limpet.model.facts.running.memory import BUFFERS
from limpet.session.wire import key_form, time_form

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="One document; else all.")]
Version = Annotated[int | None, typer.Option("--version", metavar="N", min=1, help="Which one.")]
History = Annotated[bool, typer.Option("--history", help="Every version, the newest first.")]
PutFile = Annotated[
    str | None, typer.Option("--put", metavar="FILE", help="Put this JSON; - reads the input.")
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete it; its history stays.")]
Expect = Annotated[
    int | None, typer.Option("--expect", metavar="N", min=0, help="Only at this version.")
]


def documents(
    url: Url,
    collection: Annotated[str, typer.Argument(metavar="COLLECTION", help="Such as agents.")],
    name: Name = None,
    *,
    version: Version = None,
    history: History = False,
    put: PutFile = None,
    delete: Delete = False,
    expect: Expect = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Show, put or delete documents.

    Such as agents, environments, resources, permissions and vaults. Of vaults only the names
    are shown, never the references.
    """
    screen = Screen(as_json=as_json)
    with screen.errors():
        if name is None and (version or history or put or delete):
            raise InvalidInput("name the document: limpet documents STORE COLLECTION NAME.")
        if delete and put is not None:
            raise InvalidInput("pass one of --put and --delete.")
        value = None if put is None else _json_of(put)

        async def run(lp: limpet.Limpet) -> list[limpet.Document]:
            of = lp.documents(collection, actor=acting(actor))
            if name is None:
                return await _all(of)
            if put is not None:
                return [await of.put(name, value, expect=expect)]
            if delete:
                await of.delete(name, expect=expect)
                return list(await of.history(name, limit=1))
            return list(await of.history(name)) if history else [await of.get(name, version)]

        _show(screen, on(url, run, looking=put is None and not delete), whole=name is not None)


def agents(
    url: Url,
    name: Name = None,
    *,
    version: Version = None,
    history: History = False,
    put: PutFile = None,
    delete: Delete = False,
    expect: Expect = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Show, put or delete definitions of agents."""
    how: dict[str, Any] = {"version": version, "history": history, "put": put, "delete": delete}
    documents(url, "agents", name, **how, expect=expect, actor=actor, as_json=as_json)


def learnings(
    url: Url,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent, or the app.")],
    *,
    promote: Annotated[
        str | None, typer.Option("--promote", metavar="ID", help="Take it into its memory.")
    ] = None,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="The app of that session.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Its user.")] = None,
    id_: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id.")] = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Show what an agent has learned, or promote it.

    Shows the gates and its MEMORY.md too. Where a gate asks for an outcome, --app, --user
    and --id name the session.
    """
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> dict[str, Any]:
        found = await lp.learnings(agent)
        if promote is not None:
            chosen = [each for each in found if each.id == promote]
            if not chosen:
                raise InvalidInput(f"{agent!r} has no learning {promote!r}. See limpet learnings.")
            given = (app_name, user, id_)
            if any(given) and not all(given):
                raise InvalidInput("a session is named by --app, --user and --id together.")
            of = limpet.Key(*map(str, given)) if all(given) else None
            await lp.promote(agent, chosen[0], session=of, actor=acting(actor))
        told: dict[str, Any] = {"agent": agent, "learnings": msgspec.to_builtins(found)}
        told["gates"] = msgspec.to_builtins(await lp.policies.gates_of(agent))
        return told | {"memory": await lp.memory_of(agent)}

    with screen.errors():
        told = on(url, run, looking=promote is None)
        with screen.answer(told) as say:
            for each in told["learnings"]:
                say(f"{each['id']}  {each['kind']}  {each['sessions']}×  {each['text']}", "ok")
            for line in (told["memory"] or f"{agent} has no memory yet.").rstrip().split("\n"):
                say(line, "ok")


def setup(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="ID", help="With this session's setup.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a session was set up with.

    Also its fingerprint, and what has changed since. Compares with the newest versions of
    the documents, or with another session of the user.
    """
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> dict[str, Any]:
        s = lp.session(app_name, user, id_)
        await s.refresh(tail=0)
        other = None
        if compare is not None:
            other = (await lp.get(app_name, user, compare)).setup.current
        changes = await s.setup.compare(other)
        told = {"session": key_form(s.key), **msgspec.to_builtins(s.setup.current)}
        told["fingerprint"] = s.setup.current.fingerprint
        shown = [{**msgspec.to_builtins(each), "words": str(each)} for each in changes]
        return {**told, "changes": shown}

    with screen.errors(), named_by_options():
        told = on(url, run, looking=True)
        with screen.answer(told) as say:
            for what in ("agent", "environment", "permissions", "resources", "vaults", "tools"):
                value = told[what]
                listed = value if isinstance(value, str) or value is None else ", ".join(value)
                say(f"{what:12} {listed or '-'}", "ok")
            say(f"fingerprint  {told['fingerprint']}", "ok")
            for each in told["changes"]:
                say(f"changed: {each['words']}", "warning")


def memory(
    url: Url,
    buffer: Annotated[
        str | None,
        typer.Argument(metavar="[BUFFER]", help="session_state, working_buffer or shell_state."),
    ] = None,
    *,
    app_name: App,
    user: User,
    id_: Id,
    write: Annotated[
        str | None, typer.Option("--write", metavar="TEXT", help="Replace it with a text.")
    ] = None,
    expect: Expect = None,
    history: History = False,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Show or write the buffers of a session."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> list[dict[str, Any]]:
        kept = lp.session(app_name, user, id_, actor=acting(actor)).memory
        if buffer is None:
            return [msgspec.to_builtins(each) for each in await kept.buffers()]
        of: limpet.Buffer = getattr(kept, buffer)
        if write is not None:
            return [_note(await of.write(write, expect=expect))]
        notes = await of.history() if history else [await of.read()]
        return [_note(note) for note in notes if note is not None]

    with screen.errors(), named_by_options():
        if buffer not in (None, *BUFFERS):
            raise InvalidInput(
                f"a buffer to read or write is one of {', '.join(BUFFERS)}, not {buffer!r}. "
                "limpet checkpoint --list shows the checkpoints."
            )
        if buffer is None and (write is not None or history):
            raise InvalidInput("name the buffer: limpet memory STORE session_state ….")
        told = on(url, run, looking=write is None)
        with screen.answer({"memory": told}) as say:
            for each in told:
                rest = each["access"] if buffer is None else _text(each["value"])
                for line in f"{each['name']}@{each['version']}  {rest}".split("\n"):
                    say(line, "ok")


def outcomes(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
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
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Show or define what a session is to achieve."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> dict[str, Any]:
        s = lp.session(app_name, user, id_, actor=acting(actor))
        await s.refresh(tail=0)
        if define is not None:
            await s.outcome.define(define, detail, criteria or ())
        told: dict[str, Any] = {"session": key_form(s.key), "grade": await s.outcome.grade()}
        told["outcome"] = msgspec.to_builtins(s.outcome.current)
        if history:
            told["history"] = [_judged(event) for event in await s.outcome.history()]
        return told

    with screen.errors(), named_by_options():
        if define is None and (detail or criteria):
            raise InvalidInput("--detail and --criterion belong to --define TITLE.")
        told = on(url, run, looking=define is None)
        with screen.answer(told) as say:
            found = told["outcome"]
            title = "nothing is defined" if found is None else found["title"]
            verdict = "not evaluated" if found is None else found["verdict"] or "not evaluated"
            say(f"{title}: {told['grade']}, {verdict}", "ok")
            for each in () if found is None else found["criteria"]:
                say(f"  - {each}", "ok")
            for each in told.get("history", ()):
                say(f"{each['at']}  {each['type']}  {each.get('verdict', '')}".rstrip(), "ok")


def children(url: Url, *, app_name: App, user: User, id_: Id, as_json: Json = False) -> None:
    """Show the sessions delegated from one, as a tree."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> limpet.Kin:
        return await lp.session(app_name, user, id_).runs.tree()

    with screen.errors(), named_by_options():
        tree = on(url, run, looking=True)
        with screen.answer(_kin(tree)) as say:
            for depth, kin in _walk(tree):
                ended = "" if not depth else f"  {kin.stop_reason or 'at work'}"
                title = "" if kin.title is None else f"  {kin.title}"
                say(f"{'  ' * depth}{kin.key}{title}{ended}{'  gone' if kin.gone else ''}", "ok")


# --- private ------------------------------------------------------------------------------------


async def _all(of: limpet.Documents) -> list[limpet.Document]:
    found: list[limpet.Document] = []
    cursor: str | None = None
    while True:
        page = await of.list(limit=1_000, cursor=cursor)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


def _json_of(file: str) -> Any:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return msgspec.json.decode(text.encode())
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"--put {file}: {reason}. Pass a file that holds JSON.") from error


def _show(screen: Screen, found: list[limpet.Document], *, whole: bool) -> None:
    with screen.answer({"documents": [_document(each) for each in found]}) as say:
        for each in found:
            form = _document(each)
            shown = "deleted" if each.deleted else _text(form.get("value", form.get("names")))
            tail = f"  {shown}" if whole else ""
            say(f"{each.name}@{each.version}  {each.at.isoformat()}  {each.actor}{tail}", "ok")
        if not found:
            say("nothing is there.", "ok")


def _document(document: limpet.Document) -> dict[str, Any]:
    """A document as JSON; of a vault only the names."""
    form: dict[str, Any] = {"name": document.name, "version": document.version}
    form |= {"at": document.at.isoformat(), "actor": document.actor, "deleted": document.deleted}
    if isinstance(document, limpet.VaultDocument):
        return {**form, "names": list(document.names)}
    return {**form, "value": document.value}


def _note(note: limpet.Note) -> dict[str, Any]:
    form = {"name": note.name, "version": note.version, "value": note.value}
    return {**form, "at": note.at.isoformat(), "actor": note.actor}


def _judged(event: limpet.Event) -> dict[str, Any]:
    at = {"seq": event.seq, "type": event.type, "at": time_form(event.at_us)}
    return {**at, "actor": event.actor, **(event.data or {})}


def _kin(kin: limpet.Kin) -> dict[str, Any]:
    form: dict[str, Any] = {
        "session": key_form(kin.key),
        "title": kin.title,
        "stop_reason": kin.stop_reason,
    }
    form |= {"summary": kin.summary, "output": kin.output}
    return {**form, "gone": kin.gone, "children": [_kin(each) for each in kin.children]}


def _walk(kin: limpet.Kin, depth: int = 0) -> list[tuple[int, limpet.Kin]]:
    below = [pair for child in kin.children for pair in _walk(child, depth + 1)]
    return [(depth, kin), *below]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


COMMANDS = (documents, agents, learnings, setup, memory, outcomes, children)
