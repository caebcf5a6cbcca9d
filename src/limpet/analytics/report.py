"""The report: what an operator looks at first, as data, and as one HTML page without any script.

It has tables, series, anomalies and advice of an app or of all; the command line and the page show
the same. Every text of a session is escaped, with hidden characters made visible: names of users
and tools are anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

import msgspec

from limpet.analytics.advice import Advice
from limpet.analytics.anomalies import Anomalies
from limpet.analytics.compare import Comparison, Regression
from limpet.analytics.rollup import HOUR, hours_since, window_name
from limpet.analytics.tables import Table, Tallies, window_columns
from limpet.model import Key

WINDOWS: Final = 48  # hours that it shows
GROUPS: Final = 10  # rows of each table
_NAMED: Final = 3  # sessions beside a note
_WIDTH, _HEIGHT = 560, 120
# The columns of the tables, by dimension: each with its heading.
COLUMNS: Final = {
    "task_type": (
        ("task_type", "task type"),
        ("sessions", "sessions"),
        ("completion_rate", "completed"),
        ("error_rate", "errors"),
        ("p50_turn_latency", "p50"),
        ("p99_turn_latency", "p99"),
        ("cost_per_success", "$/success"),
        ("mean_satisfaction", "satisf."),
    ),
    "agent_version": (
        ("agent_version", "agent version"),
        ("sessions", "sessions"),
        ("completion_rate", "completed"),
        ("error_rate", "errors"),
        ("p50_turn_latency", "p50"),
        ("p99_turn_latency", "p99"),
        ("cost_per_session", "$/session"),
        ("mean_satisfaction", "satisf."),
    ),
    "tool": (
        ("tool", "tool"),
        ("count", "calls"),
        ("error_rate", "errors"),
        ("mean_latency", "mean"),
        ("p95_latency", "p95"),
        ("p99_latency", "p99"),
        ("total_cost", "cost $"),
    ),
    "user": (
        ("user", "user"),
        ("sessions", "sessions"),
        ("error_rate", "errors"),
        ("cost_usd", "cost $"),
        ("mean_rating", "rating"),
        ("mean_satisfaction", "satisf."),
    ),
}
TITLES: Final = {
    "task_type": "Task types",
    "agent_version": "Agent versions",
    "tool": "Tools",
    "user": "Users",
}
DRIFT_COLUMNS: Final = ("metric", "before", "after", "difference", "95 %")
# The plots: the column, its title, and the unit of its values.
SERIES: Final = (
    ("turns", "turns", ""),
    ("peak_concurrency", "peak concurrency", ""),
    ("p99_turn_latency", "p99 turn latency", "s"),
    ("error_rate", "error rate", ""),
    ("completion_rate", "completed tasks", ""),
    ("cost_rate", "cost per hour, $", "$"),
)
_SECONDS: Final = frozenset(
    ("p50_turn_latency", "p99_turn_latency", "mean_latency", "p95_latency", "p99_latency")
)
_RATES: Final = frozenset(("completion_rate", "error_rate"))
# Characters that are invisible or change the direction of text: a name must not look like another.
_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_MONEY: Final = frozenset(
    ("cost_rate", "cost_usd", "total_cost", "cost_per_session", "cost_per_success")
)


class ReportNote(msgspec.Struct, frozen=True):
    """Something to look at, in words, with the sessions behind it."""

    text: str
    bad: bool  # False: advice
    sessions: tuple[Key, ...] = ()

    @property
    def named(self) -> tuple[Key, ...]:
        """The worst sessions, as many as fit beside the text."""
        return self.sessions[:_NAMED]


class FleetReport(msgspec.Struct, frozen=True):
    """The measurements of one app, or of all apps."""

    app: str | None
    at: datetime
    sessions: int
    windows: Table
    groups: dict[str, Table]
    anomalies: Anomalies
    regression: Regression
    drift: tuple[Comparison, ...]
    advice: tuple[Advice, ...]

    @property
    def notes(self) -> tuple[ReportNote, ...]:
        """Return the first things to look at: a fall of satisfaction, anomalies, advice."""
        notes = []
        fall = self.regression
        if fall.fell and fall.baseline is not None and fall.mean is not None:
            fell = f"from {fall.baseline:.2f} to {fall.mean:.2f}"
            text = f"Satisfaction fell {fell} since {_minute(fall.since)}."
            notes.append(ReportNote(text, bad=True, sessions=fall.sessions))
        for alert in self.anomalies:
            counted = "1 session" if alert.count == 1 else f"{alert.count:,} sessions"
            more = f" ({counted}, since {_minute(alert.since)})"
            text = _sentence(f"{alert.why}{more}")
            notes.append(ReportNote(text, bad=True, sessions=alert.sessions))
        return (*notes, *[ReportNote(_sentence(str(each)), bad=False) for each in self.advice])

    @property
    def plain(self) -> dict[str, Any]:
        """Return its JSON form."""
        return {
            "app": self.app,
            "at": self.at.isoformat(),
            "sessions": self.sessions,
            "windows": self.windows.plain,
            "groups": {name: table.plain for name, table in self.groups.items()},
            "anomalies": self.anomalies.plain,
            "regression": self.regression.plain,
            "drift": [each.plain for each in self.drift],
            "advice": [msgspec.to_builtins(each) for each in self.advice],
        }


def hourly(windows: Table, now: datetime) -> Table:
    """Return the last hours, one row each, also those without an event; of a store at rest the
    hours before its newest window. Windows that are days by now stay as they are."""
    rows = {row["window"]: row for row in windows.rows if "T" in row["window"]}
    if not rows:
        return windows
    newest = hours_since(datetime.fromisoformat(max(rows)))
    end = hours_since(now) if hours_since(now) - newest < WINDOWS else newest
    names = [window_name(HOUR, hour) for hour in range(end - WINDOWS + 1, end + 1)]
    columns = window_columns(Tallies([], [], 1), [], [1])
    empty = {name: column[0] for name, column in columns.items()} | {"error_rate": None}
    course = [rows.get(name) or {"window": name, **empty} for name in names]
    return msgspec.structs.replace(windows, rows=tuple(course))


def shown(column: str, value: float | str | None) -> str:
    """Return a number as people read it, with its unit."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return str(value) or "(none)"
    if column in _SECONDS:
        return f"{value:,.2f} s" if value >= 0.1 else f"{value * 1_000:,.1f} ms"
    if column in _RATES:
        return f"{value:.1%}"
    if column in _MONEY:
        return f"{value:,.2f}" if value >= 0.1 else f"{value:,.4f}"
    return f"{value:,}" if type(value) is int else f"{value:,.2f}"


