"""Reading from a server: sessions, histories, states, pages and the feed."""
