"""A store of chats whose state class went on: sessions of every fate that a migration knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import limpet
from limpet import State

# What stands in the user's own module, `chats.py`, in the directory the command is run in.
MODULE = '''
from typing import Any, ClassVar

from limpet import MigrationRegistry, State

MIGRATIONS = MigrationRegistry("chats")
TANGLED = MigrationRegistry("two ways to one place")
EMPTY = MigrationRegistry()
NUMBER = 5


class Chat(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str
    turns: int = 0


@MIGRATIONS.migration("1.0.0", "2.0.0")
def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """What was a plan is called goal now."""
    fields["goal"] = fields.pop("plan")
    return fields


def same(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


for middle in ("1.1.0", "1.2.0"):
    TANGLED.register("1.0.0", middle, same)
    TANGLED.register(middle, "2.0.0", same)
'''
OTHERS = {
    "broken.py": "import chats\n\nchats.NUMBER / 0\n",
    "unfinished.py": "def f(:\n",
    "needy.py": "import no_such_package\n",
    "leaving.py": "raise SystemExit(0)\n",
    "twice.py": (
        "from limpet import MigrationRegistry\n\nTWICE = MigrationRegistry()\n"
        "TWICE.register('1.0.0', '2.0.0', dict)\nTWICE.register('1.0.0', '2.0.0', dict)\n"
    ),
    "exiting.py": (
        "import sys\nfrom limpet import MigrationRegistry\n\nEXITING = MigrationRegistry()\n"
        "EXITING.register('1.0.0', '2.0.0', lambda fields: sys.exit(0))\n"
    ),
    "loud.py": "from chats import *\n\nprint('loud')\n",
}


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    plan: Any = ""


class Bare(State):
    """Of the same version, and yet without a plan."""

    schema_version: ClassVar[str] = "1.0.0"


class New(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str = ""


class Ancient(State):
    schema_version: ClassVar[str] = "0.9.0"
    plan: str = ""


class Future(State):
    schema_version: ClassVar[str] = "3.0.0"


# By id: the state it was created with. In this order.
SESSIONS: dict[str, State | dict[str, Any]] = {
    "plain": {"n": 1},
    "new": New(goal="answer"),
    "old": Old(plan="answer"),
    "older": Old(plan="ask"),
    "ancient": Ancient(),
    "bare": Bare(),
    "wrong": Old(plan=5),
    "future": Future(),
}
ABLE = ("plain", "new", "old", "older")


def write_modules(path: Path) -> None:
    (path / "chats.py").write_text(MODULE)
    for name, text in OTHERS.items():
        (path / name).write_text(text)


async def fill(url: str, *ids: str) -> None:
    """Create the sessions of these ids, or all."""
    async with limpet.open(url) as lp:
        for id in ids or SESSIONS:
            await lp.create("support", "ada", id=id, state=SESSIONS[id])


async def versions(url: str) -> dict[str, tuple[int, str | None]]:
    """Of every session, how many events it has and which schema version."""
    async with limpet.open(url) as lp:
        heads = (await lp.list(limit=1_000)).items
    return {head.key.id: (head.version, head.schema_version) for head in heads}
