"""The table [tracing]: spans of messages for OpenTelemetry."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from tandemmq.config.section import Section


def _endpoint(text: str) -> str:
    if text != "off" and not text.startswith(("http://", "https://")):
        raise ValueError('"off", or the URL of a collector like "http://127.0.0.1:4318/v1/traces"')
    return text


def _ratio(number: float) -> float:
    if not 0 <= number <= 1:
        raise ValueError("a number from 0 to 1")
    return number


class TracingSettings(Section):
    endpoint: Annotated[str, AfterValidator(_endpoint)] = "off"
    """Collector of spans, OTLP over HTTP: `http://HOST:4318/v1/traces`. `off`: no spans and no cost. Needs the extra
    `otel` (tracing.md)."""
    ratio: Annotated[float, AfterValidator(_ratio)] = 0.0
    """Part of the messages without a trace context that is traced, 0 to 1. Messages with a context are traced if it is
    sampled."""
