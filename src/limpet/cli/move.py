"""The commands that carry sessions elsewhere, and bring them in from other tools."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, cast

import msgspec
import typer

import limpet
from limpet.adapters.adk_import import import_adk as import_from_adk, open_source
from limpet.adapters.claude_transcripts import import_transcripts
from limpet.cli.command import (
    MOVE,
    Actor,
    Display,
    Filter,
    Reading,
    SessionKey,
    StoreArgument,
    Unopened,
    Writing,
    command,
)
from limpet.cli.options import (
    NewFile,
    NewStore,
    OtherNodes,
    OwnNode,
    file_path,
    refuse_unknown,
    refuse_unknown_user,
    session_key,
    store_url,
    time_span,
)
from limpet.cli.render import CommandResult, Screen, Severity, TextLine, at_the_shell
from limpet.errors import InvalidInput
from limpet.model import is_reserved
from limpet.session.json_forms import key_form
from limpet.store.protocol import plural, size
from limpet.store.tiers import Criticality, Price, choose_tier

DEFAULT_STORE: Final = "limpet.db"
_SHOWN: Final = 20  # sessions that are named
Deadline = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long to wait for a turn, and for the target.")
]
Force = Annotated[
    bool, typer.Option("--force", help="End a turn under way; its effects become unknown.")
]
TargetNode = Annotated[
    str | None, typer.Option("--to-node", metavar="NAME", help="The name of TO among the nodes.")
]
SealFor = Annotated[
    str | None,
    typer.Option(
        metavar="PUBLIC_KEY",
        help="Seal what travels for the store at the server: its public key, or a file of it. See "
        "limpet keys public.",
    ),
]
LocalStore = Annotated[
    str,
    typer.Option(
        metavar="STORE",
        envvar="LIMPET_STORE",
        show_envvar=False,
        help="The store on this machine, or LIMPET_STORE.",
    ),
]
Below = Annotated[
    bool,
    typer.Option(
        "--below", help="Also the sessions below it, such as those of subagents: SESSION/…."
    ),
]
_LINES_MAX: Final = 20  # of a file that cannot be read
_ADK_FILE: Final = re.compile(r"sqlite(\+\w+)?:///(?P<path>[^?]+?)(\.(db|sqlite3?))?(\?.*)?")


@command(MOVE)
async def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The store to copy from.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="The store to copy to; created if missing.")
    ],
    chosen: Filter,
    screen: Display,
    *,
    family: Annotated[
        str | None,
        typer.Option(metavar="USER", help="With --app: only the sessions and names of this user."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare every log with its copy afterwards.")
    ] = False,
) -> CommandResult:
    """Copy sessions from one store to another.

    Copies everything, an app, a user's part of it, or one session. The source is only read. Safe to
    interrupt and run again: the next run sends what is missing. Exits with 1 if something could not
    be copied, or differs.
    """
    one, two = StoreArgument(store_url(source)), StoreArgument(store_url(target))
    if one == two:
        raise InvalidInput("FROM and TO are the same store. Name another one to copy to.")
    if family is not None and chosen.app is None:
        raise InvalidInput("--family is a user of an app. Name the app too: --app APP.")
    began = time.monotonic()
    async with one.opened(writes=False) as lp, two.opened(creates=True) as other:
        if chosen.app is not None and not is_reserved(chosen.app):
            await refuse_unknown(lp, chosen.app)
            if family is not None:
                await refuse_unknown_user(lp, chosen.app, family)
        with screen.progress("copying events") as progress:
            if chosen.key is not None:
                copied = await lp.copy(chosen.key, to=other, progress=progress)
            else:
                copied = await lp.copy(
                    app=chosen.app, user=family, to=other, progress=progress, check=check
                )
    seconds = time.monotonic() - began
    lines = _refusals("copied", copied.refused, copied.refusals)
    for key in copied.cut:
        cut = f"cut: {key} came without its parent; what is before the fork reads as removed."
        lines.append(TextLine(cut, "warning"))
    if copied.left_out:
        names = ", ".join(copied.left_out)
        left = f"left out: {names}. Copy the app to bring them along (--app)."
        lines.append(TextLine(left, "warning"))
    sent = copied.sent if copied.checked is None else f"{copied.sent}, {copied.checked:,} compared"
    lines.append(_done(f"{sent} in {seconds:.1f} s", ok=copied.ok))
    form: dict[str, Any] = {
        "sessions": copied.sessions,
        "events": copied.events,
        "names": copied.names,
    }
    form |= {"left_out": list(copied.left_out), "cut": [key_form(key) for key in copied.cut]}
    form |= _refused_form(copied.refused, copied.refusals)
    form |= {} if copied.checked is None else {"checked": copied.checked}
    return CommandResult({**form, "seconds": seconds}, lines, copied.ok)


@command(MOVE)
def plan(
    *,
    criticality: Annotated[
        str, typer.Option(metavar="NAME", help="ephemeral, standard, business or cross_region.")
    ] = "standard",
    writes: Annotated[
        float, typer.Option(metavar="N", help="Writes of one session, over its retention.")
    ],
    reads: Annotated[
        float, typer.Option(metavar="N", help="Reads of one session, over its retention.")
    ],
    state_bytes: Annotated[float, typer.Option(metavar="N", help="Bytes that a session keeps.")],
    retention: Annotated[
        str, typer.Option(metavar="SPAN", help="How long it is kept: 12h, 30d, 52w.")
    ],
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help='Prices of your own: {"L2": {"write": …, "read": …, …}}.'
        ),
    ] = None,
) -> CommandResult:
    """Choose a tier: the cheapest store that is durable enough.

    Opens no store. The prices it begins with are in docs/cluster.md; a JSON file replaces those of
    the tiers that it names.
    """
    own = None if prices is None else _prices(prices)
    choice = choose_tier(
        cast("Criticality", criticality),
        writes=writes,
        reads=reads,
        state_bytes=state_bytes,
        retention=time_span("--retention", retention),
        prices=own,
    )
    lines = []
    for each in choice.considered:
        mark = "chosen" if each.tier == choice.tier else "enough" if each.durable else "too little"
        words = f"{each.tier} {each.cost:.3g} {mark}: {each.url_form} survives {each.survives}."
        lines.append(TextLine(words))
    if choice.compact_every is not None:
        after, every = choice.compact_after_writes, choice.compact_every
        lines.append(TextLine(f"Compact a log after about {after:,} writes, every {every}."))
    form = msgspec.to_builtins(choice)
    if choice.compact_every is not None:
        form["compact_every"] = choice.compact_every.total_seconds()
    return CommandResult(form, lines)


def _prices(file: str) -> dict[str, Price]:
    """The prices in a JSON file. Raises InvalidInput."""
    try:
        return msgspec.json.decode(file_path(file).read_bytes(), type=dict[str, Price])
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}. Check its path.") from error
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{file} holds no prices: {error}. See docs/cluster.md.") from error


@command(MOVE)
async def move(
    lp: Writing,
    key: SessionKey,
    target: Annotated[
        str, typer.Argument(metavar="TO", help="The store to move to; created if missing.")
    ],
    screen: Display,
    *,
    deadline: Deadline = 30.0,
    force: Force = False,
    to_node: TargetNode = None,
    seal_for: SealFor = None,
) -> CommandResult:
    """Move a live session to another store.

    From then on it is only there; the old store says where it is. Safe to interrupt: run it again
    to finish. Exits with 1 if the session was not moved.
    """
    store, sealed_for = StoreArgument(store_url(target)), _public_key(seal_for)
    async with store.opened(creates=True, node=to_node, seal_for=sealed_for) as other:
        with screen.progress("moving events") as progress:
            moved = await lp.move(key, other, deadline=deadline, force=force, progress=progress)
        return _moved(key, moved, other.node)


@command(MOVE)
async def drain(
    lp: Writing,
    target: Annotated[
        str, typer.Argument(metavar="TO", help="The store to move to; created if missing.")
    ],
    screen: Display,
    *,
    app: Annotated[
        str | None, typer.Option(metavar="APP", help="Only sessions of this app.")
    ] = None,
    deadline: Deadline = 30.0,
    force: Force = False,
    to_node: TargetNode = None,
    seal_for: SealFor = None,
) -> CommandResult:
    """Move every session to another store.

    Parents move with their children. Safe to interrupt and run again: the next run goes on. Exits
    with 1 if a session is left.
    """
    if app is not None:
        await refuse_unknown(lp, app)
    store, sealed_for = StoreArgument(store_url(target)), _public_key(seal_for)
    async with store.opened(creates=True, node=to_node, seal_for=sealed_for) as other:
        with screen.progress("moving sessions") as progress:
            done = await lp.drain(other, app=app, deadline=deadline, force=force, progress=progress)
    lines = [
        TextLine(f"not moved: {each.key}: {each.reason}: {each.detail}", "problem")
        for each in done.refused[:_SHOWN]
    ]
    sent = _sent(done.events, done.bundle_bytes, done.compressed_bytes)
    lines.append(_done(f"{plural(done.sessions, 'session')} moved: {sent}", ok=done.ok))
    refused = [
        {"session": key_form(each.key), "reason": each.reason, "detail": each.detail}
        for each in done.refused
    ]
    form = {"sessions": done.sessions, "events": done.events, "refused": refused}
    form |= {"bundle_bytes": done.bundle_bytes, "compressed_bytes": done.compressed_bytes}
    return CommandResult(form, lines, done.ok)


@command(MOVE)
async def reclaim(
    store: Unopened,
    key: SessionKey,
    actor: Actor,
    *,
    target_is_lost: Annotated[
        str, typer.Option(metavar="NODE", help="The node that nobody runs any more: see where.")
    ],
    epoch: Annotated[
        int, typer.Option(metavar="N", min=1, help="The epoch it left in: see where.")
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why it is lost; recorded.")],
    node: OwnNode = None,
    nodes: OtherNodes = None,
) -> CommandResult:
    """Take back a session whose target is lost for good.

    What the target recorded is not here. If you run the target again, both own the session: doctor
    names it. With --nodes the target is asked first, and refuses if it answers. For admins.
    """
    async with store.opened(node=node, nodes=nodes or ()) as lp:
        done = await lp.reclaim(
            key, target_is_lost=target_is_lost, epoch=epoch, reason=reason, actor=actor
        )
    words = f"{key} is here again ({done.node}), in epoch {done.epoch}; {done.lost} is lost"
    more = [TextLine(f"and with it {each}.") for each in done.family if each != key]
    form = {"session": key_form(key), "node": done.node, "epoch": done.epoch, "lost": done.lost}
    form |= {"family": [key_form(each) for each in done.family]}
    return CommandResult(form, [_done(words), *more])


@command(MOVE)
async def push(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="As app/user/id.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="The store to continue in.")],
    screen: Display,
    *,
    store: LocalStore = DEFAULT_STORE,
    below: Below = False,
    force: Force = False,
    seal_for: SealFor = None,
) -> CommandResult:
    """Continue a session elsewhere: move it from here to a URL."""
    async with _both(store, url, to_key=_public_key(seal_for)) as (lp, other):
        return await _carry(lp, other, session_key(session), screen, below=below, force=force)


@command(MOVE)
async def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="The store that has it.")],
    session: Annotated[str, typer.Argument(metavar="SESSION", help="As app/user/id.")],
    screen: Display,
    *,
    store: LocalStore = DEFAULT_STORE,
    below: Below = False,
    force: Force = False,
    seal_for: SealFor = None,
) -> CommandResult:
    """Continue a session here: move it from a URL."""
    async with _both(url, store, from_key=_public_key(seal_for)) as (lp, other):
        return await _carry(lp, other, session_key(session), screen, below=below, force=force)


async def _carry(
    lp: limpet.Limpet,
    other: limpet.Limpet,
    key: limpet.Key,
    screen: Screen,
    *,
    below: bool,
    force: bool,
) -> CommandResult:
    """Move a session, and with `below` those below it first."""
    keys: list[limpet.Key] = []
    if below:
        listed = lp.each(
            app=key.app, user=key.user, order="key", reverse=False, prefix=f"{key.id}/"
        )
        keys = [head.key async for head in listed]
    results = []
    for each in (*keys, key):
        with screen.progress("moving events") as progress:
            moved = await lp.move(each, other, force=force, progress=progress)
        results.append(_moved(each, moved, other.node))
        if not moved.success:
            break
    if not below:
        return results[0]
    lines = [line for result in results for line in result.parts]
    form = {"sessions": [result.form for result in results]}
    return CommandResult(form, lines, all(result.ok for result in results))


@command(MOVE)
async def where(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="As app/user/id.")],
    *,
    store: LocalStore = DEFAULT_STORE,
) -> CommandResult:
    """Show which node has a session.

    Exits with 1 if the store does not know it.
    """
    key = session_key(session)
    async with StoreArgument(store_url(store)).opened(writes=False) as lp:
        home = await lp.home(key)
        here = await lp.find(key) if home is None else None
        if home is None and here is not None:
            home = limpet.Home(lp.node, 0)
        if home is None:
            line = TextLine(f"not found: {key} is not known in this store.", "problem")
            return CommandResult({"session": key_form(key), "node": None}, [line], ok=False)
        own = home.node == lp.node
    words = f"{key} is here ({home.node})" if own else f"{key} is at {home.node}"
    since = f", since epoch {home.epoch}" if home.epoch else ""
    form = {"session": key_form(key), "node": home.node, "epoch": home.epoch, "here": own}
    return CommandResult(form, [_done(f"{words}{since}")])


@asynccontextmanager
async def _both(
    source: str, target: str, *, from_key: str | None = None, to_key: str | None = None
) -> AsyncIterator[tuple[limpet.Limpet, limpet.Limpet]]:
    """Open both stores of a move, each sealed for its key if that is given."""
    one, two = StoreArgument(store_url(source)), StoreArgument(store_url(target))
    if one == two:
        raise InvalidInput("both are the same store. Name another one to move to.")
    opening = two.opened(creates=True, seal_for=to_key)
    async with one.opened(seal_for=from_key) as lp, opening as other:
        yield lp, other


def _public_key(given: str | None) -> str | None:
    """The public key that --seal-for names: itself, or a file of it. Raises InvalidInput."""
    if given is None or given.lstrip().startswith("-----BEGIN"):
        return given
    try:
        return file_path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--seal-for {given} cannot be read. Pass a PEM file.") from error


def _moved(key: limpet.Key, moved: limpet.Moved, to: str) -> CommandResult:
    """The answer of a move, for people and for programs."""
    form = {"session": key_form(key), "to": to, **msgspec.to_builtins(moved)}
    if not moved.success:
        words = f"not moved: {key}: {moved.reason}: {moved.detail}"
        if moved.reason == "unknown":
            words += f". Run the command again for {key} to finish"
        return CommandResult(form, [TextLine(f"{words}.", "problem")], ok=False)
    lines = []
    if moved.left_out:
        names = ", ".join(moved.left_out)
        lines.append(
            TextLine(f"left out: {names}, which belong to the app or the user.", "warning")
        )
    sent = _sent(moved.events, moved.bundle_bytes, moved.compressed_bytes)
    lines.append(_done(f"{key} is at {to} now, in epoch {moved.epoch}: {sent}"))
    return CommandResult(form, lines)


def _sent(events: int, plain: int, compressed: int) -> str:
    """The events and bytes sent, and how much smaller zstd made them."""
    ratio = f" (ratio {compressed / plain:.2f})" if plain else ""
    return f"{plural(events, 'event')}, {size(plain)} as {size(compressed)}{ratio}"


@command(MOVE)
async def export(
    lp: Reading,
    key: SessionKey,
    file: NewFile,
    *,
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Leave out the bodies of these events; repeatable."),
    ] = None,
) -> CommandResult:
    """Export one session to a file, for import elsewhere.

    The file holds the whole log with its bodies in plain text. It appears complete or not at all.
    With --redact user.message or agent.* it can be checked with a receipt, and not be imported.
    """
    target = file_path(file)
    await lp.export(key, target, redact=redact or ())
    held = target.stat().st_size
    words = f"{key} exported to {target} ({size(held)}). Its bodies are in plain text"
    form = {"session": key_form(key), "file": str(target), "bytes": held}
    return CommandResult(form, [_done(words)])


@command(MOVE, "import")
async def import_(
    url: NewStore,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export has written.")],
) -> CommandResult:
    """Bring the session in a file into a store.

    The whole file is verified first. Safe to interrupt and run again.
    """
    source = file_path(file)
    async with StoreArgument(store_url(url)).opened(creates=True) as lp:
        key = await lp.import_(source)
        version = (await lp.get(key, tail=0)).head.version
    line = _done(f"{key} imported, at version {version:,}")
    return CommandResult({"session": key_form(key), "version": version}, [line])


@command(MOVE)
async def mirror(
    lp: Reading,
    chosen: Filter,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Where to write; created if missing.")
    ],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep the files up to date until it is interrupted.")
    ] = False,
) -> CommandResult:
    """Write sessions as human-readable files.

    Each has a directory with session.json, events.jsonl, wake-queue.jsonl and runtime/. They are
    only written, in plain text: change the session, and run it again, or keep it running with
    --follow.
    """
    target = file_path(directory)
    if follow:
        written = await lp.maintenance.mirror(target, chosen.key, app=chosen.app, follow=True)
    elif chosen.key is not None:
        written = await lp.maintenance.mirror(target, chosen.key)
    else:
        if chosen.app is not None:
            await refuse_unknown(lp, chosen.app)
        written = await lp.maintenance.mirror(target, app=chosen.app)
    line = _done(f"{written} to {target}. Bodies are in plain text")
    return CommandResult({"directory": str(target), **msgspec.to_builtins(written)}, [line])


@command(MOVE, "import-adk")
async def import_adk(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The database of google-adk, as ADK has it: sqlite:///adk.db."
        ),
    ],
    screen: Display,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="STORE",
            help="The store to import into; created if missing. Default: NAME.limpet.db "
            "beside NAME.db.",
        ),
    ] = None,
) -> CommandResult:
    """Bring the sessions of a google-adk database into a store.

    ADK's database is only read. Safe to interrupt and run again: the next run brings what is
    missing. Exits with 1 if a session could not be imported.
    """
    source = store_url(url)
    store = _beside(source) if target is None else store_url(target)
    began = time.monotonic()
    async with open_source(source):  # it is one, or no store is made
        pass
    async with StoreArgument(store).opened(creates=True) as lp:
        with screen.progress("importing events") as progress:
            done = await import_from_adk(source, lp, progress=progress)
    seconds = time.monotonic() - began
    brought = f"{plural(done.sessions, 'new session')}, {plural(done.events, 'event')}"
    brought += f", {plural(done.names, 'shared name')}"
    into = f" into {store}" if store.startswith("sqlite:") else ""  # a URL may have a password
    lines = _refusals("imported", done.refused, done.refusals)
    lines.append(_done(f"{brought} imported{into} in {seconds:.1f} s", ok=done.ok))
    form: dict[str, Any] = {"sessions": done.sessions, "events": done.events, "names": done.names}
    form |= _refused_form(done.refused, done.refusals)
    return CommandResult({**form, "seconds": seconds}, lines, done.ok)


@command(MOVE, "import-claude")
async def import_claude(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR", help="The transcripts, such as ~/.claude/projects."),
    ],
    screen: Display,
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            envvar="LIMPET_STORE",
            show_envvar=False,
            help="The store to import into, or LIMPET_STORE; created if missing.",
        ),
    ] = DEFAULT_STORE,
) -> CommandResult:
    """Bring transcripts of Claude Code into a store.

    The files are only read. A project becomes the user of its sessions, in the app claude. Safe
    to interrupt and run again: the next run brings what is new. Exits with 1 if a line could not be
    read.
    """
    began = time.monotonic()
    entries = sessions = 0
    unreadable: list[str] = []
    async with StoreArgument(store_url(target)).opened(creates=True) as lp:
        with screen.progress("importing entries") as progress:
            async for brought in import_transcripts(lp, directory):
                sessions, entries = sessions + 1, entries + brought.entries
                unreadable += [f"{brought.key}: {line}" for line in brought.unreadable]
                if progress is not None:
                    progress(entries, entries)
    seconds = time.monotonic() - began
    lines = [TextLine(f"not a JSON object: {line}", "problem") for line in unreadable[:_LINES_MAX]]
    words = f"{plural(sessions, 'transcript')} with {plural(entries, 'event')} read"
    lines.append(_done(f"{words} in {seconds:.1f} s", ok=not unreadable))
    form = {"sessions": sessions, "entries": entries, "unreadable": unreadable, "seconds": seconds}
    return CommandResult(form, lines, not unreadable)


def _done(words: str, *, ok: bool = True) -> TextLine:
    severity: Severity = "ok" if ok else "problem"
    return TextLine(f"{'ok' if ok else 'not ok'}: {words}.", severity)


def _refusals(verb: str, refused: Any, count: int) -> list[TextLine]:
    """A line for each session or name that was refused, and how many more were."""
    lines = [
        TextLine(f"not {verb}: {each.what}: {at_the_shell(each.code, each.reason)}", "problem")
        for each in refused
    ]
    if count > len(refused):
        lines.append(TextLine(f"and {count - len(refused):,} more were not {verb}.", "problem"))
    return lines


def _refused_form(refused: Any, count: int) -> dict[str, Any]:
    form = []
    for each in refused:
        key = getattr(each, "key", None)
        session = {"session": None if key is None else key_form(key)}
        form.append({"what": each.what, "code": each.code, "reason": each.reason, **session})
    return {"refused": form, "refusals": count}


def _beside(source: str) -> str:
    """The store for a SQLite file whose owner names none."""
    named = _ADK_FILE.fullmatch(source)
    if named is None:
        raise InvalidInput("name the STORE to import into, such as support.db, after the URL.")
    return f"sqlite:///{named['path']}.limpet.db"
