"""A rolling deploy: workers of the old edition meet sessions that newer code has migrated."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import pytest

import limpet
from limpet import Lease, Limpet, MigrationRegistry, State


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    answered: int = 0


class NextMinor(State):
    schema_version: ClassVar[str] = "1.1.0"
    answered: int = 0
    mood: str = ""


class NextMajor(State):
    schema_version: ClassVar[str] = "2.0.0"
    answers: int = 0


FORWARD = MigrationRegistry("desk")


@FORWARD.migration("1.1.0", "2.0.0")
def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"answers": fields["answered"]}


async def work_on(lp: Limpet, lease: Lease) -> None:
    """As docs/workers.md has it, with typed state."""
    s = lp.session(lease.key, actor="agent:main", lease=lease, state_type=Old)
    await s.refresh()
    for message in await s.pending():
        async with lp.commit() as c:
            c.apply(s, {"answered": s.state.answered + 1})
            c.record(s, limpet.facts.processed([message.seq]))


async def failed(lp: Limpet, lease: Lease) -> None:
    """As docs/workers.md has it: what concerns this session does not end the loop."""
    s = lp.session(lease.key, actor="agent:main", lease=lease, state_type=Old)
    with contextlib.suppress(limpet.SessionError, limpet.StoreError):
        await s.refresh()
        await lp.work.release(lease)


async def worker(lp: Limpet, name: str, app: str) -> list[str]:
    """Until nothing is due; the codes of what it met."""
    met = []
    while leases := await lp.work.claim(name, app=app):
        for lease in leases:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(work_on(lp, lease))
                await lp.work.release(lease)
            except* limpet.errors.SessionFenced:
                pass
            except* Exception as errors:
                met += [error.code for error in errors.exceptions]  # type: ignore[attr-defined]
                await failed(lp, lease)
    return met


@pytest.mark.parametrize("newer", [NextMinor, NextMajor])
async def test_the_documented_loop_survives_a_rolling_deploy(
    lp: Limpet, newer: type[State]
) -> None:
    """The session of newer code is passed over, and the next ones are served."""
    for number in range(3):
        s = await lp.create("desk", "ada", id=f"{number}", state=Old())
        await s.append("user.message", {"text": "?"}, actor="user:ada")
    new = await lp.get(("desk", "ada", "0"), state_type=newer, migrations=FORWARD, actor="agent:b")
    await new.apply({"mood": "calm"} if newer is NextMinor else {"answers": 0})
    assert await worker(lp, "worker-old", "desk") == ["schema.incompatible"]
    pending = [(await lp.get(("desk", "ada", f"{n}"))).head.pending for n in range(3)]
    assert pending == [1, 0, 0]


@pytest.mark.parametrize(
    ("state_type", "code"),
    [(NextMajor, "migration.missing"), (Old, "schema.incompatible")],
)
async def test_what_concerns_one_session_is_a_session_error(
    lp: Limpet, state_type: type[State], code: str
) -> None:
    """And still a migration error, for those who look at that."""
    await lp.create("desk", "ada", id="0", state=NextMinor())
    for kind in (limpet.SessionError, limpet.errors.MigrationError, limpet.errors.StateError):
        with pytest.raises(kind) as info:
            await lp.get(("desk", "ada", "0"), state_type=state_type)
        assert info.value.code == code


async def test_state_that_does_not_fit_is_a_session_error_too(lp: Limpet) -> None:
    """With its session and field, in the store or out of a migration; nothing is written."""
    await lp.create("desk", "ada", id="0", state=NextMinor())
    plain = await lp.get("desk", "ada", "0", untyped=True)
    await plain.append("agent.broke", actor="agent:a", set={"answered": "many"})
    for state_type, field in ((NextMinor, "answered"), (NextMajor, "answers")):
        with pytest.raises(limpet.errors.SessionSchemaViolation) as info:
            await lp.get("desk", "ada", "0", state_type=state_type, migrations=FORWARD)
        assert isinstance(info.value, limpet.SessionError)
        assert isinstance(info.value, limpet.errors.SchemaViolation)
        assert (info.value.key, info.value.field) == (plain.key, field)
    assert (await lp.get(plain.key)).version == plain.version
