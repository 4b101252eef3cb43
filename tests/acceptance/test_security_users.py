"""Logins and rights of clients, on a running broker over real sockets, in both protocols."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.schema import TransactionType
from tandemmq.broker.security.users import make
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import XaTransactionId
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.openwire_wire import OpenWire, Refused, queue, topic
from tests.support.acceptance.stomp_wire import Wire

SETTINGS = """\
[[connectors]]
uri = "stomp://0.0.0.0:{stomp}"
[[connectors]]
uri = "openwire://0.0.0.0:{openwire}"

[security]
users_file = "{users}"
failed_logins_max = 5
failed_login_delay = 100

[[security.authorization]]
queue = "ORDERS.>"
write = ["shops"]
admin = ["shops"]
[[security.authorization]]
queue = "ORDERS.EU"
read = ["eu"]
[[security.authorization]]
queue = "OPEN.>"
read = ["*"]
write = ["*"]
admin = ["*"]
[[security.authorization]]
topic = "ActiveMQ.Advisory.Connection"
read = ["shops"]
[[security.authorization]]
topic = "NEWS"
read = ["*"]
admin = ["shops"]
"""


class Secured(BrokerProcess):
    """A broker with users: alice of the shops, bob who reads what is for the EU, and who says no name."""

    def __init__(self, directory: Path) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        super().__init__(directory / "data", "a", "--config", str(settings))
        self.leaves_stomp_to_settings = True
        self.openwire = free_port()
        users.write_text("".join(f"{name}:{make(name + ' secret')}:{groups}:\n" for name, groups in
                                 (("alice", "shops"), ("bob", "eu"), ("eve", ""))))  # fmt: skip
        users.chmod(0o600)
        settings.write_text(SETTINGS.format(stomp=self.stomp, openwire=self.openwire, users=users))

    def login(self, name: str, **fields: Any) -> OpenWire:
        return OpenWire(self.openwire).connect(name, f"{name} secret", **fields)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with serving(Secured(tmp_path_factory.mktemp("secured"))) as (broker,):
        yield broker


def stomp(broker: BrokerProcess, data: bytes, source: str = "127.0.0.1", host: str = "127.0.0.1") -> bytes:
    """All that is answered to ``data`` until the broker hangs up, or has answered a receipt called "last"."""
    with socket.create_connection((host, broker.stomp), 20, source_address=(source, 0)) as client:
        client.sendall(data)
        heard = b""
        while b"receipt-id:last" not in heard:
            more = client.recv(1 << 16)
            if not more:
                return heard
            heard += more
        return heard


def connect_frame(login: str | None, passcode: str | None = None) -> bytes:
    named = "" if login is None else f"login:{login}\npasscode:{passcode or login + ' secret'}\n"
    return f"CONNECT\naccept-version:1.2\nhost:x\n{named}\n\0".encode()


# ---- logins


@pytest.mark.promise("logins")
def test_a_wrong_password_is_refused_in_both_protocols(broker: Secured) -> None:
    assert b"User name [alice] or password is invalid" in stomp(broker, connect_frame("alice", "guess"), "127.0.1.1")
    client = OpenWire(broker.openwire, "127.0.1.1")
    with pytest.raises(Refused, match="alice") as refused:
        client.connect("alice", "guess")
    assert refused.value.kind == "SecurityException"
    assert client.is_closed()


@pytest.mark.promise("guessing-is-slowed")
async def test_who_guesses_is_shut_out_and_others_notice_nothing(broker: Secured) -> None:
    good = await Wire.open(broker.stomp, login="alice", passcode="alice secret")
    for guess in range(5):
        assert b"invalid" in stomp(broker, connect_frame("eve", f"guess {guess}"), "127.0.2.1")
    # Even with the right password, if no client has used it since the start: no client learns that it is right.
    assert b"Too many" in stomp(broker, connect_frame("eve"), "127.0.2.1")
    assert b"CONNECTED" in stomp(broker, connect_frame("bob") + b"DISCONNECT\nreceipt:last\n\n\0", "127.0.2.1")
    assert b"CONNECTED" in stomp(broker, connect_frame("eve") + b"DISCONNECT\nreceipt:last\n\n\0", "127.0.2.2")
    good.send("SEND", {"destination": "/queue/OPEN.a", "receipt": "r"})
    assert (await good.read()).headers["receipt-id"] == "r"
    good.close()


def own_address() -> str | None:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        found: str = probe.getsockname()[0]
        return None if found.startswith("127.") else found


def test_nobody_is_anonymous_from_elsewhere(broker: Secured, require_program: Callable[[object, str], None]) -> None:
    address = own_address()
    require_program(address, "this machine has no address but loopback")
    assert address is not None
    assert b"CONNECTED" in stomp(broker, connect_frame(None) + b"DISCONNECT\nreceipt:last\n\n\0")
    assert b"password is invalid" in stomp(broker, connect_frame(None), address, address)
    client = OpenWire(broker.openwire, address, address)
    with pytest.raises(Refused, match="password is invalid"):
        client.connect()
    assert client.is_closed()


@pytest.mark.promise("logins")
def test_what_follows_a_refused_login_is_not_done(broker: Secured) -> None:
    text = connect_frame("alice", "guess") + b"SEND\ndestination:/queue/OPEN.refused\nreceipt:last\n\nx\0"
    assert b"RECEIPT" not in stomp(broker, text, "127.0.3.1")
    status = broker.status()
    assert status is not None
    assert "OPEN.refused" not in str(status)


# ---- rights of a user


OPERATIONS: dict[str, tuple[Callable[[OpenWire, Destination], object], str]] = {
    "send": (lambda client, to: client.send(to, b"x"), "SEND\ndestination:/queue/{}\nreceipt:last\n\nx\0"),
    "consume": (lambda client, of: client.consume(of), "SUBSCRIBE\nid:0\ndestination:/queue/{}\nreceipt:last\n\n\0"),
    "browse": (
        lambda client, of: client.consume(of, browser=True),
        "SUBSCRIBE\nid:0\ndestination:/queue/{}\nbrowser:true\nreceipt:last\n\n\0",
    ),
}


@pytest.mark.promise("rights")
@pytest.mark.parametrize(
    ("who", "operation", "name", "may"),
    [
        ("alice", "send", "ORDERS.EU", True),
        ("alice", "send", "ORDERS.NEW", True),
        ("alice", "consume", "ORDERS.EU", False),
        ("alice", "browse", "ORDERS.EU", False),
        ("bob", "send", "ORDERS.EU", False),
        ("bob", "consume", "ORDERS.EU", True),
        ("bob", "consume", "ORDERS.US", False),
        ("bob", "consume", "STOCK.>", False),
        ("bob", "consume", "ORDERS.EU,ORDERS.US", False),
        ("eve", "consume", "ORDERS.>", False),
        ("eve", "send", "ORDERS.EU", False),
        ("eve", "send", "OPEN.b,ORDERS.EU", False),
        ("eve", "send", "OPEN.c", True),
        ("alice", "consume", "ActiveMQ.DLQ.Queue.ORDERS.EU", False),
    ],
)
def test_rights_are_the_same_in_both_protocols(broker: Secured, who: str, operation: str, name: str, may: bool) -> None:
    alice = broker.login("alice")
    alice.send(queue("ORDERS.EU"), b"there")  # so that it exists, and needs no right to be created
    alice.send(queue("ORDERS.US"), b"there")
    openwire, stomp_frame = OPERATIONS[operation]
    client = broker.login(who)
    if may:
        openwire(client, queue(name))
    else:
        with pytest.raises(Refused, match=f"User {who} is not authorized") as refused:
            openwire(client, queue(name))
        assert refused.value.kind == "SecurityException"
        openwire(client, queue("OPEN.still"))  # the connection goes on
    heard = stomp(broker, connect_frame(who) + stomp_frame.format(name).encode())
    assert (b"not authorized" not in heard) is may
    for each in (alice, client):
        each.close()


@pytest.mark.promise("rights")
def test_a_pattern_comes_to_nothing_that_its_client_may_not_read(broker: Secured) -> None:
    bob, alice = broker.login("bob"), broker.login("alice")
    alice.send(queue("ORDERS.US"), b"before")
    bob.consume(queue("ORDERS.>"))
    for name in ("ORDERS.US", "ORDERS.LATER", "ORDERS.EU"):
        alice.send(queue(name), f"for {name}".encode())
    while True:
        content = bob.next_content()
        assert b"ORDERS.US" not in content
        assert b"LATER" not in content
        assert content != b"\0\0\0\6before"
        if content.endswith(b"for ORDERS.EU"):
            break
    for each in (bob, alice):
        each.close()


def test_who_may_not_delete_does_not(broker: Secured) -> None:
    alice, eve = broker.login("alice"), broker.login("eve")
    alice.create(queue("ORDERS.KEPT"))
    with pytest.raises(Refused, match="not authorized to remove"):
        eve.delete(queue("ORDERS.KEPT"))
    with pytest.raises(Refused, match="not authorized to create"):
        eve.create(queue("ORDERS.OTHER"))
    alice.delete(queue("ORDERS.KEPT"))


@pytest.mark.parametrize("name", ["OPEN.*", "OPEN.>", "OPEN.a,OPEN.b"])
def test_a_pattern_or_a_list_is_nothing_that_can_be_created(broker: Secured, name: str) -> None:
    with pytest.raises(Refused, match="is not a single destination"):
        broker.login("alice").create(queue(name))


# ---- objects of another user


def temporary(owner: OpenWire, number: object = 1) -> Destination:
    return Destination(DestinationKind.TEMP_QUEUE, f"{owner.id}:{number}")


@pytest.mark.promise("temporary-destinations")
def test_anothers_temporary_queue_is_neither_read_nor_deleted_nor_taken_before(broker: Secured) -> None:
    alice = broker.login("alice", connection="ID:owner:1")
    eve = broker.login("eve", connection="ID:owner")
    alice.create(temporary(alice))
    with pytest.raises(Refused, match="not permitted"):
        eve.consume(temporary(alice))
    eve.delete(temporary(alice))
    eve.send(temporary(alice), b"an answer")  # who knows its name may answer
    with pytest.raises(Refused, match="not named after this connection"):
        eve.create(temporary(alice, 2))
    alice.consume(temporary(alice))
    assert alice.next_content().endswith(b"an answer")
    assert b"not permitted" in stomp(
        broker,
        connect_frame("eve")
        + b"SUBSCRIBE\nid:0\ndestination:/remote-temp-queue/ID\\cowner\\c1\\c1\nreceipt:last\n\n\0",
    )
    for each in (alice, eve):
        each.close()


@pytest.mark.promise("ids-have-owners")
def test_a_connection_is_taken_over_by_its_own_user_only(broker: Secured) -> None:
    alice = broker.login("alice", connection="ID:alice-1")
    eve = OpenWire(broker.openwire)
    with pytest.raises(Refused, match="belongs to another user"):
        eve.connect("eve", "eve secret", connection="ID:alice-1", client_id="other")
    assert eve.is_closed()
    alice.send(queue("OPEN.e"), b"goes on")
    again = broker.login("alice", connection="ID:alice-1")
    assert alice.is_closed()
    again.send(queue("OPEN.e"), b"goes on")
    again.close()


@pytest.mark.promise("ids-have-owners")
def test_nobody_spends_anothers_ids_between_a_crash_and_her_coming_back(broker: Secured) -> None:
    """A failover transport comes back under the same connection id, and sends again what was not answered."""
    alice = broker.login("alice", connection="ID:host-1-1:1")
    alice.send(queue("OPEN.r"), b"stored")
    alice.close()
    broker.kill()
    broker.start().wait_role("master")
    eve = OpenWire(broker.openwire)
    with pytest.raises(Refused, match="belongs to another user"):
        eve.connect("eve", "eve secret", connection="ID:host-1-1:1")
    alice = broker.login("alice", connection="ID:host-1-1:1")
    alice.send(queue("OPEN.r"), b"stored")  # the same once more
    alice.send(queue("OPEN.r"), b"on its way when the broker died")
    alice.consume(queue("OPEN.r"))
    assert [alice.next_content()[4:] for _ in range(2)] == [b"stored", b"on its way when the broker died"]
    alice.close()


@pytest.mark.promise("ids-have-owners")
def test_a_durable_subscription_is_its_users_after_a_crash(broker: Secured) -> None:
    for name in ("alice", "eve", "alice"):
        if name == "eve":
            with pytest.raises(Refused, match="belongs to another user"):
                broker.login(name, client_id="shop-of-alice")
        else:
            client = broker.login(name, client_id="shop-of-alice")
            client.consume(topic("NEWS"), subscription_name="all")
            client.close()
        broker.kill()
        broker.start().wait_role("master")


def test_anothers_branch_is_not_decided_before_it_is_prepared(broker: Secured) -> None:
    alice, eve = broker.login("alice"), broker.login("eve")
    branch = XaTransactionId(7, b"alice", b"1")
    alice.transact(TransactionType.BEGIN, branch)
    for kind in (TransactionType.COMMIT_ONE_PHASE, TransactionType.ROLLBACK, TransactionType.PREPARE):
        with pytest.raises(Refused, match="belongs to another user") as refused:
            eve.transact(kind, branch)
        assert refused.value.kind == "XAException"
    with pytest.raises(Refused, match="belongs to another user"):
        eve.transact(TransactionType.BEGIN, branch)
    with pytest.raises(Refused, match="belongs to another user"):
        eve.send(queue("OPEN.f"), b"smuggled in", transaction_id=branch)
    alice.send(queue("OPEN.f"), b"mine", transaction_id=branch)
    alice.transact(TransactionType.PREPARE, branch)
    # From then on it is for who may do all that it does, too: the journal does not keep whose a branch was.
    eve.transact(TransactionType.COMMIT_TWO_PHASE, branch)
    eve.consume(queue("OPEN.f"))
    assert eve.next_content().endswith(b"mine")
    for each in (alice, eve):
        each.close()


@pytest.mark.promise("xa-branches")
def test_after_a_restart_ending_a_prepared_branch_still_needs_rights(
    broker: Secured,
) -> None:
    branch = XaTransactionId(7, b"alice", b"2")
    alice = broker.login("alice")
    alice.transact(TransactionType.BEGIN, branch)
    alice.send(queue("ORDERS.US"), b"prepared", transaction_id=branch)
    alice.transact(TransactionType.PREPARE, branch)
    for is_restarted in (False, True):
        if is_restarted:
            alice.close()
            assert broker.terminate() == 0
            broker.start().wait_role("master")
        for name in ("eve", "bob"):
            other = broker.login(name)
            for kind in (TransactionType.COMMIT_TWO_PHASE, TransactionType.ROLLBACK):
                with pytest.raises(Refused, match=f"User {name} is not authorized") as refused:
                    other.transact(kind, branch)
                assert refused.value.kind == "XAException"
            other.close()
    alice = broker.login("alice")
    alice.transact(TransactionType.COMMIT_TWO_PHASE, branch)
    alice.close()


# ---- objects of the broker


@pytest.mark.promise("advisories")
def test_nobody_forges_an_advisory(broker: Secured) -> None:
    eve = broker.login("eve")
    forged = topic("ActiveMQ.Advisory.TempQueue")
    with pytest.raises(Refused, match="reserved for the broker"):
        eve.send(forged, b"x")
    with pytest.raises(Refused, match="reserved for the broker"):
        eve.produce(forged)
    with pytest.raises(Refused, match="reserved for the broker"):
        eve.send(queue("OPEN.h,topic://ActiveMQ.Advisory.Connection"), b"x")
    heard = stomp(
        broker, connect_frame("eve") + b"SEND\ndestination:/topic/ActiveMQ.Advisory.Queue\nreceipt:last\n\n\0"
    )
    assert b"reserved for the broker" in heard
    eve.close()


@pytest.mark.promise("advisories")
def test_an_advisory_names_who_connects_and_not_his_password(broker: Secured) -> None:
    alice = broker.login("alice")
    alice.consume(topic("ActiveMQ.Advisory.Connection"))
    eve, other = broker.login("eve"), broker.login("alice")
    while True:
        told = alice.next_message().data_structure
        assert isinstance(told, schema.ConnectionInfo)
        assert (told.user_name, told.password) == ("alice", None), "those of others are not for her"
        if told.client_id == other.id:
            break
    for each in (alice, eve, other):
        each.close()


def test_nobody_guesses_the_name_of_a_stomp_clients_temporary_queue(broker: Secured) -> None:
    frames = connect_frame("eve") + b"SUBSCRIBE\nid:0\ndestination:/temp-queue/answers\n\n\0"
    asked = b"SEND\ndestination:/queue/OPEN.t\nreply-to:/temp-queue/answers\n\nq\0"
    read = b"SUBSCRIBE\nid:1\ndestination:/queue/OPEN.t\nreceipt:last\n\n\0"
    names = {
        re.search(rb"reply-to:/remote-temp-queue/ID\\c(.*)\n", stomp(broker, connect_frame("bob") + read)).group(1)
        for _ in range(2)
        if stomp(broker, frames + asked + b"SEND\ndestination:/queue/OPEN.u\nreceipt:last\n\n\0")
    }
    assert len(names) == 2
    assert all(re.fullmatch(rb".*-[0-9a-f]{32}\\c1", name) for name in names)


# ---- the log


@pytest.mark.promise("no-injection")
def test_a_name_writes_no_line_into_the_log(broker: Secured) -> None:
    client = OpenWire(broker.openwire, "127.0.4.1")
    with pytest.raises(Refused):
        client.connect("eve\n2026-01-01 00:00:00,000 WARNING all is lost\x1b[2J", "x")
    assert client.is_closed()
    broker.wait_log("all is lost")
    text = broker.log.read_text()
    assert "\n2026-01-01 00:00:00,000 WARNING all is lost" not in text
    assert "\x1b" not in text
