"""Prometheus collector of a broker's status: the metrics of broker.admin.metric_table with their values.

It has no state between scrapes and no global registry, so several brokers in one process (tests, demotion and
promotion) do not interfere. A metric whose value is missing in the status is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandemmq.broker.admin import set_metrics
from tandemmq.broker.admin.metric_table import METRICS, Kind, Named
from tandemmq.broker.ha.states import Phase, Trouble

ROLES: Final = ("master", "standby", "starting", "demoted")

Status = dict[str, Any]
# Values of the labels, in their order, and the value of the metric.
Sample = tuple[tuple[str, ...], float]


class StatusCollector(Collector):
    """Collector of the metrics of one answer of ``GET /status`` (broker.admin.server). Without ``has_names``, metrics
    whose labels are names are left out, and followers of a set have numbers instead of names."""

    __slots__ = ("_has_names", "_status")

    def __init__(self, status: Status, *, has_names: bool = True) -> None:
        self._has_names = has_names
        self._status = status | {
            "takeover": status.get("takeover") or (status.get("standby") or {}).get("takeover"),
            "set": set_metrics.values(status["replication"]) if "replication" in status else None,
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
        _one_of(set_metrics.ROLES, status["replication"].get("role")) if "replication" in status else ()
    ),
    "replication_follower_lag_bytes": lambda status: set_metrics.lags(status.get("replication", {})),
}
