"""Managed tools: what a model may do with its own session, as tools that a harness hands to it.

`tools` has the door; the other modules have the tools, each a struct of its input with the function
that runs it. A tool sees the session of its turn, those delegated from it, and the user's other
sessions of the same app.
"""
