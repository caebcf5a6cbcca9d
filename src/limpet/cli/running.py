"""The commands that run agents, answer them and look at their runs: work, wake, confirm, answer,
requeue, trace."""

from __future__ import annotations

import inspect
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text
from rich.tree import Tree

import limpet
from limpet.cli.ages import moment
from limpet.cli.asked import Json, Url, named_by_options, on
from limpet.cli.life import acting
from limpet.cli.objects import imported_function, imported_object
from limpet.cli.output import Output, cell, console, one_line, output, users_code
from limpet.cli.past import Actor, App, Id, User
from limpet.cli.show import Screen
from limpet.runtime.worker import Rates
from limpet.session.wire import event_form

Request = Annotated[
    str | None,
    typer.Argument(metavar="[REQUEST]", help="Its id, if the session waits for several."),
]

Harness = Annotated[
    str, typer.Option("--harness", metavar="MODULE:NAME", help="The harness to run.")
]
Retries = Annotated[int, typer.Option(help="Before a turn becomes a dead letter.")]
Setup = Annotated[
    str | None,
    typer.Option(
        "--setup",
        metavar="MODULE:NAME",
        help="A function of the open Limpet, called first: declare lp.policies.lifecycle(…) there.",
    ),
]

_FOUND: Final = 1
_SHOW_SECONDS: Final = 1.0
_SAID_MAX: Final = 100
_CLEAR_LINE: Final = "\r\x1b[K"
_PIPE_COLUMNS: Final = 10_000
_OURS: Final = Path(limpet.__file__).parent
_COLOURS: Final = {"success": "green", "error": "bold red", "blocked": "yellow"}


def work(
    url: Url,
    *,
    harness: Harness,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="Only the sessions of this app.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Sessions that run at the same time.")] = 64,
    lease_seconds: Annotated[float, typer.Option(help="How long a dead worker holds them.")] = 30,
    stop_when_idle: Annotated[
        bool, typer.Option("--stop-when-idle", help="Exit when nothing is due.")
    ] = False,
    max_turns: Annotated[int | None, typer.Option(help="Exit after so many.")] = None,
    retries: Retries = 5,
    setup: Setup = None,
    as_json: Json = False,
) -> None:
    """Run the turns of agents until stopped.

    Run as many of these as you like, on as many machines as share the store. SIGTERM lets turns
    finish, or gives them back. Shows rates on a terminal, JSON lines otherwise; the error of a turn
    that failed goes to stderr.
    """
    screen = Screen(as_json=as_json)
    show = Rate(as_json=as_json or not sys.stdout.isatty())

    async def run(lp: limpet.Limpet) -> Rates:
        await _set_up(lp, declare)
        worker = limpet.Worker(
            lp,
            to_run,
            app=app_name,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            idle_exit=stop_when_idle,
            max_turns=max_turns,
            retries=retries,
            progress=show,
            failure=show.failed,
        )
        return await worker.run()

    with screen.errors():
        with users_code():
            to_run, declare = _imported(harness, setup)
            rates = on(url, run)
        show.last(rates)


def wake(
    url: Url,
    *,
    harness: Harness,
    app_name: App,
    user: User,
    id_: Id,
    retries: Retries = 5,
    setup: Setup = None,
    as_json: Json = False,
) -> None:
    """Run one turn of one session, and print its answer.

    Runs nothing if the session has nothing to do. Exits with 1 if the turn failed.
    """
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> tuple[limpet.Woken, list[dict[str, Any]]]:
        await _set_up(lp, declare)
        with named_by_options():
            woken = await lp.wake(key, to_run, retries=retries)
        return woken, await _said(lp, key, woken) if woken.ran else []

    with screen.errors():
        key = limpet.Key(app_name, user, id_)
        with users_code():
            to_run, declare = _imported(harness, setup)
            woken, said = on(url, run)
        failed = None if woken.error is None else f"{type(woken.error).__name__}: {woken.error}"
        form = {"ran": woken.ran, "reason": woken.reason, "wake_id": woken.wake_id}
        with screen.answer({"ok": failed is None, **form, "error": failed, "said": said}) as say:
            for data in said:
                for line in _text_of(data).split("\n"):
                    say(line, "ok")
            say(f"{key} {'ran' if woken.ran else 'did not run'}: {woken.reason}", "ok")
            if woken.error is not None and not as_json:
                _show_failure(output(stderr=True), key, woken.error)
    raise typer.Exit(0 if failed is None else _FOUND)


async def _said(lp: limpet.Limpet, key: limpet.Key, woken: limpet.Woken) -> list[dict[str, Any]]:
    """The data of the messages of one wake, the oldest first."""
    found = await lp.session(key).read(types=["agent.message"], limit=_SAID_MAX, reverse=True)
    return [dict(e.data) for e in reversed(found) if e.wake_id == woken.wake_id and e.data]


