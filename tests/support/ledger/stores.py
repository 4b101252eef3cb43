"""Stores that brokers write while the client of a ledger lives its story."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.ledger.book import read
from tests.support.ledger.truth import Truth
from tests.support.tree import ROOT

STORY_SECONDS_MAX: Final = 240
# Small files, so that a story has several of them; nothing of them is deleted. A clock stands wherever time has passed.
SETTINGS: Final = """\
[store]
journal_max_file_length = "64kb"
checkpoint_records = 200
clock_mark_interval = "10ms"
archive_data_logs = true
"""


def live(protocol: str, seed: int, steps: int, book: Path, *ports: object) -> Truth:
    """What is true after a story, which a process of its own lived."""
    command = [sys.executable, "-m", "tests.support.ledger", protocol, str(seed), str(steps), str(book)]
    done = subprocess.run(
        [*command, *map(str, ports)], cwd=ROOT, capture_output=True, text=True, timeout=STORY_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Truth(read(book))


def by_tandemmq(directory: Path, protocol: str, seed: int, steps: int, settings: str = SETTINGS) -> Truth:
    """The store is ``directory``/data; the broker has ended in order."""
    directory.mkdir(parents=True)
    (directory / "tandemmq.toml").write_text(settings)
    broker = BrokerProcess(directory / "data", "a", "--config", str(directory / "tandemmq.toml"))
    try:
        broker.start().wait_role("master")
        truth = live(protocol, seed, steps, directory / "book", broker.stomp)
        assert broker.terminate() == 0, broker.log.read_text()
    finally:
        broker.stop()
    return truth
