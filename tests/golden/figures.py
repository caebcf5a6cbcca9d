"""What the golden analytics files hold: the measures of a small store, which lies beside each.

    python -m tests.golden.figures FOLDER

writes both into a folder. With the source of an earlier format first on PYTHONPATH, it measures as
that code did.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import apsw

import limpet

STORE: Final = "desk.db"
FILE: Final = "figures.db"
APP: Final = "shop"
DONE: Final = (APP, "ada", "done")
GONE: Final = (APP, "eve", "gone")  # deleted after it was measured
OPEN: Final = (APP, "bob", "open")  # its tool has not returned
# What each file says of its task types and tools.
TASKS: Final[dict[str, dict[str, Any]]] = {
    "refund": {"sessions": 2, "ended": 2, "turns": 2, "tool_invocations": 2, "error_rate": 0.25}
    | {"mean_rating": 0.75, "tokens_input": 1_000, "tokens_output": 80, "cost_usd": 0.02},
    "search": {"sessions": 1, "ended": 0, "turns": 0, "tool_invocations": 1, "tokens_input": 0},
}
TOOLS: Final = {"pay": {"count": 2, "errors": 1}, "find": {"count": 1, "errors": 0}}


async def write(lp: limpet.Limpet) -> None:
    """Two sessions that are over, and one in the middle of a call."""
    for key, is_error in ((DONE, False), (GONE, True)):
        s = await _asked(lp, key, "refund", "pay")
        await answer(s, is_error=is_error)
        await s.append("user.feedback", {"rating": 0.5 if is_error else 1.0})
        await s.complete()
    await _asked(lp, OPEN, "search", "find")


async def _asked(
    lp: limpet.Limpet, key: tuple[str, str, str], task: str, tool: str
) -> limpet.Session:
    app, user, id = key
    s = await lp.create(app, user, id=id, labels={"task_type": task}, actor=f"user:{user}")
    await s.append("user.message", {"text": "Where is it?"})
    call = {"request_id": "r1", "name": tool, "input": {}}
    await s.append("agent.tool_use", call, actor="agent:main")
    return s


async def answer(s: limpet.Session, *, is_error: bool = False) -> None:
    """The tool returns, and the model speaks."""
    result = {"request_id": "r1", "output": "there", "is_error": is_error}
    await s.append("agent.tool_result", result, actor="agent:main")
    said = {"text": "There.", "usage": {"input": 500, "output": 40}, "cost": 0.01}
    await s.append("agent.message", said, actor="agent:main")


async def main(folder: Path) -> None:
    async with limpet.open(f"sqlite:///{folder / STORE}") as lp:
        await write(lp)
        async with limpet.Analytics(lp, f"sqlite:///{folder / FILE}") as an:
            await an._fold_page()  # and no more: records are still to be emitted
        await lp.delete(GONE)
    for name in (STORE, FILE):
        conn = apsw.Connection(str(folder / name))
        conn.execute("PRAGMA journal_mode = DELETE; VACUUM")
        conn.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
