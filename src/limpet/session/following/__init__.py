"""Following sessions: one reader of the feed, topics, and the live channel."""
