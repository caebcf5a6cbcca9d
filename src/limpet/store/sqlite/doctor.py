"""The doctor's checks of a database file: settings, file system, log, unfinished removals.

Everything that verification does not read. Each check asks one small thing of a connection of its
own; a question that fails is itself a finding, so a damaged file still gets its other answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import apsw

from limpet.store.jobs import Pace
from limpet.store.protocol import Check, plural, size
from limpet.store.sqlite import live
from limpet.store.sqlite.file.filesystems import NETWORK, DiskSpace, disk_space, file_system
from limpet.store.sqlite.file.locks import first_bytes
from limpet.store.sqlite.file.schema import APPLICATION_ID, SCHEMA
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import CHECKPOINT_PAGES
from limpet.store.system import out_of_descriptors

PAGE_BYTES: Final = 4_096
SPACE_BYTES_MIN: Final = 64 * 2**20  # less, and less than 5 % of the disk: a problem
SPACE_BYTES_WARN: Final = 2**30  # less, and less than 10 % of the disk: a warning
WAL_PAGES_MAX: Final = 4 * CHECKPOINT_PAGES
FREE_PAGES_MIN: Final = 1_000
HELD_SECONDS_WARN: Final = 0.25  # for one commit, on the event loop
CLOCK_US_MAX: Final = 60 * 1_000_000
# A log that restarts during a checkpoint may be lost before these two releases, each of which fixes
# it in its line (sqlite.org/wal.html#walresetbug).
_FIXED: Final = (3, 51, 3)
_FIXED_BEFORE: Final = (3, 50, 7)
_WAL_HEADER: Final = b"\x02\x02"  # the versions by which a file is written and read
_SYNC: Final = {0: "off", 1: "normal", 2: "full", 3: "extra"}
_FLEETING: Final = {"tmpfs", "ramfs", "overlay"}
# NOOP only counts; where SQLite does not know it yet, PASSIVE copies what it can and never waits.
_ASK: Final = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", apsw.SQLITE_CHECKPOINT_PASSIVE)


def examine(conn: apsw.Connection, path: Path, now_us: int) -> tuple[Check, ...]:
    """All checks of the file at `path`, on a connection with our settings."""
    return tuple(_run_checks(conn, path, now_us))


def probe(conn: apsw.Connection) -> tuple[Check, ...]:
    """The check that decides whether the file can be worked with. Its clock is this machine's."""
    return (schema(conn.pragma("application_id"), conn.pragma("user_version")),)


def _run_checks(conn: apsw.Connection, path: Path, now_us: int) -> Iterator[Check]:
    questions: tuple[tuple[str, Callable[[], Check]], ...] = (
        ("sqlite", lambda: version(apsw.sqlite_lib_version())),
        ("schema", lambda: schema(conn.pragma("application_id"), conn.pragma("user_version"))),
        ("journal mode", lambda: journal_mode(_mode(conn, path))),
        ("synchronous", lambda: synchronous(conn.pragma("synchronous"))),
        ("file system", lambda: filesystem(file_system(path))),
        ("disk space", lambda: space(disk_space(path.parent))),
        ("page size", lambda: page_size(conn.pragma("page_size"))),
        ("write-ahead log", lambda: _wal(conn, path)),
        ("live channel", lambda: _live(path)),
        ("free pages", lambda: free(conn.pragma("freelist_count"), conn.pragma("page_count"))),
        ("removals", lambda: _removals(conn)),
        ("clock", lambda: clock(_newest_us(conn), now_us)),
    )
    for name, ask in questions:
        try:
            yield ask()
        except apsw.NoMemError:
            raise  # says nothing about the file
        except (apsw.Error, OSError) as error:
            short = out_of_descriptors(str(path))
            if short is not None:
                raise short from error  # says nothing about the file
            advice = "Keep a copy of the file and restore it from a backup."
            yield Check(name, f"cannot be read: {error}", "problem", advice)


# --- commits on the event loop -------------------------------------------------------------------


