"""Errors of ActiveMQ's index."""

from __future__ import annotations


class KahaIndexDamaged(Exception):
    """db.data is not a valid index of ActiveMQ: truncated, contradictory, or of an unknown version."""
