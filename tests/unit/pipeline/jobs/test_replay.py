"""Replay of messages from journals and Parquet to real brokers: each once, in order, whatever is killed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from pyspark.sql import SparkSession

from tandemmq.bench.peers.server import HOST, Server
from tandemmq.cli import main
from tandemmq.pipeline.jobs import archive, composition, duplicates, replay, verify
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.sending.ledger import STATE, Ledger
from tandemmq.pipeline.sending.request import UNACKNOWLEDGED, ReplayRequest, Target
from tandemmq.store.records.commands import encode_add, encode_remove
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.tools.check import check
from tests.support.pipeline.growing_store import GrowingStore
from tests.support.pipeline.pipeline_journals import FILE_BYTES, NOW_MS, QUEUE, add, write_foreign, write_store
from tests.support.pipeline.taken import taken
from tests.support.services.pairs import failover_url, pair_in
from tests.support.tree import ROOT

pytestmark = pytest.mark.service


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A master and its standby over one directory; nothing is wrong with it afterwards."""
    with pair_in(tmp_path) as both:
        yield both
    report = check(str(tmp_path / "data"))
    assert report.is_clean, report.problems


def rows(table: Any) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.mark.prove
@pytest.mark.proof_only
@pytest.mark.timeout(300)
def test_a_master_that_is_killed_meanwhile_changes_nothing(
    spark: SparkSession, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    write_store(tmp_path / "store", 900)
    sources = Sources((str(tmp_path / "store"),), is_tail_wanted=True)
    target = Target(failover_url(*pair), per_second=400)
    out = str(tmp_path / "out")
    master = pair[0]
    is_under_way = threading.Event()

    def kill() -> None:
        is_under_way.wait(60)
        master.kill()

    def progress(sent: int, total: int) -> None:
        assert total == 900
        if 0 < sent < total:
            is_under_way.set()

    killer = threading.Thread(target=kill)
    killer.start()
    summary = replay.run(spark, sources, out, request=ReplayRequest(), target=target, progress=progress)
    killer.join()
    assert is_under_way.is_set(), "it was killed in the middle"
    assert summary.is_clean, summary.findings
    counts = {"messages": 900, "sent": 900, "earlier": 0, "refused": 0, "to_send": 0}
    assert rows(summary.tables[0]) == [{"destination_type": "queue", "destination": "orders", **counts}]
    again = replay.run(spark, sources, out, request=ReplayRequest(), target=target)
    assert again.findings[:2] == (
        "0 messages were sent, and the broker confirmed each.",
        "900 were there already, from earlier runs.",
    )
    [ledger] = spark.read.parquet(again.written["replay_ledger"]).collect()
    assert (ledger.messages, ledger.sent, ledger.attempts) == (900, 900, 1)
    found = taken(failover_url(*pair), "/queue/orders")
    assert [each["originalMessageId"] for each in found] == [f"ID:tests-1:1:1:{n}" for n in range(1, 901)]
    assert {each["body"] for each in found} == {b"x" * 500}
    assert [int(each["timestamp"]) for each in found] == [NOW_MS + number for number in range(1, 901)]
    with pytest.raises(ValueError, match="another replay \\(only differ\\)"):
        replay.run(spark, sources, out, request=ReplayRequest(only=UNACKNOWLEDGED), target=target)
    with pytest.raises(ValueError, match="choose another directory"):
        replay.run(spark, sources, out, request=ReplayRequest(), target=Target("stomp://elsewhere:61613"))


@pytest.mark.proof_only
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_is_gone_on_from(
    spark: SparkSession, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    """In separate processes, twice; and consumers take the messages at once."""
    write_store(tmp_path / "store", 1500)
    out = tmp_path / "out"
    command = ["pipeline", "replay", str(tmp_path / "store"), "--tail", "--out", str(out), "--to", failover_url(*pair)]
    own = ["--rate", "100", "--master", "local[2]", "--conf", "spark.driver.memory=768m"]
    found: list[dict[str, Any]] = []
    for wanted in (700, 1200):
        with subprocess.Popen([sys.executable, "-m", "tandemmq", *command, *own], cwd=ROOT) as driver:
            try:
                while len(found) < wanted:
                    assert driver.poll() is None, "it has not come so far"
                    found += taken(failover_url(*pair), "/queue/orders", 50)
            finally:
                driver.kill()
        assert Ledger(out / STATE).progress(0).confirmed < 1500, "it was killed in the middle"
    done = CliRunner().invoke(main, [*command, "--json"])
    assert done.exit_code == 0, done.output
    found += taken(failover_url(*pair), "/queue/orders")
    assert [each["originalMessageId"] for each in found] == [f"ID:tests-1:1:1:{n}" for n in range(1, 1501)]
    assert "1,500" not in json.loads(done.stdout)["findings"][0], "the last run sent the rest only"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A store of ActiveMQ's form: two destinations, a removed and an expired message, an object, and damage."""
    news = Destination(DestinationKind.TOPIC, "news")

    def other(number: int, kind: BodyKind, **fields: Any) -> bytes:
        message = Message(news, f"ID:tests-2:1:1:{number}", b"o", kind, persistent=True, timestamp=NOW_MS, **fields)
        return encode_add(message, encode_message(message))

    batches = [
        [add(1, b"one", properties={"colour": "red"}), add(2, b"two", correlation_id="c")],
        [add(3, b"three", expiration=NOW_MS + 1), other(1, BodyKind.TEXT), other(2, BodyKind.OBJECT)],
        [add(4, b"hit")],
        [encode_remove(QUEUE, "ID:tests-1:1:1:2")],
    ]
    path = tmp_path / "mixed" / "db-1.log"
    write_foreign(path, batches)
    content = bytearray(path.read_bytes())
    content[content.index(b"hit")] ^= 0xFF
    path.write_bytes(content)
    write_foreign(tmp_path / "mixed" / "db-2.log", [[add(5, b"five")]])
    assert path.stat().st_size == FILE_BYTES
    return tmp_path / "mixed"


def test_a_dry_run_says_all_and_opens_no_socket(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with socket.create_server((HOST, 0)) as listening:
        listening.setblocking(False)
        to = f"stomp://{HOST}:{listening.getsockname()[1]}"
        command = ["pipeline", "replay", str(mixed), "--tail", "--out", str(out), "--to", to]
        done = CliRunner().invoke(main, [*command, "--dry-run", "--rate", "2", "--json"])
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert done.exit_code == 1, "an object and a damaged place are not sent"
    figures = json.loads(done.stdout)
    assert figures["findings"][:2] == [
        "4 messages, 11 B of bodies, would be sent; nothing was.",
        "At 2 a second that takes 2 seconds.",
    ]
    assert [(row["destination"], row["messages"]) for row in figures["tables"]["Messages that would be sent"]] == [
        ("orders", 3),
        ("news", 1),
    ]
    assert {(row["destination"], row["reason"], row["messages"]) for row in figures["tables"]["Left out"]} == {
        ("orders", "expired", 1),
        ("news", "unsendable", 1),
        (None, "damaged", 1),
    }
    assert not (out / STATE).exists()


def test_messages_from_parquet_are_sent_to_the_chosen_destination(
    spark: SparkSession, pair: tuple[Server, Server], mixed: Path, tmp_path: Path
) -> None:
    messages = spark.read.format("tandemmq").options(table="messages", follow="tail").load(str(mixed))
    made = str(tmp_path / "made")
    messages.replace({"orders": "7"}, subset=["destination"]).write.partitionBy("destination").parquet(made)
    command = ["pipeline", "replay", made, "--out", str(tmp_path / "out"), "--to", failover_url(*pair)]
    command += ["--destination", "7"]
    wanted = ["--as", "again", "--expired", "keep", "--where", "message_id NOT LIKE '%:5'", "--unordered"]
    done = CliRunner().invoke(main, [*command, *wanted])
    assert done.exit_code == 0, done.output
    assert "3 messages were sent" in done.output
    found = taken(failover_url(*pair), "/queue/again")
    assert [each["body"] for each in found] == [b"one", b"two", b"three"]
    assert (found[0]["colour"], found[1]["correlation-id"]) == ("red", "c")
    assert {each["expires"] for each in found} == {"0"}
    run = Ledger(tmp_path / "out" / STATE).run()
    assert run is not None
    assert [slice.destination for slice in run.slices] == ["7"], "and not the number 7"


@pytest.mark.prove
@pytest.mark.proof_only
def test_a_lake_knows_what_was_acknowledged(spark: SparkSession, mixed: Path, tmp_path: Path) -> None:
    lake, out = str(tmp_path / "lake"), str(tmp_path / "out")
    archive.run(spark, Sources((str(mixed),)), lake)
    replay.run(spark, Sources((lake,)), out, request=ReplayRequest(("orders",), only=UNACKNOWLEDGED))
    found = {row.message_id: row.fate for row in spark.read.parquet(f"{out}/replay_selection").collect()}
    assert found == {"ID:tests-1:1:1:1": "send", "ID:tests-1:1:1:2": "acknowledged", "ID:tests-1:1:1:3": "expired"}


def test_journals_and_parquet_are_not_mixed(mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "_SUCCESS").touch()
    command = ["pipeline", "replay", str(tmp_path / "made"), str(mixed), "--out", str(tmp_path / "out"), "--dry-run"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert "expected journals or Parquet, not both" in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to", "failover:()"],
        ["--dry-run", "--as", "queue://"],
        ["--dry-run", "--since", "yesterday"],
        ["--dry-run", "--rate", "0"],
    ],
)
def test_wrong_usage_is_told_before_spark_starts(arguments: list[str], store: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["pipeline", "replay", str(store), "--out", str(tmp_path / "out"), *arguments])
    assert done.exit_code == 2, done.output


# ---- Jobs from journal files to the tables, findings and pages that a person gets


@pytest.mark.prove
@pytest.mark.proof_only
def test_the_audit_of_an_old_activemq_is_named_as_what_fills_the_files(
    spark: SparkSession, audited: Path, tmp_path: Path
) -> None:
    summary = composition.run(spark, Sources((str(audited),), is_tail_wanted=True), str(tmp_path / "out"))
    by_command = {row["command"]: row for row in rows(summary.tables[0])}
    assert "PRODUCER_AUDIT fills the files" in summary.findings[0]
    assert "orders" in summary.findings[1]
    assert by_command["PRODUCER_AUDIT"]["bytes"] > 50 * by_command["ADD_MESSAGE"]["bytes"]
    assert summary.is_clean, "every byte has its name"
    assert sum(row["bytes"] for row in by_command.values()) == sum(path.stat().st_size for path in audited.iterdir())


def test_damage_and_an_unfinished_write_are_part_of_the_balance(
    spark: SparkSession, audited: Path, store: Path, tmp_path: Path
) -> None:
    """A store of this broker and one of ActiveMQ: the middle file is damaged, and the file before it is cut off."""
    hit = audited / "db-2.log"
    content = bytearray(hit.read_bytes())
    content[1000:1100] = b"?" * 100
    hit.write_bytes(content)
    cut = audited / "db-1.log"
    cut.write_bytes(cut.read_bytes()[:150_001])
    sources = Sources((str(audited), str(store)), is_tail_wanted=True)
    summary = composition.run(spark, sources, str(tmp_path / "out"))
    assert summary.is_clean, "every byte has its name"
    by_command = {row["command"]: row for row in rows(summary.tables[0])}
    assert by_command["DAMAGED"]["bytes"] > 100
    files = [*audited.glob("db-*.log"), *store.glob("db-*.log")]
    assert sum(row["bytes"] for row in by_command.values()) == sum(path.stat().st_size for path in files)


def test_damage_is_found_where_it_was_done_and_its_messages_are_named(
    spark: SparkSession, audited: Path, tmp_path: Path
) -> None:
    broken = audited / "db-2.log"
    content = bytearray(broken.read_bytes())
    place = content.index(b"ID:tests-1:1:1:") + 1000  # in the body of a message: its batch stays readable
    content[place] ^= 0xFF
    broken.write_bytes(content)
    summary = verify.run(spark, Sources((str(audited),)), str(tmp_path / "out"))
    assert not summary.is_clean
    [damage] = rows(summary.tables[1])
    assert (damage["file"], damage["status"]) == (2, "bad_sum")
    assert damage["start"] < place < damage["stop"]
    [message] = rows(summary.tables[2])
    assert (message["command"], message["destination"]) == ("ADD_MESSAGE", "orders")
    assert message["message_id"].startswith("ID:tests-1:1:1:")


def test_a_message_in_two_files_was_stored_twice(spark: SparkSession, audited: Path, tmp_path: Path) -> None:
    (audited / "db-3.log").write_bytes((audited / "db-1.log").read_bytes())
    summary = duplicates.run(spark, Sources((str(audited),), is_tail_wanted=True), str(tmp_path / "out"))
    assert {"same_id", "same_body"} == {row["kind"] for row in rows(summary.tables[0])}
    assert not summary.is_clean


def test_the_command_prints_and_leaves_a_page(spark: SparkSession, audited: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["pipeline", "dlq", str(audited), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["findings"] == ["There are no dead letters."]
    assert "There are no dead letters." in Path(figures["report"]).read_text()
    assert json.loads((out / "dlq.json").read_text()) == figures
    assert (out / "dead_letters").is_dir()


def test_a_store_whose_only_file_is_open_is_read_and_the_report_says_up_to_where(
    spark: SparkSession, tmp_path: Path
) -> None:
    growing = GrowingStore(tmp_path / "store")
    growing.add(3)
    out = tmp_path / "out"
    command = ["pipeline", "composition", str(growing.directory), "--out", str(out)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    line = f"Read up to {growing.end:,} of db-1.log"
    assert line in done.stdout
    assert line in (out / "composition.html").read_text()
    figures = json.loads((out / "composition.json").read_text())
    store = str(growing.directory)
    assert figures["read"] == [{"store": store, "file": 1, "offset": growing.end, "is_growing": True}]
    growing.close()


def test_all_tables_of_a_job_are_of_the_same_moment(spark: SparkSession, tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "store")
    growing.add(3)
    sources = Sources((str(growing.directory),)).fixed(spark)
    growing.add(2)
    growing.rotate()
    growing.add(1)
    growing.close()
    summary = composition.run(spark, sources, str(tmp_path / "out"))
    assert summary.is_clean
    assert {row["command"]: row["records"] for row in rows(summary.tables[0])}["ADD_MESSAGE"] == 3
