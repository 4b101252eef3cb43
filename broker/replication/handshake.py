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

A proof is HMAC-SHA-256 by the token over the side's name and what both sides sent, each part with its length before it.
In the introduction that is both CHALLENGEs, which are random numbers; in the handshake both nonces and both HELLOs as
sent. The names of the sides differ, so no proof is good for both, and none can be replayed or sent back to its author;
a HELLO cannot be changed on its way. The listener proves nothing to a dialer that has not proved itself. Only TLS
protects what comes after the handshake.

An older version does not know CHALLENGE and refuses it by its type. The dialer then begins with HELLO at its next
attempt; so a set can be upgraded node by node. A listener accepts such a HELLO only from a store that it knows as a
member and that has no introduced link: a peer that knows neither the token nor a store id learns no name.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

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
_DIALER: Final = b"dialer"
_LISTENER: Final = b"listener"
_DIALER_INTRODUCED: Final = b"dialer, introduced"
_LISTENER_INTRODUCED: Final = b"listener, introduced"
#: Text with which an older version refuses CHALLENGE.
FORMER_REFUSAL: Final = f"a message of type {CHALLENGE_TYPE},"


def _proof(token: bytes, *parts: bytes) -> str:
    """Return the HMAC of the parts, each with its length before it."""
    covered = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(token, covered, "sha256").hex()


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
        nonces = (bytes.fromhex(hello.nonce) for hello in hellos)
        return _proof(self._token, side, *nonces, *map(content_of, hellos))

    def _refuse(self, reason: str) -> list[Message]:
        self.refused = reason
        return [Refused(reason)]


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
            return [self._proof(_DIALER_INTRODUCED) if self._is_dialer else Challenge(self._nonce)]
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
        expected = self._proof(_LISTENER_INTRODUCED if self._is_dialer else _DIALER_INTRODUCED)
        if not hmac.compare_digest(proof.hmac, expected.hmac):  # prove: introduced-by-the-token
            return self._refuse("the security tokens differ")
        self.is_introduced = True
        return self._handshake.start() if self._is_dialer else [self._proof(_LISTENER_INTRODUCED)]

    def _hand_on(self, message: Message) -> list[Message]:
        answers = self._handshake.receive(message)
        self.refused = self._handshake.refused
        return answers

    def _proof(self, side: bytes) -> Proof:
        assert self._theirs is not None, "both challenges are there"
        nonces = (self._nonce, self._theirs) if self._is_dialer else (self._theirs, self._nonce)
        return Proof(_proof(self._token, side, *map(bytes.fromhex, nonces)))

    def _refuse(self, reason: str) -> list[Message]:
        self.refused = reason
        return [Refused(reason)]
