"""Metrics and warnings of a node in a replicated set, from the entry "replication" of a status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

ROLES: Final = ("master", "elected", "follower", "looking")
#: Problems that a restart of the process repairs; for all others a supervisor must not restart it.
MENDED_BY_A_START: Final = ("BUG", "this node takes no part until it is started again")


def problems(said: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the broker is not healthy."""
    problem = str(said.get("problem") or "")
    return [problem] if any(text in problem for text in MENDED_BY_A_START) else []


def warnings(said: Mapping[str, Any]) -> list[str]:
    """Return the sentences that are only shown."""
    shown = [str(said["problem"])] if said.get("problem") and not problems(said) else []
    if not said.get("is_whole", True):
        shown.append("this node lacks files of the journal, and does not count until it has them")
    if said.get("twins"):
        shown.append(str(said["twins"]))
    if said.get("zookeeper"):
        shown.append(f"the set goes on without its directory: {said['zookeeper']}")
    return shown


def values(said: Mapping[str, Any]) -> dict[str, int]:
    """Return the values from which the metrics of a set are made (broker.admin.metric_table): epoch, voters, and
    health."""
    return {
        "epoch": said.get("epoch", 0),
        "promised_epoch": said.get("promised", 0),
        "voters": len(said.get("voters", ())),
        "is_voter": int(bool(said.get("is_voter"))),
        "is_whole": int(bool(said.get("is_whole"))),
        "has_quorum": int(bool(said.get("has_quorum"))),
        "has_problem": int(bool(said.get("problem") or said.get("twins"))),
        "directory_problem": int(bool(said.get("zookeeper"))),
        "elections": said.get("elections", 0),
        "quorum_losses": said.get("quorum_losses", 0),
    }


def lags(said: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the bytes by which each follower is behind, by node and store; unknown values are left out."""
    for store, follower in said.get("followers", {}).items():
        if follower.get("lag_bytes") is not None:
            yield (str(follower["node"]), store), follower["lag_bytes"]
