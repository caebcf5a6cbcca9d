"""Programs that have to run in a process of their own: one that dies, one that has just begun."""
