"""What docs/serving.md shows of the Managed Agents wire is run as it is written."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from tests.support.managed_server import ServerProcess
from tests.support.venvs import ROOT

SECTION = (ROOT / "docs" / "serving.md").read_text().partition("\n## Managed Agents\n")[2]
WRITTEN = "http://127.0.0.1:8420"


def blocks(language: str, server: ServerProcess) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTION, re.S)
    assert found is not None
    return found[1].replace(WRITTEN, server.url)


def test_the_first_session_by_the_client(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer to "hi" is printed."""
    exec(blocks("py", server), {"__name__": "example"})
    assert capsys.readouterr().out == "echo hi\n"


def test_the_first_session_by_curl(server: ServerProcess) -> None:
    """Each command works with the ids of those before it."""
    ids: dict[str, str] = {}
    said: list[Any] = []
    for command in blocks("sh", server).replace("\\\n", "").splitlines():
        for prefix, id in ids.items():
            command = command.replace(f"{prefix}_…", id)
        if "/stream" in command:
            command = command.replace("curl -N", "curl -sN --max-time 1")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        if "/stream" in command:
            assert "event: message\nid: " in done.stdout
            continue
        said.append(json.loads(done.stdout))
        if "id" in said[-1]:
            ids[said[-1]["id"].partition("_")[0]] = said[-1]["id"]
    assert said[-1]["data"][0]["content"] == [{"type": "text", "text": "hi"}]
