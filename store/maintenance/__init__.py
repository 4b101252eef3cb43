"""Checkpoints, reclaimed files, compaction, archive."""
