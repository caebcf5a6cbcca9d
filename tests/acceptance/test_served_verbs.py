"""Verbs that the system finishes behind the guard, for clients with a key: as in the store's own
process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import FieldAccess, Isolation, Limpet, Principal
from limpet.errors import (
    AccessDenied,
    InvalidInput,
    LimpetError,
    ReservedApp,
    SessionArchived,
    SessionDeleted,
    SessionErased,
)
from limpet.model import DefaultActor, owner_of
from limpet.server.serve import serving
from limpet.session import served_verbs  # noqa: F401  # what `perform` performs
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from limpet.session.move.mover import Mover
from limpet.session.performed import perform
from limpet.store.remote.forms import encode
from tests.support.keys import key_file

ADA = ("support", "ada", "c1")


class Doors:
    """One store, as a principal in its process sees it and as a client with the same key does."""

    def __init__(self, lp: Limpet, url: str, stack: AsyncExitStack) -> None:
        self.lp, self._url, self._stack = lp, url, stack

    async def opened(
        self, *, served: bool, role: Any = "owner", user: str | None = "ada"
    ) -> Limpet:
        key, token = await AccessKeys(journal_of(self.lp)).create(
            role=role, app="support", user=user
        )
        if served:
            return await self._stack.enter_async_context(limpet.open(self._url, token=token))
        return self.lp.acting_as(key.principal)


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    async with AsyncExitStack() as stack:
        archive = (tmp_path / "cold").as_uri()
        lp = await stack.enter_async_context(limpet.open("memory://", archive=archive))
        url = await stack.enter_async_context(serving(lp))
        yield Doors(lp, url, stack)


async def talked(lp: Limpet) -> limpet.Session:
    session = await lp.create(*ADA)
    for number in range(3):
        await session.append("user.message", {"text": f"{number}"}, actor="user:ada")
    return session


async def asking(turn: limpet.Turn) -> None:
    await turn.approve("refund", {"amount": 3})


async def delete(lp: Limpet) -> Any:
    session = await talked(lp)
    deleted = await lp.delete(*ADA)
    with pytest.raises(SessionDeleted):
        await session.refresh()
    return deleted, await lp.find(*ADA)


async def erase(lp: Limpet) -> Any:
    session = await talked(lp)
    erasure = await lp.erase(*ADA)
    with pytest.raises(SessionErased):
        await session.refresh()
    return erasure is not None and erasure.version


async def erase_user(lp: Limpet) -> Any:
    await talked(lp)
    return len((await lp.erase_user("support", "ada")).sessions)


async def archive_and_back(lp: Limpet) -> Any:
    session = await talked(lp)
    await session.complete()
    archived = await session.archive()
    assert archived.event is not None
    apart = await lp.get(*ADA, archived=True)
    read = [event.type for event in await apart.read()]
    with pytest.raises(SessionArchived):
        await lp.get(*ADA)
    done = await lp.unarchive(*ADA)
    assert done.event is not None
    actors = (archived.event.actor, done.event.actor)
    return archived.phase, session.phase, read, done.phase, actors, (await lp.get(*ADA)).phase


async def inbox(lp: Limpet) -> Any:
    await talked(lp)
    await lp.wake(*ADA, asking)
    return [(each.key, each.request.kind) for each in (await lp.inbox("support")).items]


async def proposals(lp: Limpet) -> Any:
    session = await talked(lp)
    proposal = await lp.propose(
        "ask twice", provenance=session.key, confidence=0.9, to="agent:main"
    )
    waiting = [each.request.kind for each in (await lp.inbox("support")).items]
    refused = await lp.decide(proposal, accept=False, reason="too vague")
    return waiting, refused.status, [each.status for each in await lp.proposals()]


async def limits(lp: Limpet) -> Any:
    session = await talked(lp)
    await session.history.retention(events=2)
    read = session.history.limits, (await lp.get(*ADA)).history.limits
    policies = lp.policies
    of_app = await policies.retention_of("support"), await policies.checkpointing_of("support")
    return read, of_app, (await lp.maintenance.compact(*ADA)).events > 0


async def checkpoints(lp: Limpet) -> Any:
    session = await talked(lp)
    ref = await session.checkpoint("before lunch", full=True)
    found = (await session.history.checkpoints()).items
    return ref, [(each.trigger, each.kind, each.ref) for each in found]


async def renewed(lp: Limpet) -> Any:
    session = await talked(lp)
    await session.lifecycle.set_timeouts(limpet.Timeouts(idle=timedelta(hours=1)))
    return (await session.lifecycle.renew(idle=timedelta(hours=2))).actor, session.actor


async def gone(lp: Limpet) -> Any:
    await talked(lp)
    async with limpet.open("memory://", node="eu-2") as other:
        moved = await lp.move(*ADA, to=other)
    return moved.success, await lp.home(*ADA)


VERBS: dict[str, Callable[[Limpet], Awaitable[Any]]] = {
    each.__name__: each
    for each in (
        delete,
        erase,
        erase_user,
        archive_and_back,
        inbox,
        proposals,
        limits,
        checkpoints,
        renewed,
        gone,
    )
}


async def outcome(verb: Callable[[Limpet], Awaitable[Any]], lp: Limpet) -> Any:
    try:
        return await verb(lp)
    except LimpetError as error:
        return type(error), getattr(error, "denial", None)


@pytest.mark.parametrize("name", VERBS)
async def test_a_key_does_what_its_principal_does_in_the_process_of_the_store(
    name: str, tmp_path: Path
) -> None:
    """Both do the same verb on a store of their own, and see the same."""
    seen = []
    for served in (False, True):
        async with AsyncExitStack() as stack:
            archive = (tmp_path / f"{served}").as_uri()
            lp = await stack.enter_async_context(limpet.open("memory://", archive=archive))
            url = await stack.enter_async_context(serving(lp))
            seen.append(
                await outcome(VERBS[name], await Doors(lp, url, stack).opened(served=served))
            )
    assert seen[0] == seen[1]
    assert not (isinstance(seen[1], tuple) and seen[1][0] is AccessDenied)


async def test_an_agent_of_an_app_sweeps_through_a_server(doors: Doors) -> None:
    """What timed out is suspended, by whoever may claim."""
    session = await talked(doors.lp)
    await session.lifecycle.set_timeouts(
        limpet.Timeouts(idle=timedelta(microseconds=1)), actor="user:ada"
    )
    agent = await doors.opened(served=True, role="agent", user=None)
    assert (await agent.work.sweep()).suspended == 1


async def interrupted(*_: Any) -> Any:
    raise RuntimeError("the mover dies")


@pytest.mark.parametrize("served", [True, False], ids=["served", "within"])
async def test_an_admin_of_an_app_drains_it(
    doors: Doors, monkeypatch: pytest.MonkeyPatch, *, served: bool
) -> None:
    """Also through a server, with what an interrupted drain left departed; nobody else may."""
    await talked(doors.lp)
    await doors.lp.create("sales", "ada", "s1", actor="user:ada")
    admin = await doors.opened(served=served, role="admin", user=None)
    async with limpet.open("memory://", node="other") as other:
        with monkeypatch.context() as dying:
            dying.setattr(Mover, "_finish", interrupted)
            with pytest.raises(RuntimeError):
                await admin.move(ADA, other)
        for refused, app in ((await doors.opened(served=served), "support"), (admin, None)):
            with pytest.raises(AccessDenied):
                await refused.drain(other, app=app)
        done = await admin.drain(other, app="support")
        assert (done.sessions, done.refused) == (1, ())
        assert [head.key.app async for head in doors.lp.each()] == ["sales"]
        assert [head.key.id async for head in other.each()] == ["c1"]


async def test_whoever_may_not_is_refused_by_the_server_and_the_audit_has_it(doors: Doors) -> None:
    """A viewer deletes nothing, and nobody deletes what is another's."""
    await talked(doors.lp)
    viewer = await doors.opened(served=True, role="viewer")
    bob = await doors.opened(served=True, user="bob")
    for lp in (viewer, bob):
        with pytest.raises(AccessDenied):
            await lp.delete(*ADA)
    assert (await doors.lp.get(*ADA)).version == 4
    denied = await doors.lp.audit(denied=True)
    assert [record.action for record in denied.items][:2] == ["erase", "erase"]


