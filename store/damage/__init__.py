"""Damaged and lost records: they are found and reported, and skipped if the operator accepted the loss."""
