"""Number of memory allocations of a server. Python's objects count, too: they come from malloc here (PYTHONMALLOC)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_COUNTER_BYTES = 8


class Counter:
    """``environment`` is for the start of a server whose allocations are counted; they cost extra CPU."""

    def __init__(self, library: Path, file: Path) -> None:
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "PYTHONMALLOC": "malloc",
            "TANDEMMQ_BENCH_ALLOCATIONS": str(file),
        }
        self._file = file

    def count(self) -> int:
        """Return the allocations so far, of all processes that were started with it."""
        return int.from_bytes(self._file.read_bytes(), "little")


@contextmanager
def counter() -> Iterator[Counter | None]:
    """Yield a counter, or None without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="bench-allocations-") as directory:
        library, file = Path(directory, "allocations.so"), Path(directory, "count")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
        file.write_bytes(bytes(_COUNTER_BYTES))
        yield Counter(library, file)
