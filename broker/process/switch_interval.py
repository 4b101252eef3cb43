"""The switch interval of the interpreter: how long a thread waits for the interpreter's lock before it requests it. All
calls on the loop.

The loop and the storage thread wait for the lock after each system call, about ten times for each receipt. So the
interval is shorter than Python's own (5 ms; docs/decisions/0020). It depends on what happens meanwhile:

- A thread with long work has the lock nearly all the time. The interval is short during such work.
- If connections have more input than their slices of the loop take, a longer interval makes larger batches of the
  storage thread, and each change of threads takes time: with the usual interval a message costs a fifth more.
"""

from __future__ import annotations

import sys

SHORT_SECONDS = 0.0001
USUAL_SECONDS = 0.0003
LOADED_SECONDS = 0.001

_under_way = 0  # number of calls of ``shorten`` without ``restore``
_is_loaded = False


def start() -> None:
    """Make the interval the usual one, until there is load or long work."""
    global _is_loaded
    _is_loaded = False
    _set()


def shorten() -> None:
    """Make the interval short. It stays short until ``restore`` has been called as often as this function."""
    global _under_way
    _under_way += 1
    if _under_way == 1:
        sys.setswitchinterval(SHORT_SECONDS)


def restore() -> None:
    """Undo one call of ``shorten``."""
    global _under_way
    _under_way -= 1
    _set()


def note_load(is_loaded: bool) -> None:
    """Note whether connections have more input than their slices of the loop take. Before the first call: no."""
    global _is_loaded
    if is_loaded is not _is_loaded:
        _is_loaded = is_loaded
        _set()


def _set() -> None:
    if not _under_way:
        sys.setswitchinterval(LOADED_SECONDS if _is_loaded else USUAL_SECONDS)
