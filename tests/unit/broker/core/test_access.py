"""Clients of this machine, and the broker's answers without configured security."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess, Operation, is_for_everybody, refused_operation
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination, DestinationKind


@pytest.mark.parametrize(
    ("peer", "is_loopback"),
    [
        ("127.0.0.1:5", True), ("127.9.9.9:5", True), ("[::1]:5", True), ("[::ffff:127.0.0.1]:5", True),
        ("[fe80::1%lo]:5", False), ("10.0.0.1:5", False), ("[::ffff:10.0.0.1]:5", False), ("?", False),
        ("localhost:5", False),
    ],
)  # fmt: skip
def test_only_addresses_of_this_machine_are_loopback(peer: str, is_loopback: bool) -> None:
    assert Credentials(peer).is_loopback is is_loopback


def test_a_passcode_is_not_shown() -> None:
    assert "hunter2" not in repr(Credentials("h:1", "a", "hunter2"))


def test_without_security_this_machine_is_served_and_others_are_not() -> None:
    answers: list[Principal | ClientError] = []
    OpenAccess().connect(Credentials("127.0.0.1:1", "alice"), answers.append)
    OpenAccess().connect(Credentials("10.0.0.1:1", "alice"), answers.append)
    OpenAccess(is_everywhere=True).connect(Credentials("10.0.0.1:1"), answers.append)
    here, there, everywhere = answers
    assert here == Principal("alice", is_proved=False)
    assert isinstance(there, ClientError)
    assert (there.kind, there.is_fatal) == (ErrorKind.SECURITY, True)
    assert there.message == "User name [alice] or password is invalid."
    assert everywhere == Principal("anonymous", is_proved=False)


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Operation.READ, "read from"), (Operation.WRITE, "write to"), (Operation.CREATE, "create"),
        (Operation.REMOVE, "remove"),
    ],
)  # fmt: skip
def test_refusals_have_activemqs_words(operation: Operation, words: str) -> None:
    error = refused_operation(Principal("bob"), operation, Destination(DestinationKind.QUEUE, "A"))
    assert error.message == f"User bob is not authorized to {words}: queue://A"
    assert (error.kind, error.is_fatal) == (ErrorKind.SECURITY, False)


def test_advisories_and_temporary_destinations_are_for_everybody() -> None:
    assert is_for_everybody(Operation.READ, Destination(DestinationKind.TOPIC, "ActiveMQ.Advisory.TempQueue"))
    assert is_for_everybody(Operation.READ, Destination(DestinationKind.TEMP_QUEUE, "ID:x:1:1"))
    assert not is_for_everybody(Operation.READ, Destination(DestinationKind.QUEUE, "ActiveMQ.Advisory.X"))
    assert not is_for_everybody(Operation.READ, Destination(DestinationKind.TOPIC, "ActiveMQ.AdvisoryX"))
