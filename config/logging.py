"""The tables [logging] (selection, form and target of log lines) and [tracing] (spans for OpenTelemetry)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tandemmq.config.section import AnyCase, Bytes, Count, Path, Section
from tandemmq.config.store import MIB

Level = Annotated[Literal["debug", "info", "warning", "error"], AnyCase]

_LOGGER: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _flat(value: object) -> object:
    """Flatten tables: names with dots and without quotes are tables in tables."""
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, part in value.items():
        inner = _flat(part)
        if isinstance(inner, dict):
            found |= {f"{name}.{rest}": level for rest, level in inner.items()}
        else:
            found[str(name)] = inner
    for name in found:
        if not _LOGGER.fullmatch(name):
            raise ValueError(f'names of loggers like "store" or "broker.net", not {name!r}')
    return found


class LoggingSettings(Section):
    level: Level = "info"
    """Lowest level that is logged: `debug`, `info`, `warning` or `error`. Libraries log no `debug` lines unless
    `loggers` names them."""
    loggers: Annotated[dict[str, Level], BeforeValidator(_flat)] = Field(default_factory=dict)
    """Levels of packages or modules and all below them: `"broker.net" = "debug"`."""
    format: Annotated[Literal["text", "logfmt", "json"], AnyCase] = "text"
    """Form of a line. `logfmt` and `json` have a field each for time, level, event, logger and message."""
    target: Annotated[Literal["stderr", "file", "journald"], AnyCase] = "stderr"
    """Output of log lines. `journald`: stderr without a time and with the priority that systemd reads."""
    file: Path | None = None
    """File for `target = "file"`. If it is renamed or removed, the broker creates it again within a second."""
    file_max_size: Bytes = Field(64 * MIB, ge=1 << 10)
    """Maximum size of the file. A full file is renamed to `FILE.1`, `FILE.1` to `FILE.2` and so on."""
    file_max_count: Count = Field(5, ge=1, le=1_000)
    """Renamed files that are kept."""

    @model_validator(mode="after")
    def _has_its_file(self) -> Self:
        if (self.target == "file") != (self.file is not None):
            raise ValueError('both of file = "PATH" and target = "file", or neither')
        return self

    @property
    def where(self) -> tuple[object, ...]:
        """All settings except levels: a change of these needs a new target."""
        return self.format, self.target, self.file, self.file_max_size, self.file_max_count


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
