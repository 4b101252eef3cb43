"""A directory for what is needed for a moment: private, local, and gone afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def scratch_directory(disk: Any, prefix: str) -> AbstractContextManager[str]:
    """Makes the directory, on ``disk``, and removes it with all that is in it.

    Beside the volume of a disk that is not the kernel's there may be no other: such a disk brings a
    ``scratch_directory`` of its own.
    """
    if disk is os:
        return tempfile.TemporaryDirectory(prefix=prefix)
    make: Callable[[str], AbstractContextManager[str]] | None = getattr(disk, "scratch_directory", None)
    return tempfile.TemporaryDirectory(prefix=prefix) if make is None else make(prefix)
