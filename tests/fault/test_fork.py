"""Forked children: a file that the parent had open is refused to them, whatever became of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Key, LimpetError
from limpet.store.sqlite.writer import SQLiteWriter
from limpet.store.system import PROCESS, join
from tests.support.forked import fork, in_child
from tests.support.processes import ROOT, Child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

KEY = Key("a", "u", "s")


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def attempt(path: Path) -> str:
    """Open the file and write to it: the seq that was acknowledged, or the refusal."""
    try:
        with limpet.open_sync(url(path)) as lp:
            session: Any = lp.get_or_create(KEY.app, KEY.user, id=KEY.id)
            return str(session.append("c.x", actor="child").seq)
    except LimpetError as error:
        return error.code


def check(path: Path, version: int) -> None:
    """Everything up to this version is there, and whole."""
    with limpet.open_sync(url(path)) as lp:
        assert lp.get(KEY).version == version
        assert lp.maintenance.verify().findings == ()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def parent(path: Path) -> Iterator[Any]:
    """The parent's store, with a session at version 2."""
    with limpet.open_sync(url(path)) as lp:
        lp.create(KEY.app, KEY.user, id=KEY.id, actor="parent").append("p.x")
        yield lp


@pytest.mark.parametrize("way", ["path", "symbolic link", "hard link"])
def test_a_child_is_refused_what_its_parent_has_open(
    parent: Any, path: Path, tmp_path: Path, way: str
) -> None:
    """By whatever name it comes to the file; and the parent writes on, losing nothing."""
    name = path if way == "path" else tmp_path / "other.db"
    if way == "symbolic link":
        name.symlink_to(path)
    if way == "hard link":
        name.hardlink_to(path)
    assert in_child(lambda: attempt(name)) == "store.forked"
    if way == "hard link":
        name.unlink()
    mine = parent.session(KEY, actor="parent")
    assert [mine.append("p.x").seq for _ in range(20)] == list(range(3, 23))
    parent.close()
    check(path, 22)


def test_a_child_is_refused_what_its_parent_has_closed_since(parent: Any, path: Path) -> None:
    """The inheritance is of the moment of the fork: the parent's close does not reach the child."""
    waiting, go = os.pipe()

    def child() -> str:
        os.read(waiting, 1)
        return attempt(path)

    answer = fork(child)
    parent.close()
    os.write(go, b"x")
    assert answer() == "store.forked"
    os.close(waiting)
    os.close(go)
    check(path, 2)


def test_a_child_is_refused_while_one_of_two_stores_is_open(parent: Any, path: Path) -> None:
    """Closing one store on a file does not forget the other."""
    with limpet.open_sync(url(path)):
        pass
    assert in_child(lambda: attempt(path)) == "store.forked"


@pytest.mark.usefixtures("parent")
def test_a_child_may_open_another_file(path: Path, tmp_path: Path) -> None:
    """Only what was inherited is refused."""
    other = tmp_path / "b.db"
    assert in_child(lambda: attempt(other)) == "2"
    check(other, 2)
    check(path, 2)


def test_a_child_may_open_what_was_closed_before_it_was_born(parent: Any, path: Path) -> None:
    """Nothing was inherited; both write, one after the other."""
    parent.close()
    assert in_child(lambda: attempt(path)) == "3"
    check(path, 3)


def test_a_child_may_open_what_its_parent_could_not(path: Path, tmp_path: Path) -> None:
    """An opening that failed has left nothing to inherit."""
    path.write_text("no database yet, " * 500)
    assert attempt(path) == "store.foreign"
    assert attempt(tmp_path / "good.db") == "2"
    path.write_bytes((tmp_path / "good.db").read_bytes())
    assert in_child(lambda: attempt(path)) == "3"
    check(path, 3)


def test_a_child_may_open_what_was_moved_before_it_was_closed(
    parent: Any, path: Path, tmp_path: Path
) -> None:
    """A store that is closed is forgotten under whatever name its file has by then."""
    aside = tmp_path / "aside.db"
    parent.session(KEY, actor="parent").append("p.x")
    path.rename(aside)
    parent.close()
    for suffix in ("-wal", "-shm"):
        left = path.with_name(path.name + suffix)
        if left.exists():
            left.rename(aside.with_name(aside.name + suffix))
    assert in_child(lambda: attempt(aside)) == "4"


def test_a_refused_child_refuses_again(parent: Any, path: Path) -> None:
    """A second attempt is no way around."""
    assert in_child(lambda: attempt(path) + attempt(path)) == "store.forked" * 2
    parent.close()
    check(path, 2)


def test_a_fork_waits_for_who_is_inside_a_library() -> None:
    """A lock of the library that is held at that moment would be held in the child for ever."""
    lock, inside, left = threading.RLock(), threading.Event(), []
    PROCESS.fork_waits_for(lock)

    def work() -> None:
        with lock:
            inside.set()
            threading.Event().wait(0.2)
            left.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    assert in_child(lambda: f"{left} {lock.acquire(blocking=False)}") == "[True] True"
    thread.join()
    assert lock.acquire(blocking=False)  # by this thread: the fork has let go of it


def test_a_fork_waits_for_the_writer(
    parent: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever commits is inside SQLite, in the writer's thread or on a loop."""
    inside, left, commit = threading.Event(), [], SQLiteWriter._commit

    def slow_commit(*args: Any, **options: Any) -> Any:
        inside.set()
        threading.Event().wait(0.2)
        left.append(True)
        return commit(*args, **options)

    mine = parent.session(KEY, actor="parent")
    monkeypatch.setattr(SQLiteWriter, "_commit", slow_commit)
    thread = threading.Thread(target=lambda: mine.append("p.x"))
    thread.start()
    inside.wait()
    assert in_child(lambda: str(left)) == "[True]"
    thread.join()
    parent.close()
    check(path, 3)


def test_a_thread_that_was_joined_is_gone() -> None:
    """For the operating system too: OpenSSL clears up behind it, with a lock held."""
    for _ in range(200):
        thread = threading.Thread(target=lambda: None)
        thread.start()
        join(thread)
        assert not Path(f"/proc/self/task/{thread.native_id}").exists()


def test_a_process_begun_anew_shares_the_file(parent: Any, path: Path) -> None:
    """What is not forked has its own locks: it may open what the parent has open."""
    mine = parent.session(KEY, actor="parent")
    with Child("tests.support.opener", url(path)) as child:
        child.expect("ready")
        child.tell("go")
        child.expect("1")
        mine.append("p.x")
        child.end()
    mine.append("p.x")
    parent.close()
    check(path, 4)


def test_a_child_that_python_has_not_forked_is_refused(parent: Any, path: Path) -> None:
    """Workers of a server may be forked by C code, which runs no hooks: a call that crosses to
    another thread would never be answered there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.c_forked", url(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["store.forked", "3"]
