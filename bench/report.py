"""A report: its JSON, its table, its description of the machine and the tree; and another commit of the tree, for
comparison with a change."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.server import TREE

#: Tell the operator, while a scenario runs.
Say = Callable[[str], None]


def as_json(figures: Mapping[str, object], report: Path | None) -> str:
    """Return the figures as JSON; also write them to the file ``report`` if given."""
    text = json.dumps(figures, indent=2)
    if report is not None:
        report.write_text(text + "\n")
    return text


def head(scenario: str) -> dict[str, Any]:
    """Return the first figures of a report."""
    return {"scenario": scenario, "machine": machine(), "commit": commit()}


def machine() -> dict[str, object]:
    """Return the properties of the machine that affect the figures."""
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """Return the commit of this tree; None if it is not a Git checkout."""
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


def runs_table(figures: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """Return these columns of ``figures["runs"]``, aligned."""

    def cell(value: object) -> str:
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    return aligned([columns, *([cell(run[name]) for name in columns] for run in figures["runs"])])


# ---- the tree

# Possible names of the main branch: a clone in CI has only the remote name.
MAIN = ("origin/HEAD", "origin/main", "main")


def default_baseline() -> str | None:
    """Return the commit where this branch left the main branch; on the main branch the previous commit. None: there is
    none."""
    head = _git("rev-parse", "--verify", "--quiet", "HEAD")
    for branch in MAIN:
        base = _git("merge-base", "HEAD", branch)
        if base and base != head:
            return base
    return _git("rev-parse", "--verify", "--quiet", "HEAD~")


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit into a temporary directory. The repository is only read. Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="bench-baseline-") as directory:
        archive = Path(directory, "tree.tar")
        tree = Path(directory, "tree")
        tree.mkdir()
        command = ["git", "archive", "--format=tar", f"--output={archive}", commit]
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"no tree of the commit {commit!r}: {done.stderr.strip()}")
        subprocess.run(["tar", "-x", "-f", str(archive), "-C", str(tree)], check=True)
        archive.unlink()
        yield tree


def described(commit: str) -> str:
    """Return the commit's short id and subject, for people."""
    return _git("log", "-1", "--format=%h %s", commit) or commit


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=TREE, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
