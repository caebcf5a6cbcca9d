"""Types as a type checker sees them, through the package's public names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from mypy import api

PROGRAM = """
from typing import Annotated

import limpet
from limpet import TTL, Ref, reducers


class Message(limpet.Record):
    text: str
    tokens: int = 0


class Chat(limpet.State):
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

import limpet


async def work(lp: limpet.Limpet, s: limpet.Session[object]) -> None:
    async for entry in lp.watch():
        typed: limpet.FeedEntry = entry
        reveal_type(typed.position)
        diffed: limpet.Change = entry  # wrong
    async with aclosing(lp.watch(after=await lp.position())) as feed:
        reveal_type(await anext(feed))
    async with aclosing(s.follow()) as events:
        reveal_type(await anext(events))
    reveal_type(await s.pending())
    (lease,) = await lp.work.claim("w", lease_seconds=60)
    again: limpet.Lease = await lp.work.renew(lease)
"""


GUESSED = """
from datetime import timedelta

import limpet


class Chat(limpet.State):
    title: str = ""


async def main(lp: limpet.Limpet, key: limpet.Key) -> None:
    reveal_type(await lp.get("a", "u", "i"))
    reveal_type(await lp.find("a", "u", "i", state_type=Chat))
    reveal_type(await lp.get(key, state_type=Chat))
    reveal_type(lp.session("a", "u", "i", state_type=Chat))
    await lp.delete("a", "u", "i")
    await lp.maintenance.verify()
    await lp.work.lock("a", "u", "i", worker="w")
    await lp.work.lock(key, "w")  # wrong
    chats = lp.app("a", state_type=Chat, actor="x")
    reveal_type(chats)
    s = await chats.create("u", "i")
    reveal_type(s.state.title)
    reveal_type((await lp.app("a").get("u", "i")).state)
    await chats.create("u", state={"title": ""})  # wrong
    await chats.get("u")  # wrong
    reveal_type(await s.apply({"title": "x"}))
    reveal_type(await s.apply({"title": "x"}, type="a.b", expect=1))
    reveal_type(await s.update(lambda state: {"title": state.title + "!"}, type="a.b", id="1"))
    await s.lifecycle.set_timer("t", timedelta(minutes=5))
    await s.lifecycle.set_timer("t", 5)  # wrong
    reveal_type(s.app)
    await lp.list(app="a", labels={"plan": "gold"})
"""


SYNC = """
import limpet


class Chat(limpet.State):
    title: str = ""


lp: limpet.SyncLimpet = limpet.open_sync("memory://")
with limpet.open_sync("memory://") as opened:
    reveal_type(opened)
s = lp.create("a", "u", state=Chat())
reveal_type(s.state.title)
reveal_type(lp.get(s.key).state)
reveal_type(lp.find(s.key, state_type=Chat))
reveal_type([change.event.seq for change in lp.watch()])
reveal_type(lp.app("a", state_type=Chat).get("u", "i").state.title)
reveal_type(lp.get("a", "u", "i", state_type=Chat))
s.update(lambda state: {"title": state.title + "!"}, actor="x")
s.append("a.b", {"text": "hi"}, actor="x").seq + 1
with lp.commit() as c:
    c.append(s, "a.b", actor="x")
    c.record(s, limpet.facts.labeled({"plan": 1}))  # wrong
session: limpet.SyncSession[Chat] = s.refresh()
reveal_type(s.apply({"title": "x"}))
reveal_type(s.apply({"title": "x"}, type="a.b"))
reveal_type(s.fork())
reveal_type(s.history.at(1))
reveal_type(s.runs.usage.tokens)
reveal_type(lp.get_many([s.key]))
reveal_type(lp.session("a", "u", "i").state)
reveal_type(lp.app("a", state_type=Chat).find("u", "i"))
reveal_type(s.merge(s, policies={}))
lp.maintenance.backup(5)  # wrong
s.state = Chat()  # wrong
lp.nonsense()  # wrong
s.apend("a.b")  # wrong
s.state.titel  # wrong
s.append("a.b", wrong=1)  # wrong
await_it = lp.get(s.key).__await__()  # wrong
lp.create("a", "u", state=5)  # wrong
"""


DAILY = """
import limpet
from limpet import Diff, Replace, ops


class Chat(limpet.State):
    title: str = ""


