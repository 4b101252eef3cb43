"""Result of a job: small enough for a terminal, complete enough for a page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tandemmq.pipeline.choice import Choice
from tandemmq.pipeline.reach import Reach
from tandemmq.pipeline.table import Cell, Table


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each label. ``unit`` is "bytes", "ms" or the counted thing."""

    title: str
    unit: str
    bars: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Stacks:
    """A bar for each label, divided into ``parts``; ``values`` of a bar are in their order."""

    title: str
    unit: str
    parts: tuple[str, ...]
    bars: Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over ``xs``, which are texts for the reader ("2026-11-03 09:00") in their order, at equal distances.

    Each line has a name and a value for each of ``xs``, not below 0; None is a gap. ``unit`` is "bytes", "ms" or the
    counted thing. Of very many points, the page shows the greatest of each stretch.
    """

    title: str
    unit: str
    xs: Sequence[str]
    lines: Sequence[tuple[str, Sequence[float | None]]]


Plot = Bars | Stacks | Lines


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a job. ``findings`` are sentences, the most important one first. ``is_clean`` is False if an operator
    must act. ``reached``: how far each store was read; None if no journal was. ``engine``: the engine, and the reason
    for it; None if the caller brought a session."""

    job: str
    findings: tuple[str, ...]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    is_clean: bool = True
    written: dict[str, str] = field(default_factory=dict)  # name of a table -> path of its Parquet
    reached: tuple[Reach, ...] | None = None
    engine: Choice | None = None

    def figures(self) -> dict[str, object]:
        """Return the figures for JSON."""
        tables: dict[str, list[dict[str, Cell]]] = {
            table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in self.tables
        }
        return {
            "job": self.job,
            "is_clean": self.is_clean,
            "findings": list(self.findings),
            "tables": tables,
            "written": self.written,
            "engine": None if self.engine is None else asdict(self.engine),
            "read": None if self.reached is None else [asdict(reach) for reach in self.reached],
        }
