"""A cluster of real servers: quorums, replicas that are behind, failovers, an old primary."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import asyncpg
import pytest

import limpet
from limpet.errors import QuorumUnavailable, ReplicaBehind, StoreUnopened
from tests.support.cluster import Cluster, replicating
from tests.support.examples import tries
from tests.support.relay import relayed

WAIT_SECONDS_MAX = 60.0
ACTOR = "agent:a"


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    """Three servers that no test here promotes: standbys that it stops, it starts again."""
    with replicating() as cluster:
        yield cluster


@asynccontextmanager
async def administrator(url: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(url)
    try:
        yield conn
    finally:
        await conn.close()


async def becomes(conn: asyncpg.Connection, question: str, answer: object) -> None:
    """Wait until a server gives this answer."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while await conn.fetchval(question) != answer:  # another process decides
        assert time.monotonic() < deadline, f"never {answer}: {question}"
        await asyncio.sleep(0.01)


async def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not true():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def held_back(servers: Cluster) -> AsyncIterator[None]:
    """Standbys that receive everything and show nothing of it."""
    for each in servers.standbys:
        servers.sql(each, "SELECT pg_wal_replay_pause()")
        async with administrator(each.url) as conn:
            await becomes(conn, "SELECT pg_get_wal_replay_pause_state()", "paused")
    try:
        yield
    finally:
        for each in servers.standbys:
            servers.sql(each, "SELECT pg_wal_replay_resume()")


async def test_too_few_servers_are_not_taken_for_a_cluster(servers: Cluster) -> None:
    """One that answers alone may be an old primary."""
    gone = servers.url().replace(
        f"{servers.standbys[0].folder},{servers.standbys[1].folder}", "/a,/b"
    )
    with pytest.raises(StoreUnopened, match="1 of its servers answer, and 2 are needed"):
        async with limpet.open(gone):
            pass


# --- quorums -------------------------------------------------------------------------------------


async def test_a_quorum_that_the_servers_do_not_wait_for_is_refused(servers: Cluster) -> None:
    with pytest.raises(StoreUnopened, match=r"ANY 2 \(\*\)"):
        async with limpet.open(servers.url("write_quorum=3")):
            pass


async def test_a_quorum_that_is_switched_off_later_is_noticed(servers: Cluster) -> None:
    """By the very commit that was acknowledged without it."""
    async with limpet.open(servers.url()) as lp:
        s = await lp.create("quorum", "ada", "off")
        servers.primary.stop()
        try:
            servers.primary.start(synchronous_standby_names="")
            with pytest.raises(QuorumUnavailable, match="wait for 0 standbys"):
                await s.append("agent.x", actor=ACTOR, id="x")
        finally:
            servers.primary.stop()
            servers.primary.start(synchronous_standby_names="ANY 1 (*)")
        assert (await s.append("agent.x", actor=ACTOR, id="x")).seq == 2  # once, and not again


async def test_without_standbys_nothing_is_acknowledged_or_shown(servers: Cluster) -> None:
    """A repeat waits too; when a standby is back, the first record is the answer."""
    async with limpet.open(servers.url("write_quorum=2&quorum_seconds=0.3")) as lp:
        s = await lp.create("quorum", "ada", "down", state={"n": 0})
        start = await lp.position()
        for each in servers.standbys:
            servers.kill(each)
        try:
            for _ in range(2):
                with pytest.raises(QuorumUnavailable) as info:
                    await s.append("agent.x", actor=ACTOR, inc={"n": 1}, id="one")
                assert info.value.retryable
                assert info.value.ids == ("one",)
            with pytest.raises(QuorumUnavailable):  # others do not pile up behind it
                await lp.create("quorum", "ada", "never")
            async with administrator(servers.primary.url) as conn:
                waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                assert await conn.fetchval(waiting) == 1
                # As an administrator might: the row is there to be seen then, and nobody has it.
                await conn.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
                    "WHERE wait_event = 'SyncRep'"
                )
                count = "SELECT count(*) FROM limpet.events WHERE id = 'one'"
                await becomes(conn, count, 1)
            store = lp._services.journal.store
            page = await store.changes(start, app=None, key=None, limit=10)
            assert page == ((), start)
            with pytest.raises(QuorumUnavailable):
                await s.append("agent.x", actor=ACTOR, inc={"n": 1}, id="one")
        finally:
            for each in servers.standbys:
                servers.follow(each)
        done = await s.append("agent.x", actor=ACTOR, inc={"n": 1}, id="one")
        assert done.seq == 2
        assert (await lp.get(s.key)).state["n"] == 1
        entries, _ = await store.changes(start, app="quorum", key=None, limit=10)
        assert [entry.event.id for entry in entries] == ["one"]


