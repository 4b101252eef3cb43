"""Creates the two initial stores of lives in tests/crash: one of ActiveMQ, and one that ActiveMQ and TandemMQ used in
turn.

    python tests/support/interop/leave_crash_stores.py tests/crash

In both ActiveMQ is killed. The archive contains the files and ActiveMQ's own output of the messages it would deliver.
It is created only if TandemMQ finds the same messages.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from tests.support.crash.promises import FOREIGN_BODIES, State, body_of, is_prepared, seen
from tests.support.crash.short_lives import SETTINGS
from tests.support.interop.scripted import Answers, Script, Step, compiled
from tests.support.store.store_harness import Q, Term

FILE_BYTES = 8 << 10
# A host name for message ids that no host has.
HOST = "-Dactivemq.idgenerator.hostname=host"


def step(verb: str, **facts: Any) -> Step:
    return {"do": verb, **facts}


FIRST_LIFE = (
    step("send", to="queue://Q.A", count=6),
    step("receive", **{"from": "queue://Q.A"}, count=2),
    step("subscribe", topic="T.A", client="client", name="one"),
    step("subscribe", topic="T.A", client="client", name="two"),
    step("send", to="topic://T.A", count=3),
    step("take", topic="T.A", client="client", name="one", count=1),
    step("send", to="queue://Q.B", count=1, xa="1", commit=True),
    step("send", to="queue://Q.B", count=2, xa="2", commit=False),
    step("prepare", xa="2"),
    step("checkpoint"),
    step("fill", bytes=3000),
    step("send", to="queue://Q.A", count=2),
    step("receive", **{"from": "queue://Q.A"}, count=1),
)
SECOND_LIFE = (
    step("receive", **{"from": "queue://Q.A"}, count=1),
    step("send", to="queue://Q.A", count=2),
    step("take", topic="T.A", client="client", name="two", count=1),
    step("checkpoint"),
    step("send", to="queue://Q.B", count=1),
)


def live(script: Script, directory: Path, steps: tuple[Step, ...]) -> Answers:
    opening = step("open", directory=str(directory), fileLength=FILE_BYTES)
    return script(opening, *steps, step("dump"), step("halt"))


def held(directory: Path, answers: Answers) -> tuple[State, dict[str, str]]:
    """Return the state that TandemMQ finds in a copy, which must be ActiveMQ's, and the bodies of ActiveMQ's
    messages."""
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(directory, f"{place}/copy")
        term = Term(copy)
        pages = [term.page(owner.id).messages for owner in term.owners]
        bodies = {paged.message.message_id: paged.message.body.decode() for page in pages for paged in page}
        theirs = {message_id: body for message_id, body in bodies.items() if message_id.startswith("ID:host")}
        FOREIGN_BODIES.update({message_id: body.encode() for message_id, body in theirs.items()})
        state = seen(term)
        term.close()
    ours = {owner.partition("://")[2]: list(ids) for owner, ids in state if not is_prepared(owner)}
    assert ours == {name: ids for name, ids in answers.held.items() if ids}, "TandemMQ finds what ActiveMQ printed"
    return state, theirs


def keep(directory: Path, answers: Answers, target: Path) -> None:
    state, bodies = held(directory, answers)
    files = [path for path in sorted(directory.iterdir()) if path.is_file()]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in files:
            if path.name != "lock" and ".aside-" not in path.name:
                archive.writestr(zipfile.ZipInfo(f"data/{path.name}"), path.read_bytes(), zipfile.ZIP_DEFLATED)
        answer = json.dumps({"state": state, "bodies": bodies}, indent=1)
        archive.writestr(zipfile.ZipInfo("holds.json"), answer, zipfile.ZIP_DEFLATED)


def require(condition: object, reason: str) -> None:
    if not condition:
        raise SystemExit(reason)


def use_by_tandemmq(directory: Path) -> None:
    """Let TandemMQ take over, consume a message and store two."""
    term = Term(str(directory), settings=SETTINGS)
    owner = term.store.queue(Q)
    first, *_ = term.page(owner).messages
    before = len(term.durable_operations)
    term.remove(first, owner)
    for number in (1, 2):
        term.add(Q, body_of(f"ID:{term.store.epoch}-p:1:1:{number}", 300))
    term.wait_durable(before + 3)
    term.close()


def main(target: Path) -> None:
    os.environ["JAVA_TOOL_OPTIONS"] = HOST
    with tempfile.TemporaryDirectory() as place:
        script = compiled(require, Path(place))
        directory = Path(place, "data")
        answers = live(script, directory, FIRST_LIFE)
        keep(directory, answers, target / "activemq_store.zip")
        use_by_tandemmq(directory)
        answers = live(script, directory, SECOND_LIFE)
        keep(directory, answers, target / "activemq_again.zip")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
