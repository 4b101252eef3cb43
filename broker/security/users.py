"""The user file: a line for each user, similar to /etc/passwd.

    # name : hash of the password : groups : subject of the certificate
    alice:$scrypt$ln=14,r=8,p=1$...$...:operators,shops:
    orders:!:shops:CN=orders,O=Example

Empty lines and lines that begin with # are ignored. A user with the hash ! has no password, and can log in only with
its certificate.

Password hashes are made by scrypt and stored as a PHC string:

    $scrypt$ln=14,r=8,p=1$<salt>$<hash>        salt and hash in base64 without "="

ln is the logarithm of scrypt's cost N. A hash of this broker takes 16 MiB and some 40 ms; other hashes are accepted up
to COST_MAX. ``make`` and ``matches`` take long and release the interpreter's lock. Do not call them on the loop.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.broker.core.principal import Principal
from tandemmq.disk import open_regular, write_fully
from tandemmq.modes import whose

LN: Final = 14
BLOCK: Final = 8
PARALLEL: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
#: Limit of N x r x p of an accepted hash: 16 times the cost of the broker's own hashes, 256 MiB.
COST_MAX: Final = 1 << 21
#: Maximum length of a password. Hashing takes longer for a longer one, also for unknown users.
PASSWORD_BYTES_MAX: Final = 1024

_PHC: Final = re.compile(
    r"\$scrypt\$ln=([0-9]{1,2}),r=([0-9]{1,3}),p=([0-9]{1,3})\$([A-Za-z0-9+/]{11,86})\$([A-Za-z0-9+/]{22,86})"
)


@dataclass(frozen=True, slots=True)
class Hash:
    """A parsed hash, ready to test passwords."""

    ln: int
    block: int
    parallel: int
    salt: bytes
    digest: bytes

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$scrypt$ln={self.ln},r={self.block},p={self.parallel}${salt}${digest}"

    def matches(self, password: str) -> bool:
        """Return whether ``password`` is correct. The time does not depend on the answer."""
        raw = password.encode("utf-8", "surrogatepass")
        if len(raw) > PASSWORD_BYTES_MAX:
            return False
        return hmac.compare_digest(self._digest(raw), self.digest)

    def _digest(self, raw: bytes) -> bytes:
        needed = 128 * self.block * ((1 << self.ln) + self.parallel)
        return hashlib.scrypt(
            raw,
            salt=self.salt,
            n=1 << self.ln,
            r=self.block,
            p=self.parallel,
            maxmem=needed + (1 << 20),
            dklen=len(self.digest),
        )


def make(password: str) -> Hash:
    """Return the hash of a new password. Raises ValueError if it is empty or too long."""
    raw = password.encode("utf-8", "surrogatepass")
    if not 0 < len(raw) <= PASSWORD_BYTES_MAX:
        raise ValueError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    salt = secrets.token_bytes(SALT_BYTES)
    return Hash(LN, BLOCK, PARALLEL, salt, Hash(LN, BLOCK, PARALLEL, salt, bytes(HASH_BYTES))._digest(raw))


def read(text: str) -> Hash:
    """Parse a PHC string. Raises ValueError with the expected form."""
    found = _PHC.fullmatch(text)
    if found is None:
        raise ValueError('a hash like "$scrypt$ln=14,r=8,p=1$SALT$HASH", as `tandemmq user passwd` writes it')
    ln, block, parallel = int(found[1]), int(found[2]), int(found[3])
    if not (ln and block and parallel) or ln > 24 or (block * parallel) << ln > COST_MAX:
        raise ValueError(f"a hash with a cost above 0 and at most N x r x p = {COST_MAX}")
    return Hash(ln, block, parallel, _decode(found[4]), _decode(found[5]))


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


#: Hash that is checked for an unknown name, so that this takes as long as for a known one.
UNKNOWN_USER: Final = Hash(LN, BLOCK, PARALLEL, bytes(SALT_BYTES), bytes(HASH_BYTES))


NO_PASSWORD: Final = "!"
NO_USERS: Final = "# no users\n"
FILE_BYTES_MAX: Final = 16 << 20
_NAME: Final = re.compile(r"[^:,#\s\x00-\x1f\x7f][^:\x00-\x1f\x7f]{0,254}")
_GROUP: Final = re.compile(r"[^:,*\s\x00-\x1f\x7f]{1,255}")


class UsersError(Exception):
    """The user file is invalid or cannot be read. The text names the line and the expected form, but never contains a
    hash."""


@dataclass(frozen=True, slots=True)
class User:
    name: str
    hash: Hash | None = None
    groups: frozenset[str] = frozenset()
    certificate: str | None = None

    @property
    def principal(self) -> Principal:
        return Principal(self.name, self.groups)

    def __str__(self) -> str:
        """Return the user's line of the file."""
        shown = NO_PASSWORD if self.hash is None else str(self.hash)
        return f"{self.name}:{shown}:{','.join(sorted(self.groups))}:{self.certificate or ''}"


