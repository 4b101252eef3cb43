"""java/Load.java as a process: JMS clients that record their messages while brokers are killed."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.acceptance.broker_process import wait_until
from tests.support.interop.jms.jvm import class_path

END_SECONDS_MAX = 60.0


class Load:
    """The process, which runs from the creation until `books`."""

    def __init__(self, classes: Path, url: str, queue: str, mode: str, producers: int = 2, consumers: int = 2) -> None:
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path(classes),
             "Load", url, queue, mode, str(producers), str(consumers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def sent(self) -> int:
        return int(self._ask("how far")["sent"])

    def send_more(self, count: int, seconds: float = 60.0) -> None:
        """Return when ``count`` more sends are confirmed."""
        wanted = self.sent() + count
        wait_until(lambda: self.sent() >= wanted, f"{count} more sends are confirmed", seconds)

    def books(self) -> Books:
        """Return the records when all messages are sent and received."""
        return Books(self._ask("stop"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


class Books:
    """The records of the clients, and the broken promises."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.sent: list[str] = facts["sent"]
        self.doubtful: list[list[str]] = facts["doubtful"]
        self.received: list[list[str]] = facts["received"]
        self.taken: set[str] = set(facts["taken"])
        self.undecided: set[str] = set(facts["undecided"])
        self.thrown: list[str] = facts["problems"]

    def problems(self) -> list[str]:
        came = Counter(body for body, _, _ in self.received)
        ids: dict[str, set[str]] = {}
        for body, message_id, _ in self.received:
            ids.setdefault(body, set()).add(message_id)
        found = [f"thrown: {text}" for text in self.thrown]
        found += [f"lost: {body} was confirmed and never came" for body in self.sent if not came[body]]
        found += [f"twice in the queue: {body} as {sorted(them)}" for body, them in ids.items() if len(them) > 1]
        found += [
            f"undone: {body} ({mid}) came after its acknowledgement" for body, mid, was in self.received if was == "1"
        ]
        found += [
            f"half a transaction: {batch}" for batch in self.doubtful if len({bool(came[body]) for body in batch}) > 1
        ]
        open_ids = {mid for _, mid, _ in self.received} - self.taken - self.undecided
        found += [f"never decided: {message_id}" for message_id in open_ids]
        return found[:20]
