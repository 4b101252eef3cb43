"""The table [logging]: what a broker's log says, in what form, and where to."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tandemmq.config.section import AnyCase, Path, Section
from tandemmq.config.store import MIB
from tandemmq.config.units import Bytes, Count

Level = Annotated[Literal["debug", "info", "warning", "error"], AnyCase]

_LOGGER: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _flat(value: object) -> object:
    """Names with dots are tables in tables where they stand without quotes."""
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
    """How much is logged: `debug`, `info`, `warning` or `error`. Libraries say no more than `info` unless they are
    named in `loggers`."""
    loggers: Annotated[dict[str, Level], BeforeValidator(_flat)] = Field(default_factory=dict)
    """The level of single loggers and all below them, by name: a package or module, as in `"broker.net" = "debug"`."""
    format: Annotated[Literal["text", "logfmt", "json"], AnyCase] = "text"
    """The form of a line. `logfmt` and `json` have a field for each of time, level, event, logger and message."""
    target: Annotated[Literal["stderr", "file", "journald"], AnyCase] = "stderr"
    """Where lines go. `journald`: to stderr, without a time, and with the priority in front that systemd reads."""
    file: Path | None = None
    """Where lines go with `target = "file"`. If it is renamed or removed, it is made anew within a second."""
    file_max_size: Bytes = Field(64 * MIB, ge=1 << 10)
    """Before it is longer, the file is renamed to `FILE.1`, and that to `FILE.2` ..."""
    file_max_count: Count = Field(5, ge=1, le=1_000)
    """So many former files are kept."""

    @model_validator(mode="after")
    def _has_its_file(self) -> Self:
        if (self.target == "file") != (self.file is not None):
            raise ValueError('both of file = "PATH" and target = "file", or neither')
        return self

    @property
    def where(self) -> tuple[object, ...]:
        """All but levels: what a new one needs another target for."""
        return self.format, self.target, self.file, self.file_max_size, self.file_max_count
