"""A wire between a store and PostgreSQL that can be cut at any answer of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
PATIENCE_SECONDS = 60.0


class Wire:
    """Passes bytes on. After `cut_after(n)` the nth answer from then on is lost, and the line too.

    The server has done what it was asked by then; only the one who asked does not hear of it.
    """

    def __init__(self, server: Path) -> None:
        self._server = server
        self._left = 0
        self._struck = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()

    def cut_after(self, answers: int) -> None:
        self._left = answers
        self._struck.clear()

    async def struck(self) -> None:
        """Wait until the line was cut."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._struck.wait()

    @property
    def waits(self) -> bool:
        """Whether the cut is still to come."""
        return self._left > 0

    def cut_all(self) -> None:
        """Cut every line that is open now."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_unix_connection(str(self._server / SOCKET))
        self._open |= {writer, here}
        up = asyncio.create_task(self._pass(reader, here, answers=False))
        try:
            await self._pass(there, writer, answers=True)
        finally:
            up.cancel()
            self._open -= {writer, here}
            writer.transport.abort()
            here.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        try:
            while data := await source.read(2**20):
                if answers and self._left:
                    self._left -= 1
                    if not self._left:
                        self._struck.set()
                        return
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            return


@asynccontextmanager
async def wire(server: Path, folder: Path) -> AsyncIterator[Wire]:
    """A wire that listens in `folder` and leads to the socket in `server`."""
    made = Wire(server)
    listening = await asyncio.start_unix_server(made.serve, str(folder / SOCKET))
    try:
        yield made
    finally:
        listening.close()
        made.cut_all()
