"""Isolation under a guard: each model, role and code, and what is hidden by every verb."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import limpet
from limpet import AccessDenied, FieldAccess, Isolation, Principal
from limpet.errors import FieldAccessDenied, SessionNotFound

CANARY = "canary-7f3a: a text that is long enough to be stored once, by a reference"
HIDDEN = ("secret", "app:secret", "user:secret")
CRITIC = FieldAccess(owns=("review",), reads=("draft", "app:open"))
AGENTS = {"agent:critic": CRITIC, "agent:writer": FieldAccess(owns=("draft", *HIDDEN))}


class Claim(limpet.State):
    amount: int
    notes: Annotated[str, limpet.access(read=["agent"], write=["agent"])]


class Case(limpet.State):
    amount: int = 0
    notes: Annotated[str, limpet.access(read=["agent"])] = ""


class NewerCase(limpet.State):
    schema_version = "1.1.0"
    amount: int = 0
    notes: str = ""


@pytest.fixture
async def lp(url: str, tmp_path: Path) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url, archive=f"file://{tmp_path}/cold") as opened:
        yield opened


def who(id: str = "user:ada", role: Any = "owner", **of: Any) -> Principal:
    return Principal(id, role=role, **{"app": "desk", "user": "ada", **of})


def agent(name: str = "critic", **of: Any) -> Principal:
    return who(f"agent:{name}", "agent", **of)


async def denial(call: Awaitable[Any]) -> str | None:
    """The code of a denial; None if the call was allowed."""
    try:
        await call
    except AccessDenied as denied:
        return denied.denial
    return None


# --- who may enter -------------------------------------------------------------------------------

Verb = Callable[[limpet.Limpet], Awaitable[Any]]
KEY = ("desk", "ada", "one")


def said(lp: limpet.Limpet, **change: Any) -> Awaitable[Any]:
    return lp.session(*KEY).append("agent.message", {"text": "hi"}, **change)


async def follows(lp: limpet.Limpet) -> None:
    async with aclosing(lp.session(*KEY).follow()) as events:
        await anext(events)


async def forks(lp: limpet.Limpet) -> None:
    await lp.session(*KEY).fork()


READS: dict[str, Verb] = {
    "get": lambda lp: lp.get(*KEY),
    "get_many": lambda lp: lp.get_many([KEY]),
    "read": lambda lp: lp.session(*KEY).read(),
    "follow": follows,
    "pending": lambda lp: lp.session(*KEY).pending(),
    "at": lambda lp: lp.session(*KEY).history.at(1),
}
WRITES: dict[str, Verb] = {
    "append": lambda lp: said(lp),
    "set": lambda lp: said(lp, set={"draft": "x"}),
    "delete": lambda lp: said(lp, delete=["draft"]),
}
SOON = limpet.Timeouts(absolute=timedelta(hours=1), expiry=timedelta(hours=1))
# What is beside the conversation is its user's, also where others may append.
KEEPS: dict[str, Verb] = {
    "label": lambda lp: lp.session(*KEY).label({"plan": "gold"}),
    "checkpoint": lambda lp: lp.session(*KEY).checkpoint(),
    "mark_processed": lambda lp: lp.session(*KEY).mark_processed([2]),
    "set_timer": lambda lp: lp.session(*KEY).lifecycle.set_timer("t", timedelta(hours=1)),
    "set_priority": lambda lp: lp.session(*KEY).lifecycle.set_priority(1),
    "retention": lambda lp: lp.session(*KEY).history.retention(events=5),
    "compact": lambda lp: lp.maintenance.compact(*KEY),
    "define": lambda lp: lp.session(*KEY).outcome.define("done"),
    "interrupt": lambda lp: lp.session(*KEY).interrupt(),
    "resolution": lambda lp: lp.session(*KEY).append("user.resolution", {"request_id": "x"}),
}
OTHERS: dict[str, Verb] = {
    "complete": lambda lp: lp.session(*KEY).complete(),
    "fork": forks,
    "set_timeouts": lambda lp: lp.session(*KEY).lifecycle.set_timeouts(SOON),
    "erase": lambda lp: lp.erase(*KEY),
}
# The principal, the isolation of ada's session, and the codes for reading, writing, and the rest.
ROWS: dict[str, tuple[Principal, Isolation, str | None, str | None, str | None]] = {
    "owner, usual": (who(), Isolation(), None, None, None),
    "owner, other task": (
        who(task="t2"),
        Isolation("per_task", task="t1"),
        *["cross_task_access_denied"] * 3,
    ),
    "owner, no task": (
        who(),
        Isolation("per_task", task="t1"),
        *["cross_task_access_denied"] * 3,
    ),
    "owner, its task": (who(task="t1"), Isolation("per_task", task="t1"), None, None, None),
    "agent, other task": (
        agent(task="t2"),
        Isolation("per_agent", task="t1", agents=AGENTS),
        *["cross_task_access_denied"] * 3,
    ),
    "agent, not named": (
        agent("other"),
        Isolation("per_agent", agents=AGENTS),
        "agent_read_denied",
        "agent_write_denied",
        None,
    ),
    "owner of agents": (who(), Isolation("per_agent", agents=AGENTS), None, None, None),
    "another user": (
        who("user:bob", user="bob"),
        Isolation(),
        *["access_denied"] * 3,
    ),
    "another user, other task": (
        who("user:bob", user="bob", task="t2"),
        Isolation("per_task", task="t1"),
        *["access_denied"] * 3,
    ),
    "a user whom it names": (
        who("user:bob", user="bob"),
        Isolation(users=("bob",)),
        None,
        None,
        "access_denied",
    ),
    "a user whom it does not name": (
        who("user:eve", user="eve"),
        Isolation(users=("bob",)),
        *["access_denied"] * 3,
    ),
    "a viewer whom it names": (
        who("user:bob", "viewer", user="bob"),
        Isolation(users=("bob",)),
        None,
        "access_denied",
        "access_denied",
    ),
    "everybody": (
        who("user:eve", user="eve"),
        Isolation("global"),
        None,
        None,
        "access_denied",
    ),
    "everybody of the app": (
        who("user:eve", user="eve", app="shop"),
        Isolation("global"),
        *["access_denied"] * 3,
    ),
}


@pytest.mark.parametrize("row", ROWS)
async def test_who_may_enter_and_what_the_others_are_told(lp: limpet.Limpet, row: str) -> None:
    """By every verb that reads, by every verb that writes, and by those that take all of it."""
    principal, isolation, reads, writes, rest = ROWS[row]
    await lp.create(*KEY, state={"draft": "d"}, isolation=isolation)
    await lp.session(*KEY).append("user.message", {"text": "hi"}, actor="user:ada")
    acting = lp.acting_as(principal)
    keeps = writes if principal.user == "ada" else "access_denied"
    for verbs, code in ((READS, reads), (WRITES, writes), (KEEPS, keeps)):
        for name, verb in verbs.items():
            if name == "delete" and code is None:
                continue  # it would be gone for the next one
            assert await denial(verb(acting)) == code, name
    for name, verb in OTHERS.items() if rest is not None else ():
        by_role = "access_denied" if name == "erase" and principal.role == "agent" else rest
        assert await denial(verb(acting)) == by_role, name


async def test_a_user_whom_a_session_names_approves_nothing_of_it(lp: limpet.Limpet) -> None:
    """What its runs ask is asked of its own user."""

    async def asks(turn: limpet.Turn) -> None:
        await turn.approve("pay", {"amount": 5})

    s = await lp.create(*KEY, isolation=Isolation(users=("bob",)))
    await s.append("user.message", {"text": "pay"}, actor="user:ada")
    await lp.wake(s.key, asks)
    (request,) = (await s.refresh()).blocked_on
    bob = lp.acting_as(who("user:bob", user="bob")).session(*KEY)
    assert await denial(bob.confirm(request.id, allow=True)) == "access_denied"
    assert await denial(lp.acting_as(who()).session(*KEY).confirm(request.id, allow=True)) is None


async def test_a_missing_session_of_ones_own_is_missing(lp: limpet.Limpet) -> None:
    """And that of another user is denied, like one that is there."""
    with pytest.raises(SessionNotFound):
        await lp.acting_as(who(task="t1")).get("desk", "ada", "none")
    assert await denial(lp.acting_as(who(user="bob")).get("desk", "ada", "none")) == "access_denied"


async def test_lists_feeds_and_claims_show_what_may_be_read(lp: limpet.Limpet) -> None:
    """Of one's own task and agents; by a task or without."""
    for task in ("t1", "t2"):
        s = await lp.create("desk", "ada", task, isolation=Isolation("per_task", task=task))
        await s.append("user.message", {"text": task}, actor="user:ada")
    await lp.create("desk", "ada", "agents", isolation=Isolation("per_agent", agents=AGENTS))
    await lp.create("desk", "ada", "plain")
    acting = lp.acting_as(agent("other", task="t1"))
    assert {head.key.id for head in (await acting.list(app="desk")).items} == {"t1", "plain"}
    assert {head.key.id async for head in acting.each(app="desk")} == {"t1", "plain"}
    assert [head.key.id for head in (await acting.list(app="desk", task="t1")).items] == ["t1"]
    assert (await acting.list(app="desk", task="t2")).items == ()
    states = (await acting.list(app="desk", state=True)).states
    assert {key.id for key in states} == {"t1", "plain"}
    seen = set()
    async with aclosing(acting.watch(app="desk")) as feed:
        async for entry in feed:
            seen.add(entry.key.id)
            if entry.key.id == "plain":
                break
    assert seen == {"t1", "plain"}
    worker = Principal("agent:main", role="agent", app="desk", task="t1")
    leases = await lp.acting_as(worker).work.claim("w", limit=10)
    assert {lease.key.id for lease in leases} == {"t1"}


