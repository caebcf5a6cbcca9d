"""Facts: the reserved events, and what the head makes of them.

One module for each subject. It owns the constructor that returns a checked Fact, the fold that
says what the fact changes in a head, and the bound that a commit must keep. `head` dispatches
through one static table. A new fact is a module here, a row in that table, and its tests.
"""
