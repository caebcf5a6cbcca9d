"""A relay between a PostgreSQL server's socket and who connects to it: a network that can be cut.

Cut, it closes what is open and every new connection; silent, it keeps connections open and carries
nothing, as a network does that loses everything.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET = ".s.PGSQL.5432"


class Relay:
    """Listens in a folder of its own, and carries bytes to the socket in another."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._home = tempfile.TemporaryDirectory(prefix="limpet-relay-")
        self.folder = Path(self._home.name)
        self.folder.chmod(0o755)  # the servers run as another user where we are root
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / SOCKET))
        (self.folder / SOCKET).chmod(0o777)
        self._listener.listen(128)
        self._carries = threading.Event()
        self._carries.set()
        self._cut = False
        self._open: set[socket.socket] = set()
        self.carried = 0  # pieces
        self._serving: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut(self) -> None:
        """Close every connection, and every new one, until `mend`."""
        self._cut = True
        for each in tuple(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Carry nothing, and close nothing, until `mend`."""
        self._carries.clear()

    def mend(self) -> None:
        self._cut = False
        self._carries.set()

    def close(self) -> None:
        self.cut()
        self._carries.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for serving in self._serving:
            serving.join()
        self._listener.close()
        self._home.cleanup()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                try:
                    if self._cut:
                        raise ConnectionResetError
                    far.connect(str(self._to / SOCKET))
                except OSError:
                    near.close()
                    far.close()
                    continue
                self._open |= {near, far}
                serving = threading.Thread(target=self._serve, args=(near, far))
                self._serving.append(serving)
                serving.start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            back = threading.Thread(target=self._carry, args=(far, near))
            back.start()
            self._carry(near, far)
            back.join()
            self._open -= {near, far}

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65_536):
                self._carries.wait()
                self.carried += 1
                target.sendall(piece)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(to: Path) -> Iterator[Relay]:
    relay = Relay(to)
    try:
        yield relay
    finally:
        relay.close()
