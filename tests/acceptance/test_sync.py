"""The synchronous face: the same verbs without await."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Draft, errors
from tests.support.forked import in_child
from tests.support.processes import ROOT, Interpreter


@pytest.fixture
def lp(url: str) -> Iterator[Any]:
    with limpet.open_sync(url) as opened:
        yield opened


def ours() -> list[str]:
    """The threads that Limpet has running, but for those that other tests of this process left."""
    running = [t for t in threading.enumerate() if t.name.startswith("limpet")]
    return [t.name for t in running if t not in LEFT]


LEFT: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def left_by_others() -> None:
    """Threads that are there before a test are not its own."""
    LEFT.clear()
    LEFT.update(threading.enumerate())


def test_every_verb_works_without_await(lp: Any) -> None:
    """The same names, the same results."""
    s = lp.create("support", "ada", state={"n": 0}, labels={"plan": "gold"})
    e = s.append("user.message", {"text": "hi"}, actor="user:ada", inc={"n": 1})
    assert (e.seq, s.version, s.state, s.labels) == (2, 2, {"n": 1}, {"plan": "gold"})
    assert [each.seq for each in s.append_many([Draft(type="a.b", actor="x")] * 2)] == [3, 4]
    s.update(lambda state: {"n": state["n"] + 1}, actor="x")
    other = lp.create("support", "bob")
    with lp.commit() as c:
        c.append(s, "x.y", actor="x", inc={"n": 1})
        c.append(other, "x.y", actor="x")
    assert [each.seq for each in c.events] == [6, 2]
    assert (s.state["n"], other.version) == (3, 2)
    got = lp.get(s.key, tail=1)
    assert [each.seq for each in got.events] == [6]
    assert lp.find(("support", "ada", "nobody")) is None
    assert lp.get_or_create("support", "ada", id=s.key.id).key == s.key
    handle = lp.session(s.key, actor="agent:h")
    handle.append("a.b")
    assert [each.seq for each in s.read(after=5)] == [6, 7]
    assert len(lp.list(app="support").items) == 2
    assert s.refresh().version == s.version == 7
    assert lp.maintenance.verify().ok
    assert lp.delete(s.key) is True
    assert lp.erase(s.key) is not None


def test_many_sessions_are_stand_ins_too(lp: Any) -> None:
    """Each of them without await, None where there is none."""
    one = lp.create("a", "u", id="1", state={"n": 1})
    found, none = lp.get_many([one.key, ("a", "u", "never")])
    assert isinstance(found, limpet.SyncSession)
    assert (found.state, none) == ({"n": 1}, None)
    assert found.append("a.b", actor="x", inc={"n": 1}).seq == 2


def test_a_follower_is_an_ordinary_iterator(lp: Any) -> None:
    """A for loop over what is there and over what another thread records."""
    s = lp.create("a", "u")
    met: list[int] = []
    ready = threading.Event()

    def follow() -> None:
        for e in s.follow(after=0):
            met.append(e.seq)
            ready.set()
            if e.seq == 3:
                break

    thread = threading.Thread(target=follow)
    thread.start()
    assert ready.wait(60)
    s.append("a.b", actor="x")
    s.append("a.b", actor="x")
    thread.join(60)
    assert met == [1, 2, 3]


def test_errors_pass_through(lp: Any) -> None:
    """The same classes, raised where the call was made."""
    s = lp.create("a", "u", id="1")
    with pytest.raises(errors.SessionExists):
        lp.create("a", "u", id="1")
    with pytest.raises(errors.ActorMissing):
        s.append("a.b")
    with pytest.raises(errors.InvalidValue), lp.commit() as c:
        c.append(s, "a.b", {"v": b""}, actor="x")
    assert s.version == 1


def test_threads_may_share_it(lp: Any) -> None:
    """Calls from many threads are made one by one on the one loop."""
    s = lp.create("a", "u", state={"n": 0})
    threads = [
        threading.Thread(target=lambda: s.append("a.b", actor="x", inc={"n": 1})) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (s.state["n"], s.version) == (10, 11)


def test_use_after_close_is_told(url: str) -> None:
    """Whatever is called once the block is over says that the store is closed."""
    with limpet.open_sync(url) as lp:
        s = lp.create("a", "u", state={"n": 0})
    for call in (
        lambda: lp.get(s.key),
        lambda: lp.create("a", "u"),
        lambda: s.append("a.b", actor="x"),
        lambda: s.read(),
        lambda: lp.session(s.key),
    ):
        with pytest.raises(errors.StoreClosed):
            call()
    assert (s.version, s.state) == (1, {"n": 0})


def test_a_notebook_needs_no_block(url: str) -> None:
    """It is open from the beginning, and closed by hand, twice if need be."""
    lp: Any = limpet.open_sync(url)
    assert lp.create("a", "u").version == 1
    lp.close()
    lp.close()
    assert ours() == []
    with pytest.raises(errors.StoreClosed):
        lp.list()


def test_a_store_that_cannot_be_opened_leaves_no_thread() -> None:
    """The error passes through and the loop's thread is gone."""
    with pytest.raises(errors.InvalidURL), limpet.open_sync("nonsense://"):
        pass
    assert ours() == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_use_after_fork_is_told(lp: Any) -> None:
    """A child that uses its parent's instance hears of it at once instead of waiting for ever."""
    s = lp.create("a", "u", id="1")

    def child() -> str:
        try:
            s.append("a.b", actor="x")
        except errors.LimpetError as error:
            return error.code
        return "no error"

    assert in_child(child) == "store.forked"
    assert s.append("a.b", actor="x").seq == 2