async def main(lp: limpet.Limpet, raw: bytes) -> None:
    s = await lp.create("a", "u", state=limpet.envelope.decode(raw))
    event = await s.append("user.message", {"text": "hi"}, ops=[ops.Inc("count", 2)])
    print(event.data["text"], [e.data.get("text") for e in s.events])
    if event.data is None:
        print(event.damage)
    Diff.of({}, [ops.Set("a", 1), ops.Add(("a", "b"), (1, 2)), ops.Delete("c")])
    reveal_type(ops.Inc("count", 2).path)
    reveal_type(limpet.envelope.decode(raw).state(Chat))
    reveal_type(limpet.decode_fields(Chat, {}, schema_version="1.0.0"))
    typed = await lp.get(s.key, state_type=Chat)
    await typed.update(lambda state: {"title": Replace(state.title)})
    event.data.text  # wrong
    ops.Inc(7, 2)  # wrong
    ops.Add("a", "text")  # wrong
    limpet.envelope.decode(raw).state(dict)  # wrong
    await lp.create("a", "u", state=raw)  # wrong
"""

TURNS = """
import limpet
from limpet import graph


def plain(n: int) -> list[str]:
    return []


async def later(n: int) -> dict[str, int]:
    return {}


async def harness(turn: limpet.Turn) -> None:
    reveal_type(await turn.step("plain", plain, 1))
    reveal_type(await turn.step("later", later, 1, max_cost=0.1))
    reveal_type(await turn.step("quick", lambda: 5))
    reveal_type(await turn.retrieve("later", later, 1))
    reveal_type(await turn.effect("plain", plain, n=1, on_unknown="retry"))
    reveal_type(await turn.effect("later", later, n=1, retries=2))
    reveal_type(await graph.step("plain", plain, 1))
    reveal_type(await graph.step("later", later, 1))
    reveal_type(await graph.effect("plain", plain, n=1))
    reveal_type(await graph.effect("later", later, n=1))
    child = await turn.delegate("desk", "look")
    ended = await child.result()
    reveal_type(ended.summary)
    reveal_type(ended.output)
    reveal_type(ended.stop_reason == "end_turn")
    reveal_type(ended["summary"])
    text: str = await turn.step("plain", plain, 1)  # wrong
    ended.sumary  # wrong


async def takes_nothing() -> None: ...


def workers(lp: limpet.Limpet) -> None:
    limpet.Worker(lp, harness, app="desk", migrations=limpet.MigrationRegistry("desk"))
    limpet.Worker(lp, limpet.Agent(lambda request: "hi"), app=None)
    limpet.Worker(lp, takes_nothing, app="desk")  # wrong
    limpet.Worker(lp, "agent", app="desk")  # wrong
    limpet.Worker(lp, harness, app="desk", migrations={})  # wrong
"""

PROGRAMS = {
    "turns": TURNS,
    "fields": PROGRAM,
    "worker": WORKER,
    "guessed": GUESSED,
    "without_await": SYNC,
    "daily": DAILY,
}
ROOT = Path(__file__).parents[2]
PAGES = ("tutorial", "state", "envelopes", "diff", "evolution", "workers")
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# The pages leave annotations out for brevity; all else is checked as strictly as the package.
BRIEF = "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says of each program, by the name of its file.

    One run for all of them: it takes seconds to load what it knows of the package, whatever the
    program. It checks the package itself unless `make check` has done so, and left its cache.
    """
    at = tmp_path_factory.mktemp("typing")
    if (checked_before := ROOT / ".mypy_cache").is_dir():
        shutil.copytree(checked_before, at / "cache", dirs_exist_ok=True)
    sources = [ROOT / "tests" / "support" / "strict_user.py"]
    for name, program in PROGRAMS.items():
        sources.append(at / f"{name}.py")
        sources[-1].write_text(program)
    for page in PAGES:
        sources.append(at / f"{page}_page.py")
        sources[-1].write_text(_programs_of(page))
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(at / "cache")]
    output, failed, _ = api.run([*options, *map(str, sources)])
    assert failed == "", failed
    lines = output.splitlines()
    return {
        source.stem: "\n".join([line for line in lines if f"{source.name}:" in line])
        for source in sources
    } | {"everything": output}


