"""The bytecode of the tree, where PYTHONPYCACHEPREFIX keeps it, is that of a copy of the tree, too.

To compile all tests with their assertions costs 16 s of CPU, and a copy has no bytecode of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def copy_bytecode(tree: Path, copy: Path, prefix: Path | None = None) -> None:
    """Give ``copy``, whose files have the times of those of ``tree``, their bytecode.

    ``prefix``: the PYTHONPYCACHEPREFIX of the processes that use the copy, if it is not that of this one. It gets the
    bytecode of the libraries, too. What other processes compile meanwhile may be left out.
    """
    if sys.pycache_prefix is None:
        return
    own = Path(sys.pycache_prefix)
    if prefix is not None:
        _copy(own, prefix)
    _copy(own.joinpath(*tree.parts[1:]), (prefix or own).joinpath(*copy.parts[1:]))


def _copy(compiled: Path, to: Path) -> None:
    unfinished = shutil.ignore_patterns("*.pyc.*")
    if compiled.is_dir():
        shutil.copytree(compiled, to, ignore=unfinished, dirs_exist_ok=True)
