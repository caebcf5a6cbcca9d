"""The commands that look at sessions: status, list, log, show, state, trace, children, graph, …

All are read-only, and safe to run while other processes write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

import limpet
from limpet.cli.backlog import (
    Backlog,
    Needed,
    SuspendedSession,
    backlog_of,
    needed_by,
    needs,
    suspended,
)
from limpet.cli.command import LOOK, Filter, Reading, SessionKey, SessionToRead, command
from limpet.cli.history import event_data
from limpet.cli.options import App, At, label_values, refuse_unknown
from limpet.cli.render import (
    Cell,
    CommandResult,
    DiffBlock,
    Grid,
    JsonBlock,
    Part,
    Severity,
    TextLine,
    TreeNode,
    actor_cell,
    age,
    instant,
    instant_cell,
    moment,
    timed,
)
from limpet.errors import InvalidInput
from limpet.model import Head, is_reserved, runnable_us, to_time, to_us
from limpet.model.facts.phases import PHASES
from limpet.model.lease import Readiness, readiness, status_at
from limpet.session.json_forms import (
    changes_form,
    event_form,
    graph_form,
    head_form,
    kin_form,
    page_form,
)
from limpet.store.protocol import Order, Page, plural

_MORE = "and more; use --limit to show more, or --cursor with the cursor of --json."
_MORE_SORTED = "and more; use --limit to show more."
_WAKES_SHOWN = 20
# In the order of --sort status.
SHOWN_STATUSES: Final = ("dead", "blocked", "running", "rescheduling", "idle", "terminated")
_FILTERS: Final[dict[str | None, dict[str, str]]] = {
    None: {},
    "dead": {"ready": "dead"},
    "blocked": {"ready": "blocked"},
    **{name: {"status": name} for name in SHOWN_STATUSES[2:]},
}
_SEVERITIES: Final[dict[str, Severity]] = {"dead": "problem", "blocked": "warning"}
_WOKEN_BY = {"died": "the death of its worker", "asked": "a call"}  # others are named as they are


@command(LOOK)
async def status(
    lp: Reading,
    chosen: Filter,
    *,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, max=10_000, help="Show at most N.")
    ] = 50,
) -> CommandResult:
    """Show which sessions wait, for what, and which are leased.

    Counts all sessions and lists those that are leased, due, blocked, dead, held back or suspended,
    the most urgent first; or shows one session, and why its last turn ended. Read-only.
    """
    if chosen.key is not None:
        return await _status_of_one(lp, chosen.key)
    if chosen.app is not None:
        await refuse_unknown(lp, chosen.app)
    return _status_of_all(await backlog_of(lp, chosen.app, limit=limit))


@command(LOOK, "list")
async def list_(
    lp: Reading,
    *,
    app_name: App = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Only of this user of the app.")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="Only with this label; with --app."),
    ] = None,
    order: Annotated[
        Order, typer.Option("--order", help="created, or with --app also updated or key.")
    ] = "created",
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="S", help="Only dead, blocked, idle, …"),
    ] = None,
    sort: Annotated[
        Literal["status"] | None,
        typer.Option("--sort", help="status: dead first, then blocked, then what is under way."),
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="What is left of deleted sessions.")
    ] = False,
    state: Annotated[bool, typer.Option("--state", help="In JSON, with their states.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="Show at most N.")
    ] = 50,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="TEXT", help="The cursor of a page in JSON."),
    ] = None,
) -> CommandResult:
    """List sessions and their status, the newest first.

    The status is that of the session (idle, running, rescheduling, terminated), or what it waits
    for: dead (its turn failed too often) or blocked (a person is asked).
    """
    if status is not None and status not in SHOWN_STATUSES:
        raise InvalidInput(f"--status is one of {', '.join(SHOWN_STATUSES)}.")
    if sort is not None and (cursor is not None or deleted):
        raise InvalidInput(
            "--sort begins with the first of all sessions: no --cursor, no --deleted."
        )
    if app_name is not None and not is_reserved(app_name):
        await refuse_unknown(lp, app_name, deleted=deleted)
    asked: dict[str, Any] = {"app": app_name, "user": user, "labels": label_values(labels) or None}
    asked |= {"order": order, "deleted": deleted, "state": state}
    kinds = [status] if sort is None or status is not None else [*SHOWN_STATUSES]
    page, more = await _listed(lp, asked, kinds, limit, cursor)
    columns = ("session", "version", "status", "phase", "updated")
    now_us = to_us(lp.now())
    rows = [_session_row(head, now_us) for head in page.items]
    grid = Grid(columns, rows, "labels", "no sessions.", right=("version",))
    rest = _MORE if page.cursor is not None else _MORE_SORTED
    form = page_form(page)
    for item, head in zip(form["items"], page.items, strict=True):
        item["status"] = shown_status(head, now_us)
    return CommandResult(form, [grid, *([TextLine(rest, "skipped")] if more else ())])


async def _listed(
    lp: limpet.Limpet,
    asked: dict[str, Any],
    kinds: Sequence[str | None],
    limit: int,
    cursor: str | None,
) -> tuple[Page[Head], bool]:
    """Sessions of one status after another, and whether there are more."""
    items: list[Head] = []
    states: dict[limpet.Key, Any] = {}
    damaged: list[limpet.Key] = []
    for number, kind in enumerate(kinds):
        while len(items) < limit:
            wanted = {**asked, **_FILTERS[kind]}
            page = await lp.list(**wanted, limit=limit - len(items), cursor=cursor)
            now_us, cursor = to_us(lp.now()), page.cursor
            items += [h for h in page.items if kind is None or shown_status(h, now_us) == kind]
            states |= page.states
            damaged += page.damaged
            if cursor is None or kind is None:
                break
        if len(items) >= limit and number + 1 < len(kinds):
            return Page(tuple(items), None, states, tuple(damaged)), True
    return Page(tuple(items), cursor, states, tuple(damaged)), cursor is not None


def shown_status(head: Head, now_us: int) -> str:
    """Return the status of a session in one word: dead or blocked, if it is that."""
    ready = readiness(head, now_us)
    return ready if ready in ("dead", "blocked") else status_at(head, now_us)


@command(LOOK)
async def log(
    s: SessionToRead,
    *,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only these, as user.*.")
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="SEQ", min=1, help="Only older events.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="Show at most N.")
    ] = 20,
) -> CommandResult:
    """Show the events of a session, the newest first."""
    events = await s.read(before=before, limit=limit, reverse=True, types=types or None)
    rows = [
        (str(e.seq), instant_cell(e.at_us), actor_cell(e.actor), e.type, event_data(e))
        for e in events
    ]
    grid = Grid(("seq", "at", "actor", "type"), rows, "data", "no such events.", right=("seq",))
    parts: list[Part] = [grid]
    if len(events) == limit and events[-1].seq > 1:
        older = f"older events may follow: limpet log … --before {events[-1].seq}, or --limit N."
        parts.append(TextLine(older, "skipped"))
    return CommandResult({"events": [event_form(event) for event in events]}, parts)


@command(LOOK)
async def show(
    s: SessionToRead,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The event.")],
) -> CommandResult:
    """Show one event, and what it changed."""
    events = await s.read(after=seq - 1, limit=1)
    if not events or events[0].seq != seq:
        raise InvalidInput(f"session {s.key} has no event {seq}. See limpet log.")
    (event,) = events
    if seq == 1:
        changed = limpet.diff({}, await s.history.at(1))
    else:
        changed = await s.history.diff(seq - 1, seq)
    head = [f"event {event.seq}  {event.type}", f"actor  {event.actor}"]
    head += [f"at     {instant(event.at_us)}", f"id     {event.id}"]
    data = JsonBlock(event.data) if event.data else event_data(event) or "no data"
    form = {"event": event_form(event), "diff": changes_form(changed)}
    return CommandResult(form, [*head, "", data, "", DiffBlock(changed)])


@command(LOOK)
async def state(s: SessionToRead, *, at: At = None) -> CommandResult:
    """Show the state of a session, now or in the past."""
    fields = await s.history.at(s.version if at is None else at)
    return CommandResult({"state": fields}, [JsonBlock(fields)])


@command(LOOK)
async def trace(
    lp: Reading,
    key: SessionKey,
    *,
    wake: Annotated[
        str | None,
        typer.Option("--wake", metavar="ID", help="Which wake, if not the newest."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--list", help="List the newest wakes: why, when, by whom.")
    ] = False,
) -> CommandResult:
    """Show a wake of a session as a tree, and why it was woken."""
    session = lp.session(key)
    wakes = await session.runs.activations(limit=_WAKES_SHOWN if every else 1)
    if wake is None and not wakes:
        raise InvalidInput(
            f"session {key} has no wakes yet: no worker has begun a turn of it. limpet status says "
            "what it waits for."
        )
    if every:
        rows = [(woken.wake_id, woken.result or "open", woken_by(woken)) for woken in wakes]
        form = {"wakes": [msgspec.to_builtins(woken) for woken in wakes]}
        return CommandResult(form, [Grid(("wake", "result"), rows, "why")])
    spans = await session.runs.trace(wake or wakes[0].wake_id)
    return CommandResult(_trace_form(spans), [trace_tree(spans)])


@command(LOOK)
async def graph(
    lp: Reading,
    key: SessionKey,
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print it as Mermaid text.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most N sessions.")
    ] = 1_000,
) -> CommandResult:
    """Show the sessions connected with a session.

    Its parents and children, forks, merges and relations, and theirs, as a tree.
    """
    shown = await lp.graph(key, limit=limit)
    form = graph_form(shown)
    if mermaid:
        return CommandResult(form, [TextLine(line) for line in shown.mermaid().splitlines()])
    lines = [TextLine("  " * depth + text) for depth, text in shown.lines()]
    more = [TextLine("and more; use --limit to show more.", "skipped")] if shown.truncated else []
    return CommandResult(form, [*lines, *more])


@command(LOOK)
async def children(lp: Reading, key: SessionKey) -> CommandResult:
    """Show the sessions delegated from one, as a tree."""
    kin = await lp.session(key).runs.tree()
    none = [] if kin.children else [TextLine("no session was delegated from it.", "skipped")]
    return CommandResult(kin_form(kin), [_kin_node(kin, root=True), *none])


@command(LOOK)
async def phases(lp: Reading) -> CommandResult:
    """Count the sessions of each app by phase."""
    counts: Counter[tuple[str, str]] = Counter()
    async for head in lp.each(reverse=False):
        counts[head.key.app, head.phase] += 1
    apps = {app: {p: counts[app, p] for p in PHASES} for app in sorted({app for app, _ in counts})}
    rows = [(app, *[f"{row[p]:,}" if row[p] else "-" for p in PHASES]) for app, row in apps.items()]
    grid = Grid(("app", *PHASES), rows, empty="no sessions.", right=PHASES)
    return CommandResult({"apps": apps}, [grid])


def woken_by(woken: limpet.Activation) -> str:
    """The reason of a wake, the time of its claim and the worker."""
    named = {"input": woken.inputs, "timer": woken.timers, "answer": woken.answers}
    what = [f"{name} {', '.join(map(str, of))}" for name, of in named.items() if of]
    by = _WOKEN_BY.get(woken.why, woken.why)
    why = f"woken by {by}" + (f" ({'; '.join(what)})" if what else "")
    waited = (woken.started_us - woken.claimed_us) / 1_000
    claimed = f"claimed {moment(woken.claimed_us)} by {woken.worker}"
    began = f"fence {woken.fence}, attempt {woken.attempt}, began after {waited:,.1f} ms"
    return f"{why}, {claimed}, {began}"


# --- status -------------------------------------------------------------------------------------


async def _status_of_one(lp: limpet.Limpet, key: limpet.Key) -> CommandResult:
    session = await lp.get(key, tail=0, untyped=True)
    head, needed, now_us = session.head, needed_by(session), to_us(lp.now())
    form = {"at": _time(now_us), "status": session.status, "stop_reason": session.stop_reason}
    stopped = "" if session.stop_reason is None else f", stopped: {session.stop_reason}"
    ready = readiness(head, now_us)
    waits = "nothing to do"
    if ready != "idle":
        when, *more = _waits(head, ready, now_us, needed)
        waits = f"{ready}: {', '.join([when.text, *more])}"
    elif head.phase == "suspended":
        waits = f"{(await suspended(session, head)).why}; limpet resume lets it go on"
    lines: list[Part] = [
        TextLine(f"{key}: {session.status}{stopped}.", "ok"),
        f"  {head.phase}, version {head.version:,}, {head.pending:,} pending",
        f"  {waits}",
    ]
    return CommandResult({**form, **_waiting_form(head, now_us, needed)}, lines)


def _status_of_all(backlog: Backlog) -> CommandResult:
    now_us, status = backlog.now_us, backlog.status
    needed = {head.key: backlog.needed.get(head.key, Needed()) for head in backlog.shown}
    form: dict[str, Any] = {"at": _time(now_us), "sessions": status.sessions}
    form |= {"pending": status.pending, "due": status.due, "leased": status.leased}
    form |= {"blocked": status.blocked, "dead": status.dead, "held": status.held}
    form |= {"statuses": dict(status.by_status), "phases": dict(status.by_phase)}
    form["complete"] = status.complete
    form["shown"] = [_waiting_form(h, now_us, needed[h.key]) for h in backlog.shown]
    form["shown"] += [
        {**head_form(each.head), "state": "suspended", "needs": [each.why]}
        for each in backlog.suspended
    ]
    form["left_off"] = backlog.left_off
    counts = f"{status.pending:,} with pending input, {status.due:,} due"
    counts += f", {status.leased:,} leased"
    rarer = {"blocked": status.blocked, "dead": status.dead, "held back": status.held}
    rarer["suspended"] = status.by_phase.get("suspended", 0)
    counts += "".join([f", {number:,} {word}" for word, number in rarer.items() if number])
    most = "" if status.complete else "more than "
    sessions = f"{most}{plural(status.sessions, 'session')}"
    parts: list[Part] = [TextLine(f"{sessions}: {counts}.", "ok")]
    if backlog.shown or backlog.suspended:
        rows = [_waiting_row(h, now_us, needed[h.key]) for h in backlog.shown]
        rows += [_suspended_row(each, now_us) for each in backlog.suspended]
        columns = ("state", "session", "pending", "when")
        parts.append(Grid(columns, rows, "why", right=("pending",)))
    if backlog.left_off:
        left = f"and {backlog.left_off:,} more; use --limit to show more."
        parts.append(TextLine(left, "skipped"))
    elif backlog.suspended_left_off:
        left = f"and {backlog.suspended_left_off:,} more suspended; use --limit to show more."
        parts.append(TextLine(left, "skipped"))
    return CommandResult(form, parts)


def _waiting_row(head: Head, now_us: int, needed: Needed) -> tuple[Cell | str, ...]:
    ready = readiness(head, now_us)
    colors: dict[Readiness, Severity] = {"dead": "problem", "due": "warning", "blocked": "warning"}
    when, *why = _waits(head, ready, now_us, needed)
    state = Cell(ready, severity=colors.get(ready, "ok"))
    return state, str(head.key), f"{head.pending:,}", when, "; ".join(why)


def _suspended_row(each: SuspendedSession, now_us: int) -> tuple[Cell | str, ...]:
    head, at_us = each.head, each.since_us
    since = Cell(f"since {timed(at_us, now_us)}", age(at_us, now_us))
    state = Cell("suspended", severity="warning")
    return state, str(head.key), f"{head.pending:,}", since, each.why


def _waits(
    head: Head, ready: Readiness, now_us: int, needed: Needed
) -> tuple[Cell, *tuple[str, ...]]:
    """Since when or until when a session waits, and for whom or what."""
    if ready in ("blocked", "dead"):
        since = Cell(f"since {timed(head.updated_us, now_us)}", age(head.updated_us, now_us))
        return (since, *needs(head, ready, needed))
    at_us = runnable_us(head) or 0
    at, span = timed(at_us, now_us), age(at_us, now_us)
    if ready == "leased":
        worker = f"leased to {head.worker} (fence {head.fence})"
        return Cell(f"until {at}", f"ends {span}"), worker
    if ready == "held":
        return Cell(f"retried at {at}", f"retry {span}"), *needs(head, ready, needed)
    if head.worker is not None:
        ended = f"the lease of {head.worker} (fence {head.fence}) ended"
        return Cell(f"since {at}", span), ended
    return Cell(f"since {at}", span), *needs(head, ready, needed)


def _waiting_form(head: Head, now_us: int, needed: Needed) -> dict[str, Any]:
    ready = readiness(head, now_us)
    return {**head_form(head), "state": ready, "needs": needs(head, ready, needed)}


def _time(at_us: int) -> str:
    return to_time(at_us).isoformat(timespec="seconds")


def _session_row(head: Head, now_us: int) -> tuple[Cell | str, ...]:
    labels = ", ".join([f"{name}={value}" for name, value in sorted(head.labels.items())])
    ended_us = head.deleted_us
    phase = head.phase if ended_us is None else "deleted"
    at_us = head.updated_us if ended_us is None else ended_us
    at = Cell(moment(at_us), age(at_us, now_us))
    status = "" if ended_us is not None else shown_status(head, now_us)
    shown = Cell(status, severity=_SEVERITIES.get(status, ""))
    return str(head.key), f"{head.version:,}", shown, phase, at, labels


# --- trees --------------------------------------------------------------------------------------


def trace_tree(trace: limpet.WakeTrace) -> TreeNode:
    """The spans of a wake, each under what began it."""
    root, spans = trace.span.id, {span.id: span for span in trace.spans}
    below: dict[str, list[tuple[str, str]]] = {id: [] for id in spans}  # span ids, or lines
    below[root].append(("", woken_by(trace.activation)))
    for event in trace.events:
        data = event.data or {}
        id = data.get("span_id") if event.type == "span.started" else event.id
        if id in spans and id != root:
            parent = spans[id].parent
            below[parent if parent in spans else root].append((id, ""))
        elif not event.type.startswith("span.") and "graph" not in data:  # a node has a span
            of = data.get("span_id", "")
            lines = [f"{_after(event.at_us, trace)}  {event.type}"]
            lines += [f"| {each}" for each in str(data.get("traceback", "")).splitlines()]
            below[of if of in spans else root] += [("", line) for line in lines]

    def node(id: str) -> TreeNode:
        children = [node(of) if of else TreeNode(line, "dim") for of, line in below[id]]
        return TreeNode(_span_line(spans[id], trace), "", tuple(children))

    return node(root)


def _span_line(span: limpet.Span, trace: limpet.WakeTrace) -> str:
    took = "…" if span.took is None else f"{span.took.total_seconds() * 1_000:,.1f} ms"
    name = span.kind if span.name == span.kind else f"{span.kind} {span.name}"
    line = f"{name}  {_after(span.started_us, trace)}  {took}  "
    line += (span.result or "open") + (f"  {span.error}" if span.error else "")
    used = [] if span.model is None else [span.model]
    used += [f"{count:,} {name}" for name, count in (span.usage or {}).items()]
    used += [] if span.cost is None else [f"cost {span.cost:g}"]
    return line + (f"  ({', '.join(used)})" if used else "")


def _after(at_us: int, trace: limpet.WakeTrace) -> str:
    return f"+{(at_us - trace.span.started_us) / 1_000:,.1f} ms"


def _trace_form(trace: limpet.WakeTrace) -> dict[str, Any]:
    form = {"wake_id": trace.wake_id, "turn_id": trace.turn_id, "attempt": trace.attempt}
    spans = [msgspec.structs.asdict(span) for span in trace.spans]
    events = [{"seq": e.seq, "type": e.type, "at_us": e.at_us} for e in trace.events]
    woken = msgspec.structs.asdict(trace.activation)
    more = {"spans": spans, "events": events, "activation": woken}
    return {**form, "worker": trace.worker, **more}


def _kin_node(kin: limpet.Kin, *, root: bool = False) -> TreeNode:
    ended = "" if root else f"  {kin.stop_reason or 'at work'}"
    title = "" if kin.title is None else f"  {kin.title}"
    line = f"{kin.key}{title}{ended}{'  gone' if kin.gone else ''}"
    return TreeNode(line, "", tuple(map(_kin_node, kin.children)))
