"""`limpet serve` that gets SIGTERM as soon as its URL is printed: nobody can send it earlier."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import limpet
from limpet.cli.main import main
from limpet.cli.render import Screen

_show = Screen.show


def _show_and_stop(screen: Screen, *args: Any, **named: Any) -> None:
    _show(screen, *args, **named)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)


def leave_a_thread(_: limpet.Limpet) -> None:
    """Begin to wait in a thread, for ever: a tool of a turn may."""
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)


if __name__ == "__main__":
    Screen.show = _show_and_stop  # type: ignore[method-assign]
    main()