def _text_of(data: dict[str, Any]) -> str:
    text = data.get("text")
    return text if isinstance(text, str) else msgspec.json.encode(data).decode()


RUNS: Final = (work, wake)


def confirm(
    url: Url,
    request: Request = None,
    *,
    app_name: App,
    user: User,
    id_: Id,
    allow: Annotated[
        bool | None, typer.Option("--allow/--deny", help="Whether it may be done.")
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.")] = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Allow or deny what a session waits for."""

    async def run(session: limpet.Session[Any]) -> limpet.Event:
        if allow is None:
            raise limpet.InvalidInput("choose --allow or --deny. Pass one of the two.")
        wanted = asked_for(session, request)
        return await session.confirm(wanted, allow=allow, note=note, actor=acting(actor))

    _answered(url, (app_name, user, id_), run, as_json=as_json)


def answer(
    url: Url,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="JSON, or a text.")],
    request: Request = None,
    *,
    app_name: App,
    user: User,
    id_: Id,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Give the output that a session waits for."""

    async def run(session: limpet.Session[Any]) -> limpet.Event:
        given = _json_or_text(output)
        return await session.answer(asked_for(session, request), given, actor=acting(actor))

    _answered(url, (app_name, user, id_), run, as_json=as_json)


def requeue(
    url: Url, *, app_name: App, user: User, id_: Id, actor: Actor = None, as_json: Json = False
) -> None:
    """Try a dead letter again, with all its attempts."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> limpet.Event:
        with named_by_options():
            return await lp.work.requeue(key, actor=acting(actor))

    with screen.errors():
        key = limpet.Key(app_name, user, id_)
        _say_due(screen, key, on(url, run))


def asked_for(session: limpet.Session[Any], request: str | None) -> str:
    """The id of the request: the one that is named, or the only one. Raises InvalidInput."""
    waiting = [f"{each.kind} {each.name} ({each.id})" for each in session.blocked_on]
    if request is not None:
        return request
    if len(waiting) == 1:
        return session.blocked_on[0].id
    if not waiting:
        raise limpet.InvalidInput(f"session {session.key} waits for no answer. See limpet status.")
    raise limpet.InvalidInput(
        f"session {session.key} waits for several answers: {', '.join(waiting)}. Pass the id of "
        "one of them."
    )


def trace(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Id,
    wake: Annotated[
        str | None,
        typer.Option("--wake", metavar="ID", help="Which wake, if not the newest."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--list", help="List the newest wakes: why, when, by whom.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a wake of a session as a tree, and why it was woken."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> limpet.WakeTrace | tuple[limpet.Activation, ...]:
        session = lp.session(app_name, user, id_)
        with named_by_options():
            await session.refresh()
        wakes = await session.runs.activations(limit=20 if every else 1)
        if wake is None and not wakes:
            raise limpet.InvalidInput(
                f"session {session.key} has no wakes yet. Run a worker first."
            )
        return wakes if every else await session.runs.trace(wake or wakes[0].wake_id)

    with screen.errors():
        found = on(url, run, looking=True)
        if isinstance(found, tuple):
            _list(found, as_json=as_json)
        elif as_json:
            sys.stdout.write(msgspec.json.encode(_form(found)).decode() + "\n")
        else:
            # In a pipe a line is never broken: it may be searched for.
            width = None if sys.stdout.isatty() else _PIPE_COLUMNS
            console(width=width).print(tree_of(found))


def _imported(harness: str, setup: str | None) -> tuple[Any, Any]:
    """Before there is an event loop: what is imported may run one of its own."""
    to_run = imported_object("--harness", harness)
    return to_run, None if setup is None else imported_function("--setup", setup)


async def _set_up(lp: limpet.Limpet, declare: Any) -> None:
    if declare is not None and inspect.isawaitable(made := declare(lp)):
        await made


def _answered(
    url: str,
    named: tuple[str, str, str],
    run: Callable[[limpet.Session[Any]], Awaitable[limpet.Event]],
    *,
    as_json: bool,
) -> None:
    screen = Screen(as_json=as_json)

    async def work(lp: limpet.Limpet) -> limpet.Event:
        session: limpet.Session[Any] = lp.session(key)
        with named_by_options():
            await session.refresh()
        return await run(session)

    with screen.errors():
        key = limpet.Key(*named)
        _say_due(screen, key, on(url, work))


def _say_due(screen: Screen, key: limpet.Key, event: limpet.Event) -> None:
    with screen.answer({"ok": True, "event": event_form(event)}) as say:
        say(f"ok: event {event.seq} of {key}. A worker goes on with it.", "ok")


def _json_or_text(given: str) -> Any:
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):  # what is refused says why
        return given


class Rate:
    """What a worker has done: a line that is rewritten, or JSON lines."""

    def __init__(self, *, as_json: bool) -> None:
        self._json, self._at, self._began = as_json, 0.0, time.monotonic()
        self._out, self._err = output(), output(stderr=True)

    def __call__(self, rates: Rates) -> None:
        now = time.monotonic()
        if now - self._at >= _SHOW_SECONDS:
            self._at = now
            self._write(rates, now - self._began)

    def failed(self, key: limpet.Key, error: BaseException) -> None:
        """Why a turn failed, with the lines of the harness that led there."""
        if not self._json and self._err.isatty():
            self._err.control(_CLEAR_LINE)
        _show_failure(self._err, key, error)

    def last(self, rates: Rates) -> None:
        """What it came to."""
        self._write(rates, rates.seconds)
        if not self._json:
            self._out.write("\n")

    def _write(self, rates: Rates, seconds: float) -> None:
        if self._json:
            form = {**msgspec.structs.asdict(rates), "seconds": round(seconds, 3)}
            self._out.write(msgspec.json.encode(form).decode() + "\n")
        else:
            per_second = rates.turns / seconds if seconds else 0.0
            counts = f"{rates.turns:,} turns, {per_second:,.1f}/s, {rates.running} running"
            more = f", {rates.paused} paused, {rates.failed} failed, {rates.dead} dead"
            self._out.control(f"{_CLEAR_LINE}{counts}{more}")
        self._out.flush()


def _show_failure(err: Output, key: limpet.Key, error: BaseException) -> None:
    lines = "".join(traceback.format_exception(type(error), error, harness_lines(error)))
    err.write(f"limpet: a turn of {one_line(str(key))} failed\n{lines}")
    err.flush()


def harness_lines(error: BaseException) -> TracebackType | None:
    """Its traceback from the first line that is not ours: how we came there tells nobody anything.

    All of it, if every line is ours.
    """
    found = error.__traceback__
    while found is not None and _is_ours(found):
        found = found.tb_next
    return found or error.__traceback__


def _is_ours(found: TracebackType) -> bool:
    return Path(found.tb_frame.f_code.co_filename).is_relative_to(_OURS)


def tree_of(trace: limpet.WakeTrace) -> Tree:
    """The spans of a wake, each under what began it."""
    nodes = {span.id: Tree(_line(span, trace)) for span in trace.spans}
    parents = {span.id: span.parent for span in trace.spans}
    root = nodes[trace.span.id]
    root.add(cell(woken_by(trace.activation), "cyan"))
    for event in trace.events:
        data = event.data or {}
        if event.type == "span.started" and event.wake_id != data["span_id"]:
            nodes.get(parents[data["span_id"]] or "", root).add(nodes[data["span_id"]])
        elif not event.type.startswith("span."):
            beneath = nodes.get(data.get("span_id", ""), root)
            beneath.add(cell(f"{_after(event.at_us, trace)}  {event.type}", "dim"))
    return root


def woken_by(woken: limpet.Activation) -> str:
    """Why, when and by whom."""
    named = {"input": woken.inputs, "timer": woken.timers, "answer": woken.answers}
    what = [f"{name} {', '.join(map(str, of))}" for name, of in named.items() if of]
    why = f"woken by {woken.why}" + (f" ({'; '.join(what)})" if what else "")
    waited = (woken.started_us - woken.claimed_us) / 1_000
    claimed = f"claimed {moment(woken.claimed_us)} by {woken.worker}"
    began = f"fence {woken.fence}, attempt {woken.attempt}, began after {waited:,.1f} ms"
    return f"{why}, {claimed}, {began}"


def _list(wakes: tuple[limpet.Activation, ...], *, as_json: bool) -> None:
    """One line for each, the newest first."""
    for woken in wakes:
        if as_json:
            sys.stdout.write(msgspec.json.encode(woken).decode() + "\n")
        else:
            line = f"{woken.wake_id}  {woken.result or 'open':8}  {woken_by(woken)}"
            sys.stdout.write(f"{one_line(line)}\n")


def _line(span: limpet.Span, trace: limpet.WakeTrace) -> Text:
    took = "…" if span.took is None else f"{span.took.total_seconds() * 1_000:,.1f} ms"
    text = cell(f"{span.kind} {span.name}  {_after(span.started_us, trace)}  {took}  ")
    text.append(span.result or "open", style=_COLOURS.get(span.result or "", "dim"))
    if span.error:
        text.append(f"  {one_line(span.error)}")
    return text


def _after(at_us: int, trace: limpet.WakeTrace) -> str:
    return f"+{(at_us - trace.span.started_us) / 1_000:,.1f} ms"


def _form(trace: limpet.WakeTrace) -> dict[str, Any]:
    form = {"wake_id": trace.wake_id, "turn_id": trace.turn_id, "attempt": trace.attempt}
    spans = [msgspec.structs.asdict(span) for span in trace.spans]
    events = [{"seq": e.seq, "type": e.type, "at_us": e.at_us} for e in trace.events]
    woken = msgspec.structs.asdict(trace.activation)
    more = {"spans": spans, "events": events, "activation": woken}
    return {**form, "worker": trace.worker, **more}
