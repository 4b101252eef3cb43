"""Members of a set over real sockets."""

# proves: later-life-is-linked, an-older-life-is-heard

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.replication.frames import FrameReader, encode
from tandemmq.broker.replication.messages import (
    CHALLENGE_TYPE,
    Alive,
    Bytes,
    Challenge,
    Have,
    Hello,
    Message,
    Proof,
    Refused,
    Status,
)
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.tcp import THREAD_NAME, UNPROVED_MAX, Tls, join_address, split_address
from tests.support.broker.replication_links import (
    PATIENCE_SECONDS,
    Node,
    RawPeer,
    eventually,
    handshake_of,
    hello_of,
    store_id,
)
from tests.support.security.authority import Authority

Make = Callable[..., Node]
Peers = Callable[..., RawPeer]


@pytest.fixture
def make() -> Iterator[Make]:
    """Nodes whose networks end with the test."""
    nodes: list[Node] = []

    def made(number: int, **settings: Any) -> Node:
        node = Node(number, **settings)
        nodes.append(node)
        return node

    yield made
    for node in nodes:
        node.network.end()
        assert node.threads <= {THREAD_NAME}
        assert node.up == []


@pytest.fixture(autouse=True)
def _all_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def peers() -> Iterator[Peers]:
    made: list[RawPeer] = []

    def peer(*arguments: Any, **keywords: Any) -> RawPeer:
        made.append(RawPeer(*arguments, **keywords))
        return made[-1]

    yield peer
    for each in made:
        each.close()


def started(make: Make, *numbers: int, **settings: Any) -> list[Node]:
    nodes = [make(number, **settings) for number in numbers]
    for node in nodes:
        node.start()
    return nodes


def dialed(mine: Node, theirs: Node) -> tuple[Link, Link]:
    """Return both ends of the link that ``mine`` keeps to ``theirs``."""
    mine.network.dial({theirs.store: theirs.address})
    return mine.wait_link(theirs.store, is_ours=True), theirs.wait_link(mine.store, is_ours=False)


def test_two_members_talk_both_ways(make: Make) -> None:
    a, b = make(1), make(2)
    a.said = replace(a.said, life=7, set="c" * 32, address="a.example:4000")
    a.start(), b.start()
    ours, theirs = dialed(a, b)
    assert (ours.is_ours, theirs.is_ours) == (True, False)
    assert (theirs.member.store, theirs.member.node, theirs.member.life) == (a.store, "b1", 7)
    assert (theirs.member.set, theirs.member.address) == ("c" * 32, "a.example:4000")
    assert ours.member.node == "b2"
    sent = [Alive(1, number, 500) for number in range(500)]
    for message in sent:
        ours.send(message)
        theirs.send(message)
    eventually(lambda: b.received_on(theirs) == sent and a.received_on(ours) == sent)
    assert ours.wait_sent(1, 60)
    assert ours.unsent_bytes == 0


def test_each_side_keeps_a_link_of_its_own(make: Make) -> None:
    a, b = started(make, 1, 2)
    dialed(a, b)
    dialed(b, a)
    assert len(a.up) == len(b.up) == 2


