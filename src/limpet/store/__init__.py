"""Stores: where logs are kept, each behind the same small protocol."""
