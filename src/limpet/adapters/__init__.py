"""Limpet under the interfaces of agent frameworks: one module for each, behind its own extra.

    a2a                LimpetTaskStore for the A2A SDK
    adk                LimpetSessionService for google-adk
    agent_framework    LimpetHistoryProvider and LimpetThreadSnapshotStore for agent-framework
    claude_agent_sdk   LimpetSessionStore for the Claude Agent SDK
    langgraph          LimpetSaver and LimpetStore for LangGraph
    openai_agents      LimpetSession for openai-agents
    pydantic_ai        LimpetConversationStore for pydantic-ai
    strands            LimpetSessionManager for Strands

An adapter uses the public API only. It records our events, from which the framework gets its own
objects back unchanged and `session.messages()` reads the conversation without the framework.
"""
