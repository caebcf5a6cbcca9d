"""Every store, and a saver on it; what the tests share on a server has names of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

import limpet
from limpet.adapters.langgraph import LimpetSaver, LimpetStore


@pytest.fixture(params=["memory", "sqlite", "postgresql", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/graphs.db?sync=normal"
    name = f"LIMPET_INSIDE_{request.param.upper()}"
    return os.environ.get(name) or pytest.skip(f"{name} names no server")


@pytest.fixture
async def lp(url: str) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url) as opened:
        yield opened


@pytest.fixture
def app() -> str:
    return f"graphs-{uuid4()}"


@pytest.fixture
async def saver(lp: limpet.Limpet, app: str) -> LimpetSaver:
    return LimpetSaver(lp, app=app)


@pytest.fixture
async def store(lp: limpet.Limpet, app: str) -> LimpetStore:
    return LimpetStore(lp, collection=app)
