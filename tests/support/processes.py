"""Processes under test: started, talked to in lines, killed.

Nothing sleeps: whoever waits, waits for a line or for the end of a process, and not for ever.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS: Final = 60.0


def heed_interrupts() -> None:
    """Take SIGINT as any Python program does, also where a shell began us in the background and
    had it ignored: a process hands on what it ignores, and what it handles it does not, so every
    process that we start can be interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Child:
    """A module of ours run as a process of its own, killed at the end of the block."""

    def __init__(
        self, module: str, *args: object, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._patience = patience_seconds
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, args)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )
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
        self._out.close()
        self._in.close()
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _out(self):
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def _in(self):
        assert self._process.stdin is not None
        return self._process.stdin

    def tell(self, line: str) -> None:
        self._in.write(line.encode() + b"\n")

    def line(self) -> str | None:
        """The next whole line; None when the process has closed its output."""
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._out], [], [], self._patience)
            assert ready, f"silent for {self._patience} s: {self.complaint()}"
            more = os.read(self._out.fileno(), 65_536)
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
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(self._patience)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends it."""
        self._process.send_signal(signal.SIGINT)

    def end(self, code: int = 0) -> None:
        """Wait for its end with this code: 0 if without an error, -n if by signal n."""
        found = self._process.wait(self._patience)
        assert found == code, f"ended with {found}: {self.complaint()}"

    def complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


def spin(microseconds: float) -> None:
    """Use up a moment: finer than any sleep, and the scheduler is not asked."""
    end = time.perf_counter_ns() + int(microseconds * 1_000)
    while time.perf_counter_ns() < end:
        pass
