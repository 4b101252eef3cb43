"""Compilation of C libraries for tests. Imports nothing of the tree."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path


class NoCompiler(Exception):
    """There is no C compiler, or Python's headers are missing."""


def compile_c(source: Path, library: Path, *options: str) -> None:
    """Compile a library that Python can import. Raises NoCompiler, and CalledProcessError if the compilation fails."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    include = sysconfig.get_path("include")
    if compiler is None or not (Path(include) / "Python.h").is_file():
        raise NoCompiler(f"{source.name} is not compiled, and there is no compiler with Python's headers")
    command = [compiler, "-O1", "-shared", "-fPIC", f"-I{include}", *options, str(source), "-o", str(library)]
    subprocess.run(command, check=True)