def event_loop(pace: Pace) -> Check:
    """Check how long commits of this process held their event loop."""
    if not pace.enabled:
        return Check("event loop", "no commit runs on it: the URL says inline=off")
    if not pace.commits:
        return Check("event loop", "no commit ran on it since the store was opened")
    text = f"held for {pace.longest * 1e3:.1f} ms at most by {plural(pace.commits, 'commit')}"
    if pace.longest <= HELD_SECONDS_WARN:
        return Check("event loop", text)
    advice = (
        "The disk stalls. Open the store with ?inline=off if other work on the loop must not wait "
        "for it."
    )
    return Check("event loop", text, "warning", advice)


# --- settings: one value in, one check out -------------------------------------------------------


def version(installed: str) -> Check:
    number = tuple(int(part) for part in installed.split("."))
    if number >= _FIXED or _FIXED_BEFORE <= number < (3, 51):
        return Check("sqlite", installed)
    advice = (
        "Upgrade apsw to 3.51.3 or later: before it, a checkpoint that meets a commit of another "
        "process can, very rarely, damage the file."
    )
    return Check("sqlite", installed, "warning", advice)


def schema(application_id: int, number: int) -> Check:
    if application_id == APPLICATION_ID and number == SCHEMA:
        return Check("schema", f"{number}, the one of this release")
    advice = "Another program changed the file's header. Restore it from a backup."
    text = f"{number}, application id {application_id:#x}"
    return Check("schema", text, "problem", advice)


def journal_mode(mode: str) -> Check:
    if mode == "wal":
        return Check("journal mode", mode)
    advice = (
        "Close every process that has the file open; the next program that opens it to write "
        "switches it back."
    )
    return Check(
        "journal mode", f"{mode}, not wal: readers and writers block each other", "problem", advice
    )


def synchronous(level: int) -> Check:
    name = _SYNC.get(level, str(level))
    if level >= 2:
        return Check("synchronous", f"{name}: every commit is synced before it is answered")
    advice = "Leave ?sync=… out of the URL, unless losing the last commits is acceptable."
    if level == 1:
        text = "normal: a power cut may take the last commits (a crash does not)"
        return Check("synchronous", text, "warning", advice)
    return Check("synchronous", f"{name}: a power cut may damage the file", "problem", advice)


def filesystem(kind: str | None) -> Check:
    if kind is None:
        advice = "Make sure that the file is on a local disk that outlives the machine."
        return Check("file system", "this operating system does not say", "skipped", advice)
    if kind in NETWORK:
        advice = "Move the file to a local disk: locks over a network cannot be trusted."
        return Check("file system", f"{kind}, over a network", "problem", advice)
    if kind in _FLEETING:
        advice = "Put the file on a disk, or a volume that outlives the machine or container."
        return Check(
            "file system", f"{kind}, gone with the machine or container", "warning", advice
        )
    return Check("file system", f"{kind}, local")


