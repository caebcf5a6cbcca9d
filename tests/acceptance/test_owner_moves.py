"""Owners who move their own sessions between servers, and what they cannot bring in that way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet, errors
from limpet.model import Commit, Key
from limpet.model.events import prepare
from limpet.model.facts.creation import created
from limpet.model.facts.documents import document_created
from limpet.model.facts.moves import departed, returned
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from limpet.session.move.adopter import piece
from limpet.session.move.arrivals import Arrival, Arrivals
from limpet.session.move.routes import MOVER
from limpet.store.protocol import Exchange, Query, Standing

KEY = Key("support", "ada", "c1")


async def _entered(stack: AsyncExitStack, server: Limpet, node: str, **who: Any) -> Limpet:
    """A client of a served store, with a key of its own."""
    url = await stack.enter_async_context(serving(server))
    _, token = await AccessKeys(journal_of(server)).create(**who)
    return await stack.enter_async_context(limpet.open(url, token=token, node=node))


@asynccontextmanager
async def _servers(**who: Any) -> AsyncIterator[tuple[Limpet, Limpet, Limpet]]:
    """Ada's own at one server; somebody at another, and that server's store."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(limpet.open("memory://"))
        second = await stack.enter_async_context(limpet.open("memory://"))
        ada = await _entered(stack, first, "eu-1", role="owner", app="support", user="ada")
        yield ada, await _entered(stack, second, "eu-2", **who), second


OWNER = {"role": "owner", "app": "support", "user": "ada"}
A_KEY = "key:0123456789abcdef"


async def _new(lp: Limpet, key: Key = KEY) -> limpet.Session[Any]:
    made = (key.app, key.user, key.id)
    return await lp.create(*made, state={"n": 1}, budget=limpet.Budget(cost=3.0))


async def test_an_owner_moves_a_session_between_two_servers_and_back() -> None:
    """With an owner's key to each, and everything that travels; the audit of both knows."""
    async with _servers(**OWNER) as (a, b, second):
        s = await _new(a)
        await s.append("user.message", {"text": "hi"})
        await s.memory.session.put("likes", ["tea"])
        await s.checkpoint(full=True)
        ref = await s.blobs.put(b"picture", "image/png")
        for source, target in ((a, b), (b, a), (a, b)):
            moved = await source.move(KEY, target)
            assert moved.success, moved
            there = await target.get(KEY)
            await there.append("user.message", {"text": "here"})
            assert await there.memory.session.get("likes") == ["tea"]
            assert await there.blobs.get(ref) == b"picture"
        assert (await second.get(KEY)).runs.budget.limit.cost == 3.0
        assert (await second.maintenance.verify()).findings == ()
        moves = [r for r in (await second.audit()).items if r.action == "move" and r.allowed]
        assert {record.principal for record in moves} == {"user:ada"}


async def test_an_owner_moves_what_an_admin_has_moved_before() -> None:
    """The admin's key stands in the log, for the moves, their checkpoints and the share that they
    ended. A log in which it says anything else is moved by admins."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(limpet.open("memory://")) for _ in range(2)]
        ada, admin = [], []
        for node, server in zip(("eu-1", "eu-2"), servers, strict=True):
            ada.append(await _entered(stack, server, node, **OWNER))
            who = {"role": "admin", "app": "support"}
            admin.append(await _entered(stack, server, node, **who))
        s = await _new(ada[0])
        other = await _new(ada[0], Key("support", "ada", "c2"))
        await s.share(other, "n", sync="live")
        for source, target in ((0, 1), (1, 0)):
            assert (await admin[source].move(KEY, admin[target])).success
        log = await (await ada[0].get(KEY)).read()
        assert {e.type for e in log if e.actor.startswith("key:")} == {
            *("session.unshared", "session.departed", "session.arrived")
        }
        assert (await ada[0].move(KEY, ada[1])).success
        await (await admin[1].get(KEY)).suspend()
        await (await ada[1].get(KEY)).resume()
        with pytest.raises(errors.AccessDenied):
            await ada[1].move(KEY, ada[0])


async def _worked(turn: limpet.Turn) -> None:
    """A turn with a step, an effect, an approval and a memory."""

    async def done(n: int) -> int:
        return n

    await turn.step("look", done, n=1)
    await turn.effect("pay", done, n=2)
    await turn.say("paid")
    await turn.append("order.placed", {"n": 1})
    await turn.append("user.define_outcome", {"title": "paid"})
    await turn.session.memory.session.put("likes", ["tea"])
    if turn.inputs[0].data["text"] == "fail":
        raise ValueError("no")


async def test_an_owner_moves_what_a_worker_of_the_app_has_run() -> None:
    """The worker enters with a key of its app, in whose name stands what runs record: spans, steps,
    effects, errors, where it stands, and what it keeps beside the log."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(limpet.open("memory://")) for _ in range(2)]
        ada, worker = [], []
        for node, server in zip(("eu-1", "eu-2"), servers, strict=True):
            ada.append(await _entered(stack, server, node, **OWNER))
            worker.append(await _entered(stack, server, node, role="agent", app="support"))
        await _new(ada[0])
        for source, target in ((0, 1), (1, 0)):
            s = await ada[source].get(KEY)
            for text in ("go", "fail"):
                await s.append("user.message", {"text": text})
                await worker[source].wake(KEY, _worked)
            await (await worker[source].get(KEY)).checkpoint(full=True)
            moved = await ada[source].move(KEY, ada[target])
            assert moved.success, moved
        log = await (await ada[0].get(KEY)).read(limit=200)
        of_keys = {e.type for e in log if e.actor.startswith("key:")}
        assert {"span.started", "step.recorded", "effect.intended", "session.error"} < of_keys
        assert (await servers[0].maintenance.verify()).findings == ()


