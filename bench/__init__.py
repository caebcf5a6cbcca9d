"""Measurements: the store beside plain SQLite and beside a neighbour, in one run.

`python -m bench` runs them. Nothing here is imported by the package, and this module imports
nothing, because the neighbour's process loads it from an environment without our dependencies.
"""
