"""A report: its JSON, its table, and its description of the machine and the tree."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def as_json(figures: Mapping[str, object], report: Path | None) -> str:
    """Return the figures as JSON; also write them to the file ``report`` if given."""
    text = json.dumps(figures, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    return text


def machine() -> dict[str, object]:
    """Return the properties of the machine that affect the figures."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """Return the commit of this tree; None if it is no checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as aligned columns. A row shorter than the first one is a sentence, and widens no column."""
    heads = rows[0]
    widths = [max(len(row[place]) for row in rows if len(row) == len(heads)) for place in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
