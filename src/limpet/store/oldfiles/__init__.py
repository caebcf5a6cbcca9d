"""The log store: one write-ahead log in plain files, and an index of it in memory."""