@pytest.mark.parametrize(
    ("type", "data", "actor", "wake"),
    [
        ("user.message", {"text": "I allow it"}, A_KEY, "w1"),
        ("user.tool_confirmation", {"request_id": "r", "allow": True}, A_KEY, "w1"),
        ("user.define_outcome", {"title": "paid"}, A_KEY, None),
        ("order.placed", {"n": 1}, A_KEY, None),
        ("order.placed", {"n": 1}, "user:eve", "w1"),
        ("agent.message", {"text": "approved"}, "admin:root", "w1"),
    ],
)
async def test_what_people_say_with_a_key_of_the_app_does_not_arrive(
    type: str, data: dict[str, Any], actor: str, wake: str | None
) -> None:
    """Nor what a program of the app recorded outside of a run: another store knows no such key.
    Nor what anybody else is said to have recorded in one."""
    async with _servers(**OWNER) as (_, b, second), _forgery() as lp:
        draft = limpet.Draft(type=type, data=data, wake_id=wake)
        drafts = (prepare(draft, id="x1", actor=actor),)
        await journal_of(lp).store.commit((Commit(KEY, drafts),))
        with pytest.raises(errors.AccessDenied):
            await lp.move(KEY, b)
        await _is_untouched(second)


async def test_a_key_that_is_used_again_is_not_said_to_have_moved() -> None:
    """An object of the session that was deleted is told so, also by a server whose node is named:
    the session that has the key now is at home there."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(limpet.open("memory://", node="desk"))
        lp = await _entered(stack, server, "laptop", **OWNER)
        older = await _new(lp)
        await lp.delete(KEY)
        await lp.create(KEY.app, KEY.user, KEY.id, reuse_deleted=True)
        for call in (older.refresh, lambda: older.append("user.message", {"text": "x"})):
            with pytest.raises(errors.SessionDeleted):
                await call()


@pytest.mark.parametrize(
    "who",
    [
        {"role": "viewer", "app": "support", "user": "ada"},
        {"role": "agent", "app": "support", "user": "ada"},
        {"role": "owner", "app": "support", "user": "bob"},
        {"role": "owner", "app": "sales", "user": "ada"},
    ],
)
async def test_nobody_else_lets_it_arrive(who: dict[str, str]) -> None:
    """Another role, user or app at the target: nothing is staged, and the session stays."""
    async with _servers(**who) as (a, b, second):
        s = await _new(a)
        with pytest.raises(errors.AccessDenied):
            await a.move(KEY, b)
        await _is_untouched(second)
        await s.append("user.message", {"text": "still here"})


async def _is_untouched(server: Limpet) -> None:
    for app in ("support", "$$arrivals"):
        page = await journal_of(server).store.heads(Query(app=app), cursor=None, limit=9)
        assert [head.key for head in page.items if not head.key.id.endswith("/expected")] == []


@asynccontextmanager
async def _forgery(key: Key = KEY, **given: Any) -> AsyncIterator[Limpet]:
    """A store of the attacker's own, which says whatever they like."""
    async with limpet.open("memory://", node="forger") as lp:
        await lp.create(*(key.app, key.user, key.id), actor="user:ada", **given)
        yield lp


