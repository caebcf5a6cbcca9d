"""Events that nobody waits for one by one: queued by append_soon, made durable by flush."""
