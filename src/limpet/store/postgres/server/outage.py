"""An outage: the time between losing the server and having it back, logged once at each end."""

from __future__ import annotations

import time

from limpet.store.logs import POSTGRES, error_name


class Outage:
    """Belongs to what connects to the server: a lane, the pools or the listener."""

    __slots__ = ("_connection", "_place", "_since", "_tries")

    def __init__(self, place: str, connection: str) -> None:
        self._place, self._connection = place, connection
        self._since, self._tries = 0.0, 0

    def lost(self, error: BaseException) -> None:
        """A call failed because the connection broke, or none could be made."""
        self._tries += 1
        if self._tries == 1:
            self._since = time.monotonic()
            text = "connection lost: store=%s connection=%s error=%s"
            POSTGRES.warning(text, self._place, self._connection, error_name(error))
        else:
            text = "connection retried: store=%s connection=%s error=%s tries=%d"
            POSTGRES.debug(text, self._place, self._connection, error_name(error), self._tries)

    def over(self) -> None:
        """A call succeeded. Costs one comparison if nothing was lost."""
        if self._tries:
            seconds, tries, self._tries = time.monotonic() - self._since, self._tries, 0
            text = "connection regained: store=%s connection=%s seconds=%.3f tries=%d"
            POSTGRES.info(text, self._place, self._connection, seconds, tries)
