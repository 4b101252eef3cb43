"""The admin token: a secret in a file. A caller that sends it can read the files of the broker's user, so it has all
rights at the admin server.

The file, ``<index root>/<broker>.admin-token``, is created with mode 0600 at the first start, and is kept. An operator
may give a group access. A file that all users can read is not used.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from typing import Final

from tandemmq.disk import open_with_status

SUFFIX: Final = ".admin-token"
#: Pattern of a token. A file with other content is refused, by the broker and by commands that send the token.
TOKEN: Final = re.compile(r"tandemmq-admin-[A-Za-z0-9_-]{43}")
_BYTES_MAX = 128


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return f"tandemmq-admin-{secrets.token_urlsafe(32)}"


def read_token(path: str) -> str | None:
    """Return the token in the file; None: it is missing, invalid, or all users can read the file. Raises OSError, and
    NotRegular (an OSError)."""
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
    """Replace the content of the file by a new token, and return the token. Raises OSError; then the file may exist
    without a token."""
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
