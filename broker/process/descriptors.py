"""File descriptors: number allowed for this process, and number of these for clients.

A journal that cannot open its next file ends a master, so some are reserved, whatever the number of clients.
"""

from __future__ import annotations

import resource
from typing import Final

# Reserved for journals, indexes, the lock, logs and the admin server (128 places): a quarter, or at least this number.
RESERVE_MIN: Final = 192
RESERVE_SHARE: Final = 4
CONNECTIONS_MIN: Final = 16
# A hard limit may be a thousand million, which no process needs.
LIMIT_MAX: Final = 1 << 20


def raise_limit() -> int:
    """Raise the limit to the hard limit, and return the limit. No error: if that is refused, the limit stays."""
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
    """Return how many of ``limit`` descriptors client connections may use, all connectors together."""
    return max(limit - max(RESERVE_MIN, limit // RESERVE_SHARE), CONNECTIONS_MIN)
