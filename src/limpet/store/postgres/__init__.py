"""The PostgreSQL store: the same contract, on a server."""
