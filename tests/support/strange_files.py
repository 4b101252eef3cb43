"""What somebody may put under the name of a file that is not one."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    # A socket's whole path may not be longer than 107 bytes.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def leaving(path: Path) -> None:
    """A link to a file elsewhere, whose content is ELSEWHERE."""
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    elsewhere.write_bytes(ELSEWHERE)
    path.symlink_to(elsewhere)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


ELSEWHERE = b"of somebody else\n" * 100
#: How to make one, and what it is called.
STRANGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (fifo, "a FIFO"),
    "socket": (bound_socket, "a socket"),
    "directory": (Path.mkdir, "a directory"),
    "dangling": (dangling, "a symbolic link"),
    "leaving": (leaving, "a symbolic link"),
    "endless": (endless, "a symbolic link"),
}


def put(kind: str, path: Path) -> str:
    """Put something in the place of a file, and what it is told as."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make, called = STRANGE[kind]
    make(path)
    return f"{path} is {called}, no regular file"


def is_untouched(directory: Path) -> bool:
    """What a link led to is as it was."""
    there = [*directory.glob("elsewhere-*"), *directory.parent.glob("elsewhere-*")]
    return all(path.read_bytes() == ELSEWHERE for path in there)
