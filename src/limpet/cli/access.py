"""The commands about access: audit and policy."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

import limpet
from limpet.cli.command import CARE, StoreArgument, command
from limpet.cli.options import file_path, session_key, store_url
from limpet.cli.render import Cell, CommandResult, Grid, TextLine, moment_cell
from limpet.errors import InvalidInput
from limpet.model import to_us
from limpet.security.access import Decider
from limpet.session.audit import AuditExport, check_audit, compare_audit
from limpet.session.limpet import journal_of
from limpet.store.protocol import plural

_SPANS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LIMIT_MAX: Final = 100_000


@command(CARE)
async def audit(
    store: Annotated[
        str | None,
        typer.Argument(metavar="STORE", help="A file or a URL. --check needs none."),
    ] = None,
    *,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 1h, 2d, a date.")
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option("--principal", metavar="ID", help="Only of one principal, as in user:ada."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="SESSION", help="Only about this session: app/user/id."),
    ] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Only what was denied.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=_LIMIT_MAX, help="How many.")
    ] = 50,
    export: Annotated[
        str | None, typer.Option("--export", metavar="FILE", help="Write a file that verifies.")
    ] = None,
    check: Annotated[
        str | None, typer.Option("--check", metavar="FILE", help="Check such a file.")
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option("--link", metavar="APP=LINK", help="--check: the link that was noted."),
    ] = None,
    public_key: Annotated[
        str | None, typer.Option("--public-key", metavar="FILE", help="--check: who signed it.")
    ] = None,
) -> CommandResult:
    """Show denied and sensitive operations, newest first.

    With a STORE, --check also compares the file with the store.
    """
    if check is not None:
        return await _check(check, store, _links(link), public_key)
    if store is None:
        raise InvalidInput("limpet audit takes a store. Pass STORE, or --check FILE.")
    of = None if session is None else session_key(session)
    async with StoreArgument(store_url(store)).opened(writes=False) as lp:
        asked: dict[str, Any] = {
            "since": None if since is None else _moment(since, lp.now()),
            "principal": principal,
            "session": of,
            "denied": True if denied else None,
        }
        if export is not None:
            return _exported(export, await lp.export_audit(file_path(export), **asked))
        records = await _records(lp, asked, limit)
    return _shown(records)


@command(CARE)
async def policy(
    action: Annotated[
        Literal["check", "test"],
        typer.Argument(metavar="check|test", help="What to do.", show_default=False),
    ],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .cedar file, or a directory of them.")
    ],
    cases: Annotated[
        str | None,
        typer.Argument(metavar="CASES", help="test: the cases, .csv, JSON lines or a JSON list."),
    ] = None,
    *,
    alone: Annotated[bool, typer.Option("--alone", help="test: without what roles allow.")] = False,
) -> CommandResult:
    """Check policies, or try them on a table of cases.

    check parses them and validates them against the schema: Limpet's, or a .cedarschema beside
    them. test answers each case by roles and policies, and compares it with what is expected.
    """
    if action == "check":
        return _check_policies(file_path(file))
    if cases is None:
        raise InvalidInput("limpet policy test takes a table of cases. Pass CASES.")
    return _test_policies(file_path(file), file_path(cases), alone=alone)


# --- the audit -----------------------------------------------------------------------------------


async def _records(
    lp: limpet.Limpet, asked: dict[str, Any], limit: int
) -> list[limpet.AuditRecord]:
    records: list[limpet.AuditRecord] = []
    cursor: str | None = None
    while len(records) < limit:
        page = await lp.audit(**asked, limit=min(1_000, limit - len(records)), cursor=cursor)
        records += page.items
        cursor = page.cursor
        if cursor is None:
            break
    return records


def _shown(records: list[limpet.AuditRecord]) -> CommandResult:
    rows: list[tuple[Cell | str, ...]] = []
    for record in records:
        decision = "allowed" if record.allowed else record.code or "denied"
        if record.repeats:
            decision += f" ×{record.repeats + 1:,}"  # times
        more = [record.resource]
        more += [f"policy {record.policy}"] if record.policy else []
        more += [f"from {record.address}"] if record.address else []
        more += ["as its user"] if record.via else []
        cell = Cell(decision, severity="ok" if record.allowed else "warning")
        who = (moment_cell(to_us(record.at)), record.principal or "nobody", record.action)
        rows.append((*who, cell, ", ".join(more)))
    columns = ("at", "principal", "action", "decision")
    grid = Grid(columns, rows, "about", "nothing was recorded.")
    form = {"records": [msgspec.to_builtins(record) for record in records]}
    return CommandResult(form, [grid])


def _exported(file: str, made: AuditExport) -> CommandResult:
    many = sum([log.version for log in made.logs])
    lines = [TextLine(f"ok: {plural(many, 'event')} written to {file}. Note the links:", "ok")]
    lines += [TextLine(f"  {log.app}={log.link}") for log in made.logs]
    return CommandResult({"file": file, **msgspec.to_builtins(made)}, lines)


async def _check(
    file: str, store: str | None, links: dict[str, str], public_key: str | None
) -> CommandResult:
    key = None if public_key is None else _text("--public-key", file_path(public_key))
    report = check_audit(file_path(file), links=links, public_key=key)
    compared = []
    if store is not None:
        async with StoreArgument(store_url(store)).opened(writes=False) as lp:
            compared = await compare_audit(journal_of(lp), report)
    form = {**msgspec.to_builtins(report), "findings": compared}
    many = sum([log.version for log in report.logs])
    if compared:
        lines = [TextLine(each, "problem") for each in compared]
        return CommandResult(form, lines, ok=False)
    said = f"ok: {plural(many, 'event')} of {plural(len(report.logs), 'log')} in {file} are whole."
    return CommandResult(form, [TextLine(said, "ok")])


def _links(options: list[str] | None) -> dict[str, str]:
    links: dict[str, str] = {}
    for option in options or ():
        app, equals, link = option.rpartition("=")
        if not equals or not app or not re.fullmatch(r"[0-9a-f]{64}", link):
            wanted = "Pass APP=LINK, as limpet audit --export printed it"
            raise InvalidInput(f"--link {option!r} does not name a link. {wanted}.")
        links[app] = link
    return links


def _moment(text: str, now: datetime) -> datetime:
    """A time: a span before now, or a date. Raises InvalidInput."""
    if match := re.fullmatch(r"(\d{1,6})([smhdw])", text):
        return now - timedelta(**{_SPANS[match[2]]: int(match[1])})
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except ValueError as error:
        wanted = "Write 30m, 12h, 7d, or a date such as 2026-05-01T10:00"
        raise InvalidInput(f"--since {text!r} is not a time. {wanted}.") from error


def _text(option: str, file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{option} {file} cannot be read. Pass a file of PEM text.") from error


# --- policies ------------------------------------------------------------------------------------


def _check_policies(path: Path) -> CommandResult:
    from limpet.security.policies import check_schema, load_policies

    sources = load_policies(path).sources
    wrong = check_schema(path)
    form = {
        "policies": [{"id": s.name, "file": s.file, "line": s.line} for s in sources],
        "findings": [{"where": where, "reason": reason} for where, reason in wrong],
    }
    if wrong:
        lines = [TextLine(f"{where}: {reason}", "problem") for where, reason in wrong]
        lines.append(TextLine(_DECLARE))
        return CommandResult(form, lines, ok=False)
    rows = [(source.name, f"{source.file}:{source.line}") for source in sources]
    many = f"ok: {_policies(len(sources))} can be used."
    return CommandResult(form, [Grid(("policy", "where"), rows), TextLine(many, "ok")])


def _policies(count: int) -> str:
    return "1 policy" if count == 1 else f"{count:,} policies"


_DECLARE: Final = (
    "The policies can be parsed, and these would deny or never apply. Attributes of your own are "
    "declared in a copy of limpet.cedarschema beside the policies."
)


def _test_policies(path: Path, table: Path, *, alone: bool) -> CommandResult:
    from limpet.security.policies import CedarPolicies
    from limpet.security.policy_cases import read_cases, run_cases
    from limpet.security.roles import RoleRules

    policies = CedarPolicies(path)
    deciders: list[Decider] = [policies] if alone else [RoleRules(), policies]
    results = run_cases(read_cases(table), deciders)
    rows: list[tuple[Cell | str, ...]] = []
    for result in results:
        case, decision = result.case, result.decision
        said = "allow" if decision.allowed else "deny"
        wanted = "allow" if case.allowed else "deny"
        mark = Cell("ok", severity="ok") if result.ok else Cell("wrong", severity="problem")
        why = f"{said} by {decision.policy}" if decision.policy else said
        if not result.ok:
            why += f"; expected {wanted}" + (f" by {case.policy}" if case.policy else "")
        asked = f"{case.principal.id} {case.action} {case.resource}"
        rows.append((mark, case.place, asked, why))
    wrong = [result for result in results if not result.ok]
    ok = not wrong
    many = plural(len(results), "case")
    said = f"ok: {many} as expected." if ok else f"{len(wrong)} of {many} not as expected."
    cases = [
        {
            "place": result.case.place,
            "ok": result.ok,
            "allowed": result.decision.allowed,
            "expected": result.case.allowed,
            "code": result.decision.denial,
            "policy": result.decision.policy,
        }
        for result in results
    ]
    line = TextLine(said, "ok" if ok else "problem")
    grid = Grid(("result", "case", "asked"), rows, "decided")
    return CommandResult({"cases": cases}, [grid, line], ok)
