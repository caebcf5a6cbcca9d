"""Limpet under the interfaces of agent frameworks: one module for each, behind its own extra.

    adk             LimpetSessionService for google-adk
    langgraph       LimpetSaver and LimpetStore for LangGraph
    openai_agents   LimpetSession for openai-agents

An adapter uses the public API only. It records our events, from which the framework gets its own
objects back unchanged and `session.messages()` reads the conversation without the framework.
"""
