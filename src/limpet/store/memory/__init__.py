"""The memory store: the executable specification of every other."""

from limpet.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
