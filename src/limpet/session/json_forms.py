"""The JSON forms of what doors hand out: events, heads, pages, reports and errors.

The command line writes them now; every other door writes the same. Times are ISO 8601 in UTC, a key
is an object with app, user and id, and bytes are hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import LimpetError
from limpet.model import Event, Head, Key, deadline_us, runnable_us, to_time, to_us
from limpet.store.protocol import Page, Report

if TYPE_CHECKING:
    from limpet.model.diff.diff import Diff
    from limpet.session.history.branches import Lineage
    from limpet.session.relations import SessionGraph
    from limpet.session.runs.delegation import Kin
    from limpet.session.runs.promotion import Proposal

BRIEF_CHARS_MAX: Final = 6_000  # of an event in a list
_QUOTES, _BRACKETS = 4, 8  # the room around a text, and that of brackets or a number
_NAMES_MAX: Final = 64  # of an event's data, for its shortest fields to be kept


def key_form(key: Key) -> dict[str, str]:
    return {"app": key.app, "user": key.user, "id": key.id}


def time_form(at_us: int | None) -> str | None:
    return None if at_us is None else to_time(at_us).isoformat()


def event_form(event: Event) -> dict[str, Any]:
    """An event. `data` is null if its body cannot be read, and `damage` says why."""
    return {
        "seq": event.seq,
        "id": event.id,
        "type": event.type,
        "actor": event.actor,
        "at": time_form(event.at_us),
        "data": event.data,
        "ops": msgspec.to_builtins(event.ops),
        "cause": event.cause,
        "invocation_id": event.invocation_id,
        "correlation_id": event.correlation_id,
        "wake_id": event.wake_id,
        "processed": event.processed,
        "processed_at": time_form(event.processed_us),
        "link": event.link.hex(),
        "partial": event.partial,
        "attempt": event.attempt,
        "repeated": event.repeated,
        "damage": event.damage,
        "removed": event.removed,
    }


def brief_event_form(event: Event) -> dict[str, Any]:
    """An event for a list: long texts and lists are cut, and `brief` is true if any was.

    Every field is there, and what is short is whole: beside a long text its usage, and that a
    result is an error.
    """
    form, room = event_form(event), [BRIEF_CHARS_MAX]
    data, ops = _cut_fields(form["data"], room), _cut(form["ops"], room)
    return {**form, "data": data, "ops": ops, "brief": room[0] < 0}


def _cut_fields(data: Any, room: list[int]) -> Any:
    """The data of an event, its shortest fields first; of very many fields, the first ones."""
    if not isinstance(data, Mapping) or len(data) > _NAMES_MAX:
        return _cut(data, room)
    names = {name: _cut(name, room) for name in data}
    shortest = sorted(data, key=lambda name: _weight(data[name], BRIEF_CHARS_MAX))
    cut = {name: _cut(data[name], room) for name in shortest}
    return {names[name]: cut[name] for name in data}


def _cut(value: Any, room: list[int]) -> Any:
    """The value with as much text as there is room for; below zero: something was left out."""
    if isinstance(value, str):
        left, room[0] = max(0, room[0]), room[0] - len(value) - _QUOTES
        return value[:left]
    room[0] -= _BRACKETS
    if isinstance(value, Mapping):
        items = []
        for name, each in value.items():
            if room[0] < 0:
                break
            items.append((_cut(name, room), _cut(each, room)))
        return dict(items)
    if isinstance(value, list | tuple):
        cut = []
        for each in value:
            if room[0] < 0:
                break
            cut.append(_cut(each, room))
        return cut
    return value


def _weight(value: Any, most: int) -> int:
    """The room that a value takes; beyond `most` it is counted no further."""
    if isinstance(value, str):
        return len(value) + _QUOTES
    weight = _BRACKETS
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = (part for item in value.items() for part in item)
    elif isinstance(value, list | tuple):
        inner = value
    for each in inner:
        if weight > most:
            break
        weight += _weight(each, most - weight)
    return weight


def head_form(head: Head) -> dict[str, Any]:
    """Return the form of a head."""
    timers = {name: {"at": time_form(t.at_us), "kind": t.kind} for name, t in head.timers.items()}
    return {
        "session": key_form(head.key),
        "uid": head.uid,
        "version": head.version,
        "phase": None if head.deleted_us is not None else head.phase,
        "link": head.link.hex(),
        "created_at": time_form(head.created_us),
        "updated_at": time_form(head.updated_us),
        "active_at": time_form(head.active_us),
        "deleted_at": time_form(head.deleted_us),
        "labels": head.labels,
        "pending": head.pending,
        "timers": timers,
        "priority": head.priority,
        "schema_version": head.schema_version,
        "due_at": time_form(runnable_us(head)),
        "deadline_at": time_form(deadline_us(head)),
        "worker": head.worker,
        "fence": head.fence,
        "lease_until": time_form(head.lease_us),
    }


def page_form(page: Page[Head]) -> dict[str, Any]:
    """A page of heads, with the states that were asked for, and where the next one begins."""
    items = []
    for head in page.items:
        state = {"state": page.states[head.key]} if head.key in page.states else {}
        items.append({**head_form(head), **state})
    damaged = [key_form(key) for key in page.damaged]
    return {"items": items, "cursor": page.cursor, "damaged": damaged}


def report_form(report: Report) -> dict[str, Any]:
    """Return what a verification read and found; internal logs are counted where there are such."""
    return {
        "ok": report.ok,
        "sessions": report.sessions,
        **({"internal": report.internal} if report.internal else {}),
        "events": report.events,
        "findings": [
            {
                "where": finding.where,
                "problem": finding.problem,
                "session": None if finding.key is None else key_form(finding.key),
                "seq": finding.seq,
            }
            for finding in report.findings
        ],
    }


def changes_form(changed: Diff) -> list[dict[str, Any]]:
    """The differences between two states."""
    return [
        {"path": list(c.path), "kind": c.kind, "old": c.old, "new": c.new} for c in changed.changes
    ]


def lineage_form(family: Lineage) -> dict[str, Any]:
    """A session among its forks and the sessions that it is a fork of."""
    merges = [{"session": key_form(m.key), "at": m.at, "seq": m.seq} for m in family.merges]
    return {
        "session": key_form(family.key),
        "at": family.at,
        "parent": None if family.parent is None else lineage_form(family.parent),
        "forks": [lineage_form(fork) for fork in family.forks],
        "merges": merges,
    }


def graph_form(graph: SessionGraph) -> dict[str, Any]:
    """Connected sessions, and their edges."""
    return {
        "nodes": [
            {
                "session": key_form(n.key),
                "phase": n.phase,
                "forked_at": n.forked_at,
                "moved_to": n.moved_to,
            }
            for n in graph.nodes
        ],
        "edges": [
            {"source": key_form(e.source), "target": key_form(e.target), "kind": e.kind}
            for e in graph.edges
        ],
        "truncated": graph.truncated,
    }


def proposal_form(proposal: Proposal) -> dict[str, Any]:
    """Return what a session proposed to remember, and how it was decided."""
    return {
        "id": proposal.id,
        "to": proposal.to,
        "text": proposal.text,
        "session": key_form(proposal.provenance),
        "confidence": proposal.confidence,
        "at": time_form(to_us(proposal.at)),
        "actor": proposal.actor,
        "status": proposal.status,
        "reason": proposal.reason,
        "decided_by": proposal.decided_by,
    }


def kin_form(kin: Kin) -> dict[str, Any]:
    """A session with all that were delegated from it."""
    form = {"session": key_form(kin.key), "title": kin.title, "stop_reason": kin.stop_reason}
    more = {"summary": kin.summary, "output": kin.output, "gone": kin.gone}
    return {**form, **more, "children": [kin_form(each) for each in kin.children]}


def error_form(error: LimpetError) -> dict[str, Any]:
    """An error by its stable code, its words, whether a retry helps, and its documentation."""
    form = {"code": error.code, "message": str(error), "retryable": error.retryable}
    return {**form, "docs": error.page}
