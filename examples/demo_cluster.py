"""The tour behind `make demo-cluster`: three servers, and the one that is written to is killed.

It starts three PostgreSQL servers from the binaries in a wheel, on sockets in temporary
directories: a primary and two standbys that stream from it. A process writes, a follower looks on,
and the primary is killed; a standby is promoted, and everything goes on. Then both standbys are
stopped. Every claim is checked; a false one ends the tour with exit code 1. Servers and files are
gone afterwards.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import demo
from demo import KEY, Broken, a_table, claim, console, scene
from demo_postgres import check, following, more, until, writing

import limpet
from limpet.errors import QuorumUnavailable

sys.path.append(str(Path(__file__).parents[1]))  # the servers are those that the tests use

from tests.support.cluster import Cluster

FAILOVERS = 2


def main() -> int:
    sys.stdout.reconfigure(errors="replace")  # a plain terminal may lack some characters
    began = time.monotonic()
    servers = None
    try:
        with console.status("making three servers …"):
            servers = Cluster(fsync="on")  # as in production
        asyncio.run(tour(servers))
    except Broken as broken:
        console.print(f"  ✗ NOT TRUE: {broken}", style="bold red")
        return 1
    finally:
        if servers is not None:
            servers.remove()
    seconds = time.monotonic() - began
    console.print(f"\n[bold]{len(demo.checked)} claims, all checked, in {seconds:.0f} seconds.[/]")
    console.print("Yours: limpet.open('postgresql://h1,h2,h3/db?write_quorum=2&replicas=3').")
    return 0


async def tour(servers: Cluster) -> None:
    url = servers.url("write_quorum=2&quorum_seconds=2")
    async with limpet.open(url) as lp:
        scene("Three servers", "A commit is acknowledged when two of them have it on disk.")
        found = {each.name: each for each in (await lp.maintenance.doctor()).checks}
        claim(found["cluster"].ok and found["quorum"].ok, f"{found['quorum'].found}")
        await lp.create(KEY.app, KEY.user, KEY.id, state={"words": 0})
        await survive(lp, servers, url)
        await stand_alone(lp, servers)


async def survive(lp: limpet.Limpet, servers: Cluster, url: str) -> None:
    scene("The primary is killed", "A process writes, we follow, and the server they use dies.")
    before = (await lp.get(KEY)).version
    table = a_table("failover", "first write after promotion", "acknowledged before", "and after")
    async with writing(url) as acknowledged, following(lp, before) as seen:
        for number in range(1, FAILOVERS + 1):
            await more(acknowledged)
            first = len(acknowledged)
            with console.status("killing, promoting …"):
                lost = await asyncio.to_thread(servers.fail_over)
            first_after, began = len(acknowledged), time.monotonic()
            await until(lambda past=first_after: len(acknowledged) > past)
            away = time.monotonic() - began
            await more(acknowledged)
            table.add_row(f"{number}", f"{away:.2f} s", f"{first:,}", f"{len(acknowledged):,}")
            with console.status("bringing the lost server back …"):
                await asyncio.to_thread(servers.join, lost)
        last = acknowledged[-1]
        await until(lambda: any(event.id == last for event in seen))
    console.print(table)
    await check(lp, acknowledged, seen, before)


async def stand_alone(lp: limpet.Limpet, servers: Cluster) -> None:
    scene("Both standbys are gone", "One server alone is no quorum.")
    session = await lp.get(KEY)
    for each in servers.standbys:
        servers.kill(each)
    refused = False
    try:
        await session.append("user.message", {"text": "?"}, actor="user:ada", id="alone")
    except QuorumUnavailable as error:
        refused = error.retryable and error.ids == ("alone",)
    claim(refused, "a write is not acknowledged: QuorumUnavailable, to be sent again with its id")
    servers.follow(servers.standbys[0])
    await session.append("user.message", {"text": "?"}, actor="user:ada", id="alone")
    ids = [event.id for event in await session.read(limit=5, reverse=True)]
    claim(ids.count("alone") == 1, "with one standby back it is recorded, and once")


if __name__ == "__main__":
    sys.exit(main())
