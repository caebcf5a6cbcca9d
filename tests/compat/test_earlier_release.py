"""A rolling deploy: the code of an earlier commit and this code, two processes on one store.

The earlier code comes out of the repository's history; a copy without history skips these tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EDITION = ROOT / "tests" / "support" / "edition.py"
LAST = "e62084b28969d1fd1e35b9edf58cd2f7212f6f9d"  # the newest that was landed before this code
SCHEMA_1 = "fcca3c7565b47fe22bf7fb561aaf449a521f21a4"  # the last one of schema 1
FORMAT_1 = "99dac60349ca2107922e391920995bcb8392a555"  # the last one of format 1 of log files


class Process:
    """A release at work, which obeys one line at a time."""

    def __init__(self, source: Path, url: str, name: str) -> None:
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(source)}
        self.source = source
        self._process = subprocess.Popen(
            [sys.executable, str(EDITION), url, name],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process died; its error is above"
        said: dict[str, Any] = json.loads(line)
        return said

    def do(self, line: str) -> Any:
        """Obey, and succeed."""
        self.tell(line)
        said = self.answer()
        assert "ok" in said, f"{line}: {said}"
        return said["ok"]

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def code_of(commit: str, folder: Path) -> Path:
    """The source of an earlier commit, unpacked."""
    if not (ROOT / ".git").exists():
        pytest.skip("this copy has no history: the code of an earlier release is not to be had")
    command = ["git", "archive", "--format=tar", commit, "src"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"commit {commit[:8]} is not in this clone's history: fetch all of it")
    folder.mkdir()
    subprocess.run(["tar", "x", "-C", str(folder)], input=done.stdout, check=True)
    return folder / "src"


def without_seconds(findings: list[str]) -> list[str]:
    """The findings of an earlier release, but for what it does not count: the seconds of wakes."""
    return [
        each for each in findings if not each.endswith("head has other usage than its log says")
    ]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/desk.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.end()


def test_the_last_release_and_this_one_work_on_one_store(
    url: str, tmp_path: Path, started: list[Process]
) -> None:
    """Both write the same session and answer the same customers: nothing is lost or done twice."""
    old = Process(code_of(LAST, tmp_path / "old"), url, "old")
    new = Process(ROOT / "src", url, "new")
    started += [old, new]
    assert old.do("open").startswith(str(old.source))
    old.do("write 0 5")
    assert new.do("open").startswith(str(new.source))
    for process in (old, new):
        process.do("ask 6")
    for line in ("write 5 15", "work", "write 20 5"):
        for process in (old, new):  # both at once
            process.tell(line)
        for process in (old, new):
            assert "ok" in process.answer()
    seen = old.do("read")
    assert new.do("read") == seen
    notes = [event[0] for event in seen["both/shared"] if event[1] == "note.made"]
    wanted = [f"old-{n}" for n in range(25)] + [f"new-{n}" for n in range(5, 25)]
    assert sorted(notes) == sorted(wanted)
    asked = {name: log for name, log in seen.items() if name.startswith("customer/")}
    assert len(asked) == 12
    for name, log in asked.items():
        (said,) = [event[3] for event in log if event[1] == "agent.message"]
        assert said.partition(": ")[2] == name.partition("/")[2]
    assert (without_seconds(old.do("verify")), new.do("verify")) == ([], [])


def test_an_upgrade_leaves_older_processes_as_the_doctor_says(
    url: str, tmp_path: Path, started: list[Process]
) -> None:
    """A process of schema 1 goes on with the upgraded store, until it opens it again."""
    old = Process(code_of(SCHEMA_1, tmp_path / "old"), url, "old")
    new = Process(ROOT / "src", url, "new")
    started += [old, new]
    old.do("open")
    old.do("write 0 5")
    new.do("open")  # the upgrade
    new.do("write 0 5")
    old.do("write 5 5")
    new.do("write 5 5")
    seen = new.do("read")
    assert old.do("read") == seen
    assert len([event for event in seen["both/shared"] if event[1] == "note.made"]) == 20
    assert new.do("verify") == []
    old.do("close")
    old.tell("open")
    assert old.answer() == {"code": "store.newer"}
    assert new.do("read") == seen


@pytest.mark.parametrize("release", [LAST, FORMAT_1], ids=["last", "format 1"])
def test_a_log_directory_passes_from_an_earlier_release_to_this_one(
    tmp_path: Path, started: list[Process], release: str
) -> None:
    """One process writes at a time: what the other wrote goes on here; back it passes only while
    the format is the same. So does a reader that had it open: it has to be ended before."""
    url = f"files:///{tmp_path}/desk"
    old = Process(code_of(release, tmp_path / "old"), url, "old")
    new = Process(ROOT / "src", url, "new")
    beside = Process(old.source, f"{url}?mode=ro", "beside")
    started += [old, new, beside]
    old.do("open")
    old.do("write 0 5")
    old.do("ask 2")
    new.tell("open")
    assert new.answer() == {"code": "store.busy"}  # until the other one closes it
    before = old.do("read")
    beside.do("open")
    old.do("close")
    format_before = _format(tmp_path / "desk")
    new.do("open")
    is_converted = _format(tmp_path / "desk") != format_before
    assert new.do("read") == before
    new.do("write 0 5")
    new.do("work")
    assert new.do("verify") == []
    seen = new.do("read")
    beside.tell("read")  # it had the directory open
    assert (beside.answer() == {"ok": seen}) is not is_converted
    new.do("close")
    old.tell("open")
    if is_converted:
        assert old.answer() == {"code": "store.newer"}
    else:
        assert "ok" in old.answer()
        assert (old.do("read"), without_seconds(old.do("verify"))) == (seen, [])
        old.do("close")
    new.do("open")
    assert new.do("read") == seen
    assert [event[0] for event in seen["both/shared"] if event[1] == "note.made"] == [
        f"{name}-{n}" for name in ("old", "new") for n in range(5)
    ]


def _format(directory: Path) -> int:
    """The number of the format that a log directory says it has."""
    format: int = json.loads((directory / "limpet.json").read_text())["format"]
    return format
