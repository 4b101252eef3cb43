"""What the store holds: the last checkpoint, what changed since, and how a journal record changes it."""
