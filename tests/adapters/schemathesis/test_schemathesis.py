"""Requests made from /openapi.json, as a stranger would make them, right and wrong ones.

Schemathesis is not in our development lock: it runs in an environment of its own, which `make
frameworks` makes, against `limpet serve` in this one.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support import seeds, venvs
from tests.support.examples import tries
from tests.support.managed_server import ServerProcess

SECONDS_MAX = 280  # below the limit of one test
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
# A stream does not end; the store protocol is not JSON, and has tests of its own.
LEFT_OUT = r"stream$|/limpet/v1/store$"


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("schemathesis")
    except venvs.NotInstalled as error:
        pytest.skip(f"no requests are made from the document here: {error}")


def post(url: str, path: str, body: Any) -> Any:
    request = urllib.request.Request(url + path, data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())


def named(url: str) -> dict[str, list[str]]:
    """Things that are there, for the parameters of paths: each request takes one of them."""
    agent = post(url, "/v1/agents", {"name": "a", "model": "m"})["id"]
    sessions = []
    for _ in range(5):
        session = post(url, "/v1/sessions", {"agent": agent})["id"]
        post(url, f"/limpet/v1/sessions/{session}/checkpoints", {})
        sessions.append(session)
    return {
        "path.session_id": [*sessions, "sesn_none"],
        "path.vault_id": [post(url, "/v1/vaults", {"display_name": "v"})["id"] for _ in range(3)],
        "path.store_id": [post(url, "/v1/memory_stores", {"name": "m"})["id"] for _ in range(3)],
        "path.env_id": ["env_default"],
        "path.number": ["1", "x"],
    }


def test_no_request_ends_in_a_failure_or_breaks_the_document(python: Path, tmp_path: Path) -> None:
    """No 5xx; every answer has the status, media type and form that the document names."""
    process = ServerProcess(tmp_path, harness=False, options=("--rate", "0"))
    process.start()
    try:
        names = named(process.url)
        lines = [f"{json.dumps(name)} = {json.dumps(values)}" for name, values in names.items()]
        (tmp_path / "schemathesis.toml").write_text("\n".join(["[parameters]", *lines, ""]))
        command = [str(python.parent / "schemathesis"), "run", f"{process.url}/openapi.json"]
        command += ["--checks", ",".join(CHECKS), "--exclude-path-regex", LEFT_OUT]
        command += ["--phases", "coverage,fuzzing", "--max-examples", str(tries(3, 100))]
        command += ["--no-color", "--no-shrink", "--continue-on-failure", "--warnings", "off"]
        command += ["--request-timeout", "30", "--generation-database", "none"]
        command += ["--seed", str(seeds.seed("schemathesis"))]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8_000:] + process.said()
        assert "Tested: 0" not in done.stdout
    finally:
        assert process.stop() == 0, process.said()
