"""The engine of a job's tables: Spark, or DuckDB within this process (``pipeline.local``).

A job is written once, with Spark's DataFrame API, and imports ``F`` and ``Window`` from here. Frames carry their engine
with them; inside a ``LocalSession`` the API is DuckDB's, otherwise Spark's. Importing this imports neither.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

SPARK: Final = "spark"
LOCAL: Final = "local"
ENGINES: Final = (SPARK, LOCAL)
AUTO: Final = "auto"

_current: ContextVar[str] = ContextVar("tandemmq_engine", default=SPARK)

if TYPE_CHECKING:
    from pyspark.sql import Window
    from pyspark.sql import functions as F
else:

    class _Chosen:
        """Names of one of two modules, depending on the engine that is current at the access."""

        def __init__(self, spark: tuple[str, str | None], local: tuple[str, str | None]) -> None:
            self._of = {SPARK: spark, LOCAL: local}

        def __getattr__(self, name: str) -> Any:
            module, within = self._of[_current.get()]
            found = import_module(module)
            return getattr(found if within is None else getattr(found, within), name)

    F = _Chosen(("pyspark.sql.functions", None), ("tandemmq.pipeline.local.functions", None))
    Window = _Chosen(("pyspark.sql", "Window"), ("tandemmq.pipeline.local.column", "Window"))

__all__ = ["AUTO", "ENGINES", "LOCAL", "SPARK", "F", "Window", "current", "is_local", "scope"]


def current() -> ContextVar[str]:
    """Return the variable with the engine of ``F`` and ``Window``."""
    return _current


def is_local() -> bool:
    return _current.get() == LOCAL


def scope(session: Any) -> AbstractContextManager[object]:
    """Limit the life of the frames made within: a job that runs continuously does each round in a scope."""
    return session.scope() if is_local() else nullcontext()  # Spark's frames end with the objects
