"""What a hand-back did, or would do, for people and programs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

PROBLEMS_MAX = 100


@dataclass(slots=True)
class Report:
    """What was done, or with a dry run what there is to do. ``reordered`` are queues that were given their order again;
    ``order`` and ``problems`` say why a directory is not ready; ``was_done`` that nothing had to be done."""

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
