"""Laws of leases."""
