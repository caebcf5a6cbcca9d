"""limpet.mcp with the official client, in an environment of its own: see tests/support/venvs.py."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support import venvs
from tests.support.command import invoke
from tests.support.processes import Interpreter

HERE = Path(__file__).parent
SECONDS_MAX = 240  # below the limit of one test


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("mcp")
    except venvs.NotInstalled as error:
        pytest.skip(f"the Model Context Protocol is not tested here: {error}")


def check(python: Path, suite: str, **variables: str) -> None:
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    path = str((HERE / suite).relative_to(venvs.ROOT))
    code, said = venvs.run(python, *options, path, timeout=SECONDS_MAX, **variables)
    assert code == 0, said[-8_000:]


def test_the_suite_with_the_official_client(python: Path) -> None:
    check(python, "check_mcp.py")


def test_the_tools_on_the_url_of_a_server(python: Path, tmp_path: Path) -> None:
    """With the keys of several roles; the server runs in the environment of this suite."""
    store, keys = str(tmp_path / "support.db"), {}
    for name, role, user in (
        ("owner", "owner", ["--user", "ada"]),
        ("viewer", "viewer", ["--user", "ada"]),
        ("agent", "agent", []),
        ("eve", "owner", ["--user", "eve"]),
    ):
        named = ("--app", "support", *user, "--role", role, "--json")
        keys[name] = json.loads(invoke("access", "create", store, *named).stdout)["token"]
    for session, actor in (("support/ada/c1", "user:ada"), ("support/eve/secret", "user:eve")):
        assert invoke("create", store, session, "--actor", actor).exit_code == 0
    with Interpreter("limpet.cli", "serve", store, "--port", "0") as server:
        line = server.line()
        assert line is not None, server.complaint()
        check(python, "check_mcp_served.py", SERVED=line.split()[-1], KEYS=json.dumps(keys))
        os.kill(server.pid, signal.SIGTERM)
        server.end(0)
