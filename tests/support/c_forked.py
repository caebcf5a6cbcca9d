"""A process whose child is forked by C code, which runs no hooks of Python's: SEQ or code of each.

In an interpreter of its own: in a process that had run many tests such a child hung in the fork,
probably because another thread wanted the interpreter just then.
"""

from __future__ import annotations

import ctypes
import os
import sys

import limpet
from limpet import Key, LimpetError
from tests.support.forked import in_child

KEY = Key("a", "u", "s")


def main(url: str) -> None:
    os.fork = ctypes.PyDLL(None).fork
    with limpet.open_sync(url) as lp:
        mine = lp.session(KEY, actor="parent")

        def child() -> str:
            try:
                return str(mine.append("c.x").seq)
            except LimpetError as error:
                return error.code

        print(in_child(child), mine.append("p.x").seq)


if __name__ == "__main__":
    main(sys.argv[1])
