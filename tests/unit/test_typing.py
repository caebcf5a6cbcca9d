"""Types as a type checker sees them, through the package's public names."""

from __future__ import annotations

import re
from pathlib import Path

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


WORKER = """
from contextlib import aclosing

import holdfast


async def work(hf: holdfast.Holdfast, s: holdfast.Session[object]) -> None:
    async for entry in hf.watch():
        typed: holdfast.FeedEntry = entry
        reveal_type(typed.position)
        diffed: holdfast.Change = entry  # wrong
    async with aclosing(hf.watch(after=await hf.position())) as feed:
        reveal_type(await anext(feed))
    async with aclosing(s.follow()) as events:
        reveal_type(await anext(events))
    reveal_type(await s.pending())
    (lease,) = await hf.claim("w", lease_seconds=60)
    again: holdfast.Lease = await hf.renew(lease)
"""


def revealed(tmp_path: Path, program: str) -> list[str]:
    """What a checker says of the names in a program, of which it refuses what is marked wrong."""
    source = tmp_path / "program.py"
    source.write_text(program)
    root = str(Path(__file__).parents[2] / "pyproject.toml")
    said, failed, _ = api.run(["--config-file", root, "--cache-dir", str(tmp_path), str(source)])
    assert failed == "", failed
    wrong = {n for n, line in enumerate(program.splitlines(), 1) if line.endswith("# wrong")}
    assert {int(n) for n in re.findall(r"program\.py:(\d+): error:", said)} == wrong, said
    found = re.findall(r'Revealed type is "(.+)"', said)
    return [name.replace("builtins.", "") for name in found]


def test_fields_of_a_state_are_typed(tmp_path: Path) -> None:
    """Reading, constructing and misusing: a checker says what is wrong and nothing else."""
    assert revealed(tmp_path, PROGRAM) == [
        "str",
        "holdfast.model.types.TTL",
        "holdfast.model.types.Ref[bytes] | None",
        "str",
    ]


def test_what_work_and_watching_give_is_typed(tmp_path: Path) -> None:
    """By names that the package exports; an entry of the feed is no change of a diff."""
    assert revealed(tmp_path, WORKER) == [
        "str",
        "holdfast.store.protocol.FeedEntry",
        "holdfast.model.events.Event",
        "tuple[holdfast.model.events.Event, ...]",
    ]
