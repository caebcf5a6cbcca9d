"""The process that is killed: it writes without end and says what was acknowledged.

    python -m tests.support.writer WHERE SEED START,START,…

Several lanes write at once, each a list of steps that follows from the seed alone. A line
`lane step` on stdout means that this step was acknowledged. A lane starts at its START, so a
process that takes over repeats the step that its predecessor may have recorded unheard, with the
same ids.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass
from typing import Final

import limpet
from limpet import Draft, Key, Limpet, Session

APP: Final = "kill"
USER: Final = "ada"
SHARED: Final = "shared"
KINDS: Final = ("one", "one", "many", "both", "large", "facts", "gone")


@dataclass(frozen=True)
class Step:
    """What a lane does at one step: the events it must leave, by session id."""

    kind: str
    events: tuple[tuple[str, str], ...]  # session id, event id


def step(seed: int, lane: int, number: int) -> Step:
    """The same for whoever asks: the writer to do it, the test to look for it."""
    kind = random.Random(f"{seed}/{lane}/{number}").choice(KINDS)
    own, mark = f"lane-{lane}", f"{lane}.{number}"
    match kind:
        case "many":
            return Step(kind, tuple((own, f"{mark}.{part}") for part in range(3)))
        case "both":
            return Step(kind, ((own, f"{mark}.a"), (SHARED, f"{mark}.b"), (own, f"{mark}.c")))
        case _:
            return Step(kind, ((own, mark),))


def changes(event: str) -> dict[str, object]:
    """What every event does to state: countable in three places."""
    return {"inc": {"n": 1, "app:total": 1}, "add": {"log": [event]}, "set": {"user:last": event}}


async def lane(lp: Limpet, seed: int, number: int, start: int) -> None:
    own = lp.session(Key(APP, USER, f"lane-{number}"), actor=f"lane:{number}")
    shared = lp.session(Key(APP, USER, SHARED), actor=f"lane:{number}")
    for at in range(start, sys.maxsize):
        await take(lp, own, shared, step(seed, number, at), f"{number}.{at}")
        sys.stdout.write(f"{number} {at}\n")
        sys.stdout.flush()


async def take(lp: Limpet, own: Session, shared: Session, todo: Step, mark: str) -> None:
    noise = random.Random(mark)
    match todo.kind:
        case "many":
            drafts = [Draft(type="agent.did", id=id, **changes(id)) for _, id in todo.events]
            await own.append_many(drafts)
        case "both":
            async with lp.commit() as commit:
                for session, id in todo.events:
                    target = shared if session == SHARED else own
                    commit.append(target, "agent.did", {"in": session}, id=id, **changes(id))
        case "large":  # enough of these make snapshots
            await own.append(
                "agent.did", {"raw": noise.randbytes(6_000).hex()}, id=mark, **changes(mark)
            )
        case "facts":
            await own.label({"at": mark})
            await own.append("user.said", id=mark, **changes(mark))
            await own.refresh(tail=1)
            if own.events[-1].id == mark:
                await own.mark_processed([own.version])
        case "gone":
            await own.append("agent.did", id=mark, **changes(mark))
            brief = f"brief-{mark}"
            try:
                await lp.get_or_create(APP, USER, id=brief, state={"x": 1})
            except limpet.errors.SessionDeleted:  # the predecessor came this far
                return
            await lp.delete(Key(APP, USER, brief))
        case _:
            await own.append("user.said", {"text": mark}, id=mark, **changes(mark))


async def main(where: str, seed: int, starts: list[int]) -> None:
    """`where` is a file, or a server's URL."""
    async with limpet.open(where if "://" in where else f"sqlite:///{where}") as lp:
        for name in (SHARED, *(f"lane-{number}" for number in range(len(starts)))):
            await lp.get_or_create(APP, USER, id=name, state={"n": 0, "log": []})
        async with asyncio.TaskGroup() as group:
            for number, start in enumerate(starts):
                group.create_task(lane(lp, seed, number, start))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), [int(n) for n in sys.argv[3].split(",")]))
