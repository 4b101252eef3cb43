"""Refusals of the broker are exceptions of JMS in the program: of javax.jms with the client of ActiveMQ 5, of
jakarta.jms with that of ActiveMQ 6."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.java_programs import compiled_for_jakarta
from tests.support.interop.jms.jvm import SOURCES, JmsError, Jvm
from tests.support.interop.jms.peers import TandemMQ

pytestmark = [pytest.mark.service, pytest.mark.promise("jms-works-unmodified")]

SETTINGS = """\
[[destinations]]
queue = "FULL.>"
memory_limit = 65536
send_fail_if_no_space = true
"""
XAER_NOTA = -4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemMQ]:
    peer = TandemMQ(tmp_path_factory.mktemp("refusing") / "data", settings=SETTINGS)
    peer.wait()
    yield peer
    peer.close()


@pytest.fixture(scope="module", params=["javax.jms", "jakarta.jms"])
def package(request: pytest.FixtureRequest) -> str:
    """Of the client's exceptions."""
    return str(request.param)


@pytest.fixture(scope="module")
def jvm(
    package: str,
    classes: Path,
    require_service: Callable[[object, str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Jvm]:
    path = ""
    if package == "jakarta.jms":
        sources = (SOURCES / "Jms.java", SOURCES / "Messages.java")
        path = compiled_for_jakarta(require_service, tmp_path_factory.mktemp("jakarta"), *sources)
    jvm = Jvm(classes, path)
    yield jvm
    jvm.close()


def take_a_client_id_twice(connect: Connect, name: str) -> None:
    connect(clientId=name)
    connect(clientId=name)


def end_a_durable_subscription_that_never_was(connect: Connect, name: str) -> None:
    connect(clientId=name).session().unsubscribe("news")


def use_a_durable_subscription_twice(connect: Connect, name: str) -> None:
    session = connect(clientId=name).session()
    session.durable(f"topic://{name}", "news")
    session.durable(f"topic://{name}", "news")


def select_what_takes_too_long(connect: Connect, name: str) -> None:
    """The client takes that for a selector."""
    connect().session().consumer(f"queue://{name}", selector=f"colour LIKE '%{'_' * 1100}'")


def send_where_there_is_no_room(connect: Connect, name: str) -> None:
    session = connect("jms.alwaysSyncSend=true").session()
    session.send(f"queue://FULL.{name}", *["x" * 10_000] * 20, persistent=False)


def send_an_advisory(connect: Connect, name: str) -> None:
    connect().session().producer().send("x", to=f"topic://ActiveMQ.Advisory.{name}")


def schedule_too_many(connect: Connect, name: str) -> None:
    repeated = {"AMQ_SCHEDULED_PERIOD": {"long": 3_600_000}, "AMQ_SCHEDULED_REPEAT": 2_000}
    connect().session().send(f"queue://{name}", "x", properties=repeated)


def commit_what_was_refused(connect: Connect, name: str) -> None:
    session = connect().session("TRANSACTED")
    session.producer().send("x", to=f"queue://{name}.*")
    session.commit()


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (take_a_client_id_twice, "InvalidClientIDException"),
        (end_a_durable_subscription_that_never_was, "InvalidDestinationException"),
        (use_a_durable_subscription_twice, "JMSException"),
        (select_what_takes_too_long, "InvalidSelectorException"),
        (send_where_there_is_no_room, "ResourceAllocationException"),
        (send_an_advisory, "JMSSecurityException"),
        (schedule_too_many, "MessageFormatException"),
        (commit_what_was_refused, "TransactionRolledBackException"),
    ],
)
def test_a_refusal_is_the_exception_of_jms(
    connect: Connect, name: str, package: str, refused: Callable[[Connect, str], None], kind: str
) -> None:
    with pytest.raises(JmsError) as raised:
        refused(connect, name)
    assert (raised.value.package, raised.value.kind) == (package, kind)


def test_a_refusal_of_a_branch_has_its_code(connect: Connect, name: str) -> None:
    with pytest.raises(JmsError) as raised:
        connect(xa=True).session("XA").xa("commit", name)
    assert (raised.value.package, raised.value.kind) == ("javax.transaction.xa", "XAException")
    assert raised.value.code == XAER_NOTA
