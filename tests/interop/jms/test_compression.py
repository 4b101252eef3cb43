"""Bodies that clients compress pass as they are."""

from __future__ import annotations

import base64

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = pytest.mark.service

BODIES = {
    "text": "a long text " * 500,
    "bytes": base64.b64encode(bytes(range(256)) * 20).decode(),
    "map": {"a": "x" * 1000, "b": 1, "c": {"long": 1 << 40}},
    "stream": ["x" * 1000, 1, {"short": 2}, True],
    "object": "a serialized string " * 100,
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_compressed_body_arrives_as_it_was(jvm: Jvm, broker: Peer, name: str, kind: str) -> None:
    connection = jvm.connect(broker.url("jms.useCompression=true"))
    session = connection.session()
    session.send(f"queue://{name}", BODIES[kind], kind=kind, properties={"n": 1})
    plain = jvm.connect(broker.url())
    message = plain.session().consumer(f"queue://{name}", selector="n = 1").receive()
    assert (message["kind"], message["body"], message["compressed"]) == (kind, BODIES[kind], True)
    connection.close()
    plain.close()
