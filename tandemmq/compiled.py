"""Detection of the build: the modules on a message's path run compiled (hatch_build.py) or as plain Python, from the
same source."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

#: Module that is compiled, if any is.
_COMPILED = "tandemmq.journal.format"
#: Reason for plain Python: the build of a wheel writes this file (hatch_build.py).
_REASON = Path(__file__).with_name("plain.txt")


def is_compiled() -> bool:
    """Return whether this installation is the compiled one."""
    spec = find_spec(_COMPILED)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


@cache
def description() -> str:
    """Return the build for people: ``compiled``, or ``plain Python`` and the reason."""
    if is_compiled():
        return "compiled"
    reason = _REASON.read_text(encoding="utf-8").strip() if _REASON.is_file() else "a source tree"
    return f"plain Python: {reason}"
