"""lp.commit(): several sessions, all or nothing."""

from __future__ import annotations

import pytest

import limpet
from limpet import Draft, Limpet, Session, errors
from tests.support.views import shown, stored


@pytest.fixture
async def other(lp: Limpet) -> Session:
    return await lp.create("support", "bob", id="two", state={"n": 10, "temp:t": 0})


async def test_everything_is_recorded_at_the_end_of_the_block(
    lp: Limpet, s: Session, other: Session
) -> None:
    """Nothing before it; then all of it, in the order of the appends, on every object."""
    before = await stored(lp)
    async with lp.commit() as c:
        c.append(s, "x.one", {"n": 1}, actor="x", inc={"n": 1, "app:a": 1}, set={"temp:t": 7})
        c.append(other, "x.two", {"n": 2}, actor="x", inc={"n": 1, "app:a": 1})
        c.append(s, "x.three", actor="x", inc={"n": 1}, id="own", trace=limpet.Trace(cause="c"))
        assert await stored(lp) == before
        assert c.events == ()
    assert [(e.type, e.seq) for e in c.events] == [("x.one", 3), ("x.two", 2), ("x.three", 4)]
    assert (s.version, s.state["n"], s.state["temp:t"]) == (4, 2, 7)
    assert (other.version, other.state["n"], other.state["app:a"]) == (2, 11, 3)
    assert [e.seq for e in s.events] == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", ["op", "expect", "deleted", "missing", "temp"])
async def test_one_wrong_append_records_nothing(
    lp: Limpet, s: Session, other: Session, wrong: str
) -> None:
    """Neither in the store nor on any of the objects, whatever was wrong."""
    gone = await lp.create("support", "eve")
    await lp.delete(gone.key)
    before = await stored(lp), shown(s), shown(other)
    more, error = {
        "op": ((other, {"add": {"n": [1]}}), errors.OpTypeMismatch),
        "expect": ((other, {"expect": 9}), errors.SessionConflict),
        "deleted": ((gone, {}), errors.SessionDeleted),
        "missing": ((lp.session(("a", "b", "c")), {}), errors.SessionNotFound),
        "temp": ((other, {"add": {"temp:t": [1]}}), errors.OpTypeMismatch),
    }[wrong]
    with pytest.raises(error):  # noqa: PT012  # the error comes at the end of the block
        async with lp.commit() as c:
            c.append(s, "x.y", actor="x", inc={"n": 1}, set={"temp:t": 9, "app:a": 9})
            c.append(more[0], "x.y", actor="x", **more[1])
    assert (await stored(lp), shown(s), shown(other)) == before
    assert c.events == ()


async def test_an_exception_in_the_block_records_nothing(lp: Limpet, s: Session) -> None:
    """The block's own exception passes through, and what was gathered is dropped."""
    before = await stored(lp), shown(s)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
        async with lp.commit() as c:
            c.append(s, "x.y", actor="x", set={"n": 9})
            _ = 1 / 0
    assert (await stored(lp), shown(s)) == before


async def test_a_bad_append_is_told_on_its_own_line(lp: Limpet, s: Session) -> None:
    """What is wrong whatever the state raises at once, and the commit may go on without it."""
    async with lp.commit() as c:
        with pytest.raises(errors.InvalidValue):
            c.append(s, "x.y", {"v": b""}, actor="x")
        with pytest.raises(errors.ActorMissing):
            c.append(s, "x.y")
        c.append(s, "x.y", actor="x")
    assert s.version == 3
    assert len(c.events) == 1


async def test_expect_is_compared_once_per_session(lp: Limpet, s: Session) -> None:
    """It is the version before the commit; two different ones make no sense."""
    async with lp.commit() as c:
        c.append(s, "x.y", actor="x", expect=2)
        c.append(s, "x.y", actor="x", expect=2)
    assert s.version == 4
    with pytest.raises(errors.InvalidInput):  # noqa: PT012  # the error comes at the end
        async with lp.commit() as c:
            c.append(s, "x.y", actor="x", expect=4)
            c.append(s, "x.y", actor="x", expect=5)
    assert s.version == 4


async def test_a_commit_is_over_when_its_block_is(lp: Limpet, s: Session) -> None:
    """Appending to it afterwards is an error, and nothing is lost in silence."""
    async with lp.commit() as c:
        pass
    assert c.events == ()
    with pytest.raises(errors.InvalidInput):
        c.append(s, "x.y", actor="x")


async def test_two_objects_of_one_session_share_a_commit(lp: Limpet, s: Session) -> None:
    """Both see both events, each with its own temp: names."""
    twin = await lp.get(s.key)
    async with lp.commit() as c:
        c.append(s, "x.y", actor="x", set={"temp:mine": 1})
        c.append(twin, "x.y", actor="x", inc={"n": 1})
    assert [e.seq for e in c.events] == [3, 4]
    assert (s.version, twin.version, s.state["n"], twin.state["n"]) == (4, 4, 1, 1)
    assert "temp:mine" in s.state
    assert "temp:mine" not in twin.state


async def test_a_repeat_in_a_commit_returns_the_first_record(
    lp: Limpet, s: Session, other: Session
) -> None:
    """A retried commit of several sessions changes nothing."""
    for _ in range(2):
        async with lp.commit() as c:
            c.append(s, "x.y", actor="x", id="r1", inc={"n": 1})
            c.append(other, "x.y", actor="x", id="r2", inc={"n": 1})
        assert [e.seq for e in c.events] == [3, 2]
    assert (s.state["n"], other.state["n"]) == (1, 11)


async def test_a_commit_over_too_many_sessions_is_refused(lp: Limpet) -> None:
    """The bound is told before anything is written."""
    with pytest.raises(errors.CommitTooLarge):  # noqa: PT012  # the error comes at the end
        async with lp.commit() as c:
            for n in range(1_001):
                c.append(lp.session(("a", "u", str(n)), actor="x"), "x.y")
    assert (await lp.list()).items == ()


async def test_a_session_of_another_instance_is_refused(lp: Limpet, s: Session) -> None:
    """All or nothing holds within one store, so a session of another one has no place here."""
    async with limpet.open("memory://") as elsewhere:
        stranger = await elsewhere.create("support", "ada", id="one")
        with pytest.raises(errors.InvalidInput):  # noqa: PT012  # at once or at the end
            async with lp.commit() as c:
                c.append(s, "x.y", actor="x")
                c.append(stranger, "x.y", actor="x")
        assert (s.version, stranger.version) == (2, 1)


async def test_a_commit_of_drafts_is_no_second_way(lp: Limpet, s: Session) -> None:
    """The same append through append, append_many and commit leaves equal events."""
    await s.append("x.y", {"k": 1}, actor="x", set={"n": 1})
    await s.append_many([Draft(type="x.y", data={"k": 1}, actor="x", set={"n": 1})])
    async with lp.commit() as c:
        c.append(s, "x.y", {"k": 1}, actor="x", set={"n": 1})
    said = {(e.type, e.actor, e.data, e.ops) for e in await s.read(after=2)}
    assert len(said) == 1
