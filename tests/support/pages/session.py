"""Run the commands of a page in their order, as a reader does: in one shell, in a new directory.

The shell runs in a separate machine (session.sh), so that ports, paths and host names are those of the page.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.pages.blocks import PYTHON, SHELL, Block, blocks
from tests.support.tree import ROOT

_HERE: Final = Path(__file__).parent
#: Input for commands that ask for a password. Eight bytes with the newline, so that no read of a command splits it.
PASSWORD: Final = "letmein"
_NUMBER = re.compile(r"\b(?:[0-9a-f]{8,}|\d+)\b|\d+")


class CommandFailed(AssertionError):
    """A command failed. The message has the page and line, the commands, and their output."""


def can_run(directory: Path) -> bool:
    """Return whether this user can create such a machine: namespaces, and a copy-on-write root. This needs root,
    because Linux does not allow an overlay over foreign mounts in an unprivileged namespace."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return _run(directory, "true\n", seconds=20).returncode == 0


def run(page: Path, directory: Path, seconds: float) -> int:
    """Run the blocks; return their number. Raises CommandFailed, and PageError for invalid comments."""
    every = blocks(page)
    directory.mkdir(parents=True)
    done = _run(directory, "\n".join(_script(every, directory)), seconds)
    at = directory / "at"
    if done.returncode != 0:
        block = every[int(at.read_text())] if at.exists() else None
        place = f"{os.path.relpath(page, ROOT)}:{block.line}\n{block.text}" if block else str(page)
        raise CommandFailed(f"{place}\nended with {done.returncode}\n{_printed(directory, at)}{done.stdout}")
    last = -1
    for number, block in enumerate(every):
        if block.is_run:
            last = number
        elif "output" in block.marks:
            printed = (directory / f"{last}.out").read_text()
            if missing := _missing(block.text, printed):
                place = f"{os.path.relpath(page, ROOT)}:{block.line}"
                raise CommandFailed(f"{place}: the page shows\n  {missing}\nprinted was\n{printed}")
    return sum(block.is_run for block in every)


def _run(directory: Path, script: str, seconds: float) -> subprocess.CompletedProcess[str]:
    for name in ("over", "here", "bin", "disk"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    command = directory / "bin" / "tandemmq"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tandemmq "$@"\n')
    command.chmod(0o755)
    (directory / "session").write_text(script)
    seen = {str(ROOT), sys.prefix, sys.base_prefix, *filter(None, (sys.pycache_prefix,))} - {"/", "/usr"}
    unshare = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child"]
    environment = {
        **os.environ,
        "PATH": f"{directory / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        "TREE": str(ROOT),
    }
    # A separate session has no terminal, so that commands read a password from standard input.
    with subprocess.Popen(
        ["bash", "-c", f"yes {PASSWORD} | exec {shlex.join([*unshare, 'bash', str(_HERE / 'session.sh')])} \"$@\"",
         "bash", str(directory), *sorted(seen)],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            return subprocess.CompletedProcess("", 124, output + f"\nnot done in {seconds} s")
    return subprocess.CompletedProcess("", process.returncode, output)


def _script(every: list[Block], directory: Path) -> Iterator[str]:
    """Yield a bash script that writes the output of each block to a file."""
    yield f"set -eE -o pipefail; . {_HERE / 'prelude.sh'}"
    for number, block in enumerate(every):
        marks = block.marks
        if not block.is_run:
            if "file" in marks:
                path = directory / f"{number}.text"
                path.write_text(block.text)
                place = shlex.quote(marks["file"])
                yield f"echo {number} > {directory}/at; mkdir -p $(dirname {place}); cp {path} {place}"
            continue
        yield f"echo {number} > {directory}/at"
        if "prepare" in marks:
            yield marks["prepare"]
        text = block.text
        if block.language == PYTHON:
            text = f"'{sys.executable}' - <<'END_OF_BLOCK'\n{text}\nEND_OF_BLOCK\n"
        if "PID" in marks:
            yield f"PID=$({marks['PID']})"
            text = re.sub(r"\bPID\b", "$PID", text)
        if "goes on until" in marks:
            *before, last = text.rstrip().splitlines() if block.language == SHELL else [text]
            text = "\n".join([*before, f"{{ {last}\n}} &"])
        path = directory / f"{number}.sh"
        path.write_text(text)
        run = f". {path} > {directory}/{number}.out 2>&1"
        if "ends with" in marks:
            code = int(marks["ends with"])
            yield f"set +e; {run}; code=$?; set -e; if [ $code != {code} ]; then exit $(( code == 0 ? 99 : code )); fi"
        else:
            yield run
        if "goes on until" in marks:
            yield f"OUT={directory}/{number}.out; wait_for {marks['goes on until']}"
    yield "exit 0"


def _printed(directory: Path, at: Path) -> str:
    output = directory / f"{at.read_text().strip()}.out" if at.exists() else at
    return output.read_text() if output.exists() else ""


def _missing(shown: str, printed: str) -> str | None:
    """Return the first line of ``shown`` that was not printed after the lines before it; None if there is none.
    Numbers, ids and blanks may differ."""
    lines = iter(map(_plain, printed.splitlines()))
    for line in shown.splitlines():
        plain = _plain(line)
        if plain not in ("", "...", "…") and plain not in lines:
            return line
    return None


def _plain(line: str) -> str:
    return " ".join(_NUMBER.sub("#", line).split())
