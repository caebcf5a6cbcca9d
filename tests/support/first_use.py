"""Calls each public verb in a process of its own that has just opened its store and has no free
file descriptor.

    python -m tests.support.first_use DIRECTORY

It says on stdout, for each verb, which error it raised: `Session.append ActorMissing`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import limpet

LIMIT: Final = 256
SECONDS: Final = 60.0
# What is passed where a verb needs an argument of this name; for every other name a text.
GIVEN: Final[dict[str, Callable[[limpet.Limpet, limpet.Session, limpet.Limpet], Any]]] = {
    "app": lambda lp, s, other: "shop",
    "user": lambda lp, s, other: "ada",
    "key": lambda lp, s, other: s.key,
    "parent": lambda lp, s, other: s,
    "session": lambda lp, s, other: s,
    "other": lambda lp, s, other: s,
    "target": lambda lp, s, other: other,
    "harness": lambda lp, s, other: _nothing,
    "change": lambda lp, s, other: dict,
    "predicate": lambda lp, s, other: bool,
    "seq": lambda lp, s, other: 1,
    "a": lambda lp, s, other: 1,
    "b": lambda lp, s, other: 2,
    "limit": lambda lp, s, other: 1,
    "lease_seconds": lambda lp, s, other: 5.0,
    "drafts": lambda lp, s, other: [limpet.Draft(type="a.b")],
}


async def _nothing(turn: limpet.Turn) -> None: ...


def verbs(lp: limpet.Limpet, s: limpet.Session) -> Iterator[tuple[str, Callable[..., Any]]]:
    """All coroutine methods of a store, of a session and of their facets."""
    facets: list[Any] = [lp, lp.work, lp.maintenance, lp.policies, lp.app("shop")]
    facets += [lp.documents("notes"), s, s.history, s.lifecycle, s.tools, s.runs, s.blobs]
    facets += [s.outcome, s.setup]
    for facet in facets:
        for name in dir(type(facet)):
            verb = inspect.getattr_static(type(facet), name)
            if not name.startswith("_") and inspect.iscoroutinefunction(verb):
                yield f"{type(facet).__name__}.{name}", getattr(facet, name)


async def call(url: str, wanted: int) -> str | None:
    """Call one verb by its number: its name and the error; None if there are not so many."""
    async with limpet.open(url, archive="file:///nowhere") as lp, limpet.open("memory://") as other:
        s = await lp.get_or_create("shop", "ada", id="one", actor="user:ada", state={"n": 1})
        named = list(verbs(lp, s))
        if wanted == len(named):
            return None
        name, verb = named[wanted]
        args, keywords = list[Any](), dict[str, Any]()
        for each in inspect.signature(verb).parameters.values():
            if each.default is not each.empty or each.kind in (
                each.VAR_KEYWORD,
                each.VAR_POSITIONAL,
            ):
                continue
            value = GIVEN.get(each.name, lambda *_: "text")(lp, s, other)
            if each.kind == each.KEYWORD_ONLY:
                keywords[each.name] = value
            else:
                args.append(value)
        if name in ("Limpet.get", "Limpet.find"):
            args = [s.key]
        held = _held()
        try:
            await verb(*args, **keywords)
        except Exception as error:
            return f"{name} {type(error).__name__}"
        finally:
            for each in held:
                os.close(each)
        return f"{name} -"


def _held() -> list[int]:
    """Every descriptor that this process may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
    held: list[int] = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return held


def main(directory: str) -> None:
    for number in range(10_000):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                url = f"sqlite:///{directory}/{number}"
                said = asyncio.run(asyncio.wait_for(call(url, number), SECONDS))
                code = 3 if said is None else 0
                if said is not None:
                    os.write(1, f"{said}\n".encode())
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            sys.exit(0 if code == 3 else code)


if __name__ == "__main__":
    main(*sys.argv[1:])
