"""Run the C code of the tree under the address, undefined-behaviour and thread sanitizers.

    python -m tests.support.sanitizers              all runs
    python -m tests.support.sanitizers thread       one of them

A run has an interpreter linked with the sanitizer, and a compiler wrapper first in PATH: all modules, programs and
preloaded libraries that a test compiles are compiled for the sanitizer. A finding ends the process and the run. The
exit code is 1 if a run fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.tree import ROOT

MODULES = (
    *(f"tests/unit/journal/test_{name}.py" for name in ("commit", "commit_queue", "native_calls")),
    "tests/unit/store/writer/test_submissions.py",
    "tests/unit/store/records/test_stored.py",
    "tests/unit/broker/protocols/stomp/test_plain_heads.py",
)
PROGRAMS = ("tests/unit/bench/test_floor.py", "tests/unit/test_zombie_shim.py")
STRICT = "halt_on_error=1:exitcode=66:abort_on_error=0"


@dataclass(frozen=True, slots=True)
class Run:
    """A run. ``options``: those of the compiler."""

    options: tuple[str, ...]
    tests: tuple[str, ...]

    def under(self) -> list[str]:
        """Return the prefix of the command: an older thread sanitizer needs addresses that are not randomized."""
        fixed = ["setarch", "-R"]
        is_thread = "-fsanitize=thread" in self.options and shutil.which("setarch") is not None
        return (
            fixed if is_thread and subprocess.run([*fixed, "true"], stderr=subprocess.DEVNULL).returncode == 0 else []
        )


RUNS = {
    "address": Run(("-fsanitize=address,undefined",), (*MODULES, *PROGRAMS)),
    "thread": Run(("-fsanitize=thread",), (*MODULES, *PROGRAMS)),
}
ENVIRONMENT = {
    # Leaks are not checked, because Python does not release all its memory; a preloaded library comes before the
    # sanitizer's.
    "ASAN_OPTIONS": f"detect_leaks=0:verify_asan_link_order=0:detect_stack_use_after_return=1:{STRICT}",
    "UBSAN_OPTIONS": f"print_stacktrace=1:{STRICT}",
    "TSAN_OPTIONS": STRICT,
    "PYTHONMALLOC": "malloc",  # so that each object is a separate allocation
    "TANDEMMQ_NO_FORK": "1",
}


def put_compiler(directory: Path, options: tuple[str, ...]) -> Path:
    """Put wrappers ``cc`` and ``gcc`` into ``directory``, which add ``options``; return the real compiler."""
    real = shutil.which("gcc") or shutil.which("cc")
    if real is None:
        raise SystemExit("no C compiler")
    for name in ("cc", "gcc"):
        script = directory / name
        always = " ".join((*options, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"))
        script.write_text(f'#!/bin/sh\nexec {real} "$@" {always}\n')
        script.chmod(0o755)
    return directory / "gcc"


def put_interpreter(directory: Path, compiler: Path) -> Path:
    """Put an interpreter with the packages of this one into ``directory``, linked by ``compiler``."""
    (directory / "bin").mkdir()
    source, program = directory / "python.c", directory / "bin" / "python"
    source.write_text("#include <Python.h>\nint main(int n, char **a) { return Py_BytesMain(n, a); }\n")
    library = sysconfig.get_config_var("LIBDIR")
    version = sysconfig.get_config_var("LDVERSION")
    link = [f"-L{library}", f"-Wl,-rpath,{library}", f"-lpython{version}", "-Wl,--export-dynamic"]
    command = [str(compiler), "-O1", f"-I{sysconfig.get_path('include')}", str(source), "-o", str(program), *link]
    subprocess.run(command, check=True)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), directory)
    (directory / "lib").symlink_to(Path(sys.prefix, "lib"))
    return program


def run(name: str) -> int:
    """Run pytest; return its exit code."""
    wanted = RUNS[name]
    with tempfile.TemporaryDirectory(prefix=f"tandemmq-{name}-") as place:
        directory = Path(place)
        (directory / "compilers").mkdir()
        compiler = put_compiler(directory / "compilers", wanted.options)
        interpreter = put_interpreter(directory, compiler)
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "PATH": f"{directory / 'compilers'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        command = [
            *wanted.under(),
            interpreter,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "no:cacheprovider",
            f"--basetemp={directory / 'tmp'}",
            "-p",
            "tests.support.sanitizers.modules",
        ]
        return subprocess.run([*command, *wanted.tests], cwd=ROOT, env=environment).returncode


def main(names: list[str]) -> int:
    if not RUNS.keys() >= set(names):
        print(__doc__, file=sys.stderr)
        return 2
    failed = []
    for name in names or RUNS:
        started = time.monotonic()
        print(f"== {name}", flush=True)
        if run(name):
            failed.append(name)
        print(
            f"{name}: {'failed' if name in failed else 'nothing found'}, {time.monotonic() - started:.0f} s", flush=True
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