def _programs_of(page: str) -> str:
    """The programs of a page, each where it stands, so that mypy names the lines of the page."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    lines = [""] * text.count("\n")
    lines[0] = BRIEF
    for block in _BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1))
        program = block[1].splitlines()
        lines[start : start + len(program)] = program
    return "\n".join(lines)


def checked(name: str, said: dict[str, str]) -> list[str]:
    """The types that mypy reveals, if it finds wrong what is marked so and nothing else."""
    lines = enumerate(PROGRAMS[name].splitlines(), 1)
    wrong = {n for n, line in lines if line.endswith("# wrong")}
    output = said[name].replace(f"{name}.Chat", "program.Chat")
    assert {int(n) for n in re.findall(r"\.py:(\d+): error:", output)} == wrong, output
    types = re.findall(r'Revealed type is "(.+)"', output)
    return [each.replace("builtins.", "") for each in types]


def test_fields_of_a_state_are_typed(said: dict[str, str]) -> None:
    """Reading, constructing and misusing: a checker says what is wrong and nothing else."""
    revealed = checked("fields", said)
    assert revealed == [
        "str",
        "limpet.model.state.types.TTL",
        "limpet.model.state.types.Ref[bytes] | None",
        "str",
    ]


def test_the_synchronous_face_is_typed(said: dict[str, str]) -> None:
    """A wrong verb is refused, and state is of its class, as with await."""
    revealed = checked("without_await", said)
    assert revealed == [
        "limpet.session.sync.verbs.SyncLimpet",
        "str",
        "typing.Mapping[str, Any]",
        "limpet.session.sync.verbs.SyncSession[program.Chat] | None",
        "list[int]",
        "str",
        "limpet.session.sync.verbs.SyncSession[program.Chat]",
        "limpet.model.events.Event | None",
        "limpet.model.events.Event",
        "limpet.session.sync.verbs.SyncSession[program.Chat]",
        "program.Chat",
        "int",
        "tuple[limpet.session.sync.verbs.SyncSession[typing.Mapping[str, Any]] | None, ...]",
        "typing.Mapping[str, Any]",
        "limpet.session.sync.verbs.SyncSession[program.Chat] | None",
        "limpet.session.history.branches.MergedSession",
    ]


def test_guessed_verbs_are_typed(said: dict[str, str]) -> None:
    """Half a key is refused before it runs, an app knows its state, a typed event is there."""
    event, none = "limpet.model.events.Event", "limpet.model.events.Event | None"
    chat = "limpet.session.session.Session[program.Chat]"
    assert checked("guessed", said) == [
        "limpet.session.session.Session[typing.Mapping[str, Any]]",
        f"{chat} | None",
        chat,
        chat,
        "limpet.session.limpet.App[program.Chat]",
        "str",
        "typing.Mapping[str, Any]",
        none,
        event,
        none,
        "str",
    ]


def test_what_programs_do_every_day_is_typed(said: dict[str, str]) -> None:
    """Data by its names, a lone name for a path, envelopes and replacements need no ignore."""
    assert checked("daily", said) == [
        "tuple[str | int, ...]",
        "program.Chat",
        "program.Chat",
    ]


def test_a_strict_program_has_no_error(said: dict[str, str]) -> None:
    """Sessions, agents, graphs and other doors, as a user writes them; so says pyright."""
    assert said["everything"] != ""
    assert said["strict_user"] == ""


def test_the_pages_are_typed(said: dict[str, str]) -> None:
    """A reader who copies from docs/ into a typed program meets no complaint."""
    assert {page: said[f"{page}_page"] for page in PAGES} == dict.fromkeys(PAGES, "")


def test_what_a_turn_gives_is_typed(said: dict[str, str]) -> None:
    """A step and an effect return what their function does, sync or async; a worker takes a
    harness."""
    of_plain, of_later = "list[str]", "dict[str, int]"
    assert checked("turns", said) == [
        of_plain,
        of_later,
        "int",
        of_later,
        *[of_plain, of_later] * 3,
        "str | None",
        "Any",
        "bool",
        "Any",
    ]


def test_what_work_and_watching_give_is_typed(said: dict[str, str]) -> None:
    """By names that the package exports; an entry of the feed is no change of a diff."""
    assert checked("worker", said) == [
        "str",
        "limpet.store.protocol.FeedEntry",
        "limpet.model.events.Event",
        "tuple[limpet.model.events.Event, ...]",
    ]
