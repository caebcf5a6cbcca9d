"""The commands that show conversations to people: inbox, transcript and tail.

None of them records anything. A text of a message is shown line by line and indented, so that none
of its lines can be taken for one of the command's own.
"""

from __future__ import annotations

import asyncio
import shlex
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.cells import cell_len

import limpet
from limpet.cli.backlog import asked_for
from limpet.cli.command import LOOK, Display, Reading, SessionKey, SessionToRead, Unopened, command
from limpet.cli.options import App, refuse_unknown
from limpet.cli.output import Output, escaped, one_line, output
from limpet.cli.render import Cell, CommandResult, Grid, Part, TextLine, age, instant, timed
from limpet.model import to_us
from limpet.model.diff.changes import brief
from limpet.model.limits import PAGE_MAX
from limpet.session.conversation.messages import request_id
from limpet.session.json_forms import event_form, key_form

_WIDTH: Final = 80
_VALUE_CHARS_MAX: Final = 200
_CALLS: Final = ("agent.tool_use", "agent.custom_tool_use")
_TYPES: Final = (
    "user.*",
    "system.*",
    "agent.message",
    *_CALLS,
    "agent.tool_result",
    "session.error",
    "session.rewound",
)
_MORE: Final = "and more; use --limit to show more, or --cursor with the cursor of --json."
_IDLE: Final = "session.status_idle"


@command(LOOK)
async def inbox(
    lp: Reading,
    *,
    app_name: App = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Only of this user of the app.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Only approval, question, unknown_effect, mismatch or promotion.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="Show at most N.")
    ] = 50,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="TEXT", help="The cursor of a page in JSON."),
    ] = None,
) -> CommandResult:
    """Show who waits for an answer, and how to give it.

    The oldest first: since when, for what, until when, and the command that answers it.
    """
    if app_name is not None:
        await refuse_unknown(lp, app_name)
    wanted: Any = kind
    page = await lp.inbox(app=app_name, user=user, kind=wanted, limit=limit, cursor=cursor)
    now_us = to_us(lp.now())
    form = {"waiting": [_waiting_form(lp, each) for each in page.items], "cursor": page.cursor}
    rows = [_waiting_row(lp, each, now_us) for each in page.items]
    grid = Grid(("since", "session", "kind"), rows, "what", "nobody waits.")
    more = [] if page.cursor is None else [TextLine(_MORE, "skipped")]
    return CommandResult(form, [grid, *more])


@command(LOOK)
async def transcript(
    s: SessionToRead,
    *,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="Only the last N entries.")
    ] = None,
) -> CommandResult:
    """Show the conversation of a session in readable form.

    Who said what; calls of tools with their inputs and results, cut short; what was asked, and who
    decided; errors. limpet log shows every event, whole.
    """
    tools: dict[str, str] = {}
    every = [entry_of(event, tools) async for event in _conversation(s)]
    entries = [each for each in every if each is not None]
    if not entries:  # a framework may record messages in events of its own, as LangGraph does
        entries = [entry for said in await s.messages() for entry in _entries_of(said)]
    entries = entries[-last:] if last else entries
    lines: list[Part] = [line for entry in entries for line in _lines(entry)]
    form = {"entries": [msgspec.structs.asdict(entry) for entry in entries]}
    nothing = TextLine("nothing was said yet; limpet log shows every event.", "skipped")
    return CommandResult(form, lines or [nothing])


@command(LOOK)
def tail(
    store: Unopened,
    key: SessionKey,
    screen: Display,
    *,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, max=1_000, help="Begin with the last N.")
    ] = 10,
    stop_when_idle: Annotated[
        bool, typer.Option("--stop-when-idle", help="Exit when nothing runs and nothing is due.")
    ] = False,
) -> None:
    """Follow the conversation of a session live.

    Shows what a model says piece by piece; if its call is made again, the message starts over. In
    JSON, one line for each event. Ctrl-C ends it.
    """

    async def run() -> None:
        # To hear partials a process has to say so, beside the store: it is not opened read-only.
        async with store.opened() as lp:
            session = await lp.get(key, tail=0, untyped=True)
            shown = Tail(output(), as_json=screen.as_json)
            await _follow(session, shown, last, stop_when_idle=stop_when_idle)

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


class TranscriptEntry(msgspec.Struct, frozen=True):
    """One entry of a transcript.

    `kind` is message, call, result, request, answer, interrupt, error or rewind.
    """

    seq: int
    at: str
    actor: str
    kind: str
    text: str  # what was said; in one line unless it is a message
    name: str | None = None  # of the tool, or of what was asked


