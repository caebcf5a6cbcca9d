"""Typed state: declared classes, their encodings, reducers and migrations."""
