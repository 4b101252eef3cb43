"""What can be wrong with a record."""

from __future__ import annotations


class RecordDamaged(Exception):
    """Bytes that are not the record they claim to be: truncated, contradictory, or of an unknown kind."""


class RecordTooLarge(RecordDamaged):
    """What it holds is longer than what is allowed: it was not looked at as a whole."""


class Unencodable(ValueError):
    """A value that the format has no room for: a string over 64 KiB, a number over 64 bits."""
