"""The runtime: turns of agents that survive their process.

A wake (`wake`) is one bounded run of a harness (`run`) under a lease. The harness gets a Turn
(`turn`) whose calls are recorded or, if they were recorded before, answered from the record
(`turn_log`). A Worker (`worker`) runs many wakes.
"""
