"""Typed state: a class over a session's fields, loading, upgrading and migrating."""
