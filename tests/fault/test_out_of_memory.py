"""Out of memory while something is read: that says nothing about what is stored.

The nth opening of a sealed body, or decompression, runs out of memory, for every n that a call
reaches. The call raises, nothing is taken for damage, nobody moves past what was not read, and the
next call finds everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import apsw
import pytest
from pydantic import AfterValidator

import limpet
from limpet import Limpet, MigrationRegistry, State
from limpet.errors import StoreFailed
from limpet.model.keys import Key
from limpet.model.state.update import plan_update
from limpet.store.coding import codec
from limpet.store.protocol import Place
from limpet.store.sqlite import doctor
from limpet.store.sqlite.file import backup
from limpet.store.sqlite.verify import SQLiteVerification
from tests.support.seal import FixedKeySeal

KEY = Key("shop", "ada", "one")
ACTOR = "test:memory"
LAST = 13
TRIES_MAX = 100


class Straining:
    """Something that runs out of memory at the nth call from now on, once."""

    def __init__(self) -> None:
        self.left = 0

    def strain(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise MemoryError("as asked for")


class StrainingSeal(FixedKeySeal, Straining):
    """A seal that opens nothing for want of memory, once."""

    def __init__(self) -> None:
        FixedKeySeal.__init__(self)
        Straining.__init__(self)

    def open(self, sealed: bytes, place: Place) -> bytes:
        self.strain()
        return super().open(sealed, place)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The stores that read what they show from bytes; the memory store keeps it as it is."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_store_url"))
    return f"sqlite:///{tmp_path / 'memory.db'}?sync=normal"


async def fill(lp: Limpet) -> None:
    """Large events, one of them pending, a snapshot, and a shared name that grows by operations."""
    session = await lp.create("shop", "ada", id="one", state={"log": [], "app:log": []})
    for n in range(LAST - 1):
        text = f"{n}" * 12_000
        await session.append(
            "user.said" if n == 7 else "agent.said",
            {"text": text},
            actor=ACTOR,
            add={"log": [text], "app:log": [f"{n}" * 600]},
        )


async def watched(lp: Limpet, met: list[Any] | None = None) -> list[Any]:
    """Every entry of the feed, after those that were met before."""
    met = [] if met is None else met
    async with aclosing(lp.watch(after=met[-1].position if met else None)) as entries:
        async for entry in entries:
            met.append(entry)
            if entry.event.seq == LAST:
                break
    return met


async def followed(lp: Limpet) -> list[Any]:
    async with aclosing(lp.session(KEY).follow(after=0)) as events:
        return [await anext(events) for _ in range(LAST)]


async def loaded(lp: Limpet) -> Any:
    session = await lp.get(KEY, tail=20)
    return dict(session.state), session.events


async def diagnosed(lp: Limpet) -> Any:
    return (await lp.maintenance.doctor()).report


CALLS: dict[str, Callable[[Limpet], Awaitable[Any]]] = {
    "load": loaded,
    "read": lambda lp: lp.session(KEY).read(limit=100),
    "pending": lambda lp: lp.session(KEY).pending(),
    "watch": watched,
    "follow": followed,
    "verify": lambda lp: lp.maintenance.verify(),
    "verify one": lambda lp: lp.maintenance.verify(KEY),
    "doctor": diagnosed,
}


async def hold(lp: Limpet, call: str, straining: Straining) -> None:
    """Try a call with the 1st, 2nd, … nth strain, until it has fewer. It raises or is right."""
    right = await CALLS[call](lp)
    for number in range(1, TRIES_MAX):
        straining.left = number
        try:
            answer = await CALLS[call](lp)
        except MemoryError:
            assert await CALLS[call](lp) == right
            continue
        assert answer == right
        assert straining.left > 0, f"the strain at {number} was swallowed"
        assert number > 1, "nothing strained"
        return
    pytest.fail("the call never came to its end")


@pytest.mark.parametrize("call", CALLS)
async def test_a_seal_that_runs_out_of_memory_is_not_damage(url: str, call: str) -> None:
    """At every opening of a sealed body that a call makes."""
    seal = StrainingSeal()
    async with limpet.open(url, seal=seal) as lp:
        await fill(lp)
    async with limpet.open(url, seal=seal) as lp:
        await hold(lp, call, seal)


@pytest.mark.parametrize("zstd_says_it", [False, True])
@pytest.mark.parametrize("call", ["load", "watch", "verify"])
async def test_a_decompression_that_runs_out_of_memory_is_not_damage(
    url: str, call: str, monkeypatch: pytest.MonkeyPatch, *, zstd_says_it: bool
) -> None:
    """Whether Python has no memory left, or zstd says so in an error of its own."""
    zstd = codec.zstd()
    straining = Straining()

    class Decompressor:
        eof = False  # so that the whole body is decompressed at once, by the module

        def decompress(self, stored: bytes) -> bytes:
            try:
                straining.strain()
            except MemoryError as error:
                words = "Unable to decompress Zstandard data: Allocation error : not enough memory"
                raise zstd.ZstdError(words) if zstd_says_it else error from None
            return stored

    class Zstd:
        ZstdDecompressor = Decompressor
        decompress = staticmethod(zstd.decompress)

    async with limpet.open(url) as lp:
        await fill(lp)
    async with limpet.open(url) as lp:
        monkeypatch.setattr(codec, "zstd", lambda: Zstd)
        await hold(lp, call, straining)


async def test_a_watcher_that_runs_out_of_memory_goes_on_where_it_was(url: str) -> None:
    """From the last position it has seen, it meets every event once, and each one whole."""
    seal = StrainingSeal()
    async with limpet.open(url, seal=seal) as lp:
        await fill(lp)
        for number in range(1, LAST + 1):
            met: list[Any] = []
            seal.left = number
            with pytest.raises(MemoryError):
                await watched(lp, met)
            assert len(met) < number
            await watched(lp, met)
            assert [entry.event.seq for entry in met] == list(range(1, LAST + 1))
            assert not any(entry.event.damage for entry in met)


async def test_a_write_that_runs_out_of_memory_can_be_sent_again(url: str) -> None:
    """A writer that has to read a session first says that a retry helps, and one does."""
    seal = StrainingSeal()
    async with limpet.open(url, seal=seal) as lp:
        await fill(lp)
    for number in range(1, 6):  # each time one event more is read first
        more: Any = {"id": f"e{number}", "actor": ACTOR, "add": {"log": ["x"], "app:log": ["x"]}}
        async with limpet.open(url, seal=seal) as lp:
            session = lp.session(KEY)
            seal.left = number
            with pytest.raises(StoreFailed) as caught:
                await session.append("x.y", **more)
            assert caught.value.retryable
            await session.append("x.y", **more)
            await session.refresh()
            for name in ("log", "app:log"):
                assert session.state[name][-number:] == ["x"] * number
    async with limpet.open(url, seal=seal) as lp:
        assert (await lp.maintenance.verify()).ok


async def test_sqlite_that_runs_out_of_memory_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verification that meets it raises, and names no session."""
    async with limpet.open(f"sqlite:///{tmp_path / 'memory.db'}") as lp:
        await fill(lp)

        def strained(*_: object) -> None:
            raise apsw.NoMemError("out of memory")

        monkeypatch.setattr(SQLiteVerification, "_columns", strained)
        for key in (None, KEY):
            with pytest.raises(StoreFailed) as caught:
                await lp.maintenance.verify(key)
            assert caught.value.retryable


