"""A trace context on its way between STOMP and OpenWire, and the spans of a real broker at a collector."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tandemmq.bench.driver.stomp import Endpoint, command_frame, connect, read_frame
from tandemmq.bench.peers.ports import free_port
from tandemmq.store.records.properties import decode_properties, encode_properties
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.openwire_wire import OpenWire, queue

CONTEXT = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
}


class Collector:
    """Takes spans by OTLP over HTTP; ``spans`` are their names, each with its trace and the service."""

    def __init__(self) -> None:
        self.spans: set[tuple[str, str, str]] = set()
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request.ParseFromString(body)
                for resource in request.resource_spans:
                    (service,) = (
                        each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                    )
                    for scope in resource.scope_spans:
                        spans.update((span.name, span.trace_id.hex(), service) for span in scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.stop()


@pytest.fixture
def broker(collector: Collector, tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", "a", "--set", f"tracing.endpoint={collector.endpoint}")
    broker.openwire = free_port()
    broker.environment = {"OTEL_BSP_SCHEDULE_DELAY": "100", "no_proxy": "127.0.0.1"}
    with serving(broker):
        yield broker


@pytest.mark.promise("traces")
def test_a_context_is_passed_on_both_ways_and_its_spans_are_exported(
    broker: BrokerProcess, collector: Collector
) -> None:
    assert broker.openwire is not None
    stomp = connect(Endpoint("127.0.0.1", broker.stomp))
    jms = OpenWire(broker.openwire).connect()

    stomp.sendall(command_frame("SEND", [("destination", "/queue/to.jms"), ("persistent", "true"), *CONTEXT.items()]))
    jms.consume(queue("to.jms"))
    marshalled = jms.next_message().marshalled_properties
    assert marshalled is not None
    assert decode_properties(bytes(marshalled)) == CONTEXT

    stomp.sendall(command_frame("SUBSCRIBE", [("destination", "/queue/to.stomp"), ("id", "s")]))
    jms.send(queue("to.stomp"), b"x", marshalled_properties=encode_properties(dict(CONTEXT)))
    head = read_frame(stomp).decode().splitlines()
    assert head[0] == "MESSAGE"
    assert {f"{name}:{value}" for name, value in CONTEXT.items()} <= set(head)

    trace = CONTEXT["traceparent"].split("-")[1]
    wanted = {
        (f"{what} {name}", trace, "a") for what in ("publish", "store", "deliver") for name in ("to.jms", "to.stomp")
    }
    wait_until(lambda: wanted <= collector.spans, "the spans are exported")
    assert collector.spans == wanted
    stomp.close()
    jms.close()
