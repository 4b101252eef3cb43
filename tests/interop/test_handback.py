"""Hand-back to ActiveMQ, and return: the real ActiveMQ holds and delivers the same messages in the same order."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.store.migration.corrections import Bounds
from tandemmq.store.migration.handback import hand_back
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.migration.reading import read_contents
from tandemmq.store.operations import AddMessage, AddSubscription, Atomic
from tandemmq.store.records.acknowledgements import SubscriptionInfo, encode_subscription_info
from tandemmq.store.records.commands import AddMessage as AddCommand
from tandemmq.store.records.commands import (
    RemoveDestination,
    Subscription,
    decode,
    encode,
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_rewritten,
    encode_subscription,
    encode_trace,
)
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.protobuf import varint
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tests.interop.conftest import ActiveMQ, held_in
from tests.support.acceptance.broker_process import wait_until
from tests.support.interop.java_programs import Release
from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import TandemMQ
from tests.support.interop.scripted import Script, compiled
from tests.support.journal.in_memory import scan_bytes
from tests.support.services.proxy import Proxy, Way
from tests.support.store.store_harness import Q, Term

pytestmark = [pytest.mark.service, pytest.mark.promise("back-to-activemq")]

T = Destination(DestinationKind.TOPIC, "T.A")
# Tests request a compaction: an automatic one would write subscriptions again at intervals.
SMALL_FILES = StoreSettings(
    journal_max_file_length=64 * 1024,
    checkpoint_records=40,
    checkpoint_interval=3600.0,
    fence_check_interval=0.01,
    enable_compaction=False,
)


def tell(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main, ["store", *map(str, arguments), "--json"], catch_exceptions=False)
    assert result.stdout.startswith("{"), result.output
    return result.exit_code, json.loads(result.stdout)


def held_here(directory: Path, scratch: Path) -> dict[str, list[str]]:
    """Owner in words -> ids in order, of what has any."""
    shutil.rmtree(scratch, ignore_errors=True)
    with read_contents(str(directory), str(scratch)) as contents:
        found = {}
        for owner in contents.owners():
            name = owner.destination.name if owner.subscription_name is None else owner.key
            found[name] = [stored.add.message_id for stored in contents.messages(owner.id)]
    return {name: ids for name, ids in found.items() if ids}


def lived_in(directory: Path, settings: StoreSettings = SMALL_FILES) -> None:
    """Three epochs: queue and topic, subscriptions with and without selector, removes out of order, files that went."""
    directory.mkdir()
    first = Term(str(directory), settings=settings)
    queue = first.store.queue(Q)
    owners = {}
    for name, selector in (("all", None), ("red", "colour = 'red'")):
        owners[name] = first.store.subscription("c", name, T)
        first.store.append(AddSubscription(owners[name], encode_subscription(T, "c", name, selector)))
    added = first.add_durably(150, body=b"x" * 900)
    for operation in added[:120]:
        first.remove(operation, queue)
    topical = []
    for number in range(40):
        red = number % 3 == 0
        message = first.message(T, b"news")
        message.properties = {"colour": "red" if red else "blue"}
        operation = AddMessage(message, tuple(owners.values()), encode_add(message, encode_message(message)))
        first.store.append(operation)
        topical.append((operation, red))
    first.wait(lambda: topical[-1][0] in first.durable_operations)
    for operation, red in topical:
        if not red:
            first.remove(operation, owners["red"], "c:red")
    # As a client with individual acknowledgements does: ActiveMQ alone would deliver what stands behind the last again.
    for number in (33, *(number for number in range(21) if number != 3), 3):
        first.remove(topical[number][0], owners["all"], "c:all")
    first.add_durably(1)
    first.crash()
    second = Term(str(directory), "b", settings=settings)
    for operation in second.add_durably(60, body=b"y" * 900)[10:30]:
        second.remove(operation, second.store.queue(Q))
    second.add_durably(1)
    second.close()
    third = Term(str(directory), "a", settings=settings)
    third.add_durably(3)
    third.crash()


def test_a_client_of_activemq_receives_what_we_held(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    lived_in(directory)
    mine = held_here(directory, tmp_path / "scratch")
    assert {name: len(ids) for name, ids in mine.items()} == {"Q.A": 30 + 1 + 40 + 1 + 3, "c:all": 18, "c:red": 14}
    code, dry = tell("handback", directory, "--dry-run")
    assert (code, dry["is_ready"], dry["ended"]) == (0, True, [])

    code, report = tell("handback", directory)

    assert code == 0, report
    assert held_here(directory, tmp_path / "scratch") == mine
    assert check(str(directory)).is_clean
    assert held_in(activemq("consume", directory)) == mine

    # It took everything, and collected files as it does: here the same is known.
    term = Term(str(directory), "c")
    assert [owner.count for owner in term.owners] == [0] * len(term.owners)
    late = [operation.message.message_id for operation in term.add_durably(2)]
    term.close()
    assert held_here(directory, tmp_path / "scratch") == {"Q.A": late}
    assert check(str(directory)).is_clean
    assert tell("handback", directory)[0] == 0


@pytest.mark.promise("bytes-are-activemqs")
def test_a_directory_of_ours_opens_in_activemq_without_a_handback(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    settings = StoreSettings(journal_max_file_length=64 * 1024, checkpoint_records=40, fence_check_interval=0.01)
    first = Term(str(directory), settings=settings)
    owner = first.store.queue(Q)
    subscription = first.store.subscription("c", "s", T)
    first.store.append(AddSubscription(subscription, encode_subscription(T, "c", "s")))
    added = first.add_durably(200, body=b"x" * 600)
    for operation in added[:150]:
        first.remove(operation, owner)
    transaction = LocalTransactionId("ID:c", 1)
    message = first.message(body=b"in a transaction")
    payload = encode_add(message, encode_message(message), transaction)
    first.store.append(Atomic([AddMessage(message, (owner,), payload)], encode_commit(transaction)))
    text = Message(
        Q, "ID:x:1:1:1", "Grüße".encode(), BodyKind.TEXT, persistent=True, properties={"colour": "blue"}, timestamp=1
    )
    first.store.append(AddMessage(text, (owner,), encode_add(text, encode_message(text))))
    topical = [first.add(T, owners=(subscription,)) for _ in range(5)]
    first.wait(lambda: topical[-1] in first.durable_operations)
    first.crash()
    second = Term(str(directory), "b", settings=settings)  # an epoch more, with its header and ends
    second.add_durably(3)
    second.close()
    mine = held_here(directory, tmp_path / "scratch")
    lines = activemq("dump", directory)
    assert held_in(lines) == mine
    queue = next(line for line in lines if line["destination"] == f"queue://{Q.name}")
    found = next(m for m in queue["messages"] if m["id"] == "ID:x:1:1:1")
    assert found["body"] == "Grüße"
    assert found["properties"]["colour"] == ["string", "blue"]


def test_a_second_handback_finds_nothing_to_do(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    lived_in(directory)
    tell("handback", directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name != "lock"}

    code, report = tell("handback", directory)

    assert (code, report["was_done"]) == (0, True)
    after = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name != "lock"}
    assert after == before


def test_a_zombie_s_late_writes_stay_unread(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    lived_in(directory)
    files = JournalFiles(str(directory))
    # The next master dies between fence and header; one more comes after it.
    headless = files.list()[-1] + 1
    files.prepare("z", 64 * 1024)
    files.publish("z", headless)
    Term(str(directory), "c", settings=SMALL_FILES).close()
    mine = held_here(directory, tmp_path / "scratch")
    ends = read_headers(files).ends
    assert ends[headless] == 0
    late = Message(Q, "ID:zombie:1:1:1", b"late", BodyKind.BYTES, persistent=True, timestamp=1)
    writes = [encode_add(late, encode_message(late)), encode_remove(Q, mine["Q.A"][0])]
    ended = sorted(file for file in files.list() if file in ends)
    for number, file in enumerate(ended):
        with open(files.path(file), "r+b") as stream:
            stream.seek(ends[file])
            if number % 3 == 0 or file == headless:
                stream.write(encode_batch(writes)[0])
            elif number % 3 == 1:
                stream.write(b"torn" * 10)
            else:  # what it wrote first never reached the disk
                stream.seek(ends[file] + 200)
                stream.write(encode_batch(writes)[0])
    spoilt = {file: Path(files.path(file)).read_bytes() for file in ended}
    assert len(spoilt) > 3

    code, report = tell("handback", directory)

    assert code == 0, report
    assert len(report["ended"]) == len(spoilt)
    for file, content in spoilt.items():
        assert (directory / "quarantine" / f"db-{file}.log.1").read_bytes() == content
    assert check(str(directory)).is_clean
    assert held_here(directory, tmp_path / "scratch") == mine
    assert held_in(activemq("dump", directory)) == mine


def test_a_prepared_transaction_is_handed_back(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    xa = XaTransactionId(7, b"global", b"branch")
    messages = [
        Message(Q, f"ID:x:1:1:{number}", b"body", BodyKind.TEXT, persistent=True, timestamp=1) for number in (1, 2, 3)
    ]
    with OfflineEpoch(str(directory), str(tmp_path / "scratch"), name="x") as epoch:
        epoch.write([encode_add(message, encode_message(message)) for message in messages[:2]])
        body = encode_commit(xa)[2:] + encode_remove(Q, messages[0].message_id)[2:]
        takes = b"\2" + varint(len(body)) + body  # as earlier builds wrote it: without the acknowledgement
        epoch.write([takes, encode_add(messages[2], encode_message(messages[2]), xa), encode_prepare(xa)])

    code, report = tell("handback", directory)

    assert (code, report["transactions"]) == (0, 1)
    queue, prepared = activemq("dump", directory)
    assert [message["id"] for message in queue["messages"]] == ["ID:x:1:1:2"], "the first is withheld"
    assert (prepared["owner"], bytes.fromhex(prepared["globalId"])) == ("prepared", b"global")


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_activemq_starts_with_a_prepared_branch_and_decides_it(
    jvm: Jvm, classes: Path, script: Script, tmp_path: Path, outcome: str
) -> None:
    """Without handback. The branch took from a queue and from a durable subscription, and sent to both kinds; a
    selector passes over what it sent."""
    directory = tmp_path / "data"
    ours = TandemMQ(directory)
    ours.wait()
    others = jvm.connect(ours.url(), clientId="c")
    session = others.session()
    session.durable("topic://T", "all")
    session.durable("topic://T", "red", selector="colour = 'red'")
    branch = jvm.connect(ours.url(), clientId="x", xa=True).session("XA")
    branch.xa("start", "R", format=7, branch="\1")
    takes = [branch.consumer("queue://Q"), branch.durable("topic://T", "mine")]
    others.close()
    session = jvm.connect(ours.url()).session()
    (kept, left), (read,) = session.send("queue://Q", "kept", "left"), session.send("topic://T", "read")
    for each in takes:
        each.receive()
    (given,), (told,) = branch.send("queue://OUT", "given"), branch.send("topic://T", "told")
    branch.xa("end", "R", format=7, branch="\1")
    branch.xa("prepare", "R", format=7, branch="\1")
    ours.process.kill()

    prepared = script({"do": "open", "directory": str(directory)}, {"do": "dump"}, {"do": "stop"}).prepared
    decide = {"do": outcome, "xa": "R"}
    held = script({"do": "open", "directory": str(directory)}, decide, {"do": "dump"}, {"do": "stop"}).held

    assert prepared == ["R"]
    is_done = outcome == "commit"
    assert {name: ids for name, ids in held.items() if ids} == {
        "Q": [left] if is_done else [kept, left],
        "T for c:all": [read, told] if is_done else [read],
        **({"OUT": [given], "T for x:mine": [told]} if is_done else {"T for x:mine": [read]}),
    }


def test_activemq_reads_how_often_messages_were_delivered(
    jvm: Jvm, classes: Path, activemq: ActiveMQ, tmp_path: Path
) -> None:
    """A JMS consumer is lost with a message, before and after the master is killed."""
    directory = tmp_path / "data"
    ours = TandemMQ(directory)
    ours.wait()
    (id, _) = jvm.connect(ours.url()).session().send("queue://Q", "a", "b")
    way = Proxy(ours.port)
    found = []
    for restarts in (False, True, False):
        way.set(Way.OPEN)
        url = f"tcp://127.0.0.1:{way.port}?jms.prefetchPolicy.all=1"
        message = jvm.connect(url).session("CLIENT").consumer("queue://Q").receive()
        found.append((message["redelivered"], message["deliveries"]))
        way.set(Way.CUT)
        wait_until(lambda: not (ours.process.status() or {})["queues"][0]["unacknowledged"], "it is back")
        if restarts:
            jvm.connect(ours.url()).session().send("queue://Q", "c")  # behind the count
            ours.process.kill()
            ours.process.start()
            ours.wait()
    way.close()
    jvm.connect(ours.url()).session().send("queue://Q", "d")
    ours.process.kill()

    (queue,) = activemq("dump", directory)

    assert found == [(False, 1), (True, 2), (True, 3)]
    assert queue["messages"][0]["id"] == id, "it kept its place"
    assert [each["redeliveryCounter"] for each in queue["messages"]][::3] == [3, 0]


@pytest.fixture(scope="module")
def script(
    require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory, release: Release
) -> Script:
    return compiled(require_service, tmp_path_factory.mktemp("script"), release)


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    """A queue whose oldest messages a compaction has copied behind the younger ones."""
    directory = tmp_path / "data"
    directory.mkdir()
    term = Term(str(directory), settings=SMALL_FILES)
    queue = term.store.queue(Q)
    added = []
    for _ in range(8):
        added += term.add_durably(50, body=b"x" * 900)
    for number, operation in enumerate(added[:300]):
        if number % 60:
            term.remove(operation, queue)
    term.add_durably(1)
    compaction = term.store.compact()
    term.wait(compaction.done)
    assert compaction.result().messages
    term.close()
    return directory


def test_an_order_that_a_compaction_changed_is_told(activemq: ActiveMQ, compacted: Path, tmp_path: Path) -> None:
    mine = held_here(compacted, tmp_path / "scratch")
    code, dry = tell("handback", compacted, "--dry-run")
    assert (code, len(dry["reordered"]), dry["order"]) == (0, 1, [])

    code, report = tell("handback", compacted)

    assert (code, report["is_ready"], len(report["reordered"]), report["order"]) == (0, True, 1, [])
    assert check(str(compacted)).is_clean
    assert held_in(activemq("dump", compacted)) == mine
    assert held_here(compacted, tmp_path / "scratch") == mine, "read as ActiveMQ left it"


def test_an_order_that_is_too_long_to_tell_is_reported_and_export_keeps_it(compacted: Path, tmp_path: Path) -> None:
    mine = held_here(compacted, tmp_path / "scratch")

    report = hand_back(str(compacted), str(tmp_path / "work"), bounds=Bounds(messages=50))

    assert not report.is_ready
    assert [text.split(":")[0] for text in report.order] == ["queue"]
    assert (report.problems, report.reordered) == ([], [])
    exported = tmp_path / "exported"
    code, proof = tell("export", compacted, "--to", exported)
    assert (code, proof["proved"]) == (0, True)
    assert held_here(exported, tmp_path / "scratch") == mine
    again = hand_back(str(compacted), str(tmp_path / "again"), accepts_order=True, bounds=Bounds(messages=50))
    assert (again.is_ready, len(again.order)) == (True, 1)


def test_what_activemq_holds_comes_here_and_back(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory, imported, exported = tmp_path / "foreign", tmp_path / "imported", tmp_path / "exported"
    lines = activemq("produce", directory)
    assert silence(directory, RemoveDestination) == 1, "from now on only its index knows that a queue was deleted"
    before = {path.name: path.read_bytes() for path in directory.iterdir()}

    code, there = tell("import", directory, "--data", imported)
    assert (code, there["proved"]) == (0, True)
    code, back = tell("export", imported, "--to", exported)
    assert (code, back["proved"]) == (0, True)

    assert back["destinations"] == there["destinations"]
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    held = [line for line in lines if line["owner"] != "queue" or line["messages"]]
    assert activemq("dump", exported) == held


def silence(directory: Path, kind: type) -> int:
    """Make a kind of command unreadable in the journal, as if its file had been collected; how many there were."""
    count = 0
    for path in directory.glob("db-*.log"):
        content = bytearray(path.read_bytes())
        for batch in scan_bytes(bytes(content)):
            for offset, payload in batch.records:
                if isinstance(decode(payload), kind):
                    count += 1
                    content[offset + 4] = 9  # a type of record that all readers skip
            body = content[batch.offset + 28 : batch.end]
            struct.pack_into(">q", content, batch.offset + 20, zlib.adler32(body))
        path.write_bytes(content)
    return count


# ---- records that only ActiveMQ writes


def in_openwire_6(frame: bytes) -> bytes:
    """A message as ActiveMQ before 5.12 stored it: without the id's text, and without the last flag."""
    body = frame[4:-1].replace(b"\x01\x6e\x00\x01\x7b", b"\x01\x6e\x01\x7b", 1)
    return struct.pack(">i", len(body)) + body


