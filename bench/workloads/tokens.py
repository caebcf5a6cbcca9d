"""K1: checking a request that carries a token: signature, revocation, session, rate, history.

Calls are timed one by one on a file that syncs, with an address and another operation every fourth
time; the mean shows the writes that most of them do without. Raw is the signature alone.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import fmean, median

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import limpet
from bench.rounds import Numbers, Run, milliseconds_plain
from bench.table import Row, at_most, row

_CHECK_MS_MAX = 0.4


def rows(run: Run) -> list[Row]:
    count = run.size(2_000, 300)
    readings = run.alternate(
        {
            "ours": lambda path: asyncio.run(_checks(path, count)),
            "raw": lambda _: _signature(count),
        }
    )
    typical = at_most(_CHECK_MS_MAX, "check", readings.median("ours", "ms"))
    return [
        row("K1", "a request is checked", "ms", readings, "ms", typical),
        row("K1", f"the mean of {count:,}, with what is written", "ms", readings, "mean"),
        row("K1", "a nonce is remembered, too", "ms", readings, "nonce"),
    ]


async def _checks(path: Path, count: int) -> Numbers:
    from limpet.security.signing_keys import add_signing_key

    add_signing_key(path / "tokens.pem")
    async with limpet.open(f"sqlite:///{path}/tokens.db") as lp:
        session = await lp.create("bench", "ada", "c1")
        policy = limpet.TokenPolicy(rate=100_000)
        tokens = limpet.Tokens(lp, signing=f"file://{path}/tokens.pem", policy=policy)
        ada = limpet.Principal("user:ada", role="owner", app="bench", user="ada")
        token = await tokens.issue(session.key, ada)
        times = []
        for number in range(count):
            begin = time.perf_counter()
            operation = "read" if number % 4 else "write"
            await tokens.check(token, operation=operation, address="192.0.2.7")
            times.append((time.perf_counter() - begin) * 1e3)
        nonces = []
        for number in range(count // 10):
            begin = time.perf_counter()
            await tokens.check(token, operation="read", address="192.0.2.7", nonce=f"n{number}")
            nonces.append((time.perf_counter() - begin) * 1e3)
        return {"ms": median(times), "mean": fmean(times), "nonce": median(nonces)}


def _signature(count: int) -> Numbers:
    key, message = Ed25519PrivateKey.generate(), b"m" * 600
    signature, public = key.sign(message), key.public_key()
    return {"ms": milliseconds_plain(lambda: public.verify(signature, message), count)}
