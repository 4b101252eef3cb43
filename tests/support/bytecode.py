"""Give a copy of the tree the bytecode of the tree, which PYTHONPYCACHEPREFIX keeps.

The compilation of all tests with their assertions costs 16 s of CPU, and a copy has no bytecode.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def copy_bytecode(tree: Path, copy: Path, prefix: Path | None = None) -> None:
    """Give ``copy`` the bytecode of ``tree``. Its files must have the times of those of ``tree``.

    ``prefix``: PYTHONPYCACHEPREFIX of the processes that use the copy, if it is not that of this process. It also gets
    the bytecode of the libraries. Files that other processes compile at the same time may be left out.
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
