"""Writing to a server: jobs, plans as columns, lanes and snapshots."""
