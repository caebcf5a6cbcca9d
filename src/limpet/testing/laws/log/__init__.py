"""Laws of writing."""
