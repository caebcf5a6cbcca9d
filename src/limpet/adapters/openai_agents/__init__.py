"""openai-agents on Limpet: a Session of that framework, and an Agent of it in a worker.

    session = LimpetSession("conversation-7", "sqlite:///support.db")
    await Runner.run(agent, "Hello", session=session)

    worker = limpet.Worker(lp, as_harness(agent), app="support")

Needs the extra `openai-agents`.
"""

from limpet.adapters.openai_agents.harness import as_harness
from limpet.adapters.openai_agents.session import LimpetSession

__all__ = ["LimpetSession", "as_harness"]
