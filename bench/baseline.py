"""Another commit of this tree, for comparison with a change."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.server import TREE

# Possible names of the main branch: a clone of CI has only its remote name.
MAIN = ("origin/HEAD", "origin/main", "main")


def default_baseline() -> str | None:
    """Return the commit where this branch left the main one; on the main one the previous commit; None without one."""
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