def space(left: DiskSpace) -> Check:
    """Check the free space of the disk. A full one refuses every commit."""
    name, text = "disk space", f"{size(left.free_bytes)} of {size(left.total_bytes)} are free"
    advice = (
        "Free some space or move the store to a larger disk: on a full one every commit is refused "
        "(store.full). What was acknowledged is safe, and what is refused can be retried."
    )
    if left.free_files == 0:
        text = "no more files can be made: the file system has no free inodes"
        return Check(name, text, "problem", advice)
    if left.free_bytes < min(SPACE_BYTES_MIN, left.total_bytes // 20):
        return Check(name, f"{text}: the disk is full or nearly full", "problem", advice)
    if left.free_bytes < min(SPACE_BYTES_WARN, left.total_bytes // 10):
        return Check(name, f"{text}: the disk is nearly full", "warning", advice)
    return Check(name, text)


def page_size(count: int) -> Check:
    if count == PAGE_BYTES:
        return Check("page size", size(count))
    advice = (
        f"It works, more slowly: the log is lengthened for pages of {PAGE_BYTES:,}. With every "
        "process closed, run: sqlite3 FILE 'PRAGMA journal_mode=delete; PRAGMA page_size=4096; "
        "VACUUM; PRAGMA journal_mode=wal'."
    )
    return Check("page size", size(count), "warning", advice)


# --- what has piled up ---------------------------------------------------------------------------


def _mode(conn: apsw.Connection, path: Path) -> str:
    """Return the journal mode from the header, where SQLite itself does not open the file."""
    if conn.readonly("main") and first_bytes(path, 20)[18:20] == _WAL_HEADER:
        return "wal"
    return str(conn.pragma("journal_mode"))


def _wal(conn: apsw.Connection, path: Path) -> Check:
    log = path.with_name(path.name + "-wal")
    length = log.stat().st_size if log.exists() else 0
    if conn.readonly("main"):
        if not length:
            return Check("write-ahead log", "empty")
        text = f"{size(length)}; how much of it waits is known only to those who may write"
        advice = "To see it, run the doctor as a user who may write the file."
        return Check("write-ahead log", text, "skipped", advice)
    try:
        pages, copied = conn.wal_checkpoint(mode=_ASK)
    except apsw.BusyError:
        return Check("write-ahead log", f"{size(length)}, being copied into the file just now")
    return wal(length, max(pages, 0), max(copied, 0))


def wal(length: int, pages: int, copied: int) -> Check:
    waiting = pages - copied
    text = f"{size(length)}, {waiting:,} of its {pages:,} pages wait to be copied into the file"
    if not pages:
        return Check("write-ahead log", "empty")
    if waiting <= WAL_PAGES_MAX:
        return Check("write-ahead log", text)
    advice = (
        "Some process keeps a read transaction open, so the log cannot be emptied and grows. End "
        "that transaction (lsof FILE names the processes), then write once."
    )
    return Check("write-ahead log", text, "warning", advice)


def _live(path: Path) -> Check:
    """The file that carries partial events between processes."""
    beside = live.live_path(path)
    if not beside.exists():
        return Check("live channel", "no file: nobody has followed partial events yet")
    text = f"{size(beside.stat().st_size)} in {beside.name}"
    problem = live.unreadable(beside)
    if problem is None:
        return Check("live channel", text)
    advice = f"Delete {beside.name}: it holds no recorded event, and is made again when needed."
    return Check("live channel", f"{text}, which cannot be read ({problem})", "warning", advice)


def free(unused: int, pages: int) -> Check:
    text = f"{unused:,} of {pages:,} pages are free for reuse"
    if unused < max(FREE_PAGES_MIN, pages // 2):
        return Check("free pages", text)
    advice = (
        "Nothing is wrong: the space is used again. To give it back, close every process and run: "
        "sqlite3 FILE VACUUM."
    )
    return Check("free pages", text, "warning", advice)


def _removals(conn: apsw.Connection) -> Check:
    counts = conn.execute(SQL["unfinished_removals"]).fetchone()
    assert counts is not None
    return removals(*counts)


def removals(waiting: int, erased: int) -> Check:
    """Logs of ended sessions whose rows are not all gone: a process died, or is still at it."""
    name = "removals"
    if not waiting:
        return Check(name, "no deleted or erased session has rows left")
    if erased:
        advice = (
            "The process that erased them died before their bytes were overwritten. Call lp.erase "
            "with the same key again: it finishes, and gives the same certificate."
        )
        return Check(
            name, f"rows are left of {plural(erased, 'erased session')}", "problem", advice
        )
    advice = (
        "The next process that writes removes them, a few thousand rows at a time. If the number "
        "stays the same while one writes, restart that process."
    )
    return Check(name, f"rows are left of {plural(waiting, 'deleted session')}", "warning", advice)


def _newest_us(conn: apsw.Connection) -> int | None:
    newest: Any = conn.execute(SQL["newest_update"]).get
    return None if newest is None else int(newest)


def clock(newest_us: int | None, now_us: int) -> Check:
    """The wall against the newest event: time never runs backwards within a session."""
    if newest_us is None or newest_us - now_us <= CLOCK_US_MAX:
        return Check("clock", "not behind the newest event")
    ahead = (newest_us - now_us) / 1_000_000
    advice = (
        "Set this machine's clock (timedatectl), and keep it set (chrony, systemd-timesyncd). "
        "Until it has caught up, new events of those sessions all have the same time."
    )
    return Check("clock", f"the newest event is {ahead:,.0f} s in the future", "warning", advice)
