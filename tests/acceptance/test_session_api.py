"""The session API: every verb and keyword, on every store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import limpet
from limpet import Draft, ops
from limpet.model.limits import TAIL_KEPT
from tests.support.views import shown, stored


async def test_the_example_everyone_starts_from_works(url: str) -> None:
    """The whole tour, in its own order."""
    async with limpet.open(url) as lp:
        s = await lp.create(
            "support",
            "ada",
            id=None,
            state={"user:lang": "en", "step": 0, "count": 0},
            labels={"plan": "gold"},
        )
        e = await s.append(
            "user.message",
            {"text": "hi"},
            actor="user:ada",
            set={"step": 1},
            add={"log": ["hi"]},
        )
        assert (e.seq, e.type, e.data) == (2, "user.message", {"text": "hi"})
        es = await s.append_many(
            [
                Draft(type="agent.message", data={"text": "ho"}, actor="agent:a", set={"step": 2}),
                Draft(type="agent.done", data={}, actor="agent:a", id="done-1"),
            ]
        )
        assert [each.seq for each in es] == [3, 4]
        other = await lp.create("support", "bob")
        async with lp.commit() as c:
            c.append(s, "x.y", {"n": 1}, actor="agent:a")
            c.append(other, "x.y", {"n": 2}, actor="agent:a")
        assert (s.version, other.version) == (5, 2)
        await s.update(lambda state: {"count": state["count"] + 1}, actor="agent:a")
        assert s.key == limpet.Key("support", "ada", s.key.id)
        assert s.version == 6
        assert s.state == {"step": 2, "count": 1, "log": ["hi"], "user:lang": "en"}
        assert [each.seq for each in s.events] == [1, 2, 3, 4, 5, 6]
        assert s.labels == {"plan": "gold"}
        key = s.key
        s = await lp.get(key, tail=20)
        assert s.state["log"] == ["hi"]
        assert await lp.find(("support", "ada", "nobody")) is None
        assert (await lp.get_or_create("support", "ada", id=key.id)).version == 6
        h = lp.session(key, actor="agent:main")
        assert (await h.append("agent.thought")).seq == 7
        evs = await s.read(after=0, limit=100, reverse=False, types=None)
        assert [each.seq for each in evs] == [1, 2, 3, 4, 5, 6, 7]
        page = await lp.list(app="support", user="ada", labels=None, limit=50, cursor=None)
        assert ([head.key for head in page.items], page.cursor) == ([key], None)
        following = s.follow(after=s.version)
        assert (await anext(following)).seq == 7
        await following.aclose()
        await s.refresh()
        assert s.version == 7
        report = await lp.maintenance.verify(key)
        assert report.ok
        assert await lp.delete(key) is True
        assert await lp.erase(key) is not None


# --- create and find -----------------------------------------------------------------------------


async def test_a_made_id_is_unique_and_sorted(lp: limpet.Limpet) -> None:
    """Sessions without a given id get one of their own, in order of creation."""
    ids = [(await lp.create("a", "u")).key.id for _ in range(5)]
    assert ids == sorted(set(ids))


async def test_the_first_event_holds_the_given_state(lp: limpet.Limpet) -> None:
    """Who created it, for whom, with what, is the log's first fact."""
    s = await lp.create("a", "ada", id="1", state={"n": 1, "app:x": 2}, labels={"l": "v"})
    (first,) = s.events
    assert (first.seq, first.type, first.actor) == (1, "session.created", "user:ada")
    assert first.data == {"app": "a", "user": "ada", "id": "1", "labels": {"l": "v"}}
    assert first.ops == (ops.Set(("n",), 1), ops.Set(("app:x",), 2))
    assert (await lp.create("a", "ada", actor="agent:x")).events[0].actor == "agent:x"


async def test_the_longest_key_can_be_used(lp: limpet.Limpet) -> None:
    """Every part may have its full length, without naming an actor."""
    s = await lp.create("a" * 256, "u" * 256, id="i" * 256)
    assert (await lp.get(s.key)).version == 1


async def test_get_gives_state_and_the_tail(lp: limpet.Limpet, s: limpet.Session) -> None:
    """As many of the last events as asked for, and everything else whole."""
    for _ in range(5):
        await s.append("a.b", actor="x", inc={"n": 1})
    for tail in (0, 3, 20):
        got = await lp.get(s.key, tail=tail)
        assert got.events == (s.events[-tail:] if tail else ())
        assert (got.version, got.state["n"], got.labels) == (7, 5, {"plan": "gold"})
    assert (await lp.get(("support", "ada", "one"))).key == s.key


