"""The contract tests for stores, one module for each part of the protocol."""
