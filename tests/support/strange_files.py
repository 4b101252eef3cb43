"""Objects other than regular files that may have the name of a file."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    # The path of a socket has at most 107 bytes.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def leaving(path: Path) -> None:
    """Create a link to a file in another directory, with the content ELSEWHERE."""
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    elsewhere.write_bytes(ELSEWHERE)
    path.symlink_to(elsewhere)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


ELSEWHERE = b"of somebody else\n" * 100
#: Functions that create the objects, and their descriptions.
STRANGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (fifo, "a FIFO"),
    "socket": (bound_socket, "a socket"),
    "directory": (Path.mkdir, "a directory"),
    "dangling": (dangling, "a symbolic link"),
    "leaving": (leaving, "a symbolic link"),
    "endless": (endless, "a symbolic link"),
}


def put(kind: str, path: Path) -> str:
    """Create an object at the path of a file; return its description."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make, called = STRANGE[kind]
    make(path)
    return f"{path} is {called}, no regular file"


def is_untouched(directory: Path) -> bool:
    """Return whether the target of a link is unchanged."""
    there = [*directory.glob("elsewhere-*"), *directory.parent.glob("elsewhere-*")]
    return all(path.read_bytes() == ELSEWHERE for path in there)