async def test_get_since_a_time(lp: limpet.Limpet, s: limpet.Session) -> None:
    """Events at or after an aware time, of the tail."""
    last = s.events[-1].at
    assert (await lp.get(s.key, since=last)).events[-1] == s.events[-1]
    assert (await lp.get(s.key, since=last + timedelta(microseconds=1))).events == ()


async def test_find_gives_none_for_what_is_not_there(lp: limpet.Limpet) -> None:
    """Never created, deleted and erased alike."""
    for end in ("never", "delete", "erase"):
        s = await lp.create("a", "u", id=end + "x")
        await (lp.delete(s.key) if end == "delete" else lp.erase(s.key))
        assert await lp.find(s.key) is None
    assert await lp.find(("a", "u", "never")) is None


async def test_get_or_create_creates_once(lp: limpet.Limpet) -> None:
    """The given state counts only for the one who creates."""
    one = await lp.get_or_create("a", "u", id="1", state={"by": 1}, labels={"l": "1"}, actor="x")
    two = await lp.get_or_create("a", "u", id="1", state={"by": 2}, labels={"l": "2"}, tail=0)
    assert (one.version, two.version, two.state, two.labels) == (1, 1, {"by": 1}, {"l": "1"})
    assert two.events == ()


async def test_get_or_create_does_not_bring_back_the_dead(lp: limpet.Limpet) -> None:
    """A deleted key stays taken."""
    await lp.get_or_create("a", "u", id="1")
    await lp.delete(("a", "u", "1"))
    with pytest.raises(limpet.errors.SessionDeleted):
        await lp.get_or_create("a", "u", id="1")


# --- append --------------------------------------------------------------------------------------


async def test_every_keyword_of_append_is_recorded(s: limpet.Session) -> None:
    """Names, causes and ids are in the event; every change is in the state."""
    e = await s.append(
        "agent.did",
        {"k": [1]},
        actor="agent:a",
        set={"new": 1},
        merge={"plan": {"done": True}},
        add={"plan2": [1]},
        inc={"n": 2},
        delete=["text"],
        ops=[ops.Cut(("plan", "steps"), 0, 1)],
        id="own",
        trace=limpet.Trace(
            cause=s.events[-1].id, invocation_id="inv", correlation_id="cor", wake_id="wake"
        ),
    )
    assert (e.id, e.cause, e.invocation_id) == ("own", s.events[-2].id, "inv")
    assert (e.correlation_id, e.wake_id, e.actor) == ("cor", "wake", "agent:a")
    assert e.at.tzinfo is UTC
    assert s.state == {
        "n": 2,
        "new": 1,
        "plan": {"steps": [2], "done": True},
        "plan2": [1],
        "app:a": 1,
        "user:u": 2,
        "temp:t": 3,
    }


async def test_the_object_shows_exactly_what_is_stored(
    lp: limpet.Limpet, s: limpet.Session
) -> None:
    """After any append a fresh load shows the same, temp: names apart."""
    await s.append("a.b", {"t": (1, 2)}, actor="x", set={"l": (1, {"y": ()})}, inc={"app:a": 1})
    fresh = shown(await lp.get(s.key))
    mine = shown(s)
    mine["state"].pop("temp:t")
    assert fresh == mine
    assert s.state["l"] == [1, {"y": []}]


async def test_nothing_is_aliased(s: limpet.Session) -> None:
    """Changing what was passed in afterwards changes neither state nor events."""
    data: dict[str, Any] = {"list": [1]}
    await s.append("a.b", data, actor="x", set={"kept": data["list"]}, add={"log": [data]})
    data["list"].append(2)
    assert s.state["kept"] == [1]
    assert s.state["log"] == [{"list": [1]}]
    assert s.events[-1].data == {"list": [1]}


async def test_an_actor_bound_once_stands_for_every_append(lp: limpet.Limpet) -> None:
    """A handle's actor is used where none is named, and only there."""
    key = (await lp.create("a", "u")).key
    h = lp.session(key, actor="agent:main")
    assert (await h.append("a.b")).actor == "agent:main"
    assert (await h.append("a.b", actor="other")).actor == "other"
    (one,) = await h.append_many([Draft(type="a.b")])
    assert one.actor == "agent:main"
    (two,) = await h.append_many([Draft(type="a.b")], actor="third")
    assert two.actor == "third"
    async with lp.commit() as c:
        c.append(h, "a.b")
    assert c.events[0].actor == "agent:main"


