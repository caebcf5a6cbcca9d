"""A body that cannot be read for a moment: nothing is decided without it, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Any

import pytest

import limpet
from limpet import Key, Limpet, State
from limpet.errors import SessionCorrupt
from limpet.store.protocol import Place
from limpet.testing.commits import addition, draft
from tests.support.seal import FixedKeySeal

pytestmark = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
KEY = Key("a", "u", "one")


class Moody(FixedKeySeal):
    """A seal that does not open what `refuses` names: a key server that is away for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[Place], bool] = lambda place: False

    def open(self, sealed: bytes, place: Place) -> bytes:
        if self.refuses(place):
            raise ConnectionError("the key server is away")
        return super().open(sealed, place)

    def forget(self, id: str) -> None:
        self.refuses = lambda place: place.id == id

    def recover(self) -> None:
        self.refuses = lambda place: False


@pytest.fixture
def seal() -> Moody:
    return Moody()


@pytest.fixture
async def mine(url: str, seal: Moody) -> AsyncIterator[Limpet]:
    """The process whose seal is moody."""
    async with limpet.open(url, seal=seal) as opened:
        yield opened


@pytest.fixture
async def other(url: str, mine: Limpet) -> AsyncIterator[Limpet]:
    """Another process, with which all is well."""
    async with limpet.open(url, seal=FixedKeySeal()) as opened:
        yield opened


class Counting(State):
    n: int = 0
    tags: Annotated[list[str], limpet.reducers.dedupe_append()] = []


async def raised(other: Limpet, **how: Any) -> None:
    """Somebody else's acknowledged change, under an id that the seal can be told of."""
    await other.session(KEY, actor="b").append("a.raised", id="raised", **how)


