"""Poolers in transaction mode, between a store and a server: one of our own, and PgBouncer.

Ours is a relay on a socket. It lends a connection to the server for each transaction, the one that
rested longest, and resets nothing: a client that leaves something in a session of the server misses
it in the next transaction, and `left_behind` finds it there. Like PgBouncer it refuses settings
when a client connects, and gives clients process numbers of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg

from tests.support import postgres

NAME: Final = "limpet-pooler"  # of the relay's sessions on the server
SESSIONS: Final = 3  # connections to the server
_SSL, _CANCEL = 80877103, 80877102
_ACCEPTED: Final = {"user", "database", "application_name", "client_encoding"}
# What a session of the server may keep beyond a transaction. Two settings are the pooler's to keep:
# PgBouncer sets them for each client that it lends a session to.
_LEFT: Final = """
SELECT 'statement ' || name FROM pg_prepared_statements WHERE name <> ''
UNION ALL SELECT 'setting ' || name || ' = ' || setting FROM pg_settings
    WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding')
UNION ALL SELECT 'listens to ' || c FROM pg_listening_channels() c
UNION ALL SELECT 'lock ' || objid FROM pg_locks
    WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE name <> '' AND is_holdable
UNION ALL SELECT 'table ' || relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()"""


class Session:
    """A connection of the relay to the server, after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.about = b""  # what the server said of itself
        self.key = b""  # by which its query is cancelled

    async def shake(self, startup: bytes) -> None:
        self.writer.write(startup)
        while True:
            kind, message = await _message(self.reader)
            if kind == b"E":
                raise RuntimeError(repr(message))
            if kind == b"K":
                self.key = message[5:]
            elif kind == b"Z":
                return
            else:
                self.about += message


class Relay:
    """Open with `relaying`."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._resting: deque[Session] = deque()
        self._rested = asyncio.Condition()
        self._clients: dict[bytes, Session | None] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._opened: list[asyncio.StreamWriter] = []
        self.lent = 0  # how many transactions it has served

    async def open(self) -> None:
        for _ in range(SESSIONS):
            self._resting.append(await self._connect())
        self._about = self._resting[0].about

    async def _connect(self) -> Session:
        session = Session(*await asyncio.open_unix_connection(str(self._socket)))
        self._opened.append(session.writer)
        names = {"user": "limpet", "database": "postgres", "client_encoding": "UTF8"}
        names["application_name"] = NAME
        await session.shake(_startup(names))
        return session

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._opened.append(writer)
        self._serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, from its first byte to its last."""
        key = os.urandom(8)
        try:
            if await self._welcome(reader, writer, key):
                await self._relay(reader, writer, key)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._clients.pop(key, None)
            writer.close()

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
    ) -> bool:
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            body = await reader.readexactly(size - 8)
            if code == _SSL:
                writer.write(b"N")
            elif code == _CANCEL:
                await self._cancel(body)
                return False
            else:
                break
        names = body.split(b"\0")[0:-2:2]
        for name in [name.decode() for name in names]:
            if name not in _ACCEPTED:
                writer.write(_refusal(f"unsupported startup parameter: {name}"))
                return False
        self._clients[key] = None
        writer.write(self._about + b"K" + struct.pack("!i", 12) + key + _IDLE)
        return True

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
    ) -> None:
        while True:
            first = await _message(reader)
            if first[0] == b"X":
                return
            session = await self._lend(key)
            asking = asyncio.create_task(_ask(first, reader, session.writer))
            answering = asyncio.create_task(_answer(session.reader, writer))
            try:
                both = (asking, answering)
                done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                asking.cancel()
                answering.cancel()
                await asyncio.gather(asking, answering, return_exceptions=True)
                self._clients[key] = None
            if answering in done and answering.exception() is None:
                await self._give_back(session)
            else:  # the client is gone in the middle of a transaction, or the server is
                session.writer.close()
                await self._give_back(await self._connect())
                return

    async def _lend(self, key: bytes) -> Session:
        async with self._rested:
            await self._rested.wait_for(lambda: self._resting)
            session = self._resting.popleft()
        self.lent += 1
        self._clients[key] = session
        return session

    async def _give_back(self, session: Session) -> None:
        async with self._rested:
            self._resting.append(session)
            self._rested.notify()

    async def _cancel(self, key: bytes) -> None:
        session = self._clients.get(key)
        if session is not None:
            _, writer = await asyncio.open_unix_connection(str(self._socket))
            self._opened.append(writer)
            writer.write(struct.pack("!ii", 16, _CANCEL) + session.key)
            writer.close()

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for writer in self._opened:
            writer.close()
        await asyncio.gather(*[each.wait_closed() for each in self._opened], return_exceptions=True)


