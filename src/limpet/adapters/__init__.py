"""Limpet under the interfaces of agent frameworks: one module for each, behind its own extra.

    adk             LimpetSessionService for google-adk
    openai_agents   LimpetSession for openai-agents

An adapter uses the public API only. It records our events, with the framework's own object in one
member of their data, so that the framework gets it back unchanged.
"""
