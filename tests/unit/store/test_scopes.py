"""app: and user: names: one query brings them all, and nothing is unpacked that nobody reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import pytest

from limpet import Key, Limpet, State
from limpet.errors import ScopeFull
from limpet.model.fold import ScopeValue
from limpet.model.limits import SCOPE_NAMES_EVER_MAX, SCOPE_NAMES_MAX
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Place, Store, scope_fields
from limpet.store.scopes import DELETED, ScopeLimits, Scopes, UnreadScope
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft, key, load
from tests.support.seal import FixedKeySeal

ADA, BOB = key("1", user="ada"), key("1", user="bob")
NAMES = {f"app:{number:04}": {"n": number} for number in range(SCOPE_NAMES_MAX)}
Asked: TypeAlias = Callable[[], AbstractAsyncContextManager[list[str]]]


class CountingSeal(FixedKeySeal):
    """Counts what is opened of shared names: each is one value that is unpacked."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open(self, sealed: bytes, place: Place) -> bytes:
        self.opened += place.kind == "scope"
        return super().open(sealed, place)


class Chat(State):
    schema_version = "1.0.0"

    step: int = 0


class Laws:
    """`store` is empty and sealed; `asked` tells the statements that its readers send meanwhile."""

    @pytest.fixture
    def seal(self) -> CountingSeal:
        return CountingSeal()

    async def test_a_thousand_names_are_one_query_and_unpacked_when_they_are_read(
        self, store: Store, asked: Asked, seal: CountingSeal
    ) -> None:
        """Versions come with the load; the first reading of a value unpacks that one, once."""
        await create(store, ADA)
        await create(store, BOB)
        await add(store, ADA, draft(set=NAMES))
        await add(store, BOB, draft(set={"user:long": "x" * 2_000}))
        await add(store, BOB, draft(add={"user:list": ["y" * 600]}))
        await add(store, BOB, draft(add={"user:list": ["z"]}))
        seal.opened = 0
        async with asked() as statements:
            loaded = await load(store, BOB)
        assert len([sql for sql in statements if "body" in sql and "scopes" in sql]) == 1
        assert len(statements) < 10  # however many names there are
        assert isinstance(loaded.scopes, Scopes)
        assert (len(loaded.scopes), loaded.scopes.version("app:0007"), seal.opened) == (1_002, 1, 0)
        for _ in range(2):
            assert loaded.scopes["app:0007"] == ScopeValue(1, {"n": 7})
        assert seal.opened == 1
        assert loaded.scopes["user:list"] == ScopeValue(2, ["y" * 600, "z"])
        assert seal.opened == 3  # its base, and the op since
        values = scope_fields(loaded.scopes)
        assert {name: values[name] for name in NAMES} == NAMES
        assert seal.opened == 3 + 1_000

    async def test_a_new_session_and_a_typed_one_unpack_nothing(
        self, store: Store, seal: CountingSeal
    ) -> None:
        """Creating, loading, appending and guarding go by versions; state of one's own is read."""
        async with Limpet("test:", store=store) as lp:
            ada = await lp.create("shop", "ada", actor="x")
            await ada.append("a.b", set=NAMES)
            seal.opened = 0
            made = await lp.create("shop", "bob", id="1", state=Chat(), actor="x")
            chat = await lp.get(Key("shop", "bob", "1"), state_type=Chat, actor="x")
            await chat.apply({"step": 1})
            await chat.refresh()
            await chat.append("a.b", {"text": "hi"})
            assert (chat.state.step, made.state.step, seal.opened) == (1, 0, 0)
            assert chat.values["app:0007"] == {"n": 7}
            assert seal.opened == SCOPE_NAMES_MAX

    async def test_a_guard_needs_the_version_and_not_the_value(
        self, store: Store, seal: CountingSeal
    ) -> None:
        """A commit unpacks the names that it writes, not those it only relies on."""
        await create(store, ADA)
        await add(store, ADA, draft(set=NAMES))
        other = await self.again(store)
        await other.load(ADA, tail=0)
        seal.opened = 0
        await add(other, ADA, draft(inc={"n": 1}), guards=dict.fromkeys(NAMES, 1))
        assert seal.opened == 0
        await add(other, ADA, draft(set={"app:0007": 1}), guards=dict.fromkeys(NAMES, 1))
        assert seal.opened == 1
        await other.close()

    async def test_what_is_over_the_bound_is_read_and_takes_no_name_more(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a store from before the bound: all is there, and room comes by deleting."""
        await create(store, ADA)
        with monkeypatch.context() as patch:
            for module in ("scopes", "postgres.writing.batch"):
                patch.setattr(f"limpet.store.{module}.SCOPE_NAMES_MAX", 2_000)
            for first in (0, 520):
                numbers = range(first, first + 520)
                await add(store, ADA, draft(set={f"app:{n:04}": n for n in numbers}))
        store = await self.again(store)
        assert len(scope_fields((await load(store, ADA)).scopes)) == SCOPE_NAMES_MAX + 40
        with pytest.raises(ScopeFull):
            await add(store, ADA, draft(set={"app:more": 1}))
        await add(store, ADA, draft(inc={"app:0000": 1}))
        some = [f"app:{number:04}" for number in range(42)]
        await add(store, ADA, draft(delete=some[:2], set={"app:more": 1}))
        with pytest.raises(ScopeFull):
            await add(store, ADA, draft(set={"app:another": 1}))
        await add(store, ADA, draft(delete=some[2:]))
        await add(store, ADA, draft(set={"app:another": 1}))
        assert len(scope_fields((await load(store, ADA)).scopes)) == SCOPE_NAMES_MAX
        assert (await store.verify(None)).findings == ()
        await store.close()

    async def again(self, store: Any) -> Any:
        """Another instance on the same place, which remembers nothing."""
        raise NotImplementedError


class TestSQLite(Laws):
    @pytest.fixture
    async def store(self, tmp_path: Path, seal: CountingSeal) -> AsyncIterator[SQLiteStore]:
        store = await SQLiteStore.open(tmp_path / "store.db", seal=seal)
        self.path, self.seal = tmp_path / "store.db", seal
        yield store
        await store.close()

    async def again(self, store: Any) -> SQLiteStore:
        return await SQLiteStore.open(self.path, seal=self.seal)

    @pytest.fixture
    def asked(self, store: SQLiteStore) -> Asked:
        @asynccontextmanager
        async def asked() -> AsyncIterator[list[str]]:
            found: list[str] = []
            conn = store._reader.conn
            conn.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: found.append(event["sql"]))
            yield found
            conn.trace_v2(0, None)

        return asked


class TestPostgres(Laws):
    @pytest.fixture
    async def store(
        self, postgres_store_url: str, seal: CountingSeal
    ) -> AsyncIterator[PostgresStore]:
        store = await PostgresStore.open(postgres_store_url, seal=seal)
        self.url, self.seal = postgres_store_url, seal
        yield store
        await store.close()

    async def again(self, store: Any) -> PostgresStore:
        return await PostgresStore.open(self.url, seal=self.seal)

    @pytest.fixture
    def asked(self, store: PostgresStore) -> Asked:
        @asynccontextmanager
        async def asked() -> AsyncIterator[list[str]]:
            found: list[str] = []

            def note(asked: Any) -> None:
                found.append(asked.query)

            pool = store._pools.reading
            async with pool.acquire() as conn:  # the one that the next reader is given
                conn.add_query_logger(note)
            yield found
            async with pool.acquire() as conn:
                conn.remove_query_logger(note)

        return asked


def test_names_that_were_ever_used_are_bounded_too() -> None:
    """A deleted name keeps its version, and every load passes over it."""

    class Stored:
        def names(self, app: str, user: str) -> dict[str, int]:
            return {f"app:{number}": DELETED for number in range(SCOPE_NAMES_EVER_MAX)}

    room = ScopeLimits(Stored())
    room.begin()
    room.put(("shop", "", "app:7"), ScopeValue(2, None, True), ScopeValue(3, 1), 1)
    room.settle()
    room.begin()
    room.put(("shop", "", "app:new"), None, ScopeValue(1, 1), 1)
    with pytest.raises(ScopeFull) as info:
        room.settle()
    assert info.value.what == "names that were ever used"


def test_names_learn_what_is_newer_and_read_none_of_it() -> None:
    """By versions alone; a name is read once, and equals a dict of the same values."""
    read: list[str] = []

    def unread(name: str, version: int) -> UnreadScope:
        def value() -> ScopeValue:
            read.append(name)
            return ScopeValue(version, name)

        return UnreadScope(version, value)

    names = Scopes({"app:a": unread("app:a", 2), "app:b": unread("app:b", 1)})
    assert names.learn(Scopes({"app:a": unread("old", 1), "app:c": unread("app:c", 1)}))
    assert not names.learn({"app:b": ScopeValue(1, "same version")})
    assert (names.version("app:a"), names.version("app:d"), len(names), read) == (2, 0, 3, [])
    assert "app:c" in names
    expected = {name: ScopeValue(2 if name == "app:a" else 1, name) for name in names}
    assert names == expected == dict(names)
    assert sorted(read) == ["app:a", "app:b", "app:c"]
    assert "app:a" in repr(names)
