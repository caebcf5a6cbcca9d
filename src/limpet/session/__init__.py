"""Sessions: the verbs people use, over whatever store is open."""
