"""The fallback where a proxy passes no websocket: each message is one POST, and its answer.

The server cannot say anything unasked then: whoever follows looks again a few times a second, and
partial events do not come. Everything else is as on a websocket.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.store.remote.address import Address
from limpet.store.remote.messages import MEDIA_TYPE, PATH, PROTOCOL_HEADER, Assembler

ANSWER_SECONDS: Final = 600.0  # a long call, such as a verification, answers when it is done


def post(address: Address, headers: Mapping[str, str], message: bytes) -> tuple[int, bytes, str]:
    """Send a message in a thread; the status, the content and the protocol of the answer."""
    made: http.client.HTTPConnection
    if address.tls is None:
        made = http.client.HTTPConnection(address.host, address.port, timeout=ANSWER_SECONDS)
    else:
        made = http.client.HTTPSConnection(
            address.host, address.port, timeout=ANSWER_SECONDS, context=address.tls
        )
    try:
        sent = {**headers, "content-type": MEDIA_TYPE}
        made.request("POST", f"{address.path}{PATH}", message, sent)
        answer = made.getresponse()
        return answer.status, answer.read(), answer.getheader(PROTOCOL_HEADER, "")
    finally:
        made.close()


class PostTransport:
    """A stand-in for a websocket."""

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str],
        received: Callable[[bytes], None],
        lost: Callable[[Any], None],
    ) -> None:
        self._address, self._headers = address, headers
        self._received, self._lost = received, lost
        self._assembler = Assembler()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, _: object, frame: bytes) -> None:
        """Send a frame, as a websocket does; the message goes out when it is whole."""
        message = self._assembler.add(frame)
        if message is not None:
            task = asyncio.get_running_loop().create_task(self._post(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _post(self, message: bytes) -> None:
        try:
            status, content, _ = await asyncio.to_thread(
                post, self._address, self._headers, message
            )
            if status != 200:
                raise OSError(f"status {status}")
            self._received(content)
        except (OSError, http.client.HTTPException):
            self._lost(self)

    def send_close(self, _: object) -> None:
        """Do nothing: there is no connection to close."""

    def disconnect(self, **_: object) -> None:
        for task in self._tasks:
            task.cancel()

    async def wait_disconnected(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
