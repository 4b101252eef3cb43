"""Threads that keep a process from ending: the interpreter waits for each non-daemon thread, however long it hangs.

A process that does not end may hold a lock that only its end frees.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from tandemmq.broker.ha.waits import BOUNDS, Wait

log = logging.getLogger(__name__)

# Prefix of the names of all threads of a broker; other threads do not count.
PREFIX = "tandemmq-"
EXIT_SECONDS = BOUNDS[Wait.EXIT].seconds or 0.0


def hung_threads(seconds: float = EXIT_SECONDS) -> list[str]:
    """Return the names of the threads that are still alive after ``seconds``."""
    deadline = time.monotonic() + seconds
    ending = [each for each in threading.enumerate() if each.name.startswith(PREFIX) and not each.daemon]
    for thread in ending:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in ending if thread.is_alive()]


def end_despite_them(code: int, seconds: float = EXIT_SECONDS) -> None:
    """End the process at once if such threads are left after ``seconds``; return if none is."""
    names = hung_threads(seconds)
    if names:
        is_failure = isinstance(sys.exc_info()[1], Exception)
        log.error("the process ends without %s: a volume or a server hangs", ", ".join(names), exc_info=is_failure)
        logging.shutdown()
        os._exit(code)