async def test_append_rebases_and_expect_is_strict(lp: limpet.Limpet) -> None:
    """Two objects of one session write as they like, unless they expect something."""
    one = await lp.create("a", "u", id="1", state={"n": 0})
    two = await lp.get(one.key)
    await one.append("a.b", actor="x", inc={"n": 1})
    assert (await two.append("a.b", actor="x", inc={"n": 1})).seq == 3
    assert (two.state["n"], two.version) == (2, 3)
    with pytest.raises(limpet.SessionConflict):
        await one.append("a.b", actor="x", expect=one.version)
    await one.refresh()
    assert (await one.append("a.b", actor="x", expect=3)).seq == 4


async def test_a_repeated_id_returns_the_first_record(s: limpet.Session) -> None:
    """A retry changes nothing, whatever it expects."""
    first = await s.append("a.b", {"n": 1}, actor="x", id="r", inc={"n": 1}, expect=2)
    before = shown(s)
    assert await s.append("a.b", {"n": 2}, actor="x", id="r", inc={"n": 1}, expect=2) == first
    assert shown(s) == before


async def test_a_retry_does_not_repeat_temporary_changes(s: limpet.Session) -> None:
    """What the first record did to temp: names is not done again by its repeat."""
    await s.append("a.b", actor="x", id="r", inc={"temp:t": 1})
    await s.append("a.b", actor="x", id="r", inc={"temp:t": 1})
    assert s.state["temp:t"] == 4


async def test_append_many_is_all_or_nothing(lp: limpet.Limpet, s: limpet.Session) -> None:
    """One wrong draft of three and none is recorded."""
    before, there = shown(s), await stored(lp)
    drafts = [
        Draft(type="a.b", actor="x", set={"n": 5, "app:a": 9}),
        Draft(type="a.b", actor="x"),
        Draft(type="a.b", actor="x", add={"text": [1]}),
    ]
    with pytest.raises(limpet.errors.OpTypeMismatch):
        await s.append_many(drafts)
    assert (shown(s), await stored(lp)) == (before, there)
    assert len(await s.append_many(drafts[:2], expect=2)) == 2
    assert await s.append_many([]) == ()


async def test_a_partial_event_is_not_recorded(lp: limpet.Limpet, s: limpet.Session) -> None:
    """It has no seq, and the log, the version and the state know nothing of it."""
    before, there = shown(s), await stored(lp)
    e = await s.append("agent.delta", {"text": "h"}, actor="agent:a", partial=True)
    assert (e.seq, e.partial, e.data) == (0, True, {"text": "h"})
    assert (shown(s), await stored(lp)) == (before, there)


# --- state ---------------------------------------------------------------------------------------


async def test_state_is_one_read_only_view(s: limpet.Session) -> None:
    """Session, app:, user: and temp: names in one mapping that cannot be changed."""
    assert s.state == {
        "n": 0,
        "text": "x",
        "plan": {"steps": [1, 2]},
        "app:a": 1,
        "user:u": 2,
        "temp:t": 3,
    }
    state: Any = s.state
    for change in (
        lambda: state.update(n=1),
        lambda: state.__setitem__("n", 1),
        lambda: state["plan"]["steps"].append(3),
        lambda: state["plan"].pop("steps"),
    ):
        with pytest.raises(TypeError):
            change()
    data: Any = s.events[-1].data
    with pytest.raises(TypeError):
        data["text"] = "changed"


async def test_a_state_once_taken_does_not_change(s: limpet.Session) -> None:
    """It is a value: a later append gives another one."""
    before = s.state
    await s.append("a.b", actor="x", inc={"n": 1}, ops=[ops.Set(("plan", "steps", 0), 9)])
    assert before["n"] == 0
    assert before["plan"] == {"steps": [1, 2]}


async def test_temporary_names_live_on_the_object_only(
    lp: limpet.Limpet, s: limpet.Session
) -> None:
    """Kept over appends and refreshes of this object, unknown to any other."""
    await s.append("a.b", actor="x", set={"temp:x": [1]}, inc={"temp:t": 1})
    await s.refresh()
    assert (s.state["temp:x"], s.state["temp:t"]) == ([1], 4)
    await s.append("a.b", actor="x", delete=["temp:t"])
    assert "temp:t" not in s.state
    assert not [name for name in (await lp.get(s.key)).state if name.startswith("temp:")]
    assert not any("temp:" in str(o.path[0]) for e in await s.read() for o in e.ops)


