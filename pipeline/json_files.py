"""JSON files that are replaced atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandemmq.disk import sync_directory, write_fully


def read_json(path: Path) -> Any:
    """Return the value; None: the file does not exist. Raises ValueError if it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Write a temporary file, sync it and rename it to ``path``. Durable on return."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with new.open("wb") as file:
        write_fully(os, file.fileno(), json.dumps(body).encode(), 0)
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(os, str(path.parent))
