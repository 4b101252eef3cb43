"""Time zone of this machine with its rules for daylight saving time, which may begin or end while a broker runs.

``datetime.astimezone().tzinfo`` is only the offset at one moment. For each conversion, this module calls the C library,
which has the rules from TZ or /etc/localtime.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo


class LocalZone(tzinfo):
    """The local zone, with its daylight saving rules. ``fold`` distinguishes the two halves of a repeated hour (PEP
    495)."""

    def utcoffset(self, moment: datetime | None, /) -> timedelta | None:
        return None if moment is None else _shown(moment).utcoffset()

    def tzname(self, moment: datetime | None, /) -> str | None:
        return None if moment is None else _shown(moment).tzname()

    def dst(self, _moment: datetime | None, /) -> timedelta | None:
        """Return None (unknown), as ``tzinfo.dst`` permits: the C library returns only the whole offset."""
        return None

    def fromutc(self, moment: datetime, /) -> datetime:
        utc = moment.replace(tzinfo=UTC)
        shown = utc.astimezone().replace(tzinfo=None)
        return shown.replace(tzinfo=self, fold=int(shown.astimezone() != utc))


def _shown(moment: datetime) -> datetime:
    """Return ``moment`` with the offset of that time. A datetime without a zone is in the C library's zone."""
    return moment.replace(tzinfo=None).astimezone()
