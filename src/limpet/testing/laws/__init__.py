"""The laws a store is held to, a module for each part of the protocol."""
