"""Sessions: the verbs people use, over the store that is open."""
