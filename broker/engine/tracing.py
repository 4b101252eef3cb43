"""Spans of messages, for OpenTelemetry. Runs on the loop; imported only if a broker makes spans.

    publish    from SEND until the message is visible in its destination         a child of the producer's span
      store    of a persistent one: the wait for the disk
      deliver  from visible until a consumer gets it; one for each consumer

The producer's span is the W3C context in the message, ``traceparent`` and ``tracestate``, which consumers get
unchanged. Of the messages without a context, a configured part begins new traces.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import Destination, Message

HEADERS: Final = ("traceparent", "tracestate")
#: Maximum number of messages whose spans are kept for their deliveries. The oldest are forgotten first.
KNOWN_MAX: Final = 10_000
_propagator = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Known:
    publish: Span
    context: Context
    store: Span | None = None
    arrived: int = 0  # in ns since 1970; 0: not yet


class Tracing:
    """Makes spans of the events that the engine reports (broker.engine.ports)."""

    def __init__(self, processor: SpanProcessor, service: str, ratio: float) -> None:
        """Trace ``ratio`` of the messages without a context, and those with a context that is sampled."""
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)), resource=Resource.create({"service.name": service})
        )
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("tandemmq")
        self._known: dict[str, _Known] = {}

    def sent(self, message: Message) -> None:
        publish = self._span("publish", message, message.destination, _context_of(message), SpanKind.SERVER)
        if not publish.is_recording():
            return
        known = _Known(publish, trace.set_span_in_context(publish))
        if message.persistent:
            known.store = self._span("store", message, message.destination, known.context)
        self._known[message.message_id] = known
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def refused(self, message: Message, reason: str) -> None:
        known = self._known.pop(message.message_id, None)
        if known is not None:
            known.publish.set_status(StatusCode.ERROR, reason)
            self._end(known)

    def arrived(self, message: Message) -> None:
        known = self._known.get(message.message_id)
        if known is not None and not known.arrived:
            known.arrived = time.time_ns()
            self._end(known, known.arrived)

    def delivered(self, message: Message, destination: Destination) -> None:
        known = self._known.get(message.message_id)
        context = _context_of(message) if known is None else known.context
        if context is not None:
            began = known.arrived if known is not None and known.arrived else None
            self._span("deliver", message, destination, context, began=began).end()

    def _span(
        self,
        what: str,
        message: Message,
        destination: Destination,
        context: Context | None,
        kind: SpanKind = SpanKind.INTERNAL,
        began: int | None = None,
    ) -> Span:
        attributes = {
            "messaging.system": "tandemmq",
            "messaging.operation.name": what,
            "messaging.destination.name": destination.name,
            "messaging.message.id": message.message_id,
        }
        # An empty context, because the context of the loop's thread does not belong to the message.
        context = Context() if context is None else context
        return self._tracer.start_span(f"{what} {destination.name}", context, kind, attributes, start_time=began)

    def _end(self, known: _Known, now: int | None = None) -> None:
        if known.store is not None:
            known.store.end(now)
        known.publish.end(now)


def exported_to(endpoint: str) -> SpanProcessor:
    """Return a processor that sends spans to a collector by OTLP over HTTP, from its own thread; if the collector is
    slow or unavailable, spans are dropped."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))


def _context_of(message: Message) -> Context | None:
    """Return the context of a message; None: it has no valid context."""
    try:
        properties = message.quick_properties
    except RecordDamaged:
        return None
    if not properties or HEADERS[0] not in properties:
        return None
    carrier = {name: str(properties[name]) for name in HEADERS if name in properties}
    context = _propagator.extract(carrier, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None
