"""The library that holds calls of a process, for a module of tests; import its name into the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.zombie_shim import built, compiler


@pytest.fixture(scope="module")
def library(require_service: Callable[[object, str], None]) -> Iterator[Path]:
    require_service(compiler(), "no C compiler (cc, gcc, clang)")
    with built() as made:
        yield made
