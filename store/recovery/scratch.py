"""A directory for temporary files: private, local, and removed afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def scratch_directory(disk: Any, prefix: str) -> AbstractContextManager[str]:
    """Make the directory, on ``disk``, and remove it with its contents on exit.

    A disk that is not the kernel's may have no volume beside its own: such a disk brings a ``scratch_directory`` of its
    own.
    """
    if disk is os:
        return tempfile.TemporaryDirectory(prefix=prefix)
    make: Callable[[str], AbstractContextManager[str]] | None = getattr(disk, "scratch_directory", None)
    return tempfile.TemporaryDirectory(prefix=prefix) if make is None else make(prefix)
