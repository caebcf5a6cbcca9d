"""Diff and merge: what changed between two states, and one out of two."""