def test_a_member_of_another_set_is_refused_until_it_is_of_ours(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    a, b = make(1), make(2)
    a.said, b.said = replace(a.said, set="a" * 32), replace(b.said, set="b" * 32)
    a.start(), b.start()
    a.network.dial({b.store: b.address})
    eventually(lambda: f"this store belongs to set {'b' * 32}, not {'a' * 32}" in caplog.text)
    assert a.events == b.events == []
    b.said = replace(b.said, set="a" * 32)
    a.wait_link(b.store, is_ours=True)


@pytest.mark.parametrize("why", ["the security tokens differ", "restored from a backup", "store .* was dialed"])
def test_a_peer_with_another_identity_is_refused(make: Make, caplog: pytest.LogCaptureFixture, why: str) -> None:
    """Each other reason: test_handshake.py."""
    a, b = make(1, token=b"one" if "token" in why else b"other"), make(2, token=b"other")
    b.refuses = why if "backup" in why else None
    a.start(), b.start()
    a.network.dial({store_id(3) if "dialed" in why else b.store: b.address})
    eventually(lambda: re.search(f"refused by the other side: {why}|ended before its handshake: {why}", caplog.text))
    assert a.events == b.events == []


# ---- reports of refusals, and their receivers


@pytest.mark.parametrize("first", ["HELLO of nobody", "HELLO of a member that is linked", "CHALLENGE", "a wrong proof"])
def test_a_listener_names_nothing_before_the_proof(make: Make, peers: Peers, first: str) -> None:
    # proves: no-name-before-the-proof, introduced-by-the-token
    a, b = started(make, 1, 2)
    dialed(b, a)
    a.known = {b.store}
    number = 2 if "linked" in first else 7
    peer = peers(a.address, hello_of(number), token=b"wrong", is_former=True)
    heard: list[Message] = []
    if first.startswith("HELLO"):
        peer.send(*peer.handshake.start())
    else:
        peer.send(Challenge("1" * 64))
        if first != "CHALLENGE":
            heard.append(peer.read())
            peer.send(Proof("0" * 64))
        else:
            peer.send(Status())
    with contextlib.suppress(EOFError):
        while True:
            heard.append(peer.read())
    assert heard
    assert {type(each) for each in heard} <= {Challenge, Refused}, "no HELLO"
    text = b"".join(map(encode, heard))
    assert not [each for each in (b"queue", b'"b1"', a.store.encode(), b"127.0.0.1") if each in text]


def test_a_dialer_names_nothing_before_the_proof(make: Make) -> None:
    """The peer has a member's former address, and does not know the token."""
    (a,) = started(make, 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        a.network.dial({store_id(2): join_address(*server.getsockname())})
        for answer in (Challenge("2" * 64), Status()):
            heard = FrameReader()
            connection, _ = server.accept()
            with connection:
                connection.sendall(encode(answer))
                connection.sendall(encode(Proof("0" * 64)))
                while data := connection.recv(1 << 16):
                    heard.feed(data)
            said = []
            while (message := heard.next_message()) is not None:
                said.append(message)
            assert Challenge in map(type, said)
            assert Hello not in map(type, said)


@pytest.mark.parametrize("token", [b"secret", b""])
def test_a_member_of_a_former_version_dials_and_is_dialed(make: Make, peers: Peers, token: bytes) -> None:
    """A set is upgraded node by node, and goes back node by node."""
    (a,) = started(make, 1, token=token)
    for is_again in (False, True):
        former = peers(a.address, hello_of(2), token=token, is_former=True).greet()
        link = a.wait_link(store_id(2), is_ours=False)
        with FormerListener(hello_of(2), token) as listener:
            a.network.dial({store_id(2): listener.address})
            a.wait_link(store_id(2), is_ours=True)
            assert listener.refused == 1, "the CHALLENGE"
        former.close()
        eventually(lambda link=link: link not in a.up)
        eventually(lambda: not a.up)
        if not is_again:  # it is upgraded, and then goes back
            b = make(2, token=token)
            b.start()
            dialed(a, b)
            dialed(b, a)
            b.network.end()
            eventually(lambda: not a.up)


class FormerListener:
    """A member that knows no CHALLENGE, for one link."""

    def __init__(self, hello: Hello, token: bytes) -> None:
        self.refused = 0
        self._hello, self._token = replace(hello, nonce="2" * 64), token
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = join_address(*self._server.getsockname())
        self._thread = threading.Thread(target=self._serve)
        self._done = threading.Event()

    def __enter__(self) -> FormerListener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        handshake = handshake_of(self._hello, self._token, False)
        while handshake.peer is None:
            connection, _ = self._server.accept()
            with connection:
                reader = FrameReader()
                while handshake.peer is None and (data := connection.recv(1 << 16)):
                    if data[8] == CHALLENGE_TYPE:
                        self.refused += 1
                        connection.sendall(encode(Refused("a message of type 4, which nobody knows")))
                        break
                    reader.feed(data)
                    while (message := reader.next_message()) is not None:
                        connection.sendall(b"".join(map(encode, handshake.receive(message))))
                if handshake.peer is not None:
                    self._done.wait()


# ---- links that come and go


def test_a_newer_link_takes_the_place_of_an_older_one(make: Make, peers: Peers) -> None:
    """The older link is half-open: the power of its host failed, without a notice."""
    (a,) = started(make, 1)
    first = peers(a.address, hello_of(2, life=4)).greet()
    older = a.wait_link(store_id(2), is_ours=False)
    second = peers(a.address, hello_of(2, life=4)).greet()
    eventually(lambda: len(a.events) == 3)
    newer = a.up[0]
    assert a.events == [("up", older, ""), ("down", older, "a newer link takes its place"), ("up", newer, "")]
    older.send(Status())
    newer.send(Alive(1, 1, 500))
    assert second.read() == Alive(1, 1, 500)
    with pytest.raises(EOFError):
        first.read()


def test_an_earlier_life_is_refused_and_a_later_one_takes_over(make: Make, peers: Peers) -> None:
    (a,) = started(make, 1)
    peers(a.address, hello_of(2, life=4)).greet()
    with pytest.raises(AssertionError, match=r"life 4 of store .* is connected; this is life 3"):
        peers(a.address, hello_of(2, life=3)).greet()
    assert a.heard == [("b2", 4), ("b2", 3)], "it is known that the earlier one lives"
    peers(a.address, hello_of(3, life=3)).greet()
    eventually(lambda: len(a.events) == 2)
    peers(a.address, hello_of(2, life=5)).greet()
    eventually(lambda: len(a.events) == 4)
    assert {(link.member.node, link.member.life) for link in a.up} == {("b2", 5), ("b3", 3)}


def test_the_link_of_ours_to_an_earlier_life_ends_when_a_later_one_comes(make: Make, peers: Peers) -> None:
    a, b = started(make, 1, 2)
    ours, _ = dialed(a, b)
    peers(a.address, hello_of(2, life=2)).greet()
    eventually(lambda: ("down", ours, "a newer link takes its place") in a.events)


def test_a_link_that_was_closed_is_down_at_both_ends_and_dialed_again(make: Make) -> None:
    a, b = started(make, 1, 2)
    ours, theirs = dialed(a, b)
    ours.close("enough")
    ours.close("twice")
    ours.send(Status())
    assert ours.unsent_bytes == 0
    assert not ours.wait_sent(1, 60)
    eventually(lambda: ("down", ours, "enough") in a.events)
    eventually(lambda: ("down", theirs, "the other side ended the connection") in b.events)
    again = eventually(lambda: a.link(b.store, is_ours=True))
    assert again is not ours
    assert b.messages == []


def test_messages_sent_before_the_end_arrive(make: Make) -> None:
    a, b = started(make, 1, 2)
    ours, theirs = dialed(a, b)
    ours.send(Alive(5, 5, 500))
    a.network.end()
    eventually(lambda: [kind for kind, _, _ in b.events] == ["up", "down"])
    assert b.received_on(theirs) == [Alive(5, 5, 500)]
    assert a.events[-1] == ("down", ours, "this node ends its network")


def test_a_store_that_is_no_longer_dialed_is_not_linked(make: Make) -> None:
    a, b = started(make, 1, 2)
    ours, _ = dialed(a, b)
    a.network.dial({b.store: b.address})
    a.network.dial({})
    eventually(lambda: ("down", ours, "it is no longer dialed") in a.events)
    eventually(lambda: b.up == [])
    assert a.up == []


def test_a_store_that_is_not_there_yet_is_dialed_until_it_is(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    a, b = make(1), make(2, port=port)
    a.start()
    a.network.dial({b.store: f"127.0.0.1:{port}"})
    eventually(lambda: a.network._targets[b.store].failures > 2 if b.store in a.network._targets else False)
    assert b.start() == f"127.0.0.1:{port}"
    a.wait_link(b.store, is_ours=True)


def test_a_port_that_changes(make: Make) -> None:
    a, b, later = make(1), make(2), make(2)
    a.start(), b.start()
    ours, _ = dialed(a, b)
    b.network.end()
    eventually(lambda: ("down", ours, "the other side ended the connection") in a.events)
    later.said = replace(later.said, life=2)
    later.start()
    assert later.address != b.address
    ours, _ = dialed(a, later)
    assert ours.member.life == 2


def test_a_changed_address_keeps_the_link_until_there_is_another(make: Make) -> None:
    a, b = started(make, 1, 2)
    ours, _ = dialed(a, b)
    a.network.dial({b.store: "127.0.0.1:1"})
    eventually(lambda: a.network._targets[b.store].failures > 1)
    assert a.up == [ours]
    a.network.dial({b.store: b.address.replace("127.0.0.1", "localhost")})
    eventually(lambda: ("down", ours, "a newer link takes its place") in a.events)
    assert len(a.up) == 1


def test_port_0_and_a_port_that_is_taken(make: Make) -> None:
    a = make(1, hostname="a.example")
    host, port = split_address(a.start())
    assert host == "a.example"
    assert port > 0
    with pytest.raises(OSError, match="in use"):
        make(2, port=port).start()


def test_names_are_resolved_and_an_invalid_one_is_reported(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    a, b = started(make, 1, 2)
    port = split_address(b.address)[1]
    a.network.dial({b.store: f"localhost:{port}", store_id(3): "no-such-host.invalid:1", store_id(4): "nonsense"})
    a.wait_link(b.store, is_ours=True)
    eventually(lambda: "no-such-host.invalid cannot be resolved" in caplog.text)
    eventually(lambda: "'nonsense' is not host:port" in caplog.text)


@pytest.mark.parametrize(
    ("address", "parts"), [("b1:4000", ("b1", 4000)), ("[::1]:5", ("::1", 5)), ("10.0.0.1:65535", ("10.0.0.1", 65535))]
)
def test_an_address_and_its_parts(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize("address", ["", "b1", ":1", "b1:", "b1:0", "b1:65536", "b1:x", "b1:-1", "b1:²"])
def test_an_invalid_address(address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(address)


def test_over_ipv6(make: Make) -> None:
    a, b = make(1), make(2, host="::1", hostname="::1")
    a.start(), b.start()
    assert b.address.startswith("[::1]:")
    dialed(a, b)


# ---- peers that do not behave


def test_a_silent_incoming_peer_is_disconnected(make: Make, peers: Peers) -> None:
    (a,) = started(make, 1, handshake_seconds_max=0.1)
    peer = peers(a.address, hello_of(2))
    with pytest.raises(EOFError):
        peer.read()
    assert a.events == []


def test_a_silent_listener_is_disconnected(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    (a,) = started(make, 1, handshake_seconds_max=0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        a.network.dial({store_id(2): join_address(*silent.getsockname())})
        eventually(lambda: "no handshake in time" in caplog.text)


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, encode(Status()), encode(Alive(1, 1, 500))]
)
def test_a_peer_of_another_protocol_is_refused(make: Make, peers: Peers, noise: bytes) -> None:
    (a,) = started(make, 1)
    peer = peers(a.address, hello_of(2))
    peer.sock.sendall(noise)
    assert isinstance(peer.read(), Refused)
    assert a.events == []


@pytest.mark.parametrize(
    "message", [struct.pack(">II", 1 << 30, 0), encode(hello_of(2)), encode(Refused("I am tired")), b"\0" * 9]
)
def test_a_member_that_sends_an_invalid_message_is_down(make: Make, peers: Peers, message: bytes) -> None:
    (a,) = started(make, 1)
    peer = peers(a.address, hello_of(2)).greet()
    link = a.wait_link(store_id(2), is_ours=False)
    peer.sock.sendall(encode(Alive(1, 1, 500)) + message)
    eventually(lambda: a.up == [])
    assert a.received_on(link) == [Alive(1, 1, 500)]


def test_a_message_that_cannot_be_handled_ends_that_link_alone(make: Make, peers: Peers) -> None:
    (a,) = started(make, 1)

    def fails(link: Link, message: Message) -> None:
        if message == Status():
            raise RuntimeError("a bug")

    a.on_message = fails
    one, other = (peers(a.address, hello_of(number)).greet() for number in (2, 3))
    link = a.wait_link(store_id(2), is_ours=False)
    kept = a.wait_link(store_id(3), is_ours=False)
    one.send(Status())
    eventually(lambda: ("down", link, "a message could not be handled: RuntimeError('a bug')") in a.events)
    other.send(Alive(1, 1, 500))
    eventually(lambda: a.received_on(kept) == [Alive(1, 1, 500)])


def test_too_many_who_prove_nothing(make: Make, peers: Peers) -> None:
    (a,) = started(make, 1)
    silent = [peers(a.address, hello_of(2)) for _ in range(UNPROVED_MAX)]
    peers(a.address, hello_of(2)).greet()
    with pytest.raises(EOFError):
        silent[0].read()


def test_a_host_that_is_gone_is_noticed_by_the_kernel(make: Make) -> None:
    a, b = started(make, 1, 2)
    for link in dialed(a, b):
        sock = link.sock  # type: ignore[attr-defined]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 3
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_link_may_be_closed_by_who_is_told_of_it(make: Make, peers: Peers) -> None:
    (a,) = started(make, 1)
    a.on_message = lambda link, message: link.close("I have heard enough")
    peer = peers(a.address, hello_of(2)).greet()
    peer.send(Alive(1, 1, 500), Alive(1, 2, 500), Alive(1, 3, 500))
    eventually(lambda: [reason for kind, _, reason in a.events if kind == "down"] == ["I have heard enough"])
    assert len(a.messages) == 1


# ---- much to send

CHUNK = 1 << 20


def chunks(count: int) -> list[Bytes]:
    return [Bytes(3, 3, n * CHUNK, 0, 1 << 25, os.urandom(8) * (CHUNK // 8)) for n in range(count)]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return tls_of(Authority(tmp_path_factory.mktemp("tls"), "root"))


def tls_of(authority: Authority) -> Tls:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.root))
    server.load_cert_chain(str(authority.certificate("broker")))
    return Tls(server, ssl.create_default_context(cafile=str(authority.root)))


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_peer_that_does_not_read(make: Make, peers: Peers, tls: Tls, is_encrypted: bool) -> None:
    (a,) = started(make, 1, tls=tls if is_encrypted else None)
    peer = peers(a.address, hello_of(2), tls=tls.client if is_encrypted else None).greet()
    link = a.wait_link(store_id(2), is_ours=False)
    sent = chunks(24)
    for message in sent:
        link.send(message)
    waits = link.unsent_bytes
    assert waits > CHUNK
    assert not link.wait_sent(1, 0.05)
    assert link.wait_sent(waits + 1, 0)
    link.send(Alive(3, 1, 500))
    peer.send(Alive(3, 2, 500))  # it is read all the same
    eventually(lambda: a.received_on(link) == [Alive(3, 2, 500)])
    found = [peer.read() for _ in range(12)]
    assert link.wait_sent(link.unsent_bytes + 1, 60)
    found += [peer.read() for _ in range(13)]
    assert found == [*sent, Alive(3, 1, 500)]
    assert link.wait_sent(1, 60)
    assert link.unsent_bytes == 0


@pytest.mark.parametrize("reads", [True, False])
def test_a_wait_for_a_slow_peer_ends_when_it_has_read_or_disconnected(make: Make, peers: Peers, reads: bool) -> None:
    """The peer sends nothing meanwhile: only its socket shows that it has read something."""
    (a,) = started(make, 1)
    peer = peers(a.address, hello_of(2)).greet()
    link = a.wait_link(store_id(2), is_ours=False)
    sent = chunks(24)
    for message in sent:
        link.send(message)
    answers: list[bool] = []
    threading.Thread(target=lambda: answers.append(link.wait_sent(1, 3_600)), daemon=True).start()
    eventually(lambda: link._is_waited_for)  # type: ignore[attr-defined]
    if reads:
        assert [peer.read() for _ in sent] == sent
    else:
        peer.close()
    eventually(lambda: answers == [reads])
    if not reads:
        eventually(lambda: a.up == [])
        assert link.unsent_bytes == 0


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_many_threads_send_much_both_ways(make: Make, tls: Tls, is_encrypted: bool) -> None:
    a, b = started(make, 1, 2, tls=tls if is_encrypted else None)
    ours, theirs = dialed(a, b)

    def send(link: Link, epoch: int) -> None:
        for number in range(60):
            size = (10, 100_000)[number % 2]
            link.send(Bytes(epoch, 1, number, 0, 1, bytes([epoch]) * size))
            if number % 20 == 0:
                assert link.wait_sent(1 << 20, 60)

    senders = [threading.Thread(target=send, args=(link, epoch)) for link in (ours, theirs) for epoch in (1, 2, 3)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    for node, link in ((a, ours), (b, theirs)):
        eventually(lambda node=node, link=link: len(node.received_on(link)) == 180)
        for epoch in (1, 2, 3):
            mine: list[Any] = [m for m in node.received_on(link) if m.epoch == epoch]  # type: ignore[union-attr]
            assert [message.offset for message in mine] == list(range(60))
            assert all(set(message.data) == {epoch} for message in mine)


def test_a_batch_goes_to_several_members_as_it_is(make: Make, peers: Peers) -> None:
    (a,) = started(make, 1)
    others = [peers(a.address, hello_of(number)).greet() for number in (2, 3, 4, 5)]
    eventually(lambda: len(a.up) == 4)
    [batch] = chunks(1)
    for link in a.up:
        link.send(batch)
    for peer in others:
        assert peer.read() == batch
    have = Have(3, 3, CHUNK, "disk", 1 << 40)
    for peer in others:
        peer.send(have)
    eventually(lambda: [message for _, message in a.messages] == [have] * 4)


# ---- TLS


def in_small_pieces(address: str) -> str:
    """The address of a relay that passes on what comes from who dials it a few bytes at a time."""
    server = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket, count: int) -> None:
        while data := source.recv(1 << 16):
            for at in range(0, len(data), count):
                target.sendall(data[at : at + count])
        target.close()

    def relay() -> None:
        with server:
            near, _ = server.accept()
        far = socket.create_connection(split_address(address))
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=carry, args=(far, near, 1 << 16), daemon=True).start()
        carry(near, far, 7)

    threading.Thread(target=relay, daemon=True).start()
    return join_address(*server.getsockname())


def test_with_tls_in_small_pieces(make: Make, tls: Tls) -> None:
    a, b = started(make, 1, 2, tls=tls)
    a.network.dial({b.store: in_small_pieces(b.address)})
    ours, theirs = a.wait_link(b.store, is_ours=True), b.wait_link(a.store, is_ours=False)
    for number in range(20):
        ours.send(Alive(1, number, 500))
    eventually(lambda: b.received_on(theirs) == [Alive(1, number, 500) for number in range(20)])
    assert b.up == [theirs]


def test_a_certificate_of_somebody_else_is_refused(
    make: Make, tls: Tls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = make(1, tls=tls), make(2, tls=tls_of(Authority(tmp_path, "other")))
    a.start(), b.start()
    a.network.dial({b.store: b.address})
    eventually(lambda: "cannot be reached: TLS: self" in caplog.text)
    assert a.events == b.events == []


@pytest.mark.parametrize("who", [1, 2])
def test_a_peer_without_tls_is_refused(make: Make, tls: Tls, caplog: pytest.LogCaptureFixture, who: int) -> None:
    a, b = (make(number, tls=tls if number == who else None, handshake_seconds_max=0.3) for number in (1, 2))
    a.start(), b.start()
    a.network.dial({b.store: b.address})
    eventually(lambda: "ended before its handshake" in caplog.text)
    assert a.events == b.events == []


def test_garbage_is_a_line_of_each_kind_and_not_of_each_connection(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (node,) = started(make, 1)
    host, port = split_address(node.address)
    caplog.clear()
    for garbage in (b"\x16\x03\x01" + b"\0" * 300, b"\xff" * 300, b"\0\0\0\1\0\0\0\0\0", b"") * 20:
        with socket.create_connection((host, port), 20) as client, contextlib.suppress(ConnectionError):
            client.sendall(garbage)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
    assert 0 < len(caplog.records) <= 4
    assert not any(record.exc_info for record in caplog.records)
    assert node.events == []


def test_of_members_that_are_refused_each_host_has_a_line(
    make: Make, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    """Two may have copies of one disk, and the operator has to find both."""
    (node,) = started(make, 1)
    node.refuses = "restored from a backup"
    for host in ("127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.3", "127.0.0.4"):
        with pytest.raises(AssertionError, match="restored"):
            peers(node.address, hello_of(2), source=host).greet()
    eventually(lambda: "127.0.0.4" in caplog.text)
    assert re.findall(r"connection from (127.0.0..)", caplog.text) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


# ---- the end


def test_the_end_is_the_end(make: Make, peers: Peers) -> None:
    a = make(1)
    address = a.start()
    peer = peers(a.address, hello_of(2)).greet()
    silent = peers(a.address, hello_of(3))
    a.network.dial({store_id(4): "127.0.0.1:1", store_id(5): "no-such-host.invalid:1"})
    a.network.end()
    for each in (peer, silent):
        with pytest.raises((EOFError, ConnectionError)):
            each.read()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(split_address(address), timeout=5)
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}
    a.network.dial({})
    assert isinstance(a.hello(), Hello)
