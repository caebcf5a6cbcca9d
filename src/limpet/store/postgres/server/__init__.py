"""The server: its address, settings, schema, poolers and pools of connections."""
