"""Metrics of the destinations that an operator chose, as the text of a scrape, made in steps.

The number of destinations with metrics and the length of the text have limits, because Prometheus keeps several series
of each destination. ``tandemmq_destinations_left_out`` counts the destinations beyond a limit. The sums over all
destinations include them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandemmq.broker.admin.encoding import BYTES_MAX
from tandemmq.broker.admin.metric_table import LEFT_OUT, OF_DESTINATIONS, Named
from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.slices import Work, pieces

# Lists of a status: the value of the label "kind", the key of the list, and the key of the destination's name.
_LISTS: Final = (("queue", "queues", "name"), ("topic", "topics", "name"), ("subscription", "subscriptions", "topic"))
#: Bytes of one sample without its labels: the name and the value.
SAMPLE_BYTES_MAX: Final = 90
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


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
