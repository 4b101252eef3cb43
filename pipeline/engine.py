"""Engine of a job: Spark, or DuckDB in this process (``pipeline.local``).

A job is written once, with Spark's DataFrame API, and imports ``F`` and ``Window`` from here. In a ``LocalSession``
these are the DuckDB versions, otherwise Spark's. An import of this module imports neither engine.
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
        """Proxy for one of two modules: that of the current engine at each access."""

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
    """Return the context variable with the engine of ``F`` and ``Window``."""
    return _current


def is_local() -> bool:
    return _current.get() == LOCAL


def scope(session: Any) -> AbstractContextManager[object]:
    """Return a context that frees the frames made in it at its end. A job that runs continuously uses one for each
    round."""
    return session.scope() if is_local() else nullcontext()  # Spark frees its frames with their objects
