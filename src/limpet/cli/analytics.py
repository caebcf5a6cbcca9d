"""The commands that measure: report and metrics. Both only read the store.

What measures is an extra, so it is imported when one of them runs, and `limpet.Analytics` says what
to install.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

import limpet
from limpet.cli.command import LOOK, Reading, SessionKey, command
from limpet.cli.options import App, file_path, refuse_unknown
from limpet.cli.render import CommandResult, Grid, Part, TextLine
from limpet.errors import InvalidInput

if TYPE_CHECKING:
    from limpet.analytics.analytics import Analytics
    from limpet.analytics.compare import Comparison
    from limpet.analytics.report import FleetReport

AnalyticsPath = Annotated[
    str | None,
    typer.Option("--analytics", metavar="FILE", help="Store the analytics here for the next run."),
]
_BAR = 12


@command(LOOK)
async def report(
    lp: Reading,
    *,
    app_name: App = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write one page with plots.")
    ] = None,
    failing: Annotated[
        bool, typer.Option("--failing", help="List the newest sessions that failed.")
    ] = False,
    save: Annotated[
        str | None, typer.Option("--save", metavar="FILE", help="With --failing: write them.")
    ] = None,
    parquet: Annotated[
        str | None, typer.Option("--parquet", metavar="FILE", help="Write a row per session.")
    ] = None,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the totals for a Prometheus server.")
    ] = False,
    analytics: AnalyticsPath = None,
) -> CommandResult:
    """Measure all sessions: quality, latency, cost, anomalies.

    Folds the events of the store and shows windows, task types, agent versions, tools and users,
    what is out of the ordinary, and advice. Without --analytics everything is folded each time.
    """
    if save is not None and not failing:
        raise InvalidInput("--save writes the sessions of --failing. Pass both.")
    forms = (html is not None, failing, parquet is not None, prometheus)
    if sum(forms) > 1:
        raise InvalidInput("--html, --failing, --parquet and --prometheus exclude one another.")
    if app_name is not None:
        await refuse_unknown(lp, app_name)
    async with _folded(lp, analytics) as an:
        if failing:
            return await _failing(an, app_name, save)
        if prometheus:
            text = await an.prometheus(app=app_name)
            lines = [TextLine(line) for line in text.splitlines()]
            return CommandResult({"prometheus": text}, lines)
        if parquet is not None:
            rows = await an.export(file_path(parquet), app=app_name)
            line = TextLine(f"ok: {rows:,} sessions in {parquet}", "ok")
            return CommandResult({"sessions": rows, "file": parquet}, [line])
        made = await an.report(app_name)
    parts = list(_report_parts(made))
    if html is not None:
        from limpet.analytics.destination import destination
        from limpet.analytics.report import html_page

        path = file_path(html)
        with destination(path):
            path.write_text(html_page(made), encoding="utf-8")
        parts = [TextLine(f"ok: the report is in {html}", "ok")]
    return CommandResult(made.plain, parts)


@command(LOOK)
async def metrics(
    lp: Reading, key: SessionKey, *, analytics: AnalyticsPath = None
) -> CommandResult:
    """Show the metrics of one session.

    Times, counts, cost, quality and use of tools, as they are now.
    """
    an = reading(lp, analytics)
    async with an:
        of = await an.session(key)
    plain = of.plain
    state = "final" if of.final else "under way"
    parts: list[Part] = [TextLine(f"{key}: {of.phase}, {state}.", "ok")]
    named = f"task type {of.task_type or '(none)'}, agent version {of.agent_version or '(none)'}"
    liked = f"rating {_number(of.rating)}, predicted satisfaction {_number(of.satisfaction)}"
    parts += [named, liked]
    for group in ("temporal", "interaction", "resource", "quality"):
        rows = [(_words(name), _number(value)) for name, value in plain[group].items()]
        unit = "seconds" if group == "temporal" else "value"
        parts += ["", Grid((group, unit), rows, right=(unit,))]
    used = [
        (name, f"{t.count:,}", f"{t.errors:,}", _number(t.total_latency), _number(t.total_cost))
        for name, t in of.tools.items()
    ]
    columns = ("tool", "calls", "errors", "seconds", "cost")
    if used:
        parts += ["", Grid(columns, used, right=columns[1:])]
    given = [(name, f"{each.count:,}", _number(each.mean)) for name, each in of.scores.items()]
    if given:
        parts += ["", Grid(("score", "given", "mean"), given, right=("given", "mean"))]
    return CommandResult(plain, parts)


def reading(lp: limpet.Limpet, file: str | None) -> Analytics:
    """Analytics that never write to the store: without a model there, they train one of their
    own."""
    url = "memory://" if file is None else f"sqlite:///{file_path(file)}"
    return limpet.Analytics(lp, url, store_models=False, intervene_below=None)


@asynccontextmanager
async def _folded(lp: limpet.Limpet, file: str | None) -> AsyncIterator[Analytics]:
    async with reading(lp, file) as an:
        await an.run(once=True)
        yield an


async def _failing(an: Analytics, app: str | None, save: str | None) -> CommandResult:
    failing = await an.failing(app)
    rows = [(str(each.key), str(each.at), "; ".join(each.why)) for each in failing.sessions]
    grid = Grid(("session", "fork at"), rows, "why", "no failing sessions.", right=("fork at",))
    parts: list[Part] = [grid]
    if save is not None:
        failing.save(file_path(save))
        parts.append(TextLine(f"ok: {len(rows):,} sessions in {save}", "ok"))
    return CommandResult(failing.plain, parts)


def _report_parts(made: FleetReport) -> list[Part]:
    from limpet.analytics.report import COLUMNS, SERIES, bar, shown, sparkline

    of = "all apps" if made.app is None else made.app
    parts: list[Part] = [TextLine(f"{of}: {made.sessions:,} sessions.", "ok")]
    for note in made.notes:
        parts.append(TextLine(note.text, "problem" if note.bad else "warning"))
        parts += [f"  {key}" for key in note.named]
    windows = made.windows
    if len(windows):
        first, last = windows.rows[0]["window"], windows.rows[-1]["window"]
        parts += ["", f"windows {first} to {last}"]
        rows = []
        for column, title, _ in SERIES:
            values = windows.column(column)
            rows.append((title, sparkline(values), shown(column, values[-1])))
        parts.append(Grid(("", "course", "last"), rows, right=("last",)))
    for name, columns in COLUMNS.items():
        table = made.groups[name]
        cells = [[shown(column, row[column]) for column, _ in columns] for row in table.rows]
        headings = tuple([title for _, title in columns])
        barred = headings
        if name in ("tool", "user"):  # the others fill a line of 80 columns
            count = columns[1][0]
            most = max([row[count] for row in table.rows], default=1) or 1
            for line, row in zip(cells, table.rows, strict=True):
                line.append(bar(row[count] / most, _BAR))
            barred = (*headings, "")
        grid = Grid(barred, cells, empty=f"no {headings[0]}s.", right=headings[1:])
        parts += ["", grid]
    for versions in made.drift[-1:]:
        parts += _drift_parts(versions)
    return parts


def _drift_parts(versions: Comparison) -> list[Part]:
    """The differences between the two newest agent versions."""
    rows = []
    for each in versions.metrics:
        if each.differs:
            numbers = (f"{each.a:.3g}", f"{each.b:.3g}", f"{each.low:+.3g} to {each.high:+.3g}")
            rows.append((each.metric.replace("_", " "), *numbers))
    columns = ("drift", versions.a, versions.b, f"{versions.confidence:.0%} of the difference")
    nothing = f"no drift from {versions.a} to {versions.b}."
    return ["", Grid(columns, rows, empty=nothing, right=columns[1:])]


def _words(name: str) -> str:
    """Return the name of a metric for people. One among the times is a number of times."""
    return "suspensions (times)" if name == "suspensions" else name.replace("_", " ")


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