def stored(number: int, destination: Destination = Q) -> Message:
    return Message(destination, f"ID:x:1:1:{number}", b"body", BodyKind.TEXT, persistent=True, timestamp=1)


def test_bodies_of_an_old_openwire_come_in_the_new_one(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    payloads = [encode_trace("LOADED by ActiveMQ 5.11")]
    for name in ("all", "red"):
        info = SubscriptionInfo("c", T, name, None, T)
        frame = encode_subscription_info(info)
        old = struct.pack(">i", len(frame) - 5) + frame[4:-1]
        command = encode(Subscription(T, f"c:{name}", info))
        # One byte less in the frame, the field and the command.
        at = command.index(frame)
        payloads.append(bytes([7, command[1] - 1]) + command[2 : at - 1] + bytes([len(old)]) + old)
    for number in range(1, 6):
        add = AddCommand(Q, f"ID:x:1:1:{number}", in_openwire_6(encode_message(stored(number))))
        payloads.append(encode(add))
    for number in range(6, 10):
        add = AddCommand(T, f"ID:x:1:1:{number}", in_openwire_6(encode_message(stored(number, T))))
        payloads.append(encode(add))
    payloads.append(encode_remove(T, "ID:x:1:1:7", None, "c:red"))
    payloads.append(encode_remove(T, "ID:x:1:1:9", None, "c:all"))
    (directory / "db-1.log").write_bytes(encode_batch(payloads)[0])
    mine = held_here(directory, tmp_path / "scratch")
    assert [len(ids) for ids in mine.values()] == [5, 3, 3]
    exported = tmp_path / "exported"
    assert tell("export", directory, "--to", exported)[0] == 0
    with read_contents(str(exported), str(tmp_path / "again")) as contents:
        assert all(stored.is_current for owner in contents.owners() for stored in contents.messages(owner.id))

    code, report = tell("handback", directory)

    assert (code, report["copied"], report["subscriptions"]) == (0, 9, 2)
    assert held_here(directory, tmp_path / "scratch") == mine
    lines = activemq("dump", directory)
    assert held_in(lines) == mine
    assert {message["body"] for line in lines for message in line["messages"]} == {"body"}


def test_what_stands_in_a_file_of_copies_is_not_passed_over(activemq: ActiveMQ, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    adds = [encode_add(stored(number), encode_message(stored(number))) for number in range(6)]
    remove = encode_remove(Q, stored(1).message_id)
    (directory / "db-1.log").write_bytes(encode_batch([*adds[:4], remove])[0])
    (directory / "db-2.log").write_bytes(encode_batch([encode_rewritten(1), remove, adds[4]])[0])
    (directory / "db-3.log").write_bytes(encode_batch([adds[5]])[0])
    expected = [stored(number).message_id for number in (0, 2, 3, 4, 5)]

    code, report = tell("handback", directory)

    assert (code, len(report["ended"])) == (0, 1)
    assert held_in(activemq("dump", directory)) == {"Q.A": expected}
