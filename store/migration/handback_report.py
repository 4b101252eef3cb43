"""Result of a hand-back or of its dry run, for people and programs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

PROBLEMS_MAX = 100


@dataclass(slots=True)
class Report:
    """Corrections that were made; of a dry run, those that would be made. ``reordered``: queues whose order was
    restored. ``order`` and ``problems``: reasons why a directory is not ready. ``was_done``: nothing had to be
    corrected."""

    ended: list[str] = field(default_factory=list)
    removed: int = 0
    copied: int = 0
    subscriptions: int = 0
    transactions: int = 0
    reordered: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    was_done: bool = False
    is_ready: bool = False

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)
