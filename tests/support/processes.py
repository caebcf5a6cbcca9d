"""Processes under test: started, talked to in lines, killed.

A process is forked from a server that has imported our packages, so that it starts in
milliseconds. What a test does to it is what it would do to any process: its own memory, files and
signals, and its own end.

Nothing sleeps: whoever waits, waits for a line or for the end of a process, and not for ever.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from multiprocessing import reduction
from pathlib import Path
from types import TracebackType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS: Final = 60.0
# What most processes under test import; the others import the rest by themselves.
_WARM: Final = [
    "limpet",
    "limpet.store.open",
    "limpet.graph",
    "limpet.server.serve",
    "limpet.cli.app",
    "pydantic",
    "asyncpg",
    "rich.progress",
    "rich.table",
]
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_WARM)
Streams = tuple[int, int, int]


def heed_interrupts() -> None:
    """Take SIGINT as any Python program does, also where a shell began us in the background and
    had it ignored: a process hands on what it ignores, and what it handles it does not, so every
    process that we start can be interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Child:
    """A module of ours run as a process of its own, killed at the end of the block."""

    def __init__(self, module: str, *args: object) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        reads, self._in = os.pipe()
        self._out, writes = os.pipe()
        streams = (reads, writes, self._errors.fileno())
        self._start(module, [str(each) for each in args], streams)
        os.close(reads)
        os.close(writes)
        self._text = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        os.close(self._out)
        os.close(self._in)
        self._errors.close()

    def _start(self, module: str, args: list[str], streams: Streams) -> None:
        given = (module, args, _Handed(streams), dict(os.environ))
        self._process = _FORKS.Process(target=_run, args=given)
        self._process.start()
        self.pid = self._process.pid or 0

    def _wait(self) -> int | None:
        self._process.join(PATIENCE_SECONDS)
        return self._process.exitcode

    def tell(self, line: str) -> None:
        os.write(self._in, line.encode() + b"\n")

    def line(self) -> str | None:
        """The next whole line; None when the process has closed its output."""
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._out], [], [], PATIENCE_SECONDS)
            assert ready, f"silent for {PATIENCE_SECONDS} s: {self.complaint()}"
            more = os.read(self._out, 65_536)
            if not more:
                return None
            self._text += more
        line, self._text = self._text.split(b"\n", 1)
        return line.decode()

    def expect(self, wanted: str) -> None:
        """The next line is this one."""
        found = self.line()
        assert found == wanted, f"{found!r} for {wanted!r}: {self.complaint()}"

    def lines(self) -> Iterator[str]:
        """Every whole line up to the end of its output."""
        while (line := self.line()) is not None:
            yield line

    def kill(self) -> None:
        """SIGKILL: no handler, no flush, no goodbye."""
        self._process.kill()
        self._wait()

    def killed_after(self, lines: int, microseconds: float) -> list[str]:
        """Kill it so many lines and a moment later. Every line it said, unread ones included."""
        said: list[str] = []
        for _ in range(lines):
            line = self.line()
            assert line is not None, self.complaint()
            said.append(line)
        spin(microseconds)
        self.kill()
        return [*said, *self.lines()]

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends it."""
        os.kill(self.pid, signal.SIGINT)

    def ended(self) -> int | None:
        """Wait for its end: 0 if without an error, -n if by signal n."""
        return self._wait()

    def end(self, code: int = 0) -> None:
        """Wait for its end with this code."""
        found = self.ended()
        assert found == code, f"ended with {found}: {self.complaint()}"

    def output(self) -> str:
        """Everything it prints until its end, which `end` has to judge."""
        return "".join([f"{line}\n" for line in self.lines()])

    def complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


async def exit_code(module: str, *args: object) -> int | None:
    """Run a module of ours as a process to its end: 0, or -n if signal n ended it."""
    with Child(module, *args) as child:
        return await asyncio.to_thread(child.ended)


class Interpreter(Child):
    """The same in an interpreter of its own, where its start or its end is what is tested."""

    def _start(self, module: str, args: list[str], streams: Streams) -> None:
        command, (stdin, stdout, stderr) = [sys.executable, "-m", module, *args], streams
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=stdin, stdout=stdout, stderr=stderr
        )
        self.pid = self._process.pid

    def _wait(self) -> int | None:
        return self._process.wait(PATIENCE_SECONDS)


class _Handed:
    """Streams that go to the server with the request for a process: nobody has to fetch them.

    One that is killed before it begins leaves none of them open here.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def __reduce__(self) -> tuple[Any, ...]:
        return _taken, tuple([reduction.DupFd(each) for each in self._streams])


def _taken(*streams: Any) -> list[int]:
    return [stream.detach() for stream in streams]


def forked(
    module: str, args: list[str], streams: Streams, *, here: Path, environment: dict[str, str]
) -> int:
    """The exit code of a module of ours that is run in a directory, on these streams."""
    process = _FORKS.Process(target=_run, args=(module, args, _Handed(streams), environment, here))
    process.start()
    process.join(PATIENCE_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"{module} {args} has not ended after {PATIENCE_SECONDS} s")
    return process.exitcode


def _run(
    module: str,
    args: list[str],
    streams: list[int],
    environment: dict[str, str],
    here: Path = ROOT,
) -> None:
    """Be `python -m module args`, in the process that was forked for it.

    The server has the environment of the test that needed it first.
    """
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # for as long as the process lives
    os.chdir(here)
    warnings.simplefilter("error")
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def spin(microseconds: float) -> None:
    """Use up a moment: finer than any sleep, and the scheduler is not asked."""
    end = time.perf_counter_ns() + int(microseconds * 1_000)
    while time.perf_counter_ns() < end:
        pass
