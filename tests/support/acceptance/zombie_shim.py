"""Control of one process from outside: hold its calls on a directory, make them fail, step its wall clock.

``zombie_shim.c`` is compiled once and loaded by LD_PRELOAD; both sides share one page of a file. A held call is the
real call, made later, as on a volume whose server does not answer for a while.
"""

from __future__ import annotations

import enum
import fcntl
import functools
import mmap
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("zombie_shim.c")
COMPILERS = ("cc", "gcc", "clang")

# struct control of zombie_shim.c
_HELD = struct.Struct("=i")
_WALL = struct.Struct("=q")
_HELD_AT = 12
_ERROR_AT = 16
_WALL_AT = 24
_CONTROL_BYTES = 32


class Verb(enum.IntFlag):
    """Calls that can be held. LOOP holds the event loop, for any area."""

    WRITE = 1
    SYNC = 2
    STAT = 4
    LINK = 8
    OPEN = 16
    READ = 32
    LIST = 64
    UNLINK = 128
    LOOP = 256
    ALL = 255


class Area(enum.IntEnum):
    """Files whose calls are held: the journal, the whole data directory, or the indexes."""

    JOURNAL = 0
    VOLUME = 1
    INDEX = 2


@functools.cache
def compiler() -> str | None:
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


@contextmanager
def built() -> Iterator[Path]:
    """Compile the library; yield its path. Needs a ``compiler``."""
    using = compiler()
    assert using is not None, "the caller checks for a compiler first"
    # In /tmp, because servers that run as other users have no access to pytest's directories.
    directory = Path(tempfile.mkdtemp(prefix="tandemmq-shim-"))
    try:
        directory.chmod(0o755)
        library = directory / "zombie_shim.so"
        subprocess.run([using, "-shared", "-fPIC", "-O2", "-Wall", "-o", library, SOURCE, "-ldl"], check=True)
        library.chmod(0o755)
        yield library
    finally:
        shutil.rmtree(directory)


class Shim:
    """One controlled process. It must be started with ``environment``; after that all methods can be called at any
    time."""

    def __init__(self, library: Path, control: Path, volume: Path) -> None:
        control.write_bytes(bytes(_CONTROL_BYTES))
        control.chmod(0o666)
        self._library = library
        self._control = control
        self._volume = volume
        self._file = control.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), _CONTROL_BYTES)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "TANDEMMQ_SHIM_CONTROL": str(self._control),
            "TANDEMMQ_SHIM_VOLUME": str(self._volume),
        }

    @property
    def held(self) -> int:
        """Return the number of calls held since the start."""
        return int(_HELD.unpack_from(self._page, _HELD_AT)[0])

    def hold(self, verbs: Verb, area: Area = Area.JOURNAL, *, error: int = 0) -> None:
        """Hold these calls on ``area`` from now on. After ``let_go`` they are made, or fail with ``error``."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        _HELD.pack_into(self._page, _ERROR_AT, error)
        _HELD.pack_into(self._page, 4 * area, verbs)

    def let_go(self) -> None:
        """Stop holding calls. Held calls continue, or fail if an error was set."""
        for area in Area:
            _HELD.pack_into(self._page, 4 * area, 0)
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self.let_go()
        self._page.close()
        self._file.close()

    def step_wall_clock(self, seconds: float) -> None:
        """Set the process's wall clock to this difference from the true time; 0 corrects it."""
        _WALL.pack_into(self._page, _WALL_AT, int(seconds * 1e9))


@pytest.fixture(scope="module")
def library(require_service: Callable[[object, str], None]) -> Iterator[Path]:
    """Fixture for a test module, which imports its name."""
    require_service(compiler(), "no C compiler (cc, gcc, clang)")
    with built() as made:
        yield made