INTERRUPTED = "tests.support.interrupted"


@pytest.mark.parametrize("role", ["watcher", "follower"])
def test_an_interrupted_loop_ends_with_keyboard_interrupt(role: str, url: str) -> None:
    """Ctrl-C while a for loop waits for events is KeyboardInterrupt, and Limpet goes on."""
    with Interpreter(INTERRUPTED, role, url) as child:
        child.expect("waiting")
        child.interrupt()
        child.expect("interrupted after 1")
        child.expect("recorded 2")
        child.expect("closed")
        child.end()
        assert child.complaint() == ""


def test_an_interrupted_call_is_taken_back(url: str) -> None:
    """Ctrl-C during an ordinary call is KeyboardInterrupt, and nothing of it goes on waiting."""
    with Interpreter(INTERRUPTED, "caller", url) as child:
        child.expect("waiting")
        child.interrupt()
        child.expect("interrupted")
        child.expect("left 0")
        child.expect("closed")
        child.end()
        assert child.complaint() == ""


def test_an_interrupted_script_ends_as_any_other() -> None:
    """Ctrl-C that nobody catches leaves one traceback, of KeyboardInterrupt."""
    with Interpreter(INTERRUPTED, "script", "memory://") as child:
        child.expect("waiting")
        child.interrupt()
        child.end(-signal.SIGINT)
        complaint = child.complaint()
        assert complaint.endswith("KeyboardInterrupt\n")
        assert complaint.count("Traceback") == 1


LEFT_OPEN = """
import gc
import limpet

with limpet.open_sync("memory://") as lp:
    s = lp.create("a", "u")
    dropped, kept, last = lp.watch(), s.follow(), s.follow()
    assert next(dropped).event.seq == next(kept).seq == next(last).seq == 1
del dropped
gc.collect()
try:
    next(kept)
except limpet.errors.StoreClosed as error:
    print(error.code)
never_closed = limpet.open_sync("memory://")
never_closed.create("a", "u")
waiting = never_closed.watch()
print(next(waiting).event.seq)
"""


def test_an_iterator_left_open_is_silent() -> None:
    """One that outlives the block, or the program, says nothing when it is dropped."""
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("store.closed\n1\n", "", 0)


