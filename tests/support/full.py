"""A process on a disk of its own that is full: what opening, looking and the doctor say there.

    unshare --user --map-root-user --mount python -m tests.support.full DIRECTORY

Mounts a small file system over the directory, where only this process sees it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import limpet
from limpet.store.open import look_at


def mount(directory: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


async def main(directory: Path) -> None:
    url = f"sqlite:///{directory}/a.db"
    async with limpet.open(url) as lp:
        await lp.create("a", "b", id="c")
    with (directory / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4_096))
    async with limpet.open("memory://") as lp:
        s = await lp.create("a", "b", id="c", state={"text": os.urandom(60_000).hex()})
        for write in (
            lambda: lp.export(s.key, directory / "c.limpet"),
            lambda: lp.maintenance.mirror(directory),
        ):
            try:
                await write()
            except limpet.LimpetError as error:
                print(error.code, str(directory) in str(error), flush=True)
    print(len([*directory.rglob("*.part")]), flush=True)
    try:
        await limpet.open(url)
    except limpet.LimpetError as error:
        print(error.code, error.retryable, flush=True)
    async with limpet.Limpet(url, store=await look_at(url)) as lp:
        assert (await lp.get(limpet.Key("a", "b", "c"))).version == 1
        for check in (await lp.maintenance.doctor()).checks:
            if check.name == "disk space":
                print(check.severity, flush=True)


if __name__ == "__main__":
    if mount(Path(sys.argv[1])):
        asyncio.run(main(Path(sys.argv[1])))
    else:
        print("no mount")
