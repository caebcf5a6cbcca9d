"""The log file stays short, whoever reads meanwhile, and nobody waits long for that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from limpet.store.sqlite import write_connection
from limpet.store.sqlite.write_connection import Wal

FRAME = 4_096 + 24


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test reaches at once."""
    monkeypatch.setattr(write_connection, "CHECKPOINT_PAGES", 40)
    monkeypatch.setattr(write_connection, "RESTART_PAGES", 80)
    monkeypatch.setattr(write_connection, "FILE_BYTES_MAX", 200 * FRAME)
    monkeypatch.setattr(write_connection, "_STEP_BYTES", 20 * FRAME)


class Snapshot:
    """A reader that keeps what it sees until it is moved on."""

    def __init__(self, path: Path) -> None:
        self.conn = apsw.Connection(str(path))
        self.look()

    def look(self) -> None:
        if self.conn.in_transaction:
            self.conn.execute("COMMIT")
        self.conn.execute("BEGIN; SELECT count(*) FROM t").fetchall()


class Log:
    """A database that is written a page at a time, and how often anybody was waited for."""

    def __init__(self, path: Path) -> None:
        self.path, self.waited = path, 0
        self.conn = apsw.Connection(str(path))
        self.conn.pragma("journal_mode", "wal")
        self.conn.pragma("wal_autocheckpoint", 0)
        self.conn.pragma("synchronous", "off")  # no power cut here
        self.conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x BLOB)")
        self.readers: list[Snapshot] = []
        self.wal = Wal(self.conn, lambda tries: False, self._brief, grow=True)

    def _brief(self, tries: int) -> bool:
        """While it is waited for them, readers that poll look again."""
        self.waited += 1
        for reader in self.readers:
            reader.look()
        return tries < 10

    def write(self) -> None:
        self.conn.execute("INSERT OR REPLACE INTO t VALUES (1, randomblob(3000))")
        self.wal.tend(idle=False)

    @property
    def bytes(self) -> int:
        return self.path.with_name(f"{self.path.name}-wal").stat().st_size


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "a.db")
    yield made
    for conn in (*(reader.conn for reader in made.readers), made.conn):
        conn.close()


def test_a_log_that_is_always_read_begins_again(log: Log) -> None:
    """Of two readers that poll, one always has a snapshot: the log stays short even so."""
    log.readers = [Snapshot(log.path), Snapshot(log.path)]
    for number in range(1_000):
        log.write()
        log.readers[number % 2].look()
    assert log.waited
    assert log.bytes < 150 * FRAME


def test_nobody_waits_where_nobody_reads(log: Log) -> None:
    """The common way costs nothing: the next commit begins the log again by itself."""
    for _ in range(1_000):
        log.write()
    assert log.waited == 0
    assert log.bytes < 80 * FRAME


def test_a_reader_that_stays_is_not_waited_for(log: Log) -> None:
    """The log grows while somebody reads for long, commits do not stop, and when that reader has
    gone the file is cut to its bound."""
    stays = Snapshot(log.path)
    for _ in range(1_000):
        log.write()
    assert log.waited == 0
    assert log.bytes > 1_000 * FRAME
    stays.conn.close()
    for _ in range(100):
        log.write()
    assert log.bytes <= 200 * FRAME


def test_a_log_that_another_connection_cut_is_lengthened_again(log: Log) -> None:
    """Whoever cut it, commits go on inside the file and not at its end."""
    for _ in range(30):
        log.write()
    other = Snapshot(log.path).conn
    other.execute("COMMIT")
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    other.close()
    assert log.bytes == 0
    log.write()
    assert log.bytes >= 20 * FRAME


def test_the_log_is_lengthened_by_small_writes(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may save the calls: one large write would make every later fsync slower."""
    sizes: list[int] = []
    whole = os.write

    def write(handle: int, data: memoryview) -> int:
        sizes.append(len(data))
        return whole(handle, data)

    monkeypatch.setattr(os, "write", write)
    log.write()
    assert len(sizes) > 1
    assert max(sizes) <= 64 * 2**10
    assert log.bytes >= 20 * FRAME
