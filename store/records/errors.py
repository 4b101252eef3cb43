"""Errors of records."""

from __future__ import annotations


class RecordDamaged(Exception):
    """Bytes are no valid record: truncated, contradictory, or of an unknown kind."""


class RecordTooLarge(RecordDamaged):
    """The content of a record is longer than allowed."""


class Unencodable(ValueError):
    """A value does not fit into the format, for example a string over 64 KiB or a number over 64 bits."""