def test_an_iterator_may_be_dropped_on_the_loop(lp: Any) -> None:
    """The collector runs in whichever thread it likes, that of the loop too."""
    s = lp.create("a", "u")
    held = [s.follow()]
    assert next(held[0]).seq == 1
    lp._loop.call(held.clear)
    assert s.append("a.b", actor="x").seq == 2
    assert lp._loop.call(lambda: lp._of._journal.hub._topics) == {}


def test_closing_ends_what_other_threads_wait_for(url: str) -> None:
    """Whoever follows in another thread is told, and does not wait for ever."""
    said: list[str] = []
    ready = threading.Event()
    with limpet.open_sync(url) as lp:
        s = lp.create("a", "u")

        def follow() -> None:
            try:
                for _ in s.follow():
                    ready.set()
            except errors.StoreClosed as error:
                said.append(error.code)

        thread = threading.Thread(target=follow)
        thread.start()
        assert ready.wait(60)
    thread.join(60)
    assert said == ["store.closed"]


def test_closing_from_within_a_change_is_refused(lp: Any) -> None:
    """It would wait for itself; Limpet stays open."""
    s = lp.create("a", "u")
    with pytest.raises(errors.InvalidInput, match="cannot make a blocking call"):
        s.update(lambda state: lp.close(), actor="x")
    assert s.append("a.b", actor="x").seq == 2


def test_threads_may_close_it_at_the_same_time(url: str) -> None:
    """One of them does it, none of them fails, and no thread is left."""
    lp = limpet.open_sync(url)
    lp.create("a", "u")
    failed: list[threading.ExceptHookArgs] = []
    before, threading.excepthook = threading.excepthook, failed.append
    try:
        threads = [threading.Thread(target=lp.close) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        threading.excepthook = before
    assert (failed, ours()) == ([], [])


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_leaving_from_within_a_change_reaches_the_caller(
    lp: Any, ending: type[BaseException]
) -> None:
    """What a function of the caller's raises is raised where the call was made, whatever it is."""
    s = lp.create("a", "u", state={"n": 0})

    def leave(state: Any) -> Any:
        raise ending

    with pytest.raises(ending):
        s.update(leave, actor="x")
    assert s.append("a.b", actor="x").seq == 2


def test_a_time_out_of_the_callers_own_is_raised(url: str) -> None:
    """It is not taken for the end of a turn of waiting."""

    def late(_: object) -> dict[str, object]:
        raise TimeoutError("the caller's own")

    with limpet.open_sync(url) as lp:
        s = lp.create("a", "u", actor="x")
        with pytest.raises(TimeoutError, match="own"):
            s.update(late)


def test_a_stream_may_be_dropped_in_the_middle_of_a_call() -> None:
    """The collector ends it wherever it happens to run, and nobody waits for anybody."""
    with limpet.open_sync("memory://") as lp:
        s = lp.create("a", "u", actor="x")
        stream = s.follow()
        next(stream)
        loop = lp._loop
        with loop._lock:
            stream.close()
        assert s.append("a.b").seq == 2


def test_sessions_move_between_two_stores_that_have_loops_of_their_own(
    lp: Any, tmp_path: Path
) -> None:
    """Prestaged, alone, back, and with a family."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/desk.db", node="desk") as desk:
        s = lp.create("a", "u", "s", state={"n": 1}, actor="x")
        s.blobs.put(b"picture", "image/png")
        assert lp.prestage(s.key, desk).events > 0
        moved = lp.move(s.key, desk)
        assert (moved.success, moved.epoch, moved.bundle_bytes > 0) == (True, 1, True)
        assert desk.get(s.key).state["n"] == 1
        with pytest.raises(errors.SessionMoved):
            s.append("a.b", actor="x")
        assert desk.move(s.key, lp).success
        lp.spawn(lp.get(s.key), task="look")
        assert lp.move(s.key, desk).reason == "family"
        with pytest.raises(limpet.InvalidInput, match="same store"):
            lp.move(s.key, lp)
        assert (lp.drain(desk).sessions, lp.home(s.key)) == (2, limpet.Home("desk", 3))
