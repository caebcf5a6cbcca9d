"""limpet import-claude: transcripts of Claude Code, brought in without its SDK."""

from __future__ import annotations

import json
from pathlib import Path

import limpet
from tests.support.command import answer, run

ENTRIES = [
    {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "Hello?"}},
    {"type": "summary", "summary": "A greeting"},
    {
        "type": "assistant",
        "uuid": "a1",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
    },
]


def test_transcripts_become_sessions_once(tmp_path: Path) -> None:
    """A second run adds nothing, a line that is not JSON is named, and the exit code says so."""
    project = tmp_path / "projects" / "-home-ada-shop"
    (project / "5f0c" / "subagents").mkdir(parents=True)
    lines = [json.dumps(entry) for entry in ENTRIES]
    (project / "5f0c.jsonl").write_text("\n".join(lines) + "\n")
    (project / "5f0c" / "subagents" / "agent-1.jsonl").write_text(lines[0] + "\n")
    for _ in range(2):
        done = run(tmp_path, "import-claude", "projects", "all.db")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("ok: 2 transcripts with 4 events read")
    with limpet.open_sync(f"sqlite:///{tmp_path}/all.db") as lp:
        keys = {str(head.key) for head in lp.list().items}
        said = lp.get("claude", "-home-ada-shop", "5f0c").messages()
    assert keys == {
        "claude/-home-ada-shop/5f0c",
        "claude/-home-ada-shop/5f0c/subagents/agent-1",
    }
    assert [(message.role, message.text) for message in said] == [
        ("user", "Hello?"),
        ("assistant", "Hi."),
    ]
    (project / "5f0c.jsonl").write_text("\n".join([*lines, "not JSON"]) + "\n")
    assert run(tmp_path, "import-claude", "projects", "all.db").returncode == 1
    code, form = answer(tmp_path, "import-claude", "projects", "all.db")
    assert code == 1
    assert form["unreadable"] == ["claude/-home-ada-shop/5f0c: 5f0c.jsonl:4"]
    wrong = run(tmp_path, "import-claude", "nowhere", "all.db")
    assert "is not a directory" in wrong.stderr


def test_a_conversation_is_pushed_to_another_machine_and_pulled_back(tmp_path: Path) -> None:
    """With those of its subagents; each way may be repeated, and nothing stays in two places."""
    laptop, desk = tmp_path / "laptop", tmp_path / "desk"
    project = laptop / "projects" / "-home-ada-shop"
    (project / "5f0c" / "subagents").mkdir(parents=True)
    desk.mkdir()
    lines = [json.dumps(entry) for entry in ENTRIES]
    (project / "5f0c.jsonl").write_text("\n".join(lines) + "\n")
    for n in (1, 2):
        (project / "5f0c" / "subagents" / f"agent-{n}.jsonl").write_text(lines[0] + "\n")
    assert run(laptop, "import-claude", "projects").returncode == 0  # into limpet.db
    with limpet.open_sync(f"sqlite:///{laptop}/limpet.db") as lp:
        lp.delete("claude", "-home-ada-shop", "5f0c/subagents/agent-2")
    main = "claude/-home-ada-shop/5f0c"
    both = {main, f"{main}/subagents/agent-1"}
    for _ in range(2):
        done = run(laptop, "push", main, "../desk/limpet.db", "--below")
        assert done.returncode == 0, done.stderr
    assert (_keys(laptop), _keys(desk)) == (set(), both)
    with limpet.open_sync(f"sqlite:///{desk}/limpet.db") as lp:
        lp.get("claude", "-home-ada-shop", "5f0c").append(
            "user.message", {"text": "Go on."}, actor="user:ada"
        )
    code, form = answer(laptop, "pull", "../desk/limpet.db", main, "--below")
    assert (code, [each["success"] for each in form["sessions"]]) == (0, [True, True])
    assert (_keys(laptop), _keys(desk)) == (both, set())
    with limpet.open_sync(f"sqlite:///{laptop}/limpet.db") as lp:
        said = [message.text for message in lp.get(*main.split("/", 2)).messages()]
    assert said == ["Hello?", "Hi.", "Go on."]


def _keys(machine: Path) -> set[str]:
    with limpet.open_sync(f"sqlite:///{machine}/limpet.db") as lp:
        return {str(head.key) for head in lp.list().items}
