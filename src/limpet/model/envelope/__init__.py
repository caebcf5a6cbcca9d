"""Envelopes: a state in checked bytes, for other systems."""
