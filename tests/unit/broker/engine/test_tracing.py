"""Spans of messages in the SDK's in-memory exporter; and the trace context, which is passed on unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tandemmq.broker.engine import tracing
from tandemmq.broker.engine.tracing import Tracing
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import Harness

pytestmark = pytest.mark.promise("traces")

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = {"traceparent": f"00-{TRACE:032x}-{PARENT:016x}-01", "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE:032x}-{PARENT:016x}-00"}
NEWS = Destination(DestinationKind.TOPIC, "news")


class Traced:
    """An engine with tracing, and its spans by name."""

    def __init__(self, harness: Harness, ratio: float = 0.0) -> None:
        self.exporter = InMemorySpanExporter()
        self.harness = harness
        harness.tracing = Tracing(SimpleSpanProcessor(self.exporter), "a", ratio)
        harness.begin_term()

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness()


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_a_sampled_message_has_spans_from_its_producer_to_its_consumer(harness: Harness) -> None:
    traced = Traced(harness)
    client = harness.client().send("one", properties=dict(SAMPLED))
    assert traced.spans == {}, "it is not stored yet"
    harness.turn()
    client.subscribe().turn()
    spans = traced.spans
    assert set(spans) == {"publish orders", "store orders", "deliver orders"}
    publish = spans["publish orders"]
    assert {span.context.trace_id for span in spans.values() if span.context is not None} == {TRACE}
    assert parent(publish) == PARENT
    assert parent(spans["store orders"]) == parent(spans["deliver orders"]) == span_id(publish)
    assert (spans["deliver orders"].start_time or 0) >= (publish.end_time or 0)
    assert publish.attributes is not None
    assert publish.attributes["messaging.destination.name"] == "orders"
    assert client.last("one").message.properties == SAMPLED, "what the consumer gets is what the producer said"


def test_a_message_without_sampling_or_a_context_has_no_spans(harness: Harness) -> None:
    traced = Traced(harness)
    client = harness.consumer().send("one", properties=dict(NOT_SAMPLED)).send("two")
    client.send("three", properties={"traceparent": "nonsense"}).turn()
    assert (client.bodies, traced.spans) == (["one", "two", "three"], {})


def test_by_ratio_messages_without_a_context_begin_a_trace(harness: Harness) -> None:
    traced = Traced(harness, ratio=1.0)
    harness.consumer().send("one", persistent=False).send("two", properties=dict(NOT_SAMPLED)).turn()
    spans = traced.spans
    assert set(spans) == {"publish orders", "deliver orders"}, "nothing is stored, and who said no is not asked again"
    assert parent(spans["publish orders"]) is None
    assert len(traced.exporter.get_finished_spans()) == 2


def test_each_subscriber_of_a_topic_is_a_delivery(harness: Harness) -> None:
    traced = Traced(harness)
    client = harness.consumer("a", NEWS).subscribe("b", NEWS)
    client.send("one", NEWS, properties=dict(SAMPLED)).turn()
    names = [span.name for span in traced.exporter.get_finished_spans()]
    assert names.count("deliver news") == 2


def test_a_delivery_after_a_failover_belongs_to_the_producers_trace(harness: Harness) -> None:
    traced = Traced(harness)
    harness.client().send("one", properties=dict(SAMPLED)).turn()
    harness.tracing._known.clear()  # another process
    harness.fail_over()
    client = harness.consumer().turn()
    assert (client.bodies, parent(traced.spans["deliver orders"])) == (["one"], PARENT)


def test_a_refused_message_is_an_error(harness: Harness) -> None:
    traced = Traced(harness)
    client = harness.client()
    client.send("one", Destination(DestinationKind.QUEUE, ""), properties=dict(SAMPLED)).turn()
    (publish,) = (span for name, span in traced.spans.items() if name.startswith("publish"))
    assert publish.status.status_code is StatusCode.ERROR


def test_the_number_of_messages_that_are_known_is_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "KNOWN_MAX", 3)
    Traced(harness)
    harness.client().store(*range(5), properties=dict(SAMPLED))
    assert len(harness.tracing._known) == 3
