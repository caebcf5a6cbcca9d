"""The commands about agents: their documents, learnings, and what one session keeps and aims at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.command import invoke

ADA = "user:ada"
KEY = ["--app", "support", "--user", "ada", "--id", "one"]


async def learns(turn: limpet.Turn) -> None:
    await turn.learn("lesson", "Ask for the order number.")
    await turn.delegate("research", "look", title="invoice")


@pytest.fixture
async def file(tmp_path: Path) -> str:
    """A store with an agent, a vault, and a session that has learned and delegated."""
    path = f"{tmp_path}/support.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.agents.put("support", {"model": "small"}, actor=ADA)
        await lp.vaults.put("payments", {"stripe": "env:STRIPE_KEY"}, actor=ADA)
        s = await lp.create("support", "ada", "one", agent="support", actor=ADA)
        await s.setup.attach(vaults=["payments"])
        await s.append("user.message", {"text": "hi"}, actor=ADA)
        assert (await lp.wake(s.key, learns)).error is None
    return path


def ran(*args: str, code: int = 0, input: str | None = None) -> str:
    result = invoke(*args, input=input)
    assert result.exit_code == code, result.output
    return result.output


def told(*args: str, input: str | None = None) -> Any:
    return json.loads(ran(*args, "--json", input=input))


def test_documents_are_put_shown_and_deleted(file: str, tmp_path: Path) -> None:
    """From a file or the input, at an expected version; the history stays."""
    new = tmp_path / "agent.json"
    new.write_text('{"model": "large"}')
    put = told("agents", file, "support", "--put", str(new), "--expect", "1", "--actor", "user:bob")
    assert put["documents"][0]["version"] == 2
    assert "document.conflict" in ran(
        "agents", file, "support", "--put", str(new), "--expect", "1", code=3
    )
    (found,) = told("agents", file, "support", "--version", "1")["documents"]
    assert found["value"] == {"model": "small"}
    assert "support@2" in ran("agents", file)
    assert '{"model":"large"}' in ran("agents", file, "support")
    assert "deleted" in ran("agents", file, "support", "--delete", "--expect", "2")
    assert "document.not_found" in ran("agents", file, "support", code=3)
    versions = [d["version"] for d in told("agents", file, "support", "--history")["documents"]]
    assert versions == [3, 2, 1]
    assert "nothing is there" in ran("agents", file)
    ran("documents", file, "environments", "default", "--put", "-", input='{"image": "python"}')
    assert "default@1" in ran("documents", file, "environments")


def test_a_vault_is_shown_by_its_names(file: str) -> None:
    """Neither the table nor the JSON has a reference, and a secret is refused unseen."""
    for args in (["payments"], [], ["payments", "--history"]):
        for form in ([], ["--json"]):
            shown = ran("documents", file, "vaults", *args, *form)
            assert "STRIPE_KEY" not in shown
            assert "payments" in shown
    assert told("documents", file, "vaults", "payments")["documents"][0]["names"] == ["stripe"]
    refused = ran(
        *("documents", file, "vaults", "x", "--put", "-"), code=2, input='{"a": "sk_live_1"}'
    )
    assert "sk_live_1" not in refused


def test_a_buffer_that_cannot_be_read_is_refused_with_those_that_can(file: str) -> None:
    """Checkpoints are listed among the buffers: the error says which command shows them."""
    assert "checkpoint@0  ro" in ran("memory", file, *KEY)
    refused = " ".join(ran("memory", file, "checkpoint", *KEY, code=2).split())
    assert "shell_state, session_state, working_buffer, not 'checkpoint'" in refused
    assert "limpet checkpoint --list" in refused


@pytest.mark.parametrize(
    "args",
    [
        ["agents", "--history"],
        ["agents", "support", "--put", "nowhere.json"],
        ["agents", "support", "--put", "-", "--delete"],
        ["memory", "diary", *KEY],
        ["memory", *KEY, "--write", "x"],
        ["outcomes", *KEY, "--criterion", "x"],
        ["learnings", "support", "--promote", "nothing"],
    ],
)
def test_what_cannot_be_meant_is_refused(file: str, args: list[str]) -> None:
    """With advice and the exit code of a wrong request."""
    command, *rest = args
    assert "limpet: input.invalid" in ran(command, file, *rest, code=2, input="{}")


def test_learnings_are_promoted_through_the_gates(file: str) -> None:
    """The command shows what was learned and the memory; a gate refuses, a session opens it."""
    found = told("learnings", file, "support")
    (lesson,) = found["learnings"]
    assert (lesson["sessions"], found["memory"]) == (1, "")
    with limpet.open_sync(f"sqlite:///{file}") as lp:
        lp.policies.gates("support", limpet.Gates(grade="missing"))
    promote = ["learnings", file, "support", "--promote", lesson["id"]]
    assert "promotion.refused" in ran(*promote, code=3)
    assert "--id together" in ran(*promote, "--app", "support", code=2)
    assert "- Ask for the order number." in ran(*promote, *KEY)


def test_a_setup_is_shown_with_what_changed(file: str) -> None:
    """The newest versions are what it is compared with, or another session's."""
    before = told("setup", file, *KEY)
    assert (before["agent"], before["vaults"], before["changes"]) == (
        "support@1",
        ["payments@1"],
        [],
    )
    ran("agents", file, "support", "--put", "-", input="{}")
    shown = ran("setup", file, *KEY)
    assert "changed: agent support: support@1 → support@2" in shown
    assert before["fingerprint"] in shown
    assert told("setup", file, *KEY, "--compare", "one")["changes"] == []
    assert "session.not_found" in ran("setup", file, *KEY[:-1], "nobody", code=3)


def test_memory_is_listed_written_and_read(file: str) -> None:
    """With versions, and a conflict if another was faster."""
    assert "session_state@0  rw" in ran("memory", file, *KEY)
    write = ["memory", file, "session_state", *KEY, "--write"]
    assert told(*write, "first", "--expect", "0")["memory"][0]["version"] == 1
    assert "memory.conflict" in ran(*write, "late", "--expect", "0", code=3)
    ran(*write, "second")
    assert "session_state@2  second" in ran("memory", file, "session_state", *KEY)
    found = told("memory", file, "session_state", *KEY, "--history")["memory"]
    assert [each["value"] for each in found] == ["second", "first"]


def test_an_outcome_is_defined_and_shown(file: str) -> None:
    """Its grade comes from the log."""
    assert "nothing is defined: missing" in ran("outcomes", file, *KEY)
    ran("outcomes", file, *KEY, "--define", "deliver", "--criterion", "it is there")
    shown = ran("outcomes", file, *KEY, "--history")
    assert "deliver: in_progress, not evaluated" in shown
    assert "  - it is there" in shown
    assert "user.define_outcome" in shown
    assert told("outcomes", file, *KEY)["outcome"]["criteria"] == ["it is there"]


def test_children_are_shown_as_a_tree(file: str) -> None:
    """With titles, and how they ended."""
    lines = ran("children", file, *KEY).splitlines()
    assert lines[0] == "support/ada/one"
    assert lines[1].startswith("  research/ada/")
    assert lines[1].endswith("  invoice  at work")
    (child,) = told("children", file, *KEY)["children"]
    assert (child["title"], child["stop_reason"], child["gone"]) == ("invoice", None, False)
