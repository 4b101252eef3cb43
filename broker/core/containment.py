"""An error while a client is served ends that client alone.

A session is told in the middle of what others asked for: a receipt with those of the same write, a message while its
sender is served, room that somebody else made. An error in it ends its connection, as if its client had gone at this
moment; the client that is served, and all others that get the same, notice nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tandemmq.broker.core.delivery import Outlet

log = logging.getLogger(__name__)

#: The end of each log line about a contained failure; tests search the log for it.
ERROR_OF_BROKER = "led to an error of the broker"


def tell(outlet: Outlet, say: Callable[..., object], *what: object) -> None:
    """Have a session say something (``say``, a method of it), at the end of this turn. Never raises."""
    try:
        say(*what)
    except Exception:
        hang_up(outlet)
    else:
        outlet.touch()


def hang_up(outlet: Outlet) -> None:
    """From an ``except``: what was being done for that client failed, and its connection ends."""
    log.exception("%r: hung up, for what it is told or waits for %s", outlet, ERROR_OF_BROKER)
    outlet.close(after_flush=False)
