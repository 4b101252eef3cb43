"""State of a store: the last checkpoint, the later changes, and the effect of each journal record."""
