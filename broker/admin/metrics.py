"""The Prometheus view of a broker's status: the metrics of broker.admin.metric_table, with their values; and those of
single destinations that an operator chose, as text, made in steps.

It has no state between scrapes and no global registry, so several brokers in one process (tests, demotion and
promotion) do not interfere. A metric whose value is missing in the status is left out.

The number of destinations with metrics and the length of the text have limits, because Prometheus keeps several series
of each destination. ``tandemmq_destinations_left_out`` counts the destinations beyond a limit. The sums over all
destinations include them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandemmq.broker.admin.answers import BYTES_MAX, Status
from tandemmq.broker.admin.metric_table import LEFT_OUT, METRICS, OF_DESTINATIONS, Kind, Named
from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.slices import Work, pieces
from tandemmq.broker.ha.states import Phase, Trouble

ROLES: Final = ("master", "standby", "starting", "demoted")
SET_ROLES: Final = ("master", "elected", "follower", "looking")

# Values of the labels, in their order, and the value of the metric.
Sample = tuple[tuple[str, ...], float]
# Lists of a status: the value of the label "kind", the key of the list, and the key of the destination's name.
_LISTS: Final = (("queue", "queues", "name"), ("topic", "topics", "name"), ("subscription", "subscriptions", "topic"))
#: Bytes of one sample without its labels: the name and the value.
SAMPLE_BYTES_MAX: Final = 90
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class StatusCollector(Collector):
    """Collector of the metrics of one answer of ``GET /status`` (broker.admin.server). Without ``has_names``, metrics
    whose labels are names are left out, and followers of a set have numbers instead of names."""

    __slots__ = ("_has_names", "_status")

    def __init__(self, status: Status, *, has_names: bool = True) -> None:
        self._has_names = has_names
        self._status = status | {
            "takeover": status.get("takeover") or (status.get("standby") or {}).get("takeover"),
            "set": set_values(status["replication"]) if "replication" in status else None,
        }

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each metric of the table for which the status has a value."""
        for named in METRICS:
            if named.labels:
                is_numbered = not self._has_names and named.name == FOLLOWER_LAG
                if not (self._has_names or is_numbered or named.name in NAMELESS):
                    continue  # prove: metrics-without-a-login-name-nothing "continue" -> "pass"
                family = _family(named)
                for number, (labels, value) in enumerate(SAMPLES[named.name](self._status), 1):
                    family.add_metric((str(number),) * len(labels) if is_numbered else labels, value)
                if family.samples:
                    yield family
                continue
            value = _at(self._status, named.path)
            if value is None:
                continue
            if named.kind is Kind.HISTOGRAM:
                buckets, total = value["buckets"], value["sum"]
                yield HistogramMetricFamily(named.full_name, named.meaning, buckets=buckets, sum_value=total)
            else:
                family = _family(named)
                family.add_metric((), len(value) if isinstance(value, list) else float(value))
                yield family


def _family(named: Named) -> CounterMetricFamily | GaugeMetricFamily:
    make = CounterMetricFamily if named.kind is Kind.COUNTER else GaugeMetricFamily
    return make(named.full_name, named.meaning, labels=named.labels)


def _at(status: Any, path: str) -> Any:
    for key in path.split("."):
        status = status.get(key)
        if status is None:
            return None
    return status


def _one_of(names: Iterable[str], current: str | None) -> Iterator[Sample]:
    """Return a sample for each of ``names``: 1 for the current name, 0 for all others."""
    return (((name,), int(name == current)) for name in names)


def _lock(status: Status) -> Iterator[Sample]:
    lock = status.get("lock", {})
    yield (str(lock.get("type", "")), str(lock.get("where", ""))), 1


def _demotions(status: Status) -> Iterator[Sample]:
    """Return the number of demotions for each trouble; 0 if it never happened."""
    return (((trouble.name,), status.get("demotions", {}).get(trouble.name, 0)) for trouble in Trouble)


def _bridges(key: str) -> Callable[[Status], Iterator[Sample]]:
    return lambda status: (((str(each["name"]),), float(each[key])) for each in status.get("bridges", ()))


