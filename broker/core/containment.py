"""Contain an error: it ends only the client that is served when it occurs.

The broker often calls a session while it serves another client: it sends all receipts of one write, delivers a message
while it serves the sender, or resumes a client because another one released memory. An error in the session ends its
connection, as if its client had left at this moment. The client that is served, and all other receivers, notice
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tandemmq.broker.core.delivery import Outlet

log = logging.getLogger(__name__)

#: End of each log line about a contained failure; tests search the log for it.
ERROR_OF_BROKER = "led to an error of the broker"


def tell(outlet: Outlet, say: Callable[..., object], *what: object) -> None:
    """Call ``say``, a method of the session, and write its output at the end of this turn. Never raises."""
    try:
        say(*what)
    except Exception:
        hang_up(outlet)
    else:
        outlet.touch()


def hang_up(outlet: Outlet) -> None:
    """Log the present exception and close the connection of that client. Call it from an ``except``."""
    log.exception("%r: disconnected: its session %s", outlet, ERROR_OF_BROKER)
    outlet.close(after_flush=False)
