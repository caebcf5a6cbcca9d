"""The conversation in a log: messages, and the context of any model's API."""
