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
