"""Facts: the reserved events, and how they change the head.

One module per subject. It owns the constructor that returns a checked Fact, the fold that changes
the head, and the limit that a commit must keep. `head` dispatches through one static table. To add
a fact, add a module here, a row in that table, and tests.
"""
