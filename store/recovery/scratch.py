"""Temporary directory, which is private, local, and removed after use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def scratch_directory(disk: Any, prefix: str) -> AbstractContextManager[str]:
    """Make a temporary directory, and remove it with its contents on exit. A simulated disk can provide its own
    ``scratch_directory``."""
    if disk is os:
        return tempfile.TemporaryDirectory(prefix=prefix)
    make: Callable[[str], AbstractContextManager[str]] | None = getattr(disk, "scratch_directory", None)
    return tempfile.TemporaryDirectory(prefix=prefix) if make is None else make(prefix)
