"""Whether what a message passes runs compiled (hatch_build.py) or as plain Python: both are the same source."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

#: A module that is compiled, if any is.
_COMPILED = "tandemmq.journal.format"
#: Why it is not: the build of a wheel writes this file (hatch_build.py).
_REASON = Path(__file__).with_name("plain.txt")


def is_compiled() -> bool:
    """Whether this installation is the compiled one."""
    spec = find_spec(_COMPILED)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


@cache
def description() -> str:
    """For people: ``compiled``, or ``plain Python`` and why."""
    if is_compiled():
        return "compiled"
    reason = _REASON.read_text(encoding="utf-8").strip() if _REASON.is_file() else "a source tree"
    return f"plain Python: {reason}"
