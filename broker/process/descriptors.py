"""File descriptors: how many this process may have, and how many of them clients.

A journal that cannot open its next file ends a master, so some are kept from clients however many come.
"""

from __future__ import annotations

import resource
from typing import Final

# For journals, indexes, the lock, logs and the admin server (128 places): a quarter, or so many.
RESERVE_MIN: Final = 192
RESERVE_SHARE: Final = 4
CONNECTIONS_MIN: Final = 16
# A hard limit may be a thousand million, which no process needs.
LIMIT_MAX: Final = 1 << 20


def raise_limit() -> int:
    """Have as many as the hard limit allows; how many that are. No error: what is refused stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def connections_max(limit: int) -> int:
    """How many of ``limit`` descriptors connections of clients may have, all connectors together."""
    return max(limit - max(RESERVE_MIN, limit // RESERVE_SHARE), CONNECTIONS_MIN)
