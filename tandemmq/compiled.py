"""Whether what a message passes runs compiled (hatch_build.py) or as plain Python: both are the same source."""

from __future__ import annotations

from importlib.util import find_spec

#: A module that is compiled, if any is.
_COMPILED = "tandemmq.journal.format"


def is_compiled() -> bool:
    """Whether this installation is the compiled one."""
    spec = find_spec(_COMPILED)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def description() -> str:
    """``compiled`` or ``plain Python``: for people."""
    return "compiled" if is_compiled() else "plain Python"
