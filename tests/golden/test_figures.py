"""The golden analytics files: each is opened as it was, and measured on."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

import limpet
from limpet.analytics.schema import FORMAT
from tests.golden.figures import APP, DONE, FILE, GONE, OPEN, STORE, TASKS, TOOLS, answer

HERE: Final = Path(__file__).parent
# A golden file is never written again: this is the SHA-256 of each.
FILES: Final = {
    "analytics-1.tar.xz": "d28be3830fad0a2b1dcec70b45d940054eb14e27e14b4efde5a30f54482c99da",
    "analytics-2.tar.xz": "47015199cadbfecd1a421aab7d92216273eb006a1073a0c8fe8e94b4d8d0a187",
    "analytics-3.tar.xz": "947b4ee8ee9f8e47f5fa6a0d69a90e3be04768e8b1669a0fc6a2a848821b8be2",
    "analytics-4.tar.xz": "16604b6ac6bb75fb55c0886f644edfe9c3a62da97b9e1569b7a16efc55b48fa1",
}


def test_every_format_has_its_golden_file() -> None:
    """Whoever adds a format adds a file, and none is ever changed."""
    assert set(FILES) == {f"analytics-{number}.tar.xz" for number in range(1, FORMAT + 1)}
    for name, digest in FILES.items():
        assert hashlib.sha256((HERE / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("name", FILES)
async def test_what_was_measured_stays_and_is_measured_on(name: str, tmp_path: Path) -> None:
    """Sums, also of a session that has been deleted since; what was under way goes on."""
    with tarfile.open(HERE / name) as archive:
        archive.extractall(tmp_path, filter="data")
    async with (
        limpet.open(f"sqlite:///{tmp_path / STORE}") as lp,
        limpet.Analytics(lp, f"sqlite:///{tmp_path / FILE}") as an,
        limpet.Analytics(lp, "memory://") as fresh,
    ):
        assert await said(an, "task_type", TASKS) == TASKS
        assert await said(an, "tool", TOOLS) == TOOLS
        await answer(await lp.get(OPEN))
        emitted: list[limpet.Metric] = []
        lp.maintenance.on_metric(emitted.append)
        await an.run(once=True)
        # Earlier formats emitted a record when they saw the end.
        ended = {DONE, GONE} if name >= "analytics-4" else set()
        records = [metric for metric in emitted if metric.name == "session.analytics"]
        assert {
            (key.app, key.user, key.id) for key in (m.values["session"] for m in records)
        } == ended
        await fresh.run(once=True)
        moved = {"turns": 1, "tokens_input": 500}
        assert await said(an, "task_type", TASKS) == {**TASKS, "search": TASKS["search"] | moved}
        for key in (DONE, OPEN):
            kept, again = await an.session(key), await fresh.session(key)
            for part in ("key", "uid", "phase", "interaction", "resource", "quality", "rating"):
                assert getattr(kept, part) == getattr(again, part), part
        assert len(await fresh.by("user", app=APP)) == 2
        assert (await an.by("user", app=APP))[GONE[1]]["tokens_input"] == 500


async def said(
    an: limpet.Analytics, dimension: Any, wanted: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What the file says of these groups and columns."""
    table = await an.by(dimension, app=APP)
    return {group: {name: table[group][name] for name in row} for group, row in wanted.items()}
