"""The commands about a session's past: log, show, state, diff, blame, bisect, lineage, and those
that change something: fork, rewind, merge, checkpoint, compact.

A place in the history is written as a seq (12), a time (2026-05-01T10:00:00Z) or a checkpoint (#3).
"""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import typer

import limpet
from limpet.cli import past_shown as shown
from limpet.cli.asked import Json, Url, named_by_options, on
from limpet.cli.show import Screen
from limpet.errors import InvalidInput, NoCheckpoint, SessionExists
from limpet.model.diff.policy import Conflict

T = TypeVar("T")
App = Annotated[str, typer.Option("--app", metavar="NAME", help="The app of the session.")]
User = Annotated[str, typer.Option("--user", metavar="NAME", help="Its user.")]
Id = Annotated[str, typer.Option("--id", metavar="ID", help="Its id.")]
Actor = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who acts. Default: cli:LOGIN.")
]
Place: TypeAlias = str
_SEQ = "A seq (12), a time (2026-05-01T10:00:00Z) or a checkpoint (#3)."
_NOT_RUN = 126  # from this exit code on, a command was not run or did not end by itself
Made = limpet.Session[Any]


def log(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only these, as user.*.")
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="SEQ", help="Only older events.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="Show at most N.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show the events of a session, the newest first."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> tuple[limpet.Event, ...]:
        return await s.read(before=before, limit=limit, reverse=True, types=types or None)

    with screen.errors():
        shown.show_log(screen, _with(url, (app_name, user, id_), run))


def show(
    url: Url,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The event.")],
    *,
    app_name: App,
    user: User,
    id_: Id,
    as_json: Json = False,
) -> None:
    """Show one event, and what it changed."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> tuple[limpet.Event, limpet.Diff]:
        found = await s.read(after=seq - 1, limit=1)
        if not found or found[0].seq != seq:
            raise InvalidInput(f"session {s.key} has no event {seq}. See limpet log.")
        changed = (
            limpet.diff({}, await s.history.at(1))
            if seq == 1
            else await s.history.diff(seq - 1, seq)
        )
        return found[0], changed

    with screen.errors():
        shown.show_event(screen, *_with(url, (app_name, user, id_), run))


def state(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    at: Annotated[str | None, typer.Option("--at", metavar="PLACE", help=_SEQ)] = None,
    as_json: Json = False,
) -> None:
    """Show the state of a session, now or at a place in its history."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> Any:
        return await s.history.at(s.version if at is None else at)

    with screen.errors():
        shown.show_state(screen, _with(url, (app_name, user, id_), run))


def diff(
    url: Url,
    before: Annotated[str, typer.Argument(metavar="A", help=_SEQ)],
    after: Annotated[str | None, typer.Argument(metavar="[B]", help="Default: now.")] = None,
    *,
    app_name: App,
    user: User,
    id_: Id,
    as_json: Json = False,
) -> None:
    """Show what changed between two places in a history."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> limpet.Diff:
        return await s.history.diff(before, after)

    with screen.errors():
        shown.show_diff(screen, _with(url, (app_name, user, id_), run))


def blame(
    url: Url,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A name in state, as plan.steps[0].")],
    *,
    app_name: App,
    user: User,
    id_: Id,
    as_json: Json = False,
) -> None:
    """Show who changed a value, and when; the newest change first."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> tuple[limpet.Blame, ...]:
        return await s.history.blame(path)

    with screen.errors():
        shown.show_blame(screen, path, _with(url, (app_name, user, id_), run))


def bisect(
    url: Url,
    *,
    command: Annotated[
        str,
        typer.Option(
            "--command",
            metavar="COMMAND",
            help="Gets the state as JSON; exits with 0 if it is good, 1 to 125 if bad.",
        ),
    ],
    app_name: App,
    user: User,
    id_: Id,
    as_json: Json = False,
) -> None:
    """Find the first event after which a command fails.

    Runs the command once for each state that is looked at, about log2 of the number of events.
    """
    screen = Screen(as_json=as_json)
    asked: list[int] = []

    def good(state: Any) -> bool:
        asked.append(1)
        return _passes(command, msgspec.json.encode(state))

    async def run(s: Made) -> limpet.Event | None:
        return await s.history.bisect(good)

    with screen.errors():
        shown.show_found(screen, _with(url, (app_name, user, id_), run), len(asked))


def lineage(url: Url, *, app_name: App, user: User, id_: Id, as_json: Json = False) -> None:
    """Show the parents, forks and merges of a session as a tree."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> limpet.Lineage:
        return await s.history.lineage()

    with screen.errors():
        shown.show_lineage(screen, _with(url, (app_name, user, id_), run))


def fork(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    at: Annotated[str | None, typer.Option("--at", metavar="PLACE", help=_SEQ)] = None,
    new_id: Annotated[
        str | None, typer.Option("--new-id", metavar="ID", help="The id of the fork.")
    ] = None,
    new_user: Annotated[
        str | None, typer.Option("--new-user", metavar="NAME", help="The fork's user, if another.")
    ] = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Begin a new session on any event of another."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> Made:
        try:
            return await s.fork(at, id=new_id, user=new_user)
        except SessionExists as error:
            raise SessionExists(error.key, "Pass another --new-id, or none") from error

    with screen.errors():
        shown.show_fork(screen, _with(url, (app_name, user, id_), run, actor=_actor(actor)))


def rewind(
    url: Url,
    place: Annotated[str, typer.Argument(metavar="PLACE", help=_SEQ)],
    *,
    app_name: App,
    user: User,
    id_: Id,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Make the state of a session what it was, by one more event."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> limpet.Rewound:
        return await s.rewind(place)

    with screen.errors():
        shown.show_rewound(screen, _with(url, (app_name, user, id_), run, actor=_actor(actor)))


def merge(
    url: Url,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The id of the other session.")],
    *,
    app_name: App,
    user: User,
    id_: Id,
    other_user: Annotated[
        str | None, typer.Option("--other-user", metavar="NAME", help="Default: --user.")
    ] = None,
    prefer: Annotated[
        str | None,
        typer.Option(metavar="SIDE", help="Where both changed a place: ours or theirs."),
    ] = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Take in what another session has changed."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> Any:
        key = limpet.Key(app_name, other_user or user, other)
        return await s.merge(key, policy=_policy(prefer))

    with screen.errors():
        shown.show_merged(screen, _with(url, (app_name, user, id_), run, actor=_actor(actor)))


def checkpoint(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    trigger: Annotated[str, typer.Option("--trigger", metavar="TEXT", help="What for.")] = "manual",
    full: Annotated[bool | None, typer.Option(help="Keep the state itself, or not.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List them; make none.")] = False,
    restore: Annotated[
        int | None, typer.Option("--restore", metavar="N", help="Restore this one; make none.")
    ] = None,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="With --restore: an older one, if it is damaged.")
    ] = False,
    unpin: Annotated[
        int | None, typer.Option("--unpin", metavar="N", help="Let go of this one; make none.")
    ] = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Make, list, restore or let go of checkpoints."""
    screen = Screen(as_json=as_json)

    async def run(s: Made) -> Any:
        if listing:
            return (await s.history.checkpoints(limit=1_000)).items
        if restore is not None:
            return await s.history.restore(await _checkpoint(s, restore), fallback=fallback)
        if unpin is not None:
            return await s.history.unpin(await _checkpoint(s, unpin))
        return await s.checkpoint(trigger, full=full)

    with screen.errors():
        if listing + (restore is not None) + (unpin is not None) > 1:
            raise InvalidInput("--list, --restore and --unpin go alone. Pass one of them.")
        done = _with(url, (app_name, user, id_), run, actor=None if listing else _actor(actor))
        shown.show_checkpoint(screen, done)


def compact(
    url: Url,
    *,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="Set the limits of this app first.")
    ] = None,
    events: Annotated[
        int | None, typer.Option("--events", metavar="N", min=1, help="So many stay hot.")
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", min=0, help="What is younger stays hot.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Move old events into compressed segments.

    Nothing is lost: they are read, verified and exported like all others. Safe to interrupt.
    """
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> limpet.CompactReport:
        if app_name is not None:
            age = None if days is None else timedelta(days=days)
            await lp.policies.retention(app_name, events=events, age=age, actor=_actor(None))
        with screen.progress("compacting sessions") as progress:
            return await lp.maintenance.compact(progress=progress)

    with screen.errors():
        if (app_name is None) != (events is None and days is None):
            raise InvalidInput("--app goes with --events or --days. Pass them together.")
        shown.show_compacted(screen, on(url, run))


COMMANDS = (
    log,
    show,
    state,
    diff,
    blame,
    bisect,
    lineage,
    fork,
    rewind,
    merge,
    checkpoint,
    compact,
)


def _with(
    url: str,
    key: tuple[str, str, str],
    work: Callable[[Made], Awaitable[T]],
    *,
    actor: str | None = None,
) -> T:
    """Work on one session: with an actor to write, without to read."""

    async def run(lp: limpet.Limpet) -> T:
        with named_by_options():
            return await work(await lp.get(limpet.Key(*key), tail=0, actor=actor))

    return on(url, run, looking=actor is None)


async def _checkpoint(s: Made, number: int) -> limpet.CheckpointRef:
    page = await s.history.checkpoints(limit=1, cursor=str(number + 1))
    if not page.items or page.items[0].number != number:
        raise NoCheckpoint(s.key, number)
    return page.items[0].ref


def _passes(command: str, raw: bytes) -> bool:
    """Run the caller's own command on a state. A command that did not run says nothing about it:
    the shell exits with 126 or 127 then, and above that if a signal ended it."""
    done = subprocess.run(command, shell=True, input=raw, capture_output=True, check=False)
    if not 0 <= done.returncode < _NOT_RUN:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InvalidInput(
            f"the command ended with {done.returncode}: {said or 'no message'}. Pass one that "
            "exits with 0 for a good state and 1 to 125 for a bad one."
        )
    return done.returncode == 0


def _actor(given: str | None) -> str:
    return f"cli:{getpass.getuser()}" if given is None else given


def _policy(prefer: str | None) -> Callable[[Conflict], Any] | None:
    match prefer:
        case None:
            return None
        case "ours":
            return limpet.Priority(a=1, b=0)
        case "theirs":
            return limpet.Priority(a=0, b=1)
    raise InvalidInput(f"--prefer is {prefer!r}. Pass ours or theirs.")
