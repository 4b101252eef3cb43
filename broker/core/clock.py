"""Clock for the times in messages."""

from __future__ import annotations

import time


def milliseconds() -> int:
    """Return the present time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
