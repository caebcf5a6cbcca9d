"""A server for all tests of a run, and the official client on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.managed_server import ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("managed"))
    process.start()
    yield process
    assert process.stop() == 0, process.said()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """One that a test may kill."""
    process = ServerProcess(tmp_path)
    process.start()
    yield process
    process.stop()


def client_of(url: str, **options: Any) -> Any:
    """A client. The newest one raises if an answer or an event does not have the shape of its
    types; the earlier ones do not know every type of error and event."""
    anthropic = pytest.importorskip("anthropic")
    if not anthropic.__version__.startswith(("0.", "1.")):
        options.setdefault("_strict_response_validation", True)
    return anthropic.Anthropic(base_url=url, api_key="none", **options)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with client_of(server.url) as client:
        yield client


@pytest.fixture
def agent(client: Any) -> Any:
    return client.beta.agents.create(name="support", model="claude-opus-5", system="Be kind.")


@pytest.fixture
def session(client: Any, agent: Any) -> Any:
    return client.beta.sessions.create(agent=agent.id, environment_id="env_default")
