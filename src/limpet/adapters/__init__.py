"""Other frameworks on Limpet: one adapter each, for the interface that the framework defines."""
