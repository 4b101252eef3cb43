"""A node's part in a replicated set as metrics and warnings, from the entry "replication" of a status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

ROLES: Final = ("master", "elected", "follower", "looking")
#: What a new start of the process would mend; all else a supervisor had better leave alone.
MENDED_BY_A_START: Final = ("BUG", "this node takes no part until it is started again")

#: Name, meaning, and what it is of a status.
GAUGES: Final = {
    "epoch": "The epoch that the node leads or follows; 0: none.",
    "promised_epoch": "The epoch that it promised last.",
    "voters": "Stores that have a vote, as the newest header in the node's journal says.",
    "is_voter": "1: it has a vote.",
    "is_whole": "1: its journal lacks nothing, so that it counts.",
    "has_quorum": "1: it leads, and a quorum answers it; or it follows a master.",
    "has_problem": "1: it does not take part as it should; status says why.",
    "directory_problem": "1: ZooKeeper cannot be asked.",
}
COUNTERS: Final = {
    "elections": "How often it was elected.",
    "quorum_losses": "How often it led, and no quorum answered it any more.",
}


def problems(said: Mapping[str, Any]) -> list[str]:
    """What makes the broker unhealthy."""
    problem = str(said.get("problem") or "")
    return [problem] if any(text in problem for text in MENDED_BY_A_START) else []


def warnings(said: Mapping[str, Any]) -> list[str]:
    """What is only shown."""
    shown = [str(said["problem"])] if said.get("problem") and not problems(said) else []
    if not said.get("is_whole", True):
        shown.append("this node lacks files of the journal, and does not count until it has them")
    if said.get("zookeeper"):
        shown.append(f"the set goes on without its directory: {said['zookeeper']}")
    return shown


def metrics(said: Mapping[str, Any]) -> Iterator[Metric]:
    """Role, epoch, voters, how well the set is, and by how much each follower is behind."""
    role = GaugeMetricFamily(
        "tandemmq_replication_role", "1 for the part that the node has in its set, 0 for the others.", labels=["role"]
    )
    for name in ROLES:
        role.add_metric([name], int(said.get("role") == name))
    yield role
    values = {
        "epoch": said.get("epoch", 0),
        "promised_epoch": said.get("promised", 0),
        "voters": len(said.get("voters", ())),
        "is_voter": int(bool(said.get("is_voter"))),
        "is_whole": int(bool(said.get("is_whole"))),
        "has_quorum": int(bool(said.get("has_quorum"))),
        "has_problem": int(bool(said.get("problem"))),
        "directory_problem": int(bool(said.get("zookeeper"))),
    }
    for name, meaning in GAUGES.items():
        yield GaugeMetricFamily(f"tandemmq_replication_{name}", meaning, value=values[name])
    for name, meaning in COUNTERS.items():
        yield CounterMetricFamily(f"tandemmq_replication_{name}", meaning, value=said.get(name, 0))
    lag = GaugeMetricFamily(
        "tandemmq_replication_follower_lag_bytes",
        "Bytes of the journal that a follower's disk has not got; the master has it.",
        labels=["node", "store"],
    )
    for store, follower in said.get("followers", {}).items():
        if follower.get("lag_bytes") is not None:
            lag.add_metric([str(follower["node"]), store], follower["lag_bytes"])
    yield lag
