"""The sessions of a store from a shell: list them, create one, send it a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

import limpet
from limpet.cli.ages import moment
from limpet.cli.asked import Json, Url, named_by_options, on, refuse_unknown
from limpet.cli.life import acting
from limpet.cli.output import cell
from limpet.cli.past import Actor, App, Id, User
from limpet.cli.show import Screen
from limpet.errors import InvalidInput, SessionExists
from limpet.model import Head, is_reserved
from limpet.session.wire import event_form, head_form, page_form
from limpet.store.protocol import Order, Page

_MORE: Final = "and more; use --limit to show more, or --cursor with the cursor of --json."


def list_(
    url: Url,
    *,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="Only of this app.")
    ] = None,
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
    as_json: Json = False,
) -> None:
    """List sessions, the newest first."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> Page:
        if app_name is not None and not is_reserved(app_name):
            await refuse_unknown(lp, app_name, deleted=deleted)
        return await lp.list(
            app=app_name,
            user=user,
            labels=_labels(labels or []),
            order=order,
            deleted=deleted,
            state=state,
            limit=limit,
            cursor=cursor,
        )

    with screen.errors():
        page = on(url, run, looking=True)
        screen.display({"ok": True, **page_form(page)}, lambda: _table(page), _lines(page))


def create(
    url: Url,
    *,
    app_name: App,
    user: User,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Its id. Default: a new one.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="JSON", help="The state it begins with.")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="A label; several may be given."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="The agent it is set up with.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", metavar="NAME", help="Its environment.")
    ] = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Create a session, and the store if there is none yet."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> Head:
        how: dict[str, Any] = {"agent": agent, "environment": environment}
        how |= {"state": _state(state), "labels": _labels(labels or []) or {}}
        try:
            made = await lp.create(app_name, user, id_, actor=acting(actor), **how)
        except SessionExists as error:
            raise SessionExists(error.key, "Pass another --id, or none") from error
        head: Head = made.head
        return head

    with screen.errors():
        head = on(url, run, create=True)
        with screen.answer({"ok": True, **head_form(head)}) as say:
            say(f"ok: created {head.key}", "ok")


def send(
    url: Url,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the user says.")],
    *,
    app_name: App,
    user: User,
    id_: Id,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Send a session a message of its user, for a worker to answer."""
    screen = Screen(as_json=as_json)

    async def run(lp: limpet.Limpet) -> limpet.Event:
        session = lp.session(app_name, user, id_)
        with named_by_options():
            return await session.append("user.message", {"text": text}, actor=acting(actor))

    with screen.errors():
        event = on(url, run)
        with screen.answer({"ok": True, "event": event_form(event)}) as say:
            say(f"ok: event {event.seq} of {limpet.Key(app_name, user, id_)}", "ok")


def _state(given: str | None) -> dict[str, Any]:
    try:
        return {} if given is None else msgspec.json.decode(given, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        wanted = "--state takes a JSON object, such as '{\"n\": 1}'"
        raise InvalidInput(f"{wanted}: {error}.") from error


def _labels(options: list[str]) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    for option in options:
        name, given, value = option.partition("=")
        if not given:
            raise InvalidInput(f"--label takes NAME=VALUE, such as plan=gold, not {option!r}.")
        if labels.setdefault(name, value) != value:
            raise InvalidInput(
                f"--label asks for {name}={labels[name]} and for {option}, and a session has one "
                "value of a label. Pass one of the two."
            )
    return labels or None


def _table(page: Page) -> Table:
    """For a terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    if page.cursor is not None:
        table.caption, table.caption_justify = _MORE, "left"
    for name in ("app", "user", "id", "version", "phase", "updated", "labels"):
        table.add_column(name, overflow="fold", justify="right" if name == "version" else "left")
    for head in page.items:
        table.add_row(*map(cell, _row(head)))
    return table


def _lines(page: Page) -> Iterator[str]:
    for head in page.items:
        yield "  ".join(_row(head)).rstrip()
    if page.cursor is not None:
        yield _MORE


def _row(head: Head) -> tuple[str, ...]:
    ended = head.deleted_us is not None
    labels = ", ".join([f"{name}={value}" for name, value in sorted(head.labels.items())])
    phase, at_us = ("deleted", head.deleted_us) if ended else (head.phase, head.updated_us)
    key = (head.key.app, head.key.user, head.key.id)
    return (*key, f"{head.version:,}", phase, moment(at_us or 0), labels)
