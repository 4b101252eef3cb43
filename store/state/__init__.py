"""State of the store: the last checkpoint, the changes since, and the effect of each journal record."""
