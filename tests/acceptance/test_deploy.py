"""The files under deploy: parsed, and compared with the commands that they start. Not run."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from limpet.cli.app import app

yaml = pytest.importorskip("yaml")
DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def check_command(words: list[str]) -> None:
    """A command of ours with options that it has."""
    name = words[words.index("limpet") + 1]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    known = {option for each in command.params for option in each.opts}
    given = {word for word in words if word.startswith("--")}
    assert given <= known, given - known


def test_two_servers_and_two_workers_share_one_postgresql(compose: dict[str, Any]) -> None:
    """Servers reach the database, workers a server; only the servers have ports, on loopback."""
    services = compose["services"]
    servers = [each for each in services.values() if "serve" in each.get("command", ())]
    workers = [each for each in services.values() if "limpet work" in str(each.get("command"))]
    assert (len(servers), len(workers)) == (2, 2)
    assert {str(each["command"]) for each in servers} == {str(servers[0]["command"])}
    for server in servers:
        assert "postgresql://limpet@postgres/limpet" in server["command"]
        assert server["depends_on"]["postgres"]["condition"] == "service_healthy"
        assert "/readyz" in str(server["healthcheck"]["test"])
        assert server["ports"][0].startswith("127.0.0.1:")
    for worker in workers:
        assert worker["networks"] == ["doors"]
        assert "ports" not in worker
        assert worker["environment"]["LIMPET_SERVER"] in ("http://one:8420", "http://two:8420")
    assert services["postgres"]["networks"] == ["store"]
    assert compose["networks"]["store"]["internal"] is True


def test_what_compose_names_is_declared(compose: dict[str, Any]) -> None:
    """Secrets, networks, volumes and services; and no password is in the file."""
    for service in compose["services"].values():
        for secret in service.get("secrets", ()):
            name = secret if isinstance(secret, str) else secret["source"]
            assert name in compose["secrets"]
        assert set(service.get("networks", ())) <= compose["networks"].keys()
        assert set(service.get("depends_on", ())) <= compose["services"].keys()
    assert not re.search(r"(?i)password: *[^/\s]", (DEPLOY / "compose.yaml").read_text())


def test_the_commands_of_compose_exist(compose: dict[str, Any]) -> None:
    """With their options."""
    seen = 0
    for service in compose["services"].values():
        command = service.get("command")
        if command is None:
            continue
        words = shlex.split(command[-1]) if command[0] == "sh" else [str(each) for each in command]
        check_command(words)
        seen += 1
    assert seen == 5


def test_the_unit_of_systemd_starts_a_command_that_exists() -> None:
    """It drains on SIGTERM, and there is time for it."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / "limpet.service").read_text())
    words = shlex.split(unit["Service"]["ExecStart"])
    check_command(["limpet", *words[1:]])
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert int(unit["Service"]["TimeoutStopSec"]) > 10
    assert unit["Install"]["WantedBy"] == "multi-user.target"
