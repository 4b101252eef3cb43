"""Errors of records."""

from __future__ import annotations


class RecordDamaged(Exception):
    """Raised if bytes are not the record they claim to be: truncated, contradictory, or of an unknown kind."""


class RecordTooLarge(RecordDamaged):
    """The content is longer than allowed: it was not read to the end."""


class Unencodable(ValueError):
    """Raised if a value does not fit into the format: a string over 64 KiB, a number over 64 bits."""
