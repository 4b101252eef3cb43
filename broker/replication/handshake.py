"""The handshake of two members: each names itself and proves that it knows the token. Pure: messages in and out.

    dialer                     listener
    HELLO     ->
              <-               HELLO
    PROOF     ->
              <-               PROOF

A proof is HMAC-SHA-256 by the token over the side's name, both nonces and both HELLOs as sent, each with its length
before it. So a proof cannot be replayed or sent back to its author, and a HELLO cannot be changed on its way. The
listener proves nothing to a dialer that has not proved itself. Only TLS protects what comes after the handshake.
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
    """A side of the handshake. ``admits`` returns why the member is refused, or None. It is called before this side's
    own proof, and when the other side has proved that it knows the token. Its second argument says whether it has.

    The handshake is over when ``peer`` or ``refused`` is set: the proved HELLO of the other side, or why the link must
    end. In both cases, first send the messages that were returned.
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
        """Return the first messages to send."""
        return [self._hello] if self._is_dialer else []

    def receive(self, message: Message) -> list[Message]:
        """Return the messages to send in answer."""
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
        """Return why these two members cannot be linked, whatever the token; None: they can."""
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
