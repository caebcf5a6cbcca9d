"""The memory store is the specification: the others, driven beside it, give the same answers.

Two doors lead to each store (for SQLite and PostgreSQL: two stores with caches of their own, as two
processes would have), which are closed and reopened in between. Compared are every answer, every
error and all that the live objects show; times are the same because the clock is.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from limpet import (
    Draft,
    Erasure,
    Event,
    Head,
    Key,
    Lease,
    Limpet,
    LimpetError,
    Page,
    Rewound,
    Session,
    State,
)
from limpet.model.commit import Commit
from limpet.model.events import to_time
from limpet.model.facts.creation import FORKED
from limpet.model.fold import Fold
from limpet.model.lease import with_lease
from limpet.session.writer import writer_of
from limpet.store import cache
from limpet.store.files.store import FilesStore
from limpet.store.memory import MemoryStore
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.protocol import Loaded
from limpet.store.sqlite import writer
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from limpet.testing.commits import draft as noted
from limpet.testing.histories import base_at, forking
from tests.property.strategies import GIVEN_IDS, TYPES, append_arguments, drafts, values
from tests.property.typed_rules import TypedRules
from tests.support import postgres
from tests.support.disks import DiskFaults, FaultyDisk
from tests.support.inside import on_writer

ACTOR = "test:agree"
MAIN, SECOND, THIRD, FOURTH = (
    Key("shop", "ada", "1"),
    Key("shop", "bob", "1"),
    Key("shop", "ada", "2"),
    Key("bank", "ada", "1"),
)
# Few, and one of them often: what goes wrong does so between several writes to one session.
keys = st.sampled_from([MAIN, MAIN, MAIN, SECOND, SECOND, THIRD, FOURTH])
workers = st.sampled_from(["w1", "w2"])
labels = st.dictionaries(st.sampled_from(["plan", "tier"]), st.sampled_from(["gold", "free"]))
states = st.dictionaries(st.sampled_from(["a", "n", "app:n", "user:n", "list"]), values, max_size=3)
doors = st.sampled_from(["object", "handle", "other"])
expects = st.sampled_from([None, None, None, "right", "stale", "ahead"])
type_lists = st.none() | st.lists(
    st.sampled_from([*TYPES, "user.*", "agent.*", "session.*"]), max_size=3
)

Part: TypeAlias = tuple[Key, dict[str, Any], str | None]


class Side:
    """One store with its two doors and the live objects of its sessions."""

    def __init__(self, one: Limpet, other: Limpet) -> None:
        self.one, self.other = one, other
        self.objects: dict[Key, Session] = {}
        self.typed: dict[tuple[Key, type[State]], Session[Any]] = {}

    def at(self, door: str, key: Key) -> Session:
        if door == "object" and key in self.objects:
            return self.objects[key]
        lp = self.other if door == "other" else self.one
        return lp.session(key, actor=ACTOR)


# --- what is compared ----------------------------------------------------------------------------


def plain(answer: Any) -> Any:
    """An answer without what a store makes up by itself: new ids, links, cursors."""
    match answer:
        case Event():
            id = answer.id if answer.id in GIVEN_IDS else "*"
            data = "*" if answer.type == FORKED else answer.data  # it names its parent's uid
            rest = (answer.seq, answer.type, answer.actor, answer.at_us, data, answer.ops)
            causes = (answer.cause, answer.correlation_id, answer.processed_us, answer.damage)
            more = (answer.processed, answer.removed, answer.repeated)
            return ("event", id, *rest, *causes, *more)
        case Head():
            times = (answer.created_us, answer.updated_us, answer.pending, answer.pending_us)
            folded = (dict(answer.labels), dict(answer.timers), answer.priority)
            lease = (answer.fence, answer.lease_us, answer.worker, answer.deleted_us)
            more = (answer.leased_us, answer.active_us, answer.floor, answer.ending)
            typed = (answer.schema_version,)
            return ("head", answer.key, answer.version, *times, *folded, *lease, *more, *typed)
        case Lease():
            return structs.replace(answer, uid="")
        case Session():
            if writer_of(answer).known.scopes is None:
                return ("handle", answer.key)
            return (
                "session",
                plain(answer.head),
                dict(answer.values),
                plain(answer.events),
                answer.history.damaged,
            )
        case Fold():
            return ("fold", plain(answer.head), answer.fields, answer.versions)
        case Loaded():
            rest = (answer.fields, answer.versions, answer.scopes, answer.damaged)
            return ("loaded", plain(answer.head), *rest, plain(answer.events))
        case Page():
            states = (list(answer.states.items()), answer.damaged)
            return ("page", plain(answer.items), answer.cursor is None, *states)
        case Erasure():
            return ("erasure", answer.version, answer.erased_us)
        case Rewound():
            return ("rewound", plain(answer.event), answer.restored, answer.left)
        case LimpetError():
            return ("error", answer.code, str(answer))
        case tuple() | list():
            return [plain(item) for item in answer]
        case _:
            return answer


class StoresAgree(TypedRules):
    """Every rule asks both stores the same and compares. SQLite is the one beside memory."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.sides: list[Side] = []
        self.leases: list[Lease] = []

    @initialize(labels=labels, state=states)
    def open(self, labels: dict[str, str], state: dict[str, Any]) -> None:
        memory = MemoryStore(self.clock.clock())
        self.runner.run(self._open(memory))
        for key in (MAIN, SECOND):
            self.create(key, state, labels, "object")

    async def _open(self, memory: MemoryStore) -> None:
        await self._begin()
        doors = [await self._door(memory) for _ in range(2)]
        others = [await self._door(await self._store()) for _ in range(2)]
        self.sides = [Side(*doors), Side(*others)]

    async def _begin(self) -> None:
        """Before a run: there is nothing in the store."""

    async def _store(self) -> Any:
        """Open the store that is compared."""
        path = Path(self.directory.name) / "agree.db"
        return await SQLiteStore.open(path, sync="off", clock=self.clock.clock())

    async def _door(self, store: Any) -> Limpet:
        return await Limpet("test://", store=store).__aenter__()

    def teardown(self) -> None:
        try:
            if self.sides:
                self.runner.run(self._end())
        finally:
            self.runner.close()
            self.directory.cleanup()

    async def _end(self) -> None:
        for side in self.sides:
            assert (await side.one.maintenance.verify()).findings == ()
        for side in self.sides:
            await side.one.close()
            await side.other.close()

    def _ordered(self, parts: list[Part]) -> list[Part]:
        """Those whose order is promised when all are sent at once. One writer takes all in turn."""
        return parts

    async def _clock_moved(self) -> None:
        """SQLite reads our clock by itself."""

    def both(self, ask: Callable[[Side], Awaitable[Any]]) -> Any:  # type: ignore[override]
        """Ask both sides, compare, and give the memory store's answer."""
        return self.runner.run(self._both(ask))

    async def _both(self, ask: Callable[[Side], Awaitable[Any]]) -> Any:
        answers = []
        for side in self.sides:
            try:
                answers.append(await ask(side))
            except LimpetError as error:
                answers.append(error)
        memory, other = answers
        assert plain(other) == plain(memory)
        return memory

    def version(self, key: Key) -> int:
        kept = self.sides[0].one._journal.store._kept.get(key)  # type: ignore[union-attr]
        return 0 if kept is None else kept.fold.head.version

    def expected(self, key: Key, expect: str | None) -> int | None:
        version = self.version(key)
        match expect:
            case "right":
                return version
            case "stale":
                return max(version - 1, 1)
            case "ahead":
                return version + 3
            case _:
                return None

    # --- time and place ------------------------------------------------------------------------

    @rule(seconds=st.integers(0, 5_000), back=st.booleans())
    def time_passes(self, seconds: int, back: bool) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        if back:
            self.clock.leap(-timedelta(seconds=seconds * 2))
        self.runner.run(self._clock_moved())

    @rule()
    def reopen(self) -> None:
        async def again() -> None:
            side = self.sides[1]
            known = list(side.objects)
            await side.one.close()
            await side.other.close()
            side.one = await self._door(await self._store())
            side.other = await self._door(await self._store())
            for side in self.sides:
                side.objects, side.typed = {}, {}
                for key in known:
                    found = await side.one.find(key, tail=3)
                    if found is not None:
                        side.objects[key] = found
                        found.actor = ACTOR

        self.runner.run(again())

    @rule()
    def evict(self) -> None:
        """The store forgets everything that it had in memory."""
        for lp in (self.sides[1].one, self.sides[1].other):
            self.runner.run(self._forget(lp._journal.store))

    async def _forget(self, store: Any) -> None:
        await on_writer(store, lambda writer: writer.cache.clear())

    # --- sessions ------------------------------------------------------------------------------

    @rule(
        key=keys,
        state=st.dictionaries(
            st.sampled_from(["a", "n", "app:n", "user:n", "list"]), values, max_size=3
        ),
        labels=labels,
        door=doors,
        reuse=st.booleans(),
    )
    def create(
        self,
        key: Key,
        state: dict[str, Any],
        labels: dict[str, str],
        door: str,
        reuse: bool = False,
    ) -> None:
        async def ask(side: Side) -> Any:
            lp = side.other if door == "other" else side.one
            how: dict[str, Any] = {"state": state, "labels": labels, "reuse_deleted": reuse}
            made = await lp.create(key.app, key.user, id=key.id, **how)
            made.actor = ACTOR
            if lp is side.one:
                side.objects[key] = made
            return made

        self.both(ask)

    @rule(key=keys, tail=st.none() | st.integers(0, 30), hours=st.none() | st.integers(0, 3))
    def get(self, key: Key, tail: int | None, hours: int | None) -> None:
        since = None if hours is None else to_time(self.clock.now_us) - timedelta(hours=hours)

        async def ask(side: Side) -> Any:
            found = await side.one.get(key, tail=tail, since=since)
            if since is None:
                side.objects[key] = found
                found.actor = ACTOR
            return found

        self.both(ask)

    @rule(key=keys, tail=st.integers(0, 12), other=st.booleans())
    def load(self, key: Key, tail: int, other: bool) -> None:
        """What the store itself says: versions of fields and scopes are in it."""

        async def ask(side: Side) -> Any:
            store = (side.other if other else side.one)._journal.store
            assert store is not None
            return await store.load(key, tail=tail)

        self.both(ask)

    @rule(key=keys, tail=st.integers(0, 10))
    def refresh(self, key: Key, tail: int) -> None:
        async def ask(side: Side) -> Any:
            return await side.at("object", key).refresh(tail=tail)

        self.both(ask)

    @rule(key=keys)
    def delete(self, key: Key) -> None:
        self.both(lambda side: side.one.delete(key))

    @rule(key=keys, other=st.booleans(), forks=st.sampled_from(["refuse", "erase", "keep"]))
    def erase(self, key: Key, other: bool, forks: Any) -> None:
        def store(side: Side) -> Any:
            return (side.other if other else side.one)._journal.store

        self.both(lambda side: store(side).erase(key, forks=forks))

    # --- histories -----------------------------------------------------------------------------

    @rule(key=keys, parent=keys, back=st.integers(0, 6), reuse=st.booleans())
    def fork(self, key: Key, parent: Key, back: int, reuse: bool) -> None:
        floor = max(1, self.version(parent) - back)

        async def ask(side: Side) -> Any:
            store: Any = side.one._journal.store
            made = forking(key, await base_at(store, parent, floor))
            (answer,) = await store.commit([structs.replace(made, reuse=reuse)])
            return answer.head

        self.both(ask)

    @rule(key=keys, back=st.integers(1, 6), door=doors)
    def rewind(self, key: Key, back: int, door: str) -> None:
        """What is taken back of shared names too, whoever wrote them and is gone by now."""
        seq = max(1, self.version(key) - back)

        self.both(lambda side: side.at(door, key).rewind(seq, actor=ACTOR))

    @rule(
        key=keys,
        name=st.sampled_from(["app:n", "user:n"]),
        ends=st.sampled_from([(), ("delete",), ("erase",), ("delete", "erase"), ("fork", "erase")]),
    )
    def take_turns(self, key: Key, name: str, ends: tuple[str, ...]) -> None:
        """Another session writes a name and is gone before this one does: what is left of it
        decides whether a rewind takes the name back."""
        other = Key(key.app, key.user, f"gone-{self.clock.now_us}")
        self.create(other, {name: 1}, {}, "handle")
        self.time_passes(1, back=False)
        self.both(lambda side: side.at("handle", key).append("a.b", actor=ACTOR))
        seq = max(1, self.version(key))
        if "fork" in ends:
            self.fork(Key(key.app, key.user, f"{other.id}-fork"), other, 0, reuse=False)
        if "delete" in ends:
            self.delete(other)
        if "erase" in ends:
            self.erase(other, other=False, forks="keep")
        self.both(lambda side: side.at("handle", key).append("a.b", actor=ACTOR, set={name: 2}))
        self.both(lambda side: side.one._journal.store.names_since(key, seq, [name]))
        self.both(lambda side: side.at("handle", key).rewind(seq, actor=ACTOR))

    @rule(key=keys, seq=st.integers(1, 25), pin=st.booleans())
    def fold_at(self, key: Key, seq: int, pin: bool) -> None:
        """Any version, also after one that was pinned just now."""

        async def ask(side: Side) -> Any:
            store: Any = side.one._journal.store
            if pin:
                await store.commit([Commit(key, (noted(),), pin=seq)])
            return await store.fold_at(key, seq), await store.forks(key)

        self.both(ask)

    # --- writing -------------------------------------------------------------------------------

    @rule(key=keys, draft=drafts(), door=doors, expect=expects)
    def append(self, key: Key, draft: dict[str, Any], door: str, expect: str | None) -> None:
        version = self.expected(key, expect)
        self.both(
            lambda side: side.at(door, key).append(
                **append_arguments(draft), actor=ACTOR, expect=version
            )
        )

    @rule(key=keys, batch=st.lists(drafts(), max_size=4), door=doors, expect=expects)
    def append_many(
        self, key: Key, batch: list[dict[str, Any]], door: str, expect: str | None
    ) -> None:
        version = self.expected(key, expect)
        made = [Draft(**draft) for draft in batch]
        self.both(lambda side: side.at(door, key).append_many(made, actor=ACTOR, expect=version))

    @rule(
        parts=st.lists(st.tuples(keys, drafts(), expects), min_size=1, max_size=5),
        door=st.sampled_from(["object", "other"]),
    )
    def commit(self, parts: list[Part], door: str) -> None:
        versions = [self.expected(key, expect) for key, _, expect in parts]

        async def ask(side: Side) -> Any:
            lp = side.other if door == "other" else side.one
            async with lp.commit() as commit:
                for (key, draft, _), version in zip(parts, versions, strict=True):
                    target = side.at(door, key)
                    commit.append(target, **append_arguments(draft), actor=ACTOR, expect=version)
            return commit.events

        self.both(ask)

    # temp: belongs to the live object, which shares no transaction: there the order of wakings
    # decides what is refused, and a store that never waits has another.
    @rule(parts=st.lists(st.tuples(keys, drafts(temp=False), expects), min_size=2, max_size=8))
    def append_at_once(self, parts: list[Part]) -> None:
        """Callers that share a transaction do not fail each other and keep their order."""
        parts = self._ordered(parts)
        versions = [self.expected(key, expect) for key, _, expect in parts]

        async def ask(side: Side) -> Any:
            tasks = [
                side.at("object", key).append(
                    **append_arguments(draft), actor=ACTOR, expect=version
                )
                for (key, draft, _), version in zip(parts, versions, strict=True)
            ]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, LimpetError):
                    raise result
            return results

        self.both(ask)

    @rule(key=keys, name=st.sampled_from(["n", "app:n", "user:n", "a"]), door=doors)
    def update(self, key: Key, name: str, door: str) -> None:
        def change(state: Any) -> dict[str, Any]:
            before = state.get(name)
            return {name: before + 1 if type(before) is int and abs(before) < 2**60 else 0}

        self.both(lambda side: side.at(door, key).update(change, actor=ACTOR))

    @rule(
        key=keys,
        changes=st.dictionaries(
            st.sampled_from(["plan", "tier"]), st.none() | st.sampled_from(["gold", "free"])
        ),
        door=doors,
    )
    def label(self, key: Key, changes: dict[str, str | None], door: str) -> None:
        self.both(lambda side: side.at(door, key).label(changes, actor=ACTOR))

    @rule(
        key=keys,
        name=st.sampled_from("xy"),
        hours=st.integers(-2, 50),
        kind=st.sampled_from(["wake", "deadline"]),
        clear=st.booleans(),
        door=doors,
    )
    def timer(self, key: Key, name: str, hours: int, kind: Any, clear: bool, door: str) -> None:
        at = to_time(self.clock.now_us) + timedelta(hours=hours)
        if clear:
            self.both(lambda side: side.at(door, key).lifecycle.clear_timer(name, actor=ACTOR))
        else:
            self.both(
                lambda side: side.at(door, key).lifecycle.set_timer(
                    name, at, kind=kind, actor=ACTOR
                )
            )

    @rule(key=keys, seqs=st.lists(st.integers(1, 12), min_size=1, max_size=3), door=doors)
    def mark_processed(self, key: Key, seqs: list[int], door: str) -> None:
        self.both(lambda side: side.at(door, key).mark_processed(seqs, actor=ACTOR))

    @rule(key=keys, size=st.integers(9_000, 80_000))
    def write_much(self, key: Key, size: int) -> None:
        """Enough to make a snapshot due, in the background or at the next close."""
        text = "x" * size
        self.both(
            lambda side: side.at("object", key).append(
                "user.said", {"text": text}, actor=ACTOR, set={"b": text, "user:big": text}
            )
        )

    @rule(key=keys, times=st.integers(1, 4))
    def grow_scope(self, key: Key, times: int) -> None:
        """A scope value that is large and grows is written by op, not whole."""
        for number in range(times):
            items = ["y" * 400, number]
            self.both(
                lambda side, items=items: side.at("object", key).append(
                    "tool.ran", actor=ACTOR, add={"app:list": items, "user:list": items}
                )
            )

    # --- work ----------------------------------------------------------------------------------

    @rule(key=keys, priority=st.integers(-2, 2), door=doors)
    def prioritize(self, key: Key, priority: int, door: str) -> None:
        self.both(lambda side: side.at(door, key).lifecycle.set_priority(priority, actor=ACTOR))

    @rule(
        worker=workers,
        limit=st.integers(1, 4),
        hours=st.integers(1, 3),
        app=st.none() | st.sampled_from(["shop", "bank"]),
        other=st.booleans(),
    )
    def claim(self, worker: str, limit: int, hours: int, app: str | None, other: bool) -> None:
        async def ask(side: Side) -> Any:
            lp = side.other if other else side.one
            seconds = 3_600 * hours
            leases = await lp.work.claim(worker, limit=limit, lease_seconds=seconds, app=app)
            # Without its uid, which each store makes up, a lease is good on both sides.
            self.leases = [*map(plain, leases), *self.leases][:12]
            return leases

        self.both(ask)

    @rule(key=keys, worker=workers, hours=st.integers(1, 3), other=st.booleans())
    def lock(self, key: Key, worker: str, hours: int, other: bool) -> None:
        async def ask(side: Side) -> Any:
            lp = side.other if other else side.one
            lease = await lp.work.lock(key, worker=worker, lease_seconds=3_600 * hours)
            self.leases = [plain(lease), *self.leases][:12]
            return lease

        self.both(ask)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        other=st.booleans(),
        how=st.sampled_from(["renew", "release", "hold back", "write", "close"]),
    )
    def under_a_lease(self, data: st.DataObject, other: bool, how: str) -> None:
        lease = data.draw(st.sampled_from(self.leases))

        async def ask(side: Side) -> Any:
            lp = side.other if other else side.one
            if how == "renew":
                return await lp.work.renew(lease, lease_seconds=3_600)
            if how == "release":
                return await lp.work.release(lease)
            if how == "hold back":
                return await lp.work.release(lease, retry_seconds=3_600)
            session = lp.session(lease.key, actor=ACTOR, lease=lease)
            if how == "close":
                async with lp.commit() as commit:
                    commit.append(session, "agent.said")
                    commit.release(lease)
            else:
                await session.append("agent.said", inc={"n": 1})
            return session.head

        self.both(ask)

    # --- reading -------------------------------------------------------------------------------

    @rule(
        key=keys,
        after=st.integers(0, 25),
        before=st.none() | st.integers(1, 25),
        limit=st.integers(1, 12),
        reverse=st.none() | st.booleans(),
        types=type_lists,
        other=st.booleans(),
    )
    def read(
        self,
        key: Key,
        after: int,
        before: int | None,
        limit: int,
        reverse: bool | None,
        types: list[str] | None,
        other: bool,
    ) -> None:
        door = "other" if other else "handle"
        self.both(
            lambda side: side.at(door, key).read(
                after=after, before=before, limit=limit, reverse=reverse, types=types
            )
        )

    @rule(
        app=st.sampled_from([None, "shop", "shop", "shop", "bank"]),
        user=st.sampled_from([None, None, "ada", "bob"]),
        label=st.none() | labels,
        order=st.sampled_from(["created", "updated", "key"]),
        reverse=st.booleans(),
        created=st.none() | st.integers(0, 3),
        updated=st.none() | st.integers(0, 3),
        limit=st.integers(1, 4),
        kind=st.sampled_from(["heads", "states", "deleted"]),
    )
    def list(
        self,
        app: str | None,
        user: str | None,
        label: dict[str, str] | None,
        order: Any,
        reverse: bool,
        created: int | None,
        updated: int | None,
        limit: int,
        kind: str,
    ) -> None:
        now = to_time(self.clock.now_us)
        when = {
            name: None if hours is None else now - timedelta(hours=hours)
            for name, hours in (("created_after", created), ("updated_after", updated))
        }

        async def ask(side: Side) -> Any:
            pages: list[Page[Head]] = []
            cursor = None
            while True:
                page = await side.one.list(
                    app=app,
                    user=user,
                    labels=label,
                    order=order,
                    reverse=reverse,
                    deleted=kind == "deleted",
                    state=kind == "states",
                    limit=limit,
                    cursor=cursor,
                    **when,
                )
                pages.append(page)
                cursor = page.cursor
                if cursor is None:
                    return pages

        self.both(ask)

    @rule(key=st.none() | keys)
    def verify(self, key: Key | None) -> None:
        async def ask(side: Side) -> Any:
            report = await side.one.maintenance.verify(key)
            return (report.sessions, report.events, report.findings)

        report = self.both(ask)
        assert isinstance(report, LimpetError) or report[2] == ()

    # --- always --------------------------------------------------------------------------------

    @invariant()
    def live_objects_agree(self) -> None:
        if not self.sides:
            return
        memory, other = self.sides
        assert memory.typed.keys() == other.typed.keys()
        for of, kept in memory.typed.items():
            assert plain(other.typed[of]) == plain(kept)
        assert memory.objects.keys() == other.objects.keys()
        for key, session in memory.objects.items():
            assert plain(other.objects[key]) == plain(session)
            seqs = [event.seq for event in session.events]
            if seqs:  # the newest events, without a gap
                assert seqs == [*range(seqs[0], session.version + 1)]