# --- what is hidden ------------------------------------------------------------------------------


@pytest.fixture
async def s(lp: limpet.Limpet) -> limpet.Session[Any]:
    """A session with a canary in hidden fields, in the ways that lead there."""
    state = {"draft": "d", "review": "r", "secret": CANARY, "app:open": 1}
    session = await lp.create(
        *KEY, state=state, isolation=Isolation("per_agent", agents=AGENTS), actor="agent:writer"
    )
    message = {"text": CANARY, "parts": [{"type": "text", "text": CANARY}], "n": 1}
    await session.append("user.message", message, set={"secret": message}, id="whole")
    await session.append(
        "user.message",
        {"text": CANARY, "note": "kept"},
        set={"app:secret": "".join(list(CANARY)), "draft": "two"},
        id="part",
    )
    await session.append("agent.message", {"text": "three"}, add={"secret2": [{"x": CANARY}]})
    await session.append("agent.message", {"text": "four"}, set={"user:secret": CANARY}, id="four")
    await session.append(
        "agent.message", {"text": "five"}, ops=[limpet.ops.Set(("secret", "text"), CANARY + "!")]
    )
    other = await lp.create("desk", "ada", "other", isolation=session.isolation)
    await session.share(other, "secret", "draft")
    await session.checkpoint(full=True)
    return session


