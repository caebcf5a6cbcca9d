"""Programs for those who change Limpet."""
