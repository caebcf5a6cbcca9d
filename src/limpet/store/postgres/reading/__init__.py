"""Reading sessions: heads, states, histories and the feed."""