async def collected(lp: limpet.Limpet, s: limpet.Session[Any]) -> dict[str, Any]:
    """What every verb that reads answers, an error for what it refuses."""
    found: dict[str, Any] = {}

    async def ask(name: str, call: Awaitable[Any]) -> Any:
        try:
            found[name] = await call
        except limpet.LimpetError as error:
            found[name] = (error, error.fields)
        return found[name]

    mine = await lp.get(s.key, tail=100)
    found["object"] = (mine.values, mine.state, mine.events, mine.head, mine.blocked_on)
    found["envelopes"] = [mine.envelope(), mine.envelope(format="msgpack")]
    await ask("read", mine.read(limit=100))
    await ask("ids", mine.read_ids(["whole", "part", "four"]))
    await ask("pending", mine.pending())
    await ask("messages", mine.messages())
    await ask("context", mine.context())
    for seq in range(1, s.version + 1):
        await ask(f"at {seq}", mine.history.at(seq))
        await ask(f"diff {seq}", mine.history.diff(seq))
    for name in ("draft", "review", "secret", "secret2", *HIDDEN):
        await ask(f"blame {name}", mine.history.blame(name))
    told: list[Any] = []

    def seen(state: Any) -> bool:
        told.append(dict(state))
        return bool(state.get("draft") == "two")

    await ask("bisect", mine.history.bisect(seen))
    found["shown by bisect"] = told
    await ask("checkpoints", mine.history.checkpoints())
    await ask("lineage", mine.history.lineage())
    await ask("many", lp.get_many([s.key]))
    found["of many"] = [(each.values, each.events) for each in found["many"] if each]
    await ask("list", lp.list(app="desk", state=True))
    await ask("inbox", lp.inbox("desk"))
    events: list[Any] = []
    async with aclosing(mine.follow()) as followed:
        async for event in followed:
            events.append(event)
            if event.seq == s.version:
                break
    entries: list[Any] = []
    async with aclosing(lp.watch(key=s.key)) as feed:
        async for entry in feed:
            entries.append(entry)
            if entry.event.seq == s.version:
                break
    found["follow"], found["watch"] = events, entries
    return found


