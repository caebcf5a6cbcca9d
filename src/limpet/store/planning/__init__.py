"""Planning: what commits will write, decided alike for every store."""
