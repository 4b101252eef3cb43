"""A broker whose system calls on files are recorded by strace(1)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.acceptance.broker_process import ROOT, BrokerProcess, wait_until

STRACE = shutil.which("strace")
# Calls that change a file or a directory, that open one, and that lock one.
CALLS = (
    "open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,sendfile,copy_file_range,splice,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,symlink,symlinkat,mkdir,mkdirat,mknod,mknodat,"
    "truncate,ftruncate,fallocate,fsync,fdatasync,sync_file_range,"
    "chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,utime,utimes,utimensat,futimesat,"
    "setxattr,lsetxattr,fsetxattr,removexattr,lremovexattr,fremovexattr,fcntl,flock"
)
READING = frozenset({"O_RDONLY", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "O_NOFOLLOW", "O_LARGEFILE", "O_PATH"})
LINE = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\((?P<arguments>.*)\) += (?P<answer>.*)$")
PATH = re.compile(r'"((?:[^"\\]|\\.)*)"|<([^<>]*)>')
FLAGS = re.compile(r"\bO_[A-Z_|0-9O]+")


class Call(NamedTuple):
    """A completed system call: its name, the paths in its arguments (also those of descriptors), and the line
    itself."""

    name: str
    paths: tuple[str, ...]
    line: str

    @property
    def is_reading(self) -> bool:
        """Return whether the call only opens a file for reading, or takes or queries a lock."""
        if self.name in ("fcntl", "flock"):
            return True
        flags = FLAGS.search(self.line)
        return self.name.startswith("open") and flags is not None and set(flags[0].split("|")) <= READING

    @property
    def has_taken_a_lock(self) -> bool:
        return self.name == "fcntl" and "F_SETLK" in self.line and "F_WRLCK" in self.line and self.line.endswith("= 0")


def why_not(directory: Path) -> str | None:
    """Return why no process can be traced here; None if one can."""
    if STRACE is None:
        return "strace is not installed"
    tried = subprocess.run(
        [STRACE, "-f", "-D", "--seccomp-bpf", "-o", str(directory / "tried"), "-e", "trace=openat", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode or "ptrace" in tried.stderr:
        return f"strace may not trace: {tried.stderr.strip()}"
    return None


class TracedBroker(BrokerProcess):
    """``trace``: file with all calls of the process from its start."""

    def __init__(self, data: Path | str, name: str, *options: str) -> None:
        super().__init__(data, name, *options)
        self.trace = Path(f"{self.data}-{name}.strace")

    def start(self) -> TracedBroker:
        assert self.process is None, "it runs already"
        assert STRACE is not None, "asked before"
        command = [
            STRACE, "-f", "-D", "--seccomp-bpf", "-y", "-q", "-s", "64", "-e", f"trace={CALLS}", "-o", str(self.trace),
            sys.executable, "-m", "tandemmq", "run", "--data", self.data, "--name", self.name,
            "--openwire", "off", "--stomp", f"127.0.0.1:{self.stomp}", "--admin", f"127.0.0.1:{self.admin}",
            *self.options,
        ]  # fmt: skip
        with open(self.log, "ab") as log:  # -D: the started process is the broker; strace is a separate one
            self.process = subprocess.Popen(
                command, stderr=log, stdout=log, cwd=ROOT, env={**os.environ, **self.environment}
            )
        return self

    def calls(self) -> list[Call]:
        """Return all calls, in the order in which they ended. Call it after the process has ended."""
        wait_until(lambda: "+++ exited" in self._last_line() or "+++ killed" in self._last_line(), "strace has ended")
        found = []
        begun: dict[str, str] = {}
        for line in self.trace.read_text(errors="replace").splitlines():
            pid, _, rest = line.partition(" ")
            if rest.endswith("<unfinished ...>"):
                begun[pid] = rest.strip().removesuffix("<unfinished ...>")
                continue
            if "resumed>" in rest:
                line = f"{pid} {begun.pop(pid, '')}{rest.partition('resumed>')[2]}"
            match = LINE.match(line)
            if match is None:
                assert "+++" in line or "---" in line, f"unknown line of strace: {line}"
            else:
                paths = tuple(quoted or described for quoted, described in PATH.findall(match["arguments"]))
                found.append(Call(match["call"], paths, line))
        return found

    def _last_line(self) -> str:
        return self.trace.read_text(errors="replace")[-400:]
