"""What the suites of google-adk ask for. Imported by our own run too, so ADK only when used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture
async def service(url: str) -> AsyncIterator[Any]:
    """The service on every store, opened by its URL."""
    from limpet.adapters.adk import LimpetSessionService

    async with LimpetSessionService(url) as opened:
        yield opened
