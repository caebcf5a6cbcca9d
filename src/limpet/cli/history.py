"""The commands that compare, undo and branch: diff, blame, bisect, lineage, fork, rewind, merge,
checkpoint. A place in a history is a seq (12), a time (2026-05-01T10:00:00Z) or a checkpoint (#3).
"""

from __future__ import annotations

import subprocess  # nosec B404  # bisect runs the command that its user gives
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
import typer

import limpet
from limpet.cli.command import (
    HISTORY,
    Actor,
    SessionKey,
    SessionToRead,
    SessionToWrite,
    Unopened,
    command,
)
from limpet.cli.options import At, From, Place, session_key
from limpet.cli.render import (
    CommandResult,
    DiffBlock,
    Grid,
    TextLine,
    TreeNode,
    instant,
    instant_cell,
    moment_cell,
)
from limpet.errors import InvalidInput, NoCheckpoint, SessionExists
from limpet.model import to_us
from limpet.model.diff.changes import brief
from limpet.model.diff.merge import Conflict
from limpet.model.ops import show as show_path
from limpet.session.json_forms import (
    changes_form,
    event_form,
    key_form,
    lineage_form,
    time_form,
)

_NOT_RUN: Final = 126  # from this exit code on, a command was not run or did not end by itself
_DATA_CHARS_MAX: Final = 74  # below its row it fits a line of 80 columns
_OP_CHARS_MAX: Final = 60
KeepMessages = Annotated[
    bool,
    typer.Option("--keep-messages", help="Leave the conversation as it is: only state goes back."),
]


@command(HISTORY)
async def diff(
    s: SessionToRead,
    before: From,
    after: Annotated[str | None, typer.Argument(metavar="B", help="Default: now.")] = None,
) -> CommandResult:
    """Show what changed between two places in a history."""
    changed = await s.history.diff(before, after)
    return CommandResult({"changes": changes_form(changed)}, [DiffBlock(changed)])


@command(HISTORY)
async def blame(
    s: SessionToRead,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A name in state, as plan.steps[0].")],
) -> CommandResult:
    """Show who changed a value, and when; the newest first."""
    changes = await s.history.blame(path)
    form = [
        {"seq": b.event.seq, "actor": b.actor, "at": time_form(b.event.at_us)}
        | {"op": msgspec.to_builtins(b.op)}
        for b in changes
    ]
    rows = [(str(b.event.seq), instant_cell(b.event.at_us), b.actor, _op(b.op)) for b in changes]
    empty = f"no event has changed {path}."
    grid = Grid(("seq", "at", "actor"), rows, "operation", empty, right=("seq",))
    return CommandResult({"changes": form}, [grid])


@command(HISTORY)
async def bisect(
    s: SessionToRead,
    *,
    command: Annotated[
        str,
        typer.Option(
            "--command",
            metavar="COMMAND",
            help="Gets the state as JSON; exits with 0 if it is good, 1 to 125 if bad.",
        ),
    ],
) -> CommandResult:
    """Find the first event after which a command fails.

    Runs the command once for each state that is looked at, about log2 of the number of events.
    """
    asked = 0

    def good(state: Any) -> bool:
        nonlocal asked
        asked += 1
        return _passes(command, msgspec.json.encode(state))

    event = await s.history.bisect(good)
    form = {"event": None if event is None else event_form(event), "asked": asked}
    if event is None:
        return CommandResult(form, [TextLine("the state is good now.", "ok")])
    text = f"{event.seq}  {instant(event.at_us)}  {event.actor}  {event.type}  {event_data(event)}"
    return CommandResult(form, [TextLine(f"first bad event: {text}".rstrip(), "problem")])


@command(HISTORY)
async def lineage(s: SessionToRead) -> CommandResult:
    """Show the parents, forks and merges of a session as a tree."""
    family = await s.history.lineage()
    node = _lineage_node(family, "bold")
    for parent in reversed(family.above):
        node = TreeNode(parent.line, "dim", (node,))
    return CommandResult({"lineage": lineage_form(family)}, [node])


