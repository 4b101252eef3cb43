"""Time that a thread waits for the interpreter after a system call while another thread has it. Only for the loop's
thread.

While work is under way that others must not wait for, the interval is short: the loop and the storage thread wait for
the interpreter some ten times for each receipt, and a working thread has it nearly always. Otherwise it is longer
(broker/run.py), as each change of the thread takes time.
"""

from __future__ import annotations

import sys

SHORT_SECONDS = 0.0001

_under_way = 0  # works that need the short interval
_usual = 0.0  # the interval before the first of them


def shorten() -> None:
    """Make the interval short, until ``restore`` was called as often."""
    global _under_way, _usual
    if not _under_way:
        _usual = sys.getswitchinterval()
        sys.setswitchinterval(SHORT_SECONDS)
    _under_way += 1


def restore() -> None:
    """End what ``shorten`` began."""
    global _under_way
    _under_way -= 1
    if not _under_way:
        sys.setswitchinterval(_usual)