async def test_a_hidden_field_is_in_no_answer(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """Not its value, in state, in operations or in the data that it came from."""
    found = await collected(lp.acting_as(agent()), s)
    for name, answer in found.items():
        assert CANARY not in repr(answer), name
    assert CANARY in repr(await collected(lp, s))


async def test_what_is_visible_is_the_rest(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """Nothing else is missing."""
    mine = await lp.acting_as(agent()).get(s.key, tail=100)
    assert mine.values == {"draft": "two", "review": "r", "app:open": 1}
    whole = await lp.get(s.key, tail=100)
    assert mine.version == whole.version
    assert [(e.seq, e.id, e.type, e.actor, e.at_us) for e in mine.events] == [
        (e.seq, e.id, e.type, e.actor, e.at_us) for e in whole.events
    ]
    by_id = {event.id: event for event in mine.events}
    (shared,) = [event for event in mine.events if event.type == "session.shared"]
    assert shared.data["values"] == {"draft": "two"}
    assert by_id["whole"].data == {}
    assert by_id["part"].data == {"note": "kept"}
    assert [op.path for op in by_id["part"].ops] == [("draft",)]
    assert by_id["four"].data == {"text": "four"}
    diff = await mine.history.diff(1)
    assert {change.path[0] for change in diff.changes} == {"draft"}
    blamed = [(each.event.id, each.op) for each in await mine.history.blame("draft")]
    assert blamed == [(each.event.id, each.op) for each in await whole.history.blame("draft")]


async def test_nobody_takes_a_state_of_which_a_part_is_hidden(
    lp: limpet.Limpet, s: limpet.Session[Any], tmp_path: Path
) -> None:
    """Each verb that needs the whole is denied, and writes nothing anywhere."""
    fork = await s.fork()
    (kept,) = (await s.history.checkpoints()).items
    acting = lp.acting_as(agent())
    mine = await acting.get(s.key)
    (seen,) = (await mine.history.checkpoints()).items
    assert (seen.number, seen.seq, seen.ref.checksum, seen.size) == (1, kept.seq, "", 0)
    assert await mine.history.at(seen.ref) == mine.values.__class__({"draft": "two", "review": "r"})
    before = s.version
    async with limpet.open("memory://") as other:
        for name, call in {
            "fork": mine.fork(),
            "rewind": mine.rewind(2),
            "merge": mine.merge(fork.key),
            "merge into": (await acting.get(fork.key)).merge(s.key),
            "restore": mine.history.restore(seen.ref),
            "restore a whole ref": mine.history.restore(kept.ref),
            "unpin": mine.history.unpin(kept.ref),
            "export": acting.export(s.key, tmp_path / "s.limpet"),
            "copy": acting.copy(s.key, to=other),
            "resume": acting.resume(s.key),
        }.items():
            assert await denial(call) in ("field_access_denied", "access_denied"), name
        assert (await other.list()).items == ()
    assert not (tmp_path / "s.limpet").exists()
    await s.refresh()
    assert s.version == before


async def test_a_checkpoint_is_of_the_whole_state_whoever_asks_for_it(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """One who sees a part gets no checksum; for the others it can be trusted."""
    ref = await (await lp.acting_as(agent()).get(s.key)).checkpoint(full=True)
    assert ref.checksum == ""
    newest = (await s.history.checkpoints()).items[0]
    assert (newest.number, len(newest.ref.checksum)) == (ref.number, 64)
    await s.append("agent.message", {"text": "x"}, set={"secret": "gone"})
    await s.history.restore(newest.ref)
    assert s.values["secret"] != "gone"


async def test_conditions_on_hidden_names_tell_nothing(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """Refused before they are compared, whether they would hold or not."""
    acting = lp.acting_as(agent())
    mine = await acting.get(s.key)
    for version in (0, 1, 2, s.version):
        for name in HIDDEN:

            async def guarded(name: str = name, version: int = version) -> None:
                async with acting.commit() as c:
                    c.append(mine, "agent.message", {"text": "x"})
                    c.guard(mine, name, version)

            assert await denial(guarded()) == "agent_read_denied"
    assert (await lp.get(s.key)).version == s.version


async def test_an_id_that_was_recorded_before_shows_nothing_hidden(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """The first record is the answer, as far as it may be seen."""
    mine = await lp.acting_as(agent()).get(s.key)
    again = await mine.append("user.message", {"text": "?"}, id="whole")
    assert again.repeated
    assert (again.data, again.ops) == ({}, ())


async def test_an_agent_writes_its_own_fields_and_no_others(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """In every way that changes a field, app: and user: names too; deleting is writing."""
    mine = await lp.acting_as(agent()).get(s.key)
    event = await mine.append("agent.message", {"text": "ok"}, set={"review": "fine"})
    assert (event.actor, mine.values["review"]) == ("agent:critic", "fine")
    await mine.update(lambda state: {"review": state["draft"] + "!"})
    assert mine.values["review"] == "two!"
    changes: list[dict[str, Any]] = [
        {"set": {"draft": "x"}},
        {"delete": ["draft"]},
        {"delete": ["secret"]},
        {"inc": {"secret": 1}},
        {"add": {"secret2": [1]}},
        {"merge": {"new": {"x": 1}}},
        {"set": {"user:secret": 1}},
        {"ops": [limpet.ops.Delete(("secret", "text"))]},
    ]
    for change in changes:
        assert await denial(mine.append("agent.message", **change)) == "agent_write_denied"
    assert await denial(mine.update(lambda state: {"draft": 1})) == "agent_write_denied"
    assert (await lp.get(s.key)).values["draft"] == "two"


async def test_partials_are_shown_as_events_are(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """Who may not write publishes none; who reads a part sees that part."""
    mine = await lp.acting_as(agent()).get(s.key)
    async with aclosing(mine.follow(after=s.version)) as events:
        heard = asyncio.ensure_future(anext(events))
        while not heard.done():
            await s.append("agent.message", {"text": "so far"}, partial=True, id="p")
            await asyncio.sleep(0)
        assert (await heard).data == {"text": "so far"}
    other = lp.acting_as(agent("other")).session(s.key)
    assert await denial(other.append("agent.message", {"text": "x"}, partial=True, id="q")) in (
        "agent_write_denied",
        "access_denied",
    )


async def test_a_blob_of_a_hidden_field_is_hidden(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """One that is named in a visible field is not."""
    hidden = await s.blobs.put(b"hidden", "text/plain")
    shown = await s.blobs.put(b"shown", "text/plain")
    refs = {"secret": limpet_ref(hidden), "draft": limpet_ref(shown)}
    await s.append("agent.message", {"text": "x"}, set=refs)
    mine = await lp.acting_as(agent()).get(s.key)
    assert await mine.blobs.get(shown) == b"shown"
    with pytest.raises(limpet.errors.BlobNotFound):
        await mine.blobs.get(hidden)
    assert await s.blobs.get(hidden) == b"hidden"


def limpet_ref(ref: Any) -> dict[str, Any]:
    return {"hash": ref.hash, "size": ref.size, "media_type": ref.media_type}


# --- policies of fields --------------------------------------------------------------------------


async def test_policies_of_fields_hold_without_the_class(lp: limpet.Limpet) -> None:
    """By the role of the principal; typed state says which field it lacks."""
    await lp.create(*KEY, state=Claim(amount=5, notes=CANARY))
    ada = await lp.acting_as(who()).get(*KEY, untyped=True)
    assert ada.values == {"amount": 5}
    assert CANARY not in repr(await ada.read())
    await ada.append("user.message", {"text": "x"}, set={"amount": 6})
    for change in ({"set": {"notes": "x"}}, {"delete": ["notes"]}):
        assert (
            await denial(ada.append("user.message", {"text": "hi"}, **change))
            == "field_access_denied"
        )
    with pytest.raises(FieldAccessDenied) as denied:
        await lp.acting_as(who()).get(*KEY, state_type=Claim)
    assert (denied.value.field, denied.value.actor) == ("notes", "user:ada")
    assert (denied.value.operation, denied.value.allowed) == ("read", ("agent",))
    claim = await lp.acting_as(agent("any")).get(*KEY, state_type=Claim)
    assert claim.state.notes == CANARY
    await claim.apply({"notes": "seen"})
    assert await denial(lp.acting_as(who()).session(*KEY).fork()) == "field_access_denied"
    fork = await lp.acting_as(agent("any")).session(*KEY).fork()
    assert "notes" not in (await lp.acting_as(who()).get(fork.key)).values


async def test_a_child_has_the_policies_of_the_fields_that_it_is_given(
    lp: limpet.Limpet,
) -> None:
    """Who works for the parent gives away no field by delegating with it."""
    s = await lp.create(*KEY, state=Claim(amount=5, notes=CANARY))
    worker = lp.acting_as(agent("main"))
    spawned = await worker.spawn(s.key, task="look", fields=("amount", "notes"))

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("desk", "look", fields=dict(turn.session.values))

    await s.append("user.message", {"text": "go"}, actor="user:ada")
    assert (await worker.wake(s.key, delegates)).error is None
    children = [child for child in (await lp.list(app="desk")).items if child.key != s.key]
    assert spawned.key in {child.key for child in children}
    for child in children:
        assert (await lp.get(child.key)).values == {"amount": 5, "notes": CANARY}
        ada = await lp.acting_as(who(task=child.isolation.task)).get(child.key)
        assert ada.values == {"amount": 5}
        assert CANARY not in repr(await ada.read())
        main = lp.acting_as(agent("main", task=child.isolation.task)).session(child.key)
        await main.append("note.made", set={"notes": "seen"})
        assert await denial(ada.append("note.made", set={"notes": "mine"})) == "field_access_denied"


async def test_a_newer_class_is_recorded_by_those_who_see_the_whole_state(
    lp: limpet.Limpet,
) -> None:
    """Nobody opens a field to itself by a class that declares no policy."""
    await lp.create(*KEY, state=Case(amount=5, notes=CANARY))
    ada = await lp.acting_as(who()).get(*KEY, state_type=NewerCase)
    assert ada.state.notes == ""  # the default: there is no such field for ada
    assert await denial(ada.apply({"amount": 6})) == "field_access_denied"
    migrations = limpet.MigrationRegistry()
    main = await lp.acting_as(agent("any")).get(*KEY, state_type=NewerCase, migrations=migrations)
    await main.apply({"amount": 6})
    assert (await lp.acting_as(who()).get(*KEY)).values["notes"] == CANARY


async def test_a_user_whom_a_session_names_does_not_see_the_names_of_its_user(
    lp: limpet.Limpet,
) -> None:
    """It shares a session, not what its user keeps beside it."""
    await lp.create(*KEY, state={"n": 1, "user:diary": CANARY}, isolation=Isolation(users=("bob",)))
    bob = await lp.acting_as(who("user:bob", user="bob")).get(*KEY)
    assert bob.values == {"n": 1}
    event = await bob.append("user.message", {"text": "hi"}, set={"n": 2})
    assert (event.actor, bob.values) == ("user:bob", {"n": 2})
    assert CANARY not in repr((await bob.read(), bob.head))
    write = bob.append("user.message", {"text": "hi"}, set={"user:diary": "mine"})
    assert await denial(write) == "access_denied"


async def test_an_archived_session_is_kept_apart_too(lp: limpet.Limpet) -> None:
    """By its stub, before its file is touched."""
    s = await lp.create(*KEY, isolation=Isolation("per_task", task="t1"), actor="user:ada")
    await s.complete()
    await s.archive()
    stranger = lp.acting_as(who(task="t2"))
    assert await denial(stranger.get(*KEY, archived=True)) == "cross_task_access_denied"
    assert await denial(stranger.unarchive(*KEY)) == "cross_task_access_denied"
    assert (await lp.acting_as(who(task="t1")).get(*KEY, archived=True)).isolation.task == "t1"


async def test_what_is_hidden_is_hidden_in_the_archive(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """The file has all of it; who reads it sees what it saw before."""
    await s.complete()
    await s.archive()
    mine = await lp.acting_as(agent()).get(s.key, archived=True)
    assert {name for name in mine.values if ":" not in name} == {"draft", "review"}
    assert CANARY not in repr((mine.values, mine.events, await mine.read(limit=100)))
    assert CANARY not in repr([await mine.history.at(seq) for seq in range(1, mine.version + 1)])


async def test_the_memory_of_a_session_is_kept_apart_with_it(lp: limpet.Limpet) -> None:
    """Also from a handle that never read the session."""
    s = await lp.create(*KEY, isolation=Isolation("per_task", task="t1"), actor="user:ada")
    await s.memory.session.put("k", "v")
    for layer in ("session", "episodic", "semantic"):
        memory = getattr(lp.acting_as(who(task="t2")).session(*KEY).memory, layer)
        if layer == "session":
            assert await denial(memory.get("k")) == "cross_task_access_denied"
            assert await denial(memory.list()) == "cross_task_access_denied"
        assert await denial(memory.put("k", "mine")) == "cross_task_access_denied"
    mine = lp.acting_as(who(task="t1")).session(*KEY)
    assert await mine.memory.session.get("k") == "v"


# --- agents at work ------------------------------------------------------------------------------

INPUTS: list[dict[str, Any]] = [
    {},
    {"target": "checkpoint"},
    {"target": "session_state"},
    {"limit": 50},
    {"after": 0},
]


async def test_managed_tools_show_an_agent_what_it_may_see(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """Every tool, with inputs that many take; also of what another agent was shown before."""

    async def looks(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn)
        await tools.call("session_get_snapshot")
        await tools.call("memory_read", {"target": "checkpoint"})

    shown: list[Any] = []

    async def asks(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp.acting_as(agent()))
        shown.extend([turn.inputs, turn.session.values, turn.session.events])
        for name in tools.names:
            shown.extend([await tools.call(name, input) for input in INPUTS])

    assert (await lp.acting_as(agent("writer")).wake(s.key, looks)).error is None
    await s.append("user.message", {"text": "again"}, actor="user:ada")
    assert (await lp.acting_as(agent()).wake(s.key, asks)).error is None
    assert CANARY not in repr(shown)
    assert "'state': {'draft': 'two', 'review': 'r', 'app:open': 1}" in repr(shown)
    mine = await lp.acting_as(agent()).get(s.key)
    assert CANARY not in repr(await mine.read(limit=500))
    assert CANARY in repr(await s.read(limit=500, types=["step.*"]))


async def test_a_worker_acts_in_the_task_of_the_session_it_runs(lp: limpet.Limpet) -> None:
    """An agent of the app claims sessions of every task, and each run is within one."""
    one = await lp.create("desk", "ada", "1", isolation=Isolation("per_task", task="t1"))
    two = await lp.create("desk", "ada", "2", isolation=Isolation("per_task", task="t2"))
    await one.append("user.message", {"text": "go"}, actor="user:ada")
    worker = lp.acting_as(Principal("agent:main", role="agent", app="desk"))
    assert await denial(worker.get(one.key)) == "cross_task_access_denied"
    seen: list[Any] = []

    async def harness(turn: limpet.Turn) -> None:
        seen.append(turn.session.values)
        seen.append(await turn.say("done"))

    woken = await worker.wake(one.key, harness)
    assert (woken.error, len(seen)) == (None, 2)
    assert await denial(worker.get(two.key)) == "cross_task_access_denied"


@pytest.mark.parametrize(
    "isolation",
    [Isolation(), Isolation("per_task", task="t1"), Isolation("per_agent", agents=AGENTS)],
    ids=lambda each: each.model,
)
async def test_agents_delegate_across_apps_and_tasks(
    lp: limpet.Limpet, isolation: Isolation
) -> None:
    """A child is created, tells its parent of its end, and is interrupted with it; nobody else
    enters the other's task."""
    s = await lp.create(*KEY, isolation=isolation)
    await s.append("user.message", {"text": "go"}, actor="user:ada")
    worker = lp.acting_as(Principal("agent:critic", role="agent"))

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look", budget=None)

    async def works(turn: limpet.Turn) -> None:
        await turn.say("found")

    assert (await worker.wake(s.key, delegates)).error is None
    (child,) = (await lp.list(app="research")).items
    assert child.isolation == msgspec.structs.replace(isolation, task=child.key.id)
    assert (await worker.wake(child.key, works)).error is None
    (told,) = await s.pending()
    assert (told.type, told.data["uid"]) == ("session.child_ended", child.uid)
    await s.append("user.message", {"text": "more"}, actor="user:ada")
    assert (await worker.wake(s.key, delegates)).error is None
    await s.interrupt("stop", actor="user:ada")
    assert (await worker.wake(s.key, works)).error is None
    (other,) = [h for h in (await lp.list(app="research")).items if h.key != child.key]
    last = (await (await lp.get(other.key)).read(limit=1, reverse=True))[0]
    assert last.type == "user.interrupt"
    if isolation.model != "per_user":
        parent = who("agent:critic", "agent", app=None, task=isolation.task)
        assert await denial(lp.acting_as(parent).get(child.key)) == "cross_task_access_denied"


async def test_nobody_is_let_in_as_kin_by_a_made_up_fact(lp: limpet.Limpet) -> None:
    """Each of the two must name the other, and both must be of one user."""
    from limpet.model import Commit
    from limpet.model.facts.creation import created
    from limpet.model.facts.running.children import child_created, child_released, delegated
    from limpet.session.limpet import journal_of

    mine = await lp.create(*KEY)
    theirs = await lp.create("desk", "bob", "theirs")
    acting = lp.acting_as(agent("main"))
    journal = journal_of(acting)

    def commit(key: limpet.Key, *facts: limpet.Draft, **more: Any) -> Commit:
        drafts = tuple([journal.prepare(fact, "agent:main") for fact in facts])
        return Commit(key, drafts, **more)

    said = limpet.Draft(type="user.message", data={"text": "hi"})
    other = limpet.Key("desk", "bob", "new")
    elsewhere = limpet.Key("shop", "ada", "new")
    first = created(other)
    begun = commit(other, first, delegated(mine.key, mine.head.uid, "t", 1), expect=0)
    uid = begun.drafts[0].id
    released = child_released(mine.key, mine.head.uid)
    tries = [
        [commit(mine.key, said), commit(theirs.key, said)],
        [commit(mine.key, said), commit(theirs.key, released, uid=theirs.head.uid)],
        [commit(mine.key, child_created(other, uid, 1, "h", None)), begun],
        [
            commit(mine.key, child_created(elsewhere, "x", 1, "h", None)),
            commit(elsewhere, created(elsewhere), expect=0),
        ],
    ]
    for commits in tries:
        assert await denial(journal.commit(commits)) == "access_denied"
    assert (await lp.list(app="shop")).items == ()
    assert {head.key.id for head in (await lp.list(app="desk", user="bob")).items} == {"theirs"}
    assert ((await lp.get(mine.key)).version, (await lp.get(theirs.key)).version) == (1, 1)
