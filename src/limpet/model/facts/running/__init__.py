"""Facts of running: wakes, steps, effects, requests, revisits, children, budgets."""
