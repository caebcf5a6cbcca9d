"""Running the tests on a mutant: in a fork that has imported nothing of limpet yet.

The fork gives the one module the mutant's code when it is imported, runs the tests until the first
failure and says by its exit code whether there was one. Nothing is written to the sources.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any, Final

import pytest

SURVIVED: Final = 0  # pytest's exit code when every test passed
NO_TESTS: Final = 5  # none of this kind in these files
KILLED: Final = 1
LATE: Final = -1  # it hung, or it was too slow by far: that is noticed too
_POLL_SECONDS: Final = 0.01


@dataclass
class Job:
    """Tests to be run on a module with this code in its place, or as it is."""

    module: str
    code: CodeType | None
    tests: Sequence[Sequence[str]]  # arguments of pytest, one run after the other
    timeout_seconds: float
    subject: Any = None
    exit_code: int = KILLED
    seconds: float = 0.0


class _Swapped(MetaPathFinder, Loader):
    """Finds one module, and runs other code than its file has."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._module, self._code = module, code

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def run(jobs: Iterator[Job], *, processes: int, more: Callable[[], bool]) -> Iterator[Job]:
    """The jobs as they end. None is begun when `more` says no; those that run are ended then."""
    running: dict[int, tuple[Job, float]] = {}
    try:
        waiting: Job | None = next(jobs, None)
        while waiting is not None or running:
            if not more():
                return
            while waiting is not None and len(running) < processes:
                running[_begin(waiting)] = (waiting, time.monotonic())
                waiting = next(jobs, None)
            yield from _ended(running)
            time.sleep(_POLL_SECONDS)
    finally:
        for pid in running:
            _end(pid)


def _ended(running: dict[int, tuple[Job, float]]) -> Iterator[Job]:
    for pid, (job, began) in list(running.items()):
        job.seconds = time.monotonic() - began
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            job.exit_code = os.waitstatus_to_exitcode(status)
        elif job.seconds > job.timeout_seconds:
            _end(pid)
            job.exit_code = LATE
        else:
            continue
        del running[pid]
        yield job


def _end(pid: int) -> None:
    """The fork leads a group of its own: what its tests have started goes with it."""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _begin(job: Job) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        # Here too, or a timeout could come before the fork has done it.
        os.setpgid(pid, pid)
        return pid
    code = KILLED
    try:
        os.setpgid(0, 0)
        code = _test(job)
    finally:
        os._exit(code)


def _test(job: Job) -> int:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    assert not [name for name in sys.modules if name.split(".")[0] == "limpet"]
    if job.code is not None:
        sys.meta_path.insert(0, _Swapped(job.module, job.code))
    sys.dont_write_bytecode = True
    code = SURVIVED
    for part in job.tests:
        pid = os.fork()  # a fork for each part: pytest does not begin twice in one process
        if not pid:
            options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
            os._exit(int(pytest.main([*options, *part])))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code not in (SURVIVED, NO_TESTS):
            break
    return SURVIVED if code == NO_TESTS else code if code >= 0 else KILLED