async def test_the_default_actor_of_a_command_travels(doors: Doors) -> None:
    """A command acts as `cli:LOGIN` unless told otherwise: a server records its principal."""
    owner = await doors.opened(served=True)
    admin = await doors.opened(served=True, role="admin", user=None)
    by = DefaultActor("cli:root")
    session = await talked(owner)
    await session.complete()
    await session.archive(actor=by)
    assert (await owner.unarchive(*ADA, actor=by)).phase == "completed"
    text, to = "Answer in the language of the question.", "org:acme"
    proposal = await owner.propose(text, provenance=session.key, confidence=1, to=to, actor=by)
    assert proposal.actor == "user:ada"
    decided = await admin.decide(proposal, accept=False, reason="too vague", actor=by)
    assert (decided.decided_by or "").startswith("key:")
    assert await owner.erase(*ADA, actor=by) is not None
    assert (await owner.erase_user("support", "ada", actor=by)).names == 0


async def test_only_the_verbs_of_the_table_are_performed(doors: Doors) -> None:
    """And what changes something is not performed as a read, which may be repeated."""
    owner = await doors.opened(served=True)
    store: Any = journal_of(owner).store
    for send, name in ((store.perform, "close"), (store.consult, "delete")):
        with pytest.raises(InvalidInput, match="does not perform"):
            await send(name, b"\x90")
    for raw in (b"\x91\x01", b"\x91\x93\xa1a\xa1b\xa1\xff", b"\x91" * 5_000):  # not UTF-8, too deep
        with pytest.raises(InvalidInput, match="cannot be read"):
            await store.perform("delete", raw)
    own = ("$notes", owner_of("support", "ada"), "n1")
    for name, arguments in (
        ("watch_limits", [own]),
        ("delete", [own]),
        ("erase", [own, "refuse", None]),
        ("archive", [own, None]),
        ("unarchive", [own, None]),
        ("withdraw", [own, "no more", None]),
        ("propose", ["x", own, 0.5, "agent:main", None, None]),
        ("checkpoint", [own, None, "x", "full", None]),
    ):
        with pytest.raises(ReservedApp):  # a verb is of a session
            await store.perform(name, encode(arguments))


