"""Keys: where masters come from, the ring of wrapped data keys, the seal made of them, receipts."""
