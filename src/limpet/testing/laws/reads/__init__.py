"""Laws of reading."""
