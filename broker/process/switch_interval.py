"""The switch interval: the time for which a thread waits for the interpreter while another thread uses it. Only for the
loop's thread.

For each receipt, the loop and the storage thread wait for the interpreter about ten times. While another thread does
long work, it uses the interpreter nearly all the time, so the interval is made short. Otherwise it is longer
(broker/run.py), because each change of threads takes time.
"""

from __future__ import annotations

import sys

SHORT_SECONDS = 0.0001

_under_way = 0  # number of tasks that need the short interval
_usual = 0.0  # the interval before the first of them


def shorten() -> None:
    """Make the interval short, until ``restore`` has been called as often as this function."""
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
