"""Run something in a forked child and hear what came of it."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable
from typing import Final

PATIENCE_SECONDS: Final = 60


def in_child(work: Callable[[], str]) -> str:
    """What `work` returned in a child process, or the traceback of what it raised."""
    return fork(work)()


def fork(work: Callable[[], str]) -> Callable[[], str]:
    """Begin `work` in a child process; call what is returned to wait for what came of it.

    A child that hangs says where, and is ended by its own alarm; nothing of the parent's clean-up
    runs in it.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE_SECONDS)
        faulthandler.register(signal.SIGALRM, file=writing, chain=True)
        try:
            answer = work()
        except BaseException:
            answer = traceback.format_exc()
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)

    def wait() -> str:
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return answer or "the child hung, or died without a word"

    return wait


def as_nobody() -> None:
    """Give up root's right to write everything, where the tests run as root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
