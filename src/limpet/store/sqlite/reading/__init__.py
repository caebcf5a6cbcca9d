"""Reading a database: sessions, histories, states, pages and the feed."""
