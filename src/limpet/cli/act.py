"""The commands that act on sessions: create, send, share, confirm, answer, resolve, requeue; and
those that run agents: work and wake."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

import limpet
from limpet.cli.command import (
    ACT,
    Actor,
    Creating,
    Display,
    Filter,
    NewSession,
    SessionKey,
    Unopened,
    Writing,
    ask_first,
    command,
)
from limpet.cli.history import other_session
from limpet.cli.options import (
    App,
    Labels,
    Yes,
    imported_function,
    imported_object,
    json_object,
    json_or_text,
    label_values,
)
from limpet.cli.output import Output, one_line, output, users_code
from limpet.cli.render import CommandResult, Grid, TextLine
from limpet.errors import InvalidInput, RequestMismatch, SessionExists
from limpet.runtime.run import traceback_of
from limpet.runtime.worker import Rates
from limpet.session.json_forms import event_form, head_form, key_form

_RequestId = Annotated[
    str | None,
    typer.Argument(metavar="REQUEST", help="Its id, if the session waits for several."),
]
HarnessOption = Annotated[
    str, typer.Option("--harness", metavar="MODULE:NAME", help="The harness to run.")
]
_Retries = Annotated[int, typer.Option(metavar="N", help="Before a turn becomes a dead letter.")]
_Version = Annotated[
    str | None, typer.Option("--version", metavar="TEXT", help="Of your code, for the record.")
]
_Setup = Annotated[
    str | None,
    typer.Option(
        "--setup",
        metavar="MODULE:NAME",
        help="A function of the open store, called first, to declare policies.",
    ),
]
_SHOW_SECONDS: Final = 1.0
_MESSAGES_MAX: Final = 100
_COMMANDS: Final = {  # which answer a request of each kind
    "approval": "limpet confirm --allow | --deny",
    "question": "limpet answer OUTPUT",
    "unknown_effect": "limpet resolve --happened JSON | --run-again | --give-up",
    "mismatch": "limpet resolve --run-again | --give-up",
}
_CLEAR_LINE: Final = "\r\x1b[K"


@command(ACT)
async def create(
    lp: Creating,
    new: NewSession,
    actor: Actor,
    *,
    state: Annotated[
        str | None, typer.Option("--state", metavar="JSON", help="The state it begins with.")
    ] = None,
    labels: Labels = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="The agent it is set up with.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", metavar="NAME", help="Its environment.")
    ] = None,
) -> CommandResult:
    """Create a session, and the store if there is none yet."""
    try:
        session = await lp.create(
            new.app,
            new.user,
            new.id,
            state=json_object("--state", state),
            labels=label_values(labels),
            agent=agent,
            environment=environment,
            actor=actor,
        )
    except SessionExists as error:
        raise SessionExists(error.key, "Pass another id, or none") from error
    line = TextLine(f"ok: created {session.key}", "ok")
    return CommandResult(head_form(session.head), [line])


@command(ACT)
async def send(
    lp: Writing,
    key: SessionKey,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the user says.")],
    actor: Actor,
) -> CommandResult:
    """Send a message of its user, for a worker to answer."""
    event = await lp.session(key).append("user.message", {"text": text}, actor=actor)
    line = TextLine(f"ok: event {event.seq} of {key}", "ok")
    return CommandResult({"event": event_form(event)}, [line])


@command(ACT)
def work(
    store: Unopened,
    screen: Display,
    *,
    harness: HarnessOption,
    app_name: App = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="Sessions that run at the same time.")
    ] = 64,
    lease_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a dead worker holds them.")
    ] = 30,
    stop_when_idle: Annotated[
        bool, typer.Option("--stop-when-idle", help="Exit when nothing is due.")
    ] = False,
    max_turns: Annotated[
        int | None, typer.Option(metavar="N", help="Exit after this many.")
    ] = None,
    retries: _Retries = 5,
    version: _Version = None,
    setup: _Setup = None,
) -> None:
    """Run the turns of agents until stopped.

    Run as many of these as you like, on as many machines as share the store. SIGTERM lets turns
    finish, or gives them back. Shows rates on a terminal, JSON lines otherwise; the error of a turn
    that failed goes to stderr.
    """
    rates_shown = RateLine(as_json=screen.as_json or not sys.stdout.isatty())

    async def run() -> Rates:
        async with store.opened() as lp:
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
                version=version,
                progress=rates_shown,
                failure=rates_shown.failed,
            )
            return await worker.run()

    with users_code():
        to_run, declare = import_harness(harness, setup)
        rates = asyncio.run(run())
    rates_shown.last(rates)


@command(ACT)
def wake(
    store: Unopened,
    key: SessionKey,
    screen: Display,
    *,
    harness: HarnessOption,
    retries: _Retries = 5,
    version: _Version = None,
    setup: _Setup = None,
) -> CommandResult:
    """Run one turn of one session, and print its answer.

    Runs nothing if the session has nothing to do. Exits with 1 if the turn failed.
    """

    async def run() -> tuple[limpet.Woken, list[dict[str, Any]]]:
        async with store.opened() as lp:
            await _set_up(lp, declare)
            woken: limpet.Woken = await lp.wake(key, to_run, retries=retries, version=version)
            return woken, await _messages(lp, key, woken) if woken.ran else []

    with users_code():
        to_run, declare = import_harness(harness, setup)
        woken, said = asyncio.run(run())
    failed = None if woken.error is None else f"{type(woken.error).__name__}: {woken.error}"
    form = {"ran": woken.ran, "reason": woken.reason, "wake_id": woken.wake_id}
    texts = [text for data in said if (text := _text_of(data)).strip()]  # some only call tools
    lines = [TextLine(line, "ok") for text in texts for line in text.split("\n")]
    ran = f"{key} {'ran' if woken.ran else 'did not run'}: {woken.reason}"
    if woken.reason == "requires_action":
        ran += "; limpet inbox shows what it waits for"
    if woken.reason == "suspended":
        ran += "; limpet resume lets it go on"
    lines.append(TextLine(ran, "ok"))
    if woken.error is not None and not screen.as_json:
        _show_failure(output(stderr=True), key, woken.error)
    return CommandResult({**form, "error": failed, "said": said}, lines, failed is None)


@command(ACT)
async def share(
    lp: Writing,
    key: SessionKey,
    actor: Actor,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="The other session: id, or app/user/id.")
    ] = None,
    *,
    fields: Annotated[
        list[str] | None, typer.Option("--field", metavar="NAME", help="Several may be given.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="As it changes, not as it is now.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Let it set them in the source.")] = False,
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", min=0.0, help="Ends after N days.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--end", metavar="ID", help="End a share that it gave or received."),
    ] = None,
) -> CommandResult:
    """Share fields with another session, or end a share.

    Without TARGET it shows the shares that the session has received.
    """
    session: limpet.Session[Any] = lp.session(key)
    await session.refresh(tail=0)
    if end is not None:
        await session.unshare(end, actor=actor)
        return CommandResult({"ended": end}, [TextLine(f"{end} has ended.")])
    if target is None:
        shares = tuple(session.shared.values())
    else:
        other: limpet.Session[Any] = lp.session(other_session(key, target))
        shared = await session.share(
            other,
            *(fields or ()),
            access="write" if write else "read",
            sync="live" if live else "snapshot",
            ttl=None if days is None else timedelta(days=days),
            actor=actor,
        )
        shares = (shared,)
    form = [
        {
            "id": each.id,
            "source": key_form(each.source),
            "target": key_form(each.target),
            "fields": list(each.fields),
            "access": each.access,
            "sync": each.sync,
        }
        for each in shares
    ]
    rows = [
        (
            each.id,
            str(each.source),
            str(each.target),
            each.access,
            each.sync,
            ", ".join(each.fields),
        )
        for each in shares
    ]
    columns = ("id", "source", "target", "access", "sync")
    return CommandResult({"shares": form}, [Grid(columns, rows, "fields", "nothing is shared.")])


@command(ACT)
async def confirm(
    lp: Writing,
    key: SessionKey,
    actor: Actor,
    request: _RequestId = None,
    *,
    allow: Annotated[
        bool | None, typer.Option("--allow/--deny", help="Allow it, or deny it.")
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.")] = None,
) -> CommandResult:
    """Allow or deny what a session asks approval for."""
    session: limpet.Session[Any] = lp.session(key)
    await session.refresh()
    if allow is None:
        raise InvalidInput("choose --allow or --deny. Pass one of the two.")
    wanted = open_request(session, request, "approval")
    return _answer_result(key, await session.confirm(wanted, allow=allow, note=note, actor=actor))


@command(ACT)
async def answer(
    lp: Writing,
    key: SessionKey,
    actor: Actor,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="JSON, or a text.")],
    request: _RequestId = None,
    *,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.")] = None,
) -> CommandResult:
    """Give the output that a session asks for."""
    session: limpet.Session[Any] = lp.session(key)
    await session.refresh()
    wanted = open_request(session, request, "question")
    given = json_or_text(output)
    return _answer_result(key, await session.answer(wanted, given, note=note, actor=actor))


@command(ACT)
async def resolve(
    lp: Writing,
    key: SessionKey,
    screen: Display,
    actor: Actor,
    request: _RequestId = None,
    *,
    happened: Annotated[
        str | None,
        typer.Option("--happened", metavar="JSON", help="It was performed, with this result."),
    ] = None,
    run_again: Annotated[
        bool, typer.Option("--run-again", help="Perform it again, under the same key.")
    ] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Leave it as it is.")] = False,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.")] = None,
    yes: Yes = False,
) -> CommandResult:
    """Settle an effect that may have happened, or a mismatch.

    Says what it will do and asks first, unless --yes is given. After a mismatch, --run-again runs
    the turn again with every check on, and --give-up ends it.
    """
    given = {"happened": happened is not None, "run_again": run_again, "give_up": give_up}
    chosen = [decision for decision, is_given in given.items() if is_given]
    if len(chosen) != 1:
        raise InvalidInput("choose one of --happened JSON, --run-again and --give-up.")
    session: limpet.Session[Any] = lp.session(key)
    await session.refresh()
    id = open_request(session, request, "unknown_effect", "mismatch")
    wanted = next((each for each in session.blocked_on if each.id == id), None)
    result = json_or_text(happened) if happened is not None else msgspec.UNSET
    deed = "resolve it" if wanted is None else _resolution(wanted, chosen[0])
    ask_first(screen, deed, "nothing was recorded", yes=yes)
    event = await session.resolve(
        id, happened=result, run_again=run_again, give_up=give_up, note=note, actor=actor
    )
    done = _answer_result(key, event)
    return CommandResult(done.form, [TextLine(f"decided: {deed}.", "ok"), *done.parts])


@command(ACT)
async def interrupt(
    lp: Writing,
    key: SessionKey,
    actor: Actor,
    *,
    note: Annotated[
        str | None,
        typer.Option("--note", metavar="TEXT", help="What the agent is to do instead."),
    ] = None,
) -> CommandResult:
    """Stop the turn of a session.

    What it waits for and its revisits are dropped. With a note a new turn begins, which has the
    note; without one the turn ends. Works with no worker alive.
    """
    session: limpet.Session[Any] = lp.session(key)
    await session.refresh()
    event = await session.interrupt(note, actor=actor)
    then = "a worker ends the turn" if note is None else "a worker begins a turn with the note"
    return _answer_result(key, event, f"What it waited for is dropped; {then}.")


@command(ACT)
async def requeue(
    lp: Writing,
    chosen: Filter,
    actor: Actor,
    *,
    every: Annotated[bool, typer.Option("--all", help="All dead letters of the store.")] = False,
    reason: Annotated[
        Literal["died", "raised"] | None,
        typer.Option("--reason", help="Only those that became one so."),
    ] = None,
) -> CommandResult:
    """Try dead letters again, with all their attempts.

    Name a session, --app or --all. A dead letter "died" if its process did, each time it ran
    nothing else; it "raised" if its harness did.
    """
    key, app = chosen.key, chosen.app
    if (key is not None) + (app is not None) + every != 1:
        raise InvalidInput("name one session, or choose --app NAME or --all.")
    if key is not None:
        if reason is not None:
            raise InvalidInput("--reason chooses among the dead letters of --app or --all.")
        return _answer_result(key, await lp.work.requeue(key, actor=actor))
    count = await lp.work.requeue(app=app, reason=reason, actor=actor)
    return CommandResult({"requeued": count}, [TextLine(f"{count:,} requeued.", "ok")])


def open_request(session: limpet.Session[Any], request: str | None, *kinds: str) -> str:
    """The id of the request: the one that is named, or the only one. Raises InvalidInput;
    RequestMismatch if it is not of one of these kinds."""
    waiting = [f"{each.kind} {each.name} ({each.id})" for each in session.blocked_on]
    if request is None and len(waiting) == 1:
        request = session.blocked_on[0].id
    for each in session.blocked_on:
        if each.id == request and each.kind not in kinds:
            raise RequestMismatch(each.id, each.kind, _COMMANDS[each.kind])
    if request is not None:
        return request
    if not waiting:
        raise InvalidInput(f"session {session.key} waits for no answer. See limpet status.")
    raise InvalidInput(
        f"session {session.key} waits for several answers: {', '.join(waiting)}. Pass the id of "
        "one of them."
    )


class RateLine:
    """The rates of a worker: a line that is rewritten, or JSON lines."""

    def __init__(self, *, as_json: bool) -> None:
        self._json, self._at, self._began = as_json, 0.0, time.monotonic()
        self._out, self._err = output(), output(stderr=True)

    def __call__(self, rates: Rates) -> None:
        now = time.monotonic()
        if now - self._at >= _SHOW_SECONDS:
            self._at = now
            self._write(rates, now - self._began)

    def failed(self, key: limpet.Key, error: BaseException) -> None:
        """Print why a turn failed, with the lines of the harness that led there."""
        if not self._json and self._err.isatty():
            self._err.control(_CLEAR_LINE)
        _show_failure(self._err, key, error)

    def last(self, rates: Rates) -> None:
        """Show the sums."""
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


# --- private ------------------------------------------------------------------------------------


def _resolution(request: limpet.Request, decision: str) -> str:
    """Return what a resolution does, in words that a question may begin with."""
    if request.kind == "mismatch":
        where = f"the turn that stopped at {request.name!r}"
        return (
            f"run {where} again with every check on, which asks again unless the code fits"
            if decision == "run_again"
            else f"end {where}; its inputs count as processed"
        )
    shown = request.input if isinstance(request.input, Mapping) else {}
    effect = f"the effect {request.name!r} (idempotency key {shown.get('idempotency_key')})"
    if decision == "happened":
        return f"record the result of {effect} without performing it"
    if decision == "give_up":
        return f"give up {effect}: the turn sees EffectUnknown, and nothing is performed"
    return (
        f"perform {effect} again; if it has happened and the other side does not know that key, it "
        "happens twice"
    )


def _answer_result(
    key: limpet.Key, event: limpet.Event, then: str = "A worker goes on with it."
) -> CommandResult:
    line = TextLine(f"ok: event {event.seq} of {key}. {then}", "ok")
    return CommandResult({"event": event_form(event)}, [line])


def import_harness(harness: str, setup: str | None) -> tuple[Any, Any]:
    """Import the harness before there is an event loop: what is imported may run one of its own."""
    to_run = imported_object("--harness", harness)
    if not callable(to_run) and not callable(getattr(to_run, "run", None)):
        raise InvalidInput(
            f"--harness {harness!r} is not a harness. Name a limpet.Agent or an async function."
        )
    return to_run, None if setup is None else imported_function("--setup", setup)


async def _set_up(lp: limpet.Limpet, declare: Any) -> None:
    if declare is not None and inspect.isawaitable(made := declare(lp)):
        await made


async def _messages(
    lp: limpet.Limpet, key: limpet.Key, woken: limpet.Woken
) -> list[dict[str, Any]]:
    """The data of the messages of one wake, the oldest first."""
    events = await lp.session(key).read(types=["agent.message"], limit=_MESSAGES_MAX, reverse=True)
    return [dict(e.data) for e in reversed(events) if e.wake_id == woken.wake_id and e.data]


def _text_of(data: dict[str, Any]) -> str:
    text = data.get("text")
    return text if isinstance(text, str) else msgspec.json.encode(data).decode()


def _show_failure(err: Output, key: limpet.Key, error: BaseException) -> None:
    err.write(f"limpet: a turn of {one_line(str(key))} failed\n{traceback_of(error)}")
    err.flush()
