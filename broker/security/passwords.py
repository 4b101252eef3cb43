"""Password hashes: scrypt, stored as a PHC string.

    $scrypt$ln=14,r=8,p=1$<salt>$<hash>        salt and hash in base64 without "="

ln is the logarithm of scrypt's cost N. A hash of this broker takes 16 MiB and some 40 ms; other hashes are accepted up
to COST_MAX. ``make`` and ``matches`` take long and release the interpreter's lock. Do not call them on the loop.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

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
