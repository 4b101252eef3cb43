"""Reasons why a set has no master, in sentences, from the status of its members. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

#: A member that was silent for this long counts as away.
SILENT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Seen:
    """State of one member. ``said``: its status; None: nothing was received from it, or not within SILENT_SECONDS."""

    store: str
    node: str
    is_voter: bool
    said: dict[str, Any] | None
    said_seconds_ago: float | None = None

    @property
    def is_master(self) -> bool:
        return self.said is not None and self.said.get("role") == "master"


def master_of(members: Sequence[Seen]) -> Seen | None:
    """Return the master: of two that claim to be, the one of the later epoch."""
    masters = [each for each in members if each.is_master]
    return max(masters, key=lambda each: (each.said or {}).get("epoch", 0), default=None)


def why_no_master(members: Sequence[Seen]) -> list[str]:
    """Return the reasons, or an empty list if a master has its quorum."""
    master = master_of(members)
    if master is not None:
        assert master.said is not None, "a master has a status"
        if master.said.get("has_quorum", True):
            return []
        return [f"{master.node} was master, and no quorum answers it any more", *_lacking(members)]
    voters = [each for each in members if each.is_voter]
    if not voters or all(each.said is not None and not each.said.get("set") for each in members):
        return ["the set is not founded yet", *_problems(members)]
    return _lacking(members)


def _lacking(members: Sequence[Seen]) -> list[str]:
    voters = [each for each in members if each.is_voter]
    quorum = len(voters) // 2 + 1
    whole = [each for each in voters if each.said is not None and each.said.get("is_whole") and not _is_out(each.said)]
    reasons = [f"{each.node} is not there{_last_heard(each)}" for each in voters if each.said is None]
    reasons += [
        f"{each.node} lacks files of the journal and does not count until it has them"
        for each in voters
        if each.said is not None and not each.said.get("is_whole")
    ]
    reasons += _problems(voters)
    if len(whole) < quorum:
        return [f"{quorum} of {len(voters)} voters have to be there and whole; {len(whole)} are", *reasons]
    first = max((_position(each) for each in whole), default=(0, 0, 0))
    behind = [each.node for each in whole if _position(each) < first]
    if behind:
        ahead = next(each.node for each in whole if _position(each) == first)
        reasons.append(f"{', '.join(behind)} {'is' if len(behind) == 1 else 'are'} behind {ahead}, which has to lead")
    return [f"{len(whole)} of {len(voters)} voters are there and whole: an election should end soon", *reasons]


def _problems(members: Sequence[Seen]) -> list[str]:
    said = [(each.node, str((each.said or {}).get("problem") or "")) for each in members]
    return list(dict.fromkeys(f"{node}: {problem}" for node, problem in said if problem))


def _is_out(said: dict[str, Any]) -> bool:
    """Return whether the node has a problem that keeps it from taking part."""
    return str(said.get("problem") or "").startswith(("FORK", "BUG", "the copy of the journal is damaged"))


def _position(member: Seen) -> tuple[int, ...]:
    return tuple((member.said or {}).get("position") or (0, 0, 0))


def _last_heard(member: Seen) -> str:
    ago = member.said_seconds_ago
    return "" if ago is None else f": it was heard of {ago:.0f} s ago"
