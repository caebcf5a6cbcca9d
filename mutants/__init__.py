"""A mutation check: break one line at a time and see whether a test notices."""
