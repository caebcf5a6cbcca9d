"""Nonces of the built-in seal: none is used twice."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from limpet.store.protocol import Place
from tests.support.keys import memory_seal
from tests.support.seal import at_once

PLACE = Place("event", "uid", "id", "note.made")


def test_no_nonce_is_used_twice() -> None:
    """Not by several threads, nor by a process that was forked off after some were drawn."""
    seal = memory_seal()
    at_once(seal.ready(["uid"]))

    def nonces(count: int) -> list[bytes]:
        return [seal.seal(b"", PLACE)[5:17] for _ in range(count)]

    with ThreadPoolExecutor(4) as pool:
        found = [nonce for part in pool.map(nonces, [1_000] * 8) for nonce in part]
    found += nonces(1)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"".join(nonces(3)))
        os._exit(0)
    os.waitpid(child, 0)
    raw = os.read(read, 1_000)
    os.close(read)
    os.close(write)
    found += [raw[at : at + 12] for at in range(0, len(raw), 12)]
    found += nonces(3)
    assert len(set(found)) == len(found) == 8_007
