"""Answers about a session's past: tables, trees and coloured diffs, plain lines, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import limpet
from limpet.cli.ages import instant
from limpet.cli.diff_table import diff_table
from limpet.cli.output import cell, escaped
from limpet.cli.show import Screen
from limpet.model.diff.changes import brief
from limpet.model.ops import show as show_path
from limpet.session.wire import event_form, key_form, time_form

_DATA_CHARS_MAX = 80


def show_log(screen: Screen, events: tuple[limpet.Event, ...]) -> None:
    told = {"ok": True, "events": [event_form(event) for event in events]}
    screen.display(told, lambda: _log_table(events), map(_log_line, events))


def show_event(screen: Screen, event: limpet.Event, changed: limpet.Diff) -> None:
    told = {"ok": True, "event": event_form(event), "diff": _changes(changed)}
    head = [f"event {event.seq}  {event.type}", f"actor  {event.actor}"]
    head += [f"at     {instant(event.at_us)}", f"id     {event.id}"]
    data = _json(event.data) if event.data else _data(event) or "no data"
    screen.display(
        told,
        lambda: Group(*map(cell, head), "", _colored(data), "", _diff(changed)),
        [*head, "", *data.split("\n"), "", *str(changed).split("\n")],
    )


def show_state(screen: Screen, state: Mapping[str, Any]) -> None:
    text = _json(state)
    screen.display({"ok": True, "state": state}, lambda: _colored(text), text.split("\n"))


def show_diff(screen: Screen, changed: limpet.Diff) -> None:
    told = {"ok": True, "changes": _changes(changed)}
    screen.display(told, lambda: _diff(changed), str(changed).split("\n"))


def show_blame(screen: Screen, path: str, found: tuple[limpet.Blame, ...]) -> None:
    rows = [(str(b.event.seq), b.actor, instant(b.event.at_us), _op(b.op)) for b in found]
    told = [
        {"seq": b.event.seq, "actor": b.actor, "at": time_form(b.event.at_us), "op": _form(b.op)}
        for b in found
    ]
    lines = ["  ".join(row) for row in rows] or [f"no event has changed {path}."]
    screen.display(
        {"ok": True, "changes": told},
        lambda: _table(("seq", "actor", "at", "operation"), rows) if rows else cell(lines[0]),
        lines,
    )


def show_found(screen: Screen, event: limpet.Event | None, asked: int) -> None:
    told = {"ok": True, "event": None if event is None else event_form(event), "asked": asked}
    line = "the state is good now."
    if event is not None:
        line = f"first bad event: {_log_line(event)}"
    screen.display(told, lambda: cell(line, "green" if event is None else "red"), [line])


def show_lineage(screen: Screen, found: limpet.Lineage) -> None:
    told = {"ok": True, "lineage": _lineage_form(found)}
    screen.display(told, lambda: _tree(found), str(found).split("\n"))


def show_fork(screen: Screen, fork: limpet.Session[Any]) -> None:
    told = {"ok": True, "session": key_form(fork.key), "version": fork.version}
    with screen.answer(told) as say:
        say(f"forked: {fork.key} at version {fork.version}.", "ok")


def show_rewound(screen: Screen, done: limpet.Rewound) -> None:
    event = None if done.event is None else event_form(done.event)
    told = {"ok": True, "event": event, "restored": done.restored, "left": done.left}
    with screen.answer(told) as say:
        if done.event is None:
            say("nothing to do: the state is the same.", "ok")
        else:
            say(f"rewound by event {done.event.seq}: {', '.join(done.restored)}.", "ok")
        if done.left:
            names = ", ".join(done.left)
            say(f"left, because other sessions changed them too: {names}.", "warning")


def show_merged(screen: Screen, done: Any) -> None:
    event = None if done.event is None else event_form(done.event)
    resolved = [show_path(each.path) for each in done.resolved]
    told = {"ok": True, "event": event, "at": done.at, "resolved": resolved}
    with screen.answer(told) as say:
        if done.event is None:
            say("nothing to do: the other session has nothing new.", "ok")
        else:
            say(f"merged by event {done.event.seq}, up to its event {done.at}.", "ok")


def show_checkpoint(screen: Screen, done: Any) -> None:
    """What the command did: made one, listed them, restored one, or let go of one."""
    if isinstance(done, limpet.Rewound):
        show_rewound(screen, done)
    elif isinstance(done, tuple):
        _show_checkpoints(screen, done)
    elif done is None:
        with screen.answer({"ok": True}) as say:
            say("the checkpoint was let go.", "ok")
    else:
        told = {"ok": True, "checkpoint": _ref_form(done)}
        with screen.answer(told) as say:
            say(f"checkpoint #{done.number} at event {done.seq}.", "ok")


def show_compacted(screen: Screen, done: limpet.CompactReport) -> None:
    told = {"ok": True, **msgspec.structs.asdict(done)}
    with screen.answer(told) as say:
        say(f"{done}.", "ok")


# --- forms ---------------------------------------------------------------------------------------


def _show_checkpoints(screen: Screen, found: tuple[limpet.Checkpoint, ...]) -> None:
    told = [
        {**_ref_form(c.ref), "type": c.kind, "trigger": c.trigger, "at": c.at, "size": c.size}
        | {"tier": c.tier}
        for c in found
    ]
    rows = [
        (f"#{c.number}", str(c.seq), c.kind, c.trigger, f"{c.at:%FT%TZ}", c.tier) for c in found
    ]
    screen.display(
        {"ok": True, "checkpoints": told},
        lambda: _table(("number", "event", "type", "trigger", "at", "tier"), rows),
        ["  ".join(row) for row in rows] or ["no checkpoints"],
    )


def _ref_form(ref: limpet.CheckpointRef) -> dict[str, Any]:
    session = key_form(ref.key)
    return {"session": session, "number": ref.number, "seq": ref.seq, "checksum": ref.checksum}


def _changes(changed: limpet.Diff) -> list[dict[str, Any]]:
    return [
        {"path": list(c.path), "kind": c.kind, "old": c.old, "new": c.new} for c in changed.changes
    ]


def _lineage_form(found: limpet.Lineage) -> dict[str, Any]:
    merges = [{"session": key_form(m.key), "at": m.at, "seq": m.seq} for m in found.merges]
    return {
        "session": key_form(found.key),
        "at": found.at,
        "parent": None if found.parent is None else _lineage_form(found.parent),
        "forks": [_lineage_form(fork) for fork in found.forks],
        "merges": merges,
    }


def _log_table(events: tuple[limpet.Event, ...]) -> Table:
    rows = [(str(e.seq), instant(e.at_us), e.actor, e.type, _data(e)) for e in events]
    return _table(("seq", "at", "actor", "type", "data"), rows)


def _log_line(event: limpet.Event) -> str:
    at = instant(event.at_us)
    return f"{event.seq}  {at}  {event.actor}  {event.type}  {_data(event)}".rstrip()


def _data(event: limpet.Event) -> str:
    if event.data is None:
        return "(removed)" if event.removed else f"({event.damage})"
    return brief(event.data, _DATA_CHARS_MAX) if event.data else ""


def _table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        made.add_column(name, overflow="fold", no_wrap=name in ("seq", "at"))
    for row in rows:
        made.add_row(*map(cell, row))
    return made


def _tree(found: limpet.Lineage) -> Tree:
    first, *others = (*found.above, found)
    tree = at = Tree(cell(first.line, "bold" if first is found else "dim"))
    for each in others:
        at = at.add(cell(each.line, "bold" if each is found else "dim"))
    _grow(at, found)
    return tree


def _grow(tree: Tree, found: limpet.Lineage) -> None:
    for merge in found.merges:
        tree.add(cell(f"← {merge.key} up to {merge.at}, in event {merge.seq}", "cyan"))
    for fork in found.forks:
        _grow(tree.add(cell(fork.line)), fork)


def _op(op: Any) -> str:
    kind, path, *rest = _form(op)
    return " ".join([kind, show_path(tuple(path)), *[brief(each, 60) for each in rest]])


def _form(op: Any) -> list[Any]:
    found: list[Any] = msgspec.to_builtins(op)
    return found


def _diff(changed: limpet.Diff) -> RenderableType:
    return diff_table(changed) if changed else cell("no changes", "dim")


def _colored(json: str) -> Text:
    text = JSONHighlighter()(escaped(json))
    text.no_wrap = True
    return text


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