def drift_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows of DRIFT_COLUMNS for what can be compared of two versions."""
    return [
        [
            each.metric.replace("_", " ") + (" ●" if each.differs else ""),
            f"{each.a:.3g}",
            f"{each.b:.3g}",
            f"{each.difference:+.3g}",
            f"{each.low:+.3g} to {each.high:+.3g}",
        ]
        for each in comparison.metrics
        if each.difference is not None and each.low is not None and each.high is not None
    ]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _minute(at: datetime | None) -> str:
    return "–" if at is None else f"{at:%Y-%m-%d %H:%M} UTC"


def sparkline(values: Sequence[float | None]) -> str:
    """Return a line of bars, one for each value; a gap where there is none."""
    bars = "▁▂▃▄▅▆▇█"
    most = max([value for value in values if value is not None], default=0)
    if most <= 0:
        return "".join([" " if value is None else bars[0] for value in values])
    return "".join(
        [" " if value is None else bars[min(7, int(value / most * 7.999))] for value in values]
    )


def bar(share: float, width: int) -> str:
    """Return a bar of this share of the width, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


# --- the page -------------------------------------------------------------------------------------

_STYLE: Final = """
:root{--ink:#1c2430;--soft:#66717f;--line:#d9dee5;--paper:#fff;--card:#f7f8fa;--blue:#2563a8;
--red:#b3362a;--amber:#9a6500}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#98a3b1;--line:#333c48;
--paper:#14181e;--card:#1c222a;--blue:#6ea8e0;--red:#e5786d;--amber:#d9a441}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}main{max-width:1180px;margin:0 auto;padding:24px}
h1{font-size:24px;margin:0}h2{font-size:16px;margin:32px 0 8px}p{margin:4px 0}
.soft{color:var(--soft)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:16px}
.plot{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
.plot b{font-weight:600}.plot span{float:right;color:var(--soft)}
svg{display:block;width:100%;height:auto;margin-top:8px}
.ends{display:flex;justify-content:space-between;font-size:13px}i{font-style:normal}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--soft)}th:first-child,td:first-child{text-align:left;
max-width:320px;overflow:hidden;text-overflow:ellipsis}
.note{border-left:4px solid var(--amber);background:var(--card);padding:8px 12px;margin:8px 0}
.note.bad{border-color:var(--red)}.note small{color:var(--soft);overflow-wrap:anywhere}
th::first-letter,h1::first-letter{text-transform:uppercase}
"""