def entry_of(event: limpet.Event, tools: dict[str, str]) -> TranscriptEntry | None:
    """Return what a recorded event is in a conversation; None: nothing that people read. `tools`
    has the names of the calls and requests so far, by the ids that their results and answers
    have."""
    head = (event.seq, instant(event.at_us), event.actor)
    if event.data is None:
        return TranscriptEntry(
            *head, "message", "(removed)" if event.removed else "(cannot be read)"
        )
    data, kind = event.data, event.type
    if kind == "agent.message" or kind.startswith(("user.message", "system.")):
        text = str(data.get("text", "") if "text" in data else brief(data, _VALUE_CHARS_MAX))
        return TranscriptEntry(*head, "message", text) if text.strip() else None
    if kind in _CALLS:
        name, awaits = str(data.get("name", "")), data.get("awaits")
        shown = brief(data.get("input"), _VALUE_CHARS_MAX)
        tools[request_id(event)] = name
        if awaits is None:
            return TranscriptEntry(*head, "call", shown, name)
        if awaits in ("unknown_effect", "mismatch"):
            shown = asked_for(awaits, data.get("input"), _VALUE_CHARS_MAX)
        return TranscriptEntry(*head, "request", f"{awaits} {shown}", name)
    short = _SHORT.get(kind)
    if short is not None and not _repeats_decision(event):
        return TranscriptEntry(*head, short[0], short[1](data), tools.get(request_id(event)))
    if kind.startswith("user."):
        return TranscriptEntry(*head, "message", f"{kind} {brief(data, _VALUE_CHARS_MAX)}")
    return None


class Tail:
    """A conversation as it goes on, on a terminal or as JSON lines."""

    def __init__(self, out: Output, *, as_json: bool) -> None:
        self._out, self._json = out, as_json
        self._tools: dict[str, str] = {}  # see `entry_of`
        self._live: tuple[str, int] | None = None  # id and attempt of the message that streams
        self._said = ""

    def show(self, event: limpet.Event) -> None:
        """Show an event, or a part of a message that is not recorded yet."""
        if self._json:
            form = {**event_form(event), "partial": event.partial, "attempt": event.attempt}
            self._out.write(f"{msgspec.json.encode(form).decode()}\n")
        elif event.partial:
            self._piece(event)
        else:
            self._recorded(event)
        self._out.flush()

    def _piece(self, event: limpet.Event) -> None:
        text = (event.data or {}).get("text")
        if not isinstance(text, str):
            return
        if self._live != (event.id, event.attempt):
            again = self._live is not None and self._live[0] == event.id
            self._break()
            self._out.write(f"{one_line(event.actor)}{' (starts over)' if again else ''}\n  ")
            self._live, self._said = (event.id, event.attempt), ""
        self._said += text
        self._out.write(escaped(text).replace("\n", "\n  "))

    def _recorded(self, event: limpet.Event) -> None:
        streamed = self._live is not None and self._live[0] == event.id
        whole = streamed and (event.data or {}).get("text") == self._said
        entry = entry_of(event, self._tools)
        if entry is None and not streamed:
            return
        self._break()
        if entry is not None and not whole:
            for line in _lines(entry):
                self._out.write(f"{one_line(line)}\n")

    def _break(self) -> None:
        """End the line of a message that streams."""
        if self._live is not None:
            self._out.write("\n")
        self._live, self._said = None, ""


# --- private ------------------------------------------------------------------------------------


async def _follow(
    session: limpet.Session[Any], shown: Tail, last: int, *, stop_when_idle: bool
) -> None:
    version = session.version
    before = await session.read(reverse=True, limit=last, types=_TYPES) if last else ()
    for event in reversed(before):
        shown.show(event)
    if stop_when_idle and await _is_idle(session):
        return
    async for event in session.follow(after=max([version, *[e.seq for e in before]])):
        shown.show(event)
        if stop_when_idle and event.type == _IDLE and await _is_idle(session):
            return


async def _is_idle(session: limpet.Session[Any]) -> bool:
    await session.refresh(tail=0)
    waits = bool(session.blocked_on) or session.head.pending == 0
    return session.status in ("idle", "terminated") and waits


def _entries_of(message: limpet.Message) -> list[TranscriptEntry]:
    """A message as the adapter of a framework reads it, with the calls that are part of it."""
    event, who = message.event, message.role
    head = (event.seq, instant(event.at_us), who)
    entries = [TranscriptEntry(*head, "message", message.text)] if message.text.strip() else []
    for part in message.parts:
        if part["type"] == "tool_use":
            shown = brief(part.get("input"), _VALUE_CHARS_MAX)
            entries.append(TranscriptEntry(*head, "call", shown, part.get("name")))
        elif part["type"] == "tool_result":
            entries.append(TranscriptEntry(*head, "result", _result(part), part.get("name")))
    return entries


async def _conversation(session: limpet.Session[Any]) -> AsyncIterator[limpet.Event]:
    after = 0
    while page := await session.read(after=after, limit=PAGE_MAX, types=_TYPES):
        for event in page:
            yield event
        after = page[-1].seq


def _decision_text(data: Any) -> str:
    said = "allowed" if data.get("allow") is True else "denied"
    return said + (f": {data['note']}" if data.get("note") else "")


