"""Requests for a WebSocket are answered as in RFC 6455. Other requests get an HTTP error with the reason."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker.protocols.websocket.upgrade import (
    HEADERS_MAX,
    REQUEST_BYTES_MAX,
    Refusal,
    Request,
    RequestParser,
    accepted,
)
from tests.support.broker.websocket_peer import request

# RFC 6455, 1.2 and 1.3.
OF_THE_RFC = (
    b"GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://example.com\r\n"
    b"Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def status_of(data: bytes) -> int:
    with pytest.raises(Refusal) as refusal:
        RequestParser().feed(data)
    answer = refusal.value.answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % refusal.value.status)
    assert b"Content-Length: %d" % len(body) in head
    return int(refusal.value.status)


def test_the_request_of_the_rfc_is_answered_as_there() -> None:
    found = RequestParser().feed(OF_THE_RFC)
    assert found == Request(
        "server.example.com", "http://example.com", ("chat", "superchat"), "dGhlIHNhbXBsZSBub25jZQ=="
    )
    answer = accepted(found, found.choose(["superchat"]))
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert b"\r\nSec-WebSocket-Protocol: superchat\r\n" in answer
    assert b"Sec-WebSocket-Protocol" not in accepted(found, None)


@given(st.lists(st.integers(0, len(OF_THE_RFC)), max_size=6), st.binary(max_size=30))
def test_a_request_may_come_in_pieces_with_something_behind_it(cuts: list[int], behind: bytes) -> None:
    cuts = [0, *sorted(cuts)]
    pieces = [OF_THE_RFC[start:end] for start, end in zip(cuts, [*cuts[1:], None], strict=True)]
    pieces = [piece for piece in pieces if piece]
    parser = RequestParser()
    answers = [parser.feed(piece) for piece in [*pieces[:-1], pieces[-1] + behind]]
    assert [answer is None for answer in answers] == [True] * (len(pieces) - 1) + [False]
    assert parser.rest == behind


def test_the_highest_version_that_is_offered_is_taken() -> None:
    known = ["v12.stomp", "v11.stomp", "mqtt"]
    found = RequestParser().feed(
        request(more="Sec-WebSocket-Protocol: x, v11.stomp\r\nSec-WebSocket-Protocol: v12.stomp\r\n")
    )
    assert found is not None
    assert found.protocols == ("x", "v11.stomp", "v12.stomp")
    assert found.choose(known) == "v12.stomp"
    assert found._replace(protocols=("x", "mqtt")).choose(known) == "mqtt"
    assert found._replace(protocols=()).choose(known) is None
    with pytest.raises(Refusal, match="BAD_REQUEST"):
        found._replace(protocols=("wamp",)).choose(known)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"CONNECT\naccept-version:1.2\n\n\0", 400, id="STOMP"),
        pytest.param(b"\x16\x03\x01\x02\x00", 400, id="TLS"),
        pytest.param(b"POST / HTTP/1.1\r\n\r\n", 400, id="another method"),
        pytest.param(b"GET /\r\n\r\n", 400, id="no HTTP"),
        pytest.param(OF_THE_RFC.replace(b"HTTP/1.1", b"HTTP/1.0"), 505, id="HTTP/1.0"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 426, id="a page is asked for"),
        pytest.param(OF_THE_RFC.replace(b"Version: 13", b"Version: 8"), 426, id="an old version"),
        pytest.param(OF_THE_RFC.replace(b"Host: server.example.com\r\n", b""), 400, id="no host"),
        pytest.param(request(more="Host: b\r\n"), 400, id="two hosts"),
        pytest.param(request(more="Origin: a\r\nOrigin: b\r\n"), 400, id="two origins"),
        pytest.param(request(more="Content-Length: 1\r\n"), 400, id="a body"),
        pytest.param(request(more="Transfer-Encoding: chunked\r\n"), 400, id="a body in chunks"),
        pytest.param(request(more=" folded\r\n"), 400, id="a folded header"),
        pytest.param(request(more="no colon\r\n"), 400, id="no colon"),
        pytest.param(request(more="X-Y : a\r\n"), 400, id="a blank in a name"),
        pytest.param(request(more="X: a\nY: b\r\n"), 400, id="a bare line feed"),
        pytest.param(OF_THE_RFC.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"short"), 400, id="a short key"),
        pytest.param(request(more="X: y\r\n" * HEADERS_MAX), 431, id="many headers"),
        pytest.param(b"GET /" + b"x" * REQUEST_BYTES_MAX, 431, id="a long line"),
    ],
)
def test_an_invalid_request_is_refused(data: bytes, status: int) -> None:
    assert status_of(data) == status


def test_a_refusal_for_the_version_names_ours() -> None:
    with pytest.raises(Refusal) as refusal:
        RequestParser().feed(OF_THE_RFC.replace(b"Version: 13", b"Version: 8"))
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in refusal.value.answer


@given(st.binary(max_size=400))
def test_any_bytes_are_waited_for_or_refused(data: bytes) -> None:
    for start in (b"", b"GET / HTTP/1.1\r\n"):
        with suppress(Refusal):
            assert RequestParser().feed(start + data) is None
