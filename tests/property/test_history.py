"""Laws of history, on random logs: states of then, rewinds, merges, bisect, and ends of parents."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given

import limpet
from limpet import LimpetError
from limpet.model.fold import Fold, replay
from limpet.model.head import blank
from limpet.model.values import canonical
from limpet.session.writer import writer_of
from limpet.store.postgres.writing import lane
from limpet.store.sqlite import writer
from tests.property.strategies import append_arguments, drafts, values
from tests.support import postgres
from tests.support.examples import examples

logs = st.lists(drafts(temp=False), min_size=1, max_size=12)
changes = st.dictionaries(st.sampled_from("abc"), values, max_size=2)
Made = limpet.Session[Any]


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[limpet.Limpet]:
    """A store; that in a file writes a snapshot after every event, a ladder of many rungs."""
    with tempfile.TemporaryDirectory() as folder:
        url = "memory://" if kind == "memory" else f"sqlite:///{Path(folder)}/s.db?sync=off"
        with mock.patch.object(writer, "SNAPSHOT_FLOOR_BYTES", 1):
            async with limpet.open(url.replace("sync=off", "sync=normal")) as lp:
                yield lp


def run(kind: str, law: Callable[[limpet.Limpet], Awaitable[None]]) -> None:
    async def within() -> None:
        async with opened(kind) as lp:
            await law(lp)
            assert (await lp.maintenance.verify()).findings == ()

    asyncio.run(within())


async def recorded(lp: limpet.Limpet, log: list[dict[str, Any]]) -> Made:
    s = await lp.create("shop", "ada", actor="test:history")
    for number, draft in enumerate(log):
        draft = append_arguments({**draft, "id": f"e{number}"})
        try:
            await s.append(draft.pop("type"), draft.pop("data"), **draft)
        except LimpetError:
            continue
    return s


def same(one: Any, other: Any) -> bool:
    return canonical(one) == canonical(other)


# --- the laws ------------------------------------------------------------------------------------


async def states_of_then(lp: limpet.Limpet, log: list[dict[str, Any]]) -> None:
    s = await recorded(lp, log)
    fold = Fold(blank(s.key, s.head.uid, s.head.created_us))
    for event in await s.read():
        fold = replay(fold, event)
        assert same(await s.history.at(event.seq), fold.fields)
    assert same(fold.fields, writer_of(s).known.fields)


async def rewinds(lp: limpet.Limpet, log: list[dict[str, Any]], back: int) -> None:
    s = await recorded(lp, log)
    last = s.version
    then, now = await s.history.at(min(back, last)), await s.history.at(last)
    await s.rewind(min(back, last))
    assert same(writer_of(s).known.fields, then)
    assert (await s.rewind(min(back, last))).event is None
    await s.rewind(last)
    assert same(writer_of(s).known.fields, now)
    assert same(writer_of(await lp.get(s.key)).known.fields, now)


async def merges(
    lp: limpet.Limpet, log: list[dict[str, Any]], one: Any, other: Any, at: int
) -> None:
    s = await recorded(lp, log)
    place = min(at, s.version)
    left, right = await s.fork(place), await s.fork(place)
    assert (await left.merge(right)).event is None
    await left.append("agent.did", set={f"l{name}": v for name, v in one.items()})
    await right.append("agent.did", set={f"r{name}": v for name, v in other.items()})
    first, second = await s.fork(place), await s.fork(place)
    await first.merge(left)
    await first.merge(right)
    await second.merge(right)
    await second.merge(left)
    assert same(writer_of(first).known.fields, writer_of(second).known.fields)


async def bisects(lp: limpet.Limpet, length: int, planted: int) -> None:
    s = await lp.create("shop", "ada", actor="test:history", state={"total": 0})
    for number in range(1, length + 1):
        await s.append("agent.did", set={"total": -1 if number >= planted else number})
    asked: list[Any] = []
    found = await s.history.bisect(lambda state: asked.append(state) or state["total"] >= 0)  # type: ignore[func-returns-value]
    assert len(asked) <= math.ceil(math.log2(length + 1)) + 1
    assert (found and found.seq) == (planted + 1 if planted <= length else None)


async def forks(
    lp: limpet.Limpet, log: list[dict[str, Any]], ats: list[int], *, keep: bool
) -> None:
    line = [await recorded(lp, log)]
    for at in ats:
        line.append(await line[-1].fork(min(at, line[-1].version)))
        await line[-1].append("agent.did", set={"n": at})
    states = {s.key: (s.version, writer_of(s).known.fields) for s in line}
    assert (await lp.maintenance.verify()).ok
    for s in line[:-1]:
        if keep:
            await lp._journal.store.erase(s.key, forks="keep")
        else:
            await lp.delete(s.key)
        left = await lp.get(line[-1].key)
        version, fields = states[left.key]
        assert (left.version, same(writer_of(left).known.fields, fields)) == (version, True)
        assert len(await left.read()) == version


async def blames(lp: limpet.Limpet, log: list[dict[str, Any]], name: str) -> None:
    s = await recorded(lp, log)
    events = [e for e in await s.read() if any(op.path[0] == name for op in e.ops)]
    found = dict.fromkeys([each.event.seq for each in await s.history.blame((name,))])
    assert list(found) == [event.seq for event in reversed(events)]


# --- on every store ------------------------------------------------------------------------------

STORES = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@STORES
@examples(90)
@given(log=logs)
def test_a_state_of_then_is_the_fold_of_the_first_events(
    kind: str, log: list[dict[str, Any]]
) -> None:
    """For every event; after the last it is the state."""

    run(kind, lambda lp: states_of_then(lp, log))


@STORES
@examples(60)
@given(log=logs, back=st.integers(1, 13))
def test_a_rewind_restores_exactly_and_can_be_rewound(
    kind: str, log: list[dict[str, Any]], back: int
) -> None:
    """To any event and back, by canonical bytes; shared names of one session go along."""

    run(kind, lambda lp: rewinds(lp, log, back))


@examples(60)
@given(log=logs, one=changes, other=changes, at=st.integers(1, 13))
def test_disjoint_merges_commute_and_nothing_changes_nothing(
    log: list[dict[str, Any]], one: dict[str, Any], other: dict[str, Any], at: int
) -> None:
    """In either order two forks give one state; a fork without changes records nothing."""

    run("memory", lambda lp: merges(lp, log, one, other, at))


@examples(60)
@given(length=st.integers(1, 40), planted=st.integers(1, 40))
def test_bisect_finds_a_planted_bug(length: int, planted: int) -> None:
    """The very event, in at most ceil(log2 n) + 1 states."""

    run("memory", lambda lp: bisects(lp, length, planted))


@STORES
@examples(45)
@given(log=logs, ats=st.lists(st.integers(1, 12), min_size=1, max_size=3), keep=st.booleans())
def test_forks_of_forks_outlive_their_parents(
    kind: str, log: list[dict[str, Any]], ats: list[int], keep: bool
) -> None:
    """Deleting the parents, or erasing them and keeping forks, never changes a fork's state."""

    run(kind, lambda lp: forks(lp, log, ats, keep=keep))


