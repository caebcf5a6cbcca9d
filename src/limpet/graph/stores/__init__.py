"""Session stores and checkpointers over Limpet: in memory, in a file, on a server."""