class _Exact(ServerClock):
    """What it learnt stays as good: the clock that it counts by is the server's."""

    def _aged_us(self, local_us: int) -> int:
        return 0


class PostgresAgrees(StoresAgree):
    """PostgreSQL is the one beside memory. It dates by a clock of its own, which is made ours."""

    url: str

    async def _begin(self) -> None:
        await postgres.cleared(self.url)
        conn = await asyncpg.connect(self.url)
        self.its_own = await conn.fetchval("SELECT pg_get_functiondef('limpet.now_us'::regproc)")
        await conn.close()
        await self._clock_moved()

    async def _store(self) -> Any:
        clock = _Exact(self.clock.wall)
        return await PostgresStore.open(self.url, connections=6, clock=clock)

    def _ordered(self, parts: list[Part]) -> list[Part]:
        """Those to one session that nothing refuses. Others go over other connections and may
        overtake, and what is refused is judged again once its neighbours are in."""
        first = parts[0][0]
        same = [(draft["type"], draft.get("data")) for key, draft, _ in parts if key == first]
        return [(first, {"type": type, "data": data}, None) for type, data in same]

    async def _clock_moved(self) -> None:
        await self._execute(NOW.format(self.clock.now_us))

    async def _forget(self, store: Any) -> None:
        store._committer.cache.clear()

    async def _end(self) -> None:
        await super()._end()
        await self._execute(self.its_own)

    async def _execute(self, sql: str) -> None:
        conn = await asyncpg.connect(self.url)
        try:
            await conn.execute(sql)
        finally:
            await conn.close()


