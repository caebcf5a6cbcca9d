"""The engine: compiled graphs, the loop that runs them, and what it keeps of a run."""
