"""Handshake of two members: mutual proof of the token, and refusals."""

# proves: a-hello-is-no-proof, other-set-is-refused, own-store-is-refused, peer-knows-the-token

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tandemmq.broker.replication.frames import FrameReader, content_of, encode
from tandemmq.broker.replication.handshake import Handshake
from tandemmq.broker.replication.messages import Hello, Message, Proof, Refused, Status
from tests.support.broker.replication_links import handshake_of

A = Hello("queue", None, "a1", "a" * 32, 3, "a1:4000", "1" * 64)
B = Hello("queue", "c" * 32, "b1", "b" * 32, 9, "b1:4000", "2" * 64)
TOKEN = b"secret"


def carried(messages: list[Message]) -> list[Message]:
    """Return the bytes as they arrive at the other side."""
    reader = FrameReader()
    reader.feed(b"".join(map(encode, messages)))
    found = []
    while (message := reader.next_message()) is not None:
        found.append(message)
    return found


def talk(
    dialer: Handshake, listener: Handshake, between: Callable[[Message], Message] = lambda message: message
) -> list[Message]:
    """Let both sides talk until neither has anything to send; return the messages."""
    said: list[Message] = []
    waiting = [(listener, message) for message in dialer.start()]
    assert listener.start() == []
    while waiting:
        to, message = waiting.pop(0)
        said.append(message)
        for arrived in carried([message]):
            if to.peer is None and to.refused is None:
                other = dialer if to is listener else listener
                waiting += [(other, answer) for answer in to.receive(between(arrived))]
    return said


def pair(mine: Hello = A, theirs: Hello = B, *, tokens: tuple[bytes, bytes] = (TOKEN, TOKEN)) -> list[Handshake]:
    return [handshake_of(mine, tokens[0], True), handshake_of(theirs, tokens[1], False)]


@pytest.mark.parametrize("token", [TOKEN, b""])
def test_two_members_who_know_the_token(token: bytes) -> None:
    dialer, listener = pair(tokens=(token, token))
    said = talk(dialer, listener)
    assert [type(message) for message in said] == [Hello, Hello, Proof, Proof]
    assert (dialer.peer, listener.peer) == (B, A)
    assert dialer.refused is listener.refused is None
    assert not [message for message in said if TOKEN in encode(message)], "the token is never sent"


def test_the_proof_as_the_document_says() -> None:
    dialer, listener = pair()
    said = talk(dialer, listener)
    for side, proof in zip((b"dialer", b"listener"), said[2:], strict=True):
        parts = [side, b"\x11" * 32, b"\x22" * 32, content_of(A), content_of(B)]
        covered = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        assert proof == Proof(hmac.new(TOKEN, covered, hashlib.sha256).hexdigest())


def test_a_peer_without_the_token_is_refused_and_learns_nothing() -> None:
    dialer, listener = pair(tokens=(b"wrong", TOKEN))
    said = talk(dialer, listener)
    assert [type(message) for message in said] == [Hello, Hello, Proof, Refused]
    assert listener.refused == "the security tokens differ"
    assert dialer.refused == "refused by the other side: the security tokens differ"
    assert dialer.peer is listener.peer is None


def test_a_listener_that_does_not_know_the_token_is_refused() -> None:
    """The dialer is refused although it accepts any listener."""
    dialer, listener = pair(tokens=(TOKEN, b"wrong"))
    [hello] = dialer.start()
    [answer] = listener.receive(hello)
    dialer.receive(answer)
    refusal = dialer.receive(listener._prove(A))
    assert refusal == [Refused("the security tokens differ")]
    assert dialer.peer is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"broker": "other"}, "this is broker 'queue', not 'other'"),
        ({"protocol": 2}, "protocol 2 is not supported here, only 1"),
        ({"set": "d" * 32}, f"this store belongs to set {'c' * 32}, not {'d' * 32}"),
        ({"store": B.store}, f"both have store {B.store}: one is a copy of the other"),
    ],
)
def test_a_peer_of_another_broker_or_set_is_refused(changed: dict[str, object], reason: str) -> None:
    dialer, listener = pair(replace(A, **changed))  # type: ignore[arg-type]
    said = talk(dialer, listener)
    assert [type(message) for message in said] == [Hello, Refused]
    assert listener.refused is not None
    assert listener.refused.startswith(reason)
    assert dialer.refused == f"refused by the other side: {listener.refused}"
    # and the other way round
    dialer, listener = pair(B, replace(A, **changed))  # type: ignore[arg-type]
    said = talk(dialer, listener)
    assert dialer.peer is listener.peer is None


