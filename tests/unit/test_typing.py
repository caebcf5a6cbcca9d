"""Types as a type checker sees them, through the package's public names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

PROGRAM = """
from typing import Annotated

import holdfast
from holdfast import TTL, Ref, reducers


class Message(holdfast.Record):
    text: str
    tokens: int = 0


class Chat(holdfast.State):
    messages: Annotated[list[Message], reducers.append] = []
    ttl: TTL = TTL(hours=1)
    log: Ref[bytes] | None = None


chat = Chat(messages=[Message(text="hi")])
reveal_type(chat.messages[0].text)
reveal_type(chat.ttl)
reveal_type(chat.log)
reveal_type(Chat.schema_version)
chat.messages[0].tokens + 1
Message(text=1)  # wrong
Chat(nothing=1)  # wrong
chat.title  # wrong
"""


SYNC = """
import holdfast


class Chat(holdfast.State):
    title: str = ""


hf: holdfast.SyncHoldfast = holdfast.open_sync("memory://")
with holdfast.open_sync("memory://") as opened:
    reveal_type(opened)
s = hf.create("a", "u", state=Chat())
reveal_type(s.state.title)
reveal_type(hf.get(s.key).state)
reveal_type(hf.find(s.key, state_type=Chat))
reveal_type([change.event.seq for change in hf.watch()])
s.update(lambda state: {"title": state.title + "!"}, actor="x")
s.append("a.b", {"text": "hi"}, actor="x").seq + 1
with hf.commit() as c:
    c.append(s, "a.b", actor="x")
    c.label(s, {"plan": 1})  # wrong
session: holdfast.SyncSession[Chat] = s.refresh()
hf.nonsense()  # wrong
s.apend("a.b")  # wrong
s.state.titel  # wrong
s.append("a.b", wrong=1)  # wrong
await_it = hf.get(s.key).__await__()  # wrong
hf.create("a", "u", state=5)  # wrong
"""


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for all programs, so that the package is read once."""
    return tmp_path_factory.mktemp("typing")


def checked(program: str, at: Path) -> list[str]:
    """The types that mypy reveals, if it finds wrong what is marked so and nothing else."""
    source = at / "program.py"
    source.write_text(program)
    root = str(Path(__file__).parents[2] / "pyproject.toml")
    said, failed, _ = api.run(["--config-file", root, "--cache-dir", str(at), str(source)])
    assert failed == "", failed
    wrong = {n for n, line in enumerate(program.splitlines(), 1) if line.endswith("# wrong")}
    assert {int(n) for n in re.findall(r"program\.py:(\d+): error:", said)} == wrong, said
    return [name.replace("builtins.", "") for name in re.findall(r'Revealed type is "(.+)"', said)]


def test_fields_of_a_state_are_typed(at: Path) -> None:
    """Reading, constructing and misusing: a checker says what is wrong and nothing else."""
    revealed = checked(PROGRAM, at)
    assert revealed == [
        "str",
        "holdfast.model.types.TTL",
        "holdfast.model.types.Ref[bytes] | None",
        "str",
    ]


def test_the_synchronous_face_is_typed(at: Path) -> None:
    """A wrong verb is refused, and state is of its class, as with await."""
    revealed = checked(SYNC, at)
    assert revealed == [
        "holdfast.session.sync.SyncHoldfast",
        "str",
        "typing.Mapping[str, Any]",
        "holdfast.session.sync.SyncSession[program.Chat] | None",
        "list[int]",
    ]
