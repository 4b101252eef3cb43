"""The records of a client: the messages that its program sent, that were confirmed, and that it received.

A line of the program's standard output is a JSON object:

    {"sent": 7}                      before the first attempt
    {"confirmed": 7}                 the client reports that the broker has the message
    {"received": 7, "id": "..."}     before the acknowledgement; id: that of the message and the time at which the
                                     broker took it, if the protocol has them. A message that is sent again has the
                                     same id and another time
    {"done": true}                   its input has ended, and nothing waits for a confirmation
    {"note": "..."}                  an error that the client reports
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(slots=True)
class Books:
    """The records of a program. ``received``: ids of the messages of each number, in the order of arrival."""

    sent: int = 0
    confirmed: set[int] = field(default_factory=set)
    received: dict[int, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_done: bool = False

    def add(self, line: str) -> None:
        match json.loads(line):
            case {"sent": int()}:
                self.sent += 1
            case {"confirmed": int(number)}:
                self.confirmed.add(number)
            case {"received": int(number), **others}:
                ids = self.received.setdefault(number, [])
                ids.append(str(others.get("id") or f"delivery {len(ids)}"))
            case {"done": True}:
                self.is_done = True
            case {"note": str(text)}:
                self.notes.append(text)
            case other:
                raise ValueError(f"unknown record: {other}")

    @property
    def lost(self) -> list[int]:
        """Return the numbers that were confirmed, but never received."""
        return sorted(self.confirmed - self.received.keys())

    @property
    def doubled(self) -> list[int]:
        """Return the numbers received as two messages; for MQTT, which has no ids, received twice."""
        return sorted(number for number, ids in self.received.items() if len(set(ids)) > 1)

    @property
    def again(self) -> int:
        """Return the number of repeated deliveries."""
        return sum(len(ids) - len(set(ids)) for ids in self.received.values())

    def problems(self, *, is_once: bool) -> list[str]:
        """Return the problems as sentences. Unless ``is_once``, a message may be stored twice."""
        found = [f"{len(self.lost)} lost: {self.lost[:10]}"] if self.lost else []
        if is_once and self.doubled:
            found.append(f"{len(self.doubled)} doubled: {self.doubled[:10]}")
        return found
