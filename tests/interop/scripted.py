"""The real ActiveMQ, driven step by step by java/Script.java; and a take-over of what it left, without a broker."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from index.index import Index
from journal.files import JournalFiles
from store.follow import Follower
from store.promotion import Promotion
from store.takeover import Report, prepare_takeover

LIBRARIES = Path("/usr/share/activemq/lib")
SOURCE = Path(__file__).parent / "java" / "Script.java"
JAVA_SECONDS_MAX = 90
FILE_BYTES_MAX = 1 << 20

Step = dict[str, Any]
# An owner of messages in words -> their ids in order of delivery
Held = dict[str, list[str]]


class Answers(NamedTuple):
    """What a script printed: the last dump, and the journal files at each `files`."""

    held: Held
    prepared: list[str]
    files: list[list[int]]


Script = Callable[..., Answers]


def compiled(require_service: Callable[[object, str], None], directory: Path) -> Script:
    """`script(step, step, ...)` runs one life of ActiveMQ."""
    java, javac = shutil.which("java"), shutil.which("javac")
    require_service(java and javac, "no JDK: java and javac are not in the path")
    require_service((LIBRARIES / "activemq-kahadb-store.jar").exists(), f"no ActiveMQ: {LIBRARIES} has no KahaDB")
    _run([str(javac), "-nowarn", "-encoding", "UTF-8", "-cp", f"{LIBRARIES}/*", "-d", str(directory), str(SOURCE)], "")

    def script(*steps: Step) -> Answers:
        lines = "".join(json.dumps(step) + "\n" for step in steps)
        path = f"{directory}:{LIBRARIES}/*:{LIBRARIES}/optional/*"
        output = _run([str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, "Script"], lines)
        answers = Answers({}, [], [])
        for line in map(json.loads, output.splitlines()):
            if "files" in line:
                answers.files.append(line["files"])
            elif "prepared" in line:
                answers.prepared.extend(line["prepared"])
            else:
                name = line["destination"].partition("://")[2]
                if line["subscription"] is not None:
                    name = f"{name} for {line['subscription']}"
                answers.held[name] = line["messages"]
        return answers

    return script


def _run(command: list[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=JAVA_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


class Taken(NamedTuple):
    """A directory after a take-over."""

    held: Held
    prepared: list[str]
    report: Report | None
    records: int


def held_by(follower: Follower, *, with_empty: bool = True) -> Held:
    state = follower.state
    found: Held = {}
    for owner, known in state.owners.items():
        name = known.destination.name
        if known.subscription_name is not None:
            name = f"{name} for {known.key}"
        found[name] = [entry.message_id for _, entry in state.entries(owner, 0)]
    return found if with_empty else {name: ids for name, ids in found.items() if ids}


def take_over(
    directory: Path, broker: str = "a", *, stop_before_finish: bool = False, batches_max: int = 1 << 30
) -> Taken:
    """One promotion with its take-over; the broker then dies. ``batches_max``: it died after so many batches."""
    files = JournalFiles(str(directory))
    follower = Follower(files, Index.open(f"{directory}/index/{broker}"), records_per_checkpoint=100_000)
    try:
        promotion = Promotion(files, broker=broker, max_file_length=FILE_BYTES_MAX, sync="always")
        promotion.fence()
        promotion.read(follower)
        takeover = prepare_takeover(files, follower, scratch=f"{directory}/index/{broker}.takeover")
        batches = [] if takeover is None else list(takeover.batches())
        records = sum(map(len, batches))
        foreign = 0 if takeover is None else takeover.foreign_openwire
        promotion.begin(follower, records=batches[:batches_max], foreign_openwire=foreign).writer.close()
        report = None
        if takeover is not None and not stop_before_finish:
            report = takeover.finish()
        prepared = [key for key, open_ in follower.state.transactions.items() if open_.is_prepared]
        return Taken(held_by(follower), prepared, report, records)
    finally:
        follower.index.close()


def replayed(directory: Path, copy: Path) -> Held:
    """What the journal alone says, read from its beginning in a copy of the directory."""
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("index", "db.*"))
    follower = Follower(JournalFiles(str(copy)), Index.open(f"{copy}/index/x"), records_per_checkpoint=100_000)
    try:
        follower.advance(is_final=True)
        return held_by(follower)
    finally:
        follower.index.close()


@pytest.fixture(scope="session")
def script(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Script:
    return compiled(require_service, tmp_path_factory.mktemp("classes"))