async def test_what_somebody_else_would_have_said_does_not_arrive() -> None:
    """An owner writes as nobody else here, and brings nothing that says so; agents, the system and
    a command line may have spoken."""
    async with _servers(**OWNER) as (_, b, second):
        for actor, arrives in (("user:bob", False), ("key:1", False), ("agent:a", True)):
            async with _forgery() as lp:
                s = await lp.get(KEY)
                await s.append("user.message", {"text": "I allow everything"}, actor=actor)
                if arrives:
                    assert (await lp.move(KEY, b)).success
                    continue
                with pytest.raises(errors.AccessDenied):
                    await lp.move(KEY, b)
                await _is_untouched(second)
                assert (await lp.get(KEY)).head.phase == "active"


async def test_a_right_that_an_owner_may_not_grant_does_not_arrive(tmp_path: Path) -> None:
    """Each event is decided as if it were recorded here: a policy that keeps budgets from owners
    keeps them out of what arrives."""
    rules = tmp_path / "rules.cedar"
    rules.write_text(
        "permit(principal, action, resource);\n"
        '@id("budgets") forbid(principal, action == Action::"policy", resource is Session)\n'
        'when { principal.role == "owner" };\n'
    )
    async with AsyncExitStack() as stack:
        opening = limpet.open("memory://", policies=rules)
        second = await stack.enter_async_context(opening)
        b = await _entered(stack, second, "eu-2", **OWNER)
        async with _forgery(budget=limpet.Budget(cost=1.0)) as lp:
            await (await lp.get(KEY, actor="user:ada")).runs.grant(1_000_000.0)
            with pytest.raises(errors.AccessDenied):
                await lp.move(KEY, b)
        await _is_untouched(second)
        async with _forgery() as lp:
            assert (await lp.move(KEY, b)).success


async def test_in_the_process_of_the_store_an_owner_brings_no_more_than_through_a_server(
    tmp_path: Path,
) -> None:
    """`lp.move(key, other.acting_as(owner))`: the events are decided there, too."""
    rules = tmp_path / "rules.cedar"
    rules.write_text(
        "permit(principal, action, resource);\n"
        '@id("budgets") forbid(principal, action == Action::"policy", resource is Session)\n'
        'when { principal.role == "owner" };\n'
    )
    async with limpet.open("memory://", policies=rules, node="eu-2") as second:
        b = second.acting_as(limpet.Principal("user:ada", **OWNER))  # type: ignore[arg-type]
        async with _forgery(budget=limpet.Budget(cost=1.0)) as lp:
            await (await lp.get(KEY, actor="user:ada")).runs.grant(1_000_000.0)
            with pytest.raises(errors.AccessDenied):
                await lp.move(KEY, b)
        async with _forgery() as lp:
            await (await lp.get(KEY)).append("user.message", {"text": "x"}, actor="user:bob")
            with pytest.raises(errors.AccessDenied):
                await lp.move(KEY, b)
        await _is_untouched(second)
        async with _forgery() as lp:
            assert (await lp.move(KEY, b)).success
        assert (await second.get(KEY)).head.phase == "active"


async def test_a_session_that_left_comes_back_with_the_log_that_left() -> None:
    """Another log under the same key and uid, with other rights from its first event on, is not
    believed; neither is one that is shorter."""
    async with _servers(**OWNER) as (_, b, second):
        made = await second.create(
            *(KEY.app, KEY.user, KEY.id), state={"n": 1}, budget=limpet.Budget(cost=1.0)
        )
        async with limpet.open("memory://", node="laptop") as laptop:
            assert (await b.move(KEY, laptop)).success
        before = await journal_of(second).store.load(KEY, tail=0)
        async with limpet.open("memory://", node="laptop") as forger:
            first = prepare(created(KEY), id=made.head.uid, actor="user:ada")
            past = (
                departed("eu-3", "of-eu-3", 1, source="laptop"),
                returned("laptop", 1, "forged"),
            )
            then = [journal_of(forger).prepare(fact, "system:move") for fact in past]
            await journal_of(forger).store.commit((Commit(KEY, (first, *then), 0),))
            s = await forger.get(KEY, actor="user:ada")
            for _ in range(before.head.version):
                await s.append("user.message", {"text": "another past"})
            with pytest.raises(errors.AccessDenied):
                await forger.move(KEY, b)
        assert await journal_of(second).store.load(KEY, tail=0) == before


