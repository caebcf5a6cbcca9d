"""What a server logs: calls that failed by its own fault, and connections. No body, and no key."""

from __future__ import annotations

import logging
from typing import Final

SERVER: Final = logging.getLogger("limpet.server")
