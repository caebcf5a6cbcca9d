"""The runs of a session: status, wakes, traces, delegation, setup, outcome and learnings."""
