"""A mark for tests that replace a method or inspect a class, which is not possible with compiled code."""

from __future__ import annotations

import pytest

from tandemmq.compiled import is_compiled

LOOKS_INTO_A_CLASS = pytest.mark.skipif(is_compiled(), reason="inspects the fields of a class, which is compiled")
REPLACES_A_METHOD = pytest.mark.skipif(
    is_compiled(), reason="replaces a method, but compiled code calls the original one"
)
COUNTS_CALLS = pytest.mark.skipif(is_compiled(), reason="calls of compiled functions are not traced")
