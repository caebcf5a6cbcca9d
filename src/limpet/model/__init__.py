"""The model: pure functions and frozen records. No I/O, no clock, no randomness."""
