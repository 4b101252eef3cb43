"""What can be wrong with ActiveMQ's index."""

from __future__ import annotations


class KahaIndexDamaged(Exception):
    """db.data does not say what an index of ActiveMQ says: truncated, contradictory, or of an unknown version."""
