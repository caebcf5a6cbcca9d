"""The commands about the life of sessions."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.command import invoke
from tests.support.deadlines import passed

KEY = ["--app", "support", "--user", "ada", "--id", "one"]


@pytest.fixture
async def file(tmp_path: Path) -> str:
    """A store with a session, and one whose time is over."""
    path = f"{tmp_path}/support.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.create("support", "ada", id="one", actor="user:ada")
        over = limpet.Timeouts(absolute=timedelta(microseconds=1))
        await lp.create("sales", "bob", timeouts=over)
        await passed(lp)
    return path


def ran(*args: str, code: int = 0) -> str:
    result = invoke(*args)
    assert result.exit_code == code, result.output
    return result.output


def told(*args: str) -> Any:
    return json.loads(ran(*args, "--json"))


def test_a_session_is_led_through_its_life(file: str, tmp_path: Path) -> None:
    """Each command prints the phase it led to; resume prints its report."""
    assert "support/ada/one is suspended." in ran("suspend", file, *KEY, "--reason", "lunch")
    report = ran("resume", file, *KEY)
    assert [line.split()[0] for line in report.splitlines()[1:]] == [
        "restore",
        "rehydrate",
        "rebind",
        "reconstruct",
        "verify",
    ]
    assert told("complete", file, *KEY)["phase"] == "completed"
    cold = ["--archive", f"file://{tmp_path}/cold"]
    assert told("archive", file, *KEY, *cold)["phase"] == "archived"
    assert len(list((tmp_path / "cold").rglob("*.limpet"))) == 1
    assert "pass --archive" in ran("unarchive", file, *KEY, code=2)
    assert told("unarchive", file, *KEY, *cold)["phase"] == "completed"
    assert "session.invalid_transition" in ran("terminate", file, *KEY, code=3)


def test_a_sweep_says_what_it_did(file: str) -> None:
    """The sweep acts on timeouts; phases counts what is where."""
    assert told("phases", file)["apps"]["sales"]["active"] == 1
    assert told("sweep", file)["terminated"] == 1
    header, sales, _ = [line.split() for line in ran("phases", file).splitlines()]
    assert dict(zip(header, sales, strict=True)) == {
        "app": "sales",
        "terminated": "1",
        **dict.fromkeys(("init", "active", "suspended", "resumed", "completed", "archived"), "-"),
    }
    assert ran("sweep", file).startswith("ok: 0 suspended")


def test_archiving_again_is_refused(file: str, tmp_path: Path) -> None:
    """By the table, with the exit code of a transition that there is not."""
    cold = ["--archive", f"file://{tmp_path}/cold"]
    ran("complete", file, *KEY)
    ran("archive", file, *KEY, *cold)
    assert "session.invalid_transition" in ran("archive", file, *KEY, *cold, code=3)
    assert "session.invalid_transition" in ran("suspend", file, *KEY, code=3)


def test_the_doctor_points_out_unusual_timeouts(file: str) -> None:
    """An absolute timeout of a microsecond is probably a mistake."""
    assert "timeout absolute" in ran("doctor", file)