async def test_no_stage_takes_the_key_of_a_session_that_is_here() -> None:
    """Not by the verb, and not by the store's own exchange, whichever place the stage names."""
    async with _servers(**OWNER) as (_, b, second):
        bobs = Key("support", "bob", "b1")
        for key in (KEY, Key("support", "ada", "c2"), bobs):
            await second.create(*(key.app, key.user, key.id), state={"mine": True})
        free = Key("support", "ada", "free")
        async with _forgery(free) as lp:
            arrivals = Arrivals(b._services, "eu-2")
            head = (await lp.get(free)).head
            arrival = Arrival(free, head.uid, 1, "forger")
            await arrivals.begin(arrival)
            await lp.prestage(free, b)
            store = journal_of(b).store
            for key in (KEY, Key("support", "ada", "c2"), bobs, free, Key("$$archived", "x", "y")):
                found = await second.find(key) if key.app == "support" else None
                at = None if found is None else Standing(found.head.uid, found.version)
                with pytest.raises(errors.AccessDenied):
                    await store.exchange([Exchange(key, at, arrival.stage)])
        for key in (KEY, Key("support", "ada", "c2"), bobs):
            assert (await second.get(key)).state["mine"]
        assert await second.find(free) is None


async def test_a_stage_is_filled_by_nothing_but_a_log_of_its_own_session() -> None:
    """Not with events that are recorded in it, and not for a session that it was not begun for."""
    async with _servers(**OWNER) as (_, b, second):
        arrival = Arrival(KEY, "u1", 1, "forger")
        journal = journal_of(b)
        begun = Arrival(Key("support", "ada", "c2"), "u2", 1, "forger")
        await Arrivals(b._services, "eu-2").begin(begun)
        draft = journal.prepare(created(begun.key), None)
        with pytest.raises(errors.AccessDenied):
            await journal.commit((Commit(begun.stage, (draft,), 0),))
        draft = journal.prepare(created(KEY), None)
        with pytest.raises(errors.AccessDenied):
            await journal.commit((Commit(arrival.stage, (draft,), 0),))
        async with _forgery() as lp:
            records = await journal_of(lp).store.records(KEY, after=0, limit=9)  # type: ignore[attr-defined]
            with pytest.raises(errors.AccessDenied):  # nobody said which session it is
                await journal.commit((piece(arrival.stage, records),))
            with pytest.raises(errors.InvalidInput, match="only an admin"):
                await journal.commit((piece(KEY, records),))
        await _is_untouched(second)


async def test_what_was_deleted_or_erased_does_not_come_back() -> None:
    """Its key stays taken, for an owner too."""
    async with _servers(**OWNER) as (_, b, second):
        for id, end in (("gone", second.delete), ("erased", second.erase)):
            key = Key("support", "ada", id)
            await second.create(*(key.app, key.user, key.id))
            await end(key)  # type: ignore[operator]
            async with _forgery(key) as lp:
                assert (await lp.move(key, b)).reason in ("deleted", "erased")
            with pytest.raises((errors.SessionDeleted, errors.SessionErased)):
                await second.get(key)


async def _forged_records(forger: Limpet, uid: str, epoch: int) -> Any:
    """A log with this uid that left for eu-2 in this epoch, and was never recorded anywhere."""
    journal = journal_of(forger)
    drafts = [prepare(created(KEY), id=uid, actor="user:ada")]
    for before in range(1, epoch):
        past = (
            departed("eu-3", "of-eu-3", before, source="laptop"),
            returned("laptop", before, "forged"),
        )
        drafts += [journal.prepare(fact, "system:move") for fact in past]
    drafts.append(
        journal.prepare(departed("eu-2", "of-eu-2", epoch, source="laptop"), "system:move")
    )
    for n, draft in enumerate(drafts):
        await journal.store.commit((Commit(KEY, (draft,), n),))
    return await journal.store.records(KEY, after=0, limit=99)  # type: ignore[attr-defined]


async def _left_from(server: Limpet, owner: Limpet, uid: str) -> Any:
    """Let a session with this uid begin at a server and leave it; what it has left there."""
    store = journal_of(server).store
    first = prepare(created(KEY), id=uid, actor="system:desk")
    await store.commit((Commit(KEY, (first,), 0),))
    async with limpet.open("memory://", node="laptop") as laptop:
        assert (await owner.move(KEY, laptop)).success
    return await store.load(KEY, tail=0)


