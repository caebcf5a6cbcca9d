"""The command line: what a person does by hand to a store. Stands on the session API alone."""