def _resolution_text(data: Any) -> str:
    said = str(data.get("decision", "")).replace("_", " ")
    said += f" {brief(data['output'], _VALUE_CHARS_MAX)}" if "output" in data else ""
    return said + (f": {data['note']}" if data.get("note") else "")


def _repeats_decision(event: limpet.Event) -> bool:
    """True if a result is what a person decided about an unknown effect, which is shown already."""
    output = (event.data or {}).get("output")
    if event.type != "agent.tool_result" or not isinstance(output, Mapping):
        return False
    return output.get("request_id") == request_id(event) and "decision" in output


def _result(data: Any) -> str:
    error = "error: " if data.get("is_error") else ""
    return error + brief(data.get("output"), _VALUE_CHARS_MAX)


_SHORT: Final[dict[str, tuple[str, Any]]] = {
    "agent.tool_result": ("result", _result),
    "user.tool_confirmation": ("answer", _decision_text),
    "user.custom_tool_result": ("answer", lambda data: f"answered {_result(data)}"),
    "user.resolution": ("answer", _resolution_text),
    "user.interrupt": ("interrupt", lambda data: f"interrupted: {data.get('note') or 'stop'}"),
    "session.error": ("error", lambda data: f"{data.get('code')}: {data.get('message')}"),
    "session.rewound": ("rewind", lambda data: f"rewound to event {data.get('at')}"),
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "approval": ("--allow", "--deny"),
    "question": ("OUTPUT",),
    "unknown_effect": ("--happened JSON", "--run-again", "--give-up"),
    "promotion": ("--accept", "--refuse"),
    "mismatch": ("--run-again", "--give-up"),
}
_SIGNS: Final = {"call": "-> ", "result": "<- ", "request": "?  "}


def _lines(entry: TranscriptEntry) -> Sequence[str]:
    """An entry in lines of at most 80 columns. A longer word of a message stays whole (it may be a
    link); a value, which was cut short anyway, is broken."""
    name = "" if entry.name is None else f"{one_line(entry.name)} "
    if entry.kind != "message":
        sign = _SIGNS.get(entry.kind, "!  ")
        who = "" if entry.kind in _SIGNS else f"{one_line(entry.actor)} "
        return _wrap(f"{who}{name}{one_line(entry.text)}", f"  {sign}", "     ", whole=False)
    body = [line for part in escaped(entry.text).split("\n") for line in _wrap(part, "  ", "  ")]
    return [f"{one_line(entry.actor)}  {entry.at[:19].replace('T', ' ')}", *body]


def _wrap(text: str, first: str, rest: str, *, whole: bool = True) -> list[str]:
    if cell_len(text) + len(first) <= _WIDTH:  # with its own spaces: it may be code
        return [f"{first}{text}".rstrip()]
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=not whole,
        break_on_hyphens=False,
    )


def _waiting_row(lp: limpet.Limpet, waiting: limpet.Waiting, now_us: int) -> tuple[Cell | str, ...]:
    request, since_us = waiting.request, to_us(waiting.since)
    what = f"{request.name} {asked_for(request.kind, request.input)}"
    if waiting.deadline is not None:
        what += f", deadline {timed(to_us(waiting.deadline), now_us)}"
    choices = _CHOICES[request.kind]
    if len(choices) > 1:
        what += f"; {', '.join(choices[:-1])} or {choices[-1]}"
    since = Cell(timed(since_us, now_us), age(since_us, now_us))
    return since, str(waiting.key), request.kind, Cell(what, command=_command(lp, waiting))


def _waiting_form(lp: limpet.Limpet, waiting: limpet.Waiting) -> dict[str, Any]:
    request = waiting.request
    asked = {"id": request.id, "kind": request.kind, "name": request.name, "input": request.input}
    return {
        **key_form(waiting.key),
        "request": asked,
        "since": waiting.since.isoformat(),
        "deadline": None if waiting.deadline is None else waiting.deadline.isoformat(),
        "command": _command(lp, waiting),
        "choices": _CHOICES[request.kind],
    }


def _command(lp: limpet.Limpet, waiting: limpet.Waiting) -> str:
    """The command that answers a request. What a person has to fill in stands in capitals."""
    request = waiting.request
    if request.kind == "promotion":
        where = shlex.quote(lp.url.removeprefix("sqlite:///"))
        return f"limpet decide {where} {shlex.quote(request.id)} --accept --reason WHY"
    named = [shlex.quote(text) for text in (lp.url.removeprefix("sqlite:///"), str(waiting.key))]
    verb = {"approval": "confirm", "question": "answer"}.get(request.kind, "resolve")
    rest = [shlex.quote(request.id), _CHOICES[request.kind][0]]
    if request.kind == "question":  # the output comes first
        rest.reverse()
    return " ".join(["limpet", verb, *named, *rest])