async def test_a_restore_that_runs_out_of_memory_moves_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a file that is damaged is put out of the way; this one stays, and is whole."""
    path, copy = tmp_path / "memory.db", tmp_path / "copy.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        await fill(lp)
        await lp.maintenance.backup(copy)

    last_position, asked = backup.last_position, list[object]()

    def strained(conn: apsw.Connection) -> int:
        asked.append(conn)
        if len(asked) == 1:  # once: who goes on would find that there is memory again
            raise apsw.NoMemError("out of memory")
        return last_position(conn)

    with monkeypatch.context() as patched:
        patched.setattr(backup, "last_position", strained)
        with pytest.raises(StoreFailed) as caught:
            backup.restore(copy, path, replace=True)
    assert caught.value.retryable
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.db", "memory.db"]
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.maintenance.verify()).ok


async def test_a_file_that_there_was_no_memory_to_look_at_is_not_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore is refused as one to try again, not as one over somebody else's file."""
    path, copy = tmp_path / "memory.db", tmp_path / "copy.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        await fill(lp)
        await lp.maintenance.backup(copy)
    schema_of, asked = backup.schema_of, list[object]()

    def strained(conn: apsw.Connection) -> int:
        asked.append(conn)
        if len(asked) > 1:  # the first is the backup
            raise apsw.NoMemError("out of memory")
        return schema_of(conn)

    with monkeypatch.context() as patched:
        patched.setattr(backup, "kind_of", lambda _: "foreign")  # as before its log is copied
        patched.setattr(backup, "schema_of", strained)
        with pytest.raises(StoreFailed) as caught:
            backup.restore(copy, path, replace=True)
    assert (caught.value.retryable, len(asked)) == (True, 2)
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert (await lp.maintenance.verify()).ok


async def test_a_copy_that_there_was_no_memory_to_verify_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is sent for another backup."""
    path, copy = tmp_path / "memory.db", tmp_path / "copy.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        await fill(lp)
        await lp.maintenance.backup(copy)

    def strained(*_: object) -> None:
        raise apsw.NoMemError("out of memory")

    monkeypatch.setattr(SQLiteVerification, "read", strained)
    with pytest.raises(StoreFailed) as caught:
        backup.restore(copy, path, replace=True)
    assert caught.value.retryable


async def test_a_doctor_without_memory_finds_no_problem_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises: advice to restore a backup would be wrong."""

    def strained(*_: object) -> None:
        raise apsw.NoMemError("out of memory")

    async with limpet.open(f"sqlite:///{tmp_path / 'memory.db'}") as lp:
        monkeypatch.setattr(doctor, "page_size", strained)
        with pytest.raises(StoreFailed) as caught:
            await lp.maintenance.doctor()
    assert caught.value.retryable


def test_a_migration_that_runs_out_of_memory_has_not_failed() -> None:
    """The session it was to migrate is not told to be beyond help."""

    def strained(_: dict[str, Any]) -> dict[str, Any]:
        raise MemoryError

    registry = MigrationRegistry()
    registry.register("1.0.0", "2.0.0", strained)
    with pytest.raises(MemoryError):
        registry.migrate({}, "1.0.0", "2.0.0")


def _strained(value: str) -> str:
    raise MemoryError


class Notes(State):
    """A state whose validator runs out of memory."""

    text: Annotated[str, AfterValidator(_strained)] = ""


def test_a_validator_that_runs_out_of_memory_refuses_nothing() -> None:
    """What does not fit its schema and what does not fit into memory are told apart."""
    with pytest.raises(MemoryError):
        plan_update(Notes, {}, {"text": "a"})
