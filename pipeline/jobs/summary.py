"""Result of a job, for the terminal and for an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tandemmq.pipeline.choice import Choice
from tandemmq.pipeline.reach import Reach
from tandemmq.pipeline.table import Cell, Table


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each label. ``unit``: "bytes", "ms" or the name of the counted items."""

    title: str
    unit: str
    bars: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Stacks:
    """A bar for each label, divided into ``parts``. The values of a bar are in the order of ``parts``."""

    title: str
    unit: str
    parts: tuple[str, ...]
    bars: Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over ``xs``: labels ("2026-11-03 09:00") at equal distances, in order.

    Each line has a name, and for each of ``xs`` a value of at least 0, or None for a gap. ``unit``: "bytes", "ms" or
    the name of the counted items. If there are very many points, the page shows the maximum of each stretch.
    """

    title: str
    unit: str
    xs: Sequence[str]
    lines: Sequence[tuple[str, Sequence[float | None]]]


Plot = Bars | Stacks | Lines


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a job. ``findings``: sentences, the most important one first. ``is_clean``: False if an operator must
    act. ``reached``: how far each store was read; None if no journal was read. ``engine``: the engine and the reason
    for it; None if the caller passed a session."""

    job: str
    findings: tuple[str, ...]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    is_clean: bool = True
    written: dict[str, str] = field(default_factory=dict)  # path of the Parquet of each table, by name
    reached: tuple[Reach, ...] | None = None
    engine: Choice | None = None

    def figures(self) -> dict[str, object]:
        """Return the summary for JSON."""
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
