"""Suites and doubles that others can run against their own stores."""