@pytest.mark.parametrize("sets", [(None, None), (None, "c" * 32), ("c" * 32, None), ("c" * 32, "c" * 32)])
def test_a_peer_without_a_set_may_join(sets: tuple[str | None, str | None]) -> None:
    dialer, listener = pair(replace(A, set=sets[0]), replace(B, set=sets[1]))
    talk(dialer, listener)
    assert dialer.peer is not None
    assert listener.peer is not None


def test_a_hello_that_was_changed_on_its_way_is_noticed() -> None:
    for who in (A, B):
        dialer, listener = pair()

        def between(message: Message, who: Hello = who) -> Message:
            if message != who:
                return message
            changed = replace(who, address="elsewhere:1", as_sent=None)
            return carried([changed])[0]

        talk(dialer, listener, between)
        assert dialer.peer is listener.peer is None
        assert listener.refused == "the security tokens differ"


def test_keys_of_a_later_version_are_proved_too() -> None:
    said = {**json.loads(content_of(A)), "later": True}
    hello = replace(A, as_sent=json.dumps(said).encode())
    assert content_of(hello) != content_of(A)
    dialer, listener = handshake_of(hello, TOKEN, True), handshake_of(B, TOKEN, False)
    listener.receive(hello)
    [proof] = dialer.receive(B)
    assert isinstance(listener.receive(proof)[0], Proof)
    assert listener.peer == A


def test_a_proof_is_not_good_for_another_connection() -> None:
    _, _, proof, _ = talk(*pair())
    listener = handshake_of(replace(B, nonce="3" * 64), TOKEN, False)
    listener.receive(A)
    assert isinstance(listener.receive(proof)[0], Refused)


def test_a_proof_that_is_sent_back_is_none() -> None:
    """A peer without the token dials this node while this node dials it, and shows each side the other one's proof."""
    dialer = handshake_of(A, TOKEN, True)
    dialer.start()
    [proof] = dialer.receive(B)
    assert isinstance(dialer.receive(proof)[0], Refused)
    assert dialer.peer is None


def test_a_peer_that_is_not_admitted_gets_no_proof() -> None:
    """The listener asks whom it admits only when the token was proved."""
    asked: list[tuple[Hello, bool]] = []
    refuses = [False, True]

    def admits(hello: Hello, is_proved: bool) -> str | None:
        asked.append((hello, is_proved))
        return "restored from a backup" if is_proved in refuses else None

    talk(handshake_of(A, b"wrong", True), handshake_of(B, TOKEN, False, admits))
    assert asked == []
    listener = handshake_of(B, TOKEN, False, admits)
    said = talk(handshake_of(A, TOKEN, True), listener)
    assert [type(message) for message in said] == [Hello, Hello, Proof, Refused]
    assert (listener.refused, asked) == ("restored from a backup", [(A, True)])
    dialer, listener = handshake_of(A, TOKEN, True, admits), handshake_of(B, TOKEN, False)
    said = talk(dialer, listener)
    assert [type(message) for message in said] == [Hello, Hello, Refused]
    assert (dialer.refused, listener.peer) == ("restored from a backup", None)
    refuses.remove(False)
    asked.clear()
    dialer, listener = handshake_of(A, TOKEN, True, admits), handshake_of(B, TOKEN, False)
    assert isinstance(talk(dialer, listener)[-1], Refused)
    assert (dialer.refused, asked) == ("restored from a backup", [(B, False), (B, True)])


@pytest.mark.parametrize("wrong", [Status(), Proof("0" * 64)])
def test_other_messages_end_it(wrong: Message) -> None:
    listener = handshake_of(B, TOKEN, False)
    assert isinstance(listener.receive(wrong)[0], Refused)
    listener = handshake_of(B, TOKEN, False)
    listener.receive(A)
    assert isinstance(listener.receive(A if isinstance(wrong, Proof) else wrong)[0], Refused)
    assert listener.peer is None
