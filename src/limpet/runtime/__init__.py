"""The runtime: turns of agents that survive their process.

A wake is one bounded run of a harness under a lease (`wake`). It begins with what was left
(`opening`), runs the harness (`driving`) on a Turn (`turn`) whose calls are recorded (`log`,
`records`) or, if they were recorded before, answered from the record, and ends in one commit
(`closing`). A Worker (`worker`) runs many of them.
"""