#: Metric that is shown also without names, because an alert needs it: followers then have numbers.
FOLLOWER_LAG: Final = "replication_follower_lag_bytes"
#: Metrics whose labels are constants of this program.
NAMELESS: Final = frozenset(("role", "phase", "demotions_total", "replication_role"))
#: Function that returns the samples, for each metric with labels.
SAMPLES: Final[dict[str, Callable[[Status], Iterable[Sample]]]] = {
    "broker_info": lambda status: [((str(status["name"]), str(status.get("version", ""))), 1)],
    "role": lambda status: _one_of(ROLES, status["role"]),
    "phase": lambda status: _one_of((each.value for each in Phase), status.get("phase")),
    "lock_info": _lock,
    "demotions_total": _demotions,
    "connector_connections": lambda status: (
        ((name,), count) for name, count in status.get("connector_connections", {}).items()
    ),
    "certificate_remaining_seconds": lambda status: (
        ((each["file"], each["kind"]), each["remaining_seconds"]) for each in status.get("certificates", ())
    ),
    "journal_owner_bytes": lambda status: (
        ((owner,), count) for owner, count in status.get("journal", {}).get("owner_bytes", {}).items()
    ),
    "bridge_connected": _bridges("connected"),
    "bridge_connects_total": _bridges("connects"),
    "bridge_received_total": _bridges("received"),
    "bridge_sent_total": _bridges("sent"),
    "bridge_refused_total": _bridges("refused"),
    "bridge_dropped_total": _bridges("dropped"),
    "bridge_circled_total": _bridges("circled"),
    "bridge_waiting": _bridges("waiting"),
    "replication_role": lambda status: (
        _one_of(SET_ROLES, status["replication"].get("role")) if "replication" in status else ()
    ),
    "replication_follower_lag_bytes": lambda status: set_lags(status.get("replication", {})),
}


def set_values(status: Mapping[str, Any]) -> dict[str, int]:
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


def set_lags(status: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the bytes by which each follower is behind, by node and store; unknown values are left out."""
    for store, follower in status.get("followers", {}).items():
        if follower.get("lag_bytes") is not None:
            yield (str(follower["node"]), store), follower["lag_bytes"]


class DestinationMetrics:
    """Metrics of the destinations whose names match one of ``patterns``: of the first ``most`` in the status."""

    def __init__(self, patterns: Sequence[str] = (), most: int = 0) -> None:
        self._patterns = tuple(map(Pattern, patterns))
        self._most = most

    def text(self, status: Mapping[str, Any], bytes_max: int = BYTES_MAX) -> Work[bytes]:
        """Return the text of a scrape, at most ``bytes_max`` bytes; empty without patterns, or if the broker is not
        master."""
        if not self._patterns or "queues" not in status:
            return b""
        chosen: list[tuple[str, dict[str, Any]]] = []
        left_out = 0
        for kind, listed, name in _LISTS:
            for piece in pieces(status[listed]):
                wanted = [each for each in piece if any(pattern.matches(each[name]) for pattern in self._patterns)]
                for each in wanted:
                    labels = _labels(kind, each, each[name])
                    length = len(OF_DESTINATIONS) * (len(labels.encode()) + SAMPLE_BYTES_MAX)
                    if len(chosen) == self._most or length > bytes_max:
                        left_out += 1
                        continue
                    bytes_max -= length
                    chosen.append((labels, each))
                yield
        parts = [f"{_head(LEFT_OUT)}{LEFT_OUT.full_name} {left_out}\n".encode()]
        for named in OF_DESTINATIONS:
            name, key = named.full_name, named.path
            parts.append(_head(named).encode())
            for some in pieces(chosen):
                lines = [f"{name}{labels} {figures[key]}\n" for labels, figures in some if key in figures]
                parts.append("".join(lines).encode())
                yield
        return b"".join(parts)


def _head(named: Named) -> str:
    return f"# HELP {named.full_name} {named.meaning}\n# TYPE {named.full_name} {named.kind}\n"


def _labels(kind: str, figures: Mapping[str, Any], destination: str) -> str:
    labels = f'kind="{kind}",destination="{destination.translate(_ESCAPED)}"'
    if kind == "subscription":
        subscription = f"{figures['client_id']}:{figures['name']}"
        labels += f',subscription="{subscription.translate(_ESCAPED)}"'
    return f"{{{labels}}}"
