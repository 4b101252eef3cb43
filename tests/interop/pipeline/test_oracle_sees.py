"""The oracle is no rubber stamp, and the jobs are not silent: a book that is wrong differs from the store, and a store
that is hurt is told; what a replay sends is what clients had not taken."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.pipeline.jobs import JOBS
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.sending.request import UNACKNOWLEDGED, ReplayRequest, Target
from tests.interop.pipeline.conftest import Write
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.ledger.case import Case, read
from tests.support.ledger.jobs import check
from tests.support.ledger.stomp_client import StompClient
from tests.support.ledger.story import LETTERS, QUEUES
from tests.support.ledger.truth import ACKED, LIVE, Life, Truth
from tests.support.ledger.writers import OWN, Written
from tests.support.samples import sampled

pytestmark = pytest.mark.thorough

WRONG_IN_CI: Final = 4
HURT_IN_CI: Final = 4


@pytest.fixture
def written(write: Write) -> Written:
    """Without Java."""
    return write(OWN, 0)


def first(truth: Truth, state: str) -> Life:
    return next(life for life in truth.lives if life.state == state and life.owner[0] == "queue")


# Each spoils a book, and gives what the difference must name.


def _forget_an_acknowledgement(truth: Truth) -> str:
    life = first(truth, ACKED)
    life.state = LIVE
    return life.owner[1]


def _be_late(truth: Truth) -> str:
    life = first(truth, ACKED)
    assert life.gone is not None
    life.gone = life.gone[1] + 1000, life.gone[1] + 1001
    return f"'{life.key}'"


def _send_one_more(truth: Truth) -> str:
    line = next(iter(truth.sent.values()))
    truth.sent["more"] = {**line, "key": "more", "to": "queue://orders", "body": "beat", "expires": None}
    return "'orders'"


def _misread(truth: Truth) -> str:
    key, line = next((key, line) for key, line in truth.sent.items() if key not in truth.optional)
    line["body"] = "another"
    return f"body of {key} in"


def _misread_the_cause(truth: Truth) -> str:
    truth.letters[0].cause = "another"
    return f"'{truth.letters[0].key}'"


# The job that must report the fault.
WRONG: Final[tuple[tuple[Callable[[Truth], str], str], ...]] = (
    *((_forget_an_acknowledgement, job) for job in ("latency", "at", "pins", "replay")),
    (_be_late, "latency"),
    *((_send_one_more, job) for job in ("messages", "composition", "duplicates")),
    (_misread, "archive"),
    (_misread_the_cause, "dlq"),
)


@pytest.mark.parametrize(
    ("spoil", "job"), sampled("wrong books", WRONG, WRONG_IN_CI), ids=lambda value: getattr(value, "__name__", value)
)
def test_a_book_that_is_wrong_is_seen(
    written: Written, tmp_path: Path, spoil: Callable[[Truth], str], job: str
) -> None:
    truth = copy.deepcopy(written.truth)
    told = spoil(truth)
    with LocalSession(tmp_path) as session:
        found = check(Case(session, written.stores, truth, tmp_path), job)
    assert any(told in line for line in found), found


@pytest.fixture
def hurt(written: Written, tmp_path: Path) -> Path:
    """A copy of the store."""
    return Path(shutil.copytree(written.directory, tmp_path / "hurt"))


def journals(store: Path) -> list[Path]:
    """Return the journal files of the store, without its archive, in order."""
    return sorted(store.glob("db-*.log"), key=lambda path: int(path.stem[3:]))


def test_a_flipped_byte_is_told_with_its_message(written: Written, hurt: Path, tmp_path: Path) -> None:
    """The byte is in a body that is nowhere else."""
    bodies = {line["body"].encode(): key for key, line in written.truth.sent.items() if len(line["body"]) > 1000}
    contents = {path: path.read_bytes() for path in journals(hurt)[:-1]}
    path, at, key = next(
        (path, content.index(body) + 50, key)
        for path, content in contents.items()
        for body, key in bodies.items()
        if content.count(body) == 1
    )
    _flip_at(path, at)
    with LocalSession(tmp_path) as session:
        case = Case(session, written.stores, written.truth, tmp_path)
        summary = case.run("verify", stores=(str(hurt),))
        damage = [row for row in read(summary.written["damage"]) if row["is_damage"]]
        concerned = {row["key"] for row in case.named(read(summary.written["concerned"]))}
    assert not summary.is_clean
    assert [row["file"] for row in damage] == [int(path.stem[3:])]
    assert damage[0]["start"] <= at < damage[0]["stop"]
    assert key in concerned
    assert concerned <= written.truth.sent.keys()


def _flip_at(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _flip(store: Path) -> str:
    """Change a byte in a record. Return the expression that a job's output must match."""
    path = next(path for path in journals(store) if b" xxx" in path.read_bytes())
    _flip_at(path, path.read_bytes().index(b" xxx"))
    return "(?i)damaged"


def _lose(store: Path) -> str:
    """A file between others."""
    path = journals(store)[1]
    assert path != journals(store)[-1]
    path.unlink()
    return rf"{path.stem}\b"


# composition counts damaged bytes, which balance.
@pytest.mark.parametrize(
    ("hurting", "job"),
    sampled(
        "hurt stores",
        [
            *((_flip, job) for job in ("verify", "duplicates", "dlq", "latency", "pins", "at")),
            *((_lose, job) for job in ("composition", "verify", "duplicates", "dlq", "latency", "pins", "at")),
        ],
        HURT_IN_CI,
    ),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_could_not_be_read_is_told(hurt: Path, tmp_path: Path, hurting: Callable[[Path], str], job: str) -> None:
    told = hurting(hurt)
    options = {"file": 1 << 20} if job == "at" else {}  # the end
    with LocalSession(tmp_path) as session:
        run = import_module(JOBS[job]).run
        summary = run(session, Sources((str(hurt),)), str(tmp_path / "out"), **options)
    assert not summary.is_clean
    assert any(re.search(told, line) for line in summary.findings), summary.findings


def test_a_replay_sends_what_clients_had_not_taken(written: Written, tmp_path: Path) -> None:
    """To another broker, where a client finds it: in its order, as it was sent."""
    sources = [*QUEUES, *(LETTERS + queue.removeprefix("queue://") for queue in QUEUES)]
    broker = BrokerProcess(tmp_path / "data", "b")
    try:
        broker.start().wait_role("master")
        with LocalSession(tmp_path) as session:
            case = Case(session, written.stores, written.truth, tmp_path)
            summary = case.run(
                "replay",
                request=ReplayRequest(only=UNACKNOWLEDGED, destinations=tuple(sources)),
                target=Target(f"failover:(stomp://127.0.0.1:{broker.stomp})"),
            )
        assert summary.is_clean, summary.findings
        client = StompClient(broker.stomp)
        held = {f"queue://{owner[1]}": keys for owner, keys in written.truth.held().items() if owner[0] == "queue"}
        for source in sources:
            keys = held.get(source, [])
            received = client.receive(source, len(keys)) if keys else []
            client.release()
            known = sorted if source.startswith(LETTERS) else list
            assert known([each.key for each in received]) == known(keys), source
            assert {each.key: each.body for each in received} == {key: written.truth.sent[key]["body"] for key in keys}
        client.close()
    finally:
        broker.stop()
