"""Agent upgrade: sessions move to a node with the new version, which knows the tools they need."""

import asyncio
import tempfile

import limpet

OLD = limpet.ToolRegistry([limpet.Tool("search", "1.0.0", {}), limpet.Tool("refund", "1.0.0", {})])
NEW = limpet.ToolRegistry([limpet.Tool("search", "1.2.0", {}), limpet.Tool("refund", "1.0.0", {})])
INCOMPLETE = limpet.ToolRegistry([limpet.Tool("search", "1.2.0", {})])


async def answer(turn: limpet.Turn) -> None:
    await turn.say(f"version {turn.version}")


async def main() -> None:
    folder = tempfile.mkdtemp()
    async with (
        limpet.open(f"sqlite:///{folder}/v1.db", node="v1") as v1,
        limpet.open(f"sqlite:///{folder}/v2.db", node="v2") as v2,
    ):
        s = await v1.create("support", "ada", "c1", actor="user:ada")
        await s.tools.bind(OLD)
        print("without refund:", (await v1.move(s.key, v2, tools=INCOMPLETE)).reason)
        print("with all tools:", (await v1.move(s.key, v2, tools=NEW)).success)
        there = await v2.get(s.key, actor="user:ada")
        await there.append("user.message", {"text": "who are you?"})
        worker = limpet.Worker(
            v2, answer, app="support", version="2", idle_exit=True, signals=False
        )
        await worker.run()
        last = (await (await v2.get(s.key)).messages())[-1]
        print(last.event.data["text"])


asyncio.run(main())
