"""openai-agents on Limpet: `LimpetSession` is a Session of that framework.

    session = LimpetSession("conversation-7", "sqlite:///support.db")
    await Runner.run(agent, "Hello", session=session)

Needs the extra `openai-agents`.
"""

from limpet.adapters.openai_agents.session import LimpetSession

__all__ = ["LimpetSession"]
