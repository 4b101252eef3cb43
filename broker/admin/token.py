"""The token that proves to a broker's admin server that its holder can read the files of the broker's user.

The file, ``<index root>/<broker>.admin-token``, is made with the mode 0600 at the first start and stays. A group may
get access, other users may not.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from typing import Final

from tandemmq.disk import open_with_status

SUFFIX: Final = ".admin-token"
#: Pattern of a token: nothing else is read from the file, nor sent by a command that was given a file.
TOKEN: Final = re.compile(r"tandemmq-admin-[A-Za-z0-9_-]{43}")
_BYTES_MAX = 128


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return f"tandemmq-admin-{secrets.token_urlsafe(32)}"


def read_token(path: str) -> str | None:
    """Return the token in the file, if it is valid and not readable for all; None: there is none. Raises OSError,
    NotRegular among them."""
    try:
        descriptor, status = open_with_status(os, path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if status.st_mode & stat.S_IRWXO:
            return None
        token = os.read(descriptor, _BYTES_MAX).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    return token if TOKEN.fullmatch(token) else None


def write_token(path: str) -> str:
    """Write a new token into the file, whatever was there. Raises OSError; then the file may be there without a
    token."""
    token = new_token()
    new = f"{path}.new"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(new):
        os.unlink(new)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{token}\n".encode())
    finally:
        os.close(descriptor)
    os.replace(new, path)
    return token