async def test_a_wait_that_somebody_ends_is_not_an_acknowledgement(servers: Cluster) -> None:
    """The server answers such a commit with success, and a warning."""
    async with limpet.open(servers.url("write_quorum=2&quorum_seconds=60")) as lp:
        s = await lp.create("quorum", "ada", "ended")
        for each in servers.standbys:
            servers.kill(each)
        try:
            task = asyncio.create_task(s.append("agent.x", actor=ACTOR, id="x"))
            ended = (
                "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity "
                "WHERE wait_event = 'SyncRep'"
            )
            async with administrator(servers.primary.url) as conn:
                await becomes(conn, ended, 1)
            with pytest.raises(QuorumUnavailable):
                await task
        finally:
            for each in servers.standbys:
                servers.follow(each)
        assert (await s.append("agent.x", actor=ACTOR, id="x")).seq == 2  # once, and not again


async def test_a_deletion_whose_wait_somebody_ends_is_not_acknowledged(servers: Cluster) -> None:
    """Nor is one whose caller gives up: what it has done is shown when the quorum has it."""
    async with limpet.open(servers.url("write_quorum=2&quorum_seconds=60")) as lp:
        for name in ("ended", "cancelled"):
            await lp.create("quorum", "ada", f"gone-{name}")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        ended = waiting.replace("count(*)", "count(pg_cancel_backend(pid))")
        for each in servers.standbys:
            servers.kill(each)
        try:
            async with administrator(servers.primary.url) as conn:
                task = asyncio.create_task(lp.delete("quorum", "ada", "gone-cancelled"))
                await becomes(conn, waiting, 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await conn.fetchval(waiting) == 1, "the server was not told to end its wait"
                there = "SELECT count(*) FROM limpet.sessions WHERE id = 'gone-cancelled'"
                assert await conn.fetchval(there) == 1
                task = asyncio.create_task(lp.delete("quorum", "ada", "gone-ended"))
                await becomes(conn, waiting, 2)
                await conn.execute(ended)
                with pytest.raises(QuorumUnavailable):
                    await task
        finally:
            for each in servers.standbys:
                servers.follow(each)
        async with administrator(servers.primary.url) as conn:
            await becomes(conn, waiting, 0)
        assert await lp.find("quorum", "ada", "gone-cancelled") is None


async def test_a_primary_that_crashed_shows_nothing_that_the_quorum_lacks(
    servers: Cluster,
) -> None:
    """When it comes back it has the commits that waited when it died. Nobody reads them before the
    quorum has them, since they would be lost with it; then they are read."""
    with relayed(servers.primary.folder) as relay:
        for each in servers.standbys:
            each.stop()
            servers.follow(each, relay.folder)
        try:
            async with limpet.open(servers.url("write_quorum=2&quorum_seconds=0.3")) as lp:
                s = await lp.create("crash", "ada", "c", state={"n": 0})
                assert (await lp.get(s.key)).state["n"] == 0
                relay.silence()
                with pytest.raises(QuorumUnavailable):
                    await s.append("agent.x", actor=ACTOR, inc={"n": 1}, id="lost")
                # Before the crash a commit that waits is not shown, so reads need no quorum.
                reads = [lp.get(s.key) for _ in range(8)]
                assert {found.state["n"] for found in await asyncio.gather(*reads)} == {0}
                relay.cut()  # the standbys answer, and get nothing from the primary
                servers.primary.crash()
                servers.primary.start()
                async with administrator(servers.primary.url) as conn:
                    count = "SELECT count(*) FROM limpet.events WHERE id = 'lost'"
                    assert await conn.fetchval(count) == 1
                with pytest.raises(QuorumUnavailable) as info:
                    await lp.get(s.key)
                assert info.value.asked == "read"
                checks = {each.name: each for each in (await lp.maintenance.doctor()).checks}
                assert checks["sessions"].severity == "problem"
                assert "cluster" in checks, "the doctor looks at the servers without a quorum"
                relay.mend()
                assert (await acknowledged(s, "lost")).seq == 2
                assert (await lp.get(s.key)).state["n"] == 1
        finally:
            relay.mend()
            for each in servers.standbys:
                each.stop()
                servers.follow(each)


# --- a network that is cut -----------------------------------------------------------------------


async def test_a_cut_between_primary_and_standbys_acknowledges_nothing(servers: Cluster) -> None:
    """Every packet to them is lost, and no connection ends: the answer is QuorumUnavailable. When
    the network is back, the same id is recorded once, and others go on."""
    with relayed(servers.primary.folder) as relay:
        for each in servers.standbys:
            each.stop()
            servers.follow(each, relay.folder)
        try:
            async with limpet.open(servers.url("write_quorum=2&quorum_seconds=0.3")) as lp:
                s = await lp.create("cut", "ada", "standbys", state={"n": 0})
                start = await lp.position()
                relay.silence()
                with pytest.raises(QuorumUnavailable):
                    await s.append("agent.x", actor=ACTOR, inc={"n": 1}, id="lost")
                store = lp._services.journal.store
                assert await store.changes(start, app=None, key=None, limit=10) == ((), start)
                relay.mend()
                assert (await acknowledged(s, "lost")).seq == 2
                await acknowledged(s, "next")
                assert await _ids(await lp.get(s.key)) == ["lost", "next"]
                assert (await lp.get(s.key)).state["n"] == 2
        finally:
            relay.mend()
            for each in servers.standbys:
                each.stop()
                servers.follow(each)


async def test_a_cut_between_client_and_primary_loses_and_doubles_nothing(
    servers: Cluster,
) -> None:
    """Whatever was under way: the client goes on when the network is back, every acknowledged
    write is there once, and the feed shows each."""
    with relayed(servers.primary.folder) as relay:
        url = servers.url("write_quorum=2&quorum_seconds=5")
        url = url.replace(str(servers.primary.folder), str(relay.folder))
        async with limpet.open(url) as lp:
            s = await lp.create("cut", "ada", "client", state={"n": 0})
            start = await lp.position()
            for number in range(5):
                task = asyncio.create_task(acknowledged(s, f"{number}"))
                before = relay.carried
                await until(lambda before=before: relay.carried > before)  # it is on its way
                relay.cut()
                relay.mend()
                await task
            written = [f"{number}" for number in range(5)]
            assert await _ids(await lp.get(s.key)) == written
            assert (await lp.get(s.key)).state["n"] == 5
            store = lp._services.journal.store
            entries, _ = await store.changes(start, app="cut", key=s.key, limit=20)
            assert [entry.event.id for entry in entries] == written


async def acknowledged(s: limpet.Session, id: str) -> limpet.Event:
    """Append until it is acknowledged, always with the same id."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            return await s.append("agent.x", actor=ACTOR, inc={"n": 1}, id=id)
        except limpet.StoreError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise


# --- replicas that are behind --------------------------------------------------------------------


async def test_a_session_reads_its_own_writes_from_any_replica(servers: Cluster) -> None:
    """As the URL says: it fails, the primary answers, or it waits. Others are read as they are."""
    url = "write_quorum=2&reads=any&behind="
    async with (
        limpet.open(servers.url(f"{url}fail")) as fails,
        limpet.open(servers.url(f"{url}primary")) as asks,
        limpet.open(servers.url(f"{url}wait")) as waits,
    ):
        every = {"fail": fails, "primary": asks, "wait": waits}
        for name, lp in every.items():
            s = await waits.create("causal", "ada", name, state={"n": 0})
            await until_seen(lp, s.key)
        async with held_back(servers):
            for name, lp in every.items():
                await lp.session("causal", "ada", name).append("agent.x", actor=ACTOR, inc={"n": 1})
            with pytest.raises(ReplicaBehind) as info:
                await fails.get("causal", "ada", "fail")
            assert info.value.retryable
            # Another's session has no token here: the replica answers, with what it has.
            assert (await fails.get("causal", "ada", "wait")).state["n"] == 0
            assert (await asks.get("causal", "ada", "primary")).state["n"] == 1
            task = asyncio.create_task(waits.get("causal", "ada", "wait"))
            await asyncio.sleep(0)
        assert (await task).state["n"] == 1
        await until_seen(fails, limpet.Key("causal", "ada", "fail"))
        assert (await fails.get("causal", "ada", "fail")).state["n"] == 1


async def test_a_commit_is_not_seen_because_a_later_one_is(servers: Cluster) -> None:
    """Transactions commit in another order than they begin: a standby that has replayed the later
    one has not caught up with the earlier one, though its snapshots do not list it."""
    async with (
        limpet.open(servers.url()) as lp,
        administrator(servers.primary.url) as slow,
        administrator(servers.primary.url) as quick,
        administrator(servers.standbys[0].url) as standby,
    ):
        await lp.create("causal", "ada", "order")
        emit = (
            "SELECT limpet.stamp(pg_current_xact_id())::text "
            "FROM pg_logical_emit_message(true, 'limpet', '')"
        )
        change = slow.transaction()
        await change.start()
        earlier = int(await slow.fetchval(emit))
        later = int(await quick.fetchval(emit))
        seen = "SELECT limpet.seen($1)"
        await becomes(standby, seen.replace("$1", str(later)), answer=True)
        assert not await standby.fetchval(seen, earlier)
        await change.commit()
        await becomes(standby, seen.replace("$1", str(earlier)), answer=True)


async def test_a_deletion_is_seen_by_who_made_it(servers: Cluster) -> None:
    """It has no token; how far the log was written stands for one."""
    async with limpet.open(servers.url("write_quorum=2&reads=any&behind=fail")) as lp:
        s = await lp.create("causal", "ada", "gone")
        await until_seen(lp, s.key)
        async with held_back(servers):
            await lp._services.journal.store.delete(s.key)
            with pytest.raises(ReplicaBehind):
                await lp.get(s.key)


async def until_seen(lp: limpet.Limpet, key: limpet.Key) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(ReplicaBehind, limpet.SessionNotFound):
            await lp.get(key)
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the replica never caught up")


async def test_the_doctor_looks_at_every_server(servers: Cluster) -> None:
    async with limpet.open(servers.url()) as lp:
        found = {check.name: check for check in (await lp.maintenance.doctor()).checks}
        assert found["cluster"].ok, found["cluster"]
        assert "3 of 3 servers answer" in found["cluster"].found
        assert found["quorum"].ok
        lost, other = servers.standbys
        servers.kill(lost)
        try:
            found = {check.name: check for check in (await lp.maintenance.doctor()).checks}
            assert found["cluster"].severity == "warning"
            assert "2 of 3 servers answer" in found["cluster"].found
            servers.kill(other)
            found = {check.name: check for check in (await lp.maintenance.doctor()).checks}
            assert found["cluster"].severity == "problem"
            assert "1 of 3 servers answer" in found["cluster"].found
            assert "fewer than the quorum of 2" in found["cluster"].found
        finally:
            servers.follow(lost)
            servers.follow(other)


# --- failovers -----------------------------------------------------------------------------------


async def test_failovers_lose_nothing_that_was_acknowledged() -> None:
    """Two clients write to the same sessions: every acknowledged write is there once, writes and
    reads of the primary are linearizable, each counter has counted, the feed goes on from its
    position, and who reads from replicas sees its own writes."""
    with replicating() as servers:
        url = servers.url("write_quorum=2&quorum_seconds=20")
        async with limpet.open(f"{url}&reads=any") as near, limpet.open(url) as far:
            load = Load(near, far)
            await load.begin()
            for _ in range(tries(5, 100)):
                await load.go_on()
                old = await asyncio.to_thread(servers.fail_over)
                before = len(load.acknowledged)
                await until(lambda before=before: len(load.acknowledged) > before)
                await asyncio.to_thread(servers.join, old)
            await load.go_on()
            await load.end()
            await load.check()
        await _old_primary(servers)


async def test_workers_and_followers_go_on_over_a_failover() -> None:
    """What was asked before and while the primary died is answered, each effect happens once, and a
    follower has every event, in order, and partial ones again."""
    paid: list[str] = []

    def pay(order: str) -> None:
        paid.append(order)

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", pay, order=turn.inputs[0].id)
        await turn.say("done")

    with replicating() as servers:
        url = servers.url("write_quorum=2&quorum_seconds=20")
        elsewhere = f"{url}&application_name=worker"
        async with limpet.open(url) as lp, limpet.open(elsewhere) as other:
            s = await lp.create("shop", "ada", "c1", actor="user:ada")
            seen: list[limpet.Event] = []

            async def follow() -> None:
                async for event in lp.session(s.key).follow():
                    seen.append(event)

            def answers() -> int:
                return sum([event.type == "agent.message" for event in seen if not event.partial])

            tasks = [
                asyncio.create_task(follow()),
                asyncio.create_task(limpet.Worker(other, harness, app="shop").run()),
            ]
            for asked in ("before", "meanwhile", "after"):
                dying = asked == "meanwhile"
                killing = asyncio.to_thread(servers.fail_over) if dying else asyncio.sleep(0)
                killed = asyncio.create_task(killing)
                await s.append("user.message", {"text": asked}, id=asked)
                await killed
                await until(lambda asked=asked: answers() == len(paid) and asked in paid)
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while not any([event.partial for event in seen]):
                assert time.monotonic() < deadline, "no partial event came"
                await s.append("agent.message", {"text": "do"}, actor=ACTOR, partial=True)
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert paid == ["before", "meanwhile", "after"]
    seqs = [event.seq for event in seen if not event.partial]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_a_primary_that_is_cut_off_acknowledges_nothing_and_is_left() -> None:
    """It lives on beside the one that was promoted, and clients reach it. What waits there is
    recorded once, on the new one; who only reads leaves it, too."""
    with replicating() as servers, relayed(servers.primary.folder) as relay:
        for each in servers.standbys:
            each.stop()
            servers.follow(each, relay.folder)
        url = servers.url("write_quorum=2&quorum_seconds=0.3")
        async with limpet.open(url) as writes, limpet.open(f"{url}&application_name=r") as reads:
            s = await writes.create("cut", "ada", "off", state={"n": 0})
            assert (await reads.get(s.key)).state["n"] == 0
            relay.silence()
            with pytest.raises(QuorumUnavailable):
                await s.append("agent.x", actor=ACTOR, inc={"n": 1}, id="one")
            relay.cut()
            await asyncio.to_thread(servers.promote)
            assert (await acknowledged(s, "one")).seq == 2
            async with administrator(servers.servers[0].url) as conn:
                assert not await conn.fetchval("SELECT pg_is_in_recovery()"), "it lives on"
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while (await reads.get(s.key)).state["n"] == 0:
                assert time.monotonic() < deadline, "it is still read"
                await asyncio.sleep(0.01)
            assert (await writes.get(s.key)).state["n"] == 1
            assert await _ids(await reads.get(s.key)) == ["one"]


async def _old_primary(servers: Cluster) -> None:
    """One that comes back as it was, on the old timeline, is not taken for the primary: neither by
    who knew the new one, nor by who opens the store now."""
    async with limpet.open(servers.url("write_quorum=2&quorum_seconds=20")) as lp:
        s = lp.session("load", "ada", "0")
        await s.refresh()
        old = await asyncio.to_thread(servers.fail_over)
        await s.append("agent.x", actor=ACTOR, id="after")
        with suppress(FileNotFoundError):
            (old.data / "standby.signal").unlink()
        await asyncio.to_thread(old.start)  # it believes that nothing has happened
        await s.append("agent.x", actor=ACTOR, id="later")
        other = servers.url("write_quorum=2&quorum_seconds=20&application_name=other")
        async with limpet.open(other) as fresh:
            found = await fresh.get("load", "ada", "0")
            ids = {event.id for event in await found.read(limit=10, reverse=True)}
            assert {"after", "later"} <= ids
            checks = {check.name: check for check in (await fresh.maintenance.doctor()).checks}
            assert checks["cluster"].severity == "problem"
            assert "timeline" in checks["cluster"].found


async def _ids(s: limpet.Session) -> list[str]:
    """The ids of what was appended, in order."""
    found: list[str] = []
    after = 0
    while page := await s.read(after=after, limit=200):
        found += [event.id for event in page if event.type == "agent.x"]
        after = page[-1].seq
    return found


class Operation(NamedTuple):
    """A write, or a read, of one session: when its caller had it under way, and the event that it
    recorded, or the newest that it saw."""

    began: float
    ended: float
    seq: int
    is_read: bool

    @property
    def place(self) -> tuple[int, bool]:
        """Its place in the order of the log: a read stands behind the event that it saw."""
        return self.seq, self.is_read


def out_of_order(operations: Iterable[Operation]) -> tuple[Operation, Operation] | None:
    """Two operations of which the first ended before the other began, and stands behind it in the
    log. Without such a pair the history is linearizable: the log is an order that every caller
    could have seen."""
    ends = deque(sorted(operations, key=lambda each: each.ended))
    last: Operation | None = None
    for each in sorted(ends, key=lambda each: each.began):
        while ends and ends[0].ended < each.began:
            last = max([ends.popleft(), *([last] if last else [])], key=lambda one: one.place)
        if last is not None and last.place > each.place:
            return last, each
    return None


def test_a_history_that_is_not_linearizable_is_found() -> None:
    """A read that misses what was acknowledged before it began, one that goes back, one that sees
    what nobody had begun to write, and a write that is recorded before an older one."""
    write, read = Operation(1, 2, 7, is_read=False), Operation(3, 4, 7, is_read=True)
    good = [write, read, Operation(1.5, 9, 8, is_read=False), Operation(3.5, 5, 8, is_read=True)]
    assert out_of_order(good) is None
    stale, future = Operation(5, 6, 6, is_read=True), Operation(0, 0.5, 7, is_read=True)
    late = Operation(5, 6, 5, is_read=False)
    for wrong in (stale, future, late):
        assert out_of_order([*good, wrong]) is not None
    assert out_of_order([Operation(3, 4, 9, is_read=True), Operation(5, 6, 8, is_read=True)])


class Load:
    """Sessions that two clients write to at once, and read. One reads from the primary, the other
    from any server. A reader of the feed goes on from its position."""

    def __init__(self, near: limpet.Limpet, far: limpet.Limpet) -> None:
        self._near, self._far = near, far
        self.acknowledged: list[str] = []
        self._operations: dict[limpet.Key, list[Operation]] = {}
        self._seen: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = False

    async def begin(self) -> None:
        for number in range(3):
            key = (await self._near.create("load", "ada", f"{number}", state={"n": 0})).key
            self._operations[key] = []
            for work in (self._write(self._near, key), self._write(self._far, key)):
                self._tasks.append(asyncio.create_task(work))
            self._tasks.append(asyncio.create_task(self._read(key)))
        self._tasks.append(asyncio.create_task(self._follow()))

    async def _write(self, lp: limpet.Limpet, key: limpet.Key) -> None:
        s, done = lp.session(key), 0
        while not self._stop:
            id = f"{'near' if lp is self._near else 'far'}-{key.id}-{done}"
            began = time.monotonic()
            event = await acknowledged(s, id)
            self._note(key, began, event.seq, is_read=False)
            self.acknowledged.append(id)
            done += 1
            with suppress(ReplicaBehind):  # an own write is never missing
                assert (await lp.get(key, tail=0)).version >= event.seq

    async def _read(self, key: limpet.Key) -> None:
        while not self._stop:
            began = time.monotonic()
            with suppress(QuorumUnavailable):
                self._note(key, began, (await self._far.get(key, tail=0)).version, is_read=True)
            await asyncio.sleep(0.01)  # others share the cores

    def _note(self, key: limpet.Key, began: float, seq: int, *, is_read: bool) -> None:
        made = Operation(began, time.monotonic(), seq, is_read)
        self._operations[key].append(made)

    async def _follow(self) -> None:
        async for entry in self._near.watch(app="load", after=None):
            self._seen.append(entry.event.id)

    async def go_on(self) -> None:
        goal = len(self.acknowledged) + 10
        await until(lambda: len(self.acknowledged) >= goal or self._failed())

    def _failed(self) -> bool:
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception():
                raise task.exception()  # type: ignore[misc]
        return False

    async def end(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks[:-1])

    async def check(self) -> None:
        await until(lambda: set(self.acknowledged) <= set(self._seen) or self._failed())
        self._tasks[-1].cancel()
        await asyncio.gather(self._tasks[-1], return_exceptions=True)
        mine = [id for id in self._seen if id in set(self.acknowledged)]
        assert len(mine) == len(set(mine)) == len(self.acknowledged)
        for key, operations in self._operations.items():
            s = await self._far.get(key)
            ids = await _ids(s)
            written = {id for id in self.acknowledged if id.split("-")[1] == key.id}
            assert (len(ids), set(ids)) == (len(written), written)
            assert s.state["n"] == len(ids)
            assert [id for id in mine if id in written] == ids
            assert out_of_order(operations) is None
            assert sum([not each.is_read for each in operations]) == len(ids)
        assert (await self._far.maintenance.verify()).ok