async def test_a_log_that_was_staged_before_the_session_came_does_not_take_its_place() -> None:
    """Its events were decided while nobody had the key; then the session came here, and left."""
    async with _servers(**OWNER) as (_, b, second):
        arrival = Arrival(KEY, "u1", 5, "laptop")
        async with limpet.open("memory://", node="laptop") as forger:
            records = await _forged_records(forger, "u1", 5)
        await Arrivals(b._services, "eu-2").begin(arrival)
        await journal_of(b).commit((piece(arrival.stage, records),))
        before = await _left_from(second, b, "u1")
        at = Standing(before.head.uid, before.head.version)
        with pytest.raises(errors.AccessDenied):
            await journal_of(b).store.exchange([Exchange(KEY, at, arrival.stage)])
        assert await journal_of(second).store.load(KEY, tail=0) == before


async def test_a_stage_has_the_name_of_a_part_of_a_session() -> None:
    """A name that only ends like the one of a log has no events that nobody decided about."""
    async with _servers(**OWNER) as (_, b, second):
        before = await _left_from(second, b, "u1")
        arrival = Arrival(KEY, "u1", 2, "laptop")
        stage, place = arrival._staged("other-log"), arrival._staged("other-expected")
        async with limpet.open("memory://", node="laptop") as forger:
            records = await _forged_records(forger, "u1", 2)
            names = [KEY.app, KEY.user, KEY.id]
            draft = prepare(document_created(place, names, actor=MOVER), id="d1", actor=None)
            await journal_of(forger).store.commit((Commit(place, (draft,), 0),))
            said = await journal_of(forger).store.records(place, after=0, limit=9)  # type: ignore[attr-defined]
        for commit in (piece(place, said), piece(stage, records)):
            with pytest.raises(errors.AccessDenied):
                await journal_of(b).commit((commit,))
        assert await journal_of(second).store.load(KEY, tail=0) == before


async def test_an_owner_moves_again_after_an_epoch_was_refused() -> None:
    """What the refused epoch has staged is taken by the next one, part by part, and by no other."""
    async with _servers(**OWNER) as (a, b, _):
        s = await _new(a)
        await a.prestage(KEY, b)
        refused = Arrival(KEY, s.head.uid, 1, "eu-1")
        await Arrivals(b._services, "eu-2").refuse([refused], "refused")
        assert (await a.move(KEY, b)).reason == "refused"
        store = journal_of(b).store
        for by in (refused.checkpoint_stage, refused._staged("expected")):
            with pytest.raises(errors.AccessDenied):
                await store.exchange([Exchange(Arrival(KEY, s.head.uid, 2).stage, None, by)])
        assert (await a.move(KEY, b)).success


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/a.db", "files:///{}/files"])
async def test_nobody_begins_a_log_with_the_uid_of_another_owner(url: str, tmp_path: Path) -> None:
    """Neither a session nor a document, nor what is staged: who erased it would destroy the keys of
    the other."""
    async with AsyncExitStack() as stack:
        opening = limpet.open(url.format(tmp_path), keys="memory:")
        server = await stack.enter_async_context(opening)
        ada = await _entered(stack, server, "eu-1", **OWNER)
        bobs = await server.create("support", "bob", "b1", state={"n": 1}, actor="user:bob")
        stage = Arrival(KEY, bobs.head.uid, 1, "forger")
        await Arrivals(ada._services, "eu-1").begin(stage)
        async with limpet.open("memory://") as forger:
            first = prepare(created(KEY), id=bobs.head.uid, actor="user:ada")
            await journal_of(forger).store.commit((Commit(KEY, (first,), 0),))
            records = await journal_of(forger).store.records(KEY, after=0, limit=9)  # type: ignore[attr-defined]
        document = Key("notes", stage.stage.user, "n1")
        own = prepare(document_created(document, 1, actor="user:ada"), id=first.id, actor=None)
        begun = (Commit(KEY, (first,), 0), Commit(document, (own,), 0), piece(stage.stage, records))
        for commit in begun:
            with pytest.raises(errors.AccessDenied):
                await journal_of(ada).commit((commit,))
        mine = prepare(created(KEY), id="u1", actor="user:ada")
        await journal_of(ada).commit((Commit(KEY, (mine,), 0),))
        await ada.erase(KEY)
        await bobs.append("user.message", {"text": "still here"})
        assert (await server.maintenance.verify()).ok