class FilesAgrees(StoresAgree):
    """The log store beside memory. One process writes it, so both doors lead to one store; and a
    lease ends with the store that granted it, so memory lets go of its own."""

    store: FilesStore | None = None

    async def _store(self) -> Any:
        if self.store is None or not self.store.is_open:
            path = Path(self.directory.name) / "agree"
            disk = FaultyDisk(DiskFaults())  # which syncs nothing: nobody cuts the power here
            self.store = await FilesStore.open(path, clock=self.clock.clock(), disk=disk)
            self.store.compact_bytes = 100_000
        return self.store

    @rule()
    def reopen(self) -> None:
        memory: Any = self.sides[0].one._services.journal.store
        for kept in memory._kept.values():
            head = kept.fold.head
            if head.worker is not None:
                memory._set_head(with_lease(head, head.fence, None, None, None))
        super().reopen()

    @rule()
    def evict(self) -> None:
        assert self.store is not None
        self.store.reader.cache.clear()

    @rule()
    def compact_log(self) -> None:
        """Where lines are is nobody's business."""
        assert self.store is not None
        self.runner.run(self.store.compact_log())


NOW = (
    "CREATE OR REPLACE FUNCTION limpet.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS "
    "$$ SELECT {}::bigint $$"
)
QUICK = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=1_200, stateful_step_count=60)
SERVER = settings(QUICK, max_examples=8)  # every answer is a round trip, or several
SERVER_LONG = settings(LONG, max_examples=300)