@command(HISTORY)
async def fork(
    s: SessionToWrite,
    *,
    at: At = None,
    new_id: Annotated[
        str | None, typer.Option("--new-id", metavar="ID", help="The id of the fork.")
    ] = None,
    new_user: Annotated[
        str | None, typer.Option("--new-user", metavar="NAME", help="The fork's user, if another.")
    ] = None,
) -> CommandResult:
    """Start a new session from any event of another."""
    try:
        made = await s.fork(at, id=new_id, user=new_user)
    except SessionExists as error:
        raise SessionExists(error.key, "Pass another --new-id, or none") from error
    line = TextLine(f"forked: {made.key} at version {made.version}.", "ok")
    return CommandResult({"session": key_form(made.key), "version": made.version}, [line])


@command(HISTORY)
async def rewind(
    s: SessionToWrite, place: Place, *, keep_messages: KeepMessages = False
) -> CommandResult:
    """Set state and conversation back to an earlier point.

    Nothing is removed: one more event records it.
    """
    return _rewind_result(await s.rewind(place, messages=not keep_messages))


@command(HISTORY)
async def merge(
    s: SessionToWrite,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The other session: its id, or app/user/id.")
    ],
    *,
    other_user: Annotated[
        str | None, typer.Option("--other-user", metavar="NAME", help="Default: the same user.")
    ] = None,
    prefer: Annotated[
        str | None,
        typer.Option(metavar="SIDE", help="Where both changed a place: ours or theirs."),
    ] = None,
) -> CommandResult:
    """Merge the changes of another session."""
    key = other_session(s.key, other, other_user)
    done = await s.merge(key, policy=_policy(prefer))
    event = None if done.event is None else event_form(done.event)
    resolved = [show_path(each.path) for each in done.resolved]
    line = "nothing to do: the other session has nothing new."
    if done.event is not None:
        line = f"merged by event {done.event.seq}, up to its event {done.at}."
    form = {"event": event, "at": done.at, "resolved": resolved}
    return CommandResult(form, [TextLine(line, "ok")])


@command(HISTORY)
async def checkpoint(
    store: Unopened,
    key: SessionKey,
    actor: Actor,
    *,
    trigger: Annotated[str, typer.Option("--trigger", metavar="TEXT", help="What for.")] = "manual",
    full: Annotated[bool | None, typer.Option(help="Keep the state itself, or not.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List them; make none.")] = False,
    restore: Annotated[
        int | None, typer.Option("--restore", metavar="N", help="Restore this one; make none.")
    ] = None,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="With --restore: an older one, if it is damaged.")
    ] = False,
    keep_messages: KeepMessages = False,
    unpin: Annotated[
        int | None, typer.Option("--unpin", metavar="N", help="Unpin this one; make none.")
    ] = None,
) -> CommandResult:
    """Create, list, restore or unpin checkpoints."""
    if listing + (restore is not None) + (unpin is not None) > 1:
        raise InvalidInput("--list, --restore and --unpin go alone. Pass one of them.")
    async with store.opened(writes=not listing) as lp:
        s = await lp.get(key, tail=0, actor=None if listing else actor)
        if listing:
            return _checkpoints((await s.history.checkpoints(limit=1_000)).items)
        if restore is not None:
            chosen = await _checkpoint(s, restore)
            return _rewind_result(
                await s.history.restore(chosen, fallback=fallback, messages=not keep_messages)
            )
        if unpin is not None:
            await s.history.unpin(await _checkpoint(s, unpin))
            return CommandResult({}, [TextLine(f"checkpoint #{unpin} was unpinned.", "ok")])
        made = await s.checkpoint(trigger, full=full)
    line = TextLine(f"checkpoint #{made.number} at event {made.seq}.", "ok")
    return CommandResult({"checkpoint": _ref_form(made)}, [line])


