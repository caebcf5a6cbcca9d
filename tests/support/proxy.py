"""A proxy between a client and a server that cuts, delays and repeats what passes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Mischief:
    """How a proxy misbehaves, by chance: at 0 it only passes bytes on."""

    def __init__(self, chance: random.Random, *, cuts: float = 0, repeats: float = 0) -> None:
        self.chance, self.cuts, self.repeats = chance, cuts, repeats
        self.done = 0

    async def befall(self, piece: bytes) -> list[bytes] | None:
        """What becomes of some bytes; None: the connection is cut, perhaps in the midst of them."""
        if self.chance.random() < self.cuts:
            self.done += 1
            return None
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        half = self.chance.randrange(len(piece) + 1)
        if self.chance.random() < self.repeats:
            self.done += 1
            return [piece, piece[half:]]
        return [piece[:half], piece[half:]]


@asynccontextmanager
async def proxied(url: str, mischief: Mischief) -> AsyncIterator[str]:
    """A proxy to the server of a URL; its own URL."""
    host, port = url.removeprefix("http://").split(":")
    open_: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            parts = await mischief.befall(piece)
            if parts is None:
                writer.write(piece[: len(piece) // 2])
                return
            for part in parts:
                writer.write(part)
                await writer.drain()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            to_reader, to_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        open_.update((writer, to_writer))
        ways = [
            asyncio.ensure_future(carry(reader, to_writer)),
            asyncio.ensure_future(carry(to_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, to_writer):
                open_.discard(each)
                with suppress(OSError):
                    each.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
