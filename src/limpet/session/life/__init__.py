"""The life of a session: transitions, timeouts, resumption, tools, memory and the archive.

Each transition is one commit like any other. The table of phases and the rules for writes are in
the model; here is what goes with a transition: guards, hooks, effects, and the sweep that makes
transitions when time has passed.
"""
