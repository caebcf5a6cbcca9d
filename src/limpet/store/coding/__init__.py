"""Bytes on their way to disk and back: encode, compress, seal; and what a body is."""
