"""The introduction before the handshake: each side proves that it knows the token before either side sends a name.
Pure.

    dialer                     listener
    CHALLENGE ->
              <-               CHALLENGE
    PROOF     ->
              <-               PROOF
    and then the handshake, from its HELLO on

A CHALLENGE is a random number. A proof here is HMAC-SHA-256 by the token over the side's name and both numbers, each
with its length before it; the names of the sides differ from those of the handshake, so no proof is good for both.

An older version does not know CHALLENGE and refuses it by its type. The dialer then begins with HELLO at its next
attempt; so a set can be upgraded node by node. A listener accepts such a HELLO only from a store that it knows as a
member and that has no introduced link: a peer that knows neither the token nor a store id learns no name.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from tandemmq.broker.replication.handshake import Handshake
from tandemmq.broker.replication.messages import CHALLENGE_TYPE, Challenge, Hello, Message, Proof, Refused, name_of

_DIALER: Final = b"dialer, introduced"
_LISTENER: Final = b"listener, introduced"
#: How an older version refuses CHALLENGE.
FORMER_REFUSAL: Final = f"a message of type {CHALLENGE_TYPE},"


class Introduction:
    """A side of introduction and handshake: used like a Handshake, and over when the Handshake is. ``nonce``: the
    number for its CHALLENGE. ``begins_plain``: the dialer begins with HELLO. ``may_be_plain``: whether the listener
    accepts a HELLO of that store without introduction.

    ``is_introduced``: both sides proved before a HELLO that they know the token. ``is_former``: the other side has a
    version that does not know CHALLENGE.
    """

    __slots__ = (
        "_handshake",
        "_is_dialer",
        "_is_plain",
        "_may_be_plain",
        "_nonce",
        "_theirs",
        "_token",
        "is_former",
        "is_introduced",
        "refused",
    )

    def __init__(
        self,
        handshake: Handshake,
        nonce: str,
        token: bytes,
        is_dialer: bool,
        *,
        begins_plain: bool = False,
        may_be_plain: Callable[[str], bool] = lambda store: False,
    ) -> None:
        self._handshake = handshake
        self._nonce = nonce
        self._token = token
        self._is_dialer = is_dialer
        self._is_plain = begins_plain
        self._may_be_plain = may_be_plain
        self._theirs: str | None = None
        self.is_introduced = False
        self.is_former = False
        self.refused: str | None = None

    @property
    def peer(self) -> Hello | None:
        """HELLO of the other side (see Handshake)."""
        return self._handshake.peer

    @property
    def is_proved(self) -> bool:
        """Return whether the other side has proved that it knows the token."""
        return self.is_introduced or self._handshake.is_proved

    def start(self) -> list[Message]:
        """Return the first messages to send."""
        if self._is_plain:
            return self._handshake.start()
        return [Challenge(self._nonce)] if self._is_dialer else []

    def receive(self, message: Message) -> list[Message]:
        """Return the messages to send in answer."""
        if self.is_introduced or self._is_plain:
            return self._hand_on(message)
        if isinstance(message, Refused):
            self.is_former = self._theirs is None and message.reason.startswith(FORMER_REFUSAL)
            self.refused = f"refused by the other side: {message.reason}"
            return []
        if self._theirs is None and isinstance(message, Challenge):
            self._theirs = message.nonce
            return [self._proof(_DIALER) if self._is_dialer else Challenge(self._nonce)]
        if self._theirs is not None and isinstance(message, Proof):
            return self._check(message)
        if isinstance(message, Hello) and not self._is_dialer and self._theirs is None:
            # prove: no-name-before-the-proof "self._may_be_plain(message.store)" -> "True"
            if self._may_be_plain(message.store):
                self._is_plain = True
                return self._hand_on(message)
            return self._refuse("the token is to be proved before HELLO")
        return self._refuse(f"{name_of(message)} is not expected here")

    def _check(self, proof: Proof) -> list[Message]:
        expected = self._proof(_LISTENER if self._is_dialer else _DIALER)
        if not hmac.compare_digest(proof.hmac, expected.hmac):  # prove: introduced-by-the-token
            return self._refuse("the security tokens differ")
        self.is_introduced = True
        return self._handshake.start() if self._is_dialer else [self._proof(_LISTENER)]

    def _hand_on(self, message: Message) -> list[Message]:
        answers = self._handshake.receive(message)
        self.refused = self._handshake.refused
        return answers

    def _proof(self, side: bytes) -> Proof:
        assert self._theirs is not None, "both challenges are there"
        nonces = (self._nonce, self._theirs) if self._is_dialer else (self._theirs, self._nonce)
        parts = (side, *map(bytes.fromhex, nonces))
        covered = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return Proof(hmac.digest(self._token, covered, "sha256").hex())

    def _refuse(self, reason: str) -> list[Message]:
        self.refused = reason
        return [Refused(reason)]
