"""History: time travel, forks, rewinds, merges, blame, bisect and checkpoints.

Every module here reads the log, or prepares one ordinary commit for the journal. Nothing here
deletes an event.
"""
