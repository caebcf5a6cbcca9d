"""Facts of running: wakes, steps, effects, requests, children, budgets."""