class Users:
    """All users of a file at its last read."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self.by_name: Final = dict(users)
        self.by_certificate: Final = {user.certificate: user for user in users.values() if user.certificate}


def parse(text: str, path: str) -> Users:
    """Parse the file's text. Raises UsersError with ``path`` and the line."""
    users: dict[str, User] = {}
    certificates: dict[str, str] = {}
    for number, line in _lines(text):
        try:
            user = _user(line)
            if user.name in users:
                raise ValueError(f"each user once, but {user.name} occurs twice")
            other = certificates.setdefault(user.certificate, user.name) if user.certificate else user.name
            if other != user.name:
                raise ValueError(f"a different certificate for {user.name} than for {other}")
        except ValueError as error:
            raise UsersError(f"{path}, line {number}: expected {error}") from error
        users[user.name] = user
    return Users(users)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.rstrip("\r")


def _user(line: str) -> User:
    name, *rest = line.split(":", 3)
    if not 2 <= len(rest) <= 3:
        raise ValueError("NAME:HASH:GROUP,GROUP:CERTIFICATE")
    checked_name(name)
    hash = None if rest[0] == NO_PASSWORD else read(rest[0])
    return User(name, hash, groups(rest[1]), (rest[2].strip() or None) if len(rest) > 2 else None)


def checked_name(name: str) -> str:
    """Return ``name`` if it is valid. Raises ValueError with the expected form."""
    if not _NAME.fullmatch(name):
        raise ValueError('a name of at most 255 characters, without ":", that does not begin with a blank, "," or "#"')
    return name


def groups(text: str) -> frozenset[str]:
    """Parse names separated by commas. Raises ValueError with the expected form."""
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not all(map(_GROUP.fullmatch, found)):
        raise ValueError('names of groups, separated by commas, without blanks, ":" and "*"')
    return found


def load(path: str) -> Users:
    """Read the users of a file. Raises UsersError."""
    return parse(read_text(path), path)


def load_again(path: str, former: Users) -> Users:
    """Return the users of a file that changed while the broker runs. Raises UsersError, also for a file that may be
    incomplete: its last line does not end with a newline, or it has none of the ``former`` users and is not
    NO_USERS."""
    text = read_text(path)
    found = parse(text, path)
    if found.by_name == former.by_name:
        return found
    if not found.by_name and text != NO_USERS:
        raise UsersError(f"{path}: has no users; if this is intended, write this line alone: {NO_USERS.strip()}")
    if not text.endswith("\n"):
        raise UsersError(f"{path}: the last line does not end with a newline; the file may be half written")
    return found


def read_text(path: str) -> str:
    """Return the text of a file. Raises UsersError."""
    try:
        # The operator may name a symbolic link. Its target must be a regular file, so that opening it does not block.
        descriptor = open_regular(os, os.path.realpath(path), os.O_RDONLY)
        with open(descriptor, "rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise UsersError(f"{path}: the user file is longer than {FILE_BYTES_MAX} bytes")
        return raw.decode()
    except OSError as error:
        raise UsersError(f"{path}: cannot be read: {error.strerror}{whose(error)}") from error
    except UnicodeDecodeError as error:
        raise UsersError(f"{path}: is not UTF-8: {error}") from error


def with_user(text: str, user: User) -> str:
    """Return the file's text with that user's line replaced, or added at the end. All other lines are unchanged."""
    lines = [line for line in text.split("\n") if line != NO_USERS.strip()]
    for place, line in enumerate(lines):
        if line.partition(":")[0] == user.name and not line.startswith("#"):
            lines[place] = str(user)
            return "\n".join(lines)
    if lines[-1] == "":
        lines.pop()
    return "\n".join([*lines, str(user), ""])


def without_user(text: str, name: str) -> str:
    """Return the file's text without that user's line. Without the last user, the text is NO_USERS: a running broker
    treats any other file without users as incomplete."""
    rest = "\n".join(line for line in text.split("\n") if line.startswith("#") or line.partition(":")[0] != name)
    return rest if any(_lines(rest)) else NO_USERS


def with_password(user: User, password: str) -> User:
    return replace(user, hash=make(password))


def write(path: str, text: str) -> None:
    """Replace the file atomically. A new file is readable only by its owner; an existing file keeps its mode. A missing
    newline at the end is added (see load_again)."""
    parse(text, path)
    if not text.endswith("\n"):
        text += "\n"
    directory = os.path.dirname(os.path.abspath(path))
    descriptor, made = tempfile.mkstemp(prefix=".users-", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            try:
                there = os.stat(path)
            except FileNotFoundError:
                pass
            else:
                os.fchmod(file.fileno(), there.st_mode & 0o777)
                if (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), there.st_uid, there.st_gid)
            write_fully(os, file.fileno(), text.encode(), 0)
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
