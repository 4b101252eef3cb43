"""XA: two phases, from the resource's side."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import JmsError, JmsSession, Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("xa-branches")]

XA_OK, XA_RDONLY = 0, 3
XAER_NOTA = -4
XAER_PROTO = -6
XAER_RMFAIL = -7


def worked(session: JmsSession, xid: str, queue: str, *bodies: str) -> None:
    session.xa("start", xid)
    session.send(queue, *bodies)
    session.xa("end", xid)


def test_two_phases(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    consumer = jvm.connect(broker.url()).session().consumer(f"queue://{name}")
    worked(session, name, f"queue://{name}", "a", "b")
    assert session.xa("prepare", name) == XA_OK
    assert consumer.take() is None
    assert name in session.xa("recover")
    session.xa("commit", name)
    assert consumer.bodies(2) == ["a", "b"]
    assert name not in session.xa("recover")
    connection.close()


def test_one_phase(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    worked(session, name, f"queue://{name}", "a")
    session.xa("commitOnePhase", name)
    assert jvm.connect(broker.url()).session().consumer(f"queue://{name}").receive().body == "a"
    connection.close()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_rollback_undoes_sends_and_receives(jvm: Jvm, broker: Peer, name: str, is_prepared: bool) -> None:
    plain = jvm.connect(broker.url())
    plain.session().send(f"queue://{name}", "kept")
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    consumer = session.consumer(f"queue://{name}")
    assert consumer.receive().body == "kept"
    session.send(f"queue://{name}.OUT", "never")
    session.xa("end", name)
    if is_prepared:
        session.xa("prepare", name)
    session.xa("rollback", name)
    connection.close()
    assert plain.session().consumer(f"queue://{name}").receive().body == "kept"
    assert plain.session().consumer(f"queue://{name}.OUT").take() is None
    plain.close()


def test_a_prepared_transaction_holds_what_it_received(jvm: Jvm, broker: Peer, name: str) -> None:
    plain = jvm.connect(broker.url())
    plain.session().send(f"queue://{name}", "held", "free")
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    consumer = session.consumer(f"queue://{name}?consumer.prefetchSize=1")
    assert consumer.receive().body == "held"
    session.xa("end", name)
    session.xa("prepare", name)
    connection.close()
    consumer = plain.session().consumer(f"queue://{name}")
    assert consumer.rest() == ["free"]

    # Another connection decides.
    deciding = jvm.connect(broker.url(), xa=True).session("XA")
    assert name in deciding.xa("recover")
    deciding.xa("rollback", name)
    assert consumer.receive().body == "held"
    assert name not in deciding.xa("recover")
    plain.close()


def test_another_connection_commits_what_was_prepared(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    worked(session, name, f"queue://{name}", "a")
    session.xa("prepare", name)
    connection.close()
    other = jvm.connect(broker.url(), xa=True)
    other.session("XA").xa("commit", name)
    assert jvm.connect(broker.url()).session().consumer(f"queue://{name}").receive().body == "a"
    other.close()


def test_what_was_not_prepared_ends_with_its_connection(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    worked(connection.session("XA"), name, f"queue://{name}", "never")
    connection.close()
    other = jvm.connect(broker.url(), xa=True)
    assert name not in other.session("XA").xa("recover")
    with pytest.raises(JmsError) as raised:
        other.session("XA").xa("commit", name)
    assert (raised.value.kind, raised.value.code) == ("XAException", XAER_NOTA)
    assert jvm.connect(broker.url()).session().consumer(f"queue://{name}").take() is None
    other.close()


def test_prepare_without_work_is_read_only(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    session.xa("end", name)
    assert session.xa("prepare", name) == XA_RDONLY
    assert name not in session.xa("recover")
    connection.close()


def test_unknown_transactions_are_told(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    for verb in ("commit", "prepare", "rollback"):
        with pytest.raises(JmsError) as raised:
            session.xa(verb, f"{name}-never")
        assert raised.value.kind == "XAException"
        # ActiveMQ gives prepare no code, and its client makes XAER_RMFAIL of that.
        assert raised.value.code == XAER_NOTA or (verb == "prepare" and raised.value.code == XAER_RMFAIL)
    connection.close()


def test_commit_of_two_phases_needs_the_first(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    worked(session, name, f"queue://{name}", "a")
    with pytest.raises(JmsError) as raised:
        session.xa("commit", name)
    assert (raised.value.kind, raised.value.code) == ("XAException", XAER_PROTO)
    connection.close()


def test_a_transaction_may_pause_and_go_on(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    session = connection.session("XA")
    session.xa("start", name)
    session.send(f"queue://{name}", "a")
    session.xa("suspend", name)
    session.xa("resume", name)
    session.send(f"queue://{name}", "b")
    session.xa("end", name)
    session.xa("prepare", name)
    session.xa("commit", name)
    assert jvm.connect(broker.url()).session().consumer(f"queue://{name}").bodies(2) == ["a", "b"]
    connection.close()


def test_several_branches_live_side_by_side(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url(), xa=True)
    sessions = [connection.session("XA") for _ in range(3)]
    for number, session in enumerate(sessions):
        worked(session, f"{name}-{number}", f"queue://{name}", str(number))
        session.xa("prepare", f"{name}-{number}")
    sessions[0].xa("commit", f"{name}-2")
    sessions[0].xa("rollback", f"{name}-1")
    sessions[0].xa("commit", f"{name}-0")
    consumer = jvm.connect(broker.url()).session().consumer(f"queue://{name}")
    assert sorted(consumer.rest()) == ["0", "2"]
    connection.close()