def html_page(report: FleetReport) -> str:
    """Return one self-contained page: no script, nothing from elsewhere, plots as SVG."""
    of = "all apps" if report.app is None else report.app
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>{_text(of)}: sessions</title><style>{_STYLE}</style><main>",
        f"<h1>{_text(of)}</h1>",
        f"<p class=soft>{report.sessions:,} sessions · {report.at:%Y-%m-%d %H:%M} UTC</p>",
        _notes(report),
        "<h2>The last hours (UTC)</h2><div class=plots>",
        *[_plot(report.windows, column, title) for column, title, _ in SERIES],
        "</div>",
    ]
    for name, table in report.groups.items():
        parts += [f"<h2>{TITLES[name]}</h2>", _table(name, table)]
    if report.drift:
        parts += ["<h2>Drift from version to version</h2>", *map(_drift, report.drift)]
    return "".join([*parts, "</main></html>\n"])


def _notes(report: FleetReport) -> str:
    notes = [
        f"<p class='note{' bad' if note.bad else ''}'>{_text(note.text)}"
        f"{''.join([f'<br><small>{_text(str(key))}</small>' for key in note.named])}</p>"
        for note in report.notes
    ]
    if not notes:
        return "<p>Nothing is out of the ordinary.</p>"
    return "<h2>What to look at</h2>" + "".join(notes)


def _table(name: str, table: Table) -> str:
    columns = COLUMNS[name]
    head = "".join([f"<th>{_text(title)}</th>" for _, title in columns])
    rows = "".join(
        [
            "<tr>"
            + "".join([f"<td>{_text(shown(column, row[column]))}</td>" for column, _ in columns])
            + "</tr>"
            for row in table.rows
        ]
    )
    if not rows:
        rows = f"<tr><td colspan={len(columns)} class=soft>nothing yet</td></tr>"
    return f"<div class=wide><table><tr>{head}</tr>{rows}</table></div>"


def _plot(table: Table, column: str, title: str) -> str:
    values = [row[column] for row in table.rows]
    most = max([value for value in values if value is not None], default=0)
    last = shown(column, values[-1]) if values else "–"
    step = _WIDTH / max(len(values), 12)
    bars = []
    for index, value in enumerate(values):
        if not value:
            continue
        height = max(2.0, value / most * (_HEIGHT - 8))
        name = f"{_moment(table.rows[index]['window'])}: {shown(column, value)}"
        bars.append(
            f"<rect x='{index * step:.1f}' y='{_HEIGHT - height:.1f}' width='{step * 0.8:.1f}' "
            f"height='{height:.1f}' rx=1 fill='var(--blue)'><title>{_text(name)}</title></rect>"
        )
    ends = "<p class='soft ends'>nothing yet</p>"
    if values:
        first, final = (_moment(table.rows[place]["window"]) for place in (0, -1))
        parts = (first, f"most {shown(column, most)}", final)
        ends = f"<p class='soft ends'>{''.join([f'<i>{part}</i>' for part in parts])}</p>"
    return (
        f"<div class=plot><span>{last}</span><b>{_text(title.capitalize())}</b>"
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{_text(title)}, now {last}'>"
        f"{''.join(bars)}<path d='M0 {_HEIGHT - 0.5}H{_WIDTH}' stroke='var(--line)'/></svg>"
        f"{ends}</div>"
    )


def _text(text: str) -> str:
    """Return a text of anybody as text of the page, with what is hidden in it made visible."""
    return escape(_HIDDEN.sub(lambda mark: f"⟦U+{ord(mark[0]):04X}⟧", text))


def _moment(window: str) -> str:
    """Return the name of a window for people: an hour without its year."""
    return f"{datetime.fromisoformat(window):%b %-d, %H:%M}" if "T" in window else window


def _drift(comparison: Comparison) -> str:
    rows = [
        f"<tr>{''.join([f'<td>{_text(text)}</td>' for text in row])}</tr>"
        for row in drift_rows(comparison)
    ]
    title = f"{comparison.a} → {comparison.b}"
    head = "".join([f"<th>{title}</th>" for title in DRIFT_COLUMNS])
    return (
        f"<p>{_text(title)} <span class=soft>● the interval leaves out zero</span></p>"
        f"<div class=wide><table><tr>{head}</tr>{''.join(rows)}</table></div>"
    )
