"""How two members find out that they may talk: who each is, and that each knows the token. Pure: messages in and out.

    dialer                     listener
    HELLO     ->
              <-               HELLO
    PROOF     ->
              <-               PROOF

A proof is HMAC-SHA-256 by the token over the side's name, both nonces and both HELLOs as sent, each with its length
before it. So a proof cannot be used again, nor sent back to who made it, and nobody changed a HELLO on its way. The
listener proves nothing to somebody who has not. What comes after the handshake is protected by TLS alone.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from tandemmq.broker.replication.messages import PROTOCOL, Hello, Message, Proof, Refused, content_of, name_of

HANDSHAKE_SECONDS_MAX: Final = 5.0
_DIALER: Final = b"dialer"
_LISTENER: Final = b"listener"


def _admit_all(hello: Hello, is_proved: bool) -> str | None:
    return None


class Handshake:
    """One side of it. ``admits``: why this member is refused, None if it is not; asked before this side's own proof,
    and when the other side has proved that it knows the token. Its second argument says whether it has.

    Over when ``peer`` or ``refused`` is there: the other side's HELLO, proved, or why the link has to end. Messages
    that were given out go first in both cases.
    """

    __slots__ = ("_admits", "_hello", "_is_dialer", "_theirs", "_token", "is_proved", "peer", "refused")

    def __init__(
        self, hello: Hello, token: bytes, is_dialer: bool, admits: Callable[[Hello, bool], str | None] = _admit_all
    ) -> None:
        self._hello = hello
        self._token = token
        self._is_dialer = is_dialer
        self._admits = admits
        self._theirs: Hello | None = None
        self.is_proved = False  # the other side knows the token
        self.peer: Hello | None = None
        self.refused: str | None = None

    def start(self) -> list[Message]:
        """What to send at first."""
        return [self._hello] if self._is_dialer else []

    def receive(self, message: Message) -> list[Message]:
        """What to send now."""
        assert self.peer is None, "the handshake is not over"
        assert self.refused is None, "nor has it failed"
        if isinstance(message, Refused):
            self.refused = f"refused by the other side: {message.reason}"
            return []
        if self._theirs is None and isinstance(message, Hello):
            return self._meet(message)
        if self._theirs is not None and isinstance(message, Proof):
            return self._check(message, self._theirs)
        return self._refuse(f"{name_of(message)} is not expected here")

    def _meet(self, theirs: Hello) -> list[Message]:
        wrong = self._wrong(theirs)
        if wrong is None and self._is_dialer:
            wrong = self._admits(theirs, False)  # prove: a-hello-is-no-proof "False" -> "True"
        if wrong is not None:
            return self._refuse(wrong)
        self._theirs = theirs
        return [self._prove(theirs)] if self._is_dialer else [self._hello]

    def _check(self, proof: Proof, theirs: Hello) -> list[Message]:
        expected = self._proof(theirs, _LISTENER if self._is_dialer else _DIALER)
        if not hmac.compare_digest(proof.hmac, expected):  # prove: peer-knows-the-token
            return self._refuse("the security tokens differ")
        self.is_proved = True
        wrong = self._admits(theirs, True)
        if wrong is not None:
            return self._refuse(wrong)
        self.peer = theirs
        return [] if self._is_dialer else [self._prove(theirs)]

    def _wrong(self, theirs: Hello) -> str | None:
        """Why we have nothing to say to each other, whatever the token."""
        mine = self._hello
        if theirs.protocol != PROTOCOL:
            return f"protocol {theirs.protocol} is not spoken here, but {PROTOCOL}"
        if theirs.broker != mine.broker:
            return f"this is broker {mine.broker!r}, not {theirs.broker!r}"
        if theirs.store == mine.store:  # prove: own-store-is-refused
            return f"both have store {mine.store}: one directory is a copy of the other, or the address leads back"
        if theirs.set is not None and mine.set is not None and theirs.set != mine.set:  # prove: other-set-is-refused
            return f"this store belongs to set {mine.set}, not {theirs.set}"
        return None

    def _prove(self, theirs: Hello) -> Message:
        return Proof(self._proof(theirs, _DIALER if self._is_dialer else _LISTENER))

    def _proof(self, theirs: Hello, side: bytes) -> str:
        hellos = (self._hello, theirs) if self._is_dialer else (theirs, self._hello)
        parts = (side, *(bytes.fromhex(hello.nonce) for hello in hellos), *map(content_of, hellos))
        covered = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._token, covered, "sha256").hex()

    def _refuse(self, reason: str) -> list[Message]:
        self.refused = reason
        return [Refused(reason)]