async def test_a_plain_event_does_not_make_a_hole_last(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """What was folded while a body was unreadable is not what later updates are judged on."""
    await other.create("a", "u", id="one", state={"n": 0})
    await raised(other, set={"n": 5})
    seal.forget("raised")
    s = mine.session(KEY, actor="a")
    await s.append("a.noted")  # looks at nothing, so it is recorded
    assert s.history.damaged == (2,)
    seal.recover()
    await s.update(lambda state: {"n": state["n"] + 1})
    assert (await other.get(KEY)).state["n"] == 6
    assert s.history.damaged == ()
    assert (await other.maintenance.verify()).ok


async def test_an_update_is_not_decided_without_a_body(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """Neither the first try nor, after a conflict, the next one is made on a state with a hole."""
    await other.create("a", "u", id="one", state={"n": 0})
    await raised(other, set={"n": 5})
    seal.forget("raised")
    s = mine.session(KEY, actor="a")
    with pytest.raises(SessionCorrupt):
        await s.update(lambda state: {"n": state["n"] + 1})
    seal.recover()
    await s.update(lambda state: {"n": state["n"] + 1})
    assert (await other.get(KEY)).state["n"] == 6


@pytest.mark.parametrize("attempt", [1, 2, 3])
async def test_a_retry_is_not_made_on_a_state_with_a_hole(
    url: str, seal: Moody, other: Limpet, attempt: int
) -> None:
    """A body that becomes unreadable between two tries stops the update; nothing is recorded."""
    await other.create("a", "u", id="one", state={"n": 0})
    async with limpet.open(url, seal=seal) as lp:
        inner = lp._journal.store
        lp._journal._store = Overtaken(inner, other, seal, attempt)  # type: ignore[assignment]
        s = lp.session(KEY, actor="a")
        seen: list[int] = []

        def change(state: Mapping[str, Any]) -> dict[str, Any]:
            seen.append(state["n"])
            return {"n": state["n"] + 1}

        with pytest.raises(SessionCorrupt):
            await s.update(change)
        assert seen == [100 * n for n in range(attempt)]
        lp._journal._store = inner
    now = await other.get(KEY)
    assert now.state["n"] == 100 * attempt
    assert not await now.read(types=["state.updated"])
    assert (await other.maintenance.verify()).ok


class Overtaken:
    """A store before which another writer is always faster; the nth time it cannot be read."""

    def __init__(self, inner: Any, other: Limpet, seal: Moody, attempt: int) -> None:
        self._inner, self._other, self._seal, self._attempt = inner, other, seal, attempt
        self._tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, commits: Any) -> Any:
        self._tries += 1
        id = f"faster-{self._tries}"
        faster = self._other.session(KEY, actor="b")
        await faster.append("a.raised", id=id, inc={"n": 100})
        try:
            return await self._inner.commit(commits)
        finally:
            if self._tries == self._attempt:
                self._seal.forget(id)


async def test_an_operation_recorded_beside_a_hole_counts_when_the_body_is_back(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """An unreadable event does not stop a session, and nothing of either is lost."""
    await other.create("a", "u", id="one", state={"n": 0, "items": [0]})
    await raised(other, inc={"n": 5}, add={"items": [1]})
    seal.forget("raised")
    s = mine.session(KEY, actor="a")
    await s.append("a.changed", inc={"n": 1}, add={"items": [2]})
    assert s.history.damaged == (2,)
    seal.recover()
    now = await other.get(KEY)
    assert (now.state["n"], now.state["items"], now.history.damaged) == (6, [0, 1, 2], ())
    assert (await mine.get(KEY)).state == now.state
    assert (await other.maintenance.verify()).ok


async def test_the_store_itself_judges_no_guard_on_a_hole(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """Guards that reach the store while a body is unreadable are refused there."""
    await other.create("a", "u", id="one", state={"n": 0})
    await raised(other, set={"n": 5})
    seal.forget("raised")
    store = mine._journal.store
    for guards in ({"n": 1}, {"n": 2}):
        with pytest.raises(SessionCorrupt):
            await store.commit([addition(KEY, draft(set={"n": 1}), guards=guards)])
    seal.recover()
    with pytest.raises(limpet.SessionConflict):
        await store.commit([addition(KEY, draft(set={"n": 1}), guards={"n": 1})])
    await store.commit([addition(KEY, draft(set={"n": 1}), guards={"n": 2})])


async def test_typed_state_is_not_changed_without_a_body(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """Neither apply nor append nor a commit block plans on a class's state with a hole."""
    made = await other.create("a", "u", id="one", state=Counting(), actor="b")
    await made.apply({"tags": ["x"]}, type="a.raised", id="raised")
    seal.forget("raised")
    s = await mine.get(KEY, state_type=Counting, actor="a")
    with pytest.raises(SessionCorrupt):
        await s.apply({"tags": ["x", "y"]})
    with pytest.raises(SessionCorrupt):
        await s.append("a.b", set={"n": 5})
    with pytest.raises(SessionCorrupt):
        async with mine.commit() as c:
            c.apply(s, {"tags": ["x"]})
    with pytest.raises(SessionCorrupt):
        await s.update(lambda state: {"n": len(state.tags)})
    seal.recover()
    await s.apply({"tags": ["x", "y"]})  # it is read again by itself
    await s.append("a.b", set={"n": 1})
    assert (await other.get(KEY, state_type=Counting)).state == Counting(n=1, tags=["x", "y"])


async def test_what_was_applied_before_is_found_though_a_body_is_missing(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """A repeated id gives the first record, which needs no state."""
    made = await other.create("a", "u", id="one", state=Counting(), actor="b")
    first = await made.apply({"n": 1}, type="a.counted", id="counted")
    await made.apply({"tags": ["x"]}, type="a.raised", id="raised")
    seal.forget("raised")
    s = await mine.get(KEY, state_type=Counting, actor="b")
    assert await s.apply({"n": 1}, type="a.counted", id="counted") == first
    assert await s.append("a.counted", set={"n": 1}, id="counted") == first


async def test_an_object_knows_that_a_commit_told_it_a_state_with_a_hole(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """Loaded whole, then shown a commit's state without a body: the next decision reads again."""
    made = await other.create("a", "u", id="one", state=Counting(), actor="b")
    s = await mine.get(KEY, state_type=Counting, actor="a")
    await made.apply({"tags": ["x"]}, type="a.raised", id="raised")
    seal.forget("raised")
    await s.append("a.noted")
    assert s.history.damaged == (2,)
    seal.recover()
    await s.apply({"tags": ["x", "y"]})
    assert (s.state.tags, s.history.damaged) == (["x", "y"], ())


@pytest.mark.parametrize("name", ["app:n", "user:n"])
@pytest.mark.parametrize(
    "look", [lambda state, name: state.get(name, 0), lambda state, _: _sum(state)]
)
async def test_a_shared_name_that_cannot_be_read_is_not_computed_over(
    mine: Limpet, other: Limpet, seal: Moody, name: str, look: Any
) -> None:
    """An update that looked at it is refused, and its acknowledged value stays."""
    await other.create("a", "u", id="one", state={name: 5})
    seal.refuses = lambda place: place.kind == "scope"
    s = mine.session(KEY, actor="a")
    with pytest.raises(SessionCorrupt):
        await s.update(lambda state: {name: look(state, name) + 1})
    seal.recover()
    await s.update(lambda state: {name: look(state, name) + 1})
    assert (await other.get(KEY)).state[name] == 6


def _sum(state: Mapping[str, Any]) -> int:
    return sum(state.values())


async def test_a_tail_that_could_not_be_read_is_read_again(
    mine: Limpet, other: Limpet, seal: Moody
) -> None:
    """The store remembers no damaged event once it can be read."""
    await other.create("a", "u", id="one", state={"n": 0})
    await raised(other, set={"n": 5})
    seal.forget("raised")
    assert (await mine.get(KEY)).history.damaged == (2,)
    newest = (await mine.session(KEY).read(reverse=True, limit=5))[0]
    assert newest.damage is not None
    seal.recover()
    assert (await mine.get(KEY)).history.damaged == ()
    assert (await mine.session(KEY).read(reverse=True, limit=5))[0].damage is None
