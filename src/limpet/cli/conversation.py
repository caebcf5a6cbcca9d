"""The commands that show conversations to people: inbox, transcript and tail.

None of them records anything. A text of a message is shown line by line and indented, so that none
of its lines can be taken for one of the command's own.
"""

from __future__ import annotations

import asyncio
import shlex
import textwrap
from collections import deque
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
_CALLED: Final = ("tool_use", "tool_result")  # parts of a message that have entries of their own
_GOES_ON: Final = " (goes on)"
_LATE_MAX: Final = 256  # messages whose late pieces are known


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
        text = _said(data)
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


class StreamedMessage:
    """A message that is shown while it is spoken. Pieces may be lost on the way."""

    def __init__(self, event: limpet.Event) -> None:
        self.id, self.attempt = event.id, event.attempt
        self._next = 0  # the index of the piece that follows
        self.shown: list[str] = []  # what came without a gap, part after part

    def is_of(self, event: limpet.Event) -> bool:
        return (self.id, self.attempt) == (event.id, event.attempt)

    def take(self, data: Mapping[str, Any]) -> str:
        """Return what is to be shown of a piece; … stands for what was lost before it."""
        text, index = data.get("text"), data.get("index", self._next)
        lost = index != self._next
        self._next = index + 1 if isinstance(index, int) else self._next
        if not isinstance(text, str) or not text:
            return ""
        if lost or not self.shown:
            self.shown.append("")
        self.shown[-1] += text
        return f"… {text}" if lost else text

    def left_of(self, text: str) -> tuple[str, list[str]] | None:
        """Return the rest of the whole text, and what was lost before it; None if it has other
        words than were shown."""
        place, lost = 0, []
        for each in self.shown:
            at = text.find(each, place)
            if at < 0:
                return None
            lost.append(text[place:at])
            place = at + len(each)
        return text[place:], [each for each in lost if each]


class Tail:
    """A conversation as it goes on, on a terminal or as JSON lines."""

    def __init__(self, out: Output, *, as_json: bool) -> None:
        self._out, self._json = out, as_json
        self._tools: dict[str, str] = {}  # see `entry_of`
        self._live: StreamedMessage | None = None
        self._open = False  # its line is the last one, and has not ended
        self._recorded_ids: deque[str] = deque(maxlen=_LATE_MAX)

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
        if event.id in self._recorded_ids:  # a piece may come late, and was shown with the whole
            return
        live, note = self._live, ""
        if live is None or not live.is_of(event):
            note = " (starts over)" if live is not None and live.id == event.id else ""
            self._end_line()
            live = self._live = StreamedMessage(event)
        elif live.shown and not self._open:
            note = _GOES_ON
        if added := live.take(event.data or {}):
            self._write(event, added, note)

    def _recorded(self, event: limpet.Event) -> None:
        self._recorded_ids.append(event.id)
        entry, live = entry_of(event, self._tools), self._live
        if live is not None and live.id == event.id and live.shown:
            self._complete(event, live, "" if entry is None else entry.text)
        elif entry is not None:
            self._end_line()
            self._lines(entry)

    def _complete(self, event: limpet.Event, live: StreamedMessage, text: str) -> None:
        """Show what a message has beside what was shown of it while it was spoken."""
        self._live, left = None, live.left_of(text)
        if left is None:
            self._end_line()
            self._write(event, text, " (as recorded)")
        elif left[0]:
            self._write(event, left[0], _GOES_ON)
        self._end_line()
        for lost in left[1] if left is not None else ():
            self._write(event, lost, " (was lost)")
            self._end_line()

    def _write(self, event: limpet.Event, text: str, note: str) -> None:
        """Write a piece of a message, after its speaker if its line is not there yet."""
        if not self._open:
            self._out.write(f"{one_line(event.actor)}{note}\n  ")
            self._open = True
        self._out.write(escaped(text).replace("\n", "\n  "))

    def _lines(self, entry: TranscriptEntry) -> None:
        for line in _lines(entry):
            self._out.write(f"{one_line(line)}\n")

    def _end_line(self) -> None:
        if self._open:
            self._out.write("\n")
        self._open = False


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
    text = _said({"content": [each for each in message.parts if each["type"] not in _CALLED]})
    entries = [TranscriptEntry(*head, "message", text)] if text.strip() else []
    for part in message.parts:
        if part["type"] == "tool_use":
            shown = brief(part.get("input"), _VALUE_CHARS_MAX)
            entries.append(TranscriptEntry(*head, "call", shown, part.get("name")))
        elif part["type"] == "tool_result":
            entries.append(TranscriptEntry(*head, "result", _result(part), part.get("name")))
    return entries


def _said(data: Mapping[str, Any]) -> str:
    """The words of a message, with a line for each part that is not words."""
    if isinstance(data.get("text"), str):
        return str(data["text"])
    content = data.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return brief(data, _VALUE_CHARS_MAX)
    return "\n".join([_part_text(part) for part in content])


def _part_text(part: Any) -> str:
    """A part of a message: its text, or what it is, as in [image image/png 12 KB cat.png]."""
    if not isinstance(part, Mapping):
        return brief(part, _VALUE_CHARS_MAX)
    kind = str(part.get("type") or "data")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "data" and "data" in part:
        return f"[data {brief(part['data'], _VALUE_CHARS_MAX)}]"
    source = part["source"] if isinstance(part.get("source"), Mapping) else part
    named = [source.get("media_type"), _size(source), part.get("name") or part.get("title")]
    named.append(source.get("url"))
    return f"[{' '.join([kind, *[str(each) for each in named if each]])}]"


def _size(source: Mapping[str, Any]) -> str:
    """The size of a part that says it, or that is here in base64; empty if it is elsewhere."""
    size, data = source.get("size"), source.get("data")
    if not isinstance(size, int) and isinstance(data, str):
        size = len(data.rstrip("=")) * 3 // 4
    if not isinstance(size, int):
        return ""
    for unit in ("bytes", "KB", "MB"):
        if size < 1_000:
            return f"{size:,.0f} {unit}"
        size = size / 1_000
    return f"{size:,.1f} GB"


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
