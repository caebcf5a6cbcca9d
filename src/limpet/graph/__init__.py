"""The graph engine: nodes over typed state, with sessions, checkpoints, resume and suspension."""
