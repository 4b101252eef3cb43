"""File descriptors: the limit of this process, and the number of them that clients may use.

A master must stop if its journal cannot open the next file. So some descriptors are reserved, for any number of
clients.
"""

from __future__ import annotations

import resource
from typing import Final

# Descriptors reserved for journals, indexes, the lock, logs and the admin server (128 places): a quarter of the limit,
# but at least this number.
RESERVE_MIN: Final = 192
RESERVE_SHARE: Final = 4
CONNECTIONS_MIN: Final = 16
# A hard limit may be a thousand million, which is more than a process needs.
LIMIT_MAX: Final = 1 << 20


def raise_limit() -> int:
    """Raise the soft limit to the hard limit, at most LIMIT_MAX, and return the limit. If this is refused, the limit
    does not change."""
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
    """Return how many of ``limit`` descriptors the client connections of all connectors together may use."""
    return max(limit - max(RESERVE_MIN, limit // RESERVE_SHARE), CONNECTIONS_MIN)
