"""Results of an examination: one verdict, one sentence and a few figures for each check."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tandemmq.cli.output import Column, lines


class Verdict(enum.IntEnum):
    """Ordered: the verdict of a report is that of its worst check."""

    OK = 0
    WARN = 1
    FAIL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Finding(NamedTuple):
    """Result of one check. ``figures`` are numbers or words for programs, with their unit in the name."""

    verdict: Verdict
    sentence: str
    figures: Mapping[str, Any] = MappingProxyType({})


def ok(sentence: str, **figures: Any) -> Finding:
    return Finding(Verdict.OK, sentence, figures)


def warn(sentence: str, **figures: Any) -> Finding:
    return Finding(Verdict.WARN, sentence, figures)


def fail(sentence: str, **figures: Any) -> Finding:
    return Finding(Verdict.FAIL, sentence, figures)


class Check(NamedTuple):
    """Finding of one check, with the name of the check."""

    name: str
    finding: Finding


def as_lines(checks: Sequence[Check]) -> list[str]:
    """Return one line for each check."""
    rows = ([finding.verdict.word, name, finding.sentence] for name, finding in checks)
    return lines([Column("verdict"), Column("check"), Column("sentence")], rows, None, has_head=False)


@dataclass(frozen=True, slots=True)
class Report:
    """Findings of all checks. ``remote_probe`` names the other process: "another process here", or the name of another
    host."""

    directory: str
    remote_probe: str
    checks: Sequence[Check]

    @property
    def verdict(self) -> Verdict:
        return max((check.finding.verdict for check in self.checks), default=Verdict.OK)

    def as_json(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "second": self.remote_probe,
            "verdict": self.verdict.word,
            "checks": [
                {"name": name, "verdict": verdict.word, "sentence": sentence, "figures": dict(figures)}
                for name, (verdict, sentence, figures) in self.checks
            ],
        }
