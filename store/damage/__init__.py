"""Damaged and lost records: found, reported, stepped over where that is declared."""