async def test_scopes_are_seen_anew_by_refresh(lp: limpet.Limpet) -> None:
    """Another session's app: write shows after a refresh, or with one's own write to it."""
    one = await lp.create("a", "ada", state={"app:n": 1})
    two = await lp.create("a", "bob")
    await two.append("a.b", actor="x", inc={"app:n": 1}, set={"user:mine": 1})
    assert one.state["app:n"] == 1
    await one.refresh()
    assert one.state == {"app:n": 2}
    await two.append("a.b", actor="x", inc={"app:n": 1})
    await one.append("a.b", actor="x", inc={"app:n": 1})
    assert one.state["app:n"] == 4


async def test_a_deleted_scope_name_is_gone_for_all(lp: limpet.Limpet) -> None:
    """After a delete nobody sees it, and it may be set again."""
    one = await lp.create("a", "ada", state={"app:n": 1})
    two = await lp.create("a", "bob")
    await two.append("a.b", actor="x", delete=["app:n"])
    assert "app:n" not in two.state
    assert "app:n" not in (await one.refresh()).state
    await one.append("a.b", actor="x", set={"app:n": 5})
    assert (await two.refresh()).state["app:n"] == 5


async def test_update_sets_what_the_function_returns(s: limpet.Session) -> None:
    """Read, compute, commit; returning nothing records nothing."""
    e = await s.update(lambda state: {"n": state["n"] + 5, "user:u": None}, actor="agent:a")
    assert e is not None
    assert (e.type, e.actor, s.state["n"], s.state["user:u"]) == (
        "state.updated",
        "agent:a",
        5,
        None,
    )
    for nothing in (None, {}):
        assert await s.update(lambda _, n=nothing: n, actor="agent:a") is None
    assert s.version == 3


async def test_update_on_a_handle_loads_first(lp: limpet.Limpet, s: limpet.Session) -> None:
    """A handle that has read nothing sees the stored state in its function."""
    h = lp.session(s.key, actor="agent:h")
    await h.update(lambda state: {"n": state["n"] + state["app:a"]})
    assert h.state["n"] == 1


# --- handles and the tail ------------------------------------------------------------------------


async def test_a_handle_needs_no_load(lp: limpet.Limpet, s: limpet.Session) -> None:
    """It appends at once, and says so when asked for what it has not read."""
    h = lp.session(s.key, actor="agent:h")
    for what in ("version", "state", "labels", "head"):
        with pytest.raises(limpet.errors.SessionNotLoaded):
            getattr(h, what)
    assert h.events == ()
    e = await h.append("a.b", inc={"n": 1})
    assert (e.seq, h.version, h.events) == (3, 3, (e,))
    with pytest.raises(limpet.errors.SessionNotLoaded):
        _ = h.state
    await h.refresh()
    assert h.state["n"] == 1
    assert [each.seq for each in h.events] == [1, 2, 3]


async def test_the_tail_has_no_gap(lp: limpet.Limpet, s: limpet.Session) -> None:
    """Whoever wrote in between, `events` is a run of seqs that ends at `version`."""
    other = await lp.get(s.key)
    await other.append("a.b", actor="x")
    await s.append("a.b", actor="x")
    assert [e.seq for e in s.events] == [4]
    await s.append("a.b", actor="x")
    assert [e.seq for e in s.events] == [4, 5]


@pytest.mark.parametrize("ids", [["p"], ["p", "r"], ["p", "r", "new"], ["new", "q"], ["r", "p"]])
async def test_repeats_of_another_writer_leave_a_run_of_seqs(
    lp: limpet.Limpet, s: limpet.Session, ids: list[str]
) -> None:
    """However old and new records mix in an answer, the tail stays sorted, dense and current."""
    other = await lp.get(s.key)
    for id in "pqr":
        await other.append("a.b", actor="x", id=id)
    await s.append_many([Draft(type="a.b", actor="x", id=id) for id in ids])
    for _ in range(2):
        seqs = [e.seq for e in s.events]
        assert seqs == list(range(s.version - len(seqs) + 1, s.version + 1))
        await s.append("a.b", actor="x")


async def test_the_tail_is_bounded(lp: limpet.Limpet) -> None:
    """A long-lived object does not keep the whole log."""
    s = await lp.create("a", "u")
    for _ in range(3):
        await s.append_many([Draft(type="a.b", actor="x")] * TAIL_KEPT)
    assert len(s.events) == TAIL_KEPT
    assert s.events[-1].seq == s.version == 1 + 3 * TAIL_KEPT
    more = await lp.get(s.key, tail=2 * TAIL_KEPT)
    assert len(more.events) == 2 * TAIL_KEPT


# --- reading and listing -------------------------------------------------------------------------


