"""Report of a hand-back or of its dry run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

PROBLEMS_MAX = 100


@dataclass(slots=True)
class Report:
    """Corrections that were made or, for a dry run, would be made. All texts are for the operator.

    ended                                          files that were truncated at their ends
    removed, copied, subscriptions, transactions   numbers of corrections
    reordered                                      queues and topics whose order was restored
    order, problems                                reasons why the directory is not ready
    set_aside                                      new paths of renamed index files
    was_done                                       a former hand-back has done all of it
    """

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
