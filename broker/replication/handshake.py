"""The introduction and the handshake of two members: each proves that it knows the token, then each names itself and
proves it again. Pure: messages in and out.

    dialer                     listener
    CHALLENGE ->
              <-               CHALLENGE
    PROOF     ->
              <-               PROOF          introduced
    HELLO     ->
              <-               HELLO
    PROOF     ->
              <-               PROOF          linked

A proof is HMAC-SHA-256 by the token over the side's name and the data that both sides sent, each part with its length
before it. In the introduction the data are both CHALLENGEs, which are random numbers; in the handshake, both nonces and
both HELLOs as sent. The names of the sides differ, so no proof is valid for both sides, and none can be replayed or
sent back to its author; a HELLO cannot be changed on its way. The listener proves nothing to a dialer that has not
proved itself. Only TLS protects the messages after the handshake.

An older version does not know CHALLENGE and refuses it by its type. The dialer then begins with HELLO at its next
attempt; so a set can be upgraded node by node. A listener accepts such a HELLO only from a store that it knows as a
member and that has no introduced link: a peer that knows neither the token nor a store id learns no name.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final, TypeVar

from tandemmq.broker.replication.frames import content_of
from tandemmq.broker.replication.messages import (
    CHALLENGE_TYPE,
    PROTOCOL,
    Challenge,
    Hello,
    Message,
    Proof,
    Refused,
    name_of,
)

HANDSHAKE_SECONDS_MAX: Final = 5.0
#: Names of the sides in their proofs, and the text that is added to them in the introduction.
_DIALER: Final = b"dialer"
_LISTENER: Final = b"listener"
_INTRODUCED: Final = b", introduced"
#: Text with which an older version refuses CHALLENGE.
FORMER_REFUSAL: Final = f"a message of type {CHALLENGE_TYPE},"

T = TypeVar("T")


class Handshake:
    """A side of introduction and handshake. ``challenge``: the number for its CHALLENGE; None: there is no
    introduction, as with an older version. ``may_be_plain``: whether the listener accepts a HELLO of that store without
    introduction.

    ``admits`` returns why the member is refused, or None. It is called before this side's own proof, and when the other
    side has proved in the handshake that it knows the token. The second argument is true in the later call.

    The handshake is over when ``peer`` or ``refused`` is set: the proved HELLO of the other side, or why the link must
    end. In both cases, first send the messages that were returned. ``is_proved``: the other side has proved that it
    knows the token; ``is_introduced``: both sides did so before a HELLO. ``is_former``: the other side has a version
    that does not know CHALLENGE.
    """

    __slots__ = (
        "_admits",
        "_challenge",
        "_hello",
        "_is_dialer",
        "_is_plain",
        "_may_be_plain",
        "_their_challenge",
        "_theirs",
        "_token",
        "is_former",
        "is_introduced",
        "is_proved",
        "peer",
        "refused",
    )

    def __init__(
        self,
        hello: Hello,
        token: bytes,
        is_dialer: bool,
        admits: Callable[[Hello, bool], str | None],
        *,
        challenge: str | None,
        may_be_plain: Callable[[str], bool],
    ) -> None:
        self._hello = hello
        self._token = token
        self._is_dialer = is_dialer
        self._admits = admits
        self._challenge = challenge or ""
        self._is_plain = challenge is None
        self._may_be_plain = may_be_plain
        self._their_challenge: str | None = None
        self._theirs: Hello | None = None
        self.is_introduced = False
        self.is_proved = False
        self.is_former = False
        self.peer: Hello | None = None
        self.refused: str | None = None

    def start(self) -> list[Message]:
        """Return the first messages to send."""
        if not self._is_dialer:
            return []
        return [self._hello if self._is_plain else Challenge(self._challenge)]

    def receive(self, message: Message) -> list[Message]:
        """Return the messages to send in answer."""
        assert self.peer is None, "the handshake is not over"
        assert self.refused is None, "nor has it failed"
        if isinstance(message, Refused):
            is_first = not self._is_plain and self._their_challenge is None
            self.is_former = is_first and message.reason.startswith(FORMER_REFUSAL)
            self.refused = f"refused by the other side: {message.reason}"
            return []
        if not self.is_introduced and not self._is_plain:
            return self._introduce(message, self._their_challenge)
        if self._theirs is None and isinstance(message, Hello):
            return self._meet(message)
        if self._theirs is not None and isinstance(message, Proof):
            return self._check(message, self._theirs)
        return self._refuse(f"{name_of(message)} is not expected here")

    # ---- the introduction

    def _introduce(self, message: Message, theirs: str | None) -> list[Message]:
        if theirs is None and isinstance(message, Challenge):
            self._their_challenge = message.nonce
            return [self._prove_challenges(message.nonce) if self._is_dialer else Challenge(self._challenge)]
        if theirs is not None and isinstance(message, Proof):
            expected = self._proof_of_challenges(self._their_side, theirs)
            if not hmac.compare_digest(message.hmac, expected):  # prove: introduced-by-the-token
                return self._refuse("the security tokens differ")
            self.is_introduced = self.is_proved = True
            return [self._hello if self._is_dialer else self._prove_challenges(theirs)]
        if theirs is None and isinstance(message, Hello) and not self._is_dialer:
            # prove: no-name-before-the-proof "self._may_be_plain(message.store)" -> "True"
            if self._may_be_plain(message.store):
                self._is_plain = True
                return self._meet(message)
            return self._refuse("the token must be proved before HELLO")
        return self._refuse(f"{name_of(message)} is not expected here")

    def _prove_challenges(self, theirs: str) -> Proof:
        return Proof(self._proof_of_challenges(self._side, theirs))

    def _proof_of_challenges(self, side: bytes, theirs: str) -> str:
        nonces = self._dialer_first(self._challenge, theirs)
        return self._proof(side + _INTRODUCED, *map(bytes.fromhex, nonces))

    # ---- the handshake

    def _meet(self, theirs: Hello) -> list[Message]:
        wrong = self._wrong(theirs)
        if wrong is None and self._is_dialer:
            wrong = self._admits(theirs, False)  # prove: a-hello-is-no-proof "False" -> "True"
        if wrong is not None:
            return self._refuse(wrong)
        self._theirs = theirs
        return [self._prove(theirs)] if self._is_dialer else [self._hello]

    def _check(self, proof: Proof, theirs: Hello) -> list[Message]:
        expected = self._proof_of_hellos(self._their_side, theirs)
        if not hmac.compare_digest(proof.hmac, expected):  # prove: peer-knows-the-token
            return self._refuse("the security tokens differ")
        self.is_proved = True
        wrong = self._admits(theirs, True)
        if wrong is not None:
            return self._refuse(wrong)
        self.peer = theirs
        return [] if self._is_dialer else [self._prove(theirs)]

    def _wrong(self, theirs: Hello) -> str | None:
        """Return why these two members cannot be linked even with the right token; None: they can."""
        mine = self._hello
        if theirs.protocol != PROTOCOL:
            return f"protocol {theirs.protocol} is not supported here, only {PROTOCOL}"
        if theirs.broker != mine.broker:
            return f"this is broker {mine.broker!r}, not {theirs.broker!r}"
        if theirs.store == mine.store:  # prove: own-store-is-refused
            return f"both have store {mine.store}: one is a copy of the other, or the address leads back here"
        if theirs.set is not None and mine.set is not None and theirs.set != mine.set:  # prove: other-set-is-refused
            return f"this store belongs to set {mine.set}, not {theirs.set}"
        return None

    def _prove(self, theirs: Hello) -> Proof:
        return Proof(self._proof_of_hellos(self._side, theirs))

    def _proof_of_hellos(self, side: bytes, theirs: Hello) -> str:
        hellos = self._dialer_first(self._hello, theirs)
        nonces = (bytes.fromhex(hello.nonce) for hello in hellos)
        return self._proof(side, *nonces, *map(content_of, hellos))

    # ---- both

    @property
    def _side(self) -> bytes:
        return _DIALER if self._is_dialer else _LISTENER

    @property
    def _their_side(self) -> bytes:
        return _LISTENER if self._is_dialer else _DIALER

    def _dialer_first(self, mine: T, theirs: T) -> tuple[T, T]:
        return (mine, theirs) if self._is_dialer else (theirs, mine)

    def _proof(self, *parts: bytes) -> str:
        """Return the HMAC of the parts, each with its length before it."""
        covered = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._token, covered, "sha256").hex()

    def _refuse(self, reason: str) -> list[Message]:
        self.refused = reason
        return [Refused(reason)]
