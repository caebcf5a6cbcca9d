"""The server: how it is reached, what it is set to, and the schema that must be on it."""
