"""Metrics and warnings of a node in a replicated set, from the entry "replication" of a status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

ROLES: Final = ("master", "elected", "follower", "looking")
#: Parts of the texts of problems that a restart of the process repairs. A supervisor must not restart it for other
#: problems.
REPAIRED_BY_RESTART: Final = ("BUG", "this node takes no part until it is started again")


def problems(status: Mapping[str, Any]) -> list[str]:
    """Return the problems that make the broker unhealthy."""
    problem = str(status.get("problem") or "")
    return [problem] if any(text in problem for text in REPAIRED_BY_RESTART) else []


def warnings(status: Mapping[str, Any]) -> list[str]:
    """Return the warnings, which do not change the health."""
    shown = [str(status["problem"])] if status.get("problem") and not problems(status) else []
    if not status.get("is_whole", True):
        shown.append("this node lacks files of the journal, and its vote does not count until it has them")
    if status.get("twins"):
        shown.append(str(status["twins"]))
    if status.get("zookeeper"):
        shown.append(f"the set runs without its directory in ZooKeeper: {status['zookeeper']}")
    return shown


def values(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the values from which the metrics of a set are made (broker.admin.metric_table): epoch, voters, and
    health."""
    return {
        "epoch": status.get("epoch", 0),
        "promised_epoch": status.get("promised", 0),
        "voters": len(status.get("voters", ())),
        "is_voter": int(bool(status.get("is_voter"))),
        "is_whole": int(bool(status.get("is_whole"))),
        "has_quorum": int(bool(status.get("has_quorum"))),
        "has_problem": int(bool(status.get("problem") or status.get("twins"))),
        "directory_problem": int(bool(status.get("zookeeper"))),
        "elections": status.get("elections", 0),
        "quorum_losses": status.get("quorum_losses", 0),
    }


def lags(status: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the bytes by which each follower is behind, by node and store; unknown values are left out."""
    for store, follower in status.get("followers", {}).items():
        if follower.get("lag_bytes") is not None:
            yield (str(follower["node"]), store), follower["lag_bytes"]
