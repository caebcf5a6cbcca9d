"""A process killed in the middle of a payment, and a bank that is down when it is tried again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, Literal

import pytest

import limpet
from limpet.session.conversation.messages import UNKNOWN
from tests.support.payer_process import APP, begin, ledger
from tests.support.processes import exit_code

POLICIES: list[Literal["ask", "retry"]] = ["ask", "retry"]
SAYS: dict[str, tuple[dict[str, Any], str]] = {
    "it happened": ({"happened": "paid, says the bank"}, "paid, says the bank"),
    "run again": ({"run_again": True}, "paid 40"),
    "give up": ({"give_up": True}, UNKNOWN),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("says", list(SAYS))
async def test_a_bank_that_honours_the_key_is_paid_once_whatever_the_retry_meets(
    tmp_path: Path, policy: str, says: str
) -> None:
    """kill -9 after the payment, 503 for the retry: the model reads no result before it is settled,
    so it never pays again under another key."""
    url, bank = f"sqlite:///{tmp_path}/payer.db", tmp_path / "bank.db"
    begin(bank)
    async with limpet.open(url) as lp:
        session = await lp.create(APP, "ada", "s1", actor="user:ada")
        await session.append("user.message", {"text": "Pay 40."})

        async def run() -> int:
            return await exit_code("tests.support.payer_process", url, "s1", bank, policy)

        assert await run() == -signal.SIGKILL
        assert await run() == 0
        if policy == "ask":  # asked since the process died: the next try meets the outage
            await decide(session, {"run_again": True})
            assert await run() == 0
        assert not await outputs(session)
        given, output = SAYS[says]
        await decide(session, given)
        assert await run() == 0
        assert await outputs(session) == [output]
        await session.refresh()
        assert session.stop_reason == "end_turn"
        assert not await session.read(types=["effect.failed"])
    assert len(ledger(bank)) == 1


async def decide(session: limpet.Session[Any], given: dict[str, Any]) -> None:
    await session.refresh()
    (request,) = session.blocked_on
    assert request.kind == "unknown_effect"
    await session.resolve(request.id, **given)


async def outputs(session: limpet.Session[Any]) -> list[Any]:
    """The results of the model's calls."""
    uses = await session.read(types=["agent.tool_use"])
    calls = {event.data["request_id"] for event in uses if "message" in event.data}
    shown = await session.read(types=["agent.tool_result"])
    return [event.data["output"] for event in shown if event.data["request_id"] in calls]
