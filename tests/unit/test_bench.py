"""The benchmarks start; what they measure is no test."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import bench.__main__
from bench import disk
from bench.picture import picture
from bench.table import Row
from tests.support.venvs import ROOT


def test_the_benchmarks_can_be_imported() -> None:
    """Every workload is loaded before the first one runs, so one broken import stops them all."""
    said = subprocess.run(
        [sys.executable, "-m", "bench", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "--postgres" in said.stdout


def _row(workload: str, what: str, ours: float, peer: float | None, raw: float | None) -> Row:
    return Row(workload, what, "per second", {}, ours, raw, peer)


def test_the_picture_is_well_formed_and_shows_ratios() -> None:
    """Ours and the limit against the peer; of rows that differ in size alone, the largest."""
    rows = [
        _row("W2", "lanes: 64 sessions × 20", 1.0, 1.0, 1.0),
        _row("W2", "lanes: 64 sessions × 100", 12.0, 1.0, 150.0),
        _row("W4", "clean <1>", 3.0, None, 4.0),
        _row("W5", "nobody beside it", 1.0, None, None),
    ]
    svg = picture(rows, {"limpet": "0", "load": 1.5})
    found = ElementTree.fromstring(svg)
    texts = [each.text for each in found.iter() if each.tag.endswith("text")]
    assert [t for t in texts if t and t.startswith("W")] == [
        "W2 · lanes: 64 sessions × 100",
        "W4 · clean <1>",
    ]
    assert {"12 ×", "1 ×", "150 ×", "0.75 ×"} <= {*texts}
    assert "prefers-color-scheme: dark" in svg


def test_a_slowed_disk_takes_its_time(tmp_path: Path) -> None:
    """Every sync of whoever is measured lasts as long as was asked for, and still syncs."""
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    script = (
        "import os, time; file = os.open('f', os.O_CREAT | os.O_WRONLY); began = time.monotonic();"
        "os.fsync(file); os.fdatasync(file); print(time.monotonic() - began)"
    )
    slowed = disk.slowed(30, tmp_path)
    said = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=slowed,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(said.stdout) >= 0.06  # two of them; a lower bound holds on any machine


@pytest.mark.parametrize("given", ["0", "slow"])
def test_a_time_no_disk_takes_is_refused(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "W1", f"--sync-ms={given}"])
    with pytest.raises(SystemExit) as refused:
        bench.__main__.main()
    assert refused.value.code == 2
    assert "--sync-ms" in capsys.readouterr().err


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(disk.NoCompiler, match="C compiler"):
        disk.slowed(1, tmp_path)
