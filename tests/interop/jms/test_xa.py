"""XA: two phases, from the resource's side."""

from __future__ import annotations

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsError, JmsSession

pytestmark = [pytest.mark.service, pytest.mark.promise("xa-branches")]

XA_OK, XA_RDONLY = 0, 3
XAER_NOTA = -4
XAER_PROTO = -6
XAER_RMFAIL = -7


def worked(session: JmsSession, xid: str, queue: str, *bodies: str) -> None:
    session.xa("start", xid)
    session.send(queue, *bodies)
    session.xa("end", xid)


def test_two_phases(connect: Connect, queue: str, name: str) -> None:
    connection = connect(xa=True)
    session = connection.session("XA")
    consumer = connect().session().consumer(queue)
    worked(session, name, queue, "a", "b")
    assert session.xa("prepare", name) == XA_OK
    assert consumer.take() is None
    assert name in session.xa("recover")
    session.xa("commit", name)
    assert consumer.bodies(2) == ["a", "b"]
    assert name not in session.xa("recover")


def test_one_phase(connect: Connect, queue: str, name: str) -> None:
    connection = connect(xa=True)
    session = connection.session("XA")
    worked(session, name, queue, "a")
    session.xa("commitOnePhase", name)
    assert connect().session().consumer(queue).receive().body == "a"


@pytest.mark.parametrize("is_prepared", [False, True])
def test_rollback_undoes_sends_and_receives(connect: Connect, queue: str, name: str, is_prepared: bool) -> None:
    plain = connect()
    plain.session().send(queue, "kept")
    connection = connect(xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    consumer = session.consumer(queue)
    assert consumer.receive().body == "kept"
    session.send(f"queue://{name}.OUT", "never")
    session.xa("end", name)
    if is_prepared:
        session.xa("prepare", name)
    session.xa("rollback", name)
    connection.close()
    assert plain.session().consumer(queue).receive().body == "kept"
    assert plain.session().consumer(f"queue://{name}.OUT").take() is None


def test_a_prepared_transaction_holds_what_it_received(connect: Connect, queue: str, name: str) -> None:
    plain = connect()
    plain.session().send(queue, "held", "free")
    connection = connect(xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    consumer = session.consumer(f"{queue}?consumer.prefetchSize=1")
    assert consumer.receive().body == "held"
    session.xa("end", name)
    session.xa("prepare", name)
    connection.close()
    consumer = plain.session().consumer(queue)
    assert consumer.rest() == ["free"]

    # Another connection decides.
    deciding = connect(xa=True).session("XA")
    assert name in deciding.xa("recover")
    deciding.xa("rollback", name)
    assert consumer.receive().body == "held"
    assert name not in deciding.xa("recover")


def test_what_was_not_prepared_ends_with_its_connection(connect: Connect, queue: str, name: str) -> None:
    connection = connect(xa=True)
    worked(connection.session("XA"), name, queue, "never")
    connection.close()
    other = connect(xa=True)
    assert name not in other.session("XA").xa("recover")
    with pytest.raises(JmsError) as raised:
        other.session("XA").xa("commit", name)
    assert (raised.value.kind, raised.value.code) == ("XAException", XAER_NOTA)
    assert connect().session().consumer(queue).take() is None


def test_prepare_without_work_is_read_only(connect: Connect, name: str) -> None:
    connection = connect(xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    session.xa("end", name)
    assert session.xa("prepare", name) == XA_RDONLY
    assert name not in session.xa("recover")


def test_unknown_transactions_are_told(connect: Connect, name: str) -> None:
    connection = connect(xa=True)
    session = connection.session("XA")
    for verb in ("commit", "prepare", "rollback"):
        with pytest.raises(JmsError) as raised:
            session.xa(verb, f"{name}-never")
        assert raised.value.kind == "XAException"
        # ActiveMQ gives prepare no code, and its client makes XAER_RMFAIL of that.
        assert raised.value.code == XAER_NOTA or (verb == "prepare" and raised.value.code == XAER_RMFAIL)


def test_commit_of_two_phases_needs_the_first(connect: Connect, queue: str, name: str) -> None:
    connection = connect(xa=True)
    session = connection.session("XA")
    worked(session, name, queue, "a")
    with pytest.raises(JmsError) as raised:
        session.xa("commit", name)
    assert (raised.value.kind, raised.value.code) == ("XAException", XAER_PROTO)


def test_a_transaction_may_pause_and_go_on(connect: Connect, queue: str, name: str) -> None:
    connection = connect(xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    session.send(queue, "a")
    session.xa("suspend", name)
    session.xa("resume", name)
    session.send(queue, "b")
    session.xa("end", name)
    session.xa("prepare", name)
    session.xa("commit", name)
    assert connect().session().consumer(queue).bodies(2) == ["a", "b"]
