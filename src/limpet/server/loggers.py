"""The server's log: requests, connections, and calls that failed by its own fault. No body, and
no key."""

from __future__ import annotations

import logging
from typing import Final

ACCESS: Final = logging.getLogger("limpet.server.access")
SERVER: Final = logging.getLogger("limpet.server")