@pytest.fixture(autouse=True)
def _small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept in memory ends soon, so that short runs meet its end too."""
    monkeypatch.setattr(cache, "TAIL_MAX", 5)
    monkeypatch.setattr(writer, "SNAPSHOT_FLOOR_BYTES", 16_000)


def test_sqlite_does_what_memory_does() -> None:
    """Every answer, every refusal and every live object is the same in both stores."""
    run_state_machine_as_test(StoresAgree, settings=QUICK)


@pytest.mark.torture
def test_sqlite_does_what_memory_does_at_length() -> None:
    """The same for long."""
    run_state_machine_as_test(StoresAgree, settings=LONG)


def test_files_do_what_memory_does() -> None:
    """Every answer, every refusal and every live object is the same in both stores."""
    run_state_machine_as_test(FilesAgrees, settings=QUICK)


@pytest.mark.torture
def test_files_do_what_memory_does_at_length() -> None:
    """The same for long."""
    run_state_machine_as_test(FilesAgrees, settings=LONG)


def beside(server: postgres.Server | postgres.Elsewhere) -> type[PostgresAgrees]:
    """The machine on this server."""
    return type("PostgresAgrees", (PostgresAgrees,), {"url": server.url})


def test_postgresql_does_what_memory_does(
    any_postgres: postgres.Server | postgres.Elsewhere,
) -> None:
    """Every answer, every refusal and every live object is the same in both stores."""
    run_state_machine_as_test(beside(any_postgres), settings=SERVER)


@pytest.mark.torture
def test_postgresql_does_what_memory_does_at_length(
    any_postgres: postgres.Server | postgres.Elsewhere,
) -> None:
    """The same for long."""
    run_state_machine_as_test(beside(any_postgres), settings=SERVER_LONG)
