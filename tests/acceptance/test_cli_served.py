"""Every command on the URL of a server, as on a file: one walk through the life of a store."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from typer.main import get_command

import limpet
from limpet.cli.app import app
from tests.support.command import invoke
from tests.support.processes import Interpreter

HARNESS = ("--harness", "tests.support.managed_harness:converse")
MIGRATIONS = limpet.MigrationRegistry("a newer version")
MIGRATIONS.register("1.0.0", "2.0.0", dict)
LAST = ("--retries", "0")  # of a turn that fails: a dead letter
C1, C2, MOVED, LOST = "support/ada/c1", "support/ada/c2", "support/ada/m1", "support/ada/m2"
# Commands that name no store, or run until they are stopped. `studio`, `mcp` and `acp` on a URL
# have tests of their own, and so have the imports of other programs' files.
ELSEWHERE = {
    *("access", "certs", "login", "plan", "policy", "serve", "tokens"),
    *("acp", "mcp", "studio"),
    *("import-adk", "import-claude"),
}


def walk(store: str, here: Path) -> list[tuple[str, ...]]:
    """The commands in an order in which each has something to do."""
    (here / "agent.json").write_text('{"name": "helper"}')
    return [
        ("create", store, C1),
        ("create", store, C2),
        ("send", store, C1, "hello"),
        ("work", store, *HARNESS, "--app", "support", "--stop-when-idle"),
        ("tail", store, C1, "--stop-when-idle"),
        *[(name, store) for name in ("status", "list", "phases", "inbox", "proposals")],
        *[(name, store, C1) for name in ("log", "state", "trace", "graph", "children", "setup")],
        ("show", store, C1, "2"),
        ("report", store, "--app", "support"),
        ("metrics", store, C1),
        ("transcript", store, C1),
        ("memory", store, C1, "working_buffer", "--write", "a note"),
        ("outcomes", store, C1, "--define", "Done", "--criterion", "polite"),
        ("agents", store, "helper", "--put", str(here / "agent.json")),
        ("documents", store, "agents"),
        ("learnings", store, "support"),
        ("send", store, C1, "refund"),
        ("wake", store, C1, *HARNESS),
        ("confirm", store, C1, "--allow"),
        ("wake", store, C1, *HARNESS),
        ("send", store, C1, "ask"),
        ("wake", store, C1, *HARNESS),
        ("answer", store, C1, "rain"),
        ("interrupt", store, C1),
        ("send", store, C2, "fail"),
        ("wake", store, C2, *HARNESS, *LAST),
        ("requeue", store, C2),
        ("migrate", store, "--migrations", f"{__name__}:MIGRATIONS", "--plan", "--all-apps"),
        ("share", store, C1),
        ("diff", store, C1, "1", "5"),
        ("blame", store, C1, "memory"),
        ("bisect", store, C1, "--command", "true"),
        ("lineage", store, C1),
        ("fork", store, C1, "--new-id", "f1"),
        ("merge", store, C1, "f1"),
        ("rewind", store, C1, "3"),
        ("checkpoint", store, C1),
        ("suspend", store, C1),
        ("resume", store, C1),
        ("export", store, C1, str(here / "c1.lp")),
        ("import", str(here / "imported.db"), str(here / "c1.lp")),
        ("copy", str(here / "imported.db"), store),
        ("mirror", store, str(here / "mirror")),
        ("complete", store, C1),
        ("archive", store, C1),
        ("unarchive", store, C1),
        ("terminate", store, C2),
        ("sweep", store),
        ("create", store, MOVED),
        ("move", store, MOVED, str(here / "moved.db")),
        ("where", MOVED, "--store", store),
        ("create", store, LOST),
        ("move", store, LOST, str(here / "lost.db"), "--to-node", "burned"),
        (
            "reclaim",
            store,
            LOST,
            *("--target-is-lost", "burned", "--epoch", "1", "--reason", "fire"),
        ),
        ("pull", store, C2, "--store", str(here / "pulled.db")),
        ("push", C2, store, "--store", str(here / "pulled.db")),
        ("doctor", store),
        ("verify", store),
        ("compact", store),
        ("audit", store),
        ("erase", store, C2, "--yes"),
        ("drain", store, str(here / "drained.db")),
        ("erase-user", store, "support/ada", "--yes"),
    ]


def refused(store: str, here: Path) -> list[tuple[int, str, tuple[str, ...]]]:
    """Commands that have nothing to do here, or belong to the machine of the store: exit code,
    error code, command."""
    return [
        (3, "promotion.not_found", ("decide", store, "none", "--accept", "--reason", "x")),
        (2, "input.invalid", ("resolve", store, C1, "--give-up", "--yes")),
        (4, "backup.refused", ("backup", store, str(here / "copy.db"))),
        (4, "backup.refused", ("restore", str(here / "imported.db"), store)),
        (4, "keys.missing", ("keys", "status", store)),
        (4, "keys.missing", ("receipt", store, C1)),
    ]


def test_every_command_works_on_the_url_of_a_server(tmp_path: Path) -> None:
    """Each ends with 0 and prints JSON, or refuses with the code of its error; none is left out."""
    cold = (tmp_path / "cold").as_uri()
    args = ("serve", str(tmp_path / "s.db"), "--dev", "--port", "0", "--archive", cold)
    with Interpreter("limpet.cli", *args) as server:
        line = server.line()
        assert line is not None, server.complaint()
        url = line.split()[-1]
        walked = walk(url, tmp_path)
        end = next(n for n, each in enumerate(walked) if each[0] == "complete")
        for command in walked[:end]:
            check(1 if command[-2:] == LAST else 0, None, command)
        refusals = refused(url, tmp_path)
        for code, error, command in refusals:
            check(code, error, command)
        for command in walked[end:]:
            check(0, None, command)
        os.kill(server.pid, signal.SIGTERM)
        server.end(0)
    named = {each[0] for each in walked} | {command[0] for *_, command in refusals}
    assert named | ELSEWHERE == set(get_command(app).commands)  # type: ignore[attr-defined]


def check(code: int, error: str | None, command: tuple[str, ...]) -> None:
    done = invoke(*command, "--json")
    last = done.stdout.strip()
    assert done.exit_code == code, (command, done.stdout, done.stderr)
    if error is not None:
        assert json.loads(last)["error"]["code"] == error, (command, last)
