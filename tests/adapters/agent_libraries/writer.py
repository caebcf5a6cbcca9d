"""A process that writes through three adapters: python -m … NAME URL. See tests/support/race."""

from __future__ import annotations

import asyncio
import sys

from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.models.test import TestModel
from strands.types.session import SessionAgent, SessionMessage

from limpet.adapters.a2a import LimpetTaskStore
from limpet.adapters.pydantic_ai import LimpetConversationStore
from limpet.adapters.strands import LimpetSessionManager
from tests.support.race import at_once

COUNT = 6


async def converse(name: str, url: str) -> None:
    """Each run is saved once; a conflict is answered by a new run on what is there by then."""
    store, agent = LimpetConversationStore(url), Agent(TestModel())
    for number in range(COUNT):
        while True:
            conversation = await store.load("c1") or Conversation(conversation_id="c1")
            result = await agent.run(f"{name} {number}", conversation=conversation)
            try:
                await store.save(result)
                break
            except ConversationConflict:
                continue
    await store.close()


async def work(name: str, url: str) -> None:
    """A task of its own, and one that both processes save."""
    store, context = LimpetTaskStore(url), ServerCallContext()
    for number in range(COUNT):
        said = pb.Message(message_id=f"{name}-{number}", role=pb.ROLE_AGENT)
        said.parts.append(pb.Part(text=f"{name} {number}"))
        for id in (name, "both"):
            task = await store.get(id, context) or pb.Task(id=id)
            task.history.append(said)
            await store.save(task, context)
    await store.close()


def remember(name: str, url: str) -> None:
    """Messages of an agent of its own in a session of both."""
    manager = LimpetSessionManager("s1", url)
    agent = SessionAgent(agent_id=name, state={}, conversation_manager_state={})
    manager.create_agent("s1", agent)
    for number in range(COUNT):
        text = {"role": "user", "content": [{"text": f"{name} {number}"}]}
        message = SessionMessage.from_message(text, number)
        manager.create_message("s1", name, message)


if __name__ == "__main__":
    name, url = sys.argv[1:]
    at_once()
    remember(name, url)
    asyncio.run(converse(name, url))
    asyncio.run(work(name, url))