@STORES
@examples(60)
@given(log=logs, name=st.sampled_from(["a", "b", "list", "dict", "n"]))
def test_blame_of_a_field_is_every_event_with_an_operation_on_it(
    kind: str, log: list[dict[str, Any]], name: str
) -> None:
    """The newest first, back to the beginning, over deletions too."""

    run(kind, lambda lp: blames(lp, log, name))


@examples(4)
@given(
    log=logs,
    one=changes,
    other=changes,
    ats=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    keep=st.booleans(),
    name=st.sampled_from(["a", "b", "list", "dict", "n"]),
)
def test_the_same_laws_hold_on_postgresql(
    any_postgres: postgres.Server | postgres.Elsewhere,
    log: list[dict[str, Any]],
    one: dict[str, Any],
    other: dict[str, Any],
    ats: list[int],
    keep: bool,
    name: str,
) -> None:
    """On a server, which writes a snapshot after every event, too."""

    async def within() -> None:
        await postgres.cleared(any_postgres.url)
        async with limpet.open(any_postgres.url) as lp:
            await rewinds(lp, log, ats[0])
            await states_of_then(lp, log)
            await merges(lp, log, one, other, ats[0])
            await bisects(lp, len(log), ats[0])
            await forks(lp, log, ats, keep=keep)
            await blames(lp, log, name)
            assert (await lp.maintenance.verify()).findings == ()

    with mock.patch.object(lane, "SNAPSHOT_FLOOR_BYTES", 1):
        asyncio.run(within())