_IDLE: Final = b"Z" + struct.pack("!i", 5) + b"I"


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A message's kind, and all of it."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


async def _ask(
    first: tuple[bytes, bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Pass on what the client says, until it is gone or the answer ends the transaction."""
    kind, message = first
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while kind != b"X":
            writer.write(message)
            kind, message = await _message(reader)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what the server says, until it is outside of any transaction."""
    kind, message = b"", b""
    while kind != b"Z" or message[-1:] != b"I":
        kind, message = await _message(reader)
        writer.write(message)


def _startup(settings: dict[str, str]) -> bytes:
    pairs = b"".join(part.encode() + b"\0" for pair in settings.items() for part in pair) + b"\0"
    return struct.pack("!ii", len(pairs) + 8, 196608) + pairs


def _refusal(text: str) -> bytes:
    fields = b"".join(f"{code}{value}\0".encode() for code, value in _fields(text)) + b"\0"
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


def _fields(text: str) -> list[tuple[str, str]]:
    return [("S", "FATAL"), ("V", "FATAL"), ("C", "08P01"), ("M", text)]


@asynccontextmanager
async def relaying(server: postgres.Server) -> AsyncIterator[str]:
    """The relay, and the URL by which a store goes through it."""
    relay = Relay(server.folder / ".s.PGSQL.5432")
    await relay.open()
    with tempfile.TemporaryDirectory(prefix="limpet-pooler-") as folder:
        listening = await asyncio.start_unix_server(relay.accept, f"{folder}/.s.PGSQL.5432")
        try:
            yield f"{server.url_as('limpet', folder=Path(folder))}&pooler=transaction"
        finally:
            listening.close()
            await relay.close()


@asynccontextmanager
async def bouncing(server: postgres.Server) -> AsyncIterator[str]:
    """PgBouncer, and the URL by which a store goes through it. It must be installed."""
    found = shutil.which("pgbouncer")
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="limpet-bouncer-") as name:
        folder = Path(name)
        folder.chmod(0o777)  # where we are root it runs as somebody else
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\npostgres = host={server.folder} user=limpet\n"
            "[pgbouncer]\nlisten_addr =\nlisten_port = 5432\n"
            f"unix_socket_dir = {folder}\nauth_type = any\npool_mode = transaction\n"
            f"default_pool_size = {SESSIONS}\nmin_pool_size = {SESSIONS}\n"
            "server_round_robin = 1\nmax_client_conn = 100\n"
        )
        process = _started(found, config)
        try:
            await _answering(server, folder)
            yield f"{server.url_as('limpet', folder=folder)}&pooler=transaction"
        finally:
            process.terminate()
            process.wait(60)


def _started(pgbouncer: str, config: Path) -> subprocess.Popen[bytes]:
    command = [pgbouncer, "-q", str(config)]
    return subprocess.Popen(command, cwd=config.parent, **postgres.unprivileged())


async def _answering(server: postgres.Server, folder: Path) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                url = server.url_as("limpet", folder=folder)
                await (await asyncpg.connect(url, statement_cache_size=0)).close()
                return
            await asyncio.sleep(0.02)


async def left_behind(url: str) -> set[str]:
    """What the sessions of the server still have of those who used them: nothing, if all is well.

    Each transaction goes to the session that rested longest, so all of them are asked: the relay
    has SESSIONS, PgBouncer opens as many as were needed.
    """
    conn = await asyncpg.connect(url.replace("&pooler=transaction", ""), statement_cache_size=0)
    try:
        found: set[str] = set()
        for _ in range(4 * SESSIONS):
            found.update(await conn.fetchval(f"SELECT array(SELECT * FROM ({_LEFT}) l)"))
        return found
    finally:
        await conn.close()