async def test_the_files_of_an_archive_are_those_of_the_server(
    doors: Doors, tmp_path: Path
) -> None:
    """A session that a client archives has its file there, and one that it deletes has none."""
    owner = await doors.opened(served=True)
    session = await talked(owner)
    await session.complete()
    await session.archive()
    assert [*(tmp_path / "cold").rglob("*.limpet")]
    assert (await doors.lp.get(*ADA, archived=True)).phase == "archived"
    await owner.delete(*ADA)
    assert not [*(tmp_path / "cold").rglob("*.limpet")]


async def test_an_archived_log_is_read_by_whoever_may_read_it(doors: Doors) -> None:
    """Nobody reads or archives what is another's; a viewer reads, and archives nothing."""
    session = await talked(doors.lp)
    await session.complete()
    viewer = await doors.opened(served=True, role="viewer")
    bob = await doors.opened(served=True, user="bob")
    for lp in (viewer, bob):
        with pytest.raises(AccessDenied):
            await lp.session(*ADA).archive()
    await session.archive()
    assert len(await (await viewer.get(*ADA, archived=True)).read()) > 3
    store: Any = journal_of(bob).store
    with pytest.raises(AccessDenied):
        await store.consult("archived_bundle", encode([ADA]))


CRITIC = Isolation("per_agent", agents={"agent:critic": FieldAccess(owns=("draft",))})


