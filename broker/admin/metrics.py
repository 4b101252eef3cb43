"""The Prometheus view of a broker's status.

It promises a cost that does not grow with the number of queues, which are shown summed. It keeps nothing between
scrapes and uses no global registry, so two brokers in one process (tests, demotion and promotion) never meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandemmq.broker.admin import set_metrics
from tandemmq.broker.ha.states import Phase, Trouble

ROLES = ("master", "standby", "starting", "demoted")

QUEUE_SUMS = {
    "messages": "Messages in all queues.",
    "consumers": "Consumers of all queues.",
}

PROOF = {
    "proof_age_seconds": "Seconds since it was last proved that the lock is this broker's; a master has it.",
    "proof_holds_seconds": "Seconds for which that proof holds yet; then no receipt is sent any more.",
}

OUTAGE = {
    "last_takeover_seconds": "From the lock seen in other hands until the ports answered, at the latest take-over.",
}

LAG = {
    "bytes": "Bytes of the journal that a standby has not read yet.",
    "records": "Records of the journal that a standby has not read yet.",
    "seconds": "Seconds since a standby was at the journal's end.",
}

TAKEOVER = {
    "total_seconds": "Predicted seconds from the master's death to a broker that serves.",
    "lock_seconds": "Of these, until the lock is had.",
    "replay_seconds": "Of these, for the fence and for reading the journal's end.",
    "load_seconds": "Of these, for handing over queues and subscriptions.",
    "budget_seconds": "What replay and load may take (store.failover_budget).",
}


class StatusCollector(Collector):
    """Turns one answer of ``GET /status`` (see broker.admin.server) into metrics."""

    __slots__ = ("_status",)

    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Role, epoch and problems; the sums over queues; every number under ``counts``."""
        status = self._status
        yield InfoMetricFamily("tandemmq_broker", "The broker.", value={"name": str(status["name"])})

        meaning = "1 for the role that the broker has, 0 for the others."
        yield _one_of("role", meaning, ROLES, status["role"])
        yield from _rule(status)
        yield GaugeMetricFamily("tandemmq_epoch", "The epoch of the master's rule.", value=status["epoch"])
        yield GaugeMetricFamily(
            "tandemmq_problems", "Reasons why the broker is not healthy.", value=len(status.get("problems", ()))
        )
        standby = status.get("standby")
        if standby is not None:
            yield GaugeMetricFamily(
                "tandemmq_standby_caught_up",
                "1 for a standby whose index is up to date.",
                value=1 if standby.get("has_caught_up") else 0,
            )
            yield from _gauges("tandemmq_standby_lag", standby.get("lag", {}), LAG)
        takeover = status.get("takeover") or (standby or {}).get("takeover", {})
        yield from _gauges("tandemmq_takeover_predicted", takeover, TAKEOVER)

        if "replication" in status:
            yield from set_metrics.metrics(status["replication"])

        lag = status.get("loop_lag_seconds")
        if lag is not None:
            yield HistogramMetricFamily(
                "tandemmq_loop_lag_seconds",
                "How late the event loop came to what was due, asked 20 times a second.",
                buckets=lag["buckets"],
                sum_value=lag["sum"],
            )

        sums = status.get("queue_sums", {})
        yield GaugeMetricFamily("tandemmq_queues", "Queues.", value=sums.get("queues", 0))
        for key, meaning in QUEUE_SUMS.items():
            yield GaugeMetricFamily(f"tandemmq_queue_{key}", meaning, value=sums.get(key, 0))

        for name, value in status.get("counts", {}).items():
            meaning = name.replace("_", " ").capitalize() + "."
            if name.endswith("_total"):
                yield CounterMetricFamily(f"tandemmq_{name.removesuffix('_total')}", meaning, value=value)
            else:
                yield GaugeMetricFamily(f"tandemmq_{name}", meaning, value=value)


def _one_of(label: str, meaning: str, names: Iterable[str], current: str | None) -> Metric:
    """A gauge for each name: 1 for the one that holds."""
    gauge = GaugeMetricFamily(f"tandemmq_{label}", meaning, labels=[label])
    for name in names:
        gauge.add_metric([name], int(name == current))
    return gauge


def _gauges(prefix: str, values: dict[str, Any], meanings: dict[str, str]) -> Iterator[Metric]:
    """A gauge for each value that is there; one that is not known (None) is left out."""
    for key, meaning in meanings.items():
        if values.get(key) is not None:
            yield GaugeMetricFamily(f"{prefix}_{key}", meaning, value=values[key])


def _rule(status: dict[str, Any]) -> Iterator[Metric]:
    """Phase, lock, how well its ownership is proved, and how often the role was lost, by what."""
    meaning = "1 for the phase of its life that the broker is in, 0 for the others."
    yield _one_of("phase", meaning, [each.value for each in Phase], status.get("phase"))
    lock = status.get("lock", {})
    yield InfoMetricFamily(
        "tandemmq_lock", "The lock.", value={"kind": str(lock.get("type", "")), "where": str(lock.get("where", ""))}
    )
    yield from _gauges("tandemmq_lock", lock, PROOF)
    demotions = CounterMetricFamily("tandemmq_demotions", "Demotions, by what led to them.", labels=["trouble"])
    for trouble in Trouble:
        demotions.add_metric([trouble.name], status.get("demotions", {}).get(trouble.name, 0))
    yield demotions
    yield from _gauges("tandemmq", status, OUTAGE)
