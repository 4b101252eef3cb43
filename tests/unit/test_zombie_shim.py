"""The library that is loaded into a process to hold its calls can delay them, let them fail, and step its clock."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.acceptance.zombie_shim import Area, Shim, Verb, built, compiler

PROGRAM = """\
import os, time
fd = os.open("db-1.log", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x", 0), os.pread(fd, 1, 0), os.stat("."), os.listdir("."), os.link("db-1.log", "other")
os.rename("other", "another"), os.unlink("another")
try:
    os.fdatasync(fd)
except OSError as error:
    print(error.errno, time.time() > 4e9)
"""


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_a_call_is_held_and_fails_late(tmp_path: Path) -> None:
    with built() as library:
        shim = Shim(library, tmp_path / "control", tmp_path / "volume")
        (tmp_path / "volume").mkdir()
        shim.step_wall_clock(4e9)
        shim.hold(Verb.SYNC, Area.JOURNAL, error=errno.EIO)
        with subprocess.Popen(
            [sys.executable, "-S", "-c", PROGRAM],
            cwd=tmp_path / "volume",
            env={**os.environ, **shim.environment},
            stdout=subprocess.PIPE,
        ) as process:
            deadline = time.monotonic() + 30
            while not shim.held:
                assert process.poll() is None
                assert time.monotonic() < deadline
            shim.let_go()
            assert process.communicate()[0] == b"%d True\n" % errno.EIO
        shim.close()
