"""The same verbs without await, for scripts and notebooks."""