async def test_one_who_sees_a_part_has_no_file_of_an_archived_session(doors: Doors) -> None:
    """The file has all fields: it is for those who see them all."""
    session = await doors.lp.create(*ADA, isolation=CRITIC, state={"pin": 1}, actor="user:ada")
    await session.complete()
    await session.archive()
    viewer = doors.lp.acting_as(Principal("agent:critic", role="agent", app="support", user="ada"))
    with pytest.raises(AccessDenied):
        await perform(viewer, "archived_bundle", encode([ADA]), reads=True)
    owner = await doors.opened(served=True)
    assert (await owner.get(*ADA, archived=True)).state["pin"] == 1


async def test_a_checkpoint_is_made_by_the_server_of_the_whole_state(doors: Doors) -> None:
    """Whoever asks for it sees a part, and gets no checksum; a policy is followed once, by the
    server, and not by its clients too."""
    made = await doors.lp.create(
        *ADA, isolation=CRITIC, state={"pin": 4711, "draft": 1}, actor="user:ada"
    )
    await doors.lp.policies.checkpointing(
        "support", limpet.CheckpointPolicy(events=("agent.message",))
    )
    critic = Principal("agent:critic", role="agent", app="support", user="ada")
    acting = doors.lp.acting_as(critic)
    sent = encode([ADA, None, "now", "full", None])
    ref, _ = msgspec.msgpack.decode(await perform(acting, "checkpoint", sent, reads=False))
    assert ref[-1] == ""
    other = encode([ADA, "another", "now", "full", None])
    with pytest.raises(SessionDeleted):
        await perform(acting, "checkpoint", other, reads=False)
    client = await doors.opened(served=True, role="agent", user=None)
    bare = await client.create("support", "ada", "c2", actor="agent:main")
    await bare.append("agent.message", {"text": "hi"}, actor="agent:main")
    assert [each.seq for each in (await bare.history.checkpoints()).items] == [2]
    (kept,) = (await made.history.checkpoints()).items
    await made.history.restore(kept.ref)
    assert made.state["pin"] == 4711


async def test_a_client_is_given_receipts_and_proofs_by_the_server(tmp_path: Path) -> None:
    """The server signs for whoever may read the whole session, and for nobody else."""
    keys = key_file(tmp_path / "keys")
    async with AsyncExitStack() as stack:
        opened = limpet.open(f"sqlite:///{tmp_path}/s.db", keys=keys)
        lp = await stack.enter_async_context(opened)
        url = await stack.enter_async_context(serving(lp))
        doors = Doors(lp, url, stack)
        session = await talked(await doors.opened(served=True))
        receipt, proof = await session.receipt(), await session.prove(2)
        event = (await session.read(types=["user.message"]))[0]
        limpet.check_receipt(receipt, proof, event, public_key=lp.keys.public_key)
        assert await lp.keys.compare(receipt) == ()
        with pytest.raises(limpet.InvalidInput, match="not an event"):
            await session.prove(99)
        auditor = await doors.opened(served=True, role="auditor", user=None)
        with pytest.raises(AccessDenied):
            await auditor.session(*ADA).receipt()


async def test_clients_of_dev_use_the_archive_and_the_keys_of_the_server(tmp_path: Path) -> None:
    """A session is archived there and back, and an erasure has a certificate that names its
    actor."""
    keys, archive = key_file(tmp_path / "keys"), tmp_path / "cold"
    opened = limpet.open(f"sqlite:///{tmp_path}/s.db", keys=keys, archive=archive.as_uri())
    async with opened as lp, serving(lp, dev=True) as url, limpet.open(url) as client:
        session = await talked(client)
        await session.complete()
        await session.archive()
        assert [*archive.rglob("*.limpet")]
        apart = await client.get(*ADA, archived=True)
        assert [event.data["text"] for event in await apart.read(types=["user.message"])] == [
            "0",
            "1",
            "2",
        ]
        assert (await client.unarchive(*ADA)).phase == "completed"
        erasure = await client.erase(*ADA, actor="admin:eve")
        assert erasure is not None
        assert erasure.certificate is not None
        assert erasure.certificate.by == "admin:eve"
        assert (await client.erase_user("support", "ada")).certificate is not None