# --- shared with other commands -----------------------------------------------------------------


def event_data(event: limpet.Event) -> str:
    """The data of an event in one line, shortened."""
    if event.data is None:
        return "(removed)" if event.removed else f"({event.damage})"
    return brief(event.data, _DATA_CHARS_MAX) if event.data else ""


def other_session(key: limpet.Key, text: str, user: str | None = None) -> limpet.Key:
    """Another session: an id beside this one, or a whole key."""
    if user is None and text.count("/") == 2:
        return session_key(text)
    return limpet.Key(key.app, user or key.user, text)


# --- private ------------------------------------------------------------------------------------


def _rewind_result(done: limpet.Rewound) -> CommandResult:
    event = None if done.event is None else event_form(done.event)
    line = "nothing to do: state and conversation are the same."
    if done.event is not None:
        restored = ", ".join(done.restored) or "the conversation"
        line = f"rewound by event {done.event.seq}: {restored}."
    lines = [TextLine(line, "ok")]
    if done.left:
        names = ", ".join(done.left)
        lines.append(
            TextLine(f"left, because other sessions changed them too: {names}.", "warning")
        )
    return CommandResult({"event": event, "restored": done.restored, "left": done.left}, lines)


def _checkpoints(items: tuple[limpet.Checkpoint, ...]) -> CommandResult:
    form = [
        {**_ref_form(c.ref), "type": c.kind, "trigger": c.trigger, "at": c.at, "size": c.size}
        | {"tier": c.tier}
        for c in items
    ]
    rows = [
        (f"#{c.number}", str(c.seq), c.kind, moment_cell(to_us(c.at)), c.tier, c.trigger)
        for c in items
    ]
    columns = ("number", "event", "type", "at", "tier")
    return CommandResult({"checkpoints": form}, [Grid(columns, rows, "trigger", "no checkpoints")])


async def _checkpoint(s: limpet.Session[Any], number: int) -> limpet.CheckpointRef:
    page = await s.history.checkpoints(limit=1, cursor=str(number + 1))
    if not page.items or page.items[0].number != number:
        raise NoCheckpoint(s.key, number)
    return page.items[0].ref


def _ref_form(ref: limpet.CheckpointRef) -> dict[str, Any]:
    session = key_form(ref.key)
    return {"session": session, "number": ref.number, "seq": ref.seq, "checksum": ref.checksum}


def _passes(command: str, raw: bytes) -> bool:
    """Run the caller's own command on a state. A command that did not run says nothing about it:
    the shell exits with 126 or 127 then, and above that if a signal ended it."""
    done = subprocess.run(
        command,
        shell=True,  # nosec B602  # it is a line for the shell, as that of git bisect run
        input=raw,
        capture_output=True,
        check=False,
    )
    if not 0 <= done.returncode < _NOT_RUN:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InvalidInput(
            f"the command ended with {done.returncode}: {said or 'no message'}. Pass one that "
            "exits with 0 for a good state and 1 to 125 for a bad one."
        )
    return done.returncode == 0


def _policy(prefer: str | None) -> Callable[[Conflict], Any] | None:
    match prefer:
        case None:
            return None
        case "ours":
            return limpet.Priority(a=1, b=0)
        case "theirs":
            return limpet.Priority(a=0, b=1)
    raise InvalidInput(f"--prefer is {prefer!r}. Pass ours or theirs.")


def _op(op: Any) -> str:
    kind, path, *rest = msgspec.to_builtins(op)
    return " ".join([kind, show_path(tuple(path)), *[brief(each, _OP_CHARS_MAX) for each in rest]])


def _lineage_node(family: limpet.Lineage, style: str = "") -> TreeNode:
    merges = [
        TreeNode(f"← {merge.key} up to {merge.at}, in event {merge.seq}", "cyan")
        for merge in family.merges
    ]
    return TreeNode(family.line, style, (*merges, *map(_lineage_node, family.forks)))
