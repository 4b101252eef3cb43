"""Very many, or very large, messages: nothing is lost, doubled or out of order, and a client beside them is served
meanwhile.

java/FullSize.java is the program, and says what each subject is. Here the sizes are such that seconds do; with
TANDEMMQ_PROVE=full they are the full ones, and ActiveMQ runs the same. The figures are printed: milliseconds for
each part (``scanned``: for one consumer), and the round trips of the client beside: how many, p50, p99, the longest.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interop.jms.jvm import class_path
from tests.support.interop.jms.peers import ActiveMQ, Peer, TandemMQ
from tests.support.prove import IS_PROOF

pytestmark = pytest.mark.service

SIZES = [
    ("temporary_queues", 600, 5_000),
    ("durable_subscriptions", 150, 2_000),
    ("browse", 5_000, 1_000_000),
    ("scheduled", 1_000, 50_000),
    ("selectors", 5_000, 100_000),
    ("large_message", 8, 64),
    ("large_message", 16, 99),
]


@pytest.fixture(scope="module", params=["activemq", "tandemmq"] if IS_PROOF else ["tandemmq"])
def broker(request: pytest.FixtureRequest, classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    directory = tmp_path_factory.mktemp("full_size")
    ours = request.param == "tandemmq"
    peer = TandemMQ(directory / "data", settings="") if ours else ActiveMQ(directory, classes, heap="4g")
    peer.wait()
    yield peer
    peer.close()


@pytest.mark.parametrize(("subject", "size", "full_size"), SIZES)
def test_nothing_is_missing_and_a_client_beside_is_served(
    broker: Peer, classes: Path, subject: str, size: int, full_size: int
) -> None:
    words = [broker.url(), f"FULL.{subject}.{full_size}", subject, str(full_size if IS_PROOF else size)]
    program = ["java", f"-Xmx{1024 if IS_PROOF else 256}m", "-XX:+UseSerialGC", "-cp", class_path(classes), "FullSize"]
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    print(f"\n{broker.name}, {subject} {words[-1]}: {done.stdout.strip()}")
