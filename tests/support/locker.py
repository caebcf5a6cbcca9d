"""A process that takes the write lock of a database and keeps it until it is told to let go."""

from __future__ import annotations

import sys

import apsw


def main(path: str) -> None:
    conn = apsw.Connection(path)
    conn.set_busy_timeout(10_000)
    conn.execute("BEGIN EXCLUSIVE")
    print("locked", flush=True)
    sys.stdin.readline()
    conn.execute("ROLLBACK")
    conn.close()


if __name__ == "__main__":
    main(sys.argv[1])
