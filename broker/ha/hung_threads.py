"""Threads that keep a process from ending: the interpreter waits for each that is no daemon, however long it hangs.

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

# All threads of a broker are called so; others are not ours to judge.
PREFIX = "tandemmq-"
EXIT_SECONDS = BOUNDS[Wait.EXIT].seconds or 0.0


def hung_threads(seconds: float = EXIT_SECONDS) -> list[str]:
    """The names of those that are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    ending = [each for each in threading.enumerate() if each.name.startswith(PREFIX) and not each.daemon]
    for thread in ending:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in ending if thread.is_alive()]


def end_despite_them(code: int, seconds: float = EXIT_SECONDS) -> None:
    """End the process here and now if there are any after so many seconds; returns if there are none."""
    names = hung_threads(seconds)
    if names:
        is_failure = isinstance(sys.exc_info()[1], Exception)
        log.error("the process ends without %s: a volume or a server hangs", ", ".join(names), exc_info=is_failure)
        logging.shutdown()
        os._exit(code)