async def test_read_pages_both_ways(s: limpet.Session) -> None:
    """Forwards after a seq, backwards before one, by type and family."""
    await s.append_many([Draft(type=f"a.{n % 2}", actor="x") for n in range(6)])
    assert [e.seq for e in await s.read()] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [e.seq for e in await s.read(after=3, limit=2)] == [4, 5]
    assert [e.seq for e in await s.read(reverse=True, limit=3)] == [8, 7, 6]
    assert [e.seq for e in await s.read(before=6, limit=2)] == [5, 4]
    assert [e.seq for e in await s.read(types=["a.0", "user.*"])] == [2, 3, 5, 7]
    assert [e.seq for e in await s.read(types={"a.*"}, reverse=True, limit=2)] == [8, 7]


async def test_list_pages_heads(lp: limpet.Limpet) -> None:
    """Newest first, by app, user or label, in order of creation or update, page by page."""
    for n in range(5):
        await lp.create("a", ("ada", "bob")[n % 2], id=str(n), labels={"odd": str(n % 2)})
    await lp.session(("a", "ada", "0"), actor="x").append("a.b")

    async def ids(**query: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = await lp.list(limit=2, cursor=cursor, **query)
            found += [head.key.id for head in page.items]
            cursor = page.cursor
            if cursor is None:
                return found

    assert await ids() == ["4", "3", "2", "1", "0"]
    assert await ids(app="a", reverse=False) == ["0", "1", "2", "3", "4"]
    assert await ids(app="a", user="bob") == ["3", "1"]
    assert await ids(app="a", labels={"odd": "0"}) == ["4", "2", "0"]
    assert (await ids(app="a", order="updated"))[0] == "0"
    soon, late = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    assert len(await ids(app="a", created_after=soon)) == 5
    assert await ids(app="a", created_after=late) == []
    assert await ids(app="a", order="updated", updated_after=late) == []
    assert await ids(app="b") == []


async def test_heads_tell_without_loading(lp: limpet.Limpet, s: limpet.Session) -> None:
    """A listed head is the session's own: version, labels, pending input, times."""
    (head,) = (await lp.list(app="support")).items
    assert head == s.head
    assert (head.version, head.pending, head.labels) == (2, 1, {"plan": "gold"})
    assert head.created_at <= head.updated_at
    assert limpet.runnable_at(head) == s.events[-1].at


# --- facts ---------------------------------------------------------------------------------------


async def test_labels_timers_and_processing_are_verbs(s: limpet.Session) -> None:
    """Each is one event, shown by the head at once."""
    await s.label({"plan": "free", "team": "a"}, actor="x")
    await s.label({"team": None}, actor="x")
    assert s.labels == {"plan": "free"}
    at = datetime(2040, 1, 1, tzinfo=UTC)
    await s.lifecycle.set_timer("nap", at, actor="x")
    await s.lifecycle.set_timer("end", at + timedelta(days=1), kind="deadline", actor="x")
    assert s.head.timers["nap"] == limpet.Timer(2_208_988_800_000_000, "wake", s.version - 1)
    assert limpet.deadline_at(s.head) == at + timedelta(days=1)
    await s.lifecycle.clear_timer("end", actor="x")
    assert limpet.deadline_at(s.head) is None
    e = await s.mark_processed([2], actor="x")
    assert s.head.pending == 0
    assert limpet.runnable_at(s.head) == at
    (done,) = await s.read(after=1, limit=1)
    assert done.processed_at == e.at


# --- endings -------------------------------------------------------------------------------------


async def test_delete_and_erase_end_a_session(lp: limpet.Limpet, s: limpet.Session) -> None:
    """The object keeps what it showed; every verb on it says what happened."""
    assert await lp.delete(s.key) is True
    assert await lp.delete(s.key) is False
    before = shown(s)
    with pytest.raises(limpet.errors.SessionDeleted):
        await s.append("a.b", actor="x")
    with pytest.raises(limpet.errors.SessionDeleted):
        await s.refresh()
    assert shown(s) == before
    certificate = await lp.erase(s.key)
    assert certificate is not None
    assert (certificate.version, certificate.link) == (2, s.head.link)
    with pytest.raises(limpet.errors.SessionErased):
        await s.read()
    assert await lp.erase(("a", "u", "never")) is None


async def test_verify_reads_everything_back(lp: limpet.Limpet, s: limpet.Session) -> None:
    """One session, or all of them with progress."""
    await lp.create("a", "u")
    steps: list[tuple[int, int]] = []
    report = await lp.maintenance.verify(progress=lambda done, total: steps.append((done, total)))
    assert (report.ok, report.sessions, report.events) == (True, 2, 3)
    assert steps
    report = await lp.maintenance.verify(s.key)
    assert (report.ok, report.sessions, report.events) == (True, 1, 2)
