"""What can be wrong with a record."""

from __future__ import annotations


class RecordDamaged(Exception):
    """Bytes that are not the record they claim to be: truncated, contradictory, or of an unknown kind."""


class RecordTooLarge(RecordDamaged):
    """The content is longer than allowed: it was not read to the end."""


class Unencodable(ValueError):
    """A value that the format has no room for: a string over 64 KiB, a number over 64 bits."""
