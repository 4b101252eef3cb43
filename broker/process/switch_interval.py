"""The switch interval of the interpreter: how long a thread waits for the interpreter's lock before it requests it. All
calls on the loop.

For each receipt, the loop and the storage thread wait for the lock about ten times. A thread with long work has the
lock nearly all the time, so the interval is short during such work. Otherwise it is longer (broker/run.py), because
each change of threads takes time.
"""

from __future__ import annotations

import sys

SHORT_SECONDS = 0.0001

_under_way = 0  # number of calls of ``shorten`` without ``restore``
_usual = 0.0  # the interval to restore


def shorten() -> None:
    """Make the interval short. It stays short until ``restore`` has been called as often as this function."""
    global _under_way, _usual
    if not _under_way:
        _usual = sys.getswitchinterval()
        sys.setswitchinterval(SHORT_SECONDS)
    _under_way += 1


def restore() -> None:
    """Undo one call of ``shorten``."""
    global _under_way
    _under_way -= 1
    if not _under_way:
        sys.setswitchinterval(_usual)
